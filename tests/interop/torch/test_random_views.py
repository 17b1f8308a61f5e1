"""A sample of `python -m tests.interop.torch.random_views`, and results that are written inputs."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.interop.torch.random_views import DTYPES, generate, outcome  # noqa: E402
from tilewright.interop.torch import backend  # noqa: E402


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_programs_with_views_and_writes(dtype: str) -> None:
    for seed in (0,):
        program = generate(random.Random(seed), dtype)
        state, reason = outcome(program)
        assert state != "different", f"{reason}\n{program}"


def _whole(x: Any) -> Any:
    x.add_(1)
    return x


def _views(x: Any) -> Any:
    part = x[1:]
    part.mul_(2)
    return part, x, x.t(), x, x.sum()


def _parts(x: Any) -> Any:
    first, second = x.split(1)
    first.add_(second)
    return second, first, x


class _Cache(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 3))

    def forward(self, x: Any) -> Any:
        self.rows[1:] = x[1:]
        return self.rows, self.rows[1:], x


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_whole, _views, _parts, _Cache()], ids=["whole", "views", "parts", "buffer"])
def test_results_that_are_written_inputs(function: Any, dynamic: bool) -> None:
    torch.compiler.reset()
    ours, theirs = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3)
    eager = copy.deepcopy(function)
    run = torch.compile(copy.deepcopy(function), backend=backend, dynamic=dynamic, fullgraph=True)
    for _ in range(2):
        found, expected = run(ours), eager(theirs)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        # What shares memory goes on to share it.
        first, wanted = (r[0] if isinstance(r, tuple) else r for r in (found, expected))
        first.add_(1)
        wanted.add_(1)
        torch.testing.assert_close((found, ours), (expected, theirs), rtol=0, atol=0)
