"""Builder of the threads of a core program: emits loops into all threads, and operations into each.

Positions are affine expressions over numbered roots: root 0 is the row of a core, root 1 its column, and each loop has
one more. A thread has its own counter for each loop, so an expression becomes operands when an operation is added to a
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import DenseArrayBase, LocationAttr, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import cores, tile
from tilewright.dialects.fields import encode
from tilewright.dialects.rewriting import block_of, erase
from tilewright.layout.catalogue.paging import Paging
from tilewright.passes.cores.affine_expressions import symbols_in, with_symbols

CORE_ROW, CORE_COLUMN = 0, 1


@lru_cache(maxsize=1024)
def _layout_text(paging: Paging, shape: tuple[int, ...]) -> str:
    return str(paging.of(shape).layout(shape))


@dataclass
class Scope:
    """The body of a loop or a choice, or of the program. `loops`: each thread's loop or choice around it; `endings`:
    what is done when it ends."""

    blocks: dict[str, Block]
    loops: dict[str, Operation] = field(default_factory=dict[str, Operation])
    endings: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


class Threads:
    """The threads of a program. `at`: where each continues; `location`: where what is added is from. With one mover, it
    does what the writer would do, too."""

    def __init__(self, shape: tuple[int, int], movers: int = 2) -> None:
        self._runs = {role: role for role in cores.ROLES}
        if movers == 1:
            self._runs[cores.WRITER] = cores.READER
        self.body = cores.region_of(2)
        self.program = cores.ProgramOp(cores=shape, body=self.body)
        self._bodies = {role: cores.region_of() for role in cores.ROLES}
        row, column = self.body.block.args
        self._roots: dict[str, dict[int, SSAValue]] = {
            role: {CORE_ROW: row, CORE_COLUMN: column} for role in cores.ROLES
        }
        self._count = 2
        self.scopes = [Scope({role: body.block for role, body in self._bodies.items()})]
        self.at: dict[str, Block] = dict(self.scopes[0].blocks)
        self.location: LocationAttr | None = None

    @property
    def roles(self) -> list[str]:
        """The roles of the program's threads."""
        return [*dict.fromkeys(self._runs.values())]

    # ---- declarations -----------------------------------------------------------------------------------------------

    def queue(
        self, format: str, paging: Paging, shape: tuple[int, ...], *, copies: int = 1, hint: str = ""
    ) -> SSAValue:
        """A queue with room for some tiles of a shape."""
        op = cores.QueueOp(result=cores.queue(format, copies * paging.pages(shape), _layout_text(paging, shape)))
        if hint:
            op.results[0].name_hint = hint
        self._place(op)
        self.body.block.add_op(op)
        return op.results[0]

    def semaphore(self, hint: str) -> SSAValue:
        """A semaphore that is 0 in the beginning."""
        op = cores.SemaphoreOp(initial=0, result=cores.SemaphoreType())
        op.results[0].name_hint = hint
        self._place(op)
        self.body.block.add_op(op)
        return op.results[0]

    # ---- operations -------------------------------------------------------------------------------------------------

    def add(
        self,
        role: str,
        cls: Any,
        operands: Sequence[SSAValue],
        attributes: Mapping[str, Any],
        maps: Mapping[str, tuple[int, Sequence[AffineExpr]]] | None = None,
        lanes: Sequence[SSAValue] = (),
        regions: Sequence[Region] = (),
    ) -> Any:
        """Add an operation to a thread. `maps`: by name the dims and results of maps, whose symbols are roots, and
        after those, from -1 down, `lanes`, which are further operands."""
        maps = maps or {}
        found = {root for _, results in maps.values() for e in results for root in symbols_in(e)}
        role = self._runs[role]
        roots = sorted(root for root in found if root >= 0)
        numbers = {root: position for position, root in enumerate(roots)}
        numbers |= {-1 - n: len(roots) + n for n in range(len(lanes))}
        made = {
            name: AffineMap(
                dims,
                len(roots) + (len(lanes) if name == "map" else 0),
                tuple(with_symbols(e, lambda r: AffineExpr.symbol(numbers[r])) for e in results),
            )
            for name, (dims, results) in maps.items()
        }
        symbols = [self._roots[role][root] for root in roots]
        properties = {name: encode(value) for name, value in {**attributes, **made}.items()}
        if issubclass(cls, cores.ElementsOp):
            segments = [1, 1, len(symbols), len(lanes)]
            properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, segments)
        op = cls.create(operands=[*operands, *symbols, *lanes], properties=properties, regions=list(regions))
        self._place(op)
        self.at[role].add_op(op)
        return op

    def _place(self, op: Operation) -> None:
        if self.location is not None:
            op.location = self.location

    # ---- loops ------------------------------------------------------------------------------------------------------

    def open_loop(self, trips: int, end: AffineExpr | None = None, roles: Iterable[str] = cores.ROLES) -> AffineExpr:
        """Begin a loop in some threads; gives its counter."""
        root = self._count
        self._count += 1
        scope = Scope({})
        for role in dict.fromkeys(self._runs[role] for role in roles):
            region = cores.region_of(1)
            maps = {} if end is None else {"end": (0, (end,))}
            scope.loops[role] = self.add(role, tile.ForOp, [], {"trips": trips}, maps, regions=[region])
            scope.blocks[role] = region.block
            self._roots[role][root] = region.block.args[0]
            self.at[role] = region.block
        self.scopes.append(scope)
        return AffineExpr.symbol(root)

    def open_if(self, condition: AffineExpr, roles: Iterable[str] = cores.ROLES) -> None:
        """Begin what some threads do where a number is 0."""
        scope = Scope({})
        for role in dict.fromkeys(self._runs[role] for role in roles):
            regions = [cores.region_of(), cores.region_of()]
            scope.loops[role] = self.add(role, cores.IfOp, [], {}, {"map": (0, [condition])}, regions=regions)
            scope.blocks[role] = self.at[role] = regions[0].block
        self.scopes.append(scope)

    def otherwise(self) -> None:
        """Emit the following operations into the branch for numbers other than 0."""
        for role, op in self.scopes[-1].loops.items():
            self.at[role] = op.regions[1].block

    def close(self) -> None:
        """End the loop, or the choice, that was begun last."""
        scope = self.scopes.pop()
        for ending in scope.endings:
            ending()
        for role, op in scope.loops.items():
            last = cores.EndOp if isinstance(op, cores.IfOp) else tile.YieldOp
            for region in op.regions:
                region.block.add_op(last())
            parent = block_of(op)
            self.at[role] = parent

    def inside(self, role: str, scope: Scope) -> Elsewhere:
        """A context in which operations of a thread are added to an enclosing scope, before the loop that leads to the
        present one."""
        return Elsewhere(self, self._runs[role], scope)

    # ---- end --------------------------------------------------------------------------------------------------------

    def finish(self, networks: Mapping[str, int]) -> cores.ProgramOp:
        """The program; loops in which a thread has nothing to do, and threads, are left out."""
        for ending in self.scopes[0].endings:
            ending()
        for role, region in self._bodies.items():
            region.block.add_op(cores.EndOp())
            drop_empty(region.block)
            if region.block.first_op is region.block.last_op:
                continue
            self.body.block.add_op(cores.ThreadOp(role=role, noc=networks.get(role), body=region))
        self.body.block.add_op(cores.EndOp())
        return self.program


class Elsewhere:
    """See `Threads.inside`."""

    def __init__(self, threads: Threads, role: str, scope: Scope) -> None:
        self._threads, self._role, self._scope = threads, role, scope

    def __enter__(self) -> None:
        self._before = self._threads.at[self._role]
        self._block = Block()
        self._is_here = self._scope is self._threads.scopes[-1]
        if not self._is_here:
            self._threads.at[self._role] = self._block

    def __exit__(self, *_: object) -> None:
        if self._is_here:
            return
        threads = self._threads
        threads.at[self._role] = self._before
        following = threads.scopes[threads.scopes.index(self._scope) + 1].loops[self._role]
        parent = block_of(following)
        for op in list(self._block.ops):
            op.detach()
            parent.insert_op_before(op, following)


def drop_empty(block: Block) -> None:
    """Take out loops and choices that do nothing."""
    for op in list(block.ops):
        if isinstance(op, tile.ForOp | cores.IfOp):
            for region in op.regions:
                drop_empty(region.block)
            if all(region.block.first_op is region.block.last_op for region in op.regions) and not op.results:
                erase(op)
