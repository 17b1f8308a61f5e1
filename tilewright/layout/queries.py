"""Questions about layouts: equality as maps, injectivity, contiguity, and which element lives at a position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import gcd, prod

from msgspec.structs import replace

from tilewright.layout.composition import inverse
from tilewright.layout.dims import known_multiple, lower_bound, static, upper_bound
from tilewright.layout.iters import AxisIter, Iter, fuse_digits
from tilewright.layout.layout import Layout, has_effect, needs_values
from tilewright.layout.operations import canonical, checked_dim, trim


def same_map(left: Layout, right: Layout) -> bool:
    """Whether both put every element of the same shape at the same positions, with the same partials. Padding is
    ignored.

    Exact for static layouts; time linear in the size only when different XOR terms have to be compared. For unknown
    sizes True means equal for all values, False that it could not be shown.
    """
    if left == right:
        return True
    if left.shape != right.shape:
        return False
    left, right = canonical(trim(left)), canonical(trim(right))
    if left == right:
        return True
    if not left.is_static or not right.is_static or left.partial != right.partial:
        return False
    if left.swizzle != right.swizzle:
        return _same_places(left, right)
    return (left.shard, left.offset) == (right.shard, right.offset) and _shifts(left) == _shifts(right)


def is_injective(layout: Layout) -> bool:
    """Whether no two elements have a position in common. With unknown sizes, whether that holds for all values."""
    layout = canonical(trim(layout))
    if all(_axis_is_injective(layout, axis) for axis in layout.axes) and not _has_still_digit(layout):
        return True
    is_exact = all(padded == size for padded, size in zip(layout.padded_shape, layout.shape, strict=True))
    if is_exact or not layout.is_static:
        return False
    owners: dict[tuple[int, ...], tuple[int, ...]] = {}
    plain = replace(layout, swizzle=())
    return all(owners.setdefault(place, index) == index for index in plain.indices() for place in plain.places(index))


def has_copies(layout: Layout, axis: str, count: int) -> bool:
    """Whether several of the `count` positions along `axis` may hold the same element: it has replicas there, or fewer
    digits than positions. The layout's sizes are known."""
    held = prod(static(digit.extent) for digit in layout.iters if digit.axis == axis and digit.stride)
    return held < count or any(copy.axis == axis for copy in layout.replica)


def is_contiguous(layout: Layout, axis: str) -> bool:
    """Whether the elements, last dim fastest, follow one another on `axis` and stay in place on all others.

    Copies and offsets do not matter. A swizzled layout with unknown sizes counts as not contiguous.
    """
    plain = canonical(trim(replace(layout, replica=(), partial=())))
    if plain.swizzle and plain.is_static:
        return _is_counting(plain, axis)
    flat = fuse_digits(plain.iters)
    is_simple = not plain.swizzle and all(len(digits) < 2 for digits in plain.shard) and len(flat) < 2
    return is_simple and all(digit.axis == axis and digit.stride == 1 for digit in flat)


def contiguous_run(layout: Layout, axis: str, dim: int = -1) -> int:
    """The largest `n` such that each aligned block of `n` indices along `dim` is contiguous on `axis`.

    This is how wide a vector access may be. The padding counts as elements; 1 when neighbours are not adjacent. Under
    XOR terms the run is certain but may not be the largest.
    """
    dim = checked_dim(layout, dim)
    digits = fuse_digits(layout.shard[dim])
    if not digits or digits[-1].axis != axis or digits[-1].stride != 1:
        return 1
    run = known_multiple(digits[-1].extent)
    low, high = replace(layout, swizzle=()).reach(axis)
    terms = layout.swizzle_on(axis)
    if not has_effect(terms, low, high):
        return run
    kept_bits = 1 << min(min(term.target, term.source) for term in terms)
    return gcd(run, kept_bits, alignment(layout, axis, dim))


def alignment(layout: Layout, axis: str, dim: int = -1) -> int:
    """A number that divides the coordinate on `axis` of every index that is 0 in the innermost digit of `dim`.

    Counted before swizzling; 0 when all of them are 0. With `contiguous_run` it determines which vector accesses are
    aligned.
    """
    dim = checked_dim(layout, dim)
    result = known_multiple(layout.offset_on(axis))
    for number, digits in enumerate(layout.shard):
        fused = fuse_digits(digits)
        moving = fused[:-1] if number == dim else fused
        result = gcd(result, *(digit.stride for digit in moving if digit.axis == axis))
    copies = [copy for copy in (*layout.replica, *layout.partial) if copy.axis == axis and copy.extent != 1]
    return gcd(result, *(copy.stride for copy in copies))


def locate(layout: Layout, place: Mapping[str, int]) -> tuple[int, ...] | None:
    """The logical index of the element that has a copy or term at `place`; None when there is no such element.

    Axes that are not named count as 0.

    Raises:
        LayoutError: the layout is not static, two elements share a position, or strides do not nest.
    """
    if not layout.is_static:
        raise needs_values(layout)
    back, lowest = _inverse_of(replace(layout, swizzle=()))
    relative: list[int] = []
    for axis, low in zip(layout.axes, lowest, strict=True):
        coordinate = place.get(axis, 0)
        for term in reversed(layout.swizzle_on(axis)):
            coordinate = term.apply(coordinate)
        relative.append(coordinate - low)
    if any(not 0 <= at < size for at, size in zip(relative, back.static_shape, strict=True)):
        return None
    found = back.coordinates(relative)
    index = tuple(found.get(f"dim{dim}", 0) for dim in range(layout.rank))
    if any(not 0 <= at < size for at, size in zip(index, layout.static_shape, strict=True)):
        return None
    wanted = frozenset(pair for pair in place.items() if pair[1])
    return index if wanted in _named_places(layout, index) else None


@lru_cache(maxsize=64)
def _inverse_of(layout: Layout) -> tuple[Layout, tuple[int, ...]]:
    """The inverse of a static layout, and the coordinate per axis that it counts from."""
    return inverse(layout), tuple(lower_bound(layout.reach(axis)[0]) for axis in layout.axes)


def _same_places(left: Layout, right: Layout) -> bool:
    return all(_named_places(left, index) == _named_places(right, index) for index in left.indices())


def _named_places(layout: Layout, index: Sequence[int]) -> set[frozenset[tuple[str, int]]]:
    """Positions as the axes on which the coordinate is not 0."""
    named = (zip(layout.axes, place, strict=True) for place in layout.places(index))
    return {frozenset(pair for pair in pairs if pair[1]) for pairs in named}


def _shifts(layout: Layout) -> dict[str, set[int]]:
    """Per axis, the distances of the replicas."""
    found: dict[str, set[int]] = {}
    for copy in layout.replica:
        steps = range(0, upper_bound(copy.extent) * copy.stride, copy.stride)
        found[copy.axis] = {base + step for base in found.get(copy.axis, {0}) for step in steps}
    return found


def _has_still_digit(layout: Layout) -> bool:
    return any(digit.stride == 0 and digit.extent != 1 for digit in layout.iters)


def _is_counting(layout: Layout, axis: str) -> bool:
    """Whether the elements, one after another, are one further on `axis` and nowhere else."""
    expected: dict[str, int] | None = None
    for index in layout.indices():
        found = layout.coordinates(index)
        if expected is not None and found != expected:
            return False
        expected = found | {axis: found.get(axis, 0) + 1}
    return True


def _axis_is_injective(layout: Layout, axis: str) -> bool:
    """Whether different digits on one axis never meet, all combinations of digits counted."""
    parts = [part for part in layout.all_iters if part.axis == axis and part.stride and part.extent != 1]
    parts.sort(key=lambda part: abs(part.stride))
    start = 0
    for end in range(1, len(parts) + 1):
        reached = sum(abs(part.stride) * (upper_bound(part.extent) - 1) for part in parts[start:end])
        # Sums of the larger strides are multiples of their divisor: if that exceeds the rest, the two do not interact.
        if end == len(parts) or gcd(*(part.stride for part in parts[end:])) > reached:
            if not _group_is_injective(parts[start:end]):
                return False
            start = end
    return True


def _group_is_injective(parts: Sequence[AxisIter]) -> bool:
    reached, is_nested = 0, True
    for part in parts:
        is_nested = is_nested and abs(part.stride) > reached
        reached += abs(part.stride) * (upper_bound(part.extent) - 1)
    choices = prod(upper_bound(part.extent) for part in parts if isinstance(part, Iter))
    if is_nested or choices > reached + 1:
        return is_nested
    owners: dict[int, tuple[int, ...]] = {}
    for steps in product(*(range(upper_bound(part.extent)) for part in parts)):
        place = sum(part.stride * step for part, step in zip(parts, steps, strict=True))
        owner = tuple(step for part, step in zip(parts, steps, strict=True) if isinstance(part, Iter))
        if owners.setdefault(place, owner) != owner:
            return False
    return True
