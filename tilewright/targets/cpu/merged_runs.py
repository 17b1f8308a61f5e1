"""Merge two sorted runs, a vector at a time: the smaller one of the runs' next integers states which vector comes next,
which a network puts in order with what is left of those before; the lower half of both is final.

Two parts of the result are merged in turn, which do not wait for each other. Bisection finds at which indices of the
runs the second one begins (Odeh, Green et al., "Merge path - parallel merging made simple", 2012). A vector of integers
that come last follows each run: what is read there changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.machines.machine import Machine
from tilewright.targets.cpu.loops import I64, POINTER, entry_alloca, i64, loop, maximum, minimum, offset_pointer
from tilewright.targets.cpu.sorting_network import MemorySort
from tilewright.targets.llvm.values import Builder, Value, builder_of


def merge_runs(
    builder: Builder, machine: Machine, bits: int, runs: tuple[Value, Value], target: Value, half: Value
) -> None:
    """Write two runs of `half` signed integers of `bits` bits in order; the target has room for a vector more."""
    name = f"merge_runs.i{bits}"
    function = builder.module.globals.get(name)
    if function is None:
        type = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, POINTER, I64])
        function = ir.Function(builder.module, type, name)
        function.linkage = "internal"
        inner = builder_of(function)
        _write(inner, MemorySort(machine, 1, bits), *function.args)
        inner.ret_void()
    builder.call(function, [*runs, target, half])


def _write(builder: Builder, sort: MemorySort, first: Value, second: Value, target: Value, half: Value) -> None:
    lanes, count = sort.lanes, builder.add(half, half)
    middle = builder.and_(half, i64(-lanes))
    place = _place_of(builder, sort.bits, first, second, half, middle)
    runs = (first, second)
    lower = _Stream(builder, sort, runs, half, (i64(0), i64(0)), target)
    upper = _Stream(builder, sort, runs, half, (place, builder.sub(middle, place)), _at(builder, target, middle, sort))
    with loop(builder, i64(0), middle, lanes, "both") as at:
        lower.step(at)
        upper.step(at)
    with loop(builder, middle, builder.sub(count, middle), lanes, "rest") as at:
        upper.step(at)


def _place_of(builder: Builder, bits: int, first: Value, second: Value, half: Value, taken: Value) -> Value:
    """How many of the `taken` smallest integers are in the first run: of equal ones those of the first run are."""
    low, high = entry_alloca(builder, I64), entry_alloca(builder, I64)
    builder.store(maximum(builder, i64(0), builder.sub(taken, half)), low)
    builder.store(minimum(builder, taken, half), high)
    test, body, end = (builder.append_basic_block(name) for name in ("bisect", "bisect.body", "bisect.end"))
    builder.branch(test)
    builder.position_at_end(test)
    least, most = builder.load(low, typ=I64), builder.load(high, typ=I64)
    builder.cbranch(builder.icmp_signed("<", least, most), body, end)
    builder.position_at_end(body)
    place = builder.lshr(builder.add(least, most), i64(1))
    other = builder.sub(builder.sub(taken, place), i64(1))
    one = builder.load(offset_pointer(builder, first, place, bits // 8), typ=ir.IntType(bits), align=bits // 8)
    rival = builder.load(offset_pointer(builder, second, other, bits // 8), typ=ir.IntType(bits), align=bits // 8)
    is_taken = builder.icmp_signed("<=", one, rival)
    builder.store(builder.select(is_taken, builder.add(place, i64(1)), least), low)
    builder.store(builder.select(is_taken, most, place), high)
    builder.branch(test)
    builder.position_at_end(end)
    return least


class _Stream:
    """A merge from an index of each run on; `left` is what is left of the vectors before, in order."""

    def __init__(
        self,
        builder: Builder,
        sort: MemorySort,
        runs: Sequence[Value],
        half: Value,
        starts: Sequence[Value],
        target: Value,
    ) -> None:
        self.builder, self.sort, self.runs, self.half, self.target = builder, sort, runs, half, target
        self.places = [entry_alloca(builder, I64) for _ in runs]
        self.left = entry_alloca(builder, _vector(sort))
        for place, start in zip(self.places, starts, strict=True):
            builder.store(start, place)
        builder.store(self._next(), self.left)

    def step(self, at: Value) -> None:
        """Write a vector of the result."""
        builder, sort = self.builder, self.sort
        left, network = (
            builder.load(self.left, typ=ir.VectorType(ir.IntType(sort.bits), sort.lanes)),
            sort.network(builder),
        )
        pair = network.in_order((left,), network.turned((self._next(),)))
        (final,), (rest,) = network.merged(pair, sort.lanes)
        sort.store(builder, [self.target], at, (final,))
        builder.store(rest, self.left)

    def _next(self) -> Value:
        """The next vector of the run whose next integer is smaller; after its end, of integers that come last."""
        builder, sort = self.builder, self.sort
        here = [builder.load(place, typ=I64) for place in self.places]
        pointers = [_at(builder, run, place, sort) for run, place in zip(self.runs, here, strict=True)]
        element = ir.IntType(sort.bits)
        first, second = (builder.load(pointer, typ=element, align=sort.bits // 8) for pointer in pointers)
        is_second = builder.icmp_signed("<", second, first)
        pointer = builder.select(is_second, pointers[1], pointers[0])
        steps = builder.select(is_second, i64(0), i64(sort.lanes)), builder.select(is_second, i64(sort.lanes), i64(0))
        for place, before, step in zip(self.places, here, steps, strict=True):
            builder.store(minimum(builder, self.half, builder.add(before, step)), place)
        (values,) = sort.load(builder, [pointer], i64(0))
        return values


def _vector(sort: MemorySort) -> ir.VectorType:
    return ir.VectorType(ir.IntType(sort.bits), sort.lanes)


def _at(builder: Builder, memory: Value, place: Value, sort: MemorySort) -> Value:
    return offset_pointer(builder, memory, place, sort.bits // 8)
