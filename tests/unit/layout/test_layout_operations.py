"""Normal forms, refinement, tiles, slices and renumbering, each against the enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_oracle import (
    AXES,
    SMALL,
    add,
    boxes,
    coordinate_arrays,
    is_positional,
    layouts,
    nested_layouts,
    places,
    vectors,
)

from tilewright.errors import LayoutError
from tilewright.layout import (
    Dim,
    Iter,
    Layout,
    Replica,
    XorTerm,
    blocked,
    canonical,
    ceil_divide,
    compact,
    forget_replicas,
    group_digits,
    line_swizzle,
    permute,
    product,
    row_major,
    same_map,
    slice_box,
    split,
    strided,
    tile,
    trim,
)


@SMALL
@given(layouts())
def test_canonical_keeps_the_padded_map(layout):
    form = canonical(layout)
    assert places(form, padded=True) == places(layout, padded=True)
    assert form.shape == layout.shape
    assert form.padded_shape == layout.padded_shape
    assert canonical(form) == form


@SMALL
@given(layouts(), st.data())
def test_canonical_undoes_refinement(layout, data):
    """Cutting digits, adding digits of extent 1, turning copies around and reordering them does not show."""
    shard = []
    for digits in layout.shard:
        refined = []
        for digit in digits:
            factor = data.draw(st.sampled_from([n for n in range(1, digit.extent + 1) if digit.extent % n == 0]))
            refined.append(Iter(digit.extent // factor, digit.stride * factor, digit.axis))
            refined.append(Iter(factor, digit.stride, digit.axis))
        shard.append((*refined, Iter(1, 7, "lane")))
    turned = [Replica(copy.extent, -copy.stride, copy.axis) for copy in reversed(layout.replica)]
    changed = Layout(layout.shape, tuple(shard), tuple(turned), layout.partial, layout.offset, layout.swizzle)
    for copy in layout.replica:
        changed = changed.with_offset({copy.axis: copy.stride * (copy.extent - 1)})
    assert canonical(changed) == canonical(layout)


@SMALL
@given(st.sampled_from([(12,), (3, 4), (4, 3), (2, 6), (6, 2), (2, 2, 3), (2, 3, 2), (3, 2, 2)]), st.data())
def test_equal_digits_have_equal_canonical_forms(extents, data):
    """Without copies the form decides: equal maps have equal forms, different maps different ones."""
    strides = st.sampled_from([0, 1, 2, 3, 4, 6])
    axes = st.sampled_from(["mem", "mem", "lane"])
    left = Layout((12,), (tuple(Iter(extent, data.draw(strides), data.draw(axes)) for extent in extents),))
    other = data.draw(st.sampled_from([(12,), (3, 4), (2, 6), (2, 2, 3), (2, 3, 2)]))
    weights = [int(np.prod(other[at + 1 :], dtype=int)) for at in range(len(other))]
    table = coordinate_arrays(left)
    # The other digits take the places that their first steps have in the left layout, so that maps are often equal.
    digits = []
    for extent, weight in zip(other, weights, strict=True):
        moves = {axis: int(values[weight][0]) for axis, values in table.items() if values[weight][0]}
        axis, stride = next(iter(moves.items()), ("lane", 0))
        digits.append(Iter(extent, stride, axis))
    right = Layout((12,), (tuple(digits),))
    same = places(left, padded=True) == places(right, padded=True)
    assert (canonical(left) == canonical(right)) == same


def test_canonical_drops_swizzles_without_effect():
    layout = row_major((4, 16))
    far = XorTerm("mem", 0, 6, 2)
    near = XorTerm("mem", 0, 5, 1)
    assert canonical(layout.with_swizzle(far)) == canonical(layout)
    assert canonical(layout.with_swizzle(near, near)) == canonical(layout)
    assert canonical(layout.with_swizzle(near)).swizzle == (near,)
    # The first term may set the bit that the second one reads.
    assert canonical(layout.with_swizzle(XorTerm("mem", 6, 5, 1), far)).swizzle == (XorTerm("mem", 6, 5, 1), far)


@SMALL
@given(layouts())
def test_trim_keeps_the_logical_map_with_least_padding(layout):
    form = trim(layout)
    assert places(form) == places(layout)
    assert all(own <= old for own, old in zip(form.padded_shape, layout.padded_shape, strict=True))
    for size, padded, digits in zip(form.shape, form.padded_shape, form.shard, strict=True):
        assert all(digit.extent > 1 for digit in digits)
        assert padded - padded // (digits[0].extent if digits else 1) < size


@SMALL
@given(layouts(max_rank=2), st.data())
def test_split_makes_factors_digit_boundaries(layout, data):
    assume(layout.rank)
    dim = data.draw(st.integers(-layout.rank, layout.rank - 1))
    padded = layout.padded_shape[dim]
    inner = data.draw(st.sampled_from([n for n in range(1, padded + 1) if padded % n == 0]))
    try:
        form = split(layout, dim, (padded // inner, inner))
    except LayoutError:
        line = Layout((padded,), (layout.shard[dim],))
        table = vectors(line)
        cut = {(k // inner, k % inner): table[(k,)] for k in range(padded)}
        assert not is_positional(cut, (padded // inner, inner))
        return
    assert places(form, padded=True) == places(layout, padded=True)
    assert form.padded_shape == layout.padded_shape
    outer_part, inner_part = group_digits(layout.shard[dim], (padded // inner, inner))
    assert np.prod([digit.extent for digit in inner_part], dtype=int) == inner
    assert form.shard[dim] == (*outer_part, *inner_part)


def test_groups_are_listed_outermost_first():
    groups = group_digits([Iter(2, 1, "lane"), Iter(24, 1, "mem")], (4, 3, 4))
    assert groups == ((Iter(2, 1, "lane"), Iter(2, 12, "mem")), (Iter(3, 4, "mem"),), (Iter(4, 1, "mem"),))


def same_rank_pairs(rank):
    return st.tuples(nested_layouts(rank, exact_rank=True), nested_layouts(rank, exact_rank=True, negative=True))


@SMALL
@given(st.integers(0, 2).flatmap(same_rank_pairs))
def test_product_places_tiles_a_span_apart(pair):
    outer, inner = pair
    assume(outer.size * inner.size <= 2000)
    result = product(outer, inner)
    spans = {axis: int(values.max() - values.min() + 1) for axis, values in coordinate_arrays(inner).items()}
    whole, part, table = places(outer), places(inner), places(result)
    assert result.shape == tuple(a * b for a, b in zip(outer.shape, inner.shape, strict=True))
    for index in table:
        tiles = tuple(at // size for at, size in zip(index, inner.shape, strict=True))
        rest = tuple(at % size for at, size in zip(index, inner.shape, strict=True))
        moved = [frozenset((axis, value * spans.get(axis, 1)) for axis, value in place) for place in whole[tiles]]
        assert table[index] == frozenset(add(big, small) for big in moved for small in part[rest])


def test_product_scales_swizzles():
    inner = row_major((8, 64)).with_swizzle(line_swizzle(128, 2))
    outer = row_major((4, 2)).with_swizzle(XorTerm("mem", 0, 1, 1))
    result, whole, part = product(outer, inner), vectors(outer), vectors(inner)
    for index, place in vectors(result).items():
        tiles, rest = (index[0] // 8, index[1] // 64), (index[0] % 8, index[1] % 64)
        assert dict(place).get("mem", 0) == dict(whole[tiles]).get("mem", 0) * 512 + dict(part[rest]).get("mem", 0)


def test_product_keeps_tiles_on_whole_swizzle_blocks():
    """Six elements swizzled within eight places: the next tile starts eight places further."""
    inner = row_major((6,)).with_swizzle(XorTerm("mem", 0, 2, 1))
    whole, part = product(row_major((3,)), inner), vectors(inner)
    for (index,), place in vectors(whole).items():
        assert dict(place).get("mem", 0) == index // 6 * 8 + dict(part[(index % 6,)]).get("mem", 0)


def test_product_drops_inner_swizzles_that_had_no_effect():
    inner = row_major((8,)).with_swizzle(XorTerm("mem", 0, 3, 1))
    assert vectors(product(row_major((4,)), inner)) == vectors(row_major((32,)))


@SMALL
@given(layouts(max_rank=2), st.data())
def test_tile_divides_the_index(layout, data):
    tile_shape = [data.draw(st.integers(1, size + 1)) for size in layout.shape]
    try:
        result = tile(layout, tile_shape)
    except LayoutError:
        assume(False)
    assert result.shape == (*(-(-s // t) for s, t in zip(layout.shape, tile_shape, strict=True)), *tile_shape)
    table = places(result)
    for index, expected in places(layout).items():
        outer = tuple(at // size for at, size in zip(index, tile_shape, strict=True))
        rest = tuple(at % size for at, size in zip(index, tile_shape, strict=True))
        assert table[(*outer, *rest)] == expected


@SMALL
@given(nested_layouts(max_rank=1, copies=False, own_axes=True), st.data())
def test_tile_refuses_only_what_has_no_digits(layout, data):
    assume(layout.rank)
    size = data.draw(st.integers(1, layout.shape[0]))
    assume(layout.shape[0] % size == 0)
    table = {(k // size, k % size): place for (k,), place in vectors(layout).items()}
    if is_positional(table, (layout.shape[0] // size, size)):
        assert vectors(tile(layout, (size,))) == table
    else:
        with pytest.raises(LayoutError):
            tile(layout, (size,))


def test_tiles_may_hang_over_the_edge():
    result = tile(row_major((100, 5)), (16, 4))
    assert result.shape == (7, 2, 16, 4)
    assert result.coordinates((6, 1, 15, 3)) == {"mem": (6 * 16 + 15) * 5 + 7}


@SMALL
@given(layouts(), st.data())
def test_slice_shifts_the_index(layout, data):
    box = data.draw(boxes(layout.padded_shape))
    starts, sizes = [start for start, _ in box], [size for _, size in box]
    try:
        result = slice_box(layout, starts, sizes)
    except LayoutError:
        assume(False)
    table = places(layout, padded=True)
    assert result.shape == tuple(sizes)
    for index, found in places(result).items():
        assert found == table[tuple(at + start for at, start in zip(index, starts, strict=True))]


@SMALL
@given(nested_layouts(max_rank=1, copies=False, own_axes=True), st.data())
def test_slice_refuses_only_what_has_no_digits(layout, data):
    assume(layout.rank)
    ((start, size),) = data.draw(boxes(layout.shape))
    table = {(k,): vectors(layout)[(k + start,)] for k in range(size)}
    if is_positional(table, (size,)):
        assert vectors(slice_box(layout, (start,), (size,))) == table
    else:
        with pytest.raises(LayoutError):
            slice_box(layout, (start,), (size,))


@SMALL
@given(nested_layouts(max_rank=2, copies=True, negative=True), st.data())
def test_slice_from_an_unknown_start(layout, data):
    """At every value of the Dim the layout is that of the static slice."""
    steps, starts, sizes = [], [], []
    for number, size in enumerate(layout.shape):
        step = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        steps.append(Dim(0, size // step - 1, name=f"i{number}"))
        starts.append(steps[-1] * step)
        sizes.append(step)
    try:
        result = slice_box(layout, starts, sizes)
    except LayoutError:
        assume(False)
    table = places(layout)
    for at in np.ndindex(*(step.max + 1 for step in steps)):
        bound = result.bind(dict(zip(steps, at, strict=True)))
        for index, found in places(bound).items():
            assert found == table[tuple(a * size + i for a, size, i in zip(at, sizes, index, strict=True))]


def test_slice_at_a_dim_needs_its_divisor():
    fragment = Layout.parse("(128, 64) : [8@warp 16@mem*64 | 64@mem]")
    rows = Dim(0, 112, multiple_of=16, name="i")
    assert str(slice_box(fragment, (rows, 0), (16, 64))) == (
        "(16, 64) : [16@mem*64 | 64@mem] + offset[warp=i//16] where i in 0..112 step 16"
    )
    with pytest.raises(LayoutError, match="known to be a multiple of 1"):
        slice_box(fragment, (Dim(0, 112, name="i"), 0), (16, 64))


def test_slice_of_an_unknown_size():
    rows = Dim(1, 100, name="M")
    assert slice_box(row_major((rows, 8)), (0, 2), (rows, 4)) == strided((rows, 4), (8, 1)).with_offset({"mem": 2})
    tail = Dim(0, 50, name="r")
    assert slice_box(row_major((100, 8)), (tail, 0), (tail, 8)).offset_on("mem") == tail * 8


@SMALL
@given(nested_layouts(), st.sampled_from(AXES))
def test_compact_numbers_places_in_order(layout, axis):
    result = compact(layout, axis)
    before, after = coordinate_arrays(layout), coordinate_arrays(result)
    for name, values in before.items():
        if name == axis:
            # Ranks among the distinct coordinates, which is what "no gaps, same order" means.
            ranks = np.unique(values, return_inverse=True)[1].reshape(values.shape)
            assert (after[name] == ranks).all()
        else:
            assert (after[name] == values).all()


def test_forget_replicas():
    layout = Layout.parse("(4) : [4@lane] + replica[2@lane*4 3@warp]")
    assert forget_replicas(layout, ["warp"]) == Layout.parse("(4) : [4@lane] + replica[2@lane*4]")


def test_symbolic_sizes_pass_through():
    rows = Dim(1, 1000, name="M")
    packed = blocked((rows, 64), (16, 64))
    assert packed.padded_shape == (ceil_divide(rows, 16) * 16, 64)
    assert same_map(packed, row_major((rows, 64)))
    assert tile(packed, (16, 64)).shape == (ceil_divide(rows, 16), 1, 16, 64)
    assert trim(packed).padded_shape == (rows, 64)
    bound = tile(packed, (32, 16)).bind({rows: 70})
    assert bound == tile(packed.bind({rows: 70}), (32, 16))
    assert product(row_major((rows, 1)), row_major((4, 8))).shape == (rows * 4, 8)
    assert split(packed, 0, (ceil_divide(rows, 16) * 2, 8)).padded_shape == packed.padded_shape
    assert permute(packed, (1, 0)).shape == (64, rows)


M = Dim(1, 9, name="M")


@pytest.mark.parametrize(
    "make",
    [
        lambda: split(row_major((12,)), 0, (5, 2)),
        lambda: split(row_major((12,)), 1, (6, 2)),
        lambda: split(row_major((12,)), 0, ()),
        lambda: split(Layout.parse("(12) : [4@lane 3@mem]"), 0, (3, 4)),
        lambda: product(row_major((4,)), row_major((4, 4))),
        lambda: product(row_major((4,)), Layout.parse("(3) : [4@mem]")),
        lambda: product(row_major((4,)), row_major((M,))),
        lambda: product(row_major((4,)).with_swizzle(XorTerm("mem", 0, 1, 1)), row_major((3,))),
        lambda: product(row_major((4,)).with_swizzle(XorTerm("mem", 0, 1, 1)), strided((4,), (-1,))),
        lambda: tile(row_major((4, 4)), (2,)),
        lambda: tile(row_major((4, 4)), (2, 0)),
        lambda: tile(Layout.parse("(12) : [3@lane 4@mem]"), (3,)),
        lambda: slice_box(row_major((4, 4)), (0,), (2,)),
        lambda: slice_box(row_major((4, 4)), (0, 2), (4, 3)),
        lambda: slice_box(row_major((4, 4)), (-1, 0), (2, 2)),
        lambda: slice_box(row_major((4,)), (M,), (1,)),
        lambda: slice_box(Layout.parse("(8) : [2@lane 4@mem]"), (2,), (4,)),
        lambda: compact(strided((4,), (-1,)), "mem"),
        lambda: compact(row_major((8,)).with_swizzle(XorTerm("mem", 0, 1, 1)), "mem"),
        lambda: compact(strided((4, 4), (1, 2)), "mem"),
        lambda: compact(Layout.parse("(M, 2) : [M@mem | 2@mem*16] where M in 1..9"), "mem"),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
