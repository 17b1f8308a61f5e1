"""The kernels of `bench cuda-static` against NumPy's float64: by the executor of schedules, which checks their order,
and by the emulator of PTX, which counts bank conflicts.

    python -m tests.cuda.sweep                              all of them, an hour or two
    python -m tests.cuda.sweep --chips sm_80 --only softmax those of a chip whose names say so
    python -m tests.cuda.sweep --rows FILE                  goes on where it was: FILE keeps what has been run

Each program is run at several sizes. `tiles` and `edges` are compiled as the suite's own size is, for a chip with few
multiprocessors and their share of the second-level cache: with the same tiles, stages and warps, of which few blocks do
all there is to do, and more steps than stages. At `tiles` they are whole, at `edges` they are not. `odd` and `small`
are compiled for the whole chip, and get what schedule they do: rows begin anywhere, or are shorter than a tile.

A case is right where both results are within the bounds of `sweep_references`, and no kernel that multiplies by matrix
instructions has bank conflicts. `schedule`: whether buffers, stages and warps are those at the suite's size.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from msgspec import structs

import tilewright as tw
from tests.cuda.chips import by_definition, emulated_and_counted
from tests.cuda.sweep_references import error_of, expected_of, inputs_of
from tests.emulators.ptx.counts import Counts
from tilewright import dtypes
from tilewright.cli.bench_suites.cuda_static import Form, forms
from tilewright.cost.warps.products import WarpProduct, WarpSchedule, warp_schedule
from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import tensor_memory
from tilewright.frontend.build import build_module
from tilewright.machines.machine import Machine, load
from tilewright.passes.base import Unit
from tilewright.passes.kernels import warp_planner
from tilewright.passes.warps.warp_space import SCALAR
from tilewright.pipelines import run_passes
from tilewright.targets.cuda.target import CudaProgram

CHIPS = ("sm_80", "sm_120a", "sm_100a", "sm_90a")
RIGHT, WRONG, NOT_RUN = "right", "wrong", "not run"
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Trials:
    """Sizes of a program, and the multiprocessors of the chip that the first two are compiled for."""

    multiprocessors: int
    tiles: Sizes
    edges: Sizes
    odd: Sizes
    small: Sizes


_ODD, _SMALL = (129, 67, 93), (16, 24, 48)
_PLAIN = Trials(2, (256, 512, 768), (400, 272, 400), _ODD, _SMALL)
_ROWS = Trials(2, (64, 1024), (37, 1000), (5, 1027), (3, 40))
# By words of names, of which the first that are there decide. Edges of what machines copy are multiples of 16 bytes.
_TRIALS = {
    # So few results that the depth is cut.
    "few tiles": Trials(32, (128, 256, 4096), (120, 248, 4008), (17, 33, 1500), (8, 8, 600)),
    "gemm i8 odd": Trials(4, (175, 173, 777), (130, 145, 777), _ODD, (9, 31, 17)),
    # So many columns that rows of the left operand are laid out.
    "gemm f8e4m3fn odd": Trials(22, (161, 999, 777), (97, 937, 777), _ODD, (9, 31, 17)),
    "f16": _PLAIN,
    "a.T b.T": Trials(2, (128, 1536, 640), (144, 1552, 400), _ODD, _SMALL),
    # Multiplied by threads, which takes the emulator long.
    "gemm f32": Trials(2, (256, 384, 256), (200, 136, 144), _ODD, _SMALL),
    "gemm": _PLAIN,
    "attention": Trials(16, (1, 1024, 64), (1, 328, 64), (2, 129, 64), (1, 40, 40)),
    "softmax": _ROWS,
    "layer norm": _ROWS,
    "row sum": _ROWS,
    "column sum": Trials(2, (512, 128), (300, 72), (129, 65), (3, 40)),
    "transpose": Trials(2, (128, 192), (136, 200), (65, 67), (5, 3)),
    "conv 3x3": Trials(8, (1, 128, 64, 28, 28), (1, 136, 40, 14, 27), (2, 19, 35, 9, 11), (1, 3, 5, 4, 6)),
}
# What tells cases apart: a chip, a name, a trial and sizes.
Key = tuple[str, str, str, Sizes]


@dataclass(frozen=True)
class Case:
    """A program of the suite for a chip, at the sizes of a field of `Trials`."""

    chip: str
    name: str
    trial: str

    @property
    def text(self) -> str:
        return f"{self.name} {self.trial}, {self.chip}"

    @property
    def form(self) -> Form:
        return next(each for each in forms() if each.name == self.name)

    @property
    def trials(self) -> Trials:
        return next(trials for words, trials in _TRIALS.items() if words in self.name)

    @property
    def sizes(self) -> Sizes:
        return getattr(self.trials, self.trial)

    @property
    def key(self) -> Key:
        return self.chip, self.name, self.trial, self.sizes


@dataclass
class Row:
    """What became of a case: largest errors by their bounds, bank conflicts of kernels that multiply by matrix
    instructions and of others."""

    chip: str
    name: str
    trial: str
    sizes: Sizes
    schedule: str = ""
    executor_error: float | None = None
    emulator_error: float | None = None
    conflicts: int = 0
    other_conflicts: int = 0
    seconds: float = 0.0
    verdict: str = NOT_RUN
    why: str = ""

    @property
    def key(self) -> Key:
        return self.chip, self.name, self.trial, self.sizes

    @property
    def text(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        errors = f"executor {_number(self.executor_error)}, emulator {_number(self.emulator_error)}"
        conflicts = f"conflicts {self.conflicts}, elsewhere {self.other_conflicts}"
        line = f"{self.chip} {self.name} {self.trial} {sizes}: {self.verdict}; {errors}; {conflicts}"
        ends = [f"{self.schedule} schedule" if self.schedule else "", f"{self.seconds:.1f} s", self.why]
        return "; ".join([line, *filter(None, ends)])


def _number(error: float | None) -> str:
    return "-" if error is None else f"{error:.2g}"


def all_cases(chips: Sequence[str], only: str = "") -> list[Case]:
    """Those of some chips whose text holds a text."""
    trials = [each.name for each in dataclasses.fields(Trials) if each.name != "multiprocessors"]
    found = [Case(chip, form.name, trial) for chip in chips for trial in trials for form in forms()]
    return [case for case in found if only in case.text]


def run_case(case: Case) -> Row:
    """Compile and run a case, and judge it."""
    row = Row(case.chip, case.name, case.trial, case.sizes)
    start = time.perf_counter()
    try:
        _run(case, row)
    except NotImplementedError as error:  # the emulator has no such instruction
        row.why = str(error)
    except Exception as error:  # of the compiler, the executor or the emulator: a finding either way
        row.verdict, row.why = WRONG, f"{type(error).__name__}: {error}"
    row.seconds = time.perf_counter() - start
    return row


def _run(case: Case, row: Row) -> None:
    form = case.form
    types = form.types(*case.sizes)
    unit = _unit_of_few(case, row) if case.trial in ("tiles", "edges") else _unit(form, case.sizes, load(case.chip))
    program = CudaProgram(unit, {})
    arrays = inputs_of(types)
    (executed,) = by_definition(unit, arrays)
    expected = expected_of(case.name, arrays, dtypes.from_numpy(executed.dtype))
    row.executor_error = error_of(executed, expected)
    (found,), counts = emulated_and_counted(program, arrays)
    row.emulator_error = error_of(found, expected)
    row.conflicts, row.other_conflicts = _conflicts(unit, counts)
    reasons = {
        "the executor's result": row.executor_error > 1,
        "the emulator's result": row.emulator_error > 1,
        "bank conflicts": row.conflicts > 0,
    }
    row.why = ", ".join(reason for reason, holds in reasons.items() if holds)
    row.verdict = WRONG if row.why else RIGHT


# ---- compiling ------------------------------------------------------------------------------------------------------


@dataclass
class _Schedules:
    """In place of `warp_schedule`: gives schedules that are known, in order, then those that it chooses; keeps all."""

    known: Sequence[WarpSchedule] = ()
    given: list[WarpSchedule] = field(default_factory=list[WarpSchedule])

    def __call__(self, product: WarpProduct, machine: Machine) -> WarpSchedule:
        number = len(self.given)
        self.given.append(self.known[number] if number < len(self.known) else warp_schedule(product, machine))
        return self.given[-1]


def _unit_of_few(case: Case, row: Row) -> Unit:
    """Compiled for few multiprocessors with the schedules that products have at the suite's size; whether the kernels
    are alike is noted."""
    form, chip = case.form, load(case.chip)
    schedules = _Schedules()
    large = _unit(form, form.sizes, chip, schedules)
    few = with_few(chip, case.trials.multiprocessors)
    unit = _unit(form, case.sizes, few, _Schedules(schedules.given))
    row.schedule = "same" if _made_of(unit) == _made_of(large) else "another"
    return unit


def with_few(chip: Machine, multiprocessors: int) -> Machine:
    """A chip with fewer multiprocessors, and their share of the cache."""
    first, cache, *others = chip.memories
    share = structs.replace(cache, bytes=cache.bytes * multiprocessors // chip.cores)
    return structs.replace(chip, cores=multiprocessors, memories=(first, share, *others))


def _unit(
    form: Form, sizes: Sizes, machine: Machine, choose: Callable[[WarpProduct, Machine], WarpSchedule] = warp_schedule
) -> Unit:
    """A program after all passes, its products by schedules that `choose` gives."""
    graph = tw.jit(form.function).lower(*form.types(*sizes)).graph
    unit = Unit(build_module(graph), graph.snapshot(), machine, 1)
    with patch.object(warp_planner, "warp_schedule", choose):
        run_passes(unit, keep_stages=False)
    return unit


def _made_of(unit: Unit) -> list[list[Any]]:
    """Of each kernel: warps of the block and its roles, blocks that go together, buffers with their layouts and stages,
    and products."""
    return [[made for op in kernel.walk() for made in _parts_of(op)] for kernel in unit.kernels()]


def _parts_of(op: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(op, scheduled.ParallelOp):
        yield op.name, op.warps, op.cluster
    elif isinstance(op, scheduled.RoleOp):
        yield op.name, op.warps
    elif isinstance(op, scheduled.AllocOp):
        yield op.name, op.stages, op.result.type
    elif isinstance(op, scheduled.MmaOp | tensor_memory.TensorMmaOp | tile.DotOp):
        yield op.name, op.properties.get("atom")


def _conflicts(unit: Unit, counts: dict[str, Counts]) -> tuple[int, int]:
    """Bank conflicts of kernels that multiply by matrix instructions, and of others."""
    found = Counter[bool]()
    for name, counted in counts.items():
        multiplies = any(map(_is_of_matrices, unit.kernel(name).walk()))
        found[multiplies] += counted.shared_conflicts
    return found[True], found[False]


def _is_of_matrices(op: Any) -> bool:
    """Whether an operation is a product by instructions of matrices."""
    if isinstance(op, scheduled.MmaOp):
        return op.atom != SCALAR
    return isinstance(op, tensor_memory.TensorMmaOp)


# ---- the command ----------------------------------------------------------------------------------------------------


def run_cases(cases: Sequence[Case], jobs: int) -> Iterator[Row]:
    """Their rows in order, by some processes."""
    if jobs == 1:
        yield from map(run_case, cases)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as workers:
        yield from workers.map(run_case, cases)


def kept_rows(path: Path | None) -> dict[Key, Row]:
    """What `--rows` has kept; none where it has not been written."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    rows = [msgspec.json.decode(line, type=Row) for line in lines]
    return {row.key: row for row in rows}


def summary(rows: Iterable[Row], cases: int) -> dict[str, int]:
    """How many cases are right, wrong and not run."""
    found = Counter(row.verdict for row in rows)
    return {RIGHT: found[RIGHT], WRONG: found[WRONG], NOT_RUN: cases - found[RIGHT] - found[WRONG]}


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    cases = all_cases(given.chips.split(","), given.only)
    kept = kept_rows(given.rows)
    rows = [kept[case.key] for case in cases if case.key in kept]
    for row in run_cases([case for case in cases if case.key not in kept], given.jobs):
        rows.append(row)
        line = msgspec.json.encode(row).decode()
        print(line if given.json else row.text, flush=True)
        if given.rows:
            with given.rows.open("a") as file:
                file.write(line + "\n")
    found = summary(rows, len(cases))
    text = ", ".join(f"{count} {verdict}" for verdict, count in found.items())
    print(msgspec.json.encode(found).decode() if given.json else text)
    return 1 if found[WRONG] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", default=",".join(CHIPS), help="with commas between")
    parser.add_argument("--only", default="", help="cases whose `name trial, chip` holds this")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--rows", type=Path, help="a file of rows to which new ones are added; its cases are not rerun")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row, and one for the summary")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
