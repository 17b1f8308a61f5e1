"""Formulas of the sizes of a call: a padded program's arguments at any sizes of its range, without a trace at them.

A function whose sizes are known as symbols (a graph of `torch.compile`) is the same function at all sizes of a range,
so that no trace has to prove it at each of them. The integers that `plan` reads from a trace are then polynomials of
the sizes: the traces at some sizes give the coefficients, which must be exact at the sizes of the other traces.
"""

from __future__ import annotations

import fractions
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from tilewright.frontend.sizes.family import NotUniform
from tilewright.frontend.sizes.plan import CallPlan

# The sizes of a call, one for each symbol.
Point = tuple[int, ...]
_Numbers = np.ndarray[Any, np.dtype[np.int64]]

Function = Callable[[int], Any]

# Functions of an integer that a floating-point constant of a program may be, and their inverses.
_FUNCTIONS: tuple[tuple[Function, Callable[[float], float]], ...] = (
    (lambda n: 1.0 / n, lambda v: 1.0 / v),
    (lambda n: float(n) ** 0.5, lambda v: v * v),
    (lambda n: float(n) ** -0.5, lambda v: 1.0 / (v * v)),
)
_EXACT = 1 << 52
# Numbers with more digits than this are no multiples of a size, but rounded results of another function.
_FINEST = 1 << 20


@dataclass(frozen=True)
class _Polynomials:
    """Integers as polynomials of the sizes: a row of coefficients each."""

    coefficients: _Numbers

    @staticmethod
    def through(values: Sequence[Sequence[int]], points: Sequence[Point]) -> _Polynomials:
        """The polynomials that have `values[k]` at `points[k]`: affine if that is enough, else quadratic.

        Raises:
            NotUniform: there are no such ones with integer coefficients.
        """
        wanted = np.array(values, np.int64).reshape(len(points), -1)
        for terms in (_affine, _with_products):
            matrix = np.array([terms(point) for point in points], np.float64)
            if matrix.shape[1] >= len(points):
                break
            solved = np.linalg.lstsq(matrix, wanted.astype(np.float64), rcond=None)[0]
            rounded = np.rint(solved).astype(np.int64)
            if (matrix.astype(np.int64) @ rounded == wanted).all():
                return _Polynomials(np.ascontiguousarray(_widened(rounded, len(points[0])).T))
        raise NotUniform("a number that is no polynomial of the sizes")

    def at(self, terms: _Numbers) -> list[int]:
        """The integers, for the terms of a point."""
        return (self.coefficients @ terms).tolist()


def _affine(point: Point) -> list[int]:
    return [1, *point]


def _with_products(point: Point) -> list[int]:
    return [1, *point, *(a * b for a, b in itertools.combinations_with_replacement(point, 2))]


def _widened(rows: _Numbers, symbols: int) -> _Numbers:
    missing = len(_with_products((0,) * symbols)) - len(rows)
    return np.concatenate([rows, np.zeros((missing, rows.shape[1]), np.int64)])


class CallFormula:
    """The plan of a call as a function of its sizes.

    `plans[k]` is the plan that a trace gave at `points[k]`.

    Raises:
        NotUniform: the plans are no functions of the sizes that are known here.
    """

    def __init__(self, plans: Sequence[CallPlan], points: Sequence[Point]) -> None:
        self._first = plans[0]
        if any(len(plan.extra) != len(plans[0].extra) for plan in plans):
            raise NotUniform("plans of different forms")
        self._arguments = [_argument([plan.extra[n] for plan in plans], points) for n in range(len(plans[0].extra))]
        integers = [[argument[k] for argument in self._arguments if argument is not None] for k in range(len(points))]
        self._functions = [argument.function if argument is not None else None for argument in self._arguments]
        shapes = [_integers_of(plan) for plan in plans]
        if len(set(map(len, shapes))) != 1:
            raise NotUniform("what is padded depends on the sizes")
        rows = [[*a, *b] for a, b in zip(integers, shapes, strict=True)]
        self._polynomials = _Polynomials.through(rows, points)

    def at(self, point: Point) -> CallPlan:
        """The plan for the sizes of a call."""
        values = iter(self._polynomials.at(np.array(_with_products(point), np.int64)))
        extra = tuple(
            known if function is None else np.array(function(next(values)), known.dtype)
            for known, function in zip(self._first.extra, self._functions, strict=True)
        )
        shapes = [s if s is None else tuple(next(values) for _ in s) for s in self._first.inputs]
        pairs = zip(shapes, self._first.padded, strict=True)
        inputs = tuple(None if shape == type.shape else shape for shape, type in pairs)
        outputs: list[Any] = []
        for output in self._first.outputs:
            if output is None:
                outputs.append(None)
                continue
            cuts = tuple(slice(next(values)) for _ in output[0])
            outputs.append((cuts, output[1], tuple(next(values) for _ in output[2])))
        return replace(self._first, extra=extra, inputs=inputs, outputs=tuple(outputs))


def _integers_of(plan: CallPlan) -> list[int]:
    """The integers among what a plan cuts and pads, in the order in which `CallFormula.at` takes them."""
    found = [n for shape in plan.inputs for n in shape or ()]
    for output in plan.outputs:
        if output is not None:
            found += [cut.stop for cut in output[0]]
            found += output[2]
    return found


@dataclass(frozen=True)
class _Argument:
    """An argument of the program that depends on sizes: a function of integers, those at the points."""

    function: Function
    integers: tuple[int, ...]

    def __getitem__(self, point: int) -> int:
        return self.integers[point]


def _argument(arrays: Sequence[Any], points: Sequence[Point]) -> _Argument | None:
    """How an argument depends on the sizes; None if it does not.

    Raises:
        NotUniform: in another way than is known here.
    """
    first = arrays[0]
    if all(array.tobytes() == first.tobytes() for array in arrays):
        return None
    if first.shape:
        raise NotUniform("the contents of an array depend on the sizes")
    if first.dtype.kind in "iu":
        return _Argument(int, tuple(int(array) for array in arrays))
    values = [float(array) for array in arrays]
    if all(map(math.isfinite, values)) and all(values):
        for function, integers in _candidates(values):
            if all(np.array(function(n), first.dtype) == array for n, array in zip(integers, arrays, strict=True)):
                return _Argument(function, integers)
    raise NotUniform(f"a number that is no known function of the sizes: {values[0]} at {points[0]}")


def _candidates(values: Sequence[float]) -> Iterator[tuple[Function, tuple[int, ...]]]:
    """Functions of integers that numbers may be, and the integers: multiples of a power of two are exact."""
    unit = max(value.as_integer_ratio()[1] for value in values)
    multiples = tuple(int(fractions.Fraction(value) * unit) for value in values)
    if max(map(abs, multiples)) < _EXACT and math.gcd(*multiples) * _FINEST >= max(multiples):
        yield (lambda n: n / unit), multiples
    for function, inverse in _FUNCTIONS:
        integers = tuple(round(inverse(value)) for value in values)
        if all(0 < n < _EXACT for n in integers):
            yield function, integers
