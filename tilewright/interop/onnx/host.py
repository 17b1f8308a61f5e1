"""Evaluates one node of a model on the host, by NumPy or by the reference evaluator of the package `onnx`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.api.array import located
from tilewright.errors import ModelFileError, TilewrightError, UnsupportedOperatorError
from tilewright.interop.narrow import is_sequence
from tilewright.interop.onnx.fourier import transforms
from tilewright.interop.onnx.loading import LoadedModel, attributes_of, standard_domain
from tilewright.interop.onnx.protobuf import Proto, onnx
from tilewright.interop.onnx.reference import evaluated
from tilewright.interop.onnx.schemas import local_function, node_name
from tilewright.interop.onnx.tensors import as_objects

Tensor = np.ndarray[Any, Any]
Values = Mapping[str, Any]


class HostNode:
    """A node that is evaluated on NumPy arrays. `reads` are the values that it sees, those of its bodies too; `reason`
    states why no program has it."""

    def __init__(self, proto: Proto, reads: Sequence[str], reason: str, model: LoadedModel) -> None:
        self.proto = proto
        self.reads = tuple(reads)
        self.reason = reason
        self._model = model
        self._evaluate: Callable[[Values], Sequence[Any]] | None = None

    @property
    def makes(self) -> tuple[str, ...]:
        """The names of the results."""
        return tuple(name for name in self.proto.output if name)

    @property
    def texts(self) -> tuple[str, ...]:
        """The node, and why it is on the host."""
        return (f"{node_name(self.proto)}: {self.reason}",)

    def run(self, values: Values) -> dict[str, Any]:
        """The results by name, of values by name: NumPy arrays, lists of them, or None. Strings are objects.

        Raises:
            ModelFileError, UnsupportedOperatorError: the node cannot be evaluated; the message names it.
        """
        missing = [name for name in self.reads if name not in values]
        try:
            if missing:
                message = f"nothing gives the value {missing[0]!r}"
                raise ModelFileError(message, help="nodes must follow what they read")
            if self._evaluate is None:
                self._evaluate = self._prepared()
            with np.errstate(all="ignore"):
                results = self._evaluate({name: _read_only(values[name]) for name in self.reads})
            return {name: _plain(result) for name, result in zip(self.makes, results, strict=True)}
        except TilewrightError as error:
            error.message = f"{node_name(self.proto)}: {error.message}"
            error.args = (error.message,)
            raise located(error) from None
        except Exception as error:  # the reference raises whatever NumPy and Python do with what the node says
            kind = UnsupportedOperatorError if isinstance(error, NotImplementedError | ImportError) else ModelFileError
            message = f"{node_name(self.proto)}, on the host: {type(error).__name__}: {str(error)[:500]}"
            raise located(
                kind(message, help=f"check the node's inputs against the ONNX specification of `{self.proto.op_type}`")
            ) from error

    def _prepared(self) -> Callable[[Values], Sequence[Any]]:
        domain = standard_domain(self.proto.domain)
        transform = transforms().get(self.proto.op_type) if domain == "" else None
        if transform is None or local_function(self._model.proto, domain, self.proto.op_type) is not None:
            return self._by_reference()
        attributes = attributes_of(self.proto, self._model.folder)
        version = self._model.versions.get("", 1)
        names = list(self.proto.input)
        return lambda values: [transform(attributes, version, *(values[n] if n else None for n in names))]

    def _by_reference(self) -> Callable[[Values], Sequence[Any]]:
        helper = onnx().helper
        node = onnx().NodeProto()
        node.CopyFrom(self.proto)
        node.domain = standard_domain(node.domain)
        functions = list(self._model.proto.functions)
        nodes = [node, *(inner for function in functions for inner in function.node)]
        if any(tensor.data_location == tensor.EXTERNAL for each in nodes for tensor in _tensors(each)):
            message = "a node that runs on the host has tensors in files of their own"
            raise UnsupportedOperatorError(message, help="store them in the model")
        # A name without a type: that of what it is given is taken.
        inputs = [onnx().ValueInfoProto(name=name) for name in self.reads]
        outputs = [onnx().ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "host", inputs, outputs)
        versions = {"": 1, **self._model.versions}
        imports = [helper.make_operatorsetid(domain, version) for domain, version in versions.items()]
        model = helper.make_model(graph, opset_imports=imports, functions=functions)
        return evaluated(model)


def _tensors(node: Proto) -> Iterator[Proto]:
    """All tensors among the attributes of a node and of those in its bodies."""
    for attribute in node.attribute:
        sparse = [attribute.sparse_tensor, *attribute.sparse_tensors]
        yield from (attribute.t, *attribute.tensors)
        for graph in (attribute.g, *attribute.graphs):
            sparse.extend(graph.sparse_initializer)
            yield from graph.initializer
            for inner in graph.node:
                yield from _tensors(inner)
        for tensor in sparse:
            yield from (tensor.values, tensor.indices)


def _read_only(value: object) -> Any:
    """Arrays that nothing can write to: they are the caller's, or other nodes read them."""
    if isinstance(value, np.ndarray):
        view: Tensor = value.view()
        view.flags.writeable = False
        return view
    return [_read_only(item) for item in value] if is_sequence(value) else value


def _plain(value: object) -> Any:
    if value is None:
        return None
    if is_sequence(value):
        return [_plain(item) for item in value]
    array = np.asarray(value)
    return as_objects(array) if array.dtype.kind in "USOT" else array
