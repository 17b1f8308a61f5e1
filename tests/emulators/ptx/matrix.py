"""mma.sync, ldmatrix and stmatrix: PTX ISA, "Matrix fragments for mma.*", "ldmatrix" and "stmatrix".

A fragment is described by the row and column of each of a lane's elements, from the least significant bits of its
first register on; `group` is the lane / 4 and `member` the lane % 4, as in the ISA.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.emulators.ptx.access import Effect, parts
from tests.emulators.ptx.block import WARP, Block, address_of, each_lane, reader, require_lanes, vector_items, writer
from tests.emulators.ptx.descriptors import ELEMENTS
from tests.emulators.ptx.formats import TYPES, narrowed
from tests.emulators.ptx.memory import gather, scatter
from tests.emulators.ptx.parser import Instruction, Operand
from tests.emulators.ptx.words import Words

_LANES = np.arange(WARP)
_GROUP, _MEMBER = (_LANES // 4)[:, None], (_LANES % 4)[:, None]
_ALL = np.array([0xFFFFFFFF], np.uint32)
Places = tuple[np.ndarray, np.ndarray]


def _places(rows: np.ndarray, columns: np.ndarray) -> Places:
    rows, columns = np.broadcast_arrays(rows, columns)
    return rows, columns


def _left(depth: int, packed: int, rows: int) -> Places:
    """The fragment of A, `packed` elements a register of 32 bits: rows group and group + 8, then the next columns."""
    element = np.arange(rows * depth // WARP)
    register, within = element // packed, element % packed
    halves = rows // 8
    return _places(_GROUP + 8 * (register % halves), _MEMBER * packed + within + 4 * packed * (register // halves))


def _right(depth: int, packed: int) -> Places:
    """The fragment of B: column group, rows as A's columns."""
    element = np.arange(8 * depth // WARP)
    return _places(_MEMBER * packed + element % packed + 4 * packed * (element // packed), _GROUP)


def _sums(rows: int) -> Places:
    """The fragments of C and D: two neighbours of row group, then of row group + 8."""
    element = np.arange(rows * 8 // WARP)
    return _places(_GROUP + 8 * (element // 2), _MEMBER * 2 + element % 2)


@dataclass(frozen=True)
class _Shape:
    rows: int
    depth: int
    packed: int


_SHAPES = {
    ("m16n8k16", "f16"): _Shape(16, 16, 2),
    ("m16n8k16", "bf16"): _Shape(16, 16, 2),
    ("m16n8k8", "f16"): _Shape(16, 8, 2),
    ("m16n8k8", "bf16"): _Shape(16, 8, 2),
    ("m16n8k8", "tf32"): _Shape(16, 8, 1),
    ("m16n8k4", "tf32"): _Shape(16, 4, 1),
    ("m16n8k32", "s8"): _Shape(16, 32, 4),
    ("m16n8k32", "u8"): _Shape(16, 32, 4),
    ("m16n8k32", "e4m3"): _Shape(16, 32, 4),
    ("m16n8k32", "e5m2"): _Shape(16, 32, 4),
    ("m16n8k16", "s8"): _Shape(16, 16, 4),
    ("m16n8k16", "u8"): _Shape(16, 16, 4),
    ("m8n8k4", "f64"): _Shape(8, 4, 1),
}
_RESULTS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "s8": ("s32",), "u8": ("s32",), "f64": ("f64",)}
_RESULTS |= {"e4m3": ("f32",), "e5m2": ("f32",)}


def multiply(instruction: Instruction, words: Words) -> Effect:
    """mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype d, a, b, c: d = a * b + c, a warp at a time.

    Sums of floats are taken in float64 and rounded once; the ISA leaves their order and precision open.
    """
    saturate = words.take("satfinite")
    if len(words.left) != 9 or words.left[:2] != ["sync", "aligned"] or words.left[3:5] != ["row", "col"]:
        raise words.unknown()
    shape_name, (d_type, a_type, b_type, c_type) = words.left[2], words.left[5:]
    shape = _SHAPES.get((shape_name, a_type))
    mixed = {a_type, b_type} <= {"s8", "u8"} or {a_type, b_type} <= {"e4m3", "e5m2"}
    if shape is None or (a_type != b_type and not mixed) or d_type != c_type or d_type not in _RESULTS[a_type]:
        raise words.unknown()
    if (saturate and d_type != "s32") or len(instruction.operands) != 4:
        raise words.unknown()
    sums = _sums(shape.rows)
    d, a, b, c = instruction.operands
    read_a = _fragment(a, a_type, _left(shape.depth, shape.packed, shape.rows), (shape.rows, shape.depth), instruction)
    read_b = _fragment(b, b_type, _right(shape.depth, shape.packed), (shape.depth, 8), instruction)
    read_c = _fragment(c, c_type, sums, (shape.rows, 8), instruction)
    write = _fragment_writer(d, d_type, sums, instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        require_lanes(block, mask, _ALL)
        products = read_a(block) @ read_b(block)
        write(block, mask, _rounded(products + read_c(block), d_type, saturate))

    return effect


def _rounded(sums: np.ndarray, name: str, saturate: bool) -> np.ndarray:
    if name == "f64":
        return sums
    if name == "s32":
        return (np.clip(sums, -(1 << 31), (1 << 31) - 1) if saturate else sums).astype(np.int32)
    return narrowed(sums, name)


def _fragment(
    operand: Operand, name: str, places: Places, shape: tuple[int, int], instruction: Instruction
) -> Callable[[Block], np.ndarray]:
    """What reads a fragment as matrices (warp, row, column), of float64 or int64."""
    registers = vector_items(operand)
    bits = 64 if name == "f64" else 32
    readers = [reader(register, f"b{bits}", instruction) for register in registers]
    dtype = ELEMENTS[name] if name in ELEMENTS else TYPES[name].dtype
    wide = np.dtype(np.int64 if dtype.kind in "iu" else np.float64)
    # The element of a warp's fragment, lane by lane, that stands at each row and column.
    element_at = np.argsort((places[0] * shape[1] + places[1]).reshape(-1))
    if len(registers) * bits != places[0].shape[1] * 8 * dtype.itemsize:
        raise NotImplementedError(f"line {instruction.line}: {instruction.text}: registers of a fragment")

    def read(block: Block) -> np.ndarray:
        columns = [each_lane(block, each(block)) for each in readers]
        values = np.stack(columns, axis=1)
        if name == "tf32":
            # The last 13 bits of a tf32 operand are not looked at ("Alternate floating-point data formats").
            values = values & np.uint32(0xFFFFE000)
        values = values.view(dtype)
        fragments = values.reshape(block.lanes.size // WARP, -1).astype(wide)
        return fragments[:, element_at].reshape(-1, *shape)

    return read


def _fragment_writer(
    operand: Operand, name: str, places: Places, instruction: Instruction
) -> Callable[[Block, np.ndarray, np.ndarray], None]:
    bits = 64 if name == "f64" else 32
    writers = [writer(register, f"b{bits}", instruction) for register in vector_items(operand)]
    if len(writers) * bits != places[0].shape[1] * TYPES[name].bits:
        raise NotImplementedError(f"line {instruction.line}: {instruction.text}: registers of a fragment")
    place_of = (places[0] * 8 + places[1]).reshape(-1)

    def write(block: Block, mask: np.ndarray, matrices: np.ndarray) -> None:
        values = matrices.reshape(matrices.shape[0], -1)[:, place_of].reshape(-1, *places[0].shape)
        values = np.ascontiguousarray(values).view(f"uint{bits}").reshape(block.lanes.size, -1)
        for register, each in enumerate(writers):
            each(block, mask, np.ascontiguousarray(values[:, register]))

    return write


def _form(instruction: Instruction, words: Words) -> tuple[int, bool]:
    """How many matrices an instruction moves, and whether they are transposed."""
    words.take_type(("b16",))
    transposed = words.take("trans")
    count = int(words.take_one(("x1", "x2", "x4"), None)[1:])
    words.take_one(("shared", "shared::cta"), None)
    if words.left != ["sync", "aligned", "m8n8"] or len(instruction.operands) != 2:
        raise words.unknown()
    return count, transposed


def load_matrix(instruction: Instruction, words: Words) -> Effect:
    """ldmatrix.sync.aligned.m8n8.x{1,2,4}{.trans}.shared.b16: lane 8 j + i names row i of matrix j, of 16 bytes."""
    count, transposed = _form(instruction, words)
    items = vector_items(instruction.operands[0])
    if len(items) != count:
        raise words.unknown()
    writers = [writer(item, "b32", instruction) for item in items]
    read = address_of(instruction.operands[1], instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        require_lanes(block, mask, _ALL)
        naming = np.flatnonzero(mask & (block.lanes % WARP < 8 * count))
        if naming.size == 0:
            return
        ((_, _, data, offsets),) = parts(block, "shared", naming, read(block)[naming], 16)
        block.shared.note_read(naming, offsets, 16)
        block.counts.add_shared(instruction.line, naming, offsets, 16)
        rows = np.zeros((block.lanes.size, 8), np.uint16)
        rows[naming] = gather(data, offsets, 2, 8)
        matrices = rows.reshape(-1, 4, 8, 8)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        pairs = np.ascontiguousarray(matrices).view(np.uint32)
        for matrix, write in enumerate(writers):
            write(block, mask, pairs[:, matrix].reshape(-1))

    return effect


def store_matrix(instruction: Instruction, words: Words) -> Effect:
    """stmatrix.sync.aligned.m8n8.x{1,2,4}{.trans}.shared.b16: as ldmatrix, the other way."""
    count, transposed = _form(instruction, words)
    items = vector_items(instruction.operands[1])
    if len(items) != count:
        raise words.unknown()
    readers = [reader(item, "b32", instruction) for item in items]
    read = address_of(instruction.operands[0], instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        require_lanes(block, mask, _ALL)
        naming = np.flatnonzero(mask & (block.lanes % WARP < 8 * count))
        if naming.size == 0:
            return
        ((_, _, data, offsets),) = parts(block, "shared", naming, read(block)[naming], 16)
        block.shared.note_write(naming, offsets, 16)
        block.counts.add_shared(instruction.line, naming, offsets, 16)
        matrices = np.zeros((block.lanes.size // WARP, 4, 8, 4), np.uint32)
        for number, each in enumerate(readers):
            matrices[:, number] = each_lane(block, each(block)).reshape(-1, 8, 4)
        rows = matrices.view(np.uint16)
        if transposed:
            rows = rows.swapaxes(2, 3)
        scatter(data, offsets, np.ascontiguousarray(rows).reshape(-1, 8)[naming])

    return effect
