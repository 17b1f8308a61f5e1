"""Gathers, scatters and sorts."""

# Arrays of several libraries, which have no common type, and functions of libraries without types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import random

from tilewright.cli.hunt.operators.base import Call, Operator, axis_of, kind
from tilewright.cli.hunt.program import Type

# Inputs of integers are below 50, so that they index arrays of at least that many elements along an axis.
_LEAST_EXTENT = 50


def _taken(generator: random.Random, value: int, type: Type) -> Call | None:
    """Rows, or elements along another axis, of which there are enough."""
    axes = [d for d, extent in enumerate(type.shape) if extent >= _LEAST_EXTENT]
    if not axes:
        return None
    axis = generator.choice(axes)
    count = generator.choice((1, 7, 64, 1000, 4096))
    rest = type.nbytes // type.shape[axis]
    if rest * count > 1 << 26:
        count = 64
    return Call((value, Type((count,), "i64")), {"axis": axis})


def _taken_along(generator: random.Random, value: int, type: Type) -> Call | None:
    axes = [d for d, extent in enumerate(type.shape) if extent >= _LEAST_EXTENT]
    if not axes:
        return None
    axis = generator.choice(axes)
    count = generator.choice((1, 8, _LEAST_EXTENT))
    shape = (*type.shape[:axis], count, *type.shape[axis + 1 :])
    return Call((value, Type(shape, "i64")), {"axis": axis})


def _added_rows(generator: random.Random, value: int, type: Type) -> Call | None:
    if len(type.shape) != 2 or type.shape[0] < _LEAST_EXTENT or not kind(type).is_float:
        return None
    count = generator.choice((8, 500, 4096))
    return Call((value, Type((count,), "i64"), Type((count, type.shape[1]), type.dtype)))


def _numpy_add_rows(np, x, rows, updates):
    result = x.copy()
    np.add.at(result, rows, updates)
    return result


def _sorted(generator: random.Random, value: int, type: Type) -> Call | None:
    return Call((value,), {"axis": axis_of(generator, type)}) if type.shape and not kind(type).is_bool else None


OPERATORS = (
    Operator(
        "take",
        5,
        _taken,
        {
            "array": lambda xp, x, at, axis: xp.take(x, at, axis=axis),
            "torch": lambda t, x, at, axis: t.index_select(x, axis, at),
        },
    ),
    Operator(
        "take_along_axis",
        1,
        _taken_along,
        {
            "array": lambda xp, x, at, axis: xp.take_along_axis(x, at, axis=axis),
            "torch": lambda t, x, at, axis: t.take_along_dim(x, at, dim=axis),
        },
    ),
    Operator(
        "add_rows",
        1,
        _added_rows,
        {
            "array": lambda xp, x, rows, updates: x.at[rows].add(updates),
            "numpy": _numpy_add_rows,
            "torch": lambda t, x, rows, updates: t.index_add(x, 0, rows, updates),
        },
    ),
    Operator(
        "sort",
        1,
        _sorted,
        {
            "array": lambda xp, x, axis: xp.sort(x, axis=axis),
            "torch": lambda t, x, axis: t.sort(x, dim=axis).values,
        },
    ),
)
