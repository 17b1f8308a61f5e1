"""An operator of random programs, and what it is drawn from."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from tilewright.cli.hunt.program import Parameter, Type
from tilewright.dtypes import DType, by_name
from tilewright.records import dataclass

Form: TypeAlias = Callable[..., Any]

# An operand: an earlier value, or a new input of a type.
Operand: TypeAlias = int | Type


@dataclass(frozen=True)
class Call:
    """Operands and parameters of an operator."""

    operands: tuple[Operand, ...]
    parameters: dict[str, Parameter] = field(default_factory=dict[str, Parameter])


# Draws a call whose first operand is a value, by its number and type; None where the operator does not take it.
Draw: TypeAlias = Callable[[random.Random, int, Type], Call | None]


@dataclass(frozen=True)
class Operator:
    """An operator.

    Attributes:
        weight: how often it is drawn: its share of the operators of models, about.
        forms: functions of a library's module and the operands, by library, `array` for all others.
        jumps: whether the result changes by steps when an operand changes little: it is drawn on inputs alone, since
            libraries round what is before it differently.
    """

    name: str
    weight: float
    draw: Draw
    forms: Mapping[str, Form]
    jumps: bool = False


def kind(type: Type) -> DType:
    return by_name(type.dtype)


def unary(generator: random.Random, value: int, type: Type) -> Call | None:
    """A call on any float array."""
    return Call((value,)) if kind(type).is_float else None


def axis_of(generator: random.Random, type: Type) -> int:
    """An axis, most often the last one."""
    rank = len(type.shape)
    return rank - 1 if generator.random() < 0.5 else generator.randrange(rank)


def with_extent(type: Type, axis: int, extent: int) -> Type:
    """The type with another extent along an axis."""
    return Type((*type.shape[:axis], extent, *type.shape[axis + 1 :]), type.dtype)


def pairs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of a flat list, as parameters are stored."""
    return list(zip(values[::2], values[1::2], strict=True))
