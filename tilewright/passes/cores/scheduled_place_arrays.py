"""Keep arrays in L1 between kernels, if that saves time and L1 has room.

An array between kernels is best stored in the L1 of the cores that write it or of those that read it: it takes no DRAM
time, and no network time if both are the same. Each array is a variable of a problem that the solver of layouts solves:
its candidates are DRAM, shards with the cores that move its pages, and interleaved pages; the cost of each is the
cycles of all transfers of the array then. Room in L1 next to queues is no cost of two variables: it is checked on the
answer in the order of cycles saved per byte, and a placement without room is excluded from the next one.

Before (wormhole):
    func.func @main(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<64x32xf32>
      %z = array.call(%y) {callee = "again"} : tensor<64x32xf32>
      func.return %z : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 2>} do {
      ^bb1(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"f32", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.fetch(%x, %a, %column) {extents = array<i64: 1>, map = affine_map<(d0)[s0] -> (s0, d0)>,
            at = affine_map<(d0)[s0] -> (d0)>}
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
    tile.kernel() {sym_name = "again", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 2>} do {
      ^bb1(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"f32", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.fetch(%x, %a, %column) {extents = array<i64: 1>, map = affine_map<(d0)[s0] -> (s0, d0)>,
            at = affine_map<(d0)[s0] -> (d0)>}
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
    func.func @main(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<64x32xf32>
      %z = array.call(%y) {callee = "again"} : tensor<64x32xf32>
      func.return %z : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %out: !tile.ref<tensor<64x32xf32>, #tile.pages<"", "l1 1x1 on 1x2">>):
      cores.program() {cores = array<i64: 1, 2>, arrays_begin_bytes = 1495040 : index} do {
      ^bb0(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"f32", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.fetch(%x, %a, %column) {extents = array<i64: 1>, map = affine_map<(d0)[s0] -> (s0, d0)>,
            at = affine_map<(d0)[s0] -> (d0)>}
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
    tile.kernel() {sym_name = "again", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>, #tile.pages<"", "l1 1x1 on 1x2">>, %out: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 2>, arrays_begin_bytes = 1495040 : index} do {
      ^bb0(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"f32", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.fetch(%x, %a, %column) {extents = array<i64: 1>, map = affine_map<(d0)[s0] -> (s0, d0)>,
            at = affine_map<(d0)[s0] -> (d0)>}
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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from xdsl.ir import SSAValue

from tilewright.cached import cached_property
from tilewright.cost.cores.accesses import Access, accesses_of
from tilewright.dialects import cores, tile
from tilewright.dialects.base import array_type
from tilewright.errors import CompilerBug, ResourceExhausted
from tilewright.layout.catalogue.device_tiles import FORMATS
from tilewright.layout.catalogue.placements import Pages, Placement, page_matrix
from tilewright.layout.solver import Origin, Problem, Solution, Value
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.base import Remark, Unit
from tilewright.passes.cores.array_lifetimes import ArrayLives, CalledArray
from tilewright.passes.cores.core_space import CoreSpace
from tilewright.passes.cores.memory import aligned_bytes, queue_bytes
from tilewright.passes.cores.tile_facts import stored_format
from tilewright.passes.cores.tile_store_arrays import spread, store_arrays
from tilewright.passes.layouts.layout_rules import location_of


class ScheduledPlaceArraysPass(msgspec.Struct, frozen=True):
    """`keeps`: whether arrays that the user did not place are kept in the memories of cores."""

    name: ClassVar[str] = "scheduled-place-arrays"
    keeps: bool = True

    def apply(self, unit: Unit) -> None:
        _Placer(unit, unit.machine.core_grid).place(self.keeps)


@dataclass(frozen=True)
class _Option:
    """An array between kernels as a variable of the problem. `cycles`: of its transfers, for each of its candidates."""

    array: CalledArray
    variable: int
    page_bytes: int
    cycles: Mapping[Placement | None, float]

    def saved_cycles(self, placement: Placement | None) -> float:
        """Cycles of transfers that a placement saves over DRAM."""
        return self.cycles[None] - self.cycles[placement]


class _Placer:
    """`placed`: arrays in memories of cores, and where they begin there."""

    def __init__(self, unit: Unit, grid: CoreGrid) -> None:
        self.unit, self.grid = unit, grid
        self.space = CoreSpace(grid)
        self.lives = ArrayLives(unit)
        self.placed: list[tuple[CalledArray, int, int]] = []
        self._known: dict[tuple[tile.KernelOp, int], list[Access] | None] = {}

    def place(self, keeps: bool) -> None:
        for found in self.lives.arrays.values():
            placement, size = self._given(found)
            if placement is not None:
                size = self._bytes(found, placement, size)
                self.placed.append((found, self._place_for(found, size), size))
        if any(begin < self.grid.memory_base_bytes for _, begin, _ in self.placed):
            raise self._exhausted()
        if keeps:
            self._keep()
        self._limit_queues()

    # ---- the problem ------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Solve for the placements of all arrays between kernels, and store them so."""
        problem = Problem()
        found = (self._option(problem, array) for array in self.lives.arrays.values())
        options = [option for option in found if option is not None]
        if not options:
            return
        solution, without_room = self._fitted(problem, options)
        kinds: dict[SSAValue, Pages] = {}
        for option in sorted(options, key=lambda each: -self._worth(each, solution)):
            placement = self._chosen(option, solution)
            if placement is not None:
                kernel, number = option.array.uses[0][1:]
                format = cores.stored_pages(kernel.refs[number]).format
                spread(option.array.value, Pages(format, placement), kinds)
            self._explain(option, placement, without_room)
        if kinds:
            store_arrays(self.unit, kinds)

    def _option(self, problem: Problem, found: CalledArray) -> _Option | None:
        """An array as a variable; None of one that has to be in DRAM, or where the user placed it."""
        placement, size = self._given(found)
        shape = array_type(found.value).shape
        if not found.is_own or placement is not None or 0 in shape:
            return None
        accesses: list[Access] = []
        for _, kernel, number in found.uses:
            own = self._accesses(kernel, number)
            if own is None:
                return None
            accesses += own
        cycles = {each: self.space.cycles(shape, accesses, each) for each in self.space.placements(shape, accesses)}
        variable = problem.variable(self._name(found), cycles)
        problem.choose(variable, lambda each: self.space.seconds(cycles[each]), Origin("transfers of its pages"))
        return _Option(found, variable, size, cycles)

    def _fitted(
        self, problem: Problem, options: Sequence[_Option]
    ) -> tuple[Solution, dict[int, tuple[Placement, int]]]:
        """The cheapest solution for which memories have room, and the cheapest placements that had none. Arrays that
        save most cycles per byte come first; one that has no room next to them is solved for without that placement."""
        excluded: list[tuple[int, Value]] = []
        without_room: dict[int, tuple[Placement, int]] = {}
        solution, given = problem.solve(), list(self.placed)
        while (misfit := self._first_misfit(options, solution)) is not None:
            option, placement, size = misfit
            without_room.setdefault(option.variable, (placement, size))
            excluded.append((option.variable, placement))
            other = problem.cheapest_without(excluded)
            if other is None:
                raise CompilerBug("an array that has no room in DRAM")
            solution, self.placed = other, list(given)
        return solution, without_room

    def _first_misfit(self, options: Sequence[_Option], solution: Solution) -> tuple[_Option, Placement, int] | None:
        """The first array that has no room, in the order of cycles saved per byte; those before it are placed."""
        for option in sorted(options, key=lambda each: -self._worth(each, solution)):
            placement = self._chosen(option, solution)
            if placement is None:
                continue
            size = self._bytes(option.array, placement, option.page_bytes)
            begin = self._place_for(option.array, size)
            if not self._has_room(option.array, begin):
                return option, placement, size
            self.placed.append((option.array, begin, size))
        return None

    def _chosen(self, option: _Option, solution: Solution) -> Placement | None:
        value = solution.values[option.variable]
        return value if isinstance(value, Placement) else None

    def _worth(self, option: _Option, solution: Solution) -> float:
        placement = self._chosen(option, solution)
        if placement is None:
            return 0.0
        return option.saved_cycles(placement) / self._bytes(option.array, placement, option.page_bytes)

    def _given(self, found: CalledArray) -> tuple[Placement | None, int]:
        """The user's placement of an array, and the bytes of a page."""
        _, kernel, number = found.uses[0]
        return cores.stored_pages(kernel.refs[number]).placement, _page_bytes(kernel, number)

    def _bytes(self, found: CalledArray, placement: Placement, page_bytes: int) -> int:
        size = placement.core_pages(page_matrix(array_type(found.value).shape)) * page_bytes
        return aligned_bytes(size, self.grid)

    def _accesses(self, kernel: tile.KernelOp, number: int) -> list[Access] | None:
        key = kernel, number
        if key not in self._known:
            program = _program(kernel)
            self._known[key] = [] if program is None else accesses_of(program, kernel.refs[number], self.grid)
        return self._known[key]

    # ---- the explanation --------------------------------------------------------------------------------------------

    def _explain(
        self, option: _Option, placement: Placement | None, without_room: Mapping[int, tuple[Placement, int]]
    ) -> None:
        """Add the remark on an array: its placement, the cycles that it saves, and the cost of the next best one."""
        what, missed = self._name(option.array), without_room.get(option.variable)
        if placement is None:
            if missed is not None:
                self._remark(what, "in DRAM", f"no core has room for {missed[1]} bytes of it next to its queues")
            return
        size = self._bytes(option.array, placement, option.page_bytes)
        why = f"{option.saved_cycles(placement):.0f} cycles of transfers less, for {size} bytes of each core"
        others = {each: cycles for each, cycles in option.cycles.items() if each != placement}
        second = min(others, key=lambda each: others[each])
        lost = others[second] - option.cycles[placement]
        name = "DRAM" if second is None else str(second)
        reason = f"{why}; {name} would take {lost:.0f} cycles more"
        if missed is not None:
            reason = f"{why}; no core has room for {missed[1]} bytes of it in {missed[0]}"
        self._remark(what, f"in {placement}", reason)

    def _name(self, found: CalledArray) -> str:
        return f"an array of {array_type(found.value)} that `{found.uses[0][1].sym_name}` makes"

    def _remark(self, what: str, decision: str, reason: str) -> None:
        self.unit.remarks.append(Remark(ScheduledPlaceArraysPass.name, what, decision, reason))

    # ---- room -------------------------------------------------------------------------------------------------------

    def _place_for(self, found: CalledArray, size: int) -> int:
        """The highest address at which an array does not meet others that are there at the same time."""
        beside = [
            (begin, begin + bytes) for other, begin, bytes in self.placed if other.is_alive((found.begin, found.end))
        ]
        end = self.grid.memory_end_bytes
        for low, high in sorted(beside, reverse=True):
            if high <= end - size:
                break
            end = min(end, low)
        return end - size

    def _has_room(self, found: CalledArray, begin: int) -> bool:
        """Whether queues of all kernels that run as long as the array is there end below it."""
        return all(end <= begin for steps, end in self._ends_of_queues if found.is_alive(steps))

    @cached_property
    def _ends_of_queues(self) -> list[tuple[tuple[int, int], int]]:
        """The steps of each call and the address at which the queues of its kernel end."""
        ends: list[tuple[tuple[int, int], int]] = []
        for call in self.lives.calls:
            program = _program(self.unit.kernel(call.callee))
            queues = 0 if program is None else queue_bytes(program, self.grid)
            ends.append((self.lives.steps[call], self.grid.memory_base_bytes + queues))
        return ends

    def _exhausted(self) -> ResourceExhausted:
        """The error for requested placements that exceed L1."""
        lines = [
            f"{size:>9} bytes: {array_type(found.value)} in {self._given(found)[0]}, needed by steps {found.begin} to "
            f"{found.end} of the program, at {begin} to {begin + size}: it was asked for"
            for found, begin, size in sorted(self.placed, key=lambda each: -each[2])
        ]
        base, end = self.grid.memory_base_bytes, self.grid.memory_end_bytes
        error = ResourceExhausted(
            f"arrays do not fit each core's memory from {base} to {end}:\n" + "\n".join(lines),
            help="leave some of them in DRAM, or give them more cores",
        )
        call = max(self.placed, key=lambda each: each[2])[0].uses[0][0]
        error.location = location_of(call)
        return error

    def _limit_queues(self) -> None:
        """Queues of a kernel are below all arrays that are there when it runs."""
        limits: dict[str, int] = {}
        for call in self.lives.calls:
            steps, name = self.lives.steps[call], call.callee
            lowest = min((begin for found, begin, _ in self.placed if found.is_alive(steps)), default=None)
            if lowest is not None:
                limits[name] = min(lowest, limits.get(name, lowest))
        for name, limit in limits.items():
            program = _program(self.unit.kernel(name))
            if program is not None:
                program.arrays_begin_bytes = limit


def _page_bytes(kernel: tile.KernelOp, number: int) -> int:
    return FORMATS[stored_format(kernel.refs[number])].page_bytes


def _program(kernel: tile.KernelOp) -> cores.ProgramOp | None:
    return next((op for op in kernel.body.block.ops if isinstance(op, cores.ProgramOp)), None)
