"""Programs compute what NumPy does in double precision, in any order, and nothing is wrong with them."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser

from tests.cores import programs
from tests.cores.builder import Builder
from tilewright import dtypes
from tilewright.dialects import cores, tile
from tilewright.machines.machine import load
from tilewright.semantics.cores import DeviceArray, ProgramRun, run_program
from tilewright.semantics.cores.agents import Agent, Core
from tilewright.semantics.cores.world import World

Tensor = np.ndarray[Any, Any]
SEEDS = range(5)
MACHINE = load("wormhole")
TYPES = {"bf16": ml_dtypes.bfloat16, "f32": np.float32, "f16": np.float16}


def numbers(shape: Sequence[int], dtype: str = "bf16", seed: int = 0) -> Tensor:
    return np.random.default_rng(seed).standard_normal(shape).astype(TYPES[dtype])


def run(kernel: tile.KernelOp, inputs: Sequence[Tensor], seed: int = 0, **more: Any) -> tuple[Tensor, ProgramRun]:
    """What the last array of a kernel becomes, as doubles, and how the run was."""
    arrays = [DeviceArray.from_numpy(each) for each in inputs]
    last = tile.ref_type(kernel.refs[-1])
    arrays.append(DeviceArray.undefined(last.shape, last.dtype))
    ran = run_program(kernel, arrays, MACHINE, seed=seed, **more)
    return arrays[-1].to_numpy().astype(np.float64), ran


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * float(np.abs(wanted).max()))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("tiles", "block", "capacity"), [(4, 1, 2), (8, 2, 4), (8, 4, 4)])
def test_elementwise(tiles: int, block: int, capacity: int, seed: int) -> None:
    x, y = numbers((64, 32 * tiles)), numbers((64, 32 * tiles), seed=1)
    found, ran = run(programs.elementwise(tiles, block, capacity, rows=2), [x, y], seed)
    wanted = (x.astype(np.float32) + y.astype(np.float32)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found, wanted.astype(np.float64))
    assert ran.tile_operations == 2 * 2 * tiles
    assert all(most <= capacity for most in ran.highest_queues)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
def test_matmul_of_one_core(dtype: str, accumulates: bool, seed: int) -> None:
    x, y = numbers((64, 96), dtype), numbers((96, 32), dtype, 1)
    found, _ = run(programs.single_core_matmul(2, 3, 1, dtype, accumulates), [x, y], seed)
    close(found, x.astype(np.float64) @ y.astype(np.float64), {"bf16": 0.02, "f16": 0.002, "f32": 0.002}[dtype])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (1, 2), (3, 1)])
def test_matmul_with_multicasts(rows: int, columns: int, seed: int) -> None:
    x, y = numbers((32 * rows, 96)), numbers((96, 32 * columns), seed=1)
    found, _ = run(programs.multicast_matmul(rows, columns, 3), [x, y], seed)
    close(found, x.astype(np.float64) @ y.astype(np.float64), 0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_reduction(seed: int) -> None:
    x = numbers((32, 96))
    found, _ = run(programs.row_sums(3), [x], seed)
    close(found[:, 0], x.astype(np.float64).sum(axis=1), 0.02)
    assert not found[:, 1:].any()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [2, 4])
def test_gather_over_cores(count: int, seed: int) -> None:
    x = numbers((32, 32 * count))
    found, _ = run(programs.gather_to_one(count), [x], seed)
    close(found, x.astype(np.float64).reshape(32, count, 32).sum(axis=1), 0.03)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_compute_reads_of_itself(seed: int) -> None:
    x = numbers((32, 96))
    found, _ = run(programs.through_memory(3), [x], seed)
    close(found, np.exp(-x.astype(np.float64)), 0.01)


@pytest.mark.parametrize("seed", SEEDS)
def test_elements(seed: int) -> None:
    x = numbers((20, 30), "f32")
    indices = np.random.default_rng(1).integers(-3, 33, (20, 30)).astype(np.int32)
    found, _ = run(programs.shifted_elements(20, 30), [x, indices], seed)
    inside = (indices >= 0) & (indices < 30) & (np.arange(20)[:, None] + 1 < 20)
    rows = np.minimum(np.arange(20)[:, None] + 1, 19)
    np.testing.assert_array_equal(found, np.where(inside, x[rows, np.clip(indices, 0, 29)], 0))


def test_a_sum_over_padding_shows_it() -> None:
    found, _ = run(programs.row_sums(2, padding=5), [numbers((32, 59))])
    assert np.isnan(found[:, 0]).all()


@pytest.mark.parametrize(("fill", "is_poisoned"), [(None, True), (0.0, False)])
def test_arrays_have_poison_beyond_their_edges(fill: float | None, is_poisoned: bool) -> None:
    array = DeviceArray.from_numpy(numbers((20, 40)), padding=fill)
    whole = DeviceArray((32, 64), dtypes.bf16, array.format, None, array.pages).to_numpy().astype(np.float32)
    assert bool(np.isnan(whole[20:]).all()) == is_poisoned
    assert not np.isnan(whole[:20, :40]).any()


def test_times_do_not_depend_on_values() -> None:
    kernel = programs.multicast_matmul(2, 2, 3)
    inputs = numbers((64, 96)), numbers((96, 64))
    _, whole = run(kernel, inputs)
    _, times = run(kernel, inputs, values=False)
    _, unchecked = run(kernel, inputs, checks=False)
    assert whole == times == unchecked
    assert whole.seconds == whole.cycles / 1e9


def test_deeper_queues_are_faster() -> None:
    inputs = numbers((32, 512)), numbers((32, 512))
    cycles = [run(programs.elementwise(16, b, c), inputs, values=False)[1].cycles for b, c in ((1, 1), (1, 2), (4, 8))]
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[-1] < 0.6 * cycles[0]


def test_f32_is_cut_to_tf32_by_the_matrix_unit_alone() -> None:
    x = numbers((32, 32), "f32")
    zero = np.zeros((32, 32), np.float32)
    added, _ = run(programs.elementwise(1, dtype="f32"), [x, zero])
    np.testing.assert_array_equal(added, (x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64))
    through, _ = run(programs.through_memory(1, "f32"), [x])
    close(through, np.exp(-x.astype(np.float64)), 2e-3)


def test_programs_print_as_text_that_runs() -> None:
    kernel = programs.gather_to_one(3)
    context = Context()
    for dialect in (Builtin, tile.Tile, cores.Cores):
        context.load_dialect(dialect)
    module = Parser(context, str(kernel)).parse_module()
    (parsed,) = [op for op in module.walk() if isinstance(op, tile.KernelOp)]
    inputs = [numbers((32, 96))]
    assert run(parsed, inputs)[1] == run(kernel, inputs)[1]


@pytest.mark.parametrize("fn", ["maximum", "add"])
@pytest.mark.parametrize("along", ["row", "column", "scalar"])
def test_reductions_along(fn: str, along: str) -> None:
    b = Builder((1, 1), [((32, 64), "f32", "in"), ((32, 32), "f32", "out")])
    x, ones, z = b.queue("f32", 2), b.queue("bf16", 1), b.queue("f32", 1)
    with b.thread("reader"):
        b.reserve(ones)
        b.generate(ones, "0", choice=(1.0, 0.5, 0.0), face_rows=True)
        b.push(ones)
        b.reserve(x, 2)
        b.fetch(0, x, "0, d0", extents=(2,))
        b.barrier("read")
        b.push(x, 2)
    with b.thread("compute"):
        b.wait(ones)
        b.wait(x, 2)
        b.registers("acquire")
        b.reduce(x, ones, fn, along, pages=2)
        b.registers("commit")
        b.pop(x, 2)
        b.pop(ones)
        b.reserve(z)
        b.registers("wait")
        b.configure("edges", along)
        b.pack(z)
        b.registers("release")
        b.push(z)
    with b.thread("writer"):
        b.wait(z)
        b.put(1, z, "0, 0")
        b.barrier("write")
        b.pop(z)
    data = numbers((32, 64), "f32")
    found, _ = run(b.finished(), [data])
    tiles = data.astype(np.float64).reshape(32, 2, 32)
    reduce = np.max if fn == "maximum" else np.sum
    factor = 1.0 if fn == "maximum" else 0.5
    wanted = np.zeros((32, 32))
    match along:
        case "row":
            wanted[:, 0] = factor * reduce(tiles, axis=(1, 2))
        case "column":
            wanted[0] = factor * reduce(tiles, axis=(0, 1))
        case _:
            wanted[0, 0] = factor * reduce(tiles)
    close(found, wanted, 0.002)


def test_a_run_leaves_no_garbage() -> None:
    x, y = numbers((64, 96)), numbers((96, 96), seed=1)
    gc.collect()
    gc.disable()
    try:
        run(programs.multicast_matmul(2, 3, 3), [x, y])
        left = [each for each in gc.get_objects() if isinstance(each, Core | Agent | World)]
    finally:
        gc.enable()
    assert left == []
