"""Store results of matmuls in parts directly to their destination.

The result of a matmul in parts is checked before it is used: if not all of it is finite, it is computed again. So the
result is in a buffer, which is copied to an array at the end. If the result has no other use and all blocks of the
matmul are full and within the array, the matmul writes the array, block by block, and the check reads the array.

Before:
    func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x32xf32>) -> tensor<64x32xf32> {
      %y = array.call(%x, %w) {callee = "contract_0"} : tensor<64x32xf32>
      func.return %y : tensor<64x32xf32>
    }
    tile.kernel() {sym_name = "contract_0", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x32xf32>>, %w: !tile.ref<tensor<32x32xf32>>, %out: !tile.ref<tensor<64x32xf32>>):
      scheduled.parallel() {extents = array<i64: 2>, grain = 1 : index} do {
      ^bb0(%i: index):
        %total = scheduled.alloc() : !tile.ref<tensor<32x32xf32>, "worker">
        %sum = scheduled.alloc() : !tile.ref<tensor<f32>, "worker">
        scheduled.dot(%x, %w, %total, %i) {extents = array<i64: 32, 32, 32>,
          block = "(32, 32) : [32@reg*2 | 2@reg 16@simd]",
          left_map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 32, d1)>, right_map = affine_map<(d0, d1)[s0] -> (d0, d1)>,
          accumulate = false, parts = 3 : index, scale = 24 : index}
        scheduled.nest() do {
          %t = tile.load(%total) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
          %d = tile.map(%t, %t) {fn = "subtract"} : tensor<32x32xf32>
          %s = tile.reduce(%d) {fn = "add", axes = array<i64: 0, 1>} : tensor<f32>
          tile.store(%s, %sum) {map = affine_map<() -> ()>}
          scheduled.end()
        }
        scheduled.nest() do {
          %y = tile.load(%total) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
          tile.store(%y, %out, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 32, d1)>}
          scheduled.end()
        }
        scheduled.end()
      }
      tile.yield()
    }
After:
    builtin.module {
      func.func @main(%0: tensor<64x32xf32>, %1: tensor<32x32xf32>) -> tensor<64x32xf32> {
        %2 = array.call(%0, %1) {callee = "contract_0"} : tensor<64x32xf32>
        func.return %2 : tensor<64x32xf32>
      }
      tile.kernel() {sym_name = "contract_0", grid = array<i64>, effects = ["in", "in", "out"]} do {
      ^bb0(%0: !tile.ref<tensor<64x32xf32>>, %1: !tile.ref<tensor<32x32xf32>>, %2: !tile.ref<tensor<64x32xf32>>):
        scheduled.parallel() {extents = array<i64: 2>, grain = 1 : index} do {
        ^bb0(%3: index):
          %4 = scheduled.alloc() : !tile.ref<tensor<f32>, "worker">
          scheduled.dot(%0, %1, %2, %3, %3) {extents = array<i64: 32, 32, 32>, block =
            "(32, 32) : [32@reg*2 | 2@reg 16@simd]", left_map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s0 * 32)),
            d1)>, right_map = affine_map<(d0, d1)[s0, s1] -> (d0, d1)>, accumulate = false, parts = 3 : index, scale
            = 24 : index, accumulator_map = affine_map<(d0, d1)[s0, s1] -> ((d0 + (s1 * 32)), d1)>}
          scheduled.nest() do {
            %5 = tile.load(%2, %3) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 32)), d1)>} : tensor<32x32xf32>
            %6 = tile.map(%5, %5) {fn = "subtract"} : tensor<32x32xf32>
            %7 = tile.reduce(%6) {fn = "add", axes = array<i64: 0, 1>} : tensor<f32>
            tile.store(%7, %4) {map = affine_map<() -> ()>}
            scheduled.end()
          }
          scheduled.end()
        }
        tile.yield()
      }
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from xdsl.ir import BlockArgument, Operation
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import rebuilt
from tilewright.dialects.rewriting import erase, replace
from tilewright.passes.affine_access import Index, linear_form
from tilewright.passes.base import Remark, Unit

_IDENTITY = AffineMap.identity(2)


class ScheduledStoreProductsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "scheduled-store-products"

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            for op in list(kernel.walk()):
                window = _window_of(op) if isinstance(op, scheduled.DotOp) and op.parts is not None else None
                if window is not None:
                    window.take_the_place()
                    subject = f"result of {kernel.sym_name}"
                    unit.remarks.append(Remark(self.name, subject, "stored by the matmul", "no epilogue"))


class _Window(msgspec.Struct, frozen=True):
    """A nest that copies a matmul's result from its buffer to an array."""

    dot: scheduled.DotOp
    alloc: scheduled.AllocOp
    nest: scheduled.NestOp
    store: tile.StoreOp

    def take_the_place(self) -> None:
        """Of the buffer, wherever that is read or written."""
        for user in [use.operation for use in self.alloc.result.uses]:
            if isinstance(user, tile.LoadOp | tile.StoreOp) and user.parent_op() is not self.nest:
                self._move(user)
        self._write_window()
        for op in (self.nest, self.alloc):
            erase(op)

    def _move(self, op: tile.LoadOp | tile.StoreOp) -> None:
        map, counted = op.map, len(op.symbols)
        own = [AffineExpr.symbol(counted + i) for i in range(len(self.store.symbols))]
        results = tuple(e.replace_dims_and_symbols(map.results, own) for e in self.store.map.results)
        stored = [op.value] if isinstance(op, tile.StoreOp) else []
        operands = [*stored, self.store.destination, *op.symbols, *self.store.symbols]
        moved = rebuilt(op, operands)
        moved.map = AffineMap(map.num_dims, counted + len(own), results)
        replace(op, moved)

    def _write_window(self) -> None:
        dot, counted = self.dot, len(self.dot.symbols)
        symbols = [*dot.symbols, *self.store.symbols]
        own = [AffineExpr.symbol(counted + i) for i in range(len(self.store.symbols))]
        dims = [AffineExpr.dimension(d) for d in range(2)]
        stored = rebuilt(dot, [dot.left, dot.right, self.store.destination, *symbols])
        stored.left_map = AffineMap(2, len(symbols), dot.left_map.results)
        stored.right_map = AffineMap(2, len(symbols), dot.right_map.results)
        results = tuple(e.replace_dims_and_symbols(dims, own) for e in self.store.map.results)
        stored.accumulator_map = AffineMap(2, len(symbols), results)
        replace(dot, stored)


def _window_of(dot: scheduled.DotOp) -> _Window | None:
    """The destination of an unmodified result of a matmul; None if it has other uses, or if blocks reach beyond the
    array."""
    alloc = dot.accumulator.owner
    if not isinstance(alloc, scheduled.AllocOp) or dot.accumulate or dot.depth_map is not None:
        return None
    users = [use.operation for use in alloc.result.uses if use.operation is not dot]
    if not all(isinstance(user, tile.LoadOp | tile.StoreOp) for user in users):
        return None
    for user in users:
        nest = user.parent_op()
        if isinstance(nest, scheduled.NestOp) and nest.parent_block() is dot.parent_block():
            store = _copied_by(nest, user)
            if store is not None and _is_whole(dot, store):
                return _Window(dot, alloc, nest, store)
    return None


def _copied_by(nest: scheduled.NestOp, load: Operation) -> tile.StoreOp | None:
    """The store of a nest that does nothing but to copy what is loaded, to an array that nothing else touches."""
    ops = list(nest.body.block.ops)
    store = ops[1] if len(ops) == 3 and ops[0] is load else None
    if not isinstance(load, tile.LoadOp) or not isinstance(store, tile.StoreOp) or store.value is not load.result:
        return None
    alone = isinstance(store.destination, BlockArgument) and store.destination.has_one_use()
    return store if alone and load.map == _IDENTITY and not load.symbols else None


def _is_whole(dot: scheduled.DotOp, store: tile.StoreOp) -> bool:
    """Whether a store is of a window that begins where a block does, within the array, its columns side by side."""
    ref, map = tile.ref_type(store.destination), store.map
    if ref.layout.data or map.num_dims != 2 or any(isinstance(s.owner, tile.LoadOp) for s in store.symbols):
        return False
    forms = [linear_form(e, (Index(0), Index(1))) for e in map.results]
    along: list[int] = []
    for form, size in zip(forms, ref.shape, strict=True):
        if form is None:
            return False
        for dim, stride in form.dims:
            extent, block = dot.shape[dim], dot.micro_tile[dim]
            steps = [form.constant, *(c for _, c in form.symbols)]
            if stride != 1 or size % extent or extent % block or any(step % extent for step in steps):
                return False
            along.append(dim)
    last = forms[-1]
    return sorted(along) == [0, 1] and last is not None and last.coefficient(1) == 1
