"""The emitters of Hopper and Blackwell: products written with them agree with NumPy and are clean machine code; the
matrix descriptors that they derive from layouts name what the emulator reads."""

from __future__ import annotations

import random
import re
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace

from tests.cuda import gemm_kernels
from tests.emulators.ptx import descriptors
from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.errors import BarrierMisuse, Deadlock, RegisterRace, SharedRace, TensorMemoryFault
from tests.emulators.ptx.tensor_maps import TensorMap
from tests.sampling import alternating
from tilewright import dtypes
from tilewright.errors import CompilerBug
from tilewright.layout import Layout, row_major
from tilewright.layout.catalogue import shared_matrix
from tilewright.layout.relayout import Reason
from tilewright.machines.machine import Machine, load
from tilewright.targets.cuda.atoms.blackwell import Tcgen05
from tilewright.targets.cuda.atoms.descriptors import OperandFields, descriptor_of
from tilewright.targets.cuda.atoms.hopper import Wgmma
from tilewright.targets.cuda.toolchain import COMPILER, Cubin, instructions_of, sass_of

KERNELS: dict[str, tuple[str, Any, int]] = {
    "wgmma": ("sm_90a", gemm_kernels.wgmma_gemm, gemm_kernels.WGMMA_THREADS),
    "tcgen05": ("sm_100a", gemm_kernels.tcgen05_gemm, gemm_kernels.TCGEN05_THREADS),
}
# The copies of the tensor maps; within a block they need PTX 8.6.
INSTRUCTIONS = {"wgmma": {"HGMMA", "UTMALDG", "UTMASTG", "SYNCS"}, "tcgen05": {"UTCHMMA", "UTMALDG", "LDTM", "SYNCS"}}


def machine(chip: str) -> Machine:
    return replace(load(chip), llvm_features=("ptx87",))


@lru_cache(maxsize=16)
def compiled(name: str, steps: int, right_major: str) -> tuple[str, Cubin]:
    chip, make, _ = KERNELS[name]
    ptx = COMPILER.ptx(name, make(steps, right_major), machine(chip))
    return ptx, COMPILER.cubin(name, ptx, machine(chip))


def padded(values: np.ndarray) -> np.ndarray:
    """Rows of a multiple of 16 bytes; what pads them must not be read."""
    step = 16 // values.itemsize
    result = np.full((values.shape[0], -(-values.shape[1] // step) * step), 77, values.dtype)
    result[:, : values.shape[1]] = values
    return result


def tensor_map(array: np.ndarray, columns: int, box: tuple[int, int], swizzle: int) -> TensorMap:
    return TensorMap(array, box, swizzle, dims=(columns, array.shape[0]), strides=(array.strides[0],))


@pytest.mark.parametrize(
    ("name", "right_major", "rows", "columns", "depth"),
    [
        (name, major, *sizes)
        for name, major, sizes in alternating(
            KERNELS, ("k", "mn"), ((128, 128, 64), (200, 131, 5 * 64 - 13), (70, 300, 7 * 64))
        )
    ],
)
def test_products_agree_with_numpy(name: str, right_major: str, rows: int, columns: int, depth: int) -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-4, 5, shape).astype(ml_dtypes.bfloat16) for shape in ((rows, depth), (depth, columns)))
    right = padded(np.ascontiguousarray(b.T) if right_major == "k" else b)
    c = np.full((rows, -(-columns // 4) * 4), -1, np.float32)
    maps = [
        tensor_map(padded(a), depth, (64, 128), 128),
        tensor_map(right, *((depth, (64, 128)) if right_major == "k" else (columns, (64, 64))), 128),
        tensor_map(c, columns, (128, 128), 0),
    ]
    ptx, _ = compiled(name, -(-depth // 64), right_major)
    grid = (-(-columns // 128), -(-rows // 128), 1)
    run(ptx, f"{name}_gemm", grid, KERNELS[name][2], maps, gemm_kernels.SHARED_BYTES, random.Random(columns))
    np.testing.assert_array_equal(c[:, :columns], a.astype(np.float64) @ b.astype(np.float64))
    assert (c[:, columns:] == -1).all()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("right_major", ["k", "mn"])
def test_machine_code_is_clean(name: str, right_major: str) -> None:
    _, cubin = compiled(name, 5, right_major)
    assert (cubin.usage.spill_bytes, cubin.usage.stack_bytes) == (0, 0)
    assert cubin.usage.registers <= 128
    text = sass_of(cubin.content)
    assert set(instructions_of(text)) >= INSTRUCTIONS[name]
    # The assembler itself adds traps for tensor memory that is given back wrongly.
    calls = [each for each in re.findall(r"CALL\S* `\((\S+)\)", text) if "guardrail_trap" not in each]
    assert all(target.startswith(".L_") for target in calls)


BROKEN = ("mbarrier.arrive.expect_tx", "mbarrier.try_wait", "fence.proxy.async", "fence.mbarrier_init", "bar.sync")


def outcome(lines: list[str], number: int, name: str) -> str:
    """What becomes of a kernel without one of its lines: the name of an error, or nothing. A wait is not waited for."""
    predicate = re.search(r"(%p\d+),", lines[number])
    without = f"setp.eq.b32 {predicate[1]}, 0, 0;" if predicate and "try_wait" in lines[number] else ""
    operands = [np.zeros((128, 320), ml_dtypes.bfloat16) for _ in range(2)]
    maps = [tensor_map(each, 320, (64, 128), 128) for each in operands]
    maps.append(tensor_map(np.zeros((128, 128), np.float32), 128, (128, 128), 0))
    text = "\n".join([*lines[:number], without, *lines[number + 1 :]])
    try:
        run(text, f"{name}_gemm", 1, KERNELS[name][2], maps, gemm_kernels.SHARED_BYTES)
    except (SharedRace, BarrierMisuse, Deadlock, RegisterRace, TensorMemoryFault) as error:
        return type(error).__name__
    return ""


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_left_out_is_found(name: str, broken: str) -> None:
    """Without any one of its synchronisations a kernel does not pass."""
    lines = compiled(name, 5, "k")[0].splitlines()
    found = [number for number, line in enumerate(lines) if broken in line]
    passed = [number for number in found if not outcome(lines, number, name)]
    assert found
    # The loop that copies is unrolled, and stages are empty at first.
    assert len(passed) == (gemm_kernels.STAGES if broken == "mbarrier.try_wait" else 0)


# ---- descriptors -----------------------------------------------------------------------------------------------------

NUMBERS = {8: dtypes.i8, 16: dtypes.bf16, 32: dtypes.f32}


def addresses(layout: Layout, size: int) -> np.ndarray:
    """The byte of each element, by the layout itself."""
    return (
        np.array([layout.coordinates(index)["mem"] for index in np.ndindex(*layout.static_shape)]).reshape(
            layout.static_shape
        )
        * size
    )


@pytest.mark.parametrize("slowest_dim", [0, 1])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("bits", "major"), [(8, "k"), (16, "k"), (32, "k"), (8, "mn"), (16, "mn")])
@pytest.mark.parametrize("chip", ["hopper", "blackwell"])
def test_descriptors_name_what_the_layout_says(
    slowest_dim: int, swizzle: int, bits: int, major: str, chip: str
) -> None:
    size = bits // 8
    shape = (128, 64) if bits > 8 else (128, 128)
    layout = shared_matrix(shape, bits, swizzle, contiguous_dim=1 if major == "k" else 0, slowest_dim=slowest_dim)
    fields = descriptor_of(layout, NUMBERS[bits])
    assert isinstance(fields, OperandFields), fields
    assert (fields.major, fields.swizzle) == (major, swizzle)
    wanted = addresses(layout, size)
    base, depth = 8192, 32 // size
    for step in range(shape[1] // depth):
        for line, lines in ((0, 128), (64, 64)):
            value = getattr(fields, chip) + ((base + fields.start(step, line)) >> 4)
            decoded = getattr(descriptors, chip)(value)
            read = decoded.places(lines, depth, size, major)[:, :, 0]
            part = wanted[line : line + lines, step * depth : (step + 1) * depth]
            np.testing.assert_array_equal(read - base, part)


@pytest.mark.parametrize(
    "layout",
    [
        row_major((128, 64)),
        row_major((128, 60)),
        row_major((128,)),
        shared_matrix((128, 64), 16, 128).with_offset({"mem": 8}),
        shared_matrix((128, 64), 8, 64),
        Layout.parse("(128, 64) : [128@lane | 64@mem]"),
        Layout.parse("(16, 16) : [2@mem*128 8@mem*8 | 8@mem 2@mem*64]"),
    ],
    ids=str,
)
def test_what_no_descriptor_reads(layout: Layout) -> None:
    found = descriptor_of(layout, dtypes.bf16)
    assert isinstance(found, Reason)
    assert str(found)


def test_a_layout_of_core_matrices_that_nobody_named() -> None:
    found = descriptor_of(Layout.parse("(16, 16) : [2@mem*128 8@mem*8 | 2@mem*64 8@mem]"), dtypes.bf16)
    assert isinstance(found, OperandFields)
    assert (found.major, found.swizzle, found.leading, found.stride) == ("k", 0, 128, 256)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Wgmma(12, "bf16", "bf16", "f32"),
        lambda: Wgmma(16, "bf16", "f16", "f32"),
        lambda: Wgmma(16, "bf16", "bf16", "f16"),
        lambda: Wgmma(16, "e4m3", "e5m2", "f32", left_major="mn"),
        lambda: Wgmma(40, "s8", "s8", "s32"),
        lambda: Tcgen05(96, 16, "bf16", "bf16", "f32"),
        lambda: Tcgen05(128, 24, "bf16", "bf16", "f32"),
        lambda: Tcgen05(128, 32, "bf16", "e4m3", "f32"),
        lambda: Tcgen05(128, 32, "tf32", "tf32", "f32", right_major="mn"),
    ],
)
def test_products_that_chips_do_not_have(make: Any) -> None:
    with pytest.raises(CompilerBug, match="there is no"):
        make()
