"""Requirements of a model: operators that are known, and nodes that no compiled program can hold.

A program has arrays of numbers, whose sizes are known when it is compiled. Nodes with strings, or with results whose
sizes depend on data, run on the host, as do operators that only the package `onnx` computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.api.array import located
from tilewright.errors import ModelFileError, UnsupportedOperatorError
from tilewright.interop.onnx.graph import MAX_DEPTH
from tilewright.interop.onnx.loading import LoadedModel, standard_domain, text
from tilewright.interop.onnx.protobuf import Proto
from tilewright.interop.onnx.registry import find_rule
from tilewright.interop.onnx.schemas import local_function, node_name, qualified, schema_of
from tilewright.interop.onnx.tensors import STRING

_STRINGS = "it has strings"
_SIZES = "the sizes of its results depend on data"
_REFERENCE = "only the package `onnx` computes it"
_ML = "ai.onnx.ml"
_ML_OPERATORS = (
    *("FeatureVectorizer", "Imputer", "LabelEncoder", "LinearClassifier", "OneHotEncoder", "SVMClassifier"),
    *("SVMRegressor", "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"),
)
# Operators that always run on the host, and why.
HOST_OPERATORS: dict[tuple[str, str], str] = {
    **{("", op): _STRINGS for op in ("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit")},
    **{("", op): _SIZES for op in ("NonMaxSuppression", "Unique")},
    **{("", op): _REFERENCE for op in ("DeformConv", "RoiAlign", "TfIdfVectorizer")},
    **{(_ML, op): _REFERENCE for op in _ML_OPERATORS},
}
# A function, by its domain and name, and the versions of the operator sets in it.
_Use = tuple[str, str, tuple[tuple[str, int], ...]]
# Attributes that hold the results of an operator, or what they are made of.
_STRING_RESULTS = frozenset(
    {"cats_strings", "classlabels_strings", "default_string", "value_string", "value_strings", "values_strings"}
)
_TENSOR_RESULTS = frozenset({"value", "values_tensor"})
# Operators whose results have another type parameter than the operands that are put into them or taken out.
_CONTAINERS = frozenset(
    {"ConcatFromSequence", "Optional", "OptionalGetElement", "SequenceAt", "SequenceConstruct", "SequenceInsert"}
    | {"SplitToSequence"}
)


def check_operators(model: LoadedModel) -> None:
    """Refuse a model with operators that nothing computes: no rule, no definition by others, and not the host.

    Raises:
        UnsupportedOperatorError: lists all of them with how often they occur.
    """
    missing = Counter(_missing(model, model.proto.graph.node, model.versions, 0, set()))
    if not missing:
        return
    listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
    raise located(
        UnsupportedOperatorError(
            f"the model needs operators that are not supported: {listed}",
            help="docs/reference/onnx.md lists those that are",
        )
    )


def _missing(
    model: LoadedModel, nodes: Sequence[Proto], versions: Mapping[str, int], depth: int, seen: set[_Use]
) -> Iterator[str]:
    """The operators that nothing computes, once for each node; functions are gone through once."""
    _check_depth(depth)
    for node in nodes:
        domain = standard_domain(node.domain)
        text(node.op_type)
        function = local_function(model.proto, domain, node.op_type)
        if function is None and not _is_known(domain, node.op_type, versions):
            schema = schema_of(domain, node.op_type, versions.get(domain, 1))
            if schema is None or not (schema.has_function or schema.has_context_dependent_function):
                yield qualified(domain, node.op_type)
            function = schema.function_body if schema is not None and schema.has_function else None
        if function is not None:
            inner = _inner_versions(versions, function)
            use = _use(domain, node.op_type, inner)
            if use not in seen:
                yield from _missing(model, function.node, inner, depth + 1, seen)
                seen.add(use)
        for graph in _graphs(node):
            yield from _missing(model, graph.node, versions, depth + 1, seen)


def _is_known(domain: str, op: str, versions: Mapping[str, int]) -> bool:
    return (domain, op) in HOST_OPERATORS or find_rule(domain, op, versions.get(domain, 1)) is not None


def _inner_versions(versions: Mapping[str, int], function: Proto) -> dict[str, int]:
    return {**versions, **{standard_domain(entry.domain): int(entry.version) for entry in function.opset_import}}


def _use(domain: str, op: str, versions: Mapping[str, int]) -> _Use:
    return domain, op, tuple(sorted(versions.items()))


def _graphs(node: Proto) -> Iterator[Proto]:
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise located(ModelFileError(f"graphs are nested more than {MAX_DEPTH} deep", help="flatten the model"))


# ---- nodes that run on the host -----------------------------------------------------------------------------------


def host_nodes(model: LoadedModel) -> dict[int, str]:
    """The nodes of the model's graph that run on the host, by their indices, and why. A node with a body, or a
    function, that has such nodes is one.

    Raises:
        ModelFileError: graphs are nested too deep.
        UnsupportedOperatorError: derivatives are wanted in a model with such nodes.
    """
    graph = model.proto.graph
    analysis = _Analysis(model, model.versions, _declared_strings(graph))
    found = {n: reason for n, node in enumerate(graph.node) if (reason := analysis.visit(node)) is not None}
    if found and not may_be_split(model):
        listed = "; ".join(f"{node_name(graph.node[n])}: {reason}" for n, reason in found.items())
        message = f"derivatives (`Gradient`) in a model with nodes that run on the host: {listed}"
        raise located(UnsupportedOperatorError(message, help="split the model"))
    return found


def may_be_split(model: LoadedModel) -> bool:
    """Whether nodes may be taken out of the program: not where derivatives are traced back through it."""
    return all(node.op_type != "Gradient" for node in model.proto.graph.node)


class _Analysis:
    """Goes through nodes in order and keeps the names of the values that are strings."""

    def __init__(
        self, model: LoadedModel, versions: Mapping[str, int], strings: set[str], outer: _Analysis | None = None
    ) -> None:
        self._depth: int = 0 if outer is None else outer._depth + 1
        _check_depth(self._depth)
        self._model = model
        self._versions = versions
        # Why functions run on the host and which of their results are strings, by which of their operands are.
        self._functions: dict[tuple[_Use, frozenset[str]], tuple[str | None, frozenset[str]]]
        self._functions = {} if outer is None else outer._functions
        self.strings = strings

    def visit(self, node: Proto) -> str | None:
        """Why a node runs on the host, if it does; what it gives is known afterwards."""
        domain = standard_domain(node.domain)
        function = local_function(self._model.proto, domain, node.op_type)
        if function is not None:
            return self._visit_function(node, function)
        reason = HOST_OPERATORS.get((domain, node.op_type))
        for graph in _graphs(node):
            reason = self._visit_body(node, graph) or reason
        schema = schema_of(domain, node.op_type, self._versions.get(domain, 1))
        given = {n for n, name in enumerate(node.input) if name in self.strings}
        if schema is not None:
            self.strings.update(_string_results(node, schema, given))
        if given or any(name in self.strings for name in node.output):
            return reason or _STRINGS
        return reason

    def _visit_function(self, node: Proto, function: Proto) -> str | None:
        pairs = zip(function.input, node.input, strict=False)
        strings = frozenset(inner for inner, outer in pairs if outer in self.strings)
        versions = _inner_versions(self._versions, function)
        use = (_use(standard_domain(node.domain), node.op_type, versions), strings)
        if use not in self._functions:
            inner = _Analysis(self._model, versions, set(strings), self)
            reasons = [inner.visit(each) for each in function.node]
            reason = next((reason for reason in reasons if reason is not None), None)
            self._functions[use] = (reason, frozenset(inner.strings.intersection(function.output)))
        reason, made = self._functions[use]
        pairs = zip(function.output, node.output, strict=False)
        self.strings.update(outer for name, outer in pairs if name in made)
        return reason

    def _visit_body(self, node: Proto, graph: Proto) -> str | None:
        strings = self.strings | _declared_strings(graph)
        inner = _Analysis(self._model, self._versions, strings, self)
        reasons = [inner.visit(each) for each in graph.node]
        # The first output of a loop's body is whether it goes on.
        results = graph.output[1:] if node.op_type == "Loop" else graph.output
        self.strings.update(
            outer
            for result, outer in zip(results, node.output, strict=False)
            if outer and (result.name in inner.strings or _is_string(result.type))
        )
        return next((reason for reason in reasons if reason is not None), None)


def _declared_strings(graph: Proto) -> set[str]:
    declared = {info.name for info in (*graph.input, *graph.value_info) if _is_string(info.type)}
    return declared | {tensor.name for tensor in graph.initializer if tensor.data_type == STRING}


def _is_string(type: Proto) -> bool:
    """Whether a type is that of strings, of a sequence of them, or of either as an optional."""
    for container in ("optional_type", "sequence_type"):
        if type.HasField(container):
            type = getattr(type, container).elem_type
    return type.HasField("tensor_type") and type.tensor_type.elem_type == STRING


def _string_results(node: Proto, schema: Any, given: set[int]) -> Iterator[str]:
    """The results of an operator that are strings, by its schema and by which operands are."""
    parameters = {_formal(schema.inputs, n).type_str for n in given if schema.inputs}
    made = _makes_strings(node)
    for n, name in enumerate(node.output):
        if not name or not schema.outputs:
            continue
        result = _formal(schema.outputs, n)
        allowed = [type for type in result.types if "string" in type]
        moved = result.type_str in parameters or (bool(given) and node.op_type in _CONTAINERS)
        if allowed and (made or moved or len(allowed) == len(result.types)):
            yield name


def _formal(formals: Sequence[Any], place: int) -> Any:
    """The formal parameter at an index; the last one may stand for many."""
    return formals[min(place, len(formals) - 1)]


def _makes_strings(node: Proto) -> bool:
    """Whether the attributes of a node state that it gives strings."""
    for attribute in node.attribute:
        if attribute.name in _STRING_RESULTS and (attribute.s or attribute.strings):
            return True
        if attribute.name in _TENSOR_RESULTS and attribute.t.data_type == STRING:
            return True
        if attribute.name == "to" and node.op_type == "Cast" and attribute.i == STRING:
            return True
    return False
