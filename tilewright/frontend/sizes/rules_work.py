"""How reductions, windows, contractions and sorts are done on padded values: with neutral elements in the padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.dtypes import DType
from tilewright.frontend.sizes.axes import Axes, Axis, is_padded, joined, joined_all, plain
from tilewright.frontend.sizes.family import Sizes, varies
from tilewright.frontend.sizes.padded import Builder, Origin, Padded, Step, only_plain
from tilewright.frontend.sizes.rules import rule, static_only

_KINDS = {"maximum": "maximum", "add": "sum"}


def _identity(fn: str, dtype: DType) -> Any:
    identity = ops.FUNCTIONS[fn].identity
    return 0 if identity is None else identity(dtype)


def _without(axes: Axes, removed: Sequence[int]) -> Axes:
    return tuple(axis for d, axis in enumerate(axes) if d not in removed)


# ---- reductions -----------------------------------------------------------------------------------------------------


@rule("reduce")
def _reduce(builder: Builder, step: Step) -> list[Padded]:
    fn, along = step.fixed("fn"), step.axes()
    (number,) = step.operands
    dtype = step.node.operands[0].dtype
    for axis in along:
        builder.masked(number, axis, _identity(fn, dtype), nan_passes=dtype.is_float and fn in _KINDS)
    state = builder.states[number]
    value = builder.emit("reduce", state.value, fn=fn, axes=along)
    origin = None
    if fn in _KINDS and len(along) == 1:
        kept = tuple(d for d in range(state.value.type.rank) if d not in along)
        origin = Origin(_KINDS[fn], state.value, along[0], kept)
    return [Padded(value, _without(state.axes, along), origin=origin)]


@rule("arg_reduce")
def _arg_reduce(builder: Builder, step: Step) -> list[Padded]:
    """The first of equal ones wins, and padding comes last."""
    fn, along = step.fixed("fn"), step.axis()
    (number,) = step.operands
    only_plain(step, builder.states[number].axes[along])  # positions in an axis that others were merged into differ
    if builder.states[number].axes[along] is not None:
        builder.masked(number, along, _identity(fn, step.node.operands[0].dtype))
    state = builder.states[number]
    return [Padded(builder.emit("arg_reduce", state.value, fn=fn, axis=along), _without(state.axes, (along,)))]


@rule("scan")
def _scan(builder: Builder, step: Step) -> list[Padded]:
    fn, along, is_reversed = step.fixed("fn"), step.axis(), step.fixed("reverse")
    number = step.operands[0]
    factors = builder.states[number].axes[along]
    # What is real comes first, unless the axis was merged from others or is read from its end.
    if is_reversed or (factors is not None and len(factors) > 1):
        builder.masked(number, along, _identity(fn, step.node.operands[0].dtype))
    state, *initial = (builder.states[n] for n in step.operands)
    value = builder.emit("scan", state.value, *(i.value for i in initial), fn=fn, axis=along, reverse=is_reversed)
    sizes = step.sizes(number)
    axes = tuple(plain(sizes[d]) if axis is None else axis for d, axis in enumerate(state.axes))
    for i in initial:
        joined(_without(axes, (along,)), i.axes)
    return [Padded(value, axes)]


@rule("window_reduce")
def _window_reduce(builder: Builder, step: Step) -> list[Padded]:
    fn = step.fixed("fn")
    (number,) = step.operands
    geometry = _geometry(step, ("window", "strides", "low", "dilation"))
    high = step.vectors("high")
    sizes, target = step.sizes(number), step.sizes(step.results[0])
    axes: list[Axis] = []
    for axis, size in enumerate(sizes):
        is_one_to_one = geometry["window"][axis] == 1 and geometry["strides"][axis] == 1 and not geometry["low"][axis]
        if is_one_to_one and size == target[axis]:
            axes.append(builder.states[number].axes[axis])
            continue
        axes.append(plain(target[axis]))
        if varies(size):
            only_plain(step, builder.states[number].axes[axis])
            builder.masked(number, axis, _identity(fn, step.node.operands[0].dtype), (size,))
    attributes = geometry | {"fn": fn, "high": tuple(n[0] for n in high)}
    return [Padded(builder.emit("window_reduce", builder.states[number].value, **attributes), tuple(axes))]


def _geometry(step: Step, keys: Sequence[str]) -> dict[str, tuple[int, ...]]:
    return {key: step.axes(key) for key in keys}


# ---- products -------------------------------------------------------------------------------------------------------


@rule("contract")
def _contract(builder: Builder, step: Step) -> list[Padded]:
    keys = ("left_batch", "right_batch", "left_contract", "right_contract")
    batch, right_batch, left_along, right_along = (step.axes(key) for key in keys)
    left, right = step.operands
    attributes = {key: step.fixed(key) for key in step.node.attributes}
    for a, b in zip(left_along, right_along, strict=True):
        _mask_pair(builder, step, a, b)
    if "part" in attributes and is_padded(builder.states[left].axes[left_along[-1]]):
        raise step.refused("sums in parts along an axis of a size of the call")
    lhs, rhs = builder.states[left], builder.states[right]
    shared = joined(tuple(lhs.axes[a] for a in batch), tuple(rhs.axes[b] for b in right_batch))
    free = _without(lhs.axes, (*batch, *left_along)), _without(rhs.axes, (*right_batch, *right_along))
    value = builder.emit("contract", lhs.value, rhs.value, **attributes)
    parts = (plain(step.sizes(step.results[0])[0]),) if "part" in attributes else ()
    return [Padded(value, (*parts, *shared, *free[0], *free[1]))]


def _mask_pair(builder: Builder, step: Step, a: int, b: int) -> None:
    """Zeros appended to both operands: one alone would meet infinities in the other. NaN of one may stay where all that
    is real is NaN."""
    left, right = step.operands
    (factors,) = joined((builder.states[left].axes[a],), (builder.states[right].axes[b],))
    if factors is None:
        factors = (step.sizes(left)[a],)
    if not is_padded(factors):
        return
    builder.masked(left, a, 0, factors, nan_passes=True)
    if step.node.operands[0].dtype.is_float:
        fill = builder.states[left].fills.get(a)
        builder.masked(right, b, 0, factors, nan_passes=fill is not None and not fill.or_nan)


@rule("convolve")
def _convolve(builder: Builder, step: Step) -> list[Padded]:
    image, kernel = step.operands
    sizes = step.sizes(image)
    static_only(step, {"the window": step.sizes(kernel), "the number of channels": [sizes[1]]})
    attributes: dict[str, Any] = _geometry(step, ("strides", "low", "dilation")) | {"groups": step.fixed("groups")}
    attributes["high"] = tuple(n[0] for n in step.vectors("high"))
    target = step.sizes(step.results[0])
    for axis in range(2, len(sizes)):
        if varies(sizes[axis]):
            only_plain(step, builder.states[image].axes[axis])
            builder.masked(image, axis, 0, (sizes[axis],))
    state = builder.states[image]
    value = builder.emit("convolve", state.value, builder.states[kernel].value, **attributes)
    return [Padded(value, (state.axes[0], *(plain(size) for size in target[1:])))]


# ---- order ----------------------------------------------------------------------------------------------------------


@rule("sort")
def _sort(builder: Builder, step: Step) -> list[Padded]:
    along, descending = step.axis(), step.fixed("descending")
    keys = step.operands[0]
    joint = joined_all([builder.states[number].axes for number in step.operands])
    sizes = step.sizes(keys)[along]
    last = _last(step.node.operands[0].dtype, descending)
    if varies(sizes):
        only_plain(step, joint[along])
        builder.masked(keys, along, last, (sizes,))
    values = [builder.states[number].value for number in step.operands]
    made = builder.emit_all("sort", values, {"axis": along, "descending": descending})
    axes = (*joint[:along], plain(sizes), *joint[along + 1 :])
    return [Padded(value, axes) for value in made]


def _last(dtype: DType, descending: bool) -> Any:
    """The value that a stable sort puts last."""
    if descending:
        return _identity("maximum", dtype)
    return np.nan if dtype.is_float else _identity("minimum", dtype)


@rule("top_k")
def _top_k(builder: Builder, step: Step) -> list[Padded]:
    (number,) = step.operands
    sizes = step.sizes(number)
    last = len(sizes) - 1
    k: Sizes = tuple(step.each("k"))
    if varies(sizes[last]):
        only_plain(step, builder.states[number].axes[last])
        builder.masked(number, last, _identity("maximum", step.node.operands[0].dtype), (sizes[last],))
    state = builder.states[number]
    made = builder.emit_all("top_k", [state.value], {"k": k[0]})
    axes = (*state.axes[:last], plain(k))
    return [Padded(value, axes) for value in made]
