"""Files that are written whole: errors name the file that the caller asked for, and paths of any length are made."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.runtime_programs import make_add
from tilewright.errors import ArgumentError
from tilewright.runtime.files import make_folders, replacing
from tilewright.runtime.program import load


def test_an_error_of_the_system_that_names_no_file_gets_the_name(tmp_path: Path) -> None:
    def write() -> None:
        with replacing(tmp_path / "p.twp") as temporary:
            temporary.write_text("begun")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        write()
    assert caught.value.filename == str(tmp_path / "p.twp")
    assert not list(tmp_path.iterdir())


def test_an_error_below_a_file_names_the_path_without_the_temporary_suffix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "p.twp"
    with pytest.raises(NotADirectoryError) as caught, replacing(path) as temporary:
        temporary.write_text("")
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("path", ["a\0b", Path("a\0b"), 5, None, b"p.twp"], ids=repr)
def test_what_is_no_path_is_refused(path: Any) -> None:
    program = make_add(4)
    for use in (program.save, load):
        with pytest.raises(ArgumentError, match="is no path of a file") as caught:
            use(path)
        assert caught.value.location is not None
        assert caught.value.help


def test_folders_are_made_deeper_than_python_recurses(tmp_path: Path) -> None:
    deep = tmp_path / "/".join("d" * 1500)
    try:
        make_folders(deep, 0o700)
        make_folders(deep)
        assert deep.is_dir()
        assert deep.stat().st_mode & 0o777 == 0o700
    finally:
        # Not left to pytest, which removes a tree by recursion.
        for folder in (deep, *deep.parents[: len(deep.parts) - len(tmp_path.parts) - 1]):
            if folder.exists():
                folder.rmdir()


def test_a_folder_below_a_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        make_folders(tmp_path / "file" / "below")
    with pytest.raises(FileExistsError):
        make_folders(tmp_path / "file")
