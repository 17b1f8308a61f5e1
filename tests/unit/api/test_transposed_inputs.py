"""Transposed arrays as inputs: programs for the CPU read them as they are in memory."""

import itertools

import numpy as np
import pytest

import tilewright as tw
from tilewright.api.jit import JitFunction

pytestmark = pytest.mark.quick


def _array(*shape, dtype=np.float32):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def _texts(function, *args):
    """The inputs of each program that calls of the function compiled."""
    return [compiled.lowered.graph.inputs for compiled in function._compiled.values()]


def test_all_permutations():
    f = tw.jit(lambda x, y: x * y + 1)
    x = _array(2, 3, 5, 4)
    for axes in itertools.permutations(range(4)):
        z = x.transpose(axes)
        for first, second in ((z, z), (z, z.copy()), (z.copy(), z)):
            for _ in range(2):
                np.testing.assert_array_equal(f(first, second), first * second + 1)


def test_program_reads_what_is_in_memory():
    f = tw.jit(lambda x: x + 1)
    x = _array(6, 4)
    f(x.T)
    f(np.asfortranarray(x.T.copy()))
    (inputs,) = _texts(f)
    assert inputs[0].type.shape == (6, 4)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2].T,
        lambda x: x.T[:, ::2],
        lambda x: x.T[::-1],
        lambda x: x[:, :3],
        lambda x: x[:, None].T,
        lambda x: np.broadcast_to(x[0], x.shape).T,
        lambda x: x.T[:0],
        lambda x: x.T[:1],
        lambda x: np.lib.stride_tricks.as_strided(x, (4, 4), (8, 4)),
    ],
)
def test_other_views(view):
    f = tw.jit(lambda x: x * 2)
    x = view(_array(6, 4))
    for given in (x, x.copy(), x):
        np.testing.assert_array_equal(f(given), given * 2)


def test_unaligned_memory():
    memory = np.zeros(6 * 4 * 4 + 1, np.uint8)
    x = memory[1:].view(np.float32).reshape(6, 4)
    x[:] = _array(6, 4)
    f = tw.jit(lambda x: x + 1)
    np.testing.assert_array_equal(f(x.T), x.T + 1)


def test_contents_change_between_calls():
    f = tw.jit(lambda x: x + 1)
    x = _array(6, 4)
    for n in range(3):
        x[2, 1] = n
        np.testing.assert_array_equal(f(x.T), x.T + 1)


def test_containers_keywords_numbers_and_statics():
    f = tw.jit(lambda p, k, *, scale: p["a"] * k + p["b"][0] * scale, static_argnames="scale")
    x = _array(3, 5)
    for k in (2, 2.5):
        wanted = (x.T * np.float32(k)) + x.T * 3
        np.testing.assert_array_equal(f({"a": x.T, "b": (x.T.copy(),)}, k, scale=3), wanted)
        np.testing.assert_array_equal(f({"a": x.T.copy(), "b": (x.T,)}, k=k, scale=3), wanted)


def test_donated_inputs_stay_as_they_are():
    f = tw.jit(lambda x, y: x + y, donate="x")
    x = _array(4, 4)
    wanted = x.T + x.T
    np.testing.assert_array_equal(f(x.T.copy(), x.T), wanted)
    np.testing.assert_array_equal(f(x.copy().T, x.T), wanted)


def test_complex_numbers_and_matmul():
    x = _array(3, 5) + 1j
    np.testing.assert_array_equal(tw.jit(lambda x: x * 2)(x.T), x.T * 2)
    a, b = _array(7, 5), _array(7, 6)
    np.testing.assert_array_equal(tw.jit(lambda a, b: a @ b)(a.T, b), a.T @ b)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float64, np.bool_])
def test_element_types(dtype):
    x = _array(9, 5, dtype=dtype)
    np.testing.assert_array_equal(tw.jit(lambda x, y: tw.where(x == y, x, y))(x.T, x.T.copy()), x.T)


def test_lowered_programs_take_contiguous_arrays(tmp_path):
    x = _array(6, 4)
    compiled = tw.jit(lambda x: x + 1).lower(x.T).compile()
    np.testing.assert_array_equal(compiled(x.T), x.T + 1)
    compiled.save(tmp_path / "add.twp")
    loaded = tw.load(tmp_path / "add.twp")
    np.testing.assert_array_equal(loaded(x.T), x.T + 1)
    np.testing.assert_array_equal(loaded(x.T.copy()), x.T + 1)


def test_dims_take_transposed_arrays():
    f = tw.jit(lambda x: x + 1, dims={"x": (tw.Dim(1, 16, name="n"), 6)})
    x = _array(6, 4)
    np.testing.assert_array_equal(f(x.T), x.T + 1)


@pytest.mark.parametrize("target", ["interp", "cpu"])
def test_targets(target):
    x = _array(6, 4)
    f = tw.jit(lambda x, y: x - 2 * y, target=target)
    for _ in range(2):
        np.testing.assert_array_equal(f(x.T, x.T.copy()), -x.T)


VIEWS = {
    "transposed": lambda x: x.T,
    "rows": lambda x: x[1::2],
    "columns": lambda x: x[:, 1::2],
    "reversed": lambda x: x[::-1],
    "repeated": lambda x: np.broadcast_to(x[3], x.shape),
    "small": lambda x: x[:9:2, :9:2],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_like_those_before_are_not_looked_at(view, monkeypatch):
    f = tw.jit(lambda x, y: x * y + 1)
    given = view(_array(120, 80))
    for _ in range(3):
        f(given, given.copy())
    monkeypatch.setattr(JitFunction, "_look_up", None)
    other = view(_array(120, 80) * 3)
    np.testing.assert_array_equal(f(other, other.copy()), other * other + 1)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_with_equal_strides_of_other_memory(view):
    """Further on in it, at its end, in memory that is no array, of other rank, order, type or alignment."""
    f = tw.jit(lambda x: x * 2)
    large = _array(245, 80)
    f(view(large[:120]))
    unaligned = np.frombuffer(bytearray(120 * 80 * 4 + 1), np.uint8)[1:].view(np.float32).reshape(120, 80)
    unaligned[:] = _array(120, 80)
    fortran = np.asfortranarray(_array(80, 120)).T
    others = [large[1:121], large[125:], large[:120].copy(), unaligned, fortran, _array(120, 80, dtype=np.int32)]
    others += [np.frombuffer(_array(120 * 80).tobytes(), np.float32).reshape(120, 80), _array(40, 80), large[:120]]
    others += [_array(2, 120, 80)[1], _array(120, 81)[:, 1:]]
    for other in others:
        for _ in range(2):
            np.testing.assert_array_equal(f(view(np.asarray(other))), np.asarray(view(np.asarray(other))) * 2)
    subclass = _array(120, 80).view(np.recarray)
    np.testing.assert_array_equal(f(view(subclass)), np.asarray(view(subclass)) * 2)


def test_views_with_equal_strides_of_wider_elements():
    f = tw.jit(lambda x: x * 2)
    narrow, wide = _array(9000)[::2], _array(4500, dtype=np.float64)[:]
    assert narrow.strides == wide.strides
    for given in (narrow, wide, narrow, narrow[:4500], wide):
        np.testing.assert_array_equal(f(given), given * 2)
