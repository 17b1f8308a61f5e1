"""Functions of complex numbers as formulas of their parts.

Results are those of NumPy, infinities and zeros with signs included, except as stated:

- `multiply` is the plain formula, as NumPy, XLA and torch have it: infinite operands may give NaN.
- `divide` is Smith's algorithm (1962): it overflows only where a part of the divisor is beyond half of the largest
  number. A divisor of 0 divides both parts by it, which gives infinities and NaN as NumPy does.
- `absolute` scales as `hypot` does, and so does `sqrt`, which is exact for subnormal and the largest numbers too.
- `exp` overflows where its result does; `sinh`, `cosh`, `sin` and `cos` where e to the power of a part does.
- Inverse functions are Kahan's formulas (Branch Cuts for Complex Elementary Functions, 1987), with the branch cuts that
  C99 and NumPy have.
- `power` is `exp(y log(x))` and `exp2` is `exp(x log(2))`, of which errors grow with the size of what `exp` takes; 0 to
  a power of 0 is 1, and to one that is no positive real number NaN. NumPy multiplies for small whole exponents, so that
  it differs for infinities.
- Where a part of an operand is NaN, both parts of a result may be, also where C99 keeps one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright import dtypes
from tilewright.api import lifting
from tilewright.api.array import Array
from tilewright.api.complex_array import ComplexArray


def _map(fn: str, *operands: Array) -> Array:
    return lifting.emit("map", *operands, fn=fn)


def _like(x: Array, value: float) -> Array:
    return lifting.full(x.shape, value, x.dtype)


def _where(condition: Array, x: Array, y: Array) -> Array:
    return _map("select", condition, x, y)


def _either(a: Array, b: Array) -> Array:
    return _map("bitwise_or", a, b)


def _both(a: Array, b: Array) -> Array:
    return _map("bitwise_and", a, b)


def _not(a: Array) -> Array:
    return _map("bitwise_not", a)


def _is_zero(x: Array) -> Array:
    return _map("equal", x, _like(x, 0.0))


def _signed(magnitude: Array, sign: Array) -> Array:
    return _map("copysign", magnitude, sign)


def _abs(x: Array) -> Array:
    return _map("absolute", x)


def _scaled(x: ComplexArray, factor: float) -> ComplexArray:
    return ComplexArray(x.real * factor, x.imag * factor)


def _times_i(x: ComplexArray) -> ComplexArray:
    return ComplexArray(_map("negative", x.imag), x.real)


def _over_i(x: ComplexArray) -> ComplexArray:
    return ComplexArray(x.imag, _map("negative", x.real))


def _one(x: ComplexArray) -> ComplexArray:
    return ComplexArray(_like(x.real, 1.0), _like(x.real, 0.0))


def _is_single(x: ComplexArray) -> bool:
    return x.real.dtype != dtypes.f64


# ---- arithmetic -----------------------------------------------------------------------------------------------------


def add(x: ComplexArray, y: ComplexArray) -> ComplexArray:
    """The sum."""
    return ComplexArray(_map("add", x.real, y.real), _map("add", x.imag, y.imag))


def subtract(x: ComplexArray, y: ComplexArray) -> ComplexArray:
    """The difference."""
    return ComplexArray(_map("subtract", x.real, y.real), _map("subtract", x.imag, y.imag))


def negative(x: ComplexArray) -> ComplexArray:
    """Both parts with the other sign."""
    return ComplexArray(_map("negative", x.real), _map("negative", x.imag))


def conjugate(x: ComplexArray) -> ComplexArray:
    """The imaginary part with the other sign."""
    return ComplexArray(x.real, _map("negative", x.imag))


def multiply(x: ComplexArray, y: ComplexArray) -> ComplexArray:
    """Multiply, elementwise."""
    a, b, c, d = x.real, x.imag, y.real, y.imag
    return ComplexArray(a * c - b * d, a * d + b * c)


def square(x: ComplexArray) -> ComplexArray:
    """Square, elementwise."""
    return multiply(x, x)


def divide(x: ComplexArray, y: ComplexArray) -> ComplexArray:
    """The quotient."""
    a, b, c, d = x.real, x.imag, y.real, y.imag
    is_imaginary = _map("less", _abs(c), _abs(d))  # the larger part of the divisor
    large, small = _where(is_imaginary, d, c), _where(is_imaginary, c, d)
    first, second = _where(is_imaginary, b, a), _where(is_imaginary, a, b)
    ratio = small / large
    scale = large + small * ratio
    real, imag = (first + second * ratio) / scale, (second - first * ratio) / scale
    imag = _where(is_imaginary, _map("negative", imag), imag)
    is_zero, zero = _both(_is_zero(c), _is_zero(d)), _abs(c)
    return ComplexArray(_where(is_zero, a / zero, real), _where(is_zero, b / zero, imag))


def reciprocal(x: ComplexArray) -> ComplexArray:
    """1 divided by it."""
    return divide(_one(x), x)


def absolute(x: ComplexArray) -> Array:
    """The magnitude."""
    return _map("hypot", x.real, x.imag)


def angle(x: ComplexArray) -> Array:
    """The angle to the positive real axis, from -pi to pi."""
    return _map("atan2", x.imag, x.real)


def sign(x: ComplexArray) -> ComplexArray:
    """The number divided by its magnitude; zeros as they are."""
    x = _of_one_infinity(x)
    magnitude = absolute(x)
    is_zero = _is_zero(magnitude)
    return ComplexArray(_where(is_zero, x.real, x.real / magnitude), _where(is_zero, x.imag, x.imag / magnitude))


def _direction(x: ComplexArray) -> ComplexArray:
    """For numbers of infinite magnitude a finite one of their angle: 1 for infinite parts, 0 for finite ones."""

    def part(y: Array) -> Array:
        end = _signed(_where(_map("isinf", y), _like(y, 1.0), _like(y, 0.0)), y)
        return _where(_map("isnan", y), y, end)

    return ComplexArray(part(x.real), part(x.imag))


def _of_one_infinity(x: ComplexArray) -> ComplexArray:
    """Numbers of which just one part is infinite as finite ones of their angle; others as they are."""
    is_one = _map("bitwise_xor", _map("isinf", x.real), _map("isinf", x.imag))
    is_one = _both(is_one, _not(isnan(x)))
    ends = _direction(x)
    return ComplexArray(_where(is_one, ends.real, x.real), _where(is_one, ends.imag, x.imag))


def rounded(x: ComplexArray) -> ComplexArray:
    """Both parts rounded to the nearest integer, halves to even."""
    return ComplexArray(_map("round", x.real), _map("round", x.imag))


# ---- comparisons ----------------------------------------------------------------------------------------------------


def equal(x: ComplexArray, y: ComplexArray) -> Array:
    """Whether both parts are equal."""
    return _both(_map("equal", x.real, y.real), _map("equal", x.imag, y.imag))


def not_equal(x: ComplexArray, y: ComplexArray) -> Array:
    """Whether a part differs."""
    return _either(_map("not_equal", x.real, y.real), _map("not_equal", x.imag, y.imag))


def isnan(x: ComplexArray) -> Array:
    """Whether a part is NaN."""
    return _either(_map("isnan", x.real), _map("isnan", x.imag))


def isinf(x: ComplexArray) -> Array:
    """Whether a part is infinite."""
    return _either(_map("isinf", x.real), _map("isinf", x.imag))


def isfinite(x: ComplexArray) -> Array:
    """Whether both parts are finite."""
    return _both(_map("isfinite", x.real), _map("isfinite", x.imag))


# ---- exponentials and logarithms ------------------------------------------------------------------------------------


def exp(x: ComplexArray) -> ComplexArray:
    """e to the power of it."""
    a, b = x.real, x.imag
    # Beyond this e**a overflows, while its product with a small cosine may not: two factors.
    is_large = _map("greater", a, _like(a, 88.0 if _is_single(x) else 709.0))
    factor = _map("exp", _where(is_large, a * 0.5, a))
    again = _where(is_large, factor, _like(a, 1.0))
    real, imag = factor * _map("cos", b) * again, factor * _map("sin", b) * again
    is_infinite = _map("isinf", a)
    has_no_angle = _both(is_infinite, _not(_map("isfinite", b)))
    # e**-inf is 0 and e**inf infinite at every angle.
    end = _where(_map("less", a, _like(a, 0.0)), _like(a, 0.0), a)
    real = _where(has_no_angle, end, real)
    below = _both(has_no_angle, _map("less", a, _like(a, 0.0)))
    imag = _where(_is_zero(b), b, _where(below, _signed(_like(a, 0.0), b), imag))
    return ComplexArray(real, imag)


def exp2(x: ComplexArray) -> ComplexArray:
    """2 to the power of it."""
    return exp(_scaled(x, math.log(2.0)))


def expm1(x: ComplexArray) -> ComplexArray:
    """e to the power of it, minus 1, exact near 0."""
    a, b = x.real, x.imag
    half = _map("sin", b * 0.5)
    real = _map("expm1", a) * _map("cos", b) - half * half * 2.0
    whole = exp(x)
    is_moderate = _both(_map("less", a, _like(a, 1.0)), _map("isfinite", b))
    return ComplexArray(_where(is_moderate, real, whole.real - 1.0), whole.imag)


def _log_magnitude(x: ComplexArray) -> Array:
    a, b = _abs(x.real), _abs(x.imag)
    large, small = _map("maximum", a, b), _map("minimum", a, b)
    ratio = small / large
    far = _map("log", large) + _map("log1p", ratio * ratio) * 0.5
    # Near 1 the sum above cancels.
    near = _map("log1p", (large - 1.0) * (large + 1.0) + small * small) * 0.5
    is_near = _both(_map("greater", large, _like(a, 0.5)), _map("less", large, _like(a, 2.0)))
    found = _where(is_near, near, far)
    found = _where(_is_zero(large), _like(a, -math.inf), found)
    return _where(isinf(x), _like(a, math.inf), found)


def log(x: ComplexArray) -> ComplexArray:
    """The natural logarithm, with an angle from -pi to pi."""
    return ComplexArray(_log_magnitude(x), angle(x))


def log2(x: ComplexArray) -> ComplexArray:
    """The logarithm to base 2."""
    return _scaled(log(x), 1.0 / math.log(2.0))


def log10(x: ComplexArray) -> ComplexArray:
    """The logarithm to base 10."""
    return _scaled(log(x), 1.0 / math.log(10.0))


def log1p(x: ComplexArray) -> ComplexArray:
    """The logarithm of 1 + x, exact near 0."""
    a, b = x.real, x.imag
    shifted = ComplexArray(a + 1.0, b)
    near = _map("log1p", a * (a + 2.0) + b * b) * 0.5
    is_near = _both(_map("less", _abs(a), _like(a, 0.5)), _map("less", _abs(b), _like(a, 0.5)))
    return ComplexArray(_where(is_near, near, _log_magnitude(shifted)), angle(shifted))


def power(x: ComplexArray, y: ComplexArray) -> ComplexArray:
    """x to the power of y."""
    is_zero = _both(_is_zero(x.real), _is_zero(x.imag))
    is_real = _is_zero(y.imag)
    logarithm = log(x)
    whole = multiply(y, logarithm)
    # Without products by a part that is 0, which an infinity would turn to NaN.
    scaled = ComplexArray(y.real * logarithm.real, y.real * logarithm.imag)
    found = exp(ComplexArray(_where(is_real, scaled.real, whole.real), _where(is_real, scaled.imag, whole.imag)))
    is_positive = _both(is_real, _map("greater", y.real, _like(y.real, 0.0)))
    is_one = _both(is_real, _is_zero(y.real))
    zero, nan, one = (_like(x.real, value) for value in (0.0, math.nan, 1.0))
    of_zero = _where(is_positive, zero, nan)
    real = _where(is_one, one, _where(is_zero, of_zero, found.real))
    return ComplexArray(real, _where(is_one, zero, _where(is_zero, of_zero, found.imag)))


def sigmoid(x: ComplexArray) -> ComplexArray:
    """1 / (1 + e**-x)."""
    return reciprocal(add(_one(x), exp(negative(x))))


# ---- roots ----------------------------------------------------------------------------------------------------------


def sqrt(x: ComplexArray) -> ComplexArray:
    """The square root whose real part is not negative."""
    limits = np.finfo(x.real.dtype.numpy)
    size = _map("maximum", _abs(x.real), _abs(x.imag))
    is_large = _map("greater", size, _like(size, float(limits.max) / 8.0))
    is_small = _map("less", size, _like(size, float(limits.tiny) / float(limits.eps)))
    half = 2.0 ** (24 if _is_single(x) else 54)

    def chosen(for_large: float, for_small: float) -> Array:
        return _where(is_large, _like(size, for_large), _where(is_small, _like(size, for_small), _like(size, 1.0)))

    factor, back = chosen(1.0 / 16.0, half * half), chosen(4.0, 1.0 / half)
    a, b = x.real * factor, x.imag * factor
    root = _map("sqrt", (_abs(a) + _map("hypot", a, b)) * 0.5)
    rest = _where(_is_zero(root), _abs(b), _abs(b) / (root * 2.0))
    is_infinite, infinity = _map("isinf", b), _like(size, math.inf)
    root, rest = (_where(is_infinite, infinity, part) * back for part in (root, rest))
    is_left = _map("less", a, _like(a, 0.0))
    return ComplexArray(_where(is_left, rest, root), _signed(_where(is_left, root, rest), b))


def rsqrt(x: ComplexArray) -> ComplexArray:
    """1 divided by the square root."""
    return reciprocal(sqrt(x))


def cbrt(x: ComplexArray) -> ComplexArray:
    """The cube root with the smallest angle."""
    found = exp(_scaled(log(x), 1.0 / 3.0))
    is_zero = _both(_is_zero(x.real), _is_zero(x.imag))
    return ComplexArray(_where(is_zero, x.real, found.real), _where(is_zero, x.imag, found.imag))


# ---- trigonometry ---------------------------------------------------------------------------------------------------


def sinh(x: ComplexArray) -> ComplexArray:
    """Hyperbolic sine."""
    a, b = x.real, x.imag
    has_no_angle = _both(_either(_map("isinf", a), _is_zero(a)), _not(_map("isfinite", b)))
    real = _where(has_no_angle, a, _map("sinh", a) * _map("cos", b))
    return ComplexArray(real, _where(_is_zero(b), b, _map("cosh", a) * _map("sin", b)))


def cosh(x: ComplexArray) -> ComplexArray:
    """Hyperbolic cosine."""
    a, b = x.real, x.imag
    has_no_angle = _both(_map("isinf", a), _not(_map("isfinite", b)))
    real = _where(has_no_angle, _abs(a), _map("cosh", a) * _map("cos", b))
    one = _like(a, 1.0)
    zero = _signed(_like(a, 0.0), _signed(one, a) * _signed(one, b))
    return ComplexArray(real, _where(_either(_is_zero(a), _is_zero(b)), zero, _map("sinh", a) * _map("sin", b)))


def tanh(x: ComplexArray) -> ComplexArray:
    """Hyperbolic tangent."""
    a, b = x.real, x.imag
    limit = 11.0 if _is_single(x) else 22.0
    is_large = _map("greater", _abs(a), _like(a, limit))
    bounded = _where(is_large, _like(a, 0.0), a)
    tangent, sine = _map("tan", b), _map("sinh", bounded)
    slope = tangent * tangent + 1.0
    scale = slope * sine * sine + 1.0
    real, imag = slope * _map("sqrt", sine * sine + 1.0) * sine / scale, tangent / scale
    decayed = _map("sin", b) * _map("cos", b) * 4.0 * _map("exp", _abs(a) * -2.0)
    is_infinite, is_turned = _map("isinf", a), _map("isfinite", b)
    decayed = _where(_both(is_infinite, _not(is_turned)), _like(a, 0.0), decayed)
    real = _where(_both(is_large, _either(is_infinite, is_turned)), _signed(_like(a, 1.0), a), real)
    return ComplexArray(_where(_is_zero(a), a, real), _where(is_large, decayed, _where(_is_zero(b), b, imag)))


def sin(x: ComplexArray) -> ComplexArray:
    """Sine."""
    return _over_i(sinh(_times_i(x)))


def cos(x: ComplexArray) -> ComplexArray:
    """Cosine."""
    return cosh(_times_i(x))


def tan(x: ComplexArray) -> ComplexArray:
    """Tangent."""
    return _over_i(tanh(_times_i(x)))


# ---- inverse functions ----------------------------------------------------------------------------------------------


def _roots_around_one(x: ComplexArray) -> tuple[ComplexArray, ComplexArray]:
    """The square roots of 1 - x and 1 + x."""
    below = sqrt(ComplexArray(1.0 - x.real, _map("negative", x.imag)))
    return below, sqrt(ComplexArray(x.real + 1.0, x.imag))


def asin(x: ComplexArray) -> ComplexArray:
    """Inverse sine."""
    below, above = _roots_around_one(x)
    end = _direction(x)
    is_infinite = isinf(x)
    real = _map("atan2", x.real, multiply(below, above).real)
    real = _where(is_infinite, _map("atan2", end.real, _abs(end.imag)), real)
    imag = _map("asinh", multiply(conjugate(below), above).imag)
    return ComplexArray(real, _where(is_infinite, _signed(_like(imag, math.inf), x.imag), imag))


def acos(x: ComplexArray) -> ComplexArray:
    """Inverse cosine."""
    below, above = _roots_around_one(x)
    end = _direction(x)
    is_infinite = isinf(x)
    real = _map("atan2", below.real, above.real) * 2.0
    real = _where(is_infinite, _map("atan2", _abs(end.imag), end.real), real)
    imag = _map("asinh", multiply(conjugate(above), below).imag)
    infinity = _signed(_like(imag, math.inf), _map("negative", x.imag))
    return ComplexArray(real, _where(is_infinite, infinity, imag))


def acosh(x: ComplexArray) -> ComplexArray:
    """Inverse hyperbolic cosine."""
    below, above = sqrt(ComplexArray(x.real - 1.0, x.imag)), sqrt(ComplexArray(x.real + 1.0, x.imag))
    end = _direction(x)
    is_infinite = isinf(x)
    real = _map("asinh", multiply(conjugate(below), above).real)
    imag = _map("atan2", below.imag, above.real) * 2.0
    imag = _where(is_infinite, _map("atan2", end.imag, end.real), imag)
    return ComplexArray(_where(is_infinite, _like(real, math.inf), real), imag)


def asinh(x: ComplexArray) -> ComplexArray:
    """Inverse hyperbolic sine."""
    return _over_i(asin(_times_i(x)))


def atanh(x: ComplexArray) -> ComplexArray:
    """Inverse hyperbolic tangent."""
    a, b = _abs(x.real), x.imag
    distance = (1.0 - a) * (1.0 - a) + b * b
    real = _map("log1p", a * 4.0 / distance) * 0.25
    # Next to the poles squares underflow.
    limits = np.finfo(a.dtype.numpy)
    is_pole = _map("less", distance, _like(a, float(limits.tiny) / float(limits.eps)))
    gap = _map("log", _map("hypot", 1.0 - a, b)) - _map("log", _map("hypot", a + 1.0, b))
    real = _where(is_pole, gap * -0.5, real)
    # Beyond this squares overflow, and the quotient is the reciprocal's.
    is_large = _map("greater", _map("maximum", a, _abs(b)), _like(a, 1e18 if _is_single(x) else 1e150))
    inverse = reciprocal(ComplexArray(a, b))
    imag = _map("atan2", b * 2.0, (1.0 - a) * (a + 1.0) - b * b) * 0.5
    real = _where(is_large, inverse.real, real)
    real = _where(isinf(x), _like(a, 0.0), real)
    imag = _where(is_large, _signed(_like(a, math.pi / 2), b), imag)
    return ComplexArray(_signed(real, x.real), imag)


def atan(x: ComplexArray) -> ComplexArray:
    """Inverse tangent."""
    return _over_i(atanh(_times_i(x)))


def polar(magnitude: Array, phase: Array) -> ComplexArray:
    """The number of a magnitude and an angle."""
    return ComplexArray(magnitude * _map("cos", phase), magnitude * _map("sin", phase))


# By the names of the table `ops`.
FUNCTIONS: dict[str, Callable[..., Array]] = {
    function.__name__: function
    for function in (
        *(absolute, acos, acosh, add, asin, asinh, atan, atanh, cbrt, cos, cosh, divide, equal, exp, exp2, expm1),
        *(isfinite, isinf, isnan, log, log10, log1p, log2, multiply, negative, not_equal, power, reciprocal, rsqrt),
        *(sigmoid, sign, sin, sinh, sqrt, square, subtract, tan, tanh),
    )
} | {"round": rounded}
