"""The threads that move data, as TT-Metalium C++: API of ttnn 0.81, `api/dataflow/dataflow_api.h`.

Arguments of such a kernel: at compile time the accessors of the arrays that it uses, one after the other; common to all
cores the arrays' addresses, then, where it sends something to other cores, the NoC coordinates of the program's cores
(x of each column, y of each row: workers are at such a grid of positions, which need not be a contiguous one); of each
core its row and its column, where it needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import ceil, prod
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import cores, tile
from tilewright.dialects.base import dtype_of
from tilewright.errors import UnsupportedOnTargetError
from tilewright.layout.catalogue.device_tiles import FACE, TILE, TileFormat
from tilewright.semantics.cores.tile_formats import format_of
from tilewright.targets.grid.emit_expressions import (
    Value,
    add,
    constant,
    divide,
    flat,
    in_tile,
    multiply,
    tile_place,
)
from tilewright.targets.grid.emit_lines import print_scan, print_sort
from tilewright.targets.grid.emit_mover_helpers import (
    BFLOAT_BITS,
    CORE_ADDRESS,
    FILL_RUN,
    FLOAT_BITS,
    IN_TILE,
    INSIDE_OF,
    LOAD,
    LOCAL,
    PAD_PAGE,
    READ_ELEMENT,
    RECTANGLE_ADDRESS,
    STORE,
    WRITE_ELEMENT,
    ZERO_PAGE,
)
from tilewright.targets.grid.emit_rows import rows_call
from tilewright.targets.grid.emit_thread import Facts, ThreadPrinter, ThreadSource

_CONVERSIONS = {"f32": ("float_bits", FLOAT_BITS), "bf16": ("bfloat16_bits", BFLOAT_BITS)}
_SCRATCH = "cb_scratch"
# What is under way behind an operation, until a barrier of writes.
_WRITES = (*cores.ARRAY_STORES, cores.MulticastOp, cores.SemaphoreMulticastOp, cores.SendOp)


def scratch_bytes(facts: Facts) -> int:
    """Of the queue that a mover of single elements has for itself: a piece of an array, wherever it begins."""
    return 2 * facts.grid.dram_alignment_bytes


class MoverPrinter(ThreadPrinter):
    """Prints a thread that moves data."""

    def __init__(self, facts: Facts, thread: cores.ThreadOp) -> None:
        super().__init__(facts, thread, includes={"api/dataflow/dataflow_api.h": None})
        self._arrays: dict[SSAValue, None] = {}
        self._semaphores: dict[SSAValue, None] = {}
        self._needs_cores = False
        self._has_scratch = False
        self._reads_elements = False
        self._pending = False

    def source(self, title: str) -> ThreadSource:
        """The whole kernel."""
        self.print_block(self.thread.body.block)
        facts = self.facts
        declarations = self.declarations()
        if self._has_scratch:
            declarations.insert(len(self.queues), f"constexpr uint32_t {_SCRATCH} = {self._scratch_number()};")
        behind = "0"
        for number, array in enumerate(self._arrays):
            name = facts.array_names[array]
            declarations.append(f"constexpr auto {name}_args = TensorAccessorArgs<{behind}>();")
            declarations.append(
                f"const auto {name} = TensorAccessor({name}_args, get_common_arg_val<uint32_t>({number}));"
            )
            behind = f"{name}_args.next_compile_time_args_offset()"
        declarations += [
            f"const uint32_t {facts.semaphore_names[op.result]} = get_semaphore({number});"
            for number, op in enumerate(facts.program.semaphores)
            if op.result in self._semaphores
        ]
        if self._reads_elements:
            declarations.append("Piece held;")
        if self._needs_cores:
            first = len(self._arrays)
            constants = "// Where the cores of the program are on the network: x of each column, then y of each row.\n"
            constants += f"constexpr uint32_t noc_x_arguments = {first};\n"
            constants += f"constexpr uint32_t noc_y_arguments = {first + facts.program.shape[1]};\n"
            self.helpers = {constants: None} | self.helpers
        noc = self.thread.noc
        return ThreadSource(
            role=self.thread.role,
            noc=None if noc is None else noc,
            text=self.text(title, declarations),
            arrays=tuple(list(facts.array_names).index(array) for array in self._arrays),
            needs_cores=self._needs_cores,
            core_arguments=tuple(self.core_arguments),
            has_scratch=self._has_scratch,
        )

    def _scratch_number(self) -> int:
        """Queues of threads for themselves come after those of the program."""
        return len(self.facts.program.queues) + cores.ROLES.index(self.thread.role)

    # ---- operations -------------------------------------------------------------------------------------------------

    def enter_loop(self, op: tile.ForOp) -> None:
        """Account for transfers that may be in flight at the back edge of a loop."""
        self._pending = self._pending or _pending_after(op.body.block, False)

    def state(self) -> object:
        return self._pending

    def join(self, *states: object) -> None:
        """Something may be under way after one of several ways to here."""
        self._pending = any(states)

    def print_own(self, op: Operation) -> None:
        self._print_mover(op)
        if not isinstance(op, cores.SemaphoreIncrementOp):
            self._pending = _pending_after_op(op, self._pending)

    def _print_mover(self, op: Operation) -> None:
        match op:
            case cores.FetchOp() | cores.PutOp():
                self._print_pages(op)
            case cores.RowsOp():
                self._print_rows(op)
            case cores.PadOp():
                self._print_pad(op)
            case cores.GatherOp() | cores.ScatterOp():
                self._print_elements(op)
            case cores.RearrangeOp():
                self._print_rearrange(op)
            case cores.ScanOp():
                print_scan(self, op)
            case cores.SortOp():
                print_sort(self, op)
            case cores.MulticastOp():
                self._print_multicast(op)
            case cores.SendOp():
                self._print_send(op)
            case cores.BarrierOp():
                self.line(f"noc_async_{op.of}_barrier();")
            case cores.GenerateOp():
                self._print_generate(op)
            case _:
                self._print_semaphore(op)

    def _print_semaphore(self, op: Operation) -> None:
        match op:
            case cores.SemaphoreSetOp():
                self.line(f"noc_semaphore_set({self._local(op.semaphore)}, {op.value});")
            case cores.SemaphoreWaitOp():
                suffix = "_min" if op.at_least else ""
                self.line(f"noc_semaphore_wait{suffix}({self._local(op.semaphore)}, {op.value});")
            case cores.SemaphoreIncrementOp():
                self._print_increment(op)
            case cores.SemaphoreMulticastOp():
                self._print_semaphore_multicast(op)
            case _:
                super().print_own(op)

    def _array(self, array: SSAValue) -> str:
        self._arrays[array] = None
        return self.facts.array_names[array]

    def _semaphore(self, semaphore: SSAValue) -> str:
        self._semaphores[semaphore] = None
        return self.facts.semaphore_names[semaphore]

    def _local(self, semaphore: SSAValue) -> str:
        self.helpers[LOCAL] = None
        return f"local({self._semaphore(semaphore)})"

    def place(self, queue: SSAValue, page: Value, end: str) -> str:
        """The address of a page of a queue, counted from its front (`read`) or its back (`write`)."""
        begin = f"get_{end}_ptr({self.queue(queue)})"
        if page.number == 0:
            return begin
        offset = multiply(page, Value(self.page_bytes(queue), 1, 1 << 16))
        return f"{begin} + {offset.text}"

    # ---- pages ------------------------------------------------------------------------------------------------------

    def _print_pages(self, op: cores.FetchOp | cores.PutOp) -> None:
        fetches = isinstance(op, cores.FetchOp)
        name = self._array(op.array)
        grid = cores.page_grid(tile.ref_type(op.array).shape)
        with self.loops(op.shape) as dims:
            coordinates = self.map(op.map, op.symbols, dims)
            (at,) = self.map(op.at, op.symbols, dims)
            place = self.place(op.queue, at, "write" if fetches else "read")
            inside = _inside(coordinates, grid)
            call = f"noc_async_{'read' if fetches else 'write'}_page({flat(coordinates, grid).text}, {name}, {place});"
            zeros = None
            if isinstance(op, cores.FetchOp) and op.zeros and inside != "true":
                self.helpers[ZERO_PAGE] = None
                zeros = f"zero_page({place}, {self.page_bytes(op.queue)});"
            self._print_guarded(inside, call, zeros)

    def _print_rows(self, op: cores.RowsOp) -> None:
        first = [constant(0)] * len(op.shape)
        coordinates = self.map(op.map, op.symbols, first)
        (at,) = self.map(op.at, op.symbols, first)
        place = self.place(op.queue, at, "write" if isinstance(op, cores.FetchRowsOp) else "read")
        call = rows_call(self, op, coordinates, self._array(op.array), place)
        self._print_guarded(_inside(coordinates, cores.page_grid(tile.ref_type(op.array).shape)), call, None)

    def _print_pad(self, op: cores.PadOp) -> None:
        format = cores.queue_type(op.queue).tile_format
        element, fill = _element_type(format, op), _bits(float(op.fill), format)
        shape = tile.ref_type(op.array).shape
        *before, height, width = (*(1,) * (2 - len(shape)), *shape)
        printed = len(self.lines)
        with self.loops(op.shape) as dims:
            coordinates = self.map(op.map, op.symbols, dims)
            outer = _inside(coordinates[:-2], before)
            sizes = [
                self._rows_inside(size, at, outer) if side else "32" if outer == "true" else f"{outer} ? 32 : 0"
                for size, at, side in zip((height, width), coordinates[-2:], op.sides, strict=True)
            ]
            (at,) = self.map(op.at, op.symbols, dims)
            needed = sizes != ["32", "32"]
            if needed:
                self.helpers |= {IN_TILE: None, STORE: None, FILL_RUN: None, PAD_PAGE: None}
                place = self.place(op.queue, at, "write")
                self.line(f"pad_page<{element}>({place}, {', '.join(sizes)}, {fill});")
        if not needed:
            del self.lines[printed:]

    def _rows_inside(self, size: int, page: Value, outer: str = "true") -> str:
        """How many rows or columns of a page are inside of an array of some size, where it is in the other dims."""
        if outer == "false":
            return "0"
        if page.number is not None:
            inside = str(min(max(size - TILE * page.number, 0), TILE) if page.number >= 0 else 0)
        elif page.low >= 0 and TILE * (page.high + 1) <= size:
            inside = str(TILE)
        else:
            self.helpers[INSIDE_OF] = None
            inside = f"inside_of({size}, {page.text})"
        return inside if outer == "true" else f"{outer} ? {inside} : 0"

    # ---- elements ---------------------------------------------------------------------------------------------------

    def _print_elements(self, op: cores.GatherOp | cores.ScatterOp) -> None:
        """A loop over the lanes of a tile, each of which is read from its page of the array, or written to it."""
        stored = format_of(dtype_of(tile.ref_type(op.array).array.element_type))
        element, format = _element_type(stored, op), cores.queue_type(op.queue).tile_format
        if format.name != stored.name:
            raise UnsupportedOnTargetError(
                f"{op.name} is between an array of {stored.name} and a queue of {format.name}",
                help="cast the tile after its load, or before its store",
            )
        self.helpers |= {IN_TILE: None, LOAD: None, STORE: None}
        self._has_scratch = True
        if isinstance(op, cores.ScatterOp):
            self.helpers[WRITE_ELEMENT] = None
            with self.block("") if prod(op.lanes) == 1 else nullcontext(), self.loops(op.lanes) as dims:
                self._print_lane(op, dims, element)
            return
        self.helpers[READ_ELEMENT.format(piece=self.facts.grid.dram_alignment_bytes)] = None
        if op.fill is not None:
            self._print_beyond(op, element, _bits(float(op.fill), format))
        with self.block(""):
            self.line("Piece held;")
            with self.loops(op.lanes) as dims:
                self._print_lane(op, dims, element)

    def _print_beyond(self, op: cores.GatherOp, element: str, fill: str) -> None:
        """Store a number to what pages hold beyond a tile."""
        sizes = [op.lanes[d] if d >= 0 else 1 for d in (op.rows, op.columns)]
        if all(size % TILE == 0 for size in sizes):
            return
        self.helpers |= {FILL_RUN: None, PAD_PAGE: None}
        tall, wide = (-(-size // TILE) for size in sizes)
        others = [n for d, n in enumerate(op.lanes) if d not in (op.rows, op.columns)]
        (at,) = self.map(op.at, op.symbols)
        with self.loops((prod(others), tall, wide)) as (outer, row, column):
            page = add(at, flat([outer, row, column], [prod(others), tall, wide]))
            inside = [self._rows_inside(size, each) for size, each in zip(sizes, (row, column), strict=True)]
            place = self.place(op.queue, page, "write")
            self.line(f"pad_page<{element}>({place}, {', '.join(inside)}, {fill});")

    def _print_rearrange(self, op: cores.RearrangeOp) -> None:
        element = _element_type(cores.queue_type(op.queue).tile_format, op)
        self.helpers |= {IN_TILE: None, LOAD: None, STORE: None}
        with self.loops(op.extents) as dims:
            source, place = self.map(op.source_map, [], dims), self.map(op.map, [], dims)
            shape = op.source_shape
            there = self.named_place(shape, op.source_rows, op.source_columns, source, "source_")
            here = self.named_place(op.shape, op.rows, op.columns, place)
            from_bytes = f"{self.place(op.source, there[0], 'read')} + {there[1]} * sizeof({element})"
            to_bytes = f"{self.place(op.queue, here[0], 'write')} + {here[1]} * sizeof({element})"
            self.line(f"store({to_bytes}, load<{element}>({from_bytes}));")

    def _print_lane(self, op: cores.GatherOp | cores.ScatterOp, dims: Sequence[Value], element: str) -> None:
        array, ref = self._array(op.array), tile.ref_type(op.array)
        page, place = self.named_place(op.lanes, op.rows, op.columns, dims)
        (at,) = self.map(op.at, op.symbols)
        end = "write" if isinstance(op, cores.GatherOp) else "read"
        self.line(f"const uint32_t here = {self.place(op.queue, add(at, page), end)} + {place} * sizeof({element});")
        symbols: list[SSAValue | Value] = [*op.symbols]
        for number, queue in enumerate(op.indices):
            name, from_page = f"index{number}", self.place(queue, page, "read")
            self.line(f"const uint32_t {name} = load<uint32_t>({from_page} + {place} * sizeof(uint32_t));")
            symbols.append(Value(name, -(2**31), 2**31 - 1))
        coordinates = self.map(op.map, symbols, dims)
        inside = _inside(coordinates, ref.shape)
        known = [
            Value(v.text, max(v.low, 0), min(v.high, size - 1), v.binds)
            for v, size in zip(coordinates, ref.shape, strict=True)
        ]
        known = [constant(0)] * (2 - len(known)) + known
        tiled = [*known[:-2], *(divide(each, constant(TILE)) for each in known[-2:])]
        pages = cores.page_grid(ref.shape)
        there = f"{array}, {flat(tiled, pages).text}, {in_tile(known[-2], known[-1])}"
        scratch = f"get_write_ptr({_SCRATCH})"
        if isinstance(op, cores.ScatterOp):
            call = f"write_element({there}, load<{element}>(here), {scratch});"
            self._print_guarded(inside, call, None)
            return
        call = f"store(here, read_element<{element}>({there}, {scratch}, held));"
        fill = None if op.fill is None else _bits(float(op.fill), cores.queue_type(op.queue).tile_format)
        self._print_guarded(inside, call, None if fill is None else f"store<{element}>(here, {fill});")

    def named_place(
        self, lanes: Sequence[int], rows: int, columns: int, at: Sequence[Value], prefix: str = ""
    ) -> tuple[Value, str]:
        """The page of an element of a tile and its position there, by names where they are long."""
        page, place = tile_place(lanes, rows, columns, at)
        if not page.text.isidentifier() and page.number is None:
            self.line(f"const uint32_t {prefix}page = {page.text};")
            page = Value(f"{prefix}page", page.low, page.high)
        self.line(f"const uint32_t {prefix}place = {place};")
        return page, f"{prefix}place"

    def _print_guarded(self, inside: str, call: str, otherwise: str | None) -> None:
        """One call where a condition holds, and another one where not."""
        if inside == "true":
            self.line(call)
        elif inside == "false":
            self.line(otherwise or "")
        else:
            with self.block(f"if ({inside})"):
                self.line(call)
            if otherwise is not None:
                with self.otherwise():
                    self.line(otherwise)

    # ---- numbers ----------------------------------------------------------------------------------------------------

    def _print_generate(self, op: cores.GenerateOp) -> None:
        format = cores.queue_type(op.queue).tile_format
        element = _element_type(format, op)
        if op.is_one_number:
            self._print_fill(op, format, element)
            return
        self.helpers |= {IN_TILE: None, STORE: None}
        with self.loops((op.count, *op.stored_shape)) as (page, row, column):
            (number,) = self.map(op.map, op.symbols, [row, column, page])
            text = self._chosen(number, op, format) if op.choice is not None else self._converted(number, format, op)
            if op.face_rows:
                text = f"{row.text} % 16 == 0 ? {f'({text})' if ' ? ' in text else text} : 0"
            place = f"{self.place(op.queue, page, 'write')} + {in_tile(row, column)} * sizeof({element})"
            self.line(f"store<{element}>({place}, {text});")

    def _print_fill(self, op: cores.GenerateOp, format: TileFormat, element: str) -> None:
        """Fill pages with a number in words; element by element it would take longer than a small reduction."""
        (number,) = self.map(op.map, op.symbols, [constant(0)] * 3)
        bits = self._converted(number, format, op)
        self.helpers |= {STORE: None, FILL_RUN: None}
        place = self.place(op.queue, constant(0), "write")
        whole = "0" if op.face_rows else bits
        self.line(f"fill_run<{element}>({place}, {op.count * TILE * TILE}, {whole});")
        if not op.face_rows:
            return
        with self.loops((op.count * TILE * TILE // FACE**2,)) as (face,):
            offset = multiply(face, Value(f"{FACE * FACE} * sizeof({element})", 1, 1 << 12))
            self.line(f"fill_run<{element}>({place} + {offset.text}, {FACE}, {bits});")

    def _chosen(self, number: Value, op: cores.GenerateOp, format: TileFormat) -> str:
        """The bits of one of two numbers."""
        choice = [] if op.choice is None else [float(each) for each in op.choice]
        limit, below, otherwise = choice
        if number.high < limit:
            return _bits(below, format)
        if number.low >= limit:
            return _bits(otherwise, format)
        signed = f"static_cast<int32_t>({number.text})" if number.low < 0 else number.within(1)
        return f"{signed} < {ceil(limit)} ? {_bits(below, format)} : {_bits(otherwise, format)}"

    def _converted(self, number: Value, format: TileFormat, op: Operation) -> str:
        """The bits of a number in a format."""
        if number.number is not None:
            return _bits(number.number, format)
        if format.name in ("i32", "u32"):
            return number.text
        if format.name not in _CONVERSIONS:
            raise UnsupportedOnTargetError(
                f"{op.name} of numbers by place in {format.name} has no form in C++", help="generate them in f32"
            )
        name, helper = _CONVERSIONS[format.name]
        self.helpers[helper] = None
        return f"{name}({number.text})"

    # ---- other cores ------------------------------------------------------------------------------------------------

    def _print_multicast(self, op: cores.MulticastOp) -> None:
        (at,) = self.map(op.at, op.symbols)
        rectangle = self.map(op.rectangle, op.symbols)
        here = self.place(op.queue, at, "write")
        size = self._size(op.queue, op.pages)
        call = f"noc_async_write_multicast({here}, {self._rectangle(rectangle, here)}, {size}, {{}});"
        self._print_to_others(rectangle, call)

    def _print_semaphore_multicast(self, op: cores.SemaphoreMulticastOp) -> None:
        rectangle = self.map(op.rectangle, op.symbols)
        name = self._semaphore(op.semaphore)
        if self._pending:
            # What was multicast before goes first: it is on the same way, once it has left.
            self.line("noc_async_writes_flushed();")
        self._print_to_others(
            rectangle, f"noc_semaphore_set_multicast({name}, {self._rectangle(rectangle, name)}, {{}});"
        )

    def _rectangle(self, rectangle: Sequence[Value], address: str) -> str:
        self._needs_cores = True
        self.helpers[RECTANGLE_ADDRESS] = None
        return f"rectangle_address({', '.join(each.text for each in rectangle)}, {address})"

    def _print_to_others(self, rectangle: Sequence[Value], call: str) -> None:
        """A call that is notified how many cores of a rectangle are others."""
        first_row, first_column, last_row, last_column = rectangle
        minus_one = constant(-1)
        rows, columns = _difference(last_row, first_row), _difference(last_column, first_column)
        count = multiply(add(rows, constant(1)), add(columns, constant(1)))
        row, column = self.core()
        insides = [
            each
            for low, own, high in ((first_row, row, last_row), (first_column, column, last_column))
            for each in (_at_most(low, own), _at_most(own, high))
        ]
        if "false" not in insides:
            asked = [each for each in insides if each != "true"]
            own = Value(f"({' && '.join(asked)})", 0, 1) if asked else constant(1)
            count = add(count, multiply(minus_one, own))
        if count.number == 0:
            return
        if count.number is not None or count.low > 0:
            self.line(call.format(count.text))
            return
        with self.block(f"if (const uint32_t others = {count.text}; others > 0)"):
            self.line(call.format("others"))

    def _size(self, queue: SSAValue, pages: int) -> str:
        return self.page_bytes(queue) if pages == 1 else f"{pages} * {self.page_bytes(queue)}"

    def _print_send(self, op: cores.SendOp) -> None:
        (at,) = self.map(op.at, op.symbols)
        (to,) = self.map(op.to, op.symbols)
        there = self._core_address(self.map(op.core, op.symbols), self.place(op.destination, to, "write"))
        size = self._size(op.source, op.pages)
        self.line(f"noc_async_write({self.place(op.source, at, 'read')}, {there}, {size});")

    def _print_increment(self, op: cores.SemaphoreIncrementOp) -> None:
        if self._pending:
            # Increments go another way than what was written before.
            self.line("noc_async_write_barrier();")
            self._pending = False
        there = self._core_address(self.map(op.core, op.symbols), self._semaphore(op.semaphore))
        self.line(f"noc_semaphore_inc({there}, {op.value});")

    def _core_address(self, core: Sequence[Value], address: str) -> str:
        self._needs_cores = True
        self.helpers[CORE_ADDRESS] = None
        row, column = core
        return f"core_address({row.text}, {column.text}, {address})"


def _element_type(format: TileFormat, op: Operation) -> str:
    """The unsigned type of C++ of an element's size."""
    if format.exponent_bytes:
        raise UnsupportedOnTargetError(
            f"{op.name} touches single elements of {format.name}, which share an exponent", help="use bf16 there"
        )
    return f"uint{format.bits}_t"


def _bits(number: float, format: TileFormat) -> str:
    """The bits of a number, as a literal."""
    types: dict[str, Any] = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
    if format.name not in types:
        return hex(int(number) & 0xFFFFFFFF) if abs(number) > 9 else str(int(number) & 0xFFFFFFFF)
    with np.errstate(over="ignore"):
        value = np.asarray(number, np.float32).astype(types[format.name])
    return f"0x{int(value.view(f'u{value.itemsize}')):0{2 * value.itemsize}X}"


def _inside(coordinates: Sequence[Value], sizes: Sequence[int]) -> str:
    """Whether all coordinates are inside of an array, as a condition; `true` and `false` where that is known."""
    asked: list[str] = []
    for coordinate, size in zip(coordinates, sizes, strict=True):
        if coordinate.high < 0 or coordinate.low >= size:
            return "false"
        if coordinate.low < 0 or coordinate.high >= size:
            asked.append(f"{coordinate.text} < {size}")
    return " && ".join(asked) or "true"


def _at_most(left: Value, right: Value) -> str:
    if left.high <= right.low or _beyond(right, left) is not None:
        return "true"
    return "false" if left.low > right.high else f"{left.text} <= {right.text}"


def _beyond(value: Value, start: Value) -> int | None:
    """By how much a number is larger than another one that it is made from; None where it is not."""
    if value.text == start.text:
        return 0
    added = value.text.removeprefix(f"{start.text} + ")
    return int(added) if added != value.text and added.isdigit() else None


def _difference(left: Value, right: Value) -> Value:
    beyond = _beyond(left, right)
    return add(left, multiply(constant(-1), right)) if beyond is None else constant(beyond)


def _pending_after(block: Block, before: bool) -> bool:
    """Whether something may be under way after a block that was written there or before."""
    for op in block.ops:
        before = _pending_after_op(op, before)
    return before


def _pending_after_op(op: Operation, before: bool) -> bool:
    match op:
        case _ if isinstance(op, _WRITES):
            return True
        case cores.BarrierOp() if op.of == cores.WRITE:
            return False
        case cores.IfOp():
            return _pending_after(op.then.block, before) or _pending_after(op.otherwise.block, before)
        case tile.ForOp():
            return before or _pending_after(op.body.block, before)
        case _:
            return before
