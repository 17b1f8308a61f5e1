"""Fourier transforms of runs of lines: one call of a loop of NumPy's pocketfft for all lines of a chunk.

    void loop(ptr arguments, ptr sizes, ptr strides, ptr data)

`arguments` are the first line, the factor of all and the first result; `sizes` the lines and the elements of each
before and after; `strides` in bytes, from line to line (the factor's is 0), then within lines.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from tilewright.targets.cpu.library_code import VOID, LibraryCode
from tilewright.targets.cpu.loops import I8, I64, POINTER, entry_alloca, i64, offset_pointer
from tilewright.targets.llvm.values import Value

_LOOP = ir.FunctionType(VOID, [POINTER, POINTER, POINTER, POINTER])

Emit = Callable[[LibraryCode, Value, Value, Value], None]


def _table(code: LibraryCode, type: ir.Type, values: list[Value]) -> Value:
    """An array of values of 8 bytes on the stack."""
    table = entry_alloca(code.builder, type, len(values))
    for position, value in enumerate(values):
        code.builder.store(value, offset_pointer(code.builder, table, i64(position), 8))
    return table


def _transform(code: LibraryCode, loop: str, source: Value, target: Value, lines: Value) -> None:
    """Call a loop for lines of numbers, of which those with a trailing dim of 2 are complex."""
    (before,), (after,) = code.operands, code.results
    name = f"pocketfft.{loop}.{code.dtype.name}"
    function = code.external(name, _LOOP)
    data = code.module.globals.get(f"{name}.data") or ir.GlobalVariable(code.module, I8, f"{name}.data")
    arguments = _table(code, POINTER, [source, code.real(code.attributes["scale"]), target])
    sizes = _table(code, I64, [lines, i64(before.shape[0]), i64(after.shape[0])])
    itemsizes = [type.nbytes // type.shape[0] for type in (before, after)]
    strides = _table(code, I64, [i64(n) for n in (before.nbytes, 0, after.nbytes, *itemsizes)])
    code.builder.call(function, [arguments, sizes, strides, data])


def _complex(code: LibraryCode, source: Value, target: Value, lines: Value) -> None:
    _transform(code, "ifft" if code.attributes["inverse"] else "fft", source, target, lines)


def _from_reals(code: LibraryCode, source: Value, target: Value, lines: Value) -> None:
    parity = "odd" if code.operands[0].shape[0] % 2 else "even"
    _transform(code, f"rfft_n_{parity}", source, target, lines)


def _to_reals(code: LibraryCode, source: Value, target: Value, lines: Value) -> None:
    _transform(code, "irfft", source, target, lines)


LINES: dict[str, Emit] = {"fft.c2c": _complex, "fft.r2c": _from_reals, "fft.c2r": _to_reals}
