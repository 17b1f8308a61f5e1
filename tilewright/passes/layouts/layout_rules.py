"""Layout rules of tile operations: how the layouts of operands and results correspond.

A `Flow` states how the layout of one value follows from that of another when no data moves, in both directions; moving
data instead costs what `plan_relayout` states. An operation without a rule is an error of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace
from xdsl.dialects.builtin import FileLineColLoc, TensorType
from xdsl.ir import Operation, SSAValue

from tilewright.dialects import tile
from tilewright.dialects.base import PlainOp, array_type
from tilewright.dialects.rewriting import yielded
from tilewright.dialects.scheduled import tile_order
from tilewright.errors import LayoutError, LayoutRuleError, SourceLocation
from tilewright.layout import Iter, Layout, slice_box
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.dims import ceil_divide, static
from tilewright.layout.views import Broadcast, Reduce, Reshape, Transpose


class View(Protocol):
    """Layouts of a target that hold the same data at the same positions as layouts of a source."""

    def image(self, layout: Layout) -> Layout:
        """The target's layout. Raises LayoutError where there is none."""
        ...

    def preimage(self, layout: Layout) -> Layout:
        """A source's layout. Raises LayoutError where there is none."""
        ...


class Same(msgspec.Struct, frozen=True):
    """Target and source have one layout."""

    def image(self, layout: Layout) -> Layout:
        return layout

    def preimage(self, layout: Layout) -> Layout:
        return layout


# What holds the elements of a value that is in registers.
_HOLDERS = (Kind.REGISTER, Kind.LANE, Kind.WARP)


class Window(msgspec.Struct, frozen=True):
    """The target is a box of the source."""

    source: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def image(self, layout: Layout) -> Layout:
        return slice_box(layout, self.starts, self.sizes)

    def preimage(self, layout: Layout) -> Layout:
        """One of those that have it: boxes of the same size next to each other, each in registers of its own."""
        if layout.offset or layout.swizzle or not all(kind_of(axis) in _HOLDERS for axis in layout.axes):
            raise LayoutError("a box does not determine the layout of its array", help="start from the whole")
        start = _registers(layout)
        shard = list(layout.shard)
        for dim, (size, whole) in enumerate(zip(self.sizes, self.source, strict=True)):
            if size == whole:
                continue
            if static(layout.padded_shape[dim]) != size or self.starts[dim] % size:
                raise LayoutError("the box is no whole number of boxes from the start", help="start from the whole")
            count = static(ceil_divide(whole, size))
            shard[dim] = (Iter(count, start, "reg"), *shard[dim])
            start *= count
        return replace(layout, shape=self.source, shard=tuple(shard))


class Part(msgspec.Struct, frozen=True):
    """The source is a box of the target: an operand of a concatenation."""

    whole: Window

    def image(self, layout: Layout) -> Layout:
        return self.whole.preimage(layout)

    def preimage(self, layout: Layout) -> Layout:
        return self.whole.image(layout)


class Scattered(msgspec.Struct, frozen=True):
    """No layout of the one is a layout of the other: the data goes through memory."""

    def image(self, layout: Layout) -> Layout:
        raise LayoutError("the elements are regrouped", help="go through memory")

    def preimage(self, layout: Layout) -> Layout:
        raise LayoutError("the elements are regrouped", help="go through memory")


def _registers(layout: Layout) -> int:
    """The first registers of a thread that the layout does not use, in step with those that it does."""
    used = [abs(part.stride) * static(part.extent) for part in layout.all_iters if part.axis == "reg"]
    return max(used, default=1)


class Folded(msgspec.Struct, frozen=True):
    """The target combines dims of the source, with the result at every holder that took part."""

    view: Reduce

    def image(self, layout: Layout) -> Layout:
        return self.view.image(layout)

    def preimage(self, layout: Layout) -> Layout:
        """The combined dims in registers of one thread, inside what the layout has there."""
        start = _registers(layout)
        digits: dict[int, tuple[Iter, ...]] = {}
        for dim in self.view.dims:
            size = static(self.view.source[dim])
            digits[dim] = (Iter(size, start, "reg"),) if size > 1 else ()
            start *= max(1, size)
        return self.view.preimage(layout, digits)


class Spread(msgspec.Struct, frozen=True):
    """The target repeats the source along new or stretched dims."""

    view: Broadcast

    def image(self, layout: Layout) -> Layout:
        """The repeated dims in registers of one thread."""
        kept = {dim for own, dim in enumerate(self.view.dims) if self.view.source[own] == self.view.target[dim]}
        start = _registers(layout)
        digits: dict[int, tuple[Iter, ...]] = {}
        for dim, size in enumerate(self.view.target):
            if dim not in kept:
                digits[dim] = (Iter(size, start, "reg"),) if size != 1 else ()
                start *= max(1, static(size))
        return self.view.image(layout, digits)

    def preimage(self, layout: Layout) -> Layout:
        return self.view.preimage(layout)


class Flow(msgspec.Struct, frozen=True):
    """From `source` to `target`.

    Attributes:
        view: how their layouts correspond.
        combines: the function by which the view combines elements; None where it only moves them.
        text: the rule in words.
        times: how often it is gone for each time that the operation is reached.
    """

    source: SSAValue
    target: SSAValue
    view: View
    text: str
    combines: str | None = None
    times: int = 1


Rule = Callable[[Any], Iterator[Flow]]
RULES: dict[type[PlainOp], Rule] = {}

# What loads, stores and products ask is a matter of memories and atoms; constants have no layout of their own; the rest
# takes tiles as they are.
ANCHORS: tuple[type[PlainOp], ...] = (tile.LoadOp, tile.StoreOp, tile.DotOp)
FREE: tuple[type[PlainOp], ...] = (tile.FullOp, tile.IotaOp)
COMPUTING: tuple[type[PlainOp], ...] = (
    tile.MapOp,
    tile.CastOp,
    tile.BitcastOp,
    tile.FillPaddingOp,
    tile.BroadcastOp,
    tile.ReduceOp,
    tile.ArgReduceOp,
    tile.ScanOp,
    tile.SortOp,
    tile.TopKOp,
)
# These compute each element of their result from the operands' elements at the same coordinates.
ELEMENTWISE: tuple[type[PlainOp], ...] = (tile.MapOp, tile.CastOp, tile.BitcastOp, tile.FillPaddingOp)
IGNORED: tuple[type[PlainOp], ...] = (tile.YieldOp, tile.PrintOp, tile.AssertOp, tile.ZoneOp, tile_order.PointOp)


def flows(op: Operation) -> Iterator[Flow]:
    """How the layouts around an operation correspond.

    Raises:
        LayoutRuleError: there is no rule for it.
    """
    kind = type(op)
    if kind in RULES:  # type: ignore[comparison-overlap]
        yield from RULES[kind](op)  # type: ignore[index]
    elif kind not in (*ANCHORS, *FREE, *IGNORED):
        raise LayoutRuleError(
            f"layout inference has no rule for `{op.name}`",
            location=location_of(op),
            help="write the value to memory before and after the operation; layout inference lacks a rule for it",
        )


def _rule(*kinds: type[PlainOp]) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for kind in kinds:
            RULES[kind] = rule
        return rule

    return register


@_rule(tile.MapOp, tile.CastOp, tile.BitcastOp, tile.FillPaddingOp, tile.SortOp)
def _elementwise(op: PlainOp) -> Iterator[Flow]:
    name = op.fn if isinstance(op, tile.MapOp) else op.name.removeprefix("tile.")
    for operand in filter(is_tile, op.operands):
        yield Flow(operand, op.results[0], Same(), f"operands and result of `{name}` are in one layout")


@_rule(tile.ScanOp)
def _scan(op: tile.ScanOp) -> Iterator[Flow]:
    """The initial value of a scan is read from memory."""
    yield Flow(op.operands[0], op.results[0], Same(), "operand and result of a scan are in one layout")


@_rule(tile.TopKOp)
def _top_k(op: tile.TopKOp) -> Iterator[Flow]:
    for result in op.results:
        yield Flow(op.operands[0], result, Scattered(), "the largest elements come from anywhere")


@_rule(tile.TransposeOp)
def _transpose(op: tile.TransposeOp) -> Iterator[Flow]:
    yield Flow(op.operands[0], op.results[0], Transpose(op.permutation), "a transpose renames dims")


@_rule(tile.ReshapeOp)
def _reshape(op: PlainOp) -> Iterator[Flow]:
    view = Reshape(_shape(op.operands[0]), _shape(op.results[0]))
    yield Flow(op.operands[0], op.results[0], view, "a reshape regroups elements in their order")


@_rule(tile.BroadcastOp)
def _broadcast(op: tile.BroadcastOp) -> Iterator[Flow]:
    view = Spread(Broadcast(_shape(op.operands[0]), _shape(op.results[0]), op.axes, ("reg",)))
    yield Flow(op.operands[0], op.results[0], view, "a broadcast repeats what its operand has")


@_rule(tile.ReduceOp, tile.ArgReduceOp)
def _reduce(op: tile.ReduceOp | tile.ArgReduceOp) -> Iterator[Flow]:
    axes = op.axes if isinstance(op, tile.ReduceOp) else (op.axis,)
    view = Folded(Reduce(_shape(op.operands[0]), axes, ("reg",)))
    text = "a reduction leaves its result with all who took part"
    yield Flow(op.operands[0], op.results[0], view, text, op.fn)


@_rule(tile.SliceOp)
def _slice(op: tile.SliceOp) -> Iterator[Flow]:
    sizes = tuple(limit - start for start, limit in zip(op.starts, op.limits, strict=True))
    is_box = all(stride == 1 for stride in op.strides)
    view = Window(_shape(op.operands[0]), op.starts, sizes) if is_box else Scattered()
    yield Flow(op.operands[0], op.results[0], view, "a slice is a box of its operand")


@_rule(tile.ConcatOp)
def _concat(op: tile.ConcatOp) -> Iterator[Flow]:
    whole = _shape(op.results[0])
    start = 0
    for operand in op.operands:
        sizes = _shape(operand)
        starts = tuple(start if dim == op.axis else 0 for dim in range(len(whole)))
        view = Part(Window(whole, starts, sizes))
        yield Flow(operand, op.results[0], view, "an operand of a concatenation is a box of the result")
        start += sizes[op.axis]


@_rule(tile.RelayoutOp)
def _relayout(op: tile.RelayoutOp) -> Iterator[Flow]:
    yield Flow(op.source, op.result, Same(), "a pin takes its tile to its layout")


@_rule(tile.ForOp)
def _for(op: tile.ForOp) -> Iterator[Flow]:
    body = op.body.block
    handed_on = yielded(op.body.block)
    for initial, argument, result, following in zip(op.initial, body.args[1:], op.results, handed_on, strict=True):
        yield Flow(initial, argument, Same(), "a carried tile begins in the layout that the loop keeps")
        text = "a carried tile is handed on in the layout that the loop keeps"
        yield Flow(following, argument, Same(), text, times=op.trips)
        yield Flow(argument, result, Same(), "a carried tile leaves the loop as the loop keeps it")


@_rule(tile.IfOp)
def _if(op: tile.IfOp) -> Iterator[Flow]:
    for region in (op.then, op.otherwise):
        for value, result in zip(yielded(region.block), op.results, strict=True):
            yield Flow(value, result, Same(), "both branches give a tile in one layout")


def _shape(value: SSAValue) -> tuple[int, ...]:
    return array_type(value).shape


def is_tile(value: SSAValue) -> bool:
    """Whether the value is a tile with elements to place: not an index, a reference or a scalar."""
    return isinstance(value.type, TensorType) and bool(_shape(value))


def location_of(op: Operation) -> SourceLocation | None:
    """The user's line of an operation."""
    found = op.location
    if not isinstance(found, FileLineColLoc):
        return None
    return SourceLocation(found.filename.data, found.line.data, found.column.data)
