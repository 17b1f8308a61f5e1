"""Loads of elements anywhere in memory: one for each lane of a vector.

Gather instructions take at least as long on Zen 4, where this was measured, and more on Intel's chips with the
mitigation of Gather Data Sampling; there are none for elements of 8 and 16 bits, nor on AArch64 without SVE.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.targets.cpu.loops import I32, offset_pointer
from tilewright.targets.llvm.values import Builder, Value, element_of


def load_lanes(builder: Builder, base: Value, offsets: Value, shape: ir.Type, itemsize: int, count: int) -> Value:
    """A vector of the elements at `base + offsets` in the first `count` lanes, 0 in the others."""
    result: Value = ir.Constant(shape, None)
    for n in range(count):
        lane = ir.Constant(I32, n)
        pointer = offset_pointer(builder, base, builder.extract_element(offsets, lane), itemsize)
        element = builder.load(pointer, align=itemsize, typ=element_of(shape))
        result = builder.insert_element(result, element, lane)
    return result
