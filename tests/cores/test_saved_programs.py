"""Saved programs for grids of cores: results and cycles are those of before, and what is damaged is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tilewright as tw
from tests import host_programs
from tests.cores.compiling import MACHINES
from tests.numerics.test_phases import expected_of
from tests.programs import PROGRAMS
from tests.sampling import ALL, sampled
from tilewright.cli import main
from tilewright.driver.compile import compile_graph
from tilewright.errors import ArgumentError, DTypeError, ProgramFileError, ShapeError, UnsupportedOnTargetError
from tilewright.runtime import program as runtime_program
from tilewright.runtime.grid.program import GridFile
from tilewright.targets.base import Executable
from tilewright.targets.grid.program import SavedGridProgram
from tilewright.targets.grid.target import GridProgram

Tensor = np.ndarray[Any, Any]
# The simulator takes seconds for them.
LONG = ("softmax_long_rows", "matmul_epilogue", "attention", "causal_attention", "product_in_parts", "ordered_long")
REFUSED = ("random_numbers",)  # it computes with numbers of 64 bits
QUICK = [make for make in PROGRAMS if make.__name__ not in (REFUSED if ALL else (*LONG, *REFUSED))]


def reloaded(executable: Executable, folder: Path) -> SavedGridProgram:
    executable.save(str(folder / "program.twp"))
    loaded = tw.load(folder / "program.twp")
    assert isinstance(loaded, SavedGridProgram)
    return loaded


def runs_of(program: Any) -> list[tuple[str, float, Any]]:
    return [(name, run.cycles, run.configures) for name, run in program.runs]


def check_reloaded(executable: Executable, arrays: Sequence[Tensor], folder: Path) -> list[Tensor]:
    """The results of a program, which is the same after it is saved: to the bit and to the cycle, in two orders."""
    assert isinstance(executable, GridProgram)
    loaded = reloaded(executable, folder)
    results: list[Tensor] = []
    for seed in (3, 0):
        results = executable.simulate(*arrays, seed=seed)
        for found, expected in zip(loaded.simulate(*arrays, seed=seed), results, strict=True):
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype
        assert runs_of(loaded) == runs_of(executable)
    assert loaded.core.sources.keys() == {name for name in loaded.core.kernels if name in executable.source}
    return results


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("make", QUICK, ids=lambda make: make.__name__)
def test_programs_are_the_same_after_they_are_saved(make: Callable[..., Any], machine: str, tmp_path: Path) -> None:
    program, arrays, _ = expected_of(make)
    check_reloaded(compile_graph(program, f"grid:{machine}"), arrays, tmp_path)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", sampled(range(120), 12))
def test_loops_and_branches_are_the_same_after_they_are_saved(seed: int, machine: str, tmp_path: Path) -> None:
    case = host_programs.case(seed)
    compiled = tw.jit(case.function, donate=case.donated).lower(*case.arrays).compile(f"grid:{machine}")
    for found, expected in zip(check_reloaded(compiled.executable, case.arrays, tmp_path), case.expected, strict=True):
        np.testing.assert_array_equal(found, expected)


WEIGHTS = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)
X = np.random.default_rng(2).standard_normal((40, 64)).astype(np.float32)


def layer(x: Any, w: Any) -> Any:
    return tw.tanh(x @ w) + tw.sum(x, axis=1, keepdims=True), x @ WEIGHTS


STORED = [
    {"w": "bfp8"},
    {"x": "l1 height", "return[0]": "bf16 l1 block on 4x8"},
    {"x": "row-major", "return[1]": "bf16 row-major"},
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("storage", STORED, ids=str)
def test_storage_is_saved(storage: dict[str, str], machine: str, tmp_path: Path) -> None:
    lowered = tw.jit(layer).lower(X, WEIGHTS)
    stored = lowered.compile(f"grid:{machine}", storage=storage)
    results = check_reloaded(stored.executable, (X, WEIGHTS), tmp_path)
    plain = lowered.compile(f"grid:{machine}")(X, WEIGHTS)
    is_exact = all(np.array_equal(a, b) for a, b in zip(results, plain, strict=True))
    assert is_exact == ("w" not in storage and "return[0]" not in storage and "return[1]" not in storage)
    np.testing.assert_allclose(results[1], X @ WEIGHTS, atol=0.1)


def test_kernels_are_saved(tmp_path: Path) -> None:
    @tw.kernel
    def doubled(x: tw.In["M N"], y: tw.Out["M N"], *, size: int = 32):  # noqa: F722
        for i, j in tw.grid(y, (size, size)):
            y[i, j] = x[i, j] * 2

    compiled = doubled.lower(X, X).compile("grid")
    (found,) = check_reloaded(compiled.executable, (X,), tmp_path)
    np.testing.assert_array_equal(found, X * 2)


def test_arrays_without_elements(tmp_path: Path) -> None:
    compiled = tw.jit(lambda x, y: (x + 1, y[:0])).lower(X, X).compile("grid")
    found = check_reloaded(compiled.executable, (X, X), tmp_path)
    assert [each.shape for each in found] == [(40, 64), (0, 64)]


def test_a_call_checks_its_arguments(tmp_path: Path) -> None:
    loaded = reloaded(tw.jit(lambda x: x * 2).lower(X).compile("grid").executable, tmp_path)
    out = np.empty_like(X)
    assert loaded(X, out=out) is out
    np.testing.assert_array_equal(out, X * 2)
    np.testing.assert_array_equal(loaded(X), X * 2)
    with pytest.raises(ShapeError) as caught:
        loaded(X[1:])
    assert caught.value.location is not None


def test_a_simulation_checks_its_arguments(tmp_path: Path) -> None:
    """Larger arrays, too, of which a kernel would read a part."""
    compiled = tw.jit(lambda x: x * 2).lower(X).compile("grid").executable
    assert isinstance(compiled, GridProgram)
    for run in (compiled, compiled.simulate, reloaded(compiled, tmp_path).simulate):
        for error, arrays in [
            (ArgumentError, ()),
            (ArgumentError, (X, X)),
            (ShapeError, (X[:3],)),
            (ShapeError, (np.concatenate([X, X]),)),
            (DTypeError, (X.astype(np.int32),)),
        ]:
            with pytest.raises(error) as caught:
                run(*arrays)
            assert caught.value.location is not None


def test_a_loaded_program_can_be_saved_again(tmp_path: Path) -> None:
    loaded = reloaded(tw.jit(layer).lower(X, WEIGHTS).compile("grid").executable, tmp_path)
    loaded.save(tmp_path / "again.twp")
    assert (tmp_path / "again.twp").read_bytes() == (tmp_path / "program.twp").read_bytes()
    assert "CBDescriptor" in loaded.source


def test_programs_without_device_source_are_saved(tmp_path: Path) -> None:
    """ttnn has no arrays of f16; the simulator has."""
    half = X.astype(np.float16)
    loaded = reloaded(tw.jit(lambda x: x * 2).lower(half).compile("grid").executable, tmp_path)
    assert not loaded.source
    np.testing.assert_array_equal(loaded(half), half * 2)


def test_the_command_line_runs_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tw.jit(lambda x: x * 2).lower(X).compile("grid:blackhole").save(str(tmp_path / "p.twp"))
    np.save(tmp_path / "x.npy", X)
    assert main(["run", str(tmp_path / "p.twp"), "--input", str(tmp_path / "x.npy"), "--repeat", "1", "--json"]) == 0
    shown = msgspec.json.decode(capsys.readouterr().out)
    assert shown["triple"] == "grid:blackhole"
    assert shown["outputs"][0]["maximum"] == pytest.approx(float((X * 2).max()))


# ---- without the compiler, and damaged ------------------------------------------------------------------------------

RUNTIME_ALONE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("xdsl", "llvmlite"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from tilewright.errors import UnsupportedOnTargetError
from tilewright.runtime.program import load
program = load(sys.argv[1])
print(program.manifest.triple, len(program.manifest.grid.host.steps))
try:
    program()
except UnsupportedOnTargetError as error:
    print(error.help)
"""


def test_the_runtime_alone_reads_but_does_not_run_them(tmp_path: Path) -> None:
    path = tmp_path / "program.twp"
    tw.jit(lambda x: x * 2).lower(X).compile("grid").save(str(path))
    command = [sys.executable, "-c", RUNTIME_ALONE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "grid:wormhole 1",
        "load it with `tw.load`, where the compiler is installed",
    ]


def test_a_change_of_any_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "program.twp"
    tw.jit(layer).lower(X, WEIGHTS).compile("grid").save(str(path))
    content, random = path.read_bytes(), np.random.default_rng(0)
    for position in [*range(0, 320, 8), *random.integers(0, len(content), 60).tolist()]:
        damaged = bytearray(content)
        damaged[position] ^= int(random.integers(1, 256))
        path.write_bytes(bytes(damaged))
        with pytest.raises(ProgramFileError):
            tw.load(path).verify()
    for length in (0, 100, 400, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ProgramFileError):
            tw.load(path)


def forged(folder: Path, change: Callable[[Any, str, bytes], tuple[Any, str, bytes]]) -> Path:
    """A file with intact checksums whose contents were changed: manifest, kernels and sources."""
    saved = tw.jit(lambda x: (x @ WEIGHTS, x * 2)).lower(X).compile("grid").executable.program
    manifest, text, support, *rest = saved.parts
    manifest, changed, support = change(manifest, text.decode(), support)
    GridFile(manifest, changed.encode(), support, *rest).save(folder / "forged.twp")
    return folder / "forged.twp"


def grid_with(**fields: Any) -> Callable[[Any, str, bytes], tuple[Any, str, bytes]]:
    def change(manifest: Any, text: str, support: bytes) -> tuple[Any, str, bytes]:
        grid = msgspec.structs.replace(manifest.grid, **fields)
        return msgspec.structs.replace(manifest, grid=grid), text, support

    return change


def host_with(edit: Callable[[Any], Any]) -> Callable[[Any, str, bytes], tuple[Any, str, bytes]]:
    return lambda manifest, text, support: grid_with(host=edit(manifest.grid.host))(manifest, text, support)


def replaced(**fields: Any) -> Callable[[Any], Any]:
    return lambda host: msgspec.structs.replace(host, **fields)


FORGED = {
    "an unknown machine": (grid_with(machine="grayhole"), "machine `grayhole`"),
    "other numbers": (grid_with(machine_digest="0"), "other numbers"),
    "no such storage": (grid_with(storage={0: "l9"}), "l9"),
    "another target": (lambda m, t, s: (msgspec.structs.replace(m, triple="tpu:v4"), t, s), "another target"),
    "no text": (lambda m, t, s: (m, "", s), "does not hold a program"),
    "no kernels": (lambda m, t, s: (m, "builtin.module {}", s), "kernels are not those"),
    "a string without an end": (lambda m, t, s: (m, t.replace('"in"', '"in', 1), s), "a string has no end"),
    "half of the text": (lambda m, t, s: (m, t[: len(t) // 2], s), "does not hold a program"),
    "an operation that is none": (lambda m, t, s: (m, t.replace("cores.pack", "cores.bag", 1), s), "not registered"),
    "a type that is none": (lambda m, t, s: (m, t.replace("xf32>", "xf33>", 1), s), "does not hold a program"),
    "an array in a space": (lambda m, t, s: (m, t.replace("xf32>>", 'xf32>, "block">', 1), s), "not stored in pages"),
    "a placement of another version": (
        lambda m, t, s: (m, t.replace("xf32>>", 'xf32>, "l1 1x1 on 8x8", "bfp8">', 1), s),
        "not stored in pages",
    ),
    "a format that is none": (
        lambda m, t, s: (m, t.replace("xf32>>", 'xf32>, #tile.pages<"bfp3">>', 1), s),
        "no format of pages",
    ),
    "a placement that is none": (
        lambda m, t, s: (m, t.replace("xf32>>", 'xf32>, #tile.pages<"", "l1 0x1 on 8x8">>', 1), s),
        "no placement",
    ),
    "an operation of another phase": (lambda m, t, s: (m, t.replace("cores.program", "tile.for", 1), s), "not hold"),
    "a kernel of smaller arrays": (
        lambda m, t, s: (m, t.replace("ref<tensor<40x64", "ref<tensor<8x64", 1), s),
        "2048 ",
    ),
    "another kernel": (lambda m, t, s: (m, t.replace('sym_name = "', 'sym_name = "other_', 1), s), "kernels are not"),
    "sources of another form": (lambda m, t, s: (m, t, b"\xc1"), "does not hold a program"),
    "sources nested deeply": (
        lambda m, t, s: (m, t, b"\x81\xa1x\x81\xa1x" + b"\x91" * 100_000),
        "does not hold a program",
    ),
    "no such buffer": (
        host_with(lambda h: msgspec.structs.replace(h, steps=(*h.steps, h.steps[0].__class__(0, (99, 0, 1))))),
        "does not",
    ),
    "no such kernel": (
        host_with(lambda h: msgspec.structs.replace(h, steps=(h.steps[0].__class__(9, ()),))),
        "kernel 9",
    ),
    "other arrays": (host_with(replaced(inputs=2)), "other arrays"),
    "other constants": (host_with(replaced(constants=())), "other constants"),
    "a constant of another type": (grid_with(constants=()), "does not hold a program"),
}


@pytest.mark.parametrize("case", FORGED)
def test_contents_that_contradict_each_other_are_refused(case: str, tmp_path: Path) -> None:
    change, message = FORGED[case]
    path = forged(tmp_path, change)
    with pytest.raises(ProgramFileError, match=message):
        tw.load(path)


def test_what_is_forged_is_intact_without_a_change(tmp_path: Path) -> None:
    loaded = tw.load(forged(tmp_path, lambda *parts: parts))
    product, twice = loaded(X)
    np.testing.assert_allclose(product, X @ WEIGHTS, atol=0.1)
    np.testing.assert_array_equal(twice, X * 2)


def test_files_of_cpus_are_opened_as_before(tmp_path: Path) -> None:
    tw.jit(lambda x: x * 2).lower(X).compile("cpu").save(str(tmp_path / "p.twp"))
    assert isinstance(tw.load(tmp_path / "p.twp"), runtime_program.Program)
    with pytest.raises(UnsupportedOnTargetError):
        tw.load(tmp_path / "p.twp").explain()
