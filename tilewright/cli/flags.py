"""The flags that every verb takes: `--json` and one flag per option of `tilewright.options`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tilewright.errors import OptionError
from tilewright.options import specs

_JSON = Parameter(name="--json", negative="", group="Output", help="Print one JSON document on stdout, nothing else.")


def _flags_type() -> type[Any]:
    fields: list[tuple[str, Any, Any]] = [("json", Annotated[bool, _JSON], dataclasses.field(default=False))]
    for spec in specs():
        # Values stay text here: the options check them, so that flag, variable and keyword refuse alike.
        kind = bool if isinstance(spec.default, bool) else str
        about = f"{spec.doc}. Also `{spec.variable}`." if spec.variable else spec.doc
        negative = f"--no-{spec.flag.removeprefix('--')}" if kind is bool else ""
        parameter = Parameter(name=spec.flag, negative=negative, group="Options", help=about)
        fields.append((spec.name, Annotated[kind | None, parameter], dataclasses.field(default=None)))
    # Without a module of its own it counts as a type of the standard library, which cyclopts does not look into.
    namespace = {"__module__": __name__}
    flags = dataclasses.make_dataclass("Flags", fields, frozen=True, kw_only=True, namespace=namespace)
    return Parameter(name="*")(flags)


if TYPE_CHECKING:

    class Flags:
        """`json` and the options as given; None where a flag was not."""

        json: bool
        target: str | None

else:
    Flags = _flags_type()


_COMPILING = frozenset({"verify", "target", "cache", "cache_limit_bytes", "dump_dir"})
_RUNNING = frozenset({"threads", "memory_limit_bytes", "trace_file"})

# The options that have no meaning for a command, and the reason.
_NOT_USED: dict[str, tuple[frozenset[str], str]] = {
    "check": (frozenset({"verify", "cache", "cache_limit_bytes"}), "it compiles anew, with all verifiers on"),
    "explain": (_RUNNING | {"cache_limit_bytes"}, "it runs nothing"),
    "show": (_RUNNING - {"trace_file"} | {"cache_limit_bytes"}, "it runs nothing"),
    "doctor": ((_COMPILING | _RUNNING) - {"threads", "cache"}, "it describes this host"),
    "cache": (((_COMPILING | _RUNNING) - {"cache", "cache_limit_bytes"}), "it compiles and runs nothing"),
}
# Of a saved program.
_COMPILED = (_COMPILING, "the program is compiled already")


def refuse_unused(command: str, given: Iterable[str], *, is_compiled: bool = False) -> None:
    """Refuse options on the command line that a command would ignore.

    Raises:
        OptionError: there is one.
    """
    unused, reason = _COMPILED if is_compiled else _NOT_USED.get(command, (frozenset[str](), ""))
    for spec in specs():
        if spec.name in given and spec.name in unused:
            message = f"`{command}` does not use `{spec.flag}`: {reason}"
            raise OptionError(message, help=f"leave out `{spec.flag}`")


def given_options(flags: Flags | None) -> dict[str, object]:
    """The options that the command line sets."""
    if flags is None:
        return {}
    values = {spec.name: getattr(flags, spec.name) for spec in specs()}
    return {name: value for name, value in values.items() if value is not None}
