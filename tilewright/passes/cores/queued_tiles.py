"""Tiles in the queues of a core: their producers, pagings and padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import DenseArrayBase, i32
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright import dtypes
from tilewright.dialects import cores, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.walks import producers_first
from tilewright.errors import CompilerBug
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.layout.catalogue.paging import ABSENT, Paging
from tilewright.passes.cores.affine_expressions import ZERO, divided, plus, remainder, times
from tilewright.passes.cores.graphs import Graph
from tilewright.passes.cores.loaded_tiles import LoadedTiles
from tilewright.passes.cores.page_indices import page_at
from tilewright.passes.cores.page_windows import natural_paging
from tilewright.passes.cores.sections import (
    Held,
    Node,
    Number,
    Padding,
    Places,
    Read,
    Target,
    apply,
    emit_section,
    number_of_carrier,
    padding_of,
    plan_of,
    read_again,
    replaced,
    spilled,
)
from tilewright.passes.cores.threads import Scope, Threads
from tilewright.passes.cores.tile_facts import (
    PLACEWISE,
    RELABELS,
    Loaded,
    is_anchored,
    is_place_of_lanes,
    is_unit_reshape,
    is_vague,
    load_behind_of,
    reduced_paging,
    storage_format,
    unit_places,
)
from tilewright.primitives import ArrayType


class QueuedTiles(LoadedTiles):
    """`shared`: what is computed place by place, but has a queue. `registers`: how many tiles there are room for."""

    def __init__(
        self,
        threads: Threads,
        refs: Mapping[SSAValue, SSAValue],
        written: set[SSAValue],
        shared: set[SSAValue],
        unread: Mapping[tile.LoadOp, set[int]],
        registers: int,
        buffers: int,
    ) -> None:
        super().__init__(threads, refs, written, unread, buffers)
        self.shared = shared
        self._registers = registers
        self.pagings: dict[SSAValue, Paging] = {}
        self._anchored: dict[SSAValue, bool] = {}
        self._held: dict[SSAValue, list[tuple[Held, str]]] = {}

    def add(self, value: SSAValue, held: Held) -> None:
        """A tile is in a queue for what computes."""
        self._held[value] = [(held, cores.COMPUTE)]

    def enter(self, block: Block) -> None:
        """Bind a block to the threads' current scope: its operations are emitted there, once."""
        self.scopes[block] = self._top = self.threads.scopes[-1]

    def present_paging(self, value: SSAValue) -> Paging:
        """The paging of a tile in its queue; before it has one, the natural paging."""
        mine = [found.paging for found, taker in self._held.get(value, ()) if taker == cores.COMPUTE]
        return mine[0].row_major if mine else self.natural(value)

    def natural(self, value: SSAValue) -> Paging:
        """The paging in which a tile is computed without a transpose."""
        for needed in producers_first([value], self._shaping_operand, self.pagings):
            shape = array_type(needed).shape
            self.pagings[needed] = Paging.default(shape)  # where a loop's tile depends on itself
            found = self._natural(needed, shape)
            self.pagings[needed] = found.completed(shape)
        return self.pagings[value]

    def _shaping_operand(self, value: SSAValue) -> Sequence[SSAValue]:
        """The operand whose paging the result of an operation has, if there is one."""
        op = value.owner
        if isinstance(op, tile.MapOp):
            return self._shaping_operands(op)[:1]
        if isinstance(op, (*RELABELS, *PLACEWISE, tile.ReduceOp, tile.ScanOp, tile.SortOp)) or (
            isinstance(op, Operation) and is_unit_reshape(op)
        ):
            return op.operands[:1]
        if isinstance(op, tile.ForOp):
            initial = op.initial[list(op.results).index(value)]  # type: ignore[arg-type]
            return () if is_vague(initial) else (initial,)
        return ()

    def _shaping_operands(self, op: tile.MapOp) -> Sequence[SSAValue]:
        """The operands whose paging the result of a function may have, those that are in pages where there are any."""
        known = [o for o in op.operands if not is_vague(o)]
        return [o for o in known if is_anchored(o, self._anchored)] or known

    def _natural(self, value: SSAValue, shape: Sequence[int]) -> Paging:
        op = value.owner
        if isinstance(op, Block):
            loop = op.parent_op()
            if not isinstance(loop, tile.ForOp):
                return Paging.default(shape)
            return self.carried_paging(loop, list(op.args).index(value) - 1)  # type: ignore[arg-type]
        match op:
            case tile.LoadOp():
                return natural_paging(op.map, shape)
            case tile.TransposeOp():
                own = self.natural(op.operands[0])
                permutation: tuple[int, ...] = op.permutation
                return own.renamed({source: place for place, source in enumerate(permutation)})
            case tile.BroadcastOp():
                axes: tuple[int, ...] = op.axes
                return self.natural(op.operands[0]).renamed(dict(enumerate(axes)))
            case tile.ReduceOp():
                return reduced_paging(self.natural(op.operands[0]), op)
            case tile.MapOp():
                anchored = self._shaping_operands(op)
                return self.natural(anchored[0]) if anchored else Paging.default(shape)
            case tile.IfOp():
                last = op.then.block.last_op
                given = last.operands if last is not None else ()
                return self.natural(given[list(op.results).index(value)])  # type: ignore[arg-type]
            case tile.CastOp() | tile.BitcastOp() | tile.FillPaddingOp() | tile.RelayoutOp():
                return self.natural(op.operands[0])
            case tile.ScanOp() | tile.SortOp():
                return self.natural(op.operands[0])
            case tile.ForOp():
                return self.carried_paging(op, list(op.results).index(value))  # type: ignore[arg-type]
            case _ if is_unit_reshape(op):
                own, places = self.natural(op.operands[0]), unit_places(op)
                return own.renamed(places)
            case _:
                return Paging.default(shape)

    def carried_paging(self, loop: tile.ForOp, position: int) -> Paging:
        initial = loop.initial[position]
        if not is_vague(initial):
            return self.natural(initial)
        last = loop.body.block.last_op
        return self.natural(last.operands[position]) if last is not None else Paging.default(array_type(initial).shape)

    def held(
        self,
        value: SSAValue,
        paging: Paging,
        need: tuple[Padding, Padding] = (None, None),
        consumer: str = cores.COMPUTE,
    ) -> Held:
        """A tile in a queue with a paging, whose padding along rows and columns is as needed."""
        value, paging = self.relabelled(value, paging)
        type = array_type(value)
        paging = paging.of(type.shape)
        need = self._needed(type, paging, need)
        for found, taker in self._held.get(value, ()):
            if taker == consumer == cores.COMPUTE and found.paging == paging and _is_enough(found, need):
                return self.waited(found, consumer)
        made = self._made(value, paging, need, consumer)
        self._held.setdefault(value, []).append((made, consumer))
        return self.waited(made, consumer)

    def relabelled(self, value: SSAValue, paging: Paging) -> tuple[SSAValue, Paging]:
        """The source tile whose pages a view shares."""
        op = value.owner
        while value not in self.shared and isinstance(op, Operation):
            if isinstance(op, tile.TransposeOp):
                permutation: tuple[int, ...] = op.permutation
                paging = paging.renamed(dict(enumerate(permutation)))
            elif is_unit_reshape(op):
                back = {new: old for old, new in unit_places(op).items()}
                paging = paging.renamed(back)
            elif not isinstance(op, tile.RelayoutOp):
                break
            value = op.operands[0]
            op = value.owner
        return value, paging

    def _needed(self, type: ArrayType, paging: Paging, need: tuple[Padding, Padding]) -> tuple[Padding, Padding]:
        """Of what is needed, that for which there is padding."""
        rows, columns = (
            None if dim != ABSENT and type.shape[dim] % TILE == 0 else value
            for dim, value in zip(paging.dims, need, strict=True)
        )
        return rows, columns

    def waited(self, tile_held: Held, consumer: str, at_end: bool = True) -> Held:
        """The thread that takes it has waited for it, and gives it back at the end of the scope, if it is to."""
        if not tile_held.waited:
            tile_held.waited = True
            attributes = {"pages": tile_held.pages}
            with self.threads.inside(consumer, tile_held.scope):
                self.threads.add(consumer, cores.WaitOp, [tile_held.queue], attributes)
            if not at_end:
                return tile_held
            pop = lambda: self.threads.add(consumer, cores.PopOp, [tile_held.queue], attributes)  # noqa: E731
            tile_held.scope.endings.append(pop)
        return tile_held

    def _made(self, value: SSAValue, paging: Paging, need: tuple[Padding, Padding], consumer: str) -> Held:
        op = value.owner
        source = self.load_behind(value)
        if source is not None:
            load, fill, dims = source
            given = None if load.fill is None else number_of_carrier(float(load.fill), array_type(value).dtype)
            wanted = fill if fill is not None else next((n for n in need if n is not None), None)
            if (given is None or wanted in (None, given)) and need in (
                (None, None),
                (wanted, None),
                (None, wanted),
                (wanted, wanted),
            ):
                window = self.window(load)
                if window is None or window.paging.dims == paging.dims:
                    sides = need[0] is not None or paging.rows in dims, need[1] is not None or paging.columns in dims
                    whole = bool(dims - {*paging.dims})
                    return self.loaded(load, paging, wanted, consumer, window, sides, whole)
                if window.paging.dims != paging.transposed.dims and not paging.is_column_major:
                    return self.loaded(load, paging, wanted, consumer, None)
        if isinstance(op, tile.IotaOp) and consumer != cores.WRITER and not is_place_of_lanes(op):
            return self._generated(op, paging)
        may_rearrange = need == (None, None) and not paging.is_column_major and consumer == cores.COMPUTE
        if may_rearrange and isinstance(op, tile.SliceOp | tile.ConcatOp | tile.ReshapeOp) and not is_unit_reshape(op):
            return self._rearranged(op, pieces_of(op), paging)
        mine = [found.paging for found, taker in self._held.get(value, ()) if taker == cores.COMPUTE]
        if may_rearrange and mine and all(own.dims not in (paging.dims, paging.transposed.dims) for own in mine):
            shape = array_type(value).shape
            same = tuple(AffineExpr.dimension(d) for d in range(len(shape)))
            return self._rearranged(None, [Piece(value, shape, same, same)], paging)
        return self._computed(value, paging, need, consumer)

    def _rearranged(self, op: Operation | None, pieces: Sequence[Piece], paging: Paging) -> Held:
        """A tile whose elements are others' in other positions: a mover copies them one by one."""
        value = pieces[0].value if op is None else op.results[0]
        type, scope = array_type(value), self.scope_of(value)
        paging = paging.of(type.shape)
        pages = {"pages": paging.pages(type.shape)}
        queue = self.threads.queue(storage_format(type.dtype), paging, type.shape)
        pagings = [self.present_paging(piece.value).of(array_type(piece.value).shape) for piece in pieces]
        taken = [self._element_by_element(p.value, f) for p, f in zip(pieces, pagings, strict=True)]
        with self.threads.inside(cores.READER, scope):
            self.threads.add(cores.READER, cores.ReserveOp, [queue], pages)
            for piece, source, own in zip(pieces, taken, pagings, strict=True):
                attributes = {
                    "extents": piece.extents,
                    "source_shape": array_type(piece.value).shape,
                    "source_rows": own.rows,
                    "source_columns": own.columns,
                    "shape": type.shape,
                    "rows": paging.rows,
                    "columns": paging.columns,
                }
                rank = len(piece.extents)
                maps = {"map": (rank, piece.target), "source_map": (rank, piece.source)}
                self.threads.add(cores.READER, cores.RearrangeOp, [source.queue, queue], attributes, maps)
            self.threads.add(cores.READER, cores.PushOp, [queue], pages)
        return Held(queue, paging, type, scope)

    def in_lines(self, op: tile.ScanOp | tile.SortOp, fn: str) -> None:
        """Scan tiles by a function, or sort them: the reader does it, element by element."""
        paging = self.natural(op.operands[0]).row_major
        types = [array_type(operand) for operand in op.operands]
        sources = [self._element_by_element(operand, paging) for operand in op.operands]
        scope, count = self.scope_of(op.results[0]), paging.pages(types[0].shape)
        queues = [self.threads.queue(storage_format(type.dtype), paging, type.shape) for type in types]
        add, pages = self.threads.add, {"pages": count}
        lines = {"axis": op.axis, "shape": types[0].shape, "rows": paging.rows, "columns": paging.columns}
        with self.threads.inside(cores.READER, scope):
            for queue in queues:
                add(cores.READER, cores.ReserveOp, [queue], pages)
            operands = [*(source.queue for source in sources), *queues]
            if isinstance(op, tile.ScanOp):
                scratch: list[SSAValue] = []
                attributes = lines | {"fn": fn, "reverse": op.reverse}
                cls: type[cores.LinesOp] = cores.ScanOp
            else:
                formats = [storage_format(type.dtype) for type in types]
                scratch = [self.threads.queue(each, paging, types[0].shape, hint="merged") for each in formats]
                attributes, cls = lines | {"descending": op.descending}, cores.SortOp
            operands += scratch
            segments = DenseArrayBase.from_list(i32, [len(sources), len(queues), len(scratch)])
            add(cores.READER, cls, operands, attributes | {"operandSegmentSizes": segments})
            for queue in queues:
                add(cores.READER, cores.PushOp, [queue], pages)
        for result, queue, type in zip(op.results, queues, types, strict=True):
            self.add(result, self.waited(Held(queue, paging, type, scope), cores.COMPUTE))

    def _element_by_element(self, value: SSAValue, paging: Paging) -> Held:
        """A tile that a mover reads, in a format in which each element stands for itself."""
        found = self.held(value, paging, consumer=cores.READER)
        if found.format == storage_format(found.type.dtype):
            return found
        return self.waited(self._computed(value, paging, (None, None), cores.READER), cores.READER)

    def load_behind(self, value: SSAValue) -> Loaded | None:
        """The load that a tile is, or whose lanes beyond the array it fills, and with what; None where it is more, or
        where what is loaded is stored to, and so is loaded in its turn."""
        found = load_behind_of(value.owner) if isinstance(value.owner, Operation) and value not in self.shared else None
        return None if found is None or found.load.source in self._written else found

    def _computed(self, value: SSAValue, paging: Paging, need: tuple[Padding, Padding], consumer: str) -> Held:
        type, scope = array_type(value), self.scope_of(value)
        format = storage_format(type.dtype)
        buffers = 1 if consumer == cores.COMPUTE else self._buffers
        queue = self.threads.queue(format, paging, type.shape, copies=self.copies(scope, buffers))
        with self.threads.inside(cores.COMPUTE, scope):
            pads = self.compute_into(value, paging, need, queue)
        return Held(queue, paging, type, scope, pads)

    def compute_into(
        self,
        value: SSAValue,
        paging: Paging,
        need: tuple[Padding, Padding],
        queue: SSAValue,
        inside: Held | None = None,
    ) -> tuple[Padding, Padding]:
        """Compute a tile with a paging, and push it; return what its padding holds. Columns not `inside` are 0."""
        type = array_type(value)
        root = self._graph(value, paging)
        if inside is not None:
            read = Read(inside, lambda row, column: column, cores.NONE, False, False, dtypes.f32)
            root = apply("select", [read, root, Number(0.0, root.carrier)], type.dtype)
        root, spills = self._fitted(root, type.shape, paging)
        counts = paging.counts(type.shape)
        pads = [padding_of(root, side) for side in (0, 1)]
        cut = [n is not None and pads[side] != n for side, n in enumerate(need)]
        pages = {"pages": prod(counts)}
        self.threads.add(cores.COMPUTE, cores.ReserveOp, [queue], pages)
        target = Target(queue, page_at(paging, type.shape))
        is_flat = not paging.is_column_major and not any(cut)
        for places, sides in _parts(counts, cut):
            masked = root
            for side in sides:
                masked = self._masked(masked, type, paging, side, need[side])
                pads[side] = need[side]
            emit_section(self.threads, masked, [target], places, is_flat, self._registers)
        self.threads.add(cores.COMPUTE, cores.PushOp, [queue], pages)
        for spill in spills:
            self.threads.add(cores.COMPUTE, cores.PopOp, [spill], pages)
        return pads[0], pads[1]

    def _fitted(self, root: Node, shape: tuple[int, ...], paging: Paging) -> tuple[Node, list[SSAValue]]:
        """A graph for which there are registers, and the queues of what was computed for it before."""
        spills: list[SSAValue] = []
        outer, rows, columns = paging.counts(shape)
        pages, page = {"pages": outer * rows * columns}, page_at(paging, shape)
        if plan_of(root).registers > self._registers:
            root = read_again(root)
        while plan_of(root).registers > self._registers:
            node = spilled(root, self._registers)
            queue = self.threads.queue(node.carrier.name, paging, shape, hint="spill")
            self.threads.add(cores.COMPUTE, cores.ReserveOp, [queue], pages)
            places = Places((0, outer * rows), (0, columns))
            emit_section(self.threads, node, [Target(queue, page)], places, not paging.is_column_major, self._registers)
            self.threads.add(cores.COMPUTE, cores.PushOp, [queue], pages)
            self.threads.add(cores.COMPUTE, cores.WaitOp, [queue], pages)
            pads = padding_of(node, 0), padding_of(node, 1)
            held = Held(queue, paging, ArrayType(shape, node.carrier), self.threads.scopes[-1], pads)
            read = Read(held, page, cores.NONE, False, not paging.is_column_major, node.carrier)
            root = replaced(root, node, read)
            spills.append(queue)
        return root, spills

    def _masked(self, root: Node, type: ArrayType, paging: Paging, side: int, value: Padding) -> Node:
        """A graph with a value where it is beyond its tile."""
        dim = paging.dims[side]
        limit = 1 if dim == ABSENT else type.shape[dim] % TILE
        mask = self._mask(limit, side)
        read = Read(mask, lambda row, column: ZERO, cores.NONE, False, False, dtypes.f32)
        number = float(value) if isinstance(value, int | float) else 0.0
        return apply("select", [read, root, Number(number, root.carrier)], type.dtype)

    def _graph(self, value: SSAValue, paging: Paging) -> Node:
        """How a tile is computed, place by place, from tiles in queues."""
        shape = array_type(value).shape
        graph = Graph(self, shape, paging)
        found = self._held.get(value)
        own = [h for h, taker in found if taker == cores.COMPUTE] if found else []
        if own:
            return graph.read(value, tuple(range(len(shape))))
        return graph.expanded(value, tuple(range(len(shape))))

    def scope_of(self, value: SSAValue) -> Scope:
        block = value.owner if isinstance(value.owner, Block) else value.owner.parent_block()
        if block is None or block not in self.scopes:
            raise CompilerBug(f"{value} is in no block of the kernel")
        return self.scopes[block]


@dataclass(frozen=True)
class Piece:
    """Elements of a tile that are some of another one's: over `extents`, those at `source` are at `target`."""

    value: SSAValue
    extents: tuple[int, ...]
    source: tuple[AffineExpr, ...]
    target: tuple[AffineExpr, ...]


def pieces_of(op: tile.SliceOp | tile.ConcatOp | tile.ReshapeOp) -> list[Piece]:
    shape = array_type(op.results[0]).shape
    same = tuple(AffineExpr.dimension(d) for d in range(len(shape)))
    match op:
        case tile.SliceOp():
            starts, strides = op.starts, op.strides
            source = tuple(plus(times(d, by), first) for d, by, first in zip(same, strides, starts, strict=True))
            return [Piece(op.operands[0], shape, source, same)]
        case tile.ReshapeOp():
            linear_place: AffineExpr = ZERO
            for d, size in zip(same, shape, strict=True):
                linear_place = plus(times(linear_place, size), d)
            before = array_type(op.operands[0]).shape
            found: list[AffineExpr] = []
            for d, size in enumerate(before):
                quotient = divided(linear_place, prod(before[d + 1 :]))
                found.append(quotient if prod(before[:d]) == 1 else remainder(quotient, size))
            return [Piece(op.operands[0], shape, tuple(found), same)]
        case _:
            axis: int = op.axis
            pieces: list[Piece] = []
            first = 0
            for operand in op.operands:
                extents = array_type(operand).shape
                target = tuple(plus(d, first) if n == axis else d for n, d in enumerate(same))
                pieces.append(Piece(operand, extents, same, target))
                first += extents[axis]
            return pieces


def _is_enough(found: Held, need: tuple[Padding, Padding]) -> bool:
    return all(wanted is None or has == wanted for wanted, has in zip(need, found.pads, strict=True))


def _parts(counts: tuple[int, int, int], cut: Sequence[bool]) -> list[tuple[Places, list[int]]]:
    """The positions of a result apart: those of whole pages, and those at its ends along sides that are cut."""
    outer, rows, columns = counts
    if not any(cut):
        return [(Places((0, outer * rows), (0, columns)), [])]
    # Rows of places are those of all outer dims: where rows are cut, those of each are taken by themselves.
    bands: list[tuple[tuple[int, int], list[int]]] = [((0, outer * rows), [])]
    if cut[0]:
        bands = []
        for n in range(outer):
            if rows > 1:
                bands.append(((n * rows, rows - 1), []))
            bands.append(((n * rows + rows - 1, 1), [0]))
    strips: list[tuple[tuple[int, int], list[int]]] = [((0, columns), [])]
    if cut[1]:
        strips = [((0, columns - 1), [])] if columns > 1 else []
        strips.append(((columns - 1, 1), [1]))
    return [(Places(band, strip), [*below, *beside]) for band, below in bands for strip, beside in strips]
