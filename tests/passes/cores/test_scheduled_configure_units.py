"""Configurations that `scheduled-configure-units` inserts: as few as the order of operations allows, and enough on all
paths. The executor refuses an operation whose unit has another state."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.cores.streams import computed, fetched, program, repeated, written
from tests.passes.pass_support import applied, parse, random_inputs, run, unit_of
from tilewright.dialects import cores, tile
from tilewright.passes.base import Unit
from tilewright.passes.cores.scheduled_configure_units import ScheduledConfigureUnitsPass
from tilewright.semantics.hazards import CoreHazard

PASS = ScheduledConfigureUnitsPass()
FUNCTIONS = {"exp": np.exp, "negative": np.negative}


def negated(source: str = "a", target: str = "b", dtype: str = "f32") -> str:
    return computed(source, target, "negative", dtype)


def exponential(source: str = "a", target: str = "b") -> str:
    return computed(source, target, "exp")


def when(map: str, then: str, otherwise: str = "") -> str:
    """A branch of the trips for which a map is 0."""
    branches = f"do {{\n{then}\ncores.end()\n}} do {{\n{otherwise}\ncores.end()\n}}\n"
    return f"cores.if(%trip) {{map = affine_map<()[s0] -> ({map})>}} {branches}"


def configured(compute: str, pages: int = 4) -> Unit:
    """A program that computes functions of pages of one queue, one after the other."""
    reader = "".join(fetched("a", n) for n in range(pages))
    writer = "".join(written("b", n) for n in range(pages))
    lengths = {"a": ("f32", pages), "b": ("f32", pages)}
    return applied(PASS, program(lengths, reader, writer, compute, (pages, pages)), "wormhole")


def states(unit: Unit, name: str = "vector") -> list[tuple[str, bool]]:
    """The states that a unit is set to, and whether in a loop."""
    found = [op for op in unit.module.walk() if isinstance(op, cores.ConfigureOp) and op.unit == name]
    return [(op.state, any(isinstance(each, tile.ForOp) for each in parents(op))) for op in found]


def parents(op: cores.ConfigureOp) -> list[object]:
    found: list[object] = []
    around = op.parent_op()
    while around is not None:
        found.append(around)
        around = around.parent_op()
    return found


def check(unit: Unit, *functions: str) -> None:
    """The program runs, and each page has its function."""
    (x,) = inputs = random_inputs(unit)
    (got,) = run(unit, inputs)
    for n, function in enumerate(functions):
        rows = slice(32 * n, 32 * n + 32)
        np.testing.assert_allclose(got[rows], FUNCTIONS[function](x[rows]), rtol=1e-6)


def test_without_it_the_executor_refuses_the_program() -> None:
    text = program({"a": ("f32", 1), "b": ("f32", 1)}, fetched("a", 0), written("b", 0), negated(), (1, 1))
    unit = unit_of(parse(text), {}, "wormhole")
    with pytest.raises(CoreHazard, match="unit-not-configured"):
        run(unit, random_inputs(unit))


def test_a_state_stays_until_another_is_needed() -> None:
    unit = configured(negated() + negated() + exponential() + negated())
    check(unit, "negative", "negative", "exp", "negative")
    assert states(unit) == [("negative", False), ("exp", False), ("negative", False)]
    assert [len(states(unit, name)) for name in ("unpack_a", "matrix", "pack")] == [1, 1, 1]


def test_one_state_of_a_loop_is_set_before_it() -> None:
    unit = configured(repeated(exponential() + exponential()))
    check(unit, *["exp"] * 4)
    assert states(unit) == [("exp", False)]


def test_a_loop_that_ends_as_it_begins_sets_its_first_state_once() -> None:
    unit = configured(repeated(negated() + exponential() + negated()), 6)
    check(unit, *["negative", "exp", "negative"] * 2)
    assert states(unit) == [("negative", False), ("exp", True), ("negative", True)]


def test_a_loop_of_two_states_sets_both_in_each_trip() -> None:
    unit = configured(repeated(negated() + exponential()))
    check(unit, *["negative", "exp"] * 2)
    assert states(unit) == [("negative", True), ("exp", True)]


def test_a_state_from_before_a_loop_is_kept() -> None:
    unit = configured(exponential() + repeated(exponential()) + exponential())
    check(unit, *["exp"] * 4)
    assert states(unit) == [("exp", False)]


def test_loops_in_each_other_set_a_state_outside_of_both() -> None:
    unit = configured(repeated(repeated(exponential()).replace("%trip", "%inner").replace("^bb9", "^bb8")))
    check(unit, *["exp"] * 4)
    assert states(unit) == [("exp", False)]


def test_branches_of_one_state_leave_it() -> None:
    both = when("s0", exponential(), exponential())
    unit = configured(repeated(both + exponential()))
    check(unit, *["exp"] * 4)
    assert states(unit) == [("exp", False)]


def test_a_state_of_one_branch_is_set_again_after_it() -> None:
    """The other branch leaves the state from before."""
    unit = configured(repeated(negated() + when("s0", exponential()) + exponential()), 5)
    check(unit, "negative", "exp", "exp", "negative", "exp")
    assert states(unit) == [("negative", True), ("exp", True), ("exp", True)]


def test_a_loop_of_two_states_does_not_begin_in_the_one_from_before_it() -> None:
    """The second trip begins in the state in which the first one ends."""
    unit = configured(exponential() + repeated(exponential() + negated()), 5)
    check(unit, "exp", *["exp", "negative"] * 2)
    assert states(unit) == [("exp", False), ("exp", True), ("negative", True)]


def test_a_loop_that_may_have_no_trip_leaves_what_was_there() -> None:
    """Of as many trips as the trip around it has a number."""
    inner = repeated(exponential() + negated(), 2, ", end = affine_map<()[s0] -> (s0)>")
    inner = inner.replace("tile.for()", "tile.for(%trip)").replace("^bb9(%trip:", "^bb8(%inner:")
    unit = configured(repeated(exponential() + inner + negated(), 2), 6)
    check(unit, "exp", "negative", "exp", "exp", "negative", "negative")


def test_a_loop_whose_last_state_is_of_a_branch_does_not_end_in_it() -> None:
    """The first trip takes the first branch alone, and leaves its state to the second one."""
    body = exponential() + when("s0", negated()) + when("s0 - 1", exponential())
    check(configured(repeated(body)), "exp", "negative", "exp", "exp")


def test_formats_are_states_of_unpack_and_pack() -> None:
    """A page of bf16 between two of f32; queues of a format share its states."""
    compute = negated("a", "c") + computed("c", "b", "negative", "bf16") + negated("a", "b")
    text = program(
        {"a": ("f32", 2), "b": ("f32", 2), "c": ("bf16", 1)},
        fetched("a", 0) + fetched("a", 1),
        written("b", 0) + written("b", 1),
        compute,
        (2, 2),
    )
    unit = applied(PASS, text, "wormhole")
    for name, expected in (("unpack_a", ["f32", "bf16", "f32"]), ("pack", ["bf16", "f32"])):
        assert [state for state, _ in states(unit, name)] == expected
    (x,) = inputs = random_inputs(unit)
    (got,) = run(unit, inputs)
    np.testing.assert_allclose(got[:32], x[:32], rtol=2**-7)
    np.testing.assert_array_equal(got[32:], -x[32:])


def test_movers_have_no_units() -> None:
    text = program({"a": ("f32", 1)}, fetched("a", 0), written("a", 0), "", (1, 1))
    assert not [op for op in applied(PASS, text, "wormhole").module.walk() if isinstance(op, cores.ConfigureOp)]
