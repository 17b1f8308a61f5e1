"""mbarriers, named barriers, elections and bulk copies: hand-written PTX against NumPy, and what is an error."""

import itertools
import random

import numpy as np
import pytest

from tests.emulators.ptx.assembled import assembled
from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.errors import BarrierMisuse, Deadlock, Divergence, MemoryFault, SharedRace
from tests.emulators.ptx.tensor_maps import TensorMap

SHARED = ".extern .shared .align 1024 .b8 tw_shared[];"
START = """mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mul.wide.u32 %d0, %r0, 4; mov.b64 %d2, tw_shared;
    add.s64 %d3, %d2, %d0; shr.u32 %r1, %r0, 5; elect.sync %r2|%p1, -1;"""
# The mbarrier is at 4096.
INIT = """@%p0 mbarrier.init.shared::cta.b64 [tw_shared+4096], COUNT;
    @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;"""
WAIT = "NAME: mbarrier.try_wait.parity.shared::cta.b64 %p5, [tw_shared+4096], PARITY; @!%p5 bra NAME;"


def waiting(parity: object = 0, name: str = "$w") -> str:
    return WAIT.replace("NAME", name).replace("PARITY", str(parity))


def module(body: str, parameters: list[str]) -> str:
    """A kernel `test` whose parameters of 8 bytes are in %d100 on, and whose tensor maps' addresses as well."""
    given = {"p": ".param .u64 p{}", "m": ".param .align 64 .b8 p{}[128]"}
    loads = {"p": "ld.param.b64 %d{}, [p{}];", "m": "mov.b64 %d{}, p{};"}
    names = ", ".join(given[kind].format(number) for number, kind in enumerate(parameters))
    values = "".join(loads[kind].format(100 + number, number) for number, kind in enumerate(parameters))
    registers = ".reg .b16 %h<32>; .reg .b32 %r<300>; .reg .b64 %d<128>; .reg .pred %p<16>;"
    header = f".version 8.6\n.target sm_90a\n.address_size 64\n{SHARED}\n"
    return f"{header}.visible .entry test({names})\n{{\n{registers}{values}{body}\nret;\n}}\n"


def execute(body: str, arrays: list, threads: int = 64, shared_bytes: int = 8192, **options):
    kinds = ["m" if isinstance(each, TensorMap) else "p" for each in arrays]
    text = assembled(module(body, kinds), "sm_90a")
    return run(text, "test", 1, threads, arrays, shared_bytes, **options)


def test_a_phase_ends_with_its_last_arrival_and_orders_memory() -> None:
    """Warp 0 writes and arrives, warp 1 waits and reads; then the other way round, phase after phase."""
    body = f"""{START}{INIT.replace("COUNT", "32")} mov.b32 %r10, 0;
    setp.eq.u32 %p2, %r1, 1; xor.b32 %r3, %r0, 32; mul.wide.u32 %d5, %r3, 4; add.s64 %d6, %d2, %d5;
    @%p2 bra $reads;
    st.shared.b32 [%d3], %r0; mbarrier.arrive.shared::cta.b64 %d9, [tw_shared+4096]; bra $end;
    $reads: {waiting()} ld.shared.b32 %r10, [%d6];
    $end: add.s64 %d7, %d100, %d0; st.global.b32 [%d7], %r10;"""
    output = np.zeros(64, np.int32)
    execute(body, [output])
    assert output.tolist() == [0] * 32 + list(range(32))
    with pytest.raises(SharedRace, match="another warp wrote before it"):
        execute(body.replace(waiting(), ""), [output])
    with pytest.raises(Deadlock, match=r"16 of 48 arrivals"):
        execute(body.replace("4096], 32;", "4096], 48;"), [output])
    with pytest.raises(SharedRace, match="where an mbarrier is"):
        execute(body.replace("ld.shared.b32 %r10, [%d6]", "ld.shared.b32 %r10, [tw_shared+4096]"), [output])


def test_a_wait_that_is_not_repeated_guards_nothing() -> None:
    body = f"""{START}{INIT.replace("COUNT", "1")}
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [tw_shared+4096], 512;
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tw_shared], [%d100], 512, [tw_shared+4096];
    LOOP ld.shared.b32 %r10, [%d3]; add.s64 %d7, %d101, %d0; st.global.b32 [%d7], %r10;"""
    given, output = np.arange(128, dtype=np.int32), np.zeros(64, np.int32)
    execute(body.replace("LOOP", waiting()), [given, output])
    np.testing.assert_array_equal(output, given[:64])
    once = "mbarrier.try_wait.parity.shared::cta.b64 %p5, [tw_shared+4096], 0;"
    with pytest.raises(SharedRace, match="a copy which nobody awaited will write"):
        execute(body.replace("LOOP", once), [given, output])
    # One warp waits, the other reads without having been told.
    alone = waiting().replace("$w:", "setp.eq.u32 %p7, %r1, 1; @%p7 bra $skip; $w:") + "$skip:"
    with pytest.raises(SharedRace, match=r"will write|did not wait for"):
        execute(body.replace("LOOP", alone), [given, output])
    execute(body.replace("LOOP", alone + "bar.sync 0;"), [given, output])


def test_states_and_counts() -> None:
    body = f"""{START}{INIT.replace("COUNT", "65")}
    mbarrier.arrive.shared::cta.b64 %d9, [tw_shared+4096];
    mbarrier.pending_count.b64 %r3, %d9;
    @%p0 mbarrier.arrive.release.cta.shared::cta.b64 _, [tw_shared+4096];
    $w: mbarrier.test_wait.acquire.cta.shared::cta.b64 %p5, [tw_shared+4096], %d9; @!%p5 bra $w;
    {waiting(0, "$v")} bar.sync 0; @%p0 mbarrier.inval.shared::cta.b64 [tw_shared+4096]; bar.sync 0;
    add.s64 %d7, %d100, %d0; st.global.b32 [%d7], %r3;
    @%p0 mbarrier.init.shared::cta.b64 [tw_shared+4096], 3;"""
    output = np.zeros(64, np.int32)
    execute(body, [output])
    assert sorted(output.tolist()) == list(range(2, 66))


ONE = f"{START}{INIT.replace('COUNT', '1')}"
ARRIVE = "@%p0 mbarrier.arrive.shared::cta.b64 _, [tw_shared+4096];"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (ONE + "mbarrier.arrive.shared::cta.b64 _, [tw_shared+4096], 2;", "2 arrivals at the mbarrier"),
        (ONE + ARRIVE * 2, "whose phase before nobody waited for"),
        (ONE + "@%p0 mbarrier.init.shared::cta.b64 [tw_shared+4096], 1;", "was not invalidated"),
        (ONE + "@%p0 mbarrier.arrive.shared::cta.b64 _, [tw_shared+4104];", "there is no mbarrier"),
        ("mov.b32 %r9, 0;" + START + INIT.replace("COUNT", "%r9"), "an mbarrier of 0 arrivals"),
        (ONE + ARRIVE + waiting(0) + ARRIVE + "mov.b32 %r9, 3;" + waiting("%r9", "$u"), "a parity of 3"),
        # The second warp asks for phase 1 when phase 3 is the current one, whose parity is the same.
        (
            f"{ONE} setp.eq.u32 %p4, %r1, 1; {ARRIVE} {waiting(0)} bar.sync 0; @%p4 bra $late;"
            f"{ARRIVE} {waiting(1, '$v')} {ARRIVE} {waiting(0, '$u')} bar.sync 0; bra $end;"
            f"$late: bar.sync 0; {waiting(1, '$t')} $end:",
            "missed phase 1",
        ),
    ],
)
def test_misuse(body: str, message: str) -> None:
    with pytest.raises(BarrierMisuse, match=message):
        execute(body, [])


def test_bytes_that_do_not_match() -> None:
    body = f"""{ONE} @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [tw_shared+4096], BYTES;
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tw_shared], [%d100], 64, [tw_shared+4096];
    {waiting()}"""
    given = np.zeros(16, np.int32)
    execute(body.replace("BYTES", "64"), [given])
    with pytest.raises(Deadlock, match="32 bytes pending"):
        execute(body.replace("BYTES", "96"), [given])
    with pytest.raises(Deadlock, match="-32 bytes pending"):
        execute(body.replace("BYTES", "32"), [given])
    simulated = body.replace("BYTES", "96").replace(waiting(), "") + (
        f"@%p0 mbarrier.complete_tx.shared::cta.b64 [tw_shared+4096], 32; {waiting()}"
    )
    execute(simulated, [given])
    with pytest.raises(BarrierMisuse, match="no fence for the asynchronous proxy"):
        execute(body.replace("BYTES", "64").replace("@%p0 fence.mbarrier_init.release.cluster;", ""), [given])
    with pytest.raises(MemoryFault, match="outside of global memory"):
        execute(body.replace("BYTES", "64"), [given[:8].copy()])
    odd = "mov.b32 %r9, 72;" + body.replace("BYTES", "72").replace("[%d100], 64", "[%d100], %r9")
    with pytest.raises(MemoryFault, match="copies 72 bytes"):
        execute(odd, [given])


def test_a_barrier_initialised_by_another_warp_needs_a_barrier_of_the_block() -> None:
    body = (
        ONE.replace("bar.sync 0;", "")
        + "setp.eq.u32 %p2, %r0, 32; @%p2 mbarrier.arrive.shared::cta.b64 _, [tw_shared+4096];"
    )
    with pytest.raises(BarrierMisuse, match="initialised by another warp"):
        execute(body, [])


def test_a_buffer_is_filled_again_only_when_it_was_read() -> None:
    """Two uses of a buffer: the second copy has to wait for the readers of the first."""
    copied = """@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [tw_shared+4096], 256;
    @%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes
        [tw_shared], [%d100+OFFSET], 256, [tw_shared+4096];"""
    body = f"""{ONE} {copied.replace("OFFSET", "0")} {waiting(0)} ld.shared.b32 %r10, [%d3]; BETWEEN
    {copied.replace("OFFSET", "256")} {waiting(1, "$v")} ld.shared.b32 %r11, [%d3]; add.s32 %r10, %r10, %r11;
    add.s64 %d7, %d101, %d0; st.global.b32 [%d7], %r10;"""
    given, output = np.arange(128, dtype=np.int32), np.zeros(64, np.int32)
    execute(body.replace("BETWEEN", "bar.sync 0;"), [given, output])
    np.testing.assert_array_equal(output, given[:64] + given[64:])
    with pytest.raises(SharedRace, match="another warp read before it"):
        execute(body.replace("BETWEEN", ""), [given, output])


STORED = """{ONE} st.shared.b32 [%d3], %r0; FENCE bar.sync 0;
    @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d100], [tw_shared], 256;
    @%p0 cp.async.bulk.commit_group; WAIT AFTER""".replace("{ONE}", ONE)


def stored(
    fence: str = "fence.proxy.async.shared::cta;", wait: str = "@%p0 cp.async.bulk.wait_group 0;", after: str = ""
):
    output = np.zeros(64, np.int32)
    execute(STORED.replace("FENCE", fence).replace("WAIT", wait).replace("AFTER", after), [output])
    return output


def test_copies_to_global_memory() -> None:
    np.testing.assert_array_equal(stored(), np.arange(64))
    np.testing.assert_array_equal(stored(wait="@%p0 cp.async.bulk.wait_group.read 0;"), np.arange(64))
    with pytest.raises(SharedRace, match=r"no fence.proxy.async since"):
        stored(fence="")
    with pytest.raises(SharedRace, match=r"no fence.proxy.async since"):
        stored(fence="fence.proxy.async.global;")
    with pytest.raises(SharedRace, match="ends while its bulk copy reads"):
        stored(wait="")
    with pytest.raises(SharedRace, match="ends while its bulk copy reads"):
        stored(wait="@%p0 cp.async.bulk.wait_group 1;")
    with pytest.raises(SharedRace, match="nobody awaited still reads"):
        stored(wait="", after="@%p0 st.shared.b32 [%d3], 7; @%p0 cp.async.bulk.wait_group 0;")
    with pytest.raises(SharedRace, match="another warp read before it"):
        stored(after="setp.eq.u32 %p3, %r0, 32; @%p3 st.shared.b32 [tw_shared], 7;")
    stored(after="bar.sync 0; setp.eq.u32 %p3, %r0, 32; @%p3 st.shared.b32 [tw_shared], 7;")


# ---- tensor maps -----------------------------------------------------------------------------------------------------


def chunk_place(offset: int, swizzle: int) -> int:
    """Where the copy engine puts byte `offset` of a dense box: bits of the address, by the figures of the ISA."""
    lines = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    return offset ^ (((offset >> 7) & lines) << 4)


@pytest.mark.parametrize(
    ("shape", "box", "swizzle", "start"),
    [
        ((100,), (64,), 0, (-8,)),
        ((20, 36), (16, 16), 64, (28, -3)),
        ((20, 68), (32, 8), 128, (40, 15)),
        ((9, 20), (8, 8), 32, (-4, 2)),
        ((3, 5, 8), (4, 3, 2), 0, (6, -1, 2)),
        ((2, 3, 4, 4), (4, 2, 2, 2), 0, (0, 3, -1, 1)),
        ((2, 2, 3, 4, 4), (4, 2, 2, 2, 1), 0, (1, 3, -1, 1, 1)),
    ],
)
def test_boxes_of_tensors(shape: tuple[int, ...], box: tuple[int, ...], swizzle: int, start: tuple[int, ...]) -> None:
    """A box in, with zeros out of bounds, and the same box out to another array, what is out of bounds dropped."""
    source = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    target = np.full(shape, -1, np.float32)
    seen = np.zeros(1024, np.float32)
    rank, size = len(shape), int(np.prod(box)) * 4
    coordinates = ", ".join(map(str, start))
    body = f"""{ONE} @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [tw_shared+4096], {size};
    @%p0 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [tw_shared], [%d100, {{{coordinates}}}], [tw_shared+4096];
    {waiting()}
    @%p0 cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%d101, {{{coordinates}}}], [tw_shared];
    @%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;
    mov.b32 %r20, 0;
    $copy: shl.b32 %r21, %r20, 8; cvt.u64.u32 %d20, %r21; add.s64 %d21, %d3, %d20; ld.shared.b32 %r22, [%d21];
    add.s64 %d22, %d102, %d0; add.s64 %d22, %d22, %d20; st.global.b32 [%d22], %r22; add.s32 %r20, %r20, 1;
    setp.lt.u32 %p6, %r20, {max(size // 256, 1)}; @%p6 bra $copy;"""
    execute(body, [TensorMap(source, box, swizzle), TensorMap(target, box, swizzle), seen])
    for number, place in enumerate(itertools.product(*(range(size) for size in reversed(box)))):
        index = tuple(at + first for at, first in zip(place, reversed(start), strict=True))
        inside = all(0 <= at < extent for at, extent in zip(index, shape, strict=True))
        wanted = source[index] if inside else 0
        if number * 4 < max(size // 256, 1) * 256:
            assert seen[chunk_place(number * 4, swizzle) // 4] == wanted
        if inside:
            assert target[index] == wanted
    assert (target == -1).sum() == target.size - sum(
        all(first <= at < first + size for at, first, size in zip(index[::-1], start, box, strict=True))
        for index in np.ndindex(*shape)
    )


def test_element_strides() -> None:
    source = np.arange(64, dtype=np.float32).reshape(8, 8)
    tensor_map = TensorMap(source, (4, 8), element_strides=(1, 3))
    offsets, inside = tensor_map.box_at((2, 1))
    assert inside.all()
    assert (offsets // 4).reshape(3, 4).tolist() == [[8 * row + 2 + i for i in range(4)] for row in (1, 4, 7)]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"start_bytes": 8}, "multiple of 16"),
        ({"box": (512, 1)}, "1 to 256"),
        ({"box": (2, 1)}, "a line of the box is a multiple of 16"),
        ({"box": (64, 1), "swizzle": 128}, "not longer than the swizzle"),
        ({"dims": (8, 8), "strides": (36,)}, "strides are multiples of 16"),
        ({"element_strides": (1, 9)}, "element strides are 1 to 8"),
        ({"dims": (8,), "strides": ()}, "1 to 5 dims"),
        ({"swizzle": 16}, "the swizzle is"),
    ],
)
def test_what_the_driver_refuses(options: dict, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        TensorMap(**{"array": np.zeros((64, 64), np.float32), "box": (8, 8)} | options)


# ---- threads ---------------------------------------------------------------------------------------------------------


def test_named_barriers_order_those_who_meet() -> None:
    """Warps 0 and 1 write and only arrive; warp 2 waits and reads; warp 3 has no part in it."""
    body = f"""{START} setp.eq.u32 %p2, %r1, 3; @%p2 bra $end; setp.eq.u32 %p2, %r1, 2; @%p2 bra $reads;
    st.shared.b32 [%d3], %r0; bar.arrive 1, 96; bra $end;
    $reads: BARRIER ld.shared.b32 %r10, [%d3+-256]; ld.shared.b32 %r11, [%d3+-128]; add.s32 %r10, %r10, %r11;
    add.s64 %d7, %d100, %d0; st.global.b32 [%d7], %r10; $end:"""
    output = np.zeros(128, np.int32)
    execute(body.replace("BARRIER", "bar.sync 1, 96;"), [output], 128)
    assert output[64:96].tolist() == [2 * lane + 32 for lane in range(32)]
    with pytest.raises(SharedRace, match="another warp wrote before it"):
        execute(body.replace("BARRIER", ""), [output], 128)
    with pytest.raises(Deadlock):
        execute(body.replace("BARRIER", "bar.sync 2, 96;"), [output], 128)
    with pytest.raises(BarrierMisuse, match="has a count of 96 already"):
        execute(body.replace("BARRIER", "bar.sync 1, 64;"), [output], 128)
    with pytest.raises(BarrierMisuse, match="no barrier 16"):
        execute("mov.b32 %r9, 16; bar.sync %r9, 64;", [], 64)


def test_elections_and_registers_of_warpgroups() -> None:
    output = np.zeros(256, np.int32)
    body = f"""{START} selp.b32 %r10, 1, 0, %p1; add.s64 %d7, %d100, %d0; st.global.b32 [%d7], %r10;
    setp.ge.u32 %p2, %r0, 128; @%p2 bra $more; setmaxnreg.dec.sync.aligned.u32 40; bra $end;
    $more: setmaxnreg.inc.sync.aligned.u32 INCREASED; $end: griddepcontrol.wait; nanosleep.u32 20;
    mov.u32 %r3, %cluster_nctarank;"""
    execute(body.replace("INCREASED", "200"), [output], 256)
    assert output.reshape(8, 32).sum(axis=1).tolist() == [1] * 8
    with pytest.raises(Divergence, match="only 32 threads of warpgroup"):
        execute(
            body.replace("setp.ge.u32 %p2, %r0, 128", "setp.ge.u32 %p2, %r0, 32").replace("INCREASED", "200"),
            [output],
            256,
        )
    limited = assembled(
        module(body.replace("INCREASED", "200"), ["p"])
        .replace("test(", "test(")
        .replace(")\n{", ")\n.maxnreg 128\n.reqntid 256\n{"),
        "sm_90a",
    )
    run(limited, "test", 1, 256, [output], 8192, random.Random(1))
    with pytest.raises(Deadlock, match="registers"):
        run(limited.replace("inc.sync.aligned.u32 200", "inc.sync.aligned.u32 224"), "test", 1, 256, [output], 8192)
    with pytest.raises(ValueError, match="needs 67584 registers for a block, of 65536"):
        run(limited.replace(".maxnreg 128", ".maxnreg 264"), "test", 1, 256, [output], 8192)
