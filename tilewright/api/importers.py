"""Models of other frameworks. What reads them is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.interop.jax import JaxFunction
    from tilewright.interop.onnx import OnnxModel
    from tilewright.interop.stablehlo import StableHloModel


def from_onnx(source: Any, *, target: str | None = None) -> OnnxModel:
    """A function of an ONNX model, compiled for the shapes that it is called with.

    `source` is a path, the bytes of a model, or an `onnx.ModelProto`. The result takes arrays in the order of the
    model's inputs, or by name, and gives its outputs: one alone as it is, several as a tuple. `target` is as `tw.jit`
    has it. Needs the package `onnx`.

    Raises:
        ModelFileError: the model is malformed, or newer than what is read here.
        UnsupportedOperatorError: it uses operators that are not supported; the message lists all of them.
        ResourceUnavailable: the package `onnx` is not installed.
    """
    from tilewright.interop.onnx import from_onnx

    return from_onnx(source, target=target)


def from_stablehlo(source: Any, *, target: str | None = None) -> StableHloModel:
    """A function of a StableHLO program.

    `source` is text of MLIR, in the generic form or in the one that StableHLO prints by default, or the path of such a
    file (`.mlir`). The result takes arrays in the order of the parameters of its function `main`, and gives its
    results: one alone as it is, several as a tuple. `target` is as `tw.jit` has it.

    Raises:
        ModelFileError: the text is malformed; the message says where.
        UnsupportedOperatorError: it uses operations or types that are not supported; the message lists all of them.
    """
    from tilewright.interop.stablehlo import from_stablehlo

    return from_stablehlo(source, target=target)


def from_jax(fn: Any, *args: Any, target: str | None = None, **kwargs: Any) -> JaxFunction:
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
