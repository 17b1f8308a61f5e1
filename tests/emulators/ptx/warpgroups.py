"""Instructions of four warps together: wgmma and setmaxnreg (PTX ISA, 9.7.15 and "setmaxnreg").

A product is computed at the wait that covers it. Until then its registers are its own, and so are the bytes it reads.
The sums of floats are taken in float64 and rounded once; the ISA leaves their order and precision open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.emulators.ptx.block import WARP, Block, Claim, Reader, Retry, reader, vector_items
from tests.emulators.ptx.descriptors import ELEMENTS, hopper, numbers
from tests.emulators.ptx.errors import RegisterRace
from tests.emulators.ptx.formats import narrowed
from tests.emulators.ptx.mbarriers import values_of
from tests.emulators.ptx.parser import Instruction, Integer, Operand, Register, Vector
from tests.emulators.ptx.words import Words

Effect = Callable[[Block, np.ndarray], "Retry | None"]
GROUP = 4
_THREADS = GROUP * WARP
_ROWS = 64
_NUMBERS = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "e4m3": ("f16", "f32"),
    "e5m2": ("f16", "f32"),
    "s8": ("s32",),
    "u8": ("s32",),
}
_DEPTHS = {1: 32, 2: 16, 4: 8}
_LANE = np.arange(_THREADS)
_ROW = (16 * (_LANE // WARP) + _LANE % WARP // 4)[:, None]
_MEMBER = (_LANE % 4)[:, None]


def groups_of(block: Block, mask: np.ndarray) -> list[int]:
    """The warpgroups that run, all of whose threads have to."""
    by_group = np.pad(mask, (0, -mask.size % _THREADS)).reshape(-1, _THREADS)
    running = np.flatnonzero(by_group.any(axis=1))
    for group in running:
        if not by_group[group].all():
            raise block.divergence(f"only {int(by_group[group].sum())} threads of warpgroup {group} run")
    return [int(group) for group in running]


@dataclass(frozen=True)
class _Matrix:
    """An operand: numbers that were in registers, or the bytes of shared memory where it is."""

    name: str
    negative: bool
    values: np.ndarray | None = None
    places: np.ndarray | None = None

    def read(self, block: Block) -> np.ndarray:
        values = self.values if self.places is None else numbers(block.shared.data[self.places], self.name)
        return -values if self.negative else values


@dataclass(frozen=True)
class _Product:
    shape: str
    targets: tuple[int, ...]
    sources: tuple[int, ...]
    left: _Matrix
    right: _Matrix
    adds: bool
    saturates: bool
    result: str
    text: str


@dataclass
class WarpGroup:
    """Products that are not committed, and groups that are not waited for. `agent` completes them."""

    agent: int
    open: list[_Product] = field(default_factory=list)
    closed: list[list[_Product]] = field(default_factory=list)
    registers: int | None = None

    @property
    def pending(self) -> list[_Product]:
        return [product for group in self.closed for product in group] + self.open


class WarpGroups:
    """Those of a block. `unfenced` (register, warp): touched since the last wgmma.fence."""

    def __init__(self, block: Block, most_registers: int | None) -> None:
        self._block = block
        self._groups: dict[int, WarpGroup] = {}
        self.most = most_registers
        self.spare = 0
        self.unfenced = np.ones((len(block.registers), block.lanes.size // WARP), bool)

    def __getitem__(self, number: int) -> WarpGroup:
        if number not in self._groups:
            self._groups[number] = WarpGroup(self._block.ordering.add_agent(), registers=self.most)
        return self._groups[number]

    def touch(self, registers: np.ndarray, running: np.ndarray) -> None:
        warps = np.flatnonzero(running.reshape(-1, WARP).any(axis=1))
        self.unfenced[np.ix_(registers, warps)] = True

    def end(self) -> None:
        for number, group in self._groups.items():
            if group.pending:
                raise RegisterRace(f"warpgroup {number} ends before: {group.pending[0].text}, {self._block.where()}")


def operate(instruction: Instruction, words: Words) -> Effect:
    if words.left[1:3] != ["sync", "aligned"]:
        raise words.unknown()
    kind = words.left[0]
    words.left = words.left[3:]
    if kind == "mma_async":
        return _multiply(instruction, words)
    words.finish()
    if kind == "fence":
        return _fence
    if kind == "commit_group":
        return _commit
    if kind == "wait_group" and isinstance(instruction.operands[0], Integer):
        left = instruction.operands[0].value
        return lambda block, mask: _wait(block, mask, left)
    raise words.unknown()


def _fence(block: Block, mask: np.ndarray) -> None:
    for group in groups_of(block, mask):
        block.warpgroups.unfenced[:, GROUP * group : GROUP * group + GROUP] = False


def _commit(block: Block, mask: np.ndarray) -> None:
    for number in groups_of(block, mask):
        group = block.warpgroups[number]
        group.closed.append(group.open)
        group.open = []


def _wait(block: Block, mask: np.ndarray, left: int) -> None:
    for number in groups_of(block, mask):
        group = block.warpgroups[number]
        done = max(len(group.closed) - left, 0)
        finished, group.closed = group.closed[:done], group.closed[done:]
        for product in (product for each in finished for product in each):
            _complete(block, number, group, product)


# ---- products --------------------------------------------------------------------------------------------------------


def _multiply(instruction: Instruction, words: Words) -> Effect:
    """.mNnNkN{.satfinite}.dtype.atype.btype d, a or a-desc, b-desc, scale-d{, imm-scale-a, imm-scale-b{, imm-trans}}"""
    saturates = words.take("satfinite")
    if len(words.left) != 4:
        raise words.unknown()
    shape, result, a_name, b_name = words.left
    columns, depth = _sizes(words, shape, result, a_name, b_name)
    d, a, b, adds, *rest = instruction.operands
    options = [operand.value for operand in rest if isinstance(operand, Integer)]
    is_float = a_name not in ("s8", "u8")
    transposable = a_name in ("f16", "bf16")
    in_registers = isinstance(a, Vector)
    wanted = 2 * is_float + transposable * (1 if in_registers else 2)
    if len(options) != len(rest) or len(options) != wanted or (saturates and is_float):
        raise words.unknown()
    scales, transposes = (options[:2] if is_float else [1, 1]), options[2:]
    a_major = "mn" if transposable and not in_registers and transposes[0] else "k"
    b_major = "mn" if transposable and transposes[-1] else "k"
    if any(scale not in (1, -1) for scale in scales) or any(flag not in (0, 1) for flag in transposes):
        raise words.unknown()
    targets = _registers(words, d, columns // 2 if result != "f16" else columns // 4)
    sources = _registers(words, a, 4) if in_registers else ()
    read_left = None if in_registers else _descriptor(a, a_name, _ROWS, depth, a_major, instruction)
    read_right = _descriptor(b, b_name, columns, depth, b_major, instruction)
    read_adds = reader(adds, "pred", instruction)

    def start(block: Block, group: int) -> None:
        values = places = None
        if read_left is None:
            values = _fragment(block, group, sources, a_name)
        else:
            places = read_left(block, group)
        left = _Matrix(a_name, scales[0] < 0, values, places)
        right = _Matrix(b_name, scales[1] < 0, None, read_right(block, group))
        add = bool(_same(block, group, read_adds))
        product = _Product(shape, targets, sources, left, right, add, saturates, result, instruction.text)
        _check_registers(block, group, product)
        _start(block, group, product)

    def effect(block: Block, mask: np.ndarray) -> None:
        for group in groups_of(block, mask):
            start(block, group)

    return effect


def _sizes(words: Words, shape: str, result: str, a_name: str, b_name: str) -> tuple[int, int]:
    """N and K. The shapes are those of "Matrix Shape"."""
    match = re.match(r"m64n(\d+)k(\d+)$", shape)
    if match is None or result not in _NUMBERS.get(a_name, ()) or b_name not in ELEMENTS:
        raise words.unknown()
    columns, depth = int(match[1]), int(match[2])
    is_integer = result == "s32"
    mixed = {a_name, b_name} <= {"e4m3", "e5m2"} or {a_name, b_name} <= {"s8", "u8"}
    steps = columns % 16 == 0 or columns in (8, 24) if is_integer else columns % 8 == 0
    if depth != _DEPTHS[ELEMENTS[a_name].itemsize] or not steps or not 8 <= columns <= 256:
        raise words.unknown()
    if a_name != b_name and not mixed:
        raise words.unknown()
    return columns, depth


def _registers(words: Words, operand: Operand, count: int) -> tuple[int, ...]:
    items = vector_items(operand)
    if len(items) != count or any(not isinstance(item, Register) or item.bits != 32 for item in items):
        raise words.unknown()
    return tuple(item.index for item in items if isinstance(item, Register))


def _same(block: Block, group: int, read: Reader) -> object:
    """What all threads of a warpgroup have to agree on."""
    values = values_of(block, read)[_THREADS * group : _THREADS * (group + 1)]
    if (values != values[0]).any():
        raise block.divergence(f"threads of warpgroup {group} differ in a descriptor or a scale")
    return values[0]


def _descriptor(
    operand: Operand, name: str, lines: int, depth: int, major: str, instruction: Instruction
) -> Callable[[Block, int], np.ndarray]:
    read = reader(operand, "u64", instruction)

    def places(block: Block, group: int) -> np.ndarray:
        descriptor = hopper(int(_same(block, group, read)))  # type: ignore[call-overload]
        found = descriptor.places(lines, depth, ELEMENTS[name].itemsize, major)
        block.shared.start_read(_THREADS * group + WARP * np.arange(GROUP), found)
        return found

    return places


def _own(block: Block, group: int, registers: Sequence[int]) -> np.ndarray:
    """Registers as (thread, register) of a warpgroup."""
    return np.stack([block.registers[i][_THREADS * group : _THREADS * (group + 1)] for i in registers], axis=1)


def _fragment(block: Block, group: int, registers: Sequence[int], name: str) -> np.ndarray:
    """A from registers: "Register Fragments", figures of A of m64nNk16, k8 and k32."""
    bytes_per_element = ELEMENTS[name].itemsize
    packed = 4 // bytes_per_element
    element = np.arange(4 * packed)
    register, within = element // packed, element % packed
    rows = np.broadcast_to(_ROW + 8 * (register % 2), (_THREADS, element.size))
    columns = _MEMBER * packed + within + 4 * packed * (register // 2)
    data = np.ascontiguousarray(_own(block, group, registers)).view(np.uint8)
    result = np.zeros((_ROWS, 8 * packed))
    result[rows, columns] = numbers(data.reshape(_THREADS, -1, bytes_per_element), name)
    return result if bytes_per_element > 1 or name[0] == "e" else result.astype(np.int64)


def _sums(columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Where a thread's elements of D are: the figures of D."""
    element = np.arange(columns // 2)
    rows = _ROW + 8 * (element // 2 % 2)
    return np.broadcast_to(rows, (_THREADS, element.size)), _MEMBER * 2 + element % 2 + 8 * (element // 4)


def _check_registers(block: Block, group: int, product: _Product) -> None:
    own = block.warpgroups.unfenced[:, GROUP * group : GROUP * group + GROUP]
    if own[[*product.targets, *product.sources]].any():
        raise RegisterRace(f"warpgroup {group} has no wgmma.fence after its registers were touched, {block.where()}")
    for other in block.warpgroups[group].pending:
        same = other.targets == product.targets and other.shape == product.shape and other.result == product.result
        overlaps = not set(other.targets).isdisjoint(product.targets)
        if (overlaps and not same) or not set(other.targets).isdisjoint(product.sources):
            raise RegisterRace(f"registers are still those of: {other.text}, {block.where()}")
        if not set(other.sources).isdisjoint(product.targets):
            raise RegisterRace(f"registers are still read by: {other.text}, {block.where()}")


def _start(block: Block, group: int, product: _Product) -> None:
    block.warpgroups[group].open.append(product)
    warps = np.zeros(block.lanes.size // WARP, bool)
    warps[GROUP * group : GROUP * group + GROUP] = True
    block.own((*product.targets, *product.sources), Claim(warps, product.text, product))


def _complete(block: Block, number: int, group: WarpGroup, product: _Product) -> None:
    columns = product.right.read(block).shape[0]
    rows, places = _sums(columns)
    total = product.left.read(block) @ product.right.read(block).T
    if product.adds:
        old = np.ascontiguousarray(_own(block, number, product.targets))
        total = total + _matrix(old, product.result, rows, places, columns)
    _write(block, number, product, _rounded(total, product)[rows, places])
    ordering = block.ordering
    first = block.first_warp + GROUP * number
    clock = int(ordering.seen[first, group.agent]) + 1
    for matrix in (product.left, product.right):
        if matrix.places is not None:
            block.shared.finish_read(matrix.places, group.agent, clock)
    ordering.seen[first : first + GROUP, group.agent] = clock
    block.disown((*product.targets, *product.sources), product)


def _matrix(words: np.ndarray, result: str, rows: np.ndarray, places: np.ndarray, columns: int) -> np.ndarray:
    dtype = {"f16": np.float16, "f32": np.float32, "s32": np.int32}[result]
    matrix = np.zeros((_ROWS, columns), np.int64 if result == "s32" else np.float64)
    matrix[rows, places] = words.view(dtype)
    return matrix


def _rounded(total: np.ndarray, product: _Product) -> np.ndarray:
    if product.result != "s32":
        return narrowed(total, product.result)
    return (np.clip(total, -(1 << 31), (1 << 31) - 1) if product.saturates else total).astype(np.int32)


def _write(block: Block, number: int, product: _Product, values: np.ndarray) -> None:
    words = np.ascontiguousarray(values).view(np.uint32)
    for column, register in enumerate(product.targets):
        block.registers[register][_THREADS * number : _THREADS * (number + 1)] = words[:, column]


# ---- setmaxnreg ------------------------------------------------------------------------------------------------------


def set_most_registers(instruction: Instruction, words: Words) -> Effect:
    """setmaxnreg.{inc,dec}.sync.aligned.u32 count: `inc` waits for registers that other warpgroups gave back.

    Without `.maxnreg` the number that the kernel begins with is not known, and only the direction is checked.
    """
    grows = words.take("inc")
    if not grows and not words.take("dec"):
        raise words.unknown()
    if words.left != ["sync", "aligned", "u32"] or not isinstance(instruction.operands[0], Integer):
        raise words.unknown()
    count = instruction.operands[0].value
    if not 24 <= count <= 256 or count % 8:
        raise ValueError(f"line {instruction.line}: {instruction.text}: 24 to 256 registers, a multiple of 8")

    def effect(block: Block, mask: np.ndarray) -> Retry | None:
        waiting = np.zeros(block.lanes.size, bool)
        for number in groups_of(block, mask):
            group = block.warpgroups[number]
            if group.registers is not None and (count < group.registers if grows else count > group.registers):
                raise block.divergence(f"warpgroup {number} has {group.registers} registers")
            more = 0 if block.warpgroups.most is None else _THREADS * (count - (group.registers or 0))
            if more > block.warpgroups.spare:
                waiting[_THREADS * number : _THREADS * (number + 1)] = True
                continue
            block.warpgroups.spare -= more
            group.registers = count
        needed = block.warpgroups.spare
        return Retry(waiting, lambda: block.warpgroups.spare > needed, lambda: "registers") if waiting.any() else None

    return effect
