"""Concatenations of operands with different memory layouts, and row reductions of transposed arrays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import applied, check_meaning, check_unchanged
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_align_rows import ArrayAlignRowsPass
from tilewright.passes.base import Unit

PASS = ArrayAlignRowsPass()
TURN = "%t = array.transpose(%y) {permutation = array<i64: 1, 0>} : tensor<64x96xf32>"


def joined(body: str, operands: str, axis: int, result: str) -> str:
    """A program of `%x: 64x96` and `%y: 96x64` that ends in a concatenation."""
    return f"""
    func.func @main(%x: tensor<64x96xf32>, %y: tensor<96x64xf32>) -> tensor<{result}> {{
      {body}
      %z = array.concat({operands}) {{axis = {axis} : index}} : tensor<{result}>
      func.return %z : tensor<{result}>
    }}
    """


def stored(unit: Unit) -> list[tuple[int, ...]]:
    """Shapes of what kernels of their own store."""
    return [array_type(op.results[0]).shape for op in unit.main.body.block.ops if isinstance(op, array.FusedOp)]


@pytest.mark.parametrize(("axis", "result"), [(0, "128x96xf32"), (1, "64x192xf32")])
def test_a_transposed_operand_is_stored(axis: int, result: str) -> None:
    assert stored(check_meaning(PASS, joined(TURN, "%x, %t", axis, result))) == [(64, 96)]


def test_what_is_computed_of_a_transposed_array_is_stored() -> None:
    body = f'{TURN}\n%e = array.map(%t) {{fn = "negative"}} : tensor<64x96xf32>'
    unit = check_meaning(PASS, joined(body, "%x, %e", 0, "128x96xf32"))
    group = next(op for op in unit.main.body.block.ops if isinstance(op, array.FusedOp))
    assert [type(op) for op in group.body.block.ops] == [array.TransposeOp, array.MapOp, array.YieldOp]


def test_transposed_operands_share_a_loop_that_ends_between_rows() -> None:
    """Along the second dim they are joined row by row; along the first one rows go on in the next operand."""
    check_unchanged(PASS, joined(f"{TURN}\n{TURN.replace('%t', '%u')}", "%t, %u", 1, "64x192xf32"))
    unit = check_meaning(PASS, joined(f"{TURN}\n{TURN.replace('%t', '%u')}", "%t, %u", 0, "128x96xf32"))
    assert stored(unit) == [(64, 96), (64, 96)]


def test_the_transpose_of_a_transposed_operand_is_that_array() -> None:
    text = """
    func.func @main(%x: tensor<64x96xf32>, %y: tensor<96x64xf32>) -> tensor<2x96x64xf32> {
      %t = array.transpose(%y) {permutation = array<i64: 1, 0>} : tensor<64x96xf32>
      %a = array.reshape(%x) : tensor<1x64x96xf32>
      %b = array.reshape(%t) : tensor<1x64x96xf32>
      %j = array.concat(%a, %b) {axis = 0 : index} : tensor<2x64x96xf32>
      %z = array.transpose(%j) {permutation = array<i64: 0, 2, 1>} : tensor<2x96x64xf32>
      func.return %z : tensor<2x96x64xf32>
    }
    """
    unit = check_meaning(PASS, text)
    assert stored(unit) == [(1, 96, 64)]
    join = next(op for op in unit.main.body.block.ops if isinstance(op, array.ConcatOp))
    view = join.operands[1].owner
    assert isinstance(view, array.ReshapeOp)
    assert view.operands[0] is unit.main.body.block.args[1]


def test_elements_that_are_gathered_are_stored_in_the_order_that_a_concatenation_is_read_in() -> None:
    """A transpose of the concatenation goes to its operands, and from there into the kernels that gather them."""
    text = """
    func.func @main(%x: tensor<64x96xf32>, %y: tensor<64x96xf32>, %i: tensor<80xi32>) -> tensor<128x80xf32> {
      %g = array.gather(%x, %i) {axes = array<i64: 1>} : tensor<80x64xf32>
      %h = array.gather(%y, %i) {axes = array<i64: 1>} : tensor<80x64xf32>
      %n = array.map(%h) {fn = "negative"} : tensor<80x64xf32>
      %j = array.concat(%g, %n) {axis = 1 : index} : tensor<80x128xf32>
      %z = array.transpose(%j) {permutation = array<i64: 1, 0>} : tensor<128x80xf32>
      func.return %z : tensor<128x80xf32>
    }
    """
    arrays = [np.arange(64 * 96, dtype=np.float32).reshape(64, 96) + n for n in range(2)]
    unit = check_meaning(PASS, text, inputs=[*arrays, np.arange(80, dtype=np.int32) * 7 % 96])
    assert stored(unit) == [(64, 80), (64, 80)]


def test_gathered_elements_that_others_read_keep_their_order() -> None:
    text = """
    func.func @main(%x: tensor<64x96xf32>, %i: tensor<80xi32>) -> (tensor<128x80xf32>, tensor<80x64xf32>) {
      %g = array.gather(%x, %i) {axes = array<i64: 1>} : tensor<80x64xf32>
      %j = array.concat(%g, %g) {axis = 1 : index} : tensor<80x128xf32>
      %z = array.transpose(%j) {permutation = array<i64: 1, 0>} : tensor<128x80xf32>
      %w = array.map(%g) {fn = "negative"} : tensor<80x64xf32>
      func.return %z, %w : tensor<128x80xf32>, tensor<80x64xf32>
    }
    """
    groups = [op for op in applied(PASS, text).main.body.block.ops if isinstance(op, array.FusedOp)]
    assert not any(isinstance(op, array.GatherOp) for group in groups for op in group.body.block.ops)


@pytest.mark.parametrize(
    ("body", "operands", "axis", "result"),
    [
        ("", "%x, %x", 0, "128x96xf32"),
        ('%e = array.map(%x) {fn = "negative"} : tensor<64x96xf32>', "%x, %e", 0, "128x96xf32"),
    ],
)
def test_operands_whose_rows_lie_alike_stay(body: str, operands: str, axis: int, result: str) -> None:
    check_unchanged(PASS, joined(body, operands, axis, result))


def test_channels_first_of_few_channels_are_shuffled() -> None:
    text = """
    func.func @main(%x: tensor<3x64x64xf32>, %y: tensor<64x64x3xf32>) -> tensor<6x64x64xf32> {
      %t = array.transpose(%y) {permutation = array<i64: 2, 0, 1>} : tensor<3x64x64xf32>
      %z = array.concat(%x, %t) {axis = 0 : index} : tensor<6x64x64xf32>
      func.return %z : tensor<6x64x64xf32>
    }
    """
    check_unchanged(PASS, text)


def shifted(axis: int, size: int) -> str:
    """Rows or columns of a transposed array, less their maximum."""
    other = 1 - axis
    return f"""
    func.func @main(%y: tensor<96x64xf32>) -> tensor<64x96xf32> {{
      %t = array.transpose(%y) {{permutation = array<i64: 1, 0>}} : tensor<64x96xf32>
      %u = array.transpose(%y) {{permutation = array<i64: 1, 0>}} : tensor<64x96xf32>
      %m = array.reduce(%t) {{fn = "maximum", axes = array<i64: {axis}>}} : tensor<{size}xf32>
      %b = array.broadcast(%m) {{axes = array<i64: {other}>}} : tensor<64x96xf32>
      %z = array.map(%u, %b) {{fn = "subtract"}} : tensor<64x96xf32>
      func.return %z : tensor<64x96xf32>
    }}
    """


def test_rows_that_are_reduced_and_read_again_are_stored_once() -> None:
    unit = check_meaning(PASS, shifted(1, 64))
    assert stored(unit) == [(64, 96)]
    assert not any(isinstance(op, array.TransposeOp) for op in unit.main.body.block.ops)


def shifted_matrices(order: tuple[int, int, int], axis: int) -> str:
    """Matrices of a transposed array, less their greatest elements along an axis."""
    sizes = [(20, 30, 40)[each] for each in order]
    shape, kept = "x".join(map(str, sizes)), [each for each in range(3) if each != axis]
    return f"""
    func.func @main(%y: tensor<20x30x40xf32>) -> tensor<{shape}xf32> {{
      %t = array.transpose(%y) {{permutation = array<i64: {", ".join(map(str, order))}>}} : tensor<{shape}xf32>
      %m = array.reduce(%t) {{fn = "maximum", axes = array<i64: {axis}>}}
        : tensor<{sizes[kept[0]]}x{sizes[kept[1]]}xf32>
      %b = array.broadcast(%m) {{axes = array<i64: {kept[0]}, {kept[1]}>}} : tensor<{shape}xf32>
      %z = array.map(%t, %b) {{fn = "subtract"}} : tensor<{shape}xf32>
      func.return %z : tensor<{shape}xf32>
    }}
    """


@pytest.mark.parametrize(("axis", "count"), [(1, 0), (0, 1)])
def test_gathered_elements_that_are_reduced_and_read_again_stay(axis: int, count: int) -> None:
    """They are apart in any order; rows that are gathered and transposed are not."""
    text = f"""
    func.func @main(%x: tensor<{"96x200" if axis else "200x96"}xf32>, %i: tensor<64xi32>) -> tensor<96x64xf32> {{
      %g = array.gather(%x, %i) {{axes = array<i64: {axis}>}} : tensor<64x96xf32>
      %t = array.transpose(%g) {{permutation = array<i64: 1, 0>}} : tensor<96x64xf32>
      %s = array.reduce(%t) {{fn = "maximum", axes = array<i64: 1>}} : tensor<96xf32>
      %b = array.broadcast(%s) {{axes = array<i64: 0>}} : tensor<96x64xf32>
      %z = array.map(%t, %b) {{fn = "subtract"}} : tensor<96x64xf32>
      func.return %z : tensor<96x64xf32>
    }}
    """
    assert len(stored(applied(PASS, text))) == count


def test_transposes_one_after_the_other_are_stored_once() -> None:
    """An elementwise result of a transposed array is transposed again before its rows are reduced and read."""
    text = """
    func.func @main(%x: tensor<90x70x80xf32>, %y: tensor<70x90x80xf32>) -> tensor<80x90x70xf32> {
      %t = array.transpose(%x) {permutation = array<i64: 1, 0, 2>} : tensor<70x90x80xf32>
      %a = array.map(%t, %y) {fn = "multiply"} : tensor<70x90x80xf32>
      %u = array.transpose(%a) {permutation = array<i64: 2, 1, 0>} : tensor<80x90x70xf32>
      %m = array.reduce(%u) {fn = "maximum", axes = array<i64: 2>} : tensor<80x90xf32>
      %b = array.broadcast(%m) {axes = array<i64: 0, 1>} : tensor<80x90x70xf32>
      %z = array.map(%u, %b) {fn = "subtract"} : tensor<80x90x70xf32>
      func.return %z : tensor<80x90x70xf32>
    }
    """
    assert stored(check_meaning(PASS, text)) == [(80, 90, 70)]


def test_what_is_reduced_along_neither_rows_is_stored() -> None:
    """Of rows in memory before and after the transpose: a tile of both would not fit beside what is reduced."""
    for order, axis in (((0, 2, 1), 0), ((2, 0, 1), 1)):
        sizes = tuple((20, 30, 40)[each] for each in order)
        assert stored(check_meaning(PASS, shifted_matrices(order, axis))) == [sizes]
    check_unchanged(PASS, shifted_matrices((0, 2, 1), 1))
    check_unchanged(PASS, shifted_matrices((1, 0, 2), 0))


def passes(count: int) -> str:
    """Sums of rows of a transposed array, the first of the array, each other one of its distances from the last."""
    lines = ['%s0 = array.reduce(%t) {fn = "add", axes = array<i64: 1>} : tensor<64xf32>']
    for n in range(1, count):
        lines += [
            f"%b{n} = array.broadcast(%s{n - 1}) {{axes = array<i64: 0>}} : tensor<64x96xf32>",
            f'%d{n} = array.map(%t, %b{n}) {{fn = "subtract"}} : tensor<64x96xf32>',
            f'%s{n} = array.reduce(%d{n}) {{fn = "add", axes = array<i64: 1>}} : tensor<64xf32>',
        ]
    body = "\n      ".join(lines)
    return f"""
    func.func @main(%y: tensor<96x64xf32>) -> tensor<64xf32> {{
      %t = array.transpose(%y) {{permutation = array<i64: 1, 0>}} : tensor<64x96xf32>
      {body}
      func.return %s{count - 1} : tensor<64xf32>
    }}
    """


def test_rows_that_are_reduced_several_times_are_stored() -> None:
    check_unchanged(PASS, passes(2))
    assert stored(check_meaning(PASS, passes(3))) == [(64, 96)]


@pytest.mark.parametrize("part", ["slice", "reverse"])
def test_a_long_row_of_elements_apart_is_stored(part: str) -> None:
    how = {
        "slice": "{starts = array<i64: 0, 0>, limits = array<i64: 1, 9000>, strides = array<i64: 1, 2>}",
        "reverse": "{axes = array<i64: 1>}",
    }

    def program(size: int) -> str:
        given, attributes = (2 * size if part == "slice" else size), how[part].replace("9000", str(2 * size))
        return f"""
        func.func @main(%x: tensor<1x{given}xi32>, %y: tensor<7x{size}xi32>) -> tensor<1x7xi32> {{
          %r = array.{part}(%x) {attributes} : tensor<1x{size}xi32>
          %z = array.contract(%r, %y) {{left_batch = array<i64>, right_batch = array<i64>,
            left_contract = array<i64: 1>, right_contract = array<i64: 1>}} : tensor<1x7xi32>
          func.return %z : tensor<1x7xi32>
        }}
        """

    assert stored(check_meaning(PASS, program(4500))) == [(1, 4500)]
    check_unchanged(PASS, program(300))


def test_columns_that_are_reduced_stay() -> None:
    check_unchanged(PASS, shifted(0, 96))


def test_rows_that_are_only_reduced_stay() -> None:
    text = """
    func.func @main(%y: tensor<96x64xf32>, %w: tensor<64x96xf32>) -> tensor<64xf32> {
      %t = array.transpose(%y) {permutation = array<i64: 1, 0>} : tensor<64x96xf32>
      %p = array.map(%t, %w) {fn = "multiply"} : tensor<64x96xf32>
      %z = array.reduce(%p) {fn = "add", axes = array<i64: 1>} : tensor<64xf32>
      func.return %z : tensor<64xf32>
    }
    """
    check_unchanged(PASS, text)


@pytest.mark.parametrize(
    ("sizes", "axes", "rows"),
    [
        ((30, 8, 20), "1", [(8, 20)]),
        ((30, 8, 20), "", []),  # nothing that has some of the dims
        ((8, 8, 20), "1", []),  # few terms
        ((30, 8, 40), "1", []),  # long rows
        ((30, 1, 20), "2", []),  # one dim
    ],
)
def test_reductions_of_short_rows_are_stored(
    sizes: tuple[int, int, int], axes: str, rows: list[tuple[int, ...]]
) -> None:
    count, a, b = sizes
    other = {"": "", "1": a, "2": b}[axes]
    row = f"tensor<{other}xi32>" if axes else "tensor<i32>"
    places = {"": "", "1": ": 0", "2": ": 1"}[axes]
    text = f"""
    func.func @main(%x: tensor<{count}x{a}x{b}xi32>, %w: {row}) -> tensor<{a}x{b}xi32> {{
      %n = array.map(%x) {{fn = "negative"}} : tensor<{count}x{a}x{b}xi32>
      %s = array.reduce(%n) {{fn = "add", axes = array<i64: 0>}} : tensor<{a}x{b}xi32>
      %r = array.broadcast(%w) {{axes = array<i64{places}>}} : tensor<{a}x{b}xi32>
      %m = array.map(%s) {{fn = "negative"}} : tensor<{a}x{b}xi32>
      %z = array.map(%m, %r) {{fn = "add"}} : tensor<{a}x{b}xi32>
      func.return %z : tensor<{a}x{b}xi32>
    }}
    """
    assert stored(check_meaning(PASS, text) if rows else check_unchanged(PASS, text)) == rows


@pytest.mark.parametrize(
    ("strides", "transposed", "rows"),
    [("1, 2", True, [(64, 96)]), ("1, 3", True, [(64, 96)]), ("2, 1", True, []), ("1, 2", False, [])],
)
def test_a_right_operand_of_elements_apart_along_the_depth_is_stored(
    strides: str, transposed: bool, rows: list[tuple[int, ...]]
) -> None:
    """Along the columns, and where rows are apart, it is read in place."""
    steps = [int(each) for each in strides.split(",")]
    sizes = (64 * steps[0], 96 * steps[1])
    summed, (left, columns) = (1, (96, 64)) if transposed else (0, (64, 96))
    text = f"""
    func.func @main(%x: tensor<8x{left}xi32>, %w: tensor<{sizes[0]}x{sizes[1]}xi32>) -> tensor<8x{columns}xi32> {{
      %s = array.slice(%w) {{starts = array<i64: 0, 0>, limits = array<i64: {sizes[0]}, {sizes[1]}>,
        strides = array<i64: {strides}>}} : tensor<64x96xi32>
      %z = array.contract(%x, %s) {{left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: {summed}>}} : tensor<8x{columns}xi32>
      func.return %z : tensor<8x{columns}xi32>
    }}
    """
    assert stored(check_meaning(PASS, text) if rows else check_unchanged(PASS, text)) == rows


def multiplied(part: str, rows: str, *, turned: bool = False) -> str:
    """A program that multiplies rows by a part of `%w: 64x192`."""
    right, summed, (depth, columns) = ("%t", 1, (96, 64)) if turned else ("%s", 0, (64, 96))
    left = len(rows.split("x"))
    turn = '%t = array.map(%s) {fn = "negative"} : tensor<64x96xi32>' if turned else ""
    return f"""
    func.func @main(%x: tensor<{rows}x{depth}xi32>, %w: tensor<64x192xi32>) -> tensor<{rows}x{columns}xi32> {{
      %f = array.slice(%w) {{starts = array<i64: 0, 96>, limits = array<i64: 64, 192>, strides = array<i64: 1, 1>}}
        : tensor<64x96xi32>
      %s = {part} : tensor<64x96xi32>
      {turn}
      %z = array.contract(%x, {right}) {{left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: {left}>, right_contract = array<i64: {summed}>}} : tensor<{rows}x{columns}xi32>
      func.return %z : tensor<{rows}x{columns}xi32>
    }}
    """


APART = "array.slice(%w) {starts = array<i64: 0, 1>, limits = array<i64: 64, 192>, strides = array<i64: 1, 2>}"
BACKWARDS = "array.reverse(%f) {axes = array<i64: 1>}"


@pytest.mark.parametrize("part", [APART, BACKWARDS])
@pytest.mark.parametrize(("rows", "found"), [("5x7", [(64, 96)]), ("1x7", []), ("7", [])])
def test_a_part_is_packed_once_for_all_outer_rows(part: str, rows: str, found: list[tuple[int, ...]]) -> None:
    text = multiplied(part, rows)
    assert stored(check_meaning(PASS, text) if found else check_unchanged(PASS, text)) == found


@pytest.mark.parametrize(
    ("left", "right", "batches", "found"),
    [
        ("2, 1, 0", "0, 1, 2", 40, [(40, 25, 30)]),
        ("0, 1, 2", "2, 0, 1", 40, [(40, 30, 35)]),
        ("2, 0, 1", "1, 2, 0", 40, [(40, 25, 30)]),
        ("2, 1, 0", "0, 1, 2", 4, []),
        ("1, 0, 2", "0, 2, 1", 40, []),
    ],
)
def test_operands_whose_matrices_lie_apart_are_stored(
    left: str, right: str, batches: int, found: list[tuple[int, ...]]
) -> None:
    """Their innermost dim in memory is that of the batch."""
    shapes = [(batches, 25, 30), (batches, 30, 35)]
    orders = [[int(each) for each in order.split(",")] for order in (left, right)]
    sizes = [[shape[order.index(axis)] for axis in range(3)] for shape, order in zip(shapes, orders, strict=True)]
    first, second = ("x".join(map(str, each)) for each in sizes)
    text = f"""
    func.func @main(%x: tensor<{first}xi32>, %w: tensor<{second}xi32>) -> tensor<{batches}x25x35xi32> {{
      %l = array.transpose(%x) {{permutation = array<i64: {left}>}} : tensor<{batches}x25x30xi32>
      %r = array.transpose(%w) {{permutation = array<i64: {right}>}} : tensor<{batches}x30x35xi32>
      %z = array.contract(%l, %r) {{left_batch = array<i64: 0>, right_batch = array<i64: 0>,
        left_contract = array<i64: 2>, right_contract = array<i64: 1>}} : tensor<{batches}x25x35xi32>
      func.return %z : tensor<{batches}x25x35xi32>
    }}
    """
    assert stored(check_meaning(PASS, text) if found else check_unchanged(PASS, text)) == found


@pytest.mark.parametrize("computed", [False, True])
def test_operands_with_the_batch_last_are_stored_with_it_first(computed: bool) -> None:
    compute = '%y = array.map(%x) {fn = "negative"} : tensor<25x30x40xi32>' if computed else ""
    text = f"""
    func.func @main(%x: tensor<25x30x40xi32>, %w: tensor<40x30x5xi32>) -> tensor<40x25x5xi32> {{
      {compute}
      %z = array.contract({"%y" if computed else "%x"}, %w) {{left_batch = array<i64: 2>, right_batch = array<i64: 0>,
        left_contract = array<i64: 1>, right_contract = array<i64: 1>}} : tensor<40x25x5xi32>
      func.return %z : tensor<40x25x5xi32>
    }}
    """
    assert stored(check_meaning(PASS, text)) == [(40, 25, 30)]


@pytest.mark.parametrize(("axis", "found"), [(1, [(4, 3000)]), (0, [])])
def test_transposed_arrays_are_stored_where_their_rows_are_scanned(axis: int, found: list[tuple[int, ...]]) -> None:
    text = f"""
    func.func @main(%x: tensor<3000x4xi32>) -> tensor<4x3000xi32> {{
      %t = array.transpose(%x) {{permutation = array<i64: 1, 0>}} : tensor<4x3000xi32>
      %z = array.scan(%t) {{fn = "add", axis = {axis} : index, reverse = false}} : tensor<4x3000xi32>
      func.return %z : tensor<4x3000xi32>
    }}
    """
    assert stored(check_meaning(PASS, text) if found else check_unchanged(PASS, text)) == found


@pytest.mark.parametrize(("rows", "batches", "axis", "found"), [(5, 80, 2, True), (3, 80, 2, False), (5, 80, 1, False)])
def test_columns_of_a_batch_are_stored_where_several_rows_meet_them(
    rows: int, batches: int, axis: int, found: bool
) -> None:
    """Sums along the rows, of which each reads a column of the transposed array; not sums along other dims, or few."""
    kept = {1: f"{batches}x220", 2: f"{batches}x{rows}"}[axis]
    text = f"""
    func.func @main(%x: tensor<{batches}x{rows}x220xi32>, %w: tensor<220x{batches}xi32>) -> tensor<{kept}xi32> {{
      %t = array.transpose(%w) {{permutation = array<i64: 1, 0>}} : tensor<{batches}x220xi32>
      %r = array.broadcast(%t) {{axes = array<i64: 0, 2>}} : tensor<{batches}x{rows}x220xi32>
      %y = array.map(%x, %r) {{fn = "multiply"}} : tensor<{batches}x{rows}x220xi32>
      %z = array.reduce(%y) {{fn = "add", axes = array<i64: {axis}>}} : tensor<{kept}xi32>
      func.return %z : tensor<{kept}xi32>
    }}
    """
    assert stored(check_meaning(PASS, text) if found else check_unchanged(PASS, text)) == [(batches, 220)] * found


def test_a_reversed_right_operand_along_the_depth_is_stored() -> None:
    assert stored(check_meaning(PASS, multiplied(BACKWARDS, "7", turned=True))) == [(64, 96)]


def test_windows_are_reduced_as_arrays_are_stored() -> None:
    text = """
    func.func @main(%y: tensor<16x15x4x8xf32>) -> tensor<8x4x7x6xf32> {
      %t = array.transpose(%y) {permutation = array<i64: 3, 2, 1, 0>} : tensor<8x4x15x16xf32>
      %z = array.window_reduce(%t) {fn = "maximum", window = array<i64: 1, 1, 3, 2>, strides = array<i64: 1, 1, 2, 3>,
        low = array<i64: 0, 0, 0, 1>, high = array<i64: 0, 0, 0, 0>, dilation = array<i64: 1, 1, 1, 1>}
        : tensor<8x4x7x6xf32>
      func.return %z : tensor<8x4x7x6xf32>
    }
    """
    unit = check_meaning(PASS, text)
    reduce = next(op for op in unit.main.body.block.ops if isinstance(op, array.WindowReduceOp))
    assert reduce.operands[0] is unit.main.body.block.args[0]
    assert reduce.window == (2, 3, 1, 1)


def test_a_transpose_goes_before_what_is_computed_of_a_stack() -> None:
    """Stacked along a new innermost dim, which ends up outside the rows."""
    text = """
    func.func @main(%x: tensor<64x96xf32>, %y: tensor<64x96xf32>, %w: tensor<2xf32>) -> tensor<64x2x96xf32> {
      %a = array.reshape(%x) : tensor<64x96x1xf32>
      %b = array.reshape(%y) : tensor<64x96x1xf32>
      %j = array.concat(%a, %b) {axis = 2 : index} : tensor<64x96x2xf32>
      %r = array.broadcast(%w) {axes = array<i64: 2>} : tensor<64x96x2xf32>
      %p = array.map(%j, %r) {fn = "multiply"} : tensor<64x96x2xf32>
      %n = array.map(%p) {fn = "negative"} : tensor<64x96x2xf32>
      %z = array.transpose(%n) {permutation = array<i64: 0, 2, 1>} : tensor<64x2x96xf32>
      func.return %z : tensor<64x2x96xf32>
    }
    """
    unit = check_meaning(PASS, text)
    join = next(op for op in unit.main.body.block.ops if isinstance(op, array.ConcatOp))
    assert array_type(join.results[0]).shape == (64, 2, 96)
    assert not stored(unit)


def test_a_transpose_goes_before_a_padding_of_short_rows() -> None:
    text = """
    func.func @main(%x: tensor<96x2xi32>, %y: tensor<96x3xi32>) -> tensor<8x99xi32> {
      %j = array.concat(%x, %y) {axis = 1 : index} : tensor<96x5xi32>
      %v = array.constant() {value = 7 : i64, resource = ""} : tensor<i32>
      %p = array.pad(%j, %v) {low = array<i64: 1, 3>, high = array<i64: 2, 0>, interior = array<i64: 0, 0>}
        : tensor<99x8xi32>
      %z = array.transpose(%p) {permutation = array<i64: 1, 0>} : tensor<8x99xi32>
      func.return %z : tensor<8x99xi32>
    }
    """
    ops = list(check_meaning(PASS, text).main.body.block.ops)
    (pad,) = [op for op in ops if isinstance(op, array.PadOp)]
    assert (pad.low, pad.high) == ((3, 1), (0, 2))
    assert pad.results[0] in ops[-1].operands


def test_vectors_that_are_stacked_as_rows_and_transposed_are_columns() -> None:
    """Their transposes are views, so that the result is written as it is, elements of the vectors in turn."""
    text = """
    func.func @main(%x: tensor<96xi32>, %y: tensor<96xi32>) -> tensor<96x2xi32> {
      %p = array.map(%x, %y) {fn = "multiply"} : tensor<96xi32>
      %a = array.reshape(%p) : tensor<1x96xi32>
      %b = array.reshape(%y) : tensor<1x96xi32>
      %j = array.concat(%a, %b) {axis = 0 : index} : tensor<2x96xi32>
      %z = array.transpose(%j) {permutation = array<i64: 1, 0>} : tensor<96x2xi32>
      func.return %z : tensor<96x2xi32>
    }
    """
    unit = check_meaning(PASS, text)
    (join,) = [op for op in unit.main.body.block.ops if isinstance(op, array.ConcatOp)]
    assert join.axis == 1
    assert stored(unit) == []


def test_operands_that_are_computed_along_many_paths() -> None:
    """Each of 40 operations has both operands from the one before: 2 ** 40 paths."""
    lines = [TURN, '%v0 = array.map(%t, %t) {fn = "minimum"} : tensor<64x96xf32>']
    lines += [f'%v{n} = array.map(%v{n - 1}, %v{n - 1}) {{fn = "minimum"}} : tensor<64x96xf32>' for n in range(1, 40)]
    assert stored(check_meaning(PASS, joined(" ".join(lines), "%x, %v39", 0, "128x96xf32"))) == [(64, 96)]


@pytest.mark.parametrize(
    ("indices", "axis", "apart"),
    [(300, 0, True), (200, 0, False), (300, 1, False)],  # rows; few rows; columns, which are rows in memory
)
def test_transposed_arrays_are_stored_where_many_rows_are_gathered(indices: int, axis: int, apart: bool) -> None:
    result = f"{indices}x{48 if axis == 0 else 256}xf32"
    text = f"""
    func.func @main(%x: tensor<48x256xf32>, %i: tensor<{indices}xi32>) -> tensor<{result}> {{
      %t = array.transpose(%x) {{permutation = array<i64: 1, 0>}} : tensor<256x48xf32>
      %e = array.map(%t) {{fn = "negative"}} : tensor<256x48xf32>
      %z = array.gather(%e, %i) {{axes = array<i64: {axis}>}} : tensor<{result}>
      func.return %z : tensor<{result}>
    }}
    """
    if apart:
        assert stored(check_meaning(PASS, text)) == [(256, 48)]
    else:
        check_unchanged(PASS, text)


def test_constants_of_what_is_stored_first_are_not_stored() -> None:
    text = """
    func.func @main(%x: tensor<3x40x5x4xf32>, %w: tensor<4xf32>) -> tensor<3x5x4xf32> {
      %one = array.constant() {value = 1.0 : f64, resource = ""} : tensor<3x40x5x4xf32>
      %y = array.map(%x, %one) {fn = "add"} : tensor<3x40x5x4xf32>
      %s = array.reduce(%y) {fn = "maximum", axes = array<i64: 1>} : tensor<3x5x4xf32>
      %b = array.broadcast(%w) {axes = array<i64: 2>} : tensor<3x5x4xf32>
      %z = array.map(%s, %b) {fn = "minimum"} : tensor<3x5x4xf32>
      func.return %z : tensor<3x5x4xf32>
    }
    """
    unit = check_meaning(PASS, text)
    (group,) = [op for op in unit.main.body.block.ops if isinstance(op, array.FusedOp)]
    assert len(group.operands) == 1


@pytest.mark.parametrize(
    ("dtype", "permutation", "shape", "first"),
    [
        ("i8", "2, 1, 0", "3x40x50", (3, 50, 40)),
        ("bf16", "3, 2, 1, 0", "2x4x1x600", (2, 600, 1, 4)),
        ("i8", "1, 2, 0", "3x40x50", None),  # neighbours in memory stay next to those of a row
        ("i8", "2, 1, 0", "5x40x50", None),  # rows of five
        ("f32", "2, 1, 0", "3x40x50", None),  # elements of four bytes
    ],
)
def test_rows_of_a_few_narrow_elements_are_transposed_in_two_steps(
    dtype: str, permutation: str, shape: str, first: tuple[int, ...] | None
) -> None:
    sizes = shape.split("x")
    result = "x".join(sizes[int(axis)] for axis in permutation.split(", "))
    text = f"""
    func.func @main(%x: tensor<{shape}x{dtype}>) -> tensor<{result}x{dtype}> {{
      %n = array.map(%x) {{fn = "negative"}} : tensor<{shape}x{dtype}>
      %t = array.transpose(%n) {{permutation = array<i64: {permutation}>}} : tensor<{result}x{dtype}>
      func.return %t : tensor<{result}x{dtype}>
    }}
    """
    if first is None:
        check_unchanged(PASS, text)
    else:
        assert stored(check_meaning(PASS, text)) == [first]
