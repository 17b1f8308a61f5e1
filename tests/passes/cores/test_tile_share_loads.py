"""Equal loads that `tile-share-loads` merges, and those that only seem equal."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import check_meaning, check_unchanged
from tilewright.dialects import tile
from tilewright.passes.base import Unit
from tilewright.passes.cores.tile_share_loads import TileShareLoadsPass

PASS = TileShareLoadsPass()
SAME = "{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 4, d1)>}"


def kernel(body: str, effect: str = "in", dtype: str = "f32") -> str:
    """Rows of 4 of two arrays; `body` computes `%r` of them."""
    x = f"tensor<12x7x{dtype}>"
    result = "%z, %y" if effect == "inout" else "%y"
    types = f"{x}, {x}" if effect == "inout" else x
    returned = f"({types})" if effect == "inout" else types
    return f"""
    func.func @main(%x: {x}, %w: {x}) -> {returned} {{
      {result} = array.call(%x, %w) {{callee = "k"}} : {types}
      func.return {result} : {types}
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64: 3>, effects = ["{effect}", "in", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %w: !tile.ref<{x}>, %out: !tile.ref<{x}>, %i: index):
      {body}
      tile.store(%r, %out, %i) {SAME}
      tile.yield()
    }}
    """


def load(name: str, source: str = "%x", how: str = SAME, dtype: str = "f32", index: str = "%i") -> str:
    return f"{name} = tile.load({source}, {index}) {how} : tensor<4x7x{dtype}>\n"


def combined(*names: str, dtype: str = "f32") -> str:
    """The sum of tiles."""
    text, total = "", names[0]
    for n, name in enumerate(names[1:]):
        result = "%r" if n == len(names) - 2 else f"%sum{n}"
        text += f'{result} = tile.map({total}, {name}) {{fn = "add"}} : tensor<4x7x{dtype}>\n'
        total = result
    return text


def loads(unit: Unit) -> int:
    return sum(isinstance(op, tile.LoadOp) for op in unit.module.walk())


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
def test_any_number_of_equal_loads_are_one(dtype: str) -> None:
    names = [f"%a{n}" for n in range(5)]
    body = "".join(load(name, dtype=dtype) for name in names) + combined(*names, dtype=dtype)
    assert loads(check_meaning(PASS, kernel(body, dtype=dtype), "wormhole")) == 1


OTHERS = {
    "another array": load("%b", "%w"),
    "another window": load("%b", how="{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 4 + 1, d1)>}"),
    "another filling": load("%b", how=SAME.replace("}", ", fill = 1.0 : f64}")),
    "another index": "%zero = tile.full() {value = 0 : index} : tensor<4x7xi32>\n" + load("%b", index="%zero"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_loads_are_apart(name: str) -> None:
    check_unchanged(PASS, kernel(load("%a") + OTHERS[name] + combined("%a", "%b")), "wormhole")


def test_loads_of_an_array_that_is_written_are_apart() -> None:
    """The second one reads what was stored in between."""
    store = '%n = tile.map(%a) {fn = "negative"} : tensor<4x7xf32>\n' + f"tile.store(%n, %x, %i) {SAME}\n"
    body = load("%a") + store + load("%b") + combined("%a", "%b")
    check_unchanged(PASS, kernel(body, "inout"), "wormhole")


MULTIPLIED = {
    "as it is": ("", "%b"),
    "of another type": ("%c = tile.cast(%b) : tensor<4x7xf32>\n", "%c"),
    "twice transposed": (
        "%t = tile.transpose(%b) {permutation = array<i64: 1, 0>} : tensor<7x4xf32>\n"
        "%c = tile.transpose(%t) {permutation = array<i64: 1, 0>} : tensor<4x7xf32>\n",
        "%c",
    ),
    "reshaped": ("%t = tile.reshape(%b) : tensor<28xf32>\n%c = tile.reshape(%t) : tensor<4x7xf32>\n", "%c"),
}


@pytest.mark.parametrize("name", MULTIPLIED)
def test_loads_that_a_matmul_multiplies_are_apart(name: str) -> None:
    between, operand = MULTIPLIED[name]
    body = load("%a") + load("%b") + between + (
        "%one = tile.full() {value = 2.0 : f64} : tensor<7x7xf32>\n"
        "%zero = tile.full() {value = 0.0 : f64} : tensor<4x7xf32>\n"
        f"%p = tile.dot({operand}, %one, %zero) {{}} : tensor<4x7xf32>\n"
    ) + combined("%a", "%p")  # fmt: skip
    check_unchanged(PASS, kernel(body), "wormhole")


def test_loads_that_something_is_computed_from_before_a_matmul_are_one() -> None:
    """The matmul reads a queue of what is computed."""
    body = load("%a") + load("%b") + (
        '%c = tile.map(%b) {fn = "negative"} : tensor<4x7xf32>\n'
        "%one = tile.full() {value = 2.0 : f64} : tensor<7x7xf32>\n"
        "%zero = tile.full() {value = 0.0 : f64} : tensor<4x7xf32>\n"
        "%p = tile.dot(%c, %one, %zero) {} : tensor<4x7xf32>\n"
    ) + combined("%a", "%p")  # fmt: skip
    assert loads(check_meaning(PASS, kernel(body), "wormhole")) == 1


def test_loads_of_a_loop_are_one_there() -> None:
    """Not with the one before the loop, whose queue is not kept for all trips."""
    inner = load("%b") + load("%c") + combined("%s", "%b", "%c").replace("%r", "%next")
    body = load("%a") + (
        f"%r = tile.for(%a) {{trips = 2 : index}} do {{\n^bb1(%t: index, %s: tensor<4x7xf32>):\n{inner}"
        "tile.yield(%next)\n} : tensor<4x7xf32>\n"
    )
    assert loads(check_meaning(PASS, kernel(body), "wormhole")) == 2
