"""Epilogues that `scheduled-finish-products` computes in the registers of the last trips, and those that stay after the
loop: with the pass and without it results are the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.passes.cores.whole import scheduled
from tests.passes.pass_support import parse, remarks, run, unit_of
from tilewright.cost.cores.tiles import ProductTrips
from tilewright.passes.base import Unit
from tilewright.passes.cores import scheduled_finish_products
from tilewright.passes.cores.scheduled_finish_products import ScheduledFinishProductsPass
from tilewright.pipelines import tile_to_cores

MACHINES = ("wormhole", "blackhole")
FINISH = ScheduledFinishProductsPass


@dataclass(frozen=True)
class Product:
    """A matmul by steps of its depth on one core, what follows it, and the shape of what is stored."""

    rows: int = 64
    columns: int = 96
    step: int = 32
    trips: int = 3
    dtype: str = "bf16"
    between: str = ""
    left: str = "%a"
    follows: str = ""
    result: str = "%r"
    out: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        depth = self.step * self.trips
        x, y = f"tensor<{self.rows}x{depth}x{self.dtype}>", f"tensor<{depth}x{self.columns}x{self.dtype}>"
        bias, sum = f"tensor<{self.columns}x{self.dtype}>", f"tensor<{self.rows}x{self.columns}xf32>"
        shape = self.out or (self.rows, self.columns)
        z = f"tensor<{'x'.join(map(str, shape))}x{self.dtype}>"
        dims = ", ".join(f"d{n}" for n in range(len(shape)))
        follows = self.follows.replace("SUM", sum).replace("RESULT", z).replace("BIAS", bias)
        return f"""
func.func @main(%x: {x}, %y: {y}, %bias: {bias}) -> {z} {{
  %z = array.call(%x, %y, %bias) {{callee = "product"}} : {z}
  func.return %z : {z}
}}
tile.kernel() {{sym_name = "product", grid = array<i64>, effects = ["in", "in", "in", "out"]}} do {{
^bb0(%x: !tile.ref<{x}>, %y: !tile.ref<{y}>, %bias: !tile.ref<{bias}>, %out: !tile.ref<{z}>):
  %zero = tile.full() {{value = 0.0 : f64}} : {sum}
  %sum = tile.for(%zero) {{trips = {self.trips} : index}} do {{
  ^bb1(%t: index, %s: {sum}):
    %a = tile.load(%x, %t) {{map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * {self.step})>}}
      : tensor<{self.rows}x{self.step}x{self.dtype}>
    %b = tile.load(%y, %t) {{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * {self.step}, d1)>}}
      : tensor<{self.step}x{self.columns}x{self.dtype}>
    {self.between}
    %p = tile.dot({self.left}, %b, %s) {{}} : {sum}
    tile.yield(%p)
  }} : {sum}
  {follows or f"%r = tile.cast(%sum) : {z}"}
  tile.store({self.result}, %out) {{map = affine_map<({dims}) -> ({dims})>}}
  tile.yield()
}}
"""

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Small whole numbers: sums in any order are the same."""
        rng, depth = np.random.default_rng(0), self.step * self.trips
        numpy = ml_dtypes.bfloat16 if self.dtype == "bf16" else np.float32
        shapes = ((self.rows, depth), (depth, self.columns), (self.columns,))
        return [rng.integers(-1, 2, shape).astype(numpy) for shape in shapes]


def decisions(unit: Unit) -> list[str]:
    return [decision for decision, _ in remarks(unit, FINISH.name)]


def check_same(product: Product, machine: str) -> tuple[Unit, Unit]:
    """The schedules with and without the pass, which compute the same as the tile kernel."""
    unit, before = scheduled(product.text, machine), scheduled(product.text, machine, FINISH)
    arrays = product.arrays()
    (expected,) = run(unit_of(parse(product.text), {}), arrays)
    for each in (unit, before):
        np.testing.assert_array_equal(run(each, arrays)[0], expected)
    return unit, before


BIASED = """
  %row = tile.load(%bias) {map = affine_map<(d0) -> (d0)>} : BIAS
  %wide = tile.cast(%row) : tensor<COLUMNSxf32>
  %rows = tile.broadcast(%wide) {axes = array<i64: 1>} : SUM
  %t1 = tile.map(%sum, %rows) {fn = "add"} : SUM
  %t2 = tile.map(%t1) {fn = "negative"} : SUM
  %r = tile.cast(%t2) : RESULT
"""
TWICE = """
  %t1 = tile.map(%sum, %sum) {fn = "add"} : SUM
  %t2 = tile.map(%t1) {fn = "negative"} : SUM
  %r = tile.cast(%t2) : RESULT
"""
SHIFTED = """
  %t1 = tile.slice(%sum) {starts = array<i64: 32, 0>, limits = array<i64: 64, 96>, strides = array<i64: 1, 1>}
    : tensor<32x96xf32>
  %r = tile.cast(%t1) : RESULT
"""
FINISHED = {
    "nothing follows": Product(),
    "a row is added": Product(follows=BIASED.replace("COLUMNS", "96")),
    "the sum is used twice": Product(follows=TWICE),
    "odd sizes": Product(rows=50, columns=70, follows=BIASED.replace("COLUMNS", "70")),
    "two trips": Product(trips=2),
    "five trips": Product(trips=5),
    "a part": Product(follows=SHIFTED, out=(32, 96)),
    "one column of pages": Product(columns=20, trips=4),
    "f32": Product(dtype="f32", follows="%r = tile.map(%sum) {fn = \"negative\"} : SUM"),
}  # fmt: skip


@pytest.mark.parametrize("name", FINISHED)
def test_epilogues_place_by_place_are_computed_in_registers(name: str) -> None:
    unit, before = check_same(FINISHED[name], MACHINES[len(name) % 2])
    (said,) = decisions(unit)
    assert said.startswith("the epilogue of a matmul is computed in registers, in blocks of ")
    assert decisions(before) == []


SUMMED = """
  %t1 = tile.reduce(%sum) {fn = "add", axes = array<i64: 1>} : tensor<64xf32>
  %r = tile.cast(%t1) : RESULT
"""
TURNED = """
  %t1 = tile.transpose(%sum) {permutation = array<i64: 1, 0>} : tensor<96x64xf32>
  %r = tile.cast(%t1) : RESULT
"""
REPEATED = """
  %t1 = tile.reshape(%sum) : tensor<96xf32>
  %t2 = tile.broadcast(%t1) {axes = array<i64: 1>} : tensor<64x96xf32>
  %r = tile.cast(%t2) : RESULT
"""
LEFT = {
    "a sum of rows": Product(follows=SUMMED, out=(64,)),
    "a transpose": Product(follows=TURNED, out=(96, 64)),
    "a transpose of as many rows as columns": Product(columns=64, follows=TURNED.replace("96", "64"), out=(64, 64)),
    "a row that is repeated": Product(rows=1, follows=REPEATED, out=(64, 96)),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_epilogues_stay_behind_the_loop(name: str) -> None:
    unit, before = check_same(LEFT[name], "wormhole")
    assert decisions(unit) == []
    assert str(unit.module) == str(before.module)


def test_kernels_without_matmuls_are_left() -> None:
    text = """
    func.func @main(%x: tensor<64x96xf32>) -> tensor<64x96xf32> {
      %y = array.call(%x) {callee = "k"} : tensor<64x96xf32>
      func.return %y : tensor<64x96xf32>
    }
    tile.kernel() {sym_name = "k", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x96xf32>>, %out: !tile.ref<tensor<64x96xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<64x96xf32>
      %r = tile.map(%a, %a) {fn = "add"} : tensor<64x96xf32>
      tile.store(%r, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
    """
    assert str(scheduled(text).module) == str(scheduled(text, without=FINISH).module)


def test_operands_that_are_computed_are_multiplied_as_well() -> None:
    negated = '%c = tile.map(%a) {fn = "negative"} : tensor<64x32xbf16>'
    unit, _ = check_same(Product(between=negated, left="%c"), "wormhole")
    assert len(decisions(unit)) == 1


@pytest.mark.parametrize("may_deepen", [True, False])
@pytest.mark.parametrize("trips", [ProductTrips(2, 1, 4), ProductTrips(2, 3, 6), ProductTrips(4, 1, 5)], ids=str)
def test_trips_are_done_together_where_queues_may_become_longer(
    trips: ProductTrips, may_deepen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`may_deepen` is not set where the user gives the depth of queues."""
    monkeypatch.setattr(scheduled_finish_products, "product_trips", lambda *_: trips)
    product = Product(trips=5)
    unit = unit_of(parse(product.text), {}, "wormhole")
    for each in tile_to_cores():
        (FINISH(may_deepen) if isinstance(each, FINISH) else each).apply(unit)
    (said,) = decisions(unit)
    assert (f"in the last {trips.last} trips; queues have room for {trips.ring}" in said) == may_deepen
    arrays = product.arrays()
    np.testing.assert_array_equal(run(unit, arrays)[0], run(unit_of(parse(product.text), {}), arrays)[0])
