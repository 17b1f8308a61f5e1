"""Operators that take graphs: control flow, FlexAttention and called graphs, with gradients, against eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch._higher_order_ops import associative_scan, scan, while_loop  # noqa: E402
from torch._higher_order_ops.map import map as map_rows  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tilewright as tw  # noqa: E402
from tests.interop.torch.test_backend import fallbacks_of  # noqa: E402
from tests.sampling import sampled  # noqa: E402
from tilewright.interop.torch import backend  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


def _branches(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda v: torch.cond(v[0, 0] > 0, torch.sin, torch.cos, (v,)), lambda v: v * 2, (x,))


def _loop(x: Any) -> Any:
    scale = x.abs().max() / 10 + 1
    return while_loop(lambda i, v: (i < 5) & (v.sum() < 100), lambda i, v: (i + 1, v * scale), (torch.tensor(0), x))


def _scan(x: Any) -> Any:
    return scan(lambda c, v: (c + v, (c * v).sin()), x[0], x)


def _reversed_scan(x: Any) -> Any:
    return scan(lambda c, v: (torch.tanh(c + v), c * 2), x[0], x, reverse=True)


def _map(x: Any) -> Any:
    return map_rows(lambda v, w: (v @ w).relu() + v.sum(), x.reshape(-1, 4, 4), torch.ones(4, 4))


def _associative(x: Any) -> Any:
    return associative_scan(lambda a, b: a * b + b, x, 0, combine_mode="generic")


def _checkpointed(x: Any) -> Any:
    return checkpoint(lambda v: (v.sin() @ v.T).relu(), x, use_reentrant=False).sum()


@torch.compiler.nested_compile_region
def _region(v: Any) -> Any:
    return v.sin() * 2


def _called_twice(x: Any) -> Any:
    return _region(_region(x)) + 1


FUNCTIONS = (_branches, _loop, _scan, _reversed_scan, _map, _associative, _checkpointed, _called_twice)


def _total(results: Any) -> Any:
    return sum(t.sum() for t in torch.utils._pytree.tree_leaves(results) if t.requires_grad)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_operators_that_take_graphs_are_compiled(function: Callable[..., Any]) -> None:
    x = torch.randn(8, 4)
    run = torch.compile(function, backend=backend, fullgraph=True, options={"fallback": "error"})
    for given in (x, x.abs(), -x.abs()):
        torch.testing.assert_close(run(given), function(given))


@pytest.mark.parametrize("function", sampled([f for f in FUNCTIONS if f is not _loop], 2))
def test_gradients_through_graphs(function: Callable[..., Any]) -> None:
    x = torch.randn(8, 4, requires_grad=True)
    run = torch.compile(function, backend=backend, fullgraph=True, options={"fallback": "error"})
    found, wanted = (torch.autograd.grad(_total(f(x)), x) for f in (run, function))
    torch.testing.assert_close(found, wanted)


def test_the_values_of_a_loop_for_its_gradients_are_kept_by_torch() -> None:
    x = torch.randn(8, 4, requires_grad=True)
    run = torch.compile(_loop, backend=backend, fullgraph=True)
    found: list[Any] = []
    fallbacks = fallbacks_of(lambda: found.append(torch.autograd.grad(_total(run(x)), x)))
    torch.testing.assert_close(found[0], torch.autograd.grad(_total(_loop(x)), x))
    assert "torch.ops.higher_order.while_loop_stack_output" in fallbacks[0]


def test_control_flow_of_dynamic_sizes() -> None:
    run = torch.compile(lambda x: (_scan(x), _branches(x)), backend=backend, fullgraph=True)
    for size in (8, 5, 11):
        x = torch.randn(size, 4)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(run(x), (_scan(x), _branches(x)))


@pytest.mark.parametrize("function", sampled([_loop, _branches, _map, _scan], 2))
def test_exported_control_flow(function: Callable[..., Any]) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    x = torch.randn(8, 4)
    run = tw.from_torch(torch.export.export(Module(), (x,)))
    for given in (x, x.abs(), -x.abs()):
        torch.testing.assert_close(run(given), function(given))


def test_a_branch_without_a_rule_runs_in_torch() -> None:
    def function(x: Any) -> Any:
        return torch.cond(x.sum() > 0, torch.lgamma, torch.sin, (x + 3,)) * 2

    x = torch.rand(4)
    found: list[Any] = []
    run = torch.compile(function, backend=backend, fullgraph=True)
    (fallback,) = fallbacks_of(lambda: found.append(run(x)))
    torch.testing.assert_close(found[0], function(x))
    assert fallback == {"torch.ops.higher_order.cond": 1}


# ---- FlexAttention --------------------------------------------------------------------------------------------------

_LENGTH = 24
_DOCUMENTS = torch.arange(_LENGTH) // 7
_SLOPES = torch.tensor([0.5, 0.25, 0.1, 0.05])
_BIAS = torch.linspace(-1, 1, _LENGTH * _LENGTH).reshape(_LENGTH, _LENGTH)


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def _document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (_DOCUMENTS[q] == _DOCUMENTS[k]) & (q >= k) & (q != 5)


def _alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + (k - q) * _SLOPES[h] + _BIAS[q, k]


def _capped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where((q - k).abs() <= 9, 5 * torch.tanh(score / 5), -float("inf"))


@pytest.mark.parametrize(
    ("score", "mask", "heads"),
    [(_alibi, None, 4), (_capped, _causal, 4), (None, _document, 4), (_alibi, _document, 2)],
    ids=["alibi", "capped_causal", "documents", "grouped_heads"],
)
def test_flex_attention(score: Any, mask: Any, heads: int) -> None:
    def function(q: Any, k: Any, v: Any, block_mask: Any) -> Any:
        return flex_attention(q, k, v, score_mod=score, block_mask=block_mask, enable_gqa=heads != 4)

    q = torch.randn(2, 4, _LENGTH, 8)
    k, v = torch.randn(2, 2, heads, _LENGTH, 8)
    block_mask = mask and create_block_mask(mask, None, None, _LENGTH, _LENGTH, device="cpu", BLOCK_SIZE=8)
    run = torch.compile(function, backend=backend, fullgraph=True, options={"fallback": "error"})
    torch.testing.assert_close(run(q, k, v, block_mask), function(q, k, v, block_mask))


def test_flex_attention_that_looks_up_rows_runs_in_torch() -> None:
    table = torch.randn(_LENGTH, 3)

    def function(q: Any) -> Any:
        return flex_attention(q, q, q, score_mod=lambda s, b, h, m, n: s + table[m].sum())

    q = torch.randn(1, 2, _LENGTH, 8)
    torch.testing.assert_close(torch.compile(function, backend=backend)(q), function(q))
