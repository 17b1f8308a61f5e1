"""Differences between two layouts written with common digits, and intermediate layouts between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from itertools import chain

from tilewright.errors import LayoutError
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.construct import row_major
from tilewright.layout.dims import static
from tilewright.layout.iters import Iter, Partial, Replica, XorTerm
from tilewright.layout.layout import Layout
from tilewright.layout.refinement import Content, Copy, IndexDigit, Slot, Table, index_digits, is_memory, refine
from tilewright.layout.scratch import in_order


class Ends(Enum):
    """How terms end that were spread over an axis."""

    COPIES = auto()
    SHARDS = auto()
    ONE = auto()


@lru_cache(maxsize=8192)
def in_memory(layout: Layout) -> bool:
    """Whether the elements are in a memory rather than in registers."""
    axes = layout.axes
    return any(is_memory(axis) for axis in axes) or not any(kind_of(axis) < Kind.BLOCK for axis in axes)


def moved_slots(source: Table, target: Table) -> Iterator[Slot]:
    """The slots of positions that hold other elements in the target, of which the source has no copy there."""
    for slot in dict.fromkeys(chain(source.slots, target.slots)):
        if is_memory(slot.axis):
            continue
        held, wanted = source.slots.get(slot), target.slots.get(slot)
        has_all = isinstance(held, Copy) and held.op is None
        if held != wanted and not has_all:
            yield slot
    offsets = dict(source.offset), dict(target.offset)
    for axis in dict.fromkeys(chain(*offsets)):
        if not is_memory(axis) and offsets[0].get(axis, 0) != offsets[1].get(axis, 0):
            yield Slot(axis, 1, 1)


def moved_kinds(source: Table, target: Table) -> set[Kind]:
    """The kinds of the axes along which elements have to move."""
    return {kind_of(slot.axis) for slot in moved_slots(source, target)}


def ends(at: Layout, target: Layout, term: Partial) -> Ends:
    """The target's digits at the positions along which `term` is spread."""
    for copy in target.replica:
        if copy.axis == term.axis and copy.stride == term.stride and copy.extent == term.extent:
            return Ends.COPIES
    tables = refine(at, target)
    content = None if tables is None else tables[1].slots.get(Slot(term.axis, term.stride, static(term.extent)))
    if isinstance(content, IndexDigit):
        held = tables[0].slot_of(content) if tables is not None else None
        if held is not None and is_memory(held.axis):
            return Ends.SHARDS
    return Ends.COPIES if content is not None else Ends.ONE


def shares_places(source: Layout, target: Layout) -> bool:
    """Whether elements that share a position in the target share one in the source too."""
    tables = refine(source, target)
    return tables is not None and tables[1].still <= tables[0].still


def common_run(source: Table, target: Table) -> int:
    """Elements that are next to each other in the memories of both."""
    first, second = ({s.stride: c for s, c in t.slots.items() if is_memory(s.axis)} for t in (source, target))
    run = 1
    while run in first and isinstance(first[run], IndexDigit) and first[run] == second.get(run):
        run *= first[run].extent
    return run


def first_run(memory: Layout) -> tuple[int, int]:
    """How many elements follow each other in a memory at equal distances, and how far apart they are: 1 without a
    gap."""
    digits = sorted((d for d in memory.iters if d.stride), key=lambda d: d.stride)
    run, apart = 1, digits[0].stride if digits else 1
    for digit in digits:
        if digit.stride != run * apart:
            break
        run *= static(digit.extent)
    return run, apart


def lanes_are_neighbours(registers: Table, strides: Mapping[Content, int]) -> bool:
    """Whether the lanes of a vector hold elements in the order of a memory with stride `strides[d]` for digit `d`, or
    copies of one."""
    lanes = [(s.stride, c) for s, c in registers.slots.items() if kind_of(s.axis) == Kind.LANE]
    distances = {strides.get(content, 0) - stride for stride, content in lanes if not isinstance(content, Copy)}
    return distances <= {0} or all(not strides.get(content, 0) for _, content in lanes)


def stride_of_lanes(registers: Table, strides: Mapping[Content, int]) -> int | None:
    """How far apart neighbouring lanes of a vector are in a memory with stride `strides[d]` for digit `d`; None where
    that differs from lane to lane, or some hold copies."""
    lanes = [(s.stride, c) for s, c in registers.slots.items() if kind_of(s.axis) == Kind.LANE]
    if any(isinstance(content, Copy) or strides.get(content, 0) % stride for stride, content in lanes):
        return None
    found = {strides.get(content, 0) // stride for stride, content in lanes}
    return found.pop() if len(found) == 1 else None


def rows_are_lanes(registers: Table, memory: Table) -> bool:
    """Whether lane `l` of warp `w` holds row `32 w + l` of tensor memory, and registers its columns."""
    rows = {slot.stride: content for slot, content in memory.slots.items() if slot.axis == "tmem.row"}
    for slot, content in registers.slots.items():
        kind = kind_of(slot.axis)
        row = slot.stride if kind == Kind.LANE else 32 * slot.stride
        if kind in (Kind.LANE, Kind.WARP) and rows.get(row) != content:
            return False
    return True


def collective(source: Table, target: Table, far: Sequence[str]) -> str:
    """The name of the movement along cores or devices, `send` where it is none that has a name."""
    names: set[str] = set()
    for slot in moved_slots(source, target):
        if slot.axis not in far:
            continue
        held, wanted = source.slots.get(slot), target.slots.get(slot)
        if isinstance(wanted, Copy):
            names.add("all-gather" if isinstance(held, IndexDigit) else "broadcast")
        else:
            names.add("all-to-all" if isinstance(held, IndexDigit) and isinstance(wanted, IndexDigit) else "send")
    return names.pop() if len(names) == 1 else "send"


# ---- layouts between ------------------------------------------------------------------------------------------------


def dense(layout: Layout, axis: str, keep: Kind) -> Layout:
    """The layout's spread over axes of kind `keep` and above, with the elements of each position row-major on a memory
    axis.

    Raises:
        LayoutError: the layout is spread over such axes by digits that do not nest.
    """
    tables = refine(layout)
    if tables is None:
        if any(kind_of(name) >= keep for name in layout.axes):
            raise LayoutError("places are counted by digits that do not nest", help="split the dims at common factors")
        return row_major(layout.static_shape, axis)
    slots = {s: c for s, c in tables[0].slots.items() if not is_memory(s.axis) and kind_of(s.axis) >= keep}
    held = set(slots.values())
    digits = [c for c in index_digits(tables[0]) if c not in held]
    digits.sort(key=lambda digit: (digit.dim, -digit.weight))
    return assembled(layout, slots, in_order(digits, axis))


def assembled(
    layout: Layout,
    places: Mapping[Slot, Content],
    memory: Mapping[Slot, Content],
    swizzle: Sequence[XorTerm] = (),
) -> Layout:
    """A layout of the same shape from tables of slots."""
    every = {**places, **memory}
    position = {content: slot for slot, content in every.items() if isinstance(content, IndexDigit)}
    shard: list[tuple[Iter, ...]] = []
    for dim in range(layout.rank):
        digits = sorted((d for d in position if d.dim == dim), key=lambda d: -d.weight)
        shard.append(tuple(Iter(d.extent, position[d].stride, position[d].axis) for d in digits))
    copies = [(slot, content) for slot, content in every.items() if isinstance(content, Copy)]
    replicas = tuple(Replica(c.extent, slot.stride, slot.axis) for slot, c in copies if c.op is None)
    partials = tuple(Partial(c.extent, slot.stride, slot.axis, c.op) for slot, c in copies if c.op is not None)
    axes = {slot.axis for slot in every}
    offset = tuple((axis, value) for axis, value in layout.offset if axis in axes and not is_memory(axis))
    return Layout(layout.shape, tuple(shard), replicas, partials, offset, tuple(swizzle))
