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
    "control",
    "convolution",
    "creation",
    "decompositions",
    "elementwise",
    "flex",
    "foreach",
    "indexing",
    "linalg",
    "manipulation",
    "normalisation",
    "padding",
    "pooling",
    "reduction",
    "resampling",
    "scattering",
)
_RULES: dict[str, Rule] = {}
# Operators without results, which have the program fail.
CHECKS = frozenset({"aten._linalg_check_errors.default"})
# Copies of what no array has: the strides of memory.
_NO_VIEWS = ("aten.as_strided_copy.default",)

_DRAWN = "torch draws random numbers"
_MEMORY = "it changes the size of a tensor's memory"
# Operators of the core of ATen that torch runs, and why.
IN_TORCH = {
    "aten._embedding_bag.default": "the shapes of its results depend on how it is called",
    "aten._local_scalar_dense.default": "it gives a number that depends on data",
    "aten.atan2.out": "it writes to an operand",
    "aten.nonzero.default": "it gives as many results as there are in the data",
    "aten.rand.default": _DRAWN,
    "aten.randn.default": _DRAWN,
    "aten.randint.low": _DRAWN,
    "aten.randperm.default": _DRAWN,
    "aten.bernoulli.p": _DRAWN,
    "aten.resize_.default": _MEMORY,
    "aten.resize.default": _MEMORY,
}


def operator(*names: str) -> Callable[[Registered], Registered]:
    """Register the rule of overloads such as "add.Tensor"; without a dot the default overload is meant."""

    def register(rule: Registered) -> Registered:
        for name in names:
            add_rule(f"aten.{name}" if "." in name else f"aten.{name}.default", rule)
        return rule

    return register


def higher_order(*names: str) -> Callable[[Registered], Registered]:
    """Register the rule of operators that take graphs, such as "cond"."""

    def register(rule: Registered) -> Registered:
        for name in names:
            add_rule(f"torch.ops.higher_order.{name}", rule)
        return rule

    return register


def add_rule(name: str, rule: Rule) -> None:
    """Register a rule by the full name of an overload, such as "mylib.softmax.default"."""
    _RULES[name] = rule


def find_rule(target: object) -> Rule | None:
    """The rule of the target of a node; None where there is none. Views that are copied have the rule of the view."""
    _load_rules()
    name = name_of(target)
    return _RULES.get(name) or _RULES.get(name.replace("_copy.", ".") if name not in _NO_VIEWS else name)


def name_of(target: object) -> str:
    """The name of a node's target: "aten.add.Tensor", "builtins.getitem"."""
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
