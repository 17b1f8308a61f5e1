"""The way back through a program."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.errors import UnsupportedOperatorError
from tilewright.frontend.trace import Node, Value
from tilewright.frontend.tracing import current_graph
from tilewright.interop.onnx.gradient.rules import RULES, Step, zeros_like

_MODULES = ("elementwise", "indices", "maps", "sums", "windows")


def gradients(y: Array, xs: Sequence[Array], work: Callable[[int], None] = lambda count: None) -> list[Array]:
    """The derivatives of the sum of the elements of `y` by each of `xs`: arrays of floats that `y` was computed from.
    They have the shapes and types of `xs`, and are zeros where `y` does not depend on one. `work` is called with how
    many primitives are looked at, then how many are made, and may refuse by raising.

    Raises:
        UnsupportedOperatorError: something between has no derivative here; the message names the primitive.
    """
    for module in _MODULES:
        importlib.import_module(f"tilewright.interop.onnx.gradient.{module}")
    sources = [x.value for x in xs]
    nodes = list(_nodes_before(y.value, frozenset(sources)))
    work(len(nodes))
    depending = _depending(nodes, sources)
    cotangents: dict[Value, Array] = {y.value: tw.ones_like(y)}
    for node in reversed(nodes):
        if not any(value in depending and value in cotangents for value in node.results):
            continue
        _check_graphs(node)
        made = len(current_graph().nodes)
        step = Step(node, [cotangents.get(value) for value in node.results])
        for operand, found in zip(node.operands, _applied(step), strict=True):
            if found is None or operand not in depending:
                continue
            cotangents[operand] = cotangents[operand] + found if operand in cotangents else found
        work(len(current_graph().nodes) - made)
    return [cotangents.get(value, zeros_like(Array(value, current_graph()))) for value in sources]


def _applied(step: Step) -> Sequence[Array | None]:
    found = RULES.get(step.node.op)
    if found is None:
        raise step.unsupported(f"the primitive `{step.node.op}`")
    return found(step)


def _check_graphs(node: Node) -> None:
    if node.graphs or node.op == "call":
        message = f"control flow and kernels (`{node.op}`) have no derivative"
        raise UnsupportedOperatorError(message, help="unroll the loop: give a number of trips that is known")


def _nodes_before(value: Value, stops: frozenset[Value]) -> Iterator[Node]:
    """The nodes that a value is computed by, each after those that it reads."""
    entered, done = set[Node](), set[Node]()
    pending = [value]
    while pending:
        current = pending[-1]
        node = current.producer
        if node is None or node in done or current in stops:
            pending.pop()
        elif node in entered:
            pending.pop()
            done.add(node)
            yield node
        else:
            entered.add(node)
            pending.extend(_reads(node))


def _reads(node: Node) -> Iterator[Value]:
    """Operands, and what the graphs of a node read, also from around them."""
    yield from node.operands
    for graph in node.graphs:
        yield from graph.outputs
        for inner in graph.walk():
            yield from inner.operands


def _depending(nodes: Sequence[Node], sources: Sequence[Value]) -> set[Value]:
    """The floats that depend on the sources, these included."""
    found = set(sources)
    for node in nodes:
        if any(value in found for value in _reads(node)):
            found.update(value for value in node.results if value.dtype.is_float)
    return found
