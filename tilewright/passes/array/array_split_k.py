"""Cut the contracted dimension of matmuls of few tiles into parts (split-K) where that is predicted to be faster.

The parts are the first dimension of the result of the contraction, in the accumulator's type; a reduction adds them up.
Windows of the operands are read as they are stored. The number of parts is that of the least predicted time
(`cost/split_k.py`).

Before (sm_90a):
    func.func @main(%x: tensor<64x65536xbf16>, %y: tensor<65536x64xbf16>) -> tensor<64x64xf32> {
      %z = array.contract(%x, %y) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>} : tensor<64x64xf32>
      func.return %z : tensor<64x64xf32>
    }
After:
    func.func @main(%x: tensor<64x65536xbf16>, %y: tensor<65536x64xbf16>) -> tensor<64x64xf32> {
      %parts = array.contract(%x, %y) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>, part = 1024 : index} : tensor<64x64x64xf32>
      %z = array.reduce(%parts) {fn = "add", axes = array<i64: 0>} : tensor<64x64xf32>
      func.return %z : tensor<64x64xf32>
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tilewright.cost.split_k import split_k
from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.passes.array.split_sums import replace_by_parts
from tilewright.passes.base import Remark, Unit, blocks_of, microseconds, where
from tilewright.passes.kernels.warp_products import piece_bytes, warp_product
from tilewright.primitives import ArrayType


class ArraySplitKPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-split-k"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.ContractOp):
                    _split(unit, op)


def _split(unit: Unit, op: array.ContractOp) -> None:
    result = array_type(op.results[0])
    if len(op.left_contract) != 1 or 0 in result.shape:
        return
    found = split_k(warp_product(op, [piece_bytes(op, n) for n in range(2)], unit.machine), unit.machine)
    if found is None:
        return
    type = ArrayType((found.parts, *result.shape), result.dtype.compute)
    parts = rebuilt(op, result_types=[tensor(type)])
    parts.part = found.part
    why = f"few tiles for {unit.machine.cores} cores: {microseconds(found.seconds)}, else {microseconds(found.whole_s)}"
    unit.remarks.append(Remark(ArraySplitKPass.name, f"contract at {where(op)}", f"{found.parts} parts", why))
    replace_by_parts(op, parts, "add", result)
