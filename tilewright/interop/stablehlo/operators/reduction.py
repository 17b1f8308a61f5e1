"""Reductions by a region: by a primitive where the region is a function that has one, else by halves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import ops
from tilewright.api import lifting
from tilewright.api.array import Array
from tilewright.api.complex_array import ComplexArray
from tilewright.api.lifting import broadcast, cast, emit, full
from tilewright.interop.stablehlo.ir import Block
from tilewright.interop.stablehlo.operators.elementwise import mapped
from tilewright.interop.stablehlo.operators.manipulation import sliced
from tilewright.interop.stablehlo.regions import arg_reduction, combiner
from tilewright.interop.stablehlo.registry import Node, operation


@operation("stablehlo.reduce")
def reduce(node: Node, *operands: Array) -> Any:
    """Elements along axes, and a first one, combined by a region."""
    inputs, starts = halves(node, operands)
    axes = node.integers("dimensions")
    (region,) = node.regions
    fn = combiner(region, inputs[0].dtype) if len(inputs) == 1 else None
    if fn is not None:
        return with_start(fn, emit("reduce", inputs[0], fn=fn, axes=axes) if axes else inputs[0], starts[0])
    extreme = _extreme(node, inputs, starts, axes)
    return extreme if extreme is not None else _by_halves(node, inputs, starts, axes)


def halves(node: Node, operands: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Arrays, and a scalar for each of them."""
    count = len(operands) // 2
    inputs, starts = list(operands[:count]), list(operands[count:])
    if not inputs or len(starts) != count or any(x.shape != inputs[0].shape for x in inputs):
        raise node.malformed("the operands are not arrays of one shape and as many scalars")
    return inputs, starts


def is_identity(fn: str, start: Array) -> bool:
    """Whether a value is known to change nothing when it is combined."""
    if isinstance(start, ComplexArray):
        imaginary = "add" if fn == "multiply" else fn
        return fn in ("add", "multiply") and is_identity(fn, start.real) and is_identity(imaginary, start.imag)
    identity = ops.FUNCTIONS[fn].identity
    producer = start.value.producer
    if identity is None or producer is None or producer.op != "constant" or producer.attributes["resource"]:
        return False
    return bool(producer.attributes["value"] == identity(start.dtype))


def with_start(fn: str, result: Array, start: Array) -> Array:
    """A result combined with a first element."""
    return result if is_identity(fn, start) else mapped(fn, result, broadcast(start, result.shape))


def _extreme(
    node: Node, inputs: Sequence[Array], starts: Sequence[Array], axes: tuple[int, ...]
) -> tuple[Array, ...] | None:
    """The extreme and its index; None where that is not what is computed."""
    (region,) = node.regions
    fn = arg_reduction(region, node.types) if len(inputs) == 2 and len(axes) == 1 else None
    if fn is None or not is_identity(fn, starts[0]) or inputs[0].shape[axes[0]] == 0:
        return None
    producer = inputs[1].value.producer
    if producer is None or producer.op != "iota" or producer.attributes["axis"] != axes[0]:
        return None
    start = starts[1].value.producer
    if start is None or start.op != "constant" or start.attributes["value"] != 0:
        return None
    places = emit("arg_reduce", inputs[0], fn=fn, axis=axes[0])
    return emit("reduce", inputs[0], fn=fn, axes=axes), cast(places, inputs[1].dtype)


def combined(node: Node, region: Block, left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    """The results of a scalar region, computed on arrays."""
    shape = right[0].shape
    results = node.lift(region, *(broadcast(x, shape) for x in left), *right)
    return [broadcast(result, shape) for result in results]


def _by_halves(
    node: Node, inputs: Sequence[Array], starts: Sequence[Array], axes: tuple[int, ...]
) -> tuple[Array, ...]:
    """Neighbours are combined until one is left."""
    (region,) = node.regions
    rank = inputs[0].ndim
    rest = [d for d in range(rank) if d not in axes]
    sizes = tuple(inputs[0].shape[d] for d in rest)
    count = 1
    for axis in axes:
        count *= inputs[0].shape[axis]
    if count == 0:
        return tuple(broadcast(start, sizes) for start in starts)
    rows = [lifting.reshape(lifting.transpose(x, [*axes, *rest]), (count, *sizes)) for x in inputs]
    while count > 1:
        pairs = count // 2
        left, right, odd = (
            [_rows(x, start, limit, step) for x in rows]
            for start, limit, step in ((0, 2 * pairs, 2), (1, 2 * pairs, 2), (2 * pairs, count, 1))
        )
        made = combined(node, region, left, right)
        rows = made if count % 2 == 0 else [emit("concat", m, o, axis=0) for m, o in zip(made, odd, strict=True)]
        count = pairs + count % 2
    return tuple(combined(node, region, starts, [lifting.reshape(x, sizes) for x in rows]))


def _rows(x: Array, start: int, limit: int, step: int) -> Array:
    rest = x.shape[1:]
    return sliced(x, (start, *(0,) * len(rest)), (limit, *rest), (step, *(1,) * len(rest)))


@operation("stablehlo.map")
def map_(node: Node, *operands: Array) -> Array:
    """A region over scalars applied to each element."""
    (region,) = node.regions
    (result,) = node.lift(region, *operands)
    return broadcast(result, node.type.shape)


def zeros(node: Node) -> Array:
    """An array of zeros, as the result is."""
    return full(node.type.shape, 0, node.type.dtype)
