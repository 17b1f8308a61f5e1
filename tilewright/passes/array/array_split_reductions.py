"""Cut reductions of many elements to few results into parts, so that there is work for many threads.

Such a reduction becomes one in parts, which reads windows of the producers that it fuses with, followed by a reduction
over the parts. So do the rows of columns, where these are too few to be shared, or where their rows are read again, as
by norms: reductions in parts take rows in order of memory, one kernel of all takes columns one tile after the other.
The number of parts depends on shapes alone, so that results do not depend on the number of threads. Of a concatenation,
and of what is computed of it, each operand is reduced. Parts of narrow floats that would be rounded are cast to the
type that they are computed in first.

Before:
    func.func @main(%x: tensor<2x131072xi32>) -> tensor<2xi32> {
      %z = array.reduce(%x) {fn = "add", axes = array<i64: 1>} : tensor<2xi32>
      func.return %z : tensor<2xi32>
    }
After:
    func.func @main(%x: tensor<2x131072xi32>) -> tensor<2xi32> {
      %parts = array.reduce(%x) {fn = "add", axes = array<i64: 1>, part = 8192 : index, part_axis = 1 : index}
        : tensor<16x2xi32>
      %z = array.reduce(%parts) {fn = "add", axes = array<i64: 0>} : tensor<2xi32>
      func.return %z : tensor<2xi32>
    }
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

import msgspec
from xdsl.ir import Operation, SSAValue

from tilewright.cost.vectors.reductions import THREADS as REDUCTION_THREADS
from tilewright.cost.vectors.reductions import Reduction, best_reduction_tile, reduction_seconds
from tilewright.cost.vectors.tiles import TURNED_LINE
from tilewright.cost.warps.loops import reduction_blocks
from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.dialects.walks import reached
from tilewright.errors import CompilerBug
from tilewright.machines.machine import Machine
from tilewright.passes.array.array_simplify import drop_unused, reduced_as_stored
from tilewright.passes.array.fusion import ELEMENTWISE, describe, is_splat, results_through
from tilewright.passes.array.reduction_sources import copy_sources
from tilewright.passes.array.split_sums import LEAST_PART, MOST_PARTS, parts_of, replace_by_parts
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType

# The most results, which are one tile, and the fewest elements of a reduction in parts; of columns, all together.
FEW_RESULTS = 8
LEAST_REDUCED, LEAST_IN_COLUMNS = 1 << 17, 1 << 15
# Fewer equal parts than these are no work for many threads: parts of a multiple of so many elements then.
FEW_PARTS = 8
UNEQUAL_PART = 1024
# The most operands of a concatenation that are reduced apart.
MOST_JOINED = 32
# The most rows of columns that are reduced and read again for which one kernel takes some columns after the other.
# Measured: 600 x 5000 and 300 x 20000 take 0.4 to 0.7 of the time of parts so, 1000 x 100 1.3.
MOST_WHOLE_ROWS = 768
# Operations between a reduction and a concatenation that are looked at.
MOST_BETWEEN = 64


# A second kernel takes as long as reading so many elements by too few blocks loses.
LEAST_SHARED = 1 << 24
# Blocks of a core that hide each other's waiting, and lines of a part that a block adds up.
BLOCKS_A_CORE = 4
LEAST_LINES = 128
# The part of the predicted time that parts of columns may take.
_MUCH_BETTER = 0.6


class ArraySplitReductionsPass(msgspec.Struct, frozen=True):
    """`fills_cores`: reductions of many elements are split as well where their blocks are too few for the machine's
    cores."""

    name: ClassVar[str] = "array-split-reductions"
    fills_cores: bool = False

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in [op for op in block.ops if isinstance(op, array.ReduceOp)]:
                if not self.fills_cores or not _share_among_cores(unit, op):
                    _consider_reduction(unit, op, many=not self.fills_cores)
            if not self.fills_cores:
                copy_sources(block, unit.machine)
            drop_unused(block)


def _share_among_cores(unit: Unit, op: array.ReduceOp) -> bool:
    """Split a reduction of so few blocks that cores would wait for memory; whether it is split."""
    source, result = array_type(op.operands[0]), array_type(op.results[0])
    blocks, wanted = reduction_blocks(source.shape, op.axes, unit.machine.cores), BLOCKS_A_CORE * unit.machine.cores
    if source.size < LEAST_SHARED or blocks >= wanted or result.dtype != result.dtype.compute:
        return False
    axis = op.axes[0]
    least = LEAST_PART if axis == len(source.shape) - 1 else LEAST_LINES
    fitting = [n for n in range(2, MOST_PARTS + 1) if source.shape[axis] % n == 0 and source.shape[axis] // n >= least]
    if not fitting:
        return False
    parts = next((n for n in fitting if n * blocks >= wanted), fitting[-1])
    subject = _subject(op)
    _replace(op, axis, source.shape[axis] // parts)
    why = f"{blocks} blocks are too few for {unit.machine.cores} cores"
    unit.remarks.append(Remark(ArraySplitReductionsPass.name, subject, f"{parts} parts", why))
    return True


def _subject(op: array.ReduceOp) -> str:
    return f"{describe([op])} at {where(op)}"


def _consider_reduction(unit: Unit, op: array.ReduceOp, many: bool) -> None:
    """Split a long reduction; `many`: one to many results too."""
    source, few = array_type(op.operands[0]), array_type(op.results[0]).size <= FEW_RESULTS
    is_long = (source.size if many and not few else _reduced(op)) >= LEAST_REDUCED
    are_columns = many and source.rank - 1 not in op.axes and source.size >= LEAST_IN_COLUMNS
    join = _join_of(op) if many or few else None
    if not many and not is_long:
        join = None  # a kernel for each operand would take longer to launch than to run
    if _rounds(op) and ((few and is_long) or join is not None):
        op = _in_compute_type(op)
    if join is not None:
        for each in _of_operands(op, join):
            _consider_reduction(unit, each, many)
        return
    if not is_long and not are_columns:
        return
    subject = _subject(op)
    if few and is_long:
        parts, why = _split_reduction(op)
    elif are_columns:
        parts, why = _split_columns(op, unit.machine)
    else:
        parts, why = 1, _work_for_many(op)
    decision = "as a whole" if parts == 1 else f"{parts} parts"
    unit.remarks.append(Remark(ArraySplitReductionsPass.name, subject, decision, why))


def _reduced(op: array.ReduceOp) -> int:
    """How many elements are reduced to a result."""
    shape = array_type(op.operands[0]).shape
    return math.prod(shape[d] for d in op.axes)


def _rounds(op: array.ReduceOp) -> bool:
    """Whether parts would be rounded that the whole is not."""
    dtype = array_type(op.results[0]).dtype
    return dtype != dtype.compute and op.fn not in ("maximum", "minimum")


def _in_compute_type(op: array.ReduceOp) -> array.ReduceOp:
    """A reduction of what is cast to the type that it is computed in, in place of one; what it gives is cast back."""
    source, result = array_type(op.operands[0]), array_type(op.results[0])
    wide = array.CastOp(arguments=[op.operands[0]], outputs=[tensor(ArrayType(source.shape, source.dtype.compute))])
    made = rebuilt(op, [wide.results[0]], [tensor(ArrayType(result.shape, result.dtype.compute))])
    narrow = array.CastOp(arguments=[made.results[0]], outputs=[op.results[0].type])
    for each in (wide, made, narrow):
        insert_like(op, each)
    op.results[0].replace_all_uses_with(narrow.results[0])
    erase(op)
    return made


def _join_of(op: array.ReduceOp) -> array.ConcatOp | None:
    """The concatenation along a reduced axis that a reduction reads, elementwise and alone."""
    few = array_type(op.results[0]).size <= FEW_RESULTS
    if op.part is not None or (not few and _is_read_again(op)):
        return None
    pending, found = [op.operands[0]], list[array.ConcatOp]()
    seen: set[SSAValue] = set()
    while pending:
        value = pending.pop()
        owner = value.owner
        if value in seen or not _is_alone(value):
            continue
        seen.add(value)
        if isinstance(owner, array.ConcatOp) and owner.axis in op.axes and len(owner.operands) <= MOST_JOINED:
            found.append(owner)
        elif isinstance(owner, ELEMENTWISE):
            pending += owner.operands
        if len(seen) > MOST_BETWEEN:
            return None
    return found[0] if len(found) == 1 else None


def _is_alone(value: SSAValue) -> bool:
    """Whether one operation uses a value."""
    return len({use.operation for use in value.uses}) == 1


def _of_operands(op: array.ReduceOp, join: array.ConcatOp) -> list[array.ReduceOp]:
    """Put reductions where each operand of a concatenation is, combined, in place of one reduction."""
    outputs = [op.results[0].type]
    parts: list[array.ReduceOp] = []
    total: SSAValue | None = None
    start = 0
    for operand in join.operands:
        size = array_type(operand).shape[join.axis]
        part = rebuilt(op, [_Window(op, join, operand, start, size).of(op.operands[0])], outputs)
        insert_like(op, part)
        part = _as_stored(part)
        parts.append(part)
        start += size
        if total is None:
            total = part.results[0]
            continue
        combined = array.MapOp(arguments=[total, part.results[0]], fn=op.fn, outputs=outputs)
        insert_like(op, combined)
        total = combined.results[0]
    if total is None:
        raise CompilerBug("a concatenation of nothing")
    op.results[0].replace_all_uses_with(total)
    erase(op)
    return parts


def _as_stored(op: array.ReduceOp) -> array.ReduceOp:
    """A reduction in the order of memory, where its result has no other order of dims by that."""
    result = reduced_as_stored(op) if array_type(op.results[0]).rank <= 1 else None
    if result is None or not isinstance(result.owner, array.ReduceOp):
        return op
    erase(op)
    return result.owner


class _Window(msgspec.Struct):
    """The part of what `op` reduces where an operand of a concatenation is: from `start` on along the axis."""

    op: array.ReduceOp
    join: array.ConcatOp
    operand: SSAValue
    start: int
    size: int
    known: dict[SSAValue, SSAValue] = msgspec.field(default_factory=dict[SSAValue, SSAValue])

    def of(self, value: SSAValue) -> SSAValue:
        """The part of a value, which is computed once."""
        if value.owner is self.join:
            return self.operand
        if value not in self.known:
            made = self._part(value)
            insert_like(self.op, made)
            self.known[value] = made.results[0]
        return self.known[value]

    def _part(self, value: SSAValue) -> Operation:
        owner, type, axis = value.owner, array_type(value), self.join.axis
        outputs = [tensor(ArrayType((*type.shape[:axis], self.size, *type.shape[axis + 1 :]), type.dtype))]
        if isinstance(owner, ELEMENTWISE) and _is_alone(value):
            return rebuilt(owner, [self.of(each) for each in owner.operands], outputs)
        if isinstance(owner, array.BroadcastOp) and axis not in owner.axes:
            return rebuilt(owner, owner.operands, outputs)
        if isinstance(owner, array.ConstantOp) and is_splat(owner):
            return rebuilt(owner, [], outputs)
        starts, limits = [0] * type.rank, list(type.shape)
        starts[axis], limits[axis] = self.start, self.start + self.size
        strides = (1,) * type.rank
        return array.SliceOp(
            arguments=[value], starts=tuple(starts), limits=tuple(limits), strides=strides, outputs=outputs
        )


def _split_reduction(op: array.ReduceOp) -> tuple[int, str]:
    """Divide a reduction to few results into parts: their number and why, or 1 and why not."""
    source = array_type(op.operands[0])
    axis = _axis_of_parts(source.shape, op.axes, _reduced(op))
    size = source.shape[axis]
    part = _part_of(size, _least_part(size, _reduced(op)))
    if part >= size:
        return 1, f"no parts of at least {LEAST_PART} elements"
    _replace(op, axis, part)
    return -(-size // part), "long sums with few results"


def _split_columns(op: array.ReduceOp, machine: Machine) -> tuple[int, str]:
    """Divide the rows of a reduction to many results into parts: their number and why, or 1 and why not."""
    axis, part = _rows_of_parts(op)
    size = array_type(op.operands[0]).shape[axis]
    is_read_again = _is_read_again(op)
    if part >= size or (is_read_again and _stays_near(op, machine)):
        return 1, _work_for_many(op)
    if not is_read_again and not _gain_by_parts(op, axis, part, machine):
        return 1, _work_for_many(op)
    _replace(_in_compute_type(op) if _rounds(op) else op, axis, part)
    return -(-size // part), "threads share rows better than their columns"


def _stays_near(op: array.ReduceOp, machine: Machine) -> bool:
    """Whether what is reduced stays in the second-level cache until it is read again: columns of so many rows, or what
    is reduced to results of one outer index, with such indices for all threads."""
    if _reduced(op) <= MOST_WHOLE_ROWS:
        return True
    source = array_type(op.operands[0])
    outer = math.prod(source.shape[: op.axes[0]])
    return outer >= REDUCTION_THREADS and source.size // outer * source.dtype.itemsize <= machine.memory("l2").bytes


def _work_for_many(op: array.ReduceOp) -> str:
    return f"{array_type(op.results[0]).size} results are work for many threads"


def _rows_of_parts(op: array.ReduceOp) -> tuple[int, int]:
    """The axis along which columns are cut, the outermost one of enough parts of enough rows, and the size of a
    part."""
    shape, rows = array_type(op.operands[0]).shape, _reduced(op)
    parts = {axis: _part_of(shape[axis], max(1, LEAST_LINES * shape[axis] // rows)) for axis in op.axes}
    for axis in _read_along(op):
        # A shorter part would use a piece of each line of memory that it reads.
        if axis in parts:
            parts[axis] = min(shape[axis], max(parts[axis], TURNED_LINE))
    enough = [axis for axis, part in parts.items() if shape[axis] >= FEW_PARTS * part]
    axis = enough[0] if enough else max(parts, key=lambda axis: shape[axis] // parts[axis])
    return axis, parts[axis]


def _read_along(op: array.ReduceOp) -> set[int]:
    """The dims of what is reduced along which transposed operands have their neighbours in memory."""
    type = array_type(op.operands[0])
    found: set[int] = set()
    sources = reached(op.operands[0], lambda each: each.owner.operands if isinstance(each.owner, ELEMENTWISE) else ())
    for value in itertools.islice(sources, MOST_BETWEEN):
        if isinstance(value.owner, array.TransposeOp) and array_type(value).shape == type.shape:
            found.add(value.owner.permutation.index(type.rank - 1))
    return found


def _gain_by_parts(op: array.ReduceOp, axis: int, part: int, machine: Machine) -> bool:
    """Whether parts of so many rows are predicted to take much less time than tiles of columns."""
    source, dtype = array_type(op.operands[0]), array_type(op.operands[0]).dtype.compute
    adds, kept = op.fn == "add", array_type(op.results[0]).shape
    number = -(-source.shape[axis] // part)
    windows = (number, *source.shape[:axis], part, *source.shape[axis + 1 :])
    parts = Reduction(*_merged(windows, tuple(d + 1 for d in op.axes)), dtype, adds)
    total = Reduction((number, math.prod(kept)), (0,), dtype, adds)
    whole = Reduction(*_merged(source.shape, op.axes), dtype, adds)
    return _seconds(parts, machine) + _seconds(total, machine) < _MUCH_BETTER * _seconds(whole, machine)


def _merged(shape: Sequence[int], axes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape and its reduced dims, neighbours that are both reduced or both kept being one."""
    groups = [list(dims) for _, dims in itertools.groupby(range(len(shape)), lambda d: d in axes)]
    merged = tuple(math.prod(shape[d] for d in dims) for dims in groups)
    return merged, tuple(n for n, dims in enumerate(groups) if dims[0] in axes)


def _seconds(reduction: Reduction, machine: Machine) -> float:
    tile = best_reduction_tile(reduction, machine, REDUCTION_THREADS)
    return reduction_seconds(reduction, tile, machine, REDUCTION_THREADS)


def _is_read_again(op: array.ReduceOp) -> bool:
    """Whether what is reduced meets the result again, as in a norm: one kernel of both takes columns one tile after the
    other, not rows in order of memory."""
    computed = results_through(op.results[0], (*ELEMENTWISE, array.BroadcastOp, array.ReshapeOp))
    size = array_type(op.operands[0]).size
    return any(array_type(value).size >= size for value in itertools.islice(computed, MOST_BETWEEN))


def _axis_of_parts(shape: Sequence[int], axes: Sequence[int], reduced: int) -> int:
    """The axis that is cut: the outermost one of enough parts, since windows of it are runs of memory, and the rows of
    an array only where they stay long."""
    for axis in axes:
        size = shape[axis]
        parts = -(-size // _part_of(size, _least_part(size, reduced)))
        if parts >= FEW_PARTS and (axis < len(shape) - 1 or size >= MOST_PARTS * MOST_PARTS):
            return axis
    return max(axes, key=lambda axis: shape[axis])


def _least_part(size: int, reduced: int) -> int:
    """How much of a dim of `size` makes a part of enough elements, where `reduced` are reduced to a result."""
    return max(1, LEAST_PART * size // reduced)


def _replace(op: array.ReduceOp, axis: int, part: int) -> None:
    """Put a reduction in parts of so many elements along an axis, and one of the parts, in place of another."""
    source, result = array_type(op.operands[0]), array_type(op.results[0])
    shape = tuple(n for d, n in enumerate(source.shape) if d not in op.axes)
    partial = array.ReduceOp(
        arguments=op.operands,
        fn=op.fn,
        axes=op.axes,
        part=part,
        part_axis=axis,
        outputs=[tensor(ArrayType((-(-source.shape[axis] // part), *shape), result.dtype))],
    )
    replace_by_parts(op, partial, op.fn, result)


def _part_of(size: int, least: int) -> int:
    """How much of a dim is a part. Parts are equal where enough of them can be; else the last one is shorter, and the
    others are whole tiles."""
    parts = parts_of(size, least)
    if parts >= FEW_PARTS:
        return size // parts
    whole = UNEQUAL_PART if size >= MOST_PARTS * UNEQUAL_PART else 1
    return max(-(-size // (MOST_PARTS * whole)) * whole, least)
