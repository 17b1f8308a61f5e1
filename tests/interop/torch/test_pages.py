"""The pages on PyTorch: samples run and print what the page says; the table of rules is current."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
HOW_TO = ROOT / "docs" / "how-to" / "torch.md"
REFERENCE = ROOT / "docs" / "reference" / "torch.md"
_SAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


@pytest.fixture
def _registered() -> None:
    """The entry point as the page takes it, also where the package was installed before it had one."""
    from tilewright.interop.torch import backend

    names = {entry.name for entry in importlib.metadata.entry_points(group="torch_dynamo_backends")}
    if "tilewright" not in names and "tilewright" not in torch._dynamo.list_backends():
        torch._dynamo.register_backend(backend, name="tilewright")


@pytest.mark.usefixtures("_registered")
def test_samples() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    page = HOW_TO.read_text()
    namespace: dict[str, Any] = {"__name__": "page"}
    shown = 0
    for match in _SAMPLE.finditer(page):
        # Empty lines in front give the code the page's line numbers, by which kernels read their source.
        code = compile("\n" * page.count("\n", 0, match.start(1)) + match[1], str(HOW_TO), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if match[2] is not None:
            assert printed.getvalue() == match[2]
            shown += 1
    assert shown == 7


def test_the_entry_point_is_the_backend() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    declared = re.search(r'^\[project\.entry-points\."torch_dynamo_backends"\]\ntilewright = "(.*):(.*)"$', text, re.M)
    assert declared is not None
    from tilewright.interop import torch as ours

    assert declared[1] == ours.__name__
    assert getattr(ours, declared[2]) is ours.backend


def test_the_table_of_rules_is_current() -> None:
    from tests.interop.torch.page import rules_and_core

    text = REFERENCE.read_text()
    parts = rules_and_core()
    assert str(parts["rules"]) in text
    assert f"{parts['core_known']} of the {parts['core_count']} overloads" in text
    assert str(parts["core_missing"]) in text
    assert str(parts["graphs"]) in text


def test_no_operator_of_opinfo_is_wrong() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| \d+ \| \d+ \| (\d+) \| \d+ \|$", REFERENCE.read_text(), re.M)
    assert {row[0] for row in rows} == {"float32", "int64", "bool"}
    assert all(wrong == "0" for *_, wrong in rows)


def test_the_example_learns() -> None:
    torch.compiler.reset()
    example = runpy.run_path(str(ROOT / "examples" / "03_train_with_torch.py"))
    first_loss, right = example["train"](60)
    assert 0.5 < first_loss < 1.0
    assert right > 0.9
