"""The suites of `tilewright bench`, by name; a suite is a module with `cases(quick)`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.cli.bench_suites.case import AnyCase

SUITES = ("gemm", "ops", "attention", "models", "layout", "schedules", "scaling", "cuda-static")
PEERS = ("numpy", "torch", "onnxruntime", "jax")


def load_cases(suite: str, quick: bool) -> tuple[AnyCase, ...]:
    """The cases of a suite in `SUITES`; tiny ones if `quick`."""
    return importlib.import_module(f"{__name__}.{suite.replace('-', '_')}").cases(quick)
