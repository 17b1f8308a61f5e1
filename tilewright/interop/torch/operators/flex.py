"""FlexAttention: attention whose scores go through a graph of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.torch.operators.attention import attention_product, attention_weighted
from tilewright.interop.torch.packages import FxNode, GraphModule, fx, torch
from tilewright.interop.torch.registry import higher_order, name_of
from tilewright.interop.torch.walk import apply_rule, constant_of, tensors_in, value_of

# Operators on one element that torch does not tag as elementwise.
_ON_ELEMENTS = {
    f"aten.{name}.default" for name in ("_to_copy", "clone", "alias", "detach", "full_like", "ones_like", "zeros_like")
}


@higher_order("flex_attention")
def flex_attention(
    query: Array,
    key: Array,
    value: Array,
    score_graph: GraphModule,
    block_mask: Sequence[object],
    scale: float,
    kernel_options: Mapping[str, object],
    score_others: Sequence[object] = (),
    mask_others: Sequence[object] = (),
) -> tuple[Array, Array, Array]:
    """`softmax(score(q @ k.mT * scale)) @ v` over (batch, heads, length, size), with what the mask leaves out of -inf;
    logarithms of the sums, and largest scores, in units of ln 2. A block mask only states where its mask is false
    throughout, so the mask alone decides."""
    shape = (*query.shape[:-1], key.shape[-2])
    places = [
        tw.iota(tuple(n if d == axis else 1 for d, n in enumerate(shape)), axis, dtype=tw.i32) for axis in range(4)
    ]
    mask = _of_elements(block_mask[-1], [*places, *mask_others])
    scores = attention_product(query, key) * scale
    scores = tw.broadcast_to(_of_elements(score_graph, [scores, *places, *score_others]), shape)
    scores = tw.where(mask, scores, -math.inf)
    largest = tw.max(scores, -1)
    is_blind = tw.equal(largest, -math.inf)
    sums = tw.where(is_blind, -math.inf, tw.logsumexp(scores, -1))
    weights = tw.where(tw.expand_dims(is_blind, -1), 0.0, tw.nn.softmax(scores, -1))
    result = attention_weighted(tw.astype(weights, query.dtype), value)
    return result, sums / math.log(2), largest / math.log(2)


def _of_elements(graph: GraphModule, arguments: Sequence[object]) -> Array:
    """A graph on single elements, for all elements of a block at once: what depends on the element has four axes.

    Raises:
        UnsupportedOperatorError: the graph does something else than elementwise operations and look-ups.
    """
    values: dict[FxNode, Any] = {}
    remaining = iter(arguments)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(remaining)
        elif node.op == "get_attr":
            values[node] = constant_of(node)
        elif node.op == "call_function":
            values[node] = _applied(node, values)
        else:
            (result,) = fx.map_arg((node.args[0],), values.__getitem__)
            return _spread(result[0] if isinstance(result, list | tuple) else result)
    raise AssertionError("a graph without an output")


def _applied(node: FxNode, values: Mapping[FxNode, Any]) -> Array:
    varying = [n for n in node.all_input_nodes if _is_of_element(n, values)]
    if not varying:
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        return apply_rule(node.target, args, kwargs)
    name = name_of(node.target)
    if any(t.ndim for t in tensors_in(value_of(node))):
        raise UnsupportedOperatorError(f"{name} of rows", help="look elements up with an index for each axis")
    if name == "aten.index.Tensor":
        source, indices = node.args
        if source in varying or len(indices) != values[source].ndim or None in indices:
            raise UnsupportedOperatorError(f"{name} of rows", help="look elements up with an index for each axis")
        return apply_rule(node.target, (values[source], [_spread(values[n]) for n in indices]), {})
    if name.startswith("aten.new_"):
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        return apply_rule(node.target, args, kwargs)
    if torch.Tag.pointwise not in node.target.tags and name not in _ON_ELEMENTS:
        raise UnsupportedOperatorError(f"{name} of single elements", help="use elementwise operations")
    spread = {n: _spread(values[n]) for n in node.all_input_nodes}
    args, kwargs = fx.map_arg((node.args, node.kwargs), spread.__getitem__)
    return apply_rule(node.target, args, kwargs)


def _is_of_element(node: FxNode, values: Mapping[FxNode, Any]) -> bool:
    """Whether a node, of no axes in the graph, stands for all elements."""
    return isinstance(values[node], Array) and values[node].ndim == 4 and not value_of(node).ndim


def _spread(value: Any) -> Array:
    """An array of no axes with four, so that types promote among elements as they do among scalars."""
    return tw.reshape(value, (1, 1, 1, 1)) if isinstance(value, Array) and not value.ndim else value
