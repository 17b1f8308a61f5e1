"""`tw.from_onnx`: arguments, results, values that shapes depend on, files and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import (
    ArgumentError,
    DataDependentShapeError,
    DTypeError,
    ModelFileError,
    ShapeError,
    UnsupportedOperatorError,
)

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any] | None = None) -> Any:
    initialisers = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def _tensor(name: str, shape: Any, type: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, type, shape)


def _linear() -> Any:
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    return _model(nodes, [_tensor("x", ["batch", 4])], [_tensor("y", ["batch", 3])], {"w": w})


def _reshape() -> Any:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    return _model([node], [_tensor("x", [6]), _tensor("shape", [2], TensorProto.INT64)], [_tensor("y", None)])


def test_arguments_go_by_position_or_by_name() -> None:
    model = tw.from_onnx(_linear())
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    expected = np.maximum(x @ np.arange(12, dtype=np.float32).reshape(4, 3), 0)
    np.testing.assert_allclose(model(x), expected, rtol=1e-6)
    np.testing.assert_allclose(model(x=x), expected, rtol=1e-6)
    np.testing.assert_allclose(model.run(None, {"x": x})[0], expected, rtol=1e-6)
    assert str(model.inputs[0]) == "x: f32[batch, 4]"


def test_sizes_with_a_name_are_bound_by_the_call() -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    model = tw.from_onnx(_model(nodes, [_tensor("a", ["n"]), _tensor("b", ["n"])], [_tensor("y", ["n"])]))
    for n in (1, 5):
        ones = np.ones(n, np.float32)
        np.testing.assert_array_equal(model(ones, ones), 2 * ones)
    with pytest.raises(ShapeError, match="n = 2"):
        model(np.ones(2, np.float32), np.ones(3, np.float32))


def test_a_model_may_be_a_path_or_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(_linear().SerializeToString())
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(tw.from_onnx(path)(x), tw.from_onnx(path.read_bytes())(x))


def test_a_model_can_be_called_inside_a_traced_function() -> None:
    model = tw.from_onnx(_linear())
    x = np.ones((1, 4), np.float32)
    np.testing.assert_allclose(tw.jit(lambda x: model(x) * 2.0)(x), model(x) * 2, rtol=1e-6)


def test_an_input_that_decides_a_shape_is_bound_by_value() -> None:
    model = tw.from_onnx(_reshape())
    x = np.arange(6, dtype=np.float32)
    for shape in ((2, 3), (3, 2), (6, 1)):
        np.testing.assert_array_equal(model(x, np.array(shape)), x.reshape(shape))


def test_an_input_that_decides_a_shape_cannot_be_traced() -> None:
    model = tw.from_onnx(_reshape())
    with pytest.raises(DataDependentShapeError, match="Reshape"):
        tw.jit(model.__call__)(np.ones(6, np.float32), np.array([2, 3]))


def test_shapes_are_computed_from_sizes() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["first"]),
        helper.make_node("Concat", ["first", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    model = tw.from_onnx(_model(nodes, [_tensor("x", ["n", 2, 3])], [_tensor("y", ["n", 6])], constants))
    assert model(np.ones((5, 2, 3), np.float32)).shape == (5, 6)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), ArgumentError),
        ((np.ones((1, 4), np.float32),) * 2, ArgumentError),
        ((np.ones((1, 4)),), DTypeError),
        ((np.ones((1, 5), np.float32),), ShapeError),
        (("x",), ArgumentError),
    ],
)
def test_arguments_are_checked(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"x: f32\[batch, 4\]|'x'"):
        tw.from_onnx(_linear())(*arguments)


def test_unknown_operators_are_listed_with_counts() -> None:
    nodes = [helper.make_node("Foo", ["x"], ["a"]), helper.make_node("Foo", ["a"], ["b"])]
    nodes.append(helper.make_node("Bar", ["b"], ["y"], domain="my"))
    with pytest.raises(UnsupportedOperatorError, match=r"Foo \(2\), my.Bar \(1\)"):
        tw.from_onnx(_model(nodes, [_tensor("x", [1])], [_tensor("y", [1])]))


def test_an_error_names_the_node_and_its_inputs() -> None:
    node = helper.make_node("Add", ["x", "b"], ["y"], name="sum")
    model = tw.from_onnx(_model([node], [_tensor("x", [2])], [_tensor("y", [2])], {"b": np.ones(3, np.float32)}))
    with pytest.raises(ShapeError, match=r"node 'sum' \(Add\) of f32\[2\], f32\[3\]: shapes"):
        model(np.ones(2, np.float32))


def _external(location: str) -> Any:
    model = _linear()
    tensor = model.graph.initializer[0]
    raw = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(len(raw)))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return model, raw


def test_external_data_lie_in_the_folder_of_the_model(tmp_path: Path) -> None:
    model, raw = _external("weights.bin")
    (tmp_path / "weights.bin").write_bytes(raw)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert tw.from_onnx(tmp_path / "m.onnx")(np.ones((1, 4), np.float32)).tolist() == [[18, 22, 26]]
    with pytest.raises(ModelFileError, match="not loaded from a folder"):
        tw.from_onnx(model)(np.ones((1, 4), np.float32))


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "link/weights.bin", ""])
def test_external_data_outside_are_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model, raw = _external(location)
    (tmp_path / "weights.bin").write_bytes(raw)
    (folder / "link").symlink_to(tmp_path)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match="outside the folder"):
        tw.from_onnx(folder / "m.onnx")(np.ones((1, 4), np.float32))


@pytest.mark.parametrize("kind", ["missing", "pipe", "folder", "short"])
@pytest.mark.parametrize("length", [None, "-7", "99999999999999999999", "x"])
def test_external_data_that_cannot_be_read_are_refused(tmp_path: Path, kind: str, length: str | None) -> None:
    model, raw = _external("weights.bin")
    if length is not None:
        model.graph.initializer[0].external_data[2].value = length
    path = tmp_path / "weights.bin"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "short":
        path.write_bytes(raw[:-1])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError):
        tw.from_onnx(tmp_path / "m.onnx")(np.ones((1, 4), np.float32))


def test_a_model_that_is_changed_later_changes_no_program() -> None:
    model = _linear()
    program = tw.from_onnx(model)
    expected = tw.from_onnx(model.SerializeToString())(np.ones((2, 4), np.float32))
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    del model.graph.node[1:]
    np.testing.assert_array_equal(program(np.ones((2, 4), np.float32)), expected)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    data = _linear().SerializeToString()
    with pytest.raises(ModelFileError):
        tw.from_onnx(tmp_path / "missing.onnx")
    for damaged in (b"", b"\xff" * 20, data[: len(data) // 2]):
        with pytest.raises(ModelFileError):
            tw.from_onnx(damaged)


def test_newer_operators_are_refused() -> None:
    model = _linear()
    model.opset_import[0].version = 999
    with pytest.raises(ModelFileError, match="999"):
        tw.from_onnx(model)


def test_attributes_that_a_rule_does_not_know_are_refused() -> None:
    model = _linear()
    model.graph.node[1].attribute.append(helper.make_attribute("slope", 0.5))
    with pytest.raises(UnsupportedOperatorError, match="`Relu` with the attribute `slope`"):
        tw.from_onnx(model)(np.ones((1, 4), np.float32))


def test_narrow_types_go_in_and_out() -> None:
    import ml_dtypes

    nodes = [helper.make_node("Transpose", ["x"], ["t"]), helper.make_node("Cast", ["t"], ["f"], to=TensorProto.FLOAT)]
    inputs = [_tensor("x", [2, 3], TensorProto.INT4)]
    outputs = [_tensor("t", [3, 2], TensorProto.INT4), _tensor("f", [3, 2])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = tw.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    x = np.array([[-8, -1, 0], [1, 5, 7]]).astype(ml_dtypes.int4)
    moved, numbers = model(x)
    assert moved.dtype == x.dtype
    np.testing.assert_array_equal(moved.astype(np.int8), x.T.astype(np.int8))
    np.testing.assert_array_equal(numbers, x.T.astype(np.float32))


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float8_e4m3fnuz", "float8_e5m2fnuz"])
@pytest.mark.parametrize("saturate", [True, False])
def test_casts_to_narrow_floats_round_as_ml_dtypes(name: str, saturate: bool) -> None:
    import ml_dtypes

    from tilewright.interop.narrow import encoded, from_codes

    storage = np.dtype(getattr(ml_dtypes, name))
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    largest = np.float16(ml_dtypes.finfo(storage).max)
    with np.errstate(invalid="ignore"):
        expected = (np.clip(x, -largest, largest) if saturate else x).astype(storage)
    found = from_codes(tw.jit(lambda x: encoded(x, storage, saturate=saturate))(x))
    # Four bits have no NaN: what becomes of one is not defined.
    defined = np.ones(x.shape, bool) if "float8" in name else ~np.isnan(x)
    np.testing.assert_array_equal(found.view(np.uint8)[defined], expected.view(np.uint8)[defined])


def test_importing_tilewright_does_not_import_onnx() -> None:
    code = "import sys, tilewright as tw; tw.jit; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_no_axes_mean_is_said_beside_axes_too() -> None:
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0, noop_with_empty_axes=1)
    model = tw.from_onnx(_model([node], [_tensor("x", [2, 3])], [_tensor("y", None)], {"axes": np.array([1])}))
    np.testing.assert_array_equal(model(np.ones((2, 3), np.float32)), [3, 3])


def _pooling() -> Any:
    """Batches of rows, each times a number of rows that the graph computes, and the mean of their softmax."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["count"]),
        helper.make_node("Cast", ["count"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "number"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["weights"], axis=1),
        helper.make_node("Slice", ["weights", "one", "end", "one"], ["rest"]),
        helper.make_node("ReduceMean", ["rest", "one"], ["y"], keepdims=0),
        helper.make_node("Reshape", ["scaled", "rows"], ["z"]),
    ]
    constants = {"one": [1], "end": [1 << 40], "rows": [-1, 3]}
    return _model(
        nodes,
        [_tensor("x", ["batch", "rows", 3])],
        [_tensor("y", ["batch", 3]), _tensor("z", ["all", 3])],
        {name: np.array(value, np.int64) for name, value in constants.items()},
    )


def test_ranges_of_sizes_share_programs() -> None:
    dims = {"batch": tw.Dim(1, 4), "rows": tw.Dim(2, 12)}
    model = tw.from_onnx(_pooling(), target="interp", dims=dims)
    reference = ReferenceEvaluator(_pooling())
    generator = np.random.default_rng(0)
    for batch, rows in ((2, 9), (2, 10), (2, 12), (4, 11)):
        x = generator.standard_normal((batch, rows, 3)).astype(np.float32)
        for got, wanted in zip(model(x), reference.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert [program.sizes for program in model.programs] == [
        {"batch": (2, 2), "rows": (9, 12)},
        {"batch": (4, 4), "rows": (9, 12)},
    ]
    with pytest.raises(ArgumentError, match="no size 'length'"):
        tw.from_onnx(_pooling(), dims={"length": tw.Dim(1, 4)})
    with pytest.raises(ArgumentError, match="the size 'rows' is 12"):
        tw.from_onnx(_pooling(), dims={"rows": 12})


@pytest.mark.parametrize("attributes", [{}, {"align_corners": 1}])
def test_attributes_that_a_definition_reads_have_the_values_of_the_schema(attributes: dict[str, int]) -> None:
    """`AffineGrid` is a function of ONNX that reads an attribute which a node may leave out."""
    node = helper.make_node("AffineGrid", ["theta", "size"], ["grid"], **attributes)
    size = numpy_helper.from_array(np.array([2, 3, 4, 5]), "size")
    theta, grid = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("theta", [2, 2, 3]), ("grid", None))
    )
    model = helper.make_model(
        helper.make_graph([node], "g", [theta], [grid], [size]), opset_imports=[helper.make_opsetid("", 20)]
    )
    x = np.random.default_rng(0).standard_normal((2, 2, 3)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"theta": x})
    np.testing.assert_allclose(tw.from_onnx(model, target="interp")(x), wanted, rtol=1e-6, atol=1e-6)
