"""Which dimensions of a loop group become one, which stay apart, and that the results are the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import Make, Tensor, random_inputs, remarks, run, run_through
from tests.programs import Program, layer_norm
from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.frontend.trace import Value
from tilewright.passes.array.array_collapse_dims import ArrayCollapseDimsPass
from tilewright.passes.array.array_fuse_loops import ArrayFuseLoopsPass
from tilewright.passes.kernels.lower_loop_group import group_space


def spaces(make: Make) -> list[tuple[int, ...]]:
    unit = run_through(make, ArrayCollapseDimsPass)
    return [group_space(op)[0] for op in unit.main.walk() if isinstance(op, array.FusedOp)]


def elementwise(p: Program) -> list[Value]:
    return [p.map("exp", p.map("add", p.array(8, 3, 5), p.array(8, 3, 5)))]


def with_bias(p: Program) -> list[Value]:
    return [p.map("add", p.array(8, 3, 5), p.broadcast(p.array(5), (8, 3, 5), (2,)))]


def with_rows(p: Program) -> list[Value]:
    return [p.map("add", p.array(8, 3, 5), p.broadcast(p.array(8), (8, 3, 5), (0,)))]


def with_middle(p: Program) -> list[Value]:
    return [p.map("add", p.array(8, 3, 5, 2), p.broadcast(p.array(3, 5), (8, 3, 5, 2), (1, 2)))]


def with_stretched(p: Program) -> list[Value]:
    """A dimension of size 1 is repeated."""
    return [p.map("add", p.array(8, 3, 5), p.broadcast(p.array(8, 1, 5), (8, 3, 5), (0, 1, 2)))]


def splat(p: Program) -> list[Value]:
    return [p.map("multiply", p.array(4, 6), p.splat(2.0, (4, 6)))]


def ones(p: Program) -> list[Value]:
    return [p.map("exp", p.array(1, 8, 1, 3))]


def swapped(p: Program) -> list[Value]:
    """The transpose moves the last two dimensions together."""
    turned = p.add("transpose", [p.array(3, 4, 8)], permutation=(1, 2, 0))[0]
    return [p.map("add", turned, p.array(4, 8, 3))]


def numbered(p: Program) -> list[Value]:
    numbers = p.add("iota", shape=(8, 3, 5), axis=0, dtype="f32")[0]
    return [p.map("add", p.array(8, 3, 5), numbers)]


def part(p: Program) -> list[Value]:
    return [p.map("exp", p.add("slice", [p.array(8, 6)], starts=(0, 1), limits=(8, 4), strides=(1, 1))[0])]


def sliced(shape: tuple[int, ...], starts: tuple[int, ...], limits: tuple[int, ...], strides: tuple[int, ...]) -> Make:
    return lambda p: [
        p.map("negative", p.add("slice", [p.array(*shape)], starts=starts, limits=limits, strides=strides)[0])
    ]


def gathered(shape: tuple[int, ...], axis: int, indices: tuple[int, ...]) -> Make:
    return lambda p: [
        p.map("negative", p.add("gather", [p.array(*shape), p.array(*indices, dtype=dtypes.i32)], axes=(axis,))[0])
    ]


def joined(*shapes: tuple[int, ...], axis: int) -> Make:
    return lambda p: [p.map("negative", p.add("concat", [p.array(*each) for each in shapes], axis=axis)[0])]


def padded(shape: tuple[int, ...], low: tuple[int, ...], interior: tuple[int, ...] | None = None) -> Make:
    between = interior or (0,) * len(shape)
    return lambda p: [
        p.map("exp", p.add("pad", [p.array(*shape), p.scalar(2.0)], low=low, high=low, interior=between)[0])
    ]


def reversed_along(shape: tuple[int, ...], *axes: int) -> Make:
    return lambda p: [p.map("negative", p.add("reverse", [p.array(*shape)], axes=axes)[0])]


def softmax(p: Program) -> list[Value]:
    return [p.softmax(p.array(2, 3, 4, 7))]


def both(p: Program) -> list[Value]:
    """The sums, kept as dimensions of size 1, and what is left when they are taken away."""
    x = p.array(4, 6, 5)
    sums = p.add("reshape", [p.reduce(x, "add", (1, 2))], shape=(4, 1, 1))[0]
    return [sums, p.map("subtract", x, p.broadcast(sums, (4, 6, 5), (0, 1, 2)))]


def sums(shape: tuple[int, ...], axes: tuple[int, ...]) -> Make:
    return lambda p: [p.reduce(p.array(*shape), "add", axes)]


CASES: list[tuple[Make, list[tuple[int, ...]]]] = [
    (elementwise, [(120,)]),
    (with_bias, [(24, 5)]),
    (with_rows, [(8, 15)]),
    (with_middle, [(8, 15, 2)]),
    (with_stretched, [(8, 3, 5)]),
    (splat, [(24,)]),
    (ones, [(24,)]),
    (swapped, [(32, 3)]),
    (numbered, [(8, 15)]),
    (part, [(8, 3)]),
    (sliced((4, 5, 6), (1, 0, 1), (3, 5, 6), (1, 1, 2)), [(30,)]),  # every other one of 10 rows
    (sliced((4, 5, 6), (1, 0, 0), (4, 5, 6), (2, 1, 1)), [(2, 30)]),
    (sliced((4, 5, 6), (0, 1, 0), (4, 3, 6), (1, 1, 1)), [(4, 12)]),
    (sliced((4, 5, 6), (0, 0, 0), (4, 5, 5), (1, 1, 2)), [(60,)]),
    (sliced((4, 5, 6), (0, 0, 0), (4, 5, 4), (1, 1, 3)), [(40,)]),
    (sliced((4, 5, 7), (0, 0, 0), (4, 5, 7), (1, 1, 2)), [(20, 4)]),  # rows end in the last element taken
    (sliced((4, 5, 6), (0, 2, 0), (4, 3, 6), (1, 1, 1)), [(4, 1, 6)]),
    (gathered((3, 4, 5, 6), 1, (7,)), [(7, 3, 30)]),
    (gathered((3, 4, 5, 6), 0, (2, 3)), [(6, 120)]),
    (gathered((3, 4, 5, 6), 3, (2, 3)), [(6, 60)]),
    (joined((2, 3, 4, 5), (2, 6, 4, 5), axis=1), [(2, 180)]),
    (joined((2, 3, 4, 5), (2, 3, 4, 2), axis=3), [(24, 7)]),
    (joined((1, 3, 4), (1, 3, 4), (2, 3, 4), axis=0), [(48,)]),  # rows of an axis, which become elements
    (joined((2, 1, 1), (2, 1, 1), axis=1), [(2, 2, 1)]),  # single elements, which stay a dimension
    (joined((2, 3, 8, 9), (2, 6, 8, 9), axis=1), [(2, 9, 72)]),  # long rows
    (joined((1, 8, 9), (1, 8, 9), axis=0), [(144,)]),
    (padded((3, 4, 8, 9), (0, 1, 0, 0)), [(3, 6, 72)]),
    (padded((3, 4, 5, 6), (0, 1, 0, 0)), [(3, 180)]),
    (padded((3, 4, 5, 6), (0, 0, 0, 1)), [(60, 8)]),
    (padded((3, 4, 5), (0, 0, 0), (0, 1, 0)), [(3, 7, 5)]),
    (reversed_along((3, 4, 5, 6), 1), [(3, 4, 30)]),
    (reversed_along((3, 4, 5, 6), 3), [(60, 6)]),
    (softmax, [(24, 7)]),
    (layer_norm, [(24, 20)]),
    (both, [(4, 30)]),
    (sums((4, 5, 6), (2,)), [(20, 6)]),
    (sums((4, 5, 6), (0, 1)), [(20, 6)]),
    (sums((4, 5, 6), (1,)), [(4, 5, 6)]),
    (sums((4, 5, 6), (0, 2)), [(4, 5, 6)]),
    (sums((4, 5, 6), (0, 1, 2)), [(120,)]),
    (sums((4, 1, 5, 1), (0, 3)), [(4, 5)]),
    (sums((2, 3, 4, 5, 6), (1, 2)), [(2, 12, 30)]),
]


@pytest.mark.parametrize(("make", "expected"), CASES)
def test_dimensions_that_are_treated_alike_become_one(make: Make, expected: list[tuple[int, ...]]) -> None:
    assert spaces(make) == expected


def after(make: Make, last: type) -> tuple[list[Tensor], list[tuple[int, ...]]]:
    unit = run_through(make, last)
    results = run(unit, random_inputs(unit))
    return results, [array_type(v).shape for v in unit.main.body.block.last_op.operands]  # type: ignore[union-attr]


@pytest.mark.parametrize("make", [make for make, _ in CASES])
def test_results_keep_their_shapes_and_values(make: Make) -> None:
    (before, shapes), (found, collapsed) = after(make, ArrayFuseLoopsPass), after(make, ArrayCollapseDimsPass)
    assert shapes == collapsed
    for x, y in zip(found, before, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_the_remark_says_what_became_of_the_shape() -> None:
    unit = run_through(with_bias, ArrayCollapseDimsPass)
    assert remarks(unit, ArrayCollapseDimsPass.name) == [("8x3x5 as 24x5", "dimensions with the same accesses")]


def check_random(make: Make, rng: np.random.Generator, tolerance: float) -> None:
    """A program that is drawn computes the same before and after its dims are merged."""
    state = rng.bit_generator.state
    before, shapes = after(make, ArrayFuseLoopsPass)
    rng.bit_generator.state = state
    found, collapsed = after(make, ArrayCollapseDimsPass)
    assert shapes == collapsed
    for x, y in zip(found, before, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(40))
def test_random_groups_mean_the_same(seed: int) -> None:
    """Random broadcasts, transposes and reductions of one shape, against each operation by itself."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4], size=int(rng.integers(2, 6))))

    def program(p: Program) -> list[Value]:
        x = p.array(*shape)
        for _ in range(3):
            axes = tuple(d for d in range(len(shape)) if rng.random() < 0.6)
            sizes = tuple(1 if rng.random() < 0.3 else shape[d] for d in axes)
            x = p.map("add", x, p.broadcast(p.array(*sizes), shape, axes))
        order = tuple(int(d) for d in rng.permutation(len(shape)))
        turned = p.add("transpose", [p.array(*(shape[d] for d in np.argsort(order)))], permutation=order)[0]
        x = p.map("multiply", x, turned)
        if shape == (1,) * len(shape) or rng.random() < 0.4:
            return [x]
        axes = tuple(d for d in range(len(shape)) if rng.random() < 0.5) or (0,)
        kept = tuple(d for d in range(len(shape)) if d not in axes)
        total = p.reduce(x, "add", axes)
        return [total, p.map("subtract", x, p.broadcast(total, shape, kept))]

    check_random(program, rng, 1e-5)


def _moved(p: Program, rng: np.random.Generator, x: Value) -> Value:
    """A random move of data, along one or all dimensions."""
    shape = x.shape
    axis = int(rng.integers(len(shape)))
    match int(rng.integers(4)):
        case 0:
            sizes = [shape, *(tuple(int(rng.integers(1, 4)) if d == axis else n for d, n in enumerate(shape)),) * 2]
            return p.add("concat", [x, *(p.array(*each) for each in sizes[1:])], axis=axis)[0]
        case 1:
            low, high, between = (tuple(int(n) for n in rng.choice([0, 0, 1], len(shape))) for _ in range(3))
            return p.add("pad", [x, p.scalar(0.5)], low=low, high=high, interior=between)[0]
        case 2:
            axes = tuple(d for d in range(len(shape)) if rng.random() < 0.3)
            return p.add("reverse", [x], axes=axes)[0]
        case _:
            starts = tuple(int(rng.integers(0, n)) if rng.random() < 0.3 else 0 for n in shape)
            return p.add("slice", [x], starts=starts, limits=shape, strides=(1,) * len(shape))[0]


@pytest.mark.parametrize("seed", range(60))
def test_random_moves_of_data_mean_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def program(p: Program) -> list[Value]:
        x = p.array(*(int(n) for n in rng.choice([1, 2, 3, 4], size=int(rng.integers(2, 5)))))
        for _ in range(int(rng.integers(1, 4))):
            x = p.map("negative", _moved(p, rng, x))
        return [x]

    check_random(program, rng, 0.0)


def half(p: Program, *shape: int) -> Value:
    return p.array(*shape, dtype=dtypes.f16)


def rows_of_contractions(make: Make) -> list[tuple[int, ...]]:
    unit = run_through(make, ArrayCollapseDimsPass)
    return [array_type(op.operands[0]).shape for op in unit.main.walk() if isinstance(op, array.ContractOp)]


def weighted(*shape: int, columns: int = 40) -> Make:
    """Rows times weights, a bias and an array of the result's shape added."""

    def program(p: Program) -> list[Value]:
        y = p.dot(half(p, *shape), half(p, shape[-1], columns), 0, len(shape) - 1, 0)
        y = p.map("add", y, p.broadcast(half(p, columns), y.shape, (len(shape) - 1,)))
        return [p.map("add", y, p.map("exp", half(p, *y.shape)))]

    return program


def weighted_heads(p: Program) -> list[Value]:
    """The result is stored with its rows between its columns."""
    y = p.add("reshape", [p.dot(half(p, 6, 20, 24), half(p, 24, 40), 0, 2, 0)], shape=(6, 20, 4, 10))[0]
    return [p.add("transpose", [y], permutation=(0, 2, 1, 3))[0]]


def weighted_rows(p: Program) -> list[Value]:
    """Epilogue operands have one element for each outer row, or one row for each inner one."""
    y = p.dot(half(p, 6, 20, 24), half(p, 24, 40), 0, 2, 0)
    y = p.map("multiply", y, p.broadcast(half(p, 6), y.shape, (0,)))
    return [p.map("add", y, p.broadcast(half(p, 20, 40), y.shape, (1, 2)))]


def batch_of_weights(p: Program) -> list[Value]:
    return [p.map("exp", p.dot(half(p, 3, 5, 20, 24), half(p, 3, 24, 40), 1, 3, 1))]


def square(p: Program) -> list[Value]:
    """Operand and result have one shape."""
    return [p.map("exp", p.dot(half(p, 6, 20, 24), half(p, 24, 24), 0, 2, 0))]


def two_terms(p: Program) -> list[Value]:
    """Both contracted dims are terms, and dims of one element are none."""
    x, w = half(p, 6, 1, 20, 8, 3), half(p, 8, 3, 40)
    contract = {"left_batch": (), "right_batch": (), "left_contract": (3, 4), "right_contract": (0, 1), "dtype": "f16"}
    return list(p.add("contract", [x, w], **contract))


ROWS = [
    (weighted(6, 20, 24), [(120, 24)]),
    (weighted(2, 3, 20, 24), [(120, 24)]),
    (weighted(1, 80, 24), [(1, 80, 24)]),
    (weighted(3, 300, 24), [(3, 300, 24)]),
    (weighted_rows, [(6, 20, 24)]),
    (lambda p: [p.dot(p.array(6, 20, 24), p.array(24, 40), 0, 2, 0)], [(6, 20, 24)]),
    (batch_of_weights, [(3, 100, 24)]),
    (square, [(120, 24)]),
    (two_terms, [(120, 8, 3)]),
]


@pytest.mark.parametrize(("make", "expected"), ROWS)
def test_rows_of_contractions_become_one_dim(make: Make, expected: list[tuple[int, ...]]) -> None:
    assert rows_of_contractions(make) == expected


@pytest.mark.parametrize(
    "make", [*(make for make, expected in ROWS if len(expected[0]) < 3), weighted_heads, batch_of_weights]
)
def test_contractions_of_merged_rows_give_the_same(make: Make) -> None:
    (before, shapes), (found, collapsed) = after(make, ArrayFuseLoopsPass), after(make, ArrayCollapseDimsPass)
    assert shapes == collapsed
    for x, y in zip(found, before, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-2, atol=1e-2)
