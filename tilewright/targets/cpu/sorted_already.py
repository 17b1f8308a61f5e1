"""Whether integers in memory are in order: lines that are sorted, or whose elements are equal, are left as they are.

The comparison ends with the first vector that is out of order, so that others cost next to nothing.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.machines.machine import Machine
from tilewright.targets.cpu.loops import I1, I64, POINTER, i64, loop, offset_pointer
from tilewright.targets.llvm.values import Builder, Value, builder_of

# Vectors that are compared before a branch.
_VECTORS = 4


def is_sorted(builder: Builder, machine: Machine, bits: int, memory: Value, count: Value) -> Value:
    """Whether `count` signed integers of `bits` bits ascend, equal ones included."""
    name = f"is_sorted.i{bits}"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(I1, [POINTER, I64]), name)
        function.linkage = "internal"
        _write(function, bits, machine.vector.bytes * 8 // bits)
    return builder.call(function, [memory, count])


def _write(function: ir.Function, bits: int, lanes: int) -> None:
    builder = builder_of(function)
    memory, count = function.args
    pairs = builder.sub(count, i64(1))
    whole = builder.mul(builder.sdiv(pairs, i64(_VECTORS * lanes)), i64(_VECTORS * lanes))
    for start, end, step, width in ((i64(0), whole, _VECTORS * lanes, lanes), (whole, pairs, 1, 1)):
        with loop(builder, start, end, step, "pairs") as at:
            later = [_is_greater(builder, memory, builder.add(at, i64(n)), bits, width) for n in range(0, step, width)]
            with builder.if_then(_any(builder, later, width), likely=False):
                builder.ret(I1(0))
    builder.ret(I1(1))


def _is_greater(builder: Builder, memory: Value, at: Value, bits: int, lanes: int) -> Value:
    """Whether integers from an index on are greater than those that follow each."""
    type = ir.IntType(bits) if lanes == 1 else ir.VectorType(ir.IntType(bits), lanes)
    here, following = (
        builder.load(offset_pointer(builder, memory, place, bits // 8), typ=type, align=bits // 8)
        for place in (at, builder.add(at, i64(1)))
    )
    return builder.icmp_signed(">", here, following)


def _any(builder: Builder, flags: list[Value], lanes: int) -> Value:
    found = flags[0]
    for flag in flags[1:]:
        found = builder.or_(found, flag)
    if lanes == 1:
        return found
    packed = builder.bitcast(found, ir.IntType(lanes))
    return builder.icmp_unsigned("!=", packed, packed.type(0))
