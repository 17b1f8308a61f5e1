"""Loads, stores, atomic operations and asynchronous copies.

PTX ISA: "Data Movement and Conversion Instructions: ld, st, cp.async" and "Parallel Synchronization and
Communication Instructions: atom, red".
"""

from collections.abc import Callable, Iterator

import numpy as np

from tests.emulators.ptx import bulk
from tests.emulators.ptx.block import Block, Reader, address_of, each_lane, reader, vector_items, writer
from tests.emulators.ptx.formats import TYPES, canonical, flushed
from tests.emulators.ptx.memory import LOCAL_BASE, PARAMETER_BASE, SHARED_BASE, SMALL_END, gather, scatter
from tests.emulators.ptx.parser import Instruction, Integer, Sink, Vector
from tests.emulators.ptx.words import Words

Effect = Callable[[Block, np.ndarray], None]
Part = tuple[str, np.ndarray | slice, np.ndarray, np.ndarray]

_VALUES = (*(f"{kind}{bits}" for kind in "bus" for bits in (8, 16, 32, 64)), "f32", "f64")
_SPACES = ("global", "shared", "shared::cta", "local", "const", "param", "param::entry")
_ORDERS = ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("cta", "cluster", "gpu", "sys")
# Hints to the caches change no result ("Cache Operators", "Cache Eviction Priority Hints"). `L2::cache_hint` has an
# operand, which no instruction here takes.
_HINTS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first")
_HINTS += ("L1::evict_last", "L1::no_allocate", "L2::64B", "L2::128B", "L2::256B", "L2::evict_first", "L2::evict_last")
_HINTS += ("L2::evict_normal",)


def _take_space(words: Words) -> str:
    """The space that an instruction names, or generic."""
    space = words.take_one(_SPACES, "generic")
    return space.split("::")[0]


def _take_order_and_hints(words: Words) -> None:
    words.take_one(_ORDERS, "weak")
    words.take_one(_SCOPES, "cta")
    while words.take_one(_HINTS, "none") != "none":
        pass


def _aligned(block: Block, lanes: np.ndarray, addresses: np.ndarray, total_bytes: int) -> None:
    """PTX ISA, "Addresses as Operands": an address is a multiple of the access's whole width."""
    wrong = addresses % total_bytes != 0
    if wrong.any():
        first = int(np.argmax(wrong))
        raise block.fault(int(lanes[first]), int(addresses[first]), f"not aligned to {total_bytes} bytes")


_SMALL_SPACES = {"shared": (SHARED_BASE, LOCAL_BASE), "local": (LOCAL_BASE, PARAMETER_BASE)}
_SMALL_SPACES["param"] = (PARAMETER_BASE, SMALL_END)


def parts(block: Block, space: str, lanes: np.ndarray, addresses: np.ndarray, total_bytes: int) -> Iterator[Part]:
    """(space, which of `lanes`, bytes of the space, offsets in them) of an access of `total_bytes` at each address."""
    _aligned(block, lanes, addresses, total_bytes)
    left = np.ones(lanes.size, bool)
    for small, (start, end) in _SMALL_SPACES.items():
        if space not in (small, "generic"):
            continue
        chosen = np.flatnonzero((addresses >= start) & (addresses < end))
        if chosen.size:
            data, offsets = _small_space(block, small, lanes[chosen], addresses[chosen] - start, total_bytes)
            left[chosen] = False
            yield small, chosen, data, offsets
    if space in ("global", "const", "generic"):
        for chosen, data, offsets in block.memory.parts(addresses, total_bytes):
            left[chosen] = False
            yield "global", chosen, data, offsets
    if left.any():
        first = int(np.argmax(left))
        raise block.fault(int(lanes[first]), int(addresses[first]), f"outside of {space} memory")


def _small_space(
    block: Block, space: str, lanes: np.ndarray, offsets: np.ndarray, total_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    data = {"shared": block.shared.data, "local": block.local, "param": block.parameters}[space]
    size = data.shape[-1]
    wrong = offsets + total_bytes > size
    if wrong.any():
        first = int(np.argmax(wrong))
        raise block.fault(int(lanes[first]), int(offsets[first]), f"beyond the {size} bytes of {space} memory")
    if space != "local":
        return data, offsets
    return data.reshape(-1), lanes * size + offsets


def load(instruction: Instruction, words: Words) -> Effect:
    name = words.take_type(_VALUES)
    space = _take_space(words)
    count = int(words.take_one(("v2", "v4", "v8"), "v1")[1:])
    _take_order_and_hints(words)
    words.finish()
    target, source = _operands(instruction, words, 2)
    read = address_of(source, instruction)
    items = vector_items(target)
    if len(items) != count or isinstance(target, Vector) != (count > 1):
        raise words.unknown()
    writers = [writer(item, name, instruction) for item in items]
    kind = TYPES[name]
    width = kind.bits // 8

    def effect(block: Block, mask: np.ndarray) -> None:
        lanes = np.flatnonzero(mask)
        if lanes.size == 0:
            return
        values = np.zeros((block.lanes.size, count), f"uint{kind.bits}")
        for where, chosen, data, offsets in parts(block, space, lanes, read(block)[lanes], width * count):
            who = lanes[chosen]
            if where == "shared":
                block.shared.note_read(who, offsets, width * count)
                block.counts.add_shared(instruction.line, who, offsets, width * count)
            elif where == "global":
                block.counts.add_global(instruction.line, who, offsets, width * count)
            values[who] = gather(data, offsets, width, count)
        for item, write in enumerate(writers):
            write(block, mask, np.ascontiguousarray(values[:, item]).view(kind.dtype))

    return effect


def store(instruction: Instruction, words: Words) -> Effect:
    name = words.take_type(_VALUES)
    space = _take_space(words)
    if space in ("const", "param"):
        raise words.unknown()
    count = int(words.take_one(("v2", "v4", "v8"), "v1")[1:])
    _take_order_and_hints(words)
    words.finish()
    target, source = _operands(instruction, words, 2)
    read = address_of(target, instruction)
    items = vector_items(source)
    if len(items) != count or isinstance(source, Vector) != (count > 1):
        raise words.unknown()
    unsigned = f"uint{TYPES[name].bits}"
    readers = [reader(item, name, instruction) for item in items]
    width = TYPES[name].bits // 8

    def effect(block: Block, mask: np.ndarray) -> None:
        lanes = np.flatnonzero(mask)
        if lanes.size == 0:
            return
        columns = [each_lane(block, each(block).view(unsigned))[lanes] for each in readers]
        values = np.stack(columns, axis=1)
        for where, chosen, data, offsets in parts(block, space, lanes, read(block)[lanes], width * count):
            who = lanes[chosen]
            if where == "param" or not data.flags.writeable:
                raise block.fault(int(who[0]), int(read(block)[who[0]]), "memory that is only read")
            if where == "shared":
                block.shared.note_write(who, offsets, width * count)
                block.counts.add_shared(instruction.line, who, offsets, width * count)
            elif where == "global":
                block.counts.add_global(instruction.line, who, offsets, width * count)
            scatter(data, offsets, values[chosen])

    return effect


def _operands(instruction: Instruction, words: Words, count: int) -> tuple:
    if len(instruction.operands) != count:
        raise words.unknown()
    return instruction.operands


_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, new: new,
    # inc wraps to 0 at the operand; dec wraps to it from 0 and from above it.
    "inc": lambda old, limit: np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1)),
}
_ATOMIC_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
    "inc": ("u32",),
    "dec": ("u32",),
}


def atomic(instruction: Instruction, words: Words) -> Effect:
    """atom, and red, which is the same without the old value. Threads take turns in the order of their numbers."""
    operation = words.take_one(tuple(_ATOMIC_TYPES), None)
    name = words.take_type(_ATOMIC_TYPES[operation])
    space = _take_space(words)
    words.take_one(_ORDERS, "relaxed")
    words.take_one(_SCOPES, "gpu")
    words.finish()
    if space not in ("global", "shared", "generic") or (words.name == "red" and operation in ("exch", "cas")):
        raise words.unknown()
    sources = 2 if operation == "cas" else 1
    operands = instruction.operands if words.name == "atom" else (Sink(), *instruction.operands)
    if len(operands) != 2 + sources:
        raise words.unknown()
    write = writer(operands[0], name, instruction)
    read = address_of(operands[1], instruction)
    readers = [reader(operand, name, instruction) for operand in operands[2:]]
    kind = TYPES[name]

    def updated(old: np.ndarray, given: list[np.ndarray]) -> np.ndarray:
        if operation == "cas":
            return given[1] if old == given[0] else old
        result = _BINARY[operation](old, given[0])
        if name != "f32":
            return result
        # f32 additions in global memory flush subnormal numbers; those in shared memory do not.
        return canonical(result)

    def effect(block: Block, mask: np.ndarray) -> None:
        lanes = np.flatnonzero(mask)
        if lanes.size == 0:
            return
        given = [each_lane(block, each(block))[lanes] for each in readers]
        before = np.zeros(block.lanes.size, kind.dtype)
        for where, chosen, data, offsets in parts(block, space, lanes, read(block)[lanes], kind.bits // 8):
            who = lanes[chosen]
            if where not in ("global", "shared"):
                raise block.fault(int(who[0]), int(read(block)[who[0]]), f"atomic operation in {where} memory")
            if where == "shared":
                block.shared.note_update(who, offsets, kind.bits // 8)
            else:
                block.counts.add_global(instruction.line, who, offsets, kind.bits // 8)
            flush = name == "f32" and where == "global"
            cells = data[: data.size // (kind.bits // 8) * (kind.bits // 8)].view(kind.dtype)
            for turn, cell in zip(np.arange(lanes.size)[chosen], offsets // (kind.bits // 8), strict=True):
                old = cells[cell : cell + 1].copy()
                before[lanes[turn]] = old[0]
                mine = [each[turn : turn + 1] for each in given]
                new = updated(flushed(old), [flushed(each) for each in mine]) if flush else updated(old, mine)
                cells[cell : cell + 1] = flushed(new) if flush else new
        write(block, mask, before)

    return effect


def copy_async(instruction: Instruction, words: Words) -> Effect:
    """cp.async: 4, 8 or 16 bytes from global to shared memory; beyond `src-size` zeros are written."""
    if words.left in (["async", "commit_group"], ["async", "wait_all"]) and not instruction.operands:
        return _commit if words.left[1] == "commit_group" else _wait_all
    if words.left[:2] == ["async", "bulk"]:
        words.left = words.left[2:]
        return bulk.copy(instruction, words)
    if words.left == ["async", "wait_group"]:
        return _wait_group(instruction, words)
    if not words.take("async") or not words.take("global") or len(instruction.operands) not in (3, 4):
        raise words.unknown()
    if words.take_one(("shared", "shared::cta"), None) and words.take_one(("ca", "cg"), None) == "ca":
        sizes = (4, 8, 16)
    else:
        sizes = (16,)
    words.take_one(("L2::64B", "L2::128B", "L2::256B"), "none")
    words.finish()
    target, source, size, *source_size = instruction.operands
    if not isinstance(size, Integer) or size.value not in sizes:
        raise words.unknown()
    total = size.value
    read_target, read_source = address_of(target, instruction), address_of(source, instruction)
    read_size = reader(source_size[0], "u32", instruction) if source_size else None

    def effect(block: Block, mask: np.ndarray) -> None:
        lanes = np.flatnonzero(mask)
        if lanes.size == 0:
            return
        ((_, _, _, offsets),) = parts(block, "shared", lanes, read_target(block)[lanes], total)
        data = _copied(block, lanes, read_source(block)[lanes], total, _sizes(block, read_size, lanes, total))
        block.counts.add_shared(instruction.line, lanes, offsets, total)
        block.shared.start_copies(lanes, offsets, data)

    return effect


def _sizes(block: Block, read: Reader | None, lanes: np.ndarray, total: int) -> np.ndarray:
    if read is None:
        return np.full(lanes.size, total)
    sizes = each_lane(block, read(block))[lanes].astype(np.int64)
    if (sizes > total).any():
        raise NotImplementedError(f"a source size above {total}, {block.where()}")
    return sizes


def _copied(block: Block, lanes: np.ndarray, addresses: np.ndarray, total: int, sizes: np.ndarray) -> np.ndarray:
    """The bytes that each thread copies: `sizes` of them from memory, then zeros."""
    result = np.zeros((lanes.size, total), np.uint8)
    _aligned(block, lanes, addresses, total)
    for size in np.unique(sizes[sizes > 0]):
        of_size = np.flatnonzero(sizes == size)
        missed = np.ones(of_size.size, bool)
        for chosen, data, offsets in block.memory.parts(addresses[of_size], int(size)):
            missed[chosen] = False
            result[of_size[chosen], :size] = gather(data, offsets, 1, int(size))
            block.counts.add_global(block.current.line, lanes[of_size[chosen]], offsets, int(size))
        if missed.any():
            first = of_size[int(np.argmax(missed))]
            raise block.fault(int(lanes[first]), int(addresses[first]), "outside of global memory")
    return result


def _commit(block: Block, mask: np.ndarray) -> None:
    block.shared.commit_copies(np.flatnonzero(mask))


def _wait_all(block: Block, mask: np.ndarray) -> None:
    block.shared.commit_copies(np.flatnonzero(mask))
    block.shared.await_copies(np.flatnonzero(mask), 0)


def _wait_group(instruction: Instruction, words: Words) -> Effect:
    (left,) = _operands(instruction, words, 1)
    if not isinstance(left, Integer):
        raise words.unknown()
    return lambda block, mask: block.shared.await_copies(np.flatnonzero(mask), left.value)
