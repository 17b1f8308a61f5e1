"""What cannot be satisfied is said to be unsatisfiable, and satisfied constraints change nothing."""

from __future__ import annotations

from itertools import permutations

import pytest
from conformance_support import CPU, GPU, PAIRS, build, conflict_of, infer, machine, space

import tilewright as tw
from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.errors import LayoutConflictError, ShapeError
from tilewright.layout import row_major
from tilewright.layout.catalogue import height_sharded, tensor_memory_accumulator, width_sharded
from tilewright.layout.relayout import Plan, plan_relayout
from tilewright.layout.solver import Origin, Problem
from tilewright.passes.layouts.layout_inference import infer_layouts

BOTH = pytest.mark.parametrize("on", [GPU, CPU])


@tw.kernel
def two_pins(x: tw.In["M N"], y: tw.Out["M N"], *, a, b, strict: bool = True):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], a, strict=strict)
        y[i, j] = tw.layout(tw.exp(t), b, strict=strict)


@tw.kernel
def no_pins(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        y[i, j] = tw.exp(x[i, j])


@BOTH
def test_layouts_that_differ_contradict_each_other_where_nothing_may_move(on: str) -> None:
    """Two different demands on values that are tied to each other have no solution; equal ones have."""
    first, second = PAIRS[on]
    assert len(conflict_of(two_pins, on=on, a=first, b=second).core) == 3
    assert infer(two_pins, on=on, a=first, b=first).layout("exp") == first


@BOTH
def test_where_data_may_move_there_is_no_contradiction(on: str) -> None:
    """Without strict pins a conversion stands between any two layouts of registers; it is paid for."""
    first, second = PAIRS[on]
    found = infer(two_pins, on=on, a=first, b=second, strict=False)
    assert [found.layout("relayout", n) for n in range(2)] == [first, second]
    free = infer(no_pins, on=on)
    assert found.inference.solution.cost > free.inference.solution.cost


@pytest.mark.parametrize(
    ("on", "layout", "why"),
    [
        (GPU, "(64, 64) : [64@warp*2 | 64@reg]", "`warp` has 64 places"),
        (GPU, "(64, 64) : [64@lane | 64@reg]", "`lane` has 32 places"),
        (GPU, row_major((64, 64), "mem.l1"), "no memory `l1`"),
        (GPU, "(64, 64) : [64@tmem.row | 64@tmem.col]", "no axis `tmem.row`"),
        (CPU, "(64, 64) : [2@reg 32@simd | 64@reg*2]", "does not compute in such registers"),
        (CPU, "(64, 64) : [64@reg*4 | 16@simd 4@reg]", "does not compute in such registers"),
        (CPU, row_major((64, 64), "mem.shared"), "no memory `shared`"),
        (CPU, "(64, 64) : [32@lane 2@reg | 64@reg*2]", "no axis `lane`"),
    ],
)
def test_a_layout_that_a_machine_has_no_room_for_is_refused_with_the_reason(on: str, layout: str, why: str) -> None:
    """A demand that no value of the domain meets is a contradiction by itself, and says what is missing."""
    conflict = conflict_of(two_pins, on=on, a=layout, b=PAIRS[on][0], strict=False)
    (origin,) = conflict.core
    assert why in origin.text


@BOTH
def test_a_pin_of_another_shape_is_refused(on: str) -> None:
    """A pin has to fit the shape: registers, memory, panels and tensor memory alike."""
    kernel = build(two_pins, a=PAIRS[on][0], b=PAIRS[on][0])
    loaded = next(op.result for op in kernel.walk() if isinstance(op, tile.LoadOp))
    wrong = [
        row_major((64, 32)),
        tensor_memory_accumulator((128, 64)),
        tw.layouts.packed_panels_b((32, 64), 16),
        tw.layouts.wgmma_accumulator((128, 64)),
    ]
    for layout in wrong:
        with pytest.raises(ShapeError, match=r"pinned to a layout of shape"):
            build(two_pins, a=layout, b=PAIRS[on][0])
        with pytest.raises(LayoutConflictError, match="pinned"):
            infer_layouts(kernel, space(on), {loaded: layout})


# ---- on cores of a grid: the same solver over layouts of another kind ------------------------------------------------

SHARDED = [height_sharded((256, 256), 32, (1, 8)), width_sharded((256, 256), 32, (1, 8))]


def over_cores() -> tuple[Problem, int, int]:
    problem = Problem()
    first, second = (problem.variable(name, SHARDED) for name in "ab")

    def cost(a: tw.layouts.Layout, b: tw.layouts.Layout) -> float | None:
        plan = plan_relayout(a, b, dtypes.f32, machine("wormhole"))
        return plan.seconds if isinstance(plan, Plan) else None

    problem.relate(first, second, cost, Origin("messages between cores"))
    return problem, first, second


def test_shards_on_cores_move_by_messages_or_contradict_each_other() -> None:
    """The solver knows no kind of memory: layouts on a grid of cores are values like registers."""
    problem, first, second = over_cores()
    problem.pin(first, SHARDED[0], Origin("rows"))
    problem.pin(second, SHARDED[1], Origin("columns"))
    assert problem.solve().cost > 0
    problem.equal(first, second, Origin("one value"))
    with pytest.raises(LayoutConflictError) as caught:
        problem.solve()
    assert all(text in caught.value.message for text in ("rows", "columns", "one value"))
    assert "messages" not in caught.value.message


# ---- what is satisfied changes nothing ------------------------------------------------------------------------------


def chain(extra: bool) -> Problem:
    problem = Problem()
    variables = [problem.variable(f"v{n}", range(4)) for n in range(5)]
    for n in range(4):
        problem.relate(variables[n], variables[n + 1], lambda a, b: float(abs(a - b) + a), Origin(f"step {n}"))
    problem.pin(variables[0], 3, Origin("start"))
    if extra:
        for n in range(4):
            problem.relate(variables[n], variables[n + 1], lambda a, b: 0.0, Origin("always true"))
            problem.choose(variables[n], lambda a: 0.0, Origin("always true"))
            problem.equal(variables[n], variables[n], Origin("itself"))
    return problem


def test_constraints_that_always_hold_change_nothing() -> None:
    """Tautologies do not count: neither for the answer nor for the effort, and solving again gives the same."""
    plain, extra = chain(False), chain(True)
    assert plain.solve() == extra.solve() == plain.solve() == extra.solve()


def test_a_value_that_is_given_fixes_what_equals_it() -> None:
    """An equality with one side known gives the other side, along any chain of equalities."""
    for order in permutations(range(3)):
        problem = Problem()
        variables = [problem.variable(f"v{n}", "abcd") for n in range(4)]
        for n in order:
            problem.equal(variables[n], variables[n + 1], Origin(f"equality {n}"))
        problem.pin(variables[order[0]], "c", Origin("given"))
        solution = problem.solve()
        assert solution.values == ("c",) * 4
        assert solution.variables == 1


def test_independent_systems_are_solved_as_each_alone() -> None:
    """The conjunction of two systems has the answers of both, or contradicts itself where they meet."""
    both = Problem()
    parts: list[Problem] = []
    for n in range(2):
        alone = Problem()
        for problem in (both, alone):
            a, b = (problem.variable(f"{name}{n}", range(5)) for name in "ab")
            problem.relate(a, b, lambda p, q, n=n: float((p * 3 + q * (n + 2) + n) % 7), Origin(f"part {n}"))
            problem.pin(a, n + 1, Origin(f"pin {n}"))
        parts.append(alone)
    found = both.solve()
    assert found.values == tuple(value for part in parts for value in part.solve().values)
    assert found.cost == sum(part.solve().cost for part in parts)
    both.equal(0, 2, Origin("tie"))
    with pytest.raises(LayoutConflictError, match="tie"):
        both.solve()


@BOTH
def test_nothing_is_paid_along_a_chain_in_one_layout(on: str) -> None:
    """Flows whose ends agree cost nothing, however many there are, and take no search."""

    @tw.kernel
    def mapped(x: tw.In["M N"], y: tw.Out["M N"], *, n: int):
        for i, j in tw.grid(x, (64, 64)):
            t = x[i, j]
            for _ in range(n):
                t = tw.exp(t)
            y[i, j] = t

    short, long = (infer(mapped, on=on, n=n) for n in (1, 8))
    assert short.moving_seconds == long.moving_seconds == 0
    assert long.inference.solution.nodes == short.inference.solution.nodes
