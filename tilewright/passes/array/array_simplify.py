"""Fold, share and drop: constants, common subexpressions, dead code, algebra that keeps every bit.

First of all, because what it removes would otherwise be grouped, and because the passes after it recognise programs by
their shortest form.

Before:
    func.func @main(%x: tensor<4x3xf32>) -> tensor<4x3xf32> {
      %columns = array.transpose(%x) {permutation = array<i64: 1, 0>} : tensor<3x4xf32>
      %rows = array.transpose(%columns) {permutation = array<i64: 1, 0>} : tensor<4x3xf32>
      %four = array.constant() {value = 4.0 : f64, resource = ""} : tensor<f32>
      %fours = array.broadcast(%four) {axes = array<i64>} : tensor<4x3xf32>
      %y = array.map(%rows, %fours) {fn = "divide"} : tensor<4x3xf32>
      %unused = array.map(%y) {fn = "exp"} : tensor<4x3xf32>
      func.return %y : tensor<4x3xf32>
    }
After:
    func.func @main(%x: tensor<4x3xf32>) -> tensor<4x3xf32> {
      %quarters = array.constant() {value = 0.25 : f64, resource = ""} : tensor<4x3xf32>
      %y = array.map(%x, %quarters) {fn = "multiply"} : tensor<4x3xf32>
      func.return %y : tensor<4x3xf32>
    }
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tilewright import dtypes, ops
from tilewright.array_digests import digest_array
from tilewright.dialects import array
from tilewright.dialects.base import array_type, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_like
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug, LinearAlgebraError
from tilewright.passes.array.array_move_reshapes import runs
from tilewright.passes.array.fusion import is_splat, is_unit_reshape, operands_through
from tilewright.passes.array.scattered_windows import window_update
from tilewright.passes.base import Origin, Unit, blocks_of
from tilewright.passes.kernels.lower_loop_group import is_gathered_along_rows
from tilewright.primitives import ArrayType
from tilewright.semantics.array import apply as evaluate

Tensor = np.ndarray[Any, Any]

ROUNDS = 4
# Captured arrays up to this size are computed with at compile time; index maps of them only while they stay small.
FOLDED_BYTES = 16 * 2**20
FOLDED_VIEW_BYTES = 2**16
# How many operations between a reduction and transposes are looked at.
_MOST_BETWEEN = 16
# A search keeps its records in a first- or second-level cache.
SEARCHED_ELEMENTS = 4096

_VIEWS = (array.ReshapeOp, array.TransposeOp, array.BroadcastOp, array.SliceOp, array.ReverseOp)


class ArraySimplifyPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "array-simplify"

    def apply(self, unit: Unit) -> None:
        for _ in range(ROUNDS):
            changed = False
            for block in reversed(list(blocks_of(unit.main))):  # inner blocks may go with an operation around them
                changed |= _simplify_block(unit, block)
            if not changed:
                return


def _simplify_block(unit: Unit, block: Block) -> bool:
    changed = False
    known: dict[tuple[Any, ...], Operation] = {}
    for op in list(block.ops):
        if not isinstance(op, array.ArrayOp):
            continue
        replacement = _rewrite(unit, op)
        if replacement is None:
            types = tuple(array_type(r) for r in op.results)  # hashed faster than types of the IR
            key = (op.name, op.operands, tuple(sorted(op.properties.items())), types)
            first = known.setdefault(key, op)
            replacement = None if first is op else list(first.results)
        if replacement is not None:
            changed = True
            for old, new in zip(op.results, replacement, strict=True):
                old.replace_all_uses_with(new)
            erase(op)
    return drop_unused(block) or changed


def drop_unused(block: Block) -> bool:
    """Take out what nothing uses; gives whether there was such."""
    dropped = False
    for op in reversed(list(block.ops)):
        if op.results and not any(r.uses for r in op.results):
            op.detach()
            op.erase(safe_erase=False)
            dropped = True
    return dropped


def _rewrite(unit: Unit, op: array.ArrayOp) -> Sequence[SSAValue] | None:
    """Values that replace the operation's results, or None."""
    for rule in (_empty, _fold, _RULES.get(type(op))):
        if rule is not None and (found := rule(unit, op)) is not None:
            return found
    return None


def _insert(op: array.ArrayOp, made: array.ArrayOp) -> SSAValue:
    """Insert a new operation before `op`, at its user location."""
    insert_like(op, made)
    return made.results[0]


def _splat(op: array.ArrayOp, type: ArrayType, value: float | int | bool) -> SSAValue:
    plain: float | int = float(value) if type.dtype.is_float else int(value)
    return _insert(op, array.ConstantOp(value=plain, resource="", outputs=[tensor(type)]))


def _splat_value(value: SSAValue) -> float | int | None:
    op = value.owner
    if isinstance(op, array.ConstantOp) and is_splat(op):
        return op.value
    return None


# ---- empty arrays ---------------------------------------------------------------------------------------------------


def _empty(unit: Unit, op: array.ArrayOp) -> Sequence[SSAValue] | None:
    """Operations on arrays without elements need no kernel."""
    results = [array_type(r) for r in op.results]
    if isinstance(op, array.ConstantOp):
        return None
    if all(t.size == 0 for t in results):
        return [_splat(op, t, 0) for t in results]
    operands = [array_type(o) for o in op.operands]
    if all(t.size for t in operands):
        return None
    if isinstance(op, array.ReduceOp | array.WindowReduceOp):
        identity = ops.FUNCTIONS[op.fn].identity
        return None if identity is None else [_splat(op, results[0], identity(results[0].dtype))]
    if isinstance(op, array.ContractOp | array.ConvolveOp):
        return [_splat(op, results[0], 0)]
    if isinstance(op, array.ConcatOp):
        kept = [o for o, t in zip(op.operands, operands, strict=True) if t.size]
        return [_insert(op, rebuilt(op, kept))]
    if isinstance(op, array.PadOp):
        return [_insert(op, array.BroadcastOp(arguments=[op.operands[1]], axes=(), outputs=[op.results[0].type]))]
    if isinstance(op, array.ScatterOp | array.DynamicUpdateSliceOp):
        return [op.operands[0]]
    return None


# ---- constants ------------------------------------------------------------------------------------------------------


def _fold(unit: Unit, op: array.ArrayOp) -> Sequence[SSAValue] | None:
    """Compute what depends on constants alone."""
    if not op.operands or isinstance(op, array.RandomBitsOp | array.ShardOp | array.CollectiveOp):
        return None
    owners = [o.owner for o in op.operands]
    if not all(isinstance(w, array.ConstantOp) for w in owners):
        return None
    only_splats = all(is_splat(w) for w in owners if isinstance(w, Operation))
    if only_splats and (found := _fold_splats(op)) is not None:
        return found
    size = sum(array_type(each).nbytes for each in (*op.results, *(op.operands if only_splats else ())))
    if size > (FOLDED_VIEW_BYTES if only_splats or isinstance(op, _VIEWS) else FOLDED_BYTES):
        return None
    try:
        return [computed(unit, op, op.operands, _result_of(op, n)) for n in range(len(op.results))]
    except LinearAlgebraError:
        return None  # the program fails where it comes to the call


def _result_of(op: array.ArrayOp, index: int) -> Callable[[Sequence[Tensor]], Tensor]:
    """The definition of a result of an operation."""
    primitive, attributes = op.primitive, op.attributes_of()

    def compute(operands: Sequence[Tensor]) -> Tensor:
        result = evaluate(primitive, operands, attributes)[index]
        return np.ascontiguousarray(result).reshape(result.shape)

    return compute


def _fold_splats(op: array.ArrayOp) -> Sequence[SSAValue] | None:
    type = array_type(op.results[0])
    if isinstance(op, _VIEWS):
        value = _splat_value(op.operands[0])
        return None if value is None else [_splat(op, type, value)]
    if isinstance(op, array.MapOp | array.CastOp | array.BitcastOp):
        scalars = [np.full((), _splat_value(o), array_type(o).dtype.numpy) for o in op.operands]
        attributes = op.attributes_of() | {"shape": (), "dtype": type.dtype.name}
        (result,) = evaluate(op.primitive, scalars, attributes)
        return [_splat(op, type, result.item())]
    return None


def constant_value(unit: Unit, value: SSAValue) -> Tensor:
    """The array that a constant stands for."""
    op = value.owner
    type = array_type(value)
    if isinstance(op, array.ConstantOp) and op.resource:
        return unit.constants[op.resource]
    return np.full(type.shape, _splat_value(value), type.dtype.numpy)


def _constant(value: SSAValue) -> str | Tensor:
    """The name of a captured array; of a splat its elements, which take no memory."""
    op, type = value.owner, array_type(value)
    if isinstance(op, array.ConstantOp) and op.resource:
        return op.resource
    return np.broadcast_to(np.asarray(_splat_value(value), type.dtype.numpy), type.shape)


def computed(
    unit: Unit,
    op: array.ArrayOp,
    operands: Sequence[SSAValue],
    compute: Callable[[Sequence[Tensor]], Tensor],
) -> SSAValue:
    """An array computed from constants at compile time as a constant before `op`."""
    value = compute([constant_value(unit, operand) for operand in operands])
    type = ArrayType(value.shape, dtypes.from_numpy(value.dtype))
    if value.size == 1:
        return _splat(op, type, value.reshape(-1)[0].item())
    name = digest_array(value)
    unit.constants.setdefault(name, value)
    unit.origins.setdefault(name, Origin(compute, tuple(map(_constant, operands))))
    return _insert(op, array.ConstantOp(value=0, resource=name, outputs=[tensor(type)]))


# ---- index maps -----------------------------------------------------------------------------------------------------


def _reshape(unit: Unit, op: array.ReshapeOp) -> Sequence[SSAValue] | None:
    (source,) = op.operands
    if array_type(source) == array_type(op.results[0]):
        return [source]
    if isinstance(source.owner, array.ReshapeOp):
        return [_insert(op, rebuilt(op, source.owner.operands))]
    return None


def _transpose(unit: Unit, op: array.TransposeOp) -> Sequence[SSAValue] | None:
    (source,) = op.operands
    permutation = op.permutation
    if permutation == tuple(range(len(permutation))):
        return [source]
    if isinstance(source.owner, array.TransposeOp):
        inner = source.owner.permutation
        joined = tuple(inner[p] for p in permutation)
        made = rebuilt(op, source.owner.operands)
        made.permutation = joined
        return [_insert(op, made)]
    inner = _permutation_of(source)
    if inner is not None and tuple(inner[p] for p in permutation) == tuple(range(len(permutation))):
        return [_as_stored(op, source, inner)]  # elementwise operations between transposes that cancel
    return None


def _broadcast(unit: Unit, op: array.BroadcastOp) -> Sequence[SSAValue] | None:
    (source,) = op.operands
    result = array_type(op.results[0])
    axes = op.axes
    if array_type(source) == result:
        return [source]
    if isinstance(source.owner, array.BroadcastOp):
        inner = source.owner.axes
        joined = tuple(axes[a] for a in inner)
        made = rebuilt(op, source.owner.operands)
        made.axes = joined
        return [_insert(op, made)]
    return None


def _slice(unit: Unit, op: array.SliceOp) -> Sequence[SSAValue] | None:
    return [op.operands[0]] if array_type(op.operands[0]) == array_type(op.results[0]) else None


def _reverse(unit: Unit, op: array.ReverseOp) -> Sequence[SSAValue] | None:
    """Reversals go before what pads, joins or reshapes what they reverse, so that they fuse with what computes that."""
    (value,) = op.operands
    shape, source = array_type(value).shape, value.owner
    axes = tuple(axis for axis in op.axes if shape[axis] != 1)
    if not axes:
        return [value]
    if isinstance(source, array.ReverseOp):
        twice = tuple(sorted(set(axes) ^ set(source.axes)))
        return [_reversed(op, source.operands[0], twice)]
    if len({use.operation for use in value.uses}) > 1:
        return None
    match source:
        case array.PadOp():
            made = rebuilt(source, [_reversed(op, source.operands[0], axes), source.operands[1]])
            ends = list(zip(source.low, source.high, strict=True))
            turned = [ends[d][::-1] if d in axes else ends[d] for d in range(len(ends))]
            made.low, made.high = (tuple(sizes) for sizes in zip(*turned, strict=True))
            return [_insert(op, made)]
        case array.ConcatOp():
            parts = source.operands[::-1] if source.axis in axes else source.operands
            return [_insert(op, rebuilt(source, [_reversed(op, part, axes) for part in parts]))]
        case array.ReshapeOp() if isinstance(source.operands[0].owner, Operation):
            inner = _same_dims(array_type(source.operands[0]).shape, shape, axes)
            return None if inner is None else [_insert(op, rebuilt(source, [_reversed(op, source.operands[0], inner)]))]
        case _:
            return None


def _reversed(op: array.ReverseOp, value: SSAValue, axes: tuple[int, ...]) -> SSAValue:
    return _insert(op, array.ReverseOp(arguments=[value], axes=axes, outputs=[value.type])) if axes else value


def _same_dims(first: tuple[int, ...], second: tuple[int, ...], axes: Collection[int]) -> tuple[int, ...] | None:
    """The dims of one shape that are the `axes`, none of them of one element, of another one of as many elements; None
    where there are no such."""
    counted: dict[int, int] = {}
    for inner, outer in runs(first, second):
        long = [d for d in inner if first[d] > 1], [d for d in outer if second[d] > 1]
        if len(long[0]) == len(long[1]) == 1:
            counted[long[1][0]] = long[0][0]
    return tuple(sorted(counted[axis] for axis in axes)) if counted.keys() >= set(axes) else None


def _reduce(unit: Unit, op: array.ReduceOp) -> Sequence[SSAValue] | None:
    result = _reduced_at_once(op)
    if result is None:
        result = reduced_as_stored(op)
    return None if result is None else [result]


def _reduced_at_once(op: array.ReduceOp) -> SSAValue | None:
    """A reduction of a reduction's only use as one of both: in which order elements are combined is not defined. Along
    dims next to each other, which are one dim in memory; others would be read in a worse order."""
    first, sizes = _reduction_behind(op.operands[0]), array_type(op.operands[0]).shape
    if first is None or first.fn != op.fn or first.part is not None or op.part is not None:
        return None
    shape = array_type(first.operands[0]).shape
    # Dims of one element, which a reshape may add and drop, are reduced with the others.
    kept = [axis for axis, size in enumerate(shape) if axis not in first.axes and size != 1]
    long = [axis for axis, size in enumerate(sizes) if size != 1]
    left = [dim for dim, axis in zip(kept, long, strict=True) if axis not in op.axes]
    axes = tuple(axis for axis in range(len(shape)) if axis not in left)
    if not axes or axes[-1] - axes[0] != len(axes) - 1:
        return None
    type = array_type(op.results[0])
    made = rebuilt(op, first.operands, [tensor(ArrayType(tuple(shape[dim] for dim in left), type.dtype))])
    made.axes = axes
    total = _insert(op, made)
    if array_type(total).shape == type.shape:
        return total
    return _insert(op, array.ReshapeOp(arguments=[total], outputs=[op.results[0].type]))


def _reduction_behind(value: SSAValue) -> array.ReduceOp | None:
    """The reduction whose result a value is, or is with dims of one element more or less, and nothing else reads."""
    while isinstance(value.owner, Operation) and is_unit_reshape(value.owner) and len(list(value.uses)) == 1:
        (value,) = value.owner.operands
    return value.owner if isinstance(value.owner, array.ReduceOp) and len(list(value.uses)) == 1 else None


def reduced_as_stored(op: array.ReduceOp) -> SSAValue | None:
    """The result of a reduction of transposed arrays, which goes along with them as they are stored."""
    (source,) = op.operands
    permutation = _permutation_of(source) if op.part is None else None
    if permutation is None:
        return None
    type = array_type(op.results[0])
    axes = tuple(sorted(permutation[axis] for axis in op.axes))
    kept = [axis for axis in range(len(permutation)) if axis not in axes]
    shape = array_type(source).shape
    sizes = tuple(shape[permutation.index(axis)] for axis in kept)
    made = rebuilt(op, [_as_stored(op, source, permutation)], [tensor(ArrayType(sizes, type.dtype))])
    made.axes = axes
    order = tuple(kept.index(axis) for n, axis in enumerate(permutation) if n not in op.axes)
    total = _insert(op, made)
    if order == tuple(range(len(order))):
        return total
    return _insert(op, array.TransposeOp(arguments=[total], permutation=order, outputs=[op.results[0].type]))


def _permutation_of(value: SSAValue) -> tuple[int, ...] | None:
    """The permutation that all arrays have from which elementwise operations compute a value for one user; None where
    they differ."""
    found: set[tuple[int, ...]] = set()
    spread: list[array.BroadcastOp] = []
    pending = [value]
    for _ in range(_MOST_BETWEEN):
        if not pending:
            break
        each = pending.pop()
        owner = each.owner
        if isinstance(owner, array.TransposeOp):
            if is_gathered_along_rows(owner.operands[0]):
                return None
            found.add(owner.permutation)
        elif isinstance(owner, array.MapOp | array.CastOp) and len({use.operation for use in each.uses}) == 1:
            pending += owner.operands
        elif isinstance(owner, array.BroadcastOp):
            spread.append(owner)
        elif _splat_value(each) is None:
            return None
    if len(found) != 1 or pending:
        return None
    permutation = found.pop()
    return permutation if all(_keeps_order(each, permutation) for each in spread) else None


def _long_axes(op: array.BroadcastOp, permutation: Sequence[int]) -> list[int]:
    """The axes, before a permutation, of the dims of a broadcast's operand that have more than one element."""
    sizes = array_type(op.operands[0]).shape
    return [permutation[axis] for size, axis in zip(sizes, op.axes, strict=True) if size != 1]


def _keeps_order(op: array.BroadcastOp, permutation: Sequence[int]) -> bool:
    """Whether the dims of a broadcast's operand have the same order before a permutation. Results of a reduction meet
    what is reduced again: that stays in one order with them."""
    axes = _long_axes(op, permutation)
    return axes == sorted(axes) and not (axes and _is_of_reduction(op.operands[0]))


def _is_of_reduction(value: SSAValue) -> bool:
    """Whether a value is computed elementwise from results of a reduction, or from too many to know."""
    sources = operands_through(value, (array.MapOp, array.CastOp, array.ReshapeOp, array.BroadcastOp))
    is_near = any(isinstance(each.owner, array.ReduceOp) for each in itertools.islice(sources, _MOST_BETWEEN))
    return is_near or next(sources, None) is not None


def _as_stored(op: array.ArrayOp, value: SSAValue, permutation: tuple[int, ...]) -> SSAValue:
    """A value before its permutation."""
    owner = value.owner
    if isinstance(owner, array.TransposeOp):
        return owner.operands[0]
    type = array_type(value)
    shape = tuple(type.shape[permutation.index(axis)] for axis in range(type.rank))
    outputs = [tensor(ArrayType(shape, type.dtype))]
    constant = _splat_value(value)
    if constant is not None:
        return _splat(op, ArrayType(shape, type.dtype), constant)
    if isinstance(owner, array.BroadcastOp):
        (source,) = owner.operands
        sizes = tuple(size for size in array_type(source).shape if size != 1)
        if sizes != array_type(source).shape:
            long = [tensor(ArrayType(sizes, type.dtype))]
            source = _insert(op, array.ReshapeOp(arguments=[source], outputs=long))
        axes = tuple(_long_axes(owner, permutation))
        return _insert(op, array.BroadcastOp(arguments=[source], axes=axes, outputs=outputs))
    if not isinstance(owner, array.MapOp | array.CastOp):
        raise CompilerBug(f"{value} is computed from no transposed array")
    return _insert(op, rebuilt(owner, [_as_stored(op, each, permutation) for each in owner.operands], outputs))


def _concat(unit: Unit, op: array.ConcatOp) -> Sequence[SSAValue] | None:
    return [op.operands[0]] if len(op.operands) == 1 else None


# ---- arithmetic -----------------------------------------------------------------------------------------------------


def _cast(unit: Unit, op: array.CastOp) -> Sequence[SSAValue] | None:
    return [op.operands[0]] if array_type(op.operands[0]) == array_type(op.results[0]) else None


def _map(unit: Unit, op: array.MapOp) -> Sequence[SSAValue] | None:
    fn = op.fn
    operands = list(op.operands)
    dtype = array_type(operands[-1]).dtype
    constants = [_splat_value(o) for o in operands]
    if fn in _INVOLUTIONS and isinstance(operands[0].owner, array.MapOp) and operands[0].owner.fn == fn:
        return [operands[0].owner.operands[0]]
    if fn == "select":
        return _select(operands, constants)
    if len(operands) != 2:
        return None
    if ops.FUNCTIONS[fn].commutative and constants[0] is not None and constants[1] is None:
        operands, constants = operands[::-1], constants[::-1]
    if constants[1] is not None and _is_neutral(fn, constants[1], dtype.is_float):
        return [operands[0]]
    found = _same_everywhere(fn, operands, constants[1], dtype)
    if found is not None:
        return [_splat(op, array_type(op.results[0]), found)]
    if operands[0] is operands[1] and fn in _IDEMPOTENT:
        return [operands[0]]
    if fn == "power" and constants[1] == 2:
        return [_insert(op, array.MapOp(arguments=[operands[0]], fn="square", outputs=[op.results[0].type]))]
    if fn == "divide" and constants[1] is not None and _has_exact_reciprocal(constants[1]):
        reciprocal = _splat(op, array_type(operands[1]), 1 / constants[1])
        product = array.MapOp(arguments=[operands[0], reciprocal], fn="multiply", outputs=[op.results[0].type])
        return [_insert(op, product)]
    return None


_INVOLUTIONS = frozenset({"negative", "bitwise_not"})
# Of a value and itself: that value; and of integers, the same for all of them.
_IDEMPOTENT = frozenset({"maximum", "minimum", "bitwise_and", "bitwise_or"})
_OF_ITSELF = {"subtract": 0, "bitwise_xor": 0, "equal": 1, "less_equal": 1, "greater_equal": 1} | dict.fromkeys(
    ("not_equal", "less", "greater"), 0
)


def _same_everywhere(fn: str, operands: list[SSAValue], constant: float | int | None, dtype: DType) -> int | None:
    """The result of a function of integers or bools whatever their value; None where it depends on that."""
    if dtype.is_float:
        return None
    if operands[0] is operands[1]:
        return _OF_ITSELF.get(fn)
    return 0 if constant == 0 and fn in ("multiply", "bitwise_and") else None


def _select(operands: list[SSAValue], constants: list[float | int | None]) -> Sequence[SSAValue] | None:
    if operands[1] is operands[2]:
        return [operands[1]]
    if constants[0] is None:
        return None
    return [operands[1] if constants[0] else operands[2]]


def _is_neutral(fn: str, value: float | int, is_float: bool) -> bool:
    """Whether combining with the second operand changes nothing, for every value and sign of zero."""
    if fn in ("multiply", "divide"):
        return value == 1
    if fn == "subtract":
        return value == 0 and not (is_float and math.copysign(1, value) < 0)
    if fn == "add":
        return value == 0 and (not is_float or math.copysign(1, value) < 0)
    return fn in ("shift_left", "shift_right", "bitwise_or", "bitwise_xor") and value == 0


def _has_exact_reciprocal(value: float | int) -> bool:
    """Powers of two whose reciprocal is a normal number of every float type."""
    if not math.isfinite(value) or value == 0:
        return False
    mantissa, exponent = math.frexp(abs(value))
    return mantissa == 0.5 and abs(exponent) <= 12


def _top_k(unit: Unit, op: array.TopKOp) -> Sequence[SSAValue] | None:
    """Many largest elements are the start of a descending sort that carries positions; few are searched for."""
    (source,) = op.operands
    type = array_type(source)
    axis, k = type.rank - 1, op.k
    if k <= SEARCHED_ELEMENTS:
        return None
    counted = tensor(ArrayType(type.shape, dtypes.i64))
    positions = _insert(op, array.IotaOp(axis=axis, outputs=[counted]))
    ordered = array.SortOp(arguments=[source, positions], axis=axis, descending=True, outputs=[source.type, counted])
    _insert(op, ordered)
    starts, limits, strides = (0,) * type.rank, (*type.shape[:-1], k), (1,) * type.rank
    slices = [
        array.SliceOp(arguments=[r], starts=starts, limits=limits, strides=strides, outputs=[wanted.type])
        for r, wanted in zip(ordered.results, op.results, strict=True)
    ]
    return [_insert(op, each) for each in slices]


def _ordered(unit: Unit, op: array.ScanOp | array.SortOp) -> Sequence[SSAValue] | None:
    """Along an axis of one element nothing is combined, and nothing moves."""
    same = [each.type for each in op.operands] == [each.type for each in op.results]
    return list(op.operands) if same and array_type(op.operands[0]).shape[op.axis] == 1 else None


# A rule takes the operation of its class.
def _contract(unit: Unit, op: array.ContractOp) -> Sequence[SSAValue] | None:
    """A contraction of narrow integers that are widened first multiplies these: into its own type, which is exact."""
    casts = [operand.owner for operand in op.operands if isinstance(operand.owner, array.CastOp)]
    narrow = [array_type(cast.operands[0]).dtype for cast in casts]
    if len(narrow) < 2 or narrow[0] != narrow[1] or narrow[0].kind != "i" or op.part is not None:
        return None
    wide = {array_type(value).dtype for value in (*op.operands, *op.results)}
    if wide != {dtypes.i32} or narrow[0].bits > 16:
        return None
    return [_insert(op, rebuilt(op, [cast.operands[0] for cast in casts]))]


_RULES: dict[type, Callable[[Unit, Any], Sequence[SSAValue] | None]] = {
    array.ReshapeOp: _reshape,
    array.TransposeOp: _transpose,
    array.BroadcastOp: _broadcast,
    array.SliceOp: _slice,
    array.ReverseOp: _reverse,
    array.ConcatOp: _concat,
    array.ReduceOp: _reduce,
    array.CastOp: _cast,
    array.MapOp: _map,
    array.TopKOp: _top_k,
    array.ScanOp: _ordered,
    array.SortOp: _ordered,
    array.ContractOp: _contract,
    array.ScatterOp: window_update,
}
