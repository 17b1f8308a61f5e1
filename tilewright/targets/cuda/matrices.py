"""Operands of products that are read from shared memory as matrices of 8 lines of 16 bytes: `ldmatrix`.

PTX ISA, "Warp-level matrix load instruction: ldmatrix": lanes 8 j to 8 j + 7 give the addresses of the lines of matrix
j; lane l gets of each matrix the two elements of 16 bits at line l / 4, from 2 (l % 4) on, or with `.trans` those of
column l / 4. Four elements of 8 bits along the depth, or one of 32, move as
two of 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llvmlite import ir

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.layout import Layout
from tilewright.layout.axes import Kind
from tilewright.layout.refinement import IndexDigit, Slot
from tilewright.targets.cuda.emit_memory import Memory
from tilewright.targets.cuda.fragments import I32, Coordinates, Threads, Value, i32, registers_of, slots_of
from tilewright.targets.cuda.functions import rounded_to_tf32
from tilewright.targets.cuda.places import Places

_LINES = 8
_WORD_BYTES = 4


@dataclass
class Matrices:
    """An operand in a buffer, and the registers that a product takes it to."""

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
        numbers = list(numbers)
        while numbers:
            count = 4 if len(numbers) >= 4 else 2 if len(numbers) >= 2 else 1
            taken, numbers = numbers[:count], numbers[count:]
            found.update(zip(taken, self._load(taken), strict=True))
        return found

    def _dim_of(self, slot: Slot) -> int:
        content = self._coordinates.table.slots.get(slot)
        if not isinstance(content, IndexDigit):
            raise CompilerBug(f"{self.fragment} is not a fragment of matrices")
        return content.dim

    def _is_contiguous(self, dim: int) -> bool:
        at = [1 if dim == other else 0 for other in range(2)]
        return next(iter(self.memory.layout.coordinates(at).values())) == 1

    def _load(self, numbers: Sequence[int]) -> list[Value]:
        origins = [self._origins[number] for number in numbers]
        first = origins[0]
        steps = tuple(tuple(a - b for a, b in zip(origins[1 << n], first, strict=True)) for n in range(_bits(origins)))
        self._check_steps(origins, steps)
        if steps not in self._places:
            self._places[steps] = self._places_of(steps)
        pointer = self._places[steps].pointer(first)
        count = len(numbers)
        form = I32 if count == 1 else ir.LiteralStructType([I32] * count)
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if self._is_transposed else ''}.b16.p3"
        module = self.threads.builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(form, [pointer.type]), name)
        loaded = self.threads.builder.call(function, [pointer])
        if count == 1:
            return [self._multiplied(loaded)]
        return [self._multiplied(self.threads.builder.extract_value(loaded, n)) for n in range(count)]

    def _multiplied(self, word: Value) -> Value:
        """A register as products take it: buffers of tf32 hold f32 numbers."""
        if self.dtype != dtypes.tf32:
            return word
        builder = self.threads.builder
        return builder.bitcast(rounded_to_tf32(builder, builder.bitcast(word, ir.FloatType())), I32)

    def _check_steps(self, origins: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]) -> None:
        for number, origin in enumerate(origins):
            expected = list(origins[0])
            for bit, step in enumerate(steps):
                if number >> bit & 1:
                    expected = [a + b for a, b in zip(expected, step, strict=True)]
            if expected != list(origin):
                raise CompilerBug(f"the matrices at {origins} are not one instruction's")

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
                reached[content.dim] |= content.weight * (content.extent - 1)
        return Places(builder, self.memory, thread, reached)


def _bits(origins: Sequence[Sequence[int]]) -> int:
    return len(origins).bit_length() - 1
