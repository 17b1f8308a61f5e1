"""Bulk copies by the asynchronous proxy: cp.async.bulk and cp.async.bulk.tensor (PTX ISA, 9.7.9.25.4 and .5).

A copy to shared memory lands when no thread can go on, at its mbarrier; one to global memory when its thread waits for
its group, and what it reads of shared memory may not change until then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.emulators.ptx.block import Block, Event, Reader, address_of, reader
from tests.emulators.ptx.errors import MemoryFault, SharedRace
from tests.emulators.ptx.mbarriers import MBarrier, lanes_of, values_of
from tests.emulators.ptx.memory import SHARED_BASE
from tests.emulators.ptx.parser import Instruction, Integer, Operand, TensorAddress
from tests.emulators.ptx.tensor_maps import TensorMap, exchanged
from tests.emulators.ptx.words import Words

Effect = Callable[[Block, np.ndarray], None]
_ALIGNMENT, _TENSOR_ALIGNMENT = 16, 128
_IN_CLUSTER, _TO_SHARED = "shared::cluster", ("shared::cluster", "shared::cta")
_ARRIVES, _GROUPED = "mbarrier::complete_tx::bytes", "bulk_group"


@dataclass(eq=False)
class _Load(Event):
    """Bytes on their way to `places` of shared memory; `read` fetches them when they land."""

    what = "a bulk copy to shared memory"
    places: np.ndarray
    barrier: MBarrier
    read: Callable[[], np.ndarray]

    def land(self) -> None:
        target = self.target
        agent, clock = target.mbarriers.stamp(self.barrier)
        target.cluster.note_landing(self.block, target, agent, clock)
        target.shared.finish_write(self.places, self.read(), agent, clock)
        target.mbarriers.complete(self.thread, self.barrier, self.places.size)


@dataclass
class _Store:
    """Bytes of `places` on their way to global memory, to which `write` takes them."""

    places: np.ndarray
    write: Callable[[np.ndarray], None]
    data: np.ndarray | None = None

    def finish_read(self, block: Block, thread: int) -> None:
        if self.data is None:
            self.data = block.shared.data[self.places].copy()
            agent = block.agent(thread)
            block.shared.finish_read(self.places, agent, int(block.ordering.clocks[agent]))


@dataclass
class BulkGroups:
    """Each thread's copies to global memory: groups that it committed, and the one that is open."""

    closed: dict[int, list[list[_Store]]] = field(default_factory=dict)
    open: dict[int, list[_Store]] = field(default_factory=dict)

    def end(self, block: Block) -> None:
        """The block ends: what was read is written; shared memory must not go before it was read."""
        for thread in {*self.closed, *self.open}:
            for group in [*self.closed.get(thread, []), self.open.get(thread, [])]:
                for store in group:
                    if store.data is None:
                        raise SharedRace(f"thread {thread} ends while its bulk copy reads, {block.where()}")
                    store.write(store.data)


def copy(instruction: Instruction, words: Words) -> Effect:
    """cp.async.bulk..., without the words `async` and `bulk`."""
    if words.left == ["commit_group"]:
        return _for_lanes(_commit)
    if words.left and words.left[0] == "wait_group":
        return _wait_group(instruction, words)
    if words.take("tensor"):
        return _tensor(instruction, words)
    if words.left == ["global", "shared::cta", _GROUPED]:
        return _plain_store(instruction, words)
    return _plain_load(instruction, _destination(instruction, words, 4))


def _for_lanes(act: Callable[[Block, int], None]) -> Effect:
    def effect(block: Block, mask: np.ndarray) -> None:
        for lane in lanes_of(mask):
            act(block, lane)

    return effect


# ---- where copies to shared memory go --------------------------------------------------------------------------------


# The blocks that a thread's copy goes to, and in each of them the address and the mbarrier.
_Destination = Callable[[Block, int], list[tuple[Block, int, MBarrier]]]


def _destination(instruction: Instruction, words: Words, count: int) -> _Destination:
    """What the operands `[target], ... [barrier]{, mask}` name, so many without the mask; with it the same places of
    each block that is in it."""
    is_multicast = words.take("multicast::cluster")
    if len(words.left) != 3 or words.left[0] not in _TO_SHARED or words.left[1:] != ["global", _ARRIVES]:
        raise words.unknown()
    in_cluster, operands = words.left[0] == _IN_CLUSTER, instruction.operands
    if len(operands) != count + is_multicast or (is_multicast and not in_cluster):
        raise words.unknown()
    read_target, read_barrier = address_of(operands[0], instruction), address_of(operands[count - 1], instruction)
    read_mask = reader(operands[count], "u16", instruction) if is_multicast else None

    def find(block: Block, thread: int) -> list[tuple[Block, int, MBarrier]]:
        address, at = int(read_target(block)[thread]), int(read_barrier(block)[thread])
        owner = barrier_owner = block
        if in_cluster:
            owner, address = block.cluster.target(block, thread, address)
            barrier_owner, at = block.cluster.target(block, thread, at)
        if read_mask is not None:
            owners = block.cluster.chosen(block, thread, int(values_of(block, read_mask)[thread]))
        elif owner is barrier_owner:
            owners = [owner]
        else:
            raise block.fault(thread, address, f"a copy to rank {owner.rank} at an mbarrier of {barrier_owner.rank}")
        return [(each, address, each.mbarriers.find(thread, at, True, block)) for each in owners]

    return find


def _start_loads(
    block: Block,
    thread: int,
    destinations: Sequence[tuple[Block, int, MBarrier]],
    places_at: Callable[[int], np.ndarray],
    read: Callable[[], np.ndarray],
) -> None:
    for owner, address, barrier in destinations:
        places = places_at(address)
        owner.shared.start_write(thread, block.agent(thread), places)
        block.cluster.events.append(_Load(block, owner, thread, places, barrier, read))


def _shared_offset(block: Block, thread: int, address: int, alignment: int) -> int:
    offset = address - SHARED_BASE
    if offset % alignment or not 0 <= offset < block.shared.data.size:
        raise block.fault(thread, address, f"no place of shared memory aligned to {alignment} bytes")
    return offset


# ---- copies without a tensor map -------------------------------------------------------------------------------------


def _plain_size(block: Block, thread: int, read: Reader, *addresses: int) -> int:
    size = int(values_of(block, read)[thread])
    if size % 16 or size == 0 or any(address % _ALIGNMENT for address in addresses):
        raise MemoryFault(f"thread {thread} copies {size} bytes, or from or to no multiple of 16, {block.where()}")
    return size


def _global_bytes(block: Block, thread: int, address: int, size: int) -> np.ndarray:
    """The bytes themselves, to be read or written."""
    found = block.memory.parts(np.array([address]), size)
    if not found or found[0][2].size == 0:
        raise block.fault(thread, address, "outside of global memory")
    _, data, offsets = found[0]
    return data[int(offsets[0]) : int(offsets[0]) + size]


def _plain_load(instruction: Instruction, find: _Destination) -> Effect:
    _, source, size = instruction.operands[:3]
    read_source, read_size = address_of(source, instruction), reader(size, "u32", instruction)

    def act(block: Block, thread: int) -> None:
        start = int(read_source(block)[thread])
        size = _plain_size(block, thread, read_size, start)
        data = _global_bytes(block, thread, start, size)

        def places_at(address: int) -> np.ndarray:
            return _shared_offset(block, thread, address, _ALIGNMENT) + np.arange(size)

        _start_loads(block, thread, find(block, thread), places_at, data.copy)

    return _for_lanes(act)


def _plain_store(instruction: Instruction, words: Words) -> Effect:
    target, source, size = instruction.operands
    read_target, read_source = address_of(target, instruction), address_of(source, instruction)
    read_size = reader(size, "u32", instruction)

    def act(block: Block, thread: int) -> None:
        to, start = int(read_target(block)[thread]), int(read_source(block)[thread])
        size = _plain_size(block, thread, read_size, to, start)
        places = _shared_offset(block, thread, start, _ALIGNMENT) + np.arange(size)
        _start_store(block, thread, places, _writer_of(block, thread, _global_bytes(block, thread, to, size)))

    return _for_lanes(act)


def _writer_of(block: Block, thread: int, target: np.ndarray) -> Callable[[np.ndarray], None]:
    if not target.flags.writeable:
        raise block.fault(thread, 0, "memory that is only read")
    return lambda data: target.__setitem__(slice(None), data)


def _start_store(block: Block, thread: int, places: np.ndarray, write: Callable[[np.ndarray], None]) -> None:
    block.shared.start_read(thread, places)
    block.bulk.open.setdefault(thread, []).append(_Store(places, write))


# ---- copies with a tensor map ----------------------------------------------------------------------------------------


def _tensor(instruction: Instruction, words: Words) -> Effect:
    rank = int(words.take_one(("1d", "2d", "3d", "4d", "5d"), None)[0])
    words.take("tile")
    if words.left == ["global", "shared::cta", _GROUPED]:
        target, source = instruction.operands
        return _tensor_store(instruction, _named_box(instruction, target, rank), source)
    words.take("cta_group::1")
    destination = _destination(instruction, words, 3)
    return _tensor_load(_named_box(instruction, instruction.operands[1], rank), destination)


_Box = Callable[[Block, int], tuple[TensorMap, tuple[np.ndarray, np.ndarray]]]


def _named_box(instruction: Instruction, operand: Operand, rank: int) -> _Box:
    """What finds the tensor map and the box that `[map, {coordinates}]` names for a thread."""
    if not isinstance(operand, TensorAddress) or len(operand.coordinates) != rank:
        raise NotImplementedError(f"line {instruction.line}: {instruction.text}: not {rank} coordinates of a tensor")
    read = address_of(operand.map, instruction)
    readers = [reader(each, "s32", instruction) for each in operand.coordinates]

    def find(block: Block, thread: int) -> tuple[TensorMap, tuple[np.ndarray, np.ndarray]]:
        address = int(read(block)[thread])
        tensor_map = block.tensor_maps.get(address)
        if tensor_map is None or len(tensor_map.dims) != rank:
            raise block.fault(thread, address, f"no tensor map of {rank} dims")
        return tensor_map, tensor_map.box_at([int(values_of(block, each)[thread]) for each in readers])

    return find


def _box_places(block: Block, thread: int, address: int, tensor_map: TensorMap) -> np.ndarray:
    """The bytes of shared memory of a box, in the order of its elements."""
    start = _shared_offset(block, thread, address, _TENSOR_ALIGNMENT)
    return exchanged(start + np.arange(tensor_map.box_bytes), tensor_map.swizzle)


def _array_places(tensor_map: TensorMap, offsets: np.ndarray) -> np.ndarray:
    return offsets[:, None] + np.arange(tensor_map.bytes_per_element)


def _tensor_load(find: _Box, find_destination: _Destination) -> Effect:
    def act(block: Block, thread: int) -> None:
        tensor_map, (offsets, inside) = find(block, thread)

        def places_at(address: int) -> np.ndarray:
            return _box_places(block, thread, address, tensor_map)

        def read() -> np.ndarray:
            data = np.zeros((offsets.size, tensor_map.bytes_per_element), np.uint8)
            flat = tensor_map.array.reshape(-1).view(np.uint8)
            data[inside] = flat[_array_places(tensor_map, offsets[inside])]
            return tensor_map.brought(data.reshape(-1))

        _start_loads(block, thread, find_destination(block, thread), places_at, read)

    return _for_lanes(act)


def _tensor_store(instruction: Instruction, find: _Box, source: Operand) -> Effect:
    read_source = address_of(source, instruction)

    def act(block: Block, thread: int) -> None:
        tensor_map, (offsets, inside) = find(block, thread)
        places = _box_places(block, thread, int(read_source(block)[thread]), tensor_map)

        def write(data: np.ndarray) -> None:
            flat = tensor_map.array.reshape(-1).view(np.uint8)
            flat[_array_places(tensor_map, offsets[inside])] = data.reshape(offsets.size, -1)[inside]

        _start_store(block, thread, places, write)

    return _for_lanes(act)


# ---- groups ----------------------------------------------------------------------------------------------------------


def _commit(block: Block, thread: int) -> None:
    block.bulk.closed.setdefault(thread, []).append(block.bulk.open.pop(thread, []))


def _wait_group(instruction: Instruction, words: Words) -> Effect:
    """cp.async.bulk.wait_group{.read} N: all but the last N groups are done, or have read what they copy."""
    only_read = words.take("read")
    if words.left != ["wait_group"] or not isinstance(instruction.operands[0], Integer):
        raise words.unknown()
    left = instruction.operands[0].value

    def act(block: Block, thread: int) -> None:
        groups = block.bulk.closed.get(thread, [])
        done = max(len(groups) - left, 0)
        for group in groups[:done]:
            for store in group:
                store.finish_read(block, thread)
                if not only_read:
                    store.write(store.data)
        if not only_read:
            block.bulk.closed[thread] = groups[done:]

    return _for_lanes(act)
