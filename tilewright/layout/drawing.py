"""Layouts drawn as text: a grid whose cell at row `i` and column `j` names the position of element `(i, j)`.

The window of a layout that a drawing shows, and the banks of a memory, are here for drawings of all kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.errors import LayoutError
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.layout import Layout
from tilewright.records import dataclass

if TYPE_CHECKING:
    from tilewright.layout.access import MemoryPorts

_GAP = -1


@dataclass(frozen=True)
class Banks:
    """The banks that a memory layout's elements of `item_bytes` bytes begin in."""

    axis: str
    item_bytes: int
    ports: MemoryPorts

    def bank(self, coordinates: Mapping[str, int]) -> int:
        """The bank at a position."""
        return coordinates[self.axis] * self.item_bytes // self.ports.bank_bytes % self.ports.banks

    def __str__(self) -> str:
        ports = self.ports
        return f"{ports.banks} banks of {ports.bank_bytes} bytes, elements of {self.item_bytes}"


def banks_of(layout: Layout, ports: MemoryPorts, item_bytes: int) -> Banks:
    """The banks of a memory layout.

    Raises:
        LayoutError: the layout is not of one memory.
    """
    axes = [axis for axis in layout.axes if kind_of(axis) == Kind.MEMORY]
    if len(axes) != 1:
        raise LayoutError(
            f"{layout} has {len(axes)} axes of memory, so it has no banks", help="draw a layout on one axis such as mem"
        )
    return Banks(axes[0], item_bytes, ports)


@dataclass(frozen=True)
class Part:
    """The drawn slice of a layout: the last two dims at `leading`; a layout of rank 1 is one row.

    Raises:
        LayoutError: a size is unknown, the layout has no such axis, or `leading` does not fit.
    """

    layout: Layout
    axes: tuple[str, ...]
    leading: tuple[int, ...]

    def __post_init__(self) -> None:
        unknown = [axis for axis in self.axes if axis not in self.layout.axes]
        if unknown:
            known = ", ".join(self.layout.axes) or "none"
            raise LayoutError(f"the layout has no axis `{unknown[0]}`", help=f"choose from: {known}")
        rank = len(self.layout.static_shape)
        object.__setattr__(self, "leading", self.leading or (0,) * max(0, rank - 2))
        if len(self.leading) != max(0, rank - 2):
            raise LayoutError(
                f"{len(self.leading)} leading indices do not fit a layout of rank {rank}",
                help="give one index for each dim before the last two",
            )

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows and columns in all."""
        shape = self.layout.static_shape
        return shape[-2] if len(shape) > 1 else 1, shape[-1] if shape else 1

    def coordinates(self, row: int, column: int) -> dict[str, int]:
        """The position of the element of a cell."""
        rank = self.layout.rank
        return self.layout.coordinates((*self.leading, row, column)[-rank:] if rank else ())

    def title(self, names: Sequence[str]) -> str:
        """The contents of the cells, and their source."""
        title = f"{'/'.join(names) or 'no axes'} of ({', '.join(map(str, self.layout.shape))})"
        return title + (f" at ({', '.join(map(str, self.leading))}, ...)" if any(self.leading) else "")


def draw(
    layout: Layout,
    *axes: str,
    max_rows: int = 34,
    max_columns: int = 18,
    rows: range | None = None,
    columns: range | None = None,
    leading: Sequence[int] = (),
    banks: MemoryPorts | None = None,
    item_bytes: int = 1,
) -> str:
    """Draw the last two dims. A cell holds the coordinates on `axes` (all axes by default), joined by `/`.

    A layout of rank 1 is drawn as one row. Of a larger rank, the slice at the indices `leading` is drawn (zeros by
    default). Long rows and columns keep their two ends with `...` between, unless `rows` and `columns` select a window.
    A last line names copies, if there are any. With `banks`, the ports of the memory, each cell ends in the bank in
    which its element of `item_bytes` bytes begins.

    Raises:
        LayoutError: a size is unknown, the layout has no such axis or no banks, or a window or `leading` does not fit.
    """
    part = Part(layout, axes or layout.axes, tuple(leading))
    shown_rows = _visible(part.sizes[0], max_rows) if rows is None else [*checked_window(rows, part.sizes[0])]
    shown_columns = (
        _visible(part.sizes[1], max_columns) if columns is None else [*checked_window(columns, part.sizes[1])]
    )
    found = None if banks is None else banks_of(layout, banks, item_bytes)

    def cell(row: int, column: int) -> str:
        if _GAP in (row, column):
            return "..."
        at = part.coordinates(row, column)
        bank = [] if found is None else [found.bank(at)]
        return "/".join(map(str, [*(at[axis] for axis in part.axes), *bank]))

    table = [["", *(_label(column) for column in shown_columns)]]
    table.extend([_label(row), *(cell(row, column) for column in shown_columns)] for row in shown_rows)
    title = part.title(part.axes if found is None else (*part.axes, "bank"))
    title += "" if found is None else f": {found}"
    return "\n".join([title, *_aligned(table), *copies_of(layout, part.axes)])


def checked_window(window: range, size: int) -> range:
    """The window of rows or columns.

    Raises:
        LayoutError: there is no such window in so many.
    """
    if not window or window.step != 1 or window.start < 0 or window.stop > size:
        raise LayoutError(
            f"there is no window {window.start}:{window.stop} in {size} rows or columns",
            help=f"choose one within 0:{size}",
        )
    return window


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


def copies_of(layout: Layout, shown: Sequence[str]) -> list[str]:
    """The copies and terms of each element along the axes that are shown."""
    replicas = [f"{copy.extent}@{copy.axis}*{copy.stride}" for copy in layout.replica if copy.axis in shown]
    partials = [f"{copy.op} {copy.extent}@{copy.axis}*{copy.stride}" for copy in layout.partial if copy.axis in shown]
    lines = [f"each repeated over {' '.join(replicas)}"] if replicas else []
    return [*lines, f"each a term of {', '.join(partials)}"] if partials else lines
