"""Overloads of the core of ATen that no compiled graph of torch's OpInfo samples holds, called by name, against eager
torch: torch takes some apart before a backend sees them, and prefers other overloads to others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.interop.torch.samples import operators  # noqa: E402
from tilewright.interop.torch import BackendOptions  # noqa: E402
from tilewright.interop.torch.dynamo import build_plan  # noqa: E402

_ATEN = torch.ops.aten


def _called(overload: Any, tensors: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
    """The results of a graph of one node, whose every part must be compiled."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"x{n}") for n in range(len(tensors))]
    for node, tensor in zip(inputs, tensors, strict=True):
        node.meta["val"] = tensor
    node = graph.call_function(overload, (*inputs, *args), kwargs)
    node.meta["val"] = overload(*tensors, *args, **kwargs)
    graph.output([node])
    plan = build_plan(torch.fx.GraphModule(torch.nn.Module(), graph), options=BackendOptions(fallback="error"))
    return plan([*tensors])


def _check(overload: Any, tensors: list[Any], *args: Any, **kwargs: Any) -> None:
    (found,) = _called(overload, tensors, *args, **kwargs)
    torch.testing.assert_close(found, overload(*tensors, *args, **kwargs), equal_nan=True)


def _samples(name: str, kind: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    yield from operators()[name].sample_inputs("cpu", kind)


def test_average_pooling_of_lines() -> None:
    samples = [*_samples("nn.functional.avg_pool1d", torch.float32)]
    assert len(samples) > 4
    for sample in samples:
        _check(_ATEN.avg_pool1d.default, [sample.input], *sample.args, **sample.kwargs)


def test_variance_over_axes() -> None:
    samples = [s for s in _samples("var", torch.float32) if not s.kwargs and s.args]
    calls = [(s.input, s.args) for s in samples if isinstance(s.args[0], (tuple, list)) or len(s.args) > 1]
    x = torch.randn(3, 5, 7)
    calls += [(x, (dims, unbiased, keep)) for dims in ([0], [1, -1], None) for unbiased in (0, 1) for keep in (0, 1)]
    for x, args in calls:
        _check(_ATEN.var.dim, [x], *map(_as_argument, args, (list, bool, bool)))


def _as_argument(value: Any, kind: type) -> Any:
    return value if value is None else [value] if kind is list and isinstance(value, int) else kind(value)


@pytest.mark.parametrize("name", ["bitwise_or", "bitwise_xor", "bitwise_and"])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_bits(name: str, kind: Any) -> None:
    packet = getattr(_ATEN, name)
    for sample in itertools.islice(_samples(name, kind), 6):
        other = sample.args[0]
        if isinstance(other, torch.Tensor):
            _check(packet.Tensor, [sample.input, other])
        else:
            _check(packet.Scalar, [sample.input], other)
    x = torch.arange(24).reshape(4, 6).to(kind)
    for number in (0, 1) if kind == torch.bool else (0, 1, 5, 127):
        _check(packet.Scalar, [x], bool(number) if kind == torch.bool else number)


@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
@pytest.mark.parametrize("divisor", [2.5, -0.3, 3, float("inf")])
def test_division_by_a_number(mode: str | None, divisor: float) -> None:
    samples = [s.input for s in itertools.islice(_samples("div.no_rounding_mode", torch.float32), 4)]
    for x in [*samples, torch.tensor([-7.5, -0.0, 0.0, 2.5, 7.4, float("inf"), float("nan")])]:
        _check(_ATEN.div.Scalar_mode, [x], divisor, rounding_mode=mode)


def test_memory_with_strides() -> None:
    (found,) = _called(_ATEN.empty_strided.default, [], (3, 4), (1, 3), dtype=torch.float32)
    assert found.shape == (3, 4)
    assert found.dtype == torch.float32
    assert found.stride() == (1, 3)


def test_distances_strides_and_decimals() -> None:
    torch.manual_seed(0)
    for order in (1.0, 2.0, float("inf")):
        _check(_ATEN._pdist_forward.default, [torch.randn(5, 4)], order)
    _check(_ATEN.as_strided.default, [torch.randn(24)], [3, 4], [2, 1], 1)
    for decimals in (2, 0, -1):
        _check(_ATEN.round.decimals, [torch.randn(5, 4) * 30], decimals=decimals)
