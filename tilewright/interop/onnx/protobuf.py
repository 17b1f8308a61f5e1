"""The `onnx` package, which is optional and imported on first use. Its messages are typed as `Proto`."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from tilewright.errors import ResourceUnavailable

Proto = Any


@functools.cache
def onnx() -> Any:
    """The package.

    Raises:
        ResourceUnavailable: it is not installed.
    """
    try:
        return importlib.import_module("onnx")
    except ImportError:
        message = "ONNX models are read with the package `onnx`, which is not installed"
        raise ResourceUnavailable(message, help="pip install 'tilewright[onnx]'") from None


@functools.cache
def definitions() -> Any:
    """The schemas of all operators, `onnx.defs`."""
    onnx()
    return importlib.import_module("onnx.defs")
