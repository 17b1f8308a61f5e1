"""Instructions of a whole warp: shfl, vote, match, redux, activemask (PTX ISA, under their names)."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tests.emulators.ptx.block import WARP, Block, Reader, lane_bits, reader, require_lanes, warps_of, writer
from tests.emulators.ptx.parser import Instruction, Operand, Pair, Sink
from tests.emulators.ptx.words import Words

Effect = Callable[[Block, np.ndarray], None]
_LANES = np.arange(WARP)


def _two_results(operand: Operand) -> tuple[Operand, Operand]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Sink())


def _every(block: Block, read: Reader) -> np.ndarray:
    """What `read` gives as (warp, lane)."""
    return warps_of(np.ascontiguousarray(np.broadcast_to(read(block), block.lanes.shape)))


def _sources(mode: str, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lane that each lane of shfl reads, and whether it is inside of its segment: (warp, lane), or one warp's."""
    b, c = ((each.reshape(-1, WARP) if each.size > 1 else each).astype(np.int64) for each in (b, c))
    b, clamp, segment = b & 31, c & 31, (c >> 8) & 31
    low = _LANES & segment
    high = low | (clamp & ~segment)
    source = {"up": _LANES - b, "down": _LANES + b, "bfly": _LANES ^ b, "idx": low | (b & ~segment)}[mode]
    inside = source >= high if mode == "up" else source <= high
    return np.where(inside, source, _LANES), inside


@lru_cache(maxsize=512)
def _constant_sources(mode: str, b: np.integer, c: np.integer) -> tuple[np.ndarray, np.ndarray]:
    return _sources(mode, np.array([b]), np.array([c]))


def shuffle(instruction: Instruction, words: Words) -> Effect:
    """shfl.sync.mode.b32 d|p, a, b, c, members: c holds the segment's mask (bits 8 to 12) and its clamp."""
    words.take_type(("b32",))
    mode = words.take_one(("up", "down", "bfly", "idx"), None)
    if words.left != ["sync"] or len(instruction.operands) != 5:
        raise words.unknown()
    target, valid = _two_results(instruction.operands[0])
    write, write_valid = writer(target, "b32", instruction), writer(valid, "pred", instruction)
    readers = [reader(operand, "b32", instruction) for operand in instruction.operands[1:]]

    def effect(block: Block, mask: np.ndarray) -> None:
        require_lanes(block, mask, readers[3](block))
        values, b, c = (read(block) for read in readers[:3])
        source, inside = _sources(mode, b, c) if b.size > 1 or c.size > 1 else _constant_sources(mode, b[0], c[0])
        place = (source + block.lanes[::WARP, None]).reshape(-1)
        silent = mask & ~mask[place]
        if silent.any():
            thread = int(np.argmax(silent))
            raise block.divergence(f"thread {thread} reads lane {place[thread] % WARP}, which does not run")
        write(block, mask, values[place] if values.size > 1 else values)
        write_valid(block, mask, np.broadcast_to(inside, (place.size // WARP, WARP)).reshape(-1))

    return effect


def vote(instruction: Instruction, words: Words) -> Effect:
    """vote.sync.{all any uni}.pred d, {!}a, members and vote.sync.ballot.b32."""
    name = words.take_type(("pred", "b32"))
    mode = words.take_one(("ballot",) if name == "b32" else ("all", "any", "uni"), None)
    if words.left != ["sync"] or len(instruction.operands) != 3:
        raise words.unknown()
    target, source, members = instruction.operands
    write = writer(target, name, instruction)
    read, read_members = reader(source, "pred", instruction), reader(members, "b32", instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        require_lanes(block, mask, read_members(block))
        yes = lane_bits(_every(block, read).reshape(-1) & mask)
        running = lane_bits(mask)
        result = {
            "ballot": yes,
            "all": yes == running,
            "any": yes != 0,
            "uni": (yes == running) | (yes == 0),
        }[mode]
        write(block, mask, np.repeat(result, WARP))

    return effect


def match(instruction: Instruction, words: Words) -> Effect:
    """match.any: the lanes with this lane's value; match.all: all lanes of the mask if they agree, else 0."""
    name = words.take_type(("b32", "b64"))
    mode = words.take_one(("any", "all"), None)
    if words.left != ["sync"] or len(instruction.operands) != 3:
        raise words.unknown()
    target, agreed = _two_results(instruction.operands[0])
    if mode == "any" and not isinstance(agreed, Sink):
        raise words.unknown()
    write, write_agreed = writer(target, "b32", instruction), writer(agreed, "pred", instruction)
    read = reader(instruction.operands[1], name, instruction)
    read_members = reader(instruction.operands[2], "b32", instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        require_lanes(block, mask, read_members(block))
        values, running = _every(block, read), warps_of(mask)
        same = (values[:, :, None] == values[:, None, :]) & running[:, None, :]
        bits = np.bitwise_or.reduce(same.astype(np.uint32) << _LANES.astype(np.uint32), axis=2)
        alike = bits == lane_bits(mask)[:, None]
        if mode == "all":
            bits = np.where(alike, bits, np.uint32(0))
        write(block, mask, bits.reshape(-1))
        write_agreed(block, mask, alike.reshape(-1))

    return effect


_REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduce(instruction: Instruction, words: Words) -> Effect:
    """redux.sync, of integers."""
    operation = words.take_one(tuple(_REDUCTIONS), None)
    name = words.take_type(("b32",) if operation in ("and", "or", "xor") else ("u32", "s32"))
    if words.left != ["sync"] or len(instruction.operands) != 3:
        raise words.unknown()
    write = writer(instruction.operands[0], name, instruction)
    read = reader(instruction.operands[1], name, instruction)
    read_members = reader(instruction.operands[2], "b32", instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        require_lanes(block, mask, read_members(block))
        values, running = _every(block, read), warps_of(mask)
        result = np.zeros_like(values)
        for warp in np.flatnonzero(running.any(axis=1)):
            total = _REDUCTIONS[operation].reduce(values[warp][running[warp]])
            result[warp] = np.asarray(total).astype(values.dtype)
        write(block, mask, result.reshape(-1))

    return effect


def elect(instruction: Instruction, words: Words) -> Effect:
    """elect.sync d|p, members: one of them, always the same. The last one: nobody may rely on its being lane 0."""
    if words.left != ["sync"] or len(instruction.operands) != 2:
        raise words.unknown()
    target, chosen = _two_results(instruction.operands[0])
    write, write_chosen = writer(target, "b32", instruction), writer(chosen, "pred", instruction)
    read_members = reader(instruction.operands[1], "b32", instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        require_lanes(block, mask, read_members(block))
        running = warps_of(mask)
        leader = WARP - 1 - np.argmax(running[:, ::-1], axis=1)
        write(block, mask, np.repeat(leader.astype(np.uint32), WARP))
        write_chosen(block, mask, (leader[:, None] == _LANES).reshape(-1))

    return effect


def active_mask(instruction: Instruction, words: Words) -> Effect:
    if words.left != ["b32"] or len(instruction.operands) != 1:
        raise words.unknown()
    write = writer(instruction.operands[0], "b32", instruction)
    return lambda block, mask: write(block, mask, np.repeat(lane_bits(mask), WARP))


def meet(instruction: Instruction, words: Words) -> Effect:
    """bar.warp.sync: the lanes of the mask are together; in this emulator nothing else is left to order."""
    if len(instruction.operands) != 1:
        raise words.unknown()
    read_members = reader(instruction.operands[0], "b32", instruction)
    return lambda block, mask: require_lanes(block, mask, read_members(block))
