"""Compile time by program size: long chains, concatenations of many arrays, unrolled recurrences, chains of updates.

    python -m tests.program_size --target cpu --target grid:wormhole [--shape chain] [--largest]

Prints seconds of processor time for each 1,000 operations at growing sizes: a compiler whose time is linear in the size
of programs prints about the same number in each row. Programs that `interp` and `cpu` run are compared with NumPy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw

Arrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Program:
    """A program of some size: the function, its arguments, and its result by NumPy in float64."""

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    expected: Callable[[], np.ndarray[Any, Any]]


def chain(count: int) -> Program:
    """`count` elementwise operations, one after the other."""
    x = np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)

    def run(x: Any) -> Any:
        for n in range(count):
            x = (abs(x), x * 0.5, x + 1)[n % 3]
        return x

    return Program(run, (x,), lambda: run(x.astype(np.float64)))


def concat(count: int) -> Program:
    """The concatenation of `count` arrays that are arguments."""
    arrays = [np.full((2, 3), n, np.float32) for n in range(count)]

    def run(xs: Any) -> Any:
        return tw.concat(xs, axis=0)

    return Program(run, (arrays,), lambda: np.concatenate(arrays))


def stack(count: int) -> Program:
    """A stack of `count` arrays that are computed."""
    x = np.ones((2, 3), np.float32)

    def run(x: Any) -> Any:
        return tw.stack([x * n for n in range(count)])

    return Program(run, (x,), lambda: np.stack([x * n for n in range(count)]))


def recurrence(count: int) -> Program:
    """`count` unrolled steps of a recurrent net, which stacks all its states."""
    generator = np.random.default_rng(0)
    x, w = (generator.standard_normal(shape, np.float32) / 4 for shape in ((count, 2, 8), (8, 8)))

    def run(library: Any, x: Any, w: Any) -> Any:
        state, states = x[0] * 0, list[Any]()
        for n in range(count):
            state = library.tanh(x[n] + state @ w)
            states.append(state)
        return library.stack(states)

    return Program(partial(run, tw), (x, w), lambda: run(np, x.astype(np.float64), w.astype(np.float64)))


def writes(count: int) -> Program:
    """`count` updates of single elements."""
    x = np.zeros((64, 64), np.float32)

    def run(x: Any) -> Any:
        for n in range(count):
            x = x.at[n % 64, n % 7].set(float(n))
        return x

    def expected() -> np.ndarray[Any, Any]:
        result = x.copy()
        for n in range(count):
            result[n % 64, n % 7] = n
        return result

    return Program(run, (x,), expected)


SHAPES: dict[str, Callable[[int], Program]] = {
    "chain": chain,
    "concat": concat,
    "stack": stack,
    "recurrence": recurrence,
    "writes": writes,
}
LARGEST = {"chain": 20_000, "concat": 5_000, "stack": 5_000, "recurrence": 2_000, "writes": 1_200}


def compiled(program: Program, target: str) -> tuple[Any, float]:
    """A program compiled for a target, and the seconds of processor time that it took."""
    start = time.process_time()
    with tw.options(target=target):
        found = tw.jit(program.run).lower(*program.arguments).compile()
    return found, time.process_time() - start


def error_of(found: Any, program: Program) -> float:
    """The largest difference from what NumPy computes, relative to the largest element."""
    expected = program.expected()
    difference = np.abs(np.asarray(found(*program.arguments), np.float64) - expected).max()
    return float(difference / max(1.0, np.abs(expected).max()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append")
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument("--largest", action="store_true", help="up to the largest size, not to a tenth of it")
    options = parser.parse_args()
    for target in options.target or ["cpu"]:
        compiled(chain(2), target)  # imports are no work of the first program
        for shape in options.shape or SHAPES:
            largest = LARGEST[shape] if options.largest else LARGEST[shape] // 10
            for size in (largest // 4, largest // 2, largest):
                program = SHAPES[shape](size)
                found, seconds = compiled(program, target)
                error = f"  error {error_of(found, program):.1e}" if target in ("cpu", "interp") else ""
                per_thousand = 1000 * seconds / size
                print(f"{target:14} {shape:10} {size:6} {seconds:8.2f} s {per_thousand:7.2f} s/1000{error}", flush=True)


if __name__ == "__main__":
    main()
