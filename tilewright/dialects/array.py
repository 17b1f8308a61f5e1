"""The `array` dialect: pure functions over whole arrays.

    module   = func.func* tile.kernel*
    value    = constant iota random_bits
             | map cast bitcast
             | reshape transpose broadcast slice dynamic_slice dynamic_update_slice pad concat reverse gather scatter
             | reduce arg_reduce scan window_reduce
             | contract convolve
             | sort top_k
             | library_call                 a routine of LAPACK or an FFT
             | shard collective device_index         devices of a mesh
             | while if                     regions may use values from outside
             | call                         a tile kernel
             | fused                        operations that become one kernel
    region   = value* yield

Attributes and type rules are those of `tilewright.primitives`; `shape` and `dtype` are read from the result type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.ir import Attribute, Dialect, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    traits_def,
)
from xdsl.traits import IsolatedFromAbove, IsTerminator, NoMemoryEffect, Pure
from xdsl.utils.exceptions import VerifyException

from tilewright import primitives
from tilewright.dialects.base import PlainOp, array_type, plain_attributes, tensor
from tilewright.dialects.fields import Results, attribute, encode, operands, operation, region, results
from tilewright.dialects.rewriting import yielded
from tilewright.dtypes import DType
from tilewright.errors import TilewrightError
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.text import parse_layout
from tilewright.primitives import ArrayType

# Attributes of a primitive that the result type already holds.
FROM_RESULT: dict[str, tuple[str, ...]] = {
    "constant": ("shape", "dtype"),
    "iota": ("shape", "dtype"),
    "random_bits": ("shape",),
    "cast": ("dtype",),
    "bitcast": ("dtype",),
    "reshape": ("shape",),
    "broadcast": ("shape",),
    "contract": ("dtype",),
}


class ArrayOp(PlainOp):
    """An operation that is a primitive: verified by `primitives.infer`."""

    VERIFIED_BY_TYPES: ClassVar[bool] = True
    arguments: Sequence[SSAValue] = operands(default=())
    outputs: Results = results(default=())

    def __init__(self, **fields: Any) -> None:
        """Build from declared fields. Types of results are inferred where `outputs` is left out, but for primitives
        whose attributes the types hold (`FROM_RESULT`).

        Raises:
            ShapeError, DTypeError: the operands do not fit.
        """
        if "outputs" not in fields:
            types = [array_type(operand) for operand in fields["arguments"]]
            attributes = {key: value for key, value in fields.items() if key != "arguments"}
            fields["outputs"] = [tensor(type) for type in primitives.infer(self.primitive, types, attributes)]
        super().__init__(**fields)

    @property
    def primitive(self) -> str:
        return self.name.removeprefix("array.")

    def attributes_of(self) -> dict[str, Any]:
        """Attributes in the form that `primitives` and `semantics` take."""
        attributes = plain_attributes(self)
        result = array_type(self.results[0])
        known = {"shape": result.shape, "dtype": result.dtype.name}
        return attributes | {key: known[key] for key in FROM_RESULT.get(self.primitive, ())}

    def verify_(self) -> None:
        try:
            expected = primitives.infer(self.primitive, [array_type(o) for o in self.operands], self.attributes_of())
        except TilewrightError as error:
            raise VerifyException(f"{self.name}: {error.message}") from error
        actual = tuple(array_type(r) for r in self.results)
        if expected != actual:
            raise VerifyException(f"{self.name}: results are {actual}, expected {expected}")


class PureOp(ArrayOp):
    """A primitive that may be computed anywhere, once or often, or not at all."""

    traits = traits_def(Pure())


@operation
class ConstantOp(PureOp):
    """`np.full(shape, value)`, or the array called `resource` in the program's constants."""

    name = "array.constant"
    value: float | int = attribute()
    resource: str = attribute()


@operation
class IotaOp(PureOp):
    """`np.arange(shape[axis])` along `axis`, broadcast to the shape."""

    name = "array.iota"
    axis: int = attribute()


@operation
class RandomBitsOp(PureOp):
    """Philox4x32-10 of (key, linear index)."""

    name = "array.random_bits"


@operation
class MapOp(PureOp):
    """`ops.FUNCTIONS[fn]` applied to each element."""

    name = "array.map"
    fn: str = attribute()


@operation
class CastOp(PureOp):
    """`ops.cast(x, dtype)`."""

    name = "array.cast"


@operation
class BitcastOp(PureOp):
    """`x.view(dtype)` of the same width."""

    name = "array.bitcast"


@operation
class ReshapeOp(PureOp):
    """`x.reshape(shape)`, row-major."""

    name = "array.reshape"


@operation
class TransposeOp(PureOp):
    """`x.transpose(permutation)`."""

    name = "array.transpose"
    permutation: tuple[int, ...] = attribute()


@operation
class BroadcastOp(PureOp):
    """Operand axis i becomes result axis `axes[i]`; size 1 repeats, missing axes repeat."""

    name = "array.broadcast"
    axes: tuple[int, ...] = attribute()


@operation
class SliceOp(PureOp):
    """`x[starts:limits:strides]` on every axis."""

    name = "array.slice"
    starts: tuple[int, ...] = attribute()
    limits: tuple[int, ...] = attribute()
    strides: tuple[int, ...] = attribute()


@operation
class UnfoldOp(PureOp):
    """`axis` becomes one axis of each of `sizes`: the element at k0, k1, ... is the one at the sum of k * step, for
    `steps`, which stays inside."""

    name = "array.unfold"
    axis: int = attribute()
    sizes: tuple[int, ...] = attribute()
    steps: tuple[int, ...] = attribute()


@operation
class DynamicSliceOp(PureOp):
    """A window of `sizes` at scalar starts, which are clamped so that it stays inside."""

    name = "array.dynamic_slice"
    sizes: tuple[int, ...] = attribute()


@operation
class DynamicUpdateSliceOp(PureOp):
    """The operand with `update` written at (clamped) scalar starts."""

    name = "array.dynamic_update_slice"


@operation
class PadOp(PureOp):
    """`value` around (`low`, `high`) and between (`interior`) the elements of each axis."""

    name = "array.pad"
    low: tuple[int, ...] = attribute()
    high: tuple[int, ...] = attribute()
    interior: tuple[int, ...] = attribute()


@operation
class ConcatOp(PureOp):
    """`np.concatenate(xs, axis)`."""

    name = "array.concat"
    axis: int = attribute()


@operation
class ReverseOp(PureOp):
    """`np.flip(x, axes)`."""

    name = "array.reverse"
    axes: tuple[int, ...] = attribute()


@operation
class GatherOp(PureOp):
    """Elements of the first operand at index arrays over `axes` (clamped); index axes lead in the result."""

    name = "array.gather"
    axes: tuple[int, ...] = attribute()


@operation
class ScatterOp(PureOp):
    """The operand with updates combined at index arrays over `axes`, in order; indices outside are dropped."""

    name = "array.scatter"
    axes: tuple[int, ...] = attribute()
    fn: str = attribute()


@operation
class ReduceOp(PureOp):
    """`fn.reduce(x, axes)`; the axes disappear. Empty reductions give the identity. `part`: how much of `part_axis`, a
    reduced axis, is combined together; the parts are one more axis of the result, the first."""

    name = "array.reduce"
    fn: str = attribute()
    axes: tuple[int, ...] = attribute()
    part: int | None = attribute(default=None)
    part_axis: int | None = attribute(default=None)


@operation
class ArgReduceOp(PureOp):
    """`np.argmax` / `np.argmin` along `axis`."""

    name = "array.arg_reduce"
    fn: str = attribute()
    axis: int = attribute()


@operation
class ScanOp(PureOp):
    """`fn.accumulate(x, axis)`, from the far end if `reverse`; a second operand is combined with all from the start.
    Which elements a total combines is defined, not in which order."""

    name = "array.scan"
    fn: str = attribute()
    axis: int = attribute()
    reverse: bool = attribute()


@operation
class WindowReduceOp(PureOp):
    """Reduction over a sliding window; padding is the identity."""

    name = "array.window_reduce"
    fn: str = attribute()
    window: tuple[int, ...] = attribute()
    strides: tuple[int, ...] = attribute()
    low: tuple[int, ...] = attribute()
    high: tuple[int, ...] = attribute()
    dilation: tuple[int, ...] = attribute()


@operation
class ContractOp(PureOp):
    """General dot, accumulated in the result type; result axes are batch, left free, right free. `precision`: what f32
    operands are rounded to before they are multiplied. `part`: how much of the last contracted dim is summed together;
    the parts are one more axis of the result, the first."""

    name = "array.contract"
    left_batch: tuple[int, ...] = attribute()
    right_batch: tuple[int, ...] = attribute()
    left_contract: tuple[int, ...] = attribute()
    right_contract: tuple[int, ...] = attribute()
    precision: str | None = attribute(default=None)
    part: int | None = attribute(default=None)


@operation
class ConvolveOp(PureOp):
    """Correlation of (N, C, *spatial) with (O, C / groups, *window)."""

    name = "array.convolve"
    strides: tuple[int, ...] = attribute()
    low: tuple[int, ...] = attribute()
    high: tuple[int, ...] = attribute()
    dilation: tuple[int, ...] = attribute()
    groups: int = attribute()


@operation
class SortOp(PureOp):
    """Stable sort of the first operand along `axis`, the others carried along. A line is `runs` of equal length, each
    in order already."""

    name = "array.sort"
    axis: int = attribute()
    descending: bool = attribute()
    runs: int = attribute(default=1)


@operation
class TopKOp(PureOp):
    """The `k` largest along the last axis and their indices."""

    name = "array.top_k"
    k: int = attribute()


@operation
class LibraryCallOp(PureOp):
    """`routine` of a library for each matrix or line of the operands: `tilewright.routines` lists them. With
    `must_succeed` the program fails where the routine does; otherwise its `info` states it. It stays outside
    kernels."""

    name = "array.library_call"
    routine: str = attribute()
    must_succeed: bool = attribute(default=False)
    lower: bool = attribute(default=False)
    left: bool = attribute(default=False)
    transposed: bool = attribute(default=False)
    unit: bool = attribute(default=False)
    vectors: bool = attribute(default=False)
    full: bool = attribute(default=False)
    inverse: bool = attribute(default=False)
    scale: float | None = attribute(default=None)
    size: int | None = attribute(default=None)


@operation
class DeviceIndexOp(PureOp):
    """The index of the device that runs the program, from 0."""

    name = "array.device_index"
    devices: int = attribute()


@operation
class ShardOp(PureOp):
    """The operand, of which `layout` states how devices are to hold it: axes `device.*` and `mem`. Dims in `open` may
    be divided further."""

    name = "array.shard"
    layout: str = attribute()
    open: tuple[int, ...] = attribute()

    def verify_(self) -> None:
        super().verify_()
        try:
            layout = parse_layout(self.layout)
            kinds = {kind_of(axis) for axis in layout.axes}
        except TilewrightError as error:
            raise VerifyException(f"{self.name}: {error.message}") from error
        if layout.shape != array_type(self.operands[0]).shape:
            raise VerifyException(f"{self.name}: the layout is of the shape {layout.shape}")
        if not kinds <= {Kind.DEVICE, Kind.MEMORY}:
            raise VerifyException(f"{self.name}: the layout has axes of other kinds than devices and memory")


@operation
class CollectiveOp(ArrayOp):
    """An exchange among the devices of each group: see `collectives`.

    Equal ones in a row are one, and one that nothing uses goes, as all devices run one program. But it stays in its
    region: whether a device comes there may depend on values that differ between devices, and those of a group must
    come as often."""

    name = "array.collective"
    kind: str = attribute()
    devices: int = attribute()
    groups: tuple[int, ...] = attribute()
    group_size: int = attribute()
    fn: str | None = attribute(default=None)
    axis: int | None = attribute(default=None)
    split_axis: int | None = attribute(default=None)
    concat_axis: int | None = attribute(default=None)
    traits = traits_def(NoMemoryEffect())


@operation
class YieldOp(PlainOp):
    """Ends a region with its results."""

    name = "array.yield"
    arguments: Sequence[SSAValue] = operands(default=())
    traits = traits_def(IsTerminator())


@operation
class WhileOp(PlainOp):
    """Repeat `body` on the carried arrays while `condition` yields true."""

    name = "array.while"
    arguments: Sequence[SSAValue] = operands(default=())
    outputs: Results = results(default=())
    condition: Region = region()
    body: Region = region()

    def verify_(self) -> None:
        carried = [o.type for o in self.operands]
        condition, body = self.condition.block, self.body.block
        if [r.type for r in self.results] != carried or [a.type for a in body.args] != carried:
            raise VerifyException("array.while: carried types differ between operands, body and results")
        if [a.type for a in condition.args] != carried:
            raise VerifyException("array.while: the condition takes other types than are carried")
        if [o.type for o in yielded(body)] != carried:
            raise VerifyException("array.while: the body yields other types than are carried")
        verdict = [array_type(o) for o in yielded(condition)]
        if len(verdict) != 1 or verdict[0].shape or not verdict[0].dtype.is_bool:
            raise VerifyException("array.while: the condition must yield one bool scalar")


@operation
class IfOp(PlainOp):
    """Run `then` if the bool scalar is true, else `otherwise`."""

    name = "array.if"
    arguments: Sequence[SSAValue] = operands(default=())
    outputs: Results = results(default=())
    then: Region = region()
    otherwise: Region = region()

    def verify_(self) -> None:
        predicate = array_type(self.operands[0]) if len(self.operands) == 1 else None
        if predicate is None or predicate.shape or not predicate.dtype.is_bool:
            raise VerifyException("array.if: takes one bool scalar")
        types = [r.type for r in self.results]
        if any([o.type for o in yielded(region.block)] != types for region in self.regions):
            raise VerifyException("array.if: both branches must yield the result types")


@operation
class CallOp(PlainOp):
    """Run the tile kernel `callee` on the operands; results are its outputs (fresh arrays)."""

    name = "array.call"
    callee: str = attribute()
    arguments: Sequence[SSAValue] = operands(default=())
    outputs: Results = results(default=())
    traits = traits_def(Pure())


@operation
class FusedOp(PlainOp):
    """Operations that become one kernel. `kind` names the lowering; `why` records the decision."""

    name = "array.fused"
    kind: str = attribute()
    why: str = attribute()
    schedule: Attribute | None = attribute(default=None)
    arguments: Sequence[SSAValue] = operands(default=())
    outputs: Results = results(default=())
    body: Region = region()
    traits = traits_def(Pure(), IsolatedFromAbove())

    def verify_(self) -> None:
        if [a.type for a in self.body.block.args] != [o.type for o in self.operands]:
            raise VerifyException("array.fused: block arguments differ from operands")
        if [o.type for o in yielded(self.body.block)] != [r.type for r in self.results]:
            raise VerifyException("array.fused: yields other types than its results")


_PRIMITIVES: tuple[type[ArrayOp], ...] = (
    ConstantOp,
    IotaOp,
    RandomBitsOp,
    MapOp,
    CastOp,
    BitcastOp,
    ReshapeOp,
    TransposeOp,
    BroadcastOp,
    SliceOp,
    UnfoldOp,
    DynamicSliceOp,
    DynamicUpdateSliceOp,
    PadOp,
    ConcatOp,
    ReverseOp,
    GatherOp,
    ScatterOp,
    ReduceOp,
    ArgReduceOp,
    ScanOp,
    WindowReduceOp,
    ContractOp,
    ConvolveOp,
    SortOp,
    TopKOp,
    LibraryCallOp,
    DeviceIndexOp,
    ShardOp,
    CollectiveOp,
)
_STRUCTURE: tuple[type[IRDLOperation], ...] = (YieldOp, WhileOp, IfOp, CallOp, FusedOp)
CLASSES: dict[str, type[ArrayOp]] = {cls.name.removeprefix("array."): cls for cls in _PRIMITIVES}

Array = Dialect("array", [*_PRIMITIVES, *_STRUCTURE], [])


def build(
    primitive: str,
    operands: Sequence[SSAValue],
    attributes: Mapping[str, Any],
    types: Sequence[ArrayType] | None = None,
) -> ArrayOp:
    """Build the operation of a primitive from plain attributes; types are inferred when they are not given."""
    cls = CLASSES[primitive]
    if types is None:
        types = primitives.infer(primitive, [array_type(o) for o in operands], attributes)
    derived = FROM_RESULT.get(primitive, ())
    stored = {key: value for key, value in attributes.items() if key not in derived}
    properties = {key: encode(value) for key, value in stored.items()}
    return cls.create(operands=operands, properties=properties, result_types=[tensor(t) for t in types])


def contract(
    operands: Sequence[SSAValue],
    left_contract: Sequence[int],
    right_contract: Sequence[int],
    dtype: DType,
    left_batch: Sequence[int] = (),
    right_batch: Sequence[int] = (),
) -> ArrayOp:
    """A contraction of two arrays over pairs of dims, accumulated in `dtype`."""
    attributes = {
        "left_batch": tuple(left_batch),
        "right_batch": tuple(right_batch),
        "left_contract": tuple(left_contract),
        "right_contract": tuple(right_contract),
    }
    return build("contract", operands, {**attributes, "dtype": dtype.name})


def new_region(types: Sequence[Attribute]) -> Region:
    """A region of one block with arguments of the given types."""
    from xdsl.ir import Block

    return Region(Block(arg_types=list(types)))
