"""Barriers that `scheduled-drop-barriers` removes, and that each one that it leaves is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.test_pipeline import Given, compiled, of_kind
from tests.emulators.cuda_driver import tensor_maps
from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.errors import SharedRace
from tests.passes.pass_support import parse, unit_of
from tilewright.dialects import scheduled, tile
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.warps.scheduled_drop_barriers import ScheduledDropBarriersPass
from tilewright.passes.warps.scheduled_plan_block_memory import ScheduledPlanBlockMemoryPass
from tilewright.semantics import scheduled as semantics
from tilewright.semantics.warps.block_memory import RaceError
from tilewright.targets.cuda.emit import emit_kernel
from tilewright.targets.cuda.target import CudaProgram
from tilewright.targets.cuda.toolchain import COMPILER

# ---- barriers -------------------------------------------------------------------------------------------------------


def softmax(x: Any) -> Any:
    return tw.nn.softmax(x, axis=0)


def norm(x: Any) -> Any:
    centred = x - tw.mean(x, axis=-1, keepdims=True)
    return centred / tw.sqrt(tw.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def sums(x: Any) -> Any:
    return tw.sum(x @ x.T, axis=0)


def attention(x: Any) -> Any:
    return tw.nn.softmax(x @ x.T, axis=-1) @ x


# With shapes for which warps of a block depend on each other.
PROGRAMS = {softmax: (64, 96), norm: (64, 96), sums: (128, 256), attention: (100, 130)}


def barriers(unit: Unit) -> Iterator[tuple[int, str]]:
    for kernel in unit.kernels():
        for number, op in enumerate(op for op in kernel.walk() if isinstance(op, scheduled.BarrierOp)):
            if op.scope == scheduled.BLOCK:
                yield number, kernel.sym_name


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda each: each.__name__)
def test_every_barrier_that_is_left_is_needed(function: Callable[..., Any]) -> None:
    x = np.random.default_rng(0).standard_normal(PROGRAMS[function]).astype(np.float16)
    program = compiled(function, "sm_90a", x)
    found = list(barriers(program.unit))
    assert found
    for number, name in found:
        assert is_missed(program, name, number), f"barrier {number} of {name}"


def is_missed(program: CudaProgram, name: str, number: int) -> bool:
    """Whether the checker or the emulator sees that a barrier is not there. The emulator does not where the compiler
    below sees that what is stored is there already."""
    kernel = program.unit.kernel(name).clone()
    barrier = [op for op in kernel.walk() if isinstance(op, scheduled.BarrierOp)][number]
    barrier.detach()
    barrier.erase()
    inputs = [tile.ref_type(r) for r, e in zip(kernel.refs, kernel.effects, strict=True) if e != tile.OUT]
    try:
        semantics.run_call(kernel, [np.zeros(type.shape, type.dtype.numpy) for type in inputs])
    except RaceError:
        return True
    code = emit_kernel(kernel, program.unit.machine)
    ptx = COMPILER.ptx(name, code.text, program.unit.machine)
    types = [tile.ref_type(ref) for ref in kernel.refs]
    arrays = [np.zeros(type.shape, type.dtype.numpy) for type in types]
    try:
        arrays += tensor_maps(code.tensor_maps, arrays)
        run(ptx, name, code.blocks, code.threads, arrays, code.shared_bytes)
    except SharedRace:
        return True
    return False


def test_barriers_are_taken_out() -> None:
    given = Given()
    before = len(of_kind(given.unit(last=ScheduledPlanBlockMemoryPass), scheduled.BarrierOp))
    after = len(of_kind(given.unit(last=ScheduledDropBarriersPass), scheduled.BarrierOp))
    assert after < before


WORDS_OF_SEVERAL_WARPS = """
  tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "in", "out", "out"]}} do {{
  ^bb0(%x: {array}, %y: {array}, %v: {array}, %w: {array}):
    scheduled.parallel() {{extents = array<i64>, grain = 1 : index, warps = 4 : index}} do {{
      %a = tile.load(%x) {{{all}}} : tensor<128x16xi8, "{rows}">
      %b = tile.load(%y) {{{all}}} : tensor<128x16xi8, "{bytes}">
      %s = scheduled.alloc() {{offset_bytes = 0 : index}} : !tile.ref<tensor<128x16xi8>, "block", "{first}">
      %t = scheduled.alloc() {{offset_bytes = 0 : index}} : !tile.ref<tensor<128x16xi8>, "block", "{second}">
      tile.store(%a, %s) {{{all}}}
      scheduled.barrier() {{scope = "block"}}
      %c = tile.load(%s) {{{all}}} : tensor<128x16xi8, "{rows}">
      scheduled.barrier() {{scope = "block"}}
      tile.store(%b, %t) {{{all}}}
      scheduled.barrier() {{scope = "block"}}
      %d = tile.load(%t) {{{all}}} : tensor<128x16xi8, "{bytes}">
      tile.store(%c, %v) {{{all}}}
      tile.store(%d, %w) {{{all}}}
      scheduled.end()
    }}
    tile.yield()
  }}
"""


def test_barriers_between_warps_whose_bytes_are_in_one_word_stay() -> None:
    """Each word of the second buffer is written by four warps, one of which read it in the first one."""
    text = WORDS_OF_SEVERAL_WARPS.format(
        array="!tile.ref<tensor<128x16xi8>>",
        all="map = affine_map<(d0, d1) -> (d0, d1)>",
        rows="(128, 16) : [4@warp 32@lane | 16@reg]",
        bytes="(128, 16) : [32@lane 4@warp | 16@reg]",
        first="(128, 16) : [128@mem.shared*16 | 16@mem.shared]",
        second="(128, 16) : [128@mem.shared | 16@mem.shared*128]",
    )
    unit = unit_of(parse(text), {})
    unit.machine = load("sm_90a")
    ScheduledDropBarriersPass().apply(unit)
    (kernel,) = unit.kernels()
    scopes = [op.scope for op in kernel.walk() if isinstance(op, scheduled.BarrierOp)]
    assert scopes == ["warp", "block", "block"]
    arrays = [np.random.default_rng(seed).integers(-99, 99, (128, 16)).astype(np.int8) for seed in range(2)]
    for seed in range(3):
        for got, expected in zip(semantics.run_call(kernel, arrays, seed), arrays, strict=True):
            np.testing.assert_array_equal(got, expected)
