"""Offsets that `scheduled-plan-block-memory` assigns: which buffers share bytes, and what does not fit."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest

from tests.passes.pass_support import applied, check_meaning, parse, random_inputs, run, unit_of
from tilewright.dialects import scheduled
from tilewright.dialects.scheduled import asynchronous
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.fallbacks import DoesNotFit
from tilewright.passes.warps.scheduled_plan_block_memory import ScheduledPlanBlockMemoryPass

PASS = ScheduledPlanBlockMemoryPass()
WHOLE = "map = affine_map<(d0) -> (d0)>"
TURNED = "map = affine_map<(d0) -> ((d0 * -1) + 63)>"
BARRIER = 'scheduled.barrier() {scope = "block"}\n'
TILE = 'tensor<64xf32, "(64) : [2@warp 32@lane]">'


def buffer(name: str, size: int = 64, dtype: str = "f32") -> str:
    layout = f"({size}) : [{size}@mem.shared]"
    return f'%{name} = scheduled.alloc() : !tile.ref<tensor<{size}x{dtype}>, "block", "{layout}">\n'


def put(value: str, name: str) -> str:
    return f"tile.store(%{value}, %{name}) {{{WHOLE}}}\n"


def taken(value: str, name: str) -> str:
    return f"%{value} = tile.load(%{name}) {{{TURNED}}} : {TILE}\n"


def through(value: str, name: str, result: str) -> str:
    """A tile through a buffer, between two barriers."""
    return buffer(name) + BARRIER + put(value, name) + BARRIER + taken(result, name)


def kernel(body: str, result: str = "c") -> str:
    return f"""
    func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {{
      %y = array.call(%x) {{callee = "turned"}} : tensor<64xf32>
      func.return %y : tensor<64xf32>
    }}
    tile.kernel() {{sym_name = "turned", grid = array<i64>, effects = ["in", "out"]}} do {{
    ^bb0(%x: !tile.ref<tensor<64xf32>>, %out: !tile.ref<tensor<64xf32>>):
      scheduled.parallel() {{extents = array<i64>, grain = 1 : index, warps = 2 : index}} do {{
        %a = tile.load(%x) {{{WHOLE}}} : {TILE}
        {body}
        tile.store(%{result}, %out) {{{WHOLE}}}
        scheduled.end()
      }}
      tile.yield()
    }}
    """


def offsets(unit: Unit) -> list[int]:
    found = [op.offset_bytes for op in unit.module.walk() if isinstance(op, scheduled.AllocOp)]
    assert None not in found
    return [offset for offset in found if offset is not None]


def loop(body: str, result: str) -> str:
    return f"""
        %r = tile.for(%a) {{trips = 3 : index}} do {{
        ^bb1(%t: index, %s: {TILE}):
          {body}
          tile.yield(%{result})
        }} : {TILE}
    """


MEET = "two buffers of which a barrier is between the last use of one and the first of the other"
CASES = {
    MEET: (through("a", "one", "b") + through("b", "two", "c"), "c", True),
    "three of them": (through("a", "one", "b") + through("b", "two", "d") + through("d", "three", "c"), "c", True),
    "no barrier between": (
        through("a", "one", "b") + buffer("two") + put("b", "two") + BARRIER + taken("c", "two"),
        "c",
        False,
    ),
    "both at one time": (
        buffer("one") + buffer("two") + BARRIER + put("a", "one") + put("a", "two") + BARRIER
        + taken("b", "one") + taken("d", "two") + f'%c = tile.map(%b, %d) {{fn = "add"}} : {TILE}\n',
        "c",
        False,
    ),
    "one is read again": (
        through("a", "one", "b") + through("b", "two", "d") + taken("e", "one")
        + f'%c = tile.map(%d, %e) {{fn = "add"}} : {TILE}\n',
        "c",
        False,
    ),
    "one from before a loop is read in it": (
        buffer("one") + BARRIER + put("a", "one") + BARRIER
        + loop(through("s", "two", "b") + taken("d", "one") + f'%e = tile.map(%b, %d) {{fn = "add"}} : {TILE}', "e"),
        "r",
        False,
    ),
    "one from before a loop is read first in it": (
        buffer("one") + BARRIER + put("a", "one") + BARRIER
        + loop(taken("d", "one") + through("s", "two", "b") + f'%e = tile.map(%b, %d) {{fn = "add"}} : {TILE}', "e"),
        "r",
        False,
    ),
    "both in a loop": (loop(through("s", "one", "b") + through("b", "two", "d"), "d"), "r", True),
    "both in a loop, without a barrier from one trip to the next": (
        BARRIER
        + loop(
            buffer("one") + put("s", "one") + BARRIER + taken("b", "one")
            + buffer("two") + BARRIER + put("b", "two") + BARRIER + taken("d", "two"),
            "d",
        ),
        "r",
        False,
    ),
    "one in a loop, one after it": (
        loop(through("s", "one", "b"), "b") + through("r", "two", "c"), "c", True),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_buffers_share_bytes_where_a_barrier_is_between(name: str) -> None:
    body, result, is_shared = CASES[name]
    text = kernel(body, result)
    if "without" in name or "no barrier" in name:
        unit = applied(PASS, text, "sm_90a")  # of whose barriers one is missing: the executor refuses it
    else:
        unit = check_meaning(PASS, text, "sm_90a")
    found = offsets(unit)
    if is_shared:
        assert set(found) == {0}
    else:
        assert all(abs(one - other) >= 64 * 4 for one, other in combinations(found, 2)), found


def test_a_barrier_in_a_branch_does_not_count() -> None:
    """Warps that take the other branch do not meet there."""
    between = f"""
        %zero = tile.full() {{value = 0.0 : f64}} : tensor<f32>
        %is = tile.map(%zero, %zero) {{fn = "less"}} : tensor<i1>
        tile.if(%is) do {{
          {BARRIER}
          tile.yield()
        }} do {{
          tile.yield()
        }}
    """
    second = buffer("two") + between + put("b", "two") + BARRIER + taken("c", "two")
    found = offsets(applied(PASS, kernel(through("a", "one", "b") + second), "sm_90a"))
    assert abs(found[0] - found[1]) >= 64 * 4


def test_barriers_of_one_warp_do_not_count() -> None:
    second = through("b", "two", "c").replace('"block"}\n', '"warp"}\n', 1)
    found = offsets(applied(PASS, kernel(through("a", "one", "b") + second), "sm_90a"))
    assert abs(found[0] - found[1]) >= 64 * 4


def test_large_buffers_come_first_and_small_ones_go_below_those_that_are_free() -> None:
    body = buffer("small", 32) + buffer("large", 300) + buffer("odd", 7, "i8")
    uses = "".join(
        f"%{name}v = tile.load(%{name}) {{{WHOLE}}} : tensor<{size}x{dtype}>\n"
        for name, size, dtype in (("small", 32, "f32"), ("large", 300, "f32"), ("odd", 7, "i8"))
    )
    unit = applied(PASS, kernel(body + uses, "a"), "sm_90a")
    step = scheduled.BUFFER_ALIGNMENT_BYTES
    first = -(-1200 // step) * step
    second = first + -(-128 // step) * step
    assert offsets(unit) == [first, 0, second]


def test_barriers_in_memory_come_after_all_buffers() -> None:
    body = (
        buffer("odd", 7, "i8")
        + f"%v = tile.load(%odd) {{{WHOLE}}} : tensor<7xi8>\n"
        + "".join(
            f"%m{n} = scheduled.mbarrier() {{count = {count} : index, arrivals = 1 : index}}"
            f' : !tile.ref<tensor<{count}xi64>, "block">\n'
            for n, count in enumerate((3, 1))
        )
    )
    unit = applied(PASS, kernel(body, "a"), "sm_90a")
    found = [op.offset_bytes for op in unit.module.walk() if isinstance(op, asynchronous.MbarrierOp)]
    assert found == [8, 32]


@pytest.mark.parametrize(("bytes_over", "fits"), [(0, True), (4, False)])
@pytest.mark.parametrize("chip", ["sm_90a", "sm_86"])
def test_what_does_not_fit_is_reported_with_its_bytes(chip: str, bytes_over: int, fits: bool) -> None:
    room = load(chip).memory_of("mem.shared").bytes
    size = (room + bytes_over) // 4
    body = buffer("large", size) + f"%v = tile.load(%large) {{{WHOLE}}} : tensor<{size}xf32>\n"
    if fits:
        assert offsets(applied(PASS, kernel(body, "a"), chip)) == [0]
        return
    with pytest.raises(DoesNotFit) as found:
        applied(PASS, kernel(body, "a"), chip)
    (excess,) = found.value.excesses
    assert (excess.kernel, excess.needed_bytes, excess.room_bytes) == ("turned", size * 4, room)


# ---- random blocks --------------------------------------------------------------------------------------------------


class Drawn:
    """A block whose tiles go through buffers, are read from them again, and do so in loops. Each buffer is filled and
    read with a barrier between; others are where a draw puts them, and at the head of each loop."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0
        body, last = self._steps("a", self.rng.randint(2, 5), [])
        self.text = kernel(body, last)

    def _name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def _steps(self, value: str, count: int, before: list[str], is_nested: bool = False) -> tuple[str, str]:
        text, filled = "", [*before]
        for _ in range(count):
            result, kind = self._name(), self.rng.random()
            if kind < 0.6 or (is_nested and not filled):
                filled.append(memory := f"m{result}")
                text += buffer(memory) + self._barrier() + put(value, memory) + BARRIER + taken(result, memory)
            elif kind < 0.75 and filled:
                text += taken(f"again{result}", self.rng.choice(filled))
                text += f'%{result} = tile.map(%{value}, %again{result}) {{fn = "add"}} : {TILE}\n'
            elif not is_nested:
                body, last = self._steps(f"s{result}", self.rng.randint(1, 3), filled, is_nested=True)
                whole = (
                    loop(BARRIER + body, last).replace("%r = ", f"%{result} = ").replace("for(%a)", f"for(%{value})")
                )
                text += whole.replace("%s:", f"%s{result}:")
            else:
                continue
            value = result
        return text, value

    def _barrier(self) -> str:
        return BARRIER if self.rng.random() < 0.5 else ""


@pytest.mark.parametrize("seed", range(40))
def test_random_blocks_have_no_race(seed: int) -> None:
    """By the executor, as with memory of its own for each buffer."""
    text = Drawn(seed).text
    unit, apart = applied(PASS, text, "sm_90a"), unit_of(parse(text), {}, "sm_90a")
    for n, op in enumerate(op for op in apart.module.walk() if isinstance(op, scheduled.AllocOp)):
        op.offset_bytes = 1024 * n
    arrays = random_inputs(unit)
    np.testing.assert_array_equal(run(unit, arrays)[0], run(apart, arrays)[0])


def test_most_random_blocks_share_bytes() -> None:
    found = [offsets(applied(PASS, Drawn(seed).text, "sm_90a")) for seed in range(40)]
    assert sum(len(set(each)) < len(each) for each in found) > 20
