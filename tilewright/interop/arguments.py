"""Arguments and results of imported models: what an input takes, and bit patterns in and out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from tilewright.api.array import located
from tilewright.api.lifting import lift, with_weakness
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError, DTypeError, ShapeError
from tilewright.interop.narrow import STORAGES, Coded, from_codes, is_sequence, to_codes
from tilewright.layout.dims import Dim

# The element type of tensors of strings.
STRINGS: np.dtype[Any] = np.dtype(np.str_)


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model. Sizes are integers, names that a call binds, or None where anything goes; `shape`
    is None where not even the number of axes is known. `dtype` is None for sequences and optionals, that of `ml_dtypes`
    where arrays here have no such type, and `STRINGS` for strings."""

    name: str
    dtype: DType | np.dtype[Any] | None
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        if self.dtype is None:
            return f"{self.name}: not an array"
        shape = "..." if self.shape is None else ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{self.name}: {'string' if self.dtype == STRINGS else self.dtype}[{shape}]"


def as_numpy(results: object) -> Any:
    """Results with the types of `ml_dtypes` where they are bit patterns."""
    if type(results) is np.ndarray:
        return results
    if isinstance(results, Coded):
        return from_codes(results)
    if not is_sequence(results):
        return results
    converted = [as_numpy(result) for result in results]
    return converted if isinstance(results, list) else tuple(converted)


def strong(value: object) -> Any:
    """Arrays of the program as the model declares them: Python numbers among the arguments take no other type."""
    if is_sequence(value):
        return [strong(item) for item in value]
    if isinstance(value, Coded):
        return Coded(lift(value.codes), value.storage)
    return None if value is None else with_weakness(lift(value), False)


def check_dims(dims: Mapping[str, object], shapes: Sequence[tuple[int | str | None, ...] | None]) -> None:
    """Refuse ranges of sizes that the inputs have no names for.

    Raises:
        ArgumentError: there is one, or something else than a `Dim`.
    """
    names = {n for shape in shapes for n in shape or () if isinstance(n, str)}
    for name, dim in dims.items():
        if name not in names:
            known = f"the sizes are {', '.join(sorted(names))}" if names else "no size of its inputs has a name"
            raise located(ArgumentError(f"the model has no size {name!r}", help=known))
        if not isinstance(dim, Dim):
            raise located(ArgumentError(f"the size {name!r} is {dim!r}", help="give a range: tw.Dim(1, 512)"))


def bound_dims(
    dims: Mapping[str, Dim], shape: tuple[int | str | None, ...] | None
) -> tuple[int | Dim | None, ...] | None:
    """The dims of an input for `tw.jit(dims=...)`; None if none of its sizes has a range."""
    if shape is None or not any(n in dims for n in shape if isinstance(n, str)):
        return None
    return tuple(_ranged(dims, n) if isinstance(n, str) else n for n in shape)


def _ranged(dims: Mapping[str, Dim], name: str) -> Dim | None:
    """The range of a size, under the name of it: equal ranges of two sizes are not the same size."""
    dim = dims.get(name)
    if dim is None or dim.name:
        return dim
    return replace(dim, name=re.sub(r"\W", "_", name) if name[:1].isalpha() else f"size_{sorted(dims).index(name)}")


def is_number(value: object) -> bool:
    """Whether an argument is a number of Python or NumPy."""
    return isinstance(value, bool | int | float | np.generic)


def checked(spec: TensorSpec, value: Any, sizes: dict[str, int]) -> Any:
    """An argument that fits its input; `sizes` binds the names of sizes."""
    if spec.dtype is None:
        return value
    if spec.dtype == STRINGS:
        value = _strings(spec, value)
        return _fitting(spec, value, value.shape, sizes)
    storage = spec.dtype.numpy if isinstance(spec.dtype, DType) else spec.dtype
    if type(value) is np.ndarray and value.dtype == storage and value.shape == spec.shape and storage not in STORAGES:
        return value
    if isinstance(value, bool | int | float):
        value = np.asarray(value, storage)
    elif is_number(value):
        value = np.asarray(value)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        raise located(ArgumentError(f"the input {spec.name!r} is a {type(value).__name__}", help=f"pass {spec}"))
    if str(dtype).removeprefix("torch.") not in (spec.dtype.name, storage.name):
        raise located(DTypeError(f"the input {spec.name!r} is of {dtype}, not {spec.dtype}", help="cast it"))
    if storage in STORAGES:
        value = to_codes(value)
    return _fitting(spec, value, shape, sizes)


def _strings(spec: TensorSpec, value: object) -> np.ndarray:
    """Strings as an array of objects."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value, object)
    items: list[Any] = array.reshape(-1).tolist()
    if array.dtype.kind not in "UOT" or not all(isinstance(item, str) for item in items):
        message = f"the input {spec.name!r} is of {array.dtype}, not of strings alone"
        raise located(DTypeError(message, help="give a NumPy array of strings"))
    return array.astype(object)


def _fitting(spec: TensorSpec, value: object, shape: Any, sizes: dict[str, int]) -> Any:
    """An argument whose shape fits its input."""
    if spec.shape is None:
        return value
    found = tuple(int(n) for n in shape)
    fits = len(found) == len(spec.shape) and all(
        wanted is None or size == (wanted if isinstance(wanted, int) else sizes.setdefault(wanted, size))
        for wanted, size in zip(spec.shape, found, strict=True)
    )
    if not fits:
        bound = ", ".join(f"{name} = {size}" for name, size in sizes.items() if name in spec.shape)
        message = f"the input {spec.name!r} has shape {found}, not that of {spec}" + (f" with {bound}" if bound else "")
        raise located(ShapeError(message, help="reshape it, or check which axis is which"))
    return value
