"""The page that says which operations of StableHLO are supported, from their rules.

    python -m tests.interop.stablehlo.page

writes it.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.interop.stablehlo.pretty import FORMS
from tilewright.interop.stablehlo.registry import find, known_operations

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "stablehlo.md"
# The operations of the specification (version 1.17) that have no rule here, by why.
MISSING = {
    "quantised types": "uniform_dequantize uniform_quantize",
    "sizes that are not known": "dynamic_conv dynamic_gather dynamic_pad",
    "tokens and tuples": "after_all async_done async_start get_tuple_element infeed outfeed recv send tuple",
}
# Operations of CHLO that JAX lowers to, and have no rule.
MISSING_CHLO = {"special functions": "bessel_i1e zeta"}
_HEAD = """# StableHLO operations

Operations that `tw.from_stablehlo` and `tw.from_jax` read. `python -m tests.interop.stablehlo.suite` runs each
operation in several forms, types and edge shapes on `cpu` and compares with JAX; `python -m
tests.interop.stablehlo.page` writes this page.

All operations are read in the generic form of MLIR. "Default" marks operations whose default printed form differs and
is read too.

| Operation | Default | Meaning |
|---|---|---|
{rows}

## Not supported

| Operations | Why |
|---|---|
{missing}
"""


def page() -> str:
    """The text of the page."""
    rows = "\n".join(map(_row, known_operations()))
    named = [(names.split(), why) for why, names in MISSING.items()]
    named += [([f"chlo.{name}" for name in names.split()], why) for why, names in MISSING_CHLO.items()]
    missing = "\n".join(f"| {', '.join(names)} | {why} |" for names, why in named)
    return _HEAD.format(rows=rows, missing=missing)


def _row(name: str) -> str:
    entry = find(name)
    assert entry is not None
    assert entry.rule.__doc__
    text = " ".join(entry.rule.__doc__.split())
    form = "yes" if name in FORMS or name.removeprefix("func.") in FORMS else ""
    return f"| {name} | {form} | {text} |"


if __name__ == "__main__":
    PAGE.write_text(page())
