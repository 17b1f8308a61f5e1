"""Constants and counters."""

from __future__ import annotations

from tilewright.api.array import Array
from tilewright.api.lifting import cast, emit
from tilewright.interop.narrow import Coded
from tilewright.interop.stablehlo.ir import Dense
from tilewright.interop.stablehlo.registry import Node, lifted, operation


@operation("stablehlo.constant", elementwise=True)
def constant(node: Node) -> Array | Coded:
    """The elements that the text has."""
    value = node.get("value")
    if not isinstance(value, Dense):
        raise node.malformed("the value is no `dense<...>`")
    return lifted(value)


@operation("stablehlo.iota", "stablehlo.dynamic_iota")
def iota(node: Node, *shape: Array) -> Array:
    """Positions along an axis."""
    if node.type.is_narrow:
        raise node.unsupported(f"`iota` of {node.type.storage.name}")
    counter = emit("iota", axis=node.integer("iota_dimension"), shape=node.type.shape, dtype=node.type.dtype.part.name)
    return cast(counter, node.type.dtype)
