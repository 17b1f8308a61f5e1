"""Runs the PTX that LLVM's NVPTX back end prints, with NumPy: all threads of a block at once, block after block.

The source of truth is the PTX ISA (https://docs.nvidia.com/cuda/parallel-thread-execution), whose headings the comments
cite. What is not implemented raises `NotImplementedError` with the text of the instruction; nothing is guessed.

Each thread has a position in the program. The threads at the lowest position run together until they reach the next
lowest one or part at a branch, which brings structured code together again. Where that brings only some lanes of a warp
to an instruction of whole warps, they wait until no other thread can go on.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tests.ptx import access, carries, comparisons, conversions, floats, integers, matrix, moves, warps
from tests.ptx.block import WARP, Block, lane_bits, reader, writer
from tests.ptx.counts import Counts
from tests.ptx.errors import Deadlock, Divergence
from tests.ptx.memory import LOCAL_BASE, PARAMETER_BASE, SHARED_BASE, GlobalMemory, SharedMemory
from tests.ptx.parser import Entry, Instruction, Integer, Module, Pair, Sink, Variable, parse
from tests.ptx.words import Pure, Words

Effect = Callable[[Block, np.ndarray], None]
# Far more than a test's block needs: a loop that does not end is an error, not a hang.
MOST_STEPS = 1_000_000

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
    # Blocks run one after another and a block's threads in step: fences order nothing more.
    "membar": moves.nothing,
    "fence": moves.nothing,
    "prefetch": moves.nothing,
    "nanosleep": moves.nothing,
}


# Instructions that lanes of a warp run together.
_WHOLE_WARPS = frozenset({"shfl", "vote", "match", "redux", "mma", "ldmatrix"})


@dataclass(frozen=True)
class _Branch:
    target: int


@dataclass(frozen=True)
class _Exit:
    """ret or exit: the threads that run it end."""


@dataclass(frozen=True)
class _Barrier:
    number: int
    aligned: bool
    threads: int | None


@dataclass(frozen=True)
class _Step:
    instruction: Instruction
    action: Effect | _Branch | _Exit | _Barrier


@dataclass(frozen=True)
class _Program:
    entry: Entry
    module: Module
    steps: tuple[_Step, ...]


def run(
    ptx: str,
    name: str,
    blocks: int | tuple[int, int, int],
    threads: int,
    arrays: Sequence[np.ndarray],
    shared_bytes: int = 0,
    order: random.Random | None = None,
) -> Counts:
    """Runs entry `name` of the module `ptx` on `blocks` blocks of `threads` threads, and counts what it did.

    Parameter i is the address of `arrays[i]`, which the kernel writes in place. `shared_bytes`: the dynamic shared
    array. `order` shuffles the blocks.
    """
    program = _decoded(ptx, name)
    required = program.entry.required_threads
    if required is not None and (*required, 1, 1)[:3] != (threads, 1, 1):
        raise ValueError(f"{name} needs blocks of {required} threads, not {threads}")
    if len(arrays) != len(program.entry.parameters):
        raise ValueError(f"{name} has {len(program.entry.parameters)} parameters, not {len(arrays)}")
    memory = GlobalMemory(arrays)
    extents = (blocks, 1, 1) if isinstance(blocks, int) else blocks
    positions = [(x, y, z) for z in range(extents[2]) for y in range(extents[1]) for x in range(extents[0])]
    if order is not None:
        order.shuffle(positions)
    counts = Counts()
    plan = _MemoryPlan(program, memory, shared_bytes)
    executed: Counter[int] = Counter()
    with np.errstate(all="ignore"):
        for position in positions:
            block = plan.block(position, extents, threads, memory, counts)
            _BlockRun(program, block, executed).run()
    for step, number in executed.items():
        counts.instructions[program.steps[step].instruction.opcode] += number
    return counts


class _MemoryPlan:
    """Where variables lie: the same in every block."""

    def __init__(self, program: _Program, memory: GlobalMemory, shared_bytes: int) -> None:
        self.registers = program.entry.register_bits
        self.symbols: dict[str, int] = {}
        variables = [*program.module.variables, *program.entry.variables]
        for variable in variables:
            if variable.space in ("global", "const"):
                self.symbols[variable.name] = memory.add(_initialised(variable))
        fixed = [variable for variable in variables if variable.space == "shared" and not variable.extern]
        end = self._place(fixed, SHARED_BASE)
        # All dynamic arrays begin where the fixed ones end, each where its alignment lets it.
        dynamic = [variable for variable in variables if variable.space == "shared" and variable.extern]
        end = max([end, *(self._place([variable], end) for variable in dynamic)]) + shared_bytes
        self.shared_bytes = end - SHARED_BASE
        self.local_bytes = (
            -(-(self._place([v for v in variables if v.space == "local"], LOCAL_BASE) - LOCAL_BASE) // 16) * 16
        )
        self.parameters = self._parameters(program.entry, memory.addresses)

    def _place(self, variables: Sequence[Variable], start: int) -> int:
        for variable in variables:
            if variable.data is not None:
                raise NotImplementedError(f"initialiser of {variable.space} variable {variable.name}")
            start = -(-start // variable.align) * variable.align
            self.symbols[variable.name] = start
            start += variable.size
        return start

    def _parameters(self, entry: Entry, addresses: list[int]) -> np.ndarray:
        for parameter in entry.parameters:
            if parameter.size != 8:
                raise NotImplementedError(f"parameter {parameter.name} of {parameter.size} bytes")
        self._place(entry.parameters, PARAMETER_BASE)
        return np.array(addresses, np.uint64).view(np.uint8)

    def block(
        self,
        position: tuple[int, int, int],
        extents: tuple[int, int, int],
        threads: int,
        memory: GlobalMemory,
        counts: Counts,
    ) -> Block:
        lanes = -(-threads // WARP) * WARP
        # No value that a program has not written is of use: a pattern that stands out.
        registers = [
            np.zeros(lanes, bool) if bits == 1 else np.full(lanes, 0xCDCDCDCDCDCDCDCD % (1 << bits), f"uint{bits}")
            for bits in self.registers
        ]
        local = np.full((lanes, self.local_bytes), 0xCD, np.uint8)
        block = Block(position, extents, threads, registers, self.symbols, memory, self.parameters, local, counts)
        block.shared = SharedMemory(self.shared_bytes, lanes, block.where)
        return block


def _initialised(variable: Variable) -> np.ndarray:
    data = np.frombuffer(variable.data or bytes(variable.size), np.uint8).copy()
    data.flags.writeable = variable.space == "global"
    return data


@lru_cache(maxsize=64)
def _decoded(ptx: str, name: str) -> _Program:
    module = parse(ptx)
    entry = module.entries.get(name)
    if entry is None:
        raise KeyError(f"no entry {name}: {', '.join(module.entries)}")
    steps = tuple(_Step(instruction, _action(instruction)) for instruction in entry.instructions)
    return _Program(entry, module, steps)


def _action(instruction: Instruction) -> Effect | _Branch | _Exit | _Barrier:
    words = Words(instruction)
    if words.name == "bra":
        words.take("uni")
        words.finish()
        (target,) = instruction.operands
        if not isinstance(target, Integer):
            raise words.unknown()
        return _Branch(target.value)
    if words.name in ("ret", "exit"):
        words.take("uni")
        words.finish()
        return _Exit()
    if words.name in ("bar", "barrier"):
        return _barrier(instruction, words)
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


def _barrier(instruction: Instruction, words: Words) -> _Barrier | Effect:
    """bar.sync a{, b} and barrier.sync{.aligned} a{, b}; `bar.warp.sync` is an instruction of a warp."""
    if words.name == "bar" and words.left == ["warp", "sync"]:
        return warps.meet(instruction, words)
    words.take("cta")
    aligned = words.name == "bar" or "aligned" in words.left
    words.take("aligned")
    if words.left != ["sync"] or not 1 <= len(instruction.operands) <= 2:
        raise words.unknown()
    numbers = [operand.value for operand in instruction.operands if isinstance(operand, Integer)]
    if len(numbers) != len(instruction.operands):
        raise words.unknown()
    return _Barrier(numbers[0], aligned, numbers[1] if len(numbers) == 2 else None)


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


class _BlockRun:
    """Runs one block: whose turn it is, branches, barriers and ends."""

    def __init__(self, program: _Program, block: Block, executed: Counter[int]) -> None:
        self._program = program
        self._block = block
        self._executed = executed
        self._positions = np.zeros(block.lanes.size, np.int64)
        self._waiting = np.zeros(block.lanes.size, bool)
        self._held = np.zeros(block.lanes.size, bool)

    def run(self) -> None:
        while not self._block.finished.all():
            ready = ~self._block.finished & ~self._waiting
            if not ready.any():
                self._meet()
                continue
            free = ready & ~self._held
            holds = bool(free.any())
            turn = free if holds else ready
            position = int(self._positions[turn].min())
            mask = turn & (self._positions == position)
            self._held &= ~mask
            others = self._positions[turn & ~mask]
            self._run_until(position, mask, int(others.min()) if others.size else len(self._program.steps), holds)

    def _lacks_lanes(self, mask: np.ndarray) -> bool:
        """Whether other lanes of the same warps may still come."""
        possible = ~self._block.finished & ~self._waiting
        running = lane_bits(mask)
        return bool(((running != 0) & (running != lane_bits(possible))).any())

    def _run_until(self, position: int, mask: np.ndarray, end: int, holds: bool) -> None:
        """The threads of `mask` run from `position` on, up to `end`, or until they part, wait or end; where `holds`,
        also until some lanes of a warp come to an instruction of whole warps."""
        block, steps, executed = self._block, self._program.steps, self._executed
        warps_running = int(np.count_nonzero(mask.reshape(-1, WARP).any(axis=1)))
        while position < end:
            step = steps[position]
            instruction, action = step.instruction, step.action
            if instruction.opcode.partition(".")[0] in _WHOLE_WARPS:
                if holds and self._lacks_lanes(mask):
                    self._positions[mask] = position
                    self._held |= mask
                    return
                holds = True
            block.current = instruction
            block.steps += 1
            executed[position] += warps_running
            guard = instruction.guard
            running = mask
            if guard is not None:
                value = block.registers[guard.index]
                running = mask & ~value if instruction.guard_negated else mask & value
            position += 1
            if callable(action):
                action(block, running)
            elif isinstance(action, _Branch) and (running == mask).all():
                position = action.target
            elif running.any():
                self._positions[mask] = position
                self._control(action, running)
                return
            if block.steps > MOST_STEPS:
                raise RuntimeError(f"more than {MOST_STEPS} steps, {block.where()}")
        self._positions[mask] = position
        if position >= len(steps):
            block.finished |= mask

    def _control(self, action: _Branch | _Exit | _Barrier, running: np.ndarray) -> None:
        if isinstance(action, _Branch):
            self._positions[running] = action.target
        elif isinstance(action, _Exit):
            self._block.finished |= running
        else:
            if action.threads not in (None, self._block.threads):
                raise NotImplementedError(f"a barrier of part of the block, {self._block.where()}")
            self._waiting |= running

    def _meet(self) -> None:
        """All threads that have not ended wait: at one barrier they go on, else nobody ever will."""
        block, waiting = self._block, self._waiting
        reached = self._positions - 1
        places = np.unique(reached[waiting])
        steps = [self._program.steps[place] for place in places]
        block.current = steps[0].instruction
        if len({step.action.number for step in steps if isinstance(step.action, _Barrier)}) > 1:
            lines = ", ".join(f"line {step.instruction.line}: {step.instruction.text}" for step in steps)
            raise Deadlock(f"threads of block {block.position} wait at different barriers: {lines}")
        for place, step in zip(places, steps, strict=True):
            self._check_aligned(reached == place, step)
        self._waiting = np.zeros_like(waiting)
        block.counts.barriers += 1
        block.shared.barrier()

    def _check_aligned(self, here: np.ndarray, step: _Step) -> None:
        """Of an aligned barrier, all threads of a warp that have not ended run the same instruction."""
        bits, unfinished = lane_bits(here & self._waiting), lane_bits(~self._block.finished)
        if isinstance(step.action, _Barrier) and step.action.aligned and ((bits != 0) & (bits != unfinished)).any():
            self._block.current = step.instruction
            raise Divergence(f"threads of a warp wait at several aligned barriers, {self._block.where()}")
