"""The programs of the corpus, in groups; a group is a function that lists its programs, each of which is traced when it
is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import tilewright as tw
from tilewright.api import programs as api_programs
from tilewright.driver.compile import compile_graph
from tilewright.frontend.trace import Graph

_EXAMPLES = Path(__file__).parents[2] / "examples"
_NODES_WANTED, _STABLEHLO_WANTED, _RANDOM_PROGRAMS = 300, 300, 100

Donations = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Program:
    """A program of the corpus: its name within the group, and the function that traces it."""

    name: str
    trace: Callable[[], tuple[Graph, Donations]]


@cache
def programs(group: str) -> tuple[Program, ...]:
    """The programs of a group, of which the names are unique."""
    listed = list(GROUPS[group]())
    names = [program.name for program in listed]
    return tuple(
        Program(name if names.count(name) == 1 else f"{name} #{names[:n].count(name)}", program.trace)
        for n, (name, program) in enumerate(zip(names, listed, strict=True))
    )


def _lowered(function: Any, types: Sequence[Any]) -> tuple[Graph, Donations]:
    """Trace a function, a jitted function, an imported model or a kernel for the types of arrays."""
    lowered = (function if hasattr(function, "lower") else tw.jit(function)).lower(*types)
    return lowered.graph, lowered.donated


# ---- the suites of `tilewright bench` -------------------------------------------------------------------------------


def _bench(suite: str) -> Iterable[Program]:
    from tilewright.cli.bench_suites import load_cases

    for case in load_cases(suite, quick=False):
        yield Program(case.name, partial(_bench_case, case))


def _bench_case(case: Any) -> tuple[Graph, Donations]:
    inputs = case.make_inputs(np.random.default_rng(0))
    if hasattr(case.ours, "lower"):
        return _lowered(case.ours, [_type_of(array) for array in inputs])
    return _compiled_by_call(case.ours, inputs)


def _compiled_by_call(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Graph, Donations]:
    """The largest program that a call compiles, of a function that cannot be lowered, on this machine's CPU."""
    found: list[tuple[Graph, Donations]] = []

    def compile_and_keep(graph: Graph, target: str, donate: Donations = (), *others: Any) -> Any:
        found.append((graph, tuple(donate)))
        return compile_graph(graph, target, donate, *others)

    with patch.object(api_programs, "compile_graph", compile_and_keep):
        function(*inputs)
    return max(found, key=lambda program: sum(1 for _ in program[0].walk()))


def _type_of(array: Any) -> Any:
    array = np.asarray(array)
    return tw.ShapeDtype(array.shape, array.dtype)


# ---- kernels and examples -------------------------------------------------------------------------------------------


def _examples() -> Iterable[Program]:
    from tilewright.cli.loading import find_target, load_module

    for path in sorted(_EXAMPLES.rglob("*.py")):
        for name in getattr(load_module(path), "EXAMPLE_ARGUMENTS", {}):
            target = find_target(f"{path}::{name}", None)
            yield Program(f"{path.name}::{name}", partial(_lowered, target.function, target.positional))


def _sweep() -> Iterable[Program]:
    """The kernels of `bench cuda-static`, at its sizes and at those of the kernel sweep."""
    from tests.cuda.sweep import Case
    from tilewright.cli.bench_suites.cuda_static import forms

    for form in forms():
        trials = Case("", form.name, "").trials
        for sizes in dict.fromkeys((form.sizes, trials.tiles, trials.edges, trials.odd, trials.small)):
            yield Program(f"{form.name} {'x'.join(map(str, sizes))}", partial(_form, form, sizes))


def _form(form: Any, sizes: tuple[int, ...]) -> tuple[Graph, Donations]:
    return _lowered(form.function, form.types(*sizes))


# ---- imported programs ----------------------------------------------------------------------------------------------


def _onnx() -> Iterable[Program]:
    from tests.interop.onnx.cases import cases

    nodes = cases("node")
    for case in nodes[:: max(1, len(nodes) // _NODES_WANTED)]:
        yield Program(case.name, partial(_onnx_case, case))


def _onnx_case(case: Any) -> tuple[Graph, Donations]:
    from tests.interop.onnx.cases import first_inputs, model_of

    return _lowered(tw.from_onnx(model_of(case)), first_inputs(case))


def _stablehlo() -> Iterable[Program]:
    from tests.interop.stablehlo.table import all_cases

    table = list(all_cases())
    for case in table[:: max(1, len(table) // _STABLEHLO_WANTED)]:
        yield Program(case.name, partial(_stablehlo_case, case))


def _stablehlo_case(case: Any) -> tuple[Graph, Donations]:
    import jax

    from tests.interop.stablehlo.cases import generic_text

    return _lowered(tw.from_stablehlo(generic_text(case)), jax.tree.leaves(case.arguments))


# ---- random programs ------------------------------------------------------------------------------------------------


def _random() -> Iterable[Program]:
    for seed in range(_RANDOM_PROGRAMS):
        yield Program(f"seed {seed}", partial(_random_program, seed))


def _random_program(seed: int) -> tuple[Graph, Donations]:
    from tests.fuzz.generate import generate

    with np.errstate(all="ignore"):
        return generate(seed).graph, ()


GROUPS: dict[str, Callable[[], Iterable[Program]]] = {
    "gemm": partial(_bench, "gemm"),
    "ops": partial(_bench, "ops"),
    "attention": partial(_bench, "attention"),
    "models": partial(_bench, "models"),
    "examples": _examples,
    "sweep": _sweep,
    "onnx": _onnx,
    "stablehlo": _stablehlo,
    "random": _random,
}
