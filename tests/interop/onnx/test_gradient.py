"""Derivatives against differences of f64, and `Gradient` against torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.api.lifting import apply, constant, emit, emit_all
from tilewright.errors import ModelFileError, UnsupportedOperatorError
from tilewright.interop.onnx.gradient import gradients

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

Function = Callable[..., Any]
_STEP = 1e-6


def _weighted(function: Function) -> Function:
    """The sum of the elements, each with a factor of its own."""

    def total(*xs: Any) -> Any:
        y = function(*xs)
        factors = np.cos(np.arange(y.size, dtype=np.float64)).reshape(y.shape)
        return tw.sum(y * constant(factors))

    return total


def _check(function: Function, *arrays: np.ndarray[Any, Any], tolerance: float = 1e-6) -> None:
    total = tw.jit(_weighted(function), target="interp")
    found = tw.jit(lambda *xs: gradients(_weighted(function)(*xs), xs), target="interp")(*arrays)
    for n, array in enumerate(arrays):
        expected = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            values = []
            for step in (_STEP, -_STEP):
                moved = [a.copy() for a in arrays]
                moved[n][place] += step
                values.append(float(total(*moved)))
            expected[place] = (values[0] - values[1]) / (2 * _STEP)
        np.testing.assert_allclose(found[n], expected, atol=tolerance, rtol=tolerance)


def _random(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(0.2, 0.8, shape)


_FLOAT_RESULTS = [
    row.name
    for row in ops.FUNCTIONS.values()
    if "f" in row.kinds and row.result == ops.SAME and not row.name.startswith("bitwise")
]


@pytest.mark.parametrize("name", _FLOAT_RESULTS)
def test_scalar_functions(name: str) -> None:
    x = np.array([0.3, 0.61, 0.87])
    if name == "acosh":
        x = x + 1
    elif not name.startswith(("log", "sqrt", "rsqrt", "power")):
        x = x * np.array([1, -1, 1])
    others = [np.array([0.7, 0.45, -0.2])] * (ops.FUNCTIONS[name].arity - 1)
    _check(lambda *xs: apply(name, *xs), x, *others)


_X = _random(3, 4, seed=1)
_PLACES = np.array([[2, 0], [2, 5]])  # one twice, one outside

_ARRAY_FUNCTIONS: dict[str, tuple[Function, Sequence[np.ndarray[Any, Any]]]] = {
    "cast": (lambda x: tw.astype(tw.astype(x * 3, tw.f64), tw.f64), [_X]),
    "select": (lambda x, y: tw.where(x > 0.5, x * y, y), [_X, _random(3, 4, seed=2)]),
    "reshape": (lambda x: tw.reshape(x, (2, 6)), [_X]),
    "transpose": (lambda x: tw.permute_dims(x, (2, 0, 1)), [_random(2, 3, 2)]),
    "broadcast": (lambda x, y: tw.broadcast_to(x, (3, 4)) * y, [_random(3, 1), _random(4)]),
    "slice": (lambda x: x[1:3, ::3], [_X]),
    "empty slice": (lambda x: x[1:1, ::3], [_X]),
    "pad": (lambda x, v: emit("pad", x, v, low=(1, 0), high=(0, 2), interior=(2, 1)), [_X, _random()]),
    "pad of nothing": (lambda x, v: emit("pad", x, v, low=(1,), high=(1,), interior=(1,)), [_random(0), _random()]),
    "concat": (lambda x, y: tw.concat([x, y, x], axis=1), [_X, _random(3, 2)]),
    "reverse": (lambda x: tw.flip(x, axis=1), [_X]),
    "unfold": (lambda x: emit("unfold", x, axis=1, sizes=(2, 2), steps=(1, 2)), [_X]),
    "dynamic_slice": (
        lambda x: emit("dynamic_slice", x, constant(np.int64(2)), constant(np.int64(1)), sizes=(2, 2)),
        [_X],
    ),
    "dynamic_update_slice": (
        lambda x, u: emit("dynamic_update_slice", x, u, constant(np.int64(2)), constant(np.int64(1))),
        [_X, _random(2, 2)],
    ),
    "gather": (lambda x: emit("gather", x, constant(_PLACES), axes=(1,)), [_X]),
    "gather of two": (lambda x: emit("gather", x, constant(_PLACES), constant(_PLACES), axes=(1, 0)), [_X]),
    "scatter add": (
        lambda x, u: emit("scatter", x, u, constant(_PLACES), fn="add", axes=(1,)),
        [_X, _random(2, 2, 3)],
    ),
    "scatter set": (
        lambda x, u: emit("scatter", x, u, constant(_PLACES), fn="set", axes=(1,)),
        [_X, _random(2, 2, 3)],
    ),
    "sort": (lambda x, y: emit_all("sort", x, y, axis=0, descending=True)[1] * tw.sort(x, axis=0), [_X, _random(3, 4)]),
    "top_k": (lambda x: tw.top_k(x, 2, axis=0)[0], [_X]),
    "reduce add": (lambda x: tw.sum(x * x, 1), [_X]),
    "reduce maximum": (lambda x: tw.max(x, (0, 1)), [_X]),
    "reduce minimum": (lambda x: tw.min(x, 0), [_X]),
    "reduce multiply": (lambda x: tw.prod(x, (0, 2)), [_random(2, 2, 3) - [0.5, 0, 0]]),
    "scan": (lambda x: tw.cumulative_sum(x, axis=1), [_X]),
    "scan from": (lambda x, s: emit("scan", x, s, fn="add", axis=1, reverse=True), [_X, _random(3)]),
    "contract": (lambda x, y: tw.matmul(x, y), [_random(2, 3, 4), _random(2, 4, 2)]),
    "contract of two axes": (
        lambda x, y: emit(
            "contract",
            x,
            y,
            left_batch=(1,),
            right_batch=(2,),
            left_contract=(3, 0),
            right_contract=(0, 3),
            dtype="f64",
        ),
        [_random(2, 2, 3, 4), _random(4, 2, 2, 2)],
    ),
    "mean pool": (
        lambda x: emit(
            "window_reduce", x, fn="add", window=(2, 3), strides=(2, 1), low=(1, 0), high=(0, 1), dilation=(1, 1)
        ),
        [_X],
    ),
    "max pool": (
        lambda x: emit(
            "window_reduce", x, fn="maximum", window=(2, 2), strides=(1, 2), low=(1, 0), high=(0, 1), dilation=(1, 2)
        ),
        [_X],
    ),
    "convolve": (
        lambda x, w: tw.nn.conv(x, w, stride=(2, 1), padding=[(1, 0), (0, 2)], dilation=(1, 2), groups=2),
        [_random(2, 4, 6, 5), _random(2, 2, 2, 3)],
    ),
}


@pytest.mark.parametrize("name", _ARRAY_FUNCTIONS)
def test_array_functions(name: str) -> None:
    function, arrays = _ARRAY_FUNCTIONS[name]
    _check(function, *arrays)


def test_equal_extremes_share() -> None:
    x = np.array([2.0, 2.0, 1.0])
    found = tw.jit(lambda x: gradients(tw.max(x), [x]) + gradients(tw.sum(tw.maximum(x, 2.0)), [x]), target="interp")(x)
    np.testing.assert_array_equal(found[0], [0.5, 0.5, 0])
    np.testing.assert_array_equal(found[1], [0.5, 0.5, 0])


def test_values_that_nothing_depends_on_have_zeros() -> None:
    x, y = np.ones(2), np.ones(3, np.float32)
    found = tw.jit(lambda x, y: gradients(tw.sum(x), [y, x]), target="interp")(x, y)
    np.testing.assert_array_equal(found[0], np.zeros(3, np.float32))
    np.testing.assert_array_equal(found[1], [1, 1])


def test_loops_are_refused_by_name() -> None:
    def function(x: Any) -> Any:
        y = tw.while_loop(lambda s: tw.sum(s) < 10.0, lambda s: s * x, x)
        return gradients(tw.sum(y), [x])

    with pytest.raises(UnsupportedOperatorError, match="`while`"):
        tw.jit(function, target="interp")(np.ones(2))


# ---- the operator ---------------------------------------------------------------------------------------------------


def _model(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], constants: dict[str, Any]) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.preview.training", 1)]
    return tw.from_onnx(helper.make_model(graph, opset_imports=imports), target="interp")


def _gradient(inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node("Gradient", inputs, outputs, domain="ai.onnx.preview.training", **attributes)


def test_a_network_has_the_derivatives_of_torch() -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(3)
    shapes = {"x": (2, 2, 6, 6), "w": (4, 1, 3, 3), "scale": (4,), "bias": (4,), "dense": (36, 3)}
    arrays = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], group=2),
        helper.make_node("InstanceNormalization", ["a", "scale", "bias"], ["b"]),
        helper.make_node("Gelu", ["b"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "dense"], ["f"]),
        helper.make_node("LogSoftmax", ["f"], ["g"], axis=1),
        helper.make_node("GatherElements", ["g", "labels"], ["h"], axis=1),
        helper.make_node("ReduceMean", ["h"], ["loss"], keepdims=0),
        _gradient(list(arrays), [f"d{name}" for name in arrays], xs=list(arrays), y="loss"),
    ]
    labels = np.array([[2], [0]])
    model = _model(nodes, shapes, [f"d{name}" for name in arrays], {"labels": labels})
    found = model(*arrays.values())

    leaves = {name: torch.tensor(a, dtype=torch.float64, requires_grad=True) for name, a in arrays.items()}
    functional = torch.nn.functional
    y = functional.conv2d(leaves["x"], leaves["w"], padding=1, groups=2)
    y = functional.instance_norm(y, weight=leaves["scale"], bias=leaves["bias"])
    y = functional.max_pool2d(functional.gelu(y), 2).flatten(1) @ leaves["dense"]
    torch.gather(torch.log_softmax(y, 1), 1, torch.tensor(labels)).mean().backward()
    for array, leaf in zip(found, leaves.values(), strict=True):
        np.testing.assert_allclose(array, leaf.grad.numpy(), atol=1e-5, rtol=1e-4)


def test_derivatives_may_be_taken_elsewhere_and_twice() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Mul", ["square", "z"], ["y"]),
        _gradient(["x", "z"], ["slope"], xs=["x"], zs=["z"], y="y"),  # 2 x z
        _gradient(["other", "z"], ["elsewhere"], xs=["x"], zs=["z"], y="y"),  # 2 other z
        _gradient(["z", "z"], ["same"], xs=["x"], zs=["z"], y="y"),  # 2 z z: z is not what is derived by
        _gradient(["x"], ["second"], xs=["x"], y="slope"),  # 2 z
    ]
    outputs = ["slope", "elsewhere", "same", "second"]
    model = _model(nodes, {"x": [], "z": [], "other": []}, outputs, {})
    found = model(np.float32(3), np.float32(5), np.float32(7))
    np.testing.assert_array_equal(np.array(found), [30, 70, 50, 10])


def test_second_derivatives_go_through_what_the_first_was_cut_at() -> None:
    # With s = x x, h = s x and y = h s, the derivative of y by h is s: taken as a function of x, its slope is 2 x.
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["s"]),
        helper.make_node("Mul", ["s", "x"], ["h"]),
        helper.make_node("Mul", ["h", "s"], ["y"]),
        _gradient(["h"], ["by_h"], xs=["h"], y="y"),
        _gradient(["x"], ["slope"], xs=["x"], y="by_h"),
        _gradient(["x"], ["whole"], xs=["x"], y="y"),  # 5 x^4
        _gradient(["x"], ["again"], xs=["x"], y="whole"),  # 20 x^3
    ]
    model = _model(nodes, {"x": []}, ["by_h", "slope", "whole", "again"], {})
    np.testing.assert_array_equal(np.array(model(np.float32(3))), [9, 6, 405, 540])


def test_derivatives_in_a_branch_go_back_into_the_graph_around() -> None:
    def branch(name: str, at: str) -> Any:
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        return helper.make_graph([_gradient([at], [name], xs=["x"], y="y")], name, [], outputs)

    nodes = [
        helper.make_node("Mul", ["x", "x"], ["y"]),
        helper.make_node("Greater", ["x", "other"], ["larger"]),
        helper.make_node("If", ["larger"], ["d"], then_branch=branch("a", "x"), else_branch=branch("b", "other")),
    ]
    model = _model(nodes, {"x": [], "other": []}, ["d"], {})
    assert model(np.float32(3), np.float32(2)) == 6
    assert model(np.float32(3), np.float32(7)) == 14


def test_derivatives_of_derivatives_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each traces all before it again, which doubles what there is.
    monkeypatch.setattr("tilewright.interop.onnx.graph._MAX_WORK", 2000)
    nodes = [helper.make_node("Mul", ["x", "x"], ["y0"])]
    nodes += [_gradient(["x"], [f"y{n + 1}"], xs=["x"], y=f"y{n}") for n in range(30)]
    with pytest.raises(UnsupportedOperatorError, match="more than 2000 operations"):
        _model(nodes, {"x": []}, ["y30"], {})(np.float32(3))


def test_malformed_gradients_are_refused() -> None:
    def refused(gradient: Any, error: type[Exception], match: str) -> None:
        nodes = [helper.make_node("Mul", ["x", "x"], ["y"]), helper.make_node("Unique", ["x"], ["u"])]
        nodes = [*nodes[: 2 if match == "host" else 1], gradient]
        with pytest.raises(error, match=match):
            _model(nodes, {"x": [2]}, ["d"], {"n": np.array([1])})(np.ones(2, np.float32))

    refused(_gradient(["x"], ["d"], xs=["x", "y"], y="y"), ModelFileError, "1 inputs")
    refused(_gradient(["x"], ["d"], xs=["x"], y="nothing"), ModelFileError, "'nothing'")
    refused(_gradient(["n"], ["d"], xs=["n"], y="y"), UnsupportedOperatorError, "floats")
    refused(_gradient(["x"], ["d"], xs=["x"], y="y"), UnsupportedOperatorError, "host")
