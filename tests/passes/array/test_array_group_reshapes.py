"""Reshapes that `array-group-reshapes` makes kernels of once fusion is done: all that move pages, and no others."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import check_meaning, check_unchanged
from tilewright.dialects import array
from tilewright.passes.array.array_group_reshapes import ArrayGroupReshapesPass


def reshaped(before: str, after: str, dtype: str) -> str:
    return f"""
    func.func @main(%x: tensor<{before}x{dtype}>) -> tensor<{after}x{dtype}> {{
      %y = array.reshape(%x) : tensor<{after}x{dtype}>
      func.return %y : tensor<{after}x{dtype}>
    }}
    """


@pytest.mark.parametrize(
    ("before", "after", "dtype"), [("6x35", "2x3x5x7", "f32"), ("33x64", "3x11x64", "bf16"), ("1x9", "9x1", "i32")]
)
def test_reshapes_to_other_pages_are_kernels(before: str, after: str, dtype: str) -> None:
    """Reshapes that only move a dim of size 1 get a kernel, too, if no other group fused them."""
    unit = check_meaning(ArrayGroupReshapesPass(), reshaped(before, after, dtype), "wormhole")
    (group,) = (op for op in unit.main.body.block.ops if isinstance(op, array.FusedOp))
    assert (group.kind, group.why) == ("reshape", "pages change")


@pytest.mark.parametrize(
    ("before", "after"), [("96x7", "3x32x7"), ("33x64", "1x33x64"), ("5", "1x5"), ("0x6", "0x2x3")], ids=str
)
def test_reshapes_that_keep_pages_are_views(before: str, after: str) -> None:
    check_unchanged(ArrayGroupReshapesPass(), reshaped(before, after, "f32"), "wormhole")


def test_reshapes_in_groups_stay_there() -> None:
    text = """
    func.func @main(%x: tensor<6x10xf32>) -> tensor<60xf32> {
      %y = array.fused(%x) {kind = "loop", why = "exp"} do {
      ^bb0(%a: tensor<6x10xf32>):
        %b = array.reshape(%a) : tensor<60xf32>
        %c = array.map(%b) {fn = "exp"} : tensor<60xf32>
        array.yield(%c)
      } : tensor<60xf32>
      func.return %y : tensor<60xf32>
    }
    """
    check_unchanged(ArrayGroupReshapesPass(), text, "wormhole")


def test_reshapes_in_loops_are_kernels_there() -> None:
    text = """
    func.func @main(%x: tensor<4x9xf32>, %go: tensor<i1>) -> tensor<4x9xf32> {
      %y = array.if(%go) do {
        %a = array.reshape(%x) : tensor<6x6xf32>
        %b = array.transpose(%a) {permutation = array<i64: 1, 0>} : tensor<6x6xf32>
        %c = array.reshape(%b) : tensor<4x9xf32>
        array.yield(%c)
      } do {
        array.yield(%x)
      } : tensor<4x9xf32>
      func.return %y : tensor<4x9xf32>
    }
    """
    unit = check_meaning(ArrayGroupReshapesPass(), text, "wormhole")
    groups = [op for op in unit.main.walk() if isinstance(op, array.FusedOp)]
    assert [type(group.parent_op()) for group in groups] == [array.IfOp, array.IfOp]
