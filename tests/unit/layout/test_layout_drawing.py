"""Drawings, compared with texts written by hand."""

from __future__ import annotations

import pytest
from layout_oracle import vectors

from tilewright.errors import LayoutError
from tilewright.layout import Dim, Layout, draw, line_swizzle, row_major
from tilewright.layout.access import MemoryPorts
from tilewright.layout.catalogue import shared_matrix


def test_a_fragment():
    fragment = Layout.parse("(4, 4) : [2@reg*2 2@lane*2 | 2@lane 2@reg] + replica[2@lane*4]")
    assert draw(fragment, "lane", "reg") == "\n".join(
        [
            "lane/reg of (4, 4)",
            "  |   0    1    2    3",
            "--+-------------------",
            "0 | 0/0  0/1  1/0  1/1",
            "1 | 2/0  2/1  3/0  3/1",
            "2 | 0/2  0/3  1/2  1/3",
            "3 | 2/2  2/3  3/2  3/3",
            "each repeated over 2@lane*4",
        ]
    )


def test_long_sides_keep_their_ends():
    assert draw(row_major((100, 1000)), max_rows=5, max_columns=6) == "\n".join(
        [
            "mem of (100, 1000)",
            "    |     0      1      2      3  ...    999",
            "----+---------------------------------------",
            "  0 |     0      1      2      3  ...    999",
            "  1 |  1000   1001   1002   1003  ...   1999",
            "  2 |  2000   2001   2002   2003  ...   2999",
            "... |   ...    ...    ...    ...  ...    ...",
            " 99 | 99000  99001  99002  99003  ...  99999",
        ]
    )


def test_other_ranks_and_partials():
    assert draw(row_major((3,), "lane")) == "lane of (3)\n  | 0  1  2\n--+--------\n0 | 0  1  2"
    assert draw(row_major(())) == "no axes of ()\n  | 0\n--+--\n0 |"
    assert draw(row_major((2, 2, 2)), leading=(1,)).splitlines() == [
        "mem of (2, 2, 2) at (1, ...)",
        "  | 0  1",
        "--+-----",
        "0 | 4  5",
        "1 | 6  7",
    ]
    terms = Layout.parse("(2) : [2@lane] + partial[add 2@warp*4] + replica[2@mem]")
    assert draw(terms).splitlines()[-2:] == ["each repeated over 2@mem*1", "each a term of add 2@warp*4"]
    assert draw(terms, "lane").splitlines()[-1] == "0 | 0  1"


def test_every_cell_is_the_coordinate():
    layout = row_major((8, 16)).with_swizzle(line_swizzle(32, 8))
    rows = [line.split("|")[1].split() for line in draw(layout).splitlines()[3:]]
    for (row, column), place in vectors(layout).items():
        assert int(rows[row][column]) == dict(place).get("mem", 0)


def test_banks():
    assert draw(row_major((2, 4)), banks=MemoryPorts(banks=4), item_bytes=8) == "\n".join(
        [
            "mem/bank of (2, 4): 4 banks of 4 bytes, elements of 8",
            "  |   0    1    2    3",
            "--+-------------------",
            "0 | 0/0  1/2  2/0  3/2",
            "1 | 4/0  5/2  6/0  7/2",
        ]
    )
    layout = shared_matrix((16, 64), 16)
    drawn = draw(layout, banks=MemoryPorts(), item_bytes=2, rows=range(3, 11), columns=range(30, 50))
    rows = [line.split("|")[1].split() for line in drawn.splitlines()[3:]]
    for (row, column), place in vectors(layout).items():
        if row in range(3, 11) and column in range(30, 50):
            address = dict(place).get("mem", 0)
            bank = (2 * address % 128) // 4
            assert rows[row - 3][column - 30] == f"{address}/{bank}"


def test_windows():
    assert draw(row_major((100, 1000)), rows=range(98, 100), columns=range(5, 7)) == "\n".join(
        [
            "mem of (100, 1000)",
            "   |     5      6",
            "---+-------------",
            "98 | 98005  98006",
            "99 | 99005  99006",
        ]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: draw(row_major((4, 4)), "lane"),
        lambda: draw(row_major((4, 4)), rows=range(3, 5)),
        lambda: draw(row_major((4, 4)), columns=range(2, 2)),
        lambda: draw(row_major((4, 4), "lane"), banks=MemoryPorts()),
        lambda: draw(row_major((Dim(1, 4), 4))),
        lambda: draw(row_major((2, 2, 2)), leading=(0, 0)),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
