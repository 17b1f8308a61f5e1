"""What `array-simplify` folds, shares and drops, and what it must leave alone to keep every bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import (
    Make,
    applied,
    check_meaning,
    check_unchanged,
    expect,
    parse,
    run,
    run_through,
    unit_of,
)
from tests.programs import Program
from tilewright import dtypes, ops
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.frontend.trace import Value
from tilewright.passes.array.array_simplify import ArraySimplifyPass
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType


def simplified(make: Make) -> Unit:
    return run_through(make, ArraySimplifyPass)


def test_index_maps_of_one_kind_compose() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(2, 3, 4)
        turned = p.add("transpose", [x], permutation=(2, 0, 1))[0]
        turned = p.add("transpose", [turned], permutation=(0, 2, 1))[0]
        flat = p.add("reshape", [p.add("reshape", [x], shape=(6, 4))[0]], shape=(24,))[0]
        wide = p.broadcast(p.broadcast(p.array(3), (2, 3), (1,)), (5, 2, 3), (1, 2))
        return [turned, flat, wide]

    expect(
        simplified(program),
        """
        CHECK: @main(%0: tensor<2x3x4xf32>, %1: tensor<3xf32>)
        CHECK-NEXT: array.transpose(%0) {permutation = array<i64: 2, 1, 0>} : tensor<4x3x2xf32>
        CHECK-NEXT: array.reshape(%0) : tensor<24xf32>
        CHECK-NEXT: array.broadcast(%1) {axes = array<i64: 2>} : tensor<5x2x3xf32>
        CHECK-NEXT: func.return
        """,
    )


def test_equal_operations_are_shared_and_others_are_not() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(4, 4)
        sums = [p.reduce(p.map("exp", x), "add", (axis,)) for axis in (0, 1, 0)]
        return [p.map("add", sums[0], sums[2]), sums[1]]

    expect(
        simplified(program),
        """
        CHECK: [[E:%[0-9]+]] = array.map(%0) {fn = "exp"}
        CHECK-NEXT: [[ROWS:%[0-9]+]] = array.reduce([[E]]) {fn = "add", axes = array<i64: 0>}
        CHECK-NEXT: [[COLUMNS:%[0-9]+]] = array.reduce([[E]]) {fn = "add", axes = array<i64: 1>}
        CHECK-NEXT: array.map([[ROWS]], [[ROWS]]) {fn = "add"}
        CHECK-NEXT: func.return
        """,
    )


def test_zeros_of_both_signs_are_two_constants() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(4)
        return [p.map("divide", x, p.splat(zero, (4,))) for zero in (0.0, -0.0)]

    expect(
        simplified(program),
        """
        CHECK: [[PLUS:%[0-9]+]] = array.constant() {value = 0.0
        CHECK: array.map(%0, [[PLUS]])
        CHECK: [[MINUS:%[0-9]+]] = array.constant() {value = -0.0
        CHECK: array.map(%0, [[MINUS]])
        """,
    )


def test_what_nothing_uses_is_dropped_with_its_regions() -> None:
    text = """
    func.func @main(%x: tensor<i32>) -> tensor<i32> {
      %unused = array.map(%x) {fn = "negative"} : tensor<i32>
      %loop = array.while(%unused) do {
      ^bb0(%a: tensor<i32>):
        %more = array.map(%a, %x) {fn = "less"} : tensor<i1>
        array.yield(%more)
      } do {
      ^bb0(%a: tensor<i32>):
        %next = array.map(%a) {fn = "square"} : tensor<i32>
        array.yield(%next)
      } : tensor<i32>
      %y = array.map(%x) {fn = "absolute"} : tensor<i32>
      func.return %y : tensor<i32>
    }
    """
    unit = unit_of(parse(text), {})
    ArraySimplifyPass().apply(unit)
    expect(unit, 'CHECK: func.func\nCHECK-NEXT: array.map(%0) {fn = "absolute"}\nCHECK-NEXT: func.return')


def test_captured_arrays_are_computed_with() -> None:
    a, b = (np.random.default_rng(s).standard_normal((3, 5)).astype(np.float32) for s in range(2))

    def program(p: Program) -> list[Value]:
        left, right = (p.constant(v, ArrayType((3, 5), dtypes.f32)) for v in (a, b))
        return [p.map("add", p.array(3), p.reduce(p.map("multiply", left, right), "maximum", (1,)))]

    unit = simplified(program)
    expect(
        unit,
        """
        CHECK: [[C:%[0-9]+]] = array.constant() {{.*}}resource = "{{[0-9a-f]+}}"} : tensor<3xf32>
        CHECK-NEXT: array.map(%0, [[C]]) {fn = "add"}
        CHECK-NEXT: func.return
        """,
    )
    zero = np.zeros(3, np.float32)
    np.testing.assert_array_equal(run(unit, [zero])[0], (a * b).max(1))


@pytest.mark.parametrize(("columns", "folded"), [(100, True), (2**14, False)])
def test_a_view_of_a_captured_array_is_computed_while_it_is_small(columns: int, folded: bool) -> None:
    def program(p: Program) -> list[Value]:
        row = np.arange(columns, dtype=np.float32)
        return [p.broadcast(p.constant(row, ArrayType((columns,), dtypes.f32)), (16, columns), (1,))]

    view = f"array.broadcast(%0) {{axes = array<i64: 1>}} : tensor<16x{columns}xf32>"
    expect(simplified(program), "CHECK-NOT: array.broadcast" if folded else f"CHECK: {view}")


# Values that tell apart what is equal only for ordinary numbers.
SPECIAL = (0.0, -0.0, 1.0, -1.5, 3e38, 1e-45, np.inf, -np.inf, np.nan)


def disappears(fn: str, value: float, dtype: DType) -> bool:
    def program(p: Program) -> list[Value]:
        return [p.map(fn, p.array(4, dtype=dtype), p.splat(value, (4,), dtype))]

    return "array.map" not in str(simplified(program).module)


@pytest.mark.parametrize(
    ("fn", "value", "expected"),
    [
        ("add", -0.0, True),
        ("add", 0.0, False),  # -0 + 0 is 0
        ("subtract", 0.0, True),
        ("subtract", -0.0, False),
        ("multiply", 1.0, True),
        ("multiply", 0.0, False),  # not 0 for -1, inf and NaN
        ("divide", 1.0, True),
        ("divide", -1.0, False),
    ],
)
def test_a_neutral_float_disappears_only_if_it_keeps_every_bit(fn: str, value: float, expected: bool) -> None:
    x = np.array(SPECIAL, np.float32)
    with np.errstate(all="ignore"):
        result = getattr(np, fn)(x, np.float32(value))
    bits = [np.where(np.isnan(v), np.float32(np.nan), v).view(np.uint32) for v in (x, result)]
    assert np.array_equal(*bits) == expected, "the table of this test is wrong"
    assert disappears(fn, value, dtypes.f32) == expected


@pytest.mark.parametrize(
    ("fn", "value", "expected"),
    [
        ("add", 0, True),
        ("subtract", 0, True),
        ("multiply", 1, True),
        ("bitwise_or", 0, True),
        ("bitwise_and", 1, False),
        ("multiply", 2, False),
    ],
)
def test_a_neutral_integer_disappears(fn: str, value: int, expected: bool) -> None:
    assert disappears(fn, value, dtypes.i32) == expected


@pytest.mark.parametrize("name", ["i8", "u32", "i64", "f32"])
@pytest.mark.parametrize(
    "fn", ["subtract", "bitwise_xor", "bitwise_and", "maximum", "minimum", "equal", "less", "less_equal", "not_equal"]
)
def test_functions_of_an_integer_and_itself(fn: str, name: str) -> None:
    """The same for all integers, or the integer; of floats, of which some are not equal to themselves, the function."""
    dtype = dtypes.by_name(name)
    if dtype.is_float and fn.startswith("bitwise"):
        return
    x = np.array([0, 1, 5, 7, -1 if dtype.kind != "u" else 9, 100], dtype.numpy)
    expected = ops.evaluate(fn, [x, x])

    def program(p: Program) -> list[Value]:
        value = p.array(6, dtype=dtype)
        return [p.map(fn, value, value)]

    unit = simplified(program)
    np.testing.assert_array_equal(run(unit, [x])[0], expected)
    stays = any(isinstance(op, array.MapOp) for op in unit.main.walk())
    assert stays == (dtype.is_float and fn not in ("maximum", "minimum"))


@pytest.mark.parametrize("fn", ["multiply", "bitwise_and"])
def test_integers_times_zero_are_zero(fn: str) -> None:
    def program(p: Program) -> list[Value]:
        return [p.map(fn, p.splat(0, (4,), dtypes.i32), p.array(4, dtype=dtypes.i32))]

    unit = simplified(program)
    assert not any(isinstance(op, array.MapOp) for op in unit.main.walk())
    np.testing.assert_array_equal(run(unit, [np.array([3, -1, 0, 2**31 - 1], np.int32)])[0], np.zeros(4, np.int32))


@pytest.mark.parametrize("divisor", [2.0, -0.25, 2048.0, 8192.0, 3.0, 0.0, float("inf"), 1e-3])
def test_a_quotient_becomes_a_product_only_if_the_reciprocal_is_exact(divisor: float) -> None:
    def program(p: Program) -> list[Value]:
        return [p.map("divide", p.array(4, dtype=dtypes.f16), p.splat(divisor, (4,), dtypes.f16))]

    text = str(simplified(program).module)
    assert ('fn = "multiply"' in text) != ('fn = "divide"' in text)
    if 'fn = "multiply"' in text:
        every = np.arange(2**16, dtype=np.uint16).view(np.float16)
        quotient = ops.evaluate("divide", [every, np.float16(divisor)])
        product = ops.evaluate("multiply", [every, np.float16(1 / divisor)])
        np.testing.assert_array_equal(quotient, product)
    assert ('fn = "multiply"' in text) == (divisor in (2.0, -0.25, 2048.0))


def test_choices_and_signs_that_cancel_go() -> None:
    def program(p: Program) -> list[Value]:
        x, y, choice = p.array(4), p.array(4), p.array(4, dtype=dtypes.bool_)
        true = p.splat(True, (4,), dtypes.bool_)
        return [
            p.map("select", true, x, y),
            p.map("select", choice, y, y),
            p.map("negative", p.map("negative", x)),
            p.map("power", x, p.splat(2.0, (4,))),
            p.map("select", choice, x, y),
        ]

    expect(
        simplified(program),
        """
        CHECK: func.func
        CHECK-NEXT: [[SQUARE:%[0-9]+]] = array.map(%0) {fn = "square"}
        CHECK-NEXT: [[CHOICE:%[0-9]+]] = array.map(%2, %0, %1) {fn = "select"}
        CHECK-NEXT: func.return %0, %1, %0, [[SQUARE]], [[CHOICE]]
        """,
    )


def test_many_largest_elements_are_the_start_of_a_sort_and_few_are_searched_for() -> None:
    expect(
        simplified(lambda p: list(p.add("top_k", [p.array(2, 9000)], k=5000))),
        """
        CHECK: [[I:%[0-9]+]] = array.iota() {axis = 1 : index} : tensor<2x9000xi64>
        CHECK-NEXT: array.sort(%0, [[I]]) {axis = 1 : index, descending = true}
        CHECK-COUNT-2: limits = array<i64: 2, 5000>
        CHECK-NOT: array.top_k
        """,
    )
    expect(
        simplified(lambda p: list(p.add("top_k", [p.array(2, 9)], k=3))),
        """
        CHECK: array.top_k(%0) {k = 3 : index}
        CHECK-NOT: array.sort
        """,
    )


def test_nothing_is_combined_or_moves_along_an_axis_of_one_element() -> None:
    def program(p: Program) -> list[Value]:
        x, y = p.array(4, 1), p.array(4, 1)
        total = p.add("scan", [x], fn="add", axis=1, reverse=False)[0]
        return [total, *p.add("sort", [y, x], axis=1, descending=False), *p.add("sort", [x], axis=0, descending=False)]

    expect(
        simplified(program),
        """
        CHECK: @main(%0: tensor<4x1xf32>, %1: tensor<4x1xf32>)
        CHECK-NEXT: %2 = array.sort(%0) {axis = 0 : index, descending = false}
        CHECK-NEXT: func.return %0, %1, %0, %2
        """,
    )


def test_operations_on_empty_arrays_become_constants() -> None:
    def program(p: Program) -> list[Value]:
        rows, depth = p.array(0, 4), p.array(3, 0)
        highest = p.reduce(rows, "maximum", (0,))
        return [highest, p.dot(depth, p.array(0, 2), 0, 1, 0), p.add("concat", [rows, p.array(2, 4)], axis=0)[0]]

    unit = simplified(program)
    expect(unit, "CHECK-NOT: array.reduce\nCHECK-NOT: array.contract\nCHECK-NOT: array.concat")
    arrays = [np.zeros((0, 4)), np.zeros((3, 0)), np.zeros((0, 2)), np.ones((2, 4))]
    highest, product, joined = run(unit, [a.astype(np.float32) for a in arrays])
    np.testing.assert_array_equal(highest, np.full(4, -np.inf, np.float32))
    np.testing.assert_array_equal(product, np.zeros((3, 2), np.float32))
    np.testing.assert_array_equal(joined, arrays[3])


def test_regions_are_simplified_too() -> None:
    text = """
    func.func @main(%x: tensor<4xf32>, %c: tensor<i1>) -> tensor<4xf32> {
      %y = array.if(%c) do {
        %a = array.map(%x) {fn = "negative"} : tensor<4xf32>
        %b = array.map(%a) {fn = "negative"} : tensor<4xf32>
        array.yield(%b)
      } do {
        array.yield(%x)
      } : tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    """
    unit = unit_of(parse(text), {})
    ArraySimplifyPass().apply(unit)
    expect(unit, "CHECK: array.if(%1)\nCHECK-NEXT: array.yield(%0)\nCHECK-NOT: array.map")


TRANSPOSED = """
    func.func @main(%x: tensor<3x4x5xf32>) -> tensor<{result}> {{
      %two = array.constant() {{value = 2.0 : f64, resource = ""}} : tensor<f32>
      %twos = array.broadcast(%two) {{axes = array<i64>}} : tensor<5x3x4xf32>
      %t = array.transpose(%x) {{permutation = array<i64: 2, 0, 1>}} : tensor<5x3x4xf32>
      %a = array.map(%t, %twos) {{fn = "multiply"}} : tensor<5x3x4xf32>
      %b = array.map(%a, %t) {{fn = "subtract"}} : tensor<5x3x4xf32>
      %z = array.reduce(%b) {{fn = "maximum", axes = array<i64: {axes}>}} : tensor<{result}>
      func.return %z : tensor<{result}>
    }}
"""


@pytest.mark.parametrize(
    ("axes", "result", "transposes"),
    [("0, 1, 2", "f32", 0), ("0", "3x4xf32", 0), ("1", "5x4xf32", 1), ("1, 2", "5xf32", 0), ("0, 2", "3xf32", 0)],
)
def test_reductions_go_along_transposed_arrays_as_stored(axes: str, result: str, transposes: int) -> None:
    unit = check_meaning(ArraySimplifyPass(), TRANSPOSED.format(axes=axes, result=result))
    ops = list(unit.main.body.block.ops)
    assert sum(isinstance(op, array.TransposeOp) for op in ops) == transposes
    (reduction,) = (op for op in ops if isinstance(op, array.ReduceOp))
    assert array_type(reduction.operands[0]).shape == (3, 4, 5)


@pytest.mark.parametrize(("back", "result", "transposes"), [("1, 2, 0", "3x4x5xf32", 0), ("0, 2, 1", "5x4x3xf32", 2)])
def test_transposes_around_elementwise_operations_cancel(back: str, result: str, transposes: int) -> None:
    reduction = '%z = array.reduce(%b) {{fn = "maximum", axes = array<i64: {axes}>}} : tensor<{result}>'
    transpose = f"%z = array.transpose(%b) {{{{permutation = array<i64: {back}>}}}} : tensor<{result}>"
    text = TRANSPOSED.replace(reduction, transpose).format(result=result)
    unit = check_meaning(ArraySimplifyPass(), text)
    assert sum(isinstance(op, array.TransposeOp) for op in unit.main.body.block.ops) == transposes


@pytest.mark.parametrize(
    ("other", "axes", "transposes"),
    [("4xf32", "2", 0), ("5x1x4xf32", "0, 1, 2", 1), ("1x3x4xf32", "0, 1, 2", 0), ("5x3x1xf32", "0, 1, 2", 1)],
)
def test_broadcasts_next_to_transposed_arrays_go_along_if_their_dims_keep_the_order(
    other: str, axes: str, transposes: int
) -> None:
    text = f"""
    func.func @main(%x: tensor<3x4x5xf32>, %w: tensor<{other}>) -> tensor<f32> {{
      %t = array.transpose(%x) {{permutation = array<i64: 2, 0, 1>}} : tensor<5x3x4xf32>
      %b = array.broadcast(%w) {{axes = array<i64: {axes}>}} : tensor<5x3x4xf32>
      %a = array.map(%t, %b) {{fn = "maximum"}} : tensor<5x3x4xf32>
      %z = array.reduce(%a) {{fn = "maximum", axes = array<i64: 0, 1, 2>}} : tensor<f32>
      func.return %z : tensor<f32>
    }}
    """
    unit = check_meaning(ArraySimplifyPass(), text) if not transposes else check_unchanged(ArraySimplifyPass(), text)
    assert sum(isinstance(op, array.TransposeOp) for op in unit.main.body.block.ops) == transposes


def test_what_meets_results_of_its_reduction_stays_in_their_order() -> None:
    text = """
    func.func @main(%x: tensor<3x4xf32>) -> tensor<4xf32> {
      %t = array.transpose(%x) {permutation = array<i64: 1, 0>} : tensor<4x3xf32>
      %n = array.map(%t) {fn = "exp"} : tensor<4x3xf32>
      %m = array.reduce(%n) {fn = "maximum", axes = array<i64: 1>} : tensor<4xf32>
      %b = array.broadcast(%m) {axes = array<i64: 0>} : tensor<4x3xf32>
      %a = array.map(%t, %b) {fn = "subtract"} : tensor<4x3xf32>
      %z = array.reduce(%a) {fn = "add", axes = array<i64: 1>} : tensor<4xf32>
      func.return %z : tensor<4xf32>
    }
    """
    unit = check_meaning(ArraySimplifyPass(), text)
    assert sum(isinstance(op, array.TransposeOp) for op in unit.main.body.block.ops) == 1


def test_reductions_of_straight_and_transposed_arrays_stay() -> None:
    text = TRANSPOSED.format(axes="0", result="3x4xf32").replace(
        "tensor<3x4x5xf32>)", "tensor<3x4x5xf32>, %s: tensor<5x3x4xf32>)"
    )
    unit = applied(ArraySimplifyPass(), text.replace("%a, %t", "%a, %s"))
    assert any(isinstance(op, array.TransposeOp) for op in unit.main.body.block.ops)


_REVERSALS = {
    "pad": (
        """%zero = array.constant() {value = 0 : i64, resource = ""} : tensor<i32>
      %y = array.pad(%x, %zero) {low = array<i64: 2, 1>, high = array<i64: 0, 3>, interior = array<i64: 0, 1>}
        : tensor<10x15xi32>
      %z = array.reverse(%y) {axes = array<i64: 1>} : tensor<10x15xi32>""",
        "10x15xi32",
        array.PadOp,
    ),
    "concat along a reversed dim": (
        """%y = array.concat(%x, %w) {axis = 0 : i64} : tensor<11x6xi32>
      %z = array.reverse(%y) {axes = array<i64: 0, 1>} : tensor<11x6xi32>""",
        "11x6xi32",
        array.ConcatOp,
    ),
    "concat along another dim": (
        """%t = array.concat(%w, %w) {axis = 1 : i64} : tensor<3x12xi32>
      %z = array.reverse(%t) {axes = array<i64: 0>} : tensor<3x12xi32>""",
        "3x12xi32",
        array.ConcatOp,
    ),
    "reshape": (
        """%s = array.map(%x) {fn = "square"} : tensor<8x6xi32>
      %y = array.reshape(%s) : tensor<2x4x1x6xi32>
      %z = array.reverse(%y) {axes = array<i64: 3>} : tensor<2x4x1x6xi32>""",
        "2x4x1x6xi32",
        array.ReshapeOp,
    ),
}


@pytest.mark.parametrize(("body", "type", "last"), _REVERSALS.values(), ids=_REVERSALS)
def test_reversals_go_before_what_moves_their_operand(body: str, type: str, last: type[array.ArrayOp]) -> None:
    text = f"""
    func.func @main(%x: tensor<8x6xi32>, %w: tensor<3x6xi32>) -> tensor<{type}> {{
      {body}
      func.return %z : tensor<{type}>
    }}
    """
    unit = check_meaning(ArraySimplifyPass(), text)
    made = [op for op in unit.main.body.block.ops if isinstance(op, array.ArrayOp)]
    assert isinstance(made[-1], last)
    assert any(isinstance(op, array.ReverseOp) for op in made[:-1])


def test_reversals_cancel_and_stay_where_a_dim_is_no_dim_of_the_operand() -> None:
    twice = """
    func.func @main(%x: tensor<8x6xi32>) -> tensor<8x6xi32> {
      %y = array.reverse(%x) {axes = array<i64: 0, 1>} : tensor<8x6xi32>
      %z = array.reverse(%y) {axes = array<i64: 1>} : tensor<8x6xi32>
      func.return %z : tensor<8x6xi32>
    }
    """
    unit = check_meaning(ArraySimplifyPass(), twice)
    (op,) = (op for op in unit.main.body.block.ops if isinstance(op, array.ReverseOp))
    assert op.axes == (0,)
    cut = """
    func.func @main(%x: tensor<8x6xi32>) -> tensor<2x4x6xi32> {
      %s = array.map(%x) {fn = "square"} : tensor<8x6xi32>
      %y = array.reshape(%s) : tensor<2x4x6xi32>
      %z = array.reverse(%y) {axes = array<i64: 1>} : tensor<2x4x6xi32>
      func.return %z : tensor<2x4x6xi32>
    }
    """
    check_unchanged(ArraySimplifyPass(), cut)


def test_reductions_of_reductions_along_dims_next_to_each_other_are_one() -> None:
    def text(fn: str, first: int, then: int, reads: str = "%b") -> str:
        left = tuple(size for axis, size in enumerate((4, 5, 6)) if axis != first)
        last = next(size for axis, size in enumerate(left) if axis != then)
        return f"""
        func.func @main(%x: tensor<4x5x6xi32>) -> (tensor<{last}xi32>, tensor<{left[0]}x{left[1]}xi32>) {{
          %a = array.reduce(%x) {{fn = "maximum", axes = array<i64: {first}>}} : tensor<{left[0]}x{left[1]}xi32>
          %b = array.reduce(%x) {{fn = "add", axes = array<i64: {first}>}} : tensor<{left[0]}x{left[1]}xi32>
          %z = array.reduce(%a) {{fn = "{fn}", axes = array<i64: {then}>}} : tensor<{last}xi32>
          func.return %z, {reads} : tensor<{last}xi32>, tensor<{left[0]}x{left[1]}xi32>
        }}
        """

    for first, then, axes in ((2, 1, (1, 2)), (0, 0, (0, 1)), (1, 1, (1, 2))):
        unit = check_meaning(ArraySimplifyPass(), text("maximum", first, then))
        found = [op.axes for op in unit.main.body.block.ops if isinstance(op, array.ReduceOp) and op.fn == "maximum"]
        assert found == [axes]
    kept = """
    func.func @main(%x: tensor<4x5x1x6xi32>) -> tensor<1x4xi32> {
      %a = array.reduce(%x) {fn = "add", axes = array<i64: 3>} : tensor<4x5x1xi32>
      %b = array.reshape(%a) : tensor<1x4x5x1xi32>
      %z = array.reduce(%b) {fn = "add", axes = array<i64: 2, 3>} : tensor<1x4xi32>
      func.return %z : tensor<1x4xi32>
    }
    """
    unit = check_meaning(ArraySimplifyPass(), kept)
    assert [op.axes for op in unit.main.body.block.ops if isinstance(op, array.ReduceOp)] == [(1, 2, 3)]
    check_unchanged(ArraySimplifyPass(), text("maximum", 2, 0))  # rows and columns of matrices, between them a dim
    check_unchanged(ArraySimplifyPass(), text("minimum", 2, 1))
    unit = check_meaning(ArraySimplifyPass(), text("maximum", 2, 1, "%a"))
    assert sum(isinstance(op, array.ReduceOp) for op in unit.main.body.block.ops) == 2


@pytest.mark.parametrize(
    ("narrow", "wide", "taken"),
    [
        ("i8", "i32", True),
        ("ui8", "i32", False),
        ("i16", "i32", True),
        ("i8", "i64", False),
        ("i8", "i16", False),
        ("bf16", "f32", False),
    ],
)
def test_contractions_of_widened_integers_multiply_these(narrow: str, wide: str, taken: bool) -> None:
    text = f"""
    func.func @main(%x: tensor<5x90x{narrow}>, %y: tensor<90x7x{narrow}>) -> tensor<5x7x{wide}> {{
      %a = array.cast(%x) : tensor<5x90x{wide}>
      %b = array.cast(%y) : tensor<90x7x{wide}>
      %z = array.contract(%a, %b) {{left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>}} : tensor<5x7x{wide}>
      func.return %z : tensor<5x7x{wide}>
    }}
    """
    if not taken:
        check_unchanged(ArraySimplifyPass(), text)
        return
    lowest, highest = {"i8": (-128, 127), "i16": (-32768, 32767)}[narrow]
    random, dtype = np.random.default_rng(0), {"i8": np.int8, "i16": np.int16}[narrow]
    inputs = [random.integers(lowest, highest + 1, shape).astype(dtype) for shape in ((5, 90), (90, 7))]
    unit = check_meaning(ArraySimplifyPass(), text, inputs=inputs)
    assert not any(isinstance(op, array.CastOp) for op in unit.main.walk())
