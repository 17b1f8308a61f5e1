"""The flags that every verb takes: `--json` and one flag per option of `tilewright.options`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

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


def given_options(flags: Flags | None) -> dict[str, object]:
    """The options that the command line sets."""
    if flags is None:
        return {}
    values = {spec.name: getattr(flags, spec.name) for spec in specs()}
    return {name: value for name, value in values.items() if value is not None}
