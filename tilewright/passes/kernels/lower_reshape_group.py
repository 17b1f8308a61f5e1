"""Tile kernels that copy an array to other pages: reshapes with transposes around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import msgspec
from xdsl.ir import BlockArgument, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import schedules
from tilewright.cost.cores.tiles import even_pages, loop_extents
from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import yielded
from tilewright.errors import CompilerBug
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.cores.affine_expressions import divided, plus, remainder, times
from tilewright.passes.cores.page_windows import Sum
from tilewright.passes.kernels.tile_builder import TileBuilder
from tilewright.primitives import ArrayType

# Pages along the last dim of a tile that is wider than a loop's would be: two of them have room in every core.
_WIDEST_PAGES = 32


class ReshapePlan(msgspec.Struct, frozen=True):
    """Tile extents of the result, and where its elements come from: dims are places in a tile, symbols its tile's
    coordinates."""

    shape: tuple[int, ...]
    extents: tuple[int, ...]
    source: tuple[AffineExpr, ...]

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(-(-n // e) for n, e in zip(self.shape, self.extents, strict=True))


def reshape_schedule(group: array.FusedOp, grid: CoreGrid) -> schedules.Reshape:
    """The largest tile whose elements are in the source without a division, or a wider one, if there is one: of whole
    pages, it is copied page by page."""
    (root,) = yielded(group.body.block)
    shape = array_type(root).shape
    first = loop_extents(shape, grid)
    candidates = (*_smaller(shape, first), *_wider(shape, first))
    found = (extents for extents in candidates if _sources(root, shape, extents) is not None)
    return schedules.Reshape(tile=next(found, first))


def reshape_plan(group: array.FusedOp, schedule: schedules.Reshape) -> ReshapePlan:
    """The tile of a group by its schedule, and the source of its elements."""
    (root,) = yielded(group.body.block)
    shape, extents = array_type(root).shape, schedule.tile
    found = _sources(root, shape, extents)
    if found is not None:
        return ReshapePlan(shape, extents, tuple(map(_expression, found)))
    return ReshapePlan(shape, extents, tuple(_divided_sources(root, shape, extents)))


def _smaller(shape: Sequence[int], first: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Tile extents with fewer pages along the last two dims."""
    rows = range(-(-first[-2] // TILE), 0, -1) if len(shape) > 1 else (1,)
    for columns in range(-(-first[-1] // TILE), 0, -1):
        for high in rows:
            extents = list(first)
            extents[-1] = min(shape[-1], columns * TILE)
            if len(shape) > 1:
                extents[-2] = min(shape[-2], even_pages(high, high) * TILE)
            yield tuple(extents)


def _wider(shape: Sequence[int], first: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Tile extents with one row of pages, and more of them along the last dim."""
    for columns in range(-(-first[-1] // TILE) + 1, min(_WIDEST_PAGES, -(-shape[-1] // TILE)) + 1):
        rows = [min(first[-2], TILE)] if len(shape) > 1 else []
        yield (*first[:-2], *rows, min(shape[-1], columns * TILE))


def _sources(root: SSAValue, shape: Sequence[int], extents: Sequence[int]) -> list[Sum] | None:
    """Source coordinates of elements, as sums; None if a coordinate would need a division."""
    at = [
        Sum(0, ((d, 1),) if extent > 1 else (), ((d, extent),) if extent < size else ())
        for d, (extent, size) in enumerate(zip(extents, shape, strict=True))
    ]
    most = {d: extent - 1 for d, extent in enumerate(extents)}
    tiles = {d: -(-size // extent) - 1 for d, (size, extent) in enumerate(zip(shape, extents, strict=True))}
    for op in _chain(root):
        if isinstance(op, array.TransposeOp):
            at = _turned(op, at)
            continue
        sources = _split(at, array_type(op.results[0]).shape, array_type(op.operands[0]).shape, most, tiles)
        if sources is None:
            return None
        at = sources
    return at


def _chain(root: SSAValue) -> Iterator[array.TransposeOp | array.ReshapeOp]:
    """The operations of the group, from its result to its argument."""
    value = root
    while not isinstance(value, BlockArgument):
        op = value.owner
        if not isinstance(op, array.TransposeOp | array.ReshapeOp):
            raise CompilerBug(f"`{op}` in a group that copies a reshape")
        yield op
        value = op.operands[0]


def _turned(op: array.TransposeOp, at: Sequence[Any]) -> list[Any]:
    inner: list[Any] = [None] * len(at)
    for place, source in enumerate(op.permutation):
        inner[source] = at[place]
    return inner


def _split(
    at: Sequence[Sum], shape: Sequence[int], source: Sequence[int], most: dict[int, int], tiles: dict[int, int]
) -> list[Sum] | None:
    linear, below = Sum(), 1
    for own, size in zip(reversed(at), reversed(shape), strict=True):
        linear = linear.plus(own, below)
        below *= size
    found: list[Sum] = []
    for size in reversed(source[1:]):
        low = Sum(
            linear.constant % size,
            tuple((d, c) for d, c in linear.dims if c % size),
            tuple((s, c) for s, c in linear.symbols if c % size),
        )
        highest = low.constant + sum(c * most[d] for d, c in low.dims) + sum(c * tiles[s] for s, c in low.symbols)
        if highest >= size:
            return None
        found.insert(0, low)
        linear = Sum(
            linear.constant // size,
            tuple((d, c // size) for d, c in linear.dims if c % size == 0),
            tuple((s, c // size) for s, c in linear.symbols if c % size == 0),
        )
    # Beyond the outermost dim there is nothing in either array: the rows of a last tile are masked in both.
    return [linear, *found] if source else found


def _expression(found: Sum) -> AffineExpr:
    result = AffineExpr.constant(found.constant)
    for position, coefficient in found.dims:
        result = plus(result, times(AffineExpr.dimension(position), coefficient))
    for position, coefficient in found.symbols:
        result = plus(result, times(AffineExpr.symbol(position), coefficient))
    return result


def _divided_sources(root: SSAValue, shape: Sequence[int], extents: Sequence[int]) -> list[AffineExpr]:
    at = [
        plus(AffineExpr.dimension(d), times(AffineExpr.symbol(d), extent) if extent < size else 0)
        for d, (extent, size) in enumerate(zip(extents, shape, strict=True))
    ]
    for op in _chain(root):
        if isinstance(op, array.TransposeOp):
            at = _turned(op, at)
        else:
            linear = AffineExpr.constant(0)
            for own, size in zip(at, array_type(op.results[0]).shape, strict=True):
                linear = plus(times(linear, size), own)
            source = array_type(op.operands[0]).shape
            quotients = [divided(linear, prod(source[d + 1 :])) for d in range(len(source))]
            at = [
                quotient if prod(source[:d]) == 1 else remainder(quotient, source[d])
                for d, quotient in enumerate(quotients)
            ]
    return at


def lower_reshape_group(
    plan: ReshapePlan, builder: TileBuilder, indices: Sequence[SSAValue], outputs: Sequence[SSAValue]
) -> None:
    """Load a tile from where its elements are, and store it."""
    (source,) = builder.refs.values()
    rank = len(plan.shape)
    type = ArrayType(plan.extents, tile.ref_type(source).dtype)
    load = tile.LoadOp(source=source, symbols=indices, map=AffineMap(rank, rank, plan.source), result=tensor(type))
    builder.block.add_op(load)
    target = tuple(
        plus(AffineExpr.dimension(d), times(AffineExpr.symbol(d), extent)) for d, extent in enumerate(plan.extents)
    )
    store = tile.StoreOp(value=load.result, destination=outputs[0], symbols=indices, map=AffineMap(rank, rank, target))
    builder.block.add_op(store)
