"""Lifetimes of a program's arrays, in the order in which its steps run."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import array, tile
from tilewright.dialects.func import ReturnOp
from tilewright.passes.array.lifetimes import all_users, storage
from tilewright.passes.base import Unit


@dataclass
class CalledArray:
    """An array that kernels are called with, whose views are the same. `uses`: each kernel's ref that it is, with the
    call; `begin`, `end`: the first and last step that need it. `is_own`: it is made by a kernel, used by kernels only,
    and not given to the caller."""

    value: SSAValue
    begin: int
    end: int
    is_own: bool
    uses: list[tuple[array.CallOp, tile.KernelOp, int]] = field(
        default_factory=list[tuple[array.CallOp, tile.KernelOp, int]]
    )

    def is_alive(self, steps: tuple[int, int]) -> bool:
        return self.begin <= steps[1] and steps[0] <= self.end


class ArrayLives:
    """`steps`: of each operation, the numbers of its first and last step: one, but for what has regions. `arrays`: by
    the value whose memory they are."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._kernels = {kernel.sym_name: kernel for kernel in unit.kernels()}
        self.steps: dict[Operation, tuple[int, int]] = {}
        self._count = 0
        self.calls: list[array.CallOp] = []
        block = unit.main.body.block
        self._number(block)
        self.arrays: dict[SSAValue, CalledArray] = {}
        for call in self.calls:
            self._note(call)

    def _number(self, block: Block) -> None:
        for op in block.ops:
            first = self._count
            self._count += 1
            for region in op.regions:
                self._number(region.block)
            self.steps[op] = first, self._count - 1
            if isinstance(op, array.CallOp):
                self.calls.append(op)

    def _note(self, call: array.CallOp) -> None:
        kernel = self._kernels[call.callee]
        operands, results = iter(call.operands), iter(call.results)
        for number, effect in enumerate(kernel.effects):
            values = [next(operands)] if effect != tile.OUT else []
            values += [next(results)] if effect != tile.IN else []
            for value in values:
                found = self._array(storage(value))
                found.uses.append((call, kernel, number))
                # What is written in place is a copy of what came in, which may be wanted as it was.
                found.is_own = found.is_own and effect != tile.INOUT

    def _array(self, root: SSAValue) -> CalledArray:
        if root not in self.arrays:
            users = [*all_users(root)]
            is_local = all(isinstance(user, array.CallOp | array.ReshapeOp) for user in users)
            is_own = is_local and isinstance(root.owner, array.CallOp)
            self.arrays[root] = CalledArray(root, *self._life(root, users), is_own)
        return self.arrays[root]

    def _life(self, root: SSAValue, users: list[Operation]) -> tuple[int, int]:
        """Arguments and results of a block are live as long as the block runs."""
        if isinstance(root.owner, Block):
            parent = root.owner.parent_op()
            begin, end = self.steps.get(parent, (0, self._count)) if parent is not None else (0, self._count)
            return begin, end
        block = root.owner.parent_block()
        begin = end = self.steps[root.owner][0]
        for user in users:
            if isinstance(user, ReturnOp | array.YieldOp):
                end = max(end, self.steps[user][1])
                continue
            outer = user
            while outer.parent_block() is not block and (parent := outer.parent_op()) is not None:
                outer = parent
            end = max(end, self.steps[outer][1])
        return begin, end
