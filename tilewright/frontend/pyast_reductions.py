"""Operations along the axes of a tile: reductions, scans, sorts, matmuls. Lanes beyond an array never count."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright import dtypes, ops
from tilewright.dialects import tile
from tilewright.dialects.base import tensor
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError, CompilerBug, DTypeError, ShapeError
from tilewright.frontend.pyast_builder import KernelBuilder, element_type
from tilewright.frontend.pyast_values import Affine, Edge, TileValue, union_edges
from tilewright.primitives import ArrayType, infer


def identity_of(fn: str, dtype: DType) -> float | int | bool:
    identity = ops.FUNCTIONS[fn].identity
    if identity is None:
        raise CompilerBug(f"`{fn}` does not reduce")
    return identity(dtype)


def reduce(b: KernelBuilder, fn: str, x: TileValue, axes: Sequence[int], keepdims: bool) -> TileValue:
    """Reduce over axes; 16-bit floats combine in f32 and round once. The result counts unless it is beyond an array
    along an axis that remains.

    Raises:
        DTypeError: the function does not reduce this type.
    """
    dtype = x.type.dtype
    if dtype.kind not in ops.FUNCTIONS[fn].kinds:
        raise DTypeError(f"`{fn}` does not reduce {dtype}", help="cast the tile first: `x.astype(tw.f32)`")
    if not axes:
        return b.cast(x, dtype)
    wide = b.filled(b.cast(x, dtype.compute), axes, identity_of(fn, dtype.compute))
    kept = [d for d in range(x.rank) if d not in axes]
    type = ArrayType(tuple(x.shape[d] for d in kept), dtype.compute)
    edges = (*(x.edges[d] for d in kept), ())
    result = b.new(
        tile.ReduceOp(arguments=[wide.value], fn=fn, axes=tuple(sorted(axes)), outputs=[tensor(type)]), edges
    )
    result = b.cast(result, dtype)
    return b.expand_dims(result, axes) if keepdims else result


def sum_type(dtype: DType) -> DType:
    """Floats sum in their own type, signed integers and bools as i64, unsigned integers as u64."""
    if dtype.is_float:
        return dtype
    return dtypes.u64 if dtype.kind == "u" else dtypes.i64


def mean(b: KernelBuilder, x: TileValue, axes: Sequence[int], keepdims: bool) -> TileValue:
    """The mean over the lanes inside the array."""
    wide = x if x.type.dtype.is_float else b.cast(x, dtypes.f32)
    total = reduce(b, "add", wide, axes, keepdims)
    reduced = {*axes, x.rank} if axes else set[int]()
    if not any(x.edges[d] for d in reduced):
        return b.map("divide", total, float(math.prod(x.shape[d] for d in axes)))
    ones = b.full(x.shape, 1, wide.type.dtype.compute)
    marked = TileValue(ones.value, ones.type, tuple(e if d in reduced else () for d, e in enumerate(x.edges)))
    count = reduce(b, "add", marked, axes, keepdims)
    return b.cast(b.map("divide", total, count), wide.type.dtype)


def arg_reduce(b: KernelBuilder, fn: str, x: TileValue, axis: int, keepdims: bool) -> TileValue:
    """Index (i64) of the first maximum or minimum along an axis; the first NaN wins."""
    filled = b.filled(x, [axis], identity_of(fn, x.type.dtype))
    (type,) = infer("arg_reduce", [filled.type], {"fn": fn, "axis": axis})
    edges = (*(e for d, e in enumerate(x.edges[:-1]) if d != axis), ())
    result = b.new(tile.ArgReduceOp(arguments=[filled.value], fn=fn, axis=axis, outputs=[tensor(type)]), edges)
    return b.expand_dims(result, [axis]) if keepdims else result


def scan(b: KernelBuilder, fn: str, x: TileValue, axis: int, reverse: bool) -> TileValue:
    """Inclusive running reduction along an axis."""
    if x.type.dtype.kind not in ops.FUNCTIONS[fn].kinds:
        raise DTypeError(f"`{fn}` does not scan {x.type.dtype}", help="cast the tile first: `x.astype(tw.i32)`")
    dtype = x.type.dtype
    wide = b.filled(b.cast(x, dtype.compute), [axis], identity_of(fn, dtype.compute))
    op = tile.ScanOp(arguments=[wide.value], fn=fn, axis=axis, reverse=reverse, outputs=[tensor(wide.type)])
    return b.cast(b.new(op, x.edges), dtype)


def sort(b: KernelBuilder, x: TileValue, axis: int, descending: bool) -> TileValue:
    """Stable sort along an axis; lanes beyond the array stay after all others, also after NaN.

    Raises:
        ShapeError: the tile may begin before its array along the axis.
    """
    dtype = x.type.dtype
    if any(e.stride < 0 for e in x.edges[axis]):
        message = "a tile that may begin before its array cannot be sorted along that axis"
        raise ShapeError(message, help="start the window at 0 or later")
    last = dtype.lowest if descending else (math.nan if dtype.is_float else dtype.highest)
    filled = b.filled(x, [axis], last)
    return b.new(
        tile.SortOp(arguments=[filled.value], axis=axis, descending=descending, outputs=[tensor(x.type)]), x.edges
    )


def dot(
    b: KernelBuilder,
    left: TileValue,
    right: TileValue,
    accumulator: TileValue | None,
    dtype: object,
    precision: object = None,
) -> TileValue:
    """`accumulator + left @ right` for M x K and K x N tiles, added in the accumulator's type. The precision "tf32"
    rounds operands of f32.

    Raises:
        ShapeError: the shapes do not fit.
        DTypeError: the types do not multiply, not with that precision, or the accumulator cannot hold the matmul.
        ArgumentError: there is no such precision.
    """
    if left.rank != 2 or right.rank != 2:
        message = f"`dot` multiplies tiles with two axes, got {left.shape} and {right.shape}"
        raise ShapeError(message, help="drop axes of size 1 with `x.reshape((m, k))`, or add one with `x[:, None]`")
    if left.shape[1] != right.shape[0]:
        message = (
            f"`dot` of {left.shape} and {right.shape}: the inner sizes {left.shape[1]} and {right.shape[0]} differ"
        )
        raise ShapeError(message, help="transpose one with `.T`, or load tiles with the same block size")
    total = _accumulator_type(b, left, right, accumulator, dtype)
    result = ArrayType((left.shape[0], right.shape[1]), total)
    if accumulator is None:
        accumulator = b.full(result.shape, 0, total)
    elif accumulator.shape != result.shape:
        message = f"the accumulator is {accumulator.shape}, but the matmul has shape {result.shape}"
        raise ShapeError(message, help=f"start it with `tw.zeros({result.shape}, tw.{total})`")
    # Both operands get the same zeros, so that neither reads the other's lanes beyond the end.
    depth = tuple(dict.fromkeys((*left.edges[1], *right.edges[0])))
    depth = tuple(sorted(depth, key=lambda e: e.stride == 1))
    a, c = left, right
    operand = left.type.dtype
    as_they_are = dtypes.multiply_unconverted(operand, right.type.dtype)
    if not as_they_are or dtypes.promote(operand, total) != total:
        a, c = b.cast(left, total), b.cast(right, total)
    if _rounds_to_tf32(precision, left.type.dtype, right.type.dtype):
        a, c = b.cast(a, dtypes.tf32), b.cast(c, dtypes.tf32)
    for edge in depth:
        a, c = b.fill_edge(a, 1, edge, 0), b.fill_edge(c, 0, edge, 0)
    for edge in union_edges(left.edges[-1:], right.edges[-1:])[0]:
        a, c = b.fill_edge(a, 2, edge, 0), b.fill_edge(c, 2, edge, 0)
    acc = b.cast(accumulator, total)
    op = tile.DotOp(left=a.value, right=c.value, accumulator=acc.value, result=tensor(result))
    b.add(op)
    edges = union_edges(accumulator.edges, (left.edges[0], right.edges[1], ()))
    return TileValue(op.results[0], result, edges)


def _rounds_to_tf32(precision: object, left: DType, right: DType) -> bool:
    if precision in (None, "f32"):
        return False
    if precision != "tf32":
        raise ArgumentError(f"there is no precision {precision!r} of matmuls", help='use "f32" or "tf32"')
    if (left, right) != (dtypes.f32, dtypes.f32):
        message = f'`dot` of {left} and {right} with `precision="tf32"`, which is one of f32'
        raise DTypeError(message, help="cast the operands to f32, or leave the precision out")
    return True


def _accumulator_type(
    b: KernelBuilder, left: TileValue, right: TileValue, accumulator: TileValue | None, dtype: object
) -> DType:
    operand = dtypes.promote(left.type.dtype, right.type.dtype)
    if operand.is_bool:
        raise DTypeError("`dot` does not multiply bools", help="cast them: `x.astype(tw.i32)`")
    least = operand.compute if operand.is_float or operand.bits >= 32 else dtypes.i32
    if accumulator is not None and accumulator.weak:
        raise ArgumentError("the accumulator of `dot` is a number", help="start it with `tw.zeros((m, n), tw.f32)`")
    chosen = accumulator.type.dtype if accumulator is not None else least
    if dtype is not None:
        chosen = element_type(dtype)
    if accumulator is not None and accumulator.type.dtype != chosen:
        message = f"the accumulator is {accumulator.type.dtype}, but `dot` was asked for {chosen}"
        raise DTypeError(message, help="leave out `dtype`, or start the accumulator in that type")
    if chosen.compute != chosen or chosen.is_float != operand.is_float or chosen.bits < least.bits:
        message = f"`dot` of {left.type.dtype} and {right.type.dtype} cannot add up in {chosen}"
        raise DTypeError(message, help=f"start the accumulator with `tw.zeros((m, n), tw.{least})`")
    return chosen


def edge_of(start: Affine, stride: int, length: int, size: int) -> tuple[Edge, ...]:
    """The edges of `length` lanes at `start + stride * lane` in an axis of `size`: those that can be outside."""
    low, high = start.range
    found: list[Edge] = []
    if low < 0:
        found.append(Edge(-start, -stride, 1))
    if high + stride * (length - 1) >= size:
        found.append(Edge(start, stride, size))
    return tuple(found)
