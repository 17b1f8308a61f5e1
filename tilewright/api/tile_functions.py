"""Functions of tile kernels, and what the array functions mean inside them.

Kernels recognise these functions by identity, so `tw.exp` is one function for arrays and tiles.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NoReturn

from tilewright import layout
from tilewright.api import (
    functions_creation,
    functions_dtype,
    functions_elementwise,
    functions_linalg,
    functions_manipulation,
    functions_math,
    functions_searching,
    functions_statistics,
    nn,
)
from tilewright.api.array import located
from tilewright.dtypes import DTypeLike
from tilewright.errors import ArgumentError, DataDependentShapeError, TilewrightError, UnsupportedSyntaxError
from tilewright.frontend.pyast_registry import register
from tilewright.frontend.tracing import is_tracing


def _only_in_kernels(name: str, instead: str) -> NoReturn:
    message = f"`tw.{name}` belongs inside a function decorated with `@tw.kernel`"
    raise located(UnsupportedSyntaxError(message, help=instead))


def grid(over: object, blocks: object) -> Any:
    """The parallel loop of a kernel: `for i, j in tw.grid(c, (bm, bn))` runs over blocks of the first axes of an array,
    `tw.grid((M, N), (bm, bn))` over sizes. A block of None gives single positions; `tw.grid((M, N), None)` gives them
    along every size."""
    _only_in_kernels("grid", "call it as the iterable of the kernel's outer loop")


def steps(over: object, /, *, size: int, axis: int = 0) -> Any:
    """A loop in order: `for k in tw.steps(a, axis=1, size=bk)` runs over blocks of one axis, `tw.steps(K, size=bk)`
    over a size."""
    _only_in_kernels("steps", "call it as the iterable of a loop in a kernel")


def dot(
    a: object, b: object, /, acc: object = None, *, dtype: DTypeLike | None = None, precision: str | None = None
) -> Any:
    """`acc + a @ b` for tiles of M x K and K x N, added in the accumulator's type (f32 for narrow floats).
    `precision="tf32"` rounds operands of f32 as `tw.matmul` does."""
    _only_in_kernels("dot", "multiply arrays with `tw.matmul`")


def load(source: object, index: object = None, /, *, fill: object = None) -> Any:
    """In a kernel, `tw.load(x, index, fill=0)` is `x[index]`, where lanes outside hold `fill` and count as elements;
    without it they hold 0 and do not count. Elsewhere, `tw.load("x.twp")` is the program that `.save("x.twp")` wrote: a
    function of its flat inputs as NumPy arrays, which gives its output, or a tuple unless there is exactly one. That
    for a grid of cores needs the compiler, whose simulator runs it.

    Raises:
        ProgramFileError: the file is damaged, truncated or from another version.
        CpuFeatureError: this machine lacks the architecture or a feature that the program needs.
        OSError: the file cannot be opened.
    """
    if not isinstance(source, str | os.PathLike) or index is not None:
        _only_in_kernels("load", "index arrays: `x[i]`; `tw.load(path)` loads a saved program")
    from tilewright.driver.saved import load_program

    try:
        return load_program(os.fsdecode(source))
    except TilewrightError as error:
        raise located(error) from None


def store(array: object, index: object, value: object, /) -> None:
    """`array[index] = value`."""
    _only_in_kernels("store", "arrays are values: use `x.at[i].set(value)`")


def cdiv(a: int, divisor: int, /) -> int:
    """`a / divisor`, rounded up.

    Raises:
        ArgumentError: the divisor is not positive.
    """
    if divisor < 1:
        raise located(ArgumentError(f"`cdiv` by {divisor}", help="divide by a positive integer"))
    return -(-a // divisor)


def num_tiles(array: Any, axis: int, size: int) -> int:
    """How many blocks of `size` one axis of an array has, the last one perhaps in part.

    Raises:
        ArgumentError: there is no such axis.
    """
    shape = array.shape
    if not -len(shape) <= axis < len(shape):
        message = f"there is no axis {axis} in an array with {len(shape)} axes"
        raise located(ArgumentError(message, help="count axes from 0"))
    return cdiv(shape[axis], size)


def assert_(condition: object, message: str = "a kernel's assertion failed", /) -> None:
    """Stop with `message` unless all elements are true (interpreter only)."""
    _only_in_kernels("assert_", "check arrays before the call")


def print(*values: object) -> None:
    """Show tiles and texts in the interpreter; on a grid of cores, what the queues hold that tiles are in."""
    _only_in_kernels("print", "print arrays after the call")


def zone(name: str, /) -> Any:
    """`with tw.zone("load"):` in a kernel: what is inside is a slice of that name in the trace of a GPU's run, one for
    each multiprocessor and role of its warps, or of a run on a grid of cores, one for each core and thread. The name is
    a text that is written out. Without the option `trace_file` a zone is no code at all."""
    _only_in_kernels("zone", "put it around statements of a kernel")


def transpose(x: Any, /, axes: Any = None) -> Any:
    """The tile or array with its axes in another order, reversed if None."""
    if not is_tracing():
        raise located(DataDependentShapeError("`tw.transpose` outside a trace", help="use `numpy.transpose`"))
    order = tuple(reversed(range(x.ndim))) if axes is None else axes
    return functions_manipulation.permute_dims(x, order)


def cast(x: Any, dtype: Any, /) -> Any:
    """The tile or array in another element type."""
    return functions_dtype.astype(x, dtype)


class KernelFunction:
    """A helper of kernels: its body is compiled where it is called."""

    def __init__(self, function: Callable[..., object]) -> None:
        functools.update_wrapper(self, function)
        self._name = getattr(function, "__name__", "helper")

    def __call__(self, *args: Any, **kwargs: object) -> NoReturn:
        _only_in_kernels(self._name, "call it from a kernel")


def kernel_function(function: Callable[..., object], /) -> KernelFunction:
    """Mark a function as a helper of tile kernels: `@tw.kernel_function`. Plain functions work without it."""
    return KernelFunction(function)


_TILE_ONLY = (grid, steps, dot, load, store, cdiv, num_tiles, assert_, print, zone, transpose, cast)

# Array functions with a handler of their own name, or of the name given.
_ELEMENTWISE = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "remainder",
    "maximum",
    "minimum",
    "copysign",
    "negative",
    "abs",
    "sign",
    "square",
    "reciprocal",
    "signbit",
    "floor",
    "ceil",
    "trunc",
    "round",
    "isnan",
    "isinf",
    "isfinite",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "bitwise_invert",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "where",
    "clip",
    "pow",
]
_MATHS = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "cbrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "sigmoid",
    "atan2",
    "hypot",
]
_SHAPES = ["broadcast_to", "reshape", "expand_dims", "squeeze", "permute_dims", "matrix_transpose", "concat"]
_STATISTICS = [
    "sum",
    "prod",
    "max",
    "min",
    "mean",
    "var",
    "all",
    "any",
    "cumulative_sum",
    "cumulative_prod",
    "cumsum",
    "cumprod",
]


register(layout, "layout")
for _function in _TILE_ONLY:
    register(_function, _function.__name__)
for _module, _names in (
    (functions_elementwise, _ELEMENTWISE),
    (functions_math, _MATHS),
    (functions_manipulation, _SHAPES),
    (functions_statistics, _STATISTICS),
    (functions_searching, ("argmax", "argmin", "sort")),
    (functions_creation, ("zeros", "ones", "full", "arange")),
    (functions_dtype, ("astype", "bitcast")),
    (functions_linalg, ("matmul",)),
    (nn, ("relu",)),
):
    for _name in _names:
        register(getattr(_module, _name), _name)
