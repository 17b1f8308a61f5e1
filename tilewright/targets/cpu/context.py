"""Shared state of the emitters of one native function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr
from xdsl.ir.affine.affine_expr import AffineBinaryOpExpr, AffineBinaryOpKind, AffineConstantExpr

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.machines.machine import Machine
from tilewright.passes.affine_access import Form
from tilewright.targets.cpu.loops import add, i64, maximum, minimum, multiply, offset_pointer, static
from tilewright.targets.llvm.functions import emit_function
from tilewright.targets.llvm.values import Builder, Value

ALIGNMENT = 64
# Between the scratch memories of two threads: what one reads in order is fetched ahead to the end of its page, which
# would take from the other the lines that it writes there.
GUARD_BYTES = 4096
_INTEGER_FUNCTIONS = {
    AffineBinaryOpKind.Add: "add",
    AffineBinaryOpKind.Mul: "multiply",
    AffineBinaryOpKind.FloorDiv: "floor_divide",
    AffineBinaryOpKind.Mod: "remainder",
}


def round_up(value: int, multiple: int = ALIGNMENT) -> int:
    return -(-value // multiple) * multiple


class Scratch(msgspec.Struct):
    """Bytes of one thread's scratch memory, the most that any kernel needs."""

    bytes: int = 0

    def require(self, bytes: int) -> None:
        if bytes:
            self.bytes = max(self.bytes, round_up(bytes) + GUARD_BYTES)


class FunctionContext(msgspec.Struct, eq=False):
    """One function: `pointers` of refs, `scalars` of index values and how many values each may take (`bounds`).

    Of the block that is being emitted: what earlier nests have `loaded` from arrays, the `upcoming` stores to arrays of
    later nests, and the stores of earlier nests that ask for the lines of one of those (`claimed`), and the counter of
    the loop in which a nest takes turns with a matmul (`turn`). `kept` are the panels of right operands that matmuls
    keep for later ones. `past_caches` states whether some stores of the function need a fence after them."""

    builder: Builder
    machine: Machine
    worker: Value
    scratch: Scratch
    used_bytes: int
    effect_of: Callable[[FunctionContext, Operation, Value, Value | None], None]
    pointers: dict[SSAValue, Value] = msgspec.field(default_factory=dict)
    scalars: dict[SSAValue, Value] = msgspec.field(default_factory=dict)
    bounds: dict[SSAValue, int] = msgspec.field(default_factory=dict)
    turn: SSAValue | None = None
    loaded: Sequence[tile.LoadOp] = ()
    upcoming: Sequence[tile.StoreOp] = ()
    claimed: dict[tile.StoreOp, tile.StoreOp] = msgspec.field(default_factory=dict)
    kept: dict[SSAValue, Value] = msgspec.field(default_factory=dict)
    past_caches: bool = False

    def bound(self, symbol: SSAValue) -> int:
        return self.bounds[symbol]

    def cut(self, extent: Value, limit: int, start: Form, symbols: Sequence[SSAValue]) -> Value:
        """An extent from a start on, no farther than to a limit."""
        known = static(extent)
        if known is not None and self.highest(start, symbols) + known <= limit:
            return extent
        return minimum(self.builder, extent, self.room(limit, start, symbols))

    def room(self, limit: int, start: Form, symbols: Sequence[SSAValue]) -> Value:
        """How many positions are between a start, a form of index scalars, and a limit; none if it starts beyond."""
        value: Value = i64(start.constant)
        for position, coefficient in start.symbols:
            value = add(self.builder, value, multiply(self.builder, self.scalars[symbols[position]], coefficient))
        known = static(value)
        if known is not None:
            return i64(max(0, limit - known))
        room = self.builder.sub(i64(limit), value)
        return room if self.highest(start, symbols) <= limit else maximum(self.builder, room, i64(0))

    def expression(self, expression: AffineExpr, symbols: Sequence[SSAValue]) -> Value:
        """The value of an affine expression of index scalars."""
        if isinstance(expression, AffineConstantExpr):
            return i64(expression.value)
        if isinstance(expression, AffineBinaryOpExpr):
            left, right = (self.expression(e, symbols) for e in (expression.lhs, expression.rhs))
            fn = _INTEGER_FUNCTIONS[expression.kind]
            return emit_function(self.builder, fn, dtypes.i64, [left, right])
        return self.scalars[symbols[expression.position]]  # type: ignore[attr-defined]  the only kind left

    def highest(self, form: Form, symbols: Sequence[SSAValue]) -> int:
        """The largest value of a form at dimensions 0."""
        return form.constant + sum(max(0, c * (self.bound(symbols[s]) - 1)) for s, c in form.symbols)

    def effect(self, op: Operation, value: Value, mask: Value | None) -> None:
        """Print or check a value."""
        self.effect_of(self, op, value, mask)

    def temporary(self, bytes: int) -> Value:
        """Scratch memory of this thread beyond the planned buffers, until the function returns."""
        start = self.used_bytes
        self.used_bytes += round_up(bytes)
        self.scratch.require(self.used_bytes)
        # Where the function begins: another part of a loop than the one that asks first may use it, too.
        with self.builder.goto_entry_block():
            return offset_pointer(self.builder, self.worker, i64(start), 1)
