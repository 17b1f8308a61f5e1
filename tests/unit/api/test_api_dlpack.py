"""Arrays of other libraries: shared memory in, the same kind out. torch, JAX and CuPy where they are installed."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from api_support import run, same

import tilewright as tw
from tilewright import events
from tilewright.errors import ArgumentError, DTypeError, TilewrightError, UnsupportedOnTargetError
from tilewright.runtime.cpu.native import MISMATCH
from tilewright.runtime.dlpack import to_numpy


def needs(library: str):
    """The tests below need a library that is not part of the test environment."""
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


def test_numpy_arrays_are_themselves():
    x = np.arange(6).reshape(2, 3)[:, ::2]
    shared, restore = to_numpy(x)
    assert shared is x
    assert restore(x) is x
    view = np.zeros(3).view(np.recarray)
    assert type(to_numpy(view)[0]) is np.ndarray
    assert np.shares_memory(to_numpy(view)[0], view)


def test_read_only_and_strided_arrays():
    x = np.broadcast_to(np.arange(3.0), (2, 3))
    same(run(lambda a: a + 1, x), np.asarray(x + 1))
    same(run(lambda a: a.T, np.arange(24.0).reshape(4, 6)[::2, ::-3]), np.arange(24.0).reshape(4, 6)[::2, ::-3].T)


def test_numpy_refuses_what_has_no_plain_memory():
    with pytest.raises(ArgumentError):
        to_numpy(np.ma.masked_array([1, 2], [True, False]))
    with pytest.raises(ArgumentError):
        to_numpy([1, 2])


def test_masked_arrays_may_be_imported_meanwhile(monkeypatch):
    # As it is while another thread imports them.
    monkeypatch.setitem(sys.modules, "numpy.ma", ModuleType("numpy.ma"))
    x = np.arange(3)
    assert to_numpy(x)[0] is x


def test_any_library_with_the_standard_methods():
    strict = pytest.importorskip("array_api_strict")
    x = strict.asarray([1.0, 2.0, 3.0])
    shared, _ = to_numpy(x)
    assert np.shares_memory(shared, np.from_dlpack(x))
    result = tw.jit(lambda a, b: (a + b, a.sum()), target="interp")(x, np.ones(3))
    assert [type(r) for r in result] == [type(x)] * 2
    np.testing.assert_array_equal(np.from_dlpack(result[0]), [2, 3, 4])


def test_arrays_on_other_devices():
    elsewhere = SimpleNamespace(__dlpack__=None, __dlpack_device__=lambda: (2, 0))
    with pytest.raises(UnsupportedOnTargetError) as caught:
        to_numpy(elsewhere)
    assert caught.value.help
    with pytest.raises(TilewrightError, match="argument `x`"):
        tw.jit(lambda x: x, target="interp")(elsewhere)


class WithoutContents:
    """What a library gives for an array that is not computed yet."""

    shape = (3,)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: object) -> object:
        raise LookupError("no buffer\nin this one")

    def devices(self) -> object:
        raise AssertionError


def test_arrays_without_contents():
    for module, reason, help in (
        ("elsewhere", "no buffer", "convert it"),
        ("jax._src.core", "AssertionError", "outside `jax.jit`"),
    ):
        tracer = type("Tracer", (WithoutContents,), {"__module__": module})()
        for function, arguments in ((lambda x: x, (tracer,)), (lambda x=tracer: tw.asarray(x), ())):
            with pytest.raises(ArgumentError) as caught:
                tw.jit(function, target="interp")(*arguments)
            error = caught.value
            assert error.message.endswith(f"a value of type Tracer does not give its contents: {reason}")
            assert error.message.startswith("argument `x`: ") == bool(arguments)
            assert help in (error.help or "")
            assert error.location is not None
            assert error.location.file == __file__


# ---- torch ----------------------------------------------------------------------------------------------------------


@needs("torch")
@pytest.mark.parametrize(
    "name",
    [
        "float8_e4m3fn",
        "float8_e5m2",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "bool",
    ],
)
def test_torch_shares_memory_both_ways(name):
    import torch

    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    shared, restore = to_numpy(tensor)
    assert shared.shape == (2, 3)
    assert shared.ctypes.data == tensor.data_ptr()
    back = restore(shared)
    assert back.dtype == tensor.dtype
    assert back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


@needs("torch")
def test_torch_tensors_through_jit():
    import torch

    x = torch.arange(12.0).reshape(3, 4).T
    f = tw.jit(lambda a, b: {"product": a @ b, "sum": a.sum()}, target="interp")
    result = f(x, np.eye(3, dtype=np.float32))
    assert torch.equal(result["product"], x)
    assert torch.equal(result["sum"], x.sum())
    half = torch.ones(3, dtype=torch.bfloat16)
    assert f._compiled  # one entry serves NumPy and torch
    assert torch.equal(run(lambda a: a + 1, half), half + 1)
    assert isinstance(run(lambda n, a: a * n, 2, half), torch.Tensor)
    assert isinstance(run(lambda n, a: n, np.zeros(1), half), np.ndarray)


@needs("torch")
def test_torch_tensors_as_constants():
    import torch

    captured = torch.full((2,), 3.0)
    same(run(lambda a: a + captured, np.zeros(2, np.float32)), np.full(2, 3, np.float32))


@needs("torch")
def test_torch_refuses():
    import torch

    for tensor, error in [
        (torch.ones(2, requires_grad=True), ArgumentError),
        (torch.ones(2, device="meta"), UnsupportedOnTargetError),
        (torch.eye(2).to_sparse(), ArgumentError),
        (torch.ones(2, dtype=torch.complex32), DTypeError),
        (torch.ones(2, dtype=torch.float8_e8m0fnu), DTypeError),
    ]:
        with pytest.raises(error) as caught:
            run(lambda a: a, tensor)
        assert caught.value.help
        assert "argument `a`" in caught.value.message


@needs("torch")
# A program for the CPU reads a transposed tensor as it is in memory.
@pytest.mark.parametrize(("target", "programs"), [("cpu", 6), ("interp", 3)])
def test_torch_tensors_after_the_first_call(target, programs):
    import torch

    f = tw.jit(lambda a, b: (a * 2 + b, b - a), target=target)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for _ in range(3):
            a, b = torch.randint(-9, 9, (3, 4)).to(dtype), torch.randint(-9, 9, (3, 4)).to(dtype)
            for first, second in ((a, b), (a.T.contiguous().T, b), (a, b[::1, :])):
                found = f(first, second)
                assert [torch.equal(r, e) for r, e in zip(found, (a * 2 + b, b - a), strict=True)] == [True, True]
                assert [r.dtype for r in found] == [dtype] * 2
    assert len(f._compiled) == programs
    assert torch.equal(f(torch.ones(2), torch.ones(2))[0], torch.full((2,), 3.0))  # another shape
    with pytest.raises(DTypeError):
        f(torch.ones(2, dtype=torch.complex32), torch.ones(2, dtype=torch.complex32))
    assert len(f._compiled) == programs + 1


@needs("torch")
def test_kinds_of_results_after_the_first_call():
    import torch

    f = tw.jit(lambda a, b: a + b)
    x, y = np.ones(3, np.float32), torch.ones(3)
    parameter = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    for _ in range(2):
        assert [type(r) for r in (f(x, x), f(x, y), f(y, x), f(y, y), f(parameter, y))] == [
            np.ndarray,
            np.ndarray,
            torch.Tensor,
            torch.Tensor,
            torch.Tensor,
        ]
    assert len(f._compiled) == len(f._by_arrays) == 1
    for _ in range(2):
        assert torch.equal(f(y, 2.0), torch.full((3,), 3.0))
        assert torch.equal(f(y, b=y), torch.full((3,), 2.0))
    assert len(f._by_arrays) == 1


@needs("torch")
def test_containers_of_results_after_the_first_call():
    import torch

    f = tw.jit(lambda a, b: {"d": a - b, "p": [a * b, (a + b,)]})
    g = tw.jit(lambda a, b: (a - b, a * b))
    for kind in (np.asarray, torch.from_numpy, np.asarray, torch.from_numpy):
        a, b = kind(np.arange(3.0)), kind(np.arange(3.0) + 2)
        for _ in range(3):
            found = f(a, b)
            assert list(found) == ["d", "p"]
            assert (type(found["p"]), type(found["p"][1])) == (list, tuple)
            for result, expected in ((found["d"], a - b), (found["p"][0], a * b), (found["p"][1][0], a + b)):
                assert type(result) is type(a)
                assert (result == expected).all()
            pair = g(a, b)
            assert type(pair) is tuple
            assert [type(result) for result in pair] == [type(a)] * 2
            assert (pair[0] == a - b).all()
            assert (pair[1] == a * b).all()


def test_a_call_again_is_one_on_arrays_of_such_types():
    f = tw.jit(lambda a, b: a - b)
    x, y = np.arange(3.0), np.ones(3)
    assert f.again((x, y)) is MISMATCH
    for _ in range(2):
        f(x, y)
    same(f.again((x, y)), x - y)
    for others in (
        (x,),
        (x, y, y),
        (x, y.astype(np.float32)),
        (x, y[:2]),
        (x, 1.0),
        (x, [1.0] * 3),
        (x[None], y[None]),
    ):
        assert f.again(others) is MISMATCH
    with tw.options(threads=1):
        assert f.again((x, y)) is MISMATCH
    f(x[:2], y[:2])
    same(f.again((x, y)), x - y)
    same(f.again((x[:2], y[:2])), (x - y)[:2])
    with events.capture() as seen:
        same(f.again((x, y)), x - y)
    assert [record["kind"] for record in seen].count("runtime.launch") == 1
    traced = []
    tw.jit(lambda a: (traced.append(f.again((x, y))), a)[1])(x)
    assert traced == [MISMATCH]
    same(f.again((x, y)), x - y)


@needs("torch")
def test_a_call_with_too_many_tensors_is_not_served():
    import torch

    f = tw.jit(lambda a, b: a - b)
    a, b = torch.arange(3.0), torch.ones(3)
    for _ in range(3):
        assert torch.equal(f(a, b), a - b)
    for others in ((a, b, b), (a,), ()):
        assert f.again(others) is MISMATCH
        with pytest.raises(TypeError):
            f(*others)


@needs("torch")
def test_torch_refuses_after_the_first_call():
    import torch

    f = tw.jit(lambda a, b: a + b, target="interp")
    plain = torch.ones(2, 2)
    for _ in range(2):
        f(plain, plain)
    for tensor, error in [
        (torch.ones(2, 2, requires_grad=True), ArgumentError),
        (torch.nn.Parameter(torch.ones(2, 2)), ArgumentError),
        (torch.ones(2, 2, device="meta"), UnsupportedOnTargetError),
        (torch.eye(2).to_sparse(), ArgumentError),
        (torch.ones(2, 2, dtype=torch.complex32), DTypeError),
        (torch._neg_view(torch.ones(2, 2)), DTypeError),
    ]:
        with pytest.raises(error) as caught:
            f(plain, tensor)
        assert caught.value.help
        assert "argument `b`" in caught.value.message
        assert caught.value.location is not None
        assert caught.value.location.file == __file__


@needs("torch")
def test_a_call_on_torch_tensors_is_quick():
    import torch

    f = tw.jit(lambda a, b: a * b + 1)
    contained = tw.jit(lambda both: both["a"] * both["b"] + 1)
    x = torch.ones(8, 16)

    def seconds(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        for _ in range(200):
            call()
        return time.perf_counter() - start

    in_a_container = min(seconds(lambda: contained({"a": x, "b": x})) for _ in range(20))
    for call in (lambda: f(x, x), lambda: f(a=x, b=x)):
        assert min(seconds(call) for _ in range(20)) < 0.7 * in_a_container


# ---- JAX and CuPy ---------------------------------------------------------------------------------------------------


@needs("jax")
@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "int32", "uint8", "bool"]
)
def test_jax_arrays_through_jit(name):
    import jax.numpy as jnp

    x = jnp.arange(6).reshape(2, 3).astype(name)
    shared, _ = to_numpy(x)
    assert shared.ctypes.data == x.unsafe_buffer_pointer()
    reverse = tw.jit(lambda a: a[::-1], target="interp")
    for _ in range(2):
        result = reverse(x)
        assert type(result) is type(x)
        assert result.dtype == x.dtype
        assert (result == x[::-1]).all()


@needs("cupy")
def test_cupy_arrays_are_on_another_device():
    import cupy

    with pytest.raises(UnsupportedOnTargetError):
        to_numpy(cupy.arange(3))
