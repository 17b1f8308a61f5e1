"""Donated inputs, shared memory and results that are inputs: what the memory plan must not spoil."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.programs import Program
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import yielded
from tilewright.frontend.build import build_module
from tilewright.machines.machine import load
from tilewright.passes.array.lifetimes import storage
from tilewright.passes.base import Unit
from tilewright.passes.program_memory import ARENA, plan_memory
from tilewright.pipelines import run_passes


def lowered(program: Program) -> Unit:
    unit = Unit(build_module(program), dict(program.constants), load("x86-64-v3"), 2)
    run_passes(unit, keep_stages=False)
    return unit


def test_arrays_that_live_at_once_do_not_overlap() -> None:
    p = Program()
    x, w = p.array(40, 40), p.array(40, 40)
    values = [p.dot(x, w, 0, 1, 0)]
    for _ in range(6):
        values.append(p.dot(values[-1], w, 0, 1, 0))
    p.outputs = [p.dot(values[-1], values[2], 0, 1, 0)]
    unit = lowered(p)
    plan = plan_memory(unit)
    steps = {op: i for i, op in enumerate(unit.main.body.block.ops)}
    spans: list[tuple[int, int, int, int]] = []
    for op in steps:
        if not isinstance(op, array.CallOp):
            continue
        place = plan.places[op.results[0]]
        if place.kind == ARENA:
            end = max(steps[u.operation] for u in op.results[0].uses)
            spans.append((steps[op], end, place.index, place.index + 40 * 40 * 4))
    assert len(spans) == 7
    for i, (start, end, low, high) in enumerate(spans):
        for other_start, other_end, other_low, other_high in spans[i + 1 :]:
            alive_together = start <= other_end and other_start <= end
            assert not alive_together or high <= other_low or other_high <= low
    assert plan.arena_bytes < 7 * 40 * 40 * 4


def run_donated(function: Any, x: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, bool]:
    memory = x.ctypes.data
    result = tw.jit(function, donate=("x",))(x, *rest)
    first = result[0] if isinstance(result, tuple) else result
    return result, first.ctypes.data == memory


@pytest.mark.parametrize("shape", [(5, 7), (64, 64)])
def test_a_donated_input_becomes_the_output(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = x * 2 + 1
    result, same = run_donated(lambda x: x * 2 + 1, x)
    assert same
    np.testing.assert_array_equal(result, expected)


def test_a_donated_input_that_is_read_elsewhere_is_not_spoiled() -> None:
    x = np.random.default_rng(0).standard_normal((33, 33)).astype(np.float32)
    given = x.copy()
    result, same = run_donated(lambda x: (x.T + 1, tw.sum(x, axis=0)), x)
    assert same
    np.testing.assert_array_equal(result[0], given.T + 1)
    np.testing.assert_allclose(result[1], given.sum(0), rtol=1e-5)


def test_a_cache_is_updated_in_place() -> None:
    cache = np.zeros((16, 8), np.float32)
    row = np.arange(8, dtype=np.float32)[None]
    memory = cache.ctypes.data

    def update(x: Any, row: Any, at: Any) -> Any:
        return x.at[at].set(row[0])

    step = tw.jit(update, donate=("x",))
    for position in (3, 5):
        cache = step(cache, row + position, np.asarray(position))
    assert cache.ctypes.data == memory
    expected = np.zeros((16, 8), np.float32)
    expected[3], expected[5] = row[0] + 3, row[0] + 5
    np.testing.assert_array_equal(cache, expected)


def test_results_may_be_inputs_and_repeat() -> None:
    x = np.arange(6, dtype=np.float32)
    a, b, c = tw.jit(lambda x: (x, x + 1, x))(x)
    np.testing.assert_array_equal(a, x)
    np.testing.assert_array_equal(b, x + 1)
    np.testing.assert_array_equal(c, x)
    assert a.ctypes.data != c.ctypes.data


def test_donated_inputs_may_change_places() -> None:
    x, y = np.arange(5, dtype=np.float32), np.arange(5, dtype=np.float32) + 10
    first, second = tw.jit(lambda x, y: (y, x), donate=("x", "y"))(x.copy(), y.copy())
    np.testing.assert_array_equal(first, y)
    np.testing.assert_array_equal(second, x)


Pair = tuple[Any, Any]
# What a trip makes of two carried arrays, and how many of them it computes in place: those that no kernel reads after
# the one that computes them, which reads at most the same element.
TRIPS: dict[str, tuple[Any, tuple[bool, bool]]] = {
    "each_of_itself": (lambda xp, x, y: (x * 2 + 1, y - 3), (True, True)),
    "one_of_both": (lambda xp, x, y: (x + y, y * 3), (True, True)),
    "both_of_both": (lambda xp, x, y: (x + y, x - y), (False, True)),
    "exchanged": (lambda xp, x, y: (y, x), (False, False)),
    "passed_on": (lambda xp, x, y: (x + y, x), (False, False)),
    "one_twice": (lambda xp, x, y: (x + y,) * 2, (False, False)),
    "transposed": (lambda xp, x, y: (xp.permute_dims(x, (1, 0)) + y, y + 1), (False, True)),
    "rolled": (lambda xp, x, y: (xp.roll(x, 1, axis=0) + y, y + 1), (False, True)),
    "reversed": (lambda xp, x, y: (xp.flip(x, axis=1) + y, y + 1), (False, True)),
    "read_later": (lambda xp, x, y: (x + 1, xp.cumulative_sum(x * y, axis=0, dtype=xp.int32)), (False, True)),
    "rows_added_up": (lambda xp, x, y: (x - xp.sum(x, axis=1, keepdims=True, dtype=xp.int32), y + 1), (False, True)),
    "multiplied": (lambda xp, x, y: (x @ y, y + 1), (False, True)),
    "sorted": (lambda xp, x, y: (xp.sort(x + y, axis=1), y * 5), (True, True)),
}


def trips(xp: Any, step: Any, x: Any, y: Any) -> Pair:
    if xp is tw:
        return tw.fori_loop(0, 3, lambda n, state: step(tw, *state), (x, y))
    for _ in range(3):
        x, y = step(np, x, y)
    return x, y


@pytest.mark.parametrize("name", TRIPS)
@pytest.mark.parametrize("size", [5, 70])
def test_arrays_that_a_loop_carries_are_not_spoiled(name: str, size: int) -> None:
    step, _ = TRIPS[name]
    random = np.random.default_rng(0)
    given = [random.integers(-50, 50, (size, size)).astype(np.int32) for _ in range(2)]
    found = tw.jit(lambda x, y: trips(tw, step, x, y), target="cpu")(*given)
    for actual, expected in zip(found, trips(np, step, *given), strict=True):
        np.testing.assert_array_equal(actual, expected.astype(np.int32))


@pytest.mark.parametrize("name", TRIPS)
def test_a_trip_computes_in_place_what_it_reads_at_the_same_element(name: str) -> None:
    step, expected = TRIPS[name]
    x = np.zeros((70, 70), np.int32)
    compiled = tw.jit(lambda x, y: trips(tw, step, x, y)).lower(x, x).compile("cpu:x86-64-v3")
    unit = compiled.executable.unit
    plan = plan_memory(unit)
    (loop,) = (op for op in unit.main.walk() if isinstance(op, array.WhileOp))
    body = loop.body.block
    large = [n for n, each in enumerate(body.args) if array_type(each).size > 1]
    homes = [storage(each) for each in yielded(body)]
    in_place = [homes[n] is not body.args[n] and plan.places[homes[n]] == plan.places[body.args[n]] for n in large]
    assert sorted(in_place) == sorted(expected)


def test_an_extra_array_is_refused_and_not_written() -> None:
    program = tw.jit(lambda x: x + 1).lower(np.zeros(4, np.float32)).compile().executable
    x, extra = np.zeros(4, np.float32), np.full(4, 7, np.float32)
    for _ in range(4):
        program(x)
    with pytest.raises(tw.errors.ArgumentError):
        program(x, extra)
    np.testing.assert_array_equal(extra, 7)
