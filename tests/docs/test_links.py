"""Links of the pages outside of the site lead to files and headings, and concept pages name files that exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page: str) -> set[str]:
    """The anchors of headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_resolve(name: str) -> None:
    page = ROOT / name
    for path, anchor in _LINK.findall(page.read_text()):
        if path.startswith(("https://", "mailto:")):
            continue
        target = (page.parent / path) if path else page
        assert target.exists(), f"{name} links to {path}"
        assert not anchor or anchor in anchors(target.read_text()), f"{name} links to {path}#{anchor}"


def test_the_readme_has_links() -> None:
    assert len(_LINK.findall((ROOT / "README.md").read_text())) > 20
    assert anchors("# On a GPU\n## `f(x)`: why?\n") == {"on-a-gpu", "fx-why"}


@pytest.mark.parametrize("name", ["execution-models", "layouts", "numbers", "phases", "schedules"])
def test_concepts_name_files_that_exist(name: str) -> None:
    text = (ROOT / "docs" / "concepts" / f"{name}.md").read_text()
    for path in re.findall(r"`((?:tilewright/)?[a-z_/]+\.py)`", text):
        assert (ROOT / "tilewright" / path.removeprefix("tilewright/")).is_file(), path
