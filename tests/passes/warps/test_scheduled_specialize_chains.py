"""Chains of matmuls that `scheduled-specialize-chains` gives a producer warp, and why it leaves others as they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.cuda.test_pipeline import of_kind
from tests.passes.pass_support import parse, unit_of
from tilewright.dialects.scheduled import asynchronous
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.warps.scheduled_specialize_chains import ScheduledSpecializeChainsPass
from tilewright.passes.warps.tile_lower_to_warps import TileLowerToWarpsPass
from tilewright.semantics.scheduled import run_call

# ---- what a warp does not copy --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """x y, and each block of that, rounded, by one of z: tile operations, with something else in some places."""

    on_the_way: str = ""
    end: str = ""
    source_behind: str = "%z"
    ahead: str = ""
    behind: str = ""

    def unit(self) -> Unit:
        """Lowered to warps."""
        block = "%bn" if self.on_the_way else "%b"
        unit = unit_of(
            parse(f"""
func.func @main(%x: tensor<64x16xf16>, %y: tensor<48x16xf16>, %z: tensor<48x16xf16>) -> tensor<64x16xf32> {{
  %r = array.call(%x, %y, %z) {{callee = "chain"}} : tensor<64x16xf32>
  func.return %r : tensor<64x16xf32>
}}
tile.kernel() {{sym_name = "chain", grid = array<i64: 2>, effects = ["in", "in", "in", "out"],
    warps = 4 : index}} do {{
^bb0(%x: !tile.ref<tensor<64x16xf16>>, %y: !tile.ref<tensor<48x16xf16>>, %z: !tile.ref<tensor<48x16xf16>>,
    %out: !tile.ref<tensor<64x16xf32>>, %i: index):
  %a = tile.load(%x) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : tensor<64x16xf16>
  %zero = tile.full() {{value = 0.0 : f64}} : tensor<64x16xf32>
  %b0 = tile.load(%y) {{map = affine_map<(d0, d1) -> (d1, d0)>}} : tensor<16x16xf16>
  %s0 = tile.dot(%a, %b0, %zero) {{atom = "wgmma, 1 warpgroup"}} : tensor<64x16xf32>
  %w0 = tile.cast(%s0) : tensor<64x16xf16>
  {self.ahead}
  %w, %sum = tile.for({"%i, " if self.end else ""}%w0, %zero) {{trips = 2 : index{self.end}}} do {{
  ^bb1(%t: index, %w1: tensor<64x16xf16>, %sum1: tensor<64x16xf32>):
    %b = tile.load(%y, %t) {{map = affine_map<(d0, d1)[s0] -> (d1 + s0 * 16 + 16, d0)>}} : tensor<16x16xf16>
    {self.on_the_way}
    %s = tile.dot(%a, {block}, %zero) {{atom = "wgmma, 1 warpgroup"}} : tensor<64x16xf32>
    %c = tile.load(%z, %t) {{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 16, d1)>}} : tensor<16x16xf16>
    %p = tile.dot(%w1, %c, %sum1) {{atom = "wgmma, left in registers"}} : tensor<64x16xf32>
    %w2 = tile.cast(%s) : tensor<64x16xf16>
    tile.yield(%w2, %p)
  }} : tensor<64x16xf16>, tensor<64x16xf32>
  %c2 = tile.load({self.source_behind}) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : tensor<16x16xf16>
  %last = tile.dot(%w, %c2, %sum) {{atom = "wgmma, left in registers"}} : tensor<64x16xf32>
  {self.behind}
  tile.store(%last, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
  tile.yield()
}}
"""),
            {},
        )
        unit.machine = load("sm_90a")
        TileLowerToWarpsPass().apply(unit)
        return unit


NEGATED = '%bn = tile.map(%b) {fn = "negative"} : tensor<16x16xf16>'


def product_of(source: str, name: str, row: int, left: str, sum: str) -> str:
    """One more product, beside the loop."""
    rows = "d1, d0" if source == "%y" else "d0, d1"
    place = rows.replace("d1" if source == "%y" else "d0", f"{'d1' if source == '%y' else 'd0'} + {row}")
    atom = "wgmma, 1 warpgroup" if source == "%y" else "wgmma, left in registers"
    return f"""
  %in_{name} = tile.load({source}) {{map = affine_map<(d0, d1) -> ({place})>}} : tensor<16x16xf16>
  %{name} = tile.dot({left}, %in_{name}, {sum}) {{atom = "{atom}"}} : tensor<64x16xf32>
"""


def stored(*names: str) -> str:
    return "".join(f"  tile.store(%{name}, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}\n" for name in names)


LATE = "the result of a matmul is first used after the stage of its window must be free"
REFUSED = {
    "unused": (Chain(behind=product_of("%z", "u", 0, "%w", "%sum")), "the result of a matmul is unused"),
    "used behind the loop": (Chain(ahead=product_of("%y", "u", 0, "%a", "%zero"), behind=stored("u")), LATE),
    "begun too early": (
        Chain(
            ahead=product_of("%y", "u", 0, "%a", "%zero")
            + product_of("%y", "v", 16, "%a", "%zero")
            + product_of("%y", "late", 32, "%a", "%zero")
            + stored("u", "v", "late")
        ),
        LATE,
    ),
    "too many behind the loop": (
        Chain(
            behind=product_of("%z", "u", 0, "%w", "%last") + product_of("%z", "v", 16, "%w", "%u") + stored("u", "v")
        ),
        "after the loop 3 windows share 2 stages",
    ),
    "computed": (Chain(on_the_way=NEGATED), "`map` stands between the window of the right operand and the matmul"),
    "another array": (Chain(source_behind="%x"), "a matmul outside the loop reads an array that the loop does not"),
    "too far": (
        Chain(end=", end = affine_map<()[s0] -> (s0 * 3)>"),
        "the trip count of the loop differs between blocks",
    ),
    "divided": (
        Chain(end=", end = affine_map<()[s0] -> (s0 floordiv 2)>"),
        "the trip count of the loop is not known at block start",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_warp_does_not_copy_stays_as_it_is_and_says_why(name: str) -> None:
    chain, reason = REFUSED[name]
    unit = chain.unit()
    before = str(unit.module)
    ScheduledSpecializeChainsPass().apply(unit)
    assert [remark.reason for remark in unit.remarks] == [reason]
    assert str(unit.module) == before


def test_products_beside_the_loop_in_turn() -> None:
    """As many as there are stages behind it, and three before it, whose results are used in time."""
    ahead = "".join(product_of("%y", name, row, "%a", "%zero") + stored(name) for name, row in (("u", 0), ("v", 16)))
    chain = Chain(ahead=ahead, behind=product_of("%z", "next", 16, "%w", "%last") + stored("next"))
    unit = chain.unit()
    ScheduledSpecializeChainsPass().apply(unit)
    unit.module.verify()
    assert len(of_kind(unit, asynchronous.TensorCopyOp)) == 8
    (kernel,) = unit.kernels()
    rng = np.random.default_rng(3)
    x, y, z = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((64, 16), (48, 16), (48, 16)))
    (got,) = run_call(kernel, [x, y, z], 0)
    weights = [x.astype(np.float64) @ y[at : at + 16].T for at in (0, 16, 32)]
    wanted = sum(w @ z[16 * n : 16 * n + 16] for n, w in enumerate(weights[:2])) + weights[2] @ z[:16]
    np.testing.assert_array_equal(got, wanted)


def test_a_loop_that_ends_sooner_in_some_blocks() -> None:
    unit = Chain(end=", end = affine_map<()[s0] -> (s0 + 1)>").unit()
    ScheduledSpecializeChainsPass().apply(unit)
    unit.module.verify()
    assert len(of_kind(unit, asynchronous.TensorCopyOp)) == 5
