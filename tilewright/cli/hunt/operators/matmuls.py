"""Matmuls, batched ones, and einsums of few operands."""

# Arrays of several libraries, which have no common type, and functions of libraries without types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import random

from tilewright.cli.hunt.operators.base import Call, Operator, kind
from tilewright.cli.hunt.program import Type

_COLUMNS = (1, 7, 16, 64, 100, 256, 384, 512, 1000, 1024, 3072)
# The most multiply-adds of a matmul: a fraction of a second for two cores.
_MOST_WORK = 4 << 30


def _multiplied(generator: random.Random, value: int, type: Type) -> Call | None:
    """By a matrix, or by as many as there are batches."""
    if len(type.shape) < 2 or not kind(type).is_float:
        return None
    columns = [n for n in _COLUMNS if type.size * n <= _MOST_WORK]
    if not columns:
        return None
    batch = type.shape[:-2] if generator.random() < 0.4 else ()
    return Call((value, Type((*batch, type.shape[-1], generator.choice(columns)), type.dtype)))


def _by_transposed(generator: random.Random, value: int, type: Type) -> Call | None:
    """By the transpose of an array of as many columns: scores of attention, weights of torch."""
    if len(type.shape) < 2 or not kind(type).is_float:
        return None
    rows = [n for n in _COLUMNS if type.size * n <= _MOST_WORK]
    if not rows:
        return None
    return Call((value, Type((*type.shape[:-2], generator.choice(rows), type.shape[-1]), type.dtype)))


def _chained(generator: random.Random, value: int, type: Type) -> Call | None:
    """Three operands, whose best order depends on their sizes."""
    if len(type.shape) != 2 or not kind(type).is_float:
        return None
    sizes = [generator.choice((4, 16, 50, 128, 300)) for _ in range(2)]
    if type.size * max(sizes) > _MOST_WORK:
        return None
    inner = Type((type.shape[1], sizes[0]), type.dtype)
    return Call((value, inner, Type((sizes[0], sizes[1]), type.dtype)), {"terms": "ab,bc,cd->ad"})


OPERATORS = (
    Operator("matmul", 8, _multiplied, {"array": lambda xp, x, y: xp.matmul(x, y)}),
    Operator(
        "matmul_transposed",
        4,
        _by_transposed,
        {
            "array": lambda xp, x, y: xp.matmul(x, xp.swapaxes(y, -1, -2)),
            "tilewright": lambda tw, x, y: tw.matmul(x, tw.matrix_transpose(y)),
        },
    ),
    Operator(
        "einsum",
        1,
        _chained,
        {
            "array": lambda xp, x, y, z, terms: xp.einsum(terms, x, y, z),
            # In the order of the terms without it, at hundred times the work.
            "numpy": lambda np, x, y, z, terms: np.einsum(terms, x, y, z, optimize=True),
        },
    ),
)
