"""`tilewright doctor`: what this host is, what Tilewright makes of it, and what is wrong with either."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from tilewright.cli.flags import Flags
from tilewright.cli.report import Report, bytes_text, seconds_text, show_pairs
from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from rich.console import Console

_NEEDED = ("numpy", "ml_dtypes", "llvmlite", "xdsl", "msgspec")
_PEERS = ("torch", "triton", "onnxruntime", "onnx", "jax")
_BANDWIDTH_BYTES = 1 << 28
_CALL_LIMIT_S = 5e-6


@dataclass(frozen=True)
class Problem:
    """Something to mend. `blocks` means that programs cannot be compiled or run."""

    text: str
    help: str
    blocks: bool = False


def doctor(
    *,
    measure: Annotated[bool, Parameter(negative="--no-measure")] = True,
    flags: Flags | None = None,
) -> Report:
    """Describe and measure this host, and report problems. Exits with 1 when programs cannot be compiled or run.

    For example:

        tilewright doctor --json

    Parameters
    ----------
    measure
        Compile small programs and time them, which takes a few seconds.
    """
    document: dict[str, Any] = {"versions": versions()}
    problems: list[Problem] = []
    document["host"] = _host(problems)
    document["cuda"] = cuda()
    document["grid"] = grids()
    document["cache"] = _cache(problems)
    document["measured"] = _measured(problems, document["host"]) if measure else None
    document["problems"] = [asdict(problem) for problem in problems]
    exit_code = 1 if any(problem.blocks for problem in problems) else 0
    return Report(document, lambda console: _show(console, document), exit_code)


def versions() -> dict[str, str | None]:
    """Versions of ourselves, of what we need and of the peers; None for one that is not installed."""
    from tilewright import __version__

    found: dict[str, str | None] = {"tilewright": __version__, "python": platform.python_version()}
    return found | {package: _version(package) for package in (*_NEEDED, *_PEERS)}


def _version(package: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return None
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _host(problems: list[Problem]) -> dict[str, Any]:
    from tilewright.options import current
    from tilewright.runtime.cpu import features as cpu_features

    host = cpu_features.host()
    machine = _machine(problems)
    usable = cpu_features.default_threads()
    threads = current().threads or usable
    if threads > usable:
        text = f"{threads} threads are asked for, but {usable} physical cores are usable"
        problems.append(Problem(text, "lower TW_THREADS or --threads, or leave them out"))
    if os.getloadavg()[0] > usable + 0.5:
        text = f"the load is {os.getloadavg()[0]:.1f} on {usable} usable cores, so that measurements are too low"
        problems.append(Problem(text, "measure again when other programs have ended"))
    return {
        "system": platform.platform(),
        "architecture": host.architecture,
        "cpu": host.name,
        "features": sorted(host.features),
        "machine": machine,
        "physical_cores": cpu_features.physical_cores(),
        "usable_cpus": cpu_features.usable_cpus(),
        "cpu_quota": cpu_features.cpu_quota(),
        "threads": threads,
        "memory_bytes": cpu_features.usable_memory_bytes(),
        "caches": [msgspec.structs.asdict(level) for level in cpu_features.cache_levels()],
        "load": list(os.getloadavg()),
    }


def cuda() -> dict[str, Any]:
    """The driver for NVIDIA's GPUs, their memory and the target of each, or why there is none."""
    from tilewright.runtime.cuda import driver as cuda_driver
    from tilewright.targets.cuda import chip_of

    found = cuda_driver.found()
    devices = [
        {
            "ordinal": device.ordinal,
            "name": device.name,
            "compute_capability": ".".join(map(str, device.capability)),
            "memory_bytes": device.memory_bytes,
            "multiprocessors": device.multiprocessors,
            "target": f"cuda:{chip}" if (chip := chip_of(device)) is not None else None,
        }
        for device in found.devices
    ]
    return {"driver": found.version, "devices": devices, "absent": found.problem}


def grids() -> list[dict[str, Any]]:
    """The grids of cores that there are machine files of. They are simulated: no device is looked for."""
    from tilewright.machines.machine import Model, load, names

    machines = [load(name) for name in names()]
    return [
        {"target": f"{machine.target}:{machine.name}", "cores": [machine.core_grid.rows, machine.core_grid.columns]}
        for machine in machines
        if machine.model == Model.CORES
    ]


def _machine(problems: list[Problem]) -> dict[str, Any] | None:
    from tilewright.dtypes import f32
    from tilewright.targets.cpu.host import host_machine

    try:
        machine = host_machine()
    except TilewrightError as error:
        problems.append(Problem(error.message, error.help or "use the target `interp`", blocks=True))
        return None
    return {
        "name": machine.name,
        "vector_bytes": machine.vector.bytes,
        "stated_peak_flops": machine.peak_flops(f32),
        "stated_bandwidth": machine.memory("dram").bytes_per_second,
    }


def _cache(problems: list[Problem]) -> dict[str, Any]:
    from tilewright.options import current
    from tilewright.runtime.cache import CompileCache, default_directory

    directory = default_directory()
    stats = CompileCache(directory, current().cache_limit_bytes).stats()
    writable = os.access(directory, os.W_OK)
    if not stats.usable or not writable:
        text = f"the cache directory {str(directory)!r} cannot be used, so that every program is compiled again"
        problems.append(Problem(text, "make it writable, or choose another with TW_CACHE_DIR or --cache-dir"))
    if not current().cache:
        problems.append(Problem("the compile cache is switched off", "unset TW_CACHE, or leave out --no-cache"))
    return {
        "directory": str(Path(directory)),
        "enabled": current().cache,
        "usable": stats.usable,
        "writable": writable,
        "entries": stats.entries,
        "bytes": stats.nbytes,
    }


def _measured(problems: list[Problem], host: dict[str, Any]) -> dict[str, Any] | None:
    if host["machine"] is None:
        return None
    from tilewright.cli import measure

    threads = host["threads"]
    try:
        measured: dict[str, Any] = {
            "fma_flops_one_core": measure.fma_peak("f32", 1),
            "fma_flops": measure.fma_peak("f32", threads),
            "copy_bytes_per_second_one_core": measure.copy_bandwidth(_BANDWIDTH_BYTES, 1),
            "copy_bytes_per_second": measure.copy_bandwidth(_BANDWIDTH_BYTES, threads),
            "fork_join_s": measure.fork_join_s(threads),
            "call_s": measure.call_overhead_s(),
        }
    except TilewrightError as error:
        help = error.help or "run `tilewright doctor --debug 5` and report what it prints"
        problems.append(Problem(f"a small program does not compile or run: {error.message}", help, blocks=True))
        return None
    if threads > 1 and measured["fma_flops"] < 1.3 * measured["fma_flops_one_core"]:
        text = f"{threads} threads compute little more than one: the cores are busy or shared"
        problems.append(Problem(text, "end other programs, or use --threads 1"))
    if measured["call_s"]["program"] > _CALL_LIMIT_S:
        text = (
            f"a call of a program takes {seconds_text(measured['call_s']['program'])}, not a fraction of a microsecond"
        )
        problems.append(
            Problem(text, "this NumPy may not be one whose arrays the native call knows: try another version")
        )
    return measured


def _show(console: Console, document: dict[str, Any]) -> None:
    host, cache, measured = document["host"], document["cache"], document["measured"]
    machine = host["machine"]
    caches = ", ".join(
        f"L{level['level']} {level['kind']} {bytes_text(level['size_bytes'])}" for level in host["caches"]
    )
    cores = f"{host['physical_cores']} cores, {host['usable_cpus']} usable CPUs, {host['threads']} threads a call"
    found = document["versions"]
    state = "off" if not cache["enabled"] else "usable" if cache["usable"] and cache["writable"] else "not usable"
    pairs = {
        "system": host["system"],
        "cpu": f"{host['cpu']} ({host['architecture']}), {cores}",
        "machine": machine["name"] if machine else "none fits",
        "features": " ".join(host["features"]),
        "caches": caches,
        "memory": bytes_text(host["memory_bytes"]),
        "load": " ".join(f"{load:.1f}" for load in host["load"]),
        "cuda": _cuda_text(document["cuda"]),
        "grid": "simulated: " + ", ".join(_grid_text(found) for found in document["grid"]),
        "cache": f"{cache['directory']} ({state}), {cache['entries']} programs, {bytes_text(cache['bytes'])}",
        "versions": ", ".join(f"{name} {found[name]}" for name in ("tilewright", "python", *_NEEDED)),
        "peers": ", ".join(f"{name} {found[name] or 'not installed'}" for name in _PEERS),
    }
    show_pairs(console, pairs | _measured_pairs(measured, host["threads"]))
    for problem in document["problems"]:
        console.print(f"problem: {problem['text']}\n  = help: {problem['help']}", markup=False, soft_wrap=True)
    if not document["problems"]:
        console.print("no problems found")


def _grid_text(found: dict[str, Any]) -> str:
    rows, columns = found["cores"]
    return f"{found['target']} of {rows} x {columns} cores"


def _cuda_text(found: dict[str, Any]) -> str:
    if found["absent"] is not None:
        return found["absent"]
    devices = [
        f"{device['ordinal']}: {device['name']}, {bytes_text(device['memory_bytes'])}, "
        f"{device['multiprocessors']} multiprocessors, "
        + (device["target"] or f"no target for compute capability {device['compute_capability']}")
        for device in found["devices"]
    ]
    return f"driver for CUDA {found['driver']}; " + ("; ".join(devices) or "no device")


def _measured_pairs(measured: dict[str, Any] | None, threads: int) -> dict[str, str]:
    if measured is None:
        return {}
    peak, all_peak = measured["fma_flops_one_core"] / 1e9, measured["fma_flops"] / 1e9
    copy, all_copy = measured["copy_bytes_per_second_one_core"] / 1e9, measured["copy_bytes_per_second"] / 1e9
    calls = measured["call_s"]
    return {
        "f32 peak": f"{peak:.1f} GFLOP/s on one core, {all_peak:.1f} on {threads}",
        "copy": f"{copy:.1f} GB/s read and written on one core, {all_copy:.1f} on {threads}",
        "fork-join": f"{seconds_text(measured['fork_join_s'])} over {threads} hot threads",
        "call": ", ".join(f"{name} {seconds_text(calls[name])}" for name in ("program", "jit", "numpy")),
    }
