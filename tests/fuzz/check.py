"""Compile a program for the cpu target, run it between forbidden pages, and judge its outputs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import tilewright as tw
from tests.fuzz.bounds import Oracle, compare
from tests.fuzz.generate import Case
from tests.fuzz.guarded_memory import guarded_arena, guarded_copy, guarded_empty
from tests.fuzz.intervals import Tensor
from tilewright.cost.given import Given, schedules_given
from tilewright.cost.tiles import MatmulTile
from tilewright.cost.vectors.products import Right, Schedule
from tilewright.cost.vectors.register_blocks import register_blocks
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Graph
from tilewright.pipelines import compile_module
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
        with schedules_given(schedules(case.seed, target) if case.seed % 3 == 1 else Given()), verified:
            given = donations(case) if case.seed % 3 == 0 else []
            constants = dict(case.graph.constants)
            executable = compile_module(build_module(case.graph), constants, target, given, keep_stages=False)
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


def schedules(seed: int, target: str) -> Given:
    """A schedule for the products of a program, none of which is large enough for the more involved ones to pay."""
    choose = random.Random(seed)
    manifest, machine_name = target_named(target)
    block = choose.choice(register_blocks(tw.f32, manifest.machine_named(machine_name)))
    rows = choose.choice((1, block.rows, block.rows + 1, 3 * block.rows, 40))
    tile = MatmulTile(rows, choose.choice((1, 2, 3)) * block.columns, choose.choice((4, 16, 30, 1024)))
    right = choose.choice((Right.IN_PLACE, Right.KEPT, Right.KEPT, Right.TOGETHER))
    side = 32  # of blocks of products in parts
    parts = MatmulTile(choose.choice((1, 20, side, 40, 64)), choose.choice((1, 3)) * side, choose.choice((1, 4)) * side)
    return Given(product=Schedule(tile, block, right, 0.0), split=choose.choice((None, parts)))


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
