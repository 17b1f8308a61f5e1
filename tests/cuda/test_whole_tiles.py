"""A few of the products of `python -m tests.cuda.whole_tiles`, one of each kind of instruction."""

from __future__ import annotations

import pytest

from tests.cuda.whole_tiles import check, products

FEW = [("gemm bf16", "sm_80"), ("gemm bf16", "sm_90a"), ("gemm bf16, gelu", "sm_100a"), ("gemm i8, b.T", "sm_120a")]


@pytest.mark.parametrize(("name", "chip"), FEW)
def test_the_first_block_of_a_product_of_4096(name: str, chip: str) -> None:
    ((function, types),) = ((f, t) for known, f, t in products() if known == name)
    assert check(name, function, types, chip) >= 64 * 64
