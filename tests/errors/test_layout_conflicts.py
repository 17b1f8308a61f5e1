"""What a user sees when layouts contradict each other: the lines that do, all of them and no others.

Each kernel's lines that are in conflict end in a mark, which is the oracle. Another program decides that the named
constraints contradict each other, and that without any one of them they do not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import tilewright as tw
from tests.conformance.layout.conformance_support import (
    CPU,
    GPU,
    build,
    conflict_of,
    constraints_of,
    is_satisfiable,
    marked_lines,
    space,
    square,
)
from tests.effort import is_within
from tilewright.dialects import tile
from tilewright.errors import LayoutBudgetError, LayoutConflictError, LayoutRuleError
from tilewright.passes.layouts.layout_inference import infer_layouts
from tilewright.passes.layouts.layout_rules import RULES

ACC = tw.layouts.wgmma_accumulator((64, 64))
FLIPPED = tw.layouts.wgmma_transposed((64, 64))
PER_ROW = tw.layouts.wgmma_per_row(64)
PER_COLUMN = tw.layouts.wgmma_per_column(64)
SHARED = tw.layouts.row_major((64, 64), "mem.shared")
ROWS_OF_TENSOR_MEMORY = "(128, 64) : [4@warp 32@lane | 64@reg]"
TENSOR_MEMORY = "(128, 64) : [128@tmem.row | 64@tmem.col]"
BATCH_A_WARP = "(4, 64, 64) : [4@warp | 64@reg | 32@lane 2@reg*64]"
BATCHES_INSIDE = "(64, 4, 64) : [4@warp 16@reg | 4@reg*16 | 32@lane 2@reg*64]"
COLUMNS = "(64, 64) : [4@reg 16@simd | 64@reg*4]"
ROWS = "(64, 64) : [64@reg*4 | 4@reg 16@simd]"

PROGRAMS: list[tuple[tw.Kernel, tuple[tw.ShapeDtype, ...], str]] = []


def program(*types: tw.ShapeDtype, on: str = GPU) -> Any:
    """A kernel with a contradiction, for arrays of these types on this machine."""

    def add(kernel: tw.Kernel) -> tw.Kernel:
        PROGRAMS.append((kernel, types, on))
        return kernel

    return add


# ---- two pins -------------------------------------------------------------------------------------------------------


@program()
@tw.kernel
def two_pins_on_one_value(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = x[i, j]
        a = tw.layout(t, ACC, strict=True)  # <- conflict
        b = tw.layout(t, FLIPPED, strict=True)  # <- conflict
        y[i, j] = tw.exp(a) + tw.exp(b)


@program()
@tw.kernel
def a_strict_pin_of_a_pin(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j] + 1, ACC)  # <- conflict
        y[i, j] = tw.layout(t, FLIPPED, strict=True)  # <- conflict


@program()
@tw.kernel
def pins_around_a_map(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        u = tw.exp(t)  # <- conflict
        y[i, j] = tw.layout(u, FLIPPED, strict=True)  # <- conflict


@program()
@tw.kernel
def operands_of_a_sum(x: tw.In["M N"], y: tw.InOut["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        a = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        b = tw.layout(y[i, j], FLIPPED, strict=True)  # <- conflict
        y[i, j] = a + b  # <- conflict


@program()
@tw.kernel
def sides_of_a_select(x: tw.In["M N"], y: tw.InOut["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        mask = tw.arange(64)[:, None] >= tw.arange(64)
        a = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        b = tw.layout(y[i, j], FLIPPED, strict=True)  # <- conflict
        chosen = tw.where(mask, a, b)  # <- conflict
        y[i, j] = chosen * 2


@program(square(64, tw.f16))
@tw.kernel
def pins_around_a_cast(x: tw.In["M N"], y: tw.Out["M N", tw.f32]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        wide = t.astype(tw.f32)  # <- conflict
        y[i, j] = tw.layout(wide, FLIPPED, strict=True)  # <- conflict


@program()
@tw.kernel
def pins_around_a_running_sum(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        total = tw.cumsum(t, axis=1)  # <- conflict
        y[i, j] = tw.layout(total, FLIPPED, strict=True)  # <- conflict


@program()
@tw.kernel
def pins_around_a_sort(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], FLIPPED, strict=True)  # <- conflict
        ordered = tw.sort(t, axis=0)  # <- conflict
        y[i, j] = tw.layout(ordered, ACC, strict=True)  # <- conflict


def doubled(x):
    return tw.layout(2 * x, FLIPPED, strict=True)


@program()
@tw.kernel
def a_pin_in_a_helper(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        u = tw.exp(t)  # <- conflict
        v = tw.layout(u, FLIPPED, strict=True)  # <- conflict
        y[i, j] = doubled(v)


@program()
@tw.kernel
def two_of_many_lines(x: tw.In["M N"], y: tw.InOut["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = x[i, j] - tw.max(x[i, j], axis=1, keepdims=True)
        e = tw.exp(t)
        p = e / tw.sum(e, axis=1, keepdims=True)
        q = tw.layout(p, ACC, strict=True)  # <- conflict
        r = tw.layout(p, FLIPPED, strict=True)  # <- conflict
        s = tw.layout(tw.exp(y[i, j]), FLIPPED)
        y[i, j] = (q + 1) * (r - 1) + tw.sum(s, axis=0, keepdims=True)


# ---- views ----------------------------------------------------------------------------------------------------------


@program()
@tw.kernel
def pins_around_a_transpose(x: tw.In["M N"], y: tw.Out["N M"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        turned = t.T  # <- conflict
        y[j, i] = tw.layout(turned, ACC, strict=True)  # <- conflict


@program(tw.ShapeDtype((4, 64, 64), tw.f32))
@tw.kernel
def pins_around_a_permutation(x: tw.In["B M N"], y: tw.Out["M B N"]):
    for b, i, j in tw.grid(x, (4, 64, 64)):
        t = tw.layout(x[b, i, j], BATCH_A_WARP, strict=True)  # <- conflict
        turned = tw.permute_dims(t, (1, 0, 2))  # <- conflict
        y[i, b, j] = tw.layout(turned, BATCHES_INSIDE, strict=True)  # <- conflict


@program()
@tw.kernel
def pins_around_a_reshape(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        flat = tw.reshape(t, (4096,))  # <- conflict
        pinned = tw.layout(flat, tw.layouts.strided_registers((4096,), 4), strict=True)  # <- conflict
        y[i, j] = tw.reshape(tw.exp(pinned), (64, 64))


@program()
@tw.kernel
def a_reshape_across_digits(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        wide = tw.reshape(t, (256, 16))  # <- conflict
        pinned = tw.layout(wide, "(256, 16) : [4@warp 2@reg*16 32@lane | 16@reg]", strict=True)  # <- conflict
        y[i, j] = tw.reshape(tw.exp(pinned), (64, 64))


@program()
@tw.kernel
def pins_around_a_slice(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        part = t[:, 8:16]  # <- conflict
        pinned = tw.layout(part, tw.layouts.wgmma_transposed((64, 8)), strict=True)  # <- conflict
        y[i, j] = tw.exp(pinned)[:, 0:1]


@program()
@tw.kernel
def a_slice_with_gaps(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(tw.exp(x[i, j]), ACC, strict=True)
        even = t[:, 0:64:2]  # <- conflict
        y[i, j] = tw.sum(even, axis=1, keepdims=True)


@program()
@tw.kernel
def parts_of_a_concatenation(x: tw.In["M N"], y: tw.InOut["M N"], z: tw.Out["M 128"]):
    for i, j in tw.grid(x, (64, 64)):
        a = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        b = tw.layout(y[i, j], FLIPPED, strict=True)  # <- conflict
        both = tw.concat([a, b], axis=1)  # <- conflict
        z[i, 0:128] = tw.exp(both)
        y[i, j] = x[i, j]


@program()
@tw.kernel
def a_concatenation_and_its_result(x: tw.In["M N"], z: tw.Out["M 128"]):
    for i, j in tw.grid(x, (64, 64)):
        a = tw.layout(x[i, j], FLIPPED, strict=True)  # <- conflict
        both = tw.concat([a, x[i, j] + 1], axis=1)  # <- conflict
        z[i, 0:128] = tw.layout(both, tw.layouts.wgmma_accumulator((64, 128)), strict=True)  # <- conflict


# ---- reductions and broadcasts --------------------------------------------------------------------------------------


@program()
@tw.kernel
def pins_around_a_reduction(x: tw.In["M N"], y: tw.Out["M"]):
    for i in tw.grid(y, 64):
        t = tw.layout(x[i, :], ACC, strict=True)  # <- conflict
        total = tw.sum(t, axis=1)  # <- conflict
        y[i] = tw.layout(total, PER_COLUMN, strict=True)  # <- conflict


@program()
@tw.kernel
def pins_around_an_argmax(x: tw.In["M N"], y: tw.Out["M", tw.i64]):
    for i in tw.grid(y, 64):
        t = tw.layout(x[i, :], ACC, strict=True)  # <- conflict
        best = tw.argmax(t, axis=1)  # <- conflict
        y[i] = tw.layout(best, PER_COLUMN, strict=True)  # <- conflict


@program(square(), tw.ShapeDtype((64,), tw.f32))
@tw.kernel
def pins_around_a_broadcast(x: tw.In["M N"], scale: tw.In["N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        s = tw.layout(scale[j], PER_ROW, strict=True)  # <- conflict
        wide = tw.broadcast_to(s, (64, 64))  # <- conflict
        y[i, j] = tw.layout(wide, ACC, strict=True) * x[i, j]  # <- conflict


@program()
@tw.kernel
def terms_of_a_finished_value(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.exp(x[i, j])
        terms = "(64, 64) : [4@warp 2@reg*2 8@lane*4 | 32@reg*4 2@reg] + partial[add 4@lane]"
        y[i, j] = tw.layout(t, terms)  # <- conflict


@program()
@tw.kernel
def terms_of_an_exponential(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        terms = "(64, 64) : [4@warp 2@reg*2 8@lane*4 | 32@reg*4 2@reg] + partial[add 4@lane]"
        t = tw.exp(x[i, j])  # <- conflict
        y[i, j] = tw.layout(t, terms, strict=True)  # <- conflict


# ---- loops and branches ---------------------------------------------------------------------------------------------


@program()
@tw.kernel
def a_carried_tile(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        total = tw.layout(x[i, j], ACC, strict=True)  # <- conflict
        for _ in range(10):  # <- conflict
            total = tw.layout(tw.exp(total), FLIPPED, strict=True)  # <- conflict
        y[i, j] = total


@program()
@tw.kernel
def a_carried_tile_pinned_at_the_top(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        total = tw.zeros((64, 64))
        for _ in range(10):  # <- conflict
            kept = tw.layout(total, ACC, strict=True)  # <- conflict
            total = tw.layout(kept + x[i, j], FLIPPED)  # <- conflict
        y[i, j] = total


@program(square(), tw.ShapeDtype((1,), tw.f32))
@tw.kernel
def branches(x: tw.In["M N"], flag: tw.In["1"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = x[i, j]
        if tw.sum(flag[0:1]) > 0:  # <- conflict
            u = tw.layout(tw.exp(t), ACC, strict=True)  # <- conflict
        else:
            u = tw.layout(t * 2, FLIPPED, strict=True)  # <- conflict
        y[i, j] = u


# ---- products -------------------------------------------------------------------------------------------------------


@program()
@tw.kernel
def an_accumulator_that_no_atom_takes(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
    for i, j in tw.grid(c, (64, 64)):
        start = tw.layout(tw.exp(c.shape[0] * tw.load(a, (i, j)).astype(tw.f32)), FLIPPED, strict=True)  # <- conflict
        c[i, j] = tw.dot(a[i, j], b[i, j], start)  # <- conflict


@program()
@tw.kernel
def a_left_operand_that_no_atom_takes(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
    for i, j in tw.grid(c, (64, 64)):
        left = tw.layout(a[i, j], FLIPPED, strict=True)  # <- conflict
        c[i, j] = tw.dot(left, b[i, j])  # <- conflict


@program()
@tw.kernel
def a_result_that_no_atom_gives(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
    for i, j in tw.grid(c, (64, 64)):
        product = tw.dot(a[i, j], b[i, j])  # <- conflict
        c[i, j] = tw.layout(product, FLIPPED, strict=True)  # <- conflict


@program()
@tw.kernel
def operands_of_different_atoms(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
    for i, j in tw.grid(c, (64, 64)):
        left = tw.layout(a[i, j], tw.layouts.mma_operand_a((64, 64), 32, (4, 1)), strict=True)  # <- conflict
        right = tw.layout(b[i, j], tw.layouts.mma_operand_b((64, 64), 32, (2, 2)), strict=True)  # <- conflict
        c[i, j] = tw.dot(left, right)  # <- conflict


@program(square(), square(), on=CPU)
@tw.kernel
def a_right_operand_that_is_not_packed(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
    for i, j in tw.grid(c, (64, 64)):
        right = tw.layout(b[i, j], tw.layouts.column_major((64, 64)), strict=True)  # <- conflict
        c[i, j] = tw.dot(a[i, j], right)  # <- conflict


# ---- what the machine has no room for -------------------------------------------------------------------------------


@program()
@tw.kernel
def more_warps_than_there_are(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.exp(x[i, j])
        y[i, j] = tw.layout(t, "(64, 64) : [64@warp*2 | 32@lane 2@reg]")  # <- conflict


@program()
@tw.kernel
def a_memory_that_is_not_there(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], tw.layouts.row_major((64, 64), "mem.l3"))  # <- conflict
        y[i, j] = tw.exp(t)


@program(tw.ShapeDtype((128, 64), tw.f32))
@tw.kernel
def tensor_memory_of_a_machine_without(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (128, 64)):
        t = tw.layout(x[i, j], ROWS_OF_TENSOR_MEMORY)
        y[i, j] = tw.layout(t, TENSOR_MEMORY)  # <- conflict


@program(on=CPU)
@tw.kernel
def lanes_of_a_machine_without(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        y[i, j] = tw.layout(tw.exp(x[i, j]), ACC)  # <- conflict


@program(tw.ShapeDtype((128, 64), tw.f32), on="blackwell")
@tw.kernel
def rows_of_other_warps(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (128, 64)):
        t = tw.layout(x[i, j], "(128, 64) : [32@lane 4@warp | 64@reg]")  # <- conflict
        y[i, j] = tw.layout(t, TENSOR_MEMORY)  # <- conflict


@program()
@tw.kernel
def elements_at_one_place(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.exp(x[i, j])
        y[i, j] = tw.layout(t, "(64, 64) : [64@lane*0 | 32@lane 2@reg]")  # <- conflict


@program()
@tw.kernel
def digits_that_overlap(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.exp(x[i, j])
        y[i, j] = tw.layout(t, "(64, 64) : [2@warp 32@lane | 4@warp 16@reg]", strict=True)  # <- conflict


@program()
@tw.kernel
def computed_in_shared_memory(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.exp(x[i, j])  # <- conflict
        y[i, j] = tw.layout(t, SHARED, strict=True)  # <- conflict


@program(on=CPU)
@tw.kernel
def vectors_of_every_fourth_element(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        y[i, j] = tw.layout(tw.exp(x[i, j]), "(64, 64) : [64@reg*4 | 16@simd 4@reg]")  # <- conflict


@program(on=CPU)
@tw.kernel
def vectors_along_both_dims(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], COLUMNS, strict=True)  # <- conflict
        u = tw.sqrt(t)  # <- conflict
        y[i, j] = tw.layout(u, ROWS, strict=True)  # <- conflict


@program()
@tw.kernel
def two_lines_of_a_long_kernel(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        t = x[i, j]
        for _ in range(8):
            for _ in range(8):
                t = tw.exp(t) - tw.max(t, axis=1, keepdims=True)
        u = tw.layout(t, ACC, strict=True)  # <- conflict
        v = tw.layout(t, FLIPPED, strict=True)  # <- conflict
        for _ in range(8):
            u, v = tw.exp(v), u + v
        y[i, j] = u


@pytest.mark.parametrize(("kernel", "types", "on"), PROGRAMS, ids=lambda p: p.name if isinstance(p, tw.Kernel) else "")
def test_the_lines_in_conflict_are_named(kernel: tw.Kernel, types: tuple[tw.ShapeDtype, ...], on: str) -> None:
    build(kernel, *types)
    conflict = conflict_of(kernel, *types, on=on)
    assert is_within(1, partial(conflict_of, kernel, *types, on=on))
    assert type(conflict.error) is LayoutConflictError
    assert conflict.lines == marked_lines(kernel)
    assert "internal" not in str(conflict.error)
    assert conflict.error.help
    problem, core = conflict.problem, conflict.core
    assert not is_satisfiable(problem, constraints_of(problem, core))
    for left_out in core:
        assert is_satisfiable(problem, constraints_of(problem, [origin for origin in core if origin != left_out]))


def test_there_are_thirty() -> None:
    assert len({kernel.name for kernel, _, _ in PROGRAMS}) >= 30


# ---- the other two failures -----------------------------------------------------------------------------------------


@tw.kernel
def sound(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        y[i, j] = tw.sort(tw.exp(x[i, j]), axis=1)


def test_a_search_that_is_given_up_says_so() -> None:
    with pytest.raises(LayoutBudgetError) as caught:
        infer_layouts(build(sound), space(GPU), budget=0)
    assert caught.value.code == "TW0304"
    assert "looked at 0 partial assignments" in caught.value.message
    assert "pin the layout of a value" in str(caught.value.help)


def test_an_operation_without_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, tile.SortOp)
    with pytest.raises(LayoutRuleError) as caught:
        infer_layouts(build(sound), space(GPU))
    assert caught.value.code == "TW0305"
    assert "has no rule for `tile.sort`" in caught.value.message
    assert caught.value.location is not None
    assert "tw.sort(" in caught.value.location.snippet()


def test_the_three_failures_are_told_apart() -> None:
    kinds = (LayoutConflictError, LayoutBudgetError, LayoutRuleError)
    assert [kind.code for kind in kinds] == ["TW0303", "TW0304", "TW0305"]
    assert not any(issubclass(a, b) for a in kinds for b in kinds if a is not b)
    conflict = conflict_of(two_pins_on_one_value)
    assert "no layouts satisfy all of these" in conflict.error.message
