"""What cores compute of integers and of bits is exact, in any order of events, with any depth of queues."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cores.comparing import bounds_of, check
from tests.cores.compiling import MACHINES, VARIANTS, Variant, compiled, simulated
from tests.programs import Program
from tilewright import dtypes
from tilewright.cost.cores.tiles import digits_of
from tilewright.errors import UnsupportedOnTargetError
from tilewright.targets.grid.runtime import Simulation

Tensor = np.ndarray[Any, Any]


def drawn(shape: tuple[int, ...], dtype: dtypes.DType, seed: int) -> Tensor:
    """Numbers of all bits, with the least and the largest among them."""
    info = np.iinfo(dtype.numpy)
    found = np.random.default_rng(seed).integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
    found.reshape(-1)[:1] = info.min
    found.reshape(-1)[-1:] = info.max
    return found


def product(a: Tensor, b: Tensor, dtype: dtypes.DType) -> Tensor:
    """The product modulo 2^32, row by row in 64 bits."""
    wide = np.einsum("...ik,...kj->...ij", a.astype(np.uint64), b.astype(np.uint64))
    return wide.astype(np.uint32).astype(dtype.numpy)


# ---- products -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dtypes.i32, dtypes.u32], ids=str)
@pytest.mark.parametrize("number", range(4))
def test_products_wrap_around(number: int, dtype: dtypes.DType) -> None:
    """Operands in either order, added up over a loop; each with two of the variants."""
    orders = ((1, 0), (0, 0), (1, 1), (0, 1))
    sizes = ((45, 70, 33), (3, 300, 64), (64, 33, 1), (1, 130, 70))
    left_axis, right_axis = orders[number]
    rows, depth, columns = sizes[number]
    a, b = drawn((rows, depth), dtype, number), drawn((depth, columns), dtype, number + 9)
    given = [a if left_axis else a.T.copy(), b.T.copy() if right_axis else b]
    program = Program("main")
    values = [program.array(*each.shape, dtype=dtype) for each in given]
    program.outputs = [program.dot(*values, 0, left_axis, right_axis)]
    for variant in VARIANTS[number::4]:
        (got,) = simulated(program, given, MACHINES[number % 2], variant)
        np.testing.assert_array_equal(got, product(a, b, dtype))


def test_products_of_batches_are_added_to() -> None:
    a, b, c = drawn((2, 3, 33, 40), dtypes.i32, 1), drawn((2, 3, 40, 50), dtypes.i32, 2), drawn((33, 50), dtypes.i32, 3)
    found = tw.jit(lambda a, b, c: a @ b + c, target="grid:blackhole")(a, b, c)
    np.testing.assert_array_equal(found, product(a, b, dtypes.i32) + c)


def test_products_of_places_have_32_bits() -> None:
    a, b = (np.random.default_rng(n).integers(-(2**31), 2**31, (20, 20)) for n in range(2))
    found = tw.jit(lambda a, b: a @ b, target="grid:wormhole")(a, b)
    np.testing.assert_array_equal(found, product(a, b, dtypes.i32))


@tw.kernel(target="grid:wormhole")
def matmul(a: tw.In["M K"], b: tw.In["K N"], c: tw.In["M N"], out: tw.Out["M N"], *, bk: int = 64):
    for i, j in tw.grid(out, (64, 64)):
        acc = c[i, j]
        for k in tw.steps(a, axis=1, size=bk):
            acc = tw.dot(a[i, k], b[k, j], acc)
        out[i, j] = acc


@pytest.mark.parametrize("depth", [32, 64, 128, 256])
def test_kernels_add_products_to_what_a_loop_carries(depth: int) -> None:
    """Deep tiles have narrow digits."""
    a, b, c = drawn((70, 300), dtypes.i32, 4), drawn((300, 65), dtypes.i32, 5), drawn((70, 65), dtypes.i32, 6)
    np.testing.assert_array_equal(matmul(a, b, c, bk=depth), product(a, b, dtypes.i32) + c)


@tw.kernel(target="grid:wormhole")
def product_of_three(a: tw.In["M K"], b: tw.In["K N"], c: tw.In["N P"], out: tw.Out["M P"]):
    for i, j in tw.grid(out, (64, 64)):
        acc = tw.zeros((64, 64), tw.i32)
        for k in tw.steps(b, axis=1, size=64):
            inner = tw.zeros((64, 64), tw.i32)
            for step in tw.steps(a, axis=1, size=64):
                inner = tw.dot(a[i, step], b[step, k], inner)
            acc = tw.dot(inner, c[k, j], acc)
        out[i, j] = acc


def test_a_core_has_queues_for_two_products() -> None:
    a, b, c = drawn((70, 130), dtypes.i32, 7), drawn((130, 100), dtypes.i32, 8), drawn((100, 40), dtypes.i32, 9)
    np.testing.assert_array_equal(product_of_three(a, b, c), product(product(a, b, dtypes.i32), c, dtypes.i32))


@pytest.mark.parametrize("depth", [1, 64, 65, 208, 209, 2000, 30_000, 3_000_000])
def test_sums_of_products_of_digits_are_exact(depth: int) -> None:
    bits, count = digits_of(depth)
    assert (bits == 8) == (depth <= 64)
    assert bits * count >= 32
    assert bits == 1 or (2**bits - 1) ** 2 * count * depth <= 2**24


# ---- reductions -----------------------------------------------------------------------------------------------------

SHAPES = ((3, 50, 70), (33, 2100), (5, 3), (1,), (2, 1, 40))
COMBINING = {"multiply": np.multiply, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or}
COMBINING["bitwise_xor"] = np.bitwise_xor
TYPES = {"multiply": (dtypes.i32, dtypes.u32, dtypes.f32, dtypes.bf16, dtypes.f16)} | dict.fromkeys(
    ("bitwise_and", "bitwise_or", "bitwise_xor"), (dtypes.i32, dtypes.u32, dtypes.bool_)
)


def factors(shape: tuple[int, ...], dtype: dtypes.DType, seed: int) -> Tensor:
    """Numbers whose product is neither large nor small, or of which some bits are in all, and others in none."""
    if dtype.is_float:
        random, found = np.random.default_rng(seed), np.ones(shape, dtype.numpy)
        places = random.integers(0, found.size, 60)
        found.reshape(-1)[places] = random.uniform(0.8, 1.25, places.size)
        return found
    if dtype.is_bool:
        return np.random.default_rng(seed).random(shape) > 0.02
    return (drawn(shape, dtype, seed) | np.asarray(5, dtype.numpy)) & np.asarray(0x7FFFFFF7, dtype.numpy)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fn", COMBINING)
def test_reductions_without_a_unit_for_them(fn: str, shape: tuple[int, ...]) -> None:
    """Over each set of dims, each in a variant of its own."""
    axes = [each for n in range(1, len(shape) + 1) for each in itertools.combinations(range(len(shape)), n)]
    for number, (dtype, reduced) in enumerate(itertools.product(TYPES[fn], axes)):
        x = factors(shape, dtype, number)
        program = Program("main")
        program.outputs = [program.reduce(program.array(*shape, dtype=dtype), fn, reduced)]
        (got,) = simulated(program, [x], MACHINES[number % 2], VARIANTS[number % len(VARIANTS)])
        if dtype.is_float:
            check(got, np.asarray(np.prod(x.astype(np.float64), reduced)), dtype, bounds_of(dtype, 30))
        else:
            np.testing.assert_array_equal(got, COMBINING[fn].reduce(x, reduced, x.dtype))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_reductions_are_the_same_in_every_variant(variant: Variant) -> None:
    x = factors((70, 90), dtypes.i32, 1)
    for fn, axes in (("multiply", (0,)), ("multiply", (0, 1)), ("bitwise_xor", (1,)), ("bitwise_and", (0, 1))):
        program = Program("main")
        total = program.reduce(program.array(70, 90, dtype=dtypes.i32), fn, axes)
        program.outputs = [program.map("add", total, total)]
        (got,) = simulated(program, [x], "wormhole", variant)
        wanted = COMBINING[fn].reduce(x, axes, x.dtype)
        np.testing.assert_array_equal(got, np.left_shift(wanted, 1))


def test_cores_share_a_long_reduction() -> None:
    x = factors((320, 1000), dtypes.i32, 3)
    for fn in COMBINING:
        program = Program("main")
        program.outputs = [program.reduce(program.array(320, 1000, dtype=dtypes.i32), fn, (0, 1))]
        unit = compiled(program, "wormhole")
        assert any("cores share the loop" in str(remark) for remark in unit.remarks)
        (got,) = Simulation(unit, seed=1, whole_outputs=True).run([x])
        np.testing.assert_array_equal(got, COMBINING[fn].reduce(x, None, x.dtype))


# ---- bits -----------------------------------------------------------------------------------------------------------

WORDS = (dtypes.f32, dtypes.i32, dtypes.u32)


@pytest.mark.parametrize("before", WORDS, ids=str)
@pytest.mark.parametrize("shape", [(), (45, 70), (3, 5, 40)], ids=str)
def test_bits_are_taken_for_another_type(shape: tuple[int, ...], before: dtypes.DType) -> None:
    """Of all numbers, those that are none and those that are nearly zero among them."""
    x = np.asarray(drawn((max(1, int(np.prod(shape))),), dtypes.u32, 1).reshape(shape)).view(before.numpy)
    for number, after in enumerate(WORDS):
        program = Program("main")
        program.outputs = program.add("bitcast", [program.array(*shape, dtype=before)], dtype=after.name)
        for variant in VARIANTS[number::3]:
            (got,) = simulated(program, [x], MACHINES[number % 2], variant)
            np.testing.assert_array_equal(got.view(np.uint32), x.view(np.uint32))


def test_bits_are_computed_with() -> None:
    """The absolute value without its sign bit, of which padding is a part of a sum; and of a number that is known."""
    x = np.random.default_rng(0).standard_normal((45, 70)).astype(np.float32)

    @tw.jit(target="grid:blackhole")
    def absolute(x):
        one = tw.bitcast(tw.full((70,), 0x3F800000, dtype=tw.i32), tw.f32)
        return tw.sum(tw.bitcast(tw.bitcast(x, tw.i32) & 0x7FFFFFFF, tw.f32) + one, axis=1)

    check(absolute(x), (np.abs(x.astype(np.float64)) + 1).sum(1), dtypes.f32, bounds_of(dtypes.f32, 4))


def test_bits_of_narrow_floats_are_refused() -> None:
    x = np.zeros((4, 4), dtypes.bf16.numpy)
    with pytest.raises(UnsupportedOnTargetError, match="the bits of bf16 are not taken for f16"):
        tw.jit(lambda x: tw.bitcast(x, tw.f16), target="grid:wormhole")(x)


@pytest.mark.parametrize("fn", ["max", "min", "argmax", "argmin", "sum"])
def test_numbers_of_64_bits_are_reduced_in_32(fn: str) -> None:
    """What begins a reduction of i64 is beyond what 32 bits hold."""
    x = np.random.default_rng(1).integers(-(2**20), 2**20, (37, 70))
    for axis in (0, 1):
        compiled_ = tw.jit(lambda x, axis=axis: getattr(tw, fn)(x, axis=axis)).lower(x).compile(target="grid:wormhole")
        np.testing.assert_array_equal(compiled_(x), getattr(x, fn)(axis))


@pytest.mark.parametrize("value", [2**40, -(2**40), 2**31])
def test_constants_beyond_32_bits_are_refused(value: int) -> None:
    program = tw.jit(lambda x: tw.minimum(x, value), target="grid:wormhole")
    with pytest.raises(UnsupportedOnTargetError, match=f"{value} is a number of i64 that does not fit"):
        program(np.arange(5))


def test_constants_of_64_bits_that_fit_are_themselves() -> None:
    least = tw.jit(lambda x: tw.minimum(x, 2**31 - 1) + tw.maximum(x, -(2**31)), target="grid:wormhole")
    np.testing.assert_array_equal(least(np.arange(5)), 2 * np.arange(5))
