"""Explanations of layouts as text to read and as documents to store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import groupby
from pathlib import PurePath
from textwrap import wrap
from typing import Any, cast

import msgspec

from tilewright.errors import SourceLocation
from tilewright.layout import Layout
from tilewright.passes.layouts.layout_explanation import (
    Alternative,
    Edge,
    KernelExplanation,
    Movement,
    ProductExplanation,
    TileExplanation,
)
from tilewright.passes.layouts.tile_names import source_line

_WIDTH = 120
_INDENT = " " * 4
_LABEL = 8
_COSTLIEST = 5
_LOCAL = ("rename", "load", "store", "copy")
"""Moves of which it goes without saying how far they reach."""

Entry = TileExplanation | ProductExplanation


def document_of(explanation: KernelExplanation) -> dict[str, Any]:
    """A document of plain values: layouts in their text form, locations as file, line and column."""
    return {field.name: _plain(getattr(explanation, field.name)) for field in fields(explanation)}


def _plain(value: Any) -> Any:
    if isinstance(value, Layout):
        return str(value)
    if isinstance(value, SourceLocation):
        return {"file": value.file, "line": value.line, "column": value.column}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        parts = cast("tuple[Any, ...]", value)
        return [_plain(part) for part in parts]
    return value


def text_of(explanation: KernelExplanation) -> str:
    """The explanation in program order, below each of the user's lines the tiles that it makes."""
    lines = list(_heading(explanation))
    for place, entries in groupby(_in_order(explanation), key=lambda entry: _place(entry.location)):
        lines += ["", place] if place else [""]
        for entry in entries:
            lines += _tile(entry) if isinstance(entry, TileExplanation) else _product(entry)
    if explanation.uniform:
        lines += ["", "made or read where they are used, without a layout:"]
        lines += _wrapped("; ".join(explanation.uniform), "  ")
    for overflow in explanation.overflows:
        lines += ["", *_wrapped(f"too full: {overflow}", "  ")]
    if not explanation.has_alternatives:
        lines += ["", "Next best layouts of so many tiles are not looked for: ask for those of one."]
    return "\n".join(lines)


def _heading(explanation: KernelExplanation) -> Iterator[str]:
    whole = f"{time_text(explanation.seconds)} for one point of the grid"
    yield f"layouts of `{explanation.kernel}` on {explanation.machine}: {whole}"
    parts = (
        f"matmuls {time_text(explanation.products_seconds)}",
        f"arithmetic {time_text(explanation.computing_seconds)}",
        f"transfers {time_text(explanation.transfers_seconds)}",
        f"relayouts {time_text(explanation.relayouts_seconds)}",
    )
    yield f"  {', '.join(parts)}; variables {explanation.variables}, nodes of the search {explanation.nodes}"
    costs = [(_seconds(entry), entry) for entry in (*explanation.products, *explanation.tiles)]
    costly = sorted((pair for pair in costs if pair[0]), key=lambda pair: -pair[0])[:_COSTLIEST]
    if len(costly) > 1:
        listed = ", ".join(f"{_called(entry)} {time_text(seconds)}" for seconds, entry in costly)
        yield from _wrapped(f"most of it: {listed}", "  ")


def _in_order(explanation: KernelExplanation) -> list[Entry]:
    """Tiles in the order of the program, a matmul before its result."""
    product_of = {product.label: product for product in explanation.products}
    entries: list[Entry] = []
    for each in explanation.tiles:
        product = product_of.pop(_name(each), None)
        entries += [each] if product is None else [product, each]
    return [*product_of.values(), *entries]


def _name(entry: TileExplanation) -> str:
    return entry.label if entry.name is None else f"{entry.label} {entry.name}"


def _called(entry: Entry) -> str:
    return _name(entry) if isinstance(entry, TileExplanation) else f"matmul {entry.label}"


def _seconds(entry: Entry) -> float:
    if isinstance(entry, TileExplanation):
        return entry.seconds
    return entry.seconds * entry.trips + sum(edge.seconds for edge in entry.operands)


def _place(location: SourceLocation | None) -> str:
    if location is None:
        return ""
    return f"{PurePath(location.file).name}:{location.line}  {source_line(location)}".rstrip()[:_WIDTH]


def _tile(entry: TileExplanation) -> Iterator[str]:
    yield _title(f"{_name(entry)} = {entry.made_by}: {entry.dtype}", entry.seconds)
    yield from _field("layout", str(entry.layout))
    if entry.layout_name is not None:
        yield from _field("called", entry.layout_name)
    yield from _field("why", entry.reason.text + _line_of(entry.reason.location, entry.location))
    if entry.computing_seconds:
        yield from _field("takes", time_text(entry.computing_seconds))
    for edge in entry.incoming:
        yield from _field("moved", f"from {edge.source}: {_movements(edge)}")
    for edge in entry.transfers:
        yield from _field("moved", f"{edge.source} to {edge.target}: {_movements(edge)}")
    if entry.alternative is not None:
        yield from _field("or", _alternative(entry.alternative))


def _product(entry: ProductExplanation) -> Iterator[str]:
    yield _title(f"matmul {entry.label} by `{entry.atom}`", _seconds(entry))
    yield from _field("takes", _times(entry.seconds, entry.trips))
    for edge in entry.operands:
        yield from _field("moved", f"{edge.source} as {edge.rule}: {_movements(edge)}")
    if entry.alternative is not None:
        yield from _field("or", _alternative(entry.alternative))


def _title(text: str, seconds: float) -> str:
    """The text, and the cost at the right margin."""
    cost = time_text(seconds) if seconds else "free"
    return f"  {text}".ljust(_WIDTH - len(cost) - 1) + " " + cost


def _line_of(location: SourceLocation | None, own: SourceLocation | None) -> str:
    """The line of a reason, if it is not that of the tile."""
    if location is None or (own is not None and own.line == location.line):
        return ""
    return f" ({PurePath(location.file).name}:{location.line})"


def _movements(edge: Edge) -> str:
    return ", then ".join(map(_movement, edge.movements)) or "no data movement"


def _movement(movement: Movement) -> str:
    across = f" between {movement.reach}s" if movement.move not in _LOCAL and movement.reach != "register" else ""
    return f"{movement.move}{across} ({movement.detail}) {_times(movement.seconds, movement.trips)}"


def _times(seconds: float, trips: int) -> str:
    return time_text(seconds) if trips == 1 or not seconds else f"{time_text(seconds)} x {trips}"


def _alternative(other: Alternative) -> str:
    name = f", called {other.name}," if other.name is not None else ""
    if not other.extra_seconds:
        return f"{other.what}{name} at the same cost"
    more = ", ".join(f"{each.what} {time_text(each.seconds)}" for each in other.increases)
    return f"{other.what}{name} for {time_text(other.extra_seconds)} more: {more}"


def _field(label: str, text: str) -> list[str]:
    lines = wrap(text, _WIDTH - len(_INDENT) - _LABEL, break_long_words=False, break_on_hyphens=False)
    names = [label, *[""] * (len(lines) - 1)]
    return [f"{_INDENT}{name:<{_LABEL}}{line}" for name, line in zip(names, lines, strict=True)]


def _wrapped(text: str, indent: str) -> Sequence[str]:
    return wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def time_text(seconds: float) -> str:
    """A time in the unit that suits it, to three digits."""
    for scale, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"
