"""`tilewright check`: the interpreter and the code of a target agree on a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tilewright.cli.flags import Flags
from tilewright.cli.loading import Target, find_target, random_array
from tilewright.cli.report import Report, make_table
from tilewright.errors import ArgumentError
from tilewright.records import dataclass

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.api.programs import CompiledProgram
    from tilewright.primitives import ArrayType

    Argument = ArrayType | dict[str, "Argument"] | list["Argument"] | tuple["Argument", ...] | float | str | None

REFERENCE = "interp"

# Relative to the largest element of the reference: room for sums in another order, none for a wrong element.
_TOLERANCES = {"f64": 1e-11, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
# Matrix units of grids take 11 bits of an f32 operand.
_GRID_TOLERANCES = _TOLERANCES | {"f32": 2e-3}


@dataclass(frozen=True)
class Comparison:
    """One result: `difference` is the largest absolute one over the largest reference element."""

    result: int
    type: str
    difference: float
    tolerance: float
    agrees: bool


def check(
    function: str,
    /,
    *,
    arguments: Annotated[str | None, Parameter(name="--args")] = None,
    seed: int = 0,
    bounds: Annotated[bool, Parameter(negative="")] = False,
    flags: Flags | None = None,
) -> Report:
    """Compile a function for a target with all verifiers on, and compare it with the interpreter on random inputs.

    Programs for the CPU run as native code, those for a grid of cores on its simulator, those for GPUs by the
    definitions of their scheduled operations, which report accesses in no order; no device is needed. The interpreter
    reports grid points that touch the same elements. Exits with 1 when results differ by more than the tolerance of
    their type (f64 1e-11, f32 1e-4, on grids 2e-3, f16 1e-2, bf16 5e-2, relative to the largest element; integers and
    bools exactly).

    For example:

        tilewright check model.py::attention --args '(8, 128, 64):f32, (8, 128, 64):f32, (8, 128, 64):f32'
        tilewright check examples/kernels/matmul.py::matmul --target cuda:sm_90a

    Parameters
    ----------
    function
        FILE::NAME of a `tw.jit` function or a `tw.kernel`.
    arguments
        What to compile for, as '(SIZES):TYPE, ..., name=value'. Without it, the file's EXAMPLE_ARGUMENTS.
    seed
        Of the random inputs.
    bounds
        Report single positions outside their array, such as `x[i - 1]` in the first point, which read 0.
    """
    from tilewright.options import current, options
    from tilewright.targets.interp.kernels import bounds_checked

    found = find_target(function, arguments)
    # Without the cache, so that the compiler and its verifiers run even for a program that it has seen.
    with ExitStack() as stack:
        stack.enter_context(options(verify=2, cache=False))
        lowered = found.lower()
        checked = current().target if flags is not None and flags.target is not None else lowered.target
        _refuse(checked)
        compiled = runnable(lowered.compile(checked), seed)
        if bounds:
            stack.enter_context(bounds_checked())
        reference = _results(lowered.compile(REFERENCE), found, seed)
        results = _results(compiled, found, seed)
    tolerances = _GRID_TOLERANCES if checked.partition(":")[0] == "grid" else _TOLERANCES
    comparisons = [compare(n, a, b, tolerances) for n, (a, b) in enumerate(zip(results, reference, strict=True))]
    agrees = all(each.agrees for each in comparisons)
    document = {
        "file": str(found.file),
        "name": found.name,
        "targets": [REFERENCE, checked],
        "seed": seed,
        "agrees": agrees,
        "results": [asdict(each) for each in comparisons],
    }
    title = f"{found.name}: {checked} against {REFERENCE}"
    return Report(document, lambda console: _show(console, title, comparisons), 0 if agrees else 1)


def _refuse(target: str) -> None:
    """Refuse targets that run nothing, or are the reference.

    Raises:
        ArgumentError: the target is one of them.
    """
    name = target.partition(":")[0]
    if name == REFERENCE:
        message = "`check` compares a target with the interpreter, not the interpreter with itself"
        raise ArgumentError(message, help="give another one, such as `--target cpu`")
    if name == "null":
        raise ArgumentError("the null target runs nothing to compare", help="give `--target cpu`")


def runnable(compiled: CompiledProgram, seed: int) -> CompiledProgram:
    """A compiled function that runs on this host: that of a GPU by definition."""
    if compiled.target.partition(":")[0] != "cuda":
        return compiled
    from tilewright.driver.by_definition import DefinedExecutable

    return replace(compiled, executable=DefinedExecutable(compiled.executable, seed), target="cpu")


def _results(compiled: Any, target: Target, seed: int) -> list[Any]:
    """The arrays that a run on random inputs gives; of a kernel, all its arrays after the run."""
    from tilewright.api.kernel import CompiledKernel
    from tilewright.api.pytree import flatten

    filler = _Filler(seed)
    if isinstance(compiled, CompiledKernel):
        arrays = [filler.fill(type) for type in compiled.lowered.specialisation.types]
        compiled(*arrays)
        return arrays
    positional = [filler.fill(argument) for argument in target.positional]
    named = {name: filler.fill(argument) for name, argument in target.named.items()}
    values: list[Any] = []
    flatten(compiled(*positional, **named), values)
    return values


@dataclass
class _Filler:
    """Puts random arrays where arguments have none, each with a seed of its own."""

    seed: int

    def fill(self, argument: Argument) -> Any:
        from tilewright.primitives import ArrayType

        if isinstance(argument, ArrayType):
            self.seed += 1
            return random_array(argument.shape, argument.dtype.name, self.seed)
        if isinstance(argument, dict):
            return {key: self.fill(part) for key, part in argument.items()}
        if isinstance(argument, list | tuple):
            return type(argument)(self.fill(part) for part in argument)
        return argument


def compare(
    number: int, result: object, reference: object, tolerances: Mapping[str, float] = MappingProxyType(_TOLERANCES)
) -> Comparison:
    """One result of a target with the interpreter's."""
    import numpy as np

    from tilewright.dtypes import from_numpy

    result, reference = np.asarray(result), np.asarray(reference)
    dtype = from_numpy(reference.dtype)
    tolerance = tolerances.get(dtype.name, 0.0)
    difference = relative_difference(result, reference)
    type_text = f"{dtype.name}{list(reference.shape)}"
    return Comparison(number, type_text, difference, tolerance, difference <= tolerance)


def relative_difference(result: Any, reference: Any) -> float:
    """Largest absolute difference over the largest finite reference element; infinite where only one is NaN or inf."""
    import numpy as np

    if result.shape != reference.shape or result.dtype != reference.dtype:
        return float("inf")
    if not reference.size or np.array_equal(result, reference):
        return 0.0
    a, b = result.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    scale = float(np.abs(b[finite]).max(initial=0.0)) or 1.0
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / scale


def _show(console: Console, title: str, comparisons: Sequence[Comparison]) -> None:
    rows = [
        (str(c.result), c.type, f"{c.difference:.2e}", f"{c.tolerance:.0e}", "yes" if c.agrees else "NO")
        for c in comparisons
    ]
    console.print(make_table(title, ("result", "type", "difference", "tolerance", "agrees"), rows))
