"""Named tile axes and affine coordinates: the index arithmetic of lowering arrays to tiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap


class Axis(msgspec.Struct, frozen=True, eq=False):
    """One dimension of a tile, known by identity. Tiles list their axes in increasing `order`."""

    extent: int
    order: float
    name: str = ""


class Tile(msgspec.Struct, frozen=True):
    """A tile value and the axes of its dimensions, in increasing order."""

    value: SSAValue
    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.extent for axis in self.axes)


def ordered(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """Distinct axes in increasing order."""
    return tuple(sorted(dict.fromkeys(axes), key=lambda axis: axis.order))


class Linear(msgspec.Struct, frozen=True):
    """`constant + sum(coefficient * term)`; a term is a tile axis, an index scalar or an integer tile of lanes."""

    constant: int = 0
    terms: tuple[tuple[Axis | SSAValue | Tile, int], ...] = ()

    @staticmethod
    def of(term: Axis | SSAValue | Tile, coefficient: int = 1) -> Linear:
        return Linear(0, ((term, coefficient),) if coefficient else ())

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.constant + other, self.terms)
        sums: dict[Any, int] = {}
        for term, coefficient in (*self.terms, *other.terms):
            sums[term] = sums.get(term, 0) + coefficient
        return Linear(self.constant + other.constant, tuple((t, c) for t, c in sums.items() if c))

    def __mul__(self, factor: int) -> Linear:
        if factor == 0:
            return Linear()
        return Linear(self.constant * factor, tuple((t, c * factor) for t, c in self.terms))

    @property
    def axes(self) -> tuple[Axis, ...]:
        found: list[Axis] = []
        for term, _ in self.terms:
            if isinstance(term, Axis):
                found.append(term)
            elif isinstance(term, Tile):
                found.extend(term.axes)
        return tuple(found)


Coordinates = tuple[Linear, ...]


def axes_of(coordinates: Coordinates) -> tuple[Axis, ...]:
    """All axes that the coordinates depend on."""
    return ordered(axis for c in coordinates for axis in c.axes)


class MapBuilder(msgspec.Struct):
    """Collects the symbols of an affine map over the axes of a tile."""

    axes: Sequence[Axis]
    symbols: list[SSAValue | Tile] = msgspec.field(default_factory=list)

    def expression(self, linear: Linear) -> AffineExpr:
        result: AffineExpr | None = None
        for term, coefficient in linear.terms:
            scaled = self._term(term) if coefficient == 1 else self._term(term) * coefficient
            result = scaled if result is None else result + scaled
        if result is None:
            return AffineExpr.constant(linear.constant)
        return result + linear.constant if linear.constant else result

    def _term(self, term: Axis | SSAValue | Tile) -> AffineExpr:
        if isinstance(term, Axis):
            return AffineExpr.dimension(list(self.axes).index(term))
        if term not in self.symbols:
            self.symbols.append(term)
        return AffineExpr.symbol(self.symbols.index(term))

    def map(self, coordinates: Coordinates) -> AffineMap:
        results = tuple(self.expression(c) for c in coordinates)
        return AffineMap(len(self.axes), len(self.symbols), results)
