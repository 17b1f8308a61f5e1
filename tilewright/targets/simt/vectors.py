"""Which registers of a thread are always next to each other in memory, so that one access moves them.

A register's place in memory is a sum of steps, one for each digit that its number or its thread's has. Digits of the
register whose steps are 1, 2, 4 and so on make a vector, if everything else steps by whole vectors, and if the vector's
elements are in the tile and in the array together or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from xdsl.ir.affine import AffineMap

from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.iters import XorTerm
from tilewright.layout.refinement import IndexDigit, refine
from tilewright.passes.affine_access import Form, Index, linear_form
from tilewright.records import dataclass
from tilewright.targets.simt.emit_memory import Memory, Window, memory_axis

WIDEST_BYTES = 16
ALONE = (0,)


@dataclass(frozen=True)
class _Step:
    """A digit of an index: how far one step of it moves in memory, and, where the digit is one of the register number,
    how far it moves there (else 0)."""

    digit: IndexDigit
    elements: int
    registers: int

    @property
    def end(self) -> int:
        return self.elements * self.digit.extent


def vector_of(window: Window) -> Sequence[int]:
    """How far on the registers are that one access moves together with a first, itself included, in the order of
    memory; `(0,)` where each is moved alone. The accesses of a gather have no vectors."""
    rank = window.coordinates.layout.rank
    forms = [linear_form(expression, tuple(Index(n) for n in range(rank))) for expression in window.map]
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return ALONE
    steps = _steps_in_buffer(window) if _is_in_place(window, rank) else _steps_in_array(window, known)
    if steps is None:
        return ALONE
    vector, taken = _adjacent(steps, max(1, WIDEST_BYTES // window.memory.dtype.itemsize))
    while len(vector) > 1 and not _is_whole(window, known, steps, taken, len(vector)):
        vector = vector[: len(vector) // 2]
    return vector


def _is_in_place(window: Window, rank: int) -> bool:
    """Whether the tile is the whole memory."""
    is_same = tuple(window.memory.shape) == tuple(window.coordinates.layout.static_shape)
    return is_same and list(window.map) == list(AffineMap.identity(rank).results)


def _steps_in_buffer(window: Window) -> list[_Step] | None:
    """The steps of a tile in a memory of its own shape, however that is."""
    tables = refine(window.coordinates.layout, window.memory.layout)
    if tables is None:
        return None
    steps: list[_Step] = []
    for slot, content in tables[0].slots.items():
        if isinstance(content, IndexDigit):
            place = tables[1].slot_of(content)
            registers = slot.stride if kind_of(slot.axis) == Kind.REGISTER else 0
            steps.append(_Step(content, 0 if place is None else place.stride, registers))
    return steps


def _steps_in_array(window: Window, forms: Sequence[Form]) -> list[_Step] | None:
    """The steps of a window of an array whose dims each have one stride."""
    strides = _strides(window.memory)
    if strides is None:
        return None
    steps: list[_Step] = []
    for slot, content in window.coordinates.table.slots.items():
        if isinstance(content, IndexDigit):
            moved = sum(stride * form.coefficient(content.dim) for stride, form in zip(strides, forms, strict=True))
            registers = slot.stride if kind_of(slot.axis) == Kind.REGISTER else 0
            steps.append(_Step(content, moved * content.weight, registers))
    return steps


def _strides(memory: Memory) -> list[int] | None:
    """Elements between neighbours along each dim; None where a dim's digits are apart."""
    strides = [0] * len(memory.shape)
    for term in memory.layout.linear_terms(memory_axis(memory.layout)):
        if term.divisor != 1 or (term.modulus is not None and term.modulus < memory.shape[term.dim]):
            return None
        strides[term.dim] += term.stride
    return strides


def _adjacent(steps: Sequence[_Step], widest: int) -> tuple[Sequence[int], list[_Step]]:
    """The registers that follow each other in memory, and the digits that count them."""
    by_step = {step.elements: step for step in steps if step.registers and step.digit.extent > 1}
    offsets, taken = [0], list[_Step]()
    while len(offsets) < widest and len(offsets) in by_step:
        step = by_step[len(offsets)]
        count = gcd(step.digit.extent, widest // len(offsets))
        count &= -count
        if count == 1:
            break
        offsets = [offset + step.registers * n for n in range(count) for offset in offsets]
        taken.append(step)
        if count != step.digit.extent:
            break
    return offsets, taken


def _is_whole(window: Window, forms: Sequence[Form], steps: Sequence[_Step], taken: Sequence[_Step], size: int) -> bool:
    """Whether every access begins at a multiple of `size` elements and is all inside or all outside."""
    inner = [step for step in taken if step.elements < size]
    rest = [step.elements for step in steps if step not in inner] + [size for step in inner if step.end > size]
    swizzled = [_lowest(term) for term in window.memory.layout.swizzle]
    if any(number % size for number in (*rest, *swizzled, *_starts(window, forms))):
        return False
    return _in_tile(window, inner, size) and _in_memory(window, forms, inner)


def _starts(window: Window, forms: Sequence[Form]) -> list[int]:
    """The byte offset of the constants, and the stride of each symbol."""
    strides = _strides(window.memory) or [0] * len(forms)
    starts = [sum(stride * form.constant for stride, form in zip(strides, forms, strict=True))]
    for stride, form in zip(strides, forms, strict=True):
        starts += [stride * coefficient for _, coefficient in form.symbols]
    return starts


def _lowest(term: XorTerm) -> int:
    """The lowest place that a XOR term changes or reads."""
    return 1 << min(term.target, term.source)


def _in_tile(window: Window, inner: Sequence[_Step], size: int) -> bool:
    """Whether no vector straddles the end of the tile."""
    shape = window.coordinates.layout.static_shape
    return all(shape[step.digit.dim] % (step.digit.weight * _count(step, size)) == 0 for step in inner)


def _count(step: _Step, size: int) -> int:
    """How many steps of a digit are in one vector."""
    return min(step.digit.extent, size // step.elements)


def _in_memory(window: Window, forms: Sequence[Form], inner: Sequence[_Step]) -> bool:
    """Whether no vector straddles the end of a dim of the memory: where the vector steps along one, everything else
    does so by whole vectors."""
    for form, size in zip(forms, window.memory.shape, strict=True):
        along = [step for step in inner if form.coefficient(step.digit.dim)]
        reach = 1
        for step in along:
            reach = max(reach, abs(form.coefficient(step.digit.dim)) * step.digit.weight * step.digit.extent)
        others = [abs(coefficient) for _, coefficient in form.symbols]
        if any(number % reach for number in (size, form.constant, *others)):
            return False
    return True
