"""Which tile values `tile-lower-to-vectors` gives a buffer, which nests share a loop, how products get operands."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import check_meaning, expect, numbered, parse, random_inputs, run, run_through, unit_of
from tests.passes.test_docstrings import example
from tests.programs import Program, softmax_rows
from tilewright import dtypes
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.frontend.trace import Value
from tilewright.passes.base import Unit
from tilewright.passes.vectors import product_nests
from tilewright.passes.vectors.tile_lower_to_vectors import TileLowerToVectorsPass
from tilewright.pipelines import compile_module, tile_to_vectors


def test_elementwise_values_stream_through_one_nest_without_a_buffer() -> None:
    def program(p: Program) -> list[Value]:
        e = p.map("exp", p.array(8))
        return [p.map("sin", e), p.map("cos", e)]

    expect(
        run_through(program, TileLowerToVectorsPass),
        """
        CHECK: scheduled.parallel() {extents = array<i64: 1>, grain = 1 : index}
        CHECK-NOT: scheduled.alloc
        CHECK: scheduled.nest
        CHECK-COUNT-1: {fn = "exp"}
        CHECK: tile.store
        CHECK: tile.store
        CHECK-NOT: scheduled.nest
        """,
    )


def test_a_dear_value_that_two_nests_need_is_computed_once() -> None:
    """The exponential of a softmax is summed in one nest and divided in the next; the cheap difference is not kept."""
    expect(
        run_through(softmax_rows, TileLowerToVectorsPass),
        """
        CHECK: [[E:%[0-9]+]] = scheduled.alloc() : !tile.ref<tensor<5x33xf32>, "worker">
        CHECK-NEXT: [[SUM:%[0-9]+]] = scheduled.alloc() : !tile.ref<tensor<5xf32>, "worker">
        CHECK-NEXT: [[HIGHEST:%[0-9]+]] = scheduled.alloc() : !tile.ref<tensor<5xf32>, "worker">
        CHECK-NEXT: scheduled.nest
        CHECK: {fn = "maximum"
        CHECK-NEXT: tile.store(%{{[0-9]+}}, [[HIGHEST]])
        CHECK: scheduled.nest
        CHECK: tile.load([[HIGHEST]])
        CHECK: {fn = "exp"}
        CHECK: tile.store(%{{[0-9]+}}, [[SUM]])
        CHECK: tile.store(%{{[0-9]+}}, [[E]])
        CHECK: scheduled.nest
        CHECK: tile.load([[E]])
        CHECK-NOT: {fn = "exp"}
        CHECK: {fn = "divide"}
        """,
    )


def test_a_cheap_value_that_two_nests_need_is_computed_twice() -> None:
    def program(p: Program) -> list[Value]:
        x = p.map("negative", p.array(4, 8))
        return [p.map("subtract", x, p.broadcast(p.reduce(x, "add", (1,)), x.shape, (0,)))]

    expect(
        run_through(program, TileLowerToVectorsPass),
        """
        CHECK: scheduled.alloc() : !tile.ref<tensor<4xf32>
        CHECK-NEXT: scheduled.nest
        CHECK: {fn = "negative"}
        CHECK: scheduled.nest
        CHECK: {fn = "negative"}
        """,
    )


@pytest.mark.parametrize("fn", ["", "absolute"])
def test_a_repeated_tile_that_is_apart_in_memory_is_not_loaded_in_vectors_for_each_repeat(fn: str) -> None:
    """Vectors along one column of four would be shuffled again for each of the others: vectors go along those."""

    def program(p: Program) -> list[Value]:
        x, y = p.array(2048, 4), p.array(64)
        part = p.add("slice", [x], starts=(0, 1), limits=(2048, 2), strides=(1, 1))[0]
        column = p.add("reshape", [part], shape=(2048,))[0]
        column = p.map(fn, column) if fn else column
        spread = [p.broadcast(column, (2048, 64), (0,)), p.broadcast(y, (2048, 64), (1,))]
        return [p.reduce(p.map("multiply", *spread), "maximum", (0,))]

    unit = run_through(program, TileLowerToVectorsPass)
    reducing = next(op for op in unit.module.walk() if isinstance(op, scheduled.NestOp))
    assert str(reducing.layout) == "(16, 2048) : [2@reg 8@simd | 2048@reg*2]"


def test_a_product_accumulates_in_place_and_skips_the_depth_beyond_the_end() -> None:
    def program(p: Program) -> list[Value]:
        return [p.dot(p.array(4, 2063), p.array(2063, 20), 0, 1, 0)]

    expect(
        run_through(program, TileLowerToVectorsPass),
        """
        CHECK: [[TOTAL:%[0-9]+]] = scheduled.alloc() : !tile.ref<tensor<4x16xf32>, "worker">
        CHECK: tile.store(%{{[0-9]+}}, [[TOTAL]])
        CHECK: tile.for() {trips = 2 : index}
        CHECK: scheduled.dot(%0, %1, [[TOTAL]], {{%[0-9]+(, %[0-9]+)*}})
        CHECK-SAME: block = "(4, 16) : [4@reg*2 | 2@reg 8@simd]"
        CHECK-SAME: depth_limit = 2063 : index
        CHECK-SAME: accumulate = true
        CHECK-NEXT: tile.yield()
        CHECK: tile.load([[TOTAL]])
        CHECK-NOT: tile.fill_padding
        """,
    )


def test_a_product_from_zero_overwrites_its_buffer() -> None:
    def program(p: Program) -> list[Value]:
        return [p.dot(p.array(2, 4), p.array(4, 3), 0, 1, 0)]

    expect(
        run_through(program, TileLowerToVectorsPass),
        "CHECK-NOT: tile.full\nCHECK: scheduled.dot\nCHECK-SAME: accumulate = false",
    )


def test_rows_of_a_product_do_not_all_fall_into_the_same_sets() -> None:
    def program(p: Program) -> list[Value]:
        return [p.map("exp", p.dot(p.array(4, 8), p.array(8, 1024), 0, 1, 0))]

    expect(
        run_through(program, TileLowerToVectorsPass),
        """
        CHECK: [[TOTAL:%[0-9]+]] = scheduled.alloc() : !tile.ref<tensor<4x528xf32>, "worker">
        CHECK: scheduled.dot(%0, %1, [[TOTAL]], {{.*}}extents = array<i64: 4, 512, 8>, block = "(4, 16) :
        """,
    )


@pytest.mark.parametrize("computed", [False, True])
def test_a_right_operand_is_read_from_its_array_unless_it_is_computed(computed: bool) -> None:
    def program(p: Program) -> list[Value]:
        w = p.array(20, 4)
        if computed:
            w = p.add("reverse", [w], axes=(1,))[0]
        return [p.dot(p.array(2, 4), w, 0, 1, 1)]

    panels = """
        CHECK: [[PANELS:%[0-9]+]] = scheduled.alloc() : !tile.ref<tensor<4x24xf32>, "worker", "(4, 24) : [4@mem*24
        CHECK: tile.load(%0) {map = affine_map<(d0, d1) -> (d0, ((d1 * -1) + 3))>}
        CHECK: tile.store(%{{[0-9]+}}, [[PANELS]])
        CHECK: scheduled.dot(%{{[0-9]+}}, [[PANELS]],
        """
    array = """
        CHECK-NOT: @mem
        CHECK: scheduled.dot(%{{[0-9]+}}, %1,
        CHECK-SAME: right_map = affine_map<(d0, d1) -> (d1, d0)>
        """
    expect(run_through(program, TileLowerToVectorsPass), panels if computed else array)


@pytest.mark.parametrize("kind", ["plain", "transposed", "computed", "of another type"])
def test_a_left_operand_is_read_from_its_array_if_its_depth_runs_inside(kind: str) -> None:
    """That is where a product finds a row's elements side by side; a copy would only cost time."""

    def program(p: Program) -> list[Value]:
        x = p.array(40, 4, dtype=dtypes.bf16 if kind == "of another type" else dtypes.f32)
        w = p.array(40 if kind == "transposed" else 4, 16, dtype=x.dtype)
        x = p.add("reverse", [x], axes=(1,))[0] if kind == "computed" else x
        return [p.dot(x, w, 0, 0 if kind == "transposed" else 1, 0)]

    array = """
        CHECK-NOT: tile.load(%0
        CHECK: scheduled.dot(%0, %1,
        CHECK-SAME: left_map = affine_map<(d0, d1){{.*}} -> ((d0 + (s0 * 20)), d1)>, right_map
        """
    buffer = """
        CHECK: tile.load(%0
        CHECK: tile.store(%{{[0-9]+}}, [[LEFT:%[0-9]+]])
        CHECK: scheduled.dot([[LEFT]], %1,
        """
    expect(run_through(program, TileLowerToVectorsPass), array if kind == "plain" else buffer)


def test_rows_are_updated_in_place_in_the_order_of_their_indices() -> None:
    def program(p: Program) -> list[Value]:
        x, updates, rows = p.array(7, 3), p.array(4, 3), p.array(4, dtype=dtypes.i32)
        return list(p.add("scatter", [x, updates, rows], axes=(0,), fn="add"))

    expect(
        run_through(program, TileLowerToVectorsPass),
        """
        CHECK-NOT: scheduled.alloc
        CHECK: scheduled.nest
        CHECK: tile.store(%{{[0-9]+}}, %3)
        CHECK: tile.for
        CHECK: scheduled.nest
        CHECK: [[OLD:%[0-9]+]] = tile.load(%3
        CHECK: [[NEW:%[0-9]+]] = tile.map([[OLD]], %{{[0-9]+}})
        CHECK: tile.store([[NEW]], %3
        CHECK-NOT: scheduled.nest
        """,
    )


IDENTITY = "{map = affine_map<(d0, d1) -> (d0, d1)>}"

# Each kernel is `(a, b, w) -> (w, out)` on 16 x 16 arrays, with `w` read and written.
KERNELS = {
    "the right operand was stored by the kernel itself": f"""
        %b0 = tile.load(%b) {IDENTITY} : tensor<16x16xf32>
        %one = tile.full() {{value = 1.0 : f64}} : tensor<16x16xf32>
        %next = tile.map(%b0, %one) {{fn = "add"}} : tensor<16x16xf32>
        tile.store(%next, %w) {IDENTITY}
        %right = tile.load(%w) {IDENTITY} : tensor<16x16xf32>
        %left = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        %zero = tile.full() {{value = 0.0 : f64}} : tensor<16x16xf32>
        %y = tile.dot(%left, %right, %zero) : tensor<16x16xf32>
        tile.store(%y, %out) {IDENTITY}
        """,
    "the right operand is overwritten before the product": f"""
        %right = tile.load(%w) {IDENTITY} : tensor<16x16xf32>
        %twice = tile.map(%right, %right) {{fn = "add"}} : tensor<16x16xf32>
        tile.store(%twice, %w) {IDENTITY}
        %left = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        %zero = tile.full() {{value = 0.0 : f64}} : tensor<16x16xf32>
        %y = tile.dot(%left, %right, %zero) : tensor<16x16xf32>
        tile.store(%y, %out) {IDENTITY}
        """,
    "the left operand was stored by the kernel itself": f"""
        %a0 = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        %one = tile.full() {{value = 1.0 : f64}} : tensor<16x16xf32>
        %next = tile.map(%a0, %one) {{fn = "add"}} : tensor<16x16xf32>
        tile.store(%next, %w) {IDENTITY}
        %left = tile.load(%w) {IDENTITY} : tensor<16x16xf32>
        %right = tile.load(%b) {IDENTITY} : tensor<16x16xf32>
        %zero = tile.full() {{value = 0.0 : f64}} : tensor<16x16xf32>
        %y = tile.dot(%left, %right, %zero) : tensor<16x16xf32>
        tile.store(%y, %out) {IDENTITY}
        """,
    "the left operand is overwritten before the product": f"""
        %left = tile.load(%w) {IDENTITY} : tensor<16x16xf32>
        %twice = tile.map(%left, %left) {{fn = "add"}} : tensor<16x16xf32>
        tile.store(%twice, %w) {IDENTITY}
        %right = tile.load(%b) {IDENTITY} : tensor<16x16xf32>
        %zero = tile.full() {{value = 0.0 : f64}} : tensor<16x16xf32>
        %y = tile.dot(%left, %right, %zero) : tensor<16x16xf32>
        tile.store(%y, %out) {IDENTITY}
        """,
    "both operands are the array that the product is written to": f"""
        %both = tile.load(%w) {IDENTITY} : tensor<16x16xf32>
        %zero = tile.full() {{value = 0.0 : f64}} : tensor<16x16xf32>
        %y = tile.dot(%both, %both, %zero) : tensor<16x16xf32>
        tile.store(%y, %w) {IDENTITY}
        %z = tile.dot(%both, %both, %y) : tensor<16x16xf32>
        tile.store(%z, %out) {IDENTITY}
        """,
    "an array is updated in place": f"""
        %x = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        tile.store(%x, %w) {IDENTITY}
        %old = tile.load(%w) {IDENTITY} : tensor<16x16xf32>
        %twice = tile.map(%old, %old) {{fn = "add"}} : tensor<16x16xf32>
        %new = tile.map(%twice, %x) {{fn = "add"}} : tensor<16x16xf32>
        tile.store(%new, %w) {IDENTITY}
        %again = tile.load(%w) {IDENTITY} : tensor<16x16xf32>
        tile.store(%again, %out) {IDENTITY}
        """,
    "another store is between a load and the store where that came from": f"""
        %x = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        tile.store(%x, %w) {IDENTITY}
        %old = tile.load(%w) {IDENTITY} : tensor<16x16xf32>
        %y = tile.load(%b) {IDENTITY} : tensor<16x16xf32>
        tile.store(%y, %w) {IDENTITY}
        %new = tile.map(%old, %y) {{fn = "add"}} : tensor<16x16xf32>
        tile.store(%new, %w) {IDENTITY}
        %again = tile.load(%w) {IDENTITY} : tensor<16x16xf32>
        tile.store(%again, %out) {IDENTITY}
        """,
    "an array is stored over its transpose": f"""
        %x = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        tile.store(%x, %w) {IDENTITY}
        %old = tile.load(%w) {{map = affine_map<(d0, d1) -> (d1, d0)>}} : tensor<16x16xf32>
        %new = tile.map(%old, %x) {{fn = "add"}} : tensor<16x16xf32>
        tile.store(%new, %w) {IDENTITY}
        %again = tile.load(%w) {IDENTITY} : tensor<16x16xf32>
        tile.store(%again, %out) {IDENTITY}
        """,
    "two products start from one carried accumulator": f"""
        %left = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        %right = tile.load(%b) {IDENTITY} : tensor<16x16xf32>
        %zero = tile.full() {{value = 0.0 : f64}} : tensor<16x16xf32>
        %s, %t = tile.for(%zero, %zero) {{trips = 3 : index}} do {{
        ^bb0(%i: index, %s0: tensor<16x16xf32>, %t0: tensor<16x16xf32>):
          %s1 = tile.dot(%left, %right, %s0) : tensor<16x16xf32>
          %more = tile.dot(%right, %left, %s0) : tensor<16x16xf32>
          %t1 = tile.map(%t0, %more) {{fn = "add"}} : tensor<16x16xf32>
          tile.yield(%s1, %t1)
        }} : tensor<16x16xf32>, tensor<16x16xf32>
        tile.store(%s, %w) {IDENTITY}
        tile.store(%t, %out) {IDENTITY}
        """,
    "a carried accumulator is also an operand of the next product": f"""
        %left = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        %right = tile.load(%b) {IDENTITY} : tensor<16x16xf32>
        %zero = tile.full() {{value = 0.0 : f64}} : tensor<16x16xf32>
        %s, %t = tile.for(%left, %zero) {{trips = 2 : index}} do {{
        ^bb0(%i: index, %s0: tensor<16x16xf32>, %t0: tensor<16x16xf32>):
          %s1 = tile.dot(%left, %right, %s0) : tensor<16x16xf32>
          %t1 = tile.dot(%s0, %right, %t0) : tensor<16x16xf32>
          tile.yield(%s1, %t1)
        }} : tensor<16x16xf32>, tensor<16x16xf32>
        tile.store(%s, %w) {IDENTITY}
        tile.store(%t, %out) {IDENTITY}
        """,
    "carried tiles change places": f"""
        %x = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        %y = tile.load(%b) {IDENTITY} : tensor<16x16xf32>
        %s, %t, %u = tile.for(%x, %y, %y) {{trips = 2 : index}} do {{
        ^bb0(%i: index, %s0: tensor<16x16xf32>, %t0: tensor<16x16xf32>, %u0: tensor<16x16xf32>):
          %sum = tile.map(%s0, %u0) {{fn = "add"}} : tensor<16x16xf32>
          tile.yield(%t0, %sum, %s0)
        }} : tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>
        %both = tile.map(%t, %u) {{fn = "subtract"}} : tensor<16x16xf32>
        tile.store(%s, %w) {IDENTITY}
        tile.store(%both, %out) {IDENTITY}
        """,
    "a carried tile is replaced before the next one is computed from it": f"""
        %x = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        %y = tile.load(%b) {IDENTITY} : tensor<16x16xf32>
        %s, %t = tile.for(%x, %y) {{trips = 1 : index}} do {{
        ^bb0(%i: index, %s0: tensor<16x16xf32>, %t0: tensor<16x16xf32>):
          %doubled = tile.map(%s0, %s0) {{fn = "add"}} : tensor<16x16xf32>
          %negated = tile.map(%y) {{fn = "negative"}} : tensor<16x16xf32>
          tile.yield(%negated, %doubled)
        }} : tensor<16x16xf32>, tensor<16x16xf32>
        tile.store(%s, %w) {IDENTITY}
        tile.store(%t, %out) {IDENTITY}
        """,
    "a carried tile is transposed before a product and written after it": f"""
        %x = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        %y = tile.load(%b) {IDENTITY} : tensor<16x16xf32>
        %zero = tile.full() {{value = 0.0 : f64}} : tensor<16x16xf32>
        %s, %t = tile.for(%x, %zero) {{trips = 3 : index}} do {{
        ^bb0(%i: index, %s0: tensor<16x16xf32>, %t0: tensor<16x16xf32>):
          %turned = tile.transpose(%s0) {{permutation = array<i64: 1, 0>}} : tensor<16x16xf32>
          %t1 = tile.dot(%x, %y, %t0) : tensor<16x16xf32>
          tile.yield(%turned, %t1)
        }} : tensor<16x16xf32>, tensor<16x16xf32>
        tile.store(%s, %w) {IDENTITY}
        tile.store(%t, %out) {IDENTITY}
        """,
    "only the branch that does not run keeps a value in a buffer": f"""
        %x = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        %false = tile.full() {{value = 0 : index}} : tensor<i1>
        %y = tile.if(%false) do {{
          %sums = tile.scan(%x) {{fn = "add", axis = 0 : index, reverse = false}} : tensor<16x16xf32>
          tile.yield(%sums)
        }} do {{
          tile.yield(%x)
        }} : tensor<16x16xf32>
        tile.store(%x, %w) {IDENTITY}
        tile.store(%y, %out) {IDENTITY}
        """,
    "a loop that never runs keeps nothing": f"""
        %x = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        %y = tile.for(%x) {{trips = 0 : index}} do {{
        ^bb0(%i: index, %y0: tensor<16x16xf32>):
          %sums = tile.scan(%x) {{fn = "add", axis = 0 : index, reverse = false}} : tensor<16x16xf32>
          tile.yield(%sums)
        }} : tensor<16x16xf32>
        tile.store(%x, %w) {IDENTITY}
        tile.store(%y, %out) {IDENTITY}
        """,
    "the first of two stores waits for a buffer": f"""
        %x = tile.load(%a) {IDENTITY} : tensor<16x16xf32>
        %flat = tile.reshape(%x) : tensor<4x64xf32>
        %y = tile.reshape(%flat) : tensor<16x16xf32>
        %z = tile.map(%y) {{fn = "negative"}} : tensor<16x16xf32>
        tile.store(%z, %w) {IDENTITY}
        tile.store(%x, %w) {IDENTITY}
        tile.store(%z, %out) {IDENTITY}
        """,
}


def kernel_module(body: str) -> str:
    square, ref = "tensor<16x16xf32>", "!tile.ref<tensor<16x16xf32>>"
    return f"""
    func.func @main(%a: {square}, %b: {square}, %w: {square}) -> ({square}, {square}) {{
      %w1, %y = array.call(%a, %b, %w) {{callee = "k"}} : {square}, {square}
      func.return %w1, %y : {square}, {square}
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "in", "inout", "out"]}} do {{
    ^bb0(%a: {ref}, %b: {ref}, %w: {ref}, %out: {ref}):
        {body}
        tile.yield()
    }}
    """


@pytest.mark.parametrize("body", KERNELS.values(), ids=KERNELS.keys())
def test_a_kernel_means_the_same_in_every_phase(body: str) -> None:
    text = kernel_module(body)
    unit = unit_of(parse(text), {})
    inputs = [np.round(3 * x) for x in random_inputs(unit)]
    expected = run(unit, inputs)
    for each in tile_to_vectors():
        each.apply(unit)
        unit.module.verify()
        for got, wanted in zip(run(unit, inputs), expected, strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=each.name)
    for got, wanted in zip(compile_module(parse(text), {}, "cpu")(*inputs), expected, strict=True):
        np.testing.assert_array_equal(got, wanted, err_msg="native code")


def test_a_scan_reads_and_writes_its_arrays_itself() -> None:
    """Also where the columns of a tile pass the end of the array."""
    for shape, axis in (((6, 40), 1), ((40, 37), 0)):
        expect(
            run_through(
                lambda p, shape=shape, axis=axis: [
                    p.add("scan", [p.array(*shape)], fn="add", axis=axis, reverse=False)[0]
                ],
                TileLowerToVectorsPass,
            ),
            """
            CHECK: scheduled.parallel
            CHECK-NOT: scheduled.alloc
            CHECK: scheduled.nest
            CHECK-NEXT: tile.load(%0
            CHECK-NEXT: tile.scan
            CHECK-NEXT: tile.store({{.*}}, %1
            CHECK-NEXT: scheduled.end
            CHECK-NOT: scheduled.nest
            """,
        )


def test_a_sort_with_indices_reads_no_indices_and_writes_no_elements_that_nothing_uses() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(3, 20)
        places = p.add("iota", shape=(3, 20), dtype="i64", axis=1)[0]
        return [p.add("sort", [x, places], axis=1, descending=False)[1]]

    expect(
        run_through(program, TileLowerToVectorsPass),
        """
        CHECK-NOT: scheduled.alloc
        CHECK: scheduled.nest
        CHECK-NEXT: tile.load(%0
        CHECK-NEXT: tile.iota
        CHECK-NEXT: [[KEYS:%[0-9]+]], [[PLACES:%[0-9]+]] = tile.sort
        CHECK-NEXT: tile.store([[PLACES]], %1
        CHECK-NEXT: scheduled.end
        """,
    )


def test_lines_that_do_not_lie_beside_each_other_are_copied_for_an_ordered_operation() -> None:
    def program(p: Program) -> list[Value]:
        turned = p.add("transpose", [p.array(20, 30, 4)], permutation=(0, 2, 1))[0]
        return [p.add("scan", [turned], fn="add", axis=2, reverse=False)[0]]

    expect(
        run_through(program, TileLowerToVectorsPass),
        """
        CHECK: [[COPY:%[0-9]+]] = scheduled.alloc
        CHECK: scheduled.nest
        CHECK: tile.store({{.*}}, [[COPY]])
        CHECK: scheduled.nest
        CHECK-NEXT: tile.load([[COPY]])
        CHECK-NEXT: tile.scan
        """,
    )


def test_the_example_of_nests() -> None:
    """One matmul sums over the loops, and ends where the array that it writes does, which is not a whole tile."""
    shown = example(product_nests)
    lowered = check_meaning_of_whole_numbers(shown.before)
    assert numbered(lowered.module) == numbered(parse(shown.after))


# What is replaced in the example, whose operands are then not read in place, or which does more than to sum.
OTHER_NESTS = {
    "the view ends before the columns do": [("tensor<2x33xf32>", "tensor<2x32xf32>")],
    "columns apart": [("(d0, d1 + s0 + s1 * 16)", "(d0, d1 * 2 + s0)"), ("tensor<2x33xf32>", "tensor<2x65xf32>")],
    "rows apart": [("-> (d0, d1, s0)", "-> (d0 * 2, d1, s0)"), ("tensor<4x2x3xf32>", "tensor<8x2x3xf32>")],
    "a sum that begins with ones": [("value = 0.0", "value = 1.0")],
    "a sum that is changed before a trip": [
        ("%right, %sum)", "%right, %half)"),
        ("%next =", '%half = tile.map(%sum, %sum) {fn = "add"} : tensor<4x16xf32>\n        %next ='),
    ],
    "rows of another type": [
        ("tensor<4x2x3xf32>", "tensor<4x2x3xf16>"),
        ("tensor<4x2xf32>", "tensor<4x2xf16>"),
    ],
}


@pytest.mark.parametrize("name", OTHER_NESTS)
def test_other_nests_stay_loops(name: str) -> None:
    text = example(product_nests).before
    for old, new in OTHER_NESTS[name]:
        assert old in text
        text = text.replace(old, new)
    lowered = check_meaning_of_whole_numbers(text)
    dots = [op for op in lowered.module.walk() if isinstance(op, scheduled.DotOp)]
    assert [(dot.steps, isinstance(dot.parent_op(), tile.ForOp)) for dot in dots] == [(None, True)]


def test_a_nest_whose_result_is_used_otherwise_fills_a_buffer() -> None:
    text = example(product_nests).before.replace("4x31", "4x32").replace("2x33", "2x34")
    store = "tile.store(%total,"
    text = text.replace(store, f'%y = tile.map(%total) {{fn = "negative"}} : tensor<4x16xf32>\n      {store}')
    text = text.replace(store, "tile.store(%y,")
    lowered = check_meaning_of_whole_numbers(text)
    expect(
        lowered,
        """
        CHECK: [[TOTAL:%[0-9]+]] = scheduled.alloc() : !tile.ref<tensor<4x16xf32>, "worker">
        CHECK: scheduled.dot(%0, %1, [[TOTAL]], %{{[0-9]+}}) {{.*}} steps = array<i64: 3>
        CHECK: tile.load([[TOTAL]])
        """,
    )
    # Columns of the last tile beyond the array would be read.
    ragged = text.replace("4x32", "4x31").replace("2x34", "2x33")
    expect(check_meaning_of_whole_numbers(ragged), "CHECK-NOT: steps =\nCHECK: tile.for")


def check_meaning_of_whole_numbers(text: str) -> Unit:
    rng = np.random.default_rng(0)
    types = [array_type(argument) for argument in unit_of(parse(text), {}).main.body.block.args]
    inputs = [rng.integers(-8, 8, type.shape).astype(type.dtype.numpy) for type in types]
    return check_meaning(TileLowerToVectorsPass(), text, inputs=inputs)
