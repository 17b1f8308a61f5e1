"""Malformed models give errors; `python -m tests.interop.onnx.damage` tries many more."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("onnx")

from tests.interop.onnx.damage import damaged, outcome, subjects


def test_damaged_models_give_errors_or_programs() -> None:
    models = subjects()
    slow: list[str] = []
    for seed in range(300):
        random_ = random.Random(seed)
        name, data, inputs = random_.choice(models)
        with np.errstate(all="ignore"):
            result = outcome(damaged(data, random_), inputs)
        slow += [f"seed {seed}, {name}: {result}"] if result.startswith("slow") else []
    assert not slow
