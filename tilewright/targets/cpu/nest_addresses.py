"""Addresses of linear accesses of a loop nest: those at constant distances from each other are computed once.

Windows of an array, the unrolled parts of a loop and what is asked for ahead differ in a constant number of bytes. In a
block of code they share a pointer, which makes the code shorter.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from xdsl.ir import SSAValue

from tilewright.passes.affine_access import Access, address_terms
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.loops import block_index, i64, multiply, offset_pointer, opaque, static, where_known
from tilewright.targets.cpu.nest_position import Position
from tilewright.targets.llvm.values import Value

_INSTRUCTION: type[Any] = ir.Instruction  # llvmlite carries no annotations


class NestAddresses:
    """The pointers that accesses share, by block of code, ref and the terms of their offsets that are not constant."""

    def __init__(self, context: FunctionContext, position: Position) -> None:
        self.context = context
        self.position = position
        self._sums: dict[tuple[Value, Value, int], Value] = {}
        self._pointers: dict[tuple[object, ...], Value] = {}
        self._opaque: set[tuple[object, ...]] = set()

    def first(self, found: Access) -> Value | None:
        """The address of the first lane; None where it is not linear."""
        offset = self._offset(found)
        if offset is None:
            return None
        constant, terms = offset
        if not terms:
            return offset_pointer(self.context.builder, self.context.pointers[found.ref], i64(constant), 1)
        return offset_pointer(self.context.builder, self._shared(found.ref, terms), i64(constant), 1)

    def _shared(self, ref: SSAValue, terms: dict[Value, int]) -> Value:
        """The address at an offset without a constant. From the second access on its motion is hidden from LLVM, which
        then weighs the accesses at constant distances as one."""
        builder = self.context.builder
        key = (builder.block, ref, frozenset(terms.items()))
        if key in self._opaque:
            return self._pointers[key]
        if key in self._pointers:
            self._opaque.add(key)
            self._pointers[key] = opaque(builder, self._pointers[key])
            return self._pointers[key]
        self._pointers[key] = self._sum(self.context.pointers[ref], terms)
        return self._pointers[key]

    def _sum(self, pointer: Value, terms: dict[Value, int]) -> Value:
        """A pointer and terms, added one after the other, each where it is known: the code of a loop adds what changes
        in it alone."""
        builder = self.context.builder
        blocks = builder.function.blocks
        for value in sorted(terms, key=lambda value: block_index(blocks, value)):
            key = (pointer, value, terms[value])
            if key not in self._sums:
                with where_known(builder, pointer, value):
                    self._sums[key] = offset_pointer(builder, pointer, multiply(builder, value, terms[value]), 1)
            pointer = self._sums[key]
        return pointer

    def _offset(self, found: Access) -> tuple[int, dict[Value, int]] | None:
        """The offset of the first lane in bytes: a constant and factors of values; None where it is not linear."""
        constant = 0
        factors: dict[Value, int] = {}
        itemsize = found.type.dtype.itemsize
        for term in address_terms(found.type):
            form = found.forms[term.dim]
            if term.stride == 0:
                continue
            if form is None or term.divisor != 1 or term.modulus is not None or found.varying_lanes(term.dim):
                return None
            scale = term.stride * itemsize
            constant += form.constant * scale
            values = [(self.context.scalars[found.symbols[s]], c) for s, c in form.symbols]
            values += [(self.position.index[dim], c) for dim, c in form.dims]
            for value, coefficient in values:
                base, distance = _apart(value)
                constant += distance * coefficient * scale
                if base is not None:
                    factors[base] = factors.get(base, 0) + coefficient * scale
        return constant, {value: factor for value, factor in factors.items() if factor}


def _apart(value: Value) -> tuple[Value | None, int]:
    """A value as another one, if any, and a constant that is added to it."""
    known = static(value)
    if known is not None:
        return None, known
    if isinstance(value, _INSTRUCTION) and value.opname == "add":
        distance = static(value.operands[1])
        if distance is not None:
            return value.operands[0], distance
    return value, 0
