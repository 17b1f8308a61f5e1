"""Subscripts: which elements of an array (or of a tile) `a[i, k]`, `a[i, 0:64]`, `table[ids]` mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from types import EllipsisType
from typing import Any

import numpy as np
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import tensor
from tilewright.dtypes import DType
from tilewright.errors import (
    ArgumentError,
    DataDependentShapeError,
    DTypeError,
    IndexError_,
    OutOfBoundsError,
    ShapeError,
)
from tilewright.frontend.pyast_builder import KernelBuilder, Shape, Symbols, broadcast_shapes, spread_edges
from tilewright.frontend.pyast_reductions import edge_of
from tilewright.frontend.pyast_values import (
    Affine,
    Edge,
    Edges,
    Ref,
    TileIndex,
    TileValue,
    is_integer,
    no_edges,
    union_edges,
)
from tilewright.primitives import ArrayType
from tilewright.records import dataclass


@dataclass(frozen=True)
class Window:
    """`length` elements from `start`, `stride` apart: one dimension of the tile."""

    start: Affine
    length: int
    stride: int = 1


# What selects elements along one axis: a window, one element, or integer tiles (gather and scatter).
Coordinate = Window | Affine | TileValue


@dataclass(frozen=True)
class Access:
    """A tile of an array. `new_axes` are places of inserted axes in what the user sees."""

    ref: Ref
    coordinates: tuple[Coordinate, ...]
    shape: Shape
    edges: Edges
    new_axes: tuple[int, ...] = ()
    # The dimension of each window, and where the dimensions of integer tiles start.
    dims: tuple[int, ...] = field(default=())
    lanes_at: int = 0

    @property
    def may_leave(self) -> bool:
        """Whether a lane may be outside the array."""
        return any(self.edges) or any(isinstance(c, TileValue) for c in self.coordinates)


def access_of(ref: Ref, subscript: object) -> Access:
    """The meaning of an array subscript.

    Raises:
        IndexError_, OutOfBoundsError, ShapeError, DTypeError, DataDependentShapeError, ArgumentError: it is no tile.
    """
    items, new_axes_before = _completed(subscript, ref.type.rank, f"`{ref.name}`")
    coordinates = [_coordinate(ref, axis, item) for axis, item in enumerate(items)]
    lanes = [c for c in coordinates if isinstance(c, TileValue)]
    lane_shape = broadcast_shapes("index", [c.shape for c in lanes])
    lane_edges = _lane_edges(lanes, lane_shape)
    places = [n for n, c in enumerate(coordinates) if isinstance(c, TileValue)]
    scattered = bool(places) and places[-1] - places[0] + 1 != len(places)
    shape: list[int] = list(lane_shape) if scattered else []
    edges: list[tuple[Edge, ...]] = list(lane_edges[:-1]) if scattered else []
    whole: dict[Edge, None] = dict.fromkeys(lane_edges[-1])
    dims: list[int] = []
    lanes_at = 0
    for axis, coordinate in enumerate(coordinates):
        dims.append(len(shape))
        if isinstance(coordinate, Window):
            shape.append(coordinate.length)
            edges.append(edge_of(coordinate.start, coordinate.stride, coordinate.length, ref.type.shape[axis]))
        elif isinstance(coordinate, TileValue) and not scattered and axis == places[0]:
            lanes_at = len(shape)
            shape.extend(lane_shape)
            edges.extend(lane_edges[:-1])
        elif isinstance(coordinate, Affine):
            # One position is a window of one, whose axis is dropped.
            whole.update(dict.fromkeys(edge_of(coordinate, 0, 1, ref.type.shape[axis])))
    new_axes = _places_of_new_axes(new_axes_before, coordinates, len(lane_shape), places, scattered)
    all_edges = (*edges, tuple(whole))
    return Access(ref, tuple(coordinates), tuple(shape), all_edges, new_axes, tuple(dims), lanes_at)


def _completed(subscript: object, rank: int, what: str) -> tuple[list[Any], list[int]]:
    """One item per axis, and for each inserted axis the number of items before it."""
    items: list[Any] = [*subscript] if isinstance(subscript, tuple) else [subscript]
    if sum(isinstance(i, EllipsisType) for i in items) > 1:
        raise IndexError_("an index has more than one `...`", help="write `...` once")
    given = sum(i is not None and not isinstance(i, EllipsisType) for i in items)
    if given > rank:
        raise IndexError_(
            f"{what} has {rank} axes, but the index has {given} entries", help="leave out the extra entries"
        )
    if not any(isinstance(i, EllipsisType) for i in items):
        items = [*items, ...]
    result: list[Any] = []
    inserted: list[int] = []
    for item in items:
        if item is None:
            inserted.append(len(result))
        elif isinstance(item, EllipsisType):
            result.extend([slice(None)] * (rank - given))
        else:
            result.append(item)
    return result, inserted


def _places_of_new_axes(
    before: Sequence[int], coordinates: Sequence[Coordinate], lane_rank: int, places: Sequence[int], scattered: bool
) -> tuple[int, ...]:
    result: list[int] = []
    for items_before in before:
        rank = lane_rank if scattered else 0
        for axis, coordinate in enumerate(coordinates[:items_before]):
            if isinstance(coordinate, Window):
                rank += 1
            elif isinstance(coordinate, TileValue) and not scattered and axis == places[0]:
                rank += lane_rank
        result.append(rank + len(result))
    return tuple(result)


def _lane_edges(lanes: Sequence[TileValue], shape: Shape) -> Edges:
    """Edges of integer tiles that broadcast to one shape."""
    return union_edges(no_edges(len(shape)), *(spread_edges(value, shape) for value in lanes))


def _coordinate(ref: Ref, axis: int, item: object) -> Coordinate:
    size = ref.type.shape[axis]
    if isinstance(item, TileIndex):
        return _block(ref, axis, item)
    if isinstance(item, slice):
        return _window(item, size, f"axis {axis} of `{ref.name}`")
    if isinstance(item, TileValue):
        return _lanes(item, ref)
    position = Affine(_wrapped(int(item), size)) if is_integer(item) else item
    if not isinstance(position, Affine):
        raise ArgumentError(
            f"`{ref.name}` is indexed with a {type(item).__name__}",
            help="use indices of `tw.grid` and `tw.steps`, integers, slices or integer tiles",
        )
    low, high = position.range
    if high < 0 or low >= size:
        message = f"index {item} is outside axis {axis} of `{ref.name}`, which has size {size}"
        raise OutOfBoundsError(message, help=f"indices are 0 to {size - 1}")
    return position


def _wrapped(index: int, size: int) -> int:
    return index + size if -size <= index < 0 else index


def _block(ref: Ref, axis: int, index: TileIndex) -> Window:
    size = ref.type.shape[axis]
    if index.extent != size and (index.overhangs or index.extent > size):
        message = f"`{index.name}` runs over {index.extent} positions, but axis {axis} of `{ref.name}` has {size}"
        window = f"{index.name}.start : {index.name}.start + {index.block}"
        raise ShapeError(message, help=f"use an index over that axis, or a window: `{ref.name}[..., {window}]`")
    return Window(index.start, index.block)


def _lanes(item: TileValue, ref: Ref) -> TileValue:
    if item.type.dtype.is_bool:
        raise DataDependentShapeError(
            f"`{ref.name}` is indexed with a mask, so the number of elements would depend on its contents",
            help="load the tile and choose with `tw.where(mask, x, 0)`",
        )
    if not item.type.dtype.is_integer:
        raise DTypeError(f"`{ref.name}` is indexed with {item.type.dtype}", help="cast the index: `.astype(tw.i32)`")
    return item


def _window(item: slice, size: int, what: str) -> Window:
    for part in (item.start, item.stop, item.step):
        if isinstance(part, TileValue):
            raise DataDependentShapeError(
                f"a bound of the slice of {what} is a tile",
                help="gather with positions: `x[start + tw.arange(8)]`",
            )
        if part is not None and (isinstance(part, bool) or not isinstance(part, int | np.integer | Affine | TileIndex)):
            raise ArgumentError(f"a bound of the slice of {what} is {part!r}", help="slice with integers")
    step = 1 if item.step is None else item.step
    if not isinstance(step, int) or step < 1:
        raise ArgumentError(f"the step of the slice of {what} is {step}", help="use a positive compile-time step")
    start = _bound(item.start, 0, size)
    stop = _bound(item.stop, size, size)
    length = stop - start
    if not length.is_constant:
        raise DataDependentShapeError(
            f"the slice of {what} has no fixed size: its bounds differ by {length}",
            help="write `x[start : start + 8]` with a compile-time size",
        )
    count = -(-length.constant // step)
    if count < 0:
        raise IndexError_(f"the slice of {what} ends before it starts", help="swap its bounds")
    low, high = start.range
    literal = not any(isinstance(part, Affine | TileIndex) for part in (item.start, item.stop))
    if literal and count and (high + (count - 1) * step < 0 or low >= size):
        raise OutOfBoundsError(f"the slice of {what}, which has size {size}, is out of bounds", help="move its bounds")
    return Window(start, count, step)


def _bound(part: Any, default: int, size: int) -> Affine:
    if part is None:
        return Affine(default)
    if isinstance(part, TileIndex):
        return part.number
    return part if isinstance(part, Affine) else Affine(_wrapped(int(part), size))


# ---- loads and stores -----------------------------------------------------------------------------------------------


def load(b: KernelBuilder, ref: Ref, subscript: object, fill: Any = None) -> TileValue:
    """The tile at a subscript. Lanes outside the array hold `fill`; without one they hold 0 and do not count in
    reductions and matmuls.

    Raises:
        ArgumentError: the array is write-only, or the fill is no number.
        IndexError_, OutOfBoundsError, DataDependentShapeError: as `access_of` does.
    """
    if ref.effect == tile.OUT:
        message = f"`{ref.name}` is Out, so it holds nothing to read"
        raise ArgumentError(message, help="annotate it as `tw.InOut`, or compute with the tile before storing it")
    if fill is not None and not _is_number(fill):
        raise ArgumentError(f"`fill` is {fill!r}", help="pass a number")
    access = access_of(ref, subscript)
    dtype = ref.type.dtype
    symbols, map = _mapped(b, access, is_store=False)
    value = 0 if fill is None else fill
    plain = float(value) if dtype.is_float else int(value)
    type = tensor(ArrayType(access.shape, dtype))
    padding = plain if access.may_leave else None
    op = tile.LoadOp(source=ref.value, symbols=symbols, map=map, fill=padding, result=type)
    result = b.new(op, access.edges if fill is None else no_edges(len(access.shape)))
    return b.expand_dims(result, access.new_axes) if access.new_axes else result


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def store(b: KernelBuilder, ref: Ref, subscript: object, value: object) -> Access:
    """Write a tile, broadcast to the tile at the subscript; lanes outside the array are dropped. Returns the parsed
    subscript.

    Raises:
        ArgumentError: the array is read-only.
        ShapeError, DTypeError: the tile does not fit.
        IndexError_, OutOfBoundsError, DataDependentShapeError: as `access_of` does.
    """
    if ref.effect == tile.IN:
        raise ArgumentError(f"`{ref.name}` is In, so it cannot be written", help="annotate it as Out or InOut")
    access = access_of(ref, subscript)
    if access.new_axes:
        raise IndexError_(f"a store to `{ref.name}` inserts axes", help="leave out `None`")
    stored = _fitting(b, ref, access, value)
    symbols, map = _mapped(b, access, is_store=True)
    b.add(tile.StoreOp(value=stored.value, destination=ref.value, symbols=symbols, map=map))
    return access


def _fitting(b: KernelBuilder, ref: Ref, access: Access, value: object) -> TileValue:
    dtype = ref.type.dtype
    lifted = b.lift(value)
    shape = access.shape
    lead = len(shape) - lifted.rank
    if lead < 0 or any(n not in (1, size) for n, size in zip(lifted.shape, shape[lead:], strict=True)):
        message = f"a tile of shape {lifted.shape} is stored where `{ref.name}[...]` has shape {shape}"
        raise ShapeError(message, help=f"store a tile of shape {shape}, or one that broadcasts to it")
    if not _may_store(b, lifted, dtype):
        message = f"a tile of {lifted.type.dtype} is stored to `{ref.name}`, an array of {dtype}"
        raise DTypeError(message, help=f"cast explicitly: `.astype(tw.{dtype.name})`")
    return b.typed(value, dtype, shape)


def _may_store(b: KernelBuilder, value: TileValue, dtype: DType) -> bool:
    """Floats round to the array's float type; anything else must fit it."""
    if value.type.dtype.is_float and dtype.is_float:
        return True
    return b.result_dtype([value, dtype]) == dtype


def _mapped(b: KernelBuilder, access: Access, *, is_store: bool) -> tuple[list[SSAValue], AffineMap]:
    """Symbols and map of an access."""
    symbols = Symbols()
    results: list[AffineExpr] = []
    for coordinate, dim in zip(access.coordinates, access.dims, strict=True):
        if isinstance(coordinate, Window):
            lane = AffineExpr.dimension(dim)
            lane = lane if coordinate.stride == 1 else lane * coordinate.stride
            start = coordinate.start
            zero = start.is_constant and start.constant == 0
            results.append(lane if zero else symbols.expression(start) + lane)
        elif isinstance(coordinate, Affine):
            results.append(symbols.expression(coordinate))
        else:
            lanes = _spread_lanes(b, access, coordinate)
            if is_store and any(lanes.edges):
                # Positions that are no elements must not be written; -1 is outside every array.
                lanes = b.filled(b.cast(lanes, dtypes.i64), range(lanes.rank), -1)
            results.append(symbols.lane(lanes.value))
    return symbols.values, symbols.map(len(access.shape), results)


def _spread_lanes(b: KernelBuilder, access: Access, lanes: TileValue) -> TileValue:
    """An integer tile repeated along the tile's other dimensions."""
    rank = max(c.rank for c in access.coordinates if isinstance(c, TileValue))
    first = access.lanes_at + rank - lanes.rank
    return b.spread(lanes, access.shape, tuple(range(first, first + lanes.rank)))


# ---- subscripts of tiles --------------------------------------------------------------------------------------------


def subscript_tile(b: KernelBuilder, x: TileValue, subscript: object) -> TileValue:
    """`x[:, None]`, `x[0]`, `x[:, 0:4]`: inserted axes, single elements and windows at compile-time places.

    Raises:
        IndexError_, OutOfBoundsError, ArgumentError: the index is none of these.
    """
    items, inserted = _completed(subscript, x.rank, "the tile")
    starts: list[int] = []
    limits: list[int] = []
    strides: list[int] = []
    dropped: list[int] = []
    for axis, (item, size) in enumerate(zip(items, x.shape, strict=True)):
        if isinstance(item, slice):
            window = _window(item, size, f"axis {axis} of the tile")
            start = window.start.constant
            limit = start + window.length * window.stride - (window.stride - 1) if window.length else start
            if not window.start.is_constant or start < 0 or limit > size:
                message = f"a slice does not fit axis {axis} of a tile of shape {x.shape}"
                raise OutOfBoundsError(message, help="slice tiles inside their shape, with compile-time bounds")
            starts.append(start)
            limits.append(limit)
            strides.append(window.stride)
            continue
        if not is_integer(item):
            message = f"a tile is indexed with a {type(item).__name__}"
            raise ArgumentError(message, help="index the array instead; tiles take compile-time integers and slices")
        if not -size <= item < size:
            message = f"index {item} is outside axis {axis} of a tile of shape {x.shape}"
            raise OutOfBoundsError(message, help=f"indices are 0 to {size - 1}")
        starts.append(int(item) % size)
        limits.append(int(item) % size + 1)
        strides.append(1)
        dropped.append(axis)
    cut = b.slice(x, tuple(starts), tuple(limits), tuple(strides))
    shape = [n for d, n in enumerate(cut.shape) if d not in dropped]
    for place in reversed(inserted):
        shape.insert(place - sum(d < place for d in dropped), 1)
    return b.reshape(cut, tuple(shape))
