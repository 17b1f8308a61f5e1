"""The definition of every `tile` operation in NumPy, and the interpreter of tile kernels.

Undefined lanes (loads outside an array without `fill`) hold a poison pattern, so that a kernel which lets them reach
its result shows it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import AffineBinaryOpExpr, AffineBinaryOpKind, AffineConstantExpr, AffineDimExpr

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dialects.scheduled import tile_order
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug, TilewrightError
from tilewright.semantics import array as array_semantics

Tensor = np.ndarray[Any, Any]
Values = dict[SSAValue, Any]


class KernelAssertion(TilewrightError):
    """A `tw.assert_` in a kernel failed."""

    code = "TW0407"


def poison(shape: Sequence[int], dtype: DType) -> Tensor:
    """The value of undefined lanes: NaN, or the largest value of an exact type."""
    value = float("nan") if dtype.is_float else dtype.highest
    return np.full(shape, value, dtype.numpy)


def evaluate_map(map: AffineMap, shape: Sequence[int], symbols: Sequence[Any]) -> list[Tensor]:
    """The map's results at every lane of a tile, each an i64 array of the tile's shape."""
    grids = list(np.indices(tuple(shape), dtype=np.int64)) if shape else []
    lanes = [np.asarray(s).astype(np.int64) for s in symbols]
    return [np.broadcast_to(_evaluate(e, grids, lanes), tuple(shape)) for e in map.results]


def _evaluate(expression: AffineExpr, dims: Sequence[Any], symbols: Sequence[Any]) -> Any:
    """The value of an affine expression: arrays of 64-bit integers, or Python integers where its operands are."""
    if isinstance(expression, AffineConstantExpr):
        return expression.value
    if isinstance(expression, AffineBinaryOpExpr):
        left, right = _evaluate(expression.lhs, dims, symbols), _evaluate(expression.rhs, dims, symbols)
        match expression.kind:
            case AffineBinaryOpKind.Add:
                return left + right
            case AffineBinaryOpKind.Mul:
                return left * right
            case AffineBinaryOpKind.FloorDiv:
                return left // right
            case AffineBinaryOpKind.Mod:
                return left % right
            case _:
                return -(-left // right)
    if isinstance(expression, AffineDimExpr):
        return dims[expression.position]
    return symbols[expression.position]  # type: ignore[attr-defined]  the only kind left


def evaluate_number(map: AffineMap, symbols: Sequence[Any]) -> int:
    """The only result of a map without dims, as a Python integer: loops ask for it at each operation."""
    (expression,) = map.results
    return int(_evaluate(expression, (), [int(symbol) for symbol in symbols]))


def inside_array(coordinates: Sequence[Tensor], shape: Sequence[int], lanes: Sequence[int]) -> Tensor:
    """Which lanes of a tile are elements of an array."""
    inside = np.ones(tuple(lanes), bool)
    for coordinate, size in zip(coordinates, shape, strict=True):
        inside = inside & (coordinate >= 0) & (coordinate < size)
    return inside


def load(source: Tensor, map: AffineMap, tile_type: Any, symbols: Sequence[Any], fill: Any) -> Tensor:
    coordinates = evaluate_map(map, tile_type.shape, symbols)
    inside = inside_array(coordinates, source.shape, tile_type.shape)
    result = poison(tile_type.shape, tile_type.dtype)
    if fill is not None:
        result[...] = fill
    if source.ndim == 0:
        return np.full(tile_type.shape, source, source.dtype)
    result[inside] = source[tuple(c[inside] for c in coordinates)]
    return result


def store(value: Tensor, destination: Tensor, map: AffineMap, symbols: Sequence[Any]) -> None:
    coordinates = evaluate_map(map, value.shape, symbols)
    inside = inside_array(coordinates, destination.shape, value.shape)
    if destination.ndim == 0:
        destination[...] = value.reshape(-1)[-1]
        return
    destination[tuple(c[inside] for c in coordinates)] = value[inside]


class Interpreter:
    """Runs tile kernels on NumPy arrays, which are written in place."""

    def run_kernel(self, kernel: tile.KernelOp, arrays: Sequence[Tensor]) -> None:
        """Run all grid points in row-major order. `arrays` are the refs in order."""
        refs = dict(zip(kernel.refs, arrays, strict=True))
        for point in itertools.product(*(range(n) for n in kernel.grid)):
            self.run_point(kernel, point, dict(refs))

    def run_point(self, kernel: tile.KernelOp, point: Sequence[int], values: Values) -> None:
        """Run one point; `values` are the refs."""
        values.update(zip(kernel.indices, point, strict=True))
        self.run_block(kernel.body.block, values)

    def run_block(self, block: Block, values: Values) -> list[Any]:
        """Run a block whose arguments are already in `values`; gives the terminator's operands."""
        for op in block.ops:
            if isinstance(op, tile.YieldOp):
                return [values[o] for o in op.operands]
            with np.errstate(all="ignore"):
                results = self.run_op(op, values)
            values.update(zip(op.results, results, strict=True))
        raise CompilerBug("a block without a terminator")

    def run_op(self, op: Operation, values: Values) -> Sequence[Any]:
        operands = [values[o] for o in op.operands]
        if isinstance(op, tile.TileOp):
            return array_semantics.apply(op.primitive, operands, op.attributes_of())
        if isinstance(op, tile.LoadOp):
            fill = None if op.fill is None else op.fill
            return [load(operands[0], op.map, array_type(op.result), operands[1:], fill)]
        if isinstance(op, tile.StoreOp):
            store(operands[0], operands[1], op.map, operands[2:])
            return []
        if isinstance(op, tile.DotOp):
            return [dot(*operands)]
        if isinstance(op, tile.FullOp):
            type = array_type(op.result)
            return [np.full(type.shape, op.value, type.dtype.numpy)]
        if isinstance(op, tile.IotaOp):
            return evaluate_map(op.map, array_type(op.result).shape, operands)
        if isinstance(op, tile.FillPaddingOp):
            return [fill_padding(op, operands)]
        if isinstance(op, tile.RelayoutOp):
            return operands
        if isinstance(op, tile.ZoneOp):
            return []
        if isinstance(op, tile_order.PointOp):
            return op.order.point(evaluate_number(op.map, operands))
        return self._run_control(op, operands, values)

    def _run_control(self, op: Operation, operands: list[Any], values: Values) -> Sequence[Any]:
        if isinstance(op, tile.ForOp):
            carried = [values[o] for o in op.initial]
            for trip in range(_trips(op, [values[s] for s in op.symbols])):
                values.update(zip(op.body.block.args, [trip, *carried], strict=True))
                carried = self.run_block(op.body.block, values)
            return carried
        if isinstance(op, tile.IfOp):
            return self.run_block((op.then if operands[0] else op.otherwise).block, values)
        if isinstance(op, tile.PrintOp):
            print(op.label, *operands, file=sys.stderr)
            return []
        if isinstance(op, tile.AssertOp):
            if not np.all(operands[0]):
                raise KernelAssertion(op.message)
            return []
        raise CompilerBug(f"no semantics for {op.name}")


def _trips(op: tile.ForOp, symbols: Sequence[Any]) -> int:
    most = op.trips
    return most if op.end is None else min(most, evaluate_number(op.end, symbols))


def dot(left: Tensor, right: Tensor, accumulator: Tensor) -> Tensor:
    """`accumulator + left @ right` in the accumulator's type."""
    return accumulator + np.matmul(left.astype(accumulator.dtype), right.astype(accumulator.dtype))


def fill_padding(op: tile.FillPaddingOp, operands: Sequence[Any]) -> Tensor:
    source, *symbols = operands
    (position,) = evaluate_map(op.map, source.shape, symbols)
    value = np.asarray(op.value).astype(source.dtype)
    return np.where(position >= op.limit, value, source)


def run_call(kernel: tile.KernelOp, inputs: Sequence[Tensor]) -> list[Tensor]:
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
    Interpreter().run_kernel(kernel, arrays)
    return results
