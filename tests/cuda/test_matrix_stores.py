"""Results of 16 bits that warps store to shared memory as matrices: `stmatrix`, on an emulator against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built
from tests.cuda.test_machine_code import check_clean
from tests.cuda.test_pipeline import executed, operands, product
from tests.emulators.ptx.emulator import run
from tests.passes.pass_support import parse
from tests.passes.warps.test_scheduled_specialize_warps import Make
from tests.sampling import alternating
from tilewright.dialects import tile
from tilewright.layout import Layout
from tilewright.layout.catalogue import mma_accumulator
from tilewright.machines.machine import load
from tilewright.targets.cuda.atoms.matrices import is_stored_by_matrices
from tilewright.targets.cuda.emit import emit_kernel
from tilewright.targets.cuda.toolchain import COMPILER

LINES = "(64, 32) : [64@mem.shared*32 | 32@mem.shared]"
SWIZZLED = f"{LINES} + swizzle[mem.shared{{3:5}}^{{6:8}}]"
TURNED = "(64, 32) : [64@mem.shared | 32@mem.shared*64] + swizzle[mem.shared{3:6}^{6:9}]"
PAIRS = "(64, 32) : [64@mem.shared*32 | 2@mem.shared 16@mem.shared*2]"
WIDE = "(64, 32) : [64@mem.shared*40 | 32@mem.shared]"


def stores(counts: Any) -> tuple[int, int]:
    """By matrices, and otherwise."""
    opcodes = counts.instructions.items()
    return tuple(sum(n for name, n in opcodes if name.startswith(what)) for what in ("stmatrix", "st.shared"))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    alternating(((64, 32, 32, 1, 2), (128, 64, 64, 2, 2), (64, 16, 32, 1, 3)), ("bf16", "f16")),
    ids=str,
)
def test_results_of_warpgroups(by_warpgroups: Make, dtype: str, shape: tuple[int, ...]) -> None:
    a, b, exact = operands("nn", dtype, 200, 136, 136)
    program = by_warpgroups(shape, product("nn", dtype), a, b)
    got, counts = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    assert counts.shared_conflicts == 0
    by_matrices, otherwise = stores(counts)
    assert (by_matrices > 0, otherwise) == (shape[1] != 16, 0)


KERNEL = """
  tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "out"]}} do {{
  ^bb0(%x: !tile.ref<tensor<64x32xbf16>>, %y: !tile.ref<tensor<64x32xbf16>>):
    scheduled.parallel() {{extents = array<i64>, grain = 1 : index, warps = 4 : index}} do {{
      %a = tile.load(%x) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : tensor<64x32xbf16, "{registers}">
      %s = scheduled.alloc() {{offset_bytes = 0 : index}} : !tile.ref<tensor<64x32xbf16>, "block", "{buffer}">
      tile.store(%a, %s) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
      scheduled.barrier() {{scope = "block"}}
      %b = tile.load(%s) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : tensor<64x32xbf16, "{loaded}">
      tile.store(%b, %y) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
      scheduled.end()
    }}
    tile.yield()
  }}
"""
REGISTERS = "(64, 32) : [4@warp 2@reg*2 8@lane*4 | 4@reg*4 4@lane 2@reg]"
LOADED = "(64, 32) : [4@warp 2@lane*16 8@reg | 2@reg*8 16@lane]"


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("buffer", [SWIZZLED, TURNED, WIDE, LINES], ids=["swizzled", "turned", "padded", "plain"])
def test_what_is_stored_is_loaded(chip: str, buffer: str) -> None:
    text = KERNEL.format(registers=REGISTERS, buffer=buffer, loaded=LOADED)
    (kernel,) = (op for op in parse(text).walk() if isinstance(op, tile.KernelOp))
    machine = load(chip)
    code = emit_kernel(kernel, machine)
    ptx = COMPILER.ptx(code.name, code.text, machine)
    x = np.random.default_rng(0).integers(-99, 99, (64, 32)).astype(ml_dtypes.bfloat16)
    y = np.zeros_like(x)
    run(ptx, "k", code.blocks, code.threads, [x, y], code.shared_bytes)
    np.testing.assert_array_equal(y, x)
    expected = {SWIZZLED: "stmatrix.sync.aligned.m8n8.x4.shared", TURNED: "stmatrix.sync.aligned.m8n8.x4.trans.shared"}
    assert ("stmatrix" in ptx) == (chip != "sm_80" and buffer != LINES)
    assert chip == "sm_80" or expected.get(buffer, "") in ptx


@pytest.mark.parametrize(
    ("buffer", "fits"),
    [(SWIZZLED, True), (TURNED, True), (WIDE, True), (LINES, False), (PAIRS, False)],
    ids=["swizzled", "turned", "padded", "in the same banks", "lines that are not next to each other"],
)
def test_what_is_stored_as_matrices(buffer: str, fits: bool) -> None:
    registers = mma_accumulator((64, 32), 16, (4, 1))
    assert is_stored_by_matrices(registers, Layout.parse(buffer)) == fits


def test_what_is_held_otherwise_is_not() -> None:
    rows = Layout.parse("(64, 32) : [2@warp 32@lane | 32@reg]")
    copies = Layout.parse("(64, 32) : [4@warp 2@reg*2 8@lane*4 | 4@reg*4 4@lane 2@reg] + replica[2@warp*4]")
    for registers in (rows, copies):
        assert not is_stored_by_matrices(registers, Layout.parse(SWIZZLED))


LINES_OF_96 = "(64, 96) : [64@mem.shared*32 | 3@mem.shared*2048 32@mem.shared] + swizzle[mem.shared{3:5}^{6:8}]"


@pytest.mark.parametrize(
    ("registers", "buffer"),
    [
        ("(64, 96) : [8@reg*2 8@lane*4 | 4@warp 3@reg*16 4@lane 2@reg]", LINES_OF_96),
        (
            "(96, 64) : [4@warp 3@reg*2 8@lane*4 | 8@reg*6 4@lane 2@reg]",
            "(96, 64) : [96@mem.shared*64 | 64@mem.shared] + swizzle[mem.shared{3:6}^{6:9}]",
        ),
        (
            "(8, 120) : [8@lane*4 | 3@reg*2 5@reg*6 4@lane 2@reg]",
            "(8, 120) : [8@mem.shared*120 | 120@mem.shared]",
        ),
    ],
    ids=["digits that share bits", "matrices that are not four", "no powers of two"],
)
def test_what_instructions_do_not_address_is_stored_otherwise(registers: str, buffer: str) -> None:
    assert not is_stored_by_matrices(Layout.parse(registers), Layout.parse(buffer))


@pytest.mark.parametrize("columns", [8, 24, 40, 48, 72, 80, 96])
def test_any_number_of_columns(by_warpgroups: Make, columns: int) -> None:
    """Of tiles whose words are taken four, two and one at a time."""
    a, b, exact = operands("nn", "bf16", 136, columns, 136)
    program = by_warpgroups((64, columns, 64, 1, 2), product("nn", "bf16"), a, b)
    got, _ = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))


def test_machine_code_has_them() -> None:
    square = tw.ShapeDtype((4096, 4096), tw.bf16)
    counts = check_clean(built(tw.jit(product("nn", "bf16")).lower(square, square), "cuda:sm_90a"))
    assert counts["STSM"] == 16
    assert "STS" not in counts
