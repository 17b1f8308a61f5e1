"""The memory that the warps of a block share, byte by byte, and who did what to each since the last barrier.

It is pessimistic: what a copy brings is there when a wait covers it and no sooner, and a byte that one warp writes and
another one touches needs a barrier between. Buffers whose places are planned overlap as their places do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.dialects import scheduled, tile
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.layout import Layout
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.dims import static
from tilewright.layout.iters import fuse_digits, weighted

Tensor = np.ndarray[Any, Any]
# Buffers without a place get one each, beyond all that are planned.
_UNPLANNED = 1 << 18
# Which warps hold what is not said: all of them read, and one that is no other writes.
EVERY_WARP, SOME_WARP = np.uint64((1 << 64) - 1), np.uint64(1 << 63)


class RaceError(CompilerBug):
    """Warps, or a copy and a warp, get in each other's way."""


@dataclass(frozen=True)
class Buffer:
    """A tile of a buffer: how far its elements are from the start of the block's memory, in bytes."""

    places: Tensor
    dtype: DType


@dataclass(frozen=True)
class Ring:
    """The tiles of a buffer with stages."""

    first: Buffer
    stages: int
    stage_bytes: int

    def stage(self, number: int) -> Buffer:
        if not 0 <= number < self.stages:
            raise CompilerBug(f"there is no stage {number} of {self.stages}")
        return Buffer(self.first.places + number * self.stage_bytes, self.first.dtype)


@dataclass(frozen=True)
class _Copy:
    """A copy under way: the places of its elements, their bytes, the warps that wait for them, and its name."""

    places: Tensor
    data: Tensor
    warps: Tensor
    name: str


class BlockMemory:
    """Bytes, the warps that wrote and read each since the last barrier, and the copies that will write it."""

    def __init__(self) -> None:
        self._starts: dict[scheduled.AllocOp, int] = {}
        self._end = _UNPLANNED
        self._data = np.zeros(0, np.uint8)
        self._writers = np.zeros(0, np.uint64)
        self._readers = np.zeros(0, np.uint64)
        self._arriving = np.zeros(0, np.int32)
        self._begun: list[str] = []
        self._open: list[_Copy] = []
        self._groups: list[list[_Copy]] = []

    def buffer(self, op: scheduled.AllocOp) -> Buffer | Ring:
        """The buffer of an allocation, filled with poison."""
        type = tile.ref_type(op.result)
        start = self._start(op)
        self._grow(start + op.bytes)
        first = Buffer(start + places_in(type.layout.data, type.shape) * type.dtype.itemsize, type.dtype)
        for number in range(op.count):
            self._put(first.places + number * op.stage_bytes, np.full(type.shape, _poison(type.dtype)))
        return first if op.stages is None else Ring(first, op.count, op.stage_bytes)

    def _start(self, op: scheduled.AllocOp) -> int:
        if op.offset_bytes is not None:
            return int(op.offset_bytes.value.data)
        if op not in self._starts:
            self._starts[op] = self._end
            self._end += op.bytes
        return self._starts[op]

    def _grow(self, size: int) -> None:
        more = size - self._data.size
        if more > 0:
            self._data = np.pad(self._data, (0, more))
            self._writers = np.pad(self._writers, (0, more))
            self._readers = np.pad(self._readers, (0, more))
            self._arriving = np.pad(self._arriving, (0, more))

    # ---- accesses ---------------------------------------------------------------------------------------------------

    def load(self, buffer: Buffer, at: tuple[Tensor, ...], warps: Tensor, who: str) -> Tensor:
        """The elements at some coordinates, each read by `warps` (a bit for each)."""
        places = buffer.places[at]
        touched, masks = _bytes(places, buffer.dtype, warps)
        self._check_arriving(touched, f"{who} reads")
        writers = self._writers[touched]
        self._check((writers != 0) & (writers != masks), f"{who} reads what another warp wrote since the last barrier")
        np.bitwise_or.at(self._readers, touched.reshape(-1), masks.reshape(-1))
        return np.ascontiguousarray(self._data[touched]).view(buffer.dtype.numpy).reshape(places.shape)

    def store(self, buffer: Buffer, at: tuple[Tensor, ...], values: Tensor, warps: Tensor, who: str) -> None:
        """Write elements at some coordinates, each by one warp."""
        touched = self._note_write(buffer.places[at], buffer.dtype, warps, who)
        self._data[touched] = _raw(values, buffer.dtype).reshape(touched.shape)

    def _note_write(self, places: Tensor, dtype: DType, warps: Tensor, who: str) -> Tensor:
        touched, masks = self._written(places, dtype, warps, who)
        self._writers[touched] |= masks
        return touched

    def _written(self, places: Tensor, dtype: DType, warps: Tensor, who: str) -> tuple[Tensor, Tensor]:
        """The bytes of elements that `warps` write, now or later, and for each the warp."""
        touched, masks = _bytes(places, dtype, warps)
        self._check_arriving(touched, f"{who} writes")
        for others, did in ((self._readers[touched], "read"), (self._writers[touched], "wrote")):
            self._check((others & ~masks) != 0, f"{who} writes what another warp {did} since the last barrier")
        return touched, masks

    def _check_arriving(self, touched: Tensor, who: str) -> None:
        arriving = self._arriving[touched]
        if arriving.any():
            raise RaceError(f"{who} where {self._begun[int(arriving.max()) - 1]} has not arrived")

    def _check(self, wrong: Tensor, message: str) -> None:
        if wrong.any():
            raise RaceError(message)

    def barrier(self) -> None:
        """All warps have finished what they did before."""
        self._writers.fill(0)
        self._readers.fill(0)

    # ---- copies -----------------------------------------------------------------------------------------------------

    def copy(self, buffer: Buffer, values: Tensor, warps: Tensor, who: str) -> None:
        """`values` are on their way to all of a buffer."""
        touched, masks = self._written(buffer.places, buffer.dtype, warps, who)
        self._put(buffer.places, np.full(values.shape, _poison(buffer.dtype)))
        self._begun.append(who)
        self._arriving[touched] = len(self._begun)
        self._open.append(_Copy(touched, _raw(values, buffer.dtype).reshape(touched.shape), masks, who))

    def commit(self) -> None:
        """The copies since the last commit are a group."""
        self._groups.append(self._open)
        self._open = []

    def wait(self, pending: int) -> None:
        """All groups but the newest `pending` arrive."""
        while len(self._groups) > pending:
            for copy in self._groups.pop(0):
                self._arriving[copy.places] = 0
                self._writers[copy.places] |= copy.warps
                self._data[copy.places] = copy.data

    def end(self) -> None:
        """The block ends.

        Raises:
            RaceError: a copy is still under way.
        """
        left = [*self._open, *(copy for group in self._groups for copy in group)]
        if left:
            raise RaceError(f"nothing waits for {left[0].name}")

    def _put(self, places: Tensor, values: Tensor) -> None:
        raw = np.ascontiguousarray(values)
        touched = places[..., None] + np.arange(raw.itemsize)
        self._data[touched] = raw.view(np.uint8).reshape(touched.shape)

    # ---- several paths ----------------------------------------------------------------------------------------------

    def state(self) -> tuple[Tensor, Tensor]:
        """Who wrote and read each byte since the last barrier."""
        return self._writers.copy(), self._readers.copy()

    def restore(self, *states: tuple[Tensor, Tensor]) -> None:
        """Warps did since the last barrier what they did in any of some states."""
        self.barrier()
        for writers, readers in states:
            self._writers[: writers.size] |= writers
            self._readers[: readers.size] |= readers


def _bytes(places: Tensor, dtype: DType, warps: Tensor) -> tuple[Tensor, Tensor]:
    """The bytes of elements, and for each of them the warps of its element."""
    touched = places[..., None] + np.arange(dtype.itemsize)
    return touched, np.broadcast_to(np.asarray(warps, np.uint64)[..., None], touched.shape)


def _raw(values: Tensor, dtype: DType) -> Tensor:
    return np.ascontiguousarray(values.astype(dtype.numpy, copy=False)).view(np.uint8)


def _poison(dtype: DType) -> Any:
    return np.asarray(float("nan") if dtype.is_float else dtype.highest).astype(dtype.numpy)


@lru_cache(maxsize=256)
def places_in(layout: str, shape: tuple[int, ...]) -> Tensor:
    """How many elements into a buffer each element of a tile is; without a layout, row after row."""
    if not layout:
        return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    parsed = Layout.parse(layout)
    axis = next((axis for axis in parsed.axes if kind_of(axis) == Kind.MEMORY), "mem")
    total = _coordinate(parsed, axis, shape) + static(parsed.offset_on(axis))
    for term in parsed.swizzle_on(axis):
        total = total ^ (((total >> term.source) & ((1 << term.bits) - 1)) << term.target)
    return total


@lru_cache(maxsize=256)
def warps_of(layout: str, shape: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    """For each element of a tile the warps of `count` that hold it, a bit for each, and the one that stores it."""
    if not layout:
        return np.full(shape, EVERY_WARP), np.full(shape, SOME_WARP)
    parsed = Layout.parse(layout)
    first = _coordinate(parsed, "warp", shape)
    slots = [
        (d.stride, static(d.extent)) for own in parsed.shard for _, d in weighted(fuse_digits(own)) if d.axis == "warp"
    ]
    holders = np.zeros(shape, np.uint64)
    for warp in range(count):
        held = sum(warp // stride % extent * stride for stride, extent in slots if stride)
        holders |= (first == held).astype(np.uint64) << np.uint64(warp)
    return holders, np.uint64(1) << first.astype(np.uint64)


def _coordinate(layout: Layout, axis: str, shape: tuple[int, ...]) -> Tensor:
    """The coordinate of each element on an axis, without offset and XOR terms."""
    grids = np.indices(shape, np.int64)
    total = np.zeros(shape, np.int64)
    for term in layout.linear_terms(axis):
        part = grids[term.dim] // term.divisor
        total += (part if term.modulus is None else part % term.modulus) * term.stride
    return total
