"""Keys, and what is written for them, in tests of the compile cache."""

from __future__ import annotations

KEY, OTHER, THIRD = "ab12" * 8, "cd34" * 8, "ef56" * 8


def writes(content: bytes):
    return lambda path: path.write_bytes(content)


def kinds(records) -> list[str]:
    return [record["kind"] for record in records]
