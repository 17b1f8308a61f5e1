"""Minimax polynomials by Remez exchange in 60 digits, and their coefficients rounded to a float type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import mpmath
import numpy as np
from mpmath import mp, mpf

Real = Callable[[mpf], mpf]
mp.dps = 60


@dataclass(frozen=True)
class Fit:
    """Approximate `function` on [low, high]; `relative` times the error is what the caller sees.

    `degrees` gives the polynomial's degree for each precision that needs the fit; `mixed` is evaluated in `f64` on the
    way to an `f32` result. A `weighted` fit makes the
    relative error small instead of the error itself; its `relative` must not vanish on the interval. `two_part`
    says, by precision, how many coefficients from the constant term on are split into two floats.
    """

    name: str
    formula: str
    function: Real
    relative: Real
    low: mpf
    high: mpf
    degrees: dict[str, int]
    weighted: bool = False
    two_part: Mapping[str, int] = field(default_factory=dict)

    def weight(self, at: mpf) -> mpf:
        return self.relative(at) if self.weighted else mpf(1)


def remez(fit: Fit, degree: int) -> list[mpf]:
    """Coefficients, constant first, whose error equioscillates at degree + 2 points."""
    middle, half = (fit.high + fit.low) / 2, (fit.high - fit.low) / 2
    count = degree + 2
    points = [middle - half * mpmath.cos(mpmath.pi * (k + mpf(1) / 2) / count) for k in range(count)]
    coefficients: list[mpf] = []
    for _ in range(30):
        system = mp.matrix(count, count)
        for row, at in enumerate(points):
            for power in range(degree + 1):
                system[row, power] = ((at - middle) / half) ** power
            system[row, degree + 1] = (-1) ** row / fit.weight(at)
        solution = mp.lu_solve(system, mp.matrix([fit.function(at) for at in points]))
        coefficients = _recentred(list(solution[: degree + 1]), middle, half)
        points, spread = _extrema(fit, coefficients, points)
        if spread < mpf("1e-4"):
            break
    return coefficients


def _recentred(scaled: list[mpf], middle: mpf, half: mpf) -> list[mpf]:
    """Coefficients in x of a polynomial given in (x - middle) / half."""
    result = [mpf(0)] * len(scaled)
    for power, value in enumerate(scaled):
        for lower in range(power + 1):
            result[lower] += value / half**power * mpmath.binomial(power, lower) * (-middle) ** (power - lower)
    return result


def _extrema(fit: Fit, coefficients: list[mpf], points: list[mpf]) -> tuple[list[mpf], mpf]:
    """The largest error between neighbouring sign changes, and how unequal those errors are."""

    def error(at: mpf) -> mpf:
        return fit.weight(at) * (mpmath.polyval(coefficients[::-1], at) - fit.function(at))

    borders = [fit.low]
    for left, right in pairwise(points):
        borders.append(_sign_change(error, left, right))
    borders.append(fit.high)
    found = [_largest(error, left, right) for left, right in pairwise(borders)]
    sizes = [abs(error(at)) for at in found]
    return found, (max(sizes) - min(sizes)) / max(sizes)


def _sign_change(error: Real, left: mpf, right: mpf) -> mpf:
    sign = mpmath.sign(error(left))
    for _ in range(40):
        middle = (left + right) / 2
        if mpmath.sign(error(middle)) == sign:
            left = middle
        else:
            right = middle
    return (left + right) / 2


def _largest(error: Real, left: mpf, right: mpf) -> mpf:
    """Golden-section search for the extremum of an error with one hump."""
    ratio = (mpmath.sqrt(5) - 1) / 2
    for _ in range(40):
        inner, outer = right - ratio * (right - left), left + ratio * (right - left)
        if abs(error(inner)) > abs(error(outer)):
            right = outer
        else:
            left = inner
    return (left + right) / 2


def rounded(coefficients: list[mpf], element: str) -> list[float]:
    return [float(np.float32(float(c))) if element == "f32" else float(c) for c in coefficients]


def rounded_coefficients(fit: Fit, degree: int, element: str) -> list[float]:
    """A fit in the type's own numbers. On one side of 0 the later coefficients make up for the first one's rounding."""
    if count := fit.two_part.get(element, 0):
        exact = remez(fit, degree)
        split = [part for value in exact[:count] for part in parts(value, 2, element)]
        return [*split, *rounded(exact[count:], element)]
    if not fit.weighted:
        return rounded(remez(fit, degree), element)
    first = rounded(remez(fit, degree)[:1], element)[0]
    rest = replace(
        fit,
        function=lambda at: (fit.function(at) - mpf(first)) / at,
        relative=lambda at: fit.relative(at) * at,
    )
    return [first, *rounded(remez(rest, degree - 1), element)]


def merged(values: list[float], count: int) -> list[mpf]:
    """The coefficients, the first `count` of them put together from two parts."""
    exact = [mpf(value) for value in values]
    return [exact[2 * k] + exact[2 * k + 1] for k in range(count)] + exact[2 * count :]


def error_bits(fit: Fit, coefficients: list[mpf]) -> float:
    """log2 of the largest relative error, sampled."""
    worst = mpf(0)
    for k in range(1, 400):
        at = fit.low + (fit.high - fit.low) * k / 400
        worst = max(worst, abs(fit.relative(at) * (mpmath.polyval(coefficients[::-1], at) - fit.function(at))))
    return float(mpmath.log(worst, 2))


def series_safe(function: Real, limit: mpf) -> Real:
    """`function`, with a removable singularity at 0 stepped around."""
    tiny = mpf("1e-18")
    return lambda at: function(at) if abs(at) > tiny else limit


def parts(value: mpf, count: int, element: str) -> list[float]:
    result: list[float] = []
    for _ in range(count):
        result += rounded([value], element)
        value = value - mpf(result[-1])
    return result
