"""Operations of the compute thread, and the unit configurations that they need."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    FloatAttr,
    IndexType,
    IntegerAttr,
    StringAttr,
)
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from tilewright import ops
from tilewright.dialects.base import decode
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


@irdl_op_definition
class ConfigureOp(ComputeOp):
    """The unit's state becomes `state` and stays so; `queues` are those whose formats or places it is about."""

    name = "cores.configure"
    queues = var_operand_def(QueueType)
    unit = prop_def(StringAttr)
    state = prop_def(StringAttr)

    def verify_(self) -> None:
        if self.unit.data not in UNITS:
            raise VerifyException(f"cores.configure: no unit `{self.unit.data}`")


@irdl_op_definition
class RegistersOp(ComputeOp):
    """A step of the protocol by which the tile registers pass from what computes to what packs: `acquire` (what
    computes continues when it has a half of them, whose contents are undefined), `commit` (it gives them up), `wait`
    (what packs continues when it has been given them), `release` (it gives them back)."""

    name = "cores.registers"
    step = prop_def(StringAttr)

    def verify_(self) -> None:
        if self.step.data not in STEPS:
            raise VerifyException(f"cores.registers: no step `{self.step.data}`")


class RegisterOp(ComputeOp):
    """An operation that writes `count` tile registers from `slot` on."""

    slot = prop_def(IntegerAttr)
    count = prop_def(IntegerAttr)

    @property
    def slots(self) -> range:
        first = int(self.slot.value.data)
        return range(first, first + int(self.count.value.data))


@irdl_op_definition
class CopyOp(RegisterOp):
    """Register `slot + d0` becomes page `at(d0)`, whose first row, first column or first element is repeated by
    `broadcast`, or which is transposed. Formats of 32 bits go to the registers as they are, without the inputs of the
    matrix unit, which are narrower."""

    name = "cores.copy"
    queue = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    at = prop_def(AffineMapAttr)
    broadcast = prop_def(StringAttr)
    transpose = opt_prop_def(BoolAttr)

    def verify_(self) -> None:
        verify_map(self, "the page", self.at, 1, 1)
        if self.broadcast.data not in BROADCASTS:
            raise VerifyException(f"cores.copy: no broadcast `{self.broadcast.data}`")


@irdl_op_definition
class TilizeOp(RegisterOp):
    """Registers from `slot` on become the device tiles side by side of 32 rows, each as long as `count` tiles are wide:
    the pages `at(d0)`, one after another, hold them row by row. Formats of 32 bits go to the registers as they are."""

    name = "cores.tilize"
    queue = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    at = prop_def(AffineMapAttr)

    def verify_(self) -> None:
        verify_map(self, "the page", self.at, 1, 1)


@irdl_op_definition
class BinaryOp(RegisterOp):
    """Register `slot + d0` becomes `fn` (add, subtract, multiply) of page `left_at(d0)` and page `right_at(d0)`, whose
    first row, column or element is repeated by `broadcast`, by the matrix unit; with `accumulates` it is added."""

    name = "cores.binary"
    left = operand_def(QueueType)
    right = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    fn = prop_def(StringAttr)
    left_at = prop_def(AffineMapAttr)
    right_at = prop_def(AffineMapAttr)
    broadcast = prop_def(StringAttr)
    accumulates = opt_prop_def(BoolAttr)

    def verify_(self) -> None:
        verify_map(self, "the left page", self.left_at, 1, 1)
        verify_map(self, "the right page", self.right_at, 1, 1)
        if self.fn.data not in ("add", "subtract", "multiply") or self.broadcast.data not in BROADCASTS:
            raise VerifyException(f"cores.binary: `{self.fn.data}` with the broadcast `{self.broadcast.data}`")


@irdl_op_definition
class MatmulOp(RegisterOp):
    """The matmul of `rows` x `depth` and `depth` x `columns` pages is added to the registers from `slot` on, row-major;
    `count` is rows * columns. Row r, step k of the left operand is page `left_at + r * left_stride + k`, step k, column
    c of the right one page `right_at + k * right_stride + c`, each transposed with `transpose`."""

    name = "cores.matmul"
    left = operand_def(QueueType)
    right = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    left_at = prop_def(AffineMapAttr)
    right_at = prop_def(AffineMapAttr)
    block = prop_def(DenseArrayBase)
    left_stride = prop_def(IntegerAttr)
    right_stride = prop_def(IntegerAttr)
    transpose = opt_prop_def(BoolAttr)

    @property
    def block_shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth, in pages."""
        rows, columns, depth = decode(self.block)
        return rows, columns, depth

    def verify_(self) -> None:
        verify_map(self, "the left page", self.left_at, 0, 1)
        verify_map(self, "the right page", self.right_at, 0, 1)
        if prod(self.block_shape[:2]) != len(self.slots):
            raise VerifyException(f"cores.matmul: a block of {self.block_shape[:2]} in {len(self.slots)} registers")


@irdl_op_definition
class ReduceOp(RegisterOp):
    """Pages `at(d0)` for d0 below `pages` are reduced by `fn` (add, maximum) along their rows (`row`: the results are
    in the first column), along their columns (`column`: in the first row) or both (`scalar`: in the first element),
    and combined with the register; a sum is multiplied by the scaler in page 0 of `scaler`."""

    name = "cores.reduce"
    queue = operand_def(QueueType)
    scaler = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    fn = prop_def(StringAttr)
    along = prop_def(StringAttr)
    at = prop_def(AffineMapAttr)
    pages = prop_def(IntegerAttr)

    def verify_(self) -> None:
        verify_map(self, "the page", self.at, 1, 1)
        if self.fn.data not in ("add", "maximum") or self.along.data not in (ROW, COLUMN, SCALAR):
            raise VerifyException(f"cores.reduce: `{self.fn.data}` along `{self.along.data}`")
        if len(self.slots) != 1:
            raise VerifyException("cores.reduce: to more than one register")


@irdl_op_definition
class MapOp(RegisterOp):
    """Register `slot + i` becomes `fn`, of the table of scalar functions or `fill`, of its operands, by the vector
    unit, in the type `dtype`: an operand n that is not negative is register n + i, else it is number -1 - n of
    `numbers`. `fill` is the operand itself. `dtype` is f32, i32 or u32. Comparisons and tests give 0 or 1 of `dtype`; a
    `select` chooses by whether its first operand, of `dtype` too, is not 0."""

    name = "cores.map"
    fn = prop_def(StringAttr)
    dtype = prop_def(StringAttr)
    arguments = prop_def(DenseArrayBase)
    numbers = prop_def(ArrayAttr[FloatAttr])

    @property
    def operand_numbers(self) -> tuple[int, ...]:
        return decode(self.arguments)

    def verify_(self) -> None:
        function, given = ops.FUNCTIONS.get(self.fn.data), len(self.operand_numbers)
        if given != (1 if self.fn.data == "fill" else 0 if function is None else function.arity):
            raise VerifyException(f"cores.map: `{self.fn.data}` of {given} operands")
        if any(-1 - n >= len(self.numbers.data) for n in self.operand_numbers if n < 0):
            raise VerifyException("cores.map: an operand is none of its numbers")


@irdl_op_definition
class CastOp(RegisterOp):
    """Registers from `slot` on become those from `source` on, converted between two of the types f32, i32, u32, or
    rounded to bf16 or f16, which stay f32. With `bits` their bits stay, and are taken for the other type's."""

    name = "cores.cast"
    source = prop_def(IntegerAttr)
    from_type = prop_def(StringAttr)
    to_type = prop_def(StringAttr)
    bits = opt_prop_def(BoolAttr)

    def verify_(self) -> None:
        types = self.from_type.data, self.to_type.data
        if self.bits is not None and not {*types} <= {"f32", "i32", "u32"}:
            raise VerifyException(f"cores.cast: the bits of {types[0]} are not taken for {types[1]}")


@irdl_op_definition
class FoldOp(RegisterOp):
    """Each register from `slot` on is reduced by `fn` (add, maximum, minimum) in the type `dtype`, without a loss,
    along its rows (`row`: the results are in its first column) or its columns (`column`: in its first row), by the
    vector unit. Its other elements are undefined after that."""

    name = "cores.fold"
    fn = prop_def(StringAttr)
    along = prop_def(StringAttr)
    dtype = prop_def(StringAttr)

    def verify_(self) -> None:
        if self.fn.data not in FOLDS or self.along.data not in (ROW, COLUMN):
            raise VerifyException(f"cores.fold: `{self.fn.data}` along `{self.along.data}`")


@irdl_op_definition
class AccumulateOp(ComputeOp):
    """From now on what is packed is added to what the page holds where `map(symbols)` is not 0, else it replaces it."""

    name = "cores.accumulate"
    symbols = var_operand_def(IndexType)
    map = prop_def(AffineMapAttr)

    def verify_(self) -> None:
        verify_map(self, "the condition", self.map, 0, 1)


class PackingOp(ComputeOp):
    """An operation that writes `count` pages of the reserved ones, `at(d0)`, from the registers from `slot` on."""

    queue = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    slot = prop_def(IntegerAttr)
    count = prop_def(IntegerAttr)
    at = prop_def(AffineMapAttr)

    @property
    def slots(self) -> range:
        first = int(self.slot.value.data)
        return range(first, first + int(self.count.value.data))

    def verify_(self) -> None:
        verify_map(self, "the page", self.at, 1, 1)


@irdl_op_definition
class PackOp(PackingOp):
    """Page `at(d0)` becomes register `slot + d0`."""

    name = "cores.pack"


@irdl_op_definition
class UntilizeOp(PackingOp):
    """The pages, one after another, become 32 rows, one after another: those of the registers, which are device tiles
    side by side."""

    name = "cores.untilize"


def states_of(op: Operation) -> dict[str, str]:
    """The states that units must have for an operation to do what it states."""
    match op:
        case CopyOp():
            form = f"copy {op.broadcast.data}" + (" transposed" if op.transpose is not None else "")
            return {UNPACK_A: _format(op.queue), MATRIX: form}
        case TilizeOp():
            return {UNPACK_A: _format(op.queue), MATRIX: f"tilize {len(op.slots)}"}
        case BinaryOp():
            form = f"{op.fn.data} {op.broadcast.data}" + (" accumulating" if op.accumulates is not None else "")
            return {UNPACK_A: _format(op.left), UNPACK_B: _format(op.right), MATRIX: form}
        case MatmulOp():
            form = f"matmul {'x'.join(map(str, op.block_shape))} {decode(op.left_stride)}"
            form += " transposed" if op.transpose is not None else ""
            # The right operand goes to the first input of the matrix unit.
            return {UNPACK_A: _format(op.right), UNPACK_B: _format(op.left), MATRIX: form}
        case ReduceOp():
            form = f"reduce {op.fn.data} {op.along.data}"
            return {UNPACK_A: _format(op.queue), UNPACK_B: _format(op.scaler), MATRIX: form}
        case MapOp():
            return {VECTOR: op.fn.data}
        case FoldOp():
            return {VECTOR: f"fold {op.fn.data} {op.along.data} {op.dtype.data}"}
        case CastOp():
            return {VECTOR: "cast bits" if op.bits is not None else f"cast {op.from_type.data} {op.to_type.data}"}
        case UntilizeOp():
            return {PACK: f"{_format(op.queue)} by rows of {len(op.slots)}"}
        case PackOp():
            return {PACK: _format(op.queue)}
        case _:
            return {}


def _format(queue: SSAValue) -> str:
    return queue_type(queue).format.data
