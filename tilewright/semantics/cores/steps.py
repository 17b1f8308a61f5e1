"""Steps of generated programs: the work of a thread in each operation that it takes part in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tilewright.records import dataclass
from tilewright.semantics.cores.agents import Action, Agent

# Names of indices in the generated program.
Names = Callable[[Sequence[SSAValue]], list[str]]


@dataclass(frozen=True)
class Step:
    """`make` gives the action of one thread, which takes `arguments`, expressions of Python. It may access shared state
    only when all earlier events have happened (`in_order`), and it may have to wait (`waits`). If `make` itself detects
    errors, it `is_made_first`, before any thread does anything."""

    make: Callable[[Agent], Action]
    arguments: str = ""
    in_order: bool = True
    waits: bool = False
    is_made_first: bool = False
