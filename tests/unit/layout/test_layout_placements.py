"""Where pages of arrays are on a grid of cores: against the layouts of the catalogue, and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.errors import LayoutError
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.layout.catalogue.placements import Pages, Placement, page_matrix, parse_storage

MACHINE = (8, 8)


def placed(text: str, shape: tuple[int, ...], machine: tuple[int, int] = MACHINE) -> Placement:
    found = parse_storage(text).placement(shape, machine)
    assert found is not None
    return found


def core_of(placement: Placement, pages: tuple[int, int], row: int, column: int) -> tuple[int, int]:
    """By counting shards one after another."""
    shards = list(itertools.product(*map(range, placement.shards(pages))))
    own = row // placement.shard[0], column // placement.shard[1]
    if placement.is_block:
        return own[::-1] if placement.by_columns else own
    rows, columns = placement.cores
    cores = [(r, c) for r in range(rows) for c in range(columns)]
    if placement.by_columns:
        cores.sort(key=lambda core: core[::-1])
    return cores[shards.index(own) % len(cores)]


@pytest.mark.parametrize("pages", [(1, 1), (3, 2), (16, 16), (32, 22), (65, 3), (2, 130)])
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize(("shard", "cores"), [((1, 1), (8, 8)), ((2, 3), (2, 4)), ((5, 1), (1, 7)), ((9, 70), (3, 3))])
def test_pages_are_held_as_shards_are_counted(
    pages: tuple[int, int], shard: tuple[int, int], cores: tuple[int, int], by_columns: bool
) -> None:
    for is_block in (False, True):
        placement = Placement(shard, cores, is_block, by_columns)
        if placement.misfit(pages) is not None:
            continue
        row, column = placement.holders(pages)
        found = list(zip(row.tolist(), column.tolist(), strict=True))
        assert found == [core_of(placement, pages, *page) for page in itertools.product(*map(range, pages))]
        most = max(found.count(core) for core in found)
        assert most <= placement.core_pages(pages)
        assert Placement.parse(str(placement)) == placement


@pytest.mark.parametrize("shape", [(2048, 2048), (1000, 700), (96, 64), (33, 2000)])
@pytest.mark.parametrize(
    "text", ["l1 height", "l1 width", "l1 block", "l1 block by columns", "l1 height on 4x2 by columns"]
)
def test_layouts_say_the_same_as_tables(text: str, shape: tuple[int, int]) -> None:
    placement = placed(text, shape)
    layout = placement.layout(shape)
    pages = page_matrix(shape)
    row, column = (each.reshape(pages) for each in placement.holders(pages))
    for i, j in itertools.product(range(0, shape[0], 61), range(0, shape[1], 61)):
        at = layout.coordinates((i, j))
        page = i // TILE, j // TILE
        assert (at.get("core.y", 0), at.get("core.x", 0)) == (row[page], column[page])


@pytest.mark.parametrize(
    "text", ["", "dram", "row-major", "l1", "l1 2x4", "l1 2x0 on 8x8", "l1 2x4 on 8x8 by rows", "blocks of 1x1 on 8x8"]
)
def test_a_text_that_is_no_placement_is_refused(text: str) -> None:
    with pytest.raises(LayoutError, match="is no placement"):
        Placement.parse(text)


@pytest.mark.parametrize(
    ("pages", "format", "place", "shown"),
    [
        (Pages(), "", "", "dram"),
        (Pages("bfp8"), "bfp8", "", "bfp8"),
        (Pages("bf16", None, True), "bf16", "row-major", "bf16 row-major"),
        (Pages("", Placement((2, 4), (8, 8))), "", "l1 2x4 on 8x8", "l1 2x4 on 8x8"),
        (
            Pages("bfp8", Placement((1, 2), (3, 4), True, True)),
            "bfp8",
            "l1 blocks of 1x2 on 3x4 by columns",
            "bfp8 in l1 blocks of 1x2 on 3x4 by columns",
        ),
    ],
    ids=str,
)
def test_pages_are_read_from_their_texts(pages: Pages, format: str, place: str, shown: str) -> None:
    assert (pages.format, pages.place, str(pages)) == (format, place, shown)
    assert Pages.parse(format, place) == pages


def test_pages_of_a_format_that_is_none_are_refused() -> None:
    with pytest.raises(LayoutError, match="`bfp3` is no format of pages"):
        Pages.parse("bfp3", "")


@pytest.mark.parametrize("shape", [(70, 100), (32, 64)])
def test_layouts_of_pages_are_those_of_their_memory(shape: tuple[int, int]) -> None:
    """Tiles one after another in DRAM, rows one after another, and shards."""
    sharded = Placement((1, 2), (3, 2), True)
    for row, column in itertools.product(range(0, shape[0], 7), range(0, shape[1], 9)):
        tile = row // TILE * -(-shape[1] // TILE) + column // TILE
        face = row % TILE // 16 * 2 + column % TILE // 16
        inside = face * 256 + row % 16 * 16 + column % 16
        assert Pages().layout(shape).coordinates((row, column)) == {"mem.dram": tile * TILE * TILE + inside}
        assert Pages(is_row_major=True).layout(shape).coordinates((row, column)) == {
            "mem.dram": row * shape[1] + column
        }
    assert Pages("bfp8", sharded).layout(shape) == sharded.layout(shape)


def test_what_users_say_is_read() -> None:
    assert (parse_storage("bfp8").memory, parse_storage("bfp8").format) == ("", "bfp8")
    assert parse_storage("dram").placement((64, 64), MACHINE) is None
    assert placed("l1", (100, 100)) == Placement((1, 1), (8, 8))
    assert placed("l1 height", (3, 100, 100)) == Placement((1, 4), (8, 8))
    assert placed("l1 height on 2x4", (4096, 100)) == Placement((16, 4), (2, 4))
    assert placed("l1 width", (100, 4096)) == Placement((4, 2), (8, 8))
    assert placed("bf16 l1 block", (4096, 2048)) == Placement((16, 8), (8, 8), True)
    assert placed("l1 block by columns", (4096, 2048), (2, 4)) == Placement((32, 32), (2, 4), True, True)
    assert placed("l1 2x3 by columns", (4096, 2048)) == Placement((2, 3), (8, 8), False, True)


@pytest.mark.parametrize(
    "text", ["", "l2", "l1 heigth", "l1 0x3", "dram height", "l1 height on 8", "bfp8 height", "l1 on"]
)
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(LayoutError, match="no storage of an array") as caught:
        parse_storage(text)
    assert "l1 height" in str(caught.value.help)


def test_more_cores_than_there_are_are_refused() -> None:
    with pytest.raises(LayoutError, match="the machine has 8x8 cores, not 9x8"):
        parse_storage("l1 height on 9x8").placement((64, 64), MACHINE)


def test_arrays_of_nothing_have_no_pages() -> None:
    assert page_matrix((0, 32)) == (0, 1)
    assert placed("l1 height", (0, 32)).core_pages((0, 1)) == 0
    assert not np.any(placed("l1 block", (0, 32)).holders((0, 1))[0])
