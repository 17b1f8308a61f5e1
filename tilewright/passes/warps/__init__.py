"""The execution model of GPUs: thread blocks of warps, copies ahead of matmuls, barriers."""
