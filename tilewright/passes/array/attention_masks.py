"""Recognise causal masks among the operations on scores: comparisons of positions that hide keys after a query's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from xdsl.ir import Operation, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dialects.walks import producers_first
from tilewright.passes.array.fusion import ELEMENTWISE, is_splat, is_unit_reshape

# The comparisons as `sign * (a - b) + constant <= 0` of integers.
_COMPARISONS = {"less_equal": (1, 0), "less": (1, 1), "greater_equal": (-1, 0), "greater": (-1, 1)}


class Causal(msgspec.Struct, frozen=True):
    """Scores of keys beyond `query + offset` are -inf, `query` being the coordinate `query_dim` of a score. `choice` is
    the `select` that does this and nothing else; None if what it hides is more than that."""

    query_dim: int
    offset: int
    choice: array.MapOp | None

    def hides(self, shape: Sequence[int]) -> bool:
        """Whether any score of a shape is hidden."""
        return self.offset < shape[-1] - 1


class _Position(msgspec.Struct, frozen=True):
    """`constant + sum of coefficient * coordinate` over the dimensions of an array."""

    coefficients: tuple[int, ...]
    constant: int

    def plus(self, other: _Position, factor: int = 1) -> _Position:
        sums = tuple(a + factor * b for a, b in zip(self.coefficients, other.coefficients, strict=True))
        return _Position(sums, self.constant + factor * other.constant)

    def times(self, factor: int) -> _Position:
        return _Position(tuple(c * factor for c in self.coefficients), self.constant * factor)

    def fits(self, value: SSAValue) -> bool:
        """Whether the type of a value of this position holds all of them."""
        type = array_type(value)
        ends = [c * (n - 1) for c, n in zip(self.coefficients, type.shape, strict=True)]
        low, high = (self.constant + sum(end(0, e) for e in ends) for end in (min, max))
        return type.dtype.is_integer and type.dtype.lowest <= low and high <= type.dtype.highest


def causal_masks(scores: SSAValue) -> list[Causal]:
    """The causal masks that scores went through, the last first."""
    found: list[Causal] = []
    value = scores
    while isinstance(value.owner, array.MapOp | array.CastOp) and _has_infinities(value):
        op = value.owner
        if isinstance(op, array.MapOp) and (op.fn != "select" or _splat(op.operands[2]) != float("-inf")):
            return found
        if isinstance(op, array.MapOp):
            seen = _conjuncts(op.operands[0])
            found.extend(mask for each in seen if (mask := _causal(each, op if len(seen) == 1 else None)) is not None)
        value = op.operands[1] if isinstance(op, array.MapOp) else op.operands[0]
    return found


def scale_of(scores: SSAValue, product: SSAValue) -> tuple[array.MapOp, float] | None:
    """The operation that scales a matmul's result by a positive number, and that number, where scores are this but for
    those that are -inf; None if they are anything else."""
    value = scores
    while isinstance(value.owner, array.MapOp) and value.owner.fn == "select" and _has_infinities(value):
        if _splat(value.owner.operands[2]) != float("-inf"):
            return None
        value = value.owner.operands[1]
    op = value.owner
    if not isinstance(op, array.MapOp) or op.fn != "multiply":
        return None
    for factor, other in (op.operands, reversed(op.operands)):
        number = _splat(other)
        if factor is product and number is not None and 0 < number < float("inf"):
            return op, number
    return None


def depends_on_positions(value: SSAValue) -> bool:
    """Whether an array is computed from its coordinates and nothing else, element by element."""
    return all(_is_position(each) or _is_elementwise(each) for each in producers_first([value], _computed_from))


def _is_position(value: SSAValue) -> bool:
    op = value.owner
    return isinstance(op, array.IotaOp) or (isinstance(op, Operation) and is_splat(op))


def _is_elementwise(value: SSAValue) -> bool:
    """Whether an array is computed element by element, or shows another one's elements."""
    op = value.owner
    if not isinstance(op, Operation):
        return False
    return isinstance(op, (*ELEMENTWISE, array.BroadcastOp, array.TransposeOp)) or is_unit_reshape(op)


def _computed_from(value: SSAValue) -> Sequence[SSAValue]:
    op = value.owner
    return op.operands if isinstance(op, Operation) and _is_elementwise(value) and not _is_position(value) else ()


def _has_infinities(value: SSAValue) -> bool:
    return array_type(value).dtype.lowest == float("-inf")


def _splat(value: SSAValue) -> float | None:
    """The number that an array holds everywhere."""
    op = value.owner
    while isinstance(op, array.BroadcastOp | array.ReshapeOp):
        op = op.operands[0].owner
    return op.value if isinstance(op, array.ConstantOp) and is_splat(op) else None


def _conjuncts(condition: SSAValue) -> list[SSAValue]:
    """Conditions that all hold where `condition` does."""
    found: list[SSAValue] = []
    pending = [condition]
    while pending:
        value = pending.pop()
        op = value.owner
        if isinstance(op, array.MapOp) and op.fn == "bitwise_and":
            pending.extend(reversed(op.operands))
        elif isinstance(op, array.MapOp) and op.fn == "select" and _is_condition(op):
            pending.append(op.operands[0])
        else:
            found.append(value)
    return found


def _is_condition(op: array.MapOp) -> bool:
    """Whether a choice is its condition as a number."""
    return _splat(op.operands[1]) == 1 and _splat(op.operands[2]) == 0


def _causal(condition: SSAValue, choice: array.MapOp | None) -> Causal | None:
    distance = _distance(condition)
    if distance is None or distance.coefficients[-1:] != (1,):
        return None
    queries = [d for d, c in enumerate(distance.coefficients[:-1]) if c]
    if not queries and array_type(condition).shape[-2:-1] == (1,):
        return Causal(len(distance.coefficients) - 2, -distance.constant, choice)
    if len(queries) != 1 or distance.coefficients[queries[0]] != -1:
        return None
    return Causal(queries[0], -distance.constant, choice)


def _distance(condition: SSAValue) -> _Position | None:
    """An affine function of positions that is at most 0 where the condition holds. The condition is a comparison of
    positions, maybe under views."""
    around: list[Operation] = []
    op = condition.owner
    while isinstance(op, array.ArrayOp) and len(op.operands) == 1 and not _compares(op):
        around.append(op)
        op = op.operands[0].owner
    found = _compared(op) if isinstance(op, array.MapOp) and _compares(op) else None
    while found is not None and around:
        found = _behind(around.pop(), found)
    return found


def _compares(op: Operation) -> bool:
    return isinstance(op, array.MapOp) and op.fn in _COMPARISONS


def _compared(op: array.MapOp) -> _Position | None:
    left, right = (_position(o) for o in op.operands)
    if left is None or right is None:
        return None
    sign, constant = _COMPARISONS[op.fn]
    return left.plus(right, -1).times(sign).plus(_Position((0,) * len(left.coefficients), constant))


def _behind(op: Operation, inner: _Position) -> _Position | None:
    """The distance of a view of a condition, or of its negation, given the condition's."""
    if not isinstance(op, array.MapOp):
        return _viewed(op, inner)
    if op.fn != "bitwise_not":
        return None
    return inner.times(-1).plus(_Position((0,) * len(inner.coefficients), 1))


def _position(value: SSAValue) -> _Position | None:
    """An array as a linear expression of its coordinates."""
    found: dict[SSAValue, _Position | None] = {}
    for each in producers_first([value], _computed_from, found):
        position = _computed(each, found)
        found[each] = position if position is not None and position.fits(each) else None
    return found[value]


def _computed(value: SSAValue, found: Mapping[SSAValue, _Position | None]) -> _Position | None:
    """The position that a value holds, from the positions of its operands, without a check of the value's type."""
    op, rank = value.owner, array_type(value).rank
    if isinstance(op, array.IotaOp):
        axis = op.axis
        return _Position(tuple(int(d == axis) for d in range(rank)), 0)
    if isinstance(op, Operation) and is_splat(op):
        number = _splat(value)
        return _Position((0,) * rank, int(number)) if number is not None and number == int(number) else None
    if not isinstance(op, array.ArrayOp) or not _is_elementwise(value):
        return None
    parts = [found[o] for o in op.operands]
    known = [p for p in parts if p is not None]
    if len(known) != len(parts):
        return None
    return _mapped(op.fn, known) if isinstance(op, array.MapOp) else _shown(op, known[0])


def _shown(op: Operation, inner: _Position) -> _Position | None:
    return inner if isinstance(op, array.CastOp) else _viewed(op, inner)


def _mapped(fn: str, parts: Sequence[_Position]) -> _Position | None:
    """A function of positions, where it is linear."""
    if fn == "negative":
        return parts[0].times(-1)
    if fn in ("add", "subtract"):
        return parts[0].plus(parts[1], 1 if fn == "add" else -1)
    if fn != "multiply":
        return None
    factors = sorted(parts, key=lambda p: any(p.coefficients))
    return None if any(factors[0].coefficients) else factors[1].times(factors[0].constant)


def _viewed(op: Operation, inner: _Position) -> _Position | None:
    """The position of a view, given that of what it shows."""
    source, shape = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    result = [0] * len(shape)
    if isinstance(op, array.BroadcastOp):
        axes: tuple[int, ...] = op.axes
        for axis, n, coefficient in zip(axes, source, inner.coefficients, strict=True):
            result[axis] = coefficient if n != 1 else 0
        return _Position(tuple(result), inner.constant)
    if isinstance(op, array.TransposeOp):
        permutation: tuple[int, ...] = op.permutation
        return _Position(tuple(inner.coefficients[p] for p in permutation), inner.constant)
    if is_unit_reshape(op):
        kept = iter(c for c, n in zip(inner.coefficients, source, strict=True) if n != 1)
        return _Position(tuple(0 if n == 1 else next(kept) for n in shape), inner.constant)
    return None
