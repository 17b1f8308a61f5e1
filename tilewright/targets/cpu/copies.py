"""Copies of whole buffers: by one thread, or large ones in chunks by the threads of the pool."""

from __future__ import annotations

from llvmlite import ir

from tilewright.machines.machine import Machine
from tilewright.targets.cpu.loops import I1, I64, POINTER, i64, minimum, offset_pointer
from tilewright.targets.cpu.regions import REGION, chunk_count, first_point
from tilewright.targets.llvm.values import Builder, Value, builder_of


def copy_chunks(nbytes: int, machine: Machine, threads: int) -> int:
    """How many chunks a copy of so many bytes is cut into."""
    memory = machine.memories[-1]
    return chunk_count(_lines(nbytes, machine), 2 * nbytes / memory.bytes_per_second, threads)


def emit_copy(builder: Builder, target: Value, source: Value, nbytes: Value) -> None:
    """Copy bytes between buffers that may be one."""
    name = "llvm.memmove.p0.p0.i64"
    function = builder.module.globals.get(name)
    if function is None:
        type = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64, I1])
        function = ir.Function(builder.module, type, name)
    builder.call(function, [target, source, nbytes, ir.Constant(I1, 0)])


def copy_region(main: Builder, nbytes: int, chunks: int, machine: Machine) -> ir.Function:
    """The region that copies a chunk, in the module that `main` builds; its table holds the target and the source.
    Chunks end where cache lines do."""
    name = f"copy_{nbytes}"
    function = main.module.globals.get(name)
    if function is not None:
        return function
    function = ir.Function(main.module, REGION, name)
    function.linkage = "internal"
    builder = builder_of(function)
    table, chunk, _ = function.args
    line, lines = i64(machine.memories[0].line_bytes), _lines(nbytes, machine)
    start = builder.mul(first_point(builder, chunk, lines, chunks), line)
    after = builder.mul(first_point(builder, builder.add(chunk, i64(1)), lines, chunks), line)
    end = minimum(builder, after, i64(nbytes))
    target, source = (builder.load(offset_pointer(builder, table, i64(n), 8), typ=POINTER) for n in range(2))
    target, source = offset_pointer(builder, target, start, 1), offset_pointer(builder, source, start, 1)
    emit_copy(builder, target, source, builder.sub(end, start))
    builder.ret_void()
    return function


def _lines(nbytes: int, machine: Machine) -> int:
    return -(-nbytes // machine.memories[0].line_bytes)
