"""Arrays of a program as its cores see them: who wrote and read which page, and what was written at all."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.ir import Operation

from tilewright.dialects.cores import page_grid
from tilewright.layout.catalogue.device_tiles import FACE, TILE
from tilewright.semantics.cores.agents import Agent, Stamp
from tilewright.semantics.cores.device_array import DeviceArray
from tilewright.semantics.cores.holders import Holders
from tilewright.semantics.cores.reports import hazard, place
from tilewright.semantics.cores.tile_formats import Array
from tilewright.semantics.hazards import CoreHazard

_ELEMENTS = TILE * TILE
# What was done with which elements of a page.
_Uses = dict[int, list[tuple[Stamp, Array]]]


class ArrayMemory:
    """`grid`: how many pages there are along each coordinate. Readers of an array that a program only reads are not
    recorded. With `is_once`, no element may be written twice; with `is_whole`, each has to be written."""

    def __init__(
        self,
        array: DeviceArray,
        holders: Holders,
        name: str,
        is_once: bool,
        is_whole: bool,
        is_written: bool,
        checks: bool,
    ) -> None:
        self.array = array
        self.holders = holders
        self.name = name
        self.grid = page_grid(array.shape)
        self.pages = prod(self.grid)
        self.is_checked = checks and is_written
        self._is_once, self._is_whole = is_once, is_whole
        self._counts = np.zeros(self.pages if checks else 0, np.int32)
        self._written: dict[int, Array] = {}
        self._writers: dict[int, Stamp] = {}
        self._readers: dict[int, dict[int, Stamp]] = {}
        self._scattered: _Uses = {}
        self._gathered: _Uses = {}

    # ---- pages ------------------------------------------------------------------------------------------------------

    def note_reads(self, agent: Agent, pages: Sequence[int], stamp: Stamp) -> None:
        for page in pages:
            writer = self._writers.get(page)
            if writer is not None and not agent.knows(writer):
                raise self._race(agent, stamp.op, page, "read", writer, "writes")
            self._keep_in_order(agent, page, None, stamp, self._scattered, "read", "writes")
            self._readers.setdefault(page, {})[stamp.column] = stamp

    def note_writes(self, agent: Agent, pages: Sequence[int], stamp: Stamp) -> None:
        """Whole pages are written."""
        for page in pages:
            self._note_write(agent, page, stamp, self._writers.get(page))
            if self._is_once and (self._counts[page] or page in self._written):
                raise self._twice(agent, stamp.op, page)
            self._counts[page] = 1

    def _note_write(self, agent: Agent, page: int, stamp: Stamp, writer: Stamp | None) -> None:
        if writer is not None and not agent.knows(writer):
            raise self._race(agent, stamp.op, page, "written", writer, "writes")
        readers = self._readers.get(page)
        if readers:
            for reader in readers.values():
                if not agent.knows(reader):
                    raise self._race(agent, stamp.op, page, "written", reader, "reads")
            readers.clear()
        for uses, does in ((self._scattered, "writes"), (self._gathered, "reads")):
            self._keep_in_order(agent, page, None, stamp, uses, "written", does)
            uses.pop(page, None)
        self._writers[page] = stamp

    # ---- elements ---------------------------------------------------------------------------------------------------

    def note_element_reads(self, agent: Agent, pages: Array, elements: Array, stamp: Stamp) -> None:
        """Elements of pages, counted face by face, are read."""
        for page in np.unique(pages).tolist():
            own = elements[pages == page]
            writer = self._writers.get(page)
            if writer is not None and not agent.knows(writer):
                raise self._race(agent, stamp.op, page, "read", writer, "writes")
            self._keep_in_order(agent, page, own, stamp, self._scattered, "read", "writes")
            self._gathered.setdefault(page, []).append((stamp, own))

    def note_element_writes(self, agent: Agent, pages: Array, elements: Array, stamp: Stamp) -> None:
        """Elements of pages, counted face by face, are written: others may write other elements at the same time."""
        for page in np.unique(pages).tolist():
            own = elements[pages == page]
            for other in (self._writers.get(page), *self._readers.get(page, {}).values()):
                if other is not None and not agent.knows(other):
                    raise self._race(agent, stamp.op, page, "written", other, "uses")
            self._keep_in_order(agent, page, own, stamp, self._gathered, "written", "reads")
            self._keep_in_order(agent, page, own, stamp, self._scattered, "written", "writes")
            written = self._written.setdefault(page, np.zeros(_ELEMENTS, bool))
            is_again = written[own].any() or self._counts[page] or np.unique(own).size < own.size
            if self._is_once and is_again:
                raise self._twice(agent, stamp.op, page)
            written[own] = True
            self._scattered.setdefault(page, []).append((stamp, own))

    def _keep_in_order(
        self, agent: Agent, page: int, elements: Array | None, stamp: Stamp, uses: _Uses, what: str, does: str
    ) -> None:
        """Check that the thread knows the accesses of others to some elements of a page, or to all of them; that is not
        looked at again once all of the page is written."""
        for other, theirs in uses.get(page, ()):
            shared = elements is None or bool(np.isin(elements, theirs).any())
            if shared and not agent.knows(other):
                raise self._race(agent, stamp.op, page, what, other, does)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def check_written(self) -> None:
        """All elements of an array that is only written were."""
        if not self._is_whole or not self._counts.size:
            return
        for page in np.flatnonzero(self._counts == 0).tolist():
            inside = self.inside(page)
            written = self._written.get(page)
            left = inside if written is None else inside & ~written
            if left.any():
                coordinates = tuple(int(c) for c in np.unravel_index(page, self.grid))
                raise CoreHazard(
                    "element-never-written",
                    f"[element-never-written] {int(left.sum())} elements of page {coordinates} of array {self.name} "
                    "were not written",
                )

    def inside(self, page: int) -> Array:
        """Which elements of a page, face by face, are some of the array."""
        rows, columns = (*(1,) * (2 - len(self.array.shape)), *self.array.shape)[-2:]
        *_, row, column = (int(c) for c in np.unravel_index(page, self.grid))
        face_row, face_column, r, c = np.indices((2, 2, FACE, FACE))
        inside = (row * TILE + face_row * FACE + r < rows) & (column * TILE + face_column * FACE + c < columns)
        return inside.reshape(-1)

    # ---- what is wrong ----------------------------------------------------------------------------------------------

    def _race(self, agent: Agent, op: Operation, page: int, what: str, other: Stamp, does: str) -> CoreHazard:
        return hazard(
            "array-race",
            f"page {page} of array {self.name} is {what} while {place(other.agent, other.op, ())} {does} it",
            agent,
            op,
        )

    def _twice(self, agent: Agent, op: Operation, page: int) -> CoreHazard:
        return hazard(
            "element-written-twice", f"elements of page {page} of array {self.name} are written again", agent, op
        )
