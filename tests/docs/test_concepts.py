"""The concept pages: their Python runs and prints what they say, and the build draws the pictures that they show."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, agrees, blocks, run_python

CONCEPTS = ROOT / "docs" / "concepts"
PAGES = sorted(page.stem for page in CONCEPTS.glob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_the_page(name: str) -> None:
    page = CONCEPTS / f"{name}.md"
    namespace: dict[str, Any] = {"__name__": name}
    shown = 0
    for block in blocks(page.read_text()):
        if block.kind != "python":
            continue
        printed = run_python(block, namespace, page)
        assert agrees(block.expected or "", printed), f"line {block.first_line}: printed\n{printed}"
        shown += block.expected is not None
    assert shown >= 3


def test_pictures_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_pictures  # pyright: ignore[reportMissingImports]  a module of the folder `docs`

    make_pictures.write(tmp_path)
    wanted = {
        name for page in CONCEPTS.glob("*.md") for name in re.findall(r"\]\(\.\./_static/(\S+)\)", page.read_text())
    }
    assert {file.name for file in tmp_path.iterdir()} == wanted
    for file in tmp_path.iterdir():
        assert ElementTree.fromstring(file.read_text()).tag.endswith("svg")
