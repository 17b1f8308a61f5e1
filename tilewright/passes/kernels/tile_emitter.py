"""Appends tile operations to a block. Tiles carry named axes; a map broadcasts its operands to the union of theirs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineMap

from tilewright import dtypes, ops
from tilewright.dialects import tile
from tilewright.dialects.base import PlainOp, array_type, tensor
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

    def new(self, op: PlainOp) -> SSAValue:
        """Append an operation with one result."""
        self.block.add_op(op)
        return op.results[0]

    def map(self, fn: str, *operands: Tile, ftz: bool = False, contract: bool = False) -> Tile:
        """Apply a scalar function, broadcasting operands to the union of their axes. `ftz`: subnormal results may be
        0. `contract`: it may be fused with other such functions, a multiplication and a sum."""
        axes = ordered(axis for o in operands for axis in o.axes)
        values = [self.expand(o, axes) for o in operands]
        types = [array_type(v) for v in values]
        result = ArrayType(types[0].shape, ops.FUNCTIONS[fn].result_type([t.dtype for t in types]))
        return Tile(
            self.new(tile.MapOp(arguments=values, fn=fn, ftz=ftz, contract=contract, outputs=[tensor(result)])), axes
        )

    def expand(self, operand: Tile, axes: tuple[Axis, ...]) -> SSAValue:
        """The operand broadcast to `axes`, a superset of its own."""
        if operand.axes == axes:
            return operand.value
        positions = tuple(axes.index(axis) for axis in operand.axes)
        type = ArrayType(tuple(a.extent for a in axes), array_type(operand.value).dtype)
        return self.new(tile.BroadcastOp(arguments=[operand.value], axes=positions, outputs=[tensor(type)]))

    def cast(self, operand: Tile, dtype: DType) -> Tile:
        type = array_type(operand.value)
        if type.dtype == dtype:
            return operand
        return Tile(
            self.new(tile.CastOp(arguments=[operand.value], outputs=[tensor(ArrayType(type.shape, dtype))])),
            operand.axes,
        )

    def full(self, value: float | int | bool, dtype: DType, axes: tuple[Axis, ...] = ()) -> Tile:
        plain: float | int = float(value) if dtype.is_float else int(value)
        type = ArrayType(tuple(a.extent for a in axes), dtype)
        return Tile(self.new(tile.FullOp(value=plain, result=tensor(type))), axes)

    def position(self, linear: Linear) -> Tile:
        """The value of a coordinate at each lane, as i64."""
        axes = ordered(linear.axes)
        builder = MapBuilder(axes)
        map = builder.map((linear,))
        type = ArrayType(tuple(a.extent for a in axes), dtypes.i64)
        symbols = self._symbols(builder, axes)
        return Tile(self.new(tile.IotaOp(symbols=symbols, map=map, result=tensor(type))), axes)

    def _symbols(self, builder: MapBuilder, axes: tuple[Axis, ...]) -> list[SSAValue]:
        return [self.expand(s, axes) if isinstance(s, Tile) else s for s in builder.symbols]

    def load(self, ref: SSAValue, coordinates: Coordinates, fill: float | int | None = None) -> Tile:
        axes = axes_of(coordinates)
        builder = MapBuilder(axes)
        map = builder.map(coordinates)
        type = tensor(ArrayType(tuple(a.extent for a in axes), tile.ref_type(ref).dtype))
        symbols = self._symbols(builder, axes)
        return Tile(self.new(tile.LoadOp(source=ref, symbols=symbols, map=map, fill=fill, result=type)), axes)

    def store(self, value: Tile, ref: SSAValue, coordinates: Coordinates) -> None:
        axes = ordered((*value.axes, *axes_of(coordinates)))
        builder = MapBuilder(axes)
        map = builder.map(coordinates)
        stored = self.expand(value, axes)
        symbols = self._symbols(builder, axes)
        self.block.add_op(tile.StoreOp(value=stored, destination=ref, symbols=symbols, map=map))

    def fill_padding(self, operand: Tile, position: Linear, limit: int, value: float | int | bool) -> Tile:
        """`value` where `position >= limit`."""
        axes = ordered((*operand.axes, *position.axes))
        source = self.expand(operand, axes)
        builder = MapBuilder(axes)
        type = array_type(source)
        plain: float | int = float(value) if type.dtype.is_float else int(value)
        map = builder.map((position,))
        symbols = self._symbols(builder, axes)
        filled = tile.FillPaddingOp(
            source=source, symbols=symbols, map=map, limit=limit, value=plain, result=tensor(type)
        )
        return Tile(self.new(filled), axes)

    def reduce(self, operand: Tile, fn: str, axes: Sequence[Axis]) -> Tile:
        """Reduce over tile axes."""
        kept = tuple(a for a in operand.axes if a not in axes)
        positions = tuple(i for i, a in enumerate(operand.axes) if a in axes)
        type = ArrayType(tuple(a.extent for a in kept), array_type(operand.value).dtype)
        return Tile(
            self.new(tile.ReduceOp(arguments=[operand.value], fn=fn, axes=positions, outputs=[tensor(type)])), kept
        )

    def dot(self, left: Tile, right: Tile, accumulator: Tile, axes: tuple[Axis, Axis, Axis], atom: str = "") -> Tile:
        """`accumulator + left @ right` over axes (row, column, depth), by the `atom` of that name."""
        row, column, depth = axes
        left_value = self.arranged(left, (row, depth))
        right_value = self.arranged(right, (depth, column))
        acc = self.arranged(accumulator, (row, column))
        op = tile.DotOp(left=left_value, right=right_value, accumulator=acc, atom=atom or None, result=acc.type)
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
        return self.new(tile.TransposeOp(arguments=[value], permutation=permutation, outputs=[tensor(type)]))

    def drop(self, operand: Tile, axes: Sequence[Axis]) -> Tile:
        """The operand without the given axes, which have extent 1."""
        if not axes:
            return operand
        kept = tuple(a for a in operand.axes if a not in axes)
        type = ArrayType(tuple(a.extent for a in kept), array_type(operand.value).dtype)
        return Tile(self.new(tile.ReshapeOp(arguments=[operand.value], outputs=[tensor(type)])), kept)

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
            block.add_op(tile.YieldOp(arguments=values))
        last: AffineMap | None = None
        symbols: list[SSAValue] = []
        if end is not None:
            position, step = end
            builder = MapBuilder(())
            start = builder.expression(position)
            trip = start if step == 1 else (start + (step - 1)) // step
            symbols = self._symbols(builder, ())
            last = AffineMap(0, len(symbols), (trip,))
        initial = [*symbols, *(t.value for t in carried)]
        op = tile.ForOp(arguments=initial, trips=trips, end=last, outputs=types, body=Region(block))
        self.block.add_op(op)
        return [Tile(r, t.axes) for r, t in zip(op.results, carried, strict=True)]

    def branch(self, likely: Tile, then: Callable[[], Tile], otherwise: Callable[[], Tile]) -> Tile:
        """An `if` on a condition that is nearly always true; both regions give a tile over the same axes."""
        results: list[Tile] = []
        regions: list[Region] = []
        for body in (then, otherwise):
            with self.within(Block()):
                results.append(body())
                self.block.add_op(tile.YieldOp(arguments=[results[-1].value]))
                regions.append(Region(self.block))
        then_region, otherwise_region = regions
        op = tile.IfOp(
            condition=likely.value,
            likely=True,
            outputs=[results[0].value.type],
            then=then_region,
            otherwise=otherwise_region,
        )
        self.block.add_op(op)
        return Tile(op.results[0], results[0].axes)
