"""Calls of JAX functions that are like the latest one: served without its checks, in the kind of the arguments."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import events
from tilewright.errors import TilewrightError
from tilewright.interop.stablehlo.model import StableHloModel

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

_X = np.arange(6, dtype=np.float32).reshape(3, 2)
_Y = np.array([[1, 3], [5, 7], [11, 13]], np.float32)


def _difference(x: Any, y: Any) -> Any:
    return x - y


def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a call that is checked fails."""

    def refused(*_: object) -> Any:
        raise AssertionError("the arguments were checked")

    monkeypatch.setattr(StableHloModel, "_checked", refused)


def _is_like(found: Any, expected: Any) -> bool:
    """Whether an array of JAX is one like JAX makes of NumPy's."""
    same = (found.dtype, found.weak_type, found.committed, found.sharding, type(found))
    other = (expected.dtype, expected.weak_type, expected.committed, expected.sharding, type(expected))
    return same == other and bool((found == expected).all())


def test_arrays_of_jax_give_arrays_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    function = tw.from_jax(_difference, _X, _Y)
    x, y = jnp.asarray(_X), jnp.asarray(_Y)
    for _ in range(2):
        assert _is_like(function(x, y), jnp.asarray(_X - _Y))
    _unchecked(monkeypatch)
    for n in range(3):
        assert _is_like(function(x + n, y), jnp.asarray(_X + n - _Y))
        np.testing.assert_array_equal(function(_X, _Y + n), _X - _Y - n)
    assert type(function(_X, _Y)) is np.ndarray


def test_kinds_of_arrays_alternate() -> None:
    function = tw.from_jax(_difference, _X, _Y)
    x, y = jnp.asarray(_X), jnp.asarray(_Y)
    for _ in range(3):
        given = ((x, y), (_X, _Y), (x, _Y), (_X, y), (x, y))
        kinds = [isinstance(function(*arrays), jax.Array) for arrays in given]
        assert kinds == [True, False, True, False, True]
        np.testing.assert_array_equal(function(x, _Y), _X - _Y)
        np.testing.assert_array_equal(function(y, x), _Y - _X)


def test_containers_go_in_and_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(tree: Any, *, scale: Any) -> Any:
        return {"d": tree["a"] - tree["b"][0], "s": [tree["a"] * scale]}

    tree, n = {"a": jnp.asarray(_X), "b": (jnp.asarray(_Y),)}, jnp.asarray(np.float32(3))
    function = tw.from_jax(both, tree, scale=n)
    for settled in (False, False, True):
        if settled:
            _unchecked(monkeypatch)
        found = function(tree, scale=n)
        assert jax.tree.structure(found) == jax.tree.structure(both(tree, scale=n))
        assert _is_like(found["d"], jnp.asarray(_X - _Y))
        assert _is_like(found["s"][0], jnp.asarray(_X * 3))
    with pytest.raises(TilewrightError, match="was lowered for"):
        function({"a": _X, "c": (_Y,)}, scale=n)
    with pytest.raises(TilewrightError, match="was lowered for"):
        function(tree, n)


def test_unused_arguments_and_one_result_in_a_container() -> None:
    function = tw.from_jax(jax.jit(lambda x, unused, y: (x - y,)).lower(_X, np.ones(7), _Y))
    for _ in range(3):
        (found,) = function(jnp.asarray(_X), np.ones(7), jnp.asarray(_Y))
        assert _is_like(found, jnp.asarray(_X - _Y))


def test_keys_go_in_and_out() -> None:
    function = tw.from_jax(lambda k: tuple(jax.random.split(k)), jax.random.key(0))
    for seed in range(4):
        key = jax.random.key(seed)
        for found, expected in zip(function(key), jax.random.split(key), strict=True):
            assert found.dtype == expected.dtype
            assert jnp.array_equal(jax.random.key_data(found), jax.random.key_data(expected))


def test_numbers_of_64_bits_are_narrowed_each_time() -> None:
    function = tw.from_jax(lambda x, n: x * n, _X.astype(np.float64), np.int64(3))
    for n in range(3):
        for x in (_X.astype(np.float64), _X, jnp.asarray(_X)):
            np.testing.assert_array_equal(function(x, np.int64(n)), n * _X)
            np.testing.assert_array_equal(function(x, np.array(n, np.int32)), n * _X)


@pytest.mark.parametrize(
    "args",
    [
        (_X,),
        (_X, _Y, _Y),
        (_X, _Y.T),
        (_X, _Y.astype(np.int32)),
        (jnp.asarray(_X), jnp.asarray(_Y[:2])),
        (jnp.asarray(_X), None),
        (_X, {"y": _Y}),
        (_X, "text"),
    ],
)
def test_errors_are_those_of_a_first_call(args: Any) -> None:
    with pytest.raises(TilewrightError) as expected:
        tw.from_jax(_difference, _X, _Y)(*args)
    function = tw.from_jax(_difference, _X, _Y)
    for array in (np.asarray, jnp.asarray):
        for _ in range(2):
            function(array(_X), array(_Y))
        with pytest.raises(TilewrightError) as found:
            function(*args)
        assert (type(found.value), found.value.message) == (type(expected.value), expected.value.message)
        assert found.value.help == expected.value.help
        assert found.value.location is not None
        assert found.value.location.file == __file__


def test_arguments_go_as_they_were_lowered() -> None:
    by_position, by_name = tw.from_jax(_difference, _X, _Y), tw.from_jax(_difference, y=_Y, x=_X)
    for _ in range(3):
        np.testing.assert_array_equal(by_position(_X, _Y), _X - _Y)
        np.testing.assert_array_equal(by_name(x=_X, y=_Y), _X - _Y)
        np.testing.assert_array_equal(by_name(y=_Y, x=_X), _X - _Y)
        for call in (
            lambda: by_position(_X, y=_Y),
            lambda: by_position(_X, _Y, z=_Y),
            lambda: by_name(_X, _Y),
            lambda: by_name(_X, y=_Y),
        ):
            with pytest.raises(TilewrightError, match="was lowered for"):
                call()


def test_a_deleted_array_is_refused() -> None:
    function = tw.from_jax(_difference, _X, _Y)
    x, y = jnp.asarray(_X), jnp.asarray(_Y)
    for _ in range(2):
        function(x, y)
    y.delete()
    with pytest.raises(TilewrightError, match="deleted"):
        function(x, y)


def test_settings_of_jax_hold_for_results() -> None:
    """Results are made as `jax.numpy.asarray` makes them, whatever is in force."""
    function = tw.from_jax(_difference, _X, _Y)
    x, y = jnp.asarray(_X), jnp.asarray(_Y)
    for _ in range(2):
        function(x, y)
    with jax.disable_jit():
        assert _is_like(function(x, y), jnp.asarray(_X - _Y))
    kinds: list[type] = []

    def traced(v: Any) -> Any:
        kinds.extend((type(function(x, y)), type(jnp.asarray(_X))))
        return v + function(x, y)

    np.testing.assert_array_equal(jax.jit(traced)(x), _X + _X - _Y)
    assert kinds[0] is kinds[1]
    wide = tw.jit(lambda a: a * 2)
    for _ in range(2):
        for array in (np.arange(3.0), np.arange(3)):
            assert wide(array).dtype == array.dtype
            assert _is_like(wide(jnp.asarray(array)), jnp.asarray(array * 2))


_DEVICES = """
import jax, jax.numpy as jnp, numpy as np, tilewright as tw
x = np.arange(6, dtype=np.float32).reshape(2, 3)
function = tw.from_jax(lambda a: a * 2, x)
first, second = jax.devices()
spread = jax.device_put(x, jax.sharding.NamedSharding(jax.make_mesh((2,), ("d",)), jax.sharding.PartitionSpec("d")))
elsewhere = jax.device_put(x, second)
for _ in range(3):
    for given, kind in ((jnp.asarray(x), jax.Array), (spread, np.ndarray), (elsewhere, jax.Array), (x, np.ndarray)):
        found = function(given)
        assert isinstance(found, kind), (type(found), kind)
        np.testing.assert_array_equal(found, x * 2)
for _ in range(3):  # what a function of flat arrays takes says nothing of this one
    assert isinstance(function.program(spread), jax.Array)
    assert isinstance(function(spread), np.ndarray)
with jax.default_device(second):
    assert function(jnp.asarray(x)).devices() == jnp.asarray(x).devices() == {second}
assert function(jnp.asarray(x)).devices() == {first}
"""


def test_arrays_of_several_devices() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    subprocess.run([sys.executable, "-c", _DEVICES], check=True, env=environment, timeout=300)


def test_options_captures_and_traces() -> None:
    function = tw.from_jax(_difference, _X, _Y)
    x, y = jnp.asarray(_X), jnp.asarray(_Y)
    for _ in range(2):
        function(x, y)
    with tw.options(target="interp"):
        np.testing.assert_array_equal(function(x, y), _X - _Y)
    with tw.options(target="null"), pytest.raises(TilewrightError):
        function(x, y)
    with events.capture() as seen:
        for _ in range(3):
            function(x, y)
            function(_X, _Y)
    assert [record["kind"] for record in seen].count("runtime.launch") == 6

    @tw.jit
    def outer(v: Any) -> Any:
        fixed = function(_X, _Y)
        assert isinstance(fixed, tw.Array)
        return function(v, _Y) * fixed

    np.testing.assert_array_equal(outer(_X), (_X - _Y) * (_X - _Y))


def test_threads_call_with_other_kinds_of_arrays() -> None:
    function = tw.from_jax(_difference, _X, _Y)
    wrong: list[object] = []
    barrier = threading.Barrier(3)

    def work(n: int) -> None:
        array = (np.asarray, jnp.asarray, np.asarray)[n]
        x, y = array(_X + n), array(_Y)
        kind = type(x)
        barrier.wait()
        for _ in range(200):
            found = function(x, y)
            if type(found) is not kind or not np.array_equal(found, _X + n - _Y):
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not barrier.broken


@pytest.mark.parametrize("step", [np.float32(0.5), 0.5, np.float64(0.5), np.array(0.5, np.float32), np.int64(3), True])
def test_numbers_are_no_reason_to_check_arrays(monkeypatch: pytest.MonkeyPatch, step: Any) -> None:
    """Numbers of Python and NumPy become arrays of the type that JAX lowered them to."""
    function = tw.from_jax(lambda xs, step: [x * step for x in xs], [_X, _Y], step)
    expected = [np.asarray(each) for each in jax.jit(lambda xs, step: [x * step for x in xs])([_X, _Y], step)]
    function([_X, _Y], step)
    _unchecked(monkeypatch)
    for found, wanted in zip(function([_X, _Y], step), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == wanted.dtype


def test_numbers_of_another_type_are_refused_as_ever() -> None:
    function = tw.from_jax(lambda x, n: x * n, _X, np.int32(2))
    np.testing.assert_array_equal(function(_X, np.int64(3)), 3 * _X)
    with pytest.raises(TilewrightError, match="n"):
        function(_X, np.float32(2.5))
    with pytest.raises(TilewrightError, match=r"takes 2 arrays|the arguments are"):
        function(_X)
