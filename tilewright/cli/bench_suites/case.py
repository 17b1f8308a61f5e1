"""Benchmark cases: inputs, our function, and the same function for each peer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tilewright.dtypes import by_name
from tilewright.errors import CompilerBug

if TYPE_CHECKING:
    from tilewright.schedules import Schedule

Array = np.ndarray[Any, Any]

# An array of the library that a function is for.
LibraryArray: TypeAlias = Any

# For each library, a function of its module and one, two or three arrays.
UnaryPeers: TypeAlias = dict[str, Callable[[Any, Any], Any]]
BinaryPeers: TypeAlias = dict[str, Callable[[Any, Any, Any], Any]]
TernaryPeers: TypeAlias = dict[str, Callable[[Any, Any, Any, Any], Any]]

# One function, or several named ways of one library, of which the fastest counts.
Ways: TypeAlias = Callable[..., Any] | Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class Case:
    """One benchmark.

    `peers` maps a library of `PEERS` to a function of the library's module and its arrays (or to several, named); for
    onnxruntime, to a function of `onnx` and the NumPy inputs that gives a serialised model with inputs in order. Of a
    function that gives several arrays the first is compared. `unsupported` is the reason that a peer has no function.

    `flops` and `bytes` (arrays read and written once) are those of one call. `reference` is a function of `numpy` and
    the inputs, floats widened to f64; without it, NumPy's own is called with those. `tolerance` bounds the largest
    difference from its result over its largest element; `dtype` is the type that every library's result has.
    `compile_s`, where it is to be shown, measures how long our compiler takes for the inputs.
    """

    name: str
    make_inputs: Callable[[np.random.Generator], tuple[Array, ...]]
    ours: Callable[..., Any]
    peers: Mapping[str, Ways]
    flops: float
    bytes: float
    tolerance: float
    dtype: str = "f32"
    unsupported: Mapping[str, str] = field(default_factory=dict[str, str])
    reference: Callable[..., Any] | None = None
    compile_s: Callable[[tuple[Array, ...]], float] | None = None

    def expected(self, inputs: tuple[Array, ...]) -> Array:
        """The result of the reference on inputs widened to f64."""
        reference = self.reference or self.peers["numpy"]
        if not callable(reference):
            raise CompilerBug(f"the case `{self.name}` has several ways in NumPy and does not state its reference")
        return np.asarray(first(reference(np, *map(widened, inputs))))

    def compared(self, result: Array) -> Array:
        """The part of a result that the reference computes: all of it."""
        return result


@dataclass(frozen=True)
class DeviceCase(Case):
    """One benchmark on a GPU: arrays are large, and peers take them there.

    `cut` takes of a result the part that the reference gives. `multiplies` is the type of operands whose matrix
    instructions bound the case; None where memory does.
    """

    cut: Callable[[Array], Array] = np.asarray
    multiplies: str | None = None

    def compared(self, result: Array) -> Array:
        return self.cut(result)


def first(result: object) -> Any:
    """Select the array of a function's result that is compared."""
    several: Any = result
    return several[0] if isinstance(result, tuple | list) else result


@dataclass(frozen=True)
class CompilerCase:
    """Work of the compiler itself. `run` does it from the start; `limit_s` is how long it may take. `figures` makes of
    what it gives figures to show, and raises where the work is not good."""

    name: str
    run: Callable[[], Any]
    limit_s: float
    figures: Callable[[Any], Mapping[str, float]] = dict


@dataclass(frozen=True)
class Alternative:
    """Schedules that a program may have, by the names of its kernels, and the predicted time of the kernel that they
    are of."""

    schedules: Mapping[str, Schedule]
    predicted_s: float | None = None


@dataclass(frozen=True)
class ScheduleCase:
    """A program of f32 arrays whose schedule the cost model chooses. `alternatives`, of a number of threads, are by
    description the schedules to measure, the chosen one first. `ours` goes to worker processes: a function of a module,
    or one with arguments bound. `reference` is called with NumPy's f64."""

    name: str
    ours: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    reference: Callable[..., Any]
    alternatives: Callable[[int], Mapping[str, Alternative]]
    tolerance: float


@dataclass(frozen=True)
class ScalingCase:
    """A case of another suite that is measured with one thread and with all of them."""

    case: Case

    @property
    def name(self) -> str:
        return self.case.name


AnyCase: TypeAlias = Case | CompilerCase | ScheduleCase | ScalingCase


def widened(array: Array) -> Array:
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def error_bound(operations: float, terms: int = 1, dtype: str = "f32") -> float:
    """The rounding error to expect against an exact result, relative to its largest element.

    `operations` roundings of one element in a row (a function such as `exp` is worth four) and a sum of `terms`
    numbers, whose error grows as the square root of their count. Twice that leaves room for the worst of millions of
    elements, and none for a matmul in a narrower type. 16-bit floats are computed in f32 and rounded once."""
    kind = by_name(dtype)
    stored = kind.epsilon / 2 if kind.compute != kind else 0.0
    return (operations + 2 * math.sqrt(terms)) * kind.compute.epsilon / 2 + stored


def picked(extent: int, count: int = 64) -> Array:
    """So many indices of a dim, the first and the last among them; all where there are no more."""
    return np.unique(np.linspace(0, extent - 1, count).round().astype(np.int64))


def exact_erf(x: Array) -> Array:
    """The error function of f64, for references."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def normal(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Array, ...]]:
    """Inputs of these shapes: f32 from the standard normal distribution."""
    return lambda generator: tuple(generator.standard_normal(shape, dtype=np.float32) for shape in shapes)


def normal_of(dtype: str, *shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Array, ...]]:
    """The reference result, rounded to a type."""
    storage = by_name(dtype).numpy
    return lambda generator: tuple(array.astype(storage, copy=False) for array in normal(*shapes)(generator))


def onnx_model(
    onnx: ModuleType,
    inputs: tuple[Array, ...],
    nodes: Sequence[object],
    constants: Mapping[str, Array],
    opset: int = 20,
    result: Any = np.float32,
) -> bytes:
    """A serialised model whose inputs are `x0`, `x1`, ... and whose output is `y`, of NumPy's dtype `result`."""
    helper = onnx.helper
    sources = [
        helper.make_tensor_value_info(f"x{n}", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for n, array in enumerate(inputs)
    ]
    output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(result)), None)
    kept = [onnx.numpy_helper.from_array(np.asarray(value, order="C"), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "case", sources, [output], kept)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
