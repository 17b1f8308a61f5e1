"""Shared code of the emitters of ordered operations: the tiles of a nest in memory, and loops over its lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from xdsl.ir import SSAValue

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.passes.affine_access import Access, access_of, clip_of
from tilewright.passes.vectors.ordered_accesses import ORDERED, Ordered, axis_of, indices_of
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.elements import Elements, plain
from tilewright.targets.cpu.loops import i64, loop
from tilewright.targets.cpu.past_caches import outgrows_cache
from tilewright.targets.llvm.values import Builder, Value

Index = dict[int, Value]


class OrderedNest(msgspec.Struct, frozen=True):
    """An ordered operation with its operands and results in memory.

    Attributes:
        axis: the dim along which it works; the others are `beside` it.
        shape: the first operand's.
        extents: how far the elements of each dim are in their arrays; a constant where they all do.
        sources: the operands; None for one that is each element's index along the axis.
        targets: the results; None for one that nothing reads.
        streams: whether the first operand is an array that does not stay in the second-level cache.
    """

    context: FunctionContext
    op: Ordered
    axis: int
    shape: tuple[int, ...]
    extents: tuple[Value, ...]
    sources: tuple[Elements | None, ...]
    targets: tuple[Elements | None, ...]
    streams: bool

    @staticmethod
    def of(context: FunctionContext, nest: scheduled.NestOp, op: Ordered) -> OrderedNest:
        shape = array_type(op.operands[0]).shape
        stores = {s.value: s for s in nest.body.block.ops if isinstance(s, tile.StoreOp)}
        loads = [o.owner if isinstance(o.owner, tile.LoadOp) else None for o in op.operands]
        read = [None if load is None else _access(op, load.source, load, load.result) for load in loads]
        written = [
            None if (store := stores.get(r)) is None else _access(op, store.destination, store, r) for r in op.results
        ]
        return OrderedNest(
            context,
            op,
            axis_of(op),
            shape,
            tuple(_extents(context, shape, [a for a in (*read, *written) if a is not None])),
            tuple(None if a is None else Elements.of(context, a) for a in read),
            tuple(None if a is None else Elements.of(context, a) for a in written),
            read[0] is not None and outgrows_cache(read[0], context.machine),
        )

    @property
    def builder(self) -> Builder:
        return self.context.builder

    @property
    def dtype(self) -> DType:
        """The type of the first operand's elements."""
        return plain(array_type(self.op.operands[0]).dtype)

    @property
    def beside(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.shape)) if d != self.axis)

    @property
    def is_along_vectors(self) -> bool:
        """Whether neighbours along the axis are neighbours in memory, and not lines next to each other."""
        return self.axis == len(self.shape) - 1

    def for_each(self, dims: Sequence[int], body: Callable[[Index], None], index: Index | None = None) -> None:
        """Run `body` for every position along some dims."""
        index = index or {}
        if not dims:
            body(index)
            return
        with loop(self.builder, i64(0), self.extents[dims[0]], 1, f"d{dims[0]}") as position:
            self.for_each(dims[1:], body, index | {dims[0]: position})


def ordered_op(nest: scheduled.NestOp) -> Ordered | None:
    """The ordered operation of a nest, if it holds one."""
    return next((op for op in nest.body.block.ops if isinstance(op, ORDERED)), None)


def element_at(tile: Elements, index: Index) -> Elements:
    """The tile from a position on."""
    for dim, position in index.items():
        tile = tile.at(dim, position)
    return tile


def _access(op: Ordered, ref: SSAValue, access: tile.LoadOp | tile.StoreOp, value: SSAValue) -> Access:
    at = indices_of(op, value)
    return access_of(ref, access.map, list(access.symbols), at, dict.fromkeys(access.symbols, False))


def _extents(context: FunctionContext, shape: Sequence[int], accesses: Sequence[Access]) -> list[Value]:
    """The tile's extents, cut where an access passes the end of its array."""
    extents: list[Value] = [i64(n) for n in shape]
    for found in accesses:
        for form, size in zip(found.forms, found.type.shape, strict=True):
            clip = clip_of(form, found.symbols, size, found.lanes)
            if clip is not None and shape[clip.dim] > 1:
                extents[clip.dim] = context.cut(extents[clip.dim], clip.limit, clip.start, clip.symbols)
    return extents
