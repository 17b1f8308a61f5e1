"""One sentence encoder for texts of 1 to 512 tokens: all-MiniLM-L6-v2 in a few programs, whatever length comes.

    tilewright run examples/04_any_length.py
    tilewright run examples/04_any_length.py 7 100 333
    tilewright run examples/04_any_length.py all

Without arguments some lengths are encoded; `all` encodes each from 1 to 512. Every result is compared with that of a
program compiled for just its length. The weights are those of the first example.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import tilewright as tw

LENGTHS = [1, 5, 16, 33, 64, 100, 127, 128, 200, 333, 511, 512]
VOCABULARY = 30522


def first_example() -> ModuleType:
    """The example that defines the model."""
    path = Path(__file__).with_name("01_sentence_embeddings.py")
    spec = importlib.util.spec_from_file_location("sentence_embeddings", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def any_length(encode: Callable[..., Any]) -> Callable[..., Any]:
    """The encoder as programs that serve many lengths each: `.programs` lists them."""
    tokens = tw.Dim(1, 512, name="tokens")

    @tw.jit(dims={"ids": (None, tokens), "mask": (None, tokens)})
    def encode_any(ids, mask):
        return encode(ids, mask)

    return encode_any


def median_ms(function: Callable[..., Any], *arguments: np.ndarray) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def main(arguments: list[str] | None = None) -> float:
    """Encode random tokens of each length; the largest difference to programs for just these lengths."""
    chosen = sys.argv[1:] if arguments is None else arguments
    lengths = [*range(1, 513)] if chosen == ["all"] else [int(n) for n in chosen] or LENGTHS
    example = first_example()
    encode = example.make_encoder(example.load_weights(example.model_files()))
    sized = any_length(encode)
    generator = np.random.default_rng(0)
    worst = 0.0
    print("tokens  first call  then      compiled for this length")
    for length in lengths:
        ids, mask = generator.integers(0, VOCABULARY, (1, length)), np.ones((1, length), np.int64)
        before = len(sized.programs)
        start = time.perf_counter()
        vector = sized(ids, mask)
        first_s = time.perf_counter() - start
        own = encode.lower(ids, mask).compile()
        worst = max(worst, float(np.abs(vector - own(ids, mask)).max()))
        made = "  a new program" if len(sized.programs) > before else ""
        then, alone = median_ms(sized, ids, mask), median_ms(own, ids, mask)
        print(f"{length:6}  {first_s:8.2f} s  {then:5.1f} ms  {alone:5.1f} ms{made}")
    exact = [program for program in sized.programs if program.why_exact]
    print(f"{len(lengths)} lengths, {len(sized.programs)} programs, {len(exact)} of one length, difference {worst:.1e}")
    return worst


if __name__ == "__main__":
    main()
