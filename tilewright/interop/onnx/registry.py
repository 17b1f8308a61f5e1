"""The operators that are known, by domain, name and the version of the operator set that they changed in.

A rule is a small function of a `Node` and of its inputs; absent inputs are None. It gives the result, or a tuple of
them.
"""

from __future__ import annotations

import bisect
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.api.array import Array, located
from tilewright.api.lifting import constant
from tilewright.errors import DataDependentShapeError, ModelFileError, UnsupportedOperatorError
from tilewright.interop.narrow import STORAGES, Coded, to_codes
from tilewright.records import dataclass

Tensor = np.ndarray[Any, Any]
Rule = Callable[..., Any]

_MODULES = (
    "classical",
    "contributed",
    "control",
    "creation",
    "elementwise",
    "fourier",
    "indexing",
    "linalg",
    "manipulation",
    "normalisation",
    "quantised",
    "recurrent",
    "reduction",
    "resampling",
    "sequences",
    "training",
    "windows",
)
_RULES: dict[tuple[str, str], list[tuple[int, Rule]]] = {}
_TAKING_NARROW: set[Rule] = set()


@dataclass(frozen=True)
class Node:
    """One node of a model as a rule sees it.

    `version` is that of its operator set; `wanted` states which results are named; `contents` gives the elements of a
    value that must be known while tracing, and `run` traces a graph among the attributes. `retrace` gives the value of
    a name as the nodes before this one make it of other values for some names. `work` counts operations where a rule
    makes very many, and refuses too many. `leave`, where the node may run on the host, makes the exception that states
    it and why. `read` collects the attributes that the rule has looked at.
    """

    op: str
    version: int
    attributes: dict[str, Any]
    wanted: tuple[bool, ...]
    contents: Callable[[Array, str], Tensor]
    run: Callable[..., list[Any]] = field(repr=False)
    retrace: Callable[[str, Mapping[str, Any]], Any] = field(repr=False)
    work: Callable[[int], None] = field(repr=False)
    leave: Callable[[str], Exception] | None = field(default=None, repr=False)
    read: set[str] = field(default_factory=set[str])

    def get(self, name: str, default: object = None) -> Any:
        """An attribute, or its default."""
        self.read.add(name)
        return self.attributes.get(name, default)

    def required(self, name: str) -> Any:
        """An attribute that the operator cannot be without.

        Raises:
            ModelFileError: it is missing.
        """
        self.read.add(name)
        if name not in self.attributes:
            raise located(ModelFileError(f"the attribute `{name}` is missing", help="export the model again"))
        return self.attributes[name]

    def ignore(self, *names: str) -> None:
        """Attributes that state nothing new, or nothing that matters for this form of the operator."""
        self.read.update(names)

    def known(self, value: Any, what: str) -> Tensor:
        """The elements of an input that shapes depend on."""
        return self.contents(value, f"`{what}`")

    def known_ints(self, value: object, what: str) -> tuple[int, ...]:
        """The elements of an input as integers."""
        return tuple(int(n) for n in self.known(value, what).reshape(-1))

    def depends_on_data(self, why: str) -> DataDependentShapeError:
        """The error that the sizes of the results depend on data; where the node can run on the host, it does."""
        error = DataDependentShapeError(why, help="compute shapes from sizes, not from data")
        located(error)
        return error

    def unsupported(self, why: str) -> UnsupportedOperatorError:
        """The error that this form of the operator is not supported."""
        error = UnsupportedOperatorError(why, help="rewrite this node of the model with other operators")
        located(error)
        return error


def operator(name: str, *, since: int = 1, domain: str = "", narrow: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of an operator from version `since` of its operator set on. `narrow`: it takes `Coded`
    values."""

    def register(rule: Rule) -> Rule:
        rules = _RULES.setdefault((domain, name), [])
        if narrow:
            _TAKING_NARROW.add(rule)
        bisect.insort(rules, (since, rule), key=lambda entry: entry[0])
        return rule

    return register


def find_rule(domain: str, name: str, version: int) -> Rule | None:
    """The rule in force in a version of the operator set; None where there is none."""
    _load_rules()
    candidates = [rule for since, rule in _RULES.get((domain, name), ()) if since <= version]
    return candidates[-1] if candidates else None


def takes_narrow(rule: Rule) -> bool:
    """Whether a rule takes values whose type no array has."""
    return rule in _TAKING_NARROW


def known_operators() -> list[tuple[str, str]]:
    """Domain and name of every operator that has a rule."""
    _load_rules()
    return sorted(_RULES)


@functools.cache
def _load_rules() -> None:
    for module in _MODULES:
        importlib.import_module(f"tilewright.interop.onnx.operators.{module}")


def lifted(array: Tensor) -> Any:
    """NumPy elements as a constant of the program: an `Array`, or a `Coded` where no array has their type."""
    if array.dtype in STORAGES:
        coded = to_codes(array)
        return Coded(constant(coded.codes), coded.storage)
    return constant(array)
