"""docs/reference/layouts.md lists every constructor of the catalogue, with the axes that it has."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from catalogue_page import EXAMPLES, FAMILIES, PAGE, axes_of, constructors, described, evaluate, family_of, page

from tilewright.layout import Layout


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/unit/layout/catalogue_page.py"


def test_every_public_constructor_is_listed_once():
    listed = re.findall(r"^\| `(\w+)\(", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(constructors())


def test_every_function_of_a_family_is_public():
    from importlib import import_module

    for module in FAMILIES:
        owner = f"tilewright.layout.catalogue.{module}"
        own = {name for name, value in vars(import_module(owner)).items() if getattr(value, "__module__", "") == owner}
        public = {name for name in own if not name.startswith("_") and name not in ("Plane", "Planes")}
        assert public == {name for name in constructors() if family_of(name) == module}


@pytest.mark.parametrize("example", EXAMPLES)
def test_documented_axes_are_those_of_the_example(example):
    _, axes, _ = described(example.partition("(")[0])
    found = axes_of(evaluate(example))
    names = set(
        re.findall(r"\b(?:device\.<name>|[a-z0-9]+\.[a-z]+|warp|wave|lane|reg|simd|mem|core|cta|page)(?![.\w])", axes)
    )
    named = {axis for axis in found if not axis.startswith("device.")} | (
        {"device.<name>"} if any(axis.startswith("device.") for axis in found) else set()
    )
    if "`axis`" in axes:
        names.add("dram.bank")
    assert names == named


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_layout_survives_its_text(example):
    value = evaluate(example)
    layouts = [value] if isinstance(value, Layout) else [plane.layout for plane in value.planes]
    for layout in layouts:
        assert Layout.parse(str(layout)) == layout


def test_the_catalogue_needs_neither_numpy_nor_ir():
    code = (
        "import sys, tilewright; old = set(sys.modules); import tilewright.layout.catalogue; "
        "print({name.split('.')[0] for name in set(sys.modules) - old} & {'numpy', 'xdsl', 'llvmlite', 'ml_dtypes'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
