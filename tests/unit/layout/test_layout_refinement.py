"""Layouts over common digits, against the layouts themselves: tables say where every element is, and speak of the same
digits."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from tilewright.layout import Layout, strided
from tilewright.layout.access import MemoryPorts, register_access
from tilewright.layout.refinement import Copy, IndexDigit, Table, refine
from tilewright.passes.layouts.layout_spaces import dealt


def places(table: Table, index: tuple[int, ...]) -> set[tuple[tuple[str, int], ...]]:
    """Where a table says that an element is: coordinates by axis, zeros left out."""
    choices = []
    for slot, content in table.slots.items():
        if isinstance(content, Copy):
            choices.append([(slot.axis, slot.stride * k) for k in range(content.extent)])
        else:
            digit = index[content.dim] // content.weight % content.extent
            choices.append([(slot.axis, slot.stride * digit)])
    found = set()
    for parts in product(*choices):
        total: dict[str, int] = dict(table.offset)
        for axis, at in parts:
            total[axis] = total.get(axis, 0) + at
        found.add(tuple(sorted((axis, at) for axis, at in total.items() if at)))
    return found


def expected(layout: Layout, index: tuple[int, ...]) -> set[tuple[tuple[str, int], ...]]:
    named = (zip(layout.axes, place, strict=True) for place in layout.places(index))
    return {tuple(sorted((axis, at) for axis, at in pairs if at)) for pairs in named}


def random_pair(seed: int) -> tuple[Layout, Layout]:
    generator = random.Random(seed)
    shape = tuple(generator.choice((1, 3, 5, 8, 12, 16, 24, 100)) for _ in range(generator.randrange(1, 3)))
    order = list(range(len(shape)))
    generator.shuffle(order)
    holders = generator.choice([(("lane", 32), ("warp", 4)), (("simd", 16),), (("warp", 2), ("lane", 8))])
    pitch = generator.choice((1, 2, 1000, 8192))
    steps = [pitch * int(np.prod(shape[dim + 1 :])) for dim in range(len(shape))]
    return dealt(shape, order, holders, generator.choice((1, 2, 4))), strided(shape, steps)


@pytest.mark.parametrize("seed", range(120))
def test_tables_say_where_every_element_is(seed: int) -> None:
    pair = random_pair(seed)
    tables = refine(*pair)
    if tables is None:
        return
    for layout, table in zip(pair, tables, strict=True):
        for index in np.ndindex(*layout.static_shape):
            assert places(table, index) == expected(layout, index)
    first, second = ({c for c in table.slots.values() if isinstance(c, IndexDigit)} | table.still for table in tables)
    assert first == second


def test_a_dim_that_its_digits_overhang_counts_whole() -> None:
    """A hundred rows dealt in sixteens are seven registers a lane, each an access for each of the twelve columns."""
    registers = Layout.parse("(100, 12) : [7@reg 16@simd | 12@reg*7]")
    found = register_access(registers, strided((100, 12), (8192, 1)), 4, MemoryPorts(widest_bytes=4))
    assert found is not None
    assert found.instructions == 7 * 12
