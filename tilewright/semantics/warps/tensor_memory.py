"""The tensor memory of a block: who did what to each tile there.

A cell is a column of the 32 lanes that one warp of four reaches. It is pessimistic as `block_memory.py` is: what an MMA
gives is there when a thread has waited for a commit after it, and fenced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.dialects import tile
from tilewright.dialects.base import layout_text
from tilewright.dialects.scheduled import tensor_memory
from tilewright.semantics.hazards import HazardError, RaceError
from tilewright.semantics.warps.agents import Agent
from tilewright.semantics.warps.block_memory import coordinates_on, warps_of
from tilewright.semantics.warps.clocks import Clocks

Tensor = np.ndarray[Any, Any]
# Warps that reach all lanes together, and the lanes of each.
_QUARTERS, _LANES = 4, 32


class TensorTile:
    """A tile of a type in some columns of tensor memory. `row`: the warp that asked for it."""

    def __init__(self, type: tile.RefType, columns: int, clocks: Clocks, row: int, name: str) -> None:
        self.columns = columns
        self.values = np.full(type.shape, np.nan if type.dtype.is_float else type.dtype.highest, type.dtype.numpy)
        self.is_freed = False
        self._name = name
        self._clocks = clocks
        self._made = row, int(clocks.now[row])
        axes = tensor_memory.ROW, tensor_memory.COLUMN
        self._places = tuple(coordinates_on(axis, type.layout.data, type.shape) for axis in axes)
        # Of each cell the last writer, a column of the clocks; when it wrote, and when each warp read.
        cells = (_QUARTERS, self.columns)
        self._writer, self._written = np.zeros(cells, np.int16), np.zeros(cells, np.int32)
        self._reads = np.zeros((clocks.warps, *cells), np.int32)
        self._under_way: list[str] = []
        self._multiplied_by = -1  # the warp of the last product

    def multiply(self, row: int, product: Tensor, adds: bool, who: str) -> None:
        """A warp begins an MMA."""
        self._check_there([row], who)
        if self._multiplied_by != row:  # those of one thread follow each other
            self._check_done(who)
            self._check_written(row, np.s_[:], who)
        if (self._reads > self._known(row)[: self._clocks.warps, None, None]).any():
            raise RaceError(f"{who} writes what other warps read in {self._name}, with no fence and barrier since")
        self.values = self.values + product if adds else product.copy()
        self._under_way.append(who)
        self._multiplied_by = row

    def finish(self, column: int, clock: int) -> None:
        """The first MMA in flight has been done, in the name of a column of the clocks."""
        self._under_way.pop(0)
        self._writer[...], self._written[...] = column, clock

    def load(self, agent: Agent, op: tensor_memory.TensorLoadOp, who: str) -> Tensor:
        """The warps of a role load the elements that the layout of the result gives them."""
        self._check_there(agent.said_rows, who)
        self._check_done(who)
        for row, cells in self._reached(agent, layout_text(op.result), who):
            self._check_written(row, cells, who)
            self._reads[(row, *cells)] = self._clocks.now[row]
        return self.values.copy()

    def _reached(self, agent: Agent, text: str, who: str) -> Iterator[tuple[int, tuple[int, Tensor]]]:
        """The warps of a role, and the cells of which a layout gives them the elements."""
        shape, (lanes, columns) = self.values.shape, self._places
        holders, _ = warps_of(text, shape, agent.warps)
        if (lanes % _LANES != coordinates_on("lane", text, shape)).any():
            raise HazardError(f"{who} moves elements between lanes")
        for warp, row in enumerate(agent.said_rows):
            mine = (holders >> np.uint64(warp) & np.uint64(1)).astype(bool)
            if (lanes[mine] // _LANES != warp % _QUARTERS).any():
                raise HazardError(f"{who} takes lanes to warp {warp} that it does not reach")
            yield row, (warp % _QUARTERS, np.unique(columns[mine]))

    def put(self, agent: Agent, op: tensor_memory.TensorPutOp, value: Tensor, who: str) -> None:
        """The warps of a role store the elements that the layout of the value gives them."""
        self._check_there(agent.said_rows, who)
        self._check_done(who)
        for row, cells in self._reached(agent, layout_text(op.value), who):
            self._check_written(row, cells, who)
            known = self._known(row)[: self._clocks.warps, None]
            if (self._reads[(slice(None), *cells)] > known).any():
                raise RaceError(f"{who} writes what other warps read in {self._name}, with no fence and barrier since")
            self._writer[cells], self._written[cells] = row, self._clocks.now[row]
        self.values = value.copy()
        self._multiplied_by = -1

    def free(self, row: int, who: str) -> None:
        """A warp gives the columns back."""
        self._check_there([row], who)
        self._check_done(who)
        told = self._clocks.told[row].copy()
        told[row] = self._clocks.now[row]
        late = (self._reads > told[: self._clocks.warps, None, None]).any()
        if late or (self._written > told[self._writer]).any():
            raise RaceError(f"{who} frees {self._name}, which other warps use, with no fence and barrier since")
        self.is_freed = True

    def end(self) -> None:
        """The block ends.

        Raises:
            RaceError: no thread freed the columns.
        """
        if not self.is_freed:
            raise RaceError(f"the columns of {self._name} are not freed")

    # ---- checks -----------------------------------------------------------------------------------------------------

    def _known(self, row: int) -> Tensor:
        known = self._clocks.tensor[row].copy()
        known[row] = self._clocks.now[row]
        return known

    def _check_there(self, rows: list[int], who: str) -> None:
        maker, clock = self._made
        if self.is_freed:
            raise RaceError(f"{who} uses {self._name}, whose columns were freed")
        if any(row != maker and self._clocks.seen[row, maker] < clock for row in rows):
            raise RaceError(f"{who} uses {self._name}, whose columns another warp asked for since the last barrier")

    def _check_done(self, who: str) -> None:
        if self._under_way:
            raise RaceError(f"{who} uses {self._name}, which {self._under_way[0]} still writes")

    def _check_written(self, row: int, cells: Any, who: str) -> None:
        if (self._written[cells] > self._known(row)[self._writer[cells]]).any():
            raise RaceError(f"{who} uses what was written in {self._name}, which was not waited for, or not fenced")


class TensorTiles:
    """Several tiles that a block asked for together: by their number, or of some parts of the columns."""

    def __init__(self, tiles: list[TensorTile], name: str, parts: Sequence[tensor_memory.TensorPartOp] = ()) -> None:
        self._tiles = tiles
        self._name = name
        self._parts = list(parts)

    def part(self, op: tensor_memory.TensorPartOp) -> TensorTile:
        """One of them."""
        return self._tiles[self._parts.index(op)]

    def stage(self, number: int) -> TensorTile:
        """One of them.

        Raises:
            HazardError: there are not so many.
        """
        if not 0 <= number < len(self._tiles):
            raise HazardError(f"tile {number} of {self._name}, which has {len(self._tiles)}")
        return self._tiles[number]

    def free(self, row: int, who: str) -> None:
        """A warp gives back the columns of all."""
        for each in self._tiles:
            each.free(row, who)


class TensorMemory:
    """All tiles of a block."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._tiles: list[TensorTile] = []

    def allocate(self, op: tensor_memory.TensorAllocOp, row: int, who: str) -> TensorTile | TensorTiles:
        """Columns for a tile, or for several.

        Raises:
            HazardError: a block asks twice: two that wait for each other's columns would never end.
        """
        if self._tiles:
            raise HazardError(f"{who} asks for tensor memory, and the block has some")
        name, type = f"`{op.result.name_hint or op.name}`", tile.ref_type(op.result)
        parts = [use.operation for use in op.result.uses if isinstance(use.operation, tensor_memory.TensorPartOp)]
        if parts:
            self._tiles = [self._part(each, row, f"columns {each.columns} of {name}") for each in parts]
            return TensorTiles(self._tiles, name, parts)
        if op.stages is None:
            self._tiles = [TensorTile(type, op.tile_columns, self._clocks, row, name)]
            return self._tiles[0]
        names = (f"tile {number} of {name}" for number in range(op.count))
        self._tiles = [TensorTile(type, op.tile_columns, self._clocks, row, each) for each in names]
        return TensorTiles(self._tiles, name)

    def _part(self, op: tensor_memory.TensorPartOp, row: int, name: str) -> TensorTile:
        return TensorTile(tile.ref_type(op.result), len(op.columns), self._clocks, row, name)

    def end(self) -> None:
        """The block ends."""
        for each in self._tiles:
            each.end()
