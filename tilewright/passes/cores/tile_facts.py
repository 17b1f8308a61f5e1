"""Queries on tile operations during lowering to a grid of cores."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap

from tilewright import dtypes, ops
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import erase
from tilewright.dialects.walks import producers_first
from tilewright.dtypes import DType
from tilewright.errors import UnsupportedOnTargetError
from tilewright.layout.catalogue.paging import Paging
from tilewright.passes.cores.affine_expressions import with_symbols
from tilewright.passes.cores.sections import carrier_of, number_of_carrier
from tilewright.passes.layouts.layout_rules import location_of

# What only renames the dims of a tile, and what computes it place by place.
RELABELS = (tile.TransposeOp, tile.RelayoutOp)
PLACEWISE = (tile.MapOp, tile.CastOp, tile.BitcastOp, tile.BroadcastOp, tile.FullOp, tile.FillPaddingOp)


def storage_format(dtype: DType) -> str:
    """The format of pages that hold numbers of a type; bools and positions in arrays have none of their own."""
    if dtype.is_bool:
        return "bf16"
    return dtype.name if dtype in (dtypes.bf16, dtypes.f16) else carrier_of(dtype).name


def stored_format(ref: SSAValue) -> str:
    """The format of an array's pages: the one that its type states, or that of its elements."""
    type = tile.ref_type(ref)
    return type.pages.data.format or storage_format(type.dtype)


def is_wide(kernel: tile.KernelOp) -> bool:
    """Whether registers have 32 bits: something is computed that does not fit 16, as positions beyond an array are
    where no load fills them, or 16 bits are of two kinds, as f16 and what bools are stored as."""
    if any(is_wide_type(tile.ref_type(ref).dtype) for ref in kernel.refs):
        return True
    for op in kernel.walk():
        if isinstance(op, tile.FillPaddingOp) and load_behind_of(op) is None:
            return True
        for value in (*op.results, *(a for region in op.regions for a in region.block.args)):
            if isinstance(value.type, IndexType | tile.RefType):
                continue
            type = array_type(value)
            is_computed = type.rank > 0 or not type.dtype.is_float
            if is_computed and is_wide_type(type.dtype) and not isinstance(op, tile.FullOp):
                return True
    return False


def is_wide_type(dtype: DType) -> bool:
    """Whether registers of 16 bits have no room for numbers of a type, or hold those of another kind."""
    return dtype.bits > 16 or dtype == dtypes.f16


def drop_loops_of_no_trip(kernel: tile.KernelOp) -> None:
    """Replace loops of no trip by their initial values."""
    for op in reversed(list(kernel.walk())):
        if isinstance(op, tile.ForOp) and not op.trips:
            for result, initial in zip(op.results, op.initial, strict=True):
                result.replace_all_uses_with(initial)
            erase(op)


def index_range(symbol: SSAValue) -> int | None:
    """How many values an index of a grid or of a loop has; None of one that is in a tile."""
    if not isinstance(symbol.type, IndexType):
        return None
    block = symbol.owner
    parent = block.parent_op() if isinstance(block, Block) else None
    if isinstance(parent, tile.ForOp):
        return parent.trips
    if isinstance(parent, tile.KernelOp):
        return parent.grid[list(parent.indices).index(symbol)]
    return None


def settled(map: AffineMap, symbols: Sequence[SSAValue]) -> AffineMap:
    """A map in which indices of one value are 0: a window of the only tile along a dim is all of it."""
    ranges = [index_range(symbol) for symbol in symbols]
    if 1 not in ranges:
        return map

    def replaced(position: int) -> AffineExpr:
        return AffineExpr.constant(0) if ranges[position] == 1 else AffineExpr.symbol(position)

    return AffineMap(map.num_dims, map.num_symbols, tuple(with_symbols(e, replaced) for e in map.results))


def check_types(kernel: tile.KernelOp) -> None:
    """Registers have 32 bits: numbers of 64 are places in arrays, which fit 32."""
    for op in kernel.walk():
        for value in (*op.operands, *op.results):
            if isinstance(value.type, IndexType | tile.RefType):
                continue
            dtype = array_type(value).dtype
            if (
                dtype in (dtypes.f64, dtypes.u64)
                or (dtype.is_float and dtype.bits < 16)
                or (dtype.bits in (8, 16) and (dtype.is_integer))
            ):
                raise refuse(op, f"numbers of {dtype} do not run on a grid of cores", help="use f32, bf16, f16 or i32")


def refuse(op: Operation, what: str, help: str = 'use target="cpu" for this program') -> UnsupportedOnTargetError:
    error = UnsupportedOnTargetError(what, help=help)
    error.location = location_of(op)
    return error


def is_unit_reshape(op: Operation) -> bool:
    """Whether an operation only adds or drops dims of one element."""
    if not isinstance(op, tile.ReshapeOp):
        return False
    before, after = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    return [n for n in before if n != 1] == [n for n in after if n != 1]


def is_place_of_lanes(op: Operation) -> bool:
    return isinstance(op, tile.IotaOp) and any(not isinstance(s.type, IndexType) for s in op.symbols)


def unit_places(op: Operation) -> dict[int, int]:
    """The dims of a reshape's operand that have more than one element, and where they are in its result."""
    before, after = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    old = [d for d, n in enumerate(before) if n != 1]
    new = [d for d, n in enumerate(after) if n != 1]
    return dict(zip(old, new, strict=True))


def is_vague(value: SSAValue) -> bool:
    """Whether a tile has no paging of its own: it is the same number everywhere, or repeats something smaller."""
    op = value.owner
    while isinstance(op, tile.CastOp | tile.BitcastOp | tile.RelayoutOp):
        op = op.operands[0].owner
    return isinstance(op, tile.FullOp | tile.BroadcastOp)


def is_anchored(value: SSAValue, known: dict[SSAValue, bool]) -> bool:
    """Whether a tile has something in it that is in pages, and not only numbers that are made anywhere. The answers for
    it and for what it is computed from are kept in `known`."""
    for tile_value in producers_first([value], _anchoring_operands, known):
        operands = _anchoring_operands(tile_value)
        is_made_anywhere = isinstance(tile_value.owner, tile.IotaOp | tile.FullOp)
        known[tile_value] = any(known[operand] for operand in operands) if operands else not is_made_anywhere
    return known[value]


def _anchoring_operands(value: SSAValue) -> Sequence[SSAValue]:
    """The operands of which one must be in pages for a tile to."""
    op = value.owner
    is_placewise = isinstance(op, (*PLACEWISE, *RELABELS)) or (isinstance(op, Operation) and is_unit_reshape(op))
    return op.operands if isinstance(op, Operation) and is_placewise else ()


def is_zero(value: SSAValue) -> bool:
    return number_of(value) == 0.0


def number_of(value: SSAValue) -> float | None:
    """The number that a tile has everywhere; None where it is not known to be one."""
    op = value.owner
    while isinstance(op, tile.BroadcastOp | tile.CastOp | tile.RelayoutOp):
        op = op.operands[0].owner
    return float(op.value) if isinstance(op, tile.FullOp) else None


def changes_nothing(value: SSAValue, fn: str) -> bool:
    """Whether a tile is what a reduction by a function begins with."""
    identity = ops.FUNCTIONS[fn].identity
    return identity is not None and number_of(value) == float(identity(array_type(value).dtype))


def narrower(value: SSAValue, shared: set[SSAValue]) -> SSAValue:
    """The 16-bit source of a float of 32 bits, if it was converted from one."""
    op = value.owner
    if isinstance(op, tile.TransposeOp) or value in shared:
        return value
    if isinstance(op, tile.CastOp):
        source = op.operands[0]
        if array_type(value).dtype == dtypes.f32 and array_type(source).dtype.is_narrow_float:
            return source
    return value


class Loaded(NamedTuple):
    """A tile that is a load, or one of whose lanes those beyond the array along `dims` are filled with `fill`."""

    load: tile.LoadOp
    fill: float | None = None
    dims: frozenset[int] = frozenset()


def load_behind_of(op: Operation) -> Loaded | None:
    """The load that an operation is, or whose lanes beyond the array it fills."""
    if isinstance(op, tile.LoadOp):
        return Loaded(op)
    fills: list[tile.FillPaddingOp] = []
    inner: Operation = op
    while isinstance(inner, tile.FillPaddingOp):
        fills.append(inner)
        following = inner.source.owner
        if not isinstance(following, Operation):
            return None
        inner = following
    if not fills or not isinstance(inner, tile.LoadOp):
        return None
    dtype = array_type(inner.result).dtype
    given = [each.value for each in fills] + ([] if inner.fill is None else [inner.fill])
    values = {number_of_carrier(float(each), dtype) for each in given}
    if len(values) > 1 or not all(_fills_beyond(each, inner) for each in fills):
        return None
    parts = [part for each in fills for part in each.map.results[0].dfs()]
    return Loaded(inner, values.pop(), frozenset(p.position for p in parts if isinstance(p, AffineDimExpr)))


def _fills_beyond(op: tile.FillPaddingOp, load: tile.LoadOp) -> bool:
    """Whether lanes are filled where a load is beyond its array along a dim."""
    (position,) = op.map.results
    wanted = with_symbols(position, lambda p: AffineExpr.symbol(_number(op.symbols[p])))
    limit = op.limit
    for expression, size in zip(load.map.results, tile.ref_type(load.source).shape, strict=True):
        own = with_symbols(expression, lambda p: AffineExpr.symbol(_number(load.symbols[p])))
        if size == limit and own == wanted:
            return True
    return False


def _number(value: SSAValue) -> int:
    return id(value)


def reduced_paging(paging: Paging, op: tile.ReduceOp) -> Paging:
    reduced: tuple[int, ...] = op.axes
    kept = [d for d in range(array_type(op.operands[0]).rank) if d not in reduced]
    return paging.renamed({d: place for place, d in enumerate(kept)})


def sums_of(op: tile.ForOp) -> dict[int, tile.DotOp]:
    """The carried tiles that are sums of matmuls, from zero on, which nothing else reads in the loop."""
    found: dict[int, tile.DotOp] = {}
    last = op.body.block.last_op
    for position, argument in enumerate(op.body.block.args[1:]):
        users = list(argument.uses)
        if len(users) != 1 or last is None or not is_zero(op.initial[position]):
            continue
        dot = users[0].operation
        if not isinstance(dot, tile.DotOp) or dot.accumulator is not argument or dot.parent_op() is not op:
            continue
        taken = list(dot.result.uses)
        if len(taken) == 1 and taken[0].operation is last and last.operands[position] is dot.result:
            found[position] = dot
    return found


def shared_tiles(kernel: tile.KernelOp) -> set[SSAValue]:
    """Elementwise tiles that are stored in a queue: those that an operation also takes from a queue, those with several
    users, and results of functions that only larger tiles repeat."""
    found: set[SSAValue] = set()
    roots: dict[SSAValue, set[Operation]] = {}
    for op in reversed(list(kernel.walk())):
        if not isinstance(op, (*PLACEWISE, *RELABELS)) and not is_unit_reshape(op):
            continue
        (result,) = op.results
        users = {use.operation for use in result.uses}
        # What takes it in the end, through what is computed place by place.
        ends: set[Operation] = set()
        for user in users:
            ends |= roots.get(user.results[0], {user}) if user.results else {user}
        takes = [user for user in users if not user.results or user.results[0] not in roots]
        is_stored = all(isinstance(user, tile.StoreOp) for user in takes)
        is_taken = bool(takes) and not is_stored and len(users) > 1
        is_shared = is_taken or (isinstance(op, tile.MapOp) and len(ends) > 1) or _is_repeated(op)
        if isinstance(op, tile.MapOp | tile.CastOp | tile.BitcastOp) and is_shared and not _is_widened_load(op):
            found.add(result)
            ends = {op}
        roots[result] = ends
    return found


def _is_widened_load(op: Operation) -> bool:
    """Whether a tile is a load of narrow floats as f32, which registers take as such, and the matrix unit as it is."""
    if not isinstance(op, tile.CastOp) or not isinstance(op.operands[0].owner, tile.LoadOp):
        return False
    before, after = array_type(op.operands[0]).dtype, array_type(op.results[0]).dtype
    return before.is_narrow_float and after == dtypes.f32


def _is_repeated(op: Operation) -> bool:
    """Whether a function is computed of a tile that only larger ones repeat, which would compute it again for each of
    their pages: of any larger one where it takes long, else of one of twice as many pages."""
    if not isinstance(op, tile.MapOp):
        return False
    shape = array_type(op.results[0]).shape
    is_long = ops.FUNCTIONS[op.fn].cost in (ops.DIVIDE, ops.TRANSCENDENTAL)
    users = [use.operation for use in op.results[0].uses]
    larger = [array_type(user.results[0]).shape for user in users if isinstance(user, tile.BroadcastOp)]
    if len(larger) < len(users) or prod(shape) == 1:
        return False
    if is_long:
        return all(prod(each) > prod(shape) for each in larger)
    return all(_pages(each) >= 2 * _pages(shape) for each in larger)


def _pages(shape: Sequence[int]) -> int:
    return Paging.default(shape).pages(shape)
