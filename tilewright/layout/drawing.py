"""Layouts drawn as text: a grid whose cell at row `i` and column `j` names the place of element `(i, j)`."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import LayoutError
from tilewright.layout.layout import Layout

_GAP = -1


def draw(layout: Layout, *axes: str, max_rows: int = 34, max_columns: int = 18, leading: Sequence[int] = ()) -> str:
    """Draw the last two dims. A cell holds the coordinates on `axes` (all axes by default), joined by `/`.

    A layout of rank 1 is drawn as one row. Of a larger rank, the slice at the indices `leading` is drawn (zeros by
    default). Long rows and columns keep their two ends with `...` between. A last line names copies, if there are any.

    Raises:
        LayoutError: a size is unknown, the layout has no such axis, or `leading` does not fit.
    """
    shape = layout.static_shape
    shown = axes or layout.axes
    unknown = [axis for axis in shown if axis not in layout.axes]
    if unknown:
        raise LayoutError(
            f"the layout has no axis `{unknown[0]}`", help=f"choose from: {', '.join(layout.axes) or 'none'}"
        )
    lead = tuple(leading) or (0,) * max(0, len(shape) - 2)
    if len(lead) != max(0, len(shape) - 2):
        raise LayoutError(
            f"{len(lead)} leading indices do not fit a layout of rank {len(shape)}",
            help="give one index for each dim before the last two",
        )
    rows = _visible(shape[-2] if len(shape) > 1 else 1, max_rows)
    columns = _visible(shape[-1] if shape else 1, max_columns)

    def cell(row: int, column: int) -> str:
        if _GAP in (row, column):
            return "..."
        index = (*lead, row, column)[-len(shape) :] if shape else ()
        found = layout.coordinates(index)
        return "/".join(str(found[axis]) for axis in shown)

    table = [["", *(_label(column) for column in columns)]]
    table.extend([_label(row), *(cell(row, column) for column in columns)] for row in rows)
    title = f"{'/'.join(shown) or 'no axes'} of ({', '.join(map(str, shape))})"
    if any(lead):
        title += f" at ({', '.join(map(str, lead))}, ...)"
    return "\n".join([title, *_aligned(table), *_copies(layout, shown)])


def _visible(size: int, limit: int) -> list[int]:
    """The indices that are shown, with a gap where some are left out."""
    if size <= limit:
        return list(range(size))
    tail = max(1, (limit - 1) // 4)
    return [*range(max(1, limit - 1 - tail)), _GAP, *range(size - tail, size)]


def _label(index: int) -> str:
    return "..." if index == _GAP else str(index)


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [
        " | ".join(
            [row[0].rjust(widths[0]), "  ".join(text.rjust(w) for text, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in table
    ]
    rule = "-" * (widths[0] + 1) + "+" + "-" * (len(lines[0]) - widths[0] - 2)
    return [lines[0].rstrip(), rule, *(line.rstrip() for line in lines[1:])]


def _copies(layout: Layout, shown: Sequence[str]) -> list[str]:
    replicas = [f"{copy.extent}@{copy.axis}*{copy.stride}" for copy in layout.replica if copy.axis in shown]
    partials = [f"{copy.op} {copy.extent}@{copy.axis}*{copy.stride}" for copy in layout.partial if copy.axis in shown]
    lines = [f"each repeated over {' '.join(replicas)}"] if replicas else []
    return [*lines, f"each a term of {', '.join(partials)}"] if partials else lines
