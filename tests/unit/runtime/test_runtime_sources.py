"""Digests of the sources of a package: which files count, what is remembered of them, and when there is none."""

from __future__ import annotations

import os
from pathlib import Path

from tests.effort import is_within
from tilewright.runtime import cache as cache_module
from tilewright.runtime.sources import COMPILER, Sources


def make_package(root: Path) -> Path:
    for name, text in {"a.py": "x = 1\n", "sub/b.py": "y\n", "sub/m.toml": "z = 3\n", "sub/c.txt": "no\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def fresh_digest(memo: Path | None, package: Path) -> str:
    digest = Sources(str(package)).digest(memo)
    assert digest is not None
    return digest


def test_the_source_digest_follows_names_and_contents_of_sources_only(tmp_path):
    package, memo = make_package(tmp_path / "package"), tmp_path
    first = fresh_digest(memo, package)
    assert len(first) == 64
    assert fresh_digest(memo, package) == fresh_digest(None, package) == first
    (package / "sub/c.txt").write_text("changed\n")
    assert fresh_digest(memo, package) == first
    seen = {first}
    (package / "a.py").write_text("x = 2\n")
    seen.add(fresh_digest(memo, package))
    (package / "sub/m.toml").write_text("z = 4\n")
    seen.add(fresh_digest(memo, package))
    (package / "a.py").rename(package / "sub/a.py")
    seen.add(fresh_digest(memo, package))
    (package / "new.py").write_text("")
    seen.add(fresh_digest(memo, package))
    assert len(seen) == 5
    assert fresh_digest(None, make_package(tmp_path / "twin")) == first


def test_the_source_digest_is_remembered_over_processes_and_costs_little(tmp_path):
    package = Path(cache_module.__file__).parent.parent
    digest = fresh_digest(tmp_path, package)
    assert digest == COMPILER.digest(tmp_path)

    def again() -> None:
        assert fresh_digest(tmp_path, package) == digest

    assert is_within(0.02, again, attempts=100)


def test_files_that_changed_after_the_import_have_no_digest(tmp_path):
    package = make_package(tmp_path / "package")
    sources = Sources(str(package))
    assert sources.are_as_imported()
    assert sources.digest()
    (package / "sub/c.txt").write_text("changed\n")
    assert sources.digest()
    (package / "a.py").write_text("x = 3\n")
    assert not sources.are_as_imported()
    assert sources.digest() is None
    assert Sources(str(tmp_path / "missing")).digest() is None


def test_a_package_of_compiled_files_or_in_an_archive_has_a_digest_of_these(tmp_path):
    compiled = tmp_path / "compiled"
    (compiled / "__pycache__").mkdir(parents=True)
    (compiled / "a.pyc").write_bytes(b"1")
    first = fresh_digest(None, compiled)
    (compiled / "__pycache__/a.pyc").write_bytes(b"3")
    assert fresh_digest(None, compiled) == first
    (compiled / "a.pyc").write_bytes(b"2")
    assert fresh_digest(None, compiled) != first
    archive = tmp_path / "package.zip"
    archive.write_bytes(b"1")
    inside = fresh_digest(None, archive / "tilewright")
    archive.write_bytes(b"2")
    assert fresh_digest(None, archive / "tilewright") not in (inside, first)


def test_a_broken_or_unwritable_memo_costs_nothing_but_time(tmp_path):
    package = make_package(tmp_path / "package")
    expected = fresh_digest(None, package)
    (tmp_path / "sources.json").write_text("{broken")
    assert fresh_digest(tmp_path, package) == expected
    assert fresh_digest(Path("/proc/none"), package) == expected


def test_a_pipe_in_place_of_the_memo_is_not_waited_for(tmp_path):
    package = make_package(tmp_path / "package")
    os.mkfifo(tmp_path / "sources.json")
    assert fresh_digest(tmp_path, package) == fresh_digest(None, package)
    assert (tmp_path / "sources.json").is_file()


def test_the_digest_is_remembered_next_to_compiled_modules(tmp_path, monkeypatch):
    package = make_package(tmp_path / "package")
    first = fresh_digest(tmp_path / "one", package)
    (package / "__pycache__").mkdir()
    assert fresh_digest(tmp_path, package) == first
    assert not (tmp_path / "sources.json").exists()
    with monkeypatch.context() as patched:
        patched.setattr(Sources, "_hash_contents", lambda _: "read again")
        assert fresh_digest(tmp_path / "two", package) == first
        (package / "a.py").write_text("x = 4\n")
        assert fresh_digest(tmp_path / "two", package) != first
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    (package / "a.py").write_text("x = 5\n")
    remembered = (package / "__pycache__/sources.json").read_bytes()
    fresh_digest(tmp_path, package)
    assert (package / "__pycache__/sources.json").read_bytes() == remembered
    assert (tmp_path / "sources.json").is_file()
