"""Lower every group to a tile kernel and a call of it; groups with equal bodies share a kernel.

The tile sizes, and with them the grid, are chosen here from the machine's caches. Lanes of a tile that are outside an
array are masked by the load and the store, so sizes that do not divide need nothing more.

Before:
    func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
      %sum = array.fused(%x, %y) {kind = "loop", why = "add"} do {
      ^bb0(%a: tensor<8xf32>, %b: tensor<8xf32>):
        %c = array.map(%a, %b) {fn = "add"} : tensor<8xf32>
        array.yield(%c)
      } : tensor<8xf32>
      %again = array.fused(%sum, %y) {kind = "loop", why = "add"} do {
      ^bb0(%a: tensor<8xf32>, %b: tensor<8xf32>):
        %c = array.map(%a, %b) {fn = "add"} : tensor<8xf32>
        array.yield(%c)
      } : tensor<8xf32>
      func.return %again : tensor<8xf32>
    }
After:
    func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
      %sum = array.call(%x, %y) {callee = "loop_0"} : tensor<8xf32>
      %again = array.call(%sum, %y) {callee = "loop_0"} : tensor<8xf32>
      func.return %again : tensor<8xf32>
    }
    tile.kernel() {sym_name = "loop_0", grid = array<i64: 1>, effects = ["in", "in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<8xf32>>, %y: !tile.ref<tensor<8xf32>>, %out: !tile.ref<tensor<8xf32>>, %i: index):
      %a = tile.load(%x) {map = affine_map<(d0) -> (d0)>} : tensor<8xf32>
      %b = tile.load(%y) {map = affine_map<(d0) -> (d0)>} : tensor<8xf32>
      %c = tile.map(%a, %b) {fn = "add"} : tensor<8xf32>
      tile.store(%c, %out) {map = affine_map<(d0) -> (d0)>}
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

import msgspec
from xdsl.ir import SSAValue

from tilewright import schedules
from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type, tensor
from tilewright.dialects.rewriting import erase, insert_before
from tilewright.errors import CompilerBug
from tilewright.passes.array.array_fuse_attention import attention_parts
from tilewright.passes.array.fusion import structural_key
from tilewright.passes.base import Remark, Unit, blocks_of
from tilewright.passes.fallbacks import Fallback
from tilewright.passes.kernels.group_stages import Stage
from tilewright.passes.kernels.lower_attention_group import (
    AttentionParts,
    AttentionPlan,
    attention_sizes,
    lower_attention_group,
)
from tilewright.passes.kernels.lower_contract_group import ContractPlan, lower_contract_group
from tilewright.passes.kernels.lower_convolve_group import lower_convolve_group
from tilewright.passes.kernels.lower_loop_group import LoopPlan, loop_plan, lower_loop_group
from tilewright.passes.kernels.lower_ordered_group import ordered_op, ordered_plan, ordered_stages
from tilewright.passes.kernels.lower_reshape_group import ReshapePlan, lower_reshape_group, reshape_plan
from tilewright.passes.kernels.lower_scatter_group import lower_scatter_group, scatter_of, scatter_rows
from tilewright.passes.kernels.lower_update_group import update_stage
from tilewright.passes.kernels.planners import KernelPlanner, planner_for
from tilewright.passes.kernels.schedule_choice import (
    chosen_schedule,
    requested_schedule,
    schedule_tile_kernels,
    with_level,
)
from tilewright.passes.kernels.tile_builder import TileBuilder, locate
from tilewright.primitives import ArrayType

Fill = Callable[[TileBuilder, Sequence[SSAValue], Sequence[SSAValue]], None]


class _Kernel(msgspec.Struct, frozen=True):
    """One of the kernels of a group: its name and the types of what it computes."""

    name: str
    results: tuple[ArrayType, ...]


class ArrayLowerToTilePass(msgspec.Struct, frozen=True):
    """Groups with equal bodies share a kernel: a model's layers call one kernel."""

    name: ClassVar[str] = "array-lower-to-tile"

    def apply(self, unit: Unit) -> None:
        known: dict[tuple[object, ...], list[_Kernel]] = {}
        planner = planner_for(unit.machine, unit.threads)
        schedule_tile_kernels(unit, planner)
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.FusedOp):
                    _replace(unit, planner, op, known)


def _replace(
    unit: Unit, planner: KernelPlanner, group: array.FusedOp, known: dict[tuple[object, ...], list[_Kernel]]
) -> None:
    key = (group.kind, structural_key(group.body))
    kernels = known.get(key)
    if kernels is None:
        name = f"{group.kind}_{len(known)}"
        with unit.timed(name, ArrayLowerToTilePass.name):
            kernels = _lower(unit, planner, group, name, _fallback_key(group, key))
        known[key] = kernels
    values = list(group.operands)
    for kernel in kernels:
        call = array.CallOp(arguments=values, callee=kernel.name, outputs=[tensor(t) for t in kernel.results])
        call.location = group.location
        insert_before(group, call)
        values += call.results
    for old, new in zip(group.results, values[-len(group.results) :], strict=True):
        old.replace_all_uses_with(new)
    erase(group)


def _fallback_key(group: array.FusedOp, key: Hashable) -> Hashable:
    """The key of a group's fallback: attention goes by its sizes, which it had when it was fused as well."""
    return attention_sizes(attention_parts(group)) if group.kind == "attention" else key


def _lower(unit: Unit, planner: KernelPlanner, group: array.FusedOp, name: str, key: Hashable) -> list[_Kernel]:
    """Add the kernels of a group to the module. Each reads the operands and what those before it computed."""
    schedule = requested_schedule(unit, planner, group, name, key)
    if schedule is None:
        fallback = _fallback(unit, planner, group, key)
        schedule = with_level(chosen_schedule(planner, group, fallback), unit.fallbacks.of(key).level)
        if fallback.level:
            unit.remarks.append(Remark(ArrayLowerToTilePass.name, name, "smaller tiles", fallback.reason))
    if schedule is not None:
        unit.schedules[name] = schedule
    inputs = [array_type(o) for o in group.operands]
    kernels: list[_Kernel] = []
    stages = _stages(planner, group, schedule)
    for stage in stages:
        results = (*stage.passed, *(stage.results or [array_type(r) for r in group.results]))
        kernels.append(_Kernel(name if stage is stages[-1] else f"{name}_{stage.name}", results))
        unit.fallbacks.keys[kernels[-1].name] = key
        unit.module.body.block.add_op(_kernel(planner, group, stage, kernels[-1], inputs))
        inputs += results
    return kernels


def _fallback(unit: Unit, planner: KernelPlanner, group: array.FusedOp, key: Hashable) -> Fallback:
    fallback = unit.fallbacks.of(key)
    if group.kind == "attention":
        fallback, _ = planner.attention_fallback(attention_parts(group), fallback)
    return fallback


def _kernel(
    planner: KernelPlanner, group: array.FusedOp, stage: Stage, name: _Kernel, inputs: Sequence[ArrayType]
) -> tile.KernelOp:
    written = name.results if stage.updates is None else ()
    effects = [*[tile.IN] * len(inputs), *[tile.OUT] * len(written)]
    if stage.updates is not None:
        effects[stage.updates] = tile.INOUT
    kernel = tile.kernel(name.name, stage.grid, [tile.ref(t) for t in (*inputs, *written)], effects)
    if stage.warps is not None:
        kernel.warps = stage.warps
    if stage.stages is not None:
        kernel.stages = stage.stages
    if stage.passed:
        kernel.in_order = True
    refs: dict[SSAValue, SSAValue] = dict(zip(group.body.block.args, kernel.refs, strict=False))
    builder = TileBuilder(
        kernel.body.block,
        refs,
        sums_in_blocks=planner.sums_in_blocks,
        most_of_window=planner.most_of_window,
    )
    earlier = kernel.refs[len(refs) : len(inputs)]
    outputs = kernel.refs[len(inputs) :] if stage.updates is None else [kernel.refs[stage.updates]]
    stage.fill(builder, kernel.indices, outputs, earlier)
    kernel.body.block.add_op(tile.YieldOp())
    for block in (region.block for op in kernel.walk() for region in op.regions):
        locate(block.first_op, group.location)
    return kernel


def _stages(planner: KernelPlanner, group: array.FusedOp, schedule: schedules.Schedule | None) -> list[Stage]:
    """The kernels of a group by its schedule; those of scatters and updates are not scheduled."""
    match schedule:
        case None:
            shares = planner.scatter_shares
            return [_scatter_stage(group, shares) if group.kind == "scatter" else update_stage(group, shares)]
        case schedules.Loop():
            return [_loop_stage(group, loop_plan(group, schedule))]
        case schedules.Convolution():
            return [_convolve_stage(group, planner.convolve_plan(group, schedule))]
        case schedules.Attention():
            parts = attention_parts(group)
            return [_attention_stage(group, parts, planner.attention_plan(parts, schedule))]
        case schedules.Ordered():
            return ordered_stages(group, ordered_plan(ordered_op(group), schedule), planner.scans_in_turns)
        case schedules.Reshape():
            return [_reshape_stage(reshape_plan(group, schedule))]
        case schedules.VectorMatmul() | schedules.SplitMatmul() | schedules.WarpMatmul() | schedules.CoreMatmul():
            return [_contract_stage(group, planner.contract_plan(group, schedule))]
        case _:
            raise CompilerBug(f"{schedule} is no schedule of a `{group.kind}` group")


def _only(grid: tuple[int, ...], fill: Fill, warps: int | None = None, stages: int | None = None) -> Stage:
    return Stage(grid, lambda builder, indices, outputs, _: fill(builder, indices, outputs), warps=warps, stages=stages)


def _loop_stage(group: array.FusedOp, plan: LoopPlan) -> Stage:
    return _only(plan.grid, lambda builder, indices, outputs: lower_loop_group(group, plan, builder, indices, outputs))


def _contract_stage(group: array.FusedOp, plan: ContractPlan) -> Stage:
    def fill(builder: TileBuilder, indices: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> None:
        lower_contract_group(group, plan, builder, indices, outputs)

    return _only(plan.grid, fill, plan.warps, plan.stages)


def _convolve_stage(group: array.FusedOp, plan: ContractPlan) -> Stage:
    def fill(builder: TileBuilder, indices: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> None:
        lower_convolve_group(group, plan, builder, indices, outputs)

    return _only(plan.grid, fill, plan.warps)


def _attention_stage(group: array.FusedOp, parts: AttentionParts, plan: AttentionPlan) -> Stage:
    def fill(builder: TileBuilder, indices: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> None:
        lower_attention_group(group, parts, plan, builder, indices, outputs)

    return _only(plan.grid, fill, plan.warps)


def _reshape_stage(plan: ReshapePlan) -> Stage:
    return _only(plan.grid, lambda builder, indices, outputs: lower_reshape_group(plan, builder, indices, outputs))


def _scatter_stage(group: array.FusedOp, shares: int) -> Stage:
    rows = scatter_rows(scatter_of(group), shares)

    def fill(builder: TileBuilder, indices: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> None:
        lower_scatter_group(group, rows, builder, indices, outputs)

    return _only(rows.grid, fill)
