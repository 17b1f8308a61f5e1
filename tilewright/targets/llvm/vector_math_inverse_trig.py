"""asin, acos, atan and atan2.

Each result is a multiple of pi / 2 less or plus a short angle s + s p: the difference is kept in two parts, so that the
short angle's polynomial is the only thing that rounds before the end.
"""

from __future__ import annotations

from tilewright.targets.llvm.values import Lanes, horner, polynomial
from tilewright.targets.llvm.vector_math_tables import CONSTANTS, TABLES


def _turns_less(quarters: Lanes, s: Lanes, p: Lanes) -> Lanes:
    """quarters pi / 2 - (s + s p) for quarters 0, 1 or 2; |s| is below pi / 2."""
    high_part, low_part, _ = CONSTANTS["HALF_PI"][s.element]
    high = quarters * high_part
    difference = high - s
    rest = (high - difference) - s
    return difference + (-s).times_plus(p, quarters.times_plus(low_part, rest))


def _arcsine_parts(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """Whether |x| is at most 1/2; then |x|, otherwise 2 asin(sqrt((1 - |x|) / 2)), as s and p; NaN beyond 1."""
    a = x.absolute()
    small = a <= 0.5
    square = small.choose(a * a, (1.0 - a) * 0.5)
    s = small.choose(a, square.square_root() * 2.0)
    return small, s, square * polynomial(square, TABLES["ASIN"][x.element])


def asin(x: Lanes) -> Lanes:
    """asin |x|, or pi / 2 - 2 asin(sqrt((1 - |x|) / 2)) beyond 1/2."""
    small, s, p = _arcsine_parts(x)
    zero, one = x.constant(0.0), x.constant(1.0)
    return _turns_less(small.choose(zero, one), small.choose(-s, s), p).with_sign_of(x)


def acos(x: Lanes) -> Lanes:
    """pi / 2 - asin x, or 2 asin(sqrt((1 - x) / 2)) beyond 1/2, or pi less that below -1/2."""
    small, s, p = _arcsine_parts(x)
    far = (x < 0.0).choose(x.constant(2.0), 0.0)
    taken = small.choose(x, (-s).with_sign_of(-x))
    return _turns_less(small.choose(x.constant(1.0), far), taken, p)


def atan(x: Lanes) -> Lanes:
    """atan |x|, or pi / 2 - atan(1 / |x|) beyond 1."""
    a = x.absolute()
    beyond = a > 1.0
    t = beyond.choose(1.0 / a, a)
    square = t * t
    p = square * horner(square, TABLES["ATAN"][x.element])
    return _turns_less(beyond.choose(x.constant(1.0), 0.0), beyond.choose(t, -t), p).with_sign_of(x)


def atan2(y: Lanes, x: Lanes) -> Lanes:
    """The angle of the point (x, y), signs of zeros included: octants from the smaller over the larger coordinate."""
    a, b = x.absolute(), y.absolute()
    steep = b > a
    smaller, larger = steep.choose(a, b), steep.choose(b, a)
    t = smaller / larger
    # 0/0 stands for 0 and inf/inf for 1.
    t = smaller.equals(larger).choose(larger.equals(0.0).choose(x.constant(0.0), 1.0), t)
    square = t * t
    p = square * horner(square, TABLES["ATAN"][x.element])
    left = x.bits() < 0
    flat_quarters = left.choose(x.constant(2.0), 0.0)
    # Towards the axis x > 0 the angle grows with t from 0, towards x < 0 it falls from pi; about pi / 2 the other way.
    grows = left ^ (steep ^ left.constant(1))
    angle = _turns_less(steep.choose(x.constant(1.0), flat_quarters), grows.choose(-t, t), p)
    return angle.with_sign_of(y)
