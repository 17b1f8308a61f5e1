"""Insert barriers between accesses of a block's threads to arrays that they write.

Each thread's accesses are in order, but the layouts decide which thread stores or loads an element. If two threads may
access an element and one of them writes it, a block barrier precedes the second access. Disjoint windows, in one trip
or in different ones, and accesses by the same threads need none.

Before (sm_90a):
    func.func @main(%x: tensor<64xf32>) -> tensor<66xf32> {
      %y = array.call(%x) {callee = "twice"} : tensor<66xf32>
      func.return %y : tensor<66xf32>
    }
    tile.kernel() {sym_name = "twice", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<64xf32>>, %1: !tile.ref<tensor<66xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 2 : index} do {
        %2 = tile.load(%0) {map = affine_map<(d0) -> (d0)>} : tensor<64xf32, "(64) : [2@warp 32@lane]">
        tile.store(%2, %1) {map = affine_map<(d0) -> (d0)>}
        tile.store(%2, %1) {map = affine_map<(d0) -> ((d0 + 2))>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64xf32>) -> tensor<66xf32> {
      %y = array.call(%x) {callee = "twice"} : tensor<66xf32>
      func.return %y : tensor<66xf32>
    }
    tile.kernel() {sym_name = "twice", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<64xf32>>, %1: !tile.ref<tensor<66xf32>>):
      scheduled.parallel() {extents = array<i64>, grain = 1 : index, warps = 2 : index} do {
        %2 = tile.load(%0) {map = affine_map<(d0) -> (d0)>} : tensor<64xf32, "(64) : [2@warp 32@lane]">
        tile.store(%2, %1) {map = affine_map<(d0) -> (d0)>}
        scheduled.barrier() {scope = "block", arrays = true}
        tile.store(%2, %1) {map = affine_map<(d0) -> ((d0 + 2))>}
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import block_of
from tilewright.layout.queries import has_copies
from tilewright.passes.affine_access import Form, Index, linear_form
from tilewright.passes.base import Remark, Unit
from tilewright.passes.warps.tile_lower_to_warps import layout_of

_AccessOp = tile.LoadOp | tile.StoreOp


class ScheduledOrderAccessesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-order-accesses"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            count = 0
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                warps = 1 if region.warps is None else region.warps
                threads = {"lane": unit.machine.axes["lane"], "warp": warps}
                count += _Order(set(kernel.refs), threads).write(region)
            if count:
                why = "ordered after accesses of other threads to the same elements"
                unit.remarks.append(Remark(self.name, kernel.sym_name, f"{count} barriers for arrays", why))


@dataclass(frozen=True)
class _Order:
    """`threads`: how many there are of a block along each axis."""

    refs: set[SSAValue]
    threads: Mapping[str, int]

    def write(self, region: scheduled.ParallelOp) -> int:
        """Insert barriers between accesses that may overlap; returns their count. One barrier separates all pairs
        around it."""
        accesses = [op for op in region.body.block.walk() if isinstance(op, _AccessOp) and _ref(op) in self.refs]
        written = {_ref(op) for op in accesses if isinstance(op, tile.StoreOp)}
        accesses = [op for op in accesses if _ref(op) in written]
        count, since = 0, 0
        for number, op in enumerate(accesses):
            before = accesses[since:number]
            if any(self._may_meet(first, op, None) for first in before) or self._meets_later_trips(accesses, op):
                block = block_of(op)
                block.insert_op_before(scheduled.BarrierOp(scope=scheduled.BLOCK, arrays=True), op)
                count += 1
                since = number if block is region.body.block else since
        return count

    def _meets_later_trips(self, accesses: Sequence[_AccessOp], op: _AccessOp) -> bool:
        """Whether an access may meet one of an earlier trip of a loop around both."""
        loops = [loop for loop in _loops(op) if loop.trips > 1]
        return any(self._may_meet(first, op, loop) for loop in loops for first in accesses if loop in _loops(first))

    def _may_meet(self, first: _AccessOp, second: _AccessOp, loop: tile.ForOp | None) -> bool:
        """Whether different threads may touch the same element and one of both accesses writes: in one trip of all
        loops around both, or the first in an earlier trip of `loop` and in one of those around that."""
        if _ref(first) is not _ref(second) or (isinstance(first, tile.LoadOp) and isinstance(second, tile.LoadOp)):
            return False
        way = _Way.of(first, second, loop)
        return not (self._are_in_the_same_threads(first, second, way) or _are_apart(first, second, way))

    def _are_in_the_same_threads(self, first: _AccessOp, second: _AccessOp, way: _Way) -> bool:
        """Whether every element is touched by the thread that touched it before. Of copies one thread stores, and all
        load."""
        layouts = [layout_of(_tile(op)) for op in (first, second)]
        symbols = [list(op.symbols) for op in (first, second)]
        layout = layouts[0]
        if layout is None or layout != layouts[1] or first.map != second.map or symbols[0] != symbols[1]:
            return False
        has_loads = isinstance(first, tile.LoadOp) or isinstance(second, tile.LoadOp)
        if has_loads and any(has_copies(layout, axis, count) for axis, count in self.threads.items()):
            return False
        return all(way.is_fixed(each) for each in symbols[0])


def _ref(op: _AccessOp) -> SSAValue:
    return op.destination if isinstance(op, tile.StoreOp) else op.source


def _tile(op: _AccessOp) -> SSAValue:
    return op.value if isinstance(op, tile.StoreOp) else op.result


def _loops(op: Operation) -> list[tile.ForOp]:
    """The loops around an operation, the innermost first."""
    found: list[tile.ForOp] = []
    around = op.parent_op()
    while around is not None:
        if isinstance(around, tile.ForOp):
            found.append(around)
        around = around.parent_op()
    return found


# ---- whether two accesses meet --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Way:
    """How two accesses follow each other: in the same trips of the loops `same`, and in a later one of `later`."""

    same: frozenset[tile.ForOp]
    later: tile.ForOp | None

    @staticmethod
    def of(first: Operation, second: Operation, loop: tile.ForOp | None) -> _Way:
        together = [each for each in _loops(second) if each in _loops(first)]
        outer = together if loop is None else together[together.index(loop) + 1 :]
        return _Way(frozenset(outer), loop)

    def is_fixed(self, value: SSAValue) -> bool:
        """Whether both accesses see the same of an index: it belongs to the block, or to a trip that they share."""
        block: Block | None = value.owner if isinstance(value.owner, Block) else value.owner.parent_block()
        around = block.parent_op() if block is not None else None
        while around is not None:
            if isinstance(around, tile.ForOp) and around not in self.same:
                return False
            around = around.parent_op()
        return True


def _are_apart(first: _AccessOp, second: _AccessOp, way: _Way) -> bool:
    """Whether along some dim of the array the two windows never meet."""
    pairs = zip(_forms(first), _forms(second), strict=True)
    return any(a is not None and b is not None and _differ(_Side(first, a), _Side(second, b), way) for a, b in pairs)


def _forms(op: _AccessOp) -> Iterator[Form | None]:
    map: AffineMap = op.map
    dims = tuple(Index(dim) for dim in range(map.num_dims))
    for expression in map.results:
        yield linear_form(expression, dims)


@dataclass(frozen=True)
class _Side:
    """One coordinate of an access."""

    op: _AccessOp
    form: Form

    @property
    def symbols(self) -> dict[SSAValue, int]:
        return {self.op.symbols[position]: step for position, step in self.form.symbols}

    def reach(self) -> tuple[int, int]:
        """The least and the most that the tile's own indices add."""
        shape = array_type(_tile(self.op)).shape
        ends = [step * (shape[dim] - 1) for dim, step in self.form.dims]
        return sum(min(0, end) for end in ends), sum(max(0, end) for end in ends)


def _differ(first: _Side, second: _Side, way: _Way) -> bool:
    """Whether the coordinate of the second access less that of the first is never 0, by the ends of what each of their
    terms adds."""
    low = high = second.form.constant - first.form.constant
    (least, most), (own_least, own_most) = first.reach(), second.reach()
    low, high = low + own_least - most, high + own_most - least
    steps = first.symbols, second.symbols
    for symbol in {*steps[0], *steps[1]}:
        of_first, of_second = (side.get(symbol, 0) for side in steps)
        ends = _ends(symbol, of_first, of_second, way)
        if ends is None:
            return False
        low, high = low + ends[0], high + ends[1]
    return low > 0 or high < 0


def _ends(symbol: SSAValue, of_first: int, of_second: int, way: _Way) -> tuple[int, int] | None:
    """The least and the most that `of_second * symbol` less `of_first * symbol` is, each as its access sees it; None
    where nothing is known of it."""
    if not isinstance(symbol.type, IndexType):
        return None
    if way.is_fixed(symbol) and of_first == of_second:
        return 0, 0
    loop = symbol.owner.parent_op() if isinstance(symbol, BlockArgument) else None
    if not isinstance(loop, tile.ForOp):
        return None
    last = loop.trips - 1
    if loop is way.later and of_first == of_second:
        ends = of_first, of_first * last
    elif way.is_fixed(symbol):
        ends = 0, (of_second - of_first) * last
    else:
        ends = min(0, of_second * last) - max(0, of_first * last), max(0, of_second * last) - min(0, of_first * last)
    return min(ends), max(ends)
