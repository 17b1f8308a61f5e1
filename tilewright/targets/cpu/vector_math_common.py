"""What the emitters of scalar functions share: splat constants, intrinsics, fused steps and bit patterns.

Everything here takes a value that is a scalar or a vector and gives code of the same number of lanes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

from llvmlite import ir

# llvmlite carries no annotations, and what a type checker infers for its builder's methods is wrong.
Builder: TypeAlias = Any
Value: TypeAlias = Any

HALF, FLOAT, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_SUFFIXES = {HALF: "f16", FLOAT: "f32", DOUBLE: "f64"}


def with_element(shape: ir.Type, element: ir.Type) -> ir.Type:
    """The type with as many lanes as `shape` and elements of type `element`."""
    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def element_of(shape: ir.Type) -> ir.Type:
    return shape.element if isinstance(shape, ir.VectorType) else shape


class _Splat(ir.Constant):
    """A vector constant in LLVM's short form; `ir.Constant` would spell every lane out."""

    def __init__(self, shape: ir.Type, text: str) -> None:
        self.type = shape
        self.constant = text

    def _get_reference(self) -> str:
        return str(self.constant)


def splat(shape: ir.Type, value: float | int) -> ir.Constant:
    """`value` in every lane; a float is rounded to the element type, an integer taken modulo its width."""
    element = element_of(shape)
    if isinstance(element, ir.IntType):
        text = str(value) if element.width > 1 else ("true" if value else "false")
    else:
        text = _hexadecimal(float(value), element)
    if isinstance(shape, ir.VectorType):
        return _Splat(shape, f"splat ({element} {text})")
    return _Splat(shape, text)


def _hexadecimal(value: float, element: ir.Type) -> str:
    # LLVM writes a float constant as the bits of the double that equals it.
    rounded = struct.unpack("<f", struct.pack("<f", value))[0] if element == FLOAT else value
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


def intrinsic(builder: Builder, name: str, arguments: Sequence[Value], result: ir.Type | None = None) -> Value:
    """Call `llvm.<name>`, overloaded on the type of its first argument, and on `result` too where that differs."""
    first = arguments[0].type
    returned = result or first
    suffixes = [_suffix(returned)] if returned == first else [_suffix(returned), _suffix(first)]
    full_name = ".".join(["llvm", name, *suffixes])
    function = builder.module.globals.get(full_name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(returned, [a.type for a in arguments]), full_name)
    return builder.call(function, list(arguments))


def _suffix(shape: ir.Type) -> str:
    element = element_of(shape)
    text = f"i{element.width}" if isinstance(element, ir.IntType) else _SUFFIXES[element]
    return f"v{shape.count}{text}" if isinstance(shape, ir.VectorType) else text
