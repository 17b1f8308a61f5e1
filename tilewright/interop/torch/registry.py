"""The ATen operators that are known, by the name of their overload.

A rule is a function of what the operator is called with: tensors are arrays of the program, sizes and other numbers are
Python's. It gives what the operator gives: an array, or a tuple of arrays and None.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeVar

Rule = Callable[..., Any]
Registered = TypeVar("Registered", bound=Rule)

_MODULES = (
    "attention",
    "complex_numbers",
    "convolution",
    "creation",
    "decompositions",
    "elementwise",
    "foreach",
    "indexing",
    "linalg",
    "manipulation",
    "normalisation",
    "padding",
    "pooling",
    "reduction",
    "scattering",
)
_RULES: dict[str, Rule] = {}
# Operators without results, which have the program fail.
CHECKS = frozenset({"aten._linalg_check_errors.default"})


def operator(*names: str) -> Callable[[Registered], Registered]:
    """Register the rule of overloads such as "add.Tensor"; without a dot the default overload is meant."""

    def register(rule: Registered) -> Registered:
        for name in names:
            add_rule(f"aten.{name}" if "." in name else f"aten.{name}.default", rule)
        return rule

    return register


def add_rule(name: str, rule: Rule) -> None:
    """Register a rule by the full name of an overload, such as "mylib.softmax.default"."""
    _RULES[name] = rule


def find_rule(target: Any) -> Rule | None:
    """The rule of the target of a node; None where there is none."""
    _load_rules()
    return _RULES.get(name_of(target))


def name_of(target: Any) -> str:
    """What a target of a node is called: "aten.add.Tensor", "builtins.getitem"."""
    if hasattr(target, "_schema") or isinstance(target, str):
        return str(target)
    module = getattr(target, "__module__", None) or ""
    return f"{module.strip('_')}.{getattr(target, '__name__', target)}"


def known_operators() -> list[str]:
    """Names of all overloads that have a rule."""
    _load_rules()
    return sorted(_RULES)


@functools.cache
def _load_rules() -> None:
    for module in _MODULES:
        importlib.import_module(f"tilewright.interop.torch.operators.{module}")
