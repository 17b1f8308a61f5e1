"""Compute the epilogue of a matmul in tile registers during its last trips, and write the result block by block.

Sums of a matmul are accumulated in pages, trip by trip. The epilogue reads them back after the last trip, and the
writer starts later still. This pass lets the last trips read the partial sums, add their own matmuls in the registers,
compute the epilogue there, and push each block when it is complete. If trips are short, so that the first one begins
early, the trips between the first and the last ones are done several at a time, for which queues have room.

Before (wormhole):
    func.func @main(%0: tensor<32x64xbf16>, %1: tensor<64x64xbf16>) -> tensor<32x64xbf16> {
      %2 = array.call(%0, %1) {callee = "product"} : tensor<32x64xbf16>
      func.return %2 : tensor<32x64xbf16>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<32x64xbf16>>, %1: !tile.ref<tensor<64x64xbf16>>, %2: !tile.ref<tensor<32x64xbf16>>):
      cores.program() {cores = array<i64: 1, 1>, wide = true} do {
      ^bb0(%3: index, %4: index):
        %sum = cores.queue() : !cores.queue<"f32", 2>
        %5 = cores.queue() : !cores.queue<"bf16", 2>
        %6 = cores.queue() : !cores.queue<"bf16", 4>
        %7 = cores.queue() : !cores.queue<"bf16", 2>
        cores.thread() {role = "reader", noc = 0 : index} do {
          tile.for() {trips = 2 : index} do {
          ^bb0(%8: index):
            cores.reserve(%5) {pages = 1 : index}
            cores.fetch(%0, %5, %8) {extents = array<i64: 1, 1>, map = affine_map<(d0, d1)[s0] -> (d0, (s0 + d1))>,
              at = affine_map<(d0, d1)[s0] -> ((d0 + d1))>}
            cores.barrier() {of = "read"}
            cores.push(%5) {pages = 1 : index}
            cores.reserve(%6) {pages = 2 : index}
            cores.fetch(%1, %6, %8) {extents = array<i64: 1, 2>, map = affine_map<(d0, d1)[s0] -> ((s0 + d0), d1)>,
              at = affine_map<(d0, d1)[s0] -> (((d0 * 2) + d1))>}
            cores.barrier() {of = "read"}
            cores.push(%6) {pages = 2 : index}
            tile.yield()
          }
          cores.end()
        }
        cores.thread() {role = "writer", noc = 1 : index} do {
          cores.wait(%7) {pages = 2 : index}
          cores.put(%2, %7) {extents = array<i64: 1, 2>, map = affine_map<(d0, d1) -> (d0, d1)>,
            at = affine_map<(d0, d1) -> (((d0 * 2) + d1))>}
          cores.barrier() {of = "write"}
          cores.pop(%7) {pages = 2 : index}
          cores.end()
        }
        cores.thread() {role = "compute"} do {
          cores.reserve(%sum) {pages = 2 : index}
          tile.for() {trips = 2 : index} do {
          ^bb0(%9: index):
            cores.wait(%5) {pages = 1 : index}
            cores.wait(%6) {pages = 2 : index}
            cores.registers() {step = "acquire"}
            cores.matmul(%5, %6) {slot = 0 : index, count = 2 : index, block = array<i64: 1, 2, 1>,
              left_stride = 1 : index, right_stride = 2 : index, left_at = affine_map<() -> (0)>,
                right_at = affine_map<() -> (0)>}
            cores.registers() {step = "commit"}
            cores.registers() {step = "wait"}
            cores.accumulate(%9) {map = affine_map<()[s0] -> (s0)>}
            cores.pack(%sum) {slot = 0 : index, count = 2 : index,
              at = affine_map<(d0) -> ((((d0 floordiv 2) * 2) + (d0 mod 2)))>}
            cores.registers() {step = "release"}
            cores.accumulate() {map = affine_map<() -> (0)>}
            cores.pop(%5) {pages = 1 : index}
            cores.pop(%6) {pages = 2 : index}
            tile.yield()
          }
          cores.push(%sum) {pages = 2 : index}
          cores.wait(%sum) {pages = 2 : index}
          cores.reserve(%7) {pages = 2 : index}
          cores.registers() {step = "acquire"}
          cores.copy(%sum) {slot = 0 : index, count = 2 : index, broadcast = "none", at = affine_map<(d0) -> (d0)>}
          cores.registers() {step = "commit"}
          cores.registers() {step = "wait"}
          cores.pack(%7) {slot = 0 : index, count = 2 : index, at = affine_map<(d0) -> (d0)>}
          cores.registers() {step = "release"}
          cores.push(%7) {pages = 2 : index}
          cores.pop(%sum) {pages = 2 : index}
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
After:
    func.func @main(%0: tensor<32x64xbf16>, %1: tensor<64x64xbf16>) -> tensor<32x64xbf16> {
      %2 = array.call(%0, %1) {callee = "product"} : tensor<32x64xbf16>
      func.return %2 : tensor<32x64xbf16>
    }
    tile.kernel() {sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<32x64xbf16>>, %1: !tile.ref<tensor<64x64xbf16>>, %2: !tile.ref<tensor<32x64xbf16>>):
      cores.program() {cores = array<i64: 1, 1>, wide = true} do {
      ^bb0(%3: index, %4: index):
        %sum = cores.queue() : !cores.queue<"f32", 2>
        %5 = cores.queue() : !cores.queue<"bf16", 2>
        %6 = cores.queue() : !cores.queue<"bf16", 4>
        %7 = cores.queue() : !cores.queue<"bf16", 2>
        cores.thread() {role = "reader", noc = 0 : index} do {
          tile.for() {trips = 2 : index} do {
          ^bb0(%8: index):
            cores.reserve(%5) {pages = 1 : index}
            cores.fetch(%0, %5, %8) {extents = array<i64: 1, 1>, map = affine_map<(d0, d1)[s0] -> (d0, (s0 + d1))>,
              at = affine_map<(d0, d1)[s0] -> ((d0 + d1))>}
            cores.barrier() {of = "read"}
            cores.push(%5) {pages = 1 : index}
            cores.reserve(%6) {pages = 2 : index}
            cores.fetch(%1, %6, %8) {extents = array<i64: 1, 2>, map = affine_map<(d0, d1)[s0] -> ((s0 + d0), d1)>,
              at = affine_map<(d0, d1)[s0] -> (((d0 * 2) + d1))>}
            cores.barrier() {of = "read"}
            cores.push(%6) {pages = 2 : index}
            tile.yield()
          }
          cores.end()
        }
        cores.thread() {role = "writer", noc = 1 : index} do {
          cores.wait(%7) {pages = 2 : index}
          cores.put(%2, %7) {extents = array<i64: 1, 2>, map = affine_map<(d0, d1) -> (d0, d1)>,
            at = affine_map<(d0, d1) -> (((d0 * 2) + d1))>}
          cores.barrier() {of = "write"}
          cores.pop(%7) {pages = 2 : index}
          cores.end()
        }
        cores.thread() {role = "compute"} do {
          cores.reserve(%sum) {pages = 2 : index}
          cores.wait(%5) {pages = 1 : index}
          cores.wait(%6) {pages = 2 : index}
          cores.registers() {step = "acquire"}
          cores.matmul(%5, %6) {slot = 0 : index, count = 2 : index, block = array<i64: 1, 2, 1>,
            left_stride = 1 : index, right_stride = 2 : index, left_at = affine_map<() -> (0)>,
              right_at = affine_map<() -> (0)>}
          cores.registers() {step = "commit"}
          cores.registers() {step = "wait"}
          cores.pack(%sum) {slot = 0 : index, count = 2 : index,
            at = affine_map<(d0) -> ((((d0 floordiv 2) * 2) + (d0 mod 2)))>}
          cores.registers() {step = "release"}
          cores.pop(%5) {pages = 1 : index}
          cores.pop(%6) {pages = 2 : index}
          cores.wait(%5) {pages = 1 : index}
          cores.wait(%6) {pages = 2 : index}
          cores.push(%sum) {pages = 2 : index}
          cores.wait(%sum) {pages = 2 : index}
          cores.reserve(%7) {pages = 2 : index}
          cores.registers() {step = "acquire"}
          cores.copy(%sum) {slot = 0 : index, count = 2 : index, broadcast = "none", at = affine_map<(d0) -> (d0)>}
          cores.matmul(%5, %6) {slot = 0 : index, count = 2 : index, block = array<i64: 1, 2, 1>,
            left_stride = 1 : index, right_stride = 2 : index, left_at = affine_map<() -> (0)>,
              right_at = affine_map<() -> (0)>}
          cores.registers() {step = "commit"}
          cores.registers() {step = "wait"}
          cores.pack(%7) {slot = 0 : index, count = 2 : index, at = affine_map<(d0) -> (d0)>}
          cores.registers() {step = "release"}
          cores.pop(%5) {pages = 1 : index}
          cores.pop(%6) {pages = 2 : index}
          cores.push(%7) {pages = 2 : index}
          cores.pop(%sum) {pages = 2 : index}
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import msgspec
from xdsl.dialects.builtin import AffineMapAttr, IndexType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.ir.affine.affine_expr import AffineSymExpr
from xdsl.rewriter import Rewriter

from tilewright.cost.cores.tiles import ProductTrips, product_trips
from tilewright.dialects import cores, tile
from tilewright.dialects.base import plain_attributes, rewrite_maps
from tilewright.dialects.fields import decode, encode
from tilewright.dialects.rewriting import block_of, erase, insert_after
from tilewright.machines.core_grid import DRAM_WRITE, CoreGrid
from tilewright.passes.base import Remark, Unit
from tilewright.passes.cores.affine_expressions import plus, times, with_dims, with_symbols
from tilewright.passes.cores.memory import bytes_of
from tilewright.passes.cores.product_loops import PLACE, Finish, Spot, Sum, by_place, finish_of, others_of, over_blocks
from tilewright.semantics.tile import evaluate_map

# Of a core's memory, what queues may take for more trips: arrays between kernels are there, too.
_QUEUES_SHARE = 0.6


class ScheduledFinishProductsPass(msgspec.Struct, frozen=True):
    """`may_deepen`: queues of operands may become longer."""

    may_deepen: bool = True
    name: ClassVar[str] = "scheduled-finish-products"

    def apply(self, unit: Unit) -> None:
        grid = unit.machine.core_grid
        for kernel in unit.timed_kernels(self.name):
            for program in list(kernel.walk()):
                if isinstance(program, cores.ProgramOp):
                    self._apply_to(unit, kernel.sym_name, program, grid)

    def _apply_to(self, unit: Unit, name: str, program: cores.ProgramOp, grid: CoreGrid) -> None:
        done: set[SSAValue] = set()
        for queue in [op.result for op in program.queues]:
            found = None if queue in done else finish_of(queue, grid.half_registers(program.wide))
            if found is None:
                continue
            done |= {each.queue for each in found.sums}
            trips = _trips(found, program, grid) if self.may_deepen else None
            if trips is None:
                trips = ProductTrips(1, 1, 0)
            else:
                _deepen(found, trips)
            _emit(found, trips, grid)
            size = f"{found.blocks.rows} x {found.blocks.columns} pages"
            decision = f"the epilogue of a matmul is computed in registers, in blocks of {size}"
            if trips.ring:
                decision += f", in the last {trips.last} trips; queues have room for {trips.ring}"
            unit.remarks.append(
                Remark(self.name, name, decision, "each block is written while the next one is multiplied")
            )


def _trips(finish: Finish, program: cores.ProgramOp, grid: CoreGrid) -> ProductTrips | None:
    """How trips are done together; None where they do more than multiply, or are done more than once, so that pages of
    trips that are done together would not always be side by side."""
    first = finish.sums[0]
    loop = first.loop
    if loop is None or not first.adds or not isinstance(loop.parent_op(), cores.ThreadOp):
        return None
    roots = {root for each in finish.sums for root in each.roots}
    others = [op for op in loop.body.block.ops if op not in roots]
    kinds = cores.WaitOp | cores.PopOp | cores.AccumulateOp | tile.YieldOp | tile.ZoneOp
    if not all(isinstance(op, kinds) for op in others):
        return None
    waits = [op for op in others if isinstance(op, cores.WaitOp)]
    if any(_is_used_beside(op.queue, loop) for op in waits):
        return None
    page_bytes = {op: cores.queue_type(op.queue).tile_format.page_bytes for op in waits}
    trip_bytes = sum(op.count * page_bytes[op] for op in waits)
    taken = sum(bytes_of(queue) for queue in program.queues)
    taken -= sum(cores.queue_type(op.queue).bytes for op in waits)
    room = int((_QUEUES_SHARE * grid.memory_bytes - taken) // max(1, trip_bytes))
    written = sum(
        cores.queue_type(op.queue).tile_format.page_bytes for op in finish.section.group if isinstance(op, cores.PackOp)
    )
    rows, columns = finish.pages
    tile_pages = rows, columns, first.matmul.block_shape[2] * len(finish.sums)
    return product_trips(loop.trips, tile_pages, prod(program.shape), written, room, grid)


def _is_used_beside(queue: SSAValue, loop: tile.ForOp) -> bool:
    """Whether the thread that computes uses a queue next to a loop."""
    users = [use.operation for use in queue.uses if cores.thread_of(use.operation).computes]
    inside = {op for op in loop.body.walk()}
    return any(user not in inside for user in users)


def _deepen(finish: Finish, trips: ProductTrips) -> None:
    """Queues of operands have room for as many trips as are declared."""
    loop = finish.sums[0].loop
    for op in [] if loop is None else list(loop.body.block.ops):
        if isinstance(op, cores.WaitOp):
            type = cores.queue_type(op.queue)
            Rewriter.replace_value_with_new_type(op.queue, type.resized(op.count * trips.ring))


# ---- what becomes of it ---------------------------------------------------------------------------------------------


def _emit(finish: Finish, trips: ProductTrips, grid: CoreGrid) -> None:
    """The last trips, block by block, in place of the section; those before them in the loop."""
    first = finish.sums[0]
    start = first.section[0]
    block = block_of(start)
    before, after = _last_trips(finish, trips)
    writers = _writers(finish, trips, grid)
    for queue in writers:
        for step in _steps_of(queue):
            _erase(step)
    made = over_blocks(finish.pages, finish.blocks, lambda spot: _block(finish, trips, spot, [*writers]))
    zones = [op for op in before if isinstance(op, tile.ZoneOp)]
    block.insert_ops_before([*zones, *made, *after], start)
    if first.loop is not None:
        # Where the loop ended, before what waits for later pages of the reader: it may wait for what a trip computes.
        block.insert_ops_after([op for op in before if op not in zones], first.loop)
    _take_out(finish, trips)
    for queue, put in writers.items():
        _write_by_blocks(finish, queue, put)
    for each in finish.sums:
        if not each.adds:
            for use in list(each.queue.uses):
                _erase(use.operation)
            _erase(each.queue.owner)


def _erase(op: Operation | Block) -> None:
    if isinstance(op, Operation):
        erase(op)


def _take_out(finish: Finish, trips: ProductTrips) -> None:
    """Remove the operations that now run block by block."""
    first = finish.sums[0]
    if first.loop is not None:
        _shorten(first, first.loop.trips - trips.last, trips)
    else:
        for root in dict.fromkeys(root for each in finish.sums for root in each.roots):
            _erase(root)
    for op in first.section:
        _erase(op)


def _last_trips(finish: Finish, trips: ProductTrips) -> tuple[list[Operation], list[Operation]]:
    """Operations before and after the matmuls of the last trips."""
    loop = finish.sums[0].loop
    if loop is None:
        return [], []
    roots = {root for each in finish.sums for root in each.roots}
    left = loop.trips - trips.last
    before: list[Operation] = []
    after: list[Operation] = []
    for op in loop.body.block.ops:
        if op not in roots and not isinstance(op, cores.AccumulateOp | tile.YieldOp):
            is_ending = isinstance(op, cores.PopOp) or (isinstance(op, tile.ZoneOp) and not op.begins)
            (after if is_ending else before).append(_in_trip(op, loop, left, trips.last))
    return before, after


def _in_trip(op: Operation, loop: tile.ForOp, number: int, count: int) -> Operation:
    """An operation of a loop in one trip, for so many trips."""
    copy = op.clone()
    for inner in copy.walk():
        _bind(inner, loop.body.block.args[0], number)
        if isinstance(inner, cores.QueueStepOp) and count > 1:
            inner.pages = inner.count * count
    return copy


def _shorten(first: Sum, left: int, trips: ProductTrips) -> None:
    """The loop has fewer trips, of which those after the first ones are done several at a time."""
    loop = first.loop
    if loop is None:
        return
    groups = max(0, left // trips.together - 1) if trips.together > 1 else 0
    singles = left - groups * trips.together
    after: list[Operation] = [_together(first, loop, groups, trips.together)] if groups else []
    inline: list[Operation] = []
    if singles == 1:
        kept = [op for op in loop.body.block.ops if not isinstance(op, cores.AccumulateOp | tile.YieldOp)]
        inline = [_in_trip(op, loop, 0, 1) for op in kept]
        for op in inline:
            for inner in [each for each in op.walk() if isinstance(each, cores.AccumulateOp)]:
                _erase(inner)
    insert_after(loop, *inline, *after)
    if singles < 2:
        _erase(loop)
    else:
        loop.trips = singles


def _together(first: Sum, loop: tile.ForOp, groups: int, count: int) -> tile.ForOp:
    """A loop that does so many trips at a time, and adds to what there is."""
    made = loop.clone()
    made.trips = groups
    for op in list(made.body.walk()):
        if isinstance(op, cores.QueueStepOp):
            op.pages = op.count * count
        elif isinstance(op, cores.AccumulateOp) and op.symbols:
            op.map = _map(0, [], AffineExpr.constant(1))
            op.operands = []
        elif isinstance(op, cores.MatmulOp) and (block := op.parent_block()) is not None:
            block.insert_ops_after([_later(first, op, trip) for trip in range(1, count)], op)
    return made


def _later(first: Sum, matmul: cores.MatmulOp, trip: int) -> cores.MatmulOp:
    """A matmul of pages that come so many trips later."""
    later = matmul.clone()
    later.left_at = _pages_later(matmul.left_at, trip * _pages_of_trip(first, matmul.left))
    later.right_at = _pages_later(matmul.right_at, trip * _pages_of_trip(first, matmul.right))
    return later


def _pages_later(at: AffineMap, count: int) -> AffineMap:
    return AffineMap(0, at.num_symbols, (plus(at.results[0], count),))


def _bind(op: Operation, counter: SSAValue, number: int) -> None:
    """A counter that is a symbol of an operation becomes a number."""
    symbols = [operand for operand in op.operands if isinstance(operand.type, IndexType)]
    if counter not in symbols:
        return
    others = [each for each in symbols if each is not counter]

    def replaced(position: int) -> AffineExpr:
        symbol = symbols[position]
        return AffineExpr.constant(number) if symbol is counter else AffineExpr.symbol(others.index(symbol))

    def fixed(_: str, map: AffineMap) -> AffineMap:
        return AffineMap(map.num_dims, len(others), tuple(with_symbols(each, replaced) for each in map.results))

    rewrite_maps(op, fixed)
    op.operands = [operand for operand in op.operands if operand is not counter]


def _block(finish: Finish, trips: ProductTrips, spot: Spot, passed_on: Sequence[SSAValue]) -> list[Operation]:
    """Multiply a block, and compute and pack what follows of it. `passed_on`: queues to which it goes by itself."""
    count = prod(spot.size)
    found: list[Operation] = []
    found += [cores.ReserveOp(queue=queue, pages=count) for queue in passed_on]
    for op in finish.section.group:
        sums = finish.sum_of(op)
        if sums is None:
            found.append(_moved(op, finish, spot, passed_on))
            continue
        if sums.adds:
            found.append(_moved(op, finish, spot, passed_on))
        slot = int(decode(op.properties["slot"])) // finish.section.places * count
        found += [_product(sums, spot, slot, trip) for trip in range(trips.last)]
    found += [cores.PushOp(queue=queue, pages=count) for queue in passed_on]
    for op in found:
        op.location = finish.section.group[0].location
    return found


def _product(sums: Sum, spot: Spot, slot: int, trip: int) -> cores.MatmulOp:
    """The matmuls of a block, of pages that come so many trips later than the first ones."""
    matmul, (row, column) = sums.matmul, spot.begin(0)
    (height, width), (_, _, depth) = spot.size, matmul.block_shape
    stride = matmul.left_stride
    left = _first_page(matmul.left_at) + trip * _pages_of_trip(sums, matmul.left)
    right = _first_page(matmul.right_at) + trip * _pages_of_trip(sums, matmul.right)
    return cores.MatmulOp(
        left=matmul.left,
        right=matmul.right,
        symbols=spot.symbols,
        slot=slot,
        count=height * width,
        block=(height, width, depth),
        left_stride=stride,
        right_stride=sums.columns,
        left_at=_map(0, spot.symbols, plus(times(row, stride), left)),
        right_at=_map(0, spot.symbols, plus(column, right)),
        transpose=matmul.transpose,
    )


def _map(dims: int, symbols: Sequence[SSAValue], *results: AffineExpr) -> AffineMap:
    return AffineMap(dims, len(symbols), results)


def _first_page(map: AffineMap) -> int:
    """The value of a map for the first block."""
    return int(map.eval([], [0] * map.num_symbols)[0])


def _pages_of_trip(sums: Sum, queue: SSAValue) -> int:
    """How many pages of a queue a trip takes."""
    if sums.loop is None:
        return 0
    return next((op.count for op in sums.loop.body.block.ops if isinstance(op, cores.WaitOp) and op.queue is queue), 0)


def _moved(op: Operation, finish: Finish, spot: Spot, passed_on: Sequence[SSAValue]) -> Operation:
    """An operation of the section, for a block of positions."""
    section, count = finish.section, prod(spot.size)
    copy = op.clone()
    others = others_of(op, section)
    symbols = [operand for operand in op.operands if isinstance(operand.type, IndexType)]
    row, column = spot.place(len(others))

    def placed(_: str, map: AffineMap) -> AffineMap:
        if isinstance(op, cores.PackOp) and op.queue in passed_on:
            return _map(1, [*others, *spot.symbols], PLACE)
        expression = by_place(map.results[0], symbols, finish)
        return _map(1, [*others, *spot.symbols], with_dims(expression, lambda d: row if d == 1 else column))

    rewrite_maps(copy, placed)
    for name, value in plain_attributes(op).items():
        if name in ("slot", "source"):
            copy.properties[name] = encode(int(value) // section.places * count)
        elif name == "count":
            copy.properties[name] = encode(count)
        elif name == "arguments":
            copy.properties[name] = encode(tuple(n if n < 0 else n // section.places * count for n in value))
    queues = [operand for operand in op.operands if not isinstance(operand.type, IndexType)]
    if any(isinstance(attribute, AffineMapAttr) for attribute in op.properties.values()):
        copy.operands = [*queues, *others, *spot.symbols]
    return copy


# ---- writers --------------------------------------------------------------------------------------------------------


def _writers(finish: Finish, trips: ProductTrips, grid: CoreGrid) -> dict[SSAValue, cores.PutOp]:
    """Queues of results that a mover writes to arrays, and what does so, where a block is written sooner than the next
    one is multiplied."""
    found: dict[SSAValue, cores.PutOp] = {}
    (height, width), depth = (finish.blocks.rows, finish.blocks.columns), finish.sums[0].matmul.block_shape[2]
    multiplied = height * width * depth * trips.last * grid.multiply_cycles * len(finish.sums)
    for op in finish.section.group:
        if not isinstance(op, cores.PackOp):
            continue
        page = cores.queue_type(op.queue).tile_format.page_bytes
        written = grid.latency_cycles(DRAM_WRITE) + grid.occupancy_cycles(DRAM_WRITE, page, height * width)
        put = _put_of(finish, op.queue)
        if put is not None and written <= multiplied and _page_dims(finish, put) is not None:
            found[op.queue] = put
    return found


def _put_of(finish: Finish, queue: SSAValue) -> cores.PutOp | None:
    """The write of a section's pages in a queue, if its thread only waits for them, writes them and pops them."""
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
    """The operations that reserve and push a queue's pages."""
    return [use.operation for use in queue.uses if isinstance(use.operation, cores.ReserveOp | cores.PushOp)]


def _page_dims(finish: Finish, put: cores.PutOp) -> tuple[int, int] | None:
    """The coordinates of a put along which the rows and the columns of pages are."""
    rows, columns = finish.pages
    extents = put.shape
    depends = any(isinstance(part, AffineSymExpr) for part in put.at.results[0].dfs())
    if prod(extents) != rows * columns or depends:
        return None
    ranks = range(len(extents))
    for row in ranks:
        for column in ranks:
            if row != column and (extents[row], extents[column]) == (rows, columns):
                pages = evaluate_map(put.at, extents, [0] * put.at.num_symbols)[0]
                return (
                    (row, column) if list(pages.reshape(-1)) == list(range(rows * columns)) and row < column else None
                )
    return None


def _write_by_blocks(finish: Finish, queue: SSAValue, put: cores.PutOp) -> None:
    """A mover waits for each block, and writes it. The queue then holds blocks, of several shapes."""
    block, wait, barrier = put.parent_block(), put.prev_op, put.next_op
    dims = _page_dims(finish, put)
    if block is None or wait is None or barrier is None or dims is None or barrier.next_op is None:
        return

    def made(spot: Spot) -> list[Operation]:
        first = dict(zip(dims, spot.begin(len(put.symbols)), strict=True))
        size = dict(zip(dims, spot.size, strict=True))
        extents = [size.get(d, extent) for d, extent in enumerate(put.shape)]
        symbols = [*put.symbols, *spot.symbols]
        moved = tuple(
            with_dims(
                each, lambda d: plus(AffineExpr.dimension(d), first[d]) if d in first else AffineExpr.dimension(d)
            )
            for each in put.map.results
        )
        at = plus(times(AffineExpr.dimension(dims[0]), spot.size[1]), AffineExpr.dimension(dims[1]))
        stored = cores.PutOp(
            array=put.array,
            queue=queue,
            symbols=symbols,
            extents=tuple(extents),
            map=_map(put.map.num_dims, symbols, *moved),
            at=_map(put.map.num_dims, symbols, at),
        )
        ops: list[Operation] = [
            cores.WaitOp(queue=queue, pages=prod(spot.size)),
            stored,
            cores.BarrierOp(of=cores.WRITE),
            cores.PopOp(queue=queue, pages=prod(spot.size)),
        ]
        for op in ops:
            op.location = put.location
        return ops

    block.insert_ops_before(over_blocks(finish.pages, finish.blocks, made), wait)
    for op in (wait, put, barrier, barrier.next_op):
        _erase(op)
    Rewriter.replace_value_with_new_type(queue, cores.queue_type(queue).without_layout)
