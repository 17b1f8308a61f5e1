"""Tiles that `scheduled-order-tiles` puts in an order for the second-level cache, on machines that are small enough for
few tiles to be many."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built
from tests.cuda.test_pipeline import executed, numbers, operands
from tests.passes.warps.test_scheduled_loop_over_tiles import Small
from tests.passes.warps.test_scheduled_specialize_warps import defined, ops_of, remarks
from tilewright.dialects.scheduled import tile_order
from tilewright.passes.warps.scheduled_order_tiles import ScheduledOrderTilesPass

# ---- the order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "exactly", "dtype", "chip", "cores", "m", "n", "k"),
    [
        (lambda a, b: a @ b, lambda c: c, "f16", "sm_80", 2, 136, 200, 72),
        (lambda a, b: tw.nn.relu(a @ b), lambda c: np.maximum(c, 0), "bf16", "sm_90a", 2, 200, 136, 72),
        (lambda a, b: tw.matmul(a, b, dtype=tw.f32), lambda c: c, "bf16", "sm_100a", 4, 264, 168, 136),
        (lambda a, b: a @ b, lambda c: c, "f32", "sm_90a", 2, 136, 120, 40),
        (lambda a, b: a @ b[:, ::-1], lambda c: c[:, ::-1], "f16", "sm_120a", 2, 200, 200, 40),
    ],
    ids=["copied ahead", "followed", "to 32 bits", "of 32 bits", "turned around"],
)
def test_products_of_every_kind_in_groups(
    small: Small, function: Any, exactly: Any, dtype: str, chip: str, cores: int, m: int, n: int, k: int
) -> None:
    small(cores)
    a, b, exact = operands("nn", dtype, m, n, k)
    program = built(tw.jit(function).lower(a, b), f"cuda:{chip}")
    (said,) = remarks(program, ScheduledOrderTilesPass)
    assert said.startswith("tiles in groups of ")
    assert all(point.order.group > 1 for point in ops_of(program, tile_order.PointOp))
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, exactly(exact).astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)


def test_batches_are_outside_of_groups(small: Small) -> None:
    small(cores=2)
    a, b = numbers((3, 136, 72), "f16", 1), numbers((3, 72, 200), "f16", 2)
    program = built(tw.jit(lambda x, y: x @ y).lower(a, b), "cuda:sm_80")
    (point,) = ops_of(program, tile_order.PointOp)
    assert point.order.extents[0] == 3
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.astype(np.float64)).astype(got.dtype))


def test_a_cache_with_room_leaves_the_grid(small: Small) -> None:
    small(cores=2, cache_bytes=1 << 20)
    a, b, _ = operands("nn", "f16", 200, 264, 136)
    program = built(tw.jit(lambda x, y: x @ y).lower(a, b), "cuda:sm_80")
    assert ops_of(program, tile_order.PointOp) == []
    (said,) = remarks(program, ScheduledOrderTilesPass)
    assert said.startswith("row-major tile order: l2 has room for all panels")


def test_explain_says_groups_and_bytes(small: Small) -> None:
    small(cores=4)
    a, b, _ = operands("nn", "f16", 256, 512, 64)
    program = built(tw.jit(lambda x, y: x @ y).lower(a, b), "cuda:sm_80")
    assert re.search(
        r"tiles in groups of \d (rows|columns) \(4 blocks at a time read \d+ bytes from dram, row-major \d+\)",
        program.explain(),
    )
