"""Integers in the order of elements: what sorts and searches for the first element compare instead of them.

The rank of an element is a signed integer of 32 bits, of 64 for elements of 64: elements of smaller rank come first.
Zeros of both signs have one rank, and so have all NaN. A record states of two elements of one rank that the earlier one
comes first: it is a rank of 32 bits above the element's index in one integer, or a rank of 64 bits and the index.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.dtypes import DType
from tilewright.targets.cpu.loops import I64
from tilewright.targets.llvm.conversions import register_form
from tilewright.targets.llvm.values import Builder, Value, splat, with_element

LAST = 2**63 - 1
"""A record, or a rank of 64 bits, behind which there is none."""

_LOW_WORD = 0xFFFFFFFF


def rank_bits(dtype: DType) -> int:
    """The width of the ranks of a type."""
    return 64 if dtype.bits == 64 else 32


def rank(builder: Builder, value: Value, dtype: DType, descending: bool, nan_first: bool) -> Value:
    """Ranks of elements in register form."""
    bits = rank_bits(dtype)
    shape = with_element(value.type, ir.IntType(bits))
    if dtype.is_float:
        # Adding zero makes the negative zero positive. Of negative numbers, larger magnitudes come first.
        pattern = builder.bitcast(builder.fadd(value, splat(value.type, 0.0)), shape)
        turned = builder.lshr(builder.ashr(pattern, splat(shape, bits - 1)), splat(shape, 1))
        result = builder.xor(pattern, turned)
    elif dtype.bits < bits:
        result = builder.sext(value, shape) if dtype.is_signed else builder.zext(value, shape)
    elif dtype.is_signed:
        result = value
    else:
        result = builder.xor(value, splat(shape, 1 << (bits - 1)))
    if descending:
        result = builder.xor(result, splat(shape, -1))
    if not dtype.is_float:
        return result
    nan_rank = -(2 ** (bits - 1)) if nan_first else 2 ** (bits - 1) - 1
    return builder.select(builder.fcmp_unordered("uno", value, value), splat(shape, nan_rank), result)


def element_of_rank(builder: Builder, rank: Value, dtype: DType, descending: bool) -> Value:
    """The element in register form that has a rank: of zeros the positive one, of NaN just one."""
    bits = rank_bits(dtype)
    if descending:
        rank = builder.xor(rank, splat(rank.type, -1))
    if dtype.is_float:
        turned = builder.lshr(builder.ashr(rank, splat(rank.type, bits - 1)), splat(rank.type, 1))
        return builder.bitcast(builder.xor(rank, turned), with_element(rank.type, register_form(dtype)))
    if dtype.bits < bits:
        return builder.trunc(rank, with_element(rank.type, register_form(dtype)))
    return rank if dtype.is_signed else builder.xor(rank, splat(rank.type, 1 << (bits - 1)))


def record(builder: Builder, rank: Value, index: Value) -> Value:
    """Records of 32-bit ranks and of indices below 2**32, which are of 32 or 64 bits."""
    shape = with_element(rank.type, I64)
    high = builder.shl(builder.zext(rank, shape), splat(shape, 32))
    return builder.or_(high, index if index.type == shape else builder.zext(index, shape))


def record_index(builder: Builder, record: Value) -> Value:
    """The index in a record, as i64."""
    return builder.and_(record, splat(record.type, _LOW_WORD))
