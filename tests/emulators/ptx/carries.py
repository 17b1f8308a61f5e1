"""Sums with carries: PTX ISA, "Extended-Precision Integer Arithmetic Instructions"."""

from collections.abc import Callable

import numpy as np

from tests.emulators.ptx.block import Block, each_lane, reader, writer
from tests.emulators.ptx.parser import Instruction
from tests.emulators.ptx.words import Words

_TYPES = ("u32", "s32", "u64", "s64")


def is_extended(words: Words) -> bool:
    """Whether an addition or subtraction reads or writes the carry."""
    return words.name in ("addc", "subc") or (words.name in ("add", "sub") and "cc" in words.left)


def extended(instruction: Instruction, words: Words) -> Callable[[Block, np.ndarray], None]:
    """add.cc, addc, sub.cc and subc. After a subtraction the carry is a borrow."""
    name = "u" + words.take_type(_TYPES)[1:]
    sets = words.take("cc")
    reads = words.name.endswith("c")
    subtracts = words.name.startswith("sub")
    words.finish()
    target, *sources = instruction.operands
    read = [reader(operand, name, instruction) for operand in sources]
    write = writer(target, name, instruction)

    def run(block: Block, mask: np.ndarray) -> None:
        first, second = (each_lane(block, each(block)) for each in read)
        carried = block.carry.astype(first.dtype) if reads else np.zeros_like(first)
        if subtracts:
            between = first - second
            result = between - carried
            out = (first < second) | (between < carried)
        else:
            between = first + second
            result = between + carried
            out = (between < first) | (result < between)
        write(block, mask, result)
        if sets:
            block.carry = np.where(mask, out, block.carry)

    return run
