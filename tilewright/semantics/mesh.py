"""A program on all devices of a mesh, in one process: each runs until it comes to a collective, where it waits until
all others of its group are there.

Control flow may differ between devices, but not so that one of a group comes to a collective that others do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from tilewright import collectives
from tilewright.dialects import array
from tilewright.errors import ArgumentError, MeshError
from tilewright.records import dataclass
from tilewright.semantics.array import Interpreter, Steps, Tensor, exchange
from tilewright.semantics.cores.reports import location_of


def devices_of(module: ModuleOp) -> int:
    """How many devices a program is for.

    Raises:
        ArgumentError: its operations do not agree.
    """
    told = {op.devices for op in module.walk() if isinstance(op, array.CollectiveOp | array.DeviceIndexOp)}
    if len(told) > 1:
        message = f"one program is for {' and for '.join(map(str, sorted(told)))} devices"
        raise ArgumentError(message, help="give all its collectives one number of devices")
    return told.pop() if told else 1


@dataclass
class _Device:
    """One device: `op` is what it waits at, with `operand`; None when it has ended."""

    number: int
    steps: Steps
    op: array.CollectiveOp | None = None
    operand: Tensor = field(default_factory=lambda: np.zeros(()))
    results: list[Tensor] = field(default_factory=list[Tensor])

    def resume(self, received: Tensor | None) -> None:
        """Run to the next collective, or to the end."""
        try:
            self.op, self.operand = next(self.steps) if received is None else self.steps.send(received)
        except StopIteration as end:
            self.op, self.results = None, end.value


def run(
    block: Block,
    arguments: Sequence[Sequence[Tensor]],
    constants: Mapping[str, Tensor],
    call: Callable[[str, Sequence[Tensor]], Sequence[Tensor]] | None = None,
) -> list[list[Tensor]]:
    """Run a function for the arguments of each device; gives the results of each.

    Raises:
        MeshError: devices of a group come to different collectives.
    """
    devices = [
        _Device(number, Interpreter(constants, call, number).steps(block, own)) for number, own in enumerate(arguments)
    ]
    for device in devices:
        device.resume(None)
    while any(device.op is not None for device in devices):
        if not any([_meet(devices, device) for device in devices]):
            raise _stuck(devices)
    return [device.results for device in devices]


def _meet(devices: Sequence[_Device], device: _Device) -> bool:
    """Have a device and those that it waits for exchange what they copied, if all are there; whether they did."""
    op = device.op
    if op is None:
        return False
    attributes = op.attributes_of()
    # One that has no part in the exchange need not wait for others.
    members = [devices[n] for n in collectives.meeting(attributes, device.number)] or [device]
    if any(member.op is not op for member in members):
        return False
    if device.number not in attributes["groups"]:
        device.resume(np.zeros_like(device.operand))
        return True
    received = exchange(attributes, {member.number: member.operand for member in members})
    for member in members:
        member.resume(received[member.number])
    return True


def _stuck(devices: Sequence[_Device]) -> MeshError:
    device, op = next((device, device.op) for device in devices if device.op is not None)
    attributes = op.attributes_of()
    missing = next(n for n in collectives.meeting(attributes, device.number) if devices[n].op is not op)
    other = devices[missing].op
    elsewhere = "has ended" if other is None else f"waits at {collectives.described(other.attributes_of())}"
    message = f"the device {device.number} waits at {collectives.described(attributes)}, but {missing} {elsewhere}"
    help = "all devices of a group need the same branches and as many steps of loops"
    return MeshError(message, location=location_of(op), help=help)
