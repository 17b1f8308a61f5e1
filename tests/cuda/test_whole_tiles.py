"""A few of the products of `python -m tests.cuda.whole_tiles`, one of each kind of instruction, and a quarter as deep:
tiles, stages and layouts are the same, and every stage is filled several times."""

from __future__ import annotations

import pytest

import tilewright as tw
from tests.cuda.whole_tiles import check, products
from tests.sampling import sampled

FEW = [("gemm bf16", "sm_80"), ("gemm bf16", "sm_90a"), ("gemm bf16, gelu", "sm_100a"), ("gemm i8, b.T", "sm_120a")]


@pytest.mark.parametrize(("name", "chip"), sampled(FEW, 2))
def test_the_first_block_of_a_product_of_4096(name: str, chip: str) -> None:
    ((function, (left, right, *others)),) = ((f, t) for known, f, t in products() if known == name)
    assert left.shape == right.shape == (4096, 4096)
    types = [
        tw.ShapeDtype((4096, 1024), left.dtype),
        tw.ShapeDtype((4096, 1024) if "b.T" in name else (1024, 4096), right.dtype),
        *others,
    ]
    assert check(name, function, types, chip) >= 64 * 64
