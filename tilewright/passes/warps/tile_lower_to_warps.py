"""Assign layouts over warps, lanes and registers to all tiles of a kernel, and insert relayouts as operations.

A tile that has one value everywhere, or is computed from its coordinates, has no layout: it is made where it is used.
If the layouts on both sides of an operation do not correspond, data moves as `plan_relayout` states: within a warp by
`tile.relayout`, between warps through a buffer of the block, with a barrier before the store, so that all warps have
read the previous contents, and one before the load. The terms of a sum that several warps hold become a dim of their
own.

Before (sm_90a):
    func.func @main(%x: tensor<4x256xf32>) -> tensor<4xf32> {
      %y = array.call(%x) {callee = "sums"} : tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    tile.kernel() {sym_name = "sums", grid = array<i64: 4>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x256xf32>>, %out: !tile.ref<tensor<4xf32>>, %i: index):
      %row = tile.load(%x, %i) {map = affine_map<(d0)[s0] -> (s0, d0)>} : tensor<256xf32>
      %sum = tile.reduce(%row) {fn = "add", axes = array<i64: 0>} : tensor<f32>
      tile.store(%sum, %out, %i) {map = affine_map<()[s0] -> (s0)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<4x256xf32>) -> tensor<4xf32> {
      %y = array.call(%x) {callee = "sums"} : tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    tile.kernel() {sym_name = "sums", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<4x256xf32>>, %out: !tile.ref<tensor<4xf32>>):
      scheduled.parallel() {extents = array<i64: 4>, grain = 1 : index, warps = 4 : index} do {
      ^bb0(%i: index):
        %3 = tile.load(%x, %i) {map = affine_map<(d0)[s0] -> (s0, d0)>}
            : tensor<256xf32, "(256) : [2@warp 32@lane 4@reg]">
        %4 = tile.reduce(%3) {fn = "add", axes = array<i64: 0>}
            : tensor<f32, "() : [] + partial[add 2@warp add 32@lane add 4@reg]">
        %5 = tile.relayout(%4) {layout = "() : [] + partial[add 2@warp add 32@lane]", strict = false}
            : tensor<f32, "() : [] + partial[add 2@warp add 32@lane]">
        %6 = tile.relayout(%5) {layout = "() : [] + replica[32@lane] + partial[add 2@warp]", strict = false}
            : tensor<f32, "() : [] + replica[32@lane] + partial[add 2@warp]">
        %7 = scheduled.terms(%6) {fn = "add"} : tensor<2xf32, "(2) : [2@warp] + replica[32@lane]">
        %8 = scheduled.alloc() : !tile.ref<tensor<2xf32>, "block", "(2) : [2@mem.shared]">
        scheduled.barrier() {scope = "block"}
        tile.store(%7, %8) {map = affine_map<(d0) -> (d0)>}
        scheduled.barrier() {scope = "block"}
        %9 = tile.load(%8) {map = affine_map<(d0) -> (d0)>} : tensor<2xf32, "(2) : [2@reg] + replica[32@lane 2@warp]">
        %10 = tile.reduce(%9) {fn = "add", axes = array<i64: 0>} : tensor<f32, "() : [] + replica[32@lane 2@warp]">
        %11 = tile.relayout(%10) {layout = "() : [] + replica[2@warp 32@lane]", strict = false}
            : tensor<f32, "() : [] + replica[2@warp 32@lane]">
        %12 = tile.relayout(%11) {layout = "() : [] + replica[2@warp 32@lane]", strict = false} : tensor<f32>
        tile.store(%12, %out, %i) {map = affine_map<()[s0] -> (s0)>}
        scheduled.end()
      }
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace
from xdsl.dialects.builtin import IndexType, TensorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright.dialects import scheduled, tile
from tilewright.dialects.base import array_type, layout_text, rebuilt, tensor
from tilewright.dialects.rewriting import erase, insert_before, yielded
from tilewright.dialects.scheduled import asynchronous
from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.layout import Iter, Layout, row_major
from tilewright.layout.axes import Kind, kind_of
from tilewright.layout.differences import in_memory
from tilewright.layout.dims import static
from tilewright.layout.iters import Replica
from tilewright.layout.relayout import Move, Reason, Step, plan_relayout
from tilewright.machines.machine import Machine
from tilewright.passes.base import Remark, Unit
from tilewright.passes.layouts.layout_costs import image, preimage, terms
from tilewright.passes.layouts.layout_inference import Inference, infer_layouts
from tilewright.passes.layouts.layout_rules import Flow, Folded, Same, Spread, flows, is_tile, location_of
from tilewright.passes.layouts.layout_spaces import Space, dealt
from tilewright.passes.warps.block_warps import group_families, spilled_registers, warps_of
from tilewright.passes.warps.warp_space import SCALAR, WarpSpace, warp_families
from tilewright.primitives import ArrayType
from tilewright.schedules import TileKernel


class TileLowerToWarpsPass(msgspec.Struct, frozen=True):
    """`warps`: how many share a point of the grid, where a kernel does not state it and no tile needs more."""

    name: ClassVar[str] = "tile-lower-to-warps"
    warps: int = 4

    def apply(self, unit: Unit) -> None:
        for kernel in unit.timed_kernels(self.name):
            warps = warps_of(kernel, unit.machine, self.warps)
            schedule = unit.schedules.get(kernel.sym_name)
            if isinstance(schedule, TileKernel):
                unit.schedules[kernel.sym_name] = msgspec.structs.replace(schedule, warps=warps)
            if (spilled := spilled_registers(kernel, unit.machine, warps)) is not None:
                unit.remarks.append(_spills(kernel, unit.machine, *spilled))
            families = (*group_families(kernel, unit.machine), *warp_families(unit.machine), SCALAR)
            space = WarpSpace(unit.machine, warps, families)
            lowered = lower_to_warps(kernel, space, infer_layouts(kernel, space), warps)
            insert_before(kernel, lowered)
            erase(kernel)


def _spills(kernel: tile.KernelOp, machine: Machine, needed: int, room: int) -> Remark:
    reason = f"a thread's part of a tile needs {needed} registers, on {machine.name} it has {room}: use smaller tiles"
    return Remark(TileLowerToWarpsPass.name, kernel.sym_name, "spills registers to memory", reason)


def lower_to_warps(kernel: tile.KernelOp, space: Space, inferred: Inference, warps: int) -> tile.KernelOp:
    """The scheduled form of one kernel: each point of its grid is a block of `warps` warps.

    Raises:
        UnsupportedOnTargetError: an operation that warps cannot do yet.
    """
    result = tile.kernel(kernel.sym_name, (), [tile.ref_type(r) for r in kernel.refs], kernel.effects)
    result.stages = kernel.stages
    body = Block(arg_types=[IndexType() for _ in kernel.grid])
    lowering = _Lowering(space, inferred, warps)
    lowering.values.update(zip(kernel.refs, result.refs, strict=True))
    lowering.values.update(zip(kernel.indices, body.args, strict=True))
    lowering.lower_block(kernel.body.block, body)
    body.add_op(scheduled.EndOp())
    parallel = scheduled.ParallelOp(extents=kernel.grid, grain=1, warps=warps, body=Region(body))
    result.body.block.add_op(parallel)
    result.body.block.add_op(tile.YieldOp())
    return result


@lru_cache(maxsize=4096)
def parsed(text: str) -> Layout:
    """The layout of a type's text."""
    return Layout.parse(text)


def layout_of(value: SSAValue) -> Layout | None:
    """The layout of a scheduled tile; None for one that is computed at its uses."""
    text = layout_text(value)
    return parsed(text) if text else None


@dataclass
class _Lowering:
    """Writes operations into new blocks. `values`: what each old value has become. `places`: the layouts that a new
    value is in already, by the block in which it was moved there."""

    space: Space
    inferred: Inference
    warps: int
    values: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    places: dict[tuple[SSAValue, Layout, Block], SSAValue] = field(
        default_factory=dict[tuple[SSAValue, Layout, Block], SSAValue]
    )

    # ---- blocks -----------------------------------------------------------------------------------------------------

    def lower_block(self, old: Block, new: Block) -> None:
        """All operations of a block but the one that ends it."""
        for op in old.ops:
            if isinstance(op, tile.YieldOp):
                return
            if isinstance(op, tile.ForOp):
                self._lower_for(op, new)
            elif isinstance(op, tile.IfOp):
                self._lower_if(op, new)
            elif isinstance(op, tile.LoadOp):
                self._lower_load(op, new)
            elif isinstance(op, tile.StoreOp):
                self._lower_store(op, new)
            elif isinstance(op, tile.DotOp):
                self._lower_dot(op, new)
            elif isinstance(op, tile.IotaOp):
                self._lower_iota(op, new)
            elif isinstance(op, tile.ScanOp):
                self._lower_scan(op, new)
            elif isinstance(op, tile.RelayoutOp):
                self.values[op.result] = self._moved(self.values[op.source], self._wanted(op.result), new)
            elif any(is_tile(v) for v in (*op.operands, *op.results)):
                self._lower_tiles(op, new)
            else:
                self._copy(op, [self.values[operand] for operand in op.operands], [r.type for r in op.results], new)

    def _copy(
        self,
        op: Operation,
        operands: Sequence[SSAValue],
        types: Sequence[Attribute],
        new: Block,
        regions: Sequence[Region] = (),
    ) -> Operation:
        made = rebuilt(op, operands, types, regions)
        made.location = op.location
        new.add_op(made)
        self.values.update(zip(op.results, made.results, strict=True))
        return made

    def _wanted(self, value: SSAValue) -> Layout | None:
        """The layout that an old value should get. A tile that is only wanted in a buffer stays in registers until a
        matmul puts it there."""
        found = self.inferred.layout(value)
        return None if found is None or in_memory(found) else found

    # ---- control ----------------------------------------------------------------------------------------------------

    def _lower_for(self, op: tile.ForOp, new: Block) -> None:
        arguments = op.body.block.args[1:]
        kept = [self._kept(argument) for argument in arguments]
        initial = [self._moved(self.values[v], own, new) for v, own in zip(op.initial, kept, strict=True)]
        types = [_typed(array_type(a), own) for a, own in zip(arguments, kept, strict=True)]
        inner = Block(arg_types=[IndexType(), *types])
        self.values.update(zip(op.body.block.args, inner.args, strict=True))
        self.lower_block(op.body.block, inner)
        following = yielded(op.body.block)
        moved = [self._moved(self.values[v], own, inner) for v, own in zip(following, kept, strict=True)]
        inner.add_op(tile.YieldOp(arguments=moved))
        symbols = [self.values[s] for s in op.symbols]
        made = self._copy(op, [*initial, *symbols], types, new, [Region(inner)])
        for before, after in zip(op.results, made.results, strict=True):
            self.values[before] = self._moved(after, self._wanted(before), new)

    def _kept(self, value: SSAValue) -> Layout | None:
        """The layout of a tile that a loop carries or a branch gives; scalars have none."""
        if not is_tile(value):
            return None
        return self._wanted(value) or self._anywhere(array_type(value))

    def _lower_if(self, op: tile.IfOp, new: Block) -> None:
        kept = [self._kept(result) for result in op.results]
        regions: list[Region] = []
        for region in (op.then, op.otherwise):
            inner = Block()
            self.lower_block(region.block, inner)
            given = yielded(region.block)
            moved = [self._moved(self.values[v], own, inner) for v, own in zip(given, kept, strict=True)]
            inner.add_op(tile.YieldOp(arguments=moved))
            regions.append(Region(inner))
        types = [_typed(array_type(r), own) for r, own in zip(op.results, kept, strict=True)]
        self._copy(op, [self.values[op.condition]], types, new, regions)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _lower_load(self, op: tile.LoadOp, new: Block) -> None:
        layout = self._wanted(op.result)
        if layout is None and is_tile(op.result):
            layout = self._anywhere(array_type(op.result))
        symbols = [self._moved(self.values[s], layout, new) if is_tile(s) else self.values[s] for s in op.symbols]
        self._copy(op, [self.values[op.source], *symbols], [_typed(array_type(op.result), layout)], new)

    def _lower_store(self, op: tile.StoreOp, new: Block) -> None:
        value = self.values[op.value]
        layout = layout_of(value) or self._wanted(op.value)
        if layout is None and is_tile(op.value):
            layout = self._anywhere(array_type(op.value))
        symbols = [self._moved(self.values[s], layout, new) if is_tile(s) else self.values[s] for s in op.symbols]
        self._copy(op, [self._moved(value, layout, new), self.values[op.destination], *symbols], [], new)

    def _anywhere(self, type: ArrayType) -> Layout:
        """A layout for a tile that no other operation asks anything of."""
        return next(iter(self.space.distributions(type, type.rank - 1)))

    # ---- tiles ------------------------------------------------------------------------------------------------------

    def _lower_tiles(self, op: Operation, new: Block) -> None:
        """An operation whose operands and results flow into each other."""
        wanted = [self._wanted(r) for r in op.results]
        operands = [self.values[operand] for operand in op.operands]
        is_free = not isinstance(op, tile.ReduceOp) and not any(wanted)
        if is_free and all(layout_of(operand) is None for operand in operands):
            self._copy(op, operands, [r.type for r in op.results], new)
            return
        if self._is_regrouped(op, operands):
            self.values[op.results[0]] = self._regrouped(op, operands, wanted[0], new)
            return
        starts: dict[SSAValue, Layout | None] = {}
        for flow in flows(op):
            moved, starts[flow.target] = self._through(flow, self.values[flow.source], op, new)
            operands = [moved if old is flow.source else v for old, v in zip(op.operands, operands, strict=True)]
        types = [_typed(array_type(r), starts.get(r, own)) for r, own in zip(op.results, wanted, strict=True)]
        made = self._copy(op, operands, types, new)
        for result, made_result, own in zip(op.results, made.results, wanted, strict=True):
            moved = self._moved(made_result, own or _combined(layout_of(made_result)), new)
            self.values[result] = moved if is_tile(result) else self._plain(moved, new)

    def _lower_iota(self, op: tile.IotaOp, new: Block) -> None:
        """An iota whose index tiles, if any, are moved to one layout."""
        symbols = [self.values[s] for s in op.symbols]
        layout = next((each for each in map(layout_of, symbols) if each is not None), None)
        moved = [self._moved(s, layout, new) for s in symbols]
        (result,) = self._copy(op, moved, [_typed(array_type(op.result), layout)], new).results
        self.values[op.result] = self._moved(result, self._wanted(op.result), new)

    def _lower_scan(self, op: tile.ScanOp, new: Block) -> None:
        """A line is within a warp: its parts are in registers and lanes."""
        if len(op.operands) > 1:
            raise _not_yet(op, "scans that start from something")
        if op.fn == "multiply" and array_type(op.operands[0]).dtype.is_float:
            # The product of a part may overflow where that of the whole line does not.
            raise _not_yet(op, "cumulative products of floats")
        value, wanted = self.values[op.operands[0]], self._wanted(op.results[0])
        type, axis = array_type(op.operands[0]), op.axis
        near = (layout for layout in (layout_of(value), wanted) if layout is not None)
        layout = next((each for each in near if _is_within_warps(each, axis)), None) or self._line_by_line(type, axis)
        (result,) = self._copy(op, [self._moved(value, layout, new)], [_typed(type, layout)], new).results
        self.values[op.results[0]] = self._moved(result, wanted, new)

    def _line_by_line(self, type: ArrayType, axis: int) -> Layout:
        """No line of an axis is cut between warps. Lanes are along the last dim, as memory is."""
        lanes, last = self.space.machine.axes["lane"], type.rank - 1
        order = [last, *(dim for dim in reversed(range(last)) if dim != axis), *([axis] if axis != last else [])]
        widest = min(4, -(-type.shape[axis] // lanes)) if axis == last else 1
        return dealt(type.shape, order, (("lane", lanes), ("warp", self.warps)), widest, ("warp", axis))

    def _is_regrouped(self, op: Operation, operands: Sequence[SSAValue]) -> bool:
        """Whether no layout of the result holds what the operands hold where they hold it."""
        if isinstance(op, tile.SliceOp | tile.ConcatOp):
            return True
        held = layout_of(operands[0])
        if not isinstance(op, tile.ReshapeOp) or held is None:
            return False
        (flow,) = flows(op)
        return image(flow.view, held) is None

    def _regrouped(self, op: Operation, operands: Sequence[SSAValue], layout: Layout | None, new: Block) -> SSAValue:
        """Through a buffer in the order of elements, which is read by the indices of the result."""
        result = array_type(op.results[0])
        whole = result if isinstance(op, tile.ConcatOp) else array_type(operands[0])
        given = [self._moved(v, layout_of(v) or self._anywhere(array_type(v)), new) for v in operands]
        between = row_major(whole.shape, f"mem.{self.space.machine.memories[0].name}")
        buffer = scheduled.AllocOp(result=tile.ref(whole, scheduled.BLOCK, str(between)))
        stores = [
            tile.StoreOp(value=value, destination=buffer.result, map=map)
            for value, map in zip(given, _written(op), strict=True)
        ]
        type = _typed(result, layout or self._anywhere(result))
        load = tile.LoadOp(source=buffer.result, map=_read(op), result=type)
        new.add_ops([buffer, _barrier(), *stores, _barrier(), load])
        return load.result

    def _lower_dot(self, op: tile.DotOp, new: Block) -> None:
        """Operands where the atom wants them: in registers, or in buffers that are written between two barriers. A
        matmul that continues by itself is waited for."""
        atom = self.inferred.atom(op)
        accumulator = self._moved(self.values[op.accumulator], atom.accumulator, new)
        operands: list[SSAValue] = []
        stores: list[Operation] = []
        for old, wanted in ((op.left, atom.left), (op.right, atom.right)):
            value, type = self.values[old], array_type(old)
            if not in_memory(wanted):
                operands.append(self._moved(value, wanted, new))
                continue
            value = self._moved(value, layout_of(value) or self._anywhere(type), new)
            buffer = scheduled.AllocOp(result=tile.ref(type, scheduled.BLOCK, str(wanted)))
            new.add_op(buffer)
            stores.append(_store_all(value, buffer.result))
            operands.append(buffer.result)
        fences = [asynchronous.FenceOp()] if atom.asynchronous else []
        new.add_ops([_barrier(), *stores, *fences, _barrier()] if stores else [])
        left, right = operands
        made = scheduled.MmaOp(
            left=left,
            right=right,
            accumulator=accumulator,
            atom=atom.name,
            asynchronous=atom.asynchronous,
            result=accumulator.type,
        )
        made.location = op.location
        new.add_op(made)
        result = made.result
        if atom.asynchronous:
            done = scheduled.MmaWaitOp(accumulator=result, pending=0, result=result.type)
            new.add_op(done)
            result = done.result
        self.values[op.result] = self._moved(result, self._wanted(op.result), new)

    def _target(self, flow: Flow, op: Operation) -> Layout | None:
        """The layout of a flow's result: by default that of an operand."""
        target = self._wanted(flow.target)
        if target is not None or not is_tile(flow.target) or not isinstance(flow.view, Same):
            return target
        held = [layout_of(self.values[operand]) for operand in op.operands if operand in self.values]
        return next((layout for layout in held if layout is not None), None)

    def _through(self, flow: Flow, source: SSAValue, op: Operation, new: Block) -> tuple[SSAValue, Layout | None]:
        """The operand of a flow where it has to be, and where the result then is."""
        target = self._target(flow, op)
        held = layout_of(source)
        if isinstance(flow.view, Folded) and flow.combines is not None:
            if held is None:
                held = self._anywhere(array_type(source))
                source = self._moved(source, held, new)
            return source, terms(flow.view, held, flow.combines)
        if held is None or isinstance(flow.view, Spread):
            start = None if target is None else preimage(flow.view, target)
            if start is not None:
                return self._moved(source, start, new), target
        result = None if held is None else image(flow.view, held)
        if result is None:
            raise _not_yet(op, f"operations such as `{op.name.removeprefix('tile.')}` that regroup elements")
        if len(op.operands) > 1 and target is not None and result != target:
            start = preimage(flow.view, target)
            if start is None:
                raise _not_yet(op, f"operations such as `{op.name.removeprefix('tile.')}` on tiles in such layouts")
            return self._moved(source, start, new), target
        return source, result

    # ---- movement ---------------------------------------------------------------------------------------------------

    def _moved(self, value: SSAValue, layout: Layout | None, new: Block) -> SSAValue:
        """The value in a layout: itself where it is there already."""
        held = layout_of(value)
        if layout is None or held == layout or not isinstance(value.type, TensorType):
            return value
        known = self.places.get((value, layout, new))
        if known is not None:
            return known
        result = self._relayout(value, layout, new) if held is None else self._along_plan(value, held, layout, new)
        self.places[value, layout, new] = result
        return result

    def _plain(self, value: SSAValue, new: Block) -> SSAValue:
        """A scalar that all threads have, without a layout."""
        held = layout_of(value)
        if held is None:
            return value
        op = tile.RelayoutOp(source=value, layout=str(held), strict=False, result=_typed(array_type(value), None))
        new.add_op(op)
        return op.result

    def _along_plan(self, value: SSAValue, held: Layout, layout: Layout, new: Block) -> SSAValue:
        plan = plan_relayout(held, layout, array_type(value).dtype, self.space.machine)
        if isinstance(plan, Reason):
            raise CompilerBug(f"no way from {held} to {layout}: {plan}")
        steps = list(plan.steps)
        if not steps:  # other numbers for the same registers
            return self._relayout(value, layout, new)
        while steps:
            step = steps.pop(0)
            if step.move is not Move.STORE:
                value = self._relayout(value, step.layout, new)
            elif step.layout.partial:
                value = self._combine_warps(value, _behind_all_warps(steps), new)
            else:
                value = self._trip(value, step, steps.pop(0).layout if steps else layout, new)
        return value if layout_of(value) == layout else self._relayout(value, layout, new)

    def _relayout(self, value: SSAValue, layout: Layout, new: Block) -> SSAValue:
        op = tile.RelayoutOp(source=value, layout=str(layout), strict=False, result=_typed(array_type(value), layout))
        new.add_op(op)
        return op.result

    def _trip(self, value: SSAValue, store: Step, layout: Layout, new: Block) -> SSAValue:
        """Through a buffer of the block that is as the step states."""
        return self._stored_and_loaded(value, store.layout, layout, new)

    def _stored_and_loaded(self, value: SSAValue, between: Layout, layout: Layout, new: Block) -> SSAValue:
        type = array_type(value)
        buffer = scheduled.AllocOp(result=tile.ref(type, scheduled.BLOCK, str(between)))
        in_place = AffineMap.identity(type.rank)
        load = tile.LoadOp(source=buffer.result, map=in_place, result=_typed(type, layout))
        new.add_ops([buffer, _barrier(), _store_all(value, buffer.result), _barrier(), load])
        return load.result

    def _combine_warps(self, value: SSAValue, layout: Layout, new: Block) -> SSAValue:
        """Every warp stores its terms, reads those of all and combines them, in one order."""
        held = layout_of(value)
        terms_held = [t for t in held.partial if kind_of(t.axis) == Kind.WARP] if held is not None else []
        functions = {t.op for t in terms_held}
        if held is None or layout.partial or len(functions) != 1 or len(terms_held) != len(held.partial):
            raise CompilerBug(f"terms of warps alone are combined, all of them by one function, not {held}")
        type, count = array_type(value), prod(static(t.extent) for t in terms_held)
        every = ArrayType((count, *type.shape), type.dtype)
        (function,) = functions
        split = scheduled.TermsOp(source=value, fn=function, result=_typed(every, _as_dim(held, count)))
        new.add_op(split)
        registers = _free_registers(layout)
        together = replace(layout, shape=every.shape, shard=((Iter(count, registers, "reg"),), *layout.shard))
        between = row_major(every.shape, f"mem.{self.space.machine.memories[0].name}")
        loaded = self._stored_and_loaded(split.result, between, together, new)
        combined = tile.ReduceOp(arguments=[loaded], fn=function, axes=(0,), outputs=[_typed(type, layout)])
        new.add_op(combined)
        return combined.results[0]


def _is_within_warps(layout: Layout, dim: int) -> bool:
    """Whether a warp has all of a line along a dim."""
    return not layout.partial and all(kind_of(digit.axis) in (Kind.REGISTER, Kind.LANE) for digit in layout.shard[dim])


def _combined(layout: Layout | None) -> Layout | None:
    """The layout of a value whose terms have been combined, with copies where they were."""
    if layout is None or not layout.partial:
        return None
    copies = [Replica(t.extent, t.stride, t.axis) for t in layout.partial if kind_of(t.axis) != Kind.REGISTER]
    return replace(layout, replica=(*layout.replica, *copies), partial=())


def _behind_all_warps(steps: list[Step]) -> Layout:
    """Remove the leading steps that combine partial results across warps; the layout after them. One trip through
    shared memory combines all: in one trip for each term, warps with other terms would store to the same addresses."""
    layout = steps.pop(0).layout
    while layout.partial and len(steps) > 1 and steps[0].move is Move.STORE:
        del steps[0]
        layout = steps.pop(0).layout
    return layout


def _as_dim(layout: Layout, count: int) -> Layout:
    """The layout of the `count` terms as a tile with a dim in front that counts them."""
    counted = tuple(Iter(term.extent, term.stride, term.axis) for term in layout.partial)
    return replace(layout, shape=(count, *layout.shape), shard=(counted, *layout.shard), partial=())


def _free_registers(layout: Layout) -> int:
    """The first registers of a thread that the layout does not use."""
    return max((part.stride * static(part.extent) for part in layout.all_iters if part.axis == "reg"), default=1)


def _written(op: Operation) -> list[AffineMap]:
    """Offsets of the operands in the buffer of a regrouping operation."""
    if not isinstance(op, tile.ConcatOp):
        return [AffineMap.identity(array_type(op.operands[0]).rank)]
    axis, start = op.axis, 0
    maps: list[AffineMap] = []
    for operand in op.operands:
        type = array_type(operand)
        dims = [AffineExpr.dimension(dim) + (start if dim == axis else 0) for dim in range(type.rank)]
        maps.append(AffineMap(type.rank, 0, tuple(dims)))
        start += type.shape[axis]
    return maps


def _read(op: Operation) -> AffineMap:
    """Offsets of the result's elements in the buffer of a regrouping operation."""
    rank = array_type(op.results[0]).rank
    dims = [AffineExpr.dimension(dim) for dim in range(rank)]
    if isinstance(op, tile.SliceOp):
        starts, strides = op.starts, op.strides
        return AffineMap(
            rank, 0, tuple(d * stride + start for d, start, stride in zip(dims, starts, strides, strict=True))
        )
    if isinstance(op, tile.ConcatOp):
        return AffineMap.identity(rank)
    number: AffineExpr = AffineExpr.constant(0)
    for dim, size in zip(dims, array_type(op.results[0]).shape, strict=True):
        number = number * size + dim
    source = array_type(op.operands[0]).shape
    places = [number // prod(source[dim + 1 :]) % size for dim, size in enumerate(source)]
    return AffineMap(rank, 0, tuple(places))


def _store_all(value: SSAValue, buffer: SSAValue) -> tile.StoreOp:
    """A tile stored in a buffer of its shape."""
    in_place = AffineMap.identity(array_type(value).rank)
    return tile.StoreOp(value=value, destination=buffer, map=in_place)


def _barrier() -> scheduled.BarrierOp:
    return scheduled.BarrierOp(scope=scheduled.BLOCK)


def _typed(type: ArrayType, layout: Layout | None) -> TensorType[Any]:
    return tensor(type, "" if layout is None else str(layout))


def _not_yet(op: Operation, what: str) -> UnsupportedOnTargetError:
    return UnsupportedOnTargetError(
        f"{what} are not compiled for GPUs yet", location=location_of(op), help="compile for the cpu target"
    )
