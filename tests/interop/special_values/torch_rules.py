"""Elementwise, reduction and cast rules of ATen against eager torch on the CPU, which is asked on contiguous tensors
(vectors of the CPU) and on tensors with strides (one element at a time)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import getitem
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tests.interop.special_values.compare import Case
from tests.interop.special_values.values import pairs, rows, special
from tilewright.interop.torch import BackendOptions
from tilewright.interop.torch.dynamo import build_plan
from tilewright.interop.torch.registry import find_rule, known_operators
from tilewright.interop.torch.tensors import dtype_of, numpy_reader, tensor_maker

TYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"),
    *("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"),
)
_FLOATS = (0.0, -0.0, 1.5, 0.1, -2.0, 3.0, 0.5, float("inf"), float("-inf"), float("nan"))
_INTEGERS = (0, 1, -1, 3, -7, 127, -128)
# Rules that choose, move or round exactly: bit for bit. Others are within units of the last place.
_EXACT = frozenset(
    [
        "abs",
        "add",
        "alias",
        "__lshift__",
        "__rshift__",
        "bitwise_and",
        "bitwise_left_shift",
        "bitwise_not",
        "bitwise_or",
        "bitwise_right_shift",
        "bitwise_xor",
        "ceil",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clone",
        "contiguous",
        "copy",
        "copysign",
        "detach",
        "div",
        "eq",
        "fill",
        "floor",
        "floor_divide",
        "fmax",
        "fmin",
        "fmod",
        "ge",
        "gt",
        "hardtanh",
        "isinf",
        "isnan",
        "le",
        "lift",
        "lift_fresh",
        "lift_fresh_copy",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "lt",
        "masked_fill",
        "maximum",
        "minimum",
        "mul",
        "ne",
        "neg",
        "nextafter",
        "reciprocal",
        "relu",
        "remainder",
        "round",
        "rsub",
        "sgn",
        "sign",
        "signbit",
        "sqrt",
        "square",
        "sub",
        "trunc",
        "true_divide",
        "where",
        "_to_copy",
        "all",
        "amax",
        "amin",
        "any",
        "argmax",
        "argmin",
        "cummax",
        "cummin",
        "max",
        "min",
        "sort",
        "topk",
        "kthvalue",
        "median",
    ]
)
# Integers of which division by 0 raises.
_DIVISIONS = ("div", "floor_divide", "fmod", "remainder")
_ULPS = 8.0
_EXTREMES = frozenset(
    [
        *("amax", "amin", "max", "min", "cummax", "cummin", "maximum", "minimum", "kthvalue", "median", "topk", "sort"),
        *("fmax", "fmin"),
    ]
)
# Places of equal elements are in no order.
_UNORDERED = frozenset(["kthvalue", "median", "topk", "sort", "max", "min", "cummax", "cummin"])
_SUMS = frozenset(["sum", "mean", "prod", "cumsum", "cumprod", "var", "std", "var_mean", "linalg_vector_norm"])


def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy type of a `torch.dtype` by name."""
    return dtype_of(getattr(torch, name)).numpy


def _tensor(array: Any) -> Any:
    return tensor_maker(dtype_of(getattr(torch, str(array.dtype))))(np.ascontiguousarray(array).copy())


def _numpy(result: Any) -> list[Any]:
    parts = result if isinstance(result, tuple | list) else [result]
    return [numpy_reader(t.dtype)(t.contiguous()) for t in parts if isinstance(t, torch.Tensor)]


def _strided(tensor: Any) -> Any:
    return torch.stack([tensor, tensor], -1)[..., 0]


def _planned(overload: Any, tensors: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The results of a graph of one node, all of which must be compiled."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"x{n}") for n in range(len(tensors))]
    for node, tensor in zip(inputs, tensors, strict=True):
        node.meta["val"] = tensor
    given = iter(inputs)
    node = graph.call_function(overload, tuple(next(given) if a is _SLOT else a for a in args), kwargs)
    node.meta["val"] = overload(*_filled(args, tensors), **kwargs)
    result = node.meta["val"]
    if isinstance(result, tuple | list):
        outputs = []
        for n, part in enumerate(result):
            outputs.append(graph.call_function(getitem, (node, n)))
            outputs[-1].meta["val"] = part
    else:
        outputs = [node]
    graph.output(outputs)
    plan = build_plan(torch.fx.GraphModule(torch.nn.Module(), graph), options=BackendOptions(fallback="error"))
    return plan([*tensors])


_SLOT: Any = object()


def _filled(args: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    given = iter(tensors)
    return [next(given) if a is _SLOT else a for a in args]


def _case(op: str, dtype: str, overload: Any, arrays: Sequence[Any], args: Sequence[Any], kwargs: Any = None) -> Case:
    """A call whose tensors take the places of `_SLOT`."""
    options = kwargs or {}
    base = str(overload).split(".")[1]

    def theirs() -> list[Any]:
        tensors = [_tensor(a) for a in arrays]
        found = [_numpy(overload(*_filled(args, tensors), **options))]
        if tensors[0].ndim:
            found.append(_numpy(overload(*_filled(args, [_strided(t) for t in tensors]), **options)))
        if base == "sqrt":
            # Vectors of torch are not correctly rounded on every machine: what is may differ from them.
            wide = tensors[0] if tensors[0].is_floating_point() else tensors[0].float()
            found.append([np.sqrt(_numpy(wide)[0].astype(np.float64)).astype(found[0][0].dtype)])
        if base == "var_mean":
            # Updated element by element: of an infinite one before others torch makes NaN.
            shape = overload(*_filled(args, tensors), **options)[1].shape
            found.append([found[0][0], _numpy(tensors[0].mean(args[1]).reshape(shape))[0]])
        return found

    def ours() -> list[Any]:
        return _numpy(_planned(overload, [_tensor(a) for a in arrays], args, options))

    def exact() -> list[Any]:
        wide = [_tensor(a) for a in arrays]
        wide = [t.double() if t.dtype != torch.bool else t for t in wide]
        return _numpy(overload(*_filled(args, wide), **{k: v for k, v in options.items() if k != "dtype"}))

    if base in _EXACT:
        first = 1 if base in _UNORDERED else None
        return Case("torch", op, dtype, ours, theirs, arrays, any_zero=base in _EXTREMES, results=first)
    whole = "dim" not in {a.name for a in overload._schema.arguments}
    scale = _scale(base, arrays[0], whole) if base in _SUMS else None
    if base in ("gelu", "logaddexp"):
        with np.errstate(all="ignore"):  # what 1 + erf, or a logarithm of a sum, cancels from
            scale = np.max([np.nan_to_num(np.abs(a.astype(np.float64)), posinf=0.0) for a in arrays], axis=0)
    return Case("torch", op, dtype, ours, theirs, arrays, _ULPS, None if base in _SUMS else exact, scale=scale)


def _scale(base: str, rows: Any, whole: bool) -> Any:
    """The magnitudes that the sum of a row, or of the whole array, cancels from, so many times that `_ULPS` of it is
    the bound of a sum in any order: half a unit for each term."""
    with np.errstate(all="ignore"):
        size = np.abs(np.where(np.isfinite(rows.astype(np.float64)), rows.astype(np.float64), 0))
        size = size**2 if base in ("var", "std", "var_mean") else size
        total = size.sum(-1, keepdims=True)
        terms = rows.size if whole else rows.shape[-1]
        total = total * max(1.0, terms / 2 / _ULPS)
    if whole:
        return total.sum()
    return np.broadcast_to(total, rows.shape) if base.startswith("cum") else total[:, 0]


def _settled(base: str, rows: Any) -> Any:
    """Rows whose sums and products neither overflow nor underflow in any order of their terms."""
    if base not in _SUMS or rows.dtype.kind in "iub":
        return rows
    with np.errstate(all="ignore"):
        wide = np.abs(rows.astype(np.float64))
        sizes = np.where(np.isfinite(wide) & (wide > 0), wide, 1.0)
        limit = np.log2(float(ml_dtypes.finfo(rows.dtype).max)) - 8
        bits = np.abs(np.log2(sizes))
        fits = bits.sum(-1) < limit if base in ("prod", "cumprod") else bits.max(-1) < limit / 2
    return rows[fits]


def cases(match: str) -> Iterator[Case]:
    """All cases whose operator has `match` in its name."""
    for name in known_operators():
        if not name.startswith("aten.") or match not in name:
            continue
        overload = _overload(name)
        module = getattr(find_rule(name), "__module__", "").rpartition(".")[2]
        if overload is None or name.startswith("aten._to_copy"):
            continue
        for dtype in TYPES:
            if module == "elementwise":
                yield from _elementwise(name, overload, dtype)
            elif module == "reduction":
                yield from _reduction(name, overload, dtype)
    if match in "aten._to_copy.default":
        yield from _casts()


def _overload(name: str) -> Any:
    _, base, overload = name.split(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload, None) if packet is not None else None


def _elementwise(name: str, overload: Any, dtype: str) -> Iterator[Case]:
    needed = [a for a in overload._schema.arguments if not a.has_default_value()]
    kinds = [str(a.type) for a in needed]
    if any(k not in ("Tensor", "number", "Scalar", "int", "bool") for k in kinds) or "softmax" in name:
        return
    kind = numpy_type(dtype)
    slots = kinds.count("Tensor")
    first: list[Any]
    if name.startswith(("aten.where", "aten.masked_fill")):
        yield from _choices(name, overload, kind, dtype, kinds)
        return
    if slots == 1:
        first = [special(kind)]
    elif slots == 2:
        first = list(pairs(kind))
    elif name.startswith("aten.clamp"):
        first = [*pairs(kind), np.roll(pairs(kind)[1], 1)]
    else:
        return
    base = name.split(".")[1]
    if slots == 2 and base in _DIVISIONS and kind.kind in "iu":
        kept = first[1] != 0
        first = [a[kept] for a in first]
    numbers = [n for n, k in enumerate(kinds) if k != "Tensor"]
    options = {"rounding_mode": "trunc"} if "_mode" in name else {}
    if name == "aten.clamp.default":
        yield from _with_bounds(name, overload, dtype, first)
        return
    if not numbers:
        modes = [options] if "_mode" not in name else [{"rounding_mode": m} for m in (None, "trunc", "floor")]
        for mode in modes:
            yield _case(name, dtype, overload, first, [_SLOT] * len(kinds), mode)
        return
    choices = _FLOATS if kind.kind not in "iub" else (True, False) if kind == np.bool_ else _INTEGERS
    for value in choices:
        if base in _DIVISIONS and not value and kind.kind in "iu":
            continue
        args: list[Any] = [_SLOT] * len(kinds)
        for n in numbers:
            args[n] = value
        yield _case(name, dtype, overload, first, args, options)


def _with_bounds(name: str, overload: Any, dtype: str, first: Sequence[Any]) -> Iterator[Case]:
    """Clamps have defaults alone: their bounds."""
    if name == "aten.clamp.default":
        numbers = _FLOATS if numpy_type(dtype).kind not in "iub" else _INTEGERS
        for low, high in ((0, 1), (numbers[1], 1), (numbers[4], numbers[1]), (numbers[-1], 1), (0, numbers[-1])):
            yield _case(name, dtype, overload, first, [_SLOT, low, high])


def _choices(name: str, overload: Any, kind: Any, dtype: str, kinds: Sequence[str]) -> Iterator[Case]:
    a, b = pairs(kind)
    mask = np.arange(len(a)) % 3 == 0
    numbers = _FLOATS if kind.kind not in "iub" else _INTEGERS[:4]
    if name.startswith("aten.masked_fill"):
        if kinds[-1] == "Tensor":
            yield _case(name, dtype, overload, [a, mask, np.array(special(kind)[-1])], [_SLOT] * 3)
        else:
            for n in numbers:
                yield _case(name, dtype, overload, [a, mask], [_SLOT, _SLOT, bool(n) if kind == np.bool_ else n])
    elif name == "aten.where.self":
        yield _case(name, dtype, overload, [mask, a, b], [_SLOT] * 3)
    elif kinds.count("Tensor") == 2:
        for n in numbers:
            args = [_SLOT if k == "Tensor" else n for k in kinds]
            yield _case(name, dtype, overload, [mask, a], args)


def _reduction(name: str, overload: Any, dtype: str) -> Iterator[Case]:
    if "search" in name or "bucketize" in name:
        return
    kind = numpy_type(dtype)
    arguments = overload._schema.arguments
    for width in (2, 3, 64):
        array = _settled(name.split(".")[1], rows(kind, width))
        for order in _orders(name):
            args: list[Any] = []
            options: dict[str, Any] = {}
            for a in arguments:
                value = _reduction_argument(a, order)
                if value is None and a.has_default_value():
                    continue
                if a.kwarg_only:
                    options[a.name] = value
                else:
                    args.append(value)
            if "dim" not in {a.name for a in arguments}:
                array = array[:200]  # all rows at once
            yield _case(name, dtype, overload, [array], args, options)


def _orders(name: str) -> Sequence[float]:
    return (0.0, 1.0, 2.0, 3.0, float("inf"), float("-inf")) if "vector_norm" in name else (2.0,)


def _reduction_argument(argument: Any, order: float) -> Any:
    kinds = {"Tensor": _SLOT, "List[int]": [1], "Optional[List[int]]": [1], "int": 1, "Optional[int]": 1}
    if argument.name == "self":
        return _SLOT
    if argument.name in ("dim", "k"):
        return kinds.get(str(argument.type), 1)
    return order if argument.name == "ord" else True if argument.name == "stable" else None


def _casts() -> Iterator[Case]:
    overload = torch.ops.aten._to_copy.default
    for source in TYPES:
        values = special(numpy_type(source))
        # More than one vector of each.
        values = np.tile(values, max(1, 256 // len(values)))
        for destination in TYPES:
            options = {"dtype": getattr(torch, destination)}
            yield _case("aten._to_copy.default", f"{source} to {destination}", overload, [values], [_SLOT], options)
