"""The cuda target: each kernel of a program as LLVM text, PTX, a cubin and SASS, and the program that runs them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import events
from tilewright.cached import cached_property
from tilewright.cost.program import ProgramCost
from tilewright.cost.warps.kernel import kernel_cost
from tilewright.cost.warps.occupancy import occupancy
from tilewright.dialects.base import array_type
from tilewright.errors import UnsupportedOnTargetError
from tilewright.options import current
from tilewright.passes.base import Unit
from tilewright.passes.host_program import host_program
from tilewright.passes.program_memory import plan_memory
from tilewright.runtime.cuda.program import DeviceProgram
from tilewright.runtime.files import dump
from tilewright.runtime.garbage import no_collections
from tilewright.runtime.manifest import Alias, Manifest, place_constants
from tilewright.runtime.shared_constants import Keep, keep_in_memory
from tilewright.targets.base import KernelTime, LinkedExecutable, spec_of
from tilewright.targets.cuda.cubin_cache import cubin
from tilewright.targets.cuda.emit import KernelCode, emit_kernel
from tilewright.targets.cuda.intrinsics import TRIPLE
from tilewright.targets.cuda.steps import device_code, launched
from tilewright.targets.cuda.toolchain import COMPILER, Cubin, instructions_of, sass_of


class CudaProgram(LinkedExecutable):
    """A program compiled for an NVIDIA chip. It runs where one is; anywhere it can be looked at and saved."""

    def __init__(self, unit: Unit, stages: dict[str, str]) -> None:
        self.unit = unit
        self._stages = stages
        with_names = {kernel.sym_name: kernel for kernel in unit.kernels()}
        self.kernels: dict[str, KernelCode] = {}
        for name, kernel in with_names.items():
            with unit.timed(name, "emission"), no_collections():
                self.kernels[name] = emit_kernel(kernel, unit.machine)

    @cached_property
    def ptx(self) -> dict[str, str]:
        """The kernels as PTX, by name."""
        return {name: COMPILER.ptx(name, code.text, self.unit.machine) for name, code in self.kernels.items()}

    @cached_property
    def cubins(self) -> dict[str, Cubin]:
        """The kernels' machine code, by name."""
        found = {name: cubin(name, text, self.unit.machine) for name, text in self.ptx.items()}
        if (folder := current().dump_dir) is not None:
            for name in found:
                dump(folder / self.unit.name, f"4.{name}.ll", self.kernels[name].text)
                dump(folder / self.unit.name, f"5.{name}.ptx", self.ptx[name])
        return found

    @cached_property
    def sass(self) -> dict[str, str]:
        """The kernels' machine code as text, by name."""
        return {name: sass_of(cubin.content) for name, cubin in self.cubins.items()}

    @property
    def program(self) -> DeviceProgram:
        """The runnable program, built on first use."""
        return self._linked

    @cached_property
    def _linked(self) -> DeviceProgram:
        return self.link(keep_in_memory)

    def link(self, keep: Keep) -> DeviceProgram:
        """The runnable program with its constants as `keep` has them."""
        unit = self.unit
        plan = plan_memory(unit)
        host = host_program(unit, plan, launched(self.kernels))
        code = device_code(unit, host, self.kernels)
        kept = keep({name: np.ascontiguousarray(unit.constants[name]) for name in host.constants})
        cubins = [self.cubins[name].content for name in host.kernels]
        self._report()
        types = unit.main.function_type
        manifest = Manifest(
            name=unit.name,
            triple=TRIPLE,
            cpu=unit.machine.llvm_cpu,
            features=(),
            inputs=tuple(spec_of(f"in{i}", array_type(type)) for i, type in enumerate(types.inputs)),
            outputs=tuple(spec_of(f"out{i}", array_type(type)) for i, type in enumerate(types.outputs)),
            aliases=tuple(Alias(output=o, input=i) for i, o in unit.donated.items()),
            constants=place_constants([each.content.nbytes for each in kept]),
            object_sizes=tuple(map(len, cubins)),
            arena_bytes=code.arena_bytes,
            metadata={
                "memory_report": plan.report(),
                "machine": unit.machine.name,
                "remarks": json.dumps([str(remark) for remark in unit.remarks]),
            },
            device=code,
        )
        elsewhere = [(each.key, each.offset) for each in kept]
        constants = [each.content for each in kept]
        return DeviceProgram(manifest, b"".join(cubins), b"", constants, elsewhere=elsewhere)

    def _report(self) -> None:
        """Emit events of the compilation."""
        for name, steps in self.unit.seconds.items() if events.listening(3) else ():
            if name in self.cubins:
                seconds = {f"{step.replace('-', '_')}_s": spent for step, spent in steps.items()}
                code_bytes = len(self.cubins[name].content)
                events.emit("compile.kernel", level=3, name=name, **seconds, code_bytes=code_bytes)
        if events.listening(4):
            events.emit("compile.source", level=4, text=self.ir("llvm"))
        if events.listening(7):
            events.emit("compile.assembly", level=7, text=self.asm())

    def profile(self, arrays: Sequence[Any], repeat: int) -> list[KernelTime]:
        """The times between events of the device around each launch, which is waited for."""
        self(*arrays)
        with events.capture() as records:
            for _ in range(repeat):
                self(*arrays)
        seconds: dict[str, list[float]] = {}
        for record in records:
            is_ours = record["kind"] == "runtime.kernel" and record["program"] == self.program.manifest.name
            if is_ours and isinstance(spent := record["seconds"], float):
                seconds.setdefault(str(record["name"]), []).append(spent)
        times = [self._time_of(name, found, repeat) for name, found in seconds.items()]
        return sorted(times, key=lambda each: -each.seconds)

    def _time_of(self, name: str, seconds: Sequence[float], repeat: int) -> KernelTime:
        cost, calls = kernel_cost(self.unit.kernel(name), self.unit.machine), len(seconds) / repeat
        return KernelTime(
            name, calls, sum(seconds) / repeat, calls * cost.seconds, calls * cost.flops, calls * cost.bytes
        )

    def ir(self, phase: str) -> str:
        """The program's text: `array`, `tile`, `scheduled`, `llvm`, `ptx` or `sass`."""
        made = {
            "llvm": lambda: _joined({name: code.text for name, code in self.kernels.items()}),
            "ptx": lambda: _joined(self.ptx),
            "sass": self.asm,
        }
        known = self._stages | {"scheduled": str(self.unit.module)}
        if phase in made:
            return made[phase]()
        if phase not in known:
            names = ", ".join([*known, *made])
            raise UnsupportedOnTargetError(f"the cuda target has no `{phase}` phase", help=f"ask for {names}")
        return known[phase]

    def asm(self) -> str:
        """SASS of all kernels."""
        return _joined(self.sass)

    def cost(self) -> ProgramCost:
        """The predicted time, and of each kernel the blocks, threads of each, registers of a thread, bytes spilled and
        bytes of shared memory, and how many blocks and warps a multiprocessor has at once, and why there are no
        more."""
        machine = self.unit.machine
        costs = {kernel.sym_name: kernel_cost(kernel, machine) for kernel in self.unit.kernels()}
        return ProgramCost(machine.name, costs, {name: self._resources_of(name) for name in self.kernels})

    def _resources_of(self, name: str) -> dict[str, Any]:
        code, usage = self.kernels[name], self.cubins[name].usage
        # Kernels declare no shared memory: what the assembler finds is what the system reserves.
        resident = occupancy(self.unit.machine, code.threads, usage.registers, code.shared_bytes)
        return {
            "blocks": code.blocks,
            "threads": code.threads,
            "registers": usage.registers,
            "spill_bytes": usage.spill_bytes,
            "shared_bytes": code.shared_bytes + usage.shared_bytes,
            "resident_blocks": resident.blocks,
            "resident_warps": resident.warps,
            "limited_by": list(resident.limits),
        }

    def explain(self) -> str:
        """The remarks, and the resources and instructions of each kernel."""
        lines = [f"{text} [{n} times]" if n > 1 else text for text, n in Counter(map(str, self.unit.remarks)).items()]
        for name in self.kernels:
            taken = self._resources_of(name)
            numbers = {what: value for what, value in taken.items() if isinstance(value, int)}
            lines.append(
                f"{name}: " + ", ".join(f"{value} {what.replace('_', ' ')}" for what, value in numbers.items())
            )
            if taken["spill_bytes"]:
                lines.append("  registers are spilled to memory: use smaller tiles")
            lines.append(f"  no more blocks at once for want of {' and '.join(taken['limited_by'])}")
            counts = sorted(instructions_of(self.sass[name]).items(), key=lambda each: -each[1])
            lines.append("  " + ", ".join(f"{count} {what}" for what, count in counts))
        return "\n".join(lines)


def _joined(texts: dict[str, str]) -> str:
    return "\n".join(f"// ---- {name}\n{text}" for name, text in texts.items())
