"""Control flow, memory and checks of the PTX emulator: small PTX and LLVM kernels against NumPy and loops."""

import random
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.errors import Deadlock, Divergence, MemoryFault, SharedRace
from tests.emulators.ptx.kernels import HEADER, execute, kernel

SHARED = ".extern .shared .align 16 .b8 tw_shared[];"
THREAD = "mov.u32 %r0, %tid.x;\nmul.wide.u32 %d0, %r0, 4;\nadd.s64 %d1, %d100, %d0;\n"
SHARED_ADDRESS = "mov.b64 %d2, tw_shared;\nadd.s64 %d3, %d2, %d0;\n"


def test_softmax() -> None:
    text = (Path(__file__).parent / "softmax.ptx").read_text()
    x = np.random.default_rng(0).standard_normal((64, 1000)).astype(np.float32) * 5
    y = np.full_like(x, np.nan)
    counts = run(text, "kernel_softmax_c0e16999e987", 16, 128, [x, y])
    exponentials = np.exp((x - x.max(1, keepdims=True)).astype(np.float64))
    expected = exponentials / exponentials.sum(1, keepdims=True)
    np.testing.assert_array_less(np.abs(y - expected), 5 * np.spacing(expected.astype(np.float32)))
    assert counts.instructions["shfl.sync.bfly.b32"] == 10 * 4 * 16
    assert counts.global_requests == 64 * 2 * 32
    # Rows of 4,000 bytes begin with a whole sector: 125 sectors a row, and no sector twice but the masked last load.
    assert counts.global_sectors == 64 * (2 * 125 + 1)


def test_blocks_and_special_registers() -> None:
    output = np.zeros((2, 3, 2, 64), np.int32)
    body = """
    mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %ctaid.y; mad.lo.s32 %r1, %r1, %r2, %r3;
    mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x; mad.lo.s32 %r1, %r1, %r2, %r3;
    mov.u32 %r2, %ntid.x; mov.u32 %r0, %tid.x; mad.lo.s32 %r4, %r1, %r2, %r0;
    mul.wide.u32 %d0, %r4, 4; add.s64 %d1, %d100, %d0;
    mov.u32 %r5, %warpid; mov.u32 %r6, %laneid; mad.lo.s32 %r5, %r5, 1000, %r6; mad.lo.s32 %r5, %r1, 10000, %r5;
    st.global.u32 [%d1], %r5;"""
    execute(body, [output], 64, (2, 3, 2), order=random.Random(1))
    block, thread = np.arange(12)[:, None], np.arange(64)
    expected = block * 10000 + thread // 32 * 1000 + thread % 32
    np.testing.assert_array_equal(output.reshape(12, 64), expected)


def test_clocks_count_instructions_and_blocks_have_multiprocessors_of_their_own() -> None:
    output = np.full((6, 4), -1, np.int64)
    body = """
    mov.u64 %d1, %clock64; mov.u64 %d2, %globaltimer;
    mov.b32 %r0, 3;
    $loop: sub.s32 %r0, %r0, 1; setp.ne.s32 %p1, %r0, 0;
    @%p1 bra $loop;
    mov.u64 %d3, %clock64;
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y; mad.lo.s32 %r2, %r3, 2, %r2; mul.wide.u32 %d0, %r2, 32;
    add.s64 %d4, %d100, %d0; mov.u32 %r1, %smid; cvt.u64.u32 %d5, %r1; sub.s64 %d3, %d3, %d1;
    st.global.v2.u64 [%d4], {%d1, %d2}; st.global.v2.u64 [%d4+16], {%d3, %d5};"""
    execute(body, [output], 1, (2, 3, 1), order=random.Random(1))
    begins, nanoseconds, taken, places = output.T
    np.testing.assert_array_equal(nanoseconds, begins + 1)
    # The reading itself, two moves, and three times three instructions.
    np.testing.assert_array_equal(taken, np.full(6, 12))
    np.testing.assert_array_equal(places, np.arange(6))


def test_branches_and_loops_of_different_lengths() -> None:
    """Each thread runs Collatz's steps from its number on: loops of any length with a branch inside."""
    output = np.zeros(96, np.int32)
    body = f"""{THREAD}
    add.s32 %r1, %r0, 1; mov.b32 %r2, 0;
    $loop:
    setp.le.s32 %p1, %r1, 1;
    @%p1 bra $done;
    and.b32 %r3, %r1, 1; setp.eq.s32 %p2, %r3, 0;
    @%p2 bra $even;
    mad.lo.s32 %r1, %r1, 3, 1;
    bra.uni $next;
    $even: shr.u32 %r1, %r1, 1;
    $next: add.s32 %r2, %r2, 1;
    bra.uni $loop;
    $done: st.global.u32 [%d1], %r2;"""
    counts = execute(body, [output], 96)
    expected = []
    for number in range(1, 97):
        steps = 0
        while number > 1:
            number = number // 2 if number % 2 == 0 else 3 * number + 1
            steps += 1
        expected.append(steps)
    assert output.tolist() == expected
    # The threads come together at the end of each step: no warp passes more often than its longest thread.
    assert counts.instructions["shr.u32"] <= sum(max(expected[warp : warp + 32]) for warp in (0, 32, 64))


def test_guards_and_exits() -> None:
    output = np.full(64, 9, np.int32)
    body = f"""{THREAD}
    setp.lt.u32 %p1, %r0, 10;
    @!%p1 mov.b32 %r0, 1;
    @%p1 ret;
    st.global.u32 [%d1], %r0;"""
    execute(body, [output], 64)
    assert output.tolist() == [9] * 10 + [1] * 54


def test_local_and_constant_memory_and_scopes() -> None:
    output = np.zeros(32, np.int32)
    declarations = """.const .align 4 .b32 table[4] = {10, 20, -30, 0x28};
    .global .align 4 .b8 bytes[4] = {1, 2, 3, 4};
    .global .align 4 .f32 half = 0f3F000000;"""
    body = f"""{THREAD}
    .local .align 4 .b8 depot[8];
    mov.b64 %d5, depot; cvta.local.u64 %d6, %d5;
    st.local.b32 [%d5+4], %r0;
    {{ .reg .b32 %r0; mov.b32 %r0, 77; st.b32 [%d6], %r0; }}
    ld.b32 %r1, [%d6]; ld.local.b32 %r2, [%d5+4];
    ld.const.b32 %r3, [table+8]; ld.global.u8 %r4, [bytes+3]; ld.global.b32 %r5, [half];
    add.s32 %r1, %r1, %r2; add.s32 %r1, %r1, %r3; add.s32 %r1, %r1, %r4; sub.s32 %r5, %r5, 1056964608;
    add.s32 %r1, %r1, %r5;
    st.global.u32 [%d1], %r1;"""
    execute(body, [output], declarations=declarations)
    np.testing.assert_array_equal(output, 77 + np.arange(32) - 30 + 4)


def test_vectors_and_packing() -> None:
    values = np.arange(32 * 4, dtype=np.float32)
    output = np.zeros(32, [("first", "u4", 2), ("halves", "u2", 4)])
    body = """
    mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 16; add.s64 %d1, %d100, %d0; add.s64 %d2, %d101, %d0;
    ld.global.nc.L1::evict_last.v4.f32 {%r1, %r2, %r3, %r4}, [%d1];
    mov.b64 %d3, {%r4, %r3}; mov.b32 {%h1, %h2}, %r2; mov.b64 %d4, {%h2, %h1, %h2, %h1};
    mov.b64 {_, %r5}, %d3; mov.b64 %d3, {%r5, %r1};
    st.global.v2.b64 [%d2], {%d3, %d4};"""
    execute(body, [values, output])
    np.testing.assert_array_equal(output["first"].copy().view(np.float32), values.reshape(32, 4)[:, [2, 0]])
    halves = values.reshape(32, 4)[:, 1].copy().view(np.uint16).reshape(32, 2)
    np.testing.assert_array_equal(output["halves"], halves[:, [1, 0, 1, 0]])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("ld.global.b32 %r1, [%d100+4096];", ["thread 0", "outside of global memory", "ld.global.b32"]),
        ("ld.global.b32 %r1, [%d100+-4];", ["outside of global memory"]),
        ("ld.global.b32 %r1, [%d1+4];", ["thread 31", "block (0, 0, 0)", "line"]),
        ("ld.global.b32 %r1, [%d100+2];", ["not aligned to 4 bytes"]),
        ("ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d100+8];", ["not aligned to 16 bytes"]),
        ("st.shared.b32 [tw_shared+64], %r0;", ["beyond the 64 bytes of shared memory"]),
        ("ld.shared.b32 %r1, [%d100];", ["outside of shared memory"]),
        ("ld.global.b32 %r1, [tw_shared];", ["outside of global memory"]),
        ("mov.b64 %d5, 0; ld.b32 %r1, [%d5];", ["outside of generic memory"]),
        ("st.global.b32 [%d101], %r0;", ["memory that is only read"]),
    ],
)
def test_faults(body: str, words: list[str]) -> None:
    constant = np.zeros(32, np.int32)
    constant.flags.writeable = False
    with pytest.raises(MemoryFault) as fault:
        execute(THREAD + body, [np.zeros(32, np.int32), constant], shared_bytes=64, declarations=SHARED)
    assert not [word for word in words if word not in str(fault.value)], str(fault.value)


REVERSED = f"""{THREAD}{SHARED_ADDRESS}
    ld.global.b32 %r1, [%d1]; st.shared.b32 [%d3], %r1;
    BARRIER
    sub.s32 %r2, 127, %r0; mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d2, %d4;
    ld.shared.b32 %r1, [%d4]; st.global.b32 [%d1], %r1;"""


def test_a_barrier_orders_warps() -> None:
    values = np.arange(128, dtype=np.int32)
    body = REVERSED.replace("BARRIER", "bar.sync 0;")
    counts = execute(body, [values], 128, shared_bytes=512, declarations=SHARED)
    np.testing.assert_array_equal(values, np.arange(128)[::-1])
    assert (counts.barriers, counts.shared_wavefronts, counts.shared_conflicts) == (1, 8, 0)


def test_races() -> None:
    values = np.arange(128, dtype=np.int32)
    options = {"threads": 128, "shared_bytes": 512, "declarations": SHARED}
    with pytest.raises(SharedRace, match="another warp wrote before it"):
        execute(REVERSED.replace("BARRIER", ""), [values], **options)
    # Within a warp there is nothing to race with.
    alone = REVERSED.replace("BARRIER", "").replace("127", "31")
    execute(alone, [values[:32].copy()], 32, shared_bytes=512, declarations=SHARED)
    write_after_read = f"{THREAD}{SHARED_ADDRESS} ld.shared.b32 %r1, [%d3]; xor.b32 %r2, %r0, 32;"
    write_after_read += "mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d2, %d4; BARRIER st.shared.b32 [%d4], %r1;"
    with pytest.raises(SharedRace, match="another warp read before it"):
        execute(write_after_read.replace("BARRIER", ""), [values], **options)
    execute(write_after_read.replace("BARRIER", "bar.sync 0;"), [values], **options)
    with pytest.raises(SharedRace, match="another warp writes as well"):
        execute("st.shared.b32 [tw_shared], 1;", [values], **options)
    in_turns = "mov.u32 %r0, %tid.x; setp.eq.s32 %p1, %r0, 0; setp.eq.s32 %p2, %r0, 32;"
    in_turns += "@%p1 st.shared.b32 [tw_shared], 1; @%p2 st.shared.b32 [tw_shared], 1;"
    with pytest.raises(SharedRace, match="another warp wrote before it"):
        execute(in_turns, [values], **options)
    # Bytes side by side are apart.
    body = "mov.u32 %r0, %tid.x; cvt.u64.u32 %d0, %r0; mov.b64 %d2, tw_shared; add.s64 %d3, %d2, %d0;"
    execute(body + "st.shared.b8 [%d3], %h0; ld.shared.u8 %h1, [%d3];", [values], **options)
    both = "atom.shared.add.u32 %r1, [tw_shared], 1; BARRIER ld.shared.b32 %r2, [tw_shared];"
    with pytest.raises(SharedRace, match="another warp updated"):
        execute(both.replace("BARRIER", ""), [values], **options)
    execute(both.replace("BARRIER", "bar.sync 0;"), [values], **options)


def test_barriers_that_never_open() -> None:
    first_warp = "mov.u32 %r0, %tid.x; setp.lt.u32 %p1, %r0, {}; "
    with pytest.raises(Deadlock, match="different barriers"):
        execute(first_warp.format(32) + "@%p1 bar.sync 1; bar.sync 0;", [], 64)
    with pytest.raises(Divergence, match="several aligned barriers"):
        execute(first_warp.format(7) + "@%p1 bra $a; bar.sync 0; ret; $a: bar.sync 0;", [], 64)
    # Warps may meet at two places, and those that ended are not waited for.
    execute(first_warp.format(32) + "@%p1 bra $a; bar.sync 0; ret; $a: bar.sync 0;", [], 64)
    execute(first_warp.format(32) + "@%p1 ret; bar.sync 0;", [], 64)
    # Each warp alone, one after the other.
    assert execute("bar.sync 0, 32;", [], 64).barriers == 2


def test_bank_conflicts_and_sectors() -> None:
    """Strides of 4-byte words: wavefronts are the words that fall on the fullest bank."""
    for stride in (1, 2, 8, 32, 33):
        body = f"mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, {4 * stride};"
        body += "mov.b64 %d2, tw_shared; add.s64 %d3, %d2, %d0; st.shared.b32 [%d3], %r0;"
        body += "add.s64 %d4, %d100, %d0; st.global.b32 [%d4], %r0;"
        output = np.zeros(32 * stride, np.int32)
        counts = execute(body, [output], shared_bytes=128 * stride, declarations=SHARED)
        assert counts.shared_conflicts == np.gcd(stride, 32) - 1
        assert counts.global_sectors == len({4 * stride * lane // 32 for lane in range(32)})
    for width, vector, least in ((8, "v2", 2), (16, "v4", 4)):
        registers = ", ".join(["%r1", "%r2", "%r3", "%r4"][: width // 4])
        for stride, factor in ((width, 1), (128, 32 // least)):
            body = f"mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, {stride}; mov.b64 %d2, tw_shared;"
            body += f"add.s64 %d3, %d2, %d0; ld.shared.{vector}.b32 {{{registers}}}, [%d3];"
            counts = execute(body, [], shared_bytes=32 * 128, declarations=SHARED)
            assert (counts.shared_wavefronts, counts.shared_conflicts) == (least * factor, least * (factor - 1))


@pytest.mark.parametrize(("operation", "name"), [("add", "u32"), ("min", "s32"), ("max", "u32"), ("xor", "b32")])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomic_operations(operation: str, name: str, space: str) -> None:
    """Every fourth thread shares a cell: the old values are those of some order."""
    given = np.random.default_rng(3).integers(-1000, 1000, 128).astype(np.int32)
    cells, old = np.full(4, 100, np.int32), np.zeros(128, np.int32)
    target = "%d7" if space == "global" else "%d8"
    body = f"""{THREAD} and.b32 %r1, %r0, 3; mul.wide.u32 %d5, %r1, 4; add.s64 %d7, %d101, %d5;
    mov.b64 %d6, tw_shared; add.s64 %d8, %d6, %d5; add.s64 %d9, %d102, %d0;
    setp.lt.u32 %p1, %r0, 4; ld.global.b32 %r3, [%d7]; @%p1 st.shared.b32 [%d8], %r3; bar.sync 0;
    ld.global.b32 %r2, [%d1]; atom.{space}.{operation}.{name} %r4, [{target}], %r2; st.global.b32 [%d9], %r4;
    bar.sync 0; ld.shared.b32 %r3, [%d8]; {"@%p1 st.global.b32 [%d7], %r3;" if space == "shared" else ""}"""
    execute(body, [given, cells, old], 128, shared_bytes=16, declarations=SHARED)
    functions = {"add": np.add, "min": np.minimum, "max": np.maximum, "xor": np.bitwise_xor}
    dtype = np.uint32 if name[0] != "s" else np.int32
    for cell in range(4):
        mine = given[cell::4].view(dtype)
        steps = functions[operation].accumulate(np.concatenate([[dtype(100)], mine]), dtype=dtype)
        assert sorted(old[cell::4].view(dtype).tolist()) == sorted(steps[:-1].tolist())
        assert cells[cell].view(dtype) == steps[-1]


def test_compare_and_swap() -> None:
    cell, won = np.zeros(1, np.int32), np.zeros(64, np.int32)
    body = f"""{THREAD} add.s32 %r1, %r0, 1; atom.relaxed.gpu.global.cas.b32 %r2, [%d101], 0, %r1;
    setp.eq.s32 %p1, %r2, 0; selp.b32 %r3, 1, 0, %p1; st.global.b32 [%d1], %r3;
    red.global.add.f32 [%d102], 0f3F000000;"""
    total = np.zeros(1, np.float32)
    execute(body, [won, cell, total], 64)
    assert (won.sum(), won[cell[0] - 1], total[0]) == (1, 1, 32)


def test_what_is_unknown_is_refused() -> None:
    for text in (
        "mul24.lo.s32 %r1, %r2, %r3;",
        "mov.u32 %r1, %gridid;",
        "barrier.red.popc.u32 %r1, 0, %p1;",
    ):
        with pytest.raises(NotImplementedError, match=text.split()[0].split(".")[0]):
            execute(text, [])
    with pytest.raises(NotImplementedError, match="rm"):
        execute("add.rm.f64 %d1, %d2, %d3;", [])
    with pytest.raises(NotImplementedError, match="operand as"):
        execute("add.f32 %r1, %r2, 1;", [])


LOOP_IN_LLVM = """
target triple = "nvptx64-nvidia-cuda"
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
@table = internal addrspace(4) constant [4 x i32] [i32 7, i32 -3, i32 100000, i32 12]
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define ptx_kernel void @mix(ptr addrspace(1) %x, ptr addrspace(1) %y) {
entry:
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr i64, ptr addrspace(1) %x, i32 %t
  %q = getelementptr i64, ptr addrspace(1) %y, i32 %t
  %v = load i64, ptr addrspace(1) %p
  %stack = alloca [8 x i64]
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
  %s = phi i64 [ %v, %entry ], [ %sum, %loop ]
  %slot = and i32 %i, 7
  %place = getelementptr i64, ptr %stack, i32 %slot
  store i64 %s, ptr %place
  %index = and i32 %i, 3
  %entry_of = getelementptr i32, ptr addrspace(4) @table, i32 %index
  %word = load i32, ptr addrspace(4) %entry_of
  %wide = sext i32 %word to i64
  %product = mul i64 %s, %wide
  %divisor = or i64 %wide, 1
  %quotient = sdiv i64 %product, %divisor
  %rest = urem i64 %product, 1000003
  %sum = add i64 %quotient, %rest
  %next = add i32 %i, 1
  %more = icmp ule i32 %next, %t
  br i1 %more, label %loop, label %end
end:
  %last = and i32 %t, 7
  %where = getelementptr i64, ptr %stack, i32 %last
  %found = load i64, ptr %where
  %result = xor i64 %found, %sum
  store i64 %result, ptr addrspace(1) %q
  ret void
}
"""


def wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def mixed(thread: int, value: int) -> int:
    """What the kernel `mix` does, in Python."""
    stack = [0] * 8
    total = value
    for i in range(thread + 1):
        stack[i & 7] = total
        word = (7, -3, 100000, 12)[i & 3]
        product = wrapped(total * word)
        divisor = word | 1
        quotient = abs(product) // abs(divisor) * (1 if (product < 0) == (divisor < 0) else -1)
        total = wrapped(quotient + product % (1 << 64) % 1000003)
    return wrapped(stack[thread & 7] ^ total)


@pytest.mark.parametrize("level", [0, 3])
def test_a_kernel_that_llvm_compiled(level: int) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
        cpu="sm_90a", features="+ptx83", opt=level
    )
    text = machine.emit_assembly(llvm.parse_assembly(LOOP_IN_LLVM))
    x = np.random.default_rng(5).integers(-(1 << 62), 1 << 62, 64)
    y = np.zeros_like(x)
    run(text, "mix", 1, 64, [x, y])
    assert y.tolist() == [mixed(thread, value) for thread, value in enumerate(x.tolist())]


def test_arguments_are_checked() -> None:
    text = kernel("", 1)
    with pytest.raises(ValueError, match="1 parameters, not 0"):
        run(text, "test", 1, 32, [])
    with pytest.raises(KeyError, match="no entry other"):
        run(text, "other", 1, 32, [])
    with pytest.raises(ValueError, match="contiguous"):
        run(text, "test", 1, 32, [np.zeros((4, 4))[:, ::2]])
    required = f"{HEADER}.visible .entry test()\n.reqntid 128\n{{\nret;\n}}\n"
    run(required, "test", 1, 128, [])
    with pytest.raises(ValueError, match="blocks of"):
        run(required, "test", 1, 64, [])
