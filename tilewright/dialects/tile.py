"""The `tile` dialect: kernels over tiles, before anything is scheduled.

    kernel  = tile.kernel @name grid [g0, ...] (refs, grid indices) { op* yield }
    op      = for if                                    sequential loop carrying tiles; choice
            | load store                                tiles of arrays by affine coordinates, masked at the edges
            | full iota map cast bitcast                elementwise
            | broadcast reshape transpose slice concat
            | reduce arg_reduce scan sort top_k
            | fill_padding                              give lanes beyond a limit a value
            | relayout                                  pin where the elements are
            | dot
            | print assert zone

Tiles are tensors of static shape. A `ref` is an array argument or, once scheduled, a buffer. Every ref access has an
affine map from tile dimensions `d0...` and symbols `s0...` (the operands after the ref: `index` scalars, or integer
tiles for gathers and scatters) to the ref's coordinates. Lanes outside the ref load `fill`, or something undefined when
there is no `fill`, and are not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import (
    IndexType,
)
from xdsl.ir import Block, Dialect, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.irdl import (
    traits_def,
)
from xdsl.traits import IsolatedFromAbove, IsTerminator, Pure, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from tilewright import primitives
from tilewright.dialects.base import PlainOp, array_type, plain_attributes
from tilewright.dialects.fields import Result, Results, attribute, operand, operands, operation, region, result, results
from tilewright.dialects.refs import PagesAttr, RefType, ref_type
from tilewright.dialects.refs import ref as ref
from tilewright.dialects.scopes import verify_scopes
from tilewright.errors import TilewrightError
from tilewright.layout import Layout
from tilewright.primitives import ArrayType

IN, OUT, INOUT = "in", "out", "inout"
# The edges of a zone.
BEGIN, END = "begin", "end"


@operation
class YieldOp(PlainOp):
    """Ends a region with its results."""

    name = "tile.yield"
    arguments: Sequence[SSAValue] = operands(default=())
    traits = traits_def(IsTerminator())


@operation
class KernelOp(PlainOp):
    """A kernel: `body` runs once per point of `grid`, in any order. `effects` states how each ref is used.

    With `in_order`, a point finds in the outputs that the kernel loads what the one before it along the last dimension
    of the grid stored there. `warps`: how many share a point, and `stages`: how many trips of a loop what it multiplies
    is copied for at a time, on machines that have such and where the kernel states it."""

    name = "tile.kernel"
    sym_name: str = attribute()
    grid: tuple[int, ...] = attribute()
    effects: tuple[str, ...] = attribute()
    in_order: bool = attribute(default=False)
    warps: int | None = attribute(default=None)
    stages: int | None = attribute(default=None)
    body: Region = region()
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    @property
    def refs(self) -> Sequence[SSAValue]:
        return self.body.block.args[: len(self.effects)]

    @property
    def indices(self) -> Sequence[SSAValue]:
        return self.body.block.args[len(self.effects) :]

    def verify_(self) -> None:
        if any(not isinstance(a.type, RefType) for a in self.refs):
            raise VerifyException("tile.kernel: arguments with effects must be refs")
        if len(self.indices) != len(self.grid):
            raise VerifyException("tile.kernel: needs one index per grid dimension")
        if any(not isinstance(a.type, IndexType) for a in self.indices):
            raise VerifyException("tile.kernel: grid coordinates must be indices")
        if any(name not in (IN, OUT, INOUT) for name in self.effects):
            raise VerifyException(f"tile.kernel: unknown effects {self.effects}")
        if self.in_order and not self.grid:
            raise VerifyException("tile.kernel: points in order need a grid")
        verify_scopes(self)


@operation
class ForOp(PlainOp):
    """Run the body `trips` times in order; its arguments are the counter and the carried tiles. With an `end`, the loop
    stops before the trip `end(symbols)`, if that comes sooner: symbols are the operands that are indices."""

    name = "tile.for"
    trips: int = attribute()
    end: AffineMap | None = attribute(default=None)
    arguments: Sequence[SSAValue] = operands(default=())
    outputs: Results = results(default=())
    body: Region = region()

    @property
    def symbols(self) -> Sequence[SSAValue]:
        return [o for o in self.operands if isinstance(o.type, IndexType)]

    @property
    def initial(self) -> Sequence[SSAValue]:
        """Initial values of the carried tiles."""
        return [o for o in self.operands if not isinstance(o.type, IndexType)]

    def verify_(self) -> None:
        end = AffineMap(0, 0, (AffineExpr.constant(0),)) if self.end is None else self.end
        if end.num_dims or end.num_symbols != len(self.symbols) or len(end.results) != 1:
            raise VerifyException(f"tile.for: {end} does not define the end of the loop by {len(self.symbols)} symbols")
        carried = [o.type for o in self.initial]
        block = self.body.block
        if [a.type for a in block.args[1:]] != carried or [r.type for r in self.results] != carried:
            raise VerifyException("tile.for: carried types differ between operands, body and results")
        last = block.last_op
        if not isinstance(last, YieldOp) or [o.type for o in last.operands] != carried:
            raise VerifyException("tile.for: the body must yield the carried types")


@operation
class IfOp(PlainOp):
    """Run `then` when the bool scalar tile is true, else `otherwise`. `likely`: it nearly always is."""

    name = "tile.if"
    likely: bool = attribute(default=False)
    condition: SSAValue = operand()
    outputs: Results = results(default=())
    then: Region = region()
    otherwise: Region = region()

    def verify_(self) -> None:
        if array_type(self.condition).shape or not array_type(self.condition).dtype.is_bool:
            raise VerifyException("tile.if: takes one bool scalar")
        types = [r.type for r in self.results]
        for branch in (self.then, self.otherwise):
            last = branch.block.last_op
            if last is None or [o.type for o in last.operands] != types:
                raise VerifyException("tile.if: both branches must yield the result types")


def _check_access(op: PlainOp, ref_value: SSAValue, symbols: Sequence[SSAValue], tile: ArrayType, map: Any) -> None:
    ref_shape = ref_type(ref_value).shape
    if map.num_dims != tile.rank or map.num_symbols != len(symbols) or len(map.results) != len(ref_shape):
        raise VerifyException(f"{op.name}: {map} does not map a tile {tile} with {len(symbols)} symbols to {ref_shape}")
    _check_symbols(op, symbols, tile)
    if ref_type(ref_value).dtype != tile.dtype:
        raise VerifyException(f"{op.name}: a tile of {tile.dtype} and a ref of {ref_type(ref_value).dtype}")


def _check_symbols(op: PlainOp, symbols: Sequence[SSAValue], tile: ArrayType) -> None:
    for symbol in symbols:
        if isinstance(symbol.type, IndexType):
            continue
        lanes = array_type(symbol)
        if lanes.shape != tile.shape or not lanes.dtype.is_integer:
            raise VerifyException(f"{op.name}: a symbol is {lanes}, expected an index or integers of {tile.shape}")


@operation
class LoadOp(PlainOp):
    """`tile[d] = ref[map(d, symbols)]`; lanes outside hold `fill`, or are undefined without it."""

    name = "tile.load"
    source: SSAValue = operand()
    symbols: Sequence[SSAValue] = operands(default=())
    map: AffineMap = attribute()
    fill: float | int | None = attribute(default=None)
    result: Result = result()

    def verify_(self) -> None:
        _check_access(self, self.source, self.symbols, array_type(self.result), self.map)


@operation
class StoreOp(PlainOp):
    """`ref[map(d, symbols)] = tile[d]` for lanes inside the ref."""

    name = "tile.store"
    value: SSAValue = operand()
    destination: SSAValue = operand()
    symbols: Sequence[SSAValue] = operands(default=())
    map: AffineMap = attribute()

    def verify_(self) -> None:
        _check_access(self, self.destination, self.symbols, array_type(self.value), self.map)


class TileOp(PlainOp):
    """An operation on tiles that is also an array primitive: one result, verified by `primitives.infer`."""

    arguments: Sequence[SSAValue] = operands(default=())
    outputs: Results = results(default=())
    traits = traits_def(Pure())
    VERIFIED_BY_TYPES: ClassVar[bool] = True

    @property
    def primitive(self) -> str:
        return self.name.removeprefix("tile.")

    def attributes_of(self) -> dict[str, Any]:
        result = array_type(self.results[0])
        return plain_attributes(self) | {"shape": result.shape, "dtype": result.dtype.name}

    def verify_(self) -> None:
        try:
            expected = primitives.infer(self.primitive, [array_type(o) for o in self.operands], self.attributes_of())
        except TilewrightError as error:
            raise VerifyException(f"{self.name}: {error.message}") from error
        actual = tuple(array_type(r) for r in self.results)
        if expected != actual:
            raise VerifyException(f"{self.name}: results are {actual}, expected {expected}")


@operation
class FullOp(PlainOp):
    """A tile of one value."""

    name = "tile.full"
    value: float | int = attribute()
    result: Result = result()
    traits = traits_def(Pure())


@operation
class IotaOp(PlainOp):
    """The value of an affine expression at each lane, as i64."""

    name = "tile.iota"
    symbols: Sequence[SSAValue] = operands(default=())
    map: AffineMap = attribute()
    result: Result = result()
    traits = traits_def(Pure())

    def verify_(self) -> None:
        tile = array_type(self.result)
        map = self.map
        if map.num_dims != tile.rank or map.num_symbols != len(self.symbols) or len(map.results) != 1:
            raise VerifyException(f"tile.iota: {map} does not fit a tile {tile} with {len(self.symbols)} symbols")
        _check_symbols(self, self.symbols, tile)


@operation
class FillPaddingOp(PlainOp):
    """`value` in lanes where the affine expression is `limit` or more; other lanes unchanged."""

    name = "tile.fill_padding"
    source: SSAValue = operand()
    symbols: Sequence[SSAValue] = operands(default=())
    map: AffineMap = attribute()
    limit: int = attribute()
    value: float | int = attribute()
    result: Result = result()
    traits = traits_def(Pure())

    def verify_(self) -> None:
        tile = array_type(self.result)
        if array_type(self.source) != tile or self.map.num_dims != tile.rank:
            raise VerifyException("tile.fill_padding: operand, result and map differ")
        _check_symbols(self, self.symbols, tile)


@operation
class RelayoutOp(PlainOp):
    """The operand, pinned to the layout of the given text. Its data may move here; where `strict`, none moves next to
    it, neither into the operand nor out of the result."""

    name = "tile.relayout"
    source: SSAValue = operand()
    layout: str = attribute()
    strict: bool = attribute()
    result: Result = result()
    traits = traits_def(Pure())

    @property
    def pinned(self) -> Layout:
        """The layout. Raises LayoutError where the text is none."""
        return Layout.parse(self.layout)

    def verify_(self) -> None:
        tile = array_type(self.result)
        if array_type(self.source) != tile:
            raise VerifyException(f"tile.relayout: operand {array_type(self.source)} and result {tile} differ")
        try:
            shape = self.pinned.shape
        except TilewrightError as error:
            raise VerifyException(f"tile.relayout: {error.message}") from error
        if shape != tile.shape:
            raise VerifyException(f"tile.relayout: a layout of shape {shape} for a tile {tile}")


@operation
class MapOp(TileOp):
    """A scalar function of each element. `ftz` (flush to zero): a result that is subnormal may be 0. `contract`, of a
    sum or difference and of the multiplication that it takes: both may be rounded once, as one fused multiply-add."""

    name = "tile.map"
    fn: str = attribute()
    ftz: bool = attribute(default=False)
    contract: bool = attribute(default=False)


@operation
class CastOp(TileOp):
    name = "tile.cast"


@operation
class BitcastOp(TileOp):
    name = "tile.bitcast"


@operation
class BroadcastOp(TileOp):
    name = "tile.broadcast"
    axes: tuple[int, ...] = attribute()


@operation
class ReshapeOp(TileOp):
    name = "tile.reshape"


@operation
class TransposeOp(TileOp):
    name = "tile.transpose"
    permutation: tuple[int, ...] = attribute()


@operation
class SliceOp(TileOp):
    name = "tile.slice"
    starts: tuple[int, ...] = attribute()
    limits: tuple[int, ...] = attribute()
    strides: tuple[int, ...] = attribute()


@operation
class ConcatOp(TileOp):
    name = "tile.concat"
    axis: int = attribute()


@operation
class ReduceOp(TileOp):
    name = "tile.reduce"
    fn: str = attribute()
    axes: tuple[int, ...] = attribute()


@operation
class ArgReduceOp(TileOp):
    name = "tile.arg_reduce"
    fn: str = attribute()
    axis: int = attribute()


@operation
class ScanOp(TileOp):
    name = "tile.scan"
    fn: str = attribute()
    axis: int = attribute()
    reverse: bool = attribute()


@operation
class SortOp(TileOp):
    """Stable sort of the first operand along `axis`, the others carried along. A line is `runs` of equal length, each
    in order already."""

    name = "tile.sort"
    axis: int = attribute()
    descending: bool = attribute()
    runs: int = attribute(default=1)


@operation
class TopKOp(TileOp):
    """The `k` largest along the last dim and their indices."""

    name = "tile.top_k"
    k: int = attribute()


@operation
class DotOp(PlainOp):
    """`accumulator + left @ right`, computed in the accumulator's type; left is M x K, right K x N. `atom`: the name of
    the machine's atom that the tiles' sizes were chosen for; layout inference takes no other where there is one."""

    name = "tile.dot"
    atom: str | None = attribute(default=None)
    left: SSAValue = operand()
    right: SSAValue = operand()
    accumulator: SSAValue = operand()
    result: Result = result()
    traits = traits_def(Pure())

    def verify_(self) -> None:
        left, right, acc = (array_type(o) for o in self.operands)
        if left.rank != 2 or right.rank != 2 or left.shape[1] != right.shape[0]:
            raise VerifyException(f"tile.dot: cannot multiply {left} and {right}")
        if acc.shape != (left.shape[0], right.shape[1]) or array_type(self.result) != acc:
            raise VerifyException(f"tile.dot: accumulator {acc} does not fit {left} times {right}")


@operation
class PrintOp(PlainOp):
    """Show a tile by name (interpreter; native code writes scalars to standard error)."""

    name = "tile.print"
    label: str = attribute()
    arguments: Sequence[SSAValue] = operands(default=())


@operation
class AssertOp(PlainOp):
    """Stop the program with `message` unless all lanes are true."""

    name = "tile.assert"
    condition: SSAValue = operand()
    message: str = attribute()


@operation
class ZoneOp(PlainOp):
    """Begin or end of a zone of the user: the time between the two, in one block, is recorded under `label` if tracing
    is on. Zones nest, and compute nothing.

    Two markers, not an operation with a region: a loop between them stays where passes look for it, directly in the
    block of its kernel, and its results need not be handed out. An effect keeps them in order among what is around
    them."""

    name = "tile.zone"
    label: str = attribute()
    edge: str = attribute()

    @property
    def begins(self) -> bool:
        return self.edge == BEGIN

    def other(self) -> ZoneOp:
        """The marker of the other edge.

        Raises:
            VerifyException: there is none in the block, or zones are not one in another.
        """
        within: list[str] = []
        op: Operation | None = self
        while op is not None:
            if isinstance(op, ZoneOp) and op.edge == self.edge:
                within.append(op.label)
            elif isinstance(op, ZoneOp) and within.pop() != op.label:
                break
            if not within:
                assert isinstance(op, ZoneOp)
                return op
            op = op.next_op if self.begins else op.prev_op
        raise VerifyException(f"tile.zone: the zone `{self.label}` does not begin and end in one block")

    def verify_(self) -> None:
        if self.edge not in (BEGIN, END) or not self.label:
            raise VerifyException(f"tile.zone: `{self.label}` with the edge {self.edge}")
        self.other()


def zone(label: str, edge: str) -> ZoneOp:
    """A marker of an edge of a zone."""
    return ZoneOp(label=label, edge=edge)


def zones_around(op: Operation) -> list[ZoneOp]:
    """The beginnings of the zones of an operation's block that it is in, the outer ones first."""
    found: list[ZoneOp] = []
    before = op.prev_op
    while before is not None:
        if isinstance(before, ZoneOp) and before.begins:
            found.append(before)
        elif isinstance(before, ZoneOp):
            before = before.other()
        before = before.prev_op
    return found[::-1]


TILE_OPS: tuple[type[TileOp], ...] = (
    MapOp,
    CastOp,
    BitcastOp,
    BroadcastOp,
    ReshapeOp,
    TransposeOp,
    SliceOp,
    ConcatOp,
    ReduceOp,
    ArgReduceOp,
    ScanOp,
    SortOp,
    TopKOp,
)

Tile = Dialect(
    "tile",
    [
        *TILE_OPS,
        YieldOp,
        KernelOp,
        ForOp,
        IfOp,
        LoadOp,
        StoreOp,
        FullOp,
        IotaOp,
        FillPaddingOp,
        RelayoutOp,
        DotOp,
        PrintOp,
        AssertOp,
        ZoneOp,
    ],
    [RefType, PagesAttr],
)


def kernel(name: str, grid: Sequence[int], refs: Sequence[RefType], effects: Sequence[str]) -> KernelOp:
    """An empty kernel; fill `kernel.body.block` and end it with `YieldOp`."""
    block = Block(arg_types=[*refs, *[IndexType() for _ in grid]])
    return KernelOp(sym_name=name, grid=tuple(grid), effects=tuple(effects), body=Region(block))
