"""Operands of products that are laid out along the contracted dimension first, on an emulator and by the definitions of
the schedules; and when they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import KINDS, built, by_definition, emulated
from tests.cuda.test_pipeline import executed
from tests.passes.pass_support import check_meaning, check_unchanged, parse
from tests.sampling import alternating
from tilewright import dtypes
from tilewright.cost.warps import products as warp_products
from tilewright.cost.warps.products import WarpProduct, warp_product_seconds, warp_schedule
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.machines.machine import load
from tilewright.passes.array import array_order_operands
from tilewright.passes.array.array_order_operands import ArrayOrderOperandsPass
from tilewright.targets.cuda.target import CudaProgram

Tensor = np.ndarray[Any, Any]
ORDERS = ("nn", "nt", "tn", "tt")
# What is multiplied, and the type of the sums.
TYPES = {"i8": ("i8", "i8", "i32"), "mixed": ("f8e4m3fn", "f8e5m2", "f32"), "e5m2": ("f8e5m2", "f8e5m2", "f32")}
# Rows, columns, depth: nothing aligned, rows that lanes copy in pieces, rows that the machine copies by itself.
SIZES = {"odd": (37, 29, 77), "even": (40, 24, 72), "whole": (48, 32, 96)}


def operands(types: str, order: str, sizes: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Two operands of whole numbers as they are stored, and their product."""
    rows, columns, depth = sizes
    rng = np.random.default_rng(sum(sizes))
    left, right = (rng.integers(-4, 5, shape) for shape in ((rows, depth), (depth, columns)))
    stored = [x.T if how == "t" else x for how, x in zip(order, (left, right), strict=True)]
    a, b = (
        np.ascontiguousarray(x).astype(dtypes.by_name(name).numpy)
        for x, name in zip(stored, TYPES[types], strict=False)
    )
    return a, b, (left @ right).astype(dtypes.by_name(TYPES[types][2]).numpy)


def product(types: str, order: str) -> Callable[[Any, Any], Any]:
    def of(a: Any, b: Any) -> Any:
        a, b = (x.T if how == "t" else x for how, x in zip(order, (a, b), strict=True))
        return tw.matmul(a, b, dtype=getattr(tw, TYPES[types][2]))

    return of


def said(program: CudaProgram) -> list[str]:
    return [str(each.reason) for each in program.unit.remarks if each.pass_name == ArrayOrderOperandsPass.name]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands are laid out however long that takes, so that small products are."""
    monkeypatch.setattr(array_order_operands, "_WORTH", 0.0)


@pytest.mark.parametrize(
    ("chip", "order", "types"), [*zip(KINDS, ORDERS, ("i8", "mixed", "e5m2", "i8"), strict=True)], ids=str
)
def test_small_products_take_their_operands_as_they_lie(chip: str, order: str, types: str) -> None:
    """Through registers."""
    for name in ("even", "odd"):
        a, b, expected = operands(types, order, SIZES[name])
        program = built(tw.jit(product(types, order)).lower(a, b), f"cuda:{chip}")
        assert said(program) == []
        got, counts = executed(program, [a, b])
        np.testing.assert_array_equal(got, expected)
        assert counts.shared_conflicts == 0
        np.testing.assert_array_equal(by_definition(program.unit, [a, b])[0], expected)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("chip", "order"), alternating(KINDS, ORDERS))
def test_products_of_operands_that_are_laid_out(chip: str, order: str) -> None:
    types = "i8" if order in ("nn", "tt") or chip == "sm_80" else "mixed"
    for name in SIZES if order == "tn" else ("odd",):
        a, b, expected = operands(types, order, SIZES[name])
        program = built(tw.jit(product(types, order)).lower(a, b), f"cuda:{chip}")
        moved = [side for side, how, whole in (("left", order[0], "n"), ("right", order[1], "t")) if how != whole]
        if name == "odd":
            moved = ["left", "right"]
        (why,) = said(program) or [""]
        assert all(side in why for side in moved), (name, why)
        np.testing.assert_array_equal(emulated(program, [a, b])[0], expected)
        np.testing.assert_array_equal(by_definition(program.unit, [a, b])[0], expected)


@pytest.mark.usefixtures("always")
def test_batches_and_what_follows() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.int8) for shape in ((3, 77, 37), (3, 77, 29)))
    bias = rng.integers(-9, 9, 29).astype(np.int32)

    def function(x: Any, y: Any, z: Any) -> Any:
        return tw.maximum(tw.matmul(x.mT, y, dtype=tw.i32) + z, 0)

    program = built(tw.jit(function).lower(a, b, bias), "cuda:sm_90a")
    assert len(program.kernels) == 3
    exact = np.maximum(np.einsum("bkm,bkn->bmn", a.astype(np.int64), b) + bias, 0)
    np.testing.assert_array_equal(emulated(program, [a, b, bias])[0], exact)


@pytest.mark.usefixtures("always")
def test_what_is_known_is_laid_out_when_it_is_compiled() -> None:
    a, b, expected = operands("i8", "nn", (40, 24, 96))
    program = built(tw.jit(lambda x: tw.matmul(x, tw.asarray(b), dtype=tw.i32)).lower(a), "cuda:sm_90a")
    assert len(program.kernels) == 1
    assert (24, 96) in [constant.shape for constant in program.unit.constants.values()]
    np.testing.assert_array_equal(emulated(program, [a])[0], expected)


@pytest.mark.usefixtures("always")
def test_rounded_operands_of_32_bits() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((77, 37), (77, 29)))
    program = built(tw.jit(lambda x, y: tw.matmul(x.T, y, precision="tf32")).lower(a, b), "cuda:sm_100a")
    assert len(program.kernels) == 3
    np.testing.assert_array_equal(emulated(program, [a, b])[0], a.T.astype(np.float64) @ b)


@pytest.mark.usefixtures("always")
def test_operands_that_are_computed_and_those_of_16_bits_stay() -> None:
    a, b, _ = operands("i8", "nn", (40, 24, 96))
    program = built(tw.jit(lambda x, y: tw.matmul(x, y[:, :20], dtype=tw.i32)).lower(a, b), "cuda:sm_90a")
    assert said(program) == []
    halves = built(
        tw.jit(lambda x, y: x.T @ y).lower(a.astype(np.float16).T.copy(), b.astype(np.float16)), "cuda:sm_80"
    )
    assert said(halves) == []


@pytest.mark.parametrize("chip", KINDS)
def test_large_products_are_worth_it(chip: str) -> None:
    """The remark gives the predicted times; aligned rows along the depth are multiplied where they lie."""
    square = tw.ShapeDtype((4096, 4096), tw.i8)
    (why,) = said(built(tw.jit(product("i8", "nn")).lower(square, square), f"cuda:{chip}"))
    assert why.startswith("right along the contracted dimension: ")
    spent, whole, otherwise = (int(word) for word in why.replace(",", "").split() if word.isdigit())
    assert spent < whole < otherwise
    assert said(built(tw.jit(product("i8", "nt")).lower(square, square), f"cuda:{chip}")) == []


def test_registers_are_counted() -> None:
    """Elements that come one by one take a register each, and more where some are beyond the array: tiles of a
    thread's registers are smaller then, and the product takes longer."""
    machine = load("sm_90a")
    aligned = WarpProduct(4096, 4096, 4096, dtypes.i8, dtypes.i32)
    scattered = WarpProduct(4096, 4096, 4096, dtypes.i8, dtypes.i32, scattered=(True, True))
    beyond = WarpProduct(4001, 4001, 4001, dtypes.i8, dtypes.i32, scattered=(True, True))
    sizes = [
        (s.tile.rows + s.tile.columns) * s.tile.depth for s in (warp_schedule(p, machine) for p in (aligned, scattered))
    ]
    assert sizes[1] < sizes[0]
    for each in (scattered, beyond):
        schedule = warp_schedule(each, machine)
        lanes = 32 * schedule.warps
        own = schedule.tile.rows * schedule.tile.columns / lanes
        own += (schedule.tile.rows + schedule.tile.columns) * schedule.tile.depth / lanes
        assert own < 255 - warp_products.REGISTERS_BESIDE
    assert warp_product_seconds(aligned, machine) < warp_product_seconds(scattered, machine)


# ---- the pass alone -------------------------------------------------------------------------------------------------

PASS = ArrayOrderOperandsPass()


def contraction(
    left: str = "20x37",
    right: str = "37x24",
    result: str = "20x24",
    dtype: str = "bf16",
    axes: tuple[str, str] = ("1", "0"),
    before: str = "",
    operands: str = "%x, %y",
) -> str:
    batch = ": 0" if result.count("x") == 2 else ""
    x, y, z = (f"tensor<{shape}x{dtype}>" for shape in (left, right, result))
    return f"""
    func.func @main(%x: {x}, %y: {y}) -> {z} {{
      {before}
      %z = array.contract({operands}) {{left_batch = array<i64{batch}>, right_batch = array<i64{batch}>,
        left_contract = array<i64: {axes[0]}>, right_contract = array<i64: {axes[1]}>}} : {z}
      func.return %z : {z}
    }}
    """


def whole_inputs(text: str) -> list[Tensor]:
    """Of which sums in any order are the same."""
    rng = np.random.default_rng(0)
    types = [array_type(value) for value in parse(text).body.block.first_op.body.block.args]
    return [rng.integers(-3, 4, type.shape).astype(type.dtype.numpy) for type in types]


@pytest.mark.parametrize(
    "text",
    [
        contraction(),
        contraction(dtype="f16"),
        contraction("37x20", "24x37", axes=("0", "1")),
        contraction("3x20x37", "3x37x24", "3x20x24", axes=("2", "1")),
    ],
)
def test_rows_are_padded_with_zeros(always: None, text: str) -> None:
    unit = check_meaning(PASS, text, "sm_90a", inputs=whole_inputs(text))
    (op,) = (each for each in unit.main.body.block.ops if isinstance(each, array.ContractOp))
    depth = array_type(op.operands[0]).shape[op.left_contract[0]]
    assert depth > 37
    assert depth % 2 == 0
    groups = [each for each in unit.main.body.block.ops if isinstance(each, array.FusedOp)]
    assert len(groups) == 2


SPLAT = '%y1 = array.constant() {value = 2.0 : f64, resource = ""} : tensor<37x24xbf16>'
SEVERAL = contraction("20x3x37", "3x37x24", axes=("1, 2", "0, 1"))
LEFT = {
    "f64, which nothing multiplies": contraction(dtype="f64"),
    "two contracted dims": SEVERAL,
    "one row": contraction("1x37", "37x24", "1x24"),
    "one column": contraction("20x37", "37x1", "20x1"),
    "no depth": contraction("20x0", "0x24"),
    "no rows": contraction("0x37", "37x24", "0x24"),
    "an operand that is the same everywhere": contraction(before=SPLAT, operands="%x, %y1"),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_operands_are_left(always: None, name: str) -> None:
    assert check_unchanged(PASS, LEFT[name], "sm_90a").remarks == []


def test_what_takes_longer_is_left() -> None:
    """As the cost model is: two kernels more for so little."""
    assert check_unchanged(PASS, contraction(), "sm_90a").remarks == []
