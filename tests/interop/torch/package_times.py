"""Time models of `transformers` and `diffusers`, an LSTM's cell and a U-Net, compiled, against eager torch.

    python -m tests.interop.torch.package_times [--only Llama,VAE] [--steps forward,train] [--large] [--first inductor]

Weights are random. Needs `pip install transformers diffusers`. A forward pass under `no_grad`, and a step of training:
forward, backward and plain gradient descent. Calls of both are timed in turn, in blocks with a pause before each, since
torch's threads wait busily for a while after an operator and take cores from ours. Prints the medians of the two, their
ratio, and the geometric mean. `--large` widens the small models of `transformers_models` and `diffusers_models` eight
times (images and sequences too). `--first` times the first call, cold, of each backend of `torch.compile` instead.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import logging
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from tests.interop.torch import diffusers_models, transformers_models
from tests.interop.torch.package_models import Case, Inputs
from tilewright.interop.torch import backend

_PAUSE_S = 0.25
_BLOCK_S = 0.1
_WIDEN = 8
# Options that grow with the width of a model, with the length of its sequences, and half as much as these.
_WHOLE = ("hidden_size", "intermediate_size", "d_model", "d_kv", "d_ff", "n_embd", "head_dim", "projection_dim")
_WHOLE += ("encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings", "n_positions", "max_source_positions")
_WHOLE += ("max_target_positions",)
_HALF = ("attention_head_dim", "axes_dims_rope", "block_out_channels", "caption_projection_dim", "image_size")
_HALF += ("sample_size", "pos_embed_max_size")

_NETWORKS = "tests.interop.torch.networks"


def _cell(steps: int, batch: int, inputs: int, hidden: int) -> Case:
    name, sizes = f"LSTMCell-{steps}x{batch}-{inputs}-{hidden}", {"inputs": inputs, "hidden": hidden}
    arguments = (lambda: {"x": torch.randn(steps, batch, inputs)},)
    return Case(name, "UnrolledCell", "", sizes, arguments, package=_NETWORKS)


def _unet(width: int, channels: int, batch: int, pixels: int) -> Case:
    name, sizes = f"UNet-{width}x3-{batch}x{pixels}x{pixels}", {"channels": channels, "width": width, "levels": 3}
    arguments = (lambda: {"x": torch.randn(batch, channels, pixels, pixels)},)
    return Case(name, "UNet", "", sizes, arguments, package=_NETWORKS)


_PLAIN = (_cell(32, 16, 64, 128), _cell(40, 8, 64, 64), _unet(16, 3, 2, 64))


def _times(value: Any, factor: int) -> Any:
    return tuple(_times(v, factor) for v in value) if isinstance(value, tuple) else value * factor


def _widened(options: dict[str, Any], factor: int) -> dict[str, Any]:
    """The options of a model whose widths and greatest lengths are `factor` and a half of it times as large."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, dict):
            found[key] = _widened(value, factor)
        elif key in _WHOLE:
            found[key] = _times(value, factor)
        elif key in _HALF:
            found[key] = _times(value, factor // 2)
        else:
            found[key] = value
    return found


def _longer(inputs: Inputs, factor: int) -> Inputs:
    """Inputs whose sequences and images are `factor` times as long along each dim."""
    found: Inputs = {}
    for key, value in inputs.items():
        if key.endswith("input_ids"):
            found[key] = value.repeat(1, factor)
        elif key == "pixel_values" or (value.ndim == 4 and key in ("sample", "hidden_states")):
            found[key] = torch.randn(*value.shape[:2], *(factor * n // 2 for n in value.shape[2:]))
        elif key == "input_features":
            found[key] = torch.randn(*value.shape[:2], value.shape[2] * factor)
        else:
            found[key] = value
    return found


def _cases(large: bool) -> list[Case]:
    found: list[Case] = []
    for case in (*transformers_models.CASES, *diffusers_models.CASES, *_PLAIN):
        # One size of inputs for each case: the larger.
        inputs = case.inputs[-1]
        if not large:
            found.append(dataclasses.replace(case, inputs=(inputs,)))
            continue
        longer = functools.partial(lambda make: _longer(make(), _WIDEN), inputs)
        found.append(dataclasses.replace(case, options=_widened(case.options, _WIDEN), inputs=(longer,)))
    return found


def _loss(model: Any, inputs: Inputs) -> Any:
    values = model(**inputs)
    values = values.to_tuple() if hasattr(values, "to_tuple") else values
    leaves = torch.utils._pytree.tree_leaves(values)
    return next(t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point())


def _forward(model: Any, inputs: Inputs) -> Any:
    with torch.no_grad():
        return _loss(model, inputs)


def _train(model: Any, inputs: Inputs) -> Any:
    loss = _loss(model, inputs).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                # Steps so small that all calls do the same work on the same numbers.
                parameter.sub_(parameter.grad, alpha=1e-9)
                parameter.grad = None
    return loss.detach()


_RUN = {"forward": _forward, "train": _train}


def _compiled(model: Any, through: str) -> Any:
    chosen = backend if through == "tilewright" else through
    model.forward = torch.compile(model.forward, backend=chosen, dynamic=False)
    return model


def _block(call: Callable[[], Any]) -> float:
    """Seconds of a call: the median of those in a block after a pause and one call."""
    time.sleep(_PAUSE_S)
    call()
    times: list[float] = []
    end = time.perf_counter() + _BLOCK_S
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _measured(case: Case, step: str, blocks: int) -> tuple[float, float, float]:
    """Seconds of a call of ours and of eager torch, and of the first call of ours."""
    torch.compiler.reset()
    eager = case.build()
    ours = _compiled(copy.deepcopy(eager), "tilewright")
    torch.manual_seed(1)
    inputs = case.inputs[0]()
    start = time.perf_counter()
    found = _RUN[step](ours, inputs)
    first_s = time.perf_counter() - start
    torch.testing.assert_close(found, _RUN[step](eager, inputs), rtol=1e-3, atol=1e-3)
    rounds = [[_block(functools.partial(_RUN[step], m, inputs)) for m in (ours, eager)] for _ in range(blocks)]
    ours_s, eager_s = (statistics.median(column) for column in zip(*rounds, strict=True))
    return ours_s, eager_s, first_s


def _first(case: Case, step: str, through: str) -> float:
    torch.compiler.reset()
    model = _compiled(case.build(), through)
    torch.manual_seed(1)
    inputs = case.inputs[0]()
    start = time.perf_counter()
    _RUN[step](model, inputs)
    return time.perf_counter() - start


def main() -> None:
    """Time the cases that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of models, with commas")
    parser.add_argument("--steps", default="forward,train", help="steps, with commas")
    parser.add_argument("--large", action="store_true", help="models that are eight times as wide")
    parser.add_argument("--blocks", type=int, default=5, help="blocks of calls of each")
    parser.add_argument("--first", default="", help="backends whose first call to time instead, with commas")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    wanted = [name for name in given.only.split(",") if name]
    ratios: list[float] = []
    for case in _cases(given.large):
        if wanted and case.name not in wanted:
            continue
        for step in given.steps.split(","):
            if given.first:
                seconds = {name: _first(case, step, name) for name in given.first.split(",")}
                print(case.name, step, *(f"{name} {s:.2f} s" for name, s in seconds.items()), flush=True)
                continue
            ours_s, eager_s, first_s = _measured(case, step, given.blocks)
            ratios.append(eager_s / ours_s)
            print(
                f"{case.name} {step}: {ratios[-1]:.2f}, {ours_s * 1e6:.0f} us, eager {eager_s * 1e6:.0f} us, "
                f"first call {first_s:.1f} s",
                flush=True,
            )
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"{len(ratios)} steps, {sum(r < 1 for r in ratios)} below 1, geometric mean {mean:.2f}")


if __name__ == "__main__":
    main()
