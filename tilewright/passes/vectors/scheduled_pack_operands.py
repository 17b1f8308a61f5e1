"""Pack the right operands of matmuls in panels of the register block's width.

A captured array is packed once, when the program is compiled. Any other whose columns are side by side is read in
place, by all rows of a tile or by the first ones, which keep a panel for the others, or packed at the start of the
kernel by all threads together, into a shared buffer, before a team barrier: what is predicted to be quickest for the
rows that meet it. One whose columns are apart or of another type is packed by all threads, a part that one tile alone
reads by that tile, but for a few rows that read it along its depth. Last, because it needs the register blocks.

Before:
    func.func @main(%x: tensor<18x4xf32>, %w: tensor<3x4xf32>) -> tensor<18x3xf32> {
      %y = array.call(%x, %w) {callee = "contract_0"} : tensor<18x3xf32>
      func.return %y : tensor<18x3xf32>
    }
    tile.kernel() {sym_name = "contract_0", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<18x4xf32>>, %w: !tile.ref<tensor<3x4xf32>>, %out: !tile.ref<tensor<18x3xf32>>):
      scheduled.parallel() {extents = array<i64: 2>, grain = 1 : index} do {
      ^bb0(%i: index):
        %total = scheduled.alloc() : !tile.ref<tensor<9x16xf32>, "worker">
        scheduled.dot(%x, %w, %total, %i) {extents = array<i64: 9, 3, 4>,
          block = "(2, 16) : [2@reg*2 | 2@reg 8@simd]",
          accumulator_map = affine_map<(d0, d1)[s0] -> (d0, d1)>,
          left_map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 9)), d1)>,
          right_map = affine_map<(d0, d1)[s0] -> (d1, d0)>, accumulate = false}
        scheduled.nest() do {
          %y = tile.load(%total) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<9x3xf32>
          tile.store(%y, %out, %i) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 9)), d1)>}
          scheduled.end()
        }
        scheduled.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<18x4xf32>, %w: tensor<3x4xf32>) -> tensor<18x3xf32> {
      %y = array.call(%x, %w) {callee = "contract_0"} : tensor<18x3xf32>
      func.return %y : tensor<18x3xf32>
    }
    tile.kernel() {sym_name = "contract_0", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<18x4xf32>>, %w: !tile.ref<tensor<3x4xf32>>, %out: !tile.ref<tensor<18x3xf32>>):
      %panels = scheduled.alloc() : !tile.ref<tensor<16x4xf32>, "shared", "(16, 4) : [1@mem*64 16@mem | 4@mem*16]">
      scheduled.parallel() {extents = array<i64: 1>, grain = 1 : index} do {
      ^bb0(%panel: index):
        scheduled.nest() do {
          %part = tile.load(%w, %panel)
            {map = affine_map<(d0, d1)[s0] -> (((s0 * 16) + d1), d0)>, fill = 0.0 : f64} : tensor<4x16xf32>
          tile.store(%part, %panels, %panel) {map = affine_map<(d0, d1)[s0] -> (((s0 * 16) + d1), d0)>}
          scheduled.end()
        }
        scheduled.end()
      }
      scheduled.barrier() {scope = "team"}
      scheduled.parallel() {extents = array<i64: 2>, grain = 1 : index} do {
      ^bb0(%i: index):
        %total = scheduled.alloc() : !tile.ref<tensor<9x16xf32>, "worker">
        scheduled.dot(%x, %panels, %total, %i) {extents = array<i64: 9, 3, 4>,
          block = "(2, 16) : [2@reg*2 | 2@reg 8@simd]",
          accumulator_map = affine_map<(d0, d1)[s0] -> (d0, d1)>,
          left_map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 9)), d1)>,
          right_map = affine_map<(d0, d1)[s0] -> (d1, d0)>, accumulate = false}
        scheduled.nest() do {
          %y = tile.load(%total) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<9x3xf32>
          tile.store(%y, %out, %i) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 9)), d1)>}
          scheduled.end()
        }
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap, AffineSymExpr

from tilewright import dtypes, ops
from tilewright.cost.tiles import MatmulTile
from tilewright.cost.vectors.products import Product, Right, best_right
from tilewright.cost.vectors.register_blocks import RegisterBlock
from tilewright.cost.vectors.tiles import is_streamed, rows_along_depth
from tilewright.dialects import array, scheduled, tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import erase, insert_before
from tilewright.dtypes import DType
from tilewright.errors import ScheduleError
from tilewright.layout import Iter, Layout
from tilewright.machines.machine import Machine, MatrixAtom
from tilewright.passes.base import Remark, Unit, blocks_of
from tilewright.passes.vectors.word_panels import load_words, map_in_words, starts_at_words
from tilewright.primitives import ArrayType
from tilewright.schedules import VectorMatmul

NAMES: dict[Right, Literal["in_place", "kept", "together"]] = {
    Right.IN_PLACE: "in_place",
    Right.KEPT: "kept",
    Right.TOGETHER: "together",
}
_PLAIN = AffineMap(2, 0, (AffineExpr.dimension(0), AffineExpr.dimension(1)))


class ScheduledPackOperandsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-pack-operands"

    def apply(self, unit: Unit) -> None:
        calls = _calls(unit)
        for kernel in unit.timed_kernels(self.name):
            packed: dict[tuple[SSAValue, int, int, int], SSAValue] = {}
            for op in list(kernel.walk()):
                if not isinstance(op, scheduled.DotOp) or op.is_split:
                    continue
                instruction = _instruction(op, unit.machine)
                if instruction is not None and instruction.is_vector:
                    _pack_vector_words(unit, kernel, op, calls.get(kernel.sym_name, []), instruction, packed)
                elif instruction is not None:
                    _pack_words(unit, kernel, op, calls.get(kernel.sym_name, []), instruction)
                elif isinstance(op.right, BlockArgument) and not op.outer_steps:
                    _pack(unit, kernel, op, calls.get(kernel.sym_name, []), packed)
        _refuse_unused(unit)


def _calls(unit: Unit) -> dict[str, list[array.CallOp]]:
    found: dict[str, list[array.CallOp]] = {}
    for block in blocks_of(unit.main):
        for op in block.ops:
            if isinstance(op, array.CallOp):
                found.setdefault(op.callee, []).append(op)
    return found


def _pack(
    unit: Unit,
    kernel: tile.KernelOp,
    dot: scheduled.DotOp,
    calls: Sequence[array.CallOp],
    packed: dict[tuple[SSAValue, int, int, int], SSAValue],
) -> None:
    depth_dim, column_dim = operand_dims(dot.right_map)
    width = dot.micro_tile[1]
    dtype = tile.ref_type(dot.accumulator).dtype
    key = (dot.right, depth_dim, column_dim, width)
    source = dot.right
    if key in packed:
        dot.operands[1] = packed[key]
        return
    shape = tile.ref_type(source).shape
    if shape[column_dim] == 0:
        return  # there is nothing to pack, and no point of the grid that would read it
    layout = panel_layout(shape, depth_dim, column_dim, width)
    constants = _constant_operands(source, calls)
    if constants is None and _reads_along_depth(dot, depth_dim, unit.machine):
        return
    if constants is None and _reads_narrow_columns(dot, column_dim):
        return
    contiguous = column_dim == len(shape) - 1 and tile.ref_type(source).dtype == dtype
    place = _place(unit, dot, shape, depth_dim) if contiguous else Right.TOGETHER
    is_rare = _is_rare(dot)
    if is_rare:
        place = Right.KEPT if contiguous else Right.ALONE
    elif not contiguous and constants is None and _is_read_once(dot, unit):
        place = Right.ALONE
    elif contiguous and constants is None:
        place = _decided(unit, kernel.sym_name, place)
    if constants is None and place == Right.IN_PLACE:
        return
    subject = f"operand {source.index} of {kernel.sym_name}"  # type: ignore[attr-defined]  a block argument
    if place == Right.ALONE:
        _pack_alone(dot)
        if not is_rare:
            why = "no other tile reads its part"
            unit.remarks.append(Remark("scheduled-pack-operands", subject, "packed by each tile", why))
        return
    if constants is not None and len(list(source.uses)) == 1:
        _pack_constants(unit, constants, depth_dim, column_dim, width, dtype)
        new_type = tile.ref(ArrayType(shape, dtype), "", str(layout))
        source._type = new_type  # type: ignore[attr-defined]  block arguments have no setter
        unit.remarks.append(Remark("scheduled-pack-operands", subject, "packed at compile time", "a captured array"))
        return
    if constants is None and place == Right.KEPT:
        _keep(unit, kernel, dot, source)
        return
    packed[key] = _pack_at_run_time(kernel, source, dtype, depth_dim, column_dim, width)
    dot.operands[1] = packed[key]
    unit.remarks.append(
        Remark("scheduled-pack-operands", subject, "packed by all threads", "an operand known at run time only")
    )


def _keep(unit: Unit, kernel: tile.KernelOp, dot: scheduled.DotOp, source: SSAValue) -> None:
    """Have the first rows keep what they read of an array."""
    dot.keep = True
    subject = f"operand {source.index} of {kernel.sym_name}"  # type: ignore[attr-defined]  a block argument
    unit.remarks.append(
        Remark("scheduled-pack-operands", subject, "kept by the first rows", "other rows read it again")
    )


def _place(unit: Unit, dot: scheduled.DotOp, shape: tuple[int, ...], depth_dim: int, group: int = 1) -> Right:
    """The cheapest source of a right operand whose columns are adjacent, multiplied in words of `group` steps."""
    dtype = tile.ref_type(dot.accumulator).dtype
    height, width = dot.micro_tile
    lanes = unit.machine.lanes(dtype)
    batches = math.prod(n for d, n in enumerate(shape) if d not in (depth_dim, len(shape) - 1))
    choices = (Right.IN_PLACE, Right.KEPT, Right.TOGETHER)
    pitch_bytes = shape[-1] * dtype.itemsize // group
    steps = -(-shape[depth_dim] // group)
    product = Product(_rows(dot), shape[-1], steps, dtype, max(1, batches), pitch_bytes, choices)
    block = RegisterBlock(height, max(1, width // lanes), lanes)
    rows, columns, depth = dot.shape
    return best_right(product, MatmulTile(rows, columns, -(-depth // group)), block, unit.machine, unit.threads)


def _decided(unit: Unit, kernel: str, place: Right) -> Right:
    """The source of a right operand that is read from an array: that of the kernel's schedule, which is the cheapest
    one where it states none."""
    schedule = unit.schedules.get(kernel)
    if not isinstance(schedule, VectorMatmul):
        return place
    unit.requested.packed.add(kernel)
    if schedule.right is None:
        unit.schedules[kernel] = msgspec.structs.replace(schedule, right=NAMES[place])
        return place
    return next(right for right, name in NAMES.items() if name == schedule.right)


def _refuse_unused(unit: Unit) -> None:
    """Refuse requested sources of right operands where there is one alone."""
    for kernel, schedule in unit.schedules.items():
        stated = schedule.right if isinstance(schedule, VectorMatmul) and kernel in unit.requested.accepted else None
        if stated is not None and kernel not in unit.requested.packed:
            message = f"right={stated!r}, as the right operand is not read from rows of an array"
            unit.requested.refuse(kernel, ScheduleError(message, help="leave `right` out"))


def _instruction(dot: scheduled.DotOp, machine: Machine) -> MatrixAtom | None:
    """The instruction that multiplies the operands of a matmul as they are, by their types."""
    left, right, accumulator = (tile.ref_type(ref).dtype for ref in (dot.left, dot.right, dot.accumulator))
    atom = machine.matrix_atom(left, right, accumulator, dot.shape[2])
    return atom or machine.word_atom(left, right, accumulator)


def _pack_vector_words(
    unit: Unit,
    kernel: tile.KernelOp,
    dot: scheduled.DotOp,
    calls: Sequence[array.CallOp],
    instruction: MatrixAtom,
    packed: dict[tuple[SSAValue, int, int, int], SSAValue],
) -> None:
    """Words of an array whose columns are side by side are made where they are read, or kept by the first rows. Other
    arrays are packed in panels of words, when the program is compiled or by all threads together, where the matmul
    starts at whole words; else by each tile for itself."""
    group, width = instruction.group, dot.micro_tile[1]
    depth_dim, column_dim = operand_dims(dot.right_map)
    source, shape = dot.right, tile.ref_type(dot.right).shape
    constants = _constant_operands(source, calls)
    if isinstance(source, BlockArgument) and constants is None and column_dim == len(shape) - 1 and 0 not in shape:
        place = Right.KEPT
        if not _is_rare(dot):
            place = _decided(unit, kernel.sym_name, _place(unit, dot, shape, depth_dim, group))
        if place == Right.KEPT:
            _keep(unit, kernel, dot, source)
        if place != Right.TOGETHER:
            return
    whole = 0 not in shape and starts_at_words(dot, depth_dim, group)
    own = constants is not None and len(list(source.uses)) == 1
    if not isinstance(source, BlockArgument) or not whole or own or _is_rare(dot):
        _pack_words(unit, kernel, dot, calls if whole else (), instruction)
        return
    key = (source, depth_dim, column_dim, width)
    if key not in packed:
        dtype = tile.ref_type(source).dtype
        packed[key] = _pack_at_run_time(kernel, source, dtype, depth_dim, column_dim, width, group)
        subject = f"operand {source.index} of {kernel.sym_name}"
        unit.remarks.append(
            Remark("scheduled-pack-operands", subject, "packed by all threads", "words of an operand known at run time")
        )
    dot.operands[1] = packed[key]
    dot.right_map = map_in_words(dot.right_map, depth_dim, group)


def _pack_words(
    unit: Unit, kernel: tile.KernelOp, dot: scheduled.DotOp, calls: Sequence[array.CallOp], instruction: MatrixAtom
) -> None:
    """Panels of words, each of which has as many steps of the depth as it has room for: made when the program is
    compiled from a captured array, else by each tile for itself."""
    constants = _constant_operands(dot.right, calls)
    group, width = instruction.group, dot.micro_tile[1]
    depth_dim, column_dim = operand_dims(dot.right_map)
    if constants is not None and len(list(dot.right.uses)) == 1:
        shape = tile.ref_type(dot.right).shape
        _pack_constants(unit, constants, depth_dim, column_dim, width, tile.ref_type(dot.right).dtype, group)
        words = tuple(-(-n // group) if d == depth_dim else n for d, n in enumerate(shape))
        layout = panel_layout(words, depth_dim, column_dim, width)
        new_type = tile.ref(ArrayType(words, dtypes.u32), "", str(layout))
        dot.right._type = new_type  # type: ignore[attr-defined]  block arguments have no setter
        dot.right_map = map_in_words(dot.right_map, depth_dim, group)
        return
    depth, columns = -(-dot.shape[2] // group), -(-dot.shape[1] // width) * width
    type = ArrayType((depth, columns), dtypes.u32)
    body = Block()
    _store_panels(dot, body, load_words(body, dot.right, dot.symbols, dot.right_map, group, type), width)


def _store_panels(dot: scheduled.DotOp, body: Block, value: SSAValue, width: int) -> None:
    """Make a nest of `body`, which computes a matmul's own part of its right operand, write it to panels right before
    the matmul, and the matmul read those."""
    type = array_type(value)
    layout = panel_layout(type.shape, 0, 1, width)
    alloc = scheduled.AllocOp(result=tile.ref(type, scheduled.WORKER, str(layout)))
    body.add_op(tile.StoreOp(value=value, destination=alloc.result, map=_PLAIN))
    body.add_op(scheduled.EndOp())
    insert_before(dot, alloc, scheduled.NestOp(body=Region(body)))
    dot.operands[1] = alloc.result
    dot.right_map = AffineMap(2, len(dot.symbols), _PLAIN.results)


def _reads_along_depth(dot: scheduled.DotOp, depth_dim: int, machine: Machine) -> bool:
    """Whether a matmul has few rows and operands with the depth inside, the right one of a type that is loaded as the
    one that it is computed in."""
    right, dtype = tile.ref_type(dot.right), tile.ref_type(dot.accumulator).dtype
    converts = right.dtype.compute == dtype
    inside = any(e == AffineExpr.dimension(1) for e in dot.left_map.results[-1].dfs())
    if not inside or depth_dim != len(right.shape) - 1 or not converts:
        return False
    return _rows(dot) <= rows_along_depth(right.shape[depth_dim], dtype, machine)


def _reads_narrow_columns(dot: scheduled.DotOp, column_dim: int) -> bool:
    """Whether a matmul of few rows reads a right operand by long rows, of a narrower type than it is computed in."""
    right, dtype = tile.ref_type(dot.right), tile.ref_type(dot.accumulator).dtype
    by_columns = column_dim == len(right.shape) - 1 and not dot.is_split
    is_narrow = right.dtype != dtype == right.dtype.compute == tile.ref_type(dot.left).dtype
    return by_columns and is_narrow and is_streamed(_rows(dot), right.shape[-1], dtype)


def _is_read_once(dot: scheduled.DotOp, unit: Unit) -> bool:
    """Whether no other tile reads a matmul's part of its right operand, and panels of such parts of all threads stay in
    the third-level cache, which is shared with other data, until the tiles have read them."""
    _, columns, depth = dot.shape
    panels = columns * depth * tile.ref_type(dot.accumulator).dtype.itemsize
    return _rows(dot) == dot.shape[0] and unit.threads * panels <= unit.machine.memory("l3").bytes // 4


def _rows(dot: scheduled.DotOp) -> int:
    """Rows that meet the same part of the right operand: those of a tile, for each point of the grid that it does not
    move with."""
    used = {e.position for result in dot.right_map.results for e in result.dfs() if isinstance(e, AffineSymExpr)}
    moving = {symbol for position, symbol in enumerate(dot.symbols) if position in used}
    region = dot.parent_op()
    while region is not None and not isinstance(region, scheduled.ParallelOp):
        region = region.parent_op()
    if region is None:
        return dot.shape[0]
    indices = zip(region.body.block.args, region.shape, strict=True)
    return dot.shape[0] * math.prod(extent for index, extent in indices if index not in moving)


def operand_dims(map: AffineMap) -> tuple[int, int]:
    """The array dimensions that the depth and the columns of a right operand run along."""
    found: dict[int, int] = {}
    for position, expression in enumerate(map.results):
        for dim in (0, 1):
            if any(e == AffineExpr.dimension(dim) for e in expression.dfs()):
                found[dim] = position
    return found[0], found[1]


def panel_layout(shape: tuple[int, ...], depth_dim: int, column_dim: int, width: int) -> Layout:
    """Whole batches one after the other; in each, panels of `width` columns with the depth running inside."""
    depth, columns = shape[depth_dim], shape[column_dim]
    panels = -(-columns // width)
    below = panels * depth * width
    digits: list[tuple[Iter, ...]] = [()] * len(shape)
    for d in reversed(range(len(shape))):
        if d == depth_dim:
            digits[d] = (Iter(depth, width, "mem"),)
        elif d == column_dim:
            digits[d] = (Iter(panels, depth * width, "mem"), Iter(width, 1, "mem"))
        else:
            digits[d] = (Iter(shape[d], below, "mem"),)
            below *= shape[d]
    return Layout(shape, tuple(digits))


def pack_array(
    value: np.ndarray[Any, Any], depth_dim: int, column_dim: int, width: int, dtype: DType, group: int = 1
) -> np.ndarray[Any, Any]:
    """The elements of an array in the order of `panel_layout`, zeros in the padding; words of `group` steps of the
    depth where it is more than 1."""
    moved = np.moveaxis(ops.cast(value, dtype), (depth_dim, column_dim), (-2, -1))
    *batch, depth, columns = moved.shape
    if depth % group:
        moved = np.pad(moved, [*[(0, 0)] * len(batch), (0, -depth % group), (0, 0)])
        depth = moved.shape[-2]
    panels = np.zeros((*batch, -(-columns // width), depth // group, width, group), dtype.numpy)
    # One panel at a time: what is read and what is written stay in near memory, whatever the order of the source.
    for n in range(-(-columns // width)):
        part = moved[..., n * width : (n + 1) * width]
        steps = part.reshape(*batch, depth // group, group, part.shape[-1])
        panels[..., n, :, : part.shape[-1], :] = np.swapaxes(steps, -1, -2)
    flat = panels.reshape(-1)
    return flat if group == 1 else flat.view(np.uint32)


def _constant_operands(source: SSAValue, calls: Sequence[array.CallOp]) -> list[tuple[array.CallOp, int]] | None:
    """The call operands bound to a kernel argument if all of them are captured arrays."""
    if not isinstance(source, BlockArgument) or not calls:
        return None
    found = [(call, source.index) for call in calls]
    if all(isinstance(call.operands[i].owner, array.ConstantOp) for call, i in found):
        return found
    return None


def _pack_constants(
    unit: Unit,
    found: Sequence[tuple[array.CallOp, int]],
    depth_dim: int,
    column_dim: int,
    width: int,
    dtype: DType,
    group: int = 1,
) -> None:
    for call, position in found:
        constant = call.operands[position].owner
        if not isinstance(constant, array.ConstantOp):
            continue
        name = f"{constant.resource}.panels.{depth_dim}.{column_dim}.{width}.{dtype.name}"
        if name not in unit.constants:
            value = unit.constants[constant.resource]
            unit.constants[name] = pack_array(value, depth_dim, column_dim, width, dtype, group)
        flat = unit.constants[name]
        type = ArrayType(flat.shape, dtype if group == 1 else dtypes.u32)
        made = array.ConstantOp(value=0, resource=name, outputs=[tensor(type)])
        insert_before(call, made)
        call.operands[position] = made.results[0]
        if not list(constant.results[0].uses):
            erase(constant)


def _is_rare(dot: scheduled.DotOp) -> bool:
    """Whether a matmul is where the kernel nearly never is: nothing is made for it beforehand."""
    region = dot.parent_region()
    while region is not None:
        parent = region.parent_op()
        if isinstance(parent, tile.IfOp) and parent.likely and region is parent.otherwise:
            return True
        region = None if parent is None else parent.parent_region()
    return False


def _pack_alone(dot: scheduled.DotOp) -> None:
    """Panels of a matmul's own part of its right operand."""
    source = tile.ref_type(dot.right).dtype
    dtype = tile.ref_type(dot.accumulator).dtype
    type = ArrayType((dot.shape[2], -(-dot.shape[1] // dot.micro_tile[1]) * dot.micro_tile[1]), source)
    body = Block()
    fill = 0.0 if source.is_float else 0
    load = tile.LoadOp(source=dot.right, symbols=dot.symbols, map=dot.right_map, fill=fill, result=tensor(type))
    body.add_op(load)
    value = load.result
    if source != dtype:
        cast = tile.CastOp(arguments=[value], outputs=[tensor(ArrayType(type.shape, dtype))])
        body.add_op(cast)
        value = cast.results[0]
    _store_panels(dot, body, value, dot.micro_tile[1])


def _pack_at_run_time(
    kernel: tile.KernelOp,
    source: SSAValue,
    dtype: DType,
    depth_dim: int,
    column_dim: int,
    width: int,
    group: int = 1,
) -> SSAValue:
    """Panels of a whole array; of words of `group` steps of the depth where it is more than 1."""
    block = kernel.body.block
    sizes = list(tile.ref_type(source).shape)
    panels = -(-sizes[column_dim] // width)
    sizes[column_dim], sizes[depth_dim] = panels * width, -(-sizes[depth_dim] // group)
    shape = tuple(sizes)
    layout = panel_layout(shape, depth_dim, column_dim, width)
    element = dtype if group == 1 else dtypes.u32
    alloc = scheduled.AllocOp(result=tile.ref(ArrayType(shape, element), scheduled.SHARED, str(layout)))
    others = [d for d in range(len(shape)) if d not in (depth_dim, column_dim)]
    extents = (*(shape[d] for d in others), panels)
    body = Block(arg_types=[IndexType() for _ in extents])
    indices: list[SSAValue] = list(body.args)
    stored = tile.ref_type(source).shape
    if group > 1 and depth_dim == len(stored) - 1 and stored[-1] % group == 0:
        # The words are in memory already: they are moved as they are.
        words = ArrayType((*stored[:-1], stored[-1] // group), element)
        view = scheduled.ViewOp(source=source, result=tile.ref(words))
        body.add_op(view)
        source, dtype, group = view.result, element, 1
    nest = _pack_nest(source, alloc.result, indices, shape, dtype, others, depth_dim, column_dim, width, group)
    body.add_op(nest)
    body.add_op(scheduled.EndOp())
    parallel = scheduled.ParallelOp(extents=extents, grain=1, body=Region(body))
    barrier = scheduled.BarrierOp(scope="team")
    # The kernel's own region is its last one.
    last = next(op for op in reversed(list(block.ops)) if isinstance(op, scheduled.ParallelOp))
    new: list[Operation] = [alloc, parallel, barrier]
    for op in new:
        block.insert_op_before(op, last)
    return alloc.result


def _pack_nest(
    source: SSAValue,
    target: SSAValue,
    indices: list[SSAValue],
    shape: tuple[int, ...],
    dtype: DType,
    others: list[int],
    depth_dim: int,
    column_dim: int,
    width: int,
    group: int = 1,
) -> scheduled.NestOp:
    results: list[AffineExpr] = [AffineExpr.constant(0)] * len(shape)
    for position, d in enumerate(others):
        results[d] = AffineExpr.symbol(position)
    results[depth_dim] = AffineExpr.dimension(0)
    results[column_dim] = AffineExpr.symbol(len(others)) * width + AffineExpr.dimension(1)
    map = AffineMap(2, len(indices), tuple(results))
    extents = (shape[depth_dim], width)
    block = Block()
    type = tile.ref_type(source)
    if group > 1:
        words = load_words(block, source, indices, map, group, ArrayType(extents, dtypes.u32))
        block.add_op(tile.StoreOp(value=words, destination=target, symbols=indices, map=map))
        block.add_op(scheduled.EndOp())
        return scheduled.NestOp(body=Region(block))
    fill = None
    if type.shape[column_dim] != shape[column_dim]:
        fill = 0.0 if type.dtype.is_float else 0  # a matmul may read the padding of the last panel
    result = tensor(ArrayType(extents, type.dtype))
    load = tile.LoadOp(source=source, symbols=indices, map=map, fill=fill, result=result)
    block.add_op(load)
    value = load.result
    if type.dtype != dtype:
        cast = tile.CastOp(arguments=[value], outputs=[tensor(ArrayType(extents, dtype))])
        block.add_op(cast)
        value = cast.results[0]
    block.add_op(tile.StoreOp(value=value, destination=target, symbols=indices, map=map))
    block.add_op(scheduled.EndOp())
    return scheduled.NestOp(body=Region(block))
