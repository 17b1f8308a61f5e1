"""Programs that are right, each with what it computes."""

from __future__ import annotations

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
