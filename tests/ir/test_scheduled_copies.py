"""What the verifiers say of rings, copies, waits and fragments, and that their text means the same when it is read."""

from __future__ import annotations

import pytest
from xdsl.utils.exceptions import VerifyException

from tests.passes.pass_support import parse

RING = '!tile.ref<tensor<16x16xf16>, "block", "(16, 16) : [16@mem.shared*16 | 16@mem.shared]">'
TEXT = f"""
tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "out"]}} do {{
^bb0(%x: !tile.ref<tensor<16x48xf16>>, %out: !tile.ref<tensor<16x16xf32>>):
  scheduled.parallel() {{extents = array<i64: 3>, grain = 1 : index, warps = 1 : index}} do {{
  ^bb1(%i: index):
    %ring = scheduled.alloc() {{stages = 2 : index}} : {RING}
    %a = scheduled.stage(%ring, %i) {{map = affine_map<()[s0] -> (s0 mod 2)>}} : {RING}
    scheduled.copy(%x, %a, %i) {{map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 16)>,
        layout = "(16, 16) : [16@lane*2 | 2@lane 8@reg]", trip = affine_map<()[s0] -> (s0)>, trips = 3 : index}}
    scheduled.commit()
    scheduled.wait() {{pending = 0 : index}}
    scheduled.barrier() {{scope = "warp"}}
    %zero = tile.full() {{value = 0.0 : f64}} : tensor<16x16xf32>
    %sum = scheduled.mma(%a, %a, %zero) {{atom = "mma.sync, 1 x 1 warps",
        left_fragment = "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]"}} : tensor<16x16xf32>
    scheduled.end()
  }}
  tile.yield()
}}
"""


def test_text_round_trips() -> None:
    module = parse(TEXT)
    assert str(parse(str(module))) == str(module)


BROKEN = [
    ("{stages = 2 : index}", "{stages = 1 : index}", "1 stages in the space block, not 2 or more of a block"),
    ('"block", "(16, 16) : [16@mem', '"worker", "(16, 16) : [16@mem', "2 stages in the space worker"),
    ("scheduled.alloc() {stages = 2 : index}", "scheduled.alloc()", "not of a buffer with stages"),
    ("scheduled.copy(%x, %a", "scheduled.copy(%x, %ring", "a ring is used otherwise than by scheduled.stage"),
    ("affine_map<()[s0] -> (s0 mod 2)>", "affine_map<() -> (0)>", "does not give one number of 1 symbols"),
    ("(d0, d1 + s0 * 16)>", "(d0)>", r"does not map \(16, 16\) with 1 symbols to \(16, 48\)"),
    ("tensor<16x48xf16>", "tensor<16x48xbf16>", "from an array of bf16 to a buffer of f16"),
    ("(16, 16) : [16@lane*2 | 2@lane 8@reg]", "(16, 8) : [16@lane*2 | 2@lane 4@reg]", "does not deal a tile"),
    (", trips = 3 : index", "", "a trip without trips"),
    ("pending = 0", "pending = -1", "fewer than no groups are pending"),
    (
        "(16, 16) : [2@reg*2 8@lane*4 | 2@reg*4 4@lane 2@reg]",
        "(16, 8) : [2@reg*2 8@lane*4 | 4@lane 2@reg]",
        "a fragment that is none of",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN, ids=lambda text: text[:24])
def test_what_is_broken_is_said(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(VerifyException, match=message):
        parse(TEXT.replace(old, new))


def test_fragments_are_of_operands_in_buffers() -> None:
    text = TEXT.replace("scheduled.mma(%a, %a", "scheduled.mma(%tile, %a").replace(
        "    %zero", "    %tile = tile.full() {value = 0.0 : f64} : tensor<16x16xf16>\n    %zero"
    )
    with pytest.raises(VerifyException, match="a fragment of an operand that is in registers"):
        parse(text)
