"""Calls of LAPACK and BLAS for one matrix each.

A row-major matrix is the transpose of a column-major one in the same memory. So triangles change their names, sides
their positions, an LQ factorisation of the transpose is the QR factorisation of the matrix, and its U is V: few copies
transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright.targets.cpu.library_code import LibraryCode
from tilewright.targets.cpu.library_small_matrices import cholesky, factorise, is_small, solve_upper
from tilewright.targets.cpu.loops import I32, I64, add, i64, loop, multiply, offset_pointer
from tilewright.targets.llvm.values import Value

# LAPACK's block size, by which its workspaces grow beyond the least: `ilaenv` gives 32 or 64.
BLOCK = 64

Values = Sequence[Value]
Emit = Callable[[LibraryCode, Values, Values], None]


def _triangle(code: LibraryCode) -> str:
    """The letter of the triangle that memory holds column by column."""
    return "U" if code.attributes["lower"] else "L"


def _finish(code: LibraryCode, status: Value, target: Value, results: Sequence[tuple[Value, int]]) -> None:
    """Store `info`; results of a failure are NaN."""
    info = code.builder.load(status, typ=I32)
    code.builder.store(info, target)
    with code.builder.if_then(code.builder.icmp_unsigned("!=", info, ir.Constant(I32, 0)), likely=False):
        for pointer, elements in results:
            code.fill(pointer, elements, float("nan"))


def _succeed(code: LibraryCode, target: Value) -> None:
    code.builder.store(ir.Constant(I32, 0), target)


def _potrf(code: LibraryCode, operands: Values, results: Values) -> None:
    n = code.operands[0].shape[0]
    (factor, info), status = results, code.status()
    code.copy(operands[0], factor, n * n)
    if is_small(n, n):
        status = cholesky(code, factor, n, lower=code.attributes["lower"])
    else:
        size = code.number(n)
        code.call("lapack", "potrf", code.letter(_triangle(code)), size, factor, size, status)
    if n > 1:
        _clear_triangle(code, factor, n)
    _finish(code, status, info, [(factor, n * n)])


def _clear_triangle(code: LibraryCode, matrix: Value, n: int) -> None:
    """Zeros above the diagonal of a lower triangle, or below that of an upper one."""
    with (
        loop(code.builder, i64(1), i64(n), 1, "outer") as outer,
        loop(code.builder, i64(0), outer, 1, "inner") as inner,
    ):
        row, column = (inner, outer) if code.attributes["lower"] else (outer, inner)
        position = add(code.builder, multiply(code.builder, row, n), column)
        code.store(ir.Constant(code.element, 0.0), matrix, position)


def _getrf(code: LibraryCode, operands: Values, results: Values) -> None:
    rows, columns = code.operands[0].shape
    factors, pivots, info = results
    if not rows * columns:
        _succeed(code, info)
        return
    if is_small(rows, columns):
        code.copy(operands[0], factors, rows * columns)
        status = factorise(code, factors, (rows, columns), pivots)
        code.builder.store(code.builder.load(status, typ=I32), info)
        return
    matrix, status = code.take(rows * columns), code.status()
    code.copy_transposed(operands[0], matrix, rows, columns)
    code.call("lapack", "getrf", code.number(rows), code.number(columns), matrix, code.number(rows), pivots, status)
    code.copy_transposed(matrix, factors, columns, rows)
    code.builder.store(code.builder.load(status, typ=I32), info)


def _lu_permutation(code: LibraryCode, operands: Values, results: Values) -> None:
    builder, (permutation,) = code.builder, results
    count, size = code.operands[0].shape[0], code.attributes["size"]

    def at(base: Value, position: Value) -> Value:
        return offset_pointer(builder, base, position, 4)

    if size:
        with loop(builder, i64(0), i64(size), 1, "row") as row:
            builder.store(builder.trunc(row, I32), at(permutation, row))
    if count:
        with loop(builder, i64(0), i64(count), 1, "step") as step:
            pivot = builder.sext(builder.load(at(operands[0], step), typ=I32), I64)
            # A pivot outside the rows, which no factorisation gives, must not reach other memory.
            other = builder.sub(pivot, i64(1))
            inside = builder.icmp_unsigned("<", other, i64(size))
            other = builder.select(inside, other, step)
            here, there = at(permutation, step), at(permutation, other)
            first, second = builder.load(here, typ=I32), builder.load(there, typ=I32)
            builder.store(second, here)
            builder.store(first, there)


def _gesv(code: LibraryCode, operands: Values, results: Values) -> None:
    n, columns = code.results[0].shape
    (solution, info), status = results, code.status()
    if not n:
        _succeed(code, info)
        return
    if is_small(n, columns):
        code.copy(operands[1], solution, n * columns)
        _solve_small(code, operands[0], n, (solution, columns), info)
        return
    matrix, pivots = code.take(n * n), code.take(n, 4)
    right = code.take(n * columns) if columns > 1 and n > 1 else solution
    code.copy_transposed(operands[0], matrix, n, n)
    code.copy_transposed(operands[1], right, n, columns)
    # Not `getrf` and `getrs`: OpenBLAS's `getrs` shares even small systems among its own threads.
    size, many = code.number(n), code.number(columns)
    code.call("lapack", "gesv", size, many, matrix, size, pivots, right, size, status)
    if right is not solution:
        code.copy_transposed(right, solution, columns, n)
    _finish(code, status, info, [(solution, n * columns)])


def _solve_small(code: LibraryCode, given: Value, n: int, right: tuple[Value, int], info: Value) -> None:
    """Solve a small system in place of its right-hand sides."""
    matrix = code.take(n * n)
    code.copy(given, matrix, n * n)
    status = factorise(code, matrix, (n, n), right=right)
    solve_upper(code, matrix, n, right)
    _finish(code, status, info, [(right[0], n * right[1])])


def _getri(code: LibraryCode, operands: Values, results: Values) -> None:
    n = code.operands[0].shape[0]
    (inverse, info), status = results, code.status()
    if not n:
        _succeed(code, info)
        return
    if is_small(n, n):
        _set_identity(code, inverse, n)
        _solve_small(code, operands[0], n, (inverse, n), info)
        return
    pivots, work = code.take(n, 4), code.take(n * BLOCK)
    code.copy(operands[0], inverse, n * n)
    size = code.number(n)
    code.call("lapack", "getrf", size, size, inverse, size, pivots, status)
    with code.builder.if_then(
        code.builder.icmp_unsigned("==", code.builder.load(status, typ=I32), ir.Constant(I32, 0))
    ):
        code.call("lapack", "getri", size, inverse, size, pivots, work, code.number(n * BLOCK), status)
    _finish(code, status, info, [(inverse, n * n)])


def _trsm(code: LibraryCode, operands: Values, results: Values) -> None:
    rows, columns = code.operands[1].shape
    (solution,) = results
    if not rows * columns:
        return
    code.copy(operands[1], solution, rows * columns)
    a = code.attributes
    letters = ("R" if a["left"] else "L", _triangle(code), "T" if a["transposed"] else "N", "U" if a["unit"] else "N")
    n = code.number(code.operands[0].shape[0])
    sizes = (code.number(columns), code.number(rows), code.real(1.0))
    code.call("blas", "trsm", *map(code.letter, letters), *sizes, operands[0], n, solution, code.number(columns))


def _geqrf(code: LibraryCode, operands: Values, results: Values) -> None:
    rows, columns = code.operands[0].shape
    packed, tau = results
    if not rows * columns:
        return
    code.copy(operands[0], packed, rows * columns)
    work = code.take(columns * BLOCK)
    m, n, room = code.number(columns), code.number(rows), code.number(columns * BLOCK)
    code.call("lapack", "gelqf", m, n, packed, m, tau, work, room, code.status())


def _orgqr(code: LibraryCode, operands: Values, results: Values) -> None:
    rows, columns = code.operands[0].shape
    (basis,) = results
    if not rows * columns:
        return
    code.copy(operands[0], basis, rows * columns)
    work = code.take(columns * BLOCK)
    m, n, k = code.number(columns), code.number(rows), code.number(code.operands[1].shape[0])
    room = code.number(columns * BLOCK)
    code.call("lapack", "orglq", m, n, k, basis, m, operands[1], work, room, code.status())


def _syevd(code: LibraryCode, operands: Values, results: Values) -> None:
    n, with_vectors = code.operands[0].shape[0], code.attributes["vectors"]
    vectors, (values, info), status = results[0], results[-2:], code.status()
    if not n:
        _succeed(code, info)
        return
    matrix = code.take(n * n)
    code.copy(operands[0], matrix, n * n)
    least, integers = (1 + 6 * n + 2 * n * n, 3 + 5 * n) if with_vectors else (2 * n + 1, 1)
    room = max(least, 2 * n + n * BLOCK)
    work, whole_work = code.take(room), code.take(integers, 4)
    letters = code.letter("V" if with_vectors else "N"), code.letter(_triangle(code))
    size = code.number(n)
    works = (work, code.number(room), whole_work, code.number(integers))
    code.call("lapack", "syevd", *letters, size, matrix, size, values, *works, status)
    if with_vectors:
        code.copy_transposed(matrix, vectors, n, n)
    _finish(code, status, info, [(values, n), *([(vectors, n * n)] if with_vectors else [])])


def _gesdd(code: LibraryCode, operands: Values, results: Values) -> None:
    """The memory's matrix is V S U^T: what LAPACK calls U is V, column by column, and what it calls V^T is U."""
    rows, columns = code.operands[0].shape
    with_vectors, full = code.attributes["vectors"], with_full(code)
    info = results[-1]
    if not rows * columns:
        _empty_gesdd(code, results)
        return
    least, most = min(rows, columns), max(rows, columns)
    matrix, status = code.take(rows * columns), code.status()
    code.copy(operands[0], matrix, rows * columns)
    room = 4 * least * least + 7 * least + most if with_vectors else 3 * least + max(most, 7 * least)
    room += BLOCK * (rows + columns)
    work, integers = code.take(room), code.take(8 * least, 4)
    if with_vectors:
        left, values, right = results[:3]
    else:
        values = results[0]
        left = right = code.take(1)
    letter = "N" if not with_vectors else "A" if full else "S"
    inner = rows if full else least
    m, n = code.number(columns), code.number(rows)
    leading = (code.number(columns), code.number(inner if with_vectors else 1))
    works = (work, code.number(room), integers, status)
    code.call(
        "lapack", "gesdd", code.letter(letter), m, n, matrix, m, values, right, leading[0], left, leading[1], *works
    )
    filled = [(pointer, type.size) for pointer, type in zip(results[:-1], code.results[:-1], strict=True)]
    _finish(code, status, info, filled)


def with_full(code: LibraryCode) -> bool:
    """Whether U and V^T are square."""
    return bool(code.attributes["full"])


def _empty_gesdd(code: LibraryCode, results: Values) -> None:
    """Square factors of a matrix without elements are identities."""
    _succeed(code, results[-1])
    for pointer, type in zip(results[:-1], code.results[:-1], strict=True):
        if type.rank == 2 and type.size:
            _set_identity(code, pointer, type.shape[0])


def _set_identity(code: LibraryCode, matrix: Value, n: int) -> None:
    code.fill(matrix, n * n, 0.0)
    with loop(code.builder, i64(0), i64(n), 1, "diagonal") as i:
        code.store(ir.Constant(code.element, 1.0), matrix, multiply(code.builder, i, n + 1))


def _geev(code: LibraryCode, operands: Values, results: Values) -> None:
    n, with_vectors = code.operands[0].shape[0], code.attributes["vectors"]
    info, status = results[-1], code.status()
    if not n:
        _succeed(code, info)
        return
    matrix, real, imaginary = code.take(n * n), code.take(n), code.take(n)
    columns = code.take(n * n if with_vectors else 1)
    room = (4 + BLOCK) * n
    work = code.take(room)
    code.copy_transposed(operands[0], matrix, n, n)
    letters = code.letter("N"), code.letter("V" if with_vectors else "N")
    size, room_number = code.number(n), code.number(room)
    code.call(
        "lapack",
        "geev",
        *letters,
        size,
        matrix,
        size,
        real,
        imaginary,
        work,
        size,
        columns,
        size,
        work,
        room_number,
        status,
    )
    with loop(code.builder, i64(0), i64(n), 1, "value") as i:
        place = multiply(code.builder, i, 2)
        code.store(code.load(real, i), results[0], place)
        code.store(code.load(imaginary, i), results[0], add(code.builder, place, i64(1)))
    if with_vectors:
        _unpack_vectors(code, columns, imaginary, results[1], n)
    filled = [(pointer, type.size) for pointer, type in zip(results[:-1], code.results[:-1], strict=True)]
    _finish(code, status, info, filled)


def _unpack_vectors(code: LibraryCode, columns: Value, imaginary: Value, target: Value, n: int) -> None:
    """Vectors of a pair of conjugate values are two columns of reals: the real and the imaginary part of the first."""
    builder, zero = code.builder, ir.Constant(code.element, 0.0)
    with loop(builder, i64(0), i64(n), 1, "vector") as j:
        part = code.load(imaginary, j)
        is_first = builder.fcmp_ordered(">", part, zero)
        is_second = builder.fcmp_ordered("<", part, zero)
        real = builder.select(is_second, builder.sub(j, i64(1)), j)
        # The column of the imaginary part; of a real vector any.
        other = builder.select(is_first, builder.add(j, i64(1)), j)
        with loop(builder, i64(0), i64(n), 1, "row") as i:
            value = code.load(columns, add(builder, multiply(builder, real, n), i))
            size = code.load(columns, add(builder, multiply(builder, other, n), i))
            signed = builder.select(is_second, builder.fneg(size), builder.select(is_first, size, zero))
            place = multiply(builder, add(builder, multiply(builder, i, n), j), 2)
            code.store(value, target, place)
            code.store(signed, target, add(builder, place, i64(1)))


MATRICES: dict[str, Emit] = {
    "potrf": _potrf,
    "getrf": _getrf,
    "lu_permutation": _lu_permutation,
    "gesv": _gesv,
    "getri": _getri,
    "trsm": _trsm,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "syevd": _syevd,
    "gesdd": _gesdd,
    "geev": _geev,
}
