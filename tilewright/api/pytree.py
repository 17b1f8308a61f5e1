"""Nested containers of arrays: tuples, lists, dicts, dataclasses and None.

A structure is a hashable value, so that it can be part of a cache key. Dicts are taken in the order of `repr` of their
keys, and each `OrderedDict`, such as PyTorch's `state_dict`, in its own; dataclass fields with
`metadata={"static": True}` belong to the structure.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.api.array import Array, located
from tilewright.api.complex_array import ComplexArray
from tilewright.errors import ArgumentError
from tilewright.frontend.identity import StaticValue
from tilewright.primitives import ArrayType

# Far from Python's own limit, which comparing two structures would reach first.
MAX_DEPTH = 200


class Structure(NamedTuple):
    """The shape of a container. A leaf has `kind` None; `keys` are what reaches each child; `static` holds the static
    fields of a dataclass, and the keys of a dict that are no strings: 1, 1.0 and True are equal, but not the same."""

    kind: Any
    keys: tuple[Any, ...] = ()
    children: tuple[Structure, ...] = ()
    static: tuple[tuple[str, StaticValue], ...] = ()

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        if self.kind is type(None):
            return "None"
        if self.kind is tuple:
            return f"({', '.join(map(str, self.children))}{',' if len(self.children) == 1 else ''})"
        if self.kind is list:
            return f"[{', '.join(map(str, self.children))}]"
        items = ", ".join(f"{key!r}: {child}" for key, child in zip(self.keys, self.children, strict=True))
        return f"{{{items}}}" if self.kind is dict else f"{self.kind.__name__}({items})"


LEAF = Structure(None)
_NONE = Structure(type(None))
_PAIR = Structure(ComplexArray, ("real", "imag"), (LEAF, LEAF))


# `type`, but with a result whose attributes a type checker does not ask about.
_kind_of: Callable[[Any], Any] = type


@functools.cache
def _is_dataclass(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and not issubclass(kind, ArrayType)


def flatten(tree: Any, leaves: list[Any], depth: int = 0) -> Structure:
    """Append the leaves of `tree` to `leaves` and give its structure. `depth` counts the containers around it.

    Raises:
        ArgumentError: containers are nested too deeply, or hold themselves.
    """
    kind = _kind_of(tree)
    if kind is np.ndarray:
        leaves.append(tree)
        return LEAF
    if depth > MAX_DEPTH:
        message = f"containers are nested more than {MAX_DEPTH} deep"
        raise located(ArgumentError(message, help="put the arrays into one list or dict"))
    if kind is tuple or kind is list:
        return Structure(kind, tuple(range(len(tree))), tuple([flatten(child, leaves, depth + 1) for child in tree]))
    if kind is dict or kind is OrderedDict:
        keys = tuple(sorted(tree, key=repr) if kind is dict else tree)
        children = tuple([flatten(tree[key], leaves, depth + 1) for key in keys])
        if all(type(key) is str for key in keys):
            return Structure(kind, keys, children)
        return Structure(kind, keys, children, tuple([("key", StaticValue(key)) for key in keys]))
    if tree is None:
        return _NONE
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        values: list[Any] = [*tree]
        return Structure(kind, kind._fields, tuple(flatten(value, leaves, depth + 1) for value in values))
    if _is_dataclass(kind):
        return _flatten_dataclass(tree, leaves, depth + 1)
    leaves.append(tree)
    return LEAF


def _flatten_dataclass(tree: Any, leaves: list[Any], depth: int) -> Structure:
    fields = dataclasses.fields(tree)
    traced = tuple(f.name for f in fields if not f.metadata.get("static"))
    static = tuple((f.name, StaticValue(getattr(tree, f.name))) for f in fields if f.metadata.get("static"))
    return Structure(type(tree), traced, tuple(flatten(getattr(tree, name), leaves, depth) for name in traced), static)


def by_parts(structure: Structure, leaves: Iterator[Array], parts: list[Array]) -> Structure:
    """The structure where complex leaves are pairs of their parts, with all of them appended to `parts`."""
    if structure.kind is None:
        leaf = next(leaves)
        parts += [leaf.real, leaf.imag] if isinstance(leaf, ComplexArray) else [leaf]
        return _PAIR if isinstance(leaf, ComplexArray) else LEAF
    return structure._replace(children=tuple([by_parts(child, leaves, parts) for child in structure.children]))


def unflatten(structure: Structure, leaves: Iterator[object]) -> Any:
    """Rebuild a container from its leaves, in the order of `flatten`. Dataclasses are made without `__init__`."""
    kind = structure.kind
    if kind is None:
        return next(leaves)
    if kind is type(None):
        return None
    children = [unflatten(child, leaves) for child in structure.children]
    if kind is list:
        return children
    if kind is tuple:
        return tuple(children)
    if kind is dict or kind is OrderedDict:
        return structure.kind(zip(structure.keys, children, strict=True))
    if kind is ComplexArray or issubclass(structure.kind, tuple):
        return kind(*children)
    rebuilt = object.__new__(kind)
    for name, value in zip(structure.keys, children, strict=True):
        object.__setattr__(rebuilt, name, value)
    for name, static in structure.static:
        object.__setattr__(rebuilt, name, static.value)
    return rebuilt


def build(structure: Structure, leaves: Sequence[object]) -> Any:
    """Rebuild a container from a sequence of all its leaves."""
    return leaves[0] if structure.kind is None else unflatten(structure, iter(leaves))


def paths(structure: Structure, prefix: str = "") -> list[str]:
    """How to reach each leaf, as Python writes it: `params["w"][0]`."""
    if structure.kind is None:
        return [prefix]
    found: list[str] = []
    for key, child in zip(structure.keys, structure.children, strict=True):
        step = f"[{key!r}]" if structure.kind in (tuple, list, dict, OrderedDict) else f".{key}"
        found.extend(paths(child, prefix + step))
    return found
