"""The last trip of a product goes on in the registers: what is computed of its sums is written block by block.

Sums of a product are added up in pages, trip by trip. What follows reads them back, and begins when all of them are
there; so does the writer. Here the last trip takes what the trips before it have left, adds its own products in the
registers, computes there what follows, and passes on each block that is done.

Before:
    func.func @main(%x: tensor<64x64xbf16>, %w: tensor<64x64xbf16>) -> tensor<64x64xbf16> {
      %y = array.call(%x, %w) {callee = "product"} : tensor<64x64xbf16>
      func.return %y : tensor<64x64xbf16>
    }
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from xdsl.dialects.builtin import AffineMapAttr, DenseArrayBase, IndexType, IntegerAttr, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import AffineBinaryOpExpr, AffineBinaryOpKind, AffineConstantExpr, AffineSymExpr

from tilewright.cost.core_tiles import ProductBlocks, product_blocks
from tilewright.dialects import cores, tile
from tilewright.dialects.base import decode
from tilewright.machines.core_grid import DRAM_WRITE, CoreGrid
from tilewright.passes.base import Remark, Unit
from tilewright.passes.core_products import runs
from tilewright.passes.core_threads import ZERO, combined, divided, plus, remainder, times, with_dims, with_symbols
from tilewright.semantics.tile import evaluate_map

# Operations of a section, which reads pages and packs what it computes of them.
_PLACEWISE = (cores.CopyOp, cores.BinaryOp, cores.MapOp, cores.CastOp)
_PLACE, _ROW, _COLUMN = (AffineExpr.dimension(d) for d in range(3))


@dataclass(frozen=True)
class ScheduledFinishProductsPass:
    name: ClassVar[str] = "scheduled-finish-products"

    def apply(self, unit: Unit) -> None:
        grid = unit.machine.grid
        if grid is None:
            return
        for kernel in unit.timed_kernels(self.name):
            for program in list(kernel.walk()):
                if isinstance(program, cores.ProgramOp):
                    self._apply_to(unit, kernel.sym_name.data, program, grid)

    def _apply_to(self, unit: Unit, name: str, program: cores.ProgramOp, grid: CoreGrid) -> None:
        done: set[SSAValue] = set()
        for queue in program.queues:
            if queue.result in done:
                continue
            found = _finish_of(queue.result, grid.half_registers(program.wide is not None))
            if found is None:
                continue
            done |= {each.queue for each in found.sums}
            _emit(found, grid)
            size = f"{found.blocks.rows} x {found.blocks.columns} pages"
            decision = f"what follows a product is computed in the registers in blocks of {size}"
            unit.remarks.append(Remark(self.name, name, decision, "they are written while others are multiplied"))


# ---- what there is --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sum:
    """Products that are added up in the pages of a queue.

    Attributes:
        matmul: that of the first block.
        loop: the one whose trips are added up, or in whose only trip they are; None where there is none.
        roots: operations of the loop's body, or of the block of the queue's steps, that have the products in them.
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
        return int(decode(self.matmul.right_stride))

    @property
    def rows(self) -> int:
        return self.push.count // self.columns


@dataclass(frozen=True)
class _Section:
    """A section: its first group of operations, the counters of the loops over rows of places and over parts of them
    (or of all places, where there is no loop over rows), how many places a group does, and registers for each."""

    group: tuple[Operation, ...]
    row: SSAValue | None
    part: SSAValue | None
    places: int
    registers: int


@dataclass(frozen=True)
class _Finish:
    """Sums that one section reads."""

    sums: tuple[_Sum, ...]
    section: _Section
    blocks: ProductBlocks

    @property
    def pages(self) -> tuple[int, int]:
        """Rows and columns of pages of each sum."""
        return self.sums[0].rows, self.sums[0].columns

    def sum_of(self, op: Operation) -> _Sum | None:
        """The sum that an operation copies to registers."""
        if not isinstance(op, cores.CopyOp):
            return None
        return next((each for each in self.sums if each.queue is op.queue), None)


def _finish_of(queue: SSAValue, registers: int) -> _Finish | None:
    """Sums whose last trip can go on in the registers, that of a queue among them."""
    first = _sum_of(queue)
    if first is None:
        return None
    read = {op.queue for root in first.section for op in root.walk() if isinstance(op, cores.CopyOp)}
    sums = [first, *(each for other in read - {queue} if (each := _sum_of(other)) is not None)]
    sums = [each for each in sums if each.section == first.section]
    if not _are_together(sums):
        return None
    for section in _sections_of(first, {each.queue for each in sums}):
        most = registers // section.registers
        if most < 1:
            return None
        finish = _Finish(tuple(sums), section, product_blocks(first.rows, first.columns, most))
        if _is_place_by_place(finish) and not _is_in_the_way(finish):
            return finish
    return None


def _sum_of(queue: SSAValue) -> _Sum | None:
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
    groups = [_group_of(pack) for pack in packs]
    found = _loop_of(groups, block)
    if found is None:
        return None
    loop, adds, roots = found
    first = next(op for root in roots for op in root.walk() if isinstance(op, cores.MatmulOp))
    readers = {_ancestor(op, block) for copy in copies for op in _group_of(copy)}
    if not readers:
        return None
    section = _between(block, readers)
    push = next(op for op in steps if isinstance(op, cores.PushOp))
    wait = next(op for op in steps if isinstance(op, cores.WaitOp))
    return _Sum(queue, first, loop, adds, roots, section, push, wait)


def _group_of(op: Operation) -> tuple[Operation, ...]:
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
    return isinstance(op, cores.RegistersOp) and op.step.data == step


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
    tops = {_ancestor(group[0], block) for group in groups}
    loop = next(iter(tops)) if len(tops) == 1 else None
    if isinstance(loop, tile.ForOp) and not _only_multiplies(loop):
        if loop.end is not None or int(loop.trips.value.data) < 2 and adds:
            return None
        counters = [op.symbols for group in groups for op in group if isinstance(op, cores.AccumulateOp)]
        if any(list(symbols) != [loop.body.block.args[0]] for symbols in counters):
            return None
        roots = {_ancestor(op, loop.body.block) for group in groups for op in group}
        return loop, adds, _between(loop.body.block, roots)
    if adds:
        return None
    roots = {_ancestor(op, block) for group in groups for op in group}
    return None, False, _between(block, roots)


def _only_multiplies(loop: tile.ForOp) -> bool:
    return all(
        isinstance(op, cores.RegistersOp | cores.MatmulOp | cores.PackOp | tile.ForOp | tile.YieldOp)
        for op in loop.body.walk()
    )


def _between(block: Block, ends: set[Operation]) -> tuple[Operation, ...]:
    """The operations of a block from the first to the last one of some."""
    places = [position for position, op in enumerate(block.ops) if op in ends]
    return tuple(block.ops)[min(places) : max(places) + 1]


def _ancestor(op: Operation, block: Block) -> Operation:
    while op.parent_block() is not block:
        parent = op.parent_op()
        if parent is None:
            return op
        op = parent
    return op


def _sections_of(first: _Sum, queues: set[SSAValue]) -> Iterator[_Section]:
    """How the operations that read sums may go over places; none where they do anything else."""
    if not all(_is_placewise(op) for root in first.section for op in root.walk()):
        return
    copies = [op for root in first.section for op in root.walk() if isinstance(op, cores.CopyOp) and op.queue in queues]
    groups = [_group_of(op) for op in copies]
    if len({group[0] for group in groups}) * len(queues) != len(copies):
        return
    group = groups[0]
    registers = [op for op in group if isinstance(op, cores.RegisterOp)]
    places = int(decode(registers[0].count))
    used = max(max(op.slots) for op in registers) // places + 1
    loops = list(_loops_around(group[0], first.push.parent_block()))
    counters = [loop.body.block.args[0] for loop in loops]
    if len(loops) == 2:
        yield _Section(group, counters[0], counters[1], places, used)
    if len(loops) < 2:
        yield _Section(group, None, counters[0] if counters else None, places, used)
    if len(loops) == 1:
        yield _Section(group, counters[0], None, places, used)


def _is_placewise(op: Operation) -> bool:
    return isinstance(op, (*_PLACEWISE, cores.PackOp, cores.RegistersOp, tile.ForOp, tile.YieldOp))


def _loops_around(op: Operation, block: Block | None) -> Iterator[tile.ForOp]:
    """The loops around an operation inside of a block, the outermost first."""
    parent = op.parent_op()
    if op.parent_block() is not block and isinstance(parent, tile.ForOp):
        yield from _loops_around(parent, block)
        yield parent


def _are_together(sums: Sequence[_Sum]) -> bool:
    """Whether sums are of one loop that adds up nothing else, and have the same pages."""
    first = sums[0]
    if any((each.loop, each.rows, each.columns) != (first.loop, first.rows, first.columns) for each in sums):
        return False
    if first.loop is None:
        return True
    accumulates = [op for op in first.loop.body.walk() if isinstance(op, cores.AccumulateOp) and op.symbols]
    added = {op.queue for each in accumulates for op in _group_of(each) if isinstance(op, cores.PackOp)}
    return not first.adds or added == {each.queue for each in sums}


def _is_place_by_place(finish: _Finish) -> bool:
    """Whether the section reads each page of the sums for the place that is the page's, and in a register of its own
    where products begin there."""
    rows, columns = finish.pages
    written: set[int] = set()
    for op in finish.section.group:
        found = finish.sum_of(op)
        if found is not None and isinstance(op, cores.CopyOp):
            is_fresh = found.adds or not {*op.slots} & written
            if op.broadcast.data != cores.NONE or op.transpose is not None or not is_fresh:
                return False
            others = _others(op, finish.section)
            place = AffineMap(3, len(others), (_by_place(op.at.data.results[0], op.symbols, finish),))
            pages = evaluate_map(place, (1, rows, columns), [0] * len(others))[0]
            if others or list(pages.reshape(-1)) != list(range(rows * columns)):
                return False
        if isinstance(op, cores.RegisterOp):
            written |= {*op.slots}
    return True


def _is_in_the_way(finish: _Finish) -> bool:
    """Whether what is between the products and the section has to do with the queues that they take from."""
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


def _others(op: Operation, section: _Section) -> list[SSAValue]:
    """The symbols of an operation of a section that are no counters of its loops."""
    symbols = [operand for operand in op.operands if isinstance(operand.type, IndexType)]
    return [each for each in symbols if each is not section.row and each is not section.part]


def _by_place(expression: AffineExpr, symbols: Sequence[SSAValue], finish: _Finish) -> AffineExpr:
    """An expression of an operation of a section by the row (d1) and the column (d2) of a place, and by the other
    symbols."""
    section = finish.section
    others = [each for each in symbols if each is not section.row and each is not section.part]

    def replaced(position: int) -> AffineExpr:
        symbol = symbols[position]
        if symbol is section.row:
            return _ROW
        return ZERO if symbol is section.part else AffineExpr.symbol(others.index(symbol))

    found = with_symbols(expression, replaced)
    if section.row is not None:
        return with_dims(found, lambda d: _COLUMN if d == 0 else _ROW)
    return _split_places(found, *finish.pages)


def _split_places(expression: AffineExpr, rows: int, columns: int) -> AffineExpr:
    """An expression of the number of a place (d0), counted row by row, by its row and its column."""
    if expression == _PLACE:
        return plus(times(_ROW, columns), _COLUMN)
    if not isinstance(expression, AffineBinaryOpExpr):
        return expression
    if isinstance(expression.rhs, AffineConstantExpr) and expression.lhs == _PLACE and expression.rhs.value == columns:
        if expression.kind == AffineBinaryOpKind.FloorDiv:
            return _ROW
        if expression.kind == AffineBinaryOpKind.Mod:
            return _COLUMN
    left, right = (_split_places(each, rows, columns) for each in (expression.lhs, expression.rhs))
    if expression.kind == AffineBinaryOpKind.Mod and left == _ROW and right == AffineExpr.constant(rows):
        return _ROW
    return combined(expression.kind, left, right)


@dataclass(frozen=True)
class _Spot:
    """Blocks of `height` x `width` pages: the first one's first page, and the counters of loops over blocks down and
    across, where there are several."""

    first: tuple[int, int]
    size: tuple[int, int]
    counters: tuple[SSAValue | None, SSAValue | None]

    @property
    def symbols(self) -> list[SSAValue]:
        return [counter for counter in self.counters if counter is not None]

    def begin(self, symbols: int) -> tuple[AffineExpr, AffineExpr]:
        """The first row and column of a block; counters are the symbols behind so many others."""
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
            plus(row, ZERO if height == 1 else divided(_PLACE, width)),
            plus(column, _PLACE if height == 1 else remainder(_PLACE, width)),
        )


def _over_blocks(
    pages: tuple[int, int], blocks: ProductBlocks, made: Callable[[_Spot], Sequence[Operation]]
) -> list[Operation]:
    """What is made of blocks, in loops where several are as large."""
    found: list[Operation] = []
    for first_row, height, high in runs(pages[0], blocks.rows):
        for first_column, width, wide in runs(pages[1], blocks.columns):
            regions = [cores.region_of(1) if count > 1 else None for count in (high, wide)]
            counters = [None if region is None else region.block.args[0] for region in regions]
            spot = _Spot((first_row, first_column), (height, width), (counters[0], counters[1]))
            ops = list(made(spot))
            for region, count in ((regions[1], wide), (regions[0], high)):
                if region is not None:
                    region.block.add_ops([*ops, tile.YieldOp.make([], {}, [])])
                    ops = [tile.ForOp.make([], {"trips": count}, [], [region])]
            found += ops
    return found


# ---- what becomes of it ---------------------------------------------------------------------------------------------


def _emit(finish: _Finish, grid: CoreGrid) -> None:
    """The last trip, block by block, in the place of the section."""
    first = finish.sums[0]
    start = first.section[0]
    block = start.parent_block()
    before, after = _last_trip(finish)
    writers = _writers(finish, grid)
    for queue in writers:
        for step in _steps_of(queue):
            _erase(step)
    made = _over_blocks(finish.pages, finish.blocks, lambda spot: _block(finish, spot, {*writers}))
    if block is not None:
        block.insert_ops_before([*before, *made, *after], start)
    for op in first.section:
        _erase(op)
    for queue, put in writers.items():
        _write_by_blocks(finish, queue, put)
    for each in finish.sums:
        if not each.adds:
            for use in list(each.queue.uses):
                _erase(use.operation)
            _erase(each.queue.owner)


def _erase(op: Operation | Block) -> None:
    if isinstance(op, Operation):
        op.detach()
        op.erase()


def _last_trip(finish: _Finish) -> tuple[list[Operation], list[Operation]]:
    """What is done in a trip before and after the products, for the last one, which the loop has no more."""
    first = finish.sums[0]
    roots = {root for each in finish.sums for root in each.roots}
    if first.loop is None:
        for root in roots:
            _erase(root)
        return [], []
    counter, trips = first.loop.body.block.args[0], int(first.loop.trips.value.data)
    before: list[Operation] = []
    after: list[Operation] = []
    for op in first.loop.body.block.ops:
        if op in roots or isinstance(op, cores.AccumulateOp | tile.YieldOp):
            continue
        copy = op.clone()
        for inner in copy.walk():
            _bind(inner, counter, trips - 1)
        (after if isinstance(op, cores.PopOp) else before).append(copy)
    if trips == 1:
        _erase(first.loop)
        return before, after
    first.loop.trips = IntegerAttr(trips - 1, IndexType())
    if trips == 2:
        for op in [op for op in first.loop.body.walk() if isinstance(op, cores.AccumulateOp)]:
            _erase(op)
    return before, after


def _bind(op: Operation, counter: SSAValue, number: int) -> None:
    """A counter that is a symbol of an operation becomes a number."""
    symbols = [operand for operand in op.operands if isinstance(operand.type, IndexType)]
    if counter not in symbols:
        return
    others = [each for each in symbols if each is not counter]

    def replaced(position: int) -> AffineExpr:
        symbol = symbols[position]
        return AffineExpr.constant(number) if symbol is counter else AffineExpr.symbol(others.index(symbol))

    for name, attribute in list(op.properties.items()):
        if isinstance(attribute, AffineMapAttr):
            map = attribute.data
            results = tuple(with_symbols(each, replaced) for each in map.results)
            op.properties[name] = AffineMapAttr(AffineMap(map.num_dims, len(others), results))
    op.operands = [operand for operand in op.operands if operand is not counter]


def _block(finish: _Finish, spot: _Spot, passed_on: set[SSAValue]) -> list[Operation]:
    """Multiply a block, and compute and pack what follows of it. `passed_on`: queues to which it goes by itself."""
    count = prod(spot.size)
    found: list[Operation] = []
    targets = {op.queue for op in finish.section.group if isinstance(op, cores.PackOp)}
    pages = {"pages": count}
    found += [cores.ReserveOp.make([queue], pages, []) for queue in targets & passed_on]
    for op in finish.section.group:
        sums = finish.sum_of(op)
        if sums is None:
            found.append(_moved(op, finish, spot, passed_on))
            continue
        if sums.adds:
            found.append(_moved(op, finish, spot, passed_on))
        found.append(_product(sums, spot, int(decode(op.properties["slot"])) // finish.section.places * count))
    found += [cores.PushOp.make([queue], pages, []) for queue in targets & passed_on]
    for op in found:
        op.location = finish.section.group[0].location
    return found


def _product(sums: _Sum, spot: _Spot, slot: int) -> cores.MatmulOp:
    matmul, (row, column) = sums.matmul, spot.begin(0)
    (height, width), (_, _, depth) = spot.size, matmul.block_shape
    stride = int(decode(matmul.left_stride))
    left, right = (_first_page(map) for map in (matmul.left_at, matmul.right_at))
    attributes: dict[str, Any] = {
        "slot": slot,
        "count": height * width,
        "block": (height, width, depth),
        "left_stride": stride,
        "right_stride": sums.columns,
        "left_at": _map(0, spot.symbols, plus(times(row, stride), left)),
        "right_at": _map(0, spot.symbols, plus(column, right)),
    }
    if matmul.transpose is not None:
        attributes["transpose"] = True
    return cores.MatmulOp.make([matmul.left, matmul.right, *spot.symbols], attributes, [])


def _map(dims: int, symbols: Sequence[SSAValue], *results: AffineExpr) -> AffineMapAttr:
    return AffineMapAttr(AffineMap(dims, len(symbols), results))


def _first_page(map: AffineMapAttr) -> int:
    """What a map gives for the first block."""
    return int(map.data.eval([], [0] * map.data.num_symbols)[0])


def _moved(op: Operation, finish: _Finish, spot: _Spot, passed_on: set[SSAValue]) -> Operation:
    """An operation of the section, for a block of places."""
    section, count = finish.section, prod(spot.size)
    copy = op.clone()
    others = _others(op, section)
    symbols = [operand for operand in op.operands if isinstance(operand.type, IndexType)]
    row, column = spot.place(len(others))
    for name, attribute in op.properties.items():
        if isinstance(attribute, AffineMapAttr):
            by_place = _by_place(attribute.data.results[0], symbols, finish)
            if isinstance(op, cores.PackOp) and op.queue in passed_on:
                placed = _PLACE
            else:
                placed = with_dims(by_place, lambda d: row if d == 1 else column)
            copy.properties[name] = _map(1, [*others, *spot.symbols], placed)
        elif name in ("slot", "source"):
            copy.properties[name] = IntegerAttr(int(decode(attribute)) // section.places * count, IndexType())
        elif name == "count":
            copy.properties[name] = IntegerAttr(count, IndexType())
        elif name == "arguments" and isinstance(attribute, DenseArrayBase):
            slots = [n if n < 0 else n // section.places * count for n in decode(attribute)]
            copy.properties[name] = DenseArrayBase.from_list(i64, slots)
    queues = [operand for operand in op.operands if not isinstance(operand.type, IndexType)]
    if any(isinstance(attribute, AffineMapAttr) for attribute in op.properties.values()):
        copy.operands = [*queues, *others, *spot.symbols]
    return copy


# ---- writers --------------------------------------------------------------------------------------------------------


def _writers(finish: _Finish, grid: CoreGrid) -> dict[SSAValue, cores.PutOp]:
    """Queues of results that a mover writes to arrays, and what does so, where a block is written sooner than the next
    one is multiplied."""
    found: dict[SSAValue, cores.PutOp] = {}
    (height, width), depth = (finish.blocks.rows, finish.blocks.columns), finish.sums[0].matmul.block_shape[2]
    multiplied = height * width * depth * grid.multiply_cycles * len(finish.sums)
    for op in finish.section.group:
        if not isinstance(op, cores.PackOp):
            continue
        page = cores.queue_type(op.queue).tile_format.page_bytes
        written = grid.latency_cycles(DRAM_WRITE) + grid.occupancy_cycles(DRAM_WRITE, page, height * width)
        put = _put_of(finish, op.queue)
        if put is not None and written <= multiplied and _page_dims(finish, put) is not None:
            found[op.queue] = put
    return found


def _put_of(finish: _Finish, queue: SSAValue) -> cores.PutOp | None:
    """What writes the pages of the section in a queue, and does nothing else between waiting for them and giving them
    back."""
    users = {use.operation for use in queue.uses}
    packs = {op for root in finish.sums[0].section for op in root.walk() if isinstance(op, cores.PackOp)}
    moved = users - packs - {*_steps_of(queue)}
    put = next((op for op in moved if isinstance(op, cores.PutOp)), None)
    if put is None or len(_steps_of(queue)) != 2:
        return None
    wait, barrier = put.prev_op, put.next_op
    pop = None if barrier is None else barrier.next_op
    is_alone = isinstance(wait, cores.WaitOp) and isinstance(barrier, cores.BarrierOp) and isinstance(pop, cores.PopOp)
    return put if is_alone and moved == {wait, put, pop} else None


def _steps_of(queue: SSAValue) -> list[Operation]:
    """What reserves a queue's pages, and passes them on."""
    return [use.operation for use in queue.uses if isinstance(use.operation, cores.ReserveOp | cores.PushOp)]


def _page_dims(finish: _Finish, put: cores.PutOp) -> tuple[int, int] | None:
    """The coordinates of a put along which the rows and the columns of pages are."""
    rows, columns = finish.pages
    extents = put.shape
    depends = any(isinstance(part, AffineSymExpr) for part in put.at.data.results[0].dfs())
    if prod(extents) != rows * columns or depends:
        return None
    ranks = range(len(extents))
    for row in ranks:
        for column in ranks:
            if row != column and (extents[row], extents[column]) == (rows, columns):
                pages = evaluate_map(put.at.data, extents, [0] * put.at.data.num_symbols)[0]
                return (row, column) if list(pages.reshape(-1)) == list(range(rows * columns)) and row < column else None
    return None


def _write_by_blocks(finish: _Finish, queue: SSAValue, put: cores.PutOp) -> None:
    """A mover waits for each block, and writes it."""
    block, wait, barrier = put.parent_block(), put.prev_op, put.next_op
    dims = _page_dims(finish, put)
    if block is None or wait is None or barrier is None or dims is None or barrier.next_op is None:
        return

    def made(spot: _Spot) -> list[Operation]:
        first = dict(zip(dims, spot.begin(len(put.symbols)), strict=True))
        size = dict(zip(dims, spot.size, strict=True))
        extents = [size.get(d, extent) for d, extent in enumerate(put.shape)]
        symbols = [*put.symbols, *spot.symbols]
        moved = tuple(
            with_dims(each, lambda d: plus(AffineExpr.dimension(d), first[d]) if d in first else AffineExpr.dimension(d))
            for each in put.map.data.results
        )
        at = plus(times(AffineExpr.dimension(dims[0]), spot.size[1]), AffineExpr.dimension(dims[1]))
        maps = {"map": _map(put.map.data.num_dims, symbols, *moved), "at": _map(put.map.data.num_dims, symbols, at)}
        pages = {"pages": prod(spot.size)}
        ops: list[Operation] = [
            cores.WaitOp.make([queue], pages, []),
            cores.PutOp.make([put.array, queue, *symbols], {"extents": tuple(extents), **maps}, []),
            cores.BarrierOp.make([], {"of": cores.WRITE}, []),
            cores.PopOp.make([queue], pages, []),
        ]
        for op in ops:
            op.location = put.location
        return ops

    block.insert_ops_before(_over_blocks(finish.pages, finish.blocks, made), wait)
    for op in (wait, put, barrier, barrier.next_op):
        _erase(op)
