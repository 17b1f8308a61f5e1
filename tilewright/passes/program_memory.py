"""Assign memory to every array of a program: an input, an output, a constant, or an offset in the arena.

Arrays whose lifetimes do not meet share memory; a result is computed where it is returned from; reshapes are views; a
donated input's memory takes the output that replaces it; what a kernel writes over is where its operand does, if
nothing else reads that; a trip of a loop computes what the next one carries in place, where it reads elements before it
writes them. An analysis, for the targets that run a program as one call: the program stays as it is, and
the plan stands next to it.

Before:
    func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
      %a = array.call(%x) {callee = "loop_0"} : tensor<16xf32>
      %b = array.call(%a) {callee = "loop_0"} : tensor<16xf32>
      %c = array.call(%b) {callee = "loop_0"} : tensor<16xf32>
      %d = array.call(%c, %x) {callee = "update_1"} : tensor<16xf32>
      %y = array.call(%d) {callee = "loop_0"} : tensor<16xf32>
      func.return %y : tensor<16xf32>
    }
    tile.kernel() {sym_name = "loop_0", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%in: !tile.ref<tensor<16xf32>>, %out: !tile.ref<tensor<16xf32>>):
      tile.yield()
    }
    tile.kernel() {sym_name = "update_1", grid = array<i64>, effects = ["inout", "in"]} do {
    ^bb0(%out: !tile.ref<tensor<16xf32>>, %in: !tile.ref<tensor<16xf32>>):
      tile.yield()
    }
After:
    %x: input 0
    %a: arena byte 0
    %b: arena byte 64
    %c: arena byte 0
    %d: arena byte 0
    %y: output 0
"""

from __future__ import annotations

import msgspec
import numpy as np
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tilewright.dialects import array, scheduled, tile
from tilewright.dialects.base import array_type, layout_text
from tilewright.dialects.func import ReturnOp
from tilewright.dialects.rewriting import in_block, yielded
from tilewright.passes.array.lifetimes import all_users, ends_with, storage
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType

ALIGNMENT_BYTES = 64
INPUT, OUTPUT, CONSTANT, ARENA = "input", "output", "constant", "arena"


class Place(msgspec.Struct, frozen=True):
    """The memory of an array: `index` of an input or output, name of a constant, or byte offset in the arena."""

    kind: str
    index: int = 0
    constant: str = ""


class Buffer(msgspec.Struct, eq=False):
    """An arena buffer alive from top-level step `start` to step `end`, both included."""

    type: ArrayType
    start: int
    end: int
    offset: int = 0
    what: str = ""

    @property
    def bytes(self) -> int:
        return max(ALIGNMENT_BYTES, -(-self.type.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)


class MemoryPlan(msgspec.Struct, eq=False):
    """Places of all array values, arena size, and results that must be copied (`copies`: value to output index)."""

    places: dict[SSAValue, Place] = msgspec.field(default_factory=dict)
    arena_bytes: int = 0
    copies: list[tuple[SSAValue, int]] = msgspec.field(default_factory=list)
    buffers: list[Buffer] = msgspec.field(default_factory=list)
    spares: dict[tuple[Operation, int], int] = msgspec.field(default_factory=dict)

    def report(self, count: int = 8) -> str:
        """The largest buffers as a table."""
        rows = [f"{'bytes':>14}  {'array':<28} from"]
        for buffer in sorted(self.buffers, key=lambda b: -b.bytes)[:count]:
            rows.append(f"{buffer.bytes:>14,}  {buffer.type!s:<28} {buffer.what}")
        return "\n".join(rows)


def plan_memory(unit: Unit) -> MemoryPlan:
    """Plan the memory of a lowered program."""
    return _Planner(unit).plan()


class _Planner:
    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.block = unit.main.body.block
        self.kernels = {kernel.sym_name: kernel for kernel in unit.kernels()}
        self.steps = {op: i for i, op in enumerate(self.block.ops)}
        self.result = MemoryPlan()
        self.buffer_of: dict[SSAValue, Buffer] = {}
        self.spares: dict[tuple[Operation, int], Buffer] = {}

    def plan(self) -> MemoryPlan:
        for i, argument in enumerate(self.block.args):
            self.result.places[argument] = Place(INPUT, i)
        self._place_results()
        self._visit(self.block)
        self._assign_offsets()
        for value, buffer in self.buffer_of.items():
            self.result.places[value] = Place(ARENA, buffer.offset)
        self.result.spares = {key: buffer.offset for key, buffer in self.spares.items()}
        self.result.buffers = self._all_buffers()
        return self.result

    def _place_results(self) -> None:
        """Compute results in place where they come from a top-level operation and are returned once."""
        last = self.block.last_op
        if not isinstance(last, ReturnOp):
            return
        for i, value in enumerate(last.operands):
            root = storage(value)
            if root not in self.result.places and self._may_be_computed_in(root, i):
                self._place_result(root, i)
            else:
                self.result.copies.append((value, i))
        self._spare_results(last)

    def _place_result(self, root: SSAValue, output: int) -> None:
        """Place an array in an output, and before it what it is written over, as far back as nothing is spoiled."""
        self.result.places[root] = Place(OUTPUT, output)
        source = self._written_over(root)
        while source is not None and source not in self.result.places and self._may_be_computed_in(source, output):
            self.result.places[source] = Place(OUTPUT, output)
            source = self._written_over(source)

    def _written_over(self, result: SSAValue) -> SSAValue | None:
        """The array whose memory a kernel's result takes over: the kernel writes over it, and it is not used again."""
        call = result.owner
        if not isinstance(call, array.CallOp):
            return None
        operand_refs, result_refs = _refs(self.kernels[call.callee])
        written = result_refs[_position(result, call)]
        if written not in operand_refs:
            return None
        source = storage(call.operands[operand_refs.index(written)])
        return source if ends_with(source, call) else None

    def _may_take_over(self, source: SSAValue, result: SSAValue) -> bool:
        """Whether the memory of `source`, which a kernel writes over, may hold `result` as long as that lives."""
        block = source.owner
        if not isinstance(block, Block):
            return source in self.buffer_of
        # A carried array: its memory must hold the next trip's when the body ends.
        parent = block.parent_op()
        if not isinstance(parent, array.WhileOp) or block is not parent.body.block:
            return False
        homes = [storage(value) for value in yielded(block)]
        home: SSAValue | None = homes[_position(source, block)]
        if sum(other is home for other in homes) != 1:
            return False
        while home is not None and home is not result:
            home = self._written_over(home)
        return home is result

    def _may_be_computed_in(self, root: SSAValue, output: int) -> bool:
        """Whether an array is computed by a top-level operation that spoils no donated input by writing the output."""
        op = root.owner
        if (
            not isinstance(op, array.CallOp | array.LibraryCallOp | array.WhileOp)
            or op.parent_block() is not self.block
        ):
            return False
        donors = [i for i, o in self.unit.donated.items() if o == output]
        if not donors:
            return True
        source = self.block.args[donors[0]]
        readers = [u for u in all_users(source) if not isinstance(u, array.ReshapeOp)]
        if any(self.steps[in_block(r, self.block)] > self.steps[op] for r in readers):
            return False
        if isinstance(op, array.LibraryCallOp):
            return all(storage(o) is not source for o in op.operands)
        if isinstance(op, array.CallOp):
            return self._writes_behind_its_reads(op, root, source)
        # A loop starts with its carried arrays, which are then written.
        inside = [r for r in readers if r is not op and in_block(r, self.block) is op]
        carried = [o for o in op.operands if storage(o) is source]
        return not inside and all(o is op.operands[_position(root, op)] for o in carried)

    def _writes_behind_its_reads(self, call: array.CallOp, root: SSAValue, source: SSAValue) -> bool:
        kernel = self.kernels[call.callee]
        operand_refs, result_refs = _refs(kernel)
        written = result_refs[_position(root, call)]
        read = [ref for ref, o in zip(operand_refs, call.operands, strict=True) if storage(o) is source]
        if written in operand_refs and written not in read:
            return not read  # what is written over is copied to the output before the kernel runs
        return all(ref == written or reads_where_it_writes(kernel, ref, written) for ref in read)

    def _visit(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, array.ConstantOp):
                self.result.places[op.results[0]] = Place(CONSTANT, constant=op.resource)
            elif isinstance(op, array.CallOp | array.LibraryCallOp):
                for value in op.results:
                    self._new_buffer(value, op)
            elif isinstance(op, array.WhileOp | array.IfOp):
                self._visit_control(op)

    def _visit_control(self, op: array.WhileOp | array.IfOp) -> None:
        for value in op.results:
            self._new_buffer(value, op)
        if isinstance(op, array.WhileOp):
            # Carried arrays live in the results' buffers: both regions read them, each trip writes them.
            for block in (op.condition.block, op.body.block):
                for argument, value in zip(block.args, op.results, strict=True):
                    self._share(argument, value)
        for region in op.regions:
            self._visit(region.block)
        if isinstance(op, array.WhileOp):
            self._spare_buffers(op)

    def _share(self, argument: SSAValue, value: SSAValue) -> None:
        if value in self.buffer_of:
            self.buffer_of[argument] = self.buffer_of[value]
        else:
            self.result.places[argument] = self.result.places[value]

    def _spare_buffers(self, op: array.WhileOp) -> None:
        """Yields that are carried arrays are copied through spare memory, all before any is written."""
        step = self.steps[in_block(op, self.block)]
        for position, value in enumerate(yielded(op.body.block)):
            root = storage(value)
            if isinstance(root, BlockArgument) and root.owner is op.body.block and root.index != position:
                self.spares[(op, position)] = Buffer(array_type(value), step, step, what="loop rotation")

    def _spare_results(self, last: Operation) -> None:
        """Results that are donated inputs are set aside before the memory of those inputs is written."""
        step = self.steps[last]
        for position, (value, output) in enumerate(self.result.copies):
            root = storage(value)
            donated_to = self.unit.donated.get(root.index) if isinstance(root, BlockArgument) else None
            if donated_to is not None and donated_to != output:
                self.spares[(last, position)] = Buffer(array_type(value), step, step, what="donated result")

    def _new_buffer(self, value: SSAValue, op: Operation) -> None:
        if value in self.result.places:
            return
        top = in_block(op, self.block)
        start = self.steps[top]
        inside = op.parent_block() is not self.block
        end = start if inside else max([start, *(self.steps[in_block(u, self.block)] for u in all_users(value))])
        source = self._written_over(value)
        if source is not None and self._may_take_over(source, value):
            self._share(value, source)
            if source in self.buffer_of:
                self.buffer_of[source].end = max(self.buffer_of[source].end, end)
            return
        carried = self._carried_from(value, op)
        if carried is not None:
            self._share(value, carried)
            return
        what = op.callee if isinstance(op, array.CallOp) else op.name
        what = op.routine if isinstance(op, array.LibraryCallOp) else what
        self.buffer_of[value] = Buffer(array_type(value), start, end, what=what)

    def _carried_from(self, value: SSAValue, op: Operation) -> SSAValue | None:
        """The carried array that a result of a loop's body replaces, if its memory may hold that before the trip ends:
        nothing reads the array later in the trip, and the kernel reads each element before it writes it."""
        body = op.parent_block()
        loop = None if body is None else body.parent_op()
        if body is None or not isinstance(op, array.CallOp) or not isinstance(loop, array.WhileOp):
            return None
        homes = [storage(each) for each in yielded(body)] if body is loop.body.block else []
        if sum(home is value for home in homes) != 1:
            return None
        carried = body.args[next(n for n, home in enumerate(homes) if home is value)]
        if array_type(carried).nbytes != array_type(value).nbytes or carried in homes:
            return None
        readers = [in_block(user, body) for user in all_users(carried) if not isinstance(user, array.ReshapeOp)]
        is_last = all(reader is op or reader.is_before_in_block(op) for reader in readers)
        return carried if is_last and self._writes_behind_its_reads(op, value, carried) else None

    def _all_buffers(self) -> list[Buffer]:
        return list(dict.fromkeys([*self.buffer_of.values(), *self.spares.values()]))

    def _assign_offsets(self) -> None:
        """First fit in order of decreasing size."""
        buffers = sorted(self._all_buffers(), key=lambda b: (-b.bytes, b.start))
        starts, ends = np.array([b.start for b in buffers]), np.array([b.end for b in buffers])
        for placed, buffer in enumerate(buffers):
            offset = 0
            meeting = (starts[:placed] <= buffer.end) & (ends[:placed] >= buffer.start)
            for other in sorted((buffers[n] for n in np.flatnonzero(meeting)), key=lambda b: b.offset):
                if offset + buffer.bytes <= other.offset:
                    break
                offset = max(offset, other.offset + other.bytes)
            buffer.offset = offset
            self.result.arena_bytes = max(self.result.arena_bytes, offset + buffer.bytes)


def _refs(kernel: tile.KernelOp) -> tuple[list[int], list[int]]:
    """The refs of a kernel that its calls have operands for, and those that they have results for."""
    effects = kernel.effects
    return [n for n, e in enumerate(effects) if e != tile.OUT], [n for n, e in enumerate(effects) if e != tile.IN]


def _position(value: SSAValue, owner: Operation | Block) -> int:
    values = owner.args if isinstance(owner, Block) else owner.results
    return next(n for n, v in enumerate(values) if v is value)


def reads_where_it_writes(kernel: tile.KernelOp, source: int, target: int) -> bool:
    """Whether a kernel loads one ref only in nests that then store the other at the same element; a thread each."""
    loaded, stored = kernel.refs[source], kernel.refs[target]
    stores = [u.operation for u in stored.uses]
    for use in loaded.uses:
        load = use.operation
        if not isinstance(load, tile.LoadOp) or _moves_elements(load.parent_block()):
            return False
        matching = [
            s
            for s in stores
            if isinstance(s, tile.StoreOp)
            and s.parent_block() is load.parent_block()
            and load.is_before_in_block(s)
            and s.map == load.map
            and list(s.symbols) == list(load.symbols)
            and _in_the_same_thread(load, s)
        ]
        if not matching or len(matching) != len(stores):
            return False
    return True


def _in_the_same_thread(load: tile.LoadOp, store: tile.StoreOp) -> bool:
    """Whether each thread of a block loads just the elements that it stores. Otherwise one thread may store an element
    before another has loaded it; points that one thread runs have no others."""
    region = load.parent_op()
    while region is not None and not isinstance(region, scheduled.ParallelOp):
        region = region.parent_op()
    if region is None or region.warps is None:
        return True
    loaded, stored = layout_text(load.result), layout_text(store.operands[0])
    return bool(loaded) and loaded == stored and "replica" not in loaded


def _moves_elements(nest: Block | None) -> bool:
    """Whether a nest stores elements elsewhere than where it loads them."""
    return nest is not None and any(isinstance(op, tile.SortOp | tile.TopKOp) for op in nest.ops)
