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

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.utils.exceptions import VerifyException

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import PlainOp
from tilewright.dialects.fields import Result, attribute, operand, operands, operation, result

# Where the machine brings tiles, and where barriers are: memory that the threads of a block share.
BLOCK = "block"


@operation
class MbarrierOp(PlainOp):
    """`count` barriers in the memory of a block, each in its phase 0. A phase completes when `arrivals` arrivals and
    all bytes that were expected have come; then the next one begins. Before another warp uses one, there is a barrier
    of `EVERY_ROLE`."""

    name = "scheduled.mbarrier"
    count: int = attribute()
    arrivals: int = attribute()
    offset_bytes: int | None = attribute(default=None)
    result: Result = result(tile.RefType)

    @property
    def bytes(self) -> int:
        return 8 * self.count

    def verify_(self) -> None:
        type = tile.ref_type(self.result)
        count = self.count
        if count < 1 or self.arrivals < 1:
            raise VerifyException("scheduled.mbarrier: fewer than one barrier, or than one arrival")
        if type.space.data != BLOCK or type.shape != (count,) or type.dtype != dtypes.i64:
            raise VerifyException(f"scheduled.mbarrier: {count} barriers are {count} i64 of a block")


@operation
class ArriveOp(PlainOp):
    """One arrival at barrier `number(symbols)` by each warpgroup that runs it, or by a warp where there is no group of
    four. Earlier writes of its threads are visible to waiters of the phase. None unless `0 <= trip(symbols)`. With
    `everywhere`, at the barrier of that index in each block of the cluster."""

    name = "scheduled.arrive"
    mbarrier: SSAValue = operand(tile.RefType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    number: AffineMap = attribute()
    trip: AffineMap | None = attribute(default=None)
    everywhere: bool = attribute(default=False)

    def verify_(self) -> None:
        verify_mbarrier(self.name, self.mbarrier)
        verify_number(self.name, self.number, len(self.symbols))
        verify_number(self.name, self.trip, len(self.symbols))


@operation
class ExpectOp(PlainOp):
    """One arrival at barrier `number(symbols)`, whose phase then waits for `bytes` more, too. One thread runs it."""

    name = "scheduled.expect"
    mbarrier: SSAValue = operand(tile.RefType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    number: AffineMap = attribute()
    bytes: int = attribute()

    def verify_(self) -> None:
        verify_mbarrier(self.name, self.mbarrier)
        verify_number(self.name, self.number, len(self.symbols))
        if self.bytes < 1:
            raise VerifyException("scheduled.expect: fewer than one byte")


@operation
class AwaitOp(PlainOp):
    """Wait until phase `phase(symbols)` of barrier `number(symbols)` has completed; at once for phases below 0.
    Operations before its arrivals, and the bytes that it counts, are visible. The machine compares the last bit of the
    phase: the barrier must not be two phases further."""

    name = "scheduled.await"
    mbarrier: SSAValue = operand(tile.RefType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    number: AffineMap = attribute()
    phase: AffineMap = attribute()

    def verify_(self) -> None:
        verify_mbarrier(self.name, self.mbarrier)
        verify_number(self.name, self.number, len(self.symbols))
        verify_number(self.name, self.phase, len(self.symbols))


@operation
class TensorCopyOp(PlainOp):
    """`destination[d] = source[map(d, symbols)]`, zero outside of the source, some time before the phase of barrier
    `number(symbols)` completes that now waits for its bytes: all those of the destination. One thread begins it, and no
    thread takes part. The destination has a layout that boxes of an array are copied to; to one of tf32 f32 is rounded.

    With `multicast` = (count, dim), of the `count` equal parts of the window along `dim` it is the part of the block's
    rank that is copied, to its position in that buffer of each of the `count` blocks of the cluster; there it completes
    the phase of that barrier, which may come to wait for its bytes later."""

    name = "scheduled.tensor_copy"
    source: SSAValue = operand(tile.RefType)
    destination: SSAValue = operand(tile.RefType)
    mbarrier: SSAValue = operand(tile.RefType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    map: AffineMap = attribute()
    number: AffineMap = attribute()
    multicast: tuple[int, int] | None = attribute(default=None)

    @property
    def parts(self) -> tuple[int, int] | None:
        """How many blocks copy a part each, and along which dim; None where one copies all."""
        return None if self.multicast is None else self.multicast

    def verify_(self) -> None:
        source, target, map = tile.ref_type(self.source), tile.ref_type(self.destination), self.map
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


@operation
class TensorStoreOp(PlainOp):
    """`destination[map(d, symbols)] = source[d]` where that is inside of the destination, before the kernel ends; the
    source is read until a `store_wait`. One thread begins it for the block, and no thread takes part: what threads
    wrote to the source is seen by it after a `fence` and a barrier. The source has a layout that boxes of an array are
    taken from."""

    name = "scheduled.tensor_store"
    source: SSAValue = operand(tile.RefType)
    destination: SSAValue = operand(tile.RefType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    map: AffineMap = attribute()

    def verify_(self) -> None:
        source, target, map = tile.ref_type(self.source), tile.ref_type(self.destination), self.map
        wanted = (len(source.shape), len(self.symbols), len(target.shape))
        if (map.num_dims, map.num_symbols, len(map.results)) != wanted:
            raise VerifyException(f"scheduled.tensor_store: {map} does not map {source.shape} to {target.shape}")
        if source.dtype != target.dtype or source.space.data != BLOCK:
            raise VerifyException("scheduled.tensor_store: not from a buffer of a block of the array's type")


@operation
class StoreWaitOp(PlainOp):
    """The buffers of all tensor stores of the block have been read, for the thread that began them: what other threads
    write there comes after a barrier. A block does not end before."""

    name = "scheduled.store_wait"


@operation
class FenceOp(PlainOp):
    """Make this thread's writes and copies to shared memory visible to asynchronous MMAs and copies that come after a
    following barrier."""

    name = "scheduled.fence"


OPERATIONS = (MbarrierOp, ExpectOp, ArriveOp, AwaitOp, TensorCopyOp, TensorStoreOp, StoreWaitOp, FenceOp)


def verify_number(op: str, map: AffineMap | None, symbols: int) -> None:
    if map is not None and (map.num_dims, map.num_symbols, len(map.results)) != (0, symbols, 1):
        raise VerifyException(f"{op}: {map} does not give one number of {symbols} symbols")


def verify_mbarrier(op: str, mbarrier: SSAValue) -> None:
    if not isinstance(mbarrier.owner, MbarrierOp):
        raise VerifyException(f"{op}: not of a scheduled.mbarrier")
