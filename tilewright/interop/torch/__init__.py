"""PyTorch programs: the backend of `torch.compile`, exported programs as functions, and our functions as operators."""

from tilewright.interop.torch.backend import backend

__all__ = ["backend"]
