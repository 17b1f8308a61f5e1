"""The reference evaluator of the package `onnx`, for models that may be hostile. Bounded are the nodes that it
evaluates for one of the model, and the elements of their results."""

from __future__ import annotations

import functools
import importlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.onnx.protobuf import Proto

Tensor = np.ndarray[Any, Any]

# Elements of one result, and nodes evaluated for one node of the model: those of its bodies, each time.
MAX_ELEMENTS = 1 << 28
_MAX_STEPS = 1 << 20


class _Steps(threading.local):
    """How many nodes this thread has evaluated for the node of the model that runs."""

    done: int = 0


_steps = _Steps()


def evaluated(model: Proto) -> Callable[[Mapping[str, Any]], list[Any]]:
    """A function that evaluates a model on values by name.

    It raises `UnsupportedOperatorError` where a result is too large or the model takes too many steps, and what the
    reference raises.
    """
    evaluator = _evaluator()(model)

    def run(values: Mapping[str, object]) -> list[Any]:
        _steps.done = 0
        return evaluator.run(None, dict(values))

    return run


@functools.cache
def _evaluator() -> type[Any]:
    """The class of evaluators. Evaluators of bodies and functions are made by the class of the enclosing one."""
    base: type[Any] = importlib.import_module("onnx.reference").ReferenceEvaluator

    class Bounded(base):
        def __init__(self, *args: object, **kwargs: object) -> None:
            reference: Any = super()
            # Named here, as those of functions are not told by the one around.
            kwargs["new_ops"] = [_loop(), _string_normalizer()]
            reference.__init__(*args, **kwargs)
            for node in self.rt_nodes_:
                node.run = _bounded(node.op_type, node.run)

        def run(self, output_names: object, feed_inputs: Mapping[str, object], *args: object, **kwargs: object) -> Any:
            # A body is given all values around it: its own constants go before those.
            own = set(self.rt_inits_) - set(self.input_names)
            feeds = {name: value for name, value in feed_inputs.items() if name not in own}
            reference: Any = super()
            return reference.run(output_names, feeds, *args, **kwargs)

    return Bounded


@functools.cache
def _loop() -> type[Any]:
    """Loops as ONNX defines them: that of the reference takes values around it for those of the body that are called
    alike, an absent condition for false, and puts what trips give one after the other along the first axis."""
    base: type[Any] = importlib.import_module("onnx.reference.op_run").OpRun

    class Loop(base):
        op_domain = ""

        def need_context(self) -> bool:
            return True

        def _run(
            self,
            trips: Any,
            condition: Any = None,
            *carried: object,
            context: Mapping[str, Any],
            body: Any,
            attributes: object = None,
            **_: Any,
        ) -> tuple[Any, ...]:
            count, state = len(carried), list(carried)
            rows: list[list[Any]] = [[] for _ in body.output_names[1 + count :]]
            holds, trip = condition is None or bool(np.all(condition)), 0
            while holds and (trips is None or trip < int(trips.reshape(-1)[0])):
                given = [np.asarray(trip, np.int64), np.asarray(True), *state]
                feeds = {**context, **dict(zip(body.input_names, given, strict=True))}
                verdict, *results = self._run_body(feeds, attributes=attributes)
                state = results[:count]
                for row, result in zip(rows, results[count:], strict=True):
                    row.append(result)
                holds, trip = bool(np.all(verdict)), trip + 1
            if not trip and rows:
                raise NotImplementedError("a loop of no trips gives an empty array of a shape that is not known")
            return (*state, *(np.stack(row) for row in rows))

    return Loop


@functools.cache
def _string_normalizer() -> type[Any]:
    """As the reference has it, but that it leaves the locale of the process alone, on which nothing of it depends."""
    module = importlib.import_module("onnx.reference.ops.op_string_normalizer")
    base: type[Any] = module.StringNormalizer

    class StringNormalizer(base):
        op_domain = ""

        def _run(
            self,
            x: object,
            case_change_action: object = None,
            is_case_sensitive: object = None,
            locale: object = None,
            stopwords: object = None,
        ) -> tuple[Any, ...]:
            reference: Any = super()
            return reference._run(x, case_change_action, is_case_sensitive, None, stopwords)

    return StringNormalizer


def check_elements(what: str, count: float) -> None:
    """Refuse to make an array of very many elements.

    Raises:
        UnsupportedOperatorError: it has more than `MAX_ELEMENTS`.
    """
    if count > MAX_ELEMENTS:
        message = f"`{what}` would make an array of {count:.3g} elements on the host"
        raise UnsupportedOperatorError(message, help=f"the host takes {MAX_ELEMENTS} at most: compute it elsewhere")


def _bounded(op: str, run: Callable[..., object]) -> Callable[..., Any]:
    def bounded(*inputs: object, **kwargs: object) -> Any:
        _steps.done += 1
        if _steps.done > _MAX_STEPS:
            message = f"control flow takes more than {_MAX_STEPS} steps on the host"
            raise UnsupportedOperatorError(message, help="take fewer trips, or split the model")
        sized = _SIZES.get(op)
        if sized is not None and all(item is None or isinstance(item, np.ndarray | np.generic) for item in inputs):
            check_elements(op, sized(*map(_array, inputs)))
        return run(*inputs, **kwargs)

    return bounded


def _array(item: object) -> Tensor | None:
    return None if item is None else np.asarray(item)


# ---- how many elements a result has -------------------------------------------------------------------------------
# Estimates from above of what an operator makes of little; wrong operands are left to the operator.


def _product(sizes: object) -> int:
    return math.prod(max(int(size), 0) for size in np.asarray(sizes).reshape(-1).tolist())


def _of_shape(shape: Tensor, *_: object) -> int:
    return _product(shape)


def _broadcast(*operands: Tensor | None) -> int:
    rank = max(operand.ndim for operand in operands if operand is not None)
    shapes = [(1,) * (rank - operand.ndim) + operand.shape for operand in operands if operand is not None]
    return math.prod(0 if 0 in sizes else max(sizes) for sizes in zip(*shapes, strict=True))


def _expanded(x: Tensor, shape: Tensor, *_: object) -> int:
    return x.size * max(_product(shape), 1)


def _range(start: Tensor, limit: Tensor, delta: Tensor, *_: object) -> float:
    first, last, step = (float(bound.reshape(-1)[0]) for bound in (start, limit, delta))
    return max((last - first) / step, 0.0) if step else 0.0


def _padded(x: Tensor, pads: Tensor, value: object = None, axes: Tensor | None = None, *_: object) -> int:
    rank = pads.size // 2
    along: list[int] = list(range(x.ndim)) if axes is None else axes.reshape(-1).tolist()
    added: list[int] = pads.reshape(-1).tolist()
    shape: tuple[int, ...] = x.shape
    sizes = dict(enumerate(shape))
    for n, axis in zip(range(rank), along, strict=False):
        at = axis + x.ndim if axis < 0 else axis
        sizes[at] = sizes.get(at, 1) + added[n] + added[n + rank]
    return _product([*sizes.values()])


def _one_hot(indices: Tensor, depth: Tensor, *_: object) -> int:
    return indices.size * max(int(depth.reshape(-1)[0]), 0)


def _resized(x: Tensor, *rest: Tensor | None) -> float:
    # Scales, or sizes after them; older versions have scales alone.
    scales, sizes = (*rest[-2:], None)[:2] if len(rest) > 1 else (rest[0] if rest else None, None)
    if sizes is not None and sizes.size:
        return _product(sizes) * (x.size if sizes.size < x.ndim else 1)
    if scales is not None and scales.size:
        return x.size * math.prod(max(float(scale), 0.0) for scale in scales.reshape(-1).tolist())
    return x.size


def _multiplied(x: Tensor, y: Tensor, *_: object) -> int:
    batch = _broadcast(np.empty(x.shape[:-2], bool), np.empty(y.shape[:-2], bool))
    return batch * math.prod(x.shape[-2:-1]) * math.prod(y.shape[y.ndim - 1 :] if y.ndim > 1 else ())


def _tiled(x: Tensor, repeats: Tensor, *_: object) -> int:
    return x.size * _product(repeats)


def _joined(*parts: Tensor | None) -> int:
    return sum(part.size for part in parts if part is not None)


def _mel_weights(bins: Tensor, points: Tensor, *_: object) -> int:
    return _product(bins) * (_product(points) // 2 + 1)


_ELEMENTWISE: Sequence[str] = (
    *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual"),
    *("Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "StringConcat", "Sub", "Sum"),
    *("Where", "Xor"),
)
_SIZES: dict[str, Callable[..., float]] = {
    **dict.fromkeys(_ELEMENTWISE, _broadcast),
    "BlackmanWindow": _of_shape,
    "CenterCropPad": _expanded,
    "Concat": _joined,
    "ConstantOfShape": _of_shape,
    "Expand": _expanded,
    "HammingWindow": _of_shape,
    "HannWindow": _of_shape,
    "MatMul": _multiplied,
    "MelWeightMatrix": _mel_weights,
    "OneHot": _one_hot,
    "Pad": _padded,
    "Range": _range,
    "Resize": _resized,
    "Tile": _tiled,
    "Upsample": _resized,
}
