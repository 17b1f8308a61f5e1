"""What differs between two layouts written with common digits, and layouts made for the way between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain

from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.dims import static
from tilewright.layout.iters import Iter, Partial, Replica, XorTerm
from tilewright.layout.layout import Layout
from tilewright.layout.refinement import Content, Copy, IndexDigit, Slot, Table, is_memory, refine


class Ends(Enum):
    """How terms end that were spread over an axis."""

    COPIES = auto()
    SHARDS = auto()
    ONE = auto()


def in_memory(layout: Layout) -> bool:
    """Whether the elements are in a memory rather than in registers."""
    axes = layout.axes
    return any(is_memory(axis) for axis in axes) or not any(kind_of(axis) < Kind.BLOCK for axis in axes)


def moved_slots(source: Table, target: Table) -> Iterator[Slot]:
    """The slots of places that hold something else in the target, which the source has not there as a copy."""
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
    """What the target has at the places along which `term` is spread."""
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
    """Whether elements that share a place in the target share one in the source too."""
    tables = refine(source, target)
    return tables is not None and tables[1].still <= tables[0].still


def common_run(source: Table, target: Table) -> int:
    """Elements that are next to each other in the memories of both."""
    first, second = ({s.stride: c for s, c in t.slots.items() if is_memory(s.axis)} for t in (source, target))
    run = 1
    while run in first and isinstance(first[run], IndexDigit) and first[run] == second.get(run):
        run *= first[run].extent
    return run


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
    """The layout's spread over axes of kind `keep` and above, with what each place holds row-major on a memory axis."""
    tables = refine(layout)
    if tables is None:
        raise ValueError("a layout without digits of its own")
    slots = {s: c for s, c in tables[0].slots.items() if not is_memory(s.axis) and kind_of(s.axis) >= keep}
    held = set(slots.values())
    digits = [c for c in _index_digits(tables[0]) if c not in held]
    digits.sort(key=lambda digit: (digit.dim, -digit.weight))
    return assembled(layout, slots, in_order(digits, axis))


def in_order(digits: Sequence[IndexDigit], axis: str, pitch_after: int = 0, pad: int = 0) -> dict[Slot, Content]:
    """Digits packed on a memory axis, the last fastest; `pad` elements are left free after each `pitch_after`."""
    slots: dict[Slot, Content] = {}
    stride = 1
    for digit in reversed(digits):
        if pad and stride == pitch_after:
            stride += pad
        slots[Slot(axis, stride, digit.extent)] = digit
        stride *= digit.extent
    return slots


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


def _index_digits(table: Table) -> list[IndexDigit]:
    found = [content for content in table.slots.values() if isinstance(content, IndexDigit)]
    return found + list(table.still)


@dataclass(frozen=True)
class Arrangement:
    """Where the digits of an index are in a memory."""

    slots: Mapping[Slot, Content]
    swizzle: tuple[XorTerm, ...] = ()

    @property
    def strides(self) -> dict[Content, int]:
        return {content: slot.stride for slot, content in self.slots.items()}


def arrangements(table: Table, axis: str, item_bytes: int) -> Iterator[Arrangement]:
    """Arrangements of a scratch memory in the order of a layout's registers, then lanes, then the rest: straight, with
    the swizzles of a 128-byte line, and with a pitch that is one access wider than a line. The simpler come first."""
    order = _by_nearness(table)
    straight = in_order(order, axis)
    yield Arrangement(straight)
    if 128 % item_bytes:
        return
    line, wide = 128 // item_bytes, max(1, 16 // item_bytes)
    for count in (3, 2, 1):
        yield Arrangement(straight, (XorTerm(axis, wide.bit_length() - 1, line.bit_length() - 1, count),))
    yield Arrangement(in_order(order, axis, pitch_after=line, pad=wide))


def _by_nearness(table: Table) -> list[IndexDigit]:
    """Digits so that those of registers are fastest, then those of lanes, then the rest."""

    def rank(digit: IndexDigit) -> tuple[int, int]:
        slot = table.slot_of(digit)
        return (0, 0) if slot is None else (int(kind_of(slot.axis)), slot.stride)

    return sorted(_index_digits(table), key=rank, reverse=True)
