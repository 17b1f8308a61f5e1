"""Views of NumPy arrays as programs read them: the memory around them, and how they are taken from it.

A transposed array is a permutation of contiguous memory; what slices with steps, reversed axes and repeated elements
give is a part of the memory of another array. A program that takes the memory and views it itself reads each element
once, where its kernels use it, instead of a copy that is made before the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilewright.api.array import Array
from tilewright.api.functions_manipulation import broadcast_to, expand_dims, flip, permute_dims
from tilewright.runtime.cpu.native import MISMATCH, data_address
from tilewright.runtime.dlpack import Tensor

# Arrays below this are copied: a program for each part of an array is worth more than a copy then.
_LEAST_BYTES = 1 << 14
# How many rows of the memory a step of the outermost dim may have.
_MOST_STEPS = 8


Taken = tuple[int, int, int]


class View(NamedTuple):
    """An array as a part of contiguous memory of another shape.

    `taken` are the slices of the memory, `order` its dims in the order of the array's axes, `missing` the axes that it
    lacks, along which the elements of an array of `shape` repeat, `reverse` those that run backwards.
    """

    memory: tuple[int, ...]
    taken: tuple[Taken, ...]
    order: tuple[int, ...]
    missing: tuple[int, ...]
    reverse: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, memory: Array) -> Array:
        """The array, in a traced function."""
        if not self._takes_all():
            memory = memory[tuple(slice(*each) for each in self.taken)]
        array = permute_dims(memory, self.order)
        if self.missing:
            array = expand_dims(array, axis=self.missing)
        if self.reverse:
            array = flip(array, axis=self.reverse)
        return broadcast_to(array, self.shape) if self.missing else array

    @property
    def is_permutation(self) -> bool:
        """Whether the array is all of the memory."""
        return not self.reverse and not self.missing and self._takes_all()

    def _takes_all(self) -> bool:
        return all(each == (0, size, 1) for each, size in zip(self.taken, self.memory, strict=True))


def view_of(array: Tensor) -> tuple[View, Tensor] | None:
    """How an array that is not contiguous is taken from memory, and that; None where a copy is as good, or where the
    memory is not known to belong to arrays."""
    view = _permutation(array.shape, array.strides, array.itemsize)
    if view is not None and array.flags.aligned:
        return view, array.transpose(_ascending(view.order))
    if array.nbytes < _LEAST_BYTES or not array.flags.aligned:
        return None
    return _part(array)


# Reads the memory of an array like one before; None where the array is another view.
Reread = Callable[[Tensor], Tensor | None]


def reading_again(function: Callable[..., object], arrays: Sequence[Tensor]) -> Callable[..., object]:
    """A native function as one of arrays that are views as these are: the same elements of memory like theirs. Gives
    `MISMATCH` for others. Finding out what a view is takes longer than a short program does."""
    reads = [None if array.flags.c_contiguous else _again(array) for array in arrays]

    def viewed(*args: Tensor) -> object:
        arrays: list[Tensor] = []
        for read, array in zip(reads, args, strict=True):
            memory = array if read is None else read(array)
            if memory is None:
                return MISMATCH
            arrays.append(memory)
        return function(*arrays)

    return viewed


def _again(example: Tensor) -> Reread:
    found, form = view_of(example), (example.strides, example.shape, example.dtype)
    if found is None:
        return lambda array: np.ascontiguousarray(array) if _is_like(array, form) else None
    view, memory = found
    if view.is_permutation:
        axes = _ascending(view.order)
        return lambda array: array.transpose(axes) if _is_like(array, form) else None
    shape, nbytes, before = memory.shape, memory.nbytes, data_address(example) - data_address(memory)

    def read(array: Tensor) -> Tensor | None:
        owner: object = array.base if _is_like(array, form) else None
        if type(owner) is not np.ndarray or not owner.flags.c_contiguous:
            return None
        start = data_address(array) - data_address(owner) - before
        return np.ndarray(shape, array.dtype, owner, start) if 0 <= start <= owner.nbytes - nbytes else None

    return read


def _is_like(array: Tensor, form: tuple[tuple[int, ...], tuple[int, ...], object]) -> bool:
    return type(array) is np.ndarray and (array.strides, array.shape, array.dtype) == form


@lru_cache(4096)
def _permutation(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> View | None:
    """How an array of these strides is a permutation of contiguous memory, if it is."""
    order = tuple(sorted(range(len(shape)), key=lambda axis: -strides[axis]))
    memory = tuple([shape[axis] for axis in order])
    step = itemsize
    for axis in reversed(order):
        if shape[axis] != 1 and strides[axis] != step:
            return None
        step *= shape[axis]
    taken = tuple([(0, size, 1) for size in memory])
    return View(memory, taken, _ascending(order), (), (), shape)


def _ascending(axes: Sequence[int]) -> tuple[int, ...]:
    """The positions of axes in ascending order of these."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def _part(array: Tensor) -> tuple[View, Tensor] | None:
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not owner.flags.c_contiguous:
        owner = owner.T
        if not owner.flags.c_contiguous:
            return None
    found = _taken(array.shape, array.strides, array.itemsize, data_address(array) - data_address(owner), owner.nbytes)
    if found is None:
        return None
    view, start = found
    return view, np.ndarray(view.memory, array.dtype, owner, start)


@lru_cache(4096)
def _taken(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, offset: int, nbytes: int
) -> tuple[View, int] | None:
    """How an array whose first element is `offset` bytes from the start of `nbytes` of memory is taken from it, and
    where that part of the memory begins."""
    lowest = offset + sum(stride * (n - 1) for stride, n in zip(strides, shape, strict=True) if stride < 0)
    if lowest % itemsize or any(stride % itemsize for stride in strides):
        return None
    steps = [abs(stride) // itemsize for stride in strides]
    axes = sorted((n for n, size in enumerate(shape) if size > 1 and steps[n]), key=lambda n: -steps[n])
    for rows in range(1, _MOST_STEPS + 1):
        found = _slices([steps[n] for n in axes], [shape[n] for n in axes], lowest // itemsize, rows)
        if found is None:
            continue
        start, memory, taken = found
        if (start + math.prod(memory)) * itemsize <= nbytes:
            missing = tuple(n for n in range(len(shape)) if n not in axes)
            reverse = tuple(n for n in sorted(axes) if strides[n] < 0)
            return View(memory, taken, _ascending(axes), missing, reverse, shape), start * itemsize
    return None


def _slices(
    steps: Sequence[int], sizes: Sequence[int], offset: int, rows: int
) -> tuple[int, tuple[int, ...], tuple[Taken, ...]] | None:
    """The first element, the shape and the slices of memory whose dims, from the outermost, step over `steps` elements;
    a row of the array is `rows` rows of the memory. None where dims overlap."""
    if not steps:
        return offset, (), ()
    units = [*steps[:-1], 1]
    if len(steps) > 1:
        units[0], rest = divmod(units[0], rows)
        if rest:
            return None
    elif rows > 1:
        return None
    start = offset - offset % units[0]
    inner = offset - start
    shape: list[int] = []
    taken: list[Taken] = []
    for n, (step, unit, size) in enumerate(zip(steps, units, sizes, strict=True)):
        first, inner = divmod(inner, unit)
        limit = first + (size - 1) * (step // unit) + 1
        extent, rest = divmod(units[n - 1], unit) if n else (limit, 0)
        if rest or limit > extent:
            return None
        shape.append(extent)
        taken.append((first, limit, step // unit))
    return start, tuple(shape), tuple(taken)
