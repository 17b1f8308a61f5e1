"""The arrays of a call, checked against what a program's manifest states of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from tilewright.dtypes import by_name
from tilewright.errors import ArgumentError, DTypeError, OverlapError, ShapeError
from tilewright.runtime.manifest import ArraySpec, Manifest

T = TypeVar("T")
# The name of a memory, and the addresses in it of an array's first byte and after its last one.
Bounds: TypeAlias = tuple[str, int, int]
_MOST_ELEMENTS_LOOKED_AT = 1 << 20


class Called(Protocol):
    """A program with the arrays that a call of it takes: a manifest, or a program that has none yet."""

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> tuple[ArraySpec, ...]: ...


def check_count(program: Called, arrays: Sequence[object]) -> None:
    """Refuse another number of inputs than the program has.

    Raises:
        ArgumentError: it is another.
    """
    if len(arrays) == len(program.inputs):
        return
    names = ", ".join(spec.name for spec in program.inputs)
    raise ArgumentError(
        f"`{program.name}` takes {len(program.inputs)} arrays ({names}), got {len(arrays)}",
        help=f"call it as {program.name}({names})",
    )


def check_array(program: Called, spec: ArraySpec, array: Any) -> None:
    """Refuse an array, on the host or a device, that is not what the program takes.

    Raises:
        DTypeError, ShapeError: it is not.
    """
    expected = by_name(spec.dtype).numpy
    if array.dtype != expected:
        raise DTypeError(
            f"`{spec.name}` of `{program.name}` must be {spec}, got dtype {array.dtype}",
            help=f"convert it with {spec.name}.astype({expected.name!r})",
        )
    if array.shape != spec.shape:
        raise ShapeError(
            f"`{spec.name}` of `{program.name}` must be {spec}, got shape {array.shape}",
            help=f"pass an array of shape {spec.shape}, or compile the function for this shape",
        )


def listed_outputs(manifest: Manifest, out: object) -> list[Any]:
    """The arrays of `out`, one for each output.

    Raises:
        ArgumentError: it holds another number.
    """
    given: list[Any] = [*out] if isinstance(out, tuple | list) else [out]
    if len(given) != len(manifest.outputs):
        raise ArgumentError(
            f"`{manifest.name}` has {len(manifest.outputs)} outputs, but `out` holds {len(given)} arrays",
            help="give `out` one array per output, or leave it out",
        )
    return given


def check_host_output(manifest: Manifest, spec: ArraySpec, array: object) -> None:
    """Refuse what cannot be written as an output.

    Raises:
        ArgumentError, DTypeError, ShapeError: it is no such array.
    """
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        raise ArgumentError(
            f"`out` for `{spec.name}` of `{manifest.name}` is not a writeable NumPy array",
            help=f"make it with np.empty({spec.shape}, {by_name(spec.dtype).numpy.name!r})",
        )
    check_array(manifest, spec, array)
    if overlaps_itself(array):
        raise OverlapError(
            f"elements of `out` for `{spec.name}` of `{manifest.name}` share memory: its strides are {array.strides}",
            help="give an array of its own memory, such as np.empty",
        )


def overlaps_itself(array: np.ndarray) -> bool:
    """Whether two elements of an array share memory, as in a broadcast view. A view whose axes interleave counts as one
    that does, unless it is small enough to look at each element."""
    axes = sorted((abs(stride), size) for stride, size in zip(array.strides, array.shape, strict=True) if size > 1)
    reach, is_nested = array.itemsize, True
    for stride, size in axes:
        is_nested = is_nested and stride >= reach
        reach += stride * (size - 1)
    if is_nested or array.size == 0:
        return False
    if array.size > _MOST_ELEMENTS_LOOKED_AT:
        return True
    starts = np.zeros(1, np.int64)
    for stride, size in axes:
        starts = (starts[:, None] + stride * np.arange(size, dtype=np.int64)).reshape(-1)
    return bool((np.diff(np.sort(starts)) < array.itemsize).any())


def host_bounds(array: np.ndarray) -> Bounds:
    """The memory from an array's first byte to its last one."""
    return ("", *np.lib.array_utils.byte_bounds(array))


def check_overlap(
    manifest: Manifest,
    inputs: Sequence[T],
    outputs: Sequence[T],
    bounds: Callable[[T], Bounds],
    *,
    in_place: bool,
) -> None:
    """Refuse an array that is written and overlaps another one, but for donated inputs. `bounds` states the memory of
    an array. `in_place`: outputs are in the memory of donated inputs; otherwise the caller passed them.

    Raises:
        OverlapError: there is one.
    """
    arrays = [*inputs, *outputs]
    donated = {len(inputs) + alias.output: alias.input for alias in manifest.aliases}
    if not _may_overlap([bounds(array) for array in arrays], len(inputs), donated):
        return
    for later in range(len(inputs), len(arrays)):
        for earlier in range(later):
            if donated.get(later) != earlier and _meet(bounds(arrays[later]), bounds(arrays[earlier])):
                raise _overlap(manifest, later, earlier, donated.get(later) if in_place else None)


def _meet(a: Bounds, b: Bounds) -> bool:
    (memory, start, end), (other, first, last) = a, b
    return memory == other and start < last and first < end and start < end and first < last


def _may_overlap(bounds: Sequence[Bounds], n_inputs: int, donated: Mapping[int, int]) -> bool:
    """Whether an output, counted after the inputs, meets another array: one look at each, by its address. A donated
    input is left out where its output is the same memory."""
    same = {source for output, source in donated.items() if bounds[output] == bounds[source]}
    order = sorted((each, number) for number, each in enumerate(bounds) if number not in same and each[1] < each[2])
    # The memory that the arrays, and that the outputs among them, have reached so far.
    reached: Bounds = ("", 0, 0)
    written: Bounds = ("", 0, 0)
    for each, number in order:
        is_output = number >= n_inputs
        if _meet(each, reached if is_output else written):
            return True
        reached = max(reached, each, key=_end)
        if is_output:
            written = each
    return False


def _end(bounds: Bounds) -> tuple[str, int]:
    return bounds[0], bounds[2]


def _overlap(manifest: Manifest, later: int, earlier: int, donated: int | None) -> OverlapError:
    """The error of an output, counted after all inputs, that overlaps an earlier array; `donated` is the input whose
    memory the output takes."""
    specs = [*manifest.inputs, *manifest.outputs]
    other = specs[earlier].name
    if donated is not None:
        message = f"`{specs[donated].name}`, which is donated to `{manifest.name}`, overlaps `{other}` in memory"
        return OverlapError(message, help="pass a copy of one of them, or do not donate it")
    message = f"`{specs[later].name}`, which `{manifest.name}` writes, overlaps `{other}` in memory"
    help = "pass a copy of one of them, or compile the function with that input donated"
    return OverlapError(message, help=help)
