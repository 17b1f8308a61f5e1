"""Derivatives of traced arrays by reverse mode, with a rule for each array primitive."""

from tilewright.interop.onnx.gradient.reverse import gradients

__all__ = ["gradients"]
