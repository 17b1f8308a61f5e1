"""Check that the layouts of a kernel fit the registers of a thread and the shared memory of a block; otherwise the
cheapest layouts that do.

Tiles that live at one point of the program share what there is. That no constraint of two tiles can express; so the
cheapest answer is checked, and where a point is overfull, one of its tiles must have another layout: whichever, in the
order of what the whole then costs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from math import prod

import msgspec
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.layout import Layout
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.dims import static
from tilewright.layout.refinement import is_memory
from tilewright.layout.solver import Problem, Solution, Value

REGISTERS = "reg"
REGISTER_BYTES = 4
MOST_TRIES = 24
MOST_CHOICES = 6


class Overflow(msgspec.Struct, frozen=True):
    """A point of the program at which tiles need more than there is.

    Attributes:
        memory: `reg` for the registers of a thread, or the axis of a memory.
        needed_bytes: of the tiles that live there.
        limit_bytes: what there is.
        tiles: those that live there, the largest first.
    """

    memory: str
    needed_bytes: int
    limit_bytes: int
    tiles: tuple[SSAValue, ...]


class Lifetime(msgspec.Struct, frozen=True):
    """From which point to which a tile lives; operation n of the program reads at 2 n and writes at 2 n + 1."""

    value: SSAValue
    first: int
    last: int


def lifetimes(kernel: tile.KernelOp) -> list[Lifetime]:
    """The lifetimes of all values of a kernel. A value from outside a loop that the loop reads lives until the loop's
    end; a tile that a loop carries lives until its last use, when the next trip's tile replaces it. An operation reads
    before it writes: its result may take the registers of an operand."""
    order: dict[Operation, int] = {}
    end: dict[Block, int] = {}
    _number(kernel.body.block, order, end)
    found: list[Lifetime] = []
    for block in end:
        arguments = [(argument, order[block.first_op]) for argument in block.args] if block.first_op is not None else []
        values = [(result, _written(op, order, end)) for op in block.ops for result in op.results]
        for value, first in (*arguments, *values):
            last = max((_last_use(use.operation, block, order, end) for use in value.uses), default=first)
            found.append(Lifetime(value, first, last))
    return found


def _written(op: Operation, order: Mapping[Operation, int], end: Mapping[Block, int]) -> int:
    """When results are there: after the operation, or after what it runs."""
    return max([order[op] + 1, *(end[region.block] - 1 for region in op.regions)])


def _number(block: Block, order: dict[Operation, int], end: dict[Block, int]) -> None:
    end[block] = 0
    for op in block.ops:
        order[op] = 2 * len(order)
        for region in op.regions:
            _number(region.block, order, end)
    end[block] = 2 * len(order)


def _last_use(user: Operation, home: Block, order: Mapping[Operation, int], end: Mapping[Block, int]) -> int:
    """When a use of a value of block `home` is over: inside a loop, when the loop is."""
    last = order[user]
    block = user.parent_block()
    while block is not None and block is not home:
        last = end[block]
        parent = block.parent_op()
        block = None if parent is None else parent.parent_block()
    return last


@lru_cache(maxsize=16384)
def bytes_of(layout: Layout, item_bytes: int) -> tuple[str, int]:
    """The resource that a tile takes, and how much: registers of each thread, or memory of a block."""
    axis = next((axis for axis in layout.axes if is_memory(axis)), None)
    if axis is not None:
        return axis, static(layout.span(axis)) * item_bytes
    held = prod(static(d.extent) for d in layout.iters if d.stride and kind_of(d.axis) == Kind.REGISTER)
    return REGISTERS, -(-held * item_bytes // REGISTER_BYTES) * REGISTER_BYTES


def overflows(
    alive: list[Lifetime], taken: Callable[[SSAValue], tuple[str, int] | None], limits: Mapping[str, int]
) -> list[Overflow]:
    """The fullest point of each memory that has too little room; `taken` states what a value takes."""
    found: list[Overflow] = []
    for memory, limit in limits.items():
        sizes = {life: each[1] for life in alive if (each := taken(life.value)) is not None and each[0] == memory}
        changes: dict[int, int] = {}
        for life, size in sizes.items():
            changes[life.first] = changes.get(life.first, 0) + size
            changes[life.last + 1] = changes.get(life.last + 1, 0) - size
        total = most = at = 0
        for point in sorted(changes):
            total += changes[point]
            if total > most:
                most, at = total, point
        if most > limit:
            there = sorted((life for life in sizes if life.first <= at <= life.last), key=lambda life: -sizes[life])
            found.append(Overflow(memory, most, limit, tuple(life.value for life in there)))
    return found


def fitted(
    kernel: tile.KernelOp,
    problem: Problem,
    variables: Mapping[SSAValue, int],
    solution: Solution,
    limits: Mapping[str, int],
    budget: int,
) -> tuple[Solution, tuple[Overflow, ...]]:
    """The cheapest solution that fits, or the cheapest of all and what does not fit."""
    if not limits:
        return solution, ()
    alive = [life for life in lifetimes(kernel) if life.value in variables]

    def check(answer: Solution) -> list[Overflow]:
        return overflows(alive, lambda value: _taken(value, answer.values[variables[value]]), limits)

    first = check(solution)
    if not first or overflows(alive, lambda value: _least(value, problem.domains[variables[value]]), limits):
        return solution, tuple(first)
    order = count()
    pending: list[tuple[float, int, frozenset[tuple[int, Value]], Solution]] = []
    heapq.heappush(pending, (solution.cost, next(order), frozenset(), solution))
    seen: set[frozenset[tuple[int, Value]]] = set()
    for _ in range(MOST_TRIES):
        if not pending:
            break
        _, _, excluded, answer = heapq.heappop(pending)
        overfull = check(answer)
        if not overfull:
            return answer, ()
        for variable in _to_change(overfull, variables):
            more = excluded | {(variable, answer.values[variable])}
            if more in seen:
                continue
            seen.add(more)
            other = problem.cheapest_without(more, budget)
            if other is not None:
                heapq.heappush(pending, (other.cost, next(order), more, other))
    return solution, tuple(first)


def _to_change(overfull: list[Overflow], variables: Mapping[SSAValue, int]) -> Iterator[int]:
    """One of the largest tiles at an overfull point has to have another layout."""
    yield from dict.fromkeys(variables[value] for value in overfull[0].tiles[:MOST_CHOICES])


def _taken(value: SSAValue, chosen: Value) -> tuple[str, int] | None:
    return bytes_of(chosen, array_type(value).dtype.itemsize) if isinstance(chosen, Layout) else None


def _least(value: SSAValue, domain: tuple[Value, ...]) -> tuple[str, int] | None:
    """The least registers that a tile can take; none where it can be in a memory."""
    found = [taken for each in domain if (taken := _taken(value, each)) is not None]
    if not found or any(memory != REGISTERS for memory, _ in found):
        return None
    return min(found, key=lambda taken: taken[1])
