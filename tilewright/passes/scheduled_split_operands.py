"""Take the operands of products in parts apart.

Each tile does so with its rows of the left operand, right before it multiplies them; all threads do so with the right
operand, at the start of the kernel, panel by panel. What an operand lacks of whole blocks and steps are zeros.

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
    func.func @main(%x: tensor<8x32xf32>, %w: tensor<32x3xf32>) -> tensor<8x3xf32> {
      %y = array.call(%x, %w) {callee = "contract_0"} : tensor<8x3xf32>
      func.return %y : tensor<8x3xf32>
    }
    tile.kernel() {sym_name = "contract_0", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<8x32xf32>>, %w: !tile.ref<tensor<32x3xf32>>, %out: !tile.ref<tensor<8x3xf32>>):
      %0 = scheduled.alloc() : !tile.ref<tensor<1x1x3x2x16x16xui32>, "shared">
      scheduled.parallel() {extents = array<i64: 1>, grain = 1 : index} do {
      ^bb0(%1: index):
        scheduled.nest() do {
          %2 = tile.load(%w, %1)
            {map = affine_map<(d0, d1, d2, d3)[s0] -> (((d0 * 32) + (d1 * 2)), (((s0 * 32) + (d2 * 16)) + d3))>,
              fill = 0.000000e+00 : f64} : tensor<1x16x2x16xf32>
          %3 = tile.full() {value = 0x4170000000000000 : f64} : tensor<1x16x2x16xf32>
          %4 = tile.map(%2, %3) {fn = "multiply"} : tensor<1x16x2x16xf32>
          %5 = tile.full() {value = 4294901760 : index} : tensor<1x16x2x16xui32>
          %6 = tile.bitcast(%4) : tensor<1x16x2x16xui32>
          %7 = tile.full() {value = 16 : index} : tensor<1x16x2x16xui32>
          %8 = tile.map(%6, %7) {fn = "shift_right"} : tensor<1x16x2x16xui32>
          %9 = tile.full() {value = 1 : index} : tensor<1x16x2x16xui32>
          %10 = tile.map(%8, %9) {fn = "bitwise_and"} : tensor<1x16x2x16xui32>
          %11 = tile.full() {value = 32767 : index} : tensor<1x16x2x16xui32>
          %12 = tile.map(%11, %10) {fn = "add"} : tensor<1x16x2x16xui32>
          %13 = tile.map(%6, %12) {fn = "add"} : tensor<1x16x2x16xui32>
          %14 = tile.map(%13, %5) {fn = "bitwise_and"} : tensor<1x16x2x16xui32>
          %15 = tile.bitcast(%14) : tensor<1x16x2x16xf32>
          %16 = tile.map(%4, %15) {fn = "subtract"} : tensor<1x16x2x16xf32>
          %17 = tile.bitcast(%16) : tensor<1x16x2x16xui32>
          %18 = tile.map(%17, %7) {fn = "shift_right"} : tensor<1x16x2x16xui32>
          %19 = tile.map(%18, %9) {fn = "bitwise_and"} : tensor<1x16x2x16xui32>
          %20 = tile.map(%11, %19) {fn = "add"} : tensor<1x16x2x16xui32>
          %21 = tile.map(%17, %20) {fn = "add"} : tensor<1x16x2x16xui32>
          %22 = tile.map(%21, %5) {fn = "bitwise_and"} : tensor<1x16x2x16xui32>
          %23 = tile.bitcast(%22) : tensor<1x16x2x16xf32>
          %24 = tile.map(%16, %23) {fn = "subtract"} : tensor<1x16x2x16xf32>
          %25 = tile.bitcast(%24) : tensor<1x16x2x16xui32>
          %26 = tile.map(%25, %5) {fn = "bitwise_and"} : tensor<1x16x2x16xui32>
          %27 = tile.load(%w, %1)
            {map = affine_map<(d0, d1, d2, d3)[s0] -> ((((d0 * 32) + (d1 * 2)) + 1), (((s0 * 32) + (d2 * 16)) +
              d3))>, fill = 0.000000e+00 : f64} : tensor<1x16x2x16xf32>
          %28 = tile.map(%27, %3) {fn = "multiply"} : tensor<1x16x2x16xf32>
          %29 = tile.bitcast(%28) : tensor<1x16x2x16xui32>
          %30 = tile.map(%29, %7) {fn = "shift_right"} : tensor<1x16x2x16xui32>
          %31 = tile.map(%30, %9) {fn = "bitwise_and"} : tensor<1x16x2x16xui32>
          %32 = tile.map(%11, %31) {fn = "add"} : tensor<1x16x2x16xui32>
          %33 = tile.map(%29, %32) {fn = "add"} : tensor<1x16x2x16xui32>
          %34 = tile.map(%33, %5) {fn = "bitwise_and"} : tensor<1x16x2x16xui32>
          %35 = tile.bitcast(%34) : tensor<1x16x2x16xf32>
          %36 = tile.map(%28, %35) {fn = "subtract"} : tensor<1x16x2x16xf32>
          %37 = tile.bitcast(%36) : tensor<1x16x2x16xui32>
          %38 = tile.map(%37, %7) {fn = "shift_right"} : tensor<1x16x2x16xui32>
          %39 = tile.map(%38, %9) {fn = "bitwise_and"} : tensor<1x16x2x16xui32>
          %40 = tile.map(%11, %39) {fn = "add"} : tensor<1x16x2x16xui32>
          %41 = tile.map(%37, %40) {fn = "add"} : tensor<1x16x2x16xui32>
          %42 = tile.map(%41, %5) {fn = "bitwise_and"} : tensor<1x16x2x16xui32>
          %43 = tile.bitcast(%42) : tensor<1x16x2x16xf32>
          %44 = tile.map(%36, %43) {fn = "subtract"} : tensor<1x16x2x16xf32>
          %45 = tile.bitcast(%44) : tensor<1x16x2x16xui32>
          %46 = tile.map(%45, %5) {fn = "bitwise_and"} : tensor<1x16x2x16xui32>
          %47 = tile.map(%14, %7) {fn = "shift_right"} : tensor<1x16x2x16xui32>
          %48 = tile.map(%47, %34) {fn = "bitwise_or"} : tensor<1x16x2x16xui32>
          tile.store(%48, %0, %1) {map = affine_map<(d0, d1, d2, d3)[s0] -> (s0, d0, 0, d2, d1, d3)>}
          %49 = tile.map(%22, %7) {fn = "shift_right"} : tensor<1x16x2x16xui32>
          %50 = tile.map(%49, %42) {fn = "bitwise_or"} : tensor<1x16x2x16xui32>
          tile.store(%50, %0, %1) {map = affine_map<(d0, d1, d2, d3)[s0] -> (s0, d0, 1, d2, d1, d3)>}
          %51 = tile.map(%26, %7) {fn = "shift_right"} : tensor<1x16x2x16xui32>
          %52 = tile.map(%51, %46) {fn = "bitwise_or"} : tensor<1x16x2x16xui32>
          tile.store(%52, %0, %1) {map = affine_map<(d0, d1, d2, d3)[s0] -> (s0, d0, 2, d2, d1, d3)>}
          scheduled.end()
        }
        scheduled.end()
      }
      scheduled.barrier() {scope = "team"}
      scheduled.parallel() {extents = array<i64: 1>, grain = 1 : index} do {
      ^bb0(%i: index):
        %total = scheduled.alloc() : !tile.ref<tensor<32x32xf32>, "worker">
        %53 = scheduled.alloc() : !tile.ref<tensor<1x1x3x32x32xui16>, "worker">
        scheduled.nest() do {
          %54 = tile.load(%x)
            {map = affine_map<(d0, d1, d2, d3) -> (((d0 * 32) + d2), ((d1 * 32) + d3))>,
              fill = 0.000000e+00 : f64} : tensor<1x1x32x32xf32>
          %55 = tile.full() {value = 0x4170000000000000 : f64} : tensor<1x1x32x32xf32>
          %56 = tile.map(%54, %55) {fn = "multiply"} : tensor<1x1x32x32xf32>
          %57 = tile.full() {value = 4294901760 : index} : tensor<1x1x32x32xui32>
          %58 = tile.bitcast(%56) : tensor<1x1x32x32xui32>
          %59 = tile.full() {value = 16 : index} : tensor<1x1x32x32xui32>
          %60 = tile.map(%58, %59) {fn = "shift_right"} : tensor<1x1x32x32xui32>
          %61 = tile.full() {value = 1 : index} : tensor<1x1x32x32xui32>
          %62 = tile.map(%60, %61) {fn = "bitwise_and"} : tensor<1x1x32x32xui32>
          %63 = tile.full() {value = 32767 : index} : tensor<1x1x32x32xui32>
          %64 = tile.map(%63, %62) {fn = "add"} : tensor<1x1x32x32xui32>
          %65 = tile.map(%58, %64) {fn = "add"} : tensor<1x1x32x32xui32>
          %66 = tile.map(%65, %57) {fn = "bitwise_and"} : tensor<1x1x32x32xui32>
          %67 = tile.bitcast(%66) : tensor<1x1x32x32xf32>
          %68 = tile.map(%56, %67) {fn = "subtract"} : tensor<1x1x32x32xf32>
          %69 = tile.bitcast(%68) : tensor<1x1x32x32xui32>
          %70 = tile.map(%69, %59) {fn = "shift_right"} : tensor<1x1x32x32xui32>
          %71 = tile.map(%70, %61) {fn = "bitwise_and"} : tensor<1x1x32x32xui32>
          %72 = tile.map(%63, %71) {fn = "add"} : tensor<1x1x32x32xui32>
          %73 = tile.map(%69, %72) {fn = "add"} : tensor<1x1x32x32xui32>
          %74 = tile.map(%73, %57) {fn = "bitwise_and"} : tensor<1x1x32x32xui32>
          %75 = tile.bitcast(%74) : tensor<1x1x32x32xf32>
          %76 = tile.map(%68, %75) {fn = "subtract"} : tensor<1x1x32x32xf32>
          %77 = tile.bitcast(%76) : tensor<1x1x32x32xui32>
          %78 = tile.map(%77, %57) {fn = "bitwise_and"} : tensor<1x1x32x32xui32>
          %79 = tile.map(%66, %59) {fn = "shift_right"} : tensor<1x1x32x32xui32>
          %80 = tile.cast(%79) : tensor<1x1x32x32xui16>
          tile.store(%80, %53) {map = affine_map<(d0, d1, d2, d3) -> (d0, d1, 0, d2, d3)>}
          %81 = tile.map(%74, %59) {fn = "shift_right"} : tensor<1x1x32x32xui32>
          %82 = tile.cast(%81) : tensor<1x1x32x32xui16>
          tile.store(%82, %53) {map = affine_map<(d0, d1, d2, d3) -> (d0, d1, 1, d2, d3)>}
          %83 = tile.map(%78, %59) {fn = "shift_right"} : tensor<1x1x32x32xui32>
          %84 = tile.cast(%83) : tensor<1x1x32x32xui16>
          tile.store(%84, %53) {map = affine_map<(d0, d1, d2, d3) -> (d0, d1, 2, d2, d3)>}
          scheduled.end()
        }
        scheduled.dot(%53, %0, %total) {extents = array<i64: 8, 3, 32>, block =
          "(32, 32) : [32@reg*2 | 2@reg 16@simd]", left_map = affine_map<(d0, d1) -> (d0, d1)>, right_map =
          affine_map<(d0, d1) -> (d0, d1)>, accumulate = false, parts = 3 : index, scale = 24 : index}
        scheduled.nest() do {
          %y = tile.load(%total) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<8x3xf32>
          tile.store(%y, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
          scheduled.end()
        }
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.dialects.builtin import AffineMapAttr, IndexType
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import tensor
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.passes.affine_access import Index, linear_form
from tilewright.passes.base import Remark, Unit
from tilewright.passes.scheduled_pack_operands import operand_dims
from tilewright.primitives import ArrayType

# The depth and the columns of an instruction, how much of the depth is in a word, and the bits of a part.
STEP, COLUMNS, GROUP, PART_BITS = 32, 16, 2, 16


@dataclass(frozen=True)
class ScheduledSplitOperandsPass:
    name: ClassVar[str] = "scheduled-split-operands"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in list(kernel.walk()):
                if isinstance(op, scheduled.DotOp) and op.parts is not None:
                    subject = f"operands of {kernel.sym_name.data}"
                    unit.remarks.append(Remark(self.name, subject, f"in {op.parts_and_scale[0]} parts", "quickest so"))
                    _split_left(op)
                    _split_right(kernel, op)


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
        return self.add(tile.MapOp.make(operands, {"fn": fn}, [operands[0].type]))

    def full(self, value: float | int, dtype: DType) -> SSAValue:
        if (value, dtype) not in self._numbers:
            made = tile.FullOp.make([], {"value": value}, [self.type(dtype)])
            self._numbers[value, dtype] = self.add(made)
        return self._numbers[value, dtype]

    def bitcast(self, value: SSAValue, dtype: DType) -> SSAValue:
        return self.add(tile.BitcastOp.make([value], {}, [self.type(dtype)]))

    def load(self, ref: SSAValue, symbols: Sequence[SSAValue], map: AffineMap) -> SSAValue:
        attributes = {"map": AffineMapAttr(map), "fill": 0.0}
        return self.add(tile.LoadOp.make([ref, *symbols], attributes, [self.type(dtypes.f32)]))

    def store(self, value: SSAValue, ref: SSAValue, symbols: Sequence[SSAValue], map: AffineMap) -> None:
        self.block.add_op(tile.StoreOp.make([value, ref, *symbols], {"map": AffineMapAttr(map)}, []))

    def parts(self, value: SSAValue, count: int, scale: int) -> list[SSAValue]:
        """The bits of a value's parts, each in the upper half of a word: all but the last are rounded to nearest, ties
        to even, which leaves for that one no more bits than it has."""
        rest = self.map("multiply", value, self.full(float(2**scale), dtypes.f32))
        upper = self.full(-(1 << PART_BITS) & 0xFFFFFFFF, dtypes.u32)
        found: list[SSAValue] = []
        for _ in range(count - 1):
            bits = self.bitcast(rest, dtypes.u32)
            odd = self.map("bitwise_and", self._upper(bits), self.full(1, dtypes.u32))
            half = self.full((1 << (PART_BITS - 1)) - 1, dtypes.u32)
            rounded = self.map("add", bits, self.map("add", half, odd))
            found.append(self.map("bitwise_and", rounded, upper))
            rest = self.map("subtract", rest, self.bitcast(found[-1], dtypes.f32))
        return [*found, self.map("bitwise_and", self.bitcast(rest, dtypes.u32), upper)]

    def _upper(self, bits: SSAValue) -> SSAValue:
        return self.map("shift_right", bits, self.full(PART_BITS, dtypes.u32))

    def narrow(self, part: SSAValue) -> SSAValue:
        """A part by itself."""
        return self.add(tile.CastOp.make([self._upper(part)], {}, [self.type(dtypes.u16)]))

    def word(self, first: SSAValue, second: SSAValue) -> SSAValue:
        """Parts of two steps, the first in the lower half."""
        return self.map("bitwise_or", self._upper(first), second)


def _split_left(dot: scheduled.DotOp) -> None:
    """Make the product read parts of its rows, which a nest before it makes."""
    height, steps = dot.micro_tile[0], dot.shape[2] // STEP
    blocks = -(-dot.shape[0] // height)
    buffer = ArrayType((blocks, steps, dot.parts_and_scale[0], height, STEP), dtypes.u16)
    alloc = scheduled.AllocOp.make([], {}, [tile.ref(buffer, scheduled.WORKER)])
    block, step, row, inner = (AffineExpr.dimension(d) for d in range(4))
    source = dot.left_map.data
    symbols = [AffineExpr.symbol(i) for i in range(source.num_symbols)]
    at = (block * height + row, step * STEP + inner)
    load_map = AffineMap(4, len(symbols), tuple(e.replace_dims_and_symbols(at, symbols) for e in source.results))
    body = Block()
    values = _Values(body, (blocks, steps, height, STEP))
    loaded = values.load(dot.left, dot.symbols, load_map)
    for number, part in enumerate(values.parts(loaded, *dot.parts_and_scale)):
        place = AffineMap(4, 0, (block, step, AffineExpr.constant(number), row, inner))
        values.store(values.narrow(part), alloc.result, [], place)
    body.add_op(scheduled.EndOp.make([], {}, []))
    _insert_before(dot, [alloc, scheduled.NestOp.make([], {}, [], [Region(body)])])
    dot.operands[0] = alloc.result
    dot.left_map = AffineMapAttr(AffineMap(2, len(symbols), (block, step)))


def _split_right(kernel: tile.KernelOp, dot: scheduled.DotOp) -> None:
    """Make the product read parts of an array, which all threads make at the start of the kernel, panel by panel."""
    if not isinstance(dot.right, BlockArgument):
        raise CompilerBug("the right operand of a product in parts is no array")
    depth_dim, column_dim = operand_dims(dot.right_map.data)
    width, depth = dot.micro_tile[1], dot.shape[2]
    sizes = tile.ref_type(dot.right).shape
    others = [d for d in range(len(sizes)) if d not in (depth_dim, column_dim)]
    panels, steps = -(-sizes[column_dim] // width), -(-sizes[depth_dim] // depth) * (depth // STEP)
    extents = (*(sizes[d] for d in others), panels)
    words = (steps, STEP // GROUP, width // COLUMNS, COLUMNS)
    buffer = ArrayType((*extents, steps, dot.parts_and_scale[0], width // COLUMNS, STEP // GROUP, COLUMNS), dtypes.u32)
    alloc = scheduled.AllocOp.make([], {}, [tile.ref(buffer, scheduled.SHARED)])
    body = Block(arg_types=[IndexType() for _ in extents])
    body.add_op(_right_nest(dot, alloc.result, body.args, words, depth_dim, column_dim))
    body.add_op(scheduled.EndOp.make([], {}, []))
    parallel = scheduled.ParallelOp.make([], {"extents": extents, "grain": 1}, [], [Region(body)])
    last = next(op for op in reversed(list(kernel.body.block.ops)) if isinstance(op, scheduled.ParallelOp))
    _insert_before(last, [alloc, parallel, scheduled.BarrierOp.make([], {"scope": "team"}, [])])
    map = dot.right_map.data
    moved = [map.results[d] for d in others]
    moved += [in_units(map.results[column_dim], 1, width), in_units(map.results[depth_dim], 0, STEP)]
    dot.operands[1] = alloc.result
    dot.right_map = AffineMapAttr(AffineMap(2, map.num_symbols, tuple(moved)))


def _right_nest(
    dot: scheduled.DotOp,
    target: SSAValue,
    indices: Sequence[SSAValue],
    shape: tuple[int, int, int, int],
    depth_dim: int,
    column_dim: int,
) -> scheduled.NestOp:
    """The words of one panel of the right operand."""
    step, word, half, column = (AffineExpr.dimension(d) for d in range(4))
    at = [AffineExpr.symbol(i) for i in range(len(indices))]
    body = Block()
    values = _Values(body, shape)

    def parts_of(number: int) -> list[SSAValue]:
        batch = iter(at[:-1])
        depth = step * STEP + word * GROUP + number
        known = {depth_dim: depth, column_dim: (at[-1] * shape[2] + half) * COLUMNS + column}
        results = tuple(known[d] if d in known else next(batch) for d in range(len(indices) + 1))
        loaded = values.load(dot.right, indices, AffineMap(4, len(indices), results))
        return values.parts(loaded, *dot.parts_and_scale)

    for number, (first, second) in enumerate(zip(parts_of(0), parts_of(1), strict=True)):
        place = AffineMap(4, len(indices), (*at, step, AffineExpr.constant(number), half, word, column))
        values.store(values.word(first, second), target, indices, place)
    body.add_op(scheduled.EndOp.make([], {}, []))
    return scheduled.NestOp.make([], {}, [], [Region(body)])


def in_units(expression: AffineExpr, dim: int, size: int) -> AffineExpr:
    """A coordinate that runs along `dim` from a multiple of `size` on, counted in units of that."""
    form = linear_form(expression, (Index(0), Index(1)))
    if form is None or any(c % size for c in (form.constant, *(c for _, c in form.symbols))):
        raise CompilerBug("a product in parts starts inside a block")
    result: AffineExpr = AffineExpr.dimension(1 - dim) + form.constant // size
    for symbol, coefficient in form.symbols:
        result = result + AffineExpr.symbol(symbol) * (coefficient // size)
    return result


def _insert_before(place: Operation, new: Sequence[Operation]) -> None:
    block = place.parent_block()
    if block is not None:
        for op in new:
            block.insert_op_before(op, place)
