"""wgmma: products of every type, place and layout against NumPy, and what is an error."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from tests.emulators.ptx.assembled import assembled
from tests.emulators.ptx.descriptors import blackwell, hopper
from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.errors import Divergence, RegisterRace, SharedRace
from tests.emulators.ptx.test_mbarriers import module

TYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "f32": np.float32,
    "s32": np.int32,
}
A_AT, B_AT, ALL = 0, 16384, 65536


def random(shape: tuple[int, int], name: str, seed: int) -> np.ndarray:
    low = 0 if name == "u8" else -4
    return np.random.default_rng(seed).integers(low, 5, shape).astype(TYPES[name])


def packed(matrix: np.ndarray, swizzle: int, major: str, gap: int = 0) -> tuple[np.ndarray, int, int]:
    """Bytes of an operand (lines, K) in core matrices written one by one as the figures of the ISA show them, with the
    leading and the stride byte offset. `gap`: bytes between neighbours along the lines."""
    lines, depth = matrix.shape
    size = matrix.itemsize
    data = np.zeros(32768, np.uint8)
    contiguous, other = (depth * size, lines) if major == "k" else (lines * size, depth)
    span = swizzle or 16
    groups = other // 8
    # Atoms of 8 rows of `span` bytes; those along the strided dim follow each other, then those along the other.
    atom, between = 8 * span + gap, groups * (8 * span + gap)
    for line, k in np.ndindex(lines, depth):
        along, across = (k * size, line) if major == "k" else (line * size, k)
        place = along // span * between + across // 8 * atom + across % 8 * span + along % span
        place ^= ((place >> 7) & {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]) << 4
        data[place : place + size] = np.frombuffer(matrix[line, k].tobytes(), np.uint8)
    assert contiguous % span == 0
    if major == "k":
        return data, between, atom
    return (data, between, atom) if swizzle else (data, atom, between)


def descriptor(start: int, leading: int, stride: int, swizzle: int, base: int = 0) -> int:
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | base << 49 | mode << 62


@dataclass
class Case:
    """A product of a warpgroup: how A and B lie, and the instructions around it."""

    left: str = "bf16"
    right: str = "bf16"
    result: str = "f32"
    columns: int = 16
    swizzles: tuple[int, int] = (128, 128)
    majors: tuple[str, str] = ("k", "k")
    scales: tuple[int, int] = (1, 1)
    in_registers: bool = False
    adds: int = 1
    fence: str = "wgmma.fence.sync.aligned;"
    after: str = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    proxy: str = "fence.proxy.async.shared::cta;"
    steps: int = 1

    @property
    def depth(self) -> int:
        return 32 // np.dtype(TYPES[self.left]).itemsize

    @property
    def registers(self) -> int:
        return self.columns // (4 if self.result == "f16" else 2)

    def body(self, offsets: tuple[list[int], list[int]]) -> str:
        """Shared memory is filled from %d100; the sums begin as %d101 has them, and end there."""
        count = self.registers
        names = ", ".join(f"%r{100 + number}" for number in range(count))
        loads = "".join(f"ld.global.b32 %r{100 + i}, [%d20+{4 * i}];" for i in range(count))
        stores = "".join(f"st.global.b32 [%d20+{4 * i}], %r{100 + i};" for i in range(count))
        fragments = "".join(f"ld.global.b32 %r{90 + i}, [%d21+{4 * i}];" for i in range(4))
        products = "".join(
            self.product(names, f"{{{', '.join(f'%r{90 + i}' for i in range(4))}}}" if self.in_registers else str(a), b)
            for a, b in zip(*offsets, strict=True)
        )
        return f"""mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 16; mov.b64 %d2, tw_shared; mov.b32 %r1, 0;
        $fill: mul.wide.u32 %d4, %r1, 2048; add.s64 %d4, %d4, %d0; add.s64 %d5, %d100, %d4; add.s64 %d6, %d2, %d4;
        ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%d5]; st.shared.v4.b32 [%d6], {{%r2, %r3, %r4, %r5}};
        add.s32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, {ALL // 2048}; @%p1 bra $fill;
        mul.wide.u32 %d20, %r0, {4 * count}; add.s64 %d20, %d20, %d101; {loads}
        mul.wide.u32 %d21, %r0, 16; add.s64 %d21, %d21, %d102; {fragments}
        {self.proxy} bar.sync 0; setp.ne.b32 %p2, {self.adds}, 0; {self.fence}
        {products} {self.after}
        {stores}"""

    def product(self, names: str, left: str, right: int) -> str:
        shape = f"m64n{self.columns}k{self.depth}.{self.result}.{self.left}.{self.right}"
        options = "" if self.result == "s32" else f", {self.scales[0]}, {self.scales[1]}"
        if self.left in ("bf16", "f16"):
            majors = self.majors[1:] if self.in_registers else self.majors
            options += "".join(", 1" if major == "mn" else ", 0" for major in majors)
        left_name = left if self.in_registers else "%d30"
        setting = "" if self.in_registers else f"mov.b64 %d30, {left};"
        return (
            f"{setting} mov.b64 %d31, {right};"
            f"wgmma.mma_async.sync.aligned.{shape} {{{names}}}, {left_name}, %d31, %p2{options};"
        )


def fragment(matrix: np.ndarray) -> np.ndarray:
    """A (64 x 32 bytes) in registers: the figure, thread by thread and element by element."""
    each = 4 // matrix.itemsize
    words = np.zeros((128, 4 * each), matrix.dtype)
    for thread in range(128):
        warp, group, member = thread // 32, thread % 32 // 4, thread % 4
        for number in range(4 * each):
            register, i = divmod(number, each)
            row = 16 * warp + group + (8 if register in (1, 3) else 0)
            column = member * each + i + (4 * each if register >= 2 else 0)
            words[thread, number] = matrix[row, column]
    return words


def places(columns: int) -> list[list[tuple[int, int]]]:
    """The figure of D: d(2i), d(2i+1) of rows g and g + 8."""
    return [
        [
            (16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2), thread % 4 * 2 + i % 2 + 8 * (i // 4))
            for i in range(columns // 2)
        ]
        for thread in range(128)
    ]


def multiply(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """(what the instruction gave, what NumPy gives) of random operands."""
    depth = case.depth * case.steps
    a, b = random((64, depth), case.left, 0), random((case.columns, depth), case.right, 1)
    memory = np.zeros(ALL, np.uint8)
    offsets: tuple[list[int], list[int]] = ([], [])
    for number, (matrix, start) in enumerate(((a, A_AT), (b, B_AT))):
        swizzle, major = case.swizzles[number], case.majors[number]
        span = (swizzle or 16) // matrix.itemsize
        # Whole atoms: what is beyond the operand is poison.
        width = -(-matrix.shape[0] // span) * span if major == "mn" else matrix.shape[0]
        full_depth = -(-depth // span) * span if major == "k" else depth
        whole = np.full((width, full_depth), 3, matrix.dtype)
        whole[: matrix.shape[0], :depth] = matrix
        data, leading, stride = packed(whole, swizzle, major)
        memory[start : start + data.size] = data
        for step in range(case.steps):
            along = step * 32 if major == "k" else 0
            chunk = swizzle or 16
            inside = along % chunk + along // chunk * (leading if not swizzle else whole.shape[0] // 8 * 8 * chunk)
            across = 0 if major == "k" else step * case.depth // 8 * (stride if swizzle else leading)
            offsets[number].append(descriptor(start + inside + across, leading, stride, swizzle))
    sums = random((64, case.columns), case.result, 2)
    table = places(case.columns)
    given = np.array([[sums[place] for place in row] for row in table], sums.dtype).view(np.uint32)
    registers = fragment(a[:, : case.depth]).view(np.uint32)
    text = assembled(module(case.body(offsets), ["p"] * 3), "sm_90a")
    run(text, "test", 1, 128, [memory, given, registers], ALL)
    exact = case.scales[0] * case.scales[1] * (a.astype(np.float64) @ b.astype(np.float64).T)
    exact = exact + case.adds * sums.astype(np.float64)
    got = np.zeros_like(sums)
    for row, values in zip(table, np.ascontiguousarray(given).view(sums.dtype), strict=True):
        for place, value in zip(row, values, strict=True):
            got[place] = value
    return got, exact.astype(sums.dtype)


SWIZZLES = (0, 32, 64, 128)


@pytest.mark.parametrize(
    "case",
    [
        *(Case(swizzles=(each, SWIZZLES[::-1][number]), steps=4) for number, each in enumerate(SWIZZLES)),
        *(Case(swizzles=(a, b), majors=("mn", "mn"), columns=64) for a, b in ((0, 0), (32, 128), (64, 32), (128, 64))),
        Case(majors=("k", "mn"), columns=128, steps=2),
        Case(majors=("mn", "k"), columns=8),
        *(Case(left=name, right=name, steps=2) for name in ("f16", "tf32", "e4m3", "e5m2")),
        Case(left="e4m3", right="e5m2"),
        Case(left="e5m2", right="e4m3", result="f16"),
        Case(left="f16", right="f16", result="f16", columns=24),
        *(Case(left=a, right=b, result="s32") for a, b in (("s8", "s8"), ("u8", "s8"), ("u8", "u8"))),
        *(Case(left=name, right=name, in_registers=True) for name in ("bf16", "tf32", "e4m3")),
        Case(left="s8", right="u8", result="s32", in_registers=True),
        Case(adds=0),
        Case(scales=(-1, 1)),
        Case(scales=(-1, -1)),
    ],
    ids=lambda case: (
        f"{case.left}-{case.right}-{case.result}-{case.columns}-{case.swizzles}-{case.majors}-{case.steps}"
    ),
)
def test_products(case: Case) -> None:
    got, expected = multiply(case)
    np.testing.assert_array_equal(got, expected)


def test_groups_end_in_order() -> None:
    """Two groups on different accumulators: after a wait for all but one the first may be read, the second not."""
    case = Case(columns=8)
    second = case.product("%r110, %r111, %r112, %r113", "", 0).partition("wgmma.")[2]
    commit = "wgmma.commit_group.sync.aligned;"
    case.after = f"""{commit} wgmma.{second} {commit} wgmma.wait_group.sync.aligned 1; mov.b32 %r120, READ;
    wgmma.wait_group.sync.aligned 0;"""
    after = case.after
    case.after = after.replace("READ", "%r103")
    got, expected = multiply(case)
    np.testing.assert_array_equal(got, expected)
    case.after = after.replace("READ", "%r113")
    with pytest.raises(RegisterRace, match="touches a register that nobody awaited"):
        multiply(case)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fence": ""}, RegisterRace, "no wgmma.fence after its registers were touched"),
        ({"fence": "wgmma.fence.sync.aligned; mov.b32 %r100, 0;"}, RegisterRace, "no wgmma.fence"),
        ({"after": ""}, RegisterRace, "touches a register that nobody awaited: wgmma"),
        ({"after": "wgmma.commit_group.sync.aligned;"}, RegisterRace, "nobody awaited"),
        ({"after": "wgmma.wait_group.sync.aligned 0;"}, RegisterRace, "nobody awaited"),
        (
            {"after": "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;"},
            RegisterRace,
            "nobody awaited",
        ),
        ({"proxy": ""}, SharedRace, r"no fence.proxy.async since"),
        ({"proxy": "fence.proxy.async.global;"}, SharedRace, r"no fence.proxy.async since"),
        (
            {"after": "st.shared.b32 [tw_shared], 0;" + Case.after},
            SharedRace,
            "an asynchronous operation which nobody awaited still reads",
        ),
        ({"in_registers": True, "after": "mov.b32 %r90, 0;"}, RegisterRace, "touches a register that nobody awaited"),
        ({"fence": "wgmma.fence.sync.aligned; setp.lt.u32 %p7, %r0, 96; @!%p7 bra $x; "}, Divergence, "warpgroup"),
    ],
)
def test_misuse(options: dict, error: type[Exception], message: str) -> None:
    case = Case(**options)
    if error is Divergence:
        case.after += "$x:"
    with pytest.raises(error, match=message):
        multiply(case)


def test_descriptors_with_reserved_bits() -> None:
    with pytest.raises(ValueError, match="reserved bits"):
        hopper(1 << 46)
    with pytest.raises(ValueError, match="fixed bits"):
        blackwell(0)
