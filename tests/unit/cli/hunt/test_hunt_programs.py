"""Random programs of hunts: libraries agree on them, and they pass through JSON."""

from __future__ import annotations

import random

import jax
import msgspec
import numpy as np
import pytest
import torch

import tilewright as tw
from tests.sampling import count
from tilewright.cli import bench_peers
from tilewright.cli.check import relative_difference
from tilewright.cli.hunt import draw as drawing
from tilewright.cli.hunt.draw import draw
from tilewright.cli.hunt.operators import OPERATORS, form_of
from tilewright.cli.hunt.operators.base import Call
from tilewright.cli.hunt.program import Input, Program, Step, Type, read_program, types_of
from tilewright.cli.hunt.worker import case_of
from tilewright.errors import ArgumentError, TilewrightError

LIBRARIES = ("numpy", "tilewright", "jax", "torch")
# Shapes that all operators take, each some of them.
TYPES = (Type((60, 8), "f32"), Type((2, 4, 9, 8), "f32"), Type((100,), "f64"), Type((3, 50), "i32"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_LEAST_BYTES", 1 << 10)
    monkeypatch.setattr(drawing, "_MOST_BYTES", 1 << 14)


def call_of(name: str, seed: int) -> Program | None:
    """A program of one operator, of the first type that it takes."""
    generator = random.Random(seed)
    for type in TYPES:
        call = OPERATORS[name].draw(generator, 0, type)
        if call is not None:
            return of_call(name, type, call)
    return None


def of_call(name: str, type: Type, call: Call) -> Program:
    inputs, operands = [Input(type.shape, type.dtype)], []
    for operand in call.operands:
        operands.append(operand if isinstance(operand, int) else len(inputs))
        if isinstance(operand, Type):
            inputs.append(Input(operand.shape, operand.dtype))
    return Program(tuple(inputs), (Step(name, tuple(operands), call.parameters),))


def results(program: Program) -> dict[str, np.ndarray]:
    arrays = program.arrays(np.random.default_rng(0))
    with jax.enable_x64(True):
        return {
            "numpy": np.asarray(program.run("numpy", np, arrays)),
            "tilewright": np.asarray(tw.jit(lambda *xs: program.run("tilewright", tw, xs))(*arrays)),
            "jax": np.asarray(program.run("jax", jax.numpy, [jax.numpy.asarray(each) for each in arrays])),
            "torch": program.run("torch", torch, [torch.from_numpy(each) for each in arrays]).numpy(),
        }


@pytest.mark.parametrize("name", OPERATORS)
def test_libraries_agree_on_each_operator(name: str) -> None:
    programs = [program for seed in range(count(2, 4)) if (program := call_of(name, seed)) is not None]
    assert programs
    for program in programs:
        if program.steps[0].parameters.get("dtype") == "bf16":
            continue  # torch gives NumPy no such array
        found = results(program)
        expected = found.pop("numpy").astype(np.float64)
        (type,) = types_of(program)[-1:]
        assert expected.shape == type.shape
        for library, result in found.items():
            assert relative_difference(result.astype(np.float64), expected) < 2e-3, (library, str(program))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # quotients of zeros
@pytest.mark.usefixtures("small")
def test_drawn_programs_are_right_and_differ() -> None:
    programs = [draw(seed) for seed in range(40)]
    assert len({str(program) for program in programs}) == 40
    assert str(draw(7)) == str(programs[7])
    for program in programs:
        case = case_of(program)
        arrays = case.make_inputs(np.random.default_rng(0))
        found, expected = np.asarray(case.ours(*arrays)), case.expected(arrays)
        assert relative_difference(found.astype(np.float64), expected.astype(np.float64)) <= case.tolerance, str(
            program
        )


@pytest.mark.parametrize(
    ("dtype", "op", "tolerance"),
    [("f64", "exp", 1e-9), ("f64", "gelu", 1e-6), ("f32", "gelu", 2e-3), ("i32", "abs", 0)],
)
def test_tolerances_are_of_the_narrowest_type(dtype: str, op: str, tolerance: float) -> None:
    assert case_of(Program((Input((4,), dtype),), (Step(op, (0,)),))).tolerance == tolerance


@pytest.mark.parametrize("form", ["contiguous", "transposed", "strided"])
def test_inputs_are_laid_out_as_they_say(form: str) -> None:
    (array,) = Program((Input((6, 10), "f32", form),), ()).arrays(np.random.default_rng(0))
    assert (array.shape, array.dtype) == ((6, 10), np.float32)
    assert array.strides == {"contiguous": (40, 4), "transposed": (4, 24), "strided": (80, 8)}[form]


@pytest.mark.usefixtures("small")
def test_programs_pass_through_json() -> None:
    for seed in range(20):
        program = draw(seed)
        assert read_program(msgspec.json.encode(program)) == program


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"inputs": [], "steps": [{"op": "exp", "operands": [0]}]}',
        '{"inputs": [{"shape": [2]}], "steps": [{"op": "eval", "operands": [0]}]}',
        '{"inputs": [{"shape": [2]}], "steps": [{"op": "exp", "operands": [1]}]}',
        '{"inputs": [{"shape": [2]}], "steps": []}',
        '{"inputs": [{"shape": [-2]}], "steps": [{"op": "exp", "operands": [0]}]}',
        '{"inputs": [{"shape": [2], "dtype": "f31"}], "steps": [{"op": "exp", "operands": [0]}]}',
        '{"inputs": [{"shape": [2], "form": "round"}], "steps": [{"op": "exp", "operands": [0]}]}',
        '{"inputs": [{"shape": [], "form": "strided"}], "steps": [{"op": "exp", "operands": [0]}]}',
        '{"other": ' + "[" * 100_000,
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"no program|no operator|no array"):
        read_program(text)


@pytest.mark.parametrize(
    "step",
    [
        Step("sum", (0,), {"axis": 9}),
        Step("sum", (0,), {"axes": [9], "keep": 0}),
        Step("sum", (0,), {"axes": "x", "keep": 0}),
        Step("sum", ()),
        Step("exp", (0, 0)),
        Step("cast", (0,)),
        Step("cast", (0,), {"dtype": "f31"}),
        Step("matmul", (0, 0)),
    ],
)
def test_steps_that_no_operator_takes_are_refused(step: Step) -> None:
    with pytest.raises(TilewrightError):
        case_of(Program((Input((4, 5)),), (step,)))


def test_libraries_without_an_operator_are_refused() -> None:
    with pytest.raises(ArgumentError, match="onnxruntime has no operator `conv`"):
        form_of("conv", "onnxruntime")


@pytest.mark.parametrize("form", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_of_peers_have_memory_of_their_own(library: str, form: str) -> None:
    """A view takes no time, but what reads it does."""
    program = Program((Input((60, 300), "f32", form),), (Step("transpose", (0,), {"axes": [1, 0]}),))
    case = case_of(program)
    (array,) = case.make_inputs(np.random.default_rng(0))
    given = torch.from_numpy(array) if library == "torch" else array
    result = np.asarray(case.peers[library](torch if library == "torch" else np, given))
    assert result.flags.c_contiguous
    assert not np.may_share_memory(result, array)
    np.testing.assert_array_equal(result, array.T)


@pytest.mark.parametrize("form", ["contiguous", "transposed", "strided"])
def test_jax_views_the_memory_of_inputs_itself(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(bench_peers, "_jax_module", lambda: jax)  # a bench sets types of 64 bits for the process
    program = Program((Input((60, 300), "f32", form),), (Step("exp", (0,)),))
    case = case_of(program)
    inputs = case.make_inputs(np.random.default_rng(0))
    runner = bench_peers.prepare("jax", case, inputs, 1)[""]
    np.testing.assert_allclose(runner.to_numpy(runner.call()), np.exp(inputs[0]), rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "dtype", "is_left_out"), [("matmul", "f16", True), ("matmul", "f32", False), ("exp", "f16", False)]
)
def test_numpy_multiplies_no_narrow_floats(op: str, dtype: str, is_left_out: bool) -> None:
    operands = (0, 1) if op == "matmul" else (0,)
    program = Program((Input((8, 8), dtype),) * len(operands), (Step(op, operands),))
    assert ("numpy" in case_of(program).unsupported) == is_left_out


def test_references_are_in_f64_after_casts() -> None:
    """NumPy multiplies no bf16."""
    steps = (Step("cast", (0,), {"dtype": "bf16"}), Step("matmul", (2, 1)))
    case = case_of(Program((Input((3, 5)), Input((5, 4), "bf16")), steps))
    x, y = case.make_inputs(np.random.default_rng(0))
    rounded = x.astype(y.dtype).astype(np.float64)
    np.testing.assert_allclose(case.expected((x, y)), rounded @ y.astype(np.float64))
