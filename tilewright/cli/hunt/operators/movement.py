"""Data movement: transposes, joins, slices, padding and repetition."""

# Arrays of several libraries, which have no common type, and functions of libraries without types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import random

from tilewright.cli.hunt.operators.base import Call, Operator, axis_of, pairs, with_extent
from tilewright.cli.hunt.program import Type

_MOST_PARTS = 32


def _permuted(generator: random.Random, value: int, type: Type) -> Call | None:
    if len(type.shape) < 2:
        return None
    axes = list(range(len(type.shape)))
    if generator.random() < 0.5:
        axes[-2:] = axes[:-3:-1]
    else:
        generator.shuffle(axes)
    return Call((value,), {"axes": axes})


def _reshaped(generator: random.Random, value: int, type: Type) -> Call | None:
    """Two neighbouring dims become one, or one is cut in two."""
    shape = list(type.shape)
    splits = [(d, f) for d, n in enumerate(shape) for f in (2, 3, 4, 8, 16, 64) if n % f == 0 and n > f]
    if len(shape) > 1 and (not splits or generator.random() < 0.5):
        first = generator.randrange(len(shape) - 1)
        shape[first : first + 2] = [shape[first] * shape[first + 1]]
    elif splits:
        dim, factor = generator.choice(splits)
        shape[dim : dim + 1] = [factor, shape[dim] // factor]
    else:
        return None
    return Call((value,), {"shape": shape})


def _joined(generator: random.Random, value: int, type: Type) -> Call | None:
    if not type.shape:
        return None
    axis = axis_of(generator, type)
    count = generator.choice((2, 2, 2, 3, 4, 8, 16, _MOST_PARTS))
    if type.nbytes * count > 1 << 26:
        count = 2
    others = [
        with_extent(type, axis, generator.randint(1, 2 * type.shape[axis])) if generator.random() < 0.3 else type
        for _ in range(count - 1)
    ]
    return Call((value, *others), {"axis": axis})


def _stacked(generator: random.Random, value: int, type: Type) -> Call | None:
    count = generator.choice((2, 3, 4, 8))
    if type.nbytes * count > 1 << 26:
        count = 2
    return Call((value, *[type] * (count - 1)), {"axis": generator.randrange(len(type.shape) + 1)})


def _sliced(generator: random.Random, value: int, type: Type) -> Call | None:
    """A start, an end and a step of each dim."""
    if not type.shape or min(type.shape) < 2:
        return None
    bounds: list[int] = []
    for extent in type.shape:
        start = generator.choice((0, 0, 1, extent // 4))
        step = generator.choice((1, 1, 1, 2, 3))
        bounds += [start, generator.randint(start + 1, extent), step]
    return Call((value,), {"bounds": bounds})


def _slices(bounds: list[int]) -> tuple[slice, ...]:
    return tuple(slice(*bounds[n : n + 3]) for n in range(0, len(bounds), 3))


def _part(generator: random.Random, value: int, type: Type) -> Call | None:
    """One of equal parts along an axis."""
    if not type.shape:
        return None
    axis = axis_of(generator, type)
    counts = [n for n in (2, 3, 4, 8) if type.shape[axis] % n == 0]
    if not counts:
        return None
    count = generator.choice(counts)
    return Call((value,), {"axis": axis, "parts": count, "part": generator.randrange(count)})


def _cut(xp, x, axis, parts, part):
    size = x.shape[axis] // parts
    return x[(slice(None),) * axis + (slice(part * size, (part + 1) * size),)]


def _padded(generator: random.Random, value: int, type: Type) -> Call | None:
    if not type.shape:
        return None
    widths = [generator.choice((0, 0, 1, 1, 2, 3)) for _ in range(2 * len(type.shape))]
    return Call((value,), {"widths": widths})


def _torch_pad(torch, x, widths):
    return torch.nn.functional.pad(x, [n for pair in reversed(pairs(widths)) for n in pair])


def _rolled(generator: random.Random, value: int, type: Type) -> Call | None:
    if not type.shape:
        return None
    axis = axis_of(generator, type)
    return Call((value,), {"shift": generator.randint(1, max(1, type.shape[axis] - 1)), "axis": axis})


def _flipped(generator: random.Random, value: int, type: Type) -> Call | None:
    return Call((value,), {"axis": axis_of(generator, type)}) if type.shape else None


def _repeated(generator: random.Random, value: int, type: Type) -> Call | None:
    if not type.shape:
        return None
    count = generator.choice((2, 2, 3, 4))
    return Call((value,), {"count": count if type.nbytes * count <= 1 << 26 else 1, "axis": axis_of(generator, type)})


def _tiled(generator: random.Random, value: int, type: Type) -> Call | None:
    if not type.shape:
        return None
    counts = [generator.choice((1, 1, 2, 3)) for _ in type.shape]
    if type.nbytes * max(counts) ** len(counts) > 1 << 26:
        counts = [1] * (len(counts) - 1) + [2]
    return Call((value,), {"counts": counts})


def _broadcast(generator: random.Random, value: int, type: Type) -> Call | None:
    count = generator.choice((2, 3, 8))
    if type.nbytes * count > 1 << 26:
        return None
    return Call((value,), {"shape": [count, *type.shape]})


def _triangle(generator: random.Random, value: int, type: Type) -> Call | None:
    return Call((value,), {"diagonal": generator.choice((0, 0, 1, -1))}) if len(type.shape) > 1 else None


def _our_tril(tw, x, diagonal):
    return tw.tril(x, k=diagonal)


OPERATORS = (
    Operator(
        "transpose",
        10,
        _permuted,
        {"array": lambda xp, x, axes: xp.transpose(x, axes), "torch": lambda t, x, axes: t.permute(x, axes)},
    ),
    Operator("reshape", 8, _reshaped, {"array": lambda xp, x, shape: xp.reshape(x, tuple(shape))}),
    Operator(
        "concat",
        8,
        _joined,
        {
            "array": lambda xp, *xs, axis: xp.concat(xs, axis=axis),
            "torch": lambda t, *xs, axis: t.cat(xs, dim=axis),
        },
    ),
    Operator(
        "stack",
        3,
        _stacked,
        {
            "array": lambda xp, *xs, axis: xp.stack(xs, axis=axis),
            "torch": lambda t, *xs, axis: t.stack(xs, dim=axis),
        },
    ),
    Operator("slice", 8, _sliced, {"array": lambda xp, x, bounds: x[_slices(bounds)]}),
    Operator("split", 4, _part, {"array": _cut}),
    Operator("pad", 3, _padded, {"array": lambda xp, x, widths: xp.pad(x, pairs(widths)), "torch": _torch_pad}),
    Operator(
        "roll",
        1,
        _rolled,
        {
            "array": lambda xp, x, shift, axis: xp.roll(x, shift, axis=axis),
            "torch": lambda t, x, shift, axis: t.roll(x, shift, axis),
        },
    ),
    Operator(
        "flip",
        1,
        _flipped,
        {"array": lambda xp, x, axis: xp.flip(x, axis=axis), "torch": lambda t, x, axis: t.flip(x, (axis,))},
    ),
    Operator(
        "repeat",
        2,
        _repeated,
        {
            "array": lambda xp, x, count, axis: xp.repeat(x, count, axis=axis),
            "torch": lambda t, x, count, axis: t.repeat_interleave(x, count, dim=axis),
        },
    ),
    Operator("tile", 1, _tiled, {"array": lambda xp, x, counts: xp.tile(x, tuple(counts))}),
    Operator(
        "broadcast",
        2,
        _broadcast,
        {
            "array": lambda xp, x, shape: xp.broadcast_to(x, tuple(shape)) + 0,
            "torch": lambda t, x, shape: t.broadcast_to(x, shape) + 0,
        },
    ),
    Operator("tril", 0.5, _triangle, {"array": lambda xp, x, diagonal: xp.tril(x, diagonal), "tilewright": _our_tril}),
)
