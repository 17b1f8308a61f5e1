"""Running totals, places of extremes, the k largest and sorts in native code: every type, odd sizes, NaN, ties."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.programs import Program, build
from tests.sampling import ALL, alternating, sampled
from tilewright import dtypes, ops
from tilewright.dtypes import DType
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Value
from tilewright.options import options
from tilewright.pipelines import compile_module

Tensor = np.ndarray[Any, Any]

# Machines whose code the host runs, and whose vectors may differ in width.
MACHINES = ("cpu", "cpu:x86-64-v3") if platform.machine() == "x86_64" else ("cpu",)
TYPES = [
    *[(dtype, "cpu") for dtype in dtypes.ALL],
    *[(d, machine) for machine in MACHINES[1:] for d in (dtypes.f32, dtypes.f64, dtypes.bf16, dtypes.i8, dtypes.u64)],
]


def _types(cases: Sequence[tuple[DType, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("dtype", "machine"), cases, ids=lambda v: repr(v) if isinstance(v, DType) else v)


every_type = _types(TYPES)
# Slow tests take half of the types each, and not all the same.
even_types, odd_types = _types(sampled(TYPES, 2)), _types(sampled(TYPES, 2, 1))
SIZES = (1, 15, 16, 17, 100, 1000)
SHAPES = [
    *[((n,), 0) for n in SIZES],
    *[((5, n), 1) for n in SIZES],
    *[((n, 37), 0) for n in SIZES],
    ((9, 1), 0),
    ((30, 3), 0),
    ((3, 20, 7), 1),
    ((2, 50, 300), 1),
    ((4, 6, 33), 0),
    ((2, 3, 40), 2),
]
SCANS = ("add", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor")


Make = Callable[[Program], list[Value]]


@lru_cache(maxsize=16)
def compiled(make: Make, machine: str, threads: int) -> Any:
    program = build(make)
    with options(threads=threads):
        return compile_module(build_module(program), program.constants, machine)


@pytest.fixture(scope="module", autouse=True)
def _programs_go_before_the_interpreter() -> Iterator[None]:
    yield
    compiled.cache_clear()


def native(make: Make, *arrays: Tensor, machine: str = "cpu", threads: int = 2) -> list[Tensor]:
    with options(threads=threads):
        return compiled(make, machine, threads)(*arrays)


def numbers(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Tensor:
    """Numbers of a type of which products and sums stay in range, with many equal ones."""
    generator = np.random.default_rng(seed)
    if dtype.is_float:
        return (generator.integers(-8, 9, shape) / 8).astype(dtype.numpy)
    return generator.integers(0 if dtype.kind in "ub" else -8, 2 if dtype.is_bool else 9, shape).astype(dtype.numpy)


def special(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Tensor:
    """As `numbers`, and floats with NaN, infinities and zeros of both signs."""
    x = numbers(shape, dtype, seed)
    if dtype.is_float:
        generator = np.random.default_rng(seed + 1)
        values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0]).astype(dtype.numpy)
        places = generator.random(shape) < 0.3
        x[places] = generator.choice(values, int(places.sum()))
    return x


def bits(x: Tensor) -> Tensor:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def scanned(x: Tensor, fn: str, axis: int, reverse: bool) -> Tensor:
    """Totals in f64, or in the type itself for exact types."""
    wide = x.astype(np.float64) if dtypes.from_numpy(x.dtype).is_float else x
    ufunc = getattr(np, fn)
    turned = np.flip(wide, axis) if reverse else wide
    with np.errstate(all="ignore"):
        totals = ufunc.accumulate(turned, axis=axis, dtype=wide.dtype)
    return np.flip(totals, axis) if reverse else totals


@cache
def scan(shape: tuple[int, ...], dtype: DType, fn: str, axis: int, reverse: bool) -> Make:
    return lambda p: [p.add("scan", [p.array(*shape, dtype=dtype)], fn=fn, axis=axis, reverse=reverse)[0]]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_sums_and_maxima_of_any_shape(shape, axis, machine):
    """Of each shape, the sums go one way and the maxima the other, and on another machine the other way round."""
    reverse = (SHAPES.index((shape, axis)) + MACHINES.index(machine)) % 2 == 1
    x = np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)
    (sums,) = native(scan(shape, dtypes.f32, "add", axis, reverse), x, machine=machine)
    np.testing.assert_allclose(sums, scanned(x, "add", axis, reverse), rtol=2e-6)
    (maxima,) = native(scan(shape, dtypes.f32, "maximum", axis, not reverse), x, machine=machine)
    np.testing.assert_array_equal(maxima, scanned(x, "maximum", axis, not reverse))


LONG = [
    ((1 << 20,), 0),
    ((1 << 19) + 1, 0),
    ((1000003,), 0),
    ((3, 400000), 1),
    ((6000, 100), 0),
    ((4096, 272), 0),
    ((2, 3000, 301), 1),
    ((1 << 18, 3), 0),
]


@pytest.mark.parametrize(
    ("dtype", "shape", "axis", "reverse"),
    [
        (dtype, *line, (row + column) % 4 > 1)
        for row, dtype in enumerate((dtypes.f32, dtypes.f64, dtypes.bf16, dtypes.i16, dtypes.u8))
        for column, line in enumerate(LONG)
        if ALL or (row + column) % 2
    ],
    ids=str,
)
def test_long_scans_in_parts_with_any_number_of_threads(dtype, shape, axis, reverse):
    """More threads than the host has cores wait for each other's totals too."""
    shape = (shape,) if isinstance(shape, int) else shape
    x = np.random.default_rng(0).uniform(-8, 8, shape).astype(dtype.numpy)
    make = scan(shape, dtype, "add", axis, reverse)
    found = [native(make, x, threads=threads)[0] for threads in (1, 2, 7)]
    assert all(np.array_equal(bits(found[0]), bits(each)) for each in found[1:])
    expected = scanned(x, "add", axis, reverse)
    if not dtype.is_float:
        np.testing.assert_array_equal(found[0], expected.astype(x.dtype))
        return
    # Rounding errors of sums that wander as far as the square root of their number.
    most = 8 * np.sqrt(shape[axis])
    tolerance = most * (dtype.compute.epsilon * np.sqrt(shape[axis]) + dtype.epsilon)
    np.testing.assert_allclose(found[0].astype(np.float64), expected, rtol=dtype.epsilon, atol=tolerance)


@pytest.mark.parametrize("fn", ["maximum", "minimum", "bitwise_xor", "multiply"])
def test_long_scans_of_other_functions_from_unaligned_memory(fn):
    x = np.random.default_rng(1).integers(-(2**31), 2**31, (1 << 20) + 3).astype(np.int32)[3:]
    for reverse in (False, True):
        (found,) = native(scan(x.shape, dtypes.i32, fn, 0, reverse), x)
        np.testing.assert_array_equal(found, scanned(x, fn, 0, reverse))


@even_types
def test_long_scans_of_every_type(dtype, machine):
    """Every function along a line and, of another type, down columns."""
    for number, fn in enumerate(SCANS, TYPES.index((dtype, machine))):
        if dtype.kind not in ops.FUNCTIONS[fn].kinds:
            continue
        shape, reverse = ((8192, 96), True) if number % 2 else ((1 << 20,), False)
        x = numbers(shape, dtype)
        if dtype.is_float and fn == "multiply":
            x = np.where(x > 0, dtype.numpy.type(1), dtype.numpy.type(-1)).astype(dtype.numpy)
        elif dtype.is_float and fn == "add":
            # Totals that a float of 16 bits holds too.
            x[1::2] = -x[::2]
        found = [native(scan(shape, dtype, fn, 0, reverse), x, machine=machine, threads=n)[0] for n in (1, 3)]
        np.testing.assert_array_equal(bits(found[0]), bits(found[1]))
        np.testing.assert_array_equal(found[0].astype(np.float64), scanned(x, fn, 0, reverse).astype(np.float64))


@pytest.mark.parametrize("shape", [(1 << 20,), (8192, 96)], ids=str)
@pytest.mark.parametrize("fn", ["add", "maximum", "minimum"])
def test_long_scans_of_nan_and_infinities(fn, shape):
    """A part's elements before a NaN, an infinity or two of opposite signs do not know of them."""
    for places in ((0, 7), (shape[0] // 2, shape[0] // 2 + 1), (shape[0] // 3, shape[0] - 1), (5, 5)):
        for values in ((np.inf, -np.inf), (np.nan, np.inf), (-np.inf, -np.inf)):
            x = numbers(shape, dtypes.f32)
            x[places[0]], x[places[1]] = values
            for reverse in (False, True):
                (found,) = native(scan(shape, dtypes.f32, fn, 0, reverse), x, threads=3)
                np.testing.assert_array_equal(found, scanned(x, fn, 0, reverse))


@pytest.mark.parametrize("shape", [(0, 1 << 20), (3, 0, 1 << 19)], ids=str)
def test_long_scans_of_no_lines(shape):
    for reverse in (False, True):
        (found,) = native(scan(shape, dtypes.f32, "add", len(shape) - 1, reverse), np.zeros(shape, np.float32))
        assert found.shape == shape


def test_long_scans_in_several_threads_of_python_at_once():
    """Each call counts its parts in memory of its own; those that find the pool busy go alone."""
    x = np.random.default_rng(0).integers(-1000, 1000, 1 << 19).astype(np.int32)
    make = scan(x.shape, dtypes.i32, "add", 0, False)
    expected, wrong = np.cumsum(x, dtype=np.int32), []
    native(make, x, threads=5)

    def call(factor: int) -> None:
        for threads in (2, 5, 33) * 4:
            (found,) = native(make, x * np.int32(factor), threads=threads)
            if not np.array_equal(found, expected * np.int32(factor)):
                wrong.append((factor, threads))

    callers = [threading.Thread(target=call, args=(factor,)) for factor in range(1, 5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_long_scans_after_and_before_other_functions_and_in_loops():
    x = np.random.default_rng(0).integers(-1000, 1000, 1 << 19).astype(np.int32)
    running = partial(tw.cumulative_sum, dtype=tw.i32)

    @partial(tw.jit, target="cpu", donate="x")
    def several(x):
        again, firsts = tw.scan(lambda c, _: (running(c), c[0]), x, length=3)
        return running(tw.flip(x) * 2 + 1) - x, again, firsts

    expected = [x]
    for _ in range(3):
        expected.append(np.cumsum(expected[-1], dtype=np.int32))
    for threads in (1, 2, 7):
        with options(threads=threads):
            found = several(x.copy())
        np.testing.assert_array_equal(found[0], np.cumsum(x[::-1] * 2 + 1, dtype=np.int32) - x)
        np.testing.assert_array_equal(found[1], expected[3])
        np.testing.assert_array_equal(found[2], [each[0] for each in expected[:3]])


@pytest.mark.parametrize(("fn", "axis"), alternating(SCANS, (0, 1)))
@every_type
def test_scans_of_every_type(dtype, fn, axis, machine):
    if dtype.kind not in ops.FUNCTIONS[fn].kinds:
        return
    shape = (21, 45) if axis == 0 else (3, 130)
    reverse = (TYPES.index((dtype, machine)) + SCANS.index(fn) + axis) % 2 == 1
    x = numbers(shape, dtype)
    (found,) = native(scan(shape, dtype, fn, axis, reverse), x, machine=machine)
    expected = scanned(x, fn, axis, reverse)
    assert found.dtype == x.dtype
    if dtype.is_float:
        rounded = expected.astype(dtype.numpy).astype(np.float64)
        tolerance = {"rtol": 20 * dtype.compute.epsilon + dtype.epsilon, "atol": 2.0**-24}
        np.testing.assert_allclose(found.astype(np.float64), rounded, **tolerance)
    else:
        np.testing.assert_array_equal(found, expected.astype(x.dtype))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("fn", ["add", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=repr)
def test_scans_of_nan_and_infinities(dtype, fn, axis):
    x = numbers((40, 70), dtype)
    x[3, 50], x[7, 2], x[30, 60], x[7, 40] = np.nan, np.inf, -np.inf, -np.inf
    (found,) = native(scan((40, 70), dtype, fn, axis, False), x)
    expected = scanned(x, fn, axis, False).astype(dtype.numpy).astype(np.float64)
    np.testing.assert_array_equal(found.astype(np.float64), expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_products_keep_their_order(axis):
    """Huge factors after a zero or a tiny one: combined with each other first they would overflow."""
    x = np.full((48, 48), 1e30, np.float32)
    x[0, :] = x[:, 0] = 1e-30
    x[1, 5], x[5, 1] = 0.0, 0.0
    (found,) = native(scan((48, 48), dtypes.f32, "multiply", axis, False), x)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(found, np.cumprod(x, axis))


@pytest.mark.parametrize("shape", [(50,), (7, 40), (40, 7)], ids=str)
def test_sums_of_negative_zeros(shape):
    x = np.full(shape, -0.0, np.float32)
    for axis in range(len(shape)):
        (found,) = native(scan(shape, dtypes.f32, "add", axis, False), x)
        assert np.signbit(found).all()


def test_a_float_scan_is_as_exact_as_one_in_order():
    x = np.random.default_rng(0).random((8, 20000), dtype=np.float32)
    (found,) = native(scan(x.shape, dtypes.f32, "add", 1, False), x)
    exact = np.cumsum(x, 1, dtype=np.float64)
    error, in_order = np.abs(found - exact), np.abs(np.cumsum(x, 1) - exact)
    assert error.max() <= in_order.max()


@cache
def arg_reduce(shape: tuple[int, ...], dtype: DType, fn: str, axis: int) -> Make:
    return lambda p: [p.add("arg_reduce", [p.array(*shape, dtype=dtype)], fn=fn, axis=axis)[0]]


def place_of_first(x: Tensor, fn: str, axis: int) -> Tensor:
    wide = x.astype(np.float64) if dtypes.from_numpy(x.dtype).is_float else x
    return (np.argmax if fn == "maximum" else np.argmin)(wide, axis=axis)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("fn", ["maximum", "minimum"])
@pytest.mark.parametrize(("shape", "axis"), [s for s in SHAPES if s[0][s[1]]], ids=str)
def test_places_of_extremes_of_any_shape(shape, axis, fn, machine):
    for seed in range(3):
        x = numbers(shape, dtypes.f32, seed)
        (found,) = native(arg_reduce(shape, dtypes.f32, fn, axis), x, machine=machine)
        np.testing.assert_array_equal(found, place_of_first(x, fn, axis))


@pytest.mark.parametrize("fn", ["maximum", "minimum"])
@odd_types
def test_places_of_extremes_of_every_type(dtype, fn, machine):
    for shape, axis in (((300,), 0), ((3, 300), 1), ((3, 12), 1), ((300, 40), 0), ((300, 200), 0)):
        for make in (numbers, special):
            x = make(shape, dtype)
            (found,) = native(arg_reduce(shape, dtype, fn, axis), x, machine=machine)
            assert found.dtype == np.int64
            np.testing.assert_array_equal(found, place_of_first(x, fn, axis))


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.i8, dtypes.u32], ids=repr)
def test_the_first_of_equal_extremes_wins_wherever_it_is(dtype):
    executable = compiled(arg_reduce((200,), dtype, "maximum", 0), "cpu", 2)
    for first in range(0, 200, 3):
        x = np.zeros(200, dtype.numpy)
        x[first::7] = 5
        assert executable(x)[0] == first
    assert executable(np.full(200, dtype.lowest, dtype.numpy))[0] == 0


# Few lines, so long that they are cut into parts; some of them evenly.
LONG = [((262144,), 0), ((300001,), 0), ((3, 270000), 1), ((20000, 40), 0), ((9001, 100), 0), ((2, 7000, 50), 1)]


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.bf16, dtypes.i64], ids=repr)
@pytest.mark.parametrize(("shape", "axis"), LONG, ids=str)
def test_scans_of_long_lines(shape, axis, dtype):
    x = numbers(shape, dtype)
    for fn in ("add", "minimum"):
        (found,) = native(scan(shape, dtype, fn, axis, False), x)
        expected = scanned(x, fn, axis, False)
        if dtype.is_float:
            # Eighths: sums of them are exact in f32.
            expected = expected.astype(dtype.numpy).astype(np.float64)
        np.testing.assert_array_equal(found.astype(expected.dtype), expected.astype(expected.dtype))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), LONG[:4], ids=str)
def test_long_sums_are_close(shape, axis, reverse):
    x = np.random.default_rng(0).random(shape, dtype=np.float32)
    (found,) = native(scan(shape, dtypes.f32, "add", axis, reverse), x)
    np.testing.assert_allclose(found, scanned(x, "add", axis, reverse), rtol=2e-5)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.u8], ids=repr)
@pytest.mark.parametrize(("shape", "axis"), LONG, ids=str)
def test_places_of_extremes_of_long_lines(shape, axis, dtype):
    for fn in ("maximum", "minimum"):
        for make in (numbers, special):
            x = make(shape, dtype)
            (found,) = native(arg_reduce(shape, dtype, fn, axis), x)
            np.testing.assert_array_equal(found, place_of_first(x, fn, axis))
        (found,) = native(arg_reduce(shape, dtype, fn, axis), np.full(shape, dtype.lowest, dtype.numpy))
        assert not found.any()


@pytest.mark.parametrize("at", [0, 5, 131071, 262144, 300000])
def test_an_extreme_in_any_part_of_a_long_line(at):
    x = np.random.default_rng(0).standard_normal(300001).astype(np.float32)
    x[at:] = np.where(x[at:] > 3, np.float32(9), x[at:])
    x[at] = 9
    (found,) = native(arg_reduce(x.shape, dtypes.f32, "maximum", 0), x)
    assert found == np.argmax(x)


@pytest.mark.parametrize(("shape", "axis"), [((4, 5), 0), ((40, 33), 1), ((6, 7, 8), 1), *LONG], ids=str)
def test_results_do_not_depend_on_the_number_of_threads(shape, axis):
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    found = [native(scan(shape, dtypes.f32, "add", axis, False), x, threads=threads)[0] for threads in (1, 2, 3)]
    for other in found[1:]:
        np.testing.assert_array_equal(bits(other), bits(found[0]))


def largest(x: Tensor, k: int) -> Tensor:
    """Indices of the k largest along the last axis, NaN first, earlier ones of equals first."""
    wide = x.astype(np.float64) if dtypes.from_numpy(x.dtype).is_float else x.astype(object)
    isnan = np.isnan(wide) if wide.dtype != object else np.zeros(x.shape, bool)
    result = np.empty((*x.shape[:-1], k), np.int64)
    for line in np.ndindex(*x.shape[:-1]):
        row, missing = wide[line].tolist(), isnan[line].tolist()
        keys = [(not m, 0 if m else -value, i) for i, (value, m) in enumerate(zip(row, missing, strict=True))]
        result[line] = [i for *_, i in sorted(keys)[:k]]
    return result


@cache
def top_k(shape: tuple[int, ...], dtype: DType, k: int) -> Make:
    return lambda p: list(p.add("top_k", [p.array(*shape, dtype=dtype)], k=k))


def check_top_k(x: Tensor, k: int, machine: str = "cpu") -> None:
    values, places = native(top_k(x.shape, dtypes.from_numpy(x.dtype), k), x, machine=machine)
    expected = largest(x, k)
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(bits(values), bits(np.take_along_axis(x, expected, -1)))


@odd_types
def test_the_largest_of_every_type(dtype, machine):
    for make in (numbers, special):
        check_top_k(make((3, 700), dtype), 9, machine)
        check_top_k(make((600,), dtype), 130, machine)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 63, 64, 65, 129, 1000, 3000])
def test_any_number_of_largest_elements(n, machine):
    x = np.random.default_rng(n).standard_normal((2, n), dtype=np.float32)
    for k in sorted({1, min(64, n), n // 2 or 1, n}):
        check_top_k(x, k, machine)


@pytest.mark.parametrize("k", [1, 64, 1000])
@pytest.mark.parametrize("kind", ["rising", "falling", "equal", "nan", "lowest"])
def test_largest_of_lines_in_an_order(kind, k):
    n = 5003
    x = np.arange(n, dtype=np.float32)
    if kind == "falling":
        x = x[::-1].copy()
    elif kind == "equal":
        x[:] = 1
    elif kind == "nan":
        x[::2] = np.nan
    elif kind == "lowest":
        x[:] = -np.inf
    check_top_k(x, k)
    check_top_k(x.astype(np.float64), k)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=repr)
def test_the_largest_of_the_ends_of_a_type(dtype):
    ends = [dtype.lowest, dtype.lowest + 1, dtype.lowest + 2, dtype.highest - 1, dtype.highest]
    for chosen in (ends[:1], ends[:2], ends[:3], ends[-1:], ends):
        x = np.random.default_rng(0).choice(np.array(chosen, dtype.numpy), (2, 700))
        check_top_k(x, 5)
        check_top_k(x, 40)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.bf16], ids=repr)
def test_the_largest_around_zero(dtype):
    least = {"f32": 2.0**-149, "f64": 2.0**-1074, "bf16": 2.0**-133}[dtype.name]
    values = np.array([-least, -0.0, 0.0, least]).astype(dtype.numpy)
    for used in ((0, 1), (1, 2), (0, 2), (0, 1, 2, 3)):
        x = np.random.default_rng(0).choice(values[list(used)], (2, 700))
        x[:, :20] = values[0]
        check_top_k(x, 12)
        x[:, 100:] = values[0]
        check_top_k(x, 12)


def test_more_largest_elements_than_are_searched_for():
    x = np.random.default_rng(0).integers(0, 50, 9000).astype(np.int32)
    check_top_k(x, 6000)


@pytest.mark.parametrize("size", [40, 3000])
def test_a_donated_array_is_sorted_without_being_overwritten_too_early(size):
    x = np.random.default_rng(0).integers(0, 9, size).astype(np.float32)
    x[x == 3] = -0.0
    expected = x[in_order(x, 0, False)]
    found = tw.jit(lambda x: tw.sort(x), target="cpu", donate="x")(x.copy())
    np.testing.assert_array_equal(bits(found), bits(expected))
    keys = tw.jit(lambda x: tw.top_k(x, size)[0], target="cpu", donate="x")(x.copy())
    np.testing.assert_array_equal(bits(keys), bits(x[in_order(x, 0, True)]))
    totals = tw.jit(lambda x: tw.cumulative_sum(x), target="cpu", donate="x")(x.copy())
    np.testing.assert_array_equal(totals, np.cumsum(x))


def in_order(x: Tensor, axis: int, descending: bool) -> Tensor:
    """Indices that sort stably, NaN as the largest."""
    moved = np.moveaxis(x, axis, -1)
    wide = moved.astype(np.float64) if dtypes.from_numpy(x.dtype).is_float else moved
    ranks = np.empty(wide.shape, np.int64)
    for line in np.ndindex(*wide.shape[:-1]):
        ranks[line] = np.unique(wide[line], return_inverse=True)[1]
    return np.moveaxis(np.argsort(-ranks if descending else ranks, axis=-1, kind="stable"), -1, axis)


def same_order(found: Tensor, expected: Tensor) -> None:
    """Equal in every bit, but for the bits of NaN."""
    wide = expected.astype(np.float64) if expected.dtype.kind == "V" else expected
    isnan = wide != wide
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(bits(found)[~isnan], bits(expected)[~isnan])
    if isnan.any():
        assert np.isnan(found.astype(np.float64)[isnan]).all()


@cache
def sort(shape: tuple[int, ...], dtype: DType, axis: int, descending: bool) -> Make:
    """Elements alone, and elements with their indices and with others."""

    def make(p: Program) -> list[Value]:
        x, other = p.array(*shape, dtype=dtype), p.array(*shape, dtype=dtypes.i32)
        places = p.add("iota", shape=shape, dtype="i64", axis=axis)[0]
        how = {"axis": axis, "descending": descending}
        return [p.add("sort", [x], **how)[0], *p.add("sort", [x, places, other], **how)]

    return make


def check_sort(x: Tensor, axis: int, descending: bool, machine: str = "cpu") -> None:
    dtype = dtypes.from_numpy(x.dtype)
    other = np.arange(x.size, dtype=np.int32).reshape(x.shape) * 7 + 3
    found, keys, places, others = native(sort(x.shape, dtype, axis, descending), x, other, machine=machine)
    order = in_order(x, axis, descending)
    np.testing.assert_array_equal(places, order)
    same_order(found, np.take_along_axis(x, order, axis))
    np.testing.assert_array_equal(bits(keys), bits(np.take_along_axis(x, order, axis)))
    np.testing.assert_array_equal(others, np.take_along_axis(other, order, axis))


@even_types
def test_sorts_of_every_type(dtype, machine):
    """Every type goes up and down, and so does every shape."""
    for number, (shape, axis) in enumerate((((3, 100), 1), ((300,), 0), ((70, 5), 0))):
        descending = (TYPES.index((dtype, machine)) + number) % 2 == 1
        for make in (numbers, special):
            check_sort(make(shape, dtype), axis, descending, machine)


@pytest.mark.parametrize(("place", "n"), enumerate([1, 2, 7, 9, 16, 17, 33, 63, 65, 128, 129, 257, 1000, 5000]))
def test_sorts_of_any_size(place, n):
    """Each type of every size on one machine, and of the next size on the other."""
    generator = np.random.default_rng(n)
    for number, (dtype, descending) in enumerate(((np.float32, False), (np.float64, True))):
        machine = MACHINES[(place + number) % len(MACHINES)]
        check_sort(generator.standard_normal((2, n)).astype(dtype), 1, descending, machine)
        check_sort(generator.integers(0, 4, (2, n)).astype(dtype), 1, descending, machine)


@pytest.mark.parametrize(("shape", "axis"), [((40, 3, 20), 0), ((3, 200, 20), 1), ((2, 3, 300), 2)], ids=str)
def test_sorts_along_any_axis(shape, axis):
    check_sort(np.random.default_rng(0).standard_normal(shape).astype(np.float32), axis, False)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 16, 17, 32, 33])
def test_sorts_of_short_lines_side_by_side(count):
    """Every type, rows of whole vectors and of parts of one, with zeros of both signs and NaN."""
    for number, columns in enumerate((1, 7, 16, 100)):
        for place, (dtype, machine) in enumerate(TYPES):
            if place % 8 == (2 * number + count) % 8:
                check_sort(special((2, count, columns), dtype), 1, bool((place + number) % 2), machine)


def test_a_donated_array_of_short_lines():
    x = np.random.default_rng(0).integers(-2, 3, (50, 4, 33)).astype(np.float32)
    x[x == 1] = -0.0
    expected = np.take_along_axis(x, in_order(x, 1, False), 1)
    found = tw.jit(lambda x: tw.sort(x, axis=1), target="cpu", donate="x")(x.copy())
    np.testing.assert_array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("kind", ["rising", "falling", "equal", "zeros"])
def test_sorts_of_lines_in_an_order(kind):
    x = np.arange(3000, dtype=np.float32)
    if kind == "falling":
        x = x[::-1].copy()
    elif kind == "equal":
        x[:] = 2
    elif kind == "zeros":
        x = np.where(x % 3 == 0, np.float32(-0.0), np.where(x % 3 == 1, np.float32(0), x - 1500)).astype(np.float32)
    for descending in (False, True):
        check_sort(x, 0, descending)
