"""Random programs of nested loops and branches over a few arrays, as they are traced and as NumPy computes them.

Arrays are small integers, so that results are exact on every target: sums are taken modulo a prime. Arrays change
places, are updated in part, seen in other shapes, and decide branches and trips.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tilewright as tw

Array = Any
State = tuple[Array, ...]
Tensor = np.ndarray[Any, Any]
SHAPE = (4, 6)
_MODULUS = 31


@dataclass(frozen=True)
class Statement:
    """A step of a program: its kind, the arrays that it is about, and the statements inside it."""

    kind: str
    arrays: tuple[int, ...]
    inner: tuple[tuple[Statement, ...], ...] = field(default=())


def drawn(random: np.random.Generator, count: int, depth: int = 3) -> tuple[Statement, ...]:
    """Statements over `count` arrays, nested at most `depth` deep."""
    kinds = ["combine", "exchange", "update", "reshape"] + ["if", "while"] * (2 if depth else 0)
    statements: list[Statement] = []
    for _ in range(int(random.integers(1, 4))):
        kind = str(random.choice(kinds))
        arrays = tuple(int(n) for n in random.integers(0, count, 3))
        parts = {"if": 2, "while": 1}.get(kind, 0)
        inner = tuple(drawn(random, count, depth - 1) for _ in range(parts))
        statements.append(Statement(kind, arrays, inner))
    return tuple(statements)


def _replaced(state: State, position: int, value: Array) -> State:
    return (*state[:position], value, *state[position + 1 :])


def _exchanged(state: State, a: int, b: int) -> State:
    first, second = state[a], state[b]
    return _replaced(_replaced(state, a, second), b, first)


# ---- as it is traced ------------------------------------------------------------------------------------------------


def traced(statements: Sequence[Statement], state: State) -> State:
    """The arrays after the statements, for `tw.jit`."""
    for statement in statements:
        a, b, c = statement.arrays
        match statement.kind:
            case "combine":
                state = _replaced(state, a, (state[b] * 3 + state[c] + 1) % _MODULUS)
            case "exchange":
                state = _exchanged(state, a, b)
            case "update":
                state = _replaced(state, a, state[a].at[1].set(state[b][2]))
            case "reshape":
                state = _replaced(state, a, tw.reshape(tw.reshape(state[b], (24,)), SHAPE))
            case "if":
                then, otherwise = statement.inner
                state = tw.cond(
                    state[a][0, 0] % 2 == 0,
                    lambda *arrays, then=then: traced(then, arrays),
                    lambda *arrays, otherwise=otherwise: traced(otherwise, arrays),
                    *state,
                )
            case _:
                state = _traced_loop(statement, state)
    return state


def _traced_loop(statement: Statement, state: State) -> State:
    """At most as many trips as an element states, modulo 4."""
    trips = state[statement.arrays[0]][1, 2] % 4
    (body,) = statement.inner
    carried = (trips, *state)
    carried = tw.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, *traced(body, s[1:])), carried)
    return carried[1:]


def function(statements: Sequence[Statement], count: int, results: Sequence[int]) -> Callable[..., State]:
    """The program of `count` arrays that returns some of them."""
    names = ", ".join(f"x{n}" for n in range(count))
    scope: dict[str, Any] = {"run": lambda state: tuple(traced(statements, state)[n] for n in results)}
    exec(f"def program({names}):\n    return run(({names},))", scope)
    return scope["program"]


# ---- as NumPy computes it -------------------------------------------------------------------------------------------


def computed(statements: Sequence[Statement], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The arrays after the statements."""
    for statement in statements:
        a, b, c = statement.arrays
        match statement.kind:
            case "combine":
                state = _replaced(state, a, (state[b] * 3 + state[c] + 1) % _MODULUS)
            case "exchange":
                state = _exchanged(state, a, b)
            case "update":
                updated = state[a].copy()
                updated[1] = state[b][2]
                state = _replaced(state, a, updated)
            case "reshape":
                state = _replaced(state, a, state[b])
            case "if":
                state = computed(statement.inner[0 if state[a][0, 0] % 2 == 0 else 1], state)
            case _:
                for _ in range(int(state[a][1, 2] % 4)):
                    state = computed(statement.inner[0], state)
    return state


@dataclass(frozen=True)
class Case:
    """A program, its arguments, the names of those that are donated, and its results by NumPy."""

    function: Callable[..., State]
    arrays: tuple[Tensor, ...]
    donated: tuple[str, ...]
    expected: tuple[Tensor, ...]


def case(seed: int) -> Case:
    """A random program: not all arrays are results, some are twice, in any order, and some arguments are donated."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 5))
    statements = drawn(random, count)
    results = [int(n) for n in random.integers(0, count, int(random.integers(1, count + 1)))]
    arrays = tuple(random.integers(0, _MODULUS, SHAPE).astype(np.int32) for _ in range(count))
    donated = tuple(f"x{n}" for n in range(len(results)) if random.random() < 0.5)
    finished = computed(statements, arrays)
    return Case(function(statements, count, results), arrays, donated, tuple(finished[n] for n in results))
