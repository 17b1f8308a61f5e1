"""The operations that random tile kernels are made of, and the kernel of a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz.tile_maker import DEEPEST, Shape, TileMaker, numbers, type_of

STATEMENTS = (5, 16)
EIGHT_BITS = ("f8E4M3FN", "f8E5M2")
NARROW_TYPES = [("bf16", "bf16"), ("tf32", "tf32"), *((a, b) for a in EIGHT_BITS for b in EIGHT_BITS)]
IDENTITY = "affine_map<(d0, d1) -> ({})>"

Step = Callable[[TileMaker], object]


@dataclass(frozen=True)
class Kernel:
    """A module whose `main` calls one tile kernel."""

    seed: int
    text: str


# ---- memory ---------------------------------------------------------------------------------------------------------


def load(m: TileMaker) -> None:
    shape = m.shape()
    m.keep(m.load(shape), shape)


def load_written(m: TileMaker) -> None:
    shape = m.shape()
    m.keep(m.load(shape, "w"), shape)


def store(m: TileMaker) -> None:
    shape = m.shape()
    m.store(m.recent(shape), shape, m.pick(("w", "w", "out")) if len(shape) == 2 else m.pick(("x", "x", "vout")))


# ---- element by element ---------------------------------------------------------------------------------------------


def map_(m: TileMaker) -> None:
    shape = m.shape()
    fn = m.pick(("add", "subtract", "maximum", "minimum"))
    m.keep(m.clamp(m.map(fn, [m.any(shape), m.any(shape)], shape), shape), shape)


def dear(m: TileMaker) -> None:
    """Values that are worth a buffer, rounded to whole numbers again."""
    shape = m.shape()
    value = m.clamp(m.any(shape), shape)
    raised = m.map("exp2", [value], shape) if m.chance(0.5) else m.map("divide", [value, m.full(2, shape)], shape)
    m.keep(m.clamp(m.map("floor", [raised], shape), shape), shape)


def choose(m: TileMaker) -> None:
    """Below or above a diagonal."""
    shape = (m.size(), m.size())
    whole = [m.op(f"iota() {{map = {IDENTITY.format(e)}}}", shape, "i64") for e in ("d0", f"d1 + {m.between(0, 3)}")]
    below = m.map("less", whole, shape, "i1")
    m.keep(m.map("select", [below, m.any(shape), m.any(shape)], shape), shape)


def fill(m: TileMaker) -> None:
    shape = (m.size(), m.size())
    map = IDENTITY.format(m.pick(("d0", "d1")))
    m.keep(m.fill_padding(m.any(shape), shape, "", map, m.between(1, m.step), m.between(-1, 1)), shape)


# ---- moved ----------------------------------------------------------------------------------------------------------


def broadcast(m: TileMaker) -> None:
    shape = (m.size(), m.size())
    axes = m.pick(((0,), (1,), (0,), (1,), ()))
    source = m.any(tuple(shape[a] for a in axes))
    m.keep(m.op(f"broadcast({source}) {{axes = {numbers(axes)}}}", shape), shape)


def transposed(m: TileMaker, tile: str, result: Shape) -> str:
    return m.op(f"transpose({tile}) {{permutation = {numbers((1, 0))}}}", result)


def transpose(m: TileMaker) -> None:
    shape = (m.size(), m.size())
    m.keep(transposed(m, m.any(shape[::-1]), shape), shape)


def reshape(m: TileMaker) -> None:
    """To another shape, through a function there, and back."""
    shape = (m.size(), m.size())
    rows, columns = shape
    other = m.pick([(columns, rows), (rows * columns,), (1, rows, columns)])
    between = m.map("negative", [m.op(f"reshape({m.any(shape)})", other)], other)
    m.keep(m.op(f"reshape({between})", shape), shape)


def concat(m: TileMaker) -> None:
    """The front of one tile and the back of another."""
    shape = (m.size(), m.size())
    rows, columns = shape
    cut = m.between(1, columns - 1)
    parts = []
    for start, limit in ((0, cut), (cut, columns)):
        attributes = f"starts = {numbers((0, start))}, limits = {numbers((rows, limit))}, strides = {numbers((1, 1))}"
        parts.append(m.op(f"slice({m.any(shape)}) {{{attributes}}}", (rows, limit - start)))
    m.keep(m.op(f"concat({', '.join(parts)}) {{axis = 1 : index}}", shape), shape)


# ---- reductions -----------------------------------------------------------------------------------------------------


def reduced(m: TileMaker, tile: str, shape: Shape, axes: Sequence[int]) -> str:
    result = tuple(n for axis, n in enumerate(shape) if axis not in axes)
    fn = m.pick(("maximum", "minimum", "add"))
    value = m.op(f'reduce({tile}) {{fn = "{fn}", axes = {numbers(axes)}}}', result)
    return m.keep(m.clamp(value, result), result)


def reduce(m: TileMaker) -> None:
    shape = (m.size(), m.size())
    reduced(m, m.any(shape), shape, m.pick(((0,), (1,), (0,), (1,), (0, 1))))


def scan(m: TileMaker) -> None:
    shape = (m.size(), m.size())
    reverse = m.pick(("true", "false"))
    attributes = f'fn = "maximum", axis = {m.between(0, 1)} : index, reverse = {reverse}'
    m.keep(m.op(f"scan({m.any(shape)}) {{{attributes}}}", shape), shape)


# ---- products -------------------------------------------------------------------------------------------------------


def dot(m: TileMaker) -> None:
    rows, columns, depth = m.size(), m.size(), m.size()
    shape = (rows, columns)
    accumulator = m.any(shape) if m.chance(0.65) else m.full(m.pick((0, 0, 1)), shape)
    value = product(m, accumulator, shape, depth)
    m.keep(value if m.depth == 0 and m.chance(0.4) else m.clamp(value, shape), shape)


def product(m: TileMaker, accumulator: str, shape: Shape, depth: int) -> str:
    """`accumulator + left @ right`, with operands of several kinds."""
    left, right = (shape[0], depth), (depth, shape[1])
    kind = m.pick(("plain", "plain", "loaded", "loaded", "padded", "padded", "narrow"))
    if kind == "loaded":
        operands = [m.load(left, "abw", "0.0") if m.chance(0.5) else m.any(left), _loaded_right(m, right)]
        if m.chance(0.4):
            store(m)  # to what they were loaded from, maybe: the product takes what was there before
    elif kind == "padded":
        operands = _padded_depth(m, left, right)
    else:
        operands = [m.any(left), m.any(right)]
    if kind == "narrow":
        types = m.pick(NARROW_TYPES)
        operands = [
            m.op(f"cast({m.clamp(o, s)})", s, t) for o, s, t in zip(operands, (left, right), types, strict=True)
        ]
    return m.op(f"dot({operands[0]}, {operands[1]}, {accumulator})", shape)


def _loaded_right(m: TileMaker, right: Shape) -> str:
    """An operand that the product may read where it lies."""
    if m.chance(0.5):
        return transposed(m, m.load(right[::-1], "abw", "0.0"), right)
    return m.load(right, "abw", "0.0")


def _padded_depth(m: TileMaker, left: Shape, right: Shape) -> list[str]:
    """Operands that are zero beyond the same depth, beyond different ones, or only one of them is."""
    depth = m.between(1, left[1])
    other = m.pick((depth, depth, m.between(1, left[1])))
    symbols = m.pick(("", "", ", %p", *(f", {c}" for c in m.counters)))
    other_symbols = m.pick((symbols, symbols, ""))
    operands = [m.any(left), _loaded_right(m, right) if m.chance(0.4) else m.any(right)]
    missing = m.pick((None, None, None, 0, 1))
    for side, (shape, limit, used) in enumerate(((left, depth, symbols), (right, other, other_symbols))):
        if side != missing:
            along = f"d{1 - side}"
            map = f"affine_map<(d0, d1)[s0] -> ({along} + s0 * 2)>" if used else IDENTITY.format(along)
            operands[side] = m.fill_padding(operands[side], shape, used, map, limit)
    return operands


# ---- control --------------------------------------------------------------------------------------------------------


def choice(m: TileMaker) -> None:
    if m.depth >= DEEPEST:
        return
    shape = (m.size(), m.size())
    total = m.op(f'reduce({m.any(shape)}) {{fn = "add", axes = {numbers((0, 1))}}}', ())
    condition = m.map("less", [total, m.full(m.between(-3, 3), ())], (), "i1")
    shapes = [m.shape() for _ in range(m.between(1, 3))]
    results = [m.name() for _ in shapes]
    m.line(f"{', '.join(results)} = tile.if({condition}) do {{")
    for end in ("} do {", f"}} : {', '.join(map(type_of, shapes))}"):
        with m.block():
            statements(m, m.between(0, 3))
            yielded = [m.recent(s) for s in shapes]
            m.line(f"tile.yield({', '.join(yielded)})")
        m.line(end)
    m.show(results, shapes)


def loop(m: TileMaker) -> None:
    if m.depth >= DEEPEST:
        return
    kinds = [m.shape(), m.shape()]  # few, so that carried tiles can change places
    shapes = [m.pick(kinds) for _ in range(m.pick((0, 1, 2, 2, 3, 4)))]
    initial = [m.full(m.pick((0, 0, 1)), s) if m.chance(0.3) else m.any(s) for s in shapes]
    results, arguments, counter = [m.name() for _ in shapes], [m.name() for _ in shapes], m.name()
    types = ", ".join(map(type_of, shapes))
    left = f"{', '.join(results)} = " if results else ""
    m.line(f"{left}tile.for({', '.join(initial)}) {{trips = {m.pick((0, 1, 2, 2, 3, 3))} : index}} do {{")
    taken = [f"{counter}: index", *(f"{a}: {type_of(s)}" for a, s in zip(arguments, shapes, strict=True))]
    m.line(f"^bb0({', '.join(taken)}):")
    with m.block():
        m.counters.append(counter)
        for argument, shape in zip(arguments, shapes, strict=True):
            m.keep(argument, shape)
        statements(m, m.between(1, 7))
        yielded = [m.recent(s) for s in shapes]
        _exchange(m, shapes, arguments, yielded)
        _accumulate(m, shapes, arguments, yielded)
        m.line(f"tile.yield({', '.join(yielded)})")
    m.line(f"}} : {types}" if types else "}")
    m.show(results, shapes)


def _exchange(m: TileMaker, shapes: list[Shape], arguments: list[str], yielded: list[str]) -> None:
    """Some carried tiles become another one, or are computed from another one."""
    for position, shape in enumerate(shapes):
        source = m.between(0, len(shapes) - 1)
        if m.chance(0.4):
            yielded[position] = converted(m, arguments[source], shapes[source], shape) or yielded[position]
        elif m.chance(0.5) and shapes[source] == shape:
            yielded[position] = arguments[source]


def converted(m: TileMaker, tile: str, shape: Shape, wanted: Shape) -> str | None:
    """A tile of the wanted shape from one of another shape, where a single operation leads there."""
    if shape == wanted[::-1] and len(shape) == 2 and m.chance(0.7):
        return transposed(m, tile, wanted)
    if shape == wanted:
        return m.clamp(m.map(m.pick(("add", "subtract")), [tile, m.any(shape)], shape), shape)
    if len(shape) == 1 and shape[0] in wanted:
        return m.op(f"broadcast({tile}) {{axes = {numbers((wanted.index(shape[0]),))}}}", wanted)
    if len(wanted) == 1 and wanted[0] in shape:
        return reduced(m, tile, shape, (1 - shape.index(wanted[0]),))
    return None


def _accumulate(m: TileMaker, shapes: list[Shape], arguments: list[str], yielded: list[str]) -> None:
    """Some carried matrices grow by a product in each trip, maybe after a correction; more may follow the product."""
    for position, shape in enumerate(shapes):
        if len(shape) != 2 or not m.chance(0.4):
            continue
        accumulator = arguments[position]
        if m.chance(0.3):
            accumulator = m.map("subtract", [accumulator, m.any(shape)], shape)
        yielded[position] = product(m, accumulator, shape, m.size())
        if m.chance(0.3):
            m.keep(yielded[position], shape)
        if m.chance(0.4):
            statements(m, m.between(1, 2))


# ---- the kernel -----------------------------------------------------------------------------------------------------

STEPS: Sequence[tuple[float, Step]] = (
    (2, load),
    (2, load_written),
    (4, store),
    (5, map_),
    (1.2, dear),
    (1, choose),
    (1, fill),
    (1.5, broadcast),
    (1.2, transpose),
    (1, reshape),
    (1, concat),
    (1.5, reduce),
    (1, scan),
    (4, dot),
    (1.2, choice),
    (2.5, loop),
)


def statements(m: TileMaker, count: int) -> None:
    for step in m.random.choices([s for _, s in STEPS], [w for w, _ in STEPS], k=count):
        step(m)


def generate(seed: int) -> Kernel:
    """The kernel of a seed."""
    m = TileMaker(seed)
    for name in "ab":
        shape = (m.size(), m.size())
        m.keep(m.load(shape, name), shape)
    m.keep(m.load((m.step,)), (m.step,))
    statements(m, m.between(*STATEMENTS))
    matrix, vector = (m.size(), m.size()), (m.size(),)
    m.store(m.recent(matrix), matrix, "out")
    m.store(m.recent(vector), vector, "vout")
    return Kernel(seed, module_text(m.rows, m.columns, m.grid, m.lines))


def module_text(rows: int, columns: int, grid: int, lines: Sequence[str]) -> str:
    """A module around the body of a kernel: `a`, `b`, `w` and `out` are matrices, `x` and `vout` vectors of `rows`."""
    matrix, vector = type_of((rows, columns)), type_of((rows,))
    refs = [("a", matrix), ("b", matrix), ("w", matrix), ("x", vector), ("out", matrix), ("vout", vector)]
    inputs = ", ".join(f"%{name}: {type}" for name, type in refs[:4])
    parameters = ", ".join(f"%{name}: !tile.ref<{type}>" for name, type in refs)
    results = f"{matrix}, {vector}, {matrix}, {vector}"
    effects = '["in", "in", "inout", "inout", "out", "out"]'
    return "\n".join(
        [
            f"func.func @main({inputs}) -> ({results}) {{",
            f'  %w1, %x1, %y, %z = array.call(%a, %b, %w, %x) {{callee = "k"}} : {results}',
            f"  func.return %w1, %x1, %y, %z : {results}",
            "}",
            f'tile.kernel() {{sym_name = "k", grid = {numbers((grid,))}, effects = {effects}}} do {{',
            f"^bb0({parameters}, %p: index):",
            *lines,
            "    tile.yield()",
            "}",
            "",
        ]
    )
