"""Permute, reshape, reduce and broadcast, and their edges, against the enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_oracle import AXES, SMALL, coordinate_arrays, is_positional, layouts, nested_layouts, places, union, vectors

from tilewright.errors import LayoutError
from tilewright.layout import (
    Broadcast,
    Dim,
    Iter,
    Layout,
    Reduce,
    Replica,
    Reshape,
    Transpose,
    broadcast,
    permute,
    reduce,
    reshape,
    row_major,
    same_map,
)


def shapes_of(size):
    """Shapes with `size` elements, dims of size 1 among them."""

    @st.composite
    def shape(draw):
        dims, left = [], size
        while left > 1:
            dims.append(draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0])))
            left //= dims[-1]
        for _ in range(draw(st.integers(0, 2))):
            dims.insert(draw(st.integers(0, len(dims))), 1)
        return tuple(dims)

    return shape()


@SMALL
@given(layouts(), st.data())
def test_permute(layout, data):
    order = data.draw(st.permutations(range(layout.rank)))
    result = permute(layout, order)
    table = places(layout, padded=True)
    for index, found in places(result, padded=True).items():
        original = [0] * layout.rank
        for position, dim in enumerate(order):
            original[dim] = index[position]
        assert found == table[tuple(original)]
    edge = Transpose(tuple(order))
    assert edge.image(layout) == result
    assert edge.preimage(result) == layout


@SMALL
@given(layouts(padded=False), st.data())
def test_reshape(layout, data):
    shape = data.draw(shapes_of(layout.size))
    try:
        result = reshape(layout, shape)
    except LayoutError:
        assume(False)
    table = places(layout)
    assert result.shape == shape
    for index, found in places(result).items():
        flat = int(np.ravel_multi_index(index, shape)) if shape else 0
        original = np.unravel_index(flat, layout.shape) if layout.shape else ()
        assert found == table[tuple(map(int, original))]


@SMALL
@given(layouts(max_rank=2), st.data())
def test_reshape_with_padding(layout, data):
    shape = data.draw(shapes_of(layout.size))
    try:
        result = reshape(layout, shape)
    except LayoutError:
        assume(False)
    assert list(places(result).values()) == list(places(layout).values())


@SMALL
@given(nested_layouts(max_rank=2, copies=False, own_axes=True), st.data())
def test_reshape_refuses_only_what_has_no_digits(layout, data):
    shape = data.draw(shapes_of(layout.size))
    table = dict(zip(np.ndindex(*shape), vectors(layout).values(), strict=True))
    if is_positional(table, shape):
        assert vectors(reshape(layout, shape)) == table
        edge = Reshape(layout.shape, shape)
        assert same_map(edge.preimage(edge.image(layout)), layout)
    else:
        with pytest.raises(LayoutError):
            reshape(layout, shape)


def test_reduced_digits_become_copies_of_the_asked_kind():
    layout = Layout.parse("(4, 6) : [4@lane | 2@warp 3@mem]")
    assert reduce(layout, [1]) == Layout.parse("(4) : [4@lane] + replica[2@warp 3@mem]")
    assert reduce(layout, [-1], "add") == Layout.parse("(4) : [4@lane] + partial[add 2@warp add 3@mem]")
    assert reduce(layout, [1], "add", keep_dims=True, private_axes=["mem"]) == Layout.parse(
        "(4, 1) : [4@lane | 1] + partial[add 2@warp]"
    )


def test_padding_that_can_be_trimmed_does_not_hinder_a_reshape():
    padded = Layout.parse("(4, 6) : [5@lane | 4@warp 2@mem]")
    assert reshape(padded, (24,)) == Layout.parse("(24) : [5@lane 3@warp 2@mem]")
    assert list(places(reshape(padded, (2, 2, 3, 2))).values()) == list(places(padded).values())


def test_reshape_of_unknown_sizes():
    rows = Dim(1, 100, name="M")
    layout = Layout.parse("(M, 64) : [((M+15)//16)@core 16@mem*64 | 64@mem] where M in 1..100")
    flat = reshape(layout, (rows * 64,))
    assert flat.bind({rows: 37}) == reshape(layout.bind({rows: 37}), (37 * 64,))
    assert same_map(reshape(flat, (rows, 8, 8)), reshape(layout, (rows, 8, 8)))
    assert reshape(layout, (1, rows, 1, 64, 1)).shape == (1, rows, 1, 64, 1)
    with pytest.raises(LayoutError):
        reshape(layout, (64, rows))
    with pytest.raises(LayoutError):
        reshape(row_major((rows * 64,)), (64, rows))


def test_reshape_of_empty_arrays():
    assert reshape(row_major((0, 4)), (2, 0, 3)).shape == (2, 0, 3)
    with pytest.raises(LayoutError):
        reshape(row_major((0, 4)), (2, 3))


@SMALL
@given(layouts(), st.data())
def test_reduce_keeps_all_places(layout, data):
    dims = data.draw(st.sets(st.sampled_from(range(layout.rank)))) if layout.rank else set()
    kept = [dim for dim in range(layout.rank) if dim not in dims]
    table = places(layout, padded=True)
    for op in (None, "add"):
        result = reduce(layout, dims, op)
        wide = reduce(layout, dims, op, keep_dims=True)
        assert (result.replica if op else result.partial) == (layout.replica if op else layout.partial)
        assert result.shape == tuple(layout.shape[dim] for dim in kept)
        assert wide.shape == tuple(1 if dim in dims else size for dim, size in enumerate(layout.shape))
        found, found_wide = places(result), places(wide)
        for index in np.ndindex(*result.shape):
            at = dict(zip(kept, index, strict=True))
            sources = [place for key, place in table.items() if all(key[dim] == value for dim, value in at.items())]
            assert found[index] == union(sources)
            assert found_wide[tuple(at.get(dim, 0) for dim in range(layout.rank))] == union(sources)


@SMALL
@given(nested_layouts(copies=False), st.data())
def test_partials_add_up_to_the_sum(layout, data):
    """Put numbers at the places of `layout`; over the partials of the reduced layout they sum to the reduction."""
    dims = tuple(data.draw(st.sets(st.sampled_from(range(layout.rank))))) if layout.rank else ()
    values = np.arange(1, layout.size + 1).reshape(layout.shape) ** 2
    state = {place: values[index] for index, place in vectors(layout).items()}
    result = reduce(layout, dims, "add")
    assert all(term.op == "add" for term in result.partial)
    expected = values.sum(axis=dims)
    for index, terms in places(result).items():
        assert sum(state[place] for place in terms) == expected[index]


@SMALL
@given(nested_layouts(copies=False), st.data())
def test_reduce_over_private_axes_keeps_one_place(layout, data):
    dims = data.draw(st.sets(st.sampled_from(range(layout.rank)))) if layout.rank else set()
    axis = data.draw(st.sampled_from(AXES))
    result = reduce(layout, dims, private_axes=(axis,))
    assert all(copy.axis != axis for copy in result.replica)
    without = {
        index: {frozenset(p for p in place if p[0] != axis) for place in found}
        for index, found in places(result).items()
    }
    full = {
        index: {frozenset(p for p in place if p[0] != axis) for place in found}
        for index, found in places(reduce(layout, dims)).items()
    }
    assert without == full


@st.composite
def broadcasts(draw, layout):
    """A target shape and dims for a layout: dims of size 1 may stretch, new dims may appear anywhere, in any order."""
    sizes = [draw(st.integers(1, 3)) if size == 1 else size for size in layout.shape]
    rank = layout.rank + draw(st.integers(0, 2))
    dims = draw(st.permutations(range(rank)))[: layout.rank]
    shape = [draw(st.integers(1, 3)) for _ in range(rank)]
    for own, dim in enumerate(dims):
        shape[dim] = sizes[own]
    return tuple(shape), tuple(dims)


@SMALL
@given(layouts(max_rank=2), st.data())
def test_broadcast_repeats_elements(layout, data):
    shape, dims = data.draw(broadcasts(layout))
    result = broadcast(layout, shape, dims)
    table = places(layout)
    assert result.shape == shape
    for index, found in places(result).items():
        at = tuple(0 if layout.shape[own] == 1 else index[dim] for own, dim in enumerate(dims))
        assert found == table[at]
    edge = Broadcast(layout.shape, shape, dims)
    assert same_map(edge.preimage(edge.image(layout)), layout)


@SMALL
@given(nested_layouts(copies=True), st.data())
def test_preimage_of_broadcast_spreads_back(layout, data):
    """From an output layout to the input's and, over the replicas that this made, back to the same output layout."""
    fresh = sorted(data.draw(st.sets(st.sampled_from(range(layout.rank))))) if layout.rank else []
    kept = tuple(data.draw(st.permutations([dim for dim in range(layout.rank) if dim not in fresh])))
    edge = Broadcast(tuple(layout.shape[dim] for dim in kept), layout.shape, kept)
    source = edge.preimage(layout)
    table, found = places(layout), places(source)
    for index, expected in table.items():
        assert expected <= found[tuple(index[dim] for dim in kept)]
    again = edge.image(source, {dim: layout.shard[dim] for dim in fresh})
    assert places(again) == table


@SMALL
@given(nested_layouts(copies=True), st.data())
def test_preimage_of_reduce(layout, data):
    dims = tuple(sorted(data.draw(st.sets(st.sampled_from(range(layout.rank)))))) if layout.rank else ()
    edge = Reduce(layout.shape, dims, private_axes=("mem",))
    result = edge.image(layout)
    back = edge.preimage(result, {dim: layout.shard[dim] for dim in dims})
    assert places(back) == places(layout)
    assert same_map(edge.image(back), result)


def test_spreading_takes_only_replicas():
    layout = Layout.parse("(4) : [4@lane] + replica[8@lane*4]")
    result = broadcast(layout, (4, 2), (0,), {1: [Iter(2, 8, "lane")]})
    assert result == Layout.parse("(4, 2) : [4@lane | 2@lane*8] + replica[2@lane*4 2@lane*16]")
    for digit in (Iter(2, 1, "lane"), Iter(2, 8, "warp"), Iter(3, 4, "lane"), Iter(2, 6, "lane"), Iter(16, 4, "lane")):
        with pytest.raises(LayoutError, match="not among the replicas"):
            broadcast(layout, (4, digit.extent), (0,), {1: [digit]})


def test_row_sums_of_a_matrix_fragment():
    """The m16n8 accumulator of mma.sync, summed along its rows: four lanes hold each sum (PTX ISA, mma.m16n8k16)."""
    fragment = Layout.parse("(16, 8) : [2@reg*2 8@lane*4 | 4@lane 2@reg]")
    edge = Reduce((16, 8), (1,), private_axes=("reg",))
    sums = edge.image(fragment)
    assert sums.replica == (Replica(4, 1, "lane"),)
    for row in range(16):
        assert {place[sums.axes.index("lane")] for place in sums.places((row,))} == {row % 8 * 4 + k for k in range(4)}
    assert same_map(edge.preimage(sums, {1: fragment.shard[1]}), fragment)


def test_stretching_drops_the_padding_of_a_unit_dim():
    layout = Layout.parse("(4, 1) : [4@mem*8 | 8@mem]")
    result = broadcast(layout, (4, 3), (0, 1))
    assert {index: places(result)[index] for index in [(2, 0), (2, 2)]} == dict.fromkeys(
        [(2, 0), (2, 2)], places(layout)[2, 0]
    )
    assert coordinate_arrays(result)["mem"].max() == 24


@pytest.mark.parametrize(
    "make",
    [
        lambda: permute(row_major((2, 3)), (0,)),
        lambda: permute(row_major((2, 3)), (0, 0)),
        lambda: Transpose((1, 0)).preimage(row_major((2, 3, 4))),
        lambda: reshape(row_major((2, 3)), (5,)),
        lambda: reshape(row_major((2, 3)), (2, 3, 2)),
        lambda: reshape(row_major((4, 6)), (6, 4, 2)),
        lambda: reshape(Layout.parse("(4, 5) : [4@lane | 2@warp 4@mem]"), (20,)),
        lambda: reduce(row_major((2, 3)), (2,)),
        lambda: broadcast(row_major((2, 3)), (2, 3), (0,)),
        lambda: broadcast(row_major((2, 3)), (2, 3), (0, 0)),
        lambda: broadcast(row_major((2, 3)), (2, 4), (0, 1)),
        lambda: broadcast(row_major((2, 3)), (2, 3), (0, 2)),
        lambda: Reshape((4,), (2, 2)).image(row_major((2, 2))),
        lambda: Reduce((4, 2), (1,)).preimage(row_major((2,)), {}),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
