"""Writes the body of a loop nest: copies what its roots need, reading buffers where values have been stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import AffineMapAttr, IndexType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, tensor
from tilewright.errors import CompilerBug
from tilewright.primitives import ArrayType


@dataclass(eq=False)
class Root:
    """Something that must happen: store `value` (reduced first when `reduce` is set) to a ref."""

    value: SSAValue
    stage: int
    reduce: tile.ReduceOp | None = None
    store: tile.StoreOp | None = None
    buffer: SSAValue | None = None
    effect: Operation | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return array_type(self.value).shape

    @property
    def reduced(self) -> tuple[int, ...] | None:
        return None if self.reduce is None else self.reduce.attributes_of()["axes"]


class NestWriter:
    """`places` maps refs and index scalars to the scheduled kernel's, `buffers` tile values to where they are stored;
    `readable` tells whether a value's buffer is filled before this nest runs."""

    def __init__(
        self,
        block: Block,
        places: Mapping[SSAValue, SSAValue],
        buffers: Mapping[SSAValue, SSAValue],
        readable: Callable[[SSAValue], bool],
    ) -> None:
        self.block = block
        self.places = places
        self.buffers = buffers
        self.readable = readable
        self.values: dict[SSAValue, SSAValue] = {}

    def add(self, root: Root) -> None:
        if root.effect is not None:
            self._copy(root.effect)
            return
        if root.store is not None:
            self._copy(root.store)
            return
        value = self._compute(root.value) if root.reduce is None else self._copy(root.reduce)[0]
        if root.buffer is not None:
            store = tile.StoreOp.make([value, root.buffer], {"map": AffineMapAttr(identity_map(value))}, [])
            self.block.add_op(store)

    def value(self, old: SSAValue) -> SSAValue:
        if is_place(old):
            return self.places[old]
        if old in self.values:
            return self.values[old]
        if self.readable(old):
            load = tile.LoadOp.make([self.buffers[old]], {"map": AffineMapAttr(identity_map(old))}, [old.type])
            self.block.add_op(load)
            self.values[old] = load.result
            return load.result
        return self._compute(old)

    def _compute(self, old: SSAValue) -> SSAValue:
        """The value computed here, even if it also has a buffer."""
        if old in self.values or self.readable(old):
            return self.value(old)
        op = old.owner
        if isinstance(op, tile.ReshapeOp) and not is_unit_reshape(op):
            return self._reshaped(op)
        if isinstance(op, tile.ConcatOp):
            return self._joined(op)
        if not isinstance(op, Operation):
            raise CompilerBug("a block argument that is not readable")
        self.values.update(zip(op.results, self._copy(op), strict=True))
        return self.values[old]

    def _copy(self, op: Operation) -> Sequence[SSAValue]:
        operands = [self.value(o) for o in op.operands]
        copy = op.clone()
        copy.operands = operands
        self.block.add_op(copy)
        return copy.results

    def _reshaped(self, op: tile.ReshapeOp) -> SSAValue:
        """A reshaped tile is read from its operand's row-major buffer: split the linear index."""
        source = self.buffers[op.operands[0]]
        shape, result = array_type(op.operands[0]).shape, array_type(op.results[0])
        linear: AffineExpr = AffineExpr.constant(0)
        for d, n in enumerate(result.shape):
            linear = linear * n + AffineExpr.dimension(d)
        coordinates: list[AffineExpr] = []
        below = 1
        for n in reversed(shape):
            coordinates.append((linear // below) % n)
            below *= n
        map = AffineMap(len(result.shape), 0, tuple(reversed(coordinates)))
        load = tile.LoadOp.make([source], {"map": AffineMapAttr(map)}, [op.results[0].type])
        self.block.add_op(load)
        self.values[op.results[0]] = load.result
        return load.result

    def _joined(self, op: tile.ConcatOp) -> SSAValue:
        """A concatenated tile chooses between masked reads of its operands' buffers."""
        axis, result = int(op.axis.value.data), array_type(op.results[0])
        position = tile.IotaOp.make(
            [],
            {"map": AffineMapAttr(AffineMap(len(result.shape), 0, (AffineExpr.dimension(axis),)))},
            [tensor(ArrayType(result.shape, dtypes.i64))],
        )
        self.block.add_op(position)
        start = sum(array_type(o).shape[axis] for o in op.operands)
        chosen: SSAValue | None = None
        for operand in reversed(op.operands):
            start -= array_type(operand).shape[axis]
            shift = [AffineExpr.dimension(d) for d in range(len(result.shape))]
            shift[axis] = shift[axis] - start
            map = AffineMapAttr(AffineMap(len(result.shape), 0, tuple(shift)))
            load = tile.LoadOp.make([self.buffers[operand]], {"map": map, "fill": 0}, [op.results[0].type])
            self.block.add_op(load)
            if chosen is None:
                chosen = load.result
                continue
            limit = tile.FullOp.make([], {"value": start + array_type(operand).shape[axis]}, [position.result.type])
            less = tile.MapOp.make(
                [position.result, limit.result], {"fn": "less"}, [tensor(ArrayType(result.shape, dtypes.bool_))]
            )
            select = tile.MapOp.make([less.results[0], load.result, chosen], {"fn": "select"}, [load.result.type])
            self.block.add_ops([limit, less, select])
            chosen = select.results[0]
        if chosen is None:
            raise CompilerBug("a concatenation of nothing")
        self.values[op.results[0]] = chosen
        return chosen


def is_place(value: SSAValue) -> bool:
    """Refs and index scalars, as opposed to tiles."""
    return isinstance(value.type, tile.RefType | IndexType)


def is_unit_reshape(op: Operation) -> bool:
    if not isinstance(op, tile.ReshapeOp):
        return False
    source, result = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    return [n for n in source if n != 1] == [n for n in result if n != 1]


def identity_map(value: SSAValue) -> AffineMap:
    rank = array_type(value).rank
    return AffineMap(rank, 0, tuple(AffineExpr.dimension(d) for d in range(rank)))
