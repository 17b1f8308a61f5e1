"""Non-temporal stores of full cache lines to memory that is not read first.

A transpose writes lines far apart. Each has to be loaded into a cache before it is written, and no prefetcher predicts
it: 16 MiB take 1.4 to 1.6 times as long, 64 MiB 3.6 times, and together with reading the result still as long or
longer. Streams of consecutive lines gain nothing, and their next reader would read memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from tilewright.dialects import tile
from tilewright.machines.machine import Machine
from tilewright.passes.affine_access import Access, address_terms
from tilewright.targets.cpu.context import FunctionContext
from tilewright.targets.cpu.loops import I32, I64, i64
from tilewright.targets.cpu.nest_plan import NestPlan, root_indices
from tilewright.targets.llvm.values import Builder, Value


def stores_past_caches(plan: NestPlan, machine: Machine) -> frozenset[tile.StoreOp]:
    """The stores of a nest that go past the caches where their arrays begin with a line."""
    if plan.turned_dim is None or not _has_fence(machine):
        return frozenset()
    stores = [root for root in plan.roots if isinstance(root, tile.StoreOp)]
    return frozenset(s for s in stores if _fills_lines(plan, plan.access(s, root_indices(plan, s)), machine))


def outgrows_cache(found: Access, machine: Machine) -> bool:
    """Whether an array does not stay in the second-level cache."""
    nbytes = found.type.dtype.itemsize * math.prod(found.type.shape)
    return not found.type.space.data and nbytes > machine.memory("l2").bytes


def _has_fence(machine: Machine) -> bool:
    """On x86 other cores may see these stores after later ones, until a fence; elsewhere nothing was measured."""
    return machine.architecture == "x86_64"


def _fills_lines(plan: NestPlan, found: Access, machine: Machine) -> bool:
    """Whether each vector is a line, in an array that begins with one and is not left in the caches."""
    item, line = found.type.dtype.itemsize, machine.memory("l2").line_bytes
    vector = plan.vector_dim
    if vector is None or plan.lanes * item != line or found.lanes or found.stride_along(vector, False) != 1:
        return False
    steps = [term.stride * step for term in address_terms(found.type) for step in _steps(plan, found, term.dim)]
    plain = all(term.divisor == 1 and term.modulus is None for term in address_terms(found.type))
    return plain and all(step * item % line == 0 for step in steps) and outgrows_cache(found, machine)


def _steps(plan: NestPlan, found: Access, position: int) -> Sequence[int]:
    """The stride of a coordinate from one vector to the next, and its start."""
    form = found.forms[position]
    if form is None:
        return [1]
    dims = [coefficient * (plan.lanes if dim == plan.vector_dim else 1) for dim, coefficient in form.dims]
    return [*dims, *(coefficient for _, coefficient in form.symbols), form.constant]


def begin_with_lines(context: FunctionContext, stores: frozenset[tile.StoreOp]) -> Value:
    """Whether the arrays of all these stores begin with a line."""
    builder: Builder = context.builder
    bits: Value = i64(0)
    for store in stores:
        bits = builder.or_(bits, builder.ptrtoint(context.pointers[store.destination], I64))
    below = builder.and_(bits, i64(context.machine.memory("l2").line_bytes - 1))
    return builder.icmp_unsigned("==", below, i64(0))


def store_past_caches(context: FunctionContext, value: Value, pointer: Value) -> None:
    """Store a line, which is to be followed by `fence_stores` before another thread reads it."""
    store = context.builder.store(value, pointer, align=context.machine.memory("l2").line_bytes)
    store.set_metadata("nontemporal", context.builder.module.add_metadata([ir.Constant(I32, 1)]))
    context.past_caches = True


def fence_stores(builder: Builder) -> None:
    """Wait until stores past the caches are seen by all."""
    name = "llvm.x86.sse.sfence"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), []), name)
    builder.call(function, [])
