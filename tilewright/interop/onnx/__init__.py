"""ONNX models as functions over arrays: each operator becomes a composition of the array functions."""

from tilewright.interop.onnx.model import OnnxModel, TensorSpec, from_onnx

__all__ = ["OnnxModel", "TensorSpec", "from_onnx"]
