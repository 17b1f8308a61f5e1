"""Operations on what a GPU does by itself while threads continue, and on the barriers in memory that state when it is
done.

    mbarrier      barriers in memory whose phases complete by arrivals and by bytes that have come
    expect        arrive, and let the phase wait for some bytes more
    arrive        one arrival of those that a phase waits for
    await         go on when a phase has completed
    tensor_copy   a window of an array moves to a buffer by the machine itself, and completes a phase
    tensor_store  a buffer moves to a window of an array by the machine itself
    store_wait    buffers that move so have been read
    fence         what was written to memory is seen by what works asynchronously

They are operations of `scheduled`.
"""

from __future__ import annotations

from xdsl.dialects.builtin import AffineMapAttr, BoolAttr, DenseArrayBase, IndexType, IntegerAttr
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def, var_operand_def
from xdsl.utils.exceptions import VerifyException

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import PlainOp, decode

# Where the machine brings tiles, and where barriers are: memory that the threads of a block share.
BLOCK = "block"


@irdl_op_definition
class MbarrierOp(PlainOp):
    """`count` barriers in the memory of a block, each in its phase 0. A phase completes when `arrivals` arrivals and
    all bytes that were expected have come; then the next one begins. Before another warp uses one, there is a barrier
    of `EVERY_ROLE`. PTX ISA, mbarrier."""

    name = "scheduled.mbarrier"
    count = prop_def(IntegerAttr)
    arrivals = prop_def(IntegerAttr)
    offset_bytes = opt_prop_def(IntegerAttr)
    result = result_def(tile.RefType)

    @property
    def bytes(self) -> int:
        return 8 * int(self.count.value.data)

    def verify_(self) -> None:
        type = tile.ref_type(self.result)
        count = int(self.count.value.data)
        if count < 1 or self.arrivals.value.data < 1:
            raise VerifyException("scheduled.mbarrier: fewer than one barrier, or than one arrival")
        if type.space.data != BLOCK or type.shape != (count,) or type.dtype != dtypes.i64:
            raise VerifyException(f"scheduled.mbarrier: {count} barriers are {count} i64 of a block")


@irdl_op_definition
class ArriveOp(PlainOp):
    """One arrival at barrier `number(symbols)` by each warpgroup that runs it, or by a warp where there is no group of
    four. Earlier writes of its threads are visible to waiters of the phase. None unless `0 <= trip(symbols)`. With
    `everywhere`, at the barrier of that index in each block of the cluster."""

    name = "scheduled.arrive"
    mbarrier = operand_def(tile.RefType)
    symbols = var_operand_def(IndexType)
    number = prop_def(AffineMapAttr)
    trip = opt_prop_def(AffineMapAttr)
    everywhere = opt_prop_def(BoolAttr)

    def verify_(self) -> None:
        verify_mbarrier(self.name, self.mbarrier)
        verify_number(self.name, self.number, len(self.symbols))
        verify_number(self.name, self.trip, len(self.symbols))


@irdl_op_definition
class ExpectOp(PlainOp):
    """One arrival at barrier `number(symbols)`, whose phase then waits for `bytes` more, too. One thread runs it."""

    name = "scheduled.expect"
    mbarrier = operand_def(tile.RefType)
    symbols = var_operand_def(IndexType)
    number = prop_def(AffineMapAttr)
    bytes = prop_def(IntegerAttr)

    def verify_(self) -> None:
        verify_mbarrier(self.name, self.mbarrier)
        verify_number(self.name, self.number, len(self.symbols))
        if self.bytes.value.data < 1:
            raise VerifyException("scheduled.expect: fewer than one byte")


@irdl_op_definition
class AwaitOp(PlainOp):
    """Wait until phase `phase(symbols)` of barrier `number(symbols)` has completed; at once for phases below 0.
    Operations before its arrivals, and the bytes that it counts, are visible. The machine compares the last bit of the
    phase: the barrier must not be two phases further."""

    name = "scheduled.await"
    mbarrier = operand_def(tile.RefType)
    symbols = var_operand_def(IndexType)
    number = prop_def(AffineMapAttr)
    phase = prop_def(AffineMapAttr)

    def verify_(self) -> None:
        verify_mbarrier(self.name, self.mbarrier)
        verify_number(self.name, self.number, len(self.symbols))
        verify_number(self.name, self.phase, len(self.symbols))


@irdl_op_definition
class TensorCopyOp(PlainOp):
    """`destination[d] = source[map(d, symbols)]`, zero outside of the source, some time before the phase of barrier
    `number(symbols)` completes that now waits for its bytes: all those of the destination. One thread begins it, and no
    thread takes part. The destination has a layout that boxes of an array are copied to; to one of tf32 f32 is rounded.

    With `multicast` = (count, dim), of the `count` equal parts of the window along `dim` it is the part of the block's
    rank that is copied, to its position in that buffer of each of the `count` blocks of the cluster; there it completes
    the phase of that barrier, which may come to wait for its bytes later."""

    name = "scheduled.tensor_copy"
    source = operand_def(tile.RefType)
    destination = operand_def(tile.RefType)
    mbarrier = operand_def(tile.RefType)
    symbols = var_operand_def(IndexType)
    map = prop_def(AffineMapAttr)
    number = prop_def(AffineMapAttr)
    multicast = opt_prop_def(DenseArrayBase)

    @property
    def parts(self) -> tuple[int, int] | None:
        """How many blocks copy a part each, and along which dim; None where one copies all."""
        return None if self.multicast is None else decode(self.multicast)

    def verify_(self) -> None:
        source, target, map = tile.ref_type(self.source), tile.ref_type(self.destination), self.map.data
        wanted = (len(target.shape), len(self.symbols), len(source.shape))
        if (map.num_dims, map.num_symbols, len(map.results)) != wanted:
            raise VerifyException(f"scheduled.tensor_copy: {map} does not map {target.shape} to {source.shape}")
        if self.parts is not None:
            count, dim = self.parts
            if count < 2 or not 0 <= dim < len(target.shape) or target.shape[dim] % count:
                raise VerifyException(f"scheduled.tensor_copy: {count} parts of {target.shape} along dim {dim}")
        is_rounded = (source.dtype, target.dtype) == (dtypes.f32, dtypes.tf32)
        if (source.dtype != target.dtype and not is_rounded) or target.space.data != BLOCK:
            raise VerifyException("scheduled.tensor_copy: not to a buffer of a block of the array's type")
        verify_mbarrier(self.name, self.mbarrier)
        verify_number(self.name, self.number, len(self.symbols))


@irdl_op_definition
class TensorStoreOp(PlainOp):
    """`destination[map(d, symbols)] = source[d]` where that is inside of the destination, before the kernel ends; the
    source is read until a `store_wait`. One thread begins it for the block, and no thread takes part: what threads
    wrote to the source is seen by it after a `fence` and a barrier. The source has a layout that boxes of an array are
    taken from."""

    name = "scheduled.tensor_store"
    source = operand_def(tile.RefType)
    destination = operand_def(tile.RefType)
    symbols = var_operand_def(IndexType)
    map = prop_def(AffineMapAttr)

    def verify_(self) -> None:
        source, target, map = tile.ref_type(self.source), tile.ref_type(self.destination), self.map.data
        wanted = (len(source.shape), len(self.symbols), len(target.shape))
        if (map.num_dims, map.num_symbols, len(map.results)) != wanted:
            raise VerifyException(f"scheduled.tensor_store: {map} does not map {source.shape} to {target.shape}")
        if source.dtype != target.dtype or source.space.data != BLOCK:
            raise VerifyException("scheduled.tensor_store: not from a buffer of a block of the array's type")


@irdl_op_definition
class StoreWaitOp(PlainOp):
    """The buffers of all tensor stores of the block have been read, for the thread that began them: what other threads
    write there comes after a barrier. A block does not end before."""

    name = "scheduled.store_wait"


@irdl_op_definition
class FenceOp(PlainOp):
    """Make this thread's writes and copies to shared memory visible to asynchronous MMAs and copies that come after a
    following barrier."""

    name = "scheduled.fence"


OPERATIONS = (MbarrierOp, ExpectOp, ArriveOp, AwaitOp, TensorCopyOp, TensorStoreOp, StoreWaitOp, FenceOp)


def verify_number(op: str, map: AffineMapAttr | None, symbols: int) -> None:
    if map is not None and (map.data.num_dims, map.data.num_symbols, len(map.data.results)) != (0, symbols, 1):
        raise VerifyException(f"{op}: {map.data} does not give one number of {symbols} symbols")


def verify_mbarrier(op: str, mbarrier: SSAValue) -> None:
    if not isinstance(mbarrier.owner, MbarrierOp):
        raise VerifyException(f"{op}: not of a scheduled.mbarrier")
