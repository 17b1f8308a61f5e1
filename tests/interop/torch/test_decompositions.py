"""Factorisations and systems of equations of torch programs, against eager torch.

`python -m tests.interop.torch.opinfo --match linalg --dtype float32` runs the database of operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

torch: Any = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from tilewright.interop.torch import BackendOptions  # noqa: E402
from tilewright.interop.torch.dynamo import build_plan, decompositions  # noqa: E402

L: Any = torch.linalg


def _square(a: Any, b: Any) -> Any:
    definite = a @ a.mT + torch.eye(4)
    factor = L.cholesky(definite)
    lu, pivots = L.lu_factor(a)
    lower = torch.tril(a) + 4 * torch.eye(4)
    values, vectors = L.eigh(definite)
    return (
        (L.inv(a), L.solve(a, b), L.solve(a, b[..., 0]), L.solve(a, b.mT, left=False), L.det(a), L.slogdet(a)),
        (factor, L.cholesky(definite, upper=True), torch.cholesky_solve(b, factor), torch.cholesky_inverse(factor)),
        (values, vectors.abs(), L.eigvalsh(definite, UPLO="U"), L.matrix_power(a, -2), L.cond(a)),
        (lu, pivots, L.lu(a), L.lu_solve(lu, pivots, b), L.lu_solve(lu, pivots, b.mT, left=False)),
        (L.lu_solve(lu, pivots, b, adjoint=True), L.solve_triangular(lower, b, upper=False)),
        (L.solve_triangular(lower.mT, b.mT, upper=True, left=False), L.inv_ex(a), L.solve_ex(a, b)[0]),
    )


def _rectangular(x: Any) -> Any:
    u, s, vh = L.svd(x, full_matrices=False)
    packed, tau = torch.geqrf(x)
    return (
        (L.qr(x), L.qr(x, mode="complete"), L.qr(x, mode="r").R, u.abs(), s, vh.abs(), L.svdvals(x)),
        (L.pinv(x), L.pinv(x, rtol=0.5), L.matrix_rank(x), L.matrix_norm(x, ord="nuc"), L.matrix_norm(x, ord=2)),
        (packed, L.householder_product(packed, tau), torch.ormqr(packed, tau, x), L.pinv(x @ x.mT, hermitian=True)),
    )


def _module(function: Any) -> Any:
    class Module(torch.nn.Module):
        def forward(self, *arguments: Any) -> Any:
            return function(*arguments)

    return Module()


def _normal(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _near(found: Any, expected: Any, tolerance: float = 2e-4) -> None:
    pairs = zip(*map(torch.utils._pytree.tree_leaves, (found, expected)), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def _planned(function: Any, *arguments: Any) -> Any:
    """The results of the function's graph, of which nothing may run in torch. `interp` compiles nothing: what is tested
    here are the rules."""
    graph = make_fx(function, decomposition_table=decompositions())(*arguments)
    return build_plan(graph, options=BackendOptions(fallback="error", target="interp"))([*arguments])


def test_rules() -> None:
    for function, arguments in ((_square, (_normal(4, 4), _normal(4, 2))), (_rectangular, (_normal(5, 3),))):
        flat = lambda *x, f=function: torch.utils._pytree.tree_leaves(f(*x))  # noqa: E731
        _near(_planned(flat, *arguments), flat(*arguments))


def test_batches_in_an_exported_program() -> None:
    a, b = _normal(3, 4, 4), _normal(4, 2)

    def function(a: Any, b: Any) -> Any:
        return (
            L.solve(a, b),
            L.solve(a[0], a),
            L.lu_factor(a),
            L.svdvals(a),
            L.lu_solve(*L.lu_factor(a), b.expand(3, 4, 2)),
        )

    _near(tw.from_torch(_module(function), a, b)(a, b), function(a, b))


def _loss(a: Any, b: Any) -> Any:
    definite = a @ a.mT + torch.eye(a.shape[-1])
    spread = L.cholesky(definite).sin().sum() + L.eigvalsh(definite).square().sum()
    return spread + L.solve(a, b).sum() + L.inv(a).tanh().sum() + L.qr(b).R.abs().sum()


def test_training_runs_in_compiled_programs_alone() -> None:
    compiled = torch.compile(_loss, backend="tilewright", options={"fallback": "error"})
    a, b = (_normal(*shape).requires_grad_() for shape in ((4, 4), (4, 2)))
    expected, found = _loss(a, b), compiled(a, b)
    _near(found, expected)
    _near(torch.autograd.grad(found, (a, b)), torch.autograd.grad(expected, (a, b)), 2e-3)


def test_sizes_that_change() -> None:
    compiled = torch.compile(lambda a: L.inv(a) + L.det(a), backend="tilewright", dynamic=True)
    for size in (3, 5):
        a = _normal(size, size)
        _near(compiled(a), L.inv(a) + L.det(a), 1e-3)


def test_failures() -> None:
    singular = torch.ones(3, 3)
    with pytest.raises(L.LinAlgError):
        torch.compile(lambda a: L.inv(a) + 1, backend="tilewright")(singular)

    # Nothing is used of what is checked.
    def unused(a: Any, b: Any) -> Any:
        return (L.cholesky(-a), b + 1)[1]

    with pytest.raises(L.LinAlgError):
        torch.compile(unused, backend="tilewright")(torch.eye(3), singular)
    with pytest.raises(np.linalg.LinAlgError):
        tw.from_torch(_module(unused), torch.eye(3), singular, target="interp")(torch.eye(3), singular)
    inverse, info = torch.compile(L.inv_ex, backend="tilewright")(singular)
    assert info.item() != 0
    assert inverse.isnan().all()
    model = tw.from_torch(_module(L.inv), torch.eye(3))
    _near(model(2 * torch.eye(3)), torch.eye(3) / 2)
    with pytest.raises(np.linalg.LinAlgError):
        model(singular)


def test_checks_of_what_torch_computes_stay_in_torch() -> None:
    def function(a: Any) -> Any:
        return L.ldl_factor(a).LD + L.inv(a)

    compiled = torch.compile(function, backend="tilewright")
    a = _normal(3, 3)
    symmetric = a + a.mT
    _near(compiled(symmetric), function(symmetric), 1e-3)
    with pytest.raises(L.LinAlgError):
        compiled(torch.zeros(3, 3))
