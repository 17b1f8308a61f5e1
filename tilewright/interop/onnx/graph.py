"""The walk over a graph: each node is traced by its rule, or by the body that defines its operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from tilewright.api.array import Array, located
from tilewright.errors import DataDependentShapeError, ModelFileError, TilewrightError, UnsupportedOperatorError
from tilewright.interop.narrow import Coded, is_sequence
from tilewright.interop.onnx.folding import Folder, HostNeeded, StaticInputsNeeded
from tilewright.interop.onnx.loading import LoadedModel, attribute_value, attributes_of, standard_domain
from tilewright.interop.onnx.protobuf import Proto, onnx
from tilewright.interop.onnx.registry import Node, Rule, find_rule, lifted, takes_narrow
from tilewright.interop.onnx.schemas import local_function, node_name, qualified, reads_of, schema_of
from tilewright.interop.onnx.tensors import STORAGE, Tensor, decode
from tilewright.records import dataclass

# An array, its bit patterns where no array has its type, a list of them (a sequence), or None (an absent optional).
Value = Any
# Operators that move elements without looking at them.
_MOVES = frozenset(
    {"DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "SpaceToDepth", "Squeeze", "Tile"}
    | {"Transpose", "Unsqueeze"}
)
MAX_DEPTH = 40
# A small file may have many nodes written out: functions that call each other, derivatives of derivatives.
_MAX_WORK = 200_000
# Attributes that change no result: hints of old versions, and choices between forms that are equal here.
_IRRELEVANT = frozenset({"consumed_inputs", "seed", "sorted", "stash_type"})
# What malformed attributes and inputs make of plain Python in a rule.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)


@dataclass(frozen=True)
class Scope:
    """The values that a graph's nodes see by name, its own before those of the graphs around it, and those of its nodes
    that are traced."""

    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Proto] = field(default_factory=list)
    outer: Scope | None = None

    def traced(self) -> list[Proto]:
        """The nodes that are traced, around and here, in order; those that are traced again stay where they were."""
        around = [] if self.outer is None else self.outer.traced()
        return list({id(proto): proto for proto in (*around, *self.nodes)}.values())

    def find(self, name: str) -> Value:
        """The value called `name`.

        Raises:
            ModelFileError: nothing before this node has that name.
        """
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise located(ModelFileError(f"nothing gives the value {name!r}", help="nodes must follow what they read"))


@dataclass
class Work:
    """A count of the work traced so far for one program: nodes of the model, each time they are traced, and operations
    made of them."""

    done: int = 0

    def add(self, count: int) -> None:
        """Count more.

        Raises:
            UnsupportedOperatorError: it is more than one program should be.
        """
        self.done += count
        if self.done > _MAX_WORK:
            message = f"the program has more than {_MAX_WORK} operations when functions and derivatives are written out"
            raise located(UnsupportedOperatorError(message, help="split the model, or take fewer derivatives"))


@dataclass(frozen=True)
class Walk:
    """Traces graphs of one model. `versions` are those of the operator sets, `outer` the attributes of the function
    whose body is walked, `depth` how many bodies and graphs are around. `leaves` states whether a node of the model's
    graph may be left to the host."""

    model: LoadedModel
    folder: Folder
    versions: Mapping[str, int]
    outer: Mapping[str, Any] | None = None
    depth: int = 0
    leaves: bool = False
    work: Work = field(default_factory=Work)

    def run_main(self, graph: Proto, values: Mapping[str, Value]) -> list[Value]:
        """Trace the model's graph for inputs by name, which go before its initialisers; as `run_graph`."""
        return self._run_graph(graph, values, None)

    def run_graph(self, graph: Proto, arguments: Sequence[Value], outer: Scope | None) -> list[Value]:
        """Trace a graph for its inputs, in order, and give its outputs.

        Raises:
            TilewrightError: a node cannot be traced; the message names it.
        """
        names = [given.name for given in graph.input]
        if len(arguments) > len(names):
            message = f"{len(arguments)} values for the {len(names)} inputs of a graph"
            raise located(ModelFileError(message, help="export the model again"))
        return self._run_graph(graph, dict(zip(names, arguments, strict=False)), outer)

    def _run_graph(self, graph: Proto, values: Mapping[str, Value], outer: Scope | None) -> list[Value]:
        scope = Scope(outer=outer)
        for tensor in graph.initializer:
            scope.values[tensor.name] = _Initialiser(tensor, self.model.folder)
        if graph.sparse_initializer:
            raise located(UnsupportedOperatorError("the model has sparse initialisers", help="store them dense"))
        scope.values.update(values)
        self._run_nodes(graph.node, scope)
        return [self._read(scope, output.name) for output in graph.output]

    def _run_nodes(self, nodes: Sequence[Proto], scope: Scope) -> None:
        if self.depth > MAX_DEPTH:
            raise located(ModelFileError(f"graphs are nested more than {MAX_DEPTH} deep", help="flatten the model"))
        for proto in nodes:
            inputs: list[Value] = []
            try:
                self.work.add(1)
                inputs = [self._read(scope, name) if name else None for name in proto.input]
                results = self._run_node(proto, inputs, scope)
            except StaticInputsNeeded:
                raise
            except TilewrightError as error:
                if self.leaves and isinstance(error, DataDependentShapeError):
                    raise HostNeeded(proto, error.message) from None
                error.message = f"{_described(proto, inputs)}: {error.message}"
                error.args = (error.message,)
                raise
            except _MALFORMED as error:
                message = f"{_described(proto, inputs)}: {error or type(error).__name__}"
                raise located(ModelFileError(message, help="the node is malformed: export the model again")) from error
            scope.values.update((name, value) for name, value in zip(proto.output, results, strict=False) if name)
            scope.nodes.append(proto)

    def _read(self, scope: Scope, name: str) -> Value:
        value = scope.find(name)
        return value.array() if isinstance(value, _Initialiser) else value

    def _run_node(self, proto: Proto, inputs: list[Value], scope: Scope) -> Sequence[Value]:
        domain = standard_domain(proto.domain)
        attributes = attributes_of(proto, self.model.folder, self.outer)
        function = local_function(self.model.proto, domain, proto.op_type)
        if function is not None:
            return self._run_function(function, inputs, attributes)
        rule = find_rule(domain, proto.op_type, self.versions.get(domain, 1))
        if rule is None:
            body = self._body(proto, domain, inputs, attributes)
            return self._run_function(body, inputs, self._defaults(proto, domain) | dict(attributes))
        while inputs and inputs[-1] is None and len(inputs) > 1:
            inputs.pop()
        wanted = tuple(bool(name) for name in proto.output)
        version = self.versions.get(domain, 1)
        leave = functools.partial(HostNeeded, proto) if self.leaves else None
        node = Node(
            op=proto.op_type,
            version=version,
            attributes=attributes,
            wanted=wanted,
            contents=self.folder.contents,
            run=self._inner_runner(scope),
            retrace=self._retracer(scope),
            leave=leave,
            work=self.work.add,
        )
        results = _applied(rule, node, inputs)
        _check_all_read(node, domain)
        return results if _is_tuple(results) else (results,)

    def _inner_runner(self, scope: Scope) -> Callable[..., list[Value]]:
        inner = self._inner()

        def run(graph: Proto, *arguments: Value) -> list[Value]:
            return inner.run_graph(graph, arguments, scope)

        return run

    def _inner(self) -> Walk:
        """For what is inside of this graph."""
        return replace(self, depth=self.depth + 1, leaves=False)

    def _retracer(self, scope: Scope) -> Callable[[str, Mapping[str, Value]], Value]:
        def retrace(name: str, values: Mapping[str, Value]) -> Value:
            wanted, needed = {name}, list[Proto]()
            for proto in reversed(scope.traced()):
                if any(output in wanted and output not in values for output in proto.output):
                    needed.append(proto)
                    wanted.update(reads_of(proto))
            inner = Scope(dict(values), outer=scope)
            self._inner()._run_nodes(needed[::-1], inner)
            return self._read(inner, name)

        return retrace

    # ---- operators that are defined by other operators --------------------------------------------------------------

    def _body(self, proto: Proto, domain: str, inputs: Sequence[Value], attributes: Mapping[str, object]) -> Proto:
        """The function that ONNX defines an operator by.

        Raises:
            UnsupportedOperatorError: there is none.
        """
        version = self.versions.get(domain, 1)
        schema = schema_of(domain, proto.op_type, version)
        if schema is not None and schema.has_function:
            return schema.function_body
        if schema is not None and schema.has_context_dependent_function:
            types = [_type_proto(value).SerializeToString() for value in inputs]
            written = _with_attributes(proto, attributes)
            text = schema.get_context_dependent_function(written.SerializeToString(), types)
            if text:
                function = onnx().FunctionProto()
                function.ParseFromString(text)
                return function
        message = f"the operator {qualified(domain, proto.op_type)} of version {version} is not supported"
        raise located(UnsupportedOperatorError(message, help="rewrite this node of the model with other operators"))

    def _defaults(self, proto: Proto, domain: str) -> dict[str, Any]:
        """The attributes that an operator has where a node leaves them out: its function names some of them only."""
        schema = schema_of(domain, proto.op_type, self.versions.get(domain, 1))
        given = () if schema is None else tuple(a.default_value for a in schema.attributes.values())
        return attributes_of(_AttributesOf(tuple(a for a in given if a.name)), self.model.folder)

    def _run_function(
        self, function: Proto, inputs: Sequence[Value], attributes: Mapping[str, object]
    ) -> Sequence[Value]:
        defaults = {a.name: a for a in function.attribute_proto}
        given = attributes_of(_AttributesOf(tuple(defaults.values())), self.model.folder) | dict(attributes)
        versions = {standard_domain(entry.domain): int(entry.version) for entry in function.opset_import}
        inner = replace(self._inner(), versions={**self.versions, **versions}, outer=given)
        scope = Scope()
        padded = [*inputs, *[None] * (len(function.input) - len(inputs))]
        scope.values.update(zip(function.input, padded, strict=False))
        inner._run_nodes(function.node, scope)
        return [inner._read(scope, name) if name in scope.values else None for name in function.output]


@dataclass(frozen=True)
class _AttributesOf:
    """Attributes without a node."""

    attribute: Sequence[Proto]


class _Initialiser:
    """A constant of a graph, lifted where it is first read."""

    def __init__(self, tensor: Proto, folder: Path | None) -> None:
        self._tensor = tensor
        self._folder = folder

    def array(self) -> Value:
        return lifted(decode(self._tensor, self._folder))


def _check_all_read(node: Node, domain: str) -> None:
    """Refuse a node with attributes that its rule does not know, unless they have the values that they have by default.

    Raises:
        UnsupportedOperatorError: there is one.
    """
    unread = node.attributes.keys() - node.read - _IRRELEVANT
    schema = schema_of(domain, node.op, node.version) if unread else None
    for name in sorted(unread):
        known = schema.attributes.get(name) if schema is not None else None
        if known is None or not known.default_value.name:
            raise node.unsupported(f"`{node.op}` with the attribute `{name}`")
        default = attribute_value(known.default_value, None)
        if node.attributes[name] != default:
            raise node.unsupported(f"`{node.op}` with `{name}`={node.attributes[name]!r}, not {default!r}")


def _is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def _applied(rule: Rule, node: Node, inputs: Sequence[Value]) -> Any:
    narrow = [value for value in inputs if isinstance(value, Coded)]
    if not narrow or takes_narrow(rule):
        return rule(node, *inputs)
    if node.op in _MOVES and isinstance(inputs[0], Coded) and len(narrow) == 1:
        return Coded(rule(node, inputs[0].codes, *inputs[1:]), inputs[0].storage)
    raise node.unsupported(f"`{node.op}` of {narrow[0].storage.name}")


def _described(proto: Proto, inputs: Sequence[Value]) -> str:
    return f"{node_name(proto)} of {', '.join(map(_text, inputs)) or 'no inputs'}"


def _text(value: Value) -> str:
    if isinstance(value, Array):
        return str(value.value.type)
    if isinstance(value, Coded):
        return f"{value.storage.name}[{', '.join(map(str, value.shape))}]"
    return f"[{', '.join(map(_text, value))}]" if is_sequence(value) else "nothing"


_CODES = {dtype: code for code, dtype in STORAGE.items()}


def _type_proto(value: Value) -> Proto:
    helper = onnx().helper
    if is_sequence(value):
        return helper.make_sequence_type_proto(_type_proto(value[0]) if value else onnx().TypeProto())
    if isinstance(value, Coded):
        return helper.make_tensor_type_proto(_CODES[value.storage], value.shape)
    if not isinstance(value, Array):
        return onnx().TypeProto()
    return helper.make_tensor_type_proto(_CODES[value.dtype.numpy], value.shape)


def _with_attributes(proto: Proto, attributes: Mapping[str, object]) -> Proto:
    """A copy of a node whose attributes do not refer to those of a function around it."""
    copy = onnx().NodeProto()
    copy.CopyFrom(proto)
    del copy.attribute[:]
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.ref_attr_name in attributes or attribute.name in attributes:
            copy.attribute.append(onnx().helper.make_attribute(attribute.name, _storable(attributes[attribute.name])))
    return copy


def _storable(value: object) -> Any:
    if isinstance(value, np.ndarray):
        array: Tensor = value
        return onnx().numpy_helper.from_array(array)
    return value
