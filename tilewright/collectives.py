"""Exchanges among the devices of a mesh, by their attributes.

A program for several devices is run by each of them, on values of its own; `devices` is their count; ids start at 0. At
a `collective` the devices of a group exchange arrays, and each receives a result:

    all_reduce       `fn` of the arrays of all
    all_gather       the arrays of all, one after the other along `axis`
    reduce_scatter   `fn` of the arrays of all, of which each has one part along `axis`
    all_to_all       parts along `split_axis`, one from each, one after the other along `concat_axis`
    broadcast        the array of the first; devices in no group have zeros
    permute          the array of the source where a device is a target, else zeros

`groups` holds the numbers of all groups, `group_size` numbers each. A group of `permute` is a source and a target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import ArgumentError

Attributes = Mapping[str, Any]
Group = tuple[int, ...]

# What each kind has besides `devices`, `groups` and `group_size`.
KINDS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("fn",),
    "all_gather": ("axis",),
    "reduce_scatter": ("fn", "axis"),
    "all_to_all": ("split_axis", "concat_axis"),
    "broadcast": (),
    "permute": (),
}
MAX_DEVICES = 1 << 16
_SHOWN = 8
_COMMON = ("kind", "devices", "groups", "group_size")


def check_devices(devices: int) -> None:
    """Refuse a number of devices that no program is for.

    Raises:
        ArgumentError: it is.
    """
    if not 1 <= devices <= MAX_DEVICES:
        raise ArgumentError(f"a program for {devices} devices", help=f"give a number from 1 to {MAX_DEVICES}")


def check(attributes: Attributes) -> None:
    """Refuse attributes that are no collective.

    Raises:
        ArgumentError: the kind is unknown or has other attributes, or the groups are not disjoint groups of one size
            of the devices that there are.
    """
    kind, devices, size = attributes["kind"], attributes["devices"], attributes["group_size"]
    if kind not in KINDS:
        raise ArgumentError(f"there is no collective `{kind}`", help=f"use one of {', '.join(KINDS)}")
    given = {key for key, value in attributes.items() if value is not None and key not in _COMMON}
    if given != set(KINDS[kind]):
        message = f"`{kind}` has {', '.join(sorted(given)) or 'nothing'}"
        raise ArgumentError(message, help=f"pass {', '.join(KINDS[kind]) or 'nothing'} besides the groups")
    check_devices(devices)
    if size < 1 or len(attributes["groups"]) % size or (kind == "permute" and size != 2):
        message = f"{len(attributes['groups'])} devices in groups of {size}"
        raise ArgumentError(message, help="groups have one size, which is 2 for the pairs of `permute`")
    _check_groups(kind, devices, groups_of(attributes))


def _check_groups(kind: str, devices: int, groups: Sequence[Group]) -> None:
    named = [device for group in groups for device in group]
    outside = [device for device in named if not 0 <= device < devices]
    if outside:
        message = f"`{kind}` names the device {outside[0]} of a program for {devices}"
        raise ArgumentError(message, help=f"devices are numbered 0 to {devices - 1}")
    columns = list(zip(*groups, strict=True)) if kind == "permute" else [named]
    if any(len(set(column)) != len(column) for column in columns):
        what = "names a source or a target twice" if kind == "permute" else "has a device in two places"
        raise ArgumentError(f"`{kind}` {what}: {groups}", help="groups are disjoint")
    if kind not in ("broadcast", "permute") and len(named) != devices:
        message = f"`{kind}` is among {len(named)} of {devices} devices"
        raise ArgumentError(message, help="name each device in one group")


def groups_of(attributes: Attributes) -> list[Group]:
    """The groups, or the pairs of `permute`."""
    flat, size = tuple(attributes["groups"]), attributes["group_size"]
    return [flat[n : n + size] for n in range(0, len(flat), size)]


def meeting(attributes: Attributes, device: int) -> Group:
    """The devices, in the order of their group, that a device meets; none where it has no part in the exchange."""
    groups = groups_of(attributes)
    if attributes["kind"] == "permute":
        return _linked(groups, device)
    return next((group for group in groups if device in group), ())


def _linked(pairs: Sequence[Group], device: int) -> Group:
    """All devices that are linked to one by pairs, in order."""
    reached: set[int] = set()
    pending = [device]
    while pending:
        current = pending.pop()
        new = {one for pair in pairs if current in pair for one in pair} - reached
        reached |= new
        pending += new
    return tuple(sorted(reached))


def is_identity(attributes: Attributes) -> bool:
    """Whether each device keeps its own array."""
    groups = groups_of(attributes)
    is_everywhere = len({device for group in groups for device in group}) == attributes["devices"]
    return is_everywhere and all(len(set(group)) == 1 for group in groups)


def described(attributes: Attributes) -> str:
    """The collective in words: `all_gather` along axis 1 among the devices 0, 1."""
    kind = attributes["kind"]
    words = {"fn": "of", "axis": "along axis", "split_axis": "of parts along axis", "concat_axis": "to axis"}
    how = "".join(f" {words[key]} {attributes[key]}" for key in KINDS[kind])
    group = max(groups_of(attributes), key=lambda group: len(set(group)), default=())
    among = ", ".join(map(str, group[:_SHOWN])) + (", ..." if len(group) > _SHOWN else "")
    if kind == "permute":
        return f"`permute`{how} from the device {group[0]} to {group[1]}" if group else "`permute` without pairs"
    return f"`{kind}`{how} among the devices {among or 'of no group'}"
