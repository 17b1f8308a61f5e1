"""What a program did when, as events that Perfetto and chrome://tracing open: a process for each core, and in it what
each agent did, what each mover's transfers took, and how full each queue was."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from xdsl.ir import Operation

from tilewright.dialects.cores import QueueStepOp
from tilewright.runtime.trace_file import Event, add_events
from tilewright.semantics.cores.agents import Action, Agent, Mover

# Processes of cores have numbers from this one on, behind those of other devices.
_FIRST_PROCESS = 1000


@dataclass(frozen=True)
class Span:
    """From one time to another, in cycles. `track`: an agent's role, or that and what it moves."""

    core: tuple[int, int]
    track: str
    name: str
    begin: float
    end: float
    category: str
    bytes: int = 0


@dataclass
class Timeline:
    """`fills`: core, queue, time in cycles, and how many pages it holds from then on."""

    spans: list[Span] = field(default_factory=list[Span])
    fills: list[tuple[tuple[int, int], str, float, int]] = field(
        default_factory=list[tuple[tuple[int, int], str, float, int]]
    )
    clock_hertz: float = 1e9
    _zones: dict[Agent, list[tuple[str, float]]] = field(default_factory=dict[Agent, list[tuple[str, float]]])

    def noting(self, agent: Agent, op: Operation, action: Action) -> Action:
        """What an agent does, and a note of how long it takes, and how long it waits before."""
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
        """What a mover began to move, and when it has come."""
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

    def write(self, path: Path, name: str = "grid") -> None:
        """Add all of it to a file.

        Raises:
            OptionError: the file cannot be written.
        """
        cores = sorted({span.core for span in self.spans} | {fill[0] for fill in self.fills})
        tracks = sorted({(span.core, span.track) for span in self.spans})
        processes = {core: _FIRST_PROCESS + i for i, core in enumerate(cores)}
        threads = {track: i for i, track in enumerate(tracks)}
        scale = 1e6 / self.clock_hertz
        names: dict[tuple[int, int | None], str] = {(p, None): f"{name} core {core}" for core, p in processes.items()}
        names |= {(processes[core], threads[core, track]): track for core, track in tracks}
        events: list[Event] = []
        # Zones enclose what is in them, so that they come first where both begin together.
        for span in sorted(self.spans, key=lambda each: (each.begin, -each.end)):
            event: Event = {
                "ph": "X",
                "name": span.name,
                "cat": span.category,
                "pid": processes[span.core],
                "tid": threads[span.core, span.track],
                "ts": span.begin * scale,
                "dur": (span.end - span.begin) * scale,
            }
            events.append(event | {"args": {"bytes": span.bytes}} if span.bytes else event)
        for core, queue, time, pages in self.fills:
            head: Event = {"ph": "C", "name": f"queue {queue}", "pid": processes[core], "ts": time * scale}
            events.append(head | {"args": {"pages": pages}})
        add_events(path, names, events)
