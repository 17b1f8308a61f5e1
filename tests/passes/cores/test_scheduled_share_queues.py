"""Queues that `scheduled-share-queues` merges, those that it keeps apart, and pages that it pops early."""

from __future__ import annotations

import pytest

from tests.passes.cores.streams import computed, fetched, program, put, repeated, step, written
from tests.passes.pass_support import applied, check_meaning, check_unchanged
from tilewright.dialects import cores
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.base import Unit
from tilewright.passes.cores.scheduled_share_queues import ScheduledShareQueuesPass

PASS = ScheduledShareQueuesPass()
ONE = {"a": ("f32", 1), "b": ("f32", 1)}


def queues(unit: Unit) -> int:
    return sum(isinstance(op, cores.QueueOp) for op in unit.module.walk())


@pytest.mark.parametrize("machine", ["wormhole", "blackhole"])
@pytest.mark.parametrize(("format", "dtype"), [("f32", "f32"), ("bf16", "bf16"), ("i32", "i32")])
@pytest.mark.parametrize("count", [1, 2])
def test_queues_one_after_the_other_are_one(count: int, format: str, dtype: str, machine: str) -> None:
    names = ("a", "b", "c")
    reader = "".join(fetched(name, n, count) for n, name in enumerate(names))
    writer = "".join(written(name, count * n, count) for n, name in enumerate(names))
    text = program(dict.fromkeys(names, (format, count)), reader, writer, pages=(4, 3 * count), dtype=dtype)
    assert queues(check_meaning(PASS, text, machine)) == 1


APART = {
    "other formats": program(
        {"a": ("f32", 1), "b": ("i32", 1)}, fetched("a", 0) + fetched("b", 1), written("a", 0) + written("b", 1)
    ),
    "other lengths": program(
        {"a": ("f32", 1), "b": ("f32", 2)}, fetched("a", 0) + fetched("b", 1), written("a", 0) + written("b", 1)
    ),
    "other steps": program(
        {"a": ("f32", 2), "b": ("f32", 2)}, fetched("a", 0) + fetched("b", 1, 2), written("a", 0) + written("b", 1, 2)
    ),
    "both are full at one time in the writer": program(
        ONE, fetched("a", 0) + fetched("b", 1), put("a", 0) + put("b", 1) + step("pop", "a") + step("pop", "b")
    ),
    "pages that come in the other order": program(
        ONE, fetched("a", 0) + fetched("b", 1), written("b", 1) + written("a", 0)
    ),
    "a queue that is filled twice": program(
        ONE,
        fetched("a", 0) + fetched("a", 1) + fetched("b", 2),
        written("a", 0) + written("a", 1) + written("b", 2),
    ),
    "a queue that a loop fills": program(
        ONE,
        repeated(fetched("a", 0))
        + fetched("b", 1),
        written("a", 0) + written("a", 2) + written("b", 1),
    ),
    "a queue of a loop and one after it": program(
        ONE | {"c": ("f32", 2)},
        fetched("c", 0) + repeated(fetched("a", 1)) + fetched("b", 2),
        written("c", 0) + repeated(written("a", 1)) + written("b", 2),
    ),
    "pages that go the other way": program(
        ONE, fetched("a", 0) + written("b", 1), written("a", 0) + fetched("b", 1)
    ),
    "other threads": program(
        ONE | {"c": ("f32", 1)}, fetched("a", 0) + fetched("b", 1), written("a", 0) + written("c", 1),
        computed("b", "c"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in APART if name not in ("other formats", "other threads")])
def test_other_queues_are_apart(name: str) -> None:
    check_unchanged(PASS, APART[name], "wormhole")


@pytest.mark.parametrize("name", ["other formats", "other threads"])
def test_queues_of_other_pages_or_threads_are_apart(name: str) -> None:
    """Programs that the executor would not run as they are."""
    before = APART[name].count("= cores.queue()")
    assert queues(applied(PASS, APART[name], "wormhole")) == before


def test_queues_that_wait_for_each_other_are_apart() -> None:
    """The reader would wait for room in the second queue until the writer has popped the first one, which it does after
    it has seen a page that the reader brings still later."""
    reader = fetched("a", 0) + fetched("b", 1) + fetched("go", 2)
    text = program(ONE | {"go": ("f32", 2)}, reader, written("go", 2) + written("a", 0) + written("b", 1))
    check_unchanged(PASS, text, "wormhole")


def test_compute_pops_after_its_last_use() -> None:
    """The page of the first queue is popped before the second one is waited for."""
    late = computed("a", "c").replace(step("pop", "a"), "") + computed("b", "d") + step("pop", "a")
    names = ("a", "b", "c", "d")
    text = program(
        dict.fromkeys(names, ("f32", 1)), fetched("a", 0) + fetched("b", 1), written("c", 0) + written("d", 1), late
    )
    unit = applied(PASS, text, "wormhole")
    assert queues(unit) == 2
    (thread,) = (op for op in unit.module.walk() if isinstance(op, cores.ThreadOp) and op.computes)
    steps = [op.name.removeprefix("cores.") for op in thread.body.block.ops if isinstance(op, cores.QueueStepOp)]
    assert steps == ["wait", "reserve", "pop", "push", "wait", "reserve", "pop", "push"]


def test_movers_pop_where_they_did() -> None:
    """A write by a data mover reads its source pages until the write barrier."""
    writer = put("a", 0) + written("b", 1) + step("pop", "a")
    check_unchanged(PASS, program(ONE, fetched("a", 0) + fetched("b", 1), writer), "wormhole")


@pytest.mark.parametrize(("count", "fits"), [(32, True), (33, False)])
def test_a_core_has_so_many_queues(count: int, fits: bool) -> None:
    """All are filled before the first one is emptied."""
    names = [f"q{n}" for n in range(count)]
    reader = "".join(fetched(name, 0) for name in names)
    writer = "".join(put(name, 0) for name in names) + "".join(step("pop", name) for name in names)
    text = program(dict.fromkeys(names, ("f32", 1)), reader, writer)
    if fits:
        assert queues(applied(PASS, text, "wormhole")) == count
        return
    with pytest.raises(UnsupportedOnTargetError, match="`k` needs 33 queues of each core, which has 32"):
        applied(PASS, text, "wormhole")
