"""Rules of reductions, running sums and contractions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import cast, emit, reshape, transpose
from tilewright.interop.onnx.gradient.rules import Cotangents, Step, rule, spread


@rule("reduce")
def _reduce(step: Step) -> Cotangents:
    (x,) = step.operands
    fn, axes, g = step.attribute("fn"), step.attribute("axes"), step.cotangent
    kept = [d for d in range(x.ndim) if d not in axes]
    if fn == "add":
        return [spread(g, x.shape, kept)]
    if fn in ("maximum", "minimum"):
        # Equal extremes share what the result gives.
        found = tw.astype(tw.equal(x, spread(step.results[0], x.shape, kept)), x.dtype)
        count = tw.sum(found, tuple(axes), dtype=x.dtype)
        return [found * spread(g / count, x.shape, kept)]
    if fn == "multiply":
        return [_of_product(x, g, kept, list(axes))]
    raise step.unsupported(f"the primitive `reduce` by `{fn}`")


def _of_product(x: Array, g: Array, kept: Sequence[int], axes: Sequence[int]) -> Array:
    """The gradient of a reduction by multiplication: for each element the exclusive cumulative product of the elements
    before it, times that of those after it."""
    order = [*kept, *axes]
    moved = transpose(x, order)
    rows = reshape(moved, (math.prod(moved.shape[: len(kept)]), math.prod(moved.shape[len(kept) :])))
    count = rows.shape[1]
    before = tw.cumulative_prod(rows, axis=1, dtype=x.dtype, include_initial=True)[:, :count]
    turned = tw.cumulative_prod(tw.flip(rows, axis=1), axis=1, dtype=x.dtype, include_initial=True)[:, :count]
    others = reshape(before * tw.flip(turned, axis=1), moved.shape)
    return spread(g, x.shape, kept) * transpose(others, np.argsort(order).tolist())


@rule("scan")
def _scan(step: Step) -> Cotangents:
    if step.attribute("fn") != "add":
        raise step.unsupported(f"the primitive `scan` by `{step.attribute('fn')}`")
    _, *initial = step.operands
    g, axis = step.cotangent, step.attribute("axis")
    later = emit("scan", g, fn="add", axis=axis, reverse=not step.attribute("reverse"))
    return [later, *(tw.sum(cast(g, start.dtype), axis, dtype=start.dtype) for start in initial)]


@rule("contract")
def _contract(step: Step) -> Cotangents:
    if step.node.attributes.get("part") is not None:
        raise step.unsupported("the primitive `contract` in parts")
    left, right = step.operands
    g = step.cotangent
    left_batch, right_batch = list(step.attribute("left_batch")), list(step.attribute("right_batch"))
    left_summed, right_summed = list(step.attribute("left_contract")), list(step.attribute("right_contract"))
    left_free = [d for d in range(left.ndim) if d not in (*left_batch, *left_summed)]
    right_free = [d for d in range(right.ndim) if d not in (*right_batch, *right_summed)]
    batch = list(range(len(left_batch)))
    rows = [len(batch) + n for n in range(len(left_free))]
    columns = [len(batch) + len(rows) + n for n in range(len(right_free))]
    of_left = _product(g, right, batch, right_batch, columns, right_free)
    of_right = _product(left, g, left_batch, batch, left_free, rows)
    # The summed axes come in the order in which the other operand has them.
    by_right = [left_summed[n] for n in np.argsort(right_summed)]
    by_left = [right_summed[n] for n in np.argsort(left_summed)]
    return [
        cast(transpose(of_left, np.argsort([*left_batch, *left_free, *by_right]).tolist()), left.dtype),
        cast(transpose(of_right, np.argsort([*right_batch, *by_left, *right_free]).tolist()), right.dtype),
    ]


def _product(
    a: Array,
    b: Array,
    a_batch: Sequence[int],
    b_batch: Sequence[int],
    a_summed: Sequence[int],
    b_summed: Sequence[int],
) -> Array:
    """A contraction in the wider type of the two."""
    dtype = max(a.dtype, b.dtype, key=lambda each: each.bits)
    return emit(
        "contract",
        cast(a, dtype),
        cast(b, dtype),
        left_batch=tuple(a_batch),
        right_batch=tuple(b_batch),
        left_contract=tuple(a_summed),
        right_contract=tuple(b_summed),
        dtype=dtype.name,
    )
