"""`x[key]` and `x.at[key]`: NumPy's indexing on traced arrays.

A key becomes one item per axis. Slices and integers read a strided window; index arrays gather. Integers that are
traced, and index arrays, are clamped to the array when reading and dropped outside it when writing; indices that are
known while tracing are checked. Negative indices count from the end in all cases.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tilewright import dtypes
from tilewright.api import lifting
from tilewright.api.array import Array, located
from tilewright.api.functions_elementwise import add, multiply, where
from tilewright.api.lifting import ArrayLike, broadcast, broadcast_shapes, emit, reshape, transpose
from tilewright.errors import ArgumentError, DataDependentShapeError, DTypeError, IndexError_
from tilewright.frontend.tracing import keeps_views
from tilewright.primitives import Shape


class _Window(msgspec.Struct, frozen=True):
    """`size` elements of an axis from `start`, `step` apart (which may be negative)."""

    axis: int
    start: int
    size: int
    step: int

    def covers(self, extent: int) -> bool:
        return (self.start, self.size, self.step) == (0, extent, 1)


class _Point(msgspec.Struct, frozen=True):
    """One element of an axis, known while tracing; the axis disappears."""

    axis: int
    index: int


class _Lookup(msgspec.Struct, frozen=True):
    """Elements of an axis at an array of indices, which are not negative any more. `scalar` if the axis disappears."""

    axis: int
    indices: Array
    scalar: bool


class _NewAxis(msgspec.Struct, frozen=True):
    """A new axis of size 1."""


class _Gap(msgspec.Struct, frozen=True):
    """An `...` of a key: even for no axes it separates index arrays, which then are not adjacent."""


_Item = _Window | _Point | _Lookup | _NewAxis | _Gap


# ---- from a key to items --------------------------------------------------------------------------------------------


def _parse(key: object, shape: Shape) -> list[_Item]:
    given: list[Any] = [*key] if isinstance(key, tuple) else [key]
    parts = [_as_index_array(p) if lifting.is_nested(p) else p for p in given]
    used = sum(_axes_taken(p) for p in parts)
    if used > len(shape):
        message = f"{used} indices for an array with {len(shape)} axes"
        raise located(IndexError_(message, help=f"give at most {len(shape)}"))
    ellipses = [n for n, p in enumerate(parts) if p is Ellipsis]
    if len(ellipses) > 1:
        raise located(IndexError_("a key holds more than one `...`", help="write `:` for the other axes"))
    at = ellipses[0] if ellipses else len(parts)
    parts[at : at + 1] = [*parts[at : at + 1], *[slice(None)] * (len(shape) - used)]
    items: list[_Item] = []
    axis = 0
    for part in parts:
        items.extend(_items_of(part, axis, shape))
        axis += _axes_taken(part)
    return items


def _with_mask_axes(x: Array, key: object) -> tuple[Array, Any]:
    """The array with an axis of size 1 for each mask without axes in a key, which then chooses it or nothing."""
    whole: Any = key
    parts: list[Any] = [*key] if isinstance(key, tuple) else [key]
    if not any(_is_scalar_mask(part) for part in parts):
        return x, whole
    sizes = [*x.shape]
    axis = 0
    for n, part in enumerate(parts):
        if part is Ellipsis:
            # The axes behind the gap are counted from the last one.
            axis = len(sizes) - sum(_axes_taken(later) for later in parts[n + 1 :] if not _is_scalar_mask(later))
        elif _is_scalar_mask(part):
            sizes.insert(axis, 1)
            parts[n] = np.flatnonzero(part)
            axis += 1
        else:
            axis += _axes_taken(part)
    spread: tuple[Any, ...] = tuple(parts)
    return reshape(x, tuple(sizes)), spread


def _is_scalar_mask(part: object) -> bool:
    return isinstance(part, np.bool_) or (isinstance(part, np.ndarray) and part.ndim == 0 and part.dtype == np.bool_)


def _as_index_array(part: Sequence[object]) -> Any:
    from tilewright.api.functions_creation import asarray

    if _holds_arrays(part):
        return asarray(part)
    try:
        found = np.asarray(part)
    except ValueError:
        raise located(IndexError_("an index list is ragged", help="make all rows the same length")) from None
    return found.astype(np.int64) if found.size == 0 else found


def _holds_arrays(part: object) -> bool:
    if lifting.is_nested(part):
        return any(_holds_arrays(p) for p in part)
    return isinstance(part, Array)


def _axes_taken(part: object) -> int:
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype == np.bool_ else 1


def _items_of(part: Any, axis: int, shape: Shape) -> list[_Item]:
    if part is None:
        return [_NewAxis()]
    if part is Ellipsis:
        return [_Gap()]
    if isinstance(part, slice):
        return [_window(part, axis, shape[axis])]
    if isinstance(part, Array):
        return [_traced_lookup(part, axis, shape[axis])]
    if isinstance(part, bool | np.bool_):
        raise located(IndexError_(f"`{part}` is not an index", help="use `tw.where` to choose, `None` for a new axis"))
    if isinstance(part, np.ndarray) and part.ndim > 0:
        return _known_lookups(part, axis, shape)
    try:
        return [_Point(axis, _checked(operator.index(part), axis, shape[axis]))]
    except TypeError:
        help = "use integers, slices, `...`, None or integer arrays"
        raise located(IndexError_(f"a value of type {type(part).__name__} is not an index", help=help)) from None


def _checked(index: int, axis: int, extent: int) -> int:
    if not -extent <= index < extent:
        raise located(
            IndexError_(
                f"index {index} is out of bounds for axis {axis} of size {extent}", help="index inside the axis"
            )
        )
    return index % extent


def _window(part: slice, axis: int, extent: int) -> _Window:
    bounds = (part.start, part.stop, part.step)
    if any(isinstance(b, Array) for b in bounds):
        raise located(
            DataDependentShapeError(
                "a slice with a traced bound would have a size that depends on data",
                help="use `tw.dynamic_slice(x, starts, sizes)`, or a mask with `tw.where`",
            )
        )
    if part.step == 0:
        raise located(IndexError_("the step of a slice is 0", help="give a step above or below 0"))
    try:
        start, stop, step = part.indices(extent)
    except TypeError:
        raise located(
            IndexError_(f"the bounds of a slice are {bounds}", help="use integers or leave them out")
        ) from None
    size = len(range(start, stop, step))
    return _Window(axis, start, size, step if size > 1 else 1)


def _traced_lookup(indices: Array, axis: int, extent: int) -> _Lookup:
    if indices.dtype.is_bool:
        raise located(
            DataDependentShapeError(
                "a mask selects as many elements as it holds, which is not known before the program runs",
                help="use `tw.where(mask, x, 0)`, or give a mask of NumPy bools",
            )
        )
    return _Lookup(axis, wrap_negative(as_indices(indices, "indexing"), extent), indices.ndim == 0)


def _known_lookups(part: np.ndarray, axis: int, shape: Shape) -> list[_Item]:
    if part.dtype == np.bool_:
        if part.shape != shape[axis : axis + part.ndim]:
            message = f"a mask of shape {part.shape} does not fit axes of sizes {shape[axis : axis + part.ndim]}"
            raise located(IndexError_(message, help="make the mask as large as the axes that it selects from"))
        return [_Lookup(axis + d, lifting.constant(found), False) for d, found in enumerate(np.nonzero(part))]
    if part.dtype.kind not in "iu":
        raise located(IndexError_(f"an index array of {part.dtype}", help="index with integers or bools"))
    extent = shape[axis]
    for index in (part.min(), part.max()) if part.size else ():
        _checked(int(index), axis, extent)
    positions = part.astype(np.int64)
    return [_Lookup(axis, lifting.constant(np.where(positions < 0, positions + extent, positions)), False)]


def as_indices(x: ArrayLike, name: str) -> Array:
    """An array of integers as i32, i64 or u64.

    Raises:
        DTypeError: it is not of integers.
    """
    indices = lifting.lift(x)
    if not indices.dtype.is_integer:
        raise located(DTypeError(f"`{name}` takes integers, got {indices.dtype}", help="use `x.astype(tw.i64)`"))
    return indices if indices.dtype in (dtypes.i32, dtypes.i64, dtypes.u64) else lifting.cast(indices, dtypes.i64)


def wrap_negative(indices: Array, extent: int) -> Array:
    """Indices with those below 0 counted from the end of an axis."""
    if not indices.dtype.is_signed:
        return indices
    if extent > int(indices.dtype.highest):
        indices = lifting.cast(indices, dtypes.i64)
    return where(indices < 0, indices + extent, indices)


# ---- reading --------------------------------------------------------------------------------------------------------


def get(x: Array, key: object) -> Array:
    """`x[key]`.

    Raises:
        IndexError_: the key does not fit the array.
        DataDependentShapeError: the size of the result would depend on traced data.
    """
    x, key = _with_mask_axes(x, key)
    items = _parse(key, x.shape)
    result = _read_windows(x, items)
    lookups = [item for item in items if isinstance(item, _Lookup)]
    if not lookups:
        return reshape(result, _basic_shape(items))
    if all(item.scalar for item in lookups):
        return reshape(_read_at(result, lookups), _basic_shape(items))
    indices, shape = _together([item.indices for item in lookups])
    gathered = emit("gather", result, *indices, axes=tuple(item.axis for item in lookups))
    return _place(gathered, items, shape)


def _read_windows(x: Array, items: Sequence[_Item]) -> Array:
    """Slices and known integers, whose axes stay with size 1; lookups see their whole axis."""
    starts, limits, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
    reversed_axes: list[int] = []
    for item in items:
        if isinstance(item, _Point):
            starts[item.axis], limits[item.axis] = item.index, item.index + 1
        elif isinstance(item, _Window):
            last = item.start + (item.size - 1) * item.step
            low, high = min(item.start, last), max(item.start, last)
            starts[item.axis], limits[item.axis] = (low, high + 1) if item.size else (0, 0)
            strides[item.axis] = abs(item.step)
            if item.step < 0:
                reversed_axes.append(item.axis)
    cuts = (tuple(starts), tuple(limits)) != ((0,) * x.ndim, x.shape) or any(s != 1 for s in strides)
    if cuts or keeps_views():
        x = emit("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))
    return emit("reverse", x, axes=tuple(reversed_axes)) if reversed_axes else x


def _read_at(x: Array, lookups: Sequence[_Lookup]) -> Array:
    """One window at traced scalars."""
    at = {item.axis: item.indices for item in lookups}
    zero = lifting.full((), 0, dtypes.i64)
    sizes = tuple(1 if d in at else n for d, n in enumerate(x.shape))
    if any(n == 0 for d, n in enumerate(x.shape) if d in at):
        raise located(IndexError_("a traced index into an axis of size 0", help="index a non-empty axis"))
    return emit("dynamic_slice", x, *(at.get(d, zero) for d in range(x.ndim)), sizes=sizes)


def _basic_shape(items: Sequence[_Item]) -> Shape:
    sizes = [1 if isinstance(i, _NewAxis) else i.size for i in items if isinstance(i, _NewAxis | _Window)]
    return tuple(sizes)


def _together(indices: Sequence[Array]) -> tuple[list[Array], Shape]:
    """Index arrays broadcast to one shape."""
    shape = broadcast_shapes(*(i.shape for i in indices))
    return [broadcast(i, shape) for i in indices], shape


def _lead(items: Sequence[_Item]) -> int:
    """How many items stand before the axes of the index arrays: all before the first of them if they are neighbours in
    the key, none otherwise. Integers count as index arrays, as in NumPy."""
    places = [n for n, item in enumerate(items) if isinstance(item, _Lookup | _Point)]
    return places[0] if places[-1] - places[0] == len(places) - 1 else 0


def _place(gathered: Array, items: Sequence[_Item], shape: Shape) -> Array:
    """Move the index axes, which lead in the result of a gather, to where NumPy has them; drop and add axes."""
    lead = _lead(items)
    rest = {item.axis for item in items if isinstance(item, _Window | _Point)}
    position = {axis: len(shape) + n for n, axis in enumerate(sorted(rest))}
    before = [position[i.axis] for i in items[:lead] if isinstance(i, _Window)]
    after = [p for p in position.values() if p not in before]
    moved = transpose(gathered, (*before, *range(len(shape)), *after))
    return reshape(moved, (*_basic_shape(items[:lead]), *shape, *_basic_shape(items[lead:])))


# ---- writing --------------------------------------------------------------------------------------------------------


class Updates:
    """`x.at`: choose elements with a key, as in `x.at[2:5].add(v)`."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    def __getitem__(self, key: object) -> Update:
        return Update(self._array, key)


class Update:
    """`x.at[key]`: copies of `x` with the elements at `key` changed. Values broadcast to the shape of `x[key]`.

    Elements that are named several times are combined in order; those outside the array are left out. Each method
    raises IndexError_, ShapeError or DTypeError when key or values do not fit.
    """

    __slots__ = ("_array", "_key")

    def __init__(self, array: Array, key: Any) -> None:
        self._array = array
        self._key = key

    def get(self) -> Array:
        """`x[key]`."""
        return get(self._array, self._key)

    def set(self, value: ArrayLike) -> Array:
        """Overwrite."""
        return _update(self._array, self._key, "set", value)

    def add(self, value: ArrayLike) -> Array:
        """Add."""
        return _update(self._array, self._key, "add", value)

    def multiply(self, value: ArrayLike) -> Array:
        """Multiply."""
        return _update(self._array, self._key, "multiply", value)

    def max(self, value: ArrayLike) -> Array:
        """Take the larger."""
        return _update(self._array, self._key, "maximum", value)

    def min(self, value: ArrayLike) -> Array:
        """Take the smaller."""
        return _update(self._array, self._key, "minimum", value)


def _update(x: Array, key: object, fn: str, value: ArrayLike) -> Array:
    shape = x.shape
    x, key = _with_mask_axes(x, key)
    return reshape(_update_at(x, key, fn, value), shape)


def _update_at(x: Array, key: object, fn: str, value: ArrayLike) -> Array:
    items = _parse(key, x.shape)
    update = lifting.fitting(value, x.dtype)
    if all(isinstance(i, _NewAxis | _Point | _Gap) or (isinstance(i, _Window) and i.step == 1) for i in items):
        return _update_window(x, items, fn, broadcast(update, _basic_shape(items)))
    return _update_scattered(x, items, fn, update)


def _update_window(x: Array, items: Sequence[_Item], fn: str, update: Array) -> Array:
    windows = {i.axis: (i.start, i.size) for i in items if isinstance(i, _Window)}
    windows |= {i.axis: (i.index, 1) for i in items if isinstance(i, _Point)}
    starts, sizes = zip(*(windows[d] for d in range(x.ndim)), strict=True) if x.ndim else ((), ())
    update = reshape(update, sizes)
    if fn != "set":
        update = lifting.apply(fn, _read_windows(x, items), update)
    if sizes == x.shape:
        return update
    return emit("dynamic_update_slice", x, update, *(lifting.full((), s, dtypes.i64) for s in starts))


def _update_scattered(x: Array, items: Sequence[_Item], fn: str, update: Array) -> Array:
    """Windows of part of an axis are written at indices too; whole axes follow the index axes of the scatter."""
    windows = [i for i in items if isinstance(i, _Window) and not i.covers(x.shape[i.axis])]
    lookups = [i for i in items if isinstance(i, _Lookup)]
    shape = broadcast_shapes(*(i.indices.shape for i in lookups)) if lookups else ()
    index_shape = (*shape, *(i.size for i in windows))
    index_of: dict[int, Array] = {}
    for item in items:
        if isinstance(item, _Lookup):
            aligned = tuple(range(len(shape) - item.indices.ndim, len(shape)))
            index_of[item.axis] = _spread(item.indices, index_shape, aligned)
        elif isinstance(item, _Point):
            index_of[item.axis] = lifting.full(index_shape, item.index, dtypes.i64)
    for n, window in enumerate(windows):
        index_of[window.axis] = _ramp(window, index_shape, len(shape) + n)
    axes = tuple(sorted(index_of))
    rest = tuple(n for d, n in enumerate(x.shape) if d not in axes)
    values = reshape(_arranged(x, items, shape, update), (*index_shape, *rest))
    return emit("scatter", x, values, *(index_of[axis] for axis in axes), axes=axes, fn=fn)


def _spread(indices: Array, shape: Shape, axes: tuple[int, ...]) -> Array:
    return indices if indices.shape == shape else emit("broadcast", indices, shape=shape, axes=axes)


def _ramp(window: _Window, shape: Shape, axis: int) -> Array:
    counted = emit("iota", shape=shape, axis=axis, dtype="i64")
    return add(multiply(counted, window.step), window.start)


def _arranged(x: Array, items: Sequence[_Item], shape: Shape, update: Array) -> Array:
    """The update broadcast to `x[key]`, its axes in the order index axes, partial windows, whole axes, new axes."""
    scattered = any(isinstance(i, _Lookup) and not i.scalar for i in items)
    lead = _lead(items) if scattered else len(items)
    tagged: list[tuple[int, int]] = []
    sizes: list[int] = []
    for place, item in enumerate([*items, None]):
        if place == lead:
            tagged += [(0, d) for d in range(len(shape))]
            sizes += shape
        if isinstance(item, _NewAxis):
            tagged.append((3, place))
            sizes.append(1)
        elif isinstance(item, _Window):
            tagged.append((2 if item.covers(x.shape[item.axis]) else 1, item.axis))
            sizes.append(item.size)
    spread = broadcast(update, tuple(sizes))
    return transpose(spread, sorted(range(len(tagged)), key=tagged.__getitem__))


# ---- windows at traced places ---------------------------------------------------------------------------------------


def dynamic_slice(x: ArrayLike, starts: Sequence[ArrayLike], sizes: Sequence[int]) -> Array:
    """A window of fixed `sizes` at scalars `starts`, which are clamped so that the window stays inside.

    Raises:
        ShapeError: the window is larger than the array.
        ArgumentError: there is not one integer scalar per axis.
    """
    return emit("dynamic_slice", lifting.lift(x), *_starts(starts), sizes=lifting.shape_of(sizes))


def dynamic_update_slice(x: ArrayLike, update: ArrayLike, starts: Sequence[ArrayLike]) -> Array:
    """A copy of `x` with `update` written at scalars `starts`, which are clamped so that it stays inside.

    Raises:
        ShapeError, DTypeError: the update does not fit the array.
        ArgumentError: there is not one integer scalar per axis.
    """
    array = lifting.lift(x)
    return emit("dynamic_update_slice", array, lifting.fitting(update, array.dtype), *_starts(starts))


def _starts(starts: Sequence[ArrayLike]) -> list[Array]:
    if not hasattr(starts, "__iter__"):
        raise located(ArgumentError(f"the starts are {starts!r:.40}, no sequence", help="give one for each axis"))
    return [lifting.typed(s, dtypes.i64, ()) if lifting.is_scalar(s) else lifting.lift(s) for s in starts]


# What may be in brackets and is no index.
_SUBSCRIPTS_ALONE = (type(None), slice, type(...))


def take(x: ArrayLike, indices: ArrayLike, /, *, axis: int | None = None) -> Array:
    """Slices of `x` along `axis` (all elements, flattened, if None and `x` is no vector) at `indices`.

    Raises:
        IndexError_: there is no such axis, or it is empty.
        DTypeError: the indices are not integers.
        ArgumentError: `indices` is no array.
    """
    array = lifting.lift(x)
    if isinstance(indices, _SUBSCRIPTS_ALONE):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's
        lifting.lift(indices)  # raises
    if axis is None and array.ndim != 1:
        array = reshape(array, (array.size,))
    at = lifting.axis_of(0 if axis is None else axis, array.ndim)
    key = _as_index_array(indices) if lifting.is_nested(indices) else indices
    return get(array, (*(slice(None),) * at, key))


def take_along_axis(x: ArrayLike, indices: ArrayLike, /, *, axis: int = -1) -> Array:
    """`result[i, j, k] = x[i, indices[i, j, k], k]` for axis 1; the other axes broadcast.

    Raises:
        IndexError_: there is no such axis.
        DTypeError, ShapeError: the indices are not integers or do not fit.
    """
    array, where_to = lifting.lift(x), as_indices(indices, "take_along_axis")
    at = lifting.axis_of(axis, array.ndim)
    if where_to.ndim != array.ndim:
        message = f"indices of shape {where_to.shape} for an array of shape {array.shape}"
        raise located(IndexError_(message, help="give one index axis per axis of the array"))
    others = broadcast_shapes(_with_size(array.shape, at, 1), _with_size(where_to.shape, at, 1))
    shape = _with_size(others, at, where_to.shape[at])
    array = broadcast(array, _with_size(others, at, array.shape[at]))
    wrapped = broadcast(wrap_negative(where_to, array.shape[at]), shape)
    if math.prod(shape) == 0:
        return lifting.full(shape, 0, array.dtype)
    places = [wrapped if d == at else emit("iota", shape=shape, axis=d, dtype="i64") for d in range(array.ndim)]
    return emit("gather", array, *places, axes=tuple(range(array.ndim)))


def _with_size(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])
