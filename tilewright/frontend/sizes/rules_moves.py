"""How operations that move elements are done on padded values."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.frontend.sizes.axes import Axes, Axis, fresh, is_padded, joined, joined_all, plain, reshaped
from tilewright.frontend.sizes.family import Sizes, Trace, varies
from tilewright.frontend.sizes.padded import Builder, Fill, Padded, Step, only_plain
from tilewright.frontend.sizes.rules import rule, static_only
from tilewright.frontend.trace import Value
from tilewright.primitives import ArrayType

# ---- views ----------------------------------------------------------------------------------------------------------


@rule("reshape")
def _reshape(builder: Builder, step: Step) -> list[Padded]:
    (state,) = _states(builder, step)
    step.each("shape")
    source, target = step.sizes(step.operands[0]), step.sizes(step.results[0])
    value = builder.emit("reshape", state.value, shape=step.node.results[0].shape)
    if state.everywhere is not None:
        return [Padded(value, tuple(map(fresh, target)), everywhere=state.everywhere)]
    _claim_repeats(builder, step.operands[0], state.axes)
    sources = _unit_axes_moved(source, target)
    if sources is None:
        axes = reshaped(state.axes, source, target)
        builder.relate(state.axes, axes)
        return [Padded(value, axes)]
    axes = tuple(plain(size) if a is None else state.axes[a] for size, a in zip(target, sources, strict=True))
    _claim_repeats(builder, step.results[0], axes)
    return [_moved(state, value, axes, sources)]


def _claim_repeats(builder: Builder, number: int, axes: Axes) -> None:
    """Have calls check how often elements are repeated, which indicates where a reshape takes each."""
    for axis, factors in enumerate(axes):
        if factors is None:
            builder.claim(number, axis, (builder.family.size(number, axis),))


def _unit_axes_moved(source: Sequence[Sizes], target: Sequence[Sizes]) -> list[int | None] | None:
    """The source axis of each axis of a reshape that only adds or takes away axes of size 1, None for a new one."""
    wide = [axis for axis, size in enumerate(source) if any(n != 1 for n in size)]
    if [source[axis] for axis in wide] != [size for size in target if any(n != 1 for n in size)]:
        return None
    rest = iter(wide)
    return [next(rest) if any(n != 1 for n in size) else None for size in target]


def _moved(state: Padded, value: Value, axes: Sequence[Axis], sources: Sequence[int | None]) -> Padded:
    """`state` with its axes moved: axis i was axis `sources[i]`, or is new and repeats. Known facts move along."""
    fills = {
        d: state.fills[a]
        for d, a in enumerate(sources)
        if a is not None and a in state.fills and axes[d] == state.axes[a]
    }
    origin = state.origin
    if origin is not None:
        origin = replace(origin, axes=tuple(None if a is None else origin.axes[a] for a in sources))
    return replace(state, value=value, axes=tuple(axes), fills=fills, origin=origin, mark="")


@rule("transpose")
def _transpose(builder: Builder, step: Step) -> list[Padded]:
    (state,) = _states(builder, step)
    permutation = step.axes("permutation")
    value = builder.emit("transpose", state.value, permutation=permutation)
    return [_moved(state, value, [state.axes[p] for p in permutation], permutation)]


@rule("broadcast")
def _broadcast(builder: Builder, step: Step) -> list[Padded]:
    (state,) = _states(builder, step)
    step.each("shape")
    places = step.axes()
    source, target = step.sizes(step.operands[0]), step.sizes(step.results[0])
    if source == target:  # the value itself, of which more is known
        return [state]
    value = builder.emit("broadcast", state.value, shape=step.node.results[0].shape, axes=places)
    sources: list[int | None] = [None] * len(target)
    axes: list[Axis] = [fresh(size) for size in target]
    for axis, place in enumerate(places):
        if source[axis] == target[place]:
            sources[place], axes[place] = axis, state.axes[axis]
        elif varies(source[axis]):
            raise step.refused("an axis is repeated at some sizes only")
    return [_moved(state, value, axes, sources)]


@rule("reverse")
def _reverse(builder: Builder, step: Step) -> list[Padded]:
    (state,) = _states(builder, step)
    reversed_axes = step.axes()
    value = builder.emit("reverse", state.value, axes=reversed_axes)
    for axis in reversed_axes:
        factors = state.axes[axis]
        if factors is None or not is_padded(factors):
            continue
        only_plain(step, factors)
        size = value.shape[axis]
        gap = builder.emit("map", _whole(builder, size), builder.extent(factors[0]), fn="subtract")
        wide = _padded_high(builder, value, {axis: size})
        value = _window(builder, wide, value.shape, {axis: gap})
    fills = {axis: fill for axis, fill in state.fills.items() if axis not in reversed_axes}
    return [Padded(value, state.axes, fills, state.everywhere)]


# ---- windows --------------------------------------------------------------------------------------------------------


@rule("slice")
def _slice(builder: Builder, step: Step) -> list[Padded]:
    """Along an axis: what starts at a constant is real up to its own size; what starts at a size is a window."""
    (state,) = _states(builder, step)
    starts, limits, strides = (step.vectors(key) for key in ("starts", "limits", "strides"))
    source, target = step.sizes(step.operands[0]), step.sizes(step.results[0])
    static_only(step, {"the stride": strides})
    axes: list[Axis] = []
    cut: list[tuple[int, int, int]] = []
    moving: list[int] = []
    for axis, (size, factors) in enumerate(zip(source, state.axes, strict=True)):
        whole = not any(starts[axis]) and limits[axis] == size and strides[axis][0] == 1
        if factors is None:  # where elements are equal, any window will do: one in front
            cut.append((0, target[axis][0], 1))
            axes.append(fresh(target[axis]))
            continue
        is_moving = varies(starts[axis])
        if not whole:
            only_plain(step, factors)
        if is_moving:
            if strides[axis][0] != 1:
                raise step.refused("steps from a start that depends on a size")
            moving.append(axis)
        cut.append((0, size[0], 1) if whole or is_moving else (starts[axis][0], limits[axis][0], strides[axis][0]))
        axes.append(factors if whole else plain(target[axis]))
    cut_starts, cut_limits, cut_strides = zip(*cut, strict=True) if cut else ((), (), ())
    value = builder.emit("slice", state.value, starts=cut_starts, limits=cut_limits, strides=cut_strides)
    shape = step.node.results[0].shape
    if moving:
        value = _padded_high(builder, value, {axis: shape[axis] for axis in moving if varies(target[axis])})
        places = {axis: _start(builder, step.number, axis) for axis in moving}
        value = _window(builder, value, shape, places)
    fills = {axis: fill for axis, fill in state.fills.items() if axes[axis] is state.axes[axis]}
    return [Padded(value, tuple(axes), fills, state.everywhere)]


def _start(builder: Builder, number: int, axis: int) -> Value:
    """The start of a slice, as an argument."""
    key = ("start", number, axis)
    return builder.scalar(key, lambda trace: trace.nodes[number].attributes["starts"][axis])


def _padded_high(builder: Builder, value: Value, high: dict[int, int]) -> Value:
    """Zeros appended along some axes."""
    if not any(high.values()):
        return value
    zero = builder.number(0, ArrayType((), value.dtype))
    nothing = (0,) * value.type.rank
    amounts = tuple(high.get(axis, 0) for axis in range(value.type.rank))
    return builder.emit("pad", value, zero, low=nothing, high=amounts, interior=nothing)


def _window(builder: Builder, value: Value, sizes: tuple[int, ...], starts: dict[int, Value]) -> Value:
    """A window at positions that are known when the program runs."""
    places = _places(builder, value, starts)
    return builder.emit("dynamic_slice", value, *places, sizes=sizes)


def _places(builder: Builder, value: Value, starts: dict[int, Value]) -> list[Value]:
    return [starts[axis] if axis in starts else _whole(builder, 0) for axis in range(value.type.rank)]


def _whole(builder: Builder, number: int, dtype: DType = dtypes.i32) -> Value:
    return builder.number(number, ArrayType((), dtype))


@rule("unfold")
def _unfold(builder: Builder, step: Step) -> list[Padded]:
    (state,) = _states(builder, step)
    along = step.axis()
    static_only(step, {"the axis": [step.sizes(step.operands[0])[along]]})
    value = builder.emit("unfold", state.value, axis=along, sizes=step.axes("sizes"), steps=step.axes("steps"))
    made = tuple(plain(step.constant(size)) for size in step.axes("sizes"))
    return [Padded(value, (*state.axes[:along], *made, *state.axes[along + 1 :]))]


@rule("dynamic_slice")
def _dynamic_slice(builder: Builder, step: Step) -> list[Padded]:
    state, *starts = _states(builder, step)
    step.each("sizes")
    source, target = step.sizes(step.operands[0]), step.sizes(step.results[0])
    axes: list[Axis] = []
    places: list[Value] = []
    high: dict[int, int] = {}
    for axis, (size, window, start) in enumerate(zip(source, target, starts, strict=True)):
        if size == window:
            axes.append(state.axes[axis])
            places.append(start.value)
            continue
        if state.axes[axis] is None:  # where elements are equal, any window will do: one in front
            axes.append(fresh(window))
            places.append(_whole(builder, 0, start.value.dtype))
            continue
        only_plain(step, state.axes[axis])
        axes.append(plain(window))
        places.append(_inside(builder, step, axis, start.value))
        if varies(window):
            high[axis] = window[0]
    wide = _padded_high(builder, state.value, high)
    value = builder.emit("dynamic_slice", wide, *places, sizes=step.node.results[0].shape)
    return [Padded(value, tuple(axes), everywhere=state.everywhere)]


def _inside(builder: Builder, step: Step, axis: int, start: Value) -> Value:
    """A start that leaves the window inside of what is real: the operation itself knows the padded array alone."""
    whole, part = step.operands[0], step.results[0] if step.op == "dynamic_slice" else step.operands[1]
    if not any(varies(step.sizes(number)[axis]) for number in (whole, part)):
        return start

    def reading(trace: Trace) -> int:
        return _clipped(trace.values[whole].shape[axis] - trace.values[part].shape[axis], start.dtype)

    last = builder.scalar(("last start", step.number, axis), reading, start.dtype)
    # A negative start counts as 0 here as there.
    return builder.emit("map", start, last, fn="minimum")


def _clipped(number: int, dtype: DType) -> int:
    return min(number, int(np.iinfo(dtype.numpy).max))


@rule("dynamic_update_slice")
def _dynamic_update_slice(builder: Builder, step: Step) -> list[Padded]:
    """An update that is shorter than its target, by a size of the call: elements after the update are written back."""
    state, update, *starts = _states(builder, step)
    source, part = step.sizes(step.operands[0]), step.sizes(step.operands[1])
    axes: list[Axis] = []
    places: list[Value] = []
    behind: dict[int, tuple[Sizes, ...]] = {}
    for axis, (size, window, start) in enumerate(zip(source, part, starts, strict=True)):
        if size == window:
            for number, each in zip(step.operands, (state, update), strict=False):
                if each.axes[axis] is None:
                    builder.claim(number, axis, (size,))
            axes.append(joined((state.axes[axis],), (update.axes[axis],))[0])
            places.append(start.value)
            continue
        only_plain(step, state.axes[axis])
        only_plain(step, update.axes[axis])
        axes.append(plain(size))
        places.append(_inside(builder, step, axis, start.value))
        if varies(window):
            behind[axis] = builder.claim(step.operands[1], axis, (window,))
    wide = _padded_high(builder, state.value, {axis: factors[0][0] for axis, factors in behind.items()})
    content = update.value
    if behind:
        before = builder.emit("dynamic_slice", wide, *places, sizes=content.shape)
        for axis, factors in behind.items():
            content = builder.selected(content, axis, factors, before)
    value = builder.emit("dynamic_update_slice", wide, content, *places)
    if behind:
        nothing, ones = (0,) * value.type.rank, (1,) * value.type.rank
        value = builder.emit("slice", value, starts=nothing, limits=state.shape, strides=ones)
    return [Padded(value, tuple(axes))]


# ---- joining and padding --------------------------------------------------------------------------------------------


@rule("pad")
def _pad(builder: Builder, step: Step) -> list[Padded]:
    state, filling = _states(builder, step)
    low, high, interior = (step.vectors(key) for key in ("low", "high", "interior"))
    static_only(step, {"what is added in front": low, "what is added between": interior})
    source, target = step.sizes(step.operands[0]), step.sizes(step.results[0])
    value = state.value
    axes: list[Axis] = []
    fills: dict[int, Fill] = {}
    for axis, factors in enumerate(state.axes):
        if not (any(low[axis]) or any(high[axis]) or any(interior[axis])):
            axes.append(factors)
            continue
        only_plain(step, factors)
        axes.append(plain(target[axis]))
        if varies(source[axis]):
            factors = builder.claim(step.operands[0], axis, (source[axis],))
            value = builder.selected(value, axis, factors, builder.broadcast(filling.value, value.shape))
        if filling.everywhere is not None:
            fills[axis] = Fill(filling.everywhere)
    amounts = {key: step.node.attributes[key] for key in ("low", "high", "interior")}
    return [Padded(builder.emit("pad", value, filling.value, **amounts), tuple(axes), fills)]


@rule("concat")
def _concat(builder: Builder, step: Step) -> list[Padded]:
    """The part after one of dynamic size starts at that size: parts are written one after the other."""
    states = _states(builder, step)
    along = step.axis()
    sizes = [step.sizes(number)[along] for number in step.operands]
    made = joined_all([(*s.axes[:along], *s.axes[along + 1 :]) for s in states])
    axes = (*made[:along], plain(step.sizes(step.results[0])[along]), *made[along:])
    for state in states:
        only_plain(step, state.axes[along])
    if not any(map(varies, sizes[:-1])):
        return [Padded(builder.emit("concat", *(s.value for s in states), axis=along), axes)]
    value = builder.number(0, step.node.results[0].type)
    for position, state in enumerate(states):
        start = _start_of_part(builder, step, position, along)
        value = builder.emit("dynamic_update_slice", value, state.value, *_places(builder, value, {along: start}))
    return [Padded(value, axes)]


def _start_of_part(builder: Builder, step: Step, position: int, along: int) -> Value:
    before = step.operands[:position]
    reading = functools.partial(_total_size, before, along)
    return builder.scalar(("part", step.number, position), reading)


def _total_size(numbers: Sequence[int], axis: int, trace: Trace) -> int:
    return sum(trace.values[number].shape[axis] for number in numbers)


# ---- by index -------------------------------------------------------------------------------------------------------


@rule("gather")
def _gather(builder: Builder, step: Step) -> list[Padded]:
    state, *indices = _states(builder, step)
    along = step.axes()
    places = joined_all([index.axes for index in indices])
    clamped = [
        _below(builder, step, axis, index.value) if is_padded(state.axes[axis]) else index.value
        for axis, index in zip(along, indices, strict=True)
    ]
    rest = tuple(axis for d, axis in enumerate(state.axes) if d not in along)
    value = builder.emit("gather", state.value, *clamped, axes=along)
    return [Padded(value, (*places, *rest), everywhere=state.everywhere)]


def _below(builder: Builder, step: Step, axis: int, index: Value) -> Value:
    """Indices of real elements: the operation itself clamps to the padded array."""
    only_plain(step, builder.states[step.operands[0]].axes[axis])
    number = step.operands[0]

    def reading(trace: Trace) -> int:
        return _clipped(trace.values[number].shape[axis] - 1, index.dtype)

    last = builder.scalar(("last", number, axis, index.dtype), reading, index.dtype)
    return builder.emit("map", index, builder.broadcast(last, index.shape), fn="minimum")


@rule("scatter")
def _scatter(builder: Builder, step: Step) -> list[Padded]:
    """Updates after what is real get an index that is outside; what is outside of what is real lands in padding."""
    state, updates, *indices = _states(builder, step)
    along = step.axes()
    rank = len(indices[0].axes)
    places = joined_all([updates.axes[:rank], *(index.axes for index in indices)])
    rest = joined(updates.axes[rank:], tuple(axis for d, axis in enumerate(state.axes) if d not in along))
    for axis in along:
        only_plain(step, state.axes[axis])
    values = [index.value for index in indices]
    sizes = step.sizes(step.operands[2])
    for axis, factors in enumerate(places):
        if not varies(sizes[axis]):
            continue
        if values[0].dtype != dtypes.i64:
            values[0] = builder.emit("cast", values[0], dtype=dtypes.i64.name)
        outside = builder.number(-1, values[0].type)
        claimed = builder.claim(step.operands[2], axis, factors or (sizes[axis],))
        values[0] = builder.selected(values[0], axis, claimed, outside)
    value = builder.emit("scatter", state.value, updates.value, *values, axes=along, fn=step.fixed("fn"))
    remaining = iter(rest)
    own = step.sizes(step.operands[0])
    axes = tuple(plain(size) if d in along else next(remaining) for d, size in enumerate(own))
    return [Padded(value, axes)]


def _states(builder: Builder, step: Step) -> list[Padded]:
    return [builder.states[number] for number in step.operands]
