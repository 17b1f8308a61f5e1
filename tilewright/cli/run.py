"""`tilewright run`: a Python file with the options of the command line, a saved program, or a model of ONNX or
StableHLO."""

from __future__ import annotations

import ast
import contextlib
import sys
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tilewright.cli import run_model
from tilewright.cli.flags import Flags, given_options, refuse_unused
from tilewright.cli.loading import find_file, random_array
from tilewright.cli.report import Report, bytes_text, seconds_text, show_pairs
from tilewright.errors import ArgumentError, TilewrightError, UnsupportedOnTargetError

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.interop.arguments import TensorSpec
    from tilewright.interop.onnx import OnnxModel
    from tilewright.interop.stablehlo.model import StableHloModel
    from tilewright.runtime.manifest import ArraySpec
    from tilewright.runtime.program import AnyProgram
    from tilewright.targets.base import Tensor

_WARM_UP_CALLS = 3


def run(
    file: Path,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    input: tuple[Path, ...] = (),
    repeat: int = 20,
    compare: str | None = None,
    flags: Flags | None = None,
) -> Report:
    """Run a Python file, a saved program (`.twp`), or a model of ONNX or StableHLO, with the options given as flags.

    A Python file runs as `__main__` with the arguments in `sys.argv`; where it defines `main()` and has no `if __name__
    == "__main__"` block, that is called. A saved program, or a model, runs on random inputs, or on `.npy` files, and is
    timed; for a model, the slowest kernels are shown, and the time of another library for comparison. Exits with 1 if
    the results differ from that library's.

    For example:

        tilewright run examples/01_sentence_embeddings.py "a cat" "a kitten"
        tilewright run model.twp --input x.npy --threads 2
        tilewright run model.onnx --input x.npy --compare onnxruntime

    Parameters
    ----------
    file
        A `.py`, `.twp`, `.onnx` or `.mlir` file.
    arguments
        Arguments of the Python file, in `sys.argv`. Write `--` before flags that are for it.
    input
        For a saved program or a model: one `.npy` file per input, in order.
    repeat
        For a saved program or a model: timed calls.
    compare
        For a model: the library to run it by, too: onnxruntime.
    """
    find_file(file)
    if compare is not None:
        if file.suffix != ".onnx":
            raise ArgumentError("`--compare` is for ONNX models", help="give an ONNX file")
        run_model.check_library(compare)
    if file.suffix == ".twp":
        refuse_unused("run", given_options(flags), is_compiled=True)
    if file.suffix in (".twp", ".onnx", ".mlir"):
        if arguments:
            raise ArgumentError(
                "a saved program, or a model, takes no arguments", help="give arrays with --input x.npy"
            )
        return _run_program(file, input, repeat) if file.suffix == ".twp" else _run_model(file, input, repeat, compare)
    if input:
        what = "`--input` is for saved programs and models"
        raise ArgumentError(what, help="give a Python file its arguments after its name")
    return _run_script(file, arguments, to_stderr=flags is not None and flags.json)


def _run_script(file: Path, arguments: Sequence[str], *, to_stderr: bool) -> Report:
    # With --json stdout holds the document alone.
    redirected = contextlib.redirect_stdout(sys.stderr) if to_stderr else contextlib.nullcontext()
    start = time.perf_counter()
    with redirected, _as_main(file, arguments) as module:
        exit_code = _execute(file, module)
    document = {"file": str(file), "exit_code": exit_code, "seconds": time.perf_counter() - start}
    return Report(document, None, exit_code)


@contextlib.contextmanager
def _as_main(file: Path, arguments: Sequence[str]) -> Generator[ModuleType]:
    """A module that stands in for `__main__`, with `sys.argv` and `sys.path` as Python sets them for a script."""
    module = ModuleType("__main__")
    module.__file__ = str(file)
    old_main, old_arguments, old_path = sys.modules["__main__"], sys.argv, list(sys.path)
    sys.modules["__main__"] = module
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        yield module
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = old_main, old_arguments, old_path


def _execute(file: Path, module: ModuleType) -> int:
    try:
        tree = ast.parse(file.read_bytes(), str(file))
        exec(compile(tree, str(file), "exec"), vars(module))
        entry = vars(module).get("main")
        if callable(entry) and not _runs_itself(tree):
            entry()
    except SystemExit as stop:
        return _exit_code(stop)
    except TilewrightError:
        raise
    except Exception as error:
        # The user's own error, shown as Python shows it, without our frames above it.
        traceback.print_exception(error.with_traceback(_skip_to(file, error.__traceback__)))
        return 1
    return 0


def _runs_itself(tree: ast.Module) -> bool:
    """Whether the file has a block for being run as a script."""
    return any(
        isinstance(statement, ast.If)
        and any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(statement.test))
        for statement in tree.body
    )


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    return 1


def _skip_to(file: Path, trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame of the file on; nothing where it has none, as for a syntax error."""
    while trace is not None and trace.tb_frame.f_code.co_filename != str(file):
        trace = trace.tb_next
    return trace


def _run_program(file: Path, inputs: Sequence[Path], repeat: int) -> Report:
    from tilewright.driver.saved import load_program

    program = load_program(file)
    arrays = _inputs(program.manifest.inputs, inputs)
    result, times = _timed(program, arrays, repeat)
    manifest = program.manifest
    return _describe(file, program, manifest.inputs, manifest.outputs, result, times)


def _run_model(file: Path, inputs: Sequence[Path], repeat: int, compare: str | None) -> Report:
    from tilewright.interop.importers import from_onnx, from_stablehlo
    from tilewright.interop.onnx import OnnxModel

    model = from_onnx(file) if file.suffix == ".onnx" else from_stablehlo(file)
    arrays = _inputs([_model_input(spec, given=bool(inputs)) for spec in model.inputs], inputs)
    if isinstance(model, OnnxModel) and model.host_nodes_for(*arrays):
        return _run_in_parts(file, model, arrays, repeat, compare)
    start = time.perf_counter()
    compiled = model.lower(*arrays).compile()
    compile_s = time.perf_counter() - start
    program = compiled.executable.program
    result, times = _timed(model, arrays, repeat)
    inputs_found, outputs_found, results = _all_found(model, arrays, result)
    described = _describe(file, program, inputs_found, outputs_found, result, times)
    threads = described.document["threads"]
    document: dict[str, Any] = {**described.document, "compile_s": compile_s}
    document["cache"] = compiled.executable.cache_state
    with contextlib.suppress(UnsupportedOnTargetError):  # kernels of some targets are not measured
        dynamic = model.dynamic(*arrays)
        document["kernels"] = run_model.kernel_documents(compiled.profile(*dynamic, repeat=repeat), threads)
    found = None if compare is None else run_model.compare(file, model, arrays, results, repeat, threads)
    if found is not None:
        document["compared"] = found.document()

    def show(console: Console) -> None:
        if described.show is not None:
            described.show(console)
        pairs: dict[str, object] = {"compiled in": f"{seconds_text(compile_s)}, cache {document['cache']}"}
        show_pairs(console, pairs if found is None else pairs | {found.library: found.text()})
        if "kernels" in document:
            run_model.show_kernels(console, document["kernels"])

    return Report(document, show, 0 if found is None or found.agrees else 1)


def _run_in_parts(file: Path, model: OnnxModel, arrays: Sequence[object], repeat: int, compare: str | None) -> Report:
    """A model with nodes on the host, which is no one program."""
    from tilewright.options import current
    from tilewright.runtime.cpu.features import default_threads

    start = time.perf_counter()
    model(*arrays)
    first_call_s = time.perf_counter() - start
    result, times = _timed(model, arrays, repeat)
    inputs, outputs, results = _all_found(model, arrays, result)
    threads = current().threads or default_threads()
    document = _call_document(file, inputs, outputs, results, times, threads)
    document |= {"first_call_s": first_call_s, "host_nodes": list(model.host_nodes)}
    found = None if compare is None else run_model.compare(file, model, arrays, results, repeat, threads)
    if found is not None:
        document["compared"] = found.document()

    def show(console: Console) -> None:
        pairs: dict[str, object] = {"model": "in parts, with nodes that run on the host between programs"}
        pairs |= {f"on the host {n}": text for n, text in enumerate(model.host_nodes, 1)}
        pairs |= _array_pairs(document, inputs, outputs)
        pairs["first call"] = seconds_text(first_call_s)
        pairs["time"] = _time_text(document)
        show_pairs(console, pairs if found is None else pairs | {found.library: found.text()})

    return Report(document, show, 0 if found is None or found.agrees else 1)


def _all_found(
    model: OnnxModel | StableHloModel, arrays: Sequence[object], result: Any
) -> tuple[list[ArraySpec], list[ArraySpec], list[Any]]:
    """Specifications of the inputs and outputs of a model in a call, and the results as a list."""
    inputs = [_found(spec, array) for spec, array in zip(model.inputs, arrays, strict=True)]
    results: list[Any] = [result] if len(model.outputs) == 1 else [*result]
    return inputs, [_found(spec, array) for spec, array in zip(model.outputs, results, strict=True)], results


def _found(spec: TensorSpec, array: Any) -> ArraySpec:
    """The specification of an input or output of a model in a call."""
    from tilewright.dtypes import from_numpy
    from tilewright.runtime.manifest import ArraySpec

    try:
        is_text = array.dtype.kind in "OU"
        return ArraySpec(spec.name, array.shape, "string" if is_text else from_numpy(array.dtype).name)
    except (AttributeError, KeyError):
        raise ArgumentError(f"{spec} is no array to describe", help="call the model with `tw.from_onnx`") from None


def _model_input(spec: TensorSpec, *, given: bool) -> ArraySpec:
    """An input of a model as one of a program; files determine the sizes that the model leaves open."""
    from tilewright.dtypes import DType
    from tilewright.interop.arguments import STRINGS
    from tilewright.runtime.manifest import ArraySpec

    sizes = [n for n in spec.shape or () if isinstance(n, int)]
    is_open = spec.shape is None or len(sizes) < len(spec.shape)
    if spec.dtype == STRINGS and given:
        return ArraySpec(spec.name, tuple(sizes), "string")
    if not isinstance(spec.dtype, DType) or (is_open and not given):
        message = f"the input {spec} has sizes that the model leaves open, or elements of no array type"
        raise ArgumentError(message, help="give each input with --input x.npy")
    return ArraySpec(spec.name, tuple(sizes), spec.dtype.name)


def _timed(function: Callable[..., object], arrays: Sequence[object], repeat: int) -> tuple[Any, list[float]]:
    """The result of a call, and the times of the next ones, shortest first."""
    if repeat < 1:
        raise ArgumentError(f"`--repeat` is {repeat}", help="time at least one call")
    result = function(*arrays)
    for _ in range(_WARM_UP_CALLS):
        function(*arrays)
    times: list[float] = []
    for _ in range(repeat):
        start = time.perf_counter()
        function(*arrays)
        times.append(time.perf_counter() - start)
    return result, sorted(times)


def _inputs(specs: Sequence[ArraySpec], files: Sequence[Path]) -> list[Tensor]:
    if not files:
        return [random_array(spec.shape, spec.dtype, seed) for seed, spec in enumerate(specs)]
    if len(files) != len(specs):
        wanted = ", ".join(f"{spec.name}: {spec}" for spec in specs)
        raise ArgumentError(f"the program takes {len(specs)} inputs, got {len(files)}", help=f"the inputs are {wanted}")
    arrays: list[Tensor] = []
    for file, spec in zip(files, specs, strict=True):
        array = _array_in(file)
        # NumPy's file format stores types that it does not know, such as bf16, as bytes of the same width.
        if array.dtype.kind == "V" and array.dtype.names is None:
            wanted = random_array((), spec.dtype, 0).dtype
            array = array.view(wanted) if array.itemsize == wanted.itemsize else array
        arrays.append(array)
    return arrays


def _array_in(file: Path) -> Tensor:
    from zipfile import BadZipFile

    import numpy as np

    path = find_file(file)
    try:
        # A header may state any shape, and a file that begins like an archive is opened as one.
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError, OverflowError, MemoryError, BadZipFile) as error:
        raise ArgumentError(f"{str(file)!r} is not a .npy file: {error}", help="write it with np.save") from None
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"{str(file)!r} is an archive of arrays", help="write each with np.save")
    return array


def _describe(
    file: Path,
    program: AnyProgram,
    inputs: Sequence[ArraySpec],
    outputs: Sequence[ArraySpec],
    result: object,
    times: list[float],
) -> Report:
    from tilewright.options import current
    from tilewright.runtime.cpu.features import default_threads

    manifest = program.manifest
    threads = current().threads or default_threads()
    results: list[Any] = [*result] if isinstance(result, tuple) else [result]
    document: dict[str, Any] = {
        "name": manifest.name,
        "triple": manifest.triple,
        "cpu": manifest.cpu,
        "features": list(manifest.features),
        "arena_bytes": manifest.memory_bytes(threads),
        "constants_bytes": sum(constant.nbytes for constant in manifest.constants),
        "estimated_s": manifest.estimated_seconds,
    }
    document = _call_document(file, inputs, outputs, results, times, threads) | document
    return Report(document, lambda console: _show_program(console, document, program, inputs, outputs))


def _call_document(
    file: Path,
    inputs: Sequence[ArraySpec],
    outputs: Sequence[ArraySpec],
    results: Sequence[object],
    times: Sequence[float],
    threads: int,
) -> dict[str, Any]:
    return {
        "file": str(file),
        "inputs": [_array_document(spec) for spec in inputs],
        "outputs": [_array_document(s) | _summary(a) for s, a in zip(outputs, results, strict=True)],
        "threads": threads,
        "calls": len(times),
        "median_s": times[len(times) // 2],
        "best_s": times[0],
    }


def _show_program(
    console: Console,
    document: dict[str, Any],
    program: AnyProgram,
    inputs: Sequence[ArraySpec],
    outputs: Sequence[ArraySpec],
) -> None:
    manifest = program.manifest
    pairs: dict[str, object] = {"program": f"{manifest.name} for {manifest.cpu} ({manifest.triple})"}
    pairs["features"] = " ".join(manifest.features)
    pairs |= _array_pairs(document, inputs, outputs)
    pairs["arena"] = f"{bytes_text(document['arena_bytes'])}, constants {bytes_text(document['constants_bytes'])}"
    pairs["time"] = _time_text(document)
    show_pairs(console, pairs)


def _array_pairs(
    document: dict[str, Any], inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec]
) -> dict[str, object]:
    pairs: dict[str, object] = {f"input {spec.name}": spec for spec in inputs}
    for spec, found in zip(outputs, document["outputs"], strict=True):
        values = "".join(f", {name} {found[name]:.6g}" for name in ("minimum", "maximum", "mean") if name in found)
        pairs[f"output {spec.name}"] = f"{spec}{values}"
    return pairs


def _time_text(document: dict[str, Any]) -> str:
    median, best = seconds_text(document["median_s"]), seconds_text(document["best_s"])
    return f"median {median}, best {best} of {document['calls']} calls, threads {document['threads']}"


def _array_document(spec: ArraySpec) -> dict[str, Any]:
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype}


def _summary(array: Any) -> dict[str, float]:
    """Smallest, largest and mean element; nothing of an empty array, or of strings."""
    import numpy as np

    if not array.size or array.dtype.kind in "OU":
        return {}
    wide = np.asarray(array, np.float64)
    return {"minimum": float(wide.min()), "maximum": float(wide.max()), "mean": float(wide.mean())}
