"""Slices and gathers that bubble up: only what is taken is computed, and it is the same."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.ir import Operation

from tests.passes.pass_support import applied, check_meaning, check_unchanged
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_bubble_up_slices import ArrayBubbleUpSlicesPass
from tilewright.passes.base import Unit

PASS = ArrayBubbleUpSlicesPass()


def sliced(body: str, of: str, ranges: str, result: str, arguments: str = "%x: tensor<8x6xf32>") -> str:
    """A program that ends in a slice; `ranges` are numpy's, such as `4:8:2, 0:6`."""
    starts, limits, strides = zip(*((*each.split(":"), "1")[:3] for each in ranges.split(",")), strict=True)
    numbers = [", ".join(n.strip() for n in each) for each in (starts, limits, strides)]
    attributes = ", ".join(
        f"{name} = array<i64: {each}>" for name, each in zip(("starts", "limits", "strides"), numbers, strict=True)
    )
    return f"""
    func.func @main({arguments}) -> tensor<{result}> {{
      {body}
      %z = array.slice({of}) {{{attributes}}} : tensor<{result}>
      func.return %z : tensor<{result}>
    }}
    """


def computed(unit: Unit) -> int:
    """The most elements that an operation computes, other than slices, and reshapes of what is in memory."""
    ops = [op for op in unit.main.body.block.ops if op.results and not isinstance(op, array.SliceOp)]
    views = [op for op in ops if isinstance(op, array.ReshapeOp) and not isinstance(op.operands[0].owner, Operation)]
    return max([array_type(op.results[0]).size for op in ops if op not in views], default=0)


EXP = '%y = array.map(%x) {fn = "negative"} : tensor<8x6xf32>'


NEGATIVE = '%h = array.map(%x) {fn = "negative"} : tensor<8x6xf32>\n      '


@pytest.mark.parametrize(
    ("body", "of", "ranges", "result"),
    [
        (EXP, "%y", "4:8:2, 0:6", "2x6xf32"),
        (EXP, "%y", "0:8, 1:6:2", "8x3xf32"),
        ("%y = array.cast(%x) : tensor<8x6xi32>", "%y", "1:7:3, 5:6", "2x1xi32"),
        ("%y = array.bitcast(%x) : tensor<8x6xi32>", "%y", "1:7:3, 5:6", "2x1xi32"),
        (
            "%y = array.transpose(%x) {permutation = array<i64: 1, 0>} : tensor<6x8xf32>",
            "%y",
            "1:6:2, 0:7:3",
            "3x3xf32",
        ),
        (
            "%y = array.broadcast(%x) {axes = array<i64: 1, 2>} : tensor<5x8x6xf32>",
            "%y",
            "1:3, 2:8:2, 0:6",
            "2x3x6xf32",
        ),
        ("%y = array.reverse(%x) {axes = array<i64: 0>} : tensor<8x6xf32>", "%y", "1:7:3, 2:5", "2x3xf32"),
        ("%y = array.reverse(%x) {axes = array<i64: 0, 1>} : tensor<8x6xf32>", "%y", "0:8:3, 0:6:5", "3x2xf32"),
        (NEGATIVE + "%y = array.reshape(%h) : tensor<8x1x6xf32>", "%y", "2:5, 0:1, 1:4", "3x1x3xf32"),
        (NEGATIVE + "%y = array.reshape(%h) : tensor<48xf32>", "%y", "13:17", "4xf32"),
        (NEGATIVE + "%y = array.reshape(%h) : tensor<48xf32>", "%y", "12:36", "24xf32"),
        ('%y = array.reduce(%x) {fn = "maximum", axes = array<i64: 1>} : tensor<8xf32>', "%y", "1:8:3", "3xf32"),
        ('%y = array.reduce(%x) {fn = "maximum", axes = array<i64: 0>} : tensor<6xf32>', "%y", "3:5", "2xf32"),
        ("%y = array.concat(%x, %x) {axis = 0 : index} : tensor<16x6xf32>", "%y", "6:11, 0:6", "5x6xf32"),
        ("%y = array.concat(%x, %x) {axis = 0 : index} : tensor<16x6xf32>", "%y", "1:16:7, 0:3", "3x3xf32"),
        ("%y = array.concat(%x, %x) {axis = 1 : index} : tensor<8x12xf32>", "%y", "0:8, 7:9", "8x2xf32"),
    ],
)
def test_what_is_not_taken_is_not_computed(body: str, of: str, ranges: str, result: str) -> None:
    unit = check_meaning(PASS, sliced(body, of, ranges, result))
    taken = int(np.prod([int(n) for n in result.split("x")[:-1]]))
    assert computed(unit) <= taken


@pytest.mark.parametrize(
    ("shape", "ranges", "result"),
    [("8x1x6", "2:5, 0:1, 1:4", "3x1x3"), ("48", "12:36", "24"), ("2x4x6", "0:1, 0:4, 0:6", "1x4x6")],
)
def test_arrays_in_memory_are_reshaped_first(shape: str, ranges: str, result: str) -> None:
    check_unchanged(PASS, sliced(f"%y = array.reshape(%x) : tensor<{shape}xf32>", "%y", ranges, f"{result}xf32"))


@pytest.mark.parametrize(
    ("ranges", "result"),
    [
        ("0:5, 0:6", "5x6xf32"),
        ("3:6, 2:4", "3x2xf32"),
        ("0:2, 1:3", "2x2xf32"),
        ("0:11:2, 0:7:3", "6x3xf32"),
        ("1:11:3, 2:7:2", "4x3xf32"),
        ("0:11:10, 1:7:5", "2x2xf32"),
        ("1:2:5, 0:7:2", "1x4xf32"),
    ],
)
def test_padding(ranges: str, result: str) -> None:
    body = """%zero = array.constant() {value = 7.0 : f64, resource = ""} : tensor<f32>
      %y = array.pad(%x, %zero) {low = array<i64: 2, 1>, high = array<i64: 1, 0>, interior = array<i64: 0, 0>}
        : tensor<11x7xf32>"""
    unit = check_meaning(PASS, sliced(body, "%y", ranges, result))
    assert computed(unit) <= int(np.prod([int(n) for n in result.split("x")[:-1]]))


def test_contractions_compute_the_rows_and_columns_that_are_taken() -> None:
    body = """%y = array.contract(%x, %w) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 1>, right_contract = array<i64: 0>} : tensor<8x5xi32>"""
    text = sliced(body, "%y", "7:8, 1:5:2", "1x2xi32", "%x: tensor<8x6xi32>, %w: tensor<6x5xi32>")
    assert computed(check_meaning(PASS, text)) == 2


def test_batches_of_contractions() -> None:
    body = """%y = array.contract(%x, %w) {left_batch = array<i64: 1>, right_batch = array<i64: 0>,
        left_contract = array<i64: 0>, right_contract = array<i64: 2>} : tensor<4x5x3xi32>"""
    text = sliced(body, "%y", "1:3, 0:5:4, 2:3", "2x2x1xi32", "%x: tensor<6x4x5xi32>, %w: tensor<4x3x6xi32>")
    assert computed(check_meaning(PASS, text)) == 4


def test_chains_end_at_the_arguments() -> None:
    body = """%a = array.map(%x, %x) {fn = "add"} : tensor<8x6xf32>
      %b = array.transpose(%a) {permutation = array<i64: 1, 0>} : tensor<6x8xf32>
      %c = array.slice(%b) {starts = array<i64: 1, 2>, limits = array<i64: 6, 8>, strides = array<i64: 2, 1>}
        : tensor<3x6xf32>
      %d = array.map(%c) {fn = "exp"} : tensor<3x6xf32>"""
    unit = check_meaning(PASS, sliced(body, "%d", "1:3, 0:6:3", "2x2xf32"))
    slices = [op for op in unit.main.body.block.ops if isinstance(op, array.SliceOp)]
    assert len(slices) == 1  # one for both uses of the argument
    assert slices[0].starts == (2, 3)
    assert slices[0].strides == (3, 2)
    assert computed(unit) == 4


def test_values_with_other_uses_stay() -> None:
    check_unchanged(
        PASS,
        """
    func.func @main(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<2xf32>) {
      %y = array.map(%x) {fn = "exp"} : tensor<8xf32>
      %z = array.slice(%y) {starts = array<i64: 0>, limits = array<i64: 2>, strides = array<i64: 1>} : tensor<2xf32>
      func.return %y, %z : tensor<8xf32>, tensor<2xf32>
    }
    """,
    )


PRODUCT = """%p = array.contract(%m, %x) {left_batch = array<i64>, right_batch = array<i64>,
        left_contract = array<i64: 1>, right_contract = array<i64: 0>} : tensor<8xf32>"""


def two_slices(size: int, of: str = "%x") -> str:
    return f"""
    func.func @main(%x: tensor<8xf32>, %m: tensor<8x8xf32>) -> (tensor<{size}xf32>, tensor<{size}xf32>) {{
      {PRODUCT}
      %y = array.map({of}) {{fn = "exp"}} : tensor<8xf32>
      %a = array.slice(%y) {{starts = array<i64: 0>, limits = array<i64: {size}>, strides = array<i64: 1>}}
        : tensor<{size}xf32>
      %b = array.slice(%y) {{starts = array<i64: {8 - size}>, limits = array<i64: 8>, strides = array<i64: 1>}}
        : tensor<{size}xf32>
      func.return %a, %b : tensor<{size}xf32>, tensor<{size}xf32>
    }}
    """


def test_several_slices_bubble_up_if_they_take_little() -> None:
    """At most all of what is computed of arguments, and at most half of what may be the epilogue of a matmul."""

    def elements(text: str) -> set[int]:
        made = applied(PASS, text).main.body.block.ops
        return {array_type(op.results[0]).size for op in made if isinstance(op, array.MapOp)}

    assert elements(two_slices(2)) == elements(two_slices(2, "%p")) == {2}
    assert elements(two_slices(4)) == {4}
    assert elements(two_slices(4, "%p")) == elements(two_slices(5)) == {8}


GATHERED = """
    func.func @main(%x: tensor<8x6xf32>, %i: tensor<2xi32>) -> tensor<2x6xf32> {{
      %two = array.constant() {{value = 2.0 : f64, resource = ""}} : tensor<f32>
      %twos = array.broadcast(%two) {{axes = array<i64>}} : tensor<8x6xf32>
      %y = array.map(%x, %twos) {{fn = "multiply"}} : tensor<8x6xf32>
      %w = array.map(%y, %x) {{fn = "add"}} : tensor<8x6xf32>
      %z = array.gather(%w, %i) {{axes = array<i64: {axis}>}} : tensor<2x6xf32>
      func.return %z : tensor<2x6xf32>
    }}
    """


def test_gathers_bubble_up_elementwise_operations() -> None:
    inputs = [np.arange(48, dtype=np.float32).reshape(8, 6), np.array([7, 1], np.int32)]
    unit = check_meaning(PASS, GATHERED.format(axis=0), inputs=inputs)
    assert computed(unit) <= 12


@pytest.mark.parametrize("axis", [0, 1])
def test_gathers_of_values_that_are_used_twice(axis: int) -> None:
    """As by `silu`, a function of functions of one value: equal gathers are one."""
    rows, columns = (2, 6) if axis == 0 else (8, 2)
    shape = f"2x{columns}xf32" if axis == 0 else "2x8xf32"
    text = f"""
    func.func @main(%x: tensor<8x6xf32>, %i: tensor<2xi32>) -> tensor<{shape}> {{
      %y = array.map(%x) {{fn = "negative"}} : tensor<8x6xf32>
      %e = array.map(%y) {{fn = "exp"}} : tensor<8x6xf32>
      %s = array.map(%e, %y) {{fn = "multiply"}} : tensor<8x6xf32>
      %t = array.map(%s, %e) {{fn = "add"}} : tensor<8x6xf32>
      %z = array.gather(%t, %i) {{axes = array<i64: {axis}>}} : tensor<{shape}>
      func.return %z : tensor<{shape}>
    }}
    """
    inputs = [np.arange(48, dtype=np.float32).reshape(8, 6) / 48, np.array([5, 1], np.int32)]
    unit = check_meaning(PASS, text, inputs=inputs)
    assert computed(unit) == rows * columns
    assert sum(isinstance(op, array.GatherOp) for op in unit.main.body.block.ops) == 1


def test_gathers_of_other_rows_stay() -> None:
    check_unchanged(
        PASS,
        """
    func.func @main(%x: tensor<8x6xf32>, %i: tensor<2xi32>, %j: tensor<2xi32>) -> (tensor<2x6xf32>, tensor<2x6xf32>) {
      %y = array.map(%x) {fn = "negative"} : tensor<8x6xf32>
      %a = array.gather(%y, %i) {axes = array<i64: 0>} : tensor<2x6xf32>
      %b = array.gather(%y, %j) {axes = array<i64: 0>} : tensor<2x6xf32>
      func.return %a, %b : tensor<2x6xf32>, tensor<2x6xf32>
    }
    """,
    )


def gathered(body: str, of: str, axis: int, result: str) -> str:
    """A program that gathers two of something along an axis."""
    return f"""
    func.func @main(%x: tensor<8x6xf32>, %i: tensor<2xi32>) -> tensor<{result}> {{
      {body}
      %z = array.gather({of}, %i) {{axes = array<i64: {axis}>}} : tensor<{result}>
      func.return %z : tensor<{result}>
    }}
    """


REPEATED = "%y = array.broadcast(%x) {axes = array<i64: 1, 2>} : tensor<5x8x6xf32>"
JOINED = "%y = array.concat(%x, %x) {axis = 1 : index} : tensor<8x12xf32>"
UNIT = "%y = array.broadcast(%u) {axes = array<i64: 0, 1, 2>} : tensor<8x5x6xf32>"
TURNED = "%y = array.transpose(%r) {permutation = array<i64: 1, 2, 0>} : tensor<8x6x5xf32>"
PADDED = """%zero = array.constant() {value = 0.0 : f64, resource = ""} : tensor<f32>
      %y = array.pad(%x, %zero) {low = array<i64: 0, 1>, high = array<i64: 0, 2>, interior = array<i64: 0, 0>}
        : tensor<8x9xf32>"""


@pytest.mark.parametrize(
    ("body", "axis", "result"),
    [
        (REPEATED, 0, "2x8x6xf32"),
        (REPEATED, 1, "2x5x6xf32"),
        (REPEATED, 2, "2x5x8xf32"),
        (JOINED, 0, "2x12xf32"),
        ("%y = array.bitcast(%x) : tensor<8x6xi32>", 1, "2x8xi32"),
        ("%y = array.transpose(%x) {permutation = array<i64: 1, 0>} : tensor<6x8xf32>", 0, "2x8xf32"),
        (f"{REPEATED.replace('%y', '%r')} {TURNED}", 0, "2x6x5xf32"),
        (f"{REPEATED.replace('%y', '%r')} {TURNED}", 1, "2x8x5xf32"),
        (PADDED, 0, "2x9xf32"),
        (f"%u = array.reshape(%x) : tensor<8x1x6xf32> {UNIT}", 1, "2x8x6xf32"),
        (f"{REPEATED.replace('%y', '%r')} %y = array.reshape(%r) : tensor<40x6xf32>", 0, "2x6xf32"),
        (f"{REPEATED.replace('%y', '%r')} %y = array.reshape(%r) : tensor<5x48xf32>", 1, "2x5xf32"),
        ("%y = array.reverse(%x) {axes = array<i64: 0>} : tensor<8x6xf32>", 0, "2x6xf32"),
        ("%y = array.reverse(%x) {axes = array<i64: 0, 1>} : tensor<8x6xf32>", 1, "2x8xf32"),
        ("%y = array.reverse(%x) {axes = array<i64: 0>} : tensor<8x6xf32>", 1, "2x8xf32"),
    ],
)
def test_gathers_bubble_up_views(body: str, axis: int, result: str) -> None:
    inputs = [np.arange(48, dtype=np.float32).reshape(8, 6), np.array([3, 1], np.int32)]
    unit = check_meaning(PASS, gathered(body, "%y", axis, result), inputs=inputs)
    assert computed(unit) <= int(np.prod([int(n) for n in result.split("x")[:-1]]))
    sources = [op.operands[0] for op in unit.main.body.block.ops if isinstance(op, array.GatherOp)]
    assert all(source is unit.main.body.block.args[0] for source in sources)


@pytest.mark.parametrize("indices", [[3, 1], [0, 2], [-1, 9]])
@pytest.mark.parametrize(
    ("starts", "limits", "strides", "axis", "result"),
    [
        ("1, 0", "8, 6", "2, 1", 0, "2x6xf32"),
        ("1, 2", "8, 6", "2, 1", 0, "2x4xf32"),
        ("0, 1", "8, 6", "1, 1", 1, "2x8xf32"),
        ("1, 1", "8, 6", "2, 1", 1, "2x4xf32"),
    ],
)
def test_gathers_of_slices_of_what_is_computed(
    starts: str, limits: str, strides: str, axis: int, result: str, indices: list[int]
) -> None:
    """The sum has another use, so that the slice stays where it is."""
    ranges = zip(*([int(n) for n in each.split(",")] for each in (starts, limits, strides)), strict=True)
    sizes = "x".join(str(-(-(limit - start) // stride)) for start, limit, stride in ranges)
    ranges = f"{{starts = array<i64: {starts}>, limits = array<i64: {limits}>, strides = array<i64: {strides}>}}"
    text = f"""
    func.func @main(%x: tensor<8x6xf32>, %i: tensor<2xi32>) -> (tensor<{result}>, tensor<8x6xf32>) {{
      %e = array.map(%x, %x) {{fn = "add"}} : tensor<8x6xf32>
      %y = array.slice(%e) {ranges} : tensor<{sizes}xf32>
      %z = array.gather(%y, %i) {{axes = array<i64: {axis}>}} : tensor<{result}>
      func.return %z, %e : tensor<{result}>, tensor<8x6xf32>
    }}
    """
    check_meaning(PASS, text, inputs=[np.arange(48, dtype=np.float32).reshape(8, 6), np.array(indices, np.int32)])


@pytest.mark.parametrize(
    ("ranges", "result", "rows"),
    [("0:13", "13xf32", 3), ("5:6", "1xf32", 1), ("7:17:3", "4xf32", 2), ("20:29", "9xf32", 2)],
)
def test_slices_of_what_a_reshape_counts_take_whole_rows(ranges: str, result: str, rows: int) -> None:
    body = f"{EXP.replace('%y', '%e')} %y = array.reshape(%e) : tensor<48xf32>"
    unit = check_meaning(PASS, sliced(body, "%y", ranges, result))
    (made,) = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp)]
    assert array_type(made.results[0]).size <= 6 * rows


@pytest.mark.parametrize(
    ("ranges", "result", "elements"),
    [
        ("0:1, 0:4, 0:6", "1x4x6xf32", 24),
        ("1:2, 1:3, 0:6", "1x2x6xf32", 12),
        ("1:2, 0:4:3, 2:3", "1x2x1xf32", 2),
        ("0:1, 3:4, 0:6:2", "1x1x3xf32", 3),
        ("0:2, 1:4, 0:2", "2x3x2xf32", 12),
    ],
)
def test_slices_of_several_dims_that_count_one_take_whole_rows(ranges: str, result: str, elements: int) -> None:
    body = f"{EXP.replace('%y', '%e')} %y = array.reshape(%e) : tensor<2x4x6xf32>"
    unit = check_meaning(PASS, sliced(body, "%y", ranges, result))
    (made,) = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp)]
    assert array_type(made.results[0]).size == elements


def test_reshaped_arguments_are_sliced_as_they_are() -> None:
    check_unchanged(PASS, sliced("%y = array.reshape(%x) : tensor<48xf32>", "%y", "1:20", "19xf32"))


@pytest.mark.parametrize(
    ("axis", "joined", "flat", "ranges", "result"),
    [
        (0, "16x6", "96", "3:40", "37xf32"),
        (0, "16x6", "96", "50:90:7", "6xf32"),
        (0, "16x6", "4x24", "1:3, 0:24", "2x24xf32"),
        (1, "8x12", "8x12x1", "0:8, 7:9, 0:1", "8x2x1xf32"),
    ],
)
def test_slices_of_reshaped_concatenations(axis: int, joined: str, flat: str, ranges: str, result: str) -> None:
    body = f"""%j = array.concat(%x, %x) {{axis = {axis} : index}} : tensor<{joined}xf32>
      %y = array.reshape(%j) : tensor<{flat}xf32>"""
    unit = check_meaning(PASS, sliced(body, "%y", ranges, result))
    joins = [op for op in unit.main.body.block.ops if isinstance(op, array.ConcatOp)]
    assert all(array_type(op.results[0]).size < 96 for op in joins)


@pytest.mark.parametrize(("row", "operands"), [(0, 1), (1, 2), (2, 1)])
def test_slices_of_rows_that_operands_have_parts_of(row: int, operands: int) -> None:
    body = """%j = array.concat(%x, %x) {axis = 1 : index} : tensor<8x12xf32>
      %y = array.reshape(%j) : tensor<8x3x4xf32>"""
    unit = check_meaning(PASS, sliced(body, "%y", f"0:8, {row}:{row + 1}, 1:3", "8x1x2xf32"))
    joins = [op for op in unit.main.body.block.ops if isinstance(op, array.ConcatOp)]
    assert [len(op.operands) for op in joins] == [operands] * (operands > 1)


def test_gathers_of_rolled_arrays_compute_what_is_taken_once() -> None:
    text = """
    func.func @main(%x: tensor<8x6xf32>, %i: tensor<2xi32>) -> tensor<2x8xf32> {
      %e = array.map(%x) {fn = "negative"} : tensor<8x6xf32>
      %a = array.slice(%e) {starts = array<i64: 5, 0>, limits = array<i64: 8, 6>, strides = array<i64: 1, 1>}
        : tensor<3x6xf32>
      %b = array.slice(%e) {starts = array<i64: 0, 0>, limits = array<i64: 5, 6>, strides = array<i64: 1, 1>}
        : tensor<5x6xf32>
      %r = array.concat(%a, %b) {axis = 0 : index} : tensor<8x6xf32>
      %z = array.gather(%r, %i) {axes = array<i64: 1>} : tensor<2x8xf32>
      func.return %z : tensor<2x8xf32>
    }
    """
    inputs = [np.arange(48, dtype=np.float32).reshape(8, 6), np.array([4, 1], np.int32)]
    unit = check_meaning(PASS, text, inputs=inputs)
    made = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp)]
    assert sum(array_type(op.results[0]).size for op in made) == 16


def test_rolled_gathers_compute_what_is_taken_once() -> None:
    """As by `take_along_axis` of what is computed, rolled: slices of the gather wait until that has bubbled up."""
    text = """
    func.func @main(%x: tensor<8x6xi8>, %i: tensor<1x6xi32>, %n: tensor<1x6xi32>) -> tensor<1x6xi8> {
      %e = array.map(%x) {fn = "negative"} : tensor<8x6xi8>
      %y = array.gather(%e, %i, %n) {axes = array<i64: 0, 1>} : tensor<1x6xi8>
      %a = array.slice(%y) {starts = array<i64: 0, 2>, limits = array<i64: 1, 6>, strides = array<i64: 1, 1>}
        : tensor<1x4xi8>
      %b = array.slice(%y) {starts = array<i64: 0, 0>, limits = array<i64: 1, 2>, strides = array<i64: 1, 1>}
        : tensor<1x2xi8>
      %z = array.concat(%a, %b) {axis = 1 : index} : tensor<1x6xi8>
      func.return %z : tensor<1x6xi8>
    }
    """
    inputs = [np.arange(48, dtype=np.int8).reshape(8, 6), np.array([[7, 0, 3, 2, 5, 1]], np.int32)]
    inputs.append(np.arange(6, dtype=np.int32)[None])
    unit = check_meaning(PASS, text, inputs=inputs)
    assert computed(unit) == 6


def test_gathers_of_computed_elements_that_a_reshape_counts_on() -> None:
    body = '%e = array.map(%x) {fn = "exp"} : tensor<8x6xf32> %y = array.reshape(%e) : tensor<48xf32>'
    for indices in ([0, 47], [13, 6], [-3, 99]):
        inputs = [np.arange(48, dtype=np.float32).reshape(8, 6) / 48, np.array(indices, np.int32)]
        unit = check_meaning(PASS, gathered(body, "%y", 0, "2xf32"), inputs=inputs)
        maps = [op for op in unit.main.body.block.ops if isinstance(op, array.MapOp)]
        assert max(array_type(op.results[0]).size for op in maps) == 2


@pytest.mark.parametrize(
    ("body", "axis", "result"),
    [
        ("%y = array.concat(%x, %x) {axis = 1 : index} : tensor<8x12xf32>", 1, "2x8xf32"),
        ("%y = array.reshape(%x) : tensor<2x1x4x6xf32>", 3, "2x2x1x4xf32"),
        ("%y = array.reshape(%x) : tensor<4x12xf32>", 0, "2x12xf32"),
        ("%y = array.reshape(%x) : tensor<48xf32>", 0, "2xf32"),
    ],
)
def test_gathers_of_what_a_view_mixes_stay(body: str, axis: int, result: str) -> None:
    check_unchanged(PASS, gathered(body, "%y", axis, result))


def test_slices_of_gathers() -> None:
    text = """
    func.func @main(%x: tensor<8x6xf32>, %i: tensor<6xi32>) -> tensor<2x3xf32> {
      %y = array.gather(%x, %i) {axes = array<i64: 0>} : tensor<6x6xf32>
      %p = array.slice(%y) {starts = array<i64: 1, 0>, limits = array<i64: 3, 6>, strides = array<i64: 1, 1>}
        : tensor<2x6xf32>
      %z = array.slice(%p) {starts = array<i64: 0, 3>, limits = array<i64: 2, 6>, strides = array<i64: 1, 1>}
        : tensor<2x3xf32>
      func.return %z : tensor<2x3xf32>
    }
    """
    inputs = [np.arange(48, dtype=np.float32).reshape(8, 6), np.array([7, 1, 5, 0, 3, 2], np.int32)]
    unit = check_meaning(PASS, text, inputs=inputs)
    gathers = [op for op in unit.main.body.block.ops if isinstance(op, array.GatherOp)]
    assert [array_type(op.results[0]).shape for op in gathers] == [(2, 3)]


def test_a_slice_stands_before_all_that_read_it() -> None:
    text = """
    func.func @main(%x: tensor<8xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
      %a = array.map(%x) {fn = "exp"} : tensor<8xf32>
      %b = array.map(%x) {fn = "log"} : tensor<8xf32>
      %c = array.slice(%b) {starts = array<i64: 0>, limits = array<i64: 2>, strides = array<i64: 1>} : tensor<2xf32>
      %d = array.slice(%a) {starts = array<i64: 0>, limits = array<i64: 2>, strides = array<i64: 1>} : tensor<2xf32>
      func.return %c, %d : tensor<2xf32>, tensor<2xf32>
    }
    """
    unit = check_meaning(PASS, text, inputs=[np.arange(1, 9, dtype=np.float32)])
    known = set(unit.main.body.block.args)
    for op in unit.main.body.block.ops:
        assert known.issuperset(op.operands)
        known.update(op.results)
    assert sum(isinstance(op, array.SliceOp) for op in unit.main.body.block.ops) == 1


@pytest.mark.parametrize(
    ("body", "ranges", "result", "elements"),
    [
        (
            '%y = array.scan(%x) {fn = "add", axis = 1 : index, reverse = false} : tensor<8x6xf32>',
            "2:4, 0:6",
            "2x6xf32",
            12,
        ),
        (
            '%y = array.scan(%x) {fn = "add", axis = 1 : index, reverse = false} : tensor<8x6xf32>',
            "2:4, 3:6",
            "2x3xf32",
            12,
        ),
        ("%y = array.sort(%x) {axis = 0 : index, descending = false} : tensor<8x6xf32>", "0:3, 1:6:2", "3x3xf32", 24),
        ('%y = array.arg_reduce(%x) {fn = "maximum", axis = 1 : index} : tensor<8xi64>', "1:8:3", "3xi64", 3),
        (
            """%y = array.window_reduce(%x) {fn = "maximum", window = array<i64: 1, 2>, strides = array<i64: 1, 2>,
              low = array<i64: 0, 0>, high = array<i64: 0, 0>, dilation = array<i64: 1, 1>} : tensor<8x3xf32>""",
            "5:8, 1:3",
            "3x2xf32",
            9,
        ),
    ],
)
def test_slices_take_lines(body: str, ranges: str, result: str, elements: int) -> None:
    """Of other dims than those that are sorted, scanned or have windows; what is taken of those is taken afterwards."""
    inputs = [np.random.default_rng(0).permutation(48).astype(np.float32).reshape(8, 6)]
    unit = check_meaning(PASS, sliced(body, "%y", ranges, result), inputs=inputs)
    assert computed(unit) == elements


@pytest.mark.parametrize("ranges", ["0:8, 0:3", "0:8, 5:6"])
def test_parts_of_sorted_lines_stay(ranges: str) -> None:
    body = "%y = array.sort(%x) {axis = 1 : index, descending = true} : tensor<8x6xf32>"
    check_unchanged(PASS, sliced(body, "%y", ranges, f"8x{3 if '0:3' in ranges else 1}xf32"))


def test_gathers_of_sorted_lines() -> None:
    body = "%y = array.sort(%x) {axis = 1 : index, descending = false} : tensor<8x6xf32>"
    inputs = [np.random.default_rng(0).permutation(48).astype(np.float32).reshape(8, 6), np.array([3, 1], np.int32)]
    unit = check_meaning(PASS, gathered(body, "%y", 0, "2x6xf32"), inputs=inputs)
    assert computed(unit) == 12


def test_gathers_follow_slices_that_drop_operands() -> None:
    """Of the concatenation the slice takes one operand: a gather of both would need the sorted one."""
    text = """
    func.func @main(%x: tensor<2x6xf32>, %w: tensor<2x6xf32>, %i: tensor<3xi32>) -> tensor<3x2xf32> {
      %s = array.sort(%x) {axis = 1 : index, descending = false} : tensor<2x6xf32>
      %y = array.concat(%s, %w) {axis = 1 : index} : tensor<2x12xf32>
      %part = array.slice(%y) {starts = array<i64: 0, 6>, limits = array<i64: 2, 12>, strides = array<i64: 1, 1>}
        : tensor<2x6xf32>
      %z = array.gather(%part, %i) {axes = array<i64: 1>} : tensor<3x2xf32>
      func.return %z : tensor<3x2xf32>
    }
    """
    inputs = [np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::-1].copy() for _ in range(2)]
    unit = check_meaning(PASS, text, inputs=[*inputs, np.array([4, 0, 5], np.int32)])
    assert not any(isinstance(op, array.SortOp) for op in unit.main.body.block.ops)
