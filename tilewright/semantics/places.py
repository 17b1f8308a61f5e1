"""Locations of operations for errors, and array indices of a tile's elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import Operation
from xdsl.ir.affine import AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.semantics.tile import Tensor, Values, evaluate_map


def inside_of(
    map: AffineMap, shape: Sequence[int], extents: Sequence[int], symbols: Sequence[Any]
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The coordinates of the elements of a tile that are in an array of some extents, and which they are."""
    coordinates = [np.broadcast_to(each, tuple(shape)) for each in evaluate_map(map, shape, symbols)]
    inside = np.ones(tuple(shape), bool)
    for coordinate, size in zip(coordinates, extents, strict=True):
        inside = inside & (coordinate >= 0) & (coordinate < size)
    return tuple(coordinate[inside] for coordinate in coordinates), inside


def named(op: Operation, values: Values) -> str:
    """An operation, the trip of the loops around it, and its role."""
    trips: list[str] = []
    role = ""
    around = op.parent_op()
    while around is not None:
        if isinstance(around, tile.ForOp):
            trips.insert(0, str(values[around.body.block.args[0]]))
        if isinstance(around, scheduled.RoleOp):
            role = f" in role {around.role}"
        around = around.parent_op()
    return f"`{op.name}`" + (f" of trip {', '.join(trips)}" if trips else "") + role
