"""Addresses of the lanes of a load or store, and the known alignment of their start.

The start of a window is arithmetic on grid indices and loop counters, whose ranges are known: as a `Size` of the layout
algebra it has bounds and a divisor. A divisor that is no multiple of a vector's elements means narrower vectors, never
wrong ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import gcd, lcm

from msgspec.structs import replace
from xdsl.dialects.builtin import TensorType
from xdsl.ir import BlockArgument, SSAValue
from xdsl.ir.affine import AffineExpr
from xdsl.ir.affine.affine_expr import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineSymExpr,
)

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.errors import LayoutError
from tilewright.layout import Dim, Layout, Size, ceil_divide, known_multiple, strided
from tilewright.layout.dims import multiply
from tilewright.machines.machine import Machine
from tilewright.passes.affine_access import Form, Index, linear_form

ANYWHERE = 1 << 62
# Elements between neighbours of which nothing is known: no two are in one line of a memory.
FAR = 4096
_serials = count()


def transferred(op: tile.LoadOp | tile.StoreOp) -> SSAValue:
    """The tile that is loaded or stored."""
    return op.result if isinstance(op, tile.LoadOp) else op.value


def window_of(op: tile.LoadOp | tile.StoreOp) -> Layout:
    """The tile's place in memory: a stride for each of its dims, and the start as the offset. Dims along which the
    elements are anywhere, as in a gather, step from line to line."""
    shape = array_type(transferred(op)).shape
    strides, forms = _strides(op)
    symbols = [_values_of(symbol, f"s{position}") for position, symbol in enumerate(op.symbols)]
    constant = 0
    factors: dict[int, int] = {}
    start: Size = 0
    for step, expression, form in forms:
        if form is None:
            start = start + multiply(start_of(expression, symbols), step)
            continue
        constant += step * form.constant
        for position, coefficient in form.symbols:
            factors[position] = factors.get(position, 0) + step * coefficient
    for position, factor in factors.items():
        start = start + multiply(symbols[position], factor)
    return replace(strided(shape, strides), offset=(("mem", start + constant),))


def fastest_dim(op: tile.LoadOp | tile.StoreOp) -> int:
    """The dim of the tile along which elements are nearest to each other in memory; 0 of a scalar."""
    shape = array_type(transferred(op)).shape
    strides, _ = _strides(op)
    steps = [abs(s) if s and size not in (0, 1) else 1 << 60 for s, size in zip(strides, shape, strict=True)]
    return steps.index(min(steps)) if steps else 0


def _strides(op: tile.LoadOp | tile.StoreOp) -> tuple[list[int], list[tuple[int, AffineExpr, Form | None]]]:
    """Elements in memory between neighbours along each dim of the tile; for each dim of the array the elements between
    its neighbours, the coordinate, and its linear form, if it has one."""
    ref = op.source if isinstance(op, tile.LoadOp) else op.destination
    shape, extents = array_type(transferred(op)).shape, tile.ref_type(ref).shape
    at = tuple(Index(n) for n in range(len(shape)))
    strides = [0] * len(shape)
    forms: list[tuple[int, AffineExpr, Form | None]] = []
    step = 1
    for size, expression in zip(reversed(extents), reversed(op.map.results), strict=True):
        form = linear_form(expression, at)
        forms.append((step, expression, form))
        for dim, coefficient in form.dims if form is not None else ():
            strides[dim] += step * coefficient
        step *= max(1, size)  # of an empty array nothing is loaded, but its tiles have their shape
    far = FAR
    for dim in sorted(_scattered(op, [form for *_, form in reversed(forms)])):
        strides[dim] += far
        far *= shape[dim]
    return strides, forms


def _scattered(op: tile.LoadOp | tile.StoreOp, forms: Sequence[Form | None]) -> set[int]:
    """The dims along which a coordinate is taken from a tile of indices, or is not linear."""
    found: set[int] = set()
    rank = len(array_type(transferred(op)).shape)
    if None not in forms and not any(isinstance(symbol.type, TensorType) for symbol in op.symbols):
        return found
    for expression, form in zip(op.map.results, forms, strict=True):
        for part in expression.dfs():
            if isinstance(part, AffineDimExpr) and form is None:
                found.add(part.position)
            elif isinstance(part, AffineSymExpr):
                found.update(_lane_dims(op.symbols[part.position], rank))
    return found


def _lane_dims(symbol: SSAValue, rank: int) -> Sequence[int]:
    """The dims along which a symbol differs from lane to lane."""
    if not isinstance(symbol.type, TensorType):
        return ()
    owner = symbol.owner
    return owner.axes if isinstance(owner, tile.BroadcastOp) else range(rank)


def misaligned(window: Layout, machine: Machine, dtype: DType) -> Layout:
    """The window at a static start with no more divisors than its own is known to have. Accesses of a memory repeat
    with its lines and with the rows of its banks, so that only the remainder matters."""
    memory = machine.memory_of("mem")
    period = lcm(memory.line_bytes, memory.bank_bytes * (memory.banks or 32)) // max(1, dtype.itemsize)
    start = dict(window.offset).get("mem", 0)
    # Of the starts that an unknown one may have, the last before a border: the tile's first row crosses it at once.
    first = start % period if isinstance(start, int) else period - gcd(known_multiple(start), period)
    return replace(window, offset=(("mem", first),))


def start_of(expression: AffineExpr, symbols: list[Size]) -> Size:
    """The coordinate of a tile's first lane."""
    if isinstance(expression, AffineConstantExpr):
        return expression.value
    if isinstance(expression, AffineDimExpr):
        return 0
    if isinstance(expression, AffineSymExpr):
        return symbols[expression.position]
    if not isinstance(expression, AffineBinaryOpExpr):
        return _unknown(1)
    left, right = start_of(expression.lhs, symbols), start_of(expression.rhs, symbols)
    try:
        return _combined(expression.kind, left, right)
    except LayoutError:  # it has no closed form, but the divisor of a remainder may be known
        is_remainder = expression.kind is AffineBinaryOpKind.Mod
        return _unknown(gcd(known_multiple(left), known_multiple(right)) if is_remainder else 1)


def _combined(kind: AffineBinaryOpKind, left: Size, right: Size) -> Size:
    if kind is AffineBinaryOpKind.Add:
        return left + right
    if kind is AffineBinaryOpKind.Mul:
        return multiply(left, right)
    if not isinstance(right, int):
        raise LayoutError("a division by something unknown", help="divide by a constant")
    if kind is AffineBinaryOpKind.FloorDiv:
        return left // right
    return left % right if kind is AffineBinaryOpKind.Mod else ceil_divide(left, right)


def _values_of(symbol: SSAValue, name: str) -> Size:
    """The range of an index: the counters of the grid and of loops have known ranges, the lanes of a gather none."""
    trips = _trips_of(symbol) if isinstance(symbol, BlockArgument) else None
    return _unknown(1) if trips is None else Dim(0, max(0, trips - 1), 1, name)


def _trips_of(argument: BlockArgument) -> int | None:
    owner = argument.owner.parent_op()
    if isinstance(owner, tile.ForOp) and argument.index == 0:
        return owner.trips
    if isinstance(owner, tile.KernelOp) and argument in owner.indices:
        return owner.grid[list(owner.indices).index(argument)]
    return None


def _unknown(multiple_of: int) -> Size:
    # Equal Dims are one number: each of these is another.
    return Dim(-ANYWHERE, ANYWHERE, max(1, multiple_of), f"unknown{next(_serials)}")
