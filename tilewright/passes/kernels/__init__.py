"""From groups of array operations to tile kernels: tile sizes and the tile operations of each kind of group."""
