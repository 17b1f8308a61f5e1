"""Which operations `array-duplicate-views` copies, and where the copies stand."""

from __future__ import annotations

from collections.abc import Callable

from tests.passes.pass_support import Make, expect, parse, run_through, unit_of
from tests.programs import Program
from tilewright import dtypes
from tilewright.frontend.trace import Value
from tilewright.passes.array.array_duplicate_views import ArrayDuplicateViewsPass


def test_a_chain_of_views_is_copied_whole_and_stands_before_its_user() -> None:
    def program(p: Program) -> list[Value]:
        turned = p.add("transpose", [p.array(8, 4)], permutation=(1, 0))[0]
        back = p.add("reverse", [turned], axes=(0,))[0]
        return [p.map("exp", back), p.map("log", back)]

    expect(
        run_through(program, ArrayDuplicateViewsPass),
        """
        CHECK: func.func
        CHECK-NEXT: [[T:%[0-9]+]] = array.transpose(%0)
        CHECK-NEXT: [[S:%[0-9]+]] = array.reverse([[T]])
        CHECK-NEXT: array.map([[S]]) {fn = "exp"}
        CHECK-NEXT: [[T2:%[0-9]+]] = array.transpose(%0)
        CHECK-NEXT: [[S2:%[0-9]+]] = array.reverse([[T2]])
        CHECK-NEXT: array.map([[S2]]) {fn = "log"}
        CHECK-NEXT: func.return
        """,
    )


def test_splats_iota_and_unit_reshapes_are_copied() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(4)
        column = p.add("reshape", [x], shape=(4, 1))[0]
        count = p.add("iota", shape=(4, 1), dtype="f32", axis=0)[0]
        two = p.splat(2.0, (4, 1))
        return [p.map(fn, p.map("atan2", column, count), two) for fn in ("add", "power")] + [
            p.map("hypot", column, count)
        ]

    expect(
        run_through(program, ArrayDuplicateViewsPass),
        """
        CHECK-COUNT-2: = array.reshape(%0) : tensor<4x1xf32>
        CHECK-NOT: array.reshape
        """,
    )
    text = str(run_through(program, ArrayDuplicateViewsPass).module)
    assert [text.count(f"array.{op}") for op in ("reshape", "iota", "constant", "map")] == [2, 2, 1, 4]


def test_what_computes_or_moves_is_not_copied() -> None:
    def program(p: Program) -> list[Value]:
        e = p.map("exp", p.array(4, 6))
        flat = p.add("reshape", [e], shape=(24,))[0]
        return [p.map("sin", e), p.map("cos", e), p.map("sin", flat), p.map("cos", flat)]

    text = str(run_through(program, ArrayDuplicateViewsPass).module)
    assert text.count('{fn = "exp"}') == 1
    assert text.count("array.reshape") == 1


def read_in_a_region(view: Callable[[Program, Value], Value]) -> Make:
    """A program that reads a view of (4, 2) in its body and in a branch."""

    def program(p: Program) -> list[Value]:
        x, choice = p.array(4, 2), p.array(dtype=dtypes.bool_)
        wide = view(p, x)
        y = p.map("negative", wide)
        then, otherwise = p.nested("then"), p.nested("otherwise")
        then.outputs = [then.add("map", [wide], fn="absolute")[0]]
        otherwise.outputs = [y]
        return [y, *p.append("if", [choice], {}, [y.type], [then, otherwise])]

    return program


def test_a_view_that_a_region_reads_stays_outside_of_it() -> None:
    program = read_in_a_region(lambda p, x: p.add("transpose", [x], permutation=(1, 0))[0])
    expect(
        run_through(program, ArrayDuplicateViewsPass),
        """
        CHECK: [[OWN:%[0-9]+]] = array.transpose(%0)
        CHECK-NEXT: array.map([[OWN]]) {fn = "negative"}
        CHECK-NEXT: [[COPY:%[0-9]+]] = array.transpose(%0)
        CHECK-NEXT: array.if(%1)
        CHECK-NEXT: array.map([[COPY]]) {fn = "absolute"}
        CHECK-NOT: array.transpose
        """,
    )


def test_elementwise_operations_of_a_region_have_broadcasts_there() -> None:
    program = read_in_a_region(lambda p, x: p.broadcast(x, (3, 4, 2), (1, 2)))
    expect(
        run_through(program, ArrayDuplicateViewsPass),
        """
        CHECK: [[OWN:%[0-9]+]] = array.broadcast(%0)
        CHECK-NEXT: array.map([[OWN]]) {fn = "negative"}
        CHECK-NEXT: array.if(%1)
        CHECK-NEXT: [[COPY:%[0-9]+]] = array.broadcast(%0)
        CHECK-NEXT: array.map([[COPY]]) {fn = "absolute"}
        CHECK-NOT: array.broadcast
        """,
    )


def test_both_operands_of_one_operation_get_their_own() -> None:
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<2x4xf32> {
      %wide = array.broadcast(%x) {axes = array<i64: 1>} : tensor<2x4xf32>
      %y = array.map(%wide, %wide) {fn = "atan2"} : tensor<2x4xf32>
      func.return %y : tensor<2x4xf32>
    }
    """
    unit = unit_of(parse(text), {})
    ArrayDuplicateViewsPass().apply(unit)
    expect(
        unit,
        """
        CHECK: [[A:%[0-9]+]] = array.broadcast(%0)
        CHECK-NEXT: [[B:%[0-9]+]] = array.broadcast(%0)
        CHECK-NEXT: array.map({{%[12], %[12]}})
        """,
    )
    product = next(op for op in unit.main.body.block.ops if op.name == "array.map")
    assert product.operands[0] is not product.operands[1]


LOOP = """
    func.func @main(%h: tensor<2x8xf32>) -> tensor<2x8xf32> {
      %w = array.constant() {value = 0 : index, resource = "w"} : tensor<1x8x8xf32>
      %r = array.reshape(%w) : tensor<8x8xf32>
      %t = array.transpose(%r) {permutation = array<i64: 1, 0>} : tensor<8x8xf32>
      %y = array.while(%h) do {
      ^bb0(%c: tensor<2x8xf32>):
        %n = array.constant() {value = 0 : index, resource = ""} : tensor<i1>
        array.yield(%n)
      } do {
      ^bb1(%d: tensor<2x8xf32>):
        %e = OPERATION : tensor<2x8xf32>
        array.yield(%e)
      } : tensor<2x8xf32>
      func.return %y : tensor<2x8xf32>
    }
"""
CONTRACTION = """array.contract(%d, %t) {left_batch = array<i64>, right_batch = array<i64>,
          left_contract = array<i64: 1>, right_contract = array<i64: 0>}"""


def _views_before_the_loop(operation: str, in_loops: bool) -> int:
    unit = unit_of(parse(LOOP.replace("OPERATION", operation)), {})
    ArrayDuplicateViewsPass(in_loops).apply(unit)
    unit.module.verify()
    return sum(op.name in ("array.reshape", "array.transpose") for op in unit.main.body.block.ops)


def test_views_of_captured_arrays_go_into_loops_that_multiply_by_them() -> None:
    assert _views_before_the_loop(CONTRACTION, in_loops=True) == 0
    assert _views_before_the_loop(CONTRACTION, in_loops=False) == 2


def test_views_of_arguments_stay_before_the_loop() -> None:
    text = LOOP.replace("%h: tensor<2x8xf32>", "%h: tensor<2x8xf32>, %w: tensor<1x8x8xf32>").replace(
        '%w = array.constant() {value = 0 : index, resource = "w"} : tensor<1x8x8xf32>', ""
    )
    unit = unit_of(parse(text.replace("OPERATION", CONTRACTION)), {})
    ArrayDuplicateViewsPass(in_loops=True).apply(unit)
    assert sum(op.name in ("array.reshape", "array.transpose") for op in unit.main.body.block.ops) == 2
