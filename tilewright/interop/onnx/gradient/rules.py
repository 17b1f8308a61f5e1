"""The table of the rules: for each array primitive, what the cotangents of its results give its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.api.array import Array
from tilewright.api.lifting import emit, full
from tilewright.errors import UnsupportedOperatorError
from tilewright.frontend.trace import Node
from tilewright.frontend.tracing import current_graph
from tilewright.records import dataclass

Cotangents = Sequence[Array | None]


@dataclass(frozen=True)
class Step:
    """One node of the program with the cotangents of its results; None is zero."""

    node: Node
    cotangents: Cotangents

    @property
    def operands(self) -> list[Array]:
        """The operands of the primitive."""
        return [Array(value, current_graph()) for value in self.node.operands]

    @property
    def results(self) -> list[Array]:
        """The results of the primitive."""
        return [Array(value, current_graph()) for value in self.node.results]

    @property
    def cotangent(self) -> Array:
        """That of the one result, or of the first."""
        first = self.cotangents[0]
        return zeros_like(self.results[0]) if first is None else first

    def attribute(self, name: str) -> Any:
        """An attribute of the primitive."""
        return self.node.attributes[name]

    def unsupported(self, what: str) -> UnsupportedOperatorError:
        """The error that this form of the primitive has no derivative here."""
        return UnsupportedOperatorError(f"{what} has no derivative", help="take the derivative of something else")


Rule = Callable[[Step], Cotangents]
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register the rule of a primitive. It gives a cotangent, or None for zero, for each operand."""

    def register(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return register


def zeros_like(x: Array) -> Array:
    """Zeros of the shape and type of an array."""
    return full(x.shape, 0, x.dtype)


def spread(x: Array, shape: Sequence[int], axes: Sequence[int]) -> Array:
    """An array repeated along the axes of `shape` that it lacks; `axes` are those that it has."""
    return emit("broadcast", x, shape=tuple(shape), axes=tuple(axes))
