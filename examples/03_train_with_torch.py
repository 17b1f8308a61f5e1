"""Train a classifier with PyTorch, its forward and backward passes compiled by Tilewright.

    python examples/03_train_with_torch.py
    python examples/03_train_with_torch.py 200

The argument is how many steps to train. The task is made up: points of two spirals are told apart. Needs `torch`.
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The function, not the name of the entry point, so that the example runs from a checkout that is not installed.
from tilewright.interop.torch import backend

BATCH = 256


class Classifier(nn.Module):
    """Two layers with a norm between them."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.norm = nn.LayerNorm(width)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, points: Tensor) -> Tensor:
        hidden = F.gelu(self.norm(self.first(points)))
        return self.head(F.gelu(self.second(hidden)))


def spirals(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points (count, 2) and which of two spirals each is from."""
    labels = torch.arange(count) % 2
    turn = torch.rand(count, generator=generator)
    angle = turn * 1.5 * math.pi + labels * math.pi
    noise = torch.randn(count, 2, generator=generator) * 0.03
    return torch.stack([angle.cos(), angle.sin()], 1) * (turn[:, None] + 0.2) + noise, labels


def train(steps: int) -> tuple[float, float]:
    """The loss of the first step, and the part of new points that is told apart after the last one."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = Classifier()
    compiled = torch.compile(model, backend=backend)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first_loss = 0.0
    for step in range(steps):
        points, labels = spirals(BATCH, generator)
        loss = F.cross_entropy(compiled(points), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        first_loss = first_loss if step else loss.item()
    with torch.no_grad():
        points, labels = spirals(BATCH, generator)
        right = (compiled(points).argmax(1) == labels).float().mean().item()
    return first_loss, right


def main() -> None:
    """Train and say how well it went."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    first_loss, right = train(steps)
    print(f"loss before training {first_loss:.2f}; after {steps} steps {right:.0%} of new points are told apart")


if __name__ == "__main__":
    main()
