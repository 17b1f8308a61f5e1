"""Steps of several primitives that the fusion passes look for: softmax, normalisation, epilogues, attention."""

from __future__ import annotations

import numpy as np

from tests.fuzz.maker import Maker, Unsuitable
from tests.fuzz.steps import DOMAINS
from tilewright import dtypes
from tilewright.frontend.trace import Value


def _spread(m: Maker, x: Value, shape: tuple[int, ...], axes: tuple[int, ...]) -> Value:
    return m.add("broadcast", [x], shape=shape, axes=axes)[0]


def _along(m: Maker, x: Value, fn: str, axis: int) -> Value:
    """A reduction along an axis, broadcast back."""
    kept = tuple(d for d in range(len(x.shape)) if d != axis)
    row = m.add("reduce", [x], fn=fn, axes=(axis,))[0]
    if m.chance(0.3):
        unit = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
        return _spread(m, m.add("reshape", [row], shape=unit)[0], x.shape, tuple(range(len(x.shape))))
    return _spread(m, row, x.shape, kept)


def softmax_of(m: Maker, x: Value, axis: int) -> Value:
    """A softmax along an axis; now and then one that only looks like it."""
    exponential = m.map("exp", m.map("subtract", x, _along(m, x, "maximum", axis)))
    shape = x.shape
    if m.chance(0.12) and len(shape) >= 2 and shape[-1] == shape[-2]:
        row = m.add("reduce", [exponential], fn="add", axes=(len(shape) - 1,))[0]
        wrong = (*range(len(shape) - 2), len(shape) - 1)
        return m.map("divide", exponential, _spread(m, row, shape, wrong))
    fn = "maximum" if m.chance(0.12) else "add"
    return m.map("divide", exponential, _along(m, exponential, fn, axis))


def _floats(m: Maker, low: int = 1) -> Value:
    return m.choose(lambda v: len(v.shape) >= low and v.dtype.is_float and v.type.size > 0, fresh=0.15)


def softmax(m: Maker) -> None:
    x = _floats(m)
    axis = len(x.shape) - 1 if m.chance(0.6) else m.between(0, len(x.shape) - 1)
    m.keep(softmax_of(m, m.bounded_between(x, -12, 12), axis))


def normalise(m: Maker) -> None:
    """Mean and variance along an axis, with a learned scale."""
    x = m.bounded_between(_floats(m), -30, 30)
    axis = len(x.shape) - 1 if m.chance(0.7) else m.between(0, len(x.shape) - 1)
    count = m.splat(float(x.shape[axis]), x.shape, x.dtype)
    centred = m.map("subtract", x, m.map("divide", _along(m, x, "add", axis), count))
    variance = m.map("divide", _along(m, m.map("square", centred), "add", axis), count)
    scale = m.map("rsqrt", m.map("add", variance, m.splat(0.25, x.shape, x.dtype)))
    normal = m.map("multiply", centred, scale)
    weight = _spread(m, m.like((x.shape[axis],), x.dtype), x.shape, (axis,))
    m.keep(m.map("multiply", normal, m.bounded_between(weight, -8, 8)))


def _product(m: Maker, x: Value, y: Value, batch: int, left: int, right: int, dtype: str | None = None) -> Value:
    axes = tuple(range(batch))
    attributes = {"left_batch": axes, "right_batch": axes, "left_contract": (left,), "right_contract": (right,)}
    return m.add("contract", [x, y], **attributes, dtype=dtype or x.dtype.name)[0]


def matmul(m: Maker) -> None:
    """A product with bias, activation and residual; now and then of several tiles."""
    dtype = m.dtype("f") if m.chance(0.8) else m.dtype("iu")
    rows, columns, depth = m.size(), m.size(), m.size()
    big = m.random.random()
    if big < 0.08:
        depth = m.between(385, 800)
    elif big < 0.14:
        columns = m.between(513, 700)
    elif big < 0.2:
        rows = m.between(257, 400)
    if 0 in (rows, columns, depth):
        raise Unsuitable
    flipped = m.chance(0.3)
    x = m.like((rows, depth), dtype)
    w = m.like((columns, depth) if flipped else (depth, columns), dtype)
    if m.chance(0.4):
        raw = m.data(w.shape, dtype)
        w = m.constant(raw)
    if dtype.is_float:
        x, w = m.bounded_between(x, -30, 30), m.bounded_between(w, -30, 30)
    y = _product(m, x, w, 0, 1, 1 if flipped else 0)
    m.keep(y)
    for _ in range(m.between(1, 4)):
        y = _epilogue(m, y)
        m.keep(y)


def _epilogue(m: Maker, y: Value) -> Value:
    kind = m.random.random()
    if kind < 0.3:
        axis = m.between(0, 1)
        return m.map("add", y, _spread(m, m.like((y.shape[axis],), y.dtype), y.shape, (axis,)))
    if kind < 0.5:
        return m.map("subtract" if m.chance(0.5) else "add", y, m.like(y.shape, y.dtype))
    if kind < 0.6:
        return m.add("transpose", [y], permutation=(1, 0))[0]
    if kind < 0.7:
        return m.map("maximum", y, m.splat(0, y.shape, y.dtype))
    if not y.dtype.is_float:
        return m.map("bitwise_xor", y, m.like(y.shape, y.dtype))
    fn = m.pick(("sigmoid", "tanh", "exp", "erf", "square", "absolute"))
    return m.map(fn, m.bounded_between(y, *DOMAINS.get(fn, (-50, 50))))


def _spread_out(m: Maker, shape: tuple[int, ...], dtype: dtypes.DType) -> Value:
    """Normal values, hardly two alike, so that the largest score may be in any block of keys."""
    data = m.random.standard_normal(shape).astype(dtype.numpy)
    return m.input(shape, dtype, data) if m.chance(0.5) else m.constant(data)


def attention(m: Maker) -> None:
    """`softmax(f(q @ k^T)) @ v`, with a scale, a mask or a causal choice; at times of several blocks."""
    dtype = m.pick((dtypes.f32,) * 4 + (dtypes.f16, dtypes.bf16, dtypes.f64, dtypes.f8e4m3fn, dtypes.f8e5m2))
    batch = tuple(m.between(1, 3) for _ in range(m.pick((0, 1, 2))))
    queries, keys, head, width = m.between(1, 20), m.between(1, 40), m.pick((1, 4, 8, 16, 5)), m.pick((1, 3, 8, 17))
    if m.chance(0.15):
        keys = queries
    if m.chance(0.35):
        keys = m.between(257, 330)
    if m.chance(0.2):
        queries = m.between(65, 140)
    rank = len(batch) + 2
    shapes = [(*batch, a, b) for a, b in ((queries, head), (keys, head), (keys, width))]
    if m.chance(0.5):
        q, k, v = (m.bounded_between(m.like(shape, dtype), -3, 3) for shape in shapes)
    else:
        q, k, v = (_spread_out(m, shape, dtype) for shape in shapes)
    scores = _product(m, q, k, len(batch), rank - 1, rank - 1)
    scores = m.map("multiply", scores, m.splat(float(m.pick((0.25, 0.3, 1.0))), scores.shape, dtype))
    if m.chance(0.4):
        mask = m.bounded_between(m.like((keys,), dtype), -5, 5)
        scores = m.map("add", scores, _spread(m, mask, scores.shape, (rank - 1,)))
    if m.chance(0.4):
        row, column = (m.add("iota", shape=scores.shape, dtype="i32", axis=rank - a)[0] for a in (2, 1))
        if m.chance(0.5):  # rows see further than their own number
            row = m.map("add", row, m.splat(m.pick((1, 65, m.between(0, keys))), scores.shape, dtypes.i32))
        lowest = m.splat(m.pick((float("-inf"), -30.0)), scores.shape, dtype)
        scores = m.map("select", m.map("greater_equal", row, column), scores, lowest)
    m.keep(_product(m, softmax_of(m, scores, rank - 1), v, len(batch), rank - 1, rank - 2))


def twins(m: Maker) -> None:
    """Two operations that differ in one attribute only: kernels and values must not be shared between them."""
    x = m.choose(lambda v: len(v.shape) >= 1 and v.dtype.kind in "fiu")
    axis = m.between(0, len(x.shape) - 1)
    window = {k: (1,) * len(x.shape) for k in ("strides", "dilation", "low", "high")}
    one, other = m.random.permutation(np.array(["add", "maximum", "minimum"]))[:2]
    pairs = (
        ("scan", {"axis": axis, "reverse": False}, {"fn": str(one)}, {"fn": str(other)}),
        ("scan", {"axis": axis, "fn": str(one)}, {"reverse": False}, {"reverse": True}),
        ("arg_reduce", {"axis": axis}, {"fn": "maximum"}, {"fn": "minimum"}),
        ("sort", {"axis": axis}, {"descending": False}, {"descending": True}),
        ("reduce", {"axes": (axis,)}, {"fn": str(one)}, {"fn": str(other)}),
        ("window_reduce", window | {"window": (2,) * len(x.shape)}, {"fn": str(one)}, {"fn": str(other)}),
    )
    op, shared, first, second = m.pick(pairs)
    y = m.map("negative", x) if m.chance(0.4) else x
    m.keep(m.add(op, [x], **shared, **first)[0], m.add(op, [y], **shared, **second)[0])


def views(m: Maker) -> None:
    """Several index maps in a row."""
    x = m.choose(lambda v: len(v.shape) >= 2)
    for _ in range(m.between(2, 3)):
        rank = len(x.shape)
        kind = m.random.random()
        if kind < 0.4:
            x = m.add("transpose", [x], permutation=tuple(int(p) for p in m.random.permutation(rank)))[0]
        elif kind < 0.55 and rank <= 4:
            at = m.between(0, rank)
            shape = (*x.shape[:at], m.between(1, 4), *x.shape[at:])
            axes = tuple(d + (d >= at) for d in range(rank))
            x = m.add("broadcast", [x], shape=shape, axes=axes)[0]
        elif kind < 0.7:
            x = m.add("reverse", [x], axes=(m.between(0, rank - 1),))[0]
        elif kind < 0.85:
            starts = tuple(min(m.between(0, 2), max(0, n - 1)) for n in x.shape)
            strides = tuple(m.pick((1, 1, 2)) for _ in x.shape)
            x = m.add("slice", [x], starts=starts, limits=x.shape, strides=strides)[0]
        else:
            at = m.between(0, rank)
            x = m.add("reshape", [x], shape=(*x.shape[:at], 1, *x.shape[at:]))[0]
    m.keep(x if m.chance(0.5) or x.dtype.is_bool else m.map("square", x))


def special_constants(m: Maker) -> None:
    """Arithmetic with constants that simplification knows: 0, 1, -1, 2, powers of two, on either side."""
    x = m.choose(lambda v: not v.dtype.is_bool)
    fns = ["add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "minimum"]
    fns += (
        ["divide", "divide", "power"]
        if x.dtype.is_float
        else ["shift_left", "shift_right", "bitwise_or", "bitwise_xor"]
    )
    fn = m.pick(fns)
    choices = (
        [0, 1, 2, 4] + ([-1, -2] if x.dtype.is_signed else []) + ([-0.0, 0.5, 3, 0.125] if x.dtype.is_float else [])
    )
    constant = m.splat(m.pick(choices), x.shape, x.dtype)
    if fn == "power":
        x = m.bounded_between(x, 0.05, 50)
    right = m.chance(0.7) or fn == "power"
    m.keep(m.map(fn, x, constant) if right else m.map(fn, constant, x))


def diamond(m: Maker) -> None:
    """A value used straight and another way, joined again."""
    x = m.choose(lambda v: len(v.shape) >= 2 and v.dtype.kind in "fiu")
    fn = m.pick(("negative", "absolute", "square"))
    one = m.map(fn, x)
    other = m.map("add", x, m.like(x.shape, x.dtype))
    if x.shape[-1] == x.shape[-2] and m.chance(0.7):
        swapped = (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
        other = m.add("transpose", [other], permutation=swapped)[0]
    elif m.chance(0.5):
        other = m.add("reverse", [other], axes=(m.between(0, len(x.shape) - 1),))[0]
    elif m.chance(0.5):
        axis = m.between(0, len(x.shape) - 1)
        other = _along(m, other, m.pick(("add", "maximum")), axis)
    m.keep(m.map(m.pick(("add", "multiply", "maximum")), one, other))


def long_rows(m: Maker) -> None:
    """A reduction or softmax of rows that are cut into chunks."""
    shape = (m.between(1, 2), m.between(16_400, 24_000))
    dtype = m.pick((dtypes.f32, dtypes.f32, dtypes.i32, dtypes.u16, dtypes.bf16))
    x = m.input(shape, dtype)
    if m.chance(0.4) and dtype.is_float:
        m.keep(softmax_of(m, m.bounded_between(x, -12, 12), 1))
        return
    scaled = m.map("subtract", x, m.splat(1, shape, dtype))
    axes = m.pick(((1,), (0, 1), (1,)))
    m.keep(m.add("reduce", [scaled], fn=m.pick(("add", "maximum", "minimum")), axes=axes)[0])


def many_indices(m: Maker) -> None:
    """Elements along an axis by more indices than a few vectors have lanes, as `take` has them, and a reduction."""
    shape = m.pick(((2, 40), (5, 33), (3, 2, 70), (64, 3)))
    x = m.input(shape, m.pick((dtypes.f32, dtypes.i32, dtypes.i64, dtypes.f16)))
    axis, count = m.between(0, len(shape) - 1), m.between(60, 300)
    index = m.input((count,), dtypes.i64, m.random.integers(-2, shape[axis] + 2, (count,)))
    taken = m.add("gather", [x, index], axes=(axis,))[0]
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    taken = m.add("transpose", [taken], permutation=tuple(order))[0]
    reduced = m.between(0, len(shape) - 1)
    m.keep(m.add("reduce", [taken], fn=m.pick(("add", "maximum", "minimum")), axes=(reduced,))[0])
    if m.chance(0.5):
        m.keep(m.map("subtract", taken, _along(m, taken, "maximum", reduced)))


def big_loop(m: Maker) -> None:
    """An elementwise chain over more elements than one tile holds, at odd sizes."""
    shape = m.pick(((129, 257), (3, 67, 91), (70, 130), (8209,), (5, 4099), (2, 65, 127)))
    x = m.input(shape, m.dtype())
    y = m.like(shape, x.dtype)
    result = m.map("maximum" if x.dtype.kind != "b" else "bitwise_xor", x, y)
    if m.chance(0.5):
        result = m.add("transpose", [result], permutation=tuple(range(len(shape)))[::-1])[0]
    m.keep(result)
    axis = m.between(0, len(result.shape) - 1)
    names = {"f": ("add", "maximum"), "b": ("bitwise_or",)}.get(x.dtype.kind, ("add", "bitwise_xor", "minimum"))
    m.keep(m.add("reduce", [result], fn=m.pick(names), axes=(axis,))[0])
