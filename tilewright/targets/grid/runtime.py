"""Runs the steps of a program: its kernels on the simulator, and what the host decides in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array, cores, tile
from tilewright.dialects.base import array_type
from tilewright.errors import UnsupportedOnTargetError
from tilewright.machines.machine import Machine
from tilewright.options import current
from tilewright.passes.base import Unit
from tilewright.passes.layout_rules import location_of
from tilewright.semantics.cores import DeviceArray, ProgramRun, Timeline, run_program
from tilewright.targets.base import Tensor

_Values = dict[SSAValue, DeviceArray]
# For each file of traces, up to where it goes, in cycles: programs follow one another.
_traced: dict[Path, float] = {}


class Simulation:
    """One run of a program. Without `values` only time is counted. With `whole_outputs` kernels that leave something
    of a result unwritten are reported; a user's kernel may. `runs`: the kernels that ran, in order."""

    def __init__(
        self, unit: Unit, *, seed: int = 0, values: bool = True, checks: bool = True, whole_outputs: bool = False
    ) -> None:
        self._unit = unit
        self._kernels = {kernel.sym_name.data: kernel for kernel in unit.kernels()}
        self._seed, self._has_values, self._checks = seed, values, checks
        self._whole_outputs = whole_outputs
        self.runs: list[tuple[str, ProgramRun]] = []

    def run(self, arrays: Sequence[Tensor] | None) -> list[Tensor]:
        """The results for some arguments; without values, for none.

        Raises:
            HazardError: something in a kernel is in no order, or waits for what does not come.
            UnsupportedOnTargetError: an array has a type that the machine does not store.
        """
        block = self._unit.main.body.block
        values: _Values = {}
        for number, argument in enumerate(block.args):
            type, format = array_type(argument), self._unit.storage.get(number)
            values[argument] = (
                DeviceArray.undefined(type.shape, type.dtype, format=format)
                if arrays is None
                else DeviceArray.from_numpy(np.asarray(arrays[number]), format=format)
            )
        results = self._run_block(block, values)
        return [] if arrays is None else [result.to_numpy() for result in results]

    def _run_block(self, block: Block, values: _Values) -> list[DeviceArray]:
        for op in block.ops:
            if isinstance(op, ReturnOp | array.YieldOp):
                return [values[o] for o in op.operands]
            values.update(zip(op.results, self._run_op(op, values), strict=True))
        return []

    def _run_op(self, op: Operation, values: _Values) -> Sequence[DeviceArray]:
        operands = [values[o] for o in op.operands]
        match op:
            case array.CallOp():
                return self._call(op, operands)
            case array.ConstantOp():
                return [self._constant(op)]
            case array.ReshapeOp():
                return [_reshaped(op, operands[0])]
            case array.IfOp():
                region = op.then if _is_true(operands[0]) else op.otherwise
                return self._run_block(region.block, values)
            case array.WhileOp():
                return self._while(op, operands, values)
            case _:
                name = op.name.removeprefix("array.")
                raise _refused(op, f"`{name}` does not run on a grid of cores")

    def _while(self, op: array.WhileOp, carried: Sequence[DeviceArray], values: _Values) -> Sequence[DeviceArray]:
        while True:
            values.update(zip(op.condition.block.args, carried, strict=True))
            (condition,) = self._run_block(op.condition.block, values)
            if not self._has_values or not _is_true(condition):
                return carried
            values.update(zip(op.body.block.args, carried, strict=True))
            carried = self._run_block(op.body.block, values)

    def _constant(self, op: array.ConstantOp) -> DeviceArray:
        if not op.resource.data:
            raise _refused(op, "a number that is an array of its own does not run on a grid of cores")
        return DeviceArray.from_numpy(np.asarray(self._unit.constants[op.resource.data]))

    def _call(self, op: array.CallOp, operands: Sequence[DeviceArray]) -> list[DeviceArray]:
        kernel = self._kernels[op.callee.data]
        pending = iter(operands)
        arrays: list[DeviceArray] = []
        results: list[DeviceArray] = []
        for ref, effect in zip(kernel.refs, kernel.effect_names, strict=True):
            given = _undefined(ref) if effect == tile.OUT else next(pending)
            if effect == tile.INOUT:
                given = DeviceArray(given.shape, given.dtype, given.format, given.space, given.pages.copy())
            arrays.append(given)
            if effect != tile.IN:
                results.append(given)
        if any(isinstance(inner, cores.ProgramOp) for inner in kernel.body.block.ops):
            self.runs.append((op.callee.data, self._run_kernel(kernel, arrays)))
        return results

    def _run_kernel(self, kernel: tile.KernelOp, arrays: Sequence[DeviceArray]) -> ProgramRun:
        """Run a program on a grid of cores; with the option `trace_file`, what it did when is added to that file."""
        path = current().trace_file if self._has_values else None
        timeline = None if path is None else Timeline(begin=_traced.get(path, 0.0))
        run = run_program(
            kernel,
            arrays,
            self._unit.machine,
            seed=self._seed,
            values=self._has_values,
            checks=self._checks,
            whole_outputs=self._whole_outputs,
            timeline=timeline,
        )
        if path is not None and timeline is not None:
            timeline.write(path, f"{self._unit.machine.target}:{self._unit.machine.name}", kernel.sym_name.data)
            _traced[path] = timeline.end
        return run


def run_kernel(kernel: tile.KernelOp, inputs: Sequence[Tensor], machine: Machine, seed: int = 0) -> list[Tensor]:
    """Run one kernel as `array.call` does: inputs in order, fresh outputs for `out` refs, copies for `inout`."""
    pending = iter(inputs)
    arrays: list[DeviceArray] = []
    results: list[DeviceArray] = []
    for ref, effect in zip(kernel.refs, kernel.effect_names, strict=True):
        given = _undefined(ref) if effect == tile.OUT else DeviceArray.from_numpy(next(pending), format=_format(ref))
        arrays.append(given)
        if effect != tile.IN:
            results.append(given)
    run_program(kernel, arrays, machine, seed=seed)
    return [result.to_numpy() for result in results]


def _undefined(ref: SSAValue) -> DeviceArray:
    type = tile.ref_type(ref)
    return DeviceArray.undefined(type.shape, type.dtype, format=_format(ref))


def _format(ref: SSAValue) -> str | None:
    """The format that an array's type says."""
    return tile.ref_type(ref).layout.data or None


def _is_true(condition: DeviceArray) -> bool:
    return bool(condition.to_numpy())


def _reshaped(op: array.ReshapeOp, operand: DeviceArray) -> DeviceArray:
    shape: tuple[int, ...] = array_type(op.results[0]).shape
    if not cores.same_pages(operand.shape, shape):
        raise _refused(op, f"a reshape of {operand.shape} to {shape} is no view on a grid of cores")
    return DeviceArray(shape, operand.dtype, operand.format, operand.space, operand.pages)


def _refused(op: Operation, what: str) -> UnsupportedOnTargetError:
    error = UnsupportedOnTargetError(what, help='use target="cpu" for this program')
    error.location = location_of(op)
    return error
