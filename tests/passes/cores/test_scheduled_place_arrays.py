"""Arrays that `scheduled-place-arrays` keeps in the memories of cores between kernels, and those that are in DRAM."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import parse, random_inputs, remarks, run, unit_of
from tilewright.dialects import cores, tile
from tilewright.errors import ResourceExhausted
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.cores.scheduled_place_arrays import ScheduledPlaceArraysPass
from tilewright.pipelines import tile_to_cores
from tilewright.targets.grid.runtime import Simulation

PLACE = ScheduledPlaceArraysPass


def negation(name: str, shape: tuple[int, int], dtype: str) -> str:
    """A kernel that negates rows of 32."""
    x, part = f"tensor<{shape[0]}x{shape[1]}x{dtype}>", f"tensor<32x{shape[1]}x{dtype}>"
    rows = "{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 32, d1)>}"
    return f"""
    tile.kernel() {{sym_name = "{name}", grid = array<i64: {-(-shape[0] // 32)}>, effects = ["in", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %out: !tile.ref<{x}>, %i: index):
      %a = tile.load(%x, %i) {rows} : {part}
      %b = tile.map(%a) {{fn = "negative"}} : {part}
      tile.store(%b, %out, %i) {rows}
      tile.yield()
    }}
    """


def chain(links: int, shape: tuple[int, int] = (64, 96), dtype: str = "f32", returned: tuple[int, ...] = ()) -> str:
    """Kernels of which each takes what the one before it makes; the last result is returned, and some of the others."""
    x = f"tensor<{shape[0]}x{shape[1]}x{dtype}>"
    values = [f"%v{n}" for n in range(links + 1)]
    calls = "\n".join(f'{values[n + 1]} = array.call({values[n]}) {{callee = "k{n}"}} : {x}' for n in range(links))
    results = [values[n] for n in (*returned, links)]
    types = ", ".join([x] * len(results))
    return f"""
    func.func @main(%v0: {x}) -> ({types}) {{
      {calls}
      func.return {", ".join(results)} : {types}
    }}
    """ + "".join(negation(f"k{n}", shape, dtype) for n in range(links))


def placed(text: str, keeps: bool = True, machine: str = "wormhole", storage: dict[int, str] | None = None) -> Unit:
    unit = unit_of(parse(text), {}, machine)
    unit.storage = storage or {}
    for each in tile_to_cores(keeps_arrays=keeps):
        each.apply(unit)
        unit.module.verify()
    return unit


def spaces(unit: Unit) -> list[list[str]]:
    """The placement of each array of each kernel."""
    return [[tile.ref_type(ref).pages.data.place for ref in kernel.refs] for kernel in unit.kernels()]


def check_results(text: str, unit: Unit) -> None:
    before = unit_of(parse(text), {}, "wormhole")
    arrays = random_inputs(before)
    for got, expected in zip(Simulation(unit).run(arrays), run(before, arrays), strict=True):
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("machine", ["wormhole", "blackhole"])
@pytest.mark.parametrize(("shape", "dtype"), [((64, 96), "f32"), ((50, 70), "bf16"), ((33, 33), "i32")], ids=str)
def test_what_kernels_hand_on_is_kept(shape: tuple[int, int], dtype: str, machine: str) -> None:
    text = chain(3, shape, dtype)
    unit = placed(text, machine=machine)
    check_results(text, unit)
    (first, second, third) = spaces(unit)
    assert first[0] == third[1] == "", "arguments and results are in DRAM"
    assert first[1] == second[0] != ""
    assert second[1] == third[0] != ""
    assert len(remarks(unit, PLACE.name)) == 2


def test_nothing_is_kept_where_that_is_not_wanted() -> None:
    text = chain(3)
    unit = placed(text, keeps=False)
    check_results(text, unit)
    assert {space for each in spaces(unit) for space in each} == {""}
    assert remarks(unit, PLACE.name) == []


def test_arrays_that_are_returned_are_in_dram() -> None:
    text = chain(3, returned=(1,))
    unit = placed(text)
    check_results(text, unit)
    first, second, third = spaces(unit)
    assert first[1] == second[0] == ""
    assert second[1] == third[0] != ""


def test_one_kernel_has_nothing_to_keep() -> None:
    assert spaces(placed(chain(1))) == [["", ""]]


def test_arrays_of_nothing_are_in_dram() -> None:
    assert {space for each in spaces(placed(chain(2, (0, 32)))) for space in each} == {""}


def test_placements_of_the_user_stay() -> None:
    text = chain(2)
    unit = placed(text, storage={0: "l1 1x1 on 2x2", 1: "l1 height"})
    check_results(text, unit)
    first, second = spaces(unit)
    assert first[0] == "l1 1x1 on 2x2"
    assert second[1].startswith("l1 ")
    assert first[1] == second[0] != ""


def limits(unit: Unit) -> list[int | None]:
    return [op.arrays_begin_bytes for op in unit.module.walk() if isinstance(op, cores.ProgramOp)]


def test_queues_are_below_arrays() -> None:
    """Of two pages at the most on any core, at the end of its memory."""
    unit = placed(chain(2))
    end = load("wormhole").core_grid.memory_end_bytes
    for limit in limits(unit):
        assert limit is not None
        assert end - 6 * 4096 <= limit < end
        assert limit % 16 == 0
    assert limits(placed(chain(1))) == [None]


def test_arrays_at_one_time_are_below_each_other_and_others_share_bytes() -> None:
    """Of a long chain two arrays are there at a time: the second one is below the first, the third where that was."""
    end = load("wormhole").core_grid.memory_end_bytes
    one, two, many = (min(filter(None, limits(placed(chain(links))))) for links in (2, 3, 9))
    assert end - two == 2 * (end - one) > 0
    assert many == two


def test_arrays_without_room_are_in_dram() -> None:
    """Next to queues no core has room for a 64th part."""
    text = chain(2, (32 * 64, 32 * 6 * 64))
    unit = unit_of(parse(text), {}, "wormhole")
    for each in tile_to_cores():
        if isinstance(each, PLACE):
            break
        each.apply(unit)
    PLACE().apply(unit)
    assert {space for each in spaces(unit) for space in each} == {""}
    ((decision, reason),) = remarks(unit, PLACE.name)
    assert decision == "in DRAM"
    assert reason.startswith("no core has room for ")


def test_requests_beyond_the_memory_are_refused() -> None:
    text = chain(1, (32 * 64, 32 * 6 * 64))
    with pytest.raises(ResourceExhausted, match="arrays do not fit each core's memory"):
        placed(text, storage={0: "l1", 1: "l1"})
