"""The contents of a StableHLO text: functions of operations on named values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.interop.narrow import STORAGES
from tilewright.records import dataclass

Tensor = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of an array: its shape, and what stores its elements, a type of NumPy or of `ml_dtypes`."""

    shape: tuple[int, ...]
    storage: np.dtype[Any]

    @property
    def is_narrow(self) -> bool:
        """Whether no array here has such elements, so that it is held as bit patterns."""
        return self.storage in STORAGES

    @property
    def dtype(self) -> DType:
        """The element type; that of the bit patterns where no array has it."""
        return dtypes.u8 if self.is_narrow else dtypes.as_dtype_or_complex(self.storage)

    def __str__(self) -> str:
        name = self.storage.name if self.is_narrow else self.dtype.name
        return f"{name}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Dense:
    """A constant: all elements, or one that all are equal to."""

    type: TensorType
    elements: Tensor = field(compare=False)

    def full(self) -> Tensor:
        """All elements. Only of what is known to be small."""
        return np.broadcast_to(self.elements, self.type.shape)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A reference to a function or mesh by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices in a grid with named axes. `order` is which of them is where, row-major; None where they are in order."""

    axes: tuple[tuple[str, int], ...]
    order: tuple[int, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its axes."""
        return tuple(name for name, _ in self.axes)

    @property
    def size(self) -> int:
        """How many devices it has."""
        return math.prod(size for _, size in self.axes)


@dataclass(frozen=True, slots=True)
class Sharding:
    """Over which axes of a mesh each dim of an array is divided, outermost first. `open` are the dims that may be
    divided further, `unreduced` the axes along which devices hold terms of a sum. `is_exact` unless parts of axes are
    named, which are left out here."""

    mesh: Symbol | Mesh
    dims: tuple[tuple[str, ...], ...]
    open: tuple[int, ...] = ()
    unreduced: tuple[str, ...] = ()
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Opaque:
    """An attribute that nothing here reads."""

    text: str


@dataclass(frozen=True, slots=True)
class FunctionType:
    """Types of arguments and results."""

    arguments: tuple[Any, ...]
    results: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Operations after each other; the last one gives the results."""

    arguments: tuple[str, ...]
    types: tuple[TensorType, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation. Values are names; `regions` hold a block each."""

    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    types: tuple[TensorType, ...]
    attributes: Mapping[str, Any]
    regions: tuple[Block, ...]
    line: int

    def walk(self) -> Iterator[Operation]:
        """This operation and those in its regions."""
        yield self
        for block in self.regions:
            for operation in block.operations:
                yield from operation.walk()


@dataclass(frozen=True, slots=True)
class Function:
    """A function. `attributes` are those of each argument, `result_attributes` those of each result."""

    name: str
    is_public: bool
    body: Block
    results: tuple[TensorType, ...]
    attributes: tuple[Mapping[str, Any], ...]
    result_attributes: tuple[Mapping[str, Any], ...]
    line: int

    @property
    def labels(self) -> tuple[str, ...]:
        """The names that exporters give its results."""
        return tuple(str(found.get("jax.result_info", "")) for found in self.result_attributes)


@dataclass(frozen=True, slots=True)
class Module:
    """The functions of a text by name, and the devices that it is for: so many partitions of so many replicas."""

    name: str
    functions: Mapping[str, Function]
    meshes: Mapping[str, Mesh] = field(default_factory=dict[str, Mesh])
    replicas: int = 1
    partitions: int = 1

    @property
    def devices(self) -> int:
        """How many devices the program is for; partitions of one replica have successive numbers."""
        return self.replicas * self.partitions
