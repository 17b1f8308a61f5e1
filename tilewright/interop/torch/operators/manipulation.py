"""Shapes: views, cuts, joins and repetitions. Views are values here, so that a view and its copy are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.interop.casts import convert
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import dtype_of, result_type


@operator("view", "_unsafe_view", "reshape", "view_copy", "_reshape_copy")
def view(x: Array, shape: Sequence[int]) -> Array:
    """Another shape of the same size."""
    return tw.reshape(x, tuple(shape))


@operator("view.dtype")
def view_dtype(x: Array, dtype: object) -> Array:
    """The bits as another element type of the same width."""
    return tw.bitcast(x, dtype_of(dtype))


@operator("permute", "permute_copy")
def permute(x: Array, dims: Sequence[int]) -> Array:
    """Axes in another order."""
    return tw.permute_dims(x, tuple(d % x.ndim for d in dims))


@operator("transpose.int")
def transpose(x: Array, first: int, second: int) -> Array:
    """Two axes exchanged."""
    if not x.ndim:
        return x
    order = list(range(x.ndim))
    order[first], order[second] = order[second], order[first]
    return tw.permute_dims(x, order)


@operator("t")
def matrix_transpose(x: Array) -> Array:
    """A matrix transposed; vectors stay."""
    return tw.matrix_transpose(x) if x.ndim == 2 else x


@operator("expand", "expand_copy")
def expand(x: Array, shape: Sequence[int], *, implicit: bool = False) -> Array:
    """Axes of size 1 repeated; -1 keeps a size."""
    lead = len(shape) - x.ndim
    sizes = [x.shape[d - lead] if n == -1 else n for d, n in enumerate(shape)]
    return tw.broadcast_to(x, tuple(sizes))


@operator("unsqueeze", "unsqueeze_copy")
def unsqueeze(x: Array, dim: int) -> Array:
    """A new axis of size 1."""
    return tw.expand_dims(x, dim)


@operator("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(x: Array, dim: int | Sequence[int] | None = None) -> Array:
    """Without axes of size 1, all or those named; axes of other sizes stay."""
    named = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    dropped = {d % x.ndim for d in named if x.ndim and x.shape[d] == 1}
    return tw.reshape(x, tuple(n for d, n in enumerate(x.shape) if d not in dropped))


def window(x: Array, dim: int, start: int | None, end: int | None, step: int) -> tuple[Any, ...]:
    """The key of a slice along an axis."""
    axis = dim % x.ndim
    return (*(slice(None),) * axis, slice(start, end, step))


@operator("slice.Tensor", "slice_copy.Tensor")
def slice_(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    """A window of an axis; bounds are clamped."""
    return x[window(x, dim, start, end, step)]


@operator("slice_scatter")
def slice_scatter(
    x: Array, source: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    """A copy with a window of an axis replaced."""
    return x.at[window(x, dim, start, end, step)].set(convert(source, x.dtype))


@operator("select.int", "select_copy.int")
def select(x: Array, dim: int, index: int) -> Array:
    """One slice of an axis, without it."""
    return x[(*(slice(None),) * (dim % x.ndim), index)]


@operator("select_scatter")
def select_scatter(x: Array, source: Array, dim: int, index: int) -> Array:
    """A copy with one slice of an axis replaced."""
    return x.at[(*(slice(None),) * (dim % x.ndim), index)].set(convert(source, x.dtype))


@operator("cat")
def concatenate(arrays: Sequence[Array], dim: int = 0) -> Array:
    """Arrays one after the other; empty vectors fit any shape."""
    dtype = result_type(arrays)
    kept = [a for a in arrays if a.shape != (0,)] or [arrays[0]]
    return tw.concat([convert(a, dtype) for a in kept], axis=dim)


@operator("stack")
def stack(arrays: Sequence[Array], dim: int = 0) -> Array:
    """Arrays of one shape along a new axis."""
    dtype = result_type(arrays)
    return tw.stack([convert(a, dtype) for a in arrays], axis=dim)


@operator("split_with_sizes", "split_with_sizes_copy")
def split_with_sizes(x: Array, sizes: Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    """Pieces of given sizes along an axis."""
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return tuple(slice_(x, dim, end - size, end) for end, size in zip(ends, sizes, strict=True))


@operator("split.Tensor")
def split(x: Array, size: int, dim: int = 0) -> tuple[Array, ...]:
    """Pieces of one size along an axis, the last of what is left."""
    length = x.shape[dim]
    return tuple(slice_(x, dim, start, start + size) for start in range(0, max(length, 1), max(size, 1)))


@operator("unbind.int", "unbind_copy.int")
def unbind(x: Array, dim: int = 0) -> tuple[Array, ...]:
    """The slices of an axis, without it."""
    return tw.unstack(x, axis=dim)


@operator("repeat")
def repeat(x: Array, repeats: Sequence[int]) -> Array:
    """Laid out several times along each axis."""
    return tw.tile(x, tuple(repeats))


@operator("flip")
def flip(x: Array, dims: Sequence[int]) -> Array:
    """Elements in reverse order along axes."""
    return tw.flip(x, axis=tuple(dims)) if dims and x.ndim else x


@operator("roll")
def roll(x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    """Elements moved along axes, those beyond the end entering at the start."""
    return tw.roll(x, tuple(shifts), axis=tuple(dims)) if dims else tw.roll(x, shifts[0])


@operator("diagonal", "diagonal_copy")
def diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """A diagonal of two axes, as the last axis."""
    return tw.diagonal(tw.moveaxis(x, (dim1, dim2), (-2, -1)), offset=offset)


@operator("tril")
def tril(x: Array, k: int = 0) -> Array:
    """Zeros above a diagonal."""
    return tw.tril(x, k=k)


@operator("triu")
def triu(x: Array, k: int = 0) -> Array:
    """Zeros below a diagonal."""
    return tw.triu(x, k=k)


@operator("unfold")
def unfold(x: Array, dimension: int, size: int, step: int) -> Array:
    """Windows along an axis, their elements as a new last axis."""
    if not x.ndim:
        return tw.reshape(x, (size,))
    axis = dimension % x.ndim
    count = max(0, (x.shape[axis] - size) // step + 1)
    starts = tw.iota((count, size)) * step + tw.iota((count, size), 1)
    return tw.moveaxis(tw.take(x, starts, axis=axis), axis + 1, -1)
