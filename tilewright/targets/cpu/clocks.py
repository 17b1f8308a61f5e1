"""How long each kernel of a program takes, by the processor's own counter, read around every call in `main`.

The counts are kept in an array that the program has as one more constant: pairs of cycles and calls, those of all of
`main` first. How long a cycle of the counter is follows from the time of the whole calls.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from llvmlite import ir

from tilewright.cached import cached_property
from tilewright.runtime.abi import ALIGNMENT_BYTES
from tilewright.targets.cpu.loops import I64, i64, offset_pointer
from tilewright.targets.llvm.values import Builder, Value

# What the array of counts is called among the constants.
COUNTS = "tw_counts"
_COUNTER = "llvm.readcyclecounter"


class Clocks:
    """Counts for the kernels of a program, in the order in which their calls are printed."""

    def __init__(self) -> None:
        self._names: list[str] = []

    @cached_property
    def counts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The array, when the program is printed; its location is where the program has its constants."""
        size = 2 * (len(self._names) + 1)
        room = np.zeros(size + ALIGNMENT_BYTES // 8, np.int64)
        start = -room.ctypes.data % ALIGNMENT_BYTES // 8
        return room[start : start + size].reshape(-1, 2)

    @contextlib.contextmanager
    def counted(self, builder: Builder, counts: Value, kernel: str | None) -> Generator[None]:
        """Count what is printed in the `with`, as that of a kernel or as all."""
        if kernel is not None and kernel not in self._names:
            self._names.append(kernel)
        place = 0 if kernel is None else 1 + self._names.index(kernel)
        start = _now(builder)
        yield
        _add(builder, counts, 2 * place, builder.sub(_now(builder), start))
        _add(builder, counts, 2 * place + 1, i64(1))

    def measured(self, call: Callable[[], object], repeat: int) -> dict[str, tuple[float, float]]:
        """Calls, and seconds in all, of each kernel in one of the calls that are made."""
        call()
        self.counts[:] = 0
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        tick_s = (time.perf_counter() - start) / max(1, int(self.counts[0, 0]))
        each = zip(self._names, self.counts[1:].tolist(), strict=True)
        return {name: (calls / repeat, cycles * tick_s / repeat) for name, (cycles, calls) in each}


def _add(builder: Builder, counts: Value, index: int, amount: Value) -> None:
    pointer = offset_pointer(builder, counts, i64(index), 8)
    builder.store(builder.add(builder.load(pointer, typ=I64), amount), pointer)


def _now(builder: Builder) -> Value:
    function = builder.module.globals.get(_COUNTER)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(I64, []), _COUNTER)
    return builder.call(function, [])
