"""The threads that move data, as TT-Metalium C++: API of ttnn 0.81, `api/dataflow/dataflow_api.h`.

Arguments of such a kernel: at compile time the accessors of the arrays that it uses, one behind the other; common to
all cores the arrays' addresses, then, where it sends something to other cores, the NoC coordinates of the program's
cores (x of each column, y of each row: workers are at such a grid of places, which need not be a contiguous one); of
each core its row and its column, where it needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, prod
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import Operation, SSAValue

from tilewright.dialects import cores, tile
from tilewright.dialects.base import decode, dtype_of
from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.layout.catalogue.device_tiles import TILE, TileFormat
from tilewright.semantics.tile_formats import format_of
from tilewright.targets.grid.emit_expressions import Value, add, constant, divide, multiply, remainder
from tilewright.targets.grid.emit_thread import Facts, ThreadPrinter, ThreadSource

_LOCAL = """\
// A number of a semaphore in this core's memory.
inline volatile tt_l1_ptr uint32_t* local(uint32_t address) {
    return reinterpret_cast<volatile tt_l1_ptr uint32_t*>(address);
}
"""
_CORE_ADDRESS = """\
// An address in the memory of a core of the program.
inline uint64_t core_address(uint32_t row, uint32_t column, uint32_t address) {
    return get_noc_addr(
        get_common_arg_val<uint32_t>(noc_x_arguments + column),
        get_common_arg_val<uint32_t>(noc_y_arguments + row),
        address);
}
"""
_RECTANGLE_ADDRESS = """\
// An address in the memories of a rectangle of cores of the program. Network 1 goes up and to the left, and so its
// rectangles begin at the last corner.
inline uint64_t rectangle_address(
    uint32_t first_row, uint32_t first_column, uint32_t last_row, uint32_t last_column, uint32_t address) {
    const uint32_t first_x = get_common_arg_val<uint32_t>(noc_x_arguments + first_column);
    const uint32_t first_y = get_common_arg_val<uint32_t>(noc_y_arguments + first_row);
    const uint32_t last_x = get_common_arg_val<uint32_t>(noc_x_arguments + last_column);
    const uint32_t last_y = get_common_arg_val<uint32_t>(noc_y_arguments + last_row);
    return noc_index == 0 ? get_noc_multicast_addr(first_x, first_y, last_x, last_y, address)
                          : get_noc_multicast_addr(last_x, last_y, first_x, first_y, address);
}
"""
_ZERO_PAGE = """\
inline void zero_page(uint32_t address, uint32_t bytes) {
    auto* const words = reinterpret_cast<volatile tt_l1_ptr uint32_t*>(address);
    for (uint32_t i = 0; i < bytes / 4; ++i) {
        words[i] = 0;
    }
}
"""
_IN_TILE = """\
// Where an element of a device tile is: four faces of 16 x 16 follow one another.
inline uint32_t in_tile(uint32_t row, uint32_t column) {
    return (row / 16 * 2 + column / 16) * 256 + row % 16 * 16 + column % 16;
}
"""
_STORE = """\
template <typename Element>
inline void store(uint32_t address, Element value) {
    *reinterpret_cast<volatile tt_l1_ptr Element*>(address) = value;
}
"""
_LOAD = """\
template <typename Element>
inline Element load(uint32_t address) {
    return *reinterpret_cast<volatile tt_l1_ptr Element*>(address);
}
"""
_READ_ELEMENT = """\
// Transfers from DRAM are of aligned pieces: the one that was read last is held.
struct Piece {{
    uint32_t page = 0xFFFFFFFF;
    uint32_t begin = 0;
}};

template <typename Element, typename Array>
inline Element read_element(const Array& array, uint32_t page, uint32_t place, uint32_t scratch, Piece& held) {{
    constexpr uint32_t piece_bytes = {piece};
    const uint32_t offset = place * sizeof(Element);
    const uint32_t begin = offset / piece_bytes * piece_bytes;
    const uint32_t here = (scratch + piece_bytes - 1) / piece_bytes * piece_bytes;
    if (page != held.page || begin != held.begin) {{
        noc_async_read(array.get_noc_addr(page, begin), here, piece_bytes);
        noc_async_read_barrier();
        held = {{page, begin}};
    }}
    return load<Element>(here + offset - begin);
}}
"""
_WRITE_ELEMENT = """\
// The lowest four bits of where a transfer comes from and goes to are the same; the one before has left its place.
template <typename Element, typename Array>
inline void write_element(const Array& array, uint32_t page, uint32_t place, Element value, uint32_t scratch) {
    const uint64_t there = array.get_noc_addr(page, place * sizeof(Element));
    const uint32_t here = (scratch + 15) / 16 * 16 + static_cast<uint32_t>(there) % 16;
    noc_async_writes_flushed();
    store<Element>(here, value);
    noc_async_write(here, there, sizeof(Element));
}
"""
_FLOAT_BITS = """\
inline uint32_t float_bits(int32_t number) { return __builtin_bit_cast(uint32_t, static_cast<float>(number)); }
"""
_BFLOAT_BITS = """\
// Rounded to nearest even.
inline uint16_t bfloat16_bits(int32_t number) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, static_cast<float>(number));
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
"""
_CONVERSIONS = {"f32": ("float_bits", _FLOAT_BITS), "bf16": ("bfloat16_bits", _BFLOAT_BITS)}
_SCRATCH = "cb_scratch"


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
        ops = list(thread.body.walk())
        self._writes = any(isinstance(op, cores.MulticastOp | cores.SendOp | cores.PutOp | cores.ScatterOp) for op in ops)

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
            role=self.thread.role.data,
            noc=None if noc is None else int(noc.value.data),
            text=self.text(title, declarations),
            arrays=tuple(list(facts.array_names).index(array) for array in self._arrays),
            needs_cores=self._needs_cores,
            core_arguments=tuple(self.core_arguments),
            has_scratch=self._has_scratch,
        )

    def _scratch_number(self) -> int:
        """Queues of threads for themselves come behind those of the program."""
        return len(self.facts.program.queues) + cores.ROLES.index(self.thread.role.data)

    # ---- operations -------------------------------------------------------------------------------------------------

    def print_own(self, op: Operation) -> None:
        match op:
            case cores.FetchOp() | cores.PutOp():
                self._print_pages(op)
            case cores.GatherOp() | cores.ScatterOp():
                self._print_elements(op)
            case cores.MulticastOp():
                self._print_multicast(op)
            case cores.SendOp():
                self._print_send(op)
            case cores.BarrierOp():
                self.line(f"noc_async_{op.of.data}_barrier();")
            case cores.GenerateOp():
                self._print_generate(op)
            case cores.SemaphoreSetOp():
                self.line(f"noc_semaphore_set({self._local(op.semaphore)}, {decode(op.value)});")
            case cores.SemaphoreWaitOp():
                suffix = "_min" if op.at_least is not None else ""
                self.line(f"noc_semaphore_wait{suffix}({self._local(op.semaphore)}, {decode(op.value)});")
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
        self.helpers[_LOCAL] = None
        return f"local({self._semaphore(semaphore)})"

    def _place(self, queue: SSAValue, page: Value, end: str) -> str:
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
            place = self._place(op.queue, at, "write" if fetches else "read")
            inside = _inside(coordinates, grid)
            call = f"noc_async_{'read' if fetches else 'write'}_page({_flat(coordinates, grid).text}, {name}, {place});"
            if inside == "true":
                self.line(call)
                return
            if inside != "false":
                with self.block(f"if ({inside})"):
                    self.line(call)
            if isinstance(op, cores.FetchOp) and op.zeros is not None:
                self.helpers[_ZERO_PAGE] = None
                zeros = f"zero_page({place}, {self.page_bytes(op.queue)});"
                if inside == "false":
                    self.line(zeros)
                else:
                    self.lines[-1] += " else {"
                    self._depth += 1
                    self.line(zeros)
                    self._depth -= 1
                    self.line("}")

    # ---- elements ---------------------------------------------------------------------------------------------------

    def _print_elements(self, op: cores.GatherOp | cores.ScatterOp) -> None:
        """A loop over the lanes of a tile, each of which is read from its page or written to it."""
        name, ref = self._array(op.array), tile.ref_type(op.array)
        stored = format_of(dtype_of(ref.array.element_type))
        element, format = _element_type(stored, op), cores.queue_type(op.queue).tile_format
        if format.name != stored.name:
            raise UnsupportedOnTargetError(
                f"{op.name} between an array of {stored.name} and a queue of {format.name}",
                help="cast the tile after it is loaded, or before it is stored",
            )
        gathers = isinstance(op, cores.GatherOp)
        self.helpers |= {_IN_TILE: None, _LOAD: None, _STORE: None}
        if gathers:
            self.helpers[_READ_ELEMENT.format(piece=self.facts.grid.dram_alignment_bytes)] = None
            self._reads_elements = True
            # The scratch may hold something else by now.
            self.line("held = Piece{};")
        else:
            self.helpers[_WRITE_ELEMENT] = None
        self._has_scratch = True
        (at,) = self.map(op.at, [*op.symbols, *(constant(0) for _ in op.indices)] if _counts_indices(op) else op.symbols)
        base = self._place(op.queue, at, "write" if gathers else "read")
        self.line(f"const uint32_t pages = {base};" if base.startswith("get") else f"const uint32_t pages = {base};")
        raise CompilerBug("unreachable")


def _counts_indices(op: cores.ElementsOp) -> bool:
    return op.at.data.num_symbols > len(op.symbols)
