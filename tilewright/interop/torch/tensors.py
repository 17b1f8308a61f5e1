"""Element types of torch and ours, torch's type promotion, and tensors as NumPy arrays on the same memory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright import dtypes
from tilewright.api.array import Array, located
from tilewright.api.lifting import ArrayLike, Scalar, full, is_scalar
from tilewright.dtypes import EXTENSIONS, DType
from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.casts import LARGEST_E4M3FN, convert
from tilewright.interop.torch.packages import TorchTensor, torch
from tilewright.runtime.dlpack import use_threads_of_torch

Tensor = np.ndarray[Any, Any]


@functools.cache
def _types() -> dict[Any, DType]:
    names = {d.numpy.name: d for d in (*dtypes.ALL, *dtypes.COMPLEX)}
    return {getattr(torch, name): ours for name, ours in names.items() if hasattr(torch, name)}


@functools.cache
def _torch_types() -> dict[DType, Any]:
    return {ours: theirs for theirs, ours in _types().items()}


def dtype_of(theirs: Any) -> DType:
    """Our element type for a `torch.dtype`.

    Raises:
        UnsupportedOperatorError: no element type of ours stores it.
    """
    found = _types().get(theirs)
    if found is None:
        message = f"no array here has elements of {theirs}"
        raise located(
            UnsupportedOperatorError(message, help="use numbers of 8 to 64 bits, complex64, complex128 or bools")
        )
    return found


def torch_dtype(ours: DType) -> Any:
    """The `torch.dtype` of an element type."""
    return _torch_types()[ours]


def has_dtype(theirs: Any) -> bool:
    """Whether an element type of ours stores a `torch.dtype`."""
    return theirs in _types()


# ---- promotion ------------------------------------------------------------------------------------------------------


def default_float() -> DType:
    """The type to which integers are converted in operations with a float result."""
    return dtype_of(torch.get_default_dtype())


def _number_type(number: Scalar) -> Any:
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, complex):
        return torch.get_default_dtype().to_complex()
    return torch.int64 if isinstance(number, int) else torch.get_default_dtype()


def _met(higher: Any, lower: Any) -> Any:
    """The type of operands of which those of `higher` have more state."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if lower.is_complex:
        return higher.to_complex() if higher.is_floating_point else lower
    if higher.is_floating_point:
        return higher
    if higher == torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


def _ranked(operand: Any) -> tuple[int, Any]:
    """The group of an operand, 0 to 2 from the one with the most state, and its type."""
    if is_scalar(operand):
        return 2, _number_type(operand)
    array: Array = operand
    return (0 if array.ndim else 1), torch_dtype(array.dtype)


def result_type(operands: Sequence[object]) -> DType:
    """The type that operands promote to in torch: arrays with axes before scalars, and those before Python numbers."""
    groups: list[Any] = [None, None, None]
    for operand in operands:
        rank, theirs = _ranked(operand)
        groups[rank] = theirs if groups[rank] is None else torch.promote_types(groups[rank], theirs)
    return dtype_of(_met(groups[0], _met(groups[1], groups[2])))


def unified(*operands: object, floats: bool = False) -> list[Any]:
    """Operands in the type that torch promotes them to; with `floats`, integers and bools become floats.

    Python numbers stay such, in the kind of the type, unless there is nothing else.
    """
    dtype = result_type(operands)
    if floats and not (dtype.is_float or dtype.is_complex):
        dtype = default_float()
    if all(is_scalar(operand) for operand in operands):
        return [full((), operand, dtype) for operand in operands]
    return [_in_type(operand, dtype) for operand in operands]


def _in_type(operand: Any, dtype: DType) -> Any:
    if not is_scalar(operand):
        return convert(operand, dtype)
    return number_in(operand, dtype)


def number_in(number: Scalar, dtype: DType) -> Scalar:
    """A Python number as torch converts it to a type: integers wrap, and `float8_e4m3fn` saturates."""
    if dtype.is_bool:
        return bool(number)
    if dtype.is_complex:
        return complex(number)
    if isinstance(number, complex):
        number = number.real
    if not dtype.is_float:
        span = 1 << dtype.bits
        return (int(number) - int(dtype.lowest)) % span + int(dtype.lowest)
    saturates = dtype == tw.f8e4m3fn and number == number
    return max(-LARGEST_E4M3FN, min(LARGEST_E4M3FN, float(number))) if saturates else float(number)


def filled(shape: Sequence[int], value: ArrayLike, dtype: DType) -> Array:
    """An array of one number, converted as torch does it, or of the value of an array without dimensions."""
    return tw.full(tuple(shape), number_in(value, dtype) if is_scalar(value) else value, dtype=dtype)


def as_floats(x: Array) -> Array:
    """An array of floats or complex numbers; others become torch's default type."""
    return x if x.dtype.is_float or x.dtype.is_complex else tw.astype(x, default_float())


def widened(x: Array) -> Array:
    """Floats in the type that arithmetic on them runs in."""
    return tw.astype(x, x.dtype.compute)


# ---- memory ---------------------------------------------------------------------------------------------------------


def numpy_reader(theirs: object) -> Callable[[TorchTensor], Tensor]:
    """A function that gives the NumPy array on the memory of a tensor of this type on the CPU. A tensor of another
    type, as some of torch's kernels give where its graphs state this one, is converted."""
    use_threads_of_torch()
    extension = EXTENSIONS.get(str(theirs).removeprefix("torch."))
    if extension is None:
        # `force` reads tensors that record gradients, and those that hold what they negate.
        read = operator.methodcaller("numpy", force=True)
        return lambda tensor: read(tensor if tensor.dtype == theirs else tensor.to(theirs))
    bits = getattr(torch, f"int{extension.bits}")
    storage = extension.numpy
    return lambda tensor: tensor.detach().to(theirs).view(bits).numpy().view(storage)


def tensor_maker(ours: DType) -> Callable[[Tensor], TorchTensor]:
    """A function that gives the tensor on the memory of a NumPy array of this type."""
    if ours.numpy.name not in EXTENSIONS:
        return torch.from_numpy
    bits, theirs = f"i{ours.itemsize}", torch_dtype(ours)
    return lambda array: torch.from_numpy(array.view(bits)).view(theirs)
