"""The operation of the `scheduled` dialect that states which point of a grid a number stands for.

    point   the coordinates of point number so and so, in groups of rows

Blocks that are under way together have numbers that follow each other: the order of the numbers states which tiles they
do, and so what they share of what they read.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import msgspec
from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.base import PlainOp
from tilewright.dialects.fields import Results, attribute, operands, operation, results


class GroupedOrder(msgspec.Struct, frozen=True):
    """The points of a grid of `extents`, in groups of `group` coordinates of the last dim but one; the last group may
    have fewer. Groups follow each other; in one the last dim is outermost. Dims before these two are further out, the
    first one outermost. A group of one is the order in which the last dim is fastest."""

    extents: tuple[int, ...]
    group: int

    @property
    def count(self) -> int:
        """How many points there are."""
        return prod(self.extents)

    def point(self, number: int) -> tuple[int, ...]:
        """The coordinates of a point by its number."""
        *outer, rows, columns = self.extents
        first, within = divmod(number % (rows * columns), self.group * columns)
        height = min(self.group, rows - first * self.group)
        number //= rows * columns
        coordinates = [first * self.group + within % height, within // height]
        for extent in reversed(outer):
            number, coordinate = divmod(number, extent)
            coordinates.insert(0, coordinate)
        return tuple(coordinates)


@operation
class PointOp(PlainOp):
    """The coordinates of point number `map(symbols)` of a `GroupedOrder`, a result for each of its extents."""

    name = "scheduled.point"
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    map: AffineMap = attribute()
    extents: tuple[int, ...] = attribute()
    group: int = attribute()
    coordinates: Results = results(IndexType, default=())
    traits = traits_def(Pure())

    @property
    def order(self) -> GroupedOrder:
        return GroupedOrder(self.extents, self.group)

    def verify_(self) -> None:
        map, order = self.map, self.order
        if map.num_dims or map.num_symbols != len(self.symbols) or len(map.results) != 1:
            raise VerifyException(f"scheduled.point: {map} does not give one number of {len(self.symbols)} symbols")
        if len(order.extents) < 2 or len(self.results) != len(order.extents):
            raise VerifyException(f"scheduled.point: {len(self.results)} coordinates in a grid of {order.extents}")
        if not 1 <= order.group <= order.extents[-2]:
            raise VerifyException(f"scheduled.point: groups of {order.group} of {order.extents[-2]} rows")


OPERATIONS = (PointOp,)
