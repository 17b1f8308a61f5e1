"""Lower a program of many equal layers by lowering one of few layers, and repeat the calls that a layer becomes.

Passes look at the neighbourhood of an operation, so that all layers but the first and the last ones become the same
calls. The program is lowered with few layers, and again with one more: if the second result is the first one with a
layer repeated, the result of the whole program is the first one with all the missing layers repeated. Otherwise the
program is lowered as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, Operation, Region, SSAValue

from tilewright.array_digests import digest_array
from tilewright.dialects.base import rebuilt
from tilewright.dialects.func import FuncOp
from tilewright.passes.base import Origin, Remark, Unit
from tilewright.passes.repeated_layers import EDGE, FlatBlock, Layers, Name, array_of, find_layers, flatten
from tilewright.passes.requested import RequestedSchedules

# The layers that are lowered, and the fewest of a program for which they are less work.
LOWERED, LEAST = 5, 20
# The least part of a program's operations that is omitted: the rest is lowered twice.
LEAST_OMITTED = 0.4


def lower_few_layers(unit: Unit, lower: Callable[[Unit], None]) -> bool:
    """Lower a program to calls of kernels by lowering few of its layers; returns whether that was possible."""
    layers = find_layers(flatten(unit.main.body.block), LEAST)
    if layers is None or (layers.count - LOWERED) * layers.period < LEAST_OMITTED * len(layers.flat.ops):
        return False
    few, more = (_with_layers(unit, layers, count) for count in (LOWERED, LOWERED + 1))
    lower(few)
    lower(more)
    one_more = few.module.clone()
    if not _repeat(unit, _main(one_more), layers, 1) or not one_more.is_structurally_equivalent(more.module):
        return False
    missing = layers.count - LOWERED
    if not _repeat(unit, few.main, layers, missing):
        return False
    unit.module = few.module
    unit.schedules.update(few.schedules)
    unit.seconds.update(few.seconds)
    unit.requested = few.requested
    unit.remarks += _remarks(few.remarks, more.remarks, missing)
    return True


# ---- a program with fewer layers ------------------------------------------------------------------------------------


def _with_layers(unit: Unit, layers: Layers, count: int) -> Unit:
    """The program with the first layers alone. Operations after the layers read from the last of these."""
    main = unit.main
    others = [op.clone() for op in unit.module.body.block.ops if op is not main]
    types = main.function_type
    shortened = FuncOp("main", (types.inputs.data, types.outputs.data), Region(_shortened(layers, count)))
    return Unit(
        ModuleOp([shortened, *others]),
        unit.constants,
        unit.machine,
        unit.threads,
        donated=unit.donated,
        name=unit.name,
        storage=unit.storage,
        origins=unit.origins,
        fallbacks=unit.fallbacks,
        requested=RequestedSchedules(unit.requested.by_name, unit.requested.for_all),
    )


def _shortened(layers: Layers, count: int) -> Block:
    flat, missing = layers.flat, layers.count - count
    block = Block(arg_types=flat.block.arg_types)
    copies: dict[SSAValue, SSAValue] = dict(zip(flat.block.args, block.args, strict=True))
    for op in flat.ops[: layers.start + count * layers.period]:
        block.add_op(op.clone(copies))
    values = list(flat.values())
    first = flat.first_result
    for number in range(first[layers.end] - EDGE * layers.results, first[layers.end]):
        copies[values[number]] = copies[values[number - missing * layers.results]]
    earlier = {name: row[layer - missing] for row in layers.own for layer, name in _last(row)}
    for name, other in earlier.items():
        if isinstance(name, int) and isinstance(other, int):
            copies[flat.block.args[name]] = block.args[other]
    for op in flat.ops[layers.end :]:
        copy = op.clone(copies)
        name = earlier.get(array_of(op))
        if isinstance(name, str):
            copy.properties["resource"] = StringAttr(name)
        block.add_op(copy)
    return block


def _last(row: Sequence[Name]) -> list[tuple[int, Name]]:
    """The own values of the last layers that others may use, with their layers."""
    return list(enumerate(row))[-EDGE:]


# ---- a lowered program with more layers -----------------------------------------------------------------------------


def _main(module: ModuleOp) -> FuncOp:
    return next(op for op in module.body.block.ops if isinstance(op, FuncOp) and op.sym_name.data == "main")


def _repeat(unit: Unit, main: FuncOp, layers: Layers, times: int) -> bool:
    """Repeat the last layer of a program that was lowered with few of its layers; returns whether it has one to
    repeat."""
    later = _LaterNames(unit, layers)
    lowered = _lowered_layers(flatten(main.body.block), later)
    if lowered is None:
        return False
    own = [later.row(row, times) for row in lowered.own]
    read = {name: later.of(name, times) for name in _read_after(lowered)}
    if later.fails:
        return False
    results = _insert_layers(lowered, own, times)
    _replace_after(lowered, results, read, times)
    return True


def _lowered_layers(flat: FlatBlock, later: _LaterNames) -> Layers | None:
    """The layers that were lowered, without operations after them that are like a layer."""
    reading = [n for n, names in enumerate(flat.names()) if any(map(later.is_own, names))]
    if reading:
        size = (reading[-1] - reading[0]) // (LOWERED - 1)
        flat = flat.between(reading[0] - size, reading[-1] + size)
    lowered = find_layers(flat, EDGE + 1)
    while lowered is not None and not all(later.is_own(row[-1]) for row in lowered.own):
        lowered = lowered.without_last() if lowered.count > EDGE + 1 else None
    return lowered


class _LaterNames:
    """The own values of later layers, those that are computed from captured arrays at compile time included."""

    def __init__(self, unit: Unit, layers: Layers) -> None:
        self.unit = unit
        self.layers = layers
        self.fails = False

    def is_own(self, name: Name) -> bool:
        """Whether a value is a layer's own."""
        if name in self.layers.row_of:
            return True
        origin = self.unit.origins.get(name) if isinstance(name, str) else None
        return origin is not None and any(isinstance(each, str) and self.is_own(each) for each in origin.operands)

    def row(self, row: Sequence[Name], times: int) -> list[Name]:
        """The own values of so many layers after those of a row."""
        number, last = self.layers.row_of.get(row[-1], (-1, 0))
        if number >= 0:
            found = self.layers.own[number][last + 1 : last + 1 + times]
        else:
            found = [self.of(row[-1], n + 1) for n in range(times)]
        self.fails |= self.of(row[-2], 1) != row[-1] or len({*row, *found}) != len(row) + times
        return found

    def of(self, name: Name, times: int) -> Name:
        """The value that a layer has as its own so many layers later; `name` where that is no layer's own."""
        if name in self.layers.row_of:
            number, layer = self.layers.row_of[name]
            self.fails |= layer + times >= self.layers.count
            return self.layers.own[number][min(layer + times, self.layers.count - 1)] if layer >= EDGE else name
        origin = self.unit.origins.get(name) if isinstance(name, str) else None
        return name if origin is None else self._computed(name, origin, times)

    def _computed(self, name: Name, origin: Origin, times: int) -> Name:
        operands = [str(self.of(each, times)) if isinstance(each, str) else each for each in origin.operands]
        if all(new == old for new, old in zip(operands, origin.operands, strict=True) if isinstance(new, str)):
            return name
        constants = self.unit.constants
        value = origin.compute([constants[each] if isinstance(each, str) else each for each in operands])
        found = digest_array(value)
        constants.setdefault(found, value)
        self.unit.origins.setdefault(found, Origin(origin.compute, tuple(operands)))
        return found


def _read_after(lowered: Layers) -> list[Name]:
    """The arguments and captured arrays that operations after the layers read."""
    flat = lowered.flat
    read = flat.operands[flat.first_operand[lowered.end] :]
    return [*read[read < flat.arguments].tolist(), *filter(None, flat.arrays[lowered.end :])]


def _insert_layers(lowered: Layers, own: Sequence[Sequence[Name]], times: int) -> list[SSAValue]:
    """Insert copies of the last layer, each with its own values; returns the results of all layers."""
    flat, size = lowered.flat, lowered.results
    arguments, template = flat.block.args, flat.ops[lowered.end - lowered.period : lowered.end]
    results = _results(lowered)
    moved = {value: n for n, value in enumerate(results) if n >= len(results) - 2 * size}
    rows = {row[-1]: n for n, row in enumerate(lowered.own)}
    own_arguments = {arguments[name]: n for name, n in rows.items() if isinstance(name, int)}
    copies: list[Operation] = []
    for layer in range(times):
        for op in template:
            operands = [
                results[moved[value] + (layer + 1) * size]
                if value in moved
                else arguments[cast("int", own[own_arguments[value]][layer])]
                if value in own_arguments
                else value
                for value in op.operands
            ]
            copy = rebuilt(op, operands)
            copy.location = op.location
            if (row := rows.get(array_of(op))) is not None:
                copy.properties["resource"] = StringAttr(str(own[row][layer]))
            copies.append(copy)
            results += copy.results
    flat.block.insert_ops_after(copies, template[-1])
    return results


def _results(layers: Layers) -> list[SSAValue]:
    first = layers.flat.first_result
    return list(layers.flat.values())[first[layers.start] : first[layers.end]]


def _replace_after(lowered: Layers, results: Sequence[SSAValue], later: Mapping[Name, Name], times: int) -> None:
    """Let the operations after the layers read what is as many layers later."""
    flat = lowered.flat
    known = _results(lowered)
    last = (lowered.count - EDGE) * lowered.results
    replaced = {value: results[n + times * lowered.results] for n, value in enumerate(known) if n >= last}
    for name, other in later.items():
        if isinstance(name, int) and isinstance(other, int):
            replaced[flat.block.args[name]] = flat.block.args[other]
    for op in (inner for each in flat.ops[lowered.end :] for inner in each.walk()):
        if any(value in replaced for value in op.operands):
            op.operands = [replaced.get(value, value) for value in op.operands]
        if (name := later.get(array_of(op))) is not None:
            op.properties["resource"] = StringAttr(str(name))


def _remarks(few: Sequence[Remark], more: Sequence[Remark], times: int) -> list[Remark]:
    """The remarks of a program with as many layers more, each after the last equal one."""
    counts = Counter(few)
    added = Counter(more) - counts
    remarks: list[Remark] = []
    for remark in few:
        counts[remark] -= 1
        remarks += [remark] * (1 if counts[remark] else 1 + times * added[remark])
    return remarks
