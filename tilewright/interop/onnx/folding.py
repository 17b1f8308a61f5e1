"""Values that must be known while a program is traced: shapes, axes, paddings.

A traced array is evaluated backwards by the NumPy semantics of the primitives. If that reaches inputs of the model,
`StaticInputsNeeded` names them: the caller binds them by value and traces again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.api.array import Array, located
from tilewright.errors import DataDependentShapeError
from tilewright.frontend.trace import Node, Value
from tilewright.frontend.tracing import current_graph
from tilewright.interop.onnx.protobuf import Proto

Tensor = np.ndarray[Any, Any]

# Shapes and axes are small: a larger value is data, on which nothing that is compiled should depend.
MAX_ELEMENTS = 1 << 16


class StaticInputsNeeded(Exception):
    """Inputs of the model whose contents decide a shape."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


class HostNeeded(Exception):
    """A node of the model's graph that should run on the host for the shapes that are traced."""

    def __init__(self, node: Proto, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason


class Folder:
    """Evaluates traced arrays that depend on constants alone. `inputs` names what the model is called with."""

    def __init__(self, inputs: Mapping[Value, str]) -> None:
        self._inputs = inputs
        self._known: dict[Value, Tensor] = {}

    def contents(self, array: Array, what: str) -> Tensor:
        """The elements of `array`.

        Raises:
            StaticInputsNeeded: they depend on inputs of the model.
            DataDependentShapeError: they depend on what a loop computes, or are too many to compile for.
        """
        nodes, needed = self._ancestors(array.value, what)
        if needed:
            raise StaticInputsNeeded(needed)
        for node in nodes:
            self._evaluate(node)
        return self._known[array.value]

    def _ancestors(self, value: Value, what: str) -> tuple[list[Node], frozenset[str]]:
        """The nodes that `value` depends on and that are not known yet, in order, and the inputs among its roots."""
        nodes: list[Node] = []
        needed = set[str]()
        pending, entered, done = [value], set[Node](), set[Node]()
        while pending:
            current = pending[-1]
            node = current.producer
            if current in self._known or current in self._inputs or (node is not None and node in done):
                needed.update({self._inputs[current]} if current in self._inputs else ())
                pending.pop()
                continue
            if node is None or node.graphs or node.op == "call":
                raise self._refused(what)
            self._check_size(current, what)
            if node in entered:
                pending.pop()
                done.add(node)
                nodes.append(node)
                continue
            entered.add(node)
            pending.extend(node.operands)
        return nodes, frozenset(needed)

    def _evaluate(self, node: Node) -> None:
        from tilewright.semantics.array import apply

        if node.op == "constant" and node.attributes["resource"]:
            self._known[node.results[0]] = current_graph().constants[node.attributes["resource"]]
            return
        results = apply(node.op, [self._known[o] for o in node.operands], node.attributes)
        self._known.update(zip(node.results, map(np.asarray, results), strict=True))

    @staticmethod
    def _check_size(value: Value, what: str) -> None:
        if math.prod(value.shape) > MAX_ELEMENTS:
            message = f"{what} depends on the contents of a {value.type}, which is too large to compile for by value"
            raise located(DataDependentShapeError(message, help="compute shapes from sizes, not from data"))

    @staticmethod
    def _refused(what: str) -> Exception:
        message = f"{what} depends on data that are not known before the program runs"
        return located(DataDependentShapeError(message, help="compute shapes from sizes, not from data"))
