"""Functions in kernels: handlers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.ir import SSAValue

from tilewright import dtypes, ops
from tilewright.dialects import tile
from tilewright.dialects.base import tensor
from tilewright.dtypes import DType
from tilewright.errors import (
    ArgumentError,
    DataDependentShapeError,
    DTypeError,
    LayoutError,
    ShapeError,
    UnsupportedSyntaxError,
)
from tilewright.frontend import pyast_indexing as indexing
from tilewright.frontend import pyast_reductions as reductions
from tilewright.frontend.pyast_builder import KernelBuilder, axes_of, axis_of, element_type, shape_of
from tilewright.frontend.pyast_instead import KEYWORDS_ELSEWHERE
from tilewright.frontend.pyast_values import Affine, Grid, Ref, Steps, TileIndex, TileValue, is_integer, listed
from tilewright.layout import Layout
from tilewright.layout.axes import kind_of
from tilewright.primitives import ArrayType

Handler = Callable[..., Any]
HANDLERS: dict[str, Handler] = {}


def handler(*names: str) -> Callable[[Handler], Handler]:
    """Give a handler its names. Its first parameter is the builder."""

    def register(function: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, function))
        return function

    return register


def call_handler(b: KernelBuilder, name: str, args: Sequence[object], keywords: Mapping[str, object]) -> Any:
    """Run a handler.

    Raises:
        ArgumentError: it does not take these arguments.
        Others: as the function does.
    """
    check_arguments(name, args, keywords)
    return HANDLERS[name](b, *args, **keywords)


_BY_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def check_arguments(name: str, args: Sequence[object], keywords: Mapping[str, object]) -> None:
    """Check the arguments of a call against the parameters of its handler, unknown keywords first.

    Raises:
        ArgumentError: a keyword is unknown, or there are too many arguments or too few.
    """
    signature = inspect.signature(HANDLERS[name])
    parameters = list(signature.parameters.values())[1:]
    help = f"inside a kernel it is `{name}({', '.join(map(_parameter_text, parameters))})`"
    known = [p.name for p in parameters if p.kind in _BY_KEYWORD]
    for keyword in keywords:
        if keyword not in known:
            instead = KEYWORDS_ELSEWHERE.get((name, keyword), help)
            raise ArgumentError(f"`{name}` has no keyword `{keyword}` in a kernel", help=instead)
    try:
        signature.bind(None, *args, **keywords)
    except TypeError as error:
        raise ArgumentError(f"`{name}`: {error}", help=help) from None


def _parameter_text(parameter: inspect.Parameter) -> str:
    """A parameter as the user writes it, without its annotation."""
    stars = "*" if parameter.kind == parameter.VAR_POSITIONAL else ""
    default = "" if parameter.default is parameter.empty else f"={parameter.default}"
    return f"{stars}{parameter.name.rstrip('_')}{default}"


# ---- elementwise ----------------------------------------------------------------------------------------------------


def _scalar_function(fn: str, arity: int) -> Handler:
    def unary(b: KernelBuilder, x: object, /) -> TileValue:
        return b.map(fn, x)

    def binary(b: KernelBuilder, x1: object, x2: object, /) -> TileValue:
        return b.map(fn, x1, x2)

    return unary if arity == 1 else binary


# Public names that differ from the table's.
RENAMED = {
    "abs": "absolute",
    "pow": "power",
    "bitwise_left_shift": "shift_left",
    "bitwise_right_shift": "shift_right",
    "bitwise_invert": "bitwise_not",
}

for _function in ops.FUNCTIONS.values():
    if _function.arity < 3:
        HANDLERS[_function.name] = _scalar_function(_function.name, _function.arity)
for _public, _fn in RENAMED.items():
    HANDLERS[_public] = HANDLERS[_fn]


def _rounding(fn: str) -> Handler:
    """Integers are whole already."""

    def apply(b: KernelBuilder, x: object, /) -> TileValue:
        lifted = b.lift(x)
        return lifted if not lifted.type.dtype.is_float else b.map(fn, lifted)

    return apply


def _classifying(fn: str) -> Handler:
    """Integers are finite."""

    def apply(b: KernelBuilder, x: object, /) -> TileValue:
        lifted = b.lift(x)
        if lifted.type.dtype.is_float:
            return b.map(fn, lifted)
        return b.full(lifted.shape, fn == "isfinite", dtypes.bool_)

    return apply


for _name in ("floor", "ceil", "trunc", "round"):
    HANDLERS[_name] = _rounding(_name)
for _name in ("isnan", "isinf", "isfinite"):
    HANDLERS[_name] = _classifying(_name)


@handler("pow", "power")
def power(b: KernelBuilder, x1: object, x2: object, /) -> TileValue:
    """`x1 ** x2`. Small powers become multiplications and roots, which are exact or cheap."""
    if isinstance(x1, TileValue) and isinstance(x2, int | float) and not isinstance(x2, bool):
        is_float, whole = x1.type.dtype.is_float, isinstance(x2, int) and x2 > 0
        if is_float and x2 in (0.5, -0.5, -1):
            return b.map({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[x2], x1)
        if x2 in (1, 2, 3) and (is_float or (x1.type.dtype.is_integer and whole)):
            square = b.map("square", x1) if x2 > 1 else x1
            return b.map("multiply", square, x1) if x2 == 3 else square
    return b.map("power", x1, x2)


@handler("where")
def where(b: KernelBuilder, condition: object, x1: object, x2: object, /) -> TileValue:
    if isinstance(condition, bool):
        condition = b.full((), condition, dtypes.bool_)
    lifted = b.lift(condition)
    if not lifted.type.dtype.is_bool:
        raise DTypeError(f"the condition of `where` is {lifted.type.dtype}, not bool", help="compare: `x != 0`")
    return b.map("select", lifted, x1, x2)


@handler("relu")
def relu(b: KernelBuilder, x: object, /) -> TileValue:
    return b.map("maximum", x, 0)


@handler("clip")
def clip(b: KernelBuilder, x: object, /, min: object = None, max: object = None) -> TileValue:
    result = b.lift(x)
    if min is not None:
        result = b.map("maximum", result, min)
    return result if max is None else b.map("minimum", result, max)


def truth(b: KernelBuilder, x: object) -> TileValue:
    """Whether each element is non-zero."""
    return b.cast(b.lift(x), dtypes.bool_)


@handler("logical_and")
def logical_and(b: KernelBuilder, x1: object, x2: object, /) -> TileValue:
    return b.map("bitwise_and", truth(b, x1), truth(b, x2))


@handler("logical_or")
def logical_or(b: KernelBuilder, x1: object, x2: object, /) -> TileValue:
    return b.map("bitwise_or", truth(b, x1), truth(b, x2))


@handler("logical_xor")
def logical_xor(b: KernelBuilder, x1: object, x2: object, /) -> TileValue:
    return b.map("bitwise_xor", truth(b, x1), truth(b, x2))


@handler("logical_not")
def logical_not(b: KernelBuilder, x: object, /) -> TileValue:
    return b.map("bitwise_not", truth(b, x))


@handler("astype", "cast")
def astype(b: KernelBuilder, x: object, dtype: Any, /) -> TileValue:
    return b.cast(b.lift(x), element_type(dtype))


@handler("bitcast")
def bitcast(b: KernelBuilder, x: object, dtype: object, /) -> TileValue:
    lifted, target = b.lift(x), element_type(dtype)
    source = lifted.type.dtype
    if source.bits != target.bits or source.is_bool or target.is_bool:
        raise DTypeError(f"`bitcast` from {source} to {target} changes the element size", help="use `.astype`")
    type = ArrayType(lifted.shape, target)
    return b.new(tile.BitcastOp(arguments=[lifted.value], outputs=[tensor(type)]), lifted.edges)


# ---- sources --------------------------------------------------------------------------------------------------------


@handler("zeros")
def zeros(b: KernelBuilder, shape: object, dtype: object = dtypes.f32) -> TileValue:
    return b.full(shape_of(shape), 0, element_type(dtype))


@handler("ones")
def ones(b: KernelBuilder, shape: object, dtype: object = dtypes.f32) -> TileValue:
    return b.full(shape_of(shape), 1, element_type(dtype))


@handler("full")
def full(b: KernelBuilder, shape: object, fill_value: object, dtype: object = None) -> TileValue:
    sizes = shape_of(shape)
    if isinstance(fill_value, bool | int | float):
        chosen = element_type(dtype) if dtype is not None else b.lift(fill_value).type.dtype
        return b.full(sizes, fill_value, chosen)
    lifted = b.lift(fill_value)
    return b.broadcast(b.cast(lifted, element_type(dtype) if dtype is not None else lifted.type.dtype), sizes)


@handler("arange")
def arange(b: KernelBuilder, start: object, stop: object = None, /, *, dtype: object = dtypes.i64) -> TileValue:
    """The numbers below `start`, or from `start` below `stop`."""
    first, last = (0, start) if stop is None else (start, stop)
    if not is_integer(first) or not is_integer(last) or last < first:
        text = f"`arange` of {start}" if stop is None else f"`arange` from {start} to {stop}"
        help = "pass compile-time integers in rising order; add an index to the tile: `i + tw.arange(8)`"
        raise ShapeError(f"{text} has no compile-time size", help=help)
    numbers = b.positions(int(last) - int(first), element_type(dtype))
    return b.map("add", numbers, int(first)) if first else numbers


# ---- arrays ---------------------------------------------------------------------------------------------------------


def _array(value: object, what: str) -> Ref:
    if not isinstance(value, Ref):
        raise ArgumentError(f"`{what}` takes an array parameter, got a {type(value).__name__}", help="pass `a` itself")
    return value


@handler("load")
def load(b: KernelBuilder, array: object, index: object, /, *, fill: object = None) -> TileValue:
    return indexing.load(b, _array(array, "load"), index, fill)


@handler("store")
def store(b: KernelBuilder, array: object, index: object, value: object, /) -> None:
    indexing.store(b, _array(array, "store"), index, value)


@handler("cdiv")
def cdiv(b: KernelBuilder, a: Any, divisor: object, /) -> int:
    if not isinstance(a, int) or not isinstance(divisor, int) or divisor < 1:
        raise ArgumentError(f"`cdiv` of {a} and {divisor}", help="pass compile-time integers, the second positive")
    return -(-a // divisor)


@handler("num_tiles")
def num_tiles(b: KernelBuilder, array: object, axis: object, size: object) -> int:
    ref = _array(array, "num_tiles")
    return -(-ref.type.shape[axis_of(axis, ref.type.rank)] // _block_size(size))


def _block_size(size: object) -> int:
    if isinstance(size, TileValue | Affine | TileIndex):
        raise DataDependentShapeError("a block size depends on data or on an index", help="use a compile-time integer")
    if not is_integer(size) or size < 1:
        raise ArgumentError(f"a block size is {size!r}", help="use a positive compile-time integer")
    return int(size)


@handler("grid")
def grid(b: KernelBuilder, over: object, blocks: object) -> Grid:
    """Blocks over the first axes of an array, or over sizes. A block of None means single positions; None in place of
    the block sizes of several sizes, single positions along each."""
    shape = over.type.shape if isinstance(over, Ref) else shape_of(over)
    if blocks is None and not isinstance(over, Ref) and len(shape) > 1:
        blocks = (None,) * len(shape)
    sizes = tuple(None if n is None else _block_size(n) for n in listed(blocks))
    if not sizes or len(sizes) > len(shape):
        message = f"`grid` has {len(sizes)} block sizes for {len(shape)} axes"
        raise ShapeError(message, help="give at most one block size per axis, from the first axis on")
    if not isinstance(over, Ref) and len(sizes) != len(shape):
        message = f"`grid` has the block sizes {sizes} for the sizes {shape}"
        raise ShapeError(message, help="give one block size per size")
    return Grid(shape[: len(sizes)], sizes, isinstance(blocks, tuple | list))


@handler("steps")
def steps(b: KernelBuilder, over: object, /, *, size: object, axis: object = 0) -> Steps:
    """The blocks along one axis of an array, or over a size, in order."""
    if isinstance(over, Ref):
        return Steps(over.type.shape[axis_of(axis, over.type.rank)], _block_size(size))
    (extent,) = shape_of(over) if not isinstance(over, tuple | list) else (None,)
    if extent is None:
        raise ShapeError(f"`steps` over {over}", help="pass an array and an axis, or one size")
    return Steps(extent, _block_size(size))


# ---- shapes ---------------------------------------------------------------------------------------------------------


@handler("reshape")
def reshape(b: KernelBuilder, x: object, /, shape: Any, *more: object) -> TileValue:
    sizes = [shape, *more] if more else listed(shape)
    checked = tuple(-1 if isinstance(n, int) and n == -1 else shape_of((n,))[0] for n in sizes)
    return b.reshape(b.lift(x), checked)


@handler("broadcast_to")
def broadcast_to(b: KernelBuilder, x: object, /, shape: object) -> TileValue:
    return b.broadcast(b.lift(x), shape_of(shape))


@handler("expand_dims")
def expand_dims(b: KernelBuilder, x: object, /, axis: object = 0) -> TileValue:
    lifted = b.lift(x)
    return b.expand_dims(lifted, axes_of(axis, lifted.rank + len(listed(axis))))


@handler("squeeze")
def squeeze(b: KernelBuilder, x: object, /, axis: object) -> TileValue:
    lifted = b.lift(x)
    axes = axes_of(axis, lifted.rank)
    if any(lifted.shape[d] != 1 for d in axes):
        raise ShapeError(f"axes {axis} of a tile of shape {lifted.shape} are not of size 1", help="name axes of size 1")
    return b.reshape(lifted, tuple(n for d, n in enumerate(lifted.shape) if d not in axes))


@handler("transpose", "permute_dims")
def transpose(b: KernelBuilder, x: object, /, axes: object = None) -> TileValue:
    lifted = b.lift(x)
    order = tuple(reversed(range(lifted.rank))) if axes is None else axes_of(axes, lifted.rank)
    if len(order) != lifted.rank:
        message = f"{axes} does not name each of the {lifted.rank} axes once"
        raise ArgumentError(message, help=f"name all axes, as in {tuple(reversed(range(lifted.rank)))}")
    return b.transpose(lifted, order)


@handler("matrix_transpose")
def matrix_transpose(b: KernelBuilder, x: object, /) -> TileValue:
    lifted = b.lift(x)
    if lifted.rank < 2:
        raise ShapeError(f"a tile of shape {lifted.shape} is no matrix", help="insert an axis: `x[:, None]`")
    lead = tuple(range(lifted.rank - 2))
    return b.transpose(lifted, (*lead, lifted.rank - 1, lifted.rank - 2))


@handler("concat")
def concat(b: KernelBuilder, arrays: Any, /, *, axis: object = 0) -> TileValue:
    if not isinstance(arrays, tuple | list) or not arrays:
        raise ArgumentError("`concat` takes a list of tiles", help="write `tw.concat([a, b], axis=0)`")
    parts = [b.lift(p) for p in listed(arrays)]
    return b.concat(parts, axis_of(axis, parts[0].rank))


# ---- along axes -----------------------------------------------------------------------------------------------------


@handler("sum")
def sum(
    b: KernelBuilder, x: object, /, axis: object = None, *, dtype: object = None, keepdims: bool = False
) -> TileValue:
    return _sum_like(b, "add", x, axis, dtype, keepdims)


@handler("prod")
def prod(
    b: KernelBuilder, x: object, /, axis: object = None, *, dtype: object = None, keepdims: bool = False
) -> TileValue:
    return _sum_like(b, "multiply", x, axis, dtype, keepdims)


def _sum_like(b: KernelBuilder, fn: str, x: object, axis: object, dtype: object, keepdims: bool) -> TileValue:
    lifted = b.lift(x)
    target: DType = element_type(dtype) if dtype is not None else reductions.sum_type(lifted.type.dtype)
    return reductions.reduce(b, fn, b.cast(lifted, target), axes_of(axis, lifted.rank), keepdims)


@handler("max")
def max(b: KernelBuilder, x: object, /, axis: object = None, *, keepdims: bool = False) -> TileValue:
    lifted = b.lift(x)
    return reductions.reduce(b, "maximum", lifted, axes_of(axis, lifted.rank), keepdims)


@handler("min")
def min(b: KernelBuilder, x: object, /, axis: object = None, *, keepdims: bool = False) -> TileValue:
    lifted = b.lift(x)
    return reductions.reduce(b, "minimum", lifted, axes_of(axis, lifted.rank), keepdims)


@handler("all")
def all(b: KernelBuilder, x: object, /, axis: object = None, *, keepdims: bool = False) -> TileValue:
    lifted = truth(b, x)
    return reductions.reduce(b, "bitwise_and", lifted, axes_of(axis, lifted.rank), keepdims)


@handler("any")
def any_(b: KernelBuilder, x: object, /, axis: object = None, *, keepdims: bool = False) -> TileValue:
    lifted = truth(b, x)
    return reductions.reduce(b, "bitwise_or", lifted, axes_of(axis, lifted.rank), keepdims)


@handler("mean")
def mean(b: KernelBuilder, x: object, /, axis: object = None, *, keepdims: bool = False) -> TileValue:
    lifted = b.lift(x)
    return reductions.mean(b, lifted, axes_of(axis, lifted.rank), keepdims)


@handler("var")
def var(b: KernelBuilder, x: object, /, axis: object = None, *, keepdims: bool = False) -> TileValue:
    lifted = b.lift(x)
    axes = axes_of(axis, lifted.rank)
    centre = reductions.mean(b, lifted, axes, True)
    return reductions.mean(b, b.map("square", b.map("subtract", lifted, centre)), axes, keepdims)


@handler("argmax")
def argmax(b: KernelBuilder, x: object, /, axis: object, *, keepdims: bool = False) -> TileValue:
    lifted = b.lift(x)
    return reductions.arg_reduce(b, "maximum", lifted, axis_of(axis, lifted.rank), keepdims)


@handler("argmin")
def argmin(b: KernelBuilder, x: object, /, axis: object, *, keepdims: bool = False) -> TileValue:
    lifted = b.lift(x)
    return reductions.arg_reduce(b, "minimum", lifted, axis_of(axis, lifted.rank), keepdims)


@handler("cumsum", "cumulative_sum")
def cumsum(
    b: KernelBuilder, x: object, /, *, axis: object = None, dtype: object = None, reverse: bool = False
) -> TileValue:
    return _running(b, "add", x, axis, dtype, reverse)


@handler("cumprod", "cumulative_prod")
def cumprod(
    b: KernelBuilder, x: object, /, *, axis: object = None, dtype: object = None, reverse: bool = False
) -> TileValue:
    return _running(b, "multiply", x, axis, dtype, reverse)


def _running(b: KernelBuilder, fn: str, x: object, axis: object, dtype: object, reverse: bool) -> TileValue:
    lifted = b.lift(x)
    if axis is None and lifted.rank != 1:
        raise ArgumentError(f"a running result of a tile of shape {lifted.shape} needs an axis", help="pass `axis=0`")
    target = element_type(dtype) if dtype is not None else reductions.sum_type(lifted.type.dtype)
    return reductions.scan(b, fn, b.cast(lifted, target), axis_of(0 if axis is None else axis, lifted.rank), reverse)


@handler("sort")
def sort(b: KernelBuilder, x: object, /, *, axis: object = -1, descending: bool = False) -> TileValue:
    lifted = b.lift(x)
    return reductions.sort(b, lifted, axis_of(axis, lifted.rank), descending)


@handler("dot", "matmul")
def dot(
    b: KernelBuilder, a: object, b_: object, /, acc: object = None, *, dtype: object = None, precision: object = None
) -> TileValue:
    accumulator = None if acc is None else b.lift(acc)
    return reductions.dot(b, b.lift(a), b.lift(b_), accumulator, dtype, precision)


# ---- layouts --------------------------------------------------------------------------------------------------------


@handler("layout")
def layout(b: KernelBuilder, x: object, layout: object, /, *, strict: object = False) -> TileValue:
    """The tile, pinned to a layout or the text of one."""
    lifted = b.lift(x)
    if not isinstance(strict, bool):
        raise ArgumentError(f"`strict` is {strict!r}", help="pass True or False")
    pinned = _layout_of(layout)
    if not lifted.shape:
        raise ShapeError("a scalar has no layout to pin", help="pin the tile that it is computed from")
    if pinned.shape != lifted.shape:
        message = f"a tile of shape {lifted.shape} is pinned to a layout of shape {pinned.shape}"
        raise ShapeError(message, help=f"make a layout of shape {lifted.shape}")
    op = tile.RelayoutOp(source=lifted.value, layout=str(pinned), strict=strict, result=tensor(lifted.type))
    return b.new(op, lifted.edges)


def _layout_of(value: object) -> Layout:
    if isinstance(value, str):
        value = Layout.parse(value)
    if not isinstance(value, Layout):
        message = f"a tile is pinned to a {type(value).__name__}, not to a layout"
        raise ArgumentError(message, help="pass a layout such as `tw.layouts.row_major((64, 64))`, or its text")
    if not value.is_static:
        raise LayoutError(f"the layout {value} has unknown sizes", help="bind them first: `layout.bind({M: 64})`")
    for axis in value.axes:
        kind_of(axis)
    return value


# ---- effects --------------------------------------------------------------------------------------------------------


@handler("print")
def print_(b: KernelBuilder, /, *values: object) -> None:
    """Show tiles, each after the text before it."""
    label = ""
    shown: list[SSAValue] = []
    for value in values:
        if isinstance(value, str):
            label += value + " "
        else:
            shown.append(b.lift(value).value)
    b.add(tile.PrintOp(arguments=shown, label=label.strip()))


@handler("zone")
def zone(b: KernelBuilder, name: object, /) -> None:
    """The `with` statement handles the body."""
    raise UnsupportedSyntaxError("`tw.zone` without `with`", help='write `with tw.zone("load"):` around statements')


@handler("assert_")
def assert_(b: KernelBuilder, condition: object, message: object = "a kernel's assertion failed", /) -> None:
    if isinstance(condition, bool):
        if not condition:
            raise ArgumentError(f"an assertion does not hold at compile time: {message}", help="change the sizes")
        return
    lifted = b.lift(condition)
    if not lifted.type.dtype.is_bool:
        raise DTypeError(f"an assertion is {lifted.type.dtype}, not bool", help="compare: `x != 0`")
    # Lanes beyond an array are no elements, so they hold.
    filled = b.filled(lifted, range(lifted.rank), True)
    b.add(tile.AssertOp(condition=filled.value, message=str(message)))
