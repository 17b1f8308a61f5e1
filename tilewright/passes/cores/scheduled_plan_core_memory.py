"""Assign L1 addresses to queues.

Queues live as long as their program: they are contiguous. If they do not all fit, queues that data movement threads
fill ahead of compute give up their second tile, the largest ones first, as that costs time and nothing else.

Before (wormhole):
    func.func @main(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 1>} do {
      ^bb1(%row: index, %column: index):
        %a = cores.queue() : !cores.queue<"f32", 1>
        %b = cores.queue() : !cores.queue<"f32", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.fetch(%x, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (0, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "read"}
          cores.push(%a) {pages = 1 : index}
          cores.reserve(%b) {pages = 1 : index}
          cores.fetch(%x, %b) {extents = array<i64: 1>, map = affine_map<(d0) -> (1, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "read"}
          cores.push(%b) {pages = 1 : index}
          cores.end()
        }
        cores.thread() {role = "writer", noc = 1 : index} do {
          cores.wait(%a) {pages = 1 : index}
          cores.put(%out, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (0, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "write"}
          cores.pop(%a) {pages = 1 : index}
          cores.wait(%b) {pages = 1 : index}
          cores.put(%out, %b) {extents = array<i64: 1>, map = affine_map<(d0) -> (1, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "write"}
          cores.pop(%b) {pages = 1 : index}
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>):
      cores.program() {cores = array<i64: 1, 1>} do {
      ^bb0(%row: index, %column: index):
        %a = cores.queue() {address_bytes = 105824 : index} : !cores.queue<"f32", 1>
        %b = cores.queue() {address_bytes = 109920 : index} : !cores.queue<"f32", 1>
        cores.thread() {role = "reader", noc = 0 : index} do {
          cores.reserve(%a) {pages = 1 : index}
          cores.fetch(%x, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (0, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "read"}
          cores.push(%a) {pages = 1 : index}
          cores.reserve(%b) {pages = 1 : index}
          cores.fetch(%x, %b) {extents = array<i64: 1>, map = affine_map<(d0) -> (1, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "read"}
          cores.push(%b) {pages = 1 : index}
          cores.end()
        }
        cores.thread() {role = "writer", noc = 1 : index} do {
          cores.wait(%a) {pages = 1 : index}
          cores.put(%out, %a) {extents = array<i64: 1>, map = affine_map<(d0) -> (0, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "write"}
          cores.pop(%a) {pages = 1 : index}
          cores.wait(%b) {pages = 1 : index}
          cores.put(%out, %b) {extents = array<i64: 1>, map = affine_map<(d0) -> (1, d0)>,
            at = affine_map<(d0) -> (d0)>}
          cores.barrier() {of = "write"}
          cores.pop(%b) {pages = 1 : index}
          cores.end()
        }
        cores.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from xdsl.dialects.builtin import FileLineColLoc
from xdsl.rewriter import Rewriter

from tilewright.dialects import cores
from tilewright.errors import ResourceExhausted
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.base import Remark, Unit, where
from tilewright.passes.cores.memory import aligned_bytes, bytes_of


class ScheduledPlanCoreMemoryPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-plan-core-memory"

    def apply(self, unit: Unit) -> None:
        grid = unit.machine.core_grid
        for kernel in unit.timed_kernels(self.name):
            for op in kernel.walk():
                if isinstance(op, cores.ProgramOp):
                    _plan(unit, kernel.sym_name, op, grid)


def _plan(unit: Unit, name: str, program: cores.ProgramOp, grid: CoreGrid) -> None:
    sizes = {queue: aligned_bytes(bytes_of(queue), grid) for queue in program.queues}
    while sum(sizes.values()) > program.memory_end_bytes(grid) - grid.memory_base_bytes:
        halved = _largest_ahead(program)
        if halved is None:
            raise _exhausted(name, program, grid)
        _halve(halved)
        sizes[halved] = aligned_bytes(bytes_of(halved), grid)
        decision = f"a queue of {cores.queue_type(halved.result).pages} pages instead of twice as many"
        unit.remarks.append(Remark(ScheduledPlanCoreMemoryPass.name, name, decision, "no room in L1"))
    address = grid.memory_base_bytes
    for queue in program.queues:
        queue.address_bytes = address
        address += sizes[queue]


def step_pages(queue: cores.QueueOp) -> int:
    """The pages that are pushed or popped at a time, at most."""
    steps = [use.operation for use in queue.result.uses if isinstance(use.operation, cores.QueueStepOp)]
    return max((step.count for step in steps), default=1)


def is_ahead(queue: cores.QueueOp) -> bool:
    """Whether a queue is between two threads, and has room for more than what is pushed at a time."""
    ends = [use.operation for use in queue.result.uses if isinstance(use.operation, cores.PushOp | cores.PopOp)]
    roles = {cores.thread_of(end).role for end in ends}
    return len(roles) > 1 and cores.queue_type(queue.result).pages >= 2 * step_pages(queue)


def _why_it_stays(queue: cores.QueueOp) -> str:
    """Why a queue has no fewer pages."""
    pages, step = cores.queue_type(queue.result).pages, step_pages(queue)
    roles = sorted({cores.thread_of(use.operation).role for use in queue.result.uses})
    users = f"between {' and '.join(roles)}" if len(roles) > 1 else f"in {roles[0]} alone"
    if pages == 1:
        return f"{users}, already of one page"
    if pages < 2 * step:
        return f"{users}, already of one tile: {step} pages are pushed together"
    return f"{users}, which fills a tile of {step} pages while it reads the one before"


def _largest_ahead(program: cores.ProgramOp) -> cores.QueueOp | None:
    return max((queue for queue in program.queues if is_ahead(queue)), key=bytes_of, default=None)


def _halve(queue: cores.QueueOp) -> None:
    type = cores.queue_type(queue.result)
    least = step_pages(queue)
    pages = max(least, type.pages // 2 // least * least)
    Rewriter.replace_value_with_new_type(queue.result, type.resized(pages))


def _exhausted(name: str, program: cores.ProgramOp, grid: CoreGrid) -> ResourceExhausted:
    """The error with a table of queues: the largest first, each with its address and the reason that it cannot
    shrink."""
    there = program.memory_end_bytes(grid) - grid.memory_base_bytes
    begins: dict[cores.QueueOp, int] = {}
    needed = 0
    for queue in program.queues:
        begins[queue] = needed
        needed += aligned_bytes(bytes_of(queue), grid)
    beside = f" next to {grid.memory_bytes - there} bytes of arrays" if there < grid.memory_bytes else ""
    lines = ["queues are live for the whole program, so that their addresses are disjoint:"]
    for queue in sorted(program.queues, key=bytes_of, reverse=True):
        type, end = cores.queue_type(queue.result), begins[queue] + bytes_of(queue)
        beyond = ", beyond the end" if end > there else ""
        lines.append(
            f"{type.bytes:>9} bytes, from {begins[queue]} to {end}{beyond}: {type.pages} pages of {type.format.data} "
            f"at {where(queue) or 'no line'}, {_why_it_stays(queue)}"
        )
    error = ResourceExhausted(
        f"`{name}` needs {needed} bytes of each core's memory, which has {there}{beside}:\n" + "\n".join(lines),
        help="use smaller tiles",
    )
    first = next((q.location for q in program.queues if isinstance(q.location, FileLineColLoc)), None)
    if isinstance(first, FileLineColLoc):
        from tilewright.passes.layouts.layout_rules import location_of

        error.location = location_of(program.queues[0])
    return error
