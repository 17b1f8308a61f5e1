"""Layouts follow from each other through operations that move nothing, forwards and backwards."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from conformance_support import CPU, GPU, PAIRS, infer, machine, places, same_places, square

import tilewright as tw
from tilewright.errors import LayoutError
from tilewright.layout import Layout, row_major
from tilewright.layout.catalogue import (
    height_sharded,
    packed_panels_b,
    shared_matrix,
    tcgen05_registers,
    tensor_memory_accumulator,
    wgmma_accumulator,
    wgmma_per_column,
    wgmma_per_row,
    width_sharded,
)
from tilewright.layout.views import Broadcast, Reduce, Reshape, Transpose
from tilewright.passes.layouts.layout_costs import FlowCost
from tilewright.passes.layouts.layout_rules import Folded, Part, Spread, Window

# One layout of each kind of place: registers of warps and of vectors, shared memory, panels, tensor memory, cores.
KINDS = {
    "fragment": wgmma_accumulator((64, 64)),
    "vectors": Layout.parse("(64, 64) : [4@reg 16@simd | 64@reg*4]"),
    "shared": shared_matrix((64, 64), 16, 128),
    "panels": packed_panels_b((64, 64), 16),
    "tensor memory": tensor_memory_accumulator((128, 64)),
    "rows of tensor memory": tcgen05_registers((128, 64), "32x32b"),
    "cores": height_sharded((64, 64), 8, (1, 8)),
}
EACH = pytest.mark.parametrize("layout", KINDS.values(), ids=KINDS)


def check(image: Layout, source: Layout, index_of: Any) -> None:
    """Every element of the image is where the element of the source is that it comes from."""
    for index in np.ndindex(*image.static_shape):
        assert places(image, index) == places(source, index_of(index)), index


@EACH
def test_a_transpose_renames_dims_and_back(layout: Layout) -> None:
    """The image of a transpose has each element where it was; its preimage undoes it."""
    view = Transpose((1, 0))
    check(view.image(layout), layout, lambda i: (i[1], i[0]))
    assert view.preimage(view.image(layout)) == layout


@EACH
@pytest.mark.parametrize("shape", [(8, 8, 64), (64, 4, 16), (2, 32, 8, 8), (4096,)])
def test_a_reshape_regroups_the_same_elements(layout: Layout, shape: tuple[int, ...]) -> None:
    """A reshape keeps elements in their order, and undoes itself."""
    rows, columns = layout.static_shape
    target = (*shape[:-1], shape[-1] * (rows // 64)) if len(shape) == 1 else (shape[0] * (rows // 64), *shape[1:])
    view = Reshape((rows, columns), target)
    image = view.image(layout)
    check(image, layout, lambda i: tuple(map(int, np.unravel_index(np.ravel_multi_index(i, target), (rows, columns)))))
    assert same_places(view.preimage(image), layout)


def test_a_reshape_that_tears_a_digit_has_no_image() -> None:
    """Where a digit would lie in two dims there is no layout that has not moved anything, and it says so."""
    layout = Layout.parse("(48) : [3@warp 16@lane]")
    check(Reshape((48,), (3, 16)).image(layout), layout, lambda i: (16 * i[0] + i[1],))
    with pytest.raises(LayoutError, match="digit"):
        Reshape((48,), (16, 3)).image(layout)


@EACH
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_a_reduction_leaves_its_result_with_all_who_took_part(layout: Layout, dims: tuple[int, ...]) -> None:
    """What is left of a reduction is at every place that held a part, registers of one thread apart."""
    image = Folded(Reduce(layout.static_shape, dims, ("reg",))).image(layout)
    kept = [dim for dim in range(2) if dim not in dims]
    expected: dict[tuple[int, ...], set[Any]] = {}
    for index in np.ndindex(*layout.static_shape):
        at = expected.setdefault(tuple(index[dim] for dim in kept), set())
        at |= places(layout, index, registers=False)
    for index, where in expected.items():
        assert places(image, index, registers=False) == where


@pytest.mark.parametrize("dim", [0, 1])
def test_a_reduction_and_a_broadcast_undo_each_other(dim: int) -> None:
    """Broadcasting what a reduction leaves can give the layout that was reduced: nothing moves in between."""
    for layout in (KINDS["fragment"], KINDS["rows of tensor memory"], KINDS["vectors"]):
        shape = layout.static_shape
        left = Folded(Reduce(shape, (dim,), ("reg",))).image(layout)
        back = Spread(Broadcast(left.shape, shape, (1 - dim,), ("reg",)))
        assert same_places(back.preimage(layout), left, registers=False)


@pytest.mark.parametrize(
    ("one", "many", "dim"),
    [
        (wgmma_per_row(64), wgmma_accumulator((64, 64)), 0),
        (wgmma_per_column(64), wgmma_accumulator((64, 64)), 1),
        (Layout.parse("(64) : [4@reg 16@simd]"), Layout.parse("(64, 64) : [64@reg*4 | 4@reg 16@simd]"), 1),
    ],
)
def test_a_value_that_is_where_its_repetitions_are_is_spread_for_nothing(one: Layout, many: Layout, dim: int) -> None:
    """A value per row or column that each holder of the matrix has already costs nothing to broadcast."""
    on = CPU if "simd" in one.axes else GPU
    view = Spread(Broadcast((64,), (64, 64), (dim,), ("reg",)))
    cost = FlowCost(tw.f32, machine(on), 1, view, None, ((64,), (64, 64)))
    assert cost(one, many) == 0
    assert cost.keeps(one, many)
    elsewhere = Layout.parse("(64) : [64@reg]") if on == CPU else Layout.parse("(64) : [32@lane 2@reg]")
    assert not cost.keeps(elsewhere, many)


@pytest.mark.parametrize("keep", [False, True])
def test_dims_of_size_one_do_not_matter(keep: bool) -> None:
    """A kept dim of size 1 is a reshape of the same layout, and a broadcast stretches it."""
    source = wgmma_per_row(64)
    stretched = Reshape((64,), (64, 1)).image(source)
    check(stretched, source, lambda i: i[:1])
    target = KINDS["fragment"]
    view = Broadcast((64, 1), (64, 64), (0, 1), ("reg",)) if keep else Broadcast((64,), (64, 64), (0,), ("reg",))
    found = view.preimage(target)
    assert same_places(found, stretched if keep else source, registers=False)


def test_views_of_views_are_views() -> None:
    """Nested expressions have the value that their parts have in turn."""
    layout = KINDS["fragment"]
    turned = Transpose((1, 0)).image(layout)
    parts = Reshape((64, 64), (64, 4, 16)).image(turned)
    left = Folded(Reduce((64, 4, 16), (1,), ("reg",))).image(parts)
    for i, k in product(range(64), range(16)):
        expected = {place for m in range(4) for place in places(layout, (16 * m + k, i), registers=False)}
        assert places(left, (i, k), registers=False) == expected


@pytest.mark.parametrize(("start", "size"), [(0, 8), (8, 8), (0, 32), (32, 32)])
def test_a_box_and_what_it_is_cut_from(start: int, size: int) -> None:
    """The image of a box is found on the whole; of a box alone a whole is found that has it."""
    whole = KINDS["fragment"]
    window = Window((64, 64), (0, start), (64, size))
    check(window.image(whole), whole, lambda i: (i[0], i[1] + start))
    box = wgmma_accumulator((64, size))
    found = window.preimage(box)
    check(window.image(found), found, lambda i: (i[0], i[1] + start))
    assert same_places(window.image(found), box, registers=False)
    assert Part(window).image(box) == found


def test_boxes_that_tear_digits_have_no_image() -> None:
    """A box that is not aligned with the digits is in no layout of its own: data has to move."""
    with pytest.raises(LayoutError, match="unaligned"):
        Window((64, 64), (4, 0), (8, 64)).image(KINDS["fragment"])
    with pytest.raises(LayoutError, match="start from the whole"):
        Window((64, 64), (0, 4), (64, 8)).preimage(wgmma_accumulator((64, 8)))
    with pytest.raises(LayoutError, match="start from the whole"):
        Window((64, 64), (0, 0), (64, 16)).preimage(row_major((64, 16)))


# ---- through kernels, from either end --------------------------------------------------------------------------------


@tw.kernel
def turned(x: tw.In["M N"], y: tw.Out["N M"], *, pin, end: int):
    for i, j in tw.grid(x, (64, 64)):
        t = tw.layout(x[i, j], pin, strict=True) if end == 0 else x[i, j]
        u = t.T
        y[j, i] = tw.layout(u, pin, strict=True) if end == 1 else u


@tw.kernel
def regrouped(x: tw.In["M N"], y: tw.Out["8 8 64"], *, pin, end: int):
    for _ in tw.grid((1,), 1):
        t = tw.layout(x[0:64, 0:64], pin, strict=True) if end == 0 else x[0:64, 0:64]
        u = t.reshape(8, 8, 64)
        y[0:8, 0:8, 0:64] = tw.layout(u, pin, strict=True) if end == 1 else u


@tw.kernel
def summed(x: tw.In["M N"], y: tw.Out["M"], *, pin, end: int):
    for i in tw.grid(y, 64):
        t = tw.layout(x[i, :], pin, strict=True) if end == 0 else x[i, :]
        u = tw.sum(t, axis=1)
        y[i] = tw.layout(u, pin, strict=True) if end == 1 else u


@tw.kernel
def spread(x: tw.In["N"], y: tw.Out["64 N"], *, pin, end: int):
    for i, j in tw.grid(y, (64, 64)):
        t = tw.layout(x[j], pin, strict=True) if end == 0 else x[j]
        u = tw.broadcast_to(t, (64, 64))
        y[i, j] = tw.layout(u, pin, strict=True) if end == 1 else u


@tw.kernel
def cut(x: tw.In["M N"], y: tw.Out["M 16"], *, pin, end: int):
    for _ in tw.grid((1,), 1):
        t = tw.layout(x[0:64, 0:64], pin, strict=True) if end == 0 else x[0:64, 0:64]
        u = t[:, 16:32]
        y[0:64, 0:16] = tw.layout(u, pin, strict=True) if end == 1 else u


@tw.kernel
def joined(x: tw.In["M N"], y: tw.Out["M 128"], *, pin, end: int):
    for _ in tw.grid((1,), 1):
        t = tw.layout(x[0:64, 0:64], pin, strict=True) if end == 0 else x[0:64, 0:64]
        u = tw.concat([t, x[0:64, 0:64] + 1], axis=1)
        y[0:64, 0:128] = tw.layout(u, pin, strict=True) if end == 1 else u


CASES: dict[str, Any] = {
    "turned": (turned, square(), "transpose"),
    "regrouped": (regrouped, square(), "reshape"),
    "summed": (summed, square(), "reduce"),
    "spread": (spread, tw.ShapeDtype((64,), tw.f32), "broadcast"),
    "cut": (cut, square(), "slice"),
    "joined": (joined, square(), "concat"),
}
INDEX_OF = {
    "turned": lambda i: (i[1], i[0]),
    "regrouped": lambda i: (8 * i[0] + i[1], i[2]),
    "spread": lambda i: (i[1],),
    "cut": lambda i: (i[0], i[1] + 16),
}
AT_THE_END = {
    GPU: {
        "turned": wgmma_accumulator((64, 64)),
        "regrouped": "(8, 8, 64) : [4@warp 2@reg*2 | 8@lane*4 | 8@reg*4 4@lane 2@reg]",
        "summed": wgmma_per_row(64),
        "spread": wgmma_accumulator((64, 64)),
        "cut": wgmma_accumulator((64, 16)),
        "joined": wgmma_accumulator((64, 128)),
    },
    CPU: {
        "turned": PAIRS[CPU][0],
        "regrouped": "(8, 8, 64) : [8@reg*32 | 8@reg*4 | 4@reg 16@simd]",
        "summed": "(64) : [4@reg 16@simd]",
        "spread": PAIRS[CPU][1],
        "cut": "(64, 16) : [64@reg | 16@simd]",
        "joined": "(64, 128) : [64@reg*8 | 8@reg 16@simd]",
    },
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("on", [GPU, CPU])
@pytest.mark.parametrize("end", [0, 1])
def test_what_is_known_on_one_side_gives_the_other(name: str, on: str, end: int) -> None:
    """A layout that is demanded of an operation's input determines its output, and the other way round."""
    kernel, type, operation = CASES[name]
    pin = AT_THE_END[on][name] if end else PAIRS[on][0]
    if name == "regrouped" and not end:
        pin = PAIRS[on][1]
    if name == "spread" and not end:
        pin = {GPU: tw.layouts.wgmma_per_column(64), CPU: "(64) : [4@reg 16@simd]"}[on]
    found = infer(kernel, type, on=on, pin=pin, end=end)
    before = found.layout("load")
    after = found.layout(operation)
    if end:
        assert after == (pin if isinstance(pin, Layout) else Layout.parse(pin))
    else:
        assert before == (pin if isinstance(pin, Layout) else Layout.parse(pin))
    if name == "summed":
        assert all(
            places(after, (i,), registers=False)
            == {place for j in range(64) for place in places(before, (i, j), registers=False)}
            for i in range(64)
        )
    elif name == "joined":
        assert all(places(after, i, registers=False) == places(before, i, registers=False) for i in np.ndindex(64, 64))
    else:
        for index in np.ndindex(*after.static_shape):
            assert places(after, index, registers=False) <= places(before, INDEX_OF[name](index), registers=False)


@pytest.mark.parametrize("on", [GPU, CPU])
def test_reducing_a_dim_that_is_in_one_place_keeps_the_others_where_they_are(on: str) -> None:
    """A dim that only registers of one thread hold is reduced without any traffic."""

    @tw.kernel
    def rows(x: tw.In["M N"], y: tw.Out["M"], *, pin):
        for i in tw.grid(y, 64):
            y[i] = tw.sum(tw.layout(x[i, :], pin, strict=True), axis=1)

    pin = {GPU: "(64, 64) : [2@warp 32@lane | 64@reg]", CPU: "(64, 64) : [4@reg 16@simd | 64@reg*4]"}[on]
    left = infer(rows, on=on, pin=pin).layout("reduce")
    assert not left.replica
    assert not left.partial
    pinned = Layout.parse(pin)
    assert all(places(left, (i,), registers=False) == places(pinned, (i, 0), registers=False) for i in range(64))


def test_shards_of_cores_turn_with_the_array() -> None:
    """Rows on cores become columns on cores: no message is sent for a transpose."""
    rows, columns = height_sharded((64, 64), 8, (1, 8)), width_sharded((64, 64), 8, (1, 8))
    turned_rows = Transpose((1, 0)).image(rows)
    assert all(
        {(a, n) for place in places(turned_rows, i) for a, n in place if a.startswith("core")}
        == {(a, n) for place in places(columns, i) for a, n in place if a.startswith("core")}
        for i in np.ndindex(64, 64)
    )
