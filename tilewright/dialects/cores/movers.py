"""Operations of the movers, the threads that move data."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import (
    IndexType,
)
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineMap
from xdsl.irdl import (
    AttrSizedOperandSegments,
)
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects import tile
from tilewright.dialects.cores.structure import (
    READ,
    WRITE,
    MoverOp,
    QueueType,
    is_by_rows,
    page_grid,
    queue_type,
    verify_map,
)
from tilewright.dialects.fields import attribute, operand, operands, operation
from tilewright.layout.catalogue.device_tiles import TILE


class PagesOp(MoverOp):
    """For each point of `extents`: the page of the array at `map`, and the page `at` of the queue. Pages that the array
    does not have are left out."""

    array: SSAValue = operand(tile.RefType)
    queue: SSAValue = operand(QueueType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    extents: tuple[int, ...] = attribute()
    map: AffineMap = attribute()
    at: AffineMap = attribute()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents

    def verify_(self) -> None:
        rank = len(self.shape)
        verify_map(self, "the page", self.map, rank, len(page_grid(tile.ref_type(self.array).shape)))
        verify_map(self, "the place", self.at, rank, 1)
        if is_by_rows(self.array) != isinstance(self, RowsOp):
            raise VerifyException(
                f"{self.name}: the array is stored {'by rows' if is_by_rows(self.array) else 'in tiles'}"
            )


@operation
class FetchOp(PagesOp):
    """Pages of an array are read to reserved pages of a queue: they have come after a `barrier` of reads. Pages that
    the array does not have become zeros with `zeros`, else they are undefined."""

    name = "cores.fetch"
    zeros: bool = attribute(default=False)


@operation
class PutOp(PagesOp):
    """Pages that were waited for are written to an array: they have been read after a `barrier` of writes."""

    name = "cores.put"


class RowsOp(PagesOp):
    """Pages side by side, of an array that is stored by rows: the elements that would be in the pages `map` of device
    tiles, of which those of a row follow each other along the last of `extents`, are in as many pages of the queue,
    from the first of `at` on, row by row. Elements that the array does not have are left out."""

    def verify_(self) -> None:
        super().verify_()
        symbols = [0] * len(self.symbols)
        points = [[*(0 for _ in self.shape[:-1]), place] for place in range(self.shape[-1])]
        sources = [self.map.eval(point, symbols) for point in points]
        places = [self.at.eval(point, symbols)[0] for point in points]
        follow = all(each == [*sources[0][:-1], sources[0][-1] + i] for i, each in enumerate(map(list, sources)))
        if prod(self.shape[:-1]) != 1 or not follow or places != [*range(places[0], places[0] + len(places))]:
            raise VerifyException(f"{self.name}: pages {self.map} to {self.at} are not side by side")
        if queue_type(self.queue).tile_format.exponent_bytes:
            raise VerifyException(
                f"{self.name}: numbers of {queue_type(self.queue).format.data} are not stored by rows"
            )


@operation
class FetchRowsOp(RowsOp):
    """32 rows are read to reserved pages of a queue: they have come after a `barrier` of reads. Elements outside of the
    array are undefined there."""

    name = "cores.fetch_rows"


@operation
class PutRowsOp(RowsOp):
    """32 rows in pages that were waited for are written to an array: they have been read after a `barrier` of
    writes."""

    name = "cores.put_rows"


class ElementsOp(MoverOp):
    """For each lane `d` of a tile of `shape`: the element of the array at `map(d, symbols)`, and its position in pages
    of the queue from page `at` on. `rows` and `columns` are the dims of the tile along the rows and columns of device
    tiles, -1 for none; the others count pages, row-major, then rows of device tiles, then columns. The last symbols of
    the map are, lane by lane, the numbers in `indices`: queues with a tile of the same shape and positions, of which
    pages were waited for."""

    array: SSAValue = operand(tile.RefType)
    queue: SSAValue = operand(QueueType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    indices: Sequence[SSAValue] = operands(QueueType, default=())
    shape: tuple[int, ...] = attribute()
    rows: int = attribute()
    columns: int = attribute()
    map: AffineMap = attribute()
    at: AffineMap = attribute()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @property
    def lanes(self) -> tuple[int, ...]:
        return self.shape

    def verify_(self) -> None:
        map, ref = self.map, tile.ref_type(self.array)
        symbols = len(self.symbols) + len(self.indices)
        if (map.num_dims, map.num_symbols, len(map.results)) != (len(self.lanes), symbols, len(ref.shape)):
            raise VerifyException(f"{self.name}: {map} does not map a tile of {self.lanes} to {ref.shape}")
        verify_map(self, "the place", self.at, 0, 1)
        if is_by_rows(self.array):
            raise VerifyException(f"{self.name}: the array is stored by rows")


@operation
class GatherOp(ElementsOp):
    """Elements of an array are copied to reserved pages of a queue, and are there when the operation is done; lanes
    outside of the array, and what the pages hold beyond the tile, become `fill`, or are undefined without it."""

    name = "cores.gather"
    fill: float | int | None = attribute(default=None)


@operation
class ScatterOp(ElementsOp):
    """Elements of pages that were waited for are written to an array, where they are inside of it: they have been read
    after a `barrier` of writes."""

    name = "cores.scatter"


@operation
class RearrangeOp(MoverOp):
    """For each point of `extents`: the element of a tile in pages that were waited for, at `source_map`, is copied to
    its position in a tile in reserved pages, at `map`; it is there when the operation is done. `shape`, `rows` and
    `columns` state where the elements of a tile are in pages, as those of `gather` do, those with `source_` where the
    source's are."""

    name = "cores.rearrange"
    source: SSAValue = operand(QueueType)
    queue: SSAValue = operand(QueueType)
    extents: tuple[int, ...] = attribute()
    source_map: AffineMap = attribute()
    source_shape: tuple[int, ...] = attribute()
    source_rows: int = attribute()
    source_columns: int = attribute()
    map: AffineMap = attribute()
    shape: tuple[int, ...] = attribute()
    rows: int = attribute()
    columns: int = attribute()

    def verify_(self) -> None:
        rank = len(self.extents)
        verify_map(self, "the place", self.map, rank, len(self.shape))
        verify_map(self, "the source's place", self.source_map, rank, len(self.source_shape))
        if queue_type(self.source).format != queue_type(self.queue).format:
            raise VerifyException("cores.rearrange: between queues of two formats")


class LinesOp(MoverOp):
    """Goes through the lines along `axis` of tiles in pages that were waited for; what it finds is in reserved pages
    when the operation is done. `shape`, `rows` and `columns` state where the elements of a tile are in pages, as those
    of `gather` do, for all of them alike. `scratch` are queues that only the operation uses."""

    sources: Sequence[SSAValue] = operands(QueueType, default=())
    queues: Sequence[SSAValue] = operands(QueueType, default=())
    scratch: Sequence[SSAValue] = operands(QueueType, default=())
    axis: int = attribute()
    shape: tuple[int, ...] = attribute()
    rows: int = attribute()
    columns: int = attribute()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @property
    def lanes(self) -> tuple[int, ...]:
        return self.shape

    def verify_(self) -> None:
        if not 0 <= self.axis < len(self.lanes):
            raise VerifyException(f"{self.name}: no axis {self.axis} in {self.lanes}")
        if [queue_type(q).format for q in self.sources] != [queue_type(q).format for q in self.queues]:
            raise VerifyException(f"{self.name}: between queues of different formats")


@operation
class ScanOp(LinesOp):
    """Each element is combined with all before it in its line by `fn` (add, multiply, maximum, minimum, of integers
    bitwise_and, bitwise_or, bitwise_xor), in f32 or i32, and rounded when it is stored; with `reverse`, with all after
    it."""

    name = "cores.scan"
    fn: str = attribute()
    reverse: bool = attribute()

    def verify_(self) -> None:
        super().verify_()
        if len(self.sources) != 1 or self.scratch:
            raise VerifyException("cores.scan: one tile is scanned, in place")


@operation
class SortOp(LinesOp):
    """The lines of the first tile in order, those that are equal as they came, and NaNs after all numbers; elements of
    the others go where those of the first one went. There is room for as many pages in each queue of `scratch`."""

    name = "cores.sort"
    descending: bool = attribute()

    def verify_(self) -> None:
        super().verify_()
        if [queue_type(q).format for q in self.scratch] != [queue_type(q).format for q in self.queues]:
            raise VerifyException("cores.sort: other formats to sort in")


@operation
class MulticastOp(MoverOp):
    """`pages` pages from page `at` on, reserved by the core and by all others, are written to the same position of all
    other cores of `rectangle(symbols)` = (first row, first column, last row, last column), some time later; they have
    been read after a `barrier` of writes."""

    name = "cores.multicast"
    queue: SSAValue = operand(QueueType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    at: AffineMap = attribute()
    pages: int = attribute()
    rectangle: AffineMap = attribute()

    def verify_(self) -> None:
        verify_map(self, "the place", self.at, 0, 1)
        verify_map(self, "the rectangle", self.rectangle, 0, 4)


@operation
class SendOp(MoverOp):
    """`pages` pages that were waited for, from page `at` of `source` on, are written to page `to` and those after it of
    the queue `destination` of core `core(symbols)`, which it reserved; counted from the sender's own back of that
    queue. They have been read after a `barrier` of writes."""

    name = "cores.send"
    source: SSAValue = operand(QueueType)
    destination: SSAValue = operand(QueueType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    at: AffineMap = attribute()
    to: AffineMap = attribute()
    pages: int = attribute()
    core: AffineMap = attribute()

    def verify_(self) -> None:
        verify_map(self, "the place", self.at, 0, 1)
        verify_map(self, "the place there", self.to, 0, 1)
        verify_map(self, "the core", self.core, 0, 2)
        if queue_type(self.source).format != queue_type(self.destination).format:
            raise VerifyException("cores.send: between queues of two formats")


@operation
class PadOp(PagesOp):
    """Elements of pages that were fetched, and have come, and are outside of the array become `fill`: for each point of
    `extents`, those of the page `at` that has in it what would be the page of the array at `map`. With `only`, which is
    `rows`, `columns` or `pages`, that is so for rows below the array alone, for columns to the right of it, or for
    neither; pages that are outside of the array in its other dims are filled whole in any case. The mover stores the
    elements, and does nothing for pages that are inside."""

    name = "cores.pad"
    fill: float | int = attribute()
    only: str | None = attribute(default=None)

    @property
    def sides(self) -> tuple[bool, bool]:
        """Whether rows below, and columns to the right of the array are filled."""
        only = "" if self.only is None else self.only
        return only not in ("columns", "pages"), only not in ("rows", "pages")

    def verify_(self) -> None:
        super().verify_()
        if self.only is not None and self.only not in ("rows", "columns", "pages"):
            raise VerifyException(f"cores.pad: only `{self.only}`, which is not `rows`, `columns` or `pages`")


@operation
class BarrierOp(MoverOp):
    """Wait until the reads that the thread issued are complete (`read`), or its writes (`write`)."""

    name = "cores.barrier"
    of: str = attribute()

    def verify_(self) -> None:
        if self.of not in (READ, WRITE):
            raise VerifyException(f"cores.barrier: of `{self.of}`, not of reads or writes")


@operation
class GenerateOp(MoverOp):
    """Numbers are stored to `count` reserved pages: at (row `d0`, column `d1`) of page `d2` what `map` gives, or with
    `choice` = (limit, below, otherwise) one of two numbers, by whether it is below the limit. With `face_rows` only the
    first row of each face is stored and all else is 0, which is the form of a scaler of `reduce`. With `corner` only
    the first so many rows and columns of each page are stored, and all else is undefined."""

    name = "cores.generate"
    queue: SSAValue = operand(QueueType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    map: AffineMap = attribute()
    count: int = attribute()
    choice: tuple[float, ...] | None = attribute(default=None)
    face_rows: bool = attribute(default=False)
    corner: tuple[int, int] | None = attribute(default=None)

    @property
    def stored_shape(self) -> tuple[int, int]:
        """Rows and columns of each page that are stored."""
        return (TILE, TILE) if self.corner is None else self.corner

    @property
    def elements(self) -> int:
        """Elements of all pages that are stored."""
        return self.count * prod(self.stored_shape)

    @property
    def is_one_number(self) -> bool:
        """Whether all that is stored is one number, and 0: a mover fills pages with it in words."""
        return self.choice is None and isinstance(self.map.results[0], AffineConstantExpr)

    def verify_(self) -> None:
        verify_map(self, "the number", self.map, 3, 1)
        if self.choice is not None and len(self.choice) != 3:
            raise VerifyException("cores.generate: a choice is a limit and two numbers")
        if self.corner is not None and not all(0 < size <= TILE for size in self.stored_shape):
            raise VerifyException(f"cores.generate: a corner of {self.stored_shape} elements is not in a page")
        if self.corner is not None and (self.face_rows or self.is_one_number):
            raise VerifyException("cores.generate: a page of one number is stored whole")


# What reads elements of arrays, and what writes them.
ARRAY_LOADS = (FetchOp, FetchRowsOp, GatherOp)
ARRAY_STORES = (PutOp, PutRowsOp, ScatterOp)
