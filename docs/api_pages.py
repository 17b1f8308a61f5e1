"""Pages of the API reference: each public name of `tilewright` on one page, by the module that defines it."""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from types import GenericAlias, ModuleType, UnionType
from typing import Any

from rest import rest

import tilewright as tw

NAMESPACES = {
    "nn": "Neural networks",
    "linalg": "Linear algebra",
    "fft": "Fourier transforms",
    "random": "Random numbers",
    "layouts": "Catalogue of layouts",
    "schedules": "Schedules",
    "layout": "Layout algebra",
}
"""The namespaces of the package, with the titles of their pages."""

CONSTANTS = {
    "In": 'Annotation of an array that a kernel reads: `x: tw.In["M K"]`, or `tw.In["M K", tw.f32]` with a type.',
    "Out": "Annotation of an array that a kernel writes.",
    "InOut": "Annotation of an array that a kernel reads and writes.",
    "e": "Euler's number.",
    "pi": "The ratio of a circle's circumference to its diameter.",
    "inf": "Positive infinity.",
    "nan": "Not a number.",
    "newaxis": "`None`, which inserts an axis in an index.",
    "__version__": "The version of the package.",
    "__array_api_version__": "The version of the Python Array API that the package implements.",
}
"""Public values that carry no docstring of their own."""


@dataclass(frozen=True)
class Page:
    """A page of names that modules define. `types` instead takes all values of one class."""

    file: str
    title: str
    modules: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    types: type | None = None


PAGES = (
    Page(
        "compile",
        "Compile and run",
        ("api.jit", "api.kernel", "api.stages", "options", "layout.dims", "runtime.cuda.stream", "errors"),
        ("__version__",),
    ),
    Page("kernels", "Tile kernels", ("api.tile_functions",), ("In", "Out", "InOut", "layout")),
    Page("importers", "Models of other frameworks", ("interop.importers",)),
    Page("arrays", "Arrays", ("api.array", "api.complex_array")),
    Page(
        "types",
        "Element types and constants",
        ("api.functions_dtype", "api.namespace_info", "dtypes"),
        ("e", "pi", "inf", "nan", "newaxis", "__array_api_version__"),
        tw.DType,
    ),
    Page("creation", "Creation", ("api.functions_creation",)),
    Page("elementwise", "Elementwise", ("api.functions_elementwise", "api.functions_math", "api.functions_complex")),
    Page("manipulation", "Shapes and order", ("api.functions_manipulation", "api.lifting")),
    Page("statistics", "Reductions and scans", ("api.functions_statistics",)),
    Page("searching", "Searching, sorting and sets", ("api.functions_searching",)),
    Page("indexing", "Indexing", ("api.indexing",)),
    Page("contractions", "Matrix products and einsum", ("api.functions_linalg", "api.functions_einsum")),
    Page("control", "Control flow", ("api.control",)),
)


def public_names(namespace: ModuleType) -> list[str]:
    """The public names of a namespace: those of its `__all__`, or else the functions and classes that it has."""
    named: list[str] | None = getattr(namespace, "__all__", None)
    if named is not None:
        return sorted(named)
    found = {name: getattr(namespace, name) for name in dir(namespace) if not name.startswith("_")}
    shared = {"Layout", "blocked", "column_major", "distributed", "panels", "row_major", "strided"}
    catalogued = namespace.__name__.endswith(".layouts")
    return sorted(
        name
        for name, value in found.items()
        if catalogued or name in shared or getattr(value, "__module__", "") == namespace.__name__
    )


def texts() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    described: dict[int, str] = {}
    files = {page.file: _titled(page.title, _entries(names, described)) for page, names in _by_page().items()}
    for name, title in sorted(NAMESPACES.items()):
        names = [f"{name}.{member}" for member in public_names(getattr(tw, name))]
        files[name] = _titled(f"{title}: tw.{name}", _entries(names, described))
    contents = "\n".join(f"   {file}" for file in files)
    files["index"] = _titled("Python API", [f".. toctree::\n   :maxdepth: 1\n\n{contents}\n"])
    return files


def write(folder: Path) -> None:
    """Write the pages; one that is as it was keeps its time, so that it is not built again."""
    folder.mkdir(exist_ok=True)
    for name, text in texts().items():
        file = folder / f"{name}.rst"
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def _by_page() -> dict[Page, list[str]]:
    found: dict[Page, list[str]] = {page: [] for page in PAGES}
    for name in [*dir(tw)]:
        if name not in NAMESPACES or name == "layout":
            found[_page_of(name)].append(name)
    return found


def _page_of(name: str) -> Page:
    value = getattr(tw, name)
    module = str(getattr(value, "__module__", "")).removeprefix("tilewright.")
    for page in PAGES:
        is_typed = page.types is not None and isinstance(value, page.types)
        if name in page.names or is_typed or (callable(value) and module in page.modules):
            return page
    raise LookupError(f"`tw.{name}` of the module `{module}` belongs to no page of docs/api_pages.py")


def _entries(names: list[str], described: dict[int, str]) -> list[str]:
    """The entries of names; an object that has one already, under another name, is named alone."""
    entries: list[str] = []
    for name in names:
        value = functools.reduce(getattr, name.split("."), tw)
        first = described.setdefault(id(value), name) if callable(value) else name
        entries.append(_entry(name, value) if first == name else _alias(name, value, first))
    return entries


def _alias(name: str, value: Any, first: str) -> str:
    # Sphinx finds a class by its last name, which one entry alone may have.
    directive = f"data:: tw.{name}" if inspect.isclass(value) else f"function:: tw.{name}{_parameters(value)}"
    return f".. py:{directive}\n\n   The same as :py:obj:`tw.{first}`.\n"


def _titled(title: str, entries: list[str]) -> str:
    return f"{title}\n{'=' * len(title)}\n\n" + "\n".join(entries)


def _entry(name: str, value: Any) -> str:
    if name == "layout":
        call = type(value).__call__
        return _described(f"function:: tw.layout{_parameters(call, skipped=1)}", call.__doc__ or "")
    if isinstance(value, tw.DType):
        return _described(f"data:: tw.{name}", f"{_kind(value)}, `{value.name}`.")
    if isinstance(value, GenericAlias | UnionType):
        return _described(f"data:: tw.{name}", f"The type `{_short(value)}`.")
    if name in CONSTANTS:
        return _described(f"data:: tw.{name}", CONSTANTS[name])
    if inspect.isclass(value):
        return f".. autoclass:: tw.{name}\n   :members:\n   :undoc-members:\n"
    return f".. auto{'function' if callable(value) else 'data'}:: tw.{name}\n"


def _described(directive: str, docstring: str) -> str:
    lines = rest(inspect.cleandoc(docstring).splitlines())
    return f".. py:{directive}\n\n" + "".join(f"   {line}".rstrip() + "\n" for line in lines)


def _parameters(function: Any, skipped: int = 0) -> str:
    """The parameters without their types; `skipped` leaves out the first ones."""
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()][skipped:]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _short(type: Any) -> str:
    return re.sub(r"[a-z_]+\.", "", str(type))


def _kind(dtype: tw.DType) -> str:
    if dtype.is_bool:
        return "Truth values"
    names = {"f": "Floating point", "i": "Signed integers", "u": "Unsigned integers", "c": "Complex numbers"}
    return f"{names[dtype.kind]} of {dtype.bits} bits"
