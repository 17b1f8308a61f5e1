"""Compile a program for the cpu target, run it between forbidden pages, and judge its outputs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

import tilewright as tw
from tests.fuzz.bounds import Oracle, compare
from tests.fuzz.generate import Case
from tests.fuzz.guarded_memory import guarded_arena, guarded_copy, guarded_empty
from tests.fuzz.intervals import Tensor
from tilewright.cost.vectors.register_blocks import RegisterBlock, register_blocks
from tilewright.errors import ScheduleError
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Graph
from tilewright.machines.machine import Machine
from tilewright.options import current
from tilewright.passes.base import Unit
from tilewright.pipelines import compile_module, run_passes
from tilewright.runtime.cpu.features import default_threads
from tilewright.schedules import Schedule, SplitMatmul, VectorMatmul
from tilewright.targets.base import Executable, target_named


@dataclass(frozen=True)
class Outcome:
    """The result of running one program: the kind of failure (empty if there is none) with a message, the number of
    elements compared, and `refused`, the reason if the target does not support the program."""

    kind: str = ""
    message: str = ""
    elements: int = 0
    unknown: int = 0
    refused: str = ""


def check(case: Case, target: str = "cpu") -> Outcome:
    """Compile, run and compare one program. Whatever the compiler raises is a failure of its own kind; a program that
    reads or writes beyond an array, or the memory it works in, ends the process."""
    try:
        # Verifying costs a tenth of the time: some programs are verified after every pass, the rest not at all.
        verified = tw.options(cache=False, verify=2 if case.seed % 8 == 0 else 0)
        with verified:
            given = donations(case) if case.seed % 3 == 0 else []
            chosen = schedules(case, target) if case.seed % 3 == 1 else None
            executable = _compiled(case, target, given, chosen)
            outputs = _run_donating(executable, case) if given else _run(executable, case)
    except Exception as error:  # the compiler's own bugs come in any class
        return Outcome("raised " + type(error).__name__, str(error)[:600])
    elements = unknown = 0
    for position, (expected, got) in enumerate(zip(case.expected, outputs, strict=True)):
        verdict = compare(expected, got)
        elements, unknown = elements + verdict.elements, unknown + verdict.unknown
        if verdict.problem is not None:
            return Outcome("wrong", f"output {position} {verdict.problem}", elements, unknown)
    return Outcome("", "", elements, unknown)


def _compiled(case: Case, target: str, given: list[tuple[int, int]], chosen: dict[str, Schedule] | None) -> Executable:
    """The program with its schedules; without their sources of right operands where one is not read from an array."""
    constants, module = dict(case.graph.constants), build_module(case.graph)
    try:
        return compile_module(module, constants, target, given, keep_stages=False, schedule=chosen)
    except ScheduleError as error:
        if "right=" not in error.message or chosen is None:
            raise
    plain = {name: replace(each, right=None) if hasattr(each, "right") else each for name, each in chosen.items()}
    return compile_module(build_module(case.graph), constants, target, given, keep_stages=False, schedule=plain)


def schedules(case: Case, target: str) -> dict[str, Schedule]:
    """Schedules for the products of a program, none of which is large enough for the more involved ones to pay."""
    manifest, machine_name = target_named(target)
    machine, choose = manifest.machine_named(machine_name), random.Random(case.seed)
    unit = Unit(build_module(case.graph), dict(case.graph.constants), machine, current().threads or default_threads())
    run_passes(unit, keep_stages=False)
    return {name: _another(choose, schedule, machine) for name, schedule in unit.schedules.items()}


def _another(choose: random.Random, schedule: Schedule, machine: Machine) -> Schedule:
    """Another schedule of a matmul; those of other kernels stay."""
    if isinstance(schedule, SplitMatmul) and choose.random() < 0.5:
        side = 32  # of blocks of products in parts
        rows, columns, depth = choose.choice((1, 20, side, 40, 64)), choose.choice((1, 3)), choose.choice((1, 4))
        return SplitMatmul(tile=(rows, columns * side, depth * side))
    if isinstance(schedule, SplitMatmul):
        return _in_blocks(choose, register_blocks(tw.f32, machine))
    if not isinstance(schedule, VectorMatmul) or schedule.block is None:
        return schedule
    every = (register_blocks(dtype, machine) for dtype in (tw.f32, tw.f64, tw.i16, tw.i8))
    blocks = next(found for found in every if schedule.block in [(block.rows, block.columns) for block in found])
    right = None if schedule.right is None else choose.choice(("in_place", "kept", "kept", "together"))
    return replace(_in_blocks(choose, blocks), right=right)


def _in_blocks(choose: random.Random, blocks: Sequence[RegisterBlock]) -> VectorMatmul:
    block = choose.choice(blocks)
    rows = choose.choice((1, block.rows, block.rows + 1, 3 * block.rows, 40))
    tile = rows, choose.choice((1, 2, 3)) * block.columns, choose.choice((4, 16, 30, 1024))
    return VectorMatmul(tile=tile, block=(block.rows, block.columns))


def donations(case: Case) -> list[tuple[int, int]]:
    """Inputs that give their memory to outputs of the same type, as pairs of positions."""
    free = list(range(len(case.graph.inputs)))
    pairs: list[tuple[int, int]] = []
    for position, output in enumerate(case.graph.outputs):
        fitting = [i for i in free if case.graph.inputs[i].type == output.type and output not in case.graph.inputs]
        if fitting and output not in case.graph.outputs[:position]:
            free.remove(fitting[0])
            pairs.append((fitting[0], position))
    return pairs


def _run_donating(executable: Executable, case: Case) -> Sequence[Tensor]:
    """The outputs of a call that may write to its inputs."""
    program = executable.program
    with guarded_arena(program):
        result = program(*_inputs(case))
    return result if isinstance(result, tuple) else (result,)


def _run(executable: Executable, case: Case) -> Sequence[Tensor]:
    """The outputs of a call that writes to arrays it is given."""
    arrays = [guarded_empty(e.value.shape, e.value.dtype, _at_end(case)) for e in case.expected]
    program = executable.program
    with guarded_arena(program):
        program(*_inputs(case), out=arrays if len(arrays) != 1 else arrays[0])
    return arrays


def _inputs(case: Case) -> list[Tensor]:
    return [guarded_copy(x, _at_end(case)) for x in case.inputs]


def _at_end(case: Case) -> bool:
    """Whether arrays touch the page behind them; some touch the one before them."""
    return case.seed % 4 != 3


def case_of(graph: Graph, inputs: Sequence[Tensor], seed: int = 0) -> Case:
    """A case of a program with given inputs.

    Raises:
        Undecided: its control flow is not certain.
    """
    return Case(seed, graph, list(inputs), Oracle(graph.constants).run(graph, inputs))
