"""The protocol of passes, the unit of compilation, and remarks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np
from msgspec import field
from xdsl.dialects.builtin import FileLineColLoc, ModuleOp
from xdsl.ir import Block, Operation

from tilewright.dialects import tile
from tilewright.dialects.func import FuncOp
from tilewright.errors import CompilerBug
from tilewright.machines.machine import Machine
from tilewright.passes.fallbacks import Fallbacks
from tilewright.passes.requested import RequestedSchedules
from tilewright.schedules import Schedule


class Remark(msgspec.Struct, frozen=True):
    """One decision and its reason, for `explain`."""

    pass_name: str
    subject: str
    decision: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pass_name}: {self.subject}: {self.decision} ({self.reason})"


class Origin(msgspec.Struct, frozen=True):
    """Captured arrays, or arrays of one number, that an array was computed from at compile time, and how."""

    compute: Callable[[Sequence[np.ndarray[Any, Any]]], np.ndarray[Any, Any]]
    operands: tuple[str | np.ndarray[Any, Any], ...]


class Unit(msgspec.Struct, eq=False):
    """A program being compiled. `schedules` has those of its kernels by the name that they were lowered under: versions
    of a kernel that later passes make have its schedule."""

    module: ModuleOp
    constants: dict[str, np.ndarray[Any, Any]]
    machine: Machine
    threads: int
    donated: dict[int, int] = field(default_factory=dict)  # input index -> output index that may take its memory
    name: str = "main"
    # Formats that arrays are stored in where it is said, by the number of an input, or of an output behind all inputs.
    storage: dict[int, str] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)  # spent on each kernel, by step
    fallbacks: Fallbacks = field(default_factory=Fallbacks)
    schedules: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    origins: dict[str, Origin] = field(default_factory=dict[str, Origin])  # of constants computed at compile time
    requested: RequestedSchedules = field(default_factory=RequestedSchedules)
    _kernels: dict[str, tile.KernelOp] = field(default_factory=dict[str, tile.KernelOp])  # by name

    @property
    def main(self) -> FuncOp:
        for op in self.module.body.block.ops:
            if isinstance(op, FuncOp) and op.sym_name.data == "main":
                return op
        raise CompilerBug("the module has no function `main`")

    def kernels(self) -> Iterator[tile.KernelOp]:
        for op in list(self.module.body.block.ops):
            if isinstance(op, tile.KernelOp):
                yield op

    def timed_kernels(self, step: str) -> Iterator[tile.KernelOp]:
        """The kernels; what the caller does with each counts as the time of a step."""
        for kernel in self.kernels():
            with self.timed(kernel.sym_name, step):
                yield kernel

    @contextlib.contextmanager
    def timed(self, kernel: str, step: str) -> Generator[None]:
        start = time.perf_counter()
        yield
        steps = self.seconds.setdefault(kernel, {})
        steps[step] = steps.get(step, 0.0) + time.perf_counter() - start

    def kernel(self, name: str) -> tile.KernelOp:
        found = self._kernels.get(name)
        if found is None or found.parent_op() is not self.module or found.sym_name != name:
            self._kernels = {kernel.sym_name: kernel for kernel in self.kernels()}
            found = self._kernels[name]
        return found


class Pass(Protocol):
    """A frozen `msgspec.Struct` whose fields are options. `name` is the file's name with hyphens."""

    name: ClassVar[str]

    def apply(self, unit: Unit) -> None:
        """Change the unit in place."""
        ...


def blocks_of(function: FuncOp) -> Iterator[Block]:
    """The function's block and those of its control flow, outer first."""
    pending = [function.body.block]
    while pending:
        block = pending.pop()
        yield block
        for op in block.ops:
            if op.name in ("array.while", "array.if"):
                pending.extend(region.block for region in op.regions)


def microseconds(seconds: float) -> str:
    """A predicted time, for remarks."""
    return f"{seconds * 1e6:.0f} us"


def where(op: Operation) -> str:
    """The user's line of an operation, for remarks."""
    location = op.location
    if isinstance(location, FileLineColLoc):
        return f"{location.filename.data.rsplit('/', 1)[-1]}:{location.line.data}"
    return ""
