"""The suites of `tilewright bench`, by name; a suite is a module with `cases(quick)`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.cli.bench_suites.case import AnyCase

SUITES = (
    "gemm",
    "ops",
    "operators",
    "recurrences",
    "attention",
    "models",
    "layout",
    "schedules",
    "scaling",
    "cuda-static",
    "grid",
    "found",
)
PEERS = ("numpy", "torch", "onnxruntime", "jax", "triton")

# Suites with cases of their own where arrays are on a device, whose sizes fill a GPU.
_ON_DEVICE = ("gemm", "ops", "attention")


def load_cases(suite: str, quick: bool, on_device: bool = False) -> tuple[AnyCase, ...]:
    """The cases of a suite in `SUITES`, of a device's sizes if they run `on_device`; tiny ones if `quick`."""
    if on_device and suite in _ON_DEVICE:
        return importlib.import_module(f"{__name__}.on_device").cases(suite, quick)
    return importlib.import_module(f"{__name__}.{suite.replace('-', '_')}").cases(quick)
