"""The executor of thread blocks: warps, shared and tensor memory, asynchronous copies and MMAs, hazards."""
