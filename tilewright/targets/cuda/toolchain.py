"""From LLVM text to SASS, in a separate process: LLVM and NVIDIA's assembler may end theirs.

The assembler (nvJitLink) and the disassembler (nvdisasm) come with the extra `cuda`. Tables list the requests that the
tools accept, so that a wrong pair of chip and PTX version never reaches them.
"""

from __future__ import annotations

import atexit
import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tilewright.errors import TargetError, ToolFailure
from tilewright.machines.machine import Machine
from tilewright.records import dataclass
from tilewright.targets.cuda import device_code
from tilewright.targets.tool_process import ToolPool, ToolProcessEnded, ToolProcessNotReady

# The lowest PTX version that each chip needs, and those that this LLVM knows. PTX ISA, "Release notes".
_LEAST_PTX = {
    "sm_80": 70,
    "sm_86": 71,
    "sm_89": 78,
    "sm_90a": 80,
    "sm_100a": 86,
    "sm_103a": 88,
    "sm_120a": 87,
    "sm_121a": 88,
}
_KNOWN_PTX = frozenset({70, 71, 72, 73, 74, 75, 76, 77, 78, 80, 81, 82, 83, 84, 85, 86, 87, 88, 90})
_SERIALIZED = "wgmma.mma_async instructions are serialized"
# nvJitLink assembles what may be linked with other code, and leaves this instruction out then.
_SHARES_REGISTERS = "setmaxnreg"
INSTALL = "install the tools with `pip install 'tilewright[cuda]'`"


@dataclass(frozen=True)
class Usage:
    """The SM resources of a kernel, as the assembler reports them. `serialized`: it has each asynchronous MMA waited
    for before the next one begins."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    serialized: bool = False


@dataclass(frozen=True)
class Cubin:
    """A kernel assembled for a chip."""

    content: bytes
    usage: Usage


class DeviceCompiler:
    """The tools' processes, which are started when they are first asked and again after a crash."""

    def __init__(self) -> None:
        self._pool = ToolPool(device_code.__file__, with_site=True)
        atexit.register(self.close)

    def ptx(self, name: str, text: str, machine: Machine) -> str:
        """PTX of an LLVM module.

        Raises:
            TargetError: the machine's chip and PTX version do not fit.
            ToolFailure: LLVM rejects the module or crashes.
        """
        features = ptx_feature(machine)
        request = {"step": "ptx", "cpu": machine.llvm_cpu, "features": features}
        return self._ask(name, "LLVM", request, text).decode()

    def cubin(self, name: str, ptx: str, machine: Machine) -> Cubin:
        """The machine code of PTX.

        Raises:
            ToolFailure: the assembler rejects it or crashes, or is not there.
        """
        if _SHARES_REGISTERS in ptx:
            return _assembled_whole(name, ptx, machine.llvm_cpu)
        content = self._ask(name, "nvJitLink", {"step": "cubin", "chip": machine.llvm_cpu}, ptx)
        (size,) = device_code.REPORT.unpack_from(content)
        start = device_code.REPORT.size
        return Cubin(content[start + size :], usage_of(content[start : start + size].decode()))

    def close(self) -> None:
        """End the processes that are idle."""
        self._pool.close()

    def _ask(self, name: str, tool: str, request: dict[str, str], text: str) -> bytes:
        try:
            answer = self._pool.ask(request, text.encode())
        except OSError as error:
            raise ToolFailure(f"the compiler process did not start: {error}", help=INSTALL) from None
        except ToolProcessNotReady as ending:
            message = f"the compiler process did not start: its process ended with {ending.how}"
            raise ToolFailure(message, help=INSTALL) from None
        except ToolProcessEnded as ending:
            raise ToolFailure(
                f"{tool} crashed on `{name}`: its process ended with {ending.how}",
                help="look at the text with the option `dump_dir`, and report it",
            ) from None
        if not answer.good:
            reason = answer.content.decode()
            missing = "no nvJitLink" in reason
            raise ToolFailure(
                f"{tool} rejects `{name}`: {reason}", help=INSTALL if missing else "report it with `exe.ir('llvm')`"
            )
        return answer.content


COMPILER = DeviceCompiler()


def ptx_feature(machine: Machine) -> str:
    """The LLVM feature of the machine's PTX version.

    Raises:
        TargetError: LLVM does not know the version, or the chip needs a later one.
    """
    versions = [int(feature.removeprefix("ptx")) for feature in machine.llvm_features if feature.startswith("ptx")]
    least = _LEAST_PTX.get(machine.llvm_cpu)
    if least is None or len(versions) != 1 or versions[0] not in _KNOWN_PTX or versions[0] < least:
        raise TargetError(
            f"the machine `{machine.name}` names the chip {machine.llvm_cpu} with {', '.join(machine.llvm_features)}",
            help=f"name one of {', '.join(_LEAST_PTX)} and a PTX version that it has",
        )
    return f"+ptx{versions[0]}"


def _assembled_whole(name: str, ptx: str, chip: str) -> Cubin:
    """A kernel that is linked with nothing.

    Raises:
        ToolFailure: ptxas is not there, or rejects the text.
    """
    tool = _tool("ptxas")
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        text, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        text.write_text(ptx)
        command = [tool, f"-arch={chip}", "-O3", "-v", str(text), "-o", str(cubin)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise ToolFailure(f"ptxas fails for `{name}`: {run.stderr.strip()}", help="report it")
        return Cubin(cubin.read_bytes(), _usage_of_whole(run.stderr))


def _usage_of_whole(report: str) -> Usage:
    """The report of ptxas on a kernel. Raises ToolFailure if there is none."""
    registers = re.search(r"Used (\d+) registers", report)
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    if registers is None or frame is None:
        raise ToolFailure(f"ptxas reports no registers: {report}", help="report it")
    shared = re.search(r"(\d+) bytes smem", report)
    stack, stores, loads = map(int, frame.groups())
    return Usage(int(registers[1]), stores + loads, stack, int(shared[1]) if shared else 0, _SERIALIZED in report)


def usage_of(report: str) -> Usage:
    """The report of the assembler on a kernel. Raises ToolFailure if there is none."""
    found = re.search(r"used (\d+) registers.*?, (\d+) stack, (\d+) bytes smem", report)
    if found is None:
        raise ToolFailure(f"nvJitLink reports no registers: {report}", help="report it")
    # Code that was not assembled now has no line of spills, but its local memory, where they are.
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    spills = spills or re.search(r"(\d+) bytes lmem", report)
    registers, stack, shared = map(int, found.groups())
    spilled = sum(map(int, spills.groups())) if spills is not None else 0
    return Usage(registers, spilled, stack, shared, _SERIALIZED in report)


def sass_of(cubin: bytes) -> str:
    """The machine code as text.

    Raises:
        ToolFailure: nvdisasm is not there, or fails.
    """
    tool = _tool("nvdisasm")
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        run = subprocess.run([tool, "--no-dataflow", "-c", str(path)], capture_output=True, text=True, check=False)
    if run.returncode:
        raise ToolFailure(f"nvdisasm fails: {run.stderr.strip()}", help="report it")
    return run.stdout


def _tool(name: str) -> str:
    """The path of a tool of NVIDIA's: in one of its packages, or on PATH."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec is not None and spec.submodule_search_locations else ():
        for path in sorted(Path(folder).glob(f"*/bin/{name}")):
            return str(path)
    found = shutil.which(name)
    if found is None:
        raise ToolFailure(f"there is no {name}", help=INSTALL)
    return found


_INSTRUCTION = re.compile(r"^\s+(?:/\*[0-9a-f]+\*/)?\s*(?:@!?U?P\w+ )?([A-Z][A-Za-z0-9_.]*)[ ;]", re.MULTILINE)
# What goes to several blocks of a cluster.
_MULTICAST = "MULTICAST"


def instructions_of(sass: str) -> dict[str, int]:
    """How often each instruction stands in the text, by the first word of its name; those that go to several blocks of
    a cluster once more by that and `.MULTICAST`."""
    counts: dict[str, int] = {}
    for name in _INSTRUCTION.findall(sass):
        first, *others = name.split(".")
        for key in (first, f"{first}.{_MULTICAST}") if _MULTICAST in others else (first,):
            counts[key] = counts.get(key, 0) + 1
    return counts
