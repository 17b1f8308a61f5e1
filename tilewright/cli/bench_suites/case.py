"""What a benchmark case is: inputs, our function, and the same function for each peer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

Array = np.ndarray[Any, Any]

# For each library, a function of its module and one, two or three arrays.
UnaryPeers: TypeAlias = dict[str, Callable[[Any, Any], Any]]
BinaryPeers: TypeAlias = dict[str, Callable[[Any, Any, Any], Any]]
TernaryPeers: TypeAlias = dict[str, Callable[[Any, Any, Any, Any], Any]]


@dataclass(frozen=True)
class Case:
    """One benchmark.

    `peers` maps a library of `PEERS` to a function of the library's module and its arrays; for onnxruntime, to a
    function of `onnx` and the NumPy inputs that gives a serialised model with inputs in order. `unsupported` says why a
    peer has no function. `flops` and `bytes` (arrays read and written once) are those of one call; `tolerance` bounds
    the largest difference over the largest element.
    """

    name: str
    make_inputs: Callable[[np.random.Generator], tuple[Array, ...]]
    ours: Callable[..., Any]
    peers: Mapping[str, Callable[..., Any]]
    flops: float
    bytes: float
    tolerance: float
    dtype: str = "f32"
    unsupported: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class CompilerCase:
    """Work of the compiler itself. `run` does it from the start and gives figures to show; `limit_s` is how long it may
    take."""

    name: str
    run: Callable[[], Mapping[str, float]]
    limit_s: float


def normal(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Array, ...]]:
    """Inputs of these shapes: f32 from the standard normal distribution."""
    return lambda generator: tuple(generator.standard_normal(shape, dtype=np.float32) for shape in shapes)


def onnx_model(
    onnx: Any, inputs: tuple[Array, ...], nodes: list[Any], constants: Mapping[str, Array], opset: int = 20
) -> bytes:
    """A serialised model whose inputs are `x0`, `x1`, ... and whose output is `y`, f32."""
    helper = onnx.helper
    sources = [
        helper.make_tensor_value_info(f"x{n}", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for n, array in enumerate(inputs)
    ]
    element = (
        onnx.TensorProto.FLOAT if inputs[0].dtype.kind != "f" else helper.np_dtype_to_tensor_dtype(inputs[0].dtype)
    )
    result = helper.make_tensor_value_info("y", element, None)
    kept = [onnx.numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "case", sources, [result], kept)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
