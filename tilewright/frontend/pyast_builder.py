"""Appends tile operations for a kernel: elementwise arithmetic with promotion and broadcasting, and changes of shape.

Every tile carries the lanes of it that may be beyond an array. Elementwise results inherit them from their operands; an
operation that would mix them with others (a reduction, a matmul) fills them first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes, ops
from tilewright.dialects import tile
from tilewright.dialects.base import PlainOp, array_type, tensor
from tilewright.dtypes import DType
from tilewright.errors import (
    ArgumentError,
    DataDependentShapeError,
    DTypeError,
    IndexError_,
    ShapeError,
    SourceLocation,
    UnknownNameError,
)
from tilewright.frontend.pyast_values import (
    Affine,
    Counter,
    Edge,
    Edges,
    Ref,
    TileIndex,
    TileValue,
    is_integer,
    listed,
    no_edges,
    union_edges,
)
from tilewright.primitives import ArrayType, check_limits, infer

Number = bool | int | float
Shape = tuple[int, ...]


class Symbols:
    """The symbols of one affine map, in order of first use."""

    def __init__(self) -> None:
        self.values: list[SSAValue] = []

    def lane(self, value: SSAValue) -> AffineExpr:
        if value not in self.values:
            self.values.append(value)
        return AffineExpr.symbol(self.values.index(value))

    def counter(self, counter: Counter) -> AffineExpr:
        return self.lane(counter.value)

    def expression(self, affine: Affine) -> AffineExpr:
        return affine.expression(self.counter)

    def map(self, rank: int, results: Sequence[AffineExpr]) -> AffineMap:
        return AffineMap(rank, len(self.values), tuple(results))


class KernelBuilder:
    """Appends to `block`; operations get the location of the statement that is compiled."""

    def __init__(self, block: Block) -> None:
        # The blocks around what is compiled, the innermost last: what other blocks compute cannot be used.
        self._blocks = [block]
        self.location: SourceLocation | None = None

    @property
    def block(self) -> Block:
        return self._blocks[-1]

    @contextmanager
    def inside(self, block: Block) -> Generator[None]:
        """Append to a block of an operation that the current block will get."""
        self._blocks.append(block)
        try:
            yield
        finally:
            self._blocks.pop()

    def add(self, op: Operation) -> None:
        """Append an operation.

        Raises:
            UnknownNameError: it uses what only a branch or loop computes that it is not in.
        """
        if (at := self.location) is not None:
            op.location = FileLineColLoc(StringAttr(at.file), IntAttr(at.line), IntAttr(at.column))
        if not all(self.is_visible(operand) for operand in op.operands):
            message = "this uses a tile that only one branch of an `if`, or one trip of a loop, computes"
            raise UnknownNameError(message, help="assign the tile to a name that has a value before the `if` or loop")
        self.block.add_op(op)

    def is_visible(self, value: SSAValue) -> bool:
        """Whether the current block may use a value."""
        owner = value.owner
        return (owner if isinstance(owner, Block) else owner.parent) in self._blocks

    def new(self, op: PlainOp, edges: Edges) -> TileValue:
        """Append an operation with one result: the tile with these edges."""
        type = array_type(op.results[0])
        check_limits(type)
        self.add(op)
        return TileValue(op.results[0], type, edges)

    # ---- sources ------------------------------------------------------------------------------------------------

    def full(self, shape: Shape, value: Any, dtype: DType, *, weak: bool = False) -> TileValue:
        """A tile of one number, converted to `dtype`.

        Raises:
            DTypeError: the number does not fit the type.
        """
        type = ArrayType(shape, dtype)
        made = self.new(tile.FullOp(value=_converted(value, dtype), result=tensor(type)), no_edges(len(shape)))
        return TileValue(made.value, type, made.edges, weak)

    def positions(self, length: int, dtype: DType) -> TileValue:
        """0 to `length - 1`."""
        map = AffineMap(1, 0, (AffineExpr.dimension(0),))
        counted = self.new(tile.IotaOp(map=map, result=tensor(ArrayType((length,), dtypes.i64))), no_edges(1))
        return self.cast(counted, dtype)

    def position(self, affine: Affine) -> TileValue:
        """An index integer as a weak scalar tile."""
        if affine.is_constant:
            return self.full((), affine.constant, dtypes.i64, weak=True)
        symbols = Symbols()
        expression = symbols.expression(affine)
        type = tensor(ArrayType((), dtypes.i64))
        iota = tile.IotaOp(symbols=symbols.values, map=symbols.map(0, [expression]), result=type)
        made = self.new(iota, no_edges(0))
        return TileValue(made.value, made.type, made.edges, weak=True)

    def lift(self, value: object) -> TileValue:
        """A tile from what stands for one: a tile, a number, an index integer, an array without axes.

        Raises:
            ArgumentError: the value is none of these.
        """
        if isinstance(value, TileValue):
            return value
        if isinstance(value, TileIndex):
            return self.position(value.number)
        if isinstance(value, Affine):
            return self.position(value)
        if isinstance(value, np.generic):
            return self.full((), value.item(), _numpy_type(value))
        if isinstance(value, Number):
            return self.full((), value, scalar_type(value), weak=True)
        if isinstance(value, Ref):
            return self._whole_scalar(value)
        kind = type(value).__name__
        raise ArgumentError(f"a value of type {kind} is not a tile", help="pass tiles or Python numbers")

    def _whole_scalar(self, ref: Ref) -> TileValue:
        if ref.type.rank:
            message = f"`{ref.name}` is an array of shape {ref.type.shape}, not a tile"
            raise ArgumentError(message, help=f"load a tile of it: `{ref.name}[i]`")
        if ref.effect == tile.OUT:
            raise ArgumentError(f"`{ref.name}` is Out, so it holds nothing to read", help="annotate it as `tw.InOut`")
        load = tile.LoadOp(source=ref.value, map=AffineMap(0, 0, ()), result=tensor(ref.type))
        return self.new(load, no_edges(0))

    # ---- types --------------------------------------------------------------------------------------------------

    def result_dtype(self, operands: Sequence[object]) -> DType:
        """The type that tiles, element types and weak numbers meet in, by the rules of the array functions."""
        strong: list[DType] = []
        weak: list[DType] = []
        for operand in operands:
            if isinstance(operand, DType):
                strong.append(operand)
            elif isinstance(operand, TileValue):
                (weak if operand.weak else strong).append(operand.type.dtype)
            elif isinstance(operand, np.generic):
                strong.append(_numpy_type(operand))
            elif isinstance(operand, Ref):
                strong.append(operand.type.dtype)
            else:
                weak.append(scalar_type(operand))
        if not strong:
            return functools.reduce(dtypes.promote, weak)
        dtype = functools.reduce(dtypes.promote, strong)
        if any(w.is_float for w in weak) and not dtype.is_float:
            return dtypes.f32
        return dtypes.i64 if any(w.is_integer for w in weak) and dtype.is_bool else dtype

    def typed(self, operand: object, dtype: DType, shape: Shape) -> TileValue:
        """An operand in the given type and shape; numbers become constants of that type at once."""
        if isinstance(operand, Number) and not isinstance(operand, np.generic):
            return self.full(shape, operand, dtype)
        return self.broadcast(self.cast(self.lift(operand), dtype), shape)

    def cast(self, x: TileValue, dtype: DType) -> TileValue:
        if x.type.dtype == dtype:
            return TileValue(x.value, x.type, x.edges) if x.weak else x
        return self.new(tile.CastOp(arguments=[x.value], outputs=[tensor(ArrayType(x.shape, dtype))]), x.edges)

    # ---- elementwise --------------------------------------------------------------------------------------------

    def map(self, fn: str, *operands: object) -> TileValue:
        """The scalar function `fn` over operands that promote and broadcast.

        Raises:
            ShapeError: the shapes do not broadcast.
            DTypeError: the function does not take the type.
        """
        function = ops.FUNCTIONS[fn]
        is_select = function.result == ops.SELECT
        dtype = self.result_dtype(operands[1:] if is_select else operands)
        if function.kinds == ops.FLOAT and not dtype.is_float:
            dtype = dtypes.f32
        shape = broadcast_shapes(fn, [o.shape for o in operands if isinstance(o, TileValue)])
        types = [dtypes.bool_ if is_select and n == 0 else dtype for n in range(len(operands))]
        typed = [self.typed(o, t, shape) for o, t in zip(operands, types, strict=True)]
        (type,) = infer("map", [t.type for t in typed], {"fn": fn})
        edges = union_edges(*(t.edges for t in typed))
        result = self.new(tile.MapOp(arguments=[t.value for t in typed], fn=fn, outputs=[tensor(type)]), edges)
        weak = all(not isinstance(o, np.generic | Ref) and (not isinstance(o, TileValue) or o.weak) for o in operands)
        return TileValue(result.value, type, result.edges, weak)

    def broadcast(self, x: TileValue, shape: Shape) -> TileValue:
        """The tile repeated to `shape`, its axes aligned with the last ones.

        Raises:
            ShapeError: the tile does not broadcast to it.
        """
        if x.shape == shape:
            return x
        lead = len(shape) - x.rank
        if lead < 0 or any(n not in (1, size) for n, size in zip(x.shape, shape[lead:], strict=True)):
            raise ShapeError(
                f"a tile of shape {x.shape} does not broadcast to {shape}",
                help="sizes, from the last axis on, must be equal or 1: insert axes with `x[:, None]`",
            )
        return self.spread(x, shape, tuple(range(lead, len(shape))))

    def spread(self, x: TileValue, shape: Shape, axes: tuple[int, ...]) -> TileValue:
        """The tile repeated to `shape`; its axis i becomes axis `axes[i]`."""
        if x.shape == shape:
            return x
        edges = spread_edges(x, shape, axes)
        return self.new(
            tile.BroadcastOp(arguments=[x.value], axes=axes, outputs=[tensor(ArrayType(shape, x.type.dtype))]), edges
        )

    # ---- edges --------------------------------------------------------------------------------------------------

    def filled(self, x: TileValue, dims: Sequence[int], value: Number) -> TileValue:
        """`value` in the lanes that are beyond an array along the given dimensions, or along one that was dropped."""
        for dim in (*dims, x.rank):
            for edge in x.edges[dim]:
                x = self.fill_edge(x, dim, edge, value)
        return x

    def fill_edge(self, x: TileValue, dim: int, edge: Edge, value: Number) -> TileValue:
        """`value` in the lanes beyond one edge, of a dimension or (the rank) of the whole tile."""
        if edge.stride == 0 and edge.guard is None and edge.start.is_constant and edge.start.constant >= edge.limit:
            return TileValue(self.full(x.shape, value, x.type.dtype).value, x.type, x.edges)
        symbols = Symbols()
        position = symbols.expression(edge.start)
        if edge.stride:
            position = position + AffineExpr.dimension(dim) * edge.stride
        plain = float(value) if x.type.dtype.is_float else int(value)
        padding = tile.FillPaddingOp(
            source=x.value,
            symbols=symbols.values,
            map=symbols.map(x.rank, [position]),
            limit=edge.limit,
            value=plain,
            result=tensor(x.type),
        )
        filled = self.new(padding, x.edges)
        if edge.guard is None:
            return filled
        guard = self.broadcast(self.truth(edge.guard), x.shape)
        operands = [guard.value, filled.value, x.value]
        return self.new(tile.MapOp(arguments=operands, fn="select", outputs=[tensor(x.type)]), x.edges)

    def truth(self, value: SSAValue) -> TileValue:
        """A bool scalar of the kernel as a tile."""
        return TileValue(value, ArrayType((), dtypes.bool_), no_edges(0))

    def guard_of(self, edges: Sequence[Edge], edge: Edge) -> SSAValue:
        """Whether an edge holds, as a bool scalar: one of `edges` is it, and its guard is true if it has one."""
        guards = [e.guard for e in edges if e.unguarded == edge]
        if not guards or None in guards:
            return self.full((), bool(guards), dtypes.bool_).value
        return functools.reduce(self._either, [g for g in guards if g is not None])

    def _either(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.map("bitwise_or", self.truth(a), self.truth(b)).value

    # ---- shapes -------------------------------------------------------------------------------------------------

    def reshape(self, x: TileValue, shape: Shape) -> TileValue:
        """Row-major reshape to a shape of equal size, with at most one -1.

        Raises:
            ShapeError: the sizes differ, or lanes beyond an array would move between axes.
        """
        shape = _completed(shape, x.type.size, x.shape)
        if shape == x.shape:
            return x
        edges = _reshaped_edges(x, shape)
        if edges is None:
            raise ShapeError(
                f"reshaping {x.shape} to {shape} would mix lanes beyond the end of an array with others",
                help="choose a block that divides the size, or give lanes beyond a value: `tw.load(x, i, fill=0)`",
            )
        return self.new(tile.ReshapeOp(arguments=[x.value], outputs=[tensor(ArrayType(shape, x.type.dtype))]), edges)

    def expand_dims(self, x: TileValue, axes: Sequence[int]) -> TileValue:
        """The tile with axes of size 1 at the given places of the result."""
        rest = iter(x.shape)
        return self.reshape(x, tuple(1 if d in axes else next(rest) for d in range(x.rank + len(axes))))

    def transpose(self, x: TileValue, permutation: tuple[int, ...]) -> TileValue:
        if permutation == tuple(range(x.rank)):
            return x
        type = ArrayType(tuple(x.shape[p] for p in permutation), x.type.dtype)
        edges = (*(x.edges[p] for p in permutation), x.edges[-1])
        return self.new(tile.TransposeOp(arguments=[x.value], permutation=permutation, outputs=[tensor(type)]), edges)

    def slice(self, x: TileValue, starts: Shape, limits: Shape, strides: Shape) -> TileValue:
        if starts == (0,) * x.rank and limits == x.shape and strides == (1,) * x.rank:
            return x
        (type,) = infer("slice", [x.type], {"starts": starts, "limits": limits, "strides": strides})
        edges = tuple(
            tuple(Edge(e.start + e.stride * start, e.stride * step, e.limit, e.guard) for e in own)
            for own, start, step in zip(x.edges[:-1], starts, strides, strict=True)
        )
        op = tile.SliceOp(arguments=[x.value], starts=starts, limits=limits, strides=strides, outputs=[tensor(type)])
        return self.new(op, (*edges, x.edges[-1]))

    def concat(self, parts: Sequence[TileValue], axis: int) -> TileValue:
        dtype = self.result_dtype(parts)
        typed = [self.cast(p, dtype) for p in parts]
        (type,) = infer("concat", [p.type for p in typed], {"axis": axis})
        help = "choose a block that divides the size, or give lanes beyond a value: `tw.load(x, i, fill=0)`"
        if any(p.edges[axis] for p in typed):
            message = f"a tile that may reach beyond its array along axis {axis} cannot be concatenated there"
            raise ShapeError(message, help=help)
        if any(set(own) != set(first) for p in typed for own, first in zip(p.edges, typed[0].edges, strict=True)):
            message = "`concat` of tiles that do not reach beyond their arrays in the same lanes"
            raise ShapeError(message, help=help)
        return self.new(
            tile.ConcatOp(arguments=[p.value for p in typed], axis=axis, outputs=[tensor(type)]), typed[0].edges
        )


# ---- rules ----------------------------------------------------------------------------------------------------------


def scalar_type(value: object) -> DType:
    """The type of a number, or of an index integer, on its own.

    Raises:
        ArgumentError: the value is none.
    """
    if isinstance(value, bool):
        return dtypes.bool_
    if isinstance(value, int | Affine | TileIndex):
        return dtypes.i64
    if isinstance(value, float):
        return dtypes.f32
    raise ArgumentError(f"a value of type {type(value).__name__} is not a tile", help="pass tiles or Python numbers")


def _numpy_type(value: np.generic) -> DType:
    try:
        return dtypes.from_numpy(value.dtype)
    except KeyError:
        raise DTypeError(f"a NumPy scalar of {value.dtype} has no element type here", help="convert it first") from None


def element_type(dtype: object) -> DType:
    """The element type that the user passed.

    Raises:
        DTypeError: no element type of ours stores it.
    """
    try:
        return dtypes.as_dtype(dtype)
    except (KeyError, TypeError):
        names = ", ".join(d.name for d in dtypes.ALL)
        raise DTypeError(f"{dtype!r} is not an element type", help=f"the types are {names}") from None


def _converted(value: Any, dtype: DType) -> float | int:
    if dtype.is_bool:
        return int(bool(value))
    if dtype.is_float:
        try:
            return float(value)
        except OverflowError:
            raise DTypeError(f"the integer {value} is beyond {dtype}") from None
    if isinstance(value, float) and not value.is_integer():
        raise DTypeError(f"{value} is not an integer, so it does not fit {dtype}", help="use a float type")
    if not int(dtype.lowest) <= int(value) <= int(dtype.highest):
        limits = f"{dtype.lowest} to {dtype.highest}"
        raise DTypeError(f"{int(value)} does not fit {dtype} ({limits})", help="cast the tile to a wider type")
    return int(value)


def broadcast_shapes(name: str, shapes: Sequence[Shape]) -> Shape:
    """The shape that all shapes broadcast to, by NumPy's rule.

    Raises:
        ShapeError: they do not broadcast.
    """
    rank = max(map(len, shapes), default=0)
    result: list[int] = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            listed = " and ".join(map(str, dict.fromkeys(shapes)))
            raise ShapeError(
                f"operands of `{name}` have shapes {listed}, which do not broadcast",
                help="sizes, from the last axis on, must be equal or 1: insert axes with `x[:, None]`",
            )
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def spread_edges(x: TileValue, shape: Shape, axes: Sequence[int] | None = None) -> Edges:
    """The edges of a tile repeated to `shape`; its axis i becomes axis `axes[i]`, the last ones if None. All copies of
    a lane are beyond an array where it does."""
    edges = list(no_edges(len(shape)))
    edges[-1] = x.edges[-1]
    axes = range(len(shape) - x.rank, len(shape)) if axes is None else axes
    for size, axis, own in zip(x.shape, axes, x.edges[:-1], strict=True):
        edges[axis] = own if size == shape[axis] else tuple(e.of_tile for e in own)
    return tuple(edges)


def _reshaped_edges(x: TileValue, shape: Shape) -> Edges | None:
    """The edges of a tile in another shape; None where an edge of some lanes of a dimension would be lost.

    Dimensions of size 1 keep theirs where there still is one between the same others. Edges that hold for the whole
    tile do so in any shape."""
    edges = list(no_edges(len(shape)))
    whole = [x.edges[-1]]
    kept = [d for d, n in enumerate(x.shape) if n != 1]
    wanted = [d for d, n in enumerate(shape) if n != 1]
    keeps_dims = [x.shape[d] for d in kept] == [shape[d] for d in wanted]
    places = {d: w for d, w in zip(kept, wanted, strict=True)} | _ones(x.shape, shape) if keeps_dims else {}
    for dim, own in enumerate(x.edges[:-1]):
        if dim in places:
            edges[places[dim]] = own
        elif x.shape[dim] == 1 or all(e.stride == 0 for e in own):
            whole.append(tuple(e.of_tile for e in own))
        else:
            return None
    edges[-1] = union_edges(*((own,) for own in whole))[0]
    return tuple(edges)


def _ones(old: Shape, new: Shape) -> dict[int, int]:
    """Dimensions of size 1 of two shapes that follow the same number of others, in order."""
    places: dict[int, int] = {}
    free = [(sum(n != 1 for n in new[:d]), d) for d, size in enumerate(new) if size == 1]
    for dim, size in enumerate(old):
        before = sum(n != 1 for n in old[:dim])
        match = next((pair for pair in free if pair[0] == before), None) if size == 1 else None
        if match is not None:
            places[dim] = match[1]
            free.remove(match)
    return places


def axis_of(axis: object, rank: int) -> int:
    """One axis, counted from the front.

    Raises:
        ArgumentError: it is no integer.
        IndexError_: there is no such axis.
    """
    if not is_integer(axis):
        raise ArgumentError(f"an axis is {axis!r}, not an integer", help="pass a compile-time integer")
    if not -rank <= axis < rank:
        raise IndexError_(f"there is no axis {axis} in a tile with {rank} axes", help=f"axes are 0 to {rank - 1}")
    return int(axis) % rank


def axes_of(axis: object, rank: int) -> tuple[int, ...]:
    """Axes from None (all), an integer or a sequence.

    Raises:
        ArgumentError, IndexError_: they are no axes of the tile.
    """
    if axis is None:
        return tuple(range(rank))
    axes = tuple(axis_of(a, rank) for a in listed(axis))
    if len(set(axes)) != len(axes):
        raise ArgumentError(f"axes {axis} name one axis twice", help="name each axis once")
    return axes


def shape_of(shape: object) -> Shape:
    """A tile's shape from an integer or a sequence of integers.

    Raises:
        DataDependentShapeError: a size is known at run time only.
        ShapeError: a size is no positive compile-time integer.
    """
    sizes = listed(shape)
    for n in sizes:
        if isinstance(n, TileValue | Affine | TileIndex):
            raise DataDependentShapeError("a shape depends on data or on an index", help="use compile-time integers")
        if not is_integer(n) or n < 0:
            given = str(n) if is_integer(n) else f"a {type(n).__name__}"
            raise ShapeError(f"{given} in a shape is no compile-time size", help="pass integers of 0 or more")
    return tuple(int(n) for n in sizes)


def _completed(shape: Shape, size: int, given: Shape) -> Shape:
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and size % known == 0:
        shape = tuple(size // known if n == -1 else n for n in shape)
    if math.prod(shape) != size or -1 in shape:
        raise ShapeError(f"cannot reshape {given} ({size} elements) to {shape}", help="give a shape of equal size")
    return shape
