"""Instrument zones: an extra array of a kernel, and stores of time stamps to it.

Each role that has zones has a section of its block's part of the array, and one thread of it notes when the role
begins and ends, and each edge of a zone. A section has room for the edges that the trips of loops can make, up to
`MOST_EDGES`, and as many as leave the array below `MOST_BYTES`. Zones that are empty are left out: what they enclosed
is done by another role, or copied ahead.

Before (sm_90a):
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<4x8xf32>
      func.return %y : tensor<4x8xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xf32>>, %out: !tile.ref<tensor<4x8xf32>>):
      scheduled.parallel() {extents = array<i64: 4>, grain = 1 : index, warps = 1 : index} do {
      ^bb0(%i: index):
        tile.zone() {label = "load", edge = "begin"}
        %a = tile.load(%x, %i) {map = affine_map<(d0)[s0] -> (s0, d0)>} : tensor<8xf32, "(8) : [8@lane]">
        tile.zone() {label = "load", edge = "end"}
        tile.store(%a, %out, %i) {map = affine_map<(d0)[s0] -> (s0, d0)>}
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %0, %1 = array.call(%x) {callee = "copy"} : tensor<4x8xf32>, tensor<4x1x10xi64>
      func.return %0 : tensor<4x8xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x8xf32>>, %out: !tile.ref<tensor<4x8xf32>>, %2: !tile.ref<tensor<4x1x10xi64>>):
      scheduled.parallel() {extents = array<i64: 4>, grain = 1 : index, warps = 1 : index} do {
      ^bb0(%i: index):
        scheduled.record(%2) {what = "open", section = 0 : index}
        scheduled.record(%2) {what = "begin", section = 0 : index, number = 0 : index, label = "load"}
        %a = tile.load(%x, %i) {map = affine_map<(d0)[s0] -> (s0, d0)>} : tensor<8xf32, "(8) : [8@lane]">
        scheduled.record(%2) {what = "end", section = 0 : index, number = 0 : index, label = "load"}
        tile.store(%a, %out, %i) {map = affine_map<(d0)[s0] -> (s0, d0)>}
        scheduled.record(%2) {what = "close", section = 0 : index}
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import Pure

from tilewright import dtypes
from tilewright.dialects import array, scheduled, tile
from tilewright.dialects.base import rebuilt, tensor
from tilewright.dialects.rewriting import block_of, erase, insert_like
from tilewright.passes.base import Remark, Unit
from tilewright.primitives import ArrayType
from tilewright.runtime.zones import EDGE_WORDS, HEADER_WORDS

MOST_EDGES = 512
MOST_BYTES = 64 * 2**20
# What the warps without a role are called.
COMPUTES = "computes"


class ScheduledRecordZonesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-record-zones"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for region in (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp)):
                if any(isinstance(op, tile.ZoneOp) for op in region.walk()):
                    self._apply(unit, kernel, region)

    def _apply(self, unit: Unit, kernel: tile.KernelOp, region: scheduled.ParallelOp) -> None:
        def remark(decision: str, reason: str) -> None:
            unit.remarks.append(Remark(self.name, kernel.sym_name, decision, reason))

        parts = _parts_of(region)
        for part in parts:
            for label in dict.fromkeys(part.drop_empty()):
                elsewhere = [each.role for each in parts if each is not part and label in each.labels]
                reason = f"role `{elsewhere[0]}` runs the operations" if elsewhere else "the copies are pipelined ahead"
                remark(f"zone `{label}` of `{part.role}` is empty", reason)
        parts = [part for part in parts if part.labels]
        room = MOST_BYTES // max(1, 8 * prod(region.shape) * len(parts))
        edges = min(MOST_EDGES, (room - HEADER_WORDS) // EDGE_WORDS, max((part.edges for part in parts), default=0))
        if edges < 2:
            _erase([zone for part in parts for zone in part.zones])
            if parts:
                remark("zones are not recorded", f"{prod(region.shape)} blocks leave no room in {MOST_BYTES} bytes")
            return
        records = _add_records(unit, kernel, (prod(region.shape), len(parts), HEADER_WORDS + EDGE_WORDS * edges))
        labels = list(dict.fromkeys(label for part in parts for label in part.labels))
        for section, part in enumerate(parts):
            lost = f", of {part.edges} at most" if part.edges > edges else ""
            zones = ", ".join(f"`{label}`" for label in part.labels)
            remark(f"`{part.role}` records {zones}", f"room for {edges} edges of zones a block{lost}")
            part.record(records, section, labels)


@dataclass
class _Part:
    """The operations of the warps of a role, or of those without one."""

    role: str
    block: Block
    zones: list[tile.ZoneOp]

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(zone.label for zone in self.zones))

    @property
    def edges(self) -> int:
        """How many edges there are at most."""
        return sum(_times(zone, self.block) for zone in self.zones)

    def drop_empty(self) -> list[str]:
        """Take out zones that nothing happens in; gives their labels."""
        dropped: list[str] = []
        while found := next((zone for zone in self.zones if zone.begins and _is_empty(zone)), None):
            pair = [found, found.other()]
            dropped.append(found.label)
            self.zones = [zone for zone in self.zones if zone not in pair]
            _erase(pair)
        return dropped

    def record(self, records: SSAValue, section: int, labels: Sequence[str]) -> None:
        first, last = self.block.first_op, self.block.last_op
        assert first is not None
        assert last is not None
        self.block.insert_op_before(_record(records, scheduled.OPEN, section), first)
        self.block.insert_op_before(_record(records, scheduled.CLOSE, section), last)
        for zone in self.zones:
            made = _record(records, zone.edge, section, number=labels.index(zone.label), label=zone.label)
            insert_like(zone, made)
        _erase(self.zones)


def _parts_of(region: scheduled.ParallelOp) -> list[_Part]:
    """The warps without a role first."""
    roles = [op for op in region.body.block.ops if isinstance(op, scheduled.RoleOp)]
    of_roles = [_Part(op.role, op.body.block, _zones_in(op)) for op in roles]
    inside = {zone for part in of_roles for zone in part.zones}
    rest = [zone for zone in _zones_in(region) if zone not in inside]
    return [_Part(COMPUTES, region.body.block, rest), *of_roles]


def _zones_in(op: Operation) -> list[tile.ZoneOp]:
    return [each for each in op.walk() if isinstance(each, tile.ZoneOp)]


def _is_empty(zone: tile.ZoneOp) -> bool:
    """Whether nothing is between the edges but places that are only named."""
    last, op = zone.other(), zone.next_op
    while op is not last and op is not None and op.has_trait(Pure) and isinstance(op, scheduled.StageOp):
        op = op.next_op
    return op is last


def _times(zone: tile.ZoneOp, block: Block) -> int:
    """The trips of all loops around an operation, within a block."""
    times, around = 1, zone.parent_op()
    while around is not None and around is not block.parent_op():
        times *= around.trips if isinstance(around, tile.ForOp) else 1
        around = around.parent_op()
    return times


def _record(
    records: SSAValue, what: str, section: int, number: int | None = None, label: str | None = None
) -> scheduled.RecordOp:
    return scheduled.RecordOp(records=records, what=what, section=section, number=number, label=label)


def _erase(ops: Sequence[Operation]) -> None:
    for op in ops:
        erase(op)


def _add_records(unit: Unit, kernel: tile.KernelOp, shape: tuple[int, int, int]) -> SSAValue:
    """Add an output to a kernel and to its calls that only the host reads."""
    type = ArrayType(shape, dtypes.i64)
    records = kernel.body.block.insert_arg(tile.ref(type), len(kernel.refs))
    kernel.effects = (*kernel.effects, tile.OUT)
    calls = [op for op in unit.main.walk() if isinstance(op, array.CallOp) and op.callee == kernel.sym_name]
    for call in calls:
        types = [*(result.type for result in call.results), tensor(type)]
        made = rebuilt(call, result_types=types)
        made.location = call.location
        block = block_of(call)
        block.insert_op_before(made, call)
        for before, after in zip(call.results, made.results, strict=False):
            before.replace_all_uses_with(after)
        _erase([call])
    return records
