"""Operands that a matmul reads from their source: padding of the depth is skipped, and a plain window of an array is
read in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, OpResult, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import insert_after
from tilewright.errors import CompilerBug
from tilewright.passes.affine_access import Index, linear_form
from tilewright.passes.vectors.nest_writer import is_place

# The fill whose map counts along the depth, and its limit.
DepthBound = tuple[tile.FillPaddingOp, int]


def strip_depth_padding(value: SSAValue, depth_dim: int) -> tuple[SSAValue, DepthBound | None]:
    """An operand without the zero fill of its depth tail: the matmul skips those positions instead."""
    bound = depth_bound(value, depth_dim)
    if bound is None:
        return value, None
    return _transposed_like(value, bound[0].source), bound


def depth_bound(value: SSAValue, depth_dim: int) -> DepthBound | None:
    """The zero fill of an operand's depth tail."""
    inner, dim = value, depth_dim
    if isinstance(inner.owner, tile.TransposeOp):
        dim = inner.owner.permutation[depth_dim]
        inner = inner.owner.operands[0]
    op = inner.owner
    if not isinstance(op, tile.FillPaddingOp) or op.value != 0:
        return None
    map = op.map
    if map.results[0] != _counting(map, dim) or any(not is_place(s) for s in op.symbols):
        return None
    return op, op.limit


def reads_its_array(op: tile.DotOp, columns: int) -> bool:
    """Whether the right operand of a matmul is a window of an array that the matmul reads in place, the array being
    packed as a whole in panels of `columns`."""
    bound, own = depth_bound(op.left, 1), depth_bound(op.right, 0)
    permutation, value = untransposed(op.right)
    if own is not None and same_bound(bound, own):
        value = own[0].source
    return _window(value, permutation, 0, array_type(op.right).shape[0], columns, bound) is not None


def _transposed_like(transposed: SSAValue, operand: SSAValue) -> SSAValue:
    """A transpose on another operand, next to the original."""
    op = transposed.owner
    if not isinstance(op, tile.TransposeOp):
        return operand
    copy = op.clone()
    copy.operands = [operand]
    insert_after(op, copy)
    return copy.results[0]


def _counting(map: AffineMap, dim: int) -> AffineExpr:
    """The expression of the map if it counts along `dim` by ones from a start made of symbols."""
    result = map.results[0]
    form = linear_form(result, tuple(Index(d) for d in range(map.num_dims)))
    return result if form is not None and form.dims == ((dim, 1),) else AffineExpr.constant(-1)


def same_bound(a: DepthBound | None, b: DepthBound) -> bool:
    """Whether two operands' depths end at the same position."""
    if a is None or a[1] != b[1] or list(a[0].symbols) != list(b[0].symbols):
        return False
    return shifted(a[0].map, 0, len(a[0].symbols)) == shifted(b[0].map, 0, len(b[0].symbols))


def shifted(map: AffineMap, start: int, total: int) -> AffineMap:
    """The map's start (its dims at 0), with symbols moved up by `start`."""
    symbols = [AffineExpr.symbol(start + i) for i in range(map.num_symbols)]
    results = tuple(e.replace_dims_and_symbols([AffineExpr.constant(0)] * map.num_dims, symbols) for e in map.results)
    return AffineMap(0, total, results)


def with_symbols_from(map: AffineMap, start: int) -> AffineMap:
    """The map with its symbols moved up by `start`."""
    symbols = [AffineExpr.symbol(start + i) for i in range(map.num_symbols)]
    dims = [AffineExpr.dimension(i) for i in range(map.num_dims)]
    results = tuple(e.replace_dims_and_symbols(dims, symbols) for e in map.results)
    return AffineMap(map.num_dims, start + map.num_symbols, results)


def right_window(value: SSAValue, micro_columns: int, bound: DepthBound | None) -> tuple[tile.LoadOp, AffineMap] | None:
    """The load that feeds a right operand that is a plain window of an array starting at a whole panel, and its map
    from (depth, column)."""
    depth = array_type(value).shape[0]
    permutation, value = untransposed(value)
    return _window(value, permutation, 0, depth, micro_columns, bound)


def left_window(value: SSAValue, bound: DepthBound | None, whole: int = 1) -> tuple[tile.LoadOp, AffineMap] | None:
    """The load that feeds a left operand that is a plain window of an array with the depth running inside, from a
    multiple of `whole` rows on and as many, and its map from (row, depth)."""
    rows, depth = array_type(value).shape
    permutation, inner = untransposed(value)
    found = _window(inner, permutation, 1, depth, whole, bound)
    if found is None:
        return None
    forms = [linear_form(e, (Index(0), Index(1))) for e in found[1].results]
    sizes = tile.ref_type(found[0].source).shape
    lengths = [rows, *(n for n, form in zip(sizes, forms, strict=True) if form is not None and form.coefficient(0))]
    inside = forms[-1] is not None and forms[-1].coefficient(1)
    return found if inside and not any(n % whole for n in lengths) else None


def any_left_window(value: SSAValue, bound: DepthBound | None) -> tuple[tile.LoadOp, AffineMap] | None:
    """The load that feeds a left operand that is a plain window of an array, and its map from (row, depth)."""
    permutation, inner = untransposed(value)
    return _window(inner, permutation, 1, array_type(value).shape[1], 1, bound)


def untransposed(value: SSAValue) -> tuple[Sequence[int], SSAValue]:
    """A value without its transpose, and its permutation."""
    if isinstance(value.owner, tile.TransposeOp):
        return value.owner.permutation, value.owner.operands[0]
    return (0, 1), value


def _window(
    value: SSAValue, permutation: Sequence[int], depth_dim: int, depth: int, multiple: int, bound: DepthBound | None
) -> tuple[tile.LoadOp, AffineMap] | None:
    """The load that feeds a tile whose dim `depth_dim` is `depth` long, if its other dim starts at a multiple."""
    if isinstance(value.owner, tile.CastOp):
        value = value.owner.operands[0]
    load = value.owner
    if not isinstance(load, tile.LoadOp) or any(not isinstance(s.type, IndexType) for s in load.symbols):
        return None
    inverse: list[AffineExpr] = [AffineExpr.constant(0)] * 2
    for position, source in enumerate(permutation):
        inverse[source] = AffineExpr.dimension(position)
    map = load.map
    symbols = [AffineExpr.symbol(i) for i in range(map.num_symbols)]
    results = tuple(e.replace_dims_and_symbols(inverse, symbols) for e in map.results)
    if depth_dim == 1 and _is_overlapping(load, results, array_type(value).shape):
        return load, AffineMap(2, map.num_symbols, results)
    if not _is_window(results, 1 - depth_dim, multiple) or not _stays_inside(load, results, depth_dim, depth, bound):
        return None
    return load, AffineMap(2, map.num_symbols, results)


def _is_overlapping(load: tile.LoadOp, results: Sequence[AffineExpr], shape: Sequence[int]) -> bool:
    """Whether the rows of a window are runs of one dim of an array, which may overlap, all of it inside."""
    spans: list[tuple[int, int]] = []
    runs: list[tuple[tuple[int, int], ...]] = []
    for expression in results:
        form = linear_form(expression, (Index(0), Index(1)))
        if form is None or any(coefficient < 1 for _, coefficient in form.dims):
            return False
        terms = [(load.symbols[position], coefficient) for position, coefficient in form.symbols]
        low, high = span(form.constant, terms)
        spans.append((low, high + sum(coefficient * (shape[dim] - 1) for dim, coefficient in form.dims)))
        runs += [form.dims] if form.dims else []
    inside = zip(spans, tile.ref_type(load.source).shape, strict=True)
    return (
        [tuple(dim for dim, _ in run) for run in runs] == [(0, 1)]
        and dict(runs[0])[1] == 1
        and all(low >= 0 and high < size for (low, high), size in inside)
    )


def _stays_inside(
    load: tile.LoadOp, results: Sequence[AffineExpr], depth_dim: int, depth: int, bound: DepthBound | None
) -> bool:
    """Whether a matmul may read the array itself: rows and columns beyond the end are zeros there, and it skips depths
    beyond its bound."""
    if load.fill is not None and load.fill != 0:
        return False
    for expression, size in zip(results, tile.ref_type(load.source).shape, strict=True):
        form = linear_form(expression, (Index(0), Index(1)))
        if form is None:
            return False
        terms = [(load.symbols[position], coefficient) for position, coefficient in form.symbols]
        low, high = span(form.constant, terms)
        if form.coefficient(depth_dim):
            high += depth - 1
            high = high if bound is None else min(high, _last_position(form.constant, terms, bound))
        if low < 0 or (high >= size and not form.coefficient(1 - depth_dim)):
            return False
    return True


def _last_position(constant: int, terms: Sequence[tuple[SSAValue, int]], bound: DepthBound) -> int:
    """The largest coordinate of a depth that the bound lets through, the first depth's being `constant` and `terms`."""
    fill, limit = bound
    start = linear_form(fill.map.results[0], (Index(None), Index(None)))
    if start is None:
        raise CompilerBug("the depth of a matmul is not linear")
    beyond = [(fill.symbols[position], -coefficient) for position, coefficient in start.symbols]
    return span(constant - start.constant, [*terms, *beyond])[1] + limit - 1


def span(constant: int, terms: Sequence[tuple[SSAValue, int]]) -> tuple[int, int]:
    """The smallest and the largest sum of a constant and multiples of index scalars."""
    coefficients: Counter[SSAValue] = Counter()
    for symbol, coefficient in terms:
        coefficients[symbol] += coefficient
    last = [coefficient * (_trips(symbol) - 1) for symbol, coefficient in coefficients.items()]
    return constant + sum(min(0, n) for n in last), constant + sum(max(0, n) for n in last)


def _trips(index: SSAValue) -> int:
    """How many values a grid index or loop counter has."""
    if not isinstance(index, BlockArgument):
        raise CompilerBug("an index scalar that no grid or loop defines")
    owner = index.owner.parent_op()
    if isinstance(owner, tile.ForOp):
        return owner.trips
    if isinstance(owner, tile.KernelOp):
        return owner.grid[index.index - len(owner.effects)]
    raise CompilerBug("an index scalar that no grid or loop defines")


def _is_window(results: Sequence[AffineExpr], free_dim: int, multiple: int, dims: int = 2) -> bool:
    """One array dimension runs along each of the `dims`, by ones, that along the free one from a multiple on."""
    runs: dict[int, int] = {}
    at = (Index(0), Index(1))
    for expression in results:
        form = linear_form(expression, at)
        if form is None or len(form.dims) > 1:
            return False
        for dim, coefficient in form.dims:
            if coefficient != 1 or dim in runs:
                return False
            runs[dim] = 1
            offsets = [form.constant, *(c for _, c in form.symbols)]
            if dim == free_dim and any(o % multiple for o in offsets):
                return False
    return set(runs) == set(range(dims))


# How far an array goes on from a window's start along one dim: its size, and the start as a constant and multiples of
# index scalars.
Extent = tuple[int, int, frozenset[tuple[SSAValue, int]]]


def extent_along(map: AffineMap, symbols: Sequence[SSAValue], ref: tile.RefType, dim: int) -> Extent | None:
    """The extent of the array dimension that runs along `dim` of a window."""
    for expression, size in zip(map.results, ref.shape, strict=True):
        form = linear_form(expression, (Index(0), Index(1)))
        if form is not None and form.coefficient(dim):
            return size, form.constant, frozenset((symbols[s], c) for s, c in form.symbols)
    return None


def result_store(result: OpResult, columns: int) -> tile.StoreOp | None:
    """The only use of a matmul's result if that is a plain window of an array of its type, its columns side by side
    from a multiple of `columns` on: the matmul may write it itself."""
    users = [use.operation for use in result.uses]
    store = users[0] if len(users) == 1 else None
    if not isinstance(store, tile.StoreOp) or store.parent_block() is not result.owner.parent_block():
        return None
    ref = tile.ref_type(store.destination)
    if ref.dtype != array_type(result).dtype or any(not isinstance(s.type, IndexType) for s in store.symbols):
        return None
    results, last_dim = store.map.results, store.map.num_dims - 1
    if not _is_window(results, last_dim, columns, store.map.num_dims) or not _starts_inside(store):
        return None
    last = linear_form(results[-1], (Index(0), Index(1)))
    return store if last is not None and last.coefficient(last_dim) else None


def _starts_inside(store: tile.StoreOp) -> bool:
    """Whether a store begins inside its array, and goes beyond it along the dims of its tile only."""
    for expression, size in zip(store.map.results, tile.ref_type(store.destination).shape, strict=True):
        form = linear_form(expression, (Index(0), Index(1)))
        if form is None:
            return False
        low, high = span(form.constant, [(store.symbols[s], c) for s, c in form.symbols])
        if low < 0 or (high >= size and not form.dims):
            return False
    return True
