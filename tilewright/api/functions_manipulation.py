"""Shapes: reshaping, moving, joining, cutting, repeating and padding axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.api import lifting
from tilewright.api.array import Array, located
from tilewright.api.lifting import ArrayLike, axes_of, axis_of, broadcast, emit, integer, lift, promoted, shape_of
from tilewright.errors import ArgumentError, DataDependentShapeError, ShapeError
from tilewright.frontend.tracing import keeps_views
from tilewright.primitives import Shape

broadcast_shapes = lifting.broadcast_shapes


def broadcast_to(x: ArrayLike, /, shape: int | Sequence[int]) -> Array:
    """`x` repeated to `shape`, its axes aligned with the last ones.

    Raises:
        ShapeError: it does not broadcast to that shape.
    """
    return broadcast(lift(x), shape_of(shape))


def broadcast_arrays(*arrays: ArrayLike) -> tuple[Array, ...]:
    """All arrays repeated to the shape that they broadcast to.

    Raises:
        ShapeError: they do not broadcast.
    """
    lifted = [lift(a) for a in arrays]
    shape = broadcast_shapes(*(a.shape for a in lifted)) if lifted else ()
    return tuple(broadcast(a, shape) for a in lifted)


def reshape(x: ArrayLike, /, shape: Any, *, copy: bool | None = None) -> Array:
    """`x` in another shape of the same size, row-major; one size may be -1. `copy` is taken for the Array API.

    Raises:
        ShapeError: the sizes differ, or more than one is -1.
    """
    array = lift(x)
    given: list[Any] = [*shape] if isinstance(shape, Sequence) else [shape]
    sizes = tuple(integer(n, "a size") for n in given)
    if sizes.count(-1) > 1 or any(n < -1 for n in sizes):
        raise located(ShapeError(f"cannot reshape to {sizes}", help="at most one size may be -1"))
    if -1 in sizes:
        known = math.prod(n for n in sizes if n != -1)
        if known == 0 or array.size % known:
            message = f"cannot reshape {array.shape} ({array.size} elements) to {sizes}"
            raise located(ShapeError(message, help="give sizes that divide the number of elements"))
        sizes = tuple(array.size // known if n == -1 else n for n in sizes)
    return lifting.reshape(array, sizes)


def expand_dims(x: ArrayLike, /, axis: int | tuple[int, ...] = 0) -> Array:
    """New axes of size 1 at the positions `axis` of the result.

    Raises:
        IndexError_: there is no such position.
    """
    array = lift(x)
    listed = axis if isinstance(axis, Sequence) else (axis,)
    axes = axes_of(listed, array.ndim + len(listed))
    sizes = iter(array.shape)
    return lifting.reshape(array, tuple(1 if d in axes else next(sizes) for d in range(array.ndim + len(listed))))


def squeeze(x: ArrayLike, /, axis: int | tuple[int, ...]) -> Array:
    """`x` without axes of size 1.

    Raises:
        ShapeError: an axis has another size.
    """
    array = lift(x)
    axes = axes_of(axis, array.ndim)
    if any(array.shape[d] != 1 for d in axes):
        message = f"cannot remove axes {axes} of an array of shape {array.shape}"
        raise located(ShapeError(message, help="only axes of size 1 can go"))
    return lifting.reshape(array, tuple(n for d, n in enumerate(array.shape) if d not in axes))


def permute_dims(x: ArrayLike, /, axes: Sequence[int]) -> Array:
    """Axes in another order: result axis i is axis `axes[i]` of `x`.

    Raises:
        ArgumentError: `axes` is not a permutation.
    """
    array = lift(x)
    is_missing = axes is None  # pyright: ignore[reportUnnecessaryComparison]  a user's
    order = axes_of((None,) if is_missing else axes, array.ndim)
    if len(order) != array.ndim:
        message = f"{order} is not a permutation of the {array.ndim} axes"
        raise located(ArgumentError(message, help="name every axis once"))
    return lifting.transpose(array, order)


def matrix_transpose(x: ArrayLike, /) -> Array:
    """The last two axes exchanged.

    Raises:
        ShapeError: there are fewer than two.
    """
    array = lift(x)
    if array.ndim < 2:
        message = f"an array of shape {array.shape} has no matrix to transpose"
        raise located(ShapeError(message, help="reshape it to at least two axes"))
    rank = array.ndim
    return lifting.transpose(array, (*range(rank - 2), rank - 1, rank - 2))


def moveaxis(x: ArrayLike, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Array:
    """Axes `source` moved to the positions `destination`, the others in their order.

    Raises:
        ArgumentError: there are not as many sources as destinations.
    """
    array = lift(x)
    sources, destinations = axes_of(source, array.ndim), axes_of(destination, array.ndim)
    if len(sources) != len(destinations):
        message = f"`moveaxis` of {len(sources)} axes to {len(destinations)} places"
        raise located(ArgumentError(message, help="give one position per axis"))
    order = [d for d in range(array.ndim) if d not in sources]
    for place, axis in sorted(zip(destinations, sources, strict=True)):
        order.insert(place, axis)
    return lifting.transpose(array, order)


def flip(x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """Elements in reverse order along `axis`, or along all."""
    array = lift(x)
    axes = axes_of(axis, array.ndim)
    return emit("reverse", array, axes=axes) if axes else array


def roll(x: ArrayLike, /, shift: int | tuple[int, ...], *, axis: int | tuple[int, ...] | None = None) -> Array:
    """Elements moved by `shift` places along `axis`, those that fall off the end entering at the start.

    Raises:
        ArgumentError: there are not as many shifts as axes.
    """
    array = lift(x)
    if axis is None:
        return lifting.reshape(roll(lifting.reshape(array, (array.size,)), shift, axis=0), array.shape)
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        message = f"`roll` of {len(shifts)} shifts along {len(axes)} axes"
        raise located(ArgumentError(message, help="give one shift per axis"))
    for places, along in zip(shifts, axes, strict=True):
        array = _rolled(array, integer(places, "a shift"), axis_of(along, array.ndim))
    return array


def _rolled(x: Array, places: int, axis: int) -> Array:
    size = x.shape[axis]
    places = places % size if size else 0
    if places == 0:
        return x
    return concat([_cut(x, axis, size - places, size), _cut(x, axis, 0, size - places)], axis=axis)


def _cut(x: Array, axis: int, start: int, limit: int) -> Array:
    return x[(*(slice(None),) * axis, slice(start, limit))]


def concat(arrays: Sequence[ArrayLike], /, *, axis: int | None = 0) -> Array:
    """Arrays one after the other along `axis` (flattened if None), in the type they promote to.

    Raises:
        ArgumentError: there is none.
        ShapeError: sizes differ along other axes.
    """
    joined = promoted(*_each("concat", arrays))
    if axis is None:
        joined, axis = [lifting.reshape(a, (a.size,)) for a in joined], 0
    at = axis_of(axis, joined[0].ndim)
    return joined[0] if len(joined) == 1 else emit("concat", *joined, axis=at)


def _each(name: str, arrays: Sequence[ArrayLike]) -> Sequence[ArrayLike]:
    """The arrays to join; of one array those along its first axis, as NumPy has it."""
    if isinstance(arrays, Array | np.ndarray):
        arrays = unstack(arrays)
    if arrays and not hasattr(arrays, "__iter__"):
        raise located(ArgumentError(f"`{name}` of {arrays!r:.40}, which is no sequence", help="give a list of arrays"))
    if not arrays:
        raise located(ArgumentError(f"`{name}` of no arrays", help="give at least one"))
    return arrays


def stack(arrays: Sequence[ArrayLike], /, *, axis: int = 0) -> Array:
    """Arrays of one shape along a new axis, in the type they promote to.

    Raises:
        ArgumentError: there is none.
        ShapeError: shapes differ.
    """
    joined = promoted(*_each("stack", arrays))
    if any(a.shape != joined[0].shape for a in joined):
        listed = ", ".join(str(a.shape) for a in joined)
        raise located(ShapeError(f"cannot stack arrays of shapes {listed}", help="broadcast them to one shape"))
    return concat([expand_dims(a, axis) for a in joined], axis=axis)


def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices of `x` along `axis`, without it."""
    array = lift(x)
    at = axis_of(axis, array.ndim)
    lifting.check_steps("unstack", array.shape[at])
    return tuple(array[(*(slice(None),) * at, n)] for n in range(array.shape[at]))


def split(x: ArrayLike, sections: int | Sequence[int], /, *, axis: int = 0) -> tuple[Array, ...]:
    """`x` cut along `axis` into equal sections, or before each of the given indices.

    Raises:
        ShapeError: the sections are not equal.
    """
    array = lift(x)
    at = axis_of(axis, array.ndim)
    size = array.shape[at]
    if isinstance(sections, Sequence):
        cuts = [0, *(integer(n, "a cut") for n in sections), size]
        return tuple(_cut(array, at, start, limit) for start, limit in itertools.pairwise(cuts))
    count = integer(sections, "the number of sections")
    if count < 1 or size % count:
        message = f"an axis of size {size} does not split into {count} equal sections"
        raise located(ShapeError(message, help="give the indices to cut at"))
    lifting.check_steps("split", count)
    return tuple(_cut(array, at, n * (size // count), (n + 1) * (size // count)) for n in range(count))


def repeat(x: ArrayLike, repeats: int | Sequence[int], /, *, axis: int | None = None) -> Array:
    """Each element along `axis` (flattened if None) repeated; a list gives each element its own number.

    Raises:
        DataDependentShapeError: the numbers are traced.
        ArgumentError: a number is negative.
    """
    if isinstance(repeats, Array):
        message = "`repeat` by a traced number has a size that depends on data"
        raise located(DataDependentShapeError(message, help="give Python integers"))
    array = lift(x)
    if axis is None:
        array, axis = lifting.reshape(array, (array.size,)), 0
    at = axis_of(axis, array.ndim)
    counts = np.asarray(repeats, None if np.size(repeats) else np.int64)
    if counts.dtype.kind not in "iu" or (counts < 0).any():
        raise located(ArgumentError(f"`repeat` by {repeats}", help="give integers that are not negative"))
    if counts.size != 1:
        if counts.shape != (array.shape[at],):
            message = f"{counts.size} repeats for an axis of size {array.shape[at]}"
            raise located(ShapeError(message, help="give one number per element"))
        lifting.check_table("repeat", int(counts.sum()))
        return array[(*(slice(None),) * at, np.repeat(np.arange(array.shape[at]), counts))]
    times = int(counts.reshape(())) if counts.ndim else int(counts)
    spread = _inserted(array, at + 1, times)
    return lifting.reshape(spread, (*array.shape[:at], array.shape[at] * times, *array.shape[at + 1 :]))


def _inserted(x: Array, axis: int, size: int) -> Array:
    """`x` repeated along a new axis."""
    shape = (*x.shape[:axis], size, *x.shape[axis:])
    return emit("broadcast", x, shape=shape, axes=tuple(d for d in range(x.ndim + 1) if d != axis))


def tile(x: ArrayLike, repetitions: int | Sequence[int], /) -> Array:
    """`x` laid out `repetitions` times along each axis; a number is of the last one.

    Raises:
        ArgumentError: a number is negative.
    """
    array = lift(x)
    each = repetitions if isinstance(repetitions, Sequence) else (repetitions,)
    times = tuple(integer(n, "a number of repetitions") for n in each)
    if any(n < 0 for n in times):
        raise located(ArgumentError(f"`tile` by {times}", help="give integers that are not negative"))
    rank = max(len(times), array.ndim)
    times = (1,) * (rank - len(times)) + times
    shape = (1,) * (rank - array.ndim) + array.shape
    paired: Shape = tuple(n for pair in zip(times, shape, strict=True) for n in pair)
    axes = tuple(2 * d + 1 for d in range(rank))
    spread = emit("broadcast", lifting.reshape(array, shape), shape=paired, axes=axes)
    return lifting.reshape(spread, tuple(t * n for t, n in zip(times, shape, strict=True)))


# ---- padding --------------------------------------------------------------------------------------------------------

_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def pad(
    x: ArrayLike, pad_width: int | Sequence[object], mode: str = "constant", *, constant_values: ArrayLike = 0
) -> Array:
    """`x` with elements added around each axis, as in NumPy.

    `pad_width` is a number, a pair (before, after) for all axes, or one pair per axis. New elements are
    `constant_values`, or with "edge" the nearest element, with "reflect" the mirror image without the edge, with
    "symmetric" that with the edge, with "wrap" those of the opposite side.

    Raises:
        ArgumentError: an unknown mode or a negative width.
        ShapeError: the widths do not fit the axes, or the mode has too few elements to repeat.
    """
    array = lift(x)
    if mode not in _MODES:
        raise located(ArgumentError(f"there is no padding mode {mode!r}", help=f"the modes are {', '.join(_MODES)}"))
    widths = _widths(pad_width, array.ndim)
    if mode == "constant":
        low, high = tuple(before for before, _ in widths), tuple(after for _, after in widths)
        if not any((*low, *high)) and not keeps_views():
            return array
        if array.dtype.is_bool and isinstance(constant_values, int):
            constant_values = bool(constant_values)
        value = lifting.fitting(constant_values, array.dtype)
        return emit("pad", array, value, low=low, high=high, interior=(0,) * array.ndim)
    for axis, (before, after) in enumerate(widths):
        array = _padded(array, axis, before, after, mode)
    return array


def _widths(pad_width: object, rank: int) -> list[tuple[int, int]]:
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (rank, 2))
    except ValueError:
        message = f"widths {pad_width} do not fit an array with {rank} axes"
        raise located(ShapeError(message, help="give a number, a pair, or one pair per axis")) from None
    if widths.dtype.kind not in "iu" or (widths < 0).any():
        raise located(ArgumentError(f"`pad` by {pad_width}", help="give integers that are not negative"))
    return [(int(before), int(after)) for before, after in widths]


def _padded(x: Array, axis: int, before: int, after: int, mode: Any) -> Array:
    size = x.shape[axis]
    if before == after == 0:
        return x
    if size == 0:
        raise located(ShapeError(f"`pad` of mode {mode!r} has no elements to repeat", help='use mode="constant"'))
    lifting.check_table("pad", before + size + after)
    # np.pad repeats its pattern when the width is larger than the axis; so does an index map.
    places = np.pad(np.arange(size), (before, after), mode=mode)
    return x[(*(slice(None),) * axis, places)]
