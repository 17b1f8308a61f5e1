"""Functions, and operations that say how or where something is computed, which do nothing here."""

from __future__ import annotations

from typing import Any

from tilewright.api.lifting import cast, emit_all
from tilewright.interop.stablehlo.ir import Dense, Symbol
from tilewright.interop.stablehlo.operators.elementwise import mapped
from tilewright.interop.stablehlo.registry import Node, operation

_IDENTITIES = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement", "LayoutConstraint"}
)
# Targets of custom calls that are known.
TARGETS = _IDENTITIES | {"mhlo.erf", "mhlo.topk"}
_COLLECTIVES = (
    "stablehlo.all_gather",
    "stablehlo.all_reduce",
    "stablehlo.all_to_all",
    "stablehlo.collective_broadcast",
    "stablehlo.collective_permute",
    "stablehlo.reduce_scatter",
)


@operation("func.call", narrow=True, elementwise=True)
def call(node: Node, *operands: Any) -> tuple[Any, ...]:
    """A function of the module, traced here."""
    return _called(node, "callee", operands)


@operation("stablehlo.composite", narrow=True)
def composite(node: Node, *operands: Any) -> tuple[Any, ...]:
    """An operation by the function that it is composed of."""
    return _called(node, "decomposition", operands)


def _called(node: Node, key: str, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    callee = node.get(key)
    if not isinstance(callee, Symbol):
        raise node.malformed(f"`{key}` names no function")
    return tuple(node.call(callee.name, *operands))


@operation("stablehlo.optimization_barrier", "sdy.sharding_constraint", narrow=True, elementwise=True)
def identity(node: Node, *operands: Any) -> tuple[Any, ...]:
    """The operands."""
    return operands


@operation("stablehlo.custom_call", narrow=True)
def custom_call(node: Node, *operands: Any) -> tuple[Any, ...]:
    """Code outside of the program: what only places data, and the few targets that exporters write operations as."""
    target = node.get("call_target_name")
    if target in _IDENTITIES and len(operands) == len(node.types):
        return operands
    if target == "mhlo.erf" and len(operands) == 1:
        return (mapped("erf", operands[0]),)
    if target == "mhlo.topk" and len(operands) == 1:
        attributes = node.get("mhlo.attributes", {})
        if attributes.get("largest", True):
            values, indices = emit_all("top_k", operands[0], k=attributes["k"])
            return values, cast(indices, node.types[1].dtype)
    raise node.unsupported(f"a custom call of `{target}`", "export the program without it")


@operation(*_COLLECTIVES, narrow=True)
def collective(node: Node, *operands: Any) -> tuple[Any, ...]:
    """An exchange among devices: with itself alone, a device gets what it has."""
    groups = node.get("replica_groups", node.get("source_target_pairs", None))
    if not isinstance(groups, Dense):
        raise node.malformed("the groups of devices are missing")
    shape = groups.type.shape
    is_alone = len(shape) == 2 and (shape[1] == 1 or (node.name.endswith("permute") and shape == (1, 2)))
    if not is_alone or any(o.shape != t.shape for o, t in zip(operands, node.types, strict=True)):
        raise node.unsupported(f"`{node.name}` among several devices", "export the program for one device")
    if node.name.endswith("permute") and groups.full().tolist() != [[0, 0]]:
        raise node.unsupported("`stablehlo.collective_permute` among several devices", "export it for one device")
    return operands
