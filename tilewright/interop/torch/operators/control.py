"""Operators that take graphs: branches, loops, scans, and graphs that are called once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import ArrayLike
from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.torch.packages import GraphModule
from tilewright.interop.torch.registry import higher_order, operator
from tilewright.interop.torch.walk import call_graph


def _refuse_numbers(values: Sequence[object]) -> None:
    if not all(isinstance(value, Array) for value in values):
        raise UnsupportedOperatorError("a loop that carries numbers", help="carry tensors of no axes")


@higher_order("cond")
def cond(
    pred: ArrayLike, true_graph: GraphModule, false_graph: GraphModule, operands: Sequence[object]
) -> tuple[Array, ...]:
    """The results of one of two graphs; only that one runs."""
    return tw.cond(
        pred, lambda: tuple(call_graph(true_graph, operands)), lambda: tuple(call_graph(false_graph, operands))
    )


@higher_order("while_loop")
def while_loop(
    condition: GraphModule, body: GraphModule, carried: Sequence[object], others: Sequence[object]
) -> tuple[Any, ...]:
    """The carried values when the condition is false."""
    _refuse_numbers(carried)
    return tw.while_loop(
        lambda values: call_graph(condition, [*values, *others])[0],
        lambda values: tuple(call_graph(body, [*values, *others])),
        tuple(carried),
    )


@higher_order("scan")
def scan(body: GraphModule, init: Sequence[object], xs: Sequence[object], others: Sequence[Any]) -> tuple[Any, ...]:
    """The last carried values, and what the body gives for each slice along the first axis."""
    _refuse_numbers(init)
    count = len(init)

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        results = call_graph(body, [*carry, *x, *others])
        return tuple(results[:count]), tuple(results[count:])

    carry, ys = tw.scan(step, tuple(init), tuple(xs))
    return (*carry, *ys)


@higher_order("map_impl")
def map_impl(body: GraphModule, xs: Sequence[object], others: Sequence[object]) -> tuple[Array, ...]:
    """The results of a graph for each slice along the first axis."""
    return scan(body, (), xs, others)


@higher_order("invoke_subgraph")
def invoke_subgraph(graph: GraphModule, identifier: str | None, *operands: object) -> tuple[Any, ...]:
    """A graph that is called at several places."""
    return tuple(call_graph(graph, operands))


@higher_order("tag_activation_checkpoint", "wrap_activation_checkpoint")
def checkpoint(graph: GraphModule, *operands: object, **kwargs: object) -> tuple[Any, ...]:
    """A graph whose values are computed again for gradients, which no graph without gradients needs."""
    return tuple(call_graph(graph, operands))


@higher_order("wrap_with_set_grad_enabled")
def with_set_grad_enabled(enabled: bool, graph: GraphModule, *operands: object) -> tuple[Any, ...]:
    """A graph in which gradients are recorded or not."""
    return tuple(call_graph(graph, operands))


# ---- numbers of tensors ---------------------------------------------------------------------------------------------


@operator("sym_size.int")
def sym_size(x: Array, dim: int) -> int:
    """A size."""
    return x.shape[dim]


@operator("sym_numel")
def sym_numel(x: Array) -> int:
    """The number of elements."""
    return x.size


@operator("sym_storage_offset")
def sym_storage_offset(x: Array) -> int:
    """The storage offset of a tensor, which is 0: each array of a program has storage of its own."""
    return 0
