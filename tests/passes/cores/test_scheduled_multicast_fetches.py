"""Pages that `scheduled-multicast-fetches` lets one core fetch for a row, a column or all, and fetches that every core
does itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.cores.streams import step
from tests.passes.pass_support import applied, check_meaning, check_unchanged, random_inputs, remarks, run
from tilewright.cost.cores.tiles import fetching_cores
from tilewright.dialects import cores
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.cores.scheduled_multicast_fetches import ScheduledMulticastFetchesPass

PASS = ScheduledMulticastFetchesPass()


def fetch(page: str, queue: str = "a", count: int = 1, at: str = "d0", barrier: str = "read") -> str:
    """Reserve, fetch and push pages, the first of which is a function of the core's row (s0) and column (s1)."""
    return (
        step("reserve", queue, count)
        + f"""cores.fetch(%x, %{queue}, %row, %column) {{extents = array<i64: {count}>,
          map = affine_map<(d0)[s0, s1] -> (d0 + {page}, 0)>, at = affine_map<(d0)[s0, s1] -> ({at})>}}
          cores.barrier() {{of = "{barrier}"}}
        """
        + step("push", queue, count)
    )


def program(
    shape: tuple[int, int], reader: str, queues: tuple[str, ...] = ("a",), count: int = 1, dtype: str = "f32"
) -> str:
    """Cores of which each writes the pages of its queues, one after the other, to a place of its own."""
    rows, columns = shape
    each = len(queues) * count
    x, y = f"tensor<{32 * 24}x32x{dtype}>", f"tensor<{32 * rows * columns * each}x32x{dtype}>"
    made = "\n".join(f'%{name} = cores.queue() : !cores.queue<"{dtype}", {count}>' for name in queues)
    writer = ""
    for n, name in enumerate(queues):
        place = f"(s0 * {columns} + s1) * {each} + {n * count}"
        writer += step("wait", name, count) + f"""
          cores.put(%out, %{name}, %row, %column) {{extents = array<i64: {count}>,
            map = affine_map<(d0)[s0, s1] -> (d0 + {place}, 0)>, at = affine_map<(d0)[s0, s1] -> (d0)>}}
          cores.barrier() {{of = "write"}}
        """ + step("pop", name, count)  # fmt: skip
    return f"""
    func.func @main(%x: {x}) -> {y} {{
      %y = array.call(%x) {{callee = "k"}} : {y}
      func.return %y : {y}
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %out: !tile.ref<{y}>):
      cores.program() {{cores = array<i64: {rows}, {columns}>}} do {{
      ^bb1(%row: index, %column: index):
        {made}
        cores.thread() {{role = "reader", noc = 0 : index}} do {{
          {reader}
          cores.end()
        }}
        cores.thread() {{role = "writer", noc = 1 : index}} do {{
          {writer}
          cores.end()
        }}
        cores.end()
      }}
      tile.yield()
    }}
    """


def fetches(unit: Unit) -> dict[tuple[int, int], int]:
    """By the text: how many fetches are left for all cores, and for those that a branch chooses."""
    found = [op for op in unit.module.walk() if isinstance(op, cores.FetchOp)]
    chosen = sum(isinstance(op.parent_op(), cores.IfOp) for op in found)
    return {(len(found) - chosen, chosen): sum(isinstance(op, cores.MulticastOp) for op in unit.module.walk())}


@pytest.mark.parametrize("machine", ["wormhole", "blackhole"])
@pytest.mark.parametrize("shape", [(2, 3), (1, 4), (3, 1), (3, 3)], ids=str)
@pytest.mark.parametrize(("page", "group"), [("2", "grid"), ("s0", "row"), ("s1 * 2", "column")])
def test_what_a_group_needs_is_fetched_by_one(page: str, group: str, shape: tuple[int, int], machine: str) -> None:
    rows, columns = shape
    text = program(shape, fetch(page))
    if (group == "row" and columns == 1) or (group == "column" and rows == 1):
        check_unchanged(PASS, text, machine)  # each core needs another page
        return
    unit = check_meaning(PASS, text, machine)
    assert fetches(unit) == {(0, 1): 1}
    ((decision, reason),) = remarks(unit, PASS.name)
    what = "column" if columns == 1 else "row" if rows == 1 else group
    count = {"grid": rows * columns, "row": columns, "column": rows}[group if group != "grid" else what]
    assert decision.startswith(f"one core of each {what} multicasts pages")
    assert reason == f"all {count} need the same"


@pytest.mark.parametrize("page", ["s0 + s1", "s0 * 3 + s1", "s0 floordiv 2 + s1"])
def test_pages_that_every_core_needs_alone_are_left(page: str) -> None:
    check_unchanged(PASS, program((2, 3), fetch(page)), "wormhole")


def test_one_core_fetches_for_itself() -> None:
    check_unchanged(PASS, program((1, 1), fetch("0")), "wormhole")


def when(body: str) -> str:
    return f"""cores.if(%row) {{map = affine_map<()[s0] -> (s0)>}} do {{
          {body}
          cores.end()
        }} do {{
          {body}
          cores.end()
        }}
    """


def test_fetches_of_branches_are_left() -> None:
    """Not all cores of a group would take part."""
    check_unchanged(PASS, program((2, 3), when(fetch("2"))), "wormhole")


def looped(body: str, end: str = "") -> str:
    symbol = "%column" if end else ""
    return f"""tile.for({symbol}) {{trips = 3 : index{end}}} do {{
        ^bb2(%t: index):
          {body}
          tile.yield()
        }}
    """


def test_trips_of_a_loop_are_multicast_one_after_the_other() -> None:
    """Each trip through the same two semaphores."""
    text = program((2, 3), looped(fetch("s0").replace("%row, %column", "%t, %column")), ("a",), 1)
    writer = text.index('role = "writer"')
    steps = text[text.index("cores.wait", writer) : text.index("cores.end", writer)]
    many = "".join(steps.replace("d0 + (s0 * 3 + s1) * 1 + 0", f"d0 + (s0 * 3 + s1) * 3 + {n}") for n in range(3))
    text = text.replace(steps, many).replace(f"tensor<{32 * 6}x32", f"tensor<{32 * 18}x32")
    unit = check_meaning(PASS, text, "wormhole")
    assert fetches(unit) == {(0, 1): 1}
    (x,) = inputs = random_inputs(unit)
    np.testing.assert_array_equal(run(unit, inputs)[0], np.tile(x[:96], (6, 1)))


def test_loops_that_end_sooner_on_some_cores_are_not_multicast_to_those() -> None:
    """Only the cores of a column do as many trips. By the pass alone: writers of the template take fewer pages."""
    body = looped(fetch("2"), ", end = affine_map<()[s0] -> (s0 + 1)>")
    unit = applied(PASS, program((2, 3), body), "wormhole")
    assert [decision for decision, _ in remarks(unit, PASS.name)] == ["one core of each column multicasts pages at "]


def test_rows_and_columns_are_fetched_at_one_time() -> None:
    """Pages for rows and then for columns, as matmuls need them: all cores say once that they have room for both."""
    text = program((3, 3), fetch("s0") + fetch("s1 + 3", "b"), ("a", "b"))
    unit = check_meaning(PASS, text, "wormhole")
    assert fetches(unit) == {(0, 2): 2}
    (reader,) = (op for op in unit.module.walk() if isinstance(op, cores.ThreadOp) and op.role == "reader")
    steps = [op.name for op in reader.body.block.ops if isinstance(op, cores.QueueStepOp)]
    assert steps == ["cores.reserve", "cores.reserve", "cores.push", "cores.push"]


def test_rows_and_columns_with_something_between_are_fetched_in_turn() -> None:
    reader = fetch("s0") + fetch("s0 + s1", "c") + fetch("s1 + 3", "b")
    unit = check_meaning(PASS, program((3, 3), reader, ("a", "c", "b")), "wormhole")
    (reading,) = (op for op in unit.module.walk() if isinstance(op, cores.ThreadOp) and op.role == "reader")
    steps = [op.name for op in reading.body.block.ops if isinstance(op, cores.QueueStepOp)]
    assert steps == ["cores.reserve", "cores.push"] * 3


@pytest.mark.parametrize(("count", "several"), [(4, False), (16, True), (23, True)])
def test_many_pages_are_fetched_in_parts_by_several(count: int, several: bool) -> None:
    unit = check_meaning(PASS, program((2, 2), fetch("1", count=count), count=count), "wormhole")
    parts = fetching_cores(count, 4)
    assert fetches(unit) == {(0, parts): parts}
    assert (parts > 1) == several


def test_pages_in_another_order_are_fetched_by_one() -> None:
    """A part of them would not be one after the other in the queue."""
    text = program((2, 2), fetch("1", count=16, at="15 - d0"), count=16)
    assert fetches(check_meaning(PASS, text, "wormhole")) == {(0, 1): 1}


def test_two_fetches_of_one_reservation_are_left() -> None:
    one, other = (
        fetch(page, count=1, at=at).replace(step("reserve", "a"), "").replace(step("push", "a"), "")
        for page, at in (("1", "d0"), ("4", "d0 + 1"))
    )
    both = step("reserve", "a", 2) + one.replace('cores.barrier() {of = "read"}', "") + other + step("push", "a", 2)
    check_unchanged(PASS, program((2, 3), both, count=2), "wormhole")


@pytest.mark.parametrize("dtype", ["bf16", "i32"])
def test_other_types(dtype: str) -> None:
    check_meaning(PASS, program((2, 2), fetch("1"), dtype=dtype), "wormhole")


def test_a_core_has_so_many_semaphores() -> None:
    """Two for each fetch: those that are left over stay as they are."""
    most = load("wormhole").core_grid.semaphores // 2
    names = tuple(f"q{n}" for n in range(most + 2))
    unit = check_meaning(PASS, program((1, 2), "".join(fetch("1", name) for name in names), names), "wormhole")
    assert fetches(unit) == {(2, most): most}


def test_a_fetch_into_a_queue_that_is_reserved_elsewhere_is_left() -> None:
    body = fetch("2")
    reserve = step("reserve", "a")
    other = step("reserve", "b")
    apart = reserve + other + body.replace(reserve, "") + fetch("s0 + s1", "b").replace(other, "")
    check_unchanged(PASS, program((2, 3), apart, ("a", "b")), "wormhole")
