"""`tw.jit(dims=...)`: one program for each bucket of sizes, compared with a program for just the sizes of a call.

What lies behind the real elements of an argument is poisoned: NaN, or integers far out of range.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.api.sizes import bucket_sizes
from tilewright.errors import ArgumentError, ShapeError
from tilewright.frontend.sizes import plan

ROWS = tw.Dim(1, 24, name="rows")
BATCH = tw.Dim(1, 4, name="batch")
WIDTH = 6
CASES: dict[str, Callable[[Any], Any]] = {}


def case(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CASES[function.__name__.strip("_")] = function
    return function


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    def pad(array: np.ndarray, shape: Any, type: Any) -> np.ndarray:
        if shape is None or array.shape == type.shape:
            return array
        poison = np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).max if array.dtype.kind in "iu" else True
        padded = np.full(type.shape, poison, array.dtype)
        padded[tuple(slice(n) for n in array.shape)] = array
        return padded

    monkeypatch.setattr(plan, "_pad", pad)


# ---- x is (batch, rows, WIDTH) --------------------------------------------------------------------------------------


@case
def _statistics(x):
    return tw.mean(x, axis=1), tw.var(x, axis=(0, 1)), tw.sum(x), tw.max(x, axis=1), tw.prod(x / 3, axis=1)


@case
def _softmaxes(x):
    return tw.nn.softmax(x, axis=1), tw.nn.log_softmax(x, axis=1), tw.nn.layer_norm(x, axis=1)


@case
def _attention(x):
    scores = x @ tw.matrix_transpose(x) / 2.5
    return tw.nn.softmax(scores) @ x, tw.nn.attention(x, x, x, causal=True)


@case
def _softmax_in_half(x):
    half = x.astype(tw.f16)
    return tw.nn.softmax(half @ tw.matrix_transpose(half)) @ half


@case
def _orders(x):
    flat = tw.matrix_transpose(x)
    return (
        tw.sort(x, axis=1),
        tw.sort(x, axis=1, descending=True),
        tw.argsort(x, axis=1, stable=True),
        *tw.top_k(flat, 1),
        tw.argmax(x, axis=1),
        tw.argmin(-tw.abs(x), axis=0),
    )


@case
def _integer_orders(x):
    whole = (x * 4).astype(tw.i8)
    return tw.sort(whole, axis=1), tw.max(whole, axis=1), tw.argmin(whole, axis=1), tw.any(whole > 3, axis=1)


@case
def _running(x):
    return tw.cumulative_sum(x, axis=1), tw.cumulative_prod(x, axis=1)


@case
def _windows_of_rows(x):
    return (
        x[:, -1],
        x[:, :-1],
        x[:, ::2],
        x[:, :1],
        tw.flip(x, axis=1),
        x[:, ::-1][:, :1],
        x[:, x.shape[1] // 2 :][:, :1],
    )


@case
def _joined(x):
    y = x * 2
    return tw.concat([x, y], axis=1), tw.concat([y[:, :1], x], axis=1), tw.concat([x, y[:, :1], x], axis=1)


@case
def _stacked(x):
    return tw.stack([x, x + 1], axis=1), tw.roll(x, 1, axis=1), tw.repeat(x, 2, axis=2), tw.tile(x, (1, 1, 2))


@case
def _merged(x):
    flat = tw.reshape(x, (x.shape[0] * x.shape[1], WIDTH))
    doubled = tw.reshape(flat @ tw.ones((WIDTH, 4)), (x.shape[0], x.shape[1], 2, 2))
    running = tw.cumulative_sum(flat, axis=0)
    return (
        flat,
        running,
        tw.sum(flat, axis=0),
        tw.max(flat, axis=0),
        tw.permute_dims(doubled, (0, 2, 1, 3)),
        flat.T @ flat,
    )


@case
def _flattened(x):
    return tw.reshape(x, (x.shape[0], x.shape[1] * WIDTH)), tw.reshape(x, (-1,))


@case
def _products(x):
    return tw.matrix_transpose(x) @ x, tw.einsum("bsd,btd->bst", x, x), tw.einsum("bsd,bsd->", x, x)


@case
def _infinite_products(x):
    """Where masks multiply by 0, infinities of the other operand must not meet them."""
    y = 1 / (x * 0 + tw.where(tw.arange(WIDTH) > 2, 1.0, 0.0))
    return tw.matrix_transpose(x) @ y


@case
def _numbers_of_sizes(x):
    count = x.shape[1]
    return x / count + 1 / count, tw.arange(count) * 2, tw.linspace(0.0, 1.0, count), tw.full((count,), count)


@case
def _tables(x):
    table = np.arange(64 * WIDTH, dtype=np.float32).reshape(64, WIDTH)
    mask = np.tril(np.ones((x.shape[1], x.shape[1]), bool))
    return x + table[: x.shape[1]], tw.where(mask, 1.0, -1.0), x + tw.asarray(table)[: x.shape[1]]


@case
def _equal_rows(x):
    ones = tw.ones((x.shape[1], 3))
    return tw.sum(ones), tw.max(ones, axis=0), ones.T @ ones, tw.sum(tw.broadcast_to(x[:1, :1], x.shape), axis=1)


@case
def _padded_rows(x):
    return (
        tw.pad(x, ((0, 0), (1, 2), (0, 0)), constant_values=7.0),
        tw.pad(x, ((0, 0), (0, 24 - x.shape[1]), (0, 0))),
        tw.nn.max_pool(tw.matrix_transpose(x), (3,), stride=1, padding=1),
    )


@case
def _convolved(x):
    kernel = np.linspace(-1, 1, 3 * WIDTH * 2, dtype=np.float32).reshape(2, WIDTH, 3)
    return tw.nn.conv(tw.matrix_transpose(x), kernel, padding=1)


@case
def _looked_up(x):
    places = tw.argsort(x[..., 0], axis=1)
    far = tw.full((2,), 1000)
    return (
        tw.take_along_axis(x, places[..., None], axis=1),
        tw.take(x, tw.arange(x.shape[1])[::-1], axis=1),
        tw.take(x, tw.asarray([0, -1]), axis=1),
        x.at[:, 0].set(5.0),
        tw.zeros((x.shape[0], 3)).at[:, tw.arange(x.shape[1]) % 3].add(x[..., 0]),
        tw.dynamic_slice(x, (0, far[0], 0), (x.shape[0], 1, WIDTH)),
    )


@case
def _written(x):
    cache = tw.zeros((x.shape[0], 40, WIDTH)) + 3
    return (
        tw.dynamic_update_slice(cache, x, (0, 11, 0)),
        tw.dynamic_update_slice(cache, x, (0, 39, 0)),
        tw.dynamic_update_slice(x, tw.ones((x.shape[0], 1, WIDTH)), (0, 30, 0)),
    )


@case
def _loops(x):
    def step(carry, row):
        return carry + row, tw.sum(row) + carry

    total, rows = tw.scan(step, tw.zeros((x.shape[0], WIDTH)), tw.permute_dims(x, (1, 0, 2)))
    grown = tw.fori_loop(0, x.shape[1], lambda i, y: y / 2 + tw.mean(y, axis=1, keepdims=True), x)
    chosen = tw.cond(tw.sum(x) > 0, lambda: tw.sum(x, axis=1), lambda: tw.max(x, axis=1))
    return total, rows, grown, chosen


@pytest.mark.parametrize("name", CASES)
def test_as_for_just_these_sizes(name: str, poisoned: None) -> None:
    sized = tw.jit(CASES[name], target="interp", dims={"x": (BATCH, ROWS, WIDTH)}, buckets={ROWS: (4, 13), BATCH: (2,)})
    exact = tw.jit(CASES[name], target="interp")
    generator = np.random.default_rng(1)
    for batch, rows in ((2, 13), (1, 12), (2, 7), (3, 14), (4, 23), (1, 24), (2, 3)):
        x = generator.standard_normal((batch, rows, WIDTH)).astype(np.float32)
        for got, wanted in zip(_several(sized(x)), _several(exact(x)), strict=True):
            assert got.shape == wanted.shape
            tolerance = 4e-3 if got.dtype == np.float16 else 2e-5
            np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
    assert [program.why_exact for program in sized.programs] == [""] * 4


def _several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def test_native_code(poisoned: None) -> None:
    sized = tw.jit(_attention_block, dims={"x": (BATCH, ROWS, WIDTH)}, buckets={ROWS: (8, 24)})
    exact = tw.jit(_attention_block)
    generator = np.random.default_rng(1)
    for batch, rows in ((2, 17), (2, 9), (2, 24)):
        x = generator.standard_normal((batch, rows, WIDTH)).astype(np.float32)
        np.testing.assert_allclose(sized(x), exact(x), rtol=1e-5, atol=1e-6)
    assert [p.sizes for p in sized.programs] == [{"batch": (2, 2), "rows": (9, 24)}]


def _attention_block(x):
    weights = np.linspace(-1, 1, WIDTH * 3 * WIDTH, dtype=np.float32).reshape(WIDTH, 3 * WIDTH)
    query, key, value = tw.split(x @ weights, 3, axis=-1)
    return tw.nn.layer_norm(x + tw.nn.attention(query, key, value))


# ---- what no sample of sizes shows ----------------------------------------------------------------------------------

OTHER = tw.Dim(1, 24, name="other")
PAIRS = ((24, 24), (20, 3), (24, 1), (10, 10), (5, 2), (1, 1))


def _check_pairs(function: Callable[..., Any], pairs: Any = PAIRS, **dtype: Any) -> None:
    sized = tw.jit(function, target="interp", dims={"x": (ROWS,), "y": (OTHER,)}, buckets={ROWS: (24,), OTHER: (24,)})
    for n, m in pairs:
        x, y = np.linspace(-1, 1, n, dtype=np.float32), np.linspace(2, 1, m, dtype=np.float32)
        for got, wanted in zip(_several(sized(x, y)), _several(tw.jit(function, target="interp")(x, y)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_windows_of_equal_elements() -> None:
    def windows(x, y):
        n, m = x.shape[0], y.shape[0]
        far = tw.astype(tw.sum(y), tw.i32) + 100
        return tw.max(tw.full((n,), -1.0)[n - m :]), tw.max(tw.dynamic_slice(tw.full((n,), -1.0), (far,), (m,)))

    _check_pairs(windows)


def test_equal_elements_of_sizes_that_agree_in_samples() -> None:
    def written(x, y):
        n = x.shape[0]
        some = tw.ones((n if n > 12 else -(-n // 2),))
        return tw.sum(tw.dynamic_update_slice(tw.zeros((n,)), some, (0,))), tw.dynamic_update_slice(x, some, (0,))

    def regrouped(x, y):
        n, m = x.shape[0], y.shape[0]
        left, right = (m, n) if n * m == 12 else (n, m)
        grid = tw.broadcast_to(tw.reshape(tw.arange(3.0), (1, 3, 1)), (left, 3, right))
        return tw.reshape(grid, (n, 3, m)), tw.reshape(grid, (n * 3 * m,))

    _check_pairs(written)
    _check_pairs(regrouped, ((20, 3), (3, 4), (6, 2), (5, 7)))


def test_reductions_of_no_elements() -> None:
    _check_pairs(lambda x, y: tw.any(tw.ones((x.shape[0] - 1,), dtype=tw.bool)))


def test_nan_that_is_not_chosen(poisoned: None) -> None:
    """Padding of a softmax is NaN with all that is real, but what is made of that need not be."""

    def chosen(x):
        weights = tw.nn.softmax(x, axis=1)
        is_number = x == x
        return tw.sum(tw.where(is_number, weights, 0.0), axis=1), tw.all(is_number, axis=1)

    sized = tw.jit(chosen, target="interp", dims={"x": (BATCH, ROWS)}, buckets={ROWS: (24,)})
    x = np.full((2, 9), np.nan, np.float32)
    x[1] = 1
    np.testing.assert_allclose(sized(x)[0], [0, 1], rtol=1e-6)


def test_weights_of_another_axis(poisoned: None) -> None:
    """Weights whose maximum is along one axis may all be as good as 0 along another."""

    def mixed(x):
        weights = tw.exp(x - tw.max(x, axis=0, keepdims=True))
        share = weights * tw.reciprocal(tw.sum(weights, axis=1, keepdims=True))
        return tw.sum(share, axis=1)

    sized = tw.jit(mixed, target="interp", dims={"x": (BATCH, ROWS)}, buckets={ROWS: (24,), BATCH: (4,)})
    x = np.zeros((3, 9), np.float32)
    x[1] = -95
    np.testing.assert_array_equal(sized(x), tw.jit(mixed, target="interp")(x))


def test_factors_that_agree_in_samples() -> None:
    """At the samples twice `a` is `g` and three times `b` is `h`; later only the products agree."""
    g, h = tw.Dim(6, 48, multiple_of=6, name="g"), tw.Dim(6, 72, multiple_of=6, name="h")
    a, b = tw.Dim(1, 24, name="a"), tw.Dim(1, 24, name="b")

    def merged(u, v, x):
        rows = tw.reshape(x, (x.shape[0] * 2 * x.shape[2] * 3,))
        return tw.sum(rows), rows, u + 1, v + 1

    spec = {"u": (g,), "v": (h,), "x": (a, 2, b, 3)}
    sized = tw.jit(merged, target="interp", dims=spec, buckets={g: (48,), h: (72,), a: (24,), b: (24,)})
    for n, m, k, j in ((24, 24, 48, 72), (12, 12, 48, 18), (12, 18, 36, 24)):
        x = np.arange(n * 2 * m * 3, dtype=np.float32).reshape(n, 2, m, 3)
        total, rows, *_ = sized(np.zeros(k, np.float32), np.zeros(j, np.float32), x)
        np.testing.assert_array_equal(rows, x.reshape(-1))
        np.testing.assert_allclose(total, x.sum(), rtol=1e-5)


# ---- which programs there are ---------------------------------------------------------------------------------------


def test_other_work_at_a_size_is_its_own_program() -> None:
    """A trace at each size finds what no sample of sizes would."""

    def odd(x):
        return tw.flip(x, axis=0) if x.shape[0] == 5 else x * x.shape[0] if x.shape[0] != 6 else x + 1

    sized = tw.jit(odd, target="interp", dims={"x": (ROWS,)}, buckets={ROWS: (8,)})
    for rows in (3, 5, 6, 7):
        x = np.arange(rows, dtype=np.float32)
        wanted = x[::-1] if rows == 5 else x + 1 if rows == 6 else x * rows
        np.testing.assert_array_equal(sized(x), wanted)
    served = [(p.sizes["rows"], bool(p.why_exact)) for p in sized.programs]
    assert served == [((1, 8), False), ((5, 5), True), ((6, 6), True)]


def test_sizes_that_happen_to_be_equal_are_told_apart() -> None:
    other = tw.Dim(1, 24, name="other")

    def outer(x, y):
        return tw.sum(x) + y * x.shape[0], tw.concat([x, y])

    sized = tw.jit(outer, target="interp", dims={"x": (ROWS,), "y": (other,)}, buckets={ROWS: (24,), other: (24,)})
    for n, m in ((5, 5), (24, 24), (5, 9), (23, 23), (22, 2)):
        x, y = np.arange(n, dtype=np.float32), np.arange(m, dtype=np.float32)
        total, joined = sized(x, y)
        np.testing.assert_allclose(total, x.sum() + y * n)
        np.testing.assert_array_equal(joined, np.concatenate([x, y]))
    assert len(sized.programs) == 1


def test_what_is_captured_is_kept_as_it_was() -> None:
    table = np.arange(24, dtype=np.float32)
    sized = tw.jit(lambda x: x + table[: x.shape[0]], target="interp", dims={"x": (ROWS,)}, buckets={ROWS: (24,)})
    for rows in (24, 20):
        x = np.ones(rows, np.float32)
        before = sized(x)
        table += 1
        np.testing.assert_array_equal(sized(x), before)


def test_arrays_in_containers_and_static_arguments() -> None:
    def scaled(state, factor, *, axis):
        return {"mean": tw.mean(state["x"], axis=axis) * factor, "x": state["x"]}

    sized = tw.jit(scaled, target="interp", static_argnames="axis", dims={"state": (ROWS, 3)})
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    got = sized({"x": x}, 2.0, axis=0)
    np.testing.assert_allclose(got["mean"], x.mean(0) * 2)
    np.testing.assert_array_equal(got["x"], x)


def test_buckets_of_a_size() -> None:
    sizes = bucket_sizes(tw.Dim(1, 512))
    assert sizes[:12] == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48)
    assert sizes[-2:] == (448, 512)
    assert max(b / (a + 1) for a, b in itertools.pairwise(sizes[9:])) <= 1.25
    assert bucket_sizes(tw.Dim(8, 100, multiple_of=8)) == (8, 16, 24, 32, 40, 48, 56, 64, 80, 96)
    assert bucket_sizes(tw.Dim(7, 7)) == (7,)


def test_a_function_that_fails_at_sizes_that_nobody_called() -> None:
    def limited(x):
        if x.shape[0] > 12:
            raise ValueError("at most 12 rows")
        return x * np.arange(12, dtype=np.float32)[: x.shape[0]]

    sized = tw.jit(limited, target="interp", dims={"x": (ROWS,)}, buckets={ROWS: (24,)})
    for rows in (5, 12):
        np.testing.assert_array_equal(sized(np.ones(rows, np.float32)), np.arange(rows))
    assert [p.why_exact for p in sized.programs] == ["at most 12 rows"] * 2
    with pytest.raises(ValueError, match="at most 12 rows"):
        sized(np.ones(13, np.float32))


def test_reasons_of_programs_for_one_size() -> None:
    sized = tw.jit(lambda x: x[x.shape[0] // 3 :: 2], target="interp", dims={"x": (ROWS,)}, buckets={ROWS: (24,)})
    for rows in (24, 17):
        x = np.arange(rows, dtype=np.float32)
        np.testing.assert_array_equal(sized(x), x[rows // 3 :: 2])
    assert "steps from a start that depends on a size" in sized.programs[-1].why_exact


def test_captured_arrays_that_are_written_to() -> None:
    """A size has what was captured when it was first called."""
    table, weights = np.arange(24, dtype=np.float32), np.arange(3, dtype=np.float32)

    def captured(x):
        return x + table[: x.shape[0]], tw.sum(x) * tw.asarray(weights)

    sized = tw.jit(captured, target="interp", dims={"x": (ROWS,)}, buckets={ROWS: (24,)})
    before = {rows: sized(np.ones(rows, np.float32)) for rows in (24, 5)}
    table += 10
    weights += 10
    for rows, wanted in before.items():
        for got, each in zip(sized(np.ones(rows, np.float32)), wanted, strict=True):
            np.testing.assert_array_equal(got, each)
    np.testing.assert_array_equal(sized(np.ones(7, np.float32))[0], table[:7] + 1)
    np.testing.assert_array_equal(sized(np.ones(6, np.float32))[1], weights * 6)


def test_first_calls_of_several_threads() -> None:
    sized = tw.jit(lambda x: tw.sum(x * 2), target="interp", dims={"x": (ROWS,)}, buckets={ROWS: (12,)})
    arrays = [np.ones(rows, np.float32) for rows in range(1, 25)]
    with ThreadPoolExecutor(6) as threads:
        assert [int(total) for total in threads.map(sized, arrays)] == list(range(2, 50, 2))
    assert {p.sizes["rows"] for p in sized.programs} == {(1, 12), (13, 24)}


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_sizes_out_of_range() -> None:
    sized = tw.jit(lambda x, y: x + y, target="interp", dims={"x": (ROWS,), "y": (ROWS,)})
    with pytest.raises(ShapeError, match=r"argument `x` has shape \(25,\), but `dims` declares \(rows\)"):
        sized(np.zeros(25, np.float32), np.zeros(25, np.float32))
    with pytest.raises(ShapeError, match=r"argument `y` has shape \(4,\).*rows is 3"):
        sized(np.zeros(3, np.float32), np.zeros(4, np.float32))
    with pytest.raises(ShapeError, match=r"shape \(3, 3\)"):
        sized(np.zeros((3, 3), np.float32), np.zeros(4, np.float32))


def test_a_path_to_no_array() -> None:
    sized = tw.jit(lambda state: state["x"], target="interp", dims={"state['y']": (ROWS,)})
    with pytest.raises(ArgumentError, match=r"`state\['y'\]`, which is no array of the call"):
        sized({"x": np.zeros(3, np.float32)})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dims": {"z": (ROWS,)}}, "`dims` names `z`"),
        ({"dims": {"x": ("rows",)}}, "`dims` gives"),
        ({"dims": {"x": ROWS}}, "`dims` gives"),
        ({"dims": {"x": (ROWS,)}, "donate": "x"}, "do not go together"),
        ({"dims": {"x": (ROWS,)}, "buckets": {BATCH: (2,)}}, "no size of `dims`"),
        ({"dims": {"x": (ROWS,)}, "buckets": {ROWS: (99,)}}, "99 is no size"),
        ({"dims": {"x": (ROWS,)}, "buckets": {ROWS: 8}}, "8 is no size"),
        ({"dims": {"x": (ROWS,)}, "buckets": {ROWS: ("8",)}}, "'8' is no size"),
        ({"dims": {"x": (ROWS,)}, "buckets": [8]}, "not a dict"),
        ({"dims": ["x"]}, "not a dict"),
        ({"buckets": {ROWS: (8,)}}, "no size of `dims`"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tw.jit(lambda x: x, **settings)
