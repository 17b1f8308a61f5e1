"""Units of the thread that computes, and what they are configured for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from xdsl.ir import Operation

from tilewright.dialects import cores
from tilewright.semantics.cores.agents import Action, Agent, Unit
from tilewright.semantics.cores.reports import hazard
from tilewright.semantics.cores.steps import Step

# Units that an operation uses, each with the state that it needs.
Needs = tuple[tuple[Unit, str], ...]


def configure_steps(op: cores.ConfigureOp) -> list[Step]:
    """The state of a unit."""
    name, state = op.unit, op.state

    def make(agent: Agent) -> Action:
        unit, spend, cycles = agent.unit(name), agent.spend, agent.world.grid.configure_cycles

        def configure() -> None:
            unit.state = state
            unit.is_new = True
            unit.configures += 1
            spend(cycles)

        return configure

    return [Step(make, in_order=False)]


def needed_states(op: Operation, units: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The states that an operation needs of some units."""
    return tuple((unit, state) for unit, state in cores.states_of(op).items() if unit in units)


def needs_of(agent: Agent, states: Iterable[tuple[str, str]]) -> Needs:
    """The thread's units of some names."""
    return tuple((agent.unit(name), state) for name, state in states)


def use(agent: Agent, op: Operation, needs: Needs) -> None:
    """Units are used, and are in the states that an operation needs."""
    for unit, state in needs:
        if unit.state != state:
            raise _other_state(agent, op, unit, state)
        if unit.is_new:
            unit.is_new = False
            if unit.used != state:
                unit.used = state
                unit.changes += 1


def _other_state(agent: Agent, op: Operation, unit: Unit, state: str) -> Exception:
    found = unit.state
    return hazard(
        "unit-not-configured" if found is None else "unit-configured-otherwise",
        f"unit {unit.name} has to be configured for `{state}`, and is "
        + ("not configured" if found is None else f"for `{found}`"),
        agent,
        op,
    )


def count_configures(agents: Iterable[Agent]) -> tuple[dict[str, int], dict[str, int]]:
    """How often units of each name were configured, and how often they had to be."""
    configures, changes = Counter[str](), Counter[str]()
    for agent in agents:
        for unit in agent.units.values():
            configures[unit.name] += unit.configures
            changes[unit.name] += unit.changes
    return dict(+configures), dict(+changes)
