"""Kernels that move data, as they are printed, do what NumPy and the simulator do, run on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.cores import native, programs
from tests.cores.builder import Builder
from tests.cores.printed import lines, pad, rearrange
from tests.sampling import alternating
from tilewright.dialects import cores, tile
from tilewright.machines.machine import load
from tilewright.semantics.cores import DeviceArray, run_program

pytestmark = pytest.mark.skipif(not native.can_run(), reason="needs memory below 4 GB, by a flag of Linux on x86-64")
Tensor = np.ndarray[Any, Any]
MACHINES = ("wormhole", "blackhole")


def numbers(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> Tensor:
    return np.random.default_rng(seed).integers(-99, 99, shape).astype(dtype)


def run(kernel: tile.KernelOp, inputs: Sequence[Tensor], machine: str = "wormhole") -> list[Tensor]:
    """The outputs of a kernel, by its text and by the simulator, which have to agree."""

    def arrays() -> list[DeviceArray]:
        by_rows = [cores.is_by_rows(ref) for ref in kernel.refs]
        made = [DeviceArray.from_numpy(each, by_rows=rows) for each, rows in zip(inputs, by_rows, strict=False)]
        for ref in kernel.refs[len(inputs) :]:
            type = tile.ref_type(ref)
            made.append(DeviceArray.undefined(type.shape, type.dtype, by_rows=cores.is_by_rows(ref)))
        return made

    given, simulated = arrays(), arrays()
    assert native.run_movers(kernel, given, load(machine)) == 0
    run_program(kernel, simulated, load(machine))
    found = [each.to_numpy() for each in given[len(inputs) :]]
    for mine, theirs in zip(found, simulated[len(inputs) :], strict=True):
        np.testing.assert_array_equal(mine.astype(np.float64), theirs.to_numpy().astype(np.float64))
    return found


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("shape", [(20, 17), (1, 1), (31, 31), (5, 30)])
def test_elements_by_index(shape, machine):
    x = numbers(shape)
    columns = np.random.default_rng(1).integers(-3, shape[1] + 3, shape).astype(np.int32)
    (found,) = run(programs.shifted_elements(*shape), [x, columns], machine)
    rows = np.arange(shape[0])[:, None] + 1
    inside = (rows < shape[0]) & (columns >= 0) & (columns < shape[1])
    wanted = np.where(inside, x[np.minimum(rows, shape[0] - 1), np.clip(columns, 0, shape[1] - 1)], 0)
    np.testing.assert_array_equal(found, wanted)


def through(dtype: str, pages: int, shape: Sequence[int], fill: Callable[[Builder, Any], None], *more: Any) -> Tensor:
    """What `fill` has a reader put to a queue, each page a page of the output, which is a row of pages."""
    shape_of_cores = (1, 1)
    b = Builder(shape_of_cores, [*((each.shape, name, "in") for each, name in more), ((32, 32 * pages), dtype, "out")])
    queue = b.queue(dtype, pages)
    with b.thread("reader"):
        b.reserve(queue, pages)
        fill(b, queue)
        b.push(queue, pages)
    with b.thread("writer"):
        b.wait(queue, pages)
        b.put(len(more), queue, "0, d0", extents=(pages,))
        b.barrier("write")
        b.pop(queue, pages)
    (found,) = run(b.finished(), [each for each, _ in more])
    return found.reshape(32, pages, 32).swapaxes(0, 1)


@pytest.mark.parametrize("dtype", ["i32", "f32", "bf16"])
def test_numbers_by_place(dtype):
    found = through(dtype, 2, (), lambda b, queue: b.generate(queue, "3 * d0 - 5 * d1 + 200 * d2 - 7", count=2))
    page, row, column = np.indices((2, 32, 32))
    wanted = (3 * row - 5 * column + 200 * page - 7).astype(np.float32)
    np.testing.assert_array_equal(
        found.astype(np.float32), wanted.astype(ml_dtypes.bfloat16 if dtype == "bf16" else dtype[0] + "4")
    )


@pytest.mark.parametrize("limit", [3.5, -2.0, 0.0, 1e9, -np.inf])
def test_choices_of_two_numbers(limit):
    found = through("f32", 1, (), lambda b, queue: b.generate(queue, "d0 - d1", choice=(limit, -1.25, np.inf)))
    _, row, column = np.indices((1, 32, 32))
    np.testing.assert_array_equal(found, np.where(row - column < limit, np.float32(-1.25), np.inf))


@pytest.mark.parametrize(("dtype", "number"), [("bf16", -2), ("i32", 7), ("f32", 3)])
def test_pages_of_one_number(dtype, number):
    found = through(dtype, 2, (), lambda b, queue: b.generate(queue, str(number), count=2))
    np.testing.assert_array_equal(found.astype(np.float32), np.full((2, 32, 32), number, np.float32))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_scalers_are_in_the_first_row_of_each_face(dtype):
    found = through(dtype, 2, (), lambda b, queue: b.generate(queue, "2", count=2, face_rows=True))
    wanted = np.zeros((2, 32, 32), np.float32)
    wanted[:, ::16] = 2
    np.testing.assert_array_equal(found.astype(np.float32), wanted)


def test_pages_outside_of_an_array_are_zero_and_edges_are_padded():
    x = numbers((40, 45))
    window = "d0 - 1, d1 - 1"

    def fill(b: Builder, queue: Any) -> None:
        b.fetch(0, queue, window, extents=(4, 4), at="4 * d0 + d1", zeros=True)
        b.barrier("read")
        pad(b, 0, queue, window, [], (4, 4), "4 * d0 + d1", 7.5)

    found = through("f32", 16, (), fill, (x, "f32"))
    whole = np.full((128, 128), 7.5, np.float32)
    whole[32:72, 32:77] = x
    np.testing.assert_array_equal(found, whole.reshape(4, 32, 4, 32).swapaxes(1, 2).reshape(16, 32, 32))


@pytest.mark.parametrize("only", ["rows", "columns", "pages", None])
def test_pages_outside_in_other_dims_are_filled_whole(only):
    x = numbers((3, 40, 45))

    def fill(b: Builder, queue: Any) -> None:
        b.fetch(0, queue, "d0 + 1, d1, d2", extents=(4, 2, 2), at="4 * d0 + 2 * d1 + d2", zeros=True)
        b.barrier("read")
        more = {} if only is None else {"only": only}
        pad(b, 0, queue, "d0 + 1, d1, d2", [], (4, 2, 2), "4 * d0 + 2 * d1 + d2", 7.5, **more)

    found = through("f32", 16, (), fill, (x, "f32"))
    whole = np.full((4, 64, 64), 7.5, np.float32)
    whole[:2, :40, :45] = x[1:]
    # Elements along a side that is not asked for are not touched: what is there is undefined.
    counts = np.ones((4, 64, 64), bool)
    counts[:2] = False
    counts[:2, :40, :45] = True
    counts[:2, 40:] |= only in ("rows", None)
    counts[:2, :, 45:] |= only in ("columns", None)
    pages = [each.reshape(4, 2, 32, 2, 32).swapaxes(2, 3).reshape(16, 32, 32) for each in (whole, counts)]
    np.testing.assert_array_equal(np.where(pages[1], found, 0), np.where(pages[1], pages[0], 0))


@pytest.mark.parametrize(
    ("shape", "rows", "columns"),
    [((3, 37, 35), 1, 2), ((3, 37, 35), 2, 0), ((3, 37, 5), -1, 1), ((3, 7, 5), 0, -1), ((1, 1, 40), 2, 1)],
)
def test_tiles_of_three_dims_are_gathered_in_any_form(shape, rows, columns):
    x = numbers((5, 40, 50), ml_dtypes.bfloat16)
    counts = [1 if d == -1 else -(-shape[d] // 32) for d in (rows, columns)]
    outer = [d for d in range(3) if d not in (rows, columns)]
    pages = int(np.prod([shape[d] for d in outer])) * counts[0] * counts[1]

    def fill(b: Builder, queue: Any) -> None:
        b.gather(0, queue, "d0 + 3, d1, d2 - 2", shape=shape, rows=rows, columns=columns, fill=0.5)

    found = through("bf16", pages, (), fill, (x, "bf16"))
    wanted = np.full(shape, 0.5, ml_dtypes.bfloat16)
    wanted[:2, :, 2:] = x[3 : 3 + shape[0], : shape[1], : shape[2] - 2]
    order = [*outer, *(d for d in (rows, columns) if d >= 0)]
    tiles = np.full((pages // (counts[0] * counts[1]), 32 * counts[0], 32 * counts[1]), 0.5, ml_dtypes.bfloat16)
    sizes = [shape[d] if d >= 0 else 1 for d in (rows, columns)]
    tiles[:, : sizes[0], : sizes[1]] = wanted.transpose(order).reshape(-1, *sizes)
    tiles = tiles.reshape(-1, counts[0], 32, counts[1], 32).swapaxes(2, 3).reshape(pages, 32, 32)
    np.testing.assert_array_equal(found, tiles)


def test_elements_change_places_between_queues():
    """A tile of 40 x 50 is transposed."""
    x = numbers((40, 50), np.int32)
    b = Builder((1, 1), [((40, 50), "i32", "in"), ((50, 40), "i32", "out")])
    queue, turned = b.queue("i32", 4), b.queue("i32", 4)
    with b.thread("reader"):
        b.reserve(queue, 4)
        b.fetch(0, queue, "d0, d1", extents=(2, 2), at="2 * d0 + d1")
        b.barrier("read")
        b.push(queue, 4)
        b.wait(queue, 4)
        b.reserve(turned, 4)
        rearrange(b, queue, turned, (50, 40), ("d1, d0", (40, 50), (0, 1)), ("d0, d1", (50, 40), (0, 1)))
        b.pop(queue, 4)
        b.push(turned, 4)
    with b.thread("writer"):
        b.wait(turned, 4)
        b.put(1, turned, "d0, d1", extents=(2, 2), at="2 * d0 + d1")
        b.barrier("write")
        b.pop(turned, 4)
    (found,) = run(b.finished(), [x])
    np.testing.assert_array_equal(found, x.T)


LINES = [
    (cores.ScanOp, {"fn": "add", "reverse": False}, "f32"),
    (cores.ScanOp, {"fn": "add", "reverse": True}, "bf16"),
    (cores.ScanOp, {"fn": "multiply", "reverse": False}, "f32"),
    (cores.ScanOp, {"fn": "add", "reverse": True}, "i32"),
    (cores.ScanOp, {"fn": "multiply", "reverse": True}, "i32"),
    (cores.ScanOp, {"fn": "bitwise_xor", "reverse": True}, "i32"),
    (cores.ScanOp, {"fn": "bitwise_and", "reverse": False}, "i32"),
    (cores.ScanOp, {"fn": "maximum", "reverse": False}, "f32"),
    (cores.ScanOp, {"fn": "minimum", "reverse": True}, "bf16"),
    (cores.ScanOp, {"fn": "minimum", "reverse": False}, "i32"),
    (cores.SortOp, {"descending": False}, "f32"),
    (cores.SortOp, {"descending": True}, "bf16"),
    (cores.SortOp, {"descending": True}, "i32"),
]


@pytest.mark.parametrize(
    ("cls", "attributes", "format", "axis"), [(*line, axis) for line, axis in alternating(LINES, (0, 1))]
)
def test_lines_are_scanned_and_sorted(cls, attributes, format, axis):
    """Sorts take the places along, of which those of equal numbers stay in order."""
    shape = (37, 70)
    x = np.random.default_rng(3).integers(-4, 5, shape).astype(np.int32)
    if format != "i32":
        x = (x / 4).astype({"f32": np.float32, "bf16": ml_dtypes.bfloat16}[format])
        x[5, 7], x[3, 0], x[9, 69] = np.nan, -np.inf, np.inf
    sorts = cls is cores.SortOp
    formats = [format, "i32"] if sorts else [format]
    inputs = [x, np.indices(shape)[axis].astype(np.int32)][: len(formats)]
    b = Builder((1, 1), [*((shape, f, "in") for f in formats), *((shape, f, "out") for f in formats)])
    queues = [[b.queue(f, 6) for f in formats] for _ in range(3 if sorts else 2)]
    with b.thread("reader"):
        for number, queue in enumerate(queues[0]):
            b.reserve(queue, 6)
            b.fetch(number, queue, "d0, d1", extents=(2, 3), at="3 * d0 + d1")
            b.barrier("read")
            b.push(queue, 6)
            b.wait(queue, 6)
        for queue in queues[1]:
            b.reserve(queue, 6)
        lines(b, cls, queues if sorts else [*queues, []], shape, axis, **attributes)
        for source, queue in zip(*queues[:2], strict=True):
            b.pop(source, 6)
            b.push(queue, 6)
    with b.thread("writer"):
        for number, queue in enumerate(queues[1]):
            b.wait(queue, 6)
            b.put(len(formats) + number, queue, "d0, d1", extents=(2, 3), at="3 * d0 + d1")
            b.barrier("write")
            b.pop(queue, 6)
    found = run(b.finished(), inputs)
    if sorts:
        taken = np.take_along_axis(x, found[1], axis)
        np.testing.assert_array_equal(taken.astype(np.float64), found[0].astype(np.float64))
        in_order = np.argsort(x.astype(np.float64), axis=axis, kind="stable")
        if not attributes["descending"]:
            np.testing.assert_array_equal(found[1], in_order)


def test_elements_are_turned_in_a_loop():
    x = numbers((2, 20, 17), ml_dtypes.bfloat16)
    (found,) = run(programs.turned_elements(20, 17, 2), [x])
    np.testing.assert_array_equal(found, x.swapaxes(1, 2))


def test_a_reader_goes_through_what_it_made_itself():
    """Lines of rows, then the line of what they gave, from a queue that the reader fills and empties."""
    x = numbers((20, 30), np.int32)
    b = Builder((1, 1), [((20, 30), "i32", "in"), ((1, 1), "i32", "out")])
    queue, between, result = (b.queue("i32", 1) for _ in range(3))
    steps = ((queue, between, (20, 30), 1, {}), (between, result, (20, 1), 0, {"rows": 0, "columns": -1}))
    with b.thread("reader"):
        b.reserve(queue)
        b.fetch(0, queue, "0, 0")
        b.barrier("read")
        b.push(queue)
        for source, target, shape, axis, more in steps:
            b.wait(source)
            b.reserve(target)
            lines(b, cores.ScanOp, [[source], [target], []], shape, axis, fn="bitwise_xor", reverse=True, **more)
            b.push(target)
            b.pop(source)
    with b.thread("writer"):
        b.wait(result)
        b.put(1, result, "0, 0")
        b.barrier("write")
        b.pop(result)
    (found,) = run(b.finished(), [x])
    np.testing.assert_array_equal(found, [[np.bitwise_xor.reduce(x, None)]])


def test_each_core_does_its_own_part():
    x = numbers((96, 128), np.int32)
    b = Builder((3, 2), [((96, 128), "i32", "in"), ((96, 128), "i32", "out")])
    queue = b.queue("i32", 2)
    here = [b.row, b.column]
    for role in ("reader", "writer"):
        with b.thread(role):
            if role == "reader":
                b.reserve(queue, 2)
                b.fetch(0, queue, "s0, 2 * s1 + d0", here, extents=(2,))
                b.barrier("read")
                b.push(queue, 2)
            else:
                b.wait(queue, 2)
                with b.loop(2, "s0 + 2", [b.row]) as i, b.choice("(s0 + s1) % 2", [i, b.row]) as (even, odd):
                    for block, target in ((even, "s1, 2 * s2 + s0"), (odd, "s1 * -1 + 2, 2 * s2 + s0")):
                        with b.within(block):
                            b.put(1, queue, target, [i, *here], at="s0")
                b.barrier("write")
                b.pop(queue, 2)
    (found,) = run(b.finished(), [x])
    wanted = np.zeros_like(x)
    for row in range(3):
        for page in range(4):
            target = row if (page % 2 + row) % 2 == 0 else 2 - row
            wanted[32 * target : 32 * target + 32, 32 * page : 32 * page + 32] = x[
                32 * row : 32 * row + 32, 32 * page : 32 * page + 32
            ]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("before", "after"), [((40, 50), (20, 100)), ((6, 35), (210,)), ((3, 33, 4), (12, 33))])
def test_a_reshape_of_a_compiled_program(before, after, machine):
    x = numbers(before)
    compiled: Any = tw.jit(lambda x: x.reshape(after)).lower(x).compile(target=f"grid:{machine}")
    (kernel,) = compiled.executable.unit.kernels()
    (found,) = run(kernel, [x], machine)
    np.testing.assert_array_equal(found, x.reshape(after))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("shape", "width"), [((), 1), ((7,), 1), ((33, 65), 2), ((5, 1), 1), ((2, 3, 40, 270), 4)])
def test_rows(shape, width, dtype, machine):
    """From an array by rows to another one, some pages of tiles side by side at a time, by a core for every part."""
    *outer, down, across = cores.page_grid(shape)
    parts, matrices = -(-across // width), int(np.prod(outer))
    b = Builder((down, parts), [(shape, dtype, "in"), (shape, dtype, "out")], by_rows=(0, 1))
    queue = b.queue(dtype, matrices * width)
    places = {"extents": (1, width), "at": "d1"}
    for role, move in (("reader", b.fetch_rows), ("writer", b.put_rows)):
        with b.thread(role), b.loop(matrices) as matrix:
            split = "".join(f"s0 // {int(np.prod(outer[n + 1 :]))} % {size}, " for n, size in enumerate(outer))
            (b.reserve if role == "reader" else b.wait)(queue, width)
            symbols = [matrix, b.row, b.column]
            move(int(role == "writer"), queue, f"{split}s1 + d0, {width} * s2 + d1", symbols, **places)
            b.barrier("read" if role == "reader" else "write")
            (b.push if role == "reader" else b.pop)(queue, width)
    x = numbers(shape, ml_dtypes.bfloat16 if dtype == "bf16" else np.float32)
    (found,) = run(b.finished(), [x], machine)
    np.testing.assert_array_equal(found, x)


def test_what_is_wrong_is_counted():
    b = Builder((1, 1), [((32, 32), "i32", "in")])
    queue = b.queue("i32", 1)
    with b.thread("reader"):
        b.wait(queue)
        b.pop(queue)
    assert native.run_movers(b.finished(), [DeviceArray.from_numpy(numbers((32, 32), np.int32))], load("wormhole")) > 0


@pytest.mark.parametrize("corner", [(1, 32), (32, 1), (1, 1), (5, 8)])
@pytest.mark.parametrize("dtype", ["i32", "f32", "bf16"])
def test_corners_of_pages_by_place(dtype, corner):
    """Of an array that has no other elements than those that are stored."""
    rows, columns = corner
    b = Builder((1, 1), [(corner, dtype, "out")])
    queue = b.queue(dtype, 1)
    with b.thread("reader"):
        b.reserve(queue)
        b.generate(queue, "3 * d0 - 5 * d1 - 7", corner=corner)
        b.push(queue)
    with b.thread("writer"):
        b.wait(queue)
        b.put(0, queue, "0, d0", extents=(1,))
        b.barrier("write")
        b.pop(queue)
    (found,) = run(b.finished(), [])
    row, column = np.indices((rows, columns))
    np.testing.assert_array_equal(found.astype(np.float32), (3 * row - 5 * column - 7).astype(np.float32))
