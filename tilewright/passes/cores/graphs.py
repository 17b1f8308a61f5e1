"""The dataflow graph of a section, elementwise over the pages of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import cores, tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import insert_before
from tilewright.dialects.walks import producers_first
from tilewright.layout.catalogue.paging import ABSENT, Paging
from tilewright.passes.cores.affine_expressions import ZERO, plus, times
from tilewright.passes.cores.page_indices import coordinates, page_index
from tilewright.passes.cores.page_windows import linear
from tilewright.passes.cores.sections import (
    Held,
    Node,
    Number,
    Read,
    apply,
    bits_of,
    carrier_of,
    convert,
    number_of_carrier,
    rounded,
)
from tilewright.passes.cores.tile_facts import (
    PLACEWISE,
    RELABELS,
    Loaded,
    is_place_of_lanes,
    is_unit_reshape,
    refuse,
    unit_places,
)
from tilewright.primitives import ArrayType


class Tiles(Protocol):
    """The sources of the tiles that a graph reads. `shared`: elementwise values that have a queue."""

    shared: set[SSAValue]

    def held(self, value: SSAValue, paging: Paging) -> Held: ...

    def present_paging(self, value: SSAValue) -> Paging: ...

    def load_behind(self, value: SSAValue) -> Loaded | None: ...


# A tile, and for each of its dims the dim of a result along which it goes.
PlacedTile = tuple[SSAValue, tuple[int | None, ...]]


class Graph:
    """Builds the graph of one result: `at` are, for each dim of a tile, the dim of the result along which it goes."""

    def __init__(self, tiles: Tiles, shape: Sequence[int], paging: Paging) -> None:
        self._tiles = tiles
        self._shape = shape
        self._paging = paging
        self._memo: dict[PlacedTile, Node] = {}

    def node(self, value: SSAValue, at: tuple[int | None, ...]) -> Node:
        for key in producers_first([(value, at)], self._operands, self._memo):
            self._memo[key] = self.read(*key) if self._is_read(key[0]) else self.expanded(*key)
        return self._memo[value, at]

    def _is_read(self, value: SSAValue) -> bool:
        """Whether a tile is read from a queue, and not computed in the graph."""
        op = value.owner
        is_plain = isinstance(op, Operation) and (is_unit_reshape(op) or is_place_of_lanes(op))
        if is_plain or isinstance(op, tile.IfOp):
            return False
        return value in self._tiles.shared or not isinstance(op, (*PLACEWISE, *RELABELS))

    def _operands(self, key: PlacedTile) -> Sequence[PlacedTile]:
        """The tiles of which an element-by-element function is always computed, and where each is read."""
        value, at = key
        op = value.owner
        if self._is_read(value):
            return ()
        if isinstance(op, tile.MapOp | tile.CastOp | tile.BitcastOp):
            return [(operand, at) for operand in op.operands]
        if isinstance(op, tile.BroadcastOp | tile.TransposeOp | tile.RelayoutOp | tile.ReshapeOp):
            return [(op.operands[0], _moved(op, at))]
        return ()

    def expanded(self, value: SSAValue, at: tuple[int | None, ...]) -> Node:
        """The graph of a tile."""
        op = value.owner
        match op:
            case tile.FullOp():
                return _constant(op)
            case tile.MapOp():
                arguments = [self.node(o, at) for o in op.operands]
                return apply(op.fn, arguments, array_type(op.operands[-1]).dtype)
            case tile.CastOp():
                return self._cast(op, at)
            case tile.BitcastOp():
                return self._bitcast(op, at)
            case tile.BroadcastOp() | tile.TransposeOp() | tile.RelayoutOp():
                return self.node(op.operands[0], _moved(op, at))
            case tile.FillPaddingOp():
                return self._filled(op, at)
            case tile.IfOp():
                position = list(op.results).index(value)  # type: ignore[arg-type]
                ends = [region.block.last_op for region in (op.then, op.otherwise)]
                given = [self.node(end.operands[position], at) for end in ends if end is not None]
                condition = self.node(op.condition, ())
                return apply("select", [condition, *given], array_type(value).dtype)
            case tile.IotaOp() if any(not isinstance(s.type, IndexType) for s in op.symbols):
                return self._place(op, at)
            case Operation() if is_unit_reshape(op):
                return self.node(op.operands[0], _moved(op, at))
            case _:
                return self.read(value, at)

    def _cast(self, op: tile.CastOp, at: tuple[int | None, ...]) -> Node:
        source, target = array_type(op.operands[0]).dtype, array_type(op.results[0]).dtype
        node = self.node(op.operands[0], at)
        if target.is_bool:
            return node if source.is_bool else apply("not_equal", [node, Number(0.0, node.carrier)], source)
        converted = convert(node, carrier_of(target))
        if target.is_narrow_float and array_type(op.results[0]).dtype != source:
            uses = {use.operation for use in op.results[0].uses}
            is_stored = all(isinstance(user, tile.StoreOp) for user in uses)
            return converted if is_stored else rounded(converted, target)
        return converted

    def _bitcast(self, op: tile.BitcastOp, at: tuple[int | None, ...]) -> Node:
        source, target = (array_type(value).dtype for value in (op.operands[0], op.results[0]))
        node = self.node(op.operands[0], at)
        if source == target:
            return node
        if source.bits != 32:
            raise refuse(op, f"the bits of {source} are not taken for {target} on a grid of cores")
        return bits_of(node, carrier_of(target))

    def _filled(self, op: tile.FillPaddingOp, at: tuple[int | None, ...]) -> Node:
        if self._tiles.load_behind(op.result) is not None:
            return self.read(op.result, at)
        type = array_type(op.result)
        iota = tile.IotaOp(symbols=list(op.symbols), map=op.map, result=_index_tile(type.shape))
        iota.location = op.location
        insert_before(op, iota)
        place = self.read(iota.result, at)
        inside = apply("less", [place, Number(float(op.limit), dtypes.i32)], dtypes.i32)
        value = Number(number_of_carrier(float(op.value), type.dtype), carrier_of(type.dtype))
        return apply("select", [inside, self.node(op.source, at), value], type.dtype)

    def _place(self, op: tile.IotaOp, at: tuple[int | None, ...]) -> Node:
        """A position that depends on tiles of integers: they are multiplied and added to one that does not."""
        found = linear(op.map.results[0])
        if found is None:
            raise refuse(op, "dividing a tile of integers is not supported on a grid of cores")
        indices = [s for s in op.symbols if isinstance(s.type, IndexType)]
        plain = AffineExpr.constant(found.constant)
        for d, coefficient in found.dims:
            plain = plus(plain, times(AffineExpr.dimension(d), coefficient))
        lanes: list[tuple[SSAValue, int]] = []
        for position, coefficient in found.symbols:
            symbol = op.symbols[position]
            if isinstance(symbol.type, IndexType):
                plain = plus(plain, times(AffineExpr.symbol(indices.index(symbol)), coefficient))
            else:
                lanes.append((symbol, coefficient))
        rank = array_type(op.result).rank
        map = AffineMap(rank, len(indices), (plain,))
        iota = tile.IotaOp(symbols=indices, map=map, result=op.result.type)
        iota.location = op.location
        insert_before(op, iota)
        node = self.read(iota.result, at)
        for symbol, coefficient in lanes:
            own = self.node(symbol, at)
            scaled = own if coefficient == 1 else apply("multiply", [own, Number(coefficient, dtypes.i32)], dtypes.i32)
            node = apply("add", [node, scaled], dtypes.i32)
        return node

    def read(self, value: SSAValue, at: tuple[int | None, ...]) -> Node:
        """A page of a tile in a queue."""
        shape = array_type(value).shape
        at = tuple(None if d is None or self._shape[d] == 1 or shape[i] == 1 else d for i, d in enumerate(at))
        where = {d: i for i, d in enumerate(at) if d is not None}
        wanted = Paging(where.get(self._paging.rows, ABSENT), where.get(self._paging.columns, ABSENT)).of(shape)
        missing = [own != ABSENT and mine == ABSENT for own, mine in zip(self._paging.dims, wanted.dims, strict=True)]
        broadcast = {(True, True): cores.SCALAR, (True, False): cores.ROW, (False, True): cores.COLUMN}
        kind = broadcast.get((missing[0], missing[1]), cores.NONE)
        # A page is transposed or repeated on its way to a register, not both.
        present = self._tiles.present_paging(value).of(shape)
        transposed = present.transposed == wanted != wanted.transposed and kind == cores.NONE
        held = self._tiles.held(value, wanted.transposed if transposed else wanted)
        place_of = coordinates(self._paging, self._shape)
        own = held.paging

        def page(row: AffineExpr, column: AffineExpr) -> AffineExpr:
            def along(dim: int) -> AffineExpr:
                target = ABSENT if dim == ABSENT else at[dim]
                return ZERO if target is None or target == ABSENT else place_of(target, row, column)

            return page_index(own, shape, along, along(own.rows), along(own.columns))

        all_outer = [d for d in self._paging.outer(len(self._shape)) if self._shape[d] > 1]
        is_plain = kind == cores.NONE and not transposed and not own.is_column_major
        is_flat = is_plain and all(d in where for d in all_outer)
        is_flat = is_flat and [where[d] for d in all_outer] == sorted(where[d] for d in all_outer)
        return Read(held, page, kind, transposed, is_flat, carrier_of(array_type(value).dtype))


def _constant(op: tile.FullOp) -> Number:
    """A constant as registers hold it: the extremes of i64, which minima and maxima begin with, are those of i32."""
    dtype, value = array_type(op.result).dtype, op.value
    held = number_of_carrier(float(value), dtype)
    if dtype.is_integer and held != value and value not in (dtype.lowest, dtype.highest):
        raise refuse(op, f"{value} is a number of {dtype} that does not fit the 32 bits of a grid of cores")
    return Number(held, carrier_of(dtype))


def _index_tile(shape: Sequence[int]) -> Any:
    return tensor(ArrayType(tuple(shape), dtypes.i64))


def _moved(op: Operation, at: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The dims of the result along which the operand of an index map goes, from those of its result."""
    if isinstance(op, tile.BroadcastOp):
        before, after = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
        axes: tuple[int, ...] = op.axes
        return tuple(None if n == 1 != after[a] else at[a] for n, a in zip(before, axes, strict=True))
    if isinstance(op, tile.TransposeOp):
        along = dict(zip(op.permutation, at, strict=True))
        return tuple(along[dim] for dim in range(len(at)))
    if isinstance(op, tile.RelayoutOp):
        return at
    places = unit_places(op)
    return tuple(at[places[d]] if d in places else None for d in range(array_type(op.operands[0]).rank))
