"""tcgen05 and tensor memory: products of every kind against NumPy, loads and stores, and what is an error."""

from dataclasses import dataclass

import numpy as np
import pytest

from tests.emulators.ptx.assembled import assembled
from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.errors import Deadlock, Divergence, SharedRace, TensorMemoryFault
from tests.emulators.ptx.test_mbarriers import module
from tests.emulators.ptx.test_wgmma import packed, random

ALL = 65536
B_AT, BARRIER, SLOT = 32768, ALL, ALL + 8
KINDS = {"bf16": "f16", "f16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "s8": "i8", "u8": "i8"}
TYPES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "u8": 0, "s8": 1}
RESULTS = {"f16": (0, np.float16), "f32": (1, np.float32), "s32": (2, np.int32)}


def execute(body: str, arrays: list, threads: int = 128) -> None:
    text = module(body, ["p"] * len(arrays)).replace("sm_90a", "sm_100a")
    run(assembled(text, "sm_100a"), "test", 1, threads, arrays, ALL + 64)


START = """mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; shr.u32 %r1, %r0, 5; setp.eq.u32 %p1, %r1, 0;
    mul.wide.u32 %d0, %r0, 16; mov.b64 %d2, tw_shared; and.b32 %r6, %r0, 96; shl.b32 %r7, %r6, 16;"""
ALLOCATED = f"""@%p0 mbarrier.init.shared::cta.b64 [tw_shared+{BARRIER}], 1;
    @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [tw_shared+{SLOT}], 256;
    @%p1 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    bar.sync 0; ld.shared.b32 %r8, [tw_shared+{SLOT}]; add.s32 %r9, %r8, %r7;"""
FREED = "bar.sync 0; @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, 256;"


@dataclass
class Case:
    left: str = "bf16"
    right: str = "bf16"
    result: str = "f32"
    rows: int = 128
    columns: int = 32
    swizzles: tuple[int, int] = (128, 128)
    majors: tuple[str, str] = ("k", "k")
    adds: int = 1
    negates: int = 0
    issue: str = "setp.eq.u32 %p3, %r0, 0;"
    commit: str = f"@%p3 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [tw_shared+{BARRIER}];"
    wait: str = f"$w: mbarrier.try_wait.parity.shared::cta.b64 %p5, [tw_shared+{BARRIER}], 0; @!%p5 bra $w;"
    fence: str = "tcgen05.fence::after_thread_sync;"
    before: str = "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;"
    proxy: str = "fence.proxy.async.shared::cta;"

    @property
    def depth(self) -> int:
        return 32 // np.dtype(random((1, 1), self.left, 0).dtype).itemsize

    @property
    def descriptor(self) -> int:
        types = RESULTS[self.result][0] << 4 | TYPES[self.left] << 7 | TYPES[self.right] << 10
        majors = (self.majors[0] == "mn") << 15 | (self.majors[1] == "mn") << 16
        return types | self.negates << 13 | majors | self.columns >> 3 << 17 | self.rows >> 4 << 24

    def body(self, left: int, right: int) -> str:
        count = self.columns
        names = ", ".join(f"%r{100 + number}" for number in range(count))
        loads = "".join(f"ld.global.b32 %r{100 + i}, [%d20+{4 * i}];" for i in range(count))
        stores = "".join(f"st.global.b32 [%d20+{4 * i}], %r{100 + i};" for i in range(count))
        return f"""{START} mov.b32 %r12, 0;
        $fill: mul.wide.u32 %d4, %r12, 2048; add.s64 %d4, %d4, %d0; add.s64 %d5, %d100, %d4; add.s64 %d6, %d2, %d4;
        ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%d5]; st.shared.v4.b32 [%d6], {{%r2, %r3, %r4, %r5}};
        add.s32 %r12, %r12, 1; setp.lt.u32 %p2, %r12, {ALL // 2048}; @%p2 bra $fill;
        {ALLOCATED} mul.wide.u32 %d20, %r0, {4 * count}; add.s64 %d20, %d20, %d101; {loads}
        tcgen05.st.sync.aligned.32x32b.x{count}.b32 [%r9], {{{names}}}; tcgen05.wait::st.sync.aligned;
        {self.proxy} {self.before} {self.issue} setp.ne.b32 %p4, {self.adds}, 0;
        mov.b64 %d30, {left}; mov.b64 %d31, {right}; mov.b32 %r10, {self.descriptor};
        @%p3 tcgen05.mma.cta_group::1.kind::{KINDS[self.left]} [%r8], %d30, %d31, %r10, %p4;
        {self.commit} {self.wait} {self.fence}
        tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {{{names}}}, [%r9]; tcgen05.wait::ld.sync.aligned;
        {stores} {FREED}"""


def descriptor(start: int, leading: int, stride: int, swizzle: int) -> int:
    mode = {0: 0, 128: 2, 64: 4, 32: 6}[swizzle]
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | mode << 61


def multiply(case: Case) -> tuple[np.ndarray, np.ndarray]:
    a, b = random((case.rows, case.depth), case.left, 0), random((case.columns, case.depth), case.right, 1)
    memory, starts = np.zeros(ALL, np.uint8), []
    for number, (matrix, start) in enumerate(((a, 0), (b, B_AT))):
        swizzle, major = case.swizzles[number], case.majors[number]
        span = (swizzle or 16) // matrix.itemsize
        lines = -(-matrix.shape[0] // span) * span if major == "mn" else matrix.shape[0]
        depth = -(-case.depth // span) * span if major == "k" else case.depth
        whole = np.full((lines, depth), 3, matrix.dtype)
        whole[: matrix.shape[0], : case.depth] = matrix
        data, leading, stride = packed(whole, swizzle, major)
        memory[start : start + data.size] = data
        starts.append(descriptor(start, leading, stride, swizzle))
    dtype = RESULTS[case.result][1]
    sums = np.random.default_rng(2).integers(-9, 9, (case.rows, case.columns)).astype(dtype)
    # Lane r of tensor memory is row r; of 64 rows each warp has 16 (layout F).
    lanes = np.arange(128) if case.rows == 128 else np.array([32 * (r // 16) + r % 16 for r in range(64)])
    words = np.full((128, case.columns), 0xABCDABCD, np.uint32)
    narrow = sums.view(np.uint16).astype(np.uint32) if case.result == "f16" else sums.view(np.uint32)
    words[lanes] = narrow
    execute(case.body(*starts), [memory, words])
    got = words[lanes].astype(np.uint16).view(dtype) if case.result == "f16" else words[lanes].view(dtype)
    assert (np.delete(words, lanes, axis=0) == 0xABCDABCD).all()
    sign = -1 if case.negates in (1, 2) else 1
    exact = sign * (a.astype(np.float64) @ b.astype(np.float64).T) + case.adds * sums.astype(np.float64)
    return got, exact.astype(dtype)


@pytest.mark.parametrize(
    "case",
    [
        *(Case(swizzles=(a, b)) for a, b in ((0, 32), (32, 64), (64, 128), (128, 0))),
        *(Case(swizzles=(a, b), majors=("mn", "mn"), columns=64) for a, b in ((0, 128), (128, 64), (64, 32), (32, 0))),
        *(Case(left=name, right=name) for name in ("f16", "tf32", "e4m3", "e5m2")),
        Case(left="e4m3", right="e5m2", majors=("mn", "k")),
        Case(left="s8", right="u8", result="s32", majors=("k", "mn"), swizzles=(128, 32)),
        Case(left="u8", right="s8", result="s32"),
        Case(left="f16", right="f16", result="f16"),
        Case(rows=64, columns=8),
        Case(rows=64, left="tf32", right="tf32", swizzles=(64, 0)),
        Case(adds=0),
        Case(negates=1),
        Case(negates=3),
    ],
    ids=lambda case: f"{case.left}-{case.right}-{case.result}-{case.rows}-{case.columns}-{case.swizzles}-{case.majors}",
)
def test_products(case: Case) -> None:
    got, expected = multiply(case)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"wait": ""}, TensorMemoryFault, "whose commit nobody awaited still writes there"),
        ({"fence": ""}, TensorMemoryFault, "a wait or a tcgen05.fence lacks"),
        ({"commit": ""}, Deadlock, "1 of 1 arrivals"),
        ({"issue": "setp.lt.u32 %p3, %r0, 32;"}, Divergence, "32 threads each issue it"),
        ({"proxy": ""}, SharedRace, r"no fence.proxy.async since"),
        ({"before": "bar.sync 0;"}, TensorMemoryFault, "a wait or a tcgen05.fence lacks"),
        ({"before": "bar.sync 0; tcgen05.fence::after_thread_sync;"}, TensorMemoryFault, "tcgen05.fence lacks"),
        ({"before": "tcgen05.fence::before_thread_sync; bar.sync 0;"}, TensorMemoryFault, "tcgen05.fence lacks"),
        ({"columns": 8}, ValueError, "the shape 128 x 8"),
        ({"left": "tf32", "right": "tf32", "majors": ("mn", "k")}, NotImplementedError, "32-bit operands"),
        (
            {"wait": "st.shared.b32 [tw_shared], 0;" + Case.wait},
            SharedRace,
            "an asynchronous operation which nobody awaited still reads|another warp writes",
        ),
    ],
)
def test_misuse(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        multiply(Case(**options))


def test_loads_and_stores() -> None:
    """Each warp stores its lanes and reads them back, column by column."""
    body = f"""{START}{ALLOCATED} mul.wide.u32 %d0, %r0, 8; add.s64 %d20, %d100, %d0;
    ld.global.v2.b32 {{%r20, %r21}}, [%d20];
    tcgen05.st.sync.aligned.32x32b.x2.b32 [ADDRESS], {{%r20, %r21}}; STORED
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r22}}, [%r9+1]; LOADED
    add.s64 %d21, %d101, %d0; st.global.b32 [%d21], %r22; {FREED}"""
    given, output = np.arange(256, dtype=np.int32).reshape(128, 2), np.zeros((128, 2), np.int32)

    def execute_with(address: str = "%r9", stored: str = "tcgen05.wait::st.sync.aligned;", **words: str) -> None:
        loaded = words.get("loaded", "tcgen05.wait::ld.sync.aligned;")
        text = body.replace("ADDRESS", address).replace("STORED", stored).replace("LOADED", loaded)
        execute(text + words.get("end", ""), [given, output])

    execute_with()
    np.testing.assert_array_equal(output[:, 0], given[:, 1])
    with pytest.raises(TensorMemoryFault, match=r"a tcgen05.st that nobody awaited"):
        execute_with(stored="")
    with pytest.raises(Exception, match="touches a register that nobody awaited"):
        execute_with(loaded="")
    with pytest.raises(TensorMemoryFault, match="a warp of lanes 32 on names"):
        execute_with("%r8")
    with pytest.raises(TensorMemoryFault, match="are not allocated"):
        execute_with("%r9+255")
    with pytest.raises(TensorMemoryFault, match="after relinquish_alloc_permit"):
        execute_with(end=f"@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [tw_shared+{SLOT}], 32;")


@pytest.mark.parametrize(
    ("columns", "message"),
    [(48, "no power of two"), (16, "no power of two"), (64, "ends with tensor memory allocated")],
)
def test_allocations(columns: int, message: str) -> None:
    body = f"""{START} mov.b32 %r9, {columns};
    @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [tw_shared+{SLOT}], %r9;"""
    with pytest.raises(TensorMemoryFault, match=message):
        execute(body, [])


def test_more_columns_than_there_are() -> None:
    allocate = f"@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [tw_shared+{SLOT}], 256;"
    with pytest.raises(Deadlock, match="columns of tensor memory"):
        execute(START + 3 * allocate, [])
    growing = START + allocate.replace("256", "32") + allocate
    with pytest.raises(TensorMemoryFault, match="are allocated after 32"):
        execute(growing, [])
