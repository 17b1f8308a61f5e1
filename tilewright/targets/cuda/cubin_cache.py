"""Kernels' machine code in the compile cache, by the PTX that it was assembled from: programs share their kernels."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tilewright import events
from tilewright.machines.machine import Machine
from tilewright.options import current
from tilewright.runtime.cache import default_cache
from tilewright.targets.cuda.toolchain import COMPILER, Cubin

# What the record of a kernel says in place of a program's target.
KERNEL = "cubin"
_COMPILING_LEVEL = 3
"""From this level of the `debug` ladder on, everything is compiled anew."""


def cubin(name: str, ptx: str, machine: Machine) -> Cubin:
    """The machine code of PTX, assembled unless the cache has it.

    Raises:
        ToolFailure: the assembler rejects it or crashes, or is not there.
    """
    cache = default_cache()
    if cache is None or current().debug >= _COMPILING_LEVEL:
        return COMPILER.cubin(name, ptx, machine)
    parts = (KERNEL, _assembler(), machine.llvm_cpu, ptx)
    key = hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()
    path = cache.get(key)
    found = None if path is None else _read(path, key)
    if found is None:
        found = COMPILER.cubin(name, ptx, machine)
        content = msgspec.msgpack.encode(_Entry(key, found))
        cache.put(key, lambda path: path.write_bytes(content), {"name": name, "target": f"{KERNEL} {machine.name}"})
    return found


@functools.cache
def _assembler() -> str:
    """The assembler's version: another one may give other code."""
    try:
        return importlib.metadata.version("nvidia-nvjitlink")
    except importlib.metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class _Entry:
    """The content of a file: machine code, and the key of what it was assembled from."""

    key: str
    cubin: Cubin


def _read(path: Path, key: str) -> Cubin | None:
    """A kernel in the cache; None where another process has removed it, or where it is not the key's."""
    try:
        entry = msgspec.msgpack.decode(path.read_bytes(), type=_Entry)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        events.emit("cache.damaged", key=path.name, reason=str(error))
        return None
    if entry.key != key:
        events.emit("cache.damaged", key=path.name, reason="it is the machine code of another kernel")
        return None
    return entry.cubin
