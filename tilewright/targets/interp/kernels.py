"""Tile kernels on the interpreter, with checks that native code leaves out: no two points of a grid touch an element
that one of them stores and, where that is asked for, single elements named by an index are inside their array."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from xdsl.dialects.builtin import FileLineColLoc, IndexType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineSymExpr

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.errors import OutOfBoundsError, RaceError, SourceLocation, TilewrightError
from tilewright.semantics.tile import (
    Interpreter,
    Tensor,
    Values,
    evaluate_map,
    inside_array,
    poison,
)

NOBODY, MANY = -1, -2
_checks_bounds: ContextVar[bool] = ContextVar("checks_bounds", default=False)


@contextmanager
def bounds_checked() -> Generator[None]:
    """Within it, kernels on the interpreter raise OutOfBoundsError for a single position outside its array, which
    otherwise reads 0 and stores nothing. Lanes of windows and gathers may be outside all the same."""
    token = _checks_bounds.set(True)
    try:
        yield
    finally:
        _checks_bounds.reset(token)


class Touched:
    """The points of a grid that loaded and stored each element of one array, by their numbers."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.readers = np.full(shape, NOBODY, np.int64)
        self.writers = np.full(shape, NOBODY, np.int64)

    def load(self, at: tuple[Tensor, ...], point: int) -> int | None:
        """Note that a point loads elements; gives another point that stored one of them."""
        self.readers[at] = np.where(np.isin(self.readers[at], (NOBODY, point)), point, MANY)
        return _other(self.writers[at], point)

    def store(self, at: tuple[Tensor, ...], point: int) -> int | None:
        """Note that a point stores elements; gives another point that stored or loaded one of them."""
        before = _other(np.concatenate([np.ravel(self.writers[at]), np.ravel(self.readers[at])]), point)
        self.writers[at] = point
        return before


def _other(points: Tensor, point: int) -> int | None:
    others = points[(points != NOBODY) & (points != point)]
    return int(others.flat[0]) if others.size else None


class CheckedInterpreter(Interpreter):
    """Raises RaceError, at the user's line, where the order of points would decide what an array holds, and
    OutOfBoundsError for elements outside their array if `bounds_checked`."""

    def __init__(self) -> None:
        self._point = 0
        self._points: list[tuple[int, ...]] = []
        self._touched: dict[SSAValue, Touched] = {}
        self._checks_bounds = _checks_bounds.get()

    def run_kernel(self, kernel: tile.KernelOp, arrays: Sequence[Tensor]) -> None:
        self._points = list(itertools.product(*(range(n) for n in kernel.grid)))
        if len(self._points) > 1 and not kernel.in_order:
            effects = zip(kernel.refs, kernel.effects, strict=True)
            self._touched = {ref: Touched(tile.ref_type(ref).shape) for ref, name in effects if name != tile.IN}
        super().run_kernel(kernel, arrays)

    def run_point(self, kernel: tile.KernelOp, point: Sequence[int], values: Values) -> None:
        self._point = self._points.index(tuple(point), self._point)
        super().run_point(kernel, point, values)

    def run_op(self, op: Operation, values: Values) -> Sequence[Any]:
        if isinstance(op, tile.LoadOp | tile.StoreOp):
            ref = op.source if isinstance(op, tile.LoadOp) else op.destination
            if self._checks_bounds:
                _check(op, ref, list(op.symbols), values)
            if ref in self._touched:
                self._touch(op, ref, values)
        try:
            return super().run_op(op, values)
        except TilewrightError as error:
            error.location = error.location or location_of(op)
            raise

    def _touch(self, op: tile.LoadOp | tile.StoreOp, ref: SSAValue, values: Values) -> None:
        lanes = array_type(op.result if isinstance(op, tile.LoadOp) else op.value).shape
        coordinates = evaluate_map(op.map, lanes, [values[s] for s in op.symbols])
        inside = inside_array(coordinates, tile.ref_type(ref).shape, lanes)
        at = tuple(c[inside] for c in coordinates)
        touched = self._touched[ref]
        is_load = isinstance(op, tile.LoadOp)
        other = touched.load(at, self._point) if is_load else touched.store(at, self._point)
        if other is None:
            return
        here = "(" + ", ".join(map(str, self._points[self._point])) + ")"
        there = "another point" if other == MANY else "(" + ", ".join(map(str, self._points[other])) + ")"
        did = "loads an element that is stored by" if is_load else "stores to an element that is also touched by"
        message = f"the grid point {here} {did} {there}: points run in any order"
        help = "let each point store its own elements, or walk what they share in order, with `tw.steps` in one point"
        raise RaceError(message, location=location_of(op), help=help)


def _check(op: Any, ref: SSAValue, symbols: list[SSAValue], values: Values) -> None:
    shape = tile.ref_type(ref).shape
    map = op.map
    for axis, (expression, size) in enumerate(zip(map.results, shape, strict=True)):
        if not _names_one_element(expression, symbols):
            continue
        rank = map.num_dims
        one = type(map)(rank, map.num_symbols, (expression,))
        # One lane stands for all: the coordinate is the same in each.
        lanes = [np.asarray(values[s]).reshape(-1)[:1].reshape((1,) * rank) for s in symbols]
        position = int(evaluate_map(one, (1,) * rank, lanes)[0].reshape(-1)[0])
        if not 0 <= position < size:
            message = f"element {position} is outside axis {axis} of an array of shape {shape}"
            raise OutOfBoundsError(message, location=location_of(op), help=f"indices are 0 to {size - 1}")


def _names_one_element(expression: AffineExpr, symbols: Sequence[SSAValue]) -> bool:
    """Whether a coordinate is one integer for the whole tile."""
    parts = list(expression.dfs())
    if any(isinstance(e, AffineDimExpr) for e in parts):
        return False
    return all(_is_uniform(symbols[e.position]) for e in parts if isinstance(e, AffineSymExpr))


def _is_uniform(symbol: SSAValue) -> bool:
    if isinstance(symbol.type, IndexType) or array_type(symbol).rank == 0:
        return True
    op = symbol.owner
    return isinstance(op, tile.BroadcastOp) and array_type(op.operands[0]).rank == 0


def location_of(op: Operation) -> SourceLocation | None:
    """The user's line of an operation."""
    at = op.location
    if not isinstance(at, FileLineColLoc):
        return None
    return SourceLocation(at.filename.data, at.line.data, at.column.data)


def run_checked(kernel: tile.KernelOp, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run a kernel as `array.call` does: inputs in order, fresh outputs for `out` refs, copies for `inout`."""
    pending = iter(inputs)
    arrays: list[Tensor] = []
    results: list[Tensor] = []
    for ref, effect in zip(kernel.refs, kernel.effects, strict=True):
        type = tile.ref_type(ref)
        given = poison(type.shape, type.dtype) if effect == tile.OUT else next(pending)
        array = given.copy() if effect == tile.INOUT else given
        arrays.append(array)
        if effect != tile.IN:
            results.append(array)
    CheckedInterpreter().run_kernel(kernel, arrays)
    return results
