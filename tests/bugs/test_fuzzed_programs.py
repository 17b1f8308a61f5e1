"""Programs that the fuzzer found to be compiled wrongly, made small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fuzz.check import case_of, check
from tests.fuzz.intervals import Tensor
from tests.programs import Program, build
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.frontend.trace import Value
from tilewright.primitives import ArrayType


def whole_numbers(program: Program, seed: int = 0) -> list[Tensor]:
    """Inputs whose sums are exact in every type."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.integers(-4, 5, v.shape)).astype(v.dtype.numpy) for v in program.inputs]


def product(p: Program, left: Value, right: Value, dtype: DType, contracted: tuple[int, int] | None = (1, 0)) -> Value:
    axes = ((), ()) if contracted is None else ((contracted[0],), (contracted[1],))
    attributes: dict[str, Any] = {"left_batch": (), "right_batch": (), "dtype": dtype.name}
    return p.add("contract", [left, right], left_contract=axes[0], right_contract=axes[1], **attributes)[0]


def outer_product_of_several_panels(p: Program) -> list[Value]:
    return [product(p, p.array(3), p.array(100), dtypes.f32, None)]


def product_and_its_reverse(p: Program) -> list[Value]:
    y = product(p, p.array(6, 5), p.array(5, 33), dtypes.f32)
    return [p.map("add", y, p.add("reverse", [y], axes=(0,))[0])]


def product_and_its_transpose(p: Program) -> list[Value]:
    y = product(p, p.array(17, 5), p.array(5, 17), dtypes.f32)
    return [p.map("subtract", y, p.add("transpose", [y], permutation=(1, 0))[0])]


def transposed_product_that_is_read_twice(p: Program) -> list[Value]:
    """A matmul of one column, whose operands are swapped: both transposes of its result became results of one group."""
    y = p.add("transpose", [product(p, p.array(32, 32), p.array(32, 1), dtypes.f32)], permutation=(1, 0))[0]
    z = p.map("add", y, p.array(1, 32))
    return [p.map("subtract", z, p.broadcast(p.reduce(z, "maximum", (1,)), (1, 32), (0,))), z, y]


def rounded_half_constant(p: Program) -> list[Value]:
    return [p.map("multiply", p.array(17, dtype=d), p.splat(0.05, (17,), d)) for d in (dtypes.f16, dtypes.bf16)]


def single_lane_tail(p: Program) -> list[Value]:
    return [p.map("negative", p.array(5, 17, dtype=d)) for d in (dtypes.bf16, dtypes.f16, dtypes.i8)]


def single_lane_tail_of_a_row_that_is_added_to(p: Program) -> list[Value]:
    """The last lane was stored as a wider type, over the next row."""
    found = []
    for d in (dtypes.f8e4m3fn, dtypes.f8e5m2, dtypes.bf16, dtypes.i8):
        row = p.add("constant", value=2, resource="", shape=(), dtype="u32")[0]
        found += p.add("scatter", [p.array(3, 5, 17, dtype=d), p.array(3, 17, dtype=d), row], axes=(1,), fn="add")
    return found


def scalar_bits(p: Program) -> list[Value]:
    return [p.add("bitcast", [p.array()], dtype="i32")[0]]


def loops_on_both_sides_of_a_scan(p: Program) -> list[Value]:
    """What is computed before the scan and what after it must not become two loops that need each other."""
    x = p.array(40, dtype=dtypes.u8)
    sign, same = p.map("sign", x), p.map("maximum", x, x)
    square = p.map("square", sign)
    padded = p.add("pad", [square, p.scalar(3, dtypes.u8)], low=(0,), high=(0,), interior=(0,))[0]
    scanned = p.add("scan", [p.map("bitwise_not", same)], axis=0, fn="maximum", reverse=True)[0]
    product = p.map("multiply", padded, same)
    rest = p.map("subtract", p.map("negative", scanned), p.map("negative", sign))
    return [product, rest, padded, sign]


def window_at_a_loaded_start(p: Program) -> list[Value]:
    x, start, row = p.array(9, 40), p.array(dtype=dtypes.u8), p.array(7, dtype=dtypes.i32)
    rows = p.add("gather", [x, row], axes=(0,))[0]
    window = p.add("dynamic_slice", [rows, start, start], sizes=(5, 21))[0]
    return [window, p.add("dynamic_update_slice", [x, p.map("exp", window), start, start])[0]]


def region_reading_outer_views(p: Program) -> list[Value]:
    x = p.array(4, 6)
    turned = p.add("transpose", [x], permutation=(1, 0))[0]
    flat = p.add("reshape", [x], shape=(4, 1, 6))[0]
    then, otherwise = p.nested("then"), p.nested("otherwise")
    wide = then.add("broadcast", [p.scalar(2.0)], shape=(6, 4), axes=())[0]
    then.outputs = [then.add("map", [turned, wide], fn="add")[0]]
    squeezed = otherwise.add("reshape", [flat], shape=(4, 6))[0]
    otherwise.outputs = [otherwise.add("transpose", [squeezed], permutation=(1, 0))[0]]
    condition = p.map("less", p.array(dtype=dtypes.i32), p.scalar(0, dtypes.i32))
    return list(p.append("if", [condition], {}, [turned.type], [then, otherwise]))


def unused_loop(p: Program) -> list[Value]:
    x, zero = p.array(3), p.scalar(0, dtypes.i32)
    types = [ArrayType((), dtypes.i32), x.type]
    condition, body = p.nested("condition"), p.nested("body")
    count, _ = (condition.input(t) for t in types)
    condition.outputs = [condition.add("map", [count, p.scalar(2, dtypes.i32)], fn="less")[0]]
    count, value = (body.input(t) for t in types)
    step = body.add("map", [count, p.scalar(1, dtypes.i32)], fn="add")[0]
    body.outputs = [step, body.add("map", [value], fn="negative")[0]]
    p.append("while", [zero, x], {}, types, [condition, body])
    return [p.map("square", x)]


def _attention(p: Program, scores: Value, axes: tuple[int, ...]) -> Value:
    """A softmax whose row sums are repeated along `axes` of the scores, times values."""
    highest = p.broadcast(p.reduce(scores, "maximum", (1,)), scores.shape, (0,))
    e = p.map("exp", p.map("subtract", scores, highest))
    weights = p.map("divide", e, p.broadcast(p.reduce(e, "add", (1,)), scores.shape, axes))
    return product(p, weights, p.array(scores.shape[1], 3, dtype=scores.dtype), scores.dtype)


def attention_normalised_by_columns(p: Program) -> list[Value]:
    return [_attention(p, product(p, p.array(7, 4), p.array(7, 4), dtypes.f32, (1, 1)), (1,))]


def attention_with_reversed_scores(p: Program) -> list[Value]:
    scores = product(p, p.array(7, 4), p.array(9, 4), dtypes.f32, (1, 1))
    return [_attention(p, p.map("add", scores, p.add("reverse", [scores], axes=(1,))[0]), (0,))]


def attention_masked_in_a_type_without_infinities(p: Program) -> list[Value]:
    """What -inf is rounded to there is NaN, not a score that hides a key."""
    f8, shape = dtypes.f8e4m3fn, (1, 2)
    scores = product(p, p.array(1, 4, dtype=f8), p.array(2, 4, dtype=f8), f8, (1, 1))
    rows, columns = (p.add("iota", shape=shape, dtype="i32", axis=axis)[0] for axis in (0, 1))
    seen = p.map("greater_equal", rows, columns)
    return [_attention(p, p.map("select", seen, scores, p.splat(float("-inf"), shape, f8)), (1,))]


def attention_of_two_precisions(p: Program) -> list[Value]:
    scores = product(p, p.array(7, 4), p.array(9, 4), dtypes.f32, (1, 1))
    scores = p.add("cast", [scores], dtype="f64")[0]
    e = p.map("exp", p.map("subtract", scores, p.broadcast(p.reduce(scores, "maximum", (1,)), scores.shape, (0,))))
    weights = p.map("divide", e, p.broadcast(p.reduce(e, "add", (1,)), scores.shape, (0,)))
    return [product(p, weights, p.array(9, 3, dtype=dtypes.f64), dtypes.f64)]


def negated_transpose_with_a_last_column_alone(p: Program) -> list[Value]:
    turned = p.add("transpose", [p.array(17, 24, dtype=dtypes.f64)], permutation=(1, 0))[0]
    return [p.map("negative", turned), p.map("absolute", turned)]


PROGRAMS: tuple[Callable[[Program], list[Value]], ...] = (
    outer_product_of_several_panels,
    negated_transpose_with_a_last_column_alone,
    product_and_its_reverse,
    product_and_its_transpose,
    transposed_product_that_is_read_twice,
    rounded_half_constant,
    single_lane_tail,
    single_lane_tail_of_a_row_that_is_added_to,
    scalar_bits,
    loops_on_both_sides_of_a_scan,
    window_at_a_loaded_start,
    region_reading_outer_views,
    unused_loop,
    attention_normalised_by_columns,
    attention_with_reversed_scores,
    attention_of_two_precisions,
    attention_masked_in_a_type_without_infinities,
)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_program_is_compiled_correctly(make: Callable[[Program], list[Value]]) -> None:
    program = build(make)
    outcome = check(case_of(program, whole_numbers(program)))
    assert not outcome.kind, outcome.message


@pytest.mark.parametrize(
    ("operand", "result"), [("f16", "f32"), ("bf16", "bf16"), ("f64", "f32"), ("i8", "i32"), ("f8e5m2", "f32")]
)
def test_product_accumulates_in_the_result_type(operand: str, result: str) -> None:
    program = Program("mixed")
    left, right = (program.array(*s, dtype=dtypes.by_name(operand)) for s in ((5, 40), (40, 33)))
    program.outputs = [product(program, left, right, dtypes.by_name(result))]
    outcome = check(case_of(program, whole_numbers(program)))
    assert not outcome.kind, outcome.message


@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_the_largest_half_number(descending: bool) -> None:
    """The semantics: NumPy's sort of `bf16` leaves a NaN where it stands."""
    program = Program("sorted")
    x = program.array(6, dtype=dtypes.bf16)
    program.outputs = list(program.add("sort", [x], axis=0, descending=descending))
    case = case_of(program, [np.array([1, np.nan, 2, np.inf, -np.inf, 0.5]).astype(dtypes.bf16.numpy)])
    ascending = [-np.inf, 0.5, 1, 2, np.inf, np.nan]
    expected = np.array(ascending[::-1] if descending else ascending, np.float32)
    np.testing.assert_array_equal(case.expected[0].value.astype(np.float32), expected)
    assert not check(case).kind


def test_an_unsigned_index_beyond_signed_ones_is_the_last_one() -> None:
    """Also where it is counted from the other end."""
    program = Program("taken")
    x, index = program.array(4, 5), program.input(ArrayType((2,), dtypes.u64))
    (backwards,) = program.add("reverse", [x], axes=(1,))
    program.outputs = list(program.add("gather", [backwards, index], axes=(1,)))
    case = case_of(program, [whole_numbers(program)[0], np.array([3, 2**64 - 1], np.uint64)])
    assert not check(case).kind


def test_a_number_that_is_gathered_and_squared() -> None:
    program = Program("number")
    x, index = program.input(ArrayType((3,), dtypes.i16)), program.input(ArrayType((), dtypes.u64))
    program.outputs = [program.map("square", program.add("gather", [x, index], axes=(0,))[0])]
    case = case_of(program, [np.array([3, 4, 5], np.int16), np.array(1, np.uint64)])
    assert not check(case).kind
