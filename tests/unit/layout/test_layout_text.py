"""The text form: exact round trips, golden texts, and errors that point at the place."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_oracle import SMALL, layouts

from tilewright.errors import LayoutError
from tilewright.layout import Dim, Iter, Layout, Partial, Replica, XorTerm, blocked, panels, row_major, tile


@SMALL
@given(layouts())
def test_round_trip(layout):
    text = str(layout)
    assert "\n" not in text
    assert Layout.parse(text) == layout
    assert eval(repr(layout), {"Layout": Layout}) == layout


@st.composite
def symbolic_layouts(draw):
    names = draw(st.permutations(["M", "", "step", "where", "in", "n_1"]))
    step = draw(st.sampled_from([1, 2, 16]))
    rows = Dim(draw(st.integers(0, 3)) * step, draw(st.integers(4, 90)) * step, step, names[0])
    start = Dim(draw(st.integers(-5, 0)), draw(st.integers(1, 9)), name=names[1])
    width = draw(st.integers(1, 9))
    layout = draw(
        st.sampled_from([row_major((rows, width)), blocked((rows, width), (4, 4)), panels((width, rows), 1, 8)])
    )
    layout = tile(layout, (2, 4)) if draw(st.booleans()) else layout
    offset = start * draw(st.integers(-3, 3)) + draw(st.integers(-3, 3)) + rows * draw(st.integers(-1, 1))
    try:
        for _ in range(draw(st.integers(0, 3))):
            divisor = draw(st.integers(1, 6))
            offset = offset // divisor if draw(st.booleans()) else offset % divisor
    except LayoutError:
        assume(False)
    return layout.with_offset({"mem": offset, "lane": start})


@SMALL
@given(symbolic_layouts())
def test_round_trip_of_unknown_sizes(layout):
    back = Layout.parse(str(layout))
    assert back == layout
    assert hash(back) == hash(layout)
    assert back.symbols == layout.symbols


def test_golden_texts():
    i = Dim(0, 7, name="i")
    layout = Layout(
        (128, 64, 1),
        ((Iter(8, 1, "warp"), Iter(16, 64, "mem")), (Iter(64, 1, "mem"),), ()),
        replica=(Replica(4, 8, "lane"), Replica(2, -1, "core.x")),
        partial=(Partial(2, 4, "warp", "add"), Partial(3, 1, "bank", "maximum")),
        offset=(("mem", i * 16 - 5), ("warp", 3)),
        swizzle=(XorTerm("mem", 3, 6, 3), XorTerm("mem", 9, 0, 1)),
    )
    assert str(layout) == (
        "(128, 64, 1) : [8@warp 16@mem*64 | 64@mem | 1] + replica[4@lane*8 2@core.x*-1] "
        "+ partial[add 2@warp*4 maximum 3@bank] + offset[mem=16*i-5, warp=3] "
        "+ swizzle[mem{3:6}^{6:9} mem{9:10}^{0:1}] where i in 0..7"
    )
    assert str(row_major(())) == "() : []"
    assert str(Layout((1,), ((),))) == "(1) : [1]"
    assert str(Layout((1,), ((Iter(1, 1, "mem"),),))) == "(1) : [1@mem]"
    assert str(blocked((Dim(1, 64), 8), (4, 8))) == ("(?0, 8) : [((?0+3)//4)@mem*32 4@mem*8 | 8@mem] where ?0 in 1..64")


def test_the_text_may_be_written_freely():
    text = """
        ( M,64, ):[ ( ( M + 127 )//128 )@warp 128@mem*64|64@mem ]
            + offset[ mem = -2*3 + (4) ] + replica[2 @ lane * 4]
            where M in 1 .. 1024 step 16
    """
    rows = Dim(1, 1024, 16, "M")
    assert Layout.parse(text) == Layout(
        (rows, 64),
        ((Iter((rows + 127) // 128, 1, "warp"), Iter(128, 64, "mem")), (Iter(64, 1, "mem"),)),
        (Replica(2, 4, "lane"),),
        offset=(("mem", -2),),
    )


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("(4) : [4@]", 9, "an axis"),
        ("(4) : [4mem]", 8, "`@`"),
        ("(4 : [4@mem]", 3, "`)`"),
        ("(4) [4@mem]", 4, "`:`"),
        ("(4) : [4@mem", 12, "an integer or a name"),
        ("(4) : [4@mem*x]", 13, "an integer"),
        ("(4) : [4@mem] + shift[mem=1]", 16, "one of offset, partial, replica, swizzle"),
        ("(4) : [4@mem] + replica[2@lane] + replica[2@lane]", 34, "each once"),
        ("(4) : [4@mem] + swizzle[mem{0:2}^{3:4}]", 38, "as many source bits"),
        ("(4) : [4@mem] trailing", 14, "the end"),
        ("(4) : [4@mem] $", 14, "has no meaning"),
        ("(M) : [M@mem]", 1, "an integer or a name given after `where`"),
        ("(4) : [4@mem] + offset[mem=3//0]", 31, "a positive integer"),
    ],
)
def test_errors_point_at_the_place(text, column, message):
    with pytest.raises(LayoutError) as caught:
        Layout.parse(text)
    assert message in caught.value.message
    assert caught.value.message.splitlines()[-1] == " " * (column + 4) + "^"
    assert caught.value.help


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(1) : [1",
        "(M) : [M@mem] where M",
        "(M) : [M@mem] where M in 4",
        "(M) : [M@mem] where M in 4..1",
        "(M) : [M@mem] where M in 1..4, M2",
        "(5) : [4@mem]",
        "(4) : [4@MEM]",
        "(4) : [4@mem] + partial[2@lane]",
        "(4, 4) : [4@mem]",
        "(M) : [(M*M)@mem] where M in 1..4",
        "(4) : [4@mem] + offset[mem=4//M] where M in 1..4",
    ],
)
def test_other_texts_are_layout_errors(text):
    with pytest.raises(LayoutError):
        Layout.parse(text)
