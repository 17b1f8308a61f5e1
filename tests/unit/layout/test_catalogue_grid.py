"""Tiles, banks and shards of a grid of cores against NumPy reshapes and loops over pages and shards."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue_oracle import check_buffer, numbered, padded
from hypothesis import given
from hypothesis import strategies as st
from layout_oracle import SMALL

from tilewright.errors import LayoutError
from tilewright.layout import draw, is_contiguous, product, row_major
from tilewright.layout.catalogue import (
    TILE_SHAPES,
    block_sharded,
    deal_pages,
    fold_cores,
    height_sharded,
    interleaved,
    nd_sharded,
    tile_faces,
    tilized,
    width_sharded,
)


def in_faces(tile, faces_transposed=False, within_transposed=False):
    """A tile's elements in the order of storage."""
    rows, columns = tile.shape
    height = min(rows, 16)
    faces = tile.reshape(rows // height, height, columns // 16, 16).transpose(0, 2, 1, 3)
    faces = faces.swapaxes(0, 1) if faces_transposed else faces
    return (faces.swapaxes(2, 3) if within_transposed else faces).ravel()


def in_tiles(array, tile_shape):
    """All tiles of an array, row-major, each in faces; shape (tiles, elements)."""
    ones = (1,) * (array.ndim - 2)
    whole = padded(array, (*ones, *tile_shape))
    flat = whole.reshape(-1, *whole.shape[-2:])
    tall, wide = whole.shape[-2] // tile_shape[0], whole.shape[-1] // tile_shape[1]
    tiles = flat.reshape(len(flat), tall, tile_shape[0], wide, tile_shape[1]).transpose(0, 1, 3, 2, 4)
    return np.stack([in_faces(tile) for tile in tiles.reshape(-1, *tile_shape)])


def stored(shard, tile_shape):
    return in_tiles(shard, tile_shape).ravel() if tile_shape else shard.ravel()


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("faces", [False, True])
@pytest.mark.parametrize("tile_shape", TILE_SHAPES)
def test_tiles_with_faces(tile_shape, faces, within):
    tile = numbered(tile_shape)
    layout = tile_faces(tile_shape, transposed_faces=faces, transposed_within=within)
    check_buffer(layout, tile, {(): in_faces(tile, faces, within)})


def test_where_the_four_faces_begin():
    """tt-metal: the top right face follows the top left one; rows of a face are 16 elements."""
    tile = tile_faces()
    starts = [tile.coordinates(index)["mem"] for index in [(0, 0), (0, 16), (16, 0), (16, 16), (1, 0)]]
    assert starts == [0, 256, 512, 768, 16]
    turned = tile_faces(transposed_faces=True, transposed_within=True)
    assert [turned.coordinates(index)["mem"] for index in [(0, 16), (16, 0), (1, 0), (0, 1)]] == [512, 256, 1, 16]


@SMALL
@given(st.integers(1, 3), st.integers(1, 70), st.integers(1, 70), st.sampled_from([(32, 32), (16, 32), (32, 16)]))
def test_tilized_arrays(batch, rows, columns, tile_shape):
    for shape in [(rows, columns), (batch, rows, columns)]:
        array = numbered(shape)
        layout = tilized(shape, tile_shape)
        check_buffer(layout, array, {(): in_tiles(array, tile_shape).ravel()})
        assert layout.padded_shape[-2:] == padded(np.zeros(shape[-2:]), tile_shape).shape


@SMALL
@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_dealt_pages(pages, elements, holders, contiguous):
    layout = deal_pages(pages, elements, holders, contiguous=contiguous)
    slots = -(-pages // holders)
    for page, element in np.ndindex(pages, elements):
        bank, slot = divmod(page, slots) if contiguous else (page % holders, page // holders)
        found = layout.coordinates((page, element))
        assert (found.get("dram.bank", 0), found.get("mem", 0)) == (bank, slot * elements + element)


@pytest.mark.parametrize(
    ("shape", "banks", "tile_shape"),
    [
        ((64, 384), 12, (32, 32)),
        ((96, 128), 2, (32, 32)),
        ((64, 64), 8, (32, 32)),
        ((2, 33, 60), 4, (32, 32)),
        ((100, 24), 8, None),
        ((3, 5, 8), 5, None),
        ((64, 96), 6, (16, 32)),
    ],
)
def test_interleaved_pages(shape, banks, tile_shape):
    """Page p is in slot p // banks of bank p % banks."""
    array = numbered(shape)
    pages = in_tiles(array, tile_shape) if tile_shape else array.reshape(-1, shape[-1])
    buffers = {(bank,): pages[bank::banks].ravel() for bank in range(min(banks, len(pages)))}
    check_buffer(interleaved(shape, banks, tile_shape), array, buffers, "dram.bank")


CORES = ("core.y", "core.x")


@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize(
    ("shape", "shard", "grid", "tile_shape"),
    [
        ((2048, 32), 32, (8, 8), (32, 32)),
        ((300, 20), 64, (1, 8), None),
        ((300, 20), 10, (8, 4), None),
        ((256, 64), 64, (4, 1), (32, 32)),
        ((40, 64), 40, (2, 2), None),
    ],
)
def test_height_and_width_shards(shape, shard, grid, tile_shape, column_major):
    array = numbered(shape)
    whole = padded(array, (shard, tile_shape[1] if tile_shape else 1))

    def core(number):
        return (number % grid[0], number // grid[0]) if column_major else divmod(number, grid[1])

    count = len(whole) // shard
    rows = {core(k): stored(whole[k * shard : (k + 1) * shard], tile_shape) for k in range(count)}
    layout = height_sharded(shape, shard, grid, tile_shape, column_major_cores=column_major)
    check_buffer(layout, array, rows, *CORES)
    columns = {core(k): stored(whole[k * shard : (k + 1) * shard].T, tile_shape) for k in range(count)}
    turned = width_sharded(shape[::-1], shard, grid, tile_shape, column_major_cores=column_major)
    check_buffer(turned, array.T, columns, *CORES)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("shape", "shard_shape", "grid", "tile_shape"),
    [
        ((256, 256), (96, 96), (3, 3), (32, 32)),
        ((256, 128), (64, 64), (4, 4), (32, 32)),
        ((50, 30), (16, 8), (4, 4), None),
        ((32, 32), (32, 32), (1, 1), (32, 32)),
    ],
)
def test_block_shards(shape, shard_shape, grid, tile_shape, transposed):
    """The first case is uneven: 256 split by 96 over 3 x 3 cores."""
    array = numbered(shape)
    whole = padded(array, shard_shape)
    tall, wide = shard_shape
    shards = {}
    for i, j in np.ndindex(whole.shape[0] // tall, whole.shape[1] // wide):
        block = whole[i * tall : (i + 1) * tall, j * wide : (j + 1) * wide]
        shards[(j, i) if transposed else (i, j)] = stored(block, tile_shape)
    check_buffer(block_sharded(shape, shard_shape, grid, tile_shape, transposed=transposed), array, shards, *CORES)


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize(
    ("shape", "shard_shape", "cores", "tile_shape"),
    [
        ((4, 64, 64), (1, 32, 32), 8, (32, 32)),
        ((4, 64, 96), (2, 64, 96), 5, (32, 32)),
        ((4, 6, 8), (2, 3, 2), 4, None),
        ((5, 7), (2, 2), 12, None),
    ],
)
def test_shards_of_any_rank(shape, shard_shape, cores, tile_shape, contiguous):
    """Shards are numbered row-major and dealt; a core keeps its shards one after another."""
    array = numbered(shape)
    whole = padded(array, shard_shape)
    counts = [size // step for size, step in zip(whole.shape, shard_shape, strict=True)]
    slots = -(-int(np.prod(counts)) // cores)
    memory = {}
    for number, at in enumerate(np.ndindex(*counts)):
        box = tuple(slice(k * step, (k + 1) * step) for k, step in zip(at, shard_shape, strict=True))
        core = number // slots if contiguous else number % cores
        memory.setdefault((core,), []).append(stored(whole[box], tile_shape))
    buffers = {core: np.concatenate(parts) for core, parts in memory.items()}
    check_buffer(nd_sharded(shape, shard_shape, cores, tile_shape, contiguous=contiguous), array, buffers, "core")


def test_a_line_of_64_cores_folds_on_8_by_8():
    line = product(row_major((64,), "core"), row_major((32,)))
    folded, turned = fold_cores(line, (8, 8)), fold_cores(line, (8, 8), column_major_cores=True)
    for index in range(64 * 32):
        core, element = divmod(index, 32)
        assert folded.coordinates((index,)) == {"core.y": core // 8, "core.x": core % 8, "mem": element}
        assert turned.coordinates((index,)) == {"core.y": core % 8, "core.x": core // 8, "mem": element}


def test_a_grid_of_three_dims_folds():
    """A virtual 2 x 4 x 8 grid, counted row-major, on 8 x 8 cores."""
    virtual = row_major((2, 4, 8), "core")
    folded = fold_cores(virtual, (8, 8))
    for index in np.ndindex(2, 4, 8):
        number = int(np.ravel_multi_index(index, (2, 4, 8)))
        assert folded.coordinates(index) == {"core.y": number // 8, "core.x": number % 8}
    assert is_contiguous(virtual, "core")


def test_a_drawing():
    assert draw(block_sharded((4, 6), (2, 4), (2, 2)), "core.y", "core.x", "mem") == "\n".join(
        [
            "core.y/core.x/mem of (4, 6)",
            "  |     0      1      2      3      4      5",
            "--+-----------------------------------------",
            "0 | 0/0/0  0/0/1  0/0/2  0/0/3  0/1/0  0/1/1",
            "1 | 0/0/4  0/0/5  0/0/6  0/0/7  0/1/4  0/1/5",
            "2 | 1/0/0  1/0/1  1/0/2  1/0/3  1/1/0  1/1/1",
            "3 | 1/0/4  1/0/5  1/0/6  1/0/7  1/1/4  1/1/5",
        ]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: tile_faces((24, 32)),
        lambda: tile_faces((32, 8)),
        lambda: tilized((64,)),
        lambda: deal_pages(4, 8, 0),
        lambda: interleaved((64, 256), 12),
        lambda: height_sharded((300, 20), 32, (3, 3)),
        lambda: height_sharded((300, 20), 48, (8, 8), (32, 32)),
        lambda: height_sharded((300, 20), 0, (8, 8)),
        lambda: height_sharded((3, 4, 5), 1, (8, 8)),
        lambda: width_sharded((20, 300), 32, (3, 3)),
        lambda: block_sharded((256, 256), (96, 96), (2, 3)),
        lambda: block_sharded((256, 256), (96, 96), (3, 2)),
        lambda: block_sharded((256, 256), (48, 256), (8, 8), (32, 32)),
        lambda: nd_sharded((3, 5), (1, 1), 8),
        lambda: fold_cores(row_major((65,), "core"), (8, 8)),
        lambda: fold_cores(row_major((3, 5), "core"), (8, 8)),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
