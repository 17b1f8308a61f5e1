"""Which names of the Python Array API 2025.12 `tilewright` has, and the page that says so.

`python tests/conformance/array_api_table.py` writes docs/reference/array-api.md. `array_api_strict` is the oracle for
names and signatures.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import array_api_strict

import tilewright as tw

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "array-api.md"

# Names of `array_api_strict` that are its own, not the standard's.
_NOT_STANDARD = {
    "ArrayAPIStrictFlags",
    "Device",
    "__version__",
    "get_array_api_strict_flags",
    "reset_array_api_strict_flags",
    "set_array_api_strict_flags",
}

ABSENT: dict[str, str] = {}

ABSENT_LINALG: dict[str, str] = {}

REFUSED = {
    name: "raises `DataDependentShapeError`: its size depends on the contents of the array"
    for name in ("nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values")
}

ABSENT_METHODS = {
    "__dlpack__": "a traced array has no memory; arguments and results of compiled functions do",
    "__dlpack_device__": "a traced array has no memory; arguments and results of compiled functions do",
}

REFUSED_METHODS = {
    "__bool__": "raises `DataDependentShapeError`: use `tw.where`, `tw.cond` or `tw.while_loop`",
    "__complex__": "raises `DataDependentShapeError`",
    "__float__": "raises `DataDependentShapeError`",
    "__index__": "raises `DataDependentShapeError`: use `x[i]`, `tw.dynamic_slice` or `tw.fori_loop`",
    "__int__": "raises `DataDependentShapeError`",
    "__iter__": "raises `DataDependentShapeError`: use `tw.unstack`, `tw.scan` or `tw.fori_loop`",
    "__setitem__": "raises `UnsupportedSyntaxError`: use `x.at[key].set(value)`",
}

DIFFERENCES = {
    "`x[mask]`": "a mask must be an array of NumPy bools, known while tracing; a traced mask raises "
    "`DataDependentShapeError`",
    "`x[i]` with traced `i`": "indices outside the array are clamped, not refused",
    "`x += y`": "makes a new array, as Python does for types without in-place operators",
    "`device`": "taken, and must be None: where a program runs is chosen by `tw.jit(target=...)`",
    "`copy`": "taken and not used: programs are functions, and the compiler decides about copies",
    "`empty`, `empty_like`": "give zeros",
    "`sort`, `argsort`": "always stable; NaN counts as the largest element",
    "`linalg`": "calls LAPACK, on the targets `cpu` and `interp` (reference/linear-algebra.md); `LinearAlgebraError`, "
    "which is NumPy's `LinAlgError`, is raised when the program runs",
    "default types": "f32 for floats, i64 for integers and indices, complex64 for complex numbers",
    "complex numbers": "pairs of real arrays: functions of them are formulas of the parts (errors of 4 units of the "
    "last place of the magnitude; `pow` more), and what needs an order or bits refuses them",
    "mixed kinds": "an integer array with a float array gives the float type; a Python float with an integer array "
    "gives f32; functions of floats take integers as f32",
}


@dataclass(frozen=True)
class Row:
    """One name of the standard: `status` is "yes", "refused" or "absent"."""

    name: str
    status: str
    note: str = ""


def standard_names() -> list[str]:
    """Names of the main namespace."""
    return sorted(set(array_api_strict.__all__) - _NOT_STANDARD, key=lambda name: (name.strip("_"), name))


def linalg_names() -> list[str]:
    """Names of the extension for linear algebra. `array_api_strict` leaves out those of the latest standard."""
    return sorted({*array_api_strict.linalg.__all__, "eig", "eigvals"})


def standard_methods() -> list[str]:
    """Attributes and methods of the array object, without the in-place operators, which Python makes up."""
    kind = type(array_api_strict.asarray(1))
    in_place = {f"__i{name}__" for name in _OPERATORS}
    own = {n for n, v in vars(kind).items() if callable(v) or isinstance(v, property)}
    return sorted(
        n
        for n in own - in_place - {"__new__", "__reduce__", "__repr__", "__str__", "__buffer__", "__array__"}
        if n.startswith("__") or not n.startswith("_")
    )


_OPERATORS = (
    "add",
    "and",
    "floordiv",
    "lshift",
    "matmul",
    "mod",
    "mul",
    "or",
    "pow",
    "rshift",
    "sub",
    "truediv",
    "xor",
)


def rows() -> list[Row]:
    """The main namespace."""
    return [_row(name, tw, ABSENT, REFUSED) for name in standard_names()]


def linalg_rows() -> list[Row]:
    """The extension for linear algebra."""
    return [_row(name, tw.linalg, ABSENT_LINALG, {}) for name in linalg_names()]


def method_rows() -> list[Row]:
    """The array object."""
    return [_row(name, tw.Array, ABSENT_METHODS, REFUSED_METHODS) for name in standard_methods()]


def _row(name: str, owner: Any, absent: dict[str, str], refused: dict[str, str]) -> Row:
    if name in refused:
        return Row(name, "refused", refused[name])
    if not hasattr(owner, name):
        return Row(name, "absent", absent.get(name, "not listed"))
    return Row(name, "yes")


def signature_gaps(name: str, standard: Any = array_api_strict, own_namespace: Any = tw) -> list[str]:
    """What the standard's signature of a function allows and ours does not."""
    theirs, ours = getattr(standard, name), getattr(own_namespace, name)
    if not inspect.isfunction(theirs):
        return []
    expected, own = inspect.signature(theirs).parameters, inspect.signature(ours).parameters
    positional = [p for p in own.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    gaps = []
    for place, parameter in enumerate(expected.values()):
        if parameter.kind == parameter.VAR_POSITIONAL:
            gaps += [] if any(p.kind == p.VAR_POSITIONAL for p in own.values()) else [f"*{parameter.name}"]
        elif parameter.kind == parameter.POSITIONAL_ONLY:
            gaps += [] if place < len(positional) else [f"{parameter.name} by position"]
        elif parameter.name not in own:
            gaps.append(parameter.name)
    required = [p.name for p in own.values() if p.default is p.empty and p.kind == p.KEYWORD_ONLY]
    return gaps + [f"{name} is required" for name in required if name not in expected]


def page() -> str:
    """The reference page."""
    lines = [
        "# The Python Array API 2025.12",
        "",
        "`tilewright` is an Array API namespace for traced arrays: `x.__array_namespace__()` gives it. This page is",
        "written by `python tests/conformance/array_api_table.py` and checked against `array_api_strict`.",
        "",
        "## Differences",
        "",
        *(f"- {what}: {how}." for what, how in DIFFERENCES.items()),
        "",
        "## Gaps",
        "",
        "| name | | why |",
        "|---|---|---|",
        *(f"| `{r.name}` | {r.status} | {r.note} |" for r in rows() if r.status != "yes"),
        *(f"| `linalg.{r.name}` | {r.status} | {r.note} |" for r in linalg_rows() if r.status != "yes"),
        *(f"| `Array.{r.name}` | {r.status} | {r.note} |" for r in method_rows() if r.status != "yes"),
        "",
        "## Supported names",
        "",
        ", ".join(f"`{r.name}`" for r in rows() if r.status == "yes") + ".",
        "",
        "Of `linalg`: " + ", ".join(f"`{r.name}`" for r in linalg_rows() if r.status == "yes") + ".",
        "",
        "Of the array object: " + ", ".join(f"`{r.name}`" for r in method_rows() if r.status == "yes") + ".",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
