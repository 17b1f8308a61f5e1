"""Operations of the `scheduled` dialect on tensor memory: the memory of a block that MMAs add up in by themselves.

    tensor_alloc   columns of it, for a tile that lies there, or for several
    tensor_stage   one tile of several
    tensor_part    some of the columns, as a tile of their own
    tensor_free    gives them back
    tensor_mma     a product that one thread begins, added to a tile there
    mma_commit     one arrival at a barrier in memory when the products that a thread began have been done
    tensor_load    a tile from there to registers
    tensor_put     a tile of registers to there
    tensor_fence   operations on tensor memory, in the order of what threads tell each other

The machine files cite the instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects import tile
from tilewright.dialects.base import PlainOp, array_type
from tilewright.dialects.fields import Result, attribute, operand, operands, operation, result
from tilewright.dialects.scheduled.asynchronous import verify_mbarrier, verify_number
from tilewright.layout import Layout
from tilewright.layout.dims import static

# The space of tiles there, and the axes of their layouts: lanes, and columns of 32 bits.
TENSOR, ROW, COLUMN = "tensor", "tmem.row", "tmem.col"
LANES, COLUMNS, LEAST_COLUMNS = 128, 512, 32
BEFORE, AFTER = "before", "after"
_WORD_BYTES = 4


@lru_cache(maxsize=1024)
def _parsed(layout: str) -> Layout:
    return Layout.parse(layout)


@operation
class TensorAllocOp(PlainOp):
    """`columns` columns of tensor memory, a power of two from 32 to 512, that hold a tile with undefined contents, or,
    with `stages`, as many of its type next to each other, of which `scheduled.tensor_stage` gives one. The first warp
    asks for them, and waits while other blocks have them; others use them after a barrier of all roles. A block asks
    once. `offset_bytes` is where in the memory of the block it is declared which columns they are."""

    name = "scheduled.tensor_alloc"
    columns: int = attribute()
    stages: int | None = attribute(default=None)
    offset_bytes: int | None = attribute(default=None)
    result: Result = result(tile.RefType)

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return 1 if self.stages is None else self.stages

    @property
    def tile_columns(self) -> int:
        """The columns of each."""
        return self.columns // self.count

    @property
    def bytes(self) -> int:
        """Bytes of shared memory that hold the address."""
        return _WORD_BYTES

    def verify_(self) -> None:
        type, columns = tile.ref_type(self.result), self.columns
        if columns & (columns - 1) or not LEAST_COLUMNS <= columns <= COLUMNS:
            raise VerifyException(f"scheduled.tensor_alloc: {columns} columns are no power of two from 32 to 512")
        if type.space.data != TENSOR or type.dtype.itemsize != _WORD_BYTES or not type.layout.data:
            raise VerifyException("scheduled.tensor_alloc: not of words of 32 bits with a layout in tensor memory")
        if self.stages is not None and (self.count < 2 or columns % self.count):
            raise VerifyException(f"scheduled.tensor_alloc: {columns} columns are not those of {self.count} tiles")
        layout = _parsed(type.layout.data)
        if set(layout.axes) != {ROW, COLUMN} or static(layout.span(ROW)) > LANES:
            raise VerifyException(f"scheduled.tensor_alloc: {layout} is no layout of lanes and columns")
        if static(layout.span(COLUMN)) > self.tile_columns:
            raise VerifyException(f"scheduled.tensor_alloc: {layout} does not fit {self.tile_columns} columns")
        users = (use.operation for use in self.result.uses)
        if self.stages is not None and any(not isinstance(user, TensorStageOp | TensorFreeOp) for user in users):
            raise VerifyException("scheduled.tensor_alloc: several tiles are used otherwise than by their number")


@operation
class TensorStageOp(PlainOp):
    """The tile that is number `map(symbols)` of several."""

    name = "scheduled.tensor_stage"
    tensor: SSAValue = operand(tile.RefType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    map: AffineMap = attribute()
    result: Result = result(tile.RefType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        verify_number(self.name, self.map, len(self.symbols))
        if not isinstance(self.tensor.owner, TensorAllocOp) or self.tensor.owner.stages is None:
            raise VerifyException("scheduled.tensor_stage: not of several tiles in tensor memory")
        if self.result.type != self.tensor.type:
            raise VerifyException("scheduled.tensor_stage: the type is not that of each tile")


@operation
class TensorPartOp(PlainOp):
    """The columns from `column` on, of those of one tile, that hold another one. Parts do not overlap."""

    name = "scheduled.tensor_part"
    tensor: SSAValue = operand(tile.RefType)
    column: int = attribute()
    result: Result = result(tile.RefType)
    traits = traits_def(Pure())

    @property
    def columns(self) -> range:
        """The columns of the whole tile that the part has."""
        first = self.column
        return range(first, first + static(_parsed(tile.ref_type(self.result).layout.data).span(COLUMN)))

    def verify_(self) -> None:
        whole, type = self.tensor.owner, tile.ref_type(self.result)
        if not isinstance(whole, TensorAllocOp) or whole.stages is not None:
            raise VerifyException("scheduled.tensor_part: not of one tile in tensor memory")
        if type.space.data != TENSOR or type.dtype != tile.ref_type(self.tensor).dtype or not type.layout.data:
            raise VerifyException("scheduled.tensor_part: not of the type of its whole, with a layout in tensor memory")
        others = (use.operation for use in self.tensor.uses if use.operation is not self)
        taken = [op.columns for op in others if isinstance(op, TensorPartOp)]
        if self.columns.stop > whole.tile_columns or any(_overlap(self.columns, each) for each in taken):
            raise VerifyException(f"scheduled.tensor_part: columns {self.columns} are not there, or another part's")


def _overlap(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


@operation
class TensorFreeOp(PlainOp):
    """Gives back the columns of a tile, whose MMAs have been done and which no warp uses any longer. A barrier of the
    block has to be between, and after the last use a `tensor_fence` of those that used it."""

    name = "scheduled.tensor_free"
    tensor: SSAValue = operand(tile.RefType)

    def verify_(self) -> None:
        _verify_tensor(self.name, self.tensor)


@operation
class TensorMmaOp(PlainOp):
    """`accumulator + left @ right`, or without the accumulator unless `0 < adds(symbols)`, some time before an
    `mma_commit` after it arrives: until then the operands in buffers are not written, and what is in tensor memory is
    undefined. One thread begins it; MMAs that it begins for one accumulator follow each other. Operands of tf32 are
    multiplied as they are in their buffer. Of several warps the first has it begun."""

    name = "scheduled.tensor_mma"
    left: SSAValue = operand(tile.RefType)
    right: SSAValue = operand(tile.RefType)
    accumulator: SSAValue = operand(tile.RefType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    atom: str = attribute()
    adds: AffineMap = attribute()

    def verify_(self) -> None:
        _verify_tensor(self.name, self.accumulator)
        left, right, total = (
            array_type(tile.ref_type(each).array) for each in (self.left, self.right, self.accumulator)
        )
        if (left.shape[0], right.shape[1]) != total.shape or left.shape[1] != right.shape[0]:
            raise VerifyException(f"scheduled.tensor_mma: {left} times {right} does not fit {total}")
        if any(tile.ref_type(each).space.data == TENSOR for each in (self.left, self.right)):
            raise VerifyException("scheduled.tensor_mma: an operand is not in a buffer of the block")
        verify_number(self.name, self.adds, len(self.symbols))


@operation
class MmaCommitOp(PlainOp):
    """One arrival at barrier `number(symbols)` upon completion of all MMAs that this thread issued before. A waiter for
    the phase knows of these MMAs, and of no other effects of the thread. Of several warps the first has issued them,
    and commits. With `everywhere`, at the barrier of that index in each block of the cluster."""

    name = "scheduled.mma_commit"
    mbarrier: SSAValue = operand(tile.RefType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    number: AffineMap = attribute()
    everywhere: bool = attribute(default=False)

    def verify_(self) -> None:
        verify_number(self.name, self.number, len(self.symbols))
        verify_mbarrier(self.name, self.mbarrier)


@operation
class TensorLoadOp(PlainOp):
    """A tile of tensor memory in registers, waited for. Of each four warps the first holds lanes 0 to 31, and so on:
    no warp reaches others, so a lane of the layout is one of tensor memory."""

    name = "scheduled.tensor_load"
    source: SSAValue = operand(tile.RefType)
    result: Result = result()

    def verify_(self) -> None:
        _verify_tensor(self.name, self.source)
        if array_type(tile.ref_type(self.source).array) != array_type(self.result):
            raise VerifyException("scheduled.tensor_load: the result is not of the type of the tile")


@operation
class TensorPutOp(PlainOp):
    """A tile of registers, in a layout that `tensor_load` may have, to tensor memory, and waited for: MMAs of other
    threads see it after a `tensor_fence` and a barrier."""

    name = "scheduled.tensor_put"
    value: SSAValue = operand()
    destination: SSAValue = operand(tile.RefType)

    def verify_(self) -> None:
        _verify_tensor(self.name, self.destination)
        if array_type(tile.ref_type(self.destination).array) != array_type(self.value):
            raise VerifyException("scheduled.tensor_put: the value is not of the type of the tile")


@operation
class TensorFenceOp(PlainOp):
    """`before`: what this thread did in tensor memory comes before what it signals to others from now on. `after`: what
    it was notified comes before what it does in tensor memory from now on."""

    name = "scheduled.tensor_fence"
    side: str = attribute()

    def verify_(self) -> None:
        if self.side not in (BEFORE, AFTER):
            raise VerifyException(f"scheduled.tensor_fence: neither before nor after, but {self.side}")


OPERATIONS = (
    *(TensorAllocOp, TensorStageOp, TensorPartOp, TensorFreeOp, TensorMmaOp, MmaCommitOp),
    *(TensorLoadOp, TensorPutOp, TensorFenceOp),
)


def loads_of(tensor: SSAValue) -> Iterator[TensorLoadOp]:
    """The loads of a tile in tensor memory; of several, those of each."""
    owner = tensor.owner
    for use in (owner.tensor if isinstance(owner, TensorStageOp) else tensor).uses:
        if isinstance(use.operation, TensorLoadOp):
            yield use.operation
        elif isinstance(use.operation, TensorStageOp):
            inner = (each.operation for each in use.operation.result.uses)
            yield from (each for each in inner if isinstance(each, TensorLoadOp))


def _verify_tensor(op: str, tensor: SSAValue) -> None:
    if not isinstance(tensor.owner, TensorAllocOp | TensorStageOp | TensorPartOp):
        raise VerifyException(f"{op}: not of a scheduled.tensor_alloc")
