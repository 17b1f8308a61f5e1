"""Primitives that only passes use, against NumPy: dims that become several, and contractions in parts of their depth;
and what of them is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from tilewright import dtypes
from tilewright.errors import TilewrightError
from tilewright.primitives import ArrayType, infer
from tilewright.semantics.array import apply

X = np.random.default_rng(0).standard_normal((3, 40, 5)).astype(np.float32)


@pytest.mark.parametrize(
    ("sizes", "steps"), [((10,), (3,)), ((4, 3), (7, 1)), ((5, 3, 2), (1, 10, 4)), ((4, 2), (0, 5))]
)
def test_unfolding_is_a_view_with_other_strides(sizes: tuple[int, ...], steps: tuple[int, ...]) -> None:
    a = {"axis": 1, "sizes": sizes, "steps": steps}
    strides = (X.strides[0], *(step * X.strides[1] for step in steps), X.strides[2])
    expected = as_strided(X, (3, *sizes, 5), strides)
    (type,) = infer("unfold", [ArrayType(X.shape, dtypes.f32)], a)
    (got,) = apply("unfold", [X], a)
    assert got.shape == type.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("part", [1, 7, 16, 40, 50])
def test_parts_of_a_contraction(part: int) -> None:
    w = np.random.default_rng(1).standard_normal((40, 6)).astype(np.float32)
    a: dict[str, Any] = {
        "left_batch": (),
        "right_batch": (),
        "left_contract": (1,),
        "right_contract": (0,),
        "dtype": "f32",
        "part": part,
    }
    (type,) = infer("contract", [ArrayType(X.shape, dtypes.f32), ArrayType(w.shape, dtypes.f32)], a)
    (got,) = apply("contract", [X, w], a)
    ends = range(0, 40, part)
    expected = np.stack([np.tensordot(X[:, k : k + part].astype(float), w[k : k + part], ((1,), (0,))) for k in ends])
    assert got.shape == type.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("unfold", {"axis": 1, "sizes": (10, 5), "steps": (4, 1)}),  # one beyond the end
    ("unfold", {"axis": 3, "sizes": (2,), "steps": (1,)}),
    ("unfold", {"axis": 1, "sizes": (2, 2), "steps": (1,)}),
    ("unfold", {"axis": 1, "sizes": (2,), "steps": (-1,)}),
    ("unfold", {"axis": 1, "sizes": (), "steps": ()}),
]


@pytest.mark.parametrize(("primitive", "attributes"), REFUSED, ids=str)
def test_what_does_not_fit_is_refused(primitive: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(TilewrightError):
        infer(primitive, [ArrayType(X.shape, dtypes.f32)], attributes)


@pytest.mark.parametrize("part", [0, -4])
def test_parts_have_a_depth(part: int) -> None:
    types = [ArrayType((3, 4), dtypes.f32), ArrayType((4, 3), dtypes.f32)]
    axes = {"left_batch": (), "right_batch": (), "left_contract": (1,), "right_contract": (0,), "dtype": "f32"}
    with pytest.raises(TilewrightError, match="parts"):
        infer("contract", types, axes | {"part": part})
