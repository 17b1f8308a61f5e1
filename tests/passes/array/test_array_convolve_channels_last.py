"""Which convolutions are done with channels last, what follows them in that order, and what does not change."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import Make, Tensor, random_inputs, remarks, run, run_through
from tests.programs import F32, Program
from tilewright.dialects import array
from tilewright.dtypes import by_name
from tilewright.frontend.trace import Value
from tilewright.passes.array.array_convolve_channels_last import ArrayConvolveChannelsLastPass
from tilewright.passes.array.array_simplify import ArraySimplifyPass
from tilewright.passes.array.permuted_values import reshaped_groups
from tilewright.primitives import ArrayType


def convolved(
    p: Program,
    x: Value,
    results: int,
    window: tuple[int, ...],
    strides: int = 1,
    low: int = 0,
    high: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Value:
    weights = p.array(results, x.shape[1] // groups, *window)
    each = {
        name: (n,) * len(window)
        for name, n in (("strides", strides), ("low", low), ("high", high), ("dilation", dilation))
    }
    return p.add("convolve", [x, weights], **each, groups=groups)[0]


def single(shape: tuple[int, ...], results: int, window: tuple[int, ...], **geometry: int) -> Make:
    return lambda p: [convolved(p, p.array(*shape), results, window, **geometry)]


def results_of(make: Make) -> tuple[list[Tensor], list[Tensor], list[str]]:
    """Before and after the pass, and the names of what is done after it."""
    before, after = run_through(make, ArraySimplifyPass), run_through(make, ArrayConvolveChannelsLastPass)
    inputs = random_inputs(before)
    names = [op.name.removeprefix("array.") for op in after.main.body.block.ops if isinstance(op, array.ArrayOp)]
    return run(before, inputs), run(after, inputs), names


def check(make: Make, absolute: float = 1e-4) -> list[str]:
    before, after, names = results_of(make)
    for x, y in zip(after, before, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=absolute)
    return names


CONVOLUTIONS = [
    single((2, 16, 9, 8), 24, (3, 3)),
    single((2, 16, 9, 8), 24, (3, 3), low=1, high=2),
    single((1, 16, 9, 8), 24, (1, 1)),
    single((1, 16, 9, 8), 24, (1, 1), strides=2),
    single((1, 16, 12, 11), 24, (3, 2), strides=3, low=1),
    single((1, 16, 12, 11), 24, (3, 2), dilation=2, high=1),
    single((1, 16, 12), 24, (5,), low=2, high=2),
    single((1, 16, 5, 6, 7), 24, (2, 1, 3), high=1),
    single((2, 32, 6, 7), 64, (3, 3), groups=2, low=1),
    single((2, 32, 9, 7), 32, (3, 3), groups=32, low=1, high=1),
    single((2, 32, 9, 7), 32, (5, 2), groups=32, strides=2),
    single((2, 32, 19), 32, (3,), groups=32, dilation=3),
    single((2, 4, 6, 6), 8, (3, 3), groups=4),
    single((64, 4, 30, 29), 64, (28, 28), low=1),
    single((2, 64, 30, 9), 3, (3, 3), low=1, high=1),
    single((1, 64, 12, 9), 3, (3, 2), dilation=2, low=1),
    single((3, 48, 40), 2, (5,), high=2),
    single((1, 32, 5, 6, 7), 1, (2, 1, 3), low=1),
    single((16, 3, 12, 11), 16, (6, 5), dilation=2, low=1, high=1),
    single((16, 3, 9), 16, (7,), strides=2, low=1, high=1),
]


@pytest.mark.parametrize("make", CONVOLUTIONS)
def test_results_are_the_same(make: Make) -> None:
    check(make)


@pytest.mark.parametrize("make", [*CONVOLUTIONS[:2], single((1, 64, 32, 32), 8, (1, 1))])
def test_a_convolution_becomes_a_product_of_a_view(make: Make) -> None:
    names = check(make)
    assert "contract" in names
    assert "convolve" not in names


def test_a_window_as_large_as_the_image_is_summed_with_images_last() -> None:
    """As in a gradient of weights, whose images are the channels: a product with a row for each image."""
    make = single((64, 4, 30, 29), 64, (28, 28), low=1)
    assert "contract" in check(make)
    unit = run_through(make, ArrayConvolveChannelsLastPass)
    assert [decision for decision, _ in remarks(unit, ArrayConvolveChannelsLastPass.name)] == ["images last"]


def test_few_results_are_rows_of_a_product_with_a_view_of_the_image() -> None:
    """Three results would fill no vector with channels last."""
    make = single((2, 64, 30, 9), 3, (3, 3), low=1, high=1)
    names = check(make)
    assert (names.count("contract"), names.count("transpose")) == (1, 0)
    assert decisions(make) == ["shifted rows"]


@pytest.mark.parametrize(
    "make",
    [
        single((1, 256, 56, 56), 256, (3, 3), low=1, high=1, groups=32),
        single((2, 128, 14, 14), 128, (3, 3), low=1, high=1, groups=8),
        single((1, 96, 28, 28), 96, (7, 7), low=3, high=3, groups=96),
        single((1, 64, 30, 30), 1, (3, 3), low=1, high=1),
    ],
)
def test_groups_are_products_with_a_view_of_the_image(make: Make) -> None:
    """Few channels and results, or large windows: copies of windows would take longer than the matmul."""
    assert decisions(make) == ["shifted rows"]


def decisions(make: Make) -> list[str]:
    unit = run_through(make, ArrayConvolveChannelsLastPass)
    return [decision for decision, _ in remarks(unit, ArrayConvolveChannelsLastPass.name)]


def test_channels_with_weights_of_their_own_are_summed_over_the_window() -> None:
    """Zeros outside the image are selected where the sum is computed, or stored first where the window is large."""
    small = single((2, 32, 9, 20), 32, (3, 3), groups=32, low=1, high=1)
    large = single((2, 32, 9, 20), 32, (4, 4), groups=32, low=2, high=2)
    names = check(small)
    assert (names.count("map"), names.count("pad"), names.count("contract")) == (9 + 8, 8, 0)
    names = check(large)
    assert (names.count("map"), names.count("pad"), names.count("contract")) == (16 + 15, 1, 0)
    assert (decisions(small), decisions(large)) == (["rows of channels"], ["rows of channels"])


def test_channels_with_weights_of_their_own_stay_last_where_they_are_already() -> None:
    def program(p: Program) -> list[Value]:
        y = convolved(p, p.array(1, 32, 40, 36), 32, (3, 3), low=1, high=1)
        return [convolved(p, y, 32, (3, 3), groups=32, low=1, high=1)]

    names = check(program)
    assert decisions(program) == ["channels last", "channels last"]
    assert names.count("map") == 9 + 8


@pytest.mark.parametrize(
    "make",
    [
        single((1, 32, 7, 7), 72, (3, 3), low=1, high=1),
        single((3, 32, 7, 5), 48, (3, 2), low=1, high=1, strides=2),
        single((2, 96, 9, 7), 288, (3, 3), groups=4, low=2, high=2, dilation=2),
        single((3, 24, 9, 7), 16, (1, 1), groups=2),
        single((2, 16, 11), 72, (4,), low=3),
        single((1, 16, 5, 6, 7), 48, (2, 1, 3), high=1),
    ],
)
def test_small_images_are_multiplied_by_the_weights_as_they_are_stored(make: Make) -> None:
    names = check(make)
    assert decisions(make) == ["windows as columns"]
    assert names.count("contract") == 1
    unit = run_through(make, ArrayConvolveChannelsLastPass)
    product = next(op for op in unit.main.body.block.ops if isinstance(op, array.ContractOp))
    left = product.operands[0]
    while isinstance(left.owner, array.ReshapeOp | array.UnfoldOp):
        left = left.owner.operands[0]
    assert left is unit.main.body.block.args[1]


def exact(image: Tensor, weights: Tensor, low: int, high: int) -> Tensor:
    padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (low, high), (low, high)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, weights.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weights.astype(np.float64), optimize=True)


@pytest.mark.parametrize(("known", "flipped"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(
    ("shape", "results", "low", "high"),
    [((2, 128, 28, 28), 144, 1, 1), ((1, 256, 27, 31), 256, 0, 1), ((3, 200, 17, 16), 96, 2, 2)],
)
def test_large_windows_of_three_by_three_have_fewer_multiplications(
    shape: tuple[int, ...], results: int, low: int, high: int, known: bool, flipped: bool
) -> None:
    """Of weights that are arguments, or known, or flipped, as in gradients of images."""
    weights = np.random.default_rng(1).standard_normal((results, shape[1], 3, 3)).astype(np.float32)

    def make(p: Program) -> list[Value]:
        image = p.array(*shape)
        kernel = p.constant(weights, ArrayType(weights.shape, F32)) if known else p.array(*weights.shape)
        if flipped:
            (kernel,) = p.add("reverse", [kernel], axes=(2, 3))
        geometry = {"strides": (1, 1), "low": (low, low), "high": (high, high), "dilation": (1, 1)}
        return [p.add("convolve", [image, kernel], **geometry, groups=1)[0]]

    assert decisions(make) == ["fewer multiplications"]
    unit = run_through(make, ArrayConvolveChannelsLastPass)
    image = random_inputs(unit)[0]
    (found,) = run(unit, [image] if known else [image, weights])
    assert found.dtype == np.float32
    weights = weights[:, :, ::-1, ::-1] if flipped else weights
    expected = exact(image, weights, low, high)
    assert np.abs(found - expected).max() <= 1e-6 * exact(np.abs(image), np.abs(weights), low, high).max()


@pytest.mark.parametrize(
    ("shape", "results", "window", "low", "high"),
    [
        ((128, 4, 28, 28), 144, (28, 28), 1, 1),
        ((96, 7, 17, 15), 200, (17, 15), 1, 1),
        ((130, 2, 33, 32), 130, (31, 30), 0, 0),
        ((128, 3, 25, 26), 128, (24, 25), 1, 0),
    ],
)
def test_gradients_of_weights_of_three_by_three_have_fewer_multiplications(
    shape: tuple[int, ...], results: int, window: tuple[int, int], low: int, high: int
) -> None:
    make = single(shape, results, window, low=low, high=high)
    assert decisions(make) == ["fewer multiplications, images last"]
    unit = run_through(make, ArrayConvolveChannelsLastPass)
    image, given = random_inputs(unit)
    (found,) = run(unit, [image, given])
    expected = exact(image, given, low, high)
    assert found.shape == expected.shape == (shape[0], results, 3, 3)
    assert np.abs(found - expected).max() <= 1e-6 * exact(np.abs(image), np.abs(given), low, high).max()


@pytest.mark.parametrize(
    "make",
    [
        single((2, 128, 28, 28), 144, (3, 3), strides=2),
        single((2, 128, 28, 28), 144, (3, 3), dilation=2),
        single((2, 128, 28, 28), 144, (5, 3)),
        single((2, 128, 28, 28), 128, (3, 3), groups=2),
        single((2, 8, 28, 28), 8, (3, 3)),
    ],
)
def test_other_windows_and_few_channels_have_all_multiplications(make: Make) -> None:
    assert not decisions(make)[0].startswith("fewer multiplications")


def test_windows_that_are_larger_than_the_caches_are_not_copied() -> None:
    """Windows of 9 MiB are a choice, those of twice the images are not."""
    for images, is_choice in ((4, True), (8, False)):
        unit = run_through(single((images, 16, 64, 64), 16, (3, 3), low=1, high=1), ArrayConvolveChannelsLastPass)
        ((_, reason),) = remarks(unit, ArrayConvolveChannelsLastPass.name)
        assert ("windows as columns" in reason) == is_choice


SUMS_OVER_WINDOWS = [
    single((2, 24, 9, 40), 24, (3, 3), groups=24, low=1, high=1),
    single((2, 24, 9, 41), 24, (3, 3), groups=24, low=1, high=2, strides=2),
    single((1, 24, 12, 40), 24, (3, 2), groups=24, low=2, high=2, dilation=2),
    single((1, 24, 2, 40), 24, (3, 3), groups=24, low=4, high=4, dilation=3),
    single((3, 24, 40), 24, (5,), groups=24, low=4),
    single((1, 24, 4, 5, 40), 24, (2, 1, 3), groups=24, low=1, high=1),
]


@pytest.mark.parametrize("make", SUMS_OVER_WINDOWS)
def test_sums_over_windows_with_channels_first(make: Make) -> None:
    names = check(make)
    assert decisions(make) == ["rows of channels"]
    assert "contract" not in names


def network(p: Program) -> list[Value]:
    """Two convolutions with a bias, a function, a gate by the largest of all places, and a sum of both."""
    x = p.array(1, 32, 40, 36)
    y = convolved(p, x, 32, (3, 3), low=1, high=1)
    biased = p.map("add", y, p.broadcast(p.array(32), y.shape, (1,)))
    shape = biased.shape
    largest = p.reduce(biased, "maximum", (2, 3))
    gate = p.broadcast(p.add("reshape", [largest], shape=(1, 32, 1, 1))[0], shape, (0, 1, 2, 3))
    scaled = p.map("multiply", p.map("tanh", biased), gate)
    z = convolved(p, scaled, 32, (3, 3), low=1, high=1, groups=32)
    return [p.map("add", z, biased)]


def test_what_follows_is_computed_in_the_same_order_of_dims() -> None:
    """Nothing that is computed is transposed but the result."""
    check(network, absolute=1e-2)
    unit = run_through(network, ArrayConvolveChannelsLastPass)
    turned = [op.operands[0].owner for op in unit.main.body.block.ops if isinstance(op, array.TransposeOp)]
    computed = [op for op in turned if isinstance(op, array.ArrayOp) and not isinstance(op, array.BroadcastOp)]
    assert len(computed) == 1


@pytest.mark.parametrize("seed", range(60))
def test_random_operations_after_a_convolution(seed: int) -> None:
    def program(p: Program) -> list[Value]:
        rng = np.random.default_rng(seed)
        x = convolved(p, p.array(2, 16, 6, 4), 16, (3, 1), low=1, high=1)
        every = [x]
        for _ in range(int(rng.integers(2, 7))):
            x = every[int(rng.integers(len(every)))]
            every.append(_random_step(p, rng, x))
        return every[-2:]

    check(program)


def _random_step(p: Program, rng: np.random.Generator, x: Value) -> Value:
    rank, shape = len(x.shape), x.shape
    kind = rng.choice(
        [
            "map",
            "same",
            "other",
            "reduce",
            "pad",
            "slice",
            "concat",
            "reverse",
            "turn",
            "reshape",
            "window",
            "gather",
            "broadcast",
            "cast",
        ]
    )
    if kind == "map" or rank == 0:
        return p.map("tanh", x)
    if kind == "same":
        return p.map("multiply", x, p.map("tanh", x))
    if kind == "other":
        return p.map("add", x, p.array(*shape))
    if kind == "reduce":
        axes = tuple(d for d in range(rank) if rng.random() < 0.4)
        return p.reduce(x, "maximum", axes) if axes else x
    if kind == "pad":
        low, high = (tuple(int(n) for n in rng.integers(0, 2, rank)) for _ in range(2))
        return p.add("pad", [x, p.scalar(0.5)], low=low, high=high, interior=(0,) * rank)[0]
    if kind == "slice":
        starts = tuple(int(rng.integers(0, n)) for n in shape)
        return p.add(
            "slice", [x], starts=starts, limits=shape, strides=tuple(int(n) for n in rng.integers(1, 3, rank))
        )[0]
    if kind == "concat":
        return p.add("concat", [x, p.array(*shape)], axis=int(rng.integers(rank)))[0]
    if kind == "reverse":
        return p.add("reverse", [x], axes=(int(rng.integers(rank)),))[0]
    if kind == "turn":
        return p.add("transpose", [x], permutation=tuple(int(n) for n in rng.permutation(rank)))[0]
    if kind == "window":
        ones = (1,) * rank
        window = tuple(int(min(n, rng.integers(1, 3))) for n in shape)
        return p.add(
            "window_reduce",
            [x],
            fn="maximum",
            window=window,
            strides=ones,
            low=(0,) * rank,
            high=(0,) * rank,
            dilation=ones,
        )[0]
    if kind == "gather":
        axis = int(rng.integers(rank))
        places = p.add("iota", shape=(3, 2), axis=0, dtype="i64")[0]
        return p.add("gather", [x, places], axes=(axis,))[0]
    if kind == "broadcast":
        wide = p.broadcast(x, (*shape, 2), tuple(range(rank))) if rng.random() < 0.5 else x
        return p.broadcast(wide, wide.shape, tuple(range(len(wide.shape))))
    if kind == "cast":
        return p.add("cast", [p.add("cast", [x], dtype="f64")[0]], dtype="f32")[0]
    return p.add("reshape", [x], shape=_random_shape(rng, shape))[0]


def _random_shape(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Dims split, merged, and of size 1 come and go."""
    sizes = list(shape)
    for _ in range(3):
        d = int(rng.integers(len(sizes) + 1))
        if rng.random() < 0.3:
            sizes.insert(d, 1)
        elif d < len(sizes) and sizes[d] % 2 == 0 and rng.random() < 0.5:
            sizes[d : d + 1] = [2, sizes[d] // 2]
        elif d + 1 < len(sizes):
            sizes[d : d + 2] = [sizes[d] * sizes[d + 1]]
    return tuple(sizes)


GROUPS = [
    ((2, 12, 5), (2, 3, 4, 5), [((0,), (0,)), ((1,), (1, 2)), ((2,), (3,))]),
    ((2, 3, 4), (6, 4), [((0, 1), (0,)), ((2,), (1,))]),
    ((6, 4), (4, 6), None),
    ((1, 8), (8,), [((0, 1), (0,))]),
    ((8,), (8, 1), [((0,), (0,)), ((), (1,))]),
    ((), (1,), [((), (0,))]),
    ((4, 6), (2, 12), None),
]


@pytest.mark.parametrize(("before", "after", "groups"), GROUPS)
def test_runs_of_dims_that_a_reshape_splits_or_merges(before, after, groups) -> None:
    assert reshaped_groups(before, after) == groups


@pytest.mark.parametrize("dtype", ["bf16", "f64", "i32"])
def test_types_are_kept(dtype: str) -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(1, 32, 16, 16, dtype=by_name(dtype))
        plain = p.array(32, 32, 3, 3, dtype=by_name(dtype))
        own = p.array(32, 1, 3, 3, dtype=by_name(dtype))
        flat = {name: (n, n) for name, n in (("strides", 1), ("low", 1), ("high", 1), ("dilation", 1))}
        y = p.add("convolve", [x, plain], **flat, groups=1)[0]
        return [p.add("convolve", [y, own], **flat, groups=32)[0]]

    before, after, names = results_of(program)
    assert "convolve" not in names
    ((x,), (y,)) = after, before
    tolerance = {"bf16": 0.02, "f64": 1e-12, "i32": 0}[dtype]
    np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=tolerance, atol=tolerance * 100)
