"""Cut contractions of great depth and few results into parts, so that there is work for many threads.

Such a contraction becomes one with a batch of parts, followed by a reduction over the parts. Their number depends on
shapes and the machine alone, so that results do not depend on the number of threads. This comes after attention has
been found, which takes contractions in, and before the passes that fuse, because the two halves fuse with different
neighbours.

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

from typing import ClassVar

import msgspec
from xdsl.ir import Operation, SSAValue

from tilewright.cost.vectors.tiles import is_streamed
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import insert_like
from tilewright.passes.array.split_sums import LEAST_PART, parts_of, replace_by_parts
from tilewright.passes.base import Remark, Unit, blocks_of
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


class ArraySplitContractionsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-split-contractions"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                parts = _split_product(op) if isinstance(op, array.ContractOp) else 0
                if parts:
                    unit.remarks.append(Remark(self.name, op.name, f"{parts} parts", "long sums with few results"))


def _split_product(op: array.ContractOp) -> int:
    left = array_type(op.operands[0])
    result = array_type(op.results[0])
    if op.left_batch or len(op.left_contract) != 1 or result.dtype != result.dtype.compute:
        return 0
    left_dim: int = op.left_contract[0]
    right_dim: int = op.right_contract[0]
    depth = left.shape[left_dim]
    columns = array_type(op.operands[1]).size // max(1, depth)
    streamed = is_streamed(result.size // max(1, columns), columns, result.dtype)
    inside = _source(op.operands[1], right_dim)[1] == array_type(op.operands[1]).rank - 1
    if streamed and inside and columns >= MANY_COLUMNS:
        return 0
    least_part, least_work = LEAST_PART, LEAST_PRODUCT_WORK
    if streamed and not inside:
        least_part, least_work = LEAST_STREAMED_PART, LEAST_STREAMED_WORK
    parts = parts_of(depth, least_part)
    if result.size > FEW_PRODUCTS or result.size * depth < least_work or parts == 1:
        return 0
    operands = [_split_dim(op, o, d, parts) for o, d in zip(op.operands, (left_dim, right_dim), strict=True)]
    split = array.ContractOp(
        arguments=operands,
        left_batch=(left_dim,),
        right_batch=(right_dim,),
        left_contract=(left_dim + 1,),
        right_contract=(right_dim + 1,),
        precision=op.precision,
        outputs=[tensor(ArrayType((parts, *result.shape), result.dtype))],
    )
    replace_by_parts(op, split, "add", result)
    return parts


def _source(value: SSAValue, dim: int) -> tuple[SSAValue, int]:
    """The array that a transpose reads, and which of its dims the given one is."""
    if not isinstance(value.owner, array.TransposeOp):
        return value, dim
    permutation: tuple[int, ...] = value.owner.permutation
    return value.owner.operands[0], permutation[dim]


def _split_dim(op: Operation, value: SSAValue, dim: int, parts: int) -> SSAValue:
    """The array with a dim split into `parts` and the extent of each part. The operand of a transpose is split before
    the transpose, since reshapes are of arrays in memory."""
    source, source_dim = _source(value, dim)
    type = array_type(source)
    shape = (*type.shape[:source_dim], parts, type.shape[source_dim] // parts, *type.shape[source_dim + 1 :])
    reshape = array.ReshapeOp(arguments=[source], outputs=[tensor(ArrayType(shape, type.dtype))])
    insert_like(op, reshape)
    if source is value:
        return reshape.results[0]
    permutation: list[int] = []
    for d in range(type.rank):
        place = _source(value, d)[1]
        place += place > source_dim
        permutation += [place, place + 1] if d == dim else [place]
    cut = ArrayType(tuple(shape[d] for d in permutation), type.dtype)
    transpose = array.TransposeOp(arguments=[reshape.results[0]], permutation=tuple(permutation), outputs=[tensor(cut)])
    insert_like(op, transpose)
    return transpose.results[0]
