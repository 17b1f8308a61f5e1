"""Programs that are printed in tests, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.dialects.builtin import DenseArrayBase, FloatAttr, f64, i32

from tests.cores import programs
from tests.cores.builder import Builder, affine
from tilewright import dtypes, ops
from tilewright.dialects import cores, tile
from tilewright.machines import machine as machines
from tilewright.targets.grid.emit import ProgramSource, emit_program

MACHINES = ("wormhole", "blackhole")
NAMED: dict[str, Callable[[], tile.KernelOp]] = {
    "elementwise": lambda: programs.elementwise(8, 2, 4, rows=3),
    "matmul": lambda: programs.single_core_matmul(2, 3, 2),
    "accumulated": lambda: programs.single_core_matmul(2, 3, 2, accumulates=True),
    "multicast": lambda: programs.multicast_matmul(2, 3, 4),
    "row sums": lambda: programs.row_sums(3, padding=5),
    "to one": lambda: programs.gather_to_one(4),
    "through memory": lambda: programs.through_memory(3, "f32"),
    "by elements": lambda: programs.shifted_elements(20, 17),
    "all movers": lambda: all_movers(),
    "all computing": lambda: all_computing(),
    "rows and tiles": lambda: rows_and_tiles(),
    "control flow": lambda: control_flow(),
}


def source_of(name: str, machine: str = "wormhole") -> ProgramSource:
    return emit_program(NAMED[name](), machines.load(machine))


def texts(source: ProgramSource) -> dict[str, str]:
    found = {"reader": source.reader, "compute": source.compute, "writer": source.writer}
    return {role: text for role, text in found.items() if text is not None}


def formats_of(kernel: tile.KernelOp) -> list[str]:
    return [op.result.type.format.data for op in kernel.walk() if isinstance(op, cores.QueueOp)]  # type: ignore[union-attr]


def is_wide(kernel: tile.KernelOp) -> bool:
    return any(isinstance(op, cores.ProgramOp) and op.wide for op in kernel.walk())


def pad(
    b: Builder,
    array: int,
    queue: Any,
    map: str,
    symbols: Sequence[Any],
    extents: Sequence[int],
    at: str,
    fill: float,
    **more: Any,
) -> None:
    given = len(symbols)
    attributes = {
        "extents": tuple(extents),
        "map": affine(map, len(extents), given),
        "fill": FloatAttr(fill, f64),
    } | more
    b.add(cores.PadOp, [b.arrays[array], queue, *symbols], attributes | {"at": affine(at, len(extents), given)})


def rearrange(b: Builder, source: Any, queue: Any, extents: Sequence[int], *places: tuple[Any, ...]) -> None:
    """`places`: of the source and of the queue the map, the shape of the tile, and its dims along rows and columns."""
    attributes: dict[str, Any] = {"extents": tuple(extents)}
    for prefix, (map, shape, (rows, columns)) in zip(("source_", ""), places, strict=True):
        attributes |= {f"{prefix}map": affine(map, len(extents), 0), f"{prefix}shape": tuple(shape)}
        attributes |= {f"{prefix}rows": rows, f"{prefix}columns": columns}
    b.add(cores.RearrangeOp, [source, queue], attributes)


def lines(b: Builder, cls: Any, queues: Sequence[Sequence[Any]], shape: Sequence[int], axis: int, **more: Any) -> None:
    """`queues`: those of the sources, of the results and those between; the dims along rows and columns are the last
    two."""
    sizes = DenseArrayBase.from_list(i32, [len(each) for each in queues])
    attributes = {"axis": axis, "shape": tuple(shape), "rows": len(shape) - 2, "columns": len(shape) - 1}
    b.add(cls, [q for each in queues for q in each], attributes | more | {"operandSegmentSizes": sizes})


def all_movers() -> tile.KernelOp:
    """Each operation of threads that move data, with places that may be outside of arrays; it does nothing sensible."""
    shape = (3, 70, 45)
    refs = [(shape, "f32", "in"), ((50,), "i32", "in"), (shape, "f32", "out"), ((40, 40), "bf16", "in")]
    refs += [((3, 70, 130), "f32", "in"), ((130,), "f32", "out")]
    b = Builder((2, 4), refs, by_rows=(4, 5))
    x, y, w = (b.queue("f32", 16) for _ in range(3))
    i, h, z = b.queue("i32", 12), b.queue("bf16", 4), b.queue("i32", 4)
    ready, sent = b.semaphore(), b.semaphore(3)
    here = [b.row, b.column]
    with b.thread("reader"):
        b.reserve(x, 4)
        with b.loop(5) as k:
            b.fetch(0, x, "s2 - 1, d0 + s0, d1 - s1", [*here, k], extents=(2, 2), at="2 * d0 + d1", zeros=True)
            b.barrier("read")
            pad(b, 0, x, "s2 - 1, d0 + s0, d1 - s1", [*here, k], (2, 2), "2 * d0 + d1", 1.5)
            b.fetch_rows(4, x, "s2, s0, d0 + 2 * s1", [*here, k], extents=(2,), at="d0 + 2")
            b.barrier("read")
        b.push(x, 4)
        b.reserve(i, 2)
        b.generate(i, "d0 * 32 + d1 + 1024 * d2 - s1", here, count=2)
        b.push(i, 2)
        b.reserve(h, 2)
        b.generate(h, "d0 + d1 - s0", here, choice=(30.5, 1.0, float("-inf")))
        b.generate(h, "1", face_rows=True)
        b.generate(h, "d0 - d1", count=2)
        b.push(h, 2)
        b.wait(i, 2)
        b.reserve(y, 4)
        b.gather(0, y, "s0, d1 + s2, d0 - s1", [*here], [i], shape=(3, 40, 45), rows=1, columns=2, fill=float("inf"))
        b.push(y, 4)
        b.reserve(z, 4)
        b.gather(1, z, "d0 + s0", [b.column], shape=(50,), rows=-1, columns=0)
        b.push(z, 4)
        b.reserve(i, 4)
        b.wait(z, 4)
        rearrange(b, z, i, (40, 30), ("d0, d1", (40, 50), (0, 1)), ("d1, d0", (50, 40), (1, 0)))
    with b.thread("writer"):
        b.wait(x, 4)
        b.send(x, w, "s0, (s1 + 1) % 4", here, at="1", to="s1", pages=2)
        b.increment(ready, "s0, (s1 + 1) % 4", here, value=2)
        b.wait_semaphore(ready, 2, at_least=True)
        b.set(ready, 0)
        b.reserve(w, 2)
        b.multicast(w, "0, 0, s0, 3", here, at="1", pages=1)
        b.multicast(w, "0, s1, 1, s1", here, pages=2)
        b.barrier("write")
        b.multicast_semaphore(sent, "1, 0, 1, 3")
        b.barrier("write")
        b.put(2, x, "d0, s0, s1", here, extents=(3,))
        b.scatter(2, x, "d0 - s0, d1, d2", here, shape=(2, 40, 33), rows=1, columns=2)
        b.put_rows(5, x, "s0, s1 + d0", here, extents=(2,))
        b.increment(ready, "0, 0")
        b.barrier("write")
        b.pop(x, 4)
    return b.finished()


def all_computing() -> tile.KernelOp:
    """Each operation of the thread that computes, in many forms."""
    b = Builder((1, 1), [((32, 32), "bf16", "in"), ((32, 32), "bf16", "out")])
    x, y, ones, z, f, i = (b.queue(name, 8) for name in ("bf16", "bfp8", "bf16", "bf16", "f32", "i32"))
    with b.thread("compute"):
        b.wait(x, 8)
        b.reserve(z, 8)
        for sequence in range(2):
            b.registers("acquire")
            b.copy(x, 0, 2, at="2 * d0 + 1")
            for broadcast in ("row", "column", "scalar"):
                b.copy(x, 1, broadcast=broadcast)
            b.copy(y, 2, 2, transpose=True)
            for fn in ("add", "subtract", "multiply"):
                for broadcast in ("none", "row", "column", "scalar"):
                    b.binary(fn, x, y, 0, 3, "d0", "0", broadcast=broadcast)
                b.binary(fn, x, y, accumulates=True)
            b.matmul(x, y, (2, 2, 3), left_at="1", right_at="2", left_stride=4, right_stride=2)
            b.matmul(x, y, (1, 1, 1), transpose=True)
            for fn in ("add", "maximum"):
                for along in ("row", "column", "scalar"):
                    b.reduce(x, ones, fn, along, pages=4, at="d0 + 4")
            for along in ("row", "column"):
                b.fold("minimum", along, 1, 2)
            b.cast(0, 0, "f32", "bf16")
            b.registers("commit")
            b.registers("wait")
            if sequence:
                b.configure("edges", "row")
            b.pack(z, 0, 2, at="d0 * 3")
            b.configure("edges", "none")
            b.registers("release")
            b.registers("acquire")
            b.tilize(x, 1, 4, at="d0 + 4")
            b.registers("commit")
            b.registers("wait")
            b.pack(z, 1, 4)
            b.registers("release")
        b.push(z, 8)
    with b.thread("reader"):
        b.reserve(f)
        b.reserve(i)
    return b.finished()


def rows_and_tiles() -> tile.KernelOp:
    """Tiles are packed as rows, and as they are, in loops and choices."""
    b = Builder((2, 1), [((32, 64), "bf16", "in"), ((32, 64), "bf16", "out")])
    x, z = b.queue("bf16", 4), b.queue("bf16", 4)

    def packed(pack: Callable[..., None], count: int) -> None:
        b.registers("acquire")
        b.copy(x, 0, count)
        b.registers("commit")
        b.registers("wait")
        pack(z, 0, count)
        b.registers("release")

    with b.thread("compute"), b.loop(4):
        packed(b.untilize, 4)
        packed(b.untilize, 2)
        with b.choice("s0", [b.row]) as (then, otherwise):
            with b.within(then):
                packed(b.pack, 4)
            with b.within(otherwise):
                packed(b.untilize, 2)
        packed(b.pack, 1)
    return b.finished()


def control_flow() -> tile.KernelOp:
    """Loops with ends, choices inside of loops, and packing on top of what is there, by counters."""
    b = Builder((3, 2), [((32, 64), "bf16", "in"), ((32, 64), "bf16", "out")])
    x, z = b.queue("bf16", 2), b.queue("bf16", 2)
    here = [b.row, b.column]
    with b.thread("reader"), b.loop(7, "3 * s0 + s1 - 2", here) as i, b.loop(1), b.loop(4, "s0", [b.row]) as j:
        with b.choice("(s0 + s1) % 3", [i, j]) as (then, otherwise):
            with b.within(then):
                b.reserve(x)
            with b.within(otherwise), b.zero("s0 - 2", [j]):
                b.push(x)
        b.fetch(0, x, "0, (s0 - s1) // 2", [i, j])
    with b.thread("compute"), b.loop(6) as k:
        b.accumulate("s0", [k])
        b.registers("acquire")
        with b.choice("s0", [b.row]) as (then, otherwise):
            with b.within(then):
                b.copy(x)
                b.map("exp", [0])
            with b.within(otherwise):
                b.copy(x, broadcast="row")
                b.map("add", [0, -1], numbers=[2.5])
        b.map("exp", [0])
        b.map("add", [0, 1])
        b.map("add", [0, -1], numbers=[1.0])
        b.registers("commit")
        b.registers("wait")
        b.pack(z)
        b.registers("release")
    return b.finished()


# What the vector unit has no call for, by type.
REFUSED = {
    "f32": {
        "copysign",
        "hypot",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_not",
        "shift_left",
        "shift_right",
    },
    "i32": {"sign", "power"},
    "u32": {"sign", "absolute", "floor_divide", "power"},
}


def functions_of(dtype: str) -> list[str]:
    kind = dtypes.by_name(dtype).kind
    return [
        name for name, row in ops.FUNCTIONS.items() if kind in row.kinds or (dtype == "f32" and name in REFUSED["f32"])
    ]


def program_of(fn: str, dtype: str, numbers: bool) -> tile.KernelOp:
    """A program with one function, of registers or of a register and a number on each side."""
    b = Builder((1, 1), [((32, 32), dtype, "in"), ((32, 32), dtype, "out")])
    x, z = b.queue(dtype, 2), b.queue(dtype, 2)
    arity = ops.FUNCTIONS[fn].arity
    with b.thread("compute"):
        b.registers("acquire")
        b.copy(x, 0, 1)
        if not numbers:
            b.map(fn, list(range(arity)), dtype=dtype)
        elif arity == 2:
            b.map(fn, [0, -1], numbers=[3.0], dtype=dtype)
            b.map(fn, [-1, 0], numbers=[3.0], dtype=dtype)
        b.registers("commit")
        b.registers("wait")
        b.pack(z)
        b.registers("release")
    return b.finished()
