"""Matmuls."""

from __future__ import annotations

from typing import Any

from tilewright import dtypes
from tilewright.api.array import Array
from tilewright.api.lifting import cast, emit
from tilewright.interop.stablehlo.registry import Node, as_integers, operation


@operation("stablehlo.dot_general")
def dot_general(node: Node, a: Array, b: Array) -> Array:
    """Sums of products over axes of both operands, for each index of the batch axes of both.

    Contractions have full precision, which every `precision_config` and `algorithm` allows.
    """
    numbers: dict[str, Any] = node.get("dot_dimension_numbers")
    axes = [
        as_integers(numbers.get(f"{side}_{kind}_dimensions", ()), f"{side}_{kind}_dimensions")
        for kind in ("batching", "contracting")
        for side in ("lhs", "rhs")
    ]
    return _contracted(node, a, b, *axes)


@operation("stablehlo.dot")
def dot(node: Node, a: Array, b: Array) -> Array:
    """Matmul of vectors and matrices."""
    return _contracted(node, a, b, (), (), (a.ndim - 1,), (0,))


def _contracted(
    node: Node,
    a: Array,
    b: Array,
    left_batch: tuple[int, ...],
    right_batch: tuple[int, ...],
    left: tuple[int, ...],
    right: tuple[int, ...],
) -> Array:
    wanted = node.type.dtype
    # Where operands hold what the result type cannot, the sum is rounded at the end.
    total = wanted if wanted.bits >= max(a.dtype.bits, b.dtype.bits) else a.dtype
    if wanted.is_bool:
        a, b, total = cast(a, dtypes.i32), cast(b, dtypes.i32), dtypes.i32
    elif a.dtype != b.dtype or a.dtype.kind != total.kind:
        a, b = cast(a, total), cast(b, total)
    product = emit(
        "contract",
        a,
        b,
        left_batch=left_batch,
        right_batch=right_batch,
        left_contract=left,
        right_contract=right,
        dtype=total.name,
    )
    return cast(product, wanted)
