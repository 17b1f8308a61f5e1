"""Plans of kernels for vectors: tiles that stay in caches, register blocks, parts of long lines for threads."""

from __future__ import annotations

import math

import msgspec

from tilewright import schedules
from tilewright.cost.tiles import MatmulTile, dividing_split, even_split, loop_tile, reread_tile
from tilewright.cost.vectors.kernel import function_seconds
from tilewright.cost.vectors.products import Product, best_candidate
from tilewright.cost.vectors.reductions import THREADS, Reduction, best_reduction_tile
from tilewright.cost.vectors.register_blocks import RegisterBlock, micro_kernel_name, register_blocks
from tilewright.cost.vectors.split_products import split_tile
from tilewright.cost.vectors.tiles import (
    READ_ONCE_ROWS,
    along_depth_tile,
    exchanged_tile,
    is_streamed,
    matrix_tile,
    read_once_tile,
    rows_along_depth,
    shared_elements,
    streaming_tile,
    turned_reduction_tile,
    turned_tile,
    whole_columns_tile,
)
from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type
from tilewright.errors import CompilerBug
from tilewright.layout.relayout_planner import SHUFFLED_STRIDES
from tilewright.machines.machine import Machine, MatrixAtom
from tilewright.passes.fallbacks import Fallback
from tilewright.passes.kernels.contract_facts import accumulator_of, batches_of, depth_sizes_of, result_dims
from tilewright.passes.kernels.lower_attention_group import (
    AttentionParts,
    AttentionPlan,
    attention_in_blocks,
    attention_plan,
)
from tilewright.passes.kernels.lower_contract_group import ContractPlan, contract_of
from tilewright.passes.kernels.lower_convolve_group import convolve_of, plan_rows, row_sizes, rows_of_group
from tilewright.passes.kernels.lower_loop_group import (
    ROW_ELEMENTS,
    group_space,
    has_long_transpose,
    is_short_transpose,
    puts_gathered_dims_back,
    reads_along_rows_of_few,
    reduced_space,
)
from tilewright.passes.kernels.lower_ordered_group import PART_COLUMNS, Ordered, axis_of
from tilewright.passes.kernels.vector_limits import check_vector_attention, check_vector_schedule, keeps_order
from tilewright.passes.kernels.vector_products import (
    atom_of_parts,
    last_sizes,
    matrix_atom_for,
    product_of,
    reads_along_depth,
    reads_columns,
    vector_matmul,
    word_atom_for,
)

TILE_ELEMENTS = 4096
# Whole lines of memory, of elements of four bytes.
COLUMNS = 16
# Elements of a part of a long line: enough that what joins the parts is little, few enough to stay in a second-level
# cache. More parts than the limit would take as long to join as to read.
PART_ELEMENTS, MOST_PARTS = 32768, 1024
# The share of the second-level cache that a part of a scan takes, beside its results: of a line, and of rows that are
# scanned side by side. Measured: 4 to 16 are alike for a line, 16 is worse than 8 for rows.
SCANNED_LINE, SCANNED_ROWS = 16, 8
# Rows that such a part has at least.
LEAST_ROWS = 32
# Elements of a loop for each of a transposed array that its tiles need not be good for.
_SMALL_FRACTION = 8
# Lines of at least as many parts are cut, unless there are as many tiles of whole lines.
ENOUGH_TILES = 8


class VectorPlanner(msgspec.Struct, frozen=True):
    """The `KernelPlanner` of CPUs."""

    machine: Machine
    threads: int
    matmuls: tuple[type[schedules.Schedule], ...] = (schedules.VectorMatmul, schedules.SplitMatmul)
    tile_kernels: tuple[type[schedules.Schedule], ...] = ()
    most_operations: int = 256
    most_windows: None = None
    most_of_window: None = None
    shuffles_lanes: bool = True
    sums_in_blocks: bool = True
    scans_in_turns: bool = False

    @property
    def scatter_shares(self) -> int:
        return max(2, self.threads)

    def check(self, group: array.FusedOp, schedule: schedules.Schedule) -> None:
        check_vector_schedule(group, schedule, self.machine)

    def check_tile_kernel(self, kernel: tile.KernelOp, schedule: schedules.TileKernel) -> None:
        raise CompilerBug("nothing is decided of kernels that the user wrote")

    def check_attention(self, parts: AttentionParts, schedule: schedules.Attention) -> None:
        check_vector_attention(parts, schedule)

    def loop(self, group: array.FusedOp, level: int = 0) -> schedules.Loop:
        """Plain loops take about a page of elements at a time; reductions the tile of the least predicted time, but
        rows of which each element is needed again stay in near memory."""
        space, axes = group_space(group)
        if not axes:
            return schedules.Loop(tile=self._loop_extents(group, space))
        reduced = reduced_space(group)
        reduction = Reduction(reduced.shape, reduced.axes, reduced.dtype, reduced.fn == "add")
        if reduced.is_read_again:
            columns = whole_columns_tile(reduced.shape, reduced.axes)
            return schedules.Loop(tile=columns or reread_tile(reduced.shape, reduced.axes))
        tile = best_reduction_tile(reduction, self.machine, self.threads)
        if reduced.is_uneven and reduction.keeps_last:
            # Rows end before a shorter part does where a tile has one part; else each row of a part asks.
            tile = (1, *tile[1:])
        turned = _turned_dim(group, space)
        reduces_few = space[-1] in SHUFFLED_STRIDES and len(space) - 1 in axes
        if turned is not None and not reduces_few:
            turned += reduced.in_parts
            tile = turned_reduction_tile(tile, reduced.shape, reduced.axes, turned, THREADS)
        return schedules.Loop(tile=tile)

    def _loop_extents(self, group: array.FusedOp, space: tuple[int, ...]) -> tuple[int, ...]:
        turned = _turned_dim(group, space)
        if turned is not None:
            return turned_tile(space, turned, ROW_ELEMENTS, array_type(group.results[0]).dtype, self.machine)
        exchanged = _exchanged_dim(group, space)
        if exchanged is not None:
            return exchanged_tile(space, exchanged, ROW_ELEMENTS, array_type(group.results[0]).dtype)
        maps = [op for op in group.body.block.ops if isinstance(op, array.MapOp)]
        seconds = sum(function_seconds(op.fn, array_type(op.operands[-1]), self.machine) for op in maps)
        elements = shared_elements(math.prod(space), seconds, ROW_ELEMENTS, self.threads)
        return loop_tile(space, elements, square=has_long_transpose(group, space))

    def contract(self, group: array.FusedOp, level: int = 0) -> schedules.VectorMatmul | schedules.SplitMatmul:
        op = contract_of(group)
        result = array_type(op.results[0])
        last_rows, last_columns, last_depth = last_sizes(op)
        share = 1 if batches_of(op) >= 2 * self.threads else self.threads
        atom = matrix_atom_for(op, self.machine)
        if atom is not None:
            tile = matrix_tile(last_rows, last_columns, last_depth, atom, self.machine, share)
            return vector_matmul(op, tile)
        if is_streamed(last_rows, last_columns, result.dtype) and reads_columns(group, op):
            tile = streaming_tile(last_rows, last_columns, last_depth, result.dtype, self.machine, share)
            return vector_matmul(op, tile)
        if last_rows <= rows_along_depth(last_depth, result.dtype, self.machine) and reads_along_depth(group, op):
            tile = along_depth_tile(last_rows, last_columns, last_depth, result.dtype, self.machine, share)
            return vector_matmul(op, tile)
        once = self._reading_once(group, op)
        if once is not None:
            return once
        words = word_atom_for(group, op, self.machine)
        product = product_of(group, words)
        parts = atom_of_parts(group, op, self.machine)
        split = None if parts is None else split_tile(product, parts, self.machine, self.threads)
        if split is not None:
            rows, columns = max(1, min(split.rows, last_rows)), max(1, min(split.columns, last_columns))
            return schedules.SplitMatmul(tile=(rows, columns, split.depth))
        candidate = best_candidate(product, self.machine, self.threads)
        tile = candidate.tile
        if words is not None:
            tile = MatmulTile(tile.rows, tile.columns, tile.depth * words.group)
        return vector_matmul(op, tile, candidate.block)

    def _reading_once(self, group: array.FusedOp, op: array.ContractOp) -> schedules.VectorMatmul | None:
        """The schedule of a matmul whose time goes into reading the right operand, its rows as stored, from memory."""
        type, (rows, columns, depth) = array_type(op.operands[1]), last_sizes(op)
        afar = type.size * type.dtype.itemsize > self.machine.memory("l3").bytes
        if not afar or rows > READ_ONCE_ROWS or not reads_columns(group, op):
            return None
        dtype = array_type(op.results[0]).dtype
        block = max(register_blocks(dtype, self.machine), key=lambda each: each.columns)
        share = -(-self.threads // batches_of(op))
        tile = read_once_tile(rows, columns, depth, block, dtype, self.machine, share)
        return None if tile is None else vector_matmul(op, tile, block, "in_place")

    def contract_plan(self, group: array.FusedOp, schedule: schedules.Matmul) -> ContractPlan:
        op = contract_of(group)
        tile_rows, tile_columns, depth = _extents(op, schedule)
        result = array_type(op.results[0])
        _, rows, columns = result_dims(op)
        extents = [1] * result.rank
        if rows:
            extents[rows[-1]] = tile_rows
        if columns:
            extents[columns[-1]] = tile_columns
        checked = isinstance(schedule, schedules.SplitMatmul)
        multiplies = matrix_atom_for(op, self.machine) or self._word_atom(group, schedule)
        operand = accumulator_of(result.dtype) if multiplies is None else None
        name = self._atom_name(group, schedule)
        shape, depths = result.shape, depth_sizes_of(op)
        return ContractPlan(shape, tuple(extents), depths, depth, operand, name, checked=checked, part=op.part)

    def _atom_name(self, group: array.FusedOp, schedule: schedules.Matmul) -> str:
        """The name of what multiplies a tile; empty where layout inference chooses it."""
        if isinstance(schedule, schedules.SplitMatmul):
            parts = atom_of_parts(group, contract_of(group), self.machine)
            if parts is None:
                raise CompilerBug(f"{self.machine.name} has no instruction for {schedule}")
            return parts.name
        if not isinstance(schedule, schedules.VectorMatmul):
            raise CompilerBug(f"{schedule} is no schedule of a matmul on vectors")
        if schedule.block is None:
            return ""
        height, width = schedule.block
        rows, _, _ = _extents(contract_of(group), schedule)
        words = self._word_atom(group, schedule)
        return micro_kernel_name(rows, RegisterBlock(height, 1, width), words)

    def _word_atom(self, group: array.FusedOp, schedule: schedules.Matmul) -> MatrixAtom | None:
        """The instruction that multiplies words of a tile in register blocks; None where a step of the depth would
        begin inside a word."""
        if not isinstance(schedule, schedules.VectorMatmul) or schedule.block is None:
            return None
        op = contract_of(group)
        atom = word_atom_for(group, op, self.machine)
        _, _, depth = _extents(op, schedule)
        _, _, whole = last_sizes(op)
        return None if atom is None or (depth < whole and depth % atom.group) else atom

    def convolve(self, group: array.FusedOp, level: int = 0) -> schedules.Convolution:
        op = convolve_of(group)
        product = Product(*row_sizes(op), accumulator_of(array_type(op.results[0]).dtype), copies_left=True)
        return rows_of_group(op, best_candidate(product, self.machine, 1).tile)

    def convolve_plan(self, group: array.FusedOp, schedule: schedules.Convolution) -> ContractPlan:
        return plan_rows(convolve_of(group), MatmulTile(*schedule.tile))

    def fuses_attention(self, parts: AttentionParts) -> bool:
        return parts.weights is None

    def attention_fallback(self, parts: AttentionParts, fallback: Fallback) -> tuple[Fallback, bool]:
        return fallback, True

    def attention(self, parts: AttentionParts, fallback: Fallback) -> schedules.Attention:
        return attention_in_blocks(parts, self.threads)

    def attention_plan(self, parts: AttentionParts, schedule: schedules.Attention) -> AttentionPlan:
        return attention_plan(parts, schedule)

    def ordered(self, op: Ordered, level: int = 0) -> schedules.Ordered:
        """Lines side by side: short ones until a tile has some thousand elements; of those that run across vectors as
        many as there are, as long as every thread gets a tile, or as many as share cache lines where each is sorted."""
        shape = array_type(op.operands[0]).shape
        axis, last = axis_of(op), len(shape) - 1
        extents = [1] * len(shape)
        extents[axis], columns = _part(op, shape, axis, self.machine)
        if extents[axis] < shape[axis]:
            if axis != last:
                extents[last] = columns
            return schedules.Ordered(tile=tuple(extents))
        if axis != last and isinstance(op, array.SortOp):
            in_columns = len(op.operands) == 1 and shape[axis] <= COLUMNS
            columns = TILE_ELEMENTS // max(1, shape[axis]) if in_columns else COLUMNS
            extents[last] = even_split(shape[last], columns)
        elif axis != last:
            outer = math.prod(n for d, n in enumerate(shape) if d not in (axis, last))
            blocks = -(-self.threads // max(1, outer))
            most = shape[last] // blocks
            if isinstance(op, array.ArgReduceOp):
                most = min(most, self._most_best_elements(op))
            extents[last] = even_split(shape[last], max(COLUMNS, most), COLUMNS)
        elif len(shape) > 1:
            extents[last - 1] = even_split(shape[last - 1], max(1, TILE_ELEMENTS // max(1, shape[axis])))
        return schedules.Ordered(tile=tuple(extents))

    def _most_best_elements(self, op: array.ArgReduceOp) -> int:
        """How many of the best elements so far, and their indices, half of the first-level cache holds."""
        itemsize = array_type(op.operands[0]).dtype.compute.itemsize
        return self.machine.memory("l1").bytes // (2 * (itemsize + max(4, itemsize)))

    def reshape(self, group: array.FusedOp) -> schedules.Reshape:
        raise CompilerBug("a reshape is copied on a grid of cores only")


def _extents(op: array.ContractOp, schedule: schedules.Matmul) -> tuple[int, int, int]:
    """The extents of a tile, which is cut where it is larger than the matmul; steps of matmuls in parts are whole."""
    rows, columns, depth = (max(1, min(pair)) for pair in zip(schedule.tile, last_sizes(op), strict=True))
    return rows, columns, schedule.tile[2] if isinstance(schedule, schedules.SplitMatmul) else depth


def _turned_dim(group: array.FusedOp, space: tuple[int, ...]) -> int | None:
    """The dimension along which a group reads what it transposes, where it does not write along that one. Arrays of a
    fraction of the elements, as means that are repeated, are transposed in any order."""
    ops = list(group.body.block.ops)
    large = [op for op in ops if isinstance(op, array.TransposeOp) and not _is_fraction(op, space)]
    transposes = [op for op in large if array_type(op.results[0]).shape == space]
    if 0 in space or not transposes or len(transposes) < len(large):
        return None
    only_transposes = len(ops) == 2
    if not only_transposes and not has_long_transpose(group, space):
        return None
    last = len(space) - 1
    across = [op for op in transposes if not reads_along_rows_of_few(op)]
    turned = {op.permutation.index(last) for op in across if only_transposes or not is_short_transpose(op)}
    turned -= {d for d in turned if d == last or space[d] == 1}
    return turned.pop() if len(turned) == 1 else None


def _is_fraction(op: array.TransposeOp, space: tuple[int, ...]) -> bool:
    """Whether an operation's result has few elements next to those of a loop."""
    return _SMALL_FRACTION * array_type(op.results[0]).size <= math.prod(space)


def _exchanged_dim(group: array.FusedOp, space: tuple[int, ...]) -> int | None:
    """The dimension whose rows are neighbours in what a group transposes, where it stores other rows as neighbours."""
    found: set[int] = set()
    for op in group.body.block.ops:
        if isinstance(op, array.TransposeOp) and not _is_fraction(op, space):
            last = len(op.permutation) - 1
            keeps_rows = op.permutation[last] != last or puts_gathered_dims_back(op)
            if array_type(op.results[0]).shape != space or keeps_rows or last < 2:
                return None
            found.add(op.permutation.index(last - 1))
    found.discard(len(space) - 2)
    return found.pop() if len(found) == 1 and 0 not in space else None


def _part(op: array.ArrayOp, shape: tuple[int, ...], axis: int, machine: Machine) -> tuple[int, int]:
    """How many elements of a line a tile takes, and how many lines side by side where they are cut."""
    across = axis != len(shape) - 1
    elements, most_columns, most_parts = PART_ELEMENTS, PART_COLUMNS, MOST_PARTS
    if isinstance(op, array.ScanOp):
        share = SCANNED_ROWS if across else SCANNED_LINE
        elements = machine.memory("l2").bytes // share // array_type(op.operands[0]).dtype.itemsize
        most_columns, most_parts = elements // LEAST_ROWS, shape[axis]
    columns = even_split(shape[-1], most_columns, COLUMNS) if across else 1
    if isinstance(op, array.SortOp | array.TopKOp) or (isinstance(op, array.ScanOp) and keeps_order(op)):
        return shape[axis], columns
    tiles = math.prod(n for d, n in enumerate(shape) if d != axis) // max(1, columns)
    least = max(elements // max(1, columns), -(-shape[axis] // max(1, most_parts)))
    if tiles >= ENOUGH_TILES or shape[axis] < ENOUGH_TILES * least:
        return shape[axis], columns
    if isinstance(op, array.ScanOp) and op.reverse:
        # From the far end, a part that is not full would be the first.
        part = dividing_split(shape[axis], least)
        return shape[axis] if shape[axis] % part else part, columns
    return even_split(shape[axis], least, COLUMNS), columns
