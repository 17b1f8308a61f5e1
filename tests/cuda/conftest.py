"""Tests of a real GPU are not collected where there is none; programs of the others run on an emulated driver."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright as tw
from tests.cuda.fake_driver import H200, FakeDriver
from tests.cuda.running import unassembled
from tilewright.runtime import cuda_driver
from tilewright.targets.cuda import target

collect_ignore = [] if cuda_driver.found().devices else ["test_device.py"]


@pytest.fixture
def no_assembler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Machine code is PTX, in a cache that nobody else has."""
    monkeypatch.setattr(target, "cubin", unassembled)
    with tw.options(cache=True, cache_dir=tmp_path / "cache"):
        yield


@pytest.fixture
def driver(no_assembler: None) -> Iterator[FakeDriver]:
    """An emulated H200, on which nothing is left in the end."""
    fake = FakeDriver(H200)
    with cuda_driver.replaced(fake):
        yield fake
        gc.collect()
        fake.check_nothing_left()
