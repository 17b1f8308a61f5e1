"""Counted loops and vector helpers over llvmlite's builder."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from llvmlite import ir

from tilewright.targets.llvm.values import Builder, Value, integer_constant, shuffle, splat, undefined

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()
# llvmlite carries no annotations.
_CONSTANT: type[Any] = ir.Constant
_INSTRUCTION: Any = ir.Instruction


@lru_cache(maxsize=4096)
def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def static(value: Value) -> int | None:
    """The value of an integer constant, or None."""
    return value.constant if isinstance(value, _CONSTANT) and isinstance(value.constant, int) else None


def add(builder: Builder, left: Value, right: Value) -> Value:
    a, b = static(left), static(right)
    if a is not None and b is not None:
        return i64(a + b)
    if a == 0:
        return right
    if b == 0:
        return left
    return builder.add(left, right, flags=["nsw"])


def subtract(builder: Builder, left: Value, right: Value) -> Value:
    a, b = static(left), static(right)
    if a is not None and b is not None:
        return i64(a - b)
    return left if b == 0 else builder.sub(left, right, flags=["nsw"])


def multiply(builder: Builder, left: Value, factor: int) -> Value:
    value = static(left)
    if value is not None:
        return i64(value * factor)
    if factor == 1:
        return left
    return builder.mul(left, i64(factor), flags=["nsw"])


@contextmanager
def loop(
    builder: Builder, start: Value, end: Value, step: int, name: str = "i", *, hidden: bool = False
) -> Generator[Value]:
    """`for (i = start; i < end; i += step)`; the body is skipped when it would not run once. `hidden`: LLVM does not
    know that the index moves with the loop, and leaves addresses as they are written."""
    first, last = static(start), static(end)
    if first is not None and last is not None:
        if first >= last:
            raise ValueError("a loop that never runs must not be emitted")
        if first + step >= last:
            yield start
            return
    before = builder.block
    body = builder.append_basic_block(f"{name}.body")
    after = builder.append_basic_block(f"{name}.end")
    if first is not None and last is not None:
        builder.branch(body)
    else:
        builder.cbranch(builder.icmp_signed("<", start, end), body, after)
    builder.position_at_end(body)
    index = builder.phi(I64, name)
    index.add_incoming(start, before)
    yield index
    following = builder.add(index, i64(step), flags=["nsw"])
    if hidden:
        following = opaque(builder, following)
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, end), body, after)
    builder.position_at_end(after)


def minimum(builder: Builder, left: Value, right: Value) -> Value:
    a, b = static(left), static(right)
    if a is not None and b is not None:
        return i64(min(a, b))
    return builder.select(builder.icmp_signed("<", left, right), left, right)


def maximum(builder: Builder, left: Value, right: Value) -> Value:
    a, b = static(left), static(right)
    if a is not None and b is not None:
        return i64(max(a, b))
    return builder.select(builder.icmp_signed(">", left, right), left, right)


def vector(element: ir.Type, lanes: int) -> ir.Type:
    return element if lanes == 1 else ir.VectorType(element, lanes)


def prefetch(builder: Builder, pointer: Value, level: int = 2, *, to_write: bool = False) -> None:
    """Ask the first- or second-level cache for the line that holds `pointer`, which need not be mapped."""
    name = "llvm.prefetch.p0"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [POINTER, I32, I32, I32]), name)
    intent, locality, data = ir.Constant(I32, int(to_write)), ir.Constant(I32, 4 - level), ir.Constant(I32, 1)
    builder.call(function, [pointer, intent, locality, data])


def broadcast(builder: Builder, value: Value, lanes: int) -> Value:
    """A scalar in every lane."""
    if lanes == 1 or isinstance(value.type, ir.VectorType):
        return value
    shape = ir.VectorType(value.type, lanes)
    if (known := integer_constant(value)) is not None:
        return splat(shape, known)
    single = builder.insert_element(undefined(shape), value, ir.Constant(I32, 0))
    return shuffle(builder, single, None, [0] * lanes)


def aligned(builder: Builder, values: Sequence[Value], lanes: int) -> list[Value]:
    """Values all scalar or all vectors of `lanes` lanes."""
    if any(isinstance(v.type, ir.VectorType) for v in values):
        return [broadcast(builder, v, lanes) for v in values]
    return list(values)


def lane_numbers(element: ir.IntType, lanes: int) -> ir.Constant:
    """0, 1, 2, ... as a vector."""
    return ir.Constant(ir.VectorType(element, lanes), [ir.Constant(element, i) for i in range(lanes)])


def entry_alloca(builder: Builder, shape: ir.Type, count: int = 1) -> Value:
    """Stack space allocated once, in the function's entry block."""
    with builder.goto_entry_block():
        return builder.alloca(shape, count)


def offset_pointer(builder: Builder, base: Value, elements: Value, itemsize: int) -> Value:
    """`base + elements * itemsize` bytes."""
    if static(elements) == 0:
        return base
    return builder.gep(base, [multiply(builder, elements, itemsize)], source_etype=I8)


def opaque(builder: Builder, value: Value) -> Value:
    """A copy of an index or a pointer of which LLVM does not know that it moves with a loop.

    Its loop strength reduction takes time that grows with the square of the accesses of a loop, and weighs all of them:
    those at constant distances from such a copy are one to it, and in a loop whose index is a copy there are none.
    """
    return _frozen(builder, value)


def overwritten(builder: Builder, value: Value) -> Value:
    """A copy of what was read from where something is stored next. Of a `select` between what was read and another
    value, stored where it was read, LLVM makes a store under a mask, which some processors are slow at."""
    return _frozen(builder, value)


def _frozen(builder: Builder, value: Value) -> Value:
    frozen: Any = _INSTRUCTION(builder.block, value.type, "freeze", (value,))
    builder._insert(frozen)  # llvmlite's builder has no method for it
    return frozen


def block_index(blocks: Sequence[ir.Block], value: Value) -> int:
    """The index of the block that computes a value, of a function's blocks, which are in the order in which code is
    emitted. Arguments and constants are there from the first one on."""
    return blocks.index(value.parent) if isinstance(value, _INSTRUCTION) else 0


@contextmanager
def where_known(builder: Builder, *values: Value) -> Generator[None]:
    """Emit code as soon as some values are known: outside the loops in which none of them changes. That is the end of
    the block that computes the last of them, or the builder's position if that is its block."""
    blocks = builder.function.blocks
    block = blocks[max((block_index(blocks, value) for value in values), default=0)]
    if block is builder.block:
        yield
    else:
        with builder.goto_block(block):
            yield
