"""Products whose operands are read where they lie, kept in panels by the first rows, or end before the tile does: the
numbers of NumPy on whole numbers, which no order of additions changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import parse
from tests.programs import Program, build
from tests.sampling import ALL, alternating, sampled
from tilewright import dtypes
from tilewright.cost.vectors.register_blocks import register_blocks
from tilewright.dtypes import DType
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Value
from tilewright.pipelines import compile_module
from tilewright.schedules import Schedule, VectorMatmul
from tilewright.targets.cpu.host import host_machine

Tensor = np.ndarray[Any, Any]

# Small enough that sums of products are exact in f32, whatever their order, up to a depth of a million.
LARGEST = 4


def whole_numbers(shape: tuple[int, ...], dtype: DType, seed: int) -> Tensor:
    return np.random.default_rng(seed).integers(-LARGEST, LARGEST + 1, shape).astype(dtype.numpy)


def check(
    make: Callable[[Program], list[Value]],
    expected: Callable[..., Sequence[Tensor]],
    threads: int = 2,
    schedule: Schedule | None = None,
) -> None:
    """A program of many kernels against NumPy, element by element."""
    program = build(make)
    arrays = [whole_numbers(v.shape, v.dtype, seed) for seed, v in enumerate(program.inputs)]
    with tw.options(threads=threads):
        module = build_module(program)
        found = compile_module(module, program.constants, "cpu", keep_stages=False, schedule=schedule)(*arrays)
    for got, wanted in zip(found, expected(*arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)


def products(
    left: tuple[int, ...],
    rights: Sequence[tuple[int, ...]],
    dtype: DType,
    threads: int = 2,
    schedule: Schedule | None = None,
) -> None:
    """One left operand with many right ones, rows of the left inside."""
    batch = len(left) - 2

    def make(p: Program) -> list[Value]:
        x = p.array(*left, dtype=dtype)
        return [p.dot(x, p.array(*right, dtype=dtype), batch, batch + 1, batch) for right in rights]

    check(make, lambda x, *others: [x @ w for w in others], threads, schedule)


# ---- right operands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "batch", "widths"),
    [
        (dtypes.f32, (), sampled(range(1, 71), 3)),
        (dtypes.f64, (), sampled(range(1, 37), 3, 1)),
        (dtypes.i32, (), sampled(range(1, 71), 5)),
        (dtypes.f32, (3,), sampled(range(2, 71), 5)),
    ],
    ids=str,
)
def test_right_operands_of_every_width_are_read_where_they_lie(
    dtype: DType, batch: tuple[int, ...], widths: Sequence[int]
) -> None:
    """All remainders of a vector, and up to as many vectors as a register block has and more."""
    products((*batch, 7, 9), [(*batch, 9, columns) for columns in widths], dtype)


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 33, 100])
def test_right_operands_whose_columns_lie_apart_are_packed(columns: int) -> None:
    def make(p: Program) -> list[Value]:
        return [p.dot(p.array(rows, 21), p.array(columns, 21), 0, 1, 1) for rows in (1, 6, 70)]

    check(make, lambda a, w, b, x, c, y: [a @ w.T, b @ x.T, c @ y.T])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(1030, 70, 530), (200, 1031, 530), (700, 40, 129), (161, 3, 1000), (600, 2053, 65)],
)
def test_right_operands_of_many_rows_are_multiplied(rows: int, depth: int, columns: int, threads: int) -> None:
    """Rows, columns and depths that no tile divides."""
    products((rows, depth), [(depth, columns)], dtypes.f32, threads)


def kept(rows: int, columns: int, depth: int, dtype: DType, vectors: int) -> Schedule:
    """Tiles in which the first rows keep panels, with a register block of some vectors."""
    block = next(b for b in register_blocks(dtype, host_machine()) if b.vectors == vectors)
    tile = (rows, columns * block.columns, depth)
    return VectorMatmul(tile=tile, block=(block.rows, block.columns), right="kept")


@pytest.mark.parametrize(
    ("dtype", "vectors", "rows"),
    [
        *[(dtypes.f32, *case) for case in alternating((1, 2, 4), (5, 16, 29, 61))],
        *[(dtype, 4, rows) for dtype in (dtypes.f64, dtypes.i32) for rows in (5, 61)],
    ],
    ids=str,
)
def test_panels_that_the_first_rows_keep_are_multiplied(rows: int, vectors: int, dtype: DType) -> None:
    """Tiles of fewer rows than a register block, of whole ones, and of some that are left; blocks of the depth."""
    for tile_rows, widths, batched_widths in ((rows, (64, 70), (200,)), (-(-rows // 2), (200,), (64, 70))):
        schedule = kept(tile_rows, 2, 20, dtype, vectors)
        products((rows, 41), [(41, columns) for columns in widths], dtype, schedule=schedule)
        products((3, rows, 7), [(3, 7, columns) for columns in batched_widths], dtype, schedule=schedule)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [97, 98, 194, 333])
def test_panels_are_kept_where_more_follows_block_by_block(rows: int, threads: int) -> None:
    """Last rows, in code of their own, read what the ones before them kept."""

    def make(p: Program) -> list[Value]:
        x, residual = p.array(rows, 33), p.array(rows, 256)
        return [p.map("add", p.dot(x, p.array(33, 256), 0, 1, 0), residual) for _ in range(3)]

    def expected(x: Tensor, residual: Tensor, *rights: Tensor) -> list[Tensor]:
        return [x @ w + residual for w in rights]

    for tile_rows in (rows, -(-rows // 2)):
        check(make, expected, threads, kept(tile_rows, 4, 33, dtypes.f32, 4))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64], ids=lambda dtype: dtype.name)
def test_few_rows_meet_long_rows_of_a_right_operand(dtype: DType, rows: int) -> None:
    """Each depth meets each width, with some number of rows."""
    for number, depth in enumerate((1, 31, 33, 100, 1037)):
        widths = sampled((511, 512, 513, 1025, 2050, 3001), 3, (rows + number) % 3)
        products((rows, depth), [(depth, columns) for columns in widths], dtype)


@pytest.mark.parametrize(
    ("left_depth", "right_depth", "dtype"), alternating((0, 1), (0, 1), (dtypes.f32, dtypes.i32, dtypes.f16)), ids=str
)
def test_operands_lie_with_the_depth_inside_or_outside(left_depth: int, right_depth: int, dtype: DType) -> None:
    """From one row to many, so that each way to read the right operand is taken."""
    sizes = [(rows, columns, depth) for rows in (1, 3, 4, 5, 33, 140) for columns, depth in ((2, 3), (37, 40))]

    def make(p: Program) -> list[Value]:
        results: list[Value] = []
        for rows, columns, depth in sizes:
            x = p.array(*((rows, depth) if left_depth else (depth, rows)), dtype=dtype)
            w = p.array(*((columns, depth) if right_depth else (depth, columns)), dtype=dtype)
            results.append(p.dot(x, w, 0, left_depth, right_depth))
        return results

    def expected(*arrays: Tensor) -> list[Tensor]:
        wide = [a.astype(np.float64) for a in arrays]
        pairs = zip(wide[::2], wide[1::2], strict=True)
        return [(x if left_depth else x.T) @ (w.T if right_depth else w) for x, w in pairs]

    check(make, expected, threads=3 if left_depth == right_depth else 1)


@pytest.mark.parametrize("seed", range(6))
def test_random_products_on_random_numbers_of_threads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [tuple(int(2 ** rng.uniform(0, top)) for top in (10, 10, 11)) for _ in range(4)]

    def make(p: Program) -> list[Value]:
        return [p.dot(p.array(m, k), p.array(k, n), 0, 1, 0) for m, n, k in sizes]

    def expected(*arrays: Tensor) -> list[Tensor]:
        return [x @ w for x, w in zip(arrays[::2], arrays[1::2], strict=True)]

    check(make, expected, int(rng.integers(1, 5)))


def test_empty_depth_gives_zeros() -> None:
    products((5, 0), [(0, 3), (0, 600)], dtypes.f32)


# ---- left operands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "heights"), [(5, 66), (20, 40), (40, 26), (64, 20)])
def test_left_operands_of_every_height(columns: int, heights: int) -> None:
    """All remainders of all register blocks: of up to 28 rows, 13, 8 and 6."""

    def make(p: Program) -> list[Value]:
        w = p.array(11, columns)
        return [p.dot(p.array(rows, 11), w, 0, 1, 0) for rows in sampled(range(1, heights), 3, columns % 3)]

    check(make, lambda w, *lefts: [x @ w for x in lefts])


def test_parts_of_arrays_are_multiplied() -> None:
    """Starts inside an array, in the direction of rows, of columns and of the batch."""

    def part(p: Program, x: Value, starts: tuple[int, ...], limits: tuple[int, ...]) -> Value:
        return p.add("slice", [x], starts=starts, limits=limits, strides=(1,) * len(starts))[0]

    def make(p: Program) -> list[Value]:
        x, y = p.array(40, 50), p.array(60, 80)
        tall, short = part(p, x, (3, 5), (30, 26)), part(p, x, (33, 29), (40, 50))
        return [
            p.dot(left, part(p, y, start, (start[0] + 21, start[1] + 37)), 0, 1, 0)
            for left in (tall, short)
            for start in ((0, 0), (7, 0), (0, 16), (9, 32), (11, 13))
        ]

    def expected(x: Tensor, y: Tensor) -> list[Tensor]:
        return [
            left @ y[i : i + 21, j : j + 37]
            for left in (x[3:30, 5:26], x[33:40, 29:50])
            for i, j in ((0, 0), (7, 0), (0, 16), (9, 32), (11, 13))
        ]

    check(make, expected)


@pytest.mark.parametrize("size", [1, 5, 17, 70])
def test_both_operands_are_one_array(size: int) -> None:
    def make(p: Program) -> list[Value]:
        x = p.array(size, size)
        return [p.dot(x, x, 0, left, right) for left in (0, 1) for right in (0, 1)]

    check(make, lambda x: [x.T @ x, x.T @ x.T, x @ x, x @ x.T])


def test_an_operand_that_is_also_captured_keeps_its_order() -> None:
    """A captured array is packed for the right side only."""
    w = whole_numbers((33, 33), dtypes.f32, 9)
    found = tw.jit(lambda x: (w @ x, x @ w, tw.matmul(w, w) + x), target="cpu")(w[::-1].copy())
    for got, wanted in zip(found, (w @ w[::-1], w[::-1] @ w, w @ w + w[::-1]), strict=True):
        np.testing.assert_array_equal(got, wanted)


# ---- tiles that reach beyond their arrays ---------------------------------------------------------------------------


def tiles(points: int, shapes: Sequence[str], body: str) -> str:
    """A module of one kernel on refs `%a`, `%b` (read) and `%out` (written)."""
    names = ("a", "b", "out")
    refs = ", ".join(f"%{n}: !tile.ref<tensor<{s}xf32>>" for n, s in zip(names, shapes, strict=True))
    a, b, out = (f"tensor<{s}xf32>" for s in shapes)
    return f"""
    func.func @main(%a: {a}, %b: {b}) -> {out} {{
      %y = array.call(%a, %b) {{callee = "k"}} : {out}
      func.return %y : {out}
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64: {points}>, effects = ["in", "in", "out"]}} do {{
    ^bb0({refs}, %p: index):
      {body}
      tile.yield()
    }}
    """


@pytest.mark.parametrize("target", ["interp", "cpu", "cpu:x86-64-v3"])
@pytest.mark.parametrize("step", [1, 3, 7, 16])
def test_rows_that_an_array_lacks_are_zeros(step: int, target: str) -> None:
    """Windows of 16 rows of 37, `step` apart: the last ones have few rows or none, of up to 16 different counts. The
    sum is over all rows of the tile, one more each, so that what is in missing rows counts."""
    points = 40 // step + 1
    body = f"""
      %left = tile.load(%a, %p) {{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * {step}, d1)>, fill = 0.0 : f64}}
        : tensor<16x9xf32>
      %right = tile.load(%b) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : tensor<9x24xf32>
      %zero = tile.full() {{value = 0.0 : f64}} : tensor<16x24xf32>
      %one = tile.full() {{value = 1.0 : f64}} : tensor<16x24xf32>
      %y = tile.dot(%left, %right, %zero) : tensor<16x24xf32>
      %z = tile.map(%y, %one) {{fn = "add"}} : tensor<16x24xf32>
      %sum = tile.reduce(%z) {{fn = "add", axes = array<i64: 0>}} : tensor<24xf32>
      tile.store(%sum, %out, %p) {{map = affine_map<(d0)[s0] -> (s0, d0)>}}
    """
    text = tiles(points, ("37x9", "9x24", f"{points}x24"), body)
    a, b = (whole_numbers(shape, dtypes.f32, seed) for seed, shape in enumerate(((37, 9), (9, 24))))
    expected = [(a[p * step : p * step + 16] @ b).sum(axis=0) + 16 for p in range(points)]
    (found,) = compile_module(parse(text), {}, target)(a, b)
    np.testing.assert_array_equal(found, np.stack(expected))


@pytest.mark.parametrize("target", ["interp", "cpu", "cpu:x86-64-v3"])
@pytest.mark.parametrize("rows", [10, 520])
@pytest.mark.parametrize("total", [1, 31, 47, 48, 50, 95, 96, 130])
def test_columns_that_an_array_lacks_are_zeros(total: int, rows: int, target: str) -> None:
    """Three tiles of 48 columns: of the right operand's, the last ones have few or none. Few rows read it where it
    lies, for many it is packed in each tile."""
    body = f"""
      %left = tile.load(%a) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : tensor<{rows}x9xf32>
      %right = tile.load(%b, %p) {{map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 48)>, fill = 0.0 : f64}}
        : tensor<9x48xf32>
      %zero = tile.full() {{value = 0.0 : f64}} : tensor<{rows}x48xf32>
      %one = tile.full() {{value = 1.0 : f64}} : tensor<{rows}x48xf32>
      %y = tile.dot(%left, %right, %zero) : tensor<{rows}x48xf32>
      %z = tile.map(%y, %one) {{fn = "add"}} : tensor<{rows}x48xf32>
      %sum = tile.reduce(%z) {{fn = "add", axes = array<i64: 1>}} : tensor<{rows}xf32>
      tile.store(%sum, %out, %p) {{map = affine_map<(d0)[s0] -> (s0, d0)>}}
    """
    text = tiles(3, (f"{rows}x9", f"9x{total}", f"3x{rows}"), body)
    a, b = (whole_numbers(shape, dtypes.f32, seed) for seed, shape in enumerate(((rows, 9), (9, total))))
    expected = [(a @ b[:, p * 48 : p * 48 + 48]).sum(axis=1) + 48 for p in range(3)]
    (found,) = compile_module(parse(text), {}, target)(a, b)
    np.testing.assert_array_equal(found, np.stack(expected))


@pytest.mark.parametrize("target", ["interp", "cpu", "cpu:x86-64-v3"])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(37, 50, 9), (3, 130, 40), (16, 48, 24), (1, 1, 1), (33, 97, 17)]
)
def test_products_add_up_over_tiles_of_the_depth(rows: int, columns: int, depth: int, target: str) -> None:
    """All three ends inside a tile, the accumulator carried from trip to trip."""
    a, b = (whole_numbers(shape, dtypes.f32, seed) for seed, shape in enumerate(((rows, depth), (depth, columns))))
    with tw.options(target=target, cache=False):
        np.testing.assert_array_equal(tiled_product(a, b), a @ b)


@tw.kernel
def tiled_product(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
    for i, j in tw.grid(c, (16, 48)):
        acc = tw.zeros((16, 48), tw.f32)
        for k in tw.steps(a, axis=1, size=8):
            acc = tw.dot(a[i, k], b[k, j], acc)
        c[i, j] = acc


# ---- nothing beyond an array is read --------------------------------------------------------------------------------

BESIDE_A_FENCE = """
import ctypes, mmap, sys
import numpy as np
import tilewright as tw

def at_the_end(values):
    '''A copy whose last byte is the last of a page; the page after it may not be read.'''
    whole = -(-values.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, whole + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + whole), mmap.PAGESIZE, 0) == 0
    copy = np.frombuffer(memory, values.dtype, values.size, whole - values.nbytes).reshape(values.shape)
    copy[...] = values
    return copy

with tw.options(target=sys.argv[1], cache=False, threads=1):
    for rows, depth, columns in ((7, 9, 20), (1, 5, 1), (13, 4, 33), (29, 3, 47), (3, 40, 700), (170, 30, 530)):
        x = np.arange(rows * depth, dtype=np.float32).reshape(rows, depth) % 5
        w = np.arange(depth * columns, dtype=np.float32).reshape(depth, columns) % 7
        found = tw.jit(lambda x, w: x @ w)(at_the_end(x), at_the_end(w))
        np.testing.assert_array_equal(found, x @ w)
print("all read")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"])
def test_operands_are_not_read_beyond_their_end(target: str) -> None:
    done = subprocess.run([sys.executable, "-c", BESIDE_A_FENCE, target], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "all read\n"), done.stderr


@pytest.mark.parametrize("target", ["interp", "cpu", "cpu:x86-64-v3"])
@pytest.mark.parametrize("wanted", [(30, 70), (37, 50), (40, 80), (30, 80), (40, 70), (23, 49)])
def test_results_end_elsewhere_than_their_operands(wanted: tuple[int, int], target: str) -> None:
    """Where an operand ends before the result does, the result is zero; where it goes on, nothing is written."""
    body = """
      %left = tile.load(%a, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 16, d1)>, fill = 0.0 : f64}
        : tensor<16x9xf32>
      %right = tile.load(%b) {map = affine_map<(d0, d1) -> (d0, d1)>, fill = 0.0 : f64} : tensor<9x96xf32>
      %zero = tile.full() {value = 0.0 : f64} : tensor<16x96xf32>
      %y = tile.dot(%left, %right, %zero) : tensor<16x96xf32>
      tile.store(%y, %out, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 16, d1)>}
    """
    rows, columns = wanted
    text = tiles(3, ("34x9", "9x60", f"{rows}x{columns}"), body)
    a, b = (whole_numbers(shape, dtypes.f32, seed) for seed, shape in enumerate(((34, 9), (9, 60))))
    expected = np.zeros((48, 96), np.float32)
    expected[:34, :60] = a @ b
    (found,) = compile_module(parse(text), {}, target)(a, b)
    np.testing.assert_array_equal(found, expected[:rows, :columns])


# ---- what follows a product -----------------------------------------------------------------------------------------

# Tiles are large beside the first-level cache, so that the result is finished block by block.
LARGE = [(389, 8, 48), (384, 8, 96), (1000, 5, 192), (513, 33, 144), (301, 3, 240), (1537, 17, 384)]


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "dtype"),
    [(*size, dtype) for size, dtype in alternating(LARGE, (dtypes.f32, dtypes.f64, dtypes.i32))],
    ids=str,
)
def test_results_are_finished_block_by_block(rows: int, depth: int, columns: int, dtype: DType) -> None:
    """A bias of every shape, a residual along and across, and two results."""
    shape = (rows, columns)
    threads = 1 if (LARGE.index((rows, depth, columns)) + dtype.bits // 32) % 2 else 3

    def make(p: Program) -> list[Value]:
        y = p.dot(p.array(rows, depth, dtype=dtype), p.array(depth, columns, dtype=dtype), 0, 1, 0)
        for small, axes in (((columns,), (1,)), ((rows, 1), (0, 1)), ((1, columns), (0, 1)), ((), ())):
            y = p.map("add", y, p.broadcast(p.array(*small, dtype=dtype), shape, axes))
        along, across = p.array(*shape, dtype=dtype), p.array(columns, rows, dtype=dtype)
        turned = p.add("transpose", [across], permutation=(1, 0))[0]
        return [p.map("add", y, along), p.map("subtract", y, turned)]

    def expected(x: Tensor, w: Tensor, *others: Tensor) -> list[Tensor]:
        a, b, c, d, along, across = others
        y = x @ w + a + b + c + d
        return [y + along, y - across.T]

    check(make, expected, threads)


@pytest.mark.parametrize("narrow", [dtypes.f16, dtypes.bf16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("rows", "depth", "columns"), LARGE)
def test_results_are_narrowed_block_by_block(rows: int, depth: int, columns: int, narrow: DType) -> None:
    def make(p: Program) -> list[Value]:
        y = p.dot(p.array(rows, depth), p.array(depth, columns), 0, 1, 0)
        biased = p.map("add", y, p.broadcast(p.array(columns), (rows, columns), (1,)))
        return [p.add("cast", [biased], dtype=narrow.name)[0]]

    check(make, lambda x, w, b: [(x @ w + b).astype(narrow.numpy)])


@pytest.mark.parametrize("threads", [1, 2])
def test_batched_products_and_convolutions_are_finished_block_by_block(threads: int) -> None:
    def product(x, w, b, image, kernel, c):
        return x @ w + b, tw.nn.relu(tw.nn.conv(image, kernel) + c)

    shapes = ((3, 389, 7), (3, 7, 48), (3, 1, 48), (2, 16, 40, 42), (48, 16, 3, 3), (48, 1, 1))
    x, w, b, image, kernel, c = (whole_numbers(shape, dtypes.f32, seed) for seed, shape in enumerate(shapes))
    with tw.options(target="cpu", threads=threads):
        found = tw.jit(product)(x, w, b, image, kernel, c)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))
    convolved = np.einsum("bchwij,ocij->bohw", windows, kernel) + c
    for got, wanted in zip(found, (x @ w + b, np.maximum(convolved, 0)), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("rows", [384, 389])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_results_are_written_over_what_their_products_read(position: int, rows: int) -> None:
    """The donated array is the left operand, the right one, or what is added."""

    def product(x, w, r):
        return x @ w + r

    arrays = [whole_numbers((rows, rows), dtypes.f32, seed) for seed in range(3)]
    wanted = arrays[0] @ arrays[1] + arrays[2]
    with tw.options(target="cpu", threads=2):
        found = tw.jit(product, donate=("x", "w", "r")[position])(*arrays)
    np.testing.assert_array_equal(found, wanted)


@tw.kernel
def added_in_place(a: tw.In["M K"], b: tw.In["K N"], c: tw.InOut["M N"]):
    for i, j in tw.grid(c, (130, 96)):
        old = c[i, j]
        acc = tw.dot(a[i, :], b[:, j], tw.zeros((130, 96), tw.f32))
        c[i, j] = acc + old * 2.0


@pytest.mark.parametrize("target", ["interp", "cpu", "cpu:x86-64-v3"])
@pytest.mark.parametrize(("rows", "columns"), [(130, 96), (391, 290), (129, 95), (523, 384)])
def test_kernels_read_what_they_write_over(rows: int, columns: int, target: str) -> None:
    a, b, c = (whole_numbers(s, dtypes.f32, n) for n, s in enumerate(((rows, 9), (9, columns), (rows, columns))))
    wanted = a @ b + 2 * c
    with tw.options(target=target, cache=False):
        found = added_in_place(a, b, c)
    np.testing.assert_array_equal(c if found is None else found, wanted)


@pytest.mark.parametrize(
    ("present", "total", "target"),
    [
        (present, total, ("cpu", "cpu:x86-64-v3")[column % 2])
        for row, present in enumerate((40, 100, 150))
        for column, total in enumerate((1, 31, 96, 130, 192, 300))
        if ALL or (row + column // 2) % 2
    ],
)
def test_blocks_lie_beyond_their_arrays(present: int, total: int, target: str) -> None:
    """Tiles of 130 rows and 192 columns: of some register blocks the operands have a part, of some nothing."""
    body = """
      %left = tile.load(%a, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 50, d1)>, fill = 0.0 : f64}
        : tensor<130x9xf32>
      %right = tile.load(%b, %p) {map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 192)>, fill = 0.0 : f64}
        : tensor<9x192xf32>
      %zero = tile.full() {value = 0.0 : f64} : tensor<130x192xf32>
      %y = tile.dot(%left, %right, %zero) : tensor<130x192xf32>
      %place = tile.iota(%p) {map = affine_map<(d0, d1)[s0] -> (d0 * 3 + d1 + s0)>} : tensor<130x192xi64>
      %number = tile.cast(%place) : tensor<130x192xf32>
      %z = tile.map(%y, %number) {fn = "add"} : tensor<130x192xf32>
      tile.store(%z, %out, %p) {map = affine_map<(d0, d1)[s0] -> (s0, d0, d1)>}
    """
    text = tiles(3, (f"{present}x9", f"9x{total}", "3x130x192"), body)
    a, b = (whole_numbers(shape, dtypes.f32, seed) for seed, shape in enumerate(((present, 9), (9, total))))
    left, right = np.zeros((300, 9), np.float32), np.zeros((9, 576), np.float32)
    left[:present], right[:, :total] = a, b
    number = 3 * np.arange(130)[:, None] + np.arange(192)
    expected = [left[p * 50 : p * 50 + 130] @ right[:, p * 192 : p * 192 + 192] + number + p for p in range(3)]
    (found,) = compile_module(parse(text), {}, target)(a, b)
    np.testing.assert_array_equal(found, np.stack(expected))
