"""A program of equal layers becomes the same whether it is lowered by a few of them or as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.passes.pass_support import parse, unit_of
from tilewright.dialects import array
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Graph
from tilewright.passes import few_layers
from tilewright.passes.array.array_fuse_loops import ArrayFuseLoopsPass
from tilewright.passes.base import Unit
from tilewright.passes.few_layers import LEAST, lower_few_layers
from tilewright.pipelines import run_passes
from tilewright.targets.base import target_named

LAYERS, SIZE = LEAST + 2, 8
Arrays = Sequence[Any]
_GENERATOR = np.random.default_rng(0)


def arrays(*shape: int, count: int = LAYERS) -> list[Any]:
    return [_GENERATOR.standard_normal(shape, np.float32) / 2 for _ in range(count)]


X, W, V, B = (arrays(*shape) for shape in ((4, SIZE), (SIZE, SIZE), (SIZE, SIZE), (SIZE,)))
WIDE, NARROW = arrays(SIZE, 3 * SIZE), arrays(3 * SIZE, SIZE)


def norm(x: Any) -> Any:
    shifted = x - tw.mean(x, axis=-1, keepdims=True)
    return shifted / tw.sqrt(tw.mean(shifted * shifted, axis=-1, keepdims=True) + 1e-5)


def plain(x: Any, ws: Arrays, bs: Arrays) -> Any:
    for w, b in zip(ws, bs, strict=True):
        x = tw.maximum(norm(x @ w) + b, 0)
    return x


def captured(x: Any) -> Any:
    return plain(x, W, B)


def computed_from_captured(x: Any) -> Any:
    """A transposed weight and a scaled bias, both known at compile time."""
    for w, b in zip(W, B, strict=True):
        x = tw.tanh(x @ tw.asarray(w).T + (1 + tw.asarray(b)))
    return x


def residual(x: Any, wide: Arrays, narrow: Arrays) -> Any:
    for up, down in zip(wide, narrow, strict=True):
        x = x + tw.maximum(norm(x) @ up, 0) @ down
    return x


def attention(x: Any, wide: Arrays, narrow: Arrays, ws: Arrays, mask: Any) -> Any:
    for up, down, w in zip(wide, narrow, ws, strict=True):
        q, k, v = (part.reshape(4, 2, SIZE // 2).transpose(1, 0, 2) for part in tw.split(norm(x) @ up, 3, axis=1))
        mixed = tw.nn.softmax(q @ k.transpose(0, 2, 1) / 2 + mask) @ v
        x = x + mixed.transpose(1, 0, 2).reshape(4, SIZE) @ w
        x = x + tw.nn.gelu(norm(x) @ up) @ down
    return x


def shared(x: Any, w: Any, b: Any) -> Any:
    return plain(x, [w] * LAYERS, [b] * LAYERS)


def alternating(x: Any, w: Any, v: Any) -> Any:
    for n in range(2 * LAYERS):
        x = tw.tanh(x @ (v if n % 2 else w))
    return x


def other_ends(x: Any, ws: Arrays, bs: Arrays, up: Any, v: Any) -> Any:
    x = plain(tw.exp(norm(x @ up))[:, :SIZE], ws, bs)
    return tw.sum(x @ up, axis=1), x @ v


def kept_input(x: Any, ws: Arrays, bs: Arrays) -> Any:
    first = x
    for w, b in zip(ws, bs, strict=True):
        x = tw.tanh(x @ w + b) + first
    return x * first


def tied(x: Any, ws: Arrays) -> Any:
    """Each weight is read in two layers, one after the other."""
    for before, after in pairwise(ws):
        x = tw.tanh(x @ after) @ before
    return tw.tanh(x @ ws[0]) @ ws[-1]


def two_runs(x: Any, ws: Arrays, bs: Arrays, vs: Arrays) -> Any:
    x = plain(x, ws, bs)
    for v in vs:
        x = tw.tanh(x @ v)
    return x


def long_with_skips(x: Any, ws: Arrays, vs: Arrays) -> Any:
    """Results of layers near both ends are used at the end."""
    kept = []
    for n, w in enumerate((*ws, *vs)):
        x = tw.tanh(x @ w)
        if n in (3, 2 * LAYERS - 5):
            kept.append(x)
    return x, *kept


def steps(x: Any, xs: Arrays, w: Any, v: Any) -> Any:
    for each in xs:
        x = tw.tanh(each @ w + x @ v)
    return x


def narrow_floats(x: Any, ws: Arrays) -> Any:
    for w in ws:
        x = tw.tanh(x.astype(tw.bf16) @ w.astype(tw.bf16)).astype(tw.f32)
    return x


REPEATED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "plain": (plain, (X[0], W, B)),
    "captured": (captured, (X[0],)),
    "computed from captured": (computed_from_captured, (X[0],)),
    "residual": (residual, (X[0], WIDE, NARROW)),
    "attention": (attention, (X[0], WIDE, NARROW, W, arrays(4, 4)[0])),
    "shared": (shared, (X[0], W[0], B[0])),
    "alternating": (alternating, (X[0], W[0], V[0])),
    "other ends": (other_ends, (X[0], W, B, WIDE[0], V[0])),
    "kept input": (kept_input, (X[0], W, B)),
    "tied": (tied, (X[0], arrays(SIZE, SIZE, count=2 * LEAST + 4))),
    "two runs": (two_runs, (X[0], W, B, V)),
    "long with skips": (long_with_skips, (X[0], W, V)),
    "steps": (steps, (X[0], X, W[0], V[0])),
    "narrow floats": (narrow_floats, (X[0], W)),
}


def every_state(x: Any, ws: Arrays) -> Any:
    states = []
    for w in ws:
        x = tw.tanh(x @ w)
        states.append(x)
    return tw.stack(states)


def sum_of_states(x: Any, ws: Arrays) -> Any:
    total = x
    for w in ws:
        x = tw.tanh(x @ w)
        total = total + tw.sum(x)
    return total


def elementwise(x: Any, bs: Arrays) -> Any:
    """Several layers become one kernel."""
    for b in bs:
        x = tw.maximum(x * b, 0) + 1
    return x


def gradients(x: Any, ws: Arrays) -> Any:
    states = []
    for w in ws:
        states.append(x)
        x = tw.tanh(x @ w)
    gradient, found = x, []
    for w, state in zip(reversed(ws), reversed(states), strict=True):
        y = tw.tanh(state @ w)
        gradient = gradient * (1 - y * y)
        found.append(state.T @ gradient)
        gradient = gradient @ w.T
    return gradient, *found


def gradient_of_shared(x: Any, w: Any) -> Any:
    """Outer products that are joined to one contraction."""
    states = []
    for _ in range(LAYERS):
        states.append(x)
        x = tw.tanh(x @ w)
    gradient, total = x, 0
    for state in reversed(states):
        gradient = gradient * (1 - state * state)
        total = total + state.T @ gradient
        gradient = gradient @ w.T
    return gradient, total


def reversed_weights(x: Any, ws: Arrays) -> Any:
    for w in (*ws, *reversed(ws)):
        x = tw.tanh(x @ w)
    return x


def stacked_weights(x: Any, ws: Any) -> Any:
    for n in range(LAYERS):
        x = tw.tanh(x @ ws[n])
    return x


def equal_weights_in_two_layers(x: Any) -> Any:
    for n, w in enumerate(W):
        x = tw.tanh(x @ tw.asarray(W[2] if n == LAYERS - 3 else w))
    return x


NOT_REPEATED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "every state": (every_state, (X[0], W)),
    "sum of states": (sum_of_states, (X[0], W)),
    "elementwise": (elementwise, (X[0], B)),
    "gradients": (gradients, (X[0], W)),
    "gradient of shared": (gradient_of_shared, (X[0], W[0])),
    "reversed weights": (reversed_weights, (X[0], W)),
    "stacked weights": (stacked_weights, (X[0], np.stack(W))),
    "equal weights in two layers": (equal_weights_in_two_layers, (X[0],)),
}
PROGRAMS = REPEATED | NOT_REPEATED


def graph_of(name: str) -> Graph:
    function, arguments = PROGRAMS[name]
    return tw.jit(function).lower(*arguments).graph


def lowered(graph: Graph, target: str, *, by_few: bool) -> tuple[Unit, dict[str, str], bool]:
    """A program through all phases; whether it was lowered by few of its layers."""
    manifest, machine = target_named(target)
    unit = Unit(build_module(graph), dict(graph.constants), manifest.machine_named(machine), 2)
    outcomes: list[bool] = []

    def attempt(part: Unit, lower: Callable[[Unit], None]) -> bool:
        outcomes.append(by_few and lower_few_layers(part, lower))
        return outcomes[-1]

    with patch.object(few_layers, "lower_few_layers", attempt):
        stages = run_passes(unit)
    return unit, stages, outcomes[-1]


def check_same(graph: Graph, target: str) -> bool:
    """A program is the same however it is lowered; returns whether few layers were enough."""
    few, texts, was_possible = lowered(graph, target, by_few=True)
    whole, expected, _ = lowered(graph, target, by_few=False)
    assert texts == expected
    assert list(few.schedules.items()) == list(whole.schedules.items())
    # Of several reasons why groups do not fuse, any may be stated.
    decisions = [[(each.pass_name, each.subject, each.decision) for each in unit.remarks] for unit in (few, whole)]
    assert Counter(decisions[0]) == Counter(decisions[1])
    assert list(dict.fromkeys(decisions[0])) == list(dict.fromkeys(decisions[1]))
    return was_possible


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cuda:sm_90a", "grid:wormhole"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_is_the_same_however_it_is_lowered(name: str, target: str) -> None:
    assert check_same(graph_of(name), target) == (name in REPEATED)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_computes_what_its_definition_says(name: str) -> None:
    function, arguments = PROGRAMS[name]
    found, expected = (tw.jit(function, target=target)(*arguments) for target in ("cpu", "interp"))
    for one, other in zip(as_tuple(found), as_tuple(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_passes_see_few_layers() -> None:
    """The work of passes does not grow with the layers."""

    def operations(layers: int) -> int:
        graph = tw.jit(plain).lower(X[0], arrays(SIZE, SIZE, count=layers), arrays(SIZE, count=layers)).graph
        seen: list[int] = []
        apply = ArrayFuseLoopsPass.apply

        def counted(self: ArrayFuseLoopsPass, unit: Unit) -> None:
            seen.append(len(list(unit.main.body.block.ops)))
            apply(self, unit)

        with patch.object(ArrayFuseLoopsPass, "apply", counted):
            unit, _, _ = lowered(graph, "cpu:x86-64-v3", by_few=True)
        assert sum(op.name == "array.call" for op in unit.main.body.block.ops) >= layers
        return sum(seen)

    assert operations(200) == operations(50)


def test_a_wrong_layer_count_is_found() -> None:
    """If lowering with one more layer does not add the calls of one layer, the program is lowered as a whole."""
    unit = unit_of(build_module(graph_of("plain")), {})
    before = str(unit.module)
    parts: list[Unit] = []

    def lower(part: Unit) -> None:
        parts.append(part)
        if len(parts) == 2:
            last = [op for op in part.main.body.block.ops if isinstance(op, array.MapOp)][-1]
            last.fn = "minimum"

    assert not lower_few_layers(unit, lower)
    assert len(parts) == 2
    assert str(unit.module) == before
    assert lower_few_layers(unit, parts.append)
    assert str(unit.module) == before


def test_short_programs_are_left_alone() -> None:
    unit = unit_of(parse("func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { func.return %x : tensor<8xf32> }"), {})
    assert not lower_few_layers(unit, lambda _: pytest.fail("nothing repeats"))


# ---- random programs ------------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "matmul": lambda x, w, first: x @ w,
    "transposed matmul": lambda x, w, first: x @ w.T,
    "norm": lambda x, w, first: norm(x),
    "bias": lambda x, w, first: x + w[0],
    "gate": lambda x, w, first: x * tw.sum(w, axis=0),
    "tanh": lambda x, w, first: tw.tanh(x),
    "skip": lambda x, w, first: x + first,
    "concat": lambda x, w, first: tw.concat([x[:, 1:], x[:, :1]], axis=1),
    "reshape": lambda x, w, first: tw.tanh(x.reshape(SIZE, 4)).reshape(4, SIZE),
    "double": lambda x, w, first: (x @ w) * (x @ w.T),
    "gather": lambda x, w, first: tw.take(x, np.arange(3, -1, -1), axis=0),
    "reduce all": lambda x, w, first: x - tw.max(x),
}


def random_layers(
    layer: Sequence[str], first: Sequence[str], last: Sequence[str], kinds: Sequence[str], used: int | None
) -> Graph:
    """A program of layers of some steps, between others; the weights of each step are of a kind."""
    common = arrays(SIZE, SIZE, count=1)[0]
    own = [arrays(SIZE, SIZE) for _ in layer]

    def run(x: Any, common: Any, own: Any) -> Any:
        start, kept = x, []
        for step in first:
            x = STEPS[step](x, common, start)
        for n in range(LAYERS):
            for k, step in enumerate(layer):
                kind = kinds[k % len(kinds)]
                x = STEPS[step](x, {"own": own[k], "captured": KEPT[k % 2]}.get(kind, [common] * LAYERS)[n], start)
            if n == used:
                kept.append(x)
        for step in last:
            x = STEPS[step](x, common, start)
        return x, *kept

    return tw.jit(run).lower(X[0], common, own).graph


KEPT = (W, V)
steps_of = partial(st.lists, st.sampled_from(sorted(STEPS)))


@settings(max_examples=15, deadline=None)
@given(
    layer=steps_of(min_size=1, max_size=5),
    first=steps_of(max_size=2),
    last=steps_of(max_size=2),
    kinds=st.lists(st.sampled_from(["own", "captured", "common"]), min_size=1, max_size=3),
    used=st.none() | st.integers(0, LAYERS - 1),
)
def test_random_layers(
    layer: Sequence[str], first: Sequence[str], last: Sequence[str], kinds: Sequence[str], used: int | None
) -> None:
    check_same(random_layers(layer, first, last, kinds, used), "cpu:x86-64-v3")
