"""What machines ask: atoms of products, widths of elements, transfers to memories, divisors of starts, gathers."""

from __future__ import annotations

import random
from functools import reduce
from math import gcd

import numpy as np
import pytest
from conformance_support import CPU, GPU, PAIRS, build, conflict_of, infer, machine, places, space, square

import tilewright as tw
from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.layout import Layout, row_major, slice_box
from tilewright.layout.access import MemoryPorts, register_access
from tilewright.layout.catalogue import (
    mma_operand_a,
    shared_matrix,
    tcgen05_registers,
    tensor_memory_accumulator,
    wgmma_accumulator,
    wgmma_operand,
)
from tilewright.layout.operations import rename_axis
from tilewright.layout.relayout import Plan, Reason, plan_relayout
from tilewright.layout.views import permute
from tilewright.passes.layouts.layout_costs import TransferCost
from tilewright.passes.layouts.layout_inference import infer_layouts
from tilewright.passes.layouts.layout_spaces import Atom, dealt
from tilewright.passes.layouts.layout_windows import misaligned, window_of
from tilewright.primitives import ArrayType

BOTH = pytest.mark.parametrize("on", [GPU, CPU])


def atoms(rows: int, columns: int, depth: int, dtype: tw.DType, on: str = GPU) -> list[Atom]:
    sums = tw.i32 if dtype == tw.i8 else tw.f32
    types = ArrayType((rows, depth), dtype), ArrayType((depth, columns), dtype), ArrayType((rows, columns), sums)
    return list(space(on).atoms(*types))


# ---- products --------------------------------------------------------------------------------------------------------


@tw.kernel
def product(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"], *, pin=None, where: str = ""):
    for i, j in tw.grid(c, (64, 64)):
        acc = tw.zeros((64, 64))
        for k in tw.steps(a, axis=1, size=64):
            left, right = a[i, k], b[k, j]
            if where == "left":
                left = tw.layout(left, pin, strict=True)
            if where == "right":
                right = tw.layout(right, pin, strict=True)
            acc = tw.dot(left, right, acc)
            if where == "result":
                acc = tw.layout(acc, pin, strict=True)
        c[i, j] = acc


@BOTH
def test_a_product_decides_where_its_operands_are(on: str) -> None:
    """The sum stays where the atom leaves it; operands are loaded to where it wants them, or brought there."""
    found = infer(product, square(256), square(256), on=on)
    (op,) = found.ops("dot")
    atom = found.inference.atom(op)
    assert atom in found.inference.problem.domains[found.inference.products[op]]
    for operand, wanted in zip(op.operands, (atom.left, atom.right), strict=False):
        given = found.inference.layout(operand)
        if operand in found.inference.packed:
            assert (on, operand, given) == (CPU, op.right, None), "read from its array, which is packed as a whole"
            continue
        assert given is not None
        assert isinstance(plan_relayout(given, wanted, tw.f32, machine(on)), Plan)
    left = found.inference.layout(op.result)
    assert left is not None
    assert isinstance(plan_relayout(atom.accumulator, left, tw.f32, machine(on)), Plan)
    assert on == CPU or left == atom.accumulator


@BOTH
@pytest.mark.parametrize("where", ["left", "right", "result"])
def test_a_pinned_operand_decides_the_atom(on: str, where: str) -> None:
    """Each atom can be asked for by any of its operands; a layout that none has contradicts the product."""
    of = {"left": "left", "right": "right", "result": "accumulator"}[where]
    for atom in atoms(64, 64, 64, tw.f32, on):
        pin = getattr(atom, of)
        found = infer(product, square(256), square(256), on=on, pin=pin, where=where)
        assert getattr(found.inference.atom(found.ops("dot")[0]), of) == pin
    conflict = conflict_of(product, square(256), square(256), on=on, pin=PAIRS[on][1], where=where)
    assert any("matmul" in origin.text for origin in conflict.core)


def test_matrix_operands_in_shared_memory_have_the_widest_swizzle_that_fits() -> None:
    """Tilings of operands come from the width of a line: the widest swizzle whose lines the tile has, none too wide."""
    for depth, swizzle in ((64, 128), (32, 64), (16, 32)):
        (tile_,) = (atom for atom in atoms(64, 64, depth, tw.f16) if atom.name == "wgmma, 1 warpgroup")
        assert tile_.left == rename_axis(shared_matrix((64, depth), 16, swizzle), "mem", "mem.shared")
    assert not any("wgmma" in atom.name for atom in atoms(64, 64, 64, tw.f32))
    assert not any("wgmma" in atom.name for atom in atoms(48, 64, 64, tw.f16))


@pytest.mark.parametrize(("rows", "columns", "depth"), [(64, 8, 16), (16, 8, 16), (48, 24, 32), (5, 7, 9), (1, 1, 1)])
@BOTH
def test_every_shape_has_an_atom_and_its_layouts_fit(on: str, rows: int, columns: int, depth: int) -> None:
    """Small and odd tiles are multiplied too: the atoms that do not fit are left out, one always remains."""
    found = atoms(rows, columns, depth, tw.f32, on)
    assert found
    for atom in found:
        shapes = [layout.shape for layout in (atom.left, atom.right, atom.accumulator)]
        assert shapes == [(rows, depth), (depth, columns), (rows, columns)]


# ---- widths of elements ----------------------------------------------------------------------------------------------


def seconds(source: Layout, target: Layout, dtype: tw.DType, on: str = GPU) -> float:
    plan = plan_relayout(source, target, dtype, machine(on))
    assert isinstance(plan, Plan)
    return plan.seconds


@pytest.mark.parametrize("dtype", [tw.i8, tw.f16, tw.f32, tw.f64])
def test_every_width_can_be_converted_and_narrow_ones_share_registers(dtype: tw.DType) -> None:
    """No width is refused; what a conversion costs grows with it, as small elements travel together."""
    first, second = PAIRS[GPU]
    assert seconds(first, second, dtype) > 0
    assert seconds(first, second, tw.f16) < seconds(first, second, tw.f32) < seconds(first, second, tw.f64)


@pytest.mark.parametrize(("bits", "layout"), [(16, wgmma_operand((64, 64), 16)), (8, wgmma_operand((64, 64), 8))])
def test_operand_fragments_are_of_one_width(bits: int, layout: Layout) -> None:
    """The fragment of an operand depends on the width of its elements: that of another width is no operand."""
    dtypes_of = {16: tw.f16, 8: tw.i8}
    wanted = {atom.left for atom in atoms(64, 64, 64, dtypes_of[bits])}
    others = {atom.left for atom in atoms(64, 64, 64, dtypes_of[24 - bits])}
    assert layout in wanted
    assert layout not in others


# ---- transfers -------------------------------------------------------------------------------------------------------


def conflicts(registers: Layout, memory: Layout, item_bytes: int = 2) -> int:
    found = register_access(registers, memory, item_bytes, MemoryPorts())
    assert found is not None
    return found.wavefronts - found.least_wavefronts


def test_swizzled_tiles_of_shared_memory_are_read_without_conflicts() -> None:
    """A fragment reads a swizzled tile without two words in one bank; of a plain tile it does not."""
    registers = wgmma_operand((64, 64), 16)
    assert conflicts(registers, shared_matrix((64, 64), 16, 128)) == 0
    assert conflicts(registers, row_major((64, 64))) > 0


def test_streaming_registers_prefer_memory_in_their_own_order() -> None:
    """Plain registers read a plain tile in wide accesses and a transposed one in narrow ones: both can be done."""
    registers = dealt((64, 64), [1, 0], (("lane", 32), ("warp", 4)), 8)
    turned = permute(row_major((64, 64)), (1, 0))
    straight, across = (
        register_access(registers, memory, 2, MemoryPorts()) for memory in (row_major((64, 64)), turned)
    )
    assert straight is not None
    assert across is not None
    assert straight.vector == 8
    assert across.vector == 1
    assert across.wavefronts > straight.wavefronts


@BOTH
def test_a_transfer_to_memory_is_possible_from_everywhere_and_dearer_from_elsewhere(on: str) -> None:
    """Any layout of registers can be loaded and stored; the cost tells which should be."""
    kernel = build(product, square(256), square(256))
    load = next(op for op in kernel.walk() if isinstance(op, tile.LoadOp))
    window = misaligned(window_of(load), machine(on), tw.f32)
    candidates = list(space(on).distributions(ArrayType((64, 64), tw.f32), 1))
    costs = [TransferCost(window, tw.f32, machine(on), 1, False)(layout) for layout in [*candidates, *PAIRS[on]]]
    assert None not in costs
    assert costs[0] == min(cost for cost in costs if cost is not None)
    assert max(cost for cost in costs if cost is not None) > min(cost for cost in costs if cost is not None)


@pytest.mark.parametrize("contiguous_dim", [0, 1])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_tiles_of_shared_memory_keep_their_order_under_views(contiguous_dim: int, swizzle: int) -> None:
    """The strides and offsets of a tiled buffer follow from its layout when it is turned or cut."""
    layout = shared_matrix((64, 64), 16, swizzle, contiguous_dim=contiguous_dim)
    turned = permute(layout, (1, 0))
    part = slice_box(layout, (8, 0), (8, 64)) if contiguous_dim else slice_box(layout, (0, 8), (64, 8))
    for i, j in np.ndindex(64, 64):
        assert places(turned, (j, i)) == places(layout, (i, j))
    for i, j in np.ndindex(*part.static_shape):
        assert places(part, (i, j)) == places(layout, (i + 8, j) if contiguous_dim else (i, j + 8))


# ---- tensor memory ---------------------------------------------------------------------------------------------------


def test_tensor_memory_is_reached_from_registers_whose_lanes_are_its_rows() -> None:
    """A load or store of tensor memory is possible where lane and warp are the row, and refused elsewhere."""
    memory = tensor_memory_accumulator((128, 64))
    own = tcgen05_registers((128, 64), "32x32b")
    for ends in ((own, memory), (memory, own)):
        assert isinstance(plan_relayout(*ends, dtypes.f32, machine("blackwell")), Plan)
    rejected = [
        wgmma_accumulator((128, 64)),
        Layout.parse("(128, 64) : [32@lane 4@warp | 64@reg]"),
        next(iter(space("blackwell").distributions(ArrayType((128, 64), tw.f32), 1))),
    ]
    for registers in rejected:
        for ends in ((registers, memory), (memory, registers)):
            assert isinstance(plan_relayout(*ends, dtypes.f32, machine("blackwell")), Reason)
    assert isinstance(plan_relayout(own, memory, dtypes.f32, machine(GPU)), Reason)


def test_inference_goes_to_tensor_memory_by_registers_that_can() -> None:
    """A tile that is pinned to tensor memory is brought there by registers that reach it, found by the search."""

    @tw.kernel
    def kept(x: tw.In["M N"], y: tw.Out["M N"]):
        for i, j in tw.grid(x, (128, 64)):
            rows = tw.layout(tw.exp(x[i, j]), tw.layouts.tcgen05_registers((128, 64), "32x32b"))
            t = tw.layout(rows, tw.layouts.tensor_memory_accumulator((128, 64)))
            y[i, j] = tw.layout(t, tw.layouts.tcgen05_registers((128, 64), "32x32b")) + 1

    found = infer(kept, tw.ShapeDtype((128, 64), tw.f32), on="blackwell")
    assert found.layout("relayout", 1) == tensor_memory_accumulator((128, 64))
    assert found.layout("add") is not None
    assert conflict_of(kept, tw.ShapeDtype((128, 64), tw.f32), on=GPU).lines


# ---- divisors --------------------------------------------------------------------------------------------------------


@tw.kernel
def windows(x: tw.In["N"], y: tw.Out["N"], *, step: int, first: int):
    for i in tw.grid((4,), 1):
        y[i.start * 64 : i.start * 64 + 64] = x[i.start * step + first : i.start * step + first + 64]


def vector(step: int, first: int) -> int:
    kernel = build(windows, tw.ShapeDtype((512,), tw.f32), step=step, first=first)
    load = next(op for op in kernel.walk() if isinstance(op, tile.LoadOp))
    found = register_access(
        dealt((64,), [0], (("lane", 16),), 4), misaligned(window_of(load), machine(GPU), tw.f32), 4, MemoryPorts()
    )
    assert found is not None
    return found.vector


@pytest.mark.parametrize("seed", range(20))
def test_what_several_facts_say_of_a_start_meets_in_their_common_divisor(seed: int) -> None:
    """Divisors combine as a lattice does: in any order, once or twice, and the narrowest bounds the vector."""
    generator = random.Random(seed)
    step, first = generator.choice((64, 96, 12, 10, 7, 4, 2)), generator.choice((0, 64, 8, 6, 2, 1))
    common = reduce(gcd, (step, first, 4))
    assert vector(step, first) == common
    assert vector(step, first) <= min(vector(step, 0), vector(64, first))
    assert vector(step, 0) == vector(step, step * 2 if step % 64 else 0)


@BOTH
def test_a_window_that_no_tile_divides_costs_more_and_is_no_contradiction(on: str) -> None:
    """Windows of elements at any start are possible on every machine: the divisor decides the time alone."""
    costs = {}
    for step in (64, 63):
        kernel = build(windows, tw.ShapeDtype((512,), tw.f32), step=step, first=0)
        costs[step] = infer_layouts(kernel, space(on)).solution.cost
    assert costs[63] > costs[64] if on == GPU else costs[63] >= costs[64]


@BOTH
def test_cuts_of_one_tile_agree_with_it_and_with_each_other(on: str) -> None:
    """Sibling cuts of one tile are where the tile has them, also far away from where it was pinned."""

    @tw.kernel
    def halves(x: tw.In["M N"], y: tw.Out["M 32"], *, pin):
        for _ in tw.grid((1,), 1):
            t = tw.layout(x[0:64, 0:64], pin, strict=True)
            low, high = t[:, 0:32], t[:, 32:64]
            y[0:64, 0:32] = tw.exp(low) * high

    pin = {GPU: wgmma_accumulator((64, 64)), CPU: "(64, 64) : [64@reg | 4@reg*64 16@simd]"}[on]
    found = infer(halves, on=on, pin=pin)
    whole = found.layout("load")
    for number, start in enumerate((0, 32)):
        part = found.layout("slice", number)
        for i, j in np.ndindex(64, 32):
            assert places(part, (i, j), registers=False) == places(whole, (i, j + start), registers=False)


# ---- gathers ---------------------------------------------------------------------------------------------------------


@tw.kernel
def gathered(x: tw.In["N D"], index: tw.In["K", tw.i32], y: tw.Out["K D"], *, rows: bool):
    for k in tw.grid((8,), 1):
        places_ = index[k.start * 32 : k.start * 32 + 32]
        if rows:
            y[k.start * 32 : k.start * 32 + 32, 0:64] = x[places_, 0:64]
        else:
            y[k.start * 32 : k.start * 32 + 32, 0:64] = x[0, places_[:, None] + tw.arange(64)]


@tw.kernel
def scattered(x: tw.In["K D"], index: tw.In["K", tw.i32], y: tw.Out["512 D"]):
    for k in tw.grid((8,), 1):
        y[index[k.start * 32 : k.start * 32 + 32], 0:64] = x[k.start * 32 : k.start * 32 + 32, 0:64]


@BOTH
def test_gathers_and_scatters_of_any_dim_and_length_are_possible(on: str) -> None:
    """Indices may lead or not and be of any number: each element that stands alone is an access of its own."""
    types = tw.ShapeDtype((512, 512), tw.f32), tw.ShapeDtype((256,), tw.i32)
    by_rows, by_elements = (infer(gathered, *types, on=on, rows=rows) for rows in (True, False))
    assert by_rows.inference.solution.cost < by_elements.inference.solution.cost
    infer(scattered, tw.ShapeDtype((256, 512), tw.f32), types[1], on=on)


def test_rows_of_a_gather_are_read_in_wide_accesses() -> None:
    """What is contiguous in a gather stays so: only the dims that indices choose step from line to line."""
    types = tw.ShapeDtype((512, 512), tw.f32), tw.ShapeDtype((256,), tw.i32)
    for rows, wide in ((True, True), (False, False)):
        loads = [op for op in build(gathered, *types, rows=rows).walk() if isinstance(op, tile.LoadOp)]
        window = window_of(next(op for op in loads if tile.array_type(op.result).rank == 2))
        strides = [max((digit.stride for digit in own), default=0) for own in window.shard]
        assert strides[0] >= 512
        assert (strides[1] == 1) == wide


def test_operand_a_of_a_smaller_instruction_is_another_fragment() -> None:
    """Fragments of different instructions differ, and are converted into each other within a warp or through memory."""
    small, large = mma_operand_a((64, 64), 16, (4, 1)), wgmma_operand((64, 64), 16)
    assert seconds(small, large, tw.f16) == 0
    assert seconds(mma_operand_a((64, 64), 16, (2, 2)), large, tw.f16) > 0
