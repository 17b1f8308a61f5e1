"""Uniform values, loops and branches, shared buffers, defaults, and the same answer every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conformance_support import CPU, GPU, PAIRS, build, conflict_of, infer, space, square

import tilewright as tw
from tilewright.dialects import tile
from tilewright.layout import Layout, contiguous_run
from tilewright.layout.relayout import Plan, plan_relayout
from tilewright.passes.layouts.layout_inference import infer_layouts
from tilewright.passes.layouts.layout_rules import Same, flows

BOTH = pytest.mark.parametrize("on", [GPU, CPU])


# ---- values that are the same everywhere -----------------------------------------------------------------------------


@tw.kernel
def with_constants(x: tw.In["M N"], y: tw.Out["M N"], *, pin):
    for i, j in tw.grid(x, (64, 64)):
        ones = tw.ones((64, 64)) * 2.0
        mask = tw.arange(64)[:, None] >= tw.arange(64)
        y[i, j] = tw.where(mask, tw.layout(x[i, j], pin, strict=True) + ones, 0.5)


@BOTH
def test_uniform_values_are_made_where_they_are_used(on: str) -> None:
    """Constants, and what is computed from them and from coordinates alone, are no part of the search: they take the
    layout of what they meet, at no cost."""
    found = infer(with_constants, on=on, pin=PAIRS[on][0])
    assert found.inference.layout(found.ops("full")[0].results[0]) is None
    assert all(found.inference.layout(op.results[0]) is None for op in found.ops("iota"))
    assert found.inference.layout(found.ops("greater_equal")[0].results[0]) is None
    assert found.layout("add") == PAIRS[on][0]


@BOTH
def test_a_uniform_value_that_is_pinned_is_made_there(on: str) -> None:
    """A pin of a constant gives it a layout, and nothing moves."""

    @tw.kernel
    def filled(y: tw.Out["64 64", tw.f32], *, pin):
        for i, j in tw.grid(y, (64, 64)):
            y[i, j] = tw.exp(tw.layout(tw.zeros((64, 64)), pin, strict=True))

    found = infer(filled, on=on, pin=PAIRS[on][1])
    assert found.layout("relayout") == found.layout("exp") == PAIRS[on][1]


@BOTH
def test_each_pair_of_values_is_tied_once(on: str) -> None:
    """An edge is in the problem once per definition and use, and no edge leads to a uniform value."""
    found = infer(with_constants, on=on, pin=PAIRS[on][0])
    inference = found.inference
    expected = sum(
        flow.source in inference.variables and flow.target in inference.variables
        for op in found.kernel.walk()
        if not isinstance(op, tile.KernelOp)
        for flow in flows(op)
    )
    relations = [c for c in inference.problem.constraints if hasattr(c, "second")]
    assert len(relations) == expected


# ---- loops and branches ----------------------------------------------------------------------------------------------


@tw.kernel
def carried(x: tw.In["M N"], y: tw.Out["M N"], *, pin, where: str):
    for i, j in tw.grid(x, (64, 64)):
        total = x[i, j]
        if where == "before":
            total = tw.layout(total, pin, strict=True)
        for _ in range(10):
            total = tw.exp(total)
            if where == "inside":
                total = tw.layout(total, pin, strict=True)
        if where == "after":
            total = tw.layout(total, pin, strict=True)
        y[i, j] = total


@BOTH
@pytest.mark.parametrize("where", ["before", "inside", "after"])
def test_a_carried_tile_has_one_layout_from_trip_to_trip(on: str, where: str) -> None:
    """A demand before, in or after a loop reaches what the loop carries; nothing is converted on every trip, but
    perhaps once behind the loop."""
    found = infer(carried, on=on, pin=PAIRS[on][1], where=where)
    (loop,) = found.ops("for")
    argument, last = loop.body.block.args[1], loop.body.block.last_op
    kept = found.inference.layout(argument)
    assert kept == PAIRS[on][1]
    assert found.inference.layout(last.operands[0]) == kept


@BOTH
def test_conversions_are_paid_per_trip(on: str) -> None:
    """An edge in a loop costs as often as the loop runs, so a conversion is put outside where that is cheaper."""

    @tw.kernel
    def pinned_inside(x: tw.In["M N"], y: tw.Out["M N"], *, n: int, a, b):
        for i, j in tw.grid(x, (64, 64)):
            total = x[i, j]
            for _ in range(n):
                total = tw.layout(tw.exp(tw.layout(total, a)), b)
            y[i, j] = total

    first, second = PAIRS[on]
    short, long = (infer(pinned_inside, on=on, n=n, a=first, b=second).moving_seconds for n in (10, 1000))
    plans = [plan_relayout(*ends, tw.f32, space(on).machine) for ends in (PAIRS[on], PAIRS[on][::-1])]
    trip = sum(plan.seconds for plan in plans if isinstance(plan, Plan))
    assert long - short == pytest.approx(990 * trip)


@BOTH
def test_branches_give_a_tile_in_one_layout(on: str) -> None:
    """What both branches of a choice give is in one layout, and each branch may convert to it."""

    @tw.kernel
    def chosen(x: tw.In["M N"], y: tw.Out["M N"], *, a, b, strict: bool):
        for i, j in tw.grid(x, (64, 64)):
            t = x[i, j]
            if tw.sum(t) > 0:
                u = tw.layout(tw.exp(t), a, strict=strict)
            else:
                u = tw.layout(t + 1, b, strict=strict)
            y[i, j] = u

    first, second = PAIRS[on]
    found = infer(chosen, on=on, a=first, b=first, strict=True)
    assert found.inference.layout(found.ops("if")[0].results[0]) == first
    infer(chosen, on=on, a=first, b=second, strict=False)
    assert len(conflict_of(chosen, on=on, a=first, b=second, strict=True).lines) == 3


# ---- one value, one layout -------------------------------------------------------------------------------------------


def test_a_tile_in_a_buffer_has_one_layout_for_all_that_read_it() -> None:
    """A tile that is put into shared memory is there once: all readers see that layout."""

    @tw.kernel
    def shared(x: tw.In["M N"], y: tw.Out["M N"], *, pin):
        for i, j in tw.grid(x, (64, 64)):
            t = tw.layout(tw.exp(x[i, j]), pin)
            y[i, j] = (t + 1) * tw.sum(t, axis=1, keepdims=True) + t.T

    pin = tw.layouts.row_major((64, 64), "mem.shared")
    found = infer(shared, pin=pin)
    (op,) = found.ops("relayout")
    assert found.inference.layout(op.results[0]) == pin
    assert sum(1 for _ in op.results[0].uses) == 3
    relations = [c for c in found.inference.problem.constraints if hasattr(c, "second")]
    number = found.inference.variables[op.results[0]]
    assert sum(c.first == number for c in relations) == 3


def test_two_layouts_of_one_buffer_contradict_each_other() -> None:
    """Two users that want one value in two layouts of memory, without a copy, cannot both have it."""

    @tw.kernel
    def aliased(x: tw.In["M N"], y: tw.Out["M N"], *, a, b):
        for i, j in tw.grid(x, (64, 64)):
            t = x[i, j]
            y[i, j] = tw.layout(t, a, strict=True).T
            y[j, i] = tw.layout(t, b, strict=True).T

    a, b = tw.layouts.row_major((64, 64), "mem.shared"), tw.layouts.column_major((64, 64), "mem.shared")
    assert len(conflict_of(aliased, a=a, b=b).lines) == 2
    assert infer(aliased, a=a, b=a).layout("load") == a


# ---- defaults --------------------------------------------------------------------------------------------------------


@tw.kernel
def copied(x: tw.In["M N"], y: tw.Out["M N"], *, bm: int, bn: int):
    for i, j in tw.grid(x, (bm, bn)):
        y[i, j] = x[i, j]


@BOTH
@pytest.mark.parametrize("block", [(64, 64), (16, 128), (1, 4096), (5, 37), (3, 7), (100, 12)])
def test_what_nothing_demands_streams_in_wide_accesses(on: str, block: tuple[int, int]) -> None:
    """The default is coalesced: neighbours in memory are in one vector or in neighbouring lanes. Any size will do, what
    does not divide is padded."""
    found = infer(copied, tw.ShapeDtype((200, 8192), tw.f32), on=on, bm=block[0], bn=block[1])
    layout = found.layout("load")
    steps = [layout.coordinates((0, n)) for n in range(min(block[1], 32))]
    if on == CPU:
        assert [at.get("simd", 0) for at in steps[:16]] == list(range(len(steps[:16])))
    elif block[1] % 4 == 0:
        assert contiguous_run(layout, "reg", 1) >= 4
    places = [place for index in layout.indices() for place in layout.places(index)]
    assert len(set(places)) >= block[0] * block[1]


@BOTH
def test_ties_go_to_the_candidate_that_is_named_first(on: str) -> None:
    """Candidates are tried in the order in which the space names them, pins before all."""
    ir = build(copied, square(), bm=64, bn=64)
    loaded = next(op.result for op in ir.walk() if isinstance(op, tile.LoadOp))
    inference = infer_layouts(ir, space(on), {loaded: PAIRS[on][1]})
    domain = inference.problem.domains[inference.variables[loaded]]
    assert domain[0] == PAIRS[on][1]
    free = infer_layouts(ir, space(on))
    first = free.problem.domains[free.variables[loaded]][0]
    assert isinstance(first, Layout)
    assert first == next(iter(space(on).distributions(tile.array_type(loaded), 1)))


PROGRAM = """
import sys
sys.path[:0] = {paths!r}
from test_inference_flow import with_constants, carried
from conformance_support import infer, PAIRS
for on in PAIRS:
    for kernel, static in ((with_constants, {{}}), (carried, {{"where": "inside"}})):
        found = infer(kernel, on=on, pin=PAIRS[on][0], **static)
        for value in found.inference.variables:
            print(found.inference.layout(value))
        print(found.inference.solution.cost, *map(len, found.inference.problem.domains))
"""


def test_the_answer_does_not_depend_on_the_process() -> None:
    """Candidates and answers come in the same order whatever the hashes of a process are."""
    folder = Path(__file__).parent
    code = PROGRAM.format(paths=[str(folder), str(folder.parents[2])])
    texts = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        texts.add(done.stdout)
    (text,) = texts
    assert text.count("\n") > 20


def test_elementwise_flows_are_the_identity() -> None:
    """Operands and result of an elementwise operation are tied by equality of their layouts."""
    found = infer(with_constants, pin=PAIRS[GPU][0])
    views = {type(flow.view) for name in ("add", "select") for op in found.ops(name) for flow in flows(op)}
    assert views == {Same}
