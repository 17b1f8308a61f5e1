"""Print a run of many launches as a loop over a table, which takes less time to compile than a call for each.

The table has the kernel of each launch and its buffers: the position of an input, output or constant in the program's
table of pointers, or `-1 - offset` for a slot of the arena.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
from llvmlite import ir

from tilewright.targets.cpu.loops import I8, I32, I64, POINTER, i64, loop, offset_pointer
from tilewright.targets.cpu.regions import DRIVER, FunctionPointer
from tilewright.targets.llvm.values import Builder, Value


class TableLaunch(msgspec.Struct, frozen=True):
    """A launch of a kernel: its function, and the codes of its buffers."""

    function: ir.Function
    buffers: tuple[int, ...]


def launch_from_table(
    builder: Builder,
    launches: Sequence[TableLaunch],
    buffers: Value,
    arena: Value,
    memory: Sequence[Value],
    arguments: Sequence[Value],
) -> None:
    """Call the kernels one after another. Each gets a table of its buffers, followed by the pointers `memory`, and the
    other `arguments` of a driver."""
    numbers = {name: n for n, name in enumerate(dict.fromkeys(each.function.name for each in launches))}
    functions = {each.function.name: each.function for each in launches}
    ends = itertools.accumulate((len(each.buffers) for each in launches), initial=0)
    codes = _table(builder, I64, [code for each in launches for code in each.buffers])
    starts = _table(builder, I32, list(ends))
    kernels = _table(builder, I32, [numbers[each.function.name] for each in launches])
    with builder.goto_entry_block():
        drivers = builder.alloca(POINTER, len(numbers))
        table = builder.alloca(POINTER, max(len(each.buffers) for each in launches) + len(memory))
    for name, number in numbers.items():
        builder.store(functions[name], offset_pointer(builder, drivers, i64(number), 8))
    with loop(builder, i64(0), i64(len(launches)), 1, "launch") as launch:
        first, after = (_entry(builder, starts, index, I32) for index in (launch, builder.add(launch, i64(1))))
        with loop(builder, first, after, 1, "buffer") as position:
            pointer = _pointer(builder, _entry(builder, codes, position, I64), buffers, arena)
            builder.store(pointer, offset_pointer(builder, table, builder.sub(position, first), 8))
        count = builder.sub(after, first)
        for n, value in enumerate(memory):
            builder.store(value, offset_pointer(builder, table, builder.add(count, i64(n)), 8))
        driver = _entry(builder, drivers, _entry(builder, kernels, launch, I32), POINTER)
        builder.call(FunctionPointer(driver, DRIVER), [table, *arguments])


def _table(builder: Builder, element: ir.IntType, values: Sequence[int]) -> Value:
    """A constant array of the module."""
    shape = ir.ArrayType(element, len(values))
    table: Any = ir.GlobalVariable(builder.module, shape, builder.module.get_unique_name("launches"))
    table.initializer = _Integers(shape, element, values)
    table.global_constant = True
    table.linkage = "internal"
    return table


class _Integers(ir.Constant):
    """An array of integers in one text; `ir.Constant` has an object for each."""

    def __init__(self, shape: ir.ArrayType, element: ir.IntType, values: Sequence[int]) -> None:
        self.type = shape
        self.constant = f"[{', '.join([f'{element} {value}' for value in values])}]"

    def _get_reference(self) -> str:
        return self.constant


def _entry(builder: Builder, table: Value, index: Value, type: Any) -> Value:
    """An element of a table; integers are widened."""
    bytes = 4 if type is I32 else 8
    value = builder.load(offset_pointer(builder, table, index, bytes), typ=type)
    return builder.sext(value, I64) if type is I32 else value


def _pointer(builder: Builder, code: Value, buffers: Value, arena: Value) -> Value:
    """The buffer of a code."""
    is_listed = builder.icmp_signed(">=", code, i64(0))
    listed = _entry(builder, buffers, builder.select(is_listed, code, i64(0)), POINTER)
    in_arena = builder.gep(arena, [builder.xor(code, i64(-1))], source_etype=I8)
    return builder.select(is_listed, listed, in_arena)
