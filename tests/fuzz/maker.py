"""A program under construction: the graph, the bounded value of everything in it, and how operands are found."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from tests.fuzz.bounds import Oracle, Undecided
from tests.fuzz.intervals import Bounded, Tensor, widen
from tests.programs import Program
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import TilewrightError
from tilewright.frontend.trace import Graph, Value
from tilewright.primitives import ArrayType

SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 13, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129)
SMALL = (1, 2, 3, 4, 5, 6, 7)
ELEMENTS = 12_000
INPUTS = 7
SPECIAL_FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-45, 6e-8, 65504.0, 1e30, -3e38)

Shape = tuple[int, ...]


class Unsuitable(Exception):
    """A step found no operands or its result is not worth keeping."""


class Maker:
    """Adds primitives to a graph and evaluates each at once, so that steps can look at the values they work on.
    `allowed` are the element types that values may have; `oracle` says how exact results are."""

    def __init__(
        self, seed: int, allowed: Collection[DType] = dtypes.ALL, oracle: Callable[[Any], Oracle] = Oracle
    ) -> None:
        self.allowed = allowed
        self.random = np.random.default_rng(seed)
        self.graph = Program(f"seed_{seed}")
        self.oracle = oracle(self.graph.constants)
        self.inputs: list[Tensor] = []
        self.pool: list[Value] = []
        self.limit = ELEMENTS
        count = int(self.random.integers(2, 5))
        self.sizes = [int(self.random.choice(SIZES if self.chance(0.7) else SMALL)) for _ in range(count)]
        if self.chance(0.03):
            self.sizes[0] = 0
        floats = [dtypes.f32] * 6 + [dtypes.f64, dtypes.f16, dtypes.bf16, dtypes.f8e4m3fn, dtypes.f8e5m2]
        choices = (floats, dtypes.INTEGERS, [dtypes.bool_], dtypes.ALL)
        self.dtypes = [self.pick([d for d in of if d in allowed]) for of in choices]

    # ---- chance -------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def pick(self, choices: Sequence[Any]) -> Any:
        if not choices:
            raise Unsuitable
        return choices[int(self.random.integers(len(choices)))]

    def between(self, low: int, high: int) -> int:
        """Uniform, both ends included."""
        return int(self.random.integers(low, high + 1))

    def size(self) -> int:
        return self.pick(self.sizes) if self.chance(0.85) else int(self.pick(SIZES))

    def shape(self, low: int = 0, high: int = 4) -> Shape:
        """A shape with `low` to `high` axes that is not too large."""
        rank = min(max(low, int(self.pick((0, 1, 1, 2, 2, 2, 3, 3, 4)))), high)
        result: list[int] = []
        for _ in range(rank):
            room = self.limit // max(1, math.prod(result))
            n = self.size()
            result.append(n if n <= room else max(1, min(room, self.between(1, 5))))
        return tuple(result)

    def dtype(self, kinds: str = "fiub") -> DType:
        wanted = [d for d in self.dtypes if d.kind in kinds]
        return self.pick(wanted if wanted and self.chance(0.9) else [d for d in dtypes.ALL if d.kind in kinds])

    # ---- values -------------------------------------------------------------------------------------------------

    def data(self, shape: Shape, dtype: DType) -> Tensor:
        """Values of one of several flavours; small whole numbers make sums exact."""
        flavour = self.random.random()
        if dtype.is_bool:
            return self.random.random(shape) < self.pick((0.1, 0.5, 0.9))
        if dtype.is_integer:
            return self._integers(shape, dtype, flavour)
        if flavour < 0.5:
            raw = self.random.integers(-4, 5, shape) * self.pick((0.25, 1.0))
        elif flavour < 0.6:
            raw = self.random.random(shape) + 0.05
        else:
            raw = self.random.standard_normal(shape) * self.pick((0.5, 1.0, 3.0))
        values = np.array(raw, np.float64)
        if flavour > 0.93 and values.size:
            chosen = self.random.random(shape) < 0.15
            values = np.where(chosen, self.random.choice(SPECIAL_FLOATS, shape), values)
        with np.errstate(all="ignore"):
            return np.asarray(values).astype(dtype.numpy)

    def _integers(self, shape: Shape, dtype: DType, flavour: float) -> Tensor:
        info = np.iinfo(dtype.numpy)
        if flavour < 0.5:
            return self.random.integers(max(int(info.min), -9), 10, shape).astype(dtype.numpy)
        if flavour < 0.85:
            return self.random.integers(int(info.min), int(info.max), shape, dtype.numpy, endpoint=True)
        ends = np.array([info.min, info.max, 0, 1, info.max - 1, info.min + 1], dtype.numpy)
        return np.asarray(self.random.choice(ends, shape)).astype(dtype.numpy)

    def input(self, shape: Shape, dtype: DType, data: Tensor | None = None) -> Value:
        """A new program input.

        Raises:
            Unsuitable: its element type is not allowed.
        """
        if dtype not in self.allowed:
            raise Unsuitable
        return self._enter(self.graph.input(ArrayType(shape, dtype)), self.data(shape, dtype) if data is None else data)

    def _enter(self, value: Value, data: Tensor) -> Value:
        array = np.asarray(data).astype(value.dtype.numpy, copy=False)
        self.inputs.append(array)
        self.oracle.values[value] = Bounded(array)
        self.pool.append(value)
        return value

    def constant(self, data: Tensor) -> Value:
        """A captured array."""
        value = self.graph.constant(data, ArrayType(data.shape, dtypes.from_numpy(data.dtype)))
        return self._evaluated([value])[0]

    def scalar(self, value: float, dtype: DType) -> Value:
        plain: float | int = float(value) if dtype.is_float else int(value)
        return self.add("constant", value=plain, resource="", shape=(), dtype=dtype.name)[0]

    def splat(self, value: float, shape: Shape, dtype: DType) -> Value:
        return self.add("broadcast", [self.scalar(value, dtype)], shape=shape, axes=())[0]

    def known(self, value: Value) -> Bounded:
        return self.oracle.values[value]

    # ---- nodes --------------------------------------------------------------------------------------------------

    def add(self, op: str, operands: Sequence[Value] = (), **attributes: Any) -> tuple[Value, ...]:
        """Append a primitive and evaluate it.

        Raises:
            Unsuitable: it does not type, or gives too many elements.
        """
        try:
            results = self.graph.add(op, operands, **attributes)
        except TilewrightError as error:
            raise Unsuitable from error
        return self._evaluated(results)

    def map(self, fn: str, *operands: Value) -> Value:
        return self.add("map", operands, fn=fn)[0]

    def append(
        self, op: str, operands: Sequence[Value], types: Sequence[ArrayType], graphs: Sequence[Graph]
    ) -> tuple[Value, ...]:
        """Append control flow and evaluate it."""
        return self._evaluated(self.graph.append(op, operands, {}, types, graphs))

    def _evaluated(self, results: Sequence[Value]) -> tuple[Value, ...]:
        node = results[0].producer
        if node is None or sum(v.type.size for v in results) > 4 * self.limit:
            raise Unsuitable
        if any(v.dtype not in self.allowed for v in results):
            raise Unsuitable
        try:
            self.oracle.add(node)
        except Undecided as error:
            raise Unsuitable from error
        return tuple(results)

    def keep(self, *values: Value) -> Value:
        """Offer values to later steps.

        Raises:
            Unsuitable: too little is known about them.
        """
        for value in values:
            if not self._worthwhile(value):
                raise Unsuitable
        self.pool.extend(values)
        return values[0]

    def _worthwhile(self, value: Value) -> bool:
        known = self.known(value)
        if known.value.size == 0:
            return True
        if known.error is not None:
            if np.mean(known.unknown) > 0.05:
                return False
            finite = np.where(known.unknown, 0.0, known.error)
            with np.errstate(all="ignore"):
                vague = finite > 0.05 * (np.abs(np.nan_to_num(widen(known.value))) + 1)
            if np.mean(vague) > 0.2:
                return False
        if not value.dtype.is_float:
            return True
        lost = ~np.isfinite(widen(known.value))
        return bool(np.mean(lost) < 0.4) or self.chance(0.1)

    def attempt(self, step: Callable[[Maker], object]) -> bool:
        """Run a step; when it gives up, what it added is taken back."""
        nodes, pool, inputs = len(self.graph.nodes), len(self.pool), len(self.inputs)
        try:
            step(self)
        except Unsuitable:
            del self.graph.nodes[nodes:], self.pool[pool:], self.inputs[inputs:], self.graph.inputs[inputs:]
            return False
        return True

    # ---- operands -----------------------------------------------------------------------------------------------

    def choose(self, accepts: Callable[[Value], bool] = lambda v: True, fresh: float = 0.06) -> Value:
        """A value of the pool, recent ones more often.

        Raises:
            Unsuitable: none fits.
        """
        fitting = [v for v in self.pool if accepts(v)]
        if not fitting or (len(self.inputs) < INPUTS and self.chance(fresh)):
            made = self.source()
            if accepts(made):
                return made
        if not fitting:
            raise Unsuitable
        at = len(fitting) - 1 - int(self.random.exponential(3.0)) if self.chance(0.7) else self.between(0, 10**6)
        return fitting[at % len(fitting)]

    def source(self) -> Value:
        """A new array from nowhere: input, captured array, iota."""
        shape, dtype = self.shape(), self.dtype()
        if len(self.inputs) < INPUTS and self.chance(0.7):
            return self.input(shape, dtype)
        if shape and not dtype.is_bool and self.chance(0.4):
            return self.add("iota", shape=shape, dtype=dtype.name, axis=self.between(0, len(shape) - 1))[0]
        return self.constant(np.ascontiguousarray(self.data(shape, dtype)).reshape(shape))

    def like(self, shape: Shape, dtype: DType) -> Value:
        """A value of a given type: from the pool, broadcast to it, or new."""
        same = [v for v in self.pool if v.shape == shape and v.dtype == dtype]
        if same and self.chance(0.6):
            return self.pick(same)
        if self.chance(0.35):
            spread = self._broadcastable(shape, dtype)
            if spread is not None:
                return spread
        if self.chance(0.25):
            other = [v for v in self.pool if v.shape == shape]
            if other:
                return self.add("cast", [self.pick(other)], dtype=dtype.name)[0]
        return self._made(shape, dtype)

    def _made(self, shape: Shape, dtype: DType) -> Value:
        kind = self.random.random()
        if kind < 0.3:
            return self.splat(self.small(dtype), shape, dtype)
        if kind < 0.45 and shape and not dtype.is_bool:
            return self.add("iota", shape=shape, dtype=dtype.name, axis=self.between(0, len(shape) - 1))[0]
        if kind < 0.7 or len(self.inputs) >= INPUTS:
            axes = tuple(d for d in range(len(shape)) if self.chance(0.6))
            part = tuple(shape[d] for d in axes)
            made = self.constant(np.ascontiguousarray(self.data(part, dtype)).reshape(part))
            return self.add("broadcast", [made], shape=shape, axes=axes)[0] if part != shape else made
        return self.input(shape, dtype)

    def small(self, dtype: DType) -> float:
        if dtype.is_bool:
            return float(self.chance(0.5))
        values = (0, 1, 2, 3, 5) if dtype.kind == "u" else (0, 1, 2, -1, -3, 5)
        if dtype.is_float and self.chance(0.5):
            return float(self.pick((0.5, 0.25, 1.5, -0.75, 3.0, -0.0, 4.0)))
        return float(self.pick(values))

    def _broadcastable(self, shape: Shape, dtype: DType) -> Value | None:
        for value in self.random.permutation(np.array([*self.pool, None], dtype=object))[:12]:
            if value is None or value.dtype != dtype or len(value.shape) > len(shape):
                continue
            axes = _match_axes(value.shape, shape)
            if axes is not None and value.shape != shape:
                return self.add("broadcast", [value], shape=shape, axes=axes)[0]
        return None

    def bounded_between(self, x: Value, low: float, high: float) -> Value:
        """The value, clipped if it leaves the interval."""
        wide = widen(self.known(x).value)
        if wide.size and np.any((wide < low) | (wide > high)):
            x = self.map("maximum", x, self.splat(low, x.shape, x.dtype))
            x = self.map("minimum", x, self.splat(high, x.shape, x.dtype))
        return x

    def magnitude(self, x: Value) -> float:
        wide = np.abs(widen(self.known(x).value))
        finite = wide[np.isfinite(wide)]
        return float(finite.max()) if finite.size else 0.0


def _match_axes(shape: Shape, target: Shape) -> tuple[int, ...] | None:
    """Increasing axes of `target` that a shape broadcasts along, from the right."""
    axes: list[int] = []
    position = len(target) - 1
    for n in reversed(shape):
        while position >= 0 and target[position] != n and n != 1:
            position -= 1
        if position < 0:
            return None
        axes.append(position)
        position -= 1
    return tuple(reversed(axes))
