"""Transcendental functions as straight-line code on scalars and vectors: no calls, tables of coefficients alone.

`emit_math` appends to the builder's block. sin, cos and tan also append blocks (a branch for huge arguments that is
hardly ever taken) and leave the builder at the end of the last one, so a caller that needs the current block for a
phi asks the builder afterwards. The code assumes round-to-nearest and gradual underflow, and an FMA instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.errors import CompilerBug
from tilewright.targets.llvm import (
    vector_math_erf,
    vector_math_exp,
    vector_math_inverse_trig,
    vector_math_log,
    vector_math_power,
    vector_math_trig,
)
from tilewright.targets.llvm.values import DOUBLE, FLOAT, Builder, Lanes, Value, element_of

_ONE_ARGUMENT: dict[str, Callable[[Lanes], Lanes]] = {
    "exp": vector_math_exp.exp,
    "exp2": vector_math_exp.exp2,
    "expm1": vector_math_exp.expm1,
    "sigmoid": vector_math_exp.sigmoid,
    "tanh": vector_math_exp.tanh,
    "sinh": vector_math_exp.sinh,
    "cosh": vector_math_exp.cosh,
    "log": vector_math_log.log,
    "log2": vector_math_log.log2,
    "log10": vector_math_log.log10,
    "log1p": vector_math_log.log1p,
    "asinh": vector_math_log.asinh,
    "acosh": vector_math_log.acosh,
    "atanh": vector_math_log.atanh,
    "sin": vector_math_trig.sin,
    "cos": vector_math_trig.cos,
    "tan": vector_math_trig.tan,
    "asin": vector_math_inverse_trig.asin,
    "acos": vector_math_inverse_trig.acos,
    "atan": vector_math_inverse_trig.atan,
    "erf": vector_math_erf.erf,
    "erfc": vector_math_erf.erfc,
    "rsqrt": vector_math_power.rsqrt,
    "cbrt": vector_math_power.cbrt,
}
# Of narrow floats, which are computed in f32 and rounded: quicker ones.
_OF_NARROW: dict[str, Callable[[Lanes], Lanes]] = {"sigmoid": vector_math_exp.sigmoid_in_f32}
_TWO_ARGUMENTS: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "atan2": vector_math_inverse_trig.atan2,
    "hypot": vector_math_power.hypot,
    "power": vector_math_power.power,
}

SUPPORTED: frozenset[str] = frozenset(_ONE_ARGUMENT) | frozenset(_TWO_ARGUMENTS)

# Stated bounds on the error in units of the last place, by (function, element type), over the whole range.
_TIGHTER = {
    ("power", "f32"): 1.0,
    ("hypot", "f32"): 1.0,
    ("erfc", "f32"): 1.0,
    ("power", "f64"): 1.0,
    ("cbrt", "f64"): 1.0,
}
ULP: dict[tuple[str, str], float] = {(name, kind): 2.0 for name in SUPPORTED for kind in ("f32", "f64")} | _TIGHTER


def emit_math(builder: Builder, name: str, arguments: Sequence[Value], *, is_narrow: bool = False) -> Value:
    """Code for function `name` on `f32` or `f64` values of one type; the result has that type. `is_narrow`: it will be
    rounded to a narrow float.

    Raises:
        CompilerBug: no such function, the wrong number of arguments, or arguments that are not floats of one type.
    """
    kinds = [argument.type for argument in arguments]
    arity = 1 if name in _ONE_ARGUMENT else 2
    if name not in SUPPORTED or len(kinds) != arity:
        raise CompilerBug(f"vector mathematics has no `{name}` of {len(kinds)} arguments")
    if any(kind != kinds[0] for kind in kinds) or element_of(kinds[0]) not in (FLOAT, DOUBLE):
        raise CompilerBug(f"`{name}` takes f32 or f64 values of one type, got {', '.join(map(str, kinds))}")
    lanes = [Lanes(builder, argument) for argument in arguments]
    if arity == 1:
        quick = _OF_NARROW.get(name) if is_narrow else None
        return (quick or _ONE_ARGUMENT[name])(lanes[0]).value
    return _TWO_ARGUMENTS[name](lanes[0], lanes[1]).value
