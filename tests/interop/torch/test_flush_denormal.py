"""Results do not depend on the floating-point state that torch sets on the calling thread."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("flushes_first", [False, True])
def test_subnormal_numbers_are_kept_and_the_state_of_torch_too(threads: int, flushes_first: bool) -> None:
    x = np.full(400_000, 3e-40, np.float32)
    if not torch.set_flush_denormal(flushes_first):
        pytest.skip("torch cannot set the mode on this processor")
    try:
        with tw.options(threads=threads):
            function = tw.jit(lambda x: x * 2)
            function(x)
            torch.set_flush_denormal(True)
            for _ in range(4):
                np.testing.assert_array_equal(function(x), np.float32(3e-40) * np.ones_like(x) * 2)
                assert float(torch.tensor(3e-40) * 2) == 0.0
    finally:
        torch.set_flush_denormal(False)
