"""Elements of a tile in memory, reached by steps along its dims: what ordered operations read and write."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from llvmlite import ir
from msgspec.structs import replace

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.passes.affine_access import Access, address_terms
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.first_lanes import load_first, store_first
from tilewright.targets.cpu.loops import (
    I1,
    I8,
    I32,
    POINTER,
    add,
    broadcast,
    i64,
    lane_numbers,
    loop,
    multiply,
    offset_pointer,
    static,
)
from tilewright.targets.cpu.masked_memory import gather
from tilewright.targets.llvm.conversions import load_form, narrow, widen
from tilewright.targets.llvm.values import Builder, Value, lanes_of, splat


def plain(dtype: DType) -> DType:
    """The type as which elements are compared and combined: a bool is its byte."""
    return dtypes.u8 if dtype.is_bool else dtype


class Mask(msgspec.Struct, frozen=True):
    """The first lanes of a vector, `count` of them where that is known."""

    lanes: Value
    count: int | None


class Elements(msgspec.Struct, frozen=True):
    """A tile from one of its elements on: the element `i` steps further along dim `d` is `i * strides[d]` away."""

    builder: Builder
    pointer: Value
    dtype: DType
    strides: dict[int, int]

    @staticmethod
    def of(context: FunctionContext, found: Access) -> Elements:
        """The elements of an access whose coordinates are linear, from the nest's origin on."""
        builder = context.builder
        offset: Value = i64(0)
        for term in address_terms(found.type):
            form = found.forms[term.dim]
            if form is None or term.divisor != 1 or term.modulus is not None:
                raise CompilerBug("ordered operations work on row-major buffers")
            start: Value = i64(form.constant)
            for symbol, coefficient in form.symbols:
                start = add(builder, start, multiply(builder, context.scalars[found.symbols[symbol]], coefficient))
            offset = add(builder, offset, multiply(builder, start, term.stride))
        strides = {i.dim: found.stride_along(i.dim, lanes_vary=False) or 0 for i in found.at if i.dim is not None}
        pointer = offset_pointer(builder, context.pointers[found.ref], offset, found.type.dtype.itemsize)
        return Elements(builder, pointer, plain(found.type.dtype), strides)

    @staticmethod
    def temporary(context: FunctionContext, dtype: DType, dim: int, count: int) -> Elements:
        """Memory of this thread for `count` elements along a dim."""
        return Elements(context.builder, context.temporary(count * dtype.itemsize), dtype, {dim: 1})

    def at(self, dim: int, index: Value) -> Elements:
        """The tile from `index` steps along a dim on; of a tile without that dim, itself."""
        offset = multiply(self.builder, index, self.strides.get(dim, 0))
        return replace(self, pointer=offset_pointer(self.builder, self.pointer, offset, self.dtype.itemsize))

    def load(self) -> Value:
        """The element, in register form."""
        return widen(self.builder, self.builder.load(self.pointer, typ=load_form(self.dtype)), self.dtype)

    def store(self, value: Value) -> None:
        """Write the element."""
        self.builder.store(narrow(self.builder, value, self.dtype), self.pointer)

    def load_vector(self, lanes: int, mask: Mask | None = None) -> Value:
        """Neighbours in memory from the element on, in register form; 0 in lanes that the mask leaves out."""
        if lanes == 1:
            return self.load()
        shape = load_form(self.dtype, lanes)
        if mask is None:
            raw = self.builder.load(self.pointer, align=self.dtype.itemsize, typ=shape)
        else:
            raw = load_first(self.builder, self.pointer, mask.lanes, mask.count, shape, self.dtype.itemsize)
        return widen(self.builder, raw, self.dtype)

    def gather(self, dim: int, index: Value) -> Value:
        """The elements that are each lane's i64 of steps along a dim away, in register form."""
        lanes = lanes_of(index.type)
        if lanes == 1:
            return self.at(dim, index).load()
        steps = self.builder.mul(index, splat(index.type, self.strides.get(dim, 0) * self.dtype.itemsize))
        pointers = self.builder.gep(self.pointer, [steps], source_etype=I8)
        pointers.type = ir.VectorType(POINTER, lanes)
        every = splat(ir.VectorType(I1, lanes), 1)
        raw = gather(self.builder, pointers, every, load_form(self.dtype, lanes), self.dtype.itemsize)
        return widen(self.builder, raw, self.dtype)

    def is_adjacent(self, dim: int) -> bool:
        """Whether neighbours along a dim are neighbours in memory."""
        return self.strides.get(dim) == 1

    def store_vector(self, value: Value, mask: Mask | None = None) -> None:
        """Write neighbours in memory, those that the mask lets through."""
        raw = narrow(self.builder, value, self.dtype)
        if mask is None:
            self.builder.store(raw, self.pointer, align=self.dtype.itemsize)
        else:
            store_first(self.builder, raw, self.pointer, mask.lanes, mask.count, self.dtype.itemsize)


def lanes_for(context: FunctionContext, itemsize: int, most: int) -> int:
    """Lanes of a vector of elements of a size, no more than cover `most` elements."""
    return min(context.machine.vector.bytes // itemsize, 1 << max(0, most - 1).bit_length())


def vector_loop(
    builder: Builder,
    count: Value,
    lanes: int,
    body: Callable[[Value, Mask | None], None],
    name: str,
    start: Value | None = None,
) -> None:
    """`body(index, mask)` for every vector of `count` elements, from a whole number of vectors on: whole ones without a
    mask, then what is left, if anything."""
    start = start or i64(0)
    known, first = static(count), static(start)
    whole = i64(known // lanes * lanes) if known is not None else builder.and_(count, i64(-lanes))
    if known is None or first is None or first < known // lanes * lanes:
        with loop(builder, start, whole, lanes, name) as index:
            body(index, None)
    if known is None:
        left = builder.sub(count, whole)
        with builder.if_then(builder.icmp_signed(">", left, i64(0))):
            body(whole, first_lanes(builder, left, lanes))
    elif known % lanes:
        body(whole, first_lanes(builder, i64(known % lanes), lanes))


def first_lanes(builder: Builder, count: Value, lanes: int) -> Mask:
    """The lanes below `count`."""
    known = static(count)
    if known is not None:
        bits = [ir.Constant(I1, int(lane < known)) for lane in range(lanes)]
        return Mask(ir.Constant(ir.VectorType(I1, lanes), bits), min(known, lanes))
    limit = builder.trunc(count, I32)
    return Mask(builder.icmp_signed("<", lane_numbers(I32, lanes), broadcast(builder, limit, lanes)), known)
