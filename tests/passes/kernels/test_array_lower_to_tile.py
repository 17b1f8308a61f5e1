"""The kernels that `array-lower-to-tile` writes: sharing, tiles that do not divide, index arithmetic."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import TensorType

import tilewright as tw
from tests.passes.pass_support import Make, Tensor, expect, random_inputs, run, run_through, unit_of
from tests.programs import Program, build
from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Value
from tilewright.passes.base import Unit
from tilewright.passes.kernels.array_lower_to_tile import ArrayLowerToTilePass
from tilewright.pipelines import array_to_tile

# Of rows of 40,000 elements three parts, the last one of which is short.
IN_CHUNKS = tw.schedules.Loop(tile=(1, 13334))


def lowered(make: Make, schedule: tw.schedules.Schedule | None = None) -> Unit:
    return run_through(make, ArrayLowerToTilePass, schedule)


def result_of(unit: Unit) -> tuple[list[Tensor], Tensor]:
    """Random inputs and what the unit makes of them."""
    inputs = random_inputs(unit)
    return inputs, run(unit, inputs)[0]


def test_layers_share_one_kernel_and_another_constant_makes_another() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(8)
        for factor in (2.0, 2.0, 3.0):
            x = p.add("sort", [p.map("multiply", x, p.splat(factor, (8,)))], axis=0, descending=False)[0]
        return [x]

    unit = lowered(program)
    expect(
        unit,
        """
        CHECK: {callee = "loop_0"}
        CHECK-NEXT: {callee = "sort_1"}
        CHECK-NEXT: {callee = "loop_0"}
        CHECK-NEXT: {callee = "sort_1"}
        CHECK-NEXT: {callee = "loop_2"}
        CHECK-NEXT: {callee = "sort_1"}
        CHECK-NEXT: func.return
        """,
    )
    assert [kernel.sym_name for kernel in unit.kernels()] == ["loop_0", "sort_1", "loop_2"]


@pytest.mark.parametrize("layers", [2, 6])
def test_equal_layers_have_the_kernels_of_one(layers: int) -> None:
    """Wherever a layer's operations stand: what the first one reads is there before, what the others read is not."""
    generator = np.random.default_rng(0)
    weights = [[generator.standard_normal((48, 48), dtype=np.float32) for _ in range(6)] for _ in range(layers)]
    angles = generator.standard_normal((5, 12), dtype=np.float32)

    def turn(x: Any, cosine: Any, sine: Any) -> Any:
        return tw.concat([x[..., :6] * cosine - x[..., 6:] * sine, x[..., 6:] * cosine + x[..., :6] * sine], axis=-1)

    def model(x: Any, angles: Any) -> Any:
        rotation = tw.cos(angles[:, :6]), tw.sin(angles[:, 6:])
        for query, key, value, output, up, down in weights:
            heads = [tw.permute_dims((x @ w).reshape(5, 4, 12), (1, 0, 2)) for w in (query, key, value)]
            mixed = tw.nn.attention(turn(heads[0], *rotation), turn(heads[1], *rotation), heads[2])
            x = tw.nn.layer_norm(x + tw.permute_dims(mixed, (1, 0, 2)).reshape(5, 48) @ output)
            x = tw.nn.layer_norm(x + tw.nn.gelu(x @ up) @ down)
        return x

    x = generator.standard_normal((5, 48), dtype=np.float32)
    text = tw.jit(model).lower(x, angles).compile("null").ir("tile")
    kernels = set(re.findall(r'sym_name = "(\w+)"', text)) - {"main"}
    calls = Counter(re.findall(r'callee = "(\w+)"', text))
    assert set(calls) == kernels
    once = [name for name, count in calls.items() if count % layers]
    assert len(once) <= 2, calls  # the sines and cosines
    assert len(kernels) - len(once) == 6, calls


def test_an_odd_size_is_cut_evenly_and_masked_by_the_access_alone() -> None:
    unit = lowered(lambda p: [p.map("exp", p.array(10007))])
    expect(
        unit,
        """
        CHECK: grid = array<i64: 4>
        CHECK: tile.load(%0, %2) {map = affine_map<(d0)[s0] -> ((d0 + (s0 * 2502)))>} : tensor<2502xf32>
        CHECK-NEXT: tile.map
        CHECK-NEXT: tile.store({{.*}}) {map = affine_map<(d0)[s0] -> ((d0 + (s0 * 2502)))>}
        CHECK-NEXT: tile.yield()
        """,
    )
    (x,), y = result_of(unit)
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)


@pytest.mark.parametrize(("fn", "identity"), [("maximum", "0xfff0000000000000"), ("add", "0.0"), ("multiply", "1.0")])
def test_the_tail_of_a_reduction_in_chunks_holds_the_identity(fn: str, identity: str) -> None:
    unit = lowered(lambda p: [p.reduce(p.array(3, 40000), fn, (1,))], IN_CHUNKS)
    expect(
        unit,
        f"""
        CHECK: tile.for({{{{.*}}}}) {{trips = 3 : index}}
        CHECK: tile.load{{{{.*}}}} : tensor<13334xf32>
        CHECK-NEXT: tile.fill_padding{{{{.*}}}}limit = 40000 : index, value = {identity}
        CHECK-NEXT: tile.reduce
        CHECK-NEXT: tile.map({{{{.*}}}}) {{fn = "{fn}"}}
        CHECK-NEXT: tile.yield
        """,
    )
    x = np.random.default_rng(0).uniform(0.999, 1.001, (3, 40000)).astype(np.float32)
    reference = getattr(np, fn).reduce(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(run(unit, [x])[0], reference, rtol=1e-4)


def test_an_index_that_counts_along_a_dimension_is_a_coordinate() -> None:
    shape = (37, 50)

    def program(p: Program) -> list[Value]:
        rows = p.add("iota", [], shape=shape, axis=0, dtype="i64")[0]
        columns = p.add("iota", [], shape=shape, axis=1, dtype="i64")[0]
        chosen = p.map("remainder", p.map("multiply", columns, columns), p.splat(50, shape, dtypes.i64))
        return [p.add("gather", [p.array(*shape), rows, chosen], axes=(0, 1))[0]]

    unit = lowered(program)
    *_, gathered = (op for op in unit.module.walk() if isinstance(op, tile.LoadOp))
    # The row is the tile's own; the column is computed and clamped.
    assert sum(isinstance(symbol.type, TensorType) for symbol in gathered.operands) == 1
    assert sum(isinstance(op, tile.MapOp) and op.fn == "minimum" for op in unit.module.walk()) == 1
    (x,), y = result_of(unit)
    np.testing.assert_array_equal(y, np.asarray(x)[:, np.arange(50) ** 2 % 50])


def test_reductions_that_do_not_need_each_other_share_their_loop() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(3, 40000)
        highest = p.reduce(x, "maximum", (1,))
        distance = p.map("subtract", x, p.broadcast(highest, (3, 40000), (0,)))
        squares = p.map("square", distance)
        return [p.reduce(distance, "add", (1,)), p.reduce(squares, "maximum", (1,))]

    unit = lowered(program, IN_CHUNKS)
    (kernel,) = (op for op in unit.module.walk() if isinstance(op, tile.KernelOp))
    loops = [op for op in kernel.walk() if isinstance(op, tile.ForOp)]
    assert [len(loop.results) for loop in loops] == [1, 2]
    (x,) = inputs = random_inputs(unit)
    sums, squares = run(unit, inputs)
    wide = np.asarray(x, np.float64)
    distance = wide - wide.max(1, keepdims=True)
    np.testing.assert_allclose(sums, distance.sum(1), rtol=1e-5)
    np.testing.assert_allclose(squares, (distance**2).max(1), rtol=1e-5)


def test_a_reduction_that_fits_a_tile_needs_no_loop_and_no_padding() -> None:
    expect(
        lowered(lambda p: [p.reduce(p.array(7, 33), "maximum", (1,))]),
        "CHECK: tile.reduce\nCHECK-NOT: tile.for\nCHECK-NOT: tile.fill_padding",
    )


def test_both_operands_of_a_product_are_zero_beyond_the_depth() -> None:
    unit = lowered(lambda p: [p.dot(p.array(4, 2063), p.array(2063, 20), 0, 1, 0)])
    expect(
        unit,
        """
        CHECK: tile.for({{.*}}) {trips = 2 : index}
        CHECK-COUNT-2: limit = 2063 : index, value = 0.0
        CHECK: tile.dot
        """,
    )
    (x, w), y = result_of(unit)
    np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-4)


def test_index_maps_are_coordinates_of_a_load() -> None:
    def program(p: Program) -> list[Value]:
        x = p.array(6, 4)
        turned = p.add("transpose", [x], permutation=(1, 0))[0]
        part = p.add("slice", [turned], starts=(0, 1), limits=(4, 6), strides=(1, 2))[0]
        return [p.map("add", p.add("reverse", [part], axes=(0,))[0], p.broadcast(p.array(3), (4, 3), (1,)))]

    unit = lowered(program)
    expect(
        unit,
        """
        CHECK: tile.load({{.*}}) {map = affine_map<(d0, d1) -> (((d1 * 2) + 1), ((d0 * -1) + 3))>} : tensor<4x3xf32>
        CHECK-NEXT: tile.load({{.*}}) {map = affine_map<(d0) -> (d0)>} : tensor<3xf32>
        CHECK-NEXT: tile.broadcast
        CHECK-NEXT: {fn = "add"}
        CHECK-NOT: tile.transpose
        """,
    )
    (x, y), z = result_of(unit)
    np.testing.assert_array_equal(z, x.T[::-1, 1::2] + y)


def test_attention_never_stores_its_scores() -> None:
    def program(p: Program) -> list[Value]:
        q, k, v = p.array(5, 4), p.array(301, 4), p.array(301, 3)
        return [p.dot(p.softmax(p.dot(q, k, 0, 1, 1)), v, 0, 1, 0)]

    unit = lowered(program)
    (kernel,) = unit.kernels()
    shapes = [tile.ref_type(ref).shape for ref in kernel.refs]
    assert shapes == [(5, 4), (301, 4), (301, 3), (5, 3)]
    expect(
        unit,
        """
        CHECK: tile.for({{.*}}) {trips = 2 : index}
        CHECK: tile.dot({{.*}} : tensor<5x192xf32>
        CHECK: limit = 301 : index, value = 0xfff0000000000000
        CHECK: limit = 301 : index, value = 0.0
        CHECK: tile.dot({{.*}} : tensor<5x3xf32>
        CHECK: tile.store({{.*}} affine_map<(d0, d1) -> (d0, d1)>}
        CHECK-NOT: tile.store
        """,
    )
    (q, k, v), y = result_of(unit)
    weights = np.exp(q.astype(np.float64) @ k.T)
    np.testing.assert_allclose(y, weights / weights.sum(1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


def test_updates_are_scattered_one_after_the_other() -> None:
    def program(p: Program) -> list[Value]:
        x, updates, rows = p.array(7, 3), p.array(4, 3), p.array(4, dtype=dtypes.i32)
        return list(p.add("scatter", [x, updates, rows], axes=(0,), fn="add"))

    unit = lowered(program)
    expect(
        unit,
        """
        CHECK: tile.kernel() {sym_name = "scatter_0", grid = array<i64>,
        CHECK: tile.store
        CHECK: tile.for() {trips = 4 : index}
        CHECK: [[OLD:%[0-9]+]] = tile.load(%3
        CHECK-NEXT: [[NEW:%[0-9]+]] = tile.map([[OLD]], %{{[0-9]+}})
        CHECK: tile.store([[NEW]], %3
        """,
    )
    x, updates = np.zeros((7, 3), np.float32), np.ones((4, 3), np.float32)
    expected = x.copy()
    np.add.at(expected, [2, 2, 6], 1)
    np.testing.assert_array_equal(run(unit, [x, updates, np.array([2, 2, 6, 9], np.int32)])[0], expected)


def test_a_long_line_is_scanned_in_parts_each_from_what_the_one_before_passes_on() -> None:
    def program(p: Program) -> list[Value]:
        return [p.add("scan", [p.array(270001)], fn="add", axis=0, reverse=False)[0]]

    unit = lowered(program)
    expect(
        unit,
        """
        CHECK: array.call(%0) {callee = "scan_0"} : tensor<33xf32>, tensor<270001xf32>
        CHECK: tile.kernel() {sym_name = "scan_0", grid = array<i64: 33>, {{.*}}in_order = true}
        CHECK: tile.fill_padding{{.*}}limit = 270001 : index, value = 0.0
        CHECK-NEXT: [[TOTAL:%[0-9]+]] = tile.reduce
        CHECK-NEXT: [[BEFORE:%[0-9]+]] = tile.load({{.*}}) {map = affine_map<()[s0] -> ((s0 + -1))>, fill = 0.0
        CHECK-NEXT: [[NEXT:%[0-9]+]] = tile.map([[BEFORE]], [[TOTAL]]) {fn = "add"}
        CHECK-NEXT: tile.store([[NEXT]]
        CHECK: tile.scan({{.*}}, [[BEFORE]])
        """,
    )
    (x,), y = result_of(unit)
    np.testing.assert_allclose(y, np.cumsum(x, dtype=np.float64), atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "fn", "reverse"), [((270001,), "multiply", False), ((270031,), "add", True), ((8, 270001), "add", False)]
)
def test_products_prime_lengths_from_the_end_and_many_lines_stay_whole(
    shape: tuple[int, ...], fn: str, reverse: bool
) -> None:
    last = len(shape) - 1
    unit = lowered(lambda p: [p.add("scan", [p.array(*shape)], fn=fn, axis=last, reverse=reverse)[0]])
    assert "in_order" not in str(unit.module)


def test_parts_from_the_end_are_counted_from_there() -> None:
    unit = lowered(lambda p: [p.add("scan", [p.array(1 << 18)], fn="add", axis=0, reverse=True)[0]])
    expect(
        unit,
        """
        CHECK: grid = array<i64: 32>{{.*}}in_order = true
        CHECK: tile.load({{.*}}) {map = affine_map<(d0)[s0] -> (((d0 + (s0 * -8192)) + 253952))>}
        """,
    )
    (x,), y = result_of(unit)
    np.testing.assert_allclose(y, np.cumsum(x[::-1], dtype=np.float64)[::-1], atol=5e-3)


@pytest.mark.parametrize(("shape", "axis"), [((400000,), 0), ((3, 300000), 1), ((20000, 40), 0)])
def test_parts_do_not_depend_on_the_number_of_threads(shape: tuple[int, ...], axis: int) -> None:
    def program(p: Program) -> list[Value]:
        return [p.add("scan", [p.array(*shape)], fn="add", axis=axis, reverse=False)[0]]

    texts = set[str]()
    for threads in (1, 2, 16):
        graph = build(program)
        unit = unit_of(build_module(graph), graph.constants)
        unit.threads = threads
        for each in array_to_tile(unit.machine.model):
            each.apply(unit)
        texts.add(str(unit.module))
    assert len(texts) == 1
    assert "in_order = true" in texts.pop()


def test_the_best_elements_of_parts_are_compared() -> None:
    unit = lowered(lambda p: [p.add("arg_reduce", [p.array(270001)], fn="maximum", axis=0)[0]])
    expect(
        unit,
        """
        CHECK: [[BEST:%[0-9]+]], [[AT:%[0-9]+]] = array.call(%0) {callee = "arg_reduce_0_parts"}
        CHECK-SAME: tensor<9xf32>, tensor<9xi64>
        CHECK-NEXT: array.call(%0, [[BEST]], [[AT]]) {callee = "arg_reduce_0"} : tensor<i64>
        """,
    )
    (x,), y = result_of(unit)
    assert y == np.argmax(x)


@pytest.mark.parametrize("along_rows", [False, True])
def test_tiles_are_square_where_a_transposed_array_is_read_along_rows(along_rows: bool) -> None:
    """One that gives an element for each row is not."""

    def program(p: Program) -> list[Value]:
        x = p.array(40, 30, 300)
        y = p.array(300, 30) if along_rows else p.array(30, 40)
        turned = p.add("transpose", [y], permutation=(1, 0))[0]
        axes = (1, 2) if along_rows else (0, 1)
        spread = p.add("broadcast", [turned], shape=(40, 30, 300), axes=axes)[0]
        return [p.map("multiply", x, spread)]

    (kernel,) = lowered(program).kernels()
    (store,) = [op for op in kernel.walk() if isinstance(op, tile.StoreOp)]
    assert isinstance(store.value.type, TensorType)
    assert (store.value.type.get_shape()[-1] == 300) is not along_rows


@pytest.mark.parametrize("means", [False, True])
def test_tiles_of_transposed_arrays_are_along_both_rows_whatever_is_repeated(means: bool) -> None:
    """Means of matrices that a transposed array meets are transposed, too, and have a fraction of its elements."""

    def program(p: Program) -> list[Value]:
        turned = p.add("transpose", [p.array(64, 20, 256)], permutation=(2, 1, 0))[0]
        if not means:
            return [p.map("exp", turned)]
        mean = p.add("transpose", [p.array(20, 256)], permutation=(1, 0))[0]
        return [p.map("subtract", turned, p.broadcast(mean, (256, 20, 64), (0, 1)))]

    (kernel,) = lowered(program).kernels()
    (store,) = [op for op in kernel.walk() if isinstance(op, tile.StoreOp)]
    assert isinstance(store.value.type, TensorType)
    assert store.value.type.get_shape() == (256, 32)


def test_tiles_of_gathered_pixels_are_along_rows() -> None:
    """A transpose that puts the dim of the indices back reads in the order of memory."""

    def program(p: Program) -> list[Value]:
        pixels = p.add("gather", [p.array(200, 70, 16), p.array(300, dtype=dtypes.i64)], axes=(1,))[0]
        return list(p.add("transpose", [pixels], permutation=(1, 0, 2)))

    (kernel,) = lowered(program).kernels()
    (store,) = [op for op in kernel.walk() if isinstance(op, tile.StoreOp)]
    assert isinstance(store.value.type, TensorType)
    assert store.value.type.get_shape() == (150, 16)
