"""A smallest explanation of a contradiction: origins of which none can be left out (Junker, QuickXplain, 2004)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def smallest_conflict(suspects: Sequence[T], is_consistent: Callable[[Sequence[T]], bool]) -> list[T]:
    """A subset of suspects that together are inconsistent while every part of it is not, in the order given. Suspects
    that come earlier are kept out of it where possible.

    The suspects together must be inconsistent.
    """

    def explain(background: list[T], added: bool, candidates: Sequence[T]) -> list[T]:
        if added and not is_consistent(background):
            return []
        if len(candidates) == 1:
            return list(candidates)
        half = len(candidates) // 2
        first, second = candidates[:half], candidates[half:]
        from_second = explain([*background, *first], bool(first), second)
        from_first = explain([*background, *from_second], bool(from_second), first)
        return [*from_first, *from_second]

    return explain([], False, list(suspects)) if suspects else []
