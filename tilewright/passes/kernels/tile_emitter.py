"""Appends tile operations to a block. Tiles carry named axes; a map broadcasts its operands to the union of theirs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from xdsl.dialects.builtin import AffineMapAttr, IndexType
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineMap

from tilewright import dtypes, ops
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dtypes import DType
from tilewright.passes.kernels.indexing import Axis, Coordinates, Linear, MapBuilder, Tile, axes_of, ordered
from tilewright.primitives import ArrayType


class TileEmitter:
    """Appends tile operations to `block`."""

    def __init__(self, block: Block) -> None:
        self.block = block

    @contextmanager
    def within(self, block: Block) -> Generator[None]:
        """Append to the block of a region until the end of the `with`."""
        outer, self.block = self.block, block
        yield
        self.block = outer

    def new(self, cls: Any, operands: Sequence[SSAValue], attributes: Mapping[str, Any], type: ArrayType) -> SSAValue:
        """Append an operation with one result."""
        op = cls.make(operands, attributes, [tensor(type)])
        self.block.add_op(op)
        return op.results[0]

    def map(self, fn: str, *operands: Tile) -> Tile:
        """Apply a scalar function, broadcasting operands to the union of their axes."""
        axes = ordered(axis for o in operands for axis in o.axes)
        values = [self.expand(o, axes) for o in operands]
        types = [array_type(v) for v in values]
        result = ArrayType(types[0].shape, ops.FUNCTIONS[fn].result_type([t.dtype for t in types]))
        return Tile(self.new(tile.MapOp, values, {"fn": fn}, result), axes)

    def expand(self, operand: Tile, axes: tuple[Axis, ...]) -> SSAValue:
        """The operand broadcast to `axes`, a superset of its own."""
        if operand.axes == axes:
            return operand.value
        positions = tuple(axes.index(axis) for axis in operand.axes)
        type = ArrayType(tuple(a.extent for a in axes), array_type(operand.value).dtype)
        return self.new(tile.BroadcastOp, [operand.value], {"axes": positions}, type)

    def cast(self, operand: Tile, dtype: DType) -> Tile:
        type = array_type(operand.value)
        if type.dtype == dtype:
            return operand
        return Tile(self.new(tile.CastOp, [operand.value], {}, ArrayType(type.shape, dtype)), operand.axes)

    def full(self, value: float | int | bool, dtype: DType, axes: tuple[Axis, ...] = ()) -> Tile:
        plain: float | int = float(value) if dtype.is_float else int(value)
        type = ArrayType(tuple(a.extent for a in axes), dtype)
        return Tile(self.new(tile.FullOp, [], {"value": plain}, type), axes)

    def position(self, linear: Linear) -> Tile:
        """The value of a coordinate at each lane, as i64."""
        axes = ordered(linear.axes)
        builder = MapBuilder(axes)
        map = builder.map((linear,))
        type = ArrayType(tuple(a.extent for a in axes), dtypes.i64)
        symbols = self._symbols(builder, axes)
        return Tile(self.new(tile.IotaOp, symbols, {"map": AffineMapAttr(map)}, type), axes)

    def _symbols(self, builder: MapBuilder, axes: tuple[Axis, ...]) -> list[SSAValue]:
        return [self.expand(s, axes) if isinstance(s, Tile) else s for s in builder.symbols]

    def load(self, ref: SSAValue, coordinates: Coordinates, fill: float | int | None = None) -> Tile:
        axes = axes_of(coordinates)
        builder = MapBuilder(axes)
        attributes: dict[str, Any] = {"map": AffineMapAttr(builder.map(coordinates))}
        if fill is not None:
            attributes["fill"] = fill
        type = ArrayType(tuple(a.extent for a in axes), tile.ref_type(ref).dtype)
        symbols = self._symbols(builder, axes)
        return Tile(self.new(tile.LoadOp, [ref, *symbols], attributes, type), axes)

    def store(self, value: Tile, ref: SSAValue, coordinates: Coordinates) -> None:
        axes = ordered((*value.axes, *axes_of(coordinates)))
        builder = MapBuilder(axes)
        attributes = {"map": AffineMapAttr(builder.map(coordinates))}
        stored = self.expand(value, axes)
        self.block.add_op(tile.StoreOp.make([stored, ref, *self._symbols(builder, axes)], attributes, []))

    def fill_padding(self, operand: Tile, position: Linear, limit: int, value: float | int | bool) -> Tile:
        """`value` where `position >= limit`."""
        axes = ordered((*operand.axes, *position.axes))
        source = self.expand(operand, axes)
        builder = MapBuilder(axes)
        type = array_type(source)
        plain: float | int = float(value) if type.dtype.is_float else int(value)
        attributes = {"map": AffineMapAttr(builder.map((position,))), "limit": limit, "value": plain}
        symbols = self._symbols(builder, axes)
        return Tile(self.new(tile.FillPaddingOp, [source, *symbols], attributes, type), axes)

    def reduce(self, operand: Tile, fn: str, axes: Sequence[Axis]) -> Tile:
        """Reduce over tile axes."""
        kept = tuple(a for a in operand.axes if a not in axes)
        positions = tuple(i for i, a in enumerate(operand.axes) if a in axes)
        type = ArrayType(tuple(a.extent for a in kept), array_type(operand.value).dtype)
        return Tile(self.new(tile.ReduceOp, [operand.value], {"fn": fn, "axes": positions}, type), kept)

    def dot(self, left: Tile, right: Tile, accumulator: Tile, axes: tuple[Axis, Axis, Axis], atom: str = "") -> Tile:
        """`accumulator + left @ right` over axes (row, column, depth), by the `atom` of that name."""
        row, column, depth = axes
        left_value = self.arranged(left, (row, depth))
        right_value = self.arranged(right, (depth, column))
        acc = self.arranged(accumulator, (row, column))
        op = tile.DotOp.make([left_value, right_value, acc], {"atom": atom} if atom else {}, [acc.type])
        self.block.add_op(op)
        return Tile(op.results[0], (row, column))

    def arranged(self, operand: Tile, axes: tuple[Axis, ...]) -> SSAValue:
        """The operand with its dimensions in the given order (which need not be increasing), missing axes repeated."""
        full = ordered((*operand.axes, *axes))
        value = self.expand(operand, full)
        if full == axes:
            return value
        permutation = tuple(full.index(a) for a in axes)
        type = ArrayType(tuple(a.extent for a in axes), array_type(value).dtype)
        return self.new(tile.TransposeOp, [value], {"permutation": permutation}, type)

    def drop(self, operand: Tile, axes: Sequence[Axis]) -> Tile:
        """The operand without the given axes, which have extent 1."""
        if not axes:
            return operand
        kept = tuple(a for a in operand.axes if a not in axes)
        type = ArrayType(tuple(a.extent for a in kept), array_type(operand.value).dtype)
        return Tile(self.new(tile.ReshapeOp, [operand.value], {}, type), kept)

    def loop(
        self,
        trips: int,
        carried: Sequence[Tile],
        body: Callable[[SSAValue, list[Tile]], Sequence[Tile]],
        end: tuple[Linear, int] | None = None,
    ) -> list[Tile]:
        """A sequential loop; `body(counter, tiles)` gives the next tiles, over the same axes. With `end`, a position
        and a step, it ends before the first trip that starts at the position or beyond it."""
        types: list[Attribute] = [t.value.type for t in carried]
        block = Block(arg_types=[IndexType(), *types])
        inside = [Tile(arg, t.axes) for arg, t in zip(block.args[1:], carried, strict=True)]
        with self.within(block):
            results = body(block.args[0], inside)
            values = [self.expand(r, t.axes) for r, t in zip(results, carried, strict=True)]
            block.add_op(tile.YieldOp.make(values, {}, []))
        attributes: dict[str, Any] = {"trips": trips}
        symbols: list[SSAValue] = []
        if end is not None:
            position, step = end
            builder = MapBuilder(())
            start = builder.expression(position)
            trip = start if step == 1 else (start + (step - 1)) // step
            symbols = self._symbols(builder, ())
            attributes["end"] = AffineMapAttr(AffineMap(0, len(symbols), (trip,)))
        op = tile.ForOp.make([*symbols, *(t.value for t in carried)], attributes, types, [Region(block)])
        self.block.add_op(op)
        return [Tile(r, t.axes) for r, t in zip(op.results, carried, strict=True)]

    def branch(self, likely: Tile, then: Callable[[], Tile], otherwise: Callable[[], Tile]) -> Tile:
        """An `if` on a condition that is nearly always true; both regions give a tile over the same axes."""
        results: list[Tile] = []
        regions: list[Region] = []
        for body in (then, otherwise):
            with self.within(Block()):
                results.append(body())
                self.block.add_op(tile.YieldOp.make([results[-1].value], {}, []))
                regions.append(Region(self.block))
        op = tile.IfOp.make([likely.value], {"likely": True}, [results[0].value.type], regions)
        self.block.add_op(op)
        return Tile(op.results[0], results[0].axes)
