"""Words of several steps of the depth, by which an instruction multiplies the right operand of a matmul."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import tensor
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.passes.affine_access import Form, Index, linear_form
from tilewright.primitives import ArrayType


def load_words(
    body: Block,
    source: SSAValue,
    symbols: Sequence[SSAValue],
    map: AffineMap,
    group: int,
    type: ArrayType,
) -> SSAValue:
    """Steps of the depth side by side, the first in the lowest bits. `map` is from (step, column), the first of its
    dims counting words."""
    bits = {2: dtypes.u16, 4: dtypes.u8}[group]
    steps = [_step_bits(body, source, symbols, map, step, group, type, bits) for step in range(group)]
    total = steps[0]
    for step in range(1, group):
        shift = tile.FullOp(value=step * bits.bits, result=tensor(type))
        moved = tile.MapOp(arguments=[steps[step], shift.result], fn="shift_left", outputs=[tensor(type)])
        joined = tile.MapOp(arguments=[total, moved.results[0]], fn="bitwise_or", outputs=[tensor(type)])
        body.add_ops([shift, moved, joined])
        total = joined.results[0]
    return total


def _step_bits(
    body: Block,
    source: SSAValue,
    symbols: Sequence[SSAValue],
    map: AffineMap,
    step: int,
    group: int,
    type: ArrayType,
    bits: DType,
) -> SSAValue:
    """One step of the depth of each word, in the lowest bits of words of their own; 0 beyond the end."""
    dtype = tile.ref_type(source).dtype
    depth = AffineExpr.dimension(0) * group + step
    own = [AffineExpr.symbol(i) for i in range(map.num_symbols)]
    results = tuple(e.replace_dims_and_symbols([depth, AffineExpr.dimension(1)], own) for e in map.results)
    load = tile.LoadOp(
        source=source,
        symbols=symbols,
        map=AffineMap(2, map.num_symbols, results),
        fill=0.0 if dtype.is_float else 0,
        result=tensor(ArrayType(type.shape, dtype)),
    )
    raw = tile.BitcastOp(arguments=[load.result], outputs=[tensor(ArrayType(type.shape, bits))])
    wide = tile.CastOp(arguments=[raw.results[0]], outputs=[tensor(type)])
    body.add_ops([load, raw, wide])
    return wide.results[0]


def starts_at_words(dot: scheduled.DotOp, depth_dim: int, group: int) -> bool:
    """Whether the depth of a matmul starts at a whole word of its right operand."""
    form = linear_form(dot.right_map.results[depth_dim], (Index(0), Index(1)))
    return form is not None and _is_multiple(form, group)


def _is_multiple(start: Form, group: int) -> bool:
    return not any(c % group for c in (start.constant, *(c for _, c in start.symbols)))


def map_in_words(map: AffineMap, depth_dim: int, group: int) -> AffineMap:
    """A map whose coordinate along the depth counts words: it starts at whole words."""
    form = linear_form(map.results[depth_dim], (Index(0), Index(1)))
    if form is None or not _is_multiple(form, group):
        raise CompilerBug("a matmul starts inside a word")
    expression = AffineExpr.dimension(0) + form.constant // group
    for symbol, coefficient in form.symbols:
        expression = expression + AffineExpr.symbol(symbol) * (coefficient // group)
    results = tuple(expression if d == depth_dim else e for d, e in enumerate(map.results))
    return AffineMap(map.num_dims, map.num_symbols, results)
