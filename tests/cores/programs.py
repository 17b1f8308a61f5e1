"""Programs that are right, each with what it computes."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tests.cores.builder import Builder, affine
from tilewright.dialects import cores, tile


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


def row_sums(tiles: int, dtype: str = "bf16", padding: int = 0) -> tile.KernelOp:
    """The sums of the rows of 32 x 32 * tiles, in the first column of one tile; its other columns are 0. `padding`: how
    many columns the array has less."""
    b = Builder((1, 1), [((32, 32 * tiles - padding), dtype, "in"), ((32, 32), dtype, "out")])
    x, ones, z = b.queue(dtype, 2), b.queue("bf16", 1), b.queue(dtype, 1)
    with b.thread("reader"):
        b.reserve(ones)
        b.generate(ones, "1", face_rows=True)
        b.push(ones)
        with b.loop(tiles) as i:
            b.reserve(x)
            b.fetch(0, x, "0, s0", [i])
            b.barrier("read")
            b.push(x)
    with b.thread("compute"):
        b.wait(ones)
        b.registers("acquire")
        with b.loop(tiles):
            b.wait(x)
            b.reduce(x, ones, "add", "row")
            b.pop(x)
        b.registers("commit")
        b.pop(ones)
        b.reserve(z)
        b.registers("wait")
        b.configure("edges", "row")
        b.pack(z)
        b.registers("release")
        b.push(z)
    with b.thread("writer"):
        b.wait(z)
        b.put(1, z, "0, 0")
        b.barrier("write")
        b.pop(z)
    return b.finished()


def gather_to_one(cores: int, dtype: str = "bf16") -> tile.KernelOp:
    """The sum of the tiles of a row: each core but the first sends its own to the first, which adds them up."""
    b = Builder((1, cores), [((32, 32 * cores), dtype, "in"), ((32, 32), dtype, "out")])
    x, own, all_x, z = b.queue(dtype, 1), b.queue(dtype, 1), b.queue(dtype, cores - 1), b.queue(dtype, 1)
    room, came = b.semaphore(), b.semaphore()
    here = [b.row, b.column]
    with b.thread("reader"), b.choice("s0", [b.column]) as (first, others):
        for block, queue in ((first, x), (others, own)):
            with b.within(block):
                b.reserve(queue)
                b.fetch(0, queue, "0, s0", [b.column])
                b.barrier("read")
                b.push(queue)
                if block is first:
                    b.reserve(all_x, cores - 1)
                    for other in range(1, cores):
                        b.increment(room, f"0, {other}")
                    b.wait_semaphore(came, cores - 1)
                    b.set(came, 0)
                    b.push(all_x, cores - 1)
    with b.thread("compute"), b.zero("s0", [b.column]):
        b.wait(x)
        b.wait(all_x, cores - 1)
        b.registers("acquire")
        b.copy(x)
        for other in range(cores - 1):
            b.copy(all_x, 1, at=str(other))
            b.map("add", [0, 1])
        b.registers("commit")
        b.pop(x)
        b.pop(all_x, cores - 1)
        b.reserve(z)
        b.registers("wait")
        b.pack(z)
        b.registers("release")
        b.push(z)
    with b.thread("writer"), b.choice("s0", [b.column]) as (first, others):
        with b.within(first):
            b.wait(z)
            b.put(1, z, "0, 0")
            b.barrier("write")
            b.pop(z)
        with b.within(others):
            b.wait(own)
            b.wait_semaphore(room, 1)
            b.set(room, 0)
            b.send(own, all_x, "0, 0", here, to="s1 - 1")
            b.increment(came, "0, 0")
            b.barrier("write")
            b.pop(own)
    return b.finished()


def through_memory(tiles: int, dtype: str = "bf16") -> tile.KernelOp:
    """exp(-x) of 32 x 32 * tiles, with -x packed to a queue that the same thread reads."""
    b = Builder((1, 1), [((32, 32 * tiles), dtype, "in"), ((32, 32 * tiles), dtype, "out")])
    x, t, z = b.queue(dtype, 2), b.queue(dtype, 1), b.queue(dtype, 2)
    with b.thread("reader"), b.loop(tiles) as i:
        b.reserve(x)
        b.fetch(0, x, "0, s0", [i])
        b.barrier("read")
        b.push(x)
    with b.thread("compute"), b.loop(tiles):
        for source, target, fn in ((x, t, "negative"), (t, z, "exp")):
            b.wait(source)
            b.registers("acquire")
            b.copy(source)
            b.map(fn, [0])
            b.registers("commit")
            b.pop(source)
            b.reserve(target)
            b.registers("wait")
            b.pack(target)
            b.registers("release")
            b.push(target)
    with b.thread("writer"), b.loop(tiles) as i:
        b.wait(z)
        b.put(1, z, "0, s0", [i])
        b.barrier("write")
        b.pop(z)
    return b.finished()


def turned_elements(rows: int, columns: int, trips: int = 2) -> tile.KernelOp:
    """The transpose of each of some matrices, below one another, whose elements are moved one by one; of any number of
    rows and columns up to 32."""
    shapes = (trips, rows, columns), (trips, columns, rows)
    b = Builder((1, 1), [(shape, "bf16", effect) for shape, effect in zip(shapes, ("in", "out"), strict=True)])
    x, y = b.queue("bf16", 2), b.queue("bf16", 2)
    with b.thread("reader"), b.loop(trips) as i:
        b.reserve(x)
        b.fetch(0, x, "s0, 0, 0", [i])
        b.barrier("read")
        b.push(x)
        b.wait(x)
        b.reserve(y)
        places = {"extents": (rows, columns), "source_map": affine("d0, d1", 2, 0), "map": affine("d1, d0", 2, 0)}
        sides = {"source_rows": 0, "source_columns": 1, "rows": 0, "columns": 1}
        shape = {"source_shape": (rows, columns), "shape": (columns, rows)}
        b.add(cores.RearrangeOp, [x, y], places | sides | shape)
        b.push(y)
        b.pop(x)
    with b.thread("writer"), b.loop(trips) as i:
        b.wait(y)
        b.scatter(1, y, "s0, d0, d1", [i], shape=(columns, rows), rows=0, columns=1)
        b.barrier("write")
        b.pop(y)
    return b.finished()


def shifted_elements(rows: int, columns: int) -> tile.KernelOp:
    """`out[r, c] = x[r + 1, indices[r, c]]`, 0 where that is outside, by elements: of any number of rows and columns
    below 32."""
    shape = (rows, columns)
    b = Builder((1, 1), [(shape, "f32", "in"), (shape, "i32", "in"), (shape, "f32", "out")])
    x, indices = b.queue("f32", 1), b.queue("i32", 1)
    with b.thread("reader"):
        b.reserve(indices)
        b.fetch(1, indices, "0, 0")
        b.barrier("read")
        b.push(indices)
        b.wait(indices)
        b.reserve(x)
        b.gather(0, x, "d0 + 1, s0", [], [indices], shape=shape, rows=0, columns=1, fill=0.0)
        b.pop(indices)
        b.push(x)
    with b.thread("writer"):
        b.wait(x)
        b.scatter(2, x, "d0, d1", shape=shape, rows=0, columns=1)
        b.barrier("write")
        b.pop(x)
    return b.finished()
