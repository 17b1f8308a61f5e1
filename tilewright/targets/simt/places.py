"""Addresses that differ between the registers of a thread by constants, swizzled or not.

A swizzle exchanges bits below some power of two, and there the offset of an index is a XOR of the offsets of its bits,
if no two parts carry into each other. A register's offset from the thread's own is then split: the bits below that
threads reach are XORed, once for all registers that share them; the rest is added, as a constant that instructions
take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from llvmlite import ir

from tilewright.records import dataclass
from tilewright.targets.simt.emit_memory import Memory, memory_axis, offset_of
from tilewright.targets.simt.fragments import Builder, Value, i32


@dataclass
class Places:
    """Pointers into a memory. `thread`: the index that a thread decides, `reached`: for each dim the bits that it may
    have in any thread."""

    builder: Builder
    memory: Memory
    thread: Sequence[Value]
    reached: Sequence[int]
    _bases: dict[int, Value] = field(default_factory=dict[int, Value])

    def __post_init__(self) -> None:
        layout = self.memory.layout
        self._axis = memory_axis(layout)
        self._own = offset_of(self.builder, layout, self.thread)
        self._below = (1 << max((term.top for term in layout.swizzle), default=0)) - 1
        self._mixed = self._plain = 0
        for dim, bits in enumerate(self.reached):
            for bit in (1 << n for n in range(bits.bit_length()) if bits >> n & 1):
                index = [bit if dim == other else 0 for other in range(len(self.reached))]
                self._mixed |= self._place(index) & self._below
                self._plain |= self._unswizzled(index) & self._below
        terms = layout.linear_terms(self._axis)
        splits = [each for term in terms for each in (term.divisor, term.modulus or 1)]
        self._is_split_by_bits = all(each & (each - 1) == 0 for each in splits)

    def pointer(self, index: Sequence[int]) -> Value:
        """The address of the element whose index is `index` after the thread's."""
        item = self.memory.dtype.itemsize
        if not self._is_apart(index):
            places = [self.builder.add(own, i32(step)) for own, step in zip(self.thread, index, strict=True)]
            offset = offset_of(self.builder, self.memory.layout, places)
            return self._at(self.memory.pointer, self.builder.mul(offset, i32(item)))
        further = self._place(index)
        mixed = further & self._mixed
        if mixed not in self._bases:
            self._bases[mixed] = self.builder.xor(self._own, i32(mixed)) if mixed else self._own
        base = self._at(self.memory.pointer, self.builder.mul(self._bases[mixed], i32(item)))
        return self._at(base, i32((further - mixed) * item)) if further != mixed else base

    def _is_apart(self, index: Sequence[int]) -> bool:
        """Whether an index carries into no thread's, in the index and where the swizzle exchanges bits."""
        if not self._is_split_by_bits or self._unswizzled(index) & self._below & self._plain:
            return False
        return not any(own & bits for own, bits in zip(index, self.reached, strict=True))

    def _place(self, index: Sequence[int]) -> int:
        return self.memory.layout.coordinates(index)[self._axis]

    def _unswizzled(self, index: Sequence[int]) -> int:
        return sum(term.value(index) for term in self.memory.layout.linear_terms(self._axis))

    def _at(self, pointer: Value, offset_bytes: Value) -> Value:
        return self.builder.gep(pointer, [offset_bytes], source_etype=ir.IntType(8))
