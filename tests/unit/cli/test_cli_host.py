"""`tilewright doctor` and `cache`, the application itself, and the installed command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_support import CommandLine

import tilewright as tw
from tilewright.cli import main, measure
from tilewright.options import specs

VERBS = (
    "run",
    "show",
    "check",
    "bench",
    "doctor",
    "cache ls",
    "cache show",
    "cache clear",
    "cache prune",
    "cache stats",
)


def test_doctor_describes_and_measures(tilewright: CommandLine):
    run = tilewright("doctor", "--threads", "1", "--json")
    assert run.exit_code == 0, run.stderr
    found = run.document
    assert found.keys() == {"versions", "host", "cuda", "grid", "cache", "measured", "problems"}
    assert found["versions"]["numpy"] == np.__version__
    assert found["host"]["threads"] == 1
    assert found["host"]["machine"]["name"].startswith(("x86-64", "aarch64"))
    assert found["cuda"].keys() == {"driver", "devices", "absent"}
    assert found["cache"]["directory"] == str(tilewright.cache)
    assert 1e9 < found["measured"]["fma_flops_one_core"] < 1e13
    assert 1e8 < found["measured"]["copy_bytes_per_second"] < 1e13
    assert found["measured"]["call_s"].keys() == {"jit", "program", "numpy"}


def test_doctor_names_problems(tilewright: CommandLine, monkeypatch: pytest.MonkeyPatch):
    from tilewright.runtime.cpu import features as cpu_features

    monkeypatch.setattr(cpu_features, "default_threads", lambda: 1)
    run = tilewright("doctor", "--no-measure", "--no-cache", "--threads", "64")
    assert run.exit_code == 0
    assert "problem: 64 threads are asked for, but 1 physical cores are usable" in run.stdout
    assert "problem: the compile cache is switched off" in run.stdout
    assert run.stdout.count("= help:") == run.stdout.count("problem:")


def test_doctor_fails_without_a_machine(tilewright: CommandLine, monkeypatch: pytest.MonkeyPatch):
    from tilewright.errors import TargetError
    from tilewright.targets.cpu import host

    def no_machine() -> None:
        raise TargetError("no machine file fits this processor", help="use another")

    monkeypatch.setattr(host, "host_machine", no_machine)
    run = tilewright("doctor", "--json")
    assert run.exit_code == 1
    assert run.document["problems"][0]["blocks"] is True


def test_measured_peaks_are_possible():
    # No core does more than two vectors of 16 f32 a cycle at 6 GHz; a program that skips its work would.
    most = 2 * 2 * 16 * 6e9
    assert 1e9 < measure.fma_peak("f32", 1) < most
    assert 5e8 < measure.fma_peak("f64", 1) < most / 2
    assert 0 <= measure.fork_join_s(1) < 1e-4


def test_copy_copies():
    # 16 times the bytes take about 16 times the time, within limits that hold across caches. A neighbour may take the
    # memory for as long as one measurement: the best of three in turn.
    sizes = (1 << 22, 1 << 26)
    seconds = [[nbytes / measure.copy_bandwidth(nbytes, 1) for nbytes in sizes] for _ in range(3)]
    small, large = (min(each) for each in zip(*seconds, strict=True))
    assert 4 < large / small < 256


def fill(cache: Path, count: int) -> None:
    with tw.options(cache_dir=cache):
        for n in range(1, count + 1):
            tw.jit(lambda x, n=n: x * float(n)).lower(tw.ShapeDtype((n,), tw.f32)).compile("cpu")


def test_cache_lists_shows_and_forgets(tilewright: CommandLine):
    fill(tilewright.cache, 3)
    entries = tilewright("cache", "ls", "--json").document["entries"]
    assert len(entries) == 3
    assert entries[0]["record"] == {"name": "lambda", "target": "cpu"}
    shown = tilewright("cache", "show", entries[0]["key"][:10], "--json").document
    assert shown["key"] == entries[0]["key"]
    assert shown["outputs"] == ["out0: f32[3]"]
    stats = tilewright("cache", "stats", "--json").document
    assert (stats["entries"], stats["bytes"]) == (3, sum(entry["nbytes"] for entry in entries))
    pruned = tilewright("cache", "prune", str(stats["bytes"] - 1), "--json").document
    assert (pruned["removed"], pruned["entries"]) == (1, 2)
    assert "removed 2, kept 0" in tilewright("cache", "clear").stdout
    assert tilewright("cache", "ls", "--json").document == {"entries": []}


def test_cache_refuses(tilewright: CommandLine):
    fill(tilewright.cache, 2)
    assert "has no entry 'zz'" in tilewright("cache", "show", "zz").stderr
    assert "2 entries begin with ''" in tilewright("cache", "show", "").stderr
    assert "error[TW0701]" in tilewright("cache", "prune", "much").stderr


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_and_every_option(verb: str, capsys: pytest.CaptureFixture[str]):
    assert main([*verb.split(), "--help"]) == 0
    printed = capsys.readouterr().out
    assert "For example:" in printed
    assert f"tilewright {verb.split()[0]}" in printed
    for flag in ("--json", *(spec.flag for spec in specs())):
        assert flag in printed


def test_unknown_verb_and_flag(tilewright: CommandLine):
    run = tilewright("shwo")
    assert run.exit_code == 1
    assert 'Did you mean "show"?' in run.stderr
    refused = tilewright("doctor", "--colour", "--json")
    assert refused.document["error"]["code"] == "usage"


def test_bad_option_names_its_flag(tilewright: CommandLine):
    run = tilewright("doctor", "--debug", "9", "--json")
    assert run.exit_code == 1
    assert run.document["error"]["code"] == "TW0701"
    assert "`--debug` is '9'" in run.stderr


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    line = [sys.executable, "-m", "tilewright", *arguments]
    return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=60)


def test_command_starts_without_the_compiler():
    code = (
        "import sys, tilewright.cli; sys.exit(bool({'numpy', 'xdsl', 'llvmlite', 'rich.table'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    assert command("--version").stdout == f"{tw.__version__}\n"


def test_command_reports_a_bad_variable():
    result = command("cache", "stats", TW_DEBUG="loud")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "error[TW0701]: `TW_DEBUG`" in result.stderr
    assert "Traceback" not in result.stderr


def test_command_shows_a_function(functions: Path, tmp_path: Path):
    result = command("show", f"{functions}::scale", "--stage", "array", TW_CACHE_DIR=str(tmp_path / "cache"))
    assert result.returncode == 0, result.stderr
    assert "array.reduce" in result.stdout
    assert "\x1b[" not in result.stdout


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--stage", "asm")])
def test_a_full_disk_under_stdout_is_one_line(functions: Path, tmp_path: Path, arguments: tuple[str, ...]):
    line = [sys.executable, "-m", "tilewright.cli", "show", f"{functions}::scale", *arguments]
    for unbuffered in ("", "1"):
        environment = os.environ | {"TW_CACHE_DIR": str(tmp_path / "cache"), "PYTHONUNBUFFERED": unbuffered}
        with open("/dev/full", "w") as full:
            result = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
        assert result.returncode == 1
        assert result.stderr.splitlines() == ["error: [Errno 28] No space left on device"]
