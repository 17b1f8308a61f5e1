"""Runs one block of a cluster: whose turn it is, branches, barriers, what waits for asynchronous operations, and ends.

Each thread has a position in the program. The threads at the lowest position run together until they reach the next
lowest one or part at a branch, which brings structured code together again. Where that brings only some lanes of a warp
to an instruction of whole warps, they wait until no other thread can go on. Only then, too, do those go on that wait
for a phase that is complete or a barrier at which all came, and only after them does one asynchronous operation land:
everything asynchronous is as late as it can be.
"""

from collections import Counter

import numpy as np

from tests.emulators.ptx import tensor_cores
from tests.emulators.ptx.barriers import BarrierStep, NamedBarriers
from tests.emulators.ptx.block import WARP, Block, Retry
from tests.emulators.ptx.decode import Branch, Exit, Program
from tests.emulators.ptx.errors import BarrierMisuse

# Far more than a test's block needs: a loop that does not end is an error, not a hang.
MOST_STEPS = 1_000_000


class BlockRun:
    def __init__(self, program: Program, block: Block, executed: Counter[int]) -> None:
        self._program = program
        self._block = block
        self._executed = executed
        self._barriers = NamedBarriers(block, lambda place: getattr(program.steps[place].action, "aligned", False))
        self._positions = np.zeros(block.lanes.size, np.int64)
        self._waiting, self._held, self._suspended = (np.zeros(block.lanes.size, bool) for _ in range(3))
        self._retries: list[Retry] = []

    @property
    def is_over(self) -> bool:
        return bool(self._block.finished.all())

    def take_turn(self, holds: bool) -> bool:
        """Some of the threads that can go on do: where `holds`, of those that are not held. Whether there are any."""
        self._block.cluster.running = self._block
        turn = ~self._block.finished & ~self._waiting & ~self._suspended
        if holds:
            turn &= ~self._held
        if not turn.any():
            return False
        position = int(self._positions[turn].min())
        mask = turn & (self._positions == position)
        self._held &= ~mask
        others = self._positions[turn & ~mask]
        self._run_until(position, mask, int(others.min()) if others.size else len(self._program.steps), holds)
        return True

    def _joined(self, mask: np.ndarray, position: int, warps_together: int) -> np.ndarray:
        """With the lanes of the same warps, or warpgroups, that are held at the same instruction."""
        there = self._held & (self._positions == position)
        if not there.any():
            return mask
        groups = _by_groups(mask, warps_together * WARP).any(axis=1)
        joined = mask | (there & np.repeat(groups, warps_together * WARP)[: mask.size])
        self._held &= ~joined
        return joined

    def _lacks_lanes(self, mask: np.ndarray, warps_together: int) -> bool:
        """Whether other lanes of the same warps, or warpgroups, may still come."""
        possible = ~self._block.finished & (warps_together > 1 or ~self._waiting)
        if np.array_equal(mask, possible):
            return False
        running, possible = (_by_groups(each, warps_together * WARP) for each in (mask, possible))
        return bool((running.any(axis=1) & (running != possible).any(axis=1)).any())

    def _run_until(self, position: int, mask: np.ndarray, end: int, holds: bool) -> None:
        """The threads of `mask` run from `position` on, up to `end`, or until they part, wait or end; where `holds`,
        also until some lanes of a warp come to an instruction of whole warps."""
        block, steps, executed = self._block, self._program.steps, self._executed
        fences = self._program.fences_registers
        warps_running = int(np.count_nonzero(mask.reshape(-1, WARP).any(axis=1)))
        while position < end:
            step = steps[position]
            instruction, action = step.instruction, step.action
            if step.warps_together:
                mask = self._joined(mask, position, step.warps_together)
                if holds and self._lacks_lanes(mask, step.warps_together):
                    self._positions[mask] = position
                    self._held |= mask
                    return
                holds = True
            block.current = instruction
            block.steps += 1
            executed[position] += warps_running
            guard = instruction.guard
            running = mask
            if guard is not None:
                value = block.registers[guard.index]
                running = mask & ~value if instruction.guard_negated else mask & value
            if block.owned and not step.registers.isdisjoint(block.owned):
                block.check_owned(step.registers, running)
            if fences and step.registers:
                block.warpgroups.touch(step.register_list, running)
            position += 1
            if callable(action):
                retry = action(block, running)
                if retry is not None:
                    self._suspend(retry, position - 1)
                    mask = mask & ~retry.lanes
                    if not mask.any():
                        return
            elif isinstance(action, Branch) and (running == mask).all():
                position = action.target
            elif running.any():
                self._positions[mask] = position
                self._control(action, running, position - 1)
                return
            if block.steps > MOST_STEPS:
                raise RuntimeError(f"more than {MOST_STEPS} steps, {block.where()}")
        self._positions[mask] = position
        if position >= len(steps):
            block.finished |= mask

    def _control(self, action: object, running: np.ndarray, place: int) -> None:
        if isinstance(action, Branch):
            self._positions[running] = action.target
        elif isinstance(action, Exit):
            self._block.finished |= running
        elif isinstance(action, BarrierStep):
            self._barriers.arrive(action, running, place)
            if action.waits:
                self._waiting |= running

    def _suspend(self, retry: Retry, place: int) -> None:
        self._positions[retry.lanes] = place
        self._suspended |= retry.lanes
        self._retries.append(retry)

    # ---- when no thread can go on ----------------------------------------------------------------------------------

    def wake(self) -> bool:
        over = [retry for retry in self._retries if retry.is_over()]
        for retry in over:
            self._retries.remove(retry)
            self._suspended &= ~retry.lanes
        return bool(over)

    def open(self) -> bool:
        count, threads = self._barriers.opened()
        self._waiting &= ~threads
        return count > 0 or bool(threads.any())

    def stuck(self) -> str:
        """What threads wait for."""
        block, steps = self._block, self._program.steps
        places = {number: found for number, found in self._barriers.places.items() if found.size}
        instructions = [steps[int(place)].instruction for found in places.values() for place in found]
        lines = [f"line {each.line}: {each.text}" for each in instructions]
        for retry in self._retries:
            thread = int(np.argmax(retry.lanes))
            each = steps[int(self._positions[thread])].instruction
            lines.append(f"thread {thread}, line {each.line}: {each.text}, for {retry.waits_for()}")
        what = "different barriers" if len(places) > 1 and not self._retries else "what nobody will do"
        return f"threads of block {block.position} wait for {what}: {'; '.join(lines)}"

    def end(self) -> None:
        """All threads ended: nothing may be under way that touches the block's memory."""
        block = self._block
        block.cluster.end(block)
        for barrier in block.mbarriers:
            if barrier.transactions:
                raise BarrierMisuse(f"the block ends with bytes pending at {barrier}, {block.where()}")
        block.bulk.end(block)
        block.warpgroups.end()
        tensor_cores.end(block)


def _by_groups(mask: np.ndarray, threads: int) -> np.ndarray:
    missing = -mask.size % threads
    return (np.pad(mask, (0, missing)) if missing else mask).reshape(-1, threads)
