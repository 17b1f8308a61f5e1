"""`Resize` and `Upsample` against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

onnx: Any = pytest.importorskip("onnx")
runtime: Any = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402


def _same_as_runtime(node: Any, inputs: dict[str, Any], opset: int) -> None:
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in inputs.items()
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [node],
        "one",
        infos[:1],
        [result],
        [
            helper.make_tensor(n, i.type.tensor_type.elem_type, inputs[n].shape, inputs[n])
            for n, i in zip([*inputs][1:], infos[1:], strict=True)
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8).SerializeToString()
    first = dict([*inputs.items()][:1])
    (expected,) = runtime.InferenceSession(model).run(None, first)
    np.testing.assert_allclose(tw.from_onnx(model)(*first.values()), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [7, 9])
def test_upsample_of_old_models(opset: int, mode: str) -> None:
    x, scales = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4), np.array([1, 1, 2, 3], np.float32)
    if opset == 7:
        node = helper.make_node("Upsample", ["x"], ["y"], mode=mode, scales=scales.tolist())
        return _same_as_runtime(node, {"x": x}, opset)
    return _same_as_runtime(
        helper.make_node("Upsample", ["x", "scales"], ["y"], mode=mode), {"x": x, "scales": scales}, opset
    )


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_attributes_of_other_modes_of_resize_have_no_effect(mode: str) -> None:
    others = {"extrapolation_value": 9.0, "nearest_mode": "floor", "cubic_coeff_a": -0.5}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode, **others)
    x, scales = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4), np.array([1, 1, 2, 1.5], np.float32)
    _same_as_runtime(node, {"x": x, "scales": scales}, 13)
