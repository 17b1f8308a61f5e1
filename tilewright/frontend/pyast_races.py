"""Stores of different grid points to the same elements, as far as their indices prove them.

Points of a grid run in any order, on many threads: of two that store to one element, either may win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontend.pyast_indexing import Access, Window
from tilewright.frontend.pyast_values import Affine, Counter, Quotient, TileValue

Place = Mapping[Counter, int]


def counter_of_race(access: Access, grid: Sequence[Counter]) -> Counter | None:
    """A grid index such that points which differ in nothing else surely store to a common element; None if no index
    proves it. The first two and the last two points along each axis are compared."""
    if any(isinstance(c, TileValue) for c in access.coordinates):
        return None
    for counter in grid:
        for first in (0, counter.trips - 2):
            if _overlap(access, {counter: first}, {counter: first + 1}):
                return counter
    return None


def _overlap(access: Access, place: Place, other: Place) -> bool:
    """Whether two points, whose other indices and loop counters are 0, store to a common element."""
    pairs = zip(access.coordinates, access.ref.type.shape, strict=True)
    return all(_meet(_window(c), size, place, other) for c, size in pairs)


def _window(coordinate: Window | Affine | TileValue) -> Window:
    assert not isinstance(coordinate, TileValue)
    return Window(coordinate, 1) if isinstance(coordinate, Affine) else coordinate


def _meet(window: Window, size: int, place: Place, other: Place) -> bool:
    """Whether a window, at two points, has a common element inside its axis."""
    a, b = (_value(window.start, at) for at in (place, other))
    if (a - b) % window.stride:
        return False
    first, last = max(a, b), min(a, b) + window.stride * (window.length - 1)
    if first < 0:
        first += -(first // window.stride) * window.stride
    return first <= last and first < size


def _value(affine: Affine, place: Place) -> int:
    """An index integer at a point; counters that are not named are 0."""
    total = affine.constant
    for atom, coefficient in affine.terms:
        if isinstance(atom, Quotient):
            inner = _value(atom.of, place)
            total += coefficient * (inner % atom.divisor if atom.is_remainder else inner // atom.divisor)
        else:
            total += coefficient * place.get(atom, 0)
    return total
