"""Keep arrays in L1 between kernels, if that saves time and L1 has room.

An array between kernels is best stored in the L1 of the cores that write it or of those that read it: it takes no DRAM
time, and no network time if both are the same. For each array the pass searches the placement of the fewest cycles;
arrays that save most per byte come first, until queues and arrays fill a core's memory. The remaining arrays stay in
DRAM.

Before:
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
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %out: !tile.ref<tensor<64x32xf32>, "l1 1x1 on 1x2">):
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
    ^bb0(%x: !tile.ref<tensor<64x32xf32>, "l1 1x1 on 1x2">, %out: !tile.ref<tensor<64x32xf32>>):
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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import SSAValue

from tilewright.cached import cached_property
from tilewright.cost.cores.accesses import Access, accesses_of
from tilewright.dialects import cores, tile
from tilewright.dialects.base import array_type
from tilewright.errors import ResourceExhausted
from tilewright.layout.catalogue.device_tiles import FORMATS
from tilewright.layout.catalogue.placements import Placement, page_matrix, placement_of
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.base import Remark, Unit
from tilewright.passes.cores.array_lifetimes import ArrayLives, CalledArray
from tilewright.passes.cores.memory import aligned_bytes, queue_bytes
from tilewright.passes.cores.relayouts import Stored
from tilewright.passes.cores.tile_facts import stored_format
from tilewright.passes.cores.tile_store_arrays import spread, store_arrays
from tilewright.passes.layouts.layout_rules import location_of


@dataclass(frozen=True)
class ScheduledPlaceArraysPass:
    """`keeps`: whether arrays that the user did not place are kept in the memories of cores."""

    name: ClassVar[str] = "scheduled-place-arrays"
    keeps: bool = True

    def apply(self, unit: Unit) -> None:
        _Placer(unit, unit.machine.core_grid).place(self.keeps)


@dataclass(frozen=True)
class _Option:
    """An array, where it may be, the bytes of each core that this takes, and the cycles that it saves."""

    array: CalledArray
    placement: Placement
    bytes: int
    saved_cycles: float

    @property
    def worth(self) -> float:
        return self.saved_cycles / self.bytes


class _Placer:
    """`placed`: arrays in memories of cores, and where they begin there."""

    def __init__(self, unit: Unit, grid: CoreGrid) -> None:
        self.unit, self.grid = unit, grid
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
        chosen: dict[SSAValue, Stored] = {}
        options = [option for found in self.lives.arrays.values() if keeps and (option := self._best(found))]
        for option in sorted(options, key=lambda each: -each.worth):
            self._choose(option, chosen)
        if chosen:
            store_arrays(self.unit, chosen)
        self._limit_queues()

    # ---- where arrays may be ----------------------------------------------------------------------------------------

    def _given(self, found: CalledArray) -> tuple[Placement | None, int]:
        """The user's placement of an array, and the bytes of a page."""
        _, kernel, number = found.uses[0]
        type = tile.ref_type(kernel.refs[number])
        return placement_of(type.space.data), _page_bytes(kernel, number)

    def _bytes(self, found: CalledArray, placement: Placement, page_bytes: int) -> int:
        size = placement.core_pages(page_matrix(array_type(found.value).shape)) * page_bytes
        return aligned_bytes(size, self.grid)

    def _best(self, found: CalledArray) -> _Option | None:
        """The placement that saves most; None where none does, or the array has to be in DRAM."""
        placement, size = self._given(found)
        if not found.is_own or placement is not None or 0 in array_type(found.value).shape:
            return None
        shape = array_type(found.value).shape
        accesses: list[Access] = []
        for _, kernel, number in found.uses:
            own = self._accesses(kernel, number)
            if own is None:
                return None
            accesses += own
        machine = self.grid.rows, self.grid.columns
        homes = {home for access in accesses if (home := access.home(shape, self.grid)) is not None}
        homes.add(Placement((1, 1), machine))
        in_dram = sum(access.cycles(shape, None, self.grid) for access in accesses)
        options = [
            _Option(found, home, self._bytes(found, home, size), in_dram - self._cycles(accesses, shape, home))
            for home in sorted(homes, key=str)
        ]
        best = max(options, key=lambda option: option.saved_cycles)
        return best if best.saved_cycles > 0 else None

    def _cycles(self, accesses: Sequence[Access], shape: Sequence[int], placement: Placement) -> float:
        return sum(access.cycles(shape, placement, self.grid) for access in accesses)

    def _accesses(self, kernel: tile.KernelOp, number: int) -> list[Access] | None:
        key = kernel, number
        if key not in self._known:
            program = _program(kernel)
            self._known[key] = [] if program is None else accesses_of(program, kernel.refs[number], self.grid)
        return self._known[key]

    # ---- where there is room ----------------------------------------------------------------------------------------

    def _choose(self, option: _Option, chosen: dict[SSAValue, Stored]) -> None:
        found, kernel = option.array, option.array.uses[0][1]
        what = f"an array of {array_type(found.value)} that `{kernel.sym_name}` makes"
        begin = self._place_for(found, option.bytes)
        if not self._has_room(found, begin):
            self._remark(what, "in DRAM", f"no core has room for {option.bytes} bytes of it next to its queues")
            return
        self.placed.append((found, begin, option.bytes))
        format = tile.ref_type(kernel.refs[found.uses[0][2]]).layout.data
        spread(found.value, Stored(format, str(option.placement)), chosen)
        why = f"{option.saved_cycles:.0f} cycles of transfers less, for {option.bytes} bytes of each core"
        self._remark(what, f"in {option.placement}", why)

    def _remark(self, what: str, decision: str, reason: str) -> None:
        self.unit.remarks.append(Remark(ScheduledPlaceArraysPass.name, what, decision, reason))

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
