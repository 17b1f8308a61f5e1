"""What a relayout plan does to sets of indices, step by step, and random pairs of layouts to try it on.

A state says which terms of which elements every place holds. A step may fill a place only from places within its
reach: a rename from the same thread, a shuffle from the same warp, a load from the memory of the same block, and so on;
only a combining step may join terms. So a plan that names the wrong mechanism leaves a place empty.
"""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import product

from tilewright.layout import Iter, Layout, Partial, Replica, blocked, column_major, line_swizzle, panels, row_major
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.relayout import Move, Plan, Step

Place = frozenset[tuple[str, int]]
Held = tuple[tuple[int, ...], frozenset[tuple[int, ...]]]  # an element, and which of its terms
State = dict[Place, Held]

COMBINING = {Move.COMBINE, Move.ALL_REDUCE, Move.REDUCE_SCATTER, Move.REDUCE}


def state_of(layout: Layout, terms: list[Partial]) -> State:
    """What each place holds. Terms are numbered by their positions along `terms`; those that the layout has not are
    combined."""
    state: State = {}
    choices = [range(int(term.extent)) for term in terms]
    for index in layout.indices():
        base = layout.coordinates(index) if layout.axes else {}
        for copy in product(*(range(int(replica.extent)) for replica in layout.replica)):
            for chosen in product(*(range(int(partial.extent)) for partial in layout.partial)):
                raw = _unswizzled(layout, index)
                for replica, k in zip(layout.replica, copy, strict=True):
                    raw[replica.axis] = raw.get(replica.axis, 0) + replica.stride * k
                for partial, k in zip(layout.partial, chosen, strict=True):
                    raw[partial.axis] = raw.get(partial.axis, 0) + partial.stride * k
                place = frozenset((a, v) for a, v in _swizzled(layout, raw).items() if v)
                fixed = {(p.op, p.extent, n): k for n, (p, k) in enumerate(zip(layout.partial, chosen, strict=True))}
                state[place] = (index, _term_set(terms, layout, fixed, choices))
        assert base is not None
    return state


def _term_set(terms, layout, fixed, choices) -> frozenset[tuple[int, ...]]:
    """The terms at a place: one number per axis of terms that the layout keeps apart, all of the others."""
    kept = {_key(term): None for term in layout.partial}
    position = {_key(p): k for (p, k) in zip(layout.partial, fixed.values(), strict=True)}
    ranges = [[position[_key(t)]] if _key(t) in kept else list(c) for t, c in zip(terms, choices, strict=True)]
    return frozenset(product(*ranges))


def _key(term: Partial) -> tuple[str, int]:
    # A plan may carry a term on another axis for a while: its operation and extent name it.
    return term.op, int(term.extent)


def _unswizzled(layout: Layout, index: tuple[int, ...]) -> dict[str, int]:
    plain = Layout(layout.shape, layout.shard, (), (), layout.offset)
    return dict(plain.coordinates(index))


def _swizzled(layout: Layout, raw: dict[str, int]) -> dict[str, int]:
    result = dict(raw)
    for term in layout.swizzle:
        result[term.axis] = term.apply(result.get(term.axis, 0))
    return result


def execute(plan: Plan, terms: list[Partial]) -> State:
    """The state after all steps.

    Raises:
        AssertionError: a step needs what no place within its reach holds.
    """
    state = state_of(plan.source, terms)
    for step in plan.steps:
        state = _apply(step, state, terms)
    return state


def _apply(step: Step, state: State, terms: list[Partial]) -> State:
    by_element: dict[tuple[int, ...], list[tuple[Place, frozenset[tuple[int, ...]]]]] = defaultdict(list)
    for place, (index, held) in state.items():
        by_element[index].append((place, held))
    result: State = {}
    for place, (index, wanted) in state_of(step.layout, terms).items():
        near = [held for source, held in by_element[index] if _within(source, place, step)]
        if step.move in COMBINING:
            joined: frozenset[tuple[int, ...]] = frozenset()
            for held in near:
                if not held & joined and held <= wanted:
                    joined |= held
            assert joined == wanted, f"{step}: terms {wanted - joined} of {index} are not within reach of {set(place)}"
        else:
            assert wanted in near, f"{step}: {index} is not within reach of {set(place)}"
        result[place] = (index, wanted)
    return result


def _within(source: Place, target: Place, step: Step) -> bool:
    """Whether the step may take data from one place to the other: they agree on all axes beyond its reach, and on which
    side of it memory is."""
    in_memory = [any(kind_of(axis) == Kind.MEMORY for axis, _ in place) for place in (source, target)]
    if step.move in (Move.RENAME, Move.SHUFFLE) and any(in_memory):
        return False
    first, second = dict(source), dict(target)
    reach = max(step.reach, Kind.REGISTER if step.move == Move.RENAME else step.reach)
    if step.move in (Move.STORE, Move.LOAD):
        reach = max(reach, Kind.WARP)
    axes = {axis for axis in (*first, *second) if kind_of(axis) > reach}
    return all(first.get(axis, 0) == second.get(axis, 0) for axis in axes)


# ---- random layouts -------------------------------------------------------------------------------------------------

SHAPES = ((8, 16), (16, 8), (4, 32), (32, 4), (16, 16))


def random_layout(generator: random.Random, shape: tuple[int, int], family: str) -> Layout:
    """A layout of a family: registers of warps, vector registers, memory, sharded cores or devices, with copies."""
    if family == "memory":
        return _memory(generator, shape, "mem")
    if family == "shared":
        return _memory(generator, shape, "mem.shared")
    places = {
        "warps": [("lane", 1 << b) for b in range(3)] + [("warp", 1)],
        "vectors": [("simd", 1 << b) for b in range(3)],
        "cores": [("core.x", 1), ("core.x", 2), ("core.y", 1)],
        "devices": [("device.x", 1), ("device.x", 2), ("device.y", 1)],
    }[family]
    axis = "reg" if family in ("warps", "vectors") else "mem"
    generator.shuffle(places)
    copies = generator.randrange(0, 2) if len(places) > 2 else 0
    idle = generator.randrange(0, 2)
    replicas, used = places[:copies], places[copies : len(places) - idle]
    bits = [(dim, 1 << b) for dim, size in enumerate(shape) for b in range(size.bit_length() - 1)]
    generator.shuffle(bits)
    digits: dict[int, dict[int, Iter]] = {0: {}, 1: {}}
    for (place, stride), (dim, weight) in zip(used, bits, strict=False):
        digits[dim][weight] = Iter(2, stride, place)
    rest = bits[len(used) :]
    if generator.random() < 0.5:
        rest.sort(key=lambda bit: (-bit[0], bit[1]))
    for number, (dim, weight) in enumerate(rest):
        digits[dim][weight] = Iter(2, 1 << number, axis)
    shard = tuple(tuple(digits[dim][weight] for weight in sorted(digits[dim], reverse=True)) for dim in (0, 1))
    return Layout(shape, shard, tuple(Replica(2, stride, place) for place, stride in replicas))


def _memory(generator: random.Random, shape: tuple[int, int], axis: str) -> Layout:
    kind = generator.randrange(6)
    if kind == 0:
        return row_major(shape, axis)
    if kind == 1:
        return column_major(shape, axis)
    if kind == 2:
        return blocked(shape, (generator.choice((2, 4)), generator.choice((2, 4))), axis)
    if kind == 3:
        return panels(shape, generator.randrange(2), generator.choice((2, 4)), axis)
    if kind == 4:
        pitch = shape[1] + generator.choice((1, 4))
        return Layout(shape, ((Iter(shape[0], pitch, axis),), (Iter(shape[1], 1, axis),)))
    return row_major(shape, axis).with_swizzle(line_swizzle(generator.choice((32, 64)), 4, axis))


def with_terms(generator: random.Random, layout: Layout) -> Layout:
    """The layout with terms over places that it does not use."""
    axis = generator.choice([a for a in ("lane", "warp", "reg", "core.z", "device.z") if _fits(layout, a)])
    stride = int(layout.span(axis)) if axis in layout.axes else 1
    return Layout(layout.shape, layout.shard, layout.replica, (Partial(2, stride, axis, "add"),), layout.offset)


def _fits(layout: Layout, axis: str) -> bool:
    registers = "reg" in layout.axes or "lane" in layout.axes
    return registers if axis in ("lane", "warp", "reg") else not registers
