"""Calls of exported programs that are like the latest one: served without its checks, in the kind of the arguments."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import events  # noqa: E402
from tilewright.errors import TilewrightError  # noqa: E402
from tilewright.interop.torch.model import TorchModel  # noqa: E402

_A = torch.arange(6, dtype=torch.float32).reshape(3, 2)
_B = torch.tensor([[1.0, 3], [5, 7], [11, 13]])


class _Own(torch.Tensor):
    """A class of tensors that torch does not know."""


class _Difference(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return a - b


class _Several(nn.Module):
    def forward(self, a: Any, *, b: Any) -> Any:
        return a - b, b, a * b


class _Single(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return (a - b,)


class _Dict(nn.Module):
    def forward(self, parts: Any) -> Any:
        return {"d": parts["a"] - parts["b"], "n": None}


def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a call that is checked fails."""

    def refused(*_: object) -> Any:
        raise AssertionError("the arguments were checked")

    monkeypatch.setattr(TorchModel, "_leaves", refused)


def _equal(found: Any, expected: Any) -> bool:
    return type(found) is torch.Tensor and found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.bfloat16, torch.float16])
def test_tensors_in_the_types_of_the_program(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    a, b = _A.to(dtype), _B.to(dtype)
    model = tw.from_torch(_Difference(), a, b)
    for _ in range(3):
        assert _equal(model(a, b), a - b)
    with pytest.raises(TilewrightError, match=r"is of torch\.int16"):
        model(a, b.to(torch.int16))  # of as many bits as the narrow floats
    assert _equal(model(a.T.contiguous().T, b), a - b)
    assert _equal(model(a, b), a - b)
    _unchecked(monkeypatch)
    assert _equal(model(a + 1, b), a + 1 - b)
    assert _equal(model(b=b, a=a), a - b)
    assert _equal(model(a, b=b), a - b)


def test_keywords_keep_apart_what_was_the_same_tensor() -> None:
    model = tw.from_torch(_Difference(), _A, _B)
    for _ in range(2):
        assert _equal(model(b=_A, a=_A), _A - _A)
    assert _equal(model(b=_B, a=_A), _A - _B)
    assert _equal(model(a=_A, b=_B), _A - _B)
    exported = tw.from_torch(_Difference(), b=_B, a=_A)
    for _ in range(3):
        assert _equal(exported(a=_A, b=_B), _A - _B)
        assert _equal(exported(b=_B, a=_A), _A - _B)


def test_results_have_the_structure_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    several, single = tw.from_torch(_Several(), _A, b=_B), tw.from_torch(_Single(), _A, _B)
    nested = tw.from_torch(_Dict(), {"a": _A, "b": _B})
    for settled in (False, False, True):
        found = nested({"b": _B, "a": _A})
        assert list(found) == ["d", "n"]
        assert _equal(found["d"], _A - _B)
        assert found["n"] is None
        if settled:
            _unchecked(monkeypatch)
        for results in (several(_A, b=_B), several(b=_B, a=_A)):
            assert type(results) is tuple
            assert all(map(_equal, results, (_A - _B, _B, _A * _B)))
        (result,) = single(_A, _B)
        assert _equal(result, _A - _B)


def test_parameters_are_part_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, x = nn.Linear(8, 5).eval(), torch.randn(1, 8)
    model = tw.from_torch(linear, x)
    for _ in range(2):
        model(x)
    _unchecked(monkeypatch)
    for scale in (1, -2):
        assert torch.allclose(model(x * scale), linear(x * scale), atol=1e-5)
        assert torch.allclose(torch.from_numpy(model((x * scale).numpy())), linear(x * scale), atol=1e-5)


def test_kinds_of_arrays_alternate() -> None:
    model = tw.from_torch(_Difference(), _A, _B)
    x, y = _A.numpy(), _B.numpy()
    parameter = nn.Parameter(_A, requires_grad=False)
    for _ in range(3):
        given = ((_A, _B), (x, y), (_A, y), (x, _B), (parameter, _B), (_B, parameter), (_A, _B))
        kinds = [type(model(*arrays)) for arrays in given]
        assert kinds == [torch.Tensor, np.ndarray, torch.Tensor, np.ndarray, torch.Tensor, torch.Tensor, torch.Tensor]
        np.testing.assert_array_equal(model(x, _B), x - y)
        assert _equal(model(parameter, _B), _A - _B)
        assert _equal(model(_B, parameter), _B - _A)
        assert type(model(_A.as_subclass(_Own), _B.as_subclass(_Own))) is np.ndarray


def test_shapes_and_orders_in_memory_alternate() -> None:
    rows = torch.export.Dim("rows", min=1, max=9)
    program = torch.export.export(_Difference(), (_A, _B), dynamic_shapes=[{0: rows}, {0: rows}])
    model = tw.from_torch(program)
    for _ in range(3):
        for n in (2, 3, 3, 2):
            assert _equal(model(_A[:n], _B[:n]), _A[:n] - _B[:n])
        turned = _A.T.contiguous().T
        assert _equal(model(turned, _B), _A - _B)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((_A,), {}),
        ((_A, _B, _B), {}),
        ((_A,), {"a": _B}),
        ((_A, _B), {"b": _B}),
        ((_A,), {"c": _B}),
        ((_A, _B.double()), {}),
        ((_A, _B.T), {}),
        ((_A, None), {}),
        ((_A, _B.clone().requires_grad_()), {}),
        ((_A, nn.Parameter(_B)), {}),
        ((_A, torch.ones(3, 2, device="meta")), {}),
        ((_A, torch.ones(3, 2).to_sparse()), {}),
        ((_A, torch._neg_view(_B)), {}),
    ],
)
@pytest.mark.parametrize("records", [True, False])
def test_errors_are_those_of_a_first_call(args: Any, kwargs: Any, records: bool) -> None:
    with torch.set_grad_enabled(records):
        with pytest.raises(TilewrightError) as expected:
            tw.from_torch(_Difference(), _A, _B)(*args, **kwargs)
        model = tw.from_torch(_Difference(), _A, _B)
        for _ in range(2):
            model(_A, _B)
        with pytest.raises(TilewrightError) as found:
            model(*args, **kwargs)
        assert (type(found.value), found.value.message) == (type(expected.value), expected.value.message)
        assert found.value.help == expected.value.help
        assert _equal(model(_A, _B), _A - _B)


def test_a_number_that_is_part_of_the_program_is_checked() -> None:
    class Scaled(nn.Module):
        def forward(self, a: Any, scale: float) -> Any:
            return a * scale

    model = tw.from_torch(Scaled(), _A, 3.0)
    for _ in range(3):
        assert _equal(model(_A, 3.0), _A * 3)
        with pytest.raises(TilewrightError, match="part of the program"):
            model(_A, 2.0)
        with pytest.raises(TilewrightError):
            model(_A)


def test_options_captures_and_traces() -> None:
    model = tw.from_torch(_Difference(), _A, _B)
    for _ in range(2):
        model(_A, _B)
    with tw.options(target="interp"):
        assert _equal(model(_A, _B), _A - _B)
    with tw.options(target="null"), pytest.raises(TilewrightError):
        model(_A, _B)
    with events.capture() as seen:
        for _ in range(3):
            assert _equal(model(_A, _B), _A - _B)
    assert [record["kind"] for record in seen].count("runtime.launch") == 3
    x, y = _A.numpy(), _B.numpy()

    @tw.jit
    def outer(v: Any) -> Any:
        fixed = model(x, y)
        assert isinstance(fixed, tw.Array)
        return model(v, y) * fixed

    np.testing.assert_array_equal(outer(x), (x - y) * (x - y))


def test_checks_that_the_program_makes_stay() -> None:
    class Checked(nn.Module):
        def forward(self, a: Any) -> Any:
            return torch.linalg.inv(a)

    good, singular = torch.eye(2) * 2, torch.zeros(2, 2)
    model = tw.from_torch(Checked(), good)
    for _ in range(3):
        assert torch.allclose(model(good), good / 4)
        with pytest.raises(TilewrightError):
            model(singular)


def test_threads_call_with_other_shapes() -> None:
    rows = torch.export.Dim("rows", min=1, max=9)
    program = torch.export.export(_Difference(), (_A, _B), dynamic_shapes=[{0: rows}, {0: rows}])
    model = tw.from_torch(program)
    wrong: list[int] = []
    barrier = threading.Barrier(3)

    def work(n: int) -> None:
        a, b = torch.cat([_A, _A])[:n] + n, torch.cat([_B, _B])[:n]
        x, y = a.numpy(), b.numpy()
        barrier.wait()
        for _ in range(300):
            if not _equal(model(a, b), a - b) or not np.array_equal(model(b=y, a=x), x - y):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not barrier.broken
