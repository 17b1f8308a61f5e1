"""Instructions to what they do: `Step`s, which the scheduler runs.

What is not implemented raises `NotImplementedError` with the text of the instruction; nothing is guessed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from tests.emulators.ptx import (
    access,
    barriers,
    carries,
    cluster_operations,
    comparisons,
    conversions,
    floats,
    integers,
    matrix,
    mbarriers,
    moves,
    tensor_cores,
    warpgroups,
    warps,
)
from tests.emulators.ptx.barriers import BarrierStep
from tests.emulators.ptx.block import Block, Retry, reader, writer
from tests.emulators.ptx.parser import (
    Address,
    Entry,
    Instruction,
    Integer,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    TensorAddress,
    Vector,
    parse,
)
from tests.emulators.ptx.words import Pure, Words

Effect = Callable[[Block, np.ndarray], Retry | None]

_FLOAT_ENDS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64")
# The names that integers and floating-point types share.
_INTEGER_PURE: dict[str, Callable[[Words], Pure]] = {
    "add": integers.add,
    "sub": integers.add,
    "mul": integers.mul,
    "mad": integers.mul,
    "div": integers.div,
    "neg": integers.sign,
    "abs": integers.sign,
    "min": integers.extreme,
    "max": integers.extreme,
}
_FLOAT_PURE: dict[str, Callable[[Words], Pure]] = {
    "add": floats.add,
    "sub": floats.add,
    "mul": floats.mul,
    "mad": floats.fma,
    "div": floats.div,
    "neg": floats.sign,
    "abs": floats.sign,
    "min": floats.extreme,
    "max": floats.extreme,
}
_PURE: dict[str, Callable[[Words], Pure]] = {
    "fma": floats.fma,
    "ex2": floats.function,
    "lg2": floats.function,
    "sin": floats.function,
    "cos": floats.function,
    "tanh": floats.function,
    "rcp": floats.function,
    "sqrt": floats.function,
    "rsqrt": floats.function,
    "copysign": floats.copysign,
    "testp": floats.test_property,
    "rem": integers.div,
    "and": integers.logic,
    "or": integers.logic,
    "xor": integers.logic,
    "not": integers.complement,
    "cnot": integers.complement,
    "shl": integers.shift,
    "shr": integers.shift,
    "shf": integers.funnel_shift,
    "lop3": integers.any_logic,
    "prmt": integers.permute,
    "popc": integers.count,
    "clz": integers.count,
    "brev": integers.reverse_bits,
    "bfind": integers.find_bit,
    "bfe": integers.extract_field,
    "bfi": integers.insert_field,
    "szext": integers.extend,
    "setp": comparisons.set_predicate,
    "set": comparisons.set_number,
    "selp": comparisons.select,
    "slct": comparisons.select_by_sign,
    "cvt": conversions.convert,
    "cvta": moves.convert_address,
}
_EFFECTS: dict[str, Callable[[Instruction, Words], Effect]] = {
    "mov": moves.move,
    "ld": access.load,
    "ldu": access.load,
    "st": access.store,
    "atom": access.atomic,
    "red": access.atomic,
    "cp": access.copy_async,
    "shfl": warps.shuffle,
    "vote": warps.vote,
    "match": warps.match,
    "redux": warps.reduce,
    "activemask": warps.active_mask,
    "mma": matrix.multiply,
    "ldmatrix": matrix.load_matrix,
    "stmatrix": matrix.store_matrix,
    "elect": warps.elect,
    "mapa": cluster_operations.map_address,
    "getctarank": cluster_operations.rank_of_address,
    "mbarrier": mbarriers.operate,
    # Clusters run one after another: fences order nothing but what the asynchronous proxy reads.
    "membar": mbarriers.fence,
    "fence": mbarriers.fence,
    "wgmma": warpgroups.operate,
    "setmaxnreg": warpgroups.set_most_registers,
    "tcgen05": tensor_cores.operate,
    "prefetch": moves.nothing,
    "prefetchu": moves.nothing,
    "nanosleep": moves.nothing,
    "griddepcontrol": moves.nothing,
}


# Instructions that lanes of a warp run together, by the first word and by the first two; and those of four warps.
_WHOLE_WARPS = frozenset({"shfl", "vote", "match", "redux", "mma", "ldmatrix", "stmatrix", "elect"})
_WHOLE_WARPS |= {f"tcgen05.{word}" for word in ("alloc", "dealloc", "relinquish_alloc_permit", "ld", "st")}
_WHOLE_WARPS |= {"tcgen05.wait::ld", "tcgen05.wait::st", "bar.arrive"}
_WHOLE_GROUPS = frozenset({"wgmma", "setmaxnreg"})


@dataclass(frozen=True)
class Branch:
    target: int


@dataclass(frozen=True)
class Exit:
    """ret or exit: the threads that run it end."""


@dataclass(frozen=True)
class Step:
    """`warps_together`: how many warps run the instruction together, 0 where lanes are on their own. `registers`: what
    it touches, but for the registers that an asynchronous product touches later."""

    instruction: Instruction
    action: Effect | Branch | Exit | BarrierStep
    warps_together: int
    registers: frozenset[int]
    register_list: np.ndarray


@dataclass(frozen=True)
class Program:
    entry: Entry
    module: Module
    steps: tuple[Step, ...]

    @cached_property
    def fences_registers(self) -> bool:
        return any(step.instruction.opcode.startswith("wgmma") for step in self.steps)


@lru_cache(maxsize=64)
def decoded(ptx: str, name: str) -> Program:
    """An entry of a module. Raises KeyError without it."""
    module = parse(ptx)
    entry = module.entries.get(name)
    if entry is None:
        raise KeyError(f"no entry {name}: {', '.join(module.entries)}")
    return Program(entry, module, tuple(map(_step, entry.instructions)))


def _step(instruction: Instruction) -> Step:
    first, _, rest = instruction.opcode.partition(".")
    second = f"{first}.{rest.partition('.')[0]}"
    together = warpgroups.GROUP if first in _WHOLE_GROUPS else int(first in _WHOLE_WARPS or second in _WHOLE_WARPS)
    operands = [] if second == "wgmma.mma_async" else list(instruction.operands)
    registers = frozenset(_registers([*operands, instruction.guard or Sink()]))
    return Step(instruction, _action(instruction), together, registers, np.array(sorted(registers), np.int64))


def _registers(operands: Sequence[Operand]) -> Iterator[int]:
    for operand in operands:
        match operand:
            case Register():
                yield operand.index
            case Negated():
                yield operand.register.index
            case Vector():
                yield from _registers(operand.items)
            case Pair():
                yield from _registers((operand.first, operand.second))
            case Address():
                yield from _registers((operand.base,))
            case TensorAddress():
                yield from _registers((operand.map, *operand.coordinates))
            case _:
                pass


def _action(instruction: Instruction) -> Effect | Branch | Exit | BarrierStep:
    words = Words(instruction)
    if words.name == "bra":
        words.take("uni")
        words.finish()
        (target,) = instruction.operands
        if not isinstance(target, Integer):
            raise words.unknown()
        return Branch(target.value)
    if words.name in ("ret", "exit"):
        words.take("uni")
        words.finish()
        return Exit()
    if words.name in ("bar", "barrier"):
        if words.name == "barrier" and words.left[:1] == ["cluster"]:
            return cluster_operations.decode_barrier(instruction, words)
        # `bar.warp.sync` is an instruction of a warp.
        is_of_warp = words.name == "bar" and words.left == ["warp", "sync"]
        return warps.meet(instruction, words) if is_of_warp else barriers.decode(instruction, words)
    if words.name in _EFFECTS:
        return _EFFECTS[words.name](instruction, words)
    if carries.is_extended(words):
        return carries.extended(instruction, words)
    decode = _PURE.get(words.name)
    if decode is None:
        float_type = bool(words.left) and words.left[-1] in _FLOAT_ENDS
        decode = (_FLOAT_PURE if float_type else _INTEGER_PURE).get(words.name)
    if decode is None:
        raise words.unknown()
    pure = decode(words)
    words.finish()
    return _pure_effect(instruction, words, pure)


def _pure_effect(instruction: Instruction, words: Words, pure: Pure) -> Effect:
    if len(instruction.operands) != 1 + len(pure.sources):
        raise words.unknown()
    target, *sources = instruction.operands
    readers = [reader(operand, name, instruction) for operand, name in zip(sources, pure.sources, strict=True)]
    compute = pure.compute
    if len(pure.results) == 1:
        write = writer(target, pure.results[0], instruction)
        return lambda block, mask: write(block, mask, compute(*[read(block) for read in readers]))
    targets = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    writers = [writer(each, name, instruction) for each, name in zip(targets, pure.results, strict=True)]

    def several(block: Block, mask: np.ndarray) -> None:
        for write, value in zip(writers, compute(*[read(block) for read in readers]), strict=True):
            write(block, mask, value)

    return several
