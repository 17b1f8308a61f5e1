"""Forward passes and training steps of networks through the backend, against eager torch in f32 and f64.

    python -m tests.interop.torch.models [--real] [--peer BACKEND] [NAME ...]

prints how far results are from those in f64, as a part of the largest of them, for the backend and for eager f32, and
the times of both. `--real` takes the real sizes; `--peer` adds the times of another backend, such as inductor.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.interop.torch.networks import CASES, Case
from tilewright.interop.torch import backend


@dataclass(frozen=True)
class Step:
    """What one training step gives: the loss, gradients, and the parameters and buffers after it, by name."""

    loss: Tensor
    gradients: dict[str, Tensor]
    state: dict[str, Tensor]


def training_step(case: Case, model: nn.Module, run: Callable[..., Tensor], x: Any) -> Step:
    """One step of gradient descent on `model`, whose forward pass is `run`."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = case.loss(run(x))
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    optimiser.step()
    return Step(loss.detach(), gradients, dict(model.state_dict()))


def as_double(x: Any) -> Any:
    """Floats as f64; integers as they are."""
    return x.double() if x.is_floating_point() else x


def distance(found: Tensor, exact: Tensor) -> float:
    """The largest error as a part of the largest element."""
    scale = max(exact.abs().max().item(), 1e-30) if exact.numel() else 1.0
    return ((found.double() - exact.double()).abs().max().item() / scale) if exact.numel() else 0.0


def _seconds(run: Callable[[], Any], repeats: int = 5) -> float:
    run()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


def report(case: Case, is_real: bool, peer: str | None) -> str:
    """The figures of one network."""
    torch.manual_seed(0)
    model = case.real() if is_real else case.small()
    x = case.inputs(2, is_real)
    torch.compiler.reset()
    start = time.perf_counter()
    compiled = torch.compile(model, backend=backend)
    runs = {"ours": compiled, "eager": model}
    if peer is not None:
        runs[peer] = torch.compile(copy.deepcopy(model), backend=peer)
    lines: list[str] = []
    with torch.no_grad():
        model.eval()
        exact = copy.deepcopy(model).double()(as_double(x))
        found = compiled(x)
        first = time.perf_counter() - start
        errors = f"{distance(found, exact):.1e} (eager {distance(model(x), exact):.1e})"
        times = ", ".join(f"{name} {_seconds(lambda run=run: run(x)) * 1e3:.2f} ms" for name, run in runs.items())
        lines.append(f"{case.name} forward: error {errors}; first call {first:.1f} s; {times}")
    model.train()
    steps: dict[str, Step] = {}
    for name, wide in (("exact", True), ("eager", False), ("ours", False)):
        copied = copy.deepcopy(model).double() if wide else copy.deepcopy(model)
        run = torch.compile(copied, backend=backend) if name == "ours" else copied
        start = time.perf_counter()
        steps[name] = training_step(case, copied, run, as_double(x) if wide else x)
        first = time.perf_counter() - start
    worst = {
        name: max(distance(steps[name].gradients[n], g) for n, g in steps["exact"].gradients.items())
        for name in ("ours", "eager")
    }

    def both(run: Callable[..., Tensor]) -> None:
        case.loss(run(x)).backward()

    times = ", ".join(f"{name} {_seconds(lambda run=run: both(run)) * 1e3:.2f} ms" for name, run in runs.items())
    errors = f"{worst['ours']:.1e} (eager {worst['eager']:.1e})"
    lines.append(f"{case.name} training: error of gradients {errors}; first call {first:.1f} s; {times}")
    return "\n".join(lines)


def main() -> None:
    """The command: see the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--peer")
    given = parser.parse_args()
    for case in CASES:
        if not given.names or case.name in given.names:
            print(report(case, given.real, given.peer), flush=True)


if __name__ == "__main__":
    main()
