"""Nests of loops around a matmul whose right operand is a view that moves by any distance from step to step, as a
convolution's window does: one matmul sums over all loops, and reads both operands in place.

Before:
    func.func @main(%w: tensor<4x2x3xf32>, %x: tensor<2x33xf32>) -> tensor<4x31xf32> {
      %y = array.call(%w, %x) {callee = "contract_0"} : tensor<4x31xf32>
      func.return %y : tensor<4x31xf32>
    }
    tile.kernel() {sym_name = "contract_0", grid = array<i64: 2>, effects = ["in", "in", "out"]} do {
    ^bb0(%w: !tile.ref<tensor<4x2x3xf32>>, %x: !tile.ref<tensor<2x33xf32>>, %out: !tile.ref<tensor<4x31xf32>>,
        %j: index):
      %zero = tile.full() {value = 0.0 : f64} : tensor<4x16xf32>
      %total = tile.for(%zero) {trips = 3 : index} do {
      ^bb0(%i: index, %sum: tensor<4x16xf32>):
        %left = tile.load(%w, %i) {map = affine_map<(d0, d1)[s0] -> (d0, d1, s0)>} : tensor<4x2xf32>
        %right = tile.load(%x, %i, %j)
          {map = affine_map<(d0, d1)[s0, s1] -> (d0, d1 + s0 + s1 * 16)>} : tensor<2x16xf32>
        %next = tile.dot(%left, %right, %sum) {atom = "micro-kernel, 4 x 16"} : tensor<4x16xf32>
        tile.yield(%next)
      } : tensor<4x16xf32>
      tile.store(%total, %out, %j) {map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * 16)>}
      tile.yield()
    }
After:
    func.func @main(%w: tensor<4x2x3xf32>, %x: tensor<2x33xf32>) -> tensor<4x31xf32> {
      %y = array.call(%w, %x) {callee = "contract_0"} : tensor<4x31xf32>
      func.return %y : tensor<4x31xf32>
    }
    tile.kernel() {sym_name = "contract_0", grid = array<i64>, effects = ["in", "in", "out"]} do {
    ^bb0(%w: !tile.ref<tensor<4x2x3xf32>>, %x: !tile.ref<tensor<2x33xf32>>, %out: !tile.ref<tensor<4x31xf32>>):
      scheduled.parallel() {extents = array<i64: 2>, grain = 1 : index} do {
      ^bb0(%j: index):
        scheduled.dot(%w, %x, %out, %j, %j) {extents = array<i64: 4, 16, 2>, steps = array<i64: 3>,
          block = "(4, 16) : [4@reg*2 | 2@reg 8@simd]",
          left_map = affine_map<(d0, d1, d2)[s0, s1] -> (d0, d1, d2)>,
          right_map = affine_map<(d0, d1, d2)[s0, s1] -> (d0, d1 + d2 + s0 * 16)>,
          accumulator_map = affine_map<(d0, d1)[s0, s1] -> (d0, d1 + s1 * 16)>, accumulate = false}
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.passes.affine_access import Form, Index, linear_form
from tilewright.passes.vectors.nest_segments import round_up
from tilewright.passes.vectors.product_operands import reads_its_array, result_store, span, untransposed

# The dims of a result, and of its operands' maps: those of the left one begin with rows, those of the right one with
# the depth.
_ROWS, _COLUMNS = 0, 1


class Window(msgspec.Struct, frozen=True):
    """A window of an array, whose `map` is from two dims of a matmul and the counters of the loops around it."""

    source: SSAValue
    map: AffineMap
    symbols: tuple[SSAValue, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tile.ref_type(self.source).shape

    @property
    def forms(self) -> list[Form] | None:
        """The coordinates as linear forms; None where one of them is not linear."""
        at = tuple(Index(dim) for dim in range(self.map.num_dims))
        forms = [form for e in self.map.results if (form := linear_form(e, at)) is not None]
        return forms if len(forms) == len(self.map.results) else None

    def terms(self, form: Form) -> list[tuple[SSAValue, int]]:
        return [(self.symbols[position], coefficient) for position, coefficient in form.symbols]

    def is_inside(self, forms: Sequence[Form], extents: Sequence[int], but: int) -> bool:
        """Whether all coordinates, but the one numbered `but`, are inside the array."""
        for number, (form, size) in enumerate(zip(forms, self.sizes, strict=True)):
            low, high = self.bounds(form, extents)
            if number != but and (low < 0 or high >= size):
                return False
        return True

    def bounds(self, form: Form, extents: Sequence[int], less: Sequence[tuple[SSAValue, int]] = ()) -> tuple[int, int]:
        """The smallest and the largest value of a coordinate, `less` some multiples of index scalars."""
        low, high = span(form.constant, [*self.terms(form), *((symbol, -factor) for symbol, factor in less)])
        moves = [factor * (extents[dim] - 1) for dim, factor in form.dims]
        return low + sum(min(0, n) for n in moves), high + sum(max(0, n) for n in moves)


class Target(msgspec.Struct, frozen=True):
    """The window of an array that a store writes, from the two dims of a result."""

    store: tile.StoreOp
    window: Window

    def along(self, dim: int) -> tuple[int, Form] | None:
        """The size of the array along a dim of the result, and the coordinate."""
        forms = zip(self.window.sizes, self.window.forms or (), strict=False)
        return next(((size, form) for size, form in forms if form.coefficient(dim)), None)


class ProductNest(msgspec.Struct, frozen=True):
    """Loops of as many `steps` that a `dot` adds up in, and what it writes, where that is its only use."""

    dot: tile.DotOp
    steps: tuple[int, ...]
    left: Window
    right: Window
    target: Target | None


def matmul_in(loop: tile.ForOp) -> tile.DotOp | None:
    """The only matmul in a nest of loops that carries one sum, from zero, and nothing between the loops."""
    loops = _loops(loop)
    return None if loops is None else _sum_of(loops[-1])


def product_nest(loop: tile.ForOp, dot: tile.DotOp, conflicts: set[SSAValue], width: int) -> ProductNest | None:
    """The nest of loops around a matmul whose register blocks are `width` wide; None where an operand is not read in
    place, or the right one is in panels that serve many tiles."""
    loops = _loops(loop)
    if loops is None or reads_its_array(dot, width):
        return None
    left, right = _window(dot.left, loops), _window(dot.right, loops)
    if left is None or right is None or {left.source, right.source} & conflicts:
        return None
    read = {dot, *_reads(dot.left), *_reads(dot.right)}
    if read != set(list(loops[-1].body.block.ops)[:-1]):
        return None
    target = _target(loop, width)
    if target is not None and target.store.destination in conflicts:
        target = None
    steps = tuple(each.trips for each in loops)
    if not _reads_rows(dot, left, steps, target) or not _reads_columns(dot, right, steps, target, width):
        return None
    return ProductNest(dot, steps, left, right, target)


def _loops(loop: tile.ForOp) -> list[tile.ForOp] | None:
    """Loops that carry one sum, from zero, each alone in the one before."""
    if len(loop.initial) != 1 or not _is_zero(loop.initial[0]):
        return None
    found = [loop]
    while True:
        last = found[-1]
        inner = last.body.block.first_op
        if last.end is not None or not last.trips:
            return None
        if not isinstance(inner, tile.ForOp):
            return found
        is_alone = inner.next_op is last.body.block.last_op and _total(last) is inner.results[0]
        if not is_alone or list(inner.initial) != [last.body.block.args[1]]:
            return None
        found.append(inner)


def _is_zero(value: SSAValue) -> bool:
    return isinstance(value.owner, tile.FullOp) and value.owner.value == 0


def _total(loop: tile.ForOp) -> SSAValue | None:
    """The sum after a trip of a loop."""
    last = loop.body.block.last_op
    return last.operands[0] if isinstance(last, tile.YieldOp) else None


def _sum_of(loop: tile.ForOp) -> tile.DotOp | None:
    """The matmul that adds to what a loop carries."""
    total, carried = _total(loop), loop.body.block.args[1]
    dot = None if total is None else total.owner
    return dot if isinstance(dot, tile.DotOp) and dot.accumulator is carried and carried.has_one_use() else None


def _reads(value: SSAValue) -> list[Operation]:
    """The operations from a load to an operand."""
    found: list[Operation] = []
    while isinstance(value.owner, tile.TransposeOp | tile.CastOp | tile.BroadcastOp | tile.LoadOp):
        found.append(value.owner)
        if isinstance(value.owner, tile.LoadOp):
            break
        value = value.owner.operands[0]
    return found


def _window(value: SSAValue, loops: Sequence[tile.ForOp]) -> Window | None:
    """The window of an array that feeds an operand."""
    permutation, inner = untransposed(value)
    if isinstance(inner.owner, tile.CastOp):
        inner = inner.owner.operands[0]
    kept = (0, 1)
    if isinstance(inner.owner, tile.BroadcastOp):
        kept, inner = inner.owner.axes, inner.owner.operands[0]
    load = inner.owner
    if not isinstance(load, tile.LoadOp) or any(not isinstance(s.type, IndexType) for s in load.symbols):
        return None
    counters: list[SSAValue] = [loop.body.block.args[0] for loop in loops]
    others = [s for s in dict.fromkeys(load.symbols) if s not in counters]
    dims: list[AffineExpr] = [AffineExpr.constant(0)] * 2
    for position, source in enumerate(permutation):
        dims[source] = AffineExpr.dimension(position)
    symbols = [
        AffineExpr.dimension(2 + counters.index(s)) if s in counters else AffineExpr.symbol(others.index(s))
        for s in load.symbols
    ]
    results = tuple(e.replace_dims_and_symbols([dims[dim] for dim in kept], symbols) for e in load.map.results)
    return Window(load.source, AffineMap(2 + len(loops), len(others), results), tuple(others))


def _target(loop: tile.ForOp, width: int) -> Target | None:
    """The array that a nest writes, from a whole register block on; a single row may be stored without its dim."""
    result, places = loop.results[0], [AffineExpr.dimension(_ROWS), AffineExpr.dimension(_COLUMNS)]
    only = next(iter(result.uses)).operation if result.has_one_use() else None
    if isinstance(only, tile.ReshapeOp) and array_type(only.results[0]).shape == array_type(result).shape[1:]:
        result, places = only.results[0], places[1:]
    store = result_store(result, width)
    if store is None:
        return None
    map, symbols = store.map, [AffineExpr.symbol(number) for number in range(store.map.num_symbols)]
    results = tuple(e.replace_dims_and_symbols(places, symbols) for e in map.results)
    return Target(store, Window(store.destination, AffineMap(2, map.num_symbols, results), tuple(store.symbols)))


def _reads_rows(dot: tile.DotOp, left: Window, steps: tuple[int, ...], target: Target | None) -> bool:
    """Whether a left operand is read in place: its rows, which may end before the tile does, run along one dim of an
    array alone, and are those of the array that is written."""
    forms, rows = left.forms, array_type(dot.left).shape
    if forms is None or tile.ref_type(left.source).dtype != array_type(dot.accumulator).dtype:
        return False
    along = [number for number, form in enumerate(forms) if form.coefficient(_ROWS)]
    if not along and rows[0] == 1:
        return left.is_inside(forms, (*rows, *steps), -1)
    if len(along) != 1 or forms[along[0]].dims != ((_ROWS, 1),):
        return False
    row = forms[along[0]]
    if target is not None:
        written = target.along(_ROWS)
        if written is None or written[0] != left.sizes[along[0]] or written[1].constant != row.constant:
            return False
        if set(target.window.terms(written[1])) != set(left.terms(row)):
            return False
    return left.is_inside(forms, (*rows, *steps), along[0])


def _reads_columns(dot: tile.DotOp, right: Window, steps: tuple[int, ...], target: Target | None, width: int) -> bool:
    """Whether a right operand is read in place: its columns are adjacent, and inside the array if they are inside the
    one that is written, or if they are of the register blocks that fill a buffer."""
    forms, (depth, columns) = right.forms, array_type(dot.right).shape
    if forms is None or tile.ref_type(right.source).dtype.compute != array_type(dot.accumulator).dtype:
        return False
    last = len(forms) - 1
    if [form.coefficient(_COLUMNS) for form in forms] != [0] * last + [1]:
        return False
    extents = (depth, round_up(columns, width), *steps)
    if not right.is_inside(forms, extents, last):
        return False
    low, high = right.bounds(forms[last], extents)
    if target is not None:
        written = target.along(_COLUMNS)
        if written is None:
            return False
        size, form = written
        less = target.window.terms(form)
        high = right.bounds(forms[last], (depth, 1, *steps), less)[1] - form.constant + size - 1
    return low >= 0 and high < right.sizes[last]
