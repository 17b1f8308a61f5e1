"""Machines as data: typed on load from the `.toml` files beside this one."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import TargetError


@dataclass(frozen=True)
class Memory:
    """One level: capacity in bytes, sustained bytes per second of one core, latency in seconds."""

    name: str
    bytes: int
    line_bytes: int
    bytes_per_second: float
    latency_s: float


@dataclass(frozen=True)
class Vector:
    """The vector unit of one core."""

    bytes: int
    registers: int
    fma_per_cycle: float
    fma_latency_cycles: float


@dataclass(frozen=True)
class Machine:
    """One CPU as the compiler sees it. `cycles` maps a cost class to cycles per vector operation."""

    name: str
    target: str
    architecture: str
    axes: dict[str, int]
    llvm_cpu: str
    llvm_features: tuple[str, ...]
    vector: Vector
    clock_hertz: float
    memories: tuple[Memory, ...]
    fork_join_s: float
    wake_s: float
    cycles: dict[str, float]

    def memory(self, name: str) -> Memory:
        return next(m for m in self.memories if m.name == name)

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` (in its compute type) in one vector register."""
        return max(1, self.vector.bytes // dtype.compute.itemsize)

    def peak_flops(self, dtype: DType) -> float:
        """Multiply and add operations per second of one core."""
        return 2 * self.lanes(dtype) * self.vector.fma_per_cycle * self.clock_hertz

    def micro_tile(self, dtype: DType) -> tuple[int, int]:
        """Rows and columns of the register block: two vectors wide, as many rows as leave room for two vectors of the
        right operand, a spread element of the left, and one register in sixteen for loading ahead (without it the
        register allocator keeps an accumulator in memory)."""
        vectors = 2
        free = self.vector.registers * 15 // 16 - vectors - 1
        return free // vectors, vectors * self.lanes(dtype)


def _parse(text: str) -> Machine:
    data: dict[str, Any] = tomllib.loads(text)
    return Machine(
        name=data["name"],
        target=data["target"],
        architecture=data["architecture"],
        axes=data["axes"],
        llvm_cpu=data["llvm"]["cpu"],
        llvm_features=tuple(data["llvm"]["features"]),
        vector=Vector(**data["vector"]),
        clock_hertz=data["clock"]["hertz"],
        memories=tuple(Memory(**m) for m in data["memory"]),
        fork_join_s=data["launch"]["fork_join_s"],
        wake_s=data["launch"]["wake_s"],
        cycles=data["cycles"],
    )


def names() -> list[str]:
    """All machines that ship with the package."""
    files = resources.files("tilewright.machines").iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


@cache
def load(name: str) -> Machine:
    """The machine called `name`.

    Raises:
        TargetError: there is no such machine.
    """
    if name not in names():
        raise TargetError(f"there is no machine `{name}`", help=f"use one of {', '.join(names())}")
    return _parse((resources.files("tilewright.machines") / f"{name}.toml").read_text())


def with_caches(machine: Machine, sizes: dict[str, int]) -> Machine:
    """The machine with cache capacities (bytes by level name) of the host."""
    memories = tuple(replace(m, bytes=sizes.get(m.name, m.bytes)) for m in machine.memories)
    return replace(machine, memories=memories)
