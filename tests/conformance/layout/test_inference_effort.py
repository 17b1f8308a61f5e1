"""How much work inference may be, what it says when it gives up, and mistakes that another solver made."""

from __future__ import annotations

import random
from functools import partial
from math import prod

import numpy as np
import pytest
from conformance_support import CPU, GPU, PAIRS, build, infer, machine, places, same_places, space, square

import tilewright as tw
from tests.effort import calls_of, is_within
from tilewright import dtypes
from tilewright.errors import LayoutBudgetError, LayoutError
from tilewright.layout import Layout, canonical, slice_box
from tilewright.layout.catalogue import wgmma_accumulator, wgmma_per_column, wgmma_per_row
from tilewright.layout.relayout import Plan, plan_relayout
from tilewright.layout.views import Broadcast, Reshape, broadcast, reduce
from tilewright.passes.layouts.layout_inference import infer_layouts
from tilewright.passes.layouts.layout_spaces import dealt

BOTH = pytest.mark.parametrize("on", [GPU, CPU])


def gelu(x):
    return 0.5 * x * (1 + tw.erf(x * 0.7071067811865476))


@tw.kernel
def chain(x: tw.In["M N"], y: tw.Out["M N"], *, n: int):
    for i, j in tw.grid(x, (64, 64)):
        t = x[i, j]
        for _ in range(n):
            t = gelu(gelu(gelu(gelu(gelu(gelu(gelu(gelu(t))))))))
        y[i, j] = t


@BOTH
def test_a_long_elementwise_chain_takes_no_search(on: str) -> None:
    """The number of partial assignments does not grow with the length of a chain, and the effort about as the chain."""
    calls, nodes = {}, {}
    for n in (1, 8):
        kernel = build(chain, n=n)
        infer_layouts(kernel, space(on))
        inference, calls[n] = calls_of(partial(infer_layouts, kernel, space(on)))
        nodes[n] = inference.solution.nodes
        assert is_within(5, partial(infer_layouts, kernel, space(on)))
    print(f"calls: {calls}")
    assert nodes[8] == nodes[1] <= 3
    assert calls[8] < 12 * calls[1]


@BOTH
def test_a_row_wise_softmax_without_any_pin_is_found_at_once(on: str) -> None:
    """Programs without annotations are solved too: reductions and broadcasts of rows need no hints."""

    @tw.kernel
    def softmax(x: tw.In["M N"], y: tw.Out["M N"]):
        for i in tw.grid((1,), 1):
            t = x[0:64, 0:64]
            e = tw.exp(t - tw.max(t, axis=1, keepdims=True))
            y[i.start * 64 : i.start * 64 + 64, 0:64] = e / tw.sum(e, axis=1, keepdims=True)

    assert is_within(5, partial(infer, softmax, on=on))
    assert infer(softmax, on=on).inference.solution.nodes < 100


@BOTH
def test_what_was_given_up_is_not_called_a_contradiction(on: str) -> None:
    """Too small a budget has an error of its own, which says nothing on whether there is an answer."""
    with pytest.raises(LayoutBudgetError, match="looked at 0 partial assignments"):
        infer_layouts(build(chain, n=1), space(on), budget=0)


@BOTH
def test_the_likely_candidates_come_first(on: str) -> None:
    """What pins ask is looked at before what operations like, and that before what streams."""
    kernel = build(chain, n=1)
    values = [op.results[0] for op in kernel.walk() if op.name == "tile.map"]
    inference = infer_layouts(kernel, space(on), {values[3]: PAIRS[on][0]})
    assert all(inference.problem.domains[number][0] == PAIRS[on][0] for number in inference.variables.values())


# ---- mistakes of another solver --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "pin"),
    [
        ((2, 128, 64), "(2, 128, 64) : [2@reg*64 | 2@reg*32 4@warp 2@reg*2 8@lane*4 | 8@reg*4 4@lane 2@reg]"),
        ((64, 128, 64), "(64, 128, 64) : [64@reg*64 | 2@reg*32 4@warp 2@reg*2 8@lane*4 | 8@reg*4 4@lane 2@reg]"),
    ],
)
def test_a_number_fits_a_tile_of_any_rank(shape: tuple[int, ...], pin: str) -> None:
    """A uniform value goes with every layout: dims in front do not matter."""

    @tw.kernel
    def plus_one(x: tw.In["B M N"], y: tw.Out["B M N"]):
        for b in tw.grid((1,), 1):
            y[b.start : b.start + shape[0], 0:128, 0:64] = (
                tw.layout(x[0 : shape[0], 0:128, 0:64], pin, strict=True) + 1.0
            )

    found = infer(plus_one, tw.ShapeDtype(shape, tw.f32))
    assert found.layout("add") == Layout.parse(pin)


def test_values_per_row_are_reshaped_as_their_elements_are() -> None:
    """Splitting a dim in front of a fragment is allowed for vectors and for matrices, and is right for both."""
    rows, matrix = wgmma_per_row(128), wgmma_accumulator((128, 64))
    split = Reshape((128,), (2, 64)).image(rows)
    for i, j in np.ndindex(2, 64):
        assert places(split, (i, j)) == places(rows, (64 * i + j,))
    parts = Reshape((128, 64), (2, 64, 64)).image(matrix)
    for index in np.ndindex(2, 64, 64):
        assert places(parts, index) == places(matrix, (64 * index[0] + index[1], index[2]))

    @tw.kernel
    def regrouped(x: tw.In["M"], y: tw.Out["2 64"]):
        for _ in tw.grid((1,), 1):
            y[0:2, 0:64] = tw.layout(x[0:128], rows, strict=True).reshape(2, 64)

    found = infer(regrouped, tw.ShapeDtype((128,), tw.f32))
    assert same_places(found.layout("reshape"), split, registers=False)


@pytest.mark.parametrize("keep", [True, False])
def test_an_undefined_expression_is_no_answer_and_no_crash(keep: bool) -> None:
    """A row of values per column is spread over a matrix, with or without a dim of size 1; where a view has no image
    the data moves."""
    columns = wgmma_per_column(128)
    wide = Reshape((128,), (1, 128)).image(columns)

    @tw.kernel
    def spread(x: tw.In["M N"], y: tw.Out["64 N"]):
        for _ in tw.grid((1,), 1):
            row = tw.layout(x[0:1, 0:128], wide, strict=True) if keep else tw.layout(x[0, 0:128], columns, strict=True)
            y[0:64, 0:128] = tw.layout(tw.broadcast_to(row, (64, 128)), wgmma_accumulator((64, 128)), strict=True)

    found = infer(spread, tw.ShapeDtype((1, 128), tw.f32))
    assert found.layout("broadcast") == wgmma_accumulator((64, 128))
    assert found.layout("load") == (wide if keep else columns)
    view = Broadcast((1, 128), (64, 128), (0, 1), ("reg",))
    assert same_places(view.preimage(wgmma_accumulator((64, 128))), wide, registers=False)


# ---- random layouts against enumeration ------------------------------------------------------------------------------


def random_layout(generator: random.Random) -> Layout:
    shape = tuple(generator.choice((1, 2, 3, 8, 12, 16)) for _ in range(generator.randrange(1, 4)))
    order = list(range(len(shape)))
    generator.shuffle(order)
    holders = generator.choice([(("lane", 32), ("warp", 4)), (("warp", 2), ("lane", 8)), (("simd", 16),)])
    return dealt(shape, order, holders, generator.choice((1, 2, 4)))


@pytest.mark.parametrize("seed", range(60))
def test_random_layouts_are_viewed_element_by_element(seed: int) -> None:
    """Reduced, cut, stretched and simplified layouts have every element where enumeration says."""
    generator = random.Random(seed)
    layout = random_layout(generator)
    shape = layout.static_shape
    assert same_places(canonical(layout), layout)
    dim = generator.randrange(len(shape))
    left = reduce(layout, [dim])
    for index in np.ndindex(*left.static_shape):
        whole = [(*index[:dim], n, *index[dim:]) for n in range(shape[dim])]
        assert places(left, index) >= {place for at in whole for place in places(layout, at)}
    stretched = broadcast(layout, (5, *shape), range(1, len(shape) + 1))
    for index in np.ndindex(*stretched.static_shape):
        assert places(stretched, index) == places(layout, index[1:])
    start = tuple(generator.randrange(size) for size in shape)
    size = tuple(generator.randrange(1, 1 + whole - at) for whole, at in zip(shape, start, strict=True))
    try:
        part = slice_box(layout, start, size)
    except LayoutError:
        return  # it tears a digit: no layout has it
    for index in np.ndindex(*size):
        assert places(part, index) == places(layout, tuple(i + s for i, s in zip(index, start, strict=True)))


@pytest.mark.parametrize("seed", range(60))
def test_random_conversions_end_where_they_should(seed: int) -> None:
    """A plan between any two layouts of registers exists, ends at the target, and has no steps where none is needed."""
    generator = random.Random(seed)
    first = random_layout(generator)
    shape = first.static_shape
    on = CPU if "simd" in first.axes else GPU
    holders = (("simd", 16),) if on == CPU else (("lane", 32), ("warp", 4))
    second = dealt(shape, list(range(len(shape))), holders, 2)
    plan = plan_relayout(first, second, dtypes.f32, machine(on))
    assert isinstance(plan, Plan)
    assert same_places(plan.layout, second) or not plan.steps
    is_same = same_places(first, second)
    assert is_same == (not plan.steps) or prod(shape) == 1
    again = plan_relayout(second, second, dtypes.f32, machine(on))
    assert isinstance(again, Plan)
    assert not again.steps


def test_squares_are_the_default() -> None:
    """The support's default arrays are what these tests take them for."""
    assert square() == tw.ShapeDtype((64, 64), tw.f32)
