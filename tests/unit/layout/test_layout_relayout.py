"""Relayout plans, executed step by step on sets of indices, end in the layout that was asked for."""

from __future__ import annotations

import os
import random

import pytest
from msgspec.structs import replace
from relayout_oracle import SHAPES, execute, random_layout, state_of, with_terms

from tilewright import dtypes
from tilewright.layout import Iter, Layout
from tilewright.layout.axes import Kind
from tilewright.layout.relayout import Move, Plan, Reason, plan_relayout
from tilewright.machines import machine as machines

PAIRS = int(os.environ.get("TW_TEST_RELAYOUT_PAIRS", "240"))
ON = {
    "sm_90a": ("warps", "memory", "shared", "devices"),
    "x86-64-v4": ("vectors", "memory"),
    "wormhole": ("memory", "cores", "devices"),
}


@pytest.mark.parametrize("name", ON)
def test_plans_of_random_pairs_do_what_they_say(name: str) -> None:
    machine = machines.load(name)
    for seed in range(PAIRS // len(ON)):
        generator = random.Random(f"{name} {seed}")
        shape = generator.choice(SHAPES)
        source, target = (random_layout(generator, shape, generator.choice(ON[name])) for _ in range(2))
        if generator.random() < 0.2 and name == "sm_90a" and {"reg", "lane"} & set(source.axes):
            source = with_terms(generator, source)
        dtype = generator.choice((dtypes.f32, dtypes.f16, dtypes.i8))
        plan = plan_relayout(source, target, dtype, machine)
        assert isinstance(plan, Plan), f"seed {seed}: {source} to {target}: {plan}"
        terms = list(source.partial)
        assert execute(plan, terms) == state_of(target, terms), f"seed {seed}: {source} to {target}: {plan}"
        assert plan.seconds >= 0
        assert bool(plan.steps) or source.shape == target.shape


def test_the_executor_notices_a_wrong_mechanism() -> None:
    machine = machines.load("sm_90a")
    source = Layout((8, 8), ((Iter(8, 1, "lane"),), (Iter(8, 1, "reg"),)))
    target = Layout((8, 8), ((Iter(8, 1, "reg"),), (Iter(8, 1, "lane"),)))
    plan = plan_relayout(source, target, dtypes.f32, machine)
    assert isinstance(plan, Plan)
    assert [step.move for step in plan.steps] == [Move.SHUFFLE]
    wrong = Plan(source, (replace(plan.steps[0], move=Move.RENAME, reach=Kind.REGISTER),))
    with pytest.raises(AssertionError, match="not within reach"):
        execute(wrong, [])
    through = Plan(source, (replace(plan.steps[0], layout=source),))
    assert execute(through, []) != state_of(target, [])


def test_what_is_impossible_says_why() -> None:
    machine = machines.load("sm_90a")
    generator = random.Random(0)
    warps = random_layout(generator, (8, 16), "warps")
    other = random_layout(generator, (16, 8), "warps")
    reason = plan_relayout(warps, other, dtypes.f32, machine)
    assert isinstance(reason, Reason)
    assert "(8, 16)" in str(reason)
    reason = plan_relayout(warps, with_terms(generator, warps), dtypes.f32, machine)
    assert isinstance(reason, Reason)
    assert "terms" in str(reason)
    cores = random_layout(generator, (8, 16), "cores")
    reason = plan_relayout(cores, warps, dtypes.f32, machine)
    assert isinstance(reason, Reason)
    assert "core" in str(reason)
