"""`tilewright bench`: the records of quick runs, the choice of cases and peers, and the formulas of the suites."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import CommandLine

import tilewright as tw
from tilewright.cli import bench_worker
from tilewright.cli.bench import summary
from tilewright.cli.bench_scaling import measure_scaling, scaling_summary
from tilewright.cli.bench_schedules import measure_schedules
from tilewright.cli.bench_suites import load_cases
from tilewright.cli.bench_suites.case import Case, ScheduleCase, error_bound, exact_erf
from tilewright.cli.bench_suites.cuda_static import MULTIPLYING, subroutines
from tilewright.cli.bench_suites.ops import numpy_erf
from tilewright.cli.bench_worker import Request, footprint
from tilewright.cli.worker_process import interrupts_held
from tilewright.dtypes import by_name
from tilewright.errors import DTypeError
from tilewright.options import current

KEYS = {
    "case",
    "ours_s",
    "peers",
    "ways",
    "best_peer",
    "ratio",
    "gflops",
    "peak_fraction",
    "bound",
    "max_difference",
    "tolerance",
    "agrees",
    "peer_differences",
    "absent",
}


def test_quick_run_has_a_record_for_each_case(tilewright: CommandLine):
    run = tilewright("bench", "attention", "--quick", "--threads", "1", "--json")
    assert run.exit_code == 0, run.stderr
    assert {"suite", "threads", "load", "versions", "cases", "summary"} <= run.document.keys()
    names = ["2x24x16", "causal 2x24x16", "masked 2x24x16", "grouped causal 4/2x24x16", "decode 2x1x40x16"]
    assert [case["case"] for case in run.document["cases"]] == names
    assert run.document["summary"]["compared"] == len(names)
    for case in run.document["cases"]:
        assert case.keys() == KEYS
        assert case["agrees"]
        assert case["max_difference"] < 1e-5
        assert case["ratio"] == pytest.approx(case["peers"]["numpy"] / case["ours_s"])
        assert case["best_peer"] == "numpy"
        assert 0 < case["peak_fraction"] < 2


@pytest.mark.parametrize("suite", ["gemm", "ops", "operators", "recurrences"])
def test_quick_runs_agree_with_their_references(tilewright: CommandLine, suite: str):
    run = tilewright("bench", suite, "--quick", "--threads", "1", "--json")
    assert run.exit_code == 0, run.stderr
    for case in run.document["cases"]:
        assert case["agrees"], case["case"]
        assert case["peer_differences"] == {}, case["case"]


def test_the_compilers_own_time_is_shown_with_its_figures(tilewright: CommandLine):
    run = tilewright("bench", "layout", "--quick", "--json")
    assert run.exit_code == 0, run.stderr
    names = [case["case"] for case in run.document["cases"]]
    assert {"chain of 8, sm_90a", "softmax, x86-64-v4", "attention, sm_90a"} <= set(names)
    for case in run.document["cases"]:
        assert case["figures"].keys() == {"variables", "nodes", "cost_us"}
        assert case["figures"]["nodes"] >= 1
        assert case["figures"]["variables"] >= 8
        assert case["ours_s"] > 0
    shown = tilewright("bench", "layout", "--quick", "--case", "softmax")
    assert "variables" in shown.stdout


def test_kernels_for_chips_are_looked_at(tilewright: CommandLine):
    run = tilewright("bench", "cuda-static", "--quick", "--case", "bf16, ", "--json")
    assert run.exit_code == 0, run.stderr
    cases = {case["case"]: case["figures"] for case in run.document["cases"]}
    assert {"gemm bf16, a.T, sm_90a", "gemm bf16, b.T, sm_90a", "gemm bf16, gelu, sm_90a"} <= set(cases)
    for figures in cases.values():
        assert 0 < figures["registers"] <= 255
        assert 0 < figures["shared_bytes"] <= 232448
        assert sum(figures.get(name, 0) for name in MULTIPLYING[1:]) > 0, "tensor cores multiply"


def test_a_kernel_that_calls_a_subroutine_is_told_from_one_that_branches():
    branch = "        /*0010*/                   CALL.REL.NOINC `(.L_x_3) ;"
    called = "        /*0020*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_f64) ;"
    assert subroutines(branch) == []
    assert subroutines(branch + "\n" + called) == ["$__internal_0_$__cuda_sm20_div_f64"]


def test_chosen_schedules_are_measured_beside_others(tilewright: CommandLine):
    run = tilewright("bench", "schedules", "--quick", "--threads", "1", "--case", "00", "--json")
    assert run.exit_code == 0, run.stderr
    cases = run.document["cases"]
    assert [case["case"].partition(":")[0] for case in cases] == [
        *(f"product {n:03}" for n in range(3)),
        *(f"reduction {n:03}" for n in range(2)),
    ]
    for case in cases:
        named = {each["schedule"]: each["seconds"] for each in case["schedules"]}
        assert len(named) == len(case["schedules"]) > 1
        assert case["chosen"] in named
        assert case["best"] in named
        assert case["best_s"] == named[case["best"]] <= case["ours_s"]
        assert case["ratio"] == pytest.approx(case["best_s"] / case["ours_s"])
        assert case["agrees"]
    found = run.document["summary"]
    ratios = [case["ratio"] for case in cases]
    assert found["compared"] == len(cases)
    assert found["near_the_best"] == sum(ratio >= 1 / 1.1 for ratio in ratios)
    assert found["worst_ratio"] == min(ratios)
    assert found["geometric_mean"] == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    shown = tilewright("bench", "schedules", "--quick", "--threads", "1", "--case", "product 000")
    for word in ("chosen schedule", cases[0]["chosen"].split()[0], "of 1 within 10 % of the best"):
        assert word in shown.stdout


def test_a_schedule_with_a_wrong_result_is_named():
    (case, *_) = load_cases("schedules", quick=True)
    assert isinstance(case, ScheduleCase)
    wrong = replace(case, reference=lambda a, b: a @ b * 1.5)
    record = measure_schedules(wrong, request(suite="schedules"))
    assert not record["agrees"]
    assert case.alternatives(1).keys() <= set(record["wrong"])


def test_random_cases_are_within_their_bounds():
    cases = load_cases("schedules", quick=False)
    assert len({case.name for case in cases}) == len(cases) == 200
    for case in cases:
        assert isinstance(case, ScheduleCase)
        if len(case.shapes) == 2:
            (rows, depth), (_, columns) = case.shapes
            assert all(16 <= side <= 2048 for side in (rows, columns, depth))
            assert 2 * rows * columns * depth <= 4e9
            assert case.result == (rows, columns)
        else:
            assert 2**12 <= 4 * math.prod(case.shapes[0]) <= 2**25


def test_scaling_has_both_times(tilewright: CommandLine):
    run = tilewright("bench", "scaling", "--quick", "--threads", "2", "--case", "24", "--json")
    assert run.exit_code == 0, run.stderr
    cases = run.document["cases"]
    quick = [case.name for suite in ("gemm", "attention") for case in load_cases(suite, quick=True)]
    assert [case["case"] for case in cases] == [name for name in quick if "24" in name]
    for case in cases:
        assert case["ratio"] == pytest.approx(case["one_thread_s"] / case["ours_s"])
        assert case["machine_ratio"] > 0
        assert case["agrees"]
    found = run.document["summary"]
    assert found["compared"] == len(cases)
    assert found["worst_ratio"] == min(case["ratio"] for case in cases)
    shown = tilewright("bench", "scaling", "--quick", "--threads", "2", "--case", "residual")
    for word in ("1 thread", "2 threads", "of 1 at a ratio of 1.8 or more"):
        assert word in shown.stdout
    assert "cannot be compared with itself" in tilewright("bench", "scaling", "--threads", "1").stderr


def test_scaling_times_calls_with_one_thread_and_with_all():
    """Of a case that takes as long as the threads that it is called with allow."""
    called: list[int | None] = []

    def ours(x: Any) -> Any:
        called.append(current().threads)
        time.sleep(0.012 / (called[-1] or 1))
        return x

    def ratio() -> float:
        record = measure_scaling(made_up_case(ours, lambda numpy, x: x), request(threads=3))
        assert record["agrees"]
        return record["ratio"]

    # One of several: on a busy machine a pause takes longer than was asked for.
    assert any(2 < ratio() < 4 for _ in range(10))
    assert set(called) == {1, 3}
    wrong = measure_scaling(made_up_case(lambda x: x * current().threads, lambda numpy, x: x), request(threads=3))
    assert not wrong["agrees"]


def test_scaling_cases_have_much_to_compute(monkeypatch: pytest.MonkeyPatch):
    small, large = (made_up_case(lambda x: x, lambda numpy, x: x, flops=flops) for flops in (1e6, 1e9))
    models = (replace(small, name="small model"), replace(large, name="large model"))
    monkeypatch.setattr("tilewright.cli.bench_suites.models.cases", lambda quick: models)
    cases = {case.name for case in load_cases("scaling", quick=False)}
    assert "large model" in cases
    assert "small model" not in cases
    assert {"f32 1024x1024x1024", "f32 256x256x256", "causal 8x1024x64", "masked 32x128x32"} <= cases
    assert not {"f32 64x64x64", "f32 1x4096x4096", "decode 32/32x1x4096x128", "12x16x32"} & cases


def test_scaling_summary_asks_for_nine_tenths_of_the_threads():
    ratios = {"linear": 4.0, "good": 3.6, "bad": 3.5}
    cases = [{"case": name, "agrees": True, "ratio": ratio, "machine_ratio": 3.9} for name, ratio in ratios.items()]
    cases.append({"case": "wrong", "agrees": False, "ratio": 1.0, "machine_ratio": 3.9})
    found = scaling_summary(cases, 4)
    assert (found["good"], found["at_least_good"], found["compared"]) == (3.6, 2, 3)
    assert (found["worst"], found["worst_ratio"], found["failed"]) == ("bad", 3.5, ["wrong"])
    assert found["machine_ratio"] == 3.9


def test_table_compares_with_an_earlier_run(tilewright: CommandLine, tmp_path: Path):
    base = tmp_path / "base.json"
    case = {"case": "softmax 16x48", "ours_s": 1.0}
    base.write_text(json.dumps({"suite": "ops", "cases": [case]}))
    run = tilewright("bench", "ops", "--case", "softmax", "--quick", "--threads", "1", "--compare", base)
    assert run.exit_code == 0, run.stderr
    for word in ("softmax 16x48", "numpy", "ratio", "GFLOP/s", "against base"):
        assert word in run.stdout
    assert "gelu" not in run.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("gem",), "did you mean gemm?"),
        (("gemm", "--vs", "numpi"), "did you mean numpy?"),
        (("gemm", "--repeat", "0"), "at least one turn"),
        (("gemm", "--repeat", "many"), "many"),
        (("hunt", "--seconds", "nan"), "`--seconds` is nan"),
        (("hunt", "--seconds", "inf"), "`--seconds` is inf"),
        (("hunt", "--seconds", "-5"), "`--seconds` is -5.0"),
        (("hunt", "--seconds", "0"), "give a hunt a finite time above 0"),
        (("hunt", "--seconds", "1", "--corpus", "/dev/null/corpus"), "the corpus cannot be written"),
        (("hunt", "--seconds", "1", "--corpus", "/dev/null"), "the corpus cannot be written"),
        (("gemm", "--threads", "none"), "error[TW0701]: `--threads`"),
        (("gemm", "--compare", "missing.json"), "not the document of an earlier run"),
        (("gemm", "--quick", "--case", "nothing"), "has no case 'nothing'"),
    ],
)
def test_bench_refuses(tilewright: CommandLine, arguments: tuple[str, ...], expected: str):
    run = tilewright("bench", *arguments)
    assert run.exit_code == 1
    assert expected in run.stderr
    assert "Traceback" not in run.stderr


def test_base_of_another_suite_is_refused(tilewright: CommandLine, tmp_path: Path):
    base = tmp_path / "base.json"
    base.write_text('{"suite": "ops", "cases": []}')
    assert "is of the suite `ops`" in tilewright("bench", "gemm", "--compare", base).stderr


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"suite": ' + "[" * 100_000,
        '{"suite": "gemm", "cases": [{"case": "a"}]}',
        '{"suite": "gemm", "cases": [{"case": "a", "ours_s": "fast"}]}',
        '{"suite": "gemm", "cases": [{"case": "a", "ours_s": null}]}',
        '{"suite": "gemm", "cases": [{"case": [], "ours_s": 1}]}',
        '{"suite": "gemm", "cases": 3}',
    ],
)
def test_other_documents_are_no_base(tilewright: CommandLine, tmp_path: Path, text: str):
    base = tmp_path / "base.json"
    base.write_text(text)
    run = tilewright("bench", "gemm", "--compare", base)
    assert run.exit_code == 1
    assert "error[TW0205]" in run.stderr
    assert "is not the document of an earlier run" in run.stderr


def request(**changes: Any) -> Request:
    fields: dict[str, Any] = {"suite": "ops", "case": None, "peers": ("numpy",), "threads": 1, "repeat": 1}
    return Request(**(fields | {"block_s": 0.0, "gap_s": 0.0, "quick": True} | changes))


def made_up_case(ours: Any, numpy: Any, **changes: Any) -> Case:
    fields: dict[str, Any] = {"flops": 1e3, "bytes": 1e3, "tolerance": 1e-6, "peers": {"numpy": numpy}}
    return Case(
        name="made up", make_inputs=lambda generator: (np.ones(8, np.float32),), ours=ours, **(fields | changes)
    )


def test_mismatch_is_no_agreement():
    record = bench_worker.measure(made_up_case(lambda x: x * 1.5, lambda numpy, x: x), request())
    assert record["max_difference"] == pytest.approx(0.5)
    assert not record["agrees"]
    assert record["peer_differences"] == {}
    for wrong in (lambda x: x[:4], lambda x: x.astype(np.float64)):
        record = bench_worker.measure(made_up_case(wrong, lambda numpy, x: x), request())
        assert record["max_difference"] is None
        assert not record["agrees"]


def test_reference_is_computed_in_f64():
    # 1 + 1e-5 / 3 is no f32: the difference from its rounding is what f64 shows.
    case = made_up_case(lambda x: x + np.float32(1e-5 / 3), lambda numpy, x: x + 1e-5 / 3, tolerance=2.0**-24)
    record = bench_worker.measure(case, request())
    assert 0 < record["max_difference"] < 2.0**-24
    assert record["agrees"]


def test_peer_that_differs_is_told_and_fails_nothing():
    case = made_up_case(lambda x: x, lambda numpy, x: x * 1.25, reference=lambda numpy, x: x)
    record = bench_worker.measure(case, request())
    assert record["agrees"]
    assert record["peer_differences"] == {"numpy": 0.25}


def test_fastest_way_of_a_peer_counts():
    def slow(numpy: Any, x: Any) -> Any:
        time.sleep(0.002)
        return x

    ways = {"slowly": slow, "quickly": lambda numpy, x: x}
    case = made_up_case(lambda x: x, ways, reference=lambda numpy, x: x)
    record = bench_worker.measure(case, request())
    assert record["ways"] == {"numpy": "quickly"}
    assert record["peers"]["numpy"] < 0.001


def test_summary_counts_ratios():
    ratios = {"fast": 8.0, "even": 1.0, "near": 0.96, "slow": 0.5}
    cases = [{"case": name, "agrees": True, "ratio": ratio} for name, ratio in ratios.items()]
    cases.append({"case": "wrong", "agrees": False, "ratio": 3.0})
    cases.append({"case": "broken", "agrees": False, "error": "error[TW0202]: no such product"})
    assert summary(cases) == {
        "compared": 4,
        "at_least_1": 2,
        "below_0.95": ["slow"],
        "failed": ["wrong", "broken"],
        "geometric_mean": pytest.approx(0.96**0.25),
    }
    assert summary([])["geometric_mean"] is None


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_error_bound_admits_rounding_and_no_narrower_type(dtype: str):
    depth = 4096
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((8, depth)), generator.standard_normal((depth, 64))
    kind = by_name(dtype)
    a, b = (x.astype(kind.numpy).astype(np.float64) for x in (a, b))
    exact = a @ b

    def difference(accumulated: Any) -> float:
        # One product after the other, as the longest chain of roundings.
        total = np.zeros(exact.shape, accumulated)
        for k in range(depth):
            total += (a[:, k, None] * b[k]).astype(accumulated)
        return float(np.abs(total.astype(kind.numpy).astype(np.float64) - exact).max() / np.abs(exact).max())

    bound = error_bound(1, depth, dtype)
    narrower = {"f64": np.float32, "f32": np.float16}.get(dtype, kind.numpy)
    assert difference(kind.compute.numpy) < bound
    assert difference(narrower) > bound


def test_case_that_does_not_compile_is_a_record():
    def fails(x: Any) -> Any:
        raise DTypeError("no such product", help="use f32")

    record = bench_worker.measured_or_failed(made_up_case(fails, lambda numpy, x: x), request())
    assert record["case"] == "made up"
    assert record["error"].startswith("error[TW0202]: no such product")
    assert not record["agrees"]


@pytest.mark.parametrize("nbytes", [1e3, 1e15])
def test_case_without_memory_is_a_record(nbytes: float):
    def fails(generator: np.random.Generator) -> Any:
        raise MemoryError("Unable to allocate it")

    case = replace(made_up_case(lambda x: x, lambda numpy, x: x, bytes=nbytes), make_inputs=fails)
    record = bench_worker.measured_or_failed(case, request())
    assert record["error"].startswith("error[TW0403]: ")
    assert not record["agrees"]


def write_corpus(folder: Path, **texts: str) -> None:
    (folder / "benchmarks/hunt").mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"benchmarks/hunt/{name}.json").write_text(text)


def test_programs_that_cannot_run_leave_the_others(
    tilewright: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = '{"inputs": [{"shape": [%d]}], "steps": [{"op": "exp", "operands": [0]}]}'
    write_corpus(tmp_path, a=program % 99999999999, b=program % 16)
    monkeypatch.chdir(tmp_path)
    run = tilewright("bench", "found", "--quick", "--json", "--threads", "1")
    assert run.exit_code == 1, run.stderr
    first, second = json.loads(run.stdout)["cases"]
    assert first["error"].startswith("error[TW0403]: ")
    assert second["agrees"]


@pytest.mark.parametrize(
    "text",
    [
        '{"inputs": [], "steps": []}',
        '{"inputs": [{"shape": [4]}], "steps": [{"op": "sum", "operands": [0], "parameters": {"axis": 9}}]}',
        "[" * 100_000,
    ],
)
def test_texts_in_the_corpus_that_are_no_programs_are_named(
    tilewright: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
):
    write_corpus(tmp_path, bad=text)
    monkeypatch.chdir(tmp_path)
    run = tilewright("bench", "found", "--quick", "--threads", "1")
    assert run.exit_code == 1
    assert "error[TW0205]: `benchmarks/hunt/bad.json`" in run.stderr
    assert "Traceback" not in run.stderr


def test_absent_peers_have_reasons():
    def fails(torch: Any, x: Any) -> Any:
        raise RuntimeError("cannot do that\nat all")

    peers = {"numpy": lambda numpy, x: x, "onnxruntime": fails}
    case = made_up_case(lambda x: x, None, peers=peers, unsupported={"torch": "has no such thing"})
    record = bench_worker.measure(case, request(peers=("torch", "jax", "onnxruntime")))
    assert record["absent"].keys() == {"torch", "jax", "onnxruntime"}
    assert record["absent"]["torch"] == "has no such thing"
    assert record["absent"]["jax"] == "has no form of this case"
    # Without peers there is no ratio, but the result is still compared with NumPy's.
    assert (record["peers"], record["best_peer"], record["ratio"]) == ({}, None, None)
    assert record["max_difference"] == 0.0


def test_peak_is_that_of_a_copy_among_the_turns(monkeypatch: pytest.MonkeyPatch):
    """Which reads and writes as many bytes as the case and takes half of its time."""
    times = {("copy", ""): 1.0, ("ours", ""): 2.0}
    monkeypatch.setattr(bench_worker, "alternate", lambda calls, request: {key: times.get(key, 9.0) for key in calls})
    case = made_up_case(lambda x: x, lambda numpy, x: x, flops=0.0, bytes=float(1 << 20))
    record = bench_worker.measure(case, request())
    assert (record["peak_fraction"], record["bound"]) == (0.5, "memory")


def test_libraries_take_turns():
    order: list[str] = []
    calls = {("ours", ""): lambda: order.append("ours"), ("numpy", ""): lambda: order.append("numpy")}
    bench_worker.alternate(calls, request(repeat=3))
    blocks = [name for name, before in zip(order, ["", *order], strict=False) if name != before]
    assert blocks == ["ours", "numpy"] * 3


@pytest.mark.parametrize(("nbytes", "expected"), [(1, 1 << 15), (1 << 20, 1 << 20), ((1 << 20) + 1, 1 << 21)])
def test_footprint_is_a_power_of_two(nbytes: int, expected: int):
    assert footprint(nbytes) == expected


def test_error_functions():
    x = np.linspace(-4, 4, 801, dtype=np.float32)
    expected = np.array([math.erf(value) for value in x.tolist()])
    assert np.array_equal(exact_erf(x.astype(np.float64)), expected)
    assert np.abs(numpy_erf(np, x) - expected).max() < 5e-7


def test_numpy_peer_of_the_model_is_the_example():
    case, *_ = load_cases("models", quick=True)
    ids, mask = case.make_inputs(np.random.default_rng(0))
    mask[:, 11:] = 0
    compiled = case.ours.lower(ids, mask).compile("interp")
    assert np.abs(compiled(ids, mask) - case.peers["numpy"](np, ids, mask)).max() < 1e-5


def test_numpy_peer_of_the_decoder_is_the_example():
    cases = {case.name: case for case in load_cases("models", quick=True) if case.name.startswith("decoder")}
    assert list(cases) == ["decoder prefill 1x16", "decoder decode 1x1 cache 16"]
    for case in cases.values():
        inputs = case.make_inputs(np.random.default_rng(0))
        expected = case.expected(inputs)
        with tw.options(target="interp"):
            found = case.ours(*(array.copy() for array in inputs))
        assert np.abs(found - expected).max() < 1e-5
        assert np.abs(case.peers["numpy"](np, *inputs) - expected).max() < 1e-5


def test_work_of_the_decoder_is_that_of_its_weights():
    prefill, decode = (case for case in load_cases("models", quick=True) if case.name.startswith("decoder"))
    hidden, heads, keys, inner, vocabulary = 32, 4 * 16, 2 * 16, 48, 64
    layers = 2 * (2 * hidden * (heads + keys) + 3 * hidden * inner)
    caches = 2 * 2 * keys * 16
    assert prefill.bytes == decode.bytes == 4 * (layers + vocabulary * hidden + caches)
    assert decode.flops == 2 * (layers + vocabulary * hidden) + 2 * 4 * heads * 16
    assert prefill.flops == 2 * (16 * layers + vocabulary * hidden) + 2 * 4 * heads * (16 * 17 // 2)


@pytest.mark.parametrize("suite", ["gemm", "ops", "attention"])
def test_work_of_cases_is_what_the_shapes_say(suite: str):
    for case in load_cases(suite, quick=False):
        assert case.bytes > 0
        assert 0 <= case.tolerance <= 1e-2
        assert {"numpy", "torch", "jax"} <= case.peers.keys()
        assert {"onnxruntime"} <= case.peers.keys() | case.unsupported.keys()
    sizes = {case.name: case.flops for case in load_cases("gemm", quick=False)}
    assert sizes["f32 1024x1536x384"] == 2 * 1024 * 1536 * 384
    assert sizes["f32 96 of 128x128x32"] == 2 * 96 * 128 * 128 * 32


@pytest.mark.parametrize("whole_group", [True, False])
@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_an_interrupted_bench_ends_with_its_worker(whole_group: bool, seconds: float):
    command = [sys.executable, "-m", "tilewright.cli", "bench", "gemm", "--vs", "numpy"]
    bench = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
    while not children.read_text():
        time.sleep(0.01)
    time.sleep(seconds)
    (worker,) = map(int, children.read_text().split())
    (os.killpg if whole_group else os.kill)(bench.pid, signal.SIGINT)
    _, stderr = bench.communicate(timeout=60)
    assert (bench.returncode, stderr) == (1, "error: interrupted\n")
    status = Path(f"/proc/{worker}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_an_interrupt_waits_until_a_process_is_known() -> None:
    done: list[str] = []

    def start() -> None:
        with interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            done.append("started")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start tests with it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["started"]


_FINALIZER = """
import os, signal, time
from tilewright.cli.worker_process import take_interrupts
signal.signal(signal.SIGINT, signal.SIG_IGN)
take_interrupts()
class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
try:
    held = Held()
    del held
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_in_a_finalizer_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", _FINALIZER], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
