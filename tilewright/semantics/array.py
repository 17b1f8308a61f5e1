"""The definition of every `array` primitive in NumPy, and the interpreter of array functions.

`PRIMITIVES[name](operands, attributes)` takes and gives NumPy arrays. 16-bit floats compute in f32 and round after each
operation; reductions and contractions of 16-bit floats accumulate in f32 and round once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tilewright import collectives, dtypes, ops
from tilewright.dialects import array
from tilewright.dialects.func import ReturnOp
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.semantics import library

Tensor = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]
# What a device does: it gives collectives and what it brings to them, takes what it has of them, and ends with results.
Steps = Generator[tuple[array.CollectiveOp, Tensor], Tensor, list[Tensor]]

# ufuncs whose `reduce` and `accumulate` define the reductions.
_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


def _constant(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    return np.full(a["shape"], a["value"], dtypes.by_name(a["dtype"]).numpy)


def _iota(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    shape: tuple[int, ...] = a["shape"]
    axis: int = a["axis"]
    along = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return np.broadcast_to(ops.cast(along, dtypes.by_name(a["dtype"])), shape)


def philox(key: Tensor, counter: Tensor) -> Tensor:
    """First word of Philox4x32-10 (Salmon et al., SC 2011) of a u64 counter array under a u32[2] key."""
    words = [counter & 0xFFFFFFFF, counter >> np.uint64(32), np.zeros_like(counter), np.zeros_like(counter)]
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    mask, low32 = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        p0, p1 = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [(p1 >> low32) ^ words[1] ^ k0, p1 & mask, (p0 >> low32) ^ words[3] ^ k1, p0 & mask]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return words[0].astype(np.uint32)


def _random_bits(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    size = int(np.prod(a["shape"], dtype=np.int64))
    return philox(operands[0], np.arange(size, dtype=np.uint64)).reshape(a["shape"])


def _bitcast(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    (x,) = operands  # `ascontiguousarray` would give a scalar an axis
    return np.array(x, order="C").view(dtypes.by_name(a["dtype"]).numpy)


def _broadcast(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    (x,) = operands
    aligned = [1] * len(a["shape"])
    for size, axis in zip(x.shape, a["axes"], strict=True):
        aligned[axis] = size
    return np.broadcast_to(x.reshape(aligned), a["shape"])


def _slice(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    windows = zip(a["starts"], a["limits"], a["strides"], strict=True)
    return operands[0][tuple(slice(start, limit, stride) for start, limit, stride in windows)]


def _unfold(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    sizes: Sequence[int] = a["sizes"]
    grids = np.indices(tuple(sizes), np.int64)
    index = sum((grid * step for grid, step in zip(grids, a["steps"], strict=True)), np.zeros(sizes, np.int64))
    return operands[0].take(index, a["axis"])


def _window(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Tensor]) -> tuple[slice, ...]:
    clamped = [min(max(int(s), 0), n - w) for s, n, w in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(s, s + w) for s, w in zip(clamped, sizes, strict=True))


def _dynamic_slice(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    x, *starts = operands
    return x[_window(x.shape, a["sizes"], starts)]


def _dynamic_update_slice(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    x, update, *starts = operands
    result = x.copy()
    result[_window(x.shape, update.shape, starts)] = update
    return result


def _pad(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    x, value = operands
    shape = [
        n + lo + hi + inner * max(0, n - 1)
        for n, lo, hi, inner in zip(x.shape, a["low"], a["high"], a["interior"], strict=True)
    ]
    result = np.full(shape, value, x.dtype)
    steps = zip(a["low"], a["interior"], x.shape, strict=True)
    result[tuple(slice(lo, lo + (inner + 1) * (n - 1) + 1 if n else lo, inner + 1) for lo, inner, n in steps)] = x
    return result


def _gather(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    x, *indices = operands
    axes = a["axes"]
    front = np.moveaxis(x, axes, range(len(axes)))
    clamped = [_clamp(i, x.shape[axis]) for i, axis in zip(indices, axes, strict=True)]
    if any(x.shape[axis] == 0 for axis in axes):
        return np.zeros((*indices[0].shape, *front.shape[len(axes) :]), x.dtype)
    return front[tuple(clamped)]


def _clamp(index: Tensor, size: int) -> Tensor:
    limit = max(size - 1, 0)
    if index.dtype.kind == "u":
        return np.minimum(index, np.uint64(limit)).astype(np.int64)
    return np.clip(index.astype(np.int64), 0, limit)


def _scatter(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    x, updates, *indices = operands
    axes = a["axes"]
    result = x.copy()
    front = np.moveaxis(result, axes, range(len(axes)))
    for position in itertools.product(*(range(n) for n in indices[0].shape)):
        target = tuple(int(i[position]) for i in indices)
        if any(not 0 <= t < x.shape[axis] for t, axis in zip(target, axes, strict=True)):
            continue
        update = updates[position]
        combine = a["fn"] != "set"
        front[target] = ops.evaluate(a["fn"], [np.asarray(front[target]), np.asarray(update)]) if combine else update
    return result


def _reduce(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    (x,) = operands
    dtype = dtypes.from_numpy(x.dtype)
    if a.get("part") is None:
        return reduce(x, a["fn"], a["axes"], dtype)
    axis, part = a["part_axis"], a["part"]
    windows = np.split(x, range(part, x.shape[axis], part), axis)
    return np.stack([reduce(window, a["fn"], a["axes"], dtype) for window in windows])


def reduce(x: Tensor, fn: str, axes: Sequence[int], dtype: DType) -> Tensor:
    """`fn`-reduce over `axes` in the compute type of `dtype`, rounded once. Floats are added in pairs."""
    identity = ops.FUNCTIONS[fn].identity
    if identity is None:
        raise CompilerBug(f"`{fn}` does not reduce")
    compute = dtype.compute.numpy
    wide, reduced = x.astype(compute, copy=False), tuple(axes)
    if fn == "add" and dtype.is_float:
        # NumPy adds in pairs along contiguous rows only.
        kept = tuple(d for d in range(x.ndim) if d not in reduced)
        rows = wide.transpose(*kept, *reduced)
        size = math.prod(x.shape[d] for d in reduced)
        wide, reduced = np.ascontiguousarray(rows.reshape(*(x.shape[d] for d in kept), size)), (-1,)
    with np.errstate(all="ignore"):
        result = _UFUNCS[fn].reduce(wide, axis=reduced, initial=compute.type(identity(dtype)), dtype=compute)
    return np.asarray(result).astype(dtype.numpy, copy=False)


def _arg_reduce(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    function = np.argmax if a["fn"] == "maximum" else np.argmin
    x = operands[0]
    return np.asarray(function(x.astype(dtypes.from_numpy(x.dtype).compute.numpy), axis=a["axis"])).astype(np.int64)


def _scan(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    """The order in which elements are combined is not part of the definition, only which they are."""
    x, *initial = operands
    dtype = dtypes.from_numpy(x.dtype)
    source = np.flip(x, a["axis"]) if a["reverse"] else x
    with np.errstate(all="ignore"):
        wide = source.astype(dtype.compute.numpy)
        wide = np.concatenate([*(np.expand_dims(i, a["axis"]) for i in initial), wide], a["axis"])
        totals = _UFUNCS[a["fn"]].accumulate(wide, axis=a["axis"], dtype=wide.dtype)
    result = np.split(totals, [len(initial)], a["axis"])[1].astype(dtype.numpy)
    return np.flip(result, a["axis"]) if a["reverse"] else result


def _windows(x: Tensor, window: Sequence[int], a: Attributes, fill: Any) -> Tensor:
    """Sliding windows: shape (*result sizes, *window)."""
    padded = np.pad(x, list(zip(a["low"], a["high"], strict=True)), constant_values=fill)
    spans = [(w - 1) * d + 1 for w, d in zip(window, a["dilation"], strict=True)]
    if any(span > n for span, n in zip(spans, padded.shape, strict=True)):
        sizes = [max(0, (n - span) // s + 1) for n, span, s in zip(padded.shape, spans, a["strides"], strict=True)]
        return np.zeros((*sizes, *window), x.dtype)
    # As integers of the width: views of windows know NumPy's own types alone.
    bits = padded.view(f"u{x.itemsize}") if x.dtype.name in dtypes.EXTENSIONS else padded
    views = np.lib.stride_tricks.sliding_window_view(bits, spans).view(x.dtype)
    outer = tuple(slice(None, None, s) for s in a["strides"])
    inner = tuple(slice(None, None, d) for d in a["dilation"])
    return views[outer + inner]


def _window_reduce(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    (x,) = operands
    dtype = dtypes.from_numpy(x.dtype)
    identity = ops.FUNCTIONS[a["fn"]].identity
    if identity is None:
        raise CompilerBug(f"`{a['fn']}` does not reduce")
    views = _windows(x, a["window"], a, np.asarray(identity(dtype)).astype(dtype.numpy))
    return reduce(views, a["fn"], range(x.ndim, 2 * x.ndim), dtype)


def _contract(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    if a.get("part") is None:
        return _whole_contract(operands, a)
    axes = [a[side][-1] for side in ("left_contract", "right_contract")]
    depth = operands[0].shape[axes[0]]
    parts: list[Tensor] = []
    for start in range(0, depth, a["part"]):
        inside = range(start, min(start + a["part"], depth))
        cut = [x.take(inside, axis) for x, axis in zip(operands, axes, strict=True)]
        parts.append(_whole_contract(cut, a))
    return np.stack(parts) if parts else _whole_contract(operands, a)[None][:0]


def _whole_contract(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    left, right = operands
    if a.get("precision") == "tf32":
        left, right = ops.cast(left, dtypes.tf32), ops.cast(right, dtypes.tf32)
    result = dtypes.by_name(a["dtype"])
    compute = result.compute.numpy
    left_free = [d for d in range(left.ndim) if d not in (*a["left_batch"], *a["left_contract"])]
    right_free = [d for d in range(right.ndim) if d not in (*a["right_batch"], *a["right_contract"])]
    batch = [left.shape[d] for d in a["left_batch"]]
    depth = int(np.prod([left.shape[d] for d in a["left_contract"]], dtype=np.int64))
    rows, columns = [left.shape[d] for d in left_free], [right.shape[d] for d in right_free]
    lhs = left.transpose([*a["left_batch"], *left_free, *a["left_contract"]]).astype(compute)
    rhs = right.transpose([*a["right_batch"], *a["right_contract"], *right_free]).astype(compute)
    with np.errstate(all="ignore"):
        product = np.matmul(
            lhs.reshape(*batch, int(np.prod(rows, dtype=np.int64)), depth),
            rhs.reshape(*batch, depth, int(np.prod(columns, dtype=np.int64))),
        )
    return product.reshape([*batch, *rows, *columns]).astype(result.numpy)


def _convolve(operands: Sequence[Tensor], a: Attributes) -> Tensor:
    image, kernel = operands
    dtype = dtypes.from_numpy(image.dtype)
    groups, rank = a["groups"], image.ndim - 2
    geometry = {
        "strides": (1, 1, *a["strides"]),
        "low": (0, 0, *a["low"]),
        "high": (0, 0, *a["high"]),
        "dilation": (1, 1, *a["dilation"]),
    }
    views = _windows(image.astype(dtype.compute.numpy), (1, 1, *kernel.shape[2:]), geometry, 0)
    batch, channels, *spatial = views.shape[: rank + 2]
    patches = views.reshape(batch, groups, channels // groups, *spatial, *kernel.shape[2:])
    weights = kernel.astype(dtype.compute.numpy).reshape(groups, kernel.shape[0] // groups, *kernel.shape[1:])
    patch_axes = [1, *range(2 + rank, 2 + 2 * rank)]
    weight_axes = list(range(1, 2 + rank))
    parts = [np.tensordot(patches[:, g], weights[g], axes=(patch_axes, weight_axes)) for g in range(groups)]
    joined = np.concatenate(parts, axis=-1)
    return np.moveaxis(joined, -1, 1).astype(dtype.numpy)


def _order(keys: Tensor, axis: int, descending: bool) -> Tensor:
    """Stable ordering indices. NaN is the largest value (NumPy orders it so in its own types only)."""
    keys = keys.astype(dtypes.from_numpy(keys.dtype).compute.numpy, copy=False)
    if not descending:
        return np.argsort(keys, axis=axis, kind="stable")
    flipped = np.flip(keys, axis)
    order = np.flip(np.argsort(flipped, axis=axis, kind="stable"), axis)
    return keys.shape[axis] - 1 - order


def _sort(operands: Sequence[Tensor], a: Attributes) -> tuple[Tensor, ...]:
    order = _order(operands[0], a["axis"], a["descending"])
    return tuple(np.take_along_axis(x, order, a["axis"]) for x in operands)


def _top_k(operands: Sequence[Tensor], a: Attributes) -> tuple[Tensor, ...]:
    (x,) = operands
    order = _order(x, x.ndim - 1, True)[..., : a["k"]]
    return np.take_along_axis(x, order, -1), order.astype(np.int64)


def exchange(attributes: Attributes, brought: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Results of a collective on each device, from the arrays of all, in the order of their group."""
    kind, members = attributes["kind"], list(brought)
    arrays = list(brought.values())
    if kind == "permute":
        received = {
            target: brought[source] for source, target in collectives.groups_of(attributes) if source in brought
        }
        return {device: received.get(device, np.zeros_like(x)) for device, x in brought.items()}
    if kind == "broadcast":
        return dict.fromkeys(members, arrays[0])
    if kind == "all_gather":
        return dict.fromkeys(members, np.concatenate(arrays, attributes["axis"]))
    if kind == "all_to_all":
        parts = [np.split(x, len(members), attributes["split_axis"]) for x in arrays]
        received = [np.concatenate(own, attributes["concat_axis"]) for own in zip(*parts, strict=True)]
        return dict(zip(members, received, strict=True))
    total = reduce(np.stack(arrays), attributes["fn"], (0,), dtypes.from_numpy(arrays[0].dtype))
    if kind == "all_reduce":
        return dict.fromkeys(members, total)
    return dict(zip(members, np.split(total, len(members), attributes["axis"]), strict=True))


PRIMITIVES: dict[str, Callable[[Sequence[Tensor], Attributes], Tensor | tuple[Tensor, ...]]] = {
    "constant": _constant,
    "iota": _iota,
    "random_bits": _random_bits,
    "map": lambda operands, a: ops.evaluate(a["fn"], operands),
    "cast": lambda operands, a: ops.cast(operands[0], dtypes.by_name(a["dtype"])),
    "bitcast": _bitcast,
    "reshape": lambda operands, a: operands[0].reshape(a["shape"]),
    "transpose": lambda operands, a: operands[0].transpose(a["permutation"]),
    "broadcast": _broadcast,
    "slice": _slice,
    "unfold": _unfold,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "pad": _pad,
    "concat": lambda operands, a: np.concatenate(operands, axis=a["axis"]),
    "reverse": lambda operands, a: np.flip(operands[0], a["axes"]),
    "gather": _gather,
    "scatter": _scatter,
    "reduce": _reduce,
    "arg_reduce": _arg_reduce,
    "scan": _scan,
    "window_reduce": _window_reduce,
    "contract": _contract,
    "convolve": _convolve,
    "sort": _sort,
    "top_k": _top_k,
    "library_call": library.call,
    "shard": lambda operands, a: operands[0],
}


def apply(primitive: str, operands: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Run one primitive."""
    result = PRIMITIVES[primitive](operands, attributes)
    return result if isinstance(result, tuple) else (result,)


class Interpreter:
    """Runs array functions on NumPy arrays, as one device of those that a program is for.

    `call` runs a tile kernel: `call(callee, operands) -> results`.
    """

    def __init__(
        self,
        constants: Mapping[str, Tensor],
        call: Callable[[str, Sequence[Tensor]], Sequence[Tensor]] | None = None,
        device: int = 0,
    ) -> None:
        self._constants = constants
        self._call = call
        self._device = device

    def run(self, block: Block, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Run a block of a program for one device, and give its terminator's operands."""
        steps = self.steps(block, arguments)
        try:
            op, operand = next(steps)
            while True:
                op, operand = steps.send(exchange(op.attributes_of(), {self._device: operand})[self._device])
        except StopIteration as end:
            return end.value

    def steps(self, block: Block, arguments: Sequence[Tensor], outer: Mapping[SSAValue, Tensor] | None = None) -> Steps:
        """Run a block, from collective to collective; ends with its terminator's operands."""
        values: dict[SSAValue, Tensor] = dict(outer or {}) | dict(zip(block.args, arguments, strict=True))
        for op in block.ops:
            operands = [values[o] for o in op.operands]
            if isinstance(op, array.YieldOp | ReturnOp):
                return operands
            results = yield from self._run_op(op, operands, values)
            values.update(zip(op.results, results, strict=True))
        raise CompilerBug("a block without a terminator")

    def _run_op(
        self, op: Operation, operands: list[Tensor], values: Mapping[SSAValue, Tensor]
    ) -> Generator[tuple[array.CollectiveOp, Tensor], Tensor, Sequence[Tensor]]:
        if isinstance(op, array.ConstantOp) and op.resource:
            return [self._constants[op.resource]]
        if isinstance(op, array.CollectiveOp):
            return [(yield op, operands[0])]
        if isinstance(op, array.DeviceIndexOp):
            return [np.asarray(self._device, np.int64)]
        if isinstance(op, array.ArrayOp):
            return apply(op.primitive, operands, op.attributes_of())
        if isinstance(op, array.WhileOp):
            while (yield from self.steps(op.condition.block, operands, values))[0]:
                operands = yield from self.steps(op.body.block, operands, values)
            return operands
        if isinstance(op, array.IfOp):
            branch = op.then if operands[0] else op.otherwise
            return (yield from self.steps(branch.block, [], values))
        if isinstance(op, array.FusedOp):
            return (yield from self.steps(op.body.block, operands))
        if isinstance(op, array.CallOp) and self._call is not None:
            return self._call(op.callee, operands)
        raise CompilerBug(f"no semantics for {op.name}")
