"""Equality, injectivity and contiguity against the enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_oracle import AXES, ITERS, SMALL, add, coordinate_arrays, layouts, nested_layouts, places, vectors

from tilewright.errors import LayoutError
from tilewright.layout import (
    Dim,
    Iter,
    Layout,
    Partial,
    Replica,
    XorTerm,
    alignment,
    contiguous_run,
    is_contiguous,
    is_injective,
    line_swizzle,
    panels,
    row_major,
    same_map,
    strided,
)
from tilewright.layout.queries import has_copies


@SMALL
@given(layouts(max_rank=2), st.data())
def test_same_map_of_near_copies(layout, data):
    """Change one thing at random: `same_map` says what comparing all places says."""
    kind = data.draw(st.sampled_from(["digit", "replica", "offset", "swizzle", "padding"]))
    shard, replica, swizzle = [list(digits) for digits in layout.shard], list(layout.replica), list(layout.swizzle)
    offset = dict(layout.offset)
    if kind == "digit" and layout.iters:
        dim = data.draw(st.sampled_from([dim for dim, digits in enumerate(shard) if digits]))
        at = data.draw(st.integers(0, len(shard[dim]) - 1))
        new = data.draw(ITERS)
        shard[dim][at] = Iter(shard[dim][at].extent, new.stride, new.axis)
    elif kind == "replica":
        replica.insert(0, Replica(data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 2, -1])), "lane"))
    elif kind == "offset":
        offset["mem"] = offset.get("mem", 0) + data.draw(st.integers(0, 1))
    elif kind == "swizzle":
        swizzle.append(XorTerm("mem", 0, data.draw(st.integers(1, 5)), 1))
    elif shard and shard[0]:
        shard[0][0] = Iter(shard[0][0].extent + 1, shard[0][0].stride, shard[0][0].axis)
    other = Layout(
        layout.shape, tuple(map(tuple, shard)), tuple(replica), layout.partial, tuple(offset.items()), tuple(swizzle)
    )
    assert same_map(layout, other) == (places(layout) == places(other))


@SMALL
@given(
    st.lists(st.builds(Replica, st.integers(1, 4), st.sampled_from([1, 2, 3, 4, -2]), st.just("lane")), max_size=3),
    st.lists(st.builds(Replica, st.integers(1, 4), st.sampled_from([1, 2, 3, 4, -2]), st.just("lane")), max_size=3),
)
def test_same_map_compares_copies_as_sets(left, right):
    one, other = Layout((), (), tuple(left)), Layout((), (), tuple(right))
    assert same_map(one, other) == (places(one) == places(other))


def test_copies_that_overlap_are_one_set():
    thrice = Layout((), (), (Replica(3, 1, "lane"),))
    assert same_map(thrice, Layout((), (), (Replica(2, 1, "lane"), Replica(2, 1, "lane"))))
    assert not same_map(thrice, Layout((), (), (Replica(2, 1, "lane"), Replica(2, 2, "lane"))))


def test_same_map_compares_partials_and_shapes():
    shard = ((Iter(4, 1, "mem"),),)
    terms = Layout((4,), shard, partial=(Partial(2, 1, "lane", "add"),))
    assert same_map(terms, Layout((4,), shard, partial=(Partial(2, -1, "lane", "add"),), offset=(("lane", 1),)))
    assert not same_map(terms, Layout((4,), shard, partial=(Partial(2, 1, "lane", "maximum"),)))
    assert not same_map(terms, Layout((4,), shard, replica=(Replica(2, 1, "lane"),)))
    assert not same_map(terms, Layout((4,), shard))
    assert not same_map(row_major((4, 1)), row_major((4,)))


def test_same_map_with_unknown_sizes():
    rows = Dim(1, 100, name="M")
    assert same_map(
        row_major((rows, 8)), Layout.parse("(M, 8) : [((M+3)//4)@mem*32 4@mem*8 | 8@mem] where M in 1..100")
    )
    assert not same_map(row_major((rows, 8)), strided((rows, 8), (9, 1)))


@SMALL
@given(layouts(max_rank=2))
def test_is_injective(layout):
    table = places(layout)
    owners = {}
    for index, found in table.items():
        for place in found:
            owners.setdefault(place, set()).add(index)
    assert is_injective(layout) == all(len(indices) == 1 for indices in owners.values())


@SMALL
@given(nested_layouts(padded=True, negative=True))
def test_nested_layouts_are_injective(layout):
    assert is_injective(layout)
    assert not is_injective(Layout((*layout.shape, 2), (*layout.shard, (Iter(2, 0, "mem"),))))


def test_injectivity_of_strides_that_interleave():
    assert is_injective(strided((3, 2), (2, 7)))
    assert is_injective(strided((3, 2), (2, 3)))
    assert not is_injective(strided((4, 2), (2, 6)))
    assert is_injective(strided((3, 2, 4), (2, 3, 100)))
    assert is_injective(Layout.parse("(5) : [2@mem 4@mem]")) is False
    assert not is_injective(strided((3, 2, 2), (1, 3, 4)))
    # Only padding meets: the element after the third of the second dim, or those after the fifth.
    assert is_injective(Layout.parse("(2, 3) : [2@mem*3 | 4@mem]"))
    assert is_injective(Layout.parse("(5) : [2@mem*-2 4@mem]"))


def test_injectivity_with_unknown_sizes():
    rows = Dim(1, 100, name="M")
    assert is_injective(row_major((rows, 8)))
    assert not is_injective(strided((rows, 8), (7, 1)))
    assert is_injective(strided((Dim(1, 8), 4), (1, 8)))


@SMALL
@given(layouts(max_rank=2), st.sampled_from(AXES))
def test_is_contiguous(layout, axis):
    table = list(vectors(Layout(layout.shape, layout.shard, offset=layout.offset, swizzle=layout.swizzle)).values())
    step = frozenset({(axis, 1)})
    expected = all(add(before, step) == after for before, after in itertools.pairwise(table))
    assert is_contiguous(layout, axis) == expected


def test_contiguous_examples():
    rows = Dim(1, 100, name="M")
    assert is_contiguous(row_major((rows, 8)), "mem")
    assert is_contiguous(row_major((1, rows, 8)).with_offset({"mem": 3}), "mem")
    assert not is_contiguous(row_major((rows, 8)), "lane")
    assert not is_contiguous(strided((8, rows), (100, 1)), "mem")
    assert is_contiguous(Layout.parse("(2, 3) : [2@mem*3 | 2@mem*2 2@mem]"), "mem")
    assert not is_contiguous(row_major((8, 64)).with_swizzle(line_swizzle(128, 2)), "mem")


def runs(layout, axis, dim, length):
    """Whether aligned blocks of `length` padded indices along `dim` are consecutive on `axis` and still elsewhere."""
    for name, values in coordinate_arrays(layout).items():
        lines = np.moveaxis(values, dim, -1)
        lines = lines.reshape(*lines.shape[:-1], -1, length)
        wanted = 1 if name == axis else 0
        if (np.diff(lines, axis=-1) != wanted).any():
            return False
    return axis in coordinate_arrays(layout) or length == 1


@SMALL
@given(layouts(swizzled=False), st.sampled_from(AXES), st.data())
def test_contiguous_run_is_the_longest(layout, axis, data):
    if not layout.rank:
        return
    dim = data.draw(st.integers(0, layout.rank - 1))
    run, size = contiguous_run(layout, axis, dim), layout.padded_shape[dim]
    lengths = [n for n in range(1, size + 1) if size % n == 0]
    assert run == max(n for n in lengths if runs(layout, axis, dim, n))


@SMALL
@given(nested_layouts(max_rank=2, gaps=False), st.permutations([0, 1, 2, 3, 5]), st.integers(0, 8))
def test_contiguous_run_under_swizzle_holds(layout, bits, offset):
    layout = layout.with_offset({"mem": offset}).with_swizzle(XorTerm("mem", bits[0], bits[1], 1))
    for dim in range(layout.rank):
        assert runs(layout, "mem", dim, contiguous_run(layout, "mem", dim))


def test_contiguous_run_of_swizzled_lines():
    """The 128-byte swizzle moves whole 16-byte chunks: 8 elements of 2 bytes."""
    layout = row_major((64, 64)).with_swizzle(line_swizzle(128, 2))
    assert contiguous_run(layout, "mem") == 8
    assert runs(layout, "mem", 1, 8)
    assert not runs(layout, "mem", 1, 16)
    assert contiguous_run(layout.with_offset({"mem": 4}), "mem") == 4


@SMALL
@given(layouts(swizzled=False), st.sampled_from(AXES), st.data())
def test_alignment_divides_the_first_of_each_run(layout, axis, data):
    if not layout.rank or axis not in layout.axes:
        return
    dim = data.draw(st.integers(0, layout.rank - 1))
    run, known = contiguous_run(layout, axis, dim), alignment(layout, axis, dim)
    if run == 1:
        return
    values = np.moveaxis(coordinate_arrays(layout)[axis], dim, -1)[..., ::run]
    assert known == np.gcd.reduce(np.abs(values), axis=None)


def test_packed_panels_load_as_whole_vectors():
    layout = panels((512, 100), 1, 16)
    assert contiguous_run(layout, "mem") == 16
    assert alignment(layout, "mem") == 16
    assert contiguous_run(layout, "mem", 0) == 1


def test_runs_of_unknown_sizes_use_the_known_divisor():
    assert contiguous_run(row_major((Dim(16, 64, multiple_of=16),)), "mem") == 16
    assert contiguous_run(row_major((Dim(1, 64),)), "mem") == 1


def test_a_missing_dim_is_a_layout_error():
    with pytest.raises(LayoutError):
        contiguous_run(row_major((4, 4)), "mem", 2)
    with pytest.raises(LayoutError):
        alignment(row_major(()), "mem")


@pytest.mark.parametrize(
    ("text", "axis", "count", "expected"),
    [
        ("(64) : [2@warp 32@lane]", "lane", 32, False),
        ("(64) : [2@warp 32@lane]", "warp", 2, False),
        ("(64) : [2@warp 32@lane]", "warp", 4, True),
        ("(8, 16) : [8@lane*4 | 4@lane 4@reg]", "lane", 32, False),
        ("(8, 16) : [8@lane*4 | 4@lane 4@reg]", "warp", 1, False),
        ("(128) : [2@reg*2 4@warp 2@reg 8@lane*4] + replica[4@lane]", "lane", 32, True),
        ("(16) : [16@reg]", "lane", 32, True),
    ],
)
def test_copies_along_an_axis(text, axis, count, expected):
    """Several of the places along an axis have an element, if there are more places than elements are dealt to."""
    layout = Layout.parse(text)
    assert has_copies(layout, axis, count) == expected
    dealt = {layout.coordinates(index).get(axis, 0) for index in np.ndindex(*layout.shape)}
    assert expected == (len(dealt) < count)
