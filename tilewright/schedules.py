"""Schedules of kernels as values: what a planner decides for each kind of kernel.

A schedule changes the speed of a kernel and not its meaning. The cost model chooses one for each kernel; `explain`
prints them as code, and `tw.jit(f, schedule=...)` or `lowered.compile(schedule=...)` takes others instead. Tiles have
one extent, in elements, for each dimension that they divide.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Literal, TypeAlias

import msgspec

from tilewright.errors import ScheduleError

__all__ = [
    "Attention",
    "Convolution",
    "CoreMatmul",
    "Loop",
    "Ordered",
    "Reshape",
    "Schedule",
    "SplitMatmul",
    "TileKernel",
    "VectorMatmul",
    "WarpMatmul",
    "from_json",
    "to_json",
]


class Schedule(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=True, forbid_unknown_fields=True):
    """Base class of the schedules of kernels: a frozen value, whose `repr` is code that makes it."""

    def __repr__(self) -> str:
        fields = msgspec.structs.fields(self)
        values = ((field.name, getattr(self, field.name), field.default) for field in fields)
        stated = ", ".join(f"{name}={value!r}" for name, value, default in values if value != default)
        return f"tw.schedules.{type(self).__name__}({stated})"


class Loop(Schedule, frozen=True, kw_only=True):
    """Schedule of a loop kernel: a fused elementwise group, or reductions and what follows them.

    Attributes:
        tile: extents along all dimensions of the loop, kept and reduced. Reductions in parts have the number of the
            part as an additional first dimension.
        fallback: the level of the kernel's fallback: from 1 on, copies ahead take two stages, from 2 on there are none.
    """

    tile: tuple[int, ...]
    fallback: int = 0


class VectorMatmul(Schedule, frozen=True, kw_only=True):
    """Schedule of a matmul on a machine with vectors.

    Attributes:
        tile: rows, columns and depth; extents beyond those of the matmul are cut.
        block: rows and columns of the register block (BLIS: MR x NR); None: layout inference chooses it, and matrix
            instructions have none.
        right: how the right operand is read: in place, packed in panels that the first rows of each tile keep, or
            packed by all threads together; None: the cost model chooses.
    """

    tile: tuple[int, int, int]
    block: tuple[int, int] | None = None
    right: Literal["in_place", "kept", "together"] | None = None


class SplitMatmul(Schedule, frozen=True, kw_only=True):
    """Schedule of a matmul of f32 on a machine with vectors whose operands are split into parts of bf16, which matrix
    instructions multiply.

    Attributes:
        tile: rows, columns and depth.
    """

    tile: tuple[int, int, int]


class WarpMatmul(Schedule, frozen=True, kw_only=True):
    """Schedule of a matmul on a machine with warps.

    Attributes:
        tile: rows, columns and depth (Triton: BLOCK_M, BLOCK_N, BLOCK_K).
        warps: how many warps compute the tile (Triton: num_warps), without the producer warp.
        across: how many warps divide its rows and columns; None: layout inference decides.
        stages: how many steps of the depth are copied ahead (Triton: num_stages); 1: operands pass through registers.
        family: the name of the MMA instructions in the machine's file; None where there are none.
        fallback: the level of the kernel's fallback: from 1 on, copies ahead take two stages, from 2 on there are none.
    """

    tile: tuple[int, int, int]
    warps: int = 4
    across: tuple[int, int] | None = None
    stages: int = 1
    family: str | None = None
    fallback: int = 0


class CoreMatmul(Schedule, frozen=True, kw_only=True):
    """Schedule of a matmul on a grid of cores.

    Attributes:
        tile: rows, columns and depth of a step, in elements: whole pages, or the whole dimension.
    """

    tile: tuple[int, int, int]


class Convolution(Schedule, frozen=True, kw_only=True):
    """Schedule of a convolution that is computed row by row of its result.

    Attributes:
        tile: output channels, positions along the last dimension, and input channels of a step.
        warps, across, family, fallback: as those of a `WarpMatmul`, on machines with warps.
    """

    tile: tuple[int, int, int]
    warps: int = 4
    across: tuple[int, int] | None = None
    family: str | None = None
    fallback: int = 0


class Attention(Schedule, frozen=True, kw_only=True):
    """Schedule of fused attention.

    Attributes:
        rows: queries of a tile.
        keys: keys of a step.
        warpgroups: how many warpgroups issue asynchronous MMAs; 0: matmuls are those of single warps, vectors or cores.
        fallback: the level of the kernel's fallback: from 1 on, copies ahead take two stages, from 2 on there are none.
    """

    rows: int
    keys: int
    warpgroups: int = 0
    fallback: int = 0


class Ordered(Schedule, frozen=True, kw_only=True):
    """Schedule of a scan, sort, argument reduction or top-k.

    Attributes:
        tile: extents along all dimensions; along the axis of the operation the whole length, or that of a part.
        fallback: the level of the kernel's fallback: from 1 on, copies ahead take two stages, from 2 on there are none.
    """

    tile: tuple[int, ...]
    fallback: int = 0


class Reshape(Schedule, frozen=True, kw_only=True):
    """Schedule of a kernel that copies an array to other pages, on a grid of cores.

    Attributes:
        tile: extents along all dimensions of the result.
    """

    tile: tuple[int, ...]


class TileKernel(Schedule, frozen=True, kw_only=True):
    """Schedule of a `tw.kernel` on a machine with warps; its tiles are parameters of the kernel.

    Attributes:
        warps: how many warps compute a tile (Triton: num_warps); None: by the size of the tiles.
        stages: how many trips of a loop with matmuls are copied ahead (Triton: num_stages); None: the passes choose.
        fallback: the level of the kernel's fallback: from 1 on, copies ahead take two stages, from 2 on there are none.
    """

    warps: int | None = None
    stages: int | None = None
    fallback: int = 0


_Union: TypeAlias = (
    Loop
    | VectorMatmul
    | SplitMatmul
    | WarpMatmul
    | CoreMatmul
    | Convolution
    | Attention
    | Ordered
    | Reshape
    | TileKernel
)

Matmul: TypeAlias = VectorMatmul | SplitMatmul | WarpMatmul | CoreMatmul

Request: TypeAlias = Schedule | Mapping[str, Schedule]
"""Schedules that a caller asks for: of kernels by name, or one for every kernel of its kind."""


def to_json(schedules: Request) -> str:
    """The JSON text of a schedule, or of schedules by the name of their kernel.

    Raises:
        ScheduleError: a value is no schedule, a field of one has another type, or a name is no Unicode text.
    """
    try:
        return msgspec.json.encode(checked_request(schedules)).decode()
    except UnicodeEncodeError as error:
        raise ScheduleError(f"{error.object!r} is no Unicode text", help="use names that `explain` prints") from None


def from_json(text: str | bytes) -> Request:
    """The schedule, or the schedules by the name of their kernel, of a JSON text.

    Raises:
        ScheduleError: the text is no JSON of schedules.
    """
    try:
        decoded = msgspec.json.decode(text)
        if isinstance(decoded, dict) and "kind" not in decoded:
            return msgspec.convert(decoded, dict[str, _Union])
        return msgspec.convert(decoded, _Union)
    except (msgspec.MsgspecError, TypeError, UnicodeError, RecursionError) as error:
        raise ScheduleError(f"the text is no JSON of schedules: {error}", help="write it with `to_json`") from None


def checked_request(request: object) -> Request:
    """A request whose schedules have fields of the types that they declare; lists become tuples, and NumPy's integers
    Python's.

    Raises:
        ScheduleError: a value is no schedule, or a field of one has another type.
    """
    if not isinstance(request, Mapping):
        return _checked("", request)
    found: dict[str, Schedule] = {}
    for name, schedule in request.items():  # pyright: ignore[reportUnknownVariableType]  checked here
        if not isinstance(name, str):
            raise ScheduleError(f"{name!r} is no name of a kernel", help="use names that `explain` prints")
        found[name] = _checked(f" of `{name}`", schedule)
    return found


def _checked(whose: str, schedule: object) -> Schedule:
    if not isinstance(schedule, _Union):
        message = f"the schedule{whose} is {schedule!r}, which is no schedule"
        raise ScheduleError(message, help="use a value of `tw.schedules`, such as `tw.schedules.Loop(tile=(1, 4096))`")
    try:
        return msgspec.convert(msgspec.to_builtins(schedule, enc_hook=index), _Union)
    except (msgspec.ValidationError, TypeError, RecursionError) as error:
        help = "give each field the type that its class in `tw.schedules` declares; extents are whole numbers"
        raise ScheduleError(f"the schedule{whose} is not well formed: {error}", help=help) from None


def code_of(schedules: Mapping[str, Schedule]) -> str:
    """Python code of schedules by the name of their kernel, a line for each."""
    lines = (f"    {name!r}: {schedule!r},".replace("'", '"') for name, schedule in schedules.items())
    return "\n".join(["{", *lines, "}"])
