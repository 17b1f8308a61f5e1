"""Store arrays in the formats that the user asked for: the types of kernels' arrays say so.

A kernel that is called with arrays of several formats is copied. An array's pages are read and written as a whole then.

Before:
    func.func @main(%x: tensor<32x32xf32>) -> tensor<32x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<32x32xf32>
      func.return %y : tensor<32x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xf32>>, %out: !tile.ref<tensor<32x32xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
      tile.store(%a, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<32x32xf32>) -> tensor<32x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<32x32xf32>
      func.return %y : tensor<32x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xf32>, "", "bfp8">, %out: !tile.ref<tensor<32x32xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
      tile.store(%a, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import Rewriter

from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.base import Remark, Unit, blocks_of
from tilewright.passes.layout_rules import location_of


@dataclass(frozen=True)
class TileStoreArraysPass:
    name: ClassVar[str] = "tile-store-arrays"

    def apply(self, unit: Unit) -> None:
        if not unit.storage:
            return
        formats = _formats(unit)
        made: dict[tuple[str, tuple[str, ...]], str] = {}
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.CallOp):
                    _store_for(unit, op, formats, made)


def _formats(unit: Unit) -> dict[SSAValue, str]:
    """The formats of values of the program, views among them.

    Raises:
        UnsupportedOnTargetError: an array of other than floats should be stored so, or one takes part in control flow.
    """
    block = unit.main.body.block
    last = block.last_op
    outputs = last.operands if isinstance(last, ReturnOp) else ()
    values: list[SSAValue] = [*block.args, *outputs]
    found: dict[SSAValue, str] = {}
    for number, format in unit.storage.items():
        value = values[number]
        if not array_type(value).dtype.is_float:
            raise _refused(value, f"an array of {array_type(value).dtype} is not stored as {format}")
        _spread(value, format, found)
        what = f"input {number}" if number < len(block.args) else f"output {number - len(block.args)}"
        unit.remarks.append(Remark(TileStoreArraysPass.name, what, f"stored as {format}", "asked for"))
    return found


def _spread(value: SSAValue, format: str, found: dict[SSAValue, str]) -> None:
    """A value, what it is a view of, and its views are one array."""
    if value in found:
        return
    found[value] = format
    if isinstance(value.owner, array.ReshapeOp):
        _spread(value.owner.operands[0], format, found)
    elif isinstance(value.owner, array.WhileOp | array.IfOp):
        raise _refused(value, f"what control flow gives is not stored as {format}")
    for use in value.uses:
        if isinstance(use.operation, array.ReshapeOp):
            _spread(use.operation.results[0], format, found)
        elif isinstance(use.operation, array.WhileOp | array.IfOp | array.YieldOp):
            raise _refused(value, f"what takes part in control flow is not stored as {format}")


def _refused(value: SSAValue, what: str) -> UnsupportedOnTargetError:
    error = UnsupportedOnTargetError(what, help="leave its storage as it is")
    owner = value.owner
    first = next((use.operation for use in value.uses), None)
    op = first if isinstance(owner, Block) else owner
    if isinstance(op, Operation):
        error.location = location_of(op)
    return error


def _store_for(
    unit: Unit, call: array.CallOp, formats: dict[SSAValue, str], made: dict[tuple[str, tuple[str, ...]], str]
) -> None:
    """The kernel of a call takes its arrays in their formats."""
    name = call.callee.data
    kernel = unit.kernel(name)
    operands, results = iter(call.operands), iter(call.results)
    wanted: list[str] = []
    for effect in kernel.effect_names:
        value = next(operands) if effect != tile.OUT else None
        result = next(results) if effect != tile.IN else None
        wanted.append(formats.get(value if value is not None else result, ""))  # type: ignore[arg-type]  one is there
    key = (name, tuple(wanted))
    if key not in made:
        made[key] = name if not any(wanted) else _with_formats(unit, kernel, wanted, len(made))
    call.callee = StringAttr(made[key])


def _with_formats(unit: Unit, kernel: tile.KernelOp, wanted: list[str], number: int) -> str:
    """A kernel whose arrays have formats: the kernel itself, where it is called once."""
    calls = [
        op
        for block in blocks_of(unit.main)
        for op in block.ops
        if isinstance(op, array.CallOp) and op.callee.data == kernel.sym_name.data
    ]
    if len(calls) > 1:
        copy = kernel.clone()
        copy.sym_name = StringAttr(f"{kernel.sym_name.data}_stored_{number}")
        unit.module.body.block.add_op(copy)
        kernel = copy
    for ref, format in zip(list(kernel.refs), wanted, strict=True):
        if format:
            type = tile.ref_type(ref)
            Rewriter.replace_value_with_new_type(ref, tile.RefType(type.array, type.space, StringAttr(format)))
    return kernel.sym_name.data
