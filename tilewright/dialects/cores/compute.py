"""Operations of the compute thread, and the unit configurations that they need."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import (
    IndexType,
)
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.utils.exceptions import VerifyException

from tilewright import ops
from tilewright.dialects.cores.structure import (
    BROADCASTS,
    COLUMN,
    FOLDS,
    MATRIX,
    PACK,
    ROW,
    SCALAR,
    STEPS,
    UNITS,
    UNPACK_A,
    UNPACK_B,
    VECTOR,
    ComputeOp,
    QueueType,
    queue_type,
    verify_map,
)
from tilewright.dialects.fields import attribute, operand, operands, operation


@operation
class ConfigureOp(ComputeOp):
    """The unit's state becomes `state` and stays so; `queues` are those whose formats or places it is about."""

    name = "cores.configure"
    queues: Sequence[SSAValue] = operands(QueueType, default=())
    unit: str = attribute()
    state: str = attribute()

    def verify_(self) -> None:
        if self.unit not in UNITS:
            raise VerifyException(f"cores.configure: no unit `{self.unit}`")


@operation
class RegistersOp(ComputeOp):
    """A step of the protocol by which the tile registers pass from what computes to what packs: `acquire` (what
    computes continues when it has a half of them, whose contents are undefined), `commit` (it gives them up), `wait`
    (what packs continues when it has been given them), `release` (it gives them back)."""

    name = "cores.registers"
    step: str = attribute()

    def verify_(self) -> None:
        if self.step not in STEPS:
            raise VerifyException(f"cores.registers: no step `{self.step}`")


class RegisterOp(ComputeOp):
    """An operation that writes `count` tile registers from `slot` on."""

    slot: int = attribute()
    count: int = attribute()

    @property
    def slots(self) -> range:
        first = self.slot
        return range(first, first + self.count)


@operation
class CopyOp(RegisterOp):
    """Register `slot + d0` becomes page `at(d0)`, whose first row, first column or first element is repeated by
    `broadcast`, or which is transposed. Formats of 32 bits go to the registers as they are, without the inputs of the
    matrix unit, which are narrower."""

    name = "cores.copy"
    queue: SSAValue = operand(QueueType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    at: AffineMap = attribute()
    broadcast: str = attribute()
    transpose: bool = attribute(default=False)

    def verify_(self) -> None:
        verify_map(self, "the page", self.at, 1, 1)
        if self.broadcast not in BROADCASTS:
            raise VerifyException(f"cores.copy: no broadcast `{self.broadcast}`")


@operation
class TilizeOp(RegisterOp):
    """Registers from `slot` on become the device tiles side by side of 32 rows, each as long as `count` tiles are wide:
    the pages `at(d0)`, one after another, hold them row by row. Formats of 32 bits go to the registers as they are."""

    name = "cores.tilize"
    queue: SSAValue = operand(QueueType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    at: AffineMap = attribute()

    def verify_(self) -> None:
        verify_map(self, "the page", self.at, 1, 1)


@operation
class BinaryOp(RegisterOp):
    """Register `slot + d0` becomes `fn` (add, subtract, multiply) of page `left_at(d0)` and page `right_at(d0)`, whose
    first row, column or element is repeated by `broadcast`, by the matrix unit; with `accumulates` it is added."""

    name = "cores.binary"
    left: SSAValue = operand(QueueType)
    right: SSAValue = operand(QueueType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    fn: str = attribute()
    left_at: AffineMap = attribute()
    right_at: AffineMap = attribute()
    broadcast: str = attribute()
    accumulates: bool = attribute(default=False)

    def verify_(self) -> None:
        verify_map(self, "the left page", self.left_at, 1, 1)
        verify_map(self, "the right page", self.right_at, 1, 1)
        if self.fn not in ("add", "subtract", "multiply") or self.broadcast not in BROADCASTS:
            raise VerifyException(f"cores.binary: `{self.fn}` with the broadcast `{self.broadcast}`")


@operation
class MatmulOp(RegisterOp):
    """The matmul of `rows` x `depth` and `depth` x `columns` pages is added to the registers from `slot` on, row-major;
    `count` is rows * columns. Row r, step k of the left operand is page `left_at + r * left_stride + k`, step k, column
    c of the right one page `right_at + k * right_stride + c`, each transposed with `transpose`."""

    name = "cores.matmul"
    left: SSAValue = operand(QueueType)
    right: SSAValue = operand(QueueType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    left_at: AffineMap = attribute()
    right_at: AffineMap = attribute()
    block: tuple[int, ...] = attribute()
    left_stride: int = attribute()
    right_stride: int = attribute()
    transpose: bool = attribute(default=False)

    @property
    def block_shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth, in pages."""
        rows, columns, depth = self.block
        return rows, columns, depth

    def verify_(self) -> None:
        verify_map(self, "the left page", self.left_at, 0, 1)
        verify_map(self, "the right page", self.right_at, 0, 1)
        if prod(self.block_shape[:2]) != len(self.slots):
            raise VerifyException(f"cores.matmul: a block of {self.block_shape[:2]} in {len(self.slots)} registers")


@operation
class ReduceOp(RegisterOp):
    """Pages `at(d0)` for d0 below `pages` are reduced by `fn` (add, maximum) along their rows (`row`: the results are
    in the first column), along their columns (`column`: in the first row) or both (`scalar`: in the first element),
    and combined with the register; a sum is multiplied by the scaler in page 0 of `scaler`."""

    name = "cores.reduce"
    queue: SSAValue = operand(QueueType)
    scaler: SSAValue = operand(QueueType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    fn: str = attribute()
    along: str = attribute()
    at: AffineMap = attribute()
    pages: int = attribute()

    def verify_(self) -> None:
        verify_map(self, "the page", self.at, 1, 1)
        if self.fn not in ("add", "maximum") or self.along not in (ROW, COLUMN, SCALAR):
            raise VerifyException(f"cores.reduce: `{self.fn}` along `{self.along}`")
        if len(self.slots) != 1:
            raise VerifyException("cores.reduce: to more than one register")


@operation
class MapOp(RegisterOp):
    """Register `slot + i` becomes `fn`, of the table of scalar functions or `fill`, of its operands, by the vector
    unit, in the type `dtype`: an operand n that is not negative is register n + i, else it is number -1 - n of
    `numbers`. `fill` is the operand itself. `dtype` is f32, i32 or u32. Comparisons and tests give 0 or 1 of `dtype`; a
    `select` chooses by whether its first operand, of `dtype` too, is not 0."""

    name = "cores.map"
    fn: str = attribute()
    dtype: str = attribute()
    arguments: tuple[int, ...] = attribute()
    numbers: tuple[float, ...] = attribute()

    @property
    def operand_numbers(self) -> tuple[int, ...]:
        return self.arguments

    def verify_(self) -> None:
        function, given = ops.FUNCTIONS.get(self.fn), len(self.operand_numbers)
        if given != (1 if self.fn == "fill" else 0 if function is None else function.arity):
            raise VerifyException(f"cores.map: `{self.fn}` of {given} operands")
        if any(-1 - n >= len(self.numbers) for n in self.operand_numbers if n < 0):
            raise VerifyException("cores.map: an operand is none of its numbers")


@operation
class CastOp(RegisterOp):
    """Registers from `slot` on become those from `source` on, converted between two of the types f32, i32, u32, or
    rounded to bf16 or f16, which stay f32. With `bits` their bits stay, and are taken for the other type's."""

    name = "cores.cast"
    source: int = attribute()
    from_type: str = attribute()
    to_type: str = attribute()
    bits: bool = attribute(default=False)

    def verify_(self) -> None:
        types = self.from_type, self.to_type
        if self.bits and not {*types} <= {"f32", "i32", "u32"}:
            raise VerifyException(f"cores.cast: the bits of {types[0]} are not taken for {types[1]}")


@operation
class FoldOp(RegisterOp):
    """Each register from `slot` on is reduced by `fn` (add, maximum, minimum) in the type `dtype`, without a loss,
    along its rows (`row`: the results are in its first column) or its columns (`column`: in its first row), by the
    vector unit. Its other elements are undefined after that."""

    name = "cores.fold"
    fn: str = attribute()
    along: str = attribute()
    dtype: str = attribute()

    def verify_(self) -> None:
        if self.fn not in FOLDS or self.along not in (ROW, COLUMN):
            raise VerifyException(f"cores.fold: `{self.fn}` along `{self.along}`")


@operation
class AccumulateOp(ComputeOp):
    """From now on what is packed is added to what the page holds where `map(symbols)` is not 0, else it replaces it."""

    name = "cores.accumulate"
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    map: AffineMap = attribute()

    def verify_(self) -> None:
        verify_map(self, "the condition", self.map, 0, 1)


class PackingOp(ComputeOp):
    """An operation that writes `count` pages of the reserved ones, `at(d0)`, from the registers from `slot` on."""

    queue: SSAValue = operand(QueueType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    slot: int = attribute()
    count: int = attribute()
    at: AffineMap = attribute()

    @property
    def slots(self) -> range:
        first = self.slot
        return range(first, first + self.count)

    def verify_(self) -> None:
        verify_map(self, "the page", self.at, 1, 1)


@operation
class PackOp(PackingOp):
    """Page `at(d0)` becomes register `slot + d0`."""

    name = "cores.pack"


@operation
class UntilizeOp(PackingOp):
    """The pages, one after another, become 32 rows, one after another: those of the registers, which are device tiles
    side by side."""

    name = "cores.untilize"


def states_of(op: Operation) -> dict[str, str]:
    """The states that units must have for an operation to do what it states."""
    match op:
        case CopyOp():
            form = f"copy {op.broadcast}" + (" transposed" if op.transpose else "")
            return {UNPACK_A: _format(op.queue), MATRIX: form}
        case TilizeOp():
            return {UNPACK_A: _format(op.queue), MATRIX: f"tilize {len(op.slots)}"}
        case BinaryOp():
            form = f"{op.fn} {op.broadcast}" + (" accumulating" if op.accumulates else "")
            return {UNPACK_A: _format(op.left), UNPACK_B: _format(op.right), MATRIX: form}
        case MatmulOp():
            form = f"matmul {'x'.join(map(str, op.block_shape))} {op.left_stride}"
            form += " transposed" if op.transpose else ""
            # The right operand goes to the first input of the matrix unit.
            return {UNPACK_A: _format(op.right), UNPACK_B: _format(op.left), MATRIX: form}
        case ReduceOp():
            form = f"reduce {op.fn} {op.along}"
            return {UNPACK_A: _format(op.queue), UNPACK_B: _format(op.scaler), MATRIX: form}
        case MapOp():
            return {VECTOR: op.fn}
        case FoldOp():
            return {VECTOR: f"fold {op.fn} {op.along} {op.dtype}"}
        case CastOp():
            return {VECTOR: "cast bits" if op.bits else f"cast {op.from_type} {op.to_type}"}
        case UntilizeOp():
            return {PACK: f"{_format(op.queue)} by rows of {len(op.slots)}"}
        case PackOp():
            return {PACK: _format(op.queue)}
        case _:
            return {}


def _format(queue: SSAValue) -> str:
    return queue_type(queue).format.data
