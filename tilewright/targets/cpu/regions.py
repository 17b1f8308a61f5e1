"""Shared code for calls of the thread pool: types of functions, and into how many chunks a region is cut."""

from __future__ import annotations

from llvmlite import ir

from tilewright.targets.cpu.loops import I32, I64, POINTER, i64
from tilewright.targets.llvm.values import Builder, Value

# Less work than this is not worth a second thread, and less than that is not worth waking one.
PARALLEL_SECONDS = 3.5e-6
BRIEF_SECONDS = 12e-6
CHUNK_SECONDS = 4e-6
MOST_CHUNKS = 64

REGION = ir.FunctionType(ir.VoidType(), [POINTER, I64, I32])
PARALLEL = ir.FunctionType(I32, [POINTER, POINTER, I64, I32])
MAIN = ir.FunctionType(I32, [POINTER, POINTER, POINTER, I32])
DRIVER = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I32])
# What a kernel's driver is called in the object of each kernel.
KERNEL = "tw_kernel"


class FunctionPointer:
    """A pointer to a function, which the builder may call."""

    def __init__(self, pointer: Value, function_type: ir.FunctionType) -> None:
        self.pointer = pointer
        self.function_type = function_type

    def get_reference(self) -> str:
        return self.pointer.get_reference()


def launch(
    builder: Builder, region: ir.Function, table: Value, parallel: Value, threads: Value, chunks: int, seconds: float
) -> None:
    """Run the chunks of a region that takes so many seconds on one core."""
    if chunks == 1:
        builder.call(region, [table, i64(0), ir.Constant(I32, 0)])
        return
    count = -chunks if seconds < BRIEF_SECONDS else chunks
    builder.call(FunctionPointer(parallel, PARALLEL), [region, table, i64(count), threads])


def chunk_count(points: int, seconds: float, threads: int) -> int:
    """How many pieces a region is cut into: one when it is too short to share, else pieces worth claiming, as many for
    one thread as for another."""
    if points <= 1 or seconds < PARALLEL_SECONDS:
        return 1
    pieces = max(2, min(int(seconds / CHUNK_SECONDS), MOST_CHUNKS))
    if pieces > threads:
        pieces -= pieces % threads
    return min(points, pieces)


def first_point(builder: Builder, chunk: Value, points: int, chunks: int) -> Value:
    """The start of a chunk: sizes of chunks differ by at most one grid point."""
    return builder.udiv(builder.mul(chunk, i64(points), flags=["nuw"]), i64(chunks))
