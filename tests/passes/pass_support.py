"""Running a pass on a program or on IR text, running its result, and FileCheck in this process."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser as CheckParser
from filecheck.parser import pattern_for_opts
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser

from tests.programs import Program, build
from tilewright.dialects import array, cores, scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.func import Func
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Value
from tilewright.layout import Layout
from tilewright.machines.machine import load
from tilewright.passes.base import Pass, Unit
from tilewright.passes.requested import RequestedSchedules
from tilewright.pipelines import array_to_tile, tile_to_vectors
from tilewright.schedules import Request
from tilewright.semantics import scheduled as scheduled_semantics
from tilewright.semantics import tile as tile_semantics
from tilewright.semantics.array import Interpreter
from tilewright.targets.grid.runtime import run_kernel

Tensor = np.ndarray[Any, Any]
Make = Callable[[Program], list[Value]]


def unit_of(module: ModuleOp, constants: dict[str, Tensor], machine: str = "x86-64-v3") -> Unit:
    """A unit for a fixed machine and two threads, so that no result depends on the host."""
    return Unit(module, constants, load(machine), 2)


def parse(text: str) -> ModuleOp:
    """A verified module from text; operations at the top level need no `builtin.module` around them."""
    context = Context()
    for dialect in (Builtin, Func, array.Array, tile.Tile, scheduled.Scheduled, cores.Cores):
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    module.verify()
    return module


def numbered(module: ModuleOp) -> str:
    """The module's text with values numbered instead of named."""
    copy = module.clone()
    for op in copy.walk():
        for value in (*op.results, *(a for region in op.regions for block in region.blocks for a in block.args)):
            value.name_hint = None
    return str(copy)


def run_through(make: Make, last: type[Pass], schedule: Request | None = None) -> Unit:
    """A program after the passes of the pipeline up to `last`, its kernels with requested schedules."""
    program = build(make)
    unit = unit_of(build_module(program), dict(program.constants))
    unit.requested = RequestedSchedules.of(schedule)
    for each in (*array_to_tile(unit.machine.model), *tile_to_vectors()):
        each.apply(unit)
        unit.module.verify()
        if isinstance(each, last):
            return unit
    raise ValueError(f"{last.__name__} is not in the pipeline")


def expect(unit: Unit, checks: str) -> None:
    """Match the unit's IR against FileCheck directives (`CHECK:`, `CHECK-NEXT:`, `CHECK-NOT:`, ...)."""
    text = numbered(unit.module)
    matcher = filecheck(text, checks)
    assert matcher.run() == 0, f"{matcher.stderr.getvalue()}\n{text}"


def filecheck(text: str, checks: str) -> Any:
    """A matcher of checks against a text, which writes its findings to `stderr`, a string."""
    options = Options("checks", "ir")
    matcher = Matcher(
        options, FInput("ir", text), CheckParser(options, io.StringIO(checks), *pattern_for_opts(options))
    )
    matcher.stderr = io.StringIO()
    return matcher


def remarks(unit: Unit, pass_name: str) -> list[tuple[str, str]]:
    """Decisions and reasons that a pass recorded."""
    return [(r.decision, r.reason) for r in unit.remarks if r.pass_name == pass_name]


def applied(each: Pass, text: str, machine: str = "x86-64-v3") -> Unit:
    """IR text after a pass."""
    unit = unit_of(parse(text), {}, machine)
    each.apply(unit)
    unit.module.verify()
    return unit


def check_unchanged(each: Pass, text: str, machine: str = "x86-64-v3") -> Unit:
    """A pass leaves a program as it is."""
    unit = applied(each, text, machine)
    assert numbered(unit.module) == numbered(parse(text))
    return unit


def check_meaning(each: Pass, text: str, machine: str = "x86-64-v3", inputs: Sequence[Tensor] = ()) -> Unit:
    """A pass changes a program, which computes the same results bit by bit: of given arrays, or of random ones."""
    before, after = unit_of(parse(text), {}, machine), applied(each, text, machine)
    assert numbered(after.module) != numbered(before.module)
    for seed in range(1 if inputs else 3):
        arrays = list(inputs) or random_inputs(before, seed)
        for got, expected in zip(run(after, arrays), run(before, arrays), strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)
    return after


def random_inputs(unit: Unit, seed: int = 0) -> list[Tensor]:
    """Random arrays for the arguments of `main`."""
    rng = np.random.default_rng(seed)
    types = [array_type(a) for a in unit.main.body.block.args]
    return [np.asarray(rng.standard_normal(t.shape)).astype(t.dtype.numpy) for t in types]


def run(unit: Unit, arrays: Sequence[Tensor]) -> list[Tensor]:
    """Run `main` by the semantics of the phase that each kernel is in."""

    def call(callee: str, operands: Sequence[Tensor]) -> list[Tensor]:
        kernel = unit.kernel(callee)
        read = [r for r, effect in zip(kernel.refs, kernel.effects, strict=True) if effect != tile.OUT]
        logical = [_unpacked(o, tile.ref_type(r)) for o, r in zip(operands, read, strict=True)]
        if any(isinstance(op, cores.ProgramOp) for op in kernel.body.block.ops):
            return run_kernel(kernel, logical, unit.machine)
        if any(isinstance(op, scheduled.ParallelOp) for op in kernel.body.block.ops):
            return scheduled_semantics.run_call(kernel, logical)
        return tile_semantics.run_call(kernel, logical)

    return Interpreter(unit.constants, call).run(unit.main.body.block, arrays)


def _unpacked(stored: Tensor, ref: tile.RefType) -> Tensor:
    """An array by its logical indices, each looked up through the layout one by one."""
    if not ref.layout.data:
        return stored
    layout = Layout.parse(ref.layout.data)
    logical = np.empty(ref.shape, stored.dtype)
    for index in np.ndindex(*ref.shape):
        logical[index] = stored[layout.coordinates(index)["mem"]]
    return logical
