"""Split the operands of matmuls in parts into sums of a narrower type.

Each tile splits its rows of the left operand, right before the matmul reads them, and its columns of the right operand
if no other tile reads them, or few do. Otherwise all threads split the right operand at the start of the kernel, one
depth step of some adjacent panels at a time. Operands are padded with zeros to whole blocks and steps. A word holds the
same part of two elements that are half a depth step apart, in both operands, so that whole vectors of elements become
whole vectors of words.

Before:
    func.func @main(%x: tensor<8x32xf32>, %w: tensor<32x3xf32>) -> tensor<8x3xf32> {
      %y = array.call(%x, %w) {callee = "contract_0"} : tensor<8x3xf32>
      func.return %y : tensor<8x3xf32>
    }
    tile.kernel() {sym_name = "contract_0", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<8x32xf32>>, %w: !tile.ref<tensor<32x3xf32>>, %out: !tile.ref<tensor<8x3xf32>>):
      scheduled.parallel() {extents = array<i64: 1>, grain = 1 : index} do {
      ^bb0(%i: index):
        %total = scheduled.alloc() : !tile.ref<tensor<32x32xf32>, "worker">
        scheduled.dot(%x, %w, %total) {extents = array<i64: 8, 3, 32>, block = "(32, 32) : [32@reg*2 | 2@reg 16@simd]",
          left_map = affine_map<(d0, d1) -> (d0, d1)>, right_map = affine_map<(d0, d1) -> (d0, d1)>,
          accumulate = false, parts = 3 : index, scale = 24 : index}
        scheduled.nest() do {
          %y = tile.load(%total) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<8x3xf32>
          tile.store(%y, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
          scheduled.end()
        }
        scheduled.end()
      }
      tile.yield()
    }
After:
    builtin.module {
      func.func @main(%0: tensor<8x32xf32>, %1: tensor<32x3xf32>) -> tensor<8x3xf32> {
        %2 = array.call(%0, %1) {callee = "contract_0"} : tensor<8x3xf32>
        func.return %2 : tensor<8x3xf32>
      }
      tile.kernel() {sym_name = "contract_0", grid = array<i64>, effects = ["in", "in", "out"]} do {
      ^bb0(%0: !tile.ref<tensor<8x32xf32>>, %1: !tile.ref<tensor<32x3xf32>>, %2: !tile.ref<tensor<8x3xf32>>):
        scheduled.parallel() {extents = array<i64: 1>, grain = 1 : index} do {
        ^bb0(%3: index):
          %4 = scheduled.alloc() : !tile.ref<tensor<32x32xf32>, "worker">
          %5 = scheduled.alloc() : !tile.ref<tensor<1x1x3x2x16x16xui32>, "worker">
          scheduled.nest() do {
            %6 = tile.load(%1) {map = affine_map<(d0, d1, d2, d3, d4) -> (((d1 * 32) + d3), (((d0 * 32) + (d2 * 16))
              + d4))>, fill = 0.000000e+00 : f64} : tensor<1x1x2x16x16xf32>
            %7 = tile.full() {value = 0x4170000000000000 : f64} : tensor<1x1x2x16x16xf32>
            %8 = tile.map(%6, %7) {fn = "multiply"} : tensor<1x1x2x16x16xf32>
            %9 = tile.full() {value = 4294901760 : index} : tensor<1x1x2x16x16xui32>
            %10 = tile.bitcast(%8) : tensor<1x1x2x16x16xui32>
            %11 = tile.full() {value = 32768 : index} : tensor<1x1x2x16x16xui32>
            %12 = tile.map(%10, %11) {fn = "add"} : tensor<1x1x2x16x16xui32>
            %13 = tile.map(%12, %9) {fn = "bitwise_and"} : tensor<1x1x2x16x16xui32>
            %14 = tile.bitcast(%13) : tensor<1x1x2x16x16xf32>
            %15 = tile.map(%8, %14) {fn = "subtract"} : tensor<1x1x2x16x16xf32>
            %16 = tile.bitcast(%15) : tensor<1x1x2x16x16xui32>
            %17 = tile.map(%16, %9) {fn = "bitwise_and"} : tensor<1x1x2x16x16xui32>
            %18 = tile.bitcast(%17) : tensor<1x1x2x16x16xf32>
            %19 = tile.map(%15, %18) {fn = "subtract"} : tensor<1x1x2x16x16xf32>
            %20 = tile.bitcast(%19) : tensor<1x1x2x16x16xui32>
            %21 = tile.map(%20, %9) {fn = "bitwise_and"} : tensor<1x1x2x16x16xui32>
            %22 = tile.load(%1) {map = affine_map<(d0, d1, d2, d3, d4) -> ((((d1 * 32) + 16) + d3), (((d0 * 32) +
              (d2 * 16)) + d4))>, fill = 0.000000e+00 : f64} : tensor<1x1x2x16x16xf32>
            %23 = tile.map(%22, %7) {fn = "multiply"} : tensor<1x1x2x16x16xf32>
            %24 = tile.bitcast(%23) : tensor<1x1x2x16x16xui32>
            %25 = tile.map(%24, %11) {fn = "add"} : tensor<1x1x2x16x16xui32>
            %26 = tile.map(%25, %9) {fn = "bitwise_and"} : tensor<1x1x2x16x16xui32>
            %27 = tile.bitcast(%26) : tensor<1x1x2x16x16xf32>
            %28 = tile.map(%23, %27) {fn = "subtract"} : tensor<1x1x2x16x16xf32>
            %29 = tile.bitcast(%28) : tensor<1x1x2x16x16xui32>
            %30 = tile.map(%29, %9) {fn = "bitwise_and"} : tensor<1x1x2x16x16xui32>
            %31 = tile.bitcast(%30) : tensor<1x1x2x16x16xf32>
            %32 = tile.map(%28, %31) {fn = "subtract"} : tensor<1x1x2x16x16xf32>
            %33 = tile.bitcast(%32) : tensor<1x1x2x16x16xui32>
            %34 = tile.map(%33, %9) {fn = "bitwise_and"} : tensor<1x1x2x16x16xui32>
            %35 = tile.full() {value = 16 : index} : tensor<1x1x2x16x16xui32>
            %36 = tile.map(%13, %35) {fn = "shift_right"} : tensor<1x1x2x16x16xui32>
            %37 = tile.map(%36, %26) {fn = "bitwise_or"} : tensor<1x1x2x16x16xui32>
            tile.store(%37, %5) {map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, 0, d2, d3, d4)>}
            %38 = tile.map(%17, %35) {fn = "shift_right"} : tensor<1x1x2x16x16xui32>
            %39 = tile.map(%38, %30) {fn = "bitwise_or"} : tensor<1x1x2x16x16xui32>
            tile.store(%39, %5) {map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, 1, d2, d3, d4)>}
            %40 = tile.map(%21, %35) {fn = "shift_right"} : tensor<1x1x2x16x16xui32>
            %41 = tile.map(%40, %34) {fn = "bitwise_or"} : tensor<1x1x2x16x16xui32>
            tile.store(%41, %5) {map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, 2, d2, d3, d4)>}
            scheduled.end()
          }
          %42 = scheduled.alloc() : !tile.ref<tensor<1x1x3x32x16xui32>, "worker">
          scheduled.nest() do {
            %43 = tile.load(%0) {map = affine_map<(d0, d1, d2, d3) -> (((d0 * 32) + d2), ((d1 * 32) + d3))>, fill =
              0.000000e+00 : f64} : tensor<1x1x32x16xf32>
            %44 = tile.full() {value = 0x4170000000000000 : f64} : tensor<1x1x32x16xf32>
            %45 = tile.map(%43, %44) {fn = "multiply"} : tensor<1x1x32x16xf32>
            %46 = tile.full() {value = 4294901760 : index} : tensor<1x1x32x16xui32>
            %47 = tile.bitcast(%45) : tensor<1x1x32x16xui32>
            %48 = tile.full() {value = 32768 : index} : tensor<1x1x32x16xui32>
            %49 = tile.map(%47, %48) {fn = "add"} : tensor<1x1x32x16xui32>
            %50 = tile.map(%49, %46) {fn = "bitwise_and"} : tensor<1x1x32x16xui32>
            %51 = tile.bitcast(%50) : tensor<1x1x32x16xf32>
            %52 = tile.map(%45, %51) {fn = "subtract"} : tensor<1x1x32x16xf32>
            %53 = tile.bitcast(%52) : tensor<1x1x32x16xui32>
            %54 = tile.map(%53, %46) {fn = "bitwise_and"} : tensor<1x1x32x16xui32>
            %55 = tile.bitcast(%54) : tensor<1x1x32x16xf32>
            %56 = tile.map(%52, %55) {fn = "subtract"} : tensor<1x1x32x16xf32>
            %57 = tile.bitcast(%56) : tensor<1x1x32x16xui32>
            %58 = tile.map(%57, %46) {fn = "bitwise_and"} : tensor<1x1x32x16xui32>
            %59 = tile.load(%0) {map = affine_map<(d0, d1, d2, d3) -> (((d0 * 32) + d2), (((d1 * 32) + 16) + d3))>,
              fill = 0.000000e+00 : f64} : tensor<1x1x32x16xf32>
            %60 = tile.map(%59, %44) {fn = "multiply"} : tensor<1x1x32x16xf32>
            %61 = tile.bitcast(%60) : tensor<1x1x32x16xui32>
            %62 = tile.map(%61, %48) {fn = "add"} : tensor<1x1x32x16xui32>
            %63 = tile.map(%62, %46) {fn = "bitwise_and"} : tensor<1x1x32x16xui32>
            %64 = tile.bitcast(%63) : tensor<1x1x32x16xf32>
            %65 = tile.map(%60, %64) {fn = "subtract"} : tensor<1x1x32x16xf32>
            %66 = tile.bitcast(%65) : tensor<1x1x32x16xui32>
            %67 = tile.map(%66, %46) {fn = "bitwise_and"} : tensor<1x1x32x16xui32>
            %68 = tile.bitcast(%67) : tensor<1x1x32x16xf32>
            %69 = tile.map(%65, %68) {fn = "subtract"} : tensor<1x1x32x16xf32>
            %70 = tile.bitcast(%69) : tensor<1x1x32x16xui32>
            %71 = tile.map(%70, %46) {fn = "bitwise_and"} : tensor<1x1x32x16xui32>
            %72 = tile.full() {value = 16 : index} : tensor<1x1x32x16xui32>
            %73 = tile.map(%50, %72) {fn = "shift_right"} : tensor<1x1x32x16xui32>
            %74 = tile.map(%73, %63) {fn = "bitwise_or"} : tensor<1x1x32x16xui32>
            tile.store(%74, %42) {map = affine_map<(d0, d1, d2, d3) -> (d0, d1, 0, d2, d3)>}
            %75 = tile.map(%54, %72) {fn = "shift_right"} : tensor<1x1x32x16xui32>
            %76 = tile.map(%75, %67) {fn = "bitwise_or"} : tensor<1x1x32x16xui32>
            tile.store(%76, %42) {map = affine_map<(d0, d1, d2, d3) -> (d0, d1, 1, d2, d3)>}
            %77 = tile.map(%58, %72) {fn = "shift_right"} : tensor<1x1x32x16xui32>
            %78 = tile.map(%77, %71) {fn = "bitwise_or"} : tensor<1x1x32x16xui32>
            tile.store(%78, %42) {map = affine_map<(d0, d1, d2, d3) -> (d0, d1, 2, d2, d3)>}
            scheduled.end()
          }
          scheduled.dot(%42, %5, %4) {extents = array<i64: 8, 3, 32>, block =
            "(32, 32) : [32@reg*2 | 2@reg 16@simd]", left_map = affine_map<(d0, d1) -> (d0, d1)>, right_map =
            affine_map<(d0, d1) -> (d0, d1)>, accumulate = false, parts = 3 : index, scale = 24 : index}
          scheduled.nest() do {
            %79 = tile.load(%4) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<8x3xf32>
            tile.store(%79, %2) {map = affine_map<(d0, d1) -> (d0, d1)>}
            scheduled.end()
          }
          scheduled.end()
        }
        tile.yield()
      }
    }
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.cost.tiles import even_split
from tilewright.cost.vectors.split_products import can_split_beside, takes_own_columns
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import tensor
from tilewright.dialects.rewriting import insert_before
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.machines.machine import Machine
from tilewright.passes.affine_access import Index, linear_form
from tilewright.passes.base import Remark, Unit
from tilewright.passes.vectors.scheduled_pack_operands import operand_dims
from tilewright.primitives import ArrayType

# The depth and the columns of an instruction, in how many words the depth is, and the bits of a part.
STEP, COLUMNS, WORDS, PART_BITS = 32, 16, 16, 16
# Panels whose words one thread makes side by side, so that it reads runs of rows that the hardware follows.
PANELS_TOGETHER = 8


class ScheduledSplitOperandsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-split-operands"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in list(kernel.walk()):
                if isinstance(op, scheduled.DotOp) and op.parts is not None:
                    subject = f"operands of {kernel.sym_name}"
                    unit.remarks.append(
                        Remark(self.name, subject, f"in {op.parts_and_scale[0]} parts", "lowest predicted time")
                    )
                    if _takes_own_columns(op, unit.threads):
                        _split_right_here(op)
                    else:
                        _split_right(kernel, op)
                    if not _is_split_beside(op, unit.machine):
                        _split_left(op)


class _Values:
    """Appends operations on tiles of one shape to a block."""

    def __init__(self, block: Block, shape: tuple[int, ...]) -> None:
        self.block, self.shape = block, shape
        self._numbers: dict[tuple[float | int, DType], SSAValue] = {}

    def type(self, dtype: DType) -> Any:
        return tensor(ArrayType(self.shape, dtype))

    def add(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def map(self, fn: str, *operands: SSAValue) -> SSAValue:
        return self.add(tile.MapOp(arguments=operands, fn=fn, outputs=[operands[0].type]))

    def full(self, value: float | int, dtype: DType) -> SSAValue:
        if (value, dtype) not in self._numbers:
            made = tile.FullOp(value=value, result=self.type(dtype))
            self._numbers[value, dtype] = self.add(made)
        return self._numbers[value, dtype]

    def bitcast(self, value: SSAValue, dtype: DType) -> SSAValue:
        return self.add(tile.BitcastOp(arguments=[value], outputs=[self.type(dtype)]))

    def load(self, ref: SSAValue, symbols: Sequence[SSAValue], map: AffineMap) -> SSAValue:
        type = self.type(dtypes.f32)
        return self.add(tile.LoadOp(source=ref, symbols=symbols, map=map, fill=0.0, result=type))

    def store(self, value: SSAValue, ref: SSAValue, symbols: Sequence[SSAValue], map: AffineMap) -> None:
        self.block.add_op(tile.StoreOp(value=value, destination=ref, symbols=symbols, map=map))

    def parts(self, value: SSAValue, count: int, scale: int) -> list[SSAValue]:
        """The bits of a value's parts, which have what they are in the upper half of a word. The first is rounded to
        nearest, so that the others are of either sign and what their matmuls leave out does not add up; the last has no
        bits in the lower half, or is no number."""
        rest = self.map("multiply", value, self.full(float(2**scale), dtypes.f32))
        upper = self.full(-(1 << PART_BITS) & 0xFFFFFFFF, dtypes.u32)
        found: list[SSAValue] = []
        for number in range(count - 1):
            bits = self.bitcast(rest, dtypes.u32)
            if number == 0:
                bits = self.map("add", bits, self.full(1 << (PART_BITS - 1), dtypes.u32))
            found.append(self.map("bitwise_and", bits, upper))
            rest = self.map("subtract", rest, self.bitcast(found[-1], dtypes.f32))
        return [*found, self.map("bitwise_and", self.bitcast(rest, dtypes.u32), upper)]

    def word(self, first: SSAValue, second: SSAValue) -> SSAValue:
        """Parts of two steps of the depth, the first in the lower half."""
        return self.map("bitwise_or", self.map("shift_right", first, self.full(PART_BITS, dtypes.u32)), second)


def _is_split_beside(dot: scheduled.DotOp, machine: Machine) -> bool:
    """Whether the matmul takes its rows apart itself, block by block: where the cost model states it, whole steps of a
    row are adjacent, and each tile has as many panels."""
    (rows, columns, depth), (height, width) = dot.shape, dot.micro_tile
    panels, blocks = -(-columns // width), -(-rows // height)
    *others, inner = (linear_form(result, (Index(0), Index(1))) for result in dot.left_map.results)
    contiguous = inner is not None and inner.dims == ((1, 1),)
    contiguous = contiguous and all(form is not None and not form.coefficient(1) for form in others)
    panel_dim = len(dot.right_map.results) - 2
    whole = tile.ref_type(dot.left).shape[-1] % depth == 0 and tile.ref_type(dot.right).shape[panel_dim] % panels == 0
    right_bytes = panels * width * depth * dot.parts_and_scale[0] * PART_BITS // 8
    return contiguous and whole and can_split_beside(blocks, right_bytes, machine)


def _split_left(dot: scheduled.DotOp) -> None:
    """Make the matmul read parts of its rows, which a nest before it makes."""
    height, steps = dot.micro_tile[0], dot.shape[2] // STEP
    blocks = -(-dot.shape[0] // height)
    buffer = ArrayType((blocks, steps, dot.parts_and_scale[0], height, WORDS), dtypes.u32)
    alloc = scheduled.AllocOp(result=tile.ref(buffer, scheduled.WORKER))
    block, step, row, word = (AffineExpr.dimension(d) for d in range(4))
    source = dot.left_map
    symbols = [AffineExpr.symbol(i) for i in range(source.num_symbols)]
    values = _Values(Block(), (blocks, steps, height, WORDS))

    def parts_of(number: int) -> list[SSAValue]:
        at = (block * height + row, step * STEP + number * WORDS + word)
        results = tuple(e.replace_dims_and_symbols(at, symbols) for e in source.results)
        loaded = values.load(dot.left, dot.symbols, AffineMap(4, len(symbols), results))
        return values.parts(loaded, *dot.parts_and_scale)

    for number, (first, second) in enumerate(zip(parts_of(0), parts_of(1), strict=True)):
        place = AffineMap(4, 0, (block, step, AffineExpr.constant(number), row, word))
        values.store(values.word(first, second), alloc.result, [], place)
    values.block.add_op(scheduled.EndOp())
    insert_before(dot, alloc, scheduled.NestOp(body=Region(values.block)))
    dot.operands[0] = alloc.result
    dot.left_map = AffineMap(2, len(symbols), (block, step))


def _takes_own_columns(dot: scheduled.DotOp, threads: int) -> bool:
    """Whether each tile makes the parts of its columns of the right operand for itself."""
    parallel = dot.parent_op()
    while parallel is not None and not isinstance(parallel, scheduled.ParallelOp):
        parallel = parallel.parent_op()
    if parallel is None:
        raise CompilerBug("a matmul in parts is in no parallel loop")
    width, sizes = dot.micro_tile[1], tile.ref_type(dot.right).shape
    depth_dim, column_dim = operand_dims(dot.right_map)
    others = [n for d, n in enumerate(sizes) if d not in (depth_dim, column_dim)]
    panels = math.prod(others) * -(-sizes[column_dim] // width)
    numbers = width * -(-sizes[depth_dim] // dot.shape[2]) * dot.shape[2]
    return takes_own_columns(math.prod(parallel.shape), -(-dot.shape[1] // width), panels, numbers, threads)


def _split_right_here(dot: scheduled.DotOp) -> None:
    """Make the matmul read parts of its columns, which a nest before it makes."""
    width, steps, source = dot.micro_tile[1], dot.shape[2] // STEP, dot.right_map
    panels = -(-dot.shape[1] // width)
    alloc = _alloc_right(dot, (panels,), steps, scheduled.WORKER)
    symbols = [AffineExpr.symbol(i) for i in range(source.num_symbols)]

    def window(depth: AffineExpr, column: AffineExpr) -> tuple[AffineExpr, ...]:
        return tuple(e.replace_dims_and_symbols((depth, column), symbols) for e in source.results)

    body = Block()
    _right_words(dot, body, alloc.result, (steps, panels), dot.symbols, window, lambda step, panel: (panel, step))
    body.add_op(scheduled.EndOp())
    insert_before(dot, alloc, scheduled.NestOp(body=Region(body)))
    dot.operands[1] = alloc.result
    dot.right_map = AffineMap(2, len(symbols), (AffineExpr.dimension(0), AffineExpr.dimension(1)))


def _split_right(kernel: tile.KernelOp, dot: scheduled.DotOp) -> None:
    """Make the matmul read parts of an array, which all threads make at the start of the kernel, panel by panel."""
    if not isinstance(dot.right, BlockArgument):
        raise CompilerBug("the right operand of a matmul in parts is no array")
    map = dot.right_map
    depth_dim, column_dim = operand_dims(map)
    width, depth = dot.micro_tile[1], dot.shape[2]
    sizes = tile.ref_type(dot.right).shape
    others = [d for d in range(len(sizes)) if d not in (depth_dim, column_dim)]
    panels, steps = -(-sizes[column_dim] // width), -(-sizes[depth_dim] // depth) * (depth // STEP)
    alloc = _alloc_right(dot, (*(sizes[d] for d in others), panels), steps, scheduled.SHARED)
    group = even_split(panels, PANELS_TOGETHER)
    extents = (*(sizes[d] for d in others), -(-panels // group), steps)
    *batch, first, step = [AffineExpr.symbol(i) for i in range(len(extents))]

    def window(depth: AffineExpr, column: AffineExpr) -> tuple[AffineExpr, ...]:
        known = {depth_dim: step * STEP + depth, column_dim: first * (group * width) + column}
        at = iter(batch)
        return tuple(known[d] if d in known else next(at) for d in range(len(sizes)))

    def place(step_of_one: AffineExpr, panel: AffineExpr) -> tuple[AffineExpr, ...]:
        return (*batch, first * group + panel, step + step_of_one)

    words, body = Block(), Block(arg_types=[IndexType() for _ in extents])
    _right_words(dot, words, alloc.result, (1, group), body.args, window, place)
    words.add_op(scheduled.EndOp())
    body.add_op(scheduled.NestOp(body=Region(words)))
    body.add_op(scheduled.EndOp())
    parallel = scheduled.ParallelOp(extents=extents, grain=1, body=Region(body))
    last = next(op for op in reversed(list(kernel.body.block.ops)) if isinstance(op, scheduled.ParallelOp))
    insert_before(last, alloc, parallel, scheduled.BarrierOp(scope="team"))
    moved = [map.results[d] for d in others]
    moved += [in_units(map.results[column_dim], 1, width), in_units(map.results[depth_dim], 0, STEP)]
    dot.operands[1] = alloc.result
    dot.right_map = AffineMap(2, map.num_symbols, tuple(moved))


def _alloc_right(dot: scheduled.DotOp, extents: Sequence[int], steps: int, memory: str) -> scheduled.AllocOp:
    """Room for the parts of panels."""
    panel = (steps, dot.parts_and_scale[0], dot.micro_tile[1] // COLUMNS, WORDS, COLUMNS)
    return scheduled.AllocOp(result=tile.ref(ArrayType((*extents, *panel), dtypes.u32), memory))


def _right_words(
    dot: scheduled.DotOp,
    block: Block,
    target: SSAValue,
    steps_and_panels: tuple[int, int],
    symbols: Sequence[SSAValue],
    window: Callable[[AffineExpr, AffineExpr], tuple[AffineExpr, ...]],
    panel_place: Callable[[AffineExpr, AffineExpr], tuple[AffineExpr, ...]],
) -> None:
    """Append what makes the words of panels: `window` states where the operand has a step of the depth and a column,
    `panel_place` where `target` has a panel."""
    halves = dot.micro_tile[1] // COLUMNS
    panel, step, half, word, column = (AffineExpr.dimension(d) for d in range(5))
    steps, panels = steps_and_panels
    values = _Values(block, (panels, steps, halves, WORDS, COLUMNS))

    def parts_of(number: int) -> list[SSAValue]:
        depth = step * STEP + number * WORDS + word
        results = window(depth, (panel * halves + half) * COLUMNS + column)
        loaded = values.load(dot.right, symbols, AffineMap(5, len(symbols), results))
        return values.parts(loaded, *dot.parts_and_scale)

    for number, (first, second) in enumerate(zip(parts_of(0), parts_of(1), strict=True)):
        place = (*panel_place(step, panel), AffineExpr.constant(number), half, word, column)
        values.store(values.word(first, second), target, symbols, AffineMap(5, len(symbols), place))


def in_units(expression: AffineExpr, dim: int, size: int) -> AffineExpr:
    """A coordinate that runs along `dim` from a multiple of `size` on, counted in units of that."""
    form = linear_form(expression, (Index(0), Index(1)))
    if form is None or any(c % size for c in (form.constant, *(c for _, c in form.symbols))):
        raise CompilerBug("a matmul in parts starts inside a block")
    result: AffineExpr = AffineExpr.dimension(1 - dim) + form.constant // size
    for symbol, coefficient in form.symbols:
        result = result + AffineExpr.symbol(symbol) * (coefficient // size)
    return result
