"""Which part of an array each device of a program holds: parts taken and put together, and layouts that state it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from tilewright.api.array import Array, located
from tilewright.api.lifting import constant, emit, full
from tilewright.collectives import MAX_DEVICES
from tilewright.dtypes import i64
from tilewright.errors import ModelFileError, UnsupportedOperatorError
from tilewright.interop.narrow import Coded
from tilewright.interop.stablehlo.ir import Mesh, Module, Sharding, Symbol
from tilewright.layout.catalogue.mesh import mesh_sharding
from tilewright.layout.construct import distributed
from tilewright.layout.iters import Iter, Replica
from tilewright.layout.layout import Layout
from tilewright.layout.text import format_layout, parse_layout

Tensor = np.ndarray[Any, Any]
# An array, or its bit patterns where no array has its type.
Value = Any

# The axis of layouts that number devices.
_NUMBER = "device.number"
_TILES = re.compile(
    r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))"
    r"(?: (last_tile_dim_replicate)| last_tile_dims=\{([a-z, ]+)\})?\s*(?:metadata=.*)?\}"
)


def moved(x: Value, function: Callable[[Array], Array]) -> Value:
    """Apply a function that only moves elements to an array, or to bit patterns."""
    return Coded(function(x.codes), x.storage) if isinstance(x, Coded) else function(x)


@dataclass(frozen=True)
class Placement:
    """`devices` has the id of each device of the program once: one dim for each dim of the array, of as many parts, and
    a last one for those that hold copies."""

    devices: Tensor

    def part(self, x: Array) -> Array:
        """The part of an array that the device which runs the program holds.

        Raises:
            ModelFileError: a dim has no equal parts.
        """
        divided = [axis for axis, count in enumerate(self.devices.shape[:-1]) if count > 1]
        if not divided:
            return x
        sizes = list(x.shape)
        starts = [full((), 0, i64)] * x.ndim
        index = emit("device_index", devices=self.devices.size)
        for axis in divided:
            count = self.devices.shape[axis]
            if sizes[axis] % count:
                message = f"{count} devices do not divide axis {axis} of {x.value.type}"
                raise located(ModelFileError(message, help="export the program again"))
            sizes[axis] //= count
            table = np.empty(self.devices.size, np.int64)
            table[self.devices] = np.indices(self.devices.shape)[axis] * sizes[axis]
            starts[axis] = emit("gather", constant(table), index, axes=(0,))
        return emit("dynamic_slice", x, *starts, sizes=tuple(sizes))

    def whole(self, x: Array) -> Array:
        """The array of which the device which runs the program, as each other one, has a part."""
        for axis, count in enumerate(self.devices.shape[:-1]):
            if count > 1:
                groups = np.moveaxis(self.devices, axis, -1).reshape(-1)
                x = emit(
                    "collective",
                    x,
                    kind="all_gather",
                    axis=axis,
                    devices=self.devices.size,
                    groups=tuple(groups.tolist()),
                    group_size=count,
                )
        return x


def one_for_each(devices: int, rank: int) -> Placement:
    """The first of `rank` dims is of devices."""
    return Placement(np.arange(devices).reshape(devices, *(1,) * rank))


def mesh_of(module: Module, sharding: Sharding) -> Mesh:
    """The mesh of a sharding.

    Raises:
        ModelFileError: there is none of that name, or it has no such axes.
    """
    mesh = sharding.mesh if isinstance(sharding.mesh, Mesh) else module.meshes.get(sharding.mesh.name)
    if mesh is None:
        name = sharding.mesh.name if isinstance(sharding.mesh, Symbol) else ""
        raise located(ModelFileError(f"there is no mesh `{name}`", help="export the program again"))
    named = [axis for axes in (*sharding.dims, sharding.unreduced) for axis in axes]
    if not set(named) <= set(mesh.names) or len(set(named)) != len(named):
        message = f"a sharding over {', '.join(named)} on a mesh of {', '.join(mesh.names) or 'one device'}"
        raise located(ModelFileError(message, help="export the program again"))
    return mesh


def by_axes(module: Module, sharding: Sharding, manual: Sequence[str], rank: int) -> Placement:
    """The placement over those axes of a sharding that are `manual`; others hold copies.

    Raises:
        ModelFileError: the sharding is of another array or mesh.
        UnsupportedOperatorError: it has parts of axes, or terms of sums.
    """
    mesh = mesh_of(module, sharding)
    if len(sharding.dims) != rank:
        message = f"a sharding of {len(sharding.dims)} dims for {rank}"
        raise located(ModelFileError(message, help="export the program again"))
    if not sharding.is_exact or set(sharding.unreduced) & set(manual):
        what = "parts of axes" if not sharding.is_exact else "sums that are not complete"
        message = f"{what} at the border of a region for each device"
        raise located(UnsupportedOperatorError(message, help="divide by whole axes, and add up inside"))
    if module.replicas != 1 or mesh.size != module.partitions:
        message = f"a mesh of {mesh.size} devices in a program for {module.replicas} x {module.partitions}"
        raise located(UnsupportedOperatorError(message, help="lower it for one replica of all devices of the mesh"))
    sizes = dict(mesh.axes)
    dims = [[name for name in axes if name in manual] for axes in sharding.dims]
    used = [mesh.names.index(name) for axes in dims for name in axes]
    rest = [n for n in range(len(mesh.axes)) if n not in used]
    parts = [int(np.prod([sizes[name] for name in axes], dtype=np.int64)) for axes in dims]
    return Placement(grid_of(mesh).transpose([*used, *rest]).reshape(*parts, -1))


def grid_of(mesh: Mesh) -> Tensor:
    """The numbers of the devices of a mesh, with its axes."""
    numbers = np.arange(mesh.size) if mesh.order is None or not mesh.axes else np.asarray(mesh.order)
    return numbers.reshape([size for _, size in mesh.axes])


def groups_by_axes(module: Module, mesh: str, axes: Sequence[str]) -> Tensor:
    """The devices that differ on axes of a mesh alone, one group a row, the first of the axes outermost.

    Raises:
        ModelFileError: there is no such mesh, or it has no such axes.
    """
    found = mesh_of(module, Sharding(Symbol(mesh), (tuple(axes),)))
    own = [found.names.index(name) for name in axes]
    rest = [n for n in range(len(found.axes)) if n not in own]
    size = int(np.prod([found.axes[n][1] for n in own], dtype=np.int64))
    return grid_of(found).transpose([*rest, *own]).reshape(-1, size)


# ---- annotations ----------------------------------------------------------------------------------------------------


def annotated(module: Module, x: Value, sharding: object) -> Value:
    """An array with a note of where a sharding, of Shardy or as XLA writes it, states that it is; without one where
    that is nothing, or has no layout here.

    Raises:
        ModelFileError: the sharding is of another array or mesh.
    """
    if isinstance(sharding, str):
        layout = tiled(sharding, x.shape)
        return x if layout is None else moved(x, lambda x: emit("shard", x, layout=format_layout(layout), open=()))
    if not isinstance(sharding, Sharding):
        return x
    mesh = mesh_of(module, sharding)
    if len(sharding.dims) != x.ndim:
        message = f"a sharding of {len(sharding.dims)} dims for an array of {x.ndim}"
        raise located(ModelFileError(message, help="export the program again"))
    says_nothing = len(sharding.open) == x.ndim and not any(sharding.dims) and not sharding.unreduced and x.ndim
    if mesh.size == 1 or not sharding.is_exact or says_nothing:
        return x
    text = format_layout(_layout(mesh, sharding, x.shape))
    return moved(x, lambda x: emit("shard", x, layout=text, open=sharding.open))


def _layout(mesh: Mesh, sharding: Sharding, shape: tuple[int, ...]) -> Layout:
    names = {name: name if name.isidentifier() else f"axis{n}" for n, name in enumerate(mesh.names)}
    sizes = {names[name]: size for name, size in mesh.axes if size > 1}
    dims = [tuple(names[name] for name in axes if names[name] in sizes) for axes in sharding.dims]
    partial = {names[name]: "add" for name in sharding.unreduced if names[name] in sizes}
    return mesh_sharding(shape, sizes, dims, partial)


def tiled(text: str, shape: tuple[int, ...]) -> Layout | None:
    """The layout of a sharding such as `{devices=[4,1,2]<=[8] last_tile_dim_replicate}` on one axis of devices by their
    numbers; None where there is none: all devices hold copies, or are in no regular order."""
    found = _TILES.fullmatch(text.strip())
    if found is None:
        return None
    tiles, grid, permutation = (_numbers(found.group(n)) for n in (1, 2, 3))
    listed = _numbers(found.group(4))
    if listed == list(range(len(listed))):
        grid = grid or [len(listed)]
    copies = 1 if found.group(5) else len((found.group(6) or "").split(",")) if found.group(6) else 0
    count = int(np.prod(tiles, dtype=object))
    if len(tiles) != len(shape) + copies or not 1 <= count <= MAX_DEVICES or count != int(np.prod(grid, dtype=object)):
        return None
    if permutation and sorted(permutation) != list(range(len(grid))):
        return None
    return _strided(shape, tiles, grid, permutation or list(range(len(grid))))


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in (text or "").split(",") if number]


def _strided(shape: tuple[int, ...], tiles: list[int], grid: list[int], permutation: list[int]) -> Layout | None:
    strides = [int(np.prod(grid[n + 1 :], dtype=np.int64)) for n in range(len(grid))]
    pending = [(grid[n], strides[n]) for n in permutation if grid[n] > 1]
    digits: list[list[tuple[int, int]]] = []
    for count in tiles:
        digits.append([])
        while count > 1:
            size, stride = pending.pop(0)
            taken = min(size, count)
            if size % taken or count % taken:
                return None
            digits[-1].append((taken, stride * (size // taken)))
            count //= taken
            if size > taken:
                pending.insert(0, (size // taken, stride))
    splits = [
        (dim, f"device.d{dim}_{n}", own[n][0]) for dim, own in enumerate(digits[: len(shape)]) for n in range(len(own))
    ]
    spread = distributed(shape, splits)
    kept = [[one for one in own if one.axis == "mem"] for own in spread.shard]
    many = [[Iter(size, stride, _NUMBER) for size, stride in own] for own in digits]
    shard = tuple((*devices, *memory) for devices, memory in zip(many, kept, strict=False))
    copies = tuple(Replica(size, stride, _NUMBER) for own in digits[len(shape) :] for size, stride in own)
    return replace(spread, shard=shard, replica=copies)


def by_number(x: Array, local: tuple[int, ...], devices: int) -> Placement | None:
    """The placement of an array that was annotated by numbers of devices, which gives parts of a shape; None where that
    is not so."""
    producer = x.value.producer
    if producer is None or producer.op != "shard":
        return None
    return placed(parse_layout(producer.attributes["layout"]), local, devices)


def placed(layout: Layout, local: tuple[int, ...], devices: int) -> Placement | None:
    """The placement of a layout by numbers of devices, which gives parts of a shape; None where it is another one."""
    numbers = np.zeros((), np.int64)
    parts: list[int] = []
    for digits in (*layout.shard, layout.replica):
        own = [(one.extent, one.stride) for one in digits if one.axis == _NUMBER and isinstance(one.extent, int)]
        for size, stride in own:
            numbers = np.add.outer(numbers, np.arange(size) * stride)
        parts.append(int(np.prod([size for size, _ in own], dtype=np.int64)))
    sizes = tuple(size * count for size, count in zip(local, parts, strict=False))
    if sizes != layout.shape or sorted(numbers.reshape(-1).tolist()) != list(range(devices)):
        return None
    return Placement(numbers.reshape(parts))
