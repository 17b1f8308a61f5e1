"""Attention of queries that see no key: 0, and finite gradients, as in eager torch."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.interop.torch import backend  # noqa: E402

_ATTENTION = torch.nn.functional.scaled_dot_product_attention


def _mask(kind: str, queries: int, keys: int) -> Any:
    seen = torch.rand(1, 1, queries, keys, generator=torch.Generator().manual_seed(0)) > 0.4
    seen[..., -1, :] = False
    seen[..., 0, 0] = True
    if kind == "bool":
        return seen
    return torch.where(seen, torch.randn(queries, keys, generator=torch.Generator().manual_seed(1)), -torch.inf)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize(("heads", "axes"), [((2, 2), 4), ((4, 2), 4), ((1, 1), 3)], ids=["plain", "grouped", "math"])
def test_rows_that_see_nothing(kind: str, heads: tuple[int, int], axes: int) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    shapes = [(1, heads[0], 5, 8), (1, heads[1], 6, 8), (1, heads[1], 6, 8)]
    start = [torch.randn(shape[4 - axes :]) for shape in shapes]
    mask = _mask(kind, 5, 6)[0, 0] if axes == 3 else _mask(kind, 5, 6)

    def attention(q: Any, k: Any, v: Any) -> Any:
        return _ATTENTION(q, k, v, attn_mask=mask, enable_gqa=heads[0] != heads[1])

    results = []
    for function in (attention, torch.compile(attention, backend=backend, fullgraph=True)):
        given = [t.clone().requires_grad_() for t in start]
        out = function(*given)
        results.append([out, *torch.autograd.grad(out.square().sum(), given)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert not results[1][0][..., -1, :].any()


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (4, 6), (6, 4)])
def test_causal_attention_of_other_lengths(queries: int, keys: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, queries, 8), torch.randn(1, 2, keys, 8), torch.randn(1, 2, keys, 8)

    class Causal(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return _ATTENTION(q, k, v, is_causal=True)

    found = tw.from_torch(torch.export.export(Causal(), (q, k, v)))(q, k, v)
    torch.testing.assert_close(found, _ATTENTION(q, k, v, is_causal=True), rtol=1e-5, atol=1e-6)
