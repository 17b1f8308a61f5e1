"""A sample of torch's OpInfo database; `python -m tests.interop.torch.opinfo` runs all."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.interop.torch.samples import operators, run  # noqa: E402
from tilewright.interop.torch import BackendOptions  # noqa: E402

_EVERY = {"float32": 67, "int64": 71, "bool": 97}


@pytest.mark.parametrize("dtype", _EVERY)
def test_no_operator_of_a_sample_is_wrong(dtype: str) -> None:
    # `interp` compiles nothing: what is tested here are the rules.
    options = BackendOptions(target="interp")
    names = [*operators()][:: _EVERY[dtype]]
    outcomes = [run(name, dtype, 2, options) for name in names]
    wrong = [f"{o.name}: {o.wrong}" for o in outcomes if o.wrong]
    assert not wrong, "\n".join(wrong)
    sampled = [o for o in outcomes if o.samples]
    assert sum(o.state == "right" for o in sampled) >= 0.6 * len(sampled)


@pytest.mark.parametrize("name", ["nn.functional.conv2d", "nn.functional.layer_norm", "cumsum", "gather", "index_put"])
def test_some_operators_are_compiled(name: str) -> None:
    outcome = run(name, "float32", 2, BackendOptions())
    assert outcome.state == "right", outcome
