"""Running programs on NVIDIA GPUs through the CUDA driver."""
