"""Make a failing program small: fewer outputs, inner values as inputs, smaller sizes, plainer data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.fuzz.bounds import Oracle, Undecided
from tests.fuzz.generate import Case, drop_dead
from tests.fuzz.intervals import Tensor
from tests.programs import Program
from tilewright.errors import TilewrightError
from tilewright.frontend.trace import Graph, Value
from tilewright.primitives import ArrayType

Fails = Callable[[Case], bool]
Rename = Mapping[int, int]


def shrink(case: Case, fails: Fails, seconds: float = 60.0) -> Case:
    """The smallest case found within a time that still fails."""
    deadline = time.monotonic() + seconds
    best = case
    for candidates in (_fewer_outputs, _suffixes, _cut_values, _smaller_sizes, _cut_values, _plain_data):
        progress = True
        while progress and time.monotonic() < deadline:
            progress = False
            for candidate in candidates(best):
                if time.monotonic() > deadline:
                    break
                if candidate is not None and fails(candidate):
                    best, progress = candidate, candidates is not _suffixes
                    break
    return best


def _fewer_outputs(case: Case) -> Iterator[Case | None]:
    if len(case.graph.outputs) > 1:
        for output in case.graph.outputs:
            yield rebuilt(case, [output])


def _suffixes(case: Case) -> Iterator[Case | None]:
    """The last nodes, with everything before them as inputs."""
    nodes = case.graph.nodes
    size = 1
    while size < len(nodes):
        kept = {r for node in nodes[-size:] for r in node.results}
        yield rebuilt(case, case.graph.outputs, [r for n in nodes[:-size] for r in n.results if r not in kept])
        size += 1 + size // 3


def _cut_values(case: Case) -> Iterator[Case | None]:
    for node in case.graph.nodes:
        if node.op != "constant" or node.attributes["resource"]:
            yield rebuilt(case, case.graph.outputs, node.results)


def _smaller_sizes(case: Case) -> Iterator[Case | None]:
    sizes = {n for node in case.graph.nodes for v in (*node.operands, *node.results) for n in v.shape}
    for n in sorted(sizes, reverse=True):
        for smaller in dict.fromkeys((1, 2, 3, n // 4, n // 2, n - 1)):
            if 0 < smaller < n:
                yield rebuilt(case, case.graph.outputs, rename={n: smaller})


def _plain_data(case: Case) -> Iterator[Case | None]:
    """Inputs that have not been made plain yet, one at a time, then none again."""
    for position, array in enumerate(case.inputs):
        plain = np.arange(array.size).reshape(array.shape).astype(array.dtype) if array.dtype != bool else array * False
        if not np.array_equal(array, plain, equal_nan=array.dtype.kind == "f"):
            inputs = [*case.inputs[:position], plain, *case.inputs[position + 1 :]]
            yield rebuilt(case, case.graph.outputs, inputs=inputs)


def rebuilt(
    case: Case,
    outputs: Sequence[Value],
    cut: Sequence[Value] = (),
    rename: Rename | None = None,
    inputs: Sequence[Tensor] | None = None,
) -> Case | None:
    """The case with other outputs, some values as inputs, sizes renamed; None when that is no program."""
    oracle = Oracle(case.graph.constants)
    try:
        oracle.run(case.graph, case.inputs)
        builder = _Rebuilder(case, oracle, set(cut), rename or {})
        graph, arrays = builder.build(outputs, case.inputs if inputs is None else inputs)
        expected = Oracle(graph.constants).run(graph, arrays)
    except (TilewrightError, Undecided, ValueError, IndexError, KeyError):
        return None
    return Case(case.seed, graph, arrays, expected)


class _Rebuilder:
    def __init__(self, case: Case, oracle: Oracle, cut: set[Value], rename: Rename) -> None:
        self.case = case
        self.oracle = oracle
        self.cut = cut
        self.rename = rename
        self.values: dict[Value, Value] = {}
        self.graph = Program(case.graph.name)
        self.arrays: list[Tensor] = []

    def build(self, outputs: Sequence[Value], inputs: Sequence[Tensor]) -> tuple[Graph, list[Tensor]]:
        for value, array in zip(self.case.graph.inputs, inputs, strict=True):
            self._input(value, array)
        for node in self.case.graph.nodes:
            if any(r in self.cut for r in node.results):
                for result in node.results:
                    self._input(result, self.oracle.values[result].value)
                continue
            self._copy(node, self.graph)
        self.graph.outputs = [self.values[v] for v in outputs]
        drop_dead(self.graph)
        self._drop_inputs()
        return self.graph, self.arrays

    def _drop_inputs(self) -> None:
        used = {o for node in self.graph.walk() for o in node.operands} | set(self.graph.outputs)
        used |= {o for node in self.graph.walk() for g in node.graphs for o in g.outputs}
        kept = [i for i, v in enumerate(self.graph.inputs) if v in used]
        self.graph.inputs = [self.graph.inputs[i] for i in kept]
        self.arrays = [self.arrays[i] for i in kept]

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.rename.get(n, n) for n in shape)

    def _input(self, value: Value, array: Tensor) -> None:
        shape = self._shape(value.shape)
        self.values[value] = self.graph.input(ArrayType(shape, value.dtype))
        window = tuple(slice(0, n) for n in shape)
        self.arrays.append(np.ascontiguousarray(array[window]).reshape(shape))

    def _copy(self, node: Any, graph: Graph) -> None:
        operands = [self.values[o] for o in node.operands]
        if node.graphs:
            regions = [self._region(g) for g in node.graphs]
            types = [ArrayType(self._shape(r.shape), r.dtype) for r in node.results]
            results = graph.append(node.op, operands, node.attributes, types, regions)
        elif node.op == "constant" and node.attributes["resource"]:
            array = self.case.graph.constants[node.attributes["resource"]]
            shape = self._shape(array.shape)
            window = np.ascontiguousarray(array[tuple(slice(0, n) for n in shape)])
            results = (graph.constant(window, ArrayType(shape, node.results[0].dtype)),)
        else:
            attributes = {k: self._attribute(k, v) for k, v in node.attributes.items()}
            results = graph.add(node.op, operands, **attributes)
        self.values.update(zip(node.results, results, strict=True))

    def _attribute(self, key: str, value: Any) -> Any:
        sized = key in ("shape", "limits", "sizes", "k")
        if not sized or not self.rename:
            return value
        return self._shape(value) if isinstance(value, tuple) else self.rename.get(value, value)

    def _region(self, old: Graph) -> Graph:
        new = self.graph.nested(old.name)
        for value in old.inputs:
            self.values[value] = new.input(ArrayType(self._shape(value.shape), value.dtype))
        for node in old.nodes:
            self._copy(node, new)
        new.outputs = [self.values[v] for v in old.outputs]
        return new
