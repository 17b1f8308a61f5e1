"""The coordinates of a point of a grid by its number: a few divisions by constants, the same for all threads."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import SSAValue

from tilewright.dialects.scheduled import tile_order
from tilewright.targets.simt.emit_memory import evaluated
from tilewright.targets.simt.fragments import Builder, Value, i32


def emit_point(builder: Builder, op: tile_order.PointOp, indices: Mapping[SSAValue, Value]) -> list[Value]:
    """A value for each coordinate."""
    order = op.order
    *outer, rows, columns = order.extents
    number = evaluated(builder, op.map.results[0], [], [indices[symbol] for symbol in op.symbols])
    coordinates: list[Value] = []
    if outer:
        matrix = builder.udiv(number, i32(rows * columns))
        number = builder.urem(number, i32(rows * columns))
        for extent in reversed(outer):
            coordinates.insert(0, builder.urem(matrix, i32(extent)))
            matrix = builder.udiv(matrix, i32(extent))
    found = [*coordinates, *_in_groups(builder, number, rows, columns, order.group)]
    # LLVM does not take them apart into two terms of every address.
    return [_opaque(builder, coordinate) for coordinate in found]


def _in_groups(builder: Builder, number: Value, rows: int, columns: int, group: int) -> tuple[Value, Value]:
    """The row and column of a number. The last group may have another height: both are tried, so that every divisor is
    a constant."""
    before = builder.udiv(number, i32(group * columns))
    within = builder.urem(number, i32(group * columns))
    column = builder.udiv(within, i32(group))
    height: Value = i32(group)
    if last := rows % group:
        is_last = builder.icmp_unsigned("==", before, i32(rows // group))
        column = builder.select(is_last, _opaque(builder, builder.udiv(within, i32(last))), _opaque(builder, column))
        height = builder.select(is_last, i32(last), height)
    row = builder.sub(within, builder.mul(column, height))
    return builder.add(builder.mul(before, i32(group)), row), column


def _opaque(builder: Builder, value: Value) -> Value:
    """A value that LLVM does not take apart: of a choice of two divisors it would make one division, which is a
    call."""
    return builder.intrinsics.opaque(builder, value)
