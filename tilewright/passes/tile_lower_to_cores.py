"""Turn kernels into programs for a grid of cores: threads that read, compute and write, and the queues between them.

Points of the grid are dealt to cores. A window of an array that is made of whole pages is fetched, any other is gathered
element by element; what is computed from pages place by place is one section of the tile registers, as large as they
have room for; what products, reductions and stores take is in queues. A sum of products over a loop is added up in the
core's memory by the packer.

Before:
    func.func @main(%x: tensor<64x64xbf16>) -> tensor<64x64xbf16> {
      %y = array.call(%x) {callee = "exp"} : tensor<64x64xbf16>
      func.return %y : tensor<64x64xbf16>
    }
    tile.kernel() {sym_name = "exp", grid = array<i64: 2>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<64x64xbf16>>, %out: !tile.ref<tensor<64x64xbf16>>, %i: index):
      %a = tile.load(%x, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 32, d1)>} : tensor<32x64xbf16>
      %b = tile.map(%a) {fn = "exp"} : tensor<32x64xbf16>
      tile.store(%b, %out, %i) {map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 32, d1)>}
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, BoolAttr, FloatAttr, IndexType, f64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes, ops
from tilewright.cost.core_tiles import product_block
from tilewright.dialects import cores, tile
from tilewright.dialects.base import array_type, decode
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.layout.catalogue.device_tiles import TILE
from tilewright.machines.core_grid import CoreGrid
from tilewright.passes.base import Remark, Unit
from tilewright.passes.core_forms import (
    ABSENT,
    Form,
    Sum,
    Window,
    completed,
    default_form,
    linear,
    natural_form,
    page_counts,
    pages_of,
    window_of,
)
from tilewright.passes.core_points import deal_points
from tilewright.passes.core_sections import (
    Held,
    Node,
    Number,
    Padding,
    Places,
    Read,
    Target,
    apply,
    carrier_of,
    convert,
    coordinates,
    emit_section,
    padding_of,
    page_at,
    rounded,
    step,
)
from tilewright.passes.core_threads import (
    ZERO,
    Scope,
    Threads,
    divided,
    plus,
    remainder,
    times,
    with_dims,
    with_symbols,
)
from tilewright.passes.layout_rules import location_of
from tilewright.primitives import ArrayType

_RELABELS = (tile.TransposeOp, tile.RelayoutOp)
_PLACEWISE = (tile.MapOp, tile.CastOp, tile.BroadcastOp, tile.FullOp, tile.FillPaddingOp)
# What reduces bools, which are 0 or 1.
_BOOL_REDUCTIONS = {"bitwise_or": "maximum", "bitwise_and": "minimum"}


@dataclass(frozen=True)
class TileLowerToCoresPass:
    """`buffers`: how many tiles a queue between a mover and what computes has room for, where a loop fills it."""

    name: ClassVar[str] = "tile-lower-to-cores"
    buffers: int = 2

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            lowering = _Lowering(unit, kernel, self.buffers)
            lowered = lowering.lower()
            block = kernel.parent_block()
            if block is not None:
                block.insert_op_before(lowered, kernel)
            kernel.detach()
            kernel.erase()


def storage_format(dtype: DType) -> str:
    """The format of pages that hold numbers of a type; bools and places in arrays have none of their own."""
    if dtype.is_bool:
        return "bf16"
    return dtype.name if dtype in (dtypes.bf16, dtypes.f16) else carrier_of(dtype).name


def _is_wide(kernel: tile.KernelOp) -> bool:
    """Whether registers have 32 bits: something is computed that does not fit 16, or 16 bits are of two kinds, as f16
    and what bools are stored as."""
    if any(tile.ref_type(ref).dtype.bits > 16 or tile.ref_type(ref).dtype == dtypes.f16 for ref in kernel.refs):
        return True
    for op in kernel.walk():
        for value in (*op.results, *(a for region in op.regions for a in region.block.args)):
            if isinstance(value.type, IndexType | tile.RefType):
                continue
            type = array_type(value)
            is_wide = type.dtype.bits > 16 or type.dtype == dtypes.f16
            is_computed = type.rank > 0 or not type.dtype.is_float
            if is_computed and is_wide and not isinstance(op, tile.FullOp):
                return True
    return False


def drop_unused(kernel: tile.KernelOp) -> None:
    """Take out what computes tiles that nothing takes, and loops of no trip."""
    for op in list(kernel.walk()):
        if isinstance(op, tile.ForOp) and not op.trips.value.data:
            for result, initial in zip(op.results, op.initial, strict=True):
                result.replace_all_uses_with(initial)
            for inner in list(op.body.block.ops):
                if isinstance(inner, tile.StoreOp):
                    inner.detach()
                    inner.erase()
    while True:
        _drop_unused_operations(kernel)
        unused = [op for op in kernel.walk() if isinstance(op, tile.IfOp) and any(not _is_used(r) for r in op.results)]
        if not unused:
            return
        for op in unused:
            _drop_unused_results(op)


def _is_used(value: SSAValue) -> bool:
    return value.first_use is not None


def _drop_unused_results(op: tile.IfOp) -> None:
    """A choice without the results that nothing takes."""
    kept = [position for position, result in enumerate(op.results) if _is_used(result)]
    for region in (op.then, op.otherwise):
        last = region.block.last_op
        if last is not None:
            last.operands = [last.operands[position] for position in kept]
    regions = [op.detach_region(region) for region in (op.then, op.otherwise)]
    made = tile.IfOp.make([op.condition], op.plain(), [op.results[position].type for position in kept], regions)
    made.location = op.location
    for position, result in zip(kept, made.results, strict=True):
        op.results[position].replace_all_uses_with(result)
    _block_of(op).insert_op_before(made, op)
    op.detach()
    op.erase()


def _drop_unused_operations(kernel: tile.KernelOp) -> None:
    for op in reversed(list(kernel.walk())):
        if isinstance(op, tile.KernelOp | tile.StoreOp | tile.YieldOp | tile.PrintOp | tile.AssertOp | tile.ZoneOp):
            continue
        has_effects = any(isinstance(i, tile.StoreOp | tile.PrintOp | tile.AssertOp) for i in op.walk())
        if not has_effects and all(result.first_use is None for result in op.results) and op.parent_block() is not None:
            op.detach()
            op.erase()


def _check_types(kernel: tile.KernelOp) -> None:
    """Registers have 32 bits: numbers of 64 are places in arrays, which fit 32."""
    for op in kernel.walk():
        for value in (*op.operands, *op.results):
            if isinstance(value.type, IndexType | tile.RefType):
                continue
            dtype = array_type(value).dtype
            if (
                dtype in (dtypes.f64, dtypes.u64)
                or (dtype.is_float and dtype.bits < 16)
                or dtype.bits in (8, 16)
                and (dtype.is_integer)
            ):
                raise _refuse(op, f"numbers of {dtype} do not run on a grid of cores", help="use f32, bf16, f16 or i32")


def _refuse(op: Operation, what: str, help: str = 'use target="cpu" for this program') -> UnsupportedOnTargetError:
    error = UnsupportedOnTargetError(what, help=help)
    error.location = location_of(op)
    return error


@dataclass
class _Lowering:
    unit: Unit
    kernel: tile.KernelOp
    buffers: int
    index: dict[SSAValue, AffineExpr] = field(default_factory=dict[SSAValue, AffineExpr])
    held_tiles: dict[SSAValue, list[tuple[Held, str]]] = field(default_factory=dict[SSAValue, list[tuple[Held, str]]])
    scopes: dict[Block, Scope] = field(default_factory=dict[Block, Scope])
    forms: dict[SSAValue, Form] = field(default_factory=dict[SSAValue, Form])
    masks: dict[tuple[int, int], Held] = field(default_factory=dict[tuple[int, int], Held])
    scaler: Held | None = None

    def lower(self) -> tile.KernelOp:
        """The scheduled form of the kernel.

        Raises:
            UnsupportedOnTargetError: an operation or a type that cores cannot do.
        """
        kernel, grid = self.kernel, self.unit.machine.grid
        if grid is None:
            raise CompilerBug(f"{self.unit.machine.name} is no grid of cores")
        self.grid: CoreGrid = grid
        drop_unused(kernel)
        _check_types(kernel)
        if any(tile.ref_type(ref).dtype == dtypes.i64 for ref in kernel.refs):
            self._remark("arrays of i64 are computed in 32 bits", "numbers from the host are checked to fit")
        self.wide = _is_wide(kernel)
        self.registers = grid.half_registers(self.wide)
        result = tile.kernel(kernel.sym_name.data, (), [tile.ref_type(r) for r in kernel.refs], kernel.effect_names)
        self.refs = dict(zip(kernel.refs, result.refs, strict=True))
        self.shared = self._shared_tiles()
        if 0 in kernel.grid_shape:
            result.body.block.add_op(tile.YieldOp.make([], {}, []))
            return result
        dealt = deal_points(kernel, grid)
        self.threads = Threads(dealt.cores)
        self.top = self.threads.scopes[0]
        self.written = {op.destination for op in kernel.walk() if isinstance(op, tile.StoreOp)}
        for loop in dealt.loops:
            counter = self.threads.open_loop(loop.trips, loop.end)
            dealt.enter(loop, counter)
        self.index.update(zip(kernel.indices, dealt.indices(), strict=True))
        self.scopes[kernel.body.block] = self.threads.scopes[-1]
        self.lower_block(kernel.body.block)
        for _ in dealt.loops:
            self.threads.close_loop()
        program = self.threads.finish({cores.READER: 0, cores.WRITER: 1})
        if self.wide:
            program.wide = BoolAttr.from_bool(True)
        result.body.block.add_op(program)
        result.body.block.add_op(tile.YieldOp.make([], {}, []))
        return result

    def _remark(self, decision: str, reason: str) -> None:
        remark = Remark(TileLowerToCoresPass.name, self.kernel.sym_name.data, decision, reason)
        if remark not in self.unit.remarks:
            self.unit.remarks.append(remark)

    # ---- blocks -----------------------------------------------------------------------------------------------------

    def lower_block(self, block: Block) -> None:
        for op in block.ops:
            self.threads.location = op.location
            match op:
                case tile.YieldOp():
                    return
                case tile.StoreOp():
                    self._store(op)
                case tile.ReduceOp():
                    self._reduce(op)
                case tile.DotOp():
                    self._dot(op)
                case tile.ForOp():
                    self._for(op)
                case tile.LoadOp() if op.source in self.written:
                    form = self.natural(op.result)
                    held = self._loaded(op, form, None, cores.COMPUTE, self._window(op))
                    self.held_tiles[op.result] = [(self._waited(held, cores.COMPUTE), cores.COMPUTE)]
                case tile.LoadOp() | tile.IotaOp() | tile.PrintOp() | tile.AssertOp() | tile.ZoneOp():
                    pass  # what is loaded is loaded when it is asked for
                case tile.IfOp():
                    self._if(op)
                case tile.SliceOp() | tile.ConcatOp() | tile.ReshapeOp():
                    pass  # moved when it is asked for
                case _ if isinstance(op, (*_PLACEWISE, *_RELABELS)) or _is_unit_reshape(op):
                    pass
                case _:
                    name = op.name.removeprefix("tile.")
                    raise _refuse(op, f"`{name}` does not run on a grid of cores")

    def _scope_of(self, value: SSAValue) -> Scope:
        block = value.owner if isinstance(value.owner, Block) else value.owner.parent_block()
        if block is None or block not in self.scopes:
            raise CompilerBug(f"{value} is in no block of the kernel")
        return self.scopes[block]

    def _shared_tiles(self) -> set[SSAValue]:
        """What is computed place by place, but is taken from a queue, too, or computed for several: it is in a queue."""
        found: set[SSAValue] = set()
        roots: dict[SSAValue, set[Operation]] = {}
        for op in reversed(list(self.kernel.walk())):
            if not isinstance(op, (*_PLACEWISE, *_RELABELS)) and not _is_unit_reshape(op):
                continue
            (result,) = op.results
            users = {use.operation for use in result.uses}
            # What takes it in the end, through what is computed place by place.
            ends: set[Operation] = set()
            for user in users:
                ends |= roots.get(user.results[0], {user}) if user.results else {user}
            takes = [user for user in users if not user.results or user.results[0] not in roots]
            is_stored = all(isinstance(user, tile.StoreOp) for user in takes)
            is_taken = bool(takes) and not is_stored and len(users) > 1
            if isinstance(op, tile.MapOp | tile.CastOp) and (
                is_taken or (isinstance(op, tile.MapOp) and len(ends) > 1)
            ):
                found.add(result)
                ends = {op}
            roots[result] = ends
        return found

    # ---- forms ------------------------------------------------------------------------------------------------------

    def natural(self, value: SSAValue) -> Form:
        """The form in which a tile comes without being turned around."""
        if value not in self.forms:
            shape = array_type(value).shape
            self.forms[value] = default_form(shape)  # where a loop's tile depends on itself
            found = self._natural(value, shape)
            self.forms[value] = completed(found.rows, found.columns, shape)
        return self.forms[value]

    def _natural(self, value: SSAValue, shape: Sequence[int]) -> Form:
        op = value.owner
        if isinstance(op, Block):
            loop = op.parent_op()
            if not isinstance(loop, tile.ForOp):
                return default_form(shape)
            position = value.index - 1  # type: ignore[attr-defined]  an argument of a block
            return self._carried_form(loop, position)
        match op:
            case tile.LoadOp():
                return natural_form(op.map.data, shape, tile.ref_type(op.source).shape)
            case tile.TransposeOp():
                own = self.natural(op.operands[0])
                permutation: tuple[int, ...] = op.attributes_of()["permutation"]
                return Form(*(ABSENT if d == ABSENT else permutation.index(d) for d in (own.rows, own.columns)))
            case tile.BroadcastOp():
                own, axes = self.natural(op.operands[0]), op.attributes_of()["axes"]
                return Form(*(ABSENT if d == ABSENT else axes[d] for d in (own.rows, own.columns)))
            case tile.ReduceOp():
                return _reduced_form(self.natural(op.operands[0]), op)
            case tile.MapOp():
                known = [o for o in op.operands if not _is_vague(o)]
                anchored = [o for o in known if _is_anchored(o)] or known
                return self.natural(anchored[0]) if anchored else default_form(shape)
            case tile.IfOp():
                last = op.then.block.last_op
                given = last.operands if last is not None else ()
                return self.natural(given[list(op.results).index(value)])  # type: ignore[arg-type]
            case tile.CastOp() | tile.FillPaddingOp() | tile.RelayoutOp():
                return self.natural(op.operands[0])
            case tile.ForOp():
                return self._carried_form(op, list(op.results).index(value))  # type: ignore[arg-type]
            case _ if _is_unit_reshape(op):
                own, places = self.natural(op.operands[0]), _unit_places(op)
                return Form(*(ABSENT if d == ABSENT else places.get(d, ABSENT) for d in (own.rows, own.columns)))
            case _:
                return default_form(shape)

    def _carried_form(self, loop: tile.ForOp, position: int) -> Form:
        initial = loop.initial[position]
        if not _is_vague(initial):
            return self.natural(initial)
        last = loop.body.block.last_op
        return self.natural(last.operands[position]) if last is not None else default_form(array_type(initial).shape)

    # ---- tiles in queues --------------------------------------------------------------------------------------------

    def held(
        self,
        value: SSAValue,
        form: Form,
        need: tuple[Padding, Padding] = (None, None),
        consumer: str = cores.COMPUTE,
    ) -> Held:
        """A tile in a queue in some form, whose padding along rows and columns is as needed."""
        value, form = self._relabelled(value, form)
        type = array_type(value)
        form = form.of(type.shape)
        need = self._needed(type, form, need)
        for found, taker in self.held_tiles.get(value, ()):
            if taker == consumer == cores.COMPUTE and found.form == form and _is_enough(found, need):
                return self._waited(found, consumer)
        made = self._made(value, form, need, consumer)
        self.held_tiles.setdefault(value, []).append((made, consumer))
        return self._waited(made, consumer)

    def _relabelled(self, value: SSAValue, form: Form) -> tuple[SSAValue, Form]:
        """What a tile is the same pages of."""
        op = value.owner
        while value not in self.shared and isinstance(op, Operation):
            if isinstance(op, tile.TransposeOp):
                permutation: tuple[int, ...] = op.attributes_of()["permutation"]
                form = Form(
                    *(ABSENT if d == ABSENT else permutation[d] for d in (form.rows, form.columns)), form.turned
                )
            elif _is_unit_reshape(op):
                back = {new: old for old, new in _unit_places(op).items()}
                form = Form(
                    *(ABSENT if d == ABSENT else back.get(d, ABSENT) for d in (form.rows, form.columns)), form.turned
                )
            elif not isinstance(op, tile.RelayoutOp):
                break
            value = op.operands[0]
            op = value.owner
        return value, form

    def _needed(self, type: ArrayType, form: Form, need: tuple[Padding, Padding]) -> tuple[Padding, Padding]:
        """Of what is needed, that for which there is padding."""
        rows, columns = (
            None if dim != ABSENT and type.shape[dim] % TILE == 0 else value
            for dim, value in zip((form.rows, form.columns), need, strict=True)
        )
        return rows, columns

    def _waited(self, tile_held: Held, consumer: str, at_end: bool = True) -> Held:
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

    def _made(self, value: SSAValue, form: Form, need: tuple[Padding, Padding], consumer: str) -> Held:
        op = value.owner
        source = self.load_behind(value)
        if source is not None:
            load, fill = source
            given = None if load.fill is None else float(decode(load.fill))
            wanted = fill if fill is not None else next((n for n in need if n is not None), None)
            if (given is None or wanted in (None, given)) and need in (
                (None, None),
                (wanted, None),
                (None, wanted),
                (wanted, wanted),
            ):
                window = self._window(load)
                if window is None or (window.form.rows, window.form.columns) == (form.rows, form.columns):
                    return self._loaded(load, form, wanted, consumer, window)
                if (window.form.rows, window.form.columns) != (form.columns, form.rows) and not form.turned:
                    return self._loaded(load, form, wanted, consumer, None)
        if isinstance(op, tile.IotaOp) and consumer != cores.WRITER and not _is_place_of_lanes(op):
            return self._generated(op, form)
        if isinstance(op, tile.SliceOp | tile.ConcatOp) or (
            isinstance(op, tile.ReshapeOp) and not _is_unit_reshape(op)
        ):
            if need == (None, None) and not form.turned and consumer == cores.COMPUTE:
                return self._rearranged(op, _pieces_of(op), form)
        mine = [found.form for found, taker in self.held_tiles.get(value, ()) if taker == cores.COMPUTE]
        if mine and all((own.rows, own.columns) not in _two_ways(form) for own in mine):
            if need == (None, None) and not form.turned and consumer == cores.COMPUTE:
                rank = array_type(value).rank
                same = tuple(AffineExpr.dimension(d) for d in range(rank))
                return self._rearranged(None, [_Piece(value, array_type(value).shape, same, same)], form)
        return self._computed(value, form, need, consumer)

    def _rearranged(self, op: Operation | None, pieces: Sequence[_Piece], form: Form) -> Held:
        """A tile whose elements are others' in other places: a mover copies them one by one."""
        value = pieces[0].value if op is None else op.results[0]
        type, scope = array_type(value), self._scope_of(value)
        form = form.of(type.shape)
        pages = {"pages": pages_of(type.shape, form)}
        queue = self.threads.queue(storage_format(type.dtype), pages["pages"])
        forms = [self._form_to_take(piece.value).of(array_type(piece.value).shape) for piece in pieces]
        taken = [self.held(p.value, f, consumer=cores.READER) for p, f in zip(pieces, forms, strict=True)]
        with self.threads.inside(cores.READER, scope):
            self.threads.add(cores.READER, cores.ReserveOp, [queue], pages)
            for piece, source, own in zip(pieces, taken, forms, strict=True):
                attributes = {
                    "extents": piece.extents,
                    "source_shape": array_type(piece.value).shape,
                    "source_rows": own.rows,
                    "source_columns": own.columns,
                    "shape": type.shape,
                    "rows": form.rows,
                    "columns": form.columns,
                }
                rank = len(piece.extents)
                maps = {"map": (rank, piece.target), "source_map": (rank, piece.source)}
                self.threads.add(cores.READER, cores.RearrangeOp, [source.queue, queue], attributes, maps)
            self.threads.add(cores.READER, cores.PushOp, [queue], pages)
        return Held(queue, form, type, scope)

    def _form_to_take(self, value: SSAValue) -> Form:
        """The form in which a tile is taken for its elements: the one that it is in."""
        mine = [found.form for found, taker in self.held_tiles.get(value, ()) if taker == cores.COMPUTE]
        return Form(mine[0].rows, mine[0].columns) if mine else self.natural(value)

    def load_behind(self, value: SSAValue) -> tuple[tile.LoadOp, float | None] | None:
        """The load that a tile is, or whose lanes beyond the array it fills, and with what; None where it is more, or
        where what is loaded is stored to, and so is loaded in its turn."""
        found = _load_behind(value.owner) if isinstance(value.owner, Operation) and value not in self.shared else None
        return None if found is None or found[0].source in self.written else found

    def _capacity(self, pages: int, scope: Scope, buffers: int) -> int:
        return pages * (1 if scope is self.top else buffers)

    # ---- loads ------------------------------------------------------------------------------------------------------

    def _window(self, op: tile.LoadOp) -> Window | None:
        array = tile.ref_type(op.source)
        indices = [s for s in op.symbols if isinstance(s.type, IndexType)]
        if len(indices) < len(op.symbols):
            return None
        return window_of(op.map.data, array_type(op.result).shape, array.shape, len(indices))

    def _loaded(self, op: tile.LoadOp, form: Form, fill: Padding, consumer: str, window: Window | None) -> Held:
        type, scope = array_type(op.result), self._scope_of(op.result)
        if window is None and form.turned:
            raise CompilerBug("elements are gathered to pages in the order of rows")
        pages = pages_of(type.shape, form)
        queue = self.threads.queue(storage_format(type.dtype), self._capacity(pages, scope, self.buffers))
        number = float(fill) if isinstance(fill, int | float) else None
        if number is None and op.fill is not None:
            number = float(decode(op.fill))
        held = Held(queue, form, type, scope, (number, number))
        before, self.threads.location = self.threads.location, op.location
        # What is stored to the same array before has arrived, where one mover does both in turn.
        role = cores.WRITER if op.source in self.written else cores.READER
        with self.threads.inside(role, scope):
            if window is None:
                self._gather(op, held, number, role)
            else:
                self._fetch(op, held, number, window, role)
        self.threads.location = before
        return held

    def _fetch(self, op: tile.LoadOp, held: Held, fill: float | None, window: Window, role: str) -> None:
        add, queue, array = self.threads.add, held.queue, self.refs[op.source]
        pages = {"pages": held.pages}
        add(role, cores.ReserveOp, [queue], pages)
        extents, maps = self._page_maps(window, held.type.shape, held.form, op.symbols)
        add(role, cores.FetchOp, [array, queue], {"extents": extents}, maps)
        add(role, cores.BarrierOp, [], {"of": cores.READ})
        if fill is not None and _reaches_beyond(window, held.type.shape, tile.ref_type(op.source).shape):
            value = fill if held.type.dtype.is_float or held.type.dtype.is_bool else int(fill)
            add(role, cores.PadOp, [array, queue], {"extents": extents, "fill": value}, maps)
        add(role, cores.PushOp, [queue], pages)

    def _page_maps(
        self, window: Window, shape: Sequence[int], form: Form, symbols: Sequence[SSAValue]
    ) -> tuple[tuple[int, ...], dict[str, tuple[int, list[AffineExpr]]]]:
        """Pages of a window, and where they are in a queue."""
        outer = [d for d in form.outer(len(shape)) if shape[d] > 1]
        _, rows, columns = page_counts(shape, form)
        places = {d: AffineExpr.dimension(i) for i, d in enumerate(outer)}
        row, column = AffineExpr.dimension(len(outer)), AffineExpr.dimension(len(outer) + 1)
        extents = (*(shape[d] for d in outer), rows, columns)
        results: list[AffineExpr] = []
        for dim, start in zip(window.dims, window.starts, strict=True):
            own = (
                row
                if dim == form.rows != ABSENT
                else column
                if dim == form.columns != ABSENT
                else places.get(dim, ZERO)
            )
            results.append(plus(self._sum(start, symbols), own))
        before = ZERO
        for d in outer:
            before = plus(times(before, shape[d]), places[d])
        if form.turned:
            at = plus(times(plus(times(before, columns), column), rows), row)
        else:
            at = plus(times(plus(times(before, rows), row), columns), column)
        return extents, {"map": (len(extents), results), "at": (len(extents), [at])}

    def _sum(self, start: Sum, symbols: Sequence[SSAValue]) -> AffineExpr:
        result = AffineExpr.constant(start.constant)
        for position, coefficient in start.symbols:
            result = plus(result, times(self.index[symbols[position]], coefficient))
        return result

    def _gather(self, op: tile.LoadOp, held: Held, fill: float | None, role: str) -> None:
        add, queue = self.threads.add, held.queue
        lanes = self._lanes(op, held.form, role)
        pages = {"pages": held.pages}
        add(role, cores.ReserveOp, [queue], pages)
        attributes = self._lane_attributes(held)
        if fill is not None:
            attributes["fill"] = fill if held.type.dtype.is_float or held.type.dtype.is_bool else int(fill)
        maps = self._lane_maps(op.map.data, op.symbols, held.type.rank)
        add(role, cores.GatherOp, [self.refs[op.source], queue], attributes, maps, [h.queue for h in lanes])
        add(role, cores.PushOp, [queue], pages)

    def _lanes(self, op: tile.LoadOp | tile.StoreOp, form: Form, consumer: str) -> list[Held]:
        """Tiles of integers that say, lane by lane, where elements are."""
        tiles = [s for s in op.symbols if not isinstance(s.type, IndexType)]
        return [self.held(s, form, consumer=consumer) for s in tiles]

    def _lane_attributes(self, held: Held) -> dict[str, Any]:
        return {"shape": held.type.shape, "rows": held.form.rows, "columns": held.form.columns}

    def _lane_maps(
        self, map: AffineMap, symbols: Sequence[SSAValue], rank: int
    ) -> dict[str, tuple[int, list[AffineExpr]]]:
        lanes = [s for s in symbols if not isinstance(s.type, IndexType)]
        replaced = [self.index[s] if isinstance(s.type, IndexType) else cores_lane(lanes.index(s)) for s in symbols]
        results = [with_symbols(e, lambda p: replaced[p]) for e in map.results]
        return {"map": (rank, results), "at": (0, [ZERO])}

    def _generated(self, op: tile.IotaOp, form: Form) -> Held:
        """A tile of places, which the reader stores number by number."""
        type, scope = array_type(op.result), self._scope_of(op.result)
        pages = pages_of(type.shape, form)
        queue = self.threads.queue(dtypes.i32.name, self._capacity(pages, scope, self.buffers))
        row, column, page = (AffineExpr.dimension(d) for d in range(3))
        _, rows, columns = page_counts(type.shape, form)
        place_of = coordinates(type.shape, form)
        tile_row, tile_column = divided(page, columns), remainder(page, columns)
        if form.turned:
            outer = divided(page, rows * columns)
            tile_row = plus(times(outer, rows), remainder(page, rows))
            tile_column = remainder(divided(page, rows), columns)

        def at(dim: int) -> AffineExpr:
            own = place_of(dim, tile_row, tile_column)
            if dim == form.rows:
                return plus(times(own, TILE), row)
            return plus(times(own, TILE), column) if dim == form.columns else own

        (expression,) = op.map.data.results
        number = with_dims(with_symbols(expression, lambda p: self.index[op.symbols[p]]), at)
        held = Held(queue, form, ArrayType(type.shape, type.dtype), scope)
        with self.threads.inside(cores.READER, scope):
            self._generate(queue, pages, number, {})
        return held

    def _generate(self, queue: SSAValue, pages: int, number: AffineExpr, attributes: dict[str, Any]) -> None:
        add = self.threads.add
        add(cores.READER, cores.ReserveOp, [queue], {"pages": pages})
        maps = {"map": (3, [number])}
        add(cores.READER, cores.GenerateOp, [queue], {"count": pages, **attributes}, maps)
        add(cores.READER, cores.PushOp, [queue], {"pages": pages})

    def _mask(self, limit: int, side: int) -> Held:
        """A page with 1 in the first rows or columns, and 0 behind them."""
        if (limit, side) not in self.masks:
            queue = self.threads.queue(dtypes.bf16.name, 1, "mask")
            choice = ArrayAttr([FloatAttr(float(n), f64) for n in (limit, 1, 0)])
            with self.threads.inside(cores.READER, self.top):
                self._generate(queue, 1, AffineExpr.dimension(side), {"choice": choice})
            type = ArrayType((TILE, TILE), dtypes.bool_)
            self.masks[limit, side] = Held(queue, Form(0, 1), type, self.top)
        return self._waited(self.masks[limit, side], cores.COMPUTE)

    def _scaler(self) -> Held:
        """The page of ones that sums of pages are multiplied by."""
        if self.scaler is None:
            queue = self.threads.queue(dtypes.bf16.name, 1, "scaler")
            with self.threads.inside(cores.READER, self.top):
                self._generate(queue, 1, AffineExpr.constant(1), {"face_rows": True})
            self.scaler = Held(queue, Form(0, 1), ArrayType((TILE, TILE), dtypes.bf16), self.top)
        return self._waited(self.scaler, cores.COMPUTE)

    # ---- what registers compute -------------------------------------------------------------------------------------

    def _computed(self, value: SSAValue, form: Form, need: tuple[Padding, Padding], consumer: str) -> Held:
        type, scope = array_type(value), self._scope_of(value)
        format = storage_format(type.dtype)
        pages = pages_of(type.shape, form)
        buffers = 1 if consumer == cores.COMPUTE else self.buffers
        queue = self.threads.queue(format, self._capacity(pages, scope, buffers))
        with self.threads.inside(cores.COMPUTE, scope):
            pads = self._compute_into(value, form, need, queue)
        return Held(queue, form, type, scope, pads)

    def _compute_into(
        self, value: SSAValue, form: Form, need: tuple[Padding, Padding], queue: SSAValue
    ) -> tuple[Padding, Padding]:
        """Compute a tile in a form, and push it; gives what its padding holds."""
        type = array_type(value)
        root = self._graph(value, form)
        counts = page_counts(type.shape, form)
        pads = [padding_of(root, side) for side in (0, 1)]
        cut = [n is not None and pads[side] != n for side, n in enumerate(need)]
        pages = {"pages": prod(counts)}
        self.threads.add(cores.COMPUTE, cores.ReserveOp, [queue], pages)
        target = Target(queue, page_at(type.shape, form))
        is_flat = not form.turned and not any(cut)
        for places, sides in _parts(counts, cut):
            masked = root
            for side in sides:
                masked = self._masked(masked, type, form, side, need[side])
                pads[side] = need[side]
            emit_section(self.threads, masked, [target], places, is_flat, self.registers)
        self.threads.add(cores.COMPUTE, cores.PushOp, [queue], pages)
        return pads[0], pads[1]

    def _masked(self, root: Node, type: ArrayType, form: Form, side: int, value: Padding) -> Node:
        """A graph with a value where it is beyond its tile."""
        dim = (form.rows, form.columns)[side]
        limit = 1 if dim == ABSENT else type.shape[dim] % TILE
        mask = self._mask(limit, side)
        read = Read(mask, lambda row, column: ZERO, cores.NONE, False, False, dtypes.f32)
        number = float(value) if isinstance(value, int | float) else 0.0
        return apply("select", [read, root, Number(number, root.carrier)], type.dtype)

    def _graph(self, value: SSAValue, form: Form) -> Node:
        """How a tile is computed, place by place, from tiles in queues."""
        shape = array_type(value).shape
        graph = _Graph(self, shape, form)
        found = self.held_tiles.get(value)
        own = [h for h, taker in found if taker == cores.COMPUTE] if found else []
        if own or value in self.shared and value in self.held_tiles:
            return graph.read(value, tuple(range(len(shape))))
        return graph.expanded(value, tuple(range(len(shape))))

    # ---- stores -----------------------------------------------------------------------------------------------------

    def _store(self, op: tile.StoreOp) -> None:
        type, array = array_type(op.value), tile.ref_type(op.destination)
        indices = [s for s in op.symbols if isinstance(s.type, IndexType)]
        window = None
        if len(indices) == len(op.symbols):
            window = window_of(op.map.data, type.shape, array.shape, len(indices))
        form = self.natural(op.value) if window is None else window.form
        held = self._stored(op, form)
        add = self.threads.add
        if window is not None:
            extents, maps = self._page_maps(window, type.shape, form, op.symbols)
            add(cores.WRITER, cores.PutOp, [self.refs[op.destination], held.queue], {"extents": extents}, maps)
        else:
            lanes = self._lanes(op, form, cores.WRITER)
            maps = self._lane_maps(op.map.data, op.symbols, type.rank)
            queues = [h.queue for h in lanes]
            # What is held may be another tile, turned around: its elements are counted as the stored one's are.
            attributes = {"shape": type.shape, "rows": form.rows, "columns": form.columns}
            add(cores.WRITER, cores.ScatterOp, [self.refs[op.destination], held.queue], attributes, maps, queues)
        add(cores.WRITER, cores.BarrierOp, [], {"of": cores.WRITE})
        add(cores.WRITER, cores.PopOp, [held.queue], {"pages": held.pages})

    def _stored(self, op: tile.StoreOp, form: Form) -> Held:
        """What is stored, in a queue to the writer. What was computed further out is not stored here."""
        value, own = self._relabelled(op.value, form)
        source = self.load_behind(value)
        scope = self.scopes[_block_of(op)]
        if source is not None and source[1] is None and self._scope_of(value) is scope:
            window = self._window(source[0])
            plain = own.of(array_type(value).shape)
            if window is None or (window.form.rows, window.form.columns) == (plain.rows, plain.columns):
                if not (window is None and plain.turned):
                    held = self._loaded(source[0], plain, None, cores.WRITER, window)
                    return self._waited(held, cores.WRITER, at_end=False)
        type = array_type(op.value)
        pages = pages_of(type.shape, form)
        queue = self.threads.queue(storage_format(type.dtype), self._capacity(pages, scope, self.buffers))
        self._compute_into(op.value, form, (None, None), queue)
        return self._waited(Held(queue, form, type, scope), cores.WRITER, at_end=False)

    # ---- reductions -------------------------------------------------------------------------------------------------

    def _reduce(self, op: tile.ReduceOp) -> None:
        attributes = op.attributes_of()
        fn: str = attributes["fn"]
        operand = _narrower(op.operands[0], self.shared)
        type = array_type(operand)
        if type.dtype.is_bool:
            fn = _BOOL_REDUCTIONS.get(fn, fn)
        if fn not in ("add", "maximum", "minimum"):
            raise _refuse(op, f"a reduction by `{fn}` does not run on a grid of cores")
        form = self.natural(operand)
        reduced: tuple[int, ...] = attributes["axes"]
        identity = ops.FUNCTIONS[attributes["fn"]].identity
        value = None if identity is None else float(identity(type.dtype))
        need = tuple(value if dim in reduced else None for dim in (form.rows, form.columns))
        held = self.held(operand, form, (need[0], need[1]))
        result = array_type(op.results[0])
        out = _reduced_form(form, op).of(result.shape)
        scope = self._scope_of(op.results[0])
        pages = pages_of(result.shape, out)
        queue = self.threads.queue(storage_format(result.dtype), pages)
        self.threads.add(cores.COMPUTE, cores.ReserveOp, [queue], {"pages": pages})
        emit_reduction(self.threads, self._reduction(held, form, reduced, fn), queue, self.registers)
        self.threads.add(cores.COMPUTE, cores.PushOp, [queue], {"pages": pages})
        self.held_tiles[op.results[0]] = [(Held(queue, out, result, scope), cores.COMPUTE)]

    def _reduction(self, held: Held, form: Form, reduced: Sequence[int], fn: str) -> Reduction:
        along = [dim in reduced for dim in (form.rows, form.columns)]
        by_matrix = not held.is_wide and fn != "minimum" and any(along)
        return Reduction(held, tuple(reduced), fn, along[0], along[1], self._scaler() if by_matrix else None)

    # ---- products ---------------------------------------------------------------------------------------------------

    def _dot(self, op: tile.DotOp) -> None:
        if any(op in accumulated for accumulated in self._accumulated.values()):
            self._accumulate(op)
            return
        left, right = self._product_operands(op)
        initial = op.accumulator
        start = None
        if not _is_zero(initial):
            start = self.held(initial, Form(0, 1))
        type, scope = array_type(op.result), self._scope_of(op.result)
        form = Form(0, 1).of(type.shape)
        queue = self.threads.queue(storage_format(type.dtype), pages_of(type.shape, form))
        pages = {"pages": pages_of(type.shape, form)}
        self.threads.add(cores.COMPUTE, cores.ReserveOp, [queue], pages)
        emit_product(self.threads, left, right, start, queue, self.registers, None)
        self.threads.add(cores.COMPUTE, cores.PushOp, [queue], pages)
        self.held_tiles[op.result] = [(Held(queue, form, type, scope), cores.COMPUTE)]

    def _product_operands(self, op: tile.DotOp) -> tuple[Held, Held]:
        left, right = (_narrower(o, self.shared) for o in (op.left, op.right))
        for operand in (left, right):
            if array_type(operand).dtype == dtypes.f32:
                self._remark("operands of f32 are cut to tf32", "the matrix unit multiplies nothing wider")
            elif not array_type(operand).dtype.is_float:
                raise _refuse(op, f"a product of {array_type(operand).dtype} does not run on a grid of cores")
        held_left = self.held(left, Form(0, 1), (None, 0.0))
        turned = self.natural(right).rows == 1
        form = Form(1, 0, turned=True) if turned and self._is_paged(right) else Form(0, 1)
        need = (None, 0.0) if form.rows == 1 else (0.0, None)
        return held_left, self.held(right, form, need)

    def _is_paged(self, value: SSAValue) -> bool:
        """Whether the pages of a tile can come in any order: it is loaded in whole pages."""
        source, _ = self._relabelled(value, self.natural(value))
        found = self.load_behind(source)
        return found is not None and self._window(found[0]) is not None

    _accumulated: dict[tile.ForOp, dict[tile.DotOp, tuple[SSAValue, AffineExpr | None]]] = field(
        default_factory=dict[tile.ForOp, dict[tile.DotOp, tuple[SSAValue, AffineExpr | None]]]
    )

    def _accumulate(self, op: tile.DotOp) -> None:
        queue, counter = next(found[op] for found in self._accumulated.values() if op in found)
        left, right = self._product_operands(op)
        emit_product(self.threads, left, right, None, queue, self.registers, counter)

    def _if(self, op: tile.IfOp) -> None:
        """Both branches are computed, and one is chosen place by place where it is used."""
        for region in (op.then, op.otherwise):
            self.scopes[region.block] = self.threads.scopes[-1]
            for inner in region.walk():
                if isinstance(inner, tile.StoreOp | tile.ForOp):
                    name = inner.name.removeprefix("tile.")
                    raise _refuse(inner, f"a `{name}` in a branch does not run on a grid of cores")
            self.lower_block(region.block)

    # ---- loops ------------------------------------------------------------------------------------------------------

    def _for(self, op: tile.ForOp) -> None:
        block, trips = op.body.block, int(op.trips.value.data)
        last = block.last_op
        following = list(last.operands) if last is not None else []
        sums = {} if op.end is not None else _sums_of(op)
        queues: list[SSAValue] = []
        outer = self.threads.scopes[-1]
        for position, (argument, initial) in enumerate(zip(block.args[1:], op.initial, strict=True)):
            type = array_type(argument)
            form = Form(0, 1).of(type.shape) if position in sums else self._carried_form(op, position).of(type.shape)
            form = completed(form.rows, form.columns, type.shape)
            pages = pages_of(type.shape, form)
            is_sum = position in sums
            queue = self.threads.queue(
                storage_format(type.dtype), pages * (1 if is_sum else 2), "sum" if is_sum else ""
            )
            self.forms[argument] = form
            queues.append(queue)
            if is_sum:
                self.threads.add(cores.COMPUTE, cores.ReserveOp, [queue], {"pages": pages})
            else:
                self._compute_into(initial, form, (None, None), queue)
        end = None
        if op.end is not None:
            end = with_symbols(op.end.data.results[0], lambda p: self.index[op.symbols[p]])
        counter = self.threads.open_loop(trips, end)
        scope = self.threads.scopes[-1]
        self.index[block.args[0]] = counter
        self.scopes[block] = scope
        self._accumulated[op] = {
            dot: (queues[position], counter if trips > 1 else None) for position, dot in sums.items()
        }
        for position, argument in enumerate(block.args[1:]):
            if position not in sums:
                held = Held(queues[position], self.forms[argument], array_type(argument), scope)
                self.held_tiles[argument] = [(self._waited(held, cores.COMPUTE), cores.COMPUTE)]
        self.lower_block(block)
        for position, value in enumerate(following):
            if position not in sums:
                self._compute_into(value, self.forms[block.args[position + 1]], (None, None), queues[position])
        self.threads.close_loop()
        for position, result in enumerate(op.results):
            form = self.forms[block.args[position + 1]]
            if position in sums:
                pages = pages_of(array_type(result).shape, form)
                self.threads.add(cores.COMPUTE, cores.PushOp, [queues[position]], {"pages": pages})
            held = Held(queues[position], form, array_type(result), outer)
            self.forms[result] = form
            self.held_tiles[result] = [(self._waited(held, cores.COMPUTE), cores.COMPUTE)]


@dataclass(frozen=True)
class _Piece:
    """Elements of a tile that are some of another one's: over `extents`, those at `source` are at `target`."""

    value: SSAValue
    extents: tuple[int, ...]
    source: tuple[AffineExpr, ...]
    target: tuple[AffineExpr, ...]


def _pieces_of(op: tile.SliceOp | tile.ConcatOp | tile.ReshapeOp) -> list[_Piece]:
    shape = array_type(op.results[0]).shape
    same = tuple(AffineExpr.dimension(d) for d in range(len(shape)))
    match op:
        case tile.SliceOp():
            starts, strides = op.attributes_of()["starts"], op.attributes_of()["strides"]
            source = tuple(plus(times(d, by), first) for d, by, first in zip(same, strides, starts, strict=True))
            return [_Piece(op.operands[0], shape, source, same)]
        case tile.ReshapeOp():
            linear_place: AffineExpr = ZERO
            for d, size in zip(same, shape, strict=True):
                linear_place = plus(times(linear_place, size), d)
            before = array_type(op.operands[0]).shape
            found: list[AffineExpr] = []
            for d, size in enumerate(before):
                quotient = divided(linear_place, prod(before[d + 1 :]))
                found.append(quotient if prod(before[:d]) == 1 else remainder(quotient, size))
            return [_Piece(op.operands[0], shape, tuple(found), same)]
        case _:
            axis: int = op.attributes_of()["axis"]
            pieces: list[_Piece] = []
            first = 0
            for operand in op.operands:
                extents = array_type(operand).shape
                target = tuple(plus(d, first) if n == axis else d for n, d in enumerate(same))
                pieces.append(_Piece(operand, extents, same, target))
                first += extents[axis]
            return pieces


def cores_lane(number: int) -> AffineExpr:
    """The symbol of a tile of integers among those of a map, before roots have places."""
    return AffineExpr.symbol(-1 - number)


def _two_ways(form: Form) -> tuple[tuple[int, int], tuple[int, int]]:
    """The dims along rows and columns, and those of the pages turned around."""
    return (form.rows, form.columns), (form.columns, form.rows)


def _block_of(op: Operation) -> Block:
    block = op.parent_block()
    if block is None:
        raise CompilerBug(f"{op.name} in no block")
    return block


def _is_unit_reshape(op: Operation) -> bool:
    """Whether an operation only adds or drops dims of one element."""
    if not isinstance(op, tile.ReshapeOp):
        return False
    before, after = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    return [n for n in before if n != 1] == [n for n in after if n != 1]


def _is_place_of_lanes(op: Operation) -> bool:
    return isinstance(op, tile.IotaOp) and any(not isinstance(s.type, IndexType) for s in op.symbols)


def _unit_places(op: Operation) -> dict[int, int]:
    """The dims of a reshape's operand that have more than one element, and where they are in its result."""
    before, after = array_type(op.operands[0]).shape, array_type(op.results[0]).shape
    old = [d for d, n in enumerate(before) if n != 1]
    new = [d for d, n in enumerate(after) if n != 1]
    return dict(zip(old, new, strict=True))


def _is_vague(value: SSAValue) -> bool:
    """Whether a tile has no form of its own: it is the same number everywhere, or repeats something smaller."""
    op = value.owner
    while isinstance(op, tile.CastOp | tile.RelayoutOp):
        op = op.operands[0].owner
    return isinstance(op, tile.FullOp | tile.BroadcastOp)


def _is_anchored(value: SSAValue) -> bool:
    """Whether a tile has something in it that lies in pages, and not only numbers that are made anywhere."""
    op = value.owner
    if isinstance(op, (*_PLACEWISE, *_RELABELS)) or (isinstance(op, Operation) and _is_unit_reshape(op)):
        return any(_is_anchored(operand) for operand in op.operands)
    return not isinstance(op, tile.IotaOp)


def _is_zero(value: SSAValue) -> bool:
    op = value.owner
    while isinstance(op, tile.BroadcastOp | tile.CastOp):
        op = op.operands[0].owner
    return isinstance(op, tile.FullOp) and float(decode(op.value)) == 0.0


def _is_enough(found: Held, need: tuple[Padding, Padding]) -> bool:
    return all(wanted is None or has == wanted for wanted, has in zip(need, found.pads, strict=True))


def _narrower(value: SSAValue, shared: set[SSAValue]) -> SSAValue:
    """What a float of 32 bits was before it was made one, where that has 16."""
    op = value.owner
    if isinstance(op, tile.TransposeOp) or value in shared:
        return value
    if isinstance(op, tile.CastOp):
        source = op.operands[0]
        if array_type(value).dtype == dtypes.f32 and array_type(source).dtype.is_narrow_float:
            return source
    return value


def _load_behind(op: Operation) -> tuple[tile.LoadOp, float | None] | None:
    """The load that an operation is, or whose lanes beyond the array it fills, and with what."""
    if isinstance(op, tile.LoadOp):
        return op, None
    fill: float | None = None
    inner: Operation = op
    while isinstance(inner, tile.FillPaddingOp):
        value = float(decode(inner.value))
        if fill is not None and fill != value:
            return None
        fill = value
        following = inner.source.owner
        if not isinstance(following, Operation):
            return None
        inner = following
    if fill is None or not isinstance(inner, tile.LoadOp) or inner.fill is not None:
        return None
    outer: Operation = op
    while isinstance(outer, tile.FillPaddingOp):
        if not _fills_beyond(outer, inner):
            return None
        outer = outer.source.owner  # type: ignore[assignment]  as above
    return inner, fill


def _fills_beyond(op: tile.FillPaddingOp, load: tile.LoadOp) -> bool:
    """Whether lanes are filled where a load is beyond its array along a dim."""
    (position,) = op.map.data.results
    wanted = with_symbols(position, lambda p: AffineExpr.symbol(_number(op.symbols[p])))
    limit = int(op.limit.value.data)
    for expression, size in zip(load.map.data.results, tile.ref_type(load.source).shape, strict=True):
        own = with_symbols(expression, lambda p: AffineExpr.symbol(_number(load.symbols[p])))
        if size == limit and own == wanted:
            return True
    return False


def _number(value: SSAValue) -> int:
    return id(value)


def _reduced_form(form: Form, op: tile.ReduceOp) -> Form:
    reduced: tuple[int, ...] = op.attributes_of()["axes"]
    kept = [d for d in range(array_type(op.operands[0]).rank) if d not in reduced]
    return Form(*(kept.index(d) if d in kept else ABSENT for d in (form.rows, form.columns)))


def _sums_of(op: tile.ForOp) -> dict[int, tile.DotOp]:
    """The carried tiles that are sums of products, from zero on, which nothing else reads in the loop."""
    found: dict[int, tile.DotOp] = {}
    last = op.body.block.last_op
    for position, argument in enumerate(op.body.block.args[1:]):
        users = list(argument.uses)
        if len(users) != 1 or last is None or not _is_zero(op.initial[position]):
            continue
        dot = users[0].operation
        if not isinstance(dot, tile.DotOp) or dot.accumulator is not argument or dot.parent_op() is not op:
            continue
        taken = list(dot.result.uses)
        if len(taken) == 1 and taken[0].operation is last and last.operands[position] is dot.result:
            found[position] = dot
    return found


def _reaches_beyond(window: Window, shape: Sequence[int], array: Sequence[int]) -> bool:
    """Whether pages of a window may have elements that are not in the array."""
    sizes = (*(1,) * (2 - len(array)), *array)
    for place in (-2, -1):
        dim = window.dims[place]
        extent = -(-(1 if dim == ABSENT else shape[dim]) // TILE) * TILE
        if sizes[place] % extent:
            return True
    return False


def _parts(counts: tuple[int, int, int], cut: Sequence[bool]) -> list[tuple[Places, list[int]]]:
    """The places of a result apart: those of whole pages, and those at its ends along sides that are cut."""
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


# ---- graphs ---------------------------------------------------------------------------------------------------------


class _Graph:
    """Builds the graph of one result: `at` are, for each dim of a tile, the dim of the result along which it goes."""

    def __init__(self, lowering: _Lowering, shape: Sequence[int], form: Form) -> None:
        self._lowering = lowering
        self._shape = shape
        self._form = form
        self._memo: dict[tuple[SSAValue, tuple[int | None, ...]], Node] = {}

    def node(self, value: SSAValue, at: tuple[int | None, ...]) -> Node:
        key = (value, at)
        if key not in self._memo:
            op = value.owner
            is_read = value in self._lowering.shared or not isinstance(op, (*_PLACEWISE, *_RELABELS))
            is_plain = isinstance(op, Operation) and (_is_unit_reshape(op) or _is_place_of_lanes(op))
            if is_plain or isinstance(op, tile.IfOp):
                is_read = False
            self._memo[key] = self.read(value, at) if is_read else self.expanded(value, at)
        return self._memo[key]

    def expanded(self, value: SSAValue, at: tuple[int | None, ...]) -> Node:
        """What a tile is computed from."""
        op = value.owner
        match op:
            case tile.FullOp():
                dtype = array_type(value).dtype
                return Number(float(decode(op.value)), carrier_of(dtype))
            case tile.MapOp():
                arguments = [self.node(o, at) for o in op.operands]
                return apply(op.fn.data, arguments, array_type(op.operands[-1]).dtype)
            case tile.CastOp():
                return self._cast(op, at)
            case tile.BroadcastOp():
                before, after = array_type(op.operands[0]).shape, array_type(value).shape
                axes: tuple[int, ...] = op.attributes_of()["axes"]
                inner = tuple(None if n == 1 != after[a] else at[a] for n, a in zip(before, axes, strict=True))
                return self.node(op.operands[0], inner)
            case tile.TransposeOp():
                inner: list[int | None] = [None] * len(at)
                for place, source in enumerate(op.attributes_of()["permutation"]):
                    inner[source] = at[place]
                return self.node(op.operands[0], tuple(inner))
            case tile.RelayoutOp():
                return self.node(op.operands[0], at)
            case tile.FillPaddingOp():
                return self._filled(op, at)
            case tile.IfOp():
                position = list(op.results).index(value)  # type: ignore[arg-type]
                ends = [region.block.last_op for region in (op.then, op.otherwise)]
                given = [self.node(end.operands[position], at) for end in ends if end is not None]
                condition = self.node(op.condition, ())
                return apply("select", [condition, *given], array_type(value).dtype)
            case tile.IotaOp() if any(not isinstance(s.type, IndexType) for s in op.symbols):
                return self._place(op, at)
            case Operation() if _is_unit_reshape(op):
                places = _unit_places(op)
                rank = array_type(op.operands[0]).rank
                return self.node(op.operands[0], tuple(at[places[d]] if d in places else None for d in range(rank)))
            case _:
                return self.read(value, at)

    def _cast(self, op: tile.CastOp, at: tuple[int | None, ...]) -> Node:
        source, target = array_type(op.operands[0]).dtype, array_type(op.results[0]).dtype
        node = self.node(op.operands[0], at)
        if target.is_bool:
            return node if source.is_bool else apply("not_equal", [node, Number(0.0, node.carrier)], source)
        converted = convert(node, carrier_of(target))
        if target.is_narrow_float and array_type(op.results[0]).dtype != source:
            uses = {use.operation for use in op.results[0].uses}
            is_stored = all(isinstance(user, tile.StoreOp) for user in uses)
            return converted if is_stored else rounded(converted, target)
        return converted

    def _filled(self, op: tile.FillPaddingOp, at: tuple[int | None, ...]) -> Node:
        if self._lowering.load_behind(op.result) is not None:
            return self.read(op.result, at)
        type = array_type(op.result)
        iota = tile.IotaOp.make(list(op.symbols), {"map": op.map}, [_index_tile(type.shape)])
        iota.location = op.location
        block = op.parent_block()
        if block is not None:
            block.insert_op_before(iota, op)
        place = self.read(iota.result, at)
        inside = apply("less", [place, Number(float(int(op.limit.value.data)), dtypes.i32)], dtypes.i32)
        value = Number(float(decode(op.value)), carrier_of(type.dtype))
        return apply("select", [inside, self.node(op.source, at), value], type.dtype)

    def _place(self, op: tile.IotaOp, at: tuple[int | None, ...]) -> Node:
        """A place that depends on tiles of integers: they are multiplied and added to one that does not."""
        found = linear(op.map.data.results[0])
        if found is None:
            raise _refuse(op, "a place that divides a tile of integers does not run on a grid of cores")
        indices = [s for s in op.symbols if isinstance(s.type, IndexType)]
        plain = AffineExpr.constant(found.constant)
        for d, coefficient in found.dims:
            plain = plus(plain, times(AffineExpr.dimension(d), coefficient))
        lanes: list[tuple[SSAValue, int]] = []
        for position, coefficient in found.symbols:
            symbol = op.symbols[position]
            if isinstance(symbol.type, IndexType):
                plain = plus(plain, times(AffineExpr.symbol(indices.index(symbol)), coefficient))
            else:
                lanes.append((symbol, coefficient))
        rank = array_type(op.result).rank
        map = AffineMapAttr(AffineMap(rank, len(indices), (plain,)))
        iota = tile.IotaOp.make(indices, {"map": map}, [op.result.type])
        iota.location = op.location
        _block_of(op).insert_op_before(iota, op)
        node = self.read(iota.result, at)
        for symbol, coefficient in lanes:
            own = self.node(symbol, at)
            scaled = own if coefficient == 1 else apply("multiply", [own, Number(coefficient, dtypes.i32)], dtypes.i32)
            node = apply("add", [node, scaled], dtypes.i32)
        return node

    def read(self, value: SSAValue, at: tuple[int | None, ...]) -> Node:
        """A page of a tile in a queue."""
        lowering = self._lowering
        shape = array_type(value).shape
        at = tuple(None if d is None or self._shape[d] == 1 or shape[i] == 1 else d for i, d in enumerate(at))
        where = {d: i for i, d in enumerate(at) if d is not None}
        wanted = Form(where.get(self._form.rows, ABSENT), where.get(self._form.columns, ABSENT)).of(shape)
        missing = [
            own != ABSENT and mine == ABSENT
            for own, mine in zip((self._form.rows, self._form.columns), (wanted.rows, wanted.columns), strict=True)
        ]
        broadcast = {(True, True): cores.SCALAR, (True, False): cores.ROW, (False, True): cores.COLUMN}
        kind = broadcast.get((missing[0], missing[1]), cores.NONE)
        # A page is turned around or repeated on its way to a register, not both.
        transposed = self._natural(value, shape).swapped == wanted != wanted.swapped and kind == cores.NONE
        held = lowering.held(value, wanted.swapped if transposed else wanted)
        place_of = coordinates(self._shape, self._form)
        own, rank = held.form, len(shape)
        _, rows, columns = page_counts(shape, own)
        outer = own.outer(rank)

        def page(row: AffineExpr, column: AffineExpr) -> AffineExpr:
            def along(dim: int) -> AffineExpr:
                target = ABSENT if dim == ABSENT else at[dim]
                return ZERO if target is None or target == ABSENT else place_of(target, row, column)

            before = ZERO
            for d in outer:
                before = plus(times(before, shape[d]), along(d))
            if own.turned:
                return plus(times(plus(times(before, columns), along(own.columns)), rows), along(own.rows))
            return plus(times(plus(times(before, rows), along(own.rows)), columns), along(own.columns))

        all_outer = [d for d in self._form.outer(len(self._shape)) if self._shape[d] > 1]
        is_flat = kind == cores.NONE and not transposed and not own.turned and all(d in where for d in all_outer)
        is_flat = is_flat and [where[d] for d in all_outer] == sorted(where[d] for d in all_outer)
        return Read(held, page, kind, transposed, is_flat, carrier_of(array_type(value).dtype))

    def _natural(self, value: SSAValue, shape: Sequence[int]) -> Form:
        """The form in which a tile is, or comes."""
        found = self._lowering.held_tiles.get(value, [])
        mine = [held.form for held, taker in found if taker == cores.COMPUTE]
        return Form(mine[0].rows, mine[0].columns) if mine else self._lowering.natural(value).of(shape)


def _index_tile(shape: Sequence[int]) -> Any:
    from tilewright.dialects.base import tensor

    return tensor(ArrayType(tuple(shape), dtypes.i64))


# ---- reductions and products ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduction:
    """Pages of a tile that are reduced over some dims: along the `rows` dim, down each column, the `columns` dim, along
    each row, and others. With a `scaler` the matrix unit does it."""

    held: Held
    dims: tuple[int, ...]
    fn: str
    rows: bool
    columns: bool
    scaler: Held | None

    @property
    def kept(self) -> list[int]:
        """Dims that the results have, in pages: others, then rows, then columns."""
        form, rank = self.held.form, self.held.type.rank
        order = [*form.outer(rank), *(d for d in (form.rows, form.columns) if d != ABSENT)]
        return [d for d in order if d not in self.dims]

    def extent(self, dim: int) -> int:
        size = self.held.type.shape[dim]
        return -(-size // TILE) if dim in (self.held.form.rows, self.held.form.columns) else size

    def page(self, result: AffineExpr, term: AffineExpr) -> AffineExpr:
        """The number of a page, by those of the result and of the term."""
        form, rank = self.held.form, self.held.type.rank
        order = [*form.outer(rank), *(d for d in (form.rows, form.columns) if d != ABSENT)]
        places: dict[int, AffineExpr] = {}
        for dims, number in ((self.kept, result), ([d for d in order if d in self.dims], term)):
            below = 1
            for dim in reversed(dims):
                found = divided(number, below)
                places[dim] = found if dim == dims[0] else remainder(found, self.extent(dim))
                below *= self.extent(dim)
        total = ZERO
        if form.turned:
            order = [*form.outer(rank), form.columns, form.rows]
        for dim in order:
            total = plus(times(total, self.extent(dim)), places[dim])
        return plus(total, self.held.first)


def emit_reduction(threads: Threads, reduction: Reduction, queue: SSAValue, registers: int) -> None:
    """Reduce, some results at a time, and pack them one after another."""
    results = prod(reduction.extent(d) for d in reduction.kept)
    terms = prod(reduction.extent(d) for d in reduction.dims)
    at_once = 1 if reduction.scaler is None else max(n for n in range(1, registers + 1) if results % n == 0)
    counter = threads.open_loop(results // at_once, roles=[cores.COMPUTE]) if results > at_once else ZERO
    step(threads, cores.ACQUIRE)
    for slot in range(at_once):
        result = plus(times(counter, at_once), slot)
        if reduction.scaler is None:
            _fold_pages(threads, reduction, result, terms)
        else:
            _reduce_pages(threads, reduction, reduction.scaler, result, terms, slot)
    step(threads, cores.COMMIT)
    step(threads, cores.WAIT)
    page = plus(times(counter, at_once), AffineExpr.dimension(0))
    threads.add(cores.COMPUTE, cores.PackOp, [queue], {"slot": 0, "count": at_once}, {"at": (1, [page])})
    step(threads, cores.RELEASE)
    if results > at_once:
        threads.close_loop()


def _reduce_pages(
    threads: Threads, reduction: Reduction, scaler: Held, result: AffineExpr, terms: int, slot: int
) -> None:
    """By the matrix unit: all pages to one register."""
    along = {(True, True): cores.SCALAR, (True, False): cores.COLUMN, (False, True): cores.ROW}
    attributes = {
        "fn": reduction.fn,
        "along": along[reduction.rows, reduction.columns],
        "pages": terms,
        "slot": slot,
        "count": 1,
    }
    maps = {"at": (1, [reduction.page(result, AffineExpr.dimension(0))])}
    threads.add(cores.COMPUTE, cores.ReduceOp, [reduction.held.queue, scaler.queue], attributes, maps)


def _fold_pages(threads: Threads, reduction: Reduction, result: AffineExpr, terms: int) -> None:
    """By the vector unit, without a loss: pages are combined place by place, and what is left within one."""
    dtype = carrier_of(reduction.held.type.dtype).name

    def copy(term: AffineExpr, slot: int) -> None:
        attributes = {"slot": slot, "count": 1, "broadcast": cores.NONE}
        maps = {"at": (1, [reduction.page(result, term)])}
        threads.add(cores.COMPUTE, cores.CopyOp, [reduction.held.queue], attributes, maps)

    copy(ZERO, 0)
    if terms > 1:
        counter = threads.open_loop(terms - 1, roles=[cores.COMPUTE])
        copy(plus(counter, 1), 1)
        combine = {"fn": reduction.fn, "dtype": dtype, "arguments": (0, 1), "numbers": ArrayAttr([])}
        threads.add(cores.COMPUTE, cores.MapOp, [], {"slot": 0, "count": 1, **combine})
        threads.close_loop()
    # Sums of rows are in the first column, which is then summed as all columns are.
    for is_along, along in ((reduction.columns, cores.ROW), (reduction.rows, cores.COLUMN)):
        if is_along:
            attributes = {"fn": reduction.fn, "along": along, "dtype": dtype, "slot": 0, "count": 1}
            threads.add(cores.COMPUTE, cores.FoldOp, [], attributes)


def emit_product(
    threads: Threads,
    left: Held,
    right: Held,
    start: Held | None,
    queue: SSAValue,
    registers: int,
    counter: AffineExpr | None,
) -> None:
    """Multiply tiles block by block of results that the registers have room for. With a counter, results are added to
    what the pages hold from its second trip on."""
    _, rows, depth = left.counts
    columns = right.counts[1] if right.form.turned else right.counts[2]
    height, width = product_block(rows, columns, registers)
    loops: list[AffineExpr] = []
    for extent, size in ((rows, height), (columns, width)):
        loops.append(threads.open_loop(extent // size, roles=[cores.COMPUTE]) if extent > size else ZERO)
    row, column = times(loops[0], height), times(loops[1], width)
    place = AffineExpr.dimension(0)
    page = plus(times(plus(row, divided(place, width)), columns), plus(column, remainder(place, width)))
    where = {"slot": 0, "count": height * width}
    step(threads, cores.ACQUIRE)
    if start is not None:
        maps = {"at": (1, [plus(page, start.first)])}
        threads.add(cores.COMPUTE, cores.CopyOp, [start.queue], {**where, "broadcast": cores.NONE}, maps)
    attributes = {**where, "block": (height, width, depth), "left_stride": depth, "right_stride": columns}
    if right.form.turned:
        attributes["transpose"] = True
    maps = {
        "left_at": (0, [plus(times(row, depth), left.first)]),
        "right_at": (0, [plus(column, right.first)]),
    }
    threads.add(cores.COMPUTE, cores.MatmulOp, [left.queue, right.queue], attributes, maps)
    step(threads, cores.COMMIT)
    step(threads, cores.WAIT)
    if counter is not None:
        threads.add(cores.COMPUTE, cores.AccumulateOp, [], {}, {"map": (0, [counter])})
    threads.add(cores.COMPUTE, cores.PackOp, [queue], where, {"at": (1, [page])})
    step(threads, cores.RELEASE)
    for extent, size in ((columns, width), (rows, height)):
        if extent > size:
            threads.close_loop()
    if counter is not None:
        # What else is packed in the loop replaces what is there.
        threads.add(cores.COMPUTE, cores.AccumulateOp, [], {}, {"map": (0, [ZERO])})
