"""Equal elements have no distance from their mean, by the normalisations of every front end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

ROWS = [(100, 1234.5678), (768, 100000.1), (1000, 12345678.0)]


@pytest.mark.parametrize(("size", "value"), ROWS)
def test_of_torch(size: int, value: float) -> None:
    torch: Any = pytest.importorskip("torch")
    functional = torch.nn.functional

    def all_kinds(x: Any) -> Any:
        images = x.reshape(2, 2, -1)
        return (
            functional.layer_norm(x, x.shape[-1:]),
            functional.group_norm(images, 2),
            functional.batch_norm(images, None, None, training=True),
            functional.instance_norm(images),
            x.var(-1),
            x.std(0),
            *torch.var_mean(x, -1),
        )

    torch.compiler.reset()
    x = torch.full((2, size), value)
    expected = [*[0.0] * 7, float(x[0, 0])]
    found = torch.compile(all_kinds, backend="tilewright", fullgraph=True)(x)
    for result, number in zip(found, expected, strict=True):
        np.testing.assert_array_equal(result.numpy(), np.float32(number))


def test_of_onnx() -> None:
    onnx: Any = pytest.importorskip("onnx")
    size, value = ROWS[2]
    shape = (1, 2, 4, size // 4)
    nodes = [
        onnx.helper.make_node("LayerNormalization", ["x", "wide"], ["a"]),
        onnx.helper.make_node("InstanceNormalization", ["x", "ones", "zeros"], ["b"]),
        onnx.helper.make_node("MeanVarianceNormalization", ["x"], ["c"]),
        onnx.helper.make_node("BatchNormalization", ["x", "ones", "zeros", "m", "v"], ["d", "e", "f"], training_mode=1),
    ]
    constants = {
        "wide": np.ones(shape[-1], np.float32),
        "ones": np.ones(2, np.float32),
        "zeros": np.zeros(2, np.float32),
        "m": np.zeros(2, np.float32),
        "v": np.zeros(2, np.float32),
    }
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "abcdf"],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = tw.from_onnx(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]))
    for result in model(np.full(shape, value, np.float32)):
        np.testing.assert_array_equal(result, 0)


def test_of_stablehlo() -> None:
    size, value = ROWS[0]
    text = f"""
module @m {{
func.func public @main(%x: tensor<{size}x3xf32>, %s: tensor<3xf32>) -> (tensor<{size}x3xf32>, tensor<3xf32>) {{
  %1:3 = "stablehlo.batch_norm_training"(%x, %s, %s) {{epsilon = 0.5 : f32, feature_index = 1 : i64}} : \
(tensor<{size}x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<{size}x3xf32>, tensor<3xf32>, tensor<3xf32>)
  return %1#0, %1#2 : tensor<{size}x3xf32>, tensor<3xf32>
}}
}}"""
    normal, variance = tw.from_stablehlo(text)(np.full((size, 3), value, np.float32), np.ones(3, np.float32))
    np.testing.assert_array_equal(normal, 1)
    np.testing.assert_array_equal(variance, 0)
