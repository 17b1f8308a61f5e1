"""The catalogue name of a layout that equals one of its layouts as a map.

name_of(layout, 16)                               # 'mma.sync accumulator, 2 x 2 warps', or None
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from tilewright.errors import LayoutError
from tilewright.layout import catalogue
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.catalogue.fragment_names import Candidate, fragment_names, shared_names
from tilewright.layout.construct import column_major, row_major
from tilewright.layout.dims import static
from tilewright.layout.layout import Layout
from tilewright.layout.operations import rename_axis
from tilewright.layout.queries import same_map

_VECTORS = (16, 8, 4, 2, 1)
_PANELS = (4, 6, 8, 12, 14, 16, 32, 48, 64)


@lru_cache(maxsize=4096)
def name_of(layout: Layout, bits: int) -> str | None:
    """The name of a static layout of elements of `bits` bits; the simplest where it has several."""
    if not layout.is_static or not layout.rank or layout.offset or layout.partial:
        return None
    kinds = {kind_of(axis) for axis in layout.axes}
    if Kind.MEMORY in kinds and len(layout.axes) == 1:
        plain = layout if layout.axes == ("mem",) else rename_axis(layout, layout.axes[0], "mem")
        return _first(_memory_names(layout.static_shape, bits), plain)
    if kinds <= {Kind.REGISTER, Kind.LANE, Kind.WARP} and "lane" in layout.axes:
        return _first(_register_names(layout, bits), layout)
    if kinds <= {Kind.REGISTER, Kind.LANE} and layout.rank == 2:
        return _first(_vector_names(layout), layout)
    return None


def _first(candidates: Iterator[Candidate], layout: Layout) -> str | None:
    for name, make in candidates:
        try:
            if same_map(make(), layout):
                return name
        except LayoutError:
            continue
    return None


def _memory_names(shape: tuple[int, ...], bits: int) -> Iterator[Candidate]:
    yield "row-major", lambda: row_major(shape)
    yield "column-major", lambda: column_major(shape)
    if len(shape) != 2:
        return
    yield from shared_names(shape, bits)
    for group in (1, 2, 4):
        for width in _PANELS:
            grouped = f", groups of {group}" if group > 1 else ""
            yield f"panels of {width} rows{grouped}", lambda w=width, g=group: catalogue.packed_panels_a(shape, w, g)
            yield f"panels of {width} columns{grouped}", lambda w=width, g=group: catalogue.packed_panels_b(shape, w, g)


def _vector_names(layout: Layout) -> Iterator[Candidate]:
    shape, lanes = layout.static_shape, static(layout.span("simd")) if "simd" in layout.axes else 1
    for dim, along in ((1, "rows"), (0, "columns")):
        yield f"vectors of {lanes} along {along}", lambda d=dim: catalogue.register_block(shape, lanes, d)


def _register_names(layout: Layout, bits: int) -> Iterator[Candidate]:
    shape = layout.static_shape
    warps = static(layout.span("warp")) if "warp" in layout.axes else 1
    yield from fragment_names(shape, bits, warps)
    for vector in _VECTORS:
        name = f"vectors of {vector} in the order of elements" if vector > 1 else "in the order of elements"
        yield name, lambda v=vector: catalogue.strided_registers(shape, v, warps)
