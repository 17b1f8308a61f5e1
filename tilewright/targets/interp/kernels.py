"""Tile kernels on the interpreter, with a check that native code leaves out: an element that a kernel names by an
integer must be inside its array (lanes of tiles and windows may reach beyond, they are masked)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import FileLineColLoc, IndexType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineSymExpr

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.errors import OutOfBoundsError, SourceLocation
from tilewright.semantics.tile import Interpreter, KernelAssertion, Tensor, Values, evaluate_map, poison


class CheckedInterpreter(Interpreter):
    """Raises OutOfBoundsError, at the user's line, for elements outside their array."""

    def run_op(self, op: Operation, values: Values) -> Sequence[Any]:
        if isinstance(op, tile.LoadOp):
            _check(op, op.source, list(op.symbols), values)
        elif isinstance(op, tile.StoreOp):
            _check(op, op.destination, list(op.symbols), values)
        try:
            return super().run_op(op, values)
        except KernelAssertion as error:
            error.location = error.location or location_of(op)
            raise


def _check(op: Any, ref: SSAValue, symbols: list[SSAValue], values: Values) -> None:
    shape = tile.ref_type(ref).shape
    map = op.map.data
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
    for ref, effect in zip(kernel.refs, kernel.effect_names, strict=True):
        type = tile.ref_type(ref)
        given = poison(type.shape, type.dtype) if effect == tile.OUT else next(pending)
        array = given.copy() if effect == tile.INOUT else given
        arrays.append(array)
        if effect != tile.IN:
            results.append(array)
    CheckedInterpreter().run_kernel(kernel, arrays)
    return results
