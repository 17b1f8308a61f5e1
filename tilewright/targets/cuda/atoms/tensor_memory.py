"""MMAs that one thread begins and that the machine adds up in tensor memory: tcgen05, of one block.

PTX ISA 9.7.16, "TensorCore 5th Generation Family Instructions". An instruction has all rows and columns of a tile and
32 bytes of the depth. An address of tensor memory has the lane in its upper half and the column in its lower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from llvmlite import ir
from xdsl.ir import Operation, SSAValue

from tilewright.cost.warps.products import WARPGROUP
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type, layout_text
from tilewright.dialects.scheduled import tensor_memory
from tilewright.errors import CompilerBug
from tilewright.layout import Layout
from tilewright.layout.operations import rename_axis
from tilewright.layout.relayout import Reason
from tilewright.layout.views import permute
from tilewright.passes.warps.tile_lower_to_warps import layout_of
from tilewright.passes.warps.warp_space import SHARED
from tilewright.records import dataclass
from tilewright.semantics.warps.block_memory import coordinates_on
from tilewright.targets.cuda.atoms import blackwell, hopper
from tilewright.targets.cuda.atoms.descriptors import OperandFields, descriptor_of, matrix_descriptor
from tilewright.targets.simt.emit_memory import Memory, evaluated
from tilewright.targets.simt.fragments import I32, Builder, Fragment, Threads, Value, i32

TensorOp = (
    tensor_memory.TensorAllocOp
    | tensor_memory.TensorStageOp
    | tensor_memory.TensorPartOp
    | tensor_memory.TensorMmaOp
    | tensor_memory.TensorFenceOp
    | tensor_memory.TensorFreeOp
)
_PTX_NAMES = {
    **{"bf16": "bf16", "f16": "f16", "tf32": "tf32", "i8": "s8"},
    **{"f8e4m3fn": "e4m3", "f8e5m2": "e5m2", "f32": "f32", "i32": "s32"},
}
# The most columns of one load, and of loads and stores of what is put back, whose registers are next to each other both
# times: of 128 the assembler spills others. The lanes that a warp reaches.
_WIDEST, _WIDEST_PUT, _LANES = 128, 32, 32


@dataclass
class TensorMemory:
    """The columns that a kernel's blocks have: where it is declared which, and their addresses once that was read."""

    _slots: dict[SSAValue, Value] = field(default_factory=dict[SSAValue, Value])
    _addresses: dict[SSAValue, Value] = field(default_factory=dict[SSAValue, Value])

    def _allocate(self, threads: Threads, op: tensor_memory.TensorAllocOp, slot: Value) -> None:
        """The first warp asks for columns, which are declared at `slot`; the block asks for no more."""
        builder = threads.builder
        with builder.if_then(_is_first_warp(threads)):
            blackwell.tmem_alloc(builder, slot, op.columns)
            blackwell.tmem_relinquish(builder)
        self._slots[op.result] = slot

    def meet(self, builder: Builder, scope: str) -> None:
        """After a barrier of all roles all threads read which columns they are."""
        if scope != scheduled.EVERY_ROLE:
            return
        for result, slot in self._slots.items():
            self._addresses[result] = builder.load(slot, typ=I32, align=4)

    def emit(
        self,
        threads: Threads,
        op: TensorOp,
        memories: Mapping[SSAValue, Memory],
        indices: Mapping[SSAValue, Value],
        place_of: Callable[[tensor_memory.TensorAllocOp], Value],
    ) -> None:
        """Columns that are asked for or given back, an MMA, or a fence."""
        builder = threads.builder
        match op:
            case tensor_memory.TensorAllocOp():
                self._allocate(threads, op, place_of(op))
            case tensor_memory.TensorStageOp():
                number = evaluated(builder, op.map.results[0], [], [indices[symbol] for symbol in op.symbols])
                columns = builder.mul(number, i32(_alloc(op.tensor).tile_columns))
                self._addresses[op.result] = builder.add(self._address(op.tensor), columns)
            case tensor_memory.TensorPartOp():
                first = op.column
                self._addresses[op.result] = builder.add(self._address(op.tensor), i32(first))
            case tensor_memory.TensorMmaOp():
                adds = evaluated(builder, op.adds.results[0], [], [indices[symbol] for symbol in op.symbols])
                is_added = builder.icmp_signed(">", adds, i32(0))
                total = self._address(op.accumulator)
                by_one_thread(threads, op, lambda: _multiply(threads, op, total, memories, is_added))
            case tensor_memory.TensorFenceOp() if op.side == tensor_memory.BEFORE:
                blackwell.tcgen05_fence_before(builder)
            case tensor_memory.TensorFenceOp():
                blackwell.tcgen05_fence_after(builder)
            case tensor_memory.TensorFreeOp():
                columns = _alloc(op.tensor).columns
                with builder.if_then(_is_first_warp(threads)):
                    blackwell.tmem_dealloc(builder, self._address(op.tensor), columns)

    def load(self, threads: Threads, op: tensor_memory.TensorLoadOp) -> Fragment:
        """The columns that each warpgroup takes of its warps' lanes.

        Raises:
            CompilerBug: the layout gives a warp something else.
        """
        builder, type, layout = threads.builder, array_type(op.result), layout_of(op.result)
        assert layout is not None
        count = _columns_of_groups(op.result, op.source)
        start = self._own(threads, op.source, count)
        is_put = any(isinstance(use.operation, tensor_memory.TensorPutOp) for use in op.source.uses)
        widest = _WIDEST_PUT if is_put else _WIDEST
        values: list[Value] = []
        while len(values) < count:
            width = min(widest, 1 << ((count - len(values)).bit_length() - 1))
            values += blackwell.tmem_load(builder, builder.add(start, i32(len(values))), width)
        if type.dtype.is_float:
            values = [builder.bitcast(value, ir.FloatType()) for value in values]
        return Fragment(layout, type.dtype, dict(enumerate(values)))

    def put(self, threads: Threads, op: tensor_memory.TensorPutOp, value: Fragment) -> None:
        """Store registers to the columns and lanes of tensor memory that `load` reads.

        Raises:
            CompilerBug: the layout has in a warp what others reach.
        """
        builder = threads.builder
        count = _columns_of_groups(op.value, op.destination)
        start = self._own(threads, op.destination, count)
        words = [builder.bitcast(value.values[number], I32) for number in range(count)]
        done = 0
        while done < count:
            width = min(_WIDEST_PUT, 1 << ((count - done).bit_length() - 1))
            blackwell.tmem_store(builder, builder.add(start, i32(done)), words[done : done + width])
            done += width

    def _own(self, threads: Threads, tensor: SSAValue, count: int) -> Value:
        """The first lane of a warp and the first column of its warpgroup, which has so many."""
        builder, warp = threads.builder, threads.numbers["warp"]
        lanes = builder.mul(builder.urem(warp, i32(WARPGROUP)), i32(_LANES << 16))
        first = builder.mul(builder.udiv(warp, i32(WARPGROUP)), i32(count))
        return builder.add(builder.add(self._address(tensor), lanes), first)

    def _address(self, tensor: SSAValue) -> Value:
        if tensor not in self._addresses:
            raise CompilerBug("tensor memory is used before a barrier of all roles")
        return self._addresses[tensor]


def _alloc(tensor: SSAValue) -> tensor_memory.TensorAllocOp:
    assert isinstance(tensor.owner, tensor_memory.TensorAllocOp)
    return tensor.owner


def _is_first_warp(threads: Threads) -> Value:
    return threads.builder.icmp_unsigned("==", threads.numbers["warp"], i32(0))


def by_one_thread(threads: Threads, op: Operation, emit: Callable[[], None]) -> None:
    """Code that one thread runs: the only one of a role, or an elected one of the first warp."""
    around = op.parent_op()
    while around is not None and not isinstance(around, scheduled.RoleOp):
        around = around.parent_op()
    if around is not None:
        emit()
        return
    builder = threads.builder
    with builder.if_then(_is_first_warp(threads)), builder.if_then(hopper.elect_one(builder)):
        emit()


def _columns_of_groups(value: SSAValue, tensor: SSAValue) -> int:
    """How many columns each warpgroup takes: registers count them, and lanes are those that a warp reaches."""
    text, lies, shape = layout_text(value), tile.ref_type(tensor).layout.data, array_type(value).shape
    lane, warp, register = (coordinates_on(axis, text, shape) for axis in ("lane", "warp", "reg"))
    row, column = (coordinates_on(axis, lies, shape) for axis in (tensor_memory.ROW, tensor_memory.COLUMN))
    count = int(register.max()) + 1
    in_order = (column == warp // WARPGROUP * count + register).all()
    if not in_order or (row != warp % WARPGROUP * _LANES + lane).any():
        raise CompilerBug(f"no load or store of tensor memory has `{text}` of `{lies}`")
    return count


def _multiply(
    threads: Threads,
    op: tensor_memory.TensorMmaOp,
    total: Value,
    memories: Mapping[SSAValue, Memory],
    is_added: Value,
) -> None:
    """One instruction for each 32 bytes of the depth."""
    builder = threads.builder
    left, right = memories[op.left], memories[op.right]
    a, b = _fields(left, left.layout), _fields(right, permute(right.layout, (1, 0)))
    rows, columns = left.shape[0], right.shape[1]
    names = (_PTX_NAMES[each.name] for each in (left.dtype, right.dtype, tile.ref_type(op.accumulator).dtype))
    kind = blackwell.Tcgen05(rows, columns, *names, left_major=a.major, right_major=b.major)
    for step in range(len(a.offsets)):
        lefts, rights = _descriptor(builder, left, a, step), _descriptor(builder, right, b, step)
        adds = ir.Constant(hopper.I1, 1) if step else is_added
        blackwell.tcgen05_mma(builder, kind, total, lefts, rights, adds)


def _fields(memory: Memory, layout: Layout) -> OperandFields:
    """How an operand is laid out whose layout is of (M or N, K)."""
    found = descriptor_of(rename_axis(layout, SHARED, "mem"), memory.dtype)
    if isinstance(found, Reason):
        raise CompilerBug(f"tcgen05.mma does not read an operand in {layout}: {found}")
    return found


def _descriptor(builder: Builder, memory: Memory, fields: OperandFields, step: int) -> Value:
    """The matrix descriptor of a step of the depth."""
    start = builder.add(builder.ptrtoint(memory.pointer, I32), i32(fields.start(step)))
    return matrix_descriptor(builder, fields.blackwell, start)
