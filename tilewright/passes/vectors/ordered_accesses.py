"""Loads and stores fused into an ordered operation (scan, sort, top-k), without a buffer between it and the array.

An ordered operation (a scan, an argument reduction, a sort, the k largest) works along one axis of its tile. Vectors
run over the last dim, whether that is the axis or not, so that an access is direct where neighbours along the last dim
are adjacent in memory. Elements beyond an array must not count: lanes off the axis are dropped together with the
results that depend on them; lanes on the axis only if they are last or cannot win.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, Operation, SSAValue

from tilewright import dtypes, ops
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.passes.affine_access import Access, Form, Index, Indices, access_of, clip_of, linear_form

Ordered = tile.ArgReduceOp | tile.ScanOp | tile.SortOp | tile.TopKOp
ORDERED = (tile.ArgReduceOp, tile.ScanOp, tile.SortOp, tile.TopKOp)


def axis_of(op: Ordered) -> int:
    """The axis along which an ordered operation works."""
    return array_type(op.operands[0]).rank - 1 if isinstance(op, tile.TopKOp) else op.axis


def indices_of(op: Ordered, value: SSAValue) -> Indices:
    """Which dims of the first operand an operand's or a result's dims are; the axis may be shorter or missing."""
    rank = array_type(op.operands[0]).rank
    missing = rank - array_type(value).rank
    return tuple(Index(d) for d in range(rank) if not missing or d != axis_of(op))


def direct_load(op: Ordered, value: SSAValue, conflicts: Collection[SSAValue]) -> tile.LoadOp | None:
    """The load that an operation may do itself instead of reading a copy of the operand. `conflicts` are refs whose
    accesses must keep their order."""
    load = value.owner
    if not isinstance(load, tile.LoadOp) or load.source in conflicts:
        return None
    found = _access(load.source, load, indices_of(op, value))
    if found is None or not _streams(op, found):
        return None
    # Every result is undefined where the first operand is; of a sort's other operands only the one beside it.
    decides = value is op.operands[0] or isinstance(op, tile.ScanOp)
    may_pass = _beside(op) if decides and load.fill is None else set[int]()
    if _ignores_the_rest(op, load):
        may_pass.add(axis_of(op))
    return load if _stays_inside(found, value, may_pass) else None


def direct_store(op: Ordered, result: SSAValue, conflicts: Collection[SSAValue]) -> tile.StoreOp | None:
    """The store that an operation may do itself: the only use of its result."""
    users = [use.operation for use in result.uses]
    store = users[0] if len(users) == 1 else None
    if not isinstance(store, tile.StoreOp) or store.parent_block() is not op.parent_block():
        return None
    if store.value is not result or store.destination in conflicts:
        return None
    found = _access(store.destination, store, indices_of(op, result))
    if found is None or not _streams(op, found):
        return None
    alone = sum(1 for each in op.results if list(each.uses)) == 1
    may_pass = _beside(op) if alone else set[int]()
    if isinstance(op, tile.ScanOp) and not op.reverse:
        may_pass.add(axis_of(op))
    return store if _stays_inside(found, result, may_pass) else None


def is_position(op: Ordered, value: SSAValue) -> bool:
    """Whether what a sort carries along is each element's index along the axis, as i64."""
    if not isinstance(op, tile.SortOp) or value is op.operands[0]:
        return False
    owner, dim = value.owner, axis_of(op)
    if isinstance(owner, tile.BroadcastOp):
        axes: tuple[int, ...] = owner.axes
        if dim not in axes:
            return False
        owner, dim = owner.operands[0].owner, axes.index(dim)
    if not isinstance(owner, tile.IotaOp) or array_type(owner.result).dtype != dtypes.i64:
        return False
    rank = array_type(owner.result).rank
    form = linear_form(owner.map.results[0], tuple(Index(d) for d in range(rank)))
    return form == Form(0, ((dim, 1),), ())


def _beside(op: Ordered) -> set[int]:
    """The dims along which an operation's lines are adjacent."""
    return {d for d in range(array_type(op.operands[0]).rank) if d != axis_of(op)}


def _access(ref: SSAValue, op: tile.LoadOp | tile.StoreOp, at: Indices) -> Access | None:
    """The access if its coordinates are linear in nest dims and index scalars, and its ref row-major."""
    if tile.ref_type(ref).layout.data or not all(isinstance(s.type, IndexType) for s in op.symbols):
        return None
    found = access_of(ref, op.map, list(op.symbols), at, dict.fromkeys(op.symbols, False))
    return None if any(form is None for form in found.forms) else found


def _streams(op: Ordered, found: Access) -> bool:
    """Whether neighbours along the last dim are adjacent, or the access does not vary along it."""
    last = array_type(op.operands[0]).rank - 1
    return found.stride_along(last, lanes_vary=False) in (0, 1) if _varies(found, last) else True


def _varies(found: Access, dim: int) -> bool:
    return any(index.dim == dim for index in found.at)


def _ignores_the_rest(op: Ordered, load: tile.LoadOp) -> bool:
    """Whether elements of the axis that are beyond the array change no result that is inside."""
    if isinstance(op, tile.ScanOp):
        return load.fill is None and not op.reverse
    if load.fill is None:
        return False
    dtype = array_type(load.result).dtype
    if isinstance(op, tile.ArgReduceOp):
        identity = ops.FUNCTIONS[op.fn].identity
        return identity is not None and load.fill == identity(dtype)
    return False


def _stays_inside(found: Access, value: SSAValue, may_pass: set[int]) -> bool:
    """Whether coordinates are in the ref, or pass its end along one of the given dims, a step at a time."""
    extents = dict(zip((index.dim for index in found.at), array_type(value).shape, strict=True))
    for form, size in zip(found.forms, found.type.shape, strict=True):
        low_high = None if form is None else _range(form, found.symbols, extents)
        if low_high is None or low_high[0] < 0:
            return False
        if low_high[1] < size:
            continue
        clip = clip_of(form, found.symbols, size, found.lanes)
        if clip is None or clip.dim not in may_pass:
            return False
    return True


def _range(form: Form, symbols: Sequence[SSAValue], extents: dict[int | None, int]) -> tuple[int, int] | None:
    """Smallest and largest value of a coordinate; None where a symbol's bounds are not known."""
    low = high = form.constant
    spans = [(c, extents[d]) for d, c in form.dims]
    for symbol, coefficient in form.symbols:
        count = _count(symbols[symbol])
        if count is None:
            return None
        spans.append((coefficient, count))
    for coefficient, count in spans:
        low += min(0, coefficient * (count - 1))
        high += max(0, coefficient * (count - 1))
    return low, high


def _count(symbol: SSAValue) -> int | None:
    """How many values a grid index or a loop counter takes."""
    owner = symbol.owner
    if not isinstance(symbol, BlockArgument) or isinstance(owner, Operation):
        return None
    parent = owner.parent_op()
    if isinstance(parent, tile.ForOp):
        return parent.trips
    if isinstance(parent, tile.KernelOp):
        return parent.grid[list(parent.indices).index(symbol)]
    return None
