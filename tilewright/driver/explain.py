"""Why the kernels of a traced program have the layouts that they have, on any machine.

The program is taken to the `tile` phase again, with the tiles of its target, and its layouts are inferred for the
machine that is asked about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tilewright.errors import LayoutError
from tilewright.frontend.trace import Graph
from tilewright.schedules import Schedule, code_of
from tilewright.targets.base import Executable, target_named

if TYPE_CHECKING:
    from tilewright.dialects.tile import KernelOp
    from tilewright.machines.machine import Machine
    from tilewright.passes.base import Unit
    from tilewright.passes.layouts.layout_explanation import KernelExplanation
    from tilewright.passes.layouts.layout_inference import Inference


class Unexplained(msgspec.Struct, frozen=True):
    """A kernel for which there are no layouts, and why."""

    kernel: str
    machine: str
    error: LayoutError

    @property
    def text(self) -> str:
        indented = str(self.error).replace("\n", "\n  ")
        return f"layouts of `{self.kernel}` on {self.machine}: none\n  {indented}"

    @property
    def document(self) -> dict[str, Any]:
        error = {"code": self.error.code, "message": self.error.message, "help": self.error.help}
        return {"kernel": self.kernel, "machine": self.machine, "error": error}


def explain_program(
    graph: Graph, target: str, machine: str | None = None, only: str | None = None
) -> list[KernelExplanation | Unexplained]:
    """One explanation per kernel, in the order of the program. The machine is the target's, if None. `only` is the
    label or the user's name of the tiles that are wanted, or those of a kernel as `KERNEL/NAME`.

    Raises:
        TargetError: there is no such target or machine.
    """
    chosen = _machine(target, machine)
    if only is None:
        return [_explained(kernel, chosen, None) for kernel in tile_kernels(graph, target)]
    wanted, _, name = only.rpartition("/")
    kernels = [kernel for kernel in tile_kernels(graph, target) if wanted in ("", kernel.sym_name)]
    return [_explained(kernel, chosen, name) for kernel in kernels]


def infers_layouts(target: str, machine: str | None = None) -> bool:
    """Whether tiles have layouts that are inferred: on a machine, or if None, on that of a target.

    Raises:
        TargetError: there is no such target or machine.
    """
    from tilewright.passes.spaces import has_layouts

    return has_layouts(_machine(target, machine))


def explain_compiled(executable: Executable, graph: Graph, target: str, machine: str | None) -> str:
    """The remarks of a compiled program, the schedules of its kernels as code, and their layouts if there are any."""
    manifest, _ = target_named(target)
    decisions = "\n\n".join(filter(None, (executable.explain(), schedules_text(executable.unit.schedules))))
    if machine is None and not (manifest.lowered and infers_layouts(target)):
        return decisions
    layouts = explanation_text(explain_program(graph, target, machine))
    if not layouts:
        return decisions
    head = "Layouts of the kernels' tiles, as inference chooses them:"
    return "\n\n".join(part for part in (decisions, head, layouts) if part)


def chosen_schedules(graph: Graph, target: str) -> dict[str, Schedule]:
    """The schedules of a program's kernels at the end of the `tile` phase, as the cost model chooses them."""
    return dict(tile_unit(graph, target).schedules) if target_named(target)[0].lowered else {}


def schedules_document(schedules: Mapping[str, Schedule]) -> dict[str, object]:
    """Schedules of kernels as plain values, which `tw.schedules.from_json` reads."""
    return {name: msgspec.to_builtins(schedule) for name, schedule in schedules.items()}


def schedules_text(schedules: Mapping[str, Schedule]) -> str:
    """Schedules of kernels as code that `schedule=` takes; an empty text if there are none."""
    return f"Schedules of the kernels, as `schedule=` takes them:\n{code_of(schedules)}" if schedules else ""


def explanation_text(explanations: Sequence[KernelExplanation | Unexplained]) -> str:
    """The explanations to read."""
    from tilewright.passes.layouts.layout_explanation_text import text_of

    return "\n\n".join(each.text if isinstance(each, Unexplained) else text_of(each) for each in explanations)


def explanation_document(explanations: Sequence[KernelExplanation | Unexplained]) -> list[dict[str, Any]]:
    """The explanations as plain values."""
    from tilewright.passes.layouts.layout_explanation_text import document_of

    return [each.document if isinstance(each, Unexplained) else document_of(each) for each in explanations]


def tile_kernels(graph: Graph, target: str) -> Iterator[KernelOp]:
    """The kernels of a program with the tiles that are chosen for a target."""
    yield from tile_unit(graph, target).kernels()


def tile_unit(graph: Graph, target: str) -> Unit:
    """A program at the end of the `tile` phase, with the schedules that are chosen for a target."""
    from tilewright import pipelines
    from tilewright.frontend.build import build_module
    from tilewright.options import current
    from tilewright.passes.base import Unit
    from tilewright.runtime.cpu.features import default_threads

    threads = current().threads or default_threads()
    unit = Unit(build_module(graph), dict(graph.snapshot()), _machine(target, None), threads, name=graph.name)
    for each in pipelines.array_to_tile(unit.machine.model):
        each.apply(unit)
    return unit


def _machine(target: str, name: str | None) -> Machine:
    if name is not None:
        from tilewright.machines.machine import load

        return load(name)
    manifest, machine_name = target_named(target)
    return manifest.machine_named(machine_name)


def _explained(kernel: KernelOp, machine: Machine, only: str | None) -> KernelExplanation | Unexplained:
    from tilewright.passes.layouts.layout_explanation import explain_layouts

    try:
        return explain_layouts(kernel, _inferred(kernel, machine), machine.name, only)
    except LayoutError as error:
        return Unexplained(kernel.sym_name, machine.name, error)


def _inferred(kernel: KernelOp, machine: Machine) -> Inference:
    from tilewright.passes.layouts.layout_inference import infer_layouts
    from tilewright.passes.spaces import space_of
    from tilewright.passes.warps.block_warps import warps_of

    return infer_layouts(kernel, space_of(machine, warps_of(kernel, machine)))
