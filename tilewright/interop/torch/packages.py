"""The package `torch`, which is optional. Its objects are typed as `Any`: its own types leave too much open."""

from __future__ import annotations

import importlib
from typing import Any

from tilewright.errors import ResourceUnavailable


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        message = "PyTorch modules are compiled with the package `torch`, which is not installed"
        raise ResourceUnavailable(message, help="pip install 'tilewright[torch]'") from None


torch: Any = _imported("torch")
fx: Any = _imported("torch.fx")
fake_tensors: Any = _imported("torch._subclasses.fake_tensor")
sympy: Any = _imported("sympy")
symbolic_shapes: Any = _imported("torch.fx.experimental.symbolic_shapes")

# A node of an FX graph, an FX graph with its module, and a tensor.
FxNode = Any
GraphModule = Any
TorchTensor = Any
