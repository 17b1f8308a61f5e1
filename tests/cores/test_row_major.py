"""Arrays that are stored by rows: made tiles before kernels read them, and rows again where results are to be rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.utils.exceptions import VerifyException

import tilewright as tw
from tests.cores.breaking import change, drop, move_before
from tests.cores.builder import Builder
from tests.cores.compiling import DTYPES, MACHINES, VARIANTS, compiled, simulated
from tests.cores.test_placements import arguments_of, chained, moved, negated, normal, remarks, runs_of
from tests.programs import Program
from tilewright import dtypes
from tilewright.cost.cores.model import cost_of
from tilewright.dialects import cores, tile
from tilewright.dtypes import DType
from tilewright.errors import UnsupportedOnTargetError
from tilewright.layout.catalogue.placements import Storage, parse_storage
from tilewright.machines.core_grid import DRAM_READ, DRAM_WRITE
from tilewright.machines.machine import load
from tilewright.semantics.cores import check_program
from tilewright.semantics.hazards import CoreHazard
from tilewright.targets.grid.runtime import Simulation

Array = np.ndarray[Any, Any]
ROWS = "row-major"
SHAPES = ((), (1,), (7,), (33, 65), (100, 1000), (2, 3, 40, 70), (5, 1))
# In, out, and both.
STORAGES: tuple[dict[int, str], ...] = ({0: ROWS}, {1: ROWS}, {0: ROWS, 1: ROWS})


def any_numbers(shape: tuple[int, ...], dtype: DType) -> Array:
    """All patterns of bits that a type has, but those of NaNs, whose bits the host may change."""
    if dtype.is_bool:
        return np.random.default_rng(0).random(shape) > 0.5
    raw = np.random.default_rng(0).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    found = raw.view(dtype.numpy).reshape(shape)
    if not dtype.is_float:
        return found
    with np.errstate(invalid="ignore"):
        return np.where(found == found, found, 1).astype(dtype.numpy)


def copied(shape: tuple[int, ...], dtype: DType) -> Program:
    program = Program("main")
    program.outputs = [program.array(*shape, dtype=dtype)]
    return program


def kernels_of(unit: Any) -> list[str]:
    return [kernel.sym_name for kernel in unit.kernels()]


# ---- bit by bit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_arrays_come_through_bit_by_bit(shape: tuple[int, ...], dtype: DType) -> None:
    x, number = any_numbers(shape, dtype), len(shape) + DTYPES.index(dtype)
    for n, storage in enumerate(STORAGES[:2]):
        variant = VARIANTS[(number + 3 * n) % len(VARIANTS)]
        (got,) = simulated(copied(shape, dtype), [x], MACHINES[(number + n) % 2], variant, storage)
        assert got.dtype == x.dtype
        assert got.tobytes() == x.tobytes()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("machine", MACHINES)
def test_all_depths_and_orders(machine: str, variant: Any) -> None:
    x = normal(2, 130, 300)
    for storage in STORAGES:
        (got,) = simulated(negated(x), [x], machine, variant, storage)
        np.testing.assert_array_equal(got, -x)


def test_rows_have_formats() -> None:
    x = normal(45, 70)
    narrow = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    for storage in ({0: "bf16 row-major"}, {1: "bf16 dram row-major"}, {0: "bf16 row-major", 1: ROWS}):
        (got,) = simulated(copied(x.shape, dtypes.f32), [x], "blackhole", storage=storage)
        np.testing.assert_array_equal(got, narrow)


def test_integers_of_64_bits_are_stored_in_32() -> None:
    x = np.random.default_rng(0).integers(-(2**31), 2**31, (40, 35))
    (got,) = simulated(copied(x.shape, dtypes.i64), [x], "wormhole", storage={0: ROWS})
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("shape", [(4, 0), (0,), (2, 0, 40)], ids=str)
def test_arrays_of_nothing(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    for storage in STORAGES:
        (got,) = simulated(negated(x), [x], "wormhole", storage=storage)
        assert got.shape == shape


# ---- in programs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_kernels_read_tiles_and_programs_give_rows(machine: str) -> None:
    program = Program("main")
    x, w = program.array(100, 200, dtype=dtypes.bf16), program.array(200, 70, dtype=dtypes.bf16)
    program.outputs = [program.map("tanh", program.dot(x, w, 0, 1, 0)), program.map("add", x, x)]
    arrays = [normal(*each.shape, dtype=ml_dtypes.bfloat16) for each in program.inputs]
    wanted = simulated(program, arrays, machine)
    for variant in VARIANTS[::3]:
        got = simulated(program, arrays, machine, variant, {0: ROWS, 1: ROWS, 2: ROWS, 3: ROWS})
        for mine, theirs in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(mine.astype(np.float32), theirs.astype(np.float32))


def test_an_argument_is_made_tiles_once_and_where_it_is_read() -> None:
    program = Program("main")
    x, y = program.array(64, 64), program.array(64, 64)
    square = program.dot(y, y, 0, 1, 0)
    program.outputs = [program.dot(square, x, 0, 1, 0), program.map("negative", x)]
    unit = compiled(program, "wormhole", storage={0: ROWS})
    assert kernels_of(unit).count("tilize_0") == 1
    names = [name for name, _ in _launched(unit)]
    assert names.index("tilize_0") > 0


def _launched(unit: Any) -> list[tuple[str, Any]]:
    simulation = Simulation(unit, values=False)
    simulation.run(None)
    return simulation.runs


def test_rows_that_nothing_reads_stay_rows() -> None:
    x = normal(40, 50)
    program = Program("main")
    unread, argument = program.array(40, 50), program.array(40, 50)
    program.outputs = [argument]
    unit = compiled(program, "wormhole", storage={0: ROWS, 1: ROWS, 2: ROWS})
    assert kernels_of(unit) == []
    (got,) = Simulation(unit).run([x, x])
    np.testing.assert_array_equal(got, x)
    assert unread.shape == argument.shape


@pytest.mark.parametrize("place", ["bfp8", "l1 height", "bfp8 l1 block", "dram", "bf16 row-major", "bf16"])
def test_an_argument_that_is_a_result_is_stored_twice(place: str) -> None:
    x = normal(75, 110)
    program = Program("main")
    argument = program.array(75, 110)
    program.outputs = [argument, program.map("negative", argument), argument]
    as_tiles = simulated(program, [x], "wormhole", storage={1: place})
    got = simulated(program, [x], "wormhole", storage={0: ROWS, 1: place})
    for mine, theirs in zip(got, as_tiles, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    back = simulated(program, [x], "wormhole", storage={0: place, 1: ROWS, 2: ROWS, 3: ROWS})
    forth = simulated(program, [x], "wormhole", storage={0: place})
    for mine, theirs in zip(back, forth, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_views_of_rows() -> None:
    x = normal(6, 32, 50)
    lowered = tw.jit(lambda x: (tw.reshape(x, (192, 50)), tw.reshape(x, (2, 96, 50)) * 2)).lower(x)
    for storage in ({"x": ROWS}, {"return[0]": ROWS}, {"x": ROWS, "return[0]": ROWS, "return[1]": ROWS}):
        flat, doubled = lowered.compile(target="grid", storage=storage)(x)
        np.testing.assert_array_equal(flat, x.reshape(192, 50))
        np.testing.assert_array_equal(doubled, 2 * x.reshape(2, 96, 50))


def test_arrays_that_are_updated() -> None:
    @tw.kernel
    def doubled(x: tw.InOut["M N"], *, bm: int = 32):
        for (i,) in tw.grid(x, (bm,)):
            x[i] = x[i] * 2

    x = normal(70, 40)
    lowered = tw.jit(lambda x: (doubled(x), x)).lower(x)
    for storage in ({"x": ROWS}, {"return[0]": ROWS}, {"x": ROWS, "return[0]": ROWS, "return[1]": ROWS}):
        twice, same = lowered.compile(target="grid", storage=storage)(x)
        np.testing.assert_array_equal(twice, 2 * x)
        np.testing.assert_array_equal(same, x)
    donated = tw.jit(lambda x: -x, donate=("x",)).lower(x)
    got = donated.compile(target="grid", storage={"x": ROWS, "return": ROWS})(x.copy())
    np.testing.assert_array_equal(got, -x)


def test_what_control_flow_takes_and_gives() -> None:
    def repeated(x: Any) -> Any:
        return tw.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, state[1] * 2), (0, x))[1]

    x = normal(40, 50)
    got = tw.jit(repeated).lower(x).compile(target="grid", storage={"x": ROWS, "return": ROWS})(x)
    np.testing.assert_array_equal(got, 8 * x)


def test_what_control_flow_reads() -> None:
    def chosen(p: Any, x: Any) -> Any:
        return tw.cond(p, lambda: x * 2, lambda: -x)

    x = normal(40, 50)
    lowered = tw.jit(chosen).lower(np.array(True), x)
    compiled = lowered.compile(target="grid", storage={"p": ROWS, "x": ROWS, "return": ROWS})
    np.testing.assert_array_equal(compiled(np.array(True), x), 2 * x)
    np.testing.assert_array_equal(compiled(np.array(False), x), -x)


def test_elements_by_index() -> None:
    x, places = normal(40, 50), np.array([3, 1, 39], np.int32)
    storage = {"x": ROWS, "i": ROWS, "return": ROWS}
    got = tw.jit(lambda x, i: x[i]).lower(x, places).compile(target="grid", storage=storage)(x, places)
    np.testing.assert_array_equal(got, x[places])


def test_tiles_stay_with_the_cores_that_read_them() -> None:
    program = chained(300, 200, 2)
    arrays = arguments_of(program)
    unit = compiled(program, "wormhole", storage={0: ROWS})
    assert any("`tilize_0` makes" in each and "in l1" in each for each in remarks(unit, "scheduled-place-arrays"))
    (got,), (wanted,) = Simulation(unit).run(arrays), simulated(program, arrays, "wormhole")
    np.testing.assert_array_equal(got, wanted)


# ---- what is said, and what it takes --------------------------------------------------------------------------------


def test_explain_has_the_plan() -> None:
    x = normal(64, 64)
    lowered = tw.jit(lambda x: -x).lower(x)
    found: Any = lowered.compile(target="grid:wormhole", storage={"x": "bf16 row-major", "return": ROWS})
    text = found.explain()
    assert "tilize_0: moved from bf16 row-major to dram (copy (16384 bytes in runs of 16 elements)" in text
    assert "relayout_0: moved from dram to row-major (copy (16384 bytes in runs of 16 elements)" in text
    assert "tilizes" in text
    assert "untilizes" in text
    assert "input 0: stored as bf16 row-major (requested)" in text


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("storage", STORAGES[:2], ids=str)
@pytest.mark.parametrize("shape", [(1024, 1024), (1000, 1000)], ids=str)
def test_dram_is_what_limits_large_arrays(shape: tuple[int, int], storage: dict[int, str], machine: str) -> None:
    """Each element is moved twice, rows without what pads them, and the model says how long that takes."""
    unit = compiled(copied(shape, dtypes.bf16), machine, storage=storage)
    (run,), grid = runs_of(unit), unit.machine.core_grid
    assert grid is not None
    rows, tiles = 2 * shape[0] * shape[1], 2048 * 32 * 32
    assert moved(unit, DRAM_READ) == (rows if 0 in storage else tiles)
    assert moved(unit, DRAM_WRITE) == (tiles if 0 in storage else rows)
    least = (rows + tiles) * grid.clock_hertz / grid.dram_bytes_per_second
    assert least > 0.94 * (run.cycles - grid.dispatch_cycles)
    (kernel,) = unit.kernels()
    predicted = cost_of(kernel, grid)
    assert predicted is not None
    assert predicted.limited_by == "dram"
    assert predicted.predicted_cycles == pytest.approx(run.cycles, rel=0.05)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("storage", STORAGES[:2], ids=str)
def test_the_model_counts_what_the_simulator_does(storage: dict[int, str], machine: str) -> None:
    for shape, dtype in (((40, 70), dtypes.f32), ((3, 100, 33), dtypes.bf16), ((500,), dtypes.i32)):
        unit = compiled(copied(shape, dtype), machine, storage=storage)
        (run,), (kernel,) = runs_of(unit), unit.kernels()
        predicted = cost_of(kernel, unit.machine.core_grid)
        assert predicted is not None
        assert predicted.dram_read_bytes == run.moved_bytes[DRAM_READ]
        assert predicted.dram_written_bytes == run.moved_bytes[DRAM_WRITE]
        assert predicted.predicted_cycles == pytest.approx(run.cycles, rel=0.05)


def test_what_is_asked_for_is_read() -> None:
    assert parse_storage("row-major") == Storage(by_rows=True)
    assert parse_storage("bf16 dram row-major") == Storage("bf16", "dram", by_rows=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bfp8 row-major", "numbers of bfp8 share exponents within device tiles, and are not stored by rows"),
        ("l1 row-major", "row-major arrays are in DRAM only"),
        ("bf16 l1 height on 2x2 row-major", "row-major arrays are in DRAM only"),
        ("row-major bf16", "no storage of an array on a grid of cores at `row-major bf16`"),
        ("row-mayor", "no storage of an array on a grid of cores at `row-mayor`"),
    ],
)
def test_what_cannot_be_by_rows_is_said(text: str, says: str) -> None:
    lowered = tw.jit(lambda x: -x).lower(normal(64, 64))
    with pytest.raises(UnsupportedOnTargetError, match=says) as caught:
        lowered.compile(target="grid", storage={"x": text})
    assert ROWS in (caught.value.help or "")


def test_integers_have_no_other_format_by_rows() -> None:
    lowered = tw.jit(lambda x: -x).lower(np.zeros((4, 4), np.int32))
    with pytest.raises(UnsupportedOnTargetError, match="an array of i32 is not stored as bf16"):
        lowered.compile(target="grid", storage={"x": "bf16 row-major"})


# ---- mistakes -------------------------------------------------------------------------------------------------------

_TILIZE, _UNTILIZE = STORAGES[:2]
_Break = Callable[[tile.KernelOp], None]


def _configured_for(unit: str, state: str) -> _Break:
    def edit(kernel: tile.KernelOp) -> None:
        found = [op for op in kernel.walk() if isinstance(op, cores.ConfigureOp) and op.unit == unit]
        found[0].state = state

    return edit


def _without_configure(unit: str) -> _Break:
    def edit(kernel: tile.KernelOp) -> None:
        (found,) = [op for op in kernel.walk() if isinstance(op, cores.ConfigureOp) and op.unit == unit]
        found.detach()

    return edit


@pytest.mark.parametrize(
    ("storage", "breaks", "kind"),
    [
        (_TILIZE, _without_configure(cores.MATRIX), "unit-not-configured"),
        (_TILIZE, _configured_for(cores.MATRIX, "copy none"), "unit-configured-otherwise"),
        (_TILIZE, _configured_for(cores.MATRIX, "tilize 2"), "unit-configured-otherwise"),
        (_UNTILIZE, _configured_for(cores.PACK, "f32"), "unit-configured-otherwise"),
        (_TILIZE, lambda kernel: change(kernel, "compute", cores.TilizeOp, slot=1), "registers-overflow"),
        (_UNTILIZE, lambda kernel: drop(kernel, "compute", cores.RegistersOp, 2), "registers-not-waited"),
        (_TILIZE, lambda kernel: drop(kernel, "reader", cores.FetchRowsOp), "read-never-written"),
        (_TILIZE, lambda kernel: drop(kernel, "reader", cores.BarrierOp), "read-before-arrival"),
        (_TILIZE, lambda kernel: change(kernel, "compute", cores.TilizeOp, at="d0 + 4"), "page-not-waited"),
        (_UNTILIZE, lambda kernel: change(kernel, "compute", cores.UntilizeOp, at="d0 + 4"), "page-not-reserved"),
        (_UNTILIZE, lambda kernel: drop(kernel, "writer", cores.PutRowsOp), "element-never-written"),
        (_UNTILIZE, lambda kernel: drop(kernel, "writer", cores.BarrierOp), "overwritten-in-flight"),
        (
            _UNTILIZE,
            lambda kernel: move_before(kernel, "writer", cores.PopOp, cores.PutRowsOp),
            "page-not-waited",
        ),
    ],
)
def test_mistakes_are_named(storage: dict[int, str], breaks: _Break, kind: str) -> None:
    unit = compiled(copied((700, 1000), dtypes.f32), "wormhole", storage=storage)
    (kernel,) = unit.kernels()
    breaks(kernel)
    with pytest.raises(CoreHazard) as caught:
        Simulation(unit, whole_outputs=True).run([normal(700, 1000)])
    assert caught.value.kind == kind


def test_rows_come_to_where_transfers_from_dram_may() -> None:
    """Tiles may begin at each line of a core's memory."""
    for storage, is_wrong in ((_TILIZE, True), (_UNTILIZE, False)):
        unit = compiled(copied((64, 64), dtypes.f32), "blackhole", storage=storage)
        (kernel,) = unit.kernels()
        program = next(op for op in kernel.walk() if isinstance(op, cores.ProgramOp))
        address = program.queues[0].properties["address_bytes"]
        program.queues[0].properties["address_bytes"] = type(address)(address.value.data + 32, address.type)
        program.queues[1].properties["address_bytes"] = type(address)(address.value.data + 2**16, address.type)
        if not is_wrong:
            check_program(program, load("blackhole"))
            continue
        with pytest.raises(CoreHazard, match="no multiple of 64"):
            check_program(program, load("blackhole"))


@pytest.mark.parametrize(
    ("by_rows", "move", "says"),
    [
        ((), lambda b, queue: b.fetch_rows(0, queue, "0, d0", extents=(2,)), "is stored in tiles"),
        ((0,), lambda b, queue: b.fetch(0, queue, "0, d0", extents=(2,)), "is stored by rows"),
        ((0,), lambda b, queue: b.gather(0, queue, "d0, d1", shape=(32, 32), rows=0, columns=1), "stored by rows"),
        ((0,), lambda b, queue: b.fetch_rows(0, queue, "d0, 0", extents=(2,)), "are not side by side"),
        ((0,), lambda b, queue: b.fetch_rows(0, queue, "0, d0", extents=(2,), at="2 * d0"), "are not side by side"),
        (
            (0,),
            lambda b, queue: b.fetch_rows(0, queue, "d0, d1", extents=(2, 1), at="d0 + d1"),
            "are not side by side",
        ),
    ],
)
def test_pages_of_the_other_kind_are_refused(by_rows: tuple[int, ...], move: Any, says: str) -> None:
    b = Builder((1, 1), [((64, 64), "f32", "in")], by_rows=by_rows)
    queue = b.queue("f32", 2)
    with b.thread("reader"):
        move(b, queue)
    with pytest.raises(VerifyException, match=says):
        b.finished()
