"""Running values of the reductions of a loop nest, and how they are combined: pairwise, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from llvmlite import ir

from tilewright import ops
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.targets.llvm.functions import emit_function
from tilewright.targets.llvm.values import Builder, Value, lanes_of, shuffle, splat


class Accumulator(msgspec.Struct):
    """Running values of one reduction: `slots[u]` for the u-th vector of an unrolled step, or one slot, where a row of
    totals begins."""

    reduce: tile.ReduceOp
    slots: list[Value]
    shape: ir.Type
    dtype: DType

    def combine(self, builder: Builder, left: Value, right: Value) -> Value:
        return emit_function(builder, self.reduce.fn, self.dtype.compute, [left, right])

    def pairwise(self, builder: Builder, parts: Sequence[Value]) -> Value:
        """A power of two of values combined by halves."""
        while len(parts) > 1:
            parts = [self.combine(builder, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def across_lanes(self, builder: Builder, total: Value) -> Value:
        """The lanes of a vector combined by halves."""
        lanes = lanes_of(total.type)
        while lanes > 1:
            half = lanes // 2
            low, high = (shuffle(builder, total, None, r) for r in (range(half), range(half, lanes)))
            total = self.combine(builder, low, high)
            lanes = half
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))


def identity_of(reduce: tile.ReduceOp, shape: ir.Type) -> Value:
    """The value that a reduction begins with."""
    function = ops.FUNCTIONS[reduce.fn]
    if function.identity is None:
        raise CompilerBug(f"`{function.name}` does not reduce")
    return splat(shape, function.identity(array_type(reduce.operands[0]).dtype))
