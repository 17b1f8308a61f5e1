"""Branches and loops.

A condition or trip count that is known while tracing is followed; a loop of few known trips is unrolled, which lets
shapes change from trip to trip. Everything else becomes control flow of the program.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.dtypes import DType
from tilewright.errors import ShapeError, TilewrightError
from tilewright.interop.onnx.folding import StaticInputsNeeded
from tilewright.interop.onnx.operators.elementwise import dtype_of
from tilewright.interop.onnx.registry import Node, lifted, operator

_MAX_UNROLLED = 64
_GATHERED = "a `Loop` that gathers results until a condition, whose number depends on data"


def _known(node: Node, value: object, what: str) -> np.ndarray | None:
    """The elements of a value if they depend on constants alone."""
    try:
        return node.known(value, what)
    except (StaticInputsNeeded, TilewrightError):
        return None


class _NeedsChoice(Exception):
    """Branches that give sequences, optionals or arrays of different shapes, of which one must be known to be taken."""


@operator("If", narrow=True)
def if_(node: Node, condition: Array) -> tuple[Any, ...]:
    """One of two graphs."""
    node.ignore("then_branch", "else_branch")
    known = _known(node, condition, "cond")
    if known is None:
        try:
            return _branched(node, condition)
        except (_NeedsChoice, ShapeError):
            known = node.known(condition, "cond")
    return tuple(node.run(node.required("then_branch" if known.reshape(-1)[0] else "else_branch")))


def _branched(node: Node, condition: Array) -> tuple[Array, ...]:
    def branch(name: str) -> tuple[Array, ...]:
        results = node.run(node.required(name))
        if not all(isinstance(result, Array) for result in results):
            raise _NeedsChoice
        return tuple(results)

    return tw.cond(tw.reshape(condition, ()), lambda: branch("then_branch"), lambda: branch("else_branch"))


@operator("Loop")
def loop(node: Node, trips: Array | None, condition: Array | None = None, *carried: object) -> tuple[Any, ...]:
    """Repeat a graph on carried values, at most `trips` times, while the condition that it gives holds."""
    body = node.required("body")
    count = None if trips is None else _known(node, trips, "M")
    limit = None if count is None else int(count.reshape(-1)[0])
    holds = True if condition is None else _known(node, condition, "cond")
    if limit is not None and limit <= _MAX_UNROLLED and holds is not None:
        unrolled = _unrolled(node, body, limit if np.all(holds) else 0, list(carried))
        if unrolled is not None:
            return unrolled
    return _looped(node, body, trips, limit, condition, list(carried))


def _unrolled(node: Node, body: Any, limit: int, carried: list[Any]) -> tuple[Any, ...] | None:
    """A loop of few known trips, one after the other; None where a condition is not known."""
    count = len(carried)
    rows: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - count)]
    for trip in range(limit):
        verdict, *results = node.run(body, lifted(np.asarray(trip, np.int64)), lifted(np.asarray(True)), *carried)
        known = _known(node, verdict, "cond")
        if known is None:
            return None
        carried = results[:count]
        for row, result in zip(rows, results[count:], strict=True):
            row.append(result)
        if not known.reshape(-1)[0]:
            break
    if any(not row for row in rows):
        return (*carried, *_nothing(node, body, carried))
    return (*carried, *(tw.stack(row) for row in rows))


def _nothing(node: Node, body: Any, carried: list[Any]) -> list[Array]:
    """The gathered results of a loop without trips: arrays of no elements, of the shape that one trip would add."""
    declared = [_declared(node, output) for output in body.output[1 + len(carried) :]]
    if any(element is None for element in declared):
        # Traced for its types alone; nothing reads it.
        trial = node.run(body, lifted(np.asarray(0, np.int64)), lifted(np.asarray(True)), *carried)
        declared = [(tuple(x.shape), x.dtype) for x in trial[1 + len(carried) :]]
    return [tw.zeros((0, *shape), dtype=dtype) for shape, dtype in filter(None, declared)]


def _declared(node: Node, output: Any) -> tuple[tuple[int, ...], DType] | None:
    """The shape and type that a graph declares of an output; None where it leaves a size open."""
    declared = output.type.tensor_type
    sizes = [d.dim_value if d.HasField("dim_value") else None for d in declared.shape.dim]
    if not declared.HasField("shape") or any(n is None for n in sizes):
        return None
    return tuple(n for n in sizes if n is not None), dtype_of(node, declared.elem_type)


def _looped(
    node: Node, body: Any, trips: Array | None, limit: int | None, condition: Array | None, carried: list[Any]
) -> tuple[Any, ...]:
    if any(not isinstance(value, Array) for value in carried):
        return _over_sequences(node, body, trips, condition, carried)
    if len(body.output) - 1 > len(carried):
        return _collected(node, body, trips, condition, carried)
    last = tw.full((), np.iinfo(np.int64).max, dtype=tw.i64) if trips is None else tw.reshape(trips, ())
    first = tw.full((), True, dtype=tw.bool) if condition is None else tw.reshape(condition, ())

    def goes_on(state: Any) -> Array:
        return tw.logical_and(state[1], tw.less(state[0], last))

    def step(state: Any) -> Any:
        verdict, *results = node.run(body, state[0], state[1], *state[2])
        return state[0] + 1, tw.reshape(verdict, ()), tuple(results)

    start = tw.full((), 0, dtype=tw.i64)
    return tuple(tw.while_loop(goes_on, step, (start, first, tuple(carried)))[2])


def _over_sequences(
    node: Node, body: Any, trips: Array | None, condition: Array | None, carried: list[Any]
) -> tuple[Any, ...]:
    """Trips over sequences or optionals are traced one by one, so that their number must be known."""
    limit = _MAX_UNROLLED if trips is None else node.known_ints(trips, "M")[0]
    holds = condition is None or bool(np.all(node.known(condition, "cond")))
    unrolled = _unrolled(node, body, limit if holds else 0, carried) if limit <= _MAX_UNROLLED else None
    if unrolled is None or trips is None:
        why = f"a `Loop` over sequences or optionals of more than {_MAX_UNROLLED} trips, or until data"
        raise node.depends_on_data(why)
    return unrolled


def _collected(
    node: Node, body: Any, trips: Array | None, condition: Array | None, carried: list[Any]
) -> tuple[Any, ...]:
    """A loop that gathers a result of each trip, which needs a number of trips that is known."""
    if trips is None:
        raise node.depends_on_data(_GATHERED)
    (limit,) = node.known_ints(trips, "M")
    if condition is not None and not np.all(node.known(condition, "cond")):
        return (*carried, *_nothing(node, body, carried))
    if limit <= _MAX_UNROLLED:
        raise node.depends_on_data(_GATHERED)

    def step(state: Any, trip: Array) -> Any:
        verdict, *results = node.run(body, trip, lifted(np.asarray(True)), *state)
        if not np.all(node.known(verdict, "cond")):
            raise node.depends_on_data(_GATHERED)
        return tuple(results[: len(carried)]), tuple(results[len(carried) :])

    last, gathered = tw.scan(step, tuple(carried), tw.iota((limit,)))
    return (*last, *gathered)


@operator("Scan", since=9)
def scan(node: Node, *inputs: Array) -> tuple[Any, ...]:
    """Run a graph over slices of arrays, carrying values."""
    body = node.required("body")
    scanned = node.required("num_scan_inputs")
    count = len(inputs) - scanned
    gathered = len(body.output) - count
    axes_in = node.get("scan_input_axes", (0,) * scanned)
    axes_out = node.get("scan_output_axes", (0,) * gathered)
    reverse_in = node.get("scan_input_directions", (0,) * scanned)
    reverse_out = node.get("scan_output_directions", (0,) * gathered)
    sources = [
        tw.flip(moved, axis=0) if reverse else moved
        for moved, reverse in (
            (tw.moveaxis(x, axis, 0), reverse)
            for x, axis, reverse in zip(inputs[count:], axes_in, reverse_in, strict=True)
        )
    ]

    def step(state: Any, slices: Any) -> Any:
        results = node.run(body, *state, *slices)
        return tuple(results[:count]), tuple(results[count:])

    last, made = tw.scan(step, tuple(inputs[:count]), tuple(sources))
    outputs = [
        tw.moveaxis(tw.flip(y, axis=0) if reverse else y, 0, axis)
        for y, axis, reverse in zip(made, axes_out, reverse_out, strict=True)
    ]
    return (*last, *outputs)


@operator("Scan", since=8)
def scan_of_batches(node: Node, lengths: Array | None, *inputs: Array) -> tuple[Any, ...]:
    """As `Scan` was with a batch axis in front: each sequence of a batch by itself."""
    if lengths is not None:
        raise node.unsupported("`Scan` of version 8 with lengths of its sequences")
    body = node.required("body")
    count = len(inputs) - node.required("num_scan_inputs")
    if any(node.get("directions", ())):
        raise node.unsupported("`Scan` of version 8 in reverse")

    def step(state: Any, slices: Any) -> Any:
        results = node.run(body, *state, *slices)
        return tuple(results[:count]), tuple(results[count:])

    rows = [
        tw.scan(step, tuple(x[n] for x in inputs[:count]), tuple(x[n] for x in inputs[count:]))
        for n in range(inputs[0].shape[0])
    ]
    flat = [(*last, *made) for last, made in rows]
    return tuple(tw.stack(parts) for parts in zip(*flat, strict=True))
