"""Causal masks are found behind every spelling, with their offset, and nothing else is taken for one."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from xdsl.ir import Operation

from tests.passes.pass_support import run_through
from tests.programs import Program, causal_attention
from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.frontend.trace import Value
from tilewright.passes.array.array_fuse_attention import attention_parts
from tilewright.passes.array.array_simplify import ArraySimplifyPass
from tilewright.passes.array.attention_masks import causal_masks
from tilewright.passes.kernels.array_lower_to_tile import ArrayLowerToTilePass
from tilewright.semantics import tile as semantics

QUERIES, KEYS = 5, 7
SHAPE = (QUERIES, KEYS)
Condition = Callable[[Program, Value, Value], Value]


def positions(p: Program) -> tuple[Value, Value]:
    query, key = (p.add("iota", [], shape=SHAPE, dtype="i64", axis=axis)[0] for axis in (0, 1))
    return query, key


def number(p: Program, value: int) -> Value:
    return p.splat(value, SHAPE, dtypes.i64)


def masked(make: Condition, hidden: float = float("-inf")) -> Callable[[Program], list[Value]]:
    def program(p: Program) -> list[Value]:
        scores = p.dot(p.array(QUERIES, 4), p.array(KEYS, 4), 0, 1, 1)
        seen = make(p, *positions(p))
        return [p.map("select", seen, scores, p.splat(hidden, SHAPE))]

    return program


def masks_of(program: Callable[[Program], list[Value]]) -> list[tuple[int, int, bool]]:
    unit = run_through(program, ArraySimplifyPass)
    last = unit.main.body.block.last_op
    assert last is not None
    return [(mask.query_dim, mask.offset, mask.choice is not None) for mask in causal_masks(last.operands[0])]


def data(p: Program) -> Value:
    return p.map("less", p.array(*SHAPE), p.splat(0.5, SHAPE))


SPELLINGS: list[tuple[Condition, int]] = [
    (lambda p, q, k: p.map("less_equal", k, q), 0),
    (lambda p, q, k: p.map("less", k, q), -1),
    (lambda p, q, k: p.map("greater_equal", q, k), 0),
    (lambda p, q, k: p.map("greater", q, k), -1),
    (lambda p, q, k: p.map("bitwise_not", p.map("greater", k, q)), 0),
    (lambda p, q, k: p.map("less_equal", k, p.map("add", q, number(p, 2))), 2),
    (lambda p, q, k: p.map("less_equal", p.map("subtract", k, q), number(p, 2)), 2),
    (lambda p, q, k: p.map("greater_equal", p.map("subtract", q, k), number(p, 3)), -3),
    (lambda p, q, k: p.map("less_equal", p.map("subtract", k, q), p.map("negative", number(p, 1))), -1),
]


@pytest.mark.parametrize(("make", "offset"), SPELLINGS)
def test_spellings(make: Condition, offset: int) -> None:
    assert masks_of(masked(make)) == [(0, offset, True)]
    # Together with another condition, the select hides more than the mask.
    assert masks_of(masked(lambda p, q, k: p.map("bitwise_and", data(p), make(p, q, k)))) == [(0, offset, False)]


def test_the_offset_is_that_of_the_condition() -> None:
    query, key = np.indices(SHAPE)
    conditions = [
        key <= query,
        key < query,
        query >= key,
        query > key,
        ~(key > query),
        key <= query + 2,
        key - query <= 2,
        query - key >= 3,
        key - query <= -1,
    ]
    for (_, offset), seen in zip(SPELLINGS, conditions, strict=True):
        np.testing.assert_array_equal(seen, key <= query + offset)


@pytest.mark.parametrize(
    "make",
    [
        lambda p, q, k: p.map("less_equal", q, k),
        lambda p, q, k: p.map("equal", q, k),
        lambda p, q, k: data(p),
        lambda p, q, k: p.map("less_equal", p.map("multiply", k, number(p, 2)), q),
        lambda p, q, k: p.map("bitwise_or", data(p), p.map("less_equal", k, q)),
        lambda p, q, k: p.map("less_equal", k, p.array(*SHAPE, dtype=dtypes.i64)),
    ],
)
def test_other_conditions_are_no_causal_masks(make: Condition) -> None:
    assert masks_of(masked(make)) == []


def test_only_minus_infinity_hides() -> None:
    assert masks_of(masked(lambda p, q, k: p.map("less_equal", k, q), hidden=-1e9)) == []


def test_a_loop_over_keys_ends_where_the_mask_does() -> None:
    unit = run_through(causal_attention, ArrayLowerToTilePass)
    (kernel,) = unit.kernels()
    (loop,) = [op for op in kernel.walk() if isinstance(op, tile.ForOp)]
    ends = [semantics.evaluate_map(loop.end, (), [n])[0] for n in range(kernel.grid[-1])] if loop.end else []
    keys = int(re.findall(r"limit = (\d+)", str(kernel))[0])
    assert keys == 150
    rows = -(-170 // kernel.grid[-1])
    step = _step(kernel)
    # Query q sees the keys up to q - 20.
    assert ends == [-(-max(0, (n + 1) * rows - 20) // step) for n in range(kernel.grid[-1])]


def _step(kernel: tile.KernelOp) -> int:
    """Keys of a trip: the depth of the product with the values."""
    dots: list[Operation] = [op for op in kernel.walk() if isinstance(op, tile.DotOp)]
    return dots[-1].operands[0].type.get_shape()[1]  # type: ignore[attr-defined]  a tensor


def test_the_parts_of_a_group_keep_their_masks() -> None:
    from tilewright.passes.array.array_fuse_attention import ArrayFuseAttentionPass

    unit = run_through(causal_attention, ArrayFuseAttentionPass)
    groups = [op for op in unit.main.body.block.ops if op.name == "array.fused"]
    assert [len(causal_masks(attention_parts(g).scores)) for g in groups] == [1]  # type: ignore[arg-type]
