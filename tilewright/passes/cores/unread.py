"""Padding of matmul operands that no result depends on: rows of the left one, columns of the right one.

A row of a matmul depends on that row of the left operand alone, and a column on that of the right one. If results are
only stored, rows and columns beyond the array that an operand is loaded from are never written: their contents are
unspecified.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.passes.cores.page_windows import linear
from tilewright.records import dataclass

_PLACEWISE = (tile.MapOp, tile.CastOp)


@dataclass(frozen=True)
class _Along:
    """How places of a tile along one of its dims are places of an array: the array's size there, and what is added to a
    position of the tile: a constant, and sums of indices."""

    size: int
    constant: int
    indices: frozenset[tuple[SSAValue, int]]


def unread_dims(kernel: tile.KernelOp) -> dict[tile.LoadOp, set[int]]:
    """Of loads whose tiles only a matmul takes, the dims of the tile along which nothing reads what is beyond the
    array."""
    found: dict[tile.LoadOp, set[int]] = {}
    for op in kernel.walk():
        if not isinstance(op, tile.DotOp) or array_type(op.result).rank != 2:
            continue
        stores = _stores_of(op.result)
        for operand, dim in ((op.left, 0), (op.right, 1)):
            found_load = _load_of(operand, dim)
            if found_load is None or stores is None:
                continue
            load, own_dim = found_load
            own = _along(load.map, load.symbols, tile.ref_type(load.source).shape, own_dim)
            theirs = [_along(s.map, s.symbols, tile.ref_type(s.destination).shape, dim) for s in stores]
            if own is not None and all(each == own for each in theirs):
                found.setdefault(load, set()).add(own_dim)
    return found


def _load_of(value: SSAValue, dim: int) -> tuple[tile.LoadOp, int] | None:
    """The load whose tile a matmul takes, maybe transposed or with its padding filled, and the load's dim for the
    matmul's `dim`; None if the tile has other users."""
    while len([*value.uses]) == 1:
        op = value.owner
        match op:
            case tile.LoadOp():
                return op, dim
            case tile.TransposeOp():
                permutation: tuple[int, ...] = op.permutation
                dim = permutation[dim]
            case tile.FillPaddingOp() | tile.CastOp():
                pass
            case _:
                return None
        value = op.operands[0]
    return None


def _stores_of(value: SSAValue) -> list[tile.StoreOp] | None:
    """The stores of a tile and of elementwise results of it; None if it has other users."""
    stores: list[tile.StoreOp] = []
    pending, seen = [value], {value}
    while pending:
        for use in pending.pop().uses:
            following = _follows(use.operation, use.index)
            if following is None:
                return None
            if isinstance(use.operation, tile.StoreOp):
                stores.append(use.operation)
            pending += [each for each in following if each not in seen]
            seen.update(following)
    return stores


def _follows(op: Operation, index: int) -> Sequence[SSAValue] | None:
    """The tiles that are made of the one that an operation has as operand `index`, place by place."""
    match op:
        case tile.StoreOp():
            return () if op.operands[index] is op.value else None
        case tile.YieldOp():
            loop = op.parent_op()
            if not isinstance(loop, tile.ForOp):
                return None
            return loop.results[index], loop.body.block.args[index + 1]
        case tile.DotOp():
            return (op.result,) if op.operands[index] is op.accumulator else None
        case _ if isinstance(op, _PLACEWISE):
            return op.results
        case _:
            return None


def _along(map: AffineMap, symbols: Sequence[SSAValue], shape: Sequence[int], dim: int) -> _Along | None:
    """The array dim that a tile dim runs along; None if there is not exactly one."""
    found: list[_Along] = []
    for expression, size in zip(map.results, shape, strict=True):
        total = linear(expression)
        if total is None:
            return None
        factors = dict(total.dims)
        if not factors.get(dim):
            continue
        if factors[dim] != 1 or any(factor for other, factor in factors.items() if other != dim):
            return None
        indices = frozenset((symbols[position], factor) for position, factor in total.symbols if factor)
        found.append(_Along(size, total.constant, indices))
    return found[0] if len(found) == 1 else None
