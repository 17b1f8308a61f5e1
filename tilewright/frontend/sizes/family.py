"""The traces of one function at several sizes, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np

from tilewright.frontend.trace import Graph, Node, Value

# A size, or another integer of a trace, in each of the traces: that of the bucket's largest sizes comes first.
Sizes: TypeAlias = tuple[int, ...]


class NotUniform(Exception):
    """The traces are no single program over sizes; the message gives the reason, for whoever explains it."""


def varies(sizes: Sizes) -> bool:
    """Whether it differs between the traces."""
    return any(n != sizes[0] for n in sizes)


class Trace(msgspec.Struct, eq=False):
    """A traced program with its nodes and values numbered in the order in which they come."""

    graph: Graph
    nodes: list[Node] = msgspec.field(default_factory=list)
    values: list[Value] = msgspec.field(default_factory=list)
    numbers: dict[Value, int] = msgspec.field(default_factory=dict)
    node_numbers: dict[Node, int] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._number(self.graph)

    def _number(self, graph: Graph) -> None:
        self._define(graph.inputs)
        for node in graph.nodes:
            self.node_numbers[node] = len(self.nodes)
            self.nodes.append(node)
            for inner in node.graphs:
                self._number(inner)
            self._define(node.results)

    def _define(self, values: Sequence[Value]) -> None:
        for value in values:
            self.numbers[value] = len(self.values)
            self.values.append(value)

    def constant(self, number: int) -> np.ndarray:
        """The contents of the constant that is node `number`."""
        node = self.nodes[number]
        (result,) = node.results
        if node.attributes["resource"]:
            return self.graph.constants[node.attributes["resource"]]
        return np.full(result.shape, node.attributes["value"], result.dtype.numpy)


class Family:
    """Traces that have the same form.

    Raises:
        NotUniform: they have not.
    """

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self.traces = [Trace(graph) for graph in graphs]
        for other in self.traces[1:]:
            check_form(self.traces[0], other)

    @property
    def largest(self) -> Trace:
        """The trace at the bucket's largest sizes."""
        return self.traces[0]

    def size(self, value: int, axis: int) -> Sizes:
        """A size of a value, by its number."""
        return tuple(trace.values[value].shape[axis] for trace in self.traces)

    def shape(self, value: int) -> tuple[Sizes, ...]:
        """All sizes of a value, by its number."""
        return tuple(self.size(value, axis) for axis in range(self.largest.values[value].type.rank))

    def attribute(self, node: int, key: str) -> list[Any]:
        """An attribute in each trace."""
        return [trace.nodes[node].attributes[key] for trace in self.traces]


def check_form(first: Trace, second: Trace) -> None:
    """Refuse traces that differ in more than sizes, other integers, and contents of constants.

    Raises:
        NotUniform: they do.
    """
    if len(first.nodes) != len(second.nodes) or len(first.values) != len(second.values):
        raise NotUniform(f"{len(first.nodes)} and {len(second.nodes)} operations")
    for a, b in zip(first.values, second.values, strict=True):
        if (a.dtype, a.type.rank) != (b.dtype, b.type.rank):
            raise NotUniform(f"a value is {a.type} and {b.type}")
    for a, b in zip(first.nodes, second.nodes, strict=True):
        _check_node(first, second, a, b)
    for a, b in _graphs(first, second):
        if len(a.inputs) != len(b.inputs) or _numbered(first, a.outputs) != _numbered(second, b.outputs):
            raise NotUniform("results come from different operations")


def _check_node(first: Trace, second: Trace, a: Node, b: Node) -> None:
    if a.op != b.op or len(a.graphs) != len(b.graphs):
        raise NotUniform(f"`{a.op}` instead of `{b.op}`{_at(a)}")
    if len(a.results) != len(b.results) or _numbered(first, a.operands) != _numbered(second, b.operands):
        raise NotUniform(f"`{a.op}` of different values{_at(a)}")
    if fixed_attributes(a) != fixed_attributes(b):
        raise NotUniform(f"`{a.op}` of different kinds{_at(a)}")


def fixed_attributes(node: Node) -> Mapping[str, Any]:
    """Attributes that are no integers, which no size can change, and of integers how many there are."""
    if node.op == "constant":
        return {"dtype": node.attributes["dtype"]}
    return {key: _form(value) for key, value in node.attributes.items()}


def _form(value: object) -> Any:
    if isinstance(value, tuple):
        return ("tuple", len(cast("tuple[Any, ...]", value)))
    return "integer" if is_integer(value) else value


def is_integer(value: object) -> bool:
    """Whether an attribute is one integer; bools are choices, not sizes."""
    return isinstance(value, int) and not isinstance(value, bool)


def _numbered(trace: Trace, values: Sequence[Value]) -> list[int]:
    return [trace.numbers[value] for value in values]


def _graphs(first: Trace, second: Trace) -> Iterator[tuple[Graph, Graph]]:
    yield first.graph, second.graph
    for a, b in zip(first.nodes, second.nodes, strict=True):
        yield from zip(a.graphs, b.graphs, strict=True)


def _at(node: Node) -> str:
    return f" at {node.location}" if node.location is not None else ""
