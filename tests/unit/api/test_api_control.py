"""Loops and branches against Python's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from api_support import run, same
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.errors import ArgumentError, DTypeError, ShapeError


@dataclass
class State:
    position: Any
    history: Any


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 100))
def test_collatz(start):
    def steps(n):
        def body(carry):
            value, count = carry
            return tw.where(value % 2 == 0, value // 2, 3 * value + 1), count + 1

        return tw.while_loop(lambda carry: carry[0] != 1, body, (n, 0))[1]

    value, count = start, 0
    while value != 1:
        value, count = (value // 2 if value % 2 == 0 else 3 * value + 1), count + 1
    same(run(steps, start), np.asarray(count))


def test_loops_may_carry_any_container_and_use_outer_arrays():
    weights = np.array([[2.0, 0.0], [1.0, 1.0]])

    def function(x, w):
        state = State(x, {"sum": tw.zeros_like(x), "count": 0})

        def body(s):
            return State(w @ s.position, {"count": s.history["count"] + 1, "sum": s.history["sum"] + s.position})

        return tw.while_loop(lambda s: s.history["count"] < 4, body, state)

    result = run(function, np.ones(2), weights)
    assert isinstance(result, State)
    position, total = np.ones(2), np.zeros(2)
    for _ in range(4):
        position, total = weights @ position, total + position
    same(result.position, position)
    same(result.history["sum"], total)
    same(result.history["count"], np.asarray(4))


def test_loops_that_do_not_run():
    same(run(lambda x: tw.while_loop(lambda c: c < 0, lambda c: c + 1, x), 3), np.asarray(3))
    same(run(lambda x: tw.fori_loop(3, 3, lambda i, c: c + 1, x), np.ones(2)), np.ones(2))


def test_python_numbers_in_a_carry_take_the_type_of_the_body():
    x = np.array([0.5, 1.5])
    result = run(lambda a: tw.fori_loop(0, 3, lambda i, c: (c[0] + tw.sum(a), c[1] * 1.5), (0, 1)), x)
    same(result[0], np.asarray(6.0))
    same(result[1], np.asarray(1.5**3, np.float32))
    kept = run(lambda a: tw.fori_loop(0, 3, lambda i, c: c + i, a), np.float16(1))
    assert kept.dtype == np.float16


@pytest.mark.parametrize("bounds", [(0, 5), (2, 5), (5, 2), (-2, 1)])
def test_fori_loop(bounds):
    expected = np.zeros(6, np.int64)
    for i in range(*bounds):
        expected[i] += i
    body = lambda i, c: c.at[i].add(i)  # noqa: E731  one line, used twice
    same(run(lambda x: tw.fori_loop(*bounds, body, x), np.zeros(6, np.int64)), expected)
    same(run(lambda x, low, high: tw.fori_loop(low, high, body, x), np.zeros(6, np.int64), *bounds), expected)


def test_nested_loops():
    def function(n):
        def outer(i, total):
            return tw.fori_loop(0, i, lambda j, t: t + i * j, total)

        return tw.fori_loop(0, n, outer, 0)

    expected = sum(i * j for i in range(6) for j in range(i))
    same(run(function, 6), np.asarray(expected))


@pytest.mark.parametrize("pred", [True, False])
def test_cond(pred):
    def function(p, x):
        return tw.cond(p, lambda a: {"y": a * 2, "n": 1}, lambda a: {"y": -a, "n": 2.5}, x)

    result = run(function, np.bool_(pred), np.arange(3.0))
    same(result["y"], np.arange(3.0) * 2 if pred else -np.arange(3.0))
    same(result["n"], np.asarray(1 if pred else 2.5, np.float32))
    inner = run(lambda p, x: tw.cond(p, lambda: x + 1, lambda: x - 1), np.bool_(pred), np.arange(3))
    same(inner, np.arange(3) + (1 if pred else -1))


def test_cond_of_a_python_bool_traces_one_branch():
    def refused(x):
        raise AssertionError("the other branch was traced")

    same(run(lambda x: tw.cond(True, lambda a: a + 1, refused, x), np.arange(3)), np.arange(3) + 1)


def test_cond_inside_a_loop_stops_early():
    def newton(x):
        def body(carry):
            guess, _ = carry
            better = 0.5 * (guess + x / guess)
            done = tw.cond(abs(better - guess) < 1e-12, lambda: True, lambda: False)
            return better, done

        return tw.while_loop(lambda carry: ~carry[1], body, (x, False))[0]

    assert math.isclose(run(newton, np.float64(2)), math.sqrt(2), rel_tol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_scan(length, reverse):
    xs = {"a": np.arange(length * 2.0).reshape(length, 2), "b": np.arange(length)}

    def step(carry, x):
        carry = carry * 0.5 + x["a"]
        return carry, (carry.sum(), x["b"] + 1)

    carry, ys = run(lambda x: tw.scan(step, tw.zeros(2, dtype=tw.f64), x, reverse=reverse), xs)
    expected, sums = np.zeros(2), np.zeros(length)
    for n in reversed(range(length)) if reverse else range(length):
        expected = expected * 0.5 + xs["a"][n]
        sums[n] = expected.sum()
    same(carry, expected)
    same(ys[0], sums)
    same(ys[1], np.arange(length) + 1)


def test_scan_without_arrays_and_without_results():
    carry, ys = run(lambda x: tw.scan(lambda c, _: (c * 2, None), x, length=5), 3)
    same(carry, np.asarray(96))
    assert ys is None
    _, fibonacci = run(lambda: tw.scan(lambda c, _: ((c[1], c[0] + c[1]), c[0]), (0, 1), length=8))
    same(fibonacci, np.array([0, 1, 1, 2, 3, 5, 8, 13]))


def test_mismatches_name_the_leaf():
    x = np.zeros((2, 3), np.float32)

    def message(call, error) -> str:
        with pytest.raises(error) as caught:
            run(call, x)
        return caught.value.message

    init = {"w": [x, 0]}
    grown = message(
        lambda a: tw.while_loop(lambda c: True, lambda c: {"w": [c["w"][0][:, :2], c["w"][1]]}, init), ShapeError
    )
    assert "`carry['w'][0]`" in grown
    assert "f32[2, 2], expected f32[2, 3]" in grown
    cast = message(lambda a: tw.fori_loop(0, 2, lambda i, c: c.astype(tw.f64), a), DTypeError)
    assert "`carry`" in cast
    assert "f64[2, 3], expected f32[2, 3]" in cast
    scanned = message(lambda a: tw.scan(lambda c, r: ((c[0], c[1].sum()), None), (0, a), a), ShapeError)
    assert "`carry[1]`" in scanned
    branch = message(lambda a: tw.cond(a[0, 0] > 0, lambda: (a, a), lambda: (a, a[0])), ShapeError)
    assert "`result[1]`" in branch
    types = message(lambda a: tw.cond(a[0, 0] > 0, lambda: a, lambda: a.astype(tw.i32)), DTypeError)
    assert "f32" in types
    assert "i32" in types


def test_control_flow_refuses():
    x = np.zeros((2, 3), np.float32)
    for call in [
        lambda a: tw.while_loop(lambda c: True, lambda c: (c, c), a),
        lambda a: tw.while_loop(lambda c: c > 0, lambda c: c, a),
        lambda a: tw.while_loop(lambda c: c[0, 0], lambda c: c, a),
        lambda a: tw.fori_loop(0.5, 3, lambda i, c: c, a),
        lambda a: tw.fori_loop(0, a, lambda i, c: c, a),
        lambda a: tw.cond(a > 0, lambda: a, lambda: a),
        lambda a: tw.cond(a[0, 0] > 0, lambda: a, lambda: (a,)),
        lambda a: tw.scan(lambda c, x: (c, None), 0),
        lambda a: tw.scan(lambda c, x: (c, None), 0, a, length=3),
        lambda a: tw.scan(lambda c, x: (c, None), 0, (a, a[0])),
        lambda a: tw.scan(lambda c, x: c, 0, a),
    ]:
        with pytest.raises(ArgumentError):
            run(call, x)
    with pytest.raises(ShapeError):
        run(lambda a: tw.scan(lambda c, x: (c, None), 0, (a, a[0, 0])), x)


def test_values_of_a_region_stay_inside():
    leaked = []

    def keep(c):
        leaked.append(c)
        return c + 1

    def function(x):
        tw.fori_loop(0, 2, lambda i, c: keep(c), x)
        return leaked[0] + 1

    with pytest.raises(ArgumentError, match="region that has ended"):
        run(function, np.zeros(2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tw.while_loop(None, lambda c: c, x),
        lambda x: tw.while_loop(lambda c: tw.sum(c) < 1, 3, x),
        lambda x: tw.fori_loop(0, 3, x, x),
        lambda x: tw.scan(None, x, x),
        lambda x: tw.cond(True, None, lambda: x),
        lambda x: tw.cond(tw.sum(x) < 1, lambda: x, x),
    ],
)
def test_what_is_no_function_is_refused(function):
    with pytest.raises(ArgumentError, match="not a function"):
        run(function, np.zeros(2))
