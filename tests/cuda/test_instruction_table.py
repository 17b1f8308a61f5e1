"""The page of instructions: what the machine code of each kernel is made of, on each chip."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright as tw
from tests.cuda.test_machine_code import check_clean
from tests.sampling import ALL
from tilewright.cli.bench_suites.cuda_static import CHIPS, COPYING, MULTIPLYING, programs

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cuda-instructions.md"


def table() -> dict[str, dict[str, set[str]]]:
    """The instructions of the page, by kernel and chip."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]
    chips = [cell.strip("`") for cell in rows[0][1:]]
    return {
        row[0]: {chip: set(cell.replace("`", "").split(", ")) for chip, cell in zip(chips, row[1:], strict=True)}
        for row in rows[1:]
    }


def test_the_page_has_all_kernels_and_chips() -> None:
    assert list(table()) == [name for name, _, _ in programs(quick=False)]
    assert all(tuple(row) == CHIPS for row in table().values())


ON_ALL_CHIPS = ("gemm bf16", "attention")
# Each other kernel on one of four chips in turn, on all where `TW_TEST_ALL` is set, as `tilewright bench
# cuda-static` has them.
CASES = [
    (name, chip)
    for n, (name, _, _) in enumerate(programs(quick=False))
    for k, chip in enumerate(CHIPS)
    if ALL or name in ON_ALL_CHIPS or (n + n // 4 + k) % 4 == 0
]


@pytest.mark.parametrize(("name", "chip"), CASES)
def test_kernels_are_made_of_the_instructions_of_the_page(name: str, chip: str) -> None:
    ((function, types),) = ((f, t) for known, f, t in programs(quick=False) if known == name)
    with tw.options(cache=False):
        counts = check_clean(tw.jit(function).lower(*types).compile(f"cuda:{chip}").executable.built)
    assert {each for each in counts if each in (*MULTIPLYING, *COPYING)} == table()[name][chip]
