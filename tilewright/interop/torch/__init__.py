"""PyTorch programs: the backend of `torch.compile`, exported programs as functions, and our functions as operators."""

from tilewright.interop.torch.dynamo import BackendOptions, backend
from tilewright.interop.torch.library import torch_op
from tilewright.interop.torch.model import TensorSpec, TorchModel, from_torch

__all__ = ["BackendOptions", "TensorSpec", "TorchModel", "backend", "from_torch", "torch_op"]
