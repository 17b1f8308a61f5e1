"""Floats of 8 bits by the chip's own conversions: PTX ISA, "Data Movement and Conversion Instructions: cvt".

`cvt` to 8 bits gives the largest number for all that is larger, infinities included. What rounds beyond it is one code
further: the infinity of e5m2, the NaN of e4m3.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.targets.cpu.vector_math_common import FLOAT, HALF, Builder, Value, has_features, intrinsic

_PTX_NAMES = {dtypes.f8e4m3fn: "e4m3x2", dtypes.f8e5m2: "e5m2x2"}
# The largest f32 that rounds to a number: e4m3 has the middle after 448, whose even neighbour that is.
_LAST = {dtypes.f8e4m3fn: 464.0, dtypes.f8e5m2: 61440.0 - 2.0**-8}
I8, I16 = ir.IntType(8), ir.IntType(16)
_PAIR = ir.VectorType(HALF, 2)


def converts(builder: Builder, dtype: DType) -> bool:
    """Whether the chip converts a type, which the module states."""
    return dtype in _PTX_NAMES and has_features(builder, dtype.name)


def rounded_code(builder: Builder, value: Value, dtype: DType) -> Value:
    """The code of an f32, rounded to nearest even."""
    zero = ir.Constant(FLOAT, 0.0)
    pair = _chip(builder, f"ff.to.{_PTX_NAMES[dtype]}.rn", I16, zero, value)
    is_beyond = builder.fcmp_ordered(">", intrinsic(builder, "fabs", [value]), ir.Constant(FLOAT, _LAST[dtype]))
    return builder.add(builder.trunc(pair, I8), builder.zext(is_beyond, I8))


def number_of(builder: Builder, code: Value, dtype: DType) -> Value:
    """The f32 that a code is; exact."""
    pair = _chip(builder, f"{_PTX_NAMES[dtype]}.to.f16x2.rn", _PAIR, builder.zext(code, I16))
    return builder.fpext(builder.extract_element(pair, ir.Constant(ir.IntType(32), 0)), FLOAT)


def _chip(builder: Builder, name: str, result: ir.Type, *arguments: Value) -> Value:
    full_name = f"llvm.nvvm.{name}"
    function: Any = builder.module.globals.get(full_name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [a.type for a in arguments]), full_name)
    return builder.call(function, list(arguments))
