"""Scalar functions where the chip has its own way; the others are the LLVM that all targets share.

A correctly rounded division or square root is a call of a subroutine for the rare operands. Here they are steps without
a branch (P. Markstein, "IA-64 and Elementary Functions", section 8): correctly rounded where operands and result are
normal numbers some way from the ends of the range, and within 2 ULP elsewhere, where the chip's approximation is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import UnsupportedOnTargetError
from tilewright.targets.cpu.conversions import emit_cast as cast_shared
from tilewright.targets.cpu.functions import emit_function as emit_shared
from tilewright.targets.cpu.vector_math_common import FLOAT, Builder, Value, intrinsic

# Operands and quotients between these are divided exactly: nothing on the way overflows or loses bits.
LEAST, MOST = 2.0**-100, 2.0**125


def emit_function(builder: Builder, name: str, dtype: DType, arguments: Sequence[Value]) -> Value:
    """Apply function `name` to scalars of type `dtype` (of a select: the type of its values), in register form. Results
    of narrow floats are rounded where they are held.

    Raises:
        UnsupportedOnTargetError: floats have no such function on this target.
    """
    if dtype.is_float and name in ("remainder", "floor_divide"):
        raise UnsupportedOnTargetError(f"`{name}` of floats on cuda", help="compute it on the cpu target")
    own = _OWN.get(name)
    if own is None or dtype.compute != dtypes.f32:
        return emit_shared(builder, name, dtype.compute, arguments)
    return own(builder, *arguments)


def emit_cast(builder: Builder, value: Value, source: DType, destination: DType) -> Value:
    """Convert between register forms. A narrow float that needs one rounding gets it where it is held."""
    if destination == dtypes.tf32:
        return rounded_to_tf32(builder, value)
    once = source.bits <= 16 or source == dtypes.f32
    packed = destination.is_narrow_float
    return cast_shared(builder, value, source, dtypes.f32 if packed and once else destination)


def rounded_to_tf32(builder: Builder, value: Value) -> Value:
    """An f32 as tensor cores take it: PTX ISA, cvt.rna.tf32.f32."""
    name = "llvm.nvvm.f2tf32.rna"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(ir.IntType(32), [FLOAT]), name)
    return builder.bitcast(builder.call(function, [value]), FLOAT)


def _number(value: float) -> Value:
    return ir.Constant(FLOAT, value)


def _chip(builder: Builder, name: str, *arguments: Value) -> Value:
    """An instruction by its intrinsic."""
    full_name = f"llvm.nvvm.{name}"
    function = builder.module.globals.get(full_name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(FLOAT, [a.type for a in arguments]), full_name)
    return builder.call(function, list(arguments))


def _fma(builder: Builder, a: Value, b: Value, c: Value) -> Value:
    return intrinsic(builder, "fma", [a, b, c])


def _within(builder: Builder, value: Value, low: float, high: float) -> Value:
    size = intrinsic(builder, "fabs", [value])
    above = builder.fcmp_ordered(">", size, _number(low))
    return builder.and_(above, builder.fcmp_ordered("<", size, _number(high)))


def _divide(builder: Builder, x: Value, y: Value) -> Value:
    inverse = _chip(builder, "rcp.approx.ftz.f", y)
    opposite = builder.fneg(y)
    inverse = _fma(builder, inverse, _fma(builder, opposite, inverse, _number(1.0)), inverse)
    quotient = builder.fmul(x, inverse)
    for _ in range(2):
        quotient = _fma(builder, _fma(builder, opposite, quotient, x), inverse, quotient)
    plain = builder.and_(_within(builder, x, LEAST, MOST), _within(builder, y, LEAST, MOST))
    plain = builder.and_(plain, _within(builder, quotient, LEAST, MOST))
    return builder.select(plain, quotient, _divide_any(builder, x, y))


def _divide_any(builder: Builder, x: Value, y: Value) -> Value:
    """Within 2 ULP. The instruction takes no divisors from 2^126 on: both operands are made smaller for them."""
    is_large = builder.fcmp_ordered(">=", intrinsic(builder, "fabs", [y]), _number(2.0**126))
    scale = builder.select(is_large, _number(0.25), _number(1.0))
    return _chip(builder, "div.full", builder.fmul(x, scale), builder.fmul(y, scale))


def _reciprocal(builder: Builder, x: Value) -> Value:
    return _divide(builder, _number(1.0), x)


def _square_root(builder: Builder, x: Value) -> Value:
    root = _chip(builder, "sqrt.approx.f", x)
    inverse = _chip(builder, "rsqrt.approx.f", x)
    half = builder.fmul(inverse, _number(0.5))
    refined = _fma(builder, _fma(builder, builder.fneg(root), root, x), half, root)
    return builder.select(_within(builder, x, LEAST, MOST), refined, root)


_OWN: dict[str, Callable[..., Value]] = {"divide": _divide, "reciprocal": _reciprocal, "sqrt": _square_root}
