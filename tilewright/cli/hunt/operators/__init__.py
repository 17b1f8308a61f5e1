"""The operators of random programs, by name.

An operator has a form for each library: a function of the library's module, its operands and parameters. The form
`array` is that of NumPy, jax.numpy and ours where they agree, and of torch where that does, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.cli.hunt.operators import elementwise, indexing, matmuls, movement, reductions, windows
from tilewright.cli.hunt.operators.base import Form, Operator
from tilewright.errors import ArgumentError

LIBRARIES = ("numpy", "jax", "torch", "tilewright")
OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for module in (elementwise, movement, reductions, indexing, matmuls, windows)
    for operator in module.OPERATORS
}

# Those that multiply and add most: matmuls and convolutions.
MULTIPLYING = frozenset({"conv", *(operator.name for operator in matmuls.OPERATORS)})


def form_of(name: str, library: str) -> Form:
    """The function of an operator for a library.

    Raises:
        ArgumentError: the operator is unknown, or the library has none.
    """
    forms: Mapping[str, Form] = OPERATORS[name].forms if name in OPERATORS else {}
    found = forms.get(library)
    if found is None and library in LIBRARIES:
        found = forms.get("array")
    if found is None:
        raise ArgumentError(f"{library} has no operator `{name}`", help=f"use {', '.join(OPERATORS)}")
    return found
