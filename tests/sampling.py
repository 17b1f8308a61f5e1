"""Which part of a large table of cases a run of the tests takes; all of it where `TW_TEST_ALL` is set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, TypeVar

T = TypeVar("T")

ALL = bool(os.environ.get("TW_TEST_ALL"))


def sampled(cases: Sequence[T], every: int, first: int = 0) -> Sequence[T]:
    """Each `every`-th case from the one at `first` on."""
    return cases if ALL else cases[first::every]


def alternating(*axes: Iterable[Any], every: int = 2) -> list[tuple[Any, ...]]:
    """One of `every` combinations: half of all of them, in which each value of one axis meets every other value of
    another; with an axis of `every` values, all combinations of the others."""
    places = product(*(tuple(enumerate(axis)) for axis in axes))
    return [tuple(value for _, value in case) for case in places if ALL or not sum(n for n, _ in case) % every]


def count(usual: int, full: int) -> int:
    """How many random cases: `full` where all are asked for."""
    return full if ALL else usual
