"""Memory accesses in branches, which `tile-store-choices` masks: with both branches computed, as cores do, nothing is
touched that a branch that is not taken would have touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.passes.pass_support import applied, check_unchanged, parse, run, unit_of
from tilewright.dialects import tile
from tilewright.dialects.rewriting import erase
from tilewright.passes.base import Unit
from tilewright.passes.cores.tile_store_choices import TileStoreChoicesPass

PASS = TileStoreChoicesPass()
ROWS = "{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 3, d1)>}"
TILE = "tensor<3x5xf32>"


def kernel(body: str, out: str = "12x5x") -> str:
    """Rows of 3 of `%x`, each with a number of `%n`; what is stored to `%out` is added to what is there."""
    y = f"tensor<{out}f32>"
    return f"""
    func.func @main(%x: tensor<12x5xf32>, %n: tensor<4xi32>, %out: {y}) -> {y} {{
      %y = array.call(%x, %n, %out) {{callee = "k"}} : {y}
      func.return %y : {y}
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64: 4>, effects = ["in", "in", "inout"]}} do {{
    ^bb0(%x: !tile.ref<tensor<12x5xf32>>, %n: !tile.ref<tensor<4xi32>>, %out: !tile.ref<{y}>, %i: index):
      %a = tile.load(%x, %i) {ROWS} : {TILE}
      %number = tile.load(%n, %i) {{map = affine_map<()[s0] -> (s0)>}} : tensor<i32>
      %zero = tile.full() {{value = 0 : index}} : tensor<i32>
      %many = tile.full() {{value = 100 : index}} : tensor<i32>
      %one = tile.full() {{value = 1 : index}} : tensor<i32>
      %is_some = tile.map(%number, %zero) {{fn = "greater"}} : tensor<i1>
      %is_any = tile.map(%number, %many) {{fn = "less"}} : tensor<i1>
      %is_one = tile.map(%number, %one) {{fn = "equal"}} : tensor<i1>
      %place = tile.iota(%i) {{map = affine_map<()[s0] -> (s0)>}} : tensor<i64>
      %second = tile.full() {{value = 2 : index}} : tensor<i64>
      %is_early = tile.map(%place, %second) {{fn = "less"}} : tensor<i1>
      {body}
      tile.yield()
    }}
    """


def when(condition: str, then: str, otherwise: str = "") -> str:
    return f"tile.if({condition}) do {{\n{then}\ntile.yield()\n}} do {{\n{otherwise}\ntile.yield()\n}}\n"


def store(value: str = "%a") -> str:
    return f"tile.store({value}, %out, %i) {ROWS}\n"


def mapped(result: str, fn: str, *operands: str) -> str:
    return f'{result} = tile.map({", ".join(operands)}) {{fn = "{fn}"}} : {TILE}\n'


def with_both_branches(unit: Unit) -> Unit:
    """The unit with the operations of both branches in place of each `if`, as cores compute them."""
    for kernel in unit.kernels():
        for op in reversed([op for op in kernel.walk() if isinstance(op, tile.IfOp)]):
            block = op.parent_block()
            assert block is not None
            assert not op.results
            for region in (op.then, op.otherwise):
                for inner in list(region.block.ops)[:-1]:
                    inner.detach()
                    block.insert_op_before(inner, op)
            erase(op)
    return unit


def inputs(out: tuple[int, ...] = (12, 5)) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((12, 5), out))
    return [x, np.array([1, -1, 2, 0], np.int32), y]


def check(text: str, out: tuple[int, ...] = (12, 5)) -> None:
    """Computing both branches and selecting stores the same values as executing the taken branch."""
    arrays = inputs(out)
    (expected,) = run(unit_of(parse(text), {}, "wormhole"), arrays)
    naive = run(with_both_branches(unit_of(parse(text), {}, "wormhole")), arrays)[0]
    assert not np.array_equal(naive, expected), "the choice matters"
    unit = applied(PASS, text, "wormhole")
    np.testing.assert_array_equal(run(unit, arrays)[0], expected)
    unit = with_both_branches(unit)
    unit.module.verify()
    np.testing.assert_array_equal(run(unit, arrays)[0], expected)


MASKED = {
    "a store": when("%is_some", store()),
    "a store where the condition does not hold": when("%is_some", "", store()),
    "stores in both branches": when("%is_some", store(), mapped("%b", "negative", "%a") + store("%b")),
    "branches in each other": when("%is_some", when("%is_one", store(), mapped("%b", "negative", "%a") + store("%b"))),
    "branches in a branch that is not taken": when("%is_some", "", when("%is_one", "", store())),
    "a loop in a branch": when(
        "%is_some",
        f"""
        tile.for() {{trips = 2 : index}} do {{
        ^bb1(%t: index):
          %old = tile.load(%out, %i) {ROWS} : {TILE}
          {mapped("%new", "add", "%old", "%a")}
          {store("%new")}
          tile.yield()
        }}
        """,
    ),
    "a condition of data and one of places": when("%is_early", when("%is_some", store())),
}


@pytest.mark.parametrize("name", MASKED)
def test_accesses_of_branches_that_are_not_taken_touch_nothing(name: str) -> None:
    check(kernel(MASKED[name]))


SCALAR = "%s = tile.load(%x, %i) {map = affine_map<()[s0] -> (s0, s0)>} : tensor<f32>\n"
WRITE = "tile.store(%s, %out) {map = affine_map<() -> ()>}\n"


@pytest.mark.parametrize(
    ("body", "point"),
    [
        (when("%is_one", WRITE), 0),
        (when("%is_one", when("%is_some", WRITE)), 0),  # the inner condition holds for another point, too
        (when("%is_any", "", WRITE), None),
        (when("%is_some", when("%is_one", "", WRITE)), 2),
    ],
)
def test_arrays_without_axes_keep_what_is_there(body: str, point: int | None) -> None:
    """They have no index to put outside: what is stored for a branch that is not taken is what there was."""
    arrays = inputs(())
    unit = with_both_branches(applied(PASS, kernel(SCALAR + body, ""), "wormhole"))
    expected = arrays[2] if point is None else arrays[0][point, point]
    np.testing.assert_array_equal(run(unit, arrays)[0], expected)


def test_stores_outside_of_branches_are_left() -> None:
    check_unchanged(PASS, kernel(store()), "wormhole")


def test_stores_that_movers_decide_are_left() -> None:
    """The condition follows from the index of the point."""
    check_unchanged(PASS, kernel(when("%is_early", store())), "wormhole")


def loads_in_branches(text: str) -> list[tile.LoadOp]:
    unit = applied(PASS, text, "wormhole")
    loads = [op for op in unit.module.walk() if isinstance(op, tile.LoadOp)]
    return [op for op in loads if isinstance(op.parent_op(), tile.IfOp)]


def test_loads_of_arrays_that_nothing_is_stored_to_are_left() -> None:
    load = f"%b = tile.load(%x, %i) {ROWS} : {TILE}\n" + mapped("%c", "add", "%b", "%b")
    (op,) = loads_in_branches(kernel(when("%is_some", load + store("%c"))))
    assert len(op.symbols) == 1
    assert op.fill is None


@pytest.mark.parametrize("condition", ["%is_some", "%is_early"])
def test_loads_of_arrays_that_are_stored_to_are_masked(condition: str) -> None:
    """Also where a mover would decide for a store: what it reads may be stored by another point at that time."""
    load = f"%b = tile.load(%out, %i) {ROWS} : {TILE}\n" + mapped("%c", "add", "%b", "%a")
    text = kernel(when(condition, load + store("%c")))
    (op,) = loads_in_branches(text)
    assert len(op.symbols) == 2
    assert op.fill == 0.0
    if condition == "%is_some":
        check(text)
