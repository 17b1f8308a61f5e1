"""Thread block clusters: hand-written PTX whose blocks reach each other's memory, and what is an error."""

import random
import re

import numpy as np
import pytest

from tests.emulators.ptx.assembled import assembled
from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.errors import BarrierMisuse, Deadlock, Divergence, MemoryFault, SharedRace
from tests.emulators.ptx.tensor_maps import TensorMap
from tests.emulators.ptx.test_mbarriers import INIT, START, module, waiting

PAIR = ".explicitcluster\n.reqnctapercluster 2, 1, 1"
RANKS = "mov.u32 %r5, %cluster_ctarank; xor.b32 %r6, %r5, 1; setp.eq.u32 %p8, %r5, 0; setp.eq.u32 %p9, %r5, 1;"
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
MEET_RELAXED = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
# %d10 is the other block's mbarrier, %p10 and %p11 the first threads of rank 0 and 1.
READY = f"""{START}{RANKS}{INIT.replace("COUNT", "1")} {MEET_RELAXED}
    add.s64 %d11, %d2, 4096; mapa.shared::cluster.u64 %d10, %d11, %r6;
    and.pred %p10, %p0, %p8; and.pred %p11, %p0, %p9;"""
ARRIVE = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%d10];"
EXPECT = "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [tw_shared+4096], BYTES;"
SEEDS = range(6)


def clustered(body: str, parameters: list[str], directives: str = PAIR) -> str:
    return module(body, parameters).replace(")\n{", f")\n{directives}\n{{")


def execute(
    body: str,
    arrays: list,
    threads: int = 64,
    blocks: int | tuple[int, int, int] = 2,
    seed: int = 0,
    chip: str = "sm_90a",
) -> None:
    kinds = ["m" if isinstance(each, TensorMap) else "p" for each in arrays]
    text = assembled(clustered(body, kinds).replace("sm_90a", chip), chip)
    run(text, "test", blocks, threads, arrays, 8192, random.Random(seed))


def errors_of(body: str, arrays: list, error: type[Exception], chip: str = "sm_90a") -> set[str]:
    """What goes wrong in one order or another: something does in each."""
    texts = set()
    for seed in SEEDS:
        with pytest.raises(error) as raised:
            execute(body, arrays, seed=seed, chip=chip)
        texts.add(re.sub(r"^thread \d+ |[,:] block .*", "", str(raised.value)))
    return texts


# ---- special registers, addresses, launches --------------------------------------------------------------------------


def test_special_registers() -> None:
    names = ["cluster_ctarank", "cluster_nctarank", "clusterid.x", "clusterid.y", "nclusterid.x", "nclusterid.y"]
    names += ["cluster_ctaid.x", "cluster_nctaid.x", "cluster_nctaid.y"]
    body = f"""mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ctaid.y; mad.lo.u32 %r0, %r1, 4, %r0;
    mul.wide.u32 %d0, %r0, {4 * len(names)}; add.s64 %d0, %d0, %d100;"""
    body += "".join(f"mov.u32 %r2, %{name}; st.global.b32 [%d0+{4 * i}], %r2;" for i, name in enumerate(names))
    output = np.zeros((2, 4, len(names)), np.int32)
    execute(body, [output], 1, (4, 2, 1))
    for y, x in np.ndindex(2, 4):
        assert output[y, x].tolist() == [x % 2, 2, x // 2, y, 2, 2, x % 2, 2, 1]


def test_addresses_of_a_cluster() -> None:
    """The own address is that of shared::cta; another block's is not, and leads back."""
    body = f"""{START}{RANKS} mapa.shared::cluster.u64 %d10, %d2, %r5; mapa.shared::cluster.u64 %d11, tw_shared, %r6;
    mapa.shared::cluster.u64 %d12, %d11, %r5; mapa.u64 %d13, %d2, 1; cvt.u32.u64 %r20, %d2;
    mapa.shared::cluster.u32 %r21, %r20, 1; cvt.u64.u32 %d14, %r21; getctarank.shared::cluster.u64 %r22, %d11;
    getctarank.shared::cluster.u32 %r23, %r21; getctarank.u64 %r24, %d2;
    setp.eq.u64 %p2, %d2, %d10; selp.b32 %r10, 1, 0, %p2; setp.eq.u64 %p2, %d2, %d12; selp.b32 %r11, 1, 0, %p2;
    setp.eq.u64 %p2, %d2, %d11; selp.b32 %r12, 1, 0, %p2; setp.eq.u64 %p2, %d13, %d14; selp.b32 %r13, 1, 0, %p2;
    mul.wide.u32 %d20, %r5, 28; add.s64 %d20, %d20, %d100;"""
    body += "".join(f"@%p0 st.global.b32 [%d20+{4 * i}], %r{n};" for i, n in enumerate((10, 11, 12, 13, 22, 23, 24)))
    output = np.zeros((2, 7), np.int32)
    execute(body, [output])
    assert output.tolist() == [[1, 1, 0, 1, 1, 1, 0], [1, 1, 0, 1, 0, 1, 1]]
    with pytest.raises(MemoryFault, match="no block of the cluster has rank 2"):
        execute(body.replace("%d13, %d2, 1", "%d13, %d2, 2"), [output])
    with pytest.raises(MemoryFault, match="outside of the cluster's shared memory"):
        execute(body.replace("%d11, tw_shared, %r6", "%d11, %d100, %r6"), [output])


def test_what_is_launched() -> None:
    def launch(directives: str, blocks: int, cluster: int | None = None) -> None:
        run(assembled(clustered("", [], directives), "sm_90a"), "test", blocks, 32, [], cluster=cluster)

    launch(PAIR, 4)
    launch(PAIR, 4, 2)
    launch("", 3)
    launch("", 6, 3)
    launch(".explicitcluster", 4, 4)
    launch(".maxclusterrank 4", 4, 4)
    wrong = [(PAIR, 3, None, "3 blocks of test in clusters of 2"), (PAIR, 4, 4, "needs clusters of 2 blocks, not 4")]
    wrong += [(".maxclusterrank 4", 8, 8, "in clusters of 8"), ("", 16, 16, "in clusters of 16")]
    wrong += [(".explicitcluster", 4, None, "needs a size of clusters")]
    for directives, blocks, cluster, message in wrong:
        with pytest.raises(ValueError, match=message):
            launch(directives, blocks, cluster)
    with pytest.raises(NotImplementedError, match=r"clusters of \(2, 2, 1\)"):
        launch(".reqnctapercluster 2, 2, 1", 4)


# ---- mbarriers of other blocks ---------------------------------------------------------------------------------------


def test_arrivals_at_another_block() -> None:
    """Each block arrives at the other's mbarrier and waits for its own."""
    body = f"{READY} @%p0 {ARRIVE} {waiting()}"
    execute(body, [])
    execute(body.replace(ARRIVE, ARRIVE.replace(".release.cluster", "")), [], blocks=4)
    with pytest.raises(Deadlock, match=r"block \(.*mbarrier at 4096 of rank \d.*; threads of block \(.*of rank \d"):
        execute(body.replace(ARRIVE, "bra $w;"), [])
    with pytest.raises(BarrierMisuse, match=r"2 arrivals at the mbarrier at 4096 of rank \d"):
        execute(body.replace("[%d10];", "[%d10], 2;"), [])
    with pytest.raises(BarrierMisuse, match="there is no mbarrier at"):
        execute(body.replace("[%d10];", "[%d10+8];"), [])
    with pytest.raises(BarrierMisuse, match="there is no mbarrier at"):
        execute(body.replace(ARRIVE, "mbarrier.arrive.shared::cta.b64 _, [%d10];"), [])


def test_bytes_expected_and_completed_at_another_block() -> None:
    body = f"""{READY} @%p0 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%d10], 48;
    @%p0 mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%d10], 16;
    @%p0 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%d10], BYTES; {waiting()} {MEET}"""
    execute(body.replace("BYTES", "64"), [])
    with pytest.raises(Deadlock, match="16 bytes pending"):
        execute(body.replace("BYTES", "48"), [])


def test_an_mbarrier_of_another_block_is_known_after_the_cluster_met() -> None:
    body = f"{READY} @%p0 {ARRIVE} {waiting()}"
    fence = "@%p0 fence.mbarrier_init.release.cluster;"
    execute(body.replace(fence, "").replace(MEET_RELAXED, MEET), [])
    # One warp may wait for all of its block.
    alone = f"{MEET_RELAXED.split(';')[0]}; setp.ne.u32 %p7, %r1, 1; @%p7 bra $skip; {MEET_RELAXED.split(';')[1]};"
    execute(body.replace(MEET_RELAXED, f"{alone} $skip: bar.sync 0;"), [])
    for wrong in (body.replace(fence, ""), body.replace(MEET_RELAXED, "")):
        with pytest.raises(BarrierMisuse, match=r"was initialised by another warp|there is no mbarrier"):
            execute(wrong, [])
    late = f"{INIT.replace('COUNT', '1').replace('4096', '4104')}"
    unfenced = body.replace(MEET_RELAXED, late.replace(fence, "") + MEET_RELAXED).replace("[%d10]", "[%d10+8]")
    with pytest.raises(BarrierMisuse, match="was initialised by another warp"):
        execute(unfenced, [])


def test_what_another_block_is_told_of_nobody_may_ask() -> None:
    for body in ("mbarrier.arrive.shared::cluster.b64 %d9, [%d10];", "ld.shared::cluster.b32 %r10, [%d10];"):
        with pytest.raises(NotImplementedError):
            run(clustered(READY + body, []), "test", 2, 64, [], 8192)


def test_an_arrival_passes_on_what_its_thread_knows() -> None:
    """Rank 1 lets rank 0 fill its memory again by a copy, once it has read it."""
    copied = """@%p10 mapa.shared::cluster.u64 %d12, %d2, 1;
    @%p10 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%d12], [%d100+OFFSET], 256, [%d10];"""
    body = f"""{READY} add.s64 %d13, %d2, 4104; @%p0 mbarrier.init.shared::cta.b64 [%d13], 64;
    @%p0 fence.mbarrier_init.release.cluster; {MEET_RELAXED} mapa.shared::cluster.u64 %d14, %d13, 0;
    {EXPECT.replace("%p0", "%p11").replace("BYTES", "256")} {copied.replace("OFFSET", "0")}
    @%p8 bra $filler; {waiting(0)} ld.shared.b32 %r10, [%d3];
    {EXPECT.replace("%p0", "%p11").replace("BYTES", "256")}
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%d14]; {waiting(1, "$v")}
    ld.shared.b32 %r11, [%d3]; add.s32 %r10, %r10, %r11; add.s64 %d7, %d101, %d0; st.global.b32 [%d7], %r10; bra $end;
    $filler: WAIT {copied.replace("OFFSET", "256")} $end: {MEET}"""
    given, output = np.arange(128, dtype=np.int32), np.zeros(64, np.int32)
    wait = "$u: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%d13], 0; @!%p5 bra $u;"
    for seed in SEEDS:
        execute(body.replace("WAIT", wait), [given, output], seed=seed)
        np.testing.assert_array_equal(output, given[:64] + given[64:])
    assert errors_of(body.replace("WAIT", ""), [given, output], SharedRace) == {
        "touches byte 0 of shared memory that a copy which nobody awaited will write"
    }


def test_memory_of_another_block_is_written_when_that_is_known_to_be_done_with_it() -> None:
    """Rank 1 wrote its memory, or read it, before rank 0 copies there."""
    body = f"""{READY} st.shared.b32 [%d3], %r0; FENCE MEETING mapa.shared::cluster.u64 %d12, %d2, %r6;
    {EXPECT.replace("%p0", "%p11").replace("BYTES", "256")}
    @%p10 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%d12], [%d100], 256, [%d10];
    @%p8 bra $end; {waiting()} $end: {MEET}"""
    fenced = body.replace("FENCE", "fence.proxy.async.shared::cta;")
    given = [np.zeros(64, np.int32)]
    execute(fenced.replace("MEETING", MEET), given)
    assert errors_of(fenced.replace("MEETING", MEET_RELAXED), given, SharedRace) == {
        "touches byte 0 of shared memory that another warp wrote before it"
    }
    assert errors_of(body.replace("FENCE", "").replace("MEETING", MEET), given, SharedRace) == {
        "touches byte 0 of shared memory that threads wrote with no fence.proxy.async since"
    }
    read = body.replace("FENCE", "").replace("st.shared.b32 [%d3], %r0;", "ld.shared.b32 %r10, [%d3];")
    execute(read.replace("MEETING", MEET), given)
    assert errors_of(read.replace("MEETING", MEET_RELAXED), given, SharedRace) == {
        "touches byte 0 of shared memory that another warp read before it"
    }


# ---- the barrier of the cluster --------------------------------------------------------------------------------------


def test_a_relaxed_arrival_passes_nothing_on() -> None:
    body = f"""{START} st.shared.b32 [%d3], %r0; MEETING xor.b32 %r3, %r0, 32; mul.wide.u32 %d5, %r3, 4;
    add.s64 %d6, %d2, %d5; ld.shared.b32 %r10, [%d6];"""
    execute(body.replace("MEETING", MEET), [])
    execute(body.replace("MEETING", MEET.replace(".aligned", "")), [])
    execute(body.replace("MEETING", MEET.replace("arrive.", "arrive.release.")), [])
    with pytest.raises(SharedRace, match="another warp wrote before it"):
        execute(body.replace("MEETING", MEET_RELAXED), [])


def test_the_barrier_of_the_cluster() -> None:
    arrive, wait = "barrier.cluster.arrive;", "barrier.cluster.wait;"
    half = "setp.lt.u32 %p4, %r0, 16; "
    execute(START + half + f"@%p4 {arrive} @!%p4 {arrive} {wait} {MEET}", [])
    # Who ended has come.
    execute(f"{START}{RANKS}{half} @%p4 {arrive} @%p4 bra $end; {arrive} {wait} $end:", [])
    execute(f"{START}{RANKS} @%p8 bra $end; {MEET} {MEET} $end:", [])
    for body, message in (
        (arrive + arrive, "arrives at the barrier of the cluster again before it waits"),
        (f"{MEET} {wait}", "waits at the barrier of the cluster, but has not arrived"),
    ):
        with pytest.raises(BarrierMisuse, match=message):
            execute(START + body, [])
    aligned, aligned_wait = MEET.split("; ")
    several = f"{START}{half} @%p4 bra $low; {aligned}; bra $both; $low: {aligned}; $both: {aligned_wait}"
    with pytest.raises(Divergence, match="threads of a warp arrive by several aligned barriers of the cluster"):
        execute(several, [])
    # A lane comes late to an aligned wait: the barrier is open by then.
    copies = (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tw_shared], [%d100], 64, [tw_shared+4096]"
    )
    late = f"""{READY} {EXPECT.replace("BYTES", "64")} {aligned}; @!%p0 bra $met;
    {copies}; {waiting()} $met: {aligned_wait}"""
    execute(late, [np.zeros(16, np.int32)])
    parted = f"{START}{half} {aligned}; @%p4 bra $low; {aligned_wait} bra $end; $low: {aligned_wait} $end:"
    with pytest.raises(Deadlock, match="the barrier of the cluster"):
        execute(parted, [])
    stuck = f"{READY} @%p8 bra $end; {waiting()} $end: {MEET}"
    with pytest.raises(Deadlock, match=r"\(64 of 128 threads came\)") as raised:
        execute(stuck, [])
    assert all(f"threads of block ({rank}, 0, 0)" in str(raised.value) for rank in range(2))
    assert "1 of 1 arrivals" in str(raised.value)


# ---- the end of a block ----------------------------------------------------------------------------------------------


def test_a_block_ends_while_others_still_reach_it() -> None:
    """In some orders the block has ended, in others it ends without knowing what came."""
    arrives = f"{READY} @%p11 {ARRIVE} ENDING"
    execute(arrives.replace("ENDING", MEET), [])
    assert errors_of(arrives.replace("ENDING", ""), [], SharedRace) == {
        "reaches shared memory of rank 0, which ended",
        "the block ends before it can know of an operation of warp 0 of rank 1 on its shared memory",
    }
    assert errors_of(arrives.replace("ENDING", MEET_RELAXED), [], SharedRace) == {
        "the block ends before it can know of an operation of warp 0 of rank 1 on its shared memory"
    }
