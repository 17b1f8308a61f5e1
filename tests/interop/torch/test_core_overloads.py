"""Overloads of the core of ATen that no compiled graph of torch's OpInfo samples holds, called by name, against eager
torch: torch takes some apart before a backend sees them, and prefers other overloads to others."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tests.interop.torch.samples import operators  # noqa: E402
from tests.sampling import alternating  # noqa: E402
from tilewright.errors import UnsupportedOperatorError  # noqa: E402
from tilewright.interop.torch import BackendOptions, backend  # noqa: E402
from tilewright.interop.torch.dynamo import build_plan, decompositions  # noqa: E402
from tilewright.interop.torch.registry import IN_TORCH, find_rule  # noqa: E402

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


@pytest.mark.parametrize(
    ("name", "kind"),
    alternating(("bitwise_or", "bitwise_xor", "bitwise_and"), (torch.int64, torch.int32, torch.uint8, torch.bool)),
    ids=str,
)
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


@pytest.mark.parametrize(("mode", "divisor"), alternating((None, "trunc", "floor"), (2.5, -0.3, 3, float("inf"))))
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


# ---- all of the core ------------------------------------------------------------------------------------------------


def _core() -> list[Any]:
    packets = [getattr(_ATEN, name) for name in dir(_ATEN)]
    overloads = [getattr(p, name) for p in packets if hasattr(p, "overloads") for name in p.overloads()]
    return [overload for overload in overloads if torch.Tag.core in overload.tags]


def test_each_overload_has_a_rule_or_a_reason_to_run_in_torch() -> None:
    complex_numbers = {"aten._fft_c2r.default", "aten._fft_r2c.default"}
    core = _core()
    assert len(core) > 180
    missing = {
        str(overload)
        for overload in core
        if find_rule(overload) is None and overload not in decompositions() and str(overload) not in IN_TORCH
    }
    assert missing <= complex_numbers


def _in_torch(overload: Any, tensors: list[Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The results of an overload that runs between two compiled subgraphs, and those of eager torch."""

    def function(*given: Any) -> Any:
        first, *rest = [t * 2 if t.is_floating_point() else t + 0 for t in given]
        result = overload(first, *rest, *args, **kwargs)
        tensor = result[0] if isinstance(result, tuple) else result
        return tensor * 3 if isinstance(tensor, torch.Tensor) else first * tensor

    torch.compiler.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        found = torch.compile(function, backend=backend)(*tensors)
    return found, function(*tensors)


@pytest.mark.parametrize(
    ("name", "tensors", "args"),
    [
        ("nonzero.default", [torch.tensor([0.0, 1.0, 2.0, 0.0])], ()),
        ("_local_scalar_dense.default", [torch.tensor(3.0)], ()),
        (
            "_embedding_bag.default",
            [torch.arange(12.0).reshape(4, 3), torch.tensor([1, 2, 0, 3]), torch.tensor([0, 2])],
            (),
        ),
        ("atan2.out", [torch.randn(3), torch.randn(3)], ()),
        ("resize_.default", [torch.arange(6.0)], ((2, 3),)),
        ("sym_numel.default", [torch.arange(6.0)], ()),
        ("sym_size.int", [torch.ones(2, 3)], (1,)),
        ("sym_stride.int", [torch.ones(2, 3)], (0,)),
        ("sym_storage_offset.default", [torch.ones(2, 3)], ()),
    ],
)
def test_overloads_that_run_in_torch(name: str, tensors: list[Any], args: tuple[Any, ...]) -> None:
    overload = operator.attrgetter(name)(_ATEN)
    kwargs = {"out": torch.empty(3)} if name.endswith(".out") else {}
    found, wanted = _in_torch(overload, tensors, *args, **kwargs)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["rand", "randn", "randperm"])
def test_random_overloads_draw_what_torch_draws(name: str) -> None:
    run = torch.compile(lambda x: getattr(torch, name)(5) + x, backend=backend)
    torch.manual_seed(3)
    found = run(torch.zeros(5))
    torch.manual_seed(3)
    torch.testing.assert_close(found, getattr(torch, name)(5) + torch.zeros(5))


class _DependsOnData(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return (
            torch.nonzero(x * 2) * 3,
            x.sin() + x.max().item(),
            torch.nn.functional.embedding_bag(torch.tensor([[0, 1]]), x.reshape(2, 2)),
        )


def test_exported_programs_run_parts_in_torch() -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 0.5])
    program = torch.export.export(_DependsOnData(), (x,))
    with pytest.raises(UnsupportedOperatorError, match="as many results as there are in the data"):
        tw.from_torch(program)
    run = tw.from_torch(program, fallback="torch")
    for given in (x, torch.tensor([1.0, 0.0, 0.0, -3.0])):
        torch.testing.assert_close(run(given), _DependsOnData()(given))
        found = run(given.numpy())
        assert isinstance(found[0], np.ndarray)
        np.testing.assert_array_equal(found[0], _DependsOnData()(given)[0].numpy())
