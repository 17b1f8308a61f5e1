"""Types of arrays as text: a space and a layout, or the pages of an array on a grid of cores."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.layout.catalogue.placements import Pages, Placement
from tilewright.primitives import ArrayType

TYPE = ArrayType((64, 32), dtypes.bf16)
SHARDED = Placement((1, 2), (8, 8))
TEXTS = {
    "!tile.ref<tensor<64x32xbf16>>": tile.ref(TYPE),
    '!tile.ref<tensor<64x32xbf16>, "block">': tile.ref(TYPE, "block"),
    '!tile.ref<tensor<64x32xbf16>, "", "(64, 32) : [64@mem | 32@mem*64]">': tile.ref(
        TYPE, "", "(64, 32) : [64@mem | 32@mem*64]"
    ),
    '!tile.ref<tensor<64x32xbf16>, #tile.pages<"bfp8">>': tile.ref(TYPE, pages=Pages("bfp8")),
    '!tile.ref<tensor<64x32xbf16>, #tile.pages<"", "row-major">>': tile.ref(TYPE, pages=Pages(is_row_major=True)),
    '!tile.ref<tensor<64x32xbf16>, #tile.pages<"bfp8", "l1 1x2 on 8x8">>': tile.ref(TYPE, pages=Pages("bfp8", SHARDED)),
}


def parsed(text: str) -> object:
    context = Context()
    for dialect in (Builtin, tile.Tile):
        context.load_dialect(dialect)
    return Parser(context, text).parse_type()


@pytest.mark.parametrize("text", TEXTS)
def test_a_type_is_printed_and_parsed(text: str) -> None:
    assert str(TEXTS[text]) == text
    assert parsed(text) == TEXTS[text]


def test_default_pages_are_no_other_type() -> None:
    assert tile.ref(TYPE, pages=Pages()) == tile.ref(TYPE) == parsed('!tile.ref<tensor<64x32xbf16>, #tile.pages<"">>')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('!tile.ref<tensor<64x32xbf16>, "block", #tile.pages<"bfp8">>', "no space and no layout"),
        ('!tile.ref<tensor<64x32xbf16>, "", "(64, 32) : [64@mem | 32@mem*64]", #tile.pages<"bfp8">>', "no layout"),
        ('!tile.ref<tensor<64x32xbf16>, "a", "b", "c">', "a space and a layout"),
        ("!tile.ref<tensor<64x32xbf16>, 3 : index>", "a space and a layout"),
        ('!tile.ref<tensor<64x32xbf16>, #tile.pages<"bfp9">>', "`bfp9` is no format of pages"),
        ('!tile.ref<tensor<64x32xbf16>, #tile.pages<"", "l1 2x4">>', "`l1 2x4` is no placement"),
    ],
)
def test_a_type_that_is_none_is_refused(text: str, says: str) -> None:
    with pytest.raises((ParseError, VerifyException), match=says):
        parsed(text)
