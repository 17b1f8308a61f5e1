"""Results that are views of inputs: whole buffers are copied, large ones by several threads."""

from __future__ import annotations

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
