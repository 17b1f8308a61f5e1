"""StableHLO programs as functions over arrays: each operation becomes a composition of the array functions."""

from tilewright.interop.stablehlo.model import StableHloModel, from_stablehlo

__all__ = ["StableHloModel", "from_stablehlo"]
