"""Arrays that `tile-store-arrays` gives the requested storage: a kernel for each kind of array, copies between kinds,
and requests that it refuses."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import numbered, parse, random_inputs, remarks, run, unit_of
from tilewright.dialects import array, tile
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.base import Unit
from tilewright.passes.cores.tile_store_arrays import TileStoreArraysPass

PASS = TileStoreArraysPass()


def program(main: str, arguments: int = 1, results: int = 1, dtype: str = "f32", shape: str = "40x70") -> str:
    """Calls of a kernel that negates an array."""
    x = f"tensor<{shape}x{dtype}>"
    returned = ", ".join([x] * results)
    return f"""
    func.func @main({", ".join(f"%x{n}: {x}" for n in range(arguments))}) -> ({returned}) {{
      {main.replace("ARRAY", x)}
    }}
    tile.kernel() {{sym_name = "negate", grid = array<i64>, effects = ["in", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %out: !tile.ref<{x}>):
      %a = tile.load(%x) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : {x}
      %b = tile.map(%a) {{fn = "negative"}} : {x}
      tile.store(%b, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
      tile.yield()
    }}
    """


ONCE = '%y = array.call(%x0) {callee = "negate"} : ARRAY\nfunc.return %y : ARRAY'
TWICE = """
    %y = array.call(%x0) {callee = "negate"} : ARRAY
    %z = array.call(%x1) {callee = "negate"} : ARRAY
    func.return %y, %z : ARRAY, ARRAY
"""
CHAIN = """
    %y = array.call(%x0) {callee = "negate"} : ARRAY
    %z = array.call(%y) {callee = "negate"} : ARRAY
    func.return %z : ARRAY
"""


def stored(text: str, storage: dict[int, str]) -> Unit:
    unit = unit_of(parse(text), {}, "wormhole")
    unit.storage = storage
    PASS.apply(unit)
    unit.module.verify()
    return unit


def kinds(unit: Unit) -> dict[str, list[tuple[str, str]]]:
    """The placement and the format of the arrays of each kernel that is called."""
    called = {op.callee for op in unit.main.walk() if isinstance(op, array.CallOp)}
    types = {name: [tile.ref_type(ref) for ref in unit.kernel(name).refs] for name in called}
    return {name: [(type.pages.data.place, type.pages.data.format) for type in each] for name, each in types.items()}


def check_meaning(text: str, storage: dict[int, str]) -> Unit:
    """Storage is no part of what a program computes."""
    before, unit = unit_of(parse(text), {}, "wormhole"), stored(text, storage)
    arrays = random_inputs(before)
    for got, expected in zip(run(unit, arrays), run(before, arrays), strict=True):
        assert got.tobytes() == expected.tobytes()
    return unit


def test_without_a_request_nothing_changes() -> None:
    text = program(ONCE)
    assert numbered(stored(text, {}).module) == numbered(parse(text))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_arguments_and_results_have_their_own(dtype: str) -> None:
    unit = check_meaning(program(ONCE, dtype=dtype), {0: "bfp8"})
    assert kinds(unit) == {"negate": [("", "bfp8"), ("", "")]}
    unit = check_meaning(program(ONCE, dtype=dtype), {1: "bfp8"})
    assert kinds(unit) == {"negate": [("", ""), ("", "bfp8")]}
    assert remarks(unit, PASS.name) == [("stored as bfp8", "requested")]


def test_placements_are_of_the_type() -> None:
    (arrays,) = kinds(check_meaning(program(ONCE), {0: "l1 height", 1: "l1"})).values()
    assert [space.startswith("l1 ") for space, _ in arrays] == [True, True]
    assert arrays[0] != arrays[1]


def test_calls_with_other_kinds_have_copies_of_the_kernel() -> None:
    found = kinds(check_meaning(program(TWICE, 2, 2), {0: "bfp8"}))
    assert sorted(found.values()) == [[("", ""), ("", "")], [("", "bfp8"), ("", "")]]
    assert "negate" in found


def test_calls_with_equal_kinds_share_a_kernel() -> None:
    found = kinds(check_meaning(program(TWICE, 2, 2), {0: "bfp8", 1: "bfp8"}))
    assert list(found.values()) == [[("", "bfp8"), ("", "")]]


def test_what_is_between_kernels_is_as_it_was() -> None:
    found = kinds(check_meaning(program(CHAIN), {0: "bfp8", 1: "bfp8"}))
    assert sorted(found.values()) == [[("", ""), ("", "bfp8")], [("", "bfp8"), ("", "")]]


VIEWED = """
    %v = array.reshape(%x0) : tensor<2x32x64xf32>
    %w = array.reshape(%v) : ARRAY
    %y = array.call(%w) {callee = "negate"} : ARRAY
    func.return %y : ARRAY
"""


def test_views_of_an_array_are_stored_as_it_is() -> None:
    assert kinds(check_meaning(program(VIEWED, shape="64x64"), {0: "bfp8"})) == {"negate": [("", "bfp8"), ("", "")]}


def test_a_result_that_is_an_argument_is_moved() -> None:
    text = program("func.return %x0 : ARRAY")
    unit = check_meaning(text, {1: "l1"})
    assert [op.name for op in unit.main.body.block.ops] == ["array.call", "func.return"]
    assert any(decision.startswith("moved from") for decision, _ in remarks(unit, PASS.name))
    same = stored(text, {0: "l1", 1: "l1"})
    assert [op.name for op in same.main.body.block.ops] == ["func.return"]


def test_a_result_that_is_returned_twice_is_moved_once() -> None:
    text = program(
        ONCE.replace("%y : ARRAY", "%y, %y : ARRAY, ARRAY").replace('negate"} : ARRAY, ARRAY', "x"), results=2
    )
    unit = check_meaning(text, {2: "l1"})
    calls = [op for op in unit.main.body.block.ops if isinstance(op, array.CallOp)]
    assert len(calls) == 2


def test_an_argument_of_rows_is_copied_to_tiles_once() -> None:
    main = """
    %y = array.call(%x0) {callee = "negate"} : ARRAY
    %z = array.call(%x0) {callee = "negate"} : ARRAY
    func.return %y, %z : ARRAY, ARRAY
    """
    unit = check_meaning(program(main, results=2), {0: "row-major"})
    first, *others = [op for op in unit.main.body.block.ops if isinstance(op, array.CallOp)]
    assert first.operands[0] is unit.main.body.block.args[0]
    assert all(call.operands[0] is first.results[0] for call in others)
    assert len(others) == 2
    assert [space for space, _ in kinds(unit)["negate"]] == ["", ""]


def test_an_argument_of_rows_that_nothing_reads_is_not_copied() -> None:
    text = program("func.return %x0 : ARRAY")
    unit = stored(text, {0: "row-major", 1: "row-major"})
    assert [op.name for op in unit.main.body.block.ops] == ["func.return"]


def test_a_result_of_rows_is_a_copy() -> None:
    unit = check_meaning(program(ONCE), {1: "row-major"})
    calls = [op for op in unit.main.body.block.ops if isinstance(op, array.CallOp)]
    assert len(calls) == 2
    assert kinds(unit)[calls[1].callee][1][0] == "row-major"


LOOP = """
    %c = array.constant() {value = 1.0 : f64, resource = ""} : tensor<i1>
    %y = array.if(%c) do {
      array.yield(%x0)
    } do {
      array.yield(%x0)
    } : ARRAY
    func.return %y : ARRAY
"""
REFUSED = {
    "integers as block floats": (program(ONCE, dtype="i32"), {0: "bfp8"}, "an array of i32 is not stored as bfp8"),
    "more cores than there are": (program(ONCE), {0: "l1 block on 90x90"}, "90"),
    "operands of control flow": (program(LOOP), {0: "l1"}, "operands of control flow are not stored as"),
    "results of control flow": (program(LOOP), {1: "l1"}, "results of control flow are not stored as"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_so_is_refused(name: str) -> None:
    text, storage, reason = REFUSED[name]
    with pytest.raises(UnsupportedOnTargetError, match=reason):
        stored(text, storage)
