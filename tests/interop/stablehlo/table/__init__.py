"""The table of cases: every operation in several forms, types and edge shapes."""

from __future__ import annotations

from tests.interop.stablehlo.cases import Case
from tests.interop.stablehlo.table import behaviour, complex_numbers, elementwise, indexing, structure, windows


def all_cases() -> list[Case]:
    """The whole table."""
    return [
        case
        for module in (elementwise, structure, windows, indexing, behaviour, complex_numbers)
        for part in module.PARTS
        for case in part()
    ]
