"""`tilewright show` and `check`, and what both read: FILE::NAME and arguments."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from cli_support import CommandLine

import tilewright as tw
from tilewright.cli.check import compare, relative_difference
from tilewright.cli.loading import parse_arguments
from tilewright.errors import ArgumentError

MARKS = {"array": "array.reduce", "tile": "tile.kernel", "scheduled": "scheduled.", "llvm": "define ", "asm": ".text"}


@pytest.mark.parametrize("stage", MARKS)
def test_show_prints_each_stage(tilewright: CommandLine, functions: Path, stage: str):
    run = tilewright("show", f"{functions}::scale", "--stage", stage, "--json")
    assert run.exit_code == 0, run.stderr
    found = run.document
    assert {name: found[name] for name in ("file", "name", "target", "stage")} == {
        "file": str(functions),
        "name": "scale",
        "target": "cpu",
        "stage": stage,
    }
    assert MARKS[stage] in found["text"]


def test_show_prints_plain_text_to_a_pipe(tilewright: CommandLine, functions: Path):
    plain = tilewright("show", f"{functions}::scale", "--stage", "array")
    assert (
        plain.stdout
        == tilewright("show", f"{functions}::scale", "--stage", "array", "--json").document["text"].rstrip() + "\n"
    )
    assert "\x1b[" in tilewright("show", f"{functions}::scale", "--stage", "array", "--color", "always").stdout


def test_show_obeys_target(tilewright: CommandLine, functions: Path):
    run = tilewright("show", f"{functions}::scale", "--target", "cpu:aarch64-neon", "--stage", "llvm", "--json")
    assert run.document["target"] == "cpu:aarch64-neon"
    assert "aarch64" in run.document["text"]
    refused = tilewright("show", f"{functions}::scale", "--target", "interp", "--stage", "asm")
    assert "error[TW0502]" in refused.stderr
    elsewhere = tilewright("show", f"{functions}::scale", "--stage", "ptx")
    assert "ask for array, tile, scheduled, llvm, or for machine code as `asm`" in elsewhere.stderr


def test_show_takes_arguments_of_any_structure(tilewright: CommandLine, functions: Path):
    arguments = '{"w": (4, 3):f32}, [(3, 5):f32, 2.0]'
    run = tilewright("show", f"{functions}::nested", "--args", arguments, "--stage", "array")
    assert "tensor<4x5xf32>" in run.stdout


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("scael", None, "did you mean `scale`?"),
        ("plain", None, "decorate it with `@tw.jit`"),
        ("nested", None, "has no example arguments"),
        ("broken", "(4, 3):f32", "error[TW0201]"),
        ("scale", "", "`scale(x)` does not take the arguments"),
        ("scale", "(4, 3):f32, (4, 3):f32, (4, 3):f32", "too many positional arguments"),
        ("scale", "(4, 3):f32, fcator=3", "unexpected keyword argument 'fcator'"),
        ("scale", "(4, 3):f33", "there is no element type `f33`"),
        ("scale", "(4, 3):f32, f(x)", "`f(x)` in the arguments"),
        ("scale", "(4, 3:f32", "cannot be read"),
        ("scale", "(4,):f32) + (2", "cannot be read"),
    ],
)
def test_show_refuses(tilewright: CommandLine, functions: Path, name: str, arguments: str | None, expected: str):
    given = () if arguments is None else ("--args", arguments)
    run = tilewright("show", f"{functions}::{name}", *given)
    assert run.exit_code == 1
    assert expected in run.stderr
    assert "Traceback" not in run.stderr


def test_error_of_a_function_has_the_users_caret(tilewright: CommandLine, functions: Path):
    run = tilewright("check", f"{functions}::broken", "--args", "(4, 3):f32")
    assert "return x + tw.zeros((5,))" in run.stderr
    assert "^^^^^^^^" in run.stderr


@pytest.mark.parametrize("text", ["functions.py", "::scale", "functions.py::"])
def test_name_has_a_form(tilewright: CommandLine, text: str):
    assert "names no function" in tilewright("show", text).stderr


def test_file_that_fails_on_import(tilewright: CommandLine, tmp_path: Path):
    path = tmp_path / "fails.py"
    path.write_text("import not_a_module_at_all\n")
    run = tilewright("show", f"{path}::f")
    assert "fails with ModuleNotFoundError" in run.stderr
    path.with_suffix(".txt").write_text("")
    assert "is not a Python file" in tilewright("show", f"{path.with_suffix('.txt')}::f").stderr


def test_arguments_are_read():
    positional, named = parse_arguments('(128, 64):f32, ():i64, [(3,) : bf16, -2], {"k": (2):bool}, causal=True, n=3')
    assert positional == (
        tw.ShapeDtype((128, 64), tw.f32),
        tw.ShapeDtype((), tw.i64),
        [tw.ShapeDtype((3,), tw.bf16), -2],
        {"k": tw.ShapeDtype((2,), tw.bool)},
    )
    assert named == {"causal": True, "n": 3}
    assert parse_arguments("") == ((), {})


def test_arguments_are_not_executed():
    with pytest.raises(ArgumentError):
        parse_arguments("__import__('os').getcwd()")


@pytest.mark.parametrize(
    "text",
    [
        '**{"a": 1}',
        "{[]: 1}",
        "_array(1)",
        '_array(x, "f32")',
        "-" * 4000 + "1",
        "\udcff",
        "1" * 5000,
        '{(1, []): "a"}',
    ],
    ids=lambda text: text.encode(errors="replace").decode()[:12],
)
def test_arguments_of_another_form_are_refused(text: str):
    with pytest.raises(ArgumentError) as caught:
        parse_arguments(text)
    assert "the arguments" in caught.value.message
    assert "write it like" in (caught.value.help or "")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("", "missing a required argument: 'x'"),
        ("(6, 4):f32, (6, 4):f32", "too many positional arguments"),
        ("(6, 4):f32, x=1", "multiple values for argument 'x'"),
        ("(6, 4):f32, y=1", "unexpected keyword argument 'y'"),
    ],
)
def test_arguments_that_the_function_does_not_take(
    tilewright: CommandLine, functions: Path, arguments: str, reason: str
):
    for verb in ("show", "explain", "check"):
        run = tilewright(verb, f"{functions}::scale", "--args", arguments)
        assert run.exit_code == 1
        assert "`scale(x)` does not take the arguments" in run.stderr
        assert reason in run.stderr


def test_what_is_there_and_no_file_is_not_suggested(tilewright: CommandLine, tmp_path: Path):
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    run = tilewright("show", f"{tmp_path / 'loop.py'}::f")
    assert "is a symbolic link that leads to no file" in run.stderr
    assert "did you mean" not in run.stderr
    os.mkfifo(tmp_path / "pipe.py")
    assert "is a pipe or a device" in tilewright("run", tmp_path / "pipe.py").stderr


def test_check_agrees(tilewright: CommandLine, functions: Path):
    run = tilewright("check", f"{functions}::count", "--json")
    assert run.exit_code == 0, run.stderr
    assert run.document["agrees"] is True
    assert [(r["type"], r["tolerance"], r["difference"]) for r in run.document["results"]] == [
        ("i64[4]", 0.0, 0.0),
        ("i32[6, 4]", 0.0, 0.0),
    ]
    assert "yes" in tilewright("check", f"{functions}::scale").stdout


KERNEL = """
import tilewright as tw

EXAMPLE_ARGUMENTS = {
    "scaled": (tw.ShapeDtype((40,), tw.f32), tw.ShapeDtype((40,), tw.f32)),
}


@tw.kernel
def scaled(x: tw.In["N"], y: tw.Out["N"], *, factor: float = 2.0, block: int = 16):
    for i in tw.grid(x, (block,)):
        y[i] = x[i] * factor
"""


def test_kernels_are_shown_and_checked(tilewright: CommandLine, tmp_path: Path):
    path = tmp_path / "kernels.py"
    path.write_text(KERNEL)
    assert "tile.kernel" in tilewright("show", f"{path}::scaled").stdout
    given = ("--args", "(40,):f32, (40,):f32, factor=3.0, block=8")
    assert "grid = array<i64: 5>" in tilewright("show", f"{path}::scaled", *given).stdout
    run = tilewright("check", f"{path}::scaled", *given, "--json")
    assert run.exit_code == 0, run.stderr
    assert [r["type"] for r in run.document["results"]] == ["f32[40]", "f32[40]"]


def test_check_reports_a_difference(tilewright: CommandLine, functions: Path, monkeypatch: pytest.MonkeyPatch):
    from tilewright.driver.compile import CompiledGraph

    run_right = CompiledGraph.__call__
    monkeypatch.setattr(CompiledGraph, "__call__", lambda self, *x: [r + r.dtype.type(1) for r in run_right(self, *x)])
    run = tilewright("check", f"{functions}::count", "--json")
    assert run.exit_code == 1
    assert [r["agrees"] for r in run.document["results"]] == [False, False]
    assert "NO" in tilewright("check", f"{functions}::scale").stdout


def test_relative_difference():
    reference = np.array([1.0, -4.0, np.inf, np.nan])
    assert relative_difference(reference.copy(), reference) == 0.0
    assert relative_difference(np.array([1.0, -4.5, np.inf, np.nan]), reference) == pytest.approx(0.125)
    assert relative_difference(np.array([1.0, -4.0, 7.0, np.nan]), reference) == np.inf
    assert relative_difference(np.array([1.0, np.nan, np.inf, np.nan]), reference) == np.inf
    assert relative_difference(reference[:3], reference) == np.inf
    assert relative_difference(np.zeros(2), np.zeros(2)) == 0.0


def test_tolerances_follow_the_type():
    one = np.ones(3, np.float32)
    assert compare(0, one * np.float32(1 + 5e-5), one).agrees
    assert not compare(0, one * np.float32(1 + 5e-4), one).agrees
    assert not compare(0, np.array([2**40 + 1]), np.array([2**40])).agrees


@pytest.mark.parametrize("arguments", ["(40,):f32, (40,):f32, (40,):f32", "(40,):f32, (41,):f32", "(4, 4):f32"])
def test_arguments_that_do_not_fit_point_at_no_line(tilewright: CommandLine, tmp_path: Path, arguments: str):
    path = tmp_path / "kernels.py"
    path.write_text(KERNEL)
    run = tilewright("show", f"{path}::scaled", "--args", arguments)
    assert run.exit_code == 1
    assert "error[TW02" in run.stderr
    assert "-->" not in run.stderr


def test_a_directory_is_no_file(tilewright: CommandLine, tmp_path: Path):
    for run in (tilewright("show", f"{tmp_path}::x"), tilewright("run", tmp_path)):
        assert run.exit_code == 1
        assert f"'{tmp_path}' is a directory" in run.stderr
        assert "did you mean" not in run.stderr
