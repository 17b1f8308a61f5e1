"""Layouts in the types of queues: movers read and write tiles where the layout has their elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from tests.cores.builder import Builder
from tests.cores.compiling import MACHINES, Variant, compiled
from tests.numerics.test_phases import expected_of
from tests.programs import PROGRAMS
from tilewright.dialects import cores, tile
from tilewright.layout.layout import Layout
from tilewright.passes.base import Unit
from tilewright.semantics.cores.element_steps import lanes_in_pages

QUICK = [make for make in PROGRAMS if make.__name__ not in ("random_numbers", "ordered_long")]
SQUARE = "(64, 64) : [2@page*2 2@mem*512 16@mem*16 | 2@page 2@mem*256 16@mem]"

# Page and element of each element of a tile.
Positions = frozenset[tuple[int, int]]


@cache
def unit_of(make: Callable[..., Any], machine: str) -> Unit:
    return compiled(expected_of(make)[0], machine, Variant(2))


def queues_of(unit: Unit) -> list[cores.QueueType]:
    return [cores.queue_type(op.result) for op in unit.module.walk() if isinstance(op, cores.QueueOp)]


@cache
def positions_of(text: str) -> Positions:
    layout = Layout.parse(text)
    found = (layout.coordinates(index) for index in np.ndindex(*layout.static_shape))
    return frozenset((at.get("page", 0), at.get("mem", 0)) for at in found)


def counted(shape: Sequence[int], rows: int, columns: int) -> Positions:
    """As the executor counts them."""
    places = lanes_in_pages(np.indices(shape).reshape(len(shape), prod(shape)), shape, rows, columns)
    return frozenset(zip(places.pages.tolist(), places.elements.tolist(), strict=True))


def accesses(unit: Unit) -> Iterator[tuple[SSAValue, Positions]]:
    """Queues of which operations read or write single elements, and where those are."""
    for op in unit.module.walk():
        match op:
            case cores.ElementsOp():
                yield op.queue, counted(op.lanes, op.rows, op.columns)
            case cores.RearrangeOp():
                yield op.source, counted(op.source_shape, op.source_rows, op.source_columns)
                yield op.queue, counted(op.shape, op.rows, op.columns)
            case cores.LinesOp():
                yield from ((queue, counted(op.lanes, op.rows, op.columns)) for queue in op.sources)
            case _:
                pass


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("make", QUICK, ids=lambda make: make.__name__)
def test_movers_find_elements_where_the_layout_has_them(make: Callable[..., Any], machine: str) -> None:
    for queue, positions in accesses(unit_of(make, machine)):
        layout = cores.queue_type(queue).layout.data
        assert not layout or positions_of(layout) == positions


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("make", QUICK, ids=lambda make: make.__name__)
def test_pages_that_are_fetched_are_those_of_the_layout(make: Callable[..., Any], machine: str) -> None:
    """All of one tile's, or a part of them that one core fetches for several."""
    for op in unit_of(make, machine).module.walk():
        if not isinstance(op, cores.FetchOp) or not cores.queue_type(op.queue).layout.data:
            continue
        symbols = [0] * op.at.num_symbols
        pages = [op.at.eval(list(point), symbols)[0] for point in np.ndindex(*op.extents)]
        assert len({*pages}) == len(pages)
        assert {*pages} <= {page for page, _ in positions_of(cores.queue_type(op.queue).layout.data)}


def test_programs_have_such_queues() -> None:
    """The tested kernels have queues with layouts, of one page and of several."""
    units = [unit_of(make, machine) for make in QUICK for machine in MACHINES]
    found = [cores.queue_type(queue) for unit in units for queue, _ in accesses(unit)]
    assert sum(bool(type.layout.data) for type in found) > len(found) // 2 > 10
    declared = [type for unit in units for type in queues_of(unit) if type.layout.data]
    assert {type.tile_pages == 1 for type in declared} == {False, True}
    assert len(declared) > 100


def kernel_with(pages: int, layout: str, step: int) -> tile.KernelOp:
    """A verified program with a queue, of which a thread waits for and pops some pages."""
    b = Builder((1, 1), [((64, 64), "f32", "out")])
    queue = b.queue("f32", pages, layout=layout)
    with b.thread("writer"):
        b.wait(queue, step)
        b.pop(queue, step)
    return b.finished()


@pytest.mark.parametrize(("pages", "step"), [(4, 4), (8, 4), (8, 8)])
def test_queues_have_room_for_whole_tiles(pages: int, step: int) -> None:
    kernel_with(pages, SQUARE, step)
    assert cores.queue("f32", pages, SQUARE).tile_pages == 4


@pytest.mark.parametrize(
    ("pages", "layout", "step", "says"),
    [
        (3, SQUARE, 3, "a tile has 4 pages, and the queue 3"),
        (8, SQUARE, 6, "6 pages, of tiles that have 4"),
        (4, "(64, 64) : [64@mem*64 | 64@mem]", 4, "is no layout of a tile in pages"),
        (4, "(4, 32) : [4@lane | 32@mem]", 4, "is no layout of a tile in pages"),
        (4, "(64, 64) : [64@", 4, "cores.queue"),
    ],
)
def test_a_layout_that_a_queue_does_not_have_is_refused(pages: int, layout: str, step: int, says: str) -> None:
    with pytest.raises(VerifyException, match=says):
        kernel_with(pages, layout, step)
