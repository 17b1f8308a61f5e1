"""Malformed programs give errors; `python -m tests.interop.stablehlo.damage` tries many more."""

from __future__ import annotations

import collections

import pytest

pytest.importorskip("jax")

from tests.interop.stablehlo.damage import is_failure, run
from tests.sampling import count


def test_damaged_programs_give_errors_or_programs() -> None:
    found = [(n, name, result) for n, name, _, result in run(count(12, 300), seed=0)]
    assert not [entry for entry in found if is_failure(entry[2])]
    kinds = collections.Counter(result for _, _, result in found)
    assert kinds["ModelFileError"] > 4
    assert kinds["ran"] > 0
