"""Schedules that are given instead of chosen: to measure how good the choices are, and for a search of better ones."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.options import options

if TYPE_CHECKING:
    from tilewright.cost.tiles import MatmulTile
    from tilewright.cost.vectors.products import Schedule


@dataclass(frozen=True)
class Given:
    """`product` is for all matmuls, `split` the tile of all that can be done in parts; `reductions` has a tile for each
    shape that a loop reduces, with an extent for each dimension."""

    product: Schedule | None = None
    split: MatmulTile | None = None
    reductions: Mapping[tuple[int, ...], tuple[int, ...]] = field(
        default_factory=dict[tuple[int, ...], tuple[int, ...]]
    )


_NOTHING = Given()
_given: ContextVar[Given] = ContextVar("given", default=_NOTHING)


def given() -> Given:
    """Schedules that override the choice of the cost model."""
    return _given.get()


@contextmanager
def schedules_given(schedules: Given) -> Generator[None]:
    """Compile by these schedules. The compile cache, which knows nothing of them, is off."""
    token = _given.set(schedules)
    try:
        with options(cache=False):
            yield
    finally:
        _given.reset(token)
