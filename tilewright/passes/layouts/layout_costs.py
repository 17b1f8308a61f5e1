"""Costs of tile layouts: relayouts along flows, to and from MMA atoms and memory, and arithmetic.

Each is a value, so that equal costs are found out once; those of movements can be bounded from below without a plan.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import msgspec
import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import LayoutError
from tilewright.layout import Layout, reduce, row_major
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.dims import static
from tilewright.layout.pair_costs import Array
from tilewright.layout.relayout import Plan, Reason, plan_relayout
from tilewright.layout.relayout_bound import least_seconds
from tilewright.machines.machine import Machine
from tilewright.passes.layouts.layout_rules import Folded, Spread, View
from tilewright.passes.layouts.layout_spaces import Atom


class _Movement(msgspec.Struct, frozen=True):
    """The cost of a relayout of a tile, once for each trip of the loops around it."""

    dtype: DType
    machine: Machine
    trips: int

    @abstractmethod
    def ways(self, first: Any, second: Any) -> Sequence[tuple[Layout, Layout]]:
        """The relayouts that take place between two values."""

    def plan(self, first: Any, second: Any) -> list[Plan] | None:
        """The movements, without their number of trips; None where there is no way."""
        plans = [plan_relayout(start, end, self.dtype, self.machine) for start, end in self.ways(first, second)]
        return None if any(isinstance(plan, Reason) for plan in plans) else [p for p in plans if isinstance(p, Plan)]

    def __call__(self, first: Any, second: Any) -> float | None:
        plans = self.plan(first, second)
        return None if plans is None else sum(plan.seconds for plan in plans) * self.trips

    def keeps(self, first: Any, second: Any) -> bool:
        """Whether all data stays where it is, but for the terms that a reduction combines."""
        return all(_is_free(start, end, self.dtype, self.machine) for start, end in self.ways(first, second))


class FlowCost(_Movement, frozen=True):
    """The cost of a flow for given layouts of source and target: the relayout from the view of the source's layout to
    the target's. Equal costs are computed once."""

    view: View
    combines: str | None
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    def ways(self, first: Layout, second: Layout) -> Sequence[tuple[Layout, Layout]]:
        single = self._single(second)
        if single is not None:
            return [(first, single)]
        start = self._start(first)
        if start is not None:
            return [(start, second)]
        # Stored in the order of elements, read back as the target wants them.
        between = self._in_order()
        return [(first, between[0]), (between[1], second)]

    def keeps(self, first: Layout, second: Layout) -> bool:
        ends = (image(self.view, first), second), (first, preimage(self.view, second))
        return any(a is not None and b is not None and _is_free(a, b, self.dtype, self.machine) for a, b in ends)

    def at_least(self, firsts: tuple[Layout, ...], seconds: tuple[Layout, ...]) -> Array:
        singles = tuple(single for second in seconds if (single := self._single(second)) is not None)
        if len(singles) == len(seconds):
            return least_seconds(firsts, singles, self.dtype, self.machine) * self.trips
        starts = [self._start(first) for first in firsts]
        direct = [n for n, start in enumerate(starts) if start is not None]
        around = [n for n, start in enumerate(starts) if start is None]
        found = np.zeros((len(firsts), len(seconds)))
        found[direct] = least_seconds(tuple(s for s in starts if s is not None), seconds, self.dtype, self.machine)
        if around:
            stored, loaded = self._in_order()
            found[around] = least_seconds(tuple(firsts[n] for n in around), (stored,), self.dtype, self.machine)
            found[around] += least_seconds((loaded,), seconds, self.dtype, self.machine)
        return found * self.trips

    def _single(self, target: Layout) -> Layout | None:
        """The layout that a source needs before it is broadcast to the target: moving one copy of each element costs
        less than moving all."""
        return preimage(self.view, target) if isinstance(self.view, Spread) else None

    def _start(self, source: Layout) -> Layout | None:
        """The target's layout when nothing has moved; combined dims still hold terms."""
        if self.combines is not None and isinstance(self.view, Folded):
            return terms(self.view, source, self.combines)
        return image(self.view, source)

    def _in_order(self) -> tuple[Layout, Layout]:
        name = f"mem.{self.machine.memories[0].name}"
        return row_major(self.shapes[0], name), row_major(self.shapes[1], name)


class OperandCost(_Movement, frozen=True):
    """The cost of a relayout of a tile to an operand of an MMA atom."""

    operand: str

    def ways(self, first: Layout, second: Atom) -> Sequence[tuple[Layout, Layout]]:
        return [(first, getattr(second, self.operand))]

    def at_least(self, firsts: tuple[Layout, ...], seconds: tuple[Atom, ...]) -> Array:
        wanted = tuple(getattr(atom, self.operand) for atom in seconds)
        return least_seconds(firsts, wanted, self.dtype, self.machine) * self.trips


class ResultCost(_Movement, frozen=True):
    """The cost of a relayout of an atom's result to the layout of the value."""

    def ways(self, first: Atom, second: Layout) -> Sequence[tuple[Layout, Layout]]:
        return [(first.accumulator, second)]

    def at_least(self, firsts: tuple[Atom, ...], seconds: tuple[Layout, ...]) -> Array:
        return least_seconds(tuple(atom.accumulator for atom in firsts), seconds, self.dtype, self.machine) * self.trips


class PackingCost(msgspec.Struct, frozen=True):
    """The cost of an atom's right operand read from an array: zero if the array can be packed as a whole for it, else a
    copy each time."""

    columns: tuple[int, ...]
    dtype: DType
    machine: Machine
    trips: int

    def __call__(self, atom: Atom) -> float | None:
        if atom.block is not None and atom.block.static_shape[1] in self.columns:
            return 0.0
        plan = plan_relayout(row_major(atom.right.static_shape), atom.right, self.dtype, self.machine)
        return plan.seconds * self.trips if isinstance(plan, Plan) else None


class ComputeCost(msgspec.Struct, frozen=True):
    """The cost of computing a tile in its layout: an instruction for each register of each warp, copies included."""

    seconds: float

    def __call__(self, layout: Layout) -> float:
        return self.seconds * instructions(layout)


@lru_cache(maxsize=16384)
def instructions(layout: Layout) -> int:
    registers = prod(static(digit.extent) for digit in layout.iters if kind_of(digit.axis) == Kind.REGISTER)
    return registers * prod(static(layout.span(axis)) for axis in layout.axes if kind_of(axis) == Kind.WARP)


class TransferCost(msgspec.Struct, frozen=True):
    """The cost of a load of a tile from a window of memory, or of a store."""

    window: Layout
    dtype: DType
    machine: Machine
    trips: int
    stores: bool

    def __call__(self, layout: Layout) -> float | None:
        plans = self.plan(layout)
        return None if plans is None else plans[0].seconds * self.trips

    def plan(self, layout: Layout) -> list[Plan] | None:
        """The movement, without its number of trips; None where there is no way."""
        ends = (layout, self.window) if self.stores else (self.window, layout)
        plan = plan_relayout(*ends, self.dtype, self.machine)
        return [plan] if isinstance(plan, Plan) else None


class RepeatedLoadCost(TransferCost, frozen=True):
    """The cost of loading a tile again for each repeat of it in the target's layout, beyond its first load. Vectors
    that are whole in memory take one instruction, which runs while others compute: only others count."""

    view: Spread

    def plan(self, layout: Layout) -> list[Plan]:
        """The load of one repeat; nothing where its vectors are whole, or where it is repeated within vectors."""
        single = preimage(self.view, layout)
        if single is None:
            return []
        loaded = plan_relayout(self.window, single, self.dtype, self.machine)
        whole = plan_relayout(row_major(single.static_shape), single, self.dtype, self.machine)
        if not isinstance(loaded, Plan) or not isinstance(whole, Plan) or loaded.seconds <= whole.seconds:
            return []
        return [loaded]

    def __call__(self, layout: Layout) -> float:
        return sum(plan.seconds for plan in self.plan(layout)) * self.trips


class Unmoved(msgspec.Struct, frozen=True):
    """The cost of an edge next to a strict pin: impossible where data would have to move."""

    edge: FlowCost | OperandCost | ResultCost

    def __call__(self, first: Any, second: Any) -> float | None:
        return self.edge(first, second) if self.edge.keeps(first, second) else None

    def plan(self, first: Any, second: Any) -> list[Plan] | None:
        """The movements, which take no time but for terms that are combined; None where data would have to move."""
        return self.edge.plan(first, second) if self.edge.keeps(first, second) else None


def _is_free(source: Layout, target: Layout, dtype: DType, machine: Machine) -> bool:
    """Whether values in one layout are in the other too; registers may get other names."""
    plan = plan_relayout(source, target, dtype, machine)
    return isinstance(plan, Plan) and plan.seconds == 0


@lru_cache(maxsize=16384)
def image(view: View, layout: Layout) -> Layout | None:
    """The layout of a view's elements; None if no layout states it. Threads that hold only padding, which is
    unspecified, must not be dropped from it: a thread that a layout does not mention has the elements of the first
    one."""
    try:
        result = view.image(layout)
    except LayoutError:
        return None
    return result if _threads(result) >= _threads(layout) else None


def _threads(layout: Layout) -> int:
    """How many positions of threads a layout mentions, those of padding too."""
    parts = [part for part in layout.all_iters if part.stride and kind_of(part.axis) in (Kind.LANE, Kind.WARP)]
    return prod(static(part.extent) for part in parts)


@lru_cache(maxsize=16384)
def terms(view: Folded, layout: Layout, combines: str) -> Layout | None:
    """The layout of a reduction's result before its terms are combined."""
    try:
        return reduce(layout, view.view.dims, combines)
    except LayoutError:
        return None


@lru_cache(maxsize=16384)
def preimage(view: View, layout: Layout) -> Layout | None:
    try:
        return view.preimage(layout)
    except LayoutError:
        return None
