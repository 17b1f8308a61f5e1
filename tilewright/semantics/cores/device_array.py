"""Arrays in the memory of a device, as pages of device tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dialects.cores import page_grid
from tilewright.dtypes import DType
from tilewright.layout.catalogue.device_tiles import FORMATS, TILE, TileFormat
from tilewright.layout.catalogue.placements import Placement
from tilewright.semantics import tile_formats
from tilewright.semantics.tile_formats import Array, Bytes


@dataclass
class DeviceArray:
    """An array in the memory of a device. `pages`: (pages, bytes of one); `placement`: which core holds which, None
    where they are over the banks of DRAM."""

    shape: tuple[int, ...]
    dtype: DType
    format: TileFormat
    placement: Placement | None
    pages: Bytes

    @classmethod
    def from_numpy(
        cls,
        array: Array,
        *,
        format: str | None = None,
        placement: Placement | None = None,
        padding: float | None = None,
    ) -> DeviceArray:
        """The array, with `padding` beyond its edges, or there with what shows where it is used."""
        dtype = dtypes.from_numpy(array.dtype)
        chosen = tile_formats.format_of(dtype) if format is None else FORMATS[format]
        pages = tile_formats.store_array(array, chosen, padding)
        return cls(tuple(array.shape), dtype, chosen, placement, pages)

    @classmethod
    def undefined(
        cls, shape: Sequence[int], dtype: DType, *, format: str | None = None, placement: Placement | None = None
    ) -> DeviceArray:
        """An array that nothing was written to."""
        chosen = tile_formats.format_of(dtype) if format is None else FORMATS[format]
        pages = np.tile(poison_page(chosen), (prod(page_grid(shape)), 1))
        return cls(tuple(shape), dtype, chosen, placement, pages)

    def to_numpy(self) -> np.ndarray[Any, Any]:
        return tile_formats.load_array(self.pages, self.shape, self.dtype, self.format)


def poison_page(format: TileFormat) -> Bytes:
    """A page that shows where it is used: of NaN, or of the number furthest from 0."""
    if format.dtype in ("i32", "u32"):
        extreme = {"i32": -(2**31), "u32": 2**31}[format.dtype]
        return tile_formats.encode_in_faces(np.full(TILE * TILE, extreme, np.int64), format)
    return tile_formats.encode_in_faces(np.full(TILE * TILE, np.nan, np.float32), format)
