"""Weights of convolutions that `array-order-weights` reorders by window position, and those that it leaves."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import check_meaning, check_unchanged, parse, remarks, run, unit_of
from tilewright.dialects import array
from tilewright.passes.array.array_order_weights import ArrayOrderWeightsPass


def convolution(
    window: tuple[int, ...],
    dtype: str = "bf16",
    *,
    groups: int = 1,
    channels: int = 6,
    given: str = "",
) -> str:
    """A convolution of 4 channels for each result with an image of some more positions than the window; `given` makes
    the weights."""
    x = "x".join(map(str, (2, channels, *(n + 4 for n in window)))) + f"x{dtype}"
    w = "x".join(map(str, (4, channels // groups, *window))) + f"x{dtype}"
    y = "x".join(map(str, (2, 4, *(5 for _ in window)))) + f"x{dtype}"
    ones, zeros = (", ".join(str(n) for _ in window) for n in (1, 0))
    arguments = f"%x: tensor<{x}>" + ("" if given else f", %w: tensor<{w}>")
    return f"""
    func.func @main({arguments}) -> tensor<{y}> {{
      {given.replace("WEIGHTS", f"tensor<{w}>").replace("SCALAR", f"tensor<{dtype}>")}
      %y = array.convolve(%x, %w) {{strides = array<i64: {ones}>, low = array<i64: {zeros}>,
        high = array<i64: {zeros}>, dilation = array<i64: {ones}>, groups = {groups} : i64}} : tensor<{y}>
      func.return %y : tensor<{y}>
    }}
    """


@pytest.mark.parametrize(
    ("window", "dtype", "groups"),
    [((3,), "f16", 1), ((3, 2), "bf16", 1), ((1, 3), "f16", 2), ((2, 1, 2), "bf16", 1), ((3, 3), "f8E4M3FN", 1)],
    ids=str,
)
def test_weights_of_many_positions_are_reordered(window: tuple[int, ...], dtype: str, groups: int) -> None:
    text = convolution(window, dtype, groups=groups)
    unit = check_meaning(ArrayOrderWeightsPass(), text, "sm_90a")
    (group,) = (op for op in unit.main.walk() if isinstance(op, array.FusedOp))
    assert str(group.results[0].type).startswith(f"tensor<{'x'.join(map(str, window))}x4x")
    assert remarks(unit, "array-order-weights") == [("reorder", "weights by window position")]


def test_windows_of_one_position_are_in_order() -> None:
    check_unchanged(ArrayOrderWeightsPass(), convolution((1, 1)), "sm_90a")


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_types_that_no_instruction_multiplies_are_left(dtype: str) -> None:
    check_unchanged(ArrayOrderWeightsPass(), convolution((3, 3), dtype), "sm_90a")


def test_equal_weights_are_left() -> None:
    given = '%w = array.constant() {value = 1.0 : f64, resource = ""} : WEIGHTS'
    check_unchanged(ArrayOrderWeightsPass(), convolution((3, 3), given=given), "sm_90a")


def test_convolutions_without_results_are_left() -> None:
    text = convolution((3, 3)).replace("2x4x5x5", "0x4x5x5").replace("2x6x7x7", "0x6x7x7")
    check_unchanged(ArrayOrderWeightsPass(), text, "sm_90a")


def test_weights_that_are_known_are_reordered_when_compiled() -> None:
    given = '%w = array.constant() {value = 0 : index, resource = "w"} : WEIGHTS'
    text = convolution((2, 3), "f16", given=given)
    rng = np.random.default_rng(0)
    weights = rng.integers(-3, 4, (4, 6, 2, 3)).astype(np.float16)
    before, unit = unit_of(parse(text), {"w": weights}, "sm_90a"), unit_of(parse(text), {"w": weights}, "sm_90a")
    ArrayOrderWeightsPass().apply(unit)
    unit.module.verify()
    assert not [op for op in unit.main.walk() if isinstance(op, array.FusedOp)]
    (order,) = (op for op in unit.main.walk() if isinstance(op, array.TransposeOp))
    stored = order.operands[0].owner
    assert isinstance(stored, array.ConstantOp)
    np.testing.assert_array_equal(unit.constants[stored.resource], weights.transpose(2, 3, 0, 1))
    x = rng.integers(-3, 4, (2, 6, 6, 7)).astype(np.float16)
    np.testing.assert_array_equal(run(unit, [x])[0], run(before, [x])[0])


def test_weights_that_are_a_transpose_are_reordered_from_where_they_are_stored() -> None:
    """The group takes the transpose in: weights are copied once."""
    text = convolution((3, 2)).replace("%w: tensor<4x6x3x2xbf16>", "%v: tensor<6x4x3x2xbf16>")
    view = "%w = array.transpose(%v) {permutation = array<i64: 1, 0, 2, 3>} : tensor<4x6x3x2xbf16>\n      %y = "
    unit = check_meaning(ArrayOrderWeightsPass(), text.replace("%y = ", view, 1), "sm_90a")
    (group,) = (op for op in unit.main.walk() if isinstance(op, array.FusedOp))
    assert [op.name for op in group.body.block.ops] == ["array.transpose", "array.transpose", "array.yield"]
    assert list(group.operands) == [unit.main.body.block.args[1]]
