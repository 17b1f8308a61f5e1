"""Print an `array.library_call` as a module of its own: a function like a kernel's, which calls the library natively.

    void tw_kernel(ptr table, ptr parallel, i32 threads)

`table` holds the operands, the results, shared memory, the workers' scratch memory and how many bytes each has of that.
A region's function runs the matrices or lines of one chunk. Small ones are shared among threads; for large ones the
library starts threads of its own. The functions are external names, which `runtime/library_functions` finds.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from tilewright import routines
from tilewright.cost.vectors.kernel import Work
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dtypes import f64
from tilewright.machines.machine import Machine
from tilewright.primitives import ArrayType
from tilewright.records import dataclass
from tilewright.targets.cpu.library_code import LibraryCode
from tilewright.targets.cpu.library_lines import LINES
from tilewright.targets.cpu.library_matrices import MATRICES
from tilewright.targets.cpu.loops import I8, I64, POINTER, i64, loop, offset_pointer, static
from tilewright.targets.cpu.regions import DRIVER, KERNEL, REGION, chunk_count, first_point, launch
from tilewright.targets.llvm.values import Builder, Value, builder_of

# Matrices and lines of less work are shared among the program's threads.
SHARED_FLOPS = 2e6
# The part of the peak that libraries reach on small matrices.
EFFICIENCY = 0.1


@dataclass(frozen=True)
class LibraryModule:
    """The result of emitting one call: the library's functions, memory of each thread, memory of all, and work."""

    functions: tuple[str, ...]
    worker_bytes: int
    shared_bytes: int
    work: Work


def call_forms(op: array.LibraryCallOp) -> tuple[list[ArrayType], list[ArrayType]]:
    """Types of operands and results for one matrix or line."""
    routine = routines.ROUTINES[op.routine]
    operands = [array_type(o) for o in op.operands]
    batch = len(routine.batch([(t.shape, t.dtype) for t in operands]))
    return (
        [ArrayType(t.shape[batch:], t.dtype) for t in operands],
        [ArrayType(array_type(r).shape[batch:], array_type(r).dtype) for r in op.results],
    )


def batch_count(op: array.LibraryCallOp) -> int:
    """How many matrices or lines a call is for."""
    routine = routines.ROUTINES[op.routine]
    operands = [array_type(o) for o in op.operands]
    return math.prod(routine.batch([(t.shape, t.dtype) for t in operands]))


def matrix_work(op: array.LibraryCallOp, machine: Machine) -> Work:
    """Work of one matrix or line."""
    operands, results = call_forms(op)
    forms = [[(t.shape, t.dtype) for t in types] for types in (operands, results)]
    flops = routines.ROUTINES[op.routine].flops(forms[0], forms[1])
    moved = sum(t.nbytes for t in (*operands, *results))
    return Work(flops / (machine.peak_flops(f64) * EFFICIENCY), moved, flops)


def emit_library_call(module: ir.Module, op: array.LibraryCallOp, machine: Machine, threads: int) -> LibraryModule:
    """Write the function `tw_kernel` of a call and its region to an empty module."""
    count, each = batch_count(op), matrix_work(op, machine)
    work = each.times(count)
    is_shared = each.flops <= SHARED_FLOPS
    chunks = chunk_count(count, work.seconds(machine), threads) if is_shared else 1
    driver: Any = ir.Function(module, DRIVER, KERNEL)
    if not count:
        builder_of(driver).ret_void()
        return LibraryModule((), 0, 0, Work())
    region = ir.Function(module, REGION, "region")
    region.linkage = "internal"
    code = _region(module, region, op, count, chunks)
    builder = builder_of(driver)
    table, parallel, pool_threads = driver.args
    launch(builder, region, table, parallel, pool_threads, chunks, work.seconds(machine))
    builder.ret_void()
    per_worker = (code.memory_bytes, 0) if chunks > 1 else (0, code.memory_bytes)
    return LibraryModule(tuple(code.functions), *per_worker, work)


def _region(module: ir.Module, region: ir.Function, op: array.LibraryCallOp, count: int, chunks: int) -> LibraryCode:
    """The function of a chunk. One chunk works in the program's shared memory, several in that of their threads."""
    builder = builder_of(region)
    table, chunk, worker = region.args
    operands, results = call_forms(op)
    arrays = len(operands) + len(results)
    entries = [builder.load(offset_pointer(builder, table, i64(n), 8), typ=POINTER) for n in range(arrays + 2)]
    memory = entries[arrays]
    if chunks > 1:
        size = builder.load(offset_pointer(builder, table, i64(arrays + 2), 8), typ=I64)
        memory = builder.gep(entries[arrays + 1], [builder.mul(builder.zext(worker, I64), size)], source_etype=I8)
    start, end = i64(0), i64(count)
    if chunks > 1:
        start = first_point(builder, chunk, count, chunks)
        end = first_point(builder, builder.add(chunk, i64(1)), count, chunks)
    code = LibraryCode(builder, module, operands, results, op.attributes_of(), memory)
    if op.routine in LINES:
        firsts = [
            offset_pointer(builder, entry, start, type.nbytes)
            for entry, type in zip(entries, (*operands, *results), strict=False)
        ]
        LINES[op.routine](code, firsts[0], firsts[1], _difference(builder, start, end))
    else:
        with loop(builder, start, end, 1, "matrix") as index:
            pointers = [
                offset_pointer(builder, entry, index, type.nbytes)
                for entry, type in zip(entries, (*operands, *results), strict=False)
            ]
            MATRICES[op.routine](code, pointers[: len(operands)], pointers[len(operands) :])
    builder.ret_void()
    return code


def _difference(builder: Builder, start: Value, end: Value) -> Value:
    return end if static(start) == 0 else builder.sub(end, start)
