"""The functions of the CHLO dialect."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright import api as tw
from tilewright import dtypes
from tilewright.api.array import Array
from tilewright.api.lifting import broadcast, broadcast_shapes, cast
from tilewright.interop.stablehlo.operators.elementwise import compare, like, mapped
from tilewright.interop.stablehlo.registry import Node, find, operation

_SAME = {
    "acos": "acos",
    "acosh": "acosh",
    "asin": "asin",
    "asinh": "asinh",
    "atan": "atan",
    "atanh": "atanh",
    "cosh": "cosh",
    "erf": "erf",
    "erfc": "erfc",
    "sinh": "sinh",
    "square": "square",
    "tan": "tan",
}
_BROADCASTING = (
    "add",
    "and",
    "atan2",
    "divide",
    "maximum",
    "minimum",
    "multiply",
    "or",
    "power",
    "remainder",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "subtract",
    "xor",
)
# Giles, Approximating the erfinv function, GPU Computing Gems, 2012: f32, by -log(1 - x^2) below and above 5.
_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503),
    *(-0.00417768164, 0.246640727, 1.50140941),
)
_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613),
    *(0.00943887047, 1.00167406, 2.83297682),
)
# Lanczos' approximation of the gamma function with g = 7 and 9 terms (Godfrey, 2001).
_LANCZOS_G = 7.0
_LANCZOS = (
    *(676.520368121885098567009190444019, -1259.13921672240287047156078755283),
    *(771.3234287776530788486528258894, -176.61502916214059906584551354),
    *(12.507343278686904814458936853, -0.13857109526572011689554707),
    *(9.984369578019570859563e-6, 1.50563273514931155834e-7),
)
_LANCZOS_FIRST = 0.99999999999980993227684700473478


def _register_same(name: str, fn: str) -> None:
    def rule(node: Node, x: Array) -> Array:
        return mapped(fn, x)

    rule.__doc__ = f"`{fn}` of each element."
    operation(f"chlo.{name}", elementwise=True)(rule)


for _name, _fn in _SAME.items():
    _register_same(_name, _fn)


def _register_broadcasting(name: str) -> None:
    def rule(node: Node, a: Array, b: Array) -> Array:
        entry = find(f"stablehlo.{name}")
        shape = broadcast_shapes(a.shape, b.shape)
        assert entry is not None, "the operation that is broadcast has a rule"
        return entry.rule(node, broadcast(a, shape), broadcast(b, shape))

    rule.__doc__ = f"`{name}` of operands that broadcast."
    operation(f"chlo.broadcast_{name}")(rule)


for _name in _BROADCASTING:
    _register_broadcasting(_name)


@operation("chlo.broadcast_compare")
def broadcast_compare(node: Node, a: Array, b: Array) -> Array:
    """A comparison of operands that broadcast."""
    shape = broadcast_shapes(a.shape, b.shape)
    return compare(node, broadcast(a, shape), broadcast(b, shape))


@operation("chlo.is_inf", elementwise=True)
def is_inf(node: Node, x: Array) -> Array:
    """Whether it is an infinity."""
    return tw.isinf(x)


@operation("chlo.is_pos_inf", elementwise=True)
def is_pos_inf(node: Node, x: Array) -> Array:
    """Whether it is the positive infinity."""
    return tw.equal(x, like(x, math.inf))


@operation("chlo.is_neg_inf", elementwise=True)
def is_neg_inf(node: Node, x: Array) -> Array:
    """Whether it is the negative infinity."""
    return tw.equal(x, like(x, -math.inf))


@operation("chlo.next_after", elementwise=True)
def next_after(node: Node, x: Array, towards: Array) -> Array:
    """The next number in a direction."""
    return tw.nextafter(x, towards)


def _in_single(name: str, what: str, function: Callable[[Array], Array]) -> None:
    """Register a function that computes 16-bit floats in f32."""

    def rule(node: Node, x: Array) -> Array:
        return cast(function(cast(x, x.dtype.compute)), x.dtype)

    rule.__doc__ = what
    operation(f"chlo.{name}", elementwise=True)(rule)


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    result = like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + like(x, coefficient)
    return result


def _erf_inv(y: Array) -> Array:
    single = cast(y, dtypes.f32)
    w = mapped("negative", mapped("log1p", mapped("negative", single * single)))
    centre = _polynomial(w - like(w, 2.5), _CENTRE)
    tail = _polynomial(mapped("sqrt", w) - like(w, 3.0), _TAIL)
    inner = tw.where(tw.less(w, like(w, 5.0)), centre, tail) * single
    is_end = tw.equal(tw.abs(single), like(single, 1.0))
    found = tw.where(is_end, single * like(single, math.inf), inner)
    return found if y.dtype == dtypes.f32 else _refined_erf_inv(y, cast(found, y.dtype))


def _refined_erf_inv(y: Array, x: Array) -> Array:
    """Two of Halley's steps from an estimate of single precision. Near the ends, where that may be infinite, they start
    from the asymptotic form."""
    rest = like(y, 1.0) - tw.abs(y)
    far = mapped("sqrt", mapped("negative", mapped("log", rest * mapped("sqrt", like(y, math.pi)))))
    far = mapped("sqrt", mapped("negative", mapped("log", rest * far * mapped("sqrt", like(y, math.pi)))))
    x = tw.where(tw.isfinite(x), tw.abs(x), far)
    for _ in range(3):
        error = tw.where(tw.less(tw.abs(y), like(y, 0.5)), mapped("erf", x) - tw.abs(y), rest - mapped("erfc", x))
        step = error * mapped("exp", x * x) * like(y, math.sqrt(math.pi) / 2)
        x = x - step / (like(y, 1.0) + x * step)
    inner = mapped("copysign", x, y)
    inner = tw.where(tw.equal(rest, like(y, 0.0)), y * like(y, math.inf), inner)
    return tw.where(tw.greater_equal(rest, like(y, 0.0)), inner, like(y, math.nan))


_in_single("erf_inv", "The inverse of the error function.", _erf_inv)


def _lanczos(z: Array) -> tuple[Array, Array]:
    """The sum of Lanczos' approximation, and that of its derivative, at z > -1/2."""
    total, slope = like(z, _LANCZOS_FIRST), like(z, 0.0)
    for n, coefficient in enumerate(_LANCZOS, 1):
        place = z + like(z, float(n))
        total = total + like(z, coefficient) / place
        slope = slope - like(z, coefficient) / (place * place)
    return total, slope


def _log_gamma(x: Array) -> Array:
    is_low = tw.less(x, like(x, 0.5))
    z = tw.where(is_low, mapped("negative", x), x - like(x, 1.0))
    total, _ = _lanczos(z)
    base = z + like(z, _LANCZOS_G + 0.5)
    # log(base) by its difference from log(g + 1/2), which is small where cancellation would hurt.
    log_base = like(z, math.log(_LANCZOS_G + 0.5)) + mapped("log1p", z / like(z, _LANCZOS_G + 0.5))
    high = (z + like(z, 0.5) - base / log_base) * log_base
    high = high + like(z, math.log(2 * math.pi) / 2) + mapped("log", total)
    fraction = tw.abs(x) - mapped("floor", tw.abs(x))
    fraction = tw.where(tw.greater(fraction, like(x, 0.5)), like(x, 1.0) - fraction, fraction)
    sine = mapped("log", mapped("sin", fraction * like(x, math.pi)))
    low = tw.where(tw.isfinite(sine), like(x, math.log(math.pi)) - sine - high, mapped("negative", sine))
    return tw.where(tw.isinf(x), like(x, math.inf), tw.where(is_low, low, high))


_in_single("lgamma", "The logarithm of the magnitude of the gamma function.", _log_gamma)


def _digamma(x: Array) -> Array:
    is_low = tw.less(x, like(x, 0.5))
    z = tw.where(is_low, mapped("negative", x), x - like(x, 1.0))
    total, slope = _lanczos(z)
    base = z + like(z, _LANCZOS_G + 0.5)
    log_base = like(z, math.log(_LANCZOS_G + 0.5)) + mapped("log1p", z / like(z, _LANCZOS_G + 0.5))
    high = log_base + slope / total - like(z, _LANCZOS_G) / base
    # The reflection, by an angle without whole turns.
    turned = (x - mapped("round", x)) * like(x, math.pi)
    low = high - like(x, math.pi) / mapped("tan", turned)
    is_pole = tw.logical_and(tw.less_equal(x, like(x, 0.0)), tw.equal(x, mapped("floor", x)))
    return tw.where(is_pole, like(x, math.nan), tw.where(is_low, low, high))


_in_single("digamma", "The derivative of that logarithm.", _digamma)
