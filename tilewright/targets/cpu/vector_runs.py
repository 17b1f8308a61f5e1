"""The vectors of a row, in runs: those at its ends, in which loads may be outside of their arrays, as in windows of a
padded image, have code of their own, so that those in between need no masks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tilewright.targets.cpu.loops import i64, loop, static
from tilewright.targets.cpu.nest_memory import NestMemory
from tilewright.targets.llvm.values import Value

# The fewest vectors of a row whose ends are apart, and the most items of a nest, which is printed once for each run.
LEAST_VECTORS, MOST_ITEMS = 4, 256
# Vectors at the beginning and at the end.
_ENDS = ((0, 0), (1, 0), (0, 1), (1, 1))


def runs_of_vectors(memory: NestMemory, dim: int, start: Value, end: Value) -> list[tuple[Value, Value]]:
    """The first index and the end of each run of the whole vectors from `start` to `end` along a dim."""
    first, last, lanes = static(start), static(end), memory.plan.lanes
    if first is None or last is None:
        return [(start, end)]
    if memory.sets.has_constant_masks(dim, first, last):
        return [(i64(n), i64(n + lanes)) for n in range(first, last, lanes)]
    is_short = (last - first) // lanes < LEAST_VECTORS
    if is_short or len(memory.plan.dependences) > MOST_ITEMS or not memory.unsure_loads(dim, first, last):
        return [(start, end)]
    ends = [(first + before * lanes, last - after * lanes) for before, after in _ENDS]
    low, high = min(ends, key=lambda inner: (memory.unsure_loads(dim, *inner), ends.index(inner)))
    return [(i64(n), i64(m)) for n, m in ((first, low), (low, high), (high, last)) if n < m]


@contextmanager
def open_vectors(memory: NestMemory, dim: int, start: Value, end: Value) -> Generator[None]:
    """Be at each whole vector of a run: in a loop, if there are several."""
    first, last, position = static(start), static(end), memory.position
    if first is not None and last is not None:
        position.spans[dim] = (first, last - 1)
    if first is not None and last == first + memory.plan.lanes:
        position.index[dim] = start
        yield
    else:
        with loop(memory.builder, start, end, memory.plan.lanes, f"v{dim}", hidden=True) as index:
            position.index[dim] = index
            yield
    position.spans.pop(dim, None)
