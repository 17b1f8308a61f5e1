"""Pages that all cores of a row, of a column or of the grid fetch are fetched by one of them, which sends them to all.

The others say that they have room, by a semaphore of the one that fetches; when all have, it multicasts the pages, and
behind them a semaphore that says that they have come. Which core of a row or column fetches goes by its number, so that
rows and columns do not all have theirs in one place.

Before:
    func.func @main(%x: tensor<32x32xbf16>) -> tensor<32x32xbf16> {
      %y = array.call(%x) {callee = "copy"} : tensor<32x32xbf16>
      func.return %y : tensor<32x32xbf16>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xbf16>>, %out: !tile.ref<tensor<32x32xbf16>>):
      cores.program() {cores = array<i64: 1, 2>} do {
      ^bb1(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"bf16", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.fetch(%x, %a, %row) {extents = array<i64: 1, 1>, map = affine_map<(d0, d1)[s0] -> (s0 + d0, d1)>,
            at = affine_map<(d0, d1)[s0] -> (d0 + d1)>}
          cores.barrier() {of = "read"}
          cores.push(%a) {pages = 1 : index}
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<32x32xbf16>) -> tensor<32x32xbf16> {
      %y = array.call(%x) {callee = "copy"} : tensor<32x32xbf16>
      func.return %y : tensor<32x32xbf16>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xbf16>>, %out: !tile.ref<tensor<32x32xbf16>>):
      cores.program() {cores = array<i64: 1, 2>} do {
      ^bb1(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"bf16", 1>
        %ready = cores.semaphore() {initial = 0 : index} : !cores.semaphore
        %sent = cores.semaphore() {initial = 0 : index} : !cores.semaphore
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.if(%row, %column) {map = affine_map<()[s0, s1] -> (s1 + (s0 mod 2) * -1)>} do {
            cores.fetch(%x, %a, %row) {extents = array<i64: 1, 1>, map = affine_map<(d0, d1)[s0] -> (s0 + d0, d1)>,
              at = affine_map<(d0, d1)[s0] -> (d0 + d1)>}
            cores.barrier() {of = "read"}
            cores.semaphore_wait(%ready) {value = 1 : index}
            cores.semaphore_set(%ready) {value = 0 : index}
            cores.multicast(%a, %row, %column) {at = affine_map<()[s0, s1] -> (0)>, pages = 1 : index,
              rectangle = affine_map<()[s0, s1] -> (s0, 0, s0, 1)>}
            cores.semaphore_set(%sent) {value = 1 : index}
            cores.semaphore_multicast(%sent, %row, %column) {rectangle = affine_map<()[s0, s1] -> (s0, 0, s0, 1)>}
            cores.barrier() {of = "write"}
            cores.semaphore_set(%sent) {value = 0 : index}
            cores.end()
          } do {
            cores.semaphore_increment(%ready, %row, %column) {core = affine_map<()[s0, s1] -> (s0, s0 mod 2)>,
              value = 1 : index}
            cores.semaphore_wait(%sent) {value = 1 : index}
            cores.semaphore_set(%sent) {value = 0 : index}
            cores.end()
          }
          cores.push(%a) {pages = 1 : index}
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import AffineSymExpr

from tilewright.dialects import cores, tile
from tilewright.passes.base import Remark, Unit, where


@dataclass(frozen=True)
class ScheduledMulticastFetchesPass:
    name: ClassVar[str] = "scheduled-multicast-fetches"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for program in list(kernel.walk()):
                if isinstance(program, cores.ProgramOp):
                    self._apply_to(unit, kernel.sym_name.data, program)

    def _apply_to(self, unit: Unit, name: str, program: cores.ProgramOp) -> None:
        grid = unit.machine.grid
        left = 0 if grid is None else grid.semaphores - len(program.semaphores)
        for thread in program.threads:
            for op in list(thread.body.walk()):
                if not isinstance(op, cores.FetchOp) or left < 2:
                    continue
                group = _group_of(op, program)
                found = _sequence_of(op)
                if group is None or found is None:
                    continue
                _multicast(program, group, found)
                left -= 2
                decision = f"one core of each {group.what} fetches pages at {where(op)} for all {group.count}"
                unit.remarks.append(Remark(self.name, name, decision, "they fetch the same"))


@dataclass(frozen=True)
class _Group:
    """Cores that fetch the same: those of a row (`along` (False, True)), of a column (True, False), or all. `others`:
    the place of the one that fetches, along each axis."""

    what: str
    along: tuple[bool, bool]
    shape: tuple[int, int]

    @property
    def count(self) -> int:
        return (self.shape[0] if self.along[0] else 1) * (self.shape[1] if self.along[1] else 1)

    def fetching(self, row: AffineExpr, column: AffineExpr) -> tuple[AffineExpr, AffineExpr]:
        """Row and column of the one that fetches for a core."""
        rows, columns = self.shape
        if all(self.along):
            return AffineExpr.constant(0), AffineExpr.constant(0)
        return (column % rows, column) if self.along[0] else (row, row % columns)

    def is_fetching(self, row: AffineExpr, column: AffineExpr) -> AffineExpr:
        """What is 0 for the core that fetches."""
        rows, columns = self.shape
        if all(self.along):
            return row + column
        return row + (column % rows) * -1 if self.along[0] else column + (row % columns) * -1

    def rectangle(self, row: AffineExpr, column: AffineExpr) -> list[AffineExpr]:
        """First row and column, last row and column."""
        zero = AffineExpr.constant(0)
        ends = [AffineExpr.constant(size - 1) for size in self.shape]
        rows = (zero, ends[0]) if self.along[0] else (row, row)
        columns = (zero, ends[1]) if self.along[1] else (column, column)
        return [rows[0], columns[0], rows[1], columns[1]]


def _group_of(op: cores.FetchOp, program: cores.ProgramOp) -> _Group | None:
    """The cores that fetch the same pages, as often; None where there is but one."""
    row, column = program.body.block.args
    used = _used_in([op.map.data, op.at.data], op.symbols)
    parent: Operation | None = op.parent_op()
    while parent is not None and not isinstance(parent, cores.ThreadOp):
        if isinstance(parent, cores.IfOp):
            return None
        if isinstance(parent, tile.ForOp) and parent.end is not None:
            used |= _used_in([parent.end.data], parent.symbols)
        parent = parent.parent_op()
    rows, columns = program.shape
    along = (row not in used and rows > 1, column not in used and columns > 1)
    if not any(along):
        return None
    # A core of a grid of one row or column is of no group along the other axis.
    whole = (along[0] or rows == 1) and (along[1] or columns == 1)
    what = "grid" if whole and all(along) else "column" if along[0] else "row"
    return _Group(what, along, (rows, columns))


def _used_in(maps: Sequence[AffineMap], symbols: Sequence[SSAValue]) -> set[SSAValue]:
    """The symbols that maps depend on."""
    found: set[SSAValue] = set()
    for map in maps:
        for expression in map.results:
            for part in expression.dfs():
                if isinstance(part, AffineSymExpr):
                    found.add(symbols[part.position])
    return found


@dataclass(frozen=True)
class _Sequence:
    """The operations that bring pages: what fetches and waits for them, and what pushes them."""

    fetching: tuple[Operation, ...]
    push: cores.PushOp


def _sequence_of(op: cores.FetchOp) -> _Sequence | None:
    found: list[Operation] = [op]
    following = op.next_op
    while following is not None:
        if isinstance(following, cores.PushOp) and following.queue is op.queue:
            return _Sequence(tuple(found), following)
        is_of_fetch = isinstance(following, cores.BarrierOp) or (
            isinstance(following, cores.PadOp) and following.queue is op.queue
        )
        if not is_of_fetch:
            return None
        found.append(following)
        following = following.next_op
    return None


def _multicast(program: cores.ProgramOp, group: _Group, found: _Sequence) -> None:
    block = found.push.parent_block()
    if block is None:
        return
    ready, sent = (_semaphore(program, name) for name in ("ready", "sent"))
    places: list[SSAValue] = list(program.body.block.args)
    row, column = AffineExpr.symbol(0), AffineExpr.symbol(1)

    def map_to(*results: AffineExpr) -> AffineMapAttr:
        return AffineMapAttr(AffineMap(0, 2, tuple(results)))

    rectangle = map_to(*group.rectangle(row, column))
    then, otherwise = Block(), Block()
    for op in found.fetching:
        op.detach()
        then.add_op(op)
    queue = found.push.queue
    first = map_to(AffineExpr.constant(0))
    pages = found.push.count
    sending: list[tuple[Any, list[SSAValue], dict[str, Any]]] = [
        (cores.SemaphoreWaitOp, [ready], {"value": group.count - 1}),
        (cores.SemaphoreSetOp, [ready], {"value": 0}),
        (cores.MulticastOp, [queue, *places], {"at": first, "pages": pages, "rectangle": rectangle}),
        (cores.SemaphoreSetOp, [sent], {"value": 1}),
        (cores.SemaphoreMulticastOp, [sent, *places], {"rectangle": rectangle}),
        # The number that is sent is read until it has come.
        (cores.BarrierOp, [], {"of": cores.WRITE}),
        (cores.SemaphoreSetOp, [sent], {"value": 0}),
    ]
    core = map_to(*group.fetching(row, column))
    receiving: list[tuple[Any, list[SSAValue], dict[str, Any]]] = [
        (cores.SemaphoreIncrementOp, [ready, *places], {"core": core, "value": 1}),
        (cores.SemaphoreWaitOp, [sent], {"value": 1}),
        (cores.SemaphoreSetOp, [sent], {"value": 0}),
    ]
    for target, steps in ((then, sending), (otherwise, receiving)):
        for cls, operands, attributes in steps:
            made = cls.make(operands, attributes, [])
            made.location = found.push.location
            target.add_op(made)
        target.add_op(cores.EndOp.make([], {}, []))
    choice = cores.IfOp.make(
        places, {"map": map_to(group.is_fetching(row, column))}, [], [Region(then), Region(otherwise)]
    )
    choice.location = found.push.location
    block.insert_op_before(choice, found.push)


def _semaphore(program: cores.ProgramOp, name: str) -> SSAValue:
    made = cores.SemaphoreOp.make([], {"initial": 0}, [cores.SemaphoreType()])
    made.results[0].name_hint = name
    first = program.threads[0]
    program.body.block.insert_op_before(made, first)
    return made.results[0]

