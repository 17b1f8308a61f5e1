"""Composition and inverse, against the enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_oracle import SMALL, add, coordinate_arrays, is_positional, layouts, nested_layouts, places, union, vectors

from tilewright.errors import LayoutError
from tilewright.layout import Dim, Iter, Layout, XorTerm, compose, inverse, line_swizzle, locate, row_major, strided


def composed(outer, inner, axes):
    """Places of `outer` after `inner`: the definition, by looking every coordinate up."""
    inner_axes = list(coordinate_arrays(inner))
    table = places(outer, padded=True)
    result = {}
    for index, found in places(inner).items():
        parts = []
        for place in found:
            at = dict(place)
            rest = frozenset((axis, value) for axis, value in place if axis not in axes)
            parts.append(frozenset(add(rest, far) for far in table[tuple(at.get(axis, 0) for axis in axes)]))
        result[index] = union(parts)
    assert set(axes) <= {*inner_axes, *axes}
    return result


@st.composite
def pairs(draw):
    """An inner layout and an outer one whose dims are large enough for its coordinates."""
    inner = draw(nested_layouts(max_rank=2, negative=True, gaps=draw(st.booleans()), padded=True))
    arrays = coordinate_arrays(inner)
    axes = tuple(draw(st.permutations(sorted(arrays)))[: draw(st.integers(0, 2))])
    shard = []
    for number, axis in enumerate(axes):
        count, digits = int(arrays[axis].max()) + 1, []
        while count > 1:
            extent = draw(st.sampled_from([2, 3, 4, 6, 12, count]))
            digits.insert(
                0, Iter(extent, draw(st.sampled_from([0, 1, 2, 5, -3])), f"out{draw(st.integers(0, number))}")
            )
            count = -(-count // extent)
        shard.append(tuple(digits))
    shape = tuple(int(np.prod([digit.extent for digit in digits], dtype=int)) for digits in shard)
    return Layout(shape, tuple(shard), offset=(("out0", 3),)), inner, axes


@SMALL
@given(pairs())
def test_compose(case):
    outer, inner, axes = case
    try:
        result = compose(outer, inner, axes)
    except LayoutError:
        assume(False)
    assert result.shape == inner.shape
    assert places(result) == composed(outer, inner, axes)


@SMALL
@given(pairs(), st.data())
def test_compose_with_linear_layouts_always_works(case, data):
    """Along an outer dim that is one digit nothing can carry."""
    outer, inner, axes = case
    linear = row_major(outer.shape, "out")
    assert places(compose(linear, inner, axes)) == composed(linear, inner, axes)
    swizzled = linear.with_swizzle(XorTerm("out", 0, 2, 1))
    assert places(compose(swizzled, inner, axes)) == composed(swizzled, inner, axes)


@SMALL
@given(nested_layouts(max_rank=2, copies=False), nested_layouts(max_rank=1, copies=False, own_axes=True))
def test_compose_refuses_only_what_has_no_digits(inner, outer):
    inner = Layout(inner.shape, tuple(tuple(Iter(d.extent, d.stride, "row") for d in own) for own in inner.shard))
    assume(outer.rank == 1)
    assume(coordinate_arrays(inner).get("row", np.zeros(1)).max() < outer.shape[0])
    table = {index: next(iter(found)) for index, found in composed(outer, inner, ("row",)).items()}
    if is_positional(table, inner.shape):
        assert vectors(compose(outer, inner, ("row",))) == table
    else:
        with pytest.raises(LayoutError):
            compose(outer, inner, ("row",))


def test_compose_carries_copies_and_partials():
    inner = Layout.parse("(4) : [4@lane] + replica[2@lane*4] + partial[add 2@lane*8] + offset[warp=1]")
    outer = Layout.parse("(16) : [2@mem*100 8@mem] + replica[2@bank]")
    result = compose(outer, inner, ("lane",))
    assert result == Layout.parse("(4) : [4@mem] + replica[2@mem*4 2@bank] + partial[add 2@mem*100] + offset[warp=1]")


def test_compose_with_unknown_sizes():
    rows, start = Dim(1, 64, name="M"), Dim(0, 3, name="j")
    inner = Layout((rows,), ((Iter(rows, 1, "row"),),))
    assert compose(row_major((64,)), inner, ("row",)) == row_major((rows,))
    moved = Layout((16,), ((Iter(16, 1, "row"),),), offset=(("row", start * 16),))
    outer = Layout.parse("(64) : [2@warp 2@lane*8 16@mem]")
    result = compose(outer, moved, ("row",))
    for value in range(4):
        static = moved.bind({start: value})
        assert places(result.bind({start: value})) == composed(outer, static, ("row",))


@SMALL
@given(nested_layouts(negative=True, padded=True))
def test_inverse_leads_back(layout):
    axes = tuple(sorted(layout.axes))
    back = inverse(layout, axes)
    arrays = coordinate_arrays(layout)
    assert back.shape == tuple(values.max() - values.min() + 1 for values in (arrays[axis] for axis in axes))
    indices = coordinate_arrays(back)
    for index in np.ndindex(*layout.shape):
        for copy in range(next(iter(arrays.values())).shape[-1] if arrays else 0):
            at = tuple(int(arrays[axis][index][copy] - arrays[axis].min()) for axis in axes)
            found = [int(indices[f"dim{dim}"][at][0]) if f"dim{dim}" in indices else 0 for dim in range(layout.rank)]
            assert tuple(found) == index


@SMALL
@given(nested_layouts(copies=False, gaps=False))
def test_inverse_then_layout_is_the_identity(layout):
    """Two independent operations: composing a layout with its inverse counts each dim along its own axis."""
    back = inverse(layout)
    identity = compose(back, layout, layout.axes)
    expected = {index: frozenset((f"dim{dim}", at) for dim, at in enumerate(index) if at) for index in layout.indices()}
    assert vectors(identity) == expected


@SMALL
@given(nested_layouts(negative=True, padded=True), st.sampled_from([[], [(0, 2, 2)], [(0, 2, 2), (3, 0, 1)]]))
def test_locate_finds_exactly_the_elements(layout, swizzle):
    layout = layout.with_swizzle(*(XorTerm("mem", *bits) for bits in swizzle))
    owners = {place: index for index, found in places(layout).items() for place in found}
    arrays = coordinate_arrays(layout)
    near = {axis: range(int(values.min()) - 1, int(values.max()) + 2) for axis, values in arrays.items()}
    sample = [frozenset()] if not near else []
    for axis, values in near.items():
        sample.extend(frozenset({(axis, value)} if value else ()) for value in values)
    for place in {*list(owners)[::5], *sample}:
        assert locate(layout, dict(place)) == owners.get(place)


def test_locate_refuses_other_axes():
    assert locate(row_major((4,)), {"mem": 3}) == (3,)
    assert locate(row_major((4,)), {"mem": 3, "lane": 0}) == (3,)
    assert locate(row_major((4,)), {"mem": 3, "lane": 1}) is None


def test_inverse_of_unknown_sizes():
    rows = Dim(1, 64, name="M")
    back = inverse(row_major((rows, 8)))
    assert back.shape == (rows * 8,)
    assert back.bind({rows: 5}) == inverse(row_major((5, 8)))


@SMALL
@given(layouts())
def test_inverse_refuses_what_two_elements_share(layout):
    owners = {}
    for index, found in places(layout, padded=True).items():
        for place in found:
            owners.setdefault(place, set()).add(index)
    if all(len(indices) == 1 for indices in owners.values()):
        return
    with pytest.raises(LayoutError):
        inverse(Layout(layout.shape, layout.shard, layout.replica, layout.partial, layout.offset))


@pytest.mark.parametrize(
    "make",
    [
        lambda: compose(row_major((4, 4)), row_major((4,), "lane"), ("lane",)),
        lambda: compose(row_major((4, 4)), row_major((4,), "lane"), ("lane", "lane")),
        lambda: compose(row_major((4,)), row_major((8,), "lane"), ("lane",)),
        lambda: compose(row_major((4,)), strided((2,), (-1,), "lane"), ("lane",)),
        lambda: compose(row_major((4,)), Layout.parse("(4) : [4@lane] + offset[lane=1]"), ("lane",)),
        lambda: compose(row_major((4,)), Layout.parse("(4, 4) : [4@lane | 4@mem]"), ("lane",)),
        lambda: compose(row_major((64,)), row_major((64,), "row").with_swizzle(line_swizzle(32, 8, "row")), ("row",)),
        lambda: compose(Layout.parse("(16) : [2@warp 8@lane]"), strided((3,), (6,), "row"), ("row",)),
        lambda: compose(Layout.parse("(16) : [2@warp 8@lane]"), Layout.parse("(3, 3) : [3@row*5 | 3@row]"), ("row",)),
        lambda: compose(strided((2,), (0,)), Layout.parse("() : [] + partial[add 2@row]"), ("row",)),
        lambda: inverse(row_major((8,)).with_swizzle(XorTerm("mem", 0, 1, 1))),
        lambda: inverse(row_major((8, 2)), ("lane",)),
        lambda: inverse(strided((3, 2), (2, 7))),
        lambda: inverse(strided((4, 2), (1, 0))),
        lambda: inverse(strided((4, 4), (1, 3))),
        lambda: locate(row_major((Dim(1, 4),)), {"mem": 0}),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
