"""The page on GPUs: what its code says happens on the emulated device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.cuda.running import X
from tests.emulators.cuda_driver import FakeDriver

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cuda.md"


def test_the_code_of_the_page_runs(driver: FakeDriver, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    parts = PAGE.read_text().split("```python\n")[1:]
    for part in parts:
        exec(compile(part.partition("```")[0], str(PAGE), "exec"), namespace)
    powers = np.exp(2 * (X - X.max(-1, keepdims=True)))
    expected = powers / powers.sum(-1, keepdims=True)
    with driver.context(0):
        stream = driver.new_stream()
    np.testing.assert_allclose(namespace["scaled_softmax"](X, 2.0), expected, rtol=1e-5)
    np.testing.assert_allclose(namespace["on_their_stream"](X, stream), expected, rtol=1e-5)
    namespace["ship"](str(tmp_path / "softmax.twp"))
    x = np.zeros((8, 128), np.float32)
    np.testing.assert_allclose(namespace["use"](str(tmp_path / "softmax.twp"), x, np.float32(2)), x + 1 / 128)
