"""Docstrings of the package as reStructuredText."""

from __future__ import annotations

import re

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_CODE = re.compile(r"`([^`]+)`")


def rest(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText."""
    return _literal("\n".join(_code_blocks(lines))).split("\n")


def _code_blocks(lines: list[str]) -> list[str]:
    """The lines with `::` before each indented block that is not the text of a section."""
    marked: list[str] = []
    is_section = False
    for previous, line in zip(["", *lines], lines, strict=False):
        if line and not line.startswith(" "):
            is_section = bool(_SECTION.match(line))
        if line.startswith("    ") and not previous and not is_section and (not marked or marked[-1] == ""):
            marked += ["::", ""]
        marked.append(line)
    return marked


def _literal(text: str) -> str:
    """Code between double backticks, which a letter may follow; nothing else is markup."""
    parts = _CODE.split(text)
    for index, part in enumerate(parts):
        if index % 2:
            following = parts[index + 1][:1]
            parts[index] = f"``{part}``" + ("\\ " if following.isalnum() else "")
        else:
            parts[index] = re.sub(r"([*|])|(?<=\w)(_)(?!\w)", r"\\\1\2", part)
    return "".join(parts)
