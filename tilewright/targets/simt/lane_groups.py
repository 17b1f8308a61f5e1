"""A thread's registers in LLVM vectors of a few: code of many elements is text of few lines.

LLVM splits such vectors when it selects instructions, or packs two elements per instruction where the chip can. A
function that is one instruction an element is not worth the lines that build a vector and split it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llvmlite import ir

from tilewright.cached import cached_property
from tilewright.records import dataclass
from tilewright.targets.llvm.values import Builder, Value, element_of, lanes_of, splat, undefined

# Elements of a vector: more of them are no fewer lines, and more are alive at a time.
WIDTH = 8
I32 = ir.IntType(32)


@dataclass(frozen=True)
class Grouped(Mapping[int, Value]):
    """Registers by number. They are taken out of their vectors, in the block that is written, when they are asked
    for; `vectors` are those of `groups_of` the numbers."""

    builder: Builder
    vectors: Sequence[Value]
    numbers: Sequence[int]

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        return {
            number: (position, lane)
            for position, group in enumerate(groups_of(self.numbers))
            for lane, number in enumerate(group)
        }

    def __getitem__(self, number: int) -> Value:
        position, lane = self._places[number]
        vector = self.vectors[position]
        if not isinstance(vector.type, ir.VectorType):
            return vector
        return self.builder.extract_element(vector, ir.Constant(I32, lane))

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def groups_of(numbers: Sequence[int]) -> list[Sequence[int]]:
    """The registers that share a vector."""
    return [numbers[start : start + WIDTH] for start in range(0, len(numbers), WIDTH)]


def grouped(builder: Builder, values: Sequence[Value]) -> Value:
    """Scalars of one type in a vector; a scalar by itself stays one."""
    first = values[0]
    if len(values) == 1:
        return first
    shape = ir.VectorType(first.type, len(values))
    if all(value is first for value in values):
        constant: Value = first if isinstance(first, ir.Constant) else None
        if constant is not None:
            return splat(shape, constant.constant)
        mask = ir.Constant(ir.VectorType(I32, len(values)), [ir.Constant(I32, 0)] * len(values))
        alone = builder.insert_element(undefined(shape), first, ir.Constant(I32, 0))
        return builder.shuffle_vector(alone, undefined(shape), mask)
    vector = undefined(shape)
    for lane, value in enumerate(values):
        vector = builder.insert_element(vector, value, ir.Constant(I32, lane))
    return vector


def in_each_lane(builder: Builder, name: str, result: ir.Type, arguments: Sequence[Value]) -> Value:
    """Call an intrinsic of scalars of one type for each lane of vectors, or for scalars."""
    shape = arguments[0].type
    function = builder.module.globals.get(name)
    if function is None:
        types = [element_of(shape)] * len(arguments)
        function = ir.Function(builder.module, ir.FunctionType(result, types), name)
    if not isinstance(shape, ir.VectorType):
        return builder.call(function, list(arguments))
    lanes = [ir.Constant(I32, lane) for lane in range(lanes_of(shape))]
    taken = [[builder.extract_element(argument, lane) for argument in arguments] for lane in lanes]
    return grouped(builder, [builder.call(function, each) for each in taken])
