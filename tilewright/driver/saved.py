"""Saved programs, of targets whose programs run without the compiler and of those that need it."""

from __future__ import annotations

from pathlib import Path

from tilewright.errors import ProgramFileError, TargetError
from tilewright.runtime.program import AnyProgram, load
from tilewright.targets.base import target_named


def load_program(path: str | Path) -> AnyProgram:
    """A program that `save` wrote. That of a target which interprets IR imports the compiler.

    Raises:
        ProgramFileError: the file is damaged, truncated, from another version, or of a target that is not known.
        CpuFeatureError: this machine lacks the architecture or a feature that the program needs.
        ResourceUnavailable: a library that it calls is not installed.
        OSError: the file cannot be opened.
    """
    file = load(path)
    if file.manifest.grid is None:
        return file
    try:
        target, _ = target_named(file.manifest.triple)
    except TargetError as error:
        raise ProgramFileError(f"the program is for another target: {error.message}", help=error.help) from None
    return file if target.open_file is None else target.open_file(file)
