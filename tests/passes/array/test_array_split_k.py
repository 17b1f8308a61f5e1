"""Products that are summed in parts of their depth: when, and that they are right, on an emulator."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import KINDS, built, emulated
from tests.passes.array.test_array_order_operands import ORDERS, TYPES, operands, product
from tests.passes.pass_support import applied, check_meaning, check_unchanged
from tests.sampling import ALL, alternating
from tilewright import dtypes
from tilewright.cost import split_k as model
from tilewright.cost.split_k import SplitK, split_k
from tilewright.cost.warps.products import WarpProduct
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.machines.machine import load
from tilewright.passes.array import array_split_k

Tensor = np.ndarray[Any, Any]
PART = 128


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product that is deeper than a part is summed in parts of it."""

    def cut(product: WarpProduct, _machine: object) -> SplitK | None:
        return SplitK(PART, ceil(product.depth / PART), 1e-6, 2e-6) if product.depth > PART else None

    monkeypatch.setattr(array_split_k, "split_k", cut)


def run(function: Callable[..., Any], *arrays: Tensor, chip: str) -> Tensor:
    program = built(tw.jit(function).lower(*arrays), f"cuda:{chip}")
    assert [remark for remark in program.unit.remarks if remark.pass_name == "array-split-k"]
    (result,) = emulated(program, arrays)
    return result


def whole_numbers(*shape: int, dtype: str, seed: int) -> Tensor:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtypes.by_name(dtype).numpy)


@pytest.mark.parametrize(
    ("chip", "dtype", "rows", "columns", "depth"),
    [
        (chip, ("bf16", "f16", "f32")[(row + column) % 3], *shape)
        for row, chip in enumerate(KINDS)
        for column, shape in enumerate(((70, 40, 300), (64, 64, 384), (1, 33, 260)))
        if ALL or (row + column) % 2 == 0
    ],
)
def test_parts_of_any_shape(in_parts: None, chip: str, dtype: str, rows: int, columns: int, depth: int) -> None:
    a, b = whole_numbers(rows, depth, dtype=dtype, seed=0), whole_numbers(depth, columns, dtype=dtype, seed=1)
    got = run(lambda x, y: x @ y, a, b, chip=chip)
    assert got.dtype == a.dtype
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype))


@pytest.mark.parametrize(("types", "order"), alternating(TYPES, ORDERS))
def test_parts_of_operands_of_8_bits(in_parts: None, types: str, order: str) -> None:
    a, b, expected = operands(types, order, (48, 16, 208))
    np.testing.assert_array_equal(run(product(types, order), a, b, chip="sm_90a"), expected)


@pytest.mark.parametrize("chip", ["sm_90a", "sm_100a"])
def test_what_follows_a_product_follows_the_sum_of_its_parts(in_parts: None, chip: str) -> None:
    rng = np.random.default_rng(0)
    a, b, bias, residual = (
        rng.standard_normal(shape).astype(np.float16) for shape in ((64, 400), (400, 96), (96,), (64, 96))
    )
    got = run(lambda x, y, c, r: tw.nn.gelu(x @ y + c) + r, a, b, bias, residual, chip=chip)
    wide = [x.astype(np.float64) for x in (a, b, bias, residual)]
    z = wide[0] @ wide[1] + wide[2]
    erf = np.vectorize(__import__("math").erf)
    np.testing.assert_allclose(got, 0.5 * z * (1 + erf(z / np.sqrt(2))) + wide[3], atol=0.1, rtol=4e-3)


def test_batches_and_transposes(in_parts: None) -> None:
    a, b = whole_numbers(3, 300, 40, dtype="bf16", seed=0), whole_numbers(3, 24, 300, dtype="bf16", seed=1)
    got = run(lambda x, y: x.swapaxes(1, 2) @ y.swapaxes(1, 2), a, b, chip="sm_90a")
    expected = a.astype(np.float64).transpose(0, 2, 1) @ b.astype(np.float64).transpose(0, 2, 1)
    np.testing.assert_array_equal(got, expected.astype(got.dtype))


def test_a_product_of_few_tiles_is_split_and_its_parts_are_multiplied_by_warpgroups() -> None:
    a, b = whole_numbers(128, 8192, dtype="bf16", seed=0), whole_numbers(8192, 1024, dtype="bf16", seed=1)
    program = built(tw.jit(lambda x, y: x @ y).lower(a, b), "cuda:sm_90a")
    (remark,) = (each for each in program.unit.remarks if each.pass_name == "array-split-k")
    assert "parts" in remark.decision
    assert "wgmma" in program.ir("scheduled")
    assert "tensor_copy" in program.ir("scheduled")


def test_attention_is_taken_in_before_its_products_are_split() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return tw.nn.softmax(q @ k.T * 0.125, axis=-1) @ v

    q, k, v = (whole_numbers(1024, 64, dtype="f16", seed=n) for n in range(3))
    program = built(tw.jit(attention).lower(q, k, v), "cuda:sm_90a")
    assert list(program.kernels) == ["attention_0"]


def of(rows: int, columns: int, depth: int, dtype: str = "bf16") -> WarpProduct:
    type = dtypes.by_name(dtype)
    return WarpProduct(rows, columns, depth, type, type.compute, piece_bytes=16 if rows > 1 else 0)


@pytest.mark.parametrize("chip", KINDS)
def test_deep_products_of_few_results_are_split(chip: str) -> None:
    machine = load(chip)
    found = split_k(of(64, 64, 65536), machine)
    assert found is not None
    assert (found.parts - 1) * found.part < 65536 <= found.parts * found.part
    assert found.seconds < found.whole_s / 4


@pytest.mark.parametrize("chip", KINDS)
@pytest.mark.parametrize("size", [(64, 64, 256), (1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 65536)], ids=str)
def test_shallow_products_and_those_of_many_tiles_are_not(chip: str, size: tuple[int, int, int]) -> None:
    assert split_k(of(*size), load(chip)) is None


@pytest.mark.parametrize("chip", KINDS)
def test_parts_are_the_best_of_those_looked_at(chip: str) -> None:
    """Of all parts that are multiples of the least, those that are not looked at are little better."""
    machine, whole = load(chip), of(128, 128, 16384)
    found = split_k(whole, machine)
    assert found is not None
    sizes = range(PART, whole.depth, PART)
    best = min(model._seconds(whole, part, ceil(whole.depth / part), machine) for part in sizes)
    assert best <= found.seconds <= 1.05 * best


# ---- the pass alone -------------------------------------------------------------------------------------------------

PASS = array_split_k.ArraySplitKPass()


def contraction(
    left: str = "5x300",
    right: str = "300x7",
    result: str = "5x7",
    dtype: str = "i32",
    axes: tuple[str, str] = ("1", "0"),
) -> str:
    batch = ": 0" if result.count("x") == 2 else ""
    x, y, z = (f"tensor<{shape}x{dtype}>" for shape in (left, right, result))
    return f"""
    func.func @main(%x: {x}, %y: {y}) -> {z} {{
      %z = array.contract(%x, %y) {{left_batch = array<i64{batch}>, right_batch = array<i64{batch}>,
        left_contract = array<i64: {axes[0]}>, right_contract = array<i64: {axes[1]}>}} : {z}
      func.return %z : {z}
    }}
    """


@pytest.mark.parametrize(
    "text",
    [
        contraction(),
        contraction("300x5", "7x300", axes=("0", "1")),
        contraction("2x5x300", "2x300x7", "2x5x7", axes=("2", "1")),
        contraction("1x129", "129x1", "1x1"),
    ],
)
def test_parts_mean_the_whole(in_parts: None, text: str) -> None:
    """A last part that is shorter than the others among them."""
    unit = check_meaning(PASS, text, "sm_90a")
    (parts,) = (op for op in unit.main.walk() if isinstance(op, array.ContractOp))
    assert parts.part == PART
    depth = array_type(parts.operands[0]).shape[parts.left_contract[0]]
    assert array_type(parts.results[0]).shape[0] == ceil(depth / PART)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_parts_are_added_up_before_they_are_rounded(in_parts: None, dtype: str) -> None:
    unit = applied(PASS, contraction(dtype=dtype), "sm_90a")
    kinds = [op.name.removeprefix("array.") for op in unit.main.body.block.ops]
    assert kinds == ["contract", "reduce", "cast", "func.return"]
    parts = next(op for op in unit.main.body.block.ops if isinstance(op, array.ContractOp))
    assert array_type(parts.results[0]).dtype == dtypes.f32


@pytest.mark.parametrize(
    "text",
    [
        contraction("5x3x200", "3x200x7", axes=("1, 2", "0, 1")),
        contraction("0x300", "300x7", "0x7"),
        contraction("5x100", "100x7"),  # a part is all of it
    ],
    ids=["two contracted dims", "no results", "a shallow one"],
)
def test_other_contractions_are_left(in_parts: None, text: str) -> None:
    assert check_unchanged(PASS, text, "sm_90a").remarks == []
