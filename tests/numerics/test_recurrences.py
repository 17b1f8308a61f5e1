"""Recurrences on CPUs against NumPy in float64, and which kernels their loops launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.passes.host_program import host_program
from tilewright.passes.program_memory import plan_memory
from tilewright.runtime.host_program import HostProgram, Launch, Step, While

INPUTS, HIDDEN = 24, 32
Arrays = tuple[np.ndarray[Any, Any], ...]


def weights(hidden: int = HIDDEN) -> Arrays:
    """The weights as PyTorch and ONNX store them, a row for each element of a gate, and a bias."""
    rng = np.random.default_rng(7)
    shapes = ((4 * hidden, INPUTS), (4 * hidden, hidden), (4 * hidden,))
    return tuple((rng.standard_normal(shape) * 0.2).astype(np.float32) for shape in shapes)


def sequence(steps: int, batch: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(steps).standard_normal((steps, batch, INPUTS)).astype(np.float32)


def lstm(x: Any, w: Any, r: Any, bias: Any) -> Any:
    """The hidden states of all steps, and how many steps there were."""
    products = x @ tw.permute_dims(w, (1, 0)) + bias
    recurrent = tw.permute_dims(r, (1, 0))

    def step(state: Any, product: Any) -> Any:
        h, c, count = state
        i, f, g, o = tw.split(product + h @ recurrent, 4, axis=-1)
        c = tw.sigmoid(f) * c + tw.sigmoid(i) * tw.tanh(g)
        h = tw.sigmoid(o) * tw.tanh(c)
        return (h, c, count + 1), h

    zeros = tw.zeros((x.shape[1], r.shape[1]), dtype=tw.f32)
    (_, _, count), states = tw.scan(step, (zeros, zeros, tw.zeros((), dtype=tw.i32)), products)
    return states, count


def lstm_of_numpy(x: np.ndarray[Any, Any], w: Any, r: Any, bias: Any) -> np.ndarray[Any, Any]:
    x, w, r, bias = (each.astype(np.float64) for each in (x, w, r, bias))
    h = c = np.zeros((x.shape[1], HIDDEN))
    states = np.zeros((len(x), *h.shape))

    def sigmoid(v: Any) -> Any:
        return 1 / (1 + np.exp(-v))

    for n in range(len(x)):
        i, f, g, o = np.split(x[n] @ w.T + bias + h @ r.T, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = states[n] = sigmoid(o) * np.tanh(c)
    return states


def steps_of(compiled: Any) -> HostProgram:
    unit = compiled.executable.unit
    return host_program(unit, plan_memory(unit), [each.sym_name for each in unit.kernels()])


def launches(program: HostProgram, steps: tuple[Step, ...], kind: str) -> list[Launch]:
    return [s for s in steps if isinstance(s, Launch) and program.kernels[s.kernel].startswith(kind)]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("steps", [0, 1, 9])
@pytest.mark.parametrize("captured", [False, True])
def test_lstm(steps: int, batch: int, captured: bool) -> None:
    x, held = sequence(steps, batch), weights()
    function = tw.jit((lambda x: lstm(x, *held)) if captured else lstm)
    states, count = function(x) if captured else function(x, *held)
    assert count == steps
    np.testing.assert_allclose(states, lstm_of_numpy(x, *held), atol=2e-6)


def test_captured_weights_are_laid_out_when_the_program_is_compiled() -> None:
    held = weights(160)  # so large that views of them are not computed by the compiler
    with tw.options(cache=False):
        compiled = tw.jit(lambda x: lstm(x, *held)[0]).lower(sequence(9, 1)).compile("cpu")
    program = steps_of(compiled)
    (loop,) = (step for step in program.steps if isinstance(step, While))
    constants = range(program.inputs + program.outputs, program.first_slot)
    readers = [step for step in launches(program, program.steps, "loop") if {*step.buffers} & {*constants}]
    assert not readers
    assert len(launches(program, loop.body, "contract")) == 1
    # The matmul of the gates, what follows it, the step's slice of the products, its state in the result, the count.
    assert len(launches(program, loop.body, "")) <= 6


def test_inputs_of_one_row_for_each_step_are_one_matmul() -> None:
    """The weights are read once, not once for each step."""
    w, _, bias = weights()
    with tw.options(cache=False):
        compiled = tw.jit(lambda x: x @ w.T + bias).lower(sequence(40, 1)).compile("cpu")
    (kernel,) = compiled.executable.unit.kernels()
    (cost,) = compiled.cost().kernels.values()
    assert kernel.sym_name.startswith("contract")
    assert cost.bytes < 2 * w.nbytes + 2 * 40 * (INPUTS + 4 * HIDDEN) * 4 + bias.nbytes * 40


def test_a_gradient_that_is_added_up_in_a_loop_is_one_kernel() -> None:
    """The gradient of a weight at batch 1: the sum of outer products, which are added to it in place."""
    x, d = sequence(9, 1), np.random.default_rng(3).standard_normal((9, 1, HIDDEN)).astype(np.float32)

    def gradient(x: Any, d: Any) -> Any:
        def step(total: Any, each: Any) -> Any:
            a, b = each
            return total + (b.T @ a).T, a[0, 0]

        return tw.scan(step, tw.zeros((INPUTS, HIDDEN), dtype=tw.f32), (x, d))[0]

    with tw.options(cache=False):
        compiled = tw.jit(gradient).lower(x, d).compile("cpu")
    expected = np.einsum("tbi,tbh->ih", x.astype(np.float64), d.astype(np.float64))
    np.testing.assert_allclose(compiled(x, d), expected, atol=1e-5)
    program = steps_of(compiled)
    (loop,) = (step for step in program.steps if isinstance(step, While))
    assert not launches(program, loop.body, "contract")


@pytest.mark.parametrize("steps", [2, 9, 40])
def test_the_gradient_of_an_unrolled_loop_is_one_matmul(steps: int) -> None:
    x = [sequence(n + 1, 4)[n] for n in range(steps)]
    d = [np.random.default_rng(n).standard_normal((4, HIDDEN)).astype(np.float32) for n in range(steps)]

    def gradient(x: Any, d: Any) -> Any:
        return sum(a.T @ b for a, b in zip(x, d, strict=True))

    with tw.options(cache=False):
        compiled = tw.jit(gradient).lower(x, d).compile("cpu")
    expected = sum(a.T.astype(np.float64) @ b for a, b in zip(x, d, strict=True))
    np.testing.assert_allclose(compiled(x, d), expected, atol=2e-5)
    program = steps_of(compiled)
    assert len(launches(program, program.steps, "contract")) == 1


def test_loops_in_loops() -> None:
    """A recurrence of two steps within each step, whose weights are captured, and a carried integer beside it."""
    _, r, _ = weights()
    square = r[:HIDDEN]

    def nested(h: Any) -> Any:
        def inner(_: Any, state: Any) -> Any:
            h, n = state
            return tw.tanh(h @ square.T), n + 1

        def outer(_: Any, state: Any) -> Any:
            return tw.fori_loop(0, 2, inner, state)

        return tw.fori_loop(0, 3, outer, (h, tw.zeros((), dtype=tw.i64)))

    h = sequence(1, 5)[0, :, :1] * np.ones((5, HIDDEN), np.float32)
    found, count = tw.jit(nested)(h)
    expected = h.astype(np.float64)
    for _ in range(6):
        expected = np.tanh(expected @ square.astype(np.float64).T)
    assert count == 6
    np.testing.assert_allclose(found, expected, atol=2e-6)
