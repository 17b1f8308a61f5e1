"""Programs whose steps depend on the step before: integrators of equations, and recurrent layers of ONNX models."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType

import numpy as np

import tilewright as tw
from tilewright.cli.bench_suites.case import Array, Case, LibraryArray, error_bound, normal, onnx_model
from tilewright.cli.bench_suites.model_support import OnnxGraph
from tilewright.errors import ResourceUnavailable

# What is added to squared distances, so that bodies that meet do not divide by zero; and the length of a step.
_SOFTENING, _STEP = 0.05, 0.001
# The errors of a step are passed on to the next ones.
_PASSED_ON = 16.0


def cases(quick: bool) -> tuple[Case, ...]:
    if quick:
        return (_bodies(5, 3), _recurrent("LSTM", 3, 2, 4, 5, 2), _recurrent("GRU", 3, 2, 4, 5, 1))
    return (
        _bodies(64, 50),
        _bodies(128, 20),
        _bodies(256, 20),
        *(_solved(name, equation, size) for name, (equation, size) in _EQUATIONS.items()),
        _recurrent("LSTM", 40, 1, 96, 48, 2),
        _recurrent("LSTM", 80, 1, 512, 256, 2),
        _recurrent("LSTM", 64, 8, 128, 128, 1),
        _recurrent("LSTM", 40, 32, 256, 256, 1),
        _recurrent("GRU", 64, 1, 128, 128, 2),
        _recurrent("GRU", 64, 8, 256, 256, 1),
        _text_lines(32, 320),
    )


# ---- bodies that attract each other ----------------------------------------------------------------------------------


def _bodies(count: int, steps: int) -> Case:
    """Bodies of equal masses in three dimensions: each step adds up the forces of all pairs."""

    def step(library: ModuleType, at: LibraryArray, speed: LibraryArray) -> tuple[LibraryArray, LibraryArray]:
        apart = at[None, :, :] - at[:, None, :]
        squared = (apart * apart).sum(axis=-1) + _SOFTENING
        force = (apart / (squared * library.sqrt(squared))[:, :, None]).sum(axis=1)
        faster = speed + _STEP * force
        return at + _STEP * faster, faster

    @tw.jit
    def ours(at: tw.Array, speed: tw.Array) -> tw.Array:
        def body(n: tw.Array, both: tuple[tw.Array, tw.Array]) -> tuple[tw.Array, tw.Array]:
            return step(tw, *both)

        return tw.fori_loop(0, steps, body, (at, speed))[0]

    def of_numpy(numpy: ModuleType, at: LibraryArray, speed: LibraryArray) -> LibraryArray:
        for _ in range(steps):
            at, speed = step(numpy, at, speed)
        return at

    def of_jax(jax: ModuleType, at: LibraryArray, speed: LibraryArray) -> LibraryArray:
        def body(n: LibraryArray, both: tuple[LibraryArray, LibraryArray]) -> tuple[LibraryArray, LibraryArray]:
            return step(jax.numpy, *both)

        return jax.lax.fori_loop(0, steps, body, (at, speed))[0]

    return Case(
        name=f"{count} bodies, {steps} steps",
        make_inputs=normal((count, 3), (count, 3)),
        ours=ours,
        peers={"numpy": of_numpy, "jax": of_jax},
        flops=20.0 * count * count * steps,
        bytes=36.0 * count,
        tolerance=_PASSED_ON * error_bound(4, count),
    )


# ---- equations that an adaptive integrator solves --------------------------------------------------------------------


def _lorenz(library: ModuleType, y: LibraryArray) -> LibraryArray:
    return library.stack([10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]])


def _pendulum(library: ModuleType, y: LibraryArray) -> LibraryArray:
    return library.stack([y[1], -9.81 * library.sin(y[0]) - 0.1 * y[1]])


def _network(library: ModuleType, y: LibraryArray) -> LibraryArray:
    first, second = _network_weights()
    return library.tanh(y @ first) @ second - y


@cache
def _network_weights() -> tuple[Array, Array]:
    first, second = normal((32, 64), (64, 32))(np.random.default_rng(1))
    return first * np.float32(0.2), second * np.float32(0.2)


_Equation = Callable[[ModuleType, LibraryArray], LibraryArray]
_EQUATIONS: dict[str, tuple[_Equation, tuple[int, ...]]] = {
    "Lorenz system": (_lorenz, (3,)),
    "pendulum": (_pendulum, (2,)),
    "network of 8x32": (_network, (8, 32)),
}
_TIMES, _END = 20, 0.5


def _solved(name: str, equation: _Equation, shape: tuple[int, ...]) -> Case:
    """The equation's values at some times, by JAX's adaptive integrator, whose steps both libraries take."""

    def of_jax(jax: ModuleType, start: LibraryArray) -> LibraryArray:
        odeint = importlib.import_module("jax.experimental.ode").odeint
        times = jax.numpy.linspace(0.0, _END, _TIMES, dtype="float32")

        def slope(y: LibraryArray, t: LibraryArray) -> LibraryArray:
            return equation(jax.numpy, y)

        return odeint(slope, start, times, rtol=1e-5, atol=1e-5)

    @cache
    def program() -> Callable[..., LibraryArray]:
        if importlib.util.find_spec("jax") is None:
            help = "pip install jax, or choose other cases with --case"
            raise ResourceUnavailable("the integrator is JAX's, which is not installed", help=help)
        from tilewright.interop.importers import from_jax

        jax = importlib.import_module("jax")
        return from_jax(partial(of_jax, jax), np.zeros(shape, np.float32))

    def ours(start: Array) -> LibraryArray:
        return program()(start)

    return Case(
        name=f"odeint of a {name}",
        make_inputs=normal(shape),
        ours=ours,
        peers={"jax": of_jax},
        flops=0.0,
        bytes=0.0,
        tolerance=1e-3,
        reference=partial(_in_small_steps, equation),
    )


def _in_small_steps(equation: _Equation, numpy: ModuleType, start: Array) -> Array:
    """The classical method of Runge and Kutta, of fourth order."""
    small, found = 200, [start]
    h, y = _END / (_TIMES - 1) / small, start
    for _ in range(_TIMES - 1):
        for _ in range(small):
            first = equation(numpy, y)
            second = equation(numpy, y + h / 2 * first)
            third = equation(numpy, y + h / 2 * second)
            y = y + h / 6 * (first + 2 * second + 2 * third + equation(numpy, y + h * third))
        found.append(y)
    return np.stack(found)


# ---- recurrent layers of ONNX models ---------------------------------------------------------------------------------

_GATES = {"LSTM": 4, "GRU": 3}


def _weights(kind: str, inputs: int, hidden: int, directions: int, seed: int = 2) -> tuple[Array, Array, Array]:
    """The operands W, R and B of ONNX's operator."""
    rows = _GATES[kind] * hidden
    w, r, b = normal((directions, rows, inputs), (directions, rows, hidden), (directions, 2 * rows))(
        np.random.default_rng(seed)
    )
    scale = np.float32(hidden**-0.5)
    return w * scale, r * scale, b * scale


def _recurrent(kind: str, steps: int, batch: int, inputs: int, hidden: int, directions: int) -> Case:
    """A layer of ONNX's LSTM or GRU, with captured weights."""
    weights = _weights(kind, inputs, hidden, directions)
    direction = "bidirectional" if directions == 2 else "forward"

    def model(onnx: ModuleType, x: Array) -> bytes:
        graph = OnnxGraph(onnx)
        names = [graph.constant(name, value) for name, value in zip("WRB", weights, strict=True)]
        graph.add(kind, "x0", *names, output="y", hidden_size=hidden, direction=direction)
        return onnx_model(onnx, (x,), graph.nodes, graph.constants)

    def reference(numpy: ModuleType, x: Array) -> Array:
        found: list[Array] = []
        for n in range(directions):
            w, r, b = (each[n].astype(np.float64) for each in weights)
            along = x[::-1] if n else x
            each = _REFERENCES[kind](along @ w.T + b[: len(w)], r, b[len(w) :])
            found.append(each[::-1] if n else each)
        return np.stack(found, 1)

    multiplied = steps * batch * directions * _GATES[kind] * hidden * (inputs + hidden)
    way = ", both ways" if directions == 2 else ""
    return _of_model(
        f"{kind} {steps}x{batch}, {inputs} to {hidden}{way}",
        model,
        (steps, batch, inputs),
        2.0 * multiplied,
        _PASSED_ON * error_bound(4, inputs + hidden),
        reference,
    )


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _lstm(projected: Array, r: Array, bias: Array) -> Array:
    """The states of all steps (steps, batch, hidden), of inputs times weights; gates in ONNX's order."""
    size = r.shape[1]
    state = cell = np.zeros((projected.shape[1], size))
    found: list[Array] = []
    for step in projected:
        gates = step + state @ r.T + bias
        i, o, f, c = (gates[:, n * size : (n + 1) * size] for n in range(4))
        cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(c)
        state = _sigmoid(o) * np.tanh(cell)
        found.append(state)
    return np.stack(found)


def _gru(projected: Array, r: Array, bias: Array) -> Array:
    size = r.shape[1]
    state = np.zeros((projected.shape[1], size))
    found: list[Array] = []
    for step in projected:
        past = state @ r[: 2 * size].T + bias[: 2 * size] + step[:, : 2 * size]
        z, reset = _sigmoid(past[:, :size]), _sigmoid(past[:, size:])
        new = np.tanh(step[:, 2 * size :] + (reset * state) @ r[2 * size :].T + bias[2 * size :])
        state = (1 - z) * new + z * state
        found.append(state)
    return np.stack(found)


_REFERENCES = {"LSTM": _lstm, "GRU": _gru}


def _text_lines(height: int, width: int) -> Case:
    """A reader of text lines: five convolutions, whose columns are the steps of two LSTMs, both ways."""
    hidden, classes = 48, 96
    widths = (1, 16, 32, 64, 96, 96)

    def model(onnx: ModuleType, x: Array) -> bytes:
        graph, value, generator = OnnxGraph(onnx), "x0", np.random.default_rng(3)
        for n, (before, after) in enumerate(itertools.pairwise(widths)):
            w, b = normal((after, before, 3, 3), (after,))(generator)
            w *= np.float32((9 * before) ** -0.5)
            names = graph.constant(f"w{n}", w), graph.constant(f"b{n}", b)
            value = graph.add("Conv", value, *names, pads=[1, 1, 1, 1])
            value = graph.add("Relu", value)
            down = [2, 2] if n < 2 else [2, 1]
            value = graph.add("MaxPool", value, kernel_shape=down, strides=down)
        shape = graph.constant("lines", np.array([x.shape[0], widths[-1], -1], np.int64))
        value = graph.add("Transpose", graph.add("Reshape", value, shape), perm=[2, 0, 1])
        for n, size in enumerate((widths[-1], 2 * hidden)):
            parts = zip("WRB", _weights("LSTM", size, hidden, 2, n), strict=True)
            names = [graph.constant(f"{name}{n}_", each) for name, each in parts]
            value = graph.add("LSTM", value, *names, hidden_size=hidden, direction="bidirectional")
            value = graph.add("Transpose", value, perm=[0, 2, 1, 3])
            value = graph.add("Reshape", value, graph.constant(f"s{n}", np.array([0, 0, -1], np.int64)))
        w, _ = normal((2 * hidden, classes), (1,))(generator)
        value = graph.add("MatMul", value, graph.constant("classes", w * np.float32(0.1)))
        graph.add("Softmax", value, axis=-1, output="y")
        return onnx_model(onnx, (x,), graph.nodes, graph.constants)

    flops, area = 0.0, height * width
    for n, (before, after) in enumerate(itertools.pairwise(widths)):
        flops += 18.0 * before * after * area
        area //= 4 if n < 2 else 2
    return _of_model(f"text line {height}x{width}", model, (1, 1, height, width), flops, 1e-3)


def _of_model(
    name: str,
    model: Callable[[ModuleType, Array], bytes],
    shape: tuple[int, ...],
    flops: float,
    tolerance: float,
    reference: Callable[[ModuleType, Array], Array] | None = None,
) -> Case:
    """An ONNX model of one input, whose reference is ONNX Runtime where none is given."""

    @cache
    def program() -> Callable[..., LibraryArray]:
        from tilewright.interop.importers import from_onnx

        return from_onnx(model(_required("onnx"), np.zeros(shape, np.float32)))

    def ours(x: Array) -> LibraryArray:
        return program()(x)

    def elsewhere(numpy: ModuleType, x: Array) -> Array:
        runtime = _required("onnxruntime")
        narrow = x.astype(np.float32)
        session = runtime.InferenceSession(model(_required("onnx"), narrow), providers=["CPUExecutionProvider"])
        return session.run(None, {"x0": narrow})[0]

    return Case(
        name=name,
        make_inputs=normal(shape),
        ours=ours,
        peers={"onnxruntime": model},
        flops=flops,
        bytes=0.0,
        tolerance=tolerance,
        reference=reference or elsewhere,
    )


def _required(module: str) -> ModuleType:
    if importlib.util.find_spec(module) is None:
        help = f"pip install {module}, or choose other cases with --case"
        raise ResourceUnavailable(f"models of ONNX need {module}, which is not installed", help=help)
    if module == "onnx":
        importlib.import_module("onnx.numpy_helper")
    return importlib.import_module(module)
