"""Arrays in the memory of a device, as pages of device tiles."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dialects.cores import page_grid
from tilewright.dtypes import DType
from tilewright.layout.catalogue.device_tiles import FORMATS, TILE, TileFormat
from tilewright.layout.catalogue.placements import Placement
from tilewright.records import dataclass
from tilewright.semantics.cores import tile_formats
from tilewright.semantics.cores.tile_formats import Array, Bytes


@dataclass
class DeviceArray:
    """An array in the memory of a device. `pages`: (pages, bytes of one); `placement`: which core holds which, None
    where they are over the banks of DRAM. Pages are tiles, or where it `is_by_rows` the rows of the last dim."""

    shape: tuple[int, ...]
    dtype: DType
    format: TileFormat
    placement: Placement | None
    pages: Bytes
    is_by_rows: bool = False

    @classmethod
    def from_numpy(
        cls,
        array: Array,
        *,
        format: str | None = None,
        placement: Placement | None = None,
        padding: float | None = None,
        by_rows: bool = False,
    ) -> DeviceArray:
        """The array, with `padding` beyond its edges, or there with what shows where it is used."""
        dtype = dtypes.from_numpy(array.dtype)
        chosen = tile_formats.format_of(dtype) if format is None else FORMATS[format]
        if by_rows:
            return cls(tuple(array.shape), dtype, chosen, None, tile_formats.store_rows(array, chosen), True)
        pages = tile_formats.store_array(array, chosen, padding)
        return cls(tuple(array.shape), dtype, chosen, placement, pages)

    @classmethod
    def undefined(
        cls,
        shape: Sequence[int],
        dtype: DType,
        *,
        format: str | None = None,
        placement: Placement | None = None,
        by_rows: bool = False,
    ) -> DeviceArray:
        """An array that nothing was written to."""
        chosen = tile_formats.format_of(dtype) if format is None else FORMATS[format]
        if by_rows:
            columns = shape[-1] if shape else 1
            row = poison_page(chosen)[: chosen.bits // 8]
            pages = np.tile(row, (prod(shape[:-1]), columns))
            return cls(tuple(shape), dtype, chosen, None, pages, True)
        pages = np.tile(poison_page(chosen), (prod(page_grid(shape)), 1))
        return cls(tuple(shape), dtype, chosen, placement, pages)

    def to_numpy(self) -> np.ndarray[Any, Any]:
        if self.is_by_rows:
            return tile_formats.load_rows(self.pages, self.shape, self.dtype, self.format)
        return tile_formats.load_array(self.pages, self.shape, self.dtype, self.format)


def poison_page(format: TileFormat) -> Bytes:
    """A page that shows where it is used: of NaN, or of the number furthest from 0."""
    number = poison_number(format)
    dtype = np.int64 if isinstance(number, int) else np.float32
    return tile_formats.encode_in_faces(np.full(TILE * TILE, number, dtype), format)


def poison_number(format: TileFormat) -> int | float:
    """The poison of elements that nothing was stored to: NaN, or the integer furthest from 0."""
    return {"i32": -(2**31), "u32": 2**31}.get(format.dtype, np.nan)
