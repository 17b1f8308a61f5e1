"""Updates of donated, carried and dying arrays: they touch the window alone, and mean what NumPy's assignments do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.sampling import count

Tensor = np.ndarray[Any, Any]
ROWS, COLUMNS = 96, 40
ROW_BYTES = COLUMNS * 4


def draw(*shape: int, seed: int = 0) -> Tensor:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def assign(x: Tensor, key: Any, value: Any) -> Tensor:
    result = x.copy()
    result[key] = value
    return result


def compiled(function: Callable[..., Any], *arrays: Tensor) -> Any:
    return tw.jit(function, donate=("x",)).lower(*arrays).compile()


def moved_bytes(program: Any) -> float:
    """Bytes that all kernels move in one run, as the cost model counts them; no copy may come beside them."""
    assert "memmove" not in program.ir("llvm")
    return sum(kernel["bytes"] for kernel in program.cost()["kernels"].values())


def check(program: Any, x: Tensor, rest: tuple[Tensor, ...], expected: Tensor) -> None:
    given = x.copy()
    result = program(given, *rest)
    assert result.ctypes.data == given.ctypes.data
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("start", [-3, 0, 7, 91, 200])
@pytest.mark.parametrize("rows", [1, 5, 31])
def test_a_window_of_a_donated_array_is_written_alone(start: int, rows: int) -> None:
    x, value, at = draw(ROWS, COLUMNS), draw(rows, COLUMNS, seed=1), np.array(start)
    program = compiled(lambda x, value, at: tw.dynamic_update_slice(x, value, (at, 0)), x, value, at)
    assert moved_bytes(program) < 4 * rows * ROW_BYTES + 64
    first = min(max(start, 0), ROWS - rows)
    check(program, x, (value, at), assign(x, slice(first, first + rows), value))


def test_a_window_in_the_middle_of_every_dimension() -> None:
    x, value = draw(9, 33, 70), draw(3, 29, 37, seed=1)
    program = compiled(lambda x, value: x.at[4:7, 2:31, 11:48].set(value), x, value)
    check(program, x, (value,), assign(x, np.s_[4:7, 2:31, 11:48], value))


def test_a_transposed_value_is_written_in_place() -> None:
    x, value = draw(ROWS, COLUMNS), draw(COLUMNS, 10, seed=1)
    program = compiled(lambda x, value: x.at[20:30].set(value.T), x, value)
    check(program, x, (value,), assign(x, slice(20, 30), value.T))


@pytest.mark.parametrize(("to", "source"), [(1, 0), (0, 1), (2, 1), (50, 3)])
def test_a_value_that_is_a_part_of_the_array_is_read_before(to: int, source: int) -> None:
    x = draw(ROWS, COLUMNS)
    program = compiled(lambda x: x.at[to : to + 40].set(x[source : source + 40]), x)
    check(program, x, (), assign(x, slice(to, to + 40), x[source : source + 40]))


def test_a_value_that_is_the_array_turned_round_is_read_before() -> None:
    x = draw(32, 32)
    program = compiled(lambda x: x.at[1:31].set(x.T[1:31]), x)
    check(program, x, (), assign(x, slice(1, 31), x.T[1:31]))


def test_starts_that_are_elements_of_the_array_are_read_before() -> None:
    x = np.arange(30, dtype=np.int64)[::-1].copy()
    value = np.full(4, -1)
    program = compiled(lambda x, value: tw.dynamic_update_slice(x, value, (x[25],)), x, value)
    check(program, x, (value,), assign(x, slice(4, 8), value))


def test_sums_of_a_part_are_added_to_it() -> None:
    x = draw(ROWS, COLUMNS)
    program = compiled(lambda x: x.at[8:16].add(tw.sum(x, axis=0)), x)
    result = program(x.copy())
    np.testing.assert_allclose(result, assign(x, slice(8, 16), x[8:16] + x.sum(0)), rtol=1e-5, atol=1e-5)


def test_updates_in_a_chain_touch_their_windows() -> None:
    x, value = draw(ROWS, COLUMNS), draw(4, COLUMNS, seed=1)

    def function(x: Any, value: Any) -> Any:
        for start in (0, 2, 60, 3):
            x = x.at[start : start + 4].set(value + start)
        return x

    program = compiled(function, x, value)
    assert moved_bytes(program) < ROWS * ROW_BYTES
    expected = x
    for start in (0, 2, 60, 3):
        expected = assign(expected, slice(start, start + 4), value + np.float32(start))
    check(program, x, (value,), expected)


def test_what_was_in_the_window_may_be_returned_too() -> None:
    x, value = draw(ROWS, COLUMNS), draw(4, COLUMNS, seed=1)
    given = x.copy()
    new, old, total = compiled(lambda x, v: (x.at[8:12].set(v), x[8:12], tw.sum(x)), x, value)(given, value)
    np.testing.assert_array_equal(new, assign(x, slice(8, 12), value))
    np.testing.assert_array_equal(old, x[8:12])
    np.testing.assert_allclose(total, x.sum(dtype=np.float64), rtol=1e-4)


def test_an_array_before_and_after_its_update_are_both_returned() -> None:
    x, value = draw(ROWS, COLUMNS), draw(4, COLUMNS, seed=1)

    def function(x: Any, value: Any) -> Any:
        first = x.at[:4].set(value)
        return first.at[2:6].set(value), first

    second, first = compiled(function, x, value)(x.copy(), value)
    expected = assign(x, slice(0, 4), value)
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, assign(expected, slice(2, 6), value))


def test_two_updates_of_one_array() -> None:
    x, value = draw(ROWS, COLUMNS), draw(4, COLUMNS, seed=1)
    one, two = compiled(lambda x, v: (x.at[:4].set(v), x.at[9:13].set(v)), x, value)(x.copy(), value)
    np.testing.assert_array_equal(one, assign(x, slice(0, 4), value))
    np.testing.assert_array_equal(two, assign(x, slice(9, 13), value))


def test_an_argument_that_is_not_donated_keeps_its_contents() -> None:
    x, value = draw(ROWS, COLUMNS), draw(4, COLUMNS, seed=1)
    given = x.copy()
    result = tw.jit(lambda x, v: x.at[:4].set(v).at[6:10].set(v))(given, value)
    np.testing.assert_array_equal(given, x)
    np.testing.assert_array_equal(result, assign(assign(x, slice(0, 4), value), slice(6, 10), value))


@pytest.mark.parametrize("returned", [False, True])
def test_a_product_is_updated_where_it_is_computed(returned: bool) -> None:
    a, b, value = draw(64, 24), draw(24, COLUMNS, seed=2), draw(2, COLUMNS, seed=1)

    def function(a: Any, b: Any, value: Any, at: Any) -> Any:
        result = tw.dynamic_update_slice(a @ b, value, (at, 0))
        return result if returned else result.T @ result

    program = tw.jit(function).lower(a, b, value, np.array(3)).compile()
    assert "memmove" not in program.ir("llvm")
    assert 'kind = "update"' in program.ir("tile") or "update_" in program.ir("tile")
    expected = assign((a.astype(np.float64) @ b).astype(np.float32), slice(3, 5), value).astype(np.float64)
    expected = expected if returned else expected.T @ expected
    np.testing.assert_allclose(program(a, b, value, np.array(3)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fn", ["set", "add"])
def test_a_scatter_touches_what_it_updates(fn: str) -> None:
    x, value, at = draw(ROWS, COLUMNS), draw(6, COLUMNS, seed=1), np.array([5, 90, 5, 0, 17, 5])
    program = compiled(lambda x, value, at: getattr(x.at[at], fn)(value), x, value, at)
    assert moved_bytes(program) < ROWS * ROW_BYTES
    expected = x.copy()
    if fn == "set":
        for row, place in zip(value, at, strict=True):
            expected[place] = row
    else:
        np.add.at(expected, at, value)
    check(program, x, (value, at), expected)


def test_a_scatter_of_the_array_itself_reads_it_before() -> None:
    x, at = draw(8, 5), np.array([7, 6, 5, 4, 3, 2, 1, 0])
    program = compiled(lambda x, at: x.at[at].set(x), x, at)
    np.testing.assert_array_equal(program(x.copy(), at), x[::-1])


def test_a_scatter_at_indices_that_it_overwrites() -> None:
    x = np.array([3, 2, 1, 0, 4])
    program = compiled(lambda x: x.at[x].set(tw.arange(5) * 10), x)
    np.testing.assert_array_equal(program(x.copy()), [30, 20, 10, 0, 40])


# ---- loops ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("donated", [False, True])
def test_a_loop_carries_an_array_in_place(donated: bool) -> None:
    x = draw(ROWS, COLUMNS)

    def function(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            return tw.dynamic_update_slice(x, tw.dynamic_slice(x, (i, 0), (1, COLUMNS)) * 2 + i, (i + 1, 0))

        return tw.fori_loop(0, 20, body, x)

    program = tw.jit(function, donate=("x",) if donated else ()).lower(x).compile()
    expected = x.copy()
    for i in range(20):
        expected[i + 1] = expected[i] * 2 + i
    np.testing.assert_allclose(program(x.copy()), expected, rtol=1e-6)
    assert program.ir("tile").count("update_") == 2  # the kernel and its one call
    sizes = re.findall(r"call void @\"llvm.memmove[^\n]*, i64 (\d+), ", program.ir("llvm"))
    # The counter, before the loop; the array, into the memory of the result.
    assert sorted(map(int, sizes)) == [8] + [x.nbytes] * (not donated)


def test_a_loop_whose_arrays_change_places() -> None:
    x, y = draw(8, 5), draw(8, 5, seed=1)

    def body(i: Any, pair: Any) -> Any:
        a, b = pair
        return tw.dynamic_update_slice(b, a[:1], (i, 0)), a.at[0, 0].set(1.0)

    got = tw.jit(lambda x, y: tw.fori_loop(0, 5, body, (x, y)))(x, y)
    a, b = x.copy(), y.copy()
    for i in range(5):
        a, b = assign(b, slice(i, i + 1), a[:1]), assign(a, (0, 0), 1)
    np.testing.assert_array_equal(got[0], a)
    np.testing.assert_array_equal(got[1], b)


def test_a_loop_that_keeps_the_array_from_before_the_update() -> None:
    x = draw(8, 5)

    def body(i: Any, pair: Any) -> Any:
        new, _ = pair
        return tw.dynamic_update_slice(new, new[7:] + 1, (i, 0)), new

    got = tw.jit(lambda x: tw.fori_loop(0, 5, body, (x, x)))(x)
    new, old = x.copy(), x
    for i in range(5):
        new, old = assign(new, slice(i, i + 1), new[7:] + 1), new
    np.testing.assert_array_equal(got[0], new)
    np.testing.assert_array_equal(got[1], old)


def test_a_loop_over_a_donated_array_that_it_reads_from_outside() -> None:
    x = draw(8, 5)

    def function(x: Any) -> Any:
        return tw.fori_loop(0, 5, lambda i, y: tw.dynamic_update_slice(y, x[:1] * 2 + y[:1], (i, 0)), x)

    expected = x.copy()
    for i in range(5):
        expected[i] = x[0] * 2 + expected[0]
    np.testing.assert_array_equal(tw.jit(function, donate=("x",))(x.copy()), expected)


def test_a_loop_that_carries_a_donated_array_twice() -> None:
    x = draw(8, 5)

    def function(x: Any) -> Any:
        def body(i: Any, pair: Any) -> Any:
            a, b = pair
            return tw.dynamic_update_slice(a, b[:1] + 1, (i, 0)), tw.dynamic_update_slice(b, a[:1] * 2, (i, 0))

        return tw.fori_loop(0, 5, body, (x, x))

    a, b = x.copy(), x.copy()
    for i in range(5):
        a, b = assign(a, slice(i, i + 1), b[:1] + 1), assign(b, slice(i, i + 1), a[:1] * 2)
    got = tw.jit(function, donate=("x",))(x.copy())
    np.testing.assert_array_equal(got[0], a)
    np.testing.assert_array_equal(got[1], b)


def test_a_loop_inside_a_loop() -> None:
    x = np.zeros((6, 7), np.float32)

    def outer(i: Any, x: Any) -> Any:
        def inner(j: Any, x: Any) -> Any:
            return x.at[i, j].set(tw.astype(i * 10 + j, tw.f32))

        return tw.fori_loop(0, 7, inner, x).at[0, i].add(100.0)

    expected = np.zeros((6, 7), np.float32)
    for i in range(6):
        expected[i] = 10 * i + np.arange(7)
        expected[0, i] += 100
    program = tw.jit(lambda x: tw.fori_loop(0, 6, outer, x), donate=("x",))
    np.testing.assert_array_equal(program(x), expected)


def test_a_scan_stores_its_results_one_by_one() -> None:
    x = draw(50, 9)
    program = tw.jit(lambda x: tw.scan(lambda c, row: (c + row, c * row), tw.zeros(9, dtype=tw.f32), x)).lower(x)
    last, products = program.compile()(x)
    before = np.concatenate([np.zeros((1, 9), np.float32), np.cumsum(x, axis=0, dtype=np.float32)])
    np.testing.assert_allclose(last, before[-1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(products, before[:-1] * x, rtol=1e-4, atol=1e-5)
    assert "update_" in program.compile().ir("tile")


def test_an_update_in_one_branch() -> None:
    x, value = draw(ROWS, COLUMNS), draw(4, COLUMNS, seed=1)

    def function(x: Any, value: Any, flag: Any) -> Any:
        return tw.cond(flag, lambda: (x @ x.T).at[3:7, :COLUMNS].set(value), lambda: x @ x.T)

    program = tw.jit(function)
    product = x @ x.T
    for flag, expected in ((True, assign(product, np.s_[3:7, :COLUMNS], value)), (False, product)):
        np.testing.assert_allclose(program(x, value, np.array(flag)), expected, rtol=1e-4, atol=1e-4)


KINDS = ("write", "move", "scatter", "scale", "loop", "read")


def traced_step(kind: str, a: int, b: int, x: Any, value: Any) -> Any:
    if kind == "write":
        return tw.dynamic_update_slice(x, value + a, (b, 0))
    if kind == "move":
        return tw.dynamic_update_slice(x, tw.dynamic_slice(x, (a, 0), (3, 6)), (b, 0))
    if kind == "scatter":
        return x.at[tw.asarray(np.array([a, b, a]))].add(value)
    if kind == "scale":
        return x * b
    return tw.fori_loop(0, 3, lambda i, x: tw.dynamic_update_slice(x, x[a : a + 1] + i, (i + 2, 0)), x)


def numpy_step(kind: str, a: int, b: int, x: Tensor, value: Tensor) -> Tensor:
    if kind == "write":
        return assign(x, slice(b, b + 3), value + a)
    if kind == "move":
        return assign(x, slice(b, b + 3), x[a : a + 3])
    if kind == "scale":
        return x * b
    result = x.copy()
    if kind == "scatter":
        np.add.at(result, np.array([a, b, a]), value)
    else:
        for i in range(3):
            result[i + 2] = result[a] + i
    return result


@pytest.mark.parametrize("seed", range(count(36, 200)))
def test_random_programs_of_updates(seed: int) -> None:
    """Reads, writes and loops over one array in a random order."""
    generator = np.random.default_rng(seed)
    steps = [(str(generator.choice(KINDS)), *map(int, generator.integers(0, 10, 2))) for _ in range(8)]
    x, value = generator.integers(-9, 9, (12, 6)), generator.integers(-9, 9, (3, 6))

    def run(step: Callable[..., Any], x: Any, value: Any) -> Any:
        kept = []
        for kind, a, b in steps:
            if kind == "read":
                kept.append(x[a : a + 1] * b)
            else:
                x = step(kind, a, b, x, value)
        return x, kept

    donate = ("x",) if seed % 3 else ()
    got, got_kept = tw.jit(lambda x, value: run(traced_step, x, value), donate=donate)(x.copy(), value)
    expected, kept = run(numpy_step, x, value)
    np.testing.assert_array_equal(got, expected)
    for one, other in zip(got_kept, kept, strict=True):
        np.testing.assert_array_equal(one, other)
