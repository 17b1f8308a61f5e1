"""Turn every group into a tile kernel and a call of it; groups with equal bodies share a kernel.

The tile sizes, and with them the grid, are chosen here from the machine's caches. Lanes of a tile that lie outside an
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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.ir import SSAValue

from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type
from tilewright.passes.array_fuse_attention import attention_parts
from tilewright.passes.base import Unit, blocks_of
from tilewright.passes.fusion import structural_key
from tilewright.passes.lower_contract_group import (
    lower_attention_group,
    lower_contract_group,
    lower_convolve_group,
    plan_attention,
    plan_contract,
    plan_convolve,
)
from tilewright.passes.lower_loop_group import lower_loop_group, plan_loop
from tilewright.passes.lower_ordered_group import lower_ordered_group, lower_scatter_group, plan_ordered
from tilewright.passes.tile_builder import TileBuilder, locate

Fill = Callable[[TileBuilder, Sequence[SSAValue], Sequence[SSAValue]], None]


@dataclass(frozen=True)
class ArrayLowerToTilePass:
    """Groups with equal bodies share a kernel: a model's layers call one kernel."""

    name: ClassVar[str] = "array-lower-to-tile"

    def apply(self, unit: Unit) -> None:
        known: dict[tuple[object, ...], str] = {}
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.FusedOp):
                    _replace(unit, op, known)


def _replace(unit: Unit, group: array.FusedOp, known: dict[tuple[object, ...], str]) -> None:
    key = (group.kind.data, structural_key(group.body))
    name = known.get(key)
    if name is None:
        name = f"{group.kind.data}_{len(known)}"
        known[key] = name
        unit.module.body.block.add_op(_lower(unit, group, name))
    call = array.CallOp.make(list(group.operands), {"callee": name}, [r.type for r in group.results])
    call.location = group.location
    block = group.parent_block()
    if block is not None:
        block.insert_op_before(call, group)
    for old, new in zip(group.results, call.results, strict=True):
        old.replace_all_uses_with(new)
    group.detach()
    group.erase()


def _lower(unit: Unit, group: array.FusedOp, name: str) -> tile.KernelOp:
    grid, fill = _GROUPS[group.kind.data](unit, group)
    inputs = [tile.ref(array_type(o)) for o in group.operands]
    outputs = [tile.ref(array_type(r)) for r in group.results]
    effects = [*[tile.IN] * len(inputs), *[tile.OUT] * len(outputs)]
    kernel = tile.kernel(name, grid, [*inputs, *outputs], effects)
    refs: dict[SSAValue, SSAValue] = dict(zip(group.body.block.args, kernel.refs, strict=False))
    builder = TileBuilder(kernel.body.block, refs)
    fill(builder, kernel.indices, kernel.refs[len(inputs) :])
    kernel.body.block.add_op(tile.YieldOp.make([], {}, []))
    for block in (region.block for op in kernel.walk() for region in op.regions):
        locate(block.first_op, group.location)
    return kernel


def _loop(unit: Unit, group: array.FusedOp) -> tuple[tuple[int, ...], Fill]:
    plan = plan_loop(group, unit.machine)
    return plan.grid, lambda builder, indices, outputs: lower_loop_group(group, plan, builder, indices, outputs)


def _contract(unit: Unit, group: array.FusedOp) -> tuple[tuple[int, ...], Fill]:
    plan = plan_contract(group, unit.machine, unit.threads)
    return plan.grid, lambda builder, indices, outputs: lower_contract_group(group, plan, builder, indices, outputs)


def _convolve(unit: Unit, group: array.FusedOp) -> tuple[tuple[int, ...], Fill]:
    plan = plan_convolve(group, unit.machine, unit.threads)
    return plan.grid, lambda builder, indices, outputs: lower_convolve_group(group, plan, builder, indices, outputs)


def _attention(unit: Unit, group: array.FusedOp) -> tuple[tuple[int, ...], Fill]:
    parts = attention_parts(group)
    plan = plan_attention(array_type(parts.scores).shape, unit.machine)
    return plan.grid, lambda builder, indices, outputs: lower_attention_group(
        group, parts, plan, builder, indices, outputs
    )


def _ordered(unit: Unit, group: array.FusedOp) -> tuple[tuple[int, ...], Fill]:
    plan = plan_ordered(group)
    return plan.grid, lambda builder, indices, outputs: lower_ordered_group(group, plan, builder, indices, outputs)


def _scatter(unit: Unit, group: array.FusedOp) -> tuple[tuple[int, ...], Fill]:
    return (), lambda builder, indices, outputs: lower_scatter_group(group, builder, outputs)


_GROUPS: dict[str, Callable[[Unit, Any], tuple[tuple[int, ...], Fill]]] = {
    "loop": _loop,
    "contract": _contract,
    "convolve": _convolve,
    "attention": _attention,
    "scan": _ordered,
    "sort": _ordered,
    "arg_reduce": _ordered,
    "scatter": _scatter,
}
