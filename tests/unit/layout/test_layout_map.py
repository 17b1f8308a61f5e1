"""What a layout maps an index to, against the enumeration."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_oracle import SMALL, coordinate_arrays, layouts, places, vectors

from tilewright.errors import IndexError_, LayoutError
from tilewright.layout import Dim, Iter, Layout, Partial, Replica, XorTerm, row_major


def named(layout, place):
    return frozenset(pair for pair in zip(layout.axes, place, strict=True) if pair[1])


@SMALL
@given(layouts())
def test_places_and_first_copies(layout):
    for index, expected in places(layout, padded=True).items():
        assert {named(layout, place) for place in layout.places(index)} == expected
    for index, expected in vectors(layout).items():
        assert frozenset(pair for pair in layout.coordinates(index).items() if pair[1]) == expected


@SMALL
@given(layouts())
def test_shapes_and_axes(layout):
    arrays = coordinate_arrays(layout)
    named_axes = [part.axis for part in (*layout.iters, *layout.replica, *layout.partial)]
    assert set(layout.axes) == set(arrays)
    assert list(layout.axes) == list(dict.fromkeys([*named_axes, *(axis for axis, _ in layout.offset)]))
    assert layout.size == np.prod(layout.shape)
    for values in arrays.values():
        assert values.shape[:-1] == layout.padded_shape
    assert list(layout.indices()) == list(np.ndindex(*layout.shape))


@SMALL
@given(layouts(swizzled=False))
def test_linear_terms_sum_to_the_coordinate(layout):
    for axis, values in coordinate_arrays(layout).items():
        for index in np.ndindex(*layout.padded_shape):
            total = dict(layout.offset).get(axis, 0)
            for dim, divisor, modulus, stride in layout.linear_terms(axis):
                digit = index[dim] // divisor
                total += stride * (digit if modulus is None else digit % modulus)
            assert total == values[index][0]


def test_linear_terms_are_as_few_as_possible():
    layout = Layout.parse("(4, 8) : [2@mem*16 2@mem*8 | 4@mem*2 2@mem]")
    assert layout.linear_terms("mem") == [(0, 1, None, 8), (1, 1, None, 1)]
    assert layout.linear_terms("lane") == []
    split = Layout.parse("(4, 8) : [2@mem*4 2@lane | 4@mem*8 2@mem]")
    assert split.linear_terms("mem") == [(0, 2, None, 4), (1, 2, None, 8), (1, 1, 2, 1)]


@SMALL
@given(layouts(swizzled=False))
def test_span_is_exact_without_swizzle(layout):
    for axis, values in coordinate_arrays(layout).items():
        assert layout.reach(axis) == (values.min(), values.max())
        assert layout.span(axis) == values.max() - values.min() + 1 == layout.axis_extents()[axis]


@SMALL
@given(layouts())
def test_swizzled_coordinates_stay_within_reach(layout):
    for axis, values in coordinate_arrays(layout).items():
        low, high = layout.reach(axis)
        assert low <= values.min()
        assert values.max() <= high


def test_span_of_whole_swizzled_blocks_is_exact():
    layout = row_major((8, 64)).with_swizzle(XorTerm("mem", 3, 6, 3))
    assert layout.span("mem") == 512
    assert row_major((1, 64)).with_swizzle(XorTerm("mem", 3, 6, 3)).span("mem") == 64


@SMALL
@given(st.integers(1, 40), st.integers(0, 3))
def test_binding_a_dim_gives_the_static_layout(m, j):
    rows, start = Dim(1, 40, name="M"), Dim(0, 3, name="j")
    layout = Layout(
        (rows, 4),
        ((Iter((rows + 7) // 8, 1, "core"), Iter(8, 4, "mem")), (Iter(4, 1, "mem"),)),
        offset=(("mem", start * 32 + 5),),
    )
    bound = layout.bind({rows: m, start: j})
    assert layout.symbols == (rows, start)
    assert not layout.is_static
    assert bound.is_static
    assert bound.shape == (m, 4)
    assert bound.padded_shape == (-(-m // 8) * 8, 4)
    for row, column in np.ndindex(m, 4):
        assert bound.coordinates((row, column)) == {"core": row // 8, "mem": row % 8 * 4 + column + 32 * j + 5}
    assert layout.bind({start: j}).bind({rows: m}) == bound
    assert layout.span("mem") == 32
    assert layout.span("core") == (rows + 7) // 8


def test_equal_layouts_hash_alike():
    one = Layout((4,), ((Iter(4, 1, "mem"),),), offset=(("lane", 1), ("core.x", 2), ("mem", 0)))
    other = Layout([4], [[Iter(4, 1, "mem")]], offset=[("core.x", 2), ("lane", 1)])
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other}) == 1
    assert one != row_major((4,))


def test_a_cached_hash_does_not_travel():
    layout = row_major((4, Dim(8, 8, name="N")))
    hash(layout)
    back = pickle.loads(pickle.dumps(layout))
    assert back == layout
    assert "_hash" in vars(layout)
    assert "_hash" not in vars(back)


def test_empty_and_scalar_shapes():
    assert row_major(()).coordinates(()) == {}
    assert row_major((0, 4)).size == 0
    assert list(row_major((0, 4)).indices()) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: Iter(0, 1, "mem"),
        lambda: Iter(4, 1.0, "mem"),
        lambda: Iter(True, 1, "mem"),
        lambda: Iter("4", 1, "mem"),
        lambda: Iter(4, 1, "Mem"),
        lambda: Iter(4, 1, "core..x"),
        lambda: Iter(4, 1, "_"),
        lambda: Iter(Dim(-1, 3), 1, "mem"),
        lambda: Replica(2, 0, "lane"),
        lambda: Partial(2, 0, "lane", "add"),
        lambda: Partial(2, 1, "lane", "a+b"),
        lambda: XorTerm("mem", 3, 4, 2),
        lambda: XorTerm("mem", 3, 3, 1),
        lambda: XorTerm("mem", -1, 3, 1),
        lambda: XorTerm("mem", 0, 3, 0),
        lambda: XorTerm("mem", 0, 3.0, 1),
        lambda: Layout((4, 4), ((Iter(4, 1, "mem"),),)),
        lambda: Layout((5,), ((Iter(4, 1, "mem"),),)),
        lambda: Layout((-1,), ((),)),
        lambda: Layout(("M",), ((),)),
        lambda: Layout((4,), ((Replica(4, 1, "mem"),),)),
        lambda: Layout((4,), ((Iter(4, 1, "mem"),),), replica=(Iter(2, 1, "lane"),)),
        lambda: Layout((4,), ((Iter(4, 1, "mem"),),), offset=(("mem", 1.5),)),
        lambda: Layout((4,), ((Iter(4, 1, "mem"),),), offset=(("mem", 1), ("mem", 2))),
        lambda: Layout((8,), ((Iter(2, 1, "mem"), Iter(Dim(1, 4), 1, "mem")),)),
        lambda: Layout((Dim(1, 64),), ((Iter(Dim(1, 8), 8, "mem"), Iter(8, 1, "mem")),)),
        lambda: Layout((Dim(1, 9, name="M"), Dim(1, 8, name="M")), ((Iter(9, 8, "mem"),), (Iter(8, 1, "mem"),))),
        lambda: row_major((Dim(1, 8),)).size,
        lambda: row_major((4,)).with_offset({"mem": Dim(0, 8)}).coordinates((0,)),
        lambda: Layout((4,), ((Iter(4, 1, "mem"),),), replica=3),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help


@pytest.mark.parametrize("index", [(8, 0), (0, 4), (-1, 0), (0,), (0, 0, 0)])
def test_an_index_outside_the_padding_is_an_index_error(index):
    layout = Layout((5, 4), ((Iter(2, 16, "mem"), Iter(4, 4, "mem")), (Iter(4, 1, "mem"),)))
    assert layout.coordinates((7, 3)) == {"mem": 31}
    with pytest.raises(IndexError_):
        layout.coordinates(index)
