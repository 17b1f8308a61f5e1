"""Shared code of the emitters of library calls: arguments by address, memory of the thread, copies of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from llvmlite import ir

from tilewright.dtypes import DType, f64
from tilewright.primitives import ArrayType
from tilewright.records import dataclass
from tilewright.targets.cpu.context import round_up
from tilewright.targets.cpu.loops import (
    I1,
    I8,
    I32,
    I64,
    POINTER,
    add,
    entry_alloca,
    i64,
    loop,
    multiply,
    offset_pointer,
)
from tilewright.targets.llvm.values import DOUBLE, FLOAT, Builder, Value

VOID = ir.VoidType()


@dataclass(eq=False)
class LibraryCode:
    """The code of one region's function: what it calls, with which arguments, and the memory that it works in.

    `operands` and `results` are types for one matrix or line; `memory` is the thread's own, of which `memory_bytes` are
    taken. `functions` are the library's names."""

    builder: Builder
    module: Any
    operands: Sequence[ArrayType]
    results: Sequence[ArrayType]
    attributes: dict[str, Any]
    memory: Value
    memory_bytes: int = 0
    functions: dict[str, ir.Function] = field(default_factory=dict[str, ir.Function])
    _numbers: dict[int, Value] = field(default_factory=dict[int, Value])
    _letters: dict[str, Value] = field(default_factory=dict[str, Value])

    @property
    def dtype(self) -> DType:
        return self.operands[0].dtype

    @property
    def element(self) -> ir.Type:
        return DOUBLE if self.dtype == f64 else FLOAT

    def number(self, value: int) -> Value:
        """A pointer to an i32, as Fortran takes it."""
        if value not in self._numbers:
            self._numbers[value] = self._constant(I32, value)
        return self._numbers[value]

    def letter(self, value: str) -> Value:
        """A pointer to a letter."""
        if value not in self._letters:
            self._letters[value] = self._constant(I8, ord(value))
        return self._letters[value]

    def real(self, value: float) -> Value:
        """A pointer to a number of the operands' type."""
        return self._constant(self.element, value)

    def _constant(self, type: ir.Type, value: float) -> Value:
        constant: Any = ir.GlobalVariable(self.module, type, self.module.get_unique_name("constant"))
        constant.linkage = "internal"
        constant.global_constant = True
        constant.initializer = ir.Constant(type, value)
        return constant

    def take(self, elements: int, itemsize: int | None = None) -> Value:
        """Memory of the thread for so many elements."""
        start = self.memory_bytes
        self.memory_bytes += round_up(max(1, elements) * (itemsize or self.dtype.itemsize))
        return offset_pointer(self.builder, self.memory, i64(start), 1)

    def status(self) -> Value:
        """Memory for LAPACK's `info`."""
        return entry_alloca(self.builder, I32)

    def external(self, name: str, type: ir.FunctionType) -> ir.Function:
        if name not in self.functions:
            self.functions[name] = ir.Function(self.module, type, name)
        return self.functions[name]

    def call(self, library: str, name: str, *arguments: Value) -> None:
        """Call a function of LAPACK or BLAS for the operands' type: all arguments are pointers."""
        letter = "d" if self.dtype == f64 else "s"
        type = ir.FunctionType(VOID, [POINTER] * len(arguments))
        self.builder.call(self.external(f"{library}.{letter}{name}", type), arguments)

    def element_pointer(self, base: Value, position: Value, itemsize: int | None = None) -> Value:
        return offset_pointer(self.builder, base, position, itemsize or self.dtype.itemsize)

    def load(self, base: Value, position: Value) -> Value:
        return self.builder.load(self.element_pointer(base, position), typ=self.element)

    def store(self, value: Value, base: Value, position: Value) -> None:
        self.builder.store(value, self.element_pointer(base, position))

    def copy(self, source: Value, target: Value, elements: int) -> None:
        """Copy dense elements."""
        name = "llvm.memcpy.p0.p0.i64"
        known = self.module.globals.get(name)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(VOID, [POINTER, POINTER, I64, I1]), name)
        nbytes = i64(elements * self.dtype.itemsize)
        self.builder.call(known, [target, source, nbytes, ir.Constant(I1, 0)])

    def copy_transposed(self, source: Value, target: Value, rows: int, columns: int) -> None:
        """Copy a row-major matrix to its transpose, row by row of blocks that a first-level cache holds."""
        for first_row, row_step in _blocks(rows):
            for first_column, column_step in _blocks(columns):
                self._copy_blocks(source, target, (rows, first_row, row_step), (columns, first_column, column_step))

    def _copy_blocks(
        self, source: Value, target: Value, along_rows: tuple[int, int, int], along_columns: tuple[int, int, int]
    ) -> None:
        """Blocks of equal size, from a row and a column on."""
        (rows, first_row, row_step), (columns, first_column, column_step) = along_rows, along_columns
        row_end = first_row + (rows - first_row) // row_step * row_step
        column_end = first_column + (columns - first_column) // column_step * column_step
        with (
            loop(self.builder, i64(first_row), i64(row_end), row_step, "block.row") as block_row,
            loop(self.builder, i64(first_column), i64(column_end), column_step, "block.column") as block_column,
            loop(self.builder, i64(0), i64(row_step), 1, "row") as row,
            loop(self.builder, i64(0), i64(column_step), 1, "column") as column,
        ):
            i, j = add(self.builder, block_row, row), add(self.builder, block_column, column)
            value = self.load(source, add(self.builder, multiply(self.builder, i, columns), j))
            self.store(value, target, add(self.builder, multiply(self.builder, j, rows), i))

    def fill(self, target: Value, elements: int, value: float) -> None:
        """Set dense elements to one value."""
        if elements:
            with loop(self.builder, i64(0), i64(elements), 1, "fill") as i:
                self.store(ir.Constant(self.element, value), target, i)


BLOCK = 16


def _blocks(size: int) -> list[tuple[int, int]]:
    """First positions and sizes of runs of equal blocks: whole ones, then the rest."""
    whole = size // BLOCK * BLOCK
    runs = [(0, BLOCK)] if whole else []
    return [*runs, (whole, size - whole)] if size > whole else runs
