"""Builds tile operations on demand: `pull(value, coordinates)` is the tile of an array value at affine coordinates.

The array operations of a fused group are never visited as such: a store pulls its value, which pulls its operands,
down to loads of the group's inputs. Index maps (transpose, slice, pad, ...) only change coordinates. Tiles carry named
axes and hold just the axes that they depend on; a map broadcasts its operands to the union. Equal pulls give the same
tile, so a softmax loads, exponentiates and sums each row once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from xdsl.dialects.builtin import LocationAttr, UnknownLoc
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tilewright import dtypes, ops
from tilewright.cost.tiles import nested_extents
from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.ops import LONGEST_CHAIN, SUM_BLOCK
from tilewright.passes.kernels.indexing import Axis, Coordinates, Linear, Tile, axes_of, ordered
from tilewright.passes.kernels.tile_emitter import TileEmitter
from tilewright.primitives import ArrayType

REDUCED_ORDER = 1000.0


class TileBuilder(TileEmitter):
    """`refs` maps group inputs to kernel refs; `reduced` has the tile extents along the reduced dimensions of
    reductions, by shape and dimensions, where they have been chosen. `sums_in_blocks`: loops over terms of a float sum
    are nested, with a partial sum for each block of trips. Of a larger window than `most_of_window` parts are held."""

    def __init__(
        self,
        block: Block,
        refs: Mapping[SSAValue, SSAValue],
        *,
        sums_in_blocks: bool = True,
        most_of_window: int | None = None,
    ) -> None:
        super().__init__(block)
        self.refs = refs
        self.most_of_window = most_of_window
        self.sums_in_blocks = sums_in_blocks
        self.reduced: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[int, int]] = {}
        self._memo: list[dict[tuple[SSAValue, Coordinates], Tile]] = [{}]
        self._reduce_axes: dict[tuple[tuple[int, ...], int, int], Axis] = {}

    @contextmanager
    def within(self, block: Block) -> Generator[None]:
        """Append to the block of a region, whose tiles are not those outside."""
        self._memo.append({})
        with super().within(block):
            yield
        self._memo.pop()

    def define(self, value: SSAValue, coordinates: Coordinates, result: Tile) -> None:
        """State what the tile of `value` at `coordinates` is."""
        self._memo[-1][(value, coordinates)] = result

    def pull(self, value: SSAValue, coordinates: Coordinates) -> Tile:
        """The tile of an array value at coordinates, over the axes that it depends on."""
        key = (value, coordinates)
        for scope in reversed(self._memo):
            if (found := scope.get(key)) is not None:
                return found
        result = self._pull(value, coordinates)
        self._memo[-1][key] = result
        return result

    def pull_reductions(self, group: Sequence[array.ReduceOp], coordinates: Coordinates) -> None:
        """Pull reductions over the same dimensions of arrays of one shape, in parts of the same length if any, none of
        which depends on another: all read their operands in one loop."""
        first = self._next_op()
        for op, result in zip(group, _reductions(self, group, coordinates), strict=True):
            self.define(op.results[0], coordinates, result)
        locate(first(), group[0].location)

    def _pull(self, value: SSAValue, coordinates: Coordinates) -> Tile:
        if value in self.refs:
            return self.load(self.refs[value], coordinates)
        op = value.owner
        if not isinstance(op, array.ArrayOp):
            raise CompilerBug(f"{value} is neither an input nor computed in its group")
        first = self._next_op()
        result = _PULL[op.primitive](self, op, coordinates)
        locate(first(), op.location)
        return result

    def _next_op(self) -> Callable[[], Operation | None]:
        """Gives, once it is there, the operation that is appended next."""
        block, last = self.block, self.block.last_op
        return lambda: block.first_op if last is None else last.next_op

    def reduce_axis(self, shape: tuple[int, ...], dim: int, extent: int, used: Sequence[Axis]) -> Axis:
        """The axis for a reduced dimension: the same one for equal shapes, so that equal pulls are shared."""
        key = (shape, dim, extent)
        axis = self._reduce_axes.setdefault(key, Axis(extent, REDUCED_ORDER + dim, f"r{dim}"))
        return Axis(extent, axis.order + 0.5, axis.name) if axis in used else axis


def locate(first: Operation | None, location: LocationAttr) -> None:
    """Give the user's line to an operation and those after it, where they have none."""
    while first is not None:
        if type(first.location) is UnknownLoc:
            first.location = location
        first = first.next_op


# ---- one rule per primitive -----------------------------------------------------------------------------------------

# A rule takes the operation of its primitive.
Rule = Callable[[TileBuilder, Any, Coordinates], Tile]


def _pull_constant(b: TileBuilder, op: array.ConstantOp, at: Coordinates) -> Tile:
    if op.resource:
        raise CompilerBug("array constants are inputs of their group")
    return b.full(op.value, array_type(op.results[0]).dtype)


def _pull_iota(b: TileBuilder, op: array.IotaOp, at: Coordinates) -> Tile:
    return b.cast(b.position(at[op.axis]), array_type(op.results[0]).dtype)


def _pull_map(b: TileBuilder, op: array.MapOp, at: Coordinates) -> Tile:
    return b.map(op.fn, *(b.pull(o, at) for o in op.operands))


def _pull_cast(b: TileBuilder, op: array.CastOp, at: Coordinates) -> Tile:
    return b.cast(b.pull(op.operands[0], at), array_type(op.results[0]).dtype)


def _pull_bitcast(b: TileBuilder, op: array.BitcastOp, at: Coordinates) -> Tile:
    operand = b.pull(op.operands[0], at)
    type = ArrayType(operand.shape, array_type(op.results[0]).dtype)
    return Tile(b.new(tile.BitcastOp(arguments=[operand.value], outputs=[tensor(type)])), operand.axes)


def _pull_broadcast(b: TileBuilder, op: array.BroadcastOp, at: Coordinates) -> Tile:
    sizes = array_type(op.operands[0]).shape
    result = array_type(op.results[0]).shape
    axes: tuple[int, ...] = op.axes
    inner = tuple(
        Linear() if size == 1 and result[axis] != 1 else at[axis] for size, axis in zip(sizes, axes, strict=True)
    )
    return b.pull(op.operands[0], inner)


def _pull_transpose(b: TileBuilder, op: array.TransposeOp, at: Coordinates) -> Tile:
    inner: list[Linear] = [Linear()] * len(at)
    for position, source in enumerate(op.permutation):
        inner[source] = at[position]
    return b.pull(op.operands[0], tuple(inner))


def _pull_slice(b: TileBuilder, op: array.SliceOp, at: Coordinates) -> Tile:
    inner = tuple(c * stride + start for c, start, stride in zip(at, op.starts, op.strides, strict=True))
    return b.pull(op.operands[0], inner)


def _pull_unfold(b: TileBuilder, op: array.UnfoldOp, at: Coordinates) -> Tile:
    axis, steps = op.axis, op.steps
    place = Linear()
    for c, step in zip(at[axis : axis + len(steps)], steps, strict=True):
        place = place + c * step
    return b.pull(op.operands[0], (*at[:axis], place, *at[axis + len(steps) :]))


def _pull_reverse(b: TileBuilder, op: array.ReverseOp, at: Coordinates) -> Tile:
    shape = array_type(op.operands[0]).shape
    axes = op.axes
    return b.pull(op.operands[0], tuple(c * -1 + (shape[d] - 1) if d in axes else c for d, c in enumerate(at)))


def _all(b: TileBuilder, conditions: Sequence[Tile]) -> Tile:
    result = conditions[0]
    for condition in conditions[1:]:
        result = b.map("bitwise_and", result, condition)
    return result


def _compare(b: TileBuilder, fn: str, position: Tile, bound: int) -> Tile:
    return b.map(fn, position, b.full(bound, dtypes.i64))


def _pull_pad(b: TileBuilder, op: array.PadOp, at: Coordinates) -> Tile:
    operand, value = op.operands
    sizes, result = array_type(operand).shape, array_type(op.results[0]).shape
    outside = b.pull(value, ())
    conditions: list[Tile] = []
    inner: list[Linear] = []
    for c, n, total, low, interior in zip(at, sizes, result, op.low, op.interior, strict=True):
        shifted = c + -low
        if interior:
            step = b.full(interior + 1, dtypes.i64)
            offset = b.position(shifted)
            conditions.append(_compare(b, "equal", b.map("remainder", offset, step), 0))
            shifted = Linear.of(b.map("floor_divide", offset, step))
        if low or interior:
            conditions.append(_compare(b, "greater_equal", b.position(shifted), 0))
        if low + n != total or interior:
            conditions.append(_compare(b, "less", b.position(shifted), n))
        inner.append(shifted)
    if 0 in sizes:
        return outside
    inside = b.pull(operand, tuple(inner))
    return b.map("select", _all(b, conditions), inside, outside) if conditions else inside


def _pull_concat(b: TileBuilder, op: array.ConcatOp, at: Coordinates) -> Tile:
    axis: int = op.axis
    parts = [(o, array_type(o).shape[axis]) for o in op.operands if array_type(o).shape[axis]]
    position = b.position(at[axis])
    start = sum(size for _, size in parts)
    result: Tile | None = None
    for operand, size in reversed(parts):
        start -= size
        part = b.pull(operand, (*at[:axis], at[axis] + -start, *at[axis + 1 :]))
        result = part if result is None else b.map("select", _compare(b, "less", position, start + size), part, result)
    if result is None:
        return b.full(0, array_type(op.results[0]).dtype)
    return result


def clamp(b: TileBuilder, index: Tile, high: int) -> Linear:
    """An integer tile clamped to 0..high as a coordinate."""
    if array_type(index.value).dtype.kind == "u":
        wide = array_type(index.value).dtype
        limited = b.map("minimum", index, b.full(min(high, int(wide.highest)), wide))
        return Linear.of(b.cast(limited, dtypes.i64))
    signed = b.cast(index, dtypes.i64)
    limited = b.map("minimum", signed, b.full(high, dtypes.i64))
    return Linear.of(b.map("maximum", limited, b.full(0, dtypes.i64)))


def _place(b: TileBuilder, index: SSAValue, at: Coordinates, high: int) -> Linear:
    """An index array at coordinates, clamped to 0..high: where it counts along a dimension, that coordinate."""
    if isinstance(index.owner, array.IotaOp) and index not in b.refs:
        axis: int = index.owner.axis
        if array_type(index).shape[axis] <= high + 1:
            return at[axis]
    return clamp(b, b.pull(index, at), high)


def _pull_gather(b: TileBuilder, op: array.GatherOp, at: Coordinates) -> Tile:
    source, *indices = op.operands
    axes: tuple[int, ...] = op.axes
    shape = array_type(source).shape
    rank = array_type(indices[0]).rank
    lanes = {axis: _place(b, i, at[:rank], shape[axis] - 1) for i, axis in zip(indices, axes, strict=True)}
    rest = iter(at[rank:])
    return b.pull(source, tuple(lanes[d] if d in lanes else next(rest) for d in range(len(shape))))


def _pull_dynamic_slice(b: TileBuilder, op: array.DynamicSliceOp, at: Coordinates) -> Tile:
    source, *starts = op.operands
    sizes = op.sizes
    inner: list[Linear] = []
    for c, start, n, size in zip(at, starts, array_type(source).shape, sizes, strict=True):
        inner.append(c if n == size else c + clamp(b, b.pull(start, ()), n - size))
    return b.pull(source, tuple(inner))


def _pull_dynamic_update_slice(b: TileBuilder, op: array.DynamicUpdateSliceOp, at: Coordinates) -> Tile:
    source, update, *starts = op.operands
    conditions: list[Tile] = []
    inner: list[Linear] = []
    for c, start, n, size in zip(at, starts, array_type(source).shape, array_type(update).shape, strict=True):
        if n == size:
            inner.append(c)
            continue
        offset = c + clamp(b, b.pull(start, ()), n - size) * -1
        inner.append(offset)
        conditions.append(_compare(b, "greater_equal", b.position(offset), 0))
        conditions.append(_compare(b, "less", b.position(offset), size))
    if 0 in array_type(update).shape:
        return b.pull(source, at)
    updated = b.pull(update, tuple(inner))
    return b.map("select", _all(b, conditions), updated, b.pull(source, at)) if conditions else updated


def _pull_reshape(b: TileBuilder, op: array.ReshapeOp, at: Coordinates) -> Tile:
    """Dimensions of size 1 come and go for free; otherwise the linear index is split by division."""
    source, result = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    kept = [c for c, n in zip(at, result, strict=True) if n != 1]
    if [n for n in source if n != 1] == [n for n in result if n != 1]:
        rest = iter(kept)
        return b.pull(op.operands[0], tuple(Linear() if n == 1 else next(rest) for n in source))
    first, last = _equal_ends(source, result)
    middle = _split(at[first : len(at) - last], result[first : len(at) - last], source[first : len(source) - last])
    if middle is not None:
        return b.pull(op.operands[0], (*at[:first], *middle, *at[len(at) - last :]))
    linear = Linear()
    for c, n in zip(at, result, strict=True):
        linear = linear * n + c
    index = b.position(linear)
    inner: list[Linear] = []
    below = 1
    for n in reversed(source):
        digit = index if below == 1 else b.map("floor_divide", index, b.full(below, dtypes.i64))
        below *= n
        if below != math.prod(source):
            digit = b.map("remainder", digit, b.full(n, dtypes.i64))
        inner.append(Linear() if n == 1 else Linear.of(digit))
    return b.pull(op.operands[0], tuple(reversed(inner)))


def _equal_ends(first: Sequence[int], second: Sequence[int]) -> tuple[int, int]:
    """How many leading and how many trailing numbers are equal, the latter among those after the former."""
    most = min(len(first), len(second))
    leading = next((n for n in range(most) if first[n] != second[n]), most)
    trailing = next((n for n in range(most - leading) if first[-1 - n] != second[-1 - n]), most - leading)
    return leading, trailing


def _split(at: Coordinates, shape: Sequence[int], source: Sequence[int]) -> Coordinates | None:
    """Coordinates of an array of the shape `source` at those of one reshaped to `shape`, where that takes no division
    of anything but coefficients."""
    linear = Linear()
    for c, n in zip(at, shape, strict=True):
        linear = linear * n + c
    inner: list[Linear] = []
    if 0 in source:
        return None
    for n in reversed(source):
        high = tuple((term, c // n) for term, c in linear.terms if c % n == 0)
        low = Linear(linear.constant % n, tuple((term, c) for term, c in linear.terms if c % n))
        ends = [c * (extent - 1) if (extent := _values(term)) and c > 0 else n for term, c in low.terms]
        if low.constant + sum(ends) >= n:
            return None
        inner.append(low)
        linear = Linear(linear.constant // n, high)
    return tuple(reversed(inner))


def _values(term: Axis | SSAValue | Tile) -> int | None:
    """How many values a tile axis or grid index has, from 0 on."""
    if isinstance(term, Axis):
        return term.extent
    owner = term.owner.parent_op() if isinstance(term, BlockArgument) else None
    if not isinstance(term, BlockArgument) or not isinstance(owner, tile.KernelOp):
        return None
    return owner.grid[term.index - len(owner.effects)]


def _pull_reduce(b: TileBuilder, op: array.ReduceOp, at: Coordinates) -> Tile:
    return _reductions(b, [op], at)[0]


def _reductions(b: TileBuilder, group: Sequence[array.ReduceOp], at: Coordinates) -> list[Tile]:
    """The tiles of reductions that share their loops, as `pull_reductions` has them."""
    reduced: tuple[int, ...] = group[0].axes
    shape = array_type(group[0].operands[0]).shape
    if any(shape[d] == 0 for d in reduced):
        return [b.full(_identity(op), array_type(op.results[0]).dtype) for op in group]
    part: int | None = group[0].part
    divided: int | None = group[0].part_axis
    sizes = tuple(part if part is not None and d == divided else n for d, n in enumerate(shape))
    extents = b.reduced.get((shape, reduced)) or nested_extents(sizes, reduced)
    used = axes_of(at)
    axes = {d: b.reduce_axis(shape, d, extents[d], used) for d in reduced}

    def chunk(op: array.ReduceOp, counters: Mapping[int, Linear]) -> Tile:
        kept = iter(at if part is None else at[1:])
        # Within a part, and within the array.
        local = {d: Linear.of(axes[d]) + (counters[d] * extents[d] if d in counters else 0) for d in axes}
        inner = tuple(local[d] if d in axes else next(kept) for d in range(len(shape)))
        if part is not None:
            inner = tuple(c + at[0] * part if d == divided else c for d, c in enumerate(inner))
        terms = b.cast(b.pull(op.operands[0], inner), _summed_type(op))
        every = ordered((*terms.axes, *axes.values()))
        terms = Tile(b.expand(terms, every), every)
        for d in axes:
            if d in counters and sizes[d] % extents[d]:
                terms = b.fill_padding(terms, local[d], sizes[d], _identity(op))
            if shape[d] % sizes[d]:
                terms = b.fill_padding(terms, inner[d], shape[d], _identity(op))
        return b.reduce(terms, op.fn, list(axes.values()))

    looped: dict[int, int] = {d: -(-sizes[d] // extents[d]) for d in reduced if extents[d] < sizes[d]}
    # The whole reduction's result depends on the kept coordinates alone: those of the operand bound its axes.
    totals = _combine_trips(b, group, looped, used, chunk) if looped else [chunk(op, {}) for op in group]
    return [b.cast(total, array_type(op.results[0]).dtype) for op, total in zip(group, totals, strict=True)]


def _identity(op: Reduction) -> float | int | bool:
    fn = op.fn
    identity = ops.FUNCTIONS[fn].identity
    if identity is None:
        raise CompilerBug(f"`{fn}` does not reduce")
    return identity(array_type(op.operands[0]).dtype)


def _summed_type(op: array.ArrayOp) -> DType:
    """The type in which a reduction of an operand of its type is computed."""
    return array_type(op.operands[0]).dtype.compute


Reduction = array.ReduceOp | array.WindowReduceOp
R = TypeVar("R", array.ReduceOp, array.WindowReduceOp)
# The totals after a trip of a loop, by its number and the totals before.
Trip = Callable[[Linear, Sequence[Tile]], Sequence[Tile]]


def _combine_trips(
    b: TileBuilder,
    group: Sequence[R],
    trips: Mapping[int, int],
    kept: Sequence[Axis],
    chunk: Callable[[R, Mapping[int, Linear]], Tile],
) -> list[Tile]:
    """The chunks of all trips of nested loops combined, outermost first. Long float sums are cut: a loop over blocks
    around the loop over the trips of a block, or a partial sum for each trip of an outer loop."""
    in_blocks = b.sums_in_blocks and any(op.fn == "add" and _summed_type(op).is_float for op in group)
    counters: dict[int, Linear] = {}

    def start() -> list[Tile]:
        return [b.full(_identity(op), _summed_type(op), tuple(kept)) for op in group]

    def combined(totals: Sequence[Tile], more: Sequence[Tile]) -> list[Tile]:
        return [b.map(op.fn, *pair) for op, *pair in zip(group, totals, more, strict=True)]

    def nest(dims: Sequence[int], totals: Sequence[Tile]) -> Sequence[Tile]:
        if not dims:
            return combined(totals, [chunk(op, counters) for op in group])
        dim, *inner = dims
        inner_trips = math.prod(trips[d] for d in inner)
        apart = in_blocks and inner_trips > 1 and inner_trips * trips[dim] > LONGEST_CHAIN

        def trip(counter: Linear, totals: Sequence[Tile]) -> Sequence[Tile]:
            counters[dim] = counter
            return combined(totals, nest(inner, start())) if apart else nest(inner, totals)

        return loop(trips[dim], totals, trip)

    def loop(count: int, totals: Sequence[Tile], trip: Trip) -> list[Tile]:
        """A loop that adds to the totals, or, where that would be too many additions `in_blocks`, nested loops."""
        blocks, counts = [0], [count]
        while in_blocks and counts[-1] > LONGEST_CHAIN:
            blocks.append(_block_of_trips(counts[-1]))
            counts.append(-(-counts[-1] // blocks[-1]))

        def level(number: int, first: Linear, totals: Sequence[Tile]) -> list[Tile]:
            """The loop over the blocks of one level, of which those before `first` are done."""
            outermost = number == len(blocks) - 1
            most = counts[number] if outermost else blocks[number + 1]
            end = None if outermost or counts[number] % most == 0 else (first * -1 + counts[number], 1)

            def body(counter: SSAValue, carried: list[Tile]) -> Sequence[Tile]:
                position = first + Linear.of(counter)
                if number == 0:
                    return trip(position, carried)
                return combined(carried, level(number - 1, position * blocks[number], start()))

            return b.loop(most, totals, body, end)

        return level(len(blocks) - 1, Linear(), totals)

    return list(nest(list(trips), start()))


def _block_of_trips(trips: int) -> int:
    """The block length nearest to `SUM_BLOCK` that divides the trips, if one does: masks cost more than additions."""
    dividing = [n for n in range(SUM_BLOCK // 2, LONGEST_CHAIN + 1) if trips % n == 0]
    return min(dividing, key=lambda n: abs(n - SUM_BLOCK), default=SUM_BLOCK)


def _pull_window_reduce(b: TileBuilder, op: array.WindowReduceOp, at: Coordinates) -> Tile:
    window: tuple[int, ...] = op.window
    (operand,) = op.operands
    type = array_type(operand)
    extents = held_window(window, b.most_of_window)
    axes = {d: Axis(n, REDUCED_ORDER + d, f"w{d}") for d, n in enumerate(extents) if n > 1}

    def chunk(op: array.WindowReduceOp, counters: Mapping[int, Linear]) -> Tile:
        inner: list[Linear] = []
        conditions: list[Tile] = []
        for d, c in enumerate(at):
            position = c * op.strides[d] + -op.low[d]
            if d in axes:
                position = position + Linear.of(axes[d], op.dilation[d])
            if d in counters:
                position = position + counters[d] * (extents[d] * op.dilation[d])
            inner.append(position)
            if op.low[d]:
                conditions.append(_compare(b, "greater_equal", b.position(position), 0))
            if op.high[d]:
                conditions.append(_compare(b, "less", b.position(position), type.shape[d]))
        value = b.pull(operand, tuple(inner))
        if conditions:
            value = b.map("select", _all(b, conditions), value, b.full(_identity(op), type.dtype))
        value = b.cast(value, type.dtype.compute)
        if not axes:
            return value
        every = ordered((*value.axes, *axes.values()))
        return b.reduce(Tile(b.expand(value, every), every), op.fn, list(axes.values()))

    looped = {d: n // extents[d] for d, n in enumerate(window) if extents[d] < n}
    total = _combine_trips(b, [op], looped, axes_of(at), chunk)[0] if looped else chunk(op, {})
    return b.cast(total, type.dtype)


def held_window(window: Sequence[int], most: int | None) -> tuple[int, ...]:
    """Tile extents of a window, at most `most` elements in all, innermost dimensions first; they divide its sizes."""
    room, extents = most or math.prod(window), list[int]()
    for n in reversed(window):
        extents.append(next(d for d in range(min(n, max(1, room)), 0, -1) if n % d == 0))
        room //= extents[-1]
    return tuple(reversed(extents))


def _pull_random_bits(b: TileBuilder, op: array.RandomBitsOp, at: Coordinates) -> Tile:
    """Philox4x32-10 on the linear index, as `semantics.array.philox` defines it."""
    linear = Linear()
    for c, n in zip(at, array_type(op.results[0]).shape, strict=True):
        linear = linear * n + c
    counter = b.cast(b.position(linear), dtypes.u64)

    def const(value: int) -> Tile:
        return b.full(value, dtypes.u64)

    mask, half = const(0xFFFFFFFF), const(32)
    zero = const(0)
    words = [b.map("bitwise_and", counter, mask), b.map("shift_right", counter, half), zero, zero]
    keys = [b.cast(b.pull(op.operands[0], (Linear(i),)), dtypes.u64) for i in range(2)]
    for _ in range(10):
        first = b.map("multiply", words[0], const(0xD2511F53))
        second = b.map("multiply", words[2], const(0xCD9E8D57))
        words = [
            b.map("bitwise_xor", b.map("bitwise_xor", b.map("shift_right", second, half), words[1]), keys[0]),
            b.map("bitwise_and", second, mask),
            b.map("bitwise_xor", b.map("bitwise_xor", b.map("shift_right", first, half), words[3]), keys[1]),
            b.map("bitwise_and", first, mask),
        ]
        steps = (0x9E3779B9, 0xBB67AE85)
        keys = [b.map("bitwise_and", b.map("add", k, const(s)), mask) for k, s in zip(keys, steps, strict=True)]
    return b.cast(words[0], dtypes.u32)


_PULL: dict[str, Rule] = {
    "constant": _pull_constant,
    "iota": _pull_iota,
    "map": _pull_map,
    "cast": _pull_cast,
    "bitcast": _pull_bitcast,
    "broadcast": _pull_broadcast,
    "transpose": _pull_transpose,
    "slice": _pull_slice,
    "unfold": _pull_unfold,
    "reverse": _pull_reverse,
    "pad": _pull_pad,
    "concat": _pull_concat,
    "gather": _pull_gather,
    "dynamic_slice": _pull_dynamic_slice,
    "dynamic_update_slice": _pull_dynamic_update_slice,
    "reshape": _pull_reshape,
    "reduce": _pull_reduce,
    "window_reduce": _pull_window_reduce,
    "random_bits": _pull_random_bits,
}

PULLABLE = frozenset(_PULL)
