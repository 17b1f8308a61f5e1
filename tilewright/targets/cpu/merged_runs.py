"""Merge two sorted runs of equal length: the smaller half of the integers from the front, the larger one from the back.

Neither passes the end of a run, as it takes no more integers than a run has; nothing branches on what is compared.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.targets.cpu.loops import I64, POINTER, add, entry_alloca, i64, loop, offset_pointer, subtract
from tilewright.targets.llvm.values import Builder, Value, builder_of, intrinsic


def merge_runs(builder: Builder, bits: int, runs: Value, target: Value, half: Value) -> None:
    """Write two runs of `half` signed integers of `bits` bits, which are adjacent, to other memory in order."""
    name = f"merge_runs.i{bits}"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64]), name)
        function.linkage = "internal"
        _write(function, bits)
    builder.call(function, [runs, target, half])


def _write(function: ir.Function, bits: int) -> None:
    builder = builder_of(function)
    runs, target, half = function.args
    last = subtract(builder, add(builder, half, half), i64(1))
    low, high = _places(builder, i64(0), half), _places(builder, subtract(builder, half, i64(1)), last)
    with loop(builder, i64(0), half, 1, "merge") as at:
        for places, fn, step, to in ((low, "smin", 1, at), (high, "smax", -1, subtract(builder, last, at))):
            here = [builder.load(place, typ=I64) for place in places]
            first, second = (_load(builder, runs, place, bits) for place in here)
            best = intrinsic(builder, fn, [first, second])
            builder.store(best, offset_pointer(builder, target, to, bits // 8), align=bits // 8)
            # The second run is taken where it is strictly better.
            comparison = "<" if step > 0 else ">"
            moved = builder.zext(builder.icmp_signed(comparison, second, first), I64)
            other = subtract(builder, i64(1), moved)
            for place, index, taken in zip(places, here, (other, moved), strict=True):
                builder.store(builder.add(index, taken if step > 0 else builder.neg(taken)), place)
    builder.ret_void()


def _places(builder: Builder, *starts: Value) -> list[Value]:
    places = [entry_alloca(builder, I64) for _ in starts]
    for place, start in zip(places, starts, strict=True):
        builder.store(start, place)
    return places


def _load(builder: Builder, memory: Value, at: Value, bits: int) -> Value:
    return builder.load(offset_pointer(builder, memory, at, bits // 8), typ=ir.IntType(bits), align=bits // 8)
