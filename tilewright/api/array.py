"""`Array`: an array of a traced program.

It has a shape and an element type, but no contents until the program runs. The functions that its operators and methods
stand for are found in `tilewright.api` at call time, because they are built on this class.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from tilewright.dtypes import DType, DTypeLike
from tilewright.errors import (
    ArgumentError,
    DataDependentShapeError,
    ShapeError,
    TilewrightError,
    UnsupportedSyntaxError,
    user_location,
)
from tilewright.frontend.trace import Graph, Value
from tilewright.frontend.tracing import active_graphs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from tilewright.api.indexing import Updates
    from tilewright.api.lifting import ArrayLike

Axis = int | tuple[int, ...] | None
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def located(error: TilewrightError) -> TilewrightError:
    """The error with the user's line, for `raise located(...)`."""
    error.location = error.location or user_location()
    return error


def locating(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, with the user's line in the errors that the layers below raise."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except TilewrightError as error:
            located(error)
            raise

    return wrapped


class Array:
    """An array of a traced program. `weak` marks a Python scalar: it takes the type of what it meets."""

    __slots__ = ("_graph", "_value", "_weak")
    __hash__ = None  # pyright: ignore[reportAssignmentType]  == compares elements, so arrays are no dict keys

    def __init__(self, value: Value, graph: Graph, weak: bool = False) -> None:
        self._value = value
        self._graph = graph
        self._weak = weak

    # ---- what is known while tracing ----

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.type.shape

    @property
    def dtype(self) -> DType:
        return self._value.type.dtype

    @property
    def ndim(self) -> int:
        return len(self._value.type.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self._value.type.nbytes

    @property
    def device(self) -> None:
        """None: a traced array has no device before the program runs."""

    @property
    def weak(self) -> bool:
        return self._weak

    @property
    def value(self) -> Value:
        """The value in the program being traced.

        Raises:
            ArgumentError: the array belongs to a trace that has ended or to a region that is not open here.
        """
        if self._graph not in active_graphs():
            raise located(
                ArgumentError(
                    f"{self!r} was made in another trace or inside a region that has ended",
                    help="return it from the traced function or region instead of keeping it elsewhere",
                )
            )
        return self._value

    def __repr__(self) -> str:
        return f"Array({self._value.type})"

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        import tilewright

        return tilewright

    def to_device(self, device: None, /, *, stream: None = None) -> Array:
        """Return the array itself: the device of a program is chosen when it is compiled."""
        if device is not None or stream is not None:
            raise located(ArgumentError("a traced array has no device", help='choose one with `tw.jit(target="...")`'))
        return self

    # ---- what is not known while tracing ----

    def __bool__(self) -> bool:
        _refuse("the truth of", "choose with `tw.where`, or branch with `tw.cond` or `tw.while_loop`")

    def __int__(self) -> int:
        _refuse("the integer value of", "keep it as an array, or pass it in `static_argnames`")

    def __index__(self) -> int:
        _refuse("the integer value of", "use `x[i]`, `tw.dynamic_slice` or `tw.fori_loop`, which take traced integers")

    def __float__(self) -> float:
        _refuse("the value of", "keep it as an array, or pass it in `static_argnames`")

    def __complex__(self) -> complex:
        _refuse("the value of", "keep it as an array")

    def item(self) -> NoReturn:
        _refuse("the value of", "return the array from the function and read it outside")

    def tolist(self) -> NoReturn:
        _refuse("the content of", "return the array from the function and read it outside")

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NoReturn:
        _refuse("the content of", "use the function of the same name in `tw` instead of the one in NumPy")

    def __len__(self) -> int:
        if not self.ndim:
            raise located(ShapeError("the length of an array without axes", help="give the array an axis: `x[None]`"))
        return self.shape[0]

    def __iter__(self) -> NoReturn:
        help = "use `tw.unstack(x)` for a few rows, or `tw.scan` or `tw.fori_loop`"
        raise located(DataDependentShapeError("a Python loop over the rows of a traced array", help=help))

    def __contains__(self, item: object) -> bool:
        _refuse("membership in", "use `tw.any(x == item)`")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise located(
            UnsupportedSyntaxError("traced arrays cannot be changed in place", help="use `x = x.at[...].set(value)`")
        )

    # ---- indexing ----

    def __getitem__(self, key: object) -> Array:
        return _api().indexing.get(self, key)

    @property
    def at(self) -> Updates:
        """`x.at[key].set(v)`, `.add`, `.multiply`, `.max`, `.min`: a copy of `x` with the elements at `key` updated."""
        return _api().indexing.Updates(self)

    # ---- operators ----

    def __add__(self, other: ArrayLike) -> Array:
        return _operator("add", self, other)

    def __radd__(self, other: ArrayLike) -> Array:
        return _operator("add", other, self)

    def __sub__(self, other: ArrayLike) -> Array:
        return _operator("subtract", self, other)

    def __rsub__(self, other: ArrayLike) -> Array:
        return _operator("subtract", other, self)

    def __mul__(self, other: ArrayLike) -> Array:
        return _operator("multiply", self, other)

    def __rmul__(self, other: ArrayLike) -> Array:
        return _operator("multiply", other, self)

    def __truediv__(self, other: ArrayLike) -> Array:
        return _operator("divide", self, other)

    def __rtruediv__(self, other: ArrayLike) -> Array:
        return _operator("divide", other, self)

    def __floordiv__(self, other: ArrayLike) -> Array:
        return _operator("floor_divide", self, other)

    def __rfloordiv__(self, other: ArrayLike) -> Array:
        return _operator("floor_divide", other, self)

    def __mod__(self, other: ArrayLike) -> Array:
        return _operator("remainder", self, other)

    def __rmod__(self, other: ArrayLike) -> Array:
        return _operator("remainder", other, self)

    def __divmod__(self, other: ArrayLike) -> tuple[Array, Array]:
        return _operator("floor_divide", self, other), _operator("remainder", self, other)

    def __rdivmod__(self, other: ArrayLike) -> tuple[Array, Array]:
        return _operator("floor_divide", other, self), _operator("remainder", other, self)

    def __pow__(self, other: ArrayLike) -> Array:
        return _operator("pow", self, other)

    def __rpow__(self, other: ArrayLike) -> Array:
        return _operator("pow", other, self)

    def __matmul__(self, other: ArrayLike) -> Array:
        return _operator("matmul", self, other)

    def __rmatmul__(self, other: ArrayLike) -> Array:
        return _operator("matmul", other, self)

    def __and__(self, other: ArrayLike) -> Array:
        return _operator("bitwise_and", self, other)

    def __rand__(self, other: ArrayLike) -> Array:
        return _operator("bitwise_and", other, self)

    def __or__(self, other: ArrayLike) -> Array:
        return _operator("bitwise_or", self, other)

    def __ror__(self, other: ArrayLike) -> Array:
        return _operator("bitwise_or", other, self)

    def __xor__(self, other: ArrayLike) -> Array:
        return _operator("bitwise_xor", self, other)

    def __rxor__(self, other: ArrayLike) -> Array:
        return _operator("bitwise_xor", other, self)

    def __lshift__(self, other: ArrayLike) -> Array:
        return _operator("bitwise_left_shift", self, other)

    def __rlshift__(self, other: ArrayLike) -> Array:
        return _operator("bitwise_left_shift", other, self)

    def __rshift__(self, other: ArrayLike) -> Array:
        return _operator("bitwise_right_shift", self, other)

    def __rrshift__(self, other: ArrayLike) -> Array:
        return _operator("bitwise_right_shift", other, self)

    def __eq__(self, other: object) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]  compares elements
        return _operator("equal", self, other)

    def __ne__(self, other: object) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]  compares elements
        return _operator("not_equal", self, other)

    def __lt__(self, other: ArrayLike) -> Array:
        return _operator("less", self, other)

    def __le__(self, other: ArrayLike) -> Array:
        return _operator("less_equal", self, other)

    def __gt__(self, other: ArrayLike) -> Array:
        return _operator("greater", self, other)

    def __ge__(self, other: ArrayLike) -> Array:
        return _operator("greater_equal", self, other)

    def __neg__(self) -> Array:
        return _operator("negative", self)

    def __pos__(self) -> Array:
        return self

    def __abs__(self) -> Array:
        return _operator("abs", self)

    def __invert__(self) -> Array:
        return _operator("bitwise_invert", self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: object, **keywords: object) -> Array:
        """NumPy's functions and the operators of NumPy arrays, where `tw` has the function of that meaning."""
        given = str(ufunc.__name__)
        name = _UFUNCS.get(given, given)
        if method != "__call__" or keywords or not hasattr(_api(), name):
            raise located(
                ArgumentError(f"`np.{given}` in this form cannot be traced", help="use the function in `tw` instead")
            )
        return getattr(_api(), name)(*inputs)

    def __array_function__(self, function: Any, types: object, args: object, kwargs: object) -> NoReturn:
        """NumPy's other functions: their options differ, so they are refused with the name to use."""
        name = str(function.__name__)
        help = f"use `tw.{name}`" if hasattr(_api(), name) else "use the functions in `tw`"
        raise located(ArgumentError(f"`{function.__module__}.{name}` cannot be traced", help=help))

    # ---- methods ----

    @property
    def T(self) -> Array:
        """All axes reversed; the Array API's matrix transpose for two axes."""
        return self.transpose()

    @property
    def mT(self) -> Array:
        """The last two axes exchanged."""
        return _api().matrix_transpose(self)

    def astype(self, dtype: DTypeLike) -> Array:
        return _api().astype(self, dtype)

    def reshape(self, *shape: Any) -> Array:
        """`x.reshape(2, -1)` or `x.reshape((2, -1))`."""
        return _api().reshape(self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    def transpose(self, *axes: Any) -> Array:
        """Axes in the given order, or reversed when none is given."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return _api().permute_dims(self, tuple(order) or tuple(range(self.ndim))[::-1])

    def flatten(self) -> Array:
        return self.reshape(-1)

    def ravel(self) -> Array:
        return self.reshape(-1)

    def squeeze(self, axis: Axis = None) -> Array:
        return _api().squeeze(self, tuple(d for d, n in enumerate(self.shape) if n == 1) if axis is None else axis)

    def swapaxes(self, first: int, second: int) -> Array:
        return _api().moveaxis(self, (first, second), (second, first))

    def sum(self, axis: Axis = None, *, dtype: object = None, keepdims: bool = False) -> Array:
        return _api().sum(self, axis=axis, dtype=dtype, keepdims=keepdims)

    def prod(self, axis: Axis = None, *, dtype: DTypeLike | None = None, keepdims: bool = False) -> Array:
        return _api().prod(self, axis=axis, dtype=dtype, keepdims=keepdims)

    def mean(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        return _api().mean(self, axis=axis, keepdims=keepdims)

    def var(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
        return _api().var(self, axis=axis, correction=correction, keepdims=keepdims)

    def std(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
        return _api().std(self, axis=axis, correction=correction, keepdims=keepdims)

    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        return _api().max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        return _api().min(self, axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        return _api().all(self, axis=axis, keepdims=keepdims)

    def any(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        return _api().any(self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Array:
        return _api().argmax(self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Array:
        return _api().argmin(self, axis=axis, keepdims=keepdims)

    def cumsum(self, axis: int | None = None) -> Array:
        return _api().cumulative_sum(self, axis=axis)

    def clip(self, min: object = None, max: object = None) -> Array:
        return _api().clip(self, min, max)

    def round(self) -> Array:
        return _operator("round", self)

    def take(self, indices: object, axis: int | None = None) -> Array:
        return _api().take(self, indices, axis=axis)

    def repeat(self, repeats: int | Sequence[int], axis: int | None = None) -> Array:
        return _api().repeat(self, repeats, axis=axis)


# NumPy functions whose counterpart has another name; the rest have the same.
_UFUNCS = {
    "absolute": "abs",
    "conjugate": "conj",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "power": "pow",
    "right_shift": "bitwise_right_shift",
    "rint": "round",
    "true_divide": "divide",
}


def _api() -> ModuleType:
    from tilewright import api

    return api


def _refuse(what: str, help: str) -> NoReturn:
    raise located(DataDependentShapeError(f"{what} a traced array is not known before the program runs", help=help))


def _operator(name: str, *operands: object) -> Array:
    for operand in operands:
        if not isinstance(operand, Array | bool | int | float | complex) and not hasattr(operand, "__array__"):
            return NotImplemented
    return getattr(_api(), name)(*operands)
