"""tcgen05 of one block: allocation, loads and stores, products, commits and fences (PTX ISA, 9.7.16).

Products are computed when a commit that covers them arrives at its mbarrier, which is when no thread can go on. Sums of
floats are taken in float64 and rounded once a product; the ISA leaves their order and precision open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.emulators.ptx.block import (
    WARP,
    Block,
    Claim,
    Event,
    Retry,
    address_of,
    reader,
    require_lanes,
    vector_items,
    writer,
)
from tests.emulators.ptx.descriptors import ELEMENTS, blackwell, numbers
from tests.emulators.ptx.errors import TensorMemoryFault
from tests.emulators.ptx.formats import narrowed
from tests.emulators.ptx.mbarriers import MBarrier, found, values_of
from tests.emulators.ptx.memory import SHARED_BASE, scatter
from tests.emulators.ptx.parser import Instruction, Register
from tests.emulators.ptx.tensor_memory import LANES, QUARTER, Cells
from tests.emulators.ptx.words import Words

Effect = Callable[[Block, np.ndarray], "Retry | None"]
_ALL = np.array([0xFFFFFFFF], np.uint32)
# "Instruction descriptor", table 42: types of A and B by kind, and of D.
_OPERANDS = {
    "kind::f16": {0: "f16", 1: "bf16"},
    "kind::tf32": {2: "tf32"},
    "kind::f8f6f4": {0: "e4m3", 1: "e5m2"},
    "kind::i8": {0: "u8", 1: "s8"},
}
_RESULTS = {
    "kind::f16": {0: "f16", 1: "f32"},
    "kind::tf32": {1: "f32"},
    "kind::f8f6f4": {0: "f16", 1: "f32"},
    "kind::i8": {2: "s32"},
}
_K_BYTES = 32


def operate(instruction: Instruction, words: Words) -> Effect:
    kind = words.left[0] if words.left else ""
    decode = _OPERATIONS.get(kind)
    if decode is None:
        raise words.unknown()
    words.left = words.left[1:]
    return decode(instruction, words)


def _expect(words: Words, *wanted: str) -> None:
    if words.left != list(wanted):
        raise words.unknown()


def _whole_warps(block: Block, mask: np.ndarray) -> list[int]:
    require_lanes(block, mask, _ALL)
    return [int(warp) for warp in np.flatnonzero(mask.reshape(-1, WARP).any(axis=1))]


def _only(block: Block, values: np.ndarray, warp: int) -> int:
    """What all lanes of a warp agree on."""
    mine = values[WARP * warp : WARP * (warp + 1)]
    if (mine != mine[0]).any():
        raise block.divergence(f"lanes of warp {warp} differ in an address or a number of columns")
    return int(mine[0])


# ---- allocation ------------------------------------------------------------------------------------------------------


def _allocate(instruction: Instruction, words: Words) -> Effect:
    words.take("shared::cta")
    _expect(words, "cta_group::1", "sync", "aligned", "b32")
    target, columns = instruction.operands
    read, read_columns = address_of(target, instruction), reader(columns, "u32", instruction)

    def effect(block: Block, mask: np.ndarray) -> Retry | None:
        for warp in _whole_warps(block, mask):
            address, thread = _only(block, read(block), warp), WARP * warp
            first = block.tensor_memory.allocate(thread, _only(block, values_of(block, read_columns), warp))
            if first is None:
                return _until_freed(block, mask)
            offset = np.array([address - SHARED_BASE])
            if not 0 <= offset[0] <= block.shared.data.size - 4 or offset[0] % 4:
                raise block.fault(thread, address, "no place of shared memory")
            block.shared.note_write(np.array([thread]), offset, 4)
            scatter(block.shared.data, offset, np.array([[first]], np.uint32))
        return None

    return effect


def _until_freed(block: Block, mask: np.ndarray) -> Retry:
    def used() -> int:
        return int((block.tensor_memory.owner >= 0).sum())

    before = used()
    return Retry(mask, lambda: used() < before, lambda: "columns of tensor memory")


def _free(instruction: Instruction, words: Words) -> Effect:
    _expect(words, "cta_group::1", "sync", "aligned", "b32")
    address, columns = (reader(operand, "u32", instruction) for operand in instruction.operands)

    def effect(block: Block, mask: np.ndarray) -> None:
        for warp in _whole_warps(block, mask):
            where, count = (_only(block, values_of(block, read), warp) for read in (address, columns))
            block.tensor_memory.free(WARP * warp, where, count)

    return effect


def _relinquish(instruction: Instruction, words: Words) -> Effect:
    _expect(words, "cta_group::1", "sync", "aligned")

    def effect(block: Block, mask: np.ndarray) -> None:
        if _whole_warps(block, mask):
            block.tensor_memory.relinquished = True

    return effect


# ---- loads and stores ------------------------------------------------------------------------------------------------


def _count(words: Words) -> int:
    """.32x32b.xN.b32: N columns of a warp's 32 lanes, a register each."""
    count = words.take_one(tuple(f"x{1 << power}" for power in range(8)), None)
    _expect(words, "sync", "aligned", "32x32b", "b32")
    return int(count[1:])


def _place(block: Block, warp: int, address: int, count: int) -> tuple[Cells, slice]:
    """Cells and lanes of a warp: "Access restrictions"."""
    quarter = warp % 4
    if address >> 16 != QUARTER * quarter:
        raise block.tensor_memory.fault(WARP * warp, f"a warp of lanes {QUARTER * quarter} on names {address:#x}")
    cells = block.tensor_memory.cells(WARP * warp, address, count, slice(quarter, quarter + 1))
    return cells, slice(QUARTER * quarter, QUARTER * (quarter + 1))


@dataclass
class Transfers:
    """A warp's loads and stores that were not waited for, with what ends them."""

    loads: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    stores: dict[int, list[Callable[[], None]]] = field(default_factory=dict)


def _load(instruction: Instruction, words: Words) -> Effect:
    count = _count(words)
    items = vector_items(instruction.operands[0])
    if len(items) != count:
        raise words.unknown()
    writers = [writer(item, "b32", instruction) for item in items]
    registers = [item.index for item in items if isinstance(item, Register)]
    read = address_of(instruction.operands[1], instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        for warp in _whole_warps(block, mask):
            cells, lanes = _place(block, warp, _only(block, read(block), warp), count)
            block.tensor_memory.start_load(WARP * warp, cells)
            running = np.zeros(block.lanes.size // WARP, bool)
            running[warp] = True
            owner = object()
            block.own(registers, Claim(running, instruction.text, owner))
            finish = _finish_load(
                block, warp, cells, lanes, writers, lambda owner=owner: block.disown(registers, owner)
            )
            block.transfers.loads.setdefault(warp, []).append(finish)

    return effect


def _finish_load(block, warp, cells, lanes, writers, disown) -> Callable[[], None]:
    def finish() -> None:
        disown()
        values = np.zeros((block.lanes.size, len(writers)), np.uint32)
        values[WARP * warp : WARP * (warp + 1)] = block.tensor_memory.data[lanes, cells.columns]
        own = block.lanes // WARP == warp
        for column, write in enumerate(writers):
            write(block, own, np.ascontiguousarray(values[:, column]))
        block.tensor_memory.finish_load(warp, cells)

    return finish


def _store(instruction: Instruction, words: Words) -> Effect:
    count = _count(words)
    items = vector_items(instruction.operands[1])
    if len(items) != count:
        raise words.unknown()
    readers = [reader(item, "b32", instruction) for item in items]
    read = address_of(instruction.operands[0], instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        values = np.stack([values_of(block, each) for each in readers], axis=1)
        for warp in _whole_warps(block, mask):
            cells, lanes = _place(block, warp, _only(block, read(block), warp), count)
            block.tensor_memory.start_store(WARP * warp, cells)
            own = values[WARP * warp : WARP * (warp + 1)].copy()
            block.transfers.stores.setdefault(warp, []).append(_finish_store(block, warp, cells, lanes, own))

    return effect


def _finish_store(block, warp, cells, lanes, values) -> Callable[[], None]:
    def finish() -> None:
        block.tensor_memory.data[lanes, cells.columns] = values
        block.tensor_memory.finish_store(warp, cells)

    return finish


def _wait(kind: str) -> Callable[[Instruction, Words], Effect]:
    def decode(instruction: Instruction, words: Words) -> Effect:
        _expect(words, "sync", "aligned")

        def effect(block: Block, mask: np.ndarray) -> None:
            for warp in _whole_warps(block, mask):
                for finish in getattr(block.transfers, kind).pop(warp, []):
                    finish()

        return effect

    return decode


# ---- products --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Product:
    """A product that was issued: D's cells and shape, the bytes of A and B, and whether D is added."""

    thread: int
    cells: Cells
    lanes: np.ndarray
    rows: int
    types: tuple[str, str, str]
    places: tuple[np.ndarray, np.ndarray]
    signs: int
    adds: bool
    saturates: bool
    text: str

    @property
    def accumulator(self) -> tuple:
        return self.cells.columns.start, self.cells.columns.stop, self.rows, self.types

    def run(self, block: Block, agent: int, clock: int) -> None:
        memory, (a_name, b_name, result) = block.tensor_memory, self.types
        a, b = (block.shared.data[places] for places in self.places)
        total = self.signs * (numbers(a, a_name) @ numbers(b, b_name).T)
        index = np.ix_(self.lanes, np.arange(self.cells.columns.start, self.cells.columns.stop))
        if self.adds:
            total = total + _from_words(memory.data[index], result)
        memory.data[index] = _to_words(total, result, self.saturates)
        memory.finish_product(self.cells, agent, clock)
        for places in self.places:
            block.shared.finish_read(places, agent, clock)


def _from_words(words: np.ndarray, result: str) -> np.ndarray:
    if result == "f16":
        return (words & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64)
    return words.view(np.float32).astype(np.float64) if result == "f32" else words.view(np.int32).astype(np.int64)


def _to_words(total: np.ndarray, result: str, saturates: bool) -> np.ndarray:
    if result == "s32":
        return (np.clip(total, -(1 << 31), (1 << 31) - 1) if saturates else total).astype(np.int32).view(np.uint32)
    rounded = narrowed(total, result)
    # D of 16 bits is in the lower half of each column ("Packing format for matrix D").
    return rounded.view(np.uint32) if result == "f32" else rounded.view(np.uint16).astype(np.uint32)


@dataclass(frozen=True)
class InstructionDescriptor:
    """Table 42. `major` of A and B; a sign for negated operands."""

    rows: int
    columns: int
    types: tuple[str, str, str]
    majors: tuple[str, str]
    sign: int
    saturates: bool


def decoded(value: int, kind: str) -> InstructionDescriptor:
    """Raises ValueError for what the kind does not have."""
    a_type, b_type = (_OPERANDS[kind].get(value >> first & 7) for first in (7, 10))
    result = _RESULTS[kind].get(value >> 4 & 3)
    rows, columns = (value >> 24 & 31) << 4, (value >> 17 & 63) << 3
    negated = (value >> 13 & 1) ^ (value >> 14 & 1)
    is_integer = kind == "kind::i8"
    if value & 7 or value >> 6 & 1 or value >> 23 & 1 or value >> 29:
        raise ValueError(f"reserved or sparse bits of the instruction descriptor {value:#x}")
    if a_type is None or b_type is None or result is None or (result == "f16" and "bf16" in (a_type, b_type)):
        raise ValueError(f"types of the instruction descriptor {value:#x}")
    if (value >> 3 & 1 and not is_integer) or (is_integer and value >> 13 & 3):
        raise ValueError(f"saturation or signs of the instruction descriptor {value:#x}")
    # Table 39; N of M = 128 in steps of 16 as CUTLASS asks, which is stricter.
    step = 16 if rows == 128 or (is_integer and columns > 32) else 8
    if rows not in (64, 128) or columns % step or not step <= columns <= 256:
        raise ValueError(f"the shape {rows} x {columns} of the instruction descriptor {value:#x}")
    majors = tuple("mn" if value >> bit & 1 else "k" for bit in (15, 16))
    if "mn" in majors and kind == "kind::tf32":
        raise NotImplementedError("transposed 32-bit operands, which need 128-byte swizzling of 32-byte atoms")
    sign, saturates = -1 if negated else 1, bool(value >> 3 & 1)
    return InstructionDescriptor(rows, columns, (a_type, b_type, result), majors, sign, saturates)


def _multiply(instruction: Instruction, words: Words) -> Effect:
    """tcgen05.mma.cta_group::1.kind [d], a-desc, b-desc, idesc, enable-input-d;"""
    kind = words.take_one(tuple(_OPERANDS), None)
    words.take("collector::a::discard")
    _expect(words, "cta_group::1")
    if len(instruction.operands) != 5:
        raise words.unknown()
    target, a, b, shape, adds = instruction.operands
    read = address_of(target, instruction)
    given = ((a, "u64"), (b, "u64"), (shape, "u32"), (adds, "pred"))
    readers = [reader(each, name, instruction) for each, name in given]

    def effect(block: Block, mask: np.ndarray) -> None:
        if not mask.any():
            return
        thread = _single(block, mask)
        a, b, shape, adds = (values_of(block, each)[thread] for each in readers)
        form = decoded(int(shape), kind)
        depth = _K_BYTES // ELEMENTS[form.types[0]].itemsize
        places = tuple(
            blackwell(int(each)).places(lines, depth, ELEMENTS[name].itemsize, major)
            for each, lines, name, major in zip(
                (a, b), (form.rows, form.columns), form.types[:2], form.majors, strict=True
            )
        )
        cells, lanes = _accumulator(block, thread, int(read(block)[thread]), form)
        product = _Product(
            thread, cells, lanes, form.rows, form.types, places, form.sign, bool(adds), form.saturates, instruction.text
        )
        block.tensor_memory.start_product(thread, cells, product.accumulator)
        for each in places:
            block.shared.start_read(thread, each)
        block.products.setdefault(thread, []).append(product)

    return effect


def _single(block: Block, mask: np.ndarray) -> int:
    """A product or commit of each thread that runs it: that several do is hardly meant ("Issue Granularity")."""
    threads = np.flatnonzero(mask)
    if threads.size != 1:
        raise block.divergence(f"{threads.size} threads each issue it")
    return int(threads[0])


def _accumulator(block: Block, thread: int, address: int, form: InstructionDescriptor) -> tuple[Cells, np.ndarray]:
    """Layouts D (M = 128) and F (M = 64: 16 of each warp's 32 lanes) of "Data Path Layout Organization"."""
    first = address >> 16
    cells = block.tensor_memory.cells(thread, address, form.columns, slice(0, 4))
    if first not in ((0,) if form.rows == LANES else (0, 16)):
        raise block.tensor_memory.fault(thread, f"an accumulator of {form.rows} rows from lane {first} on")
    row = np.arange(form.rows)
    return cells, row if form.rows == LANES else row // 16 * QUARTER + row % 16 + first


@dataclass(eq=False)
class Commit(Event):
    """An arrival at an mbarrier once the products before are complete. `seen`: the asynchronous operations that came
    before those, which it passes on; it is no release of what the thread itself did."""

    what = "an arrival by tcgen05.commit"
    barrier: MBarrier
    products: list[_Product]
    seen: np.ndarray

    def land(self) -> None:
        block = self.block
        agent, clock = self.target.mbarriers.stamp(self.barrier)
        block.cluster.note_landing(block, self.target, agent, clock)
        pending = block.products.get(self.thread, [])
        while any(product in self.products for product in pending):
            pending.pop(0).run(block, agent, clock)
        sent = block.tensor_memory.tell(self.thread, agent, clock)
        np.maximum(sent.seen, self.seen, out=sent.seen)
        self.target.mbarriers.arrive(self.thread, self.barrier, 1, sent)


def _commit(instruction: Instruction, words: Words) -> Effect:
    """tcgen05.commit.cta_group::1.mbarrier::arrive::one{.shared::cluster}{.multicast::cluster}.b64 [mbarrier]{, mask}

    With a mask at the same place of each block that is in it, at times of their own.
    """
    in_cluster, is_multicast = words.take("shared::cluster"), words.take("multicast::cluster")
    _expect(words, "cta_group::1", "mbarrier::arrive::one", "b64")
    barrier, *mask = instruction.operands
    if len(mask) != is_multicast or (is_multicast and not in_cluster):
        raise words.unknown()
    read = address_of(barrier, instruction)
    read_mask = reader(mask[0], "u16", instruction) if is_multicast else None

    def targets(block: Block, thread: int) -> list[tuple[Block, MBarrier]]:
        address = int(read(block)[thread])
        if read_mask is None:
            return [found(block, thread, address, in_cluster)]
        _, own = block.cluster.target(block, thread, address)
        owners = block.cluster.chosen(block, thread, int(values_of(block, read_mask)[thread]))
        return [(owner, owner.mbarriers.find(thread, own, issuer=block)) for owner in owners]

    def effect(block: Block, mask: np.ndarray) -> None:
        if mask.any():
            thread = _single(block, mask)
            seen = block.ordering.seen[block.agent(thread)].copy()
            seen[: block.ordering.warps] = 0
            products = list(block.products.get(thread, []))
            commits = [Commit(block, owner, thread, each, products, seen) for owner, each in targets(block, thread)]
            block.cluster.events.extend(commits)

    return effect


def _fence(act: Callable[[Block, int], None]) -> Callable[[Instruction, Words], Effect]:
    def decode(instruction: Instruction, words: Words) -> Effect:
        words.finish()

        def effect(block: Block, mask: np.ndarray) -> None:
            for warp in np.flatnonzero(mask.reshape(-1, WARP).any(axis=1)):
                act(block, block.first_warp + int(warp))

        return effect

    return decode


def end(block: Block) -> None:
    """The block ends: nothing of it is under way."""
    for products in block.products.values():
        if products:
            raise TensorMemoryFault(f"the block ends before: {products[0].text}, {block.where()}")
    block.tensor_memory.end()


_OPERATIONS: dict[str, Callable[[Instruction, Words], Effect]] = {
    "alloc": _allocate,
    "dealloc": _free,
    "relinquish_alloc_permit": _relinquish,
    "ld": _load,
    "st": _store,
    "wait::ld": _wait("loads"),
    "wait::st": _wait("stores"),
    "mma": _multiply,
    "commit": _commit,
    "fence::before_thread_sync": _fence(lambda block, warp: block.ordering.fence_tensor_before(warp)),
    "fence::after_thread_sync": _fence(lambda block, warp: block.ordering.fence_tensor_after(warp)),
}
