"""MMAs: by the tensor cores of single warps, and by multiplying and adding without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.passes.warps.warp_space import SCALAR
from tilewright.targets.cuda.emit_memory import Memory
from tilewright.targets.cuda.fragments import I32, Builder, Coordinates, Fragment, Threads, Value, i32, registers_of
from tilewright.targets.cuda.functions import emit_cast, rounded_to_tf32
from tilewright.targets.cuda.matrices import Matrices
from tilewright.targets.llvm.conversions import load_form, widen
from tilewright.targets.llvm.values import intrinsic

# The family of the instructions of single warps.
MMA = "mma.sync"

# A tile in registers, a buffer, or one that is read by matrices.
Operand = Fragment | Memory | Matrices


def emit_mma(threads: Threads, atom: str, left: Operand, right: Operand, accumulator: Fragment) -> Fragment:
    """`accumulator + left @ right` by an atom.

    Raises:
        CompilerBug: the operands are not where the atom takes them.
    """
    if atom == SCALAR and isinstance(left, Memory) and isinstance(right, Memory):
        return _multiply_and_add(threads, left, right, accumulator)
    if atom.startswith(MMA) and not isinstance(left, Memory) and not isinstance(right, Memory):
        return _by_warps(threads.builder, left, right, accumulator)
    raise CompilerBug(f"the atom `{atom}` does not take its operands there")


# ---- without tensor cores -------------------------------------------------------------------------------------------


def _multiply_and_add(threads: Threads, left: Memory, right: Memory, accumulator: Fragment) -> Fragment:
    """A loop over the depth that computes the matmul with FMAs: in each step a thread adds the outer product of a
    column of its rows and a row of its columns."""
    builder, depth = threads.builder, left.shape[1]
    coordinates = Coordinates(threads, accumulator.layout)
    registers = list(registers_of(coordinates.table))
    places = {number: coordinates.at(digits) for number, digits in registers}
    before = builder.block
    body, after = builder.append_basic_block("depth"), builder.append_basic_block("after")
    builder.branch(body)
    builder.position_at_end(body)
    step = builder.phi(I32)
    step.add_incoming(i32(0), before)
    sums = {number: builder.phi(accumulator.values[number].type) for number, _ in registers}
    rows, columns = _Line(builder, left, accumulator.dtype, 0), _Line(builder, right, accumulator.dtype, 1)
    for number, digits in registers:
        row, column = (coordinates.register_part(dim, digits) for dim in (0, 1))
        a = rows.element(row, places[number][0], step)
        b = columns.element(column, places[number][1], step)
        total = _multiplied(builder, a, b, sums[number])
        sums[number].add_incoming(accumulator.values[number], before)
        sums[number].add_incoming(total, body)
    following = builder.add(step, i32(1))
    step.add_incoming(following, body)
    totals = {number: phi.incomings[1][0] for number, phi in sums.items()}
    builder.cbranch(builder.icmp_unsigned("<", following, i32(depth)), body, after)
    builder.position_at_end(after)
    return Fragment(accumulator.layout, accumulator.dtype, totals)


@dataclass
class _Line:
    """The elements of an operand at one step of the depth: along dim `across`, each read once."""

    builder: Builder
    memory: Memory
    dtype: DType
    across: int

    def __post_init__(self) -> None:
        self._read: dict[int, Value] = {}

    def element(self, register_part: int, place: Value, step: Value) -> Value:
        """The element at a position, in the accumulator's register form. Positions that differ in `register_part` have
        elements of their own."""
        if register_part not in self._read:
            self._read[register_part] = self._load(place, step)
        return self._read[register_part]

    def _load(self, place: Value, step: Value) -> Value:
        builder, memory = self.builder, self.memory
        size = memory.shape[self.across]
        inside = builder.icmp_unsigned("<", place, i32(size))
        place = builder.select(inside, place, i32(0))  # what padding holds does not matter
        row, column = (place, step) if self.across == 0 else (step, place)
        offset = builder.add(builder.mul(row, i32(memory.shape[1])), column)
        pointer = builder.gep(memory.pointer, [offset], source_etype=load_form(memory.dtype))
        raw = builder.load(pointer, typ=load_form(memory.dtype), align=memory.dtype.itemsize)
        value = widen(builder, raw, memory.dtype)
        if memory.dtype == dtypes.tf32:  # a buffer of it holds f32 numbers
            value = rounded_to_tf32(builder, value)
        return emit_cast(builder, value, memory.dtype, self.dtype)


def _multiplied(builder: Builder, a: Value, b: Value, total: Value) -> Value:
    if isinstance(total.type, ir.IntType):
        return builder.add(total, builder.mul(a, b))
    return intrinsic(builder, "fma", [a, b, total])


# ---- mma.sync -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Instruction:
    """An `mma.sync` of 16 rows and 8 columns: its depth, which is 256 bits, and the names of its types in PTX."""

    depth: int
    left: str
    right: str
    accumulator: str


_PTX_NAMES: Mapping[str, str] = {"bf16": "bf16", "f16": "f16", "i8": "s8", "f32": "f32", "i32": "s32"} | {
    "f8e4m3fn": "e4m3",
    "f8e5m2": "e5m2",
    "tf32": "tf32",
}
_DEPTH_BYTES = 32


def _by_warps(
    builder: Builder, left: Fragment | Matrices, right: Fragment | Matrices, accumulator: Fragment
) -> Fragment:
    """Issue MMAs for each warp's part: registers of one instruction are consecutive, its tiles row by row
    (`catalogue`). Operands in buffers are loaded one depth step ahead of their MMAs."""
    names = (_PTX_NAMES[each.dtype.name] for each in (left, right, accumulator))
    kind = _Instruction(_DEPTH_BYTES // left.dtype.itemsize, *names)
    a, b = _Words.of(builder, left), _Words.of(builder, right)
    values = dict(accumulator.values)
    depth = _depth_of(left) // kind.depth
    rows, columns = a.count // (4 * depth), b.count // (2 * depth)
    if 4 * rows * columns != len(values):
        raise CompilerBug(f"an accumulator of {len(values)} registers for {rows} x {columns} instructions")

    def loaded(k: int) -> tuple[list[list[Value]], list[list[Value]]]:
        own_a = a.at([4 * (m * depth + k) + i for m in range(rows) for i in range(4)])
        own_b = b.at([2 * (k * columns + n) + i for n in range(columns) for i in range(2)])
        return _split(own_a, 4), _split(own_b, 2)

    following = loaded(0)
    for k in range(depth):
        step_a, step_b = following
        if k + 1 < depth:
            following = loaded(k + 1)
        for m in range(rows):
            for n in range(columns):
                first = 4 * (m * columns + n)
                own = [values[first + i] for i in range(4)]
                made = _instruction(builder, kind, step_a[m], step_b[n], own)
                values.update(zip(range(first, first + 4), made, strict=True))
    return Fragment(accumulator.layout, accumulator.dtype, values)


def _depth_of(left: Fragment | Matrices) -> int:
    return left.shape[1] if isinstance(left, Matrices) else left.layout.static_shape[1]


def _split(values: Sequence[Value], size: int) -> list[list[Value]]:
    return [list(values[start : start + size]) for start in range(0, len(values), size)]


@dataclass(frozen=True)
class _Words:
    """The 32-bit registers of an operand: how many there are, and some of them by their numbers."""

    count: int
    at: Callable[[Sequence[int]], list[Value]]

    @staticmethod
    def of(builder: Builder, operand: Fragment | Matrices) -> _Words:
        if isinstance(operand, Matrices):
            return _Words(operand.word_count, lambda numbers: list(operand.words(numbers).values()))
        words = words_of(builder, operand)
        return _Words(len(words), lambda numbers: [words[number] for number in numbers])


def words_of(builder: Builder, fragment: Fragment) -> list[Value]:
    """The 32-bit registers of an operand, neighbouring elements packed."""
    itemsize = fragment.dtype.itemsize
    each = 4 // itemsize
    values = [value for _, value in sorted(fragment.values.items())]
    words: list[Value] = []
    for start in range(0, len(values), each):
        packed: Value = ir.Constant(ir.VectorType(values[start].type, each), None)
        for lane in range(each):
            packed = builder.insert_element(packed, values[start + lane], i32(lane))
        words.append(builder.bitcast(packed, I32))
    return words


def _instruction(
    builder: Builder, kind: _Instruction, a: Sequence[Value], b: Sequence[Value], sums: Sequence[Value]
) -> list[Value]:
    shape = f"m16n8k{kind.depth}.row.col.{kind.accumulator}.{kind.left}.{kind.right}.{kind.accumulator}"
    text = f"mma.sync.aligned.{shape} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, $11, $12, $13}};"
    letter = "f" if kind.accumulator == "f32" else "r"
    constraints = ",".join([f"={letter}"] * 4 + ["r"] * 6 + [letter] * 4)
    result_type = ir.LiteralStructType([sums[0].type] * 4)
    operands = [*a, *b, *sums]
    function = ir.FunctionType(result_type, [each.type for each in operands])
    result = builder.asm(function, text, constraints, operands, side_effect=False)
    return [builder.extract_value(result, position) for position in range(4)]
