"""Core programs without a hazard, which the tests of hazards break."""

from __future__ import annotations

from collections.abc import Callable

from tests.cores import programs
from tests.cores.builder import Builder
from tilewright.dialects import tile

Program = Callable[[], tile.KernelOp]


def elementwise() -> tile.KernelOp:
    return programs.elementwise(4)


def one_tile() -> tile.KernelOp:
    return programs.elementwise(1)


def blocks() -> tile.KernelOp:
    return programs.elementwise(8, 8, 8)


def wide_blocks() -> tile.KernelOp:
    return programs.elementwise(8, 4, 4, dtype="f32")


def of_rows() -> tile.KernelOp:
    return programs.elementwise(1, rows=2)


def accumulated() -> tile.KernelOp:
    return programs.single_core_matmul(2, 3, 1, accumulates=True)


def multicast() -> tile.KernelOp:
    return programs.multicast_matmul(1, 3, 3)


def multicast_once() -> tile.KernelOp:
    return programs.multicast_matmul(1, 2, 1)


def sent() -> tile.KernelOp:
    return programs.gather_to_one(3)


def through_memory() -> tile.KernelOp:
    return programs.through_memory(2)


def sums() -> tile.KernelOp:
    return programs.row_sums(2)


def elements() -> tile.KernelOp:
    return programs.shifted_elements(8, 8)


def crossed() -> tile.KernelOp:
    """Two movers that hand a page to and fro."""
    b = Builder((1, 1), [((32, 32), "bf16", "in"), ((32, 32), "bf16", "out")])
    x, y = b.queue("bf16", 1), b.queue("bf16", 1)
    with b.thread("reader"):
        b.reserve(x)
        b.fetch(0, x, "0, 0")
        b.barrier("read")
        b.push(x)
        b.wait(y)
        b.put(1, y, "0, 0")
        b.barrier("write")
        b.pop(y)
    with b.thread("writer"):
        b.wait(x)
        b.pop(x)
        b.reserve(y)
        b.generate(y, "d0")
        b.push(y)
    return b.finished()


def answers() -> tile.KernelOp:
    """Two cores that tell each other, one first."""
    b = Builder((1, 2), [])
    s = b.semaphore()
    with b.thread("reader"), b.choice("s0", [b.column]) as (first, second):
        with b.within(first):
            b.increment(s, "0, 1")
            b.wait_semaphore(s, 1)
            b.set(s, 0)
        with b.within(second):
            b.wait_semaphore(s, 1)
            b.set(s, 0)
            b.increment(s, "0, 0")
    return b.finished()


def many_answers() -> tile.KernelOp:
    """Two cores tell a third, twice, each time when it has seen both."""
    b = Builder((1, 3), [])
    s, t = b.semaphore(), b.semaphore()
    with b.thread("reader"), b.choice("s0", [b.column]) as (first, others):
        with b.within(first), b.loop(2):
            b.wait_semaphore(s, 2)
            b.set(s, 0)
            b.increment(t, "0, 1")
            b.increment(t, "0, 2")
        with b.within(others), b.loop(2):
            b.increment(s, "0, 0")
            b.wait_semaphore(t, 1)
            b.set(t, 0)
    return b.finished()


def told_once() -> tile.KernelOp:
    """A number that is multicast, waited for and taken back."""
    b = Builder((2, 1), [])
    s, t = b.semaphore(), b.semaphore()
    with b.thread("reader"), b.choice("s0", [b.row]) as (first, second):
        with b.within(first), b.loop(2):
            b.set(s, 1)
            b.multicast_semaphore(s, "0, 0, 1, 0")
            b.wait_semaphore(t, 1)
            b.set(t, 0)
            b.set(s, 0)
        with b.within(second), b.loop(2):
            b.wait_semaphore(s, 1)
            b.set(s, 0)
            b.increment(t, "0, 0")
    return b.finished()


def placed(first: int, second: int, pages: int = 2) -> Program:
    """Two queues at addresses."""

    def make() -> tile.KernelOp:
        b = Builder((1, 1), [])
        b.queue("bf16", pages, first)
        b.queue("bf16", 2, second)
        return b.finished()

    return make


def with_queues(count: int) -> Program:
    def make() -> tile.KernelOp:
        b = Builder((1, 1), [])
        for _ in range(count):
            b.queue("bf16", 1)
        return b.finished()

    return make


def with_semaphores(count: int) -> Program:
    def make() -> tile.KernelOp:
        b = Builder((1, 1), [])
        for _ in range(count):
            b.semaphore()
        return b.finished()

    return make


def updated() -> tile.KernelOp:
    """An array of two pages is read and written in place, each page by one core."""
    b = Builder((1, 2), [((32, 64), "bf16", "inout")])
    x = b.queue("bf16", 1)
    with b.thread("reader"):
        b.reserve(x)
        b.fetch(0, x, "0, s0", [b.column])
        b.barrier("read")
        b.push(x)
    with b.thread("writer"):
        b.wait(x)
        b.put(0, x, "0, s0", [b.column])
        b.barrier("write")
        b.pop(x)
    return b.finished()
