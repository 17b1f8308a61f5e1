"""Layouts drawn as SVG, the way kernel authors draw them: a cell per element, labelled with its position and coloured
by the lane that holds it, or by the bank that it begins in.

    text = draw_svg(mma_accumulator((16, 8), 16, (1, 1)))             # W0 L1 R2 in a cell
    text = draw_svg(shared_matrix((64, 64), 16), ports=MemoryPorts(), item_bytes=2)
"""

from __future__ import annotations

import colorsys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.dims import static
from tilewright.layout.drawing import Banks, Part, banks_of, checked_window, copies_of
from tilewright.layout.layout import Layout
from tilewright.records import dataclass

if TYPE_CHECKING:
    from tilewright.layout.access import MemoryPorts

LARGEST_SIDE = 64
"""Rows and columns that a drawing shows when it is not told."""

_LETTERS = {"warp": "W", "lane": "L", "reg": "R", "simd": "S", "thread": "T", "wave": "V", "warpgroup": "G", "cta": "C"}
_CHARACTER, _LINE, _MARGIN = 6, 16, 12  # pixels at 10 px monospace
_SWATCHES_A_LINE = 16
_MOST_SWATCHES = 64  # more colours than that tell nothing


def draw_svg(
    layout: Layout,
    *axes: str,
    title: str = "",
    rows: range | None = None,
    columns: range | None = None,
    leading: Sequence[int] = (),
    ports: MemoryPorts | None = None,
    item_bytes: int = 1,
    marked: Mapping[tuple[int, int], str] | None = None,
) -> str:
    """An SVG document of the last two dims, or of the window of them that `rows` and `columns` select.

    A cell holds the coordinates on `axes` (all axes by default, outermost first). With the `ports` of a memory, cells
    also show the bank in which their element of `item_bytes` bytes begins, and have its colour. Cells in `marked`, by
    row and column, have a red frame and a tooltip with the text.

    Raises:
        LayoutError: a size is unknown, the layout has no such axis or no banks, or a window or `leading` does not fit.
    """
    outermost_first = sorted(layout.axes, key=lambda axis: -kind_of(axis))
    part = Part(layout, axes or tuple(outermost_first), tuple(leading))
    shown_rows, shown_columns = (
        range(min(size, LARGEST_SIDE)) if given is None else checked_window(given, size)
        for given, size in zip((rows, columns), part.sizes, strict=True)
    )
    banks = None if ports is None else banks_of(layout, ports, item_bytes)
    return _Drawing(part, shown_rows, shown_columns, _Colours(part, banks), title, dict(marked or {})).text()


@dataclass(frozen=True)
class _Colours:
    """The axes that colour the cells: banks, or lanes; in a layout without lanes, any others."""

    part: Part
    banks: Banks | None

    @property
    def what(self) -> str:
        return "bank" if self.banks is not None else self.axis

    @property
    def axis(self) -> str:
        axes = self.part.layout.axes
        kinds = (Kind.LANE, Kind.WARP, Kind.REGISTER)
        found = [axis for kind in kinds for axis in axes if kind_of(axis) == kind]
        return next(iter([*found, *axes]), "")

    @property
    def count(self) -> int:
        if self.banks is not None:
            return self.banks.ports.banks
        return static(self.part.layout.span(self.axis)) if self.axis else 1

    def number(self, at: Mapping[str, int]) -> int:
        """The lane or bank of a position."""
        return self.banks.bank(at) if self.banks is not None else at.get(self.axis, 0)

    def colour(self, number: int) -> str:
        """Hues around the circle; every second one is darker, so that neighbours differ."""
        hue = (number % self.count) / self.count
        parts = colorsys.hls_to_rgb(hue, 0.84 if number % 2 == 0 else 0.74, 0.75)
        return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


@dataclass(frozen=True)
class _Drawing:
    part: Part
    rows: range
    columns: range
    colours: _Colours
    title: str
    marked: dict[tuple[int, int], str]

    def text(self) -> str:
        names = _names(self.part.axes)
        cells = {(r, c): self.part.coordinates(r, c) for r in self.rows for c in self.columns}
        labels = {cell: self._label(names, at) for cell, at in cells.items()}
        width = _CHARACTER * max(len(label) for label in labels.values()) + 8
        heads = self._heads(names)
        left = _MARGIN + _CHARACTER * len(str(self.rows[-1])) + 6
        top = _MARGIN + _LINE * (len(heads) + 1)
        legend = sorted({self.colours.number(at) for at in cells.values()})[:_MOST_SWATCHES]
        bottom = top + _LINE * len(self.rows) + 8
        swatches = list(self._legend(legend, bottom))
        full_width = max(
            left + width * len(self.columns) + _MARGIN,
            2 * _MARGIN + _CHARACTER * max(map(len, heads)),
            2 * _MARGIN + _swatch_width(self.colours) * min(len(legend), _SWATCHES_A_LINE),
        )
        full_height = bottom + _LINE * (2 + (len(legend) - 1) // _SWATCHES_A_LINE) + _MARGIN
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{full_width}" height="{full_height}" '
            f'viewBox="0 0 {full_width} {full_height}" font-family="monospace" font-size="10">',
            f"<title>{escape(self.title or str(self.part.layout))}</title>",
            f'<rect width="{full_width}" height="{full_height}" fill="#ffffff"/>',
            *(_text(_MARGIN, _MARGIN + _LINE * n + 8, head) for n, head in enumerate(heads)),
        ]
        for n, column in enumerate(self.columns):
            lines.append(_text(left + width * n + width // 2, top - 4, str(column), "middle"))
        for n, row in enumerate(self.rows):
            lines.append(_text(left - 4, top + _LINE * n + 11, str(row), "end"))
        for (row, column), at in cells.items():
            x, y = left + width * (column - self.columns.start), top + _LINE * (row - self.rows.start)
            lines += self._cell((row, column), x, y, width, labels[row, column], self.colours.number(at))
        return "\n".join([*lines, *swatches, "</svg>"]) + "\n"

    def _label(self, names: Mapping[str, str], at: Mapping[str, int]) -> str:
        parts = [f"{names[axis]}{at[axis]}" for axis in self.part.axes]
        bank = [] if self.colours.banks is None else [f"B{self.colours.banks.bank(at)}"]
        return " ".join([*parts, *bank])

    def _heads(self, names: Mapping[str, str]) -> list[str]:
        """The lines above the cells."""
        heads = [self.title] if self.title else []
        heads.append(str(self.part.layout))
        meanings = [f"{name} {axis}" for axis, name in names.items()]
        if self.colours.banks is not None:
            meanings.append(f"B bank ({self.colours.banks})")
        heads.append(", ".join([*meanings, f"coloured by {self.colours.what}"]))
        if any(self.part.leading):
            heads.append(f"the slice at ({', '.join(map(str, self.part.leading))}, ...)")
        rows, columns = self.part.sizes
        if (len(self.rows), len(self.columns)) != (rows, columns):
            window = f"rows {self.rows.start} to {self.rows[-1]} of {rows}"
            heads.append(f"cut: {window}, columns {self.columns.start} to {self.columns[-1]} of {columns}")
        if self.marked:
            heads.append(f"framed in red: {'; '.join(sorted(set(self.marked.values())))}")
        return [*heads, *copies_of(self.part.layout, self.part.axes)]

    def _cell(self, cell: tuple[int, int], x: int, y: int, width: int, label: str, number: int) -> Iterator[str]:
        frame = 'stroke="#d00000" stroke-width="2"' if cell in self.marked else 'stroke="#808080" stroke-width="0.5"'
        where = quoteattr(f"{cell[0]},{cell[1]}")
        yield f'<g class="cell" data-index={where}>'
        if cell in self.marked:
            yield f"<title>{escape(self.marked[cell])}</title>"
        box = f'x="{x}" y="{y}" width="{width}" height="{_LINE}"'
        yield f'<rect {box} fill="{self.colours.colour(number)}" {frame}/>'
        yield f"{_text(x + width // 2, y + 11, label, 'middle')}</g>"

    def _legend(self, numbers: Sequence[int], y: int) -> Iterator[str]:
        """A swatch for each of the numbers."""
        wide = _swatch_width(self.colours)
        for n, number in enumerate(numbers):
            line, place = divmod(n, _SWATCHES_A_LINE)
            at = _MARGIN + wide * place
            box = f'x="{at}" y="{y + _LINE * line}" width="10" height="10"'
            yield f'<g class="legend"><rect {box} fill="{self.colours.colour(number)}" stroke="#808080"/>'
            yield f"{_text(at + 14, y + _LINE * line + 9, f'{self.colours.what} {number}')}</g>"


def _swatch_width(colours: _Colours) -> int:
    return 24 + _CHARACTER * len(f"{colours.what} {colours.count - 1}")


def _names(axes: Sequence[str]) -> dict[str, str]:
    """The label of each axis in a cell: a letter, or an unambiguous prefix of its name."""
    short = {axis: _LETTERS.get(axis, f"{axis.rpartition('.')[2]}=") for axis in axes}
    short |= {axis: "@" for axis in axes if axis.partition(".")[0] == "mem"}
    times = Counter(short.values())
    return {axis: name if times[name] == 1 else f"{axis}=" for axis, name in short.items()}


def _text(x: int, y: int, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
