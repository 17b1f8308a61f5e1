"""One padding instead of several: around a padded array, and around what is computed of padded arrays.

Elementwise functions of arrays that are padded alike are such functions padded by what they give of the padding, and a
transposed padding is a padding of the transposed array. With an outer padding of that value both are one, and
nothing in between is stored. A reduction of a padding that is its identity reduces what is inside. Before fusion, whose
loops take one padding each.

Before:
    func.func @main(%x: tensor<4x6xf32>) -> tensor<9x7xf32> {
      %zero = array.constant() {value = 0.0 : f64, resource = ""} : tensor<f32>
      %wide = array.pad(%x, %zero) {low = array<i64: 0, 1>, high = array<i64: 0, 1>, interior = array<i64: 0, 0>}
        : tensor<4x8xf32>
      %y = array.map(%wide, %wide) {fn = "add"} : tensor<4x8xf32>
      %t = array.transpose(%y) {permutation = array<i64: 1, 0>} : tensor<8x4xf32>
      %z = array.pad(%t, %zero) {low = array<i64: 1, 0>, high = array<i64: 0, 3>, interior = array<i64: 0, 0>}
        : tensor<9x7xf32>
      func.return %z : tensor<9x7xf32>
    }
After:
    func.func @main(%x: tensor<4x6xf32>) -> tensor<9x7xf32> {
      %zero = array.constant() {value = 0.0 : f64, resource = ""} : tensor<f32>
      %y = array.map(%x, %x) {fn = "add"} : tensor<4x6xf32>
      %t = array.transpose(%y) {permutation = array<i64: 1, 0>} : tensor<6x4xf32>
      %z = array.pad(%t, %zero) {low = array<i64: 2, 0>, high = array<i64: 1, 3>, interior = array<i64: 0, 0>}
        : tensor<9x7xf32>
      func.return %z : tensor<9x7xf32>
    }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec
import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tilewright import ops
from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import insert_like
from tilewright.dialects.walks import producers_first
from tilewright.passes.array.array_simplify import drop_unused
from tilewright.passes.array.fusion import ELEMENTWISE, is_splat, users
from tilewright.passes.base import Remark, Unit, blocks_of, where
from tilewright.primitives import ArrayType
from tilewright.runtime.dlpack import Tensor
from tilewright.semantics.array import apply as evaluate


class ArrayMergePadsPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-merge-pads"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            if any(isinstance(op, array.PadOp) for op in block.ops) and _merge_pads(unit, block):
                drop_unused(block)


class _Padding(msgspec.Struct, frozen=True):
    """`value` around an array: `low` and `high` elements along each axis."""

    value: Tensor
    low: tuple[int, ...]
    high: tuple[int, ...]

    def permuted(self, permutation: Sequence[int]) -> _Padding:
        low, high = (tuple(each[axis] for axis in permutation) for each in (self.low, self.high))
        return _Padding(self.value, low, high)

    def around(self, inner: _Padding) -> _Padding | None:
        """This padding and one that is inside, of the same value, as one."""
        if self.value.tobytes() != inner.value.tobytes():
            return None
        low, high = (
            tuple(a + b for a, b in zip(*each, strict=True))
            for each in ((self.low, inner.low), (self.high, inner.high))
        )
        return _Padding(self.value, low, high)


def _merge_pads(unit: Unit, block: Block) -> bool:
    merged = False
    paddings: dict[SSAValue, _Padding] = {}
    for op in list(block.ops):
        if isinstance(op, array.ReduceOp):
            inner = _inner(op.operands[0], paddings)
            if inner is not None and _changes_nothing(op, inner):
                subject, reason = f"{op.fn} at {where(op)}", f"{inner.value} changes nothing"
                unit.remarks.append(Remark(ArrayMergePadsPass.name, subject, "of what the padding surrounds", reason))
                _reduce_inside(op, paddings, inner)
                merged = True
            continue
        padding = _padding_of(op, paddings)
        if padding is None:
            continue
        inner = _inner(op.operands[0], paddings) if isinstance(op, array.PadOp) else None
        both = None if inner is None else padding.around(inner)
        if not isinstance(op, array.PadOp) or inner is None or both is None:
            paddings[op.results[0]] = padding
            continue
        reason = f"both are of {padding.value}"
        subject, what = f"padding at {where(op)}", "one with the padding of its operand"
        unit.remarks.append(Remark(ArrayMergePadsPass.name, subject, what, reason))
        paddings[_merge(op, paddings, both)] = both
        merged = True
    return merged


def _inner(value: SSAValue, paddings: Mapping[SSAValue, _Padding]) -> _Padding | None:
    """The padding of an operand, where what it surrounds is all that is needed of it."""
    return paddings.get(value) if len(users(value)) == 1 else None


def _padding_of(op: Operation, paddings: Mapping[SSAValue, _Padding]) -> _Padding | None:
    """The padding around the array that an operation gives, if there is one."""
    if isinstance(op, array.PadOp):
        around = _splat_of(op.operands[1])
        return None if around is None or any(op.interior) else _Padding(around, op.low, op.high)
    if isinstance(op, array.TransposeOp):
        inner = _inner(op.operands[0], paddings)
        return None if inner is None else inner.permuted(op.permutation)
    return _padding_of_elements(op, paddings) if isinstance(op, ELEMENTWISE) else None


def _padding_of_elements(op: array.ArrayOp, paddings: Mapping[SSAValue, _Padding]) -> _Padding | None:
    """The padding of what is computed element by element of arrays that are padded alike, and of constants."""
    inner = [_inner(operand, paddings) for operand in op.operands]
    widths = {(each.low, each.high) for each in inner if each is not None}
    if len(widths) != 1:
        return None
    values: list[Tensor] = []
    for operand, each in zip(op.operands, inner, strict=True):
        value = _splat_of(operand) if each is None else each.value
        if value is None:
            return None
        values.append(value)
    type = array_type(op.results[0])
    attributes = op.attributes_of() | {"shape": (), "dtype": type.dtype.name}
    (result,) = evaluate(op.primitive, values, attributes)
    return _Padding(np.asarray(result, type.dtype.numpy), *widths.pop())


def _splat_of(value: SSAValue) -> Tensor | None:
    """The value of a constant all of whose elements are equal."""
    op = value.owner
    if not isinstance(op, array.ConstantOp) or not is_splat(op):
        return None
    return np.asarray(op.value).astype(array_type(value).dtype.numpy)


def _changes_nothing(op: array.ReduceOp, padding: _Padding) -> bool:
    """Whether elements of the padding, which a reduction reads, are its identity."""
    identity, dtype = ops.FUNCTIONS[op.fn].identity, array_type(op.operands[0]).dtype
    pads = any(padding.low[axis] or padding.high[axis] for axis in op.axes)
    return pads and op.part is None and identity is not None and bool(padding.value == identity(dtype))


def _reduce_inside(op: array.ReduceOp, paddings: Mapping[SSAValue, _Padding], padding: _Padding) -> None:
    """Reduce what a padding surrounds; its part along the dims that are kept is a padding of the result."""
    core, result = _core(op, paddings), array_type(op.results[0])
    kept = [axis for axis in range(len(padding.low)) if axis not in op.axes]
    low, high = (tuple(each[axis] for axis in kept) for each in (padding.low, padding.high))
    shape = tuple(array_type(core).shape[axis] for axis in kept)
    made = rebuilt(op, [core], [tensor(ArrayType(shape, result.dtype))])
    insert_like(op, made)
    value = made.results[0]
    if shape != result.shape:
        plain = float(padding.value) if result.dtype.is_float else int(padding.value)
        around = array.ConstantOp(value=plain, resource="", outputs=[tensor(ArrayType((), result.dtype))])
        insert_like(op, around)
        arguments, none = [value, around.results[0]], (0,) * len(kept)
        wide = array.PadOp(arguments=arguments, low=low, high=high, interior=none, outputs=[op.results[0].type])
        insert_like(op, wide)
        value = wide.results[0]
    op.results[0].replace_all_uses_with(value)


def _core(op: array.ArrayOp, paddings: Mapping[SSAValue, _Padding]) -> SSAValue:
    """The operand of an operation without its padding, computed before the operation."""
    inside: dict[SSAValue, SSAValue] = {}
    for value in producers_first([op.operands[0]], _operands):
        inside[value] = _inside(value, paddings, inside, op)
    return inside[op.operands[0]]


def _merge(op: array.PadOp, paddings: Mapping[SSAValue, _Padding], both: _Padding) -> SSAValue:
    """Pad once what is computed of the arrays inside the inner paddings; gives the result."""
    core, outputs = _core(op, paddings), [op.results[0].type]
    low, high = both.low, both.high
    made = array.PadOp(arguments=[core, op.operands[1]], low=low, high=high, interior=op.interior, outputs=outputs)
    insert_like(op, made)
    op.results[0].replace_all_uses_with(made.results[0])
    return made.results[0]


def _operands(value: SSAValue) -> Sequence[SSAValue]:
    op = value.owner
    return op.operands if isinstance(op, (array.TransposeOp, *ELEMENTWISE)) else ()


def _inside(
    value: SSAValue, paddings: Mapping[SSAValue, _Padding], inside: Mapping[SSAValue, SSAValue], before: Operation
) -> SSAValue:
    """The middle of a padded value, computed of the middles of its operands."""
    op, type = value.owner, array_type(value)
    if isinstance(op, array.PadOp):
        return op.operands[0]
    if not isinstance(op, (array.TransposeOp, *ELEMENTWISE)):
        return value
    padding = paddings[value]
    shape = tuple(n - a - b for n, a, b in zip(type.shape, padding.low, padding.high, strict=True))
    operands = [_resized(inside[each], shape, before) for each in op.operands]
    made = rebuilt(op, operands, [tensor(ArrayType(shape, type.dtype))])
    insert_like(before, made)
    return made.results[0]


def _resized(value: SSAValue, shape: tuple[int, ...], before: Operation) -> SSAValue:
    """A constant of another shape; arrays as they are."""
    op = value.owner
    if not isinstance(op, array.ConstantOp):
        return value
    made = rebuilt(op, [], [tensor(ArrayType(shape, array_type(value).dtype))])
    insert_like(before, made)
    return made.results[0]
