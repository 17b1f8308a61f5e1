"""Merge adjacent dimensions with equal accesses in a loop group, and drop those of size 1; in the group of a
contraction of narrow types, the row dimensions where the innermost one has few.

A kernel then has as few loops, and as long rows, as its operations allow: what is elementwise runs over one dimension,
and a reduction's dimensions are kept and reduced in turn. Tiles of a matmul have as many rows as is good for them, as
where tokens of several short texts are multiplied by the same weights. The arrays around it are reshaped, which costs
nothing. Last before tile sizes are chosen, because fusion would take such reshapes for borders.

Before:
    func.func @main(%x: tensor<8x3x5x4xf32>, %y: tensor<8x3xf32>) -> tensor<8x3xf32> {
      %z = array.fused(%x, %y) {kind = "loop", why = "add multiply"} do {
      ^bb0(%a: tensor<8x3x5x4xf32>, %b: tensor<8x3xf32>):
        %sum = array.reduce(%a) {fn = "add", axes = array<i64: 2, 3>} : tensor<8x3xf32>
        %c = array.map(%sum, %b) {fn = "multiply"} : tensor<8x3xf32>
        array.yield(%c)
      } : tensor<8x3xf32>
      func.return %z : tensor<8x3xf32>
    }
After:
    func.func @main(%x: tensor<8x3x5x4xf32>, %y: tensor<8x3xf32>) -> tensor<8x3xf32> {
      %xs = array.reshape(%x) : tensor<24x20xf32>
      %ys = array.reshape(%y) : tensor<24xf32>
      %zs = array.fused(%xs, %ys) {kind = "loop", why = "add multiply"} do {
      ^bb0(%a: tensor<24x20xf32>, %b: tensor<24xf32>):
        %sum = array.reduce(%a) {fn = "add", axes = array<i64: 1>} : tensor<24xf32>
        %c = array.map(%sum, %b) {fn = "multiply"} : tensor<24xf32>
        array.yield(%c)
      } : tensor<24xf32>
      %z = array.reshape(%zs) : tensor<8x3xf32>
      func.return %z : tensor<8x3xf32>
    }
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, Region, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_before, yielded
from tilewright.passes.array.fusion import (
    ELEMENTWISE,
    StructuralKey,
    is_splat,
    is_unit_reshape,
    structural_key,
)
from tilewright.passes.base import Remark, Unit, blocks_of
from tilewright.passes.kernels.contract_facts import sides_of
from tilewright.passes.kernels.lower_loop_group import group_space
from tilewright.primitives import ArrayType


class ArrayCollapseDimsPass(msgspec.Struct, frozen=True):
    """`merges_rows`: also in contractions."""

    name: ClassVar[str] = "array-collapse-dims"
    merges_rows: bool = False

    def apply(self, unit: Unit) -> None:
        known: dict[StructuralKey, list[_Runs] | None] = {}
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if not isinstance(op, array.FusedOp):
                    continue
                if op.kind == "loop" or (self.merges_rows and op.kind == "contract" and _has_short_rows(op)):
                    _collapse(unit, op, known)


# From so many elements on, rows of a concatenation or a padding stay rows: each is of one operand, so that loops along
# them need no masks.
LONG_ROW = 64
# From so many rows on, tiles of a contraction fill those of each outer index but for a few.
MANY_ROWS = 256
# Of wider elements, which matrix instructions do not multiply, tiles of few rows take less time: five texts of 16
# tokens by weights of f32 0.6 of that of 80 rows.
NARROW_BYTES = 2

# Dimensions of a value that belong together, outermost first, without those of size 1.
_Runs = list[list[int]]
# A place between two neighbouring dimensions of a value that have more than one element; None: where nothing merges.
_Border = tuple[SSAValue, int] | None


class _Borders:
    """Which borders are kept, those that must be kept or dropped together being one class."""

    def __init__(self) -> None:
        self._parents: dict[_Border, _Border] = {}

    def tie(self, first: _Border, second: _Border) -> None:
        self._parents[self._root(first)] = self._root(second)

    def keep(self, border: _Border) -> None:
        self.tie(border, None)

    def _root(self, border: _Border) -> _Border:
        path: list[_Border] = []
        while (parent := self._parents.get(border, border)) != border:
            path.append(border)
            border = parent
        self._parents.update(dict.fromkeys(path, border))
        return border

    def relate(self, source: SSAValue, result: SSAValue, place: Mapping[int, int]) -> None:
        """Two values of which some dimensions are the same: `place` maps the source's to the result's."""
        back = {position: d for d, position in place.items()}
        self._tiepairwise(source, result, place)
        self._tiepairwise(result, source, back)

    def _tiepairwise(self, first: SSAValue, second: SSAValue, place: Mapping[int, int]) -> None:
        dims = _dims(second)
        order = {d: n for n, d in enumerate(dims)}
        for here, after in pairwise(_dims(first)):
            if here not in place and after not in place:
                continue
            if here in place and after in place and order[place[after]] == order[place[here]] + 1:
                self.tie((first, here), (second, place[here]))
            else:
                self.keep((first, here))

    def runs(self, value: SSAValue) -> _Runs:
        found: _Runs = []
        kept = self._root(None)
        previous: int | None = None
        for d in _dims(value):
            if previous is None or self._root((value, previous)) == kept:
                found.append([])
            found[-1].append(d)
            previous = d
        return found


def _dims(value: SSAValue) -> list[int]:
    """The dimensions of more than one element."""
    return [d for d, n in enumerate(array_type(value).shape) if n != 1]


def _collapse(unit: Unit, group: array.FusedOp, known: dict[StructuralKey, list[_Runs] | None]) -> None:
    """Collapse a group. `known` has the runs of the values of each group that was looked at, by its structure."""
    key = structural_key(group.body)
    if key not in known:
        known[key] = _runs(group)
    runs = known[key]
    if runs is None:
        return
    space, _ = group_space(group)
    new = _collapsed(group, dict(zip(_values(group), runs, strict=True)))
    shape, _ = group_space(new)
    texts = ("x".join(map(str, each)) for each in (space, shape))
    unit.remarks.append(
        Remark(ArrayCollapseDimsPass.name, group.why, " as ".join(texts), "dimensions with the same accesses")
    )


def _values(group: array.FusedOp) -> list[SSAValue]:
    body = group.body.block
    return [*body.args, *(r for op in body.ops for r in op.results)]


def _runs(group: array.FusedOp) -> list[_Runs] | None:
    """The dimensions of each value that become one; None where none are merged."""
    values = _values(group)
    if any(0 in array_type(v).shape for v in values) or not all(map(_has_rule, group.body.block.ops)):
        return None
    borders = _borders(group)
    if borders is None:
        return None
    runs = [borders.runs(value) for value in values]
    if not all(_joins_runs(op, dict(zip(values, runs, strict=True))) for op in group.body.block.ops):
        return None
    space, _ = group_space(group)
    keeps_all = all(len(found) == array_type(v).rank for v, found in zip(values, runs, strict=True))
    return None if keeps_all or max(space, default=1) == 1 else runs


def _has_short_rows(group: array.FusedOp) -> bool:
    """Whether the contraction of a group has several row dimensions, of the innermost of which it has few, and has more
    than one column and term."""
    for op in group.body.block.ops:
        if isinstance(op, array.ContractOp):
            left, right = sides_of(op)
            if array_type(left.value).dtype.itemsize > NARROW_BYTES:
                return False
            rows, columns, terms = (
                [n for n in (array_type(side.value).shape[d] for d in dims) if n != 1]
                for side, dims in ((left, left.free), (right, right.free), (left, left.contracted))
            )
            return len(rows) > 1 and rows[-1] < MANY_ROWS and bool(columns) and bool(terms)
    return False


def _axes(op: array.ReduceOp | array.BroadcastOp) -> tuple[int, ...]:
    axes: tuple[int, ...] = op.axes
    return axes


def _has_rule(op: Operation) -> bool:
    """Whether it is known how an operation treats each dimension."""
    if isinstance(op, array.ReduceOp):
        shape, axes = array_type(op.operands[0]).shape, _axes(op)
        return any(shape[d] != 1 for d in axes)
    if isinstance(op, array.IotaOp | array.ConcatOp):
        axis: int = op.axis
        return array_type(op.results[0]).shape[axis] != 1
    if isinstance(op, array.GatherOp):
        source, *indices = op.operands
        return all(array_type(source).shape[axis] != 1 for axis in op.axes) and source not in indices
    if isinstance(op, array.SliceOp | array.PadOp):
        return _dims(op.operands[0]) == _dims(op.results[0])
    if isinstance(op, array.ReverseOp):
        return all(array_type(op.results[0]).shape[axis] != 1 for axis in op.axes)
    if isinstance(op, array.ContractOp):
        return op.part is None and op.operands[0] is not op.operands[1]
    known = isinstance(op, (*ELEMENTWISE, array.BroadcastOp, array.TransposeOp, array.YieldOp))
    return known or is_splat(op) or is_unit_reshape(op)


def _joins_runs(op: Operation, runs: Mapping[SSAValue, _Runs]) -> bool:
    """Whether the operands of a concatenation have as many dimensions as the result: one that is a single row of its
    axis has one less unless the axis becomes one dimension with the next."""
    return not isinstance(op, array.ConcatOp) or all(len(runs[o]) == len(runs[op.results[0]]) for o in op.operands)


def _borders(group: array.FusedOp) -> _Borders | None:
    """The borders that a group's operations keep, and its lowering, which goes by the shape of all; None where a result
    has another shape than the lowering knows."""
    borders = _Borders()
    body = group.body.block
    for op in body.ops:
        if isinstance(op, array.ArrayOp):
            _relate(borders, op)
    if group.kind == "contract":
        return borders
    space, reduced = group_space(group)
    full = [v for op in body.ops for v in (*op.operands, *op.results) if array_type(v).shape == space]
    for value in full[1:]:
        borders.relate(full[0], value, {d: d for d in _dims(value)})
    kept = [d for d in _dims(full[0]) if d not in reduced]
    in_parts = any(isinstance(op, array.ReduceOp) and op.part is not None for op in body.ops)
    for value in yielded(body):
        if array_type(value).shape == space and not in_parts:
            continue
        dims = _dims(value)[1:] if in_parts else _dims(value)
        if [array_type(value).shape[d] for d in dims] != [space[d] for d in kept]:
            return None
        borders.relate(full[0], value, dict(zip(kept, dims, strict=True)))
    return borders


def _relate(borders: _Borders, op: array.ArrayOp) -> None:
    """Tie the borders of an operation's operands to those of its result, and keep those that it needs."""
    match op:
        case array.IotaOp():
            _keep_around(borders, op.results[0], (op.axis,))
        case array.ConcatOp():
            _relate_joined(borders, op)
            return
        case array.PadOp():
            _keep_before_padding(borders, op)
            borders.relate(op.operands[0], op.results[0], _places(op, op.operands[0]))
            return
        case array.ContractOp():
            _keep_but_rows(borders, op)
        case array.ReduceOp():
            _keep_parts(borders, op)
        case array.ReverseOp() | array.GatherOp():
            _keep_around(borders, op.operands[0], op.axes)
        case array.SliceOp():
            _keep_between(borders, op)
        case _:
            pass
    for operand in op.operands:
        borders.relate(operand, op.results[0], _places(op, operand))


def _keep_but_rows(borders: _Borders, op: array.ContractOp) -> None:
    """No dimensions of a contraction merge but those of rows."""
    left, right = sides_of(op)
    for side, merging in ((left, left.free), (right, ())):
        for here, after in pairwise(_dims(side.value)):
            if here not in merging or after not in merging:
                borders.keep((side.value, here))


def _keep_around(borders: _Borders, value: SSAValue, axes: Sequence[int]) -> None:
    """Dimensions that are counted or indexed merge with no other ones."""
    for here, after in pairwise(_dims(value)):
        if here in axes or after in axes:
            borders.keep((value, here))


def _keep_before(borders: _Borders, value: SSAValue, axis: int) -> None:
    """A dimension merges with those inside it only."""
    for here, after in pairwise(_dims(value)):
        if after == axis:
            borders.keep((value, here))


def _has_long_rows(value: SSAValue, axis: int) -> bool:
    return math.prod(array_type(value).shape[axis + 1 :]) >= LONG_ROW


def _relate_joined(borders: _Borders, op: array.ConcatOp) -> None:
    """Rows of operands, one after another, are rows of what the axis becomes with dimensions inside it, also where an
    operand is a single row."""
    result, axis = op.results[0], op.axis
    _keep_before(borders, result, axis)
    if _has_long_rows(result, axis) and all(axis in _dims(operand) for operand in op.operands):
        _keep_around(borders, result, (axis,))
    for operand in op.operands:
        dims = _dims(operand)
        if axis in dims:
            borders.relate(operand, result, {d: d for d in dims})
            continue
        for here, after in pairwise(dims):
            if here < axis < after:
                borders.keep((operand, here))
            else:
                borders.tie((operand, here), (result, here))


def _keep_before_padding(borders: _Borders, op: array.PadOp) -> None:
    """Rows that are added before or after those of a dimension are rows of what it becomes with dimensions inside it;
    between rows they are apart."""
    for d, (low, high, interior) in enumerate(zip(op.low, op.high, op.interior, strict=True)):
        if interior or ((low or high) and _has_long_rows(op.operands[0], d)):
            _keep_around(borders, op.operands[0], (d,))
        elif low or high:
            _keep_before(borders, op.operands[0], d)


def _keep_between(borders: _Borders, op: array.SliceOp) -> None:
    """Dimensions merge if the slice of both has one stride: of rows without gaps, whose end is as far from the last
    element that is taken as the next one would be."""
    source, sizes = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    for here, after in pairwise(_dims(op.operands[0])):
        takes_all = op.starts[after] < op.strides[after] and sizes[after] * op.strides[after] == source[after]
        if op.strides[here] != 1 or not takes_all:
            borders.keep((op.operands[0], here))


def _keep_parts(borders: _Borders, op: array.ReduceOp) -> None:
    """Parts of a dimension are parts of what it becomes where it is the outermost dimension of that."""
    axis = op.part_axis
    before = [] if axis is None or op.part is None else [d for d in _dims(op.operands[0]) if d < axis]
    if before:
        borders.keep((op.operands[0], before[-1]))


def _places(op: Operation, operand: SSAValue) -> dict[int, int]:
    """The result dimensions of an operand's dimensions, except those of size 1."""
    dims, kept = _dims(operand), _dims(op.results[0])
    if isinstance(op, array.ContractOp):
        left, right = sides_of(op)
        side, first = (left, len(left.batch)) if operand is left.value else (right, len(left.batch) + len(left.free))
        places = {d: n for n, d in enumerate(side.batch)} | {d: first + n for n, d in enumerate(side.free)}
        return {d: place for d, place in places.items() if d in dims}
    if isinstance(op, array.GatherOp):
        rank = array_type(op.operands[1]).rank
        if operand is not op.operands[0]:
            return {d: d for d in dims}
        rest = [d for d in range(array_type(operand).rank) if d not in op.axes]
        return {d: rank + n for n, d in enumerate(rest) if d in dims}
    if isinstance(op, array.BroadcastOp):
        return {d: _axes(op)[d] for d in dims}
    if isinstance(op, array.TransposeOp):
        permutation: tuple[int, ...] = op.permutation
        return {d: permutation.index(d) for d in dims}
    if isinstance(op, array.ReduceOp):
        dims = [d for d in dims if d not in _axes(op)]
        kept = kept if op.part is None else kept[1:]
    return dict(zip(dims, kept, strict=True))


def _collapsed(group: array.FusedOp, runs: Mapping[SSAValue, _Runs]) -> array.FusedOp:
    """Put a group of the collapsed shapes, between reshapes, in place of a group."""
    body = group.body.block
    inputs = [_reshape(o, _type(a, runs)) for o, a in zip(group.operands, body.args, strict=True)]
    block = Block(arg_types=[tensor(_type(a, runs)) for a in body.args])
    values: dict[SSAValue, SSAValue] = dict(zip(body.args, block.args, strict=True))
    for op in body.ops:
        if isinstance(op, array.ArrayOp):
            values[op.results[0]] = _rewritten(op, values, runs, block)
    results = [values[v] for v in yielded(body)]
    block.add_op(array.YieldOp(arguments=results))
    new = array.FusedOp(
        arguments=[r.results[0] for r in inputs],
        kind=group.kind,
        why=group.why,
        outputs=[v.type for v in results],
        body=Region(block),
    )
    outputs = [_reshape(r, array_type(old)) for r, old in zip(new.results, group.results, strict=True)]
    for op in (*inputs, new, *outputs):
        op.location = group.location
        insert_before(group, op)
    for old, output in zip(group.results, outputs, strict=True):
        old.replace_all_uses_with(output.results[0])
    erase(group)
    return new


def _type(value: SSAValue, runs: Mapping[SSAValue, _Runs]) -> ArrayType:
    type = array_type(value)
    return ArrayType(tuple(math.prod(type.shape[d] for d in run) for run in runs[value]), type.dtype)


def _reshape(value: SSAValue, type: ArrayType) -> Operation:
    return array.ReshapeOp(arguments=[value], outputs=[tensor(type)])


def _rewritten(
    op: array.ArrayOp, values: Mapping[SSAValue, SSAValue], runs: Mapping[SSAValue, _Runs], block: Block
) -> SSAValue:
    """The operation on collapsed values; that on none but dimensions of size 1 is gone."""
    operands = [values[o] for o in op.operands]
    type = _type(op.results[0], runs)
    new = rebuilt(op, operands, [tensor(type)])
    _rename_dims(op, new, runs)
    moves = isinstance(new, array.TransposeOp) and new.permutation != tuple(range(type.rank))
    computes = isinstance(op, (*ELEMENTWISE, array.GatherOp, array.ReverseOp, array.ContractOp))
    if not computes and not moves and operands and array_type(operands[0]) == type:
        new.erase()
        return operands[0]
    new.location = op.location
    block.add_op(new)
    return new.results[0]


def _rename_dims(op: array.ArrayOp, new: array.ArrayOp, runs: Mapping[SSAValue, _Runs]) -> None:
    """State the attributes of the copy of an operation in terms of runs."""
    match new:
        case array.IotaOp():
            new.axis = _number(runs[op.results[0]], new.axis)
        case array.ReduceOp():
            source, reduced = runs[op.operands[0]], new.axes
            new.axes = tuple(n for n, run in enumerate(source) if run[0] in reduced)
            if new.part is not None and new.part_axis is not None:
                number = _number(source, new.part_axis)
                inner = math.prod(array_type(op.operands[0]).shape[d] for d in source[number][1:])
                new.part_axis, new.part = number, new.part * inner
        case array.SliceOp():
            _merge_ranges(op, new, runs[op.operands[0]])
        case array.PadOp():
            _merge_padding(op, new, runs[op.operands[0]])
        case array.ConcatOp():
            new.axis = _number(runs[op.results[0]], new.axis)
        case array.ReverseOp():
            new.axes = tuple(_number(runs[op.results[0]], axis) for axis in new.axes)
        case array.GatherOp():
            new.axes = tuple(_number(runs[op.operands[0]], axis) for axis in new.axes)
        case array.ContractOp():
            left, right = (runs[operand] for operand in op.operands)
            new.left_batch, new.left_contract = (_numbers(left, dims) for dims in (new.left_batch, new.left_contract))
            new.right_batch, new.right_contract = (
                _numbers(right, dims) for dims in (new.right_batch, new.right_contract)
            )
        case array.BroadcastOp() | array.TransposeOp():
            place = _places(op, op.operands[0])
            numbers = tuple(_number(runs[op.results[0]], place[run[0]]) for run in runs[op.operands[0]])
            if isinstance(new, array.BroadcastOp):
                new.axes = numbers
            else:
                new.permutation = tuple(numbers.index(n) for n in range(len(numbers)))
        case _:
            pass


def _merge_ranges(op: array.ArrayOp, new: array.SliceOp, runs: _Runs) -> None:
    """State a slice in terms of runs, each of which has the stride of its innermost dimension."""
    source = array_type(op.operands[0]).shape
    sizes = array_type(new.results[0]).shape
    starts, strides = new.starts, new.strides
    first = [sum(starts[d] * math.prod(source[e] for e in run if e > d) for d in run) for run in runs]
    step = [strides[run[-1]] for run in runs]
    new.starts, new.strides = tuple(first), tuple(step)
    new.limits = tuple(f + (n - 1) * s + 1 for f, n, s in zip(first, sizes, step, strict=True))


def _merge_padding(op: array.ArrayOp, new: array.PadOp, runs: _Runs) -> None:
    """State a padding in terms of runs, of each of which the outermost dimension alone is padded."""
    source = array_type(op.operands[0]).shape
    low, high, interior = new.low, new.high, new.interior
    inner = [math.prod(source[d] for d in run[1:]) for run in runs]
    new.low = tuple(low[run[0]] * n for run, n in zip(runs, inner, strict=True))
    new.high = tuple(high[run[0]] * n for run, n in zip(runs, inner, strict=True))
    new.interior = tuple(interior[run[0]] for run in runs)


def _number(runs: _Runs, dim: int) -> int:
    """Which run a dimension is in."""
    return next(n for n, run in enumerate(runs) if dim in run)


def _numbers(runs: _Runs, dims: Sequence[int]) -> tuple[int, ...]:
    """Which runs dimensions are in that are runs of their own; those of size 1 are in none."""
    return tuple(n for dim in dims for n, run in enumerate(runs) if dim in run)
