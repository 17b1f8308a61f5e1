"""Models with nodes that run on the host: how they are split, what they give, and where they are refused."""

from __future__ import annotations

import locale
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import DTypeError, ModelFileError, ShapeError, UnsupportedOperatorError
from tilewright.interop.arguments import TensorSpec
from tilewright.interop.onnx.host import HostNode
from tilewright.interop.onnx.loading import load_model
from tilewright.interop.onnx.model import OnnxModel
from tilewright.interop.onnx.parts import Parts

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

_INT64, _STRING, _FLOAT = TensorProto.INT64, TensorProto.STRING, TensorProto.FLOAT


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any] | None = None) -> Any:
    initialisers = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initialisers)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=imports)


def _tensor(name: str, shape: Any, type: int = _FLOAT) -> Any:
    return helper.make_tensor_value_info(name, type, shape)


def _parts(model: Any) -> Parts:
    parts = model._parts
    assert isinstance(parts, Parts)
    return parts


def _upper(source: str, result: str) -> Any:
    return helper.make_node("StringNormalizer", [source], [result], name=result, case_change_action="UPPER", locale="C")


def _detection() -> Any:
    """Scores and boxes, non-maximum suppression, and the boxes that it kept."""
    nodes = [
        helper.make_node("Sigmoid", ["logits"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "many", "iou", "least"], ["kept"], name="nms"),
        helper.make_node("Gather", ["kept", "two"], ["places"], axis=1),
        helper.make_node("Squeeze", ["boxes", "zero"], ["flat"]),
        helper.make_node("Gather", ["flat", "places"], ["chosen"]),
    ]
    constants = {
        "many": np.array([3]),
        "iou": np.array([0.5], np.float32),
        "least": np.array([0.5], np.float32),
        "two": np.array(2),
        "zero": np.array([0]),
    }
    return _model(
        nodes, [_tensor("logits", [1, 1, "n"]), _tensor("boxes", [1, "n", 4])], [_tensor("chosen", None)], constants
    )


def test_results_whose_sizes_depend_on_data() -> None:
    model = tw.from_onnx(_detection(), target="interp")
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 1.1], [5, 5, 6, 6], [9, 9, 10, 10]]], np.float32)
    for logits, expected in (([2, 3, 1, -4], [1, 2]), ([-1, -1, -1, 4], [3]), ([1, 1, 1, 1], [0, 2, 3])):
        found = model(np.array([[logits]], np.float32), boxes)
        np.testing.assert_array_equal(found, boxes[0, expected])
    assert model.host_nodes == ("node 'nms' (NonMaxSuppression): the sizes of its results depend on data",)
    # What does not depend on the node is in the first part.
    assert _parts(model).compiled_parts == 2


def test_strings_go_in_and_out() -> None:
    nodes = [_upper("x", "loud"), helper.make_node("Equal", ["loud", "known"], ["same"])]
    nodes += [helper.make_node("Cast", ["same"], ["number"], to=_FLOAT)]
    outputs = [_tensor("loud", None, _STRING), _tensor("number", None)]
    model = tw.from_onnx(_model(nodes, [_tensor("x", ["n"], _STRING)], outputs, {"known": np.array(["CAT"], object)}))
    for words in (np.array(["cat", "dog"]), np.array(["dog", "cat", "cat"], object)):
        loud, number = model(words)
        assert loud.dtype == object
        assert loud.tolist() == [word.upper() for word in words]
        np.testing.assert_array_equal(number, (words == "cat").astype(np.float32))
    assert str(model.inputs[0]) == "x: string[n]"
    for wrong, error in ((np.ones(2), DTypeError), (np.array([b"cat"]), DTypeError), (np.array([["a"]]), ShapeError)):
        with pytest.raises(error, match="'x'"):
            model(wrong)


@pytest.fixture(autouse=True)
def _same_locale() -> Iterator[None]:
    """The reference would set the locale of the whole process where a node has one."""
    before = locale.setlocale(locale.LC_ALL)
    yield
    after = locale.setlocale(locale.LC_ALL)
    locale.setlocale(locale.LC_ALL, before)
    assert after == before


def test_strings_in_upper_case() -> None:
    model = tw.from_onnx(_model([_upper("x", "y")], [_tensor("x", [1], _STRING)], [_tensor("y", [1], _STRING)]))
    assert model(np.array(["a"])).tolist() == ["A"]


def test_parts_are_as_few_as_can_be() -> None:
    # Both chains of host nodes lie between the same two parts, and constants belong to the part that reads them.
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Unique", ["a"], ["u"]),
        helper.make_node("Neg", ["x"], ["b"]),
        helper.make_node("Unique", ["b"], ["v"]),
        helper.make_node("Unique", ["v"], ["w"]),
        helper.make_node("Constant", [], ["shape"], value_ints=[-1, 1]),
        helper.make_node("Reshape", ["u", "shape"], ["column"]),
        helper.make_node("Mul", ["column", "w"], ["y"]),
    ]
    model = tw.from_onnx(_model(nodes, [_tensor("x", ["n"])], [_tensor("y", None)]), target="interp")
    x = np.array([1, -1, 2, 2], np.float32)
    np.testing.assert_array_equal(model(x), np.unique(np.abs(x))[:, None] * np.unique(-x))
    parts = _parts(model)
    assert parts.compiled_parts == 2
    assert len(parts.host_nodes) == 3


def test_bodies_with_such_nodes_run_on_the_host_whole() -> None:
    def branch(name: str, nodes: list[Any]) -> Any:
        return helper.make_graph(nodes, name, [], [_tensor(name, None, _STRING)])

    yes = branch("yes", [_upper("x", "yes")])
    no = branch("no", [helper.make_node("Identity", ["x"], ["no"])])
    nodes = [
        helper.make_node("Greater", ["n", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], name="choice", then_branch=yes, else_branch=no),
    ]
    inputs = [_tensor("x", [1], _STRING), _tensor("n", [])]
    model = tw.from_onnx(_model(nodes, inputs, [_tensor("y", None, _STRING)], {"zero": np.float32(0)}), target="interp")
    assert model.host_nodes == ("node 'choice' (If): it has strings",)
    assert model(np.array(["a"]), np.float32(1)).tolist() == ["A"]
    assert model(np.array(["a"]), np.float32(-1)).tolist() == ["a"]


def test_functions_with_such_nodes_run_on_the_host_whole() -> None:
    imports = [helper.make_opsetid("", 20)]
    shout = helper.make_function("my", "Shout", ["x"], ["y"], [_upper("x", "y")], imports)
    model = _model([], [_tensor("x", [1], _STRING)], [_tensor("y", [1], _STRING)])
    model.graph.node.append(helper.make_node("Shout", ["x"], ["y"], domain="my"))
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.append(shout)
    assert tw.from_onnx(model)(np.array(["a"])).tolist() == ["A"]


@pytest.mark.parametrize("inner", ["Neg", "Unique"])
def test_functions_that_call_each_other_twice_are_bounded(inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # 2^30 nodes when all calls are written out.
    monkeypatch.setattr("tilewright.interop.onnx.graph._MAX_WORK", 2000)
    monkeypatch.setattr("tilewright.interop.onnx.reference._MAX_STEPS", 2000)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("my", 1)]
    functions = [helper.make_function("my", "f0", ["x"], ["y"], [helper.make_node(inner, ["x"], ["y"])], imports)]
    for n in range(1, 31):
        calls = [helper.make_node(f"f{n - 1}", [a], [b], domain="my") for a, b in (("x", "t"), ("t", "y"))]
        functions.append(helper.make_function("my", f"f{n}", ["x"], ["y"], calls, imports))
    call = helper.make_node("f30", ["x"], ["y"], domain="my")
    proto = _model([call], [_tensor("x", [2])], [_tensor("y", None)])
    proto.opset_import.append(helper.make_opsetid("my", 1))
    proto.functions.extend(functions)
    model = tw.from_onnx(proto, target="interp")
    with pytest.raises(UnsupportedOperatorError, match="more than 2000 "):
        model(np.ones(2, np.float32))


def test_programs_cannot_hold_such_nodes() -> None:
    model = tw.from_onnx(_detection())
    arguments = (np.zeros((1, 1, 2), np.float32), np.zeros((1, 2, 4), np.float32))
    with pytest.raises(UnsupportedOperatorError, match=r"traced.*'nms' \(NonMaxSuppression\): the sizes"):
        tw.jit(lambda *arrays: model(*arrays))(*arguments)
    with pytest.raises(UnsupportedOperatorError, match=r"lowered.*'nms' \(NonMaxSuppression\)"):
        model.lower(*arguments)


def test_errors_on_the_host_name_the_node() -> None:
    node = helper.make_node("StringNormalizer", ["x"], ["y"], name="odd", case_change_action="SIDEWAYS")
    model = tw.from_onnx(_model([node], [_tensor("x", [1], _STRING)], [_tensor("y", [1], _STRING)]))
    with pytest.raises(ModelFileError, match=r"node 'odd' \(StringNormalizer\), on the host: RuntimeError.*SIDEWAYS"):
        model(np.array(["a"]))
    model = tw.from_onnx(_model([_upper("nothing", "y")], [], [_tensor("y", [1], _STRING)]))
    with pytest.raises(ModelFileError, match="nothing gives the value 'nothing'"):
        model()


def test_tensors_of_a_node_on_the_host_are_in_the_model() -> None:
    keys = numpy_helper.from_array(np.array([1, 2]), "keys")
    keys.data_location = TensorProto.EXTERNAL
    entry = keys.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    node = helper.make_node("LabelEncoder", ["x"], ["y"], keys_tensor=keys, values_floats=[1.0], domain="ai.onnx.ml")
    model = tw.from_onnx(_model([node], [_tensor("x", [1], _INT64)], [_tensor("y", None)]))
    with pytest.raises(UnsupportedOperatorError, match="files of their own"):
        model(np.array([1]))


def test_tensors_of_functions_on_the_host_are_in_the_model() -> None:
    stored = numpy_helper.from_array(np.array([1.0], np.float32), "stored")
    stored.data_location = TensorProto.EXTERNAL
    stored.external_data.add(key="location", value="/etc/passwd")
    nodes = [helper.make_node("Constant", [], ["c"], value=stored), helper.make_node("Add", ["x", "c"], ["t"])]
    nodes += [helper.make_node("Unique", ["t"], ["y"])]
    proto = _model([helper.make_node("F", ["x"], ["y"], domain="my")], [_tensor("x", [1])], [_tensor("y", None)])
    proto.opset_import.append(helper.make_opsetid("my", 1))
    proto.functions.append(helper.make_function("my", "F", ["x"], ["y"], nodes, [helper.make_opsetid("", 20)]))
    with pytest.raises(UnsupportedOperatorError, match="files of their own"):
        tw.from_onnx(proto)(np.ones(1, np.float32))


def test_a_name_has_one_value() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["u"]), helper.make_node("Unique", ["u"], ["v"])]
    nodes += [helper.make_node("Abs", ["x"], ["u"]), helper.make_node("Unique", ["u"], ["w"])]
    outputs = [_tensor("v", None), _tensor("w", None)]
    with pytest.raises(ModelFileError, match=r"\(Abs\) gives the value 'u'"):
        tw.from_onnx(_model(nodes, [_tensor("x", [3])], outputs))


def test_as_many_parts_as_there_are_host_nodes() -> None:
    names = [f"v{n}" for n in range(1601)]
    nodes = [helper.make_node("Unique" if n % 2 else "Neg", [names[n]], [names[n + 1]]) for n in range(1600)]
    graph = _model(nodes, [_tensor("v0", [3])], [_tensor("v1600", None)])
    operations: list[str] = []
    parts = Parts(load_model(graph), {n: "to see" for n in range(1, 1600, 2)}, lambda part: _Recorded(part, operations))
    assert parts.compiled_parts == 800
    assert operations == ["Neg"] * 800


class _Recorded:
    """A part that notes its nodes."""

    host_nodes = ()

    def __init__(self, part: Any, operations: list[str]) -> None:
        operations.extend(node.op_type for node in part.proto.graph.node)
        self.outputs = tuple(TensorSpec(info.name, None, None) for info in part.proto.graph.output)

    def __call__(self, **values: Any) -> Any:
        return None


def test_arguments_stay_as_they_are() -> None:
    x = np.array([3.0, 1.0, 3.0], np.float32)
    model = tw.from_onnx(_model([helper.make_node("Unique", ["x"], ["y"])], [_tensor("x", [3])], [_tensor("y", None)]))
    np.testing.assert_array_equal(model(x), [1, 3])
    assert x.tolist() == [3, 1, 3]


def test_an_initialiser_may_be_replaced_by_an_argument() -> None:
    nodes = [helper.make_node("Unique", ["x"], ["u"]), helper.make_node("Mul", ["u", "factor"], ["y"])]
    inputs = [_tensor("x", [3]), _tensor("factor", [])]
    model = tw.from_onnx(_model(nodes, inputs, [_tensor("y", None)], {"factor": np.float32(2)}), target="interp")
    x = np.array([3, 1, 3], np.float32)
    np.testing.assert_array_equal(model(x), [2, 6])
    np.testing.assert_array_equal(model(x, np.float32(5)), [5, 15])


def _random_graph(random_: random.Random) -> tuple[Any, dict[int, str]]:
    """A graph of sums and products of inputs, constants and what was made before, and nodes of it for the host."""
    names, nodes = ["x", "y", "c", "d"], list[Any]()
    for n in range(random_.randint(3, 14)):
        op = random_.choice(["Add", "Mul", "Max", "Constant"])
        if op == "Constant":
            nodes.append(helper.make_node(op, [], [f"v{n}"], value_floats=[float(n), 1.0]))
        else:
            nodes.append(helper.make_node(op, random_.choices(names, k=2), [f"v{n}"]))
        names.append(f"v{n}")
    outputs = [_tensor(name, None) for name in random_.sample(names, 3)]
    constants = {"c": np.array([0.5, -1], np.float32), "d": np.array([2, 3], np.float32)}
    model = _model(nodes, [_tensor("x", [2]), _tensor("y", [2])], outputs, constants)
    return model, {n: "to see" for n in range(len(nodes)) if random_.random() < 0.35}


def _most_parts(graph: Any, hosts: dict[int, str]) -> int:
    """The longest alternation of compiled nodes and host nodes on a way through the graph, in compiled nodes, where a
    node that depends on constants alone counts for nothing."""
    makers = {node.output[0]: n for n, node in enumerate(graph.node)}

    def is_constant(n: int) -> bool:
        return n not in hosts and all(
            name in "cd" or (name in makers and is_constant(makers[name])) for name in graph.node[n].input
        )

    def parts(n: int) -> tuple[int, bool]:
        before = [parts(makers[name]) for name in graph.node[n].input if name in makers]
        most = max(before, default=(0, True))
        if n in hosts or is_constant(n):
            return most[0], n in hosts
        return max((count + (on_host or count == 0) for count, on_host in before), default=1), False

    return max((parts(n)[0] for n in range(len(graph.node))), default=0)


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_in_parts_are_those_in_one(seed: int) -> None:
    proto, hosts = _random_graph(random.Random(seed))
    loaded = load_model(proto)
    parts = Parts(loaded, hosts, lambda part: OnnxModel(part, "interp"))
    x, y = np.array([1, 2], np.float32), np.array([-1, 0.25], np.float32)
    expected = ReferenceEvaluator(proto).run(None, {"x": x, "y": y})
    for found, wanted in zip(parts.run({"x": x, "y": y}), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    # Constants alone, for a host node or as a result, make a part too.
    assert parts.compiled_parts <= _most_parts(proto.graph, hosts) + 1


# ---- Fourier transforms -------------------------------------------------------------------------------------------


def _transform(version: int, count: int | None, axis: int, channels: int, type: int, **attributes: int) -> Any:
    names = ["x"] if count is None else ["x", "count"]
    constants = {} if count is None else {"count": np.array(count)}
    if version >= 20:
        names = [*names, "axis"] if count is not None else ["x", "", "axis"]
        constants["axis"] = np.array(axis)
    else:
        attributes["axis"] = axis
    node = helper.make_node("DFT", names, ["y"], **attributes)
    model = _model([node], [_tensor("x", [None, None, channels], type)], [_tensor("y", None, type)], constants)
    model.opset_import[0].version = version
    return model


@pytest.mark.parametrize("version", [17, 20])
@pytest.mark.parametrize("points", [24, 600])
@pytest.mark.parametrize("count", [None, 1.5, 0.9])
@pytest.mark.parametrize(("channels", "inverse", "onesided"), [(1, 0, 0), (2, 0, 0), (2, 1, 0), (1, 0, 1), (2, 1, 1)])
def test_transforms_are_those_of_numpy(
    version: int, points: int, count: float | None, channels: int, inverse: int, onesided: int
) -> None:
    length = None if count is None else int(count * points)
    x = np.random.default_rng(points).standard_normal((2, points, channels)).astype(np.float32)
    model = tw.from_onnx(
        _transform(version, length, 1, channels, _FLOAT, inverse=inverse, onesided=onesided), target="interp"
    )
    found = model(x)
    wide = x.astype(np.float64)
    numbers = wide[..., 0] if channels == 1 else wide[..., 0] + 1j * wide[..., 1]
    if inverse and onesided:
        expected = np.fft.irfft(numbers, length, 1)[..., None]
    else:
        function = np.fft.ifft if inverse else np.fft.rfft if onesided else np.fft.fft
        result = function(numbers, length, 1)
        expected = np.stack([result.real, result.imag], -1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-6 * points * np.abs(expected).mean())
    used = 2 * (points - 1) if inverse and onesided and length is None else length or points
    assert bool(model.host_nodes) == (used >= 512)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("count", [64, 600])
def test_windowed_transforms_are_those_of_numpy(count: int, onesided: int) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, 2000, 1)).astype(np.float32)
    window = generator.random(count).astype(np.float32)
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"], onesided=onesided)
    constants = {"step": np.array(100), "window": window}
    model = tw.from_onnx(_model([node], [_tensor("x", [2, "n", 1])], [_tensor("y", None)], constants), target="interp")
    starts = range(0, 2000 - count + 1, 100)
    frames = np.stack([x[:, s : s + count, 0].astype(np.float64) * window for s in starts], 1)
    result = (np.fft.rfft if onesided else np.fft.fft)(frames)
    np.testing.assert_allclose(model(x), np.stack([result.real, result.imag], -1), atol=1e-3)
    assert bool(model.host_nodes) == (count >= 512)


def test_a_long_transform_stays_in_a_program_that_holds_it() -> None:
    model = tw.from_onnx(_transform(20, None, 1, 1, _FLOAT))
    x = np.random.default_rng(0).standard_normal((1, 600, 1)).astype(np.float32)
    inside = tw.jit(lambda x: model(x), target="interp")(x)
    np.testing.assert_allclose(inside, model(x), atol=1e-3)
    assert model.lower(x) is not None


# ---- what is found to depend on data when it is traced ------------------------------------------------------------


def _nonzero() -> Any:
    """The places of what is positive after sums along an axis, whose number depends on data."""
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["places"], name="where"),
        helper.make_node("Cast", ["places"], ["y"], to=_FLOAT),
    ]
    return _model(nodes, [_tensor("x", ["n", 300])], [_tensor("y", None)], {"axis": np.array(1)})


def test_too_many_elements_to_compile_for_run_on_the_host() -> None:
    model = tw.from_onnx(_nonzero(), target="interp")
    x = np.random.default_rng(0).standard_normal((300, 300))
    expected = np.stack(np.nonzero(np.maximum(np.cumsum(x, 1), 0)))
    np.testing.assert_array_equal(model(x.astype(np.float32)), expected)
    assert len(model.host_nodes) == 1
    assert "node 'where' (NonZero)" in model.host_nodes[0]


def test_sizes_that_a_loop_computes_run_on_the_host() -> None:
    # The number of halvings until one is left, as the length of a range.
    body = helper.make_graph(
        [
            helper.make_node("Div", ["n", "two"], ["half"]),
            helper.make_node("Add", ["trips", "one"], ["more"]),
            helper.make_node("Greater", ["half", "one"], ["goes_on"]),
        ],
        "body",
        [_tensor("trip", [], _INT64), _tensor("go", [], TensorProto.BOOL)]
        + [_tensor(name, [], _INT64) for name in ("n", "trips")],
        [_tensor("goes_on", [], TensorProto.BOOL), _tensor("half", [], _INT64), _tensor("more", [], _INT64)],
    )
    nodes = [
        helper.make_node("Loop", ["", "", "x", "zero"], ["last", "count"], body=body),
        helper.make_node("Range", ["zero", "count", "one"], ["y"], name="steps"),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "two": np.array(2)}
    model = tw.from_onnx(
        _model(nodes, [_tensor("x", [], _INT64)], [_tensor("y", None, _INT64)], constants), target="interp"
    )
    for n, count in ((8, 3), (33, 5), (2, 1)):
        np.testing.assert_array_equal(model(np.array(n)), np.arange(count))
    assert "node 'steps' (Range)" in model.host_nodes[0]


@pytest.mark.parametrize("trips", [9, 70, None])
def test_loops_that_gather_results_until_a_condition_run_on_the_host(trips: int | None) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["c", "x"], ["sum"]),
            helper.make_node("ReduceSum", ["sum"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "limit"], ["goes_on"]),
            helper.make_node("Identity", ["sum"], ["row"]),
        ],
        "body",
        [_tensor("trip", [], _INT64), _tensor("go", [], TensorProto.BOOL), _tensor("c", [3])],
        [_tensor("goes_on", [], TensorProto.BOOL), _tensor("sum", [3]), _tensor("row", [3])],
    )
    nodes = [
        helper.make_node("Exp", ["logs"], ["x"]),
        helper.make_node("Loop", ["trips" if trips else "", "", "none"], ["last", "rows"], name="until", body=body),
        helper.make_node("Neg", ["rows"], ["y"]),
    ]
    constants = {"trips": np.array(trips or 0), "none": np.zeros(3, np.float32), "limit": np.float32(12)}
    inputs, outputs = [_tensor("logs", [3])], [_tensor("last", [3]), _tensor("y", None)]
    model = tw.from_onnx(_model(nodes, inputs, outputs, constants), target="interp")
    for x, count in (([1, 2, 0.5], 4), ([9, 9, 9], 1), ([1, 1, 1], 4)):
        last, y = model(np.log(np.array(x, np.float32)))
        np.testing.assert_allclose(y, -np.cumsum([x] * count, 0), rtol=1e-6)
        np.testing.assert_allclose(last, -y[-1])
    assert "node 'until' (Loop)" in model.host_nodes[0]


# ---- control flow, and what hostile models want ---------------------------------------------------------------------


def _counting(trips: int, nodes: list[Any], constants: dict[str, Any]) -> Any:
    """A loop on the host, for a string is carried along, that carries `b` and `a` as `a` and `b`, and gathers `row`."""
    body = helper.make_graph(
        [_upper("s", "loud"), *nodes, helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [_tensor("n", [], _INT64), _tensor("go", [], TensorProto.BOOL), _tensor("s", [1], _STRING)]
        + [_tensor(name, None) for name in "ba"],
        [_tensor("on", [], TensorProto.BOOL), _tensor("loud", [1], _STRING), _tensor("c", None)]
        + [_tensor(name, None) for name in ("d", "row")],
        [numpy_helper.from_array(np.full(2, 10, np.float32), "k")],
    )
    loop = helper.make_node("Loop", ["trips", "", "s", "a", "b"], ["t", "x", "y", "rows"], name="turns", body=body)
    inputs = [_tensor("s", [1], _STRING), _tensor("a", None), _tensor("b", None), _tensor("k", None)]
    outputs = [_tensor("t", [1], _STRING), *(_tensor(name, None) for name in ("x", "y", "rows"))]
    return tw.from_onnx(_model([loop], inputs, outputs, {"trips": np.array(trips), **constants}), target="interp")


def test_loops_on_the_host_are_those_of_onnx() -> None:
    # Names in the body are those of other values around it, there is no condition, and rows have two axes.
    nodes = [helper.make_node("Add", ["a", "k"], ["c"]), helper.make_node("Mul", ["b", "outer"], ["d"])]
    nodes += [helper.make_node("Reshape", ["c", "column"], ["row"])]
    model = _counting(3, nodes, {"outer": np.float32(2), "column": np.array([2, 1])})
    a, b = np.array([1, 2], np.float32), np.array([3, 5], np.float32)
    text, x, y, rows = model(np.array(["q"]), a, b, np.float32(99))
    wanted = []
    for _ in range(3):
        # The body calls what it is given first `b`, and second `a`.
        b, a = a, b
        a, b = b * 2, a + 10
        a, b = b, a
        wanted.append(a.reshape(2, 1))
    assert text.tolist() == ["Q"]
    np.testing.assert_array_equal(x, a)
    np.testing.assert_array_equal(y, b)
    np.testing.assert_array_equal(rows, np.stack(wanted))


def test_loops_on_the_host_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.interop.onnx.reference._MAX_STEPS", 1000)
    nodes = [helper.make_node("Identity", [source], [result]) for source, result in ("ac", "bd")]
    nodes += [helper.make_node("Identity", ["a"], ["row"])]
    model = _counting(2**40, nodes, {})
    with pytest.raises(UnsupportedOperatorError, match=r"'turns' \(Loop\).*more than 1000 steps"):
        model(np.array(["q"]), *np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("ConstantOfShape", ["sizes"], {}),
        ("Expand", ["one", "sizes"], {}),
        ("Tile", ["square", "sizes"], {}),
        ("Range", ["zero", "many", "step"], {}),
        ("Pad", ["square", "pads"], {}),
        ("OneHot", ["sizes", "many", "pair"], {}),
        ("Resize", ["square", "", "", "sizes"], {}),
        ("HannWindow", ["many"], {}),
        ("MatMul", ["tall", "wide"], {}),
        ("Add", ["tall", "wide"], {}),
        ("DFT", ["signal", "many"], {}),
    ],
)
def test_results_on_the_host_are_bounded(op: str, inputs: list[str], attributes: dict[str, Any]) -> None:
    values = {
        "sizes": np.array([2**20, 2**20]),
        "one": np.array([[1]], np.float32),
        "square": np.ones((2, 2), np.float32),
        "zero": np.array(0),
        "many": np.array(2**40),
        "step": np.array(1),
        "pads": np.array([0, 2**35, 0, 2**35]),
        "pair": np.array([0, 1], np.float32),
        "tall": np.ones((2**15, 1), np.float32),
        "wide": np.ones((1, 2**15), np.float32),
        "signal": np.ones((1, 4, 1), np.float32),
    }
    node = helper.make_node(op, inputs, ["y"], name="odd", **attributes)
    loaded = load_model(_model([node], [], [_tensor("y", None)], {}))
    host = HostNode(node, [name for name in inputs if name], "to see", loaded)
    with pytest.raises(UnsupportedOperatorError, match=rf"'odd' \({op}\).*elements on the host"):
        host.run(values)


# ---- models of features -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_rows_are_normalised_as_onnx_says(norm: str) -> None:
    node = helper.make_node("Normalizer", ["x"], ["y"], norm=norm, domain="ai.onnx.ml")
    model = tw.from_onnx(_model([node], [_tensor("x", [2, 3])], [_tensor("y", None)]), target="interp")
    x = np.array([[1, -4, 2], [0, 0, 0]], np.float32)
    size = {"MAX": 2, "L1": 7, "L2": 21**0.5}[norm]
    np.testing.assert_allclose(model(x), x / size, rtol=1e-6)


def test_labels_scales_and_sums() -> None:
    nodes = [
        helper.make_node("LabelEncoder", ["x"], ["n"], keys_strings=["a", "b"], values_floats=[1.0, 2.0]),
        helper.make_node("Scaler", ["n"], ["s"], offset=[1.0, 0.0], scale=[2.0, 0.5]),
        helper.make_node(
            "LinearRegressor", ["s"], ["y"], coefficients=[1.0, 2.0, 3.0, 4.0], targets=2, intercepts=[1.0, 0]
        ),
        helper.make_node("Binarizer", ["y"], ["above"], threshold=4.5),
    ]
    for node in nodes:
        node.domain = "ai.onnx.ml"
    outputs = [_tensor("y", None), _tensor("above", None)]
    model = tw.from_onnx(_model(nodes, [_tensor("x", ["n", 2], _STRING)], outputs), target="interp")
    y, above = model(np.array([["a", "b"], ["b", "b"]]))
    np.testing.assert_array_equal(y, [[3, 4], [5, 10]])
    np.testing.assert_array_equal(above, [[0, 0], [1, 1]])
