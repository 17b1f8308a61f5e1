"""Index set splitting: loops of a nest are cut where a `select` changes sides, so that each part computes one side.

Concatenations, paddings and window updates select by position: `select(i < 64, x[i], y[i - 64])`. In one loop both
sides would be loaded, under masks, for every vector. Cut at 64, one loop copies `x` and another one `y`, without a
mask, as each knows that its loads are inside. The bounds may depend on index scalars, on scalar tiles and on the
indices of outer loops: they are computed when the loop begins. Conditions that do not vary within the nest, as where
the grid goes along the axis of a concatenation, are branches around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dialects.walks import producers_first
from tilewright.passes.affine_access import Access, linear_form
from tilewright.targets.cpu.nest_plan import (
    Item,
    NestPlan,
    is_place,
    lanes_vary,
    operand_items,
    operands_of,
    root_indices,
)

# Bounds on the code of a nest: bodies, and items that they compute together.
MOST_BODIES, MOST_ITEMS = 32, 2048
# Vectors that are loaded and stored in the time of one whose lanes are compared, loaded under a mask and selected.
MASKED_LOAD = 1.5
# Likewise of one that is loaded without a mask.
SELECTED_LOAD = 1.25
# Likewise of a masked one, where elements are narrower than what the machine loads under masks: LLVM loads lane by
# lane.
LANE_BY_LANE, NARROW_BYTES = 12.0, 4
# Vectors of a row, each with its own code, whose masks are constants.
MOST_VECTORS = 4
# Comparisons as `difference < bound`, or not.
_COMPARISONS = {"less": (0, True), "greater_equal": (0, False), "less_equal": (1, True), "greater": (1, False)}
# Values at the same place as their operand.
_MOVES = tile.BroadcastOp | tile.TransposeOp | tile.SliceOp | tile.ReshapeOp

# Constants that positions may be added to without wrapping around.
FAR = 1 << 48

# A nest dim, or an index scalar or scalar tile.
Term = int | Item


class Linear(msgspec.Struct, frozen=True):
    """`constant + sum(coefficient * term)`."""

    constant: int
    terms: tuple[tuple[Term, int], ...] = ()

    @property
    def key(self) -> frozenset[tuple[Term, int]]:
        """The terms: two with equal ones differ by a constant."""
        return frozenset(self.terms)

    def multiple_of(self, other: Linear) -> int | None:
        """How many times the terms of another one the terms are; None where they are no such multiple."""
        if not other.terms:
            return None
        term, coefficient = other.terms[0]
        factor, rest = divmod(self.coefficient(term), coefficient)
        is_multiple = not rest and self.key == frozenset((each, factor * count) for each, count in other.terms)
        return factor if is_multiple and factor else None

    def coefficient(self, term: Term) -> int:
        return dict(self.terms).get(term, 0)

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        sums = dict(self.terms)
        for term, coefficient in other.terms:
            sums[term] = sums.get(term, 0) + factor * coefficient
        terms = tuple((term, coefficient) for term, coefficient in sums.items() if coefficient)
        return Linear(self.constant + factor * other.constant, terms)

    def without(self, term: Term) -> Linear:
        return Linear(self.constant, tuple(each for each in self.terms if each[0] != term))


class Comparison(msgspec.Struct, frozen=True):
    """`difference < bound` where `is_below`, else `difference >= bound`."""

    difference: Linear
    bound: int
    is_below: bool

    def change(self, dim: int) -> Change | None:
        """The index along a dim at which the comparison changes; None where it does not advance by ones."""
        coefficient = self.difference.coefficient(dim)
        if abs(coefficient) != 1:
            return None
        # d + rest < bound up to bound - rest; rest - d < bound from rest - bound + 1 on.
        rest = self.difference.without(dim)
        start = Linear(self.bound if coefficient == 1 else 1 - self.bound)
        at = start.plus(rest, -coefficient)
        return Change(dim, at, holds_before=self.is_below == (coefficient == 1))


class Change(msgspec.Struct, frozen=True):
    """A comparison holds before a position of a dim and not from there on, or vice versa."""

    dim: int
    at: Linear
    holds_before: bool


class Cut(msgspec.Struct, frozen=True):
    """The indices at which a loop is cut: `base` plus each of the offsets, which ascend."""

    base: Linear
    offsets: tuple[int, ...]


class IndexSets(msgspec.Struct, eq=False):
    """The loops that are cut, by dim, and the comparisons that hold or do not in the whole of a part.

    `parts` maps the open loops that are cut, by dim, to the number of the part, and the keys of `conditions`, which
    do not vary within the nest and have negative ones, to whether they hold.
    """

    plan: NestPlan
    cuts: dict[int, Cut] = msgspec.field(default_factory=dict[int, Cut])
    comparisons: dict[Item, Comparison] = msgspec.field(default_factory=dict[Item, Comparison])
    changes: dict[Item, Change] = msgspec.field(default_factory=dict[Item, Change])
    conditions: dict[Item, int] = msgspec.field(default_factory=dict[Item, int])
    found: dict[tuple[tuple[int, int], ...], set[Item]] = msgspec.field(
        default_factory=dict[tuple[tuple[int, int], ...], set[Item]]
    )

    def holds(self, condition: Item, parts: Mapping[int, int]) -> bool | None:
        """Whether a condition holds in the open parts of loops; None where that differs from position to position."""
        value, at = condition
        op = value.owner
        if self.conditions.get(condition) in parts:
            return bool(parts[self.conditions[condition]])
        if condition in self.changes:
            return self._compares(condition, parts)
        if isinstance(op, _MOVES):
            return self.holds(operand_items(op, at, self.plan)[0], parts)
        if isinstance(op, tile.MapOp) and op.fn in ("bitwise_and", "bitwise_or"):
            found = [self.holds(item, parts) for item in operand_items(op, at, self.plan)]
            decides = op.fn == "bitwise_or"
            return decides if decides in found else None if None in found else not decides
        return None

    def _compares(self, comparison: Item, parts: Mapping[int, int]) -> bool | None:
        change = self.changes[comparison]
        if change.dim not in parts:
            return None
        number = self.cuts[change.dim].offsets.index(change.at.constant)
        return (parts[change.dim] <= number) == change.holds_before

    def chosen(self, item: Item, parts: Mapping[int, int]) -> Item | None:
        """The side of a `select` that is taken everywhere in the open parts."""
        value, at = item
        op = value.owner
        if not (self.cuts or self.conditions) or not isinstance(op, tile.MapOp) or op.fn != "select":
            return None
        condition, first, second = operand_items(op, at, self.plan)
        holds = self.holds(condition, parts)
        return None if holds is None else first if holds else second

    def taken(self, item: Item, parts: Mapping[int, int]) -> Sequence[Item]:
        """The items that an item is computed from in the open parts."""
        chosen = self.chosen(item, parts)
        return operands_of(self.plan, item) if chosen is None else (chosen,)

    def needed(self, parts: Mapping[int, int]) -> set[Item]:
        """All items that the open parts compute."""
        key = tuple(parts.items())
        if key not in self.found:
            roots = [
                (value, root_indices(self.plan, root))
                for root in self.plan.roots
                for value in root.operands
                if not is_place(value)
            ]
            self.found[key] = set(producers_first(roots, lambda item: self.taken(item, parts)))
        return self.found[key]

    def undecided(self, parts: Mapping[int, int]) -> Item | None:
        """The next condition, from the results on, that does not vary within the nest and decides a `select`."""
        for condition in self._open_conditions(parts) if self.conditions else ():
            for item in producers_first([condition], lambda item: _parts(self.plan, item)):
                if self.conditions.get(item, 0) < 0 and self.conditions[item] not in parts:
                    return item
        return None

    def cuts_along(self, dim: int, parts: Mapping[int, int]) -> bool:
        """Whether a `select` that the open parts compute changes sides along the loop of a dim."""
        if dim not in self.cuts or not self.conditions:
            return dim in self.cuts
        return any(
            item in self.changes and self.changes[item].dim == dim
            for condition in self._open_conditions(parts)
            for item in producers_first([condition], lambda item: _parts(self.plan, item))
        )

    def has_constant_masks(self, dim: int, first: int | None, end: int | None) -> bool:
        """Whether a row of vectors along a dim, from one index to another, has so few of them that each has code of its
        own, in which comparisons of positions are constants."""
        plan = self.plan
        if first is None or end is None or plan.order[-1] != dim or plan.reduced:
            return False
        return 1 < (end - first) // plan.lanes <= MOST_VECTORS and any(
            comparison.difference.coefficient(dim) != 0
            for item in plan.dependences
            if (comparison := comparison_of(plan, item)) is not None
        )

    def _open_conditions(self, parts: Mapping[int, int]) -> Iterator[Item]:
        """The conditions of selects that are not decided, those next to the results first."""
        needed = self.needed(parts)
        for item in reversed(self.plan.dependences):
            if item in needed and _is_select(item):
                condition = operands_of(self.plan, item)[0]
                if self.holds(condition, parts) is None:
                    yield condition

    def limits(self, found: Access, position: int, parts: Mapping[int, int]) -> tuple[int | None, int | None]:
        """The least and the greatest value of a coordinate in the open parts, where comparisons bound it."""
        linear = self.coordinate(found, position) if parts else None
        low: int | None = None
        high: int | None = None
        if linear is None:
            return low, high
        for comparison, holds in self._known(parts):
            least, greatest = _bounds(linear, comparison, holds)
            low = least if low is None or (least is not None and least > low) else low
            high = greatest if high is None or (greatest is not None and greatest < high) else high
        return low, high

    def _known(self, parts: Mapping[int, int]) -> Iterator[tuple[Comparison, bool]]:
        """The comparisons that hold or do not in the open parts."""
        for item in self.changes:
            holds = self._compares(item, parts)
            if holds is not None:
                yield self.comparisons[item], holds
        for condition, key in self.conditions.items():
            if key in parts:
                for item in self._implied(condition, bool(parts[key])):
                    yield self.comparisons[item], bool(parts[key])

    def _implied(self, condition: Item, holds: bool) -> Iterator[Item]:
        """The comparisons of a condition that hold, or do not, as it does."""
        decided = "bitwise_or" if holds else "bitwise_and"

        def inner(item: Item) -> Sequence[Item]:
            op = item[0].owner
            return () if isinstance(op, tile.MapOp) and op.fn == decided else _parts(self.plan, item)

        return (item for item in producers_first([condition], inner) if item in self.comparisons)

    def coordinate(self, found: Access, position: int) -> Linear | None:
        """The coordinate of an access along a dimension of its ref; None where it is not linear."""
        form = found.forms[position]
        if form is None:
            return None
        terms: list[tuple[Term, int]] = list(form.dims)
        terms += [(_stripped(self.plan, (found.symbols[s], found.at)), c) for s, c in form.symbols]
        return Linear(form.constant).plus(Linear(0, tuple(terms)))


def _bounds(linear: Linear, comparison: Comparison, holds: bool) -> tuple[int | None, int | None]:
    """The least and greatest value of a linear expression whose terms are a multiple of those of a compared one."""
    difference, bound = comparison.difference, comparison.bound
    multiple = linear.multiple_of(difference)
    if multiple is None:
        return None, None
    # linear = multiple * difference + apart, and the difference is below the bound or not.
    apart = linear.constant - multiple * difference.constant
    below = holds == comparison.is_below
    limit = multiple * (bound - 1 if below else bound) + apart
    return (None, limit) if below == (multiple > 0) else (limit, None)


def split_index_sets(plan: NestPlan, masks_narrow: bool = True) -> IndexSets:
    """Choose the loops of a nest to cut. `masks_narrow`: the machine loads elements of 8 and 16 bits under masks."""
    sets = IndexSets(plan)
    _add_conditions(sets)
    found: dict[int, list[_Selection]] = {}
    for item in plan.dependences:
        if _is_select(item):
            for selection in _selections(plan, item):
                found.setdefault(selection.change.dim, []).append(selection)
    # The vector dim last, whose loop gains least.
    for dim in sorted(found, key=lambda dim: dim == plan.vector_dim):
        by_base: dict[frozenset[tuple[Term, int]], list[_Selection]] = {}
        for each in found[dim]:
            by_base.setdefault(each.change.at.key, []).append(each)
        _add_cut(sets, dim, max(by_base.values(), key=len), masks_narrow)
    return sets


class _Selection(msgspec.Struct, frozen=True):
    """A `select` by a comparison of positions."""

    select: Item
    place: Item
    comparison: Comparison
    change: Change


def _selections(plan: NestPlan, select: Item) -> Iterator[_Selection]:
    condition = operands_of(plan, select)[0]
    for place, comparison in _comparisons(plan, condition).items():
        change = _change(plan, comparison)
        if change is not None:
            yield _Selection(select, place, comparison, change)


def _add_cut(sets: IndexSets, dim: int, selections: Sequence[_Selection], masks_narrow: bool) -> None:
    """Cut a loop, if that is predicted to save time and makes no more code than there may be."""
    plan, first = sets.plan, selections[0].change
    cut = Cut(Linear(0, first.at.terms), tuple(sorted({each.change.at.constant for each in selections})))
    sides = [side for item in {each.select: None for each in selections} for side in _loaded_sides(plan, item)]
    if not sides or (dim == plan.vector_dim and not _gains(plan, cut, sides, masks_narrow)):
        return
    cuts, comparisons, changes = dict(sets.cuts), dict(sets.comparisons), dict(sets.changes)
    sets.cuts[dim] = cut
    sets.comparisons |= {each.place: each.comparison for each in selections}
    sets.changes |= {each.place: each.change for each in selections}
    sets.found.clear()
    if _is_too_large(sets):
        sets.cuts, sets.comparisons, sets.changes = cuts, comparisons, changes
        sets.found.clear()


def _add_conditions(sets: IndexSets) -> None:
    """Branch on the conditions that do not vary within the nest, if these decide what is loaded and make no more code
    than there may be."""
    plan = sets.plan
    for select in plan.dependences:
        if _loaded_sides(plan, select):
            for condition in _unvarying(plan, operands_of(plan, select)[0]):
                sets.conditions.setdefault(condition, -1 - len(sets.conditions))
                sets.comparisons |= _comparisons(plan, condition)
    if _is_too_large(sets):
        sets.conditions, sets.comparisons = {}, {}
    sets.found.clear()


def _unvarying(plan: NestPlan, condition: Item) -> Iterator[Item]:
    """The largest parts of a condition that are comparisons of positions, all the same within the nest."""
    if not plan.dependences.get(condition, {0}) and _compares_positions(plan, condition):
        yield condition
    else:
        for part in _parts(plan, condition):
            yield from _unvarying(plan, part)


def _compares_positions(plan: NestPlan, condition: Item) -> bool:
    parts = _parts(plan, condition)
    if parts:
        return all(_compares_positions(plan, part) for part in parts)
    return comparison_of(plan, condition) is not None


def _is_too_large(sets: IndexSets) -> bool:
    """Whether the bodies are too many, or compute too many items."""
    items = 0
    for bodies, parts in enumerate(_bodies(sets, {}, list(sets.plan.order)), 1):
        items += len(sets.needed(parts))
        if bodies > MOST_BODIES or items > MOST_ITEMS:
            return True
    return False


def _bodies(sets: IndexSets, parts: dict[int, int], order: Sequence[int]) -> Iterator[dict[int, int]]:
    """The parts of each body of a nest."""
    condition = sets.undecided(parts)
    if condition is not None:
        for side in (1, 0):
            yield from _bodies(sets, {**parts, sets.conditions[condition]: side}, order)
        return
    dim = next((dim for dim in order if sets.cuts_along(dim, parts)), None)
    if dim is None:
        yield parts
        return
    for number in range(len(sets.cuts[dim].offsets) + 1):
        yield from _bodies(sets, {**parts, dim: number}, order[order.index(dim) + 1 :])


def _loaded_sides(plan: NestPlan, item: Item) -> list[Item]:
    """The sides of a `select` that read memory, those aside that select by position themselves."""
    if not _is_select(item):
        return []
    sides = [side for side in operands_of(plan, item)[1:] if not _selects_by_position(plan, side)]
    return [side for side in sides if any(_loads(plan, side))]


def _is_select(item: Item) -> bool:
    op = item[0].owner
    return isinstance(op, tile.MapOp) and op.fn == "select"


def _selects_by_position(plan: NestPlan, item: Item) -> bool:
    return _is_select(item) and bool(_comparisons(plan, operands_of(plan, item)[0]))


def _comparisons(plan: NestPlan, condition: Item) -> dict[Item, Comparison]:
    """The comparisons of positions that a condition is a conjunction or disjunction of."""
    found: dict[Item, Comparison] = {}
    for item in producers_first([condition], lambda item: _parts(plan, item)):
        comparison = comparison_of(plan, item)
        if comparison is not None:
            found[item] = comparison
    return found


def _parts(plan: NestPlan, item: Item) -> Sequence[Item]:
    op = item[0].owner
    joins = isinstance(op, tile.MapOp) and op.fn in ("bitwise_and", "bitwise_or")
    return operands_of(plan, item) if joins or isinstance(op, _MOVES) else ()


def comparison_of(plan: NestPlan, item: Item) -> Comparison | None:
    """The comparison of positions that an item is, if it is one."""
    value, at = item
    op = value.owner
    if not isinstance(op, tile.MapOp) or op.fn not in _COMPARISONS:
        return None
    left, right = (_linear(plan, each) for each in operand_items(op, at, plan))
    return None if left is None or right is None else Comparison(left.plus(right, -1), *_COMPARISONS[op.fn])


def _linear(plan: NestPlan, item: Item) -> Linear | None:
    """The position that a tile of 64-bit integers holds, or a constant; None where it is something else."""
    value, at = _stripped(plan, item)
    op = value.owner
    if is_place(value) or array_type(value).dtype.name != "i64":
        return None
    if isinstance(op, tile.FullOp):
        return Linear(int(op.value)) if abs(op.value) < FAR else None
    if isinstance(op, tile.MapOp) and op.fn in ("add", "subtract"):
        left, right = (_linear(plan, each) for each in operand_items(op, at, plan))
        return None if left is None or right is None else left.plus(right, 1 if op.fn == "add" else -1)
    if not isinstance(op, tile.IotaOp):
        return None
    form = linear_form(op.map.results[0], at)
    if form is None:
        return None
    terms: list[tuple[Term, int]] = list(form.dims)
    terms += [(_stripped(plan, (op.symbols[s], at)), c) for s, c in form.symbols]
    return Linear(form.constant).plus(Linear(0, tuple(terms)))


def _stripped(plan: NestPlan, item: Item) -> Item:
    """The item that broadcasts, transposes and slices move; index scalars do not vary."""
    value, at = item
    if is_place(value):
        return value, ()
    while isinstance(value.owner, _MOVES):
        value, at = operand_items(value.owner, at, plan)[0]
    return value, at


def _change(plan: NestPlan, comparison: Comparison) -> Change | None:
    """The index at which a comparison changes along the innermost loop that it depends on, if that loop can be cut."""
    dims = [term for term, _ in comparison.difference.terms if isinstance(term, int)]
    if not dims:
        return None
    dim = max(dims, key=plan.order.index)
    tiles = [term for term, _ in comparison.difference.terms if not isinstance(term, int) and not is_place(term[0])]
    varies = {dim for term in tiles for dim in plan.dependences.get(term, ())} | set(dims)
    if plan.vector_dim in varies and dim != plan.vector_dim:
        return None  # each lane of a vector changes elsewhere
    outside = set(plan.order[: plan.order.index(dim)])
    fixed = all(plan.dependences.get(term, {dim}) <= outside for term in tiles)
    return comparison.change(dim) if fixed and _can_cut(plan, dim) else None


def _can_cut(plan: NestPlan, dim: int) -> bool:
    """Whether the loop along a dim may be several loops: sums keep their order, blocks are transposed as a whole, and
    vectors begin at multiples of their lanes where panels end at such."""
    if dim in plan.reduced or (dim == plan.vector_dim and (plan.row_by_row or _has_panels(plan, dim))):
        return False
    return plan.turned_dim is None or dim not in (plan.turned_dim, plan.vector_dim)


def _has_panels(plan: NestPlan, dim: int) -> bool:
    """Whether neighbours along a dim are contiguous in panels only."""
    stores = [plan.access(root, root_indices(plan, root)) for root in plan.roots if isinstance(root, tile.StoreOp)]
    loads = [plan.access(value.owner, at) for value, at in plan.dependences if isinstance(value.owner, tile.LoadOp)]
    for found in (*stores, *loads):
        vary = lanes_vary(plan, found)
        if found.stride_along(dim, vary) is None and found.is_contiguous(dim, plan.lanes, vary):
            return True
    return False


def _gains(plan: NestPlan, cut: Cut, sides: Sequence[Item], masks_narrow: bool) -> bool:
    """Whether to cut the loop along vectors: each part ends with a masked vector; in one loop each vector loads all
    sides, under masks those that are outside somewhere, and selects."""
    extent = plan.space[plan.vector_dim or 0]
    vectors, parts = -(-extent // plan.lanes), len(cut.offsets) + 1
    outside = sum(not all(_is_inside(plan, load) for load in _loads(plan, side)) for side in sides)
    narrow = any(array_type(load[0]).dtype.itemsize < NARROW_BYTES for side in sides for load in _loads(plan, side))
    masked = LANE_BY_LANE if narrow and not masks_narrow else MASKED_LOAD
    end = 1.0 if outside else masked
    return vectors + parts * end < vectors * (masked * outside + SELECTED_LOAD * (len(sides) - outside))


def _is_inside(plan: NestPlan, load: Item) -> bool:
    """Whether the indices of the nest, wherever it is, keep a load inside its array along the vector dim."""
    value, at = load
    if not isinstance(value.owner, tile.LoadOp):
        return True
    found = plan.access(value.owner, at)
    for form, size in zip(found.forms, found.type.shape, strict=True):
        if form is None or (form.symbols and form.coefficient(plan.vector_dim or 0)):
            return False
        ends = [(0, factor * (plan.space[dim] - 1)) for dim, factor in form.dims]
        low, high = (form.constant + sum(choose(each) for each in ends) for choose in (min, max))
        if form.coefficient(plan.vector_dim or 0) and not 0 <= low <= high < size:
            return False
    return True


def _loads(plan: NestPlan, item: Item) -> Iterator[Item]:
    """The loads that an item is computed from."""
    found = producers_first([item], lambda each: operands_of(plan, each))
    return (each for each in found if isinstance(each[0].owner, tile.LoadOp))
