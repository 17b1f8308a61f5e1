"""Single emitters of Hopper and Blackwell as small kernels on the emulator, assembled for their chips as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from llvmlite import ir
from msgspec.structs import replace

from tests.cuda.gemm_kernels import SHARED, i32
from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.tensor_maps import TensorMap
from tests.emulators.ptx.test_wgmma import fragment, places
from tilewright.layout.catalogue import tcgen05_registers, wgmma_accumulator, wgmma_operand
from tilewright.machines.machine import load
from tilewright.targets.cuda.atoms import blackwell, hopper
from tilewright.targets.cuda.atoms.descriptors import matrix_descriptor
from tilewright.targets.cuda.toolchain import COMPILER

Value = Any
I32, FLOAT = hopper.I32, ir.FloatType()
BARRIER, BYTES = 8192, 8192 + 64


class Small:
    """A kernel `test(out)`, with a word of `out` for each of a thread's results."""

    def __init__(self, chip: str, parameters: int = 0) -> None:
        self.chip = chip
        self.module = ir.Module(name="test")
        self.module.triple = "nvptx64-nvidia-cuda"
        types = [ir.PointerType(addrspace=1), *[hopper.TensorMapParameter()] * parameters]
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), types), "test")
        function.calling_convention = "ptx_kernel"
        self.builder: Any = ir.IRBuilder(function.append_basic_block("entry"))
        shared = ir.GlobalVariable(self.module, ir.ArrayType(ir.IntType(8), 0), "tw_shared", addrspace=3)
        shared.linkage, shared.align = "external", 1024
        self.base = ir.FormattedConstant(SHARED, shared.get_reference())
        self.out, *self.maps = function.args
        self.thread = hopper.chip(self.builder, "read.ptx.sreg.tid.x", I32)

    def at(self, offset: Value) -> Value:
        offset = i32(offset) if isinstance(offset, int) else offset
        return self.builder.gep(self.base, [offset], source_etype=ir.IntType(8))

    def fill(self, pattern: int, words: int) -> None:
        """The first 512 `words` bytes of shared memory."""
        for number in range(words):
            offset = self.builder.mul(self.builder.add(self.thread, i32(128 * number)), i32(4))
            self.builder.store(i32(pattern), self.at(offset), align=4)
        hopper.fence_shared_writes(self.builder)
        hopper.barrier_sync(self.builder, 0, 128)

    def run(self, results: list[Value], *maps: TensorMap) -> np.ndarray:
        """The results of 128 threads, as words."""
        first = self.builder.mul(self.thread, i32(len(results)))
        for number, value in enumerate(results):
            place = self.builder.gep(self.out, [self.builder.add(first, i32(number))], source_etype=I32)
            self.builder.store(self.builder.bitcast(value, I32), place, align=4)
        self.builder.ret_void()
        machine = replace(load(self.chip), llvm_features=("ptx87",))
        ptx = COMPILER.ptx("test", str(self.module), machine)
        assert COMPILER.cubin("test", ptx, machine).usage.spill_bytes == 0
        output = np.zeros((128, len(results)), np.uint32)
        run(ptx, "test", 1, 128, [output, *maps], BYTES)
        return output


ONES = {"bf16": 0x3F803F80, "f16": 0x3C003C00, "tf32": 0x3F800000, "s8": 0x01010101, "e4m3": 0x38383838}
RESULTS = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


@pytest.mark.parametrize(
    ("name", "result"),
    [("bf16", "f32"), ("f16", "f16"), ("f16", "f32"), ("tf32", "f32"), ("s8", "s32"), ("e4m3", "f32"), ("e4m3", "f16")],
)
@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_wgmma_of_ones(name: str, result: str, in_registers: bool, adds: bool) -> None:
    """Two products of ones, whatever lies where: twice the depth everywhere, and what was there before."""
    small, kind = Small("sm_90a"), hopper.Wgmma(8, name, name, result)
    builder = small.builder
    small.fill(ONES[name], 8)
    address = builder.ptrtoint(small.base, I32)
    fields = 128 >> 4 << 16 | 256 >> 4 << 32
    shared = matrix_descriptor(builder, fields, address)
    first = ir.Constant(FLOAT, 3.0) if result == "f32" else i32(0x42004200 if result == "f16" else 3)
    count = kind.accumulators
    fenced = hopper.wgmma_fence(builder, [first] * count, [i32(ONES[name])] * 4)
    operands = fenced[count:] if in_registers else []
    lefts = [operands or [shared]] * 2
    sums = hopper.wgmma(builder, kind, fenced[:count], lefts, [shared] * 2, ir.Constant(hopper.I1, int(adds)))
    hopper.wgmma_commit(builder)
    got = small.run(hopper.wgmma_wait(builder, 0, sums, operands)[:count]).view(RESULTS[result])
    assert (got == 2 * kind.depth + 3 * adds).all()


def test_tensor_memory_holds_what_is_stored() -> None:
    small = Small("sm_100a")
    builder = small.builder
    warp = builder.udiv(small.thread, i32(32))
    is_first = builder.icmp_unsigned("==", warp, i32(0))
    with builder.if_then(is_first):
        blackwell.tmem_alloc(builder, small.at(0), 64)
        blackwell.tmem_relinquish(builder)
    hopper.barrier_sync(builder, 0, 128)
    base = builder.load(small.at(0), typ=I32, align=4)
    mine = builder.add(base, builder.shl(warp, i32(21)))
    blackwell.tmem_store(builder, mine, [builder.add(small.thread, i32(1000 * each)) for each in range(4)])
    loaded = [*blackwell.tmem_load(builder, mine, 2), *blackwell.tmem_load(builder, builder.add(mine, i32(3)), 1)]
    hopper.barrier_sync(builder, 0, 128)
    with builder.if_then(is_first):
        blackwell.tmem_dealloc(builder, base, 64)
    expected = np.arange(128)[:, None] + np.array([0, 1000, 3000])
    np.testing.assert_array_equal(small.run(loaded), expected)


@pytest.mark.parametrize("names_cluster", [False, True])
def test_copies_in(names_cluster: bool) -> None:
    small, box = Small("sm_90a", 1), (32, 4)
    builder, full = small.builder, small.at(BARRIER)
    with builder.if_then(builder.icmp_unsigned("==", small.thread, i32(0))):
        hopper.mbarrier_init(builder, full, 1)
        hopper.fence_mbarrier_init(builder)
        hopper.mbarrier_expect(builder, full, 512)
        source = hopper.tensor_map(small.maps[0])
        hopper.tensor_copy_in(builder, small.at(0), source, [8, -1], full, names_cluster=names_cluster)
    hopper.barrier_sync(builder, 0, 128)
    hopper.mbarrier_wait(builder, full, 0)
    word = builder.load(small.at(builder.mul(small.thread, i32(4))), typ=I32, align=4)
    given = np.arange(40 * 64, dtype=np.uint32).reshape(40, 64)
    expected = np.concatenate([np.zeros((1, 32)), given[:3, 8:40]]).reshape(128, 1)
    np.testing.assert_array_equal(small.run([word], TensorMap(given, box)), expected)


def register_step(write: Callable[[Any], None]) -> np.ndarray:
    small = Small("sm_90a")
    write(small.builder)
    return small.run([small.builder.zext(hopper.elect_one(small.builder), I32)])


def test_steps_of_threads() -> None:
    """One lane of each warp is elected; registers are given back; barriers are come to and waited at."""

    def write(builder: Any) -> None:
        hopper.set_most_registers(builder, 40, grows=False)
        hopper.barrier_sync(builder, 1, 128)
        hopper.set_most_registers(builder, 48, grows=True)
        hopper.barrier_arrive(builder, 2, 128)

    assert register_step(write).reshape(4, 32).sum(axis=1).tolist() == [1] * 4


# ---- fragments of the catalogue --------------------------------------------------------------------------------------


def test_fragments_of_the_catalogue() -> None:
    layout = wgmma_accumulator((64, 24))
    table = places(24)
    for index in np.ndindex(64, 24):
        at = layout.coordinates(index)
        assert table[32 * at["warp"] + at["lane"]][at["reg"]] == index
    for dtype, columns in ((np.float32, 8), (ml_dtypes.bfloat16, 16), (np.int8, 32)):
        layout = wgmma_operand((64, columns), 8 * np.dtype(dtype).itemsize)
        numbers = np.random.default_rng(0).integers(-100, 100, (64, columns)).astype(dtype)
        words = fragment(numbers)
        for index in np.ndindex(64, columns):
            at = layout.coordinates(index)
            assert words[32 * at["warp"] + at["lane"], at["reg"]] == numbers[index]
    layout = tcgen05_registers((128, 4), "32x32b")
    assert all(
        (32 * at["warp"] + at["lane"], at.get("reg", 0)) == index
        for index in np.ndindex(128, 4)
        for at in [layout.coordinates(index)]
    )
