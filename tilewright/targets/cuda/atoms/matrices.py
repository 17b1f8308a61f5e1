"""Transfers between shared memory and registers as matrices of 8 lines of 16 bytes: `ldmatrix` for operands of matmuls,
`stmatrix` for results of 16 bits.

PTX ISA, "Warp-level matrix load instruction: ldmatrix" and "stmatrix": lanes 8 j to 8 j + 7 give the addresses of the
lines of matrix j; lane l has of each matrix the two elements of 16 bits at line l / 4, from 2 (l % 4) on, or with
`.trans` those of column l / 4. Four elements of 8 bits along the depth, or one of 32, move as two of 16.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.layout import Layout
from tilewright.layout.axes import Kind
from tilewright.layout.refinement import IndexDigit, Slot, Table
from tilewright.records import dataclass
from tilewright.semantics.warps.block_memory import places_in
from tilewright.targets.llvm.values import undefined
from tilewright.targets.simt.emit_memory import Memory
from tilewright.targets.simt.fragments import (
    I32,
    Builder,
    Coordinates,
    Fragment,
    Threads,
    Value,
    i32,
    registers_of,
    slots_of,
    table_of,
)
from tilewright.targets.simt.places import Places

T = TypeVar("T")
_LINES = 8
_WORD_BYTES = 4


@dataclass
class Matrices:
    """A tile in a buffer, and the registers that it is loaded to, or stored from."""

    threads: Threads
    memory: Memory
    fragment: Layout
    _origins: list[list[int]] = field(init=False)
    _places: dict[tuple[tuple[int, ...], ...], Places] = field(
        default_factory=dict[tuple[tuple[int, ...], ...], Places]
    )

    def __post_init__(self) -> None:
        self._coordinates = Coordinates(self.threads, self.fragment)
        each = _WORD_BYTES // self.dtype.itemsize
        self._origins = []
        for number, digits in registers_of(self._coordinates.table):
            if number % each == 0:
                self._origins.append([self._coordinates.register_part(dim, digits) for dim in range(2)])
        self._pair_dim = self._dim_of(Slot("lane", 1, 4))
        self._group_dim = self._dim_of(Slot("lane", 4, _LINES))
        contiguous = next(dim for dim in range(2) if self._is_contiguous(dim))
        self._is_transposed = contiguous == self._group_dim

    @property
    def dtype(self) -> DType:
        return self.memory.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.memory.shape

    @property
    def word_count(self) -> int:
        """Registers of 32 bits that a lane holds of the whole operand."""
        return len(self._origins)

    def words(self, numbers: Sequence[int]) -> dict[int, Value]:
        """Some of the operand's registers, four or two at a time."""
        found: dict[int, Value] = {}
        for taken in _taken(numbers):
            found.update(zip(taken, self._load(taken), strict=True))
        return found

    def store(self, words: Sequence[Value]) -> None:
        """All registers of the tile, each of two elements, four at a time."""
        builder = self.threads.builder
        for numbers in _taken([*range(len(words))]):
            pointer = self._pointer(numbers)
            given = [words[number] for number in numbers]
            function = self._function("stmatrix", len(numbers), ir.VoidType(), [pointer.type, *(I32 for _ in given)])
            builder.call(function, [pointer, *given])

    def _dim_of(self, slot: Slot) -> int:
        content = self._coordinates.table.slots.get(slot)
        if not isinstance(content, IndexDigit):
            raise CompilerBug(f"{self.fragment} is not a fragment of matrices")
        return content.dim

    def _is_contiguous(self, dim: int) -> bool:
        at = [1 if dim == other else 0 for other in range(2)]
        return next(iter(self.memory.layout.coordinates(at).values())) == 1

    def _load(self, numbers: Sequence[int]) -> list[Value]:
        pointer, count = self._pointer(numbers), len(numbers)
        form = I32 if count == 1 else ir.LiteralStructType([I32] * count)
        function = self._function("ldmatrix", count, form, [pointer.type])
        loaded = self.threads.builder.call(function, [pointer])
        if count == 1:
            return [self._multiplied(loaded)]
        return [self._multiplied(self.threads.builder.extract_value(loaded, n)) for n in range(count)]

    def _pointer(self, numbers: Sequence[int]) -> Value:
        """The line that each lane names of the matrices of some registers."""
        origins = [self._origins[number] for number in numbers]
        first, steps = origins[0], _steps_of(origins)
        if steps is None:
            raise CompilerBug(f"the matrices at {origins} are not one instruction's")
        if steps not in self._places:
            self._places[steps] = self._places_of(steps)
        return self._places[steps].pointer(first)

    def _function(self, what: str, count: int, result: ir.Type, arguments: Sequence[ir.Type]) -> Value:
        name = f"llvm.nvvm.{what}.sync.aligned.m8n8.x{count}{'.trans' if self._is_transposed else ''}.b16.p3"
        module = self.threads.builder.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)

    def _multiplied(self, word: Value) -> Value:
        """A register as matmuls take it: buffers of tf32 hold f32 numbers."""
        if self.dtype != dtypes.tf32:
            return word
        builder = self.threads.builder
        return builder.bitcast(builder.intrinsics.rounded_to_tf32(builder, builder.bitcast(word, ir.FloatType())), I32)

    def _places_of(self, steps: Sequence[Sequence[int]]) -> Places:
        """The line that each lane names: its warp's part, its matrix's and its own within the matrix."""
        builder = self.threads.builder
        lane = self.threads.numbers["lane"]
        line = builder.urem(lane, i32(_LINES))
        line_dim = self._pair_dim if self._is_transposed else self._group_dim
        thread: list[Value] = [i32(0), i32(0)]
        reached = [0, 0]
        thread[line_dim], reached[line_dim] = line, _LINES - 1
        for bit, step in enumerate(steps):
            digit = self.threads.digit(Slot("lane", _LINES << bit, 2))
            for dim, size in enumerate(step):
                if size:
                    thread[dim] = builder.add(thread[dim], builder.mul(digit, i32(size)))
                    reached[dim] |= size
        for slot, content in slots_of(self._coordinates.table, Kind.WARP):
            if isinstance(content, IndexDigit):
                part = builder.mul(self.threads.digit(slot), i32(content.weight))
                thread[content.dim] = builder.add(thread[content.dim], part)
                for digit in range(content.extent):
                    reached[content.dim] |= content.weight * digit
        return Places(builder, self.memory, thread, reached)


def _steps_of(origins: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...] | None:
    """How far the matrices of an instruction are from each other: by a bit of their number each; None where they are
    otherwise."""
    bits = len(origins).bit_length() - 1
    steps = tuple(tuple(a - b for a, b in zip(origins[1 << bit], origins[0], strict=True)) for bit in range(bits))
    for number, origin in enumerate(origins):
        expected = list(origins[0])
        for bit, step in enumerate(steps):
            if number >> bit & 1:
                expected = [a + b for a, b in zip(expected, step, strict=True)]
        if expected != list(origin):
            return None
    return steps


def _taken(each: Sequence[T]) -> Iterator[Sequence[T]]:
    """The matrices of each instruction: four or two, if as many are left, else one."""
    first = 0
    while first < len(each):
        left = len(each) - first
        count = 4 if left >= 4 else 2 if left >= 2 else 1
        yield each[first : first + count]
        first += count


# ---- what is stored so ----------------------------------------------------------------------------------------------

_PAIRS, _GROUPS, _PAIR = Slot("lane", 1, 4), Slot("lane", 4, _LINES), Slot("reg", 1, 2)
_LINE_ELEMENTS = 8  # of 16 bits


def words_of(builder: Builder, fragment: Fragment) -> list[Value]:
    """The elements of 16 bits that a thread has, two in a word."""
    words: list[Value] = []
    pair = ir.VectorType(ir.IntType(16), 2)
    for number, _ in registers_of(table_of(fragment.layout)):
        if number % 2 == 0:
            halves = (builder.bitcast(fragment.values[number + further], ir.IntType(16)) for further in range(2))
            both = undefined(pair)
            for lane, half in enumerate(halves):
                both = builder.insert_element(both, half, i32(lane))
            words.append(builder.bitcast(both, I32))
    return words


@lru_cache(maxsize=256)
def is_stored_by_matrices(registers: Layout, buffer: Layout) -> bool:
    """Whether a warp stores a tile of 16-bit elements as matrices: each is in registers of that layout once, and a line
    of each matrix follows itself in the buffer, where the lines of one are in no bank together."""
    table, shape = table_of(registers), registers.static_shape
    held = [content for content in table.slots.values() if isinstance(content, IndexDigit)]
    if len(shape) != 2 or len(held) != len(table.slots) or prod(digit.extent for digit in held) != prod(shape):
        return False
    pairs, groups, pair = (table.slots.get(slot) for slot in (_PAIRS, _GROUPS, _PAIR))
    if not isinstance(pairs, IndexDigit) or not isinstance(groups, IndexDigit) or not isinstance(pair, IndexDigit):
        return False
    if pair.dim != pairs.dim or pairs.dim == groups.dim or (pair.weight, pairs.weight, groups.weight) != (1, 2, 1):
        return False
    if not all(_is_in_bits(digit for digit in held if digit.dim == dim) for dim in range(2)):
        return False
    if any(_steps_of(origins) is None for origins in _taken(_origins_of(table))):
        return False
    return any(_has_lines(np.moveaxis(places_in(str(buffer), shape), dim, 1)) for dim in range(2))


def _is_in_bits(digits: Iterable[IndexDigit]) -> bool:
    """Whether all digits of an index but the highest have bits of their own."""
    *lower, _ = sorted(digits, key=lambda digit: digit.weight)
    return all(digit.extent & (digit.extent - 1) == 0 for digit in lower)


def _origins_of(table: Table) -> list[list[int]]:
    """The part of an index that each register of two elements decides."""
    origins: list[list[int]] = []
    for number, digits in registers_of(table):
        if number % 2 == 0:
            parts = [(table.slots[slot], digit) for slot, digit in digits.items()]
            of = [(content, digit) for content, digit in parts if isinstance(content, IndexDigit)]
            origins.append([sum(each.weight * digit for each, digit in of if each.dim == dim) for dim in range(2)])
    return origins


def _has_lines(places: np.ndarray[Any, Any]) -> bool:
    """Whether elements along the last dim follow each other in lines, 8 of which are in as many parts of the banks."""
    rows, columns = places.shape
    if rows % _LINES or columns % _LINE_ELEMENTS:
        return False
    lines = places.reshape(rows, -1, _LINE_ELEMENTS)
    starts = lines[..., 0]
    if (lines != starts[..., None] + np.arange(_LINE_ELEMENTS)).any() or (starts % _LINE_ELEMENTS).any():
        return False
    parts = (starts // _LINE_ELEMENTS % _LINES).reshape(rows // _LINES, _LINES, -1)
    return bool((np.sort(parts, axis=1) == np.arange(_LINES)[:, None]).all())
