"""Loads and stores of the first lanes of a vector: under a mask or, where their number is known, as two shorter
vectors, one of the first of these lanes and one that ends with the last of them.

Without AVX-512, vectors of 8 and 16 bits have no masks, and a store of 32 bits under one takes several times as long.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.targets.cpu.loops import I32, broadcast, i64, offset_pointer
from tilewright.targets.cpu.masked_memory import masked_load, masked_store, store_first_lane
from tilewright.targets.llvm.values import Builder, Value, element_of, has_features, lanes_of, shuffle

# Elements below this have no masks on some machines.
_NARROW_BYTES = 4


def load_first(
    builder: Builder, pointer: Value, mask: Value, count: int | None, shape: ir.Type, itemsize: int
) -> Value:
    """A vector of the elements that a mask lets through, 0 in other lanes. `count`: how many first ones these are, if
    that is known."""
    if count is not None and itemsize < _NARROW_BYTES:
        return _load_pieces(builder, pointer, count, shape, itemsize)
    return masked_load(builder, pointer, broadcast(builder, mask, lanes_of(shape)), shape, itemsize)


def store_first(builder: Builder, value: Value, pointer: Value, mask: Value, count: int | None, itemsize: int) -> None:
    """Store the elements of a vector that a mask lets through. `count`: how many first ones these are, if that is
    known."""
    is_slow = itemsize < _NARROW_BYTES or not has_features(builder, "avx512vl")
    if count == 1:
        store_first_lane(builder, value, pointer, itemsize)
    elif count is not None and is_slow:
        _store_pieces(builder, value, pointer, count, itemsize)
    else:
        masked_store(builder, value, pointer, broadcast(builder, mask, lanes_of(value.type)), itemsize)


def _pieces(count: int) -> tuple[tuple[int, ...], int]:
    """The starts of vectors that hold the first `count` lanes, and their lanes, a power of two. Vectors beyond the end
    of a row have none."""
    if count < 1:
        return (), 1
    lanes = 1 << (count.bit_length() - 1)
    return ((0,) if lanes == count else (0, count - lanes)), lanes


def _load_pieces(builder: Builder, pointer: Value, count: int, shape: ir.Type, itemsize: int) -> Value:
    """A vector of `count` elements, 0 in the lanes after them."""
    lanes, result = lanes_of(shape), ir.Constant(shape, None)
    starts, size = _pieces(count)
    if starts and size == 1:
        single = builder.load(pointer, align=itemsize, typ=element_of(shape))
        return builder.insert_element(result, single, ir.Constant(I32, 0))
    for start in starts:
        at = offset_pointer(builder, pointer, i64(start), itemsize)
        part = builder.load(at, align=itemsize, typ=ir.VectorType(element_of(shape), size))
        wide = shuffle(builder, part, None, [min(lane, size - 1) for lane in range(lanes)])
        places = [lanes + lane - start if start <= lane < start + size else lane for lane in range(lanes)]
        result = shuffle(builder, result, wide, places)
    return result


def _store_pieces(builder: Builder, value: Value, pointer: Value, count: int, itemsize: int) -> None:
    """Store the first `count` elements of a vector, not only one."""
    starts, size = _pieces(count)
    for start in starts:
        part = shuffle(builder, value, None, range(start, start + size))
        builder.store(part, offset_pointer(builder, pointer, i64(start), itemsize), align=itemsize)
