"""What works on tensor memory out of order is said by the definitions of the operations, with the operation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.test_roles import SAME, kernel_of, role
from tests.passes.pass_support import parse
from tilewright.semantics.hazards import DeadlockError, HazardError, PhaseError, RaceError
from tilewright.semantics.scheduled import run_call
from tilewright.semantics.warps.block_memory import Tensor

LEFT = '!tile.ref<tensor<128x16xf16>, "block", "(128, 16) : [128@mem.shared*16 | 16@mem.shared]">'
RIGHT = '!tile.ref<tensor<16x32xf16>, "block", "(16, 32) : [16@mem.shared*32 | 32@mem.shared]">'
SUM = '!tile.ref<tensor<128x32xf32>, "tensor", "(128, 32) : [128@tmem.row | 32@tmem.col]">'
IN_LANES = "(128, 32) : [4@warp 32@lane | 32@reg]"
NUMBER, FIRST = "number = affine_map<() -> (0)>", "phase = affine_map<() -> (0)>"
ALLOC = f"%sum = scheduled.tensor_alloc() {{columns = 32 : index}} : {SUM}\n"
MADE = f"""
    %a = scheduled.alloc() : {LEFT}
    %b = scheduled.alloc() : {RIGHT}
    {ALLOC}
    %full = scheduled.mbarrier() {{count = 1 : index, arrivals = 1 : index}} : !tile.ref<tensor<1xi64>, "block">
    %done = scheduled.mbarrier() {{count = 1 : index, arrivals = 1 : index}} : !tile.ref<tensor<1xi64>, "block">
"""
ALL = 'scheduled.barrier() {scope = "every role"}\n'
BYTES = 2 * (128 * 16 + 16 * 32)
COPIES = f"""
    scheduled.expect(%full) {{{NUMBER}, bytes = {BYTES} : index}}
    scheduled.tensor_copy(%x, %a, %full) {{map = {SAME}, {NUMBER}}}
    scheduled.tensor_copy(%y, %b, %full) {{map = {SAME}, {NUMBER}}}
"""
AWAIT_FULL = f"scheduled.await(%full) {{{NUMBER}, {FIRST}}}\n"
PRODUCT = 'scheduled.tensor_mma(%a, %b, %sum) {atom = "tcgen05", adds = affine_map<() -> (0)>}\n'
ADDED = PRODUCT.replace("(0)", "(1)")
COMMIT = f"scheduled.mma_commit(%done) {{{NUMBER}}}\n"
MULTIPLIES = AWAIT_FULL + PRODUCT + COMMIT
AWAIT = f"scheduled.await(%done) {{{NUMBER}, {FIRST}}}\n"
AFTER, BEFORE = (f'scheduled.tensor_fence() {{side = "{side}"}}\n' for side in ("after", "before"))
LOAD = f'%l = scheduled.tensor_load(%sum) : tensor<128x32xf32, "{IN_LANES}">\n'
BARRIER = 'scheduled.barrier() {scope = "block"}\n'
FREE = "scheduled.tensor_free(%sum)\n"
STORE = f"tile.store(%l, %out) {{map = {SAME}}}\n"
TAKEN = AWAIT + AFTER + LOAD
GIVEN_BACK = BEFORE + BARRIER + FREE + STORE
VALUE = f"""%v = tile.full() {{value = 3.0 : f64}} : tensor<128x32xf32>
    %r = tile.relayout(%v) {{layout = "{IN_LANES}", strict = false}} : tensor<128x32xf32, "{IN_LANES}">\n"""
PUT = "scheduled.tensor_put(%r, %sum)\n"
TOLD = BEFORE + BARRIER + AFTER
WRITE = f"""%w = tile.load(%x) {{map = {SAME}}} : tensor<128x16xf16, "(128, 16) : [4@warp 32@lane | 16@reg]">
    tile.store(%w, %a) {{map = {SAME}}}\n"""


def both(multiplies: str = MULTIPLIES) -> str:
    """The role that copies, and one that multiplies."""
    return role(COPIES) + role(multiplies, "multiplies")


def run(body: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """What a block of four warps computes, and the product of its operands."""
    kernel = kernel_of(
        parse(f"""
tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "in", "out"]}} do {{
^bb0(%x: !tile.ref<tensor<128x16xf16>>, %y: !tile.ref<tensor<16x32xf16>>, %out: !tile.ref<tensor<128x32xf32>>):
  scheduled.parallel() {{extents = array<i64: 1>, grain = 1 : index, warps = 4 : index}} do {{
  ^bb1(%i: index):
    {body}
    scheduled.end()
  }}
  tile.yield()
}}
""")
    )
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((128, 16), (16, 32)))
    return run_call(kernel, [x, y], seed)[0], (x.astype(np.float64) @ y).astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
def test_a_block_in_order(seed: int) -> None:
    got, exact = run(MADE + ALL + both() + TAKEN + GIVEN_BACK, seed)
    np.testing.assert_array_equal(got, exact)
    got, exact = run(MADE + ALL + both(AWAIT_FULL + PRODUCT + ADDED + COMMIT) + TAKEN + GIVEN_BACK, seed)
    np.testing.assert_array_equal(got, 2 * exact)


@pytest.mark.parametrize("seed", range(4))
def test_a_product_that_a_block_begins_itself(seed: int) -> None:
    """The first warp of those that go on with the sum has it begun."""
    own = MADE + ALL + role(COPIES)
    got, exact = run(own + MULTIPLIES + TAKEN + GIVEN_BACK, seed)
    np.testing.assert_array_equal(got, exact)
    got, exact = run(own + VALUE + AWAIT_FULL + PUT + TOLD + ADDED + COMMIT + TAKEN + GIVEN_BACK, seed)
    np.testing.assert_array_equal(got, exact + 3)


OUT_OF_ORDER = {
    "columns of another warp": (
        MADE.replace(ALLOC, "") + ALL + ALLOC + both() + TAKEN + GIVEN_BACK,
        RaceError,
        "`sum`, whose columns another warp asked for since the last barrier",
    ),
    "columns that are not freed": (
        MADE + ALL + both() + TAKEN + STORE,
        RaceError,
        "the columns of `sum` are not freed",
    ),
    "columns that are asked for twice": (
        MADE + ALLOC.replace("%sum", "%more") + ALL + both() + TAKEN + GIVEN_BACK,
        HazardError,
        "asks for tensor memory, and the block has some",
    ),
    "used after it was freed": (
        MADE + ALL + both() + TAKEN + GIVEN_BACK + LOAD.replace("%l", "%m"),
        RaceError,
        r"`scheduled\.tensor_load` uses `sum`, whose columns were freed",
    ),
    "freed while others load": (
        MADE + ALL + both() + TAKEN + BEFORE + FREE + BARRIER + STORE,
        RaceError,
        r"`scheduled\.tensor_free` frees `sum`, which other warps use, with no fence and barrier since",
    ),
    "freed with no fence": (
        MADE + ALL + both() + TAKEN + BARRIER + FREE + STORE,
        RaceError,
        r"`scheduled\.tensor_free` frees `sum`, which other warps use, with no fence and barrier since",
    ),
    "loaded with no fence": (
        MADE + ALL + both() + AWAIT + LOAD + GIVEN_BACK,
        RaceError,
        r"`scheduled\.tensor_load` uses what was written in `sum`, which was not waited for, or not fenced",
    ),
    "loaded before it is done": (
        MADE + ALL + both() + AFTER + LOAD + GIVEN_BACK + AWAIT,
        (RaceError, PhaseError),
        r"`scheduled\.tensor_load` uses|which other warps use|whose columns were freed|what other warps read",
    ),
    "multiplied before it has arrived": (
        MADE + ALL + both(PRODUCT + COMMIT + AWAIT_FULL) + TAKEN + GIVEN_BACK,
        RaceError,
        r"`scheduled\.tensor_mma` in role multiplies reads|tensor_copy` in role copies writes what",
    ),
    "overwritten while it is multiplied": (
        MADE + ALL + both() + AWAIT_FULL + WRITE + TAKEN + GIVEN_BACK,
        RaceError,
        r"`tile\.store` writes what `scheduled\.tensor_mma` in role multiplies (still reads|read)|tensor_mma` in role "
        r"multiplies reads what `tile\.store` wrote",
    ),
    "committed before it is begun": (
        MADE + ALL + both(AWAIT_FULL + COMMIT + PRODUCT) + TAKEN + GIVEN_BACK,
        RaceError,
        r"nothing waits for `scheduled\.tensor_mma`|still writes|whose columns were freed|what other warps read",
    ),
    "never committed": (
        MADE + ALL + both(AWAIT_FULL + PRODUCT) + TAKEN + GIVEN_BACK,
        (RaceError, DeadlockError),
        r"nothing waits for `scheduled\.tensor_mma` in role multiplies|deadlock: no thread",
    ),
    "committed twice": (
        MADE + ALL + both(MULTIPLIES + COMMIT) + TAKEN + GIVEN_BACK,
        PhaseError,
        r"`scheduled\.mma_commit` in role multiplies (is an arrival|arrives) at barrier 0 of `done`",
    ),
    "put with no fence": (
        MADE + ALL + role(COPIES) + VALUE + AWAIT_FULL + PUT + BARRIER + AFTER + ADDED + COMMIT + TAKEN + GIVEN_BACK,
        RaceError,
        r"`scheduled\.tensor_mma` uses what was written in `sum`, which was not waited for, or not fenced",
    ),
    "put with no barrier": (
        MADE + ALL + role(COPIES) + VALUE + AWAIT_FULL + PUT + BEFORE + AFTER + ADDED + COMMIT + TAKEN + GIVEN_BACK,
        RaceError,
        r"`scheduled\.tensor_mma` uses what was written in `sum`, which was not waited for, or not fenced",
    ),
    "put while a product is under way": (
        MADE + ALL + role(COPIES) + VALUE + MULTIPLIES + PUT + TAKEN + GIVEN_BACK,
        RaceError,
        r"`scheduled\.tensor_put` uses (`sum`, which `scheduled\.tensor_mma` still|what was) writ(es|ten)",
    ),
    "lanes that a warp does not reach": (
        MADE + ALL + both() + TAKEN.replace("4@warp 32@lane | 32@reg", "32@lane 4@reg | 4@warp 8@reg*4") + GIVEN_BACK,
        HazardError,
        r"`scheduled\.tensor_load` moves elements between lanes",
    ),
    "rows of other warps": (
        MADE + ALL + both() + TAKEN.replace("4@warp 32@lane", "2@warp 2@warp*2 32@lane") + GIVEN_BACK,
        HazardError,
        r"`scheduled\.tensor_load` takes lanes to warp 1 that it does not reach",
    ),
    "a product where others read": (
        MADE + ALL + both() + role(AWAIT + AFTER + PRODUCT + COMMIT, "more") + TAKEN + GIVEN_BACK,
        (RaceError, PhaseError, DeadlockError),
        r"what other warps read in `sum`|still writes|whose columns were freed|`done`|tensor_mma` in role more",
    ),
}


@pytest.mark.parametrize("name", OUT_OF_ORDER)
def test_what_is_out_of_order_is_said(name: str) -> None:
    body, error, message = OUT_OF_ORDER[name]
    for seed in range(6):
        with pytest.raises(error, match=message):
            run(body, seed)
