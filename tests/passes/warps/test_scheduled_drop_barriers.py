"""Barriers that `scheduled-drop-barriers` removes, and that each one that it leaves is needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.test_pipeline import Given, compiled, of_kind
from tests.emulators.cuda_driver import tensor_maps
from tests.emulators.ptx.emulator import run
from tests.emulators.ptx.errors import SharedRace
from tests.passes.pass_support import applied, check_meaning, check_unchanged, parse, random_inputs, unit_of
from tests.passes.pass_support import run as run_unit
from tilewright.dialects import scheduled, tile
from tilewright.dialects.rewriting import erase
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


# ---- blocks of two warps --------------------------------------------------------------------------------------------

PASS = ScheduledDropBarriersPass()
LAYOUTS = ("(64) : [2@warp 32@lane]", "(64) : [32@lane 2@warp]")
MAPS = {
    "as it is": "d0",
    "reversed": "(d0 * -1) + 63",
    "within each warp": "(d0 floordiv 32) * 32 + (d0 * -1 + 31) mod 32",
}
BARRIER = 'scheduled.barrier() {scope = "block"}\n'


def through(
    value: str, result: str, layout: int = 0, map: str = "as it is", offset: int = 0, barrier: str = BARRIER
) -> str:
    """A tile through a buffer at an offset, by other indices and to another layout; barriers wherever one may be."""
    buffer = '!tile.ref<tensor<64xf32>, "block", "(64) : [64@mem.shared]">'
    return f"""
        %m{result} = scheduled.alloc() {{offset_bytes = {offset} : index}} : {buffer}
        {barrier}
        tile.store(%{value}, %m{result}) {{map = affine_map<(d0) -> (d0)>}}
        {barrier}
        %{result} = tile.load(%m{result}) {{map = affine_map<(d0) -> ({MAPS[map]})>}}
          : tensor<64xf32, "{LAYOUTS[layout]}">
    """


def block(body: str, result: str, layout: int = 0) -> str:
    return f"""
    func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {{
      %y = array.call(%x) {{callee = "k"}} : tensor<64xf32>
      func.return %y : tensor<64xf32>
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "out"]}} do {{
    ^bb0(%x: !tile.ref<tensor<64xf32>>, %out: !tile.ref<tensor<64xf32>>):
      scheduled.parallel() {{extents = array<i64>, grain = 1 : index, warps = 2 : index}} do {{
        %a = tile.load(%x) {{map = affine_map<(d0) -> (d0)>}} : tensor<64xf32, "{LAYOUTS[0]}">
        {body}
        tile.store(%{result}, %out) {{map = affine_map<(d0) -> (d0)>}}
        scheduled.end()
      }}
      tile.yield()
    }}
    """


def scopes(unit: Unit) -> list[str]:
    return [op.scope for op in unit.module.walk() if isinstance(op, scheduled.BarrierOp)]


@pytest.mark.parametrize(
    ("layout", "map", "left"),
    [
        (0, "as it is", "warp"),
        (0, "within each warp", "warp"),
        (0, "reversed", "block"),
        (1, "as it is", "block"),
    ],
)
def test_a_barrier_is_as_wide_as_what_meets_there(layout: int, map: str, left: str) -> None:
    """The first one is before all accesses. Lanes of a warp count as one: what a lane itself wrote takes a barrier."""
    unit = check_meaning(PASS, block(through("a", "b", layout, map), "b"), "sm_90a")
    assert scopes(unit) == [left]


def drawn(seed: int, trips: int = 1) -> str:
    """A tile that goes through some buffers, which share memory or not; in a loop, where there are trips."""
    rng = random.Random(seed)
    body, value = "", "s" if trips > 1 else "a"
    count = rng.randrange(2, 5)
    for n in range(count):
        layout = 0 if n == count - 1 else rng.randrange(2)
        body += through(value, f"v{n}", layout, rng.choice(list(MAPS)), rng.choice((0, 0, 256)))
        value = f"v{n}"
    if trips == 1:
        return block(body, value)
    tile_type = f'tensor<64xf32, "{LAYOUTS[0]}">'
    loop = f"%r = tile.for(%a) {{trips = {trips} : index}} do {{\n^bb1(%t: index, %s: {tile_type}):\n{body}"
    return block(f"{loop}tile.yield(%{value})\n}} : {tile_type}", "r")


@pytest.mark.parametrize("trips", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_random_blocks_have_no_race_and_no_barrier_too_many(seed: int, trips: int) -> None:
    """By the executor, whose clocks see a race in any order of warps."""
    text = drawn(seed, trips)
    before, unit = unit_of(parse(text), {}, "sm_90a"), applied(PASS, text, "sm_90a")
    arrays, count = random_inputs(unit), len(scopes(unit))
    np.testing.assert_array_equal(run_unit(unit, arrays)[0], run_unit(before, arrays)[0])
    for number in range(count):
        weaker = unit_of(unit.module.clone(), {}, "sm_90a")
        barrier = [op for op in weaker.module.walk() if isinstance(op, scheduled.BarrierOp)][number]
        if barrier.scope == scheduled.BLOCK:
            barrier.scope = scheduled.WARP
        else:
            erase(barrier)
        with pytest.raises(RaceError):
            run_unit(weaker, arrays)


BRANCH = f"""
        %zero = tile.full() {{value = 0.0 : f64}} : tensor<f32>
        %is = tile.map(%zero, %zero) {{fn = "less"}} : tensor<i1>
        tile.if(%is) do {{
          {through("a", "c")}
          tile.yield()
        }} do {{
          tile.yield()
        }}
"""
LEFT = {
    "a branch that accesses buffers": block(BRANCH + through("a", "b"), "b"),
    "a race that barriers do not prevent": block(through("a", "b", 1, barrier=""), "b"),
    "barriers for arrays": block(
        through("a", "b").replace('{scope = "block"}', '{scope = "block", arrays = true}'), "b"
    ),
    "barriers of all roles": block(through("a", "b").replace('"block"}\n', '"every role"}\n'), "b"),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_barriers_stay(name: str) -> None:
    check_unchanged(PASS, LEFT[name], "sm_90a")
