"""Docstrings for Sphinx: code in single backticks becomes literal text, and names of types become links."""

from __future__ import annotations

import builtins
from typing import Any

from docutils import nodes
from rest import rest
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

import tilewright as tw
from tilewright import errors
from tilewright.semantics.tile import KernelAssertion

_ERRORS = {
    error.__name__: error.code
    for error in (*vars(errors).values(), errors.LinearAlgebraError, KernelAssertion)
    if isinstance(error, type) and issubclass(error, errors.TilewrightError)
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what this module does; napoleon reads the sections afterwards."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("missing-reference", _link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = rest(lines)


def _link(app: Sphinx, env: Any, node: Any, content: nodes.TextElement) -> nodes.Node | None:
    """The page of an error, the entry of a public class, or the text alone for any other type."""
    name = str(node["reftarget"]).rpartition(".")[2]
    if name in _ERRORS:
        return make_refnode(app.builder, node["refdoc"], f"reference/errors/{_ERRORS[name]}", "", content)
    if node["reftype"] not in ("class", "exc", "obj"):
        return None
    public = f"tw.{name}"
    if name in dir(tw) and node["reftarget"] != public:
        return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, content)
    is_known = node["reftype"] == "class" or hasattr(builtins, name)
    return content if is_known else None
