"""A case as Python source: a regression test for `tests/bugs`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.generate import Case
from tests.fuzz.intervals import Tensor
from tilewright import dtypes
from tilewright.frontend.trace import Graph, Node, Value
from tilewright.primitives import ArrayType

LARGEST_LITERAL = 600


def source_of(case: Case, name: str = "") -> str:
    """A test function that rebuilds the case and checks it."""
    writer = _Writer(case.graph)
    writer.graph(case.graph, "p")
    inputs = ", ".join(_array(x) for x in case.inputs)
    body = "\n    ".join(
        [
            f'p = Program("{name or case.graph.name}")',
            *writer.lines,
            f"p.outputs = [{', '.join(writer.name(v) for v in case.graph.outputs)}]",
            f"outcome = check(case_of(p, [{inputs}]))",
            "assert not outcome.kind, outcome.message",
        ]
    )
    return f"def test_{name or case.graph.name}() -> None:\n    {body}\n"


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.constants = graph.constants
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []
        self._regions = 0

    def name(self, value: Value) -> str:
        return self.names.setdefault(value, f"v{len(self.names)}")

    def graph(self, graph: Graph, place: str) -> None:
        for value in graph.inputs:
            self.lines.append(f"{self.name(value)} = {place}.input({_type(value.type)})")
        for node in graph.nodes:
            self._node(node, place)

    def _node(self, node: Node, place: str) -> None:
        operands = f"[{', '.join(self.name(o) for o in node.operands)}]"
        regions = []
        for inner in node.graphs:
            region = f"region{self._regions}"
            self._regions += 1
            self.lines.append(f'{region} = p.nested("{inner.name}")')
            self.graph(inner, region)
            self.lines.append(f"{region}.outputs = [{', '.join(self.name(v) for v in inner.outputs)}]")
            regions.append(region)
        results = "".join(f"{self.name(r)}, " for r in node.results)
        results = results[:-1] if len(node.results) == 1 else results[:-2]
        if node.op == "constant" and node.attributes["resource"]:
            array = _array(self.constants[node.attributes["resource"]])
            value = self.name(node.results[0])
            self.lines.append(f"{value} = {place}.constant({array}, {_type(node.results[0].type)})")
        elif regions:
            types = ", ".join(_type(r.type) for r in node.results)
            self.lines.append(
                f'{results} = {place}.append("{node.op}", {operands}, {{}}, [{types}], [{", ".join(regions)}])'
            )
        else:
            attributes = "".join(f", {k}={_plain(v)}" for k, v in node.attributes.items())
            listed = "" if not node.operands else f", {operands}"
            self.lines.append(f'{results} = {place}.add("{node.op}"{listed}{attributes})')


def _plain(value: Any) -> str:
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _type(type: ArrayType) -> str:
    short = {"bool": "bool_"}.get(type.dtype.name, type.dtype.name)
    return f"ArrayType({type.shape}, dtypes.{short})"


def _array(array: Tensor) -> str:
    dtype = dtypes.from_numpy(array.dtype)
    short = {"bool": "bool_"}.get(dtype.name, dtype.name)
    target = f"dtypes.{short}.numpy"
    if array.size and _same(array, np.arange(array.size).reshape(array.shape).astype(array.dtype)):
        return f"np.arange({array.size}).reshape({array.shape}).astype({target})"
    if array.size and _same(array, np.broadcast_to(array.reshape(-1)[0], array.shape)):
        return f"np.full({array.shape}, {_plain(array.reshape(-1)[0].item())}, {target})"
    if array.size > LARGEST_LITERAL:
        return f"np.random.default_rng(0).standard_normal({array.shape}).astype({target})  # stands for other data"
    items = ", ".join(_plain(x.item()) for x in array.reshape(-1))
    return f"np.array([{items}], {target}).reshape({array.shape})"


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
