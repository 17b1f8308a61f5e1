"""What the verifiers say of roles, barriers in memory and asynchronous products, and that their text reads back."""

from __future__ import annotations

import pytest
from xdsl.utils.exceptions import VerifyException

from tests.passes.pass_support import parse

BUFFER = '!tile.ref<tensor<64x16xf16>, "block", "(64, 16) : [64@mem.shared*16 | 16@mem.shared]">'
TURNED = '!tile.ref<tensor<16x64xf16>, "block", "(16, 64) : [16@mem.shared*64 | 64@mem.shared]">'
TEXT = f"""
tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "in", "out"]}} do {{
^bb0(%x: !tile.ref<tensor<64x48xf16>>, %y: !tile.ref<tensor<16x64xf16>>, %out: !tile.ref<tensor<64x64xf32>>):
  scheduled.parallel() {{extents = array<i64: 3>, grain = 1 : index, warps = 4 : index}} do {{
  ^bb1(%i: index):
    %a = scheduled.alloc() : {BUFFER}
    %b = scheduled.alloc() : {TURNED}
    %full = scheduled.mbarrier() {{count = 1 : index, arrivals = 1 : index}} : !tile.ref<tensor<1xi64>, "block">
    scheduled.barrier() {{scope = "every role"}}
    scheduled.role() {{role = "copies", warps = 1 : index}} do {{
      scheduled.expect(%full) {{number = affine_map<() -> (0)>, bytes = 4096 : index}}
      scheduled.tensor_copy(%x, %a, %full, %i) {{map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 16)>,
          number = affine_map<()[s0] -> (0)>}}
      scheduled.tensor_copy(%y, %b, %full) {{map = affine_map<(d0, d1) -> (d0, d1)>, number = affine_map<() -> (0)>}}
      scheduled.end()
    }}
    scheduled.await(%full) {{number = affine_map<() -> (0)>, phase = affine_map<() -> (0)>}}
    scheduled.fence()
    %zero = tile.full() {{value = 0.0 : f64}} : tensor<64x64xf32>
    %going = scheduled.mma(%a, %b, %zero) {{atom = "wgmma", asynchronous = true}} : tensor<64x64xf32>
    %sum = scheduled.mma_wait(%going) {{pending = 0 : index}} : tensor<64x64xf32>
    scheduled.arrive(%full, %i) {{number = affine_map<()[s0] -> (0)>, trip = affine_map<()[s0] -> (s0 - 1)>}}
    tile.store(%sum, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
    scheduled.end()
  }}
  tile.yield()
}}
"""


def test_text_round_trips() -> None:
    module = parse(TEXT)
    assert str(parse(str(module))) == str(module)


BROKEN = [
    ('role = "copies", warps = 1', 'role = "copies", warps = 0', "a role has one warp or more"),
    ("{count = 1 : index, arr", "{count = 2 : index, arr", "2 barriers are 2 i64 of a block"),
    ("arrivals = 1 : index", "arrivals = 0 : index", "fewer than one barrier, or than one arrival"),
    ("scheduled.await(%full)", "scheduled.await(%a)", "not of a scheduled.mbarrier"),
    ("phase = affine_map<() -> (0)>", "phase = affine_map<()[s0] -> (s0)>", "does not give one number of 0 symbols"),
    ("bytes = 4096", "bytes = 0", "fewer than one byte"),
    ("(d0, d1 + s0 * 16)>", "(d0)>", r"does not map \(64, 16\) to \(64, 48\)"),
    ("tensor<64x48xf16>", "tensor<64x48xbf16>", "of the array's type"),
    ("trip = affine_map<()[s0] -> (s0 - 1)>", "trip = affine_map<() -> (1)>", "one number of 1 symbols"),
    ("pending = 0 : index} : tensor<64x64xf32>", "pending = 0 : index} : tensor<64x32xf32>", "not where"),
    ("pending = 0", "pending = -1", "a negative number of pending MMAs"),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN, ids=lambda text: text[:24])
def test_what_is_broken_is_said(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(VerifyException, match=message):
        parse(TEXT.replace(old, new, 1)).verify()
