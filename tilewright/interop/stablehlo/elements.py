"""Element types by the names that MLIR has for them, and constants of them as NumPy arrays."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.interop.stablehlo.ir import Tensor

STORAGE: dict[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
    "index": np.dtype(np.int64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E4M3B11FNUZ": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8E8M0FNU": np.dtype(ml_dtypes.float8_e8m0fnu),
    "f4E2M1FN": np.dtype(ml_dtypes.float4_e2m1fn),
    "i4": np.dtype(ml_dtypes.int4),
    "ui4": np.dtype(ml_dtypes.uint4),
    "i2": np.dtype(ml_dtypes.int2),
    "ui2": np.dtype(ml_dtypes.uint2),
}
_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
_STRUCTURE = re.compile(r"[^\[\],]+")


class Malformed(Exception):
    """An error in a constant."""


def scalar(token: str, storage: np.dtype) -> Any:
    """The number that one literal stands for, as a scalar of its type.

    Raises:
        Malformed: it is no literal of that type.
    """
    if storage == np.bool_:
        if token not in ("true", "false", "1", "0", "-1"):
            raise Malformed(f"`{token[:40]}` is no bool")
        return np.bool_(token not in ("false", "0"))
    try:
        if "int" in storage.name:
            return _integer(int(token, 0 if "0x" in token else 10), storage)
        if "0x" in token:
            bits = int(token, 16)
            return np.array([bits], f"u{storage.itemsize}").view(storage)[0]
        return np.array([float(token)]).astype(storage)[0]
    except (ValueError, OverflowError):
        raise Malformed(f"`{token[:40]}` is no literal of {storage.name}") from None


def _integer(value: int, storage: np.dtype) -> Any:
    bits = _BITS.get(storage.name, 8 * storage.itemsize)
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise Malformed(f"{value} does not fit {storage.name}")
    if storage.name.startswith("int") and value >= 1 << (bits - 1):
        value -= 1 << bits
    elif value < 0 and storage.name.startswith("uint"):
        value += 1 << bits
    return np.array([value]).astype(storage)[0] if bits < 64 else storage.type(value)


def from_list(content: str, shape: tuple[int, ...], storage: np.dtype) -> Tensor:
    """The elements of nested lists, or the one element that all are equal to (without axes).

    Raises:
        Malformed: a literal is none, or the lists are not of that shape.
    """
    content = content.strip()
    if storage.kind == "c":
        parts = from_list(content.replace("(", "[").replace(")", "]"), *_of_parts(content, shape, storage))
        return np.ascontiguousarray(parts).view(storage)[..., 0]
    if not content:
        if math.prod(shape):
            raise Malformed(f"no elements for the shape {shape}")
        return np.zeros(shape, storage)
    if not content.startswith("["):
        return np.asarray(scalar(content, storage))
    tokens = [token.strip() for token in content.replace("[", "").replace("]", "").split(",")]
    count = math.prod(shape)
    if count != (len(tokens) if tokens != [""] else 0):
        raise Malformed(f"{len(tokens)} elements for the shape {shape}")
    if _STRUCTURE.sub("", content) != _skeleton(shape):
        raise Malformed(f"the lists are not of the shape {shape}")
    if count == 0:
        return np.zeros(shape, storage)
    return _numbers(tokens, storage).reshape(shape)


def _of_parts(content: str, shape: tuple[int, ...], storage: np.dtype) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of the list of the parts of complex numbers: of the one number of a splat, or of all."""
    part = np.dtype(f"f{storage.itemsize // 2}")
    return ((2,) if content.startswith("(") else (*shape, 2)), part


def _numbers(tokens: list[str], storage: np.dtype) -> Tensor:
    try:
        if storage.kind == "f" and storage.itemsize >= 4:
            return np.array(list(map(float, tokens))).astype(storage)
        if storage.kind in "iu":
            return np.array(list(map(int, tokens)), storage)
    except (ValueError, OverflowError):
        pass  # there are literals of other forms among them
    return np.array([scalar(token, storage) for token in tokens], storage)


def _skeleton(shape: tuple[int, ...]) -> str:
    """The brackets and commas of nested lists of a shape."""
    written = ""
    for size in reversed(shape):
        written = "[" + ",".join([written] * size) + "]"
    return written


def from_hex(text: str, shape: tuple[int, ...], storage: np.dtype) -> Tensor:
    """The elements of a string of bytes, or the one element that all are equal to (without axes).

    Raises:
        Malformed: it is no such string, or has another length.
    """
    try:
        data = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise Malformed("the string holds something else than bytes") from None
    count = math.prod(shape)
    if storage == np.bool_ and len(data) == -(-count // 8) != count:
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[:count].astype(bool).reshape(shape)
    if len(data) not in (count * storage.itemsize, storage.itemsize):
        raise Malformed(f"{len(data)} bytes for {count} elements of {storage.name}")
    array = np.frombuffer(data, np.uint8)
    stored = array != 0 if storage == np.bool_ else array.view(storage)
    return stored.reshape(shape if len(data) == count * storage.itemsize else ())
