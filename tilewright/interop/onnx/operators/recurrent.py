"""Recurrent layers, as scans over the steps of a sequence.

Arrays are (steps, batch, size), or (batch, steps, size) with `layout`; weights are (directions, gates * hidden, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.interop.onnx.registry import Node, operator

Activation = Callable[[Array], Array]


def _affine(x: Array, alpha: float, beta: float) -> Array:
    return x * alpha + beta


def _activation(node: Node, name: str, alpha: float | None, beta: float | None) -> Activation:
    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    known: dict[str, Activation] = {
        "relu": tw.nn.relu,
        "tanh": tw.tanh,
        "sigmoid": tw.sigmoid,
        "affine": lambda x: _affine(x, given(alpha, 1.0), given(beta, 0.0)),
        "leakyrelu": lambda x: tw.nn.leaky_relu(x, given(alpha, 0.01)),
        "thresholdedrelu": lambda x: tw.where(x > given(alpha, 1.0), x, tw.zeros_like(x)),
        "scaledtanh": lambda x: tw.tanh(x * given(beta, 1.0)) * given(alpha, 1.0),
        "hardsigmoid": lambda x: tw.clip(_affine(x, given(alpha, 0.2), given(beta, 0.5)), 0.0, 1.0),
        "elu": lambda x: tw.nn.elu(x, given(alpha, 1.0)),
        "softsign": lambda x: x / (tw.abs(x) + 1.0),
        "softplus": tw.nn.softplus,
    }
    found = known.get(name.lower())
    if found is None:
        raise node.unsupported(f"the activation {name!r} of `{node.op}`")
    return found


@dataclass(frozen=True)
class _Layer:
    """One direction of a layer: its weights (in, gates * hidden), its biases and the functions of its gates. Weights
    that are integers have scales for their columns."""

    w: Array
    r: Array
    w_bias: Array
    r_bias: Array
    activations: tuple[Activation, ...]
    clip: float | None
    w_scale: Array | None = None
    r_scale: Array | None = None

    def clipped(self, x: Array) -> Array:
        """Before an activation, as the attribute `clip` asks for it."""
        return x if self.clip is None else tw.clip(x, -self.clip, self.clip)


# From the products of an input, and the carried values, to the carried values after it.
Step = Callable[[_Layer, Array, tuple[Array, ...]], tuple[Array, ...]]


def _layers(
    node: Node, w: Array, r: Array, bias: Array | None, defaults: tuple[str, ...], like: Array | None = None
) -> list[_Layer]:
    """The directions of a layer; its biases are of the type of its weights, or of `like`."""
    directions, rows = w.shape[0], w.shape[1]
    if node.get("hidden_size", r.shape[2]) != r.shape[2]:
        raise node.unsupported(f"`{node.op}` of weights for {r.shape[2]} hidden elements, not `hidden_size`")
    names = node.get("activations", defaults * directions)
    alphas, betas = node.get("activation_alpha", ()), node.get("activation_beta", ())
    per = len(defaults)
    functions = [
        _activation(node, name, alphas[n] if n < len(alphas) else None, betas[n] if n < len(betas) else None)
        for n, name in enumerate(names)
    ]
    biases = tw.zeros((directions, 2 * rows), dtype=(w if like is None else like).dtype) if bias is None else bias
    return [
        _Layer(
            w[d].mT,
            r[d].mT,
            biases[d, :rows],
            biases[d, rows:],
            tuple(functions[d * per : (d + 1) * per]),
            node.get("clip"),
        )
        for d in range(directions)
    ]


def _run(
    node: Node, x: Array, layers: list[_Layer], lengths: Array | None, initial: list[Array | None], step: Step
) -> tuple[Array, ...]:
    """All directions: every hidden state (steps, directions, batch, hidden), then the last carried values."""
    batch_first = node.get("layout", 0)
    direction = node.get("direction", "forward")
    if len(layers) != (2 if direction == "bidirectional" else 1):
        raise node.unsupported(f"`{node.op}` of {len(layers)} directions that is {direction!r}")
    source = tw.moveaxis(x, 1, 0) if batch_first else x
    steps, batch = source.shape[:2]
    hidden = layers[0].r.shape[0]
    starts = [
        tw.zeros((len(layers), batch, hidden), dtype=x.dtype)
        if state is None
        else (tw.moveaxis(state, 1, 0) if batch_first else state)
        for state in initial
    ]
    outputs: list[Array] = []
    finals: list[tuple[Array, ...]] = []
    for d, layer in enumerate(layers):
        reverse = direction == "reverse" or d == 1
        products = _product(source, layer.w, layer.w_scale) + layer.w_bias
        last, states = _scanned(layer, products, tuple(s[d] for s in starts), lengths, reverse, step, steps)
        outputs.append(states)
        finals.append(last)
    every = tw.stack(outputs, axis=1)
    carried = [tw.stack(parts) for parts in zip(*finals, strict=True)]
    if batch_first:
        return (tw.permute_dims(every, (2, 0, 1, 3)), *(tw.moveaxis(c, 0, 1) for c in carried))
    return (every, *carried)


def _scanned(
    layer: _Layer,
    products: Array,
    start: tuple[Array, ...],
    lengths: Array | None,
    reverse: bool,
    step: Step,
    steps: int,
) -> tuple[tuple[Array, ...], Array]:
    """One direction. Sequences of a batch that are shorter keep their state, and give zeros, beyond their end."""

    def body(state: Any, slices: Any) -> Any:
        product, place = slices
        moved = step(layer, product, state)
        if lengths is None:
            return moved, moved[0]
        inside = tw.reshape(tw.less(place, tw.astype(lengths, tw.i64)), (-1, 1))
        kept = tuple(tw.where(inside, new, old) for new, old in zip(moved, state, strict=True))
        return kept, tw.where(inside, moved[0], tw.zeros_like(moved[0]))

    return tw.scan(body, start, (products, tw.iota((steps,))), reverse=reverse)


def _gates(products: Array, count: int) -> tuple[Array, ...]:
    return tw.split(products, count, axis=-1)


@operator("RNN", since=7)
def rnn(
    node: Node, x: Array, w: Array, r: Array, bias: Any = None, lengths: Any = None, initial: Any = None
) -> tuple[Array, ...]:
    """One gate: `f(x @ w + h @ r + biases)`."""

    def step(layer: _Layer, product: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        (h,) = state
        return (layer.activations[0](layer.clipped(product + tw.matmul(h, layer.r) + layer.r_bias)),)

    return _run(node, x, _layers(node, w, r, bias, ("Tanh",)), lengths, [initial], step)


@operator("GRU", since=7)
def gru(
    node: Node, x: Array, w: Array, r: Array, bias: Any = None, lengths: Any = None, initial: Any = None
) -> tuple[Array, ...]:
    """Gates for update and reset, and a candidate."""
    after = node.get("linear_before_reset", 0)

    def step(layer: _Layer, product: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        (h,) = state
        of_gates, of_candidate = layer.activations
        xz, xr, xh = _gates(product, 3)
        # The gates that read the same state are one matmul.
        count = 3 if after else 2
        rows = count * h.shape[-1]
        rz, rr, *rh = _gates(tw.matmul(h, layer.r[:, :rows]) + layer.r_bias[:rows], count)
        z = of_gates(layer.clipped(xz + rz))
        reset = of_gates(layer.clipped(xr + rr))
        recurrent = reset * rh[0] if rh else tw.matmul(reset * h, layer.r[:, rows:]) + layer.r_bias[rows:]
        candidate = of_candidate(layer.clipped(xh + recurrent))
        return ((1.0 - z) * candidate + z * h,)

    return _run(node, x, _layers(node, w, r, bias, ("Sigmoid", "Tanh")), lengths, [initial], step)


@operator("LSTM", since=7)
def lstm(
    node: Node,
    x: Array,
    w: Array,
    r: Array,
    bias: Any = None,
    lengths: Any = None,
    initial: Any = None,
    initial_cell: Any = None,
    peepholes: Any = None,
) -> tuple[Array, ...]:
    """Gates for input, output and forgetting, and a cell."""
    layers = _layers(node, w, r, bias, ("Sigmoid", "Tanh", "Tanh"))
    return _lstm(node, x, layers, lengths, [initial, initial_cell], peepholes)


def quantised_lstm(
    node: Node,
    x: Array,
    w: tuple[Array, Array],
    r: tuple[Array, Array],
    bias: Any,
    lengths: Any,
    initial: Any,
    initial_cell: Any,
    peepholes: Any,
) -> tuple[Array, ...]:
    """`LSTM` of weights that are integers (directions, in, gates * hidden) with scales for their columns; inputs, and
    the hidden states of each step, are quantised to 8 bits by their largest and smallest element."""
    numbers = [weights.mT for weights, _ in (w, r)]
    layers = [
        replace(layer, w_scale=w[1][d], r_scale=r[1][d])
        for d, layer in enumerate(_layers(node, numbers[0], numbers[1], bias, ("Sigmoid", "Tanh", "Tanh"), x))
    ]
    return _lstm(node, x, layers, lengths, [initial, initial_cell], peepholes)


def _lstm(
    node: Node, x: Array, layers: list[_Layer], lengths: Any, initial: list[Array | None], peepholes: Any
) -> tuple[Array, ...]:
    if node.get("input_forget", 0):
        raise node.unsupported("`LSTM` with coupled input and forget gates")
    hidden = layers[0].r.shape[0]
    peeps = {id(layer): None if peepholes is None else peepholes[d] for d, layer in enumerate(layers)}

    def step(layer: _Layer, product: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        h, c = state
        of_gates, of_cell, of_hidden = layer.activations
        i, o, f, g = _gates(product + _product(h, layer.r, layer.r_scale) + layer.r_bias, 4)
        peep = peeps[id(layer)]
        if peep is not None:
            i, f = i + peep[:hidden] * c, f + peep[2 * hidden :] * c
        cell = of_gates(layer.clipped(f)) * c + of_gates(layer.clipped(i)) * of_cell(layer.clipped(g))
        if peep is not None:
            o = o + peep[hidden : 2 * hidden] * cell
        return of_gates(layer.clipped(o)) * of_hidden(cell), cell

    return _run(node, x, layers, lengths, initial, step)


def _product(x: Array, weights: Array, scale: Array | None) -> Array:
    """The matmul with the weights. If the weights are integers with a `scale`, `x` is quantised to 8 bits by its
    largest and smallest element."""
    if scale is None:
        return tw.matmul(x, weights)
    low, high = tw.minimum(tw.min(x), 0.0), tw.maximum(tw.max(x), 0.0)
    step = tw.where(tw.equal(high, low), 1.0, (high - low) / 255.0)
    zero = tw.round(tw.clip(-low / step, 0.0, 255.0))
    whole = tw.clip(tw.round(x / step) + zero, 0.0, 255.0) - zero
    return tw.astype(tw.matmul(tw.astype(whole, tw.i32), weights), x.dtype) * (step * scale)
