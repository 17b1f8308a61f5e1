"""mov, cvta and instructions that change nothing here: PTX ISA, "Data Movement ... mov, cvta"."""

from collections.abc import Callable

import numpy as np

from tests.emulators.ptx.block import Block, each_lane, reader, writer
from tests.emulators.ptx.formats import TYPES
from tests.emulators.ptx.parser import Instruction, Sink, Vector
from tests.emulators.ptx.words import Pure, Words

Effect = Callable[[Block, np.ndarray], None]
_TYPES = ("pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
_SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param")


def move(instruction: Instruction, words: Words) -> Effect:
    name = words.take_type(_TYPES)
    words.finish()
    if len(instruction.operands) != 2:
        raise words.unknown()
    target, source = instruction.operands
    if isinstance(target, Vector):
        return _unpack(instruction, words, name)
    if isinstance(source, Vector):
        return _pack(instruction, words, name)
    read, write = reader(source, name, instruction), writer(target, name, instruction)
    return lambda block, mask: write(block, mask, read(block))


def _item_type(words: Words, name: str, items: int) -> str:
    if not name.startswith("b") or TYPES[name].bits % items or f"b{TYPES[name].bits // items}" not in TYPES:
        raise words.unknown()
    return f"b{TYPES[name].bits // items}"


def _pack(instruction: Instruction, words: Words, name: str) -> Effect:
    """mov.b32 d, {a, b}: the first item is the least significant."""
    target, source = instruction.operands
    item = _item_type(words, name, len(source.items))
    readers = [reader(each, item, instruction) for each in source.items]
    write = writer(target, name, instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        columns = [each_lane(block, read(block)) for read in readers]
        write(block, mask, np.stack(columns, axis=1).view(TYPES[name].dtype)[:, 0])

    return effect


def _unpack(instruction: Instruction, words: Words, name: str) -> Effect:
    target, source = instruction.operands
    item = _item_type(words, name, len(target.items))
    writers = [writer(each, item, instruction) for each in target.items if not isinstance(each, Sink)]
    columns = [column for column, each in enumerate(target.items) if not isinstance(each, Sink)]
    read = reader(source, name, instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        values = np.array(read(block))[:, None].view(TYPES[item].dtype)
        for column, write in zip(columns, writers, strict=True):
            write(block, mask, np.ascontiguousarray(values[:, column]))

    return effect


def convert_address(words: Words) -> Pure:
    """cvta and cvta.to: all spaces share one numbering here."""
    name = words.take_type(("u32", "u64"))
    words.take("to")
    words.take_one(_SPACES, None)
    return Pure((name,), (name,), lambda address: address)


def nothing(instruction: Instruction, words: Words) -> Effect:
    """Fences, prefetches and pauses."""
    return lambda block, mask: None
