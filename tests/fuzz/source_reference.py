"""The kernel language in plain NumPy: a stand-in for `tw` by which Python itself runs the source of a kernel.

A tile knows of each lane of each of its axes, and of the axes that it lost, whether it is an element of an array; the
others hold NaN, so that no rule can use what they hold. Branches, loops and names are Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Tensor = np.ndarray[Any, Any]


class Undecided(Exception):
    """A branch depends on something undefined."""


class Tile:
    """Values with the validity of each axis; `whole` is that of axes of size 1 that were dropped."""

    def __init__(self, values: Any, valid: Sequence[Tensor] | None = None, whole: bool = True) -> None:
        values = np.asarray(values, np.float64)
        self.valid = [np.ones(n, bool) for n in values.shape] if valid is None else [np.asarray(v) for v in valid]
        self.whole = bool(whole)
        mask = np.full(values.shape, self.whole)
        for axis, own in enumerate(self.valid):
            mask = mask & own.reshape([-1 if d == axis else 1 for d in range(values.ndim)])
        self.values = np.where(mask, values, np.nan)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __bool__(self) -> bool:
        value = self.values.reshape(-1)
        if value.size != 1 or np.isnan(value[0]):
            raise Undecided
        return bool(value[0])

    def broadcast(self, shape: Sequence[int]) -> Tile:
        lead = len(shape) - len(self.shape)
        valid = [np.ones(n, bool) for n in shape[:lead]]
        valid += [np.broadcast_to(v, (n,)) for v, n in zip(self.valid, shape[lead:], strict=True)]
        return Tile(np.broadcast_to(self.values, tuple(shape)), valid, self.whole)

    def _with(self, other: Any, fn: Callable[..., Any]) -> Tile:
        return elementwise(fn, self, other)

    def __add__(self, other: Any) -> Tile:
        return self._with(other, np.add)

    def __sub__(self, other: Any) -> Tile:
        return self._with(other, np.subtract)

    def __mul__(self, other: Any) -> Tile:
        return self._with(other, np.multiply)

    def __gt__(self, other: Any) -> Tile:
        return self._with(other, lambda a, b: np.where(np.isnan(a + b), np.nan, a > b))

    def __lt__(self, other: Any) -> Tile:
        return self._with(other, lambda a, b: np.where(np.isnan(a + b), np.nan, a < b))

    def __eq__(self, other: object) -> Any:
        return self._with(other, lambda a, b: np.where(np.isnan(a + b), np.nan, a == b))

    __hash__ = None

    def __getitem__(self, index: Any) -> Tile:
        items = list(index) if isinstance(index, tuple) else [index]
        items += [slice(None)] * (len(self.shape) - sum(i is not None for i in items))
        valid: list[Tensor] = []
        whole, axis = self.whole, 0
        for item in items:
            if item is None:
                valid.append(np.ones(1, bool))
                continue
            if isinstance(item, slice):
                valid.append(self.valid[axis][item])
            else:
                whole = whole and bool(self.valid[axis][item])
            axis += 1
        return Tile(self.values[tuple(items)], valid, whole)

    @property
    def T(self) -> Tile:
        return Tile(self.values.T, self.valid[::-1], self.whole)

    def reshape(self, shape: Sequence[int]) -> Tile:
        """Only axes of size 1 come and go."""
        assert [n for n in self.shape if n > 1] == [n for n in shape if n > 1]
        kept = iter(v for v in self.valid if len(v) > 1)
        whole = self.whole and all(v[0] for v in self.valid if len(v) == 1)
        valid = [next(kept) if n > 1 else np.ones(1, bool) for n in shape]
        return Tile(np.reshape(self.values, tuple(shape)), valid, whole)

    def squeeze(self, axis: int) -> Tile:
        return self.reshape([n for d, n in enumerate(self.shape) if d != axis])


def tile_of(value: Any) -> Tile:
    return value if isinstance(value, Tile) else Tile(value)


def elementwise(fn: Callable[..., Any], *operands: Any) -> Tile:
    tiles = [tile_of(o) for o in operands]
    shape = np.broadcast_shapes(*(t.shape for t in tiles))
    spread = [t.broadcast(shape) for t in tiles]
    valid = [np.logical_and.reduce([t.valid[d] for t in spread]) for d in range(len(shape))]
    return Tile(fn(*(t.values for t in spread)), valid, all(t.whole for t in spread))


def reduced(fn: Callable[..., Any], identity: float, x: Tile, axis: int | None, keepdims: bool) -> Tile:
    axes = range(len(x.shape)) if axis is None else [axis % len(x.shape)]
    if not x.shape:
        return x
    counted = np.full(x.shape, x.whole)
    for d in axes:
        counted = counted & x.valid[d].reshape([-1 if a == d else 1 for a in range(len(x.shape))])
    values = fn(np.where(counted, x.values, identity), tuple(axes))
    valid = [v for d, v in enumerate(x.valid) if d not in axes]
    result = Tile(values, valid)
    return (
        result
        if not keepdims
        else Tile(
            np.expand_dims(values, tuple(axes)), [np.ones(1, bool) if d in axes else v for d, v in enumerate(x.valid)]
        )
    )


class Reference:
    """An array of the kernel. Elements outside cannot be read, and are not written."""

    def __init__(self, array: Tensor) -> None:
        self.array = array
        self.shape = array.shape

    def _places(self, index: Any) -> list[Any]:
        items = list(index) if isinstance(index, tuple) else [index]
        places: list[Any] = []
        for axis in range(self.array.ndim):
            item = items[axis] if axis < len(items) else slice(None)
            if isinstance(item, slice):
                start = 0 if item.start is None else item.start
                stop = self.shape[axis] if item.stop is None else item.stop
                places.append(np.arange(start, stop, item.step or 1))
            else:
                places.append(item)
        return places

    def __getitem__(self, index: Any) -> Tile:
        if isinstance(index, tuple) and not index:
            return Tile(self.array)
        places = self._places(index)
        if any(isinstance(p, Tile) for p in places):
            (lanes,) = (p.values.astype(int) for p in places)
            inside = (lanes >= 0) & (lanes < self.shape[0])
            return Tile(np.where(inside, self.array[np.clip(lanes, 0, self.shape[0] - 1)], 0))
        grids = np.ix_(*(np.atleast_1d(p) for p in places))
        inside = [(np.atleast_1d(p) >= 0) & (np.atleast_1d(p) < n) for p, n in zip(places, self.shape, strict=True)]
        clipped = tuple(np.clip(g, 0, n - 1) for g, n in zip(grids, self.shape, strict=True))
        tile = Tile(self.array[clipped], inside)
        return tile[tuple(slice(None) if isinstance(p, np.ndarray) else 0 for p in places)]

    def __setitem__(self, index: Any, value: Any) -> None:
        places = [np.atleast_1d(p) for p in self._places(index)]
        shape = [len(p) for p, q in zip(places, self._places(index), strict=True) if isinstance(q, np.ndarray)]
        values = tile_of(value).broadcast(shape).values.reshape([len(p) for p in places])
        for at in np.ndindex(*values.shape):
            where = tuple(int(p[n]) for p, n in zip(places, at, strict=True))
            if all(0 <= n < size for n, size in zip(where, self.shape, strict=True)):
                self.array[where] = values[at]


class _Annotation:
    def __class_getitem__(cls, _: Any) -> Any:
        return cls


def _summed(values: Tensor, axes: Any) -> Tensor:
    return np.sum(values, axis=axes)


class Language:
    """The namespace that a kernel reads as `tw`."""

    In = Out = InOut = _Annotation
    f32 = i32 = i64 = None

    @staticmethod
    def kernel(function: Any) -> Any:
        return function

    @staticmethod
    def grid(over: Reference, _: None) -> Iterator[int]:
        return iter(range(over.shape[0]))

    @staticmethod
    def sum(x: Tile, axis: int | None = None, keepdims: bool = False) -> Tile:
        return reduced(_summed, 0, x, axis, keepdims)

    @staticmethod
    def max(x: Tile, axis: int | None = None, keepdims: bool = False) -> Tile:
        return reduced(lambda v, a: np.max(v, axis=a), -np.inf, x, axis, keepdims)

    @staticmethod
    def min(x: Tile, axis: int | None = None, keepdims: bool = False) -> Tile:
        return reduced(lambda v, a: np.min(v, axis=a), np.inf, x, axis, keepdims)

    @staticmethod
    def cumsum(x: Tile, axis: int, reverse: bool = False) -> Tile:
        own = x.valid[axis].reshape([-1 if d == axis else 1 for d in range(len(x.shape))])
        values = np.where(own, x.values, 0)
        flipped = np.flip(np.cumsum(np.flip(values, axis), axis), axis) if reverse else np.cumsum(values, axis)
        return Tile(flipped, x.valid, x.whole)

    @staticmethod
    def sort(x: Tile) -> Tile:
        return Tile(np.sort(x.values, axis=-1), x.valid, x.whole)

    @staticmethod
    def clip(x: Any, low: float, high: float) -> Tile:
        return elementwise(lambda v: np.clip(v, low, high), x)

    @staticmethod
    def maximum(a: Any, b: Any) -> Tile:
        return elementwise(np.maximum, a, b)

    @staticmethod
    def minimum(a: Any, b: Any) -> Tile:
        return elementwise(np.minimum, a, b)

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Tile:
        return elementwise(
            lambda c, x, y: np.where(np.isnan(c + x + y), np.nan, np.where(c > 0, x, y)), condition, a, b
        )

    @staticmethod
    def full(shape: Any, value: float, _: Any = None) -> Tile:
        return Tile(np.full(shape, value))

    @staticmethod
    def arange(n: int) -> Tile:
        return Tile(np.arange(n))

    @staticmethod
    def transpose(x: Tile) -> Tile:
        return x.T

    @staticmethod
    def broadcast_to(x: Tile, shape: Any) -> Tile:
        return x.broadcast(shape)

    @staticmethod
    def expand_dims(x: Tile, axis: int) -> Tile:
        return x[(slice(None),) * axis + (None,)]

    @staticmethod
    def concat(parts: Sequence[Tile], axis: int) -> Tile:
        valid = [v if d != axis else np.concatenate([p.valid[d] for p in parts]) for d, v in enumerate(parts[0].valid)]
        return Tile(np.concatenate([p.values for p in parts], axis), valid, parts[0].whole)

    @staticmethod
    def load(array: Reference, index: Any, fill: float = 0) -> Tile:
        values = array[index].values
        return Tile(np.where(np.isnan(values), fill, values))

    @staticmethod
    def dot(a: Tile, b: Tile, acc: Tile | None = None) -> Tile:
        depth = a.valid[1] & b.valid[0] & a.whole & b.whole
        left, right = np.where(depth[None], a.values, 0), np.where(depth[:, None], b.values, 0)
        # What is outside along a row or a column stays outside.
        values = np.einsum("mk,kn->mkn", left, right).sum(1)
        result = Tile(values, [a.valid[0], b.valid[1]])
        return result if acc is None else elementwise(np.add, result, acc)
