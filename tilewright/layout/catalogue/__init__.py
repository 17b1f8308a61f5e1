"""Layouts of hardware: what an instruction, a memory or a mesh expects, as constructors of `Layout`s.

    layout = wgmma_accumulator((128, 256))
    layout.coordinates((17, 3))                          # {'reg': 1, 'warp': 1, 'lane': 5}

`docs/reference/layouts.md` lists them. Machines name atom families and their numbers; the maps are here.
"""

from tilewright.layout.catalogue.amd import (
    mfma_accumulator,
    mfma_operand_a,
    mfma_operand_b,
    wmma_accumulator,
    wmma_operand_a,
    wmma_operand_b,
)
from tilewright.layout.catalogue.cpu import packed_panels_a, packed_panels_b, register_block, spread_rows
from tilewright.layout.catalogue.formats import (
    Plane,
    Planes,
    block_float,
    microscaled,
    nvfp4,
    scale_blocks,
    scale_rows,
    sparse_2_of_4,
)
from tilewright.layout.catalogue.grid import (
    TILE_SHAPES,
    block_sharded,
    deal_pages,
    fold_cores,
    height_sharded,
    interleaved,
    nd_sharded,
    paged_tile,
    tile_faces,
    tilized,
    width_sharded,
)
from tilewright.layout.catalogue.mesh import mesh_sharding
from tilewright.layout.catalogue.nvidia_registers import (
    ldmatrix_registers,
    ldmatrix_rows,
    mma_accumulator,
    mma_operand_a,
    mma_operand_b,
    strided_registers,
    wgmma_accumulator,
    wgmma_operand,
    wgmma_per_column,
    wgmma_per_row,
    wgmma_transposed,
    wgmma_upcast,
)
from tilewright.layout.catalogue.nvidia_shared import padded_shared, shared_matrix
from tilewright.layout.catalogue.nvidia_tensor_memory import (
    tcgen05_column_halves,
    tcgen05_per_row,
    tcgen05_registers,
    tcgen05_transposed,
    tensor_memory_accumulator,
    tensor_memory_column_halves,
    tensor_memory_half_lanes,
    tensor_memory_scales,
)

__all__ = [
    "TILE_SHAPES",
    "Plane",
    "Planes",
    "block_float",
    "block_sharded",
    "deal_pages",
    "fold_cores",
    "height_sharded",
    "interleaved",
    "ldmatrix_registers",
    "ldmatrix_rows",
    "mesh_sharding",
    "mfma_accumulator",
    "mfma_operand_a",
    "mfma_operand_b",
    "microscaled",
    "mma_accumulator",
    "mma_operand_a",
    "mma_operand_b",
    "nd_sharded",
    "nvfp4",
    "packed_panels_a",
    "packed_panels_b",
    "padded_shared",
    "paged_tile",
    "register_block",
    "scale_blocks",
    "scale_rows",
    "shared_matrix",
    "sparse_2_of_4",
    "spread_rows",
    "strided_registers",
    "tcgen05_column_halves",
    "tcgen05_per_row",
    "tcgen05_registers",
    "tcgen05_transposed",
    "tensor_memory_accumulator",
    "tensor_memory_column_halves",
    "tensor_memory_half_lanes",
    "tensor_memory_scales",
    "tile_faces",
    "tilized",
    "wgmma_accumulator",
    "wgmma_operand",
    "wgmma_per_column",
    "wgmma_per_row",
    "wgmma_transposed",
    "wgmma_upcast",
    "width_sharded",
    "wmma_accumulator",
    "wmma_operand_a",
    "wmma_operand_b",
]
