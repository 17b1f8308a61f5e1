"""Networks through the backend: forward passes and training steps as close to f64 as eager torch is."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.interop.torch.models import as_double, distance, training_step  # noqa: E402
from tests.interop.torch.networks import CASES, Case  # noqa: E402
from tilewright import events  # noqa: E402
from tilewright.interop.torch import backend  # noqa: E402

# Errors as parts of the largest element. Eager f32 has up to 3e-7 forward; gradients through the statistics of few
# elements amplify it.
FORWARD, BACKWARD, AMPLIFIED = 2e-6, 1e-5, 2e-3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_forward_and_training_step(case: Case) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    model = case.small()
    x = case.inputs(4, False)
    exact = copy.deepcopy(model).double()
    with events.capture() as seen:
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        model.eval()
        with torch.no_grad():
            assert distance(compiled(x), exact.eval()(as_double(x))) < FORWARD
        model.train()
        found = training_step(case, model, compiled, x)
    wanted = training_step(case, exact.train(), exact, as_double(x))
    assert not [record for record in seen if record["kind"] == "torch.fallback"]
    assert distance(found.loss, wanted.loss) < FORWARD
    bound = AMPLIFIED if case.name == "resnet" else BACKWARD
    assert found.gradients.keys() == wanted.gradients.keys()
    for name, gradient in wanted.gradients.items():
        assert distance(found.gradients[name], gradient) < bound, name
    for name, value in wanted.state.items():
        torch.testing.assert_close(found.state[name].double(), value.double(), rtol=1e-4, atol=1e-4, msg=name)
