"""Strides, dilations and padding of windows, as users give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.api.array import located
from tilewright.api.lifting import integer
from tilewright.errors import ArgumentError


def per_axis(what: str, value: int | Sequence[int], rank: int, least: int) -> tuple[int, ...]:
    """One number per spatial axis, of at least `least`.

    Raises:
        ArgumentError: they are others.
    """
    values = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    checked = tuple(integer(v, f"the {what}") for v in values)
    if len(checked) != rank or any(v < least for v in checked):
        message = f"the {what} is {value}, for {rank} spatial axes"
        raise located(ArgumentError(message, help=f"give an integer of at least {least}, or one per axis"))
    return checked


def padding_pairs(padding: int | Sequence[Any], rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Amounts before and after each spatial axis, of numbers or pairs.

    Raises:
        ArgumentError: they are others.
    """
    each: list[Any] = [*padding] if isinstance(padding, Sequence) else [padding] * rank
    given = [tuple(p) if isinstance(p, Sequence) else (p, p) for p in each]
    pairs = [tuple(integer(n, "the padding") for n in pair) for pair in given]
    if len(pairs) != rank or any(len(p) != 2 or min(p) < 0 for p in pairs):
        message = f"the padding is {padding}, for {rank} spatial axes"
        raise located(ArgumentError(message, help="give a number, or a number or a pair (before, after) per axis"))
    return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
