"""Odd functions that level off at 1, by polynomials on intervals whose coefficients are looked up in registers."""

from __future__ import annotations

from tilewright.targets.llvm.values import Lanes
from tilewright.targets.llvm.vector_math_tables import PIECES

# Adding it leaves the nearest integer in the last bits.
ROUND = {"f32": 1.5 * 2.0**23, "f64": 1.5 * 2.0**52}


def by_pieces(x: Lanes, name: str) -> Lanes:
    """The function of the table `name`, of as many intervals as `x.most_looked_up()`."""
    spacing, coefficients = PIECES[name][x.most_looked_up()]
    inside = x.absolute().at_most(spacing * (len(coefficients[0]) - 1))
    shifted = inside.times_plus(1 / spacing, ROUND[x.element])
    n = shifted - ROUND[x.element]
    t = n.times_plus(-spacing, inside)
    total = shifted.looked_up(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total.times_plus(t, shifted.looked_up(coefficient))
    # Around 0 the function is t and a little more, which rounds better than a product.
    return (n < 1.0).choose(total + t, total).with_sign_of(x)
