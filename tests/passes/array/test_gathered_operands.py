"""Gathers of what several operands or indices give, which bubble up: only what is taken is computed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.array.test_array_bubble_up_slices import PADDED, computed, gathered
from tests.passes.pass_support import check_meaning, check_unchanged
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_bubble_up_slices import ArrayBubbleUpSlicesPass

PASS = ArrayBubbleUpSlicesPass()


@pytest.mark.parametrize("second", ["32", "64"])
@pytest.mark.parametrize(
    ("shape", "axes", "result"),
    [
        ("2x4x6", (0, 1), "2x6"),
        ("8x3x2", (1, 2), "2x8"),
        ("4x2x1x6", (1, 0), "2x1x6"),
        ("6x8", (0, 1), "2"),
        ("8x1x6", (1, 2), "2x8"),
        ("2x1x4x6", (0, 2), "2x1x6"),
        ("4x3x4", (2, 0), "2x3"),
        ("8x1x6", (2, 0), "2x1"),
        ("1x8x6", (2, 1), "2x1"),
    ],
)
def test_gathers_along_axes_that_count_one_of_an_operand(
    shape: str, axes: tuple[int, int], result: str, second: str
) -> None:
    text = f"""
    func.func @main(%x: tensor<8x6xf32>, %i: tensor<2xi32>, %j: tensor<2xi{second}>) -> tensor<{result}xf32> {{
      %e = array.map(%x) {{fn = "exp"}} : tensor<8x6xf32>
      %y = array.reshape(%e) : tensor<{shape}xf32>
      %z = array.gather(%y, %i, %j) {{axes = array<i64: {axes[0]}, {axes[1]}>}} : tensor<{result}xf32>
      func.return %z : tensor<{result}xf32>
    }}
    """
    x = np.arange(48, dtype=np.float32).reshape(8, 6) / 48
    for first, last in (([0, 1], [2, 0]), ([1, 3], [-2, 99]), ([-3, 5], [5, 1])):
        inputs = [x, np.array(first, np.int32), np.array(last, f"int{second}")]
        unit = check_meaning(PASS, text, inputs=inputs)
        maps = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp) and op.fn == "exp"]
        assert array_type(maps[0].results[0]).size < 48


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("dtype", ["i32", "ui8"])
def test_gathers_along_the_axis_of_slices_are_one_of_the_array_that_they_are_of(step: int, dtype: str) -> None:
    """Rows from 300 on, with a step, then the first ones: as rolled, of more rows than indices of 8 bits count."""
    rows, last = len(range(300, 400, step)), 310
    text = f"""
    func.func @main(%x: tensor<400x6xf32>, %i: tensor<7x{dtype}>) -> tensor<7x6xf32> {{
      %e = array.map(%x) {{fn = "negative"}} : tensor<400x6xf32>
      %a = array.slice(%e) {{starts = array<i64: 300, 0>, limits = array<i64: 400, 6>,
        strides = array<i64: {step}, 1>}} : tensor<{rows}x6xf32>
      %b = array.slice(%e) {{starts = array<i64: 0, 0>, limits = array<i64: {last}, 6>, strides = array<i64: 1, 1>}}
        : tensor<{last}x6xf32>
      %r = array.concat(%a, %b) {{axis = 0 : index}} : tensor<{rows + last}x6xf32>
      %z = array.gather(%r, %i) {{axes = array<i64: 0>}} : tensor<7x6xf32>
      func.return %z : tensor<7x6xf32>
    }}
    """
    indices = [0, rows - 1, rows, 255, 100, 5, 33]
    if dtype == "i32":
        indices[-2:] = [-4, 9999]
    inputs = [
        np.arange(2400, dtype=np.float32).reshape(400, 6),
        np.array(indices, np.int32 if dtype == "i32" else np.uint8),
    ]
    unit = check_meaning(PASS, text, inputs=inputs)
    assert sum(isinstance(op, array.GatherOp) for op in unit.main.body.block.ops) == 1
    maps = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp) and op.fn == "negative"]
    assert [array_type(op.results[0]).size for op in maps] == [42]


@pytest.mark.parametrize(
    ("shape", "axes", "result"),
    [
        ("4x6x16", (1,), "2x4x16"),
        ("4x6x16", (0,), "2x6x16"),
        ("2x4x3x16", (1,), "2x2x3x16"),
        ("2x12x16", (1,), "2x2x16"),
        ("16x2x12", (2,), "2x16x2"),
        ("16x4x6", (1,), "2x16x6"),
        ("16x1x4x6", (1, 2), "2x16x6"),
        ("16x2x3x4", (3, 1), "2x16x3"),
    ],
)
def test_gathers_along_one_of_the_axes_that_count_one_of_an_operand(
    shape: str, axes: tuple[int, ...], result: str
) -> None:
    """The others have an index for each of their positions, where rows of 16 are taken at each."""
    given = "24x16" if shape.endswith("x16") else "16x24"
    names = ", ".join(f"%{'ij'[n]}" for n in range(len(axes)))
    arguments = ", ".join(f"%{'ij'[n]}: tensor<2xi32>" for n in range(len(axes)))
    text = f"""
    func.func @main(%x: tensor<{given}x3xf32>, {arguments}) -> tensor<{result}xf32> {{
      %e = array.reduce(%x) {{fn = "maximum", axes = array<i64: 2>}} : tensor<{given}xf32>
      %y = array.reshape(%e) : tensor<{shape}xf32>
      %z = array.gather(%y, {names}) {{axes = array<i64: {", ".join(map(str, axes))}>}} : tensor<{result}xf32>
      func.return %z : tensor<{result}xf32>
    }}
    """
    x = np.random.default_rng(0).standard_normal([int(size) for size in given.split("x")] + [3]).astype(np.float32)
    for index in ([0, 1], [5, -1], [99, -2], [3, 2]):
        check_meaning(PASS, text, inputs=[x, *(np.array(index, np.int32) for _ in axes)])


@pytest.mark.parametrize("rows", [16, 2])
def test_positions_of_others_are_gathered_where_rows_are_long(rows: int) -> None:
    text = f"""
    func.func @main(%x: tensor<24x{rows}x3xf32>, %i: tensor<2xi32>) -> tensor<2x4x{rows}xf32> {{
      %e = array.reduce(%x) {{fn = "maximum", axes = array<i64: 2>}} : tensor<24x{rows}xf32>
      %y = array.reshape(%e) : tensor<4x6x{rows}xf32>
      %z = array.gather(%y, %i) {{axes = array<i64: 1>}} : tensor<2x4x{rows}xf32>
      func.return %z : tensor<2x4x{rows}xf32>
    }}
    """
    if rows == 2:
        check_unchanged(PASS, text)
        return
    x = np.random.default_rng(0).standard_normal((24, rows, 3)).astype(np.float32)
    unit = check_meaning(PASS, text, inputs=[x, np.array([3, -4], np.int32)])
    (reduced,) = (op for op in unit.main.body.block.ops if isinstance(op, array.ReduceOp))
    assert array_type(reduced.results[0]).size == 8 * rows


@pytest.mark.parametrize(("shape", "joined"), [("5x2x8", "5x2x2x8"), ("5x16", "5x2x16"), ("5x4x4", "5x2x4x4")])
def test_take_along_an_axis_of_a_reshaped_stack_is_one_of_each_operand(shape: str, joined: str) -> None:
    """No index is divided: the indices are reshaped, and a part of them takes elements of one operand."""
    one = joined.replace("x2x", "x1x", 1) if joined != "5x2x2x8" else "5x2x1x8"
    axis = 2 if joined == "5x2x2x8" else 1
    text = f"""
    func.func @main(%a: tensor<{shape}xi32>, %b: tensor<{shape}xi32>, %i: tensor<2x4x8xi64>) -> tensor<2x4x8xi32> {{
      %n = array.map(%a) {{fn = "negative"}} : tensor<{shape}xi32>
      %p = array.reshape(%n) : tensor<{one}xi32>
      %q = array.reshape(%b) : tensor<{one}xi32>
      %s = array.concat(%p, %q) {{axis = {axis} : index}} : tensor<{joined}xi32>
      %y = array.reshape(%s) : tensor<5x4x8xi32>
      %j = array.iota() {{axis = 1 : index}} : tensor<2x4x8xi64>
      %k = array.iota() {{axis = 2 : index}} : tensor<2x4x8xi64>
      %z = array.gather(%y, %i, %j, %k) {{axes = array<i64: 0, 1, 2>}} : tensor<2x4x8xi32>
      func.return %z : tensor<2x4x8xi32>
    }}
    """
    random = np.random.default_rng(0)
    sizes = [int(size) for size in shape.split("x")]
    inputs = [random.integers(-99, 99, sizes, np.int32) for _ in range(2)]
    unit = check_meaning(PASS, text, inputs=[*inputs, random.integers(-7, 7, (2, 4, 8))])
    ops = list(unit.main.body.block.ops)
    assert not any(isinstance(op, array.MapOp) and op.fn == "floor_divide" for op in ops)
    taken = [op for op in ops if isinstance(op, array.GatherOp)]
    assert [array_type(op.results[0]).size for op in taken] == [32, 32]


@pytest.mark.parametrize("indices", [[0, 7, 8, 15], [-9, 12, 99, 3]])
def test_few_elements_of_a_concatenation_are_gathered_from_each_operand(indices: list[int]) -> None:
    text = """
    func.func @main(%x: tensor<8x6xf32>, %y: tensor<40x6xf32>, %i: tensor<4xi32>) -> tensor<4x6xf32> {
      %e = array.map(%x) {fn = "negative"} : tensor<8x6xf32>
      %j = array.concat(%e, %y) {axis = 0 : index} : tensor<48x6xf32>
      %z = array.gather(%j, %i) {axes = array<i64: 0>} : tensor<4x6xf32>
      func.return %z : tensor<4x6xf32>
    }
    """
    inputs = [np.arange(n * 6, dtype=np.float32).reshape(n, 6) for n in (8, 40)]
    unit = check_meaning(PASS, text, inputs=[*inputs, np.array(indices, np.int32)])
    assert computed(unit) <= 24


def joined(columns: int, indices: int) -> str:
    """Rows that are gathered of two arrays of 8 and 24 rows, one after the other."""
    return f"""
    func.func @main(%x: tensor<8x{columns}xf32>, %y: tensor<24x{columns}xf32>, %i: tensor<{indices}xi32>)
        -> tensor<{indices}x{columns}xf32> {{
      %j = array.concat(%x, %y) {{axis = 0 : index}} : tensor<32x{columns}xf32>
      %z = array.gather(%j, %i) {{axes = array<i64: 0>}} : tensor<{indices}x{columns}xf32>
      func.return %z : tensor<{indices}x{columns}xf32>
    }}
    """


@pytest.mark.parametrize(("columns", "apart"), [(16, True), (5, False)])
def test_rows_of_a_concatenation_are_gathered_from_each_operand(columns: int, apart: bool) -> None:
    """Half of all rows, as both gathers take no longer than the copy; each element of short rows is a load."""
    indices = np.array([0, 7, 8, 31, -1, 99, 15, 16, 3, 30, 9, 1, 7, 7, 8, 24], np.int32)
    if not apart:
        check_unchanged(PASS, joined(columns, len(indices)))
        return
    inputs = [np.arange(n * columns, dtype=np.float32).reshape(n, columns) for n in (8, 24)]
    unit = check_meaning(PASS, joined(columns, len(indices)), inputs=[*inputs, indices])
    assert not any(isinstance(op, array.ConcatOp) for op in unit.main.body.block.ops)


@pytest.mark.parametrize("axis", [0, 1])
def test_elements_along_one_axis_of_a_concatenation_along_another(axis: int) -> None:
    """As by `take_along_axis`: each part of the indices takes elements of one operand."""
    text = f"""
    func.func @main(%x: tensor<3x6xf32>, %y: tensor<5x6xf32>, %i: tensor<8x2xi32>) -> tensor<8x2xf32> {{
      %j = array.concat(%x, %y) {{axis = 0 : index}} : tensor<8x6xf32>
      %two = array.constant() {{value = 2 : index, resource = ""}} : tensor<8x2xi32>
      %k = array.map(%i, %two) {{fn = "add"}} : tensor<8x2xi32>
      %n = array.iota() {{axis = 0 : index}} : tensor<8x2xi32>
      %z = array.gather(%j, {"%n, %k" if axis == 0 else "%k, %n"}) {{axes = array<i64: 0, 1>}} : tensor<8x2xf32>
      func.return %z : tensor<8x2xf32>
    }}
    """
    if axis:
        check_unchanged(PASS, text)
        return
    inputs = [np.arange(n * 6, dtype=np.float32).reshape(n, 6) for n in (3, 5)]
    indices = np.array([[0, 3], [-9, 1], [9, 2], [1, 1], [3, 0], [-2, -1], [2, 3], [0, 1]], np.int32)
    unit = check_meaning(PASS, text, inputs=[*inputs, indices])
    ops = list(unit.main.body.block.ops)
    gathers = [op for op in ops if isinstance(op, array.GatherOp)]
    assert [array_type(op.results[0]).shape for op in gathers] == [(3, 2), (5, 2)]
    maps = [op for op in ops if isinstance(op, array.MapOp)]
    assert sum(array_type(op.results[0]).size for op in maps) == 16


@pytest.mark.parametrize(
    ("shape", "axis", "taken"),
    [((2, 64), 0, 0), ((8, 6), 1, 0), ((4, 8, 6), 0, 0), ((4, 8, 6), 2, 0), ((4, 8, 6), 2, 1)],
)
def test_gathers_of_reductions_reduce_what_is_taken(shape: tuple[int, ...], axis: int, taken: int) -> None:
    left = [n for d, n in enumerate(shape) if d != axis]
    result = [2, *left[:taken], *left[taken + 1 :]]
    source, reduced, gathered = ("x".join([*map(str, sizes), "i32"]) for sizes in (shape, left, result))
    text = f"""
    func.func @main(%x: tensor<{source}>, %i: tensor<2xi32>) -> tensor<{gathered}> {{
      %y = array.reduce(%x) {{fn = "add", axes = array<i64: {axis}>}} : tensor<{reduced}>
      %z = array.gather(%y, %i) {{axes = array<i64: {taken}>}} : tensor<{gathered}>
      func.return %z : tensor<{gathered}>
    }}
    """
    inputs = [np.arange(np.prod(shape), dtype=np.int32).reshape(shape), np.array([3, 1], np.int32)]
    unit = check_meaning(PASS, text, inputs=inputs)
    (made,) = [op for op in unit.main.body.block.ops if isinstance(op, array.ReduceOp)]
    assert array_type(made.results[0]).size == int(np.prod(result))


def test_gathers_of_a_good_part_of_summed_rows_stay() -> None:
    """All lines of the rows would be read for the elements."""
    text = """
    func.func @main(%x: tensor<8x16xi32>, %i: tensor<2xi32>) -> tensor<2xi32> {
      %y = array.reduce(%x) {fn = "add", axes = array<i64: 0>} : tensor<16xi32>
      %z = array.gather(%y, %i) {axes = array<i64: 0>} : tensor<2xi32>
      func.return %z : tensor<2xi32>
    }
    """
    check_unchanged(PASS, text)


def test_elements_of_what_is_gathered_are_gathered_at_once() -> None:
    """As by `take` and then `take_along_axis`: positions along the other axes as they are."""
    text = """
    func.func @main(%x: tensor<8x6xf32>, %i: tensor<5xi32>, %n: tensor<2x1xi32>, %j: tensor<2x1xi32>)
        -> tensor<2x1xf32> {
      %e = array.map(%x) {fn = "negative"} : tensor<8x6xf32>
      %y = array.gather(%e, %i) {axes = array<i64: 1>} : tensor<5x8xf32>
      %z = array.gather(%y, %j, %n) {axes = array<i64: 0, 1>} : tensor<2x1xf32>
      func.return %z : tensor<2x1xf32>
    }
    """
    inputs = [np.arange(48, dtype=np.float32).reshape(8, 6), np.array([4, 1, 9, -2, 0], np.int32)]
    inputs += [np.array([[7], [2]], np.int32), np.array([[3], [1]], np.int32)]
    unit = check_meaning(PASS, text, inputs=inputs)
    assert computed(unit) == 2


def test_gathers_of_padded_axes_select() -> None:
    for indices in ([0, 1, 5, 8], [-7, 7, 6, 99]):
        text = gathered(PADDED, "%y", 1, "4x8xf32").replace("%i: tensor<2x", "%i: tensor<4x")
        inputs = [np.arange(48, dtype=np.float32).reshape(8, 6), np.array(indices, np.int32)]
        unit = check_meaning(PASS, text, inputs=inputs)
        assert not any(isinstance(op, array.PadOp) for op in unit.main.body.block.ops)
        assert computed(unit) <= 32


def test_gathers_of_gathers_gather_the_indices() -> None:
    """Elements along an axis: positions along the others are counted, and gathered as such."""
    text = """
    func.func @main(%x: tensor<8x6xf32>, %i: tensor<8x4xi32>, %j: tensor<2xi32>) -> tensor<2x4xf32> {
      %n = array.iota() {axis = 0 : index} : tensor<8x4xi32>
      %y = array.gather(%x, %n, %i) {axes = array<i64: 0, 1>} : tensor<8x4xf32>
      %z = array.gather(%y, %j) {axes = array<i64: 0>} : tensor<2x4xf32>
      func.return %z : tensor<2x4xf32>
    }
    """
    rng = np.random.default_rng(3)
    inputs = [np.arange(48, dtype=np.float32).reshape(8, 6), rng.integers(0, 6, (8, 4)).astype(np.int32)]
    for taken in ([7, 1], [9, -3]):
        unit = check_meaning(PASS, text, inputs=[*inputs, np.array(taken, np.int32)])
        assert computed(unit) <= 8


@pytest.mark.parametrize(
    ("inner", "inner_axis", "outer_axis", "middle", "result", "elements"),
    [
        ("8xi32", 0, 1, "8x5x6", "2x8x6", 96),
        ("8xi32", 0, 2, "8x5x6", "2x8x5", 80),
        ("12xi32", 1, 1, "12x8x6", "2x12x6", 60),
        ("12xi32", 1, 2, "12x8x6", "2x12x8", 80),
        ("3x4xi32", 2, 3, "3x4x8x5", "2x3x4x8", 96),
    ],
)
def test_gathers_bubble_up_gathers_that_keep_all(
    inner: str, inner_axis: int, outer_axis: int, middle: str, result: str, elements: int
) -> None:
    """The gather of the longer index array stays; the other one takes less of what it gathers from."""
    text = f"""
    func.func @main(%x: tensor<8x5x6xf32>, %i: tensor<{inner}>, %j: tensor<2xi32>) -> tensor<{result}xf32> {{
      %e = array.map(%x) {{fn = "negative"}} : tensor<8x5x6xf32>
      %y = array.gather(%e, %i) {{axes = array<i64: {inner_axis}>}} : tensor<{middle}xf32>
      %z = array.gather(%y, %j) {{axes = array<i64: {outer_axis}>}} : tensor<{result}xf32>
      func.return %z : tensor<{result}xf32>
    }}
    """
    rng = np.random.default_rng(3)
    shape = [int(n) for n in inner.split("x")[:-1]]
    size = (8, 5, 6)[inner_axis]
    inputs = [np.arange(240, dtype=np.float32).reshape(8, 5, 6), rng.integers(0, size, shape).astype(np.int32)]
    for taken in ([4, 1], [9, -3]):
        unit = check_meaning(PASS, text, inputs=[*inputs, np.array(taken, np.int32)])
        maps = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp)]
        assert [array_type(op.results[0]).size for op in maps] == [elements]
