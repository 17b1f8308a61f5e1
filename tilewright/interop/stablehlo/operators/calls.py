"""Functions, and operations that state how or where something is computed, which do nothing here."""

from __future__ import annotations

from typing import Any

from tilewright.api.array import Array
from tilewright.interop.narrow import Coded
from tilewright.interop.stablehlo.ir import Symbol
from tilewright.interop.stablehlo.operators.decompositions import LAPACK_CALLS
from tilewright.interop.stablehlo.operators.devices import placed_by_call
from tilewright.interop.stablehlo.operators.elementwise import mapped
from tilewright.interop.stablehlo.operators.order import approximate_top_k, largest
from tilewright.interop.stablehlo.registry import Node, operation

_IDENTITIES = frozenset({"annotate_device_placement", "LayoutConstraint"})
_PLACEMENTS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
# Targets of custom calls that are known.
TARGETS = _IDENTITIES | _PLACEMENTS | {"ApproxTopK", "mhlo.erf", "mhlo.topk"} | LAPACK_CALLS.keys()


@operation("func.call", narrow=True, elementwise=True)
def call(node: Node, *operands: Array | Coded) -> tuple[Array | Coded, ...]:
    """A function of the module, traced here."""
    return _called(node, "callee", operands)


@operation("stablehlo.composite", narrow=True)
def composite(node: Node, *operands: Array | Coded) -> tuple[Array | Coded, ...]:
    """An operation by the function that it is composed of."""
    return _called(node, "decomposition", operands)


def _called(node: Node, key: str, operands: tuple[Array | Coded, ...]) -> tuple[Array | Coded, ...]:
    callee = node.get(key)
    if not isinstance(callee, Symbol):
        raise node.malformed(f"`{key}` names no function")
    return tuple(node.call(callee.name, *operands))


@operation("stablehlo.optimization_barrier", narrow=True, elementwise=True)
def identity(node: Node, *operands: Array | Coded) -> tuple[Array | Coded, ...]:
    """The operands."""
    return operands


@operation("stablehlo.custom_call", narrow=True)
def custom_call(node: Node, *operands: Any) -> tuple[Array | Coded, ...]:
    """Code outside of the program: what only places data, calls of LAPACK, and the few targets that exporters write
    operations as."""
    target = node.get("call_target_name")
    if target in _IDENTITIES and len(operands) == len(node.types):
        return operands
    if target in _PLACEMENTS and len(operands) == 1:
        return (placed_by_call(node, target, operands[0]),)
    if target in LAPACK_CALLS and all(isinstance(operand, Array) for operand in operands):
        return tuple(LAPACK_CALLS[target](node, *operands))
    if target == "mhlo.erf" and len(operands) == 1:
        return (mapped("erf", operands[0]),)
    if target == "ApproxTopK" and len(operands) == 2 * len(node.types):
        return approximate_top_k(node, *operands)
    if target == "mhlo.topk" and len(operands) == 1:
        attributes = node.get("mhlo.attributes", {})
        if attributes.get("largest", True):
            return largest(node, operands[0], attributes["k"])
    raise node.unsupported(f"a custom call of `{target}`", "export the program without it")
