"""A function that `exec` made in a namespace without a name has no module, and was asked for its name."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.pyast_source import is_ours


def test_a_function_of_no_module_is_not_ours():
    namespace: dict[str, Any] = {"__builtins__": {}}
    exec("def function(x):\n    return x\n", namespace)
    assert namespace["function"].__module__ is None
    assert not is_ours(namespace["function"])
    assert is_ours(is_ours)
