"""Instructions of whole warps, matrix products and asynchronous copies of the PTX emulator."""

import ml_dtypes
import numpy as np
import pytest

from tests.emulators.ptx.errors import Divergence, MemoryFault, SharedRace
from tests.emulators.ptx.kernels import execute

SHARED = ".extern .shared .align 16 .b8 tw_shared[];"
THREAD = "mov.u32 %r0, %tid.x;\nmul.wide.u32 %d0, %r0, 4;\nadd.s64 %d1, %d100, %d0;\nadd.s64 %d2, %d101, %d0;\n"


def shuffled(values: list[int], mode: str, b: int, c: int) -> list[tuple[int, bool]]:
    """The loop of the ISA's description of shfl.sync, for one warp."""
    result = []
    for lane in range(32):
        clamp, segment = c & 31, (c >> 8) & 31
        highest = (lane & segment) | (clamp & ~segment & 31)
        lowest = lane & segment
        if mode == "up":
            source, valid = lane - b, lane - b >= highest
        elif mode == "down":
            source, valid = lane + b, lane + b <= highest
        elif mode == "bfly":
            source, valid = lane ^ b, lane ^ b <= highest
        else:
            source = lowest | (b & ~segment & 31)
            valid = source <= highest
        result.append((values[source if valid else lane], valid))
    return result


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles(mode: str) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 31, 64).astype(np.int32)
    for b in (0, 1, 3, 7, 16, 31):
        for width in (32, 16, 8, 1):
            c = (32 - width) << 8 | (0 if mode == "up" else 31)
            output, valid = np.zeros(64, np.int32), np.zeros(64, np.int32)
            body = f"""{THREAD} add.s64 %d3, %d102, %d0; ld.global.b32 %r1, [%d1];
            shfl.sync.{mode}.b32 %r2|%p1, %r1, {b}, {c}, -1;
            selp.b32 %r3, 1, 0, %p1; st.global.b32 [%d2], %r2; st.global.b32 [%d3], %r3;"""
            execute(body, [values, output, valid], 64)
            expected = shuffled(values[:32].tolist(), mode, b, c) + shuffled(values[32:].tolist(), mode, b, c)
            assert list(zip(output.tolist(), valid.astype(bool).tolist(), strict=True)) == expected


def test_lanes_that_are_missing() -> None:
    half = "mov.u32 %r0, %tid.x; setp.lt.u32 %p1, %r0, 16;"
    with pytest.raises(Divergence, match="0xffffffff of warp 0 are named, but only 0xffff run"):
        execute(half + "@%p1 shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;", [])
    with pytest.raises(Divergence, match="reads lane 16"):
        execute(half + "@%p1 shfl.sync.bfly.b32 %r1, %r0, 16, 31, 0xffff;", [])
    with pytest.raises(Divergence, match="only 0xff are named"):
        execute(half + "@%p1 vote.sync.any.pred %p2, %p1, 0xff;", [])
    with pytest.raises(Divergence, match="different members"):
        execute("activemask.b32 %r1; mov.u32 %r0, %tid.x; sub.s32 %r1, %r1, %r0; bar.warp.sync %r1;", [])
    execute(half + "@%p1 shfl.sync.bfly.b32 %r1, %r0, 8, 31, 0xffff;", [])
    # Masks count only of the lanes that run.
    execute(half + "selp.b32 %r2, 0xffff, 7, %p1; @%p1 shfl.sync.bfly.b32 %r1, %r0, 8, 31, %r2;", [])
    # Lanes that ended, or that the block does not have, are not waited for.
    execute(half + "@!%p1 ret; shfl.sync.bfly.b32 %r1, %r0, 8, 31, -1;", [])
    execute("shfl.sync.bfly.b32 %r1, %r0, 8, 31, -1;", [], 48)


def test_votes_and_matches() -> None:
    values = np.random.default_rng(1).integers(0, 4, 64).astype(np.int32)
    values[32:] = 2
    output = np.zeros((7, 64), np.uint32)
    stores = "".join(f"st.global.b32 [%d2+{256 * row}], %r{10 + row};" for row in range(7))
    body = f"""{THREAD} ld.global.b32 %r1, [%d1]; setp.eq.s32 %p1, %r1, 2;
    vote.sync.ballot.b32 %r10, %p1, -1;
    vote.sync.all.pred %p2, %p1, -1; selp.b32 %r11, 1, 0, %p2;
    vote.sync.any.pred %p2, !%p1, -1; selp.b32 %r12, 1, 0, %p2;
    vote.sync.uni.pred %p2, %p1, -1; selp.b32 %r13, 1, 0, %p2;
    match.any.sync.b32 %r14, %r1, -1;
    match.all.sync.b32 %r15|%p3, %r1, -1;
    redux.sync.add.s32 %r16, %r1, -1;
    {stores}"""
    execute(body, [values, output], 64)
    for warp in range(2):
        mine = values[32 * warp : 32 * warp + 32].tolist()
        twos = [value == 2 for value in mine]
        expected = [sum(1 << lane for lane in range(32) if twos[lane])] * 32
        rows = output[:, 32 * warp : 32 * warp + 32].tolist()
        assert rows[0] == expected
        assert rows[1] == [all(twos)] * 32
        assert rows[2] == [not all(twos)] * 32
        assert rows[3] == [all(twos) or not any(twos)] * 32
        assert rows[4] == [sum(1 << lane for lane in range(32) if mine[lane] == value) for value in mine]
        assert rows[5] == [0xFFFFFFFF if len(set(mine)) == 1 else 0] * 32
        assert rows[6] == [sum(mine)] * 32


def fragment_of(matrix: np.ndarray, places: list[list[tuple[int, int]]], register: type) -> np.ndarray:
    """Each lane's elements in the order of `places`, as registers."""
    values = np.array([[matrix[place] for place in lane] for lane in places], matrix.dtype)
    return np.ascontiguousarray(values).view(register)


EIGHT_BITS = ("s8", "u8", "e4m3", "e5m2")


def a_places(name: str, rows: int, depth: int) -> list[list[tuple[int, int]]]:
    """The figures and formulas of the ISA for A, copied case by case."""
    result = []
    for lane in range(32):
        group, member = lane >> 2, lane % 4
        count = rows * depth // 32
        if name in ("f16", "bf16"):
            row = [group if i < 2 or 4 <= i < 6 else group + 8 for i in range(count)]
            column = [member * 2 + (i & 1) + (8 if i >= 4 else 0) for i in range(count)]
        elif name == "tf32":
            row = [group if i % 2 == 0 else group + 8 for i in range(count)]
            column = [member if i < 2 else member + 4 for i in range(count)]
        elif name in EIGHT_BITS:
            row = [group if i < 4 or 8 <= i < 12 else group + 8 for i in range(count)]
            column = [member * 4 + (i & 3) + (16 if i >= 8 else 0) for i in range(count)]
        else:
            row, column = [group], [member]
        result.append(list(zip(row, column, strict=True)))
    return result


def b_places(name: str, depth: int) -> list[list[tuple[int, int]]]:
    result = []
    for lane in range(32):
        group, member = lane >> 2, lane % 4
        count = depth * 8 // 32
        if name in ("f16", "bf16"):
            row = [member * 2 + (i & 1) + (8 if i >= 2 else 0) for i in range(count)]
        elif name == "tf32":
            row = [member + 4 * i for i in range(count)]
        elif name in EIGHT_BITS:
            row = [member * 4 + (i & 3) + (16 if i >= 4 else 0) for i in range(count)]
        else:
            row = [member]
        result.append([(each, group) for each in row])
    return result


def c_places(rows: int) -> list[list[tuple[int, int]]]:
    return [
        [(lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + (i & 1)) for i in range(rows * 8 // 32)]
        for lane in range(32)
    ]


PRODUCTS = [
    ("m16n8k32", "e4m3", "f32"),
    ("m16n8k32", "e5m2", "f32"),
    ("m16n8k16", "f16", "f32"),
    ("m16n8k16", "f16", "f16"),
    ("m16n8k16", "bf16", "f32"),
    ("m16n8k8", "f16", "f32"),
    ("m16n8k8", "bf16", "f32"),
    ("m16n8k8", "tf32", "f32"),
    ("m16n8k4", "tf32", "f32"),
    ("m16n8k32", "s8", "s32"),
    ("m16n8k32", "u8", "s32"),
    ("m16n8k16", "s8", "s32"),
    ("m8n8k4", "f64", "f64"),
]
DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32, "f64": np.float64}
DTYPES |= {"s8": np.int8, "u8": np.uint8, "s32": np.int32}
DTYPES |= {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize(("shape", "name", "result"), PRODUCTS)
def test_matrix_products(shape: str, name: str, result: str) -> None:
    rows, depth = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    generator = np.random.default_rng(2)

    def numbers(size: tuple[int, int], kind: str) -> np.ndarray:
        low = 0 if kind == "u8" else -8
        values = generator.integers(low, 100 if kind in ("s8", "u8") else 9, size).astype(DTYPES[kind])
        if kind == "u8":
            values[0] = 200
        return values / values.dtype.type(4) if kind[0] in "fte" or kind == "bf16" else values

    a, b, c = numbers((rows, depth), name), numbers((depth, 8), name), numbers((rows, 8), result)
    register = np.uint64 if name == "f64" else np.uint32
    given = [
        fragment_of(a, a_places(name, rows, depth), register),
        fragment_of(b, b_places(name, depth), register),
        fragment_of(c, c_places(rows), register),
    ]
    output = np.zeros_like(given[2])
    letter, bits = ("d", 64) if name == "f64" else ("r", 32)
    body, names = "mov.u32 %r0, %tid.x;", []
    for number, part in enumerate([*given, output]):
        body += f"mul.wide.u32 %d{number}, %r0, {part.shape[1] * bits // 8};"
        body += f"add.s64 %d{number}, %d{number}, %d{100 + number};"
        names.append([f"%{letter}{10 + 10 * number + item}" for item in range(part.shape[1])])
        if number < 3:
            body += "".join(
                f"ld.global.b{bits} {item}, [%d{number}+{i * bits // 8}];" for i, item in enumerate(names[-1])
            )
    d, a_names, b_names, c_names = (f"{{{', '.join(each)}}}" for each in (names[3], *names[:3]))
    body += f"mma.sync.aligned.{shape}.row.col.{result}.{name}.{name}.{result} {d}, {a_names}, {b_names}, {c_names};"
    body += "".join(f"st.global.b{bits} [%d3+{i * bits // 8}], {item};" for i, item in enumerate(names[3]))
    execute(body, [*given, output])
    exact = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    expected = fragment_of(exact.astype(DTYPES[result]), c_places(rows), register)
    np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(count: int, transposed: bool) -> None:
    matrices = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    output = np.zeros((count, 32, 2), np.uint16)
    names = ", ".join(f"%r{10 + matrix}" for matrix in range(count))
    trans = ".trans" if transposed else ""
    body = f"""mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 16; add.s64 %d1, %d100, %d0; mov.b64 %d2, tw_shared;
    add.s64 %d3, %d2, %d0; ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%d1];
    st.shared.v4.b32 [%d3], {{%r1, %r2, %r3, %r4}};
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%d3];
    mul.wide.u32 %d4, %r0, 4; add.s64 %d5, %d101, %d4;"""
    body += "".join(f"st.global.b32 [%d5+{128 * matrix}], %r{10 + matrix};" for matrix in range(count))
    counts = execute(body, [matrices, output], shared_bytes=512, declarations=SHARED)
    for matrix in range(count):
        for lane in range(32):
            pair = [(lane // 4, lane % 4 * 2 + i) for i in range(2)]
            expected = [matrices[matrix][place[::-1] if transposed else place] for place in pair]
            assert output[matrix, lane].tolist() == expected
    assert (counts.shared_wavefronts, counts.shared_conflicts) == (4 + count, 0)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix(count: int, transposed: bool) -> None:
    """What it stores, ldmatrix loads, which is tested by itself; and a line of the first matrix."""
    registers = np.arange(count * 64, dtype=np.uint16).reshape(count, 32, 2)
    output, stored = np.zeros((count, 32, 2), np.uint16), np.zeros((32, 8), np.uint16)
    given, names = (", ".join(f"%r{first + matrix}" for matrix in range(count)) for first in (20, 10))
    trans = ".trans" if transposed else ""
    body = """mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 16; mul.wide.u32 %d4, %r0, 4; mov.b64 %d2, tw_shared;
    add.s64 %d3, %d2, %d0; add.s64 %d1, %d100, %d4; add.s64 %d5, %d101, %d4; add.s64 %d6, %d102, %d0;"""
    body += "".join(f"ld.global.b32 %r{20 + matrix}, [%d1+{128 * matrix}];" for matrix in range(count))
    body += f"""stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%d3], {{{given}}}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%d3];
    ld.shared.v4.b32 {{%r1, %r2, %r3, %r4}}, [%d3]; st.global.v4.b32 [%d6], {{%r1, %r2, %r3, %r4}};"""
    body += "".join(f"st.global.b32 [%d5+{128 * matrix}], %r{10 + matrix};" for matrix in range(count))
    counts = execute(body, [registers, output, stored], shared_bytes=512, declarations=SHARED)
    np.testing.assert_array_equal(output, registers)
    line = [registers[0][4 * i][0] for i in range(8)] if transposed else registers[0][:4].reshape(-1)
    np.testing.assert_array_equal(stored[0], line)
    assert (counts.shared_wavefronts, counts.shared_conflicts) == (2 * count + 4, 0)


COPIED = """mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 16; add.s64 %d1, %d100, %d0; mov.b64 %d2, tw_shared;
    add.s64 %d3, %d2, %d0; xor.b32 %r1, %r0, 32; mul.wide.u32 %d4, %r1, 16; add.s64 %d4, %d2, %d4;
    add.s64 %d5, %d101, %d0;
    cp.async.cg.shared.global [%d3], [%d1], 16SIZE;
    cp.async.commit_group;
    AFTER
    ld.shared.v4.b32 {%r2, %r3, %r4, %r5}, [READ]; st.global.v4.b32 [%d5], {%r2, %r3, %r4, %r5};"""


def copied(after: str, read: str = "%d4", size: str = "") -> np.ndarray:
    values, output = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    body = COPIED.replace("AFTER", after).replace("READ", read).replace("SIZE", size)
    execute(body, [values, output], 64, shared_bytes=1024, declarations=SHARED)
    return output


def test_asynchronous_copies() -> None:
    swapped = np.arange(256).reshape(2, 128)[::-1].reshape(-1)
    np.testing.assert_array_equal(copied("cp.async.wait_group 0; bar.sync 0;"), swapped)
    np.testing.assert_array_equal(copied("cp.async.wait_all; bar.sync 0;"), swapped)
    np.testing.assert_array_equal(copied("cp.async.wait_all;", "%d3"), np.arange(256))
    zero_filled = np.where(np.arange(256) % 4 < 2, np.arange(256), 0)
    np.testing.assert_array_equal(copied("cp.async.wait_all;", "%d3", ", 8"), zero_filled)


def test_copies_that_are_read_too_early() -> None:
    for after, read in (("", "%d3"), ("cp.async.wait_group 1;", "%d3"), ("bar.sync 0;", "%d4")):
        with pytest.raises(SharedRace, match="nobody awaited"):
            copied(after, read)
    with pytest.raises(SharedRace, match="another warp wrote before it"):
        copied("cp.async.wait_group 0;")
    with pytest.raises(SharedRace, match="nobody awaited"):
        copied("st.shared.b32 [%d3], %r0; cp.async.wait_all;")
    # The next copy into a buffer that another warp still reads.
    with pytest.raises(SharedRace, match="another warp read before it"):
        copied("cp.async.wait_all; bar.sync 0; ld.shared.b32 %r9, [%d4]; cp.async.cg.shared.global [%d3], [%d1], 16;")


def test_groups_of_copies_arrive_in_order() -> None:
    values, output = np.arange(64, dtype=np.int32), np.zeros(32, np.int32)
    body = f"""{THREAD} mov.b64 %d5, tw_shared; add.s64 %d6, %d5, %d0;
    cp.async.ca.shared.global [%d6], [%d1], 4; cp.async.commit_group;
    cp.async.ca.shared.global [%d6+128], [%d1+128], 4; cp.async.commit_group;
    cp.async.wait_group 1; ld.shared.b32 %r1, [%d6+WHICH]; st.global.b32 [%d2], %r1;"""
    execute(body.replace("WHICH", "0"), [values, output], shared_bytes=256, declarations=SHARED)
    np.testing.assert_array_equal(output, values[:32])
    with pytest.raises(SharedRace, match="nobody awaited"):
        execute(body.replace("WHICH", "128"), [values, output], shared_bytes=256, declarations=SHARED)
    with pytest.raises(MemoryFault, match="outside of global memory"):
        execute(body.replace("WHICH", "0"), [values[:40].copy(), output], shared_bytes=256, declarations=SHARED)
