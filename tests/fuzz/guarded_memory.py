"""Memory that ends, or begins, where the process may not read or write: what oversteps it ends the process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.fuzz.intervals import Tensor
from tilewright.runtime.memory import libc

FORBIDDEN = 0  # PROT_NONE
PAGE = mmap.PAGESIZE


def guarded_bytes(nbytes: int, at_end: bool) -> Tensor:
    """Zeros between two forbidden pages, which they touch behind their last byte or before their first one."""
    pages = -(-nbytes // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    everything = np.frombuffer(memory, np.uint8)
    protect = libc().mprotect
    for page in (0, pages + 1):
        address = ctypes.c_void_p(everything.ctypes.data + page * PAGE)
        if protect(address, ctypes.c_size_t(PAGE), FORBIDDEN) != 0:
            raise OSError("a page cannot be forbidden")
    start = (pages + 1) * PAGE - nbytes if at_end else PAGE
    return everything[start : start + nbytes]


def guarded_empty(shape: Sequence[int], dtype: Any, at_end: bool) -> Tensor:
    """An array of zeros in such memory. Its elements are aligned, vectors of them are not."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return guarded_bytes(nbytes, at_end).view(dtype).reshape(shape)


def guarded_copy(array: Tensor, at_end: bool) -> Tensor:
    """A copy of an array in such memory."""
    copy = guarded_empty(array.shape, array.dtype, at_end)
    copy[...] = array
    return copy


@contextmanager
def guarded_arena(program: Any) -> Iterator[None]:
    """Give a native program such memory to work in, for its usual number of threads: its calls take the first arena
    there is, and leave it."""
    program.function()
    (binding,) = program._bindings.values()
    descriptor = binding._memory.descriptor
    arena = guarded_bytes(descriptor.arena_bytes, at_end=True)
    if descriptor.arena_bytes:
        descriptor.arenas[0] = arena.ctypes.data
    try:
        yield
    finally:
        # Else the program would free it.
        descriptor.arenas[0] = None
