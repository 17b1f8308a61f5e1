"""The search: slow programs are made small, put into groups, and kept; processes that die are started again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli.bench_worker import Request
from tilewright.cli.hunt import command
from tilewright.cli.hunt.causes import Slow, by_cause, slow_of
from tilewright.cli.hunt.corpus import keep, prepare, programs
from tilewright.cli.hunt.measurer import Measurer
from tilewright.cli.hunt.program import Input, Program, Record, Step
from tilewright.cli.hunt.shrink import shrunk
from tilewright.cli.hunt.worker import is_ill_conditioned
from tilewright.errors import ArgumentError

REQUEST = Request(suite="hunt", case=None, peers=("numpy",), threads=1, repeat=1, block_s=0.001, gap_s=0.0, quick=True)
LONG = Program(
    (Input((64, 32)), Input((64, 32)), Input((32,))),
    (
        Step("exp", (0,)),
        Step("add", (3, 1)),
        Step("sort", (4,), {"axis": 1}),
        Step("multiply", (5, 2)),
        Step("sum", (6,), {"axes": [0], "keep": 0}),
    ),
)


def test_what_is_left_is_what_is_slow() -> None:
    def measured(program: Program) -> float:
        return 0.5 if any(step.op == "sort" for step in program.steps) else 1.5

    small, ratio = shrunk(LONG, 0.5, measured)
    assert ratio == 0.5
    assert small == Program((Input((64, 32)),), (Step("sort", (0,), {"axis": 1}),))


def test_what_two_operators_are_slow_together_stays_together() -> None:
    def measured(program: Program) -> float:
        ops = [step.op for step in program.steps]
        return 0.6 if "add" in ops and "sort" in ops else 1.2

    small, _ = shrunk(LONG, 0.6, measured)
    assert [step.op for step in small.steps] == ["add", "sort"]
    assert len(small.inputs) == 2


def test_programs_that_do_not_run_are_no_smaller_ones() -> None:
    assert shrunk(LONG, 0.5, lambda program: None) == (LONG, 0.5)


def test_groups_are_by_kernel_bound_and_operators() -> None:
    program = Program((Input((64, 32)),), (Step("sort", (0,), {"axis": 1}),))

    def slow(ratio: float, **others: Any) -> Slow:
        record = {
            "ratio": ratio,
            "ours_s": 1e-3,
            "best_peer": "torch",
            "peak_fraction": 0.1,
            "kernels": {"sort_0": 0.9},
        }
        return slow_of(program, record | others)

    found = [slow(0.8), slow(0.5), slow(0.7, ours_s=1e-6), slow(0.9, peak_fraction=0.6, kernels={"loop_3": 1.0})]
    groups = by_cause(found)
    assert list(groups) == ["sort, compute: sort", "sort, call: sort", "loop, memory: sort"]
    assert [each.ratio for each in groups["sort, compute: sort"]] == [0.5, 0.8]


def test_the_corpus_is_read_as_it_is_kept(tmp_path: Path) -> None:
    found = slow_of(LONG, {"ratio": 0.5, "ours_s": 1.0, "best_peer": "jax", "peak_fraction": 1.0, "kernels": {}})
    assert keep(tmp_path, found) == keep(tmp_path, found)
    ((file, program),) = programs(tmp_path)
    assert file.name.startswith("exp-add-sort-multiply-sum-")
    assert program == LONG
    with pytest.raises(ArgumentError, match="there is no corpus"):
        list(programs(tmp_path / "none"))


def test_a_kill_leaves_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = slow_of(LONG, {"ratio": 0.5, "ours_s": 1.0, "best_peer": "jax", "peak_fraction": 1.0, "kernels": {}})
    text = keep(tmp_path, found).read_bytes()

    def killed(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        keep(tmp_path, found)
    ((file, _),) = programs(tmp_path)
    assert file.read_bytes() == text


def test_the_folder_of_a_corpus_is_made_before_a_search(tmp_path: Path) -> None:
    prepare(tmp_path / "a" / "b")
    prepare(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="the corpus cannot be written"):
        prepare(tmp_path / "file")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ArgumentError, match=r"folder\.json"):
        list(programs(tmp_path))


def test_a_process_that_dies_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    killing = Program((Input((0,)),), (Step("exp", (0,)),))
    script = (
        "import sys\n"
        "for line in sys.stdin:\n"
        "    if '[0]' in line.split('steps')[0]: sys.exit(3)\n"
        '    print(\'{"case": "done"}\', flush=True)\n'
    )
    with Measurer(REQUEST, 20.0) as measurer:
        monkeypatch.setattr(measurer, "_command", [sys.executable, "-c", script])
        assert measurer.record(LONG) == {"case": "done"}
        assert "status" in measurer.record(killing)["error"]
        assert measurer.record(LONG) == {"case": "done"}


def test_a_program_that_takes_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with Measurer(REQUEST, 0.2) as measurer:
        monkeypatch.setattr(measurer, "_command", [sys.executable, "-c", "import time; time.sleep(60)"])
        assert measurer.record(LONG)["error"] == "not done in 0 s"


def test_the_document_lists_what_peers_do_faster() -> None:
    ratios = [1.2, 0.4, None, 0.9, 0.1]
    records = [
        {"case": f"v{n}", "ratio": ratio, "ours_s": 1e-3, "best_peer": "jax", "agrees": n != 4}
        for n, ratio in enumerate(ratios)
    ]
    assert [found["case"] for found in command._below_1(records)] == ["v1", "v3"]


@pytest.mark.parametrize(
    ("ours", "peers", "expected"),
    [
        (0.01, {}, False),
        (0.01, {"torch": 0.003}, True),
        (0.01, {"torch": 0.002}, False),
        (0.01, {"torch": None}, True),
        (None, {"torch": 0.5}, False),
        (None, {"torch": 0.5, "jax": None}, True),
    ],
)
def test_a_difference_that_peers_have_too_is_no_failure(
    ours: float | None, peers: dict[str, float | None], expected: bool
) -> None:
    assert is_ill_conditioned({"max_difference": ours, "peer_differences": peers}) is expected


class _Slow:
    """A measurer for which every program is slow."""

    def __enter__(self) -> _Slow:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def record(self, program: Program) -> Record:
        slow = {"ratio": 0.5, "ours_s": 1e-3, "best_peer": "jax", "agrees": True, "peak_fraction": 0.1, "kernels": {}}
        return {"case": str(program), **slow}


@pytest.mark.parametrize(("seconds", "steps"), [(60.0, [1]), (0.0, [])])
def test_programs_are_reduced_for_as_long_as_was_searched(
    seconds: float, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.Hunt, "_measurer", lambda self, turns: _Slow())
    hunt = command.Hunt(0, seconds, REQUEST, None, lambda text: None)
    found = hunt._slow([(LONG, _Slow().record(LONG))])
    assert [len(each.program.steps) for each in found] == steps
