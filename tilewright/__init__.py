"""Tilewright: array programs and tile kernels become fused native code.

import tilewright as tw

@tw.jit
def f(x, w):
    return tw.nn.softmax(x @ w, axis=-1)
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewright.options import options as options  # the name is also that of its module, so it is bound here

if TYPE_CHECKING:
    from tilewright.api import *  # noqa: F403  the names for editors and type checkers
    from tilewright.interop.importers import *  # noqa: F403

__version__ = "0.1.0"

# It takes the stamp of the files that this process imports, now.
importlib.import_module("tilewright.runtime.sources")
# Forks wait for what other threads import, from now on.
importlib.import_module("tilewright.locks")


# The modules that define the public names.
_HOMES = ("tilewright.api", "tilewright.interop.importers")
_SUBMODULES = frozenset(module.name for module in pkgutil.iter_modules(globals()["__path__"]))


def __getattr__(name: str) -> Any:
    """Public names are found on first use, so that importing the package is quick."""
    # `from tilewright import ops` asks here too: a module is not worth importing the whole interface for.
    if name in _SUBMODULES:
        return importlib.import_module(f"tilewright.{name}")
    if name == "__all__":  # `from tilewright import *`
        return _public_names()
    for home in map(_imported, _HOMES):
        if name in home.__all__:
            value = globals()[name] = getattr(home, name)
            return value
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")


def _imported(name: str) -> ModuleType:
    from tilewright.runtime.garbage import no_collections  # not at the top: it would be a public name

    with no_collections():
        return importlib.import_module(name)


def __dir__() -> list[str]:
    return sorted({*_public_names(), "__version__"})


def _public_names() -> list[str]:
    return [*(name for home in map(importlib.import_module, _HOMES) for name in home.__all__), "options"]
