"""Which reshapes `array-move-reshapes` sinks and hoists, which stay, and that programs mean the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import Make, check_unchanged, random_inputs, run, run_through
from tests.programs import Program
from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import yielded
from tilewright.frontend.trace import Value
from tilewright.passes.array.array_bubble_up_slices import ArrayBubbleUpSlicesPass
from tilewright.passes.array.array_fuse_loops import ArrayFuseLoopsPass
from tilewright.passes.array.array_move_reshapes import ArrayMoveReshapesPass, runs
from tilewright.passes.array.array_narrow_contractions import ArrayNarrowContractionsPass


def reshaped(p: Program, x: Value, *shape: int) -> Value:
    return p.add("reshape", [x], shape=shape)[0]


def kernels(make: Make) -> list[str]:
    """The operations of each fused group, in program order."""
    unit = run_through(make, ArrayFuseLoopsPass)
    ops = unit.main.body.block.ops
    return [op.why for op in ops if isinstance(op, array.FusedOp)]


def product(p: Program) -> Value:
    return p.dot(p.array(4, 5), p.array(5, 6), 0, 1, 0)


def epilogue(p: Program) -> list[Value]:
    return [p.map("exp", reshaped(p, product(p), 2, 2, 6))]


def with_bias(p: Program) -> list[Value]:
    rows = reshaped(p, product(p), 2, 2, 6)
    return [p.map("add", rows, p.broadcast(p.array(6), (2, 2, 6), (2,)))]


def with_split_bias(p: Program) -> list[Value]:
    """The dims of the bias are one dim of the matmul."""
    rows = reshaped(p, product(p), 4, 2, 3)
    return [p.map("add", rows, p.broadcast(p.array(2, 3), (4, 2, 3), (1, 2)))]


def with_part_of_bias(p: Program) -> list[Value]:
    """A bias of 3 of the 6 columns, which would have to be repeated."""
    rows = reshaped(p, product(p), 4, 2, 3)
    return [p.map("add", rows, p.broadcast(p.array(3), (4, 2, 3), (2,)))]


def with_array(p: Program) -> list[Value]:
    rows = p.map("add", reshaped(p, product(p), 2, 2, 6), p.array(2, 2, 6))
    return [p.map("multiply", rows, p.splat(2.0, (2, 2, 6)))]


def diamond(p: Program) -> list[Value]:
    rows = reshaped(p, product(p), 2, 2, 6)
    return [p.map("multiply", rows, p.map("tanh", rows))]


def normalised(p: Program) -> list[Value]:
    """A reduction reads the reshape too."""
    return [p.softmax(reshaped(p, product(p), 2, 2, 6))]


def hoisted(p: Program) -> list[Value]:
    x = p.map("multiply", p.array(2, 3, 4), p.broadcast(p.array(4), (2, 3, 4), (2,)))
    return [p.reduce(reshaped(p, x, 6, 4), "add", (1,))]


def hoisted_not(p: Program) -> list[Value]:
    """The bias has elements along one of two dims that become one."""
    x = p.map("multiply", p.array(2, 3, 4), p.broadcast(p.array(3), (2, 3, 4), (1,)))
    return [p.reduce(reshaped(p, x, 6, 4), "add", (1,))]


def used_before(p: Program) -> list[Value]:
    x = p.map("exp", p.array(2, 3, 4))
    return [x, p.reduce(reshaped(p, x, 6, 4), "add", (1,))]


def elementwise(p: Program) -> list[Value]:
    return [p.map("exp", reshaped(p, p.map("negative", p.array(2, 3, 4)), 6, 4))]


def copied(p: Program) -> list[Value]:
    turned = p.add("transpose", [p.array(2, 3, 4)], permutation=(1, 0, 2))[0]
    return [p.map("exp", reshaped(p, turned, 6, 4))]


CASES: list[tuple[Make, list[str]]] = [
    (epilogue, ["matmul with epilogue exp"]),
    (with_bias, ["matmul with epilogue add"]),
    (with_split_bias, ["matmul with epilogue add"]),
    (with_part_of_bias, ["no epilogue", "add"]),
    (with_array, ["matmul with epilogue add multiply"]),
    (diamond, ["matmul with epilogue tanh multiply"]),
    (normalised, ["no epilogue", "maximum subtract exp add divide"]),
    (hoisted, ["multiply add"]),
    (hoisted_not, ["multiply", "add"]),
    (used_before, ["exp", "add"]),
    (elementwise, ["negative exp"]),
    (copied, ["exp"]),
]


@pytest.mark.parametrize(("make", "expected"), CASES)
def test_kernels_of_programs_with_reshapes(make: Make, expected: list[str]) -> None:
    assert kernels(make) == expected


@pytest.mark.parametrize("make", [make for make, _ in CASES])
def test_programs_mean_the_same(make: Make) -> None:
    before, after = (run_through(make, last) for last in (ArrayNarrowContractionsPass, ArrayMoveReshapesPass))
    inputs = random_inputs(before)
    for x, y in zip(run(before, inputs), run(after, inputs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    shapes = [[array_type(value).shape for value in yielded(unit.main.body.block)] for unit in (before, after)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("seed", range(80))
def test_random_programs_mean_the_same(seed: int) -> None:
    """Elementwise operations, broadcasts of all kinds and reshapes between random shapes of 24 elements."""
    rng = np.random.default_rng(seed)
    shapes = [(24,), (4, 6), (2, 2, 6), (4, 2, 3), (2, 12), (2, 2, 2, 3), (1, 24), (4, 1, 6), (2, 3, 4)]

    def operand(p: Program, shape: tuple[int, ...]) -> Value:
        axes = tuple(d for d in range(len(shape)) if rng.random() < 0.5)
        sizes = tuple(1 if rng.random() < 0.2 else shape[d] for d in axes)
        return p.broadcast(p.array(*sizes), shape, axes) if rng.random() < 0.7 else p.array(*shape)

    def program(p: Program) -> list[Value]:
        x = product(p) if rng.random() < 0.4 else p.array(4, 6)
        kept = [x]
        for _ in range(int(rng.integers(2, 6))):
            x = reshaped(p, x, *shapes[int(rng.integers(len(shapes)))])
            for _ in range(int(rng.integers(0, 3))):
                x = p.map("add", x, operand(p, x.shape)) if rng.random() < 0.6 else p.map("tanh", x)
            if rng.random() < 0.3:
                kept.append(x)
        return [x, p.reduce(x, "add", (len(x.shape) - 1,)), *kept[1:]]

    state = rng.bit_generator.state
    before = run_through(program, ArrayNarrowContractionsPass)
    rng.bit_generator.state = state
    after = run_through(program, ArrayFuseLoopsPass)
    inputs = random_inputs(before)
    for x, y in zip(run(before, inputs), run(after, inputs), strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("count", "groups"), [(10, 1), (600, 10)])
def test_long_chains_of_reshapes(count: int, groups: int) -> None:
    def make(p: Program) -> list[Value]:
        x = p.map("exp", p.array(4, 6))
        for n in range(count):
            x = p.map("negative", reshaped(p, x, *((2, 12), (4, 6), (24,))[n % 3]))
        return [p.map("log", x)]

    assert len(kernels(make)) == groups
    unit = run_through(make, ArrayFuseLoopsPass)
    inputs = random_inputs(unit)
    (y,) = run(unit, inputs)
    np.testing.assert_allclose(y.reshape(4, 6), inputs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((4, 6), (4, 6), [((0,), (0,)), ((1,), (1,))]),
        ((2, 2, 6), (4, 6), [((0, 1), (0,)), ((2,), (1,))]),
        ((4, 6), (4, 2, 3), [((0,), (0,)), ((1,), (1, 2))]),
        ((24,), (4, 6), [((0,), (0, 1))]),
        ((6, 4), (4, 6), [((0, 1), (0, 1))]),
    ],
)
def test_runs_of_dims_with_as_many_elements(
    first: tuple[int, ...], second: tuple[int, ...], expected: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    assert [(tuple(x), tuple(y)) for x, y in runs(first, second)] == expected


def test_parts_of_a_reshape_are_taken_of_what_it_reads() -> None:
    """A part of 2 of 3 x 8 elements, whose rows are parts of one dim before."""

    def make(p: Program) -> list[Value]:
        x = reshaped(p, p.map("divide", p.array(24), p.array(24)), 3, 8)
        turned = p.add("transpose", [x], permutation=(1, 0))[0]
        return list(p.add("gather", [turned, p.array(2, dtype=dtypes.i32)], axes=(0,)))

    unit = run_through(make, ArrayBubbleUpSlicesPass)
    (divide,) = (op for op in unit.main.body.block.ops if isinstance(op, array.MapOp))
    assert array_type(divide.results[0]).size == 6


def test_an_empty_array_stays() -> None:
    program = """
    func.func @main(%x: tensor<0x6xf32>) -> tensor<0x3xf32> {
      %e = array.map(%x) {fn = "exp"} : tensor<0x6xf32>
      %r = array.reshape(%e) : tensor<0x3xf32>
      %z = array.map(%r) {fn = "negative"} : tensor<0x3xf32>
      func.return %z : tensor<0x3xf32>
    }
    """
    check_unchanged(ArrayMoveReshapesPass(), program)


def test_transposes_that_move_dims_of_one_element_are_reshapes() -> None:
    def make(p: Program) -> list[Value]:
        x = p.map("exp", p.array(5, 1, 6))
        (turned,) = p.add("transpose", [x], permutation=(2, 0, 1))
        (moved,) = p.add("transpose", [x], permutation=(0, 2, 1))
        return [p.map("negative", moved), p.map("negative", turned)]

    unit = run_through(make, ArrayMoveReshapesPass)
    turns = [op for op in unit.main.body.block.ops if isinstance(op, array.TransposeOp)]
    assert [op.permutation for op in turns] == [(2, 0, 1)]
    before = run_through(make, ArrayNarrowContractionsPass)
    inputs = random_inputs(before)
    for x, y in zip(run(before, inputs), run(unit, inputs), strict=True):
        np.testing.assert_array_equal(x, y)
