"""Constants that programs share through the compile cache: what is kept once, and what damage and loss do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, ProgramFileError
from tilewright.runtime.cache import CompileCache
from tilewright.runtime.program import load
from tilewright.runtime.shared_constants import CONSTANTS, SHARED_BYTES, SharedConstants

ROWS = 512


def weights(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((ROWS, ROWS), dtype=np.float32)


def drawn(rows: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rows).standard_normal((rows, ROWS), dtype=np.float32)


def product(w: np.ndarray[Any, Any], rows: int) -> Any:
    """A product whose panels depend on the weights alone."""
    return tw.jit(lambda x: x @ w.T).lower(drawn(rows)).compile()


def check(program: Any, w: np.ndarray[Any, Any], rows: int) -> None:
    expected = drawn(rows).astype(np.float64) @ w.T
    np.testing.assert_allclose(program(drawn(rows)), expected, rtol=1e-4, atol=1e-3)


def constants(directory: Path) -> list[Path]:
    return [e.path for e in CompileCache(directory).entries() if e.record["target"] == CONSTANTS]


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    with tw.options(cache_dir=tmp_path, threads=2):
        yield tmp_path


def test_programs_with_the_same_weights_keep_them_once(folder: Path) -> None:
    w = weights()
    for rows in (24, 48):
        check(product(w, rows), w, rows)
    assert len(constants(folder)) == 1
    assert CompileCache(folder).stats().nbytes < 1.5 * w.nbytes
    again = [product(w, rows) for rows in (24, 48)]
    assert [p.executable.cache_state for p in again] == ["hit", "hit"]
    for program, rows in zip(again, (24, 48), strict=True):
        check(program, w, rows)


def test_what_a_later_program_adds_is_all_that_it_stores(folder: Path) -> None:
    w, other = weights(), weights(1)
    product(w, 24)
    x = drawn(24)
    both = tw.jit(lambda x: (x @ other.T, x @ w.T)).lower(x)
    for state in ("miss", "hit"):
        program = both.compile()
        assert program.executable.cache_state == state
        for got, of in zip(program(x), (other, w), strict=True):
            np.testing.assert_allclose(got, x.astype(np.float64) @ of.T, rtol=1e-4, atol=1e-3)
    assert [path.stat().st_size for path in constants(folder)] == [w.nbytes, w.nbytes]


def test_other_weights_are_other_constants(folder: Path) -> None:
    for seed in (0, 1):
        check(product(weights(seed), 24), weights(seed), 24)
    assert len(constants(folder)) == 2


def test_a_saved_program_holds_all_its_constants(folder: Path, tmp_path: Path) -> None:
    w, path = weights(), tmp_path / "product.twp"
    for program in (product(w, 24), product(w, 24)):
        program.save(str(path))
        CompileCache(folder).clear()
        np.testing.assert_allclose(load(path)(drawn(24)), drawn(24) @ w.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("keeps_time", [False, True])
def test_a_damaged_constant_is_written_again(folder: Path, keeps_time: bool) -> None:
    import os

    w = weights()
    product(w, 24)
    (path,) = constants(folder)
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    if keeps_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = product(w, 24)
    assert again.executable.cache_state == "miss"
    check(again, w, 24)
    check(product(w, 48), w, 48)
    assert product(w, 24).executable.cache_state == "hit"


def test_nothing_of_a_damaged_pack_is_used(folder: Path) -> None:
    w, other, x = weights(), weights(1), drawn(24)
    both = tw.jit(lambda x: (x @ other.T, x @ w.T)).lower(x)
    both.compile()
    (path,) = constants(folder)
    content = bytearray(path.read_bytes())
    content[-5] ^= 0xFF
    path.write_bytes(content)
    for state in ("miss", "hit"):
        program = both.compile()
        assert program.executable.cache_state == state
        np.testing.assert_allclose(program(x)[1], x.astype(np.float64) @ w.T, rtol=1e-4, atol=1e-3)


def test_a_constant_that_was_removed_is_made_again(folder: Path) -> None:
    w = weights()
    product(w, 24)
    (path,) = constants(folder)
    path.unlink()
    again = product(w, 24)
    assert again.executable.cache_state == "miss"
    check(again, w, 24)


def test_an_entry_is_not_read_without_its_constants(folder: Path) -> None:
    product(weights(), 24)
    (entry,) = [e for e in CompileCache(folder).entries() if e.record["target"] != CONSTANTS]
    with pytest.raises(ProgramFileError, match="compile cache"):
        load(entry.path)
    check(load(entry.path, SharedConstants(CompileCache(folder)).find), weights(), 24)


def test_weights_written_to_after_tracing_are_refused_and_not_kept(folder: Path) -> None:
    w = weights()
    lowered = tw.jit(lambda x: x @ w.T).lower(drawn(24))
    w[3, 5] += 1
    with pytest.raises(ArgumentError, match="was written to"):
        lowered.compile()
    assert constants(folder) == []


def test_weights_written_to_after_compiling_change_nothing(folder: Path) -> None:
    w, table = weights(), np.arange(3 * ROWS, dtype=np.float32).reshape(3, ROWS)
    large = np.random.default_rng(5).standard_normal((ROWS, ROWS), dtype=np.float32)
    x, rows = drawn(3), np.array([5, 7, 500])
    program = tw.jit(lambda x, rows: (x @ w.T + table) * tw.take(large, rows, axis=0)).lower(x, rows).compile()
    expected = (x.astype(np.float64) @ w.T + table) * large[rows]
    w[:], table[:], large[:] = 0, 0, 0
    np.testing.assert_allclose(program(x, rows), expected, rtol=1e-3, atol=1e-2)


def test_a_cache_without_room_keeps_the_program_whole(tmp_path: Path) -> None:
    with tw.options(cache_dir=tmp_path, cache_limit_bytes=SHARED_BYTES, threads=2):
        w = weights()
        for _ in range(2):
            check(product(w, 24), w, 24)


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with tw.options(cache_dir=tmp_path / "file" / "cache", threads=2):
        w = weights()
        program = product(w, 24)
        expected = w.copy()
        w[:] = 0
        check(program, expected, 24)
