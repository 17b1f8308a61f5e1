"""Multiply vectors of words and add to sums: a word holds a few neighbours along the depth, which share a sum.

Source: Intel 64 instruction set reference, VDPBF16PS. It rounds each sum to nearest, takes subnormal operands for zeros
and gives zeros for subnormal sums, whatever the thread's state of floating point is.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.machines.machine import MatrixAtom
from tilewright.targets.llvm.values import BFLOAT, Builder, Value, lanes_of

_INTRINSICS = {"vdpbf16ps": "llvm.x86.avx512bf16.dpbf16ps.512"}


def multiply_words(builder: Builder, instruction: MatrixAtom, left: Value, right: Value, total: Value) -> Value:
    """Multiply the parts of words in pairs, and add all of a word's to its lane of `total`."""
    shape = ir.VectorType(BFLOAT, lanes_of(total.type) * instruction.group)
    name = _INTRINSICS[instruction.name]
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(total.type, [total.type, shape, shape]), name)
    return builder.call(function, [total, builder.bitcast(left, shape), builder.bitcast(right, shape)])
