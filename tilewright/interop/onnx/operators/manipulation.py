"""Shapes: reshaping, moving, joining, cutting, repeating and padding axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import ArrayLike, axes_of, axis_of
from tilewright.interop.onnx.registry import Node, lifted, operator


@operator("Reshape")
def reshape(node: Node, x: Array, shape: Array | None = None) -> Array:
    """To another shape; 0 keeps a size unless `allowzero`, -1 is what remains."""
    given = node.required("shape") if shape is None else node.known_ints(shape, "shape")
    if not node.get("allowzero", 0):
        given = tuple(x.shape[d] if n == 0 else n for d, n in enumerate(given))
    elif 0 in given and -1 in given:
        raise node.unsupported("`Reshape` with both 0 and -1 where `allowzero` is set")
    if -1 in given and 0 in x.shape and 0 not in given:
        known = math.prod(n for n in given if n != -1)
        given = tuple(x.size // known if n == -1 else n for n in given)
    return tw.reshape(x, given)


@operator("Flatten")
def flatten(node: Node, x: Array) -> Array:
    """A matrix of the axes before `axis` and of those from it on."""
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return tw.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@operator("Transpose")
def transpose(node: Node, x: Array) -> Array:
    """Axes in the order `perm`, reversed by default."""
    return tw.permute_dims(x, node.get("perm", tuple(range(x.ndim))[::-1]))


def _axes(node: Node, axes: Array | None) -> tuple[int, ...] | None:
    return node.get("axes") if axes is None else node.known_ints(axes, "axes")


@operator("Squeeze")
def squeeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    """Without axes of size 1, all by default."""
    given = _axes(node, axes)
    return tw.squeeze(x, given if given is not None else tuple(d for d, n in enumerate(x.shape) if n == 1))


@operator("Unsqueeze")
def unsqueeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    """With new axes of size 1."""
    return tw.expand_dims(x, _axes(node, axes) or ())


@operator("Shape")
def shape(node: Node, x: Array) -> Array:
    """The sizes of the axes from `start` to `end`."""
    sizes = x.shape[slice(node.get("start", 0), node.get("end"))]
    return lifted(np.asarray(sizes, np.int64).reshape(len(sizes)))


@operator("Size")
def size(node: Node, x: Array) -> Array:
    """The number of elements."""
    return lifted(np.asarray(x.size, np.int64))


@operator("Expand")
def expand(node: Node, x: Array, shape: Array) -> Array:
    """To the shape that broadcasting with `shape` gives."""
    return tw.broadcast_to(x, tw.broadcast_shapes(x.shape, node.known_ints(shape, "shape")))


@operator("Tile", since=6)
def tile(node: Node, x: Array, repeats: Array) -> Array:
    """Laid out several times along each axis."""
    return tw.tile(x, node.known_ints(repeats, "repeats"))


@operator("Concat")
def concat(node: Node, *arrays: Array) -> Array:
    """One after the other along `axis`."""
    return tw.concat(arrays, axis=node.get("axis", 1))


def split_sizes(node: Node, size: int, sections: object) -> Sequence[int]:
    """The sizes of the parts of an axis: as given, or equal but for the last."""
    given = node.get("split") if sections is None else node.known_ints(sections, "split")
    if given is not None:
        if sum(given) != size or any(n < 0 for n in given):
            raise node.unsupported(f"`Split` of an axis of size {size} into {tuple(given)}")
        return given
    count = node.get("num_outputs", len(node.wanted))
    if count != len(node.wanted):
        raise node.unsupported(f"`{node.op}` into {count} parts, of which {len(node.wanted)} are named")
    part = -(-size // count)
    return [max(0, min(part, size - n * part)) for n in range(count)]


@operator("Split")
def split(node: Node, x: Array, sections: Array | None = None) -> tuple[Array, ...]:
    """Parts along `axis`."""
    at = axis_of(node.get("axis", 0), x.ndim)
    sizes = split_sizes(node, x.shape[at], sections)
    return tw.split(x, list(itertools.accumulate(sizes))[:-1], axis=at)


@operator("Slice", since=10)
def slice_(
    node: Node, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    """Windows of axes with steps."""
    first, last = node.known_ints(starts, "starts"), node.known_ints(ends, "ends")
    along = tuple(range(len(first))) if axes is None else node.known_ints(axes, "axes")
    step = (1,) * len(first) if steps is None else node.known_ints(steps, "steps")
    return _cut(x, first, last, along, step)


@operator("Slice")
def slice_by_attributes(node: Node, x: Array) -> Array:
    """Windows of axes."""
    first, last = node.required("starts"), node.required("ends")
    return _cut(x, first, last, node.get("axes", tuple(range(len(first)))), (1,) * len(first))


def _cut(x: Array, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]) -> Array:
    key: list[slice] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes_of(tuple(axes), x.ndim), steps, strict=True):
        extent = x.shape[axis]
        if step < 0 and end < -extent:
            # Before the first element: as a Python bound it would count from the end.
            key[axis] = slice(start, None, step)
        else:
            key[axis] = slice(start, end, step)
    return x[tuple(key)]


_MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


@operator("Pad", since=11)
def pad(node: Node, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
    """With elements around axes, or without some where a width is negative."""
    along = range(x.ndim) if axes is None else axes_of(node.known_ints(axes, "axes"), x.ndim)
    return _padded(node, x, node.known_ints(pads, "pads"), list(along), 0 if value is None else tw.reshape(value, ()))


@operator("Pad")
def pad_by_attributes(node: Node, x: Array) -> Array:
    """With elements around axes, or without some where a width is negative."""
    widths = node.get("pads") or node.required("paddings")
    value = node.get("value", 0.0)
    return _padded(node, x, widths, list(range(x.ndim)), value if x.dtype.is_float else int(value))


def _padded(node: Node, x: Array, widths: Sequence[int], axes: Sequence[int], value: ArrayLike) -> Array:
    mode = _MODES.get(node.get("mode", "constant"))
    if mode is None:
        raise node.unsupported(f"`Pad` of mode {node.get('mode')!r}")
    if len(widths) != 2 * len(axes):
        raise node.unsupported(f"`Pad` of {len(widths)} widths for {len(axes)} axes")
    pairs = [(0, 0)] * x.ndim
    for n, axis in enumerate(axes):
        pairs[axis] = (widths[n], widths[n + len(axes)])
    cut = tuple(slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(pairs, x.shape, strict=True))
    added = [(max(0, a), max(0, b)) for a, b in pairs]
    if x.dtype.is_bool and mode == "constant" and not isinstance(value, Array):
        value = bool(value)
    return tw.pad(x[cut], added, mode, constant_values=value)


@operator("DepthToSpace")
def depth_to_space(node: Node, x: Array) -> Array:
    """Blocks of channels become squares of neighbours."""
    block = node.required("blocksize")
    n, c, h, w = x.shape
    depth = c // block**2
    if node.get("mode", "DCR") == "DCR":
        parts = tw.permute_dims(tw.reshape(x, (n, block, block, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        parts = tw.permute_dims(tw.reshape(x, (n, depth, block, block, h, w)), (0, 1, 4, 2, 5, 3))
    return tw.reshape(parts, (n, depth, h * block, w * block))


@operator("SpaceToDepth")
def space_to_depth(node: Node, x: Array) -> Array:
    """Squares of neighbours become blocks of channels."""
    block = node.required("blocksize")
    n, c, h, w = x.shape
    parts = tw.reshape(x, (n, c, h // block, block, w // block, block))
    order = (0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return tw.reshape(tw.permute_dims(parts, order), (n, c * block**2, h // block, w // block))


@operator("Trilu")
def triangle(node: Node, x: Array, k: Array | None = None) -> Array:
    """The upper or lower triangle of the last two axes, 0 elsewhere."""
    offset = 0 if k is None else node.known_ints(k, "k")[0]
    offset = max(-x.shape[-2] - 1, min(offset, x.shape[-1] + 1))
    return (tw.triu if node.get("upper", 1) else tw.tril)(x, k=offset)


@operator("ReverseSequence")
def reverse_sequence(node: Node, x: Array, lengths: Array) -> Array:
    """The first `lengths[b]` elements along `time_axis` reversed, for each `b` along `batch_axis`."""
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    shape = tuple(n if d == batch else 1 for d, n in enumerate(x.shape))
    spread = tw.broadcast_to(tw.reshape(tw.astype(lengths, tw.i64), shape), x.shape)
    places = tw.iota(x.shape, time)
    return tw.take_along_axis(x, tw.where(places < spread, spread - 1 - places, places), axis=time)


@operator("CenterCropPad")
def center_crop_pad(node: Node, x: Array, shape: Array) -> Array:
    """Cut or padded with zeros to `shape`, around the middle."""
    sizes = node.known_ints(shape, "shape")
    axes = axes_of(node.get("axes"), x.ndim)
    for axis, wanted in zip(axes, sizes, strict=True):
        extent = x.shape[axis]
        before = abs(extent - wanted) // 2
        if wanted < extent:
            x = x[(*(slice(None),) * axis, slice(before, before + wanted))]
        elif wanted > extent:
            x = tw.pad(x, [(before, wanted - extent - before) if d == axis else (0, 0) for d in range(x.ndim)])
    return x
