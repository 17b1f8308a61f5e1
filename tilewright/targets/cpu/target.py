"""The cpu target: x86-64 and AArch64 through LLVM, one native call per program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from tilewright import events
from tilewright.cost.program import ProgramCost
from tilewright.cost.vectors.kernel import Work
from tilewright.dialects.base import array_type
from tilewright.errors import UnsupportedOnTargetError
from tilewright.machines.machine import Machine
from tilewright.options import current
from tilewright.passes.base import Unit
from tilewright.passes.program_memory import MemoryPlan, plan_memory
from tilewright.runtime.cache import unwatched_cache
from tilewright.runtime.files import dump
from tilewright.runtime.manifest import Alias, Manifest, place_constants
from tilewright.runtime.program import Program
from tilewright.runtime.shared_constants import Keep, keep_in_memory
from tilewright.runtime.shared_objects import SharedObjects
from tilewright.targets.base import KernelTime, LinkedExecutable, Tensor, spec_of
from tilewright.targets.cpu.clocks import COUNTS, Clocks
from tilewright.targets.cpu.codegen import compile_assembly, compiler_of, triple_of
from tilewright.targets.cpu.compile_pool import CompilePool
from tilewright.targets.cpu.emit import NativeModule, emit_program
from tilewright.targets.cpu.support import support_object


class NativeProgram(LinkedExecutable):
    """A program compiled for a CPU. It runs where the CPU's features are; anywhere it can be looked at."""

    def __init__(self, unit: Unit, stages: dict[str, str], clocks: Clocks | None = None) -> None:
        self.unit = unit
        self._stages = stages
        self._clocks = clocks
        self._plan: MemoryPlan = plan_memory(unit)
        self._emitted: NativeModule | None = None
        self._program: Program | None = None
        self._clocked: tuple[NativeProgram, Clocks] | None = None

    @property
    def _module(self) -> NativeModule:
        """The program as LLVM text, made on first use: making it can be part of compiling it."""
        if self._emitted is None:
            self._emitted = emit_program(self.unit, self._plan, triple_of(self.unit.machine), clocks=self._clocks)
        return self._emitted

    @property
    def program(self) -> Program:
        """The runnable program, built on first use."""
        if self._program is None:
            self._program = self.link(keep_in_memory)
        return self._program

    def link(self, keep: Keep) -> Program:
        """The runnable program with its constants as `keep` has them."""
        machine = self.unit.machine
        objects = self._compile()
        known = self.unit.constants | ({} if self._clocks is None else {COUNTS: self._clocks.counts})
        kept = keep({name: np.ascontiguousarray(known[name]) for name in self._module.constants})
        constants = [each.content for each in kept]
        if events.listening(4):
            events.emit("compile.source", level=4, text=self._module.text)
        if (folder := current().dump_dir) is not None:
            dump(folder / self.unit.name, "4.llvm.ll", self._module.text)
            dump(folder / self.unit.name, "5.assembly.s", self.asm())
        if events.listening(7):
            events.emit("compile.assembly", level=7, text=self.asm())
        manifest = self._manifest([c.nbytes for c in constants], [len(each) for each in objects])
        elsewhere = [(each.key, each.offset) for each in kept]
        return Program(manifest, b"".join(objects), support_object(triple_of(machine)), constants, elsewhere=elsewhere)

    def profile(self, arrays: Sequence[Tensor], repeat: int) -> list[KernelTime]:
        """How long each kernel takes; the program is compiled once more, with clocks."""
        if self._clocked is None:
            clocks = Clocks()
            self._clocked = (NativeProgram(self.unit, {}, clocks), clocks)
        clocked, clocks = self._clocked
        measured, work = clocks.measured(lambda: clocked(*arrays), repeat), clocked._module.work
        times = [
            KernelTime(name, calls, seconds, *(calls * n for n in self._predicted(work[name])))
            for name, (calls, seconds) in measured.items()
        ]
        return sorted(times, key=lambda each: -each.seconds)

    def _predicted(self, work: Work) -> tuple[float, float, float]:
        return work.seconds(self.unit.machine), work.flops, work.bytes

    def _compile(self) -> list[bytes]:
        """The objects of all modules; those that are not emitted yet are compiled as they come."""
        with CompilePool(self.unit.machine, self.unit.threads, _shared_objects(self.unit.machine)) as pool:
            if self._emitted is None:
                numbers: dict[str, int] = {}

                def submit(name: str, text: str) -> int:
                    return numbers.setdefault(name, pool.submit(name, text))

                triple = triple_of(self.unit.machine)
                self._emitted = emit_program(self.unit, self._plan, triple, submit, self._clocks)
            else:
                numbers = {name: pool.submit(name, text) for name, text in self._emitted.texts.items()}
            compiled = pool.finish()
        for name, steps in self.unit.seconds.items():
            if name in numbers and events.listening(3):
                module = compiled[numbers[name]]
                seconds = {f"{step.replace('-', '_')}_s": spent for step, spent in steps.items()}
                code_bytes = len(module.object_bytes)
                events.emit(
                    "compile.kernel", level=3, name=name, **seconds, llvm_s=module.seconds, code_bytes=code_bytes
                )
        return [each.object_bytes for each in compiled]

    def _manifest(self, constant_sizes: list[int], object_sizes: list[int]) -> Manifest:
        machine = self.unit.machine
        types = self.unit.main.function_type
        inputs = [spec_of(f"in{i}", array_type(t)) for i, t in enumerate(types.inputs)]
        outputs = [spec_of(f"out{i}", array_type(t)) for i, t in enumerate(types.outputs)]
        return Manifest(
            name=self.unit.name,
            triple=triple_of(machine),
            cpu=machine.llvm_cpu,
            features=machine.llvm_features,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            aliases=tuple(Alias(output=o, input=i) for i, o in self.unit.donated.items()),
            constants=place_constants(constant_sizes),
            object_sizes=tuple(object_sizes),
            arena_bytes=self._module.arena_bytes,
            worker_scratch_bytes=self._module.worker_bytes,
            messages=self._module.messages,
            library_functions=self._module.library_functions,
            estimated_seconds=sum(w.seconds(machine) for w in self._module.work.values()),
            metadata={
                "memory_report": self._plan.report(),
                "machine": machine.name,
                "remarks": msgspec.json.encode([str(r) for r in self.unit.remarks]).decode(),
            },
        )

    def ir(self, phase: str) -> str:
        known = self._stages | {"scheduled": str(self.unit.module), "llvm": self._module.text}
        if phase not in known:
            help = f"ask for {', '.join(known)}, or for machine code as `asm`"
            raise UnsupportedOnTargetError(f"the cpu target has no `{phase}` phase", help=help)
        return known[phase]

    def asm(self) -> str:
        texts = self._module.texts.items()
        return "\n".join(f"# ---- {name}\n{compile_assembly(text, self.unit.machine)}" for name, text in texts)

    def cost(self) -> ProgramCost:
        machine = self.unit.machine
        kernels = {name: work.cost(machine) for name, work in self._module.work.items()}
        return ProgramCost(machine.name, kernels, arena_bytes=self._module.arena_bytes)

    def explain(self) -> str:
        counts = Counter(str(remark) for remark in self.unit.remarks)
        return "\n".join(text if count == 1 else f"{text} [{count} times]" for text, count in counts.items())


def _shared_objects(machine: Machine) -> SharedObjects | None:
    """The objects of kernels in the compile cache, if there is one."""
    cache = unwatched_cache()
    try:
        return None if cache is None else SharedObjects(cache, compiler_of(machine))
    except OSError:  # an application of compiled files alone does not state what its compiler is
        return None
