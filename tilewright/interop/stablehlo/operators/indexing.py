"""Reading and writing windows at places that the program computes, in their general forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright import api as tw
from tilewright import dtypes
from tilewright.api import lifting
from tilewright.api.array import Array
from tilewright.api.lifting import broadcast, cast, emit, full
from tilewright.interop.stablehlo.ir import Block
from tilewright.interop.stablehlo.operators.elementwise import like
from tilewright.interop.stablehlo.operators.manipulation import sliced
from tilewright.interop.stablehlo.operators.reduction import combined
from tilewright.interop.stablehlo.regions import chosen_argument, combiner
from tilewright.interop.stablehlo.registry import Node, as_integers, operation
from tilewright.primitives import Shape
from tilewright.records import dataclass


@dataclass(frozen=True)
class Windows:
    """Windows of `sizes` into an array of `shape`, one for each position of `batch`.

    `starts` gives, for axes that have one, where each window begins; `paired` axes go with an axis of the batch.
    """

    shape: Shape
    sizes: Shape
    batch: Shape
    starts: dict[int, Array]
    paired: dict[int, int]

    def index(self, axis: int) -> Array:
        """The start of the windows along an axis, for each position of the batch."""
        if axis in self.starts:
            return self.starts[axis]
        if axis in self.paired:
            return emit("iota", axis=self.paired[axis], shape=self.batch, dtype="i64")
        return full(self.batch, 0, dtypes.i64)

    def arrays(self, axes: Sequence[int], starts: dict[int, Array]) -> list[Array]:
        """Index arrays for `axes`: their own axes are those of the batch, then one for each of the wide axes."""
        wide = [axis for axis in axes if self.sizes[axis] != 1]
        extent = (*self.batch, *(self.sizes[axis] for axis in wide))
        found: list[Array] = []
        for axis in axes:
            start = starts[axis]
            index = lifting.reshape(start, (*start.shape, *(1,) * len(wide)))
            if axis in wide:
                place = emit("iota", axis=len(self.batch) + wide.index(axis), shape=extent, dtype=index.dtype.name)
                index = _spread(index, extent) + place
            found.append(_spread(index, extent))
        return found


def _spread(x: Array, shape: Shape) -> Array:
    return broadcast(x, shape)


def _windows(
    node: Node, x: Array, sizes: Shape, indices: Array, vector: int, mapped: Shape, paired: Shape, pairs: Shape
) -> Windows:
    """`vector` is the axis of `indices` along which they are the starts of the `mapped` axes of `x`; `paired` axes of
    `x` go with the axes `pairs` of `indices`."""
    if not 0 <= vector <= indices.ndim or len(sizes) != x.ndim or len(paired) != len(pairs):
        raise node.malformed("the axes do not belong together")
    axes = [d for d in range(indices.ndim) if d != vector]
    batch = tuple(indices.shape[d] for d in axes)
    count = indices.shape[vector] if vector < indices.ndim else 1
    if count != len(mapped) or any(not 0 <= d < x.ndim for d in (*mapped, *paired)) or vector in pairs:
        raise node.malformed(f"indices of {count} numbers for {len(mapped)} axes")
    starts: dict[int, Array] = {}
    for n, axis in enumerate(mapped):
        bounds = [(n, n + 1) if d == vector else (0, size) for d, size in enumerate(indices.shape)]
        column = sliced(indices, [low for low, _ in bounds], [high for _, high in bounds])
        starts[axis] = _as_index(lifting.reshape(column, batch), x.shape[axis])
    return Windows(x.shape, sizes, batch, starts, {d: axes.index(p) for d, p in zip(paired, pairs, strict=True)})


def _as_index(index: Array, size: int) -> Array:
    """Indices of a signed type of at least 32 bits, beyond the axis where they were."""
    if index.dtype in (dtypes.i32, dtypes.i64) and size < 1 << 30:
        return index
    if index.dtype == dtypes.u64:
        index = tw.minimum(index, like(index, size))
    return cast(index, dtypes.i64)


# ---- gather ---------------------------------------------------------------------------------------------------------


@operation("stablehlo.gather", moves=True)
def gather(node: Node, x: Array, indices: Array) -> Array:
    """Windows at places given by `indices`, which are moved inside."""
    numbers = node.get("dimension_numbers")
    offsets, collapsed, paired, pairs, mapped = (
        as_integers(numbers.get(key, ()), key)
        for key in (
            "offset_dims",
            "collapsed_slice_dims",
            "operand_batching_dims",
            "start_indices_batching_dims",
            "start_index_map",
        )
    )
    sizes = node.integers("slice_sizes")
    if len(sizes) != x.ndim or any(not 0 <= n <= size for n, size in zip(sizes, x.shape, strict=True)):
        raise node.malformed(f"a window of {sizes} does not fit {x.shape}")
    if math.prod(node.type.shape) == 0:
        return full(node.type.shape, 0, x.dtype)
    windows = _windows(node, x, sizes, indices, numbers.get("index_vector_dim", 0), mapped, paired, pairs)
    hidden = {*collapsed, *paired}
    kept = tuple(n for d, n in enumerate(sizes) if d not in hidden)
    made = _one_window(x, windows) if math.prod(windows.batch) == 1 else _many_windows(x, windows)
    made = lifting.reshape(made, (*windows.batch, *kept))
    if len(offsets) != len(kept) or any(not 0 <= d < made.ndim for d in offsets) or len(set(offsets)) < len(offsets):
        raise node.malformed(f"axes {offsets} of the result for windows of {len(kept)} axes")
    # The axes of the windows go to `offsets`, those of the batch to the rest.
    order = [0] * made.ndim
    rest = iter(range(len(windows.batch)))
    inner = iter(range(len(windows.batch), made.ndim))
    for axis in range(made.ndim):
        order[axis] = next(inner) if axis in offsets else next(rest)
    return lifting.transpose(made, order)


def _one_window(x: Array, windows: Windows) -> Array:
    starts = [lifting.reshape(windows.index(axis), ()) for axis in range(x.ndim)]
    return emit("dynamic_slice", x, *starts, sizes=windows.sizes) if x.ndim else x


def _many_windows(x: Array, windows: Windows) -> Array:
    """The windows; axes are those of the batch, then those of the array."""
    sizes = windows.sizes
    # A window over all of an axis begins at its front.
    axes = [d for d in range(x.ndim) if d in windows.paired or (d in windows.starts and sizes[d] != x.shape[d])]
    limits = [x.shape[d] if d in axes else sizes[d] for d in range(x.ndim)]
    source = sliced(x, (0,) * x.ndim, limits)
    if not axes:
        return broadcast(source, (*windows.batch, *source.shape))
    wide = [d for d in axes if sizes[d] != 1]
    starts = {d: tw.clip(windows.index(d), 0, x.shape[d] - sizes[d]) if d in wide else windows.index(d) for d in axes}
    made = emit("gather", source, *_of_one_type(windows.arrays(axes, starts)), axes=tuple(axes))
    rank = len(windows.batch)
    rest = [d for d in range(x.ndim) if d not in axes]
    places = {d: rank + n for n, d in enumerate((*wide, *rest))}
    return lifting.transpose(made, [*range(rank), *(places[d] for d in sorted(places))])


def _of_one_type(arrays: list[Array]) -> list[Array]:
    if len({a.dtype for a in arrays}) == 1:
        return arrays
    return [cast(a, dtypes.i64) for a in arrays]


# ---- scatter --------------------------------------------------------------------------------------------------------


@operation("stablehlo.scatter")
def scatter(node: Node, *operands: Array) -> Any:
    """Windows combined by a region into an array at places given by indices. A window that is not all inside is left
    out, as XLA does."""
    count = len(operands) // 2
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    if len(updates) != count or any(x.shape != inputs[0].shape for x in inputs):
        raise node.malformed("the operands are not arrays, indices, and as many updates")
    numbers = node.get("scatter_dimension_numbers")
    inner, inserted, paired, pairs, mapped = (
        as_integers(numbers.get(key, ()), key)
        for key in (
            "update_window_dims",
            "inserted_window_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
            "scatter_dims_to_operand_dims",
        )
    )
    if inputs[0].size == 0 or updates[0].size == 0:
        return tuple(inputs)
    x, update = inputs[0], updates[0]
    shown = [d for d in range(x.ndim) if d not in (*inserted, *paired)]
    if len(shown) != len(inner) or any(not 0 <= d < update.ndim for d in inner):
        raise node.malformed(f"windows of {len(inner)} axes into {x.ndim}")
    sizes = [1] * x.ndim
    for axis, source in zip(shown, sorted(inner), strict=True):
        sizes[axis] = update.shape[source]
    if any(n > size for n, size in zip(sizes, x.shape, strict=True)):
        raise node.malformed(f"a window of {tuple(sizes)} does not fit {x.shape}")
    windows = _windows(node, x, tuple(sizes), indices, numbers.get("index_vector_dim", 0), mapped, paired, pairs)
    if len(windows.batch) + len(inner) != update.ndim:
        raise node.malformed(f"updates with {update.ndim} axes for {len(windows.batch)} batch axes")
    return _scattered(node, list(inputs), list(updates), windows, dict(zip(shown, sorted(inner), strict=True)))


def _scattered(
    node: Node, inputs: list[Array], updates: list[Array], windows: Windows, shown: dict[int, int]
) -> tuple[Array, ...]:
    """`shown` are the axes of updates for axes of the array."""
    x = inputs[0]
    axes = [d for d in range(x.ndim) if d not in shown or d in windows.starts or windows.sizes[d] != x.shape[d]]
    wide = [d for d in axes if windows.sizes[d] != 1]
    arrays = _of_one_type(windows.arrays(axes, _inside(windows, axes, wide)))
    narrow = [shown[d] for d in axes if d in shown and d not in wide]
    rest = [d for d in range(x.ndim) if d not in axes]
    batch = [d for d in range(updates[0].ndim) if d not in shown.values()]
    order = [*batch, *narrow, *(shown[d] for d in (*wide, *rest))]
    extent = tuple(windows.sizes[d] for d in (*wide, *rest))
    # Without an index there is one place, the whole array: an axis of size 1 in front stands for it.
    whole = () if axes else (1,)
    sources = [lifting.reshape(lifting.transpose(u, order), (*windows.batch, *extent)) for u in updates]
    targets = [lifting.reshape(x, (*whole, *x.shape)) for x in inputs]
    if not axes:
        axes, arrays = [0], [full(windows.batch, 0, dtypes.i64)]
    made = _combined(node, targets, sources, arrays, tuple(axes))
    return tuple(lifting.reshape(m, x.shape) for m in made)


def _inside(windows: Windows, axes: list[int], wide: list[int]) -> dict[int, Array]:
    """Starts along `axes`, before the front where a window is not all inside."""
    starts = {d: windows.index(d) for d in axes}
    fits: Array | None = None
    for d in wide:
        if d in windows.starts:
            start = starts[d]
            low, high = tw.greater_equal(start, 0), tw.less_equal(start, windows.shape[d] - windows.sizes[d])
            both = tw.logical_and(low, high)
            fits = both if fits is None else tw.logical_and(fits, both)
    if fits is not None:
        first = wide[0]
        outside = like(starts[first], -windows.shape[first] - 1)
        starts[first] = tw.where(fits, starts[first], outside)
    return starts


def _combined(
    node: Node, targets: list[Array], sources: list[Array], arrays: list[Array], axes: Shape
) -> Sequence[Array]:
    (region,) = node.regions
    if len(targets) == 1:
        fn = combiner(region, targets[0].dtype)
        chosen = chosen_argument(region)
        if chosen == 0:
            return targets
        is_linear = fn == "add" or not targets[0].dtype.is_complex
        if (fn is not None and is_linear) or chosen == 1:
            return [emit("scatter", targets[0], sources[0], *arrays, axes=axes, fn=fn or "set")]
    if node.get("unique_indices", False):
        return _updated(node, region, targets, sources, arrays, axes)
    return _one_by_one(node, region, targets, sources, arrays, axes)


def _updated(
    node: Node, region: Block, targets: list[Array], sources: list[Array], arrays: list[Array], axes: Shape
) -> list[Array]:
    """Elements combined by any region, where no two updates go to the same one."""
    found = [emit("gather", x, *arrays, axes=axes) for x in targets]
    made = combined(node, region, found, sources)
    return [emit("scatter", x, m, *arrays, axes=axes, fn="set") for x, m in zip(targets, made, strict=True)]


def _one_by_one(
    node: Node, region: Block, targets: list[Array], sources: list[Array], arrays: list[Array], axes: Shape
) -> list[Array]:
    """Elements combined by any region, one update after the other."""
    count = arrays[0].size
    inner = sources[0].shape[arrays[0].ndim :]
    places = [lifting.reshape(a, (count,)) for a in arrays]
    rows = [lifting.reshape(s, (count, *inner)) for s in sources]

    def step(n: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        place = [_row(p, n) for p in places]
        return tuple(_updated(node, region, list(state), [_row(r, n) for r in rows], place, axes))

    return list(tw.fori_loop(0, count, step, tuple(targets)))


def _row(x: Array, n: Array) -> Array:
    zero = full((), 0, n.dtype)
    return emit("dynamic_slice", x, n, *(zero,) * (x.ndim - 1), sizes=(1, *x.shape[1:]))
