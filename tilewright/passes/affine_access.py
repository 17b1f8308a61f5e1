"""Affine analysis of loads and stores: strides of a loop nest's lanes in memory.

A nest has dimensions 0..n-1. The index of a tile dimension is `Index(dim, stride, offset)`: `stride * i_dim + offset`,
or a constant when `dim` is None. A `Form` is a coordinate of a ref as a linear function of nest dimensions and symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineSymExpr,
)

from tilewright.dialects import tile
from tilewright.layout import Layout


class Index(NamedTuple):
    """Position along one tile dimension."""

    dim: int | None
    stride: int = 1
    offset: int = 0


Indices = tuple[Index, ...]


class Form(msgspec.Struct, frozen=True):
    """`constant + sum(dims) + sum(symbols)`; symbols are positions in the access's symbol list."""

    constant: int
    dims: tuple[tuple[int, int], ...]
    symbols: tuple[tuple[int, int], ...]

    def coefficient(self, dim: int) -> int:
        return dict(self.dims).get(dim, 0)

    def negated(self) -> Form:
        return _scaled(self, -1)


def linear_form(expression: AffineExpr, at: Indices) -> Form | None:
    """The coordinate as a linear form, or None when it divides or takes remainders."""
    if type(expression) is AffineConstantExpr:
        return Form(expression.value, (), ())
    if type(expression) is AffineSymExpr:
        return Form(0, (), ((expression.position, 1),))
    if type(expression) is AffineDimExpr:
        index = at[expression.position]
        dims = ((index.dim, index.stride),) if index.dim is not None else ()
        return Form(index.offset, dims, ())
    if not isinstance(expression, AffineBinaryOpExpr):
        return None
    left, right = linear_form(expression.lhs, at), linear_form(expression.rhs, at)
    if left is None or right is None:
        return None
    if expression.kind is AffineBinaryOpKind.Add:
        return _sum(left, right)
    if expression.kind is AffineBinaryOpKind.Mul:
        if not right.dims and not right.symbols:
            return _scaled(left, right.constant)
        if not left.dims and not left.symbols:
            return _scaled(right, left.constant)
    return None


def _sum(a: Form, b: Form) -> Form:
    return Form(a.constant + b.constant, _merged(a.dims, b.dims), _merged(a.symbols, b.symbols))


def _scaled(a: Form, factor: int) -> Form:
    if factor == 0:
        return Form(0, (), ())
    return Form(
        a.constant * factor,
        tuple((d, c * factor) for d, c in a.dims),
        tuple((s, c * factor) for s, c in a.symbols),
    )


def _merged(a: Sequence[tuple[int, int]], b: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    sums: dict[int, int] = {}
    for key, value in (*a, *b):
        sums[key] = sums.get(key, 0) + value
    return tuple((k, v) for k, v in sorted(sums.items()) if v)


class AddressTerm(NamedTuple):
    """`stride * ((coordinate[dim] // divisor) % modulus)`, in elements."""

    dim: int
    divisor: int
    modulus: int | None
    stride: int


@lru_cache(maxsize=4096)
def address_terms(ref: tile.RefType) -> tuple[AddressTerm, ...]:
    """How a ref's layout turns coordinates into an element offset."""
    if not ref.layout.data:
        strides = _row_major(ref.shape)
        return tuple(AddressTerm(d, 1, None, s) for d, s in enumerate(strides))
    layout = Layout.parse(ref.layout.data)
    return tuple(AddressTerm(t.dim, t.divisor, t.modulus, t.stride) for t in layout.linear_terms("mem"))


@lru_cache(maxsize=4096)
def storage_elements(ref: tile.RefType) -> int:
    """Elements that a ref occupies, padding included."""
    if not ref.layout.data:
        size = 1
        for n in ref.shape:
            size *= n
        return size
    return int(Layout.parse(ref.layout.data).span("mem"))  # type: ignore[arg-type]  buffers are static


def _row_major(shape: Sequence[int]) -> list[int]:
    strides: list[int] = []
    below = 1
    for n in reversed(shape):
        strides.append(below)
        below *= n
    return strides[::-1]


class Access(msgspec.Struct, frozen=True):
    """A load or store at given tile indices. `forms` has None where a coordinate is not linear; `lanes` are the
    symbols that are tiles (gather and scatter indices)."""

    ref: SSAValue
    map: AffineMap
    symbols: tuple[SSAValue, ...]
    at: Indices
    forms: tuple[Form | None, ...]
    lanes: frozenset[int]

    @property
    def type(self) -> tile.RefType:
        return tile.ref_type(self.ref)

    def varying_lanes(self, position: int) -> bool:
        """Whether a coordinate depends on an index tile."""
        form = self.forms[position]
        if form is None:
            return self._moves(position)
        return any(s in self.lanes for s, _ in form.symbols)

    def _moves(self, position: int) -> bool:
        """Whether a coordinate that is not linear depends on lanes at all, and not on index scalars alone."""
        parts = list(self.map.results[position].dfs())
        if any(isinstance(e, AffineDimExpr) and self.at[e.position].dim is not None for e in parts):
            return True
        return any(isinstance(e, AffineSymExpr) and e.position in self.lanes for e in parts)

    def stride_along(self, dim: int, lanes_vary: bool) -> int | None:
        """Elements between neighbours along a nest dimension; None when it is not constant."""
        total = 0
        for term in address_terms(self.type):
            form = self.forms[term.dim]
            if form is None and not self._moves(term.dim):
                continue
            if form is None or (lanes_vary and self.varying_lanes(term.dim)):
                return None
            coefficient = form.coefficient(dim)
            if coefficient == 0:
                continue
            if term.divisor != 1 or term.modulus is not None:
                return None
            total += coefficient * term.stride
        return total

    def is_contiguous(self, dim: int, lanes: int, lanes_vary: bool) -> bool:
        """Whether `lanes` neighbours along a dimension, starting at a multiple of `lanes`, are adjacent in memory."""
        if self.stride_along(dim, lanes_vary) == 1:
            return True
        return not lanes_vary and self._within_panel(dim, lanes)

    def _within_panel(self, dim: int, lanes: int) -> bool:
        terms = [t for t in address_terms(self.type) if (f := self.forms[t.dim]) is not None and f.coefficient(dim)]
        if any(f is None for f in self.forms) or len({t.dim for t in terms}) != 1:
            return False
        form = self.forms[terms[0].dim]
        inner = [t for t in terms if t.divisor == 1]
        if form is None or form.coefficient(dim) != 1 or len(inner) != 1 or inner[0].stride != 1:
            return False
        width = inner[0].modulus
        outer_divides = all(t.divisor % width == 0 for t in terms if t.divisor != 1) if width else False
        others = [c for d, c in form.dims if d != dim] + [c for _, c in form.symbols] + [form.constant]
        return bool(width) and width % lanes == 0 and outer_divides and all(c % lanes == 0 for c in others)


def access_of(
    ref: SSAValue, map: AffineMap, symbols: Sequence[SSAValue], at: Indices, is_lane: Mapping[SSAValue, bool]
) -> Access:
    forms = tuple(linear_form(e, at) for e in map.results)
    lanes = frozenset(i for i, s in enumerate(symbols) if is_lane[s])
    return Access(ref, map, tuple(symbols), at, forms, lanes)


class Clip(NamedTuple):
    """A nest dimension only needs positions below `limit - start`, `start` being a form without dimensions."""

    dim: int
    start: Form
    symbols: tuple[SSAValue, ...]
    limit: int

    def keeps_below(
        self, size: int, form: Form, symbols: tuple[SSAValue, ...], bound: Callable[[SSAValue], int]
    ) -> bool:
        """Whether a coordinate that grows along the dimension alone is below `size` for these positions. Index scalars
        are below their `bound`."""
        if len(form.dims) != 1 or form.dims[0][0] != self.dim or form.dims[0][1] < 1:
            return False
        step = form.dims[0][1]
        greatest = form.constant + step * (self.limit - 1 - self.start.constant)
        starts = zip(self.symbols, self.start.symbols, strict=True)
        rest = _totals([*((symbols[s], c) for s, c in form.symbols), *((each, -step * c) for each, (_, c) in starts)])
        return greatest + sum(max(0, c) * (bound(symbol) - 1) for symbol, c in rest.items()) < size


def _totals(terms: Sequence[tuple[SSAValue, int]]) -> dict[SSAValue, int]:
    """The coefficient of each symbol."""
    found: dict[SSAValue, int] = {}
    for symbol, coefficient in terms:
        found[symbol] = found.get(symbol, 0) + coefficient
    return found


def clip_of(form: Form | None, symbols: tuple[SSAValue, ...], limit: int, lanes: frozenset[int]) -> Clip | None:
    """The clip that keeps a coordinate below `limit`, if it moves along one dimension by ones."""
    if form is None or len(form.dims) != 1 or form.dims[0][1] != 1 or any(s in lanes for s, _ in form.symbols):
        return None
    used = tuple(symbols[s] for s, _ in form.symbols)
    start = Form(form.constant, (), tuple((i, c) for i, (_, c) in enumerate(form.symbols)))
    return Clip(form.dims[0][0], start, used, limit)
