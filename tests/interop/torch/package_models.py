"""Small models of packages, of random weights, compiled, against eager torch: the steps, their bounds, the command.

Numbers are compared with the same model in float64: the error of each result and gradient is at most eight times that
of eager torch in float32, plus a few units in the last place of the largest one. Tokens are those of eager torch.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import importlib
import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tilewright
from tilewright import events
from tilewright.interop.torch import backend

# The steps of a model: forward passes through `torch.compile` and `from_torch`, greedy generation with a cache that
# grows and with a static one, and a step of gradient descent.
STEPS = ("forward", "export", "generate", "static", "train")
_ALLOWED_FACTOR = 8.0
_FLOOR = 16 * torch.finfo(torch.float32).eps
_NEW_TOKENS = 8

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A model by its classes and configuration, the inputs of its forward passes, and which steps it has."""

    name: str
    model: str
    config: str
    options: dict[str, Any]
    inputs: Sequence[Callable[[], Inputs]]
    steps: tuple[str, ...] = ("forward", "export", "train")
    package: str = "transformers"

    def build(self) -> Any:
        """The model, of the same weights each time."""
        torch.manual_seed(0)
        package = importlib.import_module(self.package)
        kind = getattr(package, self.model)
        model = kind(getattr(package, self.config)(**self.options)) if self.config else kind(**self.options)
        return model.eval()


@dataclass(frozen=True)
class Outcome:
    """Whether a step is "equal", "different" or "fails", its largest error and that of eager torch, and details."""

    state: str
    error: float = 0.0
    eager_error: float = 0.0
    details: str = ""


def _tensors(results: Any) -> list[Any]:
    values = results.to_tuple() if hasattr(results, "to_tuple") else results
    leaves = torch.utils._pytree.tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def _forward(model: Any, given: Sequence[Inputs]) -> list[Any]:
    with torch.no_grad():
        return [tensor for inputs in given for tensor in _tensors(model(**inputs))]


def _generate(model: Any, given: Sequence[Inputs], **options: Any) -> list[Any]:
    """The tokens after prompts of two lengths."""
    mixin = importlib.import_module("transformers").GenerationMixin
    counts = {"max_new_tokens": _NEW_TOKENS, "min_new_tokens": _NEW_TOKENS, "do_sample": False}
    found: list[Any] = []
    with torch.no_grad():
        for length in (5, 3):
            # A prompt is cut where there is one: audio is not.
            cut = {k: v[:, :length] if k.endswith("_ids") else v for k, v in given[0].items()}
            found.append(mixin.generate(model, **cut, **counts, **options))
    return found


def _static(model: Any, given: Sequence[Inputs]) -> list[Any]:
    return _generate(model, given, cache_implementation="static")


def _train(model: Any, given: Sequence[Inputs]) -> list[Any]:
    """The gradients, and the parameters after a step.

    Results that nothing reads have no gradient in eager torch and zeros in graphs of its compiler (with any backend).
    """
    parameters = [*model.parameters()]
    for parameter in parameters:
        parameter.grad = None
    _tensors(model(**given[-1]))[0].square().mean().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)
    return gradients + [p.detach().clone() for p in parameters]


class _Exported:
    """A model through `from_torch`, exported for each of its inputs."""

    def __init__(self, model: Any, target: str | None) -> None:
        self._model = model
        self._target = target

    def __call__(self, **inputs: Any) -> Any:
        return tilewright.from_torch(self._model, target=self._target, **inputs)(**inputs)


_RUN = {"forward": _forward, "export": _forward, "generate": _generate, "static": _static, "train": _train}


def _compiled(model: Any, step: str, through: str, target: str | None) -> Any:
    if step == "export":
        return _Exported(model, target)
    # Inputs of one size after the other are graphs of symbols in generation; others are compiled one by one.
    dynamic = None if step in ("generate", "static") else False
    chosen = functools.partial(backend, options={"target": target}) if through == "tilewright" else through
    model.forward = torch.compile(model.forward, backend=chosen, dynamic=dynamic)
    return model


def _as_double(given: Sequence[Inputs]) -> list[Inputs]:
    return [{k: v.double() if v.is_floating_point() else v for k, v in inputs.items()} for inputs in given]


def errors_of(found: Sequence[Any], eager: Sequence[Any], exact: Sequence[Any]) -> Outcome:
    """How far results and those of eager torch are from exact ones, as parts of the largest exact element."""
    if [t.shape for t in found] != [t.shape for t in exact]:
        return Outcome("different", details="shapes")
    largest = max((t.abs().max().item() for t in exact if t.numel()), default=0.0) or 1.0
    state, worst, worst_eager = "equal", 0.0, 0.0
    for ours, theirs, wide in zip(found, eager, exact, strict=True):
        if not wide.numel():
            continue
        error, allowed = ((t.double() - wide.double()).abs().max().item() / largest for t in (ours, theirs))
        if not error <= _ALLOWED_FACTOR * allowed + _FLOOR:
            state = "different"
        worst, worst_eager = max(worst, error), max(worst_eager, allowed)
    return Outcome(state, worst, worst_eager)


def outcome(case: Case, step: str, through: str = "tilewright", target: str | None = None) -> Outcome:
    """Compare a step of a model, compiled by a backend, with that step in eager torch."""
    torch.compiler.reset()
    eager = case.build()
    wide = copy.deepcopy(eager).double()
    if hasattr(wide, "set_experts_implementation"):
        wide.set_experts_implementation("eager")  # products of groups of rows have no float64
    torch.manual_seed(1)
    given = [inputs() for inputs in case.inputs]
    run = _RUN[step]
    try:
        expected = run(copy.deepcopy(eager), copy.deepcopy(given))
    except (ValueError, NotImplementedError) as error:
        return Outcome("refused by its package", details=str(error).strip()[:200])
    with events.capture() as seen:
        try:
            found = run(_compiled(copy.deepcopy(eager), step, through, target), copy.deepcopy(given))
        except Exception as error:  # any is a finding
            return Outcome("fails", details=f"{type(error).__name__}: {str(error).strip()[:300]}")
    fallbacks: collections.Counter[str] = collections.Counter()
    for record in seen:
        if record["kind"] == "torch.fallback":
            fallbacks.update(record["operators"])  # pyright: ignore[reportArgumentType]  names and counts
    details = ", ".join(f"{name} x {count}" for name, count in fallbacks.items())
    if step in ("generate", "static"):
        return Outcome("equal" if all(map(torch.equal, found, expected)) else "different", details=details)
    measured = errors_of(found, expected, run(wide, _as_double(given)))
    return Outcome(measured.state, measured.error, measured.eager_error, measured.details or details)


def command(cases: Sequence[Case], description: str | None) -> None:
    """Run the steps of the cases that the command line names, and print the outcome of each and totals."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of models, with commas")
    parser.add_argument("--steps", default=",".join(STEPS), help="steps, with commas")
    parser.add_argument("--backend", default="tilewright", help="a backend of torch.compile to compare instead")
    parser.add_argument("--target", help='a target of tilewright; "interp" is quick, because nothing is compiled')
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    package = cases[0].package
    if importlib.util.find_spec(package) is None:
        sys.exit(f"this command needs the package `{package}`: pip install {package}")
    wanted = [name for name in given.only.split(",") if name]
    counts: collections.Counter[str] = collections.Counter()
    for case in cases:
        if wanted and case.name not in wanted:
            continue
        for step in given.steps.split(","):
            if step not in case.steps:
                continue
            start = time.perf_counter()
            found = outcome(case, step, given.backend, given.target)
            counts[found.state] += 1
            errors = f", error {found.error:.1e} (eager {found.eager_error:.1e})" if found.error else ""
            seconds = time.perf_counter() - start
            print(f"{case.model} {step}: {found.state}{errors}, {seconds:.0f} s {found.details}", flush=True)
    print(dict(counts))
    raise SystemExit(bool(counts["different"] + counts["fails"]))
