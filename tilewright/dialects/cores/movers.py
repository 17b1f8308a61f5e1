"""Operations of the movers, the threads that move data."""

from __future__ import annotations

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
from xdsl.ir.affine import AffineConstantExpr
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects import tile
from tilewright.dialects.base import decode
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
from tilewright.layout.catalogue.device_tiles import TILE


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
        verify_map(self, "the page", self.map, rank, len(page_grid(tile.ref_type(self.array).shape)))
        verify_map(self, "the place", self.at, rank, 1)
        if is_by_rows(self.array) != isinstance(self, RowsOp):
            raise VerifyException(
                f"{self.name}: the array is stored {'by rows' if is_by_rows(self.array) else 'in tiles'}"
            )


@irdl_op_definition
class FetchOp(PagesOp):
    """Pages of an array are read to reserved pages of a queue: they have come after a `barrier` of reads. Pages that
    the array does not have become zeros with `zeros`, else they are undefined."""

    name = "cores.fetch"
    zeros = opt_prop_def(BoolAttr)


@irdl_op_definition
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
        sources = [self.map.data.eval(point, symbols) for point in points]
        places = [self.at.data.eval(point, symbols)[0] for point in points]
        follow = all(each == [*sources[0][:-1], sources[0][-1] + i] for i, each in enumerate(map(list, sources)))
        if prod(self.shape[:-1]) != 1 or not follow or places != [*range(places[0], places[0] + len(places))]:
            raise VerifyException(f"{self.name}: pages {self.map.data} to {self.at.data} are not side by side")
        if queue_type(self.queue).tile_format.exponent_bytes:
            raise VerifyException(
                f"{self.name}: numbers of {queue_type(self.queue).format.data} are not stored by rows"
            )


@irdl_op_definition
class FetchRowsOp(RowsOp):
    """32 rows are read to reserved pages of a queue: they have come after a `barrier` of reads. Elements outside of the
    array are undefined there."""

    name = "cores.fetch_rows"


@irdl_op_definition
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
        verify_map(self, "the place", self.at, 0, 1)
        if is_by_rows(self.array):
            raise VerifyException(f"{self.name}: the array is stored by rows")


@irdl_op_definition
class GatherOp(ElementsOp):
    """Elements of an array are copied to reserved pages of a queue, and are there when the operation is done; lanes
    outside of the array, and what the pages hold beyond the tile, become `fill`, or are undefined without it."""

    name = "cores.gather"
    fill = opt_prop_def(FloatAttr | IntegerAttr)


@irdl_op_definition
class ScatterOp(ElementsOp):
    """Elements of pages that were waited for are written to an array, where they are inside of it: they have been read
    after a `barrier` of writes."""

    name = "cores.scatter"


@irdl_op_definition
class RearrangeOp(MoverOp):
    """For each point of `extents`: the element of a tile in pages that were waited for, at `source_map`, is copied to
    its position in a tile in reserved pages, at `map`; it is there when the operation is done. `shape`, `rows` and
    `columns` state where the elements of a tile are in pages, as those of `gather` do, those with `source_` where the
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
        verify_map(self, "the place", self.map, rank, len(decode(self.shape)))
        verify_map(self, "the source's place", self.source_map, rank, len(decode(self.source_shape)))
        if queue_type(self.source).format != queue_type(self.queue).format:
            raise VerifyException("cores.rearrange: between queues of two formats")


class LinesOp(MoverOp):
    """Goes through the lines along `axis` of tiles in pages that were waited for; what it finds is in reserved pages
    when the operation is done. `shape`, `rows` and `columns` state where the elements of a tile are in pages, as those
    of `gather` do, for all of them alike. `scratch` are queues that only the operation uses."""

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
        if [queue_type(q).format for q in self.sources] != [queue_type(q).format for q in self.queues]:
            raise VerifyException(f"{self.name}: between queues of different formats")


@irdl_op_definition
class ScanOp(LinesOp):
    """Each element is combined with all before it in its line by `fn` (add, multiply, maximum, minimum, of integers
    bitwise_and, bitwise_or, bitwise_xor), in f32 or i32, and rounded when it is stored; with `reverse`, with all after
    it."""

    name = "cores.scan"
    fn = prop_def(StringAttr)
    reverse = prop_def(BoolAttr)

    def verify_(self) -> None:
        super().verify_()
        if len(self.sources) != 1 or self.scratch:
            raise VerifyException("cores.scan: one tile is scanned, in place")


@irdl_op_definition
class SortOp(LinesOp):
    """The lines of the first tile in order, those that are equal as they came, and NaNs after all numbers; elements of
    the others go where those of the first one went. There is room for as many pages in each queue of `scratch`."""

    name = "cores.sort"
    descending = prop_def(BoolAttr)

    def verify_(self) -> None:
        super().verify_()
        if [queue_type(q).format for q in self.scratch] != [queue_type(q).format for q in self.queues]:
            raise VerifyException("cores.sort: other formats to sort in")


@irdl_op_definition
class MulticastOp(MoverOp):
    """`pages` pages from page `at` on, reserved by the core and by all others, are written to the same position of all
    other cores of `rectangle(symbols)` = (first row, first column, last row, last column), some time later; they have
    been read after a `barrier` of writes."""

    name = "cores.multicast"
    queue = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    at = prop_def(AffineMapAttr)
    pages = prop_def(IntegerAttr)
    rectangle = prop_def(AffineMapAttr)

    def verify_(self) -> None:
        verify_map(self, "the place", self.at, 0, 1)
        verify_map(self, "the rectangle", self.rectangle, 0, 4)


@irdl_op_definition
class SendOp(MoverOp):
    """`pages` pages that were waited for, from page `at` of `source` on, are written to page `to` and those after it of
    the queue `destination` of core `core(symbols)`, which it reserved; counted from the sender's own back of that
    queue. They have been read after a `barrier` of writes."""

    name = "cores.send"
    source = operand_def(QueueType)
    destination = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    at = prop_def(AffineMapAttr)
    to = prop_def(AffineMapAttr)
    pages = prop_def(IntegerAttr)
    core = prop_def(AffineMapAttr)

    def verify_(self) -> None:
        verify_map(self, "the place", self.at, 0, 1)
        verify_map(self, "the place there", self.to, 0, 1)
        verify_map(self, "the core", self.core, 0, 2)
        if queue_type(self.source).format != queue_type(self.destination).format:
            raise VerifyException("cores.send: between queues of two formats")


@irdl_op_definition
class PadOp(PagesOp):
    """Elements of pages that were fetched, and have come, and are outside of the array become `fill`: for each point of
    `extents`, those of the page `at` that has in it what would be the page of the array at `map`. With `only`, which is
    `rows`, `columns` or `pages`, that is so for rows below the array alone, for columns to the right of it, or for
    neither; pages that are outside of the array in its other dims are filled whole in any case. The mover stores the
    elements, and does nothing for pages that are inside."""

    name = "cores.pad"
    fill = prop_def(FloatAttr | IntegerAttr)
    only = opt_prop_def(StringAttr)

    @property
    def sides(self) -> tuple[bool, bool]:
        """Whether rows below, and columns to the right of the array are filled."""
        only = "" if self.only is None else self.only.data
        return only not in ("columns", "pages"), only not in ("rows", "pages")

    def verify_(self) -> None:
        super().verify_()
        if self.only is not None and self.only.data not in ("rows", "columns", "pages"):
            raise VerifyException(f"cores.pad: only `{self.only.data}`, which is not `rows`, `columns` or `pages`")


@irdl_op_definition
class BarrierOp(MoverOp):
    """Wait until the reads that the thread issued are complete (`read`), or its writes (`write`)."""

    name = "cores.barrier"
    of = prop_def(StringAttr)

    def verify_(self) -> None:
        if self.of.data not in (READ, WRITE):
            raise VerifyException(f"cores.barrier: of `{self.of.data}`, not of reads or writes")


@irdl_op_definition
class GenerateOp(MoverOp):
    """Numbers are stored to `count` reserved pages: at (row `d0`, column `d1`) of page `d2` what `map` gives, or with
    `choice` = (limit, below, otherwise) one of two numbers, by whether it is below the limit. With `face_rows` only the
    first row of each face is stored and all else is 0, which is the form of a scaler of `reduce`. With `corner` only
    the first so many rows and columns of each page are stored, and all else is undefined."""

    name = "cores.generate"
    queue = operand_def(QueueType)
    symbols = var_operand_def(IndexType)
    map = prop_def(AffineMapAttr)
    count = prop_def(IntegerAttr)
    choice = opt_prop_def(ArrayAttr[FloatAttr])
    face_rows = opt_prop_def(BoolAttr)
    corner = opt_prop_def(DenseArrayBase)

    @property
    def stored_shape(self) -> tuple[int, int]:
        """Rows and columns of each page that are stored."""
        if self.corner is None:
            return TILE, TILE
        rows, columns = decode(self.corner)
        return rows, columns

    @property
    def elements(self) -> int:
        """Elements of all pages that are stored."""
        return int(decode(self.count)) * prod(self.stored_shape)

    @property
    def is_one_number(self) -> bool:
        """Whether all that is stored is one number, and 0: a mover fills pages with it in words."""
        return self.choice is None and isinstance(self.map.data.results[0], AffineConstantExpr)

    def verify_(self) -> None:
        verify_map(self, "the number", self.map, 3, 1)
        if self.choice is not None and len(self.choice.data) != 3:
            raise VerifyException("cores.generate: a choice is a limit and two numbers")
        if self.corner is not None and not all(0 < size <= TILE for size in self.stored_shape):
            raise VerifyException(f"cores.generate: a corner of {self.stored_shape} elements is not in a page")
        if self.corner is not None and (self.face_rows is not None or self.is_one_number):
            raise VerifyException("cores.generate: a page of one number is stored whole")


# What reads elements of arrays, and what writes them.
ARRAY_LOADS = (FetchOp, FetchRowsOp, GatherOp)
ARRAY_STORES = (PutOp, PutRowsOp, ScatterOp)
