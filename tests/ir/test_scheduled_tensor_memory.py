"""What the verifiers say of operations on tensor memory, and that their text reads back."""

from __future__ import annotations

import pytest
from xdsl.utils.exceptions import VerifyException

from tests.passes.pass_support import parse

LEFT = '!tile.ref<tensor<128x16xf16>, "block", "(128, 16) : [128@mem.shared*16 | 16@mem.shared]">'
RIGHT = '!tile.ref<tensor<16x32xf16>, "block", "(16, 32) : [16@mem.shared*32 | 32@mem.shared]">'
SUM = '!tile.ref<tensor<128x32xf32>, "tensor", "(128, 32) : [128@tmem.row | 32@tmem.col]">'
LOADED = 'tensor<128x32xf32, "(128, 32) : [4@warp 32@lane | 32@reg]">'
TEXT = f"""
tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["out"]}} do {{
^bb0(%out: !tile.ref<tensor<128x32xf32>>):
  scheduled.parallel() {{extents = array<i64: 3>, grain = 1 : index, warps = 4 : index}} do {{
  ^bb1(%i: index):
    %a = scheduled.alloc() : {LEFT}
    %b = scheduled.alloc() : {RIGHT}
    %sum = scheduled.tensor_alloc() {{columns = 32 : index}} : {SUM}
    %done = scheduled.mbarrier() {{count = 1 : index, arrivals = 1 : index}} : !tile.ref<tensor<1xi64>, "block">
    scheduled.barrier() {{scope = "every role"}}
    scheduled.role() {{role = "multiplies", warps = 1 : index}} do {{
      scheduled.tensor_mma(%a, %b, %sum, %i) {{atom = "tcgen05, 1 warpgroup", adds = affine_map<()[s0] -> (s0)>}}
      scheduled.mma_commit(%done) {{number = affine_map<() -> (0)>}}
      scheduled.end()
    }}
    scheduled.await(%done) {{number = affine_map<() -> (0)>, phase = affine_map<() -> (0)>}}
    scheduled.tensor_fence() {{side = "after"}}
    %loaded = scheduled.tensor_load(%sum) : {LOADED}
    scheduled.tensor_fence() {{side = "before"}}
    scheduled.barrier() {{scope = "block"}}
    scheduled.tensor_free(%sum)
    tile.store(%loaded, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
    scheduled.end()
  }}
  tile.yield()
}}
"""


def test_text_round_trips() -> None:
    module = parse(TEXT)
    assert str(parse(str(module))) == str(module)


BROKEN = [
    ("columns = 32 : index", "columns = 48 : index", "48 columns are no power of two from 32 to 512"),
    ("columns = 32 : index", "columns = 16 : index", "16 columns are no power of two from 32 to 512"),
    ("| 32@tmem.col]", "| 32@tmem.col*2]", "does not fit 32 columns"),
    ("[128@tmem.row | 32@tmem.col]", "[128@mem.shared*32 | 32@mem.shared]", "is no layout of lanes and columns"),
    ('"tensor", "(128', '"block", "(128', "not of words of 32 bits with a layout in tensor memory"),
    ("adds = affine_map<()[s0] -> (s0)>", "adds = affine_map<() -> (0)>", "one number of 1 symbols"),
    ("scheduled.mma_commit(%done)", "scheduled.mma_commit(%a)", "not of a scheduled.mbarrier"),
    ("tensor_mma(%a, %b", "tensor_mma(%b, %a", "does not fit"),
    ("tensor_mma(%a, %b, %sum", "tensor_mma(%a, %b, %b", "not of a scheduled.tensor_alloc"),
    ("tensor_load(%sum) : tensor<128x32xf32", "tensor_load(%sum) : tensor<128x32xi32", "not of the type of the tile"),
    ("tensor_free(%sum)", "tensor_free(%a)", "not of a scheduled.tensor_alloc"),
    ('side = "after"', 'side = "beside"', "neither before nor after, but beside"),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN, ids=[new for _, new, _ in BROKEN])
def test_what_the_verifiers_refuse(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(VerifyException, match=message):
        parse(TEXT.replace(old, new))


STAGED = TEXT.replace("columns = 32 : index", "columns = 64 : index, stages = 2 : index")
for tile in ("sum, %i) {atom", "sum) : "):
    STAGED = STAGED.replace(f"%{tile}", f"%one{tile.removeprefix('sum')}")
ONE = f"%one = scheduled.tensor_stage(%sum, %i) {{map = affine_map<()[s0] -> (s0 mod 2)>}} : {SUM}"
STAGED = STAGED.replace("    %done = ", f"    {ONE}\n    %done = ")


def test_text_of_several_tiles_round_trips() -> None:
    module = parse(STAGED)
    assert str(parse(str(module))) == str(module)


BROKEN_STAGES = [
    ("stages = 2", "stages = 1", "64 columns are not those of 1 tiles"),
    ("stages = 2", "stages = 3", "64 columns are not those of 3 tiles"),
    ("columns = 64", "columns = 32", "does not fit 16 columns"),
    ("tensor_load(%one)", "tensor_load(%sum)", "used otherwise than by their number"),
    (", stages = 2 : index", "", "not of several tiles in tensor memory"),
    ("(s0 mod 2)", "(s0, s0)", "one number of 1 symbols"),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN_STAGES, ids=[new for _, new, _ in BROKEN_STAGES])
def test_what_the_verifiers_refuse_of_several_tiles(old: str, new: str, message: str) -> None:
    assert old in STAGED
    with pytest.raises(VerifyException, match=message):
        parse(STAGED.replace(old, new))


WHOLE = SUM.replace("128x32xf32", "128x64xf32").replace("(128, 32)", "(128, 64)").replace("32@tmem.col", "64@tmem.col")
PARTS = f"""
    %one = scheduled.tensor_part(%sum) {{column = 0 : index}} : {SUM}
    %other = scheduled.tensor_part(%sum) {{column = 32 : index}} : {SUM}
"""
PARTED = TEXT.replace(f"{{columns = 32 : index}} : {SUM}", f"{{columns = 64 : index}} : {WHOLE}{PARTS}")
PARTED = PARTED.replace("%a, %b, %sum, %i", "%a, %b, %one, %i").replace("tensor_load(%sum)", "tensor_load(%one)")
PARTED = PARTED.replace("    tile.store(%loaded", "    scheduled.tensor_put(%loaded, %other)\n    tile.store(%loaded")


def test_text_of_parts_round_trips() -> None:
    module = parse(PARTED)
    assert str(parse(str(module))) == str(module)


BROKEN_PARTS = [
    ("{column = 32 : index}", "{column = 48 : index}", "are not there, or another part's"),
    ("{column = 32 : index}", "{column = 16 : index}", "are not there, or another part's"),
    ("tensor_part(%sum) {column = 32", "tensor_part(%one) {column = 32", "not of one tile in tensor memory"),
    ("tensor_put(%loaded, %other)", "tensor_put(%loaded, %a)", "not of a scheduled.tensor_alloc"),
    ("tensor_put(%loaded, %other)", "tensor_put(%loaded, %sum)", "not of the type of the tile"),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN_PARTS, ids=[new for _, new, _ in BROKEN_PARTS])
def test_what_the_verifiers_refuse_of_parts(old: str, new: str, message: str) -> None:
    assert old in PARTED
    with pytest.raises(VerifyException, match=message):
        parse(PARTED.replace(old, new))
