"""Reductions over a loop that several cores share: each reduces what its trips give, and one of them, the root, reduces
what all of them have found, and continues alone.

Cores that share a loop are a rectangle. The root signals to all that it has room, by a semaphore that it multicasts;
each sends what it found, and after it adds one to a semaphore of the root, which continues when all have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright.cost.cores.tiles import Split, shared_loop
from tilewright.dialects import cores, tile
from tilewright.dialects.base import array_type
from tilewright.layout.catalogue.paging import Paging
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.cores.affine_expressions import divided, plus, remainder, times
from tilewright.passes.cores.sections import Held
from tilewright.passes.cores.threads import CORE_COLUMN, CORE_ROW, Scope, Threads
from tilewright.passes.cores.tile_facts import changes_nothing
from tilewright.primitives import ArrayType

_ROW, _COLUMN = AffineExpr.symbol(CORE_ROW), AffineExpr.symbol(CORE_COLUMN)
# By what tiles are reduced whose order does not matter.
_FUNCTIONS = ("add", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor")


@dataclass(frozen=True)
class Shared:
    """A loop of a kernel that several cores share, each of which has `each` of its trips; by what each tile that it
    carries is reduced."""

    loop: tile.ForOp
    functions: tuple[str, ...]
    split: Split

    @property
    def count(self) -> int:
        return prod(self.split.parts)

    @property
    def each(self) -> int:
        return -(-self.loop.trips // self.count)

    @property
    def part(self) -> AffineExpr:
        """The index of a core among those that share its loop."""
        rows, columns = self.split.parts
        return plus(times(remainder(_ROW, rows), columns), remainder(_COLUMN, columns))

    @property
    def root(self) -> tuple[AffineExpr, AffineExpr]:
        rows, columns = self.split.parts
        return times(divided(_ROW, rows), rows), times(divided(_COLUMN, columns), columns)

    @property
    def is_root(self) -> AffineExpr:
        """A value that is 0 on the root core."""
        rows, columns = self.split.parts
        return plus(remainder(_ROW, rows), remainder(_COLUMN, columns))

    @property
    def rectangle(self) -> list[AffineExpr]:
        """First row and column, last row and column of those that share a loop, as the root sees them."""
        rows, columns = self.split.parts
        return [_ROW, _COLUMN, plus(_ROW, rows - 1), plus(_COLUMN, columns - 1)]

    @property
    def end(self) -> AffineExpr | None:
        """Before which trip of its own a core ends; None where all have as many."""
        trips = self.loop.trips
        if trips % self.each == 0:
            return None
        return plus(times(self.part, -self.each), trips)


def shared_of(kernel: tile.KernelOp, grid: CoreGrid) -> Shared | None:
    """The first loop of a kernel, where all that it does is to reduce, and cores would be idle."""
    loop = next((op for op in kernel.body.block.ops if isinstance(op, tile.ForOp | tile.StoreOp)), None)
    if not isinstance(loop, tile.ForOp) or loop.end is not None or not loop.results:
        return None
    written = {op.destination for op in kernel.walk() if isinstance(op, tile.StoreOp)}
    for op in kernel.walk():
        if isinstance(op, tile.PrintOp | tile.AssertOp | tile.ZoneOp):
            return None
    if any(
        isinstance(op, tile.StoreOp) or (isinstance(op, tile.LoadOp) and op.source in written) for op in loop.walk()
    ):
        return None
    functions = _functions(loop)
    if functions is None:
        return None
    results = sum(_pages(result) for result in loop.results)
    split = shared_loop(prod(kernel.grid), loop.trips, _loaded_pages(loop), results, grid)
    return None if split is None else Shared(loop, functions, split)


def _pages(value: SSAValue) -> int:
    shape = array_type(value).shape
    return Paging.default(shape).pages(shape)


def _loaded_pages(loop: tile.ForOp) -> int:
    """How many pages a trip of a loop loads."""
    total = 0
    for op in loop.body.block.ops:
        if isinstance(op, tile.LoadOp):
            total += _pages(op.result)
        elif isinstance(op, tile.ForOp):
            total += op.trips * _loaded_pages(op)
    return total


def _functions(loop: tile.ForOp) -> tuple[str, ...] | None:
    """By what the tiles that a loop carries are reduced, from what changes nothing on; None where one is not."""
    found: list[str] = []
    for position, initial in enumerate(loop.initial):
        fn = _function(loop, position)
        if fn not in _FUNCTIONS or not changes_nothing(initial, fn):
            return None
        found.append(fn)
    return tuple(found)


def _function(loop: tile.ForOp, position: int) -> str | None:
    """By what the tile at a position is combined with something that does not depend on what the loop carries."""
    argument, last = loop.body.block.args[1 + position], loop.body.block.last_op
    users = list(argument.uses)
    if len(users) != 1 or last is None or array_type(argument).dtype.is_bool:
        return None
    user = users[0].operation
    if user.parent_op() is not loop:
        return None
    match user:
        case tile.DotOp() if user.accumulator is argument:
            fn, result = "add", user.result
        case tile.MapOp():
            fn, result = user.fn, user.results[0]
        case tile.ForOp() if argument in user.initial:
            inner = list(user.initial).index(argument)
            fn, result = _function(user, inner), user.results[inner]
        case _:
            return None
    taken = list(result.uses)
    is_yielded = len(taken) == 1 and taken[0].operation is last and last.operands[position] is result
    return fn if is_yielded else None


def emit_gather(threads: Threads, shared: Shared, partials: Sequence[Held]) -> list[SSAValue]:
    """The writer of each core sends what it found to the root; gives the queues there, with what all have found."""
    count = shared.count
    room, arrived = threads.semaphore("room"), threads.semaphore("arrived")
    queues = [threads.queue(each.format, *_stacked(each, count), hint="partials") for each in partials]
    add, role = threads.add, cores.WRITER
    threads.open_if(shared.is_root, [role])
    for queue, each in zip(queues, partials, strict=True):
        add(role, cores.ReserveOp, [queue], {"pages": count * each.pages})
    add(role, cores.SemaphoreSetOp, [room], {"value": 1})
    add(role, cores.SemaphoreMulticastOp, [room], {}, {"rectangle": (0, shared.rectangle)})
    threads.close()
    for each in partials:
        add(role, cores.WaitOp, [each.queue], {"pages": each.pages})
    add(role, cores.SemaphoreWaitOp, [room], {"value": 1})
    for queue, each in zip(queues, partials, strict=True):
        maps = {
            "at": (0, [AffineExpr.constant(0)]),
            "to": (0, [times(shared.part, each.pages)]),
            "core": (0, list(shared.root)),
        }
        add(role, cores.SendOp, [each.queue, queue], {"pages": each.pages}, maps)
    # The root's number is read until it has been sent to all.
    add(role, cores.BarrierOp, [], {"of": cores.WRITE})
    add(role, cores.SemaphoreSetOp, [room], {"value": 0})
    for each in partials:
        add(role, cores.PopOp, [each.queue], {"pages": each.pages})
    threads.open_if(shared.is_root, [role])
    add(role, cores.SemaphoreWaitOp, [arrived], {"value": count - 1})
    add(role, cores.SemaphoreSetOp, [arrived], {"value": 0})
    for queue, each in zip(queues, partials, strict=True):
        add(role, cores.PushOp, [queue], {"pages": count * each.pages})
    threads.otherwise()
    add(role, cores.SemaphoreIncrementOp, [arrived], {"value": 1}, {"core": (0, list(shared.root))})
    threads.close()
    return queues


def stacked(queue: SSAValue, partial: Held, count: int, scope: Scope) -> Held:
    """The partial results of all cores as one tile with a leading dim."""
    paging, shape = _stacked(partial, count)
    return Held(queue, paging, ArrayType(shape, partial.type.dtype), scope)


def _stacked(partial: Held, count: int) -> tuple[Paging, tuple[int, ...]]:
    shape = (count, *partial.type.shape)
    return partial.paging.renamed({d: d + 1 for d in range(partial.type.rank)}).of(shape), shape
