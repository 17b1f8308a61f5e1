"""The steps of a call of a program, from its `main` and the plan of its memory: launches, copies, and what the host
decides in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import yielded
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.array.lifetimes import storage
from tilewright.passes.base import Unit
from tilewright.passes.layouts.layout_rules import location_of
from tilewright.passes.program_memory import ARENA, CONSTANT, INPUT, OUTPUT, MemoryPlan, Place
from tilewright.runtime.cuda.steps import MOST_BLOCKS, Copy, DeviceCode, If, Kernel, Launch, Slot, Step, While
from tilewright.targets.cuda.emit import KernelCode


@dataclass(frozen=True)
class Steps:
    """The description of a call, and the names of the constants in the order of their buffers."""

    code: DeviceCode
    constants: list[str]


def steps_of(unit: Unit, plan: MemoryPlan, kernels: Mapping[str, KernelCode]) -> Steps:
    """The steps of a lowered program whose kernels are emitted.

    Raises:
        UnsupportedOnTargetError: something in it is no kernel, no view and no control flow, or a grid is too large.
    """
    return _Writer(unit, plan, kernels).write()


@dataclass
class _Writer:
    unit: Unit
    plan: MemoryPlan
    kernels: Mapping[str, KernelCode]
    constants: list[str] = field(default_factory=list[str])
    slots: dict[int, Slot] = field(default_factory=dict[int, Slot])
    """The places of the arena by their numbers among themselves; buffers at one offset are one place."""

    def write(self) -> Steps:
        block = self.unit.main.body.block
        last = block.last_op
        self.inputs = len(block.args)
        self.outputs = len(last.operands) if isinstance(last, ReturnOp) else 0
        self.names = [name for name, code in self.kernels.items() if code.blocks]
        self._list_constants(block)
        self._list_slots()
        steps = (*self._steps(block), *self._copied_results(last))
        launched = tuple(self._kernel(self.kernels[name]) for name in self.names)
        chip = self.unit.machine.llvm_cpu
        code = DeviceCode(chip=chip, kernels=launched, arena=tuple(self.slots.values()), steps=steps)
        return Steps(code, self.constants)

    def _list_constants(self, block: Block) -> None:
        for op in block.walk():
            if isinstance(op, array.ConstantOp) and op.resource not in self.constants:
                self.constants.append(op.resource)

    def _list_slots(self) -> None:
        """One for each offset, as large as the largest buffer there."""
        sizes: dict[int, int] = {}
        for buffer in self.plan.buffers:
            sizes[buffer.offset] = max(buffer.bytes, sizes.get(buffer.offset, 0))
        self.slots = {offset: Slot(offset, nbytes) for offset, nbytes in sorted(sizes.items())}

    def _kernel(self, code: KernelCode) -> Kernel:
        refs = self.unit.kernel(code.name).refs
        sizes = tuple(prod(tile.ref_type(ref).shape) * tile.ref_type(ref).dtype.itemsize for ref in refs)
        if code.blocks > MOST_BLOCKS:
            raise UnsupportedOnTargetError(
                f"`{code.name}` has {code.blocks} blocks", help=f"use larger tiles: a grid has at most {MOST_BLOCKS}"
            )
        return Kernel(
            name=code.name,
            blocks=code.blocks,
            threads=code.threads,
            shared_bytes=code.shared_bytes,
            parameters=sizes,
            cluster=code.cluster,
            tensor_maps=code.tensor_maps,
            zones=code.zones,
        )

    # ---- buffers --------------------------------------------------------------------------------------------------

    def _number(self, value: SSAValue) -> int:
        return self._number_at(self.plan.places[storage(value)])

    def _number_at(self, place: Place) -> int:
        if place.kind == INPUT:
            return place.index
        if place.kind == OUTPUT:
            return self.inputs + place.index
        if place.kind == CONSTANT:
            return self.inputs + self.outputs + self.constants.index(place.constant)
        return self.inputs + self.outputs + len(self.constants) + [*self.slots].index(place.index)

    def _share_memory(self, source: SSAValue, target: SSAValue) -> bool:
        """Whether one is written over the other, such as over the input that was donated for it."""
        a, b = self.plan.places[storage(source)], self.plan.places[storage(target)]
        donated = a.kind == INPUT and b.kind == OUTPUT and self.unit.donated.get(a.index) == b.index
        return a == b or donated

    def _assigned(self, source: SSAValue, target: SSAValue) -> list[Step]:
        nbytes = array_type(source).nbytes
        if self._share_memory(source, target) or not nbytes:
            return []
        return [Copy(self._number(source), self._number(target), nbytes)]

    # ---- steps ----------------------------------------------------------------------------------------------------

    def _steps(self, block: Block) -> list[Step]:
        steps: list[Step] = []
        for op in block.ops:
            if isinstance(op, array.CallOp):
                steps += self._call(op)
            elif isinstance(op, array.WhileOp):
                steps += self._while(op)
            elif isinstance(op, array.IfOp):
                steps.append(self._if(op))
            elif not isinstance(op, array.ConstantOp | array.ReshapeOp | array.YieldOp | ReturnOp):
                name = op.name.removeprefix("array.")
                error = UnsupportedOnTargetError(
                    f"`{name}` does not run on the cuda target", help='use target="cpu" for this program'
                )
                error.location = location_of(op)
                raise error
        return steps

    def _call(self, op: array.CallOp) -> list[Step]:
        name = op.callee
        outputs, inputs = iter(op.results), iter(op.operands)
        steps: list[Step] = []
        buffers: list[int] = []
        for effect in self.unit.kernel(name).effects:
            if effect == tile.IN:
                buffers.append(self._number(next(inputs)))
                continue
            output = next(outputs)
            buffers.append(self._number(output))
            if effect == tile.INOUT:
                steps += self._assigned(next(inputs), output)
        if name in self.names:
            steps.append(Launch(self.names.index(name), tuple(buffers)))
        return steps

    def _while(self, op: array.WhileOp) -> list[Step]:
        steps: list[Step] = []
        for source, target in zip(op.operands, op.results, strict=True):
            steps += self._assigned(source, target)
        (condition,) = yielded(op.condition.block)
        body = (*self._steps(op.body.block), *self._rotated(op))
        steps.append(While(tuple(self._steps(op.condition.block)), self._number(condition), body))
        return steps

    def _rotated(self, op: array.WhileOp) -> list[Step]:
        """The body's results become the carried arrays; those that move between places go through spare memory."""
        pairs = zip(yielded(op.body.block), op.results, strict=True)
        return self._through_spares(
            op, [(v, self._number(t), self._share_memory(v, t), array_type(v).nbytes) for v, t in pairs]
        )

    def _through_spares(self, op: Operation, moves: list[tuple[SSAValue, int, bool, int]]) -> list[Step]:
        """Copies of arrays to buffers, after all that are set aside have been; those that stay are none."""
        before: list[Step] = []
        after: list[Step] = []
        for position, (value, target, stays, nbytes) in enumerate(moves):
            source = self._number(value)
            spare = self.plan.spares.get((op, position))
            if spare is not None and nbytes:
                number = self._number_at(Place(ARENA, spare))
                before.append(Copy(source, number, nbytes))
                source = number
            if nbytes and not stays:
                after.append(Copy(source, target, nbytes))
        return [*before, *after]

    def _if(self, op: array.IfOp) -> If:
        branches: list[tuple[Step, ...]] = []
        for region in (op.then, op.otherwise):
            steps = self._steps(region.block)
            for value, target in zip(yielded(region.block), op.results, strict=True):
                steps += self._assigned(value, target)
            branches.append(tuple(steps))
        return If(self._number(op.operands[0]), *branches)

    def _copied_results(self, last: Operation | None) -> list[Step]:
        """Results that are not computed in place; those set aside are saved before any is written."""
        if last is None:
            return []
        moves = [(value, self.inputs + index, False, array_type(value).nbytes) for value, index in self.plan.copies]
        return self._through_spares(last, moves)
