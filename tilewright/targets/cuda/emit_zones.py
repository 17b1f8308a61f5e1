"""Notes of the time by one thread of each role, in an array that the host reads after the launch.

The time is that of the multiprocessor, `%clock64`, which counts cycles; at both ends of a role the nanoseconds of the
device, `%globaltimer`, are noted next to it: they are coarse, but the same on all multiprocessors. PTX ISA, special
registers. Notes are stores under a predicate, no branches: the assembler has asynchronous MMAs waited for where a
thread branches off next to them.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from llvmlite import ir

from tilewright.dialects import scheduled, tile
from tilewright.passes.warps.scheduled_record_zones import COMPUTES
from tilewright.records import dataclass
from tilewright.runtime.zones import (
    EDGE_WORDS,
    HEADER_WORDS,
    PLACE,
    START,
    STOP,
    Zones,
)
from tilewright.targets.cuda.atoms import hopper
from tilewright.targets.simt.fragments import Builder, Value, i32

_STORE_TWO = "{ .reg .pred p; setp.ne.u32 p, $3, 0; @p st.global.v2.u64 [$0], {$1, $2}; }"


@dataclass
class ZoneWriter:
    """The records of a kernel. `counts`: how many edges each section has come to."""

    zones: Zones | None
    _counts: dict[int, Value] = field(default_factory=dict[int, Value])

    @staticmethod
    def of(kernel: tile.KernelOp, clock_hertz: float) -> ZoneWriter:
        records = [op for op in kernel.walk() if isinstance(op, scheduled.RecordOp)]
        if not records:
            return ZoneWriter(None)
        edges = {op.number: op.label for op in records if op.number is not None and op.label is not None}
        roles = {op.section: _role_of(op) for op in records}
        words = tile.ref_type(records[0].records).shape[2]
        return ZoneWriter(
            Zones(
                labels=tuple(edges[number] for number in range(len(edges))),
                roles=tuple(roles[section] for section in range(len(roles))),
                words=words,
                clock_hertz=clock_hertz,
            )
        )

    def emit(self, builder: Builder, op: scheduled.RecordOp, start: Value, is_first: Value) -> None:
        """`start`: of the array; `is_first`: whether this is the thread that notes."""
        section = op.section
        place = _section(builder, op, start)
        notes = builder.zext(is_first, hopper.I32)
        clock = _read(builder, "u64", "clock64")
        match op.what:
            case scheduled.OPEN:
                with builder.goto_entry_block():
                    self._counts[section] = builder.alloca(hopper.I32)
                builder.store(i32(0), self._counts[section])
                _put(builder, place, START, (_read(builder, "u64", "globaltimer"), clock), notes)
            case scheduled.CLOSE:
                count = builder.zext(builder.load(self._counts[section], typ=hopper.I32), hopper.I64)
                multiprocessor = builder.zext(_read(builder, "u32", "smid"), hopper.I64)
                _put(builder, place, PLACE, (multiprocessor, count), notes)
                _put(builder, place, STOP, (_read(builder, "u64", "globaltimer"), clock), notes)
            case _:
                self._edge(builder, op, place, clock, is_first)

    def _edge(self, builder: Builder, op: scheduled.RecordOp, place: Value, clock: Value, is_first: Value) -> None:
        """One edge more, which is noted where there is room."""
        counter = self._counts[op.section]
        count = builder.load(counter, typ=hopper.I32)
        room = (tile.ref_type(op.records).shape[2] - HEADER_WORDS) // EDGE_WORDS
        has_room = builder.icmp_unsigned("<", count, i32(room))
        notes = builder.zext(builder.and_(is_first, has_room), hopper.I32)
        at = builder.gep(place, [builder.mul(count, i32(EDGE_WORDS))], source_etype=hopper.I64)
        assert op.number is not None
        edge = _wide(2 * op.number + (op.what == tile.END))
        _put(builder, at, HEADER_WORDS, (edge, clock), notes)
        builder.store(builder.add(count, i32(1)), counter)


def _role_of(op: scheduled.RecordOp) -> str:
    around = op.parent_op()
    while around is not None and not isinstance(around, scheduled.RoleOp):
        around = around.parent_op()
    return COMPUTES if around is None else around.role


def _wide(value: int) -> Value:
    return ir.Constant(hopper.I64, value)


def _section(builder: Builder, op: scheduled.RecordOp, start: Value) -> Value:
    """The offset of this block's section. All of them are fewer than 2**31 words."""
    _, sections, words = tile.ref_type(op.records).shape
    block = hopper.chip(builder, "read.ptx.sreg.ctaid.x", hopper.I32)
    words_before = builder.add(builder.mul(block, i32(sections * words)), i32(op.section * words))
    return builder.gep(start, [words_before], source_etype=hopper.I64)


def _read(builder: Builder, type: str, register: str) -> Value:
    """A special register as it is here."""
    result: Any = hopper.I64 if type == "u64" else hopper.I32
    constraints = ("=l" if type == "u64" else "=r") + ",~{memory}"
    return hopper.assembly(builder, f"mov.{type} $0, %{register};", constraints, result)


def _put(builder: Builder, place: Value, word: int, pair: tuple[Value, Value], notes: Value) -> None:
    """Two words, where `notes` is not 0."""
    at = builder.gep(place, [i32(word)], source_etype=hopper.I64)
    hopper.assembly(builder, _STORE_TWO, "l,l,l,r,~{memory}", hopper.VOID, at, *pair, notes)
