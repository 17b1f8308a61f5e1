"""Matmuls with elementwise epilogues: the accumulation loop, and the section that reads the accumulator.

A section goes over places, which are those of the pages of the sums: row by row, or all of them by their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import AffineBinaryOpExpr, AffineBinaryOpKind

from tilewright.cost.cores.tiles import ProductBlocks, product_blocks
from tilewright.dialects import cores, tile
from tilewright.dialects.rewriting import in_block
from tilewright.passes.cores.affine_expressions import (
    ZERO,
    combined,
    divided,
    plus,
    remainder,
    times,
    with_dims,
    with_symbols,
)
from tilewright.passes.cores.products import runs
from tilewright.semantics.tile import evaluate_map

# Operations of a section, which reads pages and packs what it computes of them.
_PLACEWISE = (cores.CopyOp, cores.BinaryOp, cores.MapOp, cores.CastOp)
PLACE, _ROW, _COLUMN = (AffineExpr.dimension(d) for d in range(3))


# ---- what there is --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sum:
    """Matmuls that are added up in the pages of a queue.

    Attributes:
        matmul: that of the first block.
        loop: the one whose trips are added up, or in whose only trip they are; None where there is none.
        roots: operations of the loop's body, or of the block of the queue's steps, that have the matmuls in them.
        section: operations of that block that read the sums.
    """

    queue: SSAValue
    matmul: cores.MatmulOp
    loop: tile.ForOp | None
    adds: bool
    roots: tuple[Operation, ...]
    section: tuple[Operation, ...]
    push: cores.PushOp
    wait: cores.WaitOp

    @property
    def columns(self) -> int:
        return self.matmul.right_stride

    @property
    def rows(self) -> int:
        return self.push.count // self.columns


@dataclass(frozen=True)
class Section:
    """A section: its first group of operations, the counters of the loops over rows of positions and over parts of them
    (or of all positions, where there is no loop over rows), how many places a group does, and registers for each."""

    group: tuple[Operation, ...]
    row: SSAValue | None
    part: SSAValue | None
    places: int
    registers: int


@dataclass(frozen=True)
class Finish:
    """Sums that one section reads, and the blocks in which what follows has room in the registers."""

    sums: tuple[Sum, ...]
    section: Section
    blocks: ProductBlocks

    @property
    def pages(self) -> tuple[int, int]:
        """Rows and columns of pages of each sum."""
        return self.sums[0].rows, self.sums[0].columns

    def sum_of(self, op: Operation) -> Sum | None:
        """The sum that an operation copies to registers."""
        if not isinstance(op, cores.CopyOp):
            return None
        return next((each for each in self.sums if each.queue is op.queue), None)


def finish_of(queue: SSAValue, registers: int) -> Finish | None:
    """Sums whose last trip can continue in the registers, that of a queue among them."""
    first = _sum_of(queue)
    if first is None:
        return None
    read = [op.queue for root in first.section for op in root.walk() if isinstance(op, cores.CopyOp)]
    others = [other for other in dict.fromkeys(read) if other is not queue]
    sums = [first, *(each for other in others if (each := _sum_of(other)) is not None)]
    sums = [each for each in sums if each.section == first.section]
    if not _are_together(sums):
        return None
    section = _section_of(first, {each.queue for each in sums})
    if section is None or section.registers > registers:
        return None
    blocks = product_blocks(first.rows, first.columns, registers // section.registers)
    finish = Finish(tuple(sums), section, blocks)
    return finish if _is_place_by_place(finish) and not _is_in_the_way(finish) else None


def _sum_of(queue: SSAValue) -> Sum | None:
    uses = {use.operation for use in queue.uses}
    packs = [op for op in uses if isinstance(op, cores.PackOp)]
    copies = [op for op in uses if isinstance(op, cores.CopyOp)]
    steps = [op for op in uses if isinstance(op, cores.QueueStepOp)]
    block = steps[0].parent_block() if steps else None
    kinds = sorted(type(op).name for op in steps)
    if kinds != ["cores.pop", "cores.push", "cores.reserve", "cores.wait"] or block is None or not packs or not copies:
        return None
    if len(uses) != 4 + len(packs) + len(copies) or len({(op.parent_block(), op.count) for op in steps}) != 1:
        return None
    if any(not cores.thread_of(op).computes for op in steps):
        return None
    groups = [group_of(pack) for pack in packs]
    found = _loop_of(groups, block)
    if found is None:
        return None
    loop, adds, roots = found
    first = next(op for root in roots for op in root.walk() if isinstance(op, cores.MatmulOp))
    readers = {in_block(op, block) for copy in copies for op in group_of(copy)}
    if not readers:
        return None
    section = _between(block, readers)
    push = next(op for op in steps if isinstance(op, cores.PushOp))
    wait = next(op for op in steps if isinstance(op, cores.WaitOp))
    return Sum(queue, first, loop, adds, roots, section, push, wait)


def group_of(op: Operation) -> tuple[Operation, ...]:
    """The operations from when the registers are acquired until they are released, one of which is given."""
    first: Operation | None = op
    while first is not None and not _is_step(first, cores.ACQUIRE):
        first = first.prev_op
    group: list[Operation] = []
    while first is not None:
        group.append(first)
        if _is_step(first, cores.RELEASE):
            return tuple(group)
        first = first.next_op
    return ()


def _is_step(op: Operation, step: str) -> bool:
    return isinstance(op, cores.RegistersOp) and op.step == step


def _loop_of(
    groups: Sequence[tuple[Operation, ...]], block: Block
) -> tuple[tile.ForOp | None, bool, tuple[Operation, ...]] | None:
    """The loop that adds up, whether it does, and the operations in its body, or in a block, that multiply; None where
    something else is done too."""
    plain = [cores.RegistersOp, cores.MatmulOp, cores.RegistersOp, cores.RegistersOp, cores.PackOp, cores.RegistersOp]
    adding = [*plain[:4], cores.AccumulateOp, *plain[4:]]
    kinds = {tuple(type(op) for op in group) for group in groups}
    if kinds not in ({tuple(plain)}, {tuple(adding)}):
        return None
    adds = kinds == {tuple(adding)}
    tops = {in_block(group[0], block) for group in groups}
    loop = next(iter(tops)) if len(tops) == 1 else None
    if isinstance(loop, tile.ForOp) and not _only_multiplies(loop):
        if loop.end is not None or (adds and loop.trips < 2):
            return None
        counters = [op.symbols for group in groups for op in group if isinstance(op, cores.AccumulateOp)]
        if any(list(symbols) != [loop.body.block.args[0]] for symbols in counters):
            return None
        roots = _between(loop.body.block, {in_block(op, loop.body.block) for group in groups for op in group})
        return (loop, adds, roots) if all(map(_only_multiplies, roots)) else None
    roots = _between(block, {in_block(op, block) for group in groups for op in group})
    return None if adds or not all(map(_only_multiplies, roots)) else (None, False, roots)


def _only_multiplies(op: Operation) -> bool:
    kinds = cores.RegistersOp | cores.MatmulOp | cores.AccumulateOp | cores.PackOp | tile.ForOp | tile.YieldOp
    return all(isinstance(inner, kinds) for inner in op.walk())


def _between(block: Block, ends: set[Operation]) -> tuple[Operation, ...]:
    """The operations of a block from the first to the last one of some."""
    places = [position for position, op in enumerate(block.ops) if op in ends]
    return tuple(block.ops)[min(places) : max(places) + 1]


def _section_of(first: Sum, queues: set[SSAValue]) -> Section | None:
    """How the operations that read sums go over places; None where they do anything else."""
    if not all(_is_placewise(op) for root in first.section for op in root.walk()):
        return None
    copies = [op for root in first.section for op in root.walk() if isinstance(op, cores.CopyOp) and op.queue in queues]
    groups = [group_of(op) for op in copies]
    if len({group[0] for group in groups}) * len(queues) != len(copies):
        return None
    group = groups[0]
    registers = [op for op in group if isinstance(op, cores.RegisterOp)]
    places = registers[0].count
    used = max(max(op.slots) for op in registers) // places + 1
    loops = list(_loops_around(group[0], first.push.parent_block()))
    counters: list[SSAValue | None] = [loop.body.block.args[0] for loop in loops]
    if len(loops) == 2:
        return Section(group, counters[0], counters[1], places, used)
    if len(loops) == 1 and loops[0].trips == first.rows > 1 and _places_in(loops[0]) == first.columns > 1:
        return Section(group, counters[0], None, places, used)
    return Section(group, None, counters[0] if counters else None, places, used) if len(loops) < 2 else None


def _places_in(loop: tile.ForOp) -> int:
    """How many places a trip does, with all that is in it done once."""
    groups = [group_of(op) for op in loop.body.walk() if _is_step(op, cores.ACQUIRE)]
    return sum(next(len(op.slots) for op in group if isinstance(op, cores.PackOp)) for group in groups)


def _is_placewise(op: Operation) -> bool:
    return isinstance(op, (*_PLACEWISE, cores.PackOp, cores.RegistersOp, tile.ForOp, tile.YieldOp))


def _loops_around(op: Operation, block: Block | None) -> Iterator[tile.ForOp]:
    """The loops around an operation inside of a block, the outermost first."""
    parent = op.parent_op()
    if op.parent_block() is not block and isinstance(parent, tile.ForOp):
        yield from _loops_around(parent, block)
        yield parent


def _are_together(sums: Sequence[Sum]) -> bool:
    """Whether sums are of one loop that adds up nothing else, and have the same pages."""
    first = sums[0]
    if any((each.loop, each.rows, each.columns) != (first.loop, first.rows, first.columns) for each in sums):
        return False
    if first.loop is None:
        return True
    accumulates = [op for op in first.loop.body.walk() if isinstance(op, cores.AccumulateOp) and op.symbols]
    added = {op.queue for each in accumulates for op in group_of(each) if isinstance(op, cores.PackOp)}
    return not first.adds or added == {each.queue for each in sums}


def _is_place_by_place(finish: Finish) -> bool:
    """Whether the section reads each page of the sums for the position that is the page's, and in a register of its own
    where matmuls begin there."""
    rows, columns = finish.pages
    written: set[int] = set()
    for op in finish.section.group:
        found = finish.sum_of(op)
        if found is not None and isinstance(op, cores.CopyOp):
            is_fresh = found.adds or not {*op.slots} & written
            if op.broadcast != cores.NONE or op.transpose or not is_fresh:
                return False
            others = others_of(op, finish.section)
            place = AffineMap(3, len(others), (by_place(op.at.results[0], op.symbols, finish),))
            pages = evaluate_map(place, (1, rows, columns), [0] * len(others))[0]
            if others or list(pages.reshape(-1)) != list(range(rows * columns)):
                return False
        if isinstance(op, cores.RegisterOp):
            written |= {*op.slots}
    return True


def _is_in_the_way(finish: Finish) -> bool:
    """Whether what is between the matmuls and the section has to do with the queues that they take from."""
    first = finish.sums[0]
    end = first.section[0]
    for each in finish.sums:
        start = each.loop if each.loop is not None else each.roots[-1]
        taken = {operand for op in start.walk() for operand in op.operands if isinstance(operand.type, cores.QueueType)}
        taken |= {each.matmul.left, each.matmul.right}
        taken -= {other.queue for other in finish.sums}
        op = start.next_op
        while op is not None and op is not end:
            if op not in each.roots and any(queue in inner.operands for inner in op.walk() for queue in taken):
                return True
            op = op.next_op
    return False


# ---- places ---------------------------------------------------------------------------------------------------------


def others_of(op: Operation, section: Section) -> list[SSAValue]:
    """The symbols of an operation of a section that are no counters of its loops."""
    symbols = [operand for operand in op.operands if isinstance(operand.type, IndexType)]
    return [each for each in symbols if each is not section.row and each is not section.part]


def by_place(expression: AffineExpr, symbols: Sequence[SSAValue], finish: Finish) -> AffineExpr:
    """An expression of an operation of a section by the row (d1) and the column (d2) of a position, and by the other
    symbols."""
    section = finish.section
    others = [each for each in symbols if each is not section.row and each is not section.part]

    def replaced(position: int) -> AffineExpr:
        symbol = symbols[position]
        if symbol is section.row:
            return _ROW
        return ZERO if symbol is section.part else AffineExpr.symbol(others.index(symbol))

    row_by_row = plus(times(_ROW, finish.pages[1]), _COLUMN)
    found = with_symbols(expression, replaced)
    placed = row_by_row if section.row is None else _COLUMN
    return _by_row_and_column(with_dims(found, lambda d: placed if d == 0 else _ROW), row_by_row, *finish.pages)


def _by_row_and_column(expression: AffineExpr, place: AffineExpr, rows: int, columns: int) -> AffineExpr:
    """An expression in which the row and the column of a position are not found from its number, as they are there."""
    if not isinstance(expression, AffineBinaryOpExpr):
        return expression
    left, right = (_by_row_and_column(each, place, rows, columns) for each in (expression.lhs, expression.rhs))
    if left == place and right == AffineExpr.constant(columns):
        if expression.kind == AffineBinaryOpKind.FloorDiv:
            return _ROW
        if expression.kind == AffineBinaryOpKind.Mod:
            return _COLUMN
    if expression.kind == AffineBinaryOpKind.Mod and left == _ROW and right == AffineExpr.constant(rows):
        return _ROW
    return combined(expression.kind, left, right)


@dataclass(frozen=True)
class Spot:
    """Blocks of `height` x `width` pages: the first one's first page, and the counters of loops over blocks down and
    across, where there are several."""

    first: tuple[int, int]
    size: tuple[int, int]
    counters: tuple[SSAValue | None, SSAValue | None]

    @property
    def symbols(self) -> list[SSAValue]:
        return [counter for counter in self.counters if counter is not None]

    def begin(self, symbols: int) -> tuple[AffineExpr, AffineExpr]:
        """The first row and column of a block; counters are the symbols after so many others."""
        found: list[AffineExpr] = []
        for first, size, counter in zip(self.first, self.size, self.counters, strict=True):
            place = ZERO
            if counter is not None:
                place = times(AffineExpr.symbol(symbols), size)
                symbols += 1
            found.append(plus(place, first))
        return found[0], found[1]

    def place(self, symbols: int) -> tuple[AffineExpr, AffineExpr]:
        """The row and column of page d0 of a block, counted row by row."""
        (row, column), (height, width) = self.begin(symbols), self.size
        return (
            plus(row, ZERO if height == 1 else divided(PLACE, width)),
            plus(column, PLACE if height == 1 else remainder(PLACE, width)),
        )


def over_blocks(
    pages: tuple[int, int], blocks: ProductBlocks, made: Callable[[Spot], Sequence[Operation]]
) -> list[Operation]:
    """The blocks, in loops where several have one size."""
    found: list[Operation] = []
    for first_row, height, high in runs(pages[0], blocks.rows):
        for first_column, width, wide in runs(pages[1], blocks.columns):
            regions = [cores.region_of(1) if count > 1 else None for count in (high, wide)]
            counters = [None if region is None else region.block.args[0] for region in regions]
            spot = Spot((first_row, first_column), (height, width), (counters[0], counters[1]))
            ops = list(made(spot))
            for region, count in ((regions[1], wide), (regions[0], high)):
                if region is not None:
                    region.block.add_ops([*ops, tile.YieldOp()])
                    ops = [tile.ForOp(trips=count, body=region)]
            found += ops
    return found
