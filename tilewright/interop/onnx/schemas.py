"""Schemas of a node: the inputs that it reads, and the definition of its operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.interop.onnx.loading import standard_domain
from tilewright.interop.onnx.protobuf import Proto, definitions


def qualified(domain: str | bytes, op: str) -> str:
    """An operator's name with its domain, if that is not the standard one."""
    domain = standard_domain(domain)
    return f"{domain}.{op}" if domain else op


def node_name(proto: Proto) -> str:
    """A node by its name, if it has one, and its operator."""
    name = f" {proto.name!r}" if proto.name else ""
    return f"node{name} ({qualified(proto.domain, proto.op_type)})"


def local_function(model: Proto, domain: str, op: str) -> Proto | None:
    """The function of the model that is this operator."""
    for function in model.functions:
        if function.name == op and standard_domain(function.domain) == domain:
            return function
    return None


def schema_of(domain: str, op: str, version: int) -> Any:
    """The schema of an operator; None where ONNX has none in that version."""
    if not definitions().has(op, domain):
        return None
    try:
        return definitions().get_schema(op, version, domain)
    except definitions().SchemaError:
        return None


def reads_of(node: Proto) -> Iterator[str]:
    """The names of the values that a node reads, those that its bodies take from around it too."""
    yield from (name for name in node.input if name)
    if node.op_type == "Gradient":
        # What it is the derivative of is named by an attribute.
        yield from (attribute.s.decode(errors="replace") for attribute in node.attribute if attribute.name == "y")
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {info.name for info in (*graph.input, *graph.initializer)}
            for inner in graph.node:
                yield from (name for name in reads_of(inner) if name not in own)
                own.update(inner.output)
            yield from (info.name for info in graph.output if info.name not in own)
