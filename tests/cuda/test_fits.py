"""Plans that do not fit a chip fall back to smaller ones; a sample of `python -m tests.cuda.fits`."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda import fits
from tests.cuda.chips import CHIPS, built, emulated
from tilewright import dtypes
from tilewright.cost.warps.products import WarpProduct, warp_schedule
from tilewright.machines.machine import load
from tilewright.passes.fallbacks import DoesNotFit, Excess, Fallback, Fallbacks, halved, with_less_room

Tensor = np.ndarray[Any, Any]


def attention(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v


def exact_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    scores = q @ k.T * q.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def decisions(program: Any) -> str:
    return "\n".join(map(str, program.unit.remarks))


def test_attention_in_smaller_tiles_is_right() -> None:
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal((size, 256)).astype(np.float32) for size in (2, 112, 112)]
    program = built(tw.jit(attention).lower(*arrays), "cuda:sm_120a")
    assert "attention_0: smaller tiles (needs " in decisions(program)
    assert "bytes of shared memory, sm_120a has 101376" in decisions(program)
    (result,) = emulated(program, arrays)
    np.testing.assert_allclose(result.astype(np.float64), exact_attention(*arrays), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("head", "decision", "registers", "kernels"),
    [(256, "", 0, 1), (384, "smaller tiles", 288, 1), (576, "not fused", 432, 3)],
)
def test_heads_that_need_more_registers_than_there_are(head: int, decision: str, registers: int, kernels: int) -> None:
    types = tw.ShapeDtype((64, head), tw.bf16)
    program = built(tw.jit(attention).lower(types, types, types), "cuda:sm_80")
    assert len(program.kernels) == kernels
    reasons = [line for line in decisions(program).splitlines() if "registers of a thread" in line]
    assert len(reasons) == bool(decision)
    assert all(decision in line and f"needs {registers} registers" in line for line in reasons)


def test_the_smallest_tiles_that_do_not_fit_are_not_fused() -> None:
    types = tw.ShapeDtype((40, 576), tw.f32)
    program = built(tw.jit(attention).lower(types, types, types), "cuda:sm_120a")
    assert "not fused (not even its smallest tiles fit: it needs" in decisions(program)
    assert len(program.kernels) > 1


@pytest.mark.parametrize("shapes", [((1, 16, 6, 6), (1, 16, 3, 3)), ((1, 16, 6, 1), (8, 16, 3, 1))])
def test_convolutions_with_one_row_or_column_of_results(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    draw = np.random.default_rng(0)
    image, kernel = (draw.integers(-3, 4, shape).astype(np.float16) for shape in shapes)
    program = built(tw.jit(tw.nn.conv).lower(image, kernel), "cuda:sm_120a")
    rows, columns = kernel.shape[2:]
    windows = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (rows, columns), axis=(2, 3))
    expected = np.einsum("nchwyx,ocyx->nohw", windows, kernel.astype(np.float64))
    np.testing.assert_array_equal(emulated(program, [image, kernel])[0], expected.astype(np.float16))


@pytest.mark.parametrize(("rows", "columns", "threads", "spills"), [(1, 1024, 128, False), (32, 4096, 1024, True)])
def test_blocks_have_threads_for_their_tiles(rows: int, columns: int, threads: int, spills: bool) -> None:
    types = tw.ShapeDtype((64, columns), tw.f32)
    program = fits.tiled_softmax.lower(types, types, rows=rows).compile("cuda:sm_90a").executable.built
    (code,) = program.kernels.values()
    assert code.threads == threads
    assert ("spills registers to memory" in decisions(program)) == spills
    # `.maxntid` bounds the threads of a block, so that the assembler limits the registers of each.
    assert (".maxntid" in program.ir("ptx")) == (threads > 256)


def test_blocks_of_many_warps_are_right() -> None:
    x = np.random.default_rng(0).standard_normal((2, 16384)).astype(np.float32)
    program = built(tw.jit(_softmax).lower(x), "cuda:sm_90a")
    assert max(code.threads for code in program.kernels.values()) == 512
    wide = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(emulated(program, [x])[0], wide / wide.sum(axis=1, keepdims=True), rtol=1e-5)


def _softmax(x: Any) -> Any:
    return fits.tiled_softmax(x, rows=2)


def test_each_level_has_smaller_plans_until_there_are_none() -> None:
    fallbacks = Fallbacks(keys={"attention_0": "key"})
    assert fallbacks.level_of("attention_0") == 0
    assert fallbacks.stages("attention_0", 4) == 4
    seen: list[int] = []
    misfit = DoesNotFit.of([Excess("attention_0", 300, 200, "chip"), Excess("mine", 900, 10, "chip")])
    assert pickle.loads(pickle.dumps(misfit)).excesses == misfit.excesses
    while fallbacks.lower(misfit):
        assert not fallbacks.keys
        fallbacks.keys["attention_0"] = "key"
        seen.append(fallbacks.level_of("attention_0"))
    # 900 bytes where there are 10 need three levels at least, so that there are two rounds.
    assert seen == [1, 2]
    assert fallbacks.level_of("mine") == 6
    assert fallbacks.stages("attention_0", 4) == 0
    assert fallbacks.of("key") == Fallback(2, "needs 300 bytes of shared memory, chip has 200")


def test_planners_see_less_room() -> None:
    machine = load("sm_80")
    assert with_less_room(machine, 0) is machine
    assert with_less_room(machine, 2).memories[0].bytes == machine.memories[0].bytes // 4
    assert halved({0: 8, 1: 32}, 2) == {0: 8, 1: 8}
    assert halved({0: 1}, 3) == {0: 1}
    assert halved({}, 3) == {}


def test_products_have_a_schedule_at_every_level() -> None:
    draw = random.Random(0)
    types = [(dtypes.bf16, dtypes.f32), (dtypes.f32, dtypes.f32), (dtypes.f64, dtypes.f64), (dtypes.i8, dtypes.i32)]
    for _ in range(100):
        sizes = [draw.choice((1, 3, 16, 100, 4096)) for _ in range(3)]
        product = WarpProduct(*sizes, *draw.choice(types), piece_bytes=draw.choice((0, 16)))
        machine = with_less_room(load(draw.choice(CHIPS)), draw.choice((1, 3, 6)))
        assert warp_schedule(product, machine).tile.rows >= 16


def test_random_programs_fit() -> None:
    draw = random.Random()
    for _ in range(3):
        seed, chip = draw.randrange(1 << 30), draw.choice(CHIPS)
        outcome = fits.tried(fits.case_of(seed, ("product", "rows", "ordered", "loop")), chip)
        assert outcome.kind in (fits.COMPILED, fits.SMALLER), (seed, chip, outcome)


def test_tiles_of_a_users_kernel_that_do_not_fit_are_refused_by_name() -> None:
    types = [tw.ShapeDtype(shape, tw.f32) for shape in ((256, 256), (256, 64), (256, 64))]
    lowered = fits.tiled_product.lower(*types, bm=256, bn=16, bk=128)
    with pytest.raises(
        DoesNotFit, match=r"tiled_product\w*` needs \d+ bytes of shared memory, sm_89 has 101376"
    ) as found:
        lowered.compile("cuda:sm_89")
    assert found.value.help == "use smaller tiles"
