"""The libraries that a case is compared with: how each is imported, limited to a number of threads, and called."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.cli.bench_suites.case import Array, Case, first
from tilewright.dtypes import by_name
from tilewright.records import dataclass


@dataclass(frozen=True)
class Runner:
    """A library ready to run a case: `call` does the work and waits for it, `to_numpy` converts what it gives, or the
    first of several arrays."""

    call: Callable[[], Any]
    to_numpy: Callable[[Any], Array]


class PeerUnavailable(Exception):
    """A library cannot run a case; the text is the reason."""


def ours(case: Case, inputs: tuple[Array, ...]) -> Runner:
    """Our function, compiled."""
    case.ours(*inputs)
    return Runner(lambda: case.ours(*inputs), lambda result: np.asarray(first(result)))


def prepare(library: str, case: Case, inputs: tuple[Array, ...], threads: int) -> dict[str, Runner]:
    """A peer with the inputs in its own arrays; by name where the case has several ways, else under "".

    Raises:
        PeerUnavailable: it is not installed, cannot express the case, or fails at it.
    """
    ways = ways_of(library, case, _MODULES.get(library, ()))
    return {name: _started(library, way, inputs, threads) for name, way in ways.items()}


def ways_of(library: str, case: Case, modules: Sequence[str]) -> Mapping[str, Callable[..., Any]]:
    """The functions of a case for a peer, which needs some modules.

    Raises:
        PeerUnavailable: there is none, or a module is not installed.
    """
    if library in case.unsupported:
        raise PeerUnavailable(case.unsupported[library])
    if library not in case.peers:
        raise PeerUnavailable("has no form of this case")
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise PeerUnavailable("not installed" if module == library else f"{module} is not installed")
    ways = case.peers[library]
    return ways if isinstance(ways, Mapping) else {"": ways}


@contextlib.contextmanager
def failing_is_absence() -> Generator[None]:
    """Convert an exception of a library: the case continues without that library and reports it.

    Raises:
        PeerUnavailable: the library raised an exception.
    """
    try:
        yield
    except PeerUnavailable:
        raise
    except Exception as error:
        text = str(error).splitlines()[0][:200] if str(error) else ""
        raise PeerUnavailable(f"{type(error).__name__}: {text}") from error


def _started(library: str, way: Callable[..., object], inputs: tuple[Array, ...], threads: int) -> Runner:
    with failing_is_absence():
        runner = _PREPARE[library](way, inputs, threads)
        runner.call()
        return runner


def _numpy(function: Callable[..., object], inputs: tuple[Array, ...], threads: int) -> Runner:
    return Runner(lambda: function(np, *inputs), lambda result: np.asarray(first(result)))


@cache
def _torch_module(threads: int) -> Any:
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return torch


def _torch(function: Callable[..., object], inputs: tuple[Array, ...], threads: int) -> Runner:
    torch = _torch_module(threads)

    def to_torch(array: Array) -> Any:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    tensors = [to_torch(array) for array in inputs]
    return Runner(lambda: function(torch, *tensors), partial(torch_to_numpy, torch))


def torch_to_numpy(torch: ModuleType, result: object) -> Array:
    """The first of what a function of torch gives, from wherever it is."""
    tensor = first(result).cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(by_name("bf16").numpy)
    return tensor.numpy()


@cache
def _jax_module() -> Any:
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    return jax


def _jax(function: Callable[..., object], inputs: tuple[Array, ...], threads: int) -> Runner:
    # XLA takes its threads from the CPUs that the process may use, which the worker has limited.
    jax = _jax_module()
    arrays = [jax.numpy.asarray(array) for array in inputs]

    def call(*values: object) -> Any:
        return function(jax, *values)

    compiled = jax.jit(call)
    return Runner(lambda: jax.block_until_ready(compiled(*arrays)), lambda result: np.asarray(first(result)))


def _onnxruntime(function: Callable[..., object], inputs: tuple[Array, ...], threads: int) -> Runner:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    importlib.import_module("onnx.numpy_helper")
    model = function(importlib.import_module("onnx"), *inputs)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    names, taken = ([each.name for each in ends] for ends in (session.get_outputs(), session.get_inputs()))
    if any(array.dtype.name == "bfloat16" for array in inputs):
        values = {name: _ort_value(onnxruntime, array) for name, array in zip(taken, inputs, strict=True)}
        return Runner(lambda: session.run_with_ort_values(names, values), lambda result: _from_ort_value(result[0]))
    feed = dict(zip(taken, inputs, strict=True))
    return Runner(lambda: session.run(names, feed), lambda result: np.asarray(first(result)))


def _ort_value(onnxruntime: Any, array: Array) -> Any:
    """A bf16 array, which ONNX Runtime takes from NumPy as raw bits only."""
    onnx = importlib.import_module("onnx")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), onnx.TensorProto.BFLOAT16)


def _from_ort_value(value: Any) -> Array:
    """A bf16 array, which has no way into NumPy but its memory."""
    shape = tuple(value.shape())
    memory = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return np.array(memory, np.uint16).view(by_name("bf16").numpy).reshape(shape)


_MODULES = {"numpy": ("numpy",), "torch": ("torch",), "jax": ("jax",), "onnxruntime": ("onnxruntime", "onnx")}
_PREPARE = {"numpy": _numpy, "torch": _torch, "jax": _jax, "onnxruntime": _onnxruntime}
