"""Bounds that an access may pass for the whole of a nest, as where an index that is read from memory chooses its row: a
branch around the nest, not a mask for each vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tilewright.dialects import tile
from tilewright.passes.affine_access import Access
from tilewright.targets.cpu.index_sets import IndexSets, Linear
from tilewright.targets.cpu.nest_plan import NestPlan, is_place, root_indices


class Guard(msgspec.Struct, frozen=True):
    """`0 <= coordinate < size`."""

    coordinate: Linear
    size: int


def guard_of(sets: IndexSets, found: Access, position: int) -> Guard | None:
    """The guard of an access along a dimension of its ref; None where its coordinate is not linear."""
    coordinate = sets.coordinate(found, position)
    return None if coordinate is None else Guard(coordinate, found.type.shape[position])


def common_guards(plan: NestPlan, sets: IndexSets, unsure: Callable[[Access], Sequence[int]]) -> list[Guard]:
    """The guards that do not vary within a nest and without which it stores nothing; `unsure` states the dimensions
    along which an access may be outside."""
    common: list[Guard] | None = None
    for root in plan.roots:
        if not isinstance(root, tile.StoreOp):
            return []
        found = plan.access(root, root_indices(plan, root))
        guards = [guard for position in unsure(found) if (guard := guard_of(sets, found, position)) is not None]
        guards = [guard for guard in guards if not _varies(plan, guard.coordinate)]
        common = guards if common is None else [guard for guard in common if guard in guards]
    return common or []


def _varies(plan: NestPlan, coordinate: Linear) -> bool:
    return any(
        isinstance(term, int) or not (is_place(term[0]) or plan.dependences.get(term) == frozenset())
        for term, _ in coordinate.terms
    )
