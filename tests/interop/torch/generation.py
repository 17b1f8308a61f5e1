"""Generate text with a compiled Llama of random weights, by prompts and answers of many lengths.

    python -m tests.interop.torch.generation [--prompts 100] [--backends tilewright,inductor] [--width 256] [--layers 2]

Needs `pip install transformers`. Backends alternate, prompt by prompt, with eager torch, whose tokens each must give.
Prints the time of each prompt, what was compiled, and totals from the second prompt on. The last prompt is generated
with a static cache too.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import sys
import time
from typing import Any

import torch

from tilewright import events
from tilewright.interop.torch import backend

_VOCABULARY = 1000


def model_of(width: int, layers: int) -> Any:
    """A Llama of random weights."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]  optional
    except ImportError:
        sys.exit("this command needs the package `transformers`: pip install transformers")
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval()


def generated(model: Any, tokens: Any, count: int, **options: Any) -> tuple[Any, float]:
    """The tokens that follow, of which there are `count`, and the seconds that took."""
    start = time.perf_counter()
    found = model.generate(tokens, max_new_tokens=count, min_new_tokens=count, do_sample=False, **options)
    return found, time.perf_counter() - start


def main() -> None:
    """The command: see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--backends", default="tilewright,inductor")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    given = parser.parse_args()
    torch.manual_seed(0)
    rng = random.Random(1)
    eager = model_of(given.width, given.layers)
    models = {"eager": eager}
    for name in given.backends.split(","):
        models[name] = copy.deepcopy(eager)
        models[name].forward = torch.compile(models[name].forward, backend=backend if name == "tilewright" else name)
    totals, wrong = dict.fromkeys(models, 0.0), 0
    tokens = torch.randint(0, _VOCABULARY, (1, 128))
    with torch.no_grad(), events.capture() as seen:
        for prompt in range(given.prompts):
            length, count = rng.randint(4, 128), rng.randint(4, 64)
            results = {name: generated(model, tokens[:, :length], count) for name, model in models.items()}
            wrong += sum(not torch.equal(found, results["eager"][0]) for found, _ in results.values())
            seconds = {name: round(taken, 3) for name, (_, taken) in results.items()}
            print(f"{length} + {count} tokens: {seconds}", flush=True)
            for name, (_, taken) in results.items():
                totals[name] += taken if prompt else 0
        compiles = sum(record["kind"] == "compile" for record in seen)
        static = [generated(model, tokens[:, :9], 12, cache_implementation="static")[0] for model in models.values()]
    wrong += sum(not torch.equal(static[0], found) for found in static)
    for record in seen:
        if record["kind"] in ("torch.sizes", "torch.specialise"):
            print({key: record[key] for key in ("kind", "ranges", "why_not", "sizes") if key in record})
    print(f"{compiles} programs, {wrong} wrong; load {os.getloadavg()[0]:.1f}")
    print(f"from the second prompt on: { ({name: round(total, 2) for name, total in totals.items()}) }")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
