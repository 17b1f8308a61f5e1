"""Scheduled kernels follow layout inference: register blocks, panels, which dimension of a nest is in vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.passes.pass_support import Make, parse, random_inputs, remarks, run, run_through, unit_of
from tests.programs import attention, build, convolution, inputs_for, matmul_constant, matmul_epilogue, softmax_rows
from tilewright.dialects import scheduled, tile
from tilewright.frontend.build import build_module
from tilewright.layout import Layout, same_map
from tilewright.layout.catalogue import packed_panels_b
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.kernels.array_lower_to_tile import ArrayLowerToTilePass
from tilewright.passes.layouts.layout_inference import infer_layouts
from tilewright.passes.layouts.layout_spaces import Atom
from tilewright.passes.spaces import space_of
from tilewright.passes.vectors.scheduled_pack_operands import ScheduledPackOperandsPass, operand_dims
from tilewright.passes.vectors.tile_lower_to_vectors import TileLowerToVectorsPass, lower_kernel
from tilewright.passes.vectors.vector_space import VectorSpace
from tilewright.pipelines import compile_module
from tilewright.targets.cpu.nest_plan import plan_nest

LANES = 8  # f32 of x86-64-v3


def dots(kernel: tile.KernelOp) -> list[scheduled.DotOp]:
    return [op for op in kernel.walk() if isinstance(op, scheduled.DotOp)]


def nests(kernel: tile.KernelOp) -> list[scheduled.NestOp]:
    return [op for op in kernel.walk() if isinstance(op, scheduled.NestOp)]


# ---- what inference says is what is scheduled -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [softmax_rows, matmul_epilogue, attention, convolution], ids=lambda f: f.__name__)
def test_blocks_and_nests_have_what_inference_found(make: Make) -> None:
    unit = run_through(make, ArrayLowerToTilePass)
    inferred = {kernel.sym_name: infer_layouts(kernel, space_of(unit.machine)) for kernel in unit.kernels()}
    chosen = [str(found.atom(product)) for found in inferred.values() for product in found.products]
    blocks = {name: [str(found.atom(p).block) for p in found.products] for name, found in inferred.items()}
    dealt = {name: {str(found.layout(value)) for value in found.variables} for name, found in inferred.items()}
    TileLowerToVectorsPass().apply(unit)
    assert [decision for decision, _ in remarks(unit, TileLowerToVectorsPass.name)] == chosen
    for kernel in unit.kernels():
        name = kernel.sym_name
        assert [dot.block for dot in dots(kernel)] == blocks[name]
        found = {nest.layout for nest in nests(kernel) if nest.layout is not None}
        assert found or blocks[name]
        assert found <= dealt[name]


@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
@pytest.mark.parametrize("make", [matmul_epilogue, matmul_constant, attention], ids=lambda f: f.__name__)
def test_another_space_gives_other_blocks_and_the_same_numbers(
    make: Make, vectors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that only a space without better ones takes: the lowering must not have an opinion of its own."""
    program = build(make)
    inputs = inputs_for(program)
    expected = compile_module(build_module(program), program.constants, "interp")(*inputs)
    _offer_only(monkeypatch, vectors)
    unit = run_through(make, ScheduledPackOperandsPass)
    products = [dot for kernel in unit.kernels() for dot in dots(kernel)]
    assert products
    for dot in products:
        block = Layout.parse(dot.block)
        assert block.static_shape[1] == vectors * LANES
        assert block.span("simd") == LANES
        right = tile.ref_type(dot.right)
        if not right.layout.data:
            assert operand_dims(dot.right_map)[1] == len(right.shape) - 1, "columns are side by side"
        elif len(right.shape) == 2:
            assert same_map(Layout.parse(right.layout.data), packed_panels_b(right.shape, vectors * LANES))
    packed = [dot for dot in products if tile.ref_type(dot.right).layout.data]
    assert packed or make is matmul_epilogue
    native = compile_module(build_module(build(make)), program.constants, "cpu")
    for got in (run(unit, inputs), native(*inputs)):
        for result, wanted in zip(got, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)


def _offer_only(monkeypatch: pytest.MonkeyPatch, vectors: int) -> None:
    """Leave a machine the atoms of so many vectors."""
    offered = VectorSpace.atoms

    def atoms(self: VectorSpace, *types: Any) -> Iterator[Atom]:
        wide = vectors * self.machine.lanes(types[2].dtype)
        return (atom for atom in offered(self, *types) if atom.block and atom.block.static_shape[1] == wide)

    monkeypatch.setattr(VectorSpace, "atoms", atoms)


# ---- vectors lie along what is contiguous ---------------------------------------------------------------------------


@pytest.mark.parametrize(("positions", "vector_dim"), [("d0, d1", 1), ("d1, d0", 0)])
def test_vectors_lie_along_the_dimension_that_is_contiguous(positions: str, vector_dim: int) -> None:
    square, ref = "tensor<48x48xf32>", "!tile.ref<tensor<48x48xf32>>"
    access = f"{{map = affine_map<(d0, d1) -> ({positions})>}}"
    text = f"""
    func.func @main(%x: {square}) -> {square} {{
      %y = array.call(%x) {{callee = "k"}} : {square}
      func.return %y : {square}
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "out"]}} do {{
    ^bb0(%x: {ref}, %out: {ref}):
      %t = tile.load(%x) {access} : {square}
      %y = tile.map(%t) {{fn = "negative"}} : {square}
      tile.store(%y, %out) {access}
      tile.yield()
    }}
    """
    unit = unit_of(parse(text), {})
    TileLowerToVectorsPass().apply(unit)
    assert vector_dims(unit) == [vector_dim]
    (x,) = random_inputs(unit)
    np.testing.assert_array_equal(run(unit, [x])[0], -x)


def vector_dims(unit: Unit) -> list[int | None]:
    """Of each nest, by its layout alone."""
    found = [nest for kernel in unit.kernels() for nest in nests(kernel)]
    assert all(nest.layout is not None for nest in found)
    return [plan_nest(nest, unit.machine, lambda symbol: 1).vector_dim for nest in found]


# ---- a pin ----------------------------------------------------------------------------------------------------------

ROWS = "(16, 24) : [16@reg*3 | 3@reg 8@simd]"
COLUMNS = "(16, 24) : [2@reg 8@simd | 24@reg*2]"


@tw.kernel
def tripled(x: tw.In["M N"], y: tw.Out["M N"], *, wanted: str):
    for i, j in tw.grid(x, (16, 24)):
        y[i, j] = tw.layout(tw.exp(x[i, j]) * 3, wanted)


@pytest.mark.parametrize(("wanted", "vector_dim"), [(ROWS, 1), (COLUMNS, 0)])
def test_a_pinned_tile_is_computed_in_vectors_as_the_pin_says(wanted: str, vector_dim: int) -> None:
    x = np.random.default_rng(0).standard_normal((37, 50)).astype(np.float32)
    machine = load("x86-64-v3")
    kernel = tripled.lower(x, wanted=wanted).specialisation.build()
    (nest,) = nests(lower_kernel(kernel, machine, infer_layouts(kernel, space_of(machine))))
    assert nest.layout is not None
    assert nest.layout == wanted
    plan = plan_nest(nest, machine, lambda symbol: 3)
    assert (plan.vector_dim, plan.lanes, plan.order[-1]) == (vector_dim, LANES, vector_dim)
    for target in ("interp", "cpu"):
        with tw.options(target=target, cache=False):
            result = tripled(x, wanted=wanted)
        np.testing.assert_allclose(result, 3 * np.exp(x.astype(np.float64)), rtol=1e-6)


@tw.kernel
def pinned_twice(x: tw.In["M N"], y: tw.Out["M N"], *, first: str, last: str):
    for i, j in tw.grid(x, (16, 24)):
        y[i, j] = tw.layout(tw.layout(tw.exp(x[i, j]), first), last)


@pytest.mark.parametrize(("first", "last"), [(ROWS, COLUMNS), (COLUMNS, ROWS)])
def test_of_two_pins_the_last_is_followed(first: str, last: str) -> None:
    x = np.random.default_rng(0).standard_normal((37, 50)).astype(np.float32)
    machine = load("x86-64-v3")
    kernel = pinned_twice.lower(x, first=first, last=last).specialisation.build()
    (nest,) = nests(lower_kernel(kernel, machine, infer_layouts(kernel, space_of(machine))))
    assert nest.layout is not None
    assert nest.layout == last
    with tw.options(target="cpu", cache=False):
        result = pinned_twice(x, first=first, last=last)
    np.testing.assert_allclose(result, np.exp(x.astype(np.float64)), rtol=1e-6)


@tw.kernel
def scaled_product(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"], *, wanted: str):
    for i, j in tw.grid(c, (16, 24)):
        acc = tw.zeros((16, 24), tw.f32)
        for k in tw.steps(a, axis=1, size=8):
            acc = tw.dot(a[i, k], b[k, j], acc)
        c[i, j] = tw.layout(tw.tanh(acc), wanted)


@pytest.mark.parametrize(("wanted", "vector_dim"), [(ROWS, 1), (COLUMNS, 0)])
def test_what_follows_a_product_may_be_in_other_vectors_than_its_block(wanted: str, vector_dim: int) -> None:
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((37, 21), (21, 50)))
    machine = load("x86-64-v3")
    kernel = scaled_product.lower(a, b, wanted=wanted).specialisation.build()
    lowered = lower_kernel(kernel, machine, infer_layouts(kernel, space_of(machine)))
    (dot,) = dots(lowered)
    assert [d.extent for d in Layout.parse(dot.block).shard[1] if d.axis == "simd"] == [LANES]
    (last,) = [nest for nest in nests(lowered) if "tanh" in str(nest)]
    assert last.layout is not None
    assert last.layout == wanted
    assert plan_nest(last, machine, lambda symbol: 3).vector_dim == vector_dim
    with tw.options(target="cpu", cache=False):
        result = scaled_product(a, b, wanted=wanted)
    np.testing.assert_allclose(result, np.tanh(a.astype(np.float64) @ b), rtol=1e-5, atol=1e-5)


# ---- arrays that are packed as a whole ------------------------------------------------------------------------------


@tw.kernel
def tiled_product(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"], *, bn: int):
    for i, j in tw.grid(c, (64, bn)):
        c[i, j] = tw.dot(a[i, 0:40], b[0:40, j], tw.zeros((64, bn), tw.f32))


@pytest.mark.parametrize(
    ("bn", "columns"), [(8, 8), (16, 16), (24, 24), (40, 8), (48, 16), (56, 8), (72, 24), (64, 16)]
)
def test_the_block_divides_the_tile_so_that_the_array_is_packed_once(bn: int, columns: int) -> None:
    """On eight lanes: a wider block would have fewer panels, but tiles would begin inside one and be packed each."""
    shapes = (
        tw.ShapeDtype((128, 40), tw.f32),
        tw.ShapeDtype((40, 4 * bn), tw.f32),
        tw.ShapeDtype((128, 4 * bn), tw.f32),
    )
    kernel = tiled_product.lower(*shapes, bn=bn).specialisation.build()
    inferred = infer_layouts(kernel, space_of(load("x86-64-v3")))
    (product,) = inferred.products
    assert product.right in inferred.packed
    lowered = lower_kernel(kernel, load("x86-64-v3"), inferred)
    (dot,) = dots(lowered)
    assert dot.micro_tile[1] == columns
    assert dot.right in lowered.refs, "the product reads the array itself, which a later pass packs"


@tw.kernel
def few_rows(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"]):
    for i, j in tw.grid(c, (14, 16)):
        c[i, j] = tw.dot(tw.abs(a[i, 0:40]), b[0:40, j], tw.zeros((14, 16), tw.f32))


def test_a_left_operand_is_kept_without_rows_that_only_fill_a_block() -> None:
    """Nobody writes such rows, and products of what memory happens to hold may be very slow."""
    shapes = (tw.ShapeDtype((14, 40), tw.f32), tw.ShapeDtype((40, 16), tw.f32), tw.ShapeDtype((14, 16), tw.f32))
    kernel = few_rows.lower(*shapes).specialisation.build()
    lowered = lower_kernel(kernel, load("x86-64-v3"), infer_layouts(kernel, space_of(load("x86-64-v3"))))
    (dot,) = dots(lowered)
    assert 14 % dot.micro_tile[0], "the last block of rows is not whole"
    assert dot.left not in lowered.refs
    assert tile.ref_type(dot.left).shape[0] == 14
