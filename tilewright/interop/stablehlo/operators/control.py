"""Loops and branches."""

from __future__ import annotations

from typing import Any

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.interop.narrow import Coded
from tilewright.interop.stablehlo.ir import Block
from tilewright.interop.stablehlo.registry import Node, operation


@operation("stablehlo.while", narrow=True)
def while_(node: Node, *carried: Array | Coded) -> tuple[Array | Coded, ...]:
    """Repeat a region on values while another one of them holds."""
    condition, body = node.regions

    def holds(state: tuple[Array | Coded, ...]) -> Any:
        (verdict,) = node.run(condition, *state)
        return verdict

    return tuple(tw.while_loop(holds, lambda state: tuple(node.run(body, *state)), tuple(carried)))


@operation("stablehlo.if")
def if_(node: Node, condition: Array) -> tuple[Array | Coded, ...]:
    """One of two regions."""
    then, otherwise = node.regions
    return _branched(node, condition, then, otherwise)


def _branched(node: Node, condition: Array, then: Block, otherwise: Block) -> tuple[Array | Coded, ...]:
    return tuple(tw.cond(condition, lambda: tuple(node.run(then)), lambda: tuple(node.run(otherwise))))


@operation("stablehlo.case")
def case(node: Node, index: Array) -> tuple[Array | Coded, ...]:
    """The region of a number; the last one for numbers that have none."""
    if not node.regions:
        raise node.malformed("a choice among no regions")

    def chosen(low: int, high: int) -> tuple[Array | Coded, ...]:
        """Of the regions `low` up to `high`, by halves."""
        if high - low == 1:
            return tuple(node.run(node.regions[low]))
        middle = (low + high) // 2
        return tuple(tw.cond(inside < middle, lambda: chosen(low, middle), lambda: chosen(middle, high)))

    last = len(node.regions) - 1
    is_known = tw.logical_and(tw.greater_equal(index, 0), tw.less_equal(index, last))
    inside = tw.where(is_known, index, tw.full((), last, dtype=index.dtype))
    return chosen(0, last + 1)
