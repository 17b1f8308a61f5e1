"""Programs that are broken on purpose are caught, with the right kind, in any order; so are they before they are broken
without a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.cores import breaking, programs
from tests.cores.breaking import (
    change,
    change_queue,
    change_trips,
    drop,
    find,
    move_after,
    move_before,
    repeat,
    repeat_at_end,
)
from tests.cores.builder import Builder
from tests.cores.hazard_programs import (
    Program,
    accumulated,
    answers,
    blocks,
    crossed,
    elements,
    elementwise,
    many_answers,
    multicast,
    multicast_once,
    of_rows,
    one_tile,
    placed,
    sent,
    sums,
    through_memory,
    told_once,
    updated,
    wide_blocks,
    with_queues,
    with_semaphores,
)
from tilewright.dialects import cores, tile
from tilewright.dialects.cores import (
    AccumulateOp,
    BarrierOp,
    BinaryOp,
    ConfigureOp,
    CopyOp,
    FetchOp,
    MapOp,
    MulticastOp,
    PackOp,
    PopOp,
    PushOp,
    PutOp,
    RegistersOp,
    ReserveOp,
    ScatterOp,
    SemaphoreIncrementOp,
    SemaphoreMulticastOp,
    SemaphoreSetOp,
    SemaphoreWaitOp,
    SendOp,
    WaitOp,
)
from tilewright.machines.machine import load
from tilewright.semantics.cores import DeviceArray, run_program
from tilewright.semantics.hazards import CoreDeadlockError, CoreHazard, HazardError

READER, COMPUTE, WRITER = cores.ROLES[0], cores.COMPUTE, cores.WRITER
MACHINE = load("wormhole")
Break = Callable[[tile.KernelOp], None]


def run(kernel: tile.KernelOp, seed: int = 0, **more: Any) -> None:
    """On zeros."""
    kernel.verify()
    arrays: list[DeviceArray] = []
    for ref, effect in zip(kernel.refs, kernel.effects, strict=True):
        type, by_rows = tile.ref_type(ref), cores.is_by_rows(ref)
        if effect == tile.OUT:
            arrays.append(DeviceArray.undefined(type.shape, type.dtype, by_rows=by_rows))
        else:
            arrays.append(DeviceArray.from_numpy(np.zeros(type.shape, type.dtype.numpy), by_rows=by_rows))
    run_program(kernel, arrays, MACHINE, seed=seed, **more)


RIGHT = [
    *(
        elementwise,
        one_tile,
        blocks,
        wide_blocks,
        of_rows,
        accumulated,
        multicast,
        sent,
        through_memory,
        sums,
        elements,
    ),
    *(crossed, answers, many_answers, told_once, updated),
]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_nothing_is_reported_where_nothing_is_wrong(program: Program, seed: int) -> None:
    run(program(), seed)


# ---- programs that are broken ---------------------------------------------------------------------------------------


class Case(NamedTuple):
    kind: str
    program: Program
    breaks: Break
    other_kinds: tuple[str, ...] = ()


def drops(role: str, op: Any, number: int = 0) -> Break:
    return lambda kernel: drop(kernel, role, op, number)


def repeats(role: str, op: Any, number: int = 0) -> Break:
    return lambda kernel: repeat(kernel, role, op, number)


def changes(role: str, op: Any, number: int = 0, **attributes: Any) -> Break:
    return lambda kernel: change(kernel, role, op, number, **attributes)


def moves(role: str, op: Any, other: Any, *numbers: int) -> Break:
    return lambda kernel: move_before(kernel, role, op, other, *numbers)


def moves_behind(role: str, op: Any, other: Any, *numbers: int) -> Break:
    return lambda kernel: move_after(kernel, role, op, other, *numbers)


def all_of(*breaks: Break) -> Break:
    def apply(kernel: tile.KernelOp) -> None:
        for each in breaks:
            each(kernel)

    return apply


def trips(role: str, count: int) -> Break:
    return lambda kernel: change_trips(kernel, role, count)


def more_at_end(role: str, op: Any, number: int = 0) -> Break:
    return lambda kernel: repeat_at_end(kernel, role, op, number)


def find_program(kernel: tile.KernelOp) -> cores.ProgramOp:
    return next(op for op in kernel.walk() if isinstance(op, cores.ProgramOp))


def nothing(kernel: tile.KernelOp) -> None:
    """The program is wrong as it is."""


ACQUIRE, COMMIT, WAIT, RELEASE = range(4)

QUEUES = [
    Case("queue-underflow", one_tile, drops(READER, PushOp)),
    Case("queue-underflow", elementwise, trips(READER, 3)),
    Case("queue-underflow", sums, drops(READER, PushOp)),
    Case("queue-underflow", elementwise, trips(WRITER, 5)),
    Case("queue-overflow", lambda: programs.elementwise(3), drops(COMPUTE, PopOp, 1)),
    Case("queue-overflow", elementwise, drops(WRITER, PopOp)),
    Case("queue-residual", elementwise, trips(READER, 5)),
    Case("queue-residual", elementwise, all_of(trips(COMPUTE, 3), trips(WRITER, 3))),
    Case("reserve-without-push", elementwise, more_at_end(READER, ReserveOp)),
    Case("reserve-without-push", elementwise, more_at_end(COMPUTE, ReserveOp)),
    Case("wait-without-pop", one_tile, drops(COMPUTE, PopOp, 1)),
    Case("wait-without-pop", one_tile, drops(WRITER, PopOp)),
    Case("push-without-reserve", elementwise, repeats(READER, PushOp)),
    Case("push-without-reserve", elementwise, repeats(COMPUTE, PushOp)),
    Case("pop-without-wait", elementwise, repeats(COMPUTE, PopOp)),
    Case("pop-without-wait", elementwise, repeats(WRITER, PopOp)),
    Case("page-not-waited", elementwise, moves(COMPUTE, PopOp, BinaryOp)),
    Case("page-not-waited", elementwise, moves(WRITER, PopOp, PutOp)),
    Case("page-not-waited", elementwise, changes(COMPUTE, BinaryOp, left_at="d0 + 1")),
    Case("page-not-waited", elements, drops(READER, WaitOp)),
    Case("page-not-reserved", elementwise, drops(READER, ReserveOp)),
    Case("page-not-reserved", elementwise, moves(COMPUTE, PushOp, PackOp)),
    Case("page-not-reserved", elementwise, changes(COMPUTE, PackOp, at="d0 - 1")),
    Case("read-never-written", elementwise, drops(READER, FetchOp)),
    Case("read-never-written", elementwise, drops(COMPUTE, PackOp)),
    Case("block-around-the-end", lambda: programs.elementwise(8, 2, 4), changes(READER, PushOp, pages=1)),
    Case("block-around-the-end", lambda: programs.elementwise(8, 2, 3), nothing),
]

TRANSFERS = [
    Case("read-before-arrival", elementwise, drops(READER, BarrierOp, 1)),
    Case("queue-race", sent, changes(WRITER, SendOp, to="0")),
    Case("queue-race", lambda: programs.gather_to_one(4), changes(WRITER, SendOp, to="1")),
    Case("read-before-arrival", elementwise, moves(READER, PushOp, BarrierOp, 1, 1)),
    Case(
        "read-never-written",
        multicast_once,
        drops(READER, SemaphoreWaitOp, 1),
        ("read-before-arrival", "destination-not-reserved"),
    ),
    Case("overwritten-in-flight", elementwise, drops(WRITER, BarrierOp)),
    Case("overwritten-in-flight", elementwise, moves(WRITER, PopOp, BarrierOp), ("transfer-not-awaited",)),
    Case("transfer-not-awaited", one_tile, drops(WRITER, BarrierOp)),
    Case("transfer-not-awaited", sent, drops(WRITER, BarrierOp, 1)),
    Case("destination-not-reserved", multicast, all_of(drops(READER, SemaphoreWaitOp), drops(READER, SemaphoreSetOp))),
    Case("destination-not-reserved", sent, drops(WRITER, SemaphoreWaitOp, 0), ("semaphore-race",)),
    Case("destination-not-reserved", sent, moves_behind(READER, ReserveOp, SemaphoreWaitOp, 1, 0)),
    Case("sender-outside-rectangle", multicast, changes(READER, MulticastOp, rectangle="s0, 1, s0, 2")),
    Case("sender-outside-rectangle", told_once, changes(READER, SemaphoreMulticastOp, rectangle="1, 0, 1, 0")),
    Case("destination-outside", multicast, changes(READER, MulticastOp, rectangle="s0, 0, s0, 3")),
    Case("destination-outside", sent, changes(WRITER, SendOp, core="1, 0")),
    Case("destination-outside", answers, changes(READER, SemaphoreIncrementOp, core="0, 2")),
    Case("multicasts-in-flight", multicast, repeats(READER, MulticastOp)),
    Case("multicasts-in-flight", told_once, repeats(READER, SemaphoreMulticastOp)),
]

SEMAPHORES = [
    Case("semaphore-source-changed", multicast, drops(READER, BarrierOp, 2)),
    Case("semaphore-source-changed", told_once, moves_behind(READER, SemaphoreSetOp, SemaphoreMulticastOp, 2, 0)),
    Case("semaphore-overshoot", answers, changes(READER, SemaphoreIncrementOp, value=2)),
    Case("semaphore-overshoot", answers, changes(READER, SemaphoreIncrementOp, 1, value=3)),
    Case("semaphore-race", many_answers, changes(READER, SemaphoreWaitOp, value=1), ("semaphore-overshoot",)),
    Case("semaphore-race", answers, repeats(READER, SemaphoreIncrementOp), ("semaphore-overshoot",)),
    Case(
        "semaphore-race",
        answers,
        all_of(repeats(READER, SemaphoreIncrementOp), changes(READER, SemaphoreWaitOp, 1, at_least=True)),
    ),
    Case("semaphore-starved", sent, drops(WRITER, SemaphoreIncrementOp)),
    Case("semaphore-starved", multicast_once, drops(READER, SemaphoreMulticastOp)),
    Case("semaphore-not-initial", answers, drops(READER, SemaphoreSetOp)),
    Case("semaphore-not-initial", sent, drops(READER, SemaphoreSetOp)),
    Case("deadlock", answers, moves(READER, SemaphoreWaitOp, SemaphoreIncrementOp)),
    Case("deadlock", answers, drops(READER, SemaphoreIncrementOp)),
    Case("deadlock", elementwise, drops(COMPUTE, PopOp)),
    Case("deadlock", crossed, moves(READER, WaitOp, PushOp)),
]

REGISTERS = [
    Case("registers-overflow", blocks, all_of(changes(COMPUTE, BinaryOp, slot=1), changes(COMPUTE, PackOp, slot=1))),
    Case("registers-overflow", wide_blocks, changes(COMPUTE, BinaryOp, slot=1)),
    Case("registers-not-acquired", elementwise, drops(COMPUTE, RegistersOp, ACQUIRE)),
    Case(
        "registers-not-acquired",
        elementwise,
        all_of(repeats(COMPUTE, BinaryOp), moves(COMPUTE, RegistersOp, BinaryOp, COMMIT, 1)),
    ),
    Case("registers-acquired-twice", elementwise, repeats(COMPUTE, RegistersOp, ACQUIRE)),
    Case("registers-acquired-twice", elementwise, drops(COMPUTE, RegistersOp, COMMIT)),
    Case("registers-not-waited", elementwise, drops(COMPUTE, RegistersOp, WAIT)),
    Case("registers-not-waited", elementwise, moves(COMPUTE, RegistersOp, PackOp, RELEASE, 0)),
    Case("registers-not-committed", one_tile, drops(COMPUTE, RegistersOp, COMMIT)),
    Case("registers-not-committed", one_tile, more_at_end(COMPUTE, RegistersOp, ACQUIRE)),
    Case("registers-not-released", one_tile, repeats(COMPUTE, RegistersOp, WAIT)),
    Case("registers-not-released", elementwise, drops(COMPUTE, RegistersOp, RELEASE)),
    Case("registers-not-released", one_tile, drops(COMPUTE, RegistersOp, RELEASE)),
    Case("register-never-written", elementwise, drops(COMPUTE, BinaryOp)),
    Case("register-never-written", through_memory, changes(COMPUTE, MapOp, arguments=(1,))),
    Case("register-never-written", through_memory, drops(COMPUTE, CopyOp)),
    Case("register-of-other-type", lambda: programs.elementwise(1, dtype="i32", fn="add"), lambda k: _add_map(k)),
    Case("register-of-other-type", lambda: programs.through_memory(2, "f32"), changes(COMPUTE, MapOp, dtype="i32")),
    Case("unpack-before-pack", through_memory, drops(COMPUTE, WaitOp, 1)),
    Case("unpack-before-pack", through_memory, all_of(drops(COMPUTE, WaitOp, 1), drops(COMPUTE, PushOp, 0))),
    Case("accumulate-left-on", accumulated, drops(COMPUTE, AccumulateOp, 1)),
    Case("accumulate-left-on", accumulated, changes(COMPUTE, AccumulateOp, 1, map="1")),
    Case("accumulate-onto-unwritten", accumulated, changes(COMPUTE, AccumulateOp, 0, map="1")),
    Case("accumulate-onto-unwritten", accumulated, changes(COMPUTE, AccumulateOp, 0, map="s0 + 1")),
    Case("unit-not-configured", elementwise, drops(COMPUTE, ConfigureOp, 0)),
    Case("unit-not-configured", elementwise, drops(COMPUTE, ConfigureOp, 2)),
    Case("unit-not-configured", elementwise, drops(COMPUTE, ConfigureOp, 3)),
    Case("unit-configured-otherwise", elementwise, changes(COMPUTE, ConfigureOp, 2, state="subtract none")),
    Case("unit-configured-otherwise", through_memory, drops(COMPUTE, ConfigureOp, 6)),
    Case("unit-configured-otherwise", sums, changes(COMPUTE, ConfigureOp, 1, state="f32")),
]


def _add_map(kernel: tile.KernelOp) -> None:
    """A function in floats of what integers are in."""
    binary = find(kernel, COMPUTE, BinaryOp)
    made = MapOp(fn="exp", dtype="f32", slot=0, count=1, arguments=(0,), numbers=())
    configure = ConfigureOp(unit="vector", state="exp")
    binary.parent.insert_op_after(made, binary)
    binary.parent.insert_op_after(configure, binary)


ARRAYS = [
    Case("element-written-twice", elementwise, changes(WRITER, PutOp, map="s1, d0")),
    Case("element-written-twice", elements, changes(WRITER, ScatterOp, map="d0, 0")),
    Case("element-never-written", elementwise, changes(WRITER, PutOp, map="s1, d0 + s0 + 1")),
    Case("element-never-written", elements, changes(WRITER, ScatterOp, map="d0 + 1, d1")),
    Case("array-race", of_rows, changes(WRITER, PutOp, map="0, d0 + s0")),
    Case("array-race", updated, changes(READER, FetchOp, map="0, 0")),
    Case("array-race", updated, changes(WRITER, PutOp, map="0, 0")),
]

BASE = MACHINE.grid.memory_base_bytes if MACHINE.grid else 0
PLANS = [
    Case("memory-overlap", placed(BASE, BASE + 2048), nothing),
    Case("memory-overlap", placed(BASE + 4096, BASE + 1024), nothing),
    Case("misaligned", placed(BASE, BASE + 4104), nothing),
    Case("misaligned", placed(BASE + 2, BASE + 8192), nothing),
    Case("out-of-memory", placed(BASE, 2**21), nothing),
    Case("out-of-memory", placed(BASE, BASE + 2048 * 1000, 1000), nothing),
    Case("too-many-queues", with_queues(33), nothing),
    Case("too-many-queues", with_queues(40), nothing),
    Case("too-many-semaphores", with_semaphores(17), nothing),
    Case("too-many-semaphores", with_semaphores(20), nothing),
]


def with_other_format() -> tile.KernelOp:
    b = Builder((1, 1), [((32, 32), "f32", "in")])
    x = b.queue("bf16", 1)
    with b.thread("reader"):
        b.reserve(x)
        b.fetch(0, x, "0, 0")
        b.barrier("read")
        b.push(x)
        b.wait(x)
        b.pop(x)
    return b.finished()


PLANS += [
    Case("other-format", with_other_format, nothing),
    Case("other-format", elements, lambda kernel: change_queue(kernel, 0, "bf16")),
]
CASES = [*QUEUES, *TRANSFERS, *SEMAPHORES, *REGISTERS, *ARRAYS, *PLANS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{CASES.index(case)}")
def test_what_is_broken_is_caught(case: Case) -> None:
    """By the run, without a look before."""
    found: list[str] = []
    for seed in range(4):
        kernel = case.program()
        case.breaks(kernel)
        with pytest.raises(CoreHazard) as caught:
            run(kernel, seed, proofs=False)
        found.append(caught.value.kind)
        assert f"[{caught.value.kind}]" in caught.value.message
        assert isinstance(caught.value, HazardError)
    assert case.kind in found
    assert {*found} <= {case.kind, *case.other_kinds}


def test_what_came_to_another_core_tells_nothing_of_this_one() -> None:
    """A core sends to two others, and tells only one of it, which tells the other: it may be too early, which is
    found whether it is so or not."""
    assert {_kind_of(relayed(True), seed) for seed in range(20)} == {"read-before-arrival"}
    assert {_kind_of(relayed(False), seed) for seed in range(20)} == {""}


def _kind_of(kernel: tile.KernelOp, seed: int) -> str:
    try:
        run(kernel, seed)
    except CoreHazard as error:
        return error.kind
    return ""


def relayed(is_broken: bool) -> tile.KernelOp:
    """Core 0 sends a page to core 1, behind a barrier or not, and then one to core 2, which tells core 1."""
    b = Builder((1, 3), [])
    x, y = b.queue("bf16", 2), b.queue("bf16", 1)
    room, came = b.semaphore(), b.semaphore()
    with b.thread("reader"), b.choice("s0", [b.column]) as (first, others):
        with b.within(first):
            b.reserve(x, 2)
            b.generate(x, "d0", count=2)
            b.push(x, 2)
            b.wait(x, 2)
            b.wait_semaphore(room, 2)
            b.set(room, 0)
            b.send(x, y, "0, 1")
            if not is_broken:
                b.barrier("write")
            b.send(x, y, "0, 2")
            b.increment(came, "0, 2")
            b.barrier("write")
            b.pop(x, 2)
        with b.within(others):
            b.reserve(y)
            b.increment(room, "0, 0")
            b.wait_semaphore(came, 1)
            b.set(came, 0)
            with b.zero("s0 - 2", [b.column]):
                b.increment(came, "0, 1")
            b.push(y)
    with b.thread("compute"), b.choice("s0", [b.column]) as (first, others):
        with b.within(first):
            pass
        with b.within(others):
            b.wait(y)
            b.registers("acquire")
            b.copy(y)
            b.registers("commit")
            b.pop(y)
            b.registers("wait")
            b.registers("release")
    return b.finished()


def test_plans_that_fit() -> None:
    for program in (placed(BASE, BASE + 4096), placed(BASE + 4096, BASE), with_queues(32), with_semaphores(16)):
        run(program())


def test_errors_say_where_they_are() -> None:
    kernel = elementwise()
    change(kernel, COMPUTE, BinaryOp, left_at="d0 + 1")
    with pytest.raises(CoreHazard) as caught:
        run(kernel)
    error = caught.value
    assert (error.kind, error.core, error.agent, error.trips) == ("page-not-waited", (0, 0), "unpack", (0,))
    assert "cores.binary" in error.op
    assert "`cores.binary` of trip 0 in compute (unpack) of core (0, 0)" in error.message


def test_deadlocks_say_who_waits_for_whom() -> None:
    kernel = crossed()
    move_before(kernel, READER, WaitOp, PushOp)
    with pytest.raises(CoreDeadlockError) as caught:
        run(kernel)
    assert len(caught.value.cycle) == 2
    assert any("writer" in line and "pages of queue 0" in line for line in caught.value.cycle)
    assert any("reader" in line and "pages of queue 1" in line for line in caught.value.cycle)
    kernel = elementwise()
    breaking.change_trips(kernel, READER, 3)
    with pytest.raises(CoreDeadlockError) as caught:
        run(kernel, proofs=False)
    assert caught.value.trips == (3,)
    assert "has ended" in caught.value.cycle[-1]


def test_pages_beyond_an_array_are_left_out() -> None:
    """Trips beyond the end read nothing and write nothing."""
    kernel = elementwise()
    for role in cores.ROLES:
        change_trips(kernel, role, 6)
    run(kernel)


def test_hazards_need_no_values_to_be_found() -> None:
    """Without tiles, what does not take vector clocks still is."""
    kernel = one_tile()
    drop(kernel, READER, PushOp)
    with pytest.raises(CoreHazard, match="queue-underflow"):
        run(kernel, values=False, proofs=False)
