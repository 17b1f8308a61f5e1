"""Operators of `com.microsoft` against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw

onnx: Any = pytest.importorskip("onnx")
runtime: Any = pytest.importorskip("onnxruntime")

from onnx import helper  # noqa: E402

from tests.interop.onnx.page import contributed  # noqa: E402

_RANDOM = np.random.default_rng(11)


def _normal(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _whole(dtype: Any, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    return _RANDOM.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def _model(op: str, inputs: list[Any], outputs: list[str], attributes: dict[str, Any]) -> bytes:
    """A model of one node; the types of its results are inferred by whoever runs it."""
    names = [f"x{n}" if x is not None else "" for n, x in enumerate(inputs)]
    node = helper.make_node(op, names, outputs, domain="com.microsoft", **attributes)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
        if x is not None
    ]
    results = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs if name]
    graph = helper.make_graph([node], "graph", given, results)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def _compare(
    op: str, *inputs: Any, outputs: tuple[str, ...] = ("y",), tolerance: float = 1e-5, **attributes: Any
) -> None:
    model = _model(op, list(inputs), list(outputs), attributes)
    given = [x for x in inputs if x is not None]
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = session.run(None, {f"x{n}": x for n, x in enumerate(inputs) if x is not None})
    # `interp` compiles nothing: what is tested here are the rules.
    found = tw.from_onnx(onnx.load_from_string(model), target="interp")(*given)
    for ours, theirs in zip([*found] if isinstance(found, tuple | list) else [found], expected, strict=True):
        assert (np.shape(ours), np.asarray(ours).dtype) == (theirs.shape, theirs.dtype), op
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=op)


def test_activations() -> None:
    x, bias = 3 * _normal(2, 5, 8), _normal(8)
    _compare("Gelu", x)
    _compare("BiasGelu", x, bias)
    _compare("FastGelu", x, tolerance=1e-3)
    _compare("FastGelu", x, bias, tolerance=1e-3)
    _compare("QuickGelu", x)
    _compare("QuickGelu", x, alpha=1.5)


def test_matmuls() -> None:
    a, b = _normal(2, 3, 4, 5), _normal(2, 3, 5, 6)
    _compare("FusedMatMul", a, b, alpha=0.5)
    _compare("FusedMatMul", np.swapaxes(a, -1, -2).copy(), b, transA=1)
    _compare("FusedMatMul", a, np.swapaxes(b, -1, -2).copy(), transB=1, alpha=2.0)
    _compare("TransposeMatMul", a, np.swapaxes(b, -1, -2).copy(), transB=1, alpha=2.0)
    _compare("FusedMatMul", np.moveaxis(a, -2, 0).copy(), b, transBatchA=1)
    _compare("FusedMatMul", a, np.moveaxis(b, -2, 0).copy(), transBatchB=1)
    _compare("Inverse", _normal(2, 4, 4) + 4 * np.eye(4, dtype=np.float32))
    for activation, extra in (("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.2}), ("Sigmoid", {})):
        _compare("FusedGemm", _normal(4, 5), _normal(6, 5), _normal(6), transB=1, activation=activation, **extra)


def test_convolutions_with_activations() -> None:
    x, w, bias = _normal(1, 3, 8, 8), _normal(4, 3, 3, 3), _normal(4)
    sides = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    _compare("FusedConv", x, w, bias, activation="Relu", tolerance=1e-4, **sides)
    _compare("FusedConv", x, w, bias, _normal(1, 4, 8, 8), activation="Relu", tolerance=1e-4, **sides)
    for name, parameters in (("LeakyRelu", [0.1]), ("Clip", [-0.5, 1.0]), ("HardSigmoid", [0.2, 0.5]), ("Tanh", [])):
        extra = {"activation_params": parameters} if parameters else {}
        _compare("FusedConv", x, w, activation=name, tolerance=1e-4, **sides, **extra)


def test_normalisations_of_sums() -> None:
    x, skip, scale, beta, bias = _normal(2, 3, 8), _normal(2, 3, 8), _normal(8), _normal(8), _normal(8)
    _compare("SkipLayerNormalization", x, skip, scale)
    _compare("SkipLayerNormalization", x, skip, scale, beta, bias, epsilon=1e-3, outputs=("y", "", "", "sum"))
    _compare("SkipLayerNormalization", x, skip[0], scale, None, bias)
    _compare("SkipSimplifiedLayerNormalization", x, skip, scale, outputs=("y", "", "", "sum"))
    _compare("SkipSimplifiedLayerNormalization", x, skip, scale, bias)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantised_matmuls(dtype: Any) -> None:
    # Half of the range: see below.
    weights, zero = _whole(dtype, 6, 4) // 2, _whole(dtype, 1)[0]
    one = np.array([0.02], np.float32)
    _compare("DynamicQuantizeMatMul", _normal(5, 6), weights, one, np.array([zero], dtype), _normal(4), tolerance=1e-4)
    _compare("DynamicQuantizeMatMul", _normal(5, 6), weights, one, None, tolerance=1e-4)
    scales, zeros = np.abs(_normal(4)) / 50, _whole(dtype, 4)
    _compare("DynamicQuantizeMatMul", _normal(2, 5, 6), weights, scales, zeros, tolerance=1e-4)
    quantised = _whole(np.uint8, 5, 6)
    _compare(
        "MatMulIntegerToFloat",
        *(quantised, weights, one, scales, np.array([7], np.uint8), zeros, _normal(4)),
        tolerance=1e-4,
    )


@pytest.mark.parametrize("directions", [1, 2])
def test_quantised_lstm(directions: int) -> None:
    hidden, size, batch = 5, 4, 1
    x = _normal(6, batch, size)
    bias = _normal(directions, 8 * hidden) / 4
    # Half of the range: on CPUs without VNNI the runtime adds pairs of products in 16 bits.
    w, r = (_whole(np.int8, directions, rows, 4 * hidden) // 2 for rows in (size, hidden))
    start = [_normal(directions, batch, hidden) / 4 for _ in range(2)]
    for per in ((directions,), (directions, 4 * hidden)):
        scales = [(0.004 * np.abs(1 + 0.1 * _normal(*per))).astype(np.float32) for _ in range(2)]
        zeros = [np.zeros(per, np.int8) for _ in range(2)]
        _compare(
            "DynamicQuantizeLSTM",
            *(x, w, r, bias, None, *start, None, scales[0], zeros[0], scales[1], zeros[1]),
            outputs=("y", "h", "c"),
            tolerance=2e-3,
            hidden_size=hidden,
            direction="bidirectional" if directions == 2 else "forward",
        )


def test_the_page_lists_them() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "onnx.md").read_text()
    assert contributed() in page


def test_large_determinants_call_lapack() -> None:
    x = (_normal(2, 24, 24) / 5).astype(np.float32)
    node = helper.make_node("Det", ["x"], ["y"])
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "graph", [info("x", 1, x.shape)], [info("y", onnx.TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    np.testing.assert_allclose(tw.from_onnx(model)(x), np.linalg.det(x.astype(np.float64)), rtol=1e-4)
