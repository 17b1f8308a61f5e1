"""`tw.from_torch`: exported programs as functions over arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilewright as tw  # noqa: E402
from tests.interop.torch.models import distance  # noqa: E402
from tests.interop.torch.networks import CASES, Perceptron  # noqa: E402
from tilewright.errors import ArgumentError, DTypeError, ShapeError, UnsupportedOperatorError  # noqa: E402

LLAMA = next(case for case in CASES if case.name == "llama")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def exported(module: Any, *args: Any, **dynamic: Any) -> Any:
    return torch.export.export(module.eval(), args, **dynamic)


def test_a_decoder_with_batches_of_any_size() -> None:
    model, ids = LLAMA.small().eval(), LLAMA.inputs(2, False)
    program = exported(model, ids, dynamic_shapes=[{0: torch.export.Dim("batch", min=1, max=9)}])
    run = tw.from_torch(program)
    for batch in (2, 3):
        ids = LLAMA.inputs(batch, False)
        found = run(ids.numpy())
        assert isinstance(found, np.ndarray)
        assert distance(torch.from_numpy(found), model.double()(ids)) < 1e-6
        model.float()
    assert isinstance(run(ids), torch.Tensor)


def test_a_module_inside_a_traced_function() -> None:
    model = Perceptron(6, 8, 3).eval()
    x = torch.randn(4, 6)
    run = tw.from_torch(model, x)

    @tw.jit
    def twice(v: Any) -> Any:
        return tw.nn.softmax(run(v)) * 2

    np.testing.assert_allclose(twice(x.numpy()), 2 * model(x).softmax(-1).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert "tensor<4x6xf32>" in run.lower(tw.ShapeDtype((4, 6), tw.f32)).ir()


class _Structured(nn.Module):
    def forward(self, parts: dict[str, Any], scale: float, *, shift: Any) -> dict[str, Any]:
        return {"sum": parts["a"] + parts["b"] * scale, "rest": (shift - 1, parts["a"].sum())}


def test_structures_and_numbers() -> None:
    a, b = torch.randn(3), torch.randn(3)
    run = tw.from_torch(_Structured(), {"a": a, "b": b}, 2.0, shift=torch.tensor(5))
    found = run({"a": a, "b": b}, 2.0, shift=torch.tensor(5))
    torch.testing.assert_close(found["sum"], a + b * 2)
    torch.testing.assert_close(found["rest"], (torch.tensor(4), a.sum()))
    assert [str(spec) for spec in run.inputs][:2] == ["parts_a: f32[3]", "parts_b: f32[3]"]


def test_arguments_go_by_their_names_in_any_order() -> None:
    class Difference(nn.Module):
        def forward(self, parts: dict[str, Any], scale: Any, *, shift: Any) -> Any:
            return (parts["a"] - 2 * parts["b"]) * scale + shift

    a, b, scale, shift = (torch.randn(3) for _ in range(4))
    model = Difference()
    expected = model({"a": a, "b": b}, scale, shift=shift)
    run = tw.from_torch(model, {"a": a, "b": b}, scale, shift=shift)
    for found in (
        run({"b": b, "a": a}, scale, shift=shift),
        run({"b": b, "a": a}, shift=shift, scale=scale),
        run(shift=shift, scale=scale, parts={"b": b, "a": a}),
        run({"a": a, "b": b}, scale, shift),
        run(a, b, scale, shift),  # the inputs as `.inputs` lists them
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("exported", [2.5, 3, True, "double", None], ids=str)
def test_an_argument_that_is_no_tensor_keeps_the_value_of_the_export(exported: Any) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Any, by: Any) -> Any:
            return x * by if isinstance(by, int | float) else x * 2

    x = torch.randn(3)
    run = tw.from_torch(Scaled(), x, exported)
    torch.testing.assert_close(run(x, exported), Scaled()(x, exported))
    for other in (7, "half", x):
        with pytest.raises(ArgumentError, match=f"'by' is part of the program as {exported!r}, got "):
            run(x, other)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (({"a": 1, "c": 2}, 3), {"shift": 4}, r"missing key\(s\): \{'b'\}"),
        (({"a": 1, "b": 2}, 3), {"shfit": 4}, r"missing key\(s\): \{'shift'\}"),
        (({"a": 1, "b": 2},), {"scale": 3, "shfit": 4}, "parameters of the program are `parts`, `scale`, `shift`"),
        (({"a": 1, "b": 2}, 3), {"scale": 3, "shift": 4}, "the program takes 4 inputs, got 5"),
        (([1, 2], 3), {"shift": 4}, "Node type mismatch"),
    ],
)
def test_arguments_of_another_structure_are_refused(args: Any, kwargs: Any, message: str) -> None:
    class Sum(nn.Module):
        def forward(self, parts: dict[str, Any], scale: Any, *, shift: Any) -> Any:
            return (parts["a"] + parts["b"]) * scale + shift

    x = torch.ones(3)
    run = tw.from_torch(Sum(), {"a": x, "b": x}, x, shift=x)
    given_args, given_kwargs = torch.utils._pytree.tree_map(lambda _: x, (args, kwargs))
    with pytest.raises(ArgumentError, match=message):
        run(*given_args, **given_kwargs)


class _Unsupported(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.lgamma(x) + torch.lgamma(x * 2) + torch.special.i1(x)


def test_all_unsupported_operators_are_named_at_once() -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        tw.from_torch(_Unsupported(), torch.ones(3))
    assert "aten.lgamma.default (2 times)" in str(caught.value)
    assert "aten.special_i1.default (1 times)" in str(caught.value)


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.count += 1
        return x + self.count


def test_a_program_that_writes_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="writes to `count`"):
        tw.from_torch(_Counting(), torch.ones(3))


def test_arguments_that_do_not_fit() -> None:
    run = tw.from_torch(Perceptron(6, 8, 3).eval(), torch.randn(4, 6))
    with pytest.raises(ShapeError, match=r"\(5, 6\)"):
        run(np.zeros((5, 6), np.float32))
    with pytest.raises(DTypeError, match="float64"):
        run(np.zeros((4, 6)))
    with pytest.raises(ArgumentError, match="takes 1 inputs, got 2"):
        run(np.zeros((4, 6), np.float32), 1)


@pytest.mark.parametrize("source", [3, "model.pt2"])
def test_sources_of_another_kind(source: Any) -> None:
    with pytest.raises(ArgumentError, match="from_torch"):
        tw.from_torch(source)


def test_example_arguments_of_other_libraries() -> None:
    with pytest.raises(ArgumentError, match="of type ndarray, not a tensor"):
        tw.from_torch(nn.Linear(3, 3), np.ones((2, 3), np.float32))


def test_ranges_of_sizes_share_programs() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0).eval()
    rows = torch.export.Dim("rows", min=2, max=64)
    program = exported(layer, torch.randn(2, 10, 16), dynamic_shapes=[{1: rows}])
    size = tw.from_torch(program).inputs[0].shape[1]
    run = tw.from_torch(program, dims={size: tw.Dim(2, 64)})
    for count in (10, 9, 12):
        x = torch.randn(2, count, 16)
        with torch.no_grad():
            assert distance(run(x), layer(x)) < 1e-5
    assert [list(program.sizes.values()) for program in run.programs] == [[(9, 12)]]
