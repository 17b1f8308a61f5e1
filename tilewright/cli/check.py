"""`tilewright check`: the interpreter and the native code agree on a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tilewright.cli.flags import Flags
from tilewright.cli.loading import Target, find_target, random_array
from tilewright.cli.report import Report, make_table

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.primitives import ArrayType

    Argument = ArrayType | dict[str, "Argument"] | list["Argument"] | tuple["Argument", ...] | float | str | None

REFERENCE, CHECKED = "interp", "cpu"

# Relative to the largest element of the reference: room for sums in another order, none for a wrong element.
_TOLERANCES = {"f64": 1e-11, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}


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
    flags: Flags | None = None,
) -> Report:
    """Compile a function with all verifiers on, and compare the interpreter with native code on random inputs.

    Exits with 1 when they differ by more than the tolerance of the result's type (f64 1e-11, f32 1e-4, f16 1e-2,
    bf16 5e-2, relative to the largest element; integers and bools exactly).

    For example:

        tilewright check model.py::attention --args '(8, 128, 64):f32, (8, 128, 64):f32, (8, 128, 64):f32'

    Parameters
    ----------
    function
        FILE::NAME of a `tw.jit` function or a `tw.kernel`.
    arguments
        What to compile for, as '(SIZES):TYPE, ..., name=value'. Without it, the file's EXAMPLE_ARGUMENTS.
    seed
        Of the random inputs.
    """
    from tilewright.options import options

    found = find_target(function, arguments)
    # Without the cache, so that the compiler and its verifiers run even for a program that it has seen.
    with options(verify=2, cache=False):
        lowered = found.lower()
        reference = _results(lowered.compile(REFERENCE), found, seed)
        results = _results(lowered.compile(CHECKED), found, seed)
    comparisons = [compare(n, a, b) for n, (a, b) in enumerate(zip(results, reference, strict=True))]
    agrees = all(each.agrees for each in comparisons)
    document = {
        "file": str(found.file),
        "name": found.name,
        "targets": [REFERENCE, CHECKED],
        "seed": seed,
        "agrees": agrees,
        "results": [asdict(each) for each in comparisons],
    }
    return Report(document, lambda console: _show(console, found.name, comparisons), 0 if agrees else 1)


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


def compare(number: int, result: Any, reference: Any) -> Comparison:
    """One result of native code with the interpreter's."""
    import numpy as np

    from tilewright.dtypes import from_numpy

    result, reference = np.asarray(result), np.asarray(reference)
    dtype = from_numpy(reference.dtype)
    tolerance = _TOLERANCES.get(dtype.name, 0.0)
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


def _show(console: Console, name: str, comparisons: Sequence[Comparison]) -> None:
    rows = [
        (str(c.result), c.type, f"{c.difference:.2e}", f"{c.tolerance:.0e}", "yes" if c.agrees else "NO")
        for c in comparisons
    ]
    title = f"{name}: {CHECKED} against {REFERENCE}"
    console.print(make_table(title, ("result", "type", "difference", "tolerance", "agrees"), rows))
