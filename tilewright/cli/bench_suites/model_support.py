"""Shared code of the model cases: loading the example that holds a model, and writing ONNX graphs."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import tilewright
from tilewright.cli.bench_suites.case import Array
from tilewright.errors import ArgumentError

Weights = dict[str, Array]


def load_example(name: str) -> ModuleType:
    """The example `examples/NAME.py`, from the working directory or the folder that contains the package.

    Raises:
        ArgumentError: the file is in neither folder.
    """
    example = Path("examples") / f"{name}.py"
    folders = (Path.cwd(), Path(tilewright.__file__).parent.parent)
    path = next((folder / example for folder in folders if (folder / example).is_file()), None)
    spec = importlib.util.spec_from_file_location(f"tilewright_example_{name}", path) if path else None
    if spec is None or spec.loader is None:
        help = "run it in a copy of the source tree, which holds the examples"
        raise ArgumentError(f"the suite `models` needs {example}, which is not in {os.getcwd()}", help=help)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class OnnxGraph:
    """Nodes in order; each step gives the name of its first result."""

    def __init__(self, onnx: ModuleType) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}

    def constant(self, name: str, value: object) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def add(
        self, kind: str, *inputs: str, output: str = "", results: int = 1, domain: str = "", **attributes: Any
    ) -> str:
        name = output or f"t{len(self.nodes)}"
        names = [name, *(f"{name}_{n}" for n in range(1, results))]
        self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return name
