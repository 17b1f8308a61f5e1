"""A timeline of a run, as events that Perfetto and chrome://tracing open: a process for each core, and in it what each
thread did, what each mover's transfers took, and how full each queue was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from xdsl.ir import Operation

from tilewright.dialects.cores import QueueStepOp
from tilewright.records import dataclass
from tilewright.runtime.trace_file import Event, add_events
from tilewright.semantics.cores.agents import Action, Agent, Mover

# Processes of cores have numbers from this one on, behind those of other devices, and so many for a row.
_FIRST_PROCESS, _ROW = 1000, 64
# The track of a core's kernels; and the numbers of tracks, which are the same for all kernels.
_PROGRAM = "kernel"
_NUMBERS: dict[str, int] = {_PROGRAM: 0}


@dataclass(frozen=True)
class Span:
    """From one time to another, in cycles. `track`: a thread's role, or that and what it moves."""

    core: tuple[int, int]
    track: str
    name: str
    begin: float
    end: float
    category: str
    bytes: int = 0


@dataclass
class Timeline:
    """`fills`: core, queue, time in cycles, and how many pages it holds from then on. `begin`: when the program begins,
    in cycles, by the clock of the file that it is written to."""

    spans: list[Span] = field(default_factory=list[Span])
    fills: list[tuple[tuple[int, int], str, float, int]] = field(
        default_factory=list[tuple[tuple[int, int], str, float, int]]
    )
    clock_hertz: float = 1e9
    begin: float = 0.0
    _zones: dict[Agent, list[tuple[str, float]]] = field(default_factory=dict[Agent, list[tuple[str, float]]])

    def noting(self, agent: Agent, op: Operation, action: Action) -> Action:
        """The work of a thread, with its duration and the wait before it."""
        self.clock_hertz = agent.world.grid.clock_hertz
        name, core = op.name.partition(".")[2], agent.core.position
        since: list[float] = []

        def noted(*given: int) -> bool | None:
            began = agent.time
            if action(*given):
                since.append(began)
                return True
            if since:
                self._note(core, agent.role, f"wait: {name}", min(since), began, "wait")
                since.clear()
            self._note(core, agent.role, name, began, agent.time, "operation")
            if isinstance(op, QueueStepOp):
                queue = agent.queue(op.queue)
                self.fills.append((core, queue.name, agent.time, queue.back - queue.front))
            return False

        return noted

    def transfer(self, mover: Mover, kind: str, bytes: int, began: float, lands: float) -> None:
        """A transfer of a mover, and its arrival."""
        self._note(mover.core.position, f"{mover.role} transfers", kind, began, lands, "transfer", bytes)

    def edge(self, agent: Agent, label: str, begins: bool) -> None:
        """An edge of a zone."""
        open_zones = self._zones.setdefault(agent, [])
        if begins:
            open_zones.append((label, agent.time))
        elif open_zones:
            label, began = open_zones.pop()
            self._note(agent.core.position, agent.role, label, began, agent.time, "zone")

    def _note(
        self, core: tuple[int, int], track: str, name: str, begin: float, end: float, category: str, bytes: int = 0
    ) -> None:
        if end > begin:
            self.spans.append(Span(core, track, name, begin, end, category, bytes))

    @property
    def end(self) -> float:
        """When the last of it ends, by the clock of the file."""
        return self.begin + max((span.end for span in self.spans), default=0.0)

    def write(self, path: Path, name: str = "grid", kernel: str = "") -> None:
        """Add all of it to a file: `name` is the machine's, `kernel` that of a slice around all that a core does.

        Raises:
            OptionError: the file cannot be written.
        """
        spans = sorted(self.spans, key=lambda each: (each.begin, -each.end))
        if kernel:
            spans = [*self._whole(kernel, spans), *spans]
        tracks = sorted({(span.core, span.track) for span in spans})
        cores = {span.core for span in spans} | {fill[0] for fill in self.fills}
        processes = {core: _FIRST_PROCESS + _ROW * core[0] + core[1] for core in sorted(cores)}
        threads = {track: _NUMBERS.setdefault(track[1], len(_NUMBERS)) for track in tracks}
        scale = 1e6 / self.clock_hertz
        names: dict[tuple[int, int | None], str] = {(p, None): f"{name} core {core}" for core, p in processes.items()}
        names |= {(processes[core], threads[core, track]): track for core, track in tracks}
        events: list[Event] = []
        # Zones enclose what is in them, so that they come first where both begin together.
        for span in spans:
            event: Event = {
                "ph": "X",
                "name": span.name,
                "cat": span.category,
                "pid": processes[span.core],
                "tid": threads[span.core, span.track],
                "ts": (self.begin + span.begin) * scale,
                "dur": (span.end - span.begin) * scale,
            }
            events.append(event | {"args": {"bytes": span.bytes}} if span.bytes else event)
        for core, queue, time, pages in self.fills:
            at = (self.begin + time) * scale
            head: Event = {"ph": "C", "name": f"queue {queue}", "pid": processes[core], "ts": at}
            events.append(head | {"args": {"pages": pages}})
        add_events(path, names, events)

    def _whole(self, kernel: str, spans: Sequence[Span]) -> list[Span]:
        """A span for each core, from the first thing that it does to the last."""
        ends: dict[tuple[int, int], tuple[float, float]] = {}
        for span in spans:
            begin, end = ends.get(span.core, (span.begin, span.end))
            ends[span.core] = min(begin, span.begin), max(end, span.end)
        return [Span(core, _PROGRAM, kernel, *times, "kernel") for core, times in ends.items()]
