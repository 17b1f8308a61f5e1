"""Kernels with roles run by the definitions of their operations: in any order they give what NumPy does, and what is
out of order is said, with the operation and its trip."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.cuda.role_kernels import RoleProduct
from tests.passes.pass_support import parse
from tilewright.dialects import scheduled, tile
from tilewright.semantics.hazards import DeadlockError, HazardError, PhaseError, RaceError
from tilewright.semantics.scheduled import run_call
from tilewright.semantics.warps.agents import Team
from tilewright.semantics.warps.block_memory import BlockMemory, Buffer, Tensor
from tilewright.semantics.warps.block_run import BlockPlan
from tilewright.semantics.warps.clocks import Clocks


def kernel_of(module: ModuleOp) -> tile.KernelOp:
    (kernel,) = (op for op in module.walk() if isinstance(op, tile.KernelOp))
    return kernel


# ---- products -------------------------------------------------------------------------------------------------------

PRODUCTS = [
    RoleProduct(),
    RoleProduct(k=32),
    RoleProduct(k=33, stages=2),
    RoleProduct(m=17, n=9, k=300, M=64, groups=1, stages=4),
    RoleProduct(m=130, n=70, k=64, stages=5),
    RoleProduct(m=64, n=32, k=160, M=64, groups=1, stages=2),
]


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
@pytest.mark.parametrize("copied", ["by a role", "by itself"])
def test_products_in_any_order(product: RoleProduct, copied: str) -> None:
    kernel = kernel_of(product.copied_by_a_role() if copied == "by a role" else product.copied_by_itself())
    for seed in range(10):
        (got,) = run_call(kernel, list(product.arrays()), seed)
        np.testing.assert_array_equal(got, product.exact())


@pytest.mark.parametrize("product", PRODUCTS[1:4], ids=str)
def test_a_role_that_multiplies_as_well(product: RoleProduct) -> None:
    kernel = kernel_of(product.multiplied_twice())
    for seed in range(10):
        for got in run_call(kernel, list(product.arrays()), seed):
            np.testing.assert_array_equal(got, product.exact())


def test_orders_differ_with_the_seed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order is the sequence of agents that take turns."""
    turns: list[str] = []
    hand_over = Team._hand_over  # pyright: ignore[reportPrivateUsage]

    def noted(team: Team) -> None:
        turns.append(team.current.name)
        hand_over(team)

    monkeypatch.setattr(Team, "_hand_over", noted)
    product = RoleProduct(m=64, n=32, k=160, M=64, groups=1)
    kernel, seen = kernel_of(product.copied_by_a_role()), list[list[str]]()
    for seed in (0, 0, 1, 2):
        turns.clear()
        run_call(kernel, list(product.arrays()), seed)
        seen.append(list(turns))
    assert seen[0] == seen[1]
    assert len({tuple(each) for each in seen}) == 3
    assert {name for each in seen for name in each} == {"the block", "role copies"}


def test_memory_of_a_block_is_limited() -> None:
    product = RoleProduct()
    kernel = kernel_of(product.copied_by_a_role())
    needed = 3 * (128 * 32 * 2 + 32 * 32 * 2) + 128 * 32 * 4
    with pytest.raises(HazardError, match=rf"has \d+ bytes of memory, of {needed}"):  # the barriers have no room
        run_call(kernel, list(product.arrays()), shared_bytes=needed)
    run_call(kernel, list(product.arrays()), shared_bytes=needed + 4096)


# ---- what is out of order -------------------------------------------------------------------------------------------

BARRIERS = '!tile.ref<tensor<1xi64>, "block">'
BUFFER = '!tile.ref<tensor<64x16xf16>, "block", "(64, 16) : [64@mem.shared*16 | 16@mem.shared]">'
TURNED = '!tile.ref<tensor<16x64xf16>, "block", "(16, 64) : [16@mem.shared*64 | 64@mem.shared]">'
TILE = 'tensor<64x16xf16, "(64, 16) : [4@warp 16@reg*2 | 16@lane 1@reg]">'
SAME = "affine_map<(d0, d1) -> (d0, d1)>"
NUMBER = "number = affine_map<() -> (0)>"
PLACES = "affine_map<() -> (0)>"
MADE = f"""
    %a = scheduled.alloc() : {BUFFER}
    %b = scheduled.alloc() : {TURNED}
    %full = scheduled.mbarrier() {{count = 1 : index, arrivals = 1 : index}} : {BARRIERS}
    scheduled.barrier() {{scope = "every role"}}
"""
BYTES = 2 * 2 * 64 * 16
EXPECT = f"scheduled.expect(%full) {{{NUMBER}, bytes = {BYTES} : index}}\n"
COPY_A = f"scheduled.tensor_copy(%x, %a, %full) {{map = {SAME}, {NUMBER}}}\n"
COPY_B = f"scheduled.tensor_copy(%y, %b, %full) {{map = {SAME}, {NUMBER}}}\n"
COPIES = EXPECT + COPY_A + COPY_B
AWAIT = f"scheduled.await(%full) {{{NUMBER}, phase = affine_map<() -> (0)>}}\n"
SUM = "tensor<64x64xf32>"
ZERO = f"%zero = tile.full() {{value = 0.0 : f64}} : {SUM}\n"
PRODUCT = f'%going = scheduled.mma(%a, %b, %zero) {{atom = "wgmma", asynchronous = true}} : {SUM}\n'
DONE = f"%sum = scheduled.mma_wait(%going) {{pending = 0 : index}} : {SUM}\n"
STORE = f"tile.store(%sum, %out) {{map = {SAME}}}\n"
LOAD = f"%l = tile.load(%a) {{map = {SAME}}} : {TILE}\n"
WRITE = f"%w = tile.load(%x) {{map = {SAME}}} : {TILE}\ntile.store(%w, %a) {{map = {SAME}}}\n"
BARRIER = 'scheduled.barrier() {scope = "block"}\n'
ALL = 'scheduled.barrier() {scope = "every role"}\n'
ARRIVE = f"scheduled.arrive(%full) {{{NUMBER}}}\n"


def role(body: str, name: str = "copies", warps: int = 1) -> str:
    return f'scheduled.role() {{role = "{name}", warps = {warps} : index}} do {{\n{body}scheduled.end()\n}}\n'


def run(body: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """What a block of four warps with `MADE` computes, and the product of its operands."""
    kernel = kernel_of(
        parse(f"""
tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "in", "out"]}} do {{
^bb0(%x: !tile.ref<tensor<64x16xf16>>, %y: !tile.ref<tensor<16x64xf16>>, %out: !tile.ref<tensor<64x64xf32>>):
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
    x, y = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((64, 16), (16, 64)))
    return run_call(kernel, [x, y], seed)[0], (x.astype(np.float64) @ y).astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
def test_a_block_in_order(seed: int) -> None:
    got, expected = run(MADE + role(COPIES) + AWAIT + ZERO + PRODUCT + DONE + STORE, seed)
    np.testing.assert_array_equal(got, expected)


REST = ZERO + PRODUCT + DONE + STORE
FENCED = MADE + WRITE + "scheduled.fence()\n" + BARRIER + role(EXPECT.replace(str(BYTES), str(BYTES // 2)) + COPY_B)
OUT_OF_ORDER = {
    "read of what is under way": (
        MADE + role(COPIES) + ZERO + PRODUCT + DONE + STORE + AWAIT,
        RaceError,
        r"`scheduled\.mma` reads where `scheduled\.tensor_copy` in role copies has not arrived|not waited for|`"
        r"scheduled\.tensor_copy` in role copies writes what `scheduled\.mma` (still reads|read since)",
    ),
    "a phase that nobody waits for twice": (
        MADE + role(2 * COPIES) + AWAIT + REST,
        (RaceError, PhaseError),
        r"arrival at barrier 0 of `full`|has not arrived|still reads|nobody waited|read since",
    ),
    "overwritten while it is read": (
        MADE + role(COPIES) + AWAIT + ZERO + PRODUCT + WRITE + DONE + STORE,
        RaceError,
        r"`tile\.store` writes what `scheduled\.mma` still reads",
    ),
    "overwritten before others have read": (
        MADE + role(COPIES) + AWAIT + LOAD + WRITE.replace("%w", "%v") + REST,
        RaceError,
        r"`tile\.store` writes what `tile\.load` read since the last barrier",
    ),
    "an accumulator under way": (
        MADE + role(COPIES) + AWAIT + ZERO + PRODUCT + STORE.replace("%sum", "%going") + DONE,
        RaceError,
        r"`tile\.store` uses `scheduled\.mma`, which has not been waited for",
    ),
    "registers that others go on with": (
        MADE
        + role(COPIES)
        + AWAIT
        + ZERO
        + PRODUCT
        + DONE
        + PRODUCT.replace("%going", "%more").replace("zero", "going"),
        RaceError,
        r"`scheduled\.mma` uses `scheduled\.mma`, whose registers `scheduled\.mma_wait` accumulates into",
    ),
    "a product at the end": (
        MADE + role(COPIES) + AWAIT + ZERO + PRODUCT,
        RaceError,
        r"nothing waits for `scheduled\.mma`",
    ),
    "a copy at the end": (
        MADE + role(COPIES),
        RaceError,
        r"nothing waits for `scheduled\.tensor_copy` in role copies",
    ),
    "no fence": (
        FENCED.replace("scheduled.fence()", "") + AWAIT + REST,
        RaceError,
        r"`scheduled\.mma` reads what `tile\.store` wrote, with no fence before a barrier",
    ),
    "a fence with no barrier": (
        FENCED.replace("scheduled.fence()\n" + BARRIER, "scheduled.fence()\n") + AWAIT + REST,
        RaceError,
        r"`scheduled\.mma` reads what `tile\.store` wrote since the last barrier",
    ),
    "a fence behind the barrier": (
        FENCED.replace("scheduled.fence()\n" + BARRIER, BARRIER + "scheduled.fence()\n") + AWAIT + REST,
        RaceError,
        r"with no fence before a barrier",
    ),
    "a copy over what is not fenced": (
        MADE + WRITE + ALL + role(COPIES) + AWAIT + REST,
        RaceError,
        r"`scheduled\.tensor_copy` in role copies writes what `tile\.store` wrote, with no fence",
    ),
    "too few bytes": (
        MADE + role(EXPECT + COPY_A) + AWAIT + REST,
        DeadlockError,
        rf"the block waits for phase 0 of barrier 0 of `full` \(in phase 0, 0 of 1 arrivals and {BYTES // 2} bytes "
        r"pending\) in `scheduled\.await`; role copies has ended",
    ),
    "too many bytes": (
        MADE + role(EXPECT.replace(str(BYTES), str(BYTES // 4)) + COPY_A + COPY_B) + AWAIT + REST,
        PhaseError,
        r"`scheduled\.tensor_copy` in role copies copies 2048 bytes to barrier 0 of `full`",
    ),
    "a copy that nobody expects": (
        MADE + role(COPY_A + EXPECT + COPY_B) + AWAIT + REST,
        PhaseError,
        r"copies 2048 bytes to barrier 0 of `full`",
    ),
    "one arrival too many": (
        MADE.replace("arrivals = 1", "arrivals = 2") + role(ARRIVE + ARRIVE + ARRIVE) + AWAIT,
        PhaseError,
        r"within a phase|does not know|nobody waited",
    ),
    "arrivals of more warps than the phase waits for": (
        MADE + role(AWAIT) + role(ARRIVE, "others", 3),
        PhaseError,
        r"`scheduled\.arrive` in role others is 3 arrivals at barrier 0 of `full`",
    ),
    "an arrival at the end": (
        MADE.replace("arrivals = 1", "arrivals = 2") + ARRIVE,
        PhaseError,
        r"the block ends within a phase of barrier 0 of `full` \(in phase 0, 1 of 2 arrivals",
    ),
    "a phase that is not next": (
        MADE + role(COPIES) + AWAIT.replace("-> (0)>}", "-> (1)>}") + REST,
        PhaseError,
        r"`scheduled\.await` waits for phase 1 of barrier 0 of `full`",
    ),
    "a phase that may pass twice": (
        MADE + role(AWAIT) + ARRIVE + ARRIVE,
        PhaseError,
        r"no thread waited for the phase before it|`scheduled\.await` in role copies may still wait|sees only "
        r"its last bit",
    ),
    "a barrier of a role": (
        MADE + role(BARRIER),
        HazardError,
        r"`scheduled\.barrier` in role copies of `block`, to which no role belongs",
    ),
    "a barrier that a role does not reach": (
        MADE + role(COPIES) + AWAIT + ALL + REST,
        DeadlockError,
        r"the block waits for all others at `scheduled\.barrier` of every role; role copies has ended",
    ),
    "barriers that another warp made": (
        MADE.replace("every role", "block") + role(COPIES) + AWAIT + REST,
        RaceError,
        r"`scheduled\.expect` in role copies uses barrier 0 of `full`, which another warp made",
    ),
    "barriers made twice": (
        MADE
        + f"""tile.for() {{trips = 2 : index}} do {{
          ^bb2(%t: index):
            %m = scheduled.mbarrier() {{count = 1 : index, arrivals = 1 : index}} : {BARRIERS}
            tile.yield()
        }}""",
        HazardError,
        r"`scheduled\.mbarrier` of trip 1 makes barriers where there are some",
    ),
    "a buffer where barriers are": (
        MADE.replace("{count", "{offset_bytes = 1024 : index, count").replace(
            f"alloc() : {BUFFER}", f"alloc() {{offset_bytes = 0 : index}} : {BUFFER}"
        ),
        HazardError,
        r"`scheduled\.alloc` from byte 0 overlaps `scheduled\.mbarrier`, from 1024",
    ),
    "a copy of warps that a role does not wait for": (
        MADE
        + role(f'scheduled.copy(%x, %a) {{map = {SAME}, layout = "(64, 16) : [2@reg*8 32@lane | 2@reg 8@reg]"}}\n'),
        RaceError,
        r"nothing waits for `scheduled\.copy` in role copies",
    ),
}


@pytest.mark.parametrize("name", OUT_OF_ORDER)
def test_what_is_out_of_order_is_said(name: str) -> None:
    body, error, message = OUT_OF_ORDER[name]
    before = threading.active_count()
    for seed in range(6):
        with pytest.raises(error, match=message):
            run(body, seed)
    assert threading.active_count() == before


def test_errors_of_other_kinds_leave_no_thread_behind() -> None:
    """A role that waits for ever, and an assertion of the block that fails."""
    failing = '%no = tile.full() {value = false} : tensor<i1>\ntile.assert(%no) {message = "stop"}\n'
    before = threading.active_count()
    with pytest.raises(Exception, match="stop"):
        run(MADE + role(AWAIT) + failing)
    assert threading.active_count() == before


def test_a_copy_brings_poison_until_it_arrives() -> None:
    module = parse(f"scheduled.parallel() {{extents = array<i64>, grain = 1 : index}} do {{ {MADE} scheduled.end() }}")
    (region,) = (op for op in module.walk() if isinstance(op, scheduled.ParallelOp))
    plan = BlockPlan(region)
    memory = BlockMemory(plan.memory, Clocks(2, 1), plan.agents())
    buffer = memory.buffer(next(op for op in region.walk() if isinstance(op, scheduled.AllocOp)))
    assert isinstance(buffer, Buffer)
    for values in (np.ones((64, 16)), np.zeros((64, 16))):
        memory.start_write(0, buffer, "first")
        assert np.isnan(memory.contents(buffer)).all()
        memory.finish_write(buffer, values, 0, 0, "first")
        np.testing.assert_array_equal(memory.contents(buffer), values)
