"""Single steps of the generator: one primitive each, with whatever keeps its values tame."""

from __future__ import annotations

import math

import numpy as np

from tests.fuzz.maker import Maker, Unsuitable
from tilewright import dtypes, ops
from tilewright.frontend.trace import Graph, Value
from tilewright.primitives import ArrayType

# Intervals outside which a function overflows, is not defined, or loses all digits.
DOMAINS = {
    "exp": (-12, 8),
    "exp2": (-16, 12),
    "expm1": (-12, 8),
    "sinh": (-8, 8),
    "cosh": (-8, 8),
    "log": (0.01, 1e30),
    "log2": (0.01, 1e30),
    "log10": (0.01, 1e30),
    "log1p": (-0.95, 1e30),
    "sqrt": (0, 1e30),
    "rsqrt": (0.01, 1e30),
    "asin": (-1, 1),
    "acos": (-1, 1),
    "atanh": (-0.98, 0.98),
    "acosh": (1, 1e30),
    "tan": (-1.4, 1.4),
    "sin": (-100, 100),
    "cos": (-100, 100),
    "erfc": (-3, 4),
}
UNARY = [f for f in ops.FUNCTIONS.values() if f.arity == 1]
BINARY = [f for f in ops.FUNCTIONS.values() if f.arity == 2]
REDUCIBLE = [f for f in ops.FUNCTIONS.values() if f.reducible]


def unary(m: Maker) -> None:
    x = m.choose()
    fitting = [f.name for f in UNARY if x.dtype.kind in f.kinds]
    fn = m.pick(fitting)
    if fn in DOMAINS and m.chance(0.93):
        x = m.bounded_between(x, *DOMAINS[fn])
    m.keep(m.map(fn, x))


def binary(m: Maker) -> None:
    x = m.choose()
    names = [f.name for f in BINARY if x.dtype.kind in f.kinds]
    common = [n for n in names if n in ("add", "subtract", "multiply", "maximum", "minimum", "divide")]
    fn = m.pick(common if common and m.chance(0.5) else names)
    y = m.like(x.shape, x.dtype)
    if fn == "power" and x.dtype.is_float and m.chance(0.9):
        x, y = m.bounded_between(x, 0.05, 8), m.bounded_between(y, -4, 4)
    if fn in ("divide", "remainder", "floor_divide") and x.dtype.is_float and m.chance(0.7):
        y = m.bounded_between(m.map("absolute", y), 0.1, 1e30)
    if fn in ("shift_left", "shift_right") and m.chance(0.8):
        y = m.map("bitwise_and", y, m.splat(7, y.shape, y.dtype))
    if m.chance(0.4):
        x, y = y, x
    result = m.map(fn, x, y)
    if result.dtype.is_float and m.magnitude(result) > 1e4:
        result = m.map("multiply", result, m.splat(2.0**-12, result.shape, result.dtype))
    m.keep(result)


def select(m: Maker) -> None:
    x = m.choose()
    condition = m.like(x.shape, dtypes.bool_)
    if m.chance(0.5) and x.dtype.kind in "fiu":
        fn = m.pick(("less", "greater_equal", "equal", "not_equal", "greater", "less_equal"))
        condition = m.map(fn, x, m.like(x.shape, x.dtype))
    m.keep(m.map("select", condition, x, m.like(x.shape, x.dtype)))


def cast(m: Maker) -> None:
    x = m.choose()
    m.keep(m.add("cast", [x], dtype=m.pick([*m.dtypes, m.pick(dtypes.ALL)]).name)[0])


def bitcast(m: Maker) -> None:
    x = m.choose(lambda v: not v.dtype.is_bool)
    names = [d.name for d in dtypes.ALL if d.bits == x.dtype.bits and not d.is_bool and d != x.dtype]
    m.keep(m.add("bitcast", [x], dtype=m.pick(names))[0])


def reshape(m: Maker) -> None:
    x = m.choose()
    shape: list[int] = []
    rest = x.type.size
    while rest > 1 and len(shape) < 3:
        n = int(m.pick([d for d in range(1, min(rest, 200) + 1) if rest % d == 0]))
        shape.append(n)
        rest //= n
    if x.type.size == 0:
        shape, rest = [0, 3], 1
    shape.append(rest)
    for _ in range(m.between(0, 2)):
        shape.insert(m.between(0, len(shape)), 1)
    if rest == 1 and m.chance(0.5) and x.type.size:
        shape.remove(1)
    m.keep(m.add("reshape", [x], shape=tuple(shape))[0])


def unit_reshape(m: Maker) -> None:
    x = m.choose()
    shape = [n for n in x.shape if n != 1 or m.chance(0.5)]
    for _ in range(m.between(0, 2)):
        shape.insert(m.between(0, len(shape)), 1)
    m.keep(m.add("reshape", [x], shape=tuple(shape))[0])


def transpose(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 2)
    m.keep(m.add("transpose", [x], permutation=tuple(int(p) for p in m.random.permutation(len(x.shape))))[0])


def broadcast(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) <= 3)
    shape, axes = list(x.shape), list(range(len(x.shape)))
    for position, n in enumerate(shape):
        if n == 1 and m.chance(0.5):
            shape[position] = m.size()
    for _ in range(m.between(1, 2)):
        at = m.between(0, len(shape))
        shape.insert(at, m.size())
        axes = [a + (a >= at) for a in axes]
    if math.prod(shape) > m.limit:
        raise Unsuitable
    m.keep(m.add("broadcast", [x], shape=tuple(shape), axes=tuple(axes))[0])


def slice_(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    starts, limits, strides = [], [], []
    for n in x.shape:
        start = m.between(0, n // 3) if m.chance(0.5) else 0
        limit = m.between(start, n) if m.chance(0.3) else m.between(max(start, n - n // 3), n)
        starts.append(start)
        limits.append(limit if limit > start or m.chance(0.02) else n)
        strides.append(m.pick((1, 1, 1, 2, 3)))
    m.keep(m.add("slice", [x], starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))[0])


def reverse(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    axes = tuple(d for d in range(len(x.shape)) if m.chance(0.6))
    m.keep(m.add("reverse", [x], axes=axes)[0])


def pad(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    low, high, interior = (
        tuple(m.pick((0, 0, 1, 2, 5)) if m.chance(p) else 0 for _ in x.shape) for p in (0.6, 0.6, 0.25)
    )
    value = m.scalar(m.small(x.dtype), x.dtype)
    if m.chance(0.2):
        value = m.choose(lambda v: v.shape == () and v.dtype == x.dtype)
    m.keep(m.add("pad", [x, value], low=low, high=high, interior=interior)[0])


def concat(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    axis = m.between(0, len(x.shape) - 1)
    parts = [x]
    for _ in range(m.between(1, 3)):
        shape = list(x.shape)
        if m.chance(0.4):
            shape[axis] = m.size()
        parts.append(m.like(tuple(shape), x.dtype))
    order = m.random.permutation(len(parts))
    m.keep(m.add("concat", [parts[int(i)] for i in order], axis=axis)[0])


def _start(m: Maker, span: int) -> Value:
    dtype = m.pick(dtypes.INTEGERS)
    low = -3 if dtype.is_signed and m.chance(0.2) else 0
    value = m.between(low, min(span + (3 if m.chance(0.2) else 0), 120))
    if m.chance(0.5):
        return m.scalar(value, dtype)
    return m.input((), dtype, np.asarray(value))


def dynamic_slice(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    sizes = tuple(n if m.chance(0.4) else m.between(min(1, n), n) for n in x.shape)
    starts = [_start(m, n - size) for n, size in zip(x.shape, sizes, strict=True)]
    m.keep(m.add("dynamic_slice", [x, *starts], sizes=sizes)[0])


def dynamic_update_slice(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    sizes = tuple(n if m.chance(0.4) else m.between(min(1, n), n) for n in x.shape)
    starts = [_start(m, n - size) for n, size in zip(x.shape, sizes, strict=True)]
    m.keep(m.add("dynamic_update_slice", [x, m.like(sizes, x.dtype), *starts])[0])


def _indices(m: Maker, x: Value, axes: tuple[int, ...], shape: tuple[int, ...]) -> list[Value]:
    dtype = m.pick((dtypes.i32, dtypes.i64, dtypes.i32, dtypes.u8, dtypes.u32, dtypes.i16, dtypes.u64))
    found = []
    for axis in axes:
        n = x.shape[axis]
        low = -2 if dtype.is_signed and m.chance(0.3) else 0
        high = min(n + (2 if m.chance(0.3) else 0), 250)
        data = m.random.integers(low, max(high, low + 1), shape).astype(dtype.numpy)
        if m.chance(0.15):
            ends = np.array([np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max, 0], dtype.numpy)
            data = np.where(m.random.random(shape) < 0.2, m.random.choice(ends, shape), data)
        data = np.ascontiguousarray(data).reshape(shape)
        found.append(m.constant(data) if m.chance(0.4) else m.input(shape, dtype, data))
    return found


def gather(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    axes = tuple(int(a) for a in m.random.permutation(len(x.shape))[: m.between(1, min(2, len(x.shape)))])
    m.keep(m.add("gather", [x, *_indices(m, x, axes, m.shape(0, 2))], axes=axes)[0])


def scatter(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1 and v.type.size < 4000)
    axes = tuple(int(a) for a in m.random.permutation(len(x.shape))[: m.between(1, min(2, len(x.shape)))])
    shape = m.pick(((), (1,), (5,), (9,), (2, 3), (17,)))
    rest = tuple(n for d, n in enumerate(x.shape) if d not in axes)
    fn = m.pick(["set", *(f.name for f in REDUCIBLE if x.dtype.kind in f.kinds)])
    indices = _indices(m, x, axes, shape)
    m.keep(m.add("scatter", [x, m.like((*shape, *rest), x.dtype), *indices], axes=axes, fn=fn)[0])


def _reducible(m: Maker, x: Value) -> str:
    names = [f.name for f in REDUCIBLE if x.dtype.kind in f.kinds]
    return "add" if "add" in names and m.chance(0.35) else m.pick(names)


def _near_one(m: Maker, x: Value, fn: str) -> Value:
    """Factors of long products stay near 1 in size."""
    if fn != "multiply" or not x.dtype.is_float or m.chance(0.1):
        return x
    return m.map(
        "select", m.map("less", x, m.splat(0, x.shape, x.dtype)), *(m.splat(v, x.shape, x.dtype) for v in (-1, 2))
    )


def reduce(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1, fresh=0.1)
    axes = tuple(d for d in range(len(x.shape)) if m.chance(0.5)) or (m.between(0, len(x.shape) - 1),)
    fn = _reducible(m, x)
    m.keep(m.add("reduce", [_near_one(m, x, fn)], fn=fn, axes=axes)[0])


def arg_reduce(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    axis = m.between(0, len(x.shape) - 1)
    m.keep(m.add("arg_reduce", [x], fn=m.pick(("maximum", "minimum")), axis=axis)[0])


def scan(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    fn, axis = _reducible(m, x), m.between(0, len(x.shape) - 1)
    m.keep(m.add("scan", [_near_one(m, x, fn)], fn=fn, axis=axis, reverse=m.chance(0.4))[0])


def window_reduce(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    fn = _reducible(m, x)
    window, strides, dilation = (tuple(m.pick((1, 1, 2, 3)) for _ in x.shape) for _ in range(3))
    low, high = (tuple(m.pick((0, 0, 1, 2)) for _ in x.shape) for _ in range(2))
    x = _near_one(m, x, fn)
    m.keep(m.add("window_reduce", [x], fn=fn, window=window, strides=strides, low=low, high=high, dilation=dilation)[0])


def contract(m: Maker) -> None:
    """A product of a pool value with a made operand; batch, free and contracted axes anywhere."""
    x = m.choose(lambda v: 1 <= len(v.shape) <= 4 and not v.dtype.is_bool)
    axes = [int(a) for a in m.random.permutation(len(x.shape))]
    contracted = axes[: m.pick((1, 1, 1, 1, 2, 0))]
    batch = axes[len(contracted) :][: m.pick((0, 0, 1, 2))]
    free = [m.size() for _ in range(m.pick((0, 1, 1, 1, 2)))]
    left = len(x.shape) - len(contracted) - len(batch)
    dims = [*(("b", i) for i in range(len(batch))), *(("c", i) for i in range(len(contracted)))]
    dims += [("f", i) for i in range(len(free))]
    order = [dims[int(i)] for i in m.random.permutation(len(dims))]
    sizes = {"b": [x.shape[a] for a in batch], "c": [x.shape[a] for a in contracted], "f": free}
    shape = tuple(sizes[kind][i] for kind, i in order)
    kept = [n for d, n in enumerate(x.shape) if d not in (*contracted, *batch)]
    if math.prod((*kept, *shape)) > 300_000 or math.prod(shape) > 4 * m.limit or left < 0:
        raise Unsuitable
    alike = [d for d in dtypes.ALL if dtypes.multiply_unconverted(d, x.dtype)]
    y = m.like(shape, m.pick(alike))
    attributes = {
        "left_batch": tuple(batch),
        "right_batch": tuple(order.index(("b", i)) for i in range(len(batch))),
        "left_contract": tuple(contracted),
        "right_contract": tuple(order.index(("c", i)) for i in range(len(contracted))),
        "dtype": x.dtype.name if m.chance(0.8) else m.pick([d.name for d in dtypes.ALL if d.kind == x.dtype.kind]),
    }
    operands = [x, y]
    if m.chance(0.4):
        operands = [y, x]
        attributes |= {k.replace("left", "other"): v for k, v in attributes.items() if k.startswith("left")}
        attributes |= {k.replace("right", "left"): v for k, v in attributes.items() if k.startswith("right")}
        attributes |= {
            k.replace("other", "right"): attributes.pop(k) for k in list(attributes) if k.startswith("other")
        }
    m.keep(m.add("contract", operands, **attributes)[0])


def convolve(m: Maker) -> None:
    spatial = m.pick((1, 2, 2))
    groups = m.pick((1, 1, 1, 2, 3))
    channels, per_group = m.pick((1, 2, 3, 5)), m.pick((1, 2, 3, 7, 8))
    sizes = tuple(m.between(1, 19) for _ in range(spatial))
    window = tuple(m.between(1, min(4, n)) for n in sizes)
    dtype = m.dtype("fiu")
    image = m.like((m.between(1, 3), channels * groups, *sizes), dtype)
    kernel = m.like((per_group * groups, channels, *window), dtype)
    strides, dilation = (tuple(m.pick((1, 1, 2, 3)) for _ in sizes) for _ in range(2))
    low, high = (tuple(m.pick((0, 0, 1, 2)) for _ in sizes) for _ in range(2))
    attributes = {"strides": strides, "low": low, "high": high, "dilation": dilation, "groups": groups}
    result = m.add("convolve", [image, kernel], **attributes)[0]
    if m.chance(0.5) and result.dtype.is_float:
        result = m.map("maximum", result, m.splat(0, result.shape, result.dtype))
    m.keep(result)


def sort(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    axis = m.between(0, len(x.shape) - 1)
    carried = [m.like(x.shape, m.dtype()) for _ in range(m.pick((0, 1, 1, 2)))]
    if m.chance(0.4):
        carried.append(m.add("iota", shape=x.shape, dtype="i32", axis=axis)[0])
    m.keep(*m.add("sort", [x, *carried], axis=axis, descending=m.chance(0.5)))


def top_k(m: Maker) -> None:
    x = m.choose(lambda v: len(v.shape) >= 1)
    m.keep(*m.add("top_k", [x], k=m.between(min(1, x.shape[-1]), min(x.shape[-1], 9))))


def random_bits(m: Maker) -> None:
    key = m.choose(lambda v: v.shape == (2,) and v.dtype == dtypes.u32) if m.chance(0.3) else m.like((2,), dtypes.u32)
    m.keep(m.add("random_bits", [key], shape=m.shape(1, 3))[0])


# ---- control flow ---------------------------------------------------------------------------------------------------


def _region_maps(m: Maker, graph: Graph, value: Value) -> Value:
    """One to three elementwise steps inside a region, on values of one type."""
    for _ in range(m.between(1, 3)):
        fns = ("maximum", "minimum", "subtract", "add") if value.dtype.kind in "fiu" else ("bitwise_xor", "bitwise_and")
        same = [v for v in m.pool if v.type == value.type]
        other = m.pick(same) if same and m.chance(0.6) else None
        if other is None:
            value = graph.add("map", [value], fn="negative" if value.dtype.kind in "fiu" else "bitwise_not")[0]
        else:
            value = graph.add("map", [value, other] if m.chance(0.5) else [other, value], fn=m.pick(fns))[0]
        if len(value.shape) >= 1 and m.chance(0.3):
            value = graph.add("reverse", [value], axes=(m.between(0, len(value.shape) - 1),))[0]
    return value


def loop(m: Maker) -> None:
    """A counted `while`: carried arrays are computed with, exchanged, or left alone."""
    first = m.choose(lambda v: v.type.size < 2000)
    carried = [first, *(m.like(first.shape, first.dtype) for _ in range(m.pick((0, 1, 2))))]
    trips = m.between(0, 4)
    limit = m.scalar(trips, dtypes.i32) if m.chance(0.5) else m.input((), dtypes.i32, np.asarray(trips))
    zero, one = m.scalar(0, dtypes.i32), m.scalar(1, dtypes.i32)
    types = [ArrayType((), dtypes.i32), *(v.type for v in carried)]
    condition, body = m.graph.nested("condition"), m.graph.nested("body")
    count, *_ = (condition.input(t) for t in types)
    condition.outputs = [condition.add("map", [count, limit], fn="less")[0]]
    count, *values = (body.input(t) for t in types)
    results = [values[int(i)] for i in m.random.permutation(len(values))]
    at = m.between(0, len(results) - 1)
    results[at] = _region_maps(m, body, results[at])
    body.outputs = [body.add("map", [count, one], fn="add")[0], *results]
    made = m.append("while", [zero, *carried], types, [condition, body])
    m.keep(*made[1:])


def choice(m: Maker) -> None:
    first = m.choose()
    condition = m.map("less", *(m.like((), dtypes.i32) for _ in range(2)))
    graphs = [m.graph.nested("then"), m.graph.nested("otherwise")]
    graphs[0].outputs = [_region_maps(m, graphs[0], first)]
    other = m.like(first.shape, first.dtype)
    graphs[1].outputs = [other if m.chance(0.4) else _region_maps(m, graphs[1], other)]
    m.keep(*m.append("if", [condition], [first.type], graphs))
