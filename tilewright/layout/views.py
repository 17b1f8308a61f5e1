"""Views of the logical shape: permute, reshape, reduce, broadcast, and the same as edges that work in both directions.

An edge (`Transpose`, `Reshape`, `Broadcast`, `Reduce`) gives from the layout of an operation's input the layout of its
output that moves no data (`image`), and back (`preimage`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from tilewright.errors import LayoutError
from tilewright.layout.dims import Size, is_integer, multiply, upper_bound
from tilewright.layout.iters import (
    NO_AXIS,
    Digits,
    Iter,
    Partial,
    Replica,
    digit_product,
    fuse_copies,
    fuse_digits,
    split_digits,
    trim_digits,
)
from tilewright.layout.layout import Layout
from tilewright.layout.operations import checked_dim, forward_copies


def permute(layout: Layout, order: Sequence[int]) -> Layout:
    """Dim `k` of the result is dim `order[k]` of the argument.

    Raises:
        LayoutError: `order` is not a permutation of the dims.
    """
    if sorted(order) != list(range(layout.rank)):
        raise LayoutError(
            f"{tuple(order)} is not a permutation of {layout.rank} dims", help="use each dim once, counted from 0"
        )
    return replace(
        layout, shape=tuple(layout.shape[dim] for dim in order), shard=tuple(layout.shard[dim] for dim in order)
    )


def reshape(layout: Layout, shape: Sequence[Size]) -> Layout:
    """The layout of the same elements under a new shape, elements counted with the last dim fastest.

    Raises:
        LayoutError: the sizes differ, a dim that is merged into an outer one is padded, or a digit straddles a new dim.
    """
    if 0 in layout.shape and 0 in shape:
        return replace(layout, shape=tuple(shape), shard=tuple(_still_digits(size) for size in shape))
    shard: list[Digits] = [()] * len(shape)
    for sources, targets in _matching_groups(layout.shape, shape):
        if len(sources) == len(targets) == 1:
            shard[targets[0]] = layout.shard[sources[0]]
            continue
        left = _flat_digits(layout, sources)
        wide = [dim for dim in targets if shape[dim] != 1]
        for dim in reversed(wide[1:]):
            left, shard[dim] = split_digits(left, _static_inner(shape[dim]), may_grow=True)
        if wide:
            shard[wide[0]] = left
    return replace(layout, shape=tuple(shape), shard=tuple(shard))


def reduce(
    layout: Layout,
    dims: Collection[int],
    op: str | None = None,
    *,
    keep_dims: bool = False,
    private_axes: Collection[str] = (),
) -> Layout:
    """Drop dims. The result at an index has all positions that the argument has along the dropped dims.

    Their digits become replicas (the result is complete everywhere), or partials when `op` is given (each position
    holds a term, still to be combined by `op`). Digits on `private_axes` (the registers of one thread) are dropped.

    Raises:
        LayoutError: there is no such dim.
    """
    dropped = {checked_dim(layout, dim) for dim in dims}
    digits = [digit for dim in sorted(dropped) for digit in fuse_digits(layout.shard[dim]) if digit.stride]
    digits = [digit for digit in digits if digit.axis not in private_axes]
    kept = [dim for dim in range(layout.rank) if keep_dims or dim not in dropped]
    result = replace(
        layout,
        shape=tuple(1 if dim in dropped else layout.shape[dim] for dim in kept),
        shard=tuple(() if dim in dropped else layout.shard[dim] for dim in kept),
    )
    if op is None:
        copies = tuple(Replica(digit.extent, digit.stride, digit.axis) for digit in digits)
        return replace(result, replica=(*layout.replica, *copies))
    terms = tuple(Partial(digit.extent, digit.stride, digit.axis, op) for digit in digits)
    return replace(result, partial=(*layout.partial, *terms))


def broadcast(
    layout: Layout,
    shape: Sequence[Size],
    dims: Sequence[int],
    digits: Mapping[int, Sequence[Iter]] | None = None,
    *,
    private_axes: Collection[str] = (),
) -> Layout:
    """Dim `k` of the argument becomes dim `dims[k]` of `shape`; the other dims are new, and dims of size 1 stretch.

    All elements along a new or stretched dim share the positions of the one that they come from. A dim in `digits` is
    spread out instead: its digits use up replicas of the argument, except those on `private_axes`, which are free.

    Raises:
        LayoutError: the dims do not fit, or digits are not among the replicas.
    """
    _check_broadcast(layout, shape, dims)
    source = {dim: own for own, dim in enumerate(dims)}
    given = digits or {}
    result = forward_copies(layout)
    shard: list[Digits] = []
    for dim, size in enumerate(shape):
        if dim in source and layout.shape[source[dim]] == size:
            shard.append(layout.shard[source[dim]])
            continue
        shard.append(tuple(given[dim]) if dim in given else _still_digits(size))
        public = [digit for digit in shard[-1] if digit.axis not in private_axes]
        result = replace(result, replica=_without_replicas(result.replica, public))
    return replace(result, shape=tuple(shape), shard=tuple(shard))


class Transpose(msgspec.Struct, frozen=True):
    """The edge of an operation whose output dim `k` is input dim `order[k]`."""

    order: tuple[int, ...]

    def image(self, layout: Layout) -> Layout:
        return permute(layout, self.order)

    def preimage(self, layout: Layout) -> Layout:
        if sorted(self.order) != list(range(layout.rank)):
            return permute(layout, self.order)
        return permute(layout, [self.order.index(dim) for dim in range(layout.rank)])


class Reshape(msgspec.Struct, frozen=True):
    """The edge of an operation that regroups `source` into `target`, the last dim fastest."""

    source: tuple[Size, ...]
    target: tuple[Size, ...]

    def image(self, layout: Layout) -> Layout:
        _check_shape(layout, self.source)
        return reshape(layout, self.target)

    def preimage(self, layout: Layout) -> Layout:
        _check_shape(layout, self.target)
        return reshape(layout, self.source)


class Broadcast(msgspec.Struct, frozen=True):
    """The edge of an operation that puts dim `k` of `source` at dim `dims[k]` of `target` and repeats along the others.

    Digits on `private_axes` hold repetitions that the input need not store.
    """

    source: tuple[Size, ...]
    target: tuple[Size, ...]
    dims: tuple[int, ...]
    private_axes: tuple[str, ...] = ()

    def image(self, layout: Layout, digits: Mapping[int, Sequence[Iter]] | None = None) -> Layout:
        """The output layout; `digits` spreads repeated dims over replicas, else they stay at one position."""
        _check_shape(layout, self.source)
        return broadcast(layout, self.target, self.dims, digits, private_axes=self.private_axes)

    def preimage(self, layout: Layout) -> Layout:
        """The input layout: what the output repeats becomes replicas."""
        _check_shape(layout, self.target)
        stretched = [dim for own, dim in enumerate(self.dims) if self.source[own] != self.target[dim]]
        fresh = [dim for dim in range(layout.rank) if dim not in self.dims]
        kept = reduce(layout, stretched, keep_dims=True, private_axes=self.private_axes)
        kept = reduce(kept, fresh, private_axes=self.private_axes)
        rank_of = {dim: rank for rank, dim in enumerate(sorted(self.dims))}
        return permute(kept, [rank_of[dim] for dim in self.dims])


class Reduce(msgspec.Struct, frozen=True):
    """The edge of an operation that combines `dims` of `source` and leaves the result with every participant.

    Digits on `private_axes` are combined within their holder and leave no copies.
    """

    source: tuple[Size, ...]
    dims: tuple[int, ...]
    private_axes: tuple[str, ...] = ()

    def image(self, layout: Layout) -> Layout:
        _check_shape(layout, self.source)
        return reduce(layout, self.dims, private_axes=self.private_axes)

    def preimage(self, layout: Layout, digits: Mapping[int, Sequence[Iter]]) -> Layout:
        """The input layout whose reduced dims have `digits`: on private axes freely, elsewhere from the replicas."""
        kept = tuple(dim for dim in range(len(self.source)) if dim not in self.dims)
        _check_shape(layout, tuple(self.source[dim] for dim in kept))
        return broadcast(layout, self.source, kept, digits, private_axes=self.private_axes)


def _still_digits(size: Size) -> Digits:
    """Digits that count `size` indices and stay at one position."""
    return (Iter(size, 0, NO_AXIS),) if upper_bound(size) > 1 else ()


def _check_shape(layout: Layout, shape: Sequence[Size]) -> None:
    if layout.shape != tuple(shape):
        raise LayoutError(
            f"this edge is for shape ({', '.join(map(str, shape))}), the layout has "
            f"({', '.join(map(str, layout.shape))})",
            help="give the layout of the matching side of the operation",
        )


def _matching_groups(source: Sequence[Size], target: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """Cut two shapes into the finest runs of dims with equal numbers of elements."""
    groups: list[tuple[list[int], list[int]]] = []
    here = there = 0
    while here < len(source) and there < len(target):
        sources, targets = [here], [there]
        size, wanted = source[here], target[there]
        here, there = here + 1, there + 1
        while size != wanted:
            if upper_bound(size) < upper_bound(wanted) and here < len(source):
                size, here = multiply(size, source[here]), here + 1
                sources.append(here - 1)
            elif upper_bound(size) > upper_bound(wanted) and there < len(target):
                wanted, there = multiply(wanted, target[there]), there + 1
                targets.append(there - 1)
            else:
                raise _different_sizes(source, target)
        groups.append((sources, targets))
    if any(size != 1 for size in (*source[here:], *target[there:])):
        raise _different_sizes(source, target)
    return groups


def _different_sizes(source: Sequence[Size], target: Sequence[Size]) -> LayoutError:
    return LayoutError(
        f"shape ({', '.join(map(str, source))}) cannot be regrouped into ({', '.join(map(str, target))}): no runs "
        "of dims are known to have equal sizes",
        help="use a shape with the same number of elements, with each unknown size kept whole",
    )


def _flat_digits(layout: Layout, dims: Sequence[int]) -> Digits:
    """The digits of a run of dims as those of one flat dim."""
    flat: Digits = ()
    for dim in dims:
        size = layout.shape[dim]
        if size == 1:
            continue
        own = trim_digits(layout.shard[dim], size) if flat else layout.shard[dim]
        if flat and digit_product(own) != size:
            raise LayoutError(
                f"dim {dim} of size {size} is padded to {digit_product(own)}, so it cannot merge into the dim before",
                help="reshape dims without padding, or copy to a layout without padding first",
            )
        flat = (*flat, *own)
    return flat


def _static_inner(size: Size) -> int:
    if is_integer(size):
        return size
    raise LayoutError(
        f"the unknown size `{size}` would become an inner part of a larger dim",
        help="only the first dim of a run that is split may have an unknown size",
    )


def _check_broadcast(layout: Layout, shape: Sequence[Size], dims: Sequence[int]) -> None:
    fits = len(dims) == layout.rank and len(set(dims)) == len(dims)
    fits = fits and all(0 <= dim < len(shape) for dim in dims)
    if not fits or any(size not in (1, shape[dim]) for size, dim in zip(layout.shape, dims, strict=True)):
        raise LayoutError(
            f"a layout of shape ({', '.join(map(str, layout.shape))}) does not broadcast to "
            f"({', '.join(map(str, shape))}) at dims {tuple(dims)}",
            help="name one target dim per dim, of the same size unless the size is 1",
        )


def _without_replicas(replicas: tuple[Replica, ...], digits: Sequence[Iter]) -> tuple[Replica, ...]:
    """The remaining replicas of positive stride when digits use some of them up."""
    for digit in digits:
        if digit.extent != 1 and digit.stride:
            replicas = _without_replica(fuse_copies(replicas), digit)
    return replicas


def _without_replica(replicas: tuple[Replica, ...], digit: Iter) -> tuple[Replica, ...]:
    for position, copy in enumerate(replicas):
        below, misfit = divmod(digit.stride, copy.stride)
        if copy.axis != digit.axis or misfit or below < 1:
            continue
        if not is_integer(copy.extent) or not is_integer(digit.extent) or copy.extent % (below * digit.extent):
            continue
        above = copy.extent // (below * digit.extent)
        rest = (
            Replica(below, copy.stride, copy.axis),
            Replica(above, digit.stride * digit.extent, copy.axis),
        )
        kept = (part for part in rest if part.extent != 1)
        return (*replicas[:position], *kept, *replicas[position + 1 :])
    raise LayoutError(
        f"the digit `{digit.extent}@{digit.axis}*{digit.stride}` is not among the replicas that are left",
        help="spread a new dim only over axes on which the layout is replicated",
    )
