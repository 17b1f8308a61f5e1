"""Stand-ins for hardware, written from its documentation: PTX, the CUDA driver and ttnn."""
