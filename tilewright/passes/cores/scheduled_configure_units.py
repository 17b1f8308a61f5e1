"""Insert the unit configurations of a core, as few as the order of its operations allows.

A state stays until it is changed. If a loop needs one state of a unit only, the state is set before the loop; if a loop
ends in the state in which it begins, it is set before its first trip only.

The matrix unit's states for a reduction and for rows that become tiles are states of pack, too: it masks edges, or goes
through tiles with strides of its own, for the format that it has. So the format is set before them, and they are set
again where the format changes. Pack's state for tiles that become rows remaps the tile registers: it is set before they
are filled.

Before (wormhole):
    func.func @main(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "exp"} : tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "exp", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 1>, wide = true} do {
      ^bb1(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"f32", 1>
        %b = cores.queue() : !cores.queue<"f32", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          tile.for() {trips = 2 : index} do {
          ^bb2(%i: index):
            cores.reserve(%a) {pages = 1 : index}
            cores.fetch(%x, %a, %i) {extents = array<i64: 1>, map = affine_map<(d0)[s0] -> (s0, d0)>,
              at = affine_map<(d0)[s0] -> (d0)>}
            cores.barrier() {of = "read"}
            cores.push(%a) {pages = 1 : index}
            tile.yield()
          }
          cores.end()
        }
        cores.thread() {role = "writer", noc = 1 : index} do {
          tile.for() {trips = 2 : index} do {
          ^bb2(%i: index):
            cores.wait(%b) {pages = 1 : index}
            cores.put(%out, %b, %i) {extents = array<i64: 1>, map = affine_map<(d0)[s0] -> (s0, d0)>,
              at = affine_map<(d0)[s0] -> (d0)>}
            cores.barrier() {of = "write"}
            cores.pop(%b) {pages = 1 : index}
            tile.yield()
          }
          cores.end()
        }
        cores.thread() {role = "compute"} do {
          tile.for() {trips = 2 : index} do {
          ^bb2(%i: index):
            cores.wait(%a) {pages = 1 : index}
            cores.reserve(%b) {pages = 1 : index}
            cores.registers() {step = "acquire"}
            cores.copy(%a) {slot = 0 : index, count = 1 : index, at = affine_map<(d0) -> (d0)>, broadcast = "none"}
            cores.map() {slot = 0 : index, count = 1 : index, fn = "exp", dtype = "f32", arguments = array<i64: 0>,
              numbers = []}
            cores.registers() {step = "commit"}
            cores.registers() {step = "wait"}
            cores.pack(%b) {slot = 0 : index, count = 1 : index, at = affine_map<(d0) -> (d0)>}
            cores.registers() {step = "release"}
            cores.push(%b) {pages = 1 : index}
            cores.pop(%a) {pages = 1 : index}
            tile.yield()
          }
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "exp"} : tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "exp", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 1>, wide = true} do {
      ^bb0(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"f32", 1>
        %b = cores.queue() : !cores.queue<"f32", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          tile.for() {trips = 2 : index} do {
          ^bb0(%i: index):
            cores.reserve(%a) {pages = 1 : index}
            cores.fetch(%x, %a, %i) {extents = array<i64: 1>, map = affine_map<(d0)[s0] -> (s0, d0)>,
              at = affine_map<(d0)[s0] -> (d0)>}
            cores.barrier() {of = "read"}
            cores.push(%a) {pages = 1 : index}
            tile.yield()
          }
          cores.end()
        }
        cores.thread() {role = "writer", noc = 1 : index} do {
          tile.for() {trips = 2 : index} do {
          ^bb0(%i_1: index):
            cores.wait(%b) {pages = 1 : index}
            cores.put(%out, %b, %i_1) {extents = array<i64: 1>, map = affine_map<(d0)[s0] -> (s0, d0)>,
              at = affine_map<(d0)[s0] -> (d0)>}
            cores.barrier() {of = "write"}
            cores.pop(%b) {pages = 1 : index}
            tile.yield()
          }
          cores.end()
        }
        cores.thread() {role = "compute"} do {
          cores.configure(%a) {unit = "unpack_a", state = "f32"}
          cores.configure(%a) {unit = "matrix", state = "copy none"}
          cores.configure() {unit = "vector", state = "exp"}
          cores.configure(%b) {unit = "pack", state = "f32"}
          tile.for() {trips = 2 : index} do {
          ^bb0(%i_2: index):
            cores.wait(%a) {pages = 1 : index}
            cores.reserve(%b) {pages = 1 : index}
            cores.registers() {step = "acquire"}
            cores.copy(%a) {slot = 0 : index, count = 1 : index, at = affine_map<(d0) -> (d0)>, broadcast = "none"}
            cores.map() {slot = 0 : index, count = 1 : index, fn = "exp", dtype = "f32", arguments = array<i64: 0>,
              numbers = []}
            cores.registers() {step = "commit"}
            cores.registers() {step = "wait"}
            cores.pack(%b) {slot = 0 : index, count = 1 : index, at = affine_map<(d0) -> (d0)>}
            cores.registers() {step = "release"}
            cores.push(%b) {pages = 1 : index}
            cores.pop(%a) {pages = 1 : index}
            tile.yield()
          }
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import cores, tile
from tilewright.passes.base import Unit

# What each unit is set to; a unit that is not in it may have any state.
_States = dict[str, str]
# The states that an operation needs, in the order in which they are set, and for the use by which operation.
_Needs = dict[str, tuple[str, Operation]]
# Operations whose state of the matrix unit is one of pack, too.
_ALSO_OF_PACK = cores.ReduceOp | cores.TilizeOp


class ScheduledConfigureUnitsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-configure-units"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in list(kernel.walk()):
                if isinstance(op, cores.ThreadOp) and op.computes:
                    _Placing(op).place(op.body.block, {})


class _Placing:
    """The states of one thread. `packs`: for operations on tile registers, what packs next."""

    def __init__(self, thread: cores.ThreadOp) -> None:
        self._packs: dict[Operation, cores.PackingOp] = {}
        pack: cores.PackingOp | None = None
        for op in reversed(list(thread.body.walk())):
            if isinstance(op, cores.PackingOp):
                pack = op
            elif pack is not None and isinstance(op, cores.RegisterOp):
                self._packs[op] = pack

    def place(self, block: Block, states: _States) -> _States:
        """Set states in a block that begins with some; gives those at its end."""
        for op in list(block.ops):
            if isinstance(op, tile.ForOp):
                states = self._place_in_loop(op, block, states)
            elif isinstance(op, cores.IfOp):
                ends = [self.place(region.block, dict(states)) for region in (op.then, op.otherwise)]
                states = {unit: state for unit, state in ends[0].items() if ends[1].get(unit) == state}
            else:
                for unit, (state, user) in self._needs_of(op).items():
                    _set(unit, state, user, op, block, states)
        return states

    def _needs_of(self, op: Operation) -> _Needs:
        needs: _Needs = {unit: (state, op) for unit, state in cores.states_of(op).items()}
        pack = self._packs.get(op)
        if pack is None:
            return needs
        packs: _Needs = {unit: (state, pack) for unit, state in cores.states_of(pack).items()}
        if isinstance(op, _ALSO_OF_PACK):
            return packs | needs
        return needs | packs if isinstance(pack, cores.UntilizeOp) else needs

    def _place_in_loop(self, op: tile.ForOp, block: Block, states: _States) -> _States:
        uses: dict[str, list[tuple[str, Operation]]] = {}
        for each in op.body.block.walk():
            for unit, use in self._needs_of(each).items():
                uses.setdefault(unit, []).append(use)
        is_one_format = len({state for state, _ in uses.get(cores.PACK, ())}) == 1
        inside: _States = {unit: state for unit, state in states.items() if unit not in uses}
        for unit, own in self._in_order(uses).items():
            state, user = own[0]
            stays = unit != cores.MATRIX or not isinstance(user, _ALSO_OF_PACK) or is_one_format
            if stays and _ends_as_it_begins(own, op):
                _set(unit, state, user, op, block, states)
                inside[unit] = state
        after = self.place(op.body.block, dict(inside))
        # A loop that may have no trip leaves what was there before it.
        return after if op.end is None else {u: s for u, s in after.items() if states.get(u) == s}

    def _in_order(self, uses: dict[str, list[tuple[str, Operation]]]) -> dict[str, list[tuple[str, Operation]]]:
        """Uses unit by unit, pack before the matrix unit where the state of that is one of pack, too."""
        units = [unit for unit in cores.UNITS if unit in uses]
        if cores.PACK in uses and isinstance(uses.get(cores.MATRIX, [("", None)])[0][1], _ALSO_OF_PACK):
            units.remove(cores.PACK)
            units.insert(units.index(cores.MATRIX), cores.PACK)
        return {unit: uses[unit] for unit in units}


def _ends_as_it_begins(uses: Sequence[tuple[str, Operation]], loop: tile.ForOp) -> bool:
    """Whether each trip of a loop leaves a unit in the state of its first use: all uses have that state, or it is also
    that of the last one, and each trip comes to all of them."""
    if len({state for state, _ in uses}) == 1:
        return True
    return uses[0][0] == uses[-1][0] and not any(_may_be_left_out(user, loop) for _, user in uses)


def _may_be_left_out(op: Operation, loop: tile.ForOp) -> bool:
    """Whether a trip of a loop around an operation may not come to it: in a branch, or in a loop that may have no
    trip."""
    around = op.parent_op()
    while around is not None and around is not loop:
        if isinstance(around, cores.IfOp) or (isinstance(around, tile.ForOp) and around.end is not None):
            return True
        around = around.parent_op()
    return False


def _set(unit: str, state: str, user: Operation, before: Operation, block: Block, states: _States) -> None:
    if states.get(unit) == state:
        return
    if unit == cores.PACK and states.get(cores.MATRIX, "").startswith(("reduce", "tilize")):
        del states[cores.MATRIX]
    states[unit] = state
    made = cores.ConfigureOp(queues=queues_of(user, unit), unit=unit, state=state)
    made.location = user.location
    block.insert_op_before(made, before)


def queues_of(op: Operation, unit: str) -> list[SSAValue]:
    """The queues that a unit's state is about."""
    match op:
        case cores.BinaryOp() if unit == cores.MATRIX:
            return [op.left, op.right]
        case cores.BinaryOp():
            return [op.left if unit == cores.UNPACK_A else op.right]
        case cores.MatmulOp() if unit == cores.MATRIX:
            return [op.left, op.right]
        case cores.MatmulOp():
            return [op.right if unit == cores.UNPACK_A else op.left]
        case cores.ReduceOp() if unit == cores.MATRIX:
            return [op.queue, op.scaler]
        case cores.ReduceOp():
            return [op.queue if unit == cores.UNPACK_A else op.scaler]
        case cores.CopyOp() | cores.TilizeOp() | cores.PackingOp():
            return [op.queue]
        case _:
            return []
