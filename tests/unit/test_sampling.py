"""The tables that a run of the tests draws from are there, and a sample has cases of each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import sampling

TESTS = Path(__file__).parents[1]


class Case:
    def __init__(self, table: str, case: int) -> None:
        self.name = f"{table.partition('::')[2]}[{case}]"
        self.nodeid = f"tests/{table}[{case}]"


def test_tables_exist() -> None:
    functions = {
        f"{path}::{node.name}"
        for path in {name.partition("::")[0] for name in sampling.TABLES}
        for node in ast.walk(ast.parse((TESTS / path).read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert set(sampling.TABLES) <= functions


@pytest.mark.parametrize("cases", [1, 2, 7, 100])
def test_one_of_so_many_is_taken(cases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALL", False)
    table, every = next(iter(sampling.TABLES.items()))
    others = [Case("unit/test_other.py::test_other", n) for n in range(cases)]
    drawn = [Case(table, n) for n in range(cases)]
    absent = sampling.left_out([*others, *drawn])
    assert set(absent) < set(drawn)
    assert len(absent) == cases - -(-cases // every)
    assert set(absent) == set(sampling.left_out([*reversed(drawn)]))
    monkeypatch.setattr(sampling, "ALL", True)
    assert not sampling.left_out(drawn)
