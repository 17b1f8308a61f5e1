"""Bytes and numbers of device tiles of 32 x 32 elements, bit by bit, in the formats that a grid of cores stores.

A tile has four faces of 16 x 16, row-major, each row-major inside; numbers are little-endian. Floats are rounded to
nearest even, and overflow gives an infinity.

`bfp8` is stored as tt-metal's host packs `Bfp8_b` (convert_u32_to_bfp and get_max_exp in
tt_metal/impl/data_format/blockfloat_common.cpp): first the exponents of the 64 blocks, one byte each with the bias of
f32, then for each element its sign and 7 bits of magnitude, so that it is magnitude * 2^(exponent - 133).

- A block is a row of a face, and its exponent the largest among its elements.
- A magnitude is the f32's 24 bits, shifted to the exponent of the block, and then rounded to nearest even. The shift
  cuts off, so that a number a little beyond a tie, by less than 24 bits see, counts as one; numbers of 16 bits have no
  such bits. A magnitude that rounds to 128 becomes 127.
- Subnormals become 0, and what becomes 0 has no sign. A block of zeros has the exponent 0.
- Infinities and NaN have the exponent 255, and keep what they are, but for a NaN without any of its 6 leading payload
  bits, which becomes an infinity. Their block has steps of 2^122 then, in which most other numbers are 0.
- A number that would be subnormal in f32 is read as 0, as the hardware does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError, UnsupportedOnTargetError
from tilewright.layout.catalogue.device_tiles import FACE, FORMATS, TILE, TileFormat

Array: TypeAlias = NDArray[Any]
Bytes: TypeAlias = NDArray[np.uint8]

ELEMENTS = TILE * TILE
_BLOCK_FLOAT = "bfp8"
_BLOCKS = ELEMENTS // FACE
_STORED: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype("<f2"),
    "i32": np.dtype("<i4"),
    "u32": np.dtype("<u4"),
}
# What padding holds that nothing may depend on.
_POISON = {"i32": -(2**31), "u32": 2**31}
# Each code of an element of a block float, in units of its block.
_CODES = np.concatenate([np.arange(128, dtype=np.float32), -np.arange(128, dtype=np.float32)])
_SCALES = np.ldexp(np.float32(1), np.arange(256) - 133).astype(np.float32)
_SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal


def format_of(dtype: DType) -> TileFormat:
    """The format that arrays of a type are stored in; a bool is 0 or 1 in bf16, an i64 has to fit 32 bits, which is
    checked where it comes from the host.

    Raises:
        UnsupportedOnTargetError: there is none.
    """
    name = "bf16" if dtype.is_bool else "i32" if dtype == dtypes.i64 else dtype.name
    if name not in FORMATS:
        wider = "f32" if dtype.is_float else "u32" if dtype.kind == "u" else "i32"
        raise UnsupportedOnTargetError(
            f"device tiles do not hold elements of {dtype.name}", help=f"cast the array to {wider}"
        )
    return FORMATS[name]


def stored_type(fmt: TileFormat | str) -> np.dtype[Any] | None:
    """The type of elements as they are stored, face by face, where each stands alone."""
    return _STORED.get(_name(fmt))


def encode(values: Array, fmt: TileFormat | str) -> Bytes:
    """The bytes of tiles: (..., 32, 32) to (..., page_bytes)."""
    return encode_in_faces(_to_faces(values), fmt)


def decode(pages: Bytes, fmt: TileFormat | str) -> Array:
    """The numbers of tiles: (..., page_bytes) to (..., 32, 32), as f32, or as integers."""
    values = decode_in_faces(pages, fmt)
    faces = values.reshape(*values.shape[:-1], 2, 2, FACE, FACE)
    return faces.swapaxes(-3, -2).reshape(*values.shape[:-1], TILE, TILE)


def encode_in_faces(values: Array, fmt: TileFormat | str) -> Bytes:
    """The bytes of tiles: (..., 1024) numbers, face by face as they are stored, to (..., page_bytes)."""
    name = _name(fmt)
    if name == _BLOCK_FLOAT:
        return _encode_blocks(values)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = np.ascontiguousarray(values, _STORED[name])
    return stored.view(np.uint8)


def decode_in_faces(pages: Bytes, fmt: TileFormat | str) -> Array:
    """The numbers of tiles: (..., page_bytes) to (..., 1024) numbers, face by face as they are stored, as f32, or as
    integers."""
    name = _name(fmt)
    if name == _BLOCK_FLOAT:
        return _decode_blocks(pages)
    stored = np.ascontiguousarray(pages).view(_STORED[name])
    return stored.astype(np.float32 if FORMATS[name].dtype in ("f32", "bf16", "f16") else stored.dtype)


def store_array(array: Array, fmt: TileFormat | str, padding: float | None = None) -> Bytes:
    """The pages of an array, (pages, page_bytes): those of the dims before the last two, then rows, then columns of
    tiles. An array of rank 1 or 0 is a row.

    Elements beyond the array hold `padding`, or a value that is visible wherever it is used: NaN, or 2^31 in integers.
    In a block of a block float that holds elements of the array, too, that is the most negative number that leaves
    their exponent as it is.
    """
    name = _name(fmt)
    _check_fits(array)
    shape = (*(1,) * (2 - array.ndim), *array.shape)
    grid = _grid(shape)
    whole = (*shape[:-2], *(count * TILE for count in grid[-2:]))
    inside = tuple(slice(size) for size in shape)
    poisoned = padding is None and whole != shape
    blank = (0 if name == _BLOCK_FLOAT else _POISON.get(name, np.nan)) if padding is None else padding
    padded = np.full(whole, blank, np.float32 if name == _BLOCK_FLOAT else _STORED[name])
    with np.errstate(over="ignore", invalid="ignore"):
        padded[inside] = array.reshape(shape)
    pages = encode_in_faces(_in_pages(padded), name)
    if poisoned and name == _BLOCK_FLOAT:
        outside = np.ones(whole, bool)
        outside[inside] = False
        outside = _in_pages(outside)
        pages[:, :_BLOCKS][outside.reshape(-1, _BLOCKS, FACE).all(-1)] = 0xFF
        pages[:, _BLOCKS:][outside] = 0xFF
    return pages


def load_array(pages: Bytes, shape: Sequence[int], dtype: DType | DTypeLike, fmt: TileFormat | str) -> Array:
    """The array of a shape and type that `store_array` stored in pages."""
    matrix = (*(1,) * (2 - len(shape)), *shape)
    grid = _grid(matrix)
    values = decode_in_faces(pages, fmt).reshape(*grid, 2, 2, FACE, FACE)
    # ..., page row, page column, face row, face column, row, column
    rows = np.moveaxis(values, (-6, -4, -2, -5, -3, -1), range(-6, 0))
    whole = rows.reshape(*grid[:-2], grid[-2] * TILE, grid[-1] * TILE)
    array = whole[tuple(slice(size) for size in matrix)].reshape(tuple(shape))
    wanted = dtypes.as_dtype(dtype)
    return array != 0 if wanted.is_bool else array.astype(wanted.numpy)


def store_rows(array: Array, fmt: TileFormat | str) -> Bytes:
    """The rows of an array, (rows, bytes of one): those of its last dim. An array of rank 0 is a row of one."""
    _check_fits(array)
    columns = array.shape[-1] if array.ndim else 1
    with np.errstate(over="ignore", invalid="ignore"):
        stored = np.ascontiguousarray(array.reshape(prod(array.shape[:-1]), columns), _STORED[_name(fmt)])
    return stored.view(np.uint8)


def load_rows(rows: Bytes, shape: Sequence[int], dtype: DType | DTypeLike, fmt: TileFormat | str) -> Array:
    """The array of a shape and type that `store_rows` stored."""
    values = decode_in_faces(rows, fmt).reshape(tuple(shape))
    wanted = dtypes.as_dtype(dtype)
    return values != 0 if wanted.is_bool else values.astype(wanted.numpy)


def _check_fits(array: Array) -> None:
    if array.dtype == np.int64 and array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
        raise ArgumentError(
            "an array of i64 has numbers that do not fit 32 bits, which is what cores compute in",
            help='use target="cpu", or smaller numbers',
        )


def to_tf32(values: Array) -> Array:
    """Numbers of f32 as the unpacker gives them to the matrix unit: cut off after 10 bits of the mantissa. A NaN stays
    one."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    cut = bits & np.uint32(0xFFFFE000)
    quiet = np.isnan(values) & ((cut & np.uint32(0x7FFFFF)) == 0)
    return np.where(quiet, cut | np.uint32(0x400000), cut).view(np.float32)


def _name(fmt: TileFormat | str) -> str:
    return fmt if isinstance(fmt, str) else fmt.name


def _grid(shape: Sequence[int]) -> tuple[int, ...]:
    """How many pages there are along each dim of a shape of rank 2 or more."""
    return (*shape[:-2], *(-(-size // TILE) for size in shape[-2:]))


def _to_faces(values: Array) -> Array:
    before = values.shape[:-2]
    return values.reshape(*before, 2, FACE, 2, FACE).swapaxes(-3, -2).reshape(*before, ELEMENTS)


def _in_pages(whole: Array) -> Array:
    """The elements of an array of whole tiles by pages, (pages, 1024), each face by face."""
    *before, rows, columns = whole.shape
    parts = whole.reshape(*before, rows // TILE, 2, FACE, columns // TILE, 2, FACE)
    # ..., page row, face row, row, page column, face column, column
    pages = np.moveaxis(parts, (-6, -3, -5, -2, -4, -1), range(-6, 0))
    return pages.reshape(prod(whole.shape) // ELEMENTS, ELEMENTS)


def _encode_blocks(values: Array) -> Bytes:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    blocks = bits.reshape(*bits.shape[:-1], _BLOCKS, FACE)
    exponents = (blocks >> 23) & 0xFF
    shared = exponents.max(-1, keepdims=True)
    # Beyond 24 places nothing is left, and shifts of 32 or more mean something else.
    shifts = np.minimum(shared - exponents, 24)
    mantissas = (blocks & 0x7FFFFF | 0x800000) >> shifts
    mantissas[exponents == 0] = 0
    # Half of the last place that stays, less the smallest step where that place is 0: ties go to even ones.
    rounded = (mantissas + 0xFFFF + ((mantissas >> 17) & 1)) >> 17
    magnitudes = np.minimum(rounded, 127)
    signs = np.where(magnitudes == 0, 0, (blocks >> 24) & 0x80)
    before = bits.shape[:-1]
    codes = (signs | magnitudes).astype(np.uint8).reshape(*before, ELEMENTS)
    return np.concatenate([shared.astype(np.uint8).reshape(*before, _BLOCKS), codes], axis=-1)


def _decode_blocks(pages: Bytes) -> Array:
    before = pages.shape[:-1]
    exponents = pages[..., :_BLOCKS, None]
    codes = pages[..., _BLOCKS:].reshape(*before, _BLOCKS, FACE)
    with np.errstate(over="ignore", invalid="ignore"):
        values = _CODES[codes] * _SCALES[exponents]
    values[np.abs(values) < _SMALLEST_NORMAL] *= 0
    values[(exponents == 0xFF) & (codes & 0x7F > 64)] = np.nan
    return values.reshape(*before, ELEMENTS)
