"""Programs for a grid of cores as TT-Metalium C++ for ttnn 0.81: a kernel for each thread, and what the host is
notified.

The kernels are given as arguments what the host alone knows: addresses of arrays and accessors to their pages, where
cores are on the networks, and to each core its row and column (see `emit_movers`). All else is in the text.
"""

from __future__ import annotations

from tilewright.dialects import cores, tile
from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.machines.machine import Machine
from tilewright.records import dataclass
from tilewright.targets.grid.emit_compute import ComputePrinter
from tilewright.targets.grid.emit_host import host_text
from tilewright.targets.grid.emit_movers import MoverPrinter
from tilewright.targets.grid.emit_thread import Facts, ThreadSource

_WHAT = {
    cores.READER: "brings what is computed with to the queues",
    cores.COMPUTE: "computes",
    cores.WRITER: "takes the results from the queues",
}


@dataclass(frozen=True)
class ProgramSource:
    """The sources of a program's kernels, in C++, where it has such threads, and `host`, a module of Python that
    describes the program."""

    reader: str | None
    compute: str | None
    writer: str | None
    host: str

    def __str__(self) -> str:
        parts = {
            "reader.cpp": self.reader,
            "compute.cpp": self.compute,
            "writer.cpp": self.writer,
            "host.py": self.host,
        }
        found = {name: text for name, text in parts.items() if text is not None}
        return "\n".join(
            f"{'#' if name.endswith('py') else '//'} ---- {name}\n\n{text}" for name, text in found.items()
        )


def emit_program(kernel: tile.KernelOp, machine: Machine) -> ProgramSource:
    """Print a kernel that holds a program for a grid of cores.

    Raises:
        UnsupportedOnTargetError: something in it has no form there.
    """
    program = next((op for op in kernel.body.block.ops if isinstance(op, cores.ProgramOp)), None)
    if program is None or machine.grid is None:
        raise CompilerBug(f"`{kernel.sym_name}` holds no program for a grid of cores, or {machine.name} is none")
    facts = Facts(kernel, program, machine.grid)
    _check_counts(facts, machine)
    threads = [_source(facts, thread) for thread in program.threads]
    by_role = {thread.role: thread.text for thread in threads}
    return ProgramSource(
        by_role.get(cores.READER),
        by_role.get(cores.COMPUTE),
        by_role.get(cores.WRITER),
        host_text(facts, threads),
    )


def _source(facts: Facts, thread: cores.ThreadOp) -> ThreadSource:
    rows, columns = facts.program.shape
    role = thread.role
    title = f"{facts.kernel.sym_name}: {_WHAT[role]}, on each of {rows} x {columns} cores."
    return (ComputePrinter if thread.computes else MoverPrinter)(facts, thread).source(title)


def _check_counts(facts: Facts, machine: Machine) -> None:
    grid, program = facts.grid, facts.program
    for what, found, most in (
        ("queues", len(program.queues), grid.queues),
        ("semaphores", len(program.semaphores), grid.semaphores),
    ):
        if found > most:
            raise UnsupportedOnTargetError(
                f"`{facts.kernel.sym_name}` has {found} {what}, and a core of {machine.name} has {most}",
                help="split the kernel",
            )
