"""Which products `scheduled-block-epilogues` interleaves with the nest after them, and what they then compute: NumPy's
numbers in float64, whole numbers so that no order of additions changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import Make, Tensor, expect, parse, remarks, run, run_through, unit_of
from tests.programs import PROGRAMS, Program, build, inputs_for
from tests.sampling import alternating
from tilewright.dialects import scheduled
from tilewright.dialects.base import array_type
from tilewright.dtypes import by_name
from tilewright.frontend.trace import Value
from tilewright.passes.base import Unit
from tilewright.passes.vectors.scheduled_block_epilogues import ScheduledBlockEpiloguesPass
from tilewright.pipelines import tile_to_vectors

APPLIED = [("block by block", "a tile leaves the nearest cache")]
LARGEST = 4


def interleaved(make: Make) -> Unit:
    return run_through(make, ScheduledBlockEpiloguesPass)


def decisions(unit: Unit) -> list[tuple[str, str]]:
    return remarks(unit, ScheduledBlockEpiloguesPass.name)


def whole_numbers(unit: Unit) -> list[Tensor]:
    rng = np.random.default_rng(7)
    types = [array_type(a) for a in unit.main.body.block.args]
    return [rng.integers(-LARGEST, LARGEST + 1, t.shape).astype(t.dtype.numpy) for t in types]


def check(unit: Unit, expected: Callable[..., list[Tensor]]) -> None:
    arrays = whole_numbers(unit)
    wanted = expected(*(a.astype(np.float64) for a in arrays))
    for got, value in zip(run(unit, arrays), wanted, strict=True):
        np.testing.assert_array_equal(got.astype(np.float64), value)


# ---- array programs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    rows: int
    depth: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.depth}x{self.columns}"

    def product(self, p: Program) -> Value:
        return p.dot(p.array(self.rows, self.depth), p.array(self.depth, self.columns), 0, 1, 0)

    @property
    def result(self) -> tuple[int, int]:
        return (self.rows, self.columns)


# Rows that no block of 6 divides and some that one does, in one tile and in several.
SIZES = [Sizes(389, 8, 48), Sizes(192, 8, 48), Sizes(1000, 5, 96), Sizes(513, 33, 144), Sizes(301, 4, 240)]


def spread(p: Program, s: Sizes, *shape: int) -> Value:
    return p.broadcast(p.array(*shape), s.result, {0: (), 1: (1,), 2: (0, 1)}[len(shape)])


def bias(p: Program, s: Sizes) -> list[Value]:
    return [p.map("add", s.product(p), spread(p, s, s.columns))]


def bias_of_rows(p: Program, s: Sizes) -> list[Value]:
    return [p.map("add", s.product(p), spread(p, s, s.rows, 1))]


def bias_of_one_row(p: Program, s: Sizes) -> list[Value]:
    return [p.map("add", s.product(p), spread(p, s, 1, s.columns))]


def scalar(p: Program, s: Sizes) -> list[Value]:
    return [p.map("multiply", s.product(p), spread(p, s))]


def one_element(p: Program, s: Sizes) -> list[Value]:
    return [p.map("multiply", s.product(p), spread(p, s, 1, 1))]


def two_results(p: Program, s: Sizes) -> list[Value]:
    y, r = s.product(p), p.array(*s.result)
    return [p.map("add", y, r), p.map("multiply", y, r)]


def transposed_residual(p: Program, s: Sizes) -> list[Value]:
    r = p.add("transpose", [p.array(s.columns, s.rows)], permutation=(1, 0))[0]
    return [p.map("subtract", s.product(p), r)]


def halves(p: Program, s: Sizes) -> list[Value]:
    y = p.map("add", s.product(p), spread(p, s, s.columns))
    return [p.add("cast", [y], dtype="f16")[0]]


def own_left_operand(p: Program, s: Sizes) -> list[Value]:
    """What the product reads is read again by the nest."""
    x, w = p.array(s.rows, s.columns), p.array(s.columns, s.columns)
    return [p.map("add", p.dot(x, w, 0, 1, 0), x)]


def transposed_operands(p: Program, s: Sizes) -> list[Value]:
    y = p.dot(p.array(s.depth, s.rows), p.array(s.columns, s.depth), 0, 0, 1)
    return [p.map("add", y, spread(p, s, s.columns))]


APPLIES: list[tuple[Callable[[Program, Sizes], list[Value]], Callable[..., list[Tensor]]]] = [
    (bias, lambda x, w, b: [x @ w + b]),
    (bias_of_rows, lambda x, w, b: [x @ w + b]),
    (bias_of_one_row, lambda x, w, b: [x @ w + b]),
    (scalar, lambda x, w, b: [x @ w * b]),
    (one_element, lambda x, w, b: [x @ w * b]),
    (two_results, lambda x, w, r: [x @ w + r, x @ w * r]),
    (transposed_residual, lambda r, x, w: [x @ w - r.T]),
    (halves, lambda x, w, b: [x @ w + b]),
    (own_left_operand, lambda x, w: [x @ w + x]),
    (transposed_operands, lambda x, w, b: [x.T @ w.T + b]),
]


@pytest.mark.parametrize(
    ("program", "expected", "sizes"),
    [
        pytest.param(*applied, sizes, id=f"{applied[0].__name__}-{sizes}")
        for applied, sizes in alternating(APPLIES, SIZES)
    ],
)
def test_what_follows_a_product_is_done_block_by_block(
    program: Callable[[Program, Sizes], list[Value]], expected: Callable[..., list[Tensor]], sizes: Sizes
) -> None:
    unit = interleaved(lambda p: program(p, sizes))
    assert decisions(unit) == APPLIED
    check(unit, expected)


def test_batched_products_are_interleaved() -> None:
    def program(p: Program) -> list[Value]:
        y = p.dot(p.array(3, 200, 7), p.array(3, 7, 48), 1, 2, 1)
        return [p.map("add", y, p.broadcast(p.array(3, 1, 48), (3, 200, 48), (0, 1, 2)))]

    unit = interleaved(program)
    assert decisions(unit) == APPLIED
    check(unit, lambda x, w, b: [x @ w + b])


def test_the_last_of_two_products_is_interleaved_with_their_sum() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(192, 40)
        first, second = (p.dot(x, p.array(40, 48), 0, 1, 0) for _ in range(2))
        return [p.map("multiply", first, second)]

    unit = interleaved(program)
    check(unit, lambda x, v, w: [(x @ v) * (x @ w)])


def test_blocks_of_a_tile_and_the_rows_that_are_left() -> None:
    """Tiles of 97 rows: 16 blocks of 6, and 1 row. The tile's own buffer is gone."""
    unit = interleaved(lambda p: bias(p, Sizes(194, 8, 48)))
    expect(
        unit,
        """
        CHECK: scheduled.parallel() {extents = array<i64: 2, 1>
        CHECK-NEXT: ^{{.*}}([[I:%[0-9]+]]: index, [[J:%[0-9]+]]: index):
        CHECK: [[BLOCK:%[0-9]+]] = scheduled.alloc() : !tile.ref<tensor<6x16xf32>, "worker">
        CHECK: tile.for() {trips = 3 : index}
        CHECK: tile.for() {trips = 16 : index}
        CHECK: scheduled.dot({{.*}}, [[BLOCK]],
        CHECK-SAME: extents = array<i64: 6, 16, 8>
        CHECK-SAME: turn = array<i64: 2, 16>
        CHECK-NEXT: scheduled.nest() {layout = "(6, 16) : [6@reg*2 | 2@reg 8@simd]"}
        CHECK: tile.load([[BLOCK]]) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<6x16xf32>
        CHECK: scheduled.dot({{.*}}, [[BLOCK]],
        CHECK-SAME: extents = array<i64: 1, 16, 8>
        CHECK-NOT: turn
        CHECK: scheduled.nest() {layout = "(1, 16) : [1 | 2@reg 8@simd]"}
        CHECK: tile.load([[BLOCK]]) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<1x16xf32>
        CHECK-NOT: scheduled.dot
        """,
    )


def test_steps_around_the_depth_move_with_no_block() -> None:
    """A sum over channels and a window, which reads a view of the right operand in place."""

    def program(p: Program) -> list[Value]:
        weights, image = p.array(40, 3, 5), p.array(3, 4804)
        windows = p.add("unfold", [image], axis=1, sizes=(5, 4800), steps=(1, 1))[0]
        summed = {"left_contract": (2, 1), "right_contract": (1, 0), "left_batch": (), "right_batch": ()}
        return [p.map("negative", p.add("contract", [weights, windows], dtype="f32", **summed)[0])]

    unit = interleaved(program)
    assert decisions(unit) == APPLIED
    assert [op.steps for op in unit.module.walk() if isinstance(op, scheduled.DotOp)] == [(5,), (5,)]
    check(unit, lambda w, x: [-sum(w[:, :, i] @ x[:, i : i + 4800] for i in range(5))])


def test_whole_blocks_leave_no_rows() -> None:
    unit = interleaved(lambda p: bias(p, Sizes(192, 8, 48)))
    (dot,) = (op for op in unit.module.walk() if isinstance(op, scheduled.DotOp))
    assert dot.turn is not None
    position, count = dot.turn
    assert (position, count) == (len(dot.symbols) - 1, 16)


def small(p: Program) -> list[Value]:
    return bias(p, Sizes(24, 8, 48))


def columns_of_no_whole_block(p: Program) -> list[Value]:
    return bias(p, Sizes(400, 64, 100))


def depth_in_steps(p: Program) -> list[Value]:
    return bias(p, Sizes(97, 2053, 96))


def stored_by_the_product(p: Program) -> list[Value]:
    return [Sizes(194, 8, 48).product(p)]


def reduced(p: Program) -> list[Value]:
    return [p.reduce(Sizes(194, 8, 48).product(p), "add", (1,))]


def normalised(p: Program) -> list[Value]:
    return [p.softmax(Sizes(194, 8, 48).product(p))]


NOT_APPLIED = [small, columns_of_no_whole_block, depth_in_steps, stored_by_the_product, reduced, normalised]


@pytest.mark.parametrize("make", NOT_APPLIED, ids=lambda f: f.__name__)
def test_other_products_stay_as_they_are(make: Make) -> None:
    unit = interleaved(make)
    assert decisions(unit) == []
    assert not any(op.turn is not None for op in unit.module.walk() if isinstance(op, scheduled.DotOp))


# ---- tile kernels ---------------------------------------------------------------------------------------------------


def kernel(body: str, out: str, points: int = 1, left: str = "130x9", right: str = "9x96") -> Unit:
    """A kernel that multiplies `%left`, 130x9, with `%right`, 9x96, to `%y`, after the passes to `scheduled`. `body`
    has what comes after the product, or where it starts with loads of these two, all of it."""
    product = """
      %zero = tile.full() {value = 0.0 : f64} : tensor<130x96xf32>
      %y = tile.dot(%left, %right, %zero) : tensor<130x96xf32>"""
    loads = """
      %left = tile.load(%a) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<130x9xf32>
      %right = tile.load(%b) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<9x96xf32>"""
    loaded, _, after = body.rpartition("PRODUCT")
    text = f"""
    func.func @main(%a: tensor<{left}xf32>, %b: tensor<{right}xf32>) -> tensor<{out}xf32> {{
      %y = array.call(%a, %b) {{callee = "k"}} : tensor<{out}xf32>
      func.return %y : tensor<{out}xf32>
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64: {points}>, effects = ["in", "in", "out"]}} do {{
    ^bb0(%a: !tile.ref<tensor<{left}xf32>>, %b: !tile.ref<tensor<{right}xf32>>, %out: !tile.ref<tensor<{out}xf32>>,
         %p: index):
      {loaded or loads}
      {product}
      {after}
      tile.yield()
    }}
    """
    unit = unit_of(parse(text), {})
    for each in tile_to_vectors():
        each.apply(unit)
        unit.module.verify()
    return unit


STORED = "tile.store(%z, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}"


@pytest.mark.parametrize(("rows", "step"), alternating((40, 100, 150), (1, 13, 50, 97)))
def test_rows_that_the_left_operand_lacks(rows: int, step: int) -> None:
    """Windows of 130 rows: of some blocks a part is there, of some nothing."""
    body = f"""
      %left = tile.load(%a, %p) {{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * {step}, d1)>, fill = 0.0 : f64}}
        : tensor<130x9xf32>
      %right = tile.load(%b) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : tensor<9x96xf32>
      PRODUCT
      %place = tile.iota(%p) {{map = affine_map<(d0, d1)[s0] -> (d0 * 3 + d1 + s0)>}} : tensor<130x96xi64>
      %number = tile.cast(%place) : tensor<130x96xf32>
      %z = tile.map(%y, %number) {{fn = "add"}} : tensor<130x96xf32>
      tile.store(%z, %out, %p) {{map = affine_map<(d0, d1)[s0] -> (s0, d0, d1)>}}
    """
    unit = kernel(body, "4x130x96", points=4, left=f"{rows}x9")
    assert decisions(unit) == APPLIED

    def expected(a: Tensor, b: Tensor) -> list[Tensor]:
        padded = np.zeros((3 * step + 130 + rows, 9))
        padded[:rows] = a
        number = 3 * np.arange(130)[:, None] + np.arange(96)
        return [np.stack([padded[p * step : p * step + 130] @ b + number + p for p in range(4)])]

    check(unit, expected)


@pytest.mark.parametrize("total", [1, 31, 48, 95, 96, 130, 192, 300])
def test_columns_that_the_right_operand_lacks(total: int) -> None:
    body = """
      %left = tile.load(%a) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<130x9xf32>
      %right = tile.load(%b, %p) {map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 96)>, fill = 0.0 : f64}
        : tensor<9x96xf32>
      PRODUCT
      %one = tile.full() {value = 1.0 : f64} : tensor<130x96xf32>
      %z = tile.map(%y, %one) {fn = "add"} : tensor<130x96xf32>
      tile.store(%z, %out, %p) {map = affine_map<(d0, d1)[s0] -> (s0, d0, d1)>}
    """
    unit = kernel(body, "3x130x96", points=3, right=f"9x{total}")
    assert decisions(unit) == APPLIED

    def expected(a: Tensor, b: Tensor) -> list[Tensor]:
        padded = np.zeros((9, 288))
        padded[:, : min(total, 288)] = b[:, :288]
        return [np.stack([a @ padded[:, p * 96 : p * 96 + 96] + 1 for p in range(3)])]

    check(unit, expected)


def test_depths_that_both_operands_lack() -> None:
    """Windows of 9 of 23 depths: the last has 5. The bound on the depth stays as blocks move."""
    body = """
      %read = tile.load(%a, %p) {map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 9)>} : tensor<130x9xf32>
      %left = tile.fill_padding(%read, %p)
        {map = affine_map<(d0, d1)[s0] -> (d1 + s0 * 9)>, limit = 23 : i64, value = 0.0 : f64} : tensor<130x9xf32>
      %beside = tile.load(%b, %p) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 9, d1)>} : tensor<9x96xf32>
      %right = tile.fill_padding(%beside, %p)
        {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 9)>, limit = 23 : i64, value = 0.0 : f64} : tensor<9x96xf32>
      PRODUCT
      %z = tile.map(%y, %y) {fn = "add"} : tensor<130x96xf32>
      tile.store(%z, %out, %p) {map = affine_map<(d0, d1)[s0] -> (s0, d0, d1)>}
    """
    unit = kernel(body, "3x130x96", points=3, left="130x23", right="23x96")
    assert decisions(unit) == APPLIED
    bounds = [op.depth_map for op in unit.module.walk() if isinstance(op, scheduled.DotOp)]
    assert len(bounds) == 2
    assert None not in bounds
    parts = [slice(0, 9), slice(9, 18), slice(18, 23)]
    check(unit, lambda a, b: [np.stack([2 * (a[:, part] @ b[part]) for part in parts])])


def test_a_gather_moves_with_the_block() -> None:
    body = f"""
      %place = tile.iota() {{map = affine_map<(d0, d1) -> ((d0 + d1 * 7) mod 9)>}} : tensor<130x96xi64>
      %found = tile.load(%a, %place) {{map = affine_map<(d0, d1)[s0] -> (d0, s0)>}} : tensor<130x96xf32>
      %z = tile.map(%y, %found) {{fn = "add"}} : tensor<130x96xf32>
      {STORED}
    """
    unit = kernel(body, "130x96")
    assert decisions(unit) == APPLIED
    rows, columns = np.arange(130)[:, None], np.arange(96)
    check(unit, lambda a, b: [a @ b + a[rows, (rows + columns * 7) % 9]])


def test_a_store_beside_its_place_moves_with_the_block() -> None:
    """What lies before or beyond the array is not stored."""
    body = """
      %z = tile.map(%y, %y) {fn = "add"} : tensor<130x96xf32>
      tile.store(%z, %out) {map = affine_map<(d0, d1) -> (d0 - 5, d1 - 7)>}
    """
    unit = kernel(body, "100x50")
    assert decisions(unit) == APPLIED
    check(unit, lambda a, b: [2 * (a @ b)[5:105, 7:57]])


@pytest.mark.parametrize("columns", [1, 48])
def test_a_row_is_repeated_after_it_was_computed(columns: int) -> None:
    """A dim of size 1 that is repeated does not move, whatever is computed of it before."""
    body = f"""
      %row = tile.load(%b) {{map = affine_map<(d0, d1) -> (d0 + 4, d1)>}} : tensor<1x{columns * 2}xf32>
      %square = tile.map(%row, %row) {{fn = "multiply"}} : tensor<1x{columns * 2}xf32>
      %rows = tile.broadcast(%square) {{axes = array<i64: 0, 1>}} : tensor<130x96xf32>
      %z = tile.map(%y, %rows) {{fn = "add"}} : tensor<130x96xf32>
      {STORED}
    """.replace("1x2xf32", "1x1xf32")
    unit = kernel(body, "130x96")
    assert decisions(unit) == APPLIED
    check(unit, lambda a, b: [a @ b + (b[4] if columns > 1 else b[4, 0]) ** 2])


@pytest.mark.parametrize(
    ("body", "out", "expected"),
    [
        pytest.param(
            """
            %flat = tile.reshape(%y) : tensor<12480xf32>
            %z = tile.map(%flat, %flat) {fn = "add"} : tensor<12480xf32>
            tile.store(%z, %out) {map = affine_map<(d0) -> (d0)>}
            """,
            "12480",
            lambda a, b: [2 * (a @ b).reshape(-1)],
            id="of one dim",
        ),
        pytest.param(
            f"""
            %part = tile.slice(%y)
              {{starts = array<i64: 0, 0>, limits = array<i64: 50, 96>, strides = array<i64: 1, 1>}} : tensor<50x96xf32>
            %z = tile.map(%part, %part) {{fn = "add"}} : tensor<50x96xf32>
            {STORED}
            """,
            "50x96",
            lambda a, b: [2 * (a @ b)[:50]],
            id="a slice",
        ),
        pytest.param(
            f"""
            %turned = tile.transpose(%y) {{permutation = array<i64: 1, 0>}} : tensor<96x130xf32>
            %z = tile.map(%turned, %turned) {{fn = "add"}} : tensor<96x130xf32>
            {STORED}
            """,
            "96x130",
            lambda a, b: [2 * (a @ b).T],
            id="transposed",
        ),
        pytest.param(
            f"""
            %sum = tile.reduce(%y) {{fn = "add", axes = array<i64: 1>}} : tensor<130xf32>
            %sums = tile.broadcast(%sum) {{axes = array<i64: 0>}} : tensor<130x96xf32>
            %z = tile.map(%y, %sums) {{fn = "add"}} : tensor<130x96xf32>
            {STORED}
            """,
            "130x96",
            lambda a, b: [a @ b + (a @ b).sum(axis=1, keepdims=True)],
            id="used by two nests",
        ),
        pytest.param(
            f"""
            %z = tile.full() {{value = 3.0 : f64}} : tensor<13x4xf32>
            {STORED}
            """,
            "13x4",
            lambda a, b: [np.full((13, 4), 3.0)],
            id="not used, other shape",
        ),
        pytest.param(
            """
            %z = tile.full() {value = 3.0 : f64} : tensor<13xf32>
            tile.store(%z, %out) {map = affine_map<(d0) -> (d0)>}
            """,
            "13",
            lambda a, b: [np.full(13, 3.0)],
            id="not used, other number of dims",
        ),
    ],
)
def test_nests_that_do_something_else_come_after_the_whole_product(
    body: str, out: str, expected: Callable[..., list[Tensor]]
) -> None:
    unit = kernel(body, out)
    assert decisions(unit) == []
    check(unit, expected)


# ---- all programs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_interleaved_kernels_are_the_same_after_printing_and_parsing(make: Make) -> None:
    unit = interleaved(make)
    assert parse(str(unit.module)).is_structurally_equivalent(unit.module)


def test_a_kernel_is_the_same_after_printing_and_parsing() -> None:
    unit = interleaved(lambda p: bias(p, SIZES[0]))
    assert parse(str(unit.module)).is_structurally_equivalent(unit.module)
    program = build(lambda p: bias(p, SIZES[0]))
    x, w, b = inputs_for(program)
    wanted = x.astype(np.float64) @ w.astype(np.float64) + b
    np.testing.assert_allclose(run(unit, [x, w, b])[0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v4"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("result", ["bool", "u8", "i8", "i16", "f16", "i64"])
def test_results_of_other_sizes_than_the_product(result: str, dtype: str, target: str) -> None:
    """Vectors of narrow results have more lanes than a block has columns."""
    rng = np.random.default_rng(8)
    x, w = (rng.integers(-LARGEST, LARGEST + 1, s).astype(by_name(dtype).numpy) for s in ((257, 96), (96, 257)))

    def program(x: tw.Array, w: tw.Array) -> tw.Array:
        return tw.astype(tw.clip(x @ w, -100, 100), by_name(result)) if result != "bool" else x @ w > 3

    with tw.options(cache=False):
        tw.jit(program).lower(x, w).compile(target)
        got = tw.jit(program)(x, w)
    product = x.astype(np.float64) @ w
    expected = product > 3 if result == "bool" else np.clip(product, -100, 100)
    if result == "u8":  # of what is below 0 no result is defined
        got, expected = got[product >= 0], expected[product >= 0]
    np.testing.assert_array_equal(got, expected)
