"""A model that no one program can hold: compiled parts, and nodes on the host between them.

A part takes every node that does not depend on a later host node, so that there are as few parts as possible. Nodes
that depend on constants alone belong to each part that reads them, which may then compile for their contents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from tilewright.api.array import located
from tilewright.errors import ModelFileError
from tilewright.interop.arguments import TensorSpec
from tilewright.interop.narrow import STORAGES, Coded, from_codes, is_sequence, to_codes
from tilewright.interop.onnx.host import HostNode
from tilewright.interop.onnx.loading import LoadedModel
from tilewright.interop.onnx.protobuf import Proto, onnx
from tilewright.interop.onnx.schemas import node_name, reads_of
from tilewright.interop.onnx.tensors import STRING, decode, decode_strings
from tilewright.records import dataclass
from tilewright.runtime.dlpack import to_numpy


class CompiledPart(Protocol):
    """A function over the values of a part by name."""

    outputs: tuple[TensorSpec, ...]

    @property
    def host_nodes(self) -> tuple[str, ...]:
        """Nodes that were found to run on the host when the part was called."""
        ...

    def __call__(self, **values: object) -> Any:
        """One result alone as it is, several as a tuple."""
        ...


@dataclass(frozen=True)
class PartGraph:
    """Some nodes of a graph, as a graph."""

    name: str
    node: Sequence[Proto]
    input: Sequence[Proto]
    output: Sequence[Proto]
    initializer: Sequence[Proto]
    sparse_initializer: Sequence[Proto]
    value_info: Sequence[Proto] = ()


@dataclass(frozen=True)
class PartModel:
    """A graph with the functions of its model."""

    graph: PartGraph
    functions: Sequence[Proto]


@dataclass
class _Stage:
    """The nodes of a part by their indices, and the host nodes after it."""

    nodes: set[int] = field(default_factory=set[int])
    hosts: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class _PartStep:
    """A compiled part and the values that it is given, by name. It has what a `HostNode` has."""

    part: CompiledPart
    reads: tuple[str, ...]

    @property
    def makes(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.part.outputs)

    @property
    def texts(self) -> tuple[str, ...]:
        return self.part.host_nodes

    def run(self, values: Mapping[str, object]) -> dict[str, Any]:
        results = self.part(**{name: _as_argument(value) for name, value in values.items()})
        results = [results] if len(self.makes) == 1 else results
        return {name: _as_numpy(result) for name, result in zip(self.makes, results, strict=True)}


class Parts:
    """The steps of a model in order. `hosts` are the indices of the nodes that run on the host, and why; `compiled`
    makes a function of a part."""

    def __init__(
        self, model: LoadedModel, hosts: Mapping[int, str], compiled: Callable[[LoadedModel], CompiledPart]
    ) -> None:
        self._graph = model.proto.graph
        self._model = model
        self._tensors = {tensor.name: tensor for tensor in self._graph.initializer}
        self._constants: dict[str, Any] = {}
        self._reads = [tuple(dict.fromkeys(reads_of(node))) for node in self._graph.node]
        self._steps: list[HostNode | _PartStep] = []
        _check_names(self._graph)
        stages = _stages(self._graph, hosts, self._reads)
        reads = self._last_reads(stages)
        known = {info.name for info in self._graph.input}
        for n, stage in enumerate(stages):
            given, wanted = self._border(stage, n, known, reads)
            if wanted:
                self._steps.append(_PartStep(compiled(self._part(stage, given, wanted)), tuple(given)))
            known.update(wanted)
            for place in stage.hosts:
                node = self._graph.node[place]
                self._steps.append(HostNode(node, self._reads[place], hosts[place], model))
                known.update(node.output)
        last = {name: n for n, step in enumerate(self._steps) for name in (*step.makes, *step.reads)}
        kept = {info.name for info in self._graph.output}
        self._done: list[list[str]] = [[] for _ in self._steps]
        for name in last.keys() - kept:
            self._done[last[name]].append(name)

    @property
    def host_nodes(self) -> tuple[str, ...]:
        """The nodes that run on the host, and why, in order."""
        return tuple(text for step in self._steps for text in step.texts)

    @property
    def compiled_parts(self) -> int:
        """How many steps are compiled programs."""
        return sum(isinstance(step, _PartStep) for step in self._steps)

    def run(self, given: Mapping[str, object]) -> Any:
        """Results of inputs by name, as `OnnxModel` gives them; all arrays are NumPy's.

        Raises:
            TilewrightError: as a call of a model does, and where a node cannot be evaluated.
        """
        values = _Values({name: _as_numpy(value) for name, value in given.items()}, self._constant)
        for step, done in zip(self._steps, self._done, strict=True):
            values.known.update(step.run(values.of(step.reads)))
            for name in done:
                values.known.pop(name, None)
        names = [info.name for info in self._graph.output]
        found = values.of(names)
        for name in names:
            if name not in found:
                message = f"nothing gives the output {name!r}"
                raise located(ModelFileError(message, help="export the model again"))
        return found[names[0]] if len(names) == 1 else tuple(found[name] for name in names)

    def _constant(self, name: str) -> Any:
        """An initialiser as an array; None where there is none of that name."""
        if name in self._tensors and name not in self._constants:
            tensor = self._tensors[name]
            is_text = tensor.data_type == STRING
            self._constants[name] = decode_strings(tensor) if is_text else decode(tensor, self._model.folder)
        return self._constants.get(name)

    def _last_reads(self, stages: Sequence[_Stage]) -> dict[str, int]:
        """The last position at which each value is read other than by the part that makes it: twice the stage index for
        the stage's part, one more for the host nodes after it."""
        nodes, last = self._graph.node, dict[str, int]()
        for n, stage in enumerate(stages):
            own = {name for place in stage.nodes for name in nodes[place].output}
            last.update((name, 2 * n) for place in stage.nodes for name in self._reads[place] if name not in own)
            last.update((name, 2 * n + 1) for place in stage.hosts for name in self._reads[place])
        last.update((info.name, 2 * len(stages)) for info in self._graph.output)
        return last

    def _border(
        self, stage: _Stage, n: int, known: set[str], last_reads: Mapping[str, int]
    ) -> tuple[list[str], list[str]]:
        """The values that a part is given, and those of its own that others read."""
        nodes = self._graph.node
        made = {name: None for place in sorted(stage.nodes) for name in nodes[place].output if name}
        read = {name: None for place in sorted(stage.nodes) for name in self._reads[place]}
        given = [name for name in read if name in known and name not in made]
        return given, [name for name in made if last_reads.get(name, -1) > 2 * n and name not in known]

    def _part(self, stage: _Stage, given: Sequence[str], wanted: Sequence[str]) -> LoadedModel:
        graph = self._graph
        nodes = [graph.node[place] for place in sorted(stage.nodes)]
        inputs, outputs = ([onnx().ValueInfoProto(name=name) for name in names] for names in (given, wanted))
        part = PartGraph(graph.name, nodes, inputs, outputs, graph.initializer, graph.sparse_initializer)
        return LoadedModel(PartModel(part, self._model.proto.functions), self._model.folder, self._model.versions)


@dataclass(frozen=True)
class _Values:
    """Values by name: known ones, then constants."""

    known: dict[str, Any]
    constant: Callable[[str], Any]

    def of(self, names: Iterable[str]) -> dict[str, Any]:
        """The values of the given names that exist."""
        found: dict[str, Any] = {}
        for name in names:
            if name in self.known:
                found[name] = self.known[name]
            elif (constant := self.constant(name)) is not None:
                found[name] = constant
        return found


def _check_names(graph: Proto) -> None:
    """Refuse a graph in which a name has two values: which of them a node reads would depend on its part.

    Raises:
        ModelFileError: it has.
    """
    known = {info.name for info in (*graph.input, *graph.initializer)}
    for node in graph.node:
        for name in filter(None, node.output):
            if name in known:
                message = f"{node_name(node)} gives the value {name!r}, which there is already"
                raise located(ModelFileError(message, help="a name has one value: export the model again"))
            known.add(name)


def _stages(graph: Proto, hosts: Mapping[int, str], reads: Sequence[Sequence[str]]) -> list[_Stage]:
    """The parts in order, empty ones too."""
    constants = _constant_nodes(graph, hosts, reads)
    makers = {name: place for place in constants for name in graph.node[place].output if name}
    # The stage of a value for a host node, which may follow another, and for a compiled one, which is in the next part.
    for_host: dict[str, int] = {}
    for_compiled: dict[str, int] = {}
    stages = [_Stage()]
    for place, node in enumerate(graph.node):
        if place in constants:
            continue
        on_host = place in hosts
        seen = for_host if on_host else for_compiled
        at = max((seen.get(name, 0) for name in reads[place]), default=0)
        stages.extend(_Stage() for _ in range(at + 1 - len(stages)))
        if on_host:
            stages[at].hosts.append(place)
        else:
            stages[at].nodes.add(place)
        for_host.update(dict.fromkeys(node.output, at))
        for_compiled.update(dict.fromkeys(node.output, at + 1 if on_host else at))
    for stage in stages:
        wanted = [name for place in (*stage.nodes, *stage.hosts) for name in reads[place]]
        stage.nodes.update(_makers_of(wanted, makers, reads))
    stages[-1].nodes.update(_makers_of([info.name for info in graph.output], makers, reads))
    return stages


def _constant_nodes(graph: Proto, hosts: Mapping[int, str], reads: Sequence[Sequence[str]]) -> dict[int, None]:
    """The indices of the nodes that depend on constants alone."""
    known = {tensor.name for tensor in graph.initializer} - {info.name for info in graph.input}
    found: dict[int, None] = {}
    for place, node in enumerate(graph.node):
        if place not in hosts and all(name in known for name in reads[place]):
            found[place] = None
            known.update(node.output)
    return found


def _makers_of(names: Iterable[str], makers: Mapping[str, int], reads: Sequence[Sequence[str]]) -> set[int]:
    """The indices of the constant nodes that some values depend on."""
    found = set[int]()
    pending = list(names)
    while pending:
        place = makers.get(pending.pop())
        if place is not None and place not in found:
            found.add(place)
            pending.extend(reads[place])
    return found


def _as_numpy(value: object) -> Any:
    if isinstance(value, Coded):
        return from_codes(value)
    if is_sequence(value):
        return [_as_numpy(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return None if value is None else np.asarray(value)
    return to_numpy(value)[0]


def _as_argument(value: object) -> Any:
    if is_sequence(value):
        return [_as_argument(item) for item in value]
    return to_codes(value) if isinstance(value, np.ndarray) and value.dtype in STORAGES else value
