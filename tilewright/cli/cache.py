"""`tilewright cache`: look at the compile cache and empty it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import cyclopts
from msgspec.structs import asdict

from tilewright.cli.flags import Flags
from tilewright.cli.report import Report, bytes_text, make_table, show_pairs
from tilewright.errors import ArgumentError

if TYPE_CHECKING:
    from tilewright.runtime.cache import CacheEntry, CompileCache

_HELP = """Look at the compile cache and empty it.

For example:

    tilewright cache ls
    tilewright cache prune 512MiB
"""


def list_entries(*, flags: Flags | None = None) -> Report:
    """List the compiled programs, and the constants and kernels that they share, the most recently used first.

    For example:

        tilewright cache ls --json
    """
    entries = _cache().entries()
    rows = [(e.key[:12], *_names(e), bytes_text(e.nbytes), _age(e.created_s), _age(e.used_s)) for e in entries]
    table = make_table("", ("key", "name", "target", "size", "created", "used"), rows)
    return Report({"entries": [_document(entry) for entry in entries]}, lambda console: console.print(table))


def show_entry(key: str, /, *, flags: Flags | None = None) -> Report:
    """Show one compiled program, its inputs, outputs and what it needs, or what programs share.

    For example:

        tilewright cache show 3fa9c1

    Parameters
    ----------
    key
        The entry's key, or an unambiguous prefix of it.
    """
    from tilewright.runtime.program import load
    from tilewright.runtime.shared_constants import CONSTANTS, SharedConstants
    from tilewright.runtime.shared_objects import OBJECTS

    cache = _cache()
    entry = _find(cache, key)
    if entry.record.get("target") in (CONSTANTS, OBJECTS):
        document = _document(entry)
        return Report(document, lambda console: show_pairs(console, document))
    manifest = load(entry.path, SharedConstants(cache).find).manifest
    document = _document(entry) | {
        "cpu": manifest.cpu,
        "features": list(manifest.features),
        "inputs": [f"{spec.name}: {spec}" for spec in manifest.inputs],
        "outputs": [f"{spec.name}: {spec}" for spec in manifest.outputs],
        "arena_bytes": manifest.arena_bytes,
        "estimated_s": manifest.estimated_seconds,
    }
    return Report(document, lambda console: show_pairs(console, document))


def clear(*, flags: Flags | None = None) -> Report:
    """Remove all compiled programs.

    For example:

        tilewright cache clear
    """
    return _removed(_cache().clear())


def prune(limit: str = "", /, *, flags: Flags | None = None) -> Report:
    """Remove the least recently used programs until the cache is below a size.

    For example:

        tilewright cache prune 512MiB

    Parameters
    ----------
    limit
        A number of bytes, with an optional KiB, MiB or GiB; the option `cache_limit_bytes` when left out.
    """
    from tilewright.options import current

    chosen = current().replace(cache_limit_bytes=limit) if limit else current()
    return _removed(_cache().prune(chosen.cache_limit_bytes))


def stats(*, flags: Flags | None = None) -> Report:
    """Show where the cache is and how large.

    For example:

        tilewright cache stats
    """
    found = _cache().stats()
    document = {"directory": found.directory, "usable": found.usable, "entries": found.entries, "bytes": found.nbytes}
    shown = document | {"bytes": bytes_text(found.nbytes), "usable": "yes" if found.usable else "no"}
    return Report(document, lambda console: show_pairs(console, shown))


def _cache() -> CompileCache:
    # Also with `--no-cache`, which is about compiling: looking at a cache that is not used is no mistake.
    from tilewright.options import current
    from tilewright.runtime.cache import CompileCache, default_directory

    return CompileCache(default_directory(), current().cache_limit_bytes)


def _find(cache: CompileCache, key: str) -> CacheEntry:
    found = [entry for entry in cache.entries() if entry.key.startswith(key.lower())]
    if not found:
        raise ArgumentError(f"the cache has no entry {key!r}", help="list them with `tilewright cache ls`")
    if len(found) > 1:
        keys = ", ".join(entry.key[: len(key) + 6] for entry in found[:5])
        raise ArgumentError(f"{len(found)} entries begin with {key!r}", help=f"give more digits: {keys}")
    return found[0]


def _removed(count: int) -> Report:
    remaining = _cache().stats()
    document = {"removed": count, "entries": remaining.entries, "bytes": remaining.nbytes}
    text = f"removed {count}, kept {remaining.entries} ({bytes_text(remaining.nbytes)})"
    return Report(document, lambda console: console.print(text))


def _document(entry: CacheEntry) -> dict[str, Any]:
    return asdict(entry) | {"path": str(entry.path)}


def _names(entry: CacheEntry) -> tuple[str, str]:
    return str(entry.record.get("name", "")), str(entry.record.get("target", ""))


def _age(moment_s: float) -> str:
    seconds = max(0.0, time.time() - moment_s)
    for limit, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.0f} {unit} ago"
    return f"{seconds / 86400:.0f} days ago"


application = cyclopts.App(name="cache", help=_HELP)
application.command(list_entries, name="ls")
application.command(show_entry, name="show")
for _verb in (clear, prune, stats):
    application.command(_verb)
