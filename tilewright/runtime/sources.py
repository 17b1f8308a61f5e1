"""Identity of the running compiler, part of every cache key: a changed compiler finds nothing stale.

It is taken from the files that this process imports. Their stamp (sizes, times, inodes) is taken when the package is
imported and compared later: after an upgrade a running process would mix modules of both versions, so it neither reads
nor writes the compile cache any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# An installation may hold the code without its text.
_SUFFIXES = (".py", ".pyc", ".toml")
_MEMO = "sources.json"
# Libraries that decide what code is generated, but are imported only by a compilation, or by some.
_LIBRARIES = ("llvmlite", "ml_dtypes", "xdsl")


class Sources:
    """The files of a package that is being imported."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._at_import = self._stamp()
        self._known: str | None = None

    def digest(self, memo_directory: Path | None = None) -> str | None:
        """BLAKE2b over the contents of the package's files and the versions of Python and the libraries that decide
        what is generated, in hex. None where the files have changed since the package was imported, or are not there.

        The digest is remembered together with the stamp, so that a later process reads no file: next to the compiled
        modules, or in `memo_directory` where that is not possible. If neither can be written, it is computed again.
        """
        if not self.are_as_imported():
            return None
        if self._known is None:
            import numpy as np

            parts = (self._contents(memo_directory), sys.version, np.__version__)
            self._known = hashlib.blake2b("\0".join(parts).encode(), digest_size=32).hexdigest()
        return self._known

    def are_as_imported(self) -> bool:
        """Whether the files are those that this process has imported; not where they cannot be looked at."""
        try:
            return self._at_import is not None and self._stamp() == self._at_import
        except OSError:
            return False

    def _contents(self, memo_directory: Path | None) -> str:
        import msgspec

        from tilewright.runtime.files import replacing

        stamp = self._at_import or ""
        memos = [folder / _MEMO for folder in (self._compiled_folder(), memo_directory) if folder is not None]
        for memo in memos:
            if digest := _read_memo(memo).get(stamp):
                return digest
        digest = self._hash_contents()
        for memo in memos:
            with contextlib.suppress(OSError), replacing(memo) as temporary:
                temporary.write_bytes(msgspec.json.encode({stamp: digest}))
                break
        return digest

    def _compiled_folder(self) -> Path | None:
        """The folder of compiled modules that Python keeps next to the package's text, where there is one."""
        if sys.dont_write_bytecode or sys.pycache_prefix is not None:
            return None
        folder = Path(self._package, "__pycache__")
        return folder if folder.is_dir() else None

    def _stamp(self) -> str | None:
        """A digest of what the file system states of the files, without reading them; None where there are none."""
        hasher = hashlib.blake2b(digest_size=32)
        files = [*self._files()]
        for name, status in (*files, *_library_files()):
            times = f"{status.st_mtime_ns}\0{status.st_ctime_ns}\0{status.st_ino}"
            hasher.update(f"{name}\0{status.st_size}\0{times}\0".encode())
        return hasher.hexdigest() if files else None

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        """The package's files by name; for a package inside an archive or a frozen application, that file."""
        if not os.path.isdir(self._package):
            if (archive := self._archive()) is not None:
                yield "", os.stat(archive)
            return
        found: list[tuple[str, os.stat_result]] = []
        pending = [""]
        while pending:
            folder = pending.pop()
            with os.scandir(os.path.join(self._package, folder)) as children:
                for child in children:
                    name = f"{folder}{child.name}"
                    if child.is_dir(follow_symlinks=False):
                        if child.name != "__pycache__":
                            pending.append(f"{name}/")
                    elif name.endswith(_SUFFIXES):
                        found.append((name, child.stat()))
        yield from sorted(found, key=lambda file: file[0])

    def _archive(self) -> str | None:
        path = self._package
        while path != os.path.dirname(path):
            path = os.path.dirname(path)
            if os.path.isfile(path):
                return path
        return sys.executable if getattr(sys, "frozen", False) else None

    def _hash_contents(self) -> str:
        import importlib.metadata

        hashed = hashlib.blake2b(digest_size=32)
        for name, _ in self._files():
            path = os.path.join(self._package, name) if name else self._archive() or ""
            content = Path(path).read_bytes()
            hashed.update(f"{name}\0{len(content)}\0".encode())
            hashed.update(content)
        for name in _LIBRARIES:
            # A process that only runs programs may have none of them.
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                hashed.update(f"{name} {importlib.metadata.version(name)}\0".encode())
        return hashed.hexdigest()


def _library_files() -> Iterator[tuple[str, os.stat_result]]:
    """One file of each library, by its path: an upgrade replaces it."""
    for name in _LIBRARIES:
        with contextlib.suppress(ImportError, ValueError, OSError):
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin is not None:
                yield spec.origin, os.stat(spec.origin)


def _read_memo(memo: Path) -> dict[str, str]:
    import msgspec

    from tilewright.runtime.files import open_regular

    try:
        with open(open_regular(memo), "rb") as file:
            return msgspec.json.decode(file.read(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


COMPILER = Sources(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
