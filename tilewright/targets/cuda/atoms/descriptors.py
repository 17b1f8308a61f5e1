"""Operands of wgmma and tcgen05.mma in shared memory: from layouts to the fields of matrix descriptors.

PTX ISA, 9.7.15.5.1.2 "Shared Memory Matrix Layout" ("Canonical Layouts", "Matrix Descriptor Format") and 9.7.16.4.1
"Shared memory descriptor". The addresses that the hardware reads are computed once more here and compared with the
layout.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from llvmlite import ir

from tilewright.dtypes import DType
from tilewright.layout import Layout
from tilewright.layout.construct import line_swizzle
from tilewright.layout.relayout import Reason
from tilewright.records import dataclass

Builder = Any  # llvmlite carries no annotations
Value = Any
Major = Literal["k", "mn"]
_CHUNK_BYTES, _GROUP, _DEPTH_BYTES = 16, 8, 32
_MOST_OFFSET = (1 << 18) - 16
# By chip: the swizzle's field, its first bit, and what else is set.
_HOPPER_SWIZZLES, _BLACKWELL_SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}, {0: 0, 128: 2, 64: 4, 32: 6}
_BLACKWELL_VERSION = 1 << 46


@dataclass(frozen=True)
class OperandFields:
    """How an operand (lines along M or N, columns along K) is: offsets in bytes. The layout's base is aligned to 8 *
    swizzle bytes, or to 16."""

    major: Major
    swizzle: int
    leading: int
    stride: int
    offsets: tuple[tuple[int, ...], ...]
    """By steps of 32 bytes of K, and by groups of 8 lines: where an instruction's part begins."""

    def start(self, step: int, line: int = 0) -> int:
        """The bytes to add to the address for step `step` along K, from line `line` on, a multiple of 8."""
        return self.offsets[step][line // _GROUP]

    @property
    def hopper(self) -> int:
        """The descriptor of wgmma for address 0."""
        return self._common | _HOPPER_SWIZZLES[self.swizzle] << 62

    @property
    def blackwell(self) -> int:
        """The descriptor of tcgen05.mma for address 0."""
        return self._common | _BLACKWELL_VERSION | _BLACKWELL_SWIZZLES[self.swizzle] << 61

    @property
    def _common(self) -> int:
        return self.leading >> 4 << 16 | self.stride >> 4 << 32


def descriptor_of(layout: Layout, dtype: DType) -> OperandFields | Reason:
    """The fields of an operand whose shape is (M or N, K); or why no descriptor reads that layout."""
    size = dtype.bits // 8
    if len(layout.shape) != 2 or not layout.is_static or layout.axes != ("mem",) or dtype.bits not in (8, 16, 32):
        return Reason("an operand is a matrix of 8, 16 or 32 bits in shared memory")
    if layout.replica or layout.partial or layout.offset:
        return Reason("an operand has no copies, terms or offset")
    lines, depth = layout.static_shape
    step = _DEPTH_BYTES // size
    if lines % _GROUP or depth % step:
        return Reason(f"an operand of {lines} x {depth} is not made of 8 lines of {step} elements")
    swizzle = _swizzle_of(layout, size)
    if swizzle is None:
        return Reason("the swizzle is none of the copy engine's")
    linear = _linear(layout) * size
    major: Major = "k" if linear[0, 1] == size else "mn"
    if major == "mn" and size == 4:
        return Reason("operands of 32 bits are contiguous along K")
    fields = _strides(linear, size, swizzle, major)
    if max(fields) > _MOST_OFFSET or min(fields) < 0 or any(each % _CHUNK_BYTES for each in fields):
        return Reason(f"offsets of {fields} bytes do not fit into a descriptor")
    starts = linear[::_GROUP, ::step]
    if not _is_read(linear, starts, size, swizzle, major, *fields):
        return Reason(f"no descriptor reads `{layout}`")
    offsets = tuple(tuple(int(each) for each in column) for column in starts.T)
    return OperandFields(major, swizzle, *fields, offsets)


def matrix_descriptor(builder: Builder, fixed: int, address: Value) -> Value:
    """A descriptor (i64): the fields, and the address in shared memory (i32)."""
    wide = ir.IntType(64)
    start = builder.lshr(builder.and_(address, ir.Constant(address.type, 0x3FFFF)), ir.Constant(address.type, 4))
    return builder.or_(builder.zext(start, wide), ir.Constant(wide, fixed))


def _swizzle_of(layout: Layout, size: int) -> int | None:
    if not layout.swizzle:
        return 0
    spans = [span for span in (32, 64, 128) if layout.swizzle == (line_swizzle(span, size),)]
    return spans[0] if spans else None


def _linear(layout: Layout) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The position of each element before swizzling."""
    rows, columns = layout.static_shape
    index = np.indices((rows, columns), dtype=np.int64)
    total = np.zeros((rows, columns), np.int64)
    for term in layout.linear_terms("mem"):
        quotient = index[term.dim] // term.divisor
        total += term.stride * (quotient if term.modulus is None else quotient % term.modulus)
    return total


def _strides(linear: np.ndarray[Any, Any], size: int, swizzle: int, major: Major) -> tuple[int, int]:
    """Leading and stride byte offset: from one chunk, or group of 8, to the next. An unused offset is one chunk."""

    def between(line: int, column: int) -> int:
        inside = line < linear.shape[0] and column < linear.shape[1]
        return int(linear[line, column]) if inside else _CHUNK_BYTES

    across = (swizzle or _CHUNK_BYTES) // size
    if major == "k":
        return (_CHUNK_BYTES if swizzle else between(0, across)), between(_GROUP, 0)
    lines, columns = between(across, 0), between(0, _GROUP)
    return (lines, columns) if swizzle else (columns, lines)


def _is_read(
    linear: np.ndarray[Any, Any],
    starts: np.ndarray[Any, Any],
    size: int,
    swizzle: int,
    major: Major,
    leading: int,
    stride: int,
) -> bool:
    """Whether each instruction reads its part: 32 bytes of K of all lines, and from each group of 8 lines on."""
    lines, columns = np.indices((linear.shape[0], _DEPTH_BYTES // size))
    if major == "k":
        byte = columns * size
        inner = byte if swizzle else byte % _CHUNK_BYTES + byte // _CHUNK_BYTES * leading
        reads = lines % _GROUP * (swizzle or _CHUNK_BYTES) + lines // _GROUP * stride + inner
    else:
        span, byte = swizzle or _CHUNK_BYTES, lines * size
        outer, inner = (leading, stride) if swizzle else (stride, leading)
        reads = byte % span + byte // span * outer + columns % _GROUP * span + columns // _GROUP * inner
    wanted = linear.reshape(linear.shape[0], -1, columns.shape[1])
    return bool((wanted == starts[0][None, :, None] + reads[:, None, :]).all())
