"""Matmuls that `tile-multiply-in-tensor-memory` selects, and the reason for each that it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cuda.test_pipeline import Given, emulated_unit, executed, numbers
from tests.passes.pass_support import applied, check_meaning, check_unchanged, parse, remarks, unit_of
from tests.passes.warps.products import Product
from tests.passes.warps.test_scheduled_specialize_warps import ops_of
from tests.passes.warps.test_scheduled_specialize_warps import remarks as remarks_of
from tilewright.dialects import scheduled, tile
from tilewright.passes.base import Unit
from tilewright.passes.fallbacks import Fallback
from tilewright.passes.warps.tile_multiply_in_tensor_memory import TileMultiplyInTensorMemoryPass
from tilewright.targets.cuda.target import CudaProgram

Make = Callable[..., CudaProgram]
PASS = TileMultiplyInTensorMemoryPass()
ATOM = "tcgen05, 1 warpgroup"


def atoms(unit: Unit) -> list[str | None]:
    return [op.atom for op in unit.module.walk() if isinstance(op, tile.DotOp)]


@pytest.mark.parametrize(
    "product",
    [
        Product(),
        Product(dtype="bf16", columns=48, depth=32, trips=2),
        Product(dtype="i8", sum="i32", depth=32, columns=64, start="0 : index", fill="0 : index", is_transposed=True),
        Product(columns=128, trips=1),
        Product(columns=256, depth=64, warps=", warps = 8 : index"),
    ],
    ids=["f16", "bf16", "i8", "one trip", "two warpgroups"],
)
@pytest.mark.parametrize("chip", ["sm_100a", "sm_103a"])
def test_products_of_windows_are_selected(product: Product, chip: str) -> None:
    if product.dtype == "i8" and chip == "sm_103a":
        assert remarks(check_unchanged(PASS, product.text, chip), PASS.name) == []  # the chip multiplies no integers
        return
    unit = check_meaning(PASS, product.text, chip)
    assert atoms(unit) == [f"tcgen05, {2 if product.warps else 1} warpgroup{'s' if product.warps else ''}"]


@pytest.mark.parametrize("chip", ["sm_90a", "sm_80", "sm_120a"])
def test_chips_without_tensor_memory_have_none(chip: str) -> None:
    assert check_unchanged(PASS, Product().text, chip).remarks == []


def test_types_that_are_not_multiplied_there_are_left() -> None:
    assert check_unchanged(PASS, Product(dtype="f64", sum="f64").text, "sm_100a").remarks == []


def test_another_atom_that_is_declared_is_kept() -> None:
    assert check_unchanged(PASS, Product(atom='atom = "mma.sync"').text, "sm_100a").remarks == []


NEGATED = '%c = tile.map(%a) {fn = "negative"} : tensor<128x16xf16>'
SECOND = "%q = tile.dot(%a, %b, %s) {} : tensor<128x32xf32>"
MORE = '%q = tile.map(%p, %p) {fn = "add"} : tensor<128x32xf32>'
REFUSED = {
    "a bound that the grid point chooses": (
        Product(end=", end = affine_map<()[s0] -> (s0 + 2)>"),
        "the trip count of the loop is not known at block start",
    ),
    "two matmuls": (Product(between=SECOND, after="", result="%p"), "the kernel has more than one matmul"),
    "something is done with the sum": (Product(after=MORE, result="%q"), "the loop does more than accumulate matmuls"),
    "the sum is used again": (Product(after=MORE), "the loop does more than accumulate matmuls"),
    "another sum is passed on": (Product(result="%s"), "the loop does more than accumulate matmuls"),
    "each trip begins anew": (
        Product(before="%none = tile.full() {value = 0.0 : f64} : tensor<128x32xf32>", accumulator="%none"),
        "the loop does more than accumulate matmuls",
    ),
    "a start other than zero": (Product(start="1.0 : f64"), "the accumulator does not start at zero"),
    "few rows": (Product(rows=64), "a tile of 64 x 32 x 16 is not one of 128 rows and some columns"),
    "many rows": (Product(rows=256), "a tile of 256 x 32 x 16 is not one of 128 rows and some columns"),
    "columns of no instruction": (Product(columns=12), "a tile of 128 x 12 x 16 is not one of 128 rows"),
    "a depth of no instruction": (Product(depth=24), "a tile of 128 x 32 x 24 is not one of 128 rows"),
    "columns of two sums": (
        Product(columns=272, warps=", warps = 16 : index"),
        "a tile of 128 x 272 x 16 is not one of 128 rows",
    ),
    "part of a warpgroup": (Product(warps=", warps = 6 : index"), "6 warps do not take 128 x 32 results out"),
    "too many results": (Product(columns=256), "4 warps do not take 128 x 256 results out of tensor memory"),
    "computed operands": (
        Product(between=NEGATED, left="%c"),
        "`map` stands between the window of the left operand and the matmul",
    ),
    "something is computed beside": (Product(between=NEGATED), "the left operand is used more than once"),
    "filled with ones": (Product(fill="1.0 : f64"), "the left operand is filled with something else than zeros"),
    "rows that are not aligned": (Product(width=52), "rows of 52 elements of 2 bytes do not begin at multiples of 16"),
    "operands of 8 bits whose depth is outside": (
        Product(dtype="i8", sum="i32", depth=32, start="0 : index", fill="0 : index"),
        "an operand of 8 bits would have to be transposed",
    ),
    "two stages without room": (Product(columns=128, depth=256), "two stages need 263168 bytes of mem.shared"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_products_that_do_not_fit_say_why(name: str) -> None:
    product, reason = REFUSED[name]
    unit = check_unchanged(PASS, product.text, "sm_100a")
    found = remarks(unit, PASS.name)
    assert found
    assert all(decision == "not in tensor memory" and why.startswith(reason) for decision, why in found), found


@pytest.mark.parametrize("name", ["few rows", "a start other than zero", "computed operands"])
def test_a_declared_atom_that_does_not_fit_is_removed(name: str) -> None:
    product, _ = REFUSED[name]
    unit = applied(PASS, replace(product, atom=f'atom = "{ATOM}"').text, "sm_100a")
    assert atoms(unit) == [None]


def test_a_matmul_without_a_loop_is_refused() -> None:
    lines = Product().text.splitlines()
    loop = [n for n, line in enumerate(lines) if "tile.for" in line or "^bb1" in line or line.startswith("  }")]
    ends = [n for n, line in enumerate(lines) if "tile.yield(%" in line]
    flat = "\n".join(line for n, line in enumerate(lines) if n not in (*loop, *ends))
    flat = flat.replace("%i: index", "%t: index").replace("%b, %s)", "%b, %zero)").replace("%sum,", "%p,")
    unit = check_unchanged(PASS, flat, "sm_100a")
    assert remarks(unit, PASS.name) == [("not in tensor memory", "the matmul is not in a loop of its own")]


def test_a_loop_in_another_one_is_refused() -> None:
    sum, lines = "tensor<128x32xf32>", Product().text.replace("%sum = tile.for(%zero)", "%inner = tile.for(%zero)")
    outer = f"  %sum = tile.for(%zero) {{trips = 2 : index}} do {{\n  ^bb2(%u: index, %v: {sum}):\n  %inner = tile.for"
    text = lines.replace("  %inner = tile.for", outer)
    text = text.replace("\n  tile.store", f"\n  tile.yield(%inner)\n  }} : {sum}\n  tile.store")
    unit = check_unchanged(PASS, text, "sm_100a")
    assert remarks(unit, PASS.name) == [("not in tensor memory", "the matmul is not in a loop of its own")]


def test_a_kernel_that_has_fallen_back_is_left() -> None:
    """Its tiles in tensor memory had no room before."""
    unit = unit_of(parse(Product().text), {}, "sm_100a")
    unit.fallbacks.by_key["product"] = Fallback(1)
    PASS.apply(unit)
    assert atoms(unit) == [None]


def test_a_chain_that_declares_tensor_memory_is_kept() -> None:
    """Attention: whoever declares it knows that both matmuls fit."""
    product = Product(atom=f'atom = "{ATOM}"', between=SECOND.replace("{}", f'{{atom = "{ATOM}"}}'))
    assert check_unchanged(PASS, product.text, "sm_100a").remarks == []


# ---- whole programs -------------------------------------------------------------------------------------------------


def test_a_product_whose_rows_are_not_aligned_is_right(in_tensor_memory: Make) -> None:
    a, b = (numbers(shape, "f16", seed) for seed, shape in enumerate(((130, 100), (100, 40))))
    program = in_tensor_memory((128, 16, 32, 1, 3), lambda x, y: x @ y, a, b)
    (said,) = remarks_of(program, TileMultiplyInTensorMemoryPass)
    assert said.startswith("not in tensor memory")
    assert "do not begin at multiples of 16 bytes" in said
    assert ops_of(program, scheduled.RoleOp) == []
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.astype(np.float64)).astype(got.dtype))


def test_a_tile_of_other_rows_is_right() -> None:
    given = Given(m=64, n=32, k=96, M=64, N=32, K=32)
    unit = given.unit("sm_100a")
    (kernel,) = unit.kernels()
    assert not any(isinstance(op, scheduled.RoleOp) for op in kernel.walk())
    result: Any = emulated_unit(unit, given)[0]
    np.testing.assert_array_equal(result, given.exact())
