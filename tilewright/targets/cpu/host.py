"""Which machine file describes a target string of the cpu target. Imports no compiler: a warm start stays light."""

from __future__ import annotations

from functools import cache

from tilewright.errors import TargetError
from tilewright.machines import machine as machines
from tilewright.machines.machine import Machine
from tilewright.runtime.cpu import features as cpu_features


@cache
def host_machine() -> Machine:
    """The widest machine file that this host satisfies, with the host's cache sizes. Of the third-level cache at most
    what the file states for each core: a virtual machine of two cores is notified the size of a whole server's.

    Raises:
        TargetError: no machine file fits this processor.
    """
    host = cpu_features.host()
    known = map(machines.load, machines.names(target="cpu", architecture=host.architecture))
    fitting = [m for m in known if not cpu_features.missing(m.llvm_features)]
    if not fitting:
        raise TargetError(
            f"no machine file fits this processor ({host.name})",
            help=f"the cpu target needs one of {', '.join(machines.names(target='cpu'))}",
        )
    widest = max(fitting, key=lambda m: (m.vector.bytes, len(m.llvm_features)))
    sizes = {f"l{c.level}": c.size_bytes for c in cpu_features.cache_levels() if c.kind != "instruction"}
    if "l3" in sizes:
        sizes["l3"] = min(sizes["l3"], widest.memory("l3").bytes * cpu_features.physical_cores())
    return machines.with_caches(widest, sizes)


def machine_named(name: str) -> Machine:
    """The machine of a target string; the host's when the name is empty.

    Raises:
        TargetError: there is no such machine, or it is not a CPU.
    """
    if not name or name == "host":
        return host_machine()
    machine = machines.load(name)
    if machine.target != "cpu":
        raise TargetError(f"`{name}` is not a machine of the cpu target", help="leave the machine out to use this host")
    return machine
