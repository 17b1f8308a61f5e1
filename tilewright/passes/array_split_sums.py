"""Split long sums with few results into parts (split-K), to occupy more threads or cores.

A matmul of great depth becomes one with a batch of parts, a reduction of many elements to few one in parts, which reads
windows of what it fuses with; then comes a reduction over the parts. How many there are depends on shapes and the
machine alone, so that results do not depend on the number of threads. Where warps multiply, parts of matmuls are chosen
by predicted times (split-K, `cost/split_k.py`), and windows of the operands are read as they are. After attention has
been found, which takes such matmuls in, and operands laid out; before the passes that fuse, because the two halves fuse
with different neighbours.

Before:
    func.func @main(%x: tensor<8x65536xi32>, %y: tensor<65536x8xi32>) -> tensor<8x8xi32> {
      %z = array.contract(%x, %y) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>} : tensor<8x8xi32>
      func.return %z : tensor<8x8xi32>
    }
After:
    func.func @main(%x: tensor<8x65536xi32>, %y: tensor<65536x8xi32>) -> tensor<8x8xi32> {
      %xs = array.reshape(%x) : tensor<8x16x4096xi32>
      %ys = array.reshape(%y) : tensor<16x4096x8xi32>
      %parts = array.contract(%xs, %ys) {left_batch = array<i64: 1>, right_batch = array<i64: 0>,
        left_contract = array<i64: 2>, right_contract = array<i64: 1>} : tensor<16x8x8xi32>
      %z = array.reduce(%parts) {fn = "add", axes = array<i64: 0>} : tensor<8x8xi32>
      func.return %z : tensor<8x8xi32>
    }
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Operation, SSAValue

from tilewright.cost.split_k import split_k
from tilewright.cost.tiles import is_streamed
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.passes.base import Remark, Unit, blocks_of, microseconds, where
from tilewright.passes.contract_facts import piece_bytes, warp_product
from tilewright.passes.fusion import describe
from tilewright.primitives import ArrayType

# Results of a product that make too few tiles for many threads, and the least multiplications worth the second kernel.
FEW_PRODUCTS = 128 * 128
LEAST_PRODUCT_WORK = 1 << 22
# The same of a product of few rows, whose time goes into reading its right operand: parts of whole rows are read in
# longer runs than all rows in parts of columns. One that has the depth inside is read in long runs as it is; so many
# columns of it are work for many threads.
LEAST_STREAMED_WORK = 1 << 20
LEAST_STREAMED_PART = 64
MANY_COLUMNS = 512
# The same of a reduction: one tile of results, and elements.
FEW_RESULTS = 8
LEAST_REDUCED = 1 << 17
MOST_PARTS = 16
LEAST_PART = 1024
# Fewer equal parts than these are no work for many threads: parts of a multiple of so many elements then.
FEW_PARTS = 8
UNEQUAL_PART = 1024


@dataclass(frozen=True)
class ArraySplitSumsPass:
    name: ClassVar[str] = "array-split-sums"

    def apply(self, unit: Unit) -> None:
        if unit.machine.grid is not None:
            return  # cores share the loops of long sums
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.ContractOp) and unit.machine.has_warps:
                    _split_for_warps(unit, op)
                    continue
                if isinstance(op, array.ContractOp):
                    parts = _split_product(op)
                elif isinstance(op, array.ReduceOp):
                    _consider_reduction(unit, op)
                    continue
                else:
                    continue
                if parts:
                    unit.remarks.append(Remark(self.name, op.name, f"{parts} parts", "long sums with few results"))


def _consider_reduction(unit: Unit, op: array.ReduceOp) -> None:
    source = array_type(op.operands[0])
    axes: Sequence[int] = op.attributes_of()["axes"]
    if math.prod(source.shape[d] for d in axes) < LEAST_REDUCED:
        return
    subject = f"{describe([op])} at {where(op)}"
    parts, why = _split_reduction(op)
    decision = "as a whole" if parts == 1 else f"{parts} parts"
    unit.remarks.append(Remark(ArraySplitSumsPass.name, subject, decision, why))


def _split_for_warps(unit: Unit, op: array.ContractOp) -> None:
    result = array_type(op.results[0])
    if len(op.attributes_of()["left_contract"]) != 1 or 0 in result.shape:
        return
    found = split_k(warp_product(op, [piece_bytes(op, n) for n in range(2)], unit.machine), unit.machine)
    if found is None:
        return
    type = ArrayType((found.parts, *result.shape), result.dtype.compute)
    parts = array.ContractOp.make(op.operands, op.plain() | {"part": found.part}, [tensor(type)])
    why = f"few tiles for {unit.machine.cores} cores: {microseconds(found.seconds)}, else {microseconds(found.whole_s)}"
    unit.remarks.append(Remark("array-split-sums", f"contract at {where(op)}", f"{found.parts} parts", why))
    _replace(op, parts, "add", result)


def _parts(size: int, least: int = LEAST_PART) -> int:
    """Into how many equal parts of at least `least` a dim is cut; 1 if into none."""
    return max(n for n in range(1, MOST_PARTS + 1) if n == 1 or (size % n == 0 and size // n >= least))


def _split_product(op: array.ContractOp) -> int:
    a = op.attributes_of()
    left = array_type(op.operands[0])
    result = array_type(op.results[0])
    if a["left_batch"] or len(a["left_contract"]) != 1 or result.dtype != result.dtype.compute:
        return 0
    left_dim: int = a["left_contract"][0]
    right_dim: int = a["right_contract"][0]
    depth = left.shape[left_dim]
    columns = array_type(op.operands[1]).size // max(1, depth)
    streamed = is_streamed(result.size // max(1, columns), columns, result.dtype)
    inside = _source(op.operands[1], right_dim)[1] == array_type(op.operands[1]).rank - 1
    if streamed and inside and columns >= MANY_COLUMNS:
        return 0
    least_part, least_work = LEAST_PART, LEAST_PRODUCT_WORK
    if streamed and not inside:
        least_part, least_work = LEAST_STREAMED_PART, LEAST_STREAMED_WORK
    parts = _parts(depth, least_part)
    if result.size > FEW_PRODUCTS or result.size * depth < least_work or parts == 1:
        return 0
    operands = [_split_dim(op, o, d, parts) for o, d in zip(op.operands, (left_dim, right_dim), strict=True)]
    attributes = {
        "left_batch": (left_dim,),
        "right_batch": (right_dim,),
        "left_contract": (left_dim + 1,),
        "right_contract": (right_dim + 1,),
    }
    rounded = {} if op.precision is None else {"precision": op.precision.data}
    type = ArrayType((parts, *result.shape), result.dtype)
    _replace(op, array.ContractOp.make(operands, attributes | rounded, [tensor(type)]), "add", result)
    return parts


def _split_reduction(op: array.ReduceOp) -> tuple[int, str]:
    """Divide a reduction into parts: their number and why, or 1 and why not."""
    source, result = array_type(op.operands[0]), array_type(op.results[0])
    a = op.attributes_of()
    axes: Sequence[int] = a["axes"]
    reduced = math.prod(source.shape[d] for d in axes)
    if result.size > FEW_RESULTS:
        return 1, f"{result.size} results are work for many threads"
    if result.dtype != result.dtype.compute:
        return 1, f"parts of {result.dtype} would be rounded"
    # Windows of the outermost dimension are runs of memory.
    longest = max(axes, key=lambda d: source.shape[d])
    axis = next((d for d in axes if source.shape[d] >= MOST_PARTS * MOST_PARTS), longest)
    size = source.shape[axis]
    part = _part_of(size, least=max(1, LEAST_PART * size // reduced))
    if part >= size:
        return 1, f"no parts of at least {LEAST_PART} elements"
    parts = -(-size // part)
    shape = tuple(n for d, n in enumerate(source.shape) if d not in axes)
    attributes = {"fn": a["fn"], "axes": tuple(axes), "part": part, "part_axis": axis}
    partial = array.ReduceOp.make(op.operands, attributes, [tensor(ArrayType((parts, *shape), result.dtype))])
    _replace(op, partial, a["fn"], result)
    return parts, "long sums with few results"


def _part_of(size: int, least: int) -> int:
    """How much of a dim is a part. Parts are equal where enough of them can be; else the last one is shorter, and the
    others are whole tiles."""
    parts = _parts(size, least)
    if parts >= FEW_PARTS or size < MOST_PARTS * UNEQUAL_PART:
        return size // parts
    return -(-size // (MOST_PARTS * UNEQUAL_PART)) * UNEQUAL_PART


def _source(value: SSAValue, dim: int) -> tuple[SSAValue, int]:
    """The array that a transpose reads, and which of its dims the given one is."""
    if not isinstance(value.owner, array.TransposeOp):
        return value, dim
    permutation: tuple[int, ...] = value.owner.attributes_of()["permutation"]
    return value.owner.operands[0], permutation[dim]


def _split_dim(op: Operation, value: SSAValue, dim: int, parts: int) -> SSAValue:
    """The array with a dim cut into parts and what is in each. What a transpose reads is cut before it, since reshapes
    are of arrays in memory."""
    source, source_dim = _source(value, dim)
    type = array_type(source)
    shape = (*type.shape[:source_dim], parts, type.shape[source_dim] // parts, *type.shape[source_dim + 1 :])
    reshape = array.ReshapeOp.make([source], {}, [tensor(ArrayType(shape, type.dtype))])
    _insert(op, reshape)
    if source is value:
        return reshape.results[0]
    permutation: list[int] = []
    for d in range(type.rank):
        place = _source(value, d)[1]
        place += place > source_dim
        permutation += [place, place + 1] if d == dim else [place]
    cut = ArrayType(tuple(shape[d] for d in permutation), type.dtype)
    transpose = array.TransposeOp.make([reshape.results[0]], {"permutation": tuple(permutation)}, [tensor(cut)])
    _insert(op, transpose)
    return transpose.results[0]


def _replace(op: Operation, partial: Operation, fn: str, result: ArrayType, axis: int = 0) -> None:
    """Put the parts and their reduction in place of an operation."""
    summed = ArrayType(result.shape, array_type(partial.results[0]).dtype)
    total = array.ReduceOp.make([partial.results[0]], {"fn": fn, "axes": (axis,)}, [tensor(summed)])
    _insert(op, partial)
    _insert(op, total)
    if summed != result:
        total = array.CastOp.make([total.results[0]], {}, [tensor(result)])
        _insert(op, total)
    op.results[0].replace_all_uses_with(total.results[0])
    transposes = [o.owner for o in op.operands if isinstance(o.owner, array.TransposeOp)]
    op.detach()
    op.erase()
    for transpose in dict.fromkeys(transposes):
        if not list(transpose.results[0].uses):
            transpose.detach()
            transpose.erase()


def _insert(op: Operation, new: Operation) -> None:
    new.location = op.location
    block = op.parent_block()
    if block is not None:
        block.insert_op_before(new, op)
