"""The API reference has each public name once, and reads docstrings as they are written."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tilewright as tw
from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"
_ENTRY = re.compile(r"^\.\. (?:py:|auto)\w+:: tw\.([\w.]+)", re.MULTILINE)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the folder `docs`, which is no package."""
    monkeypatch.syspath_prepend(str(DOCS))

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def names_of(namespace: ModuleType) -> set[str]:
    """The public names of a namespace: its `__all__`, else the functions of its source, else what it lists itself."""
    named: list[str] | None = getattr(namespace, "__all__", None)
    if named is not None:
        return set(named)
    body = ast.parse(Path(str(namespace.__file__)).read_text()).body
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    listed = namespace.__dir__() if "__dir__" in defined else defined
    return {name for name in listed if not name.startswith("_")}


def test_each_public_name_has_one_entry(folder: Any) -> None:
    texts: dict[str, str] = folder("api_pages").texts()
    found = Counter(name for text in texts.values() for name in _ENTRY.findall(text))
    public = set(dir(tw))
    namespaces = {name for name in public if isinstance(getattr(tw, name), ModuleType)}
    members = {f"{space}.{name}" for space in namespaces for name in names_of(getattr(tw, space))}
    assert len(members) > 150
    assert set(found) == public - (namespaces - {"layout"}) | members
    assert max(found.values()) == 1


def test_each_page_is_in_the_contents(folder: Any) -> None:
    texts: dict[str, str] = folder("api_pages").texts()
    listed = re.findall(r"^   (\w+)$", texts["index"], re.MULTILINE)
    assert sorted(listed) == sorted(set(texts) - {"index"})


@pytest.mark.parametrize(
    ("docstring", "shown"),
    [
        ("`Dim`s of `a * b`", "``Dim``\\ s of ``a * b``"),
        ("the axes *, x and last_ of |x|", "the axes \\*, x and last\\_ of \\|x\\|"),
        ("Compile:\n\n    f(x)\n\nText", "Compile:\n\n::\n\n    f(x)\n\nText"),
        ("Raises:\n    ShapeError: no.", "Raises:\n    ShapeError: no."),
    ],
)
def test_docstrings_become_markup(folder: Any, docstring: str, shown: str) -> None:
    assert "\n".join(folder("rest").rest(docstring.split("\n"))) == shown
