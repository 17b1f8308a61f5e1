"""Transpose matmul operands to be contiguous along the depth, if that is predicted to save time.

MMA instructions on operands of 8 or 32 bits read them along the contracted dimension, and asynchronous copies begin at
multiples of some bytes. Operands in another layout pass through registers, element by element. A large matmul reads
each element many times, so a separate kernel that lays the operand out once, with zeros at the end of its rows, costs
less. Predicted times of both are in the remark.

Before (sm_90a):
    func.func @main(%x: tensor<32x4094xi8>, %w: tensor<4094x32xi8>) -> tensor<32x32xi32> {
      %y = array.contract(%x, %w) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>} : tensor<32x32xi32>
      func.return %y : tensor<32x32xi32>
    }
After:
    func.func @main(%x: tensor<32x4094xi8>, %w: tensor<4094x32xi8>) -> tensor<32x32xi32> {
      %left = array.fused(%x) {kind = "loop", why = "rows along the contracted dimension"} do {
      ^bb0(%x1: tensor<32x4094xi8>):
        %zero = array.constant() {value = 0 : index, resource = ""} : tensor<i8>
        %p = array.pad(%x1, %zero) {low = array<i64: 0, 0>, high = array<i64: 0, 2>, interior = array<i64: 0, 0>}
          : tensor<32x4096xi8>
        array.yield(%p)
      } : tensor<32x4096xi8>
      %rows = array.fused(%w) {kind = "loop", why = "rows along the contracted dimension"} do {
      ^bb0(%w1: tensor<4094x32xi8>):
        %t = array.transpose(%w1) {permutation = array<i64: 1, 0>} : tensor<32x4094xi8>
        %zero = array.constant() {value = 0 : index, resource = ""} : tensor<i8>
        %p = array.pad(%t, %zero) {low = array<i64: 0, 0>, high = array<i64: 0, 2>, interior = array<i64: 0, 0>}
          : tensor<32x4096xi8>
        array.yield(%p)
      } : tensor<32x4096xi8>
      %right = array.transpose(%rows) {permutation = array<i64: 1, 0>} : tensor<4096x32xi8>
      %y = array.contract(%left, %right) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 1>, right_contract = array<i64: 0>} : tensor<32x32xi32>
      func.return %y : tensor<32x32xi32>
    }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec
import numpy as np
from msgspec.structs import replace
from xdsl.ir import Block, Operation, SSAValue

from tilewright.cost.warps.products import TENSOR_COPY_BYTES, warp_product_seconds
from tilewright.dialects import array
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import insert_like
from tilewright.dtypes import tf32
from tilewright.machines.machine import Machine
from tilewright.passes.array.array_simplify import computed
from tilewright.passes.array.fusion import inline_closure, is_inline, make_group
from tilewright.passes.base import Remark, Unit, blocks_of, microseconds, where
from tilewright.passes.kernels.contract_facts import untransposed
from tilewright.passes.kernels.warp_products import multiplied_as, piece_bytes, piece_of_rows, warp_product
from tilewright.primitives import ArrayType

_WHY = "rows along the contracted dimension"
# What the rows of operands may be made multiples of: the least that a lane copies, and what the machine copies by
# itself.
_MULTIPLES_BYTES = (4, TENSOR_COPY_BYTES)
# How much longer the product must take as it is: the prediction is no surer, and each kernel has to be compiled.
_WORTH = 1.25


class ArrayOrderOperandsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-order-operands"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.ContractOp) and _may_be_ordered(op, unit.machine):
                    _order(unit, block, op)


class _Order(msgspec.Struct, frozen=True):
    """Which operands are laid out, with how much of the contracted dimension, and in which predicted time, of which
    `moving_s` are to lay them out."""

    operands: tuple[int, ...]
    depth: int
    seconds: float
    moving_s: float


def _may_be_ordered(op: array.ContractOp, machine: Machine) -> bool:
    """Whether MMA instructions take the operands without a conversion, both are arrays, and one dimension is
    contracted."""
    types = [array_type(operand) for operand in op.operands]
    if any(0 in type.shape for type in types):
        return False
    if len(op.left_contract) != 1 or multiplied_as(op, machine) not in (None, tf32):
        return False
    owners = [untransposed(operand).owner for operand in op.operands]
    return not any(isinstance(owner, Operation) and is_inline(owner) for owner in owners)


def _order(unit: Unit, block: Block, op: array.ContractOp) -> None:
    product = warp_product(op, [piece_bytes(op, n) for n in range(2)], unit.machine)
    if product.rows == 1 or product.columns == 1:
        return
    as_it_is = warp_product_seconds(product, unit.machine)
    best = min(_orders(unit, op), key=lambda order: order.seconds, default=None)
    if best is None or best.seconds * _WORTH > as_it_is:
        return
    for operand in best.operands:
        _lay_out(unit, block, op, operand, best.depth)
    sides = " and ".join(("left", "right")[n] for n in best.operands)
    moving, ordered, otherwise = (microseconds(each) for each in (best.moving_s, best.seconds, as_it_is))
    why = f"{sides} along the contracted dimension: {moving} of {ordered}, else {otherwise}"
    unit.remarks.append(Remark("array-order-operands", f"contract at {where(op)}", "lay out", why))


def _orders(unit: Unit, op: array.ContractOp) -> Iterator[_Order]:
    """Ways to lay operands out: as few as there can be for rows of some multiple."""
    item = array_type(op.operands[0]).dtype.itemsize
    for multiple in _MULTIPLES_BYTES:
        depth = _depth(op, 0)
        padded = -(-depth * item // multiple) * multiple // item
        moved = tuple(n for n in range(2) if padded != depth or piece_bytes(op, n) < multiple)
        pieces = [piece_of_rows(padded * item) if n in moved else piece_bytes(op, n) for n in range(2)]
        product = replace(warp_product(op, pieces, unit.machine), depth=padded)
        moving_s = sum(_moving_seconds(unit, op, n, padded) for n in moved)
        if moved:
            yield _Order(moved, padded, warp_product_seconds(product, unit.machine) + moving_s, moving_s)


def _depth(op: array.ContractOp, operand: int) -> int:
    return array_type(op.operands[operand]).shape[_contracted(op, operand)]


def _contracted(op: array.ContractOp, operand: int) -> int:
    """The contracted dim of an operand."""
    return (op.left_contract, op.right_contract)[operand][0]


def _moving_seconds(unit: Unit, op: array.ContractOp, operand: int, depth: int) -> float:
    """The predicted time of the kernel that reads an operand and writes it in the new layout. Constants are laid out at
    compile time."""
    if isinstance(op.operands[operand].owner, array.ConstantOp):
        return 0.0
    type, machine = array_type(op.operands[operand]), unit.machine
    elements = type.size + type.size // _depth(op, operand) * depth
    far = machine.memories[-1]
    return machine.fork_join_s + elements * type.dtype.itemsize / (far.bytes_per_second * machine.cores)


def _lay_out(unit: Unit, block: Block, op: array.ContractOp, operand: int, depth: int) -> None:
    """Replace an operand by an array whose last dim is the contracted one, padded to `depth`: a constant at compile
    time, another operand by a kernel."""
    value, dim = op.operands[operand], _contracted(op, operand)
    rank, missing = array_type(value).rank, depth - _depth(op, operand)
    order = (*(other for other in range(rank) if other != dim), dim)
    back = tuple(order.index(other) for other in range(rank))
    if isinstance(value.owner, array.ConstantOp):
        padding = [*[(0, 0)] * (rank - 1), (0, missing)]
        rows = computed(
            unit, op, [value], lambda known: np.ascontiguousarray(np.pad(known[0].transpose(order), padding))
        )
        op.operands[operand] = _transposed(op, rows, back)
        return
    rows = _padded(op, _transposed(op, value, order), missing)
    op.operands[operand] = _transposed(op, rows, back)
    owner = rows.owner
    assert isinstance(owner, Operation)
    make_group(block, {owner, *inline_closure(owner.operands, block)}, "loop", _WHY)


def _transposed(op: array.ContractOp, value: SSAValue, order: Sequence[int]) -> SSAValue:
    if list(order) == list(range(len(order))):
        return value
    return _inserted(op, array.TransposeOp(arguments=[value], permutation=tuple(order)))


def _padded(op: array.ContractOp, value: SSAValue, missing: int) -> SSAValue:
    """A value with zeros after its rows."""
    if not missing:
        return value
    none = (0,) * array_type(value).rank
    zero = array.ConstantOp(value=0, resource="", outputs=[tensor(ArrayType((), array_type(value).dtype))])
    operands, high = [value, _inserted(op, zero)], (*none[:-1], missing)
    return _inserted(op, array.PadOp(arguments=operands, low=none, high=high, interior=none))


def _inserted(op: array.ContractOp, made: array.ArrayOp) -> SSAValue:
    insert_like(op, made)
    return made.results[0]
