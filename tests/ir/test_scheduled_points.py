"""What the verifier says of points of a grid in an order, and that their text reads back."""

from __future__ import annotations

import pytest
from xdsl.utils.exceptions import VerifyException

from tests.passes.pass_support import parse

TEXT = """
tile.kernel() {sym_name = "k", grid = array<i64>, effects = ["out"]} do {
^bb0(%out: !tile.ref<tensor<3x4xf32>>):
  scheduled.parallel() {extents = array<i64: 6>, grain = 1 : index, warps = 1 : index} do {
  ^bb1(%n: index):
    %i, %j = scheduled.point(%n) {map = affine_map<()[s0] -> (s0 * 2)>, extents = array<i64: 3, 4>, group = 2 : index}
        : index, index
    scheduled.end()
  }
  tile.yield()
}
"""


def test_text_round_trips() -> None:
    module = parse(TEXT)
    assert str(parse(str(module))) == str(module)


BROKEN = [
    ("(s0 * 2)", "(s0, s0)", "does not give one number of 1 symbols"),
    ("point(%n)", "point()", "does not give one number of 0 symbols"),
    ("array<i64: 3, 4>", "array<i64: 3, 4, 5>", r"2 coordinates in a grid of \(3, 4, 5\)"),
    ("group = 2", "group = 4", "groups of 4 of 3 rows"),
    ("group = 2", "group = 0", "groups of 0 of 3 rows"),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN)
def test_what_is_broken_is_said(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(VerifyException, match=message):
        parse(TEXT.replace(old, new, 1)).verify()
