"""Orders of tiles against brute force: every tile once, and the panels of each wave counted one by one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tilewright.cost.warps.tile_order import TileGrid, TileOrder, best_order, plain_order, traffic_bytes, wave_panels
from tilewright.dialects.scheduled.tile_order import GroupedOrder
from tilewright.machines.machine import load

SIZES = [(rows, columns) for rows in (1, 2, 3, 5, 8, 13) for columns in (1, 2, 4, 7, 11)]


def points(rows: int, columns: int, group: int) -> list[tuple[int, ...]]:
    order = GroupedOrder((rows, columns), group)
    return [order.point(number) for number in range(order.count)]


@pytest.mark.parametrize("outer", [(), (3,), (2, 2)], ids=str)
def test_every_tile_comes_once_in_any_order(outer: tuple[int, ...]) -> None:
    for rows, columns in SIZES:
        for group in range(1, rows + 1):
            order = GroupedOrder((*outer, rows, columns), group)
            found = [order.point(number) for number in range(order.count)]
            assert sorted(found) == list(product(*map(range, order.extents)))
            assert [each[: len(outer)] for each in found] == sorted(each[: len(outer)] for each in found)


def test_groups_follow_each_other_and_go_down_first() -> None:
    assert points(3, 2, 2) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    assert points(2, 3, 1) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 7, 12, 30, 200])
def test_panels_of_waves_are_those_that_are_counted(blocks: int) -> None:
    for rows, columns in SIZES:
        grid = TileGrid(rows, columns, 100, 7)
        for group in range(1, rows + 1):
            numbered, total = points(rows, columns, group), 0
            for start in range(0, rows * columns, blocks):
                wave = numbered[start : start + blocks]
                counted = len({row for row, _ in wave}), len({column for _, column in wave})
                assert wave_panels(grid, group, start, start + len(wave)) == counted
                total += 100 * counted[0] + 7 * counted[1]
            assert traffic_bytes(grid, group, blocks, 0) == total


def test_the_best_order_is_no_worse_than_any_group() -> None:
    rng = np.random.default_rng(0)
    better = 0
    for _ in range(60):
        rows, columns = (int(each) for each in rng.integers(1, 40, 2))
        row_bytes, column_bytes, blocks = (int(each) for each in rng.integers(1, 64, 3))
        grid = TileGrid(rows, columns, row_bytes, column_bytes)
        best, plain = best_order(grid, blocks, 0), plain_order(grid, blocks, 0)
        assert plain.traffic_bytes == traffic_bytes(grid, 1, blocks, 0)
        assert best.traffic_bytes <= plain.traffic_bytes
        powers = [1 << power for power in range(6) if 1 << power <= min(rows, blocks)]
        assert best.traffic_bytes <= min(traffic_bytes(grid, group, blocks, 0) for group in powers)
        chosen = grid.turned if best.is_turned else grid
        assert traffic_bytes(chosen, best.group, blocks, 0) == best.traffic_bytes
        better += best.traffic_bytes < plain.traffic_bytes
    assert better > 20


def test_a_cache_with_room_for_all_leaves_the_order() -> None:
    grid = TileGrid(64, 32, 1000, 2000)
    assert best_order(grid, 16, grid.panel_bytes) == TileOrder(1, False, 128_000)
    assert best_order(grid, 16, grid.panel_bytes - 1).group > 1


def test_a_large_product_on_hopper_takes_nearly_square_groups() -> None:
    """8192 cubed of 16 bits by tiles of 128 x 256: panels of 2 and 4 MiB. A group of g rows and 132 / g columns moves
    2 g + 4 * 132 / g MiB, which is least at 16 rows."""
    machine = load("sm_90a")
    grid = TileGrid(64, 32, 128 * 8192 * 2, 256 * 8192 * 2)
    best = best_order(grid, machine.cores, machine.memory("l2").bytes)
    plain = plain_order(grid, machine.cores, machine.memory("l2").bytes)
    rows = best.group if not best.is_turned else 132 / best.group
    assert 8 <= rows <= 24
    assert best.traffic_bytes < 0.6 * plain.traffic_bytes
