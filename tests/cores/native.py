"""Runs kernels that move data on the host: the text that is printed, compiled for it against a small model of the API.

Addresses of kernels have 32 bits, and so all memory is below 4 GB. Cores run one after another, and the threads of a
core, too: programs whose cores or threads wait for one another do not run here. What is wrong is counted: steps of
queues that would have to wait, and transfers whose ends are not aligned as the hardware asks.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulators import ttnn as fake_ttnn
from tilewright.dialects import tile
from tilewright.machines.machine import Machine
from tilewright.semantics.cores import DeviceArray
from tilewright.targets.grid.emit import emit_program

_MEMORY_BYTES = 1 << 24
# The address of each part of the memory: what threads of a core share, then queues, then arrays.
_QUEUES, _ARRAYS = 1 << 16, 1 << 22
_MAX_QUEUES = 64
# What memory holds that nothing was written to.
_UNUSED = 0xA5

API = """\
#pragma once
#include <cstddef>
#include <cstdint>
#define tt_l1_ptr

struct Queue { uint32_t base, pages, page_bytes, front, back; };
struct State {
    uint32_t failures, dram_alignment, own[4], common[160];
    Queue queues[64];
};
static State* state;

inline void check(bool holds) { state->failures += !holds; }
template <typename T> T get_arg_val(int index) { return state->own[index]; }
template <typename T> T get_common_arg_val(int index) { return state->common[index]; }
constexpr int32_t get_tile_size(int32_t queue) { return page_sizes[queue]; }

inline void cb_reserve_back(uint32_t cb, uint32_t count) {
    const Queue& queue = state->queues[cb];
    check(queue.back + count - queue.front <= queue.pages);
}
inline void cb_push_back(uint32_t cb, uint32_t count) { cb_reserve_back(cb, count); state->queues[cb].back += count; }
inline void cb_wait_front(uint32_t cb, uint32_t count) {
    check(state->queues[cb].back - state->queues[cb].front >= count);
}
inline void cb_pop_front(uint32_t cb, uint32_t count) { cb_wait_front(cb, count); state->queues[cb].front += count; }
inline uint32_t get_write_ptr(uint32_t cb) {
    const Queue& queue = state->queues[cb];
    return queue.base + queue.back % queue.pages * queue.page_bytes;
}
inline uint32_t get_read_ptr(uint32_t cb) {
    const Queue& queue = state->queues[cb];
    return queue.base + queue.front % queue.pages * queue.page_bytes;
}

template <uint32_t Offset> struct TensorAccessorArgs {
    static constexpr uint32_t page_bytes = compile_time_args[Offset + 1];
    static constexpr uint32_t next_compile_time_args_offset() { return Offset + 2; }
};
struct TensorAccessor {
    uint32_t address, page_bytes;
    template <uint32_t Offset>
    TensorAccessor(TensorAccessorArgs<Offset>, uint32_t at) : address(at), page_bytes(compile_time_args[Offset + 1]) {}
    uint64_t get_noc_addr(uint32_t page, uint32_t offset = 0) const { return address + page * page_bytes + offset; }
};

inline void copy_bytes(uint64_t to, uint64_t from, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
        reinterpret_cast<volatile uint8_t*>(to)[i] = reinterpret_cast<volatile uint8_t*>(from)[i];
    }
}
inline void noc_async_read(uint64_t from, uint32_t to, uint32_t count) {
    check(from % state->dram_alignment == to % state->dram_alignment && from % state->dram_alignment == 0);
    copy_bytes(to, from, count);
}
inline void noc_async_write(uint32_t from, uint64_t to, uint32_t count) {
    check(from % 16 == to % 16);
    copy_bytes(to, from, count);
}
inline void noc_async_read_page(uint32_t page, const TensorAccessor& array, uint32_t to) {
    noc_async_read(array.get_noc_addr(page), to, array.page_bytes);
}
inline void noc_async_write_page(uint32_t page, const TensorAccessor& array, uint32_t from) {
    noc_async_write(from, array.get_noc_addr(page), array.page_bytes);
}
inline void noc_async_read_barrier() {}
inline void noc_async_write_barrier() {}
inline void noc_async_writes_flushed() {}

void kernel_main();
extern "C" void run(State* given) {
    state = given;
    kernel_main();
}
"""


class _Queue(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("base", "pages", "page_bytes", "front", "back")]


class _State(ctypes.Structure):
    _fields_ = [
        ("failures", ctypes.c_uint32),
        ("dram_alignment", ctypes.c_uint32),
        ("own", ctypes.c_uint32 * 4),
        ("common", ctypes.c_uint32 * 160),
        ("queues", _Queue * _MAX_QUEUES),
    ]


def can_run() -> bool:
    """Whether there is memory below 4 GB, by a flag of Linux on x86-64, and a compiler."""
    return platform.machine() == "x86_64" and sys.platform == "linux"


@cache
def _memory() -> int:
    """The address of memory below 4 GB."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    read_write, private_anonymous_low = 3, 0x2 | 0x20 | 0x40
    return int(libc.mmap(None, _MEMORY_BYTES, read_write, private_anonymous_low, -1, 0))


def run_movers(kernel: tile.KernelOp, arrays: Sequence[DeviceArray], machine: Machine) -> int:
    """Run the threads that move data of all cores, on the pages of arrays in place; gives how much was wrong."""
    source = emit_program(kernel, machine)
    assert source.compute is None
    base = _memory()
    ctypes.memset(base, _UNUSED, _MEMORY_BYTES)
    tensors = _place_arrays(base, arrays, machine.core_grid.dram_alignment_bytes)
    sources = {"reader": source.reader, "writer": source.writer}
    described = fake_ttnn.describe(source.host, {k: v for k, v in sources.items() if v is not None}, tensors)
    rows, columns = described.shape
    state = _State.from_address(base)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        made = [_compiled(Path(folder) / str(n), each, described) for n, each in enumerate(described.kernels)]
        for row in range(rows):
            for column in range(columns):
                _place_queues(state, base, described, machine.core_grid.dram_alignment_bytes)
                for function, each in zip(made, described.kernels, strict=True):
                    own = getattr(each, "runtime_args", {}).get(column, {}).get(row, [])
                    state.own[: len(own)] = own
                    common = getattr(each, "common_runtime_args", [])
                    state.common[: len(common)] = common
                    function(base)
                failures += state.failures
    for array, tensor in zip(arrays, tensors, strict=True):
        pages = _pages(array, tensor)
        size = array.pages.shape[1]
        array.pages[:] = pages[:, :size]
        failures += int((pages[:, size:] != _UNUSED).sum())
    return failures


def _view(address: int, size: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _pages(array: DeviceArray, tensor: fake_ttnn.Tensor) -> np.ndarray[Any, Any]:
    """The memory of an array, (pages, bytes of one): rows are padded to what transfers are aligned to."""
    count = len(array.pages)
    return _view(tensor.buffer_address(), count * tensor.page_bytes).reshape(count, tensor.page_bytes)


def _place_arrays(base: int, arrays: Sequence[DeviceArray], alignment: int) -> list[fake_ttnn.Tensor]:
    place, tensors = base + _ARRAYS, []
    for array in arrays:
        size = array.pages.shape[1]
        tensor = fake_ttnn.Tensor(place, -(-size // alignment) * alignment if array.is_by_rows else size)
        tensors.append(tensor)
        pages = _pages(array, tensor)
        pages[:, :size] = array.pages
        place += (pages.size + 4095) // 4096 * 4096
    assert place <= base + _MEMORY_BYTES
    return tensors


def _place_queues(state: _State, base: int, described: Any, alignment: int) -> None:
    state.failures, state.dram_alignment = 0, alignment
    place = base + _QUEUES
    for cb in described.cbs:
        (format,) = cb.format_descriptors
        pages = cb.total_size // format.page_size
        state.queues[format.buffer_index] = _Queue(place, pages, format.page_size, 0, 0)
        place += (cb.total_size + alignment - 1) // alignment * alignment
    assert place <= base + _ARRAYS


def _compiled(folder: Path, described: Any, program: Any) -> Any:
    """The function that runs a kernel."""
    folder.mkdir()
    sizes = [0] * _MAX_QUEUES
    for cb in program.cbs:
        sizes[cb.format_descriptors[0].buffer_index] = cb.format_descriptors[0].page_size
    constants = f"constexpr uint32_t page_sizes[] = {{{', '.join(map(str, sizes))}}};\n"
    given = ", ".join(map(str, [*getattr(described, "compile_time_args", []), 0, 0]))
    constants += f"constexpr uint32_t compile_time_args[] = {{{given}}};\n"
    (folder / "api/dataflow").mkdir(parents=True)
    (folder / "api/dataflow/dataflow_api.h").write_text(
        API.replace("#define tt_l1_ptr\n", "#define tt_l1_ptr\n" + constants)
    )
    (folder / "kernel.cpp").write_text(described.kernel_source)
    zig = [sys.executable, "-m", "ziglang"]
    flags = ["-target", "x86_64-linux-musl", "-std=c++20", "-O1", "-fPIC", "-w", f"-I{folder}"]
    _run([*zig, "c++", *flags, "-c", str(folder / "kernel.cpp"), "-o", str(folder / "kernel.o")])
    _run([*zig, "ld.lld", "-shared", "-o", str(folder / "kernel.so"), str(folder / "kernel.o")])
    function = ctypes.CDLL(str(folder / "kernel.so")).run
    function.argtypes = [ctypes.c_void_p]
    return function


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
