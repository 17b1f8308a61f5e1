"""Models of other frameworks. What reads them is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.interop.onnx import OnnxModel


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
