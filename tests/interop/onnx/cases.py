"""The backend tests of the `onnx` package, run one by one."""

from __future__ import annotations

import glob
import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

import tilewright as tw
from tests.interop.targets import CPU, is_grid, is_near, outcome_of

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")

# Tests whose expected values are rounding errors of the reference that are larger than the tolerance.
NOISE = {
    "test_dft_inverse": "1.9e-7 is expected where 0 is exact, at a tolerance of 1e-7",
    "test_dft_inverse_opset19": "1.9e-7 is expected where 0 is exact, at a tolerance of 1e-7",
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test: `state` is one of `tests.interop.targets.STATES`."""

    name: str
    state: str
    reason: str = ""
    operators: tuple[str, ...] = ()


def cases(kind: str) -> list[Any]:
    """All tests of a kind, in the order of their names."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return sorted(load_model_tests(kind=kind), key=lambda case: case.name)


def model_of(case: Any) -> Any:
    """The model of a test."""
    return case.model or onnx.load(os.path.join(case.model_dir, "model.onnx"))


def first_inputs(case: Any) -> list[Any]:
    """The inputs of a test's first data set."""
    return _data(case, model_of(case))[0][0]


def run_case(case: Any, target: str = CPU) -> Outcome:
    """Run a test on a target and compare: at its own tolerances on the cpu, else at the target's."""
    model = model_of(case)
    operators = tuple(sorted({f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in model.graph.node}))
    try:
        imported = tw.from_onnx(model, target=target)
        for inputs, expected in _data(case, model):
            result = imported(*inputs)
            results = [result] if len(model.graph.output) == 1 else list(result)
            try:
                _compare(expected, results, case, target)
            except (AssertionError, TypeError, AttributeError) as error:
                state = "noise" if case.name in NOISE else "wrong"
                return Outcome(case.name, state, NOISE.get(case.name, str(error)[:2000]), operators)
    except Exception as error:
        return Outcome(case.name, *outcome_of(error, target), operators)
    return Outcome(case.name, "passed", "", operators)


def _compare(expected: Any, found: Any, case: Any, target: str) -> None:
    """Raises what NumPy's assertions do. Sequences are compared item by item, which the suite's own function takes for
    rows of arrays."""
    if isinstance(expected, list):
        assert isinstance(found, list | tuple), f"{type(found).__name__} instead of a list"
        assert len(found) == len(expected), f"{len(found)} items instead of {len(expected)}"
        for wanted, given in zip(expected, found, strict=True):
            _compare(wanted, given, case, target)
        return
    if expected is None:
        assert found is None, "a value instead of nothing"
        return
    if is_grid(target):
        assert is_near(found, expected), f"{found} instead of {expected}"
        return
    Runner.assert_similar_outputs([np.asarray(expected)], [np.asarray(found)], case.rtol, case.atol)


def _data(case: Any, model: Any) -> list[tuple[list[Any], list[Any]]]:
    if case.data_sets is not None:
        return [tuple([_array(x) for x in part] for part in pair) for pair in case.data_sets]
    folders = sorted(glob.glob(os.path.join(case.model_dir, "test_data_set*")))
    return [
        (_read(folder, "input", model.graph.input), _read(folder, "output", model.graph.output)) for folder in folders
    ]


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _read(folder: str, what: str, declared: Any) -> list[Any]:
    files = glob.glob(os.path.join(folder, f"{what}_*.pb"))
    return [_stored(os.path.join(folder, f"{what}_{n}.pb"), declared[n].type) for n in range(len(files))]


def _stored(path: str, type: Any) -> Any:
    with open(path, "rb") as file:
        data = file.read()
    if type.HasField("sequence_type"):
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(data)
        return numpy_helper.to_list(sequence)
    if type.HasField("optional_type"):
        optional = onnx.OptionalProto()
        optional.ParseFromString(data)
        return numpy_helper.to_optional(optional)
    tensor = onnx.TensorProto()
    tensor.ParseFromString(data)
    return numpy_helper.to_array(tensor)
