"""Sorting by a region that compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright import dtypes
from tilewright.api import lifting
from tilewright.api.array import Array
from tilewright.api.lifting import broadcast, cast, emit, emit_all
from tilewright.interop.stablehlo.ir import Block, Operation
from tilewright.interop.stablehlo.operators.elementwise import in_total_order, total_order
from tilewright.interop.stablehlo.regions import Expressions
from tilewright.interop.stablehlo.registry import Node, operation
from tilewright.records import dataclass

# Orders that are no comparisons of keys compare all elements with each other.
_MAX_COMPARED = 1 << 11
_DESCENDING = {"LT": False, "LE": False, "GT": True, "GE": True}


@dataclass(frozen=True)
class Key:
    """An expression of one element that is compared."""

    expression: int
    descending: bool
    is_total: bool


@operation("stablehlo.sort")
def sort(node: Node, *operands: Array) -> tuple[Array, ...]:
    """Arrays in the order that a region gives them along an axis. Equal ones keep their order."""
    axis = lifting.axis_of(node.integer("dimension", -1), operands[0].ndim)
    (region,) = node.regions
    return _ordered(node, region, operands, axis)


def approximate_top_k(node: Node, *operands: Array) -> tuple[Array, ...]:
    """The elements that come first in the order of a function, exactly: the recall that is asked for is a lower bound.
    The second half of the operands are elements that come last, which pad approximations."""
    config = node.get("mhlo.backend_config", {})
    (comparator,) = node.get("called_computations")
    axis = lifting.axis_of(config["reduction_dim"], operands[0].ndim)
    arrays = operands[: len(operands) // 2]
    ordered = _ordered(node, node.module.functions[comparator.name].body, arrays, axis)
    first = [slice(None)] * axis + [slice(0, node.types[0].shape[axis])]
    return tuple(x[tuple(first)] for x in ordered)


def _ordered(node: Node, region: Block, operands: Sequence[Array], axis: int) -> tuple[Array, ...]:
    order = _Comparator(region)
    keys = order.keys()
    if keys is None:
        return emit_all("sort", _ranks(node, region, operands, axis), *operands, axis=axis, descending=False)[1:]
    current = list(operands)
    for key in reversed(keys):
        current = _sorted_by(order.contents(node, key, current), current, axis, descending=key.descending)
    return tuple(current)


def _sorted_by(key: Array, operands: list[Array], axis: int, *, descending: bool) -> list[Array]:
    for n, x in enumerate(operands):
        if x is key:  # it need not be moved twice
            made = list(emit_all("sort", key, *operands[:n], *operands[n + 1 :], axis=axis, descending=descending))
            return [*made[1 : n + 1], made[0], *made[n + 1 :]]
    key = cast(key, dtypes.u8) if key.dtype.is_bool else key
    return list(emit_all("sort", key, *operands, axis=axis, descending=descending)[1:])


class _Comparator:
    """The comparison that a region computes; its arguments are a pair for each operand."""

    def __init__(self, region: Block) -> None:
        self._region = region
        self._expressions = Expressions()
        self._arguments = [self._expressions.number("argument", n) for n in range(len(region.arguments))]
        self._values = self._expressions.values(region, self._arguments) or {}

    def keys(self) -> list[Key] | None:
        """The keys, the most important one first; None where the order is of another kind."""
        verdict = self._region.operations[-1].operands
        return self._keys(self._values[verdict[0]]) if self._values and len(verdict) == 1 else None

    def contents(self, node: Node, key: Key, operands: Sequence[Array]) -> Array:
        """The values of a key, for all elements."""
        name = next(name for name, number in self._values.items() if number == key.expression)
        if name in self._region.arguments:
            key_array = operands[self._region.arguments.index(name) // 2]
        else:
            number = self._canonical(key.expression)
            if key.is_total and number is not None:
                return operands[number]
            last = Operation("stablehlo.return", (name,), (), (), {}, (), self._region.operations[-1].line)
            block = Block(self._region.arguments, self._region.types, (*self._region.operations[:-1], last))
            (made,) = node.lift(block, *(x for x in operands for _ in range(2)))
            key_array = broadcast(made, operands[0].shape)
        return total_order(key_array) if key.is_total and key_array.dtype.is_float else key_array

    def _canonical(self, expression: int) -> int | None:
        """The operand of which this is the form in which JAX compares floats: one zero, one NaN, above all. The
        primitive orders the operand itself so."""
        made = self._expressions
        for n, type in enumerate(self._region.types[::2]):
            if type.is_narrow or not type.dtype.is_float:
                continue
            x = self._arguments[2 * n]

            def literal(value: float, type: Any = type) -> int:
                content = np.array(value).astype(type.storage).tobytes()
                return made.number(("stablehlo.constant", str(type), content))

            zero = made.apply("select", made.compare("EQ", x, literal(0.0)), literal(0.0), x)
            if expression == made.apply("select", made.compare("NE", x, x), literal(np.nan), zero):
                return n
        return None

    def _keys(self, root: int) -> list[Key] | None:
        name, *operands = self._expressions.keys[root]
        if name[0] == "stablehlo.compare":
            key = self._key(root)
            return None if key is None else [key]
        if name == ("stablehlo.or",):
            for first, both in (operands, operands[::-1]):
                rest = self._rest(first, both)
                if rest is not None:
                    return rest
        if name == ("stablehlo.select",):
            is_equal, further, first = operands
            key = self._key(first)
            if key is not None and self._is_equality(is_equal, first):
                rest = self._keys(further)
                return None if rest is None else [key, *rest]
        return None

    def _rest(self, first: int, both: int) -> list[Key] | None:
        """The keys of `first or (equal and rest)`."""
        key = self._key(first)
        name, *operands = self._expressions.keys[both]
        if key is None or name != ("stablehlo.and",):
            return None
        for is_equal, further in (operands, operands[::-1]):
            if self._is_equality(is_equal, first):
                rest = self._keys(further)
                return None if rest is None else [key, *rest]
        return None

    def _is_equality(self, expression: int, comparison: int) -> bool:
        name, *operands = self._expressions.keys[expression]
        compared = self._expressions.keys[comparison][1:]
        return name[:2] == ("stablehlo.compare", "EQ") and sorted(operands) == sorted(compared)

    def _key(self, comparison: int) -> Key | None:
        """A comparison of the same expression of the first and the second of each pair."""
        name, *operands = self._expressions.keys[comparison]
        if name[0] != "stablehlo.compare" or name[1] not in _DESCENDING:
            return None
        first, second = operands
        firsts = set(self._arguments[::2])
        is_swapped = not self._expressions.uses(first, firsts)
        if is_swapped:
            first, second = second, first
        if not self._expressions.uses(first, firsts) or self._mirrored(first) != second:
            return None
        return Key(first, _DESCENDING[name[1]] != is_swapped, name[2])

    def _mirrored(self, root: int) -> int:
        """The expression with the second of each pair in place of the first."""
        swapped = {a: b for pair in zip(self._arguments[::2], self._arguments[1::2], strict=True) for a, b in [pair]}
        made: dict[int, int] = {}
        pending = [root]
        while pending:
            current = pending[-1]
            name, *operands = self._expressions.keys[current]
            waiting = [] if name == "argument" else [o for o in operands if o not in made]
            if waiting:
                pending.extend(waiting)
                continue
            pending.pop()
            if name == "argument":
                made[current] = swapped.get(current, current)
            else:
                made[current] = self._expressions.number(name, *(made[o] for o in operands))
        return made[root]


def _ranks(node: Node, region: Block, operands: Sequence[Array], axis: int) -> Array:
    """The destination index of each element: after the elements that compare before it, and after equal ones in front
    of it."""
    size = operands[0].shape[axis]
    if size > _MAX_COMPARED:
        raise node.unsupported(f"a sort of {size} elements by a region that compares no keys")
    rank = operands[0].ndim
    order = [*(d for d in range(rank) if d != axis), axis]
    rows = [lifting.transpose(x, order) for x in operands]
    square = (*rows[0].shape, size)
    pairs: list[Array] = []
    for row in rows:
        pairs.append(broadcast(lifting.reshape(row, (*row.shape, 1)), square))
        pairs.append(broadcast(lifting.reshape(row, (*row.shape[:-1], 1, size)), square))
    (made,) = node.lift(region, *pairs)
    before = broadcast(made, square)
    after = lifting.transpose(before, [*range(rank - 1), rank, rank - 1])
    places = [emit("iota", axis=rank - 1 + d, shape=square, dtype="i32") for d in range(2)]
    is_first = tw.logical_and(tw.less(*places), tw.logical_not(tw.logical_or(before, after)))
    counted = emit("reduce", cast(tw.logical_or(before, is_first), dtypes.i32), fn="add", axes=(rank - 1,))
    return lifting.transpose(counted, [int(n) for n in np.argsort(order)])


@operation("chlo.top_k")
def top_k(node: Node, x: Array) -> tuple[Array, Array]:
    """The largest elements along the last axis, and their indices."""
    return largest(node, x, node.integer("k"))


def largest(node: Node, x: Array, k: int) -> tuple[Array, Array]:
    """The k largest in the total order of IEEE 754, in which zeros and NaN of either sign differ, and their indices."""
    keys = total_order(x) if x.dtype.is_float else x
    values, places = emit_all("top_k", keys, k=k)
    values = in_total_order(values, x.dtype) if x.dtype.is_float else values
    return values, cast(places, node.types[1].dtype)
