"""`tw.torch_op`: kernels and traced functions as operators of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright import events  # noqa: E402
from tilewright.errors import ArgumentError  # noqa: E402
from tilewright.interop.torch import backend  # noqa: E402


@tw.kernel
def scaled_add(x: tw.In["N"], y: tw.In["N"], z: tw.Out["N"], *, block: int = 64, factor: float = 2.0):
    for i in tw.grid(z, block):
        z[i] = x[i] + y[i] * factor


@tw.jit(static_argnames="power")
def moments(x: Any, power: int = 2) -> Any:
    return tw.mean(x, -1), tw.mean(tw.pow(x, power), -1)


SCALED_ADD = tw.torch_op("twtest::scaled_add", scaled_add)
MOMENTS = tw.torch_op("twtest::moments", moments, outputs=2)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[3]


SCALED_ADD.register_autograd(lambda ctx, grad: (grad, grad * ctx.factor, None, None), setup_context=_setup)


def program(x: Any, y: Any) -> Any:
    mean, square = MOMENTS(SCALED_ADD(torch.sin(x), y, factor=3.0).reshape(2, -1), power=2)
    return mean + square


def reference(x: Any, y: Any) -> Any:
    z = (torch.sin(x) + y * 3.0).reshape(2, -1)
    return z.mean(-1) + z.square().mean(-1)


@pytest.mark.parametrize("name", ["eager", "aot_eager", "ours"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_operators_stay_in_the_graph(name: str, dynamic: bool) -> None:
    torch.compiler.reset()
    x, y = torch.randn(10), torch.randn(10)
    chosen = backend if name == "ours" else name
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(y, 0)
        function, wanted = (lambda a, b: SCALED_ADD(a, b) * 2), (x + y * 2) * 2
    else:
        function, wanted = program, reference(x, y)
    run = torch.compile(function, backend=chosen, fullgraph=True)
    with events.capture() as seen:
        torch.testing.assert_close(run(x, y), wanted)
    assert not [record for record in seen if record["kind"] == "torch.fallback"]


def test_gradients_that_are_registered() -> None:
    torch.compiler.reset()
    x, y = torch.randn(10, requires_grad=True), torch.randn(10, requires_grad=True)
    run = torch.compile(lambda a, b: SCALED_ADD(torch.sin(a), b), backend=backend, fullgraph=True)
    found = torch.autograd.grad(run(x, y).square().sum(), (x, y))
    wanted = torch.autograd.grad((torch.sin(x) + y * 2).square().sum(), (x, y))
    torch.testing.assert_close(found, wanted)


def test_torch_finds_nothing_wrong_with_operators() -> None:
    torch.library.opcheck(SCALED_ADD, (torch.randn(7), torch.randn(7)))
    torch.library.opcheck(MOMENTS, (torch.randn(3, 7).mT,))


@tw.kernel
def in_place(x: tw.InOut["N"]):
    for i in tw.grid(x, 64):
        x[i] = x[i] + 1.0


@tw.jit(static_argnames="what")
def untyped(x: Any, what: Any) -> Any:
    return x + what


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("softmax", scaled_add, "no name of an operator"),
        ("twtest::f", lambda x: x, "of a function"),
        ("twtest::f", in_place, "writes to its operand `x`"),
        ("twtest::f", untyped, "`what` has no default"),
    ],
)
def test_what_cannot_be_an_operator(name: str, function: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tw.torch_op(name, function)
