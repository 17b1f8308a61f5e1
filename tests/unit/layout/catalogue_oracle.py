"""Ways of writing down a fragment that do not use layouts, and the comparison of a layout with what they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
from layout_oracle import coordinate_arrays

from tilewright.layout import Layout

Index: TypeAlias = tuple[int, ...]
Held: TypeAlias = dict[Index, Index]


def held(layout: Layout, axes: Sequence[str]) -> Held:
    """From each place (coordinates on `axes`) to the element there, by enumeration; no two elements share a place."""
    arrays = coordinate_arrays(layout)
    assert set(arrays) <= set(axes) | {"_"}
    table: Held = {}
    for index in np.ndindex(*layout.static_shape):
        counts = {len(values[index]) for axis, values in arrays.items() if axis != "_"} or {1}
        for copy in range(counts.pop()):
            place = tuple(int(arrays[axis][index][copy]) if axis in arrays else 0 for axis in axes)
            assert table.setdefault(place, index) == index
    return table


def check_fragment(layout: Layout, element: Callable[..., Index], **extents: int) -> None:
    """`element(axis=coordinate, ...)` names what each place holds; the layout fills all places and no others."""
    axes = tuple(extents)
    expected = {place: element(**dict(zip(axes, place, strict=True))) for place in np.ndindex(*extents.values())}
    assert held(layout, axes) == expected


@dataclass(frozen=True)
class Copies:
    """A digit of the thread number over which data repeats."""

    count: int


@dataclass(frozen=True)
class Tiling:
    """A fragment as nested tiles: which of the tiled dims, counted from the end, are the warp, the lane, the vector.

    Each tile splits the last dims in two and appends its own sizes; the rest of the dims number registers.
    """

    tiles: tuple[Index, ...]
    warp: tuple[int | Copies, ...]
    lane: tuple[int | Copies, ...]
    vector: int = -1

    def elements(self, shape: Sequence[int]) -> np.ndarray:
        """Flat element numbers, shape (warps, lanes, registers, vector)."""
        array = np.arange(prod(shape)).reshape(shape)
        for tile in self.tiles:
            array = _tiled(array, tile)
        rank = array.ndim
        dims: list[int] = []
        for part in (*self.warp, *self.lane):
            if isinstance(part, Copies):
                array = np.broadcast_to(array[..., None], (*array.shape, part.count))
                dims.append(array.ndim - 1)
            else:
                dims.append(rank + part)
        rest = [dim for dim in range(array.ndim) if dim not in dims and dim != rank + self.vector]
        array = array.transpose(*dims, *rest, rank + self.vector)
        warps = prod(array.shape[: len(self.warp)])
        lanes = prod(array.shape[len(self.warp) : len(dims)])
        return array.reshape(warps, lanes, -1, array.shape[-1])

    def held(self, shape: Sequence[int]) -> Held:
        """From (warp, lane, reg) to the element."""
        numbers = self.elements(shape)
        flat = numbers.reshape(*numbers.shape[:2], -1)
        return {place: _index(flat[place], shape) for place in np.ndindex(*flat.shape)}


def _tiled(array: np.ndarray, tile: Index) -> np.ndarray:
    lead = array.ndim - len(tile)
    split = [*array.shape[:lead]]
    for size, step in zip(array.shape[lead:], tile, strict=True):
        split += [size // step, step]
    outer = [lead + 2 * k for k in range(len(tile))]
    inner = [lead + 2 * k + 1 for k in range(len(tile))]
    return array.reshape(split).transpose(*range(lead), *outer, *inner)


def _index(number: int, shape: Sequence[int]) -> Index:
    return tuple(int(at) for at in np.unravel_index(int(number), tuple(shape)))


@dataclass(frozen=True)
class Lanes:
    """An operand of one instruction as counts per dim: outer x threads x elements, and the threads' lane strides."""

    outer: Index
    threads: Index
    strides: Index
    elements: Index

    def held(self) -> Held:
        """From (lane, reg) to the element; the lanes' copies are not repeated."""
        table: Held = {}
        for outer in np.ndindex(*self.outer):
            for thread in np.ndindex(*self.threads):
                for element in np.ndindex(*self.elements):
                    lane = sum(at * step for at, step in zip(thread, self.strides, strict=True))
                    reg = np.ravel_multi_index((*outer, *element), (*self.outer, *self.elements))
                    parts = zip(outer, self.threads, thread, self.elements, element, strict=True)
                    table[lane, int(reg)] = tuple((o * t + at) * e + i for o, t, at, e, i in parts)
        return table


def check_buffer(layout: Layout, array: np.ndarray, buffers: Mapping[Index, np.ndarray], *axes: str) -> None:
    """Element `array[index]` is at `mem` in the buffer that the coordinates on `axes` name."""
    assert layout.shape == array.shape
    for index in np.ndindex(*array.shape):
        found = layout.coordinates(index)
        holder = tuple(found.get(axis, 0) for axis in axes)
        assert buffers[holder][found.get("mem", 0)] == array[index]


def numbered(shape: Sequence[int]) -> np.ndarray:
    """1, 2, 3, ... in row-major order: 0 is left for padding."""
    return np.arange(1, prod(shape) + 1).reshape(shape)


def padded(array: np.ndarray, multiples: Sequence[int]) -> np.ndarray:
    """The array with zeros up to whole multiples."""
    return np.pad(array, [(0, -size % step) for size, step in zip(array.shape, multiples, strict=True)])
