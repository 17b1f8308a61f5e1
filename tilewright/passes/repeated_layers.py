"""Find the layers of a program: a run of its operations that repeats, each repeat on values of its own.

    %a1 = array.contract(%x, %w1); %y1 = array.map(%a1)
    %a2 = array.contract(%y1, %w2); %y2 = array.map(%a2)
    %a3 = array.contract(%y2, %w3); %y3 = array.map(%a3)

Three layers of two operations. An operand of a layer is invariant (one value in all layers), moves along (a result of
the same layer, or of one before it) or is the layer's own: an argument of the program, such as `%w1`. Captured arrays
are own as well: of an `array.constant` the name of the array differs from layer to layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.dialects import array

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Name: TypeAlias = int | str
"""An argument of the program by its position, or a captured array."""

# Kinds of keys that the period is looked for in, and how many layers apart equal keys of them may be.
_MOST_KEYS, _MOST_APART = 8, 6
# The first and last layers whose values others may use.
EDGE = 2


class FlatBlock(msgspec.Struct, eq=False):
    """A block as numbers: its arguments are numbered first, then the results of its operations.

    Attributes:
        keys: equal for operations of one source location that differ in operands, and in the names of captured
            arrays, alone.
        first_result: the number of the first result of each operation, then how many values there are.
        first_operand: the position in `operands` of the first operand of each operation, then how many there are.
        operands: the values that operations read, those that their regions read included.
        last_user: the last operation that uses a result of each operation; the operation itself where none does.
        arrays: the captured array of each `array.constant`; empty for other operations.
    """

    block: Block
    ops: list[Operation]
    arguments: int
    keys: Numbers
    first_result: Numbers
    first_operand: Numbers
    operands: Numbers
    last_user: Numbers
    arrays: list[str]

    def values(self) -> Iterator[SSAValue]:
        """The values in the order of their numbers."""
        yield from self.block.args
        for op in self.ops:
            yield from op.results

    def names(self) -> Iterator[list[Name]]:
        """The arguments that each operation reads, and the captured array that it stands for."""
        operands, first = self.operands.tolist(), self.first_operand.tolist()
        for n, captured in enumerate(self.arrays):
            read = [value for value in operands[first[n] : first[n + 1]] if value < self.arguments]
            yield [*read, captured] if captured else read

    def between(self, start: int, end: int) -> FlatBlock:
        """The block, of which the operations outside a range are equal to none."""
        keys = -1 - np.arange(len(self.keys))
        start = max(start, 0)
        keys[start:end] = self.keys[start:end]
        return replace(self, keys=keys)


def flatten(block: Block) -> FlatBlock:
    """Number the values of a block that uses none from outside, and compare its operations."""
    ops = list(block.ops)
    numbers: dict[SSAValue, int] = {argument: n for n, argument in enumerate(block.args)}
    comparison = _Comparison()
    keys, arrays, operands = list[int](), list[str](), list[int]()
    first_result, first_operand = [len(numbers)], [0]
    for op in ops:
        keys.append(comparison.key(op))
        arrays.append(array_of(op))
        if op.regions:
            inner = (operand for each in op.walk() for operand in each.operands)
            operands += [numbers[operand] for operand in inner if operand in numbers]
        else:
            operands += [numbers[operand] for operand in op.operands]
        for result in op.results:
            numbers[result] = len(numbers)
        first_result.append(len(numbers))
        first_operand.append(len(operands))
    flat = FlatBlock(
        block,
        ops,
        len(block.args),
        np.array(keys, np.int64),
        np.array(first_result, np.int64),
        np.array(first_operand, np.int64),
        np.array(operands, np.int64),
        np.arange(len(ops)),
        arrays,
    )
    _find_last_users(flat)
    return flat


def _find_last_users(flat: FlatBlock) -> None:
    users = np.repeat(np.arange(len(flat.ops)), np.diff(flat.first_operand))
    computed = flat.operands >= flat.arguments
    owners = np.searchsorted(flat.first_result, flat.operands[computed], side="right") - 1
    np.maximum.at(flat.last_user, owners, users[computed])


class _Comparison:
    """Keys of operations. Attributes are compared once for each object: most are shared, and hashing one is slow."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}
        self._by_identity: dict[int, int] = {}

    def key(self, op: Operation) -> int:
        if op.regions:
            return self._number(op)  # an operation with regions is equal to none
        properties = op.properties
        parts: list[object] = [op.name, len(op.operands), self._attribute(op.location)]
        for name, attribute in properties.items():
            parts += (name, self._attribute(attribute) if name != "resource" or not array_of(op) else True)
        parts += [self._attribute(result.type) for result in op.results]
        return self._number(tuple(parts))

    def _attribute(self, attribute: Attribute) -> int:
        found = self._by_identity.get(id(attribute))
        if found is None:
            found = self._by_identity[id(attribute)] = self._number(attribute)
        return found

    def _number(self, value: object) -> int:
        return self._known.setdefault(value, len(self._known))


def array_of(op: Operation) -> str:
    """The captured array that an operation stands for; empty where it stands for none."""
    resource = op.properties.get("resource") if type(op) is array.ConstantOp else None
    return resource.data if isinstance(resource, StringAttr) else ""


class Layers(msgspec.Struct, eq=False):
    """Layers of a block: the operations from `start` on, `period` for each of `count` layers.

    Attributes:
        flat: the block.
        own: the names of each own value, in the order of the layers, by rows.
        row_of: a row and a layer of each name.
    """

    flat: FlatBlock
    start: int
    period: int
    count: int
    own: list[list[Name]]
    row_of: dict[Name, tuple[int, int]]

    @property
    def end(self) -> int:
        """The first operation after the layers."""
        return self.start + self.count * self.period

    @property
    def results(self) -> int:
        """How many results the operations of a layer have."""
        first = self.flat.first_result
        return int(first[self.start + self.period] - first[self.start])

    def without_last(self) -> Layers:
        """All layers but the last one."""
        own = [row[:-1] for row in self.own]
        return Layers(self.flat, self.start, self.period, self.count - 1, own, _positions(own))

    def layer_of(self, value: int) -> int | None:
        """The layer that computes a value; None where none does."""
        first = self.flat.first_result
        if not first[self.start] <= value < first[self.end]:
            return None
        return int(value - first[self.start]) // self.results

    def is_at_edge(self, layer: int) -> bool:
        """Whether others than the layers may use a value of a layer."""
        return layer < EDGE or layer >= self.count - EDGE


def find_layers(flat: FlatBlock, least: int) -> Layers | None:
    """The layers with the most operations, at least so many layers."""
    if len(flat.ops) <= least:
        return None
    found = [each for period in _periods(flat.keys, least) if (each := _longest(flat, period)) is not None]
    for start, period, count in sorted(found, key=lambda each: (EDGE - each[2]) * each[1]):
        layers = _layers(flat, start, period, count) if count >= least else None
        if layers is not None:
            return layers
    return None


def _periods(keys: Numbers, least: int) -> list[int]:
    """Numbers of operations after which rare ones come again."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    sizes = np.diff(starts, append=len(keys))
    often = np.flatnonzero(sizes >= least)
    found: dict[int, None] = {}
    for n in often[np.argsort(sizes[often], kind="stable")][:_MOST_KEYS]:
        positions = order[starts[n] : starts[n] + sizes[n]]
        for apart in range(1, min(_MOST_APART, sizes[n] - 1) + 1):
            distances, counts = np.unique(positions[apart:] - positions[:-apart], return_counts=True)
            found[int(distances[np.argmax(counts)])] = None
    return list(found)


_MOVED, _INVARIANT, _OWN = 1, 2, 3


def _longest(flat: FlatBlock, period: int) -> tuple[int, int, int] | None:
    """The longest run of layers with a period: its start, the period, and how many layers."""
    start, end = _longest_run(flat.keys[period:] == flat.keys[:-period])
    if end - start < period:
        return None
    first = flat.first_operand
    kinds = _kinds(flat, start, end, period)
    owners = np.repeat(np.arange(start, end), np.diff(first[start : end + 1]))
    step = int(first[start + period] - first[start])
    fits = np.ones(end - start, bool)
    fits[owners[kinds == 0] - start] = False
    # Others than the next layer use no value of a layer, but after the last ones.
    fits[flat.last_user[start:end] - np.arange(start, end) > 2 * period] = False
    # An operand is of one kind in all layers.
    before, after = kinds[: len(kinds) - step], kinds[step:]
    fits[owners[step:][(before != after) & (before != 0)] - start] = False
    longest = _longest_run(fits)
    first_op, last_op = start + longest[0], start + longest[1]
    return first_op, period, (last_op - first_op) // period + 1


def _kinds(flat: FlatBlock, start: int, end: int, period: int) -> Numbers:
    """The kinds of the operands of operations, from those that the operations a period later have; 0 for none."""
    first, operands = flat.first_operand, flat.operands
    step = first[start + period] - first[start]
    here, later = operands[first[start] : first[end]], operands[first[start] + step : first[end] + step]
    results = flat.first_result[start + period] - flat.first_result[start]
    arguments = here < flat.arguments
    readers = np.repeat(flat.first_result[start:end], np.diff(first[start : end + 1]))
    is_near = readers - here <= 2 * results  # of the same layer or of the one before it
    kinds = np.zeros(len(here), np.int64)
    kinds[arguments & (later < flat.arguments)] = _OWN
    kinds[~arguments & (later - here == results) & is_near] = _MOVED
    kinds[here == later] = _INVARIANT
    return kinds


def _longest_run(flags: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[int, int]:
    """The longest range in which all flags are set."""
    changes = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    starts, ends = changes[::2], changes[1::2]
    if not len(starts):
        return 0, 0
    n = int(np.argmax(ends - starts))
    return int(starts[n]), int(ends[n])


def _layers(flat: FlatBlock, start: int, period: int, count: int) -> Layers | None:
    """The layers of a run; None where a layer's own values are also those of another layer, or are used elsewhere in a
    way that depends on how many layers there are."""
    rows = _own_rows(flat, start, period, count)
    own = None if rows is None else _distinct(rows)
    if own is None:
        return None
    layers = Layers(flat, start, period, count, own, _positions(own))
    return layers if _ends_at_edges(layers) else None


def _positions(rows: Sequence[Sequence[Name]]) -> dict[Name, tuple[int, int]]:
    return {name: (n, layer) for n, row in enumerate(rows) for layer, name in enumerate(row)}


def _own_rows(flat: FlatBlock, start: int, period: int, count: int) -> list[list[Name]] | None:
    first, end = flat.first_operand, start + count * period
    step = int(first[start + period] - first[start])
    table = flat.operands[first[start] : first[end]].reshape(count, step)
    is_own = (table[0] < flat.arguments) & (table[0] != table[1])
    rows: list[list[Name]] = table[:, is_own].T.tolist()
    for n in range(start, start + period):
        names = flat.arrays[n:end:period]
        if names[0] and len(set(names)) > 1:
            rows.append([*names])
    return rows if all(len(set(row)) == count for row in rows) else None


def _distinct(rows: Sequence[Sequence[Name]]) -> list[list[Name]] | None:
    """The rows without repeats; None where two have names in common but in one layer or the next one."""
    distinct = list(dict.fromkeys(map(tuple, rows)))
    seen: dict[Name, tuple[int, int]] = {}
    apart: dict[tuple[int, int], set[int]] = {}
    for n, row in enumerate(distinct):
        for layer, name in enumerate(row):
            other, in_layer = seen.setdefault(name, (n, layer))
            apart.setdefault((other, n), set()).add(layer - in_layer)
    if any(len(each) > 1 or abs(next(iter(each))) > 1 for each in apart.values()):
        return None
    return [[*row] for row in distinct]


def _ends_at_edges(layers: Layers) -> bool:
    """Whether operations before and after the layers use values of the first and last layers alone."""
    flat = layers.flat
    first = flat.first_operand
    before, after = flat.operands[: first[layers.start]].tolist(), flat.operands[first[layers.end] :].tolist()
    names = [*before, *flat.arrays[: layers.start]]
    if any(layers.row_of[name][1] >= EDGE for name in names if name in layers.row_of):
        return False
    names = [*after, *flat.arrays[layers.end :]]
    if not all(layers.is_at_edge(layers.row_of[name][1]) for name in names if name in layers.row_of):
        return False
    used = (layers.layer_of(value) for value in after)
    return all(layer is None or layers.is_at_edge(layer) for layer in used)
