"""Multicast in thread block clusters: copies and commits of products that come to all blocks, and what is an error."""

import random

import numpy as np
import pytest

from tests.emulators.ptx import test_tcgen05 as tcgen05
from tests.emulators.ptx.assembled import assembled
from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.errors import BarrierMisuse, Deadlock, MemoryFault, SharedRace
from tests.emulators.ptx.tensor_maps import TensorMap
from tests.emulators.ptx.test_clusters import (
    EXPECT,
    MEET,
    MEET_RELAXED,
    RANKS,
    READY,
    SEEDS,
    clustered,
    errors_of,
    execute,
)
from tests.emulators.ptx.test_mbarriers import INIT, START, waiting

# Each rank fetches its half of 128 numbers for both.
COPY = """@%p0 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
    [%d15], [%d100, {%r11}], [tw_shared+4096], %h1;"""
HALVES = f"""{READY} mov.b16 %h1, MASK; mul.wide.u32 %d15, %r5, 256; add.s64 %d15, %d15, %d2; shl.b32 %r11, %r5, 6;
    EXPECT {COPY} {waiting()} ld.shared.b32 %r10, [%d3]; ld.shared.b32 %r12, [%d3+256];
    mul.wide.u32 %d16, %r5, 512; add.s64 %d16, %d16, %d0; add.s64 %d16, %d16, %d101;
    st.global.b32 [%d16], %r10; st.global.b32 [%d16+256], %r12;"""


def test_copies_to_all_blocks() -> None:
    given, output = np.arange(128, dtype=np.int32), np.zeros((2, 128), np.int32)
    arrays = [TensorMap(given, (64,)), output]
    expect = EXPECT.replace("BYTES", "512")
    body = HALVES.replace("MASK", "3")
    for seed in SEEDS:
        output[:] = 0
        execute(body.replace("EXPECT", expect), arrays, seed=seed)
        assert (output == given).all()
    of_one = COPY.replace("multicast::cluster", "multicast::cluster.cta_group::1")
    execute(body.replace("EXPECT", expect).replace(COPY, of_one), arrays, chip="sm_100a")
    # The other block's bytes may come before they are expected.
    late = body.replace("EXPECT", "").replace(COPY, f"{COPY} {MEET} {expect}")
    execute(late, arrays)
    with pytest.raises(SharedRace, match="that a copy which nobody awaited will write"):
        execute(body.replace("EXPECT", EXPECT.replace("BYTES", "256")), arrays)
    for mask in (0, 5):
        with pytest.raises(MemoryFault, match="names none of 2 blocks, or more than there are"):
            execute(HALVES.replace("MASK", str(mask)).replace("EXPECT", expect), arrays)
    with pytest.raises(Deadlock, match="512 bytes pending"):
        execute(HALVES.replace("MASK", "1").replace("EXPECT", expect), arrays)
    unfenced = body.replace("@%p0 fence.mbarrier_init.release.cluster;", "").replace(MEET_RELAXED, MEET)
    with pytest.raises(BarrierMisuse, match="no fence for the asynchronous proxy"):
        execute(unfenced.replace("EXPECT", expect), arrays)
    with pytest.raises(BarrierMisuse, match=r"was initialised by another warp|there is no mbarrier"):
        execute(body.replace("EXPECT", expect).replace(MEET_RELAXED, ""), arrays)


def test_bytes_come_before_they_are_expected() -> None:
    """Rank 0 has its copy before rank 1 expects the same one."""
    given, output = np.arange(64, dtype=np.int32), np.zeros((2, 64), np.int32)
    body = f"""{READY} mov.b16 %h1, 3; mov.b32 %r11, 0; mov.b64 %d15, %d2; {COPY.replace("%p0", "%p10")}
    @%p9 bra $late; {EXPECT.replace("BYTES", "256")} {waiting()} {MEET} bra $both;
    $late: {MEET} {EXPECT.replace("BYTES", "256")} {waiting(0, "$v")}
    $both: ld.shared.b32 %r10, [%d3]; mul.wide.u32 %d16, %r5, 256; add.s64 %d16, %d16, %d0;
    add.s64 %d16, %d16, %d101; st.global.b32 [%d16], %r10;"""
    for seed in SEEDS:
        output[:] = 0
        execute(body, [TensorMap(given, (64,)), output], seed=seed)
        assert (output == given).all()


def test_copies_without_a_tensor_map() -> None:
    given, output = np.arange(64, dtype=np.int32), np.zeros((2, 64), np.int32)
    form = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    body = f"""{READY} mov.b16 %h1, 3; {EXPECT.replace("BYTES", "256")} COPY {waiting()}
    ld.shared.b32 %r10, [%d3]; mul.wide.u32 %d16, %r5, 256; add.s64 %d16, %d16, %d0;
    add.s64 %d16, %d16, %d101; st.global.b32 [%d16], %r10; {MEET}"""
    to_all = f"@%p10 {form}.multicast::cluster [tw_shared], [%d100], 256, [tw_shared+4096], %h1;"
    # Each block fetches for the other.
    to_other = f"mapa.shared::cluster.u64 %d12, %d2, %r6; @%p0 {form} [%d12], [%d100], 256, [%d10];"
    for copy in (to_all, to_other):
        output[:] = 0
        execute(body.replace("COPY", copy), [given, output])
        assert (output == given).all()
    with pytest.raises(MemoryFault, match=r"a copy to rank \d at an mbarrier of \d"):
        execute(body.replace("COPY", to_other.replace("[%d10]", "[tw_shared+4096]")), [given, output])


READS = "ld.shared.b32 %r32, [%d23];"
# Two stages, whose halves the first warps of both ranks fetch for both, and whose second warps add them up. A stage is
# full with its bytes and empty when both blocks have read it.
PIPELINE = f"""{START}{RANKS} @%p0 mbarrier.init.shared::cta.b64 [tw_shared+4096], 1;
    @%p0 mbarrier.init.shared::cta.b64 [tw_shared+4104], 1; @%p0 mbarrier.init.shared::cta.b64 [tw_shared+4112], 64;
    @%p0 mbarrier.init.shared::cta.b64 [tw_shared+4120], 64; @%p0 fence.mbarrier_init.release.cluster; {MEET_RELAXED}
    mov.b16 %h1, 3; mov.b32 %r20, 0; mov.b32 %r30, 0; setp.eq.u32 %p2, %r1, 1; setp.ne.u32 %p3, %r0, 0;
    @%p2 bra $step; @%p3 bra $end;
    $step: and.b32 %r21, %r20, 1; shr.u32 %r22, %r20, 1; and.b32 %r23, %r22, 1; xor.b32 %r24, %r23, 1;
    mul.wide.u32 %d20, %r21, 8; add.s64 %d20, %d20, %d2; mul.wide.u32 %d21, %r21, 256; @%p2 bra $full;
    $empty: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%d20+4112], %r24; @!%p5 bra $empty;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%d20+4096], 256; mul.wide.u32 %d22, %r5, 128;
    add.s64 %d22, %d22, %d21; add.s64 %d22, %d22, %d2; shl.b32 %r25, %r20, 6; shl.b32 %r26, %r5, 5;
    add.s32 %r25, %r25, %r26; mov.b32 %r27, 0;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
        [%d22], [%d100, {{%r25, %r27}}], [%d20+4096], %h1; bra $next;
    $full: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%d20+4096], %r23; @!%p5 bra $full;
    add.s64 %d23, %d3, %d21; ld.shared.b32 %r31, [%d23+-128]; {READS}
    add.s32 %r30, %r30, %r31; mad.lo.s32 %r30, %r32, 3, %r30; add.s64 %d24, %d20, 4112;
    mapa.shared::cluster.u64 %d25, %d24, 0; mapa.shared::cluster.u64 %d26, %d24, 1;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%d25];
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%d26];
    $next: add.s32 %r20, %r20, 1; setp.lt.u32 %p6, %r20, 7; @%p6 bra $step;
    @!%p2 bra $end; mul.wide.u32 %d27, %r5, 128; add.s64 %d27, %d27, %d101; add.s64 %d27, %d27, %d0;
    st.global.b32 [%d27+-128], %r30; $end: {MEET}"""


def test_a_pipeline_of_copies_to_both_blocks() -> None:
    given = np.random.default_rng(0).integers(0, 1000, (2, 7 * 64), np.int32)
    output = np.zeros((2, 32), np.int32)
    arrays = [TensorMap(given, (32, 1)), output]
    halves = given[0].reshape(7, 2, 32).sum(axis=0)
    for seed in SEEDS:
        output[:] = 0
        execute(PIPELINE, arrays, seed=seed)
        assert (output == halves[0] + 3 * halves[1]).all()
    errors = (SharedRace, BarrierMisuse, Deadlock)
    for right, wrong, message in (
        ("@!%p5 bra $empty;", "", "1 arrivals at the mbarrier"),
        ("@!%p5 bra $full;", "", "a copy which nobody awaited will write"),
        ("_, [%d26]", "_, [%d25]", "nobody awaited|did not wait for|1 arrivals at the mbarrier"),
        ("_, [%d20+4096], 256", "_, [%d20+4096], 128", "a copy which nobody awaited will write"),
        ("%h1, 3", "%h1, 1", "0 of 1 arrivals.*of the cluster .62 of 128"),
        (f"$end: {MEET}", "$end:", "which ended|before it can know of an operation of warp 1"),
        (f"$end: {MEET}", f"$end: {MEET_RELAXED}", "before it can know of an operation of warp 1"),
    ):
        for seed in SEEDS:
            with pytest.raises(errors, match=message):
                execute(PIPELINE.replace(right, wrong), arrays, seed=seed)
    late = PIPELINE.replace(READS, "").replace("[%d26];", f"[%d26]; {READS}")
    with pytest.raises(SharedRace, match="another warp read before it"):
        execute(late, arrays)


def test_a_block_ends_while_a_copy_is_on_its_way() -> None:
    given, output = np.arange(128, dtype=np.int32), np.zeros((2, 128), np.int32)
    arrays = [TensorMap(given, (64,)), output]
    body = HALVES.replace("MASK", "3").replace("EXPECT", EXPECT.replace("BYTES", "256").replace("%p0", "%p11"))
    body = body.replace(COPY, COPY.replace("%p0", "%p11"))
    body = body.replace(waiting(), f"@%p8 bra $end; {waiting()}")
    assert errors_of(f"{body} $end:", arrays, SharedRace) == {
        "reaches shared memory of rank 0, which ended",
        "the block ends before a bulk copy to shared memory lands",
    }
    # It waits for the cluster, but not for the copy, which may have landed by then.
    assert errors_of(f"{body} $end: {MEET}", arrays, SharedRace) == {
        "the block ends before it can know of an asynchronous operation of another block on its shared memory",
        "the block ends before a bulk copy to shared memory lands",
    }


# ---- tcgen05.commit --------------------------------------------------------------------------------------------------

# A second mbarrier behind what tcgen05 needs, and operands of 128 x 16 and 32 x 16 numbers.
SECOND = tcgen05.SLOT + 8
LEFT, RIGHT = (tcgen05.descriptor(start, 16, 1024, 128) for start in (0, tcgen05.B_AT))
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
# Rank 0 multiplies and tells both; then rank 1 copies to where the operands of rank 0 are. %d13 is rank 0's mbarrier.
MULTIPLIES = f"""{tcgen05.START}{RANKS} {tcgen05.ALLOCATED} and.pred %p10, %p0, %p8; and.pred %p11, %p0, %p9;
    @%p0 mbarrier.init.shared::cta.b64 [tw_shared+{SECOND}], 1; @%p0 fence.mbarrier_init.release.cluster; {MEET_RELAXED}
    mapa.shared::cluster.u64 %d12, %d2, 0; add.s64 %d13, %d12, {SECOND}; mov.b16 %h1, MASK;
    mov.b64 %d30, {LEFT}; mov.b64 %d31, {RIGHT}; mov.b32 %r10, {tcgen05.Case().descriptor}; setp.ne.b32 %p4, 0, 0;
    @%p10 tcgen05.mma.cta_group::1.kind::f16 [%r8], %d30, %d31, %r10, %p4;
    @%p10 {COMMIT} [tw_shared+{tcgen05.BARRIER}], %h1;
    @%p10 mbarrier.arrive.expect_tx.shared::cta.b64 _, [tw_shared+{SECOND}], 256;
    {tcgen05.Case().wait}
    @%p11 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%d12], [%d100], 256, [%d13];
    @%p9 bra $end; {tcgen05.Case().wait.replace("$w", "$v").replace(str(tcgen05.BARRIER), str(SECOND))}
    $end: {MEET} {tcgen05.FREED}"""


def multiply(body: str, seed: int = 0) -> None:
    text = clustered(body, ["p"]).replace("sm_90a", "sm_100a")
    run(assembled(text, "sm_100a"), "test", 2, 128, [np.zeros(64, np.int32)], tcgen05.ALL + 64, random.Random(seed))


def test_commits_at_all_blocks() -> None:
    body = MULTIPLIES.replace("MASK", "3")
    for seed in SEEDS:
        multiply(body, seed)
    unaware = body.replace(tcgen05.Case().wait, f"@%p9 bra $on; {tcgen05.Case().wait} $on:")
    for seed in SEEDS:
        with pytest.raises(SharedRace, match="nobody awaited"):
            multiply(unaware, seed)
    with pytest.raises(Deadlock, match=r"of rank 1 \(phase 0, 1 of 1 arrivals"):
        multiply(MULTIPLIES.replace("MASK", "1"))
    with pytest.raises(MemoryFault, match="names none of 2 blocks, or more than there are"):
        multiply(MULTIPLIES.replace("MASK", "6"))


def test_a_block_ends_before_a_commit_of_another_arrives() -> None:
    body = f"""{tcgen05.START}{RANKS}{INIT.replace("COUNT", "1")} {MEET_RELAXED} and.pred %p10, %p0, %p8;
    mov.b16 %h1, 3; @%p10 {COMMIT} [tw_shared+4096], %h1; @%p9 bra $end; {waiting()} $end:"""
    assert errors_of(body, [], SharedRace, "sm_100a") == {
        "reaches shared memory of rank 1, which ended",
        "the block ends before an arrival by tcgen05.commit lands",
    }
