"""Matmul operands that are windows of arrays, and asynchronous copies of them to shared memory (cp.async).

A matmul's operand comes from a load, through transposes, relayouts and buffers. If nothing is computed on the way, its
elements are those of a window of the array, zero beyond the array's end, and a copy by pieces of 4, 8 or 16 bytes can
load them. `Refused` gives the reason against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.scheduled import tile_order
from tilewright.errors import LayoutError
from tilewright.layout import Iter, Layout
from tilewright.layout.access import MemoryPorts, register_access
from tilewright.layout.catalogue import shared_matrix
from tilewright.layout.operations import rename_axis
from tilewright.machines.machine import Machine
from tilewright.passes.affine_access import Form, Index, linear_form
from tilewright.passes.layouts.layout_spaces import dealt
from tilewright.passes.warps.tile_lower_to_warps import layout_of, parsed
from tilewright.passes.warps.warp_space import SHARED, matrix_buffer
from tilewright.primitives import ArrayType
from tilewright.records import dataclass

# What one lane copies at once.
_PIECES_BYTES = (16, 8, 4)
# A row of the matrices that instructions load from shared memory.
_LINE_BYTES = 16


class Refused(Exception):
    """Why an operand cannot be copied ahead."""


def _transposed(itemsize: int) -> str:
    return f"an operand of {8 * itemsize} bits would have to be transposed"


@dataclass
class Window:
    """The window of an array that an operand is. `map` takes the operand's index to the array's, `trips` are the
    buffers that it goes through now, `moves` all operations that load it, the last first, and `shared` those before
    them that load it to others, too."""

    load: tile.LoadOp
    map: AffineMap
    type: ArrayType
    trips: list[tuple[scheduled.AllocOp, tile.StoreOp]] = field(
        default_factory=list[tuple[scheduled.AllocOp, tile.StoreOp]]
    )
    moves: list[Operation] = field(default_factory=list[Operation])
    shared: list[Operation] = field(default_factory=list[Operation])

    @property
    def forms(self) -> list[Form]:
        """The array's index as linear forms of the operand's.

        Raises:
            Refused: it divides or takes remainders.
        """
        dims = tuple(Index(n) for n in range(self.map.num_dims))
        found = [form for e in self.map.results if (form := linear_form(e, dims)) is not None]
        if len(found) < len(self.map.results):
            raise Refused("the offset of the window is not linear")
        return found

    @property
    def contiguous_dim(self) -> int:
        """The dim of the operand along which neighbours are neighbours in the array.

        Raises:
            Refused: there is none.
        """
        *others, last = self.forms
        along = [dim for dim, step in last.dims if step == 1]
        if len(along) != 1 or len(last.dims) != 1 or any(form.coefficient(along[0]) for form in others):
            raise Refused("neighbours in the array are not neighbours in the tile")
        return along[0]

    def piece(self) -> int:
        """The most elements that a copy moves at once: all within the array or all beyond it, and aligned.

        Raises:
            Refused: not even 4 bytes.
        """
        item, along, last = self.type.dtype.itemsize, self.contiguous_dim, self.forms[-1]
        pitch = tile.ref_type(self.load.source).shape[-1]
        numbers = (self.type.shape[along], pitch, last.constant, *(step for _, step in last.symbols))
        for size in _PIECES_BYTES:
            if size % item == 0 and all(number * item % size == 0 for number in numbers):
                return size // item
        raise Refused(f"rows of {pitch} elements of {item} bytes do not begin at multiples of 4 bytes")


def window_behind(operand: SSAValue, block: Block, is_left: bool, around: Block | None = None) -> Window:
    """The window that an operand of a matmul in the block of a loop is. With `around`, the block around the loop, it
    may be loaded there, and for others, too.

    Raises:
        Refused: it is none, or something is computed on the way.
    """
    side = "left" if is_left else "right"
    type = array_type(operand.type.array if isinstance(operand.type, tile.RefType) else operand)
    at: list[AffineExpr] = [AffineExpr.dimension(dim) for dim in range(type.rank)]
    paddings: list[tuple[tile.FillPaddingOp, list[AffineExpr]]] = []
    trips: list[tuple[scheduled.AllocOp, tile.StoreOp]] = []
    moves: list[Operation] = []
    shared: list[Operation] = []
    value = operand
    while True:
        op = value.owner
        if not isinstance(op, Operation) or op.parent_block() not in (block, around):
            raise Refused(f"the {side} operand is not loaded in the loop")
        if isinstance(op, scheduled.AllocOp):
            value = _stored(op, trips, moves)
            continue
        has_others = bool(shared) or len(list(value.uses)) > 1 or op.parent_block() is not block
        if has_others and around is None:
            raise Refused(f"the {side} operand is used more than once")
        (shared if has_others else moves).append(op)
        if isinstance(op, tile.RelayoutOp) and (layout := layout_of(op.source)) is not None and not layout.partial:
            value = op.source
        elif isinstance(op, tile.CastOp) and type.dtype == dtypes.tf32:
            value = op.operands[0]  # the product rounds what it reads in a buffer
        elif isinstance(op, tile.TransposeOp):
            value, at = op.operands[0], _before_transpose(op, at)
        elif isinstance(op, tile.ReshapeOp) and (seen := _before_reshape(op, at)) is not None:
            value, at = op.operands[0], seen
        elif isinstance(op, tile.FillPaddingOp) and not op.value:
            paddings.append((op, at))
            value = op.source
        elif isinstance(op, tile.LoadOp) and isinstance(op.source.owner, scheduled.AllocOp):
            _check_whole(op)
            value = op.source
        elif isinstance(op, tile.LoadOp):
            window = _window(op, at, type, side)
            for padding, seen_at in paddings:
                _check_padding(padding, seen_at, window)
            return replace(window, trips=trips, moves=moves, shared=shared)
        else:
            what = op.name.removeprefix("tile.")
            raise Refused(f"`{what}` stands between the window of the {side} operand and the matmul")


def _stored(
    op: scheduled.AllocOp, trips: list[tuple[scheduled.AllocOp, tile.StoreOp]], moves: list[Operation]
) -> SSAValue:
    """The value in a buffer with one store and one reader."""
    users = [use.operation for use in op.result.uses]
    stores = [user for user in users if isinstance(user, tile.StoreOp)]
    if len(users) != 2 or len(stores) != 1 or op.stages is not None:
        raise Refused("a buffer is used more than once")
    (store,) = stores
    if store.map != AffineMap.identity(len(tile.ref_type(op.result).shape)):
        raise Refused("a buffer is stored by parts")
    trips.append((op, store))
    moves += [store, op]
    return store.value


def _check_whole(op: tile.LoadOp) -> None:
    if op.map != AffineMap.identity(array_type(op.result).rank):
        raise Refused("a buffer is loaded by parts")


def _before_transpose(op: tile.TransposeOp, at: Sequence[AffineExpr]) -> list[AffineExpr]:
    order: Sequence[int] = op.permutation
    return [at[order.index(dim)] for dim in range(len(order))]


def _before_reshape(op: tile.ReshapeOp, at: Sequence[AffineExpr]) -> list[AffineExpr] | None:
    """Coordinates before a reshape that only adds or drops dims of size 1."""
    source, result = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    kept = [expression for size, expression in zip(result, at, strict=True) if size != 1]
    if [size for size in source if size != 1] != [size for size in result if size != 1]:
        return None
    rest = iter(kept)
    return [AffineExpr.constant(0) if size == 1 else next(rest) for size in source]


def is_point(symbol: SSAValue) -> bool:
    """Whether it is a coordinate of a trip's point in a grid."""
    return isinstance(symbol.owner, tile_order.PointOp)


def _window(op: tile.LoadOp, at: Sequence[AffineExpr], type: ArrayType, side: str) -> Window:
    if op.fill is not None and op.fill:
        raise Refused(f"the {side} operand is filled with something else than zeros")
    if not isinstance(op.source, BlockArgument) or any(not isinstance(s.type, IndexType) for s in op.symbols):
        raise Refused(f"the {side} operand is gathered")
    if any(isinstance(use.operation, tile.StoreOp) for use in op.source.uses):
        raise Refused(f"the kernel writes the array of the {side} operand")
    block = op.parent_block()
    if any(isinstance(s.owner, Operation) and s.owner.parent_block() is block and not is_point(s) for s in op.symbols):
        raise Refused(f"the offset of the {side} operand is computed in the loop")
    symbols = [AffineExpr.symbol(n) for n in range(len(op.symbols))]
    map = op.map.replace_dims_and_symbols(list(at), symbols, type.rank, len(op.symbols))
    return Window(op, map, type)


def _check_padding(op: tile.FillPaddingOp, at: Sequence[AffineExpr], window: Window) -> None:
    """Padding is what is beyond the array, which copies fill with zeros."""
    symbols = [AffineExpr.symbol(n) for n in range(len(op.symbols))]
    rank = window.type.rank
    map = op.map.replace_dims_and_symbols(list(at), symbols, rank, len(op.symbols))
    dims = tuple(Index(n) for n in range(rank))
    wanted = _by_value(linear_form(map.results[0], dims), op.symbols)
    extents = tile.ref_type(window.load.source).shape
    for form, extent in zip(window.forms, extents, strict=True):
        if _by_value(form, window.load.symbols) == wanted and op.limit >= extent:
            return
    raise Refused("padding begins within the array")


def _by_value(form: Form | None, symbols: Sequence[SSAValue]) -> object:
    """A form whose symbols are values, to compare those of two operations."""
    if form is None:
        return None
    return form.constant, frozenset(form.dims), frozenset((symbols[n], step) for n, step in form.symbols)


# ---- where it goes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Landing:
    """The layout of a buffer that an operand is copied to, and which thread copies what; none does where the machine
    copies by itself. `fragment`: the registers that a matmul takes it to; none where it reads it in the buffer."""

    buffer: Layout
    threads: Layout | None = None
    fragment: Layout | None = None


def landing_of(op: scheduled.MmaOp, operand: SSAValue, window: Window, warps: int, machine: Machine) -> Landing:
    """The memory to which an operand of a matmul should be copied.

    Raises:
        Refused: the instructions that read it cannot do so there, or several lanes would meet in a bank.
    """
    piece, along = window.piece(), window.contiguous_dim
    type = window.type
    depth_dim = 1 if operand is op.left else 0
    family = machine.family_of(op.atom)
    if family is not None and family.warps == 1:
        buffer, fragment = _matrix(window, depth_dim), layout_of(operand)
    elif family is not None and not family.sums_in_tensor_memory:
        buffer, fragment = matrix_landing(window, depth_dim), None
    else:
        buffer, fragment = parsed(tile.ref_type(operand).layout.data), None
    order = (along, *(dim for dim in range(type.rank) if dim != along))
    holders = (("lane", machine.axes["lane"]), ("warp", warps))
    threads = dealt(type.shape, order, holders, piece)
    _check_banks(threads, buffer, piece, type, machine)
    if fragment is not None:
        _check_banks(_matrix_rows(type, along), buffer, _LINE_BYTES // type.dtype.itemsize, type, machine)
    return Landing(buffer, threads, fragment)


def matrix_landing(window: Window, depth_dim: int) -> Layout:
    """The buffer of an operand that the machine multiplies there, which is as in the array.

    Raises:
        Refused: no instruction reads it so.
    """
    item, along = window.type.dtype.itemsize, window.contiguous_dim
    if item != 2 and along != depth_dim:
        raise Refused(_transposed(item))
    try:
        return matrix_buffer(window.type.shape, 8 * item, along)
    except LayoutError as error:
        raise Refused(error.message) from error


def _check_banks(threads: Layout, buffer: Layout, piece: int, type: ArrayType, machine: Machine) -> None:
    """Whether pieces of some elements a lane are moved without two in one bank."""
    memory, item = machine.memory_of(SHARED), type.dtype.itemsize
    ports = MemoryPorts(memory.banks, memory.bank_bytes, widest_bytes=piece * item)
    access = register_access(threads, buffer, item, ports)
    if access is None or not access.is_ideal or access.vector < piece:
        raise Refused("lanes would have bank conflicts")


def _matrix(window: Window, depth_dim: int) -> Layout:
    """A buffer that matrices of 8 lines of 16 bytes are read from: lines along the dim that is contiguous in the array,
    their pieces swizzled."""
    type, along = window.type, window.contiguous_dim
    item = type.dtype.itemsize
    if item != 2 and along != depth_dim:
        raise Refused(_transposed(item))
    line = type.shape[along] * item
    swizzle = next((span for span in (128, 64, 32) if line % span == 0), None)
    if swizzle is None or item > 4:
        raise Refused(f"lines of {line} bytes are not made of 32")
    try:
        matrix = shared_matrix(type.shape, 8 * item, swizzle, contiguous_dim=along)
    except LayoutError as error:
        raise Refused(error.message) from error
    return rename_axis(matrix, "mem", SHARED)


def _matrix_rows(type: ArrayType, along: int) -> Layout:
    """The addresses of one step of ldmatrix: 8 rows of 16 bytes, a lane each."""
    other = 1 - along
    lines = (Iter(type.shape[other] // 8, type.shape[along], "reg"), Iter(8, 1, "lane"))
    within = (Iter(type.shape[along], 1, "reg"),)
    return Layout(type.shape, (within, lines) if along == 0 else (lines, within))
