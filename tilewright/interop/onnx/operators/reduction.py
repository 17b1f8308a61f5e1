"""Reductions over axes, running totals, and the indices of the largest and smallest elements."""

from __future__ import annotations

from collections.abc import Callable

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import axes_of, axis_of
from tilewright.interop.onnx.operators.elementwise import wide
from tilewright.interop.onnx.registry import Node, operator
from tilewright.interop.smallest import smallest

Axes = tuple[int, ...]
Reduction = Callable[[Array, Axes], Array]


def _empty(x: Array, axes: Axes) -> bool:
    return any(x.shape[d] == 0 for d in axes)


def _kept(x: Array, axes: Axes) -> Axes:
    return tuple(1 if d in axes else n for d, n in enumerate(x.shape))


def _sum(x: Array, axes: Axes) -> Array:
    return tw.sum(x, axes, dtype=x.dtype, keepdims=True)


def _extreme(x: Array, axes: Axes, *, largest: bool) -> Array:
    if x.dtype.is_bool:
        return (tw.any if largest else tw.all)(x, axes, keepdims=True)
    if _empty(x, axes):
        return tw.full(_kept(x, axes), x.dtype.lowest if largest else x.dtype.highest, dtype=x.dtype)
    return (tw.max if largest else tw.min)(x, axes, keepdims=True)


def _log_sum_exp(x: Array, axes: Axes) -> Array:
    if _empty(x, axes):
        return tw.full(_kept(x, axes), -tw.inf, dtype=x.dtype)
    return tw.logsumexp(x, axes, keepdims=True)


def _in_wide(function: Reduction) -> Reduction:
    """A reduction of floats that is rounded once; integers stay what they are."""

    def reduced(x: Array, axes: Axes) -> Array:
        return tw.astype(function(wide(x), axes), x.dtype)

    return reduced


def _of_floats(function: Reduction) -> Reduction:
    """A reduction that computes integers as floats."""

    def reduced(x: Array, axes: Axes) -> Array:
        return tw.astype(function(wide(x) if x.dtype.is_float else tw.astype(x, tw.f64), axes), x.dtype)

    return reduced


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": _in_wide(lambda x, axes: _sum(tw.abs(x), axes)),
    "ReduceL2": _of_floats(lambda x, axes: tw.sqrt(_sum(x * x, axes))),
    "ReduceLogSum": _of_floats(lambda x, axes: tw.log(_sum(x, axes))),
    "ReduceLogSumExp": _of_floats(_log_sum_exp),
    "ReduceMax": lambda x, axes: _extreme(x, axes, largest=True),
    "ReduceMean": _of_floats(lambda x, axes: tw.mean(x, axes, keepdims=True)),
    "ReduceMin": lambda x, axes: _extreme(x, axes, largest=False),
    "ReduceProd": lambda x, axes: tw.prod(x, axes, dtype=x.dtype, keepdims=True),
    "ReduceSum": _sum,
    "ReduceSumSquare": _in_wide(lambda x, axes: _sum(x * x, axes)),
}


def _register(name: str, function: Reduction) -> None:
    @operator(name)
    def _(node: Node, x: Array, axes: Array | None = None) -> Array:
        given = node.get("axes") if axes is None else node.known_ints(axes, "axes")
        keeps_all = node.get("noop_with_empty_axes", 0)
        if not given and keeps_all:
            # No axis is reduced; what is done to each element still is.
            return function(x, ())
        reduced = axes_of(tuple(given) if given else None, x.ndim)
        result = function(x, reduced)
        return result if node.get("keepdims", 1) else tw.squeeze(result, reduced)


for _name, _function in _REDUCTIONS.items():
    _register(_name, _function)


def _arg_extreme(node: Node, x: Array, choose: Callable[..., Array]) -> Array:
    axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
    if not node.get("select_last_index", 0):
        return choose(x, axis, keepdims=keep)
    last = x.shape[axis_of(axis, x.ndim)] - 1
    return tw.subtract(last, choose(tw.flip(x, axis=axis), axis, keepdims=keep))


@operator("ArgMax")
def arg_max(node: Node, x: Array) -> Array:
    """The index of the first, or last, largest element along `axis`."""
    return _arg_extreme(node, x, tw.argmax)


@operator("ArgMin")
def arg_min(node: Node, x: Array) -> Array:
    """The index of the first, or last, smallest element along `axis`."""
    return _arg_extreme(node, x, tw.argmin)


def _running(node: Node, x: Array, axis: object, total: Callable[..., Array]) -> Array:
    (at,) = axes_of(node.known_ints(axis, "axis"), x.ndim)
    reverse, exclusive = node.get("reverse", 0), node.get("exclusive", 0)
    source = tw.flip(x, axis=at) if reverse else x
    totals = total(source, at, dtype=x.dtype, include_initial=bool(exclusive))
    if exclusive:
        totals = totals[(*(slice(None),) * at, slice(0, x.shape[at]))]
    return tw.flip(totals, axis=at) if reverse else totals


@operator("CumSum")
def running_sum(node: Node, x: Array, axis: Array) -> Array:
    """Sums of the elements so far."""
    return _running(node, x, axis, tw.cumulative_sum)


@operator("CumProd")
def running_product(node: Node, x: Array, axis: Array) -> Array:
    """Products of the elements so far."""
    return _running(node, x, axis, tw.cumulative_prod)


@operator("TopK", since=10)
def top_k(node: Node, x: Array, k: Array) -> tuple[Array, Array]:
    """The `k` largest or smallest elements along `axis` and their indices."""
    (count,) = node.known_ints(k, "k")
    return _chosen(node, x, count)


@operator("TopK")
def top_k_by_attribute(node: Node, x: Array) -> tuple[Array, Array]:
    """The `k` largest elements along `axis` and their indices."""
    return _chosen(node, x, node.required("k"))


def _chosen(node: Node, x: Array, count: int) -> tuple[Array, Array]:
    axis = node.get("axis", -1)
    if node.get("largest", 1):
        return tw.top_k(x, count, axis=axis)
    (at,) = axes_of(axis, x.ndim)
    if not 0 <= count <= x.shape[at]:
        raise node.unsupported(f"`TopK` of {count} elements along an axis of size {x.shape[at]}")
    return smallest(x, count, at)
