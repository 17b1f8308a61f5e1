"""The state of one block: registers, special registers, memory; how operands are read and results written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tests.emulators.ptx.counts import Counts
from tests.emulators.ptx.errors import Divergence, MemoryFault, RegisterRace
from tests.emulators.ptx.formats import TYPES, Type
from tests.emulators.ptx.memory import GlobalMemory
from tests.emulators.ptx.parser import (
    Address,
    FloatBits,
    Instruction,
    Integer,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

if TYPE_CHECKING:
    from tests.emulators.ptx.bulk import BulkGroups
    from tests.emulators.ptx.clusters import Cluster
    from tests.emulators.ptx.mbarriers import MBarriers
    from tests.emulators.ptx.shared import SharedMemory
    from tests.emulators.ptx.tensor_cores import Transfers
    from tests.emulators.ptx.tensor_maps import TensorMap
    from tests.emulators.ptx.tensor_memory import TensorMemory
    from tests.emulators.ptx.warpgroups import WarpGroups

WARP = 32


@dataclass(frozen=True, eq=False)
class Retry:
    """What an instruction returns that some threads have to run again, once `is_over`; `waits_for` says for what."""

    lanes: np.ndarray
    is_over: Callable[[], bool]
    waits_for: Callable[[], str]


@dataclass(frozen=True, eq=False)
class Claim:
    """An asynchronous instruction's hold on a register: of which warps, its text, and what ends it."""

    warps: np.ndarray
    text: str
    owner: object


@dataclass(eq=False)
class Event:
    """An asynchronous operation of a thread of `block`, or what happens once some are complete: in the shared memory of
    `target`. `what` it is."""

    what: ClassVar[str]
    block: Block
    target: Block
    thread: int

    def land(self) -> None:
        raise NotImplementedError


@dataclass
class Block:
    """Threads are padded to whole warps; the lanes beyond `threads` never run. `rank`: of the block in its cluster."""

    cluster: Cluster
    rank: int
    position: tuple[int, int, int]
    blocks: tuple[int, int, int]
    threads: int
    registers: list[np.ndarray]
    symbols: dict[str, int]
    memory: GlobalMemory
    parameters: np.ndarray
    local: np.ndarray
    counts: Counts
    tensor_maps: Mapping[int, TensorMap]
    # These know the block; the emulator sets them.
    shared: SharedMemory = None  # type: ignore[assignment]
    mbarriers: MBarriers = None  # type: ignore[assignment]
    bulk: BulkGroups = None  # type: ignore[assignment]
    warpgroups: WarpGroups = None  # type: ignore[assignment]
    tensor_memory: TensorMemory = None  # type: ignore[assignment]
    transfers: Transfers = None  # type: ignore[assignment]
    current: Instruction = None  # type: ignore[assignment]  # set before each instruction
    steps: int = 0

    def __post_init__(self) -> None:
        self.lanes = np.arange(-(-self.threads // WARP) * WARP)
        self.finished = self.lanes >= self.threads
        self.carry = np.zeros(self.lanes.size, bool)
        self.ordering = self.cluster.ordering
        self.first_warp = self.rank * (self.lanes.size // WARP)
        # The clock of each agent's last operation on this block's shared memory, where that was another block's.
        self.reached = np.zeros(self.ordering.most_agents, np.int32)
        self.has_ended = False
        # The products of tcgen05 that each thread issued and that did not run.
        self.products: dict[int, list] = {}
        self.owned: dict[int, list[Claim]] = {}

    def agent(self, thread: int) -> int:
        """The number of the thread's warp among those of the cluster."""
        return self.first_warp + thread // WARP

    def where(self) -> str:
        return f"block {self.position}, line {self.current.line}: {self.current.text}"

    def fault(self, thread: int, address: int, reason: str) -> MemoryFault:
        return MemoryFault(f"{reason}: thread {thread}, address {address:#x}, {self.where()}")

    def divergence(self, reason: str) -> Divergence:
        return Divergence(f"{reason}, {self.where()}")

    def own(self, registers: Iterable[int], claim: Claim) -> None:
        """An asynchronous instruction holds registers from now on."""
        for register in registers:
            self.owned.setdefault(register, []).append(claim)

    def disown(self, registers: Iterable[int], owner: object) -> None:
        for register in registers:
            left = [claim for claim in self.owned.pop(register) if claim.owner is not owner]
            if left:
                self.owned[register] = left

    def check_owned(self, registers: Iterable[int], running: np.ndarray) -> None:
        """The threads of `running` touch registers, none of which an asynchronous instruction may hold."""
        for register in registers:
            for claim in self.owned.get(register, ()):
                held = np.repeat(claim.warps, WARP) & running
                if held.any():
                    raise RegisterRace(
                        f"thread {int(np.argmax(held))} touches a register that nobody awaited: {claim.text}, "
                        f"{self.where()}"
                    )

    @property
    def number(self) -> int:
        """Of the block in the grid, the first dim fastest."""
        x, y, z = self.position
        return x + self.blocks[0] * (y + self.blocks[1] * z)

    def special(self, name: str) -> np.ndarray:
        """A special register (PTX ISA, chapter 10) of every thread."""
        compute = _SPECIAL.get(name)
        if compute is None:
            raise NotImplementedError(f"{name}, {self.where()}")
        return np.broadcast_to(np.asarray(compute(self)), self.lanes.shape)


def _axes(register: str, value: Callable[[Block], tuple[int, int, int]]) -> dict[str, Callable[[Block], object]]:
    return {f"%{register}.{axis}": lambda block, i=i: value(block)[i] for i, axis in enumerate("xyz")}


def _in_clusters(block: Block, extents: tuple[int, int, int]) -> tuple[int, int, int]:
    return extents[0] // block.cluster.size, extents[1], extents[2]


_SPECIAL: dict[str, Callable[[Block], object]] = {
    "%tid.x": lambda block: block.lanes,
    "%tid.y": lambda block: 0,
    "%tid.z": lambda block: 0,
    **_axes("ntid", lambda block: (block.threads, 1, 1)),
    **_axes("ctaid", lambda block: block.position),
    **_axes("nctaid", lambda block: block.blocks),
    **_axes("cluster_ctaid", lambda block: (block.rank, 0, 0)),
    **_axes("cluster_nctaid", lambda block: (block.cluster.size, 1, 1)),
    **_axes("clusterid", lambda block: _in_clusters(block, block.position)),
    **_axes("nclusterid", lambda block: _in_clusters(block, block.blocks)),
    "%cluster_ctarank": lambda block: block.rank,
    "%cluster_nctarank": lambda block: block.cluster.size,
    "%laneid": lambda block: block.lanes % WARP,
    "%warpid": lambda block: block.lanes // WARP,
    "%nwarpid": lambda block: block.lanes.size // WARP,
    "%clock": lambda block: block.steps & 0xFFFFFFFF,
    "%clock64": lambda block: block.steps,
    # An instruction takes a nanosecond, and each block has a multiprocessor of its own.
    "%globaltimer": lambda block: block.steps,
    "%smid": lambda block: block.number,
    "%lanemask_eq": lambda block: 1 << (block.lanes % WARP),
    "%lanemask_lt": lambda block: (1 << (block.lanes % WARP)) - 1,
    "%lanemask_le": lambda block: (2 << (block.lanes % WARP)) - 1,
    "%lanemask_gt": lambda block: 0xFFFFFFFF & ~((2 << (block.lanes % WARP)) - 1),
    "%lanemask_ge": lambda block: 0xFFFFFFFF & ~((1 << (block.lanes % WARP)) - 1),
}

Reader = Callable[[Block], np.ndarray]
Writer = Callable[[Block, np.ndarray, np.ndarray], None]


def reader(operand: Operand, name: str, instruction: Instruction) -> Reader:
    """What reads `operand` as type `name`: an array with an element a thread, or one element for all.

    Packed types have a last axis of their two numbers.
    """
    kind = TYPES[name]
    if isinstance(operand, Register) and operand.bits >= kind.bits and (operand.bits == 1) == (kind.bits == 1):
        return _register_reader(operand, kind)
    if isinstance(operand, Negated) and name == "pred":
        return lambda block: ~block.registers[operand.register.index]
    if isinstance(operand, Integer) and not kind.is_float:
        return _constant(_integer_constant(operand.value, kind))
    if isinstance(operand, Integer) and (kind.bits == 16 or kind.lanes == 2):
        # 16-bit floats have no literals of their own: LLVM writes their bits.
        return _constant(_unpacked(np.array([operand.value % (1 << kind.bits)], f"uint{kind.bits}"), kind))
    if isinstance(operand, FloatBits) and operand.bits == kind.bits and kind.name[0] in "bf":
        return _constant(_unpacked(np.array([operand.pattern], f"uint{kind.bits}"), kind))
    if isinstance(operand, Special) and not kind.is_float and kind.bits >= 16:
        return lambda block: block.special(operand.name).astype(kind.dtype)
    if isinstance(operand, Symbol) and not kind.is_float and kind.bits >= 32:
        return lambda block: np.array([block.symbols[operand.name]], f"uint{kind.bits}").view(kind.dtype)
    raise NotImplementedError(f"line {instruction.line}: {instruction.text}: operand as {name}")


def _constant(value: np.ndarray) -> Reader:
    value.flags.writeable = False
    return lambda block: value


def _integer_constant(value: int, kind: Type) -> np.ndarray:
    if kind.bits == 1:
        return np.array([value != 0])
    return _unpacked(np.array([value % (1 << kind.bits)], f"uint{kind.bits}"), kind)


def _unpacked(values: np.ndarray, kind: Type) -> np.ndarray:
    return values[:, None].view(kind.dtype) if kind.lanes > 1 else values.view(kind.dtype)


def _register_reader(register: Register, kind: Type) -> Reader:
    index = register.index
    if kind.bits == 1:
        return lambda block: block.registers[index]
    if kind.lanes > 1 and register.bits == kind.bits:
        return lambda block: block.registers[index][:, None].view(kind.dtype)
    if register.bits == kind.bits:
        return lambda block: block.registers[index].view(kind.dtype)
    # A wider register: its low bits (PTX ISA, "Operand Size Exceeding Instruction-Type Size").
    unsigned = np.dtype(f"uint{kind.bits}")
    return lambda block: _unpacked(block.registers[index].astype(unsigned), kind)


def writer(operand: Operand, name: str, instruction: Instruction) -> Writer:
    """What writes a result of type `name` where the mask is set; wider registers are extended by its sign."""
    kind = TYPES[name]
    if isinstance(operand, Sink):
        return lambda block, mask, value: None
    if not isinstance(operand, Register) or operand.bits < kind.bits or (operand.bits == 1) != (kind.bits == 1):
        raise NotImplementedError(f"line {instruction.line}: {instruction.text}: result as {name}")
    index = operand.index
    if operand.bits == kind.bits:

        def write(block: Block, mask: np.ndarray, value: np.ndarray) -> None:
            target = block.registers[index]
            np.copyto(target, _packed(value, kind, target.dtype), where=mask)

        return write
    wider = np.dtype(f"{'int' if kind.is_signed else 'uint'}{operand.bits}")

    def write_extended(block: Block, mask: np.ndarray, value: np.ndarray) -> None:
        narrow = (
            value if not kind.is_float and kind.lanes == 1 else _packed(value, kind, np.dtype(f"u{kind.bits // 8}"))
        )
        np.copyto(block.registers[index], narrow.astype(wider).view(f"uint{operand.bits}"), where=mask)

    return write_extended


def _packed(value: np.ndarray, kind: Type, dtype: np.dtype) -> np.ndarray:
    if value.dtype != kind.dtype:
        raise TypeError(f"a result of {value.dtype} where {kind.name} belongs")
    if kind.bits == 1:
        return value
    if kind.lanes > 1:
        return np.ascontiguousarray(value).view(dtype)[..., 0]
    return value.view(dtype)


def each_lane(block: Block, value: np.ndarray) -> np.ndarray:
    """An operand with an element a lane, where it may have one for all."""
    return value if value.shape == block.lanes.shape else np.broadcast_to(value, block.lanes.shape)


def warps_of(values: np.ndarray) -> np.ndarray:
    """An array with an element a thread as (warp, lane)."""
    return values.reshape(-1, WARP)


def lane_bits(mask: np.ndarray) -> np.ndarray:
    """For each warp the bits of the lanes that `mask` sets."""
    return np.bitwise_or.reduce(warps_of(mask).astype(np.uint32) << np.arange(WARP, dtype=np.uint32), axis=1)


_ALL_LANES = np.uint32(0xFFFFFFFF)


def require_lanes(block: Block, mask: np.ndarray, members: np.ndarray) -> None:
    """Each lane that runs names itself and all names of a warp agree; every lane named runs, but those that ended.

    PTX ISA, "shfl.sync" and its like: the instruction waits for all threads of the mask that have not exited.
    """
    if mask.all() and (members == _ALL_LANES).all():
        return
    running = lane_bits(mask)
    ended = lane_bits(block.finished)
    named = warps_of(np.broadcast_to(members, mask.shape))
    for warp in np.flatnonzero(running):
        names = named[warp][warps_of(mask)[warp]]
        if (names != names[0]).any():
            raise block.divergence(f"lanes of warp {warp} name different members")
        if running[warp] & ~names[0]:
            raise block.divergence(f"lanes {running[warp]:#x} of warp {warp} run, but only {names[0]:#x} are named")
        if names[0] & ~running[warp] & ~ended[warp]:
            raise block.divergence(f"lanes {names[0]:#x} of warp {warp} are named, but only {running[warp]:#x} run")


def address_of(operand: Operand, instruction: Instruction) -> Reader:
    """What reads `[base+offset]` as numbers of 64 bits, an element a thread."""
    if not isinstance(operand, Address):
        raise NotImplementedError(f"line {instruction.line}: {instruction.text}: not an address")
    bits = operand.base.bits if isinstance(operand.base, Register) else 64
    base = reader(operand.base, f"u{bits}", instruction)
    offset = np.int64(operand.offset)

    def read(block: Block) -> np.ndarray:
        return each_lane(block, base(block).astype(np.int64) + offset)

    return read


def vector_items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)
