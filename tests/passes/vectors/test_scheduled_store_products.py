"""Where products in parts store their results themselves: windows of whole blocks, to which nothing else is done."""

from __future__ import annotations

from tests.passes.pass_support import parse, unit_of
from tilewright.dialects import scheduled
from tilewright.passes.vectors.scheduled_store_products import ScheduledStoreProductsPass


def is_stored(
    *,
    shape: tuple[int, int] = (64, 96),
    map: str = "(d0 + s0 * 32, d1)",
    between: str = "",
    copied: str = "(d0, d1)",
) -> bool:
    """Whether a product of 32 x 32 blocks in a buffer of which a nest copies what `copied` says to a window of an
    array is stored by itself; `between` is what else is done in that nest."""
    text = f"""
    func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x32xf32>) -> tensor<{shape[0]}x{shape[1]}xf32> {{
      %y = array.call(%x, %w) {{callee = "contract_0"}} : tensor<{shape[0]}x{shape[1]}xf32>
      func.return %y : tensor<{shape[0]}x{shape[1]}xf32>
    }}
    tile.kernel() {{sym_name = "contract_0", grid = array<i64>, effects = ["in", "in", "out"]}} do {{
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %w: !tile.ref<tensor<32x32xf32>>,
         %out: !tile.ref<tensor<{shape[0]}x{shape[1]}xf32>>):
      scheduled.parallel() {{extents = array<i64: 2>, grain = 1 : index}} do {{
      ^bb0(%i: index):
        %total = scheduled.alloc() : !tile.ref<tensor<32x32xf32>, "worker">
        scheduled.dot(%x, %w, %total, %i) {{extents = array<i64: 32, 32, 32>,
          block = "(32, 32) : [32@reg*2 | 2@reg 16@simd]",
          left_map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 32, d1)>, right_map = affine_map<(d0, d1)[s0] -> (d0, d1)>,
          accumulate = false, parts = 3 : index, scale = 24 : index}}
        scheduled.nest() do {{
          %y = tile.load(%total) {{map = affine_map<(d0, d1) -> {copied}>}} : tensor<32x32xf32>
          {between}
          tile.store(%y, %out, %i) {{map = affine_map<(d0, d1)[s0] -> {map}>}}
          scheduled.end()
        }}
        scheduled.end()
      }}
      tile.yield()
    }}
    """
    unit = unit_of(parse(text), {})
    ScheduledStoreProductsPass().apply(unit)
    unit.module.verify()
    (dot,) = (op for kernel in unit.timed_kernels("test") for op in kernel.walk() if isinstance(op, scheduled.DotOp))
    return dot.accumulator_map is not None


def test_a_product_stores_windows_of_blocks_alone() -> None:
    assert is_stored()
    assert is_stored(map="(d0 + s0 * 32, d1 + 64)")
    assert not is_stored(map="(d0 + s0 * 16, d1)"), "begins within a block"
    assert not is_stored(map="(d0 + s0 * 32, d1 + 8)"), "begins within a block"
    assert not is_stored(map="(d1 + s0 * 32, d0)"), "rows are columns"
    assert not is_stored(shape=(63, 96)), "the last row is missing"
    assert not is_stored(shape=(64, 40)), "the array ends within a block"
    assert not is_stored(copied="(d1, d0)"), "turned on the way"
    assert not is_stored(between='%z = tile.map(%y) {fn = "negative"} : tensor<32x32xf32>'), "more is done"
