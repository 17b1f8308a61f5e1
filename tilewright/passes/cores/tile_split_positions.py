"""Split positions of elements into tiles that run along one dim each, which are broadcast where they are used.

A mover stores positions element by element. A sum of terms of several dims is the sum of a tile that runs along the
longest dim and of one that runs along the others: of their pages a row or a column is stored, and what no loop changes
is stored once. A comparison of a position with a limit, as that of a causal mask, compares the two.

Before (wormhole):
    func.func @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
      %y = array.call(%x) {callee = "lower"} : tensor<64x128xf32>
      func.return %y : tensor<64x128xf32>
    }
    tile.kernel() {sym_name = "lower", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x128xf32>>, %out: !tile.ref<tensor<64x128xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<64x128xf32>
      %b = tile.map(%a) {fn = "exp"} : tensor<64x128xf32>
      %c = tile.fill_padding(%b) {map = affine_map<(d0, d1) -> (d1 + (d0 * -1))>, limit = 1 : index,
        value = 0.0 : f64} : tensor<64x128xf32>
      tile.store(%c, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
      %y = array.call(%x) {callee = "lower"} : tensor<64x128xf32>
      func.return %y : tensor<64x128xf32>
    }
    tile.kernel() {sym_name = "lower", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x128xf32>>, %out: !tile.ref<tensor<64x128xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<64x128xf32>
      %b = tile.map(%a) {fn = "exp"} : tensor<64x128xf32>
      %long = tile.iota() {map = affine_map<(d0, d1) -> (d1)>} : tensor<1x128xi64>
      %position = tile.broadcast(%long) {axes = array<i64: 0, 1>} : tensor<64x128xi64>
      %short = tile.iota() {map = affine_map<(d0, d1) -> (d0 + 1)>} : tensor<64x1xi64>
      %limit = tile.broadcast(%short) {axes = array<i64: 0, 1>} : tensor<64x128xi64>
      %inside = tile.map(%position, %limit) {fn = "less"} : tensor<64x128xi1>
      %value = tile.full() {value = 0.0 : f64} : tensor<64x128xf32>
      %c = tile.map(%inside, %b, %value) {fn = "select"} : tensor<64x128xf32>
      tile.store(%c, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import ClassVar

import msgspec
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import block_of, erase, insert_before
from tilewright.layout.catalogue.paging import Paging
from tilewright.passes.base import Remark, Unit
from tilewright.passes.cores.affine_expressions import plus, times
from tilewright.passes.cores.page_windows import Sum, linear
from tilewright.passes.cores.tile_facts import PLACEWISE, load_behind_of
from tilewright.primitives import ArrayType


class TileSplitPositionsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-split-positions"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            saved = sum(_Splitter(kernel, op).split() for op in list(_positions(kernel)))
            if saved:
                decision = f"{saved} elements less of each tile of positions are stored one by one"
                reason = "each is the sum of what runs along one dim and what runs along the others"
                unit.remarks.append(Remark(self.name, kernel.sym_name, decision, reason))


def _positions(kernel: tile.KernelOp) -> Iterator[tile.IotaOp | tile.FillPaddingOp]:
    """Positions that are computed with element by element, and fills that are not those of a load."""
    written = {op.destination for op in kernel.walk() if isinstance(op, tile.StoreOp)}
    for op in kernel.walk():
        if isinstance(op, tile.IotaOp):
            if all(isinstance(use.operation, PLACEWISE) for use in op.result.uses):
                yield op
        elif isinstance(op, tile.FillPaddingOp):
            behind = load_behind_of(op)
            if behind is None or behind.load.source in written:
                yield op


class _Splitter:
    """The rewriting of one operation whose map is a position."""

    def __init__(self, kernel: tile.KernelOp, op: tile.IotaOp | tile.FillPaddingOp) -> None:
        self._kernel, self._op = kernel, op
        self._shape = array_type(op.result).shape

    def split(self) -> int:
        """Split the position if that stores fewer elements; returns how many fewer."""
        op, total = self._op, linear(self._op.map.results[0])
        has_lanes = any(not isinstance(symbol.type, IndexType) for symbol in op.symbols)
        if total is None or has_lanes or not total.dims:
            return 0
        along = max((d for d, _ in total.dims), key=lambda d: self._shape[d])
        long = Sum(0, tuple(term for term in total.dims if term[0] == along))
        short = Sum(total.constant, tuple(term for term in total.dims if term[0] != along), total.symbols)
        saved = _elements(self._shape) - sum(_elements(self._shape_of(part)) for part in (long, short))
        if saved <= 0:
            return 0
        made = self._filled(op, long, short) if isinstance(op, tile.FillPaddingOp) else self._added(long, short)
        op.result.replace_all_uses_with(made)
        erase(op)
        return saved

    def _added(self, long: Sum, short: Sum) -> SSAValue:
        if short == Sum():
            return self._whole(long)
        return self._map("add", [self._whole(long), self._whole(short)], dtypes.i64)

    def _filled(self, op: tile.FillPaddingOp, long: Sum, short: Sum) -> SSAValue:
        limit = Sum(op.limit).plus(short, -1)
        inside = self._map("less", [self._whole(long), self._whole(limit)], dtypes.bool_)
        type = array_type(op.result)
        value = self._insert(tile.FullOp(value=op.value, result=tensor(type)))
        return self._map("select", [inside, op.source, value], type.dtype)

    def _shape_of(self, total: Sum) -> tuple[int, ...]:
        """The tile's shape, of one element along the dims that a sum does not name."""
        own = {d for d, _ in total.dims}
        return tuple(size if d in own else 1 for d, size in enumerate(self._shape))

    def _tile(self, total: Sum) -> SSAValue:
        """The tile of a sum, in the outermost block in which its symbols are known."""
        shape = self._shape_of(total)
        symbols = [self._op.symbols[position] for position, _ in total.symbols]
        expression = AffineExpr.constant(total.constant)
        for d, coefficient in total.dims:
            expression = plus(expression, times(AffineExpr.dimension(d), coefficient))
        for number, (_, coefficient) in enumerate(total.symbols):
            expression = plus(expression, times(AffineExpr.symbol(number), coefficient))
        map = AffineMap(len(shape), len(symbols), (expression,))
        made = tile.IotaOp(symbols=symbols, map=map, result=tensor(ArrayType(shape, dtypes.i64)))
        before = self._first_in(symbols)
        known = _equal_before(made, before)
        return self._insert(made, before) if known is None else known

    def _first_in(self, symbols: Sequence[SSAValue]) -> Operation:
        """The operation before which a tile of some symbols is made: this one, or the outermost loop around it that has
        none of the symbols."""
        before: Operation = self._op
        blocks = {symbol.owner for symbol in symbols}
        while (
            (block := before.parent_block()) is not None
            and block is not self._kernel.body.block
            and block not in blocks
        ):
            parent = block.parent_op()
            if not isinstance(parent, tile.ForOp):
                break
            before = parent
        return before

    def _whole(self, total: Sum) -> SSAValue:
        """The tile of a sum, broadcast to the position's shape."""
        value = self._tile(total)
        if array_type(value).shape == self._shape:
            return value
        result = tensor(ArrayType(self._shape, dtypes.i64))
        return self._insert(tile.BroadcastOp(arguments=[value], axes=tuple(range(len(self._shape))), outputs=[result]))

    def _map(self, fn: str, operands: Sequence[SSAValue], dtype: dtypes.DType) -> SSAValue:
        result = tensor(ArrayType(self._shape, dtype))
        return self._insert(tile.MapOp(arguments=list(operands), fn=fn, outputs=[result]))

    def _insert(self, made: Operation, before: Operation | None = None) -> SSAValue:
        made.location = self._op.location
        before = self._op if before is None else before
        insert_before(before, made)
        return made.results[0]


def _equal_before(made: tile.IotaOp, before: Operation) -> SSAValue | None:
    """A tile of the same positions that is made before an operation in its block."""
    for op in block_of(before).ops:
        if op is before:
            return None
        if isinstance(op, tile.IotaOp) and op.is_structurally_equivalent(made):
            return op.result
    return None


def _elements(shape: Sequence[int]) -> int:
    """Elements of a tile's pages that a mover stores."""
    paging = Paging.default(shape)
    return paging.pages(shape) * prod(paging.corner)
