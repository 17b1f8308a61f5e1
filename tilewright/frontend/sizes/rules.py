"""How each operation is done on padded values: the table, and the operations on elements and regions."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from tilewright import dtypes, ops
from tilewright.frontend.sizes.axes import Axes, fresh, is_padded, joined, joined_all, plain
from tilewright.frontend.sizes.family import NotUniform, Sizes, Trace, varies
from tilewright.frontend.sizes.padded import Builder, Fill, Origin, Padded, Step
from tilewright.frontend.trace import Graph
from tilewright.primitives import ArrayType

Rule = Callable[[Builder, Step], list[Padded]]
RULES: dict[str, Rule] = {}

# Functions that give NaN where an operand is NaN.
_PASS_NAN = frozenset({"add", "subtract", "multiply", "divide", "negative", "exp", "exp2", "reciprocal"})
_INVERSES = {"reciprocal": "inverse"}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def build_nodes(builder: Builder, graph: Graph) -> None:
    """Add the operations of a graph of the family to the padded program.

    Raises:
        NotUniform: one has no form on padded values.
    """
    _load_rules()
    for node in graph.nodes:
        step = Step(builder.family, builder.family.largest.node_numbers[node])
        if node.op not in RULES:
            raise step.refused("has no form on padded arrays")
        builder.location = node.location
        states = RULES[node.op](builder, step)
        step.check_attributes()
        for number, state in zip(step.results, states, strict=True):
            builder.define(number, state)


@functools.cache
def _load_rules() -> None:
    for name in ("rules_moves", "rules_work"):
        importlib.import_module(f"tilewright.frontend.sizes.{name}")


# ---- sources --------------------------------------------------------------------------------------------------------


@rule("constant")
def _constant(builder: Builder, step: Step) -> list[Padded]:
    sizes = step.sizes(step.results[0])
    type = step.node.results[0].type
    values, resources = step.each("value"), step.each("resource")
    step.each("shape")
    axes = tuple(fresh(size) for size in sizes)
    if any(resources):
        if not any(map(varies, sizes)) and len(set(resources)) == 1:
            contents = builder.family.largest.constant(step.number)
            builder.graph.constants.setdefault(resources[0], contents)
            return [Padded(builder.emit("constant", **step.node.attributes), axes)]
        key = ("constant", step.number)
        value = builder.parameter(key, type, lambda trace: trace.constant(step.number))
        return [Padded(value, tuple(plain(size) for size in sizes))]
    if len(set(map(repr, values))) == 1:
        everywhere = np.asarray(values[0], type.dtype.numpy)
        return [Padded(builder.number(values[0], type), axes, everywhere=everywhere)]
    number = builder.parameter(
        ("number", step.number), ArrayType((), type.dtype), lambda trace: _uniform(trace, step.number)
    )
    return [Padded(builder.broadcast(number, type.shape), axes)]


def _uniform(trace: Trace, number: int) -> Any:
    attributes = trace.nodes[number].attributes
    if attributes["resource"]:
        raise NotUniform("a constant is one number at some sizes only")
    return attributes["value"]


@rule("iota")
def _iota(builder: Builder, step: Step) -> list[Padded]:
    along = step.axis()
    step.each("shape")
    sizes = step.sizes(step.results[0])
    axes = tuple(plain(size) if axis == along else fresh(size) for axis, size in enumerate(sizes))
    return [Padded(builder.emit("iota", **step.node.attributes), axes)]


@rule("random_bits")
def _random_bits(builder: Builder, step: Step) -> list[Padded]:
    sizes = step.sizes(step.results[0])
    step.each("shape")
    if any(map(varies, sizes[1:])):
        raise step.refused("random bits are counted row by row, so only the first axis may have a size of the call")
    key = builder.states[step.operands[0]].value
    return [Padded(builder.emit("random_bits", key, **step.node.attributes), tuple(map(plain, sizes)))]


# ---- elements -------------------------------------------------------------------------------------------------------


@rule("map")
def _map(builder: Builder, step: Step) -> list[Padded]:
    states = [builder.states[number] for number in step.operands]
    axes = joined_all([state.axes for state in states])
    fn: str = step.fixed("fn")
    value = builder.emit("map", *(state.value for state in states), fn=fn)
    made = Padded(value, axes, _fills(fn, states, axes), _everywhere(fn, states))
    return [_softmax_step(fn, states, made)]


def _everywhere(fn: str, states: Sequence[Padded]) -> Any:
    if any(state.everywhere is None for state in states):
        return None
    return ops.evaluate(fn, [state.everywhere for state in states])


def _fills(fn: str, states: Sequence[Padded], axes: Axes) -> dict[int, Fill]:
    fills: dict[int, Fill] = {}
    for axis, factors in enumerate(axes):
        if not is_padded(factors):
            continue
        known = [_fill(state, axis, axes) for state in states]
        if fn == "select" and known[0] is not None and not known[0].or_nan:
            chosen = known[1] if known[0].value else known[2]
            # What is real may be chosen from the other one, so that not all of it is NaN.
            if chosen is not None and not chosen.or_nan:
                fills[axis] = chosen
        elif all(fill is not None for fill in known):
            parts = [fill for fill in known if fill is not None]
            or_nan = any(fill.or_nan for fill in parts)
            if not or_nan or fn in _PASS_NAN:
                fills[axis] = Fill(ops.evaluate(fn, [fill.value for fill in parts]), or_nan)
    return fills


def _fill(state: Padded, axis: int, axes: Axes) -> Fill | None:
    """The value of an operand where the result is padded along an axis."""
    if state.everywhere is not None:
        return Fill(state.everywhere)
    return state.fills.get(axis) if state.axes[axis] == axes[axis] else None


def _softmax_step(fn: str, states: Sequence[Padded], made: Padded) -> Padded:
    """Facts of a softmax: with scores of -inf in the padding, weights there are 0, unless all are NaN.

    The largest score has the weight 1, so the sum of the weights is at least 1, or NaN with all of them.
    """
    if fn in ("exp", "exp2") and states[0].mark == "shifted":
        return replace(made, mark="weights", marked_axis=states[0].marked_axis)
    if fn in _INVERSES and states[0].origin is not None and states[0].origin.kind == "sum":
        return replace(made, origin=replace(states[0].origin, kind=_INVERSES[fn]))
    if fn == "maximum":
        return replace(made, origin=_origin_above_lowest(states))
    if fn in ("subtract", "divide", "multiply"):
        for first, second in ((states[0], states[1]), (states[1], states[0])):
            if fn != "multiply" and first is not states[0]:
                continue
            origin = second.origin
            if origin is not None and origin.belongs_to(first.value):
                return _with_softmax_fill(fn, first, origin, made)
    return made


def _origin_above_lowest(states: Sequence[Padded]) -> Origin | None:
    """The maximum of something and -inf is that something, as JAX writes a softmax."""
    first, second = states
    for one, other in ((first, second), (second, first)):
        if other.everywhere is not None and other.everywhere == -np.inf:
            return one.origin
    return None


def _with_softmax_fill(fn: str, first: Padded, origin: Origin, made: Padded) -> Padded:
    fill = first.fills.get(origin.axis)
    if fn == "subtract" and origin.kind == "maximum":
        made = replace(made, mark="shifted", marked_axis=origin.axis)
        if fill is not None and fill.is_value(-np.inf):
            made = replace(made, fills={**made.fills, origin.axis: Fill(fill.value, or_nan=True)})
    is_divided = (fn, origin.kind) in (("divide", "sum"), ("multiply", "inverse"))
    is_weights = first.mark == "weights" and first.marked_axis == origin.axis
    if is_divided and is_weights and fill is not None and fill.value == 0:
        made = replace(made, fills={**made.fills, origin.axis: Fill(fill.value, or_nan=True)})
    return made


@rule("cast")
def _cast(builder: Builder, step: Step) -> list[Padded]:
    (state,) = (builder.states[number] for number in step.operands)
    to = dtypes.by_name(step.fixed("dtype"))
    value = builder.emit("cast", state.value, dtype=to.name)
    keeps_nan = to.is_float
    fills = {
        axis: Fill(ops.cast(np.asarray(fill.value), to), fill.or_nan)
        for axis, fill in state.fills.items()
        if keeps_nan or not fill.or_nan
    }
    everywhere = None if state.everywhere is None else ops.cast(np.asarray(state.everywhere), to)
    return [Padded(value, state.axes, fills, everywhere)]


@rule("bitcast")
def _bitcast(builder: Builder, step: Step) -> list[Padded]:
    (state,) = (builder.states[number] for number in step.operands)
    return [Padded(builder.emit("bitcast", state.value, dtype=step.fixed("dtype")), state.axes)]


# ---- regions --------------------------------------------------------------------------------------------------------


@rule("while")
def _while(builder: Builder, step: Step) -> list[Padded]:
    carried = [builder.states[number] for number in step.operands]
    sizes = [step.sizes(number) for number in step.operands]
    axes = [_settled(state.axes, size) for state, size in zip(carried, sizes, strict=True)]
    condition, body = (_region(builder, graph, axes) for graph in step.node.graphs)
    ends = [builder.states[builder.family.largest.numbers[v]] for v in step.node.graphs[1].outputs]
    for start, end in zip(axes, ends, strict=True):
        if joined(start, end.axes) != start:
            raise step.refused("what it carries is padded in different ways")
    values = builder.append(
        "while", [state.value for state in carried], {}, [state.value.type for state in carried], (condition, body)
    )
    return [Padded(value, axis) for value, axis in zip(values, axes, strict=True)]


def _settled(axes: Axes, sizes: Sequence[Sizes]) -> Axes:
    """Axes of something that others come in place of: its elements need not be equal along any."""
    return tuple(plain(size) if axis is None else axis for axis, size in zip(axes, sizes, strict=True))


def _region(builder: Builder, graph: Graph, axes: Sequence[Axes] = ()) -> Graph:
    numbers = builder.family.largest.numbers

    def build() -> None:
        for value, known in zip(graph.inputs, axes, strict=True):
            builder.define(numbers[value], Padded(builder.region_input(value.type), known))
        build_nodes(builder, graph)
        builder.set_outputs([builder.states[numbers[value]].value for value in graph.outputs])

    return builder.region(graph, build)


@rule("if")
def _if(builder: Builder, step: Step) -> list[Padded]:
    numbers = builder.family.largest.numbers
    chosen = builder.states[step.operands[0]].value
    regions = [_region(builder, graph) for graph in step.node.graphs]
    branches = [[builder.states[numbers[v]] for v in graph.outputs] for graph in step.node.graphs]
    axes = [joined(a.axes, b.axes) for a, b in zip(*branches, strict=True)]
    sizes = [step.sizes(number) for number in step.results]
    types = [value.type for value in step.node.results]
    values = builder.append("if", [chosen], {}, types, regions)
    return [Padded(v, _settled(a, n)) for v, a, n in zip(values, axes, sizes, strict=True)]


def static_only(step: Step, sizes: Mapping[str, Sequence[Sizes]]) -> None:
    """Refuse sizes of the call where only constant ones are taken.

    Raises:
        NotUniform: there are some.
    """
    for what, given in sizes.items():
        if any(map(varies, given)):
            raise step.refused(f"{what} depends on a size")
