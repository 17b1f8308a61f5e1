"""Runs the steps of a program: calls of kernels, and what the host decides in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array, cores, tile
from tilewright.dialects.base import array_type
from tilewright.errors import UnsupportedOnTargetError
from tilewright.layout.catalogue.placements import Storage, parse_storage
from tilewright.passes.base import Unit
from tilewright.passes.layouts.layout_rules import location_of
from tilewright.primitives import ArrayType
from tilewright.targets.base import Tensor

T = TypeVar("T")


class HostSteps(ABC, Generic[T]):
    """One run of a program, whose arrays are of a type `T`. Without values no array is given, and none comes out."""

    def __init__(self, unit: Unit, *, has_values: bool = True) -> None:
        self.unit, self.has_values = unit, has_values
        self._kernels = {kernel.sym_name: kernel for kernel in unit.kernels()}

    # ---- what runs kernels does -------------------------------------------------------------------------------------

    @abstractmethod
    def given(self, array: Tensor | None, type: ArrayType, stored: Storage) -> T:
        """An array, stored as it states; None has no values."""

    @abstractmethod
    def undefined(self, ref: SSAValue) -> T:
        """An array that nothing was written to."""

    @abstractmethod
    def copied(self, array: T) -> T: ...

    @abstractmethod
    def viewed(self, array: T, type: ArrayType) -> T:
        """The pages as an array of another shape."""

    @abstractmethod
    def to_numpy(self, array: T, type: ArrayType) -> Tensor: ...

    @abstractmethod
    def launch(self, kernel: tile.KernelOp, arrays: Sequence[T]) -> None:
        """Run a kernel that holds a program for a grid of cores."""

    # ---- steps ------------------------------------------------------------------------------------------------------

    def run(self, arrays: Sequence[Tensor] | None) -> list[Tensor]:
        """The results for some arguments; without values, for none.

        Raises:
            HazardError: accesses of a kernel are not ordered, or a wait is never signalled.
            UnsupportedOnTargetError: an array has a type that the machine does not store.
        """
        block = self.unit.main.body.block
        values: dict[SSAValue, T] = {}
        for number, argument in enumerate(block.args):
            own = None if arrays is None else np.asarray(arrays[number])
            values[argument] = self.given(own, array_type(argument), self._storage(number))
        results = self._run_block(block, values)
        if arrays is None or block.last_op is None:
            return []
        return [self.to_numpy(r, array_type(o)) for r, o in zip(results, block.last_op.operands, strict=True)]

    def _storage(self, number: int) -> Storage:
        text = self.unit.storage.get(number)
        return Storage() if text is None else parse_storage(text)

    def _run_block(self, block: Block, values: dict[SSAValue, T]) -> list[T]:
        for op in block.ops:
            if isinstance(op, ReturnOp | array.YieldOp):
                return [values[o] for o in op.operands]
            values.update(zip(op.results, self._run_op(op, values), strict=True))
        return []

    def _run_op(self, op: Operation, values: dict[SSAValue, T]) -> Sequence[T]:
        operands = [values[o] for o in op.operands]
        match op:
            case array.CallOp():
                return self._call(op, operands)
            case array.ConstantOp():
                return [self._constant(op)]
            case array.ReshapeOp():
                return [self._reshaped(op, operands[0])]
            case array.IfOp():
                region = op.then if self._is_true(operands[0], op.operands[0]) else op.otherwise
                return self._run_block(region.block, values)
            case array.WhileOp():
                return self._while(op, operands, values)
            case _:
                name = op.name.removeprefix("array.")
                raise _refused(op, f"`{name}` does not run on a grid of cores")

    def _while(self, op: array.WhileOp, carried: Sequence[T], values: dict[SSAValue, T]) -> Sequence[T]:
        last = op.condition.block.last_op
        while True:
            values.update(zip(op.condition.block.args, carried, strict=True))
            (condition,) = self._run_block(op.condition.block, values)
            if not self.has_values or last is None or not self._is_true(condition, last.operands[0]):
                return carried
            values.update(zip(op.body.block.args, carried, strict=True))
            carried = self._run_block(op.body.block, values)

    def _is_true(self, condition: T, value: SSAValue) -> bool:
        return bool(self.to_numpy(condition, array_type(value)))

    def _constant(self, op: array.ConstantOp) -> T:
        if not op.resource:
            raise _refused(op, "a number that is an array of its own does not run on a grid of cores")
        return self.given(np.asarray(self.unit.constants[op.resource]), array_type(op.results[0]), Storage())

    def _reshaped(self, op: array.ReshapeOp, operand: T) -> T:
        before, after = array_type(op.operands[0]), array_type(op.results[0])
        if not cores.same_pages(before.shape, after.shape):
            raise _refused(op, f"a reshape of {before.shape} to {after.shape} is no view on a grid of cores")
        return self.viewed(operand, after)

    def _call(self, op: array.CallOp, operands: Sequence[T]) -> list[T]:
        kernel = self._kernels[op.callee]
        pending = iter(operands)
        arrays: list[T] = []
        results: list[T] = []
        for ref, effect in zip(kernel.refs, kernel.effects, strict=True):
            own = self.undefined(ref) if effect == tile.OUT else next(pending)
            if effect == tile.INOUT:
                own = self.copied(own)
            arrays.append(own)
            if effect != tile.IN:
                results.append(own)
        if any(isinstance(inner, cores.ProgramOp) for inner in kernel.body.block.ops):
            self.launch(kernel, arrays)
        return results


def _refused(op: Operation, what: str) -> UnsupportedOnTargetError:
    error = UnsupportedOnTargetError(what, help='use target="cpu" for this program')
    error.location = location_of(op)
    return error
