"""Multicast pages that all cores of a row, of a column or of the grid read: one core loads and sends them.

The others state that they have room, by a semaphore of the one that fetches; when all have, it multicasts the pages,
and after them a semaphore that signals that they have come. Which core of a row or column fetches goes by its number,
so that rows and columns do not all have theirs in one position, and none fetches for both: what a row and what a column
needs comes at the same time.

Before (wormhole):
    func.func @main(%x: tensor<32x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "repeat"} : tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "repeat", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 2>} do {
      ^bb1(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"f32", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.fetch(%x, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (0, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "read"}
          cores.push(%a) {pages = 1 : index}
          cores.end()
        }
        cores.thread() {role = "writer", noc = 1 : index} do {
          cores.wait(%a) {pages = 1 : index}
          cores.put(%out, %a, %column) {extents = array<i64: 1>, map = affine_map<(d0)[s0] -> (s0, d0)>,
            at = affine_map<(d0)[s0] -> (d0)>}
          cores.barrier() {of = "write"}
          cores.pop(%a) {pages = 1 : index}
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<32x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "repeat"} : tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "repeat", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 2>} do {
      ^bb0(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"f32", 1>
        %ready = cores.semaphore() {initial = 0 : index} : !cores.semaphore
        %sent = cores.semaphore() {initial = 0 : index} : !cores.semaphore
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.if(%row, %column) {map = affine_map<()[s0, s1] -> ((s1 + ((s0 mod 2) * -1)))>} do {
            cores.fetch(%x, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (0, d0)>,
              at = affine_map<(d0) -> (d0)>}
            cores.end()
          } do {
            cores.semaphore_increment(%ready, %row, %column) {core = affine_map<()[s0, s1] -> (s0, (s0 mod 2))>,
              value = 1 : index}
            cores.end()
          }
          cores.if(%row, %column) {map = affine_map<()[s0, s1] -> ((s1 + ((s0 mod 2) * -1)))>} do {
            cores.barrier() {of = "read"}
            cores.semaphore_wait(%ready) {value = 1 : index}
            cores.semaphore_set(%ready) {value = 0 : index}
            cores.multicast(%a, %row, %column) {at = affine_map<()[s0, s1] -> (0)>, pages = 1 : index,
              rectangle = affine_map<()[s0, s1] -> (s0, 0, s0, 1)>}
            cores.semaphore_set(%sent) {value = 1 : index}
            cores.semaphore_multicast(%sent, %row, %column) {rectangle = affine_map<()[s0, s1] -> (s0, 0, s0, 1)>}
            cores.end()
          } do {
            cores.semaphore_wait(%sent) {value = 1 : index}
            cores.semaphore_set(%sent) {value = 0 : index}
            cores.end()
          }
          cores.push(%a) {pages = 1 : index}
          cores.if(%row, %column) {map = affine_map<()[s0, s1] -> ((s1 + ((s0 mod 2) * -1)))>} do {
            cores.barrier() {of = "write"}
            cores.semaphore_set(%sent) {value = 0 : index}
            cores.end()
          } do {
            cores.end()
          }
          cores.end()
        }
        cores.thread() {role = "writer", noc = 1 : index} do {
          cores.wait(%a) {pages = 1 : index}
          cores.put(%out, %a, %column) {extents = array<i64: 1>, map = affine_map<(d0)[s0] -> (s0, d0)>,
            at = affine_map<(d0)[s0] -> (d0)>}
          cores.barrier() {of = "write"}
          cores.pop(%a) {pages = 1 : index}
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import AffineSymExpr

from tilewright.cost.cores.tiles import fetching_cores
from tilewright.dialects import cores, tile
from tilewright.dialects.rewriting import erase
from tilewright.passes.base import Remark, Unit, where
from tilewright.passes.cores.affine_expressions import plus, with_dims
from tilewright.semantics.tile import evaluate_map


class ScheduledMulticastFetchesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-multicast-fetches"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for program in list(kernel.walk()):
                if isinstance(program, cores.ProgramOp):
                    self._apply_to(unit, kernel.sym_name, program)

    def _apply_to(self, unit: Unit, name: str, program: cores.ProgramOp) -> None:
        left = (unit.machine.core_grid.semaphores - len(program.semaphores)) // 2
        for thread in program.threads:
            found = [s for op in thread.body.walk() if isinstance(op, cores.FetchOp) and (s := _shared(op, program))]
            found = found[:left]
            left -= len(found)
            for each in found:
                decision = f"one core of each {each.group.what} multicasts pages at {where(each.fetch)}"
                unit.remarks.append(Remark(self.name, name, decision, f"all {each.group.count} need the same"))
            for together in _in_pairs(found):
                groups = _fetching_groups(together, left)
                left -= sum(len(each) - 1 for each in groups)
                parts = [_in_parts(each, own) for each, own in zip(together, groups, strict=True)]
                _multicast(program, [part for each in parts for part in each])


@dataclass(frozen=True)
class _Group:
    """Cores that fetch the same: those of a row (`along` (False, True)), of a column (True, False), or all. `shift`:
    by how many cores further along the one is that fetches."""

    what: str
    along: tuple[bool, bool]
    shape: tuple[int, int]
    shift: int = 0

    @property
    def count(self) -> int:
        return (self.shape[0] if self.along[0] else 1) * (self.shape[1] if self.along[1] else 1)

    def fetching(self, row: AffineExpr, column: AffineExpr) -> tuple[AffineExpr, AffineExpr]:
        """Row and column of the one that fetches for a core. Without a shift none fetches for its row and for its
        column, where there are several of both: x = y mod columns and y = (x + 1) mod rows have no solution."""
        rows, columns = self.shape
        if all(self.along):
            return AffineExpr.constant(self.shift // columns), AffineExpr.constant(self.shift % columns)
        if self.along[0]:
            return plus(column, 1 + self.shift) % rows, column
        return row, plus(row, self.shift) % columns

    def is_fetching(self, row: AffineExpr, column: AffineExpr) -> AffineExpr:
        """A value that is 0 on the sending core."""
        if all(self.along):
            return plus(row * self.shape[1] + column, -self.shift) if self.shift else row + column
        there = self.fetching(row, column)
        return row + there[0] * -1 if self.along[0] else column + there[1] * -1

    def fetchers(self) -> set[tuple[int, int]]:
        """Rows and columns of all that fetch."""
        rows, columns = self.shape
        if all(self.along):
            return {divmod(self.shift, columns)}
        if self.along[0]:
            return {((column + 1 + self.shift) % rows, column) for column in range(columns)}
        return {(row, (row + self.shift) % columns) for row in range(rows)}

    def rectangle(self, row: AffineExpr, column: AffineExpr) -> list[AffineExpr]:
        """First row and column, last row and column."""
        zero = AffineExpr.constant(0)
        ends = [AffineExpr.constant(size - 1) for size in self.shape]
        rows = (zero, ends[0]) if self.along[0] else (row, row)
        columns = (zero, ends[1]) if self.along[1] else (column, column)
        return [rows[0], columns[0], rows[1], columns[1]]


@dataclass(frozen=True)
class _Shared:
    """Operations that load pages which a group of cores all need: what reserves room, fetches, waits for what was
    fetched and does something to it, and pushes. Of what is pushed, these are `pages` from the page `first` on."""

    group: _Group
    reserve: cores.ReserveOp
    fetch: cores.FetchOp
    after: tuple[Operation, ...]
    push: cores.PushOp
    first: int
    pages: int


def _shared(op: cores.FetchOp, program: cores.ProgramOp) -> _Shared | None:
    """The operations around a fetch; None where no other core fetches the same pages as often."""
    group = _group_of(op, program)
    if group is None or not isinstance(op.prev_op, cores.ReserveOp) or op.prev_op.queue is not op.queue:
        return None
    after: list[Operation] = []
    following = op.next_op
    while isinstance(following, cores.BarrierOp | cores.PadOp):
        after.append(following)
        following = following.next_op
    if not isinstance(following, cores.PushOp) or following.queue is not op.queue:
        return None
    return _Shared(group, op.prev_op, op, tuple(after), following, 0, following.count)


def _fetching_groups(together: Sequence[_Shared], left: int) -> list[list[_Group]]:
    """Of what groups of cores need, the groups with those that fetch parts of it: as many parts as help, where there
    are semaphores left, and cores that fetch nothing else: who sends twice has to wait for what was sent first."""
    counts = [fetching_cores(each.pages, each.group.count) if _is_in_order(each) else 1 for each in together]
    while sum(counts) - len(counts) > left or (found := _on_their_own(together, counts)) is None:
        most = counts.index(max(counts))
        if counts[most] == 1:
            return [[each.group] for each in together]
        counts[most] -= 1
    return found


def _on_their_own(together: Sequence[_Shared], counts: Sequence[int]) -> list[list[_Group]] | None:
    taken: set[tuple[int, int]] = set()
    found: list[list[_Group]] = []
    for each, count in zip(together, counts, strict=True):
        groups: list[_Group] = []
        for shift in range(each.group.count):
            group = replace(each.group, shift=shift)
            if len(groups) < count and not group.fetchers() & taken:
                groups.append(group)
                taken |= group.fetchers()
        if len(groups) < count:
            return None
        found.append(groups)
    return found


def _in_parts(shared: _Shared, groups: Sequence[_Group]) -> list[_Shared]:
    """Parts of what a group of cores needs, each fetched by another one of them."""
    if len(groups) == 1:
        return [replace(shared, group=groups[0])]
    extents = shared.fetch.shape
    dim = next(d for d, extent in enumerate(extents) if extent > 1)
    size = -(-extents[dim] // len(groups))
    found: list[_Shared] = []
    for group, first in zip(groups, range(0, extents[dim], size), strict=False):
        own = min(size, extents[dim] - first)
        fetch, *after = (_part(op, dim, first, own) for op in (shared.fetch, *shared.after))
        pages = shared.pages // extents[dim]
        part = replace(shared, group=group, fetch=fetch, after=tuple(after))
        found.append(replace(part, first=first * pages, pages=own * pages))
    for op in (shared.fetch, *shared.after):
        erase(op)
    return found


def _is_in_order(shared: _Shared) -> bool:
    """Whether what is pushed are the pages that are fetched, in their order, each of which is seen to by itself."""
    fetch = shared.fetch
    if any(isinstance(part, AffineSymExpr) for part in fetch.at.results[0].dfs()):
        return False
    pages = evaluate_map(fetch.at, fetch.shape, [0] * fetch.at.num_symbols)[0]
    same = all(op.shape == fetch.shape for op in shared.after if isinstance(op, cores.PadOp))
    return same and max(fetch.shape, default=1) > 1 and list(pages.reshape(-1)) == list(range(shared.pages))


def _part(op: Operation, dim: int, first: int, size: int) -> Any:
    """An operation for a part of its extents along a dim."""
    copy = op.clone()
    if isinstance(copy, cores.PagesOp):
        extents = [*copy.shape]
        extents[dim] = size
        copy.extents = tuple(extents)

        def placed(d: int) -> AffineExpr:
            return plus(AffineExpr.dimension(d), first if d == dim else 0)

        copy.map, copy.at = (_placed(map, placed) for map in (copy.map, copy.at))
    return copy


def _placed(map: AffineMap, placed: Callable[[int], AffineExpr]) -> AffineMap:
    """A map of other dims."""
    return AffineMap(map.num_dims, map.num_symbols, tuple(with_dims(e, placed) for e in map.results))


def _group_of(op: cores.FetchOp, program: cores.ProgramOp) -> _Group | None:
    """The cores that fetch the same pages, as often; None where there is but one."""
    row, column = program.body.block.args
    used = _used_in([op.map, op.at], op.symbols)
    parent: Operation | None = op.parent_op()
    while parent is not None and not isinstance(parent, cores.ThreadOp):
        if isinstance(parent, cores.IfOp):
            return None
        if isinstance(parent, tile.ForOp) and parent.end is not None:
            used |= _used_in([parent.end], parent.symbols)
        parent = parent.parent_op()
    rows, columns = program.shape
    along = (row not in used and rows > 1, column not in used and columns > 1)
    if not any(along):
        return None
    what = "grid" if all(along) else "column" if along[0] else "row"
    return _Group(what, along, (rows, columns))


def _used_in(maps: Sequence[AffineMap], symbols: Sequence[SSAValue]) -> set[SSAValue]:
    """The symbols that maps depend on."""
    parts = [part for map in maps for expression in map.results for part in expression.dfs()]
    return {symbols[part.position] for part in parts if isinstance(part, AffineSymExpr)}


def _in_pairs(found: Sequence[_Shared]) -> list[list[_Shared]]:
    """Pages for rows and pages for columns that come one after another are loaded at the same time: other cores fetch
    them."""
    pairs: list[list[_Shared]] = []
    for each in found:
        last = pairs[-1] if pairs else []
        whats = {each.group.what, *(other.group.what for other in last)}
        if len(last) == 1 and whats == {"row", "column"} and last[0].push.next_op is each.reserve:
            last.append(each)
        else:
            pairs.append([each])
    return pairs


def _multicast(program: cores.ProgramOp, together: Sequence[_Shared]) -> None:
    """All state that they have room, and those that fetch begin to; then these send, and the others wait, those that
    send something else too when they have; and those that sent wait until it has come, when the pages are at work
    already.
    """
    places: list[SSAValue] = list(program.body.block.args)
    row, column = AffineExpr.symbol(0), AffineExpr.symbol(1)

    def map_to(*results: AffineExpr) -> AffineMap:
        return AffineMap(0, 2, tuple(results))

    first = together[0].reserve
    last = together[-1].push
    choices: list[list[tuple[_Shared, list[Operation], list[Operation]]]] = [[], [], [], []]
    for each in together:
        ready, sent = (_semaphore(program, name) for name in ("ready", "sent"))
        rectangle = map_to(*each.group.rectangle(row, column))
        at, core = map_to(AffineExpr.constant(each.first)), map_to(*each.group.fetching(row, column))
        sending: list[Operation] = [
            *each.after,
            cores.SemaphoreWaitOp(semaphore=ready, value=each.group.count - 1),
            cores.SemaphoreSetOp(semaphore=ready, value=0),
            cores.MulticastOp(queue=each.push.queue, symbols=places, at=at, pages=each.pages, rectangle=rectangle),
            cores.SemaphoreSetOp(semaphore=sent, value=1),
            cores.SemaphoreMulticastOp(semaphore=sent, symbols=places, rectangle=rectangle),
        ]
        receiving: list[Operation] = [
            cores.SemaphoreWaitOp(semaphore=sent, value=1),
            cores.SemaphoreSetOp(semaphore=sent, value=0),
        ]
        # The number that is sent is read until it has come.
        ending: list[Operation] = [
            cores.BarrierOp(of=cores.WRITE),
            cores.SemaphoreSetOp(semaphore=sent, value=0),
        ]
        asking: list[Operation] = [cores.SemaphoreIncrementOp(semaphore=ready, symbols=places, core=core, value=1)]
        choices[0].append((each, [each.fetch], asking))
        if len(together) == 1:
            choices[1].append((each, sending, receiving))
        else:
            choices[1].append((each, sending, []))
            choices[2].append((each, [], receiving))
        choices[3].append((each, ending, []))
    block = first.parent_block()
    if block is None:
        return
    for reserve in [*dict.fromkeys(each.reserve for each in together)][1:]:
        reserve.detach()
        block.insert_op_after(reserve, first)
    before = together[0].push
    for phase, following in zip(choices, (before, before, before, last.next_op), strict=True):
        for each, then, otherwise in phase:
            made = _choice(each, places, map_to(each.group.is_fetching(row, column)), then, otherwise)
            if following is not None:
                block.insert_op_before(made, following)
    for push in [*dict.fromkeys(each.push for each in together)][1:]:
        push.detach()
        block.insert_op_after(push, before)


def _choice(
    each: _Shared,
    places: Sequence[SSAValue],
    map: AffineMap,
    then: Sequence[Operation],
    otherwise: Sequence[Operation],
) -> cores.IfOp:
    regions: list[Region] = []
    for steps in (then, otherwise):
        inner = Block()
        for step in steps:
            if step.parent is not None:
                step.detach()
            else:
                step.location = each.push.location
            inner.add_op(step)
        inner.add_op(cores.EndOp())
        regions.append(Region(inner))
    choice = cores.IfOp(symbols=places, map=map, then=regions[0], otherwise=regions[1])
    choice.location = each.push.location
    return choice


def _semaphore(program: cores.ProgramOp, name: str) -> SSAValue:
    made = cores.SemaphoreOp(initial=0, result=cores.SemaphoreType())
    made.results[0].name_hint = name
    program.body.block.insert_op_before(made, program.threads[0])
    return made.results[0]
