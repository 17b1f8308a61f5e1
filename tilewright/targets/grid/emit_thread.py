"""Shared code for printing the threads of a program: names, loops, choices and steps of queues.

The body is printed first, and notes what it uses; what it uses is declared above it then, so that nothing is declared
in vain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import field

from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from tilewright.cached import cached_property
from tilewright.dialects import cores, tile
from tilewright.errors import CompilerBug
from tilewright.machines.core_grid import CoreGrid
from tilewright.records import dataclass
from tilewright.targets.grid.emit_expressions import FLOOR_DIVIDE, Value, constant, results, variable

_COUNTERS = ("i", "j", "k", "m", "n", "p", "q", "r", "s", "t", "u", "v", "w")
# Names that C++ or the headers of kernels have.
_CPP_NAMES = re.compile(
    r"and|asm|auto|bool|case|char|class|const|do|double|else|enum|float|for|if|int|long|new|not|or|short|signed|struct|"
    r"switch|this|union|using|void|while|xor|noc|local|load|store|core_row|core_column|[ijkmnp-w]"
)


@dataclass(frozen=True)
class Facts:
    """A program, and the names of what its threads share. `wide`: whether tile registers have 32 bits."""

    kernel: tile.KernelOp
    program: cores.ProgramOp
    grid: CoreGrid

    @cached_property
    def array_names(self) -> dict[SSAValue, str]:
        fallback = {tile.IN: "in", tile.OUT: "out", tile.INOUT: "inout"}
        chosen: dict[SSAValue, str] = {}
        effects = self.kernel.effects
        for number, (ref, effect) in enumerate(zip(self.kernel.refs, effects, strict=True)):
            _choose(chosen, ref, f"{fallback[effect]}{effects[:number].count(effect)}")
        return chosen

    @cached_property
    def queue_names(self) -> dict[SSAValue, str]:
        chosen: dict[SSAValue, str] = {}
        for number, op in enumerate(self.program.queues):
            _choose(chosen, op.result, self._content(op.result) or f"temp{number}", "cb_")
        return chosen

    def _content(self, queue: SSAValue) -> str:
        """The array whose elements are in a queue; where they come from before where they go."""
        users = [use.operation for use in queue.uses if isinstance(use.operation, cores.PagesOp | cores.ElementsOp)]
        users.sort(key=lambda op: isinstance(op, cores.ARRAY_STORES))
        return next((self.array_names[op.array] for op in users if op.queue is queue), "")

    @cached_property
    def semaphore_names(self) -> dict[SSAValue, str]:
        chosen: dict[SSAValue, str] = {}
        for number, op in enumerate(self.program.semaphores):
            _choose(chosen, op.result, str(number), "sem_")
        return chosen

    @property
    def wide(self) -> bool:
        return self.program.wide


def _choose(chosen: dict[SSAValue, str], value: SSAValue, fallback: str, prefix: str = "") -> None:
    hint = value.name_hint or ""
    plain = hint if hint.isidentifier() and hint.isascii() and (prefix or not _CPP_NAMES.fullmatch(hint)) else fallback
    name = prefix + plain.removeprefix(prefix)
    chosen[value] = name if name not in chosen.values() else f"{name}_{len(chosen)}"


@dataclass(frozen=True)
class ThreadSource:
    """A thread's text, and what its kernel is given. `arrays`: the numbers of those whose addresses are its common
    arguments, and whose accessors its compile-time arguments describe; `needs_cores`: whether the coordinates of cores
    on the networks follow; `core_arguments`: what each core's own arguments are; `has_scratch`: whether it has a queue
    of its own."""

    role: str
    noc: int | None
    text: str
    arrays: tuple[int, ...] = ()
    needs_cores: bool = False
    core_arguments: tuple[str, ...] = ()
    has_scratch: bool = False


@dataclass
class ThreadPrinter:
    """Prints the operations of one thread."""

    facts: Facts
    thread: cores.ThreadOp
    lines: list[str] = field(default_factory=list[str])
    values: dict[SSAValue, Value] = field(default_factory=dict[SSAValue, Value])
    queues: dict[SSAValue, None] = field(default_factory=dict[SSAValue, None])
    sized: dict[SSAValue, None] = field(default_factory=dict[SSAValue, None])
    helpers: dict[str, None] = field(default_factory=dict[str, None])
    includes: dict[str, None] = field(default_factory=dict[str, None])
    core_arguments: dict[str, None] = field(default_factory=dict[str, None])
    _depth: int = 1
    _counters: list[str] = field(default_factory=list[str])

    # ---- text -------------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines += wrapped(text, "    " * self._depth)

    @contextmanager
    def block(self, opening: str) -> Generator[None]:
        """Print the enclosed code inside of braces."""
        self.line(f"{opening} {{".lstrip())
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def otherwise(self) -> Generator[None]:
        """Print the enclosed code as the `else` of the preceding block."""
        self.lines[-1] += " else {"
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def loops(self, extents: Sequence[int]) -> Generator[list[Value]]:
        """Print the enclosed code in loops over some extents; gives the coordinates."""
        counters: list[Value] = []
        before, opened = self._depth, len(self._counters)
        for size in extents:
            if size == 1:
                counters.append(constant(0))
                continue
            counters.append(variable(self._open_counter(), size))
            self.line(f"for (uint32_t {counters[-1].text} = 0; {counters[-1].text} < {size}; ++{counters[-1].text}) {{")
            self._depth += 1
        yield counters
        del self._counters[opened:]
        while self._depth > before:
            self._depth -= 1
            self.line("}")

    def _open_counter(self) -> str:
        number = len(self._counters)
        name = _COUNTERS[number] if number < len(_COUNTERS) else f"i{number}"
        self._counters.append(name)
        return name

    # ---- names ------------------------------------------------------------------------------------------------------

    def queue(self, queue: SSAValue) -> str:
        """The name of a queue, which the thread uses."""
        self.queues[queue] = None
        return self.facts.queue_names[queue]

    def page_bytes(self, queue: SSAValue) -> str:
        """The name of the size of a queue's pages."""
        self.sized[queue] = None
        return f"{self.queue(queue)}_bytes"

    def value(self, index: SSAValue) -> Value:
        """A counter of a loop, or the row or column of the core."""
        found = self.values.get(index)
        if found is not None:
            return found
        arguments = self.facts.program.body.block.args
        axis = next((number for number, each in enumerate(arguments) if each is index), None)
        if axis is None:
            raise CompilerBug(f"{index} is no counter of a loop around its use, and no coordinate of the core")
        found = variable(("core_row", "core_column")[axis], self.facts.program.shape[axis])
        if found.number is None:
            self.core_arguments[found.text] = None
        return found

    def core(self) -> tuple[Value, Value]:
        """The row and the column of the core."""
        row, column = (self.value(each) for each in self.facts.program.body.block.args)
        return row, column

    def map(self, map: AffineMap, symbols: Sequence[SSAValue | Value], dims: Sequence[Value] = ()) -> list[Value]:
        """The value of a map, by names."""
        known = [self.value(each) if isinstance(each, SSAValue) else each for each in symbols]
        found = results(map, dims, known)
        if any(each.divides for each in found):
            self.helpers[FLOOR_DIVIDE] = None
        return found

    # ---- operations -------------------------------------------------------------------------------------------------

    def print_block(self, block: Block) -> None:
        for op in block.ops:
            self.print_op(op)

    def print_op(self, op: Operation) -> None:
        match op:
            case tile.ForOp():
                self._print_for(op)
            case cores.IfOp():
                self._print_if(op)
            case cores.ReserveOp():
                self.line(f"cb_reserve_back({self.queue(op.queue)}, {op.count});")
            case cores.PushOp():
                self.line(f"cb_push_back({self.queue(op.queue)}, {op.count});")
            case cores.WaitOp():
                self.line(f"cb_wait_front({self.queue(op.queue)}, {op.count});")
            case cores.PopOp():
                self.line(f"cb_pop_front({self.queue(op.queue)}, {op.count});")
            case tile.ZoneOp():
                self._print_zone(op)
            case tile.PrintOp():
                self.includes["api/debug/dprint.h"] = None
                names = [self.queue(each) for each in op.arguments]
                label = _escaped(op.label).replace("{", "{{").replace("}", "}}")
                text = "".join([label, *(" queue {}" for _ in names)]).strip()
                self.line(f"DPRINT({', '.join([chr(34) + text + chr(92) + 'n' + chr(34), *names])});")
            case cores.EndOp() | tile.YieldOp():
                pass
            case _:
                self.print_own(op)

    def print_own(self, op: Operation) -> None:
        """Print an operation that only this kind of thread has."""
        raise CompilerBug(f"{op.name} has no form in C++ in the thread `{self.thread.role}`")

    def enter_loop(self, op: tile.ForOp) -> None:
        """A loop's body is printed next."""

    def state(self) -> object:
        """The known states of the units at this position of the text."""
        return None

    def join(self, *states: object) -> None:
        """This place is after several others, of which what was known is given."""

    def _print_zone(self, op: tile.ZoneOp) -> None:
        """A zone of the device's profiler lasts as long as a scope."""
        if op.begins:
            self.includes["api/debug/kernel_profiler.hpp"] = None
            self.line("{")
            self._depth += 1
            self.line(f'DeviceZoneScopedN("{_escaped(op.label)}");')
        else:
            self._depth -= 1
            self.line("}")

    def _print_for(self, op: tile.ForOp) -> None:
        trips = op.trips
        counter = op.body.block.args[0]
        self.enter_loop(op)
        if op.end is None:
            with self.loops((trips,)) as (value,):
                self.values[counter] = value
                self.print_block(op.body.block)
            return
        (end,) = self.map(op.end, op.symbols)
        name = self._open_counter()
        below = f"{name} < {end.text}" if end.low >= 0 else f"static_cast<int32_t>({name}) < {end.as_signed()}"
        condition = below if end.high <= trips else f"{name} < {trips} && {below}"
        self.values[counter] = Value(name, 0, trips - 1)
        before = self.state()
        with self.block(f"for (uint32_t {name} = 0; {condition}; ++{name})"):
            self.print_block(op.body.block)
        self.join(before, self.state())
        self._counters.pop()

    def _print_if(self, op: cores.IfOp) -> None:
        (value,) = self.map(op.map, op.symbols)
        then, otherwise = (_does_something(region.block) for region in (op.then, op.otherwise))
        if value.number is not None:
            self.print_block((op.then if value.number == 0 else op.otherwise).block)
            return
        before = self.state()
        if then:
            with self.block(f"if ({value.within(2)} == 0)"):
                self.print_block(op.then.block)
        after_then = self.state()
        self.join(before)
        if then and otherwise:
            with self.otherwise():
                self.print_block(op.otherwise.block)
        elif otherwise:
            with self.block(f"if ({value.within(2)} != 0)"):
                self.print_block(op.otherwise.block)
        self.join(after_then, self.state())

    # ---- the whole --------------------------------------------------------------------------------------------------

    def declarations(self) -> list[str]:
        """Queues and coordinates of the core that the body uses."""
        lines = [
            f"constexpr uint32_t {self.facts.queue_names[op.result]} = {number};"
            for number, op in enumerate(self.facts.program.queues)
            if op.result in self.queues
        ]
        sized = [self.facts.queue_names[queue] for queue in self.sized]
        lines += [f"constexpr uint32_t {name}_bytes = get_tile_size({name});" for name in sized]
        lines += [
            f"const uint32_t {name} = get_arg_val<uint32_t>({number});"
            for number, name in enumerate(self.core_arguments)
        ]
        return lines

    def text(self, title: str, declarations: Sequence[str], opening: Sequence[str] = ()) -> str:
        """The whole source. `title`: what it does; `opening`: lines before the body."""
        includes = "\n".join(f'#include "{name}"' for name in self.includes)
        helpers = "\n".join(self.helpers)
        body = [f"    {line}" if line else "" for line in declarations]
        body += ["", *opening] if opening else []
        body += ["", *self.lines] if body else self.lines
        parts = [f"// {title}", includes, helpers, "void kernel_main() {\n" + "\n".join(body) + "\n}"]
        return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def wrapped(text: str, indent: str, limit: int = 120, ending: str = "") -> list[str]:
    """A line of C++, or, where it is a call and longer than `limit`, one for each argument; and what follows it."""
    if not text:
        return [""]
    ends = _call_ends(text)
    if len(indent) + len(text) + len(ending) <= limit or ends is None:
        return [indent + text + ending]
    opening, closing = ends
    lines = [indent + text[:opening]]
    depth, begin = 0, opening
    for place in range(opening, closing):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if text[place] == "," and depth == 0:
            lines += wrapped(text[begin:place].strip(), indent + "    ", limit, ",")
            begin = place + 1
    return lines + wrapped(text[begin:closing].strip(), indent + "    ", limit, text[closing:] + ending)


def _call_ends(text: str) -> tuple[int, int] | None:
    """The span of a call's arguments, if the text ends with the call."""
    if "(" not in text or ")" not in text:
        return None
    opening, closing, depth = text.index("(") + 1, text.rindex(")"), 0
    for place in range(opening, closing):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth < 0:
            return None
    return opening, closing


def _escaped(text: str) -> str:
    """A text as it stands in a literal of C++."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _does_something(block: Block) -> bool:
    return any(not isinstance(op, cores.EndOp) for op in block.ops)


def following(op: Operation, wanted: Callable[[Operation], bool]) -> Operation | None:
    """The first operation of the thread after another that is wanted: in the order of the text, and then from its
    beginning, for loops."""
    ops = list(cores.thread_of(op).body.walk())
    place = next(number for number, each in enumerate(ops) if each is op)
    return next((each for each in [*ops[place:], *ops[:place]] if wanted(each)), None)
