"""Pages of memory and the C library under them, for what Python's own `mmap` does not offer."""

from __future__ import annotations

import ctypes
import enum
import functools
import os
from collections.abc import Callable

from tilewright.errors import ResourceExhausted

_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_PRIVATE_ANONYMOUS = 0x22
_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_WIPEONFORK = 18


class Protection(enum.IntEnum):
    """Access rights of pages besides reading."""

    READ = _PROT_READ
    EXECUTE = _PROT_READ | _PROT_EXEC


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library of this process with the functions that the runtime uses declared."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.dlsym.restype = ctypes.c_void_p
    library.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    library.free.restype = None
    library.free.argtypes = [ctypes.c_void_p]
    return library


def map_pages(size: int) -> int:
    """The address of fresh zero pages that can be read and written.

    Raises:
        ResourceExhausted: the system has no memory for them.
    """
    address = libc().mmap(None, size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
    if address == _MAP_FAILED:
        raise ResourceExhausted(f"no {size} bytes of memory for native code", help="free memory in this process")
    return address


def protect_pages(address: int, size: int, protection: Protection) -> None:
    """Make pages read-only or executable; no-op for none.

    Raises:
        ResourceExhausted: the system refuses.
    """
    if size and libc().mprotect(address, size, protection) != 0:
        raise ResourceExhausted(
            "the system refuses to change the protection of native code: " + os.strerror(ctypes.get_errno()),
            help="allow executable memory for this process (SELinux `execmem`, systemd `MemoryDenyWriteExecute`)",
        )


def map_wiped_on_fork(size: int) -> int:
    """The address of pages that read zero in a forked child, whatever the parent wrote. They are never unmapped."""
    address = map_pages(size)
    if libc().madvise(address, size, _MADV_WIPEONFORK) != 0:
        os.register_at_fork(after_in_child=_wiper(address, size))
    return address


def _wiper(address: int, size: int) -> Callable[[], object]:
    return lambda: ctypes.memset(address, 0, size)
