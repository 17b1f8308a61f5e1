"""Decide how a nest becomes loops: each value's index, the loop order, the vector dimension, clipped extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr

from tilewright import ops
from tilewright.cost.vectors.reductions import MANY_ROWS, WIDE_VECTORS
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.walks import producers_first
from tilewright.errors import CompilerBug
from tilewright.layout import Layout
from tilewright.machines.machine import Machine
from tilewright.ops import LONGEST_CHAIN, SUM_BLOCK
from tilewright.passes.affine_access import Access, Clip, Index, Indices, access_of, clip_of
from tilewright.targets.cpu.strided_access import has_strided_access
from tilewright.targets.cpu.transposed_loads import can_transpose

Bound = Callable[[SSAValue], int]
Item = tuple[SSAValue, Indices]

# Rows of a reduction that are added to the totals at a time.
ROWS = 4
# Vectors that an unrolled reduction along the vector dimension takes a trip, each added to a running vector of its own.
UNROLL = 4
# Bounds on the code of a nest that transposes: operations of a body, and bodies; those of moves alone are short.
MOST_MAPS, MOST_ROWS, MOST_MOVED_ROWS = 4, 16, 64
# Runs of a transposed array that are shorter, in vectors, are read one after the other.
SHORT_RUN = 4
GATHERED_LOAD, GATHERED_STORE, CONTIGUOUS, INTERLEAVED = -3, -6, 2, 1


class NestPlan(msgspec.Struct, eq=False):
    """`order` lists nest dimensions outermost first; `reduced` ones come after all others, but for the vector dimension
    of a nest that goes `row_by_row`: whole rows are added to totals in memory. Results along the short
    `interleaved_dims`, which are innermost, are stored as whole vectors, as neighbours along the vector dimension are
    that many elements apart. The `turned` loads run along
    `turned_dim`, which is next to the vector dimension: they are loaded in square blocks and transposed. A nest that
    `adds_blocks` adds up `ROWS` rows of the innermost reduced dimension before it adds them to a total."""

    space: tuple[int, ...]
    roots: list[Operation]
    order: list[int]
    reduced: frozenset[int]
    vector_dim: int | None
    lanes: int
    clips: list[Clip]
    dependences: dict[Item, frozenset[int]] = msgspec.field(default_factory=dict)
    turned_dim: int | None = None
    turned: tuple[Item, ...] = ()
    adds_blocks: bool = False
    row_by_row: bool = False
    interleaved_dims: tuple[int, ...] = ()
    operands: dict[tuple[Operation, Indices], list[Item]] = msgspec.field(default_factory=dict)
    accesses: dict[tuple[Operation, Indices], Access] = msgspec.field(default_factory=dict)

    @property
    def parallel_levels(self) -> int:
        return len(self.order) - len(self.reduced) - self.row_by_row

    @property
    def adds_floats(self) -> bool:
        """Whether a reduction's rounding errors depend on the order of its additions."""
        reduces = [root.operands[0].owner for root in self.roots]
        return any(
            isinstance(op, tile.ReduceOp) and op.fn == "add" and array_type(op.operands[0]).dtype.is_float
            for op in reduces
        )

    def trips(self, dim: int) -> int:
        """How many times the loop along a reduced dimension adds to the same running sum, at most."""
        if dim != self.vector_dim:
            return -(-self.space[dim] // ROWS) if self.adds_blocks_of_rows(dim) else self.space[dim]
        vectors = -(-self.space[dim] // self.lanes)
        return -(-vectors // UNROLL) if self.unrolls(dim) else vectors

    def unrolls(self, dim: int) -> bool:
        """Whether a reduction along the vector dimension is long enough for several running vectors."""
        return self.space[dim] >= 2 * UNROLL * self.lanes

    def adds_blocks_of_rows(self, dim: int) -> bool:
        return self.adds_blocks and dim == max(self.reduced)

    def chain(self, level: int) -> int:
        """Additions in a row to a running sum in one body of the loop outside `level`, blocks being one each."""
        dims = [d for d in self.order[level:] if d in self.reduced]
        length = 1
        for dim in reversed(dims):
            trips, inner = self.trips(dim), 1 if self.closes(length, dim) else length
            length = trips * inner if trips * inner <= LONGEST_CHAIN else LONGEST_CHAIN
        return length

    def closes(self, chain: int, dim: int) -> bool:
        """Whether a body with a chain of additions gets running sums of its own in the loop along `dim`."""
        return self.adds_floats and chain > 1 and chain * self.trips(dim) > LONGEST_CHAIN

    def sum_blocks(self, dim: int) -> list[int]:
        """Trips of the blocks, from the outermost on, into which a loop is cut that adds too many floats to one sum."""
        if dim not in self.reduced or not self.adds_floats or self.trips(dim) <= LONGEST_CHAIN:
            return []
        blocks = [SUM_BLOCK]
        while self.trips(dim) > LONGEST_CHAIN * blocks[0]:
            blocks.insert(0, blocks[0] * SUM_BLOCK)
        return blocks

    def access(self, op: Operation, at: Indices) -> Access:
        """The access of a load or store at given tile indices."""
        found = self.accesses.get((op, at))
        if found is None:
            found = self.accesses[op, at] = _access(op, at)
        return found

    def level(self, item: Item) -> int:
        """How many loops must be open before an item can be computed."""
        dims = self.dependences[item]
        return max((self.order.index(d) + 1 for d in dims), default=0)


def plan_nest(nest: scheduled.NestOp, machine: Machine, bound: Bound) -> NestPlan:
    """Analyse a nest. `bound(symbol)` is the number of values of an index scalar."""
    ops_ = [op for op in nest.body.block.ops if not isinstance(op, scheduled.EndOp)]
    roots: list[Operation] = [op for op in ops_ if isinstance(op, tile.StoreOp | tile.PrintOp | tile.AssertOp)]
    reduces = [op for op in ops_ if isinstance(op, tile.ReduceOp)]
    space = array_type(reduces[0].operands[0] if reduces else roots[0].operands[0]).shape
    reduced: frozenset[int] = frozenset(reduces[0].axes if reduces else ())
    plan = NestPlan(space, roots, [], reduced, None, 1, [])
    for root in roots:
        for value in root.operands:
            if not is_place(value):
                _depend(plan, value, root_indices(plan, root))
    accesses = [plan.access(root, root_indices(plan, root)) for root in roots if isinstance(root, tile.StoreOp)]
    loads = [plan.access(value.owner, at) for value, at in plan.dependences if isinstance(value.owner, tile.LoadOp)]
    plan.lanes = _lanes(plan, machine)
    plan.vector_dim = _vector_dim(plan, accesses, loads) if nest.layout is None else _dealt_dim(nest.layout)
    if plan.vector_dim is None:
        plan.lanes = 1
    else:
        extent = space[plan.vector_dim]
        plan.lanes = min(plan.lanes, 1 << max(1, (extent - 1).bit_length()))
    plan.interleaved_dims = () if plan.vector_dim is None else _interleaving(plan, plan.vector_dim, accesses)
    _turn_loads(plan)
    plan.adds_blocks = _adds_blocks(plan)
    plan.row_by_row = _goes_row_by_row(plan)
    plan.order = _order(plan)
    plan.clips = _clips(plan, bound)
    return plan


_PLACES = frozenset((tile.RefType, IndexType))


def is_place(value: SSAValue) -> bool:
    return type(value.type) in _PLACES


def root_indices(plan: NestPlan, root: Operation) -> Indices:
    """Indices of a root's tile: all nest dimensions, or those that its reduction keeps."""
    value = root.operands[0]
    shape = array_type(value).shape
    if isinstance(value.owner, tile.ReduceOp):
        return tuple(Index(d) for d in range(len(plan.space)) if d not in plan.reduced)
    if shape != plan.space:
        raise CompilerBug(f"a nest over {plan.space} holds a root of shape {shape}")
    return tuple(Index(d) for d in range(len(plan.space)))


def operand_items(op: Operation, at: Indices, plan: NestPlan) -> list[Item]:
    """The items that computing `op` at `at` needs."""
    found = plan.operands.get((op, at))
    if found is None:
        found = plan.operands[op, at] = _operand_items(op, at, plan)
    return found


def _operand_items(op: Operation, at: Indices, plan: NestPlan) -> list[Item]:
    if isinstance(op, tile.BroadcastOp):
        sizes, result = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
        axes: tuple[int, ...] = op.axes
        inner = tuple(Index(None) if n == 1 and result[a] != 1 else at[a] for n, a in zip(sizes, axes, strict=True))
        return [(op.operands[0], inner)]
    if isinstance(op, tile.TransposeOp):
        moved: list[Index] = [Index(None)] * len(at)
        for position, source in enumerate(op.permutation):
            moved[source] = at[position]
        return [(op.operands[0], tuple(moved))]
    if isinstance(op, tile.SliceOp):
        steps = zip(at, op.starts, op.strides, strict=True)
        return [(op.operands[0], tuple(Index(i.dim, i.stride * s, i.offset * s + start) for i, start, s in steps))]
    if isinstance(op, tile.ReshapeOp):
        result = array_type(op.results[0]).shape
        rest = iter([i for i, n in zip(at, result, strict=True) if n != 1])
        shape = array_type(op.operands[0]).shape
        return [(op.operands[0], tuple(Index(None) if n == 1 else next(rest) for n in shape))]
    if isinstance(op, tile.ReduceOp):
        return [(op.operands[0], tuple(Index(d) for d in range(len(plan.space))))]
    return [(o, at) for o in op.operands if not is_place(o)]


def _depend(plan: NestPlan, value: SSAValue, at: Indices) -> frozenset[int]:
    """Record which nest dimensions an item varies along, and those that it is computed from."""
    for item in producers_first([(value, at)], lambda item: operands_of(plan, item), plan.dependences):
        _record_dependences(plan, item)
    return plan.dependences[value, at]


def operands_of(plan: NestPlan, item: Item) -> Sequence[Item]:
    """The items that an item is computed from."""
    value, at = item
    return operand_items(value.owner, at, plan) if isinstance(value.owner, Operation) else ()


def _record_dependences(plan: NestPlan, item: Item) -> None:
    """Record which nest dimensions an item varies along, when that is known of its operands."""
    value, at = item
    op = value.owner
    if not isinstance(op, Operation):
        raise CompilerBug("a nest value without an operation")
    found: set[int] = set()
    for operand in operand_items(op, at, plan):
        found |= plan.dependences[operand]
    if isinstance(op, tile.LoadOp | tile.IotaOp | tile.FillPaddingOp):
        for expression in op.map.results:
            used = {e.position for e in expression.dfs() if isinstance(e, AffineDimExpr)}
            found |= {dim for p in used if (dim := at[p].dim) is not None}
    if isinstance(op, tile.ReduceOp):
        found -= plan.reduced
    plan.dependences[item] = frozenset(found)


def _access(op: Operation, at: Indices) -> Access:
    if isinstance(op, tile.StoreOp):
        ref, symbols = op.destination, list(op.symbols)
    elif isinstance(op, tile.LoadOp):
        ref, symbols = op.source, list(op.symbols)
    else:
        raise CompilerBug(f"{op.name} does not access memory")
    return access_of(ref, op.map, symbols, at, {s: not is_place(s) for s in symbols})


def _lanes(plan: NestPlan, machine: Machine) -> int:
    """Vector width from the widest element type that is loaded, stored or computed; i64 indices do not count next to
    other types, nor next to bools that vary along more dims."""
    sizes: set[int] = set()
    wide: frozenset[int] | None = None
    bools: frozenset[int] = frozenset()
    for (value, _), dims in plan.dependences.items():
        dtype = array_type(value).dtype
        if isinstance(value.owner, tile.IotaOp):
            continue
        if dtype.is_bool:
            bools |= dims if isinstance(value.owner, tile.LoadOp) else frozenset()
        elif dtype.name == "i64":
            wide = dims if wide is None else wide | dims
        else:
            sizes.add(dtype.compute.itemsize)
    if not sizes:
        sizes = {1} if wide is None or bools > wide else {8}
    return max(1, machine.vector.bytes // max(sizes))


def _dealt_dim(layout: str) -> int | None:
    """The dimension along which a layout deals neighbours to lanes."""
    for dim, digits in enumerate(Layout.parse(layout).shard):
        if any(digit.axis == "simd" and digit.stride == 1 for digit in digits):
            return dim
    return None


def _vector_dim(plan: NestPlan, stores: Sequence[Access], loads: Sequence[Access]) -> int | None:
    """The dimension whose neighbours are adjacent in most accesses."""
    best: tuple[float, int] | None = None
    for dim, extent in enumerate(plan.space):
        if extent == 1:
            continue
        score = 0
        for accesses, penalty in ((stores, GATHERED_STORE), (loads, GATHERED_LOAD)):
            for found in accesses:
                vary = _lanes_vary(plan, found, dim)
                stride = found.stride_along(dim, vary)
                if found.is_contiguous(dim, min(plan.lanes, extent), vary):
                    score += CONTIGUOUS
                elif extent >= plan.lanes and _is_interleaved(plan, found, dim, stores):
                    score += INTERLEAVED
                elif stride != 0:
                    score += penalty
        key = (score * min(extent, plan.lanes) if score > 0 else score, dim)
        if best is None or key > best:
            best = key
    return None if best is None else best[1]


def _is_interleaved(plan: NestPlan, found: Access, dim: int, stores: Sequence[Access]) -> bool:
    """Whether neighbours along a dim are so few elements apart that whole vectors are shuffled: loads of any nest,
    stores of one that has a dim for what is between them."""
    stride = found.stride_along(dim, _lanes_vary(plan, found, dim))
    if not has_strided_access(stride):
        return False
    return found not in stores or bool(_interleaving(plan, dim, stores))


def _interleaving(plan: NestPlan, vector: int, stores: Sequence[Access]) -> tuple[int, ...]:
    """The short dims whose results all stores put side by side, if neighbours along vectors are as far apart as they
    are many."""
    if plan.reduced or not stores or len(stores) != len(plan.roots):
        return ()
    rest = [dim for dim, extent in enumerate(plan.space) if dim != vector and extent != 1]
    dims: list[int] = []
    apart = 1
    while not dims or not _is_apart(plan, stores, vector, apart):
        found = next((dim for dim in rest if _is_apart(plan, stores, dim, apart)), None)
        if found is None or not has_strided_access(apart * plan.space[found]):
            return ()
        rest.remove(found)
        dims.insert(0, found)
        apart *= plan.space[found]
    return tuple(dims)


def _is_apart(plan: NestPlan, stores: Sequence[Access], dim: int, apart: int) -> bool:
    return all(found.stride_along(dim, _lanes_vary(plan, found, dim)) == apart for found in stores)


def _lanes_vary(plan: NestPlan, found: Access, dim: int) -> bool:
    return any(dim in plan.dependences.get((found.symbols[s], found.at), ()) for s in found.lanes)


def lanes_vary(plan: NestPlan, found: Access) -> bool:
    """Whether an access's index tiles vary along the vector dimension."""
    return plan.vector_dim is not None and _lanes_vary(plan, found, plan.vector_dim)


def _maps(plan: NestPlan) -> list[tile.MapOp]:
    return [value.owner for value, _ in plan.dependences if isinstance(value.owner, tile.MapOp)]


def _does_little(plan: NestPlan) -> bool:
    """Whether a body for each of a few rows is not much code."""
    maps = _maps(plan)
    dear = any(ops.FUNCTIONS[op.fn].cost in (ops.DIVIDE, ops.TRANSCENDENTAL) for op in maps)
    return not dear and len(maps) <= MOST_MAPS


def _adds_blocks(plan: NestPlan) -> bool:
    """Whether sums of columns, each of which waits for the addition before it, are computed from blocks of rows. This
    decides the order of additions: it must not depend on extents of kept dimensions, which go by the number of
    threads."""
    return _reduces_columns(plan) and _does_little(plan)


def _reduces_columns(plan: NestPlan) -> bool:
    """Whether a nest does nothing but to reduce many rows."""
    reduces = [root.operands[0].owner for root in plan.roots]
    if plan.vector_dim in plan.reduced or not all(isinstance(op, tile.ReduceOp) for op in reduces):
        return False
    bools = any(array_type(op.operands[0]).dtype.is_bool for op in reduces if isinstance(op, Operation))
    return plan.space[max(plan.reduced)] >= MANY_ROWS and not bools


def _goes_row_by_row(plan: NestPlan) -> bool:
    """Whether sums of columns are computed side by side, from runs of memory as long as the rows are."""
    vector = plan.vector_dim
    if vector is None or not _reduces_columns(plan):
        return False
    return plan.space[vector] >= WIDE_VECTORS * plan.lanes


def _turn_loads(plan: NestPlan) -> None:
    """Choose the loads to transpose, where the nest does so little that a body for each row of a block is not much.
    Vectors are as long as a block has rows at most: elements that are loaded one by one would take longer."""
    vector = plan.vector_dim
    if vector is None or plan.reduced or plan.interleaved_dims or not _does_little(plan):
        return
    lanes = min(plan.lanes, MOST_ROWS if _maps(plan) else MOST_MOVED_ROWS)
    found: dict[int, list[Item]] = {}
    for item in plan.dependences:
        load = item[0].owner
        if not isinstance(load, tile.LoadOp):
            continue
        access = plan.access(load, item[1])
        if access.lanes or access.stride_along(vector, False) in (0, 1, None):
            continue
        itemsize = array_type(load.result).dtype.itemsize
        for dim, extent in enumerate(plan.space):
            if dim != vector and can_transpose(lanes, itemsize, extent) and access.stride_along(dim, False) == 1:
                found.setdefault(dim, []).append(item)
    if found:
        plan.turned_dim = max(found, key=lambda dim: (len(found[dim]), dim))
        plan.turned = tuple(found[plan.turned_dim])
        plan.lanes = lanes


def _order(plan: NestPlan) -> list[int]:
    vector = plan.vector_dim
    dims = sorted((d for d in range(len(plan.space)) if d != vector), key=lambda d: d == plan.turned_dim)
    outer = [d for d in dims if d not in plan.reduced]
    inner = [d for d in dims if d in plan.reduced]
    if vector is None:
        return [*outer, *inner]
    if plan.row_by_row:
        return [*outer, *inner, vector]
    if plan.interleaved_dims:
        return [*(d for d in outer if d not in plan.interleaved_dims), vector, *plan.interleaved_dims]
    between = _between_runs(plan, outer, vector)
    if between:
        return [*(d for d in outer if d not in between), vector, *between]
    if plan.turned_dim is not None and _fills_buffers(plan):
        return [*(d for d in outer if d != plan.turned_dim), vector, plan.turned_dim]
    if outer and not plan.reduced and _repeats_lanes(plan, outer[-1]):
        return [*outer[:-1], vector, outer[-1]]
    return [*outer, vector, *inner] if vector not in plan.reduced else [*outer, *inner, vector]


def _between_runs(plan: NestPlan, outer: Sequence[int], vector: int) -> list[int]:
    """The dims of short runs that follow each other in the rows of a block, which are read before other rows: else the
    lines that hold several runs would leave the first-level cache, which has room for few that are a power of two
    apart. None where runs are long, or rows are one run."""
    if plan.turned_dim is None or plan.space[plan.turned_dim] >= SHORT_RUN * plan.lanes:
        return []
    (loaded, at), *_ = plan.turned
    if not isinstance(loaded.owner, tile.LoadOp):
        raise CompilerBug("a transposed item is no load")
    found = plan.access(loaded.owner, at)
    apart = {d: found.stride_along(d, False) or 0 for d in (*outer, vector)}
    between = [d for d in outer if apart[d] < apart[vector]]
    return between if len(between) > 1 else []


def _repeats_lanes(plan: NestPlan, dim: int) -> bool:
    """Whether each index along a dim reads elsewhere by the same vector of indices, which one trip of a loop outside
    that dim's computes."""
    if plan.turned_dim is not None or plan.space[dim] == 1:
        return False
    for item, dims in plan.dependences.items():
        if not isinstance(item[0].owner, tile.LoadOp) or dim not in dims:
            continue
        found = plan.access(item[0].owner, item[1])
        indices = [plan.dependences.get((found.symbols[s], found.at), frozenset[int]()) for s in found.lanes]
        if any(plan.vector_dim in each for each in indices) and not any(dim in each for each in indices):
            return True
    return False


def _fills_buffers(plan: NestPlan) -> bool:
    """Whether what is read comes from farther than what is written goes: the runs that are read decide the order."""
    return all(isinstance(root, tile.StoreOp) and tile.ref_type(root.destination).space.data for root in plan.roots)


def _clips(plan: NestPlan, bound: Bound) -> list[Clip]:
    """Bounds on which all roots agree that positions beyond them do not matter."""
    agreed: list[Clip] | None = None
    for root in plan.roots:
        found: list[Clip] = []
        at = root_indices(plan, root)
        if isinstance(root, tile.StoreOp):
            found += _overhangs(plan.access(root, at), bound)
        value = root.operands[0]
        if isinstance(value.owner, tile.ReduceOp):
            reduce = value.owner
            value = reduce.operands[0]
            at = tuple(Index(d) for d in range(len(plan.space)))
            found += _padding_clips(reduce, value, at)
        found += _strict_clips(plan, value, at, bound)
        agreed = list(dict.fromkeys(found)) if agreed is None else [clip for clip in agreed if clip in found]
    # Equal keys stay in the order of the kernel: that of a set would depend on addresses of values.
    return sorted(agreed or (), key=lambda c: (c.dim, c.limit))


def _overhangs(found: Access, bound: Bound) -> list[Clip]:
    clips: list[Clip] = []
    for form, size in zip(found.forms, found.type.shape, strict=True):
        clip = clip_of(form, found.symbols, size, found.lanes)
        if clip is not None:
            clips.append(clip)
    return clips


def _padding_clips(reduce: tile.ReduceOp, value: SSAValue, at: Indices) -> list[Clip]:
    """Lanes that hold the identity of the reduction add nothing."""
    op = value.owner
    if not isinstance(op, tile.FillPaddingOp):
        return []
    identity = ops.FUNCTIONS[reduce.fn].identity
    if identity is None or op.value != identity(array_type(value).dtype):
        return []
    found = access_of(op.source, op.map, list(op.symbols), at, {s: not is_place(s) for s in op.symbols})
    clip = clip_of(found.forms[0], found.symbols, op.limit, found.lanes)
    return [clip] if clip is not None and clip.dim in reduce.axes else []


def _strict_clips(plan: NestPlan, value: SSAValue, at: Indices, bound: Bound) -> list[Clip]:
    """A root is undefined wherever a load on a strict path to it is."""
    clips: list[Clip] = []
    for item in producers_first([(value, at)], lambda item: _strict_operands(plan, item)):
        op = item[0].owner
        if isinstance(op, tile.LoadOp) and op.fill is None:
            clips += _overhangs(plan.access(op, item[1]), bound)
    return clips


def _strict_operands(plan: NestPlan, item: Item) -> Sequence[Item]:
    """The items that must all be defined for an item to be."""
    op = item[0].owner
    strict = isinstance(op, tile.MapOp | tile.CastOp | tile.BitcastOp | tile.BroadcastOp | tile.TransposeOp)
    if not strict or (isinstance(op, tile.MapOp) and op.fn == "select"):
        return ()
    return operand_items(op, item[1], plan)
