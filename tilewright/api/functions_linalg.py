"""Matmuls and general contractions.

Axes are named by labels. Two operands are joined by one `contract` with its operands as they are: a batch axis that
only one operand has, or that is 1 in the other, becomes a free axis, so nothing is repeated in memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tilewright import dtypes
from tilewright.api import lifting
from tilewright.api.array import Array, located
from tilewright.api.functions_complex import conj
from tilewright.api.functions_elementwise import multiply
from tilewright.api.lifting import (
    ArrayLike,
    axes_of,
    axis_of,
    broadcast_shapes,
    cast,
    element_or_complex_type,
    emit,
    promoted,
    reshape,
    transpose,
)
from tilewright.dtypes import DType, DTypeLike
from tilewright.errors import ArgumentError, DTypeError, ShapeError

Labels = tuple[Hashable, ...]


# ---- joining two labelled arrays ------------------------------------------------------------------------------------


def join(
    a: Array, a_labels: Labels, b: Array, b_labels: Labels, result: Labels, dtype: DType, precision: str | None = None
) -> Array:
    """Sum of products over every label that `result` lacks, with the axes of `result`. `precision`: as `matmul` has it.

    Labels are unique in each operand. Sizes of a shared label are equal, or 1 in one operand.
    """
    a, a_labels = _without_repeated(a, a_labels, b, b_labels)
    b, b_labels = _without_repeated(b, b_labels, a, a_labels)
    a, a_labels = summed(a, a_labels, {*b_labels, *result})
    b, b_labels = summed(b, b_labels, {*a_labels, *result})
    shared = [label for label in a_labels if label in b_labels]
    contracted = [label for label in shared if label not in result]
    if not contracted:
        return _product(cast(a, dtype), a_labels, cast(b, dtype), b_labels, result)
    batch = [label for label in result if label in shared]
    order = _result_order(a_labels, b_labels, batch, shared)
    if order != result and _result_order(b_labels, a_labels, batch, shared) == result:
        a, a_labels, b, b_labels = b, b_labels, a, a_labels
        order = result
    joined = emit(
        "contract",
        a,
        b,
        left_batch=tuple(map(a_labels.index, batch)),
        right_batch=tuple(map(b_labels.index, batch)),
        left_contract=tuple(map(a_labels.index, contracted)),
        right_contract=tuple(map(b_labels.index, contracted)),
        dtype=dtype.name,
        **({} if precision is None else {"precision": precision}),
    )
    return transpose(joined, tuple(map(order.index, result)))


def _without_repeated(x: Array, labels: Labels, other: Array, other_labels: Labels) -> tuple[Array, Labels]:
    """Without the axes of size 1 that broadcast against the other operand."""
    sizes = dict(zip(other_labels, other.shape, strict=True))
    kept = [d for d, label in enumerate(labels) if x.shape[d] != 1 or sizes.get(label, 1) == 1]
    return reshape(x, tuple(x.shape[d] for d in kept)), tuple(labels[d] for d in kept)


def summed(x: Array, labels: Labels, wanted: set[Hashable]) -> tuple[Array, Labels]:
    """Summed over the labels that nothing else wants."""
    axes = tuple(d for d, label in enumerate(labels) if label not in wanted)
    total = emit("reduce", x, fn="add", axes=axes) if axes else x
    return total, tuple(label for label in labels if label in wanted)


def _result_order(left: Labels, right: Labels, batch: Sequence[Hashable], shared: Sequence[Hashable]) -> Labels:
    free = (label for label in (*left, *right) if label not in shared)
    return (*batch, *free)


def _product(a: Array, a_labels: Labels, b: Array, b_labels: Labels, result: Labels) -> Array:
    return multiply(_aligned(a, a_labels, result), _aligned(b, b_labels, result))


def _aligned(x: Array, labels: Labels, result: Labels) -> Array:
    """Axes in the order of `result`, with size 1 for the labels that are missing."""
    ordered = transpose(x, tuple(labels.index(label) for label in result if label in labels))
    sizes = iter(ordered.shape)
    return reshape(ordered, tuple(next(sizes) if label in labels else 1 for label in result))


def _numeric(name: str, x1: ArrayLike, x2: ArrayLike) -> tuple[Array, Array, DType]:
    """Convert operands of a contraction, and give the type that they promote to."""
    a, b = lifting.as_operand(x1), lifting.as_operand(x2)
    kind = lifting.result_dtype([a, b])
    if kind.is_bool:
        raise located(DTypeError(f"`{name}` takes numbers, not bools", help="use `x.astype(tw.i32)`"))
    if isinstance(a, Array) and isinstance(b, Array) and dtypes.multiply_unconverted(a.dtype, b.dtype):
        return a, b, kind
    a, b = promoted(a, b)
    return a, b, kind


# ---- functions ------------------------------------------------------------------------------------------------------


def matmul(x1: ArrayLike, x2: ArrayLike, /, *, dtype: DTypeLike | None = None, precision: str | None = None) -> Array:
    """Matmul over the last two axes, with broadcasting of leading ones; a vector has no row or column axis.

    Narrow floats accumulate in f32 and round once. `dtype` asks for a wider result, such as f32 of bf16 operands. The
    operands may be floats of 8 bits in both formats, which give f32.

    Matmuls of f32 accumulate in f32. On CPUs with AMX large ones of two arrays are computed in parts: each operand is
    the sum of three bf16, and six bf16 matmuls are added. Three bf16 hold all bits of an f32, so that each term is
    within 2^-23 of its size, and sums are rounded less often than by sequential addition; a result that is not finite
    is computed again from the original operands. `target="cpu:x86-64-v4"` leaves those instructions out.

    `precision="tf32"` rounds operands of f32 to 10 bits after the leading one, ties away from zero: terms are within
    2^-10 of their size, sums as in f32. Tensor cores take tf32 operands; other machines round as well.

    Raises:
        ShapeError: an operand is a scalar or the inner sizes differ.
        DTypeError: the operands are bools, or no f32 with a precision.
        ArgumentError: there is no such precision.
    """
    a, b, promoted_kind = _numeric("matmul", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        raise located(ShapeError("`matmul` of a scalar", help="use `*`"))
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        message = f"`matmul` of shapes {a.shape} and {b.shape}: the inner sizes are {a.shape[-1]} and {inner}"
        raise located(ShapeError(message, help="transpose one operand with `.mT`, or check the shapes"))
    broadcast_shapes(a.shape[:-2], b.shape[:-2])
    # Leading axes are labelled by their distance to the matrix.
    a_batch, b_batch = _countdown(a.ndim - 2), _countdown(b.ndim - 2)
    rows: Labels = ("row",) if a.ndim > 1 else ()
    columns: Labels = ("column",) if b.ndim > 1 else ()
    batch = max(a_batch, b_batch, key=len)
    kind = element_or_complex_type(dtype) if dtype else promoted_kind
    a_labels, b_labels = (*a_batch, *rows, "inner"), (*b_batch, "inner", *columns)
    return join(a, a_labels, b, b_labels, (*batch, *rows, *columns), kind, _precision(precision, a, b))


def _precision(precision: str | None, a: Array, b: Array) -> str | None:
    if precision in (None, "f32"):
        return None
    if precision != "tf32":
        raise located(ArgumentError(f"there is no precision {precision!r} of matmuls", help='use "f32" or "tf32"'))
    if (a.dtype, b.dtype) != (dtypes.f32, dtypes.f32):
        message = f'`matmul` of {a.dtype} and {b.dtype} with `precision="tf32"`, which is one of f32'
        raise located(DTypeError(message, help="cast the operands to f32, or leave the precision out"))
    return precision


def _countdown(count: int) -> tuple[int, ...]:
    return tuple(range(count, 0, -1))


def tensordot(x1: ArrayLike, x2: ArrayLike, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Sum of products over the last `axes` axes of `x1` and the first of `x2`, or over paired lists of axes.

    Raises:
        ShapeError: sizes of paired axes differ.
        ArgumentError: the lists have different lengths.
    """
    a, b, kind = _numeric("tensordot", x1, x2)
    if isinstance(axes, int):
        left, right = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
        if axes < 0 or axes > min(a.ndim, b.ndim):
            message = f"`tensordot` over {axes} axes of shapes {a.shape} and {b.shape}"
            raise located(ArgumentError(message, help="give at most the number of axes"))
    else:
        left, right = axes_of(tuple(axes[0]), a.ndim), axes_of(tuple(axes[1]), b.ndim)
    if len(left) != len(right):
        message = f"`tensordot` pairs {len(left)} axes with {len(right)}"
        raise located(ArgumentError(message, help="give two lists of the same length"))
    if any(a.shape[d] != b.shape[e] for d, e in zip(left, right, strict=True)):
        message = f"`tensordot` of shapes {a.shape} and {b.shape} over axes {left} and {right}"
        raise located(ShapeError(message, help="pair axes of the same size"))
    a_labels: Labels = tuple(("sum", left.index(d)) if d in left else ("left", d) for d in range(a.ndim))
    b_labels: Labels = tuple(("sum", right.index(d)) if d in right else ("right", d) for d in range(b.ndim))
    free = [label for label in (*a_labels, *b_labels) if label not in a_labels or label not in b_labels]
    return join(a, a_labels, b, b_labels, tuple(free), kind)


def vecdot(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Array:
    """Sum of products along `axis` of both, the other axes broadcasting; complex numbers of `x1` are conjugated.

    Raises:
        ShapeError: sizes along the axis differ.
    """
    a, b, kind = _numeric("vecdot", x1, x2)
    a, b = (_last(x, axis) for x in (conj(a), b))
    if a.shape[-1] != b.shape[-1]:
        message = f"`vecdot` of vectors of {a.shape[-1]} and {b.shape[-1]} elements"
        raise located(ShapeError(message, help="the axis must have one size in both"))
    broadcast_shapes(a.shape[:-1], b.shape[:-1])
    a_batch, b_batch = _countdown(a.ndim - 1), _countdown(b.ndim - 1)
    return join(a, (*a_batch, "inner"), b, (*b_batch, "inner"), max(a_batch, b_batch, key=len), kind)


def _last(x: Array, axis: int) -> Array:
    at = axis_of(axis, x.ndim)
    return transpose(x, (*(d for d in range(x.ndim) if d != at), at))


def outer(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """`result[i, j] = x1[i] * x2[j]` of two vectors.

    Raises:
        ShapeError: an operand is no vector.
    """
    a, b = promoted(x1, x2)
    if a.ndim != 1 or b.ndim != 1:
        message = f"`outer` of shapes {a.shape} and {b.shape}"
        raise located(ShapeError(message, help="flatten the operands to vectors"))
    return multiply(reshape(a, (a.size, 1)), b)


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Array:
    """Diagonal `offset` (above the main one when positive) of the last two axes, as the last axis.

    Raises:
        ShapeError: there are fewer than two axes.
    """
    array = lifting.lift(x)
    if array.ndim < 2:
        message = f"an array of shape {array.shape} has no diagonal"
        raise located(ShapeError(message, help="reshape it to at least two axes"))
    *batch, rows, columns = array.shape
    first_row, first_column = max(-offset, 0), max(offset, 0)
    count = max(0, min(rows - first_row, columns - first_column))
    # Neighbours on a diagonal are one row and one column apart in row-major order.
    start = first_row * columns + first_column if count else 0
    limit = start + (count - 1) * (columns + 1) + 1 if count else 0
    flat = reshape(array, (*batch, rows * columns))
    return emit(
        "slice",
        flat,
        starts=(*(0,) * len(batch), start),
        limits=(*batch, limit),
        strides=(*(1,) * len(batch), columns + 1),
    )
