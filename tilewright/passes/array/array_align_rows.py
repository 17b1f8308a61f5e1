"""Store arrays that would be read across their rows in a loop that goes along rows.

A transposed array is read in blocks of rows and columns. A loop over a concatenation cannot be cut in the middle of
such blocks, where an operand ends; nor can a loop that reduces a row and then reads it again take several rows.
Transposed arrays are stored for such loops by kernels of their own. A transpose of a concatenation goes to the operands
first: that of a transposed one is that array. So are right operands of contractions stored whose rows take elements
apart or backwards along the depth, such long single rows, and other parts of arrays that would be packed again for each
index of outer dims of the left operand, and operands whose innermost dim in memory is one of the batch; and transposed
arrays of which many rows are gathered, whose rows are scanned, or are reduced with others, one row for several results;
and those that are reduced along other dims than that of neighbours before or after the transpose, and read again.
Reductions of short rows that follow each other in memory are one dim in a loop of their own. A transpose of narrow
elements to rows of a few puts those side by side after the others are in order. Windows are reduced as arrays are
stored, and what is left is transposed. Before the loops are fused, which would take the transposes in.

Before:
    func.func @main(%x: tensor<64x96xf32>, %y: tensor<96x64xf32>) -> tensor<128x96xf32> {
      %turned = array.transpose(%y) {permutation = array<i64: 1, 0>} : tensor<64x96xf32>
      %z = array.concat(%x, %turned) {axis = 0 : index} : tensor<128x96xf32>
      func.return %z : tensor<128x96xf32>
    }
After:
    func.func @main(%x: tensor<64x96xf32>, %y: tensor<96x64xf32>) -> tensor<128x96xf32> {
      %turned = array.fused(%y) {kind = "loop", why = "an operand of a concatenation, read across its rows"} do {
      ^bb0(%y1: tensor<96x64xf32>):
        %t = array.transpose(%y1) {permutation = array<i64: 1, 0>} : tensor<64x96xf32>
        array.yield(%t)
      } : tensor<64x96xf32>
      %z = array.concat(%x, %turned) {axis = 0 : index} : tensor<128x96xf32>
      func.return %z : tensor<128x96xf32>
    }
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeAlias, TypeGuard

import msgspec
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.dialects.walks import producers_first
from tilewright.layout.relayout_planner import SHUFFLED_STRIDES
from tilewright.passes.array.array_simplify import drop_unused
from tilewright.passes.array.fusion import (
    ELEMENTWISE,
    inline_closure,
    is_unit_reshape,
    make_group,
    needs_memory,
    results_through,
    users,
)
from tilewright.passes.array.permuted_values import inverse, permute_attributes
from tilewright.passes.array.stored_views import gathers_elements
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.passes.kernels.lower_loop_group import is_gathered_along_rows
from tilewright.primitives import ArrayType

# How often a reduction reads each row of a repeated array, at least, where that is worth a kernel.
_LEAST_READ = 4
# Reductions before a reduction of rows in the order of memory, for which storing the rows takes less time.
_LEAST_PASSES = 2
# Elements of an operand that is worth a kernel.
_LEAST_ELEMENTS = 4096
# Of an operand with matrices of a batch, each of which is copied.
_LEAST_BATCHED = 16384
# The part of a transposed array that is taken, at least, where that is worth a kernel: an element is a cache line.
_LEAST_TAKEN = 1.0
# Elements that are transposed in two steps where they would be loaded one by one, at most. Measured: with one and two
# bytes 2 to 6 times quicker, with four and eight 0.6 to 2.4.
_NARROW_BYTES = 2
# Rows shorter than this are worth a kernel, of results for each of which at least so many elements are reduced.
_SHORT_ROW, _MANY_TERMS = 32, 16
_LINKS = (*ELEMENTWISE, array.BroadcastOp, array.TransposeOp, array.SliceOp, array.ReverseOp)
_JOINED = "an operand of a concatenation, read across its rows"
_REDUCED = "rows that are reduced and read again"
_SHORT = "short rows that follow each other in memory"
_STRIDED = "a right operand whose rows take elements apart or backwards along the depth"
_ROW = "a long row of a matmul whose elements are apart or backwards in memory"
_GATHERED = "rows that are gathered, whose elements are far apart"
_BATCHED = "matrices of a batch whose elements are far apart"
_SCANNED = "rows that are scanned, whose elements are far apart"
_READ_AGAIN = "rows that are read for several results, whose elements are far apart"
_FEW = "rows of a few narrow elements, far apart"
_REPEATED = "a part of an array that would be packed again for each outer index"

_Key: TypeAlias = tuple[SSAValue, tuple[int, ...]]


class ArrayAlignRowsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-align-rows"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            joins = [op for op in block.ops if isinstance(op, array.ConcatOp)]
            for op in joins:
                _align_operands(unit, block, op)
            for op in [op for op in block.ops if isinstance(op, array.GatherOp)]:
                _align_gathered_rows(unit, block, op)
            for op in [op for op in block.ops if isinstance(op, array.ContractOp)]:
                _align_left_row(unit, block, op)
                _align_right_operand(unit, block, op)
                _align_batches(unit, block, op)
            for op in [op for op in block.ops if isinstance(op, array.ScanOp)]:
                _align_scanned_rows(unit, block, op)
            for op in [op for op in block.ops if isinstance(op, array.ReduceOp)]:
                _align_short_rows(unit, block, op)
                _align_repeated_rows(unit, block, op)
            for op in [op for op in block.ops if isinstance(op, array.TransposeOp)]:
                _align_few_columns(unit, block, op)
            if any(isinstance(op, array.TransposeOp) for op in block.ops):
                for op in [op for op in block.ops if isinstance(op, array.WindowReduceOp)]:
                    _align_windows(op)
                _align_reductions(unit, block)


def _store(block: Block, members: set[Operation], why: str) -> None:
    """Compute operations, with the constants and positions that they read, in a kernel of their own."""
    read = [operand for op in members for operand in op.operands]
    make_group(block, members | set(inline_closure(read, block)), "loop", why)


def _align_operands(unit: Unit, block: Block, op: array.ConcatOp) -> None:
    is_innermost = op.axis == _innermost(array_type(op.results[0]).shape)
    if is_innermost or _read_across(op) or _joins_lines(op) or any(_gathers(each) for each in op.operands):
        op = _transposed_first(block, op)
    for operand in [each for each in dict.fromkeys(op.operands) if _gathers(each)]:
        if any(isinstance(each, array.TransposeOp) for each in _chain(operand)):
            _store(block, {*_chain(operand), *_gathers(operand)}, _GATHERED)
    across = _read_across(op)
    alike = len(across) == len(set(op.operands)) and not any(_ends_along_rows(op, each) for each in across)
    if not across or alike:
        return
    for operand in across:
        _store(block, _chain(operand), _JOINED)
    subject = f"concat at {where(op)}"
    unit.remarks.append(Remark(ArrayAlignRowsPass.name, subject, f"{len(across)} operands stored first", _JOINED))


def _align_gathered_rows(unit: Unit, block: Block, op: array.GatherOp) -> None:
    """Store a transposed array of which many rows are gathered: each would be read across the array."""
    value = op.operands[0]
    source, taken = array_type(value), array_type(op.results[0]).size
    if source.rank - 1 in op.axes or taken < max(_LEAST_ELEMENTS, _LEAST_TAKEN * source.size):
        return
    if any(_is_across(value, read) for read in _reads(value)):
        _store(block, _chain(value), _GATHERED)
        unit.remarks.append(Remark(ArrayAlignRowsPass.name, f"gather at {where(op)}", "stored first", _GATHERED))


def _align_scanned_rows(unit: Unit, block: Block, op: array.ScanOp) -> None:
    """Store a transposed array whose rows are scanned: each would be read across the array."""
    value = op.operands[0]
    if op.axis != array_type(value).rank - 1 or array_type(value).size < _LEAST_ELEMENTS:
        return
    if any(read.axes[op.axis] not in (None, _innermost(read.shape)) for read in _reads(value)):
        _store(block, _chain(value), _SCANNED)
        unit.remarks.append(Remark(ArrayAlignRowsPass.name, f"scan at {where(op)}", "stored first", _SCANNED))


def _align_left_row(unit: Unit, block: Block, op: array.ContractOp) -> None:
    """Store a single long row that takes elements apart or backwards: it is read in steps along the depth, and the last
    one may reach beyond its end, so that all of the row would be copied, and the right operand with it."""
    value, type = op.operands[0], array_type(op.operands[0])
    if type.size < _LEAST_ELEMENTS or type.size > math.prod(type.shape[axis] for axis in op.left_contract):
        return
    if any(_jumps_along_rows(each) for each in _chain(value) if isinstance(each, array.SliceOp | array.ReverseOp)):
        _store(block, _chain(value), _ROW)
        unit.remarks.append(Remark(ArrayAlignRowsPass.name, f"contraction at {where(op)}", "row stored first", _ROW))


def _align_right_operand(unit: Unit, block: Block, op: array.ContractOp) -> None:
    """Store a right operand whose rows go along the depth and take elements apart or backwards: it is transposed in
    blocks of whole vectors. So is a part of an array that would be packed for each index of the left operand's outer
    dims, none of which it has."""
    value, shape = op.operands[1], array_type(op.operands[0]).shape
    if array_type(value).size < _LEAST_ELEMENTS:
        return
    outer = [n for axis, n in enumerate(shape) if axis not in op.left_batch and axis not in op.left_contract][:-1]
    along_depth = any(read.axes[axis] == len(read.shape) - 1 for read in _reads(value) for axis in op.right_contract)
    parts = [each for each in _chain(value) if isinstance(each, array.SliceOp | array.ReverseOp)]
    jumps = [each for each in parts if along_depth and _jumps_along_rows(each)]
    if jumps:
        # One that is computed from all others.
        part, why = next((each for each in jumps if _chain(each.results[0]).issuperset(jumps)), None), _STRIDED
    elif math.prod(outer) > 1:
        value, why = _untransposed(value), _REPEATED
        part = next((each for each in parts if each.results[0] is value), None)
    else:
        return
    if part is not None:
        _store(block, _chain(part.results[0]), why)
        subject = f"contraction at {where(op)}"
        unit.remarks.append(Remark(ArrayAlignRowsPass.name, subject, "right operand stored first", why))


def _align_batches(unit: Unit, block: Block, op: array.ContractOp) -> None:
    """Store operands whose neighbours in memory are of other matrices of the batch, each of which would be read across
    the array."""
    for n, batch in enumerate((op.left_batch, op.right_batch)):
        value = op.operands[n]
        if array_type(value).size < _LEAST_BATCHED:
            continue
        if any(_is_innermost(read, axis) for read in _reads(value) for axis in batch):
            _store_batches_first(block, op, n, batch)
            subject = f"contraction at {where(op)}"
            unit.remarks.append(Remark(ArrayAlignRowsPass.name, subject, "operand stored first", _BATCHED))


def _store_batches_first(block: Block, op: array.ContractOp, n: int, batch: Sequence[int]) -> None:
    """Store an operand with the dims of the batch outermost; the contraction reads a view of that."""
    value = op.operands[n]
    order = (*batch, *(axis for axis in range(array_type(value).rank) if axis not in batch))
    if list(order) == sorted(order):
        _store(block, _chain(value), _BATCHED)
        return
    turned = array.TransposeOp(arguments=[value], permutation=order, outputs=[_permuted(value, order)])
    back = array.TransposeOp(arguments=turned.results, permutation=inverse(order), outputs=[value.type])
    insert_like(op, turned)
    insert_like(op, back)
    op.operands[n] = back.results[0]
    _store(block, {turned, *_chain(value)}, _BATCHED)


def _is_innermost(read: _Read, axis: int) -> bool:
    return read.axes[axis] == _innermost(read.shape) and read.shape[_innermost(read.shape)] > 1


def _untransposed(value: SSAValue) -> SSAValue:
    """The array that a value is a transpose of."""
    while isinstance(owner := value.owner, array.TransposeOp) or _is_link(owner):
        value = owner.operands[0]
    return value


def _jumps_along_rows(op: array.SliceOp | array.ReverseOp) -> bool:
    """Whether neighbours in a row of a part of an array are no such neighbours in the array."""
    return op.strides[-1] > 1 if isinstance(op, array.SliceOp) else array_type(op.results[0]).rank - 1 in op.axes


def _align_short_rows(unit: Unit, block: Block, op: array.ReduceOp) -> None:
    """Store few results of a reduction whose short rows follow each other in memory, if what is computed of them reads
    arrays that have only some of their dims: in one loop with that, rows would not be one dim."""
    source, result = array_type(op.operands[0]), array_type(op.results[0])
    rows = [size for axis, size in enumerate(source.shape) if axis > max(op.axes)]
    is_short = len([size for size in rows if size > 1]) > 1 and rows[-1] < _SHORT_ROW
    if op.part is None and is_short and source.size >= _MANY_TERMS * result.size and _meets_some_dims(op):
        _store(block, {op, *_chain(op.operands[0])}, _SHORT)
        unit.remarks.append(Remark(ArrayAlignRowsPass.name, f"reduction at {where(op)}", "stored first", _SHORT))


def _align_repeated_rows(unit: Unit, block: Block, op: array.ReduceOp) -> None:
    """Store a transposed array that is repeated next to what a reduction along its rows reads, as the columns of a
    batch of matrices are: each row would be read across the array for each of several results."""
    type = array_type(op.operands[0])
    axis = _innermost(type.shape)
    if op.part is not None or axis not in op.axes:
        return
    for spread in _spread_rows(op.operands[0]):
        (source,) = spread.operands
        inner, size = _source_axes(spread, type.shape).get(axis), array_type(source).size
        if inner is None or size < _LEAST_BATCHED or type.size < _LEAST_READ * size:
            continue
        places = [(read, read.axes[inner]) for read in _reads(source)]
        if any(place is not None and _is_far(read.shape, place) for read, place in places):
            _store(block, _chain(source), _READ_AGAIN)
            subject = f"reduction at {where(op)}"
            unit.remarks.append(Remark(ArrayAlignRowsPass.name, subject, "operand stored first", _READ_AGAIN))


def _spread_rows(value: SSAValue) -> list[array.BroadcastOp]:
    """The broadcasts from which elementwise operations, each of which has one user, compute a value."""
    chain, pending, found = _chain(value), [value], dict[array.BroadcastOp, None]()
    while pending:
        op = pending.pop().owner
        if op not in chain:
            continue
        if isinstance(op, array.BroadcastOp):
            found[op] = None
        elif isinstance(op, ELEMENTWISE):
            pending += op.operands
    return list(found)


def _meets_some_dims(op: array.ReduceOp) -> bool:
    """Whether an elementwise operation on results of a reduction reads a broadcast of fewer elements, more than one."""
    computed = results_through(op.results[0], (*ELEMENTWISE, array.ReshapeOp))
    elementwise = (user for value in computed for user in users(value) if isinstance(user, ELEMENTWISE))
    return any(_has_some_dims(operand) for user in elementwise for operand in user.operands)


def _has_some_dims(value: SSAValue) -> bool:
    spread = value.owner
    return isinstance(spread, array.BroadcastOp) and 1 < array_type(spread.operands[0]).size < array_type(value).size


def _read_across(op: array.ConcatOp) -> list[SSAValue]:
    """The operands whose neighbours are far apart in an array that they are computed from."""
    return [each for each in dict.fromkeys(op.operands) if any(_is_across(each, read) for read in _reads(each))]


def _joins_lines(op: array.ConcatOp) -> bool:
    """Whether operands have but one dim of more than one element: their transposes are views."""
    return all(array_type(each).size == max(array_type(each).shape) for each in op.operands)


def _gathers(value: SSAValue) -> list[Operation]:
    """The gathers of single elements, read by nothing else, that a value is computed of: any order suits these."""
    read = dict.fromkeys(operand for op in _chain(value) for operand in op.operands) | {value: None}
    owners = [each.owner for each in read if len({use.operation for use in each.uses}) == 1]
    return [each for each in owners if isinstance(each, Operation) and gathers_elements(each)]


def _is_across(value: SSAValue, read: _Read) -> bool:
    axis = read.axes[_innermost(array_type(value).shape)]
    return axis is not None and _is_far(read.shape, axis)


def _ends_along_rows(op: array.ConcatOp, value: SSAValue) -> bool:
    """Whether rows of what is read across continue in the next operand."""
    return any(read.axes[op.axis] == _innermost(read.shape) for read in _reads(value) if _is_across(value, read))


def _innermost(shape: Sequence[int]) -> int:
    """The last dim of more than one element."""
    return max((axis for axis, size in enumerate(shape) if size > 1), default=0)


class _Read(msgspec.Struct, frozen=True):
    """The shape of an array that a value is computed from, and its dim for each of the value's, if it has that."""

    shape: tuple[int, ...]
    axes: tuple[int | None, ...]


def _reads(value: SSAValue) -> list[_Read]:
    chain, found = _chain(value), list[_Read]()
    first = (value, tuple[int | None, ...](range(array_type(value).rank)))
    pending, seen = [first], {first}
    while pending:
        value, axes = pending.pop()
        op, shape = value.owner, array_type(value).shape
        if not isinstance(op, Operation) or op not in chain:
            found.append(_Read(shape, axes))
            continue
        source = _source_axes(op, shape)
        inner = tuple(None if axis is None else source.get(axis) for axis in axes)
        items = [(operand, inner) for operand in dict.fromkeys(op.operands)]
        pending += [item for item in items if item not in seen]
        seen.update(items)
    return found


def _source_axes(op: Operation, shape: Sequence[int]) -> dict[int, int]:
    """The operand's dim for each dim of what a link of a chain gives; none for those that it adds."""
    if isinstance(op, array.TransposeOp):
        return dict(enumerate(op.permutation))
    if isinstance(op, array.BroadcastOp):
        sizes = array_type(op.operands[0]).shape
        return {axis: n for n, axis in enumerate(op.axes) if sizes[n] == shape[axis]}
    if isinstance(op, array.ReshapeOp):
        long = [axis for axis, size in enumerate(array_type(op.operands[0]).shape) if size != 1]
        return dict(zip([axis for axis, size in enumerate(shape) if size != 1], long, strict=True))
    return {axis: axis for axis in range(len(shape))}


def _chain(value: SSAValue) -> set[Operation]:
    """The elementwise operations and views that lead to a value, of which nothing else uses a result."""

    def links(values: Sequence[SSAValue]) -> list[Operation]:
        owners = [each.owner for each in values if len({use.operation for use in each.uses}) == 1]
        return [op for op in owners if isinstance(op, _LINKS) or _is_link(op)]

    return set(producers_first(links([value]), lambda op: links(op.operands)))


def _is_link(op: Operation | Block) -> TypeGuard[Operation]:
    return isinstance(op, Operation) and is_unit_reshape(op)


def _transposed_first(block: Block, op: array.ConcatOp) -> array.ConcatOp:
    """The concatenation of transposed operands, where only a transpose of what is computed of it is used."""
    links = _until_transpose(block, op)
    if not links:
        return op
    turn = links.pop()
    order: Sequence[int] = turn.permutation
    turned = {each: _transposed(op, each, order) for each in dict.fromkeys(op.operands)}
    operands = [turned[each] for each in op.operands]
    made = array.ConcatOp(arguments=operands, axis=order.index(op.axis), outputs=[_permuted(op.results[0], order)])
    insert_like(op, made)
    before, value = op.results[0], made.results[0]
    for link in links:
        operands = [value if each is before else _transposed(link, each, order) for each in link.operands]
        again = rebuilt(link, operands, [_permuted(link.results[0], order)])
        if isinstance(again, array.PadOp):
            permute_attributes(again, order)
        insert_like(link, again)
        before, value = link.results[0], again.results[0]
    turn.results[0].replace_all_uses_with(value)
    for each in (turn, *reversed(links), op):
        erase(each)
    drop_unused(block)
    return made


def _until_transpose(block: Block, op: array.ConcatOp) -> list[Any]:
    """The elementwise operations and paddings, each of which alone uses the one before, from a concatenation to a
    transpose, which is the last; none where something else uses one."""
    links: list[Operation] = []
    value = op.results[0]
    while len(users := {use.operation for use in value.uses}) == 1:
        (user,) = users
        if user.parent_block() is not block or not isinstance(user, (*ELEMENTWISE, array.PadOp, array.TransposeOp)):
            break
        links.append(user)
        if isinstance(user, array.TransposeOp):
            return links
        (value,) = user.results
    return []


def _permuted(value: SSAValue, permutation: Sequence[int]) -> Attribute:
    type = array_type(value)
    return tensor(ArrayType(tuple(type.shape[axis] for axis in permutation), type.dtype))


def _transposed(op: Operation, value: SSAValue, permutation: Sequence[int]) -> SSAValue:
    """An array with its dims permuted; one that was permuted the other way is taken from before that. A number that
    an array is padded with is itself."""
    if not array_type(value).rank:
        return value
    outputs = [_permuted(value, permutation)]
    shape = array_type(outputs[0]).shape
    source = _as_stored(value, permutation)
    if source is None:
        made = array.TransposeOp(arguments=[value], permutation=tuple(permutation), outputs=outputs)
    elif array_type(source).shape == shape:
        return source
    else:
        made = array.ReshapeOp(arguments=[source], outputs=outputs)
    insert_like(op, made)
    return made.results[0]


def _as_stored(value: SSAValue, permutation: Sequence[int]) -> SSAValue | None:
    """The array that a value is a view of, if its elements are in the order of the permuted value's."""
    axes: list[int | None] = list(permutation)
    while isinstance(owner := value.owner, array.TransposeOp) or _is_link(owner):
        source = _source_axes(owner, array_type(value).shape)
        axes = [None if axis is None else source.get(axis) for axis in axes]
        value = owner.operands[0]
    sizes = array_type(value).shape
    long = [axis for axis in axes if axis is not None and sizes[axis] > 1]
    return value if long == sorted(long) else None


def _align_few_columns(unit: Unit, block: Block, op: array.TransposeOp) -> None:
    """Transpose in two steps what would be loaded element by element: those that become rows of a few are first in the
    stored array, then lanes are shuffled as they are stored."""
    shape, dtype = array_type(op.operands[0]).shape, array_type(op.results[0]).dtype
    long = [axis for axis in op.permutation if shape[axis] > 1]
    if len(long) < 3 or dtype.itemsize > _NARROW_BYTES or math.prod(shape) < _LEAST_ELEMENTS:
        return
    is_few = shape[long[-1]] in SHUFFLED_STRIDES and max(long) not in long[-2:]
    follow = users(op.results[0])
    if not is_few or not all(
        isinstance(each, (*ELEMENTWISE, array.BroadcastOp)) or needs_memory(each) for each in follow
    ):
        return
    place = op.permutation.index(long[-1])
    stored = _transposed(op, op.operands[0], (long[-1], *(axis for axis in op.permutation if axis != long[-1])))
    order = tuple(0 if n == place else n + (n < place) for n in range(len(shape)))
    op.results[0].replace_all_uses_with(_transposed(op, stored, order))
    erase(op)
    _store(block, _chain(stored), _FEW)
    unit.remarks.append(Remark(ArrayAlignRowsPass.name, f"transpose at {where(op)}", "in two steps", _FEW))


def _align_windows(op: array.WindowReduceOp) -> None:
    """Reduce windows of a transposed array as it is stored, and transpose the result, which is no larger."""
    turn = op.operands[0].owner
    if not isinstance(turn, array.TransposeOp) or not _is_far_apart(turn):
        return
    (source,) = turn.operands
    places = [turn.permutation.index(axis) for axis in range(len(turn.permutation))]
    shape = array_type(op.results[0]).shape
    if math.prod(shape) > array_type(source).size:
        return
    outputs = [tensor(ArrayType(tuple(shape[axis] for axis in places), array_type(source).dtype))]
    made = rebuilt(op, [source], outputs)
    for name in ("window", "strides", "low", "high", "dilation"):
        setattr(made, name, tuple(getattr(op, name)[axis] for axis in places))
    insert_like(op, made)
    turned = array.TransposeOp(arguments=made.results, permutation=turn.permutation, outputs=[op.results[0].type])
    insert_like(op, turned)
    op.results[0].replace_all_uses_with(turned.results[0])
    erase(op)
    if not any(True for _ in turn.results[0].uses):
        erase(turn)


def _is_far_apart(turn: array.TransposeOp) -> bool:
    """Whether neighbours in a transposed array are far apart in memory."""
    return _is_far(array_type(turn.operands[0]).shape, turn.permutation[_innermost(array_type(turn.results[0]).shape)])


def _align_reductions(unit: Unit, block: Block) -> None:
    """Store the transposed arrays of which rows, or others with the elements of rows far apart, are both reduced and
    read for other results."""
    reduces = [op for op in block.ops if isinstance(op, array.ReduceOp)]
    rows = [op.operands[0] for op in reduces if _innermost(array_type(op.operands[0]).shape) in op.axes]
    reduced = _transposes_across(rows)
    for op in reduces:
        across = _transposes_across(op.operands) if op.operands[0] not in rows else ()
        reduced.update({key: None for key in across if _is_apart_in_both(op, key)})
    if not reduced:
        return
    sinks = [op for op in block.ops if not isinstance(op, (*_LINKS, array.ReduceOp)) and not _is_link(op)]
    again = [value for value in rows if _reductions_before(value) >= _LEAST_PASSES]
    read = _transposes_across([*again, *(operand for op in sinks for operand in op.operands)])
    for key in [key for key in reduced if key in read]:
        turns = [op for op in block.ops if isinstance(op, array.TransposeOp) and _key(op) == key]
        if not turns:
            continue  # stored with another one that is computed of it
        first, others = turns[0], turns[1:]
        for other in others:
            other.results[0].replace_all_uses_with(first.results[0])
            erase(other)
        subject = f"transpose at {where(first)}"
        _store(block, {first, *_chain(first.operands[0])}, _REDUCED)
        unit.remarks.append(Remark(ArrayAlignRowsPass.name, subject, "stored first", _REDUCED))


def _is_apart_in_both(op: array.ReduceOp, key: _Key) -> bool:
    """Whether neither the neighbours before a transpose nor those after it are reduced: tiles of rows that are reduced
    have neighbours on one side only."""
    value, permutation = key
    shape, nearest = array_type(value).shape, permutation.index(_innermost(array_type(value).shape))
    transposed = tuple(shape[axis] for axis in permutation)
    return transposed == array_type(op.operands[0]).shape and nearest not in op.axes


def _reductions_before(value: SSAValue) -> int:
    """How many reductions one after another, elementwise operations between them, a value is computed through; parts of
    a reduction count once."""
    counts: dict[SSAValue, int] = {}
    for each in producers_first([value], _before):
        op = each.owner
        reduces = isinstance(op, array.ReduceOp) and not isinstance(op.operands[0].owner, array.ReduceOp)
        counts[each] = max((counts[inner] for inner in _before(each)), default=0) + reduces
    return counts[value]


def _before(value: SSAValue) -> Sequence[SSAValue]:
    """The operands that a value is computed from elementwise or by a reduction."""
    op = value.owner
    return op.operands if isinstance(op, (*_LINKS, array.ReduceOp)) or _is_link(op) else ()


def _key(op: array.TransposeOp) -> _Key:
    return op.operands[0], op.permutation


def _transposes_across(values: Iterable[SSAValue]) -> dict[_Key, None]:
    """The transposes that values are computed through, elementwise, of which their neighbours are far apart before."""
    found: dict[_Key, None] = {}
    seen: set[tuple[SSAValue, int]] = set()
    pending = [(value, _innermost(array_type(value).shape)) for value in values]
    while pending:
        value, axis = item = pending.pop()
        op = value.owner
        if item in seen or not isinstance(op, Operation) or not (isinstance(op, _LINKS) or _is_link(op)):
            continue
        seen.add(item)
        inner = _source_axes(op, array_type(value).shape).get(axis)
        if inner is None:
            continue
        if isinstance(op, array.TransposeOp) and _is_across_memory(op, inner):
            found[_key(op)] = None
        pending += [(operand, inner) for operand in op.operands]
    return found


def _is_across_memory(op: array.TransposeOp, axis: int) -> bool:
    """Whether neighbours along an axis of what is transposed are far apart; elements that are gathered one by one are
    so in any order."""
    return _is_far(array_type(op.operands[0]).shape, axis) and not is_gathered_along_rows(op.operands[0])


def _is_far(shape: Sequence[int], axis: int) -> bool:
    """Whether neighbours along a dim are so far apart in memory that vectors are not shuffled of what is loaded."""
    apart = math.prod(shape[axis + 1 :])
    return apart != 1 and apart not in SHUFFLED_STRIDES and math.prod(shape) >= _LEAST_ELEMENTS
