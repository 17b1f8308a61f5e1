"""The padded program of a bucket, and what one call of it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np

from tilewright.frontend.sizes.axes import Axes, Axis
from tilewright.frontend.sizes.family import Family, NotUniform, Sizes, Trace, check_form, is_integer, varies
from tilewright.frontend.sizes.padded import Builder, Parameter, Reading
from tilewright.frontend.sizes.rules import build_nodes
from tilewright.frontend.trace import Graph
from tilewright.primitives import ArrayType

Tensor = np.ndarray[Any, Any]


class CallPlan(msgspec.Struct, frozen=True):
    """The sizes of one call: what the padded program takes next to the arguments, and how they are padded and cut."""

    extra: tuple[Tensor, ...]
    inputs: tuple[tuple[int, ...] | None, ...]
    padded: tuple[ArrayType, ...]
    outputs: tuple[tuple[tuple[slice, ...], tuple[int, ...], tuple[int, ...]] | None, ...]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.extra)

    def arguments(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        """The arguments of the padded program."""
        made = [_pad(a, s, t) for a, s, t in zip(arrays, self.inputs, self.padded, strict=True)]
        return [*made, *self.extra]

    def results(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        """The real (unpadded) parts of the padded program's results."""
        return [_cut(array, output) for array, output in zip(arrays, self.outputs, strict=True)]


def _pad(array: Tensor, shape: tuple[int, ...] | None, type: ArrayType) -> Tensor:
    if shape is None:
        return array
    padded = np.zeros(type.shape, array.dtype)
    padded[tuple(slice(n) for n in shape)] = array
    return padded


def _cut(array: Tensor, output: tuple[tuple[slice, ...], tuple[int, ...], tuple[int, ...]] | None) -> Tensor:
    if output is None:
        return array
    real, factors, shape = output
    return np.ascontiguousarray(array.reshape(factors)[real]).reshape(shape)


class PaddedProgram:
    """One program for all sizes up to those of the first trace.

    `graphs` are traces of one function, at the largest sizes first.

    Raises:
        NotUniform: the traces are not of one form, or the form has no program on padded arrays.
    """

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self._family = Family(graphs)
        largest = self._family.largest
        builder = Builder(self._family)
        for value in largest.graph.inputs:
            builder.input(largest.numbers[value])
        build_nodes(builder, largest.graph)
        self._outputs = [largest.numbers[value] for value in largest.graph.outputs]
        builder.set_outputs([builder.states[number].value for number in self._outputs])
        # Arguments that the padding needed come behind those of the function, in the order of `parameters`.
        self.graph = builder.graph
        self._parameters: list[Parameter] = builder.parameters
        self._axes = {number: state.axes for number, state in builder.states.items()}
        self._claims = builder.claims
        self._relations = builder.relations
        self._readings = self._extents(builder)

    def _extents(self, builder: Builder) -> dict[Sizes, Reading]:
        """How a trace indicates each size of a call that an axis is made of."""
        axes: list[Axis] = [axis for axes in self._axes.values() for axis in axes]
        axes += [factors for _, _, factors in self._claims]
        factors = {f for axis in axes if axis is not None for f in axis if varies(f)}
        return {factor: builder.extent_reading(factor) for factor in factors}

    def plan(self, graph: Graph) -> CallPlan:
        """The plan of a call at the sizes that `graph` was traced at.

        Raises:
            NotUniform: the function does something else at these sizes.
        """
        trace = Trace(graph)
        check_form(self._family.largest, trace)
        self._check_integers(trace)
        extents = {factor: reading(trace) for factor, reading in self._readings.items()}
        self._check_sizes(trace, extents)
        extra = tuple(_argument(parameter, trace) for parameter in self._parameters)
        inputs = self.graph.inputs[: len(graph.inputs)]
        pairs = zip(graph.inputs, inputs, strict=True)
        shapes = tuple(None if real.shape == padded.shape else real.shape for real, padded in pairs)
        outputs = tuple(self._output(number, trace, extents) for number in self._outputs)
        return CallPlan(extra, shapes, tuple(value.type for value in inputs), outputs)

    def _check_integers(self, trace: Trace) -> None:
        """Integers that did not differ between the traces must be the same here; so must contents of constants."""
        for number, node in enumerate(trace.nodes):
            for key, value in node.attributes.items():
                known = self._family.attribute(number, key)
                if key in ("value", "resource"):
                    differs = len(set(map(repr, known))) == 1 and repr(value) != repr(known[0])
                    differs = differs and not _is_parameter_array(self._family, number)
                else:
                    differs = _differs(known, value)
                if differs:
                    raise NotUniform(f"`{key}` of `{node.op}` depends on a size")

    def _check_sizes(self, trace: Trace, extents: dict[Sizes, Any]) -> None:
        for factor, extent in extents.items():
            if not 0 <= extent <= factor[0]:
                raise NotUniform(f"a size of {extent} where the largest is {factor[0]}")
        for number, axes in self._axes.items():
            shape = trace.values[number].shape
            for size, known, axis in zip(shape, self._family.shape(number), axes, strict=True):
                expected = _extent(axis, extents)
                if (size > known[0]) if expected is None else (size != expected):
                    raise NotUniform(f"a size is {size}, where others are {expected}")

        for number, axis, factors in self._claims:
            if trace.values[number].shape[axis] != _extent(factors, extents):
                raise NotUniform("sizes that were taken for the same are not")
        for a, b in self._relations:
            if extents[a] * b[0] != extents[b] * a[0]:
                raise NotUniform("a size that was taken for a multiple of another is not")

    def _output(
        self, number: int, trace: Trace, extents: dict[Sizes, object]
    ) -> tuple[tuple[slice, ...], tuple[int, ...], tuple[int, ...]] | None:
        shape = trace.values[number].shape
        if shape == self._family.largest.values[number].shape:
            return None
        return _real_part(self._axes[number], self._family.shape(number), shape, extents)


def _is_parameter_array(family: Family, number: int) -> bool:
    """Whether a constant is an argument of the padded program as a whole."""
    if not any(family.attribute(number, "resource")):
        return False
    (result,) = family.largest.nodes[number].results
    sizes = family.shape(family.largest.numbers[result])
    return any(map(varies, sizes)) or len(set(family.attribute(number, "resource"))) > 1


def _differs(known: Sequence[Any], value: Any) -> bool:
    """Whether an integer, or one of several, is another than in the traces, in which it was the same."""
    if is_integer(value):
        return not varies(tuple(known)) and value != known[0]
    if not isinstance(value, tuple):
        return False
    each: list[Sizes] = list(zip(*known, strict=True))
    items = cast("tuple[Any, ...]", value)
    return any(not varies(k) and item != k[0] for k, item in zip(each, items, strict=True))


def _extent(axis: Axis, extents: dict[Sizes, Any]) -> int | None:
    """How much of an axis is real at a call; None if anything goes."""
    if axis is None:
        return None
    return math.prod(extents[factor] if varies(factor) else factor[0] for factor in axis)


def _real_part(
    axes: Axes, sizes: Sequence[Sizes], shape: tuple[int, ...], extents: dict[Sizes, object]
) -> tuple[tuple[slice, ...], tuple[int, ...], tuple[int, ...]]:
    """The slice of a padded result, seen with an axis for each factor, and its final shape."""
    cuts: list[slice] = []
    factors: list[int] = []
    for axis, size, real in zip(axes, sizes, shape, strict=True):
        for factor in (size,) if axis is None else axis:
            factors.append(factor[0])
            cuts.append(slice(real if axis is None else extents.get(factor, factor[0])))
    return tuple(cuts), tuple(factors), shape


def _argument(parameter: Parameter, trace: Trace) -> Tensor:
    """An argument as the padded program takes it: a copy, as the user may write to an array that was captured."""
    type = parameter.type
    found = np.array(parameter.reading(trace), type.dtype.numpy, order="C")
    return found if found.shape == type.shape else _pad(found, found.shape, type)
