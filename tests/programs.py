"""Array programs built from primitives, for tests that need every lowering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.frontend.trace import Graph, Value
from tilewright.primitives import ArrayType

F32 = dtypes.f32


class Program(Graph):
    """A graph with short spellings of the primitives."""

    def array(self, *shape: int, dtype: DType = F32) -> Value:
        return self.input(ArrayType(shape, dtype))

    def map(self, fn: str, *operands: Value) -> Value:
        return self.add("map", operands, fn=fn)[0]

    def broadcast(self, x: Value, shape: tuple[int, ...], axes: tuple[int, ...]) -> Value:
        return self.add("broadcast", [x], shape=shape, axes=axes)[0]

    def reduce(self, x: Value, fn: str, axes: tuple[int, ...]) -> Value:
        return self.add("reduce", [x], fn=fn, axes=axes)[0]

    def scalar(self, value: float, dtype: DType = F32) -> Value:
        return self.add("constant", value=value, resource="", shape=(), dtype=dtype.name)[0]

    def splat(self, value: float, shape: tuple[int, ...], dtype: DType = F32) -> Value:
        return self.broadcast(self.scalar(value, dtype), shape, ())

    def dot(
        self, left: Value, right: Value, batch: int, left_axis: int, right_axis: int, part: int | None = None
    ) -> Value:
        axes = tuple(range(batch))
        return self.add(
            "contract",
            [left, right],
            left_batch=axes,
            right_batch=axes,
            left_contract=(left_axis,),
            right_contract=(right_axis,),
            dtype=left.dtype.name,
            **({} if part is None else {"part": part}),
        )[0]

    def softmax(self, x: Value) -> Value:
        last = len(x.shape) - 1
        rows = tuple(range(last))
        highest = self.broadcast(self.reduce(x, "maximum", (last,)), x.shape, rows)
        e = self.map("exp", self.map("subtract", x, highest))
        return self.map("divide", e, self.broadcast(self.reduce(e, "add", (last,)), x.shape, rows))


def softmax_rows(p: Program) -> list[Value]:
    return [p.softmax(p.array(5, 33))]


def softmax_columns(p: Program) -> list[Value]:
    x = p.array(33, 50)
    e = p.map("exp", p.map("subtract", x, p.broadcast(p.reduce(x, "maximum", (0,)), x.shape, (1,))))
    return [p.map("divide", e, p.broadcast(p.reduce(e, "add", (0,)), x.shape, (1,)))]


def softmax_long_rows(p: Program) -> list[Value]:
    """Rows that do not fit a tile are reduced in chunks."""
    return [p.softmax(p.array(3, 40000))]


def layer_norm(p: Program) -> list[Value]:
    x, weight = p.array(4, 6, 20), p.array(20)
    count = p.splat(20.0, (4, 6))
    mean = p.map("divide", p.reduce(x, "add", (2,)), count)
    centred = p.map("subtract", x, p.broadcast(mean, x.shape, (0, 1)))
    variance = p.map("divide", p.reduce(p.map("multiply", centred, centred), "add", (2,)), count)
    scale = p.map("rsqrt", p.map("add", variance, p.splat(1e-5, (4, 6))))
    normal = p.map("multiply", centred, p.broadcast(scale, x.shape, (0, 1)))
    return [p.map("multiply", normal, p.broadcast(weight, x.shape, (2,)))]


def matmul_epilogue(p: Program) -> list[Value]:
    x, w, bias = p.array(3, 70, 300), p.array(300, 90), p.array(90)
    y = p.dot(x, w, 0, 2, 0)
    y = p.map("add", y, p.broadcast(bias, y.shape, (2,)))
    return [p.map("multiply", y, p.map("sigmoid", y))]


def matmul_constant(p: Program) -> list[Value]:
    weights = np.random.default_rng(3).standard_normal((40, 50)).astype(np.float32)
    x = p.array(17, 40)
    return [p.dot(x, p.constant(weights, ArrayType((40, 50), F32)), 0, 1, 0)]


def attention(p: Program) -> list[Value]:
    q, k, v = p.array(2, 3, 70, 16), p.array(2, 3, 300, 16), p.array(2, 3, 300, 24)
    mask = p.array(2, 300)
    scores = p.dot(q, k, 2, 3, 3)
    scores = p.map("multiply", scores, p.splat(0.25, scores.shape))
    scores = p.map("add", scores, p.broadcast(mask, scores.shape, (0, 3)))
    result = p.dot(p.softmax(scores), v, 2, 3, 2)
    result = p.add("transpose", [result], permutation=(0, 2, 1, 3))[0]
    return [p.add("reshape", [result], shape=(2, 70, 72))[0]]


def causal_attention(p: Program) -> list[Value]:
    """Two heads share keys; more queries than keys, so that the first ones see none."""
    q, k, v = p.array(3, 2, 170, 16), p.array(3, 150, 16), p.array(3, 150, 24)
    scores = p.dot(q, k, 1, 3, 2)
    query, key = (p.add("iota", [], shape=(170, 150), dtype="i64", axis=axis)[0] for axis in (0, 1))
    query = p.map("add", query, p.splat(-20, query.shape, dtypes.i64))
    seen = p.broadcast(p.map("less_equal", key, query), scores.shape, (2, 3))
    scores = p.map("select", seen, scores, p.splat(float("-inf"), scores.shape))
    return [p.dot(p.softmax(scores), v, 1, 3, 1)]


def convolution(p: Program) -> list[Value]:
    x, w = p.array(2, 6, 9, 11), p.array(8, 3, 3, 2)
    y = p.add("convolve", [x, w], strides=(2, 1), low=(1, 0), high=(1, 1), dilation=(1, 2), groups=2)[0]
    return [p.map("maximum", y, p.splat(0.0, y.shape))]


def ordered(p: Program) -> list[Value]:
    x = p.array(7, 9)
    return [
        p.add("scan", [x], fn="add", axis=0, reverse=False)[0],
        p.add("scan", [x], fn="maximum", axis=1, reverse=True)[0],
        p.add("sort", [x], axis=1, descending=True)[0],
        p.add("arg_reduce", [x], fn="maximum", axis=1)[0],
        *p.add("top_k", [x], k=3),
    ]


def ordered_long(p: Program) -> list[Value]:
    """Lines that are cut into parts, the last of which is shorter."""
    x, table = p.array(270001), p.array(9001, 40)
    return [
        p.add("scan", [p.map("sin", x)], fn="maximum", axis=0, reverse=False)[0],
        p.add("scan", [table], fn="minimum", axis=0, reverse=False)[0],
        p.add("arg_reduce", [x], fn="minimum", axis=0)[0],
        p.add("arg_reduce", [table], fn="maximum", axis=0)[0],
    ]


def indexed(p: Program) -> list[Value]:
    x, i, start = p.array(7, 9), p.array(4, dtype=dtypes.i32), p.array(dtype=dtypes.i32)
    rows = p.add("gather", [x, i], axes=(0,))[0]
    window = p.add("dynamic_slice", [x, start, start], sizes=(3, 9))[0]
    return [
        rows,
        p.add("scatter", [x, rows, i], axes=(0,), fn="add")[0],
        window,
        p.add("dynamic_update_slice", [x, window, start, start])[0],
    ]


def moved(p: Program) -> list[Value]:
    x = p.array(7, 9)
    turned = p.add("transpose", [x], permutation=(1, 0))[0]
    part = p.add("slice", [x], starts=(1, 0), limits=(6, 9), strides=(2, 3))[0]
    return [
        turned,
        p.map("exp", p.add("reshape", [turned], shape=(3, 21))[0]),
        p.add("reverse", [part], axes=(1,))[0],
        p.add("pad", [x, p.scalar(3.0)], low=(1, 2), high=(0, 1), interior=(0, 1))[0],
        p.add("concat", [x, p.map("exp", x), x], axis=1)[0],
        p.add(
            "window_reduce",
            [x],
            fn="maximum",
            window=(2, 3),
            strides=(1, 2),
            low=(1, 0),
            high=(0, 1),
            dilation=(1, 1),
        )[0],
        p.reduce(x, "add", (0, 1)),
        x,
        p.splat(2.5, (3, 2)),
    ]


def random_numbers(p: Program) -> list[Value]:
    return [p.add("random_bits", [p.array(2, dtype=dtypes.u32)], shape=(3, 5))[0]]


def control_flow(p: Program) -> list[Value]:
    """Fibonacci by `while` (carried arrays change places), then a choice."""
    limit = p.array(dtype=dtypes.i32)
    one = p.scalar(1, dtypes.i32)
    condition, body = p.nested("condition"), p.nested("body")
    types = [ArrayType((), dtypes.i32)] * 3
    count, first, second = (condition.input(t) for t in types)
    condition.outputs = [condition.add("map", [count, limit], fn="less")[0]]
    count, first, second = (body.input(t) for t in types)
    body.outputs = [
        body.add("map", [count, one], fn="add")[0],
        second,
        body.add("map", [first, second], fn="add")[0],
    ]
    zero = p.scalar(0, dtypes.i32)
    _, _, result = p.append("while", [zero, zero, one], {}, types, [condition, body])
    then, otherwise = p.nested("then"), p.nested("otherwise")
    then.outputs = [then.add("map", [result], fn="negative")[0]]
    otherwise.outputs = [result]
    odd = p.add("map", [limit, p.scalar(4, dtypes.i32)], fn="less")[0]
    return [result, *p.append("if", [odd], {}, [types[0]], [then, otherwise])]


def empty_arrays(p: Program) -> list[Value]:
    x, w = p.array(0, 4), p.array(4, 5)
    y, z = p.array(3, 0), p.array(0, 2)
    return [p.map("exp", x), p.reduce(x, "add", (0,)), p.dot(x, w, 0, 1, 0), p.dot(y, z, 0, 1, 0)]


def product_in_parts(p: Program) -> list[Value]:
    x, w = p.array(20, 150), p.array(150, 17)
    y, z = p.array(2, 9, 70), p.array(2, 70, 5)
    parts = [p.dot(x, w, 0, 1, 0, part) for part in (64, 25, 150, 200)]
    return [*parts, p.reduce(parts[0], "add", (0,)), p.dot(y, z, 1, 2, 1, part=32)]


def unfolded(p: Program) -> list[Value]:
    x, w = p.array(2, 40, 6), p.array(9, 3, 2, 6)
    windows = p.add("unfold", [x], axis=1, sizes=(27, 3, 2), steps=(1, 5, 2))[0]
    product = p.add(
        "contract",
        [w, windows],
        left_batch=(),
        right_batch=(),
        left_contract=(1, 2, 3),
        right_contract=(2, 3, 4),
        dtype="f32",
    )[0]
    taken = p.add("unfold", [product], axis=2, sizes=(3, 4), steps=(7, 1))[0]
    return [p.map("exp", p.add("unfold", [x], axis=2, sizes=(2, 2), steps=(3, 2))[0]), p.reduce(taken, "add", (3,))]


PROGRAMS: Sequence[Callable[[Program], list[Value]]] = (
    softmax_rows,
    softmax_columns,
    softmax_long_rows,
    layer_norm,
    matmul_epilogue,
    matmul_constant,
    product_in_parts,
    unfolded,
    attention,
    causal_attention,
    convolution,
    ordered,
    ordered_long,
    indexed,
    moved,
    random_numbers,
    control_flow,
    empty_arrays,
)


def build(make: Callable[[Program], list[Value]]) -> Program:
    """The traced program that a function describes."""
    program = Program(make.__name__)
    program.outputs = make(program)
    return program


def inputs_for(program: Program, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Random arrays of the program's input types; integers stay below 7."""
    rng = np.random.default_rng(seed)
    arrays = []
    for value in program.inputs:
        raw = rng.standard_normal(value.shape) if value.dtype.is_float else rng.integers(0, 7, value.shape)
        arrays.append(np.asarray(raw).astype(value.dtype.numpy))
    return arrays
