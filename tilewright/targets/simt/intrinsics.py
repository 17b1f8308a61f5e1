"""The protocol of a chip with warps: the instructions that the shared emitters call and LLVM has no common name for.

A builder carries those of its target (`ChipBuilder`), so that every emitter that has a builder has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from tilewright.dtypes import DType
from tilewright.targets.llvm.values import Builder, Lanes, Value


class Intrinsics(Protocol):
    """Instructions of a chip, each a method that appends them to the builder's block."""

    @property
    def triple(self) -> str:
        """LLVM's name of the target."""
        ...

    @property
    def calling_convention(self) -> str:
        """LLVM's calling convention of kernels."""
        ...

    @property
    def functions(self) -> Mapping[str, Callable[..., Lanes]]:
        """Functions of f32 by instructions of the chip, by their names in `ops.py`."""
        ...

    def divided(self, dividend: Lanes, divisor: Lanes, exactly: bool) -> Lanes:
        """A quotient of f32: rounded correctly or within 2 ULP."""
        ...

    # ---- where a thread is ------------------------------------------------------------------------------------------

    def thread_index(self, builder: Builder) -> Value:
        """The index of the thread in its block (i32)."""
        ...

    def thread_index_anew(self, builder: Builder) -> Value:
        """The index of the thread, read again: LLVM does not keep the first one in a register for it."""
        ...

    def block_index(self, builder: Builder) -> Value:
        """The index of the block in its launch (i32)."""
        ...

    # ---- among the lanes of a warp, and the warps of a block --------------------------------------------------------

    def shuffle_xor(self, builder: Builder, word: Value, lanes: int) -> Value:
        """The word (i32) of the lane whose index differs by an XOR with `lanes`."""
        ...

    def shuffle(self, builder: Builder, word: Value, lane: Value) -> Value:
        """The word (i32) of a lane, by its index."""
        ...

    def barrier(self, builder: Builder, scope: str) -> None:
        """A barrier of all warps of a block, or of all lanes of a warp."""
        ...

    # ---- conversions ------------------------------------------------------------------------------------------------

    def converts(self, builder: Builder, dtype: DType) -> bool:
        """Whether instructions convert between f32 and a float of 8 bits."""
        ...

    def rounded_code(self, builder: Builder, value: Value, dtype: DType) -> Value:
        """The codes of f32 numbers, one or a vector, in a type that the chip converts, rounded to nearest even."""
        ...

    def number_of(self, builder: Builder, code: Value, dtype: DType) -> Value:
        """The f32 numbers of codes, one or a vector, of a type that the chip converts."""
        ...

    def rounded_to_tf32(self, builder: Builder, value: Value) -> Value:
        """f32 numbers, one or a vector, rounded to tf32."""
        ...

    # ---- hints ------------------------------------------------------------------------------------------------------

    def opaque(self, builder: Builder, value: Value) -> Value:
        """A copy of an i32 that LLVM knows nothing of."""
        ...
