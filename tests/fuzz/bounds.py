"""The oracle: runs a program by the NumPy semantics and carries error bounds beside every array.

`Oracle` evaluates nodes one at a time (the generator uses it while it builds a program); `compare` judges what a
compiled program gave. The rules for scalar functions are in `intervals`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.intervals import (
    MANTISSA,
    Bounded,
    Tensor,
    apply_bitcast,
    apply_cast,
    apply_map,
    bounded,
    granularity,
    rounded_error,
    spacing,
    sum_error,
    unknown_where,
    widen,
)
from tilewright import dtypes, ops
from tilewright.dtypes import DType
from tilewright.frontend.trace import Graph, Node, Value
from tilewright.semantics import array as semantics

Attributes = Mapping[str, Any]
LONGEST_LOOP = 200

# Operands that hold data in primitives that move it; the rest are indices.
MOVES = {
    "reshape": 1,
    "transpose": 1,
    "broadcast": 1,
    "slice": 1,
    "reverse": 1,
    "pad": 2,
    "concat": 1000,
    "dynamic_slice": 1,
    "dynamic_update_slice": 2,
    "gather": 1,
}


class Undecided(Exception):
    """The program's control flow hangs on a value that is not certain."""


class Oracle:
    """Bounded values of a program's arrays. `loosened` are values that fused attention keeps unrounded."""

    def __init__(self, constants: Mapping[str, Tensor]) -> None:
        self.constants = constants
        self.values: dict[Value, Bounded] = {}
        self.loosened: frozenset[Value] = frozenset()

    def run(self, graph: Graph, inputs: Sequence[Tensor]) -> list[Bounded]:
        """Bounded outputs of a whole program.

        Raises:
            Undecided: a loop's or choice's condition is not certain.
        """
        self.loosened = attention_values(graph)
        self.values.update(zip(graph.inputs, (Bounded(np.asarray(x)) for x in inputs), strict=True))
        for node in graph.nodes:
            self.add(node)
        return [self.values[v] for v in graph.outputs]

    def add(self, node: Node) -> None:
        """Evaluate one node whose operands are known."""
        operands = [self.values[o] for o in node.operands]
        results = self._evaluate(node, operands)
        for value, result in zip(node.results, results, strict=True):
            self.values[value] = _loosen(result) if value in self.loosened else result

    def _evaluate(self, node: Node, operands: list[Bounded]) -> Sequence[Bounded]:
        if node.op == "while":
            return self._while(node, operands)
        if node.op == "if":
            if operands[0].error is not None:
                raise Undecided
            return self._region(node.graphs[0 if operands[0].value else 1], [])
        if node.op == "constant" and node.attributes["resource"]:
            return [Bounded(self.constants[node.attributes["resource"]])]
        return apply(node.op, operands, node.attributes)

    def _while(self, node: Node, carried: list[Bounded]) -> Sequence[Bounded]:
        condition, body = node.graphs
        for _ in range(LONGEST_LOOP):
            (proceed,) = self._region(condition, carried)
            if proceed.error is not None:
                raise Undecided
            if not proceed.value:
                return carried
            carried = self._region(body, carried)
        raise Undecided

    def _region(self, graph: Graph, arguments: Sequence[Bounded]) -> list[Bounded]:
        self.values.update(zip(graph.inputs, arguments, strict=True))
        for node in graph.nodes:
            self.add(node)
        return [self.values[v] for v in graph.outputs]


# ---- attention ------------------------------------------------------------------------------------------------------


def attention_values(graph: Graph) -> frozenset[Value]:
    """Weights of products that may be fused as attention: those stay in the compute type, and are made in steps."""
    found: set[Value] = set()
    for node in graph.walk():
        if node.op != "contract":
            continue
        divide = _producer(node.operands[0], "divide")
        exponential = divide and _producer(divide.operands[0], "exp")
        subtract = exponential and _producer(exponential.operands[0], "subtract")
        if not (divide and exponential and subtract):
            continue
        total = _behind_views(divide.operands[1])
        found |= {divide.results[0], exponential.results[0], subtract.results[0], total}
    return frozenset(found)


def _producer(value: Value, fn: str) -> Node | None:
    node = value.producer
    return node if node is not None and node.op == "map" and node.attributes["fn"] == fn else None


def _behind_views(value: Value) -> Value:
    while value.producer is not None and value.producer.op in ("broadcast", "reshape"):
        value = value.producer.operands[0]
    return value


def _loosen(result: Bounded) -> Bounded:
    dtype = result.dtype
    if not dtype.is_float:
        return result
    share, least = 64 * dtype.compute.epsilon, 0.0
    if dtype.is_narrow_float:
        # What rounds to 0 is up to half of the smallest number.
        share, least = share + dtype.epsilon, 0.5 * float(spacing(np.zeros(()), dtype))
    magnitude = np.abs(np.nan_to_num(widen(result.value), posinf=0.0, neginf=0.0))
    return bounded(result.value, result.errors + share * magnitude + least, False)


# ---- primitives -----------------------------------------------------------------------------------------------------


def apply(op: str, operands: Sequence[Bounded], a: Attributes) -> Sequence[Bounded]:
    """Run one primitive on bounded arrays."""
    if op == "map":
        return [apply_map(a["fn"], operands)]
    if op == "cast":
        return [apply_cast(operands[0], dtypes.by_name(a["dtype"]))]
    values = semantics.apply(op, [o.value for o in operands], a)
    if op == "bitcast":
        return [apply_bitcast(operands[0], values[0])]
    if op in MOVES:
        return [_moved(op, operands, a, values[0])]
    rule = _RULES.get(op)
    if rule is None:
        return [Bounded(v) for v in values]
    return rule(operands, a, values)


def _moved(op: str, operands: Sequence[Bounded], a: Attributes, value: Tensor) -> Bounded:
    data, indices = operands[: MOVES[op]], operands[MOVES[op] :]
    signs = all(o.signed_zeros for o in data)
    error: Tensor | None = None
    if any(o.error is not None for o in data):
        (error,) = semantics.apply(op, [*(o.errors for o in data), *(i.value for i in indices)], a)
    if any(np.any(i.unknown) for i in indices):
        doubt = np.ones(value.shape, bool)
        if op == "gather":
            lanes = np.zeros(indices[0].value.shape, bool)
            for index in indices:
                lanes = lanes | index.unknown
            doubt = np.broadcast_to(lanes.reshape(*lanes.shape, *[1] * (value.ndim - lanes.ndim)), value.shape)
        error = np.where(doubt, np.inf, 0.0 if error is None else error)
    return bounded(value, error, signs)


def _scatter(operands: Sequence[Bounded], a: Attributes, values: Sequence[Tensor]) -> Sequence[Bounded]:
    """Updates in index order, each a bounded map on the slice that it touches."""
    x, updates, *indices = operands
    if any(np.any(i.unknown) for i in indices):
        return [Bounded(values[0], np.full(values[0].shape, np.inf), False)]
    if x.error is None and updates.error is None:
        return [Bounded(values[0], None, a["fn"] == "set" and x.signed_zeros and updates.signed_zeros)]
    axes = a["axes"]
    value, error = x.value.copy(), x.errors.copy()
    front, front_error = (np.moveaxis(array, axes, range(len(axes))) for array in (value, error))
    for position in np.ndindex(indices[0].value.shape):
        target = tuple(int(i.value[position]) for i in indices)
        if any(not 0 <= t < x.value.shape[axis] for t, axis in zip(target, axes, strict=True)):
            continue
        update = Bounded(np.asarray(updates.value[position]), np.asarray(updates.errors[position]))
        if a["fn"] != "set":
            old = Bounded(np.asarray(front[target]).copy(), np.asarray(front_error[target]).copy())
            update = apply_map(a["fn"], [old, update])
        front[target], front_error[target] = update.value, update.errors
    return [bounded(values[0], error, False)]


# ---- reductions -----------------------------------------------------------------------------------------------------

Total = Callable[[np.ufunc, Tensor], Tensor]


def _folded(fn: str, x: Bounded, value: Tensor, total: Total, count: int) -> Bounded:
    """A reduction or running reduction; `total(ufunc, array)` applies it to other arrays of the operand's shape."""
    dtype = x.dtype
    if x.value.size == 0 or value.size == 0:
        return Bounded(value)
    unknown = total(np.logical_or, x.unknown)
    if not dtype.is_float:
        return bounded(value, unknown_where(unknown))
    wide = widen(x.value)
    finite = np.where(np.isfinite(wide), wide, 0.0)
    errors = np.where(x.unknown, 0.0, x.errors)
    with np.errstate(all="ignore"):
        if fn == "add":
            error = sum_error(
                value,
                total(np.add, wide),
                total(np.add, np.abs(finite)),
                count,
                total(np.add, errors),
                granularity(x.value),
                dtype,
            )
        elif fn == "multiply":
            error = _product_error(value, wide, errors, total, count, dtype)
        else:
            ufunc = np.maximum if fn == "maximum" else np.minimum
            low, high = total(ufunc, wide - errors), total(ufunc, wide + errors)
            middle = widen(value)
            error = np.maximum(np.abs(high - middle), np.abs(middle - low))
            error = np.where(np.isfinite(middle) & ~np.isnan(error), error, 0.0)
    return bounded(value, np.where(unknown, np.inf, error), False)


def _product_error(value: Tensor, wide: Tensor, errors: Tensor, total: Total, count: int, dtype: DType) -> Tensor:
    """Products in any order: relative errors add; unknown where a partial product may leave the type's range."""
    compute = dtype.compute
    info = np.finfo(compute.numpy)
    magnitude = np.abs(np.where(np.isfinite(wide), wide, 1.0))
    highest = total(np.multiply, np.maximum(magnitude, 1.0))
    lowest = total(np.multiply, np.where(magnitude == 0, 1.0, np.minimum(magnitude, 1.0)))
    center = total(np.multiply, wide)
    share = total(np.multiply, 1 + np.where(magnitude > 0, errors, 0.0) / np.where(magnitude > 0, magnitude, 1.0))
    lost = total(np.logical_or, (magnitude <= errors) & (errors > 0))
    distance = np.abs(center) * (share - 1 + count * compute.epsilon * 0.52)
    distance = np.where(np.isfinite(center), distance, 0.0)
    error = rounded_error(value, widen(value) if dtype.bits == 64 else center, distance, dtype)
    error = np.where(lost | (highest > float(info.max) / 4) | (lowest < float(info.tiny) * 4), np.inf, error)
    if np.array_equal(wide, np.rint(wide)) and not np.any(errors):
        error = np.where(highest < 2.0 ** MANTISSA[dtype.name], 0.0, error)
    return error


def _reduce(operands: Sequence[Bounded], a: Attributes, values: Sequence[Tensor]) -> Sequence[Bounded]:
    axes = tuple(a["axes"])
    if not axes:
        return [Bounded(values[0], operands[0].error, False)]
    count = int(np.prod([operands[0].value.shape[d] for d in axes], dtype=np.int64))
    depth = _additions(a["fn"], operands[0].dtype, count)
    return [_folded(a["fn"], operands[0], values[0], lambda u, x: u.reduce(x, axis=axes), depth)]


def _additions(fn: str, dtype: DType, count: int) -> int:
    """Roundings of a reduction. The middle of f64 sums is what NumPy's pairs give, with roundings of their own."""
    if fn != "add" or not dtype.is_float:
        return count
    return min(count, ops.summation_depth(count) * (2 if dtype.bits == 64 else 1) + 1)


def _scan(operands: Sequence[Bounded], a: Attributes, values: Sequence[Tensor]) -> Sequence[Bounded]:
    axis = a["axis"]

    def total(ufunc: np.ufunc, x: Tensor) -> Tensor:
        source = np.flip(x, axis) if a["reverse"] else x
        result = ufunc.accumulate(source, axis=axis)
        return np.flip(result, axis) if a["reverse"] else result

    return [_folded(a["fn"], operands[0], values[0], total, operands[0].value.shape[axis])]


def _window_reduce(operands: Sequence[Bounded], a: Attributes, values: Sequence[Tensor]) -> Sequence[Bounded]:
    (x,) = operands
    identity = ops.FUNCTIONS[a["fn"]].identity
    fill = np.asarray(identity(x.dtype) if identity else 0).astype(x.value.dtype)
    windows = Bounded(
        semantics._windows(x.value, a["window"], a, fill), semantics._windows(x.errors, a["window"], a, 0.0)
    )
    axes = tuple(range(x.value.ndim, 2 * x.value.ndim))
    count = int(np.prod(a["window"], dtype=np.int64))
    depth = _additions(a["fn"], x.dtype, count)
    return [_folded(a["fn"], windows, values[0], lambda u, w: u.reduce(w, axis=axes), depth)]


def _product(op: str, count: int, operands: Sequence[Bounded], a: Attributes, value: Tensor) -> Bounded:
    """Contractions and convolutions: sums of products of two operands."""
    left, right = operands
    if value.size == 0 or count == 0:
        return Bounded(value, None, False)
    attributes = {**a, "dtype": "f64"}

    def sums(x: Tensor, y: Tensor) -> Tensor:
        return semantics.apply(op, [widen(x), widen(y)], attributes)[0]

    ones = np.ones(left.value.shape), np.ones(right.value.shape)
    unknown = np.zeros(value.shape, bool)
    if left.error is not None:
        unknown |= sums(left.unknown, ones[1]) > 0
    if right.error is not None:
        unknown |= sums(ones[0], right.unknown) > 0
    dtype = dtypes.from_numpy(value.dtype)
    if not dtype.is_float:
        return bounded(value, unknown_where(unknown))
    compute = dtype.compute
    sources = [ops.cast(o.value, compute) if o.dtype.bits > compute.bits else o.value for o in operands]
    wide = [widen(s) for s in sources]
    sizes = [np.abs(np.where(np.isfinite(w), w, 0.0)) for w in wide]
    errors = [np.where(o.unknown, 0.0, o.errors) for o in operands]
    spread = np.zeros(value.shape)
    if left.error is not None:
        spread = spread + sums(errors[0], sizes[1] + errors[1])
    if right.error is not None:
        spread = spread + sums(sizes[0], errors[1])
    grains = [granularity(s) for s in sources]
    grain = grains[0] * grains[1] if grains[0] is not None and grains[1] is not None else None
    if not all(np.all(np.isfinite(w)) for w in wide) and (left.error is not None or right.error is not None):
        # An infinity times a weight that may round to 0 is NaN or infinite.
        unknown |= ~np.isfinite(widen(value))
    error = sum_error(value, sums(*wide), sums(*sizes), count + 1, spread, grain, dtype)
    return bounded(value, np.where(unknown, np.inf, error), False)


def _contract(operands: Sequence[Bounded], a: Attributes, values: Sequence[Tensor]) -> Sequence[Bounded]:
    count = int(np.prod([operands[0].value.shape[d] for d in a["left_contract"]], dtype=np.int64))
    return [_product("contract", count, operands, a, values[0])]


def _convolve(operands: Sequence[Bounded], a: Attributes, values: Sequence[Tensor]) -> Sequence[Bounded]:
    count = int(np.prod(operands[1].value.shape[1:], dtype=np.int64))
    return [_product("convolve", count, operands, a, values[0])]


# ---- order ----------------------------------------------------------------------------------------------------------


def _arg_reduce(operands: Sequence[Bounded], a: Attributes, values: Sequence[Tensor]) -> Sequence[Bounded]:
    """The winner is certain when its interval lies beyond all others."""
    (x,) = operands
    if x.error is None:
        return [Bounded(values[0])]
    axis = a["axis"]
    sign = 1.0 if a["fn"] == "maximum" else -1.0
    wide, errors = np.moveaxis(widen(x.value) * sign, axis, -1), np.moveaxis(x.errors, axis, -1)
    winner = values[0][..., None]
    with np.errstate(all="ignore"):
        low = np.take_along_axis(wide - errors, winner, -1)
        rival = wide + errors
        np.put_along_axis(rival, winner, -np.inf, -1)
        certain = (low[..., 0] > rival.max(-1)) | ~np.any(errors > 0, axis=-1)
    return [bounded(values[0], unknown_where(~certain))]


def _sort(operands: Sequence[Bounded], a: Attributes, values: Sequence[Tensor]) -> Sequence[Bounded]:
    keys = operands[0]
    order = semantics._order(keys.value, a["axis"], a["descending"])
    return _permuted(operands, values, order, a["axis"], a["descending"])


def _top_k(operands: Sequence[Bounded], a: Attributes, values: Sequence[Tensor]) -> Sequence[Bounded]:
    (x,) = operands
    order = semantics._order(x.value, x.value.ndim - 1, True)
    positions = Bounded(np.broadcast_to(np.arange(x.value.shape[-1]), x.value.shape))
    full = [np.take_along_axis(o.value, order, -1) for o in (x, positions)]
    results = _permuted([x, positions], full, order, x.value.ndim - 1, True)
    return [
        bounded(v, None if r.error is None else r.error[..., : a["k"]], False)
        for v, r in zip(values, results, strict=True)
    ]


def _permuted(
    operands: Sequence[Bounded], values: Sequence[Tensor], order: Tensor, axis: int, descending: bool
) -> Sequence[Bounded]:
    """Sorted keys move by no more than the largest error of their line; what they carry along is certain where no
    other key's interval meets that of the key."""
    keys = operands[0]
    if keys.error is None:
        moved = [None if o.error is None else np.take_along_axis(o.error, order, axis) for o in operands]
        signs = [False, *(o.signed_zeros for o in operands[1:])]
        return [bounded(v, e, s) for v, e, s in zip(values, moved, signs, strict=True)]
    with np.errstate(all="ignore"):
        errors = np.moveaxis(np.take_along_axis(keys.error, order, axis), axis, -1)
        ordered = np.moveaxis(widen(values[0]), axis, -1) * (-1.0 if descending else 1.0)
        worst = np.broadcast_to(errors.max(-1, keepdims=True, initial=0.0), errors.shape)
        before = np.maximum.accumulate(ordered + errors, -1)
        after = np.flip(np.minimum.accumulate(np.flip(ordered - errors, -1), -1), -1)
        certain = np.ones(ordered.shape, bool)
        certain[..., 1:] &= before[..., :-1] < (ordered - errors)[..., 1:]
        certain[..., :-1] &= (ordered + errors)[..., :-1] < after[..., 1:]
        certain |= ~np.any(errors > 0, axis=-1, keepdims=True)
        nan = np.isnan(ordered)
        key_error = np.where(nan & (worst > 0) & np.any(np.isinf(errors), -1, keepdims=True), np.inf, worst)
        key_error = np.where(nan & np.isfinite(key_error), 0.0, key_error)
    certain, key_error = np.moveaxis(certain, -1, axis), np.moveaxis(key_error, -1, axis)
    results = [bounded(values[0], key_error, False)]
    for operand, value in zip(operands[1:], values[1:], strict=True):
        carried = np.take_along_axis(operand.errors, order, axis)
        results.append(bounded(value, np.where(certain, carried, np.inf), operand.signed_zeros))
    return results


_RULES: dict[str, Callable[[Sequence[Bounded], Attributes, Sequence[Tensor]], Sequence[Bounded]]] = {
    "scatter": _scatter,
    "reduce": _reduce,
    "arg_reduce": _arg_reduce,
    "scan": _scan,
    "window_reduce": _window_reduce,
    "contract": _contract,
    "convolve": _convolve,
    "sort": _sort,
    "top_k": _top_k,
}


# ---- judging --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What a comparison found: a sentence about the worst element (None when all agree), elements, unknown ones."""

    problem: str | None
    elements: int
    unknown: int


def compare(expected: Bounded, got: Tensor) -> Verdict:
    """Judge one output."""
    value = expected.value
    if got.dtype != value.dtype or got.shape != value.shape:
        return Verdict(f"is {got.dtype}{got.shape}, expected {value.dtype}{value.shape}", value.size, 0)
    unknown = expected.unknown
    equal = got == value
    if expected.dtype.is_float:
        wide, result = widen(value), widen(got)
        with np.errstate(all="ignore"):
            near = np.abs(result - wide) <= expected.errors
        equal = equal | near | np.isnan(wide) & np.isnan(result)
    wrong = ~(equal | unknown)
    if not np.any(wrong):
        return Verdict(None, value.size, int(unknown.sum()))
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    problem = (
        f"differs in {int(wrong.sum())} of {value.size} elements, first at {where}: got {got[where]!r}, "
        f"expected {value[where]!r} within {expected.errors[where]:.3g}"
    )
    return Verdict(problem, value.size, int(unknown.sum()))
