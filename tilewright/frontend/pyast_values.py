"""Values of a kernel: arrays, tiles, and integers that depend on where in the grid or a loop a point is.

An `Affine` is an integer known up to grid and loop counters: `constant + sum(coefficient * atom)`. Its range is known,
which decides what is masked. A `TileValue` knows which of its lanes may be beyond an array (`Edge`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, TypeGuard

import numpy as np
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright.primitives import ArrayType
from tilewright.records import dataclass

_serials = itertools.count()


def is_integer(value: object) -> TypeGuard[int | np.integer[Any]]:
    """Whether a value is a compile-time integer (a bool is none)."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def listed(value: Any) -> list[Any]:
    """The items of a tuple or list; of anything else, just that."""
    return [*value] if isinstance(value, tuple | list) else [value]


@dataclass(frozen=True, eq=False)
class Counter:
    """A grid index or loop counter: 0 to `trips - 1`."""

    value: SSAValue
    trips: int
    name: str
    serial: int = field(default_factory=lambda: next(_serials))


@dataclass(frozen=True)
class Quotient:
    """`of // divisor`, or `of % divisor` when `is_remainder`; `divisor` is positive."""

    of: Affine
    divisor: int
    is_remainder: bool

    @property
    def serial(self) -> tuple[int, ...]:
        return (1 + self.is_remainder, self.divisor, *(_order(a)[0] for a, _ in self.of.terms))


Atom = Counter | Quotient


def _order(atom: Atom) -> tuple[int, ...]:
    return (-1, atom.serial) if isinstance(atom, Counter) else atom.serial


@dataclass(frozen=True)
class Affine:
    """An integer that is constant within one point of the grid and one trip of each loop."""

    constant: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()

    @staticmethod
    def of(atom: Atom) -> Affine:
        return Affine(0, ((atom, 1),))

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.constant + other, self.terms)
        sums: dict[Atom, int] = {}
        for atom, coefficient in (*self.terms, *other.terms):
            sums[atom] = sums.get(atom, 0) + coefficient
        terms = sorted(((a, c) for a, c in sums.items() if c), key=lambda term: _order(term[0]))
        return Affine(self.constant + other.constant, tuple(terms))

    def __mul__(self, factor: int) -> Affine:
        if factor == 0:
            return Affine()
        return Affine(self.constant * factor, tuple((a, c * factor) for a, c in self.terms))

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        return self + -other

    def divided(self, divisor: int, *, remainder: bool) -> Affine:
        """`self // divisor` or `self % divisor` for a positive divisor, in its simplest form."""
        whole = Affine(self.constant // divisor, tuple((a, c // divisor) for a, c in self.terms if c % divisor == 0))
        rest = Affine(self.constant % divisor, tuple((a, c) for a, c in self.terms if c % divisor))
        low, high = rest.range
        if low // divisor == high // divisor:
            return rest + -(low // divisor * divisor) if remainder else whole + low // divisor
        split = Affine.of(Quotient(rest, divisor, remainder))
        return split if remainder else whole + split

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value, both included (never too narrow)."""
        low = high = self.constant
        for atom, coefficient in self.terms:
            first, last = _atom_range(atom)
            low += min(coefficient * first, coefficient * last)
            high += max(coefficient * first, coefficient * last)
        return low, high

    def counters(self) -> Iterator[Counter]:
        """All counters that the value depends on."""
        for atom, _ in self.terms:
            if isinstance(atom, Counter):
                yield atom
            else:
                yield from atom.of.counters()

    def expression(self, symbol: Callable[[Counter], AffineExpr]) -> AffineExpr:
        result: AffineExpr | None = None
        for atom, coefficient in self.terms:
            term = _atom_expression(atom, symbol)
            term = term if coefficient == 1 else term * coefficient
            result = term if result is None else result + term
        if result is None:
            return AffineExpr.constant(self.constant)
        return result + self.constant if self.constant else result

    def __str__(self) -> str:
        parts = [f"{'' if c == 1 else f'{c}*'}{_atom_text(a)}" for a, c in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)


def _atom_range(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Counter):
        return 0, max(0, atom.trips - 1)
    if atom.is_remainder:
        return 0, atom.divisor - 1
    low, high = atom.of.range
    return low // atom.divisor, high // atom.divisor


def _atom_expression(atom: Atom, symbol: Callable[[Counter], AffineExpr]) -> AffineExpr:
    if isinstance(atom, Counter):
        return symbol(atom)
    inner = atom.of.expression(symbol)
    return inner % atom.divisor if atom.is_remainder else inner // atom.divisor


def _atom_text(atom: Atom) -> str:
    if isinstance(atom, Counter):
        return atom.name
    return f"({atom.of} {'%' if atom.is_remainder else '//'} {atom.divisor})"


@dataclass(frozen=True)
class TileIndex:
    """The values that `tw.grid` and `tw.steps` yield: the `number`-th block of `block` positions out of `extent`.

    As a subscript it means the tile there; in arithmetic it is its number.
    """

    number: Affine
    block: int
    extent: int
    name: str

    @property
    def start(self) -> Affine:
        """The first position of the block."""
        return self.number * self.block

    @property
    def overhangs(self) -> bool:
        return self.extent % self.block != 0


@dataclass(frozen=True)
class Edge:
    """Lanes `l` of one tile dimension with `start + stride * l >= limit` are beyond an array: always, or where the bool
    scalar `guard` is true, which states that the branch or trip that loaded them ran."""

    start: Affine
    stride: int
    limit: int
    guard: SSAValue | None = None

    @property
    def unguarded(self) -> Edge:
        return Edge(self.start, self.stride, self.limit)

    @property
    def of_tile(self) -> Edge:
        """The lanes for a tile of only the first lane, whose dimension is dropped."""
        return Edge(self.start, 0, self.limit, self.guard)


# One entry per tile dimension, and a last one for dimensions of size 1 that were dropped: its edges have stride 0, so
# that they hold for all elements or for none.
Edges = tuple[tuple[Edge, ...], ...]


@dataclass(frozen=True, eq=False)
class TileValue:
    """A tile. `weak` marks what was computed from Python numbers and positions alone: it takes the type of what it
    meets."""

    value: SSAValue
    type: ArrayType
    edges: Edges
    weak: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank

    def __str__(self) -> str:
        return f"a tile {self.type}"


def as_affine(value: Any) -> Affine | None:
    """A value as an index integer, if it is one."""
    if isinstance(value, Affine):
        return value
    if isinstance(value, TileIndex):
        return value.number
    return Affine(int(value)) if is_integer(value) else None


def is_flag(value: object) -> TypeGuard[TileValue]:
    """Whether a value is one truth value, known at run time."""
    return isinstance(value, TileValue) and not value.shape and value.type.dtype.is_bool


def no_edges(rank: int) -> Edges:
    return ((),) * (rank + 1)


def union_edges(*all_edges: Edges) -> Edges:
    """Lanes that are beyond an array in any of some tiles of one rank."""
    return tuple(_without_implied(dict.fromkeys(e for own in dim for e in own)) for dim in zip(*all_edges, strict=True))


def _without_implied(edges: Mapping[Edge, None]) -> tuple[Edge, ...]:
    """A lane that is always beyond the array needs no guard."""
    return tuple(e for e in edges if e.guard is None or e.unguarded not in edges)


@dataclass(frozen=True, eq=False)
class Ref:
    """An array parameter of the kernel."""

    name: str
    value: SSAValue
    type: ArrayType
    effect: str


@dataclass(frozen=True)
class Grid:
    """`tw.grid(...)`: per dimension an extent and a block size, None for single positions."""

    extents: tuple[int, ...]
    blocks: tuple[int | None, ...]
    is_tuple: bool

    @property
    def trips(self) -> tuple[int, ...]:
        return tuple(-(-n // (b or 1)) for n, b in zip(self.extents, self.blocks, strict=True))


@dataclass(frozen=True)
class Steps:
    """`tw.steps(...)`: an extent walked in blocks, in order."""

    extent: int
    block: int

    @property
    def trips(self) -> int:
        return -(-self.extent // self.block)


def number_of(value: object) -> Any:
    """An array without axes, of any library, as a NumPy number; anything else as it is."""
    is_array = not isinstance(value, np.generic) and hasattr(value, "__array__")
    return np.asarray(value)[()] if is_array and tuple(getattr(value, "shape", (0,))) == () else value


@dataclass(frozen=True)
class LoopLocal:
    """The binding of a name out of scope: only a loop or branch that has ended assigned it."""

    where: str

    def what_is_wrong(self, name: str) -> tuple[str, str]:
        """Why the name cannot be read there, and what to do."""
        if self.where == f"the loop over `{name}`":
            message = f"`{name}` has no value after {self.where}, which runs in order"
            return message, f"assign `{name}` in the loop to another name, which has a value before it"
        return f"`{name}` is assigned only inside {self.where}", f"give `{name}` a value before it"


@dataclass(frozen=True)
class Method:
    """A method of a tile, to be called."""

    owner: TileValue
    name: str
