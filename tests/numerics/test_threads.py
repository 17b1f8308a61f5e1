"""Results do not depend on the number of threads: the same bits on one thread, two, and more than there are cores."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.cpu.context import Scratch

Arrays = tuple[np.ndarray[Any, Any], ...]
GENERATOR = np.random.default_rng(11)


def array(*shape: int, dtype: str = "f4") -> np.ndarray[Any, Any]:
    return GENERATOR.standard_normal(shape).astype(dtype)


def attention(q: tw.Array, k: tw.Array, v: tw.Array) -> tw.Array:
    return tw.nn.attention(q, k, v)


def softmax(x: tw.Array) -> tw.Array:
    return tw.nn.softmax(x, axis=-1)


CASES: dict[str, tuple[Callable[..., Any], Arrays]] = {
    "product": (lambda a, b: a @ b, (array(300, 260), array(260, 310))),
    "deep product": (lambda a, b: a @ b, (array(70, 4200), array(4200, 50))),
    "product of few rows": (lambda a, b: a @ b, (array(3, 1100), array(1100, 700))),
    "transposed left": (lambda a, b: a.T @ b, (array(260, 300), array(260, 310))),
    "transposed right": (lambda a, b: a @ b.T, (array(300, 260), array(310, 260))),
    "one row with the depth inside": (lambda a, b: a @ b.T, (array(1, 1030), array(600, 1030))),
    "f64": (lambda a, b: a @ b, (array(150, 260, dtype="f8"), array(260, 170, dtype="f8"))),
    "batched": (lambda a, b: a @ b, (array(9, 65, 33), array(9, 33, 70))),
    "with a bias": (lambda a, b, c: tw.tanh(a @ b + c), (array(300, 260), array(260, 310), array(310))),
    "attention": (attention, (array(2, 3, 65, 32), array(2, 3, 80, 32), array(2, 3, 80, 32))),
    "softmax": (softmax, (array(200, 333),)),
    "sum of all": (lambda a: tw.sum(a), (array(700, 900),)),
    "column sums": (lambda a: tw.sum(a, axis=0), (array(3000, 70),)),
    "row sums": (lambda a: tw.sum(a, axis=1), (array(70, 3000),)),
    "running sum": (lambda a: tw.cumulative_sum(a), (array(700000),)),
    "running sums of columns": (lambda a: tw.cumulative_sum(a, axis=0), (array(6000, 101),)),
}


def bits(function: Callable[..., Any], arguments: Arrays, threads: int) -> bytes:
    with tw.options(threads=threads, cache=False):
        return np.asarray(tw.jit(function)(*arguments)).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_results_have_the_same_bits_for_any_number_of_threads(name: str) -> None:
    function, arguments = CASES[name]
    alone = bits(function, arguments, 1)
    for threads in (2, 5):
        assert bits(function, arguments, threads) == alone


@pytest.mark.parametrize("name", CASES)
def test_a_program_for_some_threads_runs_with_any_number(name: str) -> None:
    function, arguments = CASES[name]
    with tw.options(threads=1, cache=False):
        expected = np.asarray(tw.jit(function)(*arguments)).tobytes()
    for compiled_for in (2, 5):
        with tw.options(threads=compiled_for, cache=False):
            compiled = tw.jit(function).lower(*arguments).compile("cpu")
        for threads in (1, 3, 40):
            with tw.options(threads=threads):
                for _ in range(2):
                    assert np.asarray(compiled(*arguments)).tobytes() == expected


@pytest.mark.parametrize("seed", range(12))
def test_products_of_random_shapes_have_the_same_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns, depth = (int(2 ** rng.uniform(0, top)) for top in (9, 9, 12))
    a, b = rng.standard_normal((rows, depth)), rng.standard_normal((depth, columns))
    arguments = (a.astype("f4"), b.astype("f4"))
    alone = bits(lambda x, y: x @ y, arguments, 1)
    for threads in (2, 7):
        assert bits(lambda x, y: x @ y, arguments, threads) == alone


@pytest.mark.parametrize("seed", range(24))
def test_sums_of_random_shapes_have_the_same_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(2, 4))
    shape = tuple(max(1, int(2.0 ** rng.uniform(0, 18 / rank))) for _ in range(rank))
    axes = tuple(int(d) for d in sorted(rng.choice(rank, size=int(rng.integers(1, rank)), replace=False)))
    arguments = (rng.standard_normal(shape).astype("f4"),)
    alone = bits(lambda x: tw.sum(x, axis=axes), arguments, 1)
    for threads in (2, 7, 40):
        assert bits(lambda x: tw.sum(x, axis=axes), arguments, threads) == alone


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("size", [(101, 401), (1009, 401), (3001, 1000)])
def test_each_thread_gets_as_many_chunks_as_another(threads: int, size: tuple[int, int]) -> None:
    """A job of three chunks would take two threads two thirds of its time; chunks cover every tile once."""
    x = np.arange(np.prod(size), dtype=np.float32).reshape(size)
    with tw.options(threads=threads, cache=False):
        compiled = tw.jit(lambda x: tw.tanh(x * 2.0**-24) * 0 + x).lower(x).compile("cpu")
        assert np.array_equal(compiled(x), x)
        text = compiled.ir("llvm")
    (chunks,) = (abs(int(n)) for n in re.findall(r"call i32 .*, i64 (-?\d+), i32 %", text))
    assert 2 <= chunks <= 64
    assert chunks <= threads or chunks % threads == 0


@pytest.mark.parametrize("needs", [(64,), (1536, 100_000), (4000, 4096, 1)])
def test_what_a_thread_reads_ahead_is_not_another_threads(needs: tuple[int, ...]) -> None:
    """Caches fetch ahead to the end of a page of 4 KiB: the next thread's memory begins on another one."""
    scratch = Scratch()
    for size in needs:
        scratch.require(size)
    for start in range(0, 4096, 64):
        last, following = start + max(needs) - 1, start + scratch.bytes
        assert last // 4096 < following // 4096
