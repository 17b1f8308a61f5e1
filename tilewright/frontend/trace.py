"""The traced program: a light record of primitives.

Tracing builds this record and nothing else. It is hashed before any IR is built, so a warm start (cache hit) never
imports the IR framework. Nodes inside the graphs of `while` and `if` may use values of the enclosing graph.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from msgspec import field

from tilewright import primitives
from tilewright.array_digests import dense_view, digest_array
from tilewright.dtypes import DType, as_dtype
from tilewright.errors import ArgumentError, SourceLocation, TilewrightError, user_location
from tilewright.primitives import ArrayType


class Value(msgspec.Struct, eq=False):
    """One array in the program. `producer` is None for a graph input."""

    type: ArrayType
    producer: Node | None = None
    name: str | None = None

    def __repr__(self) -> str:
        """Without the producer, which is a chain of any length."""
        return f"Value({self.type!r}, name={self.name!r})"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype


class Node(msgspec.Struct, eq=False):
    """One primitive applied to values."""

    op: str
    operands: tuple[Value, ...]
    attributes: Mapping[str, Any]
    graphs: tuple[Graph, ...]
    results: tuple[Value, ...] = ()
    location: SourceLocation | None = None


class Graph(msgspec.Struct, eq=False):
    """A function over arrays: nodes in execution order. `constants` and `kernels` are shared with nested graphs."""

    name: str = "main"
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    kernels: dict[str, Any] = field(default_factory=dict)

    def nested(self, name: str) -> Graph:
        """An empty graph for a region, sharing this program's constants and kernels."""
        return Graph(name, constants=self.constants, kernels=self.kernels)

    def input(self, type: ArrayType, name: str | None = None) -> Value:
        value = Value(type, None, name)
        self.inputs.append(value)
        return value

    def add(self, op: str, operands: Sequence[Value] = (), **attributes: Any) -> tuple[Value, ...]:
        """Append a primitive; types come from `primitives.infer`, errors carry the user's line."""
        try:
            types = primitives.infer(op, [o.type for o in operands], attributes)
        except TilewrightError as error:
            error.location = error.location or user_location()
            raise
        return self.append(op, operands, attributes, types)

    def append(
        self,
        op: str,
        operands: Sequence[Value],
        attributes: Mapping[str, object],
        types: Sequence[ArrayType],
        graphs: Sequence[Graph] = (),
    ) -> tuple[Value, ...]:
        """Append a node whose result types are known."""
        node = Node(op, tuple(operands), dict(attributes), tuple(graphs), location=user_location())
        node.results = tuple(Value(t, node) for t in types)
        self.nodes.append(node)
        return node.results

    def constant(self, array: np.ndarray, type: ArrayType) -> Value:
        """A captured array, kept by reference until `snapshot`. Arrays of one repeated value are stored as that
        value."""
        fields: dict[str, Any] = {"shape": type.shape, "dtype": type.dtype.name}
        dense, order = dense_view(array)
        if _is_uniform(dense) and _is_number(dense.reshape(-1)[:1]):
            return self.add("constant", value=dense.reshape(-1)[0].item(), resource="", **fields)[0]
        kept = dense.transpose(np.argsort(order))
        digest = digest_array(kept)
        self.constants.setdefault(digest, kept)
        return self.add("constant", value=0, resource=digest, **fields)[0]

    def snapshot(self) -> dict[str, np.ndarray]:
        """The captured arrays by content address, safe from what the user writes to them later. A program that comes
        from the compile cache never needs them, so they are not copied when it is traced.

        Raises:
            ArgumentError: an array was written to since it was captured.
        """
        copies = {
            digest: array.copy(order="K") if array.flags.writeable else array
            for digest, array in self.constants.items()
        }
        self.check_unchanged(copies)
        return copies

    def check_unchanged(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Compare captured arrays with what they held when they were traced.

        Raises:
            ArgumentError: one was written to.
        """
        for digest, array in arrays.items():
            if digest_array(array) != digest:
                type = ArrayType(array.shape, as_dtype(array.dtype))
                message = f"an array of type {type}, captured by `{self.name}`, was written to since it was traced"
                raise ArgumentError(message, help="pass it as an argument, or trace the function again")

    def walk(self) -> Iterator[Node]:
        """All nodes, those of nested graphs included, outer before inner."""
        for node in self.nodes:
            yield node
            for graph in node.graphs:
                yield from graph.walk()


def _is_uniform(array: np.ndarray) -> bool:
    """Whether all elements of a contiguous array have the same bits."""
    bits = array.reshape(-1).view(f"u{array.itemsize}")
    if bits.size == 0 or bits[0] != bits[-1] or bits[0] != bits[bits.size // 2]:
        return False
    return bool((bits == bits[0]).all())


def _is_number(element: np.ndarray) -> bool:
    """Whether the bits of one element are those that its value has as a number: those of a NaN may be others."""
    return not (element != element).any() or element.tobytes() == np.full_like(element, np.nan).tobytes()


def digest(graph: Graph) -> str:
    """Content address of a program. Equal programs traced at different lines are equal."""
    numbering: dict[Value, int] = {}
    hasher = hashlib.blake2b(digest_size=20)
    _digest_graph(graph, numbering, hasher.update)
    for name, kernel in sorted(graph.kernels.items()):
        hasher.update(f"kernel {name} {kernel.digest}\n".encode())
    return hasher.hexdigest()


def _text(value: object) -> str:
    """An attribute as text that differs where it does: all NaN print alike, but have signs and payloads."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, float) and value != value:
        return f"nan:{struct.pack('<d', value).hex()}"
    return repr(value)


_type_text = lru_cache(maxsize=4096)(str)


def _digest_graph(graph: Graph, numbering: dict[Value, int], update: Any) -> None:
    def number(value: Value) -> int:
        return numbering.setdefault(value, len(numbering))

    update(f"graph ({', '.join(f'{number(v)}: {_type_text(v.type)}' for v in graph.inputs)})\n".encode())
    for node in graph.nodes:
        attributes = ", ".join(f"{key}={_text(value)}" for key, value in sorted(node.attributes.items()))
        update(f"{node.op} {[numbering[v] for v in node.operands]} {{{attributes}}}\n".encode())
        for inner in node.graphs:
            _digest_graph(inner, numbering, update)
        update(f"-> {[(number(v), _type_text(v.type)) for v in node.results]}\n".encode())
    update(f"return {[numbering[v] for v in graph.outputs]}\n".encode())
