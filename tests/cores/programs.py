"""Programs that are right, each with what it computes."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tests.cores.builder import Builder
from tilewright.dialects import tile


def elementwise(
    tiles: int, block: int = 1, capacity: int = 2, fn: str = "add", dtype: str = "bf16", rows: int = 1
) -> tile.KernelOp:
    """`fn` of two arrays of 32 * rows x 32 * tiles, each row of tiles by a core, `block` tiles at a time."""
    b = Builder((rows, 1), [((32 * rows, 32 * tiles), dtype, effect) for effect in ("in", "in", "out")])
    x, y, z = (b.queue(dtype, capacity) for _ in range(3))
    steps = tiles // block
    with b.thread("reader"), b.loop(steps) as i:
        for array, queue in ((0, x), (1, y)):
            b.reserve(queue, block)
            b.fetch(array, queue, f"s1, d0 + {block} * s0", [i, b.row], extents=(block,))
            b.barrier("read")
            b.push(queue, block)
    with b.thread("compute"):
        b.configure("unpack_a", dtype)
        b.configure("unpack_b", dtype)
        b.configure("matrix", f"{fn} none")
        b.configure("pack", dtype)
        with b.loop(steps):
            b.wait(x, block)
            b.wait(y, block)
            b.registers("acquire")
            b.binary(fn, x, y, 0, block, configured=False)
            b.registers("commit")
            b.pop(x, block)
            b.pop(y, block)
            b.reserve(z, block)
            b.registers("wait")
            b.pack(z, 0, block, configured=False)
            b.registers("release")
            b.push(z, block)
    with b.thread("writer"), b.loop(steps) as i:
        b.wait(z, block)
        b.put(2, z, f"s1, d0 + {block} * s0", [i, b.row], extents=(block,))
        b.barrier("write")
        b.pop(z, block)
    return b.finished()


def single_core_matmul(m: int, k: int, n: int, dtype: str = "bf16", accumulates: bool = False) -> tile.KernelOp:
    """The product of m x k and k x n tiles by one core, one step of depth after another: in the tile registers, or with
    `accumulates` in the memory of the queue."""
    shapes = (32 * m, 32 * k), (32 * k, 32 * n), (32 * m, 32 * n)
    b = Builder((1, 1), [(s, dtype, effect) for s, effect in zip(shapes, ("in", "in", "out"), strict=True)])
    x, y, z = b.queue(dtype, 2 * m), b.queue(dtype, 2 * n), b.queue(dtype, m * n)
    with b.thread("reader"), b.loop(k) as i:
        b.reserve(x, m)
        b.reserve(y, n)
        b.fetch(0, x, "d0, s0", [i], extents=(m,))
        b.fetch(1, y, "s0, d0", [i], extents=(n,))
        b.barrier("read")
        b.push(x, m)
        b.push(y, n)
    with b.thread("compute"):
        _multiply(b, (x, y, z), (m, k, n), accumulates)
    with b.thread("writer"):
        b.wait(z, m * n)
        b.put(2, z, "d0, d1", extents=(m, n), at=f"{n} * d0 + d1")
        b.barrier("write")
        b.pop(z, m * n)
    return b.finished()


def _multiply(b: Builder, queues: tuple[SSAValue, SSAValue, SSAValue], sizes: tuple[int, int, int], adds: bool) -> None:
    """k steps, each of a column of m pages and a row of n pages."""
    (x, y, z), (m, k, n) = queues, sizes
    if adds:
        b.reserve(z, m * n)
    else:
        b.registers("acquire")
    with b.loop(k) as i:
        b.wait(x, m)
        b.wait(y, n)
        if adds:
            b.registers("acquire")
        b.matmul(x, y, (m, n, 1))
        b.pop(x, m)
        b.pop(y, n)
        if adds:
            b.registers("commit")
            b.accumulate("s0", [i])
            b.registers("wait")
            b.pack(z, 0, m * n)
            b.registers("release")
    if adds:
        b.accumulate("0")
    else:
        b.registers("commit")
        b.reserve(z, m * n)
        b.registers("wait")
        b.pack(z, 0, m * n)
        b.registers("release")
    b.push(z, m * n)


def multicast_matmul(rows: int, columns: int, k: int, dtype: str = "bf16") -> tile.KernelOp:
    """The product of rows x k and k x columns tiles, one tile of it by each core: cores of the first column multicast
    pages of the left operand along their rows, those of the first row pages of the right one along their columns."""
    shapes = (32 * rows, 32 * k), (32 * k, 32 * columns), (32 * rows, 32 * columns)
    b = Builder((rows, columns), [(s, dtype, effect) for s, effect in zip(shapes, ("in", "in", "out"), strict=True)])
    x, y, z = (b.queue(dtype, 2) for _ in range(3))
    x_ready, x_sent, y_ready, y_sent = (b.semaphore() for _ in range(4))
    with b.thread("reader"), b.loop(k) as i:
        across = b.row, b.column
        multicast_page(
            b,
            0,
            x,
            ("s0, s2", [b.row, b.column, i]),
            (x_ready, x_sent),
            columns,
            "s1",
            "s0, 0",
            f"s0, 0, s0, {columns - 1}",
            across,
        )
    with b.thread("compute"):
        _multiply(b, (x, y, z), (1, k, 1), False)
    with b.thread("writer"):
        with b.loop(k) as i:
            across = b.row, b.column
            multicast_page(
                b,
                1,
                y,
                ("s2, s1", [b.row, b.column, i]),
                (y_ready, y_sent),
                rows,
                "s0",
                "0, s1",
                f"0, s1, {rows - 1}, s1",
                across,
            )
        b.wait(z)
        b.put(2, z, "s0, s1", [b.row, b.column])
        b.barrier("write")
        b.pop(z)
    return b.finished()


def multicast_page(
    b: Builder,
    array: int,
    queue: SSAValue,
    page: tuple[str, Sequence[SSAValue]],
    semaphores: tuple[SSAValue, SSAValue],
    size: int,
    is_other: str,
    sender: str,
    rectangle: str,
    here: Sequence[SSAValue],
    without: Sequence[str] = (),
) -> None:
    """One page by the core of a row or column where `is_other` is 0, which sends it to the others. `without`: steps of
    the protocol that are left out."""
    ready, sent = semaphores
    b.reserve(queue)
    with b.choice(is_other, here) as (sends, receives):
        with b.within(sends):
            b.fetch(array, queue, *page)
            b.barrier("read")
            if size > 1:
                if "await ready" not in without:
                    b.wait_semaphore(ready, size - 1)
                    b.set(ready, 0)
                b.multicast(queue, rectangle, here)
                if "barrier" not in without:
                    b.barrier("write")
                b.set(sent, 1)
                b.multicast_semaphore(sent, rectangle, here)
                b.barrier("write")
                b.set(sent, 0)
        with b.within(receives):
            b.increment(ready, sender, here)
            if "await sent" not in without:
                b.wait_semaphore(sent, 1)
            if "reset" not in without:
                b.set(sent, 0)
    b.push(queue)
