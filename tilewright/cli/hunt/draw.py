"""Random programs: operators as often as models have them, shapes of 1 to 64 MiB, odd, skinny and tiny ones."""

from __future__ import annotations

import random

from tilewright.cli.hunt.operators import OPERATORS
from tilewright.cli.hunt.operators.base import Call, Operator
from tilewright.cli.hunt.program import CONTIGUOUS, STRIDED, TRANSPOSED, Input, Program, Step, Type, types_of
from tilewright.dtypes import by_name
from tilewright.errors import TilewrightError

# Shares of programs of one operator, and of tiny arrays.
_SINGLE, _TINY = 0.35, 0.2
_MOST_STEPS = 8
_TINY_BYTES, _LEAST_BYTES, _MOST_BYTES = 1 << 8, 1 << 20, 1 << 26
_DTYPES = {"f32": 70, "f64": 8, "bf16": 6, "f16": 4, "i32": 5, "i64": 3, "u8": 4}
_FORMS = {CONTIGUOUS: 80, TRANSPOSED: 10, STRIDED: 10}
# Extents of inner dims as models have them, and odd ones.
_EXTENTS = (1, 2, 3, 4, 7, 8, 12, 16, 20, 32, 49, 50, 64, 77, 96, 100, 112, 128, 197, 224, 256, 300, 384, 512, 768)
_LONG = (1000, 1024, 1536, 2048, 3072, 4096, 8191, 50257)
_IMAGE_SIDES = (7, 14, 28, 56, 112, 32, 64, 31)
_IMAGES = 0.15
_TRIALS = 40


def draw(seed: int) -> Program:
    """The program of a seed."""
    generator = random.Random(seed)
    while True:
        program = _drawn(generator)
        if program is not None:
            return program


def _drawn(generator: random.Random) -> Program | None:
    """A program; None where the operators that were drawn do not fit the array that they begin with."""
    program = Program((_input(generator, _first_type(generator)),), ())
    wanted = 1 if generator.random() < _SINGLE else generator.randint(2, _MOST_STEPS)
    for _ in range(_TRIALS):
        if len(program.steps) == wanted:
            return program
        program = _extended(generator, program) or program
    return program if program.steps else None


def _extended(generator: random.Random, program: Program) -> Program | None:
    """The program with one more operator, on its last value."""
    operator = generator.choices(list(OPERATORS.values()), [each.weight for each in OPERATORS.values()])[0]
    if operator.jumps and program.steps:
        return None
    types = types_of(program)
    call = operator.draw(generator, len(types) - 1, types[-1])
    if call is None:
        return None
    extended = _with_call(generator, program, operator, call)
    try:
        found = types_of(extended)
    except TilewrightError:
        return None  # the operator does not take such operands: another one is drawn
    fits = sum(type.nbytes for type in found) <= 4 * _MOST_BYTES and found[-1].size
    return extended if fits else None


def _with_call(generator: random.Random, program: Program, operator: Operator, call: Call) -> Program:
    """A program with the inputs that a call takes, and the call as its last step."""
    added = [operand for operand in call.operands if isinstance(operand, Type)]
    inputs, count = (*program.inputs, *(_input(generator, type) for type in added)), len(program.inputs)
    moved = {n: n if n < count else n + len(added) for n in range(count + len(program.steps))}
    numbers = iter(range(count, len(inputs)))
    operands = tuple(next(numbers) if isinstance(operand, Type) else moved[operand] for operand in call.operands)
    steps = (*(step.on(moved) for step in program.steps), Step(operator.name, operands, call.parameters))
    return Program(inputs, steps)


def _input(generator: random.Random, type: Type) -> Input:
    form = generator.choices(list(_FORMS), list(_FORMS.values()))[0] if len(type.shape) > 1 else CONTIGUOUS
    return Input(type.shape, type.dtype, form)


def _first_type(generator: random.Random) -> Type:
    dtype = generator.choices(list(_DTYPES), list(_DTYPES.values()))[0]
    tiny = generator.random() < _TINY
    least, most = (_TINY_BYTES, _LEAST_BYTES) if tiny else (_LEAST_BYTES, _MOST_BYTES)
    elements = int(least * (most / least) ** generator.random()) // by_name(dtype).itemsize
    return Type(_shape(generator, max(1, elements)), dtype)


def _shape(generator: random.Random, elements: int) -> tuple[int, ...]:
    """A shape of about so many elements: an image, or inner dims of common extents under a long one."""
    if generator.random() < _IMAGES:
        side = generator.choice(_IMAGE_SIDES)
        channels = generator.choice((3, 16, 32, 64, 128, 256, 512))
        return (max(1, min(64, elements // (side * side * channels))), channels, side, side)
    rank = generator.choices((1, 2, 3, 4), (10, 45, 30, 15))[0]
    shape: list[int] = []
    for _ in range(rank - 1):
        extent = generator.choice(_LONG if generator.random() < 0.25 else _EXTENTS)
        if extent <= elements:
            shape.append(extent)
            elements //= extent
    shape.insert(generator.choice((0, 0, 0, len(shape))), max(1, elements))
    return tuple(shape)
