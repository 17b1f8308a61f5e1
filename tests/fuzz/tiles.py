"""The fuzzer of tile kernels: `python -m tests.fuzz.tiles --kernels 2000 --seed 1 --jobs 2`.

A random kernel (`tile_steps.py`) runs by the semantics of the `tile` phase, by the semantics of the `scheduled` phase
after each pass, and as native code; with a target `cuda:CHIP` by the definitions of its schedule, which check that all
accesses are in order, and as PTX on an emulator. All must agree, except on what the first leaves undefined. Kernels as
source text, with names, branches and edges, are those of `sources.py`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

import tilewright as tw
from tests.cuda.chips import by_definition, emulated
from tests.fuzz.check import Outcome
from tests.fuzz.guarded_memory import guarded_arena, guarded_copy, guarded_empty
from tests.fuzz.intervals import Tensor
from tests.fuzz.run import SHRINK_S, Finding
from tests.fuzz.run import run as run_seeds
from tests.fuzz.tile_shrink import shrink
from tests.fuzz.tile_steps import Kernel, generate
from tests.passes.pass_support import parse, run, unit_of
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.pipelines import compile_module, tile_to_vectors
from tilewright.runtime.cpu import features as cpu_features
from tilewright.semantics import tile as tile_semantics
from tilewright.targets.cuda.target import CudaProgram
from tilewright.targets.grid.runtime import Simulation
from tilewright.targets.grid.target import GridProgram

# Whole numbers up to here, and sums of them, are exact in f32 in any order.
EXACT = 2**24
OLDER_MACHINE = "x86-64-v3"


class Undecided(Exception):
    """A branch depends on something undefined."""


class ExactInterpreter(tile_semantics.Interpreter):
    """The semantics of tiles, undefined (NaN) wherever a sum may depend on the order of its terms."""

    def run_op(self, op: Operation, values: dict[Any, Any]) -> Sequence[Any]:
        operands = [np.asarray(values[o]) for o in op.operands if o in values]
        results = super().run_op(op, values)
        if isinstance(op, tile.MapOp) and np.asarray(results[0]).dtype == bool and _any_undefined(operands):
            raise Undecided
        if isinstance(op, tile.DotOp):
            left, right, accumulator = (np.abs(o.astype(np.float64)) for o in operands)
            return [_defined_below(left @ right + accumulator, results[0])]
        if isinstance(op, tile.ReduceOp) and op.fn == "add":
            terms = np.abs(operands[0].astype(np.float64)).sum(op.axes)
            return [_defined_below(terms, results[0])]
        return [_defined_below(r, r) if isinstance(op, tile.MapOp) else r for r in results]


def _any_undefined(operands: Sequence[Tensor]) -> bool:
    return any(o.dtype.kind == "f" and bool(np.isnan(o).any()) for o in operands)


def _defined_below(sizes: Tensor, result: Tensor) -> Tensor:
    return np.where(np.abs(sizes) > EXACT, np.asarray(np.nan, result.dtype), result) if result.dtype != bool else result


# ---- checking -------------------------------------------------------------------------------------------------------


def targets_of(seed: int) -> tuple[str, ...]:
    """This machine's own code, and for every second seed that of an older machine."""
    machine = load(OLDER_MACHINE)
    runs = machine.architecture == cpu_features.host().architecture and not cpu_features.missing(machine.llvm_features)
    return (f"cpu:{OLDER_MACHINE}",) if runs and seed % 2 else ("cpu",)


def check(kernel: Kernel, targets: Sequence[str] | None = None) -> Outcome:
    """Run one kernel in all phases. Whatever the compiler raises is a failure of its own kind."""
    module = parse(kernel.text)
    unit = unit_of(module.clone(), {})
    arrays = inputs_of(unit, kernel.seed)
    try:
        expected = expected_of(unit, arrays)
    except Undecided:
        return Outcome()
    elements, unknown = sum(e.size for e in expected), sum(int(np.isnan(e).sum()) for e in expected)
    try:
        for name, outputs in _runs(
            unit, module, kernel, arrays, targets_of(kernel.seed) if targets is None else targets
        ):
            for position, (got, wanted) in enumerate(zip(outputs, expected, strict=True)):
                wrong = (got != wanted) & ~np.isnan(wanted)
                if wrong.any():
                    return Outcome("wrong", _difference(name, position, got, wanted, wrong), elements, unknown)
    except Exception as error:  # the compiler's own bugs come in any class
        return Outcome("raised " + type(error).__name__, str(error)[:600], elements, unknown)
    return Outcome("", "", elements, unknown)


def inputs_of(unit: Unit, seed: int) -> list[Tensor]:
    """Small whole numbers for the arguments of `main`."""
    random = np.random.default_rng(seed)
    types = [array_type(a) for a in unit.main.body.block.args]
    return [random.integers(-3, 4, t.shape).astype(t.dtype.numpy) for t in types]


def expected_of(unit: Unit, arrays: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of the kernel `k` by the semantics of tiles: `w`, `x`, `out`, `vout`."""
    kernel = unit.kernel("k")
    types = [tile.ref_type(r) for r in kernel.refs]
    outputs = [tile_semantics.poison(t.shape, t.dtype) for t in types[len(arrays) :]]
    refs = [*(a.copy() for a in arrays), *outputs]
    ExactInterpreter().run_kernel(kernel, refs)
    return [r for r, effect in zip(refs, kernel.effects, strict=True) if effect != tile.IN]


def _runs(
    unit: Unit, module: ModuleOp, kernel: Kernel, arrays: Sequence[Tensor], targets: Sequence[str]
) -> Iterator[tuple[str, Sequence[Tensor]]]:
    """The outputs after each pass of the lower phase, then of each target."""
    for each in tile_to_vectors():
        each.apply(unit)
        unit.module.verify()
        with np.errstate(all="ignore"):
            yield each.name, run(unit, [a.copy() for a in arrays])
    for target in targets:
        with tw.options(cache=False, verify=0):
            executable: Any = compile_module(module.clone(), {}, target, keep_stages=False)
        if isinstance(executable, CudaProgram):
            yield f"{target} by definition", by_definition(executable.unit, [a.copy() for a in arrays], kernel.seed)
            yield target, emulated(executable, [a.copy() for a in arrays])
            continue
        if isinstance(executable, GridProgram):
            simulation = Simulation(executable.unit, seed=kernel.seed)
            yield target, simulation.run([a.copy() for a in arrays])
            continue
        at_end = kernel.seed % 4 != 3
        outputs = [guarded_empty(t.shape, t.dtype.numpy, at_end) for t in map(array_type, _results(unit))]
        with guarded_arena(executable.program):
            executable.program(*(guarded_copy(a, at_end) for a in arrays), out=outputs)
        yield target, outputs


def _results(unit: Unit) -> Sequence[Any]:
    last = unit.main.body.block.last_op
    return last.operands if last is not None else ()


def _difference(name: str, position: int, got: Tensor, wanted: Tensor, wrong: Tensor) -> str:
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{name}: output {position} at {at} is {got[at]}, expected {wanted[at]} ({int(wrong.sum())} differ)"


# ---- running --------------------------------------------------------------------------------------------------------


def examine(seed: int, shrinks: bool) -> Finding:
    """Try the kernel of a seed."""
    warnings.simplefilter("ignore")
    kernel = generate(seed)
    outcome = check(kernel)
    operations = tuple(re.findall(r"tile\.(?!ref)(\w+)", kernel.text))
    if not outcome.kind or not shrinks:
        return Finding(outcome, "", operations)
    small = shrink(kernel, lambda k: check(k).kind == outcome.kind, SHRINK_S)
    return Finding(outcome, small.text, operations)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.tiles", description=__doc__)
    parser.add_argument("--kernels", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-shrink", action="store_true")
    arguments = parser.parse_args()
    print(f"seeds {arguments.seed} to {arguments.seed + arguments.kernels - 1}", flush=True)
    echo = lambda text: print(text, flush=True)  # noqa: E731
    shrinks = not arguments.no_shrink
    summary = run_seeds(arguments.kernels, arguments.seed, arguments.jobs, shrinks=shrinks, echo=echo, examine=examine)
    print(summary)
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
