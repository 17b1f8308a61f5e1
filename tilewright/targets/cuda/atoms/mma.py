"""MMAs by the tensor cores of single warps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llvmlite import ir

from tilewright.errors import CompilerBug
from tilewright.records import dataclass
from tilewright.targets.cuda.atoms.matrices import Matrices
from tilewright.targets.simt.emit_memory import Memory
from tilewright.targets.simt.fragments import I32, Builder, Fragment, Threads, Value, i32

# The family of the instructions of single warps.
MMA = "mma.sync"

# A tile in registers, a buffer, or one that is read by matrices.
Operand = Fragment | Memory | Matrices


def emit_mma(threads: Threads, atom: str, left: Operand, right: Operand, accumulator: Fragment) -> Fragment:
    """`accumulator + left @ right` by an atom.

    Raises:
        CompilerBug: the operands are not where the atom takes them.
    """
    if atom.startswith(MMA) and not isinstance(left, Memory) and not isinstance(right, Memory):
        return _by_warps(threads.builder, left, right, accumulator)
    raise CompilerBug(f"the atom `{atom}` does not take its operands there")


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
