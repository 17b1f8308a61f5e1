"""The backend of `torch.compile`: fallbacks, sizes that change, mutation, views, types and options."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.interop.torch.networks import Perceptron  # noqa: E402
from tilewright import events  # noqa: E402
from tilewright.errors import OptionError, UnsupportedOperatorError  # noqa: E402
from tilewright.interop.torch import backend  # noqa: E402
from tilewright.interop.torch.tensors import numpy_reader  # noqa: E402

Fallbacks = dict[str, int]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, fullgraph=True, **options)


def fallbacks_of(run: Callable[[], Any]) -> list[Fallbacks]:
    """What ran in torch, per graph."""
    with events.capture() as seen:
        run()
    return [record["operators"] for record in seen if record["kind"] == "torch.fallback"]  # pyright: ignore[reportReturnType]


def check(function: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Compiled alone, without fallbacks, and equal to eager."""
    expected = function(*args)
    found: list[Any] = []
    run = compiled(function, **options)
    assert fallbacks_of(lambda: found.append(run(*args))) == []
    torch.testing.assert_close(found[0], expected)


# ---- what runs in torch ---------------------------------------------------------------------------------------------


def _with_gammas(x: Any) -> Any:
    y = torch.sin(x) * 2
    return torch.cos(torch.lgamma(y @ y.T + 5)) + torch.lgamma(y) + y


def test_operators_without_rule_run_in_torch_and_are_listed() -> None:
    x = torch.randn(4, 4)
    run = compiled(_with_gammas)
    (fallback,) = fallbacks_of(lambda: torch.testing.assert_close(run(x), _with_gammas(x)))
    assert fallback == {"aten.lgamma.default": 2}


def test_fallbacks_are_errors_where_the_option_says_so() -> None:
    run = compiled(_with_gammas, options={"fallback": "error"})
    with pytest.raises(Exception, match=r"aten\.lgamma\.default \(2 times\): no rule") as caught:
        run(torch.randn(4, 4))
    assert isinstance(caught.value.__cause__ or caught.value.inner_exception, UnsupportedOperatorError)


@pytest.mark.parametrize("options", [{"fall": 1}, {"fallback": "never"}])
def test_unknown_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="fall") as caught:
        compiled(torch.sin, options=options)(torch.ones(2))
    assert isinstance(caught.value.inner_exception, OptionError)


def test_random_numbers_are_those_of_torch() -> None:
    def noisy(x: Any) -> Any:
        first = torch.sin(x) + torch.rand_like(x)
        return torch.cos(first) * torch.randn_like(x), F.dropout(first, 0.5)

    x = torch.randn(64)
    run = compiled(noisy)
    torch.manual_seed(3)
    found = run(x)
    torch.manual_seed(3)
    again = run(x)
    torch.testing.assert_close(found, again, rtol=0, atol=0)
    torch.manual_seed(3)
    torch.testing.assert_close(found[0], noisy(x)[0])


def test_a_mask_that_selects_runs_in_torch() -> None:
    def selected(x: Any) -> Any:
        return (x[x > 0] * 2).sum() + x.sum()

    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        x = torch.randn(20)
        torch.testing.assert_close(compiled(selected)(x), selected(x))
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False


def test_half_complex_numbers_and_sparse_tensors_stay_in_torch() -> None:
    def scaled(x: Any) -> Any:
        return torch.view_as_real(torch.view_as_complex(x.half()) * 2).float() + torch.sin(x)

    x = torch.randn(4, 2)
    torch.testing.assert_close(compiled(scaled)(x), scaled(x))


# ---- sizes ----------------------------------------------------------------------------------------------------------


def test_one_program_serves_dynamic_sizes() -> None:
    model = Perceptron(6, 8, 3)
    run = compiled(model)
    with events.capture() as seen:
        for batch in (5, 7, 5, 9, 7):
            x = torch.randn(batch, 6)
            torch._dynamo.mark_dynamic(x, 0)
            with torch.no_grad():
                torch.testing.assert_close(run(x), model(x))
    assert [r["ranges"] for r in seen if r["kind"] == "torch.sizes"] == [[[2, 32]]]
    assert not [r for r in seen if r["kind"] == "torch.specialise"]


def test_gradients_of_dynamic_sizes() -> None:
    def loss(x: Any, w: Any) -> Any:
        return (torch.tanh(x @ w).reshape(x.shape[0] * 2, -1).mean(0) * x.shape[0]).sum()

    run = compiled(loss, dynamic=True)
    for batch in (4, 6):
        x, w = torch.randn(batch, 3), torch.randn(3, 4, requires_grad=True)
        (found,) = torch.autograd.grad(run(x, w), w)
        (wanted,) = torch.autograd.grad(loss(x, w), w)
        torch.testing.assert_close(found, wanted)


def test_empty_and_scalar_tensors() -> None:
    check(lambda x: (torch.exp(x) + 1).sum(), torch.zeros(0, 3))
    check(lambda x: torch.cat([x, x]).relu(), torch.zeros(0, 3))
    check(lambda x: x * 2 + x.sum(), torch.tensor(3.0))
    check(lambda x, n: x * n + n, torch.randn(3), 2.5)


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_inputs_in_any_memory_order() -> None:
    x = torch.randn(4, 6, 8)
    for view in (x.permute(2, 0, 1), x[:, ::2], x[1:, :, 3:], x.expand(3, 4, 6, 8)[1], x.flip(0).mT):
        check(lambda v: torch.sin(v) + v.sum(0), view)


def test_results_have_the_strides_of_eager() -> None:
    def turned(x: Any) -> Any:
        return (torch.sin(x) + 1).permute(2, 0, 1), x.mT * 2

    x = torch.randn(2, 3, 4)
    for found, wanted in zip(compiled(turned)(x), turned(x), strict=True):
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


def test_channels_last_images() -> None:
    conv = torch.nn.Conv2d(3, 4, 3)
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        check(lambda v: F.relu(conv(v)), x)


def test_results_that_are_views_share_memory() -> None:
    def views(x: Any) -> Any:
        return x[1:], x.view(-1), torch.sin(x)

    x = torch.randn(3, 4)
    part, flat, _ = compiled(views)(x)
    x[1, 0] = 42.0
    assert part[0, 0] == 42.0
    assert flat[4] == 42.0


def _overlapping(x: Any) -> Any:
    y = x | x
    return y[:, ::2], y.t()


def _in_pieces(x: Any) -> Any:
    first, second = torch.cat([x, ~x]).split(2)[:2]
    return first, first[0], second


def _of_a_view(x: Any) -> Any:
    y = (~x).t()
    return y[1], y[..., None]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_overlapping, _in_pieces, _of_a_view])
def test_views_of_one_new_tensor_share_memory(function: Any, dynamic: bool) -> None:
    x = torch.tensor([[True, False, True], [False, False, True]])
    found, expected = compiled(function, dynamic=dynamic)(x), function(x)
    for results in (found, expected):
        results[0].logical_not_()
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_results_do_not_share_memory_with_operands() -> None:
    x = torch.randn(3)
    y = compiled(lambda v: v.clone())(x)
    y[0] = 7.0
    assert x[0] != 7.0


def test_inputs_that_are_written() -> None:
    def write(cache: Any, at: Any, x: Any) -> Any:
        cache.index_copy_(1, at, x)
        cache[:, 0].add_(1)
        return cache.sum(1)

    caches = [torch.zeros(2, 5, 3) for _ in range(2)]
    at, x = torch.tensor([2]), torch.randn(2, 1, 3)
    run = compiled(write)
    for _ in range(2):
        torch.testing.assert_close(run(caches[0], at, x), write(caches[1], at, x))
    torch.testing.assert_close(caches[0], caches[1])


def test_a_cache_is_written_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(cache: Any, at: Any, x: Any) -> Any:
        cache.index_copy_(1, at, x)
        return cache.sum(1)

    cache, at, x = torch.zeros(2, 5, 3), torch.tensor([2]), torch.randn(2, 1, 3)
    run = compiled(write)
    run(cache, at, x)
    copied: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *args: copied.append(args))
    torch.testing.assert_close(run(cache, at, 2 * x), 2 * x.sum(1))
    torch.testing.assert_close(cache[:, 2:3], 2 * x)
    assert not copied


def test_results_are_not_the_memory_of_a_written_input() -> None:
    def write(state: Any) -> Any:
        fresh = torch.sin(state) + 1
        state.copy_(fresh)
        return fresh, state[1:] * 1

    state = torch.randn(3, 4)
    wanted = torch.sin(state) + 1
    fresh, part = compiled(write)(state)
    torch.testing.assert_close((fresh, part, state), (wanted, wanted[1:], wanted))
    state.zero_()
    torch.testing.assert_close((fresh, part), (wanted, wanted[1:]))


# ---- types ----------------------------------------------------------------------------------------------------------


def test_types_promote_as_in_torch() -> None:
    def mixed(i: Any, b: Any, h: Any, f: Any) -> Any:
        return (
            i * 2.5,
            i / 2,
            i // 3,
            i.sum(),
            b.sum(),
            h + f,
            h * 3,
            b * 2,
            i + b,
            f > i,
            f.argmax(),
            h.sum(),
            ~b,
            -i,
        )

    i = torch.arange(-3, 4, dtype=torch.int32)
    b, h, f = i > 0, i.to(torch.bfloat16) / 3, torch.randn(7)
    run = compiled(mixed)
    for found, wanted in zip(run(i, b, h, f), mixed(i, b, h, f), strict=True):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int8, torch.bool])
def test_element_types(dtype: Any) -> None:
    x = torch.tensor([[0, 1, 2], [3, 0, 5]]).to(dtype)
    check(lambda v: (torch.where(v != 0, v, v), v.mT, v.max(), v.to(torch.float32) * 1.5), x)


def test_autocast() -> None:
    model = Perceptron(6, 8, 3)
    x = torch.randn(4, 6)

    def run(v: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(v)

    found, wanted = compiled(run)(x), run(x)
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "norm", [lambda: nn.GroupNorm(2, 8), lambda: nn.BatchNorm2d(8), lambda: nn.InstanceNorm2d(8, affine=True)]
)
def test_autocast_trains_normalisations_of_narrow_floats_by_wide_weights(dtype: Any, norm: Any) -> None:
    # The kernels of torch keep statistics in the type of the weights, its graphs state that of the operand.
    model = nn.Sequential(nn.Conv2d(4, 8, 3), norm(), nn.ReLU(), nn.Conv2d(8, 3, 1))
    _trains_under_autocast(model, torch.randn(2, 4, 6, 6), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_trains_layer_norm(dtype: Any) -> None:
    _trains_under_autocast(nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 2)), torch.randn(4, 6), dtype)


def _trains_under_autocast(model: Any, x: Any, dtype: Any) -> None:
    def gradients(run: Any) -> list[Any]:
        model.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            y = run(x)
        y.float().square().sum().backward()
        # What shifts the operand of a normalisation has no gradient but noise.
        return [y.detach().float(), *(p.grad for name, p in model.named_parameters() if name != "0.bias")]

    wanted = gradients(model)
    with events.capture() as seen:
        found = gradients(compiled(model))
    assert not [record for record in seen if record["kind"] == "torch.fallback"]
    for a, b in zip(found, wanted, strict=True):
        assert float((a - b).abs().max()) < 2e-2 * float(b.abs().max())


def test_a_tensor_of_another_type_than_stated_is_converted() -> None:
    x = torch.tensor([1.5, -2.0, 1 / 3])
    for stated in (torch.bfloat16, torch.float16, torch.float64):
        found = numpy_reader(stated)(x)
        assert found.shape == (3,)
        np.testing.assert_array_equal(found.astype(np.float32), x.to(stated).float().numpy())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_without_gradients(mode: Any) -> None:
    model = Perceptron(6, 8, 3)
    x = torch.randn(4, 6)
    with mode():
        found = compiled(model)(x)
        torch.testing.assert_close(found, model(x))
        assert not found.requires_grad


# ---- programs -------------------------------------------------------------------------------------------------------


def test_two_threads_call_one_function() -> None:
    function = torch.compile(lambda x: torch.sin(x) @ x.T, backend=backend)
    inputs = [torch.randn(16, 16) for _ in range(8)]
    wanted = [torch.sin(x) @ x.T for x in inputs]
    function(inputs[0])
    found: list[Any] = [None] * len(inputs)

    def work(first: int) -> None:
        for n in range(first, len(inputs), 2):
            for _ in range(20):
                found[n] = function(inputs[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(found, wanted)


def test_the_step_of_an_optimiser_is_compiled() -> None:
    models = [Perceptron(6, 8, 3)]
    models.append(copy.deepcopy(models[0]))
    optimisers = [torch.optim.AdamW(m.parameters(), lr=0.01, foreach=True) for m in models]
    steps = [torch.compile(optimisers[0].step, backend=backend), optimisers[1].step]
    for _ in range(3):
        x = torch.randn(4, 6)
        for model, optimiser, step in zip(models, optimisers, steps, strict=True):
            optimiser.zero_grad()
            model(x).square().sum().backward()
            step()
    for found, wanted in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_step_of_one_parameter_after_the_other_runs_nothing_in_torch() -> None:
    parameters = [torch.nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2)]
    optimisers = [torch.optim.Adam([p], lr=0.01, foreach=False) for p in parameters]
    for parameter in parameters:
        parameter.grad = torch.linspace(2, -3, 7)
    compiled_step = torch.compile(optimisers[0].step, backend=backend)
    assert fallbacks_of(compiled_step) == []
    optimisers[1].step()
    torch.testing.assert_close(*parameters, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_shifts_by_operators_are_compiled(dtype: Any) -> None:
    def shifted(x: Any, by: Any) -> Any:
        return x << 1, x >> 2, x >> by, x << by, x.clone().__irshift__(1)

    x, by = torch.tensor([0, 1, 5, 100, -100]).to(dtype), torch.tensor([0, 1, 2, 3, 1]).to(dtype)
    check(shifted, x, by)


def test_results_do_not_change_from_call_to_call() -> None:
    model = Perceptron(20, 32, 5)
    x = torch.randn(50, 20)
    run = compiled(model)
    first = run(x)
    assert all(torch.equal(first, run(x)) for _ in range(5))


def test_graph_breaks_are_tolerated() -> None:
    def broken(x: Any) -> Any:
        y = torch.sin(x)
        torch._dynamo.graph_break()
        return y * 2

    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(broken, backend=backend)(x), broken(x))


def test_importing_us_does_not_import_torch() -> None:
    code = "import sys, tilewright; tilewright.from_torch; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 50])
@pytest.mark.parametrize("dtype", ["int64", "int8", "float32"])
def test_numbers_between_two_ends(dtype: str, steps: int) -> None:
    # Ends of integers are cut off before the numbers between them are found.
    kind = getattr(torch, dtype)
    check(
        lambda x: torch.linspace(4.3, -3, steps, dtype=kind) + x,
        torch.ones(1, dtype=kind),
        options={"target": "interp"},
    )
