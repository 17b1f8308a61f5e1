"""The `scheduled` operations: tile kernels with buffers, loop nests, packed operands and parallel regions decided.

    alloc      a buffer in a space (`worker`: one per thread; `shared`: one per call; `block`: one per block of warps),
               its layout in its type
    view       an array of 16- or 8-bit elements as one of words
    parallel   run the body for every point of `extents`, spread over threads; the end of the region is a team barrier
    nest       tile operations that are emitted as one loop nest; it reads and writes refs and nothing else
    dot        register-blocked product of two refs into an accumulator buffer
    barrier    all threads of the team see what was written before

    terms      a value whose terms several warps hold, as a tile with one more dim
    mma        product of two tiles, in registers or in buffers, added to a tile in registers

    stage      one tile of a ring of several
    copy       a window of an array moves to a buffer, while the threads go on
    commit     the copies since the last commit are a group
    wait       all groups but the newest have arrived

    role          a region that warps of its own run, beside those that run what follows it
    mma_wait      the newest asynchronous products may be under way, those before have been done
    set_registers each thread of some warps has so many registers from now on

    record        what the first thread of some warps notes of the time, in an array that the host reads

those on copies by the machine and their barriers, of `asynchronous.py`, on tensor memory, of `tensor_memory.py`, and
the points of a grid in an order, of `tile_order.py`.

A scheduled kernel is a `tile.kernel` with an empty grid whose body holds these, `tile.for` without carried tiles, and
`tile.yield`. On a machine with warps there are no nests: each tile has its layout in its type, `tile.relayout` moves
data between the lanes of a warp, and what moves between warps is stored in a buffer, after a barrier, and loaded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Dialect, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import traits_def
from xdsl.traits import IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import PlainOp, array_type, dtype_of
from tilewright.dialects.fields import Result, attribute, operand, operands, operation, region, result
from tilewright.dialects.scheduled import asynchronous, tensor_memory, tile_order
from tilewright.layout import Layout, row_major
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.dims import static
from tilewright.primitives import ArrayType

WORKER, SHARED, BLOCK, WARP = "worker", "shared", asynchronous.BLOCK, "warp"
# All warps of a block, those of roles too; `BLOCK` as the scope of a barrier leaves out those of roles.
EVERY_ROLE = "every role"
# All warps of all blocks of a cluster.
CLUSTER = "cluster"
# Buffers of a block begin where the instructions that read them in lines want them to.
BUFFER_ALIGNMENT_BYTES = 1024


@lru_cache(maxsize=4096)
def _parsed(layout: str) -> Layout:
    return Layout.parse(layout)


@operation
class AllocOp(PlainOp):
    """A buffer with undefined contents. `offset_bytes` is its address in the space once buffers are planned. With
    `stages` it is a ring of so many tiles, of which `scheduled.stage` gives one; its type is that of each."""

    name = "scheduled.alloc"
    offset_bytes: int | None = attribute(default=None)
    stages: int | None = attribute(default=None)
    result: Result = result(tile.RefType)

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return 1 if self.stages is None else self.stages

    @property
    def tile_bytes(self) -> int:
        """How much of a memory a tile reaches over."""
        type = tile.ref_type(self.result)
        layout = _parsed(type.layout.data) if type.layout.data else row_major(type.shape)
        axis = next((axis for axis in layout.axes if kind_of(axis) == Kind.MEMORY), None)
        return type.dtype.itemsize * (1 if axis is None else static(layout.span(axis)))

    @property
    def stage_bytes(self) -> int:
        """How far apart the tiles of a ring are."""
        return -(-self.tile_bytes // BUFFER_ALIGNMENT_BYTES) * BUFFER_ALIGNMENT_BYTES

    @property
    def bytes(self) -> int:
        """Bytes of all tiles."""
        return (self.count - 1) * self.stage_bytes + self.tile_bytes

    def verify_(self) -> None:
        space = tile.ref_type(self.result).space.data
        if space not in (WORKER, SHARED, BLOCK):
            raise VerifyException("scheduled.alloc: the space must be worker, shared or block")
        if self.stages is None:
            return
        if self.count < 2 or space != BLOCK:
            raise VerifyException(
                f"scheduled.alloc: {self.count} stages in the space {space}, not 2 or more of a block"
            )
        if any(not isinstance(use.operation, StageOp) for use in self.result.uses):
            raise VerifyException("scheduled.alloc: a ring is used otherwise than by scheduled.stage")


@operation
class ViewOp(PlainOp):
    """An array of 16- or 8-bit elements as one of words: 2 or 4 neighbours along its last dimension, the first in the
    lowest bits."""

    name = "scheduled.view"
    source: SSAValue = operand(tile.RefType)
    result: Result = result(tile.RefType)

    def verify_(self) -> None:
        source, words = tile.ref_type(self.source), tile.ref_type(self.result)
        if source.layout.data or words.layout.data or source.space.data != words.space.data:
            raise VerifyException("scheduled.view: its source has a layout, or is in another memory")
        group = words.dtype.bits // source.dtype.bits
        if words.dtype != dtypes.u32 or (*words.shape[:-1], words.shape[-1] * group) != source.shape:
            raise VerifyException(f"scheduled.view: {source} is no array of the words of {words}")


@operation
class StageOp(PlainOp):
    """The tile of a ring that is number `map(symbols)`."""

    name = "scheduled.stage"
    ring: SSAValue = operand(tile.RefType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    map: AffineMap = attribute()
    result: Result = result(tile.RefType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        map = self.map
        if map.num_dims or map.num_symbols != len(self.symbols) or len(map.results) != 1:
            raise VerifyException(f"scheduled.stage: {map} does not give one number of {len(self.symbols)} symbols")
        if not isinstance(self.ring.owner, AllocOp) or self.ring.owner.stages is None:
            raise VerifyException("scheduled.stage: not of a buffer with stages")
        if self.result.type != self.ring.type:
            raise VerifyException("scheduled.stage: the type is not that of the ring")


@operation
class CopyOp(PlainOp):
    """`destination[d] = source[map(d, symbols)]`, zero outside of the source, some time before a wait that covers the
    group of the copy: until then the destination is undefined, and its threads continue. `layout` states which thread
    copies what: neighbouring registers together. Nothing is copied where `trip(symbols) >= trips`. The copied data is
    visible to asynchronous operations after a `fence`."""

    name = "scheduled.copy"
    source: SSAValue = operand(tile.RefType)
    destination: SSAValue = operand(tile.RefType)
    symbols: Sequence[SSAValue] = operands(IndexType, default=())
    map: AffineMap = attribute()
    layout: str = attribute()
    trip: AffineMap | None = attribute(default=None)
    trips: int | None = attribute(default=None)

    def verify_(self) -> None:
        source, target, map = tile.ref_type(self.source), tile.ref_type(self.destination), self.map
        if (map.num_dims, map.num_symbols, len(map.results)) != (
            len(target.shape),
            len(self.symbols),
            len(source.shape),
        ):
            raise VerifyException(
                f"scheduled.copy: {map} does not map {target.shape} with {len(self.symbols)} symbols to {source.shape}"
            )
        if source.dtype.numpy != target.dtype.numpy:
            raise VerifyException(f"scheduled.copy: from an array of {source.dtype} to a buffer of {target.dtype}")
        if target.space.data != BLOCK:
            raise VerifyException(f"scheduled.copy: to the space {target.space.data}, not to that of a block")
        if Layout.parse(self.layout).static_shape != target.shape:
            raise VerifyException(f"scheduled.copy: the layout does not deal a tile of {target.shape}")
        if (self.trip is None) != (self.trips is None):
            raise VerifyException("scheduled.copy: a trip without trips, or vice versa")
        if self.trip is not None and (self.trip.num_dims, self.trip.num_symbols) != (0, len(self.symbols)):
            raise VerifyException(f"scheduled.copy: {self.trip} does not give a trip")


@operation
class CommitOp(PlainOp):
    """The copies that were begun since the last commit are a group, which may be empty."""

    name = "scheduled.commit"


@operation
class WaitOp(PlainOp):
    """All groups but the newest `pending` have arrived, for the thread that began them: what other threads copied is
    seen after a barrier."""

    name = "scheduled.wait"
    pending: int = attribute()

    def verify_(self) -> None:
        if self.pending < 0:
            raise VerifyException("scheduled.wait: fewer than no groups are pending")


# ---- roles ----------------------------------------------------------------------------------------------------------


@operation
class RoleOp(PlainOp):
    """Run the body by `warps` warps of their own, while the block's other warps continue with what follows. Buffers and
    indices from before it are seen in it; the block ends when all have ended. The last `leaving` of the warps only set
    their registers, and end."""

    name = "scheduled.role"
    role: str = attribute()
    warps: int = attribute()
    leaving: int | None = attribute(default=None)
    body: Region = region()

    @property
    def working(self) -> int:
        """How many warps run all of the body."""
        return self.warps - (0 if self.leaving is None else self.leaving)

    def verify_(self) -> None:
        if self.working < 1 or self.body.block.args:
            raise VerifyException("scheduled.role: a role has one warp or more, and no arguments")
        if not isinstance(self.parent_op(), ParallelOp):
            raise VerifyException("scheduled.role: not directly in a region of blocks")


@operation
class SetRegistersOp(PlainOp):
    """Each thread of the warps that come here has `count` registers from now on. More wait until others of the block
    have given back as many. All warps of a warpgroup come here."""

    name = "scheduled.set_registers"
    count: int = attribute()

    def verify_(self) -> None:
        count = self.count
        if not 24 <= count <= 256 or count % 8:
            raise VerifyException(f"scheduled.set_registers: {count} registers, not 24 to 256 in steps of 8")
        parent = self.parent_op()
        role = parent if isinstance(parent, RoleOp) else None
        region = parent if role is None else role.parent_op()
        if not isinstance(region, ParallelOp) or region.registers is None:
            raise VerifyException("scheduled.set_registers: not in a region whose threads begin with some number")
        warps = role.warps if role is not None else region.warps
        if warps is None or warps % 4:
            raise VerifyException("scheduled.set_registers: by warps that are no whole warpgroups")


@operation
class ParallelOp(PlainOp):
    """Run the body for each point of `extents` (its arguments), `grain` consecutive points at a time on one thread.
    With `in_order`, the nests of a point that load an array which the region stores too come after those of the point
    before it along the last dimension that store it. With `warps`, a point is a block of so many warps, besides those
    of roles. With `registers`, each thread of a block begins with so many: all together are what there is to give back
    and to take by `set_registers`. With `cluster`, so many blocks whose numbers follow each other run at once, and
    reach each other's memory: the first one's number is a multiple of it, and each one's rank is what its number is
    more. No block ends before all has come that others do to its memory."""

    name = "scheduled.parallel"
    extents: tuple[int, ...] = attribute()
    grain: int = attribute()
    in_order: bool = attribute(default=False)
    warps: int | None = attribute(default=None)
    registers: int | None = attribute(default=None)
    cluster: int | None = attribute(default=None)
    body: Region = region()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents

    @property
    def blocks_of_cluster(self) -> int:
        """How many blocks reach each other's memory."""
        return 1 if self.cluster is None else self.cluster

    def verify_(self) -> None:
        if len(self.body.block.args) != len(self.shape):
            raise VerifyException("scheduled.parallel: needs one index per extent")
        if self.cluster is None:
            return
        if self.blocks_of_cluster < 2 or self.warps is None or self.in_order:
            raise VerifyException("scheduled.parallel: a cluster is of two blocks of warps or more, in any order")
        if prod(self.shape) % self.blocks_of_cluster:
            raise VerifyException(f"scheduled.parallel: {prod(self.shape)} blocks in clusters of {self.cluster}")


@operation
class NestOp(PlainOp):
    """One loop nest over the lanes of its tiles. `layout`: how its elements are dealt to vector lanes and registers;
    a nest without one, which only copies, goes along with what it copies."""

    name = "scheduled.nest"
    layout: str | None = attribute(default=None)
    body: Region = region()


# What is recorded: that a role of a block begins or ends, and that a zone does.
OPEN, CLOSE = "open", "close"
_RECORDED = (OPEN, tile.BEGIN, tile.END, CLOSE)


@operation
class RecordOp(PlainOp):
    """The first thread of the warps that come here notes the time, and at `open` the multiprocessor, in `section` of
    its block's part of `records`, an i64 array of blocks x sections x words, whose words `runtime/zones.py` describes.
    There is no room for more edges of zones than words are left: those that come when it is full are only counted."""

    name = "scheduled.record"
    records: SSAValue = operand(tile.RefType)
    what: str = attribute()
    section: int = attribute()
    number: int | None = attribute(default=None)
    label: str | None = attribute(default=None)

    @property
    def is_edge(self) -> bool:
        """Whether it is of a zone, which then has a number and a label."""
        return self.what in (tile.BEGIN, tile.END)

    def verify_(self) -> None:
        type = tile.ref_type(self.records)
        if len(type.shape) != 3 or type.dtype != dtypes.i64:
            raise VerifyException(f"scheduled.record: in a {type}, not in blocks x sections x words of i64")
        if self.what not in _RECORDED or self.is_edge == (self.number is None or self.label is None):
            raise VerifyException(f"scheduled.record: {self.what} of the zone {self.label}")
        if not 0 <= self.section < type.shape[1]:
            raise VerifyException(f"scheduled.record: section {self.section} of {type.shape[1]}")


@operation
class EndOp(PlainOp):
    """Ends a region without results."""

    name = "scheduled.end"
    traits = traits_def(IsTerminator())


@operation
class BarrierOp(PlainOp):
    """All threads of `scope` have finished and see what was written before: those of the team, a block or a warp. Of a
    cluster they have come, and see which barriers in memory other blocks made, but nothing else. `arrays`: it is needed
    for what they do to arrays, whatever they do to buffers."""

    name = "scheduled.barrier"
    scope: str = attribute()
    arrays: bool = attribute(default=False)

    def verify_(self) -> None:
        if self.scope == CLUSTER and not isinstance(around := self.parent_op(), ParallelOp | RoleOp):
            name = "nothing" if around is None else around.name
            raise VerifyException(f"scheduled.barrier: of a cluster in {name}, not in a region of blocks or a role")


@operation
class TermsOp(PlainOp):
    """The terms of a value that `fn` still has to combine, as a tile with one more dim in front. Their roles are
    unspecified: the first may be the value and the others the identity of `fn`."""

    name = "scheduled.terms"
    source: SSAValue = operand()
    fn: str = attribute()
    result: Result = result()
    traits = traits_def(Pure())

    def verify_(self) -> None:
        source, result = array_type(self.source), array_type(self.result)
        if result.shape[1:] != source.shape or result.dtype != source.dtype:
            raise VerifyException(f"scheduled.terms: {result} has not one dim more than {source}")


@operation
class MmaOp(PlainOp):
    """`accumulator + left @ right` by the atom of that name: each operand a tile in registers, or a buffer. With a
    `fragment`, an operand in a buffer is loaded to registers of that layout, a step of the depth at a time. An
    `asynchronous` one continues while the threads do: its buffers are not written, and its result is used by nothing
    but further such matmuls, until a `mma_wait` covers it. Operands of tf32 are rounded to it: what is copied to a
    buffer from an array of f32 is not yet."""

    name = "scheduled.mma"
    left: SSAValue = operand()
    right: SSAValue = operand()
    accumulator: SSAValue = operand()
    atom: str = attribute()
    left_fragment: str | None = attribute(default=None)
    right_fragment: str | None = attribute(default=None)
    asynchronous: bool = attribute(default=False)
    result: Result = result()

    @property
    def fragments(self) -> tuple[str, str]:
        """The layouts of registers to which the left and right operands are loaded; empty where they are not."""
        left, right = self.left_fragment, self.right_fragment
        return "" if left is None else left, "" if right is None else right

    def verify_(self) -> None:
        left, right = (_tile_type(o) for o in (self.left, self.right))
        acc = array_type(self.accumulator)
        if (left.shape[0], right.shape[1]) != acc.shape or left.shape[1] != right.shape[0]:
            raise VerifyException(f"scheduled.mma: {left} times {right} does not fit {acc}")
        if self.result.type != self.accumulator.type:
            raise VerifyException("scheduled.mma: the result is not where the accumulator is")
        for value, fragment in zip((self.left, self.right), self.fragments, strict=True):
            if fragment and not isinstance(value.type, tile.RefType):
                raise VerifyException("scheduled.mma: a fragment of an operand that is in registers")
            if fragment and Layout.parse(fragment).static_shape != _tile_type(value).shape:
                raise VerifyException(f"scheduled.mma: a fragment that is none of {_tile_type(value)}")


@operation
class MmaWaitOp(PlainOp):
    """The accumulator, when all asynchronous MMAs of the threads but the newest `pending` have been done. The
    values `computed` are available before the threads wait, while the MMAs are under way."""

    name = "scheduled.mma_wait"
    accumulator: SSAValue = operand()
    computed: Sequence[SSAValue] = operands(default=())
    pending: int = attribute()
    result: Result = result()

    def verify_(self) -> None:
        if self.pending < 0:
            raise VerifyException("scheduled.mma_wait: a negative number of pending MMAs")
        if self.result.type != self.accumulator.type:
            raise VerifyException("scheduled.mma_wait: the result is not where the accumulator is")


def _tile_type(value: SSAValue) -> ArrayType:
    """The type of a tile, or of a buffer's contents."""
    return array_type(value.type.array if isinstance(value.type, tile.RefType) else value)


@operation
class DotOp(PlainOp):
    """`acc[m, n] (+)= sum over k of left[left_map(m, k)] * right[right_map(k, n)]`.

    `extents` are (M, N, K). Positions k with `depth_map() + k >= depth_limit` do not count. `block` is the layout of
    the accumulators that are in registers at a time. Symbols are shared by the three maps. Without `accumulate` the
    accumulator is overwritten. A right operand of u32 against a left one of 16 or 8 bits holds words: 2 or 4 steps of
    the depth, the first in the lowest bits, and `right_map` counts words; those after the depth do not count. With
    `accumulator_map` the accumulator is a window of an array, overwritten where the array is. `turn` is (position,
    count): of `count` matmuls that read the same columns of the right operand one after the other, this is the one
    whose number is the symbol at `position`. With `keep` the first rows that meet some columns of the right operand
    keep them in a panel of the thread, where the rows after them, and the later turns, read them; if it is false, the
    turns before this matmul kept them. `steps` are the sizes of further summed dims, the outermost first; the operands'
    maps have a dim for each after their first two, and the right operand is read in place, from any column on.

    With `parts` and a right operand of u32 both operands are in blocks of parts, numbers whose sum is 2^`scale` times
    the operand's, whose upper halves hold all their bits. The left one has the dims (block of rows, step of the depth,
    part, row, word), the right one (..., panel, step, part, tile, word, column). A word holds two upper halves, half a
    step from each other, the first in the lower bits. `left_map` is from (block, step) to the first two dims,
    `right_map` from (panel, step) to all but the last four; columns of panels that it does not have stay as they are. A
    left operand of f32 is in no parts: the matmul takes it apart, and `left_map` is what it always is. Matmuls of two
    parts whose numbers have a sum below `parts` are added, and the sum divided by 2^(2 * `scale`). Before the parts are
    made the operands are what they are made from.
    """

    name = "scheduled.dot"
    left: SSAValue = operand(tile.RefType)
    right: SSAValue = operand(tile.RefType)
    accumulator: SSAValue = operand(tile.RefType)
    symbols: Sequence[SSAValue] = operands(default=())
    extents: tuple[int, ...] = attribute()
    block: str = attribute()
    left_map: AffineMap = attribute()
    right_map: AffineMap = attribute()
    accumulate: bool = attribute()
    accumulator_map: AffineMap | None = attribute(default=None)
    depth_map: AffineMap | None = attribute(default=None)
    depth_limit: int | None = attribute(default=None)
    turn: tuple[int, ...] | None = attribute(default=None)
    keep: bool | None = attribute(default=None)
    steps: tuple[int, ...] | None = attribute(default=None)
    parts: int | None = attribute(default=None)
    scale: int | None = attribute(default=None)

    @property
    def is_split(self) -> bool:
        """Whether the operands are in parts."""
        return self.parts is not None and tile.ref_type(self.right).dtype == dtypes.u32

    @property
    def parts_and_scale(self) -> tuple[int, int]:
        """How many parts operands are to be in, and the power of two that they are multiplied by."""
        return (1, 0) if self.parts is None or self.scale is None else (self.parts, self.scale)

    @property
    def shape(self) -> tuple[int, int, int]:
        rows, columns, depth = self.extents
        return rows, columns, depth

    @property
    def outer_steps(self) -> tuple[int, ...]:
        """The sizes of the summed dims around the depth."""
        return self.steps or ()

    @property
    def group(self) -> int:
        """Steps of the depth in one element of the right operand."""
        left, right = tile.ref_type(self.left).dtype, tile.ref_type(self.right).dtype
        return right.bits // left.bits if right == dtypes.u32 and left.bits < right.bits else 1

    @property
    def micro_tile(self) -> tuple[int, int]:
        """Rows and columns of a register block."""
        rows, columns = Layout.parse(self.block).static_shape
        return rows, columns

    def verify_(self) -> None:
        rows, columns, _ = self.shape
        acc = tile.ref_type(self.accumulator)
        small = len(acc.shape) != 2 or acc.shape[0] < rows or acc.shape[1] < columns
        if self.accumulator_map is None and small:
            raise VerifyException(f"scheduled.dot: accumulator {acc.shape} is smaller than {rows} x {columns}")
        if dtype_of(acc.array.element_type) != acc.dtype.compute:
            raise VerifyException("scheduled.dot: the accumulator must have a compute type")
        dims = 2 + len(self.outer_steps)
        if any(map.num_dims != dims for map in (self.left_map, self.right_map)):
            raise VerifyException(f"scheduled.dot: the maps of its operands are not from {dims} dims")
        if self.turn is not None and not 0 <= self.turn[0] < len(self.symbols):
            raise VerifyException(f"scheduled.dot: no symbol {self.turn[0]} to count turns")
        if self.accumulator_map is not None and self.accumulate:
            raise VerifyException("scheduled.dot: a window of an array is overwritten, not added to")


Scheduled = Dialect(
    "scheduled",
    [
        *(AllocOp, ViewOp, StageOp, CopyOp, CommitOp, WaitOp),
        *(RoleOp, SetRegistersOp, MmaWaitOp, RecordOp),
        *(ParallelOp, NestOp, EndOp, BarrierOp, TermsOp, MmaOp, DotOp),
        *asynchronous.OPERATIONS,
        *tensor_memory.OPERATIONS,
        *tile_order.OPERATIONS,
    ],
    [],
)
