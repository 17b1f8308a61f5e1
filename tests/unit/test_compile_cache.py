"""The compile cache seen from `tw.jit`: hits, damage, and processes that load without the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def program() -> Any:
    weights = np.arange(20, dtype=np.float32).reshape(4, 5)
    return tw.jit(lambda x: tw.nn.softmax(x @ weights))


def compiled() -> Any:
    return program().lower(X).compile()


def test_a_second_compile_is_a_hit_with_the_same_result(tmp_path: Path) -> None:
    with tw.options(cache_dir=tmp_path):
        first, second = compiled(), compiled()
    assert (first.executable.cache_state, second.executable.cache_state) == ("miss", "hit")
    np.testing.assert_array_equal(first(X), second(X))
    assert second.explain() == first.explain()


def test_a_schedule_is_part_of_the_key(tmp_path: Path) -> None:
    with tw.options(cache_dir=tmp_path):
        chosen = compiled().schedules
        edited = {name: each for name, each in chosen.items() if isinstance(each, tw.schedules.Loop)}
        edited = {name: tw.schedules.Loop(tile=(1, each.tile[1])) for name, each in edited.items()}
        assert edited.keys() < chosen.keys()
        states, results = [], []
        for schedule in (None, edited, edited, chosen):
            again = program().lower(X).compile(schedule=schedule)
            states.append(again.executable.cache_state)
            results.append(again(X))
            assert again.schedules == {**chosen, **(schedule or {})}
            assert tw.schedules.code_of(again.schedules) in again.explain()
    assert states == ["hit", "miss", "hit", "miss"]
    for result in results:
        np.testing.assert_allclose(result, results[0], rtol=1e-6)


@pytest.mark.parametrize("place", [0.02, 0.3, 0.5, 0.98])
def test_a_damaged_entry_is_compiled_again(tmp_path: Path, place: float) -> None:
    with tw.options(cache_dir=tmp_path):
        expected = compiled()(X)
        (file,) = (tmp_path / "files").glob("*.twp")
        content = bytearray(file.read_bytes())
        content[int(len(content) * place)] ^= 0xFF
        file.write_bytes(content)
        again = compiled()
        np.testing.assert_array_equal(again(X), expected)
    assert again.executable.cache_state == "miss"


def test_a_different_captured_array_is_another_program(tmp_path: Path) -> None:
    with tw.options(cache_dir=tmp_path):
        for scale in (1.0, 2.0):
            constant = np.full((3, 4), scale, np.float32)
            constant[0, 0] = 5
            np.testing.assert_array_equal(tw.jit(lambda x, c=constant: x * c)(X), X * constant)


WARM = """
import sys, numpy as np, tilewright as tw
x = np.arange(12, dtype=np.float32).reshape(3, 4)
f = tw.jit(lambda x: x * 2 + 1)
print(f.lower(x).compile().executable.cache_state, [m for m in ("xdsl", "llvmlite") if m in sys.modules])
np.testing.assert_array_equal(f(x), x * 2 + 1)
"""


BITS = {
    np.float16: [0x7E00, 0xFE00, 0x7E45, 0x7C01],
    np.float32: [0x7FC00000, 0xFFC00000, 0x7FC12345, 0x7F800001],
    np.float64: [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 1, (0x7FF0 << 48) + 1],
}


@pytest.mark.parametrize("target", ["cpu", "interp"])
@pytest.mark.parametrize("kind", BITS)
def test_captured_nan_of_other_bits_are_other_programs(tmp_path: Path, kind: type, target: str) -> None:
    """Arrays of one repeated NaN, signalling ones among them, keep their bits, whichever of them is compiled first."""
    bits = np.dtype(f"u{np.dtype(kind).itemsize}")
    with tw.options(cache_dir=tmp_path):
        for number in BITS[kind]:
            captured = np.full(3, number, bits).view(kind)
            program = tw.jit(lambda x, c=captured: tw.bitcast(c, bits) + x, target=target)
            np.testing.assert_array_equal(program(np.zeros(3, bits)), np.full(3, number, bits))


@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_numbers_that_are_nan_of_other_signs_are_other_programs(tmp_path: Path, target: str) -> None:
    with tw.options(cache_dir=tmp_path):
        for number in (np.nan, -np.nan):
            found = tw.jit(lambda x, n=number: tw.copysign(x, n), target=target)(np.ones(3, np.float32))
            np.testing.assert_array_equal(found, np.copysign(np.ones(3), number))


def test_a_warm_process_does_not_import_the_compiler(tmp_path: Path) -> None:
    script = tmp_path / "warm.py"
    script.write_text(WARM)
    environment = {"TW_CACHE_DIR": str(tmp_path / "cache"), "PATH": ""}
    runs = [
        subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert runs[0].stdout.split() == ["miss", "['xdsl',", "'llvmlite']"]
    assert runs[1].stdout.split() == ["hit", "[]"]


def test_a_saved_program_runs_where_there_is_no_compiler(tmp_path: Path) -> None:
    path = tmp_path / "softmax.twp"
    compiled().save(str(path))
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, numpy as np; from tilewright.runtime.program import load\n"
        f"y = load({str(path)!r})(np.load({str(tmp_path / 'x.npy')!r}))\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, y)\n"
        "print([m for m in ('xdsl', 'llvmlite') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), compiled()(X))


_IN_REMOVED_DIRECTORY = """
import os
import sys
import numpy as np
import tilewright as tw

os.rmdir(os.getcwd())
print(float(tw.jit(lambda x: tw.sum(x * 2))(np.ones(8, np.float32))))
try:
    import nothing_of_this_name
except ModuleNotFoundError:
    print("as Python says it")
"""


@pytest.mark.parametrize("directory", ["", "relative"])
def test_a_program_compiles_where_the_working_directory_was_removed(tmp_path: Path, directory: str) -> None:
    removed = tmp_path / "removed"
    removed.mkdir()
    found = subprocess.run(
        [sys.executable, "-c", _IN_REMOVED_DIRECTORY],
        cwd=removed,
        env={**os.environ, "TW_CACHE_DIR": directory or str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert found.stdout.split("\n") == ["16.0", "as Python says it", ""], found.stderr
