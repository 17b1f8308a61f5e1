"""Results that are views of inputs: whole buffers are copied, large ones by several threads."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest

import tilewright as tw

SIZES = (1, 63, 4096, 65_536, 1_000_003, 3_000_000)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_view_of_an_input_is_copied(size: int, dtype: str, threads: int) -> None:
    x = np.random.default_rng(size).integers(0, 100, size).astype(dtype)
    with tw.options(target="cpu", threads=threads):
        found = tw.jit(lambda x: tw.reshape(x, (1, size)))(x)
    np.testing.assert_array_equal(found, x[None])
    assert not np.may_share_memory(found, x)


def test_large_copies_are_shared_and_small_ones_are_not() -> None:
    def code(size: int) -> str:
        program = tw.jit(lambda x: tw.reshape(x, (1, size))).lower(np.zeros(size, np.float32))
        return program.compile("cpu:x86-64-v4").ir("llvm")

    with tw.options(threads=2):
        assert '@"copy_4000000"' in code(1_000_000)
        assert "copy_" not in code(1000)


PAGE = 4096


def placed(size: int, after_page: int) -> np.ndarray:
    """Bytes that begin so many bytes after the start of a page."""
    memory = np.zeros(size + 2 * PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE + after_page
    return memory[start : start + size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("source", "target"), [(0, 0), (0, 1), (0, 63), (0, 64), (16, 0), (40, 57), (4090, 10)])
def test_copies_from_and_to_any_place_in_a_page(size: int, source: int, target: int) -> None:
    x, out = placed(size + 1, source)[:size], placed(size + 1, target)
    x[:] = np.random.default_rng(size).integers(1, 100, size)
    program = tw.jit(lambda x: x).lower(x).compile("cpu").executable.program
    program(x, out=out[:size], threads=1)
    np.testing.assert_array_equal(out[:size], x)
    assert out[size] == 0


def test_no_place_in_a_page_is_slow() -> None:
    size = 1 << 20
    program = tw.jit(lambda x: x).lower(np.zeros(size, np.uint8)).compile("cpu").executable.program

    def best(target: int) -> float:
        x, out = placed(size, 0), placed(size, target)
        times = []
        for _ in range(50):
            start = perf_counter()
            program(x, out=out, threads=1)
            times.append(perf_counter() - start)
        return min(times)

    # Ten times as long where the C library copies by `rep movsb` on Zen 3.
    assert best(16) < 4 * best(0)
