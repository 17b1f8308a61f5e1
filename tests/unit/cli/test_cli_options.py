"""Every option of every command: it has an effect, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import CommandLine

from tilewright.options import specs

VALUES = {
    "debug": "1",
    "verify": "2",
    "target": "cpu:x86-64-v3",
    "cache": None,  # a switch
    "cache_dir": "cache",
    "cache_limit_bytes": "512MiB",
    "threads": "1",
    "memory_limit_bytes": "1GiB",
    "dump_dir": "dump",
    "events_file": "events.jsonl",
    "trace_file": "trace.json",
    "color": "always",
}
COMPILING = {"verify", "target", "cache", "cache_limit_bytes", "dump_dir"}
RUNNING = {"threads", "memory_limit_bytes", "trace_file"}
REFUSED = {
    "run a program": COMPILING,
    "run a script": set[str](),
    "show": {"threads", "memory_limit_bytes", "cache_limit_bytes"},
    "explain": RUNNING | {"cache_limit_bytes"},
    "check": {"verify", "cache", "cache_limit_bytes"},
    "bench": set[str](),
    "doctor": (COMPILING | RUNNING) - {"threads", "cache"},
    "cache ls": (COMPILING | RUNNING) - {"cache", "cache_limit_bytes"},
    "cache show": (COMPILING | RUNNING) - {"cache", "cache_limit_bytes"},
    "cache clear": (COMPILING | RUNNING) - {"cache", "cache_limit_bytes"},
    "cache prune": (COMPILING | RUNNING) - {"cache", "cache_limit_bytes"},
    "cache stats": (COMPILING | RUNNING) - {"cache", "cache_limit_bytes"},
}
PAIRS = [(command, spec.name) for command in REFUSED for spec in specs()]


def words(command: str, functions: Path, folder: Path) -> list[str]:
    """A command line that ends soon, mostly with an error that is not about its options."""
    verb = command.split()
    if command == "run a program":
        path = folder / "saved.twp"
        path.write_bytes(b"not a program")
        return ["run", str(path)]
    if command == "run a script":
        path = folder / "script.py"
        path.write_text("print(1)\n")
        return ["run", str(path)]
    if command == "bench":
        return ["bench", "no such suite"]
    arguments = {"show": [f"{functions}::no_such"], "explain": [f"{functions}::no_such"]}
    arguments |= {"check": [f"{functions}::no_such"], "cache show": ["abc"], "doctor": ["--no-measure"]}
    return [*verb, *arguments.get(command, [])]


def flag_of(option: str, folder: Path) -> list[str]:
    spec = next(spec for spec in specs() if spec.name == option)
    value = VALUES[option]
    if value is None:
        return [f"--no-{spec.flag.removeprefix('--')}"]
    return [spec.flag, str(folder / value) if option.endswith(("_dir", "_file")) else value]


@pytest.mark.parametrize(("command", "option"), PAIRS, ids=lambda value: str(value).replace(" ", "-"))
def test_options_are_refused_where_they_mean_nothing(
    tilewright: CommandLine, functions: Path, tmp_path: Path, command: str, option: str
) -> None:
    if option == "cache_dir":
        return  # `tilewright` gives it to every command
    run = tilewright(*words(command, functions, tmp_path), *flag_of(option, tmp_path))
    refused = "error[TW0701]" in run.stderr and "does not use" in run.stderr
    assert refused == (option in REFUSED[command]), run.stderr
    assert not refused or "leave out" in run.stderr


def test_all_options_have_a_value_here() -> None:
    assert set(VALUES) == {spec.name for spec in specs()}


# ---- effects --------------------------------------------------------------------------------------------------------


def test_check_runs_the_target(tilewright: CommandLine, functions: Path) -> None:
    for target in ("cpu:x86-64-v3", "cuda:sm_90a", "grid:wormhole"):
        run = tilewright("check", f"{functions}::count", "--target", target, "--json")
        assert run.exit_code == 0, run.stderr
        assert run.document["targets"] == ["interp", target]
        assert run.document["agrees"] is True
    for target, sentence in (
        ("interp", "not the interpreter with itself"),
        ("null", "runs nothing to compare"),
        ("abacus", "there is no target `abacus`"),
        ("cuda:sm_1", "sm_1"),
    ):
        run = tilewright("check", f"{functions}::count", "--target", target)
        assert run.exit_code == 1
        assert sentence in run.stderr


FAULTY = """
import tilewright as tw

EXAMPLE_ARGUMENTS = {name: (tw.ShapeDtype((6,), tw.f32), tw.ShapeDtype((6,), tw.f32)) for name in ("before", "meet")}


@tw.kernel
def before(x: tw.In["N"], y: tw.Out["N"]):
    for i in tw.grid(x, None):
        y[i] = x[i - 1]


@tw.kernel
def meet(x: tw.In["N"], y: tw.InOut["N"]):
    for i in tw.grid(x, None):
        if x[i] < 9:
            y[0] = x[i]
"""


def test_check_reports_bounds_and_races(tilewright: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "faulty.py"
    path.write_text(FAULTY)
    assert tilewright("check", f"{path}::before", "--json").document["agrees"] is True
    run = tilewright("check", f"{path}::before", "--bounds")
    assert run.exit_code == 1
    assert "error[TW0401]" in run.stderr
    assert "y[i] = x[i - 1]" in run.stderr
    run = tilewright("check", f"{path}::meet")
    assert run.exit_code == 1
    assert "error[TW0405]" in run.stderr
    assert "y[0] = x[i]" in run.stderr


def test_seeds_are_seen_in_the_document(tilewright: CommandLine, functions: Path) -> None:
    assert tilewright("check", f"{functions}::count", "--seed", "5", "--json").document["seed"] == 5


EFFECTS: dict[str, Callable[[Path], bool]] = {
    "dump_dir": lambda folder: any((folder / "dump").rglob("*")),
    "events_file": lambda folder: bool((folder / "events.jsonl").read_text()),
}


@pytest.mark.parametrize("verb", ["show", "check"])
@pytest.mark.parametrize("option", list(EFFECTS))
def test_files_are_written(tilewright: CommandLine, functions: Path, tmp_path: Path, verb: str, option: str) -> None:
    run = tilewright(verb, f"{functions}::scale", *flag_of(option, tmp_path))
    assert run.exit_code == 0, run.stderr
    assert EFFECTS[option](tmp_path)


def test_scripts_run_with_all_options(tilewright: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import dataclasses, json\nfrom tilewright.options import current\n"
        "print(json.dumps(dataclasses.asdict(current()), default=str))\n"
    )
    given = [word for option in VALUES if option != "cache_dir" for word in flag_of(option, tmp_path)]
    found = json.loads(tilewright("run", *given, path).stdout)
    for option, value in VALUES.items():
        if value is not None and option != "cache_dir":
            wanted = str(tmp_path / value) if option.endswith("_file") or option == "dump_dir" else value
            shown = {"512MiB": str(2**29), "1GiB": str(2**30)}.get(wanted, wanted)
            assert str(found[option]) == shown
    assert found["cache"] is False
