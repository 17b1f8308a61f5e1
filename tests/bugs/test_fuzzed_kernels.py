"""Tile kernels that the fuzzer found to be compiled wrongly, made small. Each runs in all phases and natively."""

from __future__ import annotations

import pytest

from tests.fuzz.tile_steps import Kernel, module_text
from tests.fuzz.tiles import check

ROWS, COLUMNS, POINTS = 18, 20, 2

KERNELS = {
    "what a branch passes on is read after the branch, by what is computed from it only there": """
        %old = tile.load(%x, %p) {map = affine_map<(d0)[s0] -> (d0 + s0 * 9)>, fill = 0.0 : f64} : tensor<8xf32>
        %zero = tile.full() {value = 0.0 : f64} : tensor<8xf32>
        tile.store(%zero, %x, %p) {map = affine_map<(d0)[s0] -> (d0 + s0 * 9)>}
        %power = tile.map(%old) {fn = "exp2"} : tensor<8xf32>
        %sum = tile.reduce(%old) {fn = "add", axes = array<i64: 0>} : tensor<f32>
        %same = tile.map(%sum, %sum) {fn = "equal"} : tensor<i1>
        %either = tile.if(%same) do {
          tile.yield(%power)
        } do {
          tile.yield(%old)
        } : tensor<8xf32>
        tile.store(%power, %vout, %p) {map = affine_map<(d0)[s0] -> (d0 + s0 * 9)>}
        tile.store(%either, %x, %p) {map = affine_map<(d0)[s0] -> (d0 + s0 * 9)>}
        """,
    "two results of a branch, one computed from the other": """
        %old = tile.load(%x, %p) {map = affine_map<(d0)[s0] -> (d0 + s0 * 9)>, fill = 0.0 : f64} : tensor<8xf32>
        %zero = tile.full() {value = 0.0 : f64} : tensor<8xf32>
        tile.store(%zero, %x, %p) {map = affine_map<(d0)[s0] -> (d0 + s0 * 9)>}
        %power = tile.map(%old) {fn = "exp2"} : tensor<8xf32>
        %sum = tile.reduce(%old) {fn = "add", axes = array<i64: 0>} : tensor<f32>
        %same = tile.map(%sum, %sum) {fn = "equal"} : tensor<i1>
        %either, %other = tile.if(%same) do {
          tile.yield(%power, %old)
        } do {
          tile.yield(%old, %power)
        } : tensor<8xf32>, tensor<8xf32>
        tile.store(%either, %vout, %p) {map = affine_map<(d0)[s0] -> (d0 + s0 * 9)>}
        tile.store(%other, %x, %p) {map = affine_map<(d0)[s0] -> (d0 + s0 * 9)>}
        """,
    "a window wholly beyond its array": """
        %first = tile.load(%a) {map = affine_map<(d0, d1) -> (d0, d1 + 24)>} : tensor<4x8xf32>
        tile.store(%first, %out, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 9, d1 + 24)>}
        """,
    "a window whose start moves beyond its array": """
        %first = tile.load(%a, %p) {map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 25)>} : tensor<4x8xf32>
        tile.store(%first, %w, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 9, d1 + s0 * 25)>}
        """,
    "a sum over nothing but padding": """
        %first = tile.load(%a) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<4x8xf32>
        %none = tile.fill_padding(%first) {map = affine_map<(d0, d1) -> (d0 + 4)>, limit = 4 : index, value = 0.0 : f64}
          : tensor<4x8xf32>
        %sums = tile.reduce(%none) {fn = "add", axes = array<i64: 0>} : tensor<8xf32>
        tile.store(%sums, %vout, %p) {map = affine_map<(d0)[s0] -> (d0 + s0 * 9)>}
        """,
    "a product whose depth ends before it begins": """
        %first = tile.load(%a) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<8x7xf32>
        %second = tile.load(%b) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<7x8xf32>
        %left = tile.fill_padding(%first, %p) {map = affine_map<(d0, d1)[s0] -> (d1 + s0 * 9)>, limit = 4 : index,
          value = 0.0 : f64} : tensor<8x7xf32>
        %one = tile.full() {value = 1.0 : f64} : tensor<8x8xf32>
        %z = tile.dot(%left, %second, %one) : tensor<8x8xf32>
        tile.store(%z, %out, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 9, d1)>}
        """,
    "a right operand that ends before the depth's bound": """
        %first = tile.load(%a) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<8x7xf32>
        %second = tile.load(%b, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 16, d1)>, fill = 0.0 : f64}
          : tensor<7x16xf32>
        %left = tile.fill_padding(%first) {map = affine_map<(d0, d1) -> (d1)>, limit = 5 : index, value = 0.0 : f64}
          : tensor<8x7xf32>
        %one = tile.full() {value = 1.0 : f64} : tensor<8x16xf32>
        %z = tile.dot(%left, %second, %one) : tensor<8x16xf32>
        tile.store(%z, %out, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 9, d1)>}
        """,
    "a transposed right operand that ends before its depth": """
        %first = tile.load(%a) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<8x16xf32>
        %second = tile.load(%b) {map = affine_map<(d0, d1) -> (d0, d1 + 8)>, fill = 0.0 : f64} : tensor<4x16xf32>
        %right = tile.transpose(%second) {permutation = array<i64: 1, 0>} : tensor<16x4xf32>
        %one = tile.full() {value = 1.0 : f64} : tensor<8x4xf32>
        %z = tile.dot(%first, %right, %one) : tensor<8x4xf32>
        tile.store(%z, %out, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 9, d1)>}
        """,
    "columns of a product beyond the end of the right operand": """
        %first = tile.load(%a) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<8x4xf32>
        %second = tile.load(%b, %p) {map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 32)>, fill = 0.0 : f64}
          : tensor<4x40xf32>
        %zero = tile.full() {value = 0.0 : f64} : tensor<8x40xf32>
        %z = tile.dot(%first, %second, %zero) : tensor<8x40xf32>
        %sums = tile.reduce(%z) {fn = "add", axes = array<i64: 1>} : tensor<8xf32>
        tile.store(%sums, %vout, %p) {map = affine_map<(d0)[s0] -> (d0 + s0 * 9)>}
        """,
    "a scan of a window wholly beyond its array": """
        %first = tile.load(%a) {map = affine_map<(d0, d1) -> (d0 + 18, d1)>} : tensor<4x8xf32>
        %z = tile.scan(%first) {fn = "maximum", axis = 1 : index, reverse = false} : tensor<4x8xf32>
        %y = tile.map(%z) {fn = "negative"} : tensor<4x8xf32>
        tile.store(%y, %out, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 9, d1)>}
        """,
}


@pytest.mark.parametrize("body", KERNELS.values(), ids=KERNELS.keys())
@pytest.mark.parametrize("seed", [0, 1])  # for this machine and for an older one
def test_kernel_is_compiled_correctly(body: str, seed: int) -> None:
    outcome = check(Kernel(seed, module_text(ROWS, COLUMNS, POINTS, body.strip("\n").split("\n"))))
    assert not outcome.kind, outcome.message
    assert outcome.unknown < outcome.elements


def test_a_reshape_does_not_store_the_padding_of_a_warp() -> None:
    """Lanes of 8, of which 5 hold elements: the other three must not store what they have."""
    body = """
        %first = tile.load(%b, %p) {map = affine_map<(d0, d1)[s0] -> (d1 + s0 * 20 + 2, d0)>} : tensor<20x20xf32>
        %flat = tile.reshape(%first) : tensor<400xf32>
        %again = tile.reshape(%flat) : tensor<20x20xf32>
        tile.store(%again, %out, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 20, d1)>}
        """
    outcome = check(Kernel(0, module_text(39, 20, 2, body.strip("\n").split("\n"))), ("cuda:sm_90a",))
    assert not outcome.kind, outcome.message
    assert outcome.unknown < outcome.elements


@pytest.mark.parametrize("rows", [5, 9])  # a vector that is not whole, and one that is, on machines with 8 lanes
@pytest.mark.parametrize("column", [0, 1, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_short_rows_that_end_beyond_their_array(rows: int, column: int, seed: int) -> None:
    body = f"""
        %first = tile.load(%a, %p) {{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 9, d1)>, fill = 0.0 : f64}}
          : tensor<{rows}x2xf32>
        tile.store(%first, %w, %p) {{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 9, d1 + {column})>}}
        """
    outcome = check(Kernel(seed, module_text(18, 2, 2, body.strip("\n").split("\n"))))
    assert not outcome.kind, outcome.message
    assert outcome.unknown < outcome.elements
