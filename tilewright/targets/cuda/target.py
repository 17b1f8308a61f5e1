"""The cuda target: each kernel of a program as LLVM text, PTX, a cubin and SASS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tilewright.errors import UnsupportedOnTargetError
from tilewright.options import current
from tilewright.passes.base import Unit
from tilewright.runtime.files import dump
from tilewright.targets.base import Tensor
from tilewright.targets.cuda.emit import KernelCode, emit_kernel
from tilewright.targets.cuda.toolchain import COMPILER, Cubin, instructions_of, sass_of


class CudaProgram:
    """A program compiled for an NVIDIA chip, which need not be there. It is looked at; nothing runs it yet."""

    def __init__(self, unit: Unit, stages: dict[str, str]) -> None:
        self.unit = unit
        self._stages = stages
        with_names = {kernel.sym_name.data: kernel for kernel in unit.kernels()}
        self.kernels: dict[str, KernelCode] = {}
        for name, kernel in with_names.items():
            with unit.timed(name, "emission"):
                self.kernels[name] = emit_kernel(kernel, unit.machine)

    @cached_property
    def ptx(self) -> dict[str, str]:
        """The kernels as PTX, by name."""
        return {name: COMPILER.ptx(name, code.text, self.unit.machine) for name, code in self.kernels.items()}

    @cached_property
    def cubins(self) -> dict[str, Cubin]:
        """The kernels' machine code, by name."""
        found = {name: COMPILER.cubin(name, text, self.unit.machine) for name, text in self.ptx.items()}
        if (folder := current().dump_dir) is not None:
            for name in found:
                dump(folder / self.unit.name, f"4.{name}.ll", self.kernels[name].text)
                dump(folder / self.unit.name, f"5.{name}.ptx", self.ptx[name])
        return found

    @cached_property
    def sass(self) -> dict[str, str]:
        """The kernels' machine code as text, by name."""
        return {name: sass_of(cubin.content) for name, cubin in self.cubins.items()}

    def __call__(self, *arrays: Tensor, out: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Refuse.

        Raises:
            UnsupportedOnTargetError: always.
        """
        raise UnsupportedOnTargetError(
            "programs for cuda are compiled and looked at, not run yet", help='use target="cpu" to run it'
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

    def cost(self) -> dict[str, Any]:
        """Per kernel the blocks, threads of each, registers of a thread, bytes spilled and bytes of shared memory."""
        kernels = {
            name: {
                "blocks": code.blocks,
                "threads": code.threads,
                "registers": self.cubins[name].usage.registers,
                "spill_bytes": self.cubins[name].usage.spill_bytes,
                "shared_bytes": code.shared_bytes + self.cubins[name].usage.shared_bytes,
            }
            for name, code in self.kernels.items()
        }
        return {"machine": self.unit.machine.name, "kernels": kernels}

    def explain(self) -> str:
        """What was decided, and what each kernel takes and is made of."""
        lines = [f"{text} [{n} times]" if n > 1 else text for text, n in Counter(map(str, self.unit.remarks)).items()]
        for name, taken in self.cost()["kernels"].items():
            lines.append(f"{name}: " + ", ".join(f"{value} {what.replace('_', ' ')}" for what, value in taken.items()))
            counts = sorted(instructions_of(self.sass[name]).items(), key=lambda each: -each[1])
            lines.append("  " + ", ".join(f"{count} {what}" for what, count in counts))
        return "\n".join(lines)

    def save(self, path: str) -> None:
        """Refuse.

        Raises:
            UnsupportedOnTargetError: always.
        """
        raise UnsupportedOnTargetError("programs for cuda are not saved yet", help='use target="cpu" to save it')


def _joined(texts: dict[str, str]) -> str:
    return "\n".join(f"// ---- {name}\n{text}" for name, text in texts.items())
