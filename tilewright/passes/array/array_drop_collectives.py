"""Drop shardings, collectives among a single device, and device indices from a program for one device. A program for
several devices is refused.

Before:
    func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<i64>) {
      %held = array.shard(%x) {layout = "(4) : [4@mem]", open = array<i64: 0>} : tensor<4xf32>
      %y = array.map(%held) {fn = "exp"} : tensor<4xf32>
      %sum = array.collective(%y) {kind = "all_reduce", devices = 1 : index, groups = array<i64: 0>, \
group_size = 1 : index, fn = "add"} : tensor<4xf32>
      %number = array.device_index() {devices = 1 : index} : tensor<i64>
      func.return %sum, %number : tensor<4xf32>, tensor<i64>
    }
After:
    func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<i64>) {
      %y = array.map(%x) {fn = "exp"} : tensor<4xf32>
      %number = array.constant() {value = 0 : index, resource = ""} : tensor<i64>
      func.return %y, %number : tensor<4xf32>, tensor<i64>
    }
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from xdsl.ir import Operation

from tilewright import collectives
from tilewright.dialects import array
from tilewright.dialects.rewriting import erase, insert_before
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.base import Unit, blocks_of
from tilewright.passes.layouts.layout_rules import location_of


class ArrayDropCollectivesPass(msgspec.Struct, frozen=True):
    """
    Raises:
        UnsupportedOnTargetError: the program is for several devices.
    """

    name: ClassVar[str] = "array-drop-collectives"

    def apply(self, unit: Unit) -> None:
        for block in blocks_of(unit.main):
            for op in list(block.ops):
                if isinstance(op, array.DeviceIndexOp):
                    _number(unit, op)
                elif isinstance(op, array.ShardOp) or (isinstance(op, array.CollectiveOp) and _is_identity(unit, op)):
                    op.results[0].replace_all_uses_with(op.operands[0])
                    erase(op)


def _number(unit: Unit, op: array.DeviceIndexOp) -> None:
    devices = op.devices
    if devices != 1:
        raise _refused(unit, op, f"the index of the device that runs it (`device_index` of {devices})")
    made = array.ConstantOp(value=0, resource="", outputs=[op.results[0].type])
    made.location = op.location
    insert_before(op, made)
    op.results[0].replace_all_uses_with(made.results[0])
    erase(op)


def _is_identity(unit: Unit, op: array.CollectiveOp) -> bool:
    attributes = op.attributes_of()
    if not collectives.is_identity(attributes):
        raise _refused(unit, op, collectives.described(attributes))
    return True


def _refused(unit: Unit, op: Operation, what: str) -> UnsupportedOnTargetError:
    message = f"the program needs {what}, but a machine such as {unit.machine.name} is one device"
    help = 'run it with target="interp", which runs all devices in one process, or lower it for one device'
    return UnsupportedOnTargetError(message, location=location_of(op), help=help)
