"""The traces in progress, and what becomes of a finished one.

Array functions add primitives to the innermost graph. Regions of `while` and `if` are graphs nested in it: they may use
values of the graphs around them, and nothing else.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from tilewright.errors import ArgumentError, user_location
from tilewright.frontend.trace import Graph, Value
from tilewright.primitives import ArrayType

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


class NoTraceError(ArgumentError):
    """An array function was called outside a trace."""


class _Active(threading.local):
    """The graphs that this thread is tracing, outermost first."""

    graphs: tuple[Graph, ...] = ()
    keeps_views: bool = False


_active = _Active()


def is_tracing() -> bool:
    """Whether this thread is inside a trace."""
    return bool(_active.graphs)


def active_graphs() -> tuple[Graph, ...]:
    """The graphs whose values may be used here, outermost first."""
    return _active.graphs


def current_graph() -> Graph:
    """The graph that operations are added to.

    Raises:
        NoTraceError: no trace is in progress.
    """
    graphs = _active.graphs
    if not graphs:
        raise NoTraceError(
            "an array function was called outside a traced program",
            location=user_location(),
            help="call it inside a function decorated with `@tw.jit`",
        )
    return graphs[-1]


def keeps_views() -> bool:
    """Whether slices, reshapes and broadcasts that change nothing are recorded too, so that a function has traces of
    one form at all sizes."""
    return _active.keeps_views


@contextlib.contextmanager
def keeping_views() -> Generator[None]:
    """Record slices, reshapes and broadcasts that change nothing."""
    before = _active.keeps_views
    _active.keeps_views = True
    try:
        yield
    finally:
        _active.keeps_views = before


@contextlib.contextmanager
def _entered(graphs: tuple[Graph, ...]) -> Generator[Graph]:
    before = _active.graphs
    _active.graphs = graphs
    try:
        yield graphs[-1]
    finally:
        _active.graphs = before


def nested_graph(name: str) -> contextlib.AbstractContextManager[Graph]:
    """A new region of the current graph; operations are added to it inside the block."""
    return _entered((*_active.graphs, current_graph().nested(name)))


def reopened(graph: Graph) -> contextlib.AbstractContextManager[Graph]:
    """Add operations to a region of the current graph that was traced before."""
    return _entered((*_active.graphs, graph))


def trace_program(
    function: Callable[[Graph], Sequence[Value]], types: Sequence[ArrayType], names: Sequence[str], name: str
) -> Graph:
    """Trace `function`, which reads the inputs of the graph that it is given, into a program of its own."""
    graph = Graph(name)
    for type, input_name in zip(types, names, strict=True):
        graph.input(type, input_name)
    with _entered((graph,)):
        graph.outputs = list(function(graph))
    return graph


def build_ir(graph: Graph) -> ModuleOp:
    """The traced program as IR of the `array` phase."""
    from tilewright.frontend.build import build_module

    return build_module(graph)
