"""LU and Cholesky factorisations of small matrices in loops, where a call of LAPACK takes longer than its arithmetic.

Matrices stay row by row. Rows are exchanged for the pivot of the largest size, as LAPACK does, and `info` is LAPACK's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from tilewright.targets.cpu.library_code import LibraryCode
from tilewright.targets.cpu.loops import I32, I64, add, entry_alloca, i64, loop, multiply, static
from tilewright.targets.llvm.values import Value

# Sizes up to which loops are faster than LAPACK, measured on a Zen 3.
MOST_ROWS = 16
MOST_COLUMNS = 32


def is_small(rows: int, columns: int) -> bool:
    """Whether a matrix, or the right-hand sides of a system, are factorised or solved in loops."""
    return rows <= MOST_ROWS and columns <= MOST_COLUMNS


def factorise(
    code: LibraryCode,
    matrix: Value,
    shape: tuple[int, int],
    pivots: Value | None = None,
    right: tuple[Value, int] | None = None,
) -> Value:
    """LU factors in place of a matrix, and a pointer to `info`; `pivots` takes the rows that were exchanged, from 1 on.

    The right-hand sides of a system, with their number of columns, are taken along: they become `inv(L) @ P @ right`.
    """
    builder, (rows, columns) = code.builder, shape
    status, size, pivot = code.status(), entry_alloca(builder, code.element), entry_alloca(builder, I64)
    builder.store(ir.Constant(I32, 0), status)

    def eliminate(step: Value) -> None:
        following = add(builder, step, i64(1))
        builder.store(step, pivot)
        builder.store(_size(code, _load(code, matrix, columns, step, step)), size)
        _each(code, following, rows, "candidate", lambda row: _consider(code, matrix, columns, row, step, size, pivot))
        chosen = builder.load(pivot, typ=I64)
        if pivots is not None:
            number = builder.trunc(builder.add(chosen, i64(1)), I32)
            builder.store(number, code.element_pointer(pivots, step, 4))
        _exchange_rows(code, matrix, columns, step, chosen)
        if right is not None:
            _exchange_rows(code, *right, step, chosen)
        divisor = _load(code, matrix, columns, step, step)
        is_zero = builder.fcmp_ordered("==", divisor, ir.Constant(code.element, 0.0))
        _note(code, status, is_zero, step)

        def eliminate_row(row: Value) -> None:
            factor = builder.fdiv(_load(code, matrix, columns, row, step), divisor)
            _store(code, factor, matrix, columns, row, step)
            _subtract_row(code, matrix, columns, row, step, factor, following)
            if right is not None:
                _subtract_row(code, *right, row, step, factor, i64(0))

        # A column of zeros is left as it is: dividing by its pivot would give NaN.
        with builder.if_then(builder.not_(is_zero), likely=True):
            _each(code, following, rows, "row", eliminate_row)

    _each(code, i64(0), min(rows, columns), "step", eliminate)
    return status


def solve_upper(code: LibraryCode, matrix: Value, size: int, right: tuple[Value, int]) -> None:
    """`inv(U) @ right` in place of the right-hand sides, for the upper triangle U of a square matrix."""
    builder = code.builder
    solution, columns = right

    def substitute(step: Value) -> None:
        row = builder.sub(i64(size - 1), step)
        with loop(builder, builder.add(row, i64(1)), i64(size), 1, "known") as other:
            _subtract_row(code, *right, row, other, _load(code, matrix, size, row, other), i64(0))
        divisor = _load(code, matrix, size, row, row)

        def divide(column: Value) -> None:
            value = builder.fdiv(_load(code, solution, columns, row, column), divisor)
            _store(code, value, solution, columns, row, column)

        _each(code, i64(0), columns, "column", divide)

    _each(code, i64(0), size, "back", substitute)


def cholesky(code: LibraryCode, matrix: Value, size: int, *, lower: bool) -> Value:
    """The Cholesky factor in place of one triangle of a matrix, whose other triangle is left; a pointer to `info`."""
    builder, status = code.builder, code.status()
    builder.store(ir.Constant(I32, 0), status)
    root: Any = builder.module.declare_intrinsic("llvm.sqrt", [code.element])

    def at(step: Value, other: Value) -> Value:
        """The pointer to an element of the triangle, `step <= other`."""
        return code.element_pointer(
            matrix, _position(code, size, other, step) if lower else _position(code, size, step, other)
        )

    def load(step: Value, other: Value) -> Value:
        return builder.load(at(step, other), typ=code.element)

    def eliminate(step: Value) -> None:
        following, square = add(builder, step, i64(1)), load(step, step)
        _note(code, status, builder.fcmp_unordered("<=", square, ir.Constant(code.element, 0.0)), step)
        divisor = builder.call(root, [square])
        builder.store(divisor, at(step, step))

        def subtract_from_row(row: Value) -> None:
            factor = builder.fdiv(load(step, row), divisor)
            builder.store(factor, at(step, row))
            # Elements up to the row's own are divided by now.
            with loop(builder, following, builder.add(row, i64(1)), 1, "column") as column:
                product = builder.fmul(factor, load(step, column))
                builder.store(builder.fsub(load(column, row), product), at(column, row))

        _each(code, following, size, "row", subtract_from_row)

    _each(code, i64(0), size, "step", eliminate)
    return status


def _each(code: LibraryCode, first: Value, end: int, name: str, body: Callable[[Value], None]) -> None:
    """A loop, which may be empty."""
    known = static(first)
    if known is None or known < end:
        with loop(code.builder, first, i64(end), 1, name) as index:
            body(index)


def _position(code: LibraryCode, columns: int, row: Value, column: Value) -> Value:
    return add(code.builder, multiply(code.builder, row, columns), column)


def _load(code: LibraryCode, matrix: Value, columns: int, row: Value, column: Value) -> Value:
    return code.load(matrix, _position(code, columns, row, column))


def _store(code: LibraryCode, value: Value, matrix: Value, columns: int, row: Value, column: Value) -> None:
    code.store(value, matrix, _position(code, columns, row, column))


def _size(code: LibraryCode, value: Value) -> Value:
    zero = ir.Constant(code.element, 0.0)
    return code.builder.select(code.builder.fcmp_ordered("<", value, zero), code.builder.fneg(value), value)


def _consider(
    code: LibraryCode, matrix: Value, columns: int, row: Value, column: Value, size: Value, pivot: Value
) -> None:
    """Keep a row as the pivot where its element is larger than the largest so far."""
    builder = code.builder
    own, largest = _size(code, _load(code, matrix, columns, row, column)), builder.load(size, typ=code.element)
    is_larger = builder.fcmp_ordered(">", own, largest)
    builder.store(builder.select(is_larger, own, largest), size)
    builder.store(builder.select(is_larger, row, builder.load(pivot, typ=I64)), pivot)


def _exchange_rows(code: LibraryCode, matrix: Value, columns: int, row: Value, other: Value) -> None:
    """Also where both are one row: a branch that is not foreseen takes longer."""

    def exchange(column: Value) -> None:
        first, second = (_load(code, matrix, columns, r, column) for r in (row, other))
        _store(code, second, matrix, columns, row, column)
        _store(code, first, matrix, columns, other, column)

    _each(code, i64(0), columns, "exchanged", exchange)


def _note(code: LibraryCode, status: Value, is_failure: Value, step: Value) -> None:
    """Set `info` to the first step, counted from 1, that fails."""
    builder = code.builder
    known = builder.load(status, typ=I32)
    is_first = builder.and_(builder.icmp_unsigned("==", known, ir.Constant(I32, 0)), is_failure)
    number = builder.trunc(builder.add(step, i64(1)), I32)
    builder.store(builder.select(is_first, number, known), status)


def _subtract_row(
    code: LibraryCode, matrix: Value, columns: int, row: Value, other: Value, factor: Value, first: Value
) -> None:
    """`matrix[row, first:] -= factor * matrix[other, first:]`."""

    def subtract(column: Value) -> None:
        product = code.builder.fmul(factor, _load(code, matrix, columns, other, column))
        value = code.builder.fsub(_load(code, matrix, columns, row, column), product)
        _store(code, value, matrix, columns, row, column)

    _each(code, first, columns, "column", subtract)
