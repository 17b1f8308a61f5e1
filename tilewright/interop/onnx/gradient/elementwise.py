"""Rules of primitives that act on each element."""

from __future__ import annotations

from tilewright.api.lifting import cast
from tilewright.interop.onnx.gradient.rules import Cotangents, Step, rule
from tilewright.interop.onnx.gradient.scalars import scalar_cotangents


@rule("map")
def _map(step: Step) -> Cotangents:
    return scalar_cotangents(step.attribute("fn"), step.cotangent, step.results[0], step.operands)


@rule("cast")
def _cast(step: Step) -> Cotangents:
    return [cast(step.cotangent, step.node.operands[0].dtype)]
