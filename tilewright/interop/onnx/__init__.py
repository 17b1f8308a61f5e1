"""ONNX models as functions over arrays: each operator becomes a composition of the array functions."""

from tilewright.interop.arguments import TensorSpec
from tilewright.interop.onnx.model import OnnxModel, from_onnx

__all__ = ["OnnxModel", "TensorSpec", "from_onnx"]
