"""How much of an axis of a padded array is real.

An axis of the padded array is a product of factors, outermost first, each of which is real below its size at the call:
an axis that two others were merged into is real where both were. `None` stands for an axis along which all elements are
equal, so that what is beyond needs no care.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TypeAlias

from tilewright.frontend.sizes.family import NotUniform, Sizes, varies

Axis: TypeAlias = tuple[Sizes, ...] | None
Axes: TypeAlias = tuple[Axis, ...]


def plain(sizes: Sizes) -> Axis:
    """An axis that is real up to its size."""
    return (sizes,)


def fresh(sizes: Sizes) -> Axis:
    """An axis along which all elements are equal."""
    return None if varies(sizes) else (sizes,)


def is_padded(axis: Axis) -> bool:
    """Whether there may be something else than real elements along it."""
    return axis is not None and any(varies(factor) for factor in axis)


def padded_size(axis: tuple[Sizes, ...]) -> int:
    """The size in the padded array."""
    return math.prod(factor[0] for factor in axis)


def joined(first: Axes, second: Axes) -> Axes:
    """The axes of an elementwise operation.

    Raises:
        NotUniform: elements that belong together are at different places.
    """
    result: list[Axis] = []
    for a, b in zip(first, second, strict=True):
        if a is not None and b is not None and a != b:
            raise NotUniform("axes that meet were merged from others in different ways")
        result.append(b if a is None else a)
    return tuple(result)


def joined_all(axes: Sequence[Axes]) -> Axes:
    """The axes of an operation on elements of several arrays.

    Raises:
        NotUniform: elements that belong together are at different places.
    """
    return functools.reduce(joined, axes)


def merged(factors: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """Neighbours as one factor where what is real stays in front: one of constant size goes into the one before."""
    result: list[Sizes] = []
    for factor in factors:
        if result and not varies(factor):
            result[-1] = _times(result[-1], factor)
        elif result and all(n == 1 for n in result[-1]):
            result[-1] = factor
        else:
            result.append(factor)
    return tuple(result)


def reshaped(axes: Axes, sizes: Sequence[Sizes], result: Sequence[Sizes]) -> Axes:
    """The axes of a row-major reshape of an array of `sizes` to `result`.

    Raises:
        NotUniform: the real elements would be no cross-product of ranges.
    """
    left = [factor for axis, size in zip(axes, sizes, strict=True) for factor in ((size,) if axis is None else axis)]
    if any(0 in factor for factor in left):
        raise NotUniform("a reshape of no elements")
    left.reverse()
    made: list[Axis] = []
    for size in result:
        taken = _take(left, size)
        made.append(merged(taken or [size]))
    return tuple(made)


def _take(left: list[Sizes], size: Sizes) -> list[Sizes]:
    """The next factors (from the end of `left`) that make up an axis of `size`; the rest of the last one stays."""
    taken: list[Sizes] = []
    need = size
    while any(n != 1 for n in need):
        if not left:
            raise NotUniform("a reshape that cuts across padded axes")
        factor = left.pop()
        rest = _divided(need, factor)
        if rest is None:
            inner = _divided(factor, need)
            if inner is None or varies(inner):
                raise NotUniform("a reshape that cuts across padded axes")
            left.append(inner)
            factor, rest = need, _ones(need)
        taken.append(factor)
        need = rest
    return taken


def _times(first: Sizes, second: Sizes) -> Sizes:
    return tuple(a * b for a, b in zip(first, second, strict=True))


def _divided(whole: Sizes, part: Sizes) -> Sizes | None:
    if any(n == 0 or m % n for m, n in zip(whole, part, strict=True)):
        return None
    return tuple(m // n for m, n in zip(whole, part, strict=True))


def _ones(sizes: Sizes) -> Sizes:
    return (1,) * len(sizes)
