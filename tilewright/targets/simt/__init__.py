"""Emission of kernels of warps as LLVM, shared by targets with warps. Each implements the protocol of
`intrinsics.py`."""
