"""`torch_op`: kernels and traced functions as operators of PyTorch."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilewright.api.array import located
from tilewright.api.jit import JitFunction
from tilewright.api.kernel import Kernel
from tilewright.api.stages import ShapeDtype
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError
from tilewright.frontend.pyast_signature import INOUT
from tilewright.interop.torch.packages import TorchTensor, torch
from tilewright.interop.torch.registry import add_rule
from tilewright.interop.torch.tensors import dtype_of, torch_dtype
from tilewright.interop.torch.walk import is_tensor

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_SCHEMA_TYPES: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "str"}
_REQUIRED: Any = inspect.Parameter.empty


def torch_op(name: str, function: Kernel | JitFunction, *, outputs: int = 1) -> Any:
    """A `tw.kernel` or a function under `tw.jit` as the operator `name`, such as "mylib::softmax".

    It takes tensors in the order of the parameters; compile-time parameters follow: bools, integers, floats and
    strings. `outputs` is how many results a function under `tw.jit` gives; a kernel's Out arrays are its results. Gives
    a `torch.library.CustomOpDef`, which is called as the function is, and has `register_autograd`.

    Raises:
        ArgumentError: the name is none of an operator, the function is neither, or a kernel writes to its operands.
    """
    if not _NAME.fullmatch(name):
        raise located(ArgumentError(f"{name!r} is no name of an operator", help='use "namespace::name"'))
    if isinstance(function, Kernel):
        tensors, static, count = _of_kernel(function)
    elif isinstance(function, JitFunction):  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
        tensors, static = _of_jitted(function)
        count = outputs
    else:
        message = f"`torch_op` of a {type(function).__name__}"
        raise located(ArgumentError(message, help="decorate the function with `@tw.kernel` or `@tw.jit`"))
    result = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    schema = f"({_parameters(tensors, static)}) -> {result}"

    def call(*args: Any, **given: object) -> Any:
        # torch passes by position what the function takes by name.
        return function(*args[: len(tensors)], **dict(zip(static, args[len(tensors) :], strict=False)), **given)

    def run(*args: Any, **given: Any) -> Any:
        # Gradients are torch's own matter: those that are registered for the operator.
        return call(*(a.detach() if is_tensor(a) else a for a in args), **given)

    operator = torch.library.custom_op(name, run, mutates_args=(), device_types="cpu", schema=schema)
    operator.register_fake(_fake(function, tensors, static))
    add_rule(f"{name.replace('::', '.')}.default", call)
    return operator


# ---- parameters -----------------------------------------------------------------------------------------------------


def _of_kernel(kernel: Kernel) -> tuple[list[str], dict[str, Any], int]:
    """Names of the In arrays, the compile-time parameters with their defaults, and how many arrays are Out."""
    signature = kernel.kernel_signature
    written = [p.name for p in signature.arrays if p.effect == INOUT]
    if written:
        message = f"`{signature.name}` writes to its operand `{written[0]}`, which an operator of torch must not"
        raise located(ArgumentError(message, help="declare an Out array for the result"))
    static = {name: _REQUIRED for name in signature.required} | dict(signature.defaults)
    return [p.name for p in signature.inputs], static, len(signature.outputs)


def _of_jitted(function: JitFunction) -> tuple[list[str], dict[str, Any]]:
    parameters = inspect.signature(function).parameters.values()
    tensors = [p.name for p in parameters if p.name not in function.static_argnames]
    return tensors, {p.name: p.default for p in parameters if p.name in function.static_argnames}


def _parameters(tensors: Sequence[str], static: Mapping[str, object]) -> str:
    """The parameters as torch's schemas have them. Defaults state of what type a compile-time parameter is."""
    parts = [f"Tensor {name}" for name in tensors]
    for name, default in static.items():
        kind = next((text for known, text in _SCHEMA_TYPES.items() if type(default) is known), None)
        if kind is None:
            what = "has no default" if default is _REQUIRED else f"is a {type(default).__name__}"
            message = f"the compile-time parameter `{name}` {what}, so that its type in the schema of torch is unknown"
            help = "give it a bool, an integer, a float or a string as default"
            raise located(ArgumentError(message, help=help))
        text = f'"{default}"' if isinstance(default, str) else str(default)
        parts.append(f"{kind} {name}={text}")
    return ", ".join(parts)


# ---- without contents -----------------------------------------------------------------------------------------------


def _fake(function: Kernel | JitFunction, tensors: Sequence[str], names: Iterable[str]) -> Callable[..., Any]:
    """A function from fake tensors to fake results."""

    def fake(*given: Any, **named: Any) -> Any:
        args, static = given[: len(tensors)], dict(zip(names, given[len(tensors) :], strict=False)) | named
        if isinstance(function, Kernel):
            found = _results_of_kernel(function, args)
        else:
            found = _results_of_jitted(function, args, static)
        made = [args[0].new_empty(shape, dtype=torch_dtype(dtype)) for shape, dtype in found]
        return made[0] if len(made) == 1 else tuple(made)

    return fake


def _results_of_kernel(kernel: Kernel, args: Sequence[TorchTensor]) -> list[tuple[tuple[Any, ...], DType]]:
    """Shapes and types of the Out arrays: sizes that the In arrays bind may be symbols."""
    signature = kernel.kernel_signature
    bound: dict[str, Any] = {}
    for parameter, tensor in zip(signature.inputs, args, strict=True):
        for name, size in zip(parameter.annotation.sizes, tensor.shape, strict=True):
            torch._check(size == bound.setdefault(name, size) if isinstance(name, str) else size == name)
    inputs = [dtype_of(tensor.dtype) for tensor in args]
    any_size = dict.fromkeys(bound, 1)
    return [
        (
            tuple(bound[n] if isinstance(n, str) else n for n in parameter.annotation.sizes),
            signature.output_type(parameter, any_size, inputs).dtype,
        )
        for parameter in signature.outputs
    ]


def _results_of_jitted(
    function: JitFunction, args: Sequence[TorchTensor], static: Mapping[str, object]
) -> list[tuple[tuple[Any, ...], DType]]:
    """Shapes and types of the results. Sizes that are symbols become those of this call, for the function may look at
    them."""
    types = [ShapeDtype(tuple(int(n) for n in t.shape), dtype_of(t.dtype)) for t in args]
    return [(value.shape, value.dtype) for value in function.lower(*types, **static).graph.outputs]
