"""Addresses that `scheduled-plan-core-memory` gives to queues, and what it does where they have no room."""

from __future__ import annotations

import pytest

from tests.passes.cores.streams import fetched, program, written
from tests.passes.pass_support import applied, check_meaning, remarks
from tilewright.dialects import cores
from tilewright.errors import ResourceExhausted
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.cores.scheduled_plan_core_memory import ScheduledPlanCoreMemoryPass

PASS = ScheduledPlanCoreMemoryPass()


def queues(unit: Unit) -> list[tuple[int, int]]:
    """The address and the bytes of each."""
    found = [op for op in unit.module.walk() if isinstance(op, cores.QueueOp)]
    return [(op.address_bytes or 0, cores.queue_type(op.result).bytes) for op in found]


def pages(unit: Unit) -> list[int]:
    return [cores.queue_type(op.result).pages for op in unit.module.walk() if isinstance(op, cores.QueueOp)]


@pytest.mark.parametrize("machine", ["wormhole", "blackhole"])
@pytest.mark.parametrize(("format", "dtype", "size"), [("f32", "f32", 4096), ("bf16", "bf16", 2048)])
def test_queues_are_one_after_the_other(format: str, dtype: str, size: int, machine: str) -> None:
    lengths = {"a": (format, 1), "b": (format, 3), "c": (format, 2)}
    reader = "".join(fetched(name, n) for n, name in enumerate(lengths))
    writer = "".join(written(name, n) for n, name in enumerate(lengths))
    unit = check_meaning(PASS, program(lengths, reader, writer, pages=(3, 3), dtype=dtype), machine)
    base = load(machine).core_grid.memory_base_bytes
    assert queues(unit) == [(base, size), (base + size, 3 * size), (base + 4 * size, 2 * size)]


def one_queue(count: int, step: int, more: int = 0) -> str:
    lengths = {"a": ("f32", count)} | ({"b": ("f32", more)} if more else {})
    reader, writer = fetched("a", 0, step), written("a", 0, step)
    if more:
        reader, writer = reader + fetched("b", 0, step), writer + written("b", 0, step)
    return program(lengths, reader, writer, pages=(step, step))


def room() -> int:
    grid = load("wormhole").core_grid
    return grid.memory_bytes // 4096


def test_queues_that_fit_keep_their_pages() -> None:
    assert pages(applied(PASS, one_queue(room(), 1), "wormhole")) == [room()]


def test_a_queue_without_room_gives_up_half_of_its_pages() -> None:
    unit = applied(PASS, one_queue(2 * room(), 2), "wormhole")
    halved = 2 * room() // 2 // 2 * 2
    assert pages(unit) == [halved]
    assert remarks(unit, PASS.name) == [(f"a queue of {halved} pages instead of twice as many", "no room in L1")]


def test_a_queue_keeps_whole_steps() -> None:
    """Of three steps one is left, not one and a half."""
    step = room() // 2
    assert pages(applied(PASS, one_queue(3 * step, step), "wormhole")) == [step]


def test_the_largest_queue_is_halved_first() -> None:
    most = room()
    unit = applied(PASS, one_queue(most // 2, 1, most * 3 // 4), "wormhole")
    assert pages(unit) == [most // 2, most * 3 // 8]


def test_queues_of_one_step_are_exhausted_with_a_table() -> None:
    step = room() + 1
    with pytest.raises(ResourceExhausted) as found:
        applied(PASS, one_queue(step, step), "wormhole")
    text = str(found.value)
    assert f"`k` needs {step * 4096} bytes of each core's memory" in text
    assert f"between reader and writer, already of one tile: {step} pages are pushed together" in text
    assert ", beyond the end" in text


def test_a_queue_of_one_thread_stays() -> None:
    """It holds what the thread itself needs again: half of it would be a deadlock."""
    count = room() + 1
    text = program({"a": ("f32", count)}, fetched("a", 0) + "cores.wait(%a) {pages = 1 : index}\n"
                   "cores.pop(%a) {pages = 1 : index}\n", "")  # fmt: skip
    with pytest.raises(ResourceExhausted, match="in reader alone"):
        applied(PASS, text, "wormhole")
