"""Calls of ONNX models that are like the latest one: served without its checks, and never with another's result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import events
from tilewright.errors import TilewrightError
from tilewright.interop.narrow import STORAGES
from tilewright.interop.onnx.model import OnnxModel
from tilewright.interop.plain_calls import leading

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

_X = np.arange(6, dtype=np.float32).reshape(3, 2)
_Y = np.array([[1, 3], [5, 7], [11, 13]], np.float32)


def _model(nodes: list[Any], inputs: list[Any], outputs: list[str], defaults: dict[str, Any] | None = None) -> Any:
    initialisers = [numpy_helper.from_array(array, name) for name, array in (defaults or {}).items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results, initialisers)
    return tw.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))


def _tensor(name: str, shape: Any, type: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, type, shape)


def _difference(shape: Any = (3, 2)) -> OnnxModel:
    """x - y, which tells the two apart."""
    node = helper.make_node("Sub", ["x", "y"], ["z"])
    return _model([node], [_tensor("x", shape), _tensor("y", shape)], ["z"])


def _reshape() -> OnnxModel:
    """A reshape to the shape that the second input holds."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    return _model([node], [_tensor("x", [6]), _tensor("shape", ["rank"], TensorProto.INT64)], ["y"])


def _with_defaults() -> OnnxModel:
    """(x - s) / t, where s and t have defaults."""
    nodes = [helper.make_node("Sub", ["x", "s"], ["d"]), helper.make_node("Div", ["d", "t"], ["y"])]
    inputs = [_tensor("x", [2]), _tensor("s", [1]), _tensor("t", [1])]
    defaults = {"s": np.array([10], np.float32), "t": np.array([100], np.float32)}
    return _model(nodes, inputs, ["y"], defaults)


def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a call that is checked fails."""

    def refused(*_: object) -> Any:
        raise AssertionError("the arguments were checked")

    monkeypatch.setattr(OnnxModel, "_bound", refused)


_CALLS: dict[str, Callable[[OnnxModel], Any]] = {
    "position": lambda model: model(_X, _Y),
    "names": lambda model: model(x=_X, y=_Y),
    "names in another order": lambda model: model(y=_Y, x=_X),
    "both": lambda model: model(_X, y=_Y),
    "a session": lambda model: model.run(["z"], {"y": _Y, "x": _X})[0],
}


@pytest.mark.parametrize("first", _CALLS)
@pytest.mark.parametrize("second", _CALLS)
def test_arguments_go_by_position_or_by_name(monkeypatch: pytest.MonkeyPatch, first: str, second: str) -> None:
    model = _difference()
    for _ in range(2):
        np.testing.assert_array_equal(_CALLS[first](model), _X - _Y)
    _unchecked(monkeypatch)
    np.testing.assert_array_equal(_CALLS[second](model), _X - _Y)


def test_results_are_new_arrays() -> None:
    model = _difference()
    results = [model(_X, _Y) for _ in range(4)]
    for result in results:
        np.testing.assert_array_equal(result, _X - _Y)
        result[:] = 0
    np.testing.assert_array_equal(model(_X, _Y), _X - _Y)


def test_several_results_are_a_tuple(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("Sub", ["x", "y"], ["d"]), helper.make_node("Mul", ["x", "y"], ["p"])]
    model = _model(nodes, [_tensor("x", [3, 2]), _tensor("y", [3, 2])], ["d", "p"])
    for settled in (False, False, True):
        if settled:
            _unchecked(monkeypatch)
        found = model(_X, _Y)
        assert type(found) is tuple
        np.testing.assert_array_equal(found[0], _X - _Y)
        np.testing.assert_array_equal(found[1], _X * _Y)
        np.testing.assert_array_equal(model.run(["p"], {"x": _X, "y": _Y})[0], _X * _Y)


def test_shapes_alternate() -> None:
    model = _difference(["rows", 2])
    for _ in range(3):
        for rows in (1, 3, 3, 2):
            np.testing.assert_array_equal(model(_X[:rows], _Y[:rows]), _X[:rows] - _Y[:rows])


def test_arrays_of_other_forms_are_read_as_before() -> None:
    model = _difference()
    for _ in range(2):
        np.testing.assert_array_equal(model(_X, _Y), _X - _Y)
    wide = np.repeat(_X, 2, axis=1)[:, ::2]
    for x in (np.asfortranarray(_X), wide, _X.view(np.recarray)):
        np.testing.assert_array_equal(model(x, _Y), _X - _Y)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((_X,), {}),
        ((), {"x": _X}),
        ((_X, _Y, _Y), {}),
        ((_X, _Y), {"y": _Y}),
        ((_X,), {"x": _X}),
        ((_X,), {"w": _Y}),
        ((), {"x": _X, "w": _Y}),
        ((_X.astype(np.float64), _Y), {}),
        ((_X, _Y.astype(">f4")), {}),
        ((_X, _Y.T), {}),
        ((_X, _Y[:2]), {}),
        ((_X, [[1.0, 2.0]]), {}),
        ((_X, None), {}),
    ],
)
def test_errors_are_those_of_a_first_call(args: Any, kwargs: Any) -> None:
    with pytest.raises(TilewrightError) as expected:
        _difference()(*args, **kwargs)
    model = _difference()
    for _ in range(2):
        model(_X, _Y)
    with pytest.raises(TilewrightError) as found:
        model(*args, **kwargs)
    assert (type(found.value), found.value.message) == (type(expected.value), expected.value.message)
    assert found.value.help == expected.value.help
    assert found.value.location is not None
    assert found.value.location.file == __file__
    np.testing.assert_array_equal(model(_X, _Y), _X - _Y)


def test_inputs_with_defaults_are_told_apart() -> None:
    """After a call that leaves out the second input, the second argument by position is not the third input."""
    x, n = np.array([30, 50], np.float32), np.array([2], np.float32)
    model = _with_defaults()
    for _ in range(3):
        np.testing.assert_allclose(model(x, t=n), (x - 10) / 2)
        np.testing.assert_allclose(model(x, t=n), (x - 10) / 2)
        np.testing.assert_allclose(model(x, n), (x - 2) / 100)
        np.testing.assert_allclose(model(x, n), (x - 2) / 100)
        np.testing.assert_allclose(model(x, s=n), (x - 2) / 100)
        np.testing.assert_allclose(model(x), (x - 10) / 100)
        np.testing.assert_allclose(model(t=n, x=x), (x - 10) / 2)


def test_the_first_names_are_counted() -> None:
    assert [leading(names, "xst") for names in ("", "x", "xs", "xt", "t", "xst")] == [0, 1, 2, 1, 0, 3]


def test_a_changed_input_that_is_bound_by_value_is_not_served() -> None:
    model = _reshape()
    x, shape = np.arange(6, dtype=np.float32), np.array([2, 3])
    for _ in range(3):
        np.testing.assert_array_equal(model(x, shape), x.reshape(2, 3))
    shape[:] = 3, 2  # the same array with other contents
    for _ in range(3):
        np.testing.assert_array_equal(model(x, shape), x.reshape(3, 2))
    for sizes in ([6, 1], [6], [1, 6, 1], [2, 3]):
        np.testing.assert_array_equal(model(shape=np.array(sizes), x=x), x.reshape(sizes))
    # The same bytes as another array.
    for _ in range(2):
        model(x, np.array([2, 3]))
    with pytest.raises(TilewrightError, match="of uint64, not i64"):
        model(x, np.array([2, 3], np.uint64))
    with pytest.raises(TilewrightError, match="has shape"):
        model(x, np.array([[2, 3]]))


def test_an_input_that_is_bound_by_value_is_compared_by_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _reshape()
    x = np.arange(6, dtype=np.float32)
    for _ in range(2):
        model(x, np.array([2, 3]))
    _unchecked(monkeypatch)
    np.testing.assert_array_equal(model(x + 1, np.array([2, 3])), (x + 1).reshape(2, 3))
    np.testing.assert_array_equal(model(shape=np.array([9, 2, 9, 3])[1::2], x=x), x.reshape(2, 3))
    with pytest.raises(AssertionError, match="checked"):
        model(x, np.array([3, 2]))


def test_an_input_that_is_found_to_be_bound_later() -> None:
    """The branch taken for one shape binds an input by its contents; that for another shape does not."""
    nodes = [
        helper.make_node("Shape", ["shape"], ["count"]),
        helper.make_node("Squeeze", ["count"], ["rank"]),
        helper.make_node("Equal", ["rank", "one"], ["is_flat"]),
        helper.make_node(
            "If",
            ["is_flat"],
            ["y"],
            then_branch=helper.make_graph([helper.make_node("Identity", ["x"], ["a"])], "a", [], [_tensor("a", None)]),
            else_branch=helper.make_graph(
                [helper.make_node("Reshape", ["x", "shape"], ["b"])], "b", [], [_tensor("b", None)]
            ),
        ),
    ]
    inputs = [_tensor("x", [6]), _tensor("shape", ["rank"], TensorProto.INT64)]
    model = _model(nodes, inputs, ["y"], {"one": np.array(1)})
    x = np.arange(6, dtype=np.float32)
    for _ in range(3):
        for sizes in ([6], [6], [2, 3], [2, 3], [3, 2]):
            np.testing.assert_array_equal(model(x, np.array(sizes)), x.reshape(sizes))


def test_a_model_that_is_split_later_is_not_served_whole() -> None:
    model = _difference()
    for _ in range(2):
        model(_X, _Y)
    seen: list[Any] = []

    class Parts:
        def run(self, given: Any) -> Any:
            seen.append(given)
            return "from the parts"

    model._parts = Parts()  # type: ignore[assignment]
    assert model(_X, _Y) == "from the parts"
    assert list(seen[0]) == ["x", "y"]


def test_other_options_take_other_programs() -> None:
    model = _difference()
    for _ in range(2):
        model(_X, _Y)
    with events.capture() as seen, tw.options(threads=1, cache=False, debug=0):
        np.testing.assert_array_equal(model(_X, _Y), _X - _Y)
    assert any(record["kind"] == "runtime.bind" for record in seen), "another number of threads"
    with tw.options(target="interp"):
        for _ in range(2):
            np.testing.assert_array_equal(model(_X, _Y), _X - _Y)
    with tw.options(target="null"), pytest.raises(TilewrightError):
        model(_X, _Y)
    np.testing.assert_array_equal(model(_X, _Y), _X - _Y)


def test_captures_see_each_call() -> None:
    model = _difference()
    for _ in range(2):
        model(_X, _Y)
    with events.capture() as seen:
        for _ in range(3):
            model(_X, _Y)
    assert [record["kind"] for record in seen].count("runtime.launch") == 3


def test_calls_inside_a_trace_are_traced() -> None:
    model = _difference()
    for _ in range(2):
        model(_X, _Y)

    @tw.jit
    def outer(x: Any) -> Any:
        fixed = model(_X, _Y)
        assert isinstance(fixed, tw.Array)
        return model(x, _Y) * fixed

    np.testing.assert_array_equal(outer(_X), (_X - _Y) * (_X - _Y))


def test_kinds_of_arrays_alternate() -> None:
    torch = pytest.importorskip("torch")
    model = _difference()
    x, y = torch.from_numpy(_X.copy()), torch.from_numpy(_Y.copy())
    for _ in range(3):
        kinds = [type(model(*given)) for given in ((x, y), (_X, _Y), (x, _Y), (_X, y), (x, y))]
        assert kinds == [torch.Tensor, np.ndarray, torch.Tensor, np.ndarray, torch.Tensor]
        assert torch.equal(model(x, y), x - y)
    with pytest.raises(TilewrightError, match="records gradients"):
        model(x, y.clone().requires_grad_())


def test_numbers_and_patterns_are_converted_each_time() -> None:
    node = helper.make_node("Mul", ["x", "n"], ["y"])
    model = _model([node], [_tensor("x", [2]), _tensor("n", [])], ["y"])
    x = np.array([1, 2], np.float32)
    for n in (2, 2.0, np.array(3, np.float32), np.array(4, np.float32), 5, np.float32(6)):
        np.testing.assert_array_equal(model(x, n), x * np.float32(n))
    storage = next(s for s in STORAGES if s.name == "uint4")
    cast = _model(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], [_tensor("x", [3], TensorProto.UINT4)], ["y"]
    )
    for k in range(3):
        np.testing.assert_array_equal(cast(np.array([k, 7, 15], storage)), np.array([k, 7, 15], np.float32))


def test_threads_call_with_other_shapes() -> None:
    model = _difference(["rows", 2])
    reshape = _reshape()
    flat = np.arange(6, dtype=np.float32)
    wrong: list[object] = []
    barrier = threading.Barrier(3)

    def work(rows: int) -> None:
        x, y, sizes = _X[:rows] + rows, _Y[:rows], np.array([rows, 6 // rows])
        barrier.wait()
        for _ in range(400):
            if not np.array_equal(model(x, y), x - y) or not np.array_equal(model(y=y, x=x), x - y):
                wrong.append(rows)
            if reshape(flat, sizes).shape != (rows, 6 // rows):
                wrong.append(sizes)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not barrier.broken
