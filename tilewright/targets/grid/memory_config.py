"""Placements of arrays as memory configs of ttnn 0.81.

One shard to a core is ttnn's sharding by height, width or block, which counts all dims of a tensor but the last as its
rows; shards that go around the cores are its sharding in any number of dims, which does not: no such shard has rows of
two matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tilewright.errors import UnsupportedOnTargetError
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.layout.catalogue.placements import Placement, page_matrix


def memory_config(ttnn: Any, shape: Sequence[int], placement: Placement | None) -> Any:
    """The memory configuration of a tensor of a shape.

    Raises:
        UnsupportedOnTargetError: ttnn does not place the tensor so.
    """
    if placement is None:
        return ttnn.DRAM_MEMORY_CONFIG
    rows, columns = placement.cores
    cores = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(columns - 1, rows - 1))])
    orientation = ttnn.ShardOrientation.COL_MAJOR if placement.by_columns else ttnn.ShardOrientation.ROW_MAJOR
    shard = [TILE * size for size in placement.shard]
    scheme = sharding_of(placement, page_matrix(shape))
    if scheme:
        layout = getattr(ttnn.TensorMemoryLayout, scheme)
        return ttnn.MemoryConfig(layout, ttnn.BufferType.L1, ttnn.ShardSpec(cores, shard, orientation))
    if prod(shape[:-2]) != 1 and -(-shape[-2] // TILE) % placement.shard[0]:
        what = f"ttnn does not put an array of {len(shape)} dims around the cores in shards of {shard[0]}x{shard[1]}"
        raise UnsupportedOnTargetError(what, help="place it by height, width or block")
    of_rank = [1] * (len(shape) - 2) + shard
    return ttnn.MemoryConfig(ttnn.BufferType.L1, ttnn.NdShardSpec(ttnn.Shape(of_rank), cores, orientation))


def sharding_of(placement: Placement, pages: tuple[int, int]) -> str:
    """The name of ttnn's layout that gives a core one shard of an array of so many rows and columns of pages; empty
    where shards go around the cores."""
    if placement.is_block:
        return "BLOCK_SHARDED"
    if prod(placement.shards(pages)) > placement.count:
        return ""
    if placement.shard[1] == pages[1]:
        return "HEIGHT_SHARDED"
    return "WIDTH_SHARDED" if placement.shard[0] == pages[0] else ""
