"""Description of this machine: CPU name and features as LLVM names them, cores, caches, and the share that this process
may use.

All of it comes from `/proc` and `/sys`, so that a saved program is checked and run without LLVM. Functions that read
them take the directory that holds both, `/` by default.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tilewright.runtime.cpu.tables import ARM_FEATURES, ARM_PARTS, INTEL_MODELS, X86_FEATURES, X86_LEVELS, amd_name

_ROOT = Path("/")
_UNIT_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30}


class Host(msgspec.Struct, frozen=True):
    """`architecture` is `x86_64`, `aarch64` or another machine name; `name` is LLVM's name for the CPU, or the x86-64
    level or `generic` when it is not known; `features` are LLVM's names of what the CPU and the system support."""

    architecture: str
    name: str
    features: frozenset[str]


class CacheLevel(msgspec.Struct, frozen=True):
    """One cache as the first CPU sees it. `kind` is `data`, `instruction` or `unified`."""

    level: int
    kind: str
    size_bytes: int
    line_bytes: int
    shared_by: int


# System call and arguments: arch/x86/include/uapi/asm/prctl.h; the state's number: Intel 64 manual, XCR0.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def host() -> Host:
    """This machine's CPU."""
    # The first processor's block is enough; a large machine's file has hundreds.
    text = _first_block(_ROOT / "proc/cpuinfo")
    found = parse_cpuinfo(text, platform.machine())
    tiles = frozenset(feature for feature in found.features if feature.startswith("amx-"))
    if tiles and not _may_use_tiles():
        return replace(found, features=found.features - tiles)
    return found


def _may_use_tiles() -> bool:
    """Ask the system for the tile registers of AMX, which a process has only after it asked (Linux, x86/xstate.rst).
    It is refused where a thread's stack for signals has no room for them."""
    libc = ctypes.CDLL(None)
    return libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


def parse_cpuinfo(text: str, architecture: str) -> Host:
    """The CPU that one processor's block of `/proc/cpuinfo` describes."""
    pairs = (line.partition(":") for line in text.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    if architecture == "x86_64":
        features = _features(fields.get("flags", ""), X86_FEATURES)
        return Host(architecture, _x86_name(fields, features), features)
    if architecture == "aarch64":
        features = _features(fields.get("Features", ""), ARM_FEATURES)
        part = (_number(fields.get("CPU implementer")), _number(fields.get("CPU part")))
        return Host(architecture, ARM_PARTS.get(part, "generic"), features)
    return Host(architecture, "generic", frozenset())


def missing(required: Iterable[str]) -> tuple[str, ...]:
    """The LLVM features of `required` (with or without a leading `+`) that this machine lacks, sorted."""
    wanted = {feature.removeprefix("+") for feature in required}
    return tuple(sorted(wanted - host().features))


def _first_block(path: Path) -> str:
    lines: list[str] = []
    with open(path) as file:
        for line in file:
            if not line.strip():
                break
            lines.append(line)
    return "".join(lines)


def _features(words: str, table: dict[str, tuple[str, ...]]) -> frozenset[str]:
    return frozenset(feature for word in words.split() for feature in table.get(word, ()))


def _number(text: str | None) -> int:
    return int(text, 0) if text else -1


def _x86_name(fields: dict[str, str], features: frozenset[str]) -> str:
    vendor, family, model = fields.get("vendor_id"), _number(fields.get("cpu family")), _number(fields.get("model"))
    name = None
    if vendor == "GenuineIntel" and family == 6:
        name = INTEL_MODELS.get(model)
        if name == "skylake-avx512" and "avx512vnni" in features:
            name = "cooperlake" if "avx512bf16" in features else "cascadelake"
    elif vendor == "AuthenticAMD":
        name = amd_name(family, model)
    if name is not None:
        return name
    return next((level for level, needed in X86_LEVELS if needed <= features), "x86-64")


def cache_levels(root: Path = _ROOT) -> tuple[CacheLevel, ...]:
    """The caches of the first CPU, smallest level first; empty where the system does not indicate."""
    found: list[CacheLevel] = []
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        size = _read(index / "size")
        if size is None:
            continue
        found.append(
            CacheLevel(
                level=int(_read(index / "level") or 0),
                kind=(_read(index / "type") or "unified").lower(),
                size_bytes=int(size.rstrip("KMG")) * _UNIT_BYTES.get(size[-1], 1),
                line_bytes=int(_read(index / "coherency_line_size") or 64),
                shared_by=len(parse_cpu_list(_read(index / "shared_cpu_list") or "0")),
            )
        )
    return tuple(sorted(found, key=lambda cache: (cache.level, cache.kind)))


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The numbers in a list such as `0-3,8`."""
    ranges = (part.partition("-") for part in text.split(",") if part.strip())
    return tuple(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1))


def cpu_order(root: Path = _ROOT) -> tuple[int, ...]:
    """The CPUs that this process may run on: one of each physical core first, then their siblings."""
    firsts: list[int] = []
    siblings: list[int] = []
    seen: set[object] = set()
    for cpu in sorted(os.sched_getaffinity(0)):
        core = _core(cpu, root)
        (siblings if core in seen else firsts).append(cpu)
        seen.add(core)
    return (*firsts, *siblings)


def physical_cores(root: Path = _ROOT) -> int:
    """How many physical cores this process may run on."""
    return len({_core(cpu, root) for cpu in os.sched_getaffinity(0)})


def _core(cpu: int, root: Path) -> object:
    """The physical core of a CPU; the CPU itself where the system does not indicate."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    core = _read(topology / "core_id")
    return cpu if core is None else (_read(topology / "physical_package_id"), core)


def usable_cpus(root: Path = _ROOT) -> int:
    """How many CPUs this process may keep busy: its affinity, within the quota of its control group."""
    return _within_quota(len(os.sched_getaffinity(0)), root)


@functools.cache
def default_threads() -> int:
    """Threads of a call that asks for none: one per usable physical core."""
    return _within_quota(physical_cores(), _ROOT)


def _within_quota(count: int, root: Path) -> int:
    quota = cpu_quota(root)
    return count if quota is None else max(1, min(count, math.ceil(quota)))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """CPUs' worth of time that the process's control groups allow; None without a limit."""
    limits: list[float] = []
    for directory in _group_directories(root, "cpu"):
        if text := _read(directory / "cpu.max"):
            quota, _, period = text.partition(" ")
        else:
            quota, period = _read(directory / "cpu.cfs_quota_us") or "", _read(directory / "cpu.cfs_period_us") or ""
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


@functools.cache
def usable_memory_bytes(root: Path = _ROOT) -> int:
    """The machine's memory, or the limit of the process's control groups where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [total]
    for directory in _group_directories(root, "memory"):
        text = _read(directory / "memory.max") or _read(directory / "memory.limit_in_bytes") or ""
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def _group_directories(root: Path, controller: str) -> Iterator[Path]:
    """The directories of the process's control group and its ancestors, for versions 1 and 2 of the interface.

    Inside a container the path may be the host's, of which only the mount point is visible; it is always included.
    """
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("" if number == "0" else controllers)
        group = mount / path.strip("/")
        yield group
        for parent in group.parents:
            if not parent.is_relative_to(mount):
                break
            yield parent


def _read(path: Path) -> str | None:
    """A small system file's text; None where it does not exist or may not be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
