"""Structure of core programs: threads, queues and semaphores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import (
    IndexType,
    IntegerAttr,
    StringAttr,
)
from xdsl.ir import Attribute, Block, Operation, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    irdl_attr_definition,
    param_def,
    traits_def,
)
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects import tile
from tilewright.dialects.base import PlainOp
from tilewright.dialects.fields import Result, attribute, operand, operands, operation, region, result
from tilewright.errors import LayoutError
from tilewright.layout import Layout
from tilewright.layout.catalogue.device_tiles import FORMATS, TILE, TileFormat
from tilewright.layout.catalogue.placements import Pages
from tilewright.layout.dims import static
from tilewright.machines.core_grid import CoreGrid

if TYPE_CHECKING:
    from xdsl.parser import AttrParser
    from xdsl.printer import Printer

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


@lru_cache(maxsize=1024)
def _tile_pages(text: str) -> int:
    """Pages of a tile of a layout.

    Raises:
        VerifyException: it is no layout of a tile in pages.
    """
    try:
        layout = Layout.parse(text)
    except LayoutError as error:
        raise VerifyException(f"cores.queue: {error.message}") from error
    is_paged = layout.is_static and {*layout.axes} <= {"page", "mem"}
    if not is_paged or static(layout.span("mem")) > TILE * TILE:
        raise VerifyException(f"cores.queue: {text} is no layout of a tile in pages")
    return static(layout.span("page"))


@irdl_attr_definition
class QueueType(ParametrizedAttribute, TypeAttribute):
    """A circular buffer of so many pages, of one format. `layout`: that of each tile in it, on the axes `page` and
    `mem`; empty where tiles of several layouts pass through the queue, or none is declared."""

    name = "cores.queue"
    format: StringAttr = param_def()
    capacity: IntegerAttr = param_def()
    layout: StringAttr = param_def()

    @property
    def pages(self) -> int:
        return int(self.capacity.value.data)

    @property
    def tile_pages(self) -> int:
        """Pages of a tile of the layout; 1 where there is none."""
        return _tile_pages(self.layout.data) if self.layout.data else 1

    def resized(self, pages: int) -> QueueType:
        """The type with another number of pages."""
        return queue(self.format.data, pages, self.layout.data)

    @property
    def without_layout(self) -> QueueType:
        """The type of a queue through which tiles of several layouts pass."""
        return queue(self.format.data, self.pages)

    @property
    def tile_format(self) -> TileFormat:
        return FORMATS[self.format.data]

    @property
    def bytes(self) -> int:
        return self.pages * self.tile_format.page_bytes

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            # Neither has characters to escape, for which the printer would look one by one.
            layout = f', "{self.layout.data}"' if self.layout.data else ""
            printer.print_string(f'"{self.format.data}", {self.pages}{layout}')

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            format = StringAttr(parser.parse_str_literal())
            parser.parse_punctuation(",")
            capacity = IntegerAttr(parser.parse_integer(), IndexType())
            layout = parser.parse_str_literal() if parser.parse_optional_punctuation(",") else ""
            return [format, capacity, StringAttr(layout)]


@irdl_attr_definition
class SemaphoreType(ParametrizedAttribute, TypeAttribute):
    """A number of 32 bits in the memory of each core, at the same address."""

    name = "cores.semaphore"


def queue(format: str, pages: int, layout: str = "") -> QueueType:
    """The type of a queue of so many pages, of tiles of a layout."""
    return QueueType(StringAttr(format), IntegerAttr(pages, IndexType()), StringAttr(layout))


def queue_type(value: SSAValue) -> QueueType:
    if not isinstance(value.type, QueueType):
        raise VerifyException(f"expected a queue, got {value.type}")
    return value.type


def page_grid(shape: Sequence[int]) -> tuple[int, ...]:
    """How many pages an array of a shape has along each coordinate of a page."""
    padded = (*(1,) * (2 - len(shape)), *shape)
    return (*padded[:-2], *(-(-size // TILE) for size in padded[-2:]))


def stored_pages(array: SSAValue) -> Pages:
    """How the pages of an array are stored."""
    return tile.ref_type(array).pages.data


def is_by_rows(array: SSAValue) -> bool:
    """Whether the pages of an array are its rows."""
    return stored_pages(array).is_row_major


# ---- structure ------------------------------------------------------------------------------------------------------


@operation
class EndOp(PlainOp):
    """Ends a region without results."""

    name = "cores.end"
    traits = traits_def(IsTerminator())


@operation
class ProgramOp(PlainOp):
    """Every core of a rectangle of `cores` (rows, columns) runs all threads; the arguments are its row and column. It
    ends when all threads of all cores have. Tile registers have 32 bits where they are `wide`, else 16. From
    `arrays_begin_bytes` of each core's memory on, where that is declared, there are arrays: queues are below."""

    name = "cores.program"
    cores: tuple[int, ...] = attribute()
    wide: bool = attribute(default=False)
    arrays_begin_bytes: int | None = attribute(default=None)
    body: Region = region()

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.cores
        return rows, columns

    @property
    def kept(self) -> dict[type, Any]:
        """Cache of analyses of the program; its users check that an entry is still valid."""
        return vars(self).setdefault("_kept", {})

    def memory_end_bytes(self, grid: CoreGrid) -> int:
        """The end address of the L1 that queues may take."""
        return grid.memory_end_bytes if self.arrays_begin_bytes is None else self.arrays_begin_bytes

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
        if len(self.cores) != 2 or len(self.body.block.args) != 2 or min(self.cores) < 1:
            raise VerifyException("cores.program: needs rows and columns of cores, and an index for each")
        self._verify_arrays()
        roles = [thread.role for thread in self.threads]
        if len({*roles}) != len(roles):
            raise VerifyException(f"cores.program: two threads have one role among {roles}")
        for op in self.body.block.ops:
            if not isinstance(op, QueueOp | SemaphoreOp | ThreadOp | EndOp):
                raise VerifyException(f"cores.program: {op.name} is outside of all threads")
        for queue in self.queues:
            _verify_ends(queue)

    def _verify_arrays(self) -> None:
        """Arrays on a grid are stored in pages: they have no space and no layout."""
        kernel = self.parent_op()
        refs = kernel.refs if isinstance(kernel, tile.KernelOp) else ()
        for type in map(tile.ref_type, refs):
            if type.space.data or type.layout.data:
                raise VerifyException(f"cores.program: an array of {type} is not stored in pages")


def _verify_ends(queue: QueueOp) -> None:
    """One thread fills a queue, one empties it."""
    for ends, what in (((ReserveOp, PushOp), "filled"), ((WaitOp, PopOp), "emptied")):
        users = {thread_of(use.operation) for use in queue.result.uses if isinstance(use.operation, ends)}
        if len(users) > 1:
            roles = " and ".join(sorted(user.role for user in users))
            raise VerifyException(f"cores.queue: one queue is {what} by {roles}")


def thread_of(op: Operation) -> ThreadOp:
    """The thread that an operation is in."""
    parent = op.parent_op()
    while not isinstance(parent, ThreadOp):
        if parent is None:
            raise VerifyException(f"{op.name}: in no thread")
        parent = parent.parent_op()
    return parent


@operation
class QueueOp(PlainOp):
    """A queue, which is empty. `address_bytes`: where it begins in the memory of each core, once that is planned."""

    name = "cores.queue"
    address_bytes: int | None = attribute(default=None)
    result: Result = result(QueueType)

    def verify_(self) -> None:
        type = queue_type(self.result)
        if type.format.data not in FORMATS:
            raise VerifyException(f"cores.queue: no format `{type.format.data}`")
        if type.pages < 1:
            raise VerifyException("cores.queue: has no page")
        if type.tile_pages > type.pages:
            raise VerifyException(f"cores.queue: a tile has {type.tile_pages} pages, and the queue {type.pages}")


@operation
class SemaphoreOp(PlainOp):
    """A semaphore with a number in the beginning."""

    name = "cores.semaphore"
    initial: int = attribute()
    result: Result = result(SemaphoreType)


@operation
class ThreadOp(PlainOp):
    """The code of one thread, run on every core. `noc`: the network of a mover, one of two."""

    name = "cores.thread"
    role: str = attribute()
    noc: int | None = attribute(default=None)
    body: Region = region()

    @property
    def computes(self) -> bool:
        return self.role == COMPUTE

    def verify_(self) -> None:
        if self.role not in ROLES:
            raise VerifyException(f"cores.thread: no role `{self.role}`, only {', '.join(ROLES)}")
        if self.computes != (self.noc is None) or (self.noc is not None and self.noc not in (0, 1)):
            raise VerifyException(f"cores.thread: a {self.role} with the network {self.noc}")
        for op in self.body.walk():
            if isinstance(op, MoverOp if self.computes else ComputeOp):
                raise VerifyException(f"{op.name}: in the thread `{self.role}`")


class CoreOp(PlainOp):
    """An operation of a thread."""


class MoverOp(CoreOp):
    """An operation that only movers run."""


class ComputeOp(CoreOp):
    """An operation that only the thread that computes runs."""


def verify_map(op: PlainOp, what: str, map: AffineMap | None, dims: int, results: int) -> None:
    if map is None:
        return
    symbols = sum(isinstance(o.type, IndexType) for o in op.operands)
    if (map.num_dims, len(map.results)) != (dims, results) or map.num_symbols != symbols:
        raise VerifyException(
            f"{op.name}: {what} {map} is not from {dims} dims and {symbols} symbols to {results} numbers"
        )


@operation
class IfOp(CoreOp):
    """Run `then` where `map(symbols)` is 0, else `otherwise`."""

    name = "cores.if"
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    map: AffineMap = attribute()
    then: Region = region()
    otherwise: Region = region()

    def verify_(self) -> None:
        verify_map(self, "the condition", self.map, 0, 1)


# ---- queues and semaphores ------------------------------------------------------------------------------------------


class QueueStepOp(CoreOp):
    """A step of `pages` pages at one end of a queue."""

    queue: SSAValue = operand(QueueType)
    pages: int = attribute()

    @property
    def count(self) -> int:
        return self.pages

    def verify_(self) -> None:
        type = queue_type(self.queue)
        if not 1 <= self.count <= type.pages:
            raise VerifyException(f"{self.name}: {self.count} pages of a queue of {type.pages}")
        if self.count % type.tile_pages:
            raise VerifyException(f"{self.name}: {self.count} pages, of tiles that have {type.tile_pages}")


@operation
class ReserveOp(QueueStepOp):
    """Continue when so many pages at the back are free."""

    name = "cores.reserve"


@operation
class PushOp(QueueStepOp):
    """The next pages at the back, which were reserved, are full."""

    name = "cores.push"


@operation
class WaitOp(QueueStepOp):
    """Continue when so many pages at the front are full."""

    name = "cores.wait"


@operation
class PopOp(QueueStepOp):
    """The next pages at the front, which were waited for, are free."""

    name = "cores.pop"


@operation
class SemaphoreSetOp(MoverOp):
    """The core's own number becomes `value`."""

    name = "cores.semaphore_set"
    semaphore: SSAValue = operand(SemaphoreType)
    value: int = attribute()


@operation
class SemaphoreIncrementOp(MoverOp):
    """`value` is added to the number of core `core(symbols)`, some time later, after what the thread wrote before."""

    name = "cores.semaphore_increment"
    semaphore: SSAValue = operand(SemaphoreType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    core: AffineMap = attribute()
    value: int = attribute()

    def verify_(self) -> None:
        verify_map(self, "the core", self.core, 0, 2)


@operation
class SemaphoreWaitOp(MoverOp):
    """Continue when the core's own number is `value`, exactly, or with `at_least` that or more."""

    name = "cores.semaphore_wait"
    semaphore: SSAValue = operand(SemaphoreType)
    value: int = attribute()
    at_least: bool = attribute(default=False)


@operation
class SemaphoreMulticastOp(MoverOp):
    """The core's own number is written to that of all other cores of `rectangle(symbols)` = (first row, first column,
    last row, last column), some time later, after what the thread multicast before. The number is read when it is
    sent."""

    name = "cores.semaphore_multicast"
    semaphore: SSAValue = operand(SemaphoreType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    rectangle: AffineMap = attribute()

    def verify_(self) -> None:
        verify_map(self, "the rectangle", self.rectangle, 0, 4)


def region_of(arguments: int = 0) -> Region:
    """A region of one block, with so many indices."""
    return Region(Block(arg_types=[IndexType() for _ in range(arguments)]))
