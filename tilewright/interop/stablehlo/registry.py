"""The operations that are known. A rule is a small function of a `Node` and of its operands; it gives the result, or a
tuple of them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import field
from typing import Any

from tilewright.api.array import Array, located
from tilewright.api.lifting import constant, full
from tilewright.errors import ModelFileError, UnsupportedOperatorError
from tilewright.interop.narrow import STORAGES, Coded, to_codes
from tilewright.interop.stablehlo.ir import Block, Dense, Module, Operation, TensorType
from tilewright.records import dataclass

Rule = Callable[..., Any]

_MODULES = (
    "calls",
    "complex_numbers",
    "control",
    "creation",
    "decompositions",
    "devices",
    "elementwise",
    "indexing",
    "linalg",
    "manipulation",
    "mathematics",
    "normalisation",
    "order",
    "pooling",
    "random",
    "reduction",
    "windows",
)
_MISSING: Any = object()
# Lists in attributes are of axes, which are few.
_MAX_LISTED = 1 << 10


@dataclass(frozen=True)
class Entry:
    """A rule and what it takes: `narrow` operands whose type no array has, as bit patterns; `moves` elements without
    looking at them; `elementwise` operands of any one shape."""

    rule: Rule
    narrow: bool
    moves: bool
    elementwise: bool


_RULES: dict[str, Entry] = {}


@dataclass(frozen=True)
class Node:
    """One operation as a rule sees it, in its module. `run` traces a region, `lift` one over scalars for arrays in
    their position, and `call` a function by its name."""

    module: Module = field(repr=False)
    operation: Operation
    run: Callable[..., list[Any]] = field(repr=False)
    lift: Callable[..., list[Any]] = field(repr=False)
    call: Callable[..., list[Any]] = field(repr=False)

    @property
    def name(self) -> str:
        """The full name of the operation."""
        return self.operation.name

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of its results."""
        return self.operation.types

    @property
    def type(self) -> TensorType:
        """The type of its only result."""
        (type,) = self.operation.types
        return type

    @property
    def regions(self) -> tuple[Block, ...]:
        """The regions of the operation."""
        return self.operation.regions

    def get(self, name: str, default: object = _MISSING) -> Any:
        """An attribute, or its default.

        Raises:
            ModelFileError: it is missing and has no default.
        """
        found = self.operation.attributes.get(name, default)
        if found is _MISSING:
            raise located(ModelFileError(f"the attribute `{name}` is missing", help="export the program again"))
        return found

    def integer(self, name: str, default: object = _MISSING) -> int:
        """An attribute that is an integer.

        Raises:
            ModelFileError: it is something else.
        """
        found = self.get(name, default)
        if not isinstance(found, int) or isinstance(found, bool):
            raise located(ModelFileError(f"`{name}` is no integer", help="export the program again"))
        return found

    def integers(self, name: str, default: Any = _MISSING) -> tuple[int, ...]:
        """An attribute that is a list of integers, or of bools.

        Raises:
            ModelFileError: it is something else.
        """
        return as_integers(self.get(name, default), name)

    def pairs(self, name: str, count: int) -> tuple[tuple[int, int], ...]:
        """An attribute of two integers for each axis; zeros where it is missing.

        Raises:
            ModelFileError: it is something else.
        """
        found = self.get(name, ((0, 0),) * count)
        if isinstance(found, Dense):
            if found.type.shape != (count, 2):
                raise located(ModelFileError(f"`{name}` is {found.type}, not of {count} pairs", help="export it again"))
            found = found.full().tolist()
        pairs: list[tuple[int, int]] = []
        for pair in found:
            low, high = as_integers(tuple(pair), name)
            pairs.append((low, high))
        if len(pairs) != count:
            raise located(ModelFileError(f"`{name}` has {len(pairs)} pairs, not {count}", help="export it again"))
        return tuple(pairs)

    def unsupported(self, why: str, help: str = "") -> UnsupportedOperatorError:
        """The error that this form of the operation is not supported."""
        error = UnsupportedOperatorError(why, help=help or "write the program with other operations")
        located(error)
        return error

    def malformed(self, why: str) -> ModelFileError:
        """The error that the operation is not well formed."""
        error = ModelFileError(why, help="export the program again")
        located(error)
        return error


def as_integers(value: object, name: str) -> tuple[int, ...]:
    """A list of integers in one of the forms that texts have for it.

    Raises:
        ModelFileError: it is something else.
    """
    if isinstance(value, Dense) and len(value.type.shape) <= 1 and sum(value.type.shape) <= _MAX_LISTED:
        value = tuple(value.full().reshape(-1).tolist())
    found: list[Any] = [*value] if isinstance(value, tuple) else [None]
    if not all(isinstance(n, int) for n in found):
        raise located(ModelFileError(f"`{name}` is no list of integers", help="export the program again"))
    return tuple(map(int, found))


def operation(
    *names: str, narrow: bool = False, moves: bool = False, elementwise: bool = False
) -> Callable[[Rule], Rule]:
    """Register the rule of operations, by their full names."""

    def register(rule: Rule) -> Rule:
        for name in names:
            _RULES[name] = Entry(rule, narrow, moves, elementwise)
        return rule

    return register


def find(name: str) -> Entry | None:
    """The rule of an operation; None where there is none."""
    _load_rules()
    return _RULES.get(name)


def known_operations() -> list[str]:
    """The names of all operations that have a rule."""
    _load_rules()
    return sorted(_RULES)


@functools.cache
def _load_rules() -> None:
    for module in _MODULES:
        importlib.import_module(f"tilewright.interop.stablehlo.operators.{module}")


def lifted(dense: Dense) -> Any:
    """A constant of the program: an `Array`, or a `Coded` where no array has its type."""
    array, type = dense.elements, dense.type
    if type.storage in STORAGES:
        coded = to_codes(array)
        return Coded(_constant(coded.codes, type), coded.storage)
    return _constant(array, type)


def _constant(elements: Any, type: TensorType) -> Array:
    # One number for all elements takes no memory, whatever the shape.
    return full(type.shape, elements.item(), type.dtype) if elements.ndim == 0 else constant(elements)
