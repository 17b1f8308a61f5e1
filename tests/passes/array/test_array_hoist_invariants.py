"""Loop-invariant code motion: operations that are hoisted, operations that are not, and results against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import check_meaning, check_unchanged
from tilewright.passes.array.array_hoist_invariants import ArrayHoistInvariantsPass

PASS = ArrayHoistInvariantsPass()
Arrays = tuple[np.ndarray[Any, Any], ...]
Loop = Callable[..., tw.Array]

RNG = np.random.default_rng(5)
MATRIX, VECTOR = RNG.random((40, 40), np.float32), RNG.random(40, np.float32)


def repeated(trips: Any, body: Callable[[tw.Array], tw.Array], x: tw.Array) -> tw.Array:
    return tw.fori_loop(0, trips, lambda _, x: body(x), x)


def hoisted(function: Loop, *arrays: np.ndarray[Any, Any]) -> list[str]:
    """The names of operations that leave loops."""
    with tw.options(cache=False):
        lines = tw.jit(function).lower(*arrays).compile().explain().splitlines()
    prefix = f"{PASS.name}: "
    return [line.removeprefix(prefix).split(" at ")[0] for line in lines if line.startswith(prefix)]


# A loop, the same in NumPy, and what leaves it.
LOOPS: dict[str, tuple[Loop, Callable[..., Any], list[str]]] = {
    "reduction": (
        lambda a, x: repeated(5, lambda x: x * 0.5 + tw.sum(a, axis=0), x),
        lambda a, x: _repeat(5, lambda x: x * 0.5 + a.sum(0), x),
        ["reduce"],
    ),
    "contraction": (
        lambda a, x: repeated(5, lambda x: tw.tanh((a @ a.T) @ x / 99), x),
        lambda a, x: _repeat(5, lambda x: np.tanh((a @ a.T) @ x / 99), x),
        ["contract"],
    ),
    "functions": (
        lambda a, x: repeated(5, lambda x: x * 0.9 + tw.exp(tw.sin(a[0])), x),
        lambda a, x: _repeat(5, lambda x: x * 0.9 + np.exp(np.sin(a[0])), x),
        ["map"],
    ),
    "sort, which is read at the loop's index": (
        lambda a, x: tw.fori_loop(0, 5, lambda i, x: x + tw.sort(a, axis=1)[i], x),
        lambda a, x: x + np.sort(a, axis=1)[:5].sum(0),
        ["sort"],
    ),
    "what is computed of what leaves": (
        lambda a, x: repeated(5, lambda x: tw.tanh((a / tw.sum(a, axis=0)) @ x), x),
        lambda a, x: _repeat(5, lambda x: np.tanh((a / a.sum(0)) @ x), x),
        ["map"],
    ),
    "carried without change": (
        lambda a, x: tw.fori_loop(0, 5, lambda i, c: (c[0], tw.sum(c[0], axis=1) - c[1]), (a, x))[1],
        lambda a, x: _repeat(5, lambda x: a.sum(1) - x, x),
        ["reduce"],
    ),
    "in a condition": (
        lambda a, x: tw.while_loop(lambda x: tw.sum(x) < tw.sum(a), lambda x: x * 2.0, x),
        lambda a, x: _repeat(
            int(np.ceil(np.log2(a.sum(dtype=np.float64) / x.sum(dtype=np.float64)))), lambda x: x * 2, x
        ),
        ["reduce"],
    ),
    "two loops": (
        lambda a, x: repeated(3, lambda x: repeated(2, lambda x: tw.tanh(x + tw.sum(a, axis=1)), x), x),
        lambda a, x: _repeat(6, lambda x: np.tanh(x + a.sum(1)), x),
        ["reduce"],
    ),
    "out of the inner loop alone": (
        lambda a, x: repeated(3, lambda x: repeated(2, lambda y: y * 0.5 + tw.exp(tw.sum(a * x, axis=1) * 0.01), x), x),
        lambda a, x: _repeat(3, lambda x: _repeat(2, lambda y: y * 0.5 + np.exp((a * x).sum(1) * 0.01), x), x),
        ["map"],
    ),
    "no trips": (
        lambda a, x: repeated(tw.astype(tw.sum(x) * 0, tw.i64), lambda x: x + tw.sum(a, axis=0), x),
        lambda a, x: x,
        ["reduce"],
    ),
    "two results of one": (
        lambda a, x: repeated(5, lambda x: x + tw.top_k(a, 40)[0][0] + tw.top_k(a, 40)[1][0], x),
        lambda a, x: _repeat(5, lambda x: x + np.sort(a[0])[::-1] + np.argsort(-a[0]), x),
        ["cast"],
    ),
}


def _repeat(trips: int, body: Callable[[Any], Any], x: Any) -> Any:
    for _ in range(trips):
        x = body(x)
    return x


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_the_same_in_all_trips(name: str) -> None:
    function, reference, expected = LOOPS[name]
    assert hoisted(function, MATRIX, VECTOR) == expected
    with tw.options(cache=False):
        got = tw.jit(function)(MATRIX, VECTOR)
    wide = reference(MATRIX.astype(np.float64), VECTOR.astype(np.float64))
    np.testing.assert_allclose(got, wide, rtol=1e-4)


STAYS: dict[str, Loop] = {
    "cheap": lambda a, x: repeated(5, lambda x: x + a[0] * 2.0, x),
    "views": lambda a, x: repeated(5, lambda x: (a.T @ x) * 0.01, x),
    "made of what is carried": lambda a, x: repeated(5, lambda x: tw.sum(a * x, axis=1), x),
    "in a branch": lambda a, x: repeated(5, lambda x: tw.cond(x[0] > 9, lambda: x + tw.sum(a, axis=0), lambda: x), x),
    "too large": lambda a, x: repeated(
        2, lambda x: x + tw.sum(x * tw.exp(tw.broadcast_to(a[0], (2**20, 40)) + tw.arange(2**20)[:, None]), axis=0), x
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_others_stay(name: str) -> None:
    assert hoisted(STAYS[name], MATRIX, VECTOR) == []


def test_what_is_both_used_in_the_loop_and_needed_before_it_is_in_both() -> None:
    """A number stays known where it is used."""

    def loop(a: tw.Array, x: tw.Array) -> tw.Array:
        return repeated(5, lambda x: x * 0.25 + tw.sum(a * 0.25, axis=0), x)

    assert hoisted(loop, MATRIX, VECTOR) == ["reduce"]
    expected = _repeat(5, lambda x: x * 0.25 + (MATRIX * 0.25).sum(0), VECTOR)
    np.testing.assert_allclose(tw.jit(loop)(MATRIX, VECTOR), expected, rtol=1e-5)


def test_what_two_need_is_computed_once() -> None:
    function = LOOPS["two results of one"][0]
    with tw.options(cache=False):
        kernels = tw.jit(function).lower(MATRIX, VECTOR).compile().ir("tile")
    assert kernels.count("tile.top_k(") == 1


def while_text(invariant: str) -> str:
    return f"""
    func.func @main(%n: tensor<i64>, %x: tensor<6xf32>, %w: tensor<8x6xf32>) -> tensor<6xf32> {{
      %i = array.constant() {{value = 0 : index, resource = ""}} : tensor<i64>
      %a, %b = array.while(%i, %x) do {{
      ^bb0(%c: tensor<i64>, %y: tensor<6xf32>):
        %less = array.map(%c, %n) {{fn = "less"}} : tensor<i1>
        array.yield(%less)
      }} do {{
      ^bb0(%c: tensor<i64>, %y: tensor<6xf32>):
        %one = array.constant() {{value = 1 : index, resource = ""}} : tensor<i64>
        %next = array.map(%c, %one) {{fn = "add"}} : tensor<i64>
        {invariant}
        %z = array.map(%y, %s) {{fn = "add"}} : tensor<6xf32>
        array.yield(%next, %z)
      }} : tensor<i64>, tensor<6xf32>
      func.return %b : tensor<6xf32>
    }}
    """


def test_the_meaning_of_the_program_stays() -> None:
    check_meaning(PASS, while_text('%s = array.reduce(%w) {fn = "add", axes = array<i64: 0>} : tensor<6xf32>'))


def test_a_reduction_of_few_elements_stays() -> None:
    short = """
        %part = array.slice(%w) {starts = array<i64: 0, 0>, limits = array<i64: 2, 6>, strides = array<i64: 1, 1>}
          : tensor<2x6xf32>
        %s = array.reduce(%part) {fn = "add", axes = array<i64: 0>} : tensor<6xf32>
    """
    check_unchanged(PASS, while_text(short))
