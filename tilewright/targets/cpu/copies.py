"""Copies of whole buffers: by one thread, or large ones in chunks by the threads of the pool.

The C library copies some KiB to a MiB by `rep movsb`, which takes 10 to 20 times as long on Zen 3 and Zen 4 where the
target begins 1 to 63 bytes after the source within their pages. Such copies are loops of vectors."""

from __future__ import annotations

from llvmlite import ir

from tilewright.machines.machine import Machine
from tilewright.targets.cpu.loops import I1, I8, I64, POINTER, i64, loop, minimum, offset_pointer
from tilewright.targets.cpu.regions import REGION, chunk_count, first_point
from tilewright.targets.llvm.values import Builder, Value, builder_of

_PAGE_BYTES = 4096
_CLOSE_BYTES = 64
_VECTOR_BYTES = 64


def copy_chunks(nbytes: int, machine: Machine, threads: int) -> int:
    """How many chunks a copy of so many bytes is cut into."""
    memory = machine.memories[-1]
    return chunk_count(_lines(nbytes, machine), 2 * nbytes / memory.bytes_per_second, threads)


def emit_copy(builder: Builder, target: Value, source: Value, nbytes: Value) -> None:
    """Copy bytes between buffers that are one or do not overlap."""
    with builder.if_else(_just_after(builder, target, source), likely=False) as (loops, calls):
        with loops:
            _copy_vectors(builder, target, source, nbytes)
        with calls:
            _call_memmove(builder, target, source, nbytes)


def _just_after(builder: Builder, target: Value, source: Value) -> Value:
    """Whether the target is 1 to 63 bytes after the source, modulo the size of a page."""
    target_address, source_address = (builder.ptrtoint(pointer, I64) for pointer in (target, source))
    distance = builder.and_(builder.sub(target_address, source_address), i64(_PAGE_BYTES - 1))
    return builder.icmp_unsigned("<", builder.sub(distance, i64(1)), i64(_CLOSE_BYTES - 1))


def _copy_vectors(builder: Builder, target: Value, source: Value, nbytes: Value) -> None:
    vectors = builder.and_(nbytes, i64(-_VECTOR_BYTES))
    with loop(builder, i64(0), vectors, _VECTOR_BYTES, "copied") as start:
        bytes = builder.load(offset_pointer(builder, source, start, 1), align=1, typ=ir.VectorType(I8, _VECTOR_BYTES))
        builder.store(bytes, offset_pointer(builder, target, start, 1), align=1)
    rest, rest_bytes = (offset_pointer(builder, pointer, vectors, 1) for pointer in (target, source))
    _call_memmove(builder, rest, rest_bytes, builder.sub(nbytes, vectors))


def _call_memmove(builder: Builder, target: Value, source: Value, nbytes: Value) -> None:
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
