"""Array primitives on complex arrays, as primitives on their real and imaginary parts.

Data movement and sums apply to both parts. A contraction or convolution is four real ones, so that each part is as
exact as a real one: three would cancel. Products along an axis combine halves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright import dtypes
from tilewright.api import lifting
from tilewright.api.array import Array, located
from tilewright.api.complex_array import ComplexArray
from tilewright.api.complex_functions import FUNCTIONS, multiply
from tilewright.dtypes import DType
from tilewright.errors import DTypeError

Attributes = Mapping[str, Any]
# Primitives that apply to both parts, and which of their operands hold elements: the first so many, all where it is
# None. The others are indices.
_BY_PARTS: dict[str, int | None] = {
    "broadcast": 1,
    "concat": None,
    "dynamic_slice": 1,
    "dynamic_update_slice": 2,
    "gather": 1,
    "pad": 2,
    "reduce": 1,
    "reshape": 1,
    "reverse": 1,
    "scan": 1,
    "scatter": 2,
    "slice": 1,
    "transpose": 1,
    "window_reduce": 1,
}
# Functions of which a reduction, or an update, is one of both parts.
_LINEAR = ("add", "set")


def emit_all(op: str, operands: Sequence[Array], attributes: Attributes) -> tuple[Array, ...]:
    """Add the primitives that stand for one on complex operands.

    Raises:
        DTypeError: it has no form for complex numbers.
    """
    if op == "map":
        return (_mapped(attributes["fn"], operands),)
    if op == "sort":
        return _sorted(operands, attributes)
    if op == "reduce" and attributes["fn"] == "multiply":
        return (_product(_complex(operands[0]), attributes["axes"]),)
    if op == "scan" and attributes["fn"] == "multiply":
        return (_running_product(_complex(operands[0]), attributes["axis"], attributes["reverse"]),)
    if op in _BY_PARTS:
        if attributes.get("fn", "add") not in _LINEAR:
            raise refusal(f"`{op}` by `{attributes['fn']}`")
        return (_by_parts(op, operands, attributes),)
    if op in ("contract", "convolve"):
        return (_bilinear(op, operands, attributes),)
    if op == "cast":
        return (_cast(_complex(operands[0]), attributes["dtype"]),)
    raise refusal(f"`{op}`")


def refusal(what: str) -> DTypeError:
    """The error that something has no form for complex numbers."""
    error = DTypeError(
        f"{what} does not take complex numbers", help="use `tw.real(x)`, `tw.imag(x)` or `tw.abs(x)` of them"
    )
    located(error)
    return error


def from_real(x: Array, dtype: DType) -> ComplexArray:
    """Real numbers as complex ones."""
    real = lifting.cast(x, dtype.part)
    return ComplexArray(real, lifting.full(x.shape, 0, dtype.part))


def from_pairs(pairs: Array) -> ComplexArray:
    """The complex numbers of an array whose last axis holds the real and the imaginary part."""
    shape = pairs.shape[:-1]

    def part(n: int) -> Array:
        starts, limits = (*(0,) * len(shape), n), (*shape, n + 1)
        column = lifting.emit("slice", pairs, starts=starts, limits=limits, strides=(1,) * pairs.ndim)
        return lifting.reshape(column, shape)

    return ComplexArray(part(0), part(1), pairs)


def to_pairs(x: Array) -> Array:
    """The array whose last axis holds the real and the imaginary part."""
    number = _complex(x)
    if number.pairs is not None:
        return number.pairs
    columns = [
        lifting.reshape(lifting.with_weakness(part, False), (*x.shape, 1)) for part in (number.real, number.imag)
    ]
    return lifting.emit("concat", *columns, axis=x.ndim)


def _complex(x: Array) -> ComplexArray:
    return x if isinstance(x, ComplexArray) else from_real(x, dtypes.complex_of(x.dtype))


def _in_type(x: Array, dtype: DType) -> ComplexArray:
    return _complex(lifting.cast(x, dtype))


def _joined(operands: Sequence[Array]) -> list[ComplexArray]:
    """Operands as complex numbers of one type."""
    dtype = functools.reduce(dtypes.promote, [o.dtype for o in operands])
    return [_in_type(o, dtype) for o in operands]


def _by_parts(op: str, operands: Sequence[Array], attributes: Attributes) -> ComplexArray:
    count = _BY_PARTS[op]
    numbers, indices = (operands, ()) if count is None else (operands[:count], operands[count:])
    joined = _joined(numbers)
    real = lifting.emit(op, *(x.real for x in joined), *indices, **attributes)
    return ComplexArray(real, lifting.emit(op, *(x.imag for x in joined), *indices, **attributes))


def _mapped(fn: str, operands: Sequence[Array]) -> Array:
    if fn == "select":
        condition, *choices = operands
        first, second = _joined(choices)
        real = lifting.emit("map", condition, first.real, second.real, fn=fn)
        return ComplexArray(real, lifting.emit("map", condition, first.imag, second.imag, fn=fn))
    function: Callable[..., Array] | None = FUNCTIONS.get(fn)
    if function is None:
        raise refusal(f"`{fn}`")
    return function(*_joined(operands))


def _cast(x: ComplexArray, name: str) -> Array:
    """As another complex type; as bools, whether it is not 0.

    Raises:
        DTypeError: to real numbers, which would lose a part.
    """
    to = dtypes.as_dtype_or_complex(name)
    if to.is_bool:
        return lifting.emit("map", lifting.cast(x.real, to), lifting.cast(x.imag, to), fn="bitwise_or")
    if not to.is_complex:
        message = f"a cast of {x.dtype} to {to} would lose the imaginary part"
        raise located(DTypeError(message, help="take `tw.real(x)`"))
    return ComplexArray(lifting.cast(x.real, to.part), lifting.cast(x.imag, to.part))


def _bilinear(op: str, operands: Sequence[Array], attributes: Attributes) -> ComplexArray:
    settings = dict(attributes)
    if "dtype" in settings:
        settings["dtype"] = dtypes.as_dtype_or_complex(settings["dtype"]).part.name
    a, b = _joined(operands)
    is_real = [not isinstance(o, ComplexArray) for o in operands]

    def product(x: Array, y: Array) -> Array:
        return lifting.emit(op, x, y, **settings)

    if is_real[0]:
        return ComplexArray(product(a.real, b.real), product(a.real, b.imag))
    if is_real[1]:
        return ComplexArray(product(a.real, b.real), product(a.imag, b.real))
    real = lifting.emit("map", product(a.real, b.real), product(a.imag, b.imag), fn="subtract")
    return ComplexArray(real, lifting.emit("map", product(a.real, b.imag), product(a.imag, b.real), fn="add"))


def _sorted(operands: Sequence[Array], attributes: Attributes) -> tuple[Array, ...]:
    """Complex arrays moved in the order of a real key."""
    if isinstance(operands[0], ComplexArray):
        raise refusal("`sort`")
    flat: list[Array] = []
    for x in operands:
        flat += [x.real, x.imag] if isinstance(x, ComplexArray) else [x]
    made = iter(lifting.emit_all("sort", *flat, **attributes))
    return tuple(
        [ComplexArray(next(made), next(made)) if isinstance(x, ComplexArray) else next(made) for x in operands]
    )


# ---- products along an axis -----------------------------------------------------------------------------------------


def _along(x: Array, axis: int, start: int, limit: int, step: int = 1) -> Array:
    starts = tuple(start if d == axis else 0 for d in range(x.ndim))
    limits = tuple(limit if d == axis else n for d, n in enumerate(x.shape))
    return lifting.emit(
        "slice", x, starts=starts, limits=limits, strides=tuple(step if d == axis else 1 for d in range(x.ndim))
    )


def _product(x: ComplexArray, axes: Sequence[int]) -> Array:
    """The product over axes: neighbours are multiplied until one is left."""
    rest = [d for d in range(x.ndim) if d not in axes]
    sizes = tuple(x.shape[d] for d in rest)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    if count == 0:
        return lifting.full(sizes, 1, x.dtype)
    rows: Array = lifting.reshape(lifting.transpose(x, [*axes, *rest]), (count, *sizes))
    while count > 1:
        pairs = count // 2
        left, right = (_along(rows, 0, start, 2 * pairs, 2) for start in (0, 1))
        made: Array = multiply(_complex(left), _complex(right))
        rows = lifting.emit("concat", made, _along(rows, 0, 2 * pairs, count), axis=0) if count % 2 else made
        count = pairs + count % 2
    return lifting.reshape(rows, sizes)


def _running_product(x: ComplexArray, axis: int, reverse: bool) -> Array:
    """Inclusive scan by multiplication along an axis, over 1, 2, 4, ... elements (Hillis and Steele, 1986)."""
    made: Array = lifting.emit("reverse", x, axes=(axis,)) if reverse else x
    size, reach = x.shape[axis], 1
    while reach < size:
        later, earlier = _along(made, axis, reach, size), _along(made, axis, 0, size - reach)
        first = _along(made, axis, 0, reach)
        made = lifting.emit("concat", first, multiply(_complex(earlier), _complex(later)), axis=axis)
        reach *= 2
    return lifting.emit("reverse", made, axes=(axis,)) if reverse else made
