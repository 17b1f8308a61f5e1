"""Which operations `array-fuse-loops` groups, which stay apart, and the reasons it records."""

from __future__ import annotations

from typing import Any

import pytest

from tests.passes.pass_support import Make, expect, remarks, run_through
from tests.programs import Program, layer_norm, softmax_columns, softmax_rows
from tilewright import dtypes
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.frontend.trace import Value
from tilewright.machines.machine import load
from tilewright.passes.array.array_fuse_loops import LONGEST_CHAIN, ArrayFuseLoopsPass
from tilewright.passes.kernels.planners import planner_for
from tilewright.passes.legality import verify_module

MOST_OPERATIONS = planner_for(load("x86-64-v3"), 2).most_operations


def groups(make: Make) -> list[tuple[str, str]]:
    """Kind and operations of every group."""
    unit = run_through(make, ArrayFuseLoopsPass)
    found = [op for op in unit.main.walk() if isinstance(op, array.FusedOp)]
    return [(op.kind, op.why) for op in found]


def reasons(make: Make) -> list[str]:
    """Why groups were not merged."""
    unit = run_through(make, ArrayFuseLoopsPass)
    return [reason for decision, reason in remarks(unit, ArrayFuseLoopsPass.name) if decision == "not fused"]


def turned(p: Program, x: Value) -> Value:
    return p.add("transpose", [x], permutation=(1, 0))[0]


def test_a_chain_and_a_diamond_are_one_group() -> None:
    def program(p: Program) -> list[Value]:
        e = p.map("exp", p.array(8))
        return [p.map("negative", p.map("add", p.map("sin", e), p.map("cos", e)))]

    expect(
        run_through(program, ArrayFuseLoopsPass),
        """
        CHECK: func.func
        CHECK-NEXT: array.fused(%0) {kind = "loop", why = "exp sin cos add negative"}
        CHECK: [[E:%[0-9]+]] = array.map({{.*}}) {fn = "exp"}
        CHECK-NEXT: [[S:%[0-9]+]] = array.map([[E]]) {fn = "sin"}
        CHECK-NEXT: [[C:%[0-9]+]] = array.map([[E]]) {fn = "cos"}
        CHECK-NEXT: array.map([[S]], [[C]]) {fn = "add"}
        CHECK: func.return
        """,
    )


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (softmax_rows, "maximum subtract exp add divide"),
        (softmax_columns, "maximum subtract exp add divide"),
        (layer_norm, "add divide subtract multiply add divide add rsqrt multiply multiply"),
    ],
)
def test_reductions_with_producers_and_consumers_are_one_group(make: Make, why: str) -> None:
    assert groups(make) == [("loop", why)]


@pytest.mark.parametrize(("axes", "fused"), [((0,), True), ((0, 1), False)])
def test_rows_are_gathered_by_the_loop_that_concatenates_them(axes: tuple[int, ...], fused: bool) -> None:
    """The loop is cut where an operand ends; single elements would be gathered from all operands under masks."""

    def program(p: Program) -> list[Value]:
        indices = [p.array(64, dtype=dtypes.i32) for _ in axes]
        rows = [p.add("gather", [p.array(100, 32), *indices], axes=axes)[0] for _ in range(2)]
        return [p.add("concat", rows, axis=0)[0]]

    expected = ["gather gather concat"] if fused else ["gather", "gather", "concat"]
    assert [why for _, why in groups(program)] == expected


@pytest.mark.parametrize("permutation", [(0, 1, 2), (1, 0, 2)])
def test_gathered_rows_of_any_order_are_copied_by_the_loop_that_concatenates_them(permutation: tuple[int, ...]) -> None:
    def program(p: Program) -> list[Value]:
        indices = p.array(64, dtype=dtypes.i32)
        rows = [p.add("gather", [p.array(5, 100, 32), indices], axes=(1,))[0] for _ in range(2)]
        turned = [p.add("transpose", [each], permutation=permutation)[0] for each in rows]
        return [p.add("concat", turned, axis=2)[0]]

    assert [why for _, why in groups(program)] == ["gather gather concat"]


@pytest.mark.parametrize(
    ("columns", "axis", "fused"),
    [(300, 0, True), (300, 1, True), (32, 1, True), (31, 1, False), (2, 0, True), (2, 1, False)],
)
def test_functions_of_operands_are_computed_by_the_loop_that_concatenates_them(
    columns: int, axis: int, fused: bool
) -> None:
    """The loop is cut where an operand ends, if rows are long: each function is computed in its part."""

    def program(p: Program) -> list[Value]:
        return [p.add("concat", [p.map(fn, p.array(50, columns)) for fn in ("exp", "tanh")], axis=axis)[0]]

    assert [why for _, why in groups(program)] == (["exp tanh concat"] if fused else ["exp", "tanh", "concat"])


@pytest.mark.parametrize(("columns", "interior", "fused"), [(100, 0, True), (20, 0, False), (100, 1, False)])
def test_functions_are_computed_by_the_loop_that_pads_them(columns: int, interior: int, fused: bool) -> None:
    def program(p: Program) -> list[Value]:
        low, high = (1, 2), (0, 3)
        return [
            p.add(
                "pad", [p.map("exp", p.array(60, columns)), p.scalar(0.0)], low=low, high=high, interior=(0, interior)
            )[0]
        ]

    assert [why for _, why in groups(program)] == (["exp pad"] if fused else ["exp", "pad"])


@pytest.mark.parametrize(("indices", "fused"), [(8192, False), (1024, True), (24, True)])
def test_what_is_gathered_often_is_stored(indices: int, fused: bool) -> None:
    """A sum of 16 rows of 32: each element is taken 512 times, or there are few elements, or each is taken once."""

    def program(p: Program) -> list[Value]:
        rows = p.map("add", p.array(16, 32), p.array(16, 32))
        return [p.add("gather", [rows, p.array(indices, dtype=dtypes.i32)], axes=(0,))[0]]

    assert [why for _, why in groups(program)] == (["add gather"] if fused else ["add", "gather"])


def test_results_of_one_shape_share_a_group_and_unrelated_ones_do_not() -> None:
    def program(p: Program) -> list[Value]:
        e = p.map("exp", p.array(8))
        return [p.map("sin", e), p.map("cos", e), p.map("tanh", p.array(8))]

    assert groups(program) == [("loop", "exp sin cos"), ("loop", "tanh")]


def both_ways(p: Program) -> list[Value]:
    e = p.map("exp", p.array(4, 4))
    return [p.map("add", e, turned(p, e))]


def two_reductions(p: Program) -> list[Value]:
    e = p.map("exp", p.array(4, 6))
    return [p.reduce(e, "add", (0,)), p.reduce(e, "add", (1,))]


def dear_and_repeated(p: Program) -> list[Value]:
    return [p.map("add", p.broadcast(p.map("exp", p.array(6)), (4, 6), (1,)), p.array(4, 6))]


def dear_and_gathered(p: Program) -> list[Value]:
    return list(p.add("gather", [p.map("exp", p.array(7, 3)), p.array(4, dtype=dtypes.i32)], axes=(0,)))


def reversed_maximum(p: Program) -> list[Value]:
    highest = p.add("reverse", [p.reduce(p.array(4, 6), "maximum", (1,))], axes=(0,))[0]
    return [p.map("subtract", p.array(4, 6), p.broadcast(highest, (4, 6), (0,)))]


def sorted_beside(p: Program) -> list[Value]:
    e = p.map("exp", p.array(8))
    return [p.map("add", e, p.add("sort", [e], axis=0, descending=False)[0])]


def results_of_two_shapes(p: Program) -> list[Value]:
    e = p.map("negative", p.array(4, 6))
    part = p.add("slice", [e], starts=(0, 0), limits=(2, 6), strides=(1, 1))[0]
    return [e, p.map("absolute", part)]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (both_ways, "exp would be computed more than once"),
        (two_reductions, "reductions of different shapes or axes"),
        (dear_and_repeated, "exp would be repeated for every element that reads it"),
        (dear_and_gathered, "exp would be repeated for every element that reads it"),
        (reversed_maximum, "a reduction would be read at shifted coordinates"),
        (sorted_beside, "another path between them leaves the group"),
        (results_of_two_shapes, "results of different shapes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_must_stay_apart_does_and_says_why(make: Make, reason: str) -> None:
    assert reasons(make) == [reason]


def test_a_group_before_the_set_that_reads_of_it_keeps_it_apart() -> None:
    """The mask's group stands after the change that it chooses, which a group computes that reads the mask."""

    def program(p: Program) -> list[Value]:
        before, old = p.array(2, 4), p.array(2)
        best = p.reduce(p.array(2, 4, 3), "maximum", (2,))
        change = p.reduce(p.map("absolute", p.map("subtract", best, before)), "maximum", (1,))
        mask = p.map("greater", old, p.splat(0.1, (2,)))
        kept = p.map("select", p.broadcast(mask, (2, 4), (0,)), best, before)
        return [kept, p.map("select", mask, change, old)]

    unit = run_through(program, ArrayFuseLoopsPass)
    verify_module(unit, "fusion")
    assert ("loop", "greater") in groups(program)


@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (3, 2), (4, 6), (6, 4), (5, 8), (8, 5)])
def test_a_cheap_producer_may_be_read_transposed_whatever_its_shape(rows: int, columns: int) -> None:
    def program(p: Program) -> list[Value]:
        return [p.map("add", turned(p, p.map("negative", p.array(rows, columns))), p.array(columns, rows))]

    assert groups(program) == [("loop", "negative add")]


def test_a_cheap_producer_is_computed_for_the_gathered_rows_only() -> None:
    def program(p: Program) -> list[Value]:
        table = p.add("cast", [p.array(50, 3, dtype=dtypes.i8)], dtype="f32")[0]
        table = p.map("multiply", table, p.broadcast(p.array(50), (50, 3), (0,)))
        return list(p.add("gather", [table, p.array(40, dtype=dtypes.i32)], axes=(0,)))

    assert groups(program) == [("loop", "cast multiply gather")]


@pytest.mark.parametrize(("permutation", "expected"), [((1, 0, 2), ["pad exp"]), ((2, 1, 0), ["pad", "exp"])])
def test_rows_are_padded_in_any_order(permutation: tuple[int, ...], expected: list[str]) -> None:
    def program(p: Program) -> list[Value]:
        x = p.add("pad", [p.array(4, 5, 6), p.scalar(0.0)], low=(1, 0, 0), high=(0, 1, 0), interior=(0, 0, 0))[0]
        return [p.map("exp", p.add("transpose", [x], permutation=permutation)[0])]

    assert [why for _, why in groups(program)] == expected


def test_a_single_element_is_padded() -> None:
    def program(p: Program) -> list[Value]:
        x = p.add("cast", [p.array(1)], dtype="f64")[0]
        return list(p.add("pad", [x, p.scalar(3.0, dtypes.f64)], low=(0,), high=(0,), interior=(0,)))

    assert len(groups(program)) == 1


def test_a_chain_stops_growing() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(8)
        for _ in range(LONGEST_CHAIN // 2 + 1):
            x = p.map("negative", p.map("exp", x))
        return [x]

    assert [len(why.split()) for _, why in groups(program)] == [LONGEST_CHAIN, 2]
    assert reasons(program) == [f"the group would have a chain of more than {LONGEST_CHAIN} operations"]


def test_the_time_to_fuse_a_chain_of_reversals_does_not_double_with_each() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(4, 5)
        for n in range(LONGEST_CHAIN // 2):
            x = p.map("multiply", *p.add("reverse", [x], axes=(n % 2,)), p.array(4, 5))
        return [x]

    # Coordinates written out would be of 2**32 terms.
    assert len(groups(program)) > 1


def test_a_wide_group_stops_growing() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(8)
        terms = [p.map("add", x, p.splat(n, (8,))) for n in range(MOST_OPERATIONS // 4)]
        parts = [p.map("multiply", x, p.map("exp", term)) for term in terms]
        while len(parts) > 1:
            parts = [p.map("add", *pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
        return [p.map("negative", p.map("exp", parts[0]))]

    assert [len(why.split()) for _, why in groups(program)] == [MOST_OPERATIONS, 1]
    assert reasons(program) == [f"the group would have more than {MOST_OPERATIONS} operations"]


def test_ordered_operations_run_alone_with_their_index_maps() -> None:
    def program(p: Program) -> list[Value]:
        x: Any = p.add("reverse", [p.map("exp", p.array(8))], axes=(0,))
        return [p.map("negative", p.add("scan", x, fn="add", axis=0, reverse=False)[0])]

    expect(
        run_through(program, ArrayFuseLoopsPass),
        """
        CHECK: kind = "loop", why = "exp"
        CHECK: kind = "scan", why = "scan runs alone"
        CHECK: array.reverse
        CHECK-NEXT: array.scan
        CHECK-NEXT: array.yield
        CHECK: kind = "loop", why = "negative"
        """,
    )


def test_an_index_map_that_is_returned_becomes_a_group_and_a_reshape_does_not() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(4, 6)
        return [turned(p, x), p.add("reshape", [x], shape=(24,))[0]]

    assert groups(program) == [("loop", "an index map that must be stored")]
    expect(run_through(program, ArrayFuseLoopsPass), "CHECK: array.reshape(%0) : tensor<24xf32>")


def permuted(p: Program, x: Value, *permutation: int) -> Value:
    return p.add("transpose", [x], permutation=permutation)[0]


@pytest.mark.parametrize(
    ("shape", "permutation", "is_fused"),
    [
        ((8, 50, 3), (0, 2, 1), True),  # channels of an image: neighbours were three elements apart
        ((50, 2, 2), (1, 2, 0), True),
        ((8, 3, 50), (0, 2, 1), False),  # stored with the channels inside: the transpose reads rows far apart
        ((8, 50, 5), (0, 2, 1), False),
        ((50, 60), (1, 0), False),
    ],
)
def test_a_short_transpose_is_stored_by_the_kernel_that_computes_it(
    shape: tuple[int, ...], permutation: tuple[int, ...], is_fused: bool
) -> None:
    found = groups(lambda p: [permuted(p, p.map("exp", p.array(*shape)), *permutation)])
    assert len(found) == (1 if is_fused else 2)


def test_a_short_transpose_of_sums_or_of_what_others_read_stays_apart() -> None:
    def summed(p: Program) -> list[Value]:
        return [permuted(p, p.add("reduce", [p.array(8, 50, 3, 9)], fn="add", axes=(3,))[0], 0, 2, 1)]

    def read_twice(p: Program) -> list[Value]:
        y = p.map("exp", p.array(8, 50, 3))
        return [permuted(p, y, 0, 2, 1), y]

    assert [len(groups(make)) for make in (summed, read_twice)] == [2, 2]


@pytest.mark.parametrize(("axes", "is_fused"), [((1, 2), True), ((0, 2), True), ((0, 1), False)])
def test_a_gather_of_single_elements_is_fused_with_a_transpose(axes: tuple[int, ...], is_fused: bool) -> None:
    def program(p: Program) -> list[Value]:
        x, first, second = p.array(20, 30, 40), p.array(5, 6, dtype=dtypes.i64), p.array(5, 6, dtype=dtypes.i64)
        gathered = p.add("gather", [x, first, second], axes=axes)[0]
        return [permuted(p, gathered, 2, 0, 1)]

    def read(p: Program) -> list[Value]:
        return [p.map("exp", program(p)[0])]

    assert len(groups(program)) == (1 if is_fused else 2)
    assert len(groups(read)) == (1 if is_fused else 2)


def taken(p: Program, *, twice: bool) -> list[Value]:
    """Columns of an array at indices, whose rows are rows of the result, and where `twice` the columns as rows too."""
    gathered = p.add("gather", [p.array(6, 9), p.array(4, dtype=dtypes.i64)], axes=(1,))[0]
    return [turned(p, gathered), gathered] if twice else [turned(p, gathered)]


def test_a_gather_is_computed_in_the_order_in_which_it_is_stored() -> None:
    unit = run_through(lambda p: taken(p, twice=False), ArrayFuseLoopsPass)
    (group,) = [op for op in unit.main.walk() if isinstance(op, array.FusedOp)]
    assert [op.name for op in group.body.block.ops] == ["array.gather", "array.transpose", "array.yield"]
    assert len(groups(lambda p: taken(p, twice=True))) == 2


def test_what_is_computed_of_gathered_elements_is_stored_transposed() -> None:
    """Also of rows that are gathered, but not of an array that is read in the order of the indices."""

    def program(p: Program, second: str) -> list[Value]:
        indices = p.array(40, dtype=dtypes.i64)
        columns = p.add("gather", [p.array(60, 90), indices], axes=(1,))[0]
        rows = {
            "gathered": lambda: p.add("gather", [p.array(90, 60), indices], axes=(0,))[0],
            "stored": lambda: p.array(40, 60),
            "small": lambda: p.broadcast(p.array(60), (40, 60), (1,)),
        }
        return [turned(p, p.map("exp", p.map("add", columns, rows[second]())))]

    counts = {each: len(groups(lambda p, each=each: program(p, each))) for each in ("gathered", "stored", "small")}
    assert counts == {"gathered": 1, "stored": 2, "small": 1}


@pytest.mark.parametrize(("rows", "columns", "count"), [(2, 100, 1), (4, 64, 1), (5, 100, 2), (4, 63, 2)])
def test_few_long_rows_are_stored_side_by_side(rows: int, columns: int, count: int) -> None:
    def program(p: Program) -> list[Value]:
        summed = p.map("add", p.array(7, rows, columns), p.broadcast(p.array(columns), (7, rows, columns), (2,)))
        return [permuted(p, p.map("exp", summed), 0, 2, 1)]

    assert len(groups(program)) == count


@pytest.mark.parametrize(
    ("fn", "dtype", "order", "columns", "count"),
    [
        ("negative", dtypes.f32, (2, 1, 0), 30, 1),
        ("negative", dtypes.f16, (2, 1, 0), 30, 2),  # more lanes than are transposed at a time
        ("exp", dtypes.f32, (2, 1, 0), 30, 2),
        ("exp", dtypes.f32, (1, 0, 2), 16, 1),
        ("exp", dtypes.f16, (1, 0, 2), 32, 1),
        ("exp", dtypes.f32, (1, 0, 2), 15, 2),  # rows shorter than a cache line
        ("negative", dtypes.f32, (1, 0, 2), 15, 1),
    ],
)
def test_results_are_stored_transposed(
    fn: str, dtype: dtypes.DType, order: tuple[int, ...], columns: int, count: int
) -> None:
    def program(p: Program) -> list[Value]:
        return [permuted(p, p.map(fn, p.array(20, 24, columns, dtype=dtype)), *order)]

    assert len(groups(program)) == count


@pytest.mark.parametrize(("columns", "order", "count"), [(64, (1, 0, 2), 1), (63, (1, 0, 2), 2), (64, (2, 1, 0), 2)])
def test_long_rows_are_computed_in_another_order(columns: int, order: tuple[int, ...], count: int) -> None:
    def program(p: Program) -> list[Value]:
        moved = permuted(p, p.map("exp", p.array(20, 24, columns)), *order)
        return [p.map("add", moved, p.array(*moved.shape))]

    assert len(groups(program)) == count


def test_what_several_of_a_group_read_is_computed_with_them() -> None:
    """Gathered elements, which neither a sum nor a quotient alone would take, as the other reads them, too."""

    def program(p: Program) -> list[Value]:
        columns = p.add("gather", [p.array(60, 90), p.array(40, dtype=dtypes.i64)], axes=(1,))[0]
        total = p.reduce(turned(p, columns), "add", (1,))
        return [p.map("divide", turned(p, columns), p.broadcast(total, (60, 40), (0,)))]

    assert groups(program) == [("loop", "gather add divide")]


def test_rows_are_gathered_in_the_order_of_the_transpose_that_stores_them() -> None:
    def program(p: Program, permutation: tuple[int, ...]) -> list[Value]:
        rows = p.add("gather", [p.array(50, 40, 30), p.array(4, dtype=dtypes.i32)], axes=(1,))[0]
        return list(p.add("transpose", [p.map("negative", rows)], permutation=permutation))

    assert groups(lambda p: program(p, (1, 0, 2))) == [("loop", "gather negative")]
    assert len(groups(lambda p: program(p, (2, 1, 0)))) == 2


def apart_from_mean(p: Program, x: Value, fn: str) -> Value:
    """An elementwise function of an array and the mean of its columns. The mean has a unit dim, so that the reduction
    and its consumer are not fused."""
    total = p.add("reshape", [p.reduce(x, "add", (0,))], shape=(300, 1))[0]
    mean = p.add("reshape", [p.map("multiply", total, p.splat(1 / 64, (300, 1)))], shape=(300,))[0]
    return p.map(fn, x, p.broadcast(mean, (64, 300), (1,)))


@pytest.mark.parametrize(("fn", "again"), [("subtract", True), ("power", False)])
def test_what_takes_a_cycle_is_computed_again_for_another_group(fn: str, again: bool) -> None:
    def program(p: Program) -> list[Value]:
        apart = apart_from_mean(p, p.array(64, 300), fn)
        total = p.add("reshape", [p.reduce(p.map("square", apart), "add", (0,))], shape=(300, 1))[0]
        spread = p.add("reshape", [p.map("sqrt", total)], shape=(300,))[0]
        return [p.reduce(p.map("divide", apart, p.broadcast(spread, (64, 300), (1,))), "add", (0,))]

    unit = run_through(program, ArrayFuseLoopsPass)
    stored = [array_type(r).size for op in unit.main.walk() if isinstance(op, array.FusedOp) for r in op.results]
    assert stored.count(64 * 300) == (0 if again else 1)


@pytest.mark.parametrize("arrays", [1, 2])
def test_what_reads_two_arrays_is_stored(arrays: int) -> None:
    def program(p: Program) -> list[Value]:
        apart = apart_from_mean(p, p.array(64, 300), "subtract")
        both = p.map("add", apart, p.array(64, 300)) if arrays == 2 else p.map("absolute", apart)
        total = p.add("reshape", [p.reduce(both, "maximum", (0,))], shape=(300, 1))[0]
        spread = p.add("reshape", [p.map("sqrt", total)], shape=(300,))[0]
        return [p.reduce(p.map("divide", both, p.broadcast(spread, (64, 300), (1,))), "add", (0,))]

    unit = run_through(program, ArrayFuseLoopsPass)
    stored = [array_type(r).size for op in unit.main.walk() if isinstance(op, array.FusedOp) for r in op.results]
    assert stored.count(64 * 300) == arrays - 1


def reversed_after(p: Program, *, again: bool) -> list[Value]:
    """An elementwise result of two arrays that is reversed; where `again`, it is returned as well."""
    y = p.map("exp", p.map("multiply", p.array(40, 300), p.array(40, 300)))
    return [p.add("reverse", [y], axes=(0, 1))[0], *[y] * again]


def test_reversed_results_are_stored_by_the_kernel_that_computes_them() -> None:
    assert groups(lambda p: reversed_after(p, again=False)) == [("loop", "multiply exp")]
    assert len(groups(lambda p: reversed_after(p, again=True))) == 2


@pytest.mark.parametrize(("fn", "arrays", "kernels"), [("negative", 1, 1), ("multiply", 2, 2), ("exp", 1, 2)])
def test_what_takes_a_cycle_and_reads_one_array_is_repeated_by_the_kernel_that_computes_it(
    fn: str, arrays: int, kernels: int
) -> None:
    def program(p: Program) -> list[Value]:
        y = p.map(fn, *(p.array(200, 2) for _ in range(arrays)))
        return [p.broadcast(y, (200, 3, 2), (0, 2))]

    assert len(groups(program)) == kernels


def test_what_several_of_a_loop_repeat_is_computed_with_them() -> None:
    """An opacity for each pixel, and what is left of it, which are read by products that one sum reads."""

    def program(p: Program) -> list[Value]:
        front, back = p.array(40, 300, 3, dtype=dtypes.i32), p.array(40, 300, 3, dtype=dtypes.i32)
        alpha = p.add("cast", [p.array(40, 300, dtype=dtypes.u8)], dtype="i32")[0]
        rest = p.map("subtract", p.splat(255, (40, 300), dtypes.i32), alpha)
        shares = [p.map("multiply", x, p.broadcast(a, (40, 300, 3), (0, 1))) for x, a in ((front, alpha), (back, rest))]
        return [p.map("add", *shares)]

    assert len(groups(program)) == 1
