"""`tw.jit`: what is traced again and what is not, containers, stages, donation, leaks."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
from api_support import run, same

import tilewright as tw
from tilewright.errors import (
    ArgumentError,
    DTypeError,
    OverlapError,
    ResourceExhausted,
    ShapeError,
    TargetError,
    TilewrightError,
    UnsupportedOnTargetError,
)
from tilewright.events import capture


class Counting:
    """A function that counts how often it is traced."""

    def __init__(self, function) -> None:
        self.traces = 0
        self._function = function

    def __call__(self, *args, **kwargs):
        self.traces += 1
        return self._function(*args, **kwargs)


def test_named_arguments_share_the_program_of_positional_ones() -> None:
    traced: list[str] = []

    def difference(x: Any, y: Any, *, scale: float | None = None) -> Any:
        traced.append("once more")
        return x - y if scale is None else (x - y) * scale

    f = tw.jit(difference)
    x, y = np.arange(6, dtype=np.float32), np.ones(6, np.float32)
    for found in (f(x, y), f(x, y=y), f(x=x, y=y), f(y=y, x=x)):
        np.testing.assert_array_equal(found, x - y)
    assert len(traced) == 1
    np.testing.assert_array_equal(f(x, y=y, scale=2.0), (x - y) * 2)
    np.testing.assert_array_equal(f(y=y, x=x, scale=2.0), (x - y) * 2)
    compiled = f.lower(x, y=y).compile()
    for found in (compiled(x, y), compiled(x, y=y), compiled(y=y, x=x)):
        np.testing.assert_array_equal(found, x - y)


def test_names_of_positional_parameters_are_no_keywords() -> None:
    f = tw.jit(lambda x, /, y: x - y)
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(f(x, y=x), x - x)
    with pytest.raises(TypeError):
        f(x=x, y=x)


def test_one_trace_per_signature():
    counted = Counting(lambda x, y: x + y)
    f = tw.jit(counted, target="interp")
    x = np.ones(3, np.float32)
    for _ in range(3):
        same(f(x, x), x + x)
    assert counted.traces == 1
    f(x[:2], x[:2])
    assert counted.traces == 2
    f(x.astype(np.float64), x)
    assert counted.traces == 3
    f(x, 1)
    f(x, 2)
    assert counted.traces == 4
    f(x, 1.0)
    f(x, True)
    assert counted.traces == 6
    f(x, y=x)
    f(x, y=x * 2)
    assert counted.traces == 7


def test_each_number_of_threads_has_its_program():
    """Tiles are chosen for it: what was compiled for one thread may have no work for a second one."""
    counted = Counting(lambda x: x @ x)
    f = tw.jit(counted, target="cpu")
    x = np.ones((64, 64), np.float32)
    for _ in range(2):
        for threads in (1, 2):
            with tw.options(threads=threads, cache=False):
                same(f(x), x @ x)
                same(f(x), x @ x)
    assert counted.traces == 2


def test_calls_of_the_same_types_go_to_the_native_function(monkeypatch: pytest.MonkeyPatch):
    f = tw.jit(lambda x, y: x + y, target="cpu")
    x = np.ones(3, np.float32)
    for _ in range(2):
        f(x, x)

    def look_up(*_: object) -> None:
        raise AssertionError("the types of the arguments were looked up")

    monkeypatch.setattr(f, "_look_up", look_up)
    same(f(x, x), x + x)
    with pytest.raises(AssertionError, match="looked up"):
        f(x[:2], x[:2])


def test_containers_in_and_out():
    class Pair(NamedTuple):
        left: Any
        right: Any

    @dataclass(frozen=True)
    class Layer:
        weight: Any
        bias: Any
        name: str = field(default="dense", metadata={"static": True})

    def function(tree):
        pair, layer, rest = tree
        return {"pair": Pair(pair.right, pair.left), "layer": layer, "rest": [rest[0], None, ({"a": rest[1]},)]}

    x = [np.full(2, n, np.float32) for n in range(6)]
    result = run(function, (Pair(x[0], x[1]), Layer(x[2], x[3], "head"), [x[4], 5]))
    assert type(result["pair"]) is Pair
    same(result["pair"].left, x[1])
    assert type(result["layer"]) is Layer
    assert result["layer"].name == "head"
    same(result["layer"].weight, x[2])
    assert result["rest"][1] is None
    same(result["rest"][2][0]["a"], np.asarray(5))


def test_ordered_dicts_keep_their_order():
    state = OrderedDict([("weight", np.full(2, 3, np.float32)), ("bias", np.ones(2, np.float32))])
    result = run(lambda s: OrderedDict((name, value + len(s)) for name, value in s.items()), state)
    assert type(result) is OrderedDict
    assert list(result) == ["weight", "bias"]
    same(result["weight"], np.full(2, 5, np.float32))
    with pytest.raises(tw.errors.ArgumentError, match=r"argument `s\['bias'\]`"):
        run(lambda s: s["weight"], OrderedDict(weight=np.ones(2), bias="text"))


def test_results_that_are_no_traced_arrays():
    result = run(lambda x: (1, 2.5, True, np.arange(2), None), np.zeros(1))
    for actual, expected in zip(result[:4], (1, np.float32(2.5), True, np.arange(2)), strict=True):
        same(actual, expected)
    assert run(lambda: (), *()) == ()
    assert run(lambda x: None, np.zeros(1)) is None


def test_results_do_not_share_memory_with_arguments():
    x = np.zeros(3)
    same_array, other = run(lambda a: (a, a), x)
    assert not np.shares_memory(same_array, x)
    assert not np.shares_memory(other, x)


def test_static_arguments():
    counted = Counting(lambda x, axis, mode="sum": getattr(x, mode)(axis))

    def function(x, axis, mode="sum"):
        return counted(x, axis, mode)

    f = tw.jit(function, target="interp", static_argnames=("axis", "mode"))
    x = np.arange(6.0).reshape(2, 3)
    same(f(x, 0), x.sum(0))
    same(f(x, 1), x.sum(1))
    same(f(x, axis=1), x.sum(1))
    same(f(x, 1, "max"), x.max(1))
    same(f(x + 1, 1, mode="max"), (x + 1).max(1))
    traces = counted.traces
    f(x, 0)
    f(x, 1, "max")
    assert counted.traces == traces
    with pytest.raises(ArgumentError, match="hash"):
        f(x, [0])


def test_static_values_of_other_types_are_others():
    f = tw.jit(lambda x, n: x * n, target="interp", static_argnames="n")
    x = np.arange(2, dtype=np.int8)
    assert [f(x, 1).dtype, f(x, 1.0).dtype, f(x, True).dtype] == [np.int8, np.float32, np.int8]


def test_names_that_are_no_parameters():
    for keywords in ({"static_argnames": "n"}, {"donate": ("y",)}):
        with pytest.raises(ArgumentError):
            tw.jit(lambda x: x, **keywords)


def test_functions_with_open_parameters():
    same(
        run(lambda *xs, scale=1.0, **more: sum(xs) * scale + more["b"], np.ones(2), np.ones(2), b=np.ones(2)),
        np.full(2, 3.0),
    )
    f = tw.jit(lambda x, *rest, n: x * n, target="interp", static_argnames="n")
    same(f(np.ones(2), np.ones(1), n=3), np.full(2, 3.0))


def test_methods():
    @dataclass
    class Model:
        weight: Any

        @tw.jit(target="interp")
        def __call__(self, x):
            return x * self.weight

    same(Model(np.full(2, 3.0))(np.ones(2)), np.full(2, 3.0))


def test_a_jitted_function_is_inlined_in_another():
    counted = Counting(lambda x: x * 2)
    inner = tw.jit(counted, target="interp")
    outer = tw.jit(lambda x: inner(x) + inner(x + 1), target="interp")
    same(outer(np.arange(3.0)), np.arange(3.0) * 4 + 2)
    assert counted.traces == 2
    assert {node.op for node in outer.lower(np.arange(3.0)).graph.nodes} <= {"map", "constant", "broadcast"}


def test_the_default_target_comes_from_the_options():
    f = tw.jit(lambda x: x + 1)
    with tw.options(target="interp"):
        same(f(np.arange(3)), np.arange(3) + 1)
    with tw.options(target="abacus"), pytest.raises(TargetError):
        f(np.arange(3))


def test_decorator_forms_and_names():
    @tw.jit
    def first(x):
        """Says what it does."""
        return x

    @tw.jit(target="interp")
    def second(x):
        return x + 1

    assert (first.__name__, first.__doc__) == ("first", "Says what it does.")
    same(second(np.ones(2)), np.full(2, 2.0))


def test_threads_share_the_cache():
    counted = Counting(lambda x: x + 1)
    f = tw.jit(counted, target="interp")
    results = []
    threads = [threading.Thread(target=lambda: results.append(f(np.arange(4)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.traces == 1
    assert len(results) == 4


# ---- stages ---------------------------------------------------------------------------------------------------------


def test_lowering_of_shapes():
    f = tw.jit(lambda x, w: x @ w, target="interp")
    lowered = f.lower(tw.ShapeDtype((2, 3), "f32"), w=tw.ShapeDtype([3, 4], tw.f32))
    assert "array.contract" in lowered.ir()
    assert "tensor<2x4xf32>" in lowered.ir("array")
    compiled = lowered.compile()
    same(compiled(np.ones((2, 3), np.float32), w=np.ones((3, 4), np.float32)), np.full((2, 4), 3, np.float32))
    assert compiled.ir("array") == lowered.ir()
    assert isinstance(compiled.explain(), str)
    for call in (compiled.asm, compiled.cost, lambda: compiled.save("x.twp")):
        with pytest.raises(UnsupportedOnTargetError):
            call()
    with pytest.raises(ArgumentError):
        lowered.ir("tile")
    with pytest.raises(TargetError):
        lowered.compile("abacus")


def test_a_compiled_program_takes_what_it_was_traced_for():
    f = tw.jit(lambda x, n, tree: x * n + tree["b"], target="interp", static_argnames="n")
    x = np.ones(3)
    compiled = f.lower(x, 2, {"b": x}).compile()
    same(compiled(x, 2, {"b": x}), np.full(3, 3.0))
    for arguments, error in [
        ((x[:2], 2, {"b": x}), ShapeError),
        ((x.astype(np.float32), 2, {"b": x}), DTypeError),
        ((x, 3, {"b": x}), ArgumentError),
        ((x, 2, {"c": x}), ArgumentError),
        ((x, 2, (x,)), ArgumentError),
        ((tw.ShapeDtype((3,), tw.f64), 2, {"b": x}), ArgumentError),
    ]:
        with pytest.raises(error):
            compiled(*arguments)


def test_names_of_inputs():
    f = tw.jit(lambda params, *xs, scale: xs[0] * scale + params["w"][1], target="interp")
    x = np.ones(2)
    lowered = f.lower({"w": [x, x]}, x, scale=x)
    assert [value.name for value in lowered.graph.inputs] == ["params['w'][0]", "params['w'][1]", "argument 2", "scale"]


def test_shape_dtype_checks():
    assert tw.ShapeDtype(3, np.float32) == tw.ShapeDtype((3,), tw.f32)
    with pytest.raises(ShapeError):
        tw.ShapeDtype((-1,), tw.f32)
    with pytest.raises(DTypeError):
        tw.ShapeDtype((1,), "complex256")


def test_equal_programs_have_equal_digests():
    from tilewright.frontend.trace import digest

    def program(scale):
        return tw.jit(lambda x: tw.fori_loop(0, 3, lambda i, c: c * scale, x)).lower(np.ones(2)).graph

    assert digest(program(2)) == digest(program(2))
    assert digest(program(2)) != digest(program(3))


# ---- donation -------------------------------------------------------------------------------------------------------


def test_donations_pair_inputs_with_results_of_their_type():
    def step(cache, x, position):
        return x.sum(), cache["v"].at[position].set(x), cache["k"].at[position].set(-x)

    cache = {"k": np.zeros((4, 2)), "v": np.zeros((4, 2))}
    f = tw.jit(step, target="interp", donate="cache")
    assert f.lower(cache, np.ones(2), 1).donated == ((0, 1), (1, 2))
    same(f(cache, np.ones(2), 1)[2], np.array([[0, 0], [-1, -1], [0, 0], [0, 0.0]]))


def test_donations_that_cannot_be():
    with pytest.raises(ArgumentError, match="donated"):
        tw.jit(lambda x: x.sum(), target="interp", donate="x")(np.ones(3))
    x = np.ones(3)
    x.flags.writeable = False
    same(tw.jit(lambda a: a + 1, target="interp")(x), np.full(3, 2.0))
    with pytest.raises(ArgumentError, match="read-only"):
        tw.jit(lambda a: a + 1, target="interp", donate="a")(x)


@pytest.mark.parametrize("donate", ["x", ("x", "y")])
def test_donated_inputs_are_apart_from_others(donate):
    x = np.ones(4, np.float32)
    f = tw.jit(lambda x, y: (x + y, x - y), donate=donate, target="cpu")
    for arrays in ((x, x), (x[:3], x[1:])):
        with pytest.raises(OverlapError, match="which is donated to `lambda`, overlaps `in1`") as raised:
            f(*arrays)
        assert raised.value.help == "pass a copy of one of them, or do not donate it"
    same(f(np.ones(3, np.float32), x[:3])[0], np.full(3, 2, np.float32))


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    ["text", object(), {1, 2}, np.array(["a"]), np.array([1j], np.clongdouble), np.zeros(2, ">c8"), np.zeros(2, ">f4")],
    ids=lambda value: type(value).__name__,
)
def test_arguments_that_cannot_be_traced(bad):
    with pytest.raises(TilewrightError, match="argument `tree"):
        tw.jit(lambda tree: 0, target="interp")({"x": np.zeros(2), "bad": bad})


def test_integers_that_do_not_fit():
    with pytest.raises(DTypeError):
        run(lambda x: x, 2**70)
    with pytest.raises(DTypeError):
        run(lambda x: x + 2**40, np.zeros(2, np.int32))


def test_results_that_cannot_be_returned():
    with pytest.raises(ArgumentError, match="returned"):
        run(lambda x: "text", np.zeros(2))


def test_array_functions_need_a_trace():
    with pytest.raises(ArgumentError, match="outside"):
        tw.exp(np.zeros(2))


def test_values_of_another_trace():
    kept = []
    run(lambda x: kept.append(x) or x, np.zeros(2))
    with pytest.raises(ArgumentError, match="another trace"):
        run(lambda x: x + kept[0], np.zeros(2))
    with pytest.raises(ArgumentError, match="another trace"):
        run(lambda x: kept[0], np.zeros(2))


def test_errors_of_the_user_pass_through_and_leave_no_trace_open():
    def broken(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(broken, np.zeros(2))
    with pytest.raises(ArgumentError, match="outside"):
        tw.zeros(2)


# ---- native calls ---------------------------------------------------------------------------------------------------


def test_native_calls_look_at_every_argument(tmp_path):
    f = tw.jit(lambda x, y=None: x * 2 if y is None else x + y, target="cpu")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = np.full((3, 4), 100, np.float32)
    strided = np.arange(48, dtype=np.float32).reshape(6, 8)[::2, ::2]
    calls = [
        ((x,), x * 2),
        ((x, y), x + y),
        ((strided,), strided * 2),
        ((x[:2],), x[:2] * 2),
        ((x.astype(np.float64),), x.astype(np.float64) * 2),
        ((x.astype(np.int32),), x.astype(np.int32) * 2),
        ((np.asfortranarray(x),), x * 2),
        ((3,), np.asarray(6)),
        ((x, 1), x + 1),
    ]
    with tw.options(cache_dir=tmp_path):
        for _ in range(4):
            for arguments, expected in calls:
                for _ in range(3):
                    same(f(*arguments), expected)
    same(y, np.full((3, 4), 100, np.float32))


def test_native_calls_return_containers(tmp_path):
    x = np.arange(4.0)
    with tw.options(cache_dir=tmp_path):
        one = tw.jit(lambda a: [a + 1], target="cpu")
        two = tw.jit(lambda a: {"b": a + 1, "c": (a * 2,)}, target="cpu")
        for _ in range(4):
            (only,) = one(x)
            same(only, x + 1)
            result = two(x)
            same(result["b"], x + 1)
            same(result["c"][0], x * 2)


def test_native_calls_inside_a_trace_are_inlined(tmp_path):
    x = np.arange(4.0)
    with tw.options(cache_dir=tmp_path):
        inner = tw.jit(lambda a: a + 1, target="cpu")
        for _ in range(4):
            inner(x)
        same(tw.jit(lambda a: a * inner(x), target="interp")(x), x * (x + 1))


def test_settled_calls_go_straight_to_native_code(tmp_path, monkeypatch):
    """From the second call on nothing is looked up, as long as the types stay."""
    negate = tw.jit(lambda x: -x, target="cpu")
    x = np.arange(5, dtype=np.float32)
    with tw.options(cache_dir=tmp_path):
        for _ in range(3):
            negate(x)
        monkeypatch.setattr(type(negate), "_look_up", None)
        assert np.array_equal(negate(x), -x)
        with pytest.raises(TypeError):
            negate(x[:3])


def test_settled_calls_heed_options_that_change(tmp_path):
    x = np.arange(1 << 14, dtype=np.float32)
    double = tw.jit(lambda x: x * 2)
    with tw.options(cache_dir=tmp_path):
        for _ in range(3):
            double(x)
        for _ in range(2):
            with tw.options(memory_limit_bytes=1000):
                for _ in range(3):
                    with pytest.raises(ResourceExhausted):
                        double(x)
            same(double(x), x * 2)
        with tw.options(target="interp"):
            same(double(x), x * 2)
        assert {setting.target for _, setting in double._compiled} == {"cpu", "interp"}
        with capture() as found:
            double(x)
            double(x)
        assert [record["kind"] for record in found].count("runtime.launch") == 2


def test_settled_calls_come_back_after_errors(tmp_path):
    x = np.arange(6, dtype=np.float32)
    negate = tw.jit(lambda x: -x, target="cpu")
    with tw.options(cache_dir=tmp_path):
        for wrong in ("text", [x, object()], np.array(["a"]), x.astype(">f4")):
            for _ in range(3):
                same(negate(x), -x)
            for _ in range(2):
                with pytest.raises(TilewrightError):
                    negate(wrong)
        for several in ((), (x, x)):
            with pytest.raises((TilewrightError, TypeError)):
                negate(*several)
        read_only = x.copy()
        read_only.flags.writeable = False
        results = [negate(each) for each in (x, read_only, x[::-1], np.broadcast_to(x[2], 6), x)]
        for result, each in zip(results, (x, x, x[::-1], np.full(6, 2, np.float32), x), strict=True):
            same(result, -each)
        assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(results, 2))


def test_stages_are_those_of_the_threads_that_it_is_compiled_for(tmp_path):
    """Also when a program that came from the cache is looked at under other options."""
    x = np.zeros((301, 401), np.float32)

    def text(threads: int) -> str:
        with tw.options(threads=threads):
            return compiled[threads].ir("llvm")

    compiled = {}
    with tw.options(cache_dir=tmp_path):
        for threads in (2, 7):
            with tw.options(threads=threads):
                compiled[threads] = tw.jit(tw.tanh).lower(x).compile("cpu")
        outside = compiled[7].ir("llvm")
        assert outside == text(7)
        assert outside != text(2)


@tw.jit
def _module_level(x: Any) -> Any:
    return x + 1


def test_copies_are_the_function_itself_and_pickles_name_it() -> None:
    anonymous = tw.jit(functools.partial(lambda x, y: x * y, 3))
    for function in (_module_level, anonymous):
        function(np.ones(2))
        assert copy.copy(function) is function
        assert copy.deepcopy([function])[0] is function
    assert pickle.loads(pickle.dumps(_module_level)) is _module_level
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(anonymous)


@pytest.mark.parametrize(
    "view",
    [
        lambda m: m[0][None],
        lambda m: m[0][:, None].T,
        lambda m: m[None].swapaxes(0, 1),
        lambda m: m.sum(0, keepdims=True).T,
        lambda m: np.moveaxis(m[..., None], -1, 0),
        lambda m: m[None, :, None].transpose(2, 3, 0, 1),
        lambda m: m[:1].T,
    ],
)
def test_captured_arrays_with_any_strides_of_axes_of_one_element(view):
    """Such strides mean nothing, and a copy has others."""
    captured = view(np.arange(12, dtype=np.float32).reshape(3, 4))
    function = tw.jit(lambda x: x * tw.asarray(captured))
    x = np.ones(1, np.float32)
    with tw.options(cache=False):
        np.testing.assert_array_equal(function(x), captured)
    assert "kernel" in function.lower(x).compile().explain()
