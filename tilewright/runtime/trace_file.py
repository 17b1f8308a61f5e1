"""The file of the option `trace_file`: events that Perfetto and chrome://tracing open.

Google, "Trace Event Format", JSON Object Format: times are in microseconds. A process begins the file anew, and leaves
it complete after each addition. A device is a process there, and a role of a multiprocessor's warps a thread; blocks
that share a multiprocessor at one time have a thread each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tilewright.errors import OptionError
from tilewright.events import emit
from tilewright.locks import Lock
from tilewright.runtime.zones import Records, Slice, Zones, first_ns, slices_of

_HEAD = b'{"displayTimeUnit":"ns","traceEvents":[\n'
_TAIL = b"\n]}\n"
_MOST_ROLES, _MOST_PLACES = 8, 64
# Times count from the last multiple of 2^40 ns, some 18 minutes, before the first launch: floats keep cycles then.
_ORIGIN_BITS = 40

Event = dict[str, object]


class _File:
    """One file of this process. `named`: processes and threads whose names are in it; `roles`: their numbers, which
    are the same for all kernels; `origins_ns`: nanoseconds of each device that its times count from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.named: set[tuple[int, int | None]] = set()
        self.roles: dict[str, int] = {}
        self.origins_ns: dict[int, int] = {}
        self._is_empty = True
        path.write_bytes(_HEAD + _TAIL)

    def add(self, events: Sequence[Event]) -> None:
        """Write events over the end of the file, and the end after them."""
        lines = b",\n".join(msgspec.json.encode(event) for event in events)
        with open(self.path, "r+b") as file:
            file.seek(-len(_TAIL), 2)
            file.write((b"" if self._is_empty else b",\n") + lines + _TAIL)
        self._is_empty = False


_files: dict[Path, _File] = {}
_lock = Lock()


def add_events(path: Path, names: dict[tuple[int, int | None], str], events: Sequence[Event]) -> None:
    """Add events to a file, and names of processes and threads, by their numbers, where they are not in it yet.

    Raises:
        OptionError: the file cannot be written.
    """
    with _lock:
        try:
            file = _files.get(path) or _files.setdefault(path, _File(path))
            new = {numbers: name for numbers, name in names.items() if numbers not in file.named}
            file.named.update(new)
            file.add([*(_name_event(numbers, name) for numbers, name in new.items()), *events])
        except OSError as error:
            raise _not_written(path, error) from error


def _name_event(numbers: tuple[int, int | None], name: str) -> Event:
    process, thread = numbers
    what: Event = {"name": "process_name"} if thread is None else {"name": "thread_name", "tid": thread}
    return {"ph": "M", "pid": process, "args": {"name": name}} | what


def _not_written(path: Path, error: OSError) -> OptionError:
    return OptionError(
        f"`trace_file` is {str(path)!r}, which cannot be written: {error.strerror}",
        help="give a file in a directory that exists and is writable",
    )


def add_launch(path: Path, device: tuple[int, str], kernel: str, zones: Zones, records: Records) -> None:
    """Add what a launch on a device, by number and label, recorded.

    Raises:
        OptionError: the file cannot be written.
    """
    ordinal, label = device
    with _lock:
        try:
            file = _files.get(path) or _files.setdefault(path, _File(path))
            origin_ns = file.origins_ns.setdefault(ordinal, first_ns(zones, records) >> _ORIGIN_BITS << _ORIGIN_BITS)
            slices = slices_of(zones, records, origin_ns)
            file.add(_events(file, ordinal, label, kernel, zones, slices))
        except OSError as error:
            raise _not_written(path, error) from error
    lost = sum(each.lost for each in slices)
    emit("trace.zones", level=1 if lost else 2, kernel=kernel, slices=len(slices), lost_edges=lost, file=str(path))


def _events(file: _File, ordinal: int, device: str, kernel: str, zones: Zones, slices: Sequence[Slice]) -> list[Event]:
    places = _places(slices)
    found: list[Event] = []
    if (ordinal, None) not in file.named:
        file.named.add((ordinal, None))
        found.append({"ph": "M", "name": "process_name", "pid": ordinal, "args": {"name": device}})
    for each in slices:
        place = places[each.block, each.role]
        role = zones.roles[each.role]
        number = file.roles.setdefault(role, len(file.roles))
        thread = (each.multiprocessor * _MOST_PLACES + place) * _MOST_ROLES + number
        if (ordinal, thread) not in file.named:
            file.named.add((ordinal, thread))
            name = f"SM {each.multiprocessor}{f' block {place}' if place else ''} {role}"
            found.append({"ph": "M", "name": "thread_name", "pid": ordinal, "tid": thread, "args": {"name": name}})
        found.append(_event(each, ordinal, thread, kernel))
    return found


def _event(each: Slice, ordinal: int, thread: int, kernel: str) -> Event:
    more: dict[str, object] = {"lost_edges": each.lost} if each.lost else {"cut": True} if each.is_cut else {}
    return {
        "ph": "X",
        "name": kernel if each.label is None else each.label,
        "cat": "kernel" if each.label is None else "zone",
        "pid": ordinal,
        "tid": thread,
        "ts": each.start_ns * 1e-3,
        "dur": (each.stop_ns - each.start_ns) * 1e-3,
        "args": {"kernel": kernel, "block": each.block, **more},
    }


def _places(slices: Sequence[Slice]) -> dict[tuple[int, int], int]:
    """For each role of a block a number that no other block on its multiprocessor has meanwhile."""
    free_from: dict[tuple[int, int], list[float]] = {}
    found: dict[tuple[int, int], int] = {}
    for each in sorted((one for one in slices if one.label is None), key=lambda one: one.start_ns):
        ends = free_from.setdefault((each.multiprocessor, each.role), [])
        place = next((number for number, end in enumerate(ends) if end <= each.start_ns), len(ends))
        ends[place:] = [each.stop_ns, *ends[place + 1 :]]
        found[each.block, each.role] = place
    return found
