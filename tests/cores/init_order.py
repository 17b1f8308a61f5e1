"""Checks the order of the vendor's init calls in printed compute kernels, as its headers and device asserts demand.

From the headers of ttnn 0.81 (`api/compute/{reduce,tilize,pack_untilize,reconfig_data_format}.h` and the `llk` below
them): reconfiguring pack asserts that the mask of a reduction is clear; it resets the strides that pack has for rows
that become tiles; preparing pack for rows remaps the tile registers, which must not hold anything yet; a reduction is
taken back before the matrix unit does something else, and at the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

_STARTS_RECONFIGURE = ("pack_reconfig_data_format(", "pack_untilize_dest_init<", "pack_untilize_uninit(")
_FILLS = ("copy_tile(", "transpose_tile(", "unary_bcast<", "matmul_block(", "reduce_tile<", "tilize_rows(")
_FILLS += ("add_tiles", "sub_tiles", "mul_tiles")
_INITS = re.compile(r"(copy|transpose|matmul_block|add|sub|mul)(_bcast_\w+)?_init\(|unary_bcast_init<")


@dataclass(frozen=True)
class _Units:
    """`masks`: pack masks for a reduction; `tilizes`: it goes through rows that become tiles; `fills`: registers were
    acquired and filled, and not committed."""

    masks: bool = False
    tilizes: bool = False
    by_rows: bool = False
    fills: bool = False

    def after(self, line: str) -> _Units:
        if line.startswith(_STARTS_RECONFIGURE):
            assert not self.masks, f"pack is reconfigured while it masks for a reduction: {line}"
            assert not self.tilizes, f"pack is reconfigured while it is prepared by tilize_init: {line}"
        if line.startswith("pack_untilize_dest_init<"):
            assert not self.fills, f"tile registers are remapped when they are filled: {line}"
            return replace(self, by_rows=True)
        if line.startswith("pack_untilize_uninit("):
            return replace(self, by_rows=False)
        if line.startswith("pack_untilize_dest<"):
            assert self.by_rows, line
        if line.startswith("pack_tile<"):
            assert not self.by_rows, line
        if line.startswith("reduce_init<"):
            return replace(self, masks=True)
        if line.startswith("reduce_tile<"):
            assert self.masks, f"a reduction whose init was taken back: {line}"
        if line.startswith("tilize_rows("):
            assert self.tilizes, f"rows become tiles after the init was taken back: {line}"
        if line.startswith(("reduce_uninit(", "PACK((llk_pack_reduce_mask_clear")):
            return replace(self, masks=False)
        if line.startswith("tilize_init("):
            return replace(self, tilizes=True)
        if line.startswith("tilize_uninit("):
            return replace(self, tilizes=False)
        if _INITS.match(line):
            is_taken_back = not self.masks and not self.tilizes
            assert is_taken_back, f"the matrix unit is prepared for something else: {line}"
        if line.startswith(("tile_regs_acquire", "tile_regs_release")):
            return replace(self, fills=False)
        return replace(self, fills=True) if line.startswith(_FILLS) else self


def check_init_order(text: str) -> None:
    """Go through a kernel's text, through loops twice and through choices both ways."""
    start = text.index("void kernel_main() {")
    lines = [line.strip() for line in text[start:].splitlines()]
    for units in _through(lines[1 : len(lines) - 1 - lines[::-1].index("}")], {_Units()}):
        assert units == _Units(fills=units.fills), f"units are left prepared: {units}"


def _through(lines: Sequence[str], states: set[_Units]) -> set[_Units]:
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.endswith("{"):
            states = {units.after(line) for units in states}
            at += 1
            continue
        end = _end_of(lines, at)
        body = lines[at + 1 : end]
        if line.startswith("for ("):
            once = _through(body, states)
            states = _through(body, once) | (set() if re.search(r"< \d+; \+\+", line) else states)
        elif line.startswith("if ("):
            other, end = _otherwise(lines, end)
            states = _through(body, states) | _through(other, states)
        else:
            states = _through(body, states)
        at = end + 1
    return states


def _otherwise(lines: Sequence[str], end: int) -> tuple[Sequence[str], int]:
    if lines[end] != "} else {":
        return (), end
    last = _end_of(lines, end)
    return lines[end + 1 : last], last


def _end_of(lines: Sequence[str], start: int) -> int:
    depth = 0
    for at in range(start + 1, len(lines)):
        if lines[at].startswith("}") and depth == 0:
            return at
        depth += lines[at].endswith("{") - lines[at].startswith("}")
    raise AssertionError("a block without an end")
