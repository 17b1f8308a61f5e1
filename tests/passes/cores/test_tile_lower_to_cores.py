"""Tile kernels that `tile-lower-to-cores` makes programs of threads and queues: the same results with any depth of
queues, and what it refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.passes.pass_support import parse, remarks, run, unit_of
from tilewright.dialects import cores, tile
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.base import Unit
from tilewright.passes.cores.scheduled_configure_units import ScheduledConfigureUnitsPass
from tilewright.passes.cores.scheduled_plan_core_memory import ScheduledPlanCoreMemoryPass
from tilewright.passes.cores.tile_lower_to_cores import TileLowerToCoresPass

WHOLE = "map = affine_map<(d0, d1) -> (d0, d1)>"
X = (40, 70)


def kernel(
    body: str, result: tuple[int, ...] = X, dtype: str = "f32", out: str = "", grid: str = "", index: str = ""
) -> str:
    """A kernel that computes `%r` of an array in the tile `%a`."""
    x = f"tensor<{X[0]}x{X[1]}x{dtype}>"
    y = f"tensor<{''.join(f'{size}x' for size in result)}{out or dtype}>"
    dims = ", ".join(f"d{n}" for n in range(len(result)))
    return f"""
    func.func @main(%x: {x}) -> {y} {{
      %y = array.call(%x) {{callee = "k"}} : {y}
      func.return %y : {y}
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64{grid}>, effects = ["in", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %out: !tile.ref<{y}>{index}):
      %a = tile.load(%x) {{{WHOLE}}} : {x}
      {body}
      tile.store(%r, %out) {{map = affine_map<({dims}) -> ({dims})>}}
      tile.yield()
    }}
    """


def lowered(text: str, machine: str = "wormhole", buffers: int = 2, movers: int = 2) -> Unit:
    """The unit after the pass and those without which nothing runs."""
    unit = unit_of(parse(text), {}, machine)
    for each in (TileLowerToCoresPass(buffers, movers), ScheduledConfigureUnitsPass(), ScheduledPlanCoreMemoryPass()):
        each.apply(unit)
        unit.module.verify()
    return unit


def check(text: str, x: np.ndarray[Any, Any], machine: str = "wormhole", buffers: int = 2, movers: int = 2) -> Unit:
    """The program computes what the tile kernel does, to the bit."""
    unit = lowered(text, machine, buffers, movers)
    (got,), (expected,) = run(unit, [x]), run(unit_of(parse(text), {}, machine), [x])
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    return unit


def numbers(dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """Small whole numbers, which all types and orders of additions keep."""
    return np.random.default_rng(seed).integers(-2, 3, X).astype(dtype)


TILE = "tensor<40x70xf32>"
BODIES: dict[str, tuple[str, tuple[int, ...]]] = {
    "elementwise": (
        f"""
        %b = tile.map(%a, %a) {{fn = "multiply"}} : {TILE}
        %r = tile.map(%b, %a) {{fn = "add"}} : {TILE}
        """,
        X,
    ),
    "a transpose": ("%r = tile.transpose(%a) {permutation = array<i64: 1, 0>} : tensor<70x40xf32>", (70, 40)),
    "sums of rows": ('%r = tile.reduce(%a) {fn = "add", axes = array<i64: 1>} : tensor<40xf32>', (40,)),
    "maxima of columns": ('%r = tile.reduce(%a) {fn = "maximum", axes = array<i64: 0>} : tensor<70xf32>', (70,)),
    "minima of all": ('%r = tile.reduce(%a) {fn = "minimum", axes = array<i64: 0, 1>} : tensor<f32>', ()),
    "rows repeated": (
        f"""
        %s = tile.reduce(%a) {{fn = "add", axes = array<i64: 1>}} : tensor<40xf32>
        %t = tile.broadcast(%s) {{axes = array<i64: 0>}} : {TILE}
        %r = tile.map(%a, %t) {{fn = "subtract"}} : {TILE}
        """,
        X,
    ),
    "a part": (
        """
        %r = tile.slice(%a) {starts = array<i64: 3, 5>, limits = array<i64: 37, 69>, strides = array<i64: 2, 3>}
          : tensor<17x22xf32>
        """,
        (17, 22),
    ),
    "a reshape": ("%r = tile.reshape(%a) : tensor<28x100xf32>", (28, 100)),
    "a concatenation": ("%r = tile.concat(%a, %a) {axis = 1 : index} : tensor<40x140xf32>", (40, 140)),
    "running sums": (f'%r = tile.scan(%a) {{fn = "add", axis = 1 : index, reverse = false}} : {TILE}', X),
    "a sort": (f"%r = tile.sort(%a) {{axis = 0 : index, descending = true}} : {TILE}", X),
    "a loop that carries a tile": (
        f"""
        %r = tile.for(%a) {{trips = 3 : index}} do {{
        ^bb1(%t: index, %s: {TILE}):
          %n = tile.map(%s, %a) {{fn = "add"}} : {TILE}
          tile.yield(%n)
        }} : {TILE}
        """,
        X,
    ),
    "a product with its transpose": (
        """
        %b = tile.transpose(%a) {permutation = array<i64: 1, 0>} : tensor<70x40xf32>
        %z = tile.full() {value = 3.0 : f64} : tensor<40x40xf32>
        %r = tile.dot(%a, %b, %z) {} : tensor<40x40xf32>
        """,
        (40, 40),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_kernels_mean_the_same_on_cores(name: str) -> None:
    body, result = BODIES[name]
    unit = check(kernel(body, result), numbers(np.float32), ("wormhole", "blackhole")[len(name) % 2])
    (k,) = unit.kernels()
    assert any(isinstance(op, cores.ProgramOp) for op in k.body.block.ops)


@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize("movers", [1, 2])
def test_any_depth_of_queues_and_one_mover_or_two(buffers: int, movers: int) -> None:
    for name in ("rows repeated", "a loop that carries a tile", "a product with its transpose"):
        body, result = BODIES[name]
        unit = check(kernel(body, result), numbers(np.float32), buffers=buffers, movers=movers)
        threads = [op.role for op in unit.module.walk() if isinstance(op, cores.ThreadOp)]
        assert len(threads) == movers + 1


@pytest.mark.parametrize(
    ("dtype", "numpy"),
    [("bf16", ml_dtypes.bfloat16), ("f16", np.float16), ("i32", np.int32), ("i1", np.bool_)],
)
def test_other_types(dtype: str, numpy: Any) -> None:
    fn = "bitwise_not" if dtype == "i1" else "add"
    operands = "%a" if dtype == "i1" else "%a, %a"
    body = f'%r = tile.map({operands}) {{fn = "{fn}"}} : tensor<40x70x{dtype}>'
    x = np.abs(numbers(np.float32)).astype(numpy)
    check(kernel(body, dtype=dtype), x)


def test_copies_need_no_compute_thread() -> None:
    """The writer takes pages where the reader puts them."""
    unit = check(kernel("").replace("tile.store(%r", "tile.store(%a"), numbers(np.float32))
    threads = [op for op in unit.module.walk() if isinstance(op, cores.ThreadOp)]
    assert [op.role for op in threads if any(not isinstance(each, cores.EndOp) for each in op.body.walk())] == [
        "reader",
        "writer",
    ]


def test_points_are_dealt_to_cores() -> None:
    """Of five points of eight rows, each writes its own."""
    text = """
    func.func @main(%x: tensor<40x70xf32>) -> tensor<40x70xf32> {
      %y = array.call(%x) {callee = "k"} : tensor<40x70xf32>
      func.return %y : tensor<40x70xf32>
    }
    tile.kernel() {sym_name = "k", grid = array<i64: 5>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<40x70xf32>>, %out: !tile.ref<tensor<40x70xf32>>, %i: index):
      %a = tile.load(%x, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 8, d1)>} : tensor<8x70xf32>
      %r = tile.map(%a, %a) {fn = "add"} : tensor<8x70xf32>
      tile.store(%r, %out, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 8, d1)>}
      tile.yield()
    }
    """
    unit = check(text, numbers(np.float32))
    (program,) = (op for op in unit.module.walk() if isinstance(op, cores.ProgramOp))
    assert program.shape[0] * program.shape[1] == 5


def test_a_grid_of_no_points_has_no_program() -> None:
    text = kernel(BODIES["elementwise"][0], grid=": 0", index=", %i: index")
    unit = lowered(text)
    assert not [op for op in unit.module.walk() if isinstance(op, cores.ProgramOp | tile.StoreOp)]


def test_wide_types_have_wide_registers() -> None:
    for dtype, is_wide in (("f32", True), ("bf16", False), ("i32", True)):
        body = f'%r = tile.map(%a, %a) {{fn = "add"}} : tensor<40x70x{dtype}>'
        (program,) = (op for op in lowered(kernel(body, dtype=dtype)).module.walk() if isinstance(op, cores.ProgramOp))
        assert bool(program.wide) == is_wide


def test_operands_of_f32_are_remarked() -> None:
    body, result = BODIES["a product with its transpose"]
    found = remarks(lowered(kernel(body, result)), "tile-lower-to-cores")
    assert found == [("operands of f32 are cut to tf32", "the matrix unit multiplies nothing wider")]


@pytest.mark.parametrize(
    ("body", "dtype", "result", "reason"),
    [
        (
            """
            %b = tile.transpose(%a) {permutation = array<i64: 1, 0>} : tensor<70x40xi32>
            %z = tile.full() {value = 0 : index} : tensor<40x40xi32>
            %r = tile.dot(%a, %b, %z) {} : tensor<40x40xi32>
            """,
            "i32",
            (40, 40),
            "a matmul of i32 is not supported on a grid of cores",
        ),
        ('%r = tile.map(%a, %a) {fn = "add"} : tensor<40x70xui8>', "ui8", X, "numbers of u8 do not run"),
        (
            "%r, %n = tile.top_k(%a) {k = 3 : index} : tensor<40x3xf32>, tensor<40x3xi64>",
            "f32",
            (40, 3),
            "`top_k` does not run on a grid of cores",
        ),
        (
            '%r = tile.arg_reduce(%a) {fn = "maximum", axis = 1 : index} : tensor<40xi64>',
            "f32",
            (40,),
            "`arg_reduce` does not run on a grid of cores",
        ),
    ],
    ids=["matmuls of integers", "numbers of 8 bits", "top k", "positions of extremes"],
)
def test_what_cores_do_not_compute_is_refused(body: str, dtype: str, result: tuple[int, ...], reason: str) -> None:
    out = "i64" if "arg_reduce" in body else ""
    with pytest.raises(UnsupportedOnTargetError, match=reason):
        lowered(kernel(body, result, dtype, out))
