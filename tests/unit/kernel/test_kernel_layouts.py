"""`tw.layout` in kernels: nothing changes but where tiles are; what it takes, what it refuses, and its text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_support import check, run
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

import tilewright as tw
from tilewright.dialects.array import Array
from tilewright.dialects.func import Func
from tilewright.dialects.tile import RelayoutOp, Tile
from tilewright.errors import ArgumentError, LayoutConflictError, ShapeError, TilewrightError, UnsupportedSyntaxError
from tilewright.layout import Dim, Layout, catalogue, row_major

PLAIN = tw.layouts.row_major((64, 16))
TEXT = "(64, 16) : [64@reg*4 | 4@reg 4@simd]"
COLUMNS = "(64, 16) : [16@reg 4@simd | 16@reg*16]"
FRAGMENT = tw.layouts.wgmma_accumulator((64, 16))


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@tw.kernel
def pinned(x: tw.In["M N"], y: tw.Out["M N"], *, wanted: Any = PLAIN):
    for i, j in tw.grid(x, (64, 16)):
        t = tw.layout(x[i, j], wanted)
        u = tw.layout((t + 0) * 2, TEXT, strict=True)
        s = tw.layout(tw.sum(tw.layout(u, PLAIN), axis=1), "(64) : [16@reg 4@simd]")
        y[i, j] = tw.layout(u + s[:, None], tw.layout.column_major((64, 16)))


def reference(x: np.ndarray) -> np.ndarray:
    total = [(2 * x[:, j : j + 16]).sum(axis=1, keepdims=True) for j in range(0, x.shape[1], 16)]
    return 2 * x + np.repeat(np.concatenate(total, axis=1), 16, axis=1)[:, : x.shape[1]]


@pytest.mark.parametrize("wanted", [PLAIN, str(PLAIN), TEXT, Layout.parse(TEXT), COLUMNS])
@pytest.mark.parametrize("shape", [(64, 16), (100, 40)])
def test_a_pinned_kernel_computes_what_it_did(shape: tuple[int, int], wanted: Any) -> None:
    check(pinned, reference, numbers(*shape), tolerance=1e-6, wanted=wanted)


def test_pins_in_loops_and_branches() -> None:
    @tw.kernel
    def running(x: tw.In["M N"], y: tw.Out["M"]):
        for i in tw.grid(y, 16):
            total = tw.layout(tw.zeros((16,)), "(16) : [4@reg 4@simd]")
            for k in tw.steps(x, axis=1, size=8):
                total = tw.layout(total + tw.sum(x[i, k], axis=1), "(16) : [4@reg 4@simd]", strict=True)
            if tw.max(total) > 0:
                total = tw.layout(total * 2, "(16) : [4@reg 4@simd]")
                total = total + 1
            else:
                total = total - 1
            y[i] = total

    def plain(x: np.ndarray) -> np.ndarray:
        sums = x.sum(axis=1).reshape(-1, 16)
        return np.where(sums.max(axis=1, keepdims=True) > 0, sums * 2 + 1, sums - 1).reshape(-1)

    check(running, plain, numbers(32, 90), tolerance=1e-5)


def test_a_pin_of_a_product_changes_nothing() -> None:
    @tw.kernel
    def matmul(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
        for i, j in tw.grid(c, (64, 16)):
            acc = tw.layout(tw.zeros((64, 16)), TEXT)
            for k in tw.steps(a, axis=1, size=16):
                left = tw.layout(a[i, k], COLUMNS)
                acc = tw.layout(tw.dot(left, tw.layout(b[k, j], tw.layouts.row_major((16, 16))), acc), COLUMNS)
            c[i, j] = acc

    check(matmul, lambda a, b: a @ b, numbers(128, 37), numbers(37, 33), tolerance=1e-5)


def test_lanes_beyond_the_array_stay_beyond_it() -> None:
    @tw.kernel
    def mean(x: tw.In["M"], y: tw.Out["1"]):
        for i in tw.grid(y, 1):
            y[i] = tw.reshape(tw.mean(tw.layout(x[0:16], "(16) : [4@reg 4@simd]")), (1,))

    check(mean, lambda x: x.mean(keepdims=True), numbers(13), tolerance=1e-6)


def test_another_pin_is_another_kernel() -> None:
    first, second = (pinned.lower(numbers(64, 16), wanted=wanted).specialisation for wanted in (PLAIN, TEXT))
    again = pinned.lower(numbers(64, 16), wanted=tw.layouts.row_major((64, 16))).specialisation
    assert first.digest != second.digest
    assert first.digest == again.digest


def test_a_layout_of_another_machine_is_refused_where_code_is_made_for_one() -> None:
    """The interpreter knows no machine; code for a CPU cannot put tiles into the registers of warps."""
    x = numbers(64, 16)
    check(pinned, reference, x, tolerance=1e-6, targets=("interp",), wanted=FRAGMENT)
    with pytest.raises(LayoutConflictError, match="has no axis `warp`") as caught:
        run(pinned, x, target="cpu", wanted=FRAGMENT)
    assert caught.value.location is not None
    assert "tw.layout(x[i, j], wanted)" in caught.value.location.snippet()


# ---- what it refuses ------------------------------------------------------------------------------------------------


def refused(layout: Any, **keywords: Any) -> TilewrightError:
    @tw.kernel
    def kernel(x: tw.In["M N"], y: tw.Out["M N"]):
        for i, j in tw.grid(x, (64, 16)):
            y[i, j] = tw.layout(x[i, j], layout, **keywords)

    with pytest.raises(TilewrightError) as caught:
        kernel.lower(numbers(64, 16)).ir()
    assert caught.value.location is not None
    assert "tw.layout(x[i, j], layout" in caught.value.location.snippet()
    assert caught.value.help
    return caught.value


def test_a_layout_of_another_shape_is_refused() -> None:
    error = refused(row_major((16, 64)))
    assert type(error) is ShapeError
    assert "shape (64, 16)" in error.message
    assert "shape (16, 64)" in error.message


def test_what_is_no_layout_is_refused() -> None:
    assert type(refused((64, 16))) is ArgumentError
    assert "invalid text of a layout" in refused("rows").message
    assert "no axis of any machine" in refused("(64, 16) : [64@rows | 16@mem]").message
    assert "unknown sizes" in refused(row_major((Dim(1, 64, 1, "M"), 16))).message
    assert type(refused(row_major((64, 16)), strict=1)) is ArgumentError


def test_a_scalar_has_no_layout() -> None:
    @tw.kernel
    def kernel(x: tw.In["M"], y: tw.Out["M"]):
        for i in tw.grid(x, 16):
            y[i] = x[i] + tw.layout(tw.sum(x[i]), "() : []")

    with pytest.raises(ShapeError, match="a scalar has no layout"):
        kernel.lower(numbers(16)).ir()


def test_arrays_have_none_either() -> None:
    with pytest.raises(UnsupportedSyntaxError, match="belongs inside a function") as caught:
        tw.jit(lambda x: tw.layout(x, row_major((4, 4))))(numbers(4, 4))
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    with pytest.raises(UnsupportedSyntaxError):
        tw.layout(numbers(4, 4), row_major((4, 4)))


# ---- names ----------------------------------------------------------------------------------------------------------


def test_the_catalogue_is_public() -> None:
    for name in catalogue.__all__:
        assert getattr(tw.layouts, name) is getattr(catalogue, name)
    assert tw.layouts.row_major is row_major
    assert tw.layouts.Layout is Layout
    assert {"Layout", "row_major", *catalogue.__all__} <= set(dir(tw.layouts))
    with pytest.raises(AttributeError, match="no attribute 'wgmma'"):
        _ = tw.layouts.wgmma
    assert tw.layout.row_major is row_major


# ---- the operation --------------------------------------------------------------------------------------------------


def parse(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, Array, Tile):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def test_the_text_parses_to_the_same_text() -> None:
    text = pinned.lower(numbers(100, 40)).ir()
    assert text.count("tile.relayout") == 5
    module = parse(text)
    module.verify()
    assert str(module.body.block.first_op) == text
    pins = [op.pinned for op in module.walk() if isinstance(op, RelayoutOp)]
    assert pins[:2] == [PLAIN, Layout.parse(TEXT)]
    assert [op.strict for op in module.walk() if isinstance(op, RelayoutOp)] == [False, True, *[False] * 3]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (TEXT, "(64, 16) : [", "invalid text of a layout"),
        (TEXT, "(16, 64) : [16@mem | 64@mem*16]", "a layout of shape"),
        (TEXT, "(64, 16) : [32@reg*16 | 16@mem]", "digits of dim 0"),
        (" : tensor<64x16xf32>", " : tensor<64x16xf16>", "differ"),
    ],
)
def test_a_broken_pin_does_not_verify(old: str, new: str, message: str) -> None:
    lines = pinned.lower(numbers(64, 16)).ir().splitlines()
    lines = [line.replace(old, new) if "strict = true" in line else line for line in lines]
    with pytest.raises(VerifyException, match=message):
        next(op for op in parse("\n".join(lines)).walk() if isinstance(op, RelayoutOp) and op.strict).verify()
