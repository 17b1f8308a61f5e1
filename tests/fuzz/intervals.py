"""Error bounds of scalar functions, casts, sums and products.

A `Bounded` is an array of the interpreter's values with, beside each element, how far a correct implementation may be
from it: 0 (`error` is None when all are) means the same value, inf means that nothing is known. The rules:

- Exactly rounded functions of exact operands are exact. A function with a stated bound may be off by that many units
  in the last place of the compute type from its value in float64, and is then rounded to its type.
- Operands with errors span a box: the function is evaluated in float64 at the corners (and half way), and the largest
  distance from the middle, times a factor where the function is not monotone in the box, is added. A box that
  contains a jump or a pole makes the element unknown.
- Results are rounded monotonically, so the bound of a rounded value is taken from the rounded ends.
- A sum of n terms in any order is within n half-epsilons of the sum of magnitudes; it is exact when all partial sums
  are small multiples of one power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tilewright import dtypes, ops
from tilewright.dtypes import DType

Tensor = np.ndarray[Any, Any]

# NumPy's own float64 functions are within 4 units in the last place.
REFERENCE_ULP = 4.0
MANTISSA = {d.name: 53 if d.bits == 64 else 24 for d in dtypes.FLOATS}
# The least positive number of each type.
_LEAST = {"f8e4m3fn": 2.0**-9, "f8e5m2": 2.0**-16, "f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149}
_LEAST |= {"f64": 2.0**-1074}

_DECISIONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_CLASSES = frozenset({"isnan", "isinf", "isfinite"})
# IEEE fixes the sign of a zero result of these.
_SIGNED_ZERO = frozenset(
    {"add", "subtract", "multiply", "divide", "negative", "absolute", "square", "reciprocal", "copysign", "select"}
    | {"floor", "ceil", "trunc", "round", "sqrt"}
)
# Corners of a box do not bound these exactly: they bend.
_BENT = {"power": 1.5, "hypot": 2.0, "atan2": 2.0, "cosh": 1.1, "sinh": 1.1}


@dataclass(frozen=True)
class Bounded:
    """Values and error bounds (float64, of the same shape; None when all are 0). `signed_zeros`: signs of zeros are
    certain."""

    value: Tensor
    error: Tensor | None = None
    signed_zeros: bool = True

    @property
    def dtype(self) -> DType:
        return dtypes.from_numpy(self.value.dtype)

    @property
    def errors(self) -> Tensor:
        return np.zeros(self.value.shape) if self.error is None else self.error

    @property
    def unknown(self) -> Tensor:
        return np.zeros(self.value.shape, bool) if self.error is None else np.isinf(self.error)


def bounded(value: Tensor, error: Tensor | None, signed_zeros: bool = True) -> Bounded:
    """Drop an error that is 0 everywhere."""
    if error is None or not np.any(error):
        return Bounded(value, None, signed_zeros)
    return Bounded(value, np.broadcast_to(error, value.shape).astype(np.float64), signed_zeros)


def unknown_where(mask: Tensor) -> Tensor:
    return np.where(mask, np.inf, 0.0)


def widen(value: Tensor) -> Tensor:
    return value.astype(np.float64)


def spacing(magnitude: Tensor, dtype: DType) -> Tensor:
    """Distance to the next number of a type, at float64 magnitudes; an upper bound."""
    return np.maximum(np.abs(magnitude) * dtype.epsilon, _LEAST[dtype.name])


def rounded(center: Tensor, dtype: DType) -> Tensor:
    """float64 values rounded as results of a type are: to the compute type, then to the type."""
    with np.errstate(all="ignore"):
        return ops.cast(center.astype(dtype.compute.numpy), dtype)


def rounded_error(value: Tensor, center: Tensor, distance: Tensor, dtype: DType) -> Tensor:
    """Error of a result whose unrounded form is within `distance` of `center`; `value` is the interpreter's."""
    with np.errstate(all="ignore"):
        if dtype.bits == 64:
            error = np.where(np.isfinite(widen(value)), 2 * distance + spacing(np.abs(center) + distance, dtype), 0.0)
            largest = np.finfo(np.float64).max / 4
            return np.where(np.isfinite(value) & (np.abs(center) + distance > largest), np.inf, error)
        low, high = widen(rounded(center - distance, dtype)), widen(rounded(center + distance, dtype))
        wide = widen(value)
        error = np.maximum(np.abs(high - wide), np.abs(wide - low))
        same = (low == wide) & (high == wide) | np.isnan(low) & np.isnan(high) & np.isnan(wide)
        return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


# ---- scalar functions -----------------------------------------------------------------------------------------------


def apply_map(fn: str, operands: Sequence[Bounded]) -> Bounded:
    """Apply a scalar function elementwise."""
    value = ops.evaluate(fn, [o.value for o in operands])
    if fn == "select":
        return _select(value, *operands)
    dtype = operands[-1].dtype
    unknown = np.zeros(value.shape, bool)
    for operand in operands:
        unknown = unknown | operand.unknown
    if not dtype.is_float:
        return bounded(value, unknown_where(unknown))
    unknown = unknown | _sign_dependent(fn, operands)
    error = _float_error(fn, value, operands, dtype)
    safe = fn in _SIGNED_ZERO and all(o.signed_zeros for o in operands)
    return bounded(value, np.where(unknown, np.inf, error), safe)


def _sign_dependent(fn: str, operands: Sequence[Bounded]) -> Tensor:
    """Where the result hangs on the sign of a NaN, or of a zero whose sign is not certain."""
    last = operands[-1]
    nothing = np.zeros(last.value.shape, bool)
    if fn in ("signbit", "copysign"):
        nothing = nothing | np.isnan(last.value)
    if fn in ("signbit", "copysign", "divide", "reciprocal", "floor_divide", "rsqrt") and not last.signed_zeros:
        nothing = nothing | (last.value == 0)
    if fn in ("atan2", "power"):
        for operand in operands if fn == "atan2" else operands[:1]:
            if not operand.signed_zeros:
                nothing = nothing | (operand.value == 0)
    return nothing


def _select(value: Tensor, condition: Bounded, first: Bounded, second: Bounded) -> Bounded:
    chosen = np.where(condition.value, first.errors, second.errors)
    signs = first.signed_zeros and second.signed_zeros
    if condition.error is None:
        return bounded(value, chosen, signs)
    with np.errstate(all="ignore"):
        if first.dtype.is_float:
            apart = np.abs(widen(first.value) - widen(second.value))
            either = np.where(np.isnan(apart), np.inf, apart) + np.maximum(first.errors, second.errors)
        else:
            either = unknown_where((first.value != second.value) | first.unknown | second.unknown)
    return bounded(value, np.where(condition.unknown, either, chosen), signs)


def _float_error(fn: str, value: Tensor, operands: Sequence[Bounded], dtype: DType) -> Tensor:
    function = ops.FUNCTIONS[fn]
    exact = all(o.error is None for o in operands)
    if exact and function.ulp == 0:
        return np.zeros(value.shape)
    wide = [widen(o.value) for o in operands]
    errors = [np.where(np.isinf(o.errors), 0.0, o.errors) for o in operands]
    touched = np.zeros(value.shape, bool)
    for e in errors:
        touched = touched | (e > 0)
    if fn in _CLASSES:
        return np.zeros(value.shape)
    if fn in _DECISIONS:
        with np.errstate(all="ignore"):
            return unknown_where(touched & ~(np.abs(wide[0] - wide[1]) > errors[0] + errors[1]))
    if fn == "signbit":
        return unknown_where(touched & ~(np.abs(wide[0]) > errors[0]))
    with np.errstate(all="ignore"):
        center = np.asarray(function.reference(*wide), np.float64)
        spread = np.zeros(value.shape) if exact else _spread(fn, center, wide, errors)
        ulp = ops.NARROW_ULP if function.ulp and dtype.is_narrow_float else function.ulp
        ulp += REFERENCE_ULP if function.ulp and dtype.bits == 64 else 0.0
        finite_center = np.where(np.isfinite(center), np.abs(center), 0.0)
        known = np.where(np.isfinite(spread), spread, 0.0)
        distance = known * (1 + 1e-12) + ulp * spacing(finite_center + known, dtype.compute)
        distance = np.where(np.isfinite(center), distance, 0.0)
        error = rounded_error(value, widen(value) if dtype.bits == 64 else center, distance, dtype)
    if function.ulp == 0:
        error = np.where(touched, error, 0.0)
    return np.where(np.isfinite(spread), error, np.inf)


def _spread(fn: str, center: Tensor, wide: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    """How far a function moves over the box of its operands; inf where that is not bounded."""
    special = _SPREADS.get(fn)
    if special is not None:
        return special(center, wide, errors)
    function = ops.FUNCTIONS[fn]
    steps = (-1.0, 1.0) if len(wide) > 1 else (-1.0, -0.5, 0.5, 1.0)
    worst = np.zeros(center.shape)
    for signs in product(steps, repeat=len(wide)):
        corner = function.reference(*(x + s * e for x, s, e in zip(wide, signs, errors, strict=True)))
        moved = np.abs(corner - center)
        same = (corner == center) | np.isnan(corner) & np.isnan(center)
        worst = np.maximum(worst, np.where(same, 0.0, np.where(np.isnan(moved), np.inf, moved)))
    worst = worst * _BENT.get(fn, 1.0)
    return np.where(_contains_pole(fn, wide, errors), np.inf, worst)


def _straddles(x: Tensor, e: Tensor) -> Tensor:
    return (np.abs(x) <= e) & (e > 0)


def _contains_pole(fn: str, wide: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    if fn in ("divide", "reciprocal", "floor_divide", "copysign"):
        return _straddles(wide[-1], errors[-1])
    if fn == "power":
        return ((errors[0] > 0) | (errors[1] > 0)) & (wide[0] - errors[0] <= 0)
    if fn == "atan2":
        cut = (wide[1] - errors[1] <= 0) & (np.abs(wide[0]) <= errors[0])
        return cut & ((errors[0] > 0) | (errors[1] > 0))
    return np.zeros(wide[0].shape, bool)


def _remainder_spread(center: Tensor, wide: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    x, y = wide
    ex, ey = errors
    quotient = np.floor(x / y)
    steady = (np.abs(quotient) < 2.0**20) & ~_straddles(y, ey)
    for sx, sy in product((-1, 1), repeat=2):
        steady = steady & (np.floor((x + sx * ex) / (y + sy * ey)) == quotient)
    return np.where((ex == 0) & (ey == 0), 0.0, np.where(steady, ex + np.abs(quotient) * ey, np.inf))


def _tangent_spread(center: Tensor, wide: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    slope = errors[0] * (1 + center * center)
    return np.where(slope < 0.1, 2 * slope, np.inf)


def _wave_spread(center: Tensor, wide: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    return np.minimum(errors[0], 2.0)


_SPREADS: dict[str, Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]] = {
    "remainder": _remainder_spread,
    "tan": _tangent_spread,
    "sin": _wave_spread,
    "cos": _wave_spread,
}


# ---- conversions ----------------------------------------------------------------------------------------------------


def apply_cast(operand: Bounded, destination: DType) -> Bounded:
    value = ops.cast(operand.value, destination)
    if operand.error is None:
        return Bounded(value, None, operand.signed_zeros)
    source = operand.dtype
    if not source.is_float:
        return bounded(value, operand.errors)
    wide, error = widen(operand.value), np.where(operand.unknown, 0.0, operand.errors)
    with np.errstate(all="ignore"):
        if destination.is_bool:
            moved = unknown_where((error > 0) & ~(np.abs(wide) > error))
        elif destination.is_integer:
            low, high = (ops.cast(wide + s * error, destination) for s in (-1, 1))
            moved = unknown_where((low != high) & (error > 0))
        elif destination.bits > source.bits or destination == source:
            moved = error  # a wider type holds every value; types of one width do not hold each other's
        else:
            moved = np.where(error > 0, rounded_error(value, wide, error, destination), 0.0)
    return bounded(value, np.where(operand.unknown, np.inf, moved), operand.signed_zeros)


def apply_bitcast(operand: Bounded, value: Tensor) -> Bounded:
    """Bits are certain where the value is exact, no NaN and no zero of uncertain sign."""
    unknown = operand.errors > 0
    if operand.dtype.is_float:
        unknown = unknown | np.isnan(operand.value)
        if not operand.signed_zeros:
            unknown = unknown | (operand.value == 0)
    return bounded(value, unknown_where(unknown))


# ---- sums -----------------------------------------------------------------------------------------------------------


def granularity(value: Tensor) -> float | None:
    """A power of two of which all values are multiples, or None."""
    wide = widen(value)
    if not np.all(np.isfinite(wide)):
        return None
    for exponent in (0, -4, -10):
        scaled = wide * 2.0**-exponent
        if np.array_equal(scaled, np.rint(scaled)):
            return 2.0**exponent
    return None


def sum_error(
    value: Tensor,
    center: Tensor,
    magnitudes: Tensor,
    count: float,
    spread: Tensor,
    grain: float | None,
    dtype: DType,
) -> Tensor:
    """Error of sums of `count` terms. `magnitudes` are sums of the terms' magnitudes, `spread` what the terms' own
    errors add, `grain` the power of two that divides all terms."""
    compute = dtype.compute
    with np.errstate(all="ignore"):
        tiny = 2.0**-149 if compute.bits == 32 else 2.0**-1074
        distance = spread + 0.5 * compute.epsilon * count * 1.02 * (magnitudes + spread) + count * tiny
        distance = np.where(np.isfinite(center), distance, 0.0)
        error = rounded_error(value, widen(value) if dtype.bits == 64 else center, distance, dtype)
        largest = float(np.finfo(compute.numpy).max)
        error = np.where(magnitudes + spread > largest / 4, np.inf, error)
        if grain is not None:
            exact = (magnitudes / grain < 2.0 ** MANTISSA[dtype.name]) & (spread == 0)
            error = np.where(exact, 0.0, error)
    return error
