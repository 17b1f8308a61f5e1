"""From a family of traces to one program of the largest sizes that takes the real ones as arguments.

Each value of the trace becomes a padded one: real elements in front along each axis (see `axes`), anything after them.
An operation that would read the padding (a reduction, a contraction, a window) reads a neutral element there instead: a
select on positions below the real size. A value that was so masked stays masked for later readers, and the known
contents of its padding are kept in `fills`, so that one mask serves a whole softmax.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from tilewright import dtypes, primitives
from tilewright.errors import SourceLocation
from tilewright.frontend.sizes.axes import Axes, Axis, is_padded, plain
from tilewright.frontend.sizes.family import Family, NotUniform, Sizes, Trace, varies
from tilewright.frontend.trace import Graph, Node, Value
from tilewright.primitives import ArrayType

# Gives an argument of the padded program from the trace at the sizes of a call.
Reading = Callable[[Trace], Any]

_POSITIONS = dtypes.i32


class Fill(msgspec.Struct, frozen=True):
    """The value of the padding along an axis, a scalar array. `or_nan`: or NaN, where all real elements along that axis
    are NaN too."""

    value: Any
    or_nan: bool = False

    def is_value(self, value: object, *, nan_passes: bool = False) -> bool:
        """Whether it is just this one; with `nan_passes` where NaN would be the result of a NaN anyway."""
        return bool(self.value == value) and (nan_passes or not self.or_nan)


class Origin(msgspec.Struct, frozen=True):
    """The role of a value for another one, `of`: its `maximum`, its `sum`, or the `inverse` of its sum along `axis`.

    `axes[i]` is the axis of `of` that axis i goes along; None for one along which it is repeated.
    """

    kind: str
    of: Value
    axis: int
    axes: tuple[int | None, ...]

    def belongs_to(self, value: Value) -> bool:
        """Whether it is next to `value` as what it was made of."""
        if self.of is not value:
            return False
        repeated = (d == self.axis or value.shape[d] == 1 for d in range(len(self.axes)))
        return all(a == d or (a is None and r) for d, (a, r) in enumerate(zip(self.axes, repeated, strict=True)))


class Padded(msgspec.Struct, frozen=True):
    """A value of the padded program.

    Attributes:
        axes: how much of each axis is real.
        fills: what the padding along an axis holds, where it is known.
        everywhere: the one number that all elements are, padding included, if it is known.
        origin: what it is of another value, where that states something of padding.
        mark: "shifted" for what its maximum was subtracted from, "weights" for exponentials of that.
        marked_axis: the axis of that maximum.
    """

    value: Value
    axes: Axes
    fills: Mapping[int, Fill] = msgspec.field(default_factory=dict[int, Fill])
    everywhere: Any = None
    origin: Origin | None = None
    mark: str = ""
    marked_axis: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape


class Parameter(msgspec.Struct, frozen=True):
    """An argument of the padded program after those of the function, and how a trace indicates it."""

    type: ArrayType
    reading: Reading


class Step:
    """One operation of the family: what the rules see of it."""

    def __init__(self, family: Family, number: int) -> None:
        self._family = family
        self.number = number
        self.node = family.largest.nodes[number]
        self.op = self.node.op
        self.operands = [family.largest.numbers[v] for v in self.node.operands]
        self.results = [family.largest.numbers[v] for v in self.node.results]
        self._asked: set[str] = set()

    def sizes(self, value: int) -> tuple[Sizes, ...]:
        """The sizes of a value, by its number."""
        return self._family.shape(value)

    def each(self, key: str) -> list[Any]:
        """An attribute in each trace."""
        self._asked.add(key)
        return self._family.attribute(self.number, key)

    def vectors(self, key: str) -> list[Sizes]:
        """An attribute of several integers: each in all traces."""
        values: list[tuple[int, ...]] = self.each(key)
        return list(zip(*values, strict=True))

    def constant(self, size: int) -> Sizes:
        """A size that is the same in all traces."""
        return (size,) * len(self._family.traces)

    def fixed(self, key: str) -> Any:
        """An attribute that is the same in all traces.

        Raises:
            NotUniform: it is not.
        """
        values = self.each(key)
        if any(value != values[0] for value in values):
            raise self.refused(f"`{key}` depends on a size")
        return values[0]

    def refused(self, why: str) -> NotUniform:
        at = f" at {self.node.location}" if self.node.location is not None else ""
        return NotUniform(f"`{self.op}`{at}: {why}")

    def axis(self, key: str = "axis") -> int:
        """An attribute that is one integer, the same in all traces."""
        return self.fixed(key)

    def axes(self, key: str = "axes") -> tuple[int, ...]:
        """An attribute of several integers, the same in all traces."""
        return self.fixed(key)

    def check_attributes(self) -> None:
        """Refuse attributes that depend on sizes and that no rule has read."""
        for key in self.node.attributes:
            if key not in self._asked:
                self.fixed(key)


class Builder:
    """The padded program in the making."""

    def __init__(self, family: Family) -> None:
        largest = family.largest.graph
        self.family = family
        self.graph = Graph(largest.name, kernels=largest.kernels)
        self.parameters: list[Parameter] = []
        self.states: dict[int, Padded] = {}
        self._known: dict[Any, Value] = {}
        self._graphs = [self.graph]
        self._sites: dict[Sizes, tuple[int, int]] = {}
        self._readings: dict[Sizes, Reading] = {}
        self._masked: list[tuple[int, Padded]] = []
        self.claims: list[tuple[int, int, tuple[Sizes, ...]]] = []
        self.relations: list[tuple[Sizes, Sizes]] = []
        self.location: SourceLocation | None = None

    # ---- values -----------------------------------------------------------------------------------------------------

    def define(self, number: int, state: Padded) -> None:
        """Define the counterpart of the trace's value `number` in the padded program."""
        self.states[number] = state
        for axis, factors in enumerate(state.axes):
            if factors is not None and len(factors) == 1 and varies(factors[0]):
                self._sites.setdefault(factors[0], (number, axis))

    def input(self, number: int) -> None:
        """An argument of the function, which the caller pads after."""
        value = self.family.largest.values[number]
        axes = tuple(plain(sizes) for sizes in self.family.shape(number))
        self.define(number, Padded(self.graph.input(value.type, value.name), axes))

    def region_input(self, type: ArrayType) -> Value:
        """An input of the region that is being built."""
        return self._graphs[-1].input(type)

    def set_outputs(self, values: Sequence[Value]) -> None:
        """The results of the graph that is being built."""
        self._graphs[-1].outputs = list(values)

    def emit(self, op: str, *operands: Value, **attributes: object) -> Value:
        """Add an operation of one result."""
        return self.emit_all(op, operands, attributes)[0]

    def emit_all(self, op: str, operands: Sequence[Value], attributes: Mapping[str, object]) -> tuple[Value, ...]:
        """Add an operation."""
        return self.append(op, operands, attributes, primitives.infer(op, [o.type for o in operands], attributes))

    def append(
        self,
        op: str,
        operands: Sequence[Value],
        attributes: Mapping[str, object],
        types: Sequence[ArrayType],
        graphs: Sequence[Graph] = (),
    ) -> tuple[Value, ...]:
        """Add an operation whose types are known."""
        node = Node(op, tuple(operands), dict(attributes), tuple(graphs), location=self.location)
        node.results = tuple(Value(type, node) for type in types)
        self._graphs[-1].nodes.append(node)
        return node.results

    def region(self, graph: Graph, build: Callable[[], None]) -> Graph:
        """A region of the padded program, whose operations `build` adds."""
        inner = self.graph.nested(graph.name)
        self._graphs.append(inner)
        before, self._masked = self._masked, []
        build()
        # What was masked in a region is not known outside.
        for number, state in reversed(self._masked):
            self.states[number] = state
        self._masked = before
        return self._graphs.pop()

    def outermost(self, key: object, make: Callable[[], Value]) -> Value:
        """A value outside all regions, made once."""
        if key not in self._known:
            inside, self._graphs = self._graphs, [self.graph]
            self._known[key] = make()
            self._graphs = inside
        return self._known[key]

    def number(self, value: object, type: ArrayType) -> Value:
        """One number as an array."""
        item = np.asarray(value).item()
        return self.emit("constant", value=item, resource="", shape=type.shape, dtype=type.dtype.name)

    def broadcast(self, value: Value, shape: tuple[int, ...], axes: tuple[int, ...] = ()) -> Value:
        """A value repeated to a shape."""
        return value if value.shape == shape else self.emit("broadcast", value, shape=shape, axes=axes)

    # ---- arguments --------------------------------------------------------------------------------------------------

    def parameter(self, key: object, type: ArrayType, reading: Reading) -> Value:
        """An argument that is read from the trace at the sizes of a call."""

        def make() -> Value:
            self.parameters.append(Parameter(type, reading))
            return self.graph.input(type, f"size{len(self.parameters)}")

        return self.outermost(key, make)

    def scalar(self, key: object, reading: Reading, dtype: dtypes.DType = _POSITIONS) -> Value:
        """An integer that is read from the trace."""
        return self.parameter(key, ArrayType((), dtype), reading)

    def extent(self, sizes: Sizes) -> Value:
        """How much is real of a factor of `sizes`: an argument."""
        return self.scalar(("extent", sizes), self.extent_reading(sizes))

    def extent_reading(self, sizes: Sizes) -> Reading:
        """How a trace indicates what a factor of `sizes` is.

        Raises:
            NotUniform: no value of the trace has this size, or a part of it.
        """
        if sizes not in self._readings:
            self._readings[sizes] = self._find_reading(sizes)
        return self._readings[sizes]

    def _find_reading(self, sizes: Sizes) -> Reading:
        if sizes in self._sites:
            return functools.partial(_read_size, *self._sites[sizes], 1)
        for known, site in self._sites.items():
            times = sizes[0] // known[0] if known[0] else 0
            if all(m == n * times for m, n in zip(sizes, known, strict=True)):
                return functools.partial(_read_size, *site, times)
        raise NotUniform("a size that no array has")

    def claim(self, number: int, axis: int, factors: tuple[Sizes, ...]) -> tuple[Sizes, ...]:
        """Take an axis of a value for a product of factors, which each call is to check."""
        if len(factors) == 1:
            self._sites.setdefault(factors[0], (number, axis))
        self.claims.append((number, axis, factors))
        return factors

    def relate(self, before: Axes, after: Axes) -> None:
        """Take the factors of an array's axes for multiples and parts of those before, which each call is to check."""
        known, made = ({f for axis in axes for f in axis or () if varies(f)} for axes in (before, after))
        self.relations += [
            (a, b)
            for a in known
            for b in made
            if a != b and all(m * b[0] == n * a[0] for m, n in zip(a, b, strict=True))
        ]

    # ---- masks ------------------------------------------------------------------------------------------------------

    def masked(
        self, number: int, axis: int, value: object, factors: Axis = None, *, nan_passes: bool = False
    ) -> Padded:
        """The value `number` with `value` in the padding along an axis, for all who read it from here on. `factors`
        state how the axis is padded where its elements are equal.

        `nan_passes` states that padding which is NaN together with all that is real does not matter.
        """
        state = self.states[number]
        fill = state.fills.get(axis)
        if fill is not None and fill.is_value(value, nan_passes=nan_passes):
            return state
        factors = self.claim(number, axis, state.axes[axis] or factors or (self.family.size(number, axis),))
        if not is_padded(factors):
            return state
        value = np.asarray(value, state.value.dtype.numpy)
        selected = self.selected(state.value, axis, factors, self.number(value, state.value.type))
        fills = {d: known for d, known in state.fills.items() if known.is_value(value)} | {axis: Fill(value)}
        axes = (*state.axes[:axis], factors, *state.axes[axis + 1 :])
        made = replace(state, value=selected, axes=axes, fills=fills, everywhere=None)
        self.states[number] = made
        self._masked.append((number, state))
        return made

    def selected(self, value: Value, axis: int, factors: tuple[Sizes, ...], filling: Value) -> Value:
        """`value` where it is real along an axis, `filling` after."""
        inside = self.broadcast(self.inside(factors), value.shape, (axis,))
        return self.emit("map", inside, value, filling, fn="select")

    def inside(self, factors: tuple[Sizes, ...]) -> Value:
        """For each position along an axis, whether it is real: a bool array of one axis."""
        return self.outermost(("inside", factors), functools.partial(self._inside, factors))

    def _inside(self, factors: tuple[Sizes, ...]) -> Value:
        shape = tuple(factor[0] for factor in factors)
        verdict: Value | None = None
        for axis, factor in enumerate(factors):
            if not varies(factor):
                continue
            places = self.emit("iota", shape=shape, axis=axis, dtype=_POSITIONS.name)
            below = self.emit("map", places, self.broadcast(self.extent(factor), shape), fn="less")
            verdict = below if verdict is None else self.emit("map", verdict, below, fn="bitwise_and")
        if verdict is None:
            raise NotUniform("a mask where nothing is padded")
        return verdict if len(shape) == 1 else self.emit("reshape", verdict, shape=(int(np.prod(shape)),))


def _read_size(number: int, axis: int, factor: int, trace: Trace) -> int:
    return trace.values[number].shape[axis] * factor


def only_plain(step: Step, axis: Axis) -> None:
    """Refuse an axis that others were merged into.

    Raises:
        NotUniform: it is one.
    """
    if axis is not None and len(axis) > 1:
        raise step.refused("along an axis that padded ones were merged into")
