"""Inspection of the namespace, as defined by the Array API."""

from __future__ import annotations

from typing import Any

from tilewright import dtypes
from tilewright.api.functions_dtype import isdtype
from tilewright.dtypes import DType


class NamespaceInfo:
    """The answers of `__array_namespace_info__`."""

    def capabilities(self) -> dict[str, Any]:
        """Shapes never depend on data."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": None}

    def default_device(self) -> None:
        """None: a traced array has no device."""

    def devices(self) -> tuple[None]:
        """The one device that arrays of a program are on, before a target is chosen."""
        return (None,)

    def default_dtypes(self, *, device: None = None) -> dict[str, DType]:
        return {
            "real floating": dtypes.f32,
            "complex floating": dtypes.complex64,
            "integral": dtypes.i64,
            "indexing": dtypes.i64,
        }

    def dtypes(self, *, device: None = None, kind: object = None) -> dict[str, DType]:
        """Element types of the Array API by their names there, all or those of a kind."""
        standard = [d for d in (*dtypes.ALL, *dtypes.COMPLEX) if not d.is_narrow_float and d != dtypes.tf32]
        return {d.numpy.name: d for d in standard if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """Inspection functions of this namespace."""
    return NamespaceInfo()
