"""Memory-bound operations over a matrix: normalisations, activations, reductions, a transpose and a scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewright as tw
from tilewright.cli.bench_suites.case import Array, BinaryPeers, Case, TernaryPeers, UnaryPeers, normal, onnx_model

_EPSILON = 1e-5
_SQRT_HALF = 0.7071067811865476

# Abramowitz and Stegun 7.1.26: erf to 1.5e-7, in the arithmetic that a NumPy user has.
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERF_SCALE = 0.3275911


def cases(quick: bool) -> tuple[Case, ...]:
    rows, columns = (16, 48) if quick else (4096, 1024)
    size = rows * columns
    matrix, vector = (rows, columns), (columns,)

    def case(
        name: str, ours: Any, peers: dict[str, Any], flops: int, out: int = size, more: tuple[Any, ...] = ()
    ) -> Case:
        shapes = (matrix, *more)
        return Case(
            name=f"{name} {rows}x{columns}",
            make_inputs=normal(*shapes),
            ours=ours,
            peers=peers,
            flops=float(flops * size),
            bytes=4.0 * (size + out + sum(_product(shape) for shape in more)),
            tolerance=1e-5,
        )

    return (
        case("softmax", _softmax, _SOFTMAX, 4),
        case("layer norm", _layer_norm, _LAYER_NORM, 7, more=(vector, vector)),
        case("rms norm", _rms_norm, _RMS_NORM, 4, more=(vector,)),
        case("gelu", _gelu, _GELU, 4),
        case("elementwise chain", _chain, _CHAIN, 6, more=(matrix,)),
        case("row sum", _row_sum, _ROW_SUM, 1, out=rows),
        case("column sum", _column_sum, _COLUMN_SUM, 1, out=columns),
        case("transpose", _transpose, _TRANSPOSE, 0),
        case("cumulative sum", _scan, _SCAN, 1),
    )


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


@tw.jit
def _softmax(x: Any) -> Any:
    return tw.nn.softmax(x, axis=-1)


@tw.jit
def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return tw.nn.layer_norm(x, weight, bias, eps=_EPSILON)


@tw.jit
def _rms_norm(x: Any, weight: Any) -> Any:
    return tw.nn.rms_norm(x, weight, eps=_EPSILON)


@tw.jit
def _gelu(x: Any) -> Any:
    return tw.nn.gelu(x)


@tw.jit
def _chain(x: Any, y: Any) -> Any:
    return tw.tanh(x * y + 0.5) * x - y * 0.25


@tw.jit
def _row_sum(x: Any) -> Any:
    return tw.sum(x, axis=1)


@tw.jit
def _column_sum(x: Any) -> Any:
    return tw.sum(x, axis=0)


@tw.jit
def _transpose(x: Any) -> Any:
    return tw.matrix_transpose(x)


@tw.jit
def _scan(x: Any) -> Any:
    return tw.cumulative_sum(x, axis=1)


def _softmax_by_parts(numpy: Any, x: Any) -> Any:
    weights = numpy.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _layer_norm_by_parts(numpy: Any, x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / numpy.sqrt((centred * centred).mean(-1, keepdims=True) + _EPSILON) * weight + bias


def _rms_norm_by_parts(numpy: Any, x: Any, weight: Any) -> Any:
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + _EPSILON) * weight


def numpy_erf(numpy: Any, x: Array) -> Array:
    """The error function of f32, to 2e-7 absolute."""
    t = 1 / (1 + numpy.float32(_ERF_SCALE) * numpy.abs(x))
    total = numpy.float32(_ERF[0])
    for coefficient in _ERF[1:]:
        total = total * t + numpy.float32(coefficient)
    return numpy.sign(x) * (1 - total * t * numpy.exp(-x * x))


def numpy_gelu(numpy: Any, x: Array) -> Array:
    """GELU of f32 by the error function."""
    return x * numpy.float32(0.5) * (1 + numpy_erf(numpy, x * numpy.float32(_SQRT_HALF)))


def _graph(*steps: tuple[str, list[str], str, dict[str, Any]], opset: int = 20) -> Callable[..., bytes]:
    """A model of nodes `(operator, inputs, output, attributes)`."""

    def build(onnx: Any, *inputs: Array) -> bytes:
        import numpy as np

        nodes = [onnx.helper.make_node(kind, read, [written], **more) for kind, read, written, more in steps]
        constants = {
            "half": np.float32(0.5),
            "quarter": np.float32(0.25),
            "rows": np.array([0], np.int64),
            "columns": np.array([1], np.int64),
            "last": np.int64(1),
        }
        used = {name for _, read, _, _ in steps for name in read}
        return onnx_model(onnx, inputs, nodes, {k: np.asarray(v) for k, v in constants.items() if k in used}, opset)

    return build


_SOFTMAX: UnaryPeers = {
    "numpy": _softmax_by_parts,
    "torch": lambda torch, x: torch.softmax(x, -1),
    "jax": lambda jax, x: jax.nn.softmax(x, -1),
    "onnxruntime": _graph(("Softmax", ["x0"], "y", {"axis": -1})),
}
_LAYER_NORM: TernaryPeers = {
    "numpy": _layer_norm_by_parts,
    "torch": lambda torch, x, w, b: torch.nn.functional.layer_norm(x, w.shape, w, b, _EPSILON),
    "jax": lambda jax, x, w, b: _layer_norm_by_parts(jax.numpy, x, w, b),
    "onnxruntime": _graph(("LayerNormalization", ["x0", "x1", "x2"], "y", {"axis": -1, "epsilon": _EPSILON})),
}
_RMS_NORM: BinaryPeers = {
    "numpy": _rms_norm_by_parts,
    "torch": lambda torch, x, w: torch.nn.functional.rms_norm(x, w.shape, w, _EPSILON),
    "jax": lambda jax, x, w: _rms_norm_by_parts(jax.numpy, x, w),
    "onnxruntime": _graph(("SimplifiedLayerNormalization", ["x0", "x1"], "y", {"axis": -1, "epsilon": _EPSILON})),
}
_GELU: UnaryPeers = {
    "numpy": numpy_gelu,
    "torch": lambda torch, x: torch.nn.functional.gelu(x),
    "jax": lambda jax, x: jax.nn.gelu(x, approximate=False),
    "onnxruntime": _graph(("Gelu", ["x0"], "y", {})),
}
_CHAIN: BinaryPeers = {
    "numpy": lambda numpy, x, y: numpy.tanh(x * y + 0.5) * x - y * 0.25,
    "torch": lambda torch, x, y: torch.tanh(x * y + 0.5) * x - y * 0.25,
    "jax": lambda jax, x, y: jax.numpy.tanh(x * y + 0.5) * x - y * 0.25,
    "onnxruntime": _graph(
        ("Mul", ["x0", "x1"], "a", {}),
        ("Add", ["a", "half"], "b", {}),
        ("Tanh", ["b"], "c", {}),
        ("Mul", ["c", "x0"], "d", {}),
        ("Mul", ["x1", "quarter"], "e", {}),
        ("Sub", ["d", "e"], "y", {}),
    ),
}
_ROW_SUM: UnaryPeers = {
    "numpy": lambda numpy, x: x.sum(1),
    "torch": lambda torch, x: x.sum(1),
    "jax": lambda jax, x: x.sum(1),
    "onnxruntime": _graph(("ReduceSum", ["x0", "columns"], "y", {"keepdims": 0})),
}
_COLUMN_SUM: UnaryPeers = {
    "numpy": lambda numpy, x: x.sum(0),
    "torch": lambda torch, x: x.sum(0),
    "jax": lambda jax, x: x.sum(0),
    "onnxruntime": _graph(("ReduceSum", ["x0", "rows"], "y", {"keepdims": 0})),
}
_TRANSPOSE: UnaryPeers = {
    # The others' transposes are views until they are written.
    "numpy": lambda numpy, x: numpy.ascontiguousarray(x.T),
    "torch": lambda torch, x: x.T.contiguous(),
    "jax": lambda jax, x: x.T,
    "onnxruntime": _graph(("Transpose", ["x0"], "y", {"perm": [1, 0]})),
}
_SCAN: UnaryPeers = {
    "numpy": lambda numpy, x: x.cumsum(1),
    "torch": lambda torch, x: x.cumsum(1),
    "jax": lambda jax, x: x.cumsum(1),
    "onnxruntime": _graph(("CumSum", ["x0", "last"], "y", {})),
}
