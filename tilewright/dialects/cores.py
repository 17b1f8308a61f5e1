"""Operations of the `scheduled` phase on a grid of cores, each with threads that move data and one that computes.

    program     the cores of a rectangle run the threads in it at once, each with queues and semaphores of its own
    queue       a circular buffer of pages in the memory of each core: reserve, push, wait, pop
    semaphore   a number in the memory of each core: set, increment, wait, multicast
    thread      what one thread of every core runs: a mover (`reader`, `writer`) or `compute`
    if          a choice by where a core is and which trip it is

    fetch  pad  put     pages of an array to a queue, what they have beyond the array, and from a queue to an array
    gather scatter      elements of an array to a queue, and from a queue to an array
    rearrange          elements of a queue to other places of another one
    multicast  send     pages of a queue to the same place of other cores, or of one
    barrier             what the thread began to read, or to write, has come
    generate            pages of numbers that depend on their place alone

    configure                 sets the state of a unit, which stays
    registers                 who has the tile registers: acquire, commit, wait, release
    copy binary matmul reduce pages of queues to tile registers
    map cast fold             tile registers to tile registers
    accumulate  pack          tile registers to pages of a queue

A page is one device tile of 32 x 32 elements, in faces of 16 x 16, in the format of its queue. An array of any rank is
stored in pages, too: its last two dims are padded to whole tiles and cut into them, the dims before count tiles; an
array of rank 1 is a row. The coordinates of a page are those of the dims before, then its row and its column of tiles.

What a compute operation reads is counted from the front of a queue, in pages that were waited for; what `pack` and what
movers write is counted from its back, in pages that were reserved. Maps take dims `d0...`, which an operation repeats
over its `extents` (or `count`), and symbols `s0...`, its index operands. What a unit's state must be for an operation
is `states_of`; nothing sets it but `configure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    FloatAttr,
    IndexType,
    IntegerAttr,
    StringAttr,
)
from xdsl.ir import Attribute, Block, Dialect, Operation, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    param_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException

from tilewright import ops
from tilewright.dialects import tile
from tilewright.dialects.base import PlainOp, decode
from tilewright.layout.catalogue.device_tiles import FORMATS, TILE, TileFormat
from tilewright.machines.core_grid import CoreGrid

READER, WRITER, COMPUTE = "reader", "writer", "compute"
ROLES = (READER, WRITER, COMPUTE)
READ, WRITE = "read", "write"
NONE, ROW, COLUMN, SCALAR = "none", "row", "column", "scalar"
BROADCASTS = (NONE, ROW, COLUMN, SCALAR)
ACQUIRE, COMMIT, WAIT, RELEASE = "acquire", "commit", "wait", "release"
# By what the vector unit reduces a register.
FOLDS = ("add", "maximum", "minimum")
STEPS = (ACQUIRE, COMMIT, WAIT, RELEASE)

# Units of the compute thread that have a state: formats of what the two inputs of the matrix unit are unpacked from,
# what the matrix unit does, what the vector unit does, the format that is packed to, and how much of a tile is packed.
UNPACK_A, UNPACK_B, MATRIX, VECTOR, PACK, EDGES = "unpack_a", "unpack_b", "matrix", "vector", "pack", "edges"
UNITS = (UNPACK_A, UNPACK_B, MATRIX, VECTOR, PACK, EDGES)


# ---- types ----------------------------------------------------------------------------------------------------------


@irdl_attr_definition
class QueueType(ParametrizedAttribute, TypeAttribute):
    """A circular buffer of so many pages, of one format."""

    name = "cores.queue"
    format: StringAttr = param_def()
    capacity: IntegerAttr = param_def()

    @property
    def pages(self) -> int:
        return int(self.capacity.value.data)

    @property
    def tile_format(self) -> TileFormat:
        return FORMATS[self.format.data]

    @property
    def bytes(self) -> int:
        return self.pages * self.tile_format.page_bytes

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.format)
            printer.print_string(f", {self.pages}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            format = StringAttr(parser.parse_str_literal())
            parser.parse_punctuation(",")
            return [format, IntegerAttr(parser.parse_integer(), IndexType())]


@irdl_attr_definition
class SemaphoreType(ParametrizedAttribute, TypeAttribute):
    """A number of 32 bits in the memory of each core, at the same address."""

    name = "cores.semaphore"


def queue_type(value: SSAValue) -> QueueType:
    if not isinstance(value.type, QueueType):
        raise VerifyException(f"expected a queue, got {value.type}")
    return value.type


def page_grid(shape: Sequence[int]) -> tuple[int, ...]:
    """How many pages an array of a shape has along each coordinate of a page."""
    padded = (*(1,) * (2 - len(shape)), *shape)
    return (*padded[:-2], *(-(-size // TILE) for size in padded[-2:]))


def same_pages(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether an array that is reshaped has the same pages in the same order: its rows are as long, and are cut into
    pages of the same rows."""
    first, second = ((*(1,) * (2 - len(shape)), *shape) for shape in (before, after))
    if first[-1] != second[-1]:
        return False
    return first[-2] == second[-2] or (first[-2] % TILE == 0 and second[-2] % TILE == 0)


# ---- structure ------------------------------------------------------------------------------------------------------


@irdl_op_definition
class EndOp(PlainOp):
    """Ends a region without results."""

    name = "cores.end"
    traits = traits_def(IsTerminator())


@irdl_op_definition
class ProgramOp(PlainOp):
    """Every core of a rectangle of `cores` (rows, columns) runs all threads; the arguments are its row and column. It
    ends when all threads of all cores have. Tile registers have 32 bits where they are `wide`, else 16. From
    `arrays_begin_bytes` of each core's memory on, where that is said, there are arrays: queues lie below."""

    name = "cores.program"
    cores = prop_def(DenseArrayBase)
    wide = opt_prop_def(BoolAttr)
    arrays_begin_bytes = opt_prop_def(IntegerAttr)
    body = region_def("single_block")

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = decode(self.cores)
        return rows, columns

    def memory_end_bytes(self, grid: CoreGrid) -> int:
        """Where the memory of a core ends that queues may take."""
        return grid.memory_end_bytes if self.arrays_begin_bytes is None else int(decode(self.arrays_begin_bytes))

    @property
    def threads(self) -> list[ThreadOp]:
        return [op for op in self.body.block.ops if isinstance(op, ThreadOp)]

    @property
    def queues(self) -> list[QueueOp]:
        return [op for op in self.body.block.ops if isinstance(op, QueueOp)]

    @property
    def semaphores(self) -> list[SemaphoreOp]:
        return [op for op in self.body.block.ops if isinstance(op, SemaphoreOp)]

    def verify_(self) -> None:
        if len(decode(self.cores)) != 2 or len(self.body.block.args) != 2 or min(decode(self.cores)) < 1:
            raise VerifyException("cores.program: needs rows and columns of cores, and an index for each")
        roles = [thread.role.data for thread in self.threads]
        if len({*roles}) != len(roles):
            raise VerifyException(f"cores.program: two threads have one role among {roles}")
        for op in self.body.block.ops:
            if not isinstance(op, QueueOp | SemaphoreOp | ThreadOp | EndOp):
                raise VerifyException(f"cores.program: {op.name} is outside of all threads")
        for queue in self.queues:
            _verify_ends(queue)


def _verify_ends(queue: QueueOp) -> None:
    """One thread fills a queue, one empties it."""
    for ends, what in (((ReserveOp, PushOp), "filled"), ((WaitOp, PopOp), "emptied")):
        users = {thread_of(use.operation) for use in queue.result.uses if isinstance(use.operation, ends)}
        if len(users) > 1:
            roles = " and ".join(sorted(user.role.data for user in users))
            raise VerifyException(f"cores.queue: one queue is {what} by {roles}")


def thread_of(op: Operation) -> ThreadOp:
    """The thread that an operation is in."""
    parent = op.parent_op()
    while not isinstance(parent, ThreadOp):
        if parent is None:
            raise VerifyException(f"{op.name}: in no thread")
        parent = parent.parent_op()
    return parent


@irdl_op_definition
class QueueOp(PlainOp):
    """A queue, which is empty. `address_bytes`: where it begins in the memory of each core, once that is planned."""

    name = "cores.queue"
    address_bytes = opt_prop_def(IntegerAttr)
    result = result_def(QueueType)

    def verify_(self) -> None:
        type = queue_type(self.result)
        if type.format.data not in FORMATS:
            raise VerifyException(f"cores.queue: no format `{type.format.data}`")
        if type.pages < 1:
            raise VerifyException("cores.queue: has no page")


@irdl_op_definition
class SemaphoreOp(PlainOp):
    """A semaphore with a number in the beginning."""

    name = "cores.semaphore"
    initial = prop_def(IntegerAttr)
    result = result_def(SemaphoreType)


@irdl_op_definition
class ThreadOp(PlainOp):
    """What one thread of every core runs. `noc`: by which of the two networks a mover moves data."""

    name = "cores.thread"
    role = prop_def(StringAttr)
    noc = opt_prop_def(IntegerAttr)
    body = region_def("single_block")

    @property
    def computes(self) -> bool:
        return self.role.data == COMPUTE

    def verify_(self) -> None:
        if self.role.data not in ROLES:
            raise VerifyException(f"cores.thread: no role `{self.role.data}`, only {', '.join(ROLES)}")
        if self.computes != (self.noc is None) or (self.noc is not None and self.noc.value.data not in (0, 1)):
            raise VerifyException(f"cores.thread: a {self.role.data} with the network {self.noc}")
        for op in self.body.walk():
            if isinstance(op, MoverOp if self.computes else ComputeOp):
                raise VerifyException(f"{op.name}: in the thread `{self.role.data}`")


class CoreOp(PlainOp):
    """An operation of a thread."""


class MoverOp(CoreOp):
    """An operation that only movers run."""


class ComputeOp(CoreOp):
    """An operation that only the thread that computes runs."""


def _verify_map(op: PlainOp, what: str, map: AffineMapAttr | None, dims: int, results: int) -> None:
    if map is None:
        return
    symbols = sum(isinstance(o.type, IndexType) for o in op.operands)
    if (map.data.num_dims, len(map.data.results)) != (dims, results) or map.data.num_symbols != symbols:
        raise VerifyException(
            f"{op.name}: {what} {map.data} is not from {dims} dims and {symbols} symbols to {results} numbers"
        )


@irdl_op_definition
class IfOp(CoreOp):
    """Run `then` where `map(symbols)` is 0, else `otherwise`."""

    name = "cores.if"
    symbols = var_operand_def(IndexType)
    map = prop_def(AffineMapAttr)
    then = region_def("single_block")
    otherwise = region_def("single_block")

    def verify_(self) -> None:
        _verify_map(self, "the condition", self.map, 0, 1)


# ---- queues and semaphores ------------------------------------------------------------------------------------------


class QueueStepOp(CoreOp):
    """A step of `pages` pages at one end of a queue."""

    queue = operand_def(QueueType)
    pages = prop_def(IntegerAttr)

    @property
    def count(self) -> int:
        return int(self.pages.value.data)

    def verify_(self) -> None:
        if not 1 <= self.count <= queue_type(self.queue).pages:
            raise VerifyException(f"{self.name}: {self.count} pages of a queue of {queue_type(self.queue).pages}")


@irdl_op_definition
class ReserveOp(QueueStepOp):
    """Go on when so many pages at the back are free."""

    name = "cores.reserve"


@irdl_op_definition
class PushOp(QueueStepOp):
    """The next pages at the back, which were reserved, are full."""

    name = "cores.push"


@irdl_op_definition
class WaitOp(QueueStepOp):
    """Go on when so many pages at the front are full."""

    name = "cores.wait"


@irdl_op_definition
class PopOp(QueueStepOp):
    """The next pages at the front, which were waited for, are free."""

    name = "cores.pop"


@irdl_op_definition
class SemaphoreSetOp(MoverOp):
    """The core's own number becomes `value`."""

    name = "cores.semaphore_set"
    semaphore = operand_def(SemaphoreType)
    value = prop_def(IntegerAttr)


@irdl_op_definition
class SemaphoreIncrementOp(MoverOp):
    """`value` is added to the number of core `core(symbols)`, some time later, after what the thread wrote before."""

    name = "cores.semaphore_increment"
    semaphore = operand_def(SemaphoreType)
    symbols = var_operand_def(IndexType)
    core = prop_def(AffineMapAttr)
    value = prop_def(IntegerAttr)

    def verify_(self) -> None:
        _verify_map(self, "the core", self.core, 0, 2)


@irdl_op_definition
class SemaphoreWaitOp(MoverOp):
    """Go on when the core's own number is `value`, exactly, or with `at_least` that or more."""

    name = "cores.semaphore_wait"
    semaphore = operand_def(SemaphoreType)
    value = prop_def(IntegerAttr)
    at_least = opt_prop_def(BoolAttr)


@irdl_op_definition
class SemaphoreMulticastOp(MoverOp):
    """The core's own number is written to that of all other cores of `rectangle(symbols)` = (first row, first column,
    last row, last column), some time later, after what the thread multicast before. The number is read when it is
    sent."""

    name = "cores.semaphore_multicast"
    semaphore = operand_def(SemaphoreType)
    symbols = var_operand_def(IndexType)
    rectangle = prop_def(AffineMapAttr)

    def verify_(self) -> None:
        _verify_map(self, "the rectangle", self.rectangle, 0, 4)


# ---- movers ---------------------------------------------------------------------------------------------------------


class PagesOp(MoverOp):
    """For each point of `extents`: the page of the array at `map`, and the page `at` of the queue. Pages that the array
    does not have are left out."""

    array = operand_def(tile.RefType)
    queue = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    extents = prop_def(DenseArrayBase)
    map = prop_def(AffineMapAttr)
    at = prop_def(AffineMapAttr)

    @property
    def shape(self) -> tuple[int, ...]:
        return decode(self.extents)

    def verify_(self) -> None:
        rank = len(self.shape)
        _verify_map(self, "the page", self.map, rank, len(page_grid(tile.ref_type(self.array).shape)))
        _verify_map(self, "the place", self.at, rank, 1)


@irdl_op_definition
class FetchOp(PagesOp):
    """Pages of an array are read to reserved pages of a queue: they have come behind a `barrier` of reads. Pages that
    the array does not have become zeros with `zeros`, else they are undefined."""

    name = "cores.fetch"
    zeros = opt_prop_def(BoolAttr)


@irdl_op_definition
class PutOp(PagesOp):
    """Pages that were waited for are written to an array: they have been read behind a `barrier` of writes."""

    name = "cores.put"


class ElementsOp(MoverOp):
    """For each lane `d` of a tile of `shape`: the element of the array at `map(d, symbols)`, and its place in pages of
    the queue from page `at` on. `rows` and `columns` are the dims of the tile along the rows and columns of device
    tiles, -1 for none; the others count pages, row-major, then rows of device tiles, then columns. The last symbols of
    the map are, lane by lane, the numbers in `indices`: queues with a tile of the same shape and places, of which pages
    were waited for."""

    array = operand_def(tile.RefType)
    queue = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    indices = var_operand_def(QueueType)
    shape = prop_def(DenseArrayBase)
    rows = prop_def(IntegerAttr)
    columns = prop_def(IntegerAttr)
    map = prop_def(AffineMapAttr)
    at = prop_def(AffineMapAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @property
    def lanes(self) -> tuple[int, ...]:
        return decode(self.shape)

    def verify_(self) -> None:
        map, ref = self.map.data, tile.ref_type(self.array)
        symbols = len(self.symbols) + len(self.indices)
        if (map.num_dims, map.num_symbols, len(map.results)) != (len(self.lanes), symbols, len(ref.shape)):
            raise VerifyException(f"{self.name}: {map} does not map a tile of {self.lanes} to {ref.shape}")
        _verify_map(self, "the place", self.at, 0, 1)


@irdl_op_definition
class GatherOp(ElementsOp):
    """Elements of an array are copied to reserved pages of a queue, and are there when the operation is done; lanes
    outside of the array, and what the pages hold beyond the tile, become `fill`, or are undefined without it."""

    name = "cores.gather"
    fill = opt_prop_def(FloatAttr | IntegerAttr)


@irdl_op_definition
class ScatterOp(ElementsOp):
    """Elements of pages that were waited for are written to an array, where they are inside of it: they have been read
    behind a `barrier` of writes."""

    name = "cores.scatter"


@irdl_op_definition
class RearrangeOp(MoverOp):
    """For each point of `extents`: the element of a tile in pages that were waited for, at `source_map`, is copied to
    its place in a tile in reserved pages, at `map`; it is there when the operation is done. `shape`, `rows` and
    `columns` say where the elements of a tile are in pages, as those of `gather` do, those with `source_` where the
    source's are."""

    name = "cores.rearrange"
    source = operand_def(QueueType)
    queue = operand_def(QueueType)
    extents = prop_def(DenseArrayBase)
    source_map = prop_def(AffineMapAttr)
    source_shape = prop_def(DenseArrayBase)
    source_rows = prop_def(IntegerAttr)
    source_columns = prop_def(IntegerAttr)
    map = prop_def(AffineMapAttr)
    shape = prop_def(DenseArrayBase)
    rows = prop_def(IntegerAttr)
    columns = prop_def(IntegerAttr)

    def verify_(self) -> None:
        rank = len(decode(self.extents))
        _verify_map(self, "the place", self.map, rank, len(decode(self.shape)))
        _verify_map(self, "the source's place", self.source_map, rank, len(decode(self.source_shape)))
        if queue_type(self.source).format != queue_type(self.queue).format:
            raise VerifyException("cores.rearrange: between queues of two formats")


class LinesOp(MoverOp):
    """Goes through the lines along `axis` of tiles in pages that were waited for; what it finds is in reserved pages
    when the operation is done. `shape`, `rows` and `columns` say where the elements of a tile are in pages, as those of
    `gather` do, for all of them alike. `scratch` are queues that only the operation uses."""

    sources = var_operand_def(QueueType)
    queues = var_operand_def(QueueType)
    scratch = var_operand_def(QueueType)
    axis = prop_def(IntegerAttr)
    shape = prop_def(DenseArrayBase)
    rows = prop_def(IntegerAttr)
    columns = prop_def(IntegerAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @property
    def lanes(self) -> tuple[int, ...]:
        return decode(self.shape)

    def verify_(self) -> None:
        if not 0 <= int(self.axis.value.data) < len(self.lanes):
            raise VerifyException(f"{self.name}: no axis {self.axis.value.data} in {self.lanes}")
        if [_format(q) for q in self.sources] != [_format(q) for q in self.queues]:
            raise VerifyException(f"{self.name}: between queues of different formats")


@irdl_op_definition
class ScanOp(LinesOp):
    """Each element is combined with all before it in its line by `fn` (add, multiply, maximum, minimum, of integers
    bitwise_and, bitwise_or, bitwise_xor), in f32 or i32, and rounded when it is stored; with `reverse`, with all behind
    it."""

    name = "cores.scan"
    fn = prop_def(StringAttr)
    reverse = prop_def(BoolAttr)

    def verify_(self) -> None:
        super().verify_()
        if len(self.sources) != 1 or self.scratch:
            raise VerifyException("cores.scan: one tile is scanned, at its place")


@irdl_op_definition
class SortOp(LinesOp):
    """The lines of the first tile in order, those that are equal as they came, and NaNs after all numbers; elements of
    the others go where those of the first one went. There is room for as many pages in each queue of `scratch`."""

    name = "cores.sort"
    descending = prop_def(BoolAttr)

    def verify_(self) -> None:
        super().verify_()
        if [_format(q) for q in self.scratch] != [_format(q) for q in self.queues]:
            raise VerifyException("cores.sort: other formats to sort in")


@irdl_op_definition
class MulticastOp(MoverOp):
    """`pages` pages from page `at` on, reserved by the core and by all others, are written to the same place of all
    other cores of `rectangle(symbols)` = (first row, first column, last row, last column), some time later; they have
    been read behind a `barrier` of writes."""

    name = "cores.multicast"
    queue = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    at = prop_def(AffineMapAttr)
    pages = prop_def(IntegerAttr)
    rectangle = prop_def(AffineMapAttr)

    def verify_(self) -> None:
        _verify_map(self, "the place", self.at, 0, 1)
        _verify_map(self, "the rectangle", self.rectangle, 0, 4)


@irdl_op_definition
class SendOp(MoverOp):
    """`pages` pages that were waited for, from page `at` of `source` on, are written to page `to` and those behind it
    of the queue `destination` of core `core(symbols)`, which it reserved; counted from the sender's own back of that
    queue. They have been read behind a `barrier` of writes."""

    name = "cores.send"
    source = operand_def(QueueType)
    destination = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    at = prop_def(AffineMapAttr)
    to = prop_def(AffineMapAttr)
    pages = prop_def(IntegerAttr)
    core = prop_def(AffineMapAttr)

    def verify_(self) -> None:
        _verify_map(self, "the place", self.at, 0, 1)
        _verify_map(self, "the place there", self.to, 0, 1)
        _verify_map(self, "the core", self.core, 0, 2)
        if queue_type(self.source).format != queue_type(self.destination).format:
            raise VerifyException("cores.send: between queues of two formats")


@irdl_op_definition
class PadOp(PagesOp):
    """Elements of pages that were fetched, and have come, and lie outside of the array become `fill`: for each point of
    `extents`, those of the page `at` that has in it what would be the page of the array at `map`. With `only`, which is
    `rows` or `columns`, that is so for rows below the array alone, or for columns to the right of it. The mover stores
    the elements, and does nothing for pages that lie inside."""

    name = "cores.pad"
    fill = prop_def(FloatAttr | IntegerAttr)
    only = opt_prop_def(StringAttr)

    @property
    def sides(self) -> tuple[bool, bool]:
        """Whether rows below, and columns to the right of the array are filled."""
        only = "" if self.only is None else self.only.data
        return only != "columns", only != "rows"

    def verify_(self) -> None:
        super().verify_()
        if self.only is not None and self.only.data not in ("rows", "columns"):
            raise VerifyException(f"cores.pad: only `{self.only.data}`, which is neither `rows` nor `columns`")


@irdl_op_definition
class BarrierOp(MoverOp):
    """What the thread began to `read` has come, or what it began to `write` has arrived."""

    name = "cores.barrier"
    of = prop_def(StringAttr)

    def verify_(self) -> None:
        if self.of.data not in (READ, WRITE):
            raise VerifyException(f"cores.barrier: of `{self.of.data}`, not of reads or writes")


@irdl_op_definition
class GenerateOp(MoverOp):
    """Numbers are stored to `count` reserved pages: at (row `d0`, column `d1`) of page `d2` what `map` gives, or with
    `choice` = (limit, below, otherwise) one of two numbers, by whether it is below the limit. With `face_rows` only the
    first row of each face is stored and all else is 0, which is the form of a scaler of `reduce`."""

    name = "cores.generate"
    queue = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    map = prop_def(AffineMapAttr)
    count = prop_def(IntegerAttr)
    choice = opt_prop_def(ArrayAttr[FloatAttr])
    face_rows = opt_prop_def(BoolAttr)

    def verify_(self) -> None:
        _verify_map(self, "the number", self.map, 3, 1)
        if self.choice is not None and len(self.choice.data) != 3:
            raise VerifyException("cores.generate: a choice is a limit and two numbers")


# ---- compute --------------------------------------------------------------------------------------------------------


@irdl_op_definition
class ConfigureOp(ComputeOp):
    """The unit's state becomes `state` and stays so; `queues` are those whose formats or places it is about."""

    name = "cores.configure"
    queues = var_operand_def(QueueType)
    unit = prop_def(StringAttr)
    state = prop_def(StringAttr)

    def verify_(self) -> None:
        if self.unit.data not in UNITS:
            raise VerifyException(f"cores.configure: no unit `{self.unit.data}`")


@irdl_op_definition
class RegistersOp(ComputeOp):
    """A step of the protocol by which the tile registers pass from what computes to what packs: `acquire` (what
    computes goes on when it has a half of them, whose contents are undefined), `commit` (it gives them up), `wait`
    (what packs goes on when it has been given them), `release` (it gives them back)."""

    name = "cores.registers"
    step = prop_def(StringAttr)

    def verify_(self) -> None:
        if self.step.data not in STEPS:
            raise VerifyException(f"cores.registers: no step `{self.step.data}`")


class RegisterOp(ComputeOp):
    """An operation that writes `count` tile registers from `slot` on."""

    slot = prop_def(IntegerAttr)
    count = prop_def(IntegerAttr)

    @property
    def slots(self) -> range:
        first = int(self.slot.value.data)
        return range(first, first + int(self.count.value.data))


@irdl_op_definition
class CopyOp(RegisterOp):
    """Register `slot + d0` becomes page `at(d0)`, whose first row, first column or first element is repeated by
    `broadcast`, or which is transposed. Formats of 32 bits go to the registers as they are, without the inputs of the
    matrix unit, which are narrower."""

    name = "cores.copy"
    queue = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    at = prop_def(AffineMapAttr)
    broadcast = prop_def(StringAttr)
    transpose = opt_prop_def(BoolAttr)

    def verify_(self) -> None:
        _verify_map(self, "the page", self.at, 1, 1)
        if self.broadcast.data not in BROADCASTS:
            raise VerifyException(f"cores.copy: no broadcast `{self.broadcast.data}`")


@irdl_op_definition
class BinaryOp(RegisterOp):
    """Register `slot + d0` becomes `fn` (add, subtract, multiply) of page `left_at(d0)` and page `right_at(d0)`, whose
    first row, column or element is repeated by `broadcast`, by the matrix unit; with `accumulates` it is added."""

    name = "cores.binary"
    left = operand_def(QueueType)
    right = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    fn = prop_def(StringAttr)
    left_at = prop_def(AffineMapAttr)
    right_at = prop_def(AffineMapAttr)
    broadcast = prop_def(StringAttr)
    accumulates = opt_prop_def(BoolAttr)

    def verify_(self) -> None:
        _verify_map(self, "the left page", self.left_at, 1, 1)
        _verify_map(self, "the right page", self.right_at, 1, 1)
        if self.fn.data not in ("add", "subtract", "multiply") or self.broadcast.data not in BROADCASTS:
            raise VerifyException(f"cores.binary: `{self.fn.data}` with the broadcast `{self.broadcast.data}`")


@irdl_op_definition
class MatmulOp(RegisterOp):
    """The product of `rows` x `depth` and `depth` x `columns` pages is added to the registers from `slot` on,
    row-major; `count` is rows * columns. Row r, step k of the left operand is page `left_at + r * left_stride + k`,
    step k, column c of the right one page `right_at + k * right_stride + c`, each transposed with `transpose`."""

    name = "cores.matmul"
    left = operand_def(QueueType)
    right = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    left_at = prop_def(AffineMapAttr)
    right_at = prop_def(AffineMapAttr)
    block = prop_def(DenseArrayBase)
    left_stride = prop_def(IntegerAttr)
    right_stride = prop_def(IntegerAttr)
    transpose = opt_prop_def(BoolAttr)

    @property
    def block_shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth, in pages."""
        rows, columns, depth = decode(self.block)
        return rows, columns, depth

    def verify_(self) -> None:
        _verify_map(self, "the left page", self.left_at, 0, 1)
        _verify_map(self, "the right page", self.right_at, 0, 1)
        if prod(self.block_shape[:2]) != len(self.slots):
            raise VerifyException(f"cores.matmul: a block of {self.block_shape[:2]} in {len(self.slots)} registers")


@irdl_op_definition
class ReduceOp(RegisterOp):
    """Pages `at(d0)` for d0 below `pages` are reduced by `fn` (add, maximum) along their rows (`row`: the results are
    in the first column), along their columns (`column`: in the first row) or both (`scalar`: in the first element),
    and combined with the register; a sum is multiplied by the scaler in page 0 of `scaler`."""

    name = "cores.reduce"
    queue = operand_def(QueueType)
    scaler = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    fn = prop_def(StringAttr)
    along = prop_def(StringAttr)
    at = prop_def(AffineMapAttr)
    pages = prop_def(IntegerAttr)

    def verify_(self) -> None:
        _verify_map(self, "the page", self.at, 1, 1)
        if self.fn.data not in ("add", "maximum") or self.along.data not in (ROW, COLUMN, SCALAR):
            raise VerifyException(f"cores.reduce: `{self.fn.data}` along `{self.along.data}`")
        if len(self.slots) != 1:
            raise VerifyException("cores.reduce: to more than one register")


@irdl_op_definition
class MapOp(RegisterOp):
    """Register `slot + i` becomes `fn`, of the table of scalar functions or `fill`, of its operands, by the vector
    unit, in the type `dtype`: an operand n that is not negative is register n + i, else it is number -1 - n of
    `numbers`. `fill` is the operand itself. `dtype` is f32, i32 or u32. Comparisons and tests give 0 or 1 of `dtype`; a
    `select` chooses by whether its first operand, of `dtype` too, is not 0."""

    name = "cores.map"
    fn = prop_def(StringAttr)
    dtype = prop_def(StringAttr)
    arguments = prop_def(DenseArrayBase)
    numbers = prop_def(ArrayAttr[FloatAttr])

    @property
    def operand_numbers(self) -> tuple[int, ...]:
        return decode(self.arguments)

    def verify_(self) -> None:
        function, given = ops.FUNCTIONS.get(self.fn.data), len(self.operand_numbers)
        if given != (1 if self.fn.data == "fill" else 0 if function is None else function.arity):
            raise VerifyException(f"cores.map: `{self.fn.data}` of {given} operands")
        if any(-1 - n >= len(self.numbers.data) for n in self.operand_numbers if n < 0):
            raise VerifyException("cores.map: an operand is none of its numbers")


@irdl_op_definition
class CastOp(RegisterOp):
    """Registers from `slot` on become those from `source` on, converted between two of the types f32, i32, u32, or
    rounded to bf16 or f16, which stay f32. With `bits` their bits stay, and are taken for the other type's."""

    name = "cores.cast"
    source = prop_def(IntegerAttr)
    from_type = prop_def(StringAttr)
    to_type = prop_def(StringAttr)
    bits = opt_prop_def(BoolAttr)

    def verify_(self) -> None:
        types = self.from_type.data, self.to_type.data
        if self.bits is not None and not {*types} <= {"f32", "i32", "u32"}:
            raise VerifyException(f"cores.cast: the bits of {types[0]} are not taken for {types[1]}")


@irdl_op_definition
class FoldOp(RegisterOp):
    """Each register from `slot` on is reduced by `fn` (add, maximum, minimum) in the type `dtype`, without a loss,
    along its rows (`row`: the results are in its first column) or its columns (`column`: in its first row), by the
    vector unit. What else it holds then is undefined."""

    name = "cores.fold"
    fn = prop_def(StringAttr)
    along = prop_def(StringAttr)
    dtype = prop_def(StringAttr)

    def verify_(self) -> None:
        if self.fn.data not in FOLDS or self.along.data not in (ROW, COLUMN):
            raise VerifyException(f"cores.fold: `{self.fn.data}` along `{self.along.data}`")


@irdl_op_definition
class AccumulateOp(ComputeOp):
    """From now on what is packed is added to what the page holds where `map(symbols)` is not 0, else it replaces it."""

    name = "cores.accumulate"
    symbols = var_operand_def(IndexType)
    map = prop_def(AffineMapAttr)

    def verify_(self) -> None:
        _verify_map(self, "the condition", self.map, 0, 1)


@irdl_op_definition
class PackOp(ComputeOp):
    """Page `at(d0)` of the reserved ones becomes register `slot + d0`, for d0 below `count`."""

    name = "cores.pack"
    queue = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    slot = prop_def(IntegerAttr)
    count = prop_def(IntegerAttr)
    at = prop_def(AffineMapAttr)

    @property
    def slots(self) -> range:
        first = int(self.slot.value.data)
        return range(first, first + int(self.count.value.data))

    def verify_(self) -> None:
        _verify_map(self, "the page", self.at, 1, 1)


def states_of(op: Operation) -> dict[str, str]:
    """The states that units must have for an operation to do what it says."""
    match op:
        case CopyOp():
            form = f"copy {op.broadcast.data}" + (" transposed" if op.transpose is not None else "")
            return {UNPACK_A: _format(op.queue), MATRIX: form}
        case BinaryOp():
            form = f"{op.fn.data} {op.broadcast.data}" + (" accumulating" if op.accumulates is not None else "")
            return {UNPACK_A: _format(op.left), UNPACK_B: _format(op.right), MATRIX: form}
        case MatmulOp():
            form = f"matmul {'x'.join(map(str, op.block_shape))} {decode(op.left_stride)}"
            form += " transposed" if op.transpose is not None else ""
            # The right operand goes to the first input of the matrix unit.
            return {UNPACK_A: _format(op.right), UNPACK_B: _format(op.left), MATRIX: form}
        case ReduceOp():
            form = f"reduce {op.fn.data} {op.along.data}"
            return {UNPACK_A: _format(op.queue), UNPACK_B: _format(op.scaler), MATRIX: form}
        case MapOp():
            return {VECTOR: op.fn.data}
        case FoldOp():
            return {VECTOR: f"fold {op.fn.data} {op.along.data} {op.dtype.data}"}
        case CastOp():
            return {VECTOR: "cast bits" if op.bits is not None else f"cast {op.from_type.data} {op.to_type.data}"}
        case PackOp():
            return {PACK: _format(op.queue)}
        case _:
            return {}


def _format(queue: SSAValue) -> str:
    return queue_type(queue).format.data


Cores = Dialect(
    "cores",
    [
        *(ProgramOp, QueueOp, SemaphoreOp, ThreadOp, EndOp, IfOp),
        *(ReserveOp, PushOp, WaitOp, PopOp),
        *(SemaphoreSetOp, SemaphoreIncrementOp, SemaphoreWaitOp, SemaphoreMulticastOp),
        *(FetchOp, PadOp, PutOp, GatherOp, ScatterOp, RearrangeOp, ScanOp, SortOp, GenerateOp),
        *(MulticastOp, SendOp, BarrierOp),
        *(ConfigureOp, RegistersOp, CopyOp, BinaryOp, MatmulOp, ReduceOp, MapOp, CastOp, FoldOp, AccumulateOp, PackOp),
    ],
    [QueueType, SemaphoreType],
)


def region_of(arguments: int = 0) -> Region:
    """A region of one block, with so many indices."""
    return Region(Block(arg_types=[IndexType() for _ in range(arguments)]))
