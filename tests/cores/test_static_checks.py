"""What is wrong in a program of cores whatever the numbers and the order is found without running it."""

from __future__ import annotations

import pytest

from tests.cores import programs
from tests.cores.breaking import change, change_queue, find
from tests.cores.builder import Builder, affine
from tests.cores.test_hazards import (
    ACQUIRE,
    BASE,
    CASES,
    COMMIT,
    COMPUTE,
    MACHINE,
    READER,
    RELEASE,
    WAIT,
    WRITER,
    Case,
    accumulated,
    answers,
    blocks,
    changes,
    drops,
    elementwise,
    find_program,
    multicast,
    nothing,
    one_tile,
    placed,
    repeats,
    run,
    sent,
    through_memory,
    trips,
    with_queues,
    with_semaphores,
)
from tilewright.dialects import cores, tile
from tilewright.dialects.cores import (
    AccumulateOp,
    ConfigureOp,
    MapOp,
    MulticastOp,
    PackOp,
    PopOp,
    PushOp,
    RegistersOp,
    SemaphoreIncrementOp,
    SemaphoreMulticastOp,
    SemaphoreSetOp,
    SemaphoreWaitOp,
    SendOp,
)
from tilewright.semantics.cores import check_program
from tilewright.semantics.cores.reports import KINDS
from tilewright.semantics.hazards import CoreHazard


def looped(end: str | None = None) -> tile.KernelOp:
    """Rows of 8 tiles, two of them at a time: the trips that the three threads have differ, the pages do not."""
    b = Builder((1, 2), [((64, 256), "bf16", "in"), ((64, 256), "bf16", "out")])
    x = b.queue("bf16", 4)
    with b.thread("reader"), b.loop(4) as i:
        b.reserve(x, 2)
        b.fetch(0, x, "s1, d0 + 2 * s0", [i, b.column], extents=(2,))
        b.barrier("read")
        b.push(x, 2)
    with b.thread("writer"), b.loop(2) as i, b.loop(4, end, [i] if end else []) as j:
        b.wait(x)
        b.put(1, x, "s2, d0 + 4 * s0 + s1", [i, j, b.column])
        b.barrier("write")
        b.pop(x)
    return b.finished()


# What is found without a run.
STATIC = [
    Case("cadence-mismatch", elementwise, trips(READER, 3)),
    Case("cadence-mismatch", elementwise, trips(COMPUTE, 5)),
    Case("cadence-mismatch", looped, lambda kernel: change(kernel, WRITER, tile.ForOp, 1, trips=3)),
    Case("cadence-mismatch", lambda: looped("s0 + 2"), nothing),
    Case("cadence-mismatch", sent, lambda kernel: change(kernel, READER, cores.IfOp, map="s0 - 1")),
    Case("reserve-without-push", one_tile, drops(READER, PushOp)),
    Case("wait-without-pop", elementwise, drops(WRITER, PopOp)),
    Case("push-without-reserve", elementwise, repeats(READER, PushOp)),
    Case("pop-without-wait", looped, changes(WRITER, PopOp, pages=2)),
    Case("block-around-the-end", lambda: programs.elementwise(8, 2, 3), nothing),
    Case("block-around-the-end", lambda: programs.elementwise(6, 3, 4), nothing),
    Case("semaphore-unbalanced", sent, changes(READER, SemaphoreWaitOp, value=1)),
    Case("semaphore-unbalanced", multicast, drops(READER, SemaphoreMulticastOp)),
    Case("semaphore-unbalanced", multicast, changes(READER, SemaphoreSetOp, 1, value=2)),
    Case("semaphore-unbalanced", answers, repeats(READER, SemaphoreIncrementOp)),
    Case("semaphore-of-own-core", answers, changes(READER, SemaphoreIncrementOp, core="0, 0")),
    Case("semaphore-of-own-core", sent, changes(WRITER, SemaphoreIncrementOp, core="0, 2")),
    Case("destination-outside", sent, changes(WRITER, SendOp, core="1, 0")),
    Case("destination-outside", sent, changes(WRITER, SemaphoreIncrementOp, core="0, 3")),
    Case("sender-outside-rectangle", multicast, changes(READER, MulticastOp, rectangle="s0, 1, s0, 2")),
    Case("multicasts-in-flight", multicast, repeats(READER, MulticastOp)),
    Case("registers-overflow", through_memory, changes(COMPUTE, MapOp, arguments=(8,))),
    Case("registers-overflow", blocks, changes(COMPUTE, PackOp, slot=1)),
    Case("registers-not-acquired", elementwise, drops(COMPUTE, RegistersOp, ACQUIRE)),
    Case("registers-acquired-twice", elementwise, drops(COMPUTE, RegistersOp, COMMIT)),
    Case("registers-not-waited", elementwise, drops(COMPUTE, RegistersOp, WAIT)),
    Case("registers-not-committed", one_tile, drops(COMPUTE, RegistersOp, COMMIT)),
    Case("registers-not-released", one_tile, drops(COMPUTE, RegistersOp, RELEASE)),
    Case("registers-too-narrow", through_memory, changes(COMPUTE, MapOp, dtype="i32")),
    Case("registers-too-narrow", through_memory, changes(COMPUTE, MapOp, 1, dtype="u32")),
    Case("accumulate-left-on", accumulated, drops(COMPUTE, AccumulateOp, 1)),
    Case("accumulate-onto-blocks", accumulated, lambda kernel: change_queue(kernel, 2, "bfp8")),
    Case("accumulate-onto-blocks", through_memory, lambda kernel: _accumulate_blocks(kernel)),
    Case("unit-not-configured", elementwise, drops(COMPUTE, ConfigureOp, 2)),
    Case("unit-configured-otherwise", through_memory, drops(COMPUTE, ConfigureOp, 6)),
    Case("too-many-cores", lambda: programs.elementwise(1, rows=9), nothing),
    Case("too-many-cores", lambda: programs.multicast_matmul(1, 9, 1), nothing),
    Case("memory-overlap", placed(BASE, BASE + 2048), nothing),
    Case("misaligned", placed(BASE + 2, BASE + 8192), nothing),
    Case("out-of-memory", placed(BASE, 2**21), nothing),
    Case("too-many-queues", with_queues(33), nothing),
    Case("too-many-semaphores", with_semaphores(17), nothing),
]


@pytest.mark.parametrize("case", STATIC, ids=lambda case: f"{case.kind}-{STATIC.index(case)}")
def test_what_is_broken_is_found_without_a_run(case: Case) -> None:
    kernel = case.program()
    case.breaks(kernel)
    kernel.verify()
    with pytest.raises(CoreHazard) as caught:
        check_program(find_program(kernel), MACHINE)
    assert caught.value.kind == case.kind
    assert f"[{case.kind}]" in caught.value.message
    with pytest.raises(CoreHazard):
        run(kernel)


def test_what_is_not_proven_is_left_to_the_run() -> None:
    """Trips that differ, and are too many to be followed one by one."""
    b = Builder((1, 1), [])
    x = b.queue("bf16", 1)
    with b.thread("reader"), b.loop(250) as i, b.loop(250) as j, b.zero("s0 * 250 + s1", [i, j]):
        b.reserve(x)
        b.generate(x, "d0")
        b.push(x)
    kernel = b.finished()
    check_program(find_program(kernel), MACHINE)
    with pytest.raises(CoreHazard, match="queue-residual"):
        run(kernel)


def test_many_trips_alike_are_counted_at_once() -> None:
    b = Builder((1, 1), [])
    x = b.queue("bf16", 4)
    with b.thread("reader"), b.loop(10**9), b.loop(1001):
        b.reserve(x, 2)
        b.push(x, 2)
    with b.thread("writer"), b.loop(2002), b.loop(10**9):
        b.wait(x)
        b.pop(x)
    kernel = b.finished()
    check_program(find_program(kernel), MACHINE)
    change(kernel, WRITER, tile.ForOp, trips=2001)
    with pytest.raises(CoreHazard, match="reader pushes 2002000000000 pages, writer pops 2001000000000"):
        check_program(find_program(kernel), MACHINE)


def _accumulate_blocks(kernel: tile.KernelOp) -> None:
    change_queue(kernel, 2, "bfp8")
    pack = find(kernel, COMPUTE, PackOp, 1)
    pack.parent.insert_op_before(AccumulateOp(map=affine("1", 0, 0)), pack)
    pack.parent.insert_op_after(AccumulateOp(map=affine("0", 0, 0)), pack)


def test_all_kinds_are_tried() -> None:
    assert {case.kind for case in [*CASES, *STATIC]} == {*KINDS}
    assert all(len([case for case in [*CASES, *STATIC] if case.kind == kind]) > 1 for kind in KINDS)
