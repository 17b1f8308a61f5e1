"""What the verifier says of zones and of records, and that their text reads back."""

from __future__ import annotations

import pytest
from xdsl.utils.exceptions import VerifyException

from tests.passes.pass_support import parse

TEXT = """
tile.kernel() {sym_name = "k", grid = array<i64>, effects = ["out", "out"]} do {
^bb0(%out: !tile.ref<tensor<4xf32>>, %records: !tile.ref<tensor<6x2x10xi64>>):
  scheduled.parallel() {extents = array<i64: 6>, grain = 1 : index, warps = 1 : index} do {
  ^bb1(%n: index):
    scheduled.record(%records) {what = "open", section = 1 : index}
    scheduled.record(%records) {what = "end", section = 1 : index, number = 0 : index, label = "load"}
    tile.zone() {label = "outer", edge = "begin"}
    tile.zone() {label = "inner", edge = "begin"}
    tile.for() {trips = 3 : index} do {
    ^bb2(%i: index):
      tile.zone() {label = "outer", edge = "begin"}
      tile.zone() {label = "outer", edge = "end"}
      tile.yield()
    }
    tile.zone() {label = "inner", edge = "end"}
    tile.zone() {label = "outer", edge = "end"}
    scheduled.end()
  }
  tile.yield()
}
"""


def test_text_round_trips() -> None:
    module = parse(TEXT)
    assert str(parse(str(module))) == str(module)


UNPAIRED = "does not begin and end in one block"
BROKEN = [
    ('{label = "inner", edge = "end"}', '{label = "other", edge = "end"}', UNPAIRED),
    ('{label = "inner", edge = "end"}', '{label = "outer", edge = "end"}', UNPAIRED),
    ('tile.zone() {label = "inner", edge = "end"}', "", UNPAIRED),
    ('tile.zone() {label = "inner", edge = "begin"}', "", UNPAIRED),
    ('      tile.zone() {label = "outer", edge = "begin"}', "", UNPAIRED),
    ('      tile.zone() {label = "outer", edge = "end"}', "", UNPAIRED),
    ('edge = "begin"', 'edge = "middle"', "with the edge middle"),
    ('label = "outer"', 'label = ""', "`` with the edge begin"),
    ('what = "open", section = 1', 'what = "open", section = 2', "section 2 of 2"),
    ('what = "open"', 'what = "begin"', "begin of the zone None"),
    ('what = "end"', 'what = "close"', "close of the zone"),
    ('what = "open"', 'what = "pause"', "pause of the zone"),
    ("6x2x10xi64", "6x2x10xi32", "not in blocks x sections x words of i64|blocks x sections x words"),
    ("6x2x10xi64", "12x10xi64", "blocks x sections x words"),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN)
def test_what_is_broken_is_said(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(VerifyException, match=message):
        parse(TEXT.replace(old, new, 1)).verify()
