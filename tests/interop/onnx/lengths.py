"""MiniLM as torch exports it for any batch and length, in programs for ranges of lengths, against ONNX Runtime.

    python -m tests.interop.onnx.lengths --step 1 --threads 2

Each length from 1 to 512 (or each `--step`-th) is run by both, the second call of each timed in turn and repeated. It
says how many programs there were, the largest difference, and the geometric mean of the ratios of times.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cli.bench_suites import models
from tilewright.cli.bench_suites.model_support import load_example

LONGEST = 512
TOLERANCE = 1e-3
REPEATS = 7
# Threads that wait for more work keep their cores busy for a while after a call: the next one would have to share them.
GAP_S = 0.1


def export(path: Path, weights: Any) -> None:
    """Write the model with sizes `batch` and `sequence` that a call binds."""
    import torch

    encode = models._torch_encoder(weights)

    class Encoder(torch.nn.Module):
        def forward(self, ids: Any, mask: Any) -> Any:
            return encode(torch, ids, mask)

    ids = torch.zeros((2, 16), dtype=torch.int64)
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("sequence", min=2, max=LONGEST)}
    arguments = (ids, torch.ones_like(ids))
    exported = torch.onnx.export(Encoder().eval(), arguments, dynamo=True, dynamic_shapes=(sizes, sizes), verbose=False)
    exported.save(str(path), external_data=False)


def times(ours: Callable[[], Any], other: Callable[[], Any]) -> tuple[float, float]:
    """Medians of calls in turn, in seconds."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for call, found in zip((ours, other), taken, strict=True):
            time.sleep(GAP_S)
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return statistics.median(taken[0]), statistics.median(taken[1])


def main() -> None:
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    example = load_example(models.EXAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minilm.onnx"
        export(path, example.load_weights(example.model_files()))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = given.threads
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        model = tw.from_onnx(path, dims={"batch": tw.Dim(1, 8), "sequence": tw.Dim(1, LONGEST)})
    names = [value.name for value in session.get_inputs()]
    generator = np.random.default_rng(0)
    worst, ratios, first_s = 0.0, [], []
    with tw.options(threads=given.threads):
        for length in range(1, LONGEST + 1, given.step):
            ids = generator.integers(0, 30522, (1, length))
            mask = np.ones((1, length), np.int64)
            known = len(model.programs)
            start = time.perf_counter()
            got = model(ids, mask)
            if len(model.programs) == known:
                first_s.append(time.perf_counter() - start)
            feeds = dict(zip(names, (ids, mask), strict=True))
            worst = max(worst, float(np.abs(got - session.run(None, feeds)[0]).max()))
            ours, other = times(partial(model, ids, mask), partial(session.run, None, feeds))
            ratios.append(other / ours)
            print(f"{length:4} tokens  {1e3 * ours:7.2f} ms  {1e3 * other:7.2f} ms  {ratios[-1]:.2f}", flush=True)
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    alone = sum(1 for program in model.programs if program.why_exact)
    print(f"{len(ratios)} lengths, {len(model.programs)} programs, {alone} of these for one length alone")
    print(
        f"largest difference {worst:.1e}; first call of a length without a new program {max(first_s, default=0):.2f} s"
    )
    print(f"times as quick as ONNX Runtime: geometric mean {mean:.2f}, least {min(ratios):.2f}")
    raise SystemExit(0 if worst < TOLERANCE else 1)


if __name__ == "__main__":
    main()
