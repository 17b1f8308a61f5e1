"""The array primitives: what each is called, its attributes, and the types it gives.

The tracer infers types here (so that a user's mistake is reported at the user's line) and the `array` dialect verifies
against the same rules. Attributes are plain Python values: int, float, bool, str, or a tuple of ints. Regions
(`while`, `if`) are checked by their owners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from tilewright import collectives, dtypes, ops, routines
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError, DTypeError, IndexError_, ShapeError

Attributes = Mapping[str, Any]
Shape = tuple[int, ...]


class ArrayType(msgspec.Struct, frozen=True):
    """Shape and element type of one array."""

    shape: Shape
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


MAX_RANK = 64  # of a NumPy array
MAX_BYTES = 2**63 - 1


Types = Sequence[ArrayType]
Rule = Callable[[Types, Attributes], tuple[ArrayType, ...]]

RULES: dict[str, Rule] = {}


def infer(name: str, operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """Types of the results of primitive `name`.

    Raises:
        ShapeError, DTypeError, IndexError_, ArgumentError: operands or attributes do not fit.
    """
    types = RULES[name](operands, attributes)
    for type in types:
        check_limits(type)
    return types


@lru_cache(maxsize=4096)
def check_limits(type: ArrayType) -> None:
    """Refuse an array that nothing can hold.

    Raises:
        ShapeError: it has too many axes or too many bytes.
    """
    if type.rank > MAX_RANK:
        raise ShapeError(f"a shape has {type.rank} axes", help=f"use at most {MAX_RANK}, as NumPy does")
    # NumPy too counts as if no size were 0.
    if math.prod(filter(None, type.shape)) * type.dtype.itemsize > MAX_BYTES:
        message = f"an array of shape {type.shape} of {type.dtype} is too large for any memory"
        raise ShapeError(message, help="use smaller sizes: an array has at most 2**63 - 1 bytes")


def _rule(name: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES[name] = rule
        return rule

    return register


def _check_axis(name: str, axis: int, rank: int) -> None:
    if not 0 <= axis < rank:
        raise IndexError_(f"`{name}` names axis {axis} of an array with {rank} axes")


def _check_axes(name: str, axes: Sequence[int], rank: int) -> None:
    for axis in axes:
        _check_axis(name, axis, rank)
    if len(set(axes)) != len(axes):
        raise ArgumentError(f"`{name}` names an axis twice: {tuple(axes)}")


# ---- sources --------------------------------------------------------------------------------------------------------


@_rule("constant")
def _constant(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    return (ArrayType(attributes["shape"], dtypes.by_name(attributes["dtype"])),)


@_rule("iota")
def _iota(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    result = ArrayType(attributes["shape"], dtypes.by_name(attributes["dtype"]))
    _check_axis("iota", attributes["axis"], result.rank)
    if result.dtype.is_bool:
        raise DTypeError("`iota` has no bool form", help="use an integer type and compare")
    return (result,)


@_rule("random_bits")
def _random_bits(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    (key,) = operands
    if key != ArrayType((2,), dtypes.u32):
        raise DTypeError(f"the key of `random_bits` is {key}, expected u32[2]")
    return (ArrayType(attributes["shape"], dtypes.u32),)


# ---- elementwise ----------------------------------------------------------------------------------------------------


_KIND_NAMES = {"f": "floats", "i": "signed integers", "u": "unsigned integers", "b": "bools"}


@_rule("map")
def _map(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    function = ops.FUNCTIONS[attributes["fn"]]
    operand_types = [o.dtype for o in operands]
    if not function.accepts(operand_types):
        kinds = " or ".join(_KIND_NAMES[kind] for kind in function.kinds)
        raise DTypeError(
            f"`{function.name}` does not take operands of type {', '.join(map(repr, operand_types))}",
            help=f"pass {kinds} of one type: cast with `.astype`",
        )
    if any(o.shape != operands[0].shape for o in operands):
        raise ShapeError(f"operands of `{function.name}` have shapes {', '.join(str(o.shape) for o in operands)}")
    return (ArrayType(operands[0].shape, function.result_type(operand_types)),)


@_rule("cast")
def _cast(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    return (ArrayType(operands[0].shape, dtypes.by_name(attributes["dtype"])),)


@_rule("bitcast")
def _bitcast(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    source, destination = operands[0].dtype, dtypes.by_name(attributes["dtype"])
    if source != destination and (source.bits != destination.bits or source.is_bool or destination.is_bool):
        raise DTypeError(
            f"`bitcast` from {source} to {destination} changes the element size", help="use a type of the same width"
        )
    return (ArrayType(operands[0].shape, destination),)


# ---- index maps -----------------------------------------------------------------------------------------------------


@_rule("reshape")
def _reshape(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    shape = attributes["shape"]
    if math.prod(shape) != operands[0].size:
        raise ShapeError(
            f"cannot reshape {operands[0].shape} ({operands[0].size} elements) to {shape}",
            help="give a shape with as many elements, or -1 for one size",
        )
    return (ArrayType(shape, operands[0].dtype),)


@_rule("transpose")
def _transpose(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    permutation: Shape = attributes["permutation"]
    (operand,) = operands
    if sorted(permutation) != list(range(operand.rank)):
        raise ArgumentError(f"{permutation} is not a permutation of the {operand.rank} axes")
    return (ArrayType(tuple(operand.shape[p] for p in permutation), operand.dtype),)


@_rule("broadcast")
def _broadcast(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """`axes[i]` is the result axis of operand axis i, increasing; operand sizes equal the result's or are 1."""
    (operand,) = operands
    shape, axes = attributes["shape"], attributes["axes"]
    if len(axes) != operand.rank or list(axes) != sorted(set(axes)):
        raise ArgumentError(f"`broadcast` needs one increasing result axis per operand axis, got {axes}")
    for size, axis in zip(operand.shape, axes, strict=True):
        _check_axis("broadcast", axis, len(shape))
        if size not in (1, shape[axis]):
            raise ShapeError(f"cannot broadcast {operand.shape} to {shape}")
    return (ArrayType(shape, operand.dtype),)


@_rule("slice")
def _slice(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    (operand,) = operands
    starts, limits, strides = attributes["starts"], attributes["limits"], attributes["strides"]
    sizes: list[int] = []
    for size, start, limit, stride in zip(operand.shape, starts, limits, strides, strict=True):
        if not (0 <= start <= limit <= size and stride >= 1):
            raise IndexError_(f"slice {start}:{limit}:{stride} does not fit an axis of size {size}")
        sizes.append(-(-(limit - start) // stride))
    return (ArrayType(tuple(sizes), operand.dtype),)


@_rule("unfold")
def _unfold(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """`axis` becomes one axis of each of `sizes`: result[k0, k1, ...] is operand[k0 * step0 + k1 * step1 + ...] for
    `steps`, which stays inside."""
    (operand,) = operands
    axis, sizes, steps = attributes["axis"], attributes["sizes"], attributes["steps"]
    _check_axis("unfold", axis, operand.rank)
    if len(sizes) != len(steps) or not sizes or any(n < 0 for n in (*sizes, *steps)):
        raise ArgumentError(f"`unfold` takes sizes and steps of 0 and more, as many, got {sizes} and {steps}")
    last = sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
    if 0 not in sizes and last >= operand.shape[axis]:
        raise IndexError_(f"`unfold` of an axis of {operand.shape[axis]} reaches to {last}")
    return (ArrayType((*operand.shape[:axis], *sizes, *operand.shape[axis + 1 :]), operand.dtype),)


def _check_starts(name: str, starts: Types, rank: int) -> None:
    if len(starts) != rank or any(s.shape or not s.dtype.is_integer for s in starts):
        raise ArgumentError(f"`{name}` needs {rank} integer scalars as starts", help="give one start per axis")


@_rule("dynamic_slice")
def _dynamic_slice(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """Starts are clamped so that the window stays inside."""
    operand, *starts = operands
    sizes = attributes["sizes"]
    _check_starts("dynamic_slice", starts, operand.rank)
    if len(sizes) != operand.rank or any(not 0 <= n <= size for n, size in zip(sizes, operand.shape, strict=False)):
        raise ShapeError(
            f"a window of {sizes} does not fit an array of shape {operand.shape}", help="give at most the array's sizes"
        )
    return (ArrayType(sizes, operand.dtype),)


@_rule("dynamic_update_slice")
def _dynamic_update_slice(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    operand, update, *starts = operands
    _check_starts("dynamic_update_slice", starts, operand.rank)
    if update.dtype != operand.dtype:
        raise DTypeError(f"cannot write {update.dtype} into an array of {operand.dtype}")
    if update.rank != operand.rank or any(n > size for n, size in zip(update.shape, operand.shape, strict=True)):
        raise ShapeError(
            f"an update of shape {update.shape} does not fit an array of shape {operand.shape}",
            help="give an update with as many axes, none longer",
        )
    return (operand,)


@_rule("pad")
def _pad(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """`low` and `high` new elements around each axis, `interior` between neighbours."""
    operand, value = operands
    low, high, interior = attributes["low"], attributes["high"], attributes["interior"]
    if value != ArrayType((), operand.dtype):
        raise DTypeError(f"the padding value is {value}, expected a scalar of {operand.dtype}")
    if len(low) != operand.rank or len(high) != operand.rank or len(interior) != operand.rank:
        raise ArgumentError(f"`pad` needs {operand.rank} amounts on each side")
    if any(n < 0 for n in (*low, *high, *interior)):
        raise ArgumentError("`pad` amounts are negative", help="use a slice to shrink an array")
    shape = tuple(
        n + lo + hi + inner * max(0, n - 1) for n, lo, hi, inner in zip(operand.shape, low, high, interior, strict=True)
    )
    return (ArrayType(shape, operand.dtype),)


@_rule("concat")
def _concat(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    axis: int = attributes["axis"]
    first = operands[0]
    _check_axis("concat", axis, first.rank)
    for other in operands[1:]:
        if other.dtype != first.dtype:
            raise DTypeError(f"cannot concatenate {first.dtype} with {other.dtype}")
        if other.rank != first.rank or any(
            a != b for d, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)) if d != axis
        ):
            raise ShapeError(
                f"cannot concatenate {first.shape} and {other.shape} along axis {axis}",
                help="make all other sizes equal",
            )
    total = sum(o.shape[axis] for o in operands)
    return (ArrayType((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype),)


@_rule("reverse")
def _reverse(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    _check_axes("reverse", attributes["axes"], operands[0].rank)
    return (operands[0],)


def _indexed(name: str, operand: ArrayType, indices: Types, axes: Sequence[int]) -> Shape:
    _check_axes(name, axes, operand.rank)
    if len(indices) != len(axes) or not indices:
        raise ArgumentError(f"`{name}` needs one index array per indexed axis")
    if any(not i.dtype.is_integer for i in indices):
        raise DTypeError(f"`{name}` takes integer indices, got {', '.join(repr(i.dtype) for i in indices)}")
    if any(i.shape != indices[0].shape for i in indices):
        raise ShapeError(f"index arrays of `{name}` have shapes {', '.join(str(i.shape) for i in indices)}")
    rest = tuple(n for d, n in enumerate(operand.shape) if d not in axes)
    if any(operand.shape[axis] == 0 for axis in axes) and math.prod(indices[0].shape) > 0:
        raise IndexError_(f"`{name}` indexes an axis of size 0", help="index a non-empty axis")
    return (*indices[0].shape, *rest)


@_rule("gather")
def _gather(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """Result axes: those of the index arrays, then the operand's axes that are not indexed. Indices are clamped."""
    operand, *indices = operands
    return (ArrayType(_indexed("gather", operand, indices, attributes["axes"]), operand.dtype),)


@_rule("scatter")
def _scatter(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """Combine updates into a copy of the operand in index order; indices outside are dropped. `fn` `set` overwrites."""
    operand, updates, *indices = operands
    expected = ArrayType(_indexed("scatter", operand, indices, attributes["axes"]), operand.dtype)
    if updates != expected:
        raise ShapeError(f"updates of `scatter` are {updates}, expected {expected}")
    if attributes["fn"] != "set":
        _check_reducible("scatter", attributes["fn"], operand.dtype)
    return (operand,)


# ---- reductions -----------------------------------------------------------------------------------------------------


def _check_reducible(name: str, fn: str, dtype: DType) -> None:
    function = ops.FUNCTIONS[fn]
    if not function.reducible:
        raise ArgumentError(f"`{name}` cannot reduce with `{fn}`")
    if dtype.kind not in function.kinds:
        raise DTypeError(f"`{fn}` does not reduce {dtype}", help="cast the operand first")


def _without(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(n for d, n in enumerate(shape) if d not in axes)


@_rule("reduce")
def _reduce(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    (operand,) = operands
    _check_axes("reduce", attributes["axes"], operand.rank)
    _check_reducible("reduce", attributes["fn"], operand.dtype)
    shape = _without(operand.shape, attributes["axes"])
    part: int | None = attributes.get("part")
    axis: int | None = attributes.get("part_axis")
    if part is None and axis is None:
        return (ArrayType(shape, operand.dtype),)
    if part is None or part < 1 or axis is None or axis not in attributes["axes"]:
        raise ArgumentError(f"`reduce` over {attributes['axes']} in parts of {part} along {axis}")
    shape = (-(-operand.shape[axis] // part), *shape)
    return (ArrayType(shape, operand.dtype),)


@_rule("arg_reduce")
def _arg_reduce(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """Index (i64) of the first maximum or minimum; the first NaN wins."""
    (operand,) = operands
    axis = attributes["axis"]
    _check_axis("arg_reduce", axis, operand.rank)
    if attributes["fn"] not in ("maximum", "minimum"):
        raise ArgumentError(f"`arg_reduce` takes `maximum` or `minimum`, not `{attributes['fn']}`")
    if operand.shape[axis] == 0:
        name = "argmax" if attributes["fn"] == "maximum" else "argmin"
        raise ShapeError(f"`{name}` over an axis of size 0 has no answer", help="reduce over a non-empty axis")
    return (ArrayType(_without(operand.shape, (axis,)), dtypes.i64),)


@_rule("scan")
def _scan(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """Inclusive running reduction along one axis, from a second operand on where there is one (of the compute type)."""
    operand, *initial = operands
    _check_axis("scan", attributes["axis"], operand.rank)
    _check_reducible("scan", attributes["fn"], operand.dtype)
    expected = ArrayType(_without(operand.shape, (attributes["axis"],)), operand.dtype.compute)
    if initial and tuple(initial) != (expected,):
        raise ShapeError(f"`scan` of {operand} starts from {initial[0]}, expected {expected}")
    return (operand,)


def window_sizes(sizes: Shape, window: Shape, strides: Shape, low: Shape, high: Shape, dilation: Shape) -> Shape:
    """Result sizes of a sliding window: floor((n + low + high - ((w - 1) * dilation + 1)) / stride) + 1, at least 0."""
    return tuple(
        max(0, (n + lo + hi - ((w - 1) * d + 1)) // s + 1)
        for n, w, s, lo, hi, d in zip(sizes, window, strides, low, high, dilation, strict=True)
    )


def _check_window(name: str, rank: int, attributes: Attributes, names: Sequence[str]) -> None:
    for key in names:
        if len(attributes[key]) != rank:
            raise ArgumentError(f"`{name}` needs {rank} values of `{key}`, got {attributes[key]}")
    if any(s < 1 for s in attributes["strides"]) or any(d < 1 for d in attributes["dilation"]):
        raise ArgumentError(f"strides and dilation of `{name}` must be at least 1")
    if any(n < 0 for n in (*attributes["low"], *attributes["high"])):
        raise ArgumentError(f"padding of `{name}` is negative")


@_rule("window_reduce")
def _window_reduce(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """Reduce over a sliding window on every axis; padding holds the function's identity."""
    (operand,) = operands
    _check_reducible("window_reduce", attributes["fn"], operand.dtype)
    _check_window("window_reduce", operand.rank, attributes, ("window", "strides", "low", "high", "dilation"))
    if any(w < 1 for w in attributes["window"]):
        raise ArgumentError(f"the window {attributes['window']} is empty")
    geometry = (attributes[k] for k in ("window", "strides", "low", "high", "dilation"))
    return (ArrayType(window_sizes(operand.shape, *geometry), operand.dtype),)


# ---- contractions ---------------------------------------------------------------------------------------------------


@_rule("contract")
def _contract(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """General dot. Result axes: batch, free axes of the left operand, free axes of the right; `dtype` accumulates. The
    operands have one type, or are floats of 8 bits. `precision`, if it is given, is "tf32": operands of f32 are rounded
    to that before they are multiplied. `part`, if it is given, is how much of the last contracted dim is summed
    together: a first axis of the result counts the parts, the last of which may be shorter."""
    left, right = operands
    left_batch: Shape = attributes["left_batch"]
    right_batch: Shape = attributes["right_batch"]
    left_contract: Shape = attributes["left_contract"]
    right_contract: Shape = attributes["right_contract"]
    _check_axes("contract", (*left_batch, *left_contract), left.rank)
    _check_axes("contract", (*right_batch, *right_contract), right.rank)
    if len(left_batch) != len(right_batch) or len(left_contract) != len(right_contract):
        raise ArgumentError("`contract` pairs different numbers of axes")
    pairs = (*zip(left_batch, right_batch, strict=True), *zip(left_contract, right_contract, strict=True))
    if any(left.shape[a] != right.shape[b] for a, b in pairs):
        raise ShapeError(f"cannot contract {left.shape} with {right.shape} over axes {pairs}")
    if not dtypes.multiply_unconverted(left.dtype, right.dtype) or left.dtype.is_bool:
        raise DTypeError(f"`contract` takes two operands of one numeric type, got {left.dtype} and {right.dtype}")
    precision = attributes.get("precision")
    if precision is not None and (precision != "tf32" or (left.dtype, right.dtype) != (dtypes.f32, dtypes.f32)):
        raise DTypeError(
            f"`contract` of {left.dtype} and {right.dtype} with the precision {precision!r}",
            help="the precision is 'tf32', of operands of f32",
        )
    result = dtypes.by_name(attributes["dtype"])
    if result.kind != left.dtype.kind:
        raise DTypeError(f"`contract` of {left.dtype} cannot give {result}")
    shape = (
        *(left.shape[a] for a in left_batch),
        *_without(left.shape, (*left_batch, *left_contract)),
        *_without(right.shape, (*right_batch, *right_contract)),
    )
    part = attributes.get("part")
    if part is not None:
        if part < 1 or not left_contract:
            raise ArgumentError(f"`contract` of {len(left_contract)} contracted axes in parts of {part}")
        shape = (-(-left.shape[left_contract[-1]] // part), *shape)
    return (ArrayType(shape, result),)


@_rule("convolve")
def _convolve(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """Correlation of (N, C, *spatial) with (O, C / groups, *window), giving (N, O, *spatial)."""
    image, kernel = operands
    groups = attributes["groups"]
    if image.rank < 3 or kernel.rank != image.rank:
        raise ShapeError(
            f"`convolve` takes (N, C, *spatial) and (O, C/groups, *window), got {image} and {kernel}",
            help="give both operands the same number of axes",
        )
    if image.dtype != kernel.dtype or image.dtype.is_bool:
        raise DTypeError(
            f"`convolve` takes two operands of one numeric type, got {image.dtype} and {kernel.dtype}",
            help="cast them with `.astype`",
        )
    if groups < 1 or image.shape[1] != kernel.shape[1] * groups or kernel.shape[0] % groups:
        raise ShapeError(
            f"{groups} groups do not divide channels of {image.shape} and {kernel.shape}",
            help="the image has groups times the kernel's channels, and groups divides the results",
        )
    _check_window("convolve", image.rank - 2, attributes, ("strides", "low", "high", "dilation"))
    geometry = (attributes[k] for k in ("strides", "low", "high", "dilation"))
    spatial = window_sizes(image.shape[2:], kernel.shape[2:], *geometry)
    return (ArrayType((image.shape[0], kernel.shape[0], *spatial), image.dtype),)


# ---- order ----------------------------------------------------------------------------------------------------------


@_rule("sort")
def _sort(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """Stable sort of the first operand along one axis; the others are carried along. NaN sorts last (first if
    descending)."""
    keys = operands[0]
    _check_axis("sort", attributes["axis"], keys.rank)
    if any(o.shape != keys.shape for o in operands):
        raise ShapeError(f"operands of `sort` have shapes {', '.join(str(o.shape) for o in operands)}")
    return tuple(operands)


@_rule("top_k")
def _top_k(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """The k largest along the last axis, largest first, and their indices (i64); ties by lower index."""
    (operand,) = operands
    k = attributes["k"]
    if operand.rank == 0 or not 0 <= k <= operand.shape[-1]:
        raise ShapeError(f"`top_k` of {k} from an array of shape {operand.shape}")
    shape = (*operand.shape[:-1], k)
    return (ArrayType(shape, operand.dtype), ArrayType(shape, dtypes.i64))


# ---- libraries ------------------------------------------------------------------------------------------------------


@_rule("library_call")
def _library_call(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """A routine of a library on dense operands, leading dims being batch dims: see `routines`."""
    forms = [(operand.shape, operand.dtype) for operand in operands]
    return tuple(ArrayType(*form) for form in routines.result_forms(attributes["routine"], forms, attributes))


# ---- devices --------------------------------------------------------------------------------------------------------


@_rule("device_index")
def _device_index(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """The number (i64) of the device that runs the program, of `devices`."""
    collectives.check_devices(attributes["devices"])
    return (ArrayType((), dtypes.i64),)


@_rule("shard")
def _shard(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """The operand; `layout` declares its sharding over the devices of a mesh; dims in `open` may be divided further.
    The `array` dialect checks the layout."""
    (operand,) = operands
    _check_axes("shard", attributes["open"], operand.rank)
    return (operand,)


@_rule("collective")
def _collective(operands: Types, attributes: Attributes) -> tuple[ArrayType, ...]:
    """The result of a collective on one device: see `collectives`."""
    (operand,) = operands
    collectives.check(attributes)
    kind, size = attributes["kind"], attributes["group_size"]
    shape = list(operand.shape)
    if "fn" in collectives.KINDS[kind]:
        _check_reducible(kind, attributes["fn"], operand.dtype)
    for key, divided in (("split_axis", True), ("axis", kind == "reduce_scatter"), ("concat_axis", False)):
        if key not in collectives.KINDS[kind]:
            continue
        axis = attributes[key]
        _check_axis(kind, axis, operand.rank)
        if divided and shape[axis] % size:
            message = f"{size} devices do not divide axis {axis} of {operand}"
            raise ShapeError(message, help="pad the axis to a multiple of the devices of a group")
        shape[axis] = shape[axis] // size if divided else shape[axis] * size
    return (ArrayType(tuple(shape), operand.dtype),)
