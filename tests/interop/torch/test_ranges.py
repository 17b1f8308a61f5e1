"""Graphs with symbolic sizes: one program serves a range of them, and agrees with eager torch at each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from logging.handlers import BufferingHandler
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from tilewright import dtypes, events  # noqa: E402
from tilewright.frontend.sizes.family import NotUniform  # noqa: E402
from tilewright.frontend.sizes.formulas import CallFormula  # noqa: E402
from tilewright.frontend.sizes.plan import CallPlan  # noqa: E402
from tilewright.interop.torch import backend  # noqa: E402
from tilewright.primitives import ArrayType  # noqa: E402

SIZES = (7, 3, 4, 31, 32, 12)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


def ranges_of(run: Callable[[], Any]) -> tuple[list[Any], int]:
    """The ranges of the programs that a function compiles, and how many programs of single sizes."""
    with events.capture() as seen:
        run()
    ranges = [record["ranges"] for record in seen if record["kind"] == "torch.sizes" and not record["why_not"]]
    return ranges, sum(record["kind"] == "torch.specialise" for record in seen)


def check_sizes(function: Callable[..., Any], inputs: Callable[[int], tuple[Any, ...]], dynamic: Any) -> Any:
    """Compare with eager at several sizes; `dynamic` lists axes of inputs. Gives what was compiled."""
    run = torch.compile(function, backend=backend, fullgraph=True)

    def calls() -> None:
        for size in SIZES:
            given = inputs(size)
            for position, axis in dynamic:
                torch._dynamo.mark_dynamic(given[position], axis)
            torch.testing.assert_close(run(*given), function(*given), rtol=1e-4, atol=1e-5)

    return ranges_of(calls)


def _attention(x: Any, w: Any) -> Any:
    q, k, v = (x @ w).chunk(3, -1)
    heads = [t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (q, k, v)]
    return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)


def _normalised(x: Any, w: Any) -> Any:
    return F.layer_norm(x.mT, (x.shape[1],)) @ x + x.mean(1, keepdim=True) + x.std(1, keepdim=True), w.sum()


def _moved(x: Any, w: Any) -> Any:
    parts = torch.cat([x.flip(1), x[:, 1:] * 2, x.roll(1, 1)], 1)
    return parts, parts[:, -1], torch.arange(x.shape[1]) + x.shape[1] * 2, x.cumsum(1), x.sort(1).values[:, 0] + w[0, 0]


@pytest.mark.parametrize("function", [_attention, _normalised, _moved])
def test_a_program_at_each_size_of_its_range(function: Any) -> None:
    w = torch.randn(8, 24)
    assert check_sizes(function, lambda n: (torch.randn(2, n, 8), w), [(0, 1)]) == ([[[2, 32]]], 0)


def test_caches_of_own_symbols_that_grow_by_a_row() -> None:
    def step(keys: Any, values: Any, row: Any) -> Any:
        keys, values = torch.cat([keys, row], 1), torch.cat([values, row * 2], 1)
        return torch.softmax(row @ keys.mT, -1) @ values, keys, values

    def inputs(size: int) -> tuple[Any, ...]:
        return torch.randn(2, size, 4), torch.randn(2, size, 4), torch.randn(2, 1, 4)

    ranges, exact = check_sizes(step, inputs, [(0, 1), (1, 1)])
    assert len(ranges) == 1
    assert exact == 0


def test_numbers_of_sizes_are_results_and_operands() -> None:
    def function(x: Any, y: Any) -> Any:
        return x.shape[0] * 2 + 1, x * x.shape[0] / (y.shape[0] + 1), x.new_ones(x.shape[0] + 2, 3), y.reshape(-1, 1)

    def inputs(size: int) -> tuple[Any, ...]:
        return torch.randn(size), torch.randn(size + 3)

    ranges, exact = check_sizes(function, inputs, [(0, 0), (1, 0)])
    assert ranges
    assert exact == 0


def test_memory_in_another_order_and_written_inputs() -> None:
    def function(x: Any, state: Any) -> Any:
        state.add_(x.sum())
        x.mul_(2)
        return x.mT.contiguous(), x[1:], state

    run = torch.compile(function, backend=backend, fullgraph=True)
    for size in SIZES:
        ours, theirs = (torch.arange(size * 3.0).reshape(3, size).mT for _ in range(2))
        states = [torch.zeros(3), torch.zeros(3)]
        torch._dynamo.mark_dynamic(ours, 0)
        found, expected = run(ours, states[0]), function(theirs, states[1])
        torch.testing.assert_close((found, ours, states[0]), (expected, theirs, states[1]))
        assert [t.stride() for t in found] == [t.stride() for t in expected]


def test_gradients_of_many_sizes_share_programs() -> None:
    def loss(x: Any, w: Any) -> Any:
        return torch.log_softmax(torch.tanh(x @ w), 0).square().mean()

    run = torch.compile(loss, backend=backend, fullgraph=True)

    def calls() -> None:
        for size in SIZES:
            x, w = torch.randn(size, 3), torch.randn(3, 4, requires_grad=True)
            torch._dynamo.mark_dynamic(x, 0)
            found, wanted = (torch.autograd.grad(f(x, w), w)[0] for f in (run, loss))
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)

    ranges, exact = ranges_of(calls)
    assert len(ranges) == 2
    assert exact == 0


def test_sizes_that_no_program_serves_are_compiled_alone() -> None:
    def halves(x: Any) -> Any:
        return x.reshape(x.shape[0] // 2, 6).sum(1)

    def calls() -> None:
        run = torch.compile(halves, backend=backend, dynamic=True, fullgraph=True)
        for size in (4, 8, 6):
            x = torch.randn(size, 3)
            torch.testing.assert_close(run(x), halves(x))

    ranges, exact = ranges_of(calls)
    assert exact == 3 or ranges


def test_a_number_without_bounds_is_an_argument() -> None:
    def shifted(x: Any, position: int) -> Any:
        return (torch.arange(x.shape[0]) + position) * x

    run = torch.compile(shifted, backend=backend, dynamic=True, fullgraph=True)
    x = torch.randn(1)
    for position in (-2, 4):
        torch.testing.assert_close(run(x, position), shifted(x, position))


def test_guards_that_leave_few_sizes_compile_each_alone() -> None:
    def few(x: Any, y: Any) -> Any:
        assert x.shape[0] <= 4
        assert y.shape[0] <= 4
        return x.sum() * y.cumsum(0) + x.shape[0]

    run = torch.compile(few, backend=backend, dynamic=True, fullgraph=True)

    def calls() -> None:
        for sizes in ((2, 3), (3, 4), (4, 2), (3, 3)):
            given = [torch.randn(n) for n in sizes]
            torch.testing.assert_close(run(*given), few(*given))

    assert ranges_of(calls) == ([], 4)


def test_sizes_that_torch_refuses_are_tried_in_silence() -> None:
    """A bucket's largest sizes need not be ones that anyone may call."""
    table = torch.randn(8)

    def looked_up(x: Any) -> Any:
        return table[: x.shape[0]] * x

    logger, handler = logging.getLogger("torch._subclasses.fake_tensor"), BufferingHandler(100)
    logger.addHandler(handler)
    try:
        run = torch.compile(looked_up, backend=backend, dynamic=True, fullgraph=True)
        for size in (3, 5):
            x = torch.randn(size)
            torch.testing.assert_close(run(x), looked_up(x))
    finally:
        logger.removeHandler(handler)
    assert not handler.buffer


def test_a_part_that_torch_runs_between_programs() -> None:
    def function(x: Any, w: Any) -> Any:
        return torch.lgamma(torch.exp(x).sum(2)).reshape(-1, x.shape[1] * 2).mean(1) + w.sum()

    ranges, exact = check_sizes(function, lambda n: (torch.randn(4, n, 8), torch.randn(2)), [(0, 1)])
    assert len(ranges) == 1
    assert exact == 0


# ---- formulas -------------------------------------------------------------------------------------------------------


def _plan(n: int, m: int, number: float = 1.0) -> CallPlan:
    extra = (np.array(n * m + 3), np.array(number, np.float32), np.array(7))
    types = (ArrayType((999, 4), dtypes.f32), ArrayType((), dtypes.f32))
    return CallPlan(extra, ((n, 4), None), types, (((slice(n + 1),), (9,), (n + 1,)), None))


def test_formulas_are_exact() -> None:
    points = [(2, 5), (3, 9), (7, 4), (8, 11), (12, 6), (13, 2), (17, 30), (5, 21)]
    formula = CallFormula([_plan(n, m, 1 / (n + m)) for n, m in points], points)
    found, wanted = formula.at((100, 50)), _plan(100, 50, 1 / 150)
    assert [a.tolist() for a in found.extra] == [a.tolist() for a in wanted.extra]
    assert (found.inputs, found.outputs) == (wanted.inputs, wanted.outputs)


def test_what_is_no_polynomial_has_no_formula() -> None:
    points = [(n, 1) for n in (2, 3, 5, 8, 13, 14)]
    with pytest.raises(NotUniform, match="no polynomial"):
        CallFormula([_plan(n // 2, m) for n, m in points], points)
    with pytest.raises(NotUniform, match="no known function"):
        CallFormula([_plan(n, m, float(np.sin(n))) for n, m in points], points)
