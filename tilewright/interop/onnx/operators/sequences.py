"""Sequences and optionals, which exist while tracing alone: lists of arrays, and values that may be None."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import axis_of
from tilewright.interop.onnx.operators.manipulation import split_sizes
from tilewright.interop.onnx.registry import Node, lifted, operator

Sequence = list[Any]


def _place(node: Node, sequence: Sequence, position: Array | None, what: int) -> int:
    """A known place in a sequence; `what` is how many there are."""
    place = len(sequence) if position is None else node.known_ints(position, "position")[0]
    if not -len(sequence) <= place < what:
        raise node.unsupported(f"place {place} of a sequence of {len(sequence)}")
    return place + len(sequence) if place < 0 else place


@operator("SequenceConstruct")
def sequence_construct(node: Node, *arrays: Array) -> Sequence:
    """A sequence of arrays."""
    return list(arrays)


@operator("SequenceEmpty")
def sequence_empty(node: Node) -> Sequence:
    """A sequence of nothing."""
    node.ignore("dtype")
    return []


@operator("SequenceAt")
def sequence_at(node: Node, sequence: Sequence, position: Array) -> Array:
    """The array at an index that is known."""
    return sequence[_place(node, sequence, position, len(sequence))]


@operator("SequenceInsert")
def sequence_insert(node: Node, sequence: Sequence, array: Array, position: Array | None = None) -> Sequence:
    """With one more array, at the end by default."""
    place = _place(node, sequence, position, len(sequence) + 1)
    return [*sequence[:place], array, *sequence[place:]]


@operator("SequenceErase")
def sequence_erase(node: Node, sequence: Sequence, position: Array | None = None) -> Sequence:
    """Without the array at an index, the last by default."""
    place = len(sequence) - 1 if position is None else _place(node, sequence, position, len(sequence))
    return [*sequence[:place], *sequence[place + 1 :]]


@operator("SequenceLength")
def sequence_length(node: Node, sequence: Sequence) -> Array:
    """How many arrays there are."""
    return lifted(np.asarray(len(sequence), np.int64))


@operator("SplitToSequence")
def split_to_sequence(node: Node, x: Array, sections: Array | None = None) -> Sequence:
    """Parts along `axis`: of size 1, of one size, or of each their own."""
    at = axis_of(node.get("axis", 0), x.ndim)
    size = x.shape[at]
    if sections is None:
        sizes = [1] * size
    elif sections.ndim == 0:
        (part,) = node.known_ints(sections, "split")
        sizes = [min(part, size - n) for n in range(0, size, part)]
    else:
        sizes = list(split_sizes(node, size, sections))
    cuts = [sum(sizes[: n + 1]) for n in range(len(sizes) - 1)]
    parts = tw.split(x, cuts, axis=at)
    keeps = sections is not None or node.get("keepdims", 1)
    return [part if keeps else tw.squeeze(part, at) for part in parts]


@operator("ConcatFromSequence")
def concat_from_sequence(node: Node, sequence: Sequence) -> Array:
    """All arrays of a sequence, joined along an axis or stacked along a new one."""
    axis = node.required("axis")
    return tw.stack(sequence, axis=axis) if node.get("new_axis", 0) else tw.concat(sequence, axis=axis)


@operator("Optional")
def optional(node: Node, value: object = None) -> Any:
    """A value that may be absent."""
    node.ignore("type")
    return value


@operator("OptionalGetElement")
def optional_get_element(node: Node, value: object) -> Any:
    """The value of an optional that has one."""
    if value is None:
        raise node.unsupported("`OptionalGetElement` of nothing")
    return value


@operator("OptionalHasElement")
def optional_has_element(node: Node, value: object = None) -> Array:
    """Whether there is a value."""
    return lifted(np.asarray(value is not None))
