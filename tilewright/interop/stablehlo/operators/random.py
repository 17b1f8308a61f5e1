"""Random bits."""

from __future__ import annotations

from tilewright.interop.stablehlo.registry import Node, operation


@operation("stablehlo.rng")
def rng(node: Node, *operands: object) -> object:
    """Numbers that every implementation draws in its own way."""
    raise node.unsupported("`stablehlo.rng`, whose numbers are not defined", "draw them from a key with `jax.random`")
