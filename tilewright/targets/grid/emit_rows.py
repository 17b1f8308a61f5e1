"""Rows of arrays as TT-Metalium C++: each is a page of its array, of which a part is read or written."""

from __future__ import annotations

from tilewright.dialects import cores, tile
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.targets.grid.emit_expressions import Value, add, constant, flat, multiply
from tilewright.targets.grid.emit_thread import ThreadPrinter

_UP_TO = """\
inline uint32_t up_to(uint32_t most, uint32_t count) { return count < most ? count : most; }
"""
_MOVE_ROWS = """\
// Some bytes from `offset` on of `count` rows, to or from places that are `step` bytes apart.
template <typename Array>
inline void {verb}_rows(
    const Array& array, uint32_t row, uint32_t count, uint32_t offset, uint32_t bytes, uint32_t place, uint32_t step) {{
    for (uint32_t i = 0; i < count; ++i, place += step) {{
        noc_async_{verb}({ends}, bytes);
    }}
}}
"""
_THERE = "array.get_noc_addr(row + i, offset)"
READ_ROWS = _MOVE_ROWS.format(verb="read", ends=f"{_THERE}, place")
WRITE_ROWS = _MOVE_ROWS.format(verb="write", ends=f"place, {_THERE}")


def rows_call(printer: ThreadPrinter, op: cores.RowsOp, at: list[Value], array: str, place: str) -> str:
    """The call that moves what an array has in pages of tiles side by side, the first of which is `at`, and is in the
    array. `place`: the address of the first row in the queue."""
    shape = tile.ref_type(op.array).shape
    *outer, height, width = (*(1,) * (2 - len(shape)), *shape)
    *matrix, row, column = at
    element_bytes = cores.queue_type(op.queue).tile_format.bits // 8
    row_bytes = TILE * op.shape[-1] * element_bytes
    first = add(
        multiply(flat(matrix, outer) if outer else constant(0), constant(height)), multiply(row, constant(TILE))
    )
    offset = multiply(column, constant(TILE * element_bytes))
    count = _up_to(printer, TILE, height, multiply(row, constant(TILE)))
    size = _up_to(printer, row_bytes, width * element_bytes, offset)
    verb, helper = ("read", READ_ROWS) if isinstance(op, cores.FetchRowsOp) else ("write", WRITE_ROWS)
    printer.helpers[helper] = None
    arguments = [array, first.text, count, offset.text, size, place, str(row_bytes)]
    return f"{verb}_rows({', '.join(arguments)});"


def _up_to(printer: ThreadPrinter, most: int, size: int, begin: Value) -> str:
    """How much of a size is left from an index on, which is inside, but no more than `most`."""
    if begin.number is not None:
        return str(min(most, size - begin.number))
    if size % most == 0:
        return str(most)
    printer.helpers[_UP_TO] = None
    return f"up_to({most}, {size} - {begin.within(1)})"
