"""The backend of `torch.compile`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tilewright import events
from tilewright.api.array import located
from tilewright.errors import OptionError
from tilewright.interop.torch.packages import GraphModule, torch
from tilewright.interop.torch.plan import Plan
from tilewright.interop.torch.ranges import OutOfRange, RangedGraph
from tilewright.interop.torch.registry import CHECKS, find_rule, name_of
from tilewright.interop.torch.specialise import Specialised, has_symbols
from tilewright.interop.torch.walk import WRITTEN, unsupported_error, unsupported_operators

Compiled = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class BackendOptions:
    """Options of `torch.compile(..., options=...)`. `fallback` selects the treatment of operators that have no rule:
    "torch" runs them there, "error" refuses the graph. `target` is as `tw.jit` has it."""

    fallback: str = "torch"
    target: str | None = None

    @staticmethod
    def of(given: Mapping[str, Any]) -> BackendOptions:
        """Checked options.

        Raises:
            OptionError: there is no such option, or no such value.
        """
        names = [f.name for f in fields(BackendOptions)]
        unknown = [name for name in given if name not in names]
        if unknown:
            message = f"the backend has no option `{unknown[0]}`"
            raise located(OptionError(message, help=f"the options are {', '.join(names)}"))
        options = BackendOptions(**given)
        if options.fallback not in ("torch", "error"):
            message = f"`fallback` is {options.fallback!r}"
            raise located(OptionError(message, help='use "torch" or "error"'))
        return options


def backend(
    graph_module: GraphModule,
    example_inputs: Sequence[object],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's, for `torch.compile(model, backend="tilewright")`.

    Gradients come from AOTAutograd. Operators without a rule run in torch, between the compiled parts; the event
    `torch.fallback` lists them. `mode` is taken and changes nothing.

    Raises:
        OptionError: an option is unknown.
        UnsupportedOperatorError: the option `fallback` is "error", and operators have no rule.
    """
    compile_graph = functools.partial(_compile, options=BackendOptions.of(options or {}))
    common = importlib.import_module("torch._dynamo.backends.common")
    partitioners = importlib.import_module("torch._functorch.partitioners")
    aot = common.aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        inference_compiler=compile_graph,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
        partition_fn=partitioners.min_cut_rematerialization_partition,
    )
    return aot(graph_module, example_inputs)


# Operators of the core of ATen, and some beyond it, that torch can take apart further.
_FURTHER = (
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "_native_batch_norm_legit",
    "batch_norm_backward",
    "dist",
    "ldexp",
    "narrow_copy",
    "native_batch_norm",
    "tril_indices",
    "triu_indices",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_trilinear3d",
)


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """How AOTAutograd takes operators apart: to the core of ATen, except those that have a rule here."""
    decomp = importlib.import_module("torch._decomp")
    table = decomp.core_aten_decompositions()
    names = [getattr(torch.ops.aten, name) for name in _FURTHER]
    table.update(decomp.get_decompositions(names))
    return {target: body for target, body in table.items() if find_rule(target) is None}


def _compile(module: GraphModule, example_inputs: Sequence[object], *, options: BackendOptions) -> Compiled:
    _free_checks(module)
    build = functools.partial(build_plan, options=options)
    if not has_symbols(module):
        return build(module)
    try:
        return RangedGraph(module, build, functools.partial(_report, options=options), options.target)
    except OutOfRange as error:
        events.emit("torch.sizes", ranges=[], why_not=str(error), count=0)
        return Specialised(module, build)


def _free_checks(module: GraphModule) -> None:
    """Take out the tokens that keep checks in the order of the graph: programs make all of them before they return."""
    for node in [*module.graph.nodes]:
        if node.op != "call_function" or name_of(node.target) != _WITH_EFFECTS or name_of(node.args[1]) not in CHECKS:
            continue
        token, check, *args = node.args
        with module.graph.inserting_before(node):
            freed = module.graph.call_function(check, tuple(args), node.kwargs)
        freed.meta["val"] = None
        for user in [*node.users]:
            user.replace_all_uses_with(token)
            module.graph.erase_node(user)
        module.graph.erase_node(node)


_WITH_EFFECTS = "torch.ops.higher_order.with_effects"


def build_plan(module: GraphModule, *, options: BackendOptions) -> Compiled:
    """The function of a graph without symbols.

    Raises:
        UnsupportedOperatorError: the options ask for it where operators have no rule.
    """
    _free_checks(module)
    plan = Plan(module, options.target)
    _report(plan, options)
    return plan


def _report(plan: Plan, options: BackendOptions) -> None:
    refused = {node: reason for node, reason in plan.refused.items() if reason != WRITTEN}
    if refused:
        if options.fallback == "error":
            raise unsupported_error(refused, 'leave the option `fallback` at "torch" to run them there')
        listed = unsupported_operators(refused)
        text = "\n".join(f"    {name} ({count} times): {reason}" for name, count, reason in listed)
        operators = {name: count for name, count, _ in listed}
        events.emit("torch.fallback", operators=operators, parts=plan.parts, text=text)
