"""The package's names load on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tilewright import layout


@pytest.mark.parametrize("name", layout.__all__)
def test_every_public_name_resolves(name):
    first = getattr(layout, name)
    assert vars(layout)[name] is first


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = layout.no_such_name


def test_importing_the_package_loads_none_of_its_modules():
    code = "import sys, tilewright; old = set(sys.modules); import tilewright.layout; print(set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'tilewright.layout'}"
