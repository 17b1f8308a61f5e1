"""Models of other frameworks: public names of `import tilewright as tw`. Their readers are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilewright.interop.jax import JaxFunction
    from tilewright.interop.onnx import OnnxModel
    from tilewright.interop.stablehlo import StableHloModel
    from tilewright.interop.torch import TorchModel
    from tilewright.layout.dims import Dim

__all__ = ["from_jax", "from_onnx", "from_stablehlo", "from_torch", "torch_op"]


def from_onnx(source: object, *, target: str | None = None, dims: Mapping[str, Dim] | None = None) -> OnnxModel:
    """A function of an ONNX model, compiled for the shapes that it is called with.

    `source` is a path, the bytes of a model, or an `onnx.ModelProto`. The result takes arrays in the order of the
    model's inputs, or by name, and gives its outputs: one alone as it is, several as a tuple. `target` is as `tw.jit`
    has it. `dims` gives sizes that the model has names for a range, such as `{"sequence": tw.Dim(1, 512)}`: one program
    then serves many sizes, as `tw.jit(dims=...)` has it. Needs the package `onnx`.

    Raises:
        ModelFileError: the model is malformed, or newer than what is read here.
        UnsupportedOperatorError: it uses operators that are not supported; the message lists all of them.
        ArgumentError: `dims` names no size of the model's inputs.
        ResourceUnavailable: the package `onnx` is not installed.
    """
    from tilewright.interop.onnx import from_onnx

    return from_onnx(source, target=target, dims=dims)


def from_stablehlo(source: Any, *, target: str | None = None) -> StableHloModel:
    """A function of a StableHLO program.

    `source` is text of MLIR, in the generic form or in the one that StableHLO prints by default, or the path of such a
    file (`.mlir`). The result takes arrays in the order of the parameters of its function `main`, and gives its
    results: one alone as it is, several as a tuple. `target` is as `tw.jit` has it.

    Raises:
        ModelFileError: the text is malformed; the message has the line.
        UnsupportedOperatorError: it uses operations or types that are not supported; the message lists all of them.
    """
    from tilewright.interop.stablehlo import from_stablehlo

    return from_stablehlo(source, target=target)


def from_jax(fn: object, *args: object, target: str | None = None, **kwargs: object) -> JaxFunction:
    """A function of JAX, compiled here for the shapes and types of arguments.

    `fn` is a function over arrays, plain or under `jax.jit`, with the arguments to lower it for: arrays, or
    `jax.ShapeDtypeStruct`s. Or it is a `jax.stages.Lowered` or a `jax.export.Exported`, and no arguments follow. The
    result takes and gives the same containers of arrays. `target` is as `tw.jit` has it. Needs the package `jax`.

    Raises:
        UnsupportedOperatorError: it uses operations that are not supported; the message lists all of them.
        ArgumentError: `fn` is something else, or arguments were lost when it was lowered.
        ResourceUnavailable: the package `jax` is not installed.
    """
    from tilewright.interop.jax import from_jax

    return from_jax(fn, *args, target=target, **kwargs)


def from_torch(
    source: object,
    *example_args: object,
    target: str | None = None,
    dims: Mapping[str, Dim] | None = None,
    fallback: str = "error",
    **example_kwargs: object,
) -> TorchModel:
    """A function of a PyTorch program, compiled for the shapes that it is called with.

    `source` is a `torch.export.ExportedProgram`, or a module and the arguments to export it with. The result takes the
    module's arguments, with arrays of NumPy, torch or other libraries for tensors, and gives its results. Parameters
    and buffers become constants. `target` is as `tw.jit` has it. `dims` gives sizes of an exported program that a call
    binds, by the names that `.inputs` shows, a range: one program then serves many sizes, as `tw.jit(dims=...)` has it.
    With `fallback="torch"`, operators that are not supported run in torch, between compiled parts. Needs the package
    `torch`.

    Raises:
        ArgumentError: the source is neither, or `dims` names no size of its inputs.
        UnsupportedOperatorError: the program uses operators that are not supported, all of which the message lists, or
            writes to its inputs or buffers.
        ResourceUnavailable: the package `torch` is not installed.
    """
    from tilewright.interop.torch import from_torch

    return from_torch(source, *example_args, target=target, dims=dims, fallback=fallback, **example_kwargs)


def torch_op(name: str, function: Any, **options: Any) -> Any:
    """A `tw.kernel` or a function under `tw.jit` as an operator of PyTorch, called "mylib::softmax".

    It takes tensors in the order of the parameters, and compile-time values by name. It has a fake implementation, so
    that `torch.compile` keeps it in its graphs; our own backend traces it into the program. `outputs` is how many
    results a function under `tw.jit` gives (1). Needs the package `torch`.

    Raises:
        ArgumentError: the name is none of an operator, or the function is neither.
        ResourceUnavailable: the package `torch` is not installed.
    """
    from tilewright.interop.torch import torch_op

    return torch_op(name, function, **options)
