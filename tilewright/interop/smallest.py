"""The smallest elements along an axis, which models ask for as often as for the largest ones."""

from __future__ import annotations

import tilewright as tw
from tilewright.api.array import Array
from tilewright.dtypes import by_name


def smallest(x: Array, k: int, axis: int) -> tuple[Array, Array]:
    """The `k` smallest elements along `axis`, in order, and their indices (i64), the first of equal ones first; NaN is
    larger than all numbers, as in a sort."""
    _, indices = tw.top_k(tw.bitwise_invert(_keys(x)), k, axis=axis)
    return tw.take_along_axis(x, indices, axis=axis), indices


def _keys(x: Array) -> Array:
    """Integers in the order of the elements; inverted bit by bit, they are in the opposite one."""
    if x.dtype.is_bool:
        return tw.astype(x, tw.u8)
    if not x.dtype.is_float:
        return x
    # Zeros of both signs are equal, and patterns of negative numbers in the opposite order.
    pattern = tw.bitcast(x + tw.full((), 0, dtype=x.dtype), by_name(f"i{x.dtype.bits}"))
    highest = tw.full((), int(pattern.dtype.highest), dtype=pattern.dtype)
    ordered = tw.where(pattern < 0, tw.bitwise_xor(pattern, highest), pattern)
    return tw.where(tw.isnan(x), highest, ordered)
