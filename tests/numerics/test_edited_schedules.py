"""Programs with schedules that are passed back, edited or drawn: the same code, or the same results as NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import tilewright as tw
from tests.interop.targets import is_near, running
from tilewright import schedules
from tilewright.cost.vectors.register_blocks import register_blocks
from tilewright.errors import ArgumentError, ScheduleError
from tilewright.machines.machine import load
from tilewright.targets.base import target_named

Tensor = np.ndarray[Any, Any]
CODE = {"cpu:x86-64-v4": "llvm", "cuda:sm_90a": "ptx", "grid:wormhole": "cpp"}


def layer(x: Any, w: Any, b: Any) -> Any:
    return tw.nn.gelu(x @ w + b)


def attention(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v


def reductions(x: Any) -> Any:
    return tw.sum(x, axis=0), tw.max(tw.exp(x), axis=1), tw.argmax(x, axis=1)


def scans(x: Any) -> Any:
    return tw.cumulative_sum(x, axis=1), tw.reshape(x.mT, (-1, 10)) * 2


def convolution(x: Any, w: Any) -> Any:
    return tw.nn.conv(x, w, padding=1)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "layer": (layer, [(200, 64), (64, 256), (256,)]),
    "attention": (attention, [(1, 2, 200, 64)] * 3),
    "reductions": (reductions, [(300, 4000)]),
    "scans": (scans, [(50, 600)]),
    "convolution": (convolution, [(1, 6, 12, 12), (8, 6, 3, 3)]),
    "long attention": (attention, [(1, 1, 64, 512)] * 3),
}


def lowered(name: str, dtype: Any) -> Any:
    function, shapes = PROGRAMS[name]
    return tw.jit(function).lower(*(tw.ShapeDtype(shape, dtype) for shape in shapes))


@pytest.mark.parametrize("target", CODE)
@pytest.mark.parametrize("name", PROGRAMS)
def test_schedules_that_are_passed_back_give_the_same_code(name: str, target: str) -> None:
    program = lowered(name, tw.f32 if target.startswith("cpu") else tw.bf16)
    first = program.compile(target)
    again = program.compile(target, schedule=schedules.from_json(schedules.to_json(first.schedules)))
    assert first.schedules
    assert again.schedules == first.schedules
    assert again.ir("scheduled") == first.ir("scheduled")
    assert again.ir(CODE[target]) == first.ir(CODE[target])


def test_a_kernel_without_room_passes_its_fallback_back() -> None:
    """Tiles that were halved, and copies ahead that take fewer stages."""
    program = tw.jit(attention).lower(*[tw.ShapeDtype((1, 1, 256, 256), tw.f32)] * 3)
    first = program.compile("cuda:sm_80")
    assert any(getattr(each, "fallback", 0) for each in first.schedules.values())
    again = program.compile("cuda:sm_80", schedule=first.schedules)
    assert again.schedules == first.schedules
    assert again.ir("ptx") == first.ir("ptx")


def draws(schedule: schedules.Schedule, choose: random.Random) -> Iterator[schedules.Schedule]:
    """Schedules of a matmul near its own, most of which the machine admits."""
    if isinstance(schedule, schedules.VectorMatmul):
        manifest, name = target_named("cpu")
        for block in register_blocks(tw.f32, manifest.machine_named(name)):
            tile = choose.choice((1, 17, 64, 100)), choose.choice((1, 2)) * block.columns, choose.choice((5, 32, 96))
            right: Any = choose.choice(("in_place", "kept", "together"))
            yield schedules.VectorMatmul(tile=tile, block=(block.rows, block.columns), right=right)
    if isinstance(schedule, schedules.WarpMatmul):
        for family, across, rows in (("mma.sync", (2, 2), 64), ("mma.sync", (1, 1), 32), ("wgmma", (4, 1), 64)):
            tile = rows, choose.choice((32, 64)), choose.choice((32, 64))
            warps, stages = across[0] * across[1], choose.choice((2, 3))
            yield schedules.WarpMatmul(tile=tile, warps=warps, across=across, stages=stages, family=family)
    if isinstance(schedule, schedules.CoreMatmul):
        for side in (32, 64, 96):
            yield schedules.CoreMatmul(tile=(side, choose.choice((32, 64)), choose.choice((32, 96))))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "grid:wormhole"])
def test_matmuls_by_drawn_schedules(target: str) -> None:
    """Small whole numbers, of which every order of additions gives the same sum."""
    generator, choose = np.random.default_rng(0), random.Random(0)
    dtype = np.dtype(np.float32) if target == "cpu" else tw.bf16.numpy
    a, b = (generator.integers(-3, 4, shape).astype(dtype) for shape in ((100, 96), (96, 128)))
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(dtype)
    program = tw.jit(lambda x, y: x @ y).lower(a, b)
    with running(target), tw.options(cache=False):
        (own,) = program.compile(target).schedules.values()
        admitted = 0
        for schedule in draws(own, choose):
            try:
                compiled = program.compile(target, schedule=schedule)
            except ScheduleError:
                continue
            admitted += 1
            assert list(compiled.schedules.values()) == [schedule]
            np.testing.assert_array_equal(np.asarray(compiled(a, b)), expected)
    assert admitted >= 2


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "grid:wormhole"])
def test_an_edited_tile_changes_the_code_and_not_the_result(target: str) -> None:
    x = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    if target != "cpu":
        x = x.astype(tw.bf16.numpy)
    softmax = tw.jit(lambda x: tw.nn.softmax(x, axis=-1))
    with running(target), tw.options(cache=False):
        first = softmax.lower(x).compile(target)
        edited = {name: replace(each, tile=(32, 96)) for name, each in first.schedules.items()}
        assert edited != first.schedules or target == "grid:wormhole"
        second = tw.jit(softmax, schedule=edited).lower(x).compile(target)
        assert second.schedules == edited
        assert (second.ir("tile") == first.ir("tile")) == (edited == first.schedules)
        wide = np.asarray(x, np.float64)
        wide = np.exp(wide - wide.max(-1, keepdims=True))
        expected = (wide / wide.sum(-1, keepdims=True)).astype(x.dtype)
        assert is_near(np.asarray(second(x)), expected)


def test_a_jitted_function_runs_by_its_schedule() -> None:
    x, w = (np.random.default_rng(n).integers(-3, 4, (64, 64)).astype(np.float32) for n in range(2))
    block = next(block for block in _blocks() if block[1] <= 32)
    schedule = schedules.VectorMatmul(tile=(7, block[1], 9), block=block)
    function = tw.jit(lambda x, w: x @ w, target="cpu", schedule=schedule)
    np.testing.assert_array_equal(function(x, w), x @ w)
    assert "(7, " in function.lower(x, w).compile().explain()


def _blocks() -> list[tuple[int, int]]:
    from tilewright.cost.vectors.register_blocks import register_blocks
    from tilewright.targets.cpu.host import host_machine

    return [(block.rows, block.columns) for block in register_blocks(tw.f32, host_machine())]


REFUSED = [
    ("cpu:x86-64-v4", "layer", schedules.WarpMatmul(tile=(64, 64, 64)), "no kernel of the program admits"),
    ("cpu:x86-64-v4", "layer", schedules.SplitMatmul(tile=(64, 64, 64)), "a `SplitMatmul` on x86-64-v4"),
    ("cpu:x86-64-v4", "layer", schedules.VectorMatmul(tile=(0, 64, 64)), "tile=(0, 64, 64)"),
    ("cpu:x86-64-v4", "layer", schedules.VectorMatmul(tile=(8, 64, 64), block=(5, 64)), "block=(5, 64)"),
    ("cpu:x86-64-v4", "layer", schedules.VectorMatmul(tile=(8, 60, 64), block=(6, 64)), "tile columns=60"),
    ("cpu:x86-64-v4", "attention", schedules.Attention(rows=200, keys=100), "keys=100"),
    ("cpu:x86-64-v4", "attention", schedules.Attention(rows=64, keys=64, warpgroups=1), "warpgroups=1"),
    ("cuda:sm_90a", "layer", schedules.WarpMatmul(tile=(64, 64, 64), family="tcgen05"), "family='tcgen05'"),
    ("cuda:sm_90a", "layer", schedules.WarpMatmul(tile=(60, 64, 64), family="wgmma"), "tile=(60, 64, 64)"),
    ("cuda:sm_90a", "reductions", schedules.Loop(tile=(300, 4000)), "registers of a thread"),
    ("cuda:sm_90a", "attention", schedules.Attention(rows=64, keys=32, warpgroups=1), "rows=64 and keys=32"),
    ("cuda:sm_90a", "scans", schedules.Ordered(tile=(51, 600)), "tile=(51, 600)"),
    ("grid:wormhole", "layer", schedules.CoreMatmul(tile=(64, 64, 33)), "tile depth=33"),
    ("grid:wormhole", "layer", schedules.CoreMatmul(tile=(33, 64, 64)), "tile rows=33"),
    ("grid:wormhole", "scans", schedules.Ordered(tile=(32, 100)), "tile=(32, 100)"),
    ("grid:wormhole", "scans", schedules.Reshape(tile=(32, 32, 32)), "tile=(32, 32, 32)"),
]


@pytest.mark.parametrize(("target", "name", "schedule", "text"), REFUSED, ids=str)
def test_what_the_machine_does_not_admit_is_refused(
    target: str, name: str, schedule: schedules.Schedule, text: str
) -> None:
    program = lowered(name, tw.f32 if target.startswith("cpu") else tw.bf16)
    with pytest.raises(ScheduleError) as caught:
        program.compile(target, schedule=schedule)
    assert text in caught.value.message
    assert caught.value.help
    assert caught.value.location is not None


def test_a_tile_beyond_shared_memory_is_refused_as_the_request_states_it() -> None:
    """A tile of f32 attention is in shared memory, which overflows after all passes."""
    program = tw.jit(attention).lower(*[tw.ShapeDtype((1, 1, 256, 128), tw.f32)] * 3)
    with pytest.raises(ScheduleError, match="does not fit the machine"):
        program.compile("cuda:sm_80", schedule=schedules.Attention(rows=256, keys=256))


def test_schedules_and_symbolic_dimensions_exclude_each_other() -> None:
    dims = {"x": (tw.Dim(1, 64, name="rows"), 8)}
    with pytest.raises(ArgumentError, match="`schedule` and `dims` do not go together"):
        tw.jit(lambda x: x + 1.0, dims=dims, schedule=schedules.Loop(tile=(1, 8)))


def test_targets_without_kernels_refuse_schedules() -> None:
    with pytest.raises(ScheduleError, match="the target `interp` has no kernels"):
        lowered("layer", tw.f32).compile("interp", schedule=schedules.Loop(tile=(1,)))


def test_machines_of_the_table_have_the_blocks_that_are_drawn() -> None:
    from tilewright.cost.vectors.register_blocks import register_blocks

    blocks = [(block.rows, block.columns) for block in register_blocks(tw.f32, load("x86-64-v4"))]
    assert {(6, 64), (13, 32), (28, 16)} <= set(blocks)
