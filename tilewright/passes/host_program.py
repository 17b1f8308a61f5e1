"""Turn `main` into the host program: launches, copies, branches and loops over numbered buffers.

The memory plan decides which buffer an array is in. Arrays that change places between trips of a loop, and results
that are donated inputs, go through spare memory. Every target that runs lowered programs gets its host program here.

Before:
    func.func @main(%x: tensor<16xf32>, %y: tensor<16xf32>) -> tensor<16xf32> {
      %a, %b = array.while(%x, %y) do {
      ^bb0(%c: tensor<16xf32>, %d: tensor<16xf32>):
        %e = array.call(%c) {callee = "less_0"} : tensor<i1>
        array.yield(%e)
      } do {
      ^bb1(%f: tensor<16xf32>, %g: tensor<16xf32>):
        %h = array.call(%f, %g) {callee = "update_1"} : tensor<16xf32>
        array.yield(%g, %h)
      } : tensor<16xf32>, tensor<16xf32>
      func.return %a : tensor<16xf32>
    }
    tile.kernel() {sym_name = "less_0", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%in: !tile.ref<tensor<16xf32>>, %out: !tile.ref<tensor<i1>>):
      tile.yield()
    }
    tile.kernel() {sym_name = "update_1", grid = array<i64>, effects = ["inout", "in"]} do {
    ^bb0(%out: !tile.ref<tensor<16xf32>>, %in: !tile.ref<tensor<16xf32>>):
      tile.yield()
    }
After:
    %3: arena byte 0, 64 bytes
    %4: arena byte 64, 64 bytes
    %5: arena byte 128, 64 bytes
    %6: arena byte 192, 64 bytes
    copy 64 bytes of %0 to %2
    copy 64 bytes of %1 to %3
    condition:
      launch less_0(%2, %4)
    while %4:
      copy 64 bytes of %2 to %5
      launch update_1(%5, %3)
      copy 64 bytes of %3 to %6
      copy 64 bytes of %6 to %2
      copy 64 bytes of %5 to %3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import field
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.func import ReturnOp
from tilewright.dialects.rewriting import yielded
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.array.lifetimes import all_users, storage
from tilewright.passes.base import Unit
from tilewright.passes.layouts.layout_rules import location_of
from tilewright.passes.program_memory import ARENA, CONSTANT, INPUT, OUTPUT, MemoryPlan, Place
from tilewright.runtime.host_program import Copy, HostProgram, If, Launch, Slot, Step, While

LibraryKernels = Mapping[array.LibraryCallOp, str]
"""The names of the kernels that call libraries. Their parameters are the operands and results of the call."""


def host_program(
    unit: Unit, plan: MemoryPlan, kernels: Sequence[str], library: LibraryKernels | None = None
) -> HostProgram:
    """The host program of a lowered unit. A call of a kernel that is not among `kernels` computes nothing.

    Raises:
        UnsupportedOnTargetError: something in `main` is no kernel, no view and no control flow.
    """
    return _Writer(unit, plan, kernels, library or {}).write()


class _Writer(msgspec.Struct, dict=True):
    unit: Unit
    plan: MemoryPlan
    kernels: Sequence[str]
    library: LibraryKernels
    constants: dict[str, int] = field(default_factory=dict[str, int])
    """The numbers of the constants that something reads."""
    slots: dict[int, Slot] = field(default_factory=dict[int, Slot])
    """Slots by their offsets; arrays at one offset share a slot."""

    def write(self) -> HostProgram:
        block = self.unit.main.body.block
        last = block.last_op
        self.inputs = len(block.args)
        self.outputs = len(last.operands) if isinstance(last, ReturnOp) else 0
        self.kernel_numbers = {name: n for n, name in enumerate(self.kernels)}
        self._list_constants(block)
        self._list_slots()
        self.first_slot = self.inputs + self.outputs + len(self.constants)
        self.slot_numbers = {offset: self.first_slot + n for n, offset in enumerate(self.slots)}
        steps = (*self._steps(block), *self._copied_results(last))
        return HostProgram(
            inputs=self.inputs,
            outputs=self.outputs,
            constants=tuple(self.constants),
            arena=tuple(self.slots.values()),
            kernels=tuple(self.kernels),
            steps=steps,
        )

    def _list_constants(self, block: Block) -> None:
        """The constants that something reads, in the order of their definitions."""
        for op in block.walk():
            if not isinstance(op, array.ConstantOp) or op.resource in self.constants:
                continue
            users = [user for user in all_users(op.results[0]) if not isinstance(user, array.ReshapeOp)]
            if users and not op.resource:
                raise self._unsupported(op, "a constant that no kernel computes")
            if users:
                self.constants[op.resource] = len(self.constants)

    def _list_slots(self) -> None:
        """One for each offset, as large as the largest buffer there."""
        sizes: dict[int, int] = {}
        for buffer in self.plan.buffers:
            sizes[buffer.offset] = max(buffer.bytes, sizes.get(buffer.offset, 0))
        self.slots = {offset: Slot(offset, nbytes) for offset, nbytes in sorted(sizes.items())}

    def _unsupported(self, op: Operation, what: str) -> UnsupportedOnTargetError:
        message = f"{what} does not run on the {self.unit.machine.target} target"
        error = UnsupportedOnTargetError(message, help='use target="cpu" for this program')
        error.location = location_of(op)
        return error

    # ---- buffers --------------------------------------------------------------------------------------------------

    def _number(self, value: SSAValue) -> int:
        return self._number_at(self.plan.places[storage(value)])

    def _number_at(self, place: Place) -> int:
        if place.kind == INPUT:
            return place.index
        if place.kind == OUTPUT:
            return self.inputs + place.index
        if place.kind == CONSTANT:
            return self.inputs + self.outputs + self.constants[place.constant]
        return self.slot_numbers[place.index]

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
            elif isinstance(op, array.LibraryCallOp):
                buffers = tuple(self._number(value) for value in (*op.operands, *op.results))
                steps.append(Launch(self.kernel_numbers[self.library[op]], buffers))
            elif isinstance(op, array.WhileOp):
                steps += self._while(op)
            elif isinstance(op, array.IfOp):
                steps.append(self._if(op))
            elif not isinstance(op, array.ConstantOp | array.ReshapeOp | array.YieldOp | ReturnOp):
                raise self._unsupported(op, f"`{op.name.removeprefix('array.')}`")
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
        if name in self.kernel_numbers:
            steps.append(Launch(self.kernel_numbers[name], tuple(buffers)))
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
