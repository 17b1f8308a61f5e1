"""Loads of elements that a store overwrites: one nest does both, element by element, without a buffer."""

from __future__ import annotations

from collections.abc import Collection

from xdsl.ir import SSAValue

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.passes.affine_access import Index, linear_form
from tilewright.passes.layouts.layout_rules import ELEMENTWISE
from tilewright.passes.vectors.nest_writer import is_place


def is_updated_in_place(load: tile.LoadOp, conflicts: Collection[SSAValue]) -> bool:
    """Whether only elementwise operations use a load, whose result is stored where that came from, each element at an
    index of its own, with no access in between that must keep its order. `conflicts` are refs whose accesses must."""
    store = _store_of(load.result)
    if store is None or store.destination is not load.source or not _same_elements(load, store):
        return False
    op = load.next_op
    while op is not store:
        if op is None or op.regions or (isinstance(op, tile.LoadOp) and op.source in conflicts):
            return False
        if isinstance(op, tile.StoreOp) and op.destination in conflicts:
            return False
        op = op.next_op
    return True


def _store_of(value: SSAValue) -> tile.StoreOp | None:
    """The store of the elementwise operations that alone use a value, one after the other."""
    while True:
        users = dict.fromkeys(use.operation for use in value.uses)
        if len(users) != 1:
            return None
        (user,) = users
        if isinstance(user, tile.StoreOp):
            return user if user.value is value else None
        if not isinstance(user, ELEMENTWISE) or array_type(user.results[0]).shape != array_type(value).shape:
            return None
        value = user.results[0]


def _same_elements(load: tile.LoadOp, store: tile.StoreOp) -> bool:
    """Whether both access the same elements, at an index each: along each dim some coordinate changes that
    depends on no other dim and on no index tile."""
    if load.map != store.map or len(load.symbols) != len(store.symbols):
        return False
    pairs = zip(load.symbols, store.symbols, strict=True)
    if not all(_is_equal(one, other) for one, other in pairs):
        return False
    shape = array_type(load.result).shape
    forms = [linear_form(each, tuple(map(Index, range(len(shape))))) for each in load.map.results]
    alone = {
        form.dims[0][0]
        for form in forms
        if form is not None and len(form.dims) == 1 and all(is_place(load.symbols[s]) for s, _ in form.symbols)
    }
    return alone.issuperset(d for d, size in enumerate(shape) if size != 1)


def _is_equal(one: SSAValue, other: SSAValue) -> bool:
    """Whether two values are one, or both repeat one along the same dims."""
    if one is other:
        return True
    a, b = one.owner, other.owner
    if not isinstance(a, tile.BroadcastOp) or not isinstance(b, tile.BroadcastOp) or a.axes != b.axes:
        return False
    return one.type == other.type and _is_equal(a.operands[0], b.operands[0])
