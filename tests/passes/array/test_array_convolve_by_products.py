"""Convolutions as products of rows of positions: when, and that they are right on an emulator and in order by the
definitions of their schedules."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built, by_definition, emulated
from tests.cuda.test_convolutions import CASES as ROW_BY_ROW
from tests.cuda.test_convolutions import Case, compiled
from tests.passes.pass_support import applied, check_unchanged, parse, run, unit_of
from tests.sampling import sampled
from tilewright import dtypes
from tilewright.dialects import array
from tilewright.passes.array import array_convolve_by_products
from tilewright.passes.array.array_convolve_by_products import ArrayConvolveByProductsPass
from tilewright.targets.cuda.target import CudaProgram

Tensor = np.ndarray[Any, Any]
CASES = {
    "padded": Case(64, 64, (5, 14), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "many steps": Case(136, 40, (4, 7), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "one side": Case(64, 72, (4, 11), (2, 3), (1, 1), ((1, 0), (0, 2)), (1, 1)),
    "dilated": Case(32, 48, (8, 10), (3, 2), (1, 1), ((2, 2), (0, 3)), (2, 3)),
    "few channels": Case(3, 40, (9, 10), (4, 5), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    "line": Case(24, 48, (90,), (4,), (1,), ((2, 1),), (2,)),
    "volume": Case(16, 32, (3, 4, 8), (2, 3, 2), (1, 1, 1), ((1, 0), (1, 1), (0, 1)), (1, 1, 1)),
    "points": Case(72, 64, (5, 27), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    "points with strides": Case(136, 64, (9, 28), (1, 1), (2, 3), ((0, 1), (2, 0)), (1, 1)),
    "strides": Case(24, 64, (9, 14), (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    "stem": Case(3, 32, (11, 12), (5, 5), (2, 2), ((2, 2), (2, 2)), (1, 1)),
    "uneven strides": Case(20, 64, (11, 16), (2, 5), (3, 2), ((0, 1), (2, 0)), (1, 1)),
    "strides beyond the window": Case(16, 64, (17, 17), (2, 2), (3, 3), ((0, 0), (1, 0)), (1, 1)),
    "few results": Case(64, 64, (5, 5), (3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1)),
}
CHIPS = ("sm_90a", "sm_100a")
# What differs between the chips is how products are made, and not which.
ON_BOTH = ("padded", "line", "points with strides", "strides", "few results")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be a product is one, so that small convolutions are."""
    monkeypatch.setattr(array_convolve_by_products, "_WORTH", 0.0)


def said(program: CudaProgram) -> list[str]:
    return [each.decision for each in program.unit.remarks if each.pass_name == ArrayConvolveByProductsPass.name]


@pytest.mark.parametrize(
    ("name", "chip"),
    sampled([(name, chip) for name in CASES for chip in CHIPS if chip == "sm_90a" or name in ON_BOTH], 2),
)
def test_products_agree_with_numpy(always: None, name: str, chip: str) -> None:
    case = CASES[name]
    x, w = case.arrays(tw.bf16)
    program = compiled(case, chip, x, w)
    assert said(program) == ["a matmul over rows of positions"]
    case.check(emulated(program, [x, w])[0], x, w)
    if chip == "sm_90a":
        case.check(by_definition(program.unit, [x, w])[0], x, w)


def multiplied(program: CudaProgram, case: Case, arrays: tuple[Tensor, Tensor], instruction: str) -> None:
    """By an instruction, of what the machine copies; right, and in order."""
    ptx = "".join(program.ptx.values())
    assert instruction in ptx
    assert "cp.async.bulk.tensor" in ptx
    case.check(emulated(program, arrays)[0], *arrays)
    case.check(by_definition(program.unit, arrays)[0], *arrays)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("padded", (64, 64, 64, 1, 2)),
        ("dilated", (128, 64, 32, 2, 3)),
        ("volume", (64, 64, 64, 1, 2)),
        ("points with strides", (128, 64, 32, 2, 3)),
        ("strides", (128, 64, 32, 2, 3)),
    ],
    ids=str,
)
def test_warpgroups_multiply(
    always: None, name: str, shape: tuple[int, int, int, int, int], by_warpgroups: Callable[..., CudaProgram]
) -> None:
    case = CASES[name]
    arrays = case.arrays(tw.f16)
    multiplied(by_warpgroups(shape, case.program, *arrays), case, arrays, "wgmma.mma_async")


@pytest.mark.parametrize("name", ["padded", "many steps", "line"])
def test_they_are_multiplied_in_tensor_memory(
    always: None, name: str, in_tensor_memory: Callable[..., CudaProgram]
) -> None:
    case = CASES[name]
    arrays = case.arrays(tw.bf16)
    multiplied(in_tensor_memory((128, 64, 64, 1, 2), case.program, *arrays), case, arrays, "tcgen05.mma")


@pytest.mark.parametrize("name", ["groups", "odd"])
def test_others_go_row_by_row(always: None, name: str) -> None:
    case = ROW_BY_ROW[name]
    assert said(compiled(case, "sm_90a", *case.arrays(tw.bf16))) == []


@pytest.mark.parametrize("chip", ["sm_80", "sm_120a"])
def test_chips_whose_warps_copy_go_row_by_row(always: None, chip: str) -> None:
    case = CASES["padded"]
    assert said(compiled(case, chip, *case.arrays(tw.bf16))) == []


def test_known_weights_are_laid_out_when_they_are_compiled(always: None) -> None:
    case = CASES["many steps"]
    x, w = case.arrays(tw.bf16)
    program = built(tw.jit(lambda x: case.program(x, tw.asarray(w))).lower(x), "cuda:sm_90a")
    assert len(program.kernels) == 3
    case.check(emulated(program, [x])[0], x, w)


def after(x: Any, w: Any, bias: Any) -> Any:
    return tw.maximum(tw.nn.conv(x, w, padding=1) + bias[:, None, None], 0)


@pytest.mark.parametrize("chip", CHIPS)
def test_what_follows_is_computed_where_results_are_taken(always: None, chip: str) -> None:
    case = Case(64, 64, (8, 10), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    x, w = case.arrays(tw.f16)
    bias = np.linspace(-20, 20, 64).astype(np.float16)
    program = built(tw.jit(after).lower(x, w, bias), f"cuda:{chip}")
    assert len(program.kernels) == 4
    got = emulated(program, [x, w, bias])[0].astype(np.float64)
    product = case.exact(x, w).astype(np.float16).astype(np.float64)
    expected = np.maximum(product + bias.astype(np.float64)[:, None, None], 0)
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize(("size", "is_product"), [((256, 28, 256), True), ((3, 12, 8), False)], ids=str)
def test_the_quicker_way_is_taken(size: tuple[int, int, int], is_product: bool) -> None:
    channels, side, outputs = size
    case = Case(channels, outputs, (side, side), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    x, w = (tw.ShapeDtype(shape, tw.bf16) for shape in ((8, channels, side, side), (outputs, channels, 3, 3)))
    decision = "a matmul over rows of positions" if is_product else "row by row"
    program = built(tw.jit(case.program).lower(x, w), "cuda:sm_90a")
    assert said(program) == [decision]


@pytest.mark.parametrize("types", ["f8e4m3fn", "f8e5m2"])
def test_operands_of_8_bits(always: None, types: str) -> None:
    case = Case(64, 64, (6, 9), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    dtype = getattr(tw, types)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(dtype.numpy) for shape in ((2, 64, 6, 9), (64, 64, 3, 3)))
    program = compiled(case, "sm_90a", x, w)
    assert said(program) == ["a matmul over rows of positions"]
    got = emulated(program, [x, w])[0]
    np.testing.assert_array_equal(got, case.exact(x, w).astype(got.dtype))


# ---- the pass alone -------------------------------------------------------------------------------------------------

PASS = ArrayConvolveByProductsPass()


def convolution(
    image: tuple[int, ...],
    weights: tuple[int, ...],
    *,
    dtype: str = "f16",
    strides: tuple[int, ...] = (1, 1),
    low: tuple[int, ...] = (0, 0),
    high: tuple[int, ...] = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
    before: str = "",
) -> str:
    reach = [(size - 1) * gap + 1 for size, gap in zip(weights[2:], dilation, strict=True)]
    sides = zip(image[2:], low, high, reach, strides, strict=True)
    result = (image[0], weights[0], *((x + a + b - w) // step + 1 for x, a, b, w, step in sides))
    x, w, y = (f"tensor<{'x'.join(map(str, shape))}x{dtype}>" for shape in (image, weights, result))
    attributes = {"strides": strides, "low": low, "high": high, "dilation": dilation}
    text = ", ".join(f"{name} = array<i64: {', '.join(map(str, each))}>" for name, each in attributes.items())
    return f"""
    func.func @main(%x: {x}, %w: {w}) -> {y} {{
      {before.replace("WEIGHTS", w)}
      %y = array.convolve(%x, {"%v" if before else "%w"}) {{{text}, groups = {groups} : i64}} : {y}
      func.return %y : {y}
    }}
    """


def drawn(seed: int) -> tuple[str, list[Tensor], bool]:
    """Windows of any size, strides, gaps and padding, whole numbers for them, and whether they move without strides or
    have no gaps."""
    rng = random.Random(seed)
    rank = rng.randint(1, 3)

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randint(low, high) for _ in range(rank))

    window, gaps, strides = each(1, 4), each(1, 2), each(1, 3)
    channels, results = rng.choice((1, 3, 8, 17)), rng.choice((1, 4, 16))
    sides = tuple((w - 1) * gap + 1 + rng.randint(0, 6) for w, gap in zip(window, gaps, strict=True))
    image, weights = (rng.randint(1, 2), channels, *sides), (results, channels, *window)
    dtype = rng.choice(("f16", "bf16"))
    text = convolution(image, weights, dtype=dtype, strides=strides, low=each(0, 2), high=each(0, 2), dilation=gaps)
    numbers = np.random.default_rng(seed)
    numpy = dtypes.by_name(dtype).numpy
    has_strides = prod(window) > 1 and prod(strides) > 1
    arrays = [numbers.integers(-2, 3, shape).astype(numpy) for shape in (image, weights)]
    return text, arrays, not (has_strides and prod(gaps) > 1)


@pytest.mark.parametrize("seed", range(30))
def test_random_convolutions_mean_the_same(always: None, seed: int) -> None:
    text, arrays, is_product = drawn(seed)
    before, unit = unit_of(parse(text), {}, "sm_90a"), applied(PASS, text, "sm_90a")
    for got, expected in zip(run(unit, arrays), run(before, arrays), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert is_product != any(isinstance(op, array.ConvolveOp) for op in unit.main.walk())


EQUAL = '%v = array.constant() {value = 1.0 : f64, resource = ""} : WEIGHTS'
LEFT = {
    "groups": convolution((1, 6, 7, 7), (4, 3, 3, 3), groups=2),
    "f32": convolution((1, 6, 7, 7), (4, 6, 3, 3), dtype="f32"),
    "strides over gaps": convolution((1, 6, 9, 9), (4, 6, 3, 3), strides=(2, 1), dilation=(1, 2)),
    "equal weights": convolution((1, 6, 7, 7), (4, 6, 3, 3), before=EQUAL),
    "no images": convolution((0, 6, 7, 7), (4, 6, 3, 3)),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_convolutions_are_left(always: None, name: str) -> None:
    assert check_unchanged(PASS, LEFT[name], "sm_90a").remarks == []


def test_warps_that_copy_do_not_multiply_rows_of_positions(always: None) -> None:
    assert check_unchanged(PASS, convolution((1, 6, 7, 7), (4, 6, 3, 3)), "sm_80").remarks == []
