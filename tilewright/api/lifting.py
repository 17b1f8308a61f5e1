"""From what a user passes to arrays of one type and shape: lifting, promotion, broadcasting.

Python numbers are weak: they take the element type of the arrays they meet, except that a float with integer arrays
gives f32 and an integer with bool arrays gives i64. NumPy arrays and scalars, and arrays of other libraries, become
constants with the type that they have.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np

from tilewright import dtypes, ops
from tilewright.api.array import Array, located
from tilewright.api.complex_array import ComplexArray
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError, DTypeError, IndexError_, ResourceExhausted, ShapeError, TilewrightError
from tilewright.frontend.tracing import current_graph, keeps_views
from tilewright.primitives import ArrayType, Shape

# NumPy's indices, and the arrays of them that exist at a time while a table is made of them.
_TABLE_ITEM_BYTES, _TABLE_COPIES = 8, 2
_MOST_STEPS = 1 << 20

Scalar = bool | int | float | complex


class SupportsDLPack(Protocol):
    """An array of another library, such as a tensor of PyTorch."""

    def __dlpack__(self) -> object: ...


ArrayLike: TypeAlias = Array | Scalar | np.generic | np.ndarray | SupportsDLPack


def is_scalar(operand: object) -> TypeGuard[Scalar]:
    """Whether an operand is a Python number. NumPy's f64 scalars are Python floats too, and are not meant."""
    return isinstance(operand, Scalar) and not isinstance(operand, np.generic)


def is_nested(operand: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether an operand is a list or a tuple, which only `asarray` and indexing take for an array."""
    return isinstance(operand, list | tuple)


def emit(op: str, *operands: Array, **attributes: object) -> Array:
    """Add a primitive with one result to the program."""
    return emit_all(op, *operands, **attributes)[0]


def emit_all(op: str, *operands: Array, **attributes: object) -> tuple[Array, ...]:
    """Add a primitive to the program; of complex arrays, those on their parts."""
    for operand in operands:
        if type(operand) is ComplexArray:
            return _complex_primitives().emit_all(op, operands, attributes)
    graph = current_graph()
    return tuple(Array(value, graph) for value in graph.add(op, [o.value for o in operands], **attributes))


def _complex_primitives() -> ModuleType:
    from tilewright.api import complex_primitives

    return complex_primitives


# ---- lifting --------------------------------------------------------------------------------------------------------


def lift(operand: object) -> Array:
    """An array of the program. Python numbers become weak scalars of f32, i64 or bool.

    Raises:
        ArgumentError, DTypeError, UnsupportedOnTargetError: the operand is no array of ours in CPU memory.
    """
    if isinstance(operand, Array):
        return operand
    if is_scalar(operand):
        return with_weakness(full((), operand, scalar_type(operand)), True)
    if is_nested(operand):
        raise located(ArgumentError(f"a {type(operand).__name__} is not an array", help="use `tw.asarray`"))
    return constant(operand)


def constant(captured: Any) -> Array:
    """A NumPy array or scalar, or an array of another library, as a constant of the program."""
    from tilewright.runtime.dlpack import to_numpy

    try:
        array, _ = to_numpy(captured)
    except TilewrightError as error:
        raise located(error) from None
    dtype = element_or_complex_type(array.dtype)
    if dtype.is_complex:
        return ComplexArray(constant(array.real.copy()), constant(array.imag.copy()))
    graph = current_graph()
    return Array(graph.constant(array, ArrayType(array.shape, dtype)), graph)


def check_table(name: str, elements: int) -> None:
    """Check that a function may compute a constant of so many elements, and copies of it, while the program is traced.

    Raises:
        ResourceExhausted: they are more than the memory of this machine.
    """
    from tilewright.runtime.cpu.features import usable_memory_bytes

    nbytes = _TABLE_COPIES * elements * _TABLE_ITEM_BYTES
    if nbytes > usable_memory_bytes():
        message = f"`{name}` makes a table of {elements} elements while it is traced, "
        message += f"which takes {nbytes} bytes; this machine has {usable_memory_bytes()} for this process"
        raise located(ResourceExhausted(message, help="use smaller arrays"))


def check_steps(name: str, steps: int) -> None:
    """Check that a function may be traced as so many operations, one after the other.

    Raises:
        ShapeError: tracing them would not end in any useful time.
    """
    if steps > _MOST_STEPS:
        message = f"`{name}` is traced as {steps} operations, of {_MOST_STEPS} at most"
        raise located(ShapeError(message, help="use fewer, or a loop: `tw.scan`, `tw.fori_loop`"))


def element_type(dtype: object) -> DType:
    """The element type that the user passed.

    Raises:
        DTypeError: no element type of ours stores it.
    """
    try:
        found = dtypes.as_dtype(dtype)
    except (KeyError, TypeError):
        names = ", ".join(d.name for d in dtypes.ALL)
        raise located(DTypeError(f"{dtype!r} is not an element type", help=f"the types are {names}")) from None
    _check_byte_order(dtype)
    return found


def element_or_complex_type(dtype: object) -> DType:
    """An element type where complex ones are taken too.

    Raises:
        DTypeError: it is no type of ours.
    """
    try:
        found = dtypes.as_dtype_or_complex(dtype)
    except (KeyError, TypeError):
        found = element_type(dtype)
    _check_byte_order(dtype)
    return found


def _check_byte_order(dtype: object) -> None:
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        raise located(
            DTypeError(f"{dtype!r} is not in native byte order", help="pass `x.astype(x.dtype.newbyteorder())`")
        )


def scalar_type(value: object) -> DType:
    """The type of a Python number on its own."""
    if isinstance(value, complex):
        return dtypes.complex64
    return dtypes.bool_ if isinstance(value, bool) else dtypes.i64 if isinstance(value, int) else dtypes.f32


def full(shape: Shape, value: Any, dtype: DType) -> Array:
    """An array of one Python number, converted to `dtype`.

    Raises:
        DTypeError: the number does not fit the type.
    """
    if dtype.is_complex:
        number = complex(value)
        return ComplexArray(full(shape, number.real, dtype.part), full(shape, number.imag, dtype.part))
    return emit("constant", value=_converted(value, dtype), resource="", shape=shape, dtype=dtype.name)


def _converted(value: Any, dtype: DType) -> bool | int | float:
    if isinstance(value, complex):
        message = f"the complex number {value} does not fit {dtype}"
        raise located(DTypeError(message, help="use `tw.complex64`, or the real part alone"))
    if dtype.is_bool:
        return bool(value)
    if dtype.is_float:
        try:
            return float(value)
        except OverflowError:
            message = f"an integer of {value.bit_length()} bits is beyond {dtype}"
            raise located(DTypeError(message, help="use a smaller number")) from None
    if isinstance(value, float) and not value.is_integer():
        raise located(DTypeError(f"{value} is not an integer, so it does not fit {dtype}", help="use a float type"))
    integer = int(value)
    if not int(dtype.lowest) <= integer <= int(dtype.highest):
        limits = f"{dtype.lowest} to {dtype.highest}"
        raise located(DTypeError(f"{integer} does not fit {dtype} ({limits})", help="cast the array to a wider type"))
    return integer


def cast(x: Array, dtype: DType) -> Array:
    """The array in another element type; the same array when it has it, made strong.

    Raises:
        DTypeError: a complex array has no form of real numbers.
    """
    if x.dtype == dtype:
        return with_weakness(x, False) if x.weak else x
    if dtype.is_complex and not x.dtype.is_complex:
        return _complex_primitives().from_real(x, dtype)
    return emit("cast", x, dtype=dtype.name)


def with_weakness(x: Array, weak: bool) -> Array:
    """The array with another weakness: a weak array promotes to the type of its partner, as a Python number does."""
    if isinstance(x, ComplexArray):
        return ComplexArray(with_weakness(x.real, weak), with_weakness(x.imag, weak))
    return Array(x.value, current_graph(), weak=weak)


# ---- promotion ------------------------------------------------------------------------------------------------------


def result_dtype(operands: Sequence[Array | Scalar | DType]) -> DType:
    """The type that arrays, element types and Python numbers meet in."""
    strong = [
        o if isinstance(o, DType) else o.dtype for o in operands if isinstance(o, DType | Array) and not is_weak(o)
    ]
    weak = [o.dtype if isinstance(o, Array) else scalar_type(o) for o in operands if is_weak(o)]
    if not strong:
        return functools.reduce(dtypes.promote, weak)
    dtype = functools.reduce(dtypes.promote, strong)
    if any(w.is_complex for w in weak):
        return dtypes.complex_of(dtype)
    if any(w.is_float for w in weak) and not (dtype.is_float or dtype.is_complex):
        return dtypes.f32
    if any(w.is_integer for w in weak) and dtype.is_bool:
        return dtypes.i64
    return dtype


def is_weak(operand: object) -> bool:
    """Whether an operand takes the type of what it meets."""
    return operand.weak if isinstance(operand, Array) else not isinstance(operand, DType)


def as_operand(operand: object) -> Array | Scalar:
    """Lift everything but Python numbers, which are converted when the type they meet is known."""
    return operand if is_scalar(operand) else lift(operand)


def typed(operand: Array | Scalar, dtype: DType, shape: Shape) -> Array:
    """An operand in the given type and shape."""
    if isinstance(operand, Array):
        return broadcast(cast(operand, dtype), shape)
    return full(shape, operand, dtype)


def fitting(value: ArrayLike, dtype: DType) -> Array:
    """A value to put into an array of `dtype`, in its own shape.

    Raises:
        DTypeError: the value would lose something.
    """
    operand = as_operand(value)
    if result_dtype([dtype, operand]) != dtype:
        given = operand.dtype if isinstance(operand, Array) else type(operand).__name__
        raise located(DTypeError(f"cannot write {given} into an array of {dtype}", help=f"use `.astype(tw.{dtype})`"))
    return typed(operand, dtype, operand.shape if isinstance(operand, Array) else ())


def promoted(*operands: ArrayLike) -> list[Array]:
    """Operands in one type, each in its own shape."""
    lifted = [as_operand(o) for o in operands]
    dtype = result_dtype(lifted)
    return [typed(o, dtype, o.shape if isinstance(o, Array) else ()) for o in lifted]


def as_float(x: ArrayLike) -> Array:
    """An array of floats or complex numbers: integers and bools become f32."""
    lifted = lift(x)
    return lifted if lifted.dtype.is_float or lifted.dtype.is_complex else cast(lifted, dtypes.f32)


def apply(fn: str, *operands: ArrayLike) -> Array:
    """The scalar function `fn` over operands that promote and broadcast. Functions of floats take integers as f32."""
    lifted = [as_operand(o) for o in operands]
    dtype = result_dtype(lifted)
    if ops.FUNCTIONS[fn].kinds == ops.FLOAT and not (dtype.is_float or dtype.is_complex):
        dtype = dtypes.f32
    shape = _common_shape(*[o.shape for o in lifted if isinstance(o, Array)])
    result = emit("map", *(typed(o, dtype, shape) for o in lifted), fn=fn)
    return with_weakness(result, True) if all(map(is_weak, lifted)) else result


# ---- shapes ---------------------------------------------------------------------------------------------------------


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that all shapes broadcast to, by NumPy's rule.

    Raises:
        ShapeError: they do not broadcast.
    """
    if len(set(shapes)) == 1:
        return shapes[0]
    rank = max(map(len, shapes), default=0)
    result: list[int] = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            listed = " and ".join(map(str, dict.fromkeys(shapes)))
            raise located(
                ShapeError(
                    f"shapes {listed} do not broadcast",
                    help="reshape or slice so that sizes, from the last axis on, are equal or 1",
                )
            )
        result.append(wide.pop() if wide else 1)
    return tuple(result)


# Programs repeat few combinations of shapes.
_common_shape = functools.lru_cache(maxsize=4096)(broadcast_shapes)


def broadcast(x: Array, shape: Shape) -> Array:
    """The array repeated to `shape`, its axes aligned with the last ones."""
    if x.shape == shape and not keeps_views():
        return x
    if broadcast_shapes(x.shape, shape) != shape:
        raise located(
            ShapeError(f"shape {x.shape} does not broadcast to {shape}", help="give a shape that contains it")
        )
    return emit("broadcast", x, shape=shape, axes=tuple(range(len(shape) - x.ndim, len(shape))))


def reshape(x: Array, shape: Shape) -> Array:
    """Row-major reshape to a shape of equal size."""
    return x if x.shape == shape and not keeps_views() else emit("reshape", x, shape=shape)


def transpose(x: Array, permutation: Sequence[int]) -> Array:
    """Result axis i is operand axis `permutation[i]`."""
    order = tuple(permutation)
    return x if order == tuple(range(x.ndim)) else emit("transpose", x, permutation=order)


def integer(value: Any, what: str) -> int:
    """A size, axis or count that must be known while tracing.

    Raises:
        DataDependentShapeError: it is a traced array.
        ArgumentError: it is no integer.
    """
    if isinstance(value, bool | np.bool_):
        raise located(ArgumentError(f"{what} is a bool", help="pass an integer"))
    try:
        return operator.index(value)
    except TypeError:
        raise located(ArgumentError(f"{what} is {value!r}, not an integer", help="pass an integer")) from None


def shape_of(shape: object) -> Shape:
    """A shape from an integer or a sequence of integers.

    Raises:
        ShapeError: a size is negative.
    """
    sizes: list[Any] = [*shape] if isinstance(shape, Sequence) else [shape]
    checked = tuple(integer(n, "a size") for n in sizes)
    if any(n < 0 for n in checked):
        raise located(ShapeError(f"the shape {checked} has a negative size", help="give sizes of at least 0"))
    return checked


def axis_of(axis: object, rank: int) -> int:
    """One axis, counted from the front.

    Raises:
        IndexError_: there is no such axis.
    """
    index = integer(axis, "an axis")
    if not -rank <= index < rank:
        message = f"there is no axis {index} in an array with {rank} axes"
        raise located(
            IndexError_(message, help=f"axes go from {-rank} to {rank - 1}" if rank else "a scalar has no axes")
        )
    return index % rank


def axes_of(axis: object, rank: int) -> tuple[int, ...]:
    """Axes from None (all), an integer or several, counted from the front.

    Raises:
        IndexError_: there is no such axis.
        ArgumentError: an axis is named twice.
    """
    if axis is None:
        return tuple(range(rank))
    is_scalar_array = isinstance(axis, np.ndarray) and axis.ndim == 0
    listed: list[Any] = [*axis] if isinstance(axis, Iterable) and not is_scalar_array else [axis]
    axes = tuple(axis_of(a, rank) for a in listed)
    if len(set(axes)) != len(axes):
        raise located(ArgumentError(f"axes {tuple(listed)} name one axis twice", help="name each axis once"))
    return axes
