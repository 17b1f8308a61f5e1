"""What `array-fuse-attention` recognises, what it leaves alone, and the reasons it records."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import Make, expect, remarks, run_through
from tests.programs import Program
from tilewright.frontend.trace import Value
from tilewright.passes.array.array_fuse_attention import ArrayFuseAttentionPass

NAME = ArrayFuseAttentionPass.name


def scores_of(p: Program) -> Value:
    return p.dot(p.array(5, 4), p.array(6, 4), 0, 1, 1)


def weighted(p: Program, weights: Value) -> Value:
    return p.dot(weights, p.array(6, 3), 0, 1, 0)


def normalised(p: Program, e: Value, axis: int = 1) -> Value:
    return p.map("divide", e, p.broadcast(p.reduce(e, "add", (axis,)), e.shape, (1 - axis,)))


def test_scaled_and_masked_attention_is_one_group() -> None:
    def program(p: Program) -> list[Value]:
        scores = scores_of(p)
        scores = p.map("multiply", scores, p.splat(0.5, scores.shape))
        scores = p.map("add", scores, p.broadcast(p.array(6), scores.shape, (1,)))
        return [weighted(p, p.softmax(scores))]

    unit = run_through(program, ArrayFuseAttentionPass)
    expect(
        unit,
        """
        CHECK: func.func
        CHECK-NEXT: array.fused(%0, %1, %2, %3) {kind = "attention"
        CHECK: array.contract
        CHECK: {fn = "multiply"}
        CHECK: {fn = "add"}
        CHECK: array.contract
        CHECK-NEXT: array.yield
        CHECK-NEXT: } : tensor<5x3xf32>
        CHECK-NEXT: func.return
        """,
    )
    assert [decision for decision, _ in remarks(unit, NAME)] == ["fused"]


def test_heads_are_merged_by_the_store_of_the_group() -> None:
    def program(p: Program) -> list[Value]:
        q, k, v = p.array(2, 5, 4), p.array(2, 6, 4), p.array(2, 6, 3)
        y = p.dot(p.softmax(p.dot(q, k, 1, 2, 2)), v, 1, 2, 1)
        return [p.add("reshape", p.add("transpose", [y], permutation=(1, 0, 2)), shape=(5, 6))[0]]

    expect(
        run_through(program, ArrayFuseAttentionPass),
        """
        CHECK: kind = "attention"
        CHECK: [[T:%[0-9]+]] = array.transpose(%{{[0-9]+}}) {permutation = array<i64: 1, 0, 2>}
        CHECK-NEXT: array.yield([[T]])
        CHECK: array.reshape
        """,
    )


def test_cast_weights_are_not_recognised_as_the_kernel_has_one_type() -> None:
    def program(p: Program) -> list[Value]:
        scores = p.add("cast", [scores_of(p)], dtype="f64")[0]
        return [p.dot(p.softmax(scores), p.add("cast", [p.array(6, 3)], dtype="f64")[0], 0, 1, 0)]

    expect(run_through(program, ArrayFuseAttentionPass), "CHECK-NOT: array.fused")


def weights_returned(p: Program) -> list[Value]:
    weights = p.softmax(scores_of(p))
    return [weighted(p, weights), weights]


def scores_used_again(p: Program) -> list[Value]:
    scores = scores_of(p)
    return [weighted(p, p.softmax(scores)), p.map("negative", scores)]


def scores_read_reversed(p: Program) -> list[Value]:
    scores = scores_of(p)
    return [weighted(p, p.softmax(p.map("add", scores, p.add("reverse", [scores], axes=(1,))[0])))]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (weights_returned, "func.return also needs an inner value"),
        (scores_used_again, "array.map also needs an inner value"),
        (scores_read_reversed, "the scores are also read at other coordinates"),
    ],
)
def test_a_pattern_that_cannot_be_one_kernel_says_why(make: Make, reason: str) -> None:
    unit = run_through(make, ArrayFuseAttentionPass)
    expect(unit, "CHECK-NOT: array.fused")
    assert remarks(unit, NAME) == [("not fused", reason)]


def normalised_over_queries(p: Program) -> list[Value]:
    scores = scores_of(p)
    highest = p.broadcast(p.reduce(scores, "maximum", (0,)), scores.shape, (1,))
    return [weighted(p, normalised(p, p.map("exp", p.map("subtract", scores, highest)), axis=0))]


def rows_divided_by_sums_of_columns(p: Program) -> list[Value]:
    scores = p.dot(p.array(6, 4), p.array(6, 4), 0, 1, 1)
    highest = p.broadcast(p.reduce(scores, "maximum", (1,)), scores.shape, (0,))
    e = p.map("exp", p.map("subtract", scores, highest))
    return [weighted(p, p.map("divide", e, p.broadcast(p.reduce(e, "add", (0,)), e.shape, (0,))))]


def without_maximum(p: Program) -> list[Value]:
    return [weighted(p, normalised(p, p.map("exp", scores_of(p))))]


def maximum_of_other_scores(p: Program) -> list[Value]:
    scores, other = scores_of(p), p.array(5, 6)
    highest = p.broadcast(p.reduce(other, "maximum", (1,)), scores.shape, (0,))
    return [weighted(p, normalised(p, p.map("exp", p.map("subtract", scores, highest))))]


def sum_of_two_products(p: Program) -> list[Value]:
    return [weighted(p, p.softmax(p.map("add", scores_of(p), scores_of(p))))]


def softmax_alone(p: Program) -> list[Value]:
    return [p.softmax(scores_of(p))]


@pytest.mark.parametrize(
    "make",
    [
        normalised_over_queries,
        rows_divided_by_sums_of_columns,
        without_maximum,
        maximum_of_other_scores,
        sum_of_two_products,
        softmax_alone,
    ],
    ids=lambda f: f.__name__,
)
def test_what_is_not_attention_is_left_to_the_other_fusions(make: Make) -> None:
    unit = run_through(make, ArrayFuseAttentionPass)
    expect(unit, "CHECK-NOT: array.fused")
    assert remarks(unit, NAME) == []
