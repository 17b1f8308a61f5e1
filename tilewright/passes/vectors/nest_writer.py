"""Writes the body of a loop nest: copies what its roots need, reading buffers where values have been stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.walks import producers_first
from tilewright.errors import CompilerBug
from tilewright.primitives import ArrayType


class Root(msgspec.Struct, eq=False):
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
        return None if self.reduce is None else self.reduce.axes


class NestWriter:
    """`places` maps refs and index scalars to the scheduled kernel's, `buffers` tile values to where they are stored;
    `readable` indicates whether a value's buffer is filled before this nest runs."""

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
        value = self.value(root.value) if root.reduce is None else self._copy(root.reduce)[0]
        if root.buffer is not None:
            store = tile.StoreOp(value=value, destination=root.buffer, map=identity_map(value))
            self.block.add_op(store)

    def value(self, old: SSAValue) -> SSAValue:
        if is_place(old):
            return self.places[old]
        for needed in producers_first([old], self._copied_operands, self.values):
            self._write(needed)
        return self.values[old]

    def _copied_operands(self, old: SSAValue) -> Sequence[SSAValue]:
        """The tiles that the copy of a value's operation takes; of a value that is read from a buffer, none."""
        op = old.owner
        if self.readable(old) or not isinstance(op, Operation) or _is_read_from_buffers(op):
            return ()
        return [operand for operand in op.operands if not is_place(operand)]

    def _write(self, old: SSAValue) -> None:
        """Read a value from its buffer, or compute it from operands that have been written."""
        op = old.owner
        if self.readable(old):
            load = tile.LoadOp(source=self.buffers[old], map=identity_map(old), result=old.type)
            self.block.add_op(load)
            self.values[old] = load.result
        elif isinstance(op, tile.ConcatOp):
            self._joined(op)
        elif isinstance(op, tile.ReshapeOp) and not is_unit_reshape(op):
            self._reshaped(op)
        elif isinstance(op, Operation):
            self.values.update(zip(op.results, self._copy(op), strict=True))
        else:
            raise CompilerBug("a block argument that is not readable")

    def _copy(self, op: Operation) -> Sequence[SSAValue]:
        operands = [self.value(o) for o in op.operands]
        copy = op.clone()
        copy.operands = operands
        self.block.add_op(copy)
        return copy.results

    def _reshaped(self, op: tile.ReshapeOp) -> None:
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
        load = tile.LoadOp(source=source, map=map, result=op.results[0].type)
        self.block.add_op(load)
        self.values[op.results[0]] = load.result

    def _joined(self, op: tile.ConcatOp) -> None:
        """A concatenated tile chooses between masked reads of its operands' buffers."""
        axis, result = op.axis, array_type(op.results[0])
        position = tile.IotaOp(
            map=AffineMap(len(result.shape), 0, (AffineExpr.dimension(axis),)),
            result=tensor(ArrayType(result.shape, dtypes.i64)),
        )
        self.block.add_op(position)
        start = sum(array_type(o).shape[axis] for o in op.operands)
        chosen: SSAValue | None = None
        for operand in reversed(op.operands):
            start -= array_type(operand).shape[axis]
            shift = [AffineExpr.dimension(d) for d in range(len(result.shape))]
            shift[axis] = shift[axis] - start
            map = AffineMap(len(result.shape), 0, tuple(shift))
            load = tile.LoadOp(source=self.buffers[operand], map=map, fill=0, result=op.results[0].type)
            self.block.add_op(load)
            if chosen is None:
                chosen = load.result
                continue
            limit = tile.FullOp(value=start + array_type(operand).shape[axis], result=position.result.type)
            less = tile.MapOp(
                arguments=[position.result, limit.result],
                fn="less",
                outputs=[tensor(ArrayType(result.shape, dtypes.bool_))],
            )
            select = tile.MapOp(
                arguments=[less.results[0], load.result, chosen], fn="select", outputs=[load.result.type]
            )
            self.block.add_ops([limit, less, select])
            chosen = select.results[0]
        if chosen is None:
            raise CompilerBug("a concatenation of nothing")
        self.values[op.results[0]] = chosen


_PLACES = frozenset((tile.RefType, IndexType))


def is_place(value: SSAValue) -> bool:
    """Refs and index scalars, as opposed to tiles."""
    return type(value.type) in _PLACES


def _is_read_from_buffers(op: Operation) -> bool:
    """Whether a nest computes an operation by reading its operands' buffers at other coordinates."""
    return isinstance(op, tile.ConcatOp) or (isinstance(op, tile.ReshapeOp) and not is_unit_reshape(op))


def is_unit_reshape(op: Operation) -> bool:
    if not isinstance(op, tile.ReshapeOp):
        return False
    source, result = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    return [n for n in source if n != 1] == [n for n in result if n != 1]


def identity_map(value: SSAValue) -> AffineMap:
    rank = array_type(value).rank
    return AffineMap(rank, 0, tuple(AffineExpr.dimension(d) for d in range(rank)))
