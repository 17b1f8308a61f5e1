"""The comparison of models of packages finds errors that float32 does not explain."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.interop.torch.package_models import errors_of  # noqa: E402


def test_errors_beyond_those_of_eager_are_differences() -> None:
    exact = [torch.linspace(-1, 1, 7, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)]
    eager = [t.float() for t in exact]
    assert errors_of(eager, eager, exact).state == "equal"
    assert errors_of([eager[0] + 1e-5, eager[1]], eager, exact).state == "different"
    assert errors_of([eager[0] + 1e-5, eager[1]], [eager[0] - 1e-5, eager[1]], exact).state == "equal"
    assert errors_of([eager[0] * torch.nan, eager[1]], eager, exact).state == "different"
    assert errors_of([eager[0][1:], eager[1]], eager, exact).state == "different"
