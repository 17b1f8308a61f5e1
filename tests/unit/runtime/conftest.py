"""A compile cache, a program, and both ways of calling one."""

from __future__ import annotations

import pytest
from runtime_programs import make_add

from tilewright.runtime.cache import CompileCache
from tilewright.runtime.cpu import native, pool
from tilewright.runtime.program import Program


@pytest.fixture(autouse=True)
def own_workers() -> None:
    """Programs on tensors of torch, which tests before these ran, have left the jobs of the process to its threads."""
    pool.run_in(None)


@pytest.fixture
def cache(tmp_path) -> CompileCache:
    return CompileCache(tmp_path / "cache")


@pytest.fixture(scope="module")
def add() -> Program:
    return make_add(4)


@pytest.fixture(params=["native", "python"])
def way_in(request, monkeypatch) -> str:
    """Both ways in: the native function, and Python alone as on an interpreter whose arrays are laid out otherwise."""
    if request.param == "python":
        monkeypatch.setattr(native, "_knows_arrays", lambda: False)
    return request.param
