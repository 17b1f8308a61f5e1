"""Networks with random weights: a perceptron, a residual network, transformers for images and text, and, whose training
is timed only, a recurrent cell and a U-Net."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Perceptron(nn.Module):
    """Three layers and a dropout that does nothing."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.Dropout(0.0),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Residual(nn.Module):
    """Two convolutions around which the operand is added again."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.short(x))


class ResNet(nn.Module):
    """Stages of residual blocks, as the four of ResNet-18 behind windows of 7 x 7."""

    def __init__(self, width: int, stages: int, blocks: int, classes: int, stem: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, stem, 2, stem // 2, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1)
        sizes = [width, *(width << n for n in range(stages))]
        residuals: list[nn.Module] = []
        for n in range(stages):
            for block in range(blocks):
                stride = 2 if n and not block else 1
                residuals.append(Residual(sizes[n] if not block else sizes[n + 1], sizes[n + 1], stride))
        self.stages = nn.Sequential(*residuals)
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stages(self.pool(F.relu(self.norm(self.stem(x)))))
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


class Attention(nn.Module):
    """Attention of several heads with one product for queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """A transformer's layer with the norms in front."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh" if causal else "none"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first_norm(x))
        return x + self.inner(self.second_norm(x))


class ViT(nn.Module):
    """A transformer over patches of an image, and a token for the class."""

    def __init__(self, size: int, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads, False) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1) + self.position
        return self.head(self.norm(self.layers(y))[:, 0])


class Gpt(nn.Module):
    """A decoder as GPT-2, with its table of tokens as the last product's weight."""

    def __init__(self, vocabulary: int, capacity: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(capacity, width)
        self.layers = nn.Sequential(*(Layer(width, heads, True) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.norm(self.layers(x)) @ self.tokens.weight.T


class RmsNorm(nn.Module):
    """Division by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions: the halves of a head turned by the angles of their position."""
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class LlamaLayer(nn.Module):
    """A layer with grouped queries, rotary positions and a gated inner layer."""

    def __init__(self, width: int, heads: int, key_heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        self.first_norm, self.second_norm = RmsNorm(width), RmsNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, key_heads * self.size, bias=False)
        self.v = nn.Linear(width, key_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.first_norm(x)
        q, k, v = (
            part(y).view(batch, length, heads, self.size).transpose(1, 2)
            for part, heads in ((self.q, self.heads), (self.k, self.key_heads), (self.v, self.key_heads))
        )
        y = F.scaled_dot_product_attention(
            rotated(q, angles), rotated(k, angles), v, is_causal=True, enable_gqa=self.heads != self.key_heads
        )
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = self.second_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A decoder as Llama."""

    def __init__(self, vocabulary: int, width: int, heads: int, key_heads: int, inner: int, layers: int) -> None:
        super().__init__()
        self.size = width // heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, key_heads, inner) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        steps = torch.arange(self.size // 2, dtype=torch.float32) / (self.size // 2)
        angles = torch.arange(ids.shape[1], dtype=torch.float32)[:, None] * 10000.0**-steps
        for layer in self.layers:
            x = layer(x, angles)
        return self.head(self.norm(x))


class UnrolledCell(nn.Module):
    """The last state of an LSTM's cell that goes over `(steps, batch, inputs)`, one step after the other."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[1], self.cell.hidden_size)
        both = (state, state)
        for step in x:
            both = self.cell(step, both)
        return both[0]


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in (inputs, outputs):
        layers += [nn.Conv2d(size, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Images of `channels` that go down some levels and up again, past what each level was."""

    def __init__(self, channels: int, width: int, levels: int) -> None:
        super().__init__()
        widths = [width << n for n in range(levels)]
        self.down = nn.ModuleList(map(_twice, [channels, *widths[:-1]], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in widths[:-1])
        self.joined = nn.ModuleList(_twice(2 * n, n) for n in widths[:-1])
        self.last = nn.Conv2d(width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        before: list[Tensor] = []
        for n, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if n else x)
            before.append(x)
        for up, joined, other in reversed(list(zip(self.up, self.joined, before, strict=False))):
            x = joined(torch.cat([up(x), other], 1))
        return self.last(x)


@dataclass(frozen=True)
class Case:
    """A network in a size for tests and in its real one. `inputs` makes a batch, `targets` how many classes there are
    for each row of results."""

    name: str
    small: Callable[[], nn.Module]
    real: Callable[[], nn.Module]
    inputs: Callable[[int, bool], Any]
    classes: tuple[int, int]

    def loss(self, logits: Tensor) -> Tensor:
        """A loss of results against classes that follow from their place."""
        flat = logits.reshape(-1, logits.shape[-1])
        return F.cross_entropy(flat, torch.arange(flat.shape[0]) % flat.shape[-1])


def _images(batch: int, is_real: bool) -> Tensor:
    return torch.randn(batch, 3, 224 if is_real else 32, 224 if is_real else 32)


def _ids(vocabularies: tuple[int, int], lengths: tuple[int, int]) -> Callable[[int, bool], Tensor]:
    return lambda batch, is_real: torch.randint(0, vocabularies[is_real], (batch, lengths[is_real]))


CASES = (
    Case(
        "mlp",
        lambda: Perceptron(20, 32, 5),
        lambda: Perceptron(784, 1024, 10),
        lambda batch, is_real: torch.randn(batch, 784 if is_real else 20),
        (5, 10),
    ),
    Case("resnet", lambda: ResNet(4, 2, 1, 5, 3), lambda: ResNet(64, 4, 2, 1000, 7), _images, (5, 1000)),
    Case("vit", lambda: ViT(32, 8, 32, 2, 1, 5), lambda: ViT(224, 16, 768, 12, 12, 1000), _images, (5, 1000)),
    Case(
        "gpt",
        lambda: Gpt(40, 16, 32, 2, 1),
        lambda: Gpt(50257, 1024, 768, 12, 12),
        _ids((40, 50257), (12, 256)),
        (40, 50257),
    ),
    Case(
        "llama",
        lambda: Llama(40, 32, 4, 2, 48, 1),
        lambda: Llama(32000, 1024, 16, 4, 2816, 4),
        _ids((40, 32000), (12, 256)),
        (40, 32000),
    ),
)
