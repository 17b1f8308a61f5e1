"""The cost of compiling for a CPU, as counts: Python function calls, and memory accesses that LLVM must analyse."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.effort import calls_of
from tilewright.targets.cpu.machine_code import MANY_LAUNCHES, effort_of

Arrays = tuple[np.ndarray[Any, Any], ...]
TARGET = "cpu:x86-64-v3"


def compiled(function: Any, *arrays: np.ndarray[Any, Any], target: str = TARGET) -> Any:
    with tw.options(cache=False):
        return tw.jit(function).lower(*arrays).compile(target=target)


def layers_of(count: int) -> Any:
    """A stream of equal layers."""
    weights = [np.full((8, 8), 1 / (n + 1), np.float32) for n in range(count)]

    def run(x: Any) -> Any:
        for weight in weights:
            x = x + tw.tanh(tw.nn.softmax(x) @ weight)
        return x

    return run


def layers(count: int) -> int:
    """The calls of functions that a stream of equal layers takes."""
    return calls_of(lambda: compiled(layers_of(count), np.ones((4, 8), np.float32)))[1]


def test_equal_layers_take_effort_in_proportion() -> None:
    layers(2)
    few, many = layers(30), layers(180)
    assert many < 6.2 * few


def test_many_launches_are_a_loop_over_a_table() -> None:
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    few, many = (layers_of(count) for count in (20, 60))
    assert compiled(few, x).ir("llvm").count('call void @"tw_kernel.') >= 20
    assert compiled(many, x).ir("llvm").count('call void @"tw_kernel.') == 0
    expected = x.astype(np.float64)
    for n in range(60):
        shares = np.exp(expected - expected.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        expected = expected + np.tanh(shares @ np.full((8, 8), 1 / (n + 1)))
    with tw.options(cache=False):
        np.testing.assert_allclose(tw.jit(many)(x), expected, rtol=1e-5)


LAUNCH = '  call void @"tw_kernel.0"(ptr %table)\n'


@pytest.mark.parametrize(("launches", "effort"), [(0, 2), (1, 0), (MANY_LAUNCHES, 0)])
def test_launches_in_one_block_are_compiled_without_optimisation(launches: int, effort: int) -> None:
    assert effort_of(LAUNCH * launches) == effort


@pytest.mark.parametrize(("launches", "effort"), [(1, 2), (MANY_LAUNCHES - 1, 2), (MANY_LAUNCHES, 0)])
def test_few_launches_in_a_loop_are_compiled_with_optimisation(launches: int, effort: int) -> None:
    assert effort_of('  %".5" = phi i64 [0, %"entry"]\n' + LAUNCH * launches) == effort


def test_a_loop_of_the_program_is_seen() -> None:
    def loop(x: tw.Array) -> tw.Array:
        return tw.fori_loop(0, 1000, lambda _, x: tw.tanh(x) * 0.5, x)

    texts = compiled(loop, np.ones(8, np.float32)).ir("llvm").split("; ModuleID")
    (main,) = [text for text in texts if '@"tw_main"' in text and "define" in text]
    assert 'call void @"tw_kernel.' in main
    assert effort_of(main) == 2


def moving_addresses(block: str) -> list[str]:
    """The addresses of a block at distances that are not constant."""
    return re.findall(r"getelementptr i8, ptr \S+, i64 %.*", block)


def blocks_with(text: str, instruction: str, least: int) -> list[str]:
    return [block for block in re.split(r'\n[\w."]+:\n', text) if block.count(instruction) >= least]


@pytest.mark.parametrize("size", [64, 100, 259])
def test_accesses_of_a_micro_kernel_are_at_constant_distances(size: int) -> None:
    """LLVM's loop strength reduction takes time by the square of those that are not."""
    x = np.ones((size, size), np.float32)
    depth_loops = blocks_with(compiled(lambda a, b: a @ b, x, x).ir("llvm"), "llvm.fma", 8)
    assert max(block.count(" load ") for block in depth_loops) > 12
    assert max(len(moving_addresses(block)) for block in depth_loops) <= 4


def test_windows_of_an_array_share_their_address() -> None:
    x = np.linspace(-1, 1, 20 * 64, dtype=np.float32).reshape(20, 64)

    def windows(x: Any) -> Any:
        return x[:-4] * 5 + x[1:-3] * 4 + x[2:-2] * 3 + x[3:-1] * 2 + x[4:]

    (block,) = blocks_with(compiled(windows, x).ir("llvm"), " load <8 x float>", 5)
    assert len(moving_addresses(block)) == 2
    wide = x.astype(np.float64)
    result = compiled(windows, x, target="cpu")(x)
    np.testing.assert_allclose(result, windows(wide), rtol=1e-5, atol=1e-6)


def padded(x: Any) -> Any:
    return tw.pad(x, ((3, 2), (2, 1), (0, 0))) * 2


def innermost_loops(text: str) -> list[str]:
    """The blocks that branch to themselves."""
    blocks = re.findall(r'\n([\w."]+):\n(.*?)(?=\n[\w."]+:\n|\n})', text, re.DOTALL)
    return [block for name, block in blocks if f'label %"{name}"' in block.splitlines()[-1]]


@pytest.mark.parametrize("function", [padded, lambda x: x @ x.mT, lambda x: tw.sum(x, axis=1)])
def test_loop_strength_reduction_finds_nothing_to_do(function: Any) -> None:
    """It would take a third of LLVM's time: LLVM does not know that what a loop counts moves with it."""
    loops = innermost_loops(compiled(function, np.ones((9, 40, 64), np.float32)).ir("llvm"))
    assert loops
    for block in loops:
        copies = set(re.findall(r'(%"[^"]*") = freeze', block))
        carried = re.findall(r"= phi  (?:i64|ptr) .*\[(%\S+), %\S+\]$", block, re.MULTILINE)
        assert carried
        assert copies.issuperset(carried)


def test_a_loop_multiplies_what_changes_in_it_alone() -> None:
    x = np.linspace(-1, 1, 9 * 40 * 64, dtype=np.float32).reshape(9, 40, 64)
    executable = compiled(padded, x)
    loops = innermost_loops(executable.ir("llvm"))
    assert len(loops) >= 2
    for block in loops:
        (counter,) = re.findall(r'(%"[^"]*") = phi  i64', block)
        multiplied = re.findall(r"= mul (?:nsw )?i64 (%\S+),", block)
        assert set(multiplied) <= {counter}
    np.testing.assert_array_equal(compiled(padded, x, target="cpu")(x), np.pad(x, ((3, 2), (2, 1), (0, 0))) * 2)
