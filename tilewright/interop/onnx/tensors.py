"""Tensors of an ONNX file as NumPy arrays.

Numbers of fewer than 8 bits are packed in the file, two or four to a byte, the lowest bits first.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import ModelFileError, UnsupportedOperatorError
from tilewright.interop.onnx.protobuf import Proto
from tilewright.primitives import MAX_RANK

Tensor = np.ndarray[Any, Any]

# TensorProto.DataType: what stores an element, NumPy's own and those of `ml_dtypes`.
STRING = 8
STORAGE: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.uint8),
    3: np.dtype(np.int8),
    4: np.dtype(np.uint16),
    5: np.dtype(np.int16),
    6: np.dtype(np.int32),
    7: np.dtype(np.int64),
    9: np.dtype(np.bool_),
    10: np.dtype(np.float16),
    11: np.dtype(np.float64),
    12: np.dtype(np.uint32),
    13: np.dtype(np.uint64),
    16: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz),
    19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz),
    21: np.dtype(ml_dtypes.uint4),
    22: np.dtype(ml_dtypes.int4),
    23: np.dtype(ml_dtypes.float4_e2m1fn),
    24: np.dtype(ml_dtypes.float8_e8m0fnu),
    25: np.dtype(ml_dtypes.uint2),
    26: np.dtype(ml_dtypes.int2),
}
_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
NAMES = {8: "string", 14: "complex64", 15: "complex128"} | {code: dtype.name for code, dtype in STORAGE.items()}
# Fields that hold the numbers of a tensor without `raw_data`.
_FIELDS = {1: "float_data", 7: "int64_data", 11: "double_data", 12: "uint64_data", 13: "uint64_data"}


def storage_of(code: int, what: str) -> np.dtype:
    """The NumPy type of a `TensorProto.DataType`.

    Raises:
        UnsupportedOperatorError: no array here holds such elements.
        ModelFileError: the number is none of that enumeration.
    """
    if code in STORAGE:
        return STORAGE[code]
    if code in NAMES:
        raise UnsupportedOperatorError(f"{what} is of {NAMES[code]}", help="only arrays of numbers and bools are taken")
    raise ModelFileError(f"{what} has the element type {code}, which ONNX does not define", help="export it again")


def decode(tensor: Proto, folder: Path | None) -> Tensor:
    """The contents of a `TensorProto`; external data are read from `folder`.

    Raises:
        ModelFileError: sizes do not fit, or the data are outside the folder.
        UnsupportedOperatorError: the elements are strings or complex numbers.
    """
    what = f"the tensor {tensor.name!r}"
    dtype = storage_of(tensor.data_type, what)
    shape = _shape(tensor, what)
    count = math.prod(shape)
    if tensor.data_location == tensor.EXTERNAL:
        return _from_bytes(_external(tensor, folder, what), tensor.data_type, dtype, shape, what)
    if tensor.HasField("raw_data"):
        return _from_bytes(tensor.raw_data, tensor.data_type, dtype, shape, what)
    numbers: Any = getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))
    return _from_field(numbers, tensor.data_type, dtype, count, what).reshape(shape)


def decode_strings(tensor: Proto) -> Tensor:
    """The contents of a `TensorProto` of strings, as objects.

    Raises:
        ModelFileError: sizes do not fit.
    """
    what = f"the tensor {tensor.name!r}"
    shape = _shape(tensor, what)
    stored: Tensor = np.empty(len(tensor.string_data), object)
    if len(stored) != math.prod(shape):
        message = f"{what} of shape {shape} holds {len(stored)} strings"
        raise ModelFileError(message, help="export the model again")
    stored[:] = list(tensor.string_data)
    return as_objects(stored.reshape(shape))


def as_objects(array: Tensor) -> Tensor:
    """Strings as Python objects; bytes are UTF-8."""
    items: list[Any] = array.reshape(-1).tolist()
    result: Tensor = np.empty(len(items), object)
    result[:] = [item.decode(errors="replace") if isinstance(item, bytes) else item for item in items]
    return result.reshape(array.shape)


def _shape(tensor: Proto, what: str) -> tuple[int, ...]:
    shape = tuple(int(n) for n in tensor.dims)
    if any(n < 0 for n in shape) or len(shape) > MAX_RANK:
        raise ModelFileError(f"{what} has the shape {shape}", help="export the model again")
    if tensor.HasField("segment"):
        raise ModelFileError(f"{what} is stored in segments", help="store it whole")
    return shape


def _from_bytes(data: bytes, code: int, dtype: np.dtype, shape: tuple[int, ...], what: str) -> Tensor:
    bits = _BITS.get(code, 8 * dtype.itemsize)
    count = math.prod(shape)
    wanted = -(-count * bits // 8)
    if len(data) != wanted:
        message = f"{what} of shape {shape} and type {dtype.name} takes {wanted} bytes, but holds {len(data)}"
        raise ModelFileError(message, help="the file is damaged: export the model again")
    stored = np.frombuffer(data, np.uint8)
    if bits < 8:
        return _unpacked(stored, bits, count, dtype).reshape(shape)
    if dtype == np.bool_:
        return (stored != 0).reshape(shape)
    array = stored.view(dtype)
    return (array if sys.byteorder == "little" else array.byteswap()).reshape(shape)


def _unpacked(packed: Tensor, bits: int, count: int, dtype: np.dtype) -> Tensor:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((packed[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count]
    if dtype.name.startswith("int"):  # the sign is the highest bit of the code
        signed = codes.astype(np.int8)
        return np.where(signed >= 1 << (bits - 1), signed - (1 << bits), signed).astype(dtype)
    return codes.astype(dtype) if dtype.name.startswith("uint") else codes.view(dtype)


def _from_field(numbers: Any, code: int, dtype: np.dtype, count: int, what: str) -> Tensor:
    wanted = -(-count * _BITS[code] // 8) if code in _BITS else count
    if len(numbers) != wanted:
        raise ModelFileError(f"{what} takes {wanted} numbers, but holds {len(numbers)}", help="export the model again")
    if code in _FIELDS:
        return np.array(numbers, dtype)
    stored = np.array(numbers, np.int32)
    if code in _BITS:
        return _unpacked(stored.astype(np.uint8), _BITS[code], count, dtype)
    if dtype.kind in "iu":
        return stored.astype(dtype)
    if dtype == np.bool_:
        return stored != 0
    return stored.astype(f"u{dtype.itemsize}").view(dtype)


def _external(tensor: Proto, folder: Path | None, what: str) -> bytes:
    """The bytes of a tensor that are in a file of their own.

    Raises:
        ModelFileError: that file is outside the model's folder, missing or too short.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        message = f"{what} is stored in the file {location!r}, but the model was not loaded from a folder"
        raise ModelFileError(message, help="give the path of the model")
    file = (folder / location).resolve()
    if not location or not file.is_relative_to(folder.resolve()):
        message = f"{what} is stored in {location!r}, outside the folder of the model"
        raise ModelFileError(message, help="keep external data in the folder of the model")
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or -1)
        if offset < 0 or length < -1:
            raise ValueError(f"bytes from {offset}, {length} of them")
        if not file.is_file():  # opening a pipe would wait for somebody to write to it
            raise ValueError(f"{location!r} is no regular file" if file.exists() else f"there is no file {location!r}")
        with file.open("rb") as opened:
            size = file.stat().st_size
            opened.seek(offset)
            return opened.read(length if 0 <= length <= size else -1)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{what}: {error}", help="keep external data in the folder of the model") from None
