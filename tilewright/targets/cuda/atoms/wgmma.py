"""MMAs of warpgroups, each some rows of a tile: `wgmma` on a right operand in a buffer and a left one there or in
registers, asynchronously.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". An instruction has 64 rows, all columns and 32 bytes of the
depth; those of an MMA are one group, which `wait` counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.cost.warps.products import WARPGROUP
from tilewright.errors import CompilerBug
from tilewright.layout import Layout
from tilewright.layout.operations import rename_axis
from tilewright.layout.relayout import Reason
from tilewright.layout.views import permute
from tilewright.passes.warps.warp_space import SHARED
from tilewright.records import dataclass
from tilewright.targets.cuda.atoms import hopper
from tilewright.targets.cuda.atoms.descriptors import OperandFields, descriptor_of, matrix_descriptor
from tilewright.targets.cuda.atoms.mma import words_of
from tilewright.targets.simt.emit_memory import Memory
from tilewright.targets.simt.fragments import I32, Fragment, Threads, Value, i32

_PTX_NAMES = {"bf16": "bf16", "f16": "f16", "i8": "s8", "f32": "f32", "i32": "s32"} | {
    "f8e4m3fn": "e4m3",
    "f8e5m2": "e5m2",
    "tf32": "tf32",
}
_ROWS = 64


@dataclass(frozen=True)
class Begun:
    """An MMA in flight: the registers in which its sums will be, and those that it reads meanwhile."""

    sums: Fragment
    reads: Sequence[Value]


def emit_wgmma(threads: Threads, left: Memory | Fragment, right: Memory, accumulator: Fragment) -> Begun:
    """Begin `accumulator + left @ right`.

    Raises:
        CompilerBug: an operand is as no descriptor reads it, or the accumulator is not dealt to warpgroups.
    """
    builder = threads.builder
    rows, columns = accumulator.layout.static_shape
    own_rows = rows // (threads.extents["warp"] // WARPGROUP)
    b = _fields(right, permute(right.layout, (1, 0)))
    names = (_PTX_NAMES[each.dtype.name] for each in (left, right, accumulator))
    left_major = _fields(left, left.layout).major if isinstance(left, Memory) else "k"
    kind = hopper.Wgmma(columns, *names, left_major=left_major, right_major=b.major)
    count = kind.accumulators
    if own_rows % _ROWS or len(accumulator.values) != own_rows // _ROWS * count:
        raise CompilerBug(f"{accumulator.layout} is not what warpgroups hold of {rows} x {columns}")
    numbers = sorted(accumulator.values)
    words = words_of(builder, left) if isinstance(left, Fragment) else []
    fenced = hopper.wgmma_fence(builder, [accumulator.values[number] for number in numbers], words)
    values, words = fenced[: len(numbers)], fenced[len(numbers) :]
    rights = [_descriptor(threads, b, _address(threads, right), step, 0) for step in range(len(b.offsets))]
    lefts = _of_buffer(threads, left, own_rows, rows) if isinstance(left, Memory) else _split(words, 4)
    steps = len(rights)
    adds = ir.Constant(hopper.I1, 1)
    for part in range(own_rows // _ROWS):
        own = slice(part * count, (part + 1) * count)
        values[own] = hopper.wgmma(builder, kind, values[own], lefts[part * steps : (part + 1) * steps], rights, adds)
    hopper.wgmma_commit(builder)
    return Begun(_fragment(accumulator, numbers, values), words)


def emit_wgmma_wait(threads: Threads, accumulator: Fragment, pending: int, reads: Sequence[Value] = ()) -> Fragment:
    """The accumulator when all MMAs but the newest have been done. `reads`: the registers that its MMA reads, which
    nothing else takes before."""
    numbers = sorted(accumulator.values)
    values = [accumulator.values[number] for number in numbers]
    return _fragment(accumulator, numbers, hopper.wgmma_wait(threads.builder, pending, values, reads)[: len(numbers)])


def _fragment(like: Fragment, numbers: Sequence[int], values: Sequence[Value]) -> Fragment:
    return Fragment(like.layout, like.dtype, dict(zip(numbers, values, strict=True)))


def _of_buffer(threads: Threads, left: Memory, own_rows: int, rows: int) -> list[list[Value]]:
    """The descriptors of a left operand: of each 64 rows of a warpgroup, one after the other, those of all steps."""
    builder, fields = threads.builder, _fields(left, left.layout)
    group = builder.udiv(threads.numbers["warp"], i32(WARPGROUP))
    first = builder.add(_address(threads, left), builder.mul(group, i32(_rows_apart(fields, own_rows, rows))))
    return [
        [_descriptor(threads, fields, first, step, part)]
        for part in range(0, own_rows, _ROWS)
        for step in range(len(fields.offsets))
    ]


def _split(values: Sequence[Value], size: int) -> list[list[Value]]:
    return [list(values[start : start + size]) for start in range(0, len(values), size)]


def _fields(memory: Memory, layout: Layout) -> OperandFields:
    """How an operand is laid out whose layout is of (M or N, K)."""
    found = descriptor_of(rename_axis(layout, SHARED, "mem"), memory.dtype)
    if isinstance(found, Reason):
        raise CompilerBug(f"wgmma does not read an operand in {layout}: {found}")
    return found


def _address(threads: Threads, memory: Memory) -> Value:
    return threads.builder.ptrtoint(memory.pointer, I32)


def _rows_apart(fields: OperandFields, own_rows: int, rows: int) -> int:
    """How many bytes the rows of one warpgroup are from those of the next."""
    starts = [[fields.start(step, row) for row in range(0, rows, own_rows)] for step in range(len(fields.offsets))]
    apart = starts[0][1] - starts[0][0] if rows > own_rows else 0
    if any(start != own[0] + number * apart for own in starts for number, start in enumerate(own)):
        raise CompilerBug("the rows of warpgroups are not equally far from each other")
    return apart


def _descriptor(threads: Threads, fields: OperandFields, address: Value, step: int, line: int) -> Value:
    """The matrix descriptor of a step of the depth, from a line on."""
    start = threads.builder.add(address, i32(fields.start(step, line)))
    return matrix_descriptor(threads.builder, fields.hopper, start)
