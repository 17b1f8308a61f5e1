"""Python functions that run the threads of a program, one for each kind of thread.

    def agent(a, heap, row, column, o0, o1, ...):       for a reader
        o0 = o0(a); ...
        for i0 in range(8):
            if heap[0][0] < a.time: yield True           all that comes before has happened
            while o0(): yield False                      cores.reserve
            ...

`o0` and so on are made by the operation's step (`steps.py`) for the thread's core, before the loops around it, so that
steps a core never reaches are not made. A generator yields True if others have to continue first, and False if it waits
for a thread to wake it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import lru_cache, partial
from types import CodeType, GeneratorType
from typing import Any, TypeAlias

from xdsl.ir import Block, Operation, SSAValue

from tilewright.cached import cached_property
from tilewright.dialects import cores, tile
from tilewright.errors import CompilerBug
from tilewright.records import dataclass
from tilewright.semantics.cores import (
    element_steps,
    line_steps,
    math_steps,
    mover_steps,
    pack_steps,
    pad_steps,
    row_steps,
    unpack_steps,
)
from tilewright.semantics.cores.agents import MATH, PACK, UNPACK, Action, Agent, Unit
from tilewright.semantics.cores.expressions import python
from tilewright.semantics.cores.marks import print_steps, zone_steps
from tilewright.semantics.cores.queue_steps import queue_steps
from tilewright.semantics.cores.steps import Names, Step
from tilewright.semantics.cores.units import configure_steps

_Generator: TypeAlias = "GeneratorType[bool, None, None]"


@dataclass(frozen=True)
class AgentCode:
    """`function` makes a thread's generator; `steps`: what it is made of, each of one operation; `trip_names`: for each
    operation the variables that count the trips of the loops around it."""

    function: Callable[..., _Generator]
    steps: list[tuple[Operation, Step]]
    trip_names: dict[Operation, tuple[str, ...]]

    def start(self, agent: Agent) -> None:
        """Give a thread its generator."""
        makes = self._makes if agent.world.timeline is None else [partial(_noted, *each) for each in self.steps]
        if self._made_first:
            makes = [make(agent) if i in self._made_first else make for i, make in enumerate(makes)]
        agent.units = {name: Unit(name) for name in self._units}
        agent.trip_names = self.trip_names
        agent.generator = self.function(agent, agent.world.heap, agent.core.row, agent.core.column, *makes)

    @cached_property
    def _makes(self) -> list[Callable[[Agent], Action]]:
        return [step.make for _, step in self.steps]

    @cached_property
    def _units(self) -> list[str]:
        """Units that are configured, in the order of the text: reports state them in this order."""
        return [*dict.fromkeys(op.unit for op, _ in self.steps if isinstance(op, cores.ConfigureOp))]

    @cached_property
    def _made_first(self) -> frozenset[int]:
        return frozenset(i for i, (_, step) in enumerate(self.steps) if step.is_made_first)


def _noted(op: Operation, step: Step, agent: Agent) -> Action:
    """The work of a step, for the timeline."""
    assert agent.world.timeline is not None
    return agent.world.timeline.noting(agent, op, step.make(agent))


@dataclass
class _Writer:
    """The text of one thread's function."""

    role: str
    marks: bool
    lines: list[str] = field(default_factory=list[str])
    steps: list[tuple[Operation, Step]] = field(default_factory=list[tuple[Operation, Step]])
    trip_names: dict[Operation, tuple[str, ...]] = field(default_factory=dict[Operation, tuple[str, ...]])
    variables: dict[SSAValue, str] = field(default_factory=dict[SSAValue, str])
    loops: list[str] = field(default_factory=list[str])
    indent: int = 1

    def block(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case tile.ForOp():
                    self._for(op)
                case cores.IfOp():
                    self._if(op)
                case cores.EndOp() | tile.YieldOp():
                    pass
                case _:
                    for step in self._steps(op):
                        self._step(op, step)

    def names(self, values: Sequence[SSAValue]) -> list[str]:
        return [self.variables[value] for value in values]

    def _for(self, op: tile.ForOp) -> None:
        name = f"i{len(self.loops)}_{len(self.lines)}"
        trips = str(op.trips)
        if op.end is not None:
            trips = f"min({trips}, {python(op.end.results[0], (), self.names(op.symbols))})"
        self.variables[op.body.block.args[0]] = name
        lines, steps = len(self.lines), len(self.steps)
        self.loops.append(name)
        self._nest([f"for {name} in range({trips}):"], [op.body.block])
        self.loops.pop()
        if not self.loops:
            self.lines[lines:lines] = self._made(steps)

    def _if(self, op: cores.IfOp) -> None:
        condition = python(op.map.results[0], (), self.names(op.symbols))
        self._nest([f"if {condition} == 0:", "else:"], [op.then.block, op.otherwise.block])

    def _nest(self, heads: Sequence[str], blocks: Sequence[Block]) -> None:
        """Blocks after their heads; nothing where the thread does nothing in any of them."""
        before, does_something = len(self.lines), False
        for head, block in zip(heads, blocks, strict=True):
            self._line(head)
            self.indent += 1
            inside = len(self.lines)
            self.block(block)
            does_something = does_something or len(self.lines) > inside
            if len(self.lines) == inside:
                self._line("pass")
            self.indent -= 1
        if not does_something:
            del self.lines[before:]

    def _step(self, op: Operation, step: Step) -> None:
        number = len(self.steps)
        self.steps.append((op, step))
        self.trip_names[op] = tuple(self.loops)
        if not self.loops:
            self.lines += self._made(number)
        if step.in_order:
            self._line("if heap[0][0] < a.time: yield True")
        call = f"o{number}({step.arguments})"
        self._line(f"while {call}: yield False" if step.waits else call)

    def _made(self, first: int) -> list[str]:
        """Lines that make what the last steps do, from the first of these on."""
        numbers = (i for i in range(first, len(self.steps)) if not self.steps[i][1].is_made_first)
        return ["    " * self.indent + f"o{i} = o{i}(a)" for i in numbers]

    def _line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def _steps(self, op: Operation) -> list[Step]:
        match op:
            case tile.ZoneOp():
                return zone_steps(op) if self.marks else []
            case tile.PrintOp() if self.role not in (MATH, PACK):
                return print_steps(op)
            case tile.PrintOp():
                return []
            case _ if self.role in (UNPACK, MATH, PACK):
                return _compute_steps(op, self.role, self.names)
            case _:
                return _mover_steps(op, self.names)


def code_of(thread: cores.ThreadOp, role: str, row: SSAValue, column: SSAValue, marks: bool) -> AgentCode:
    """The Python function of one thread of a core. `marks`: whether zones are noted."""
    writer = _Writer(role, marks)
    writer.variables |= {row: "row", column: "column"}
    writer.block(thread.body.block)
    parameters = ", ".join(["a", "heap", "row", "column", *(f"o{i}" for i in range(len(writer.steps)))])
    text = "\n".join([f"def agent({parameters}):", *writer.lines, "    return", "    yield False"])
    scope: dict[str, Any] = {}
    exec(_compiled(text, role), scope)
    return AgentCode(scope["agent"], writer.steps, writer.trip_names)


@lru_cache(maxsize=1024)
def _compiled(text: str, role: str) -> CodeType:
    """Code, which many programs have alike."""
    return compile(text, f"<{role}>", "exec")


def _mover_steps(op: Operation, names: Names) -> list[Step]:
    if isinstance(op, cores.QueueStepOp):
        return queue_steps(op)
    make = _MOVER_STEPS.get(type(op))
    if make is None:
        raise CompilerBug(f"no semantics for {op.name} in a mover")
    return make(op, names)


def _compute_steps(op: Operation, role: str, names: Names) -> list[Step]:
    if isinstance(op, cores.ConfigureOp):
        units = {UNPACK: unpack_steps.UNITS, MATH: math_steps.UNITS, PACK: pack_steps.UNITS}[role]
        return configure_steps(op) if op.unit in units else []
    if isinstance(op, cores.QueueStepOp):
        empties = isinstance(op, cores.WaitOp | cores.PopOp)
        return queue_steps(op) if role == (UNPACK if empties else PACK) else []
    if isinstance(op, cores.RegistersOp):
        owner = MATH if op.step in (cores.ACQUIRE, cores.COMMIT) else PACK
        return math_steps.registers_steps(op) if role == owner else []
    if not any(type(op) in steps for steps in (_UNPACK_STEPS, _MATH_STEPS, _PACK_STEPS)):
        raise CompilerBug(f"no semantics for {op.name} in the thread that computes")
    make = {UNPACK: _UNPACK_STEPS, MATH: _MATH_STEPS, PACK: _PACK_STEPS}[role].get(type(op))
    return [] if make is None else make(op, names)


# What makes the steps of an operation, by its class; each takes an operation of that class.
_Makers = dict[type[Operation], Callable[[Any, Names], list[Step]]]
_MOVER_STEPS: _Makers = {
    cores.FetchOp: mover_steps.fetch_steps,
    cores.PadOp: pad_steps.pad_steps,
    cores.PutOp: mover_steps.put_steps,
    cores.FetchRowsOp: row_steps.fetch_rows_steps,
    cores.PutRowsOp: row_steps.put_rows_steps,
    cores.BarrierOp: lambda op, _: mover_steps.barrier_steps(op),
    cores.MulticastOp: mover_steps.multicast_steps,
    cores.SendOp: mover_steps.send_steps,
    cores.SemaphoreSetOp: lambda op, _: mover_steps.semaphore_set_steps(op),
    cores.SemaphoreWaitOp: lambda op, _: mover_steps.semaphore_wait_steps(op),
    cores.SemaphoreIncrementOp: mover_steps.semaphore_increment_steps,
    cores.SemaphoreMulticastOp: mover_steps.semaphore_multicast_steps,
    cores.GatherOp: element_steps.gather_steps,
    cores.ScatterOp: element_steps.scatter_steps,
    cores.RearrangeOp: lambda op, _: element_steps.rearrange_steps(op),
    cores.ScanOp: lambda op, _: line_steps.scan_steps(op),
    cores.SortOp: lambda op, _: line_steps.sort_steps(op),
    cores.GenerateOp: element_steps.generate_steps,
}
_UNPACK_STEPS: _Makers = {
    cores.CopyOp: unpack_steps.copy_steps,
    cores.TilizeOp: unpack_steps.tilize_steps,
    cores.BinaryOp: unpack_steps.binary_steps,
    cores.MatmulOp: unpack_steps.matmul_steps,
    cores.ReduceOp: unpack_steps.reduce_steps,
}
_MATH_STEPS: _Makers = {
    cores.CopyOp: lambda op, _: math_steps.copy_steps(op),
    cores.TilizeOp: lambda op, _: math_steps.copy_steps(op),
    cores.BinaryOp: lambda op, _: math_steps.binary_steps(op),
    cores.MatmulOp: lambda op, _: math_steps.matmul_steps(op),
    cores.ReduceOp: lambda op, _: math_steps.reduce_steps(op),
    cores.MapOp: lambda op, _: math_steps.map_steps(op),
    cores.CastOp: lambda op, _: math_steps.cast_steps(op),
    cores.FoldOp: lambda op, _: math_steps.fold_steps(op),
}
_PACK_STEPS: _Makers = {
    cores.AccumulateOp: pack_steps.accumulate_steps,
    cores.PackOp: pack_steps.pack_steps,
    cores.UntilizeOp: pack_steps.untilize_steps,
}
