"""Rewrite narrow contractions: those with few columns, with few results, of a depth of few elements, or with one row
for each outer index.

A register block of a contraction has a vector of columns: one column leaves most lanes unused. If the left operand has
more rows than the right one has columns, the operands are swapped: a contraction of few rows reads its right operand as
it is stored. So they are for more columns if the left operand is stored along the depth and sums along that are
predicted to be quicker. A contraction with few results, such as a dot product, is a multiplication and a reduction
instead, which adds up vectors along the depth. So is one with a single row or column whose matrix has narrow floats, or
elements apart, along the depth: a reduction converts and shuffles them as it reads them, where a contraction would copy
all of the matrix, and one whose matrix elementwise operations compute or has long columns of short rows. An outer
product, of depth 1, is a multiplication, and one of few more elements a sum of such, which fuse with their users. Rows
are the innermost free dim of the left operand: one of size 1 goes, so that the next one has the rows of a block, and
the elementwise operations after it, which may become its epilogue, have no such dim either. Few rows become one dim
with those outside where they are neighbours in memory: the right operand is read once for all of them. Of two
transposed operands neither is if they are swapped. Operands that are rounded before they are multiplied stay. After
attention has been found, before long reductions are split.

Before:
    func.func @main(%x: tensor<96x64xf32>, %y: tensor<64x2xf32>) -> tensor<96x2xf32> {
      %z = array.contract(%x, %y) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>} : tensor<96x2xf32>
      func.return %z : tensor<96x2xf32>
    }
After:
    func.func @main(%x: tensor<96x64xf32>, %y: tensor<64x2xf32>) -> tensor<96x2xf32> {
      %swapped = array.contract(%y, %x) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 0>, right_contract = array<i64: 1>} : tensor<2x96xf32>
      %z = array.transpose(%swapped) {permutation = array<i64: 1, 0>} : tensor<96x2xf32>
      func.return %z : tensor<96x2xf32>
    }
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import msgspec
from xdsl.ir import Operation, SSAValue

from tilewright.cost.vectors.register_blocks import register_blocks
from tilewright.cost.vectors.tiles import STREAMED_ROWS, rows_along_depth
from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.machines.machine import Machine
from tilewright.passes.array.array_simplify import drop_unused, reduced_as_stored
from tilewright.passes.array.fusion import ELEMENTWISE, inline_closure, is_inline, make_group, operands_through, users
from tilewright.passes.array.matrix_by_vector import matrix_by_vector
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.passes.kernels.contract_facts import Side, sides_of
from tilewright.primitives import ArrayType

# The most columns that become rows, and the least depth that is worth it for more than one.
MOST_COLUMNS = 4
LEAST_DEPTH = 16
# One row or column with fewer columns or rows than this, or with no more depth than this, is a reduction.
LEAST_ROWS, SHORT_DEPTH = 32, 4
# From this depth on, so are those of fewer columns or rows than give each thread two tiles of four vectors: one that
# has none waits (AVX-512, 32 to 100 rows of 16384 to 100744: 0.3 to 0.75 of the time).
LONG_DEPTH, LONG_ROWS = 16384, 8
# The most elements of the depth that are multiplied one by one; those of large results, whose traffic in memory fusion
# saves; and those of large results with so few columns that lanes of a register block are unused.
SHALLOW, SHALLOW_LARGE, SHALLOW_NARROW, LARGE = 3, 5, 8, 2**18
# Rows for which a right operand that is contiguous along such a depth is stored by columns.
TURNED_ROWS = 16
_TURNED = "a right operand of a short depth, by columns"
# Rows for each of which vectors of a right operand of narrow elements would be converted.
WIDENED_ROWS = 512
_WIDENED = "a right operand of a short depth, converted once"
# A right operand of so many elements that is contiguous along the depth takes as long to pack as so many rows to
# multiply: it is the left operand of as many rows as fill register blocks but for some columns. Measured on AVX2.
PACKED_ELEMENTS, PACKED_ROWS, MOST_UNUSED, MOST_SWAPPED = 40_000, 8, 4, 128
# The time of sums along the depth, in that of as many multiplications of vectors of columns, but for adding up their
# lanes, which takes as long as one. Measured on AVX-512.
SUMS_SHARE = 1.1
# All rows together that are worth to be one dim, though the innermost one has enough for a register block.
MERGED_ROWS = 64


class ArrayNarrowContractionsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-narrow-contractions"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.ContractOp) and op.part is None and op.precision is None and op.left_contract:
                    self._rewrite(unit, op)
            drop_unused(block)

    def _rewrite(self, unit: Unit, op: array.ContractOp) -> None:
        op = _with_merged_rows(_without_unit_rows(op))
        left, right = sides_of(op)
        rows, columns = _free_size(left), _free_size(right)
        depth = math.prod(array_type(op.operands[0]).shape[axis] for axis in op.left_contract)
        if not rows or not columns or not depth:
            return
        subject = f"contraction at {where(op)}"
        product = matrix_by_vector(op) if rows * columns > MOST_COLUMNS else None
        if depth == 1:
            unit.remarks.append(Remark(self.name, subject, "a multiplication", "the depth is 1"))
            dtype = array_type(op.results[0]).dtype
            _replace(op, _cast(op, _multiplied(op, left, right, dtype.compute), dtype))
        elif min(rows, columns) > 1 and depth <= _most_shallow(op, rows, columns, unit.machine):
            unit.remarks.append(Remark(self.name, subject, "a sum of multiplications", f"the depth is {depth}"))
            _multiply_one_by_one(
                op, rows >= WIDENED_ROWS and columns >= unit.machine.lanes(array_type(op.results[0]).dtype.compute)
            )
        elif product is not None and (product.is_computed or product.has_long_columns):
            why = "the matrix is not stored" if product.is_computed else "few columns for the depth"
            unit.remarks.append(Remark(self.name, subject, "a multiplication and a reduction", why))
            reduction = product.reduction()
            _replace(op, _reshaped(op, reduction.results[0], array_type(op.results[0]).shape))
            _reduce_as_stored(reduction)
        elif (
            rows * columns <= MOST_COLUMNS
            or (columns == 1 and _reduces_vectors(left, rows, depth, unit))
            or (rows == 1 and _reduces_vectors(right, columns, depth, unit))
        ):
            unit.remarks.append(
                Remark(self.name, subject, "a multiplication and a reduction", "few results for the depth")
            )
            _replace(op, _multiply_and_reduce(op))
        elif rows > columns and (
            (columns <= MOST_COLUMNS and (columns == 1 or depth >= LEAST_DEPTH))
            or _sums_along_depth(op, rows, columns, unit.machine)
        ):
            unit.remarks.append(
                Remark(self.name, subject, "operands swapped", f"{columns} columns are few for vectors")
            )
            _replace(op, _swapped(op))
        elif rows < columns and _packs_less(op, rows, columns, unit.machine):
            reason = f"the right one, contiguous along the depth, is not packed for {rows} rows"
            unit.remarks.append(Remark(self.name, subject, "operands swapped", reason))
            _replace(op, _swapped(op))
        elif rows * columns <= depth * (rows + columns) and _are_transposed(left, right):
            reason = "both operands are transposed, neither is then; the result is smaller"
            unit.remarks.append(Remark(self.name, subject, "operands swapped", reason))
            _replace(op, _swapped(op))


def _reduces_vectors(side: Side, size: int, depth: int, unit: Unit) -> bool:
    """Whether a contraction with one row or column is best reduced along the innermost dim of the other operand."""
    axes, _ = _as_stored(side)
    source = side.value.owner.operands[0] if isinstance(side.value.owner, array.TransposeOp) else side.value
    dtype = array_type(source).dtype
    is_narrow = dtype.is_float and dtype.itemsize < dtype.compute.itemsize
    is_strided = isinstance(source.owner, array.SliceOp) and source.owner.strides[-1] > 1
    least = LEAST_ROWS if depth < LONG_DEPTH else LONG_ROWS * unit.threads * unit.machine.lanes(dtype.compute)
    is_best = size < least or depth <= SHORT_DEPTH or is_narrow or is_strided
    return max(axes) == len(side.shape) - 1 and is_best


def _sums_along_depth(op: array.ContractOp, rows: int, columns: int, machine: Machine) -> bool:
    """Whether columns that fill a vector at most are best rows that read the left operand as it is stored, along the
    depth: vectors of columns take as long with few as with all lanes, and where rows of the left operand fall on the
    same sets of the first-level cache, a register block of them loses most lines before it has read them."""
    left, _ = sides_of(op)
    axes, shape = _as_stored(left)
    left_dtype, dtype = array_type(left.value).dtype, array_type(op.results[0]).dtype.compute
    if len(axes) != 1 or axes[0] != len(shape) - 1 or left_dtype.compute != dtype:
        return False
    depth, lanes = shape[-1], machine.lanes(dtype)
    if columns > lanes or depth < max(lanes, LEAST_DEPTH):
        return False
    block = next(each for each in register_blocks(dtype, machine) if each.vectors == 1)
    collide = 2 * machine.memory("l1").lines_at(depth * left_dtype.itemsize) < min(block.rows, rows)
    return collide or columns * (SUMS_SHARE + lanes / depth) < lanes


def _packs_less(op: array.ContractOp, rows: int, columns: int, machine: Machine) -> bool:
    """Whether more rows than are added up along the depth meet a right operand that is contiguous along that: as the
    left operand it is read as it is stored, and the fewer rows of the other one are packed."""
    left, right = sides_of(op)
    depth, dtype = math.prod(right.shape[axis] for axis in right.contracted), array_type(right.value).dtype
    is_plain = not left.batch and len(right.contracted) == 1 and dtype == dtype.compute and _is_along_depth(right)
    if not is_plain or not dtype.is_float or _is_made(right.value) or depth * columns < PACKED_ELEMENTS:
        return False
    width = min(2 * machine.lanes(dtype), 16)
    unused = -rows % width
    fills = unused <= MOST_UNUSED or (rows < width and unused < PACKED_ROWS)
    return rows_along_depth(depth, dtype, machine) < rows <= MOST_SWAPPED and fills


def _are_transposed(left: Side, right: Side) -> bool:
    """Whether the depth is innermost in memory in the right operand and not in the left one, while kernels read rows of
    both."""
    if left.batch or len(left.contracted) != 1 or len(left.free) != 1 or len(right.free) != 1:
        return False
    return (
        _is_along_depth(right) and not _is_along_depth(left) and not _is_made(left.value) and not _is_made(right.value)
    )


def _is_made(value: SSAValue) -> bool:
    """Whether an array is captured, and packed when the program is compiled, or computed where it is packed."""
    views = (array.TransposeOp, array.ReshapeOp, array.SliceOp)
    return any(isinstance(each.owner, (array.ConstantOp, *ELEMENTWISE)) for each in operands_through(value, views))


def _most_shallow(op: array.ContractOp, rows: int, columns: int, machine: Machine) -> int:
    """The most elements of a depth that are quickest multiplied one by one, each of all rows by all columns."""
    result = array_type(op.results[0])
    if len(op.left_contract) > 1 or (rows < TURNED_ROWS and _is_along_depth(sides_of(op)[1])):
        return 0
    if result.size < LARGE:
        return SHALLOW
    return SHALLOW_NARROW if columns < machine.lanes(result.dtype.compute) else SHALLOW_LARGE


def _is_along_depth(side: Side) -> bool:
    """Whether the contracted dim of an operand is the innermost one in memory."""
    (axis,), shape = _as_stored(side)
    return axis == len(shape) - 1


def _as_stored(side: Side) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The contracted dims and the shape of an operand, or of the array that it is a transpose of."""
    owner = side.value.owner
    if not isinstance(owner, array.TransposeOp):
        return side.contracted, side.shape
    return tuple(owner.permutation[axis] for axis in side.contracted), array_type(owner.operands[0]).shape


def _free_size(side: Side) -> int:
    return math.prod(side.shape[d] for d in side.free)


def _replace(op: array.ContractOp, value: SSAValue) -> None:
    """Use a value instead of a contraction's result, and erase the views that only the contraction used: an array that
    two views read would tie the groups of both together."""
    op.results[0].replace_all_uses_with(value)
    views, block = list(op.operands), op.parent_block()
    erase(op)
    while views:
        view = views.pop().owner
        if not isinstance(view, Operation) or not is_inline(view) or view.parent_block() is not block:
            continue
        if not view.results[0].uses:
            views.extend(view.operands)
            erase(view)


def _without_unit_rows(op: array.ContractOp) -> array.ContractOp:
    """The contraction without the innermost free dims of its left operand that are 1."""
    left, _ = sides_of(op)
    dropped = [d for d in left.free if all(left.shape[after] == 1 for after in left.free if after >= d)]
    if not dropped or len(dropped) == len(left.free):
        return op
    kept = [d for d in range(len(left.shape)) if d not in dropped]
    result = array_type(op.results[0])
    first = len(left.batch) + len(left.free) - len(dropped)
    shape = (*result.shape[:first], *result.shape[first + len(dropped) :])
    rows = _reshaped(op, left.value, tuple(left.shape[d] for d in kept))
    narrow = array.ContractOp(
        arguments=[rows, op.operands[1]],
        left_batch=tuple(kept.index(d) for d in left.batch),
        right_batch=op.right_batch,
        left_contract=tuple(kept.index(d) for d in left.contracted),
        right_contract=op.right_contract,
        outputs=[tensor(ArrayType(shape, result.dtype))],
    )
    insert_like(op, narrow)
    wide = _reshaped(op, narrow.results[0], result.shape)
    _replace(op, wide)
    _narrow_users(wide, narrow.results[0])
    return narrow


def _with_merged_rows(op: array.ContractOp) -> array.ContractOp:
    """The contraction with few rows and those of outer free dims of the left operand as one dim."""
    left, _ = sides_of(op)
    free, rows = left.free, _free_size(left)
    owner = left.value.owner
    is_view = isinstance(owner, Operation) and is_inline(owner)
    # A tile of the result is stored transposed, which one of rows of different outer indices would not be.
    is_view |= any(isinstance(user, array.TransposeOp) for user in users(op.results[0]))
    if is_view or len(free) < 2 or free[-1] - free[0] >= len(free):
        return op
    inner = left.shape[free[-1]]
    if rows in (0, inner) or (inner > STREAMED_ROWS and rows > MERGED_ROWS):
        return op
    gone, first = len(free) - 1, free[0]
    merged_shape = (*left.shape[:first], rows, *left.shape[free[-1] + 1 :])
    result = array_type(op.results[0])
    batch = len(left.batch)
    merged = array.ContractOp(
        arguments=[_reshaped(op, left.value, merged_shape), op.operands[1]],
        left_batch=tuple(d if d < first else d - gone for d in left.batch),
        right_batch=op.right_batch,
        left_contract=tuple(d if d < first else d - gone for d in left.contracted),
        right_contract=op.right_contract,
        outputs=[tensor(ArrayType((*result.shape[:batch], rows, *result.shape[batch + len(free) :]), result.dtype))],
    )
    insert_like(op, merged)
    _replace(op, _reshaped(op, merged.results[0], result.shape))
    return merged


def _narrow_users(wide: SSAValue, narrow: SSAValue) -> None:
    """Compute in the shape of `narrow` what elementwise operations compute of `wide`, the same with dims of size 1."""
    shape = array_type(narrow).shape
    block = users(narrow)[0].parent_block()
    pending = [(wide, narrow)]
    while pending:
        wide, narrow = pending.pop()
        for op in [user for user in users(wide) if isinstance(user, ELEMENTWISE) and user.parent_block() is block]:
            operands = [narrow if o is wide else _reshaped(op, o, shape) for o in op.operands]
            type = array_type(op.results[0])
            moved = rebuilt(op, operands, [tensor(ArrayType(shape, type.dtype))])
            insert_like(op, moved)
            result = _reshaped(op, moved.results[0], type.shape)
            op.results[0].replace_all_uses_with(result)
            erase(op)
            pending.append((result, moved.results[0]))
        view = wide.owner
        if isinstance(view, Operation) and not users(wide):
            erase(view)


def _reshaped(op: array.ArrayOp, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
    view = array.ReshapeOp(arguments=[value], outputs=[tensor(ArrayType(shape, array_type(value).dtype))])
    insert_like(op, view)
    return view.results[0]


def _swapped(op: array.ContractOp) -> SSAValue:
    """The contraction with its operands exchanged, and its result in the order that it had."""
    left, right = sides_of(op)
    result = array_type(op.results[0])
    batch, rows, columns = len(left.batch), len(left.free), len(right.free)
    shape = (*result.shape[:batch], *result.shape[batch + rows :], *result.shape[batch : batch + rows])
    swapped = array.ContractOp(
        arguments=[right.value, left.value],
        left_batch=right.batch,
        right_batch=left.batch,
        left_contract=right.contracted,
        right_contract=left.contracted,
        outputs=[tensor(ArrayType(shape, result.dtype))],
    )
    insert_like(op, swapped)
    order = (*range(batch), *range(batch + columns, batch + columns + rows), *range(batch, batch + columns))
    if order == tuple(range(len(order))):
        return swapped.results[0]
    back = array.TransposeOp(arguments=swapped.results, permutation=order, outputs=[op.results[0].type])
    insert_like(op, back)
    return back.results[0]


def _multiplied(op: array.ContractOp, left: Side, right: Side, dtype: DType) -> SSAValue:
    """The outer product of operands of depth 1, for each index of a batch."""
    left, right = (_without_depth(op, side) for side in (left, right))
    shape = array_type(op.results[0]).shape
    batch, rows, rank = len(left.batch), len(left.free), len(shape)
    factors = [
        _spread(op, left, range(batch + rows), shape, dtype),
        _spread(op, right, (*range(batch), *range(batch + rows, rank)), shape, dtype),
    ]
    product = array.MapOp(arguments=factors, fn="multiply", outputs=[tensor(ArrayType(shape, dtype))])
    insert_like(op, product)
    return product.results[0]


def _depth_first(op: array.ContractOp, side: Side) -> Side:
    """An operand with its contracted dim outermost."""
    (axis,) = side.contracted
    order = (axis, *(each for each in range(len(side.shape)) if each != axis))
    shape = tuple(side.shape[each] for each in order)
    outputs = [tensor(ArrayType(shape, array_type(side.value).dtype))]
    source, permutation, owner = side.value, order, side.value.owner
    if isinstance(owner, array.TransposeOp):  # both as one, which is what a kernel of its own has
        source, permutation = owner.operands[0], tuple(owner.permutation[each] for each in order)
    turn = array.TransposeOp(arguments=[source], permutation=permutation, outputs=outputs)
    insert_like(op, turn)
    return Side(turn.results[0], tuple(order.index(each) for each in side.batch), (0,))


def _multiply_one_by_one(op: array.ContractOp, converts_once: bool) -> None:
    """Replace a contraction by the sum of the outer products of the parts of its operands at each index of the one
    contracted dim. `converts_once`: narrow elements of the right operand are stored wide."""
    left, right = sides_of(op)
    is_turned = _is_along_depth(right)
    if is_turned:
        right = _depth_first(op, right)
    dtype = array_type(op.results[0]).dtype
    stored = [right.value.owner] if is_turned else []
    if converts_once and array_type(right.value).dtype != dtype.compute:
        right = Side(_cast(op, right.value, dtype.compute), right.batch, right.contracted)
        stored.append(right.value.owner)
    wide = tensor(ArrayType(array_type(op.results[0]).shape, dtype.compute))
    total: SSAValue | None = None
    for step in range(left.shape[left.contracted[0]]):
        product = _multiplied(op, _at(op, left, step), _at(op, right, step), dtype.compute)
        if total is None:
            total = product
            continue
        added = array.MapOp(arguments=[total, product], fn="add", outputs=[wide])
        insert_like(op, added)
        total = added.results[0]
    block = op.parent_block()
    if total is None or block is None:
        raise CompilerBug("a contraction of no depth")
    _replace(op, _cast(op, total, dtype))
    kept = [each for each in stored if isinstance(each, Operation)]
    if kept:
        # Stored in a kernel of its own: columns are side by side, and converted, for all rows.
        read = [operand for each in kept for operand in each.operands]
        make_group(block, {*kept, *inline_closure(read, block)}, "loop", _TURNED if is_turned else _WIDENED)


def _at(op: array.ContractOp, side: Side, step: int) -> Side:
    """The part of an operand at an index of its contracted dim."""
    (axis,) = side.contracted
    starts, limits = [0] * len(side.shape), list(side.shape)
    starts[axis], limits[axis] = step, step + 1
    shape = tuple(limit - start for start, limit in zip(starts, limits, strict=True))
    outputs = [tensor(ArrayType(shape, array_type(side.value).dtype))]
    strides = (1,) * len(shape)
    part = array.SliceOp(
        arguments=[side.value], starts=tuple(starts), limits=tuple(limits), strides=strides, outputs=outputs
    )
    insert_like(op, part)
    return Side(part.results[0], side.batch, side.contracted)


def _without_depth(op: array.ContractOp, side: Side) -> Side:
    """An operand without its contracted dims, which are 1."""
    kept = [d for d in range(len(side.shape)) if d not in side.contracted]
    value = _reshaped(op, side.value, tuple(side.shape[d] for d in kept))
    return Side(value, tuple(kept.index(d) for d in side.batch), ())


def _reduce_as_stored(op: array.ReduceOp) -> None:
    """Reduce in the order of memory, once nothing else reads what is reduced."""
    as_stored = reduced_as_stored(op)
    if as_stored is not None:
        op.results[0].replace_all_uses_with(as_stored)
        erase(op)


def _multiply_and_reduce(op: array.ContractOp) -> SSAValue:
    """Multiply over batches, rows, columns and the depth, and reduce that."""
    left, right = sides_of(op)
    result = array_type(op.results[0])
    depth = tuple(left.shape[d] for d in left.contracted)
    shape = (*result.shape, *depth)
    batch, rows, rank = len(left.batch), len(left.free), len(result.shape)
    batch_axes, summed = tuple(range(batch)), tuple(range(rank, len(shape)))
    dtype = result.dtype.compute
    factors = [
        _spread(op, left, (*batch_axes, *range(batch, batch + rows), *summed), shape, dtype),
        _spread(op, right, (*batch_axes, *range(batch + rows, rank), *summed), shape, dtype),
    ]
    products = array.MapOp(arguments=factors, fn="multiply", outputs=[tensor(ArrayType(shape, dtype))])
    insert_like(op, products)
    total = array.ReduceOp(
        arguments=products.results, fn="add", axes=summed, outputs=[tensor(ArrayType(result.shape, dtype))]
    )
    insert_like(op, total)
    return _cast(op, total.results[0], result.dtype)


def _spread(op: array.ContractOp, side: Side, axes: Sequence[int], shape: tuple[int, ...], dtype: DType) -> SSAValue:
    """Broadcast an operand to a shape of which its batch, free and contracted dims are `axes`."""
    place = dict(zip((*side.batch, *side.free, *side.contracted), axes, strict=True))
    value = _cast(op, side.value, dtype)
    ordered = sorted(range(len(side.shape)), key=place.__getitem__)
    if ordered != list(range(len(ordered))):
        sizes = tuple(side.shape[d] for d in ordered)
        view = array.TransposeOp(
            arguments=[value], permutation=tuple(ordered), outputs=[tensor(ArrayType(sizes, dtype))]
        )
        insert_like(op, view)
        value = view.results[0]
    spread = array.BroadcastOp(arguments=[value], axes=tuple(sorted(axes)), outputs=[tensor(ArrayType(shape, dtype))])
    insert_like(op, spread)
    return spread.results[0]


def _cast(op: array.ContractOp, value: SSAValue, dtype: DType) -> SSAValue:
    type = array_type(value)
    if type.dtype == dtype:
        return value
    cast = array.CastOp(arguments=[value], outputs=[tensor(ArrayType(type.shape, dtype))])
    insert_like(op, cast)
    return cast.results[0]
