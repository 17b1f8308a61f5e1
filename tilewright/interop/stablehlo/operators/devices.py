"""Exchanges among devices, numbers of devices, and where arrays are."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.api.array import Array
from tilewright.api.lifting import cast, constant, emit, full
from tilewright.collectives import MAX_DEVICES
from tilewright.interop.narrow import Coded
from tilewright.interop.stablehlo.ir import Dense, Sharding, Symbol
from tilewright.interop.stablehlo.placements import (
    annotated,
    by_axes,
    by_number,
    groups_by_axes,
    moved,
    placed,
    tiled,
)
from tilewright.interop.stablehlo.regions import combiner
from tilewright.interop.stablehlo.registry import Node, operation

Tensor = np.ndarray[Any, Any]


# ---- exchanges ------------------------------------------------------------------------------------------------------


@operation("stablehlo.all_reduce")
def all_reduce(node: Node, *operands: Array) -> tuple[Array, ...]:
    """The sum, product, extreme or logical combination of the arrays of a group of devices."""
    groups = _groups(node, _reducing_ids(node))
    return tuple(_exchange(node, x, "all_reduce", groups, fn=_function(node, x)) for x in operands)


@operation("stablehlo.reduce_scatter")
def reduce_scatter(node: Node, x: Array) -> Array:
    """One part, along an axis, of what `all_reduce` gives."""
    groups = _groups(node, _reducing_ids(node))
    axis = node.integer("scatter_dimension")
    return _exchange(node, x, "reduce_scatter", groups, fn=_function(node, x), axis=axis)


@operation("stablehlo.all_gather", moves=True)
def all_gather(node: Node, *operands: Array) -> tuple[Array, ...]:
    """The arrays of a group of devices, one after the other along an axis."""
    groups = _groups(node, _reducing_ids(node))
    axis = node.integer("all_gather_dim")
    return tuple(_exchange(node, x, "all_gather", groups, axis=axis) for x in operands)


@operation("stablehlo.all_to_all", moves=True)
def all_to_all(node: Node, *operands: Array) -> tuple[Array, ...]:
    """Parts along an axis, one from each device of a group, one after the other along another axis."""
    groups = _groups(node, _moving_ids(node))
    axes = {"split_axis": node.integer("split_dimension"), "concat_axis": node.integer("concat_dimension")}
    if groups.size and node.integer("split_count") != groups.shape[1]:
        raise node.malformed(f"{node.integer('split_count')} parts for groups of {groups.shape[1]} devices")
    return tuple(_exchange(node, x, "all_to_all", groups, **axes) for x in operands)


@operation("stablehlo.collective_broadcast", moves=True)
def collective_broadcast(node: Node, *operands: Array) -> tuple[Array, ...]:
    """The array of the first device of a group; zeros on devices of no group."""
    groups = _groups(node, _moving_ids(node))
    return tuple(_exchange(node, x, "broadcast", groups) for x in operands)


@operation("stablehlo.collective_permute", moves=True)
def collective_permute(node: Node, *operands: Array) -> tuple[Array, ...]:
    """The array of the device that is paired with this one as its source; zeros where there is none."""
    pairs = _table(node, "source_target_pairs")
    if pairs.size and pairs.shape[1] != 2:
        raise node.malformed("the sources and targets are no pairs")
    numbers = _numbered(node, pairs.reshape(-1, 2), _moving_ids(node))
    return tuple(_exchange(node, x, "permute", numbers) for x in operands)


def _exchange(node: Node, x: Array, kind: str, groups: Tensor, **attributes: object) -> Array:
    flat = tuple(groups.reshape(-1).tolist())
    size = groups.shape[1]
    return emit("collective", x, kind=kind, devices=node.module.devices, groups=flat, group_size=size, **attributes)


def _function(node: Node, x: Array) -> str:
    (region,) = node.regions
    fn = combiner(region, x.dtype)
    if fn is None:
        raise node.unsupported("a combination by a region that has no name", "use sums, products, extremes or bits")
    return fn


def _table(node: Node, name: str) -> Tensor:
    """A table of numbers of devices."""
    found = node.get(name)
    if not isinstance(found, Dense):
        raise node.unsupported(f"`{name}` in another form than a table of numbers", "print it with `dense<...>`")
    if len(found.type.shape) != 2 or found.elements.dtype.kind not in "iu":
        raise node.malformed(f"`{name}` is no table of numbers")
    if np.prod(found.type.shape, dtype=object) > MAX_DEVICES:
        raise node.malformed(f"`{name}` names more than {MAX_DEVICES} devices")
    return found.full().astype(np.int64)


def _groups(node: Node, ids: str) -> Tensor:
    """The numbers of the devices of each group, one group a row. Rows are filled up with -1."""
    found = node.get("replica_groups")
    if isinstance(found, dict):
        return _along_axes(node, {**found})
    table = _table(node, "replica_groups")
    lengths = set((table >= 0).sum(1).tolist())
    if len(lengths) > 1:
        raise node.unsupported(
            f"groups of {' and of '.join(map(str, sorted(lengths)))} devices", "use groups of one size"
        )
    used = table[:, : max(lengths, default=0)]
    if (used < 0).any() or (table[:, used.shape[1] :] != -1).any():
        raise node.malformed(f"the groups {table.tolist()}")
    if not used.size:
        replicas, partitions = node.module.replicas, node.module.partitions
        used = np.arange({"replicas": replicas, "partitions": partitions}.get(ids, replicas * partitions))[None]
        ids = "devices" if ids == "both" else ids
    return _numbered(node, used, ids)


def _along_axes(node: Node, axes: dict[str, Any]) -> Tensor:
    """Groups that are given by axes of a mesh."""
    mesh, named = axes.get("mesh"), axes.get("axes", ())
    names = [axis.get("name") for axis in named if set(axis) == {"name"}]
    if not isinstance(mesh, Symbol) or len(names) != len(named):
        raise node.unsupported(f"groups by {axes}", "name whole axes of a mesh of the module")
    return groups_by_axes(node.module, mesh.name, names)


def _has_channel(node: Node) -> bool:
    return node.get("channel_handle", {}).get("handle", 0) > 0


def _reducing_ids(node: Node) -> str:
    """The kind of id in the groups of reductions and gathers."""
    if node.get("use_global_device_ids", False):
        return "devices"
    return "both" if _has_channel(node) else "replicas"


def _moving_ids(node: Node) -> str:
    """The kind of id in the groups of other collectives."""
    return "partitions" if _has_channel(node) else "replicas"


def _numbered(node: Node, groups: Tensor, ids: str) -> Tensor:
    """Groups of numbers of devices, from groups of numbers of replicas, for each partition or (`both`) with all
    partitions, or of partitions, for each replica."""
    replicas, partitions = node.module.replicas, node.module.partitions
    if ids == "devices":
        return groups
    count = replicas if ids != "partitions" else partitions
    if (groups >= count).any():
        raise node.malformed(
            f"a group has the number {groups.max()}, but there are {count} {ids.replace('both', 'replicas')}"
        )
    if ids == "partitions":
        return np.concatenate([groups + replica * partitions for replica in range(replicas)])
    spread = groups[None] * partitions + np.arange(partitions)[:, None, None]
    if ids == "replicas":
        return spread.reshape(-1, groups.shape[1])
    return spread.transpose(1, 0, 2).reshape(len(groups), -1)


@operation("stablehlo.partition_id")
def partition_id(node: Node) -> Array:
    """The number of the partition that runs the program."""
    return _looked_up(node, np.arange(node.module.devices) % node.module.partitions)


@operation("stablehlo.replica_id")
def replica_id(node: Node) -> Array:
    """The number of the replica that runs the program."""
    return _looked_up(node, np.arange(node.module.devices) // node.module.partitions)


def _looked_up(node: Node, table: Tensor) -> Array:
    """The entry of a table for the device that runs the program."""
    if not table.any():
        return full(node.type.shape, 0, node.type.dtype)
    index = emit("device_index", devices=node.module.devices)
    return cast(emit("gather", constant(table.astype(np.int64)), index, axes=(0,)), node.type.dtype)


# ---- where arrays are -----------------------------------------------------------------------------------------------


@operation("sdy.manual_computation", narrow=True)
def manual_computation(node: Node, *operands: Array | Coded) -> tuple[Array | Coded, ...]:
    """A region that each device runs on its parts of arrays."""
    (region,) = node.regions
    manual: tuple[str, ...] = node.get("manual_axes")
    ins, outs = _shardings(node, "in_shardings", len(operands)), _shardings(node, "out_shardings", len(node.types))
    parts: list[Any] = []
    for x, sharding in zip(operands, ins, strict=True):
        parts.append(moved(x, by_axes(node.module, sharding, manual, x.ndim).part))
    results = node.run(region, *parts)
    return tuple(
        moved(x, by_axes(node.module, sharding, manual, x.ndim).whole)
        for x, sharding in zip(results, outs, strict=True)
    )


def _shardings(node: Node, name: str, count: int) -> list[Sharding]:
    found: list[Any] = [*node.get(name)]
    if len(found) != count or not all(isinstance(sharding, Sharding) for sharding in found):
        raise node.malformed(f"`{name}` is no sharding for each of {count} arrays")
    return found


@operation(
    "sdy.sharding_constraint",
    "sdy.reshard",
    "sdy.all_gather",
    "sdy.all_reduce",
    "sdy.all_slice",
    "sdy.all_to_all",
    "sdy.collective_permute",
    "sdy.reduce_scatter",
    "sdy.replicated_to_unreduced",
    "sdy.sharded_to_unreduced",
    narrow=True,
    elementwise=True,
)
def placed_elsewhere(node: Node, x: Array | Coded) -> Array | Coded:
    """The operand, of which the whole is meant, with a note of how devices are to hold it."""
    # In a region that is written for scalars the note is of those.
    if x.shape != node.type.shape:
        return x
    return annotated(node.module, x, node.get("sharding", None) or node.get("out_sharding", None))


@operation("sdy.propagation_barrier", narrow=True, elementwise=True)
def propagation_barrier(node: Node, x: Array | Coded) -> Array | Coded:
    """The operand."""
    return x


@operation("sdy.sharding_group", narrow=True)
def sharding_group(node: Node, x: object) -> tuple[()]:
    """No operation: declares that arrays have one sharding."""
    return ()


def placed_by_call(node: Node, target: str, x: Array | Coded) -> Array | Coded:
    """The result of a call of `Sharding`, `SPMDFullToShardShape` or `SPMDShardToFullShape`: the operand with a
    sharding, its part on a device, or the array that the parts form."""
    text = str(node.get("mhlo.sharding", ""))
    if target != "Sharding":
        return x if x.shape == node.type.shape else moved(x, lambda x: _crossed(node, target, x, text))
    # In a region that is written for scalars the note is of those.
    return annotated(node.module, x, text) if x.shape == node.type.shape else x


def _crossed(node: Node, target: str, x: Array, text: str) -> Array:
    """An array over the border of a region for each device."""
    is_entered, devices = target == "SPMDFullToShardShape", node.module.partitions
    if is_entered:
        placement = by_number(x, node.type.shape, devices)
    else:
        layout = tiled(text, node.type.shape)
        placement = None if layout is None else placed(layout, x.shape, devices)
    if placement is None or node.module.replicas != 1:
        raise node.unsupported(f"`{target}` of devices that are in no regular order", "lower it with Shardy")
    return placement.part(x) if is_entered else placement.whole(x)
