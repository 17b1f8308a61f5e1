"""Control flow that depends on traced data: `while_loop`, `fori_loop`, `cond`, `scan`.

Carried values are containers of arrays. Bodies may use arrays from outside; what they return must have the structure,
shapes and types of what they are given, where Python numbers take the type of the arrays they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, TypeVar

from tilewright import dtypes
from tilewright.api.array import Array, located
from tilewright.api.functions_creation import zeros
from tilewright.api.indexing import dynamic_slice, dynamic_update_slice
from tilewright.api.lifting import ArrayLike, cast, full, integer, lift, reshape, result_dtype
from tilewright.api.pytree import Structure, build, by_parts, flatten, paths
from tilewright.errors import ArgumentError, DTypeError, ShapeError
from tilewright.frontend.trace import Graph
from tilewright.frontend.tracing import current_graph, nested_graph, reopened
from tilewright.primitives import ArrayType

Carry = TypeVar("Carry")
# Traces a region: its input arrays, to its results.
Region = Callable[[list[Array]], list[Array]]


def _flat(tree: object) -> tuple[list[Array], Structure]:
    leaves: list[Any] = []
    structure = flatten(tree, leaves)
    arrays: list[Array] = []
    structure = by_parts(structure, map(lift, leaves), arrays)
    return arrays, structure


def _flat_as(tree: object, expected: Structure, what: str) -> list[Array]:
    arrays, structure = _flat(tree)
    if structure != expected:
        message = f"{what} is {structure}, expected {expected}"
        raise located(ArgumentError(message, help="return a container of the same form"))
    return arrays


def _function(function: object, what: str) -> None:
    """Check an argument that is called.

    Raises:
        ArgumentError: it cannot be.
    """
    if not callable(function):
        message = f"{what} is {function!r:.40}, not a function"
        raise located(ArgumentError(message, help="pass a function of arrays"))


def _conforming(what: str, given: Array, expected: Array) -> Array:
    """A result in the type that is expected of it.

    Raises:
        ShapeError, DTypeError: it has another one, and is no Python number that fits.
    """
    if given.value.type == expected.value.type:
        return given
    if given.shape != expected.shape:
        message = f"{what} is {given.value.type}, expected {expected.value.type}"
        raise located(ShapeError(message, help=f"give it the shape {expected.shape}"))
    if given.weak and result_dtype([expected.dtype, given]) == expected.dtype:
        return cast(given, expected.dtype)
    message = f"{what} is {given.value.type}, expected {expected.value.type}"
    raise located(DTypeError(message, help=f"cast it with `.astype(tw.{expected.dtype})`"))


def _trace_region(
    name: str, carried: Sequence[Array], region: Region, others: Sequence[ArrayType] = ()
) -> tuple[Graph, list[Array]]:
    """A region whose inputs are like the carried arrays, followed by `others`."""
    with nested_graph(name) as graph:
        inputs = [Array(graph.input(a.value.type), graph, weak=a.weak) for a in carried]
        return graph, region([*inputs, *(Array(graph.input(type), graph) for type in others)])


def _settle(
    name: str, carried: list[Array], region: Region, others: Sequence[ArrayType] = ()
) -> tuple[list[Array], Graph, list[Array]]:
    """Trace a body until Python numbers among the carried arrays have the types that it gives them.

    Gives the carried arrays, the region and its results, of which the first belong to the carried arrays.
    """
    while True:
        graph, results = _trace_region(name, carried, region, others)
        adapted = [_adapted(a, r) for a, r in zip(carried, results[: len(carried)], strict=True)]
        if all(a is b for a, b in zip(carried, adapted, strict=True)):
            return carried, graph, results
        carried = adapted


def _adapted(carried: Array, result: Array) -> Array:
    if not carried.weak or carried.dtype == result.dtype:
        return carried
    if not result.weak:
        return cast(carried, result.dtype)
    joined = dtypes.promote(carried.dtype, result.dtype)
    return carried if joined == carried.dtype else Array(cast(carried, joined).value, current_graph(), weak=True)


# ---- loops ----------------------------------------------------------------------------------------------------------


def while_loop(cond: Callable[[Carry], object], body: Callable[[Carry], Carry], init: Carry) -> Carry:
    """Repeat `body` on the carried values while `cond` of them, one bool, is true.

    Raises:
        ArgumentError: the body returns another structure, the condition is not one bool, or either is no function.
        ShapeError, DTypeError: the body returns another shape or type for a carried array.
    """
    _function(cond, "the condition of `while_loop`")
    _function(body, "the body of `while_loop`")
    carried, structure = _flat(init)

    def run_body(inputs: list[Array]) -> list[Array]:
        return _flat_as(body(build(structure, inputs)), structure, "the result of the body of `while_loop`")

    def run_condition(inputs: list[Array]) -> list[Array]:
        return [lift(cond(build(structure, inputs)))]

    return build(structure, _loop("while_loop", carried, paths(structure, "carry"), run_condition, run_body))


def _loop(what: str, carried: list[Array], names: Sequence[str], condition: Region, body: Region) -> list[Array]:
    carried, body_graph, results = _settle("body", carried, body)
    with reopened(body_graph):
        yielded = [
            _conforming(f"`{name}` from the body of `{what}`", r, a)
            for name, r, a in zip(names, results, carried, strict=True)
        ]
        body_graph.outputs = [y.value for y in yielded]
    condition_graph, (verdict,) = _trace_region("condition", carried, condition)
    if verdict.shape or not verdict.dtype.is_bool:
        message = f"the condition of `{what}` gives {verdict.dtype} of shape {verdict.shape}, not one bool"
        raise located(ArgumentError(message, help="compare, and use `tw.all` or `tw.any` to get one bool"))
    with reopened(condition_graph):
        condition_graph.outputs = [cast(verdict, dtypes.bool_).value]
    graph = current_graph()
    values = [a.value for a in carried]
    made = graph.append("while", values, {}, [v.type for v in values], (condition_graph, body_graph))
    return [Array(value, graph) for value in made]


def fori_loop(lower: ArrayLike, upper: ArrayLike, body: Callable[[Array, Carry], Carry], init: Carry) -> Carry:
    """`for i in range(lower, upper): carry = body(i, carry)`, with a traced `i` (i64) and bounds that may be traced.

    Raises:
        ArgumentError, ShapeError, DTypeError: the body is no function, or returns another structure, shape or type; a
            bound is no integer.
    """
    _function(body, "the body of `fori_loop`")
    carried, structure = _flat(init)
    first, limit = (_bound(b) for b in (lower, upper))

    def run_body(inputs: list[Array]) -> list[Array]:
        result = body(inputs[0], build(structure, inputs[1:]))
        return [inputs[0] + 1, *_flat_as(result, structure, "the result of the body of `fori_loop`")]

    def run_condition(inputs: list[Array]) -> list[Array]:
        return [inputs[0] < limit]

    names = ["i", *paths(structure, "carry")]
    return build(structure, _loop("fori_loop", [first, *carried], names, run_condition, run_body)[1:])


def _bound(bound: ArrayLike) -> Array:
    lifted = lift(bound)
    if lifted.shape or not lifted.dtype.is_integer:
        message = f"a bound of `fori_loop` is {lifted.dtype} of shape {lifted.shape}, not one integer"
        raise located(ArgumentError(message, help="pass an integer, or a traced scalar of integers"))
    return cast(lifted, dtypes.i64)


def scan(
    fn: Callable[[Carry, Any], tuple[Carry, Any]],
    init: Carry,
    xs: object = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Carry, Any]:
    """Run `carry, y = fn(carry, x)` for each slice `x` of `xs` along the first axis; gives the last carry and all `y`.

    `length` is needed when `xs` holds no arrays. With `reverse` the slices are taken from the end, and each `y` is
    stored where its `x` was.

    Raises:
        ArgumentError: lengths are missing or differ, `fn` is no function, or returns something else than a pair.
        ShapeError, DTypeError: `fn` returns another shape or type for a carried array.
    """
    _function(fn, "the function of `scan`")
    carried, structure = _flat(init)
    sources, source_structure = _flat(xs)
    count = _length(sources, length)
    elements = [ArrayType(s.shape[1:], s.dtype) for s in sources]
    result_structures: list[Structure] = []

    def step(inputs: list[Array]) -> list[Array]:
        arguments = build(structure, inputs[: len(carried)]), build(source_structure, inputs[len(carried) :])
        pair: object = fn(*arguments)
        if not _is_tuple(pair) or len(pair) != 2:
            message = f"the function of `scan` returns a {type(pair).__name__}, not a pair"
            raise located(ArgumentError(message, help="return `carry, y`; `y` may be None"))
        next_carry = _flat_as(pair[0], structure, "the carry that the function of `scan` returns")
        results, result_structure = _flat(pair[1])
        result_structures.append(result_structure)
        return [*next_carry, *results]

    settled, _, trial = _settle("scan", carried, step, elements)
    results = trial[len(carried) :]
    buffers = [zeros((count, *r.shape), dtype=r.dtype) for r in results]
    if count == 0:
        return build(structure, settled), build(result_structures[-1], buffers)

    def run_body(inputs: list[Array]) -> list[Array]:
        place = count - 1 - inputs[0] if reverse else inputs[0]
        slices = [_slice_at(s, place) for s in sources]
        made = step([*inputs[1 : 1 + len(carried)], *slices])
        stored = zip(inputs[1 + len(carried) :], made[len(carried) :], strict=True)
        return [inputs[0] + 1, *made[: len(carried)], *(_store_at(buffer, r, place) for buffer, r in stored)]

    names = ["i", *paths(structure, "carry"), *paths(result_structures[-1], "y")]
    initial = [full((), 0, dtypes.i64), *settled, *buffers]
    _, *final = _loop("scan", initial, names, lambda inputs: [inputs[0] < count], run_body)
    return build(structure, final[: len(carried)]), build(result_structures[-1], final[len(carried) :])


def _is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def _length(sources: Sequence[Array], length: int | None) -> int:
    if any(s.ndim == 0 for s in sources):
        raise located(ShapeError("`scan` over a scalar", help="every array of `xs` needs an axis to scan along"))
    lengths = {s.shape[0] for s in sources}
    if length is not None:
        lengths.add(integer(length, "the length"))
    if len(lengths) != 1:
        listed = " and ".join(map(str, sorted(lengths)))
        message = f"the arrays of `scan` have lengths {listed}" if lengths else "`scan` has neither arrays nor a length"
        raise located(ArgumentError(message, help="give arrays of one length, or pass `length`"))
    (count,) = lengths
    return count


def _slice_at(x: Array, place: Array) -> Array:
    starts = (place, *(0,) * (x.ndim - 1))
    return reshape(dynamic_slice(x, starts, (1, *x.shape[1:])), x.shape[1:])


def _store_at(buffer: Array, element: Array, place: Array) -> Array:
    return dynamic_update_slice(buffer, reshape(element, (1, *element.shape)), (place, *(0,) * element.ndim))


# ---- branches -------------------------------------------------------------------------------------------------------


def cond(pred: ArrayLike, true_fn: Callable[..., object], false_fn: Callable[..., object], *operands: object) -> Any:
    """`true_fn(*operands)` if `pred`, one bool, is true, else `false_fn(*operands)`; only one of them runs.

    Raises:
        ArgumentError: a branch is no function, they return different structures, or `pred` is not one bool.
        ShapeError, DTypeError: they return different shapes or types.
    """
    _function(true_fn, "the true branch of `cond`")
    _function(false_fn, "the false branch of `cond`")
    if isinstance(pred, bool):
        return true_fn(*operands) if pred else false_fn(*operands)
    chosen = lift(pred)
    if chosen.shape or not chosen.dtype.is_bool:
        message = f"the predicate of `cond` is {chosen.dtype} of shape {chosen.shape}, not one bool"
        raise located(ArgumentError(message, help="compare, or choose element by element with `tw.where`"))
    structures: list[Structure] = []

    def run(function: Callable[..., object]) -> Region:
        def region(_: list[Array]) -> list[Array]:
            arrays, structure = _flat(function(*operands))
            structures.append(structure)
            return arrays

        return region

    then_graph, then = _trace_region("then", [], run(true_fn))
    else_graph, otherwise = _trace_region("else", [], run(false_fn))
    structure, other = structures
    if other != structure:
        message = f"the false branch of `cond` returns {other}, the true branch {structure}"
        raise located(ArgumentError(message, help="return containers of the same form"))
    names = paths(structure, "result")
    types = [_common(name, a, b) for name, a, b in zip(names, then, otherwise, strict=True)]
    for region, results in ((then_graph, then), (else_graph, otherwise)):
        with reopened(region):
            region.outputs = [cast(r, type.dtype).value for r, type in zip(results, types, strict=True)]
    graph = current_graph()
    made = graph.append("if", [chosen.value], {}, types, (then_graph, else_graph))
    return build(structure, [Array(value, graph) for value in made])


def _common(name: str, then: Array, otherwise: Array) -> ArrayType:
    """The type of a result of both branches; Python numbers take that of the other branch."""
    if then.shape != otherwise.shape:
        message = f"`{name}` of `cond` has shape {then.shape} from the true branch, {otherwise.shape} from the false"
        raise located(ShapeError(message, help="return arrays of one shape from both branches"))
    dtype = result_dtype([then, otherwise])
    if any(a.dtype != dtype and not a.weak for a in (then, otherwise)):
        message = f"`{name}` of `cond` is {then.dtype} from the true branch, {otherwise.dtype} from the false"
        raise located(DTypeError(message, help=f"cast both with `.astype(tw.{dtype})`"))
    return ArrayType(then.shape, dtype)
