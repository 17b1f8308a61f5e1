"""Memory-bound operations: normalisations, activations, reductions, transposes, scans, a gather and a top-k."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cli.bench_suites.case import (
    Array,
    BinaryPeers,
    Case,
    TernaryPeers,
    UnaryPeers,
    error_bound,
    exact_erf,
    normal,
    onnx_model,
)

EPSILON = 1e-5
_SQRT_HALF = 0.7071067811865476

# Abramowitz and Stegun 7.1.26: erf to 1.5e-7, in the arithmetic that a NumPy user has.
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERF_SCALE = 0.3275911


def cases(quick: bool) -> tuple[Case, ...]:
    large, small = ((16, 48), (8, 24)) if quick else ((4096, 1024), (64, 256))
    heads = (2, 6, 3, 5) if quick else (64, 32, 128, 32)
    vector, table, selected = (256, (40, 8), (64, 4)) if quick else (4194304, (32768, 1024), (65536, 64))
    return (
        *on_matrix(*large),
        *on_matrix(*small),
        transposition(large, (1, 0), ""),
        transposition(heads, (0, 2, 1, 3), " by (0,2,1,3)"),
        running_sum(large, 1, " along rows"),
        running_sum(large, 0, " along columns"),
        running_sum((vector,), 0, ""),
        gathering(table, large[0]),
        _top_k(*selected),
    )


def on_matrix(rows: int, columns: int) -> tuple[Case, ...]:
    """The operations on f32 matrices of one shape."""
    size = rows * columns
    matrix, vector = (rows, columns), (columns,)

    def case(
        name: str,
        ours: Any,
        peers: dict[str, Any],
        flops: int,
        *,
        operations: int,
        terms: int = 1,
        out: int = size,
        more: tuple[tuple[int, ...], ...] = (),
        reference: Callable[..., object] | None = None,
    ) -> Case:
        return Case(
            name=f"{name} {rows}x{columns}",
            make_inputs=normal(matrix, *more),
            ours=ours,
            peers=peers,
            flops=float(flops * size),
            bytes=4.0 * (size + out + sum(math.prod(shape) for shape in more)),
            tolerance=error_bound(operations, terms),
            reference=reference,
        )

    return (
        case("softmax", _softmax, _SOFTMAX, 4, operations=8, terms=columns),
        case("layer norm", _layer_norm, _LAYER_NORM, 7, operations=8, terms=columns, more=(vector, vector)),
        case("rms norm", _rms_norm, _RMS_NORM, 4, operations=6, terms=columns, more=(vector,)),
        case("gelu", _gelu, _GELU, 4, operations=8, reference=_exact_gelu),
        case("chain of 8", _chain, _CHAIN, 8, operations=11, more=(matrix,)),
        case("row sum", _row_sum, _ROW_SUM, 1, operations=0, terms=columns, out=rows),
        case("column sum", _column_sum, _COLUMN_SUM, 1, operations=0, terms=rows, out=columns),
    )


@tw.jit
def _softmax(x: tw.Array) -> tw.Array:
    return tw.nn.softmax(x, axis=-1)


@tw.jit
def _layer_norm(x: tw.Array, weight: tw.Array, bias: tw.Array) -> tw.Array:
    return tw.nn.layer_norm(x, weight, bias, eps=EPSILON)


@tw.jit
def _rms_norm(x: tw.Array, weight: tw.Array) -> tw.Array:
    return tw.nn.rms_norm(x, weight, eps=EPSILON)


@tw.jit
def _gelu(x: tw.Array) -> tw.Array:
    return tw.nn.gelu(x)


@tw.jit
def _chain(x: tw.Array, y: tw.Array) -> tw.Array:
    return tw.maximum(tw.tanh(x * y + 0.5) * x - y * 0.25, -1.0) + x


@tw.jit
def _row_sum(x: tw.Array) -> tw.Array:
    return tw.sum(x, axis=1)


@tw.jit
def _column_sum(x: tw.Array) -> tw.Array:
    return tw.sum(x, axis=0)


def _softmax_by_parts(numpy: ModuleType, x: Any) -> Any:
    weights = numpy.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _layer_norm_by_parts(numpy: ModuleType, x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / numpy.sqrt((centred * centred).mean(-1, keepdims=True) + EPSILON) * weight + bias


def _rms_norm_by_parts(numpy: ModuleType, x: Any, weight: Any) -> Any:
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight


def numpy_erf(numpy: ModuleType, x: Array) -> Array:
    """The error function of f32, to 2e-7 absolute."""
    t = 1 / (1 + numpy.float32(_ERF_SCALE) * numpy.abs(x))
    total = numpy.float32(_ERF[0])
    for coefficient in _ERF[1:]:
        total = total * t + numpy.float32(coefficient)
    return numpy.sign(x) * (1 - total * t * numpy.exp(-x * x))


def numpy_gelu(numpy: ModuleType, x: Array) -> Array:
    """GELU of f32 by the error function."""
    return x * numpy.float32(0.5) * (1 + numpy_erf(numpy, x * numpy.float32(_SQRT_HALF)))


def _exact_gelu(numpy: ModuleType, x: Array) -> Array:
    return x * 0.5 * (1 + exact_erf(x * _SQRT_HALF))


def _graph(*steps: tuple[str, list[str], str, Mapping[str, object]], **constants: object) -> Callable[..., bytes]:
    """A model of nodes `(operator, inputs, outputs with spaces between, attributes)` and constants by name."""

    def build(onnx: ModuleType, *inputs: Array) -> bytes:
        nodes = [onnx.helper.make_node(kind, read, written.split(), **more) for kind, read, written, more in steps]
        return onnx_model(onnx, inputs, nodes, {name: np.asarray(value) for name, value in constants.items()})

    return build


_SOFTMAX: UnaryPeers = {
    "numpy": _softmax_by_parts,
    "torch": lambda torch, x: torch.softmax(x, -1),
    "jax": lambda jax, x: jax.nn.softmax(x, -1),
    "onnxruntime": _graph(("Softmax", ["x0"], "y", {"axis": -1})),
}
_LAYER_NORM: TernaryPeers = {
    "numpy": _layer_norm_by_parts,
    "torch": lambda torch, x, w, b: torch.nn.functional.layer_norm(x, w.shape, w, b, EPSILON),
    "jax": lambda jax, x, w, b: _layer_norm_by_parts(jax.numpy, x, w, b),
    "onnxruntime": _graph(("LayerNormalization", ["x0", "x1", "x2"], "y", {"axis": -1, "epsilon": EPSILON})),
}
_RMS_NORM: BinaryPeers = {
    "numpy": _rms_norm_by_parts,
    "torch": lambda torch, x, w: torch.nn.functional.rms_norm(x, w.shape, w, EPSILON),
    "jax": lambda jax, x, w: _rms_norm_by_parts(jax.numpy, x, w),
    "onnxruntime": _graph(("SimplifiedLayerNormalization", ["x0", "x1"], "y", {"axis": -1, "epsilon": EPSILON})),
}
_GELU: UnaryPeers = {
    "numpy": numpy_gelu,
    "torch": lambda torch, x: torch.nn.functional.gelu(x),
    "jax": lambda jax, x: jax.nn.gelu(x, approximate=False),
    "onnxruntime": _graph(("Gelu", ["x0"], "y", {})),
}
_CHAIN: BinaryPeers = {
    "numpy": lambda numpy, x, y: numpy.maximum(numpy.tanh(x * y + 0.5) * x - y * 0.25, -1.0) + x,
    "torch": lambda torch, x, y: (torch.tanh(x * y + 0.5) * x - y * 0.25).clamp(min=-1.0) + x,
    "jax": lambda jax, x, y: jax.numpy.maximum(jax.numpy.tanh(x * y + 0.5) * x - y * 0.25, -1.0) + x,
    "onnxruntime": _graph(
        ("Mul", ["x0", "x1"], "a", {}),
        ("Add", ["a", "half"], "b", {}),
        ("Tanh", ["b"], "c", {}),
        ("Mul", ["c", "x0"], "d", {}),
        ("Mul", ["x1", "quarter"], "e", {}),
        ("Sub", ["d", "e"], "f", {}),
        ("Max", ["f", "least"], "g", {}),
        ("Add", ["g", "x0"], "y", {}),
        half=np.float32(0.5),
        quarter=np.float32(0.25),
        least=np.float32(-1.0),
    ),
}
_ROW_SUM: UnaryPeers = {
    "numpy": lambda numpy, x: x.sum(1),
    "torch": lambda torch, x: x.sum(1),
    "jax": lambda jax, x: x.sum(1),
    "onnxruntime": _graph(("ReduceSum", ["x0", "axes"], "y", {"keepdims": 0}), axes=np.array([1])),
}
_COLUMN_SUM: UnaryPeers = {
    "numpy": lambda numpy, x: x.sum(0),
    "torch": lambda torch, x: x.sum(0),
    "jax": lambda jax, x: x.sum(0),
    "onnxruntime": _graph(("ReduceSum", ["x0", "axes"], "y", {"keepdims": 0}), axes=np.array([0])),
}


# ---- moving, running sums and selecting ------------------------------------------------------------------------------


def moving(name: str, shapes: tuple[tuple[int, ...], ...], ours: Any, peers: dict[str, Any], **more: Any) -> Case:
    """A case of no arithmetic that reads and writes as many elements as its inputs have; results are exact unless a
    tolerance is passed."""
    size = sum(math.prod(shape) for shape in shapes)
    fields: dict[str, Any] = {"flops": 0.0, "bytes": 8.0 * size, "tolerance": 0.0, "make_inputs": normal(*shapes)}
    return Case(name=name, ours=ours, peers=peers, **(fields | more))


def sizes(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def transposition(shape: tuple[int, ...], order: tuple[int, ...], suffix: str) -> Case:
    """f32 with its dims in another order."""

    @tw.jit
    def transpose(x: tw.Array) -> tw.Array:
        return tw.permute_dims(x, order)

    peers: UnaryPeers = {
        # The others' transposes are views until they are written.
        "numpy": lambda numpy, x: numpy.ascontiguousarray(x.transpose(order)),
        "torch": lambda torch, x: x.permute(order).contiguous(),
        "jax": lambda jax, x: x.transpose(order),
        "onnxruntime": _graph(("Transpose", ["x0"], "y", {"perm": order})),
    }
    return moving(f"transpose {sizes(shape)}{suffix}", (shape,), transpose, peers)


def running_sum(shape: tuple[int, ...], axis: int, suffix: str) -> Case:
    """Cumulative sums of f32 along an axis."""

    @tw.jit
    def cumulative_sum(x: tw.Array) -> tw.Array:
        return tw.cumulative_sum(x, axis=axis)

    peers: UnaryPeers = {
        "numpy": lambda numpy, x: x.cumsum(axis),
        "torch": lambda torch, x: x.cumsum(axis),
        "jax": lambda jax, x: x.cumsum(axis),
        "onnxruntime": _graph(("CumSum", ["x0", "axis"], "y", {}), axis=np.int64(axis)),
    }
    return moving(
        f"cumulative sum {sizes(shape)}{suffix}",
        (shape,),
        cumulative_sum,
        peers,
        flops=float(math.prod(shape)),
        tolerance=error_bound(0, shape[axis]),
    )


@tw.jit
def _rows_at(table: tw.Array, rows: tw.Array) -> tw.Array:
    return tw.take(table, rows, axis=0)


def gathering(shape: tuple[int, int], count: int) -> Case:
    """`count` rows of an f32 matrix, anywhere."""

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        return (*normal(shape)(generator), generator.integers(0, shape[0], count))

    peers: BinaryPeers = {
        "numpy": lambda numpy, table, rows: table[rows],
        "torch": lambda torch, table, rows: torch.index_select(table, 0, rows),
        "jax": lambda jax, table, rows: table[rows],
        "onnxruntime": _graph(("Gather", ["x0", "x1"], "y", {})),
    }
    bytes = 8.0 * count * (shape[1] + 1)
    return moving(f"gather {count} of {sizes(shape)}", (shape,), _rows_at, peers, bytes=bytes, make_inputs=inputs)


def _top_k(size: int, count: int) -> Case:
    @tw.jit
    def top_k(x: tw.Array) -> tuple[tw.Array, tw.Array]:
        return tw.top_k(x, count)

    def by_numpy(numpy: ModuleType, x: Array) -> tuple[Array, Array]:
        found = numpy.argpartition(x, -count)[-count:]
        found = found[numpy.argsort(x[found])[::-1]]
        return x[found], found

    peers: UnaryPeers = {
        "numpy": by_numpy,
        "torch": lambda torch, x: torch.topk(x, count),
        "jax": lambda jax, x: jax.lax.top_k(x, count),
        "onnxruntime": _graph(("TopK", ["x0", "count"], "y indices", {}), count=np.array([count])),
    }
    bytes = 4.0 * size + 12.0 * count
    return moving(f"top-k {count} of {size}", ((size,),), top_k, peers, bytes=bytes)
