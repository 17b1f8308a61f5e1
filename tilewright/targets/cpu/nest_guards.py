"""Bounds that an access may pass for the whole of a nest, as where an index that is read from memory chooses its row: a
branch around the nest, not a mask for each vector. And bounds that blocks of what is transposed pass but for the last
ones."""

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


def guards_along(
    plan: NestPlan,
    sets: IndexSets,
    dim: int,
    unsure: Callable[[Access], Sequence[int]],
    low: Callable[[Access, int], float],
) -> Sequence[Guard]:
    """Guards of each position along a dim of the loads that are transposed, where nothing else within the
    nest moves their coordinates and these are never below 0; `low` states the least."""
    guards: dict[Guard, None] = {}
    for value, at in plan.turned:
        if not isinstance(value.owner, tile.LoadOp):
            continue
        found = plan.access(value.owner, at)
        for position in unsure(found):
            guard = guard_of(sets, found, position)
            if guard is not None and guard.coordinate.coefficient(dim):
                rest = guard.coordinate.without(dim)
                if guard.coordinate.coefficient(dim) != 1 or _varies(plan, rest) or low(found, position) < 0:
                    return ()
                guards[guard] = None
    return tuple(guards)


def _varies(plan: NestPlan, coordinate: Linear) -> bool:
    return any(
        isinstance(term, int) or not (is_place(term[0]) or plan.dependences.get(term) == frozenset())
        for term, _ in coordinate.terms
    )
