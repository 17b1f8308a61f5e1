"""Plans of kernels for vectors: tiles that stay in caches, register blocks, parts of long lines for threads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.ir import BlockArgument, SSAValue

from tilewright.cost.given import given
from tilewright.cost.tiles import dividing_split, even_split, loop_tile, reread_tile
from tilewright.cost.vectors.products import Product, Right, best_schedule
from tilewright.cost.vectors.reductions import Reduction, best_reduction_tile
from tilewright.cost.vectors.register_blocks import micro_kernel_name
from tilewright.cost.vectors.split_products import split_tile
from tilewright.cost.vectors.tiles import is_streamed, matrix_tile, streaming_tile, turned_tile
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.errors import CompilerBug
from tilewright.machines.machine import Machine, MatrixAtom
from tilewright.passes.fallbacks import Fallback
from tilewright.passes.kernels.contract_facts import (
    accumulator_of,
    batches_of,
    depth_of,
    depth_sizes_of,
    multiplied_types,
    result_dims,
    untransposed,
)
from tilewright.passes.kernels.lower_attention_group import AttentionParts, AttentionPlan, plan_in_blocks
from tilewright.passes.kernels.lower_contract_group import ContractPlan, contract_of, has_more
from tilewright.passes.kernels.lower_convolve_group import convolve_of, plan_rows, row_sizes
from tilewright.passes.kernels.lower_loop_group import (
    ROW_ELEMENTS,
    LoopPlan,
    group_space,
    has_transpose,
    reduced_space,
    reduction_plan,
)
from tilewright.passes.kernels.lower_ordered_group import PART_COLUMNS, Ordered, OrderedPlan, axis_of
from tilewright.passes.kernels.lower_reshape_group import ReshapePlan

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
# Lines of at least as many parts are cut, unless there are as many tiles of whole lines.
ENOUGH_TILES = 8


@dataclass(frozen=True)
class VectorPlanner:
    """The `KernelPlanner` of CPUs."""

    machine: Machine
    threads: int
    most_windows: None = None
    most_of_window: None = None
    sums_in_blocks: bool = True
    scans_in_turns: bool = False

    def loop(self, group: array.FusedOp, level: int = 0) -> LoopPlan:
        """Plain loops take about a page of elements at a time; reductions the tile of the least predicted time, but
        rows of which each element is needed again stay in near memory."""
        space, axes = group_space(group)
        if not axes:
            return LoopPlan(space, dict(enumerate(self._loop_extents(group, space))), {})
        reduced = reduced_space(group)
        reduction = Reduction(reduced.shape, reduced.axes, reduced.dtype, reduced.fn == "add")
        if reduced.is_read_again:
            wanted = given().reductions.get(reduced.shape)
            return reduction_plan(reduced, wanted or reread_tile(reduced.shape, reduced.axes))
        return reduction_plan(reduced, best_reduction_tile(reduction, self.machine, self.threads))

    def _loop_extents(self, group: array.FusedOp, space: tuple[int, ...]) -> tuple[int, ...]:
        turned = _turned_dim(group)
        if turned is not None:
            return turned_tile(space, turned, ROW_ELEMENTS, array_type(group.results[0]).dtype, self.machine)
        return loop_tile(space, ROW_ELEMENTS, square=has_transpose(group, space))

    def contract(self, group: array.FusedOp, level: int = 0) -> ContractPlan:
        op = contract_of(group)
        result, depth_sizes = array_type(op.results[0]), depth_sizes_of(op)
        _, rows, columns = result_dims(op)
        last_rows = result.shape[rows[-1]] if rows else 1
        last_columns = result.shape[columns[-1]] if columns else 1
        share = 1 if batches_of(op) >= 2 * self.threads else self.threads
        last_depth = depth_of(op)
        streamed = is_streamed(last_rows, last_columns, result.dtype) and _reads_array(group, op)
        types = multiplied_types(op)
        atom = self.machine.matrix_atom(*types, accumulator_of(result.dtype), last_depth)
        if atom is not None and last_rows < atom.rows:
            atom = None
        name, checked = "", False
        if atom is not None:
            tile = matrix_tile(last_rows, last_columns, last_depth, atom, self.machine, share)
        elif streamed:
            tile = streaming_tile(last_rows, last_columns, last_depth, result.dtype, self.machine, share)
        else:
            product = product_of(group)
            parts = _atom_of_parts(group, op, self.machine)
            split = None if parts is None else split_tile(product, parts, self.machine, self.threads)
            if parts is not None and split is not None:
                tile, name, checked = split, parts.name, True
            else:
                schedule = best_schedule(product, self.machine, self.threads)
                tile = schedule.tile
                name = micro_kernel_name(max(1, min(tile.rows, last_rows)), schedule.block)
        extents = [1] * result.rank
        if rows:
            extents[rows[-1]] = max(1, min(tile.rows, last_rows))
        if columns:
            extents[columns[-1]] = max(1, min(tile.columns, last_columns))
        return ContractPlan(
            result.shape,
            tuple(extents),
            depth_sizes,
            tile.depth if checked else max(1, min(tile.depth, last_depth)),
            accumulator_of(result.dtype) if atom is None else None,
            name,
            checked=checked,
            part=op.part,
        )

    def convolve(self, group: array.FusedOp, level: int = 0) -> ContractPlan:
        op = convolve_of(group)
        product = Product(*row_sizes(op), accumulator_of(array_type(op.results[0]).dtype), copies_left=True)
        return plan_rows(op, best_schedule(product, self.machine, 1).tile)

    def fuses_attention(self, parts: AttentionParts) -> bool:
        return parts.weights is None

    def attention_fallback(self, parts: AttentionParts, fallback: Fallback) -> tuple[Fallback, bool]:
        return fallback, True

    def attention(self, parts: AttentionParts, fallback: Fallback) -> AttentionPlan:
        return plan_in_blocks(parts, self.threads)

    def ordered(self, op: Ordered, level: int = 0) -> OrderedPlan:
        """Lines side by side: short ones until a tile has some thousand elements; of those that run across vectors as
        many as there are, as long as every thread gets a tile, or as many as share cache lines where each is sorted."""
        shape = array_type(op.operands[0]).shape
        axis, last = axis_of(op), len(shape) - 1
        extents = {d: 1 for d in range(len(shape)) if d != axis}
        part, columns = _part(op, shape, axis, self.machine)
        if part < shape[axis]:
            if axis != last:
                extents[last] = columns
            reverse = isinstance(op, array.ScanOp) and bool(op.reverse)
            return OrderedPlan(shape, axis, part, extents, reverse)
        if axis != last and isinstance(op, array.SortOp):
            extents[last] = even_split(shape[last], COLUMNS)
        elif axis != last:
            outer = math.prod(shape[d] for d in extents if d != last)
            blocks = -(-self.threads // max(1, outer))
            extents[last] = even_split(shape[last], max(COLUMNS, shape[last] // blocks), COLUMNS)
        elif len(shape) > 1:
            extents[last - 1] = even_split(shape[last - 1], max(1, TILE_ELEMENTS // max(1, shape[axis])))
        return OrderedPlan(shape, axis, shape[axis], extents)

    def reshape(self, group: array.FusedOp) -> ReshapePlan:
        raise CompilerBug("a reshape is copied on a grid of cores only")


# ---- matmuls --------------------------------------------------------------------------------------------------------


def _atom_of_parts(group: array.FusedOp, op: array.ContractOp, machine: Machine) -> MatrixAtom | None:
    """The atom that computes a matmul from bf16 parts. Both operands are arrays of the group, under transposes at most,
    and no constants: they are read again if the result is not finite."""
    left, right = (array_type(operand).dtype for operand in op.operands)
    _, rows, columns = result_dims(op)
    ends = [array_type(op.results[0]).shape[d] for d in (*rows[-1:], *columns[-1:])]
    ends += [array_type(op.operands[0]).shape[d] for d in op.left_contract[-1:]]
    if op.precision is not None or op.part is not None or len(ends) < 3 or min(ends) < 2:
        return None
    for operand in op.operands:
        value = untransposed(operand)
        if not isinstance(value, BlockArgument) or isinstance(group.operands[value.index].owner, array.ConstantOp):
            return None
    return machine.split_atom(left, right, accumulator_of(array_type(op.results[0]).dtype))


def product_of(group: array.FusedOp) -> Product:
    """Facts of a `contract` group for the cost model."""
    op = contract_of(group)
    left, right, result = (array_type(value) for value in (*op.operands, op.results[0]))
    _, rows, columns = result_dims(op)
    summed: tuple[int, ...] = op.left_contract
    dtype = accumulator_of(result.dtype)
    is_read = left.dtype == dtype and op.precision is None
    in_place = bool(summed) and _lies_along(op.operands[0], summed[-1]) and is_read
    width = result.shape[columns[-1]] if columns else 1
    return Product(
        rows=max(1, result.shape[rows[-1]] if rows else 1),
        columns=max(1, width),
        depth=depth_of(op),
        dtype=dtype,
        batches=max(1, batches_of(op)),
        pitch_bytes=right.shape[-1] * right.dtype.itemsize if right.rank else 0,
        choices=_right_choices(group, op),
        copies_left=not in_place,
        buffered=len(summed) > 1 or has_more(group, op),
    )


def _right_choices(group: array.FusedOp, op: array.ContractOp) -> tuple[Right, ...]:
    """The treatments of the right operand. An array of the group, under transposes at most, is packed as a whole, or
    read in place if the matmul's columns are contiguous; an operand that the group computes is packed by each tile."""
    value = untransposed(op.operands[1])
    if not isinstance(value, BlockArgument) or op.precision is not None:
        return (Right.ALONE,)
    if isinstance(group.operands[value.index].owner, array.ConstantOp):
        return (Right.READY,)
    return (Right.IN_PLACE, Right.KEPT, Right.TOGETHER) if _reads_array(group, op) else (Right.TOGETHER,)


def _lies_along(value: SSAValue, dim: int) -> bool:
    """Whether a value is an array of the group, seen through transposes, whose neighbours in memory are those along a
    dim: such a left operand is read in place."""
    while isinstance(value.owner, array.TransposeOp | array.UnfoldOp):
        op, (inner,) = value.owner, value.owner.operands
        if isinstance(op, array.TransposeOp):
            dim = op.permutation[dim]
        elif array_type(inner).rank - 1 != op.axis or dim < op.axis or op.steps[dim - op.axis] != 1:
            return False
        else:
            dim = op.axis
        value = inner
    return isinstance(value, BlockArgument) and dim == array_type(value).rank - 1


def _reads_array(group: array.FusedOp, op: array.ContractOp) -> bool:
    """Whether the right operand is an array known at run time only, its columns side by side, of the type that the
    matmul is computed in: it is read in place."""
    right = op.operands[1]
    type = array_type(right)
    if not isinstance(right, BlockArgument) or op.precision is not None:
        return False
    if type.dtype != array_type(op.results[0]).dtype.compute:
        return False
    summed = op.right_contract
    return type.rank - 1 not in summed and not isinstance(group.operands[right.index].owner, array.ConstantOp)


# ---- loops and lines ------------------------------------------------------------------------------------------------


def _turned_dim(group: array.FusedOp) -> int | None:
    """The dimension along which a group that only transposes reads, where it does not write along that one."""
    transpose, *rest = group.body.block.ops
    if not isinstance(transpose, array.TransposeOp) or len(rest) != 1 or 0 in array_type(group.results[0]).shape:
        return None
    permutation: tuple[int, ...] = transpose.permutation
    last = len(permutation) - 1
    turned = permutation.index(last)
    return turned if turned != last and array_type(group.results[0]).shape[turned] > 1 else None


def _part(op: array.ArrayOp, shape: tuple[int, ...], axis: int, machine: Machine) -> tuple[int, int]:
    """How many elements of a line a tile takes, and how many lines side by side where they are cut."""
    across = axis != len(shape) - 1
    elements, most_columns, most_parts = PART_ELEMENTS, PART_COLUMNS, MOST_PARTS
    if isinstance(op, array.ScanOp):
        share = SCANNED_ROWS if across else SCANNED_LINE
        elements = machine.memory("l2").bytes // share // array_type(op.operands[0]).dtype.itemsize
        most_columns, most_parts = elements // LEAST_ROWS, shape[axis]
    columns = even_split(shape[-1], most_columns, COLUMNS) if across else 1
    if isinstance(op, array.SortOp | array.TopKOp) or (isinstance(op, array.ScanOp) and _keeps_order(op)):
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


def _keeps_order(op: array.ScanOp) -> bool:
    """Whether a scan must not be split: a part of a cumulative product of floats might overflow although the whole does
    not."""
    return op.fn == "multiply" and array_type(op.operands[0]).dtype.is_float
