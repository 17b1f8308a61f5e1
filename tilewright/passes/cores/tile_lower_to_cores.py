"""Lower kernels to core programs: reader, compute and writer threads, and the queues between them.

Points of the grid are dealt to cores. A window of an array that is made of whole pages is fetched, any other is
gathered element by element; what is computed from pages place by place is one section of the tile registers, as large
as they have room for; what matmuls, reductions and stores take is in queues. A sum of matmuls over a loop is added up
in the core's memory by the packer.

Before (wormhole):
    func.func @main(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64: 2>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>, %i: index):
      %a = tile.load(%x, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 32, d1)>} : tensor<32x32xf32>
      tile.store(%a, %out, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 32, d1)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%0: !tile.ref<tensor<64x32xf32>>, %1: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 2>, wide = true} do {
      ^bb0(%2: index, %3: index):
        %4 = cores.queue() : !cores.queue<"f32", 1, "(32, 32) : [2@mem*512 16@mem*16 | 2@mem*256 16@mem]">
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%4) {pages = 1 : index}
          cores.fetch(%0, %4, %2, %3) {extents = array<i64: 1, 1>,
            map = affine_map<(d0, d1)[s0, s1] -> ((((s0 * 2) + s1) + d0), d1)>,
              at = affine_map<(d0, d1)[s0, s1] -> ((d0 + d1))>}
          cores.barrier() {of = "read"}
          cores.push(%4) {pages = 1 : index}
          cores.end()
        }
        cores.thread() {role = "writer", noc = 1 : index} do {
          cores.wait(%4) {pages = 1 : index}
          cores.put(%1, %4, %2, %3) {extents = array<i64: 1, 1>,
            map = affine_map<(d0, d1)[s0, s1] -> ((((s0 * 2) + s1) + d0), d1)>,
              at = affine_map<(d0, d1)[s0, s1] -> ((d0 + d1))>}
          cores.barrier() {of = "write"}
          cores.pop(%4) {pages = 1 : index}
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
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright import dtypes, ops
from tilewright.dialects import cores, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import block_of, erase, insert_before
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.layout.catalogue.paging import Paging
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.base import Remark, Unit
from tilewright.passes.cores.affine_expressions import ZERO, plus, times, with_symbols
from tilewright.passes.cores.conditions import is_of_places, taken_where
from tilewright.passes.cores.core_space import CoreSpace
from tilewright.passes.cores.marks import drop_empty_zones, place_mark
from tilewright.passes.cores.page_windows import Window, window_of
from tilewright.passes.cores.partials import Shared, emit_gather, shared_of, stacked
from tilewright.passes.cores.points import deal_points
from tilewright.passes.cores.products import Product, emit_product
from tilewright.passes.cores.queued_tiles import QueuedTiles
from tilewright.passes.cores.reductions import Reduction, emit_lines, emit_reduction, lines_left
from tilewright.passes.cores.rows import emit_untilize
from tilewright.passes.cores.sections import Held, number_of_carrier
from tilewright.passes.cores.threads import Threads
from tilewright.passes.cores.tile_facts import (
    PLACEWISE,
    RELABELS,
    check_types,
    drop_loops_of_no_trip,
    is_unit_reshape,
    is_wide,
    is_zero,
    narrower,
    reduced_paging,
    refuse,
    shared_tiles,
    storage_format,
    stored_format,
    sums_of,
)
from tilewright.passes.cores.unread import unread_dims
from tilewright.passes.dead_code import drop_unused

# What reduces bools, which are 0 or 1.

_BOOL_REDUCTIONS = {"bitwise_or": "maximum", "bitwise_and": "minimum"}


class TileLowerToCoresPass(msgspec.Struct, frozen=True):
    """`buffers`: how many tiles a queue between a mover and what computes has room for, where a loop fills it.
    `movers`: whether one thread reads and another one writes, or one does both."""

    name: ClassVar[str] = "tile-lower-to-cores"
    buffers: int = 2
    movers: int = 2

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            lowered = _Lowering(unit, kernel, unit.machine.core_grid, self).lower()
            insert_before(kernel, lowered)
            erase(kernel)


class _Lowering:
    """One kernel. `sums`: matmuls that are added up over a loop, the queues of their sums, and the counters of loops of
    more than one trip."""

    def __init__(self, unit: Unit, kernel: tile.KernelOp, grid: CoreGrid, options: TileLowerToCoresPass) -> None:
        self.unit, self.kernel, self.grid = unit, kernel, grid
        self.buffers, self.movers = options.buffers, options.movers
        self.sums: dict[tile.DotOp, tuple[SSAValue, AffineExpr | None]] = {}

    def lower(self) -> tile.KernelOp:
        """The scheduled form of the kernel.

        Raises:
            UnsupportedOnTargetError: an operation or a type that cores cannot do.
        """
        kernel, grid = self.kernel, self.grid
        drop_loops_of_no_trip(kernel)
        drop_unused(kernel)
        CoreSpace(grid).settle_indices(kernel)
        check_types(kernel)
        if any(tile.ref_type(ref).dtype == dtypes.i64 for ref in kernel.refs):
            self._remark("arrays of i64 are computed in 32 bits", "numbers from the host are checked to fit")
        result = tile.kernel(kernel.sym_name, (), [tile.ref_type(r) for r in kernel.refs], kernel.effects)
        if 0 in kernel.grid:
            result.body.block.add_op(tile.YieldOp())
            return result
        wide = is_wide(kernel)
        self.shared = shared_of(kernel, grid)
        dealt = deal_points(kernel, grid, None if self.shared is None else self.shared.split)
        self.threads = Threads(dealt.cores, self.movers)
        self.registers = grid.half_registers(wide)
        self.written = {op.destination for op in kernel.walk() if isinstance(op, tile.StoreOp)}
        refs = dict(zip(kernel.refs, result.refs, strict=True))
        shared = shared_tiles(kernel)
        self.tiles = QueuedTiles(
            self.threads, refs, self.written, shared, unread_dims(kernel), self.registers, self.buffers
        )
        for loop in dealt.loops:
            loop.counter = self.threads.open_loop(loop.trips, loop.end)
        self.tiles.index.update(zip(kernel.indices, dealt.indices(), strict=True))
        self.tiles.scopes[kernel.body.block] = self.threads.scopes[-1]
        self.lower_block(kernel.body.block)
        while len(self.threads.scopes) > 1:
            self.threads.close()
        program = self.threads.finish({cores.READER: 0, cores.WRITER: 1})
        drop_empty_zones(program)
        if wide:
            program.wide = True
        result.body.block.add_op(program)
        result.body.block.add_op(tile.YieldOp())
        return result

    def _remark(self, decision: str, reason: str) -> None:
        remark = Remark(TileLowerToCoresPass.name, self.kernel.sym_name, decision, reason)
        if remark not in self.unit.remarks:
            self.unit.remarks.append(remark)

    def lower_block(self, block: Block) -> None:
        for op in block.ops:
            self.threads.location = op.location
            match op:
                case tile.YieldOp():
                    return
                case tile.StoreOp():
                    self._store(op)
                case tile.ReduceOp():
                    self._reduce(op)
                case tile.DotOp():
                    self._dot(op)
                case tile.ForOp():
                    self._for(op)
                case tile.LoadOp() if op.source in self.written:
                    paging = self.tiles.natural(op.result)
                    held = self.tiles.loaded(op, paging, None, cores.COMPUTE, self.tiles.window(op))
                    self.tiles.add(op.result, self.tiles.waited(held, cores.COMPUTE))
                case tile.ZoneOp() | tile.PrintOp():
                    place_mark(self.tiles, op)
                case tile.LoadOp() | tile.IotaOp() | tile.AssertOp():
                    pass  # what is loaded is loaded when it is asked for
                case tile.IfOp():
                    self._if(op)
                case tile.ScanOp() | tile.SortOp() if len(op.operands) == len(op.results):
                    self._in_lines(op)
                case tile.SliceOp() | tile.ConcatOp() | tile.ReshapeOp():
                    pass  # moved when it is asked for
                case _ if isinstance(op, (*PLACEWISE, *RELABELS)) or is_unit_reshape(op):
                    pass
                case _:
                    name = op.name.removeprefix("tile.")
                    raise refuse(op, f"`{name}` does not run on a grid of cores")

    def _store(self, op: tile.StoreOp) -> None:
        type, array = array_type(op.value), tile.ref_type(op.destination)
        indices = [s for s in op.symbols if isinstance(s.type, IndexType)]
        window = None
        if len(indices) == len(op.symbols):
            window = window_of(op.map, type.shape, array.shape, len(indices))
        paging = self.tiles.natural(op.value) if window is None else window.paging
        by_rows = cores.is_by_rows(op.destination)
        held = self._as_rows(op, paging) if by_rows else self._stored(op, paging, window)
        add = self.threads.add
        lanes = [] if window is not None else self.tiles.lanes(op, paging, cores.WRITER)
        taken = taken_where(op, lambda index: self.tiles.index[index]) if is_of_places(op) else None
        for each in taken or ():
            self.threads.open_if(each.number, [cores.WRITER])
            if not each.is_zero:
                self.threads.otherwise()
        if window is not None:
            extents, maps = self.tiles.page_maps(window, type.shape, paging, op.symbols)
            add(
                cores.WRITER,
                cores.PutRowsOp if by_rows else cores.PutOp,
                [self.tiles.refs[op.destination], held.queue],
                {"extents": extents},
                maps,
            )
        else:
            if stored_format(op.destination) == "bfp8":
                what = "elements of an array of block floats are not written one by one"
                raise refuse(op, what, help="store it as it is")
            maps = self.tiles.lane_maps(op.map, op.symbols, type.rank)
            queues = [h.queue for h in lanes]
            # What is held may be another tile, transposed: its elements are counted as the stored one's are.
            attributes = {"shape": type.shape, "rows": paging.rows, "columns": paging.columns}
            add(cores.WRITER, cores.ScatterOp, [self.tiles.refs[op.destination], held.queue], attributes, maps, queues)
        add(cores.WRITER, cores.BarrierOp, [], {"of": cores.WRITE})
        for _ in taken or ():
            self.threads.close()
        add(cores.WRITER, cores.PopOp, [held.queue], {"pages": held.pages})

    def _stored(self, op: tile.StoreOp, paging: Paging, window: Window | None) -> Held:
        """The stored tile, in a queue to the writer. Tiles computed in an outer block are not stored here."""
        type, array = array_type(op.value), tile.ref_type(op.destination)
        format = stored_format(op.destination)
        # Numbers that share an exponent share it with what is beyond the array.
        inside = None
        if format == "bfp8" and window is not None and (array.shape[-1] if array.shape else 1) % TILE:
            inside = self.tiles.columns_inside(op, window, paging)
        value, own = self.tiles.relabelled(op.value, paging)
        source = self.tiles.load_behind(value)
        scope = self.tiles.scopes[block_of(op)]
        is_here = self.tiles.scope_of(value) is scope and inside is None
        is_alike = source is not None and _comes_as(source.load, format)
        if source is not None and source.fill is None and is_here and is_alike:
            origin = self.tiles.window(source.load)
            plain = own.of(array_type(value).shape)
            is_paged = origin is not None and origin.paging.dims == plain.dims
            if is_paged or (origin is None and not plain.is_column_major):
                held = self.tiles.loaded(source.load, plain, None, cores.WRITER, origin)
                return self.tiles.waited(held, cores.WRITER, at_end=False)
        copies = self.tiles.copies(scope, self.buffers)
        queue = self.threads.queue(format, paging, type.shape, copies=copies)
        self.tiles.compute_into(op.value, paging, (None, None), queue, inside)
        return self.tiles.waited(Held(queue, paging, type, scope), cores.WRITER, at_end=False)

    def _as_rows(self, op: tile.StoreOp, paging: Paging) -> Held:
        """The stored tile, as rows in a queue to the writer."""
        tiles = self.tiles.held(op.value, paging)
        scope = self.tiles.scopes[block_of(op)]
        format, copies = stored_format(op.destination), self.tiles.copies(scope, self.buffers)
        queue = self.threads.queue(format, tiles.paging, tiles.type.shape, copies=copies)
        emit_untilize(self.threads, tiles.queue, queue, tiles.pages)
        return self.tiles.waited(Held(queue, paging, tiles.type, scope), cores.WRITER, at_end=False)

    def _in_lines(self, op: tile.ScanOp | tile.SortOp) -> None:
        fn = ""
        if isinstance(op, tile.ScanOp):
            fn = op.fn
            if array_type(op.operands[0]).dtype.is_bool:
                fn = _BOOL_REDUCTIONS.get(fn, fn)
        self.tiles.in_lines(op, fn)

    def _reduce(self, op: tile.ReduceOp) -> None:
        fn: str = op.fn
        operand = narrower(op.operands[0], self.tiles.shared)
        type = array_type(operand)
        if type.dtype.is_bool:
            fn = _BOOL_REDUCTIONS.get(fn, fn)
        paging = self.tiles.natural(operand)
        reduced: tuple[int, ...] = op.axes
        identity = ops.FUNCTIONS[op.fn].identity
        value = None if identity is None else number_of_carrier(float(identity(type.dtype)), type.dtype)
        need = tuple(value if dim in reduced else None for dim in paging.dims)
        held = self.tiles.held(operand, paging, (need[0], need[1]))
        result = array_type(op.results[0])
        out = reduced_paging(paging, op).of(result.shape)
        queue = self.threads.queue(storage_format(result.dtype), out, result.shape)
        found = Held(queue, out, result, self.tiles.scope_of(op.results[0]))
        if fn in cores.FOLDS:
            self._packed(self._reduction(held, paging, reduced, fn), found)
        else:
            self._reduce_lines(Reduction(held, reduced, fn, False, False, None), found)
        self.tiles.add(op.results[0], found)

    def _packed(self, reduction: Reduction, result: Held) -> None:
        self.threads.add(cores.COMPUTE, cores.ReserveOp, [result.queue], {"pages": result.pages})
        emit_reduction(self.threads, reduction, result.queue, self.registers)
        self.threads.add(cores.COMPUTE, cores.PushOp, [result.queue], {"pages": result.pages})

    def _reduce_lines(self, reduction: Reduction, result: Held) -> None:
        """By a function that the vector unit reduces no page by: it combines pages, and the reader what is in their
        lines."""
        paging = reduction.held.paging
        lines = [dim for dim in (paging.columns, paging.rows) if dim in reduction.dims]
        type = lines_left(reduction, result.type.dtype)
        left = Held(result.queue, paging.of(type.shape), type, result.scope)
        if lines:
            left.queue = self.threads.queue(result.format, left.paging, type.shape, hint="lines")
        self._packed(reduction, left)
        with self.threads.inside(cores.READER, result.scope):
            emit_lines(self.threads, left, lines, reduction.fn, result.queue)

    def _reduction(self, held: Held, paging: Paging, reduced: Sequence[int], fn: str) -> Reduction:
        along = [dim in reduced for dim in paging.dims]
        by_matrix = not held.is_wide and fn != "minimum" and any(along)
        return Reduction(held, tuple(reduced), fn, along[0], along[1], self.tiles.ones() if by_matrix else None)

    def _dot(self, op: tile.DotOp) -> None:
        if op in self.sums:
            queue, counter = self.sums[op]
            left, right, transposed = self._product_operands(op)
            emit_product(self.threads, Product(left, right, transposed, None, counter), queue, self.registers)
            return
        left, right, transposed = self._product_operands(op)
        initial = op.accumulator
        start = None
        if not is_zero(initial):
            start = self.tiles.held(initial, Paging(0, 1))
        type, scope = array_type(op.result), self.tiles.scope_of(op.result)
        paging = Paging(0, 1).of(type.shape)
        queue = self.threads.queue(storage_format(type.dtype), paging, type.shape)
        pages = {"pages": paging.pages(type.shape)}
        self.threads.add(cores.COMPUTE, cores.ReserveOp, [queue], pages)
        emit_product(self.threads, Product(left, right, transposed, start, None), queue, self.registers)
        self.threads.add(cores.COMPUTE, cores.PushOp, [queue], pages)
        self.tiles.add(op.result, Held(queue, paging, type, scope))

    def _product_operands(self, op: tile.DotOp) -> tuple[Held, Held, bool]:
        """The operands, and whether pages of the right one have to be transposed."""
        left, right = (narrower(o, self.tiles.shared) for o in (op.left, op.right))
        for operand in (left, right):
            if array_type(operand).dtype == dtypes.f32:
                self._remark("operands of f32 are cut to tf32", "the matrix unit multiplies nothing wider")
            elif not array_type(operand).dtype.is_float:
                raise refuse(op, f"a matmul of {array_type(operand).dtype} is not supported on a grid of cores")
        held_left = self.tiles.held(left, Paging(0, 1), (None, 0.0))
        transposed = self.tiles.natural(right).rows == 1 and self._is_paged(right)
        paging = Paging(1, 0, is_column_major=True) if transposed else Paging(0, 1)
        need = (None, 0.0) if transposed else (0.0, None)
        return held_left, self.tiles.held(right, paging, need), transposed

    def _is_paged(self, value: SSAValue) -> bool:
        """Whether the pages of a tile can come in any order: it is loaded in whole pages."""
        source, _ = self.tiles.relabelled(value, self.tiles.natural(value))
        found = self.tiles.load_behind(source)
        return found is not None and self.tiles.window(found.load) is not None

    def _if(self, op: tile.IfOp) -> None:
        """Both branches are computed, and one is chosen place by place where it is used."""
        for region in (op.then, op.otherwise):
            self.tiles.scopes[region.block] = self.threads.scopes[-1]
            self.lower_block(region.block)

    def _for(self, op: tile.ForOp) -> None:
        """Lower a loop. Carried tiles are in queues with room for two tiles: the present one is read while the next one
        is computed. A sum of matmuls stays in the pages in which it is accumulated."""
        block, trips = op.body.block, op.trips
        arguments = block.args[1:]
        sums = {} if op.end is not None else sums_of(op)
        outer = self.threads.scopes[-1]
        queues = [self._begun(op, position, position in sums) for position in range(len(arguments))]
        end = None
        if op.end is not None:
            end = with_symbols(op.end.results[0], lambda p: self.tiles.index[op.symbols[p]])
        shared = self.shared if self.shared is not None and self.shared.loop is op else None
        if shared is not None:
            trips, end = shared.each, shared.end
        counter = self.threads.open_loop(trips, end)
        scope = self.threads.scopes[-1]
        own = ZERO if shared is None else times(shared.part, shared.each)
        self.tiles.index[block.args[0]] = plus(own, counter)
        self.tiles.scopes[block] = scope
        for position, dot in sums.items():
            self.sums[dot] = queues[position], counter if trips > 1 else None
        carried = [position for position in range(len(arguments)) if position not in sums]
        for position in carried:
            argument = arguments[position]
            held = Held(queues[position], self.tiles.pagings[argument], array_type(argument), scope)
            self.tiles.add(argument, self.tiles.waited(held, cores.COMPUTE))
        self.lower_block(block)
        following = () if block.last_op is None else block.last_op.operands
        for position in carried:
            paging = self.tiles.pagings[arguments[position]]
            self.tiles.compute_into(following[position], paging, (None, None), queues[position])
        self.threads.close()
        for position, result in enumerate(op.results):
            paging = self.tiles.pagings[arguments[position]]
            if position in sums:
                pages = {"pages": paging.pages(array_type(result).shape)}
                self.threads.add(cores.COMPUTE, cores.PushOp, [queues[position]], pages)
            self.tiles.pagings[result] = paging
            held = Held(queues[position], paging, array_type(result), outer)
            if shared is None or position not in sums:
                self.tiles.waited(held, cores.COMPUTE)
            self.tiles.add(result, held)
        if shared is not None:
            self._gather(shared, [queues[position] if position in sums else None for position in range(len(arguments))])

    def _gather(self, shared: Shared, sums: Sequence[SSAValue | None]) -> None:
        """Gather the partial results of cores that share a loop at one core, which alone continues. Sums of matmuls are
        in queues to the writer already."""
        partials: list[Held] = []
        for result, queue in zip(shared.loop.results, sums, strict=True):
            type, paging = array_type(result), self.tiles.pagings[result]
            if queue is None:
                queue = self.threads.queue(storage_format(type.dtype), paging, type.shape, hint="partial")
                self.tiles.compute_into(result, paging, (None, None), queue)
            partials.append(Held(queue, paging, type, self.threads.scopes[-1]))
        gathered = emit_gather(self.threads, shared, partials)
        self.threads.open_if(shared.is_root)
        self.tiles.enter(self.kernel.body.block)
        scope = self.threads.scopes[-1]
        for result, partial, queue, fn in zip(shared.loop.results, partials, gathered, shared.functions, strict=True):
            every = self.tiles.waited(stacked(queue, partial, shared.count, scope), cores.COMPUTE)
            total = self.threads.queue(partial.format, partial.paging, partial.type.shape)
            pages = {"pages": partial.pages}
            self.threads.add(cores.COMPUTE, cores.ReserveOp, [total], pages)
            emit_reduction(self.threads, Reduction(every, (0,), fn, False, False, None), total, self.registers)
            self.threads.add(cores.COMPUTE, cores.PushOp, [total], pages)
            held = Held(total, partial.paging, partial.type, scope)
            self.tiles.add(result, self.tiles.waited(held, cores.COMPUTE))
        decision = f"{shared.count} cores share the loop of each point, of {shared.loop.trips} trips"
        self._remark(decision, f"there are {prod(self.kernel.grid)} points")

    def _begun(self, op: tile.ForOp, position: int, is_sum: bool) -> SSAValue:
        """The queue of a tile that a loop carries, before its first trip."""
        argument, initial = op.body.block.args[position + 1], op.initial[position]
        type = array_type(argument)
        paging = Paging(0, 1) if is_sum else self.tiles.carried_paging(op, position)
        paging = paging.completed(type.shape)
        self.tiles.pagings[argument] = paging
        format = storage_format(type.dtype)
        if is_sum:
            queue = self.threads.queue(format, paging, type.shape, hint="sum")
            self.threads.add(cores.COMPUTE, cores.ReserveOp, [queue], {"pages": paging.pages(type.shape)})
            return queue
        queue = self.threads.queue(format, paging, type.shape, copies=2)
        self.tiles.compute_into(initial, paging, (None, None), queue)
        return queue


def _comes_as(load: tile.LoadOp, format: str) -> bool:
    """Whether what is loaded comes to a queue in a format."""
    if cores.is_by_rows(load.source):
        return storage_format(array_type(load.result).dtype) == format
    return stored_format(load.source) == format
