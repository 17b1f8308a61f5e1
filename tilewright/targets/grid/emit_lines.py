"""Prints operations of data movement threads along the rows or columns of a tile: scans, and sorts by merging."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import prod
from typing import TYPE_CHECKING

from tilewright.dialects import cores
from tilewright.errors import UnsupportedOnTargetError
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.semantics.cores.line_steps import merges
from tilewright.targets.grid.emit_expressions import Value, add, constant, multiply, tile_place
from tilewright.targets.grid.emit_mover_helpers import FLOAT_KEY, IN_TILE, LOAD, ROUNDED_BFLOAT, STORE

if TYPE_CHECKING:
    from tilewright.targets.grid.emit_movers import MoverPrinter

# Numbers in order as unsigned integers: of the bits of a number, with `nan` for what is none.
_KEYS = {
    "f32": "float_key({bits}, {nan})",
    "bf16": "float_key({bits} << 16, {nan})",
    "i32": "({bits} ^ 0x80000000)",
    "u32": "{bits}",
}
# A number of its bits, and the bits of a number; sums of integers wrap, whether they have a sign or not.
_NUMBERS = {
    "f32": ("float", "__builtin_bit_cast(float, {})", "__builtin_bit_cast(uint32_t, {})"),
    "bf16": ("float", "__builtin_bit_cast(float, static_cast<uint32_t>({}) << 16)", "rounded_bfloat16({})"),
    "i32": ("uint32_t", "{}", "{}"),
    "u32": ("uint32_t", "{}", "{}"),
}
_FIRST, _LAST = "0", "0xFFFFFFFF"
# What combines numbers, and what a line begins with.
_COMBINE = {
    "add": ("+", "0"),
    "multiply": ("*", "1"),
    "bitwise_and": ("&", "0xFFFFFFFF"),
    "bitwise_or": ("|", "0"),
    "bitwise_xor": ("^", "0"),
}


def print_scan(printer: MoverPrinter, op: cores.ScanOp) -> None:
    """Element after element of each line, in its order."""
    format = _format(op)
    printer.helpers |= {IN_TILE: None, LOAD: None, STORE: None}
    element, lanes, axis = _element(op, 0), op.lanes, op.axis
    length, by_key = lanes[axis], op.fn in ("maximum", "minimum")
    number, value_of, bits_of = _NUMBERS[format]
    lines = _lines(op)
    with printer.block("") if prod(lines) == 1 else nullcontext(), printer.loops(lines) as dims:
        if by_key:
            printer.line("uint32_t total = 0;")
            printer.line("uint32_t best = 0;")
        else:
            printer.line(f"{number} total = {_COMBINE[op.fn][1]};")
        with printer.loops((length,)) as (step,):
            index = step
            if op.reverse:
                index = add(constant(length - 1), multiply(constant(-1), step))
            page, place = printer.named_place(
                lanes, *_sides(op), [index if d == axis else n for d, n in enumerate(dims)]
            )
            source = f"{printer.place(op.sources[0], page, 'read')} + {place} * sizeof({element})"
            printer.line(f"const uint32_t bits = load<{element}>({source});")
            if by_key:
                _print_best(printer, op.fn, format, step)
                result = "total"
            else:
                printer.line(f"total {_COMBINE[op.fn][0]}= {value_of.format('bits')};")
                result = bits_of.format("total")
                if "rounded" in result:
                    printer.helpers[ROUNDED_BFLOAT] = None
            target = f"{printer.place(op.queues[0], page, 'write')} + {place} * sizeof({element})"
            printer.line(f"store<{element}>({target}, {result});")


def _print_best(printer: MoverPrinter, fn: str, format: str, step: Value) -> None:
    """The largest or the smallest number up to here, of which one that is none is both."""
    key = _key(printer, format, "bits", _LAST if fn == "maximum" else _FIRST)
    printer.line(f"const uint32_t key = {key};")
    beats = f"key {'>' if fn == 'maximum' else '<'} best"
    with printer.block(f"if ({beats})" if step.number == 0 else f"if ({step.text} == 0 || {beats})"):
        printer.line("best = key;")
        printer.line("total = bits;")


def print_sort(printer: MoverPrinter, op: cores.SortOp) -> None:
    """Runs of a line that are in order are merged, two at a time, from one queue to another one and back."""
    format, count = _format(op), len(op.sources)
    elements = [_element(op, number) for number in range(count)]
    printer.helpers |= {IN_TILE: None, LOAD: None, STORE: None}
    lanes, axis = op.lanes, op.axis
    length = lanes[axis]
    # After the last pass the elements are where they should be.
    ends = [op.queues, op.scratch] if merges(length) % 2 else [op.scratch, op.queues]
    lines = _lines(op)
    with printer.block("") if prod(lines) == 1 else nullcontext(), printer.loops(lines) as dims:
        at = [Value("n", 0, length - 1) if d == axis else each for d, each in enumerate(dims)]
        page, place = tile_place(lanes, *_sides(op), at)
        elements_before = multiply(page, constant(TILE * TILE)).text
        printer.line(f"const auto at = [=](uint32_t n) {{ return {elements_before} + {place}; }};")
        bits = f"load<{elements[0]}>(from + at(n) * sizeof({elements[0]}))"
        key = _key(printer, format, bits, _LAST)
        printer.line(f"const auto key = [=](uint32_t from, uint32_t n) {{ return {key}; }};")
        for number, element in enumerate(elements):
            for name, queues in (("from", ends[0]), ("to", ends[1])):
                printer.line(f"uint32_t {name}{number} = {printer.place(queues[number], constant(0), 'write')};")
            source = f"{printer.place(op.sources[number], constant(0), 'read')} + at(n) * sizeof({element})"
            with printer.block(f"for (uint32_t n = 0; n < {length}; ++n)"):
                printer.line(f"store<{element}>(from{number} + at(n) * sizeof({element}), load<{element}>({source}));")
        if length > 1:
            _print_merges(printer, op, elements, length)


def _print_merges(printer: MoverPrinter, op: cores.SortOp, elements: Sequence[str], length: int) -> None:
    before = ">" if op.descending else "<"
    with printer.block(f"for (uint32_t half = 1; half < {length}; half *= 2)"):
        with printer.block(f"for (uint32_t begin = 0; begin < {length}; begin += 2 * half)"):
            for name, distance in (("middle", "half"), ("end", "2 * half")):
                printer.line(f"const uint32_t {name} = begin + {distance} < {length} ? begin + {distance} : {length};")
            printer.line("uint32_t left = begin;")
            printer.line("uint32_t right = middle;")
            with printer.block("for (uint32_t n = begin; n < end; ++n)"):
                # Of two that are equal the left one comes first.
                precedes = f"key(from0, right) {before} key(from0, left)"
                printer.line(f"const bool right_is_next = left == middle || (right < end && {precedes});")
                printer.line("const uint32_t next = right_is_next ? right++ : left++;")
                for number, element in enumerate(elements):
                    moved = f"load<{element}>(from{number} + at(next) * sizeof({element}))"
                    printer.line(f"store<{element}>(to{number} + at(n) * sizeof({element}), {moved});")
        for number in range(len(elements)):
            printer.line(f"const uint32_t held{number} = from{number};")
            printer.line(f"from{number} = to{number};")
            printer.line(f"to{number} = held{number};")


def _key(printer: MoverPrinter, format: str, bits: str, nan: str) -> str:
    if format in ("f32", "bf16"):
        printer.helpers[FLOAT_KEY] = None
    if format == "bf16":
        bits = f"static_cast<uint32_t>({bits})"
    return _KEYS[format].format(bits=bits, nan=nan)


def _format(op: cores.LinesOp) -> str:
    """The format of what is scanned or sorted.

    Raises:
        UnsupportedOnTargetError: movers have no way to do it.
    """
    name = cores.queue_type(op.sources[0]).format.data
    if name not in _KEYS:
        raise UnsupportedOnTargetError(f"{op.name} of {name} has no form in C++", help="use f32, bf16 or i32")
    return name


def _element(op: cores.LinesOp, number: int) -> str:
    return f"uint{cores.queue_type(op.sources[number]).tile_format.bits}_t"


def _sides(op: cores.LinesOp) -> tuple[int, int]:
    return op.rows, op.columns


def _lines(op: cores.LinesOp) -> list[int]:
    """The extents of a tile without those along its lines."""
    return [1 if d == op.axis else size for d, size in enumerate(op.lanes)]
