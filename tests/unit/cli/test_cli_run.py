"""`tilewright run` on scripts and on saved programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_support import CommandLine

import tilewright as tw
from tilewright.cli.report import bytes_text, seconds_text


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """`softmax(2 x)` of f32[6, 4] as a file."""

    @tw.jit
    def scaled(x):
        return tw.nn.softmax(x * 2.0, axis=-1)

    path = tmp_path / "scaled.twp"
    with tw.options(cache=False):
        scaled.lower(tw.ShapeDtype((6, 4), tw.f32)).compile("cpu").save(str(path))
    return path


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(text)
    return path


def test_script_runs_as_main_with_its_arguments(tilewright: CommandLine, tmp_path: Path):
    path = script(tmp_path, "import sys\nif __name__ == '__main__':\n    print(sys.argv[1:], __file__)\n")
    run = tilewright("run", path, "a", "--foreign", "b")
    assert run.exit_code == 0
    assert run.stdout == f"['a', '--foreign', 'b'] {path}\n"


def test_main_is_called_once(tilewright: CommandLine, tmp_path: Path):
    by_us = script(tmp_path, "def main():\n    print('ran')\n")
    assert tilewright("run", by_us).stdout == "ran\n"
    by_itself = script(tmp_path, "def main():\n    print('ran')\nif __name__ == '__main__':\n    main()\n")
    assert tilewright("run", by_itself).stdout == "ran\n"


def test_script_sees_options_and_its_folder(tilewright: CommandLine, tmp_path: Path):
    (tmp_path / "neighbour_of_script.py").write_text("NAME = 'neighbour'\n")
    text = "import neighbour_of_script as n\nfrom tilewright.options import current\nprint(n.NAME, current().threads)\n"
    assert tilewright("run", "--threads", "1", script(tmp_path, text)).stdout == "neighbour 1\n"


def test_json_keeps_stdout_for_the_document(tilewright: CommandLine, tmp_path: Path):
    run = tilewright("run", "--json", script(tmp_path, "print('to people')\nraise SystemExit(3)\n"))
    assert run.exit_code == 3
    assert run.document.keys() == {"file", "exit_code", "seconds"}
    assert run.document["exit_code"] == 3
    assert "to people" in run.stderr


def test_users_exception_shows_the_users_frames_only(tilewright: CommandLine, tmp_path: Path):
    run = tilewright("run", script(tmp_path, "def f():\n    return 1 / 0\nf()\n"))
    assert run.exit_code == 1
    assert "ZeroDivisionError" in run.stderr
    assert run.stderr.count("File ") == 2
    assert "return 1 / 0" in run.stderr


def test_our_error_has_no_traceback_below_debug_5(tilewright: CommandLine, tmp_path: Path):
    function = "import tilewright as tw\n@tw.jit\ndef f(x):\n    return x + tw.zeros((5,))\n"
    path = script(tmp_path, function + "f.lower(tw.ShapeDtype((3,), tw.f32))\n")
    run = tilewright("run", path)
    assert run.exit_code == 1
    assert run.stderr.startswith("error[TW0201]")
    assert f"{path}:4:12" in run.stderr
    assert "Traceback" not in run.stderr
    assert "Traceback" in tilewright("run", "--debug", "5", path).stderr


def test_program_runs_on_given_inputs(tilewright: CommandLine, tmp_path: Path, program: Path):
    x = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    run = tilewright("run", program, "--input", tmp_path / "x.npy", "--repeat", "3", "--threads", "1", "--json")
    assert run.exit_code == 0, run.stderr
    found = run.document
    assert found["inputs"] == [{"name": "x", "shape": [6, 4], "dtype": "f32"}]
    assert (found["calls"], found["threads"]) == (3, 1)
    assert 0 < found["best_s"] <= found["median_s"] < 1
    weights = np.exp(2 * x.astype(np.float64))
    expected = weights / weights.sum(-1, keepdims=True)
    (output,) = found["outputs"]
    assert output["shape"] == [6, 4]
    for name, value in (("minimum", expected.min()), ("maximum", expected.max()), ("mean", expected.mean())):
        assert output[name] == pytest.approx(value, rel=1e-5)


def test_program_describes_itself_to_people(tilewright: CommandLine, program: Path):
    run = tilewright("run", program)
    for word in ("scaled", "f32[6, 4]", "arena", "median", "features"):
        assert word in run.stdout


def test_program_refuses_wrong_inputs(tilewright: CommandLine, tmp_path: Path, program: Path):
    np.save(tmp_path / "x.npy", np.zeros((5, 4), np.float32))
    (tmp_path / "text.npy").write_text("not an array")
    one = ("--input", tmp_path / "x.npy")
    assert "TW0201" in tilewright("run", program, *one).stderr
    assert "takes 1 inputs, got 2" in tilewright("run", program, *one, *one).stderr
    assert "is not a .npy file" in tilewright("run", program, "--input", tmp_path / "text.npy").stderr
    missing = tilewright("run", program, "--input", tmp_path / "missing.npy").stderr
    assert missing.startswith("error[TW0205]: there is no file")
    assert "takes no arguments" in tilewright("run", program, "x").stderr
    assert "at least one call" in tilewright("run", program, "--repeat", "0").stderr
    assert "is for saved programs" in tilewright("run", script(tmp_path, ""), *one).stderr


def stating(description: str, shape: str) -> bytes:
    """The content of an array file with a header of any text, and 96 bytes."""
    header = f"{{'descr': {description}, 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(96)


def test_array_files_of_any_header_are_refused(tilewright: CommandLine, tmp_path: Path, program: Path):
    contents = {
        "beyond memory": stating("'<f4'", "(99999999999999, 4)"),
        "beyond integers": stating("'<f4'", "(1180591620717411303424, 4)"),
        "archive": b"PK\x03\x04" + bytes(100),
    }
    for name, content in contents.items():
        (tmp_path / "x.npy").write_bytes(content)
        run = tilewright("run", program, "--input", tmp_path / "x.npy")
        assert "is not a .npy file" in run.stderr, name
    np.savez(tmp_path / "x.npz", np.zeros((6, 4), np.float32))
    assert "is an archive of arrays" in tilewright("run", program, "--input", tmp_path / "x.npz").stderr


@pytest.mark.parametrize("description", ["[('a', '<f4')]", "'|V2'", "'|S4'"])
def test_records_and_bytes_are_no_numbers(tilewright: CommandLine, tmp_path: Path, program: Path, description: str):
    (tmp_path / "x.npy").write_bytes(stating(description, "(6, 4)"))
    assert "TW0202" in tilewright("run", program, "--input", tmp_path / "x.npy").stderr


def test_damaged_program_is_refused(tilewright: CommandLine, program: Path):
    content = bytearray(program.read_bytes())
    content[len(content) // 2] ^= 0xFF
    program.write_bytes(content)
    run = tilewright("run", program, "--json")
    assert run.exit_code == 1
    assert run.document["error"]["code"] == "TW0602"
    program.write_bytes(b"")
    assert "error[TW0602]" in tilewright("run", program).stderr


def test_missing_file_suggests_its_neighbour(tilewright: CommandLine, program: Path):
    run = tilewright("run", program.with_name("scalled.twp"))
    assert run.exit_code == 1
    assert f"did you mean {program}?" in run.stderr


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (3e-9, "3 ns"), (1.5e-6, "1.5 us"), (0.25, "250 ms"), (2.0, "2 s")]
)
def test_seconds_text(seconds: float | None, text: str):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(("nbytes", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (2**21, "2 MiB"), (5 * 2**30, "5 GiB")])
def test_bytes_text(nbytes: int, text: str):
    assert bytes_text(nbytes) == text


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """`relu` of f32[batch, 4] as an ONNX file."""
    helper = pytest.importorskip("onnx").helper
    inputs, outputs = ([helper.make_tensor_value_info(name, 1, ["batch", 4])] for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", inputs, outputs)
    path = tmp_path / "relu.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    return path


def test_model_runs_on_files(tilewright: CommandLine, model: Path, tmp_path: Path):
    np.save(tmp_path / "x.npy", np.array([[1, -1, 2, -2]], np.float32))
    document = tilewright("run", "--json", model, "--input", tmp_path / "x.npy", "--repeat", "2").document
    assert document["inputs"] == [{"name": "x", "shape": [1, 4], "dtype": "f32"}]
    assert document["outputs"][0]["maximum"] == 2
    assert document["outputs"][0]["minimum"] == 0


def test_model_with_open_sizes_needs_files(tilewright: CommandLine, model: Path):
    run = tilewright("run", model)
    assert run.exit_code != 0
    assert "x: f32[batch, 4]" in run.stderr


def test_kernels_of_a_model_are_timed(tilewright: CommandLine, model: Path, tmp_path: Path):
    np.save(tmp_path / "x.npy", np.ones((64, 4), np.float32))
    command = ("run", model, "--input", tmp_path / "x.npy", "--repeat", "2")
    document = tilewright(*command, "--json").document
    (kernel,) = document["kernels"]
    assert (kernel["calls"], kernel["share"]) == (1, 1)
    assert 0 < kernel["seconds"] < document["median_s"] * 10
    assert kernel["roofline"] > 0
    assert document["compile_s"] > 0
    assert "slowest of 1 kernels" in tilewright(*command).stdout


def test_a_model_with_nodes_on_the_host_says_so(tilewright: CommandLine, tmp_path: Path):
    helper = pytest.importorskip("onnx").helper
    pytest.importorskip("onnxruntime")
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Unique", ["r"], ["y"], name="each")]
    inputs, outputs = ([helper.make_tensor_value_info(name, 1, [size])] for name, size in (("x", 4), ("y", None)))
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    path = tmp_path / "unique.onnx"
    path.write_bytes(
        helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    )
    np.save(tmp_path / "x.npy", np.array([1, -1, 2, 2], np.float32))
    command = ("run", path, "--input", tmp_path / "x.npy", "--repeat", "2", "--compare", "onnxruntime")
    document = tilewright(*command, "--json").document
    assert document["host_nodes"] == ["node 'each' (Unique): the sizes of its results depend on data"]
    assert document["outputs"][0]["shape"] == [3]
    assert document["compared"]["agrees"]
    assert "on the host 1" in tilewright(*command).stdout


def test_a_model_is_compared_with_another_library(tilewright: CommandLine, model: Path, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    np.save(tmp_path / "x.npy", np.linspace(-1, 1, 256, dtype=np.float32).reshape(64, 4))
    command = ("run", model, "--input", tmp_path / "x.npy", "--repeat", "2", "--compare", "onnxruntime")
    compared = tilewright(*command, "--json").document["compared"]
    assert (compared["library"], compared["agrees"], compared["max_difference"]) == ("onnxruntime", True, 0)
    assert compared["ratio"] == pytest.approx(compared["median_s"] / compared["ours_s"])
    assert "agrees" in tilewright(*command).stdout


def test_results_that_differ_are_an_error(tilewright: CommandLine, model: Path, tmp_path: Path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("tilewright.cli.run_model._difference", lambda ours, theirs: 0.5)
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    run = tilewright("run", model, "--input", tmp_path / "x.npy", "--repeat", "2", "--compare", "onnxruntime")
    assert run.exit_code == 1
    assert "DIFFERS" in run.stdout


def test_only_known_libraries_and_models_are_compared(tilewright: CommandLine, model: Path, program: Path):
    assert "models are not compared with 'numpy'" in tilewright("run", model, "--compare", "numpy").stderr
    assert "`--compare` is for ONNX models" in tilewright("run", program, "--compare", "onnxruntime").stderr


def test_a_difference_of_shape_or_nan_is_no_number():
    from tilewright.cli.run_model import _difference

    ones = np.ones(3)
    assert _difference(ones, ones) == 0
    assert _difference(ones, ones * 4) == 0.75
    assert _difference(ones, np.ones(2)) == _difference(ones, np.array([1, np.nan, 1])) == np.inf
    assert _difference(np.array([np.inf, np.nan]), np.array([np.inf, np.nan])) == 0


@pytest.mark.parametrize("redirection", ["", ">&-"])
def test_a_closed_stdout_is_no_error(tmp_path: Path, redirection: str):
    (tmp_path / "closes.py").write_text("import sys\nif sys.stdout is not None: sys.stdout.close()\n")
    command = f"{sys.executable} -m tilewright.cli run {tmp_path / 'closes.py'} {redirection}"
    run = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
