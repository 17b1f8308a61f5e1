"""Kernels of warps as LLVM: what targets with warps share. `intrinsics.py` states what each of them brings."""
