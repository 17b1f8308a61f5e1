"""Tests of a real GPU are not collected where there is none; programs of the others run on an emulated driver. Fixtures
compile products by a schedule that is given, and for machines that are smaller."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import tilewright as tw
from tests.cuda.chips import built
from tests.cuda.running import unassembled
from tests.emulators.cuda_driver import H200, FakeDriver
from tilewright.cost.tiles import MatmulTile
from tilewright.cost.warps.products import WarpSchedule
from tilewright.machines import machine as machines
from tilewright.machines.machine import Machine, load, with_caches
from tilewright.passes.kernels import attention_warpgroups, warp_planner
from tilewright.passes.warps import scheduled_loop_over_tiles, scheduled_order_tiles
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.targets.cuda import target
from tilewright.targets.cuda.target import CudaProgram

collect_ignore = [] if cuda_driver.found().devices else ["test_device.py"]


@pytest.fixture
def no_assembler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Machine code is PTX, in a cache that nobody else has."""
    monkeypatch.setattr(target, "cubin", unassembled)
    with tw.options(cache=True, cache_dir=tmp_path / "cache"):
        yield


@pytest.fixture
def driver(no_assembler: None) -> Iterator[FakeDriver]:
    """An emulated H200, on which nothing is left in the end. What was there before is not looked at for what is: there
    is much of it."""
    fake = FakeDriver(H200)
    gc.freeze()
    with cuda_driver.replaced(fake):
        yield fake
        gc.collect()
        gc.unfreeze()
        fake.check_nothing_left()


@pytest.fixture
def by_warpgroups(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CudaProgram]:
    """Compiles a function for sm_90a, its products by tiles of (rows, columns, depth), some warpgroups and stages."""

    def compiled(shape: tuple[int, int, int, int, int], function: Callable[..., Any], *arrays: Any) -> CudaProgram:
        rows, columns, depth, groups, stages = shape
        across = (4 * groups, 1)
        family = load("sm_90a").family_of("wgmma")
        schedule = WarpSchedule(MatmulTile(rows, columns, depth), 4 * groups, across, stages, family)
        monkeypatch.setattr(warp_planner, "warp_schedule", lambda *_: schedule)
        return built(tw.jit(function).lower(*arrays), "cuda:sm_90a")

    return compiled


@pytest.fixture
def in_tensor_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CudaProgram]:
    """The same for sm_100a, or another chip, with products in tensor memory."""

    def compiled(
        shape: tuple[int, int, int, int, int], function: Callable[..., Any], *arrays: Any, chip: str = "sm_100a"
    ) -> CudaProgram:
        rows, columns, depth, groups, stages = shape
        across = (4 * groups, 1)
        family = load(chip).family_of("tcgen05")
        schedule = WarpSchedule(MatmulTile(rows, columns, depth), 4 * groups, across, stages, family)
        monkeypatch.setattr(warp_planner, "warp_schedule", lambda *_: schedule)
        return built(tw.jit(function).lower(*arrays), f"cuda:{chip}")

    return compiled


@pytest.fixture
def by_groups(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CudaProgram]:
    """Compiles attention for sm_90a, its tiles shared by so many warpgroups."""

    def compiled(groups: int, function: Callable[..., Any], *arrays: Any) -> CudaProgram:
        monkeypatch.setattr(attention_warpgroups, "_groups", lambda *_: groups)
        return built(tw.jit(function).lower(*arrays), "cuda:sm_90a")

    return compiled


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Machines have so many multiprocessors, each with room for so many blocks, and so large a cache."""

    def shrink(cores: int, cache_bytes: int = 2048, together: int = 1) -> None:
        def smaller(name: str) -> Machine:
            return structs.replace(with_caches(load(name), {"l2": cache_bytes}), cores=cores)

        monkeypatch.setattr(machines, "load", smaller)
        for module in (scheduled_order_tiles, scheduled_loop_over_tiles):
            monkeypatch.setattr(module, "blocks_together", lambda *_: together)

    return shrink
