"""Floats of 8 bits by the chip's own conversions: PTX ISA, "Data Movement and Conversion Instructions: cvt".

`cvt` to 8 bits saturates: all larger values, infinities included, give the largest number. Values that round
beyond it get the next code: the infinity of e5m2, the NaN of e4m3.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.targets.llvm.values import (
    FLOAT,
    HALF,
    Builder,
    Value,
    has_features,
    intrinsic,
    lanes_of,
    splat,
    undefined,
    with_element,
)
from tilewright.targets.simt.lane_groups import grouped

_PTX_NAMES = {dtypes.f8e4m3fn: "e4m3x2", dtypes.f8e5m2: "e5m2x2"}
# The largest f32 that rounds to a number: e4m3 has the middle after 448, whose even neighbour that is.
_LAST = {dtypes.f8e4m3fn: 464.0, dtypes.f8e5m2: 61440.0 - 2.0**-8}
I8, I16, I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_PAIR = ir.VectorType(HALF, 2)


def converts(builder: Builder, dtype: DType) -> bool:
    """Whether the chip converts a type, which the module states."""
    return dtype in _PTX_NAMES and has_features(builder, dtype.name)


def rounded_code(builder: Builder, value: Value, dtype: DType) -> Value:
    """The codes of f32 numbers, one or a vector, rounded to nearest even."""
    last = splat(value.type, _LAST[dtype])
    is_beyond = builder.fcmp_ordered(">", intrinsic(builder, "fabs", [value]), last)
    codes = _rounded(builder, value, f"ff.to.{_PTX_NAMES[dtype]}.rn")
    return builder.add(codes, builder.zext(is_beyond, codes.type))


def _rounded(builder: Builder, value: Value, name: str) -> Value:
    """Two at a time; the second argument is the lower half of the result."""
    lanes = lanes_of(value.type)
    if lanes == 1:
        return builder.trunc(_chip(builder, name, I16, ir.Constant(FLOAT, 0.0), value), I8)
    given = [builder.extract_element(value, ir.Constant(I32, lane)) for lane in range(lanes)]
    given += [ir.Constant(FLOAT, 0.0)] * (lanes % 2)
    pairs = [_chip(builder, name, I16, high, low) for low, high in zip(given[::2], given[1::2], strict=True)]
    codes = builder.bitcast(grouped(builder, pairs), ir.VectorType(I8, len(given)))
    return _first_lanes(builder, codes, lanes)


def number_of(builder: Builder, code: Value, dtype: DType) -> Value:
    """The f32 numbers that codes, one or a vector, are; exact."""
    name, lanes = f"{_PTX_NAMES[dtype]}.to.f16x2.rn", lanes_of(code.type)
    if lanes == 1:
        pair = _chip(builder, name, _PAIR, builder.zext(code, I16))
        return builder.fpext(builder.extract_element(pair, ir.Constant(I32, 0)), FLOAT)
    pairs = _first_lanes(builder, code, lanes + lanes % 2)
    count = lanes_of(pairs.type) // 2
    words = builder.bitcast(pairs, I16 if count == 1 else ir.VectorType(I16, count))
    numbers: list[Value] = []
    for number in range(count):
        word = words if count == 1 else builder.extract_element(words, ir.Constant(I32, number))
        pair = _chip(builder, name, _PAIR, word)
        numbers += [builder.extract_element(pair, ir.Constant(I32, half)) for half in range(2)]
    return builder.fpext(grouped(builder, numbers[:lanes]), with_element(code.type, FLOAT))


def _first_lanes(builder: Builder, vector: Value, count: int) -> Value:
    """The first of the lanes, or all and copies of the last."""
    lanes = lanes_of(vector.type)
    if lanes == count:
        return vector
    mask = ir.Constant(ir.VectorType(I32, count), [ir.Constant(I32, min(lane, lanes - 1)) for lane in range(count)])
    return builder.shuffle_vector(vector, undefined(vector.type), mask)


def _chip(builder: Builder, name: str, result: ir.Type, *arguments: Value) -> Value:
    full_name = f"llvm.nvvm.{name}"
    function: Any = builder.module.globals.get(full_name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [a.type for a in arguments]), full_name)
    return builder.call(function, list(arguments))
