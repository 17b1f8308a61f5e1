"""Paddings around padded arrays, and around what is computed of them, as one."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import check_meaning, check_unchanged
from tilewright.dialects import array
from tilewright.passes.array.array_merge_pads import ArrayMergePadsPass

PASS = ArrayMergePadsPass()


def paddings(text: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    unit = check_meaning(PASS, text)
    return [(op.low, op.high) for op in unit.main.body.block.ops if isinstance(op, array.PadOp)]


def program(between: str, inner: float = 0.0, outer: float = 0.0, result: str = "%c", extra: str = "") -> str:
    """Two paddings of a row of four, and what is in between: from `%p` of six elements to `%m`."""
    return f"""
    func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<9xf32> {{
      %v = array.constant() {{value = {inner} : f64, resource = ""}} : tensor<f32>
      %w = array.constant() {{value = {outer} : f64, resource = ""}} : tensor<f32>
      %p = array.pad(%x, %v) {{low = array<i64: 2>, high = array<i64: 0>, interior = array<i64: 0>}} : tensor<6xf32>
      {extra}
      {between}
      %c = array.pad(%m, %w) {{low = array<i64: 1>, high = array<i64: 2>, interior = array<i64: 0>}} : tensor<9xf32>
      func.return {result} : tensor<9xf32>
    }}
    """


DOUBLED = '%m = array.map(%p, %p) {fn = "add"} : tensor<6xf32>'
ONE_MORE = """%one = array.constant() {value = 1.0 : f64, resource = ""} : tensor<6xf32>
      %n = array.map(%p, %one) {fn = "add"} : tensor<6xf32>
      %m = array.map(%n) {fn = "negative"} : tensor<6xf32>"""
NEGATED = '%m = array.map(%p) {fn = "negative"} : tensor<6xf32>'
LIKEWISE = """%q = array.pad(%y, %v) {low = array<i64: 2>, high = array<i64: 0>, interior = array<i64: 0>}
        : tensor<6xf32>
      %m = array.map(%p, %q) {fn = "multiply"} : tensor<6xf32>"""
ELSEWHERE = """%q = array.pad(%y, %v) {low = array<i64: 1>, high = array<i64: 1>, interior = array<i64: 0>}
        : tensor<6xf32>
      %m = array.map(%p, %q) {fn = "multiply"} : tensor<6xf32>"""


@pytest.mark.parametrize(
    ("between", "inner", "outer"),
    [
        (DOUBLED, 0.0, 0.0),
        (DOUBLED, 1.5, 3.0),
        (ONE_MORE, 0.0, -1.0),
        (NEGATED, 0.0, -0.0),
        (NEGATED, float("inf"), float("-inf")),
        (LIKEWISE, -3.0, 9.0),
    ],
)
def test_paddings_of_equal_values(between: str, inner: float, outer: float) -> None:
    text = program(between, inner, outer).replace("-inf", "0xfff0000000000000").replace("inf", "0x7ff0000000000000")
    assert paddings(text) == [((3,), (2,))]


@pytest.mark.parametrize(
    ("between", "inner", "outer"),
    [(DOUBLED, 1.5, 1.5), (ONE_MORE, 0.0, 0.0), (NEGATED, 0.0, 0.0), (ELSEWHERE, 0.0, 0.0)],
)
def test_paddings_of_other_values_or_widths(between: str, inner: float, outer: float) -> None:
    check_unchanged(PASS, program(between, inner, outer))


def test_a_padded_array_that_is_needed_itself() -> None:
    extra = '%s = array.reduce(%p) {fn = "add", axes = array<i64: 0>} : tensor<f32>'
    use = """%m = array.map(%p, %p) {fn = "add"} : tensor<6xf32>
      %b = array.broadcast(%s) {axes = array<i64>} : tensor<9xf32>"""
    text = program(use, extra=extra).replace(
        "func.return %c", '%d = array.map(%b, %c) {fn = "add"} : tensor<9xf32>\n      func.return %d'
    )
    check_unchanged(PASS, text)


@pytest.mark.parametrize("dtype", ["f4", "i8", "?"])
def test_native_code(dtype: str) -> None:
    """Paddings of transposed paddings are one kernel."""

    def function(xp, x):
        y = xp.pad(xp.pad(xp.permute_dims(x, (1, 0, 2)), ((3, 1), (0, 1), (3, 3))), ((0, 0), (3, 0), (1, 2)))
        y = y & y if dtype == "?" else y + y
        y = xp.permute_dims(y, (0, 2, 1))
        return xp.pad(y, ((3, 2), (1, 0), (2, 2)))

    x = (np.random.default_rng(0).standard_normal((35, 6, 2)) * 9).astype(dtype)
    f = tw.jit(lambda x: function(tw, x))
    np.testing.assert_array_equal(f(x), function(np, x))
    assert f.lower(x).compile().ir("tile").count("tile.kernel(") == 1


def test_long_chains() -> None:
    """Each value is looked at once, however often it is read."""

    def function(xp, x):
        for n in range(60):
            x = xp.pad(x + x, ((n % 2, 0),))
        return x

    x = np.arange(5, dtype=np.int64)
    np.testing.assert_array_equal(tw.jit(lambda x: function(tw, x))(x), function(np, x))


@pytest.mark.parametrize("dtype", ["f4", "i4", "f2"])
@pytest.mark.parametrize(("fn", "value"), [("sum", 0), ("max", None), ("sum", 1)])
def test_reductions_of_paddings(fn: str, value: int | None, dtype: str) -> None:
    """Zeros add nothing; ones do. The padding along dims that are kept is one of the result."""
    least = -np.inf if dtype != "i4" else np.iinfo(np.int32).min
    around = least if value is None else value
    x = np.random.default_rng(0).integers(-9, 9, (5, 40, 7)).astype(dtype)

    def function(xp, x):
        wide = xp.pad(x, ((1, 2), (3, 0), (0, 4)), constant_values=around)
        return getattr(xp, fn)(wide, axis=(0, 1)), getattr(xp, fn)(wide * 2 if fn == "sum" else wide, axis=2)

    f = tw.jit(lambda x: function(tw, x))
    for found, expected in zip(f(x), function(np, x), strict=True):
        np.testing.assert_array_equal(found, expected.astype(dtype))


def test_a_reduction_along_which_there_is_no_padding_stays() -> None:
    text = """
    func.func @main(%x: tensor<4x6xf32>) -> tensor<6xf32> {
      %v = array.constant() {value = 0.0 : f64, resource = ""} : tensor<f32>
      %p = array.pad(%x, %v) {low = array<i64: 2, 0>, high = array<i64: 0, 0>, interior = array<i64: 0, 0>}
        : tensor<6x6xf32>
      %z = array.reduce(%p) {fn = "add", axes = array<i64: 1>} : tensor<6xf32>
      func.return %z : tensor<6xf32>
    }
    """
    check_unchanged(PASS, text)
    inside = check_meaning(PASS, text.replace("axes = array<i64: 1>", "axes = array<i64: 0>"))
    assert not [op for op in inside.main.walk() if isinstance(op, array.PadOp)]
