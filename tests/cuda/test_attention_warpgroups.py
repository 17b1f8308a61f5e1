"""Attention by warpgroups that a warp of its own has the machine copy for: on an emulator and by the definitions of the
operations against float64, and what the assembler makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import Tensor, built, emulated
from tests.cuda.test_attention import attention, causal, expected
from tests.cuda.test_machine_code import check_clean
from tests.cuda.test_pipeline import executed
from tests.emulators.ptx.errors import BarrierMisuse, Deadlock, RegisterRace, SharedRace
from tests.passes.warps.test_scheduled_specialize_warps import defined, ops_of, remarks, without
from tilewright import dtypes
from tilewright.dialects import scheduled
from tilewright.driver.compile import build_executable
from tilewright.errors import ScheduleError
from tilewright.passes.warps.scheduled_pipeline_copies import ScheduledPipelineCopiesPass
from tilewright.passes.warps.scheduled_specialize_chains import ScheduledSpecializeChainsPass
from tilewright.targets.cuda.target import CudaProgram

Make = Callable[..., CudaProgram]


def of_matrices(q: Any, k: Any, v: Any) -> Any:
    weights = tw.nn.softmax(tw.matmul(q, k.mT, dtype=tw.f32) * q.shape[-1] ** -0.5, axis=-1)
    return weights.astype(v.dtype) @ v


def seen_from(offset: int) -> Callable[[Any, Any, Any], Any]:
    """Attention in which each query sees so many keys more than the one before it, and the first `offset` + 1."""

    def of(q: Any, k: Any, v: Any) -> Any:
        rows, columns = tw.arange(q.shape[-2])[:, None], tw.arange(k.shape[-2])[None, :]
        scores = tw.matmul(q, k.mT, dtype=tw.f32) * q.shape[-1] ** -0.5
        weights = tw.nn.softmax(tw.where(columns <= rows + offset, scores, -float("inf")), axis=-1)
        return weights.astype(v.dtype) @ v

    return of


def exact(q: Tensor, k: Tensor, v: Tensor, offset: int) -> Tensor:
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5
    rows, columns = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])[None, :]
    weights = np.exp(np.where(columns <= rows + offset, scores, -np.inf))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def random(dtype: str, *shapes: tuple[int, ...]) -> list[Tensor]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape).astype(dtypes.by_name(dtype).numpy) for shape in shapes]


def check(program: CudaProgram, arrays: list[Tensor], wanted: Tensor) -> None:
    (said,) = remarks(program, ScheduledSpecializeChainsPass)
    assert said.startswith("a warp copies 3 windows ahead")
    assert remarks(program, ScheduledPipelineCopiesPass) == []
    assert ops_of(program, scheduled.CopyOp) == []
    got, counts = executed(program, arrays)
    assert counts.shared_conflicts == 0
    # Scores, weights and results are rounded once each: scores are below 8, weights at most 1.
    bound = (8 + 2) * dtypes.from_numpy(got.dtype).epsilon * np.abs(arrays[-1].astype(np.float64)).max()
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=0, atol=bound)
    # Exponentials are not those of NumPy to the last bit, and so are some results of their rounding.
    np.testing.assert_allclose(defined(program, tuple(arrays)).astype(np.float64), wanted, rtol=0, atol=bound)


# ---- that it is right -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "dtype", "groups", "queries", "others"),
    [
        (attention, "bf16", 2, (1, 2, 100, 32), (1, 1, 136, 32)),
        (attention, "f16", 1, (1, 1, 72, 48), (1, 1, 300, 48)),
        (causal, "f16", 1, (1, 2, 200, 32), (1, 1, 200, 32)),
        (causal, "bf16", 2, (1, 1, 264, 64), (1, 1, 264, 64)),
        (attention, "bf16", 3, (1, 1, 392, 64), (1, 1, 264, 64)),
        (causal, "f16", 3, (1, 1, 392, 64), (1, 1, 392, 64)),
    ],
)
def test_heads(
    by_groups: Make,
    function: Callable[..., Any],
    dtype: str,
    groups: int,
    queries: tuple[int, ...],
    others: tuple[int, ...],
) -> None:
    """With edges, and with heads that share keys."""
    arrays = random(dtype, queries, others, others)
    check(by_groups(groups, function, *arrays), arrays, expected(*arrays, function is causal))


@pytest.mark.parametrize(("offset", "queries", "keys"), [(0, 136, 200), (30, 72, 104)])
def test_what_a_query_sees_begins_anywhere(by_groups: Make, offset: int, queries: int, keys: int) -> None:
    """In the second case blocks beyond the last key are taken from the last tile."""
    arrays = random("f16", (queries, 32), (keys, 32), (keys, 32))
    check(by_groups(2, seen_from(offset), *arrays), arrays, exact(*arrays, offset))


def test_queries_that_see_beyond_the_last_key_are_by_single_warps(by_groups: Make) -> None:
    arrays = random("f16", (136, 32), (72, 32), (72, 32))
    program = by_groups(1, seen_from(0), *arrays)
    assert ops_of(program, scheduled.MmaWaitOp) == []
    np.testing.assert_allclose(executed(program, arrays)[0].astype(np.float64), exact(*arrays, 0), rtol=0, atol=5e-3)


@pytest.mark.parametrize("turned", ["q", "k", "v"])
def test_arrays_that_lie_transposed(by_groups: Make, turned: str) -> None:
    arrays = random("f16", (64, 32), (72, 32), (72, 32))
    number = "qkv".index(turned)
    given = [np.ascontiguousarray(each.T) if n == number else each for n, each in enumerate(arrays)]

    def of(*stored: Any) -> Any:
        return of_matrices(*(each.T if n == number else each for n, each in enumerate(stored)))

    check(by_groups(1, of, *given), given, exact(*arrays, 72))


# ---- that each synchronisation is needed ----------------------------------------------------------------------------

BROKEN = {
    "mbarrier.arrive.expect_tx": (Deadlock, BarrierMisuse),
    "mbarrier.arrive.shared": (Deadlock,),
    "mbarrier.try_wait": (SharedRace, RegisterRace, BarrierMisuse),
    "wgmma.wait_group.sync.aligned 0": (SharedRace, RegisterRace),
    "wgmma.wait_group.sync.aligned 1": (SharedRace, RegisterRace),
    "wgmma.fence": (RegisterRace,),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_left_out_is_found(by_groups: Make, broken: str) -> None:
    arrays = random("f16", (64, 16), (384, 16), (384, 16))
    program = by_groups(1, of_matrices, *arrays)
    ((name, text),) = program.ptx.items()
    lines = text.splitlines()
    assert any(broken in line for line in lines)
    program.ptx[name] = "\n".join(without(line) if broken in line else line for line in lines)
    with pytest.raises(BROKEN[broken]):
        emulated(program, arrays)


# ---- what is chosen, and machine code -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "width", "groups"),
    [(causal, 64, 2), (causal, 128, 2), (causal, 256, 1), (attention, 64, 3), (attention, 128, 2)],
)
def test_large_attention_is_clean(function: Callable[..., Any], width: int, groups: int) -> None:
    heads = tw.ShapeDtype((2, 8, 4096, width), tw.bf16)
    program = built(tw.jit(function).lower(heads, heads, heads), "cuda:sm_90a")
    counts = check_clean(program)
    # Both products, and the first and the last of them outside of the loop: steps of 16 along heads and keys.
    keys = 64 if groups == 1 else 128
    assert counts["HGMMA"] == 2 * (width // 16 + keys // 16)
    assert counts["UTMALDG"] >= 5
    assert not {"HMMA", "LDGSTS", "LDSM"} & set(counts)
    ((_, taken),) = program.cost()["kernels"].items()
    # Where registers are reallocated, the warp that copies is a warpgroup.
    assert taken["threads"] == 128 * groups + (128 if width == 128 or groups == 3 else 32)
    assert "wgmma.wait_group.sync.aligned 1" in "".join(program.ptx.values())


@pytest.mark.parametrize(
    ("queries", "heads", "width", "function", "groups"),
    [
        (4096, 32, 64, attention, 3),
        (4096, 32, 64, causal, 2),  # masks take registers
        (4096, 32, 128, attention, 2),  # results take registers
        (1024, 64, 64, attention, 2),  # six tiles of 192 queries have 128 too many
        (4096, 5, 64, attention, 2),  # three would leave SMs without a tile
        (4096, 2, 64, attention, 1),
    ],
)
def test_warpgroups_of_a_tile(queries: int, heads: int, width: int, function: Callable[..., Any], groups: int) -> None:
    type = tw.ShapeDtype((1, heads, queries, width), tw.bf16)
    schedules = tw.jit(function).lower(type, type, type).compile("cuda:sm_90a").schedules
    ((_, chosen),) = schedules.items()
    assert isinstance(chosen, tw.schedules.Attention)
    assert chosen.warpgroups == groups


@pytest.mark.parametrize(("keys", "admitted"), [(64, True), (96, True), (128, False)])
def test_steps_of_a_causal_mask_divide_the_rows_of_a_tile(keys: int, admitted: bool) -> None:
    """The blocks that a tile sees are whole ones more than those of the tile before it."""
    type = tw.ShapeDtype((1, 1, 768, 64), tw.bf16)
    schedule = tw.schedules.Attention(rows=192, keys=keys, warpgroups=3)
    graph = tw.jit(causal).lower(type, type, type).graph
    if not admitted:
        with pytest.raises(ScheduleError, match="does not admit rows=192 and keys=128 on 3 warpgroups"):
            build_executable(graph, "cuda:sm_90a", (), schedule=schedule)
        return
    arrays = random("bf16", *[(1, 1, 768, 64)] * 3)
    check(build_executable(graph, "cuda:sm_90a", (), schedule=schedule), arrays, expected(*arrays, True))
